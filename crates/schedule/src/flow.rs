//! The layouts of forward values over one axis as far as plan lines determine them, derived from
//! the factor rules in execution order. `sync` is checked against these layouts.
//!
//! This is propagation without its backward direction: a later layer's request says nothing about
//! an earlier value. It also does not choose where a sum is formed: a value is partial from the op
//! that contracts a sharded dimension up to the first op that is not linear in it, wherever in
//! between the compiler places the reduction. A bias is added to the reduced sum, so adding one
//! counts as linear.

use crate::pins::{Constraint, Constraints, Pin, Pins};
use partita_ir::ops::BinaryKind;
use partita_ir::{FactorId, Graph, Node, NodeId, Op, Operation, Phase, Role, Rule, ValueId};
use partita_mesh::AxisRef;
use partita_spmd::factors::may_split;
use partita_spmd::units::rules_of;
use std::rc::Rc;

/// The layout of a value over the axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Replicated: every rank holds all of it.
    Whole,
    /// Sharded along this dimension.
    Cut(usize),
    /// Partial: every rank holds one term of a sum.
    Partial,
}

/// The layout of a value, and its cause as text.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub state: State,
    pub why: Rc<str>,
    /// Whether it is a parameter or a view of one.
    parameter: bool,
}

impl Standing {
    pub fn new(state: State, why: impl Into<Rc<str>>) -> Standing {
        Standing { state, why: why.into(), parameter: false }
    }
}

/// The layout of every value of the forward pass.
pub(crate) struct Flow<'f> {
    graph: &'f Graph,
    rules: &'f [Rule],
    constraints: &'f Constraints,
    axis: AxisRef,
    standings: Vec<Standing>,
    /// For each node, the factor that is sharded, and why.
    cut: Vec<Option<(FactorId, Rc<str>)>>,
}

const UNCUT: &str = "none of the values it is computed from is sharded";

