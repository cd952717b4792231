//! Pattern search on random graphs equals a search over every assignment, and fusing the matches
//! changes no number.

use partita_base::DType;
use partita_ir::ops::UnaryKind;
use partita_ir::outline::outline_over;
use partita_ir::{Graph, GraphBuilder, Literal, NodeId, Op, Operation, Role, TensorType, ValueId, evaluate};
use partita_schedule::Pattern;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::Cell;

const SHAPE: [usize; 2] = [2, 3];

/// Ops over earlier values.
#[derive(Clone, Debug)]
struct Recipe {
    inputs: usize,
    steps: Vec<(u8, usize, usize)>,
}

fn recipes(steps: std::ops::Range<usize>) -> impl Strategy<Value = Recipe> {
    (1..4usize, prop::collection::vec((0..5u8, any::<usize>(), any::<usize>()), steps))
        .prop_map(|(inputs, steps)| Recipe { inputs, steps })
}

impl Recipe {
    /// Appends the steps; returns all values, inputs first.
    fn emit(&self, b: &mut GraphBuilder, inputs: &[ValueId]) -> Vec<ValueId> {
        let mut values = inputs.to_vec();
        for &(op, first, second) in &self.steps {
            let (x, y) = (values[first % values.len()], values[second % values.len()]);
            let value = match op {
                0 => b.add(x, y),
                1 => b.multiply(x, y),
                2 => b.subtract(x, y),
                3 => b.unary(UnaryKind::Tanh, x),
                _ => b.scale(x, 2.0),
            };
            values.push(value.unwrap());
        }
        values
    }

    /// All unread values are returned.
    fn graph(&self, dtype: DType) -> Graph {
        let mut b = GraphBuilder::new("main");
        let ty = TensorType::new(dtype, SHAPE);
        let inputs: Vec<ValueId> =
            (0..self.inputs).map(|i| b.input(&format!("x{i}"), ty.clone(), Role::Input)).collect();
        let values = self.emit(&mut b, &inputs);
        let uses = b.graph().uses();
        let ends = values[self.inputs..].iter().copied().filter(|v| uses[v.index()].is_empty());
        let ends = ends.collect();
        b.finish(ends)
    }
}

/// The nodes that compute, with their operands: a value, or `None` for the number 2.
fn computing(graph: &Graph) -> Vec<(NodeId, Vec<Option<ValueId>>)> {
    let is = |id: NodeId, names: &[&str]| names.contains(&graph.node(id).op.name());
    let number =
        |v: ValueId| graph.value(v).definition.is_some_and(|(id, _)| is(id, &["stablehlo.broadcast_in_dim"]));
    let nodes = graph.node_ids().filter(|&id| !is(id, &["stablehlo.constant", "stablehlo.broadcast_in_dim"]));
    let reads = |id: NodeId| graph.node(id).operands.iter().map(|&v| (!number(v)).then_some(v)).collect();
    nodes.map(|id| (id, reads(id))).collect()
}

/// Whether this assignment of pattern nodes to graph nodes, with these operand orders, is a match.
fn fits(
    pattern: &Graph,
    graph: &Graph,
    pairs: &[(&(NodeId, Vec<Option<ValueId>>), &(NodeId, Vec<Option<ValueId>>))],
    swapped: usize,
) -> bool {
    let mut map: Vec<Option<ValueId>> = vec![None; pattern.values.len()];
    for ((p, _), (g, _)) in pairs {
        map[pattern.node(*p).results[0].index()] = Some(graph.node(*g).results[0]);
    }
    for (number, ((p, wanted), (g, found))) in pairs.iter().enumerate() {
        let swap = swapped >> number & 1 == 1;
        let commutes = ["stablehlo.add", "stablehlo.multiply"].contains(&graph.node(*g).op.name());
        if pattern.node(*p).op.name() != graph.node(*g).op.name() || (swap && !commutes) {
            return false;
        }
        let mut found = found.clone();
        if swap {
            found.reverse();
        }
        for (wanted, found) in wanted.iter().zip(found) {
            let same = match (wanted, found) {
                (None, None) => true,
                (Some(wanted), Some(found)) => {
                    let is_input = pattern.value(*wanted).definition.is_none();
                    let inside = graph
                        .value(found)
                        .definition
                        .is_some_and(|(id, _)| pairs.iter().any(|(_, (g, _))| *g == id));
                    !(is_input && inside) && *map[wanted.index()].get_or_insert(found) == found
                }
                // An input of the pattern may stand for a number; graphs here never share one.
                (Some(wanted), None) => {
                    pattern.value(*wanted).definition.is_none() && {
                        let position = graph.node(*g).operands.len() - 1;
                        let constant = graph.node(*g).operands[position];
                        *map[wanted.index()].get_or_insert(constant) == constant
                    }
                }
                (None, Some(_)) => false,
            };
            if !same {
                return false;
            }
        }
    }
    true
}

