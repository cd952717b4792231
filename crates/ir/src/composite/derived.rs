//! Rules and shapes of composites without a template, derived from their decomposition.

use crate::graph::{Graph, Node, Role, ValueId};
use crate::op::{LocalContext, Operation};
use crate::rule::{Factor, FactorId, FactorKind, LinearGroup, Rule};
use crate::traits::{ConstantOp, Traits};
use crate::{GraphBuilder, Op, TensorType};
use indexmap::IndexMap;
use partita_base::{DType, Result};
use partita_mesh::Combiner;

/// Dimensions of values that must be sharded in the same way: (value, dim) numbered densely and
/// joined by union-find.
struct Slots {
    first: Vec<usize>,
    parent: Vec<usize>,
    blocked: Vec<bool>,
}

impl Slots {
    fn of(graph: &Graph) -> Slots {
        let mut first = Vec::with_capacity(graph.values.len());
        let mut count = 0;
        for value in &graph.values {
            first.push(count);
            count += value.ty.rank();
        }
        let mut slots = Slots { first, parent: (0..count).collect(), blocked: vec![false; count] };
        for node in &graph.nodes {
            let rule = node_rule(graph, node);
            let mut seen: Vec<Option<usize>> = vec![None; rule.factors.len()];
            for (value, dims) in tensors(node, &rule) {
                for (dim, factors) in dims.iter().enumerate() {
                    let slot = slots.first[value.index()] + dim;
                    match factors.as_slice() {
                        [factor] => {
                            if let Some(other) = seen[*factor] {
                                slots.unite(slot, other);
                            }
                            seen[*factor] = Some(slot);
                        }
                        // Compound or unmapped dimensions must not be sharded.
                        _ => slots.block(slot),
                    }
                }
            }
            let has_offsets =
                matches!(&node.op, Op::Composite(composite) if composite.offsets_operand().is_some());
            // Ops that count or choose by position need the offset of the shard.
            for &result in &node.results {
                for dim in 0..graph.ty(result).rank() {
                    let looks_at_places = match graph.traits(node) {
                        Traits::Iota { dim: counted } => counted == dim,
                        Traits::Constant(ConstantOp::OfAll(constant)) => !constant.value.is_splat(),
                        Traits::Constant(ConstantOp::ByRank(constant)) => !constant.values.is_splat(),
                        Traits::Elementwise(_) | Traits::View(_) | Traits::Opaque => has_offsets,
                        Traits::Collective(_) | Traits::Refused => false,
                    };
                    if looks_at_places {
                        let slot = slots.first[result.index()] + dim;
                        slots.block(slot);
                    }
                }
            }
            // So do lookups by index: dimensions that indices address, and sums over updates,
            // for which only one rank may start from the operand.
            if matches!(node.op, Op::Gather(_) | Op::Scatter(_)) {
                let passes = |factor: &FactorId| rule.factors[*factor].kind == FactorKind::Pass;
                let windows =
                    if matches!(node.op, Op::Gather(_)) { &rule.results[0] } else { &rule.operands[2] };
                for (operand, (&value, dims)) in node.operands.iter().zip(&rule.operands).enumerate() {
                    for (dim, factors) in dims.iter().enumerate() {
                        let addressed =
                            operand == 0 && !factors.iter().all(|f| windows.iter().any(|d| d.contains(f)));
                        if addressed || !factors.iter().all(passes) {
                            let slot = slots.first[value.index()] + dim;
                            slots.block(slot);
                        }
                    }
                }
            }
        }
        slots
    }
    fn root(&self, mut slot: usize) -> usize {
        while self.parent[slot] != slot {
            slot = self.parent[slot];
        }
        slot
    }
    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        let blocked = self.blocked[a] || self.blocked[b];
        self.parent[a.max(b)] = a.min(b);
        self.blocked[a.min(b)] = blocked;
    }
    fn block(&mut self, slot: usize) {
        let root = self.root(slot);
        self.blocked[root] = true;
    }
    fn class(&self, value: ValueId, dim: usize) -> usize {
        self.root(self.first[value.index()] + dim)
    }
}