impl<'f> Flow<'f> {
    pub fn of(pins: &'f Pins, constraints: &'f Constraints, rules: &'f [Rule], axis: AxisRef) -> Flow<'f> {
        let graph = pins.graph;
        let standing = |value: ValueId| {
            let parameter = graph.value(value).role == Role::Param;
            Standing { state: State::Whole, why: UNCUT.into(), parameter }
        };
        let mut flow = Flow {
            graph,
            rules,
            constraints,
            axis,
            standings: graph.value_ids().map(standing).collect(),
            cut: vec![None; graph.nodes.len()],
        };
        for &input in &graph.inputs {
            flow.ask(input, pins.look(input));
        }
        for id in graph.node_ids().filter(|&id| graph.node(id).phase == Phase::Forward) {
            let node = graph.node(id);
            let operands: Vec<Standing> = (0..node.operands.len()).map(|p| flow.read((id, p))).collect();
            let (results, cut) = through(graph, node, &rules[id.index()], &operands, &name(node));
            flow.cut[id.index()] = cut;
            for (&result, standing) in node.results.iter().zip(results) {
                flow.standings[result.index()] = standing;
                flow.ask(result, pins.look(result));
            }
            if let Op::ShardingConstraint(constraint) = &node.op
                && constraint.annotation.mesh == pins.mesh_index
            {
                flow.ask(node.results[0], Some(Pin::of(&constraint.annotation)));
            }
        }
        flow
    }

    /// The layout of a value as its producer leaves it.
    pub fn value(&self, value: ValueId) -> &Standing {
        &self.standings[value.index()]
    }

    /// The layout in which a reader sees its operand.
    pub fn read(&self, reader: (NodeId, usize)) -> Standing {
        let value = self.graph.node(reader.0).operands[reader.1];
        match self.constraints.at(reader) {
            Some(Constraint { pin, .. }) => self.asked(value, pin),
            None => self.value(value).clone(),
        }
    }

    fn ask(&mut self, value: ValueId, pin: Option<Pin>) {
        if let Some(pin) = pin {
            self.standings[value.index()] = self.asked(value, &pin);
        }
    }

    /// The layout that a pin requests for a value, if the pin says something about the axis.
    fn asked(&self, value: ValueId, pin: &Pin) -> Standing {
        let own = self.value(value);
        let because = |state, what: &str| {
            let (name, lines) = (self.graph.describe(value), pin.origins.join("; "));
            Standing { state, why: format!("`{name}` is {what} by {lines}").into(), ..own.clone() }
        };
        let is_axis = |a: &AxisRef| a.axis == self.axis.axis;
        if let Some(dim) = pin.axes.iter().position(|axes| axes.iter().any(is_axis)) {
            return because(State::Cut(dim), &format!("sharded along dimension {dim}"));
        }
        let closed = match own.state {
            State::Cut(dim) => !pin.open[dim],
            State::Partial => !pin.open.is_empty() && !pin.open.contains(&true),
            State::Whole => false,
        };
        let whole = closed || pin.replicated.iter().any(is_axis);
        if whole { because(State::Whole, "replicated") } else { own.clone() }
    }

    /// The layout of the gradient of a value that these readers and their successors inside a
    /// module return. It is partial if a reader is sharded along a factor that the value does not
    /// have.
    pub fn gradient(&self, readers: &[(NodeId, usize)], inside: &dyn Fn(NodeId) -> bool) -> Standing {
        let uses = self.graph.uses();
        let mut open = readers.to_vec();
        let mut seen = vec![false; self.graph.nodes.len()];
        let mut found = Standing::new(State::Whole, "no op that reads it is sharded");
        while let Some((id, position)) = open.pop() {
            let node = self.graph.node(id);
            match &self.cut[id.index()] {
                Some((factor, why)) => {
                    let dims = &self.rules[id.index()].operands[position];
                    match dims.iter().position(|d| d.contains(factor)) {
                        None => {
                            let name = name(node);
                            let why = format!(
                                "the gradient of {name} sums over a sharded dimension, because {why}"
                            );
                            return Standing::new(State::Partial, why);
                        }
                        Some(dim) => {
                            found = Standing::new(State::Cut(dim), why.clone());
                        }
                    }
                }
                None if seen[id.index()] => {}
                None => {
                    seen[id.index()] = true;
                    let float = node.results.iter().filter(|v| self.graph.ty(**v).dtype.is_float());
                    let next = float.flat_map(|v| &uses[v.index()]);
                    open.extend(next.filter(|(next, _)| inside(*next)));
                }
            }
        }
        found
    }
}

/// The name of a node in messages.
fn name(node: &Node) -> String {
    let path = if node.path.is_empty() { "the model" } else { &node.path };
    format!("{} in {path}", node.op.name())
}

/// Maps operand layouts of one op to result layouts, and gives the factor along which it is
/// sharded.
fn through(
    graph: &Graph,
    node: &Node,
    rule: &Rule,
    operands: &[Standing],
    name: &str,
) -> (Vec<Standing>, Option<(FactorId, Rc<str>)>) {
    let parameter = matches!(operands, [only] if only.parameter);
    if let Some((factor, why)) = cut_factor(graph, node, rule, operands) {
        let result = |dims: &Vec<Vec<FactorId>>| {
            let state = match dims.iter().position(|d| d.contains(&factor)) {
                Some(dim) if major(rule, &dims[dim]) == Some(factor) => State::Cut(dim),
                None if rule.factors[factor].kind.combiner().is_some() => State::Partial,
                _ => State::Whole,
            };
            let sum = || format!("{name} sums over a sharded dimension, because {why}").into();
            let why = if state == State::Partial { sum() } else { why.clone() };
            Standing { state, why, parameter }
        };
        let results = rule.results.iter().map(result).collect();
        return (results, Some((factor, why)));
    }
    // A composite may need a dimension in full that its primitives can process in shards.
    if let Op::Composite(composite) = &node.op
        && operands.iter().any(|o| matches!(o.state, State::Cut(_)))
    {
        return (inside(&composite.definition.decomposition, operands, name), None);
    }
    (vec![Standing { parameter, ..uncut(node, rule, operands, name) }; node.results.len()], None)
}

/// The result layouts of a nested graph.
fn inside(graph: &Graph, inputs: &[Standing], name: &str) -> Vec<Standing> {
    let unknown = Standing::new(State::Whole, UNCUT);
    let mut standings = vec![unknown; graph.values.len()];
    for (&input, standing) in graph.inputs.iter().zip(inputs) {
        standings[input.index()] = standing.clone();
    }
    for (node, rule) in graph.nodes.iter().zip(rules_of(graph)) {
        let operands: Vec<Standing> = node.operands.iter().map(|v| standings[v.index()].clone()).collect();
        let (results, _) = through(graph, node, &rule, &operands, name);
        for (&result, standing) in node.results.iter().zip(results) {
            standings[result.index()] = standing;
        }
    }
    graph.outputs.iter().map(|v| standings[v.index()].clone()).collect()
}

/// The factor along which an op is sharded: that of a parameter, which is not moved, else that of
/// the largest operand.
fn cut_factor(graph: &Graph, node: &Node, rule: &Rule, operands: &[Standing]) -> Option<(FactorId, Rc<str>)> {
    let mut best: Option<((bool, usize), FactorId, &Standing)> = None;
    for ((&value, dims), standing) in node.operands.iter().zip(&rule.operands).zip(operands) {
        let State::Cut(dim) = standing.state else { continue };
        let Some(factor) = major(rule, &dims[dim]).filter(|&f| may_split(rule, f)) else { continue };
        let rank = (standing.parameter, graph.ty(value).bytes());
        if best.is_none_or(|(before, _, _)| rank > before) {
            best = Some((rank, factor, standing));
        }
    }
    best.map(|(_, factor, standing)| (factor, standing.why.clone()))
}

/// The result layout if no factor is sharded: either the value stays partial, or its sum is needed.
fn uncut(node: &Node, rule: &Rule, operands: &[Standing], name: &str) -> Standing {
    let whole = |why: Rc<str>| Standing::new(State::Whole, why);
    let partial: Vec<usize> = (0..operands.len()).filter(|&p| operands[p].state == State::Partial).collect();
    let Some(&first) = partial.first() else {
        // The result is replicated for the same reason as the operand.
        let told = operands.iter().find(|o| *o.why != *UNCUT);
        return whole(told.map_or(UNCUT.into(), |o| o.why.clone()));
    };
    let adds = matches!(&node.op,
        Op::Binary(binary) if matches!(binary.kind, BinaryKind::Add | BinaryKind::Subtract));
    if adds || rule.linear.iter().any(|group| group.operands == partial) {
        return Standing { parameter: false, ..operands[first].clone() };
    }
    whole(
        format!("{name} is not linear, so the partial value is reduced before it; {}", operands[first].why)
            .into(),
    )
}

/// The factor that carries a split of a dimension (the major one).
fn major(rule: &Rule, factors: &[FactorId]) -> Option<FactorId> {
    factors.iter().copied().find(|&f| rule.factors[f].size != 1)
}
