//! Reverse-mode automatic differentiation, graph to graph.
//!
//! The backward pass walks the nodes in reverse and calls
//! [`Operation::gradient`] of each op for the cotangents of its
//! operands. Ops without a gradient (a `while`, a `case`, a reduction or scatter with a general
//! body, a sort) give error E120, which names the op.

use crate::graph::{Graph, NodeId, Phase, Role, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, Op, Operation};
use crate::traits::Traits;
use crate::{GraphBuilder, TensorType};
use partita_base::{Diagnostic, Result};

/// Appends to `builder` the cotangents of `wrt`, given cotangents of some values (`seeds`: value,
/// cotangent). A value that does not influence any seeded value gets `None`. The new nodes carry
/// the module path of the node they differentiate. Their phase is [`Phase::WeightGrad`] if the
/// cotangent is for parameters only, else [`Phase::InputGrad`].
pub fn backward(
    builder: &mut GraphBuilder,
    seeds: &[(ValueId, ValueId)],
    wrt: &[ValueId],
) -> Result<Vec<Option<ValueId>>> {
    let node_count = builder.graph().nodes.len();
    let value_count = builder.graph().values.len();
    let reach = Reach::of(builder.graph(), wrt);
    let mut cotangents: Vec<Option<ValueId>> = vec![None; value_count];
    let (path, location) = (builder.path.clone(), builder.location.clone());
    let outer = (builder.phase, builder.microbatch, builder.stage, builder.remat);
    for &(value, cotangent) in seeds {
        accumulate(builder, &mut cotangents, value, cotangent)?;
    }
    for id in (0..node_count).rev().map(NodeId::new) {
        let node = builder.graph().node(id).clone();
        let incoming: Vec<Option<ValueId>> = node.results.iter().map(|v| cotangents[v.index()]).collect();
        if incoming.iter().all(Option::is_none) {
            continue;
        }
        let differentiable =
            |v: &ValueId| reach.influenced[v.index()] && builder.graph().ty(*v).dtype.is_float();
        let wanted: Vec<bool> = node.operands.iter().map(differentiable).collect();
        let of_parameters: Vec<bool> =
            node.operands.iter().map(|v| reach.only_parameters[v.index()]).collect();
        builder.enter(&node);
        builder.remat = None;
        // If they share no work, weights and inputs get separate nodes, so that a schedule can move weight
        // gradients.
        let parts: Vec<(Phase, Vec<bool>)> = if node.op.has_one_gradient() {
            let all = wanted.iter().zip(&of_parameters).all(|(w, p)| !w || *p);
            vec![(if all { Phase::WeightGrad } else { Phase::InputGrad }, wanted)]
        } else {
            let side = |parameters: bool| {
                wanted.iter().zip(&of_parameters).map(|(w, p)| *w && *p == parameters).collect::<Vec<bool>>()
            };
            vec![(Phase::InputGrad, side(false)), (Phase::WeightGrad, side(true))]
        };
        for (phase, wanted) in parts {
            if !wanted.contains(&true) {
                continue;
            }
            builder.phase = phase;
            let mut context = GradientContext {
                builder,
                operands: &node.operands,
                results: &node.results,
                cotangents: &incoming,
                wanted: &wanted,
            };
            let gradients = node.op.gradient(&mut context).map_err(|mut error| {
                error.at.get_or_insert_with(|| builder.graph().describe(node.results[0]));
                error
            })?;
            for ((&operand, gradient), wanted) in node.operands.iter().zip(gradients).zip(&wanted) {
                if let (Some(gradient), true) = (gradient, *wanted) {
                    accumulate(builder, &mut cotangents, operand, gradient)?;
                }
            }
        }
    }
    (builder.path, builder.location) = (path, location);
    (builder.phase, builder.microbatch, builder.stage, builder.remat) = outer;
    for (index, cotangent) in cotangents.iter().enumerate() {
        if let Some(cotangent) = *cotangent {
            let value = ValueId::new(index);
            let target = builder.graph_mut().value_mut(cotangent);
            if target.role == Role::Activation
                && target.definition.is_some_and(|(n, _)| n.index() >= node_count)
            {
                target.role = Role::GradOf(value);
            }
        }
    }
    Ok(wrt.iter().map(|v| cotangents[v.index()]).collect())
}

