//! How the values of the forward pass lie over one axis as far as the lines of a plan say, read off the factor rules in
//! the direction of execution: what `sync` is checked against.
//!
//! This is propagation without its way back: what a later layer would like is no fact about an earlier one. Nor does it
//! choose where a sum is made: a value is partial from the op that sums over pieces up to the first op that is not
//! linear in it, wherever in between the compiler makes the sum. A bias is added to the whole sum, so adding one counts
//! as linear.

use crate::pins::{Constraint, Constraints, Pin, Pins};
use partita_ir::ops::BinaryKind;
use partita_ir::{FactorId, FactorKind, Graph, Node, NodeId, Op, Operation, Phase, Role, Rule, ValueId};
use partita_mesh::AxisRef;
use partita_spmd::factors::may_split;
use partita_spmd::units::rules_of;
use std::rc::Rc;

/// How a value lies over the axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Every rank holds all of it.
    Whole,
    /// This dimension is cut.
    Cut(usize),
    /// Every rank holds a part of a sum.
    Partial,
}

/// How a value lies, and why, in words.
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

/// The standing of every value of the forward pass.
pub(crate) struct Flow<'f> {
    graph: &'f Graph,
    rules: &'f [Rule],
    constraints: &'f Constraints,
    axis: AxisRef,
    standings: Vec<Standing>,
    /// For each node, the factor that is cut, and why.
    cut: Vec<Option<(FactorId, Rc<str>)>>,
}

const UNCUT: &str = "nothing that it comes from is cut";

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

    /// How a value lies as its producer leaves it.
    pub fn value(&self, value: ValueId) -> &Standing {
        &self.standings[value.index()]
    }

    /// How a reader sees what it reads.
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

    /// How a value lies that is asked to lie so, where that says something about the axis.
    fn asked(&self, value: ValueId, pin: &Pin) -> Standing {
        let own = self.value(value);
        let because = |state, what: &str| {
            let (name, lines) = (self.graph.describe(value), pin.origins.join("; "));
            Standing { state, why: format!("`{name}` is {what} by {lines}").into(), ..own.clone() }
        };
        let is_axis = |a: &AxisRef| a.axis == self.axis.axis;
        if let Some(dim) = pin.axes.iter().position(|axes| axes.iter().any(is_axis)) {
            return because(State::Cut(dim), &format!("cut along dimension {dim}"));
        }
        let closed = match own.state {
            State::Cut(dim) => !pin.open[dim],
            State::Partial => !pin.open.is_empty() && !pin.open.contains(&true),
            State::Whole => false,
        };
        let whole = closed || pin.replicated.iter().any(is_axis);
        if whole { because(State::Whole, "kept whole") } else { own.clone() }
    }

    /// How the gradient of a value lies that these readers and what follows them inside a module hand back. It is a sum
    /// where a reader is cut along what the value itself does not have.
    pub fn gradient(&self, readers: &[(NodeId, usize)], inside: &dyn Fn(NodeId) -> bool) -> Standing {
        let uses = self.graph.uses();
        let mut open = readers.to_vec();
        let mut seen = vec![false; self.graph.nodes.len()];
        let mut found = Standing::new(State::Whole, "nothing that reads it is cut");
        while let Some((id, position)) = open.pop() {
            let node = self.graph.node(id);
            match &self.cut[id.index()] {
                Some((factor, why)) => {
                    let dims = &self.rules[id.index()].operands[position];
                    match dims.iter().position(|d| d.contains(factor)) {
                        None => {
                            let name = name(node);
                            let why = format!("the gradient of {name} sums over pieces, since {why}");
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

/// A node as messages name it.
fn name(node: &Node) -> String {
    let path = if node.path.is_empty() { "the model" } else { &node.path };
    format!("{} in {path}", node.op.name())
}

/// From operands to results of one op, and the factor along which it is cut.
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
                None if matches!(rule.factors[factor].kind, FactorKind::Reduce(_)) => State::Partial,
                _ => State::Whole,
            };
            let sum = || format!("{name} sums over pieces, since {why}").into();
            let why = if state == State::Partial { sum() } else { why.clone() };
            Standing { state, why, parameter }
        };
        let results = rule.results.iter().map(result).collect();
        return (results, Some((factor, why)));
    }
    // What a composite needs whole, its parts may take in pieces.
    if let Op::Composite(composite) = &node.op
        && operands.iter().any(|o| matches!(o.state, State::Cut(_)))
    {
        return (inside(&composite.definition.decomposition, operands, name), None);
    }
    (vec![Standing { parameter, ..uncut(node, rule, operands, name) }; node.results.len()], None)
}

/// The results of a graph of its own.
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

/// The factor along which an op is cut: that of a parameter, which stays where it lies, else of the largest operand.
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

/// What comes out where nothing is cut: a partial value flows on, or its sum is needed.
fn uncut(node: &Node, rule: &Rule, operands: &[Standing], name: &str) -> Standing {
    let whole = |why: Rc<str>| Standing::new(State::Whole, why);
    let partial: Vec<usize> = (0..operands.len()).filter(|&p| operands[p].state == State::Partial).collect();
    let Some(&first) = partial.first() else {
        // What made an operand whole made this so.
        let told = operands.iter().find(|o| *o.why != *UNCUT);
        return whole(told.map_or(UNCUT.into(), |o| o.why.clone()));
    };
    let adds = matches!(&node.op,
        Op::Binary(binary) if matches!(binary.kind, BinaryKind::Add | BinaryKind::Subtract));
    if adds || rule.linear.iter().any(|group| group.operands == partial) {
        return Standing { parameter: false, ..operands[first].clone() };
    }
    whole(format!("{name} is not linear, so the sum is made before it; {}", operands[first].why).into())
}

/// The factor that carries a split of a dimension.
fn major(rule: &Rule, factors: &[FactorId]) -> Option<FactorId> {
    factors.iter().copied().find(|&f| rule.factors[f].size != 1)
}
