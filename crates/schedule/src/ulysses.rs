//! Ulysses: attention on a sharded sequence, by exchanging shards of the sequence for shards of heads around it
//! (DeepSpeed-Ulysses, Jacobs et al., 2023).
//!
//! A query attends to keys of the whole sequence, but heads are independent. So q, k and v, which arrive sharded along
//! the sequence, are read sharded along heads instead, over the same axis, and the result goes back: one all-to-all each,
//! forward and, for the gradients, backward. On each rank attention then sees whole sequences of some heads, with
//! whatever mask.
//!
//! The layouts come from a propagation without these lines, so that heads keep the axes that they have for other reasons,
//! such as `tp`; the axis of the line is added as the minor-most. Everything here is annotations and sharding constraints;
//! that they take all-to-alls follows.

use crate::apply::{Declared, LayoutAnnotator};
use crate::modules::is_inside;
use crate::pins::{Constraints, Pin};
use crate::style::Kind;
use partita_base::{Diagnostic, Result};
use partita_ir::composite::Origin;
use partita_ir::composites::ATTENTION;
use partita_ir::ops::Composite;
use partita_ir::{Graph, Node, NodeId, Op, ValueId};
use partita_mesh::{AxisRef, AxisRole, Mesh, Sharding};
use partita_spmd::propagate;
use std::collections::BTreeMap;

/// A line about attention, and the modules that it covers.
pub(crate) struct AttentionLine {
    axis: AxisRef,
    modules: Vec<String>,
    origin: String,
}

impl LayoutAnnotator<'_> {
    /// The lines `ulysses`; of `ring`, requests that attention is sharded along the sequence, as tokens are over
    /// `sp` and `cp` anyway. E221 for a pattern that matches no module, E235 if there is no attention in the modules.
    pub(crate) fn attention_lines(&mut self, declared: &[Declared]) -> Result<Vec<AttentionLine>> {
        let mut lines = Vec::new();
        for &line in declared.iter().filter(|line| line.style.is_attention()) {
            let (axis, origin) = (self.axis(line)?, line.describe());
            let named = self.modules.named(line.entry.scope(), &origin)?;
            let modules: Vec<String> = named.into_iter().map(str::to_string).collect();
            if line.style.kind == Kind::Ring {
                let is_ring = |id: &NodeId| matches!(self.graph.node(*id).op, Op::RingAttention(_));
                if line.style.zigzag {
                    for module in &modules {
                        for id in self.modules.forward_nodes(module).into_iter().filter(is_ring) {
                            self.check_zigzag(self.graph.node(id), axis, &origin)?;
                        }
                    }
                }
                let role = AxisRole::from_axis(line.style.axis_name());
                let shards_tokens = role.is_some_and(AxisRole::shards_sequence);
                for module in modules.iter().filter(|_| !shards_tokens) {
                    for id in self.modules.forward_nodes(module).into_iter().filter(is_ring) {
                        self.pins.shard(self.graph.node(id).results[0], 2, axis, &origin)?;
                    }
                }
                continue;
            }
            let is_covered = |node: &Node| modules.iter().any(|module| is_inside(&node.path, module));
            if !self.graph.nodes.iter().any(|node| is_covered(node) && Tensors::of(node).is_some()) {
                return Err(Diagnostic::new("E235", format!("there is no attention in `{}`", line.modules))
                    .at(origin)
                    .expected("modules that apply `partita.attention`")
                    .found(format!("modules `{}`", modules.join("`, `")))
                    .help(
                        "name modules of attention; attention that a line decomposes has no heads any more",
                    ));
            }
            lines.push(AttentionLine { axis, modules, origin });
        }
        Ok(lines)
    }
}

impl LayoutAnnotator<'_> {
    /// E235 unless the ranks of a ring can share the tokens as chunks, two for each.
    fn check_zigzag(&self, node: &Node, axis: AxisRef, origin: &str) -> Result<()> {
        let Op::RingAttention(ring) = &node.op else { return Ok(()) };
        let tokens = self.graph.ty(node.results[0]).shape[2];
        let chunks = 2 * axis.size;
        if ring.options.causal && tokens.is_multiple_of(chunks) {
            return Ok(());
        }
        let what = if ring.options.causal { "" } else { "not " };
        Err(Diagnostic::new("E235", format!("`{}` has no zigzag order", node.path))
            .at(origin)
            .expected(format!("a causal mask, and a multiple of {chunks} tokens: two chunks for each rank"))
            .found(format!("{tokens} tokens, {what}causal"))
            .help("leave out `zigzag=true`"))
    }
}

