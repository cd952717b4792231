//! The verifier: checks that a graph is well formed. It runs after every pass in tests and debug
//! builds.

use crate::graph::{Graph, NodeId, ValueId};
use crate::op::Operation;
use crate::traits::CollectiveRef;
use partita_base::{Diagnostic, Result};

/// Checks a graph and the graphs inside its ops: values are defined once and before use, types
/// equal the inferred ones, annotations and aliases fit their values. E151 to E156, each naming the
/// node with its module path.
pub fn verify(graph: &Graph) -> Result<()> {
    let mut defined = vec![false; graph.values.len()];
    for &input in &graph.inputs {
        in_range(graph, input)?;
        if std::mem::replace(&mut defined[input.index()], true) || graph.value(input).definition.is_some() {
            return Err(problem("E151", graph, "an input is defined twice").found(graph.describe(input)));
        }
    }
    for id in graph.node_ids() {
        verify_node(graph, id, &mut defined)?;
    }
    for &output in &graph.outputs {
        in_range(graph, output)?;
        if !defined[output.index()] {
            return Err(problem("E152", graph, "an output is not defined").found(graph.describe(output)));
        }
    }
    for (names, what) in
        [(graph.output_names.len(), "output names"), (graph.output_annotations.len(), "output annotations")]
    {
        if names != 0 && names != graph.outputs.len() {
            return Err(problem("E155", graph, &format!("{what} do not fit the outputs"))
                .expected(graph.outputs.len().to_string())
                .found(names.to_string()));
        }
    }
    for &(input, output) in &graph.aliases {
        let pair = graph.inputs.get(input).zip(graph.outputs.get(output));
        if pair.is_none_or(|(&i, &o)| graph.ty(i) != graph.ty(o)) {
            return Err(problem("E156", graph, "an output cannot replace an input of another type")
                .found(format!("input {input}, output {output}")));
        }
    }
    for id in graph.value_ids() {
        let value = graph.value(id);
        if let Some(annotation) = &value.annotation {
            let rank = value.ty.rank();
            if annotation.sharding.dims.len() != rank || annotation.open.len() != rank {
                return Err(problem("E154", graph, "an annotation has another rank than its value")
                    .at(annotation.origin.clone())
                    .expected(value.ty.to_string())
                    .found(format!("{} dimensions", annotation.sharding.dims.len())));
            }
        }
    }
    Ok(())
}

/// E170 if a graph, or one inside its ops, has values of a type that only the interpreter knows.
pub fn runnable(graph: &Graph) -> Result<()> {
    for id in graph.value_ids() {
        let dtype = graph.ty(id).dtype;
        if dtype.is_inert() {
            let known: Vec<&str> = partita_base::DType::ALL.iter().map(|dtype| dtype.mlir_name()).collect();
            return Err(problem("E170", graph, &format!("no device computes with element type {dtype}"))
                .at(graph.describe(id))
                .expected(format!("one of {}", known.join(", ")))
                .found(graph.ty(id).to_string())
                .help(
                    "`partita run` evaluates such a program on the interpreter, on one rank; convert to another element type \
                     to run it on devices",
                ));
        }
    }
    graph.nodes.iter().flat_map(|node| node.op.regions()).try_for_each(runnable)
}

/// E152 for a value id that is out of range.
fn in_range(graph: &Graph, value: ValueId) -> Result<()> {
    let count = graph.values.len();
    if value.index() < count {
        return Ok(());
    }
    Err(problem("E152", graph, "a value of another graph")
        .expected(format!("one of {count} values"))
        .found(format!("value {}", value.index())))
}

fn verify_node(graph: &Graph, id: NodeId, defined: &mut [bool]) -> Result<()> {
    let node = graph.node(id);
    for &operand in &node.operands {
        in_range(graph, operand)?;
        if !defined[operand.index()] {
            return Err(problem("E152", graph, "a value is used before it is defined")
                .at(node.path.clone())
                .found(format!("{} reads {}", node.op.name(), graph.describe(operand))));
        }
    }
    for (position, &result) in node.results.iter().enumerate() {
        in_range(graph, result)?;
        let twice = std::mem::replace(&mut defined[result.index()], true);
        if twice || graph.value(result).definition != Some((id, position)) {
            return Err(problem("E151", graph, "a value is defined twice")
                .at(node.path.clone())
                .found(graph.describe(result)));
        }
    }
    for region in node.op.regions() {
        verify(region)?;
    }
    // The shard that a member of a group keeps depends on the rank, which the types of one graph do
    // not show.
    let depends_on_rank = |op: CollectiveRef| match op {
        CollectiveRef::ReduceScatter(_) | CollectiveRef::AllToAll(_) | CollectiveRef::AllGather(_) => true,
        CollectiveRef::AllReduce(_)
        | CollectiveRef::CollectivePermute(_)
        | CollectiveRef::CollectiveBroadcast(_) => false,
    };
    if node.op.is_collective() && graph.traits(node).collective().is_some_and(depends_on_rank) {
        return Ok(());
    }
    let inferred = node.op.infer(&graph.operand_types(node)).map_err(|mut error| {
        error.at.get_or_insert_with(|| format!("{} ({})", node.path, node.op.name()));
        error
    })?;
    let actual = graph.result_types(node);
    if inferred.iter().collect::<Vec<_>>() != actual {
        let list = |types: Vec<String>| types.join(", ");
        return Err(problem(
            "E153",
            graph,
            &format!("{} has other result types than it infers", node.op.name()),
        )
        .at(node.path.clone())
        .expected(list(inferred.iter().map(|t| t.to_string()).collect()))
        .found(list(actual.iter().map(|t| t.to_string()).collect())));
    }
    Ok(())
}

fn problem(code: &'static str, graph: &Graph, message: &str) -> Box<Diagnostic> {
    Diagnostic::new(code, message).note(format!("in graph `{}`", graph.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, Role, TensorType};
    use partita_base::DType;

    fn sum() -> Graph {
        let mut builder = GraphBuilder::new("sum");
        let x = builder.input("x", TensorType::new(DType::F32, [2]), Role::Input);
        let y = builder.add(x, x).unwrap();
        builder.finish(vec![y])
    }

    fn code(graph: &Graph) -> &'static str {
        verify(graph).unwrap_err().code
    }

    #[test]
    fn a_built_graph_is_well_formed() {
        verify(&sum()).unwrap();
    }

    #[test]
    fn a_wrong_type_is_found() {
        let mut graph = sum();
        graph.values[1].ty = TensorType::new(DType::F32, [3]);
        assert_eq!(code(&graph), "E153");
    }

    #[test]
    fn a_use_before_definition_is_found() {
        let mut graph = sum();
        graph.nodes[0].operands[0] = ValueId::new(1);
        assert_eq!(code(&graph), "E152");
    }

    #[test]
    fn an_output_that_nobody_defines_is_found() {
        let mut graph = sum();
        graph.nodes.clear();
        graph.values[1].definition = None;
        assert_eq!(code(&graph), "E152");
    }

    #[test]
    fn a_value_of_another_graph_is_found() {
        for place in 0..4 {
            let (mut graph, other) = (sum(), ValueId::new(7));
            match place {
                0 => graph.inputs[0] = other,
                1 => graph.outputs[0] = other,
                2 => graph.nodes[0].operands[1] = other,
                _ => graph.nodes[0].results[0] = other,
            }
            assert_eq!(code(&graph), "E152");
        }
    }

    #[test]
    fn an_alias_of_another_type_is_found() {
        let mut graph = sum();
        graph.aliases.push((0, 1));
        assert_eq!(code(&graph), "E156");
    }
}
