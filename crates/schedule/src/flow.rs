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
}

/// The standing of every value of the forward pass.
pub(crate) struct Flow<'f> {
    graph: &'f Graph,
    rules: &'f [Rule],
    axis: AxisRef,
    constraints: &'f Constraints,
    standings: Vec<Standing>,
    /// For each node, the factor that is cut, and why.
    cut: Vec<Option<(FactorId, Rc<str>)>>,
}

impl<'f> Flow<'f> {
    pub fn of(pins: &'f Pins, constraints: &'f Constraints, rules: &'f [Rule], axis: AxisRef) -> Flow<'f> {
        let graph = pins.graph;
        let whole = Standing { state: State::Whole, why: "nothing cuts it".into() };
        let mut flow = Flow {
            graph,
            rules,
            axis,
            constraints,
            standings: vec![whole; graph.values.len()],
            cut: vec![None; graph.nodes.len()],
        };
        for &input in &graph.inputs {
            flow.ask(input, pins.look(input));
        }
        for id in graph.node_ids().filter(|&id| graph.node(id).phase == Phase::Forward) {
            flow.visit(id);
            let node = graph.node(id);
            if let Op::ShardingConstraint(constraint) = &node.op
                && constraint.annotation.mesh == pins.mesh_index
            {
                flow.ask(node.results[0], Some(Pin::of(&constraint.annotation)));
            }
            for &result in &node.results {
                flow.ask(result, pins.look(result));
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
        let own = self.value(self.graph.node(reader.0).operands[reader.1]);
        match self.constraints.at(reader) {
            Some(Constraint { pin, .. }) => asked(pin, self.axis, own),
            None => own.clone(),
        }
    }

    fn ask(&mut self, value: ValueId, pin: Option<Pin>) {
        if let Some(pin) = pin {
            let own = &self.standings[value.index()];
            self.standings[value.index()] = asked(&pin, self.axis, own);
        }
    }

    fn visit(&mut self, id: NodeId) {
        let (node, rule) = (self.graph.node(id), &self.rules[id.index()]);
        let operands: Vec<Standing> = (0..node.operands.len()).map(|p| self.read((id, p))).collect();
        let mut results = match self.cut_factor(node, rule, &operands) {
            Some((factor, why)) => {
                let along = |dims: &Vec<Vec<FactorId>>| match dims.iter().position(|d| d.contains(&factor)) {
                    Some(dim) if major(rule, &dims[dim]) == Some(factor) => State::Cut(dim),
                    None if matches!(rule.factors[factor].kind, FactorKind::Reduce(_)) => State::Partial,
                    _ => State::Whole,
                };
                let states: Vec<State> = rule.results.iter().map(along).collect();
                self.cut[id.index()] = Some((factor, why.clone()));
                let sum: Rc<str> = format!("{} sums over pieces: {why}", self.name(node)).into();
                let cause = |state| if state == State::Partial { sum.clone() } else { why.clone() };
                states.into_iter().map(|state| Standing { state, why: cause(state) }).collect()
            }
            None => vec![self.uncut(node, rule, &operands); node.results.len()],
        };
        for (&result, standing) in node.results.iter().zip(results.drain(..)) {
            self.standings[result.index()] = standing;
        }
    }

    /// The factor along which an op is cut: that of a parameter, which stays where it lies, else of the largest operand.
    fn cut_factor(&self, node: &Node, rule: &Rule, operands: &[Standing]) -> Option<(FactorId, Rc<str>)> {
        let mut best: Option<((bool, usize), FactorId, &Standing)> = None;
        for ((&value, dims), standing) in node.operands.iter().zip(&rule.operands).zip(operands) {
            let State::Cut(dim) = standing.state else { continue };
            let Some(factor) = major(rule, &dims[dim]) else { continue };
            if !matches!(rule.factors[factor].kind, FactorKind::Pass | FactorKind::Reduce(_)) {
                continue;
            }
            let rank = (self.is_of_parameter(value), self.graph.ty(value).bytes());
            if best.is_none_or(|(before, _, _)| rank > before) {
                best = Some((rank, factor, standing));
            }
        }
        best.map(|(_, factor, standing)| (factor, standing.why.clone()))
    }

    /// A parameter or a view of one.
    fn is_of_parameter(&self, value: ValueId) -> bool {
        match self.graph.value(value).definition {
            None => self.graph.value(value).role == Role::Param,
            Some((id, _)) => {
                let operands = &self.graph.node(id).operands;
                operands.len() == 1 && self.is_of_parameter(operands[0])
            }
        }
    }

    /// What comes out where no operand is cut: a partial value flows on, or its sum is needed.
    fn uncut(&self, node: &Node, rule: &Rule, operands: &[Standing]) -> Standing {
        let partial: Vec<usize> =
            (0..operands.len()).filter(|&p| operands[p].state == State::Partial).collect();
        let Some(&first) = partial.first() else {
            return match operands {
                // Told on: what made an operand whole made this so.
                [] => Standing { state: State::Whole, why: "nothing cuts it".into() },
                [first, ..] => {
                    let told = operands.iter().find(|o| *o.why != *"nothing cuts it");
                    Standing { state: State::Whole, why: told.unwrap_or(first).why.clone() }
                }
            };
        };
        let adds = matches!(&node.op,
            Op::Binary(binary) if matches!(binary.kind, BinaryKind::Add | BinaryKind::Subtract));
        let why = operands[first].why.clone();
        if adds || rule.linear.iter().any(|group| group.operands == partial) {
            return Standing { state: State::Partial, why };
        }
        let name = self.name(node);
        Standing {
            state: State::Whole,
            why: format!("{name} needs the sum, so it is made before: {why}").into(),
        }
    }

    fn name(&self, node: &Node) -> String {
        let path = if node.path.is_empty() { "the model" } else { &node.path };
        format!("{} in {path}", node.op.name())
    }

    /// How the gradient of a value lies that these readers and what follows them inside a module hand back. It is a sum
    /// where a reader is cut along what the value itself does not have.
    pub fn gradient(&self, readers: &[(NodeId, usize)], inside: &dyn Fn(NodeId) -> bool) -> Standing {
        let uses = self.graph.uses();
        let mut open = readers.to_vec();
        let mut seen = vec![false; self.graph.nodes.len()];
        let mut found = Standing { state: State::Whole, why: "nothing that reads it is cut".into() };
        while let Some((id, position)) = open.pop() {
            let node = self.graph.node(id);
            match &self.cut[id.index()] {
                Some((factor, why)) => {
                    let dims = &self.rules[id.index()].operands[position];
                    match dims.iter().position(|d| d.contains(factor)) {
                        None => {
                            let name = self.name(node);
                            let why = format!("the gradient of {name} sums over pieces: {why}").into();
                            return Standing { state: State::Partial, why };
                        }
                        Some(dim) => found = Standing { state: State::Cut(dim), why: why.clone() },
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

/// How a value lies that is asked to lie so, where that says something about the axis.
fn asked(pin: &Pin, axis: AxisRef, own: &Standing) -> Standing {
    let because = |state| Standing { state, why: format!("asked for by {}", pin.origins.join("; ")).into() };
    if let Some(dim) = pin.axes.iter().position(|axes| axes.iter().any(|a| a.axis == axis.axis)) {
        return because(State::Cut(dim));
    }
    let closed = |dim: usize| !pin.open[dim];
    match own.state {
        _ if pin.replicated.iter().any(|a| a.axis == axis.axis) => because(State::Whole),
        State::Cut(dim) if closed(dim) => because(State::Whole),
        State::Partial if !pin.open.is_empty() && (0..pin.open.len()).all(closed) => because(State::Whole),
        _ => own.clone(),
    }
}

/// The factor that carries a split of a dimension.
fn major(rule: &Rule, factors: &[FactorId]) -> Option<FactorId> {
    factors.iter().copied().find(|&f| rule.factors[f].size != 1)
}
