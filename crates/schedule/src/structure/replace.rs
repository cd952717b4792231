//! Replaces a part of the graph by one composite, after comparing the two on random numbers.

use super::{BuildContext, Entry, Match};
use crate::feed::random;
use crate::modules::{Modules, owner};
use crate::{Argument, verify};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::ops::Composite;
use partita_ir::outline::{outline, outline_over};
use partita_ir::{
    Attribute, Attributes, Graph, Literal, NodeId, Op, Role, TensorType, ValueId, evaluate, graph_edit,
};
use partita_nn::random::Draws;

/// Replaces a module. Its tensors are named by the parameters' own names (by full names if two
/// share one); its activations by `x`, or `x0`, `x1`, .. in order of use if there are several.
pub(super) fn module(
    graph: &Graph,
    path: &str,
    with: &str,
    bindings: &IndexMap<String, Argument>,
    entry: &Entry,
    context: &BuildContext,
) -> Result<Graph> {
    let nodes = Modules::of(graph).forward_nodes(path);
    let (outlined, id) = outline(graph, &nodes, with).map_err(|error| error.note(entry.describe()))?;
    exchange(&outlined, id, &operand_names(&outlined, id), with, bindings, entry, context)
}

/// Replaces consecutive ops. Operands are named as in [`module`].
pub(super) fn ops(
    graph: &Graph,
    nodes: &[NodeId],
    with: &str,
    bindings: &IndexMap<String, Argument>,
    entry: &Entry,
    context: &BuildContext,
) -> Result<Graph> {
    let (outlined, id) = outline(graph, nodes, with).map_err(|error| error.note(entry.describe()))?;
    exchange(&outlined, id, &operand_names(&outlined, id), with, bindings, entry, context)
}

/// A name for each operand of a composite, with its position.
fn operand_names(graph: &Graph, id: NodeId) -> IndexMap<String, usize> {
    let values = || graph.node(id).operands.iter().map(|&v| graph.value(v));
    let activations = values().filter(|value| value.role != Role::Param).count();
    let shared = |own: &str| {
        values().filter(|value| value.role == Role::Param && owner(&value.name).1 == own).count() > 1
    };
    let mut number = 0;
    let mut names: IndexMap<String, usize> = IndexMap::new();
    for (position, value) in values().enumerate() {
        let name = if value.role == Role::Param {
            let own = owner(&value.name).1;
            if shared(own) { value.name.clone() } else { own.to_string() }
        } else {
            number += 1;
            if activations == 1 { "x".to_string() } else { format!("x{}", number - 1) }
        };
        names.entry(name).or_insert(position);
    }
    names
}

/// Replaces a match of a pattern. Operands are named by the inputs of the pattern.
pub(super) fn subgraph(
    graph: &Graph,
    found: &Match,
    with: &str,
    bindings: &IndexMap<String, Argument>,
    entry: &Entry,
    context: &BuildContext,
) -> Result<Graph> {
    let inputs: Vec<ValueId> = found.inputs.values().copied().collect();
    let (outlined, id) =
        outline_over(graph, &found.nodes, with, &inputs).map_err(|error| error.note(entry.describe()))?;
    // Behind the inputs come parameters of modules that the pattern matches as a whole.
    let mut names: IndexMap<String, usize> = IndexMap::new();
    for (position, &operand) in outlined.node(id).operands.iter().enumerate() {
        let name = match found.inputs.get_index(position) {
            Some((name, _)) => name.clone(),
            None => outlined.describe(operand),
        };
        names.insert(name, position);
    }
    exchange(&outlined, id, &names, with, bindings, entry, context)
}