/// The composite of a node that is attention.
pub(crate) fn attention_of(node: &Node) -> Option<&Composite> {
    let Op::Composite(composite) = &node.op else { return None };
    let is_it =
        matches!(&composite.definition.origin, Origin::Template(template) if template.name == ATTENTION.name);
    is_it.then_some(composite)
}

/// The tensors of an attention or of its gradient.
struct Tensors {
    /// Operand positions of tensors `[batch, heads, sequence, depth]`.
    with_heads: Vec<usize>,
    /// The operand position of the mask `[batch or 1, heads or 1, queries or 1, keys]` or limits `[batch, queries, 2]`.
    mask: Option<usize>,
}

impl Tensors {
    fn of(node: &Node) -> Option<Tensors> {
        let Op::Composite(composite) = &node.op else { return None };
        let (origin, own) = match &composite.definition.origin {
            Origin::Vjp { base, .. } => (&base.origin, base.decomposition.inputs.len()),
            origin => (origin, node.operands.len()),
        };
        let is_attention = matches!(origin, Origin::Template(template) if template.name == ATTENTION.name);
        let mask = (own > 3).then_some(3);
        let with_heads = (0..node.operands.len()).filter(|&position| Some(position) != mask).collect();
        is_attention.then_some(Tensors { with_heads, mask })
    }
}

/// The layout of a tensor with dimensions `[batch, heads, ..]` that holds the shards of `axis` along heads. If it has one
/// head for all, it is replicated over the axis.
fn by_heads(layout: &Sharding, shape: &[usize], axis: AxisRef, origin: &str) -> Pin {
    let mut pin = Pin::free(shape.len());
    for (dim, entry) in layout.dims.iter().enumerate() {
        pin.axes[dim] = entry.axes.iter().copied().filter(|other| !other.overlaps(axis)).collect();
    }
    // Limits have no heads.
    if axis.size > 1 && shape[1] > 1 && shape.len() == 4 {
        pin.axes[1].push(axis);
    }
    pin.close();
    pin.asked_by(origin);
    pin
}

/// The annotations and constraints that lay out every covered attention and gradient of one by heads.
pub(crate) fn exchange_heads(
    graph: &Graph,
    mesh: &Mesh,
    lines: &[AttentionLine],
) -> Result<(BTreeMap<ValueId, Pin>, Constraints)> {
    let layouts = propagate(graph, mesh)?;
    let uses = graph.uses();
    let (mut pins, mut constraints) = (BTreeMap::new(), Constraints::default());
    // A value in the layout that it has without these lines.
    let as_before = |value: ValueId, origin: &str| {
        let mut pin = Pin::free(graph.ty(value).rank());
        for (axes, entry) in pin.axes.iter_mut().zip(&layouts.sharding(value).dims) {
            axes.clone_from(&entry.axes);
        }
        pin.close();
        pin.asked_by(origin);
        pin
    };
    for id in graph.node_ids() {
        let node = graph.node(id);
        let covers = |line: &&AttentionLine| line.modules.iter().any(|module| is_inside(&node.path, module));
        let Some(line) = lines.iter().rev().find(covers) else { continue };
        let Some(tensors) = Tensors::of(node) else { continue };
        let by_heads = |value: ValueId| {
            by_heads(layouts.sharding(value), &graph.ty(value).shape, line.axis, &line.origin)
        };
        for position in tensors.with_heads.into_iter().chain(tensors.mask) {
            let value = node.operands[position];
            let place = constraints.place(value, by_heads(value), &node.path);
            constraints.readers.insert((id, position), place);
            // Or else the ops before it would work by heads too, on gathered sequences.
            if graph.value(value).annotation.is_none() {
                pins.entry(value).or_insert_with(|| as_before(value, &line.origin));
            }
        }
        for &result in &node.results {
            pins.insert(result, by_heads(result));
            let place = constraints.place(result, as_before(result, &line.origin), &node.path);
            for &reader in &uses[result.index()] {
                constraints.readers.entry(reader).or_insert(place);
            }
        }
    }
    Ok((pins, constraints))
}
