//! The plan line `ring`: attention becomes the op that works on a sharded sequence.

use crate::modules::is_inside;
use crate::plan::Entry;
use partita_base::{Diagnostic, Result};
use partita_ir::composite::Origin;
use partita_ir::composites::ATTENTION;
use partita_ir::ops::RingAttention;
use partita_ir::{AttributesExt, Graph, Node, Op, graph_edit};

/// The op that computes the same as a node, if this is self-attention without a mask.
fn of(graph: &Graph, node: &Node) -> Option<Result<RingAttention>> {
    let Op::Composite(composite) = &node.op else { return None };
    let is_attention =
        matches!(&composite.definition.origin, Origin::Template(template) if template.name == ATTENTION.name);
    let &[q, k, _] = &node.operands[..] else { return None };
    let attributes = &composite.attributes;
    let is_self = graph.ty(q).shape.get(2) == graph.ty(k).shape.get(2);
    let op = || Ok(RingAttention { causal: attributes.flag("causal"), scale: attributes.float("scale")? });
    (is_attention && is_self).then(op)
}

/// The graph with every self-attention in these modules as a ring. E235 if there is none.
pub(super) fn around(graph: &Graph, modules: &[&str], entry: &Entry) -> Result<Graph> {
    let mut found = 0;
    let ringed = graph_edit::rebuild(graph, |builder, _, index, operands| {
        let node = &graph.nodes[index];
        let is_covered = modules.iter().any(|module| is_inside(&node.path, module));
        let Some(op) = is_covered.then(|| of(graph, node)).flatten() else {
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
        .expected("modules that apply `partita.attention` without a mask, with as many queries as keys")
        .found(format!("modules `{}`", modules.join("`, `")))
        .help("attention with a mask takes `ulysses`"))
}