/// Sums cotangents of one value in order of arrival.
fn accumulate(
    builder: &mut GraphBuilder,
    cotangents: &mut [Option<ValueId>],
    value: ValueId,
    cotangent: ValueId,
) -> Result<()> {
    if builder.ty(value) != builder.ty(cotangent) {
        return Err(Diagnostic::new("E121", "a cotangent and its value have different types")
            .at(builder.graph().describe(value))
            .expected(builder.ty(value).to_string())
            .found(builder.ty(cotangent).to_string()));
    }
    let slot = &mut cotangents[value.index()];
    *slot = Some(match *slot {
        Some(sum) => builder.add(sum, cotangent)?,
        None => cotangent,
    });
    Ok(())
}

/// Which values depend on the differentiated ones. Cotangents flow through floats only, so what was computed from
/// integers, such as a choice of experts, does not.
struct Reach {
    influenced: Vec<bool>,
    /// Values that depend on differentiated ones through parameters only: views and reshapes of
    /// weights.
    only_parameters: Vec<bool>,
}

impl Reach {
    fn of(graph: &Graph, wrt: &[ValueId]) -> Reach {
        let mut influenced = vec![false; graph.values.len()];
        let mut only_parameters = vec![false; graph.values.len()];
        for &value in wrt {
            influenced[value.index()] = true;
            only_parameters[value.index()] = graph.value(value).role == Role::Param;
        }
        for node in &graph.nodes {
            let any = node.operands.iter().any(|v| influenced[v.index()]);
            // Constants are allowed; fed values and values computed from data are not.
            let only = any
                && node.operands.len() <= 2
                && node.operands.iter().all(|v| only_parameters[v.index()] || is_constant(graph, *v));
            for result in &node.results {
                influenced[result.index()] |= any && graph.ty(*result).dtype.is_float();
                only_parameters[result.index()] |= only;
            }
        }
        Reach { influenced, only_parameters }
    }
}

fn is_constant(graph: &Graph, value: ValueId) -> bool {
    match graph.value(value).definition {
        Some((node, _)) => {
            let node = graph.node(node);
            matches!(graph.traits(node), Traits::Constant(_) | Traits::Iota { .. })
                || (matches!(node.op, Op::BroadcastInDim(_)) && is_constant(graph, node.operands[0]))
        }
        None => false,
    }
}

/// The graph of (inputs.., cotangents of `seeded` outputs..) to the cotangents of the inputs at `wanted`; an
/// input without influence gets zeros.
pub fn vjp(graph: &Graph, seeded: &[usize], wanted: &[usize]) -> Result<Graph> {
    vjp_by(graph, seeded, wanted, |builder, inputs, cotangents| {
        let outputs = builder.inline(graph, inputs, false)?;
        let seeds: Vec<(ValueId, ValueId)> =
            outputs.iter().zip(cotangents).filter_map(|(&output, seed)| Some((output, (*seed)?))).collect();
        let wrt: Vec<ValueId> = wanted.iter().map(|&input| inputs[input]).collect();
        backward(builder, &seeds, &wrt)
    })
}

/// [`vjp`] with the builder code `gradient`: it returns the cotangents of the inputs at `wanted`,
/// from all inputs and the cotangents of the seeded outputs.
pub(crate) fn vjp_by(
    graph: &Graph,
    seeded: &[usize],
    wanted: &[usize],
    gradient: impl FnOnce(&mut GraphBuilder, &[ValueId], &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>>,
) -> Result<Graph> {
    let mut builder = GraphBuilder::new(&format!("{}.vjp", graph.name));
    let copy_input = |builder: &mut GraphBuilder, v: ValueId| {
        let value = graph.value(v);
        builder.input(&value.name, value.ty.clone(), Role::Activation)
    };
    let inputs: Vec<ValueId> = graph.inputs.iter().map(|&v| copy_input(&mut builder, v)).collect();
    let mut cotangents = vec![None; graph.outputs.len()];
    for &output in seeded {
        let ty = graph.ty(graph.outputs[output]).clone();
        cotangents[output] = Some(builder.input(&format!("cotangent_{output}"), ty, Role::Activation));
    }
    let gradients = gradient(&mut builder, &inputs, &cotangents)?;
    let results = wanted
        .iter()
        .zip(gradients)
        .map(|(&input, gradient)| {
            let ty: TensorType = builder.ty(inputs[input]).clone();
            gradient.unwrap_or_else(|| builder.constant(Literal::zeros(&ty)))
        })
        .collect();
    Ok(crate::graph_edit::prune(builder.finish(results)))
}
