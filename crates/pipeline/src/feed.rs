//! Which values follow from fed tensors and constants alone: masks, positions, random numbers, the
//! number of tokens of the whole batch. They never cross between stages, since every stage can
//! compute them, and they may be computed at any time.

use partita_ir::{Graph, Role, ValueId};

/// For each value of a graph, whether it depends on nothing but constants and fed inputs.
/// `arrives` says which inputs are not fed but come from another stage. An input that an output
/// replaces at the next step is not fed either.
pub fn from_feed(graph: &Graph, arrives: impl Fn(ValueId) -> bool) -> Vec<bool> {
    let mut from_feed = vec![false; graph.values.len()];
    for &input in &graph.inputs {
        from_feed[input.index()] = graph.value(input).role == Role::Input && !arrives(input);
    }
    graph.aliases.iter().for_each(|&(input, _)| from_feed[graph.inputs[input].index()] = false);
    for node in &graph.nodes {
        let follows = node.operands.iter().all(|operand| from_feed[operand.index()]);
        node.results.iter().for_each(|result| from_feed[result.index()] = follows);
    }
    from_feed
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::DType;
    use partita_ir::{GraphBuilder, TensorType};

    #[test]
    fn states_parameters_and_received_values_are_not_fed() {
        let mut b = GraphBuilder::new("step");
        let ty = TensorType::new(DType::F32, [4]);
        let [x, received, counter] =
            ["x", "edge.0", "counter"].map(|name| b.input(name, ty.clone(), Role::Input));
        let w = b.input("w", ty.clone(), Role::Param);
        let mask = b.negate(x).unwrap();
        let one = b.scalar(DType::F32, 1.0);
        let next = b.add(counter, mask).unwrap();
        let read = b.add(mask, w).unwrap();
        let late = b.add(mask, received).unwrap();
        let mut graph =
            b.finish_named(vec![("counter".into(), next), ("read".into(), read), ("late".into(), late)]);
        graph.aliases = vec![(2, 0)];
        let found = from_feed(&graph, |value| value == received);
        let fed: Vec<ValueId> = graph.value_ids().filter(|value| found[value.index()]).collect();
        assert_eq!(fed, [x, mask, one]);
    }
}