/// Replaces the composite at a node by the one named `with`. Arguments are bound by name: first by
/// `bindings`, then by equal names. `names` are the operands' names with their positions.
///
/// E250 if the arguments or results do not fit, E251 if the two do not compute the same.
fn exchange(
    graph: &Graph,
    id: NodeId,
    names: &IndexMap<String, usize>,
    with: &str,
    bindings: &IndexMap<String, Argument>,
    entry: &Entry,
    context: &BuildContext,
) -> Result<Graph> {
    let node = graph.node(id);
    let Op::Composite(before) = &node.op else { unreachable!("outlining gives a composite") };
    let kernel = context.registry.lookup(with).map_err(|error| error.at(entry.describe()))?;
    let arguments = kernel.arguments();
    let types: Vec<&TensorType> = graph.operand_types(node);
    let has = || {
        let described = names.iter().map(|(name, position)| format!("{name}: {}", types[*position]));
        described.collect::<Vec<String>>().join(", ")
    };
    let unfit = |what: String| {
        Diagnostic::new("E250", format!("`{with}` does not fit here: {what}"))
            .at(entry.describe())
            .expected(format!("arguments {}", arguments.join(", ")))
            .found(format!("{} in {}", has(), node_place(graph, id)))
    };
    let mut order: Vec<usize> = Vec::new();
    let mut left_out = None;
    for (number, argument) in arguments.iter().enumerate() {
        let bound = match bindings.get(*argument) {
            Some(Argument::Text(name)) => Some(name.as_str()),
            _ => Some(*argument).filter(|name| names.contains_key(*name)),
        };
        // A single activation needs no name.
        let alone = || (number == 0 && names.contains_key("x")).then_some("x");
        match bound.or_else(alone) {
            Some(name) => {
                let position = names.get(name).copied().ok_or_else(|| {
                    let mut error = unfit(format!(
                        "nothing has the name `{name}`, which its argument `{argument}` is bound to"
                    ));
                    error.help = did_you_mean(name, names.keys().map(String::as_str));
                    error
                })?;
                if let Some(missing) = left_out {
                    return Err(unfit(format!("its argument `{missing}` is not bound")));
                }
                order.push(position);
            }
            None if number + kernel.optional() >= arguments.len() => left_out = left_out.or(Some(*argument)),
            None => {
                return Err(unfit(format!("its argument `{argument}` is not bound")).help(format!(
                    "bind it by name: replace(\"{with}\", {argument}=\"{}\")",
                    names.keys().next().map_or("x", String::as_str)
                )));
            }
        }
    }
    if let Some((unread, _)) = names.iter().find(|(_, position)| !order.contains(position)) {
        return Err(unfit(format!("it does not read `{unread}`")));
    }
    let attributes: Attributes = bindings
        .iter()
        .filter(|(key, _)| !arguments.contains(&key.as_str()))
        .map(|(key, value)| Ok((key.clone(), attribute(key, value, entry)?)))
        .collect::<Result<_>>()?;
    let picked: Vec<TensorType> = order.iter().map(|&position| types[position].clone()).collect();
    let after = kernel.instantiate(&attributes, &picked).map_err(|error| error.note(entry.describe()))?;
    let results = |composite: &Composite| -> Vec<TensorType> {
        let inside = &composite.definition.decomposition;
        inside.outputs.iter().map(|&v| inside.ty(v).clone()).collect()
    };
    if results(before) != results(&after) {
        let shown =
            |types: Vec<TensorType>| types.iter().map(|t| t.to_string()).collect::<Vec<_>>().join(", ");
        return Err(unfit("its results have other types".to_string())
            .expected(shown(results(before)))
            .found(shown(results(&after))));
    }
    compare(before, &after, &order, with, entry)?;
    graph_edit::rebuild(graph, |builder, _, index, operands| {
        if NodeId::new(index) != id {
            return Ok(Some(graph_edit::push_copy(builder, graph, index, operands)));
        }
        builder.enter(node);
        let operands: Vec<ValueId> = order.iter().map(|&position| operands[position]).collect();
        Ok(Some(builder.push(after.clone(), &operands)?))
    })
}

fn node_place(graph: &Graph, id: NodeId) -> String {
    match graph.node(id).path.as_str() {
        "" => "the model".to_string(),
        path => format!("`{path}`"),
    }
}

fn attribute(key: &str, value: &Argument, entry: &Entry) -> Result<Attribute> {
    Ok(match value {
        Argument::Int(value) => Attribute::Int(*value),
        Argument::Float(value) => Attribute::Float(*value),
        Argument::Bool(value) => Attribute::Bool(*value),
        Argument::Text(value) => Attribute::Text(value.clone()),
        Argument::List(_) | Argument::Call(_) => {
            return Err(Diagnostic::new("E250", format!("attribute `{key}` is not a single value"))
                .at(entry.describe())
                .expected("a number, a boolean or a string")
                .found(value.describe()));
        }
    })
}

/// Compares two composites on random operands; `order` picks the second's operands from the
/// first's. E251 names the result and the element that differs most.
fn compare(before: &Composite, after: &Composite, order: &[usize], with: &str, entry: &Entry) -> Result<()> {
    let inside = &before.definition.decomposition;
    let draws = Draws::new(0, "replace");
    let operand = |(number, &v): (usize, &ValueId)| random(inside.ty(v), draws.within(number as u64), 2);
    let operands: Vec<Literal> = inside.inputs.iter().enumerate().map(operand).collect();
    let picked: Vec<Literal> = order.iter().map(|&position| operands[position].clone()).collect();
    let expected = evaluate(inside, &operands)?;
    let found = evaluate(&after.definition.decomposition, &picked)?;
    for (number, (expected, found)) in expected.iter().zip(&found).enumerate() {
        let (e, f) = (expected.to_f64(), found.to_f64());
        let magnitude = e.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
        let mut worst: Option<(usize, f64)> = None;
        for (index, (a, b)) in e.iter().zip(&f).enumerate() {
            let difference = if a.to_bits() == b.to_bits() { 0.0 } else { (a - b).abs() / magnitude };
            // A NaN on one side only is a difference.
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            if difference > worst.map_or(0.0, |(_, d)| d) {
                worst = Some((index, difference));
            }
        }
        if let Some((index, difference)) = worst
            && difference > verify::tolerance(expected.ty.dtype)
        {
            return Err(Diagnostic::new("E251", format!("`{with}` does not compute what it replaces"))
                .at(entry.describe())
                .expected(format!("{} at element {index} of result {number}, {}", e[index], expected.ty))
                .found(format!("{}, off by {difference:.1e} of the largest magnitude", f[index]))
                .note("compared on random operands, bound by name")
                .help("check the decomposition of the kernel, and which operand each argument is bound to"));
        }
    }
    Ok(())
}
