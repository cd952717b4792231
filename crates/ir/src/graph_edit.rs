//! Graph edits that many passes need: dead node removal, inlining of composites, deduplication of
//! reductions, loop unrolling.

use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::op::{Op, Operation};
use crate::{Annotation, GraphBuilder};
use partita_base::{Diagnostic, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Removes nodes whose results are unused. Inputs stay; ids are renumbered.
pub fn prune(mut graph: Graph) -> Graph {
    let mut needed = vec![false; graph.values.len()];
    for &output in &graph.outputs {
        needed[output.index()] = true;
    }
    let mut keep = vec![false; graph.nodes.len()];
    for (keep, node) in keep.iter_mut().zip(&graph.nodes).rev() {
        *keep = node.results.iter().any(|v| needed[v.index()]);
        if *keep {
            node.operands.iter().for_each(|v| needed[v.index()] = true);
        }
    }
    let mut kept = keep.iter();
    graph.nodes.retain(|_| *kept.next().expect("one for each node"));
    // The remaining values move up, and all references are renumbered.
    let mut stays = vec![false; graph.values.len()];
    let results = graph.nodes.iter().flat_map(|node| &node.results);
    graph.inputs.iter().chain(results).for_each(|v| stays[v.index()] = true);
    let mut count = 0;
    let names: Vec<Option<ValueId>> = stays
        .iter()
        .map(|&stays| {
            count += usize::from(stays);
            stays.then(|| ValueId::new(count - 1))
        })
        .collect();
    let mut stays = stays.iter();
    graph.values.retain(|_| *stays.next().expect("one for each value"));
    let now = |value: &mut ValueId| *value = names[value.index()].expect("what is needed stays");
    graph.inputs.iter_mut().chain(&mut graph.outputs).for_each(now);
    for (index, node) in graph.nodes.iter_mut().enumerate() {
        node.operands.iter_mut().chain(&mut node.results).for_each(now);
        for (number, result) in node.results.iter().enumerate() {
            graph.values[result.index()].definition = Some((NodeId::new(index), number));
        }
    }
    for value in &mut graph.values {
        value.role = value.role.renamed(|v| names[v.index()]);
    }
    graph
}

/// Inlines every composite that `open` selects, including nested composites.
pub fn open_composites(graph: &Graph, open: &dyn Fn(&crate::ops::Composite) -> bool) -> Result<Graph> {
    let selected = |node: &Node| matches!(&node.op, Op::Composite(c) if open(c));
    let mut current = Cow::Borrowed(graph);
    while current.nodes.iter().any(selected) {
        current = Cow::Owned(open_once(&current, &selected)?);
    }
    Ok(current.into_owned())
}

/// Inlines every composite node that `open` selects, by one level.
pub fn open_once(graph: &Graph, open: &dyn Fn(&Node) -> bool) -> Result<Graph> {
    rebuild(graph, |builder, _, index, operands| {
        let node = &graph.nodes[index];
        if let Op::Composite(composite) = &node.op
            && open(node)
        {
            builder.enter(node);
            return Ok(Some(builder.inline(&composite.definition.decomposition, operands, false)?));
        }
        Ok(Some(push_copy(builder, graph, index, operands)))
    })
}

/// Computes each reduction among the nodes `among` only once: a reduction that equals an earlier
/// one over equal operands is replaced by it. Intermediate values are recomputed rather than
/// stored: only the reductions, which are small and may need communication, live longer. `None` if
/// nothing repeats.
pub fn reuse_reductions(graph: &Graph, among: &[bool]) -> Result<Option<Graph>> {
    // Value numbering: equal numbers mean equal values.
    let mut number: Vec<usize> = (0..graph.values.len()).collect();
    let mut seen: BTreeMap<(String, Vec<usize>), usize> = BTreeMap::new();
    let mut same: Vec<Option<ValueId>> = vec![None; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        let big = matches!(&node.op, Op::Constant(c) if c.value.ty.element_count() > LARGEST_COMPARED);
        if !among[index] || big {
            continue;
        }
        let [result] = node.results[..] else { continue };
        let operands = node.operands.iter().map(|v| number[v.index()]).collect();
        let first = *seen.entry((format!("{:?}", node.op), operands)).or_insert(result.index());
        number[result.index()] = first;
        if matches!(node.op, Op::Reduce(_)) && first != result.index() {
            same[index] = Some(ValueId::new(first));
        }
    }
    if same.iter().all(Option::is_none) {
        return Ok(None);
    }
    let reused = rebuild(graph, |builder, map, index, operands| match same[index] {
        Some(first) => Ok(Some(vec![map[first.index()].expect("it comes first")])),
        None => Ok(Some(push_copy(builder, graph, index, operands))),
    })?;
    Ok(Some(prune(reused)))
}

/// Larger constants are not compared.
const LARGEST_COMPARED: usize = 64;

/// Unrolls every loop that contains collectives, so that collectives occur in straight-line code
/// only. E134 if the trip count depends on data, and for branches with collectives.
pub fn unroll_collective_loops(graph: &Graph) -> Result<Graph> {
    let pending = |op: &Op| !op.regions().is_empty() && op.is_collective();
    let mut current = graph.clone();
    while current.nodes.iter().any(|node| pending(&node.op)) {
        let source = current;
        current = rebuild(&source, |builder, _, index, operands| {
            let node = &source.nodes[index];
            if !pending(&node.op) {
                return Ok(Some(push_copy(builder, &source, index, operands)));
            }
            builder.enter(node);
            let unrolled = if let Op::While(op) = &node.op { op.unroll(builder, operands)? } else { None };
            unrolled.map(Some).ok_or_else(|| {
                let name = node.op.name();
                Diagnostic::new(
                    "E134",
                    format!("a `{name}` with data-dependent control flow contains collectives"),
                )
                .at(node.path.clone())
                .expected("collectives outside control flow, or in loops with a constant trip count")
                .help("use a constant start, step and bound of the loop counter, and at most 1024 trips")
            })
        })?;
    }
    Ok(current)
}

/// Appends node `index` of `graph` to `builder` over new operands, with its path, phase, location, microbatch and group.
pub fn push_copy(
    builder: &mut GraphBuilder,
    graph: &Graph,
    index: usize,
    operands: &[ValueId],
) -> Vec<ValueId> {
    let node = &graph.nodes[index];
    builder.enter(node);
    let types = node.results.iter().map(|&v| graph.ty(v).clone()).collect();
    builder.push_typed(node.op.clone(), operands, types)
}

/// Rebuilds a graph node by node: `emit` gets the builder, the map of values so far, the node's index and its new
/// operands, and returns the new results, or `None` to drop the node. Inputs, names, roles, annotations, outputs and
/// aliases carry over.
pub fn rebuild(
    graph: &Graph,
    mut emit: impl FnMut(&mut GraphBuilder, &[Option<ValueId>], usize, &[ValueId]) -> Result<Option<Vec<ValueId>>>,
) -> Result<Graph> {
    let mut builder = GraphBuilder::from_graph(graph.emptied());
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    for &input in &graph.inputs {
        let value = graph.value(input);
        let new = builder.input(&value.name, value.ty.clone(), value.role.clone());
        map[input.index()] = Some(new);
        carry(graph, input, &mut builder, new);
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let operands: Option<Vec<ValueId>> = node.operands.iter().map(|v| map[v.index()]).collect();
        // An operand that was dropped belongs to a node that is dropped too.
        let operands = operands.unwrap_or_default();
        if let Some(results) = emit(&mut builder, &map, index, &operands)? {
            for (&old, &new) in node.results.iter().zip(&results) {
                map[old.index()] = Some(new);
                carry(graph, old, &mut builder, new);
            }
        }
    }
    let outputs = graph.outputs.iter().map(|v| map[v.index()].expect("outputs are kept")).collect();
    let mut result = builder.finish(outputs);
    remap_roles(graph, &map, &mut result);
    Ok(result)
}

/// A new value gets the name, role, layout and group of an old one, where it has none.
pub(crate) fn carry(graph: &Graph, old: ValueId, builder: &mut GraphBuilder, new: ValueId) {
    let source = graph.value(old);
    let annotation: Option<Annotation> = source.annotation.clone();
    let target = builder.graph_mut().value_mut(new);
    if target.name.is_empty() {
        target.name = source.name.clone();
    }
    if target.role == crate::Role::Activation {
        target.role = source.role.clone();
    }
    if target.annotation.is_none() {
        target.annotation = annotation;
    }
    target.group = target.group.or(source.group);
}

/// Roles name other values; after a rebuild they must name the new ones.
pub(crate) fn remap_roles(graph: &Graph, map: &[Option<ValueId>], result: &mut Graph) {
    use crate::Role;
    for (index, new) in map.iter().enumerate() {
        let Some(new) = *new else { continue };
        match graph.values[index].role.renamed(|v| map[v.index()]) {
            // Two values were merged.
            Role::RematOf(of) if of == new => result.value_mut(new).role = Role::Activation,
            role @ (Role::StateOf(_) | Role::GradOf(_) | Role::RematOf(_)) => {
                result.value_mut(new).role = role;
            }
            Role::Activation | Role::Input | Role::Param => {}
        }
    }
}
