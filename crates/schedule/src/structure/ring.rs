//! The plan line `ring`: attention becomes the op that works on a sharded sequence.

use crate::modules::is_inside;
use crate::plan::Entry;
use crate::ulysses::attention_of;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::composites::attention_window;
use partita_ir::ops::{RingAttention, RingOptions};
use partita_ir::{AttributesExt, Graph, Node, graph_edit};

/// Whether a node is self-attention without a mask of bools.
pub(crate) fn is_self_attention(graph: &Graph, node: &Node) -> bool {
    let (true, &[q, k, _, ref mask @ ..]) = (attention_of(node).is_some(), &node.operands[..]) else {
        return false;
    };
    let is_self = graph.ty(q).shape.get(2) == graph.ty(k).shape.get(2);
    is_self && mask.iter().all(|&mask| graph.ty(mask).dtype != DType::Bool)
}

/// The op that computes the same as a node, if this is self-attention without a mask of bools.
fn of(graph: &Graph, node: &Node, zigzag: bool) -> Option<Result<RingAttention>> {
    let attributes = &attention_of(node)?.attributes;
    let options = || {
        let (causal, window) = (attributes.flag("causal"), attention_window(attributes));
        Ok(RingOptions { causal, window, zigzag, scale: attributes.float("scale")? })
    };
    is_self_attention(graph, node).then(|| options().map(|options| RingAttention { options }))
}

/// The graph with every self-attention in these modules as a ring. E235 if there is none.
pub(super) fn around(graph: &Graph, modules: &[&str], entry: &Entry, zigzag: bool) -> Result<Graph> {
    let mut found = 0;
    let ringed = graph_edit::rebuild(graph, |builder, _, index, operands| {
        let node = &graph.nodes[index];
        let is_covered = modules.iter().any(|module| is_inside(&node.path, module));
        let Some(op) = is_covered.then(|| of(graph, node, zigzag)).flatten() else {
            return Ok(Some(graph_edit::push_copy(builder, graph, index, operands)));
        };
        found += 1;
        builder.enter(node);
        Ok(Some(builder.push(op?, operands)?[..1].to_vec()))
    })?;
    if found > 0 {
        return Ok(ringed);
    }
    Err(Diagnostic::new("E235", format!("there is no attention for a ring in `{}`", entry.modules))
        .at(entry.describe())
        .expected("modules that apply `partita.attention` without a mask of i1, with as many queries as keys")
        .found(format!("modules `{}`", modules.join("`, `")))
        .help("attention with a mask takes `ulysses`"))
}