fn node_rule(graph: &Graph, node: &Node) -> Rule {
    node.op.rule(&graph.operand_types(node), &graph.result_types(node))
}

fn tensors<'a>(node: &'a Node, rule: &'a Rule) -> impl Iterator<Item = (ValueId, &'a Vec<Vec<FactorId>>)> {
    let operands = node.operands.iter().copied().zip(&rule.operands);
    operands.chain(node.results.iter().copied().zip(&rule.results))
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Whole,
    Sharded,
    Partial(Combiner),
}

/// Shards one class of dimensions symbolically and returns the effect on the outputs; `None` if
/// impossible.
fn shard_class(graph: &Graph, slots: &Slots, class: usize) -> Option<Vec<State>> {
    let has = |v: ValueId| (0..graph.ty(v).rank()).any(|d| slots.class(v, d) == class);
    let mut states = vec![State::Whole; graph.values.len()];
    for &input in &graph.inputs {
        if has(input) {
            states[input.index()] = State::Sharded;
        }
    }
    for node in &graph.nodes {
        let rule = node_rule(graph, node);
        let in_class = |v: ValueId, dim: usize| slots.class(v, dim) == class;
        let mut factor: Option<FactorId> = None;
        for (value, dims) in tensors(node, &rule) {
            for (dim, factors) in dims.iter().enumerate() {
                if let ([f], true) = (factors.as_slice(), in_class(value, dim)) {
                    if factor.is_some_and(|other| other != *f) {
                        return None;
                    }
                    factor = Some(*f);
                }
            }
        }
        let partial: Vec<usize> = (0..node.operands.len())
            .filter(|&i| matches!(states[node.operands[i].index()], State::Partial(_)))
            .collect();
        let outcome = match (factor, partial.first()) {
            (Some(_), Some(_)) => return None,
            (None, Some(&first)) => {
                let state = states[node.operands[first].index()];
                let sum = state == State::Partial(Combiner::Sum);
                let same = partial.iter().all(|&i| states[node.operands[i].index()] == state);
                let flows = |g: &LinearGroup| g.operands == partial && (sum || g.any_combiner);
                if !same || !rule.linear.iter().any(flows) {
                    return None;
                }
                state
            }
            (Some(f), None) => match rule.factors[f].kind {
                FactorKind::Pass => State::Whole,
                FactorKind::Reduce(combiner) => State::Partial(combiner),
                FactorKind::Exchange | FactorKind::Window(_) => return None,
                FactorKind::Shift | FactorKind::Whole => return None,
            },
            (None, None) => State::Whole,
        };
        for &result in &node.results {
            states[result.index()] = if has(result) { State::Sharded } else { outcome };
        }
    }
    Some(graph.outputs.iter().map(|v| states[v.index()]).collect())
}

pub(super) fn rule(graph: &Graph) -> Rule {
    let slots = Slots::of(graph);
    let mut rule = Rule::default();
    let mut factor_of_class: IndexMap<usize, FactorId> = IndexMap::new();
    let mut dims_of = |rule: &mut Rule, value: ValueId| -> Vec<Vec<FactorId>> {
        let shape = graph.ty(value).shape.clone();
        let mut dims: Vec<Vec<FactorId>> = Vec::new();
        for (dim, size) in shape.into_iter().enumerate() {
            let class = slots.class(value, dim);
            let factor = *factor_of_class.entry(class).or_insert_with(|| {
                let kind =
                    if slots.blocked[class] { FactorKind::Whole } else { class_kind(graph, &slots, class) };
                rule.factors.push(Factor { size, kind });
                rule.factors.len() - 1
            });
            // A tensor whose two dimensions move together cannot be sharded along either.
            if dims.iter().any(|d| d.contains(&factor)) {
                rule.factors[factor].kind = FactorKind::Whole;
            }
            dims.push(vec![factor]);
        }
        dims
    };
    let operands = graph.inputs.iter().map(|&v| dims_of(&mut rule, v)).collect();
    let results = graph.outputs.iter().map(|&v| dims_of(&mut rule, v)).collect();
    Rule { operands, results, ..rule }
}