/// Every set of nodes that matches, with the node of the pattern's first output, by trying every
/// assignment.
fn brute_force(pattern: &Graph, graph: &Graph) -> Vec<(NodeId, Vec<NodeId>)> {
    let (wanted, there) = (computing(pattern), computing(graph));
    let first = pattern.value(pattern.outputs[0]).definition.unwrap().0;
    let anchor = wanted.iter().position(|(id, _)| *id == first).unwrap();
    let mut matches = Vec::new();
    for number in 0..there.len().pow(wanted.len() as u32) {
        let digit = |place: usize| number / there.len().pow(place as u32) % there.len();
        let chosen: Vec<usize> = (0..wanted.len()).map(digit).collect();
        if (1..chosen.len()).any(|i| chosen[..i].contains(&chosen[i])) {
            continue;
        }
        let pairs: Vec<_> = wanted.iter().zip(chosen.iter().map(|&c| &there[c])).collect();
        if (0..1 << wanted.len()).any(|swapped| fits(pattern, graph, &pairs, swapped)) {
            matches.push((there[chosen[anchor]].0, chosen.iter().map(|&c| there[c].0).collect()));
        }
    }
    matches
}

fn numbers(graph: &Graph) -> Vec<f64> {
    let literal = |(i, &v): (usize, &ValueId)| {
        let ty = graph.ty(v);
        Literal::from_f64(ty, (0..ty.element_count()).map(|e| ((7 * i + 3 * e) % 11) as f64 / 5.0 - 1.0))
    };
    let inputs: Vec<Literal> = graph.inputs.iter().enumerate().map(literal).collect();
    evaluate(graph, &inputs).unwrap().iter().flat_map(|output| output.to_f64()).collect()
}

fn check(pattern: &Recipe, target: &Recipe) -> Result<usize, TestCaseError> {
    let (small, graph) = (pattern.graph(DType::F32), target.graph(DType::F64));
    let names: Vec<String> = (0..pattern.inputs).map(|i| format!("x{i}")).collect();
    let inputs: Vec<(&str, &[usize])> = names.iter().map(|name| (name.as_str(), &SHAPE[..])).collect();
    // Inputs that nothing uses are refused.
    let Ok(pattern) = Pattern::from_model(&inputs, |b, v| b.inline(&small, v, false)) else { return Ok(0) };
    let expected = brute_force(&small, &graph);
    let found = pattern.find(&graph, &|_| true);
    let own = |nodes: &[NodeId]| -> Vec<NodeId> {
        let looked_through = |op: &Op| matches!(op, Op::Constant(_) | Op::BroadcastInDim(_));
        nodes.iter().copied().filter(|&id| !looked_through(&graph.node(id).op)).collect()
    };
    let anchor = |v: ValueId| graph.value(v).definition.unwrap().0;
    let mut seen: Vec<NodeId> = Vec::new();
    for found in &found {
        let nodes = own(&found.nodes);
        let known = expected.iter().any(|(first, set)| {
            *first == anchor(found.outputs[0])
                && set.len() == nodes.len()
                && set.iter().all(|id| nodes.contains(id))
        });
        prop_assert!(known, "found {found:?}, which is no match");
        prop_assert!(!nodes.iter().any(|id| seen.contains(id)), "matches overlap");
        seen.extend(nodes);
    }
    for (_, set) in &expected {
        prop_assert!(set.iter().any(|id| seen.contains(id)), "{set:?} was left out");
    }
    prop_assert_eq!(found.first().map(|m| anchor(m.outputs[0])), expected.iter().map(|(a, _)| *a).min());

    // Each match is one composite over exactly the pattern's inputs, unless a path leaves it and
    // re-enters.
    for found in &found {
        let operands: Vec<ValueId> = found.inputs.values().copied().collect();
        match outline_over(&graph, &found.nodes, "fused", &operands) {
            Ok((fused, place)) => {
                prop_assert_eq!(fused.node(place).operands.len(), operands.len());
                prop_assert_eq!(numbers(&fused), numbers(&graph));
            }
            Err(error) => prop_assert!(error.message.contains("depend on its own results"), "{error}"),
        }
    }
    Ok(found.len())
}

#[test]
fn patterns_find_what_trying_everything_finds() {
    let config = Config { cases: 6000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[5; 32]);
    let (found, cases) = (Cell::new(0), Cell::new(0));
    TestRunner::new_with_rng(config, rng)
        .run(&(recipes(1..4), recipes(3..9)), |(pattern, target)| {
            let count = check(&pattern, &target)?;
            found.set(found.get() + count);
            cases.set(cases.get() + (count > 0) as usize);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    // The graphs are rich enough to make the test meaningful.
    assert!(cases.get() > 200 && found.get() > cases.get(), "{} matches in {}", found.get(), cases.get());
}

#[test]
fn no_text_makes_reading_a_pattern_panic() {
    let pieces = [
        "x",
        "y",
        "h",
        "=",
        ";",
        ",",
        "(",
        ")",
        "+",
        "-",
        "*",
        "/",
        "1",
        "0.5",
        "1e",
        "1e-3",
        ".",
        "relu",
        "linear",
        "module",
        "\"",
        "\"a.*\"",
        "\"(\"",
        "tanh",
        "dot_general",
        "partita.gelu",
        "\n",
        " ",
        "é",
        "func.func",
    ];
    let config = Config { cases: 4000, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[6; 32]);
    let read = Cell::new(0);
    TestRunner::new_with_rng(config, rng)
        .run(&prop::collection::vec(0..pieces.len(), 1..9), |chosen| {
            let text: String = chosen.iter().map(|&piece| pieces[piece]).collect();
            match Pattern::parse(&text) {
                Ok(pattern) => {
                    read.set(read.get() + 1);
                    prop_assert_eq!(Pattern::parse(pattern.text()).unwrap(), pattern);
                }
                Err(error) => prop_assert!(["E240", "E241"].contains(&error.code), "{text}: {error}"),
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(read.get() > 20, "{} texts were read", read.get());
}
