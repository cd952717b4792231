//! Every assignment of ordered mesh axes to the factors of one op.

use super::check;
use super::table::Case;
use partita_ir::{Annotation, Factor, FactorKind, Graph, GraphBuilder, Operation, Role, Rule, evaluate};
use partita_mesh::{AxisList, AxisRef, Mesh, Sharding};
use partita_spmd::Options;
use std::collections::BTreeMap;

/// The name of the op's first result.
const RESULT: &str = "result";

/// The graph of the op alone.
pub fn graph_of(case: &Case) -> Graph {
    let (name, op, operands) = case;
    let mut builder = GraphBuilder::new("main");
    let inputs: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(i, l)| builder.input(&format!("x{i}"), l.ty.clone(), Role::Input))
        .collect();
    let outputs = builder.push(op.clone(), &inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut graph = builder.finish(outputs);
    // A split is fixed by this name.
    let result = graph.nodes[0].results[0];
    graph.value_mut(result).name = RESULT.to_string();
    graph
}

/// Every way to give each axis to one splittable factor or to none, and, if a factor has several,
/// every order of them.
fn assignments(rule: &Rule, axes: &[AxisRef]) -> Vec<Vec<AxisList>> {
    let mut all = vec![vec![AxisList::new(); rule.factors.len()]];
    for &axis in axes {
        let mut next = Vec::new();
        for base in &all {
            next.push(base.clone());
            for (factor, f) in rule.factors.iter().enumerate() {
                if !matches!(f.kind, FactorKind::Shift | FactorKind::Whole) {
                    for place in 0..=base[factor].len() {
                        let mut with = base.clone();
                        with[factor].insert(place, axis);
                        next.push(with);
                    }
                }
            }
        }
        all = next;
    }
    all
}

/// All axes of a mesh in full.
pub fn full_axes(mesh: &Mesh) -> Vec<AxisRef> {
    (0..mesh.axes.len()).map(|axis| mesh.full_axis(axis)).collect()
}

/// Tries every split of the op over `axes`, and also lets the partitioner choose with every operand
/// sharded along its first or last dimension. Returns the number of cases tried, or the first
/// failure.
pub fn check_case(case: &Case, mesh: &Mesh, axes: &[AxisRef]) -> Result<usize, String> {
    let (name, _, operands) = case;
    let graph = graph_of(case);
    let expected = evaluate(&graph, operands).map_err(|e| format!("{name}: {e}"))?;
    let node = &graph.nodes[0];
    let rule = node.op.rule(&graph.operand_types(node), &graph.result_types(node));
    // One program for all ranks may refuse to exchange uneven shards (E275); their own programs were compared before.
    let exchanges = |factor: &Factor| matches!(factor.kind, FactorKind::Exchange | FactorKind::Window(_));
    let mut tried = 0;
    for assignment in assignments(&rule, axes) {
        let options = Options {
            fixed: BTreeMap::from([(RESULT.to_string(), assignment.clone())]),
            ..Options::default()
        };
        match check(&graph, mesh, &options, operands, &expected) {
            Ok(_) => tried += 1,
            Err(("E275", _))
                if assignment.iter().zip(&rule.factors).any(|(list, f)| !list.is_empty() && exchanges(f)) =>
            {
                tried += 1;
            }
            // Strided shards have no layout.
            Err(("E218", _)) => {}
            Err((code, text)) => return Err(format!("{name} on {mesh} with {assignment:?}: {code}: {text}")),
        }
    }
    for last in [false, true] {
        let mut graph = graph.clone();
        for input in graph.inputs.clone() {
            let rank = graph.ty(input).rank();
            if rank > 0 {
                let dim = if last { rank - 1 } else { 0 };
                let sharding = Sharding::replicated(rank).with_dim(dim, axes.iter().copied());
                let (open, origin) = (vec![true; rank], "test".to_string());
                let annotation = Annotation { mesh: 0, sharding, open, replicated: vec![], origin };
                graph.value_mut(input).annotation = Some(annotation);
            }
        }
        if let Err((code, text)) = check(&graph, mesh, &Options::default(), operands, &expected)
            && !(code == "E275" && rule.factors.iter().any(exchanges))
        {
            return Err(format!("{name} on {mesh}, operands split, last={last}: {code}: {text}"));
        }
        tried += 1;
    }
    Ok(tried)
}
