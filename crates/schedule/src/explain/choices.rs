//! Alternative layouts of a value, each partitioned and counted.

use super::{Explain, exchanged_bytes};
use crate::weights::forms_of;
use partita_base::Result;
use partita_ir::ops::ShardingConstraint;
use partita_ir::{Annotation, Graph, Op, Role, ValueId};
use partita_mesh::{AxisRef, Sharding};
use partita_spmd::{Options, Partitioned, partition};
use serde::Serialize;

/// An alternative layout of a value over one mesh axis; all else stays as planned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Choice {
    /// The mesh axis.
    pub axis: String,
    /// The sharded dimension; `None` if replicated.
    pub dim: Option<usize>,
    /// The resulting layout.
    pub layout: String,
    /// Whether it is the present layout.
    pub present: bool,
    /// Bytes of the full tensors that a rank takes part in moving per step, over all collectives;
    /// the maximum over ranks.
    pub moved_bytes: usize,
    /// Bytes of parameters on a rank; the maximum over ranks.
    pub parameter_bytes: usize,
    /// `moved_bytes` less those of the present layout.
    pub more_moved_bytes: i64,
    /// `parameter_bytes` less those of the present layout.
    pub more_parameter_bytes: i64,
    /// Why the layout is not possible.
    pub refused: Option<String>,
}

pub(super) fn choices(
    explain: &Explain,
    values: &[ValueId],
    progress: &mut dyn FnMut(usize, usize),
) -> Vec<Choice> {
    let (graph, mesh) = (explain.graph, explain.mesh);
    let Some(&first) = values.first() else { return Vec::new() };
    let dims = graph.ty(first).rank();
    let present = explain.layout(first);
    let axes: Vec<AxisRef> =
        (0..mesh.axes.len()).map(|axis| mesh.full_axis(axis)).filter(|axis| axis.size > 1).collect();
    let now = figures(explain.partitioned);
    let total = axes.len() * dims;
    let mut done = 0;
    let mut found = Vec::new();
    for &axis in &axes {
        let own = explain.dim_over(first, axis);
        let others = (0..dims).map(Some).chain([None]).filter(|dim| *dim != own);
        for dim in [own].into_iter().chain(others) {
            let is_present = dim == own;
            let tried = match is_present {
                true => Ok(now),
                false => tried(explain, values, axis, dim),
            };
            let layout = if is_present { present.clone() } else { moved(present, axis, dim) };
            let ((moved_bytes, parameter_bytes), refused) = match tried {
                Ok(figures) => (figures, None),
                Err(error) => (now, Some(format!("{}: {}", error.code, error.message))),
            };
            found.push(Choice {
                axis: mesh.display_axis(axis),
                dim,
                layout: layout.display(mesh),
                present: is_present,
                moved_bytes,
                parameter_bytes,
                more_moved_bytes: moved_bytes as i64 - now.0 as i64,
                more_parameter_bytes: parameter_bytes as i64 - now.1 as i64,
                refused,
            });
            if !is_present {
                done += 1;
                progress(done, total);
            }
        }
    }
    found
}

/// Bytes that a rank communicates, and bytes of parameters on a rank; maxima over ranks.
fn figures(partitioned: &Partitioned) -> (usize, usize) {
    let exchanged =
        |local: &Graph| -> usize { local.nodes.iter().filter_map(|node| exchanged_bytes(local, node)).sum() };
    let parameters =
        |local: &Graph| -> usize { local.params().into_iter().map(|p| local.ty(p).bytes()).sum() };
    let most = |of: &dyn Fn(&Graph) -> usize| partitioned.locals.iter().map(of).max().unwrap_or(0);
    (most(&exchanged), most(&parameters))
}

fn tried(explain: &Explain, values: &[ValueId], axis: AxisRef, dim: Option<usize>) -> Result<(usize, usize)> {
    let (graph, mesh) = (explain.graph, explain.mesh);
    let mesh_index = graph.meshes.iter().position(|m| m == mesh).unwrap_or(0);
    let mut changed = graph.clone();
    for value in together(explain, values, axis) {
        let free = || Annotation {
            mesh: mesh_index,
            sharding: Sharding::replicated(graph.ty(value).rank()),
            open: vec![true; graph.ty(value).rank()],
            replicated: Vec::new(),
            origin: "tried by `explain`".to_string(),
        };
        let mut annotation = explain.asked(value).cloned().unwrap_or_else(free);
        annotation.sharding = moved(&annotation.sharding, axis, dim);
        annotation.replicated.retain(|a| a.axis != axis.axis);
        match dim {
            Some(dim) => annotation.open[dim] = false,
            None => annotation.replicated.push(axis),
        }
        let definition = graph.value(value).definition.map(|(node, _)| node);
        match definition.filter(|&node| graph.node(node).op.constraint().is_some()) {
            Some(node) => changed.nodes[node.index()].op = ShardingConstraint { annotation }.into(),
            None => changed.value_mut(value).annotation = Some(annotation),
        }
    }
    let options = Options { cluster: explain.partitioned.cluster.clone(), ..Options::default() };
    partition(&changed, mesh, &options).map(|partitioned| figures(&partitioned))
}

/// A layout with an axis moved to another dimension, or to none.
fn moved(layout: &Sharding, axis: AxisRef, dim: Option<usize>) -> Sharding {
    let mut layout = layout.clone();
    layout.partial.clear();
    for dim in &mut layout.dims {
        dim.axes.retain(|a| a.axis != axis.axis);
    }
    if let Some(dim) = dim {
        layout.dims[dim].axes.push(axis);
    }
    layout
}

/// The values and everything that a plan lays out with a parameter: its conversions, states and
/// gradients, and the constraints of its readers that are sharded along the axis too.
fn together(explain: &Explain, values: &[ValueId], axis: AxisRef) -> Vec<ValueId> {
    let graph = explain.graph;
    let mut all: Vec<ValueId> = values.to_vec();
    for &parameter in values.iter().filter(|v| graph.value(**v).role == Role::Param) {
        let same = |v: &ValueId| graph.ty(*v).shape == graph.ty(parameter).shape;
        let asked = |v: &ValueId| graph.value(*v).annotation.is_some();
        let forms = forms_of(graph, &explain.modules, parameter).into_iter().skip(1);
        let related = graph.value_ids().filter(|v| match graph.value(*v).role {
            Role::StateOf(of) => of == parameter,
            Role::GradOf(of) => of == parameter && asked(v),
            _ => false,
        });
        all.extend(forms.filter(asked).chain(related).filter(same));
    }
    let seen = |id: partita_ir::NodeId| {
        let node = graph.node(id);
        let asks = |op: &Op| {
            op.constraint().is_some_and(|a| a.sharding.sharded_axes().iter().any(|a| a.axis == axis.axis))
        };
        asks(&node.op).then(|| node.results[0])
    };
    let is_parameter = |v: &&ValueId| graph.value(**v).role == Role::Param;
    let readers: Vec<ValueId> = values
        .iter()
        .filter(is_parameter)
        .flat_map(|&v| explain.modules.uses(v).iter().filter_map(|&(id, _)| seen(id)))
        .collect();
    all.extend(readers);
    all
}
