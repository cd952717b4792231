//! Keeps forward values for the backward pass within a number of bytes, and computes the others again where they are read.
//!
//! The choice is made on the graph of a rank, so bytes are those that a rank holds, for each microbatch. All ranks make one
//! choice, and collectives are never repeated: their results are kept. Random numbers depend on a seed and a position, so
//! what is computed again has the same bits.

mod choose;

use crate::LowerOptions;
use crate::passes::simplify::Copier;
use choose::{Item, evaluate, within};
use partita_base::{Diagnostic, Result, format_bytes};
use partita_ir::traits::Traits;
use partita_ir::{Graph, Node, NodeId, Operation, Phase, Role, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// Operations that take as long as moving a byte: the balance of machines from laptops to GPUs is between 5 and 50.
const OPERATIONS_PER_BYTE: f64 = 10.0;

/// A point of the trade of memory against work.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Kept {
    /// Bytes of forward values that a rank keeps for the backward pass of one microbatch.
    pub bytes: f64,
    /// The work that is done again, relative to that of the whole step on a rank.
    pub again: f64,
    /// No choice within these bytes does less work again, relative to the whole step.
    pub least: f64,
}

/// Rewrites the graphs of all classes for [`LowerOptions::kept_bytes`]. The graphs keep one structure.
///
/// # Errors
/// E478 if the least that must be kept is more.
pub(crate) fn keep(graphs: Vec<Graph>, options: &LowerOptions) -> Result<Vec<Graph>> {
    let Some(budget) = options.kept_bytes else { return Ok(graphs) };
    let mut repeated: BTreeSet<NodeId> = BTreeSet::new();
    for problem in problems(&graphs[0]) {
        let Some((choice, _)) = within(&problem.items, budget as f64) else {
            return Err(too_little(&problem.items, budget));
        };
        let again = problem.nodes.iter().zip(&choice.repeated).filter(|(_, again)| **again);
        repeated.extend(again.map(|(&node, _)| node));
    }
    match repeated.is_empty() {
        true => Ok(graphs),
        false => Ok(graphs.iter().map(|graph| rewritten(graph, &repeated)).collect()),
    }
}

fn too_little(items: &[Item], budget: usize) -> Box<Diagnostic> {
    let fixed: Vec<bool> = items.iter().map(|item| item.cost.is_infinite()).collect();
    let least = evaluate(items, &fixed);
    Diagnostic::new("E478", "the backward pass needs more than may be kept for it")
        .at("train.activation_limit")
        .expected(format!("at least {} on each rank", format_bytes(least.bytes as u64)))
        .found(format_bytes(budget as u64))
        .help("results of collectives are always kept; use more microbatches, or allow more")
}

/// Bytes kept against work done again, for budgets from all to the least, on the graph of a rank before lowering of its
/// elementwise ops into regions.
pub(crate) fn curve(graph: &Graph, points: usize) -> Vec<Kept> {
    let work: f64 = graph.nodes.iter().map(|node| cost(graph, node)).sum();
    let problems = problems(graph);
    let most = |problem: &Problem| within(&problem.items, f64::INFINITY).map_or(0.0, |(all, _)| all.bytes);
    let largest = problems.iter().map(most).fold(0.0, f64::max);
    let mut curve: Vec<Kept> = Vec::new();
    for point in (0..points).rev() {
        let budget = largest * point as f64 / (points - 1).max(1) as f64;
        let choices: Option<Vec<_>> = problems.iter().map(|problem| within(&problem.items, budget)).collect();
        let Some(choices) = choices else { break };
        curve.push(Kept {
            bytes: choices.iter().map(|(choice, _)| choice.bytes).fold(0.0, f64::max),
            again: choices.iter().map(|(choice, _)| choice.cost).sum::<f64>() / work,
            least: choices.iter().map(|(_, bound)| bound).sum::<f64>() / work,
        });
    }
    curve
}

/// The forward nodes of one microbatch.
struct Problem {
    nodes: Vec<NodeId>,
    items: Vec<Item>,
}

fn cost(graph: &Graph, node: &Node) -> f64 {
    let cost = node.op.cost(&graph.operand_types(node), &graph.result_types(node));
    if has_bytes(graph, node) { cost.flops + OPERATIONS_PER_BYTE * cost.bytes } else { 0.0 }
}

