//! Compiles a graph to a pattern, and compares ops of a graph with ops of a pattern.

use super::{Broadcast, Form, Matcher, Operand, PatternNode, Source, number_behind, views};
use partita_base::{Diagnostic, Result};
use partita_ir::{Graph, Op, Operation, TensorType, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// E241: why a pattern cannot be searched for.
pub(super) fn unusable(message: impl Into<String>) -> Box<Diagnostic> {
    Diagnostic::new("E241", message).expected("a pattern with at least one op, which uses all its inputs")
}

/// The input names of a graph, and the graph without broadcasts and splat constants.
pub(super) fn compile(graph: &Graph) -> Result<(Vec<String>, Form)> {
    let mut form = Form::default();
    let mut places: BTreeMap<ValueId, Source> = BTreeMap::new();
    let mut inputs: Vec<String> = Vec::new();
    for (position, &input) in graph.inputs.iter().enumerate() {
        let name = match graph.value(input).name.as_str() {
            "" => format!("arg{position}"),
            name => name.to_string(),
        };
        if inputs.contains(&name) {
            return Err(Diagnostic::new("E241", format!("two inputs of a pattern are named `{name}`")));
        }
        inputs.push(name);
        places.insert(input, Source::Input(position));
    }
    let mut used = BTreeSet::new();
    for node in &graph.nodes {
        let looked_through = matches!(node.op, Op::BroadcastInDim(_));
        if looked_through || number_behind(graph, node.results[0]).is_some() {
            continue;
        }
        let mut operand = |&value: &ValueId| {
            if let Some((literal, _)) = number_behind(graph, value) {
                return Operand { source: Source::Number(literal.to_f64()[0]), broadcast: Broadcast::None };
            }
            let rank = graph.ty(value).rank();
            let view = views(graph, value).pop().expect("of itself at least");
            used.insert(view.source);
            let broadcast = match view.through.is_empty() {
                true => Broadcast::None,
                false => Broadcast::Dims(view.dims.iter().map(|d| rank - d).collect()),
            };
            Operand { source: places[&view.source], broadcast }
        };
        let operands = node.operands.iter().map(&mut operand).collect();
        let types = graph.operand_types(node).into_iter().cloned().collect();
        let matcher = Matcher::Like { op: node.op.clone(), operands: types };
        for (number, &result) in node.results.iter().enumerate() {
            places.insert(result, Source::Result(form.nodes.len(), number));
        }
        form.nodes.push(PatternNode { matcher, operands });
    }
    for &output in &graph.outputs {
        let source = views(graph, output).pop().expect("of itself at least").source;
        match places.get(&source) {
            Some(&source @ Source::Result(..)) => form.outputs.push(source),
            _ => return Err(unusable(format!("a pattern returns {}", graph.describe(output)))),
        }
    }
    if form.outputs.is_empty() {
        return Err(unusable("a pattern returns nothing"));
    }
    let unused = inputs.iter().zip(&graph.inputs).find(|(_, input)| !used.contains(input));
    match unused {
        Some((name, _)) => Err(unusable(format!("a pattern does not use its input `{name}`"))),
        None => Ok((inputs, form)),
    }
}

/// Whether two ops do the same to tensors of other extents and element types.
pub(super) fn alike(a: &Op, a_operands: &[TensorType], b: &Op, b_operands: &[&TensorType]) -> bool {
    let a_operands: Vec<&TensorType> = a_operands.iter().collect();
    a.is_alike(&a_operands, b, b_operands).unwrap_or_else(|| a == b)
}
