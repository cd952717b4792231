//! Chains of causes: from a plan line, through ops, to a value or a collective.

use super::Explain;
use crate::plan::Entry;
use crate::primitive::Primitive;
use partita_ir::{Annotation, NodeId, Role, ValueId};
use partita_mesh::{AxisRef, AxisRole, Step};
use partita_spmd::{Cause, Move};
use std::collections::BTreeSet;

/// Causes as text, the first one first.
#[derive(Clone, Default)]
pub(super) struct Chain {
    /// The source: a plan line, or a rule such as the layout of the batch.
    pub origin: Option<String>,
    /// One cause each.
    pub links: Vec<String>,
}

impl Explain<'_> {
    /// The dimension of a value that an axis, or a part of it, shards.
    pub(super) fn dim_over(&self, value: ValueId, axis: AxisRef) -> Option<usize> {
        self.layout(value).dims.iter().position(|dim| dim.axes.iter().any(|a| a.axis == axis.axis))
    }

    /// Why a value has its layout over an axis.
    pub(super) fn chain(&self, value: ValueId, axis: AxisRef) -> Chain {
        let over = self.mesh.display_axis(axis);
        if self.dim_over(value, axis).is_none() {
            return self.whole(value, axis, &over);
        }
        let layouts = &self.partitioned.layouts;
        let mut chain = Chain::default();
        let mut seen = BTreeSet::new();
        let mut at = value;
        // Walks from the value back to the source.
        while seen.insert(at) {
            let name = self.name_of(at);
            let Some(dim) = self.dim_over(at, axis) else {
                chain.links.push(format!("only the optimizer state of `{name}` is sharded"));
                break;
            };
            let (text, next) = match &layouts.causes[at.index()][dim] {
                Some(Cause::Pinned(origin)) => {
                    let origin = self.who(origin, axis);
                    chain.origin = Some(origin.clone());
                    (format!("{origin}: shards `{name}` along dimension {dim} over `{over}`"), None)
                }
                Some(Cause::Through { node, from }) => {
                    let through = self.op_of(self.graph.node(*node));
                    (format!("through {through}: `{name}` is sharded along dimension {dim}"), Some(*from))
                }
                Some(Cause::GradientOf(of)) => (
                    format!("`{name}` has the layout of the value that it is the gradient of"),
                    Some(self.read_as(*of, axis)),
                ),
                Some(Cause::RematOf(of)) => {
                    (format!("`{name}` is recomputed, in the layout of the forward pass"), Some(*of))
                }
                Some(Cause::Alias(other)) => (
                    format!(
                        "`{name}` and `{}` share one layout: one replaces the other after the step",
                        self.name_of(*other)
                    ),
                    Some(*other),
                ),
                Some(Cause::Group(other)) => {
                    (format!("`{name}` is in a sharding group with `{}`", self.name_of(*other)), Some(*other))
                }
                None => (format!("`{name}` is sharded along dimension {dim} over `{over}`"), None),
            };
            chain.links.push(text);
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        chain.links.reverse();
        chain
    }

    /// A parameter, or the state of it that its gradient follows.
    fn read_as(&self, of: ValueId, axis: AxisRef) -> ValueId {
        let is_state = |v: &&ValueId| {
            self.graph.value(**v).role == Role::StateOf(of) && self.dim_over(**v, axis).is_some()
        };
        match self.dim_over(of, axis) {
            Some(_) => of,
            None => self.graph.inputs.iter().find(is_state).copied().unwrap_or(of),
        }
    }

    /// Why a value is replicated over an axis.
    fn whole(&self, value: ValueId, axis: AxisRef, over: &str) -> Chain {
        let name = self.name_of(value);
        let Some(annotation) = self.asked(value) else {
            return Chain { origin: None, links: vec![format!("nothing shards `{name}` over `{over}`")] };
        };
        let keeps = annotation.replicated.iter().any(|a| a.axis == axis.axis);
        let closed = annotation.open.iter().all(|open| !open);
        if !keeps && !closed {
            return Chain { origin: None, links: vec![format!("nothing shards `{name}` over `{over}`")] };
        }
        let origin = self.who(&annotation.origin, axis);
        let links = vec![format!("{origin}: replicates `{name}` over `{over}`")];
        Chain { origin: Some(origin), links }
    }

    /// Among the lines with a request for one value, those about this axis; all of them if none is.
    fn who(&self, origin: &str, axis: AxisRef) -> String {
        let name = &self.mesh.axes[axis.axis].name;
        let own = |given: &Option<String>| match given {
            Some(given) => given == name,
            None => self.mesh.axes.len() == 1 || name == AxisRole::Model.axis(),
        };
        let about = |entry: &&Entry| match &entry.primitive {
            Primitive::Style(style) => style.axis_name() == name,
            Primitive::Shard { axis, .. } | Primitive::Sync { axis, .. } => own(axis),
            _ => false,
        };
        let mut lines: Vec<String> = Vec::new();
        for line in self.built.plan.entries.iter().filter(about).map(Entry::describe) {
            if origin.contains(&line) && !lines.contains(&line) {
                lines.push(line);
            }
        }
        if lines.is_empty() { origin.to_string() } else { lines.join("; ") }
    }

    /// The layout that was requested for a value.
    pub(super) fn asked(&self, value: ValueId) -> Option<&Annotation> {
        let of = self.graph.value(value);
        let constraint = of.definition.and_then(|(node, _)| self.graph.node(node).op.constraint());
        of.annotation.as_ref().or(constraint)
    }

    /// Why a collective exists: the cause of the layout before, and the reader that needs the
    /// layout after.
    pub(super) fn collective_chain(&self, step: &Move) -> Chain {
        let value = step.value;
        let name = self.name_of(value);
        let axes = match &step.step.step {
            Step::AllGather { axes, .. }
            | Step::AllReduce { axes, .. }
            | Step::ReduceScatter { axes, .. }
            | Step::AllToAll { axes, .. }
            | Step::Slice { axes, .. }
            | Step::ToPartial { axes, .. } => axes.clone(),
            Step::Permute {} => step.before.sharded_axes(),
        };
        let Some(&axis) = axes.first() else { return Chain::default() };
        let over = self.mesh.display_axes(&axes);
        let sum = matches!(step.step.step, Step::AllReduce { .. } | Step::ReduceScatter { .. });
        let mut chain = match self.cut_source(value, axis, sum) {
            Some((node, operand)) => {
                let mut chain = self.chain(operand, axis);
                let op = self.op_of(self.graph.node(node));
                chain.links.push(match sum {
                    true => format!("{op} reduces that dimension: `{name}` is partial over `{over}`"),
                    false => format!("{op} computes shards: `{name}` is sharded over `{over}`"),
                });
                chain
            }
            None => self.chain(value, axis),
        };
        let to = step.to.display(self.mesh);
        let own = step.to == *self.layout(value);
        let (who, text) = match step.reader.map(|reader| self.graph.node(reader)) {
            _ if own => {
                let asked = self.asked(value).filter(|asked| !asked.origin.is_empty());
                let asked = asked.map(|asked| self.who(&asked.origin, axis));
                let text = match &asked {
                    Some(origin) => format!("{origin}: requests `{name}` as {to}"),
                    None => format!("propagation gives `{name}` the layout {to}"),
                };
                (asked, text)
            }
            Some(node) => match node.op.constraint() {
                Some(annotation) => {
                    let origin = self.who(&annotation.origin, axis);
                    (Some(origin.clone()), format!("{origin}: readers get `{name}` as {to}"))
                }
                None => (None, format!("{} reads `{name}` as {to}", self.op_of(node))),
            },
            None => (None, format!("the step returns `{name}` as {to}")),
        };
        chain.links.push(text);
        chain.links.push(format!("so {} over `{over}`", words(&step.step.step)));
        // A reduction is explained by what was sharded; a gather by the reader that needs the full
        // value.
        chain.origin = if sum { chain.origin.or(who) } else { who.or(chain.origin) };
        chain
    }

    /// The op that makes a value partial or sharded over an axis, with its sharded operand; `None`
    /// if the layout of the value is explanation enough.
    fn cut_source(&self, value: ValueId, axis: AxisRef, sum: bool) -> Option<(NodeId, ValueId)> {
        if !sum && self.dim_over(value, axis).is_some() {
            return None;
        }
        let mut at = value;
        let mut seen = BTreeSet::new();
        while seen.insert(at) {
            let (id, _) = self.graph.value(at).definition?;
            let operands = &self.graph.node(id).operands;
            let mut sharded =
                operands.iter().copied().filter(|&v| self.dim_over(v, axis).is_some()).peekable();
            if let Some(&first) = sharded.peek() {
                // Of an activation and a weight, the line for the weight is about this op, and not about one before it.
                return Some((id, sharded.find(|&v| self.is_weight(v)).unwrap_or(first)));
            }
            let partial = |v: &&ValueId| {
                let axes = self.computed.get(*v).map(|computed| computed.partial_axes());
                axes.is_some_and(|axes| axes.iter().any(|a| a.axis == axis.axis))
            };
            at = *operands.iter().find(partial)?;
        }
        None
    }
}

impl Explain<'_> {
    /// Whether a value is a parameter, perhaps transposed or converted.
    fn is_weight(&self, mut value: ValueId) -> bool {
        loop {
            let of = self.graph.value(value);
            match of.definition.map(|(id, _)| &self.graph.node(id).operands[..]) {
                None => return of.role == Role::Param,
                Some(&[operand]) => value = operand,
                Some(_) => return false,
            }
        }
    }
}

fn words(step: &Step) -> String {
    match step {
        Step::AllReduce { .. } => "each rank gets the complete sum".to_string(),
        Step::ReduceScatter { dim, .. } => {
            format!("each rank gets its shard of the sum along dimension {dim}")
        }
        Step::AllGather { dim, .. } => format!("the shards of dimension {dim} are gathered"),
        Step::AllToAll { from_dim, to_dim, .. } => {
            format!("shards of dimension {from_dim} become shards of dimension {to_dim}")
        }
        Step::Permute {} => "each rank sends its shard to another rank".to_string(),
        Step::Slice { dim, .. } => format!("each rank keeps its shard of dimension {dim}"),
        Step::ToPartial { .. } => {
            "one rank keeps the value, the others get the identity of the combiner".to_string()
        }
    }
}