fn class_kind(graph: &Graph, slots: &Slots, class: usize) -> FactorKind {
    let Some(states) = shard_class(graph, slots, class) else { return FactorKind::Whole };
    let lacking: Vec<State> = states.into_iter().filter(|s| *s != State::Sharded).collect();
    match lacking.first() {
        None | Some(State::Whole) if lacking.iter().all(|s| *s == State::Whole) => FactorKind::Pass,
        Some(State::Partial(combiner)) if lacking.iter().all(|s| *s == State::Partial(*combiner)) => {
            FactorKind::Reduce(*combiner)
        }
        _ => FactorKind::Whole,
    }
}

/// The decomposition over smaller inputs: all dimensions of a class shrink together.
pub(super) fn resize(graph: &Graph, operands: &[TensorType]) -> Result<Graph> {
    let slots = Slots::of(graph);
    let mut extents: IndexMap<usize, usize> = IndexMap::new();
    for (&input, ty) in graph.inputs.iter().zip(operands) {
        for (dim, &extent) in ty.shape.iter().enumerate() {
            extents.insert(slots.class(input, dim), extent);
        }
    }
    let local = |v: ValueId| {
        let ty = graph.ty(v);
        let shape: Vec<usize> =
            (0..ty.rank()).map(|d| extents.get(&slots.class(v, d)).copied().unwrap_or(ty.shape[d])).collect();
        ty.with_shape(shape)
    };
    let mut builder = GraphBuilder::new(&graph.name);
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    for &input in &graph.inputs {
        map[input.index()] = Some(builder.input(&graph.value(input).name, local(input), Role::Activation));
    }
    for node in &graph.nodes {
        let operands = node.operands.iter().map(|v| map[v.index()].expect("in order")).collect();
        let mut context = Resize {
            builder: &mut builder,
            operands,
            global_operands: node.operands.iter().map(|&v| graph.ty(v).clone()).collect(),
            global_results: node.results.iter().map(|&v| graph.ty(v).clone()).collect(),
            local_results: node.results.iter().map(|&v| local(v)).collect(),
        };
        let results = node.op.localise(&mut context)?;
        for (&old, new) in node.results.iter().zip(results) {
            map[old.index()] = Some(new);
        }
    }
    let outputs = graph.outputs.iter().map(|v| map[v.index()].expect("outputs are defined")).collect();
    Ok(builder.finish(outputs))
}

/// The local context of a resize: sizes change, positions do not (dimensions with
/// position-dependent ops are blocked).
struct Resize<'a> {
    builder: &'a mut GraphBuilder,
    operands: Vec<ValueId>,
    global_operands: Vec<TensorType>,
    global_results: Vec<TensorType>,
    local_results: Vec<TensorType>,
}

impl LocalContext for Resize<'_> {
    fn builder(&mut self) -> &mut GraphBuilder {
        self.builder
    }
    fn operands(&self) -> &[ValueId] {
        &self.operands
    }
    fn global_operand(&self, operand: usize) -> &TensorType {
        &self.global_operands[operand]
    }
    fn global_result(&self, result: usize) -> &TensorType {
        &self.global_results[result]
    }
    fn local_result(&self, result: usize) -> TensorType {
        self.local_results[result].clone()
    }
    fn is_sharded(&self, _: FactorId) -> bool {
        false
    }
    fn operand_offset(&mut self, _: usize, _: usize) -> Result<ValueId> {
        Ok(self.builder.scalar(DType::I64, 0.0))
    }
    fn result_offset(&mut self, _: usize, _: usize) -> Result<ValueId> {
        Ok(self.builder.scalar(DType::I64, 0.0))
    }
    fn leader(&mut self, _: &[FactorId]) -> Result<ValueId> {
        Ok(self.builder.scalar(DType::Bool, 1.0))
    }
}
