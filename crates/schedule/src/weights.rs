//! Finds which dimension of a parameter is its output and which its input, from its uses.

use crate::modules::{Modules, owner};
use partita_ir::{Graph, Op, Operation, Phase, ValueId};

/// A parameter itself and its conversions to another element type.
pub(crate) fn forms_of(graph: &Graph, modules: &Modules, parameter: ValueId) -> Vec<ValueId> {
    let converted = modules.uses(parameter).iter().filter_map(|&(id, _)| {
        let node = graph.node(id);
        (matches!(node.op, Op::Convert(_)) && node.phase != Phase::Update).then(|| node.results[0])
    });
    [parameter].into_iter().chain(converted).collect()
}

/// The weights of a module: its own `weight`, or, if it has none (a tied head), the one its forward
/// nodes read.
pub(crate) fn weights_of(graph: &Graph, modules: &Modules, module: &str) -> Vec<ValueId> {
    let own = modules.parameters_of(module);
    let named: Vec<ValueId> =
        own.iter().copied().filter(|&p| owner(&graph.value(p).name).1 == "weight").collect();
    if !named.is_empty() {
        return named;
    }
    let nodes = modules.forward_nodes_of(module);
    let read = |p: &ValueId| {
        graph.ty(*p).rank() >= 2
            && forms_of(graph, modules, *p)
                .iter()
                .any(|&form| modules.uses(form).iter().any(|(id, _)| nodes.contains(id)))
    };
    graph.params().into_iter().filter(read).collect()
}

/// The (output, input) dimensions of a weight as `module` uses it: free and contracted in a matmul,
/// output and input features in a convolution, features and rows in a lookup. `(0, 1)`, PyTorch's order, if its uses do not
/// tell; `None` for a vector.
pub(crate) fn matrix_dims(
    graph: &Graph,
    modules: &Modules,
    weight: ValueId,
    module: &str,
) -> Option<(usize, usize)> {
    let rank = graph.ty(weight).rank();
    if rank < 2 {
        return None;
    }
    let forward = |form: ValueId| {
        modules.uses(form).iter().copied().filter(|&(id, _)| graph.node(id).phase == Phase::Forward)
    };
    let mut uses: Vec<_> = forms_of(graph, modules, weight).into_iter().flat_map(forward).collect();
    // A tied table is looked up by one module and multiplied by another.
    uses.sort_by_key(|(id, _)| graph.node(*id).path != module);
    let read = |(id, position): (partita_ir::NodeId, usize)| {
        let op = &graph.node(id).op;
        if let Op::DotGeneral(dot) = op {
            let (contracted, batch) = match position {
                0 => (&dot.lhs_contracting, &dot.lhs_batch),
                _ => (&dot.rhs_contracting, &dot.rhs_batch),
            };
            let free = (0..rank).find(|d| !contracted.contains(d) && !batch.contains(d));
            return Some((free?, *contracted.first()?));
        }
        if let (Op::Convolution(convolution), 1) = (op, position) {
            return Some((convolution.kernel.batch, convolution.kernel.feature));
        }
        let looks_up = matches!(op, Op::Gather(_)) || op.name() == "partita.embedding";
        (looks_up && position == 0).then_some((rank - 1, 0))
    };
    Some(uses.into_iter().find_map(read).unwrap_or((0, 1)))
}