/// Whether results have bytes of their own. A view is made again of what it shows, a constant of nothing.
fn has_bytes(graph: &Graph, node: &Node) -> bool {
    !matches!(graph.traits(node), Traits::View(_) | Traits::Constant(_) | Traits::Iota { .. })
}

/// One problem for each microbatch; one for a step without microbatches.
fn problems(graph: &Graph) -> Vec<Problem> {
    let uses = graph.uses();
    let is_output = graph.is_output();
    let forward = || graph.node_ids().filter(|&id| graph.node(id).phase == Phase::Forward);
    let mut parts: BTreeMap<Option<usize>, Vec<NodeId>> = BTreeMap::new();
    forward().for_each(|id| parts.entry(graph.node(id).microbatch).or_default().push(id));
    // What all microbatches share is there anyway.
    if parts.len() > 1 {
        parts.remove(&None);
    }
    let problem = |nodes: Vec<NodeId>| {
        let place: BTreeMap<NodeId, usize> = nodes.iter().enumerate().map(|(at, &id)| (id, at)).collect();
        let items = nodes.iter().map(|&id| {
            let node = graph.node(id);
            let makers = node.operands.iter().filter_map(|&operand| graph.value(operand).definition);
            let mut operands: Vec<usize> =
                makers.filter_map(|(maker, _)| place.get(&maker).copied()).collect();
            operands.sort_unstable();
            operands.dedup();
            let is_read =
                |v: &ValueId| uses[v.index()].iter().any(|&(r, _)| graph.node(r).phase != Phase::Forward);
            let bytes: usize = node.results.iter().map(|&v| graph.ty(v).bytes()).sum();
            let is_fixed = node.op.is_collective() || matches!(graph.traits(node), Traits::Refused);
            Item {
                bytes: if has_bytes(graph, node) { bytes as f64 } else { f64::INFINITY },
                cost: if is_fixed { f64::INFINITY } else { cost(graph, node) },
                operands,
                is_read: node.results.iter().any(is_read),
                is_free: node.results.iter().any(|v| is_output[v.index()]),
            }
        });
        Problem { items: items.collect(), nodes: nodes.clone() }
    };
    parts.into_values().map(problem).collect()
}

/// The graph in which later phases read these nodes' results from copies, each made before its first reader.
fn rewritten(graph: &Graph, repeated: &BTreeSet<NodeId>) -> Graph {
    let mut copy = Copier::new(graph);
    let mut again: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for node in &graph.nodes {
        if node.phase == Phase::Forward {
            copy.node(graph, node, node.op.clone());
            continue;
        }
        let mut missing: BTreeSet<NodeId> = BTreeSet::new();
        let mut open: Vec<ValueId> = node.operands.clone();
        while let Some(value) = open.pop() {
            let Some((maker, _)) = graph.value(value).definition else { continue };
            if repeated.contains(&maker) && !again.contains_key(&value) && missing.insert(maker) {
                open.extend(&graph.node(maker).operands);
            }
        }
        for &id in &missing {
            let maker = graph.node(id);
            let here =
                Node { phase: node.phase, microbatch: node.microbatch, stage: node.stage, ..maker.clone() };
            let made =
                over(&mut copy, &again, maker, |copy| copy.append_copy(graph, &here, maker.op.clone()));
            for (&old, new) in maker.results.iter().zip(made) {
                if let Some(original) = copy.map[old.index()] {
                    copy.graph.value_mut(new).role = Role::RematOf(original);
                }
                copy.graph.value_mut(new).name.clear();
                again.insert(old, new);
            }
        }
        let results = over(&mut copy, &again, node, |copy| copy.append_copy(graph, node, node.op.clone()));
        for (old, new) in node.results.iter().zip(results) {
            copy.map[old.index()] = Some(new);
        }
    }
    copy.finish(graph)
}

/// Runs `append` for a node while its operands stand for what was made again of them.
fn over<T>(
    copy: &mut Copier,
    again: &BTreeMap<ValueId, ValueId>,
    node: &Node,
    append: impl FnOnce(&mut Copier) -> T,
) -> T {
    let mut before = Vec::new();
    for &operand in &node.operands {
        if let Some(&new) = again.get(&operand) {
            before.push((operand, copy.map[operand.index()].replace(new)));
        }
    }
    let result = append(copy);
    for (operand, old) in before.into_iter().rev() {
        copy.map[operand.index()] = old;
    }
    result
}
