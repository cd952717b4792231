//! Advice on meshes: which ranks are idle, and a mesh on which the cost model predicts a faster
//! step.

use crate::assign::op_s;
use crate::partition::Partitioned;
use crate::propagate::Layouts;
use partita_base::{Note, Result};
use partita_ir::{Graph, Operation, Phase};
use partita_mesh::{Axis, AxisList, AxisRole, LinkCost, Mesh, Step, rank_list};

/// Ranks without a shard of some parameters, because these have fewer units than there are ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Idle {
    /// The first such parameter, with its type.
    first: String,
    /// Number of further parameters.
    others: usize,
    /// The split dimension of the first one.
    dim: usize,
    /// The largest number of shards of that dimension.
    pieces: usize,
    /// The axes that split it.
    axes: AxisList,
    ranks: Vec<usize>,
}

/// Finds idle ranks. An axis over which parameters are only stored in shards leaves no rank idle,
/// because each use gathers them.
fn idle(graph: &Graph, mesh: &Mesh, layouts: &Layouts) -> Vec<Idle> {
    let mut found: Vec<Idle> = Vec::new();
    for id in graph.params() {
        let value = graph.value(id);
        for (dim, cut) in layouts.sharding(id).dims.iter().enumerate() {
            let mut cut = cut.clone();
            cut.axes.retain(|axis| !layouts.cuts_by_element(id, *axis));
            cut.by_element = 0;
            let pieces = value.ty.shape[dim] / cut.unit.max(1);
            if pieces == 0 || pieces >= mesh.axes_size(&cut.axes) {
                continue;
            }
            let extents = cut.extents(value.ty.shape[dim]);
            let is_idle = |rank: &usize| extents[mesh.position(*rank, &cut.axes)] == 0;
            let ranks: Vec<usize> = (0..mesh.rank_count()).filter(is_idle).collect();
            let alike =
                |idle: &&mut Idle| (idle.pieces, &idle.axes, &idle.ranks) == (pieces, &cut.axes, &ranks);
            match found.iter_mut().find(alike) {
                Some(idle) => idle.others += 1,
                None => {
                    let first = format!("`{}` {}", graph.describe(id), value.ty);
                    found.push(Idle { first, others: 0, dim, pieces, axes: cut.axes, ranks });
                }
            }
        }
    }
    found
}

/// One sentence for each group of idle ranks, which are called by these names, if there are any.
pub(crate) fn idle_notes(graph: &Graph, mesh: &Mesh, layouts: &Layouts, names: &[usize]) -> Vec<Note> {
    let named = |rank: &usize| names.get(*rank).copied().unwrap_or(*rank);
    let note = |idle: Idle| {
        let others = match idle.others {
            0 => String::new(),
            1 => ", as has 1 more parameter".to_string(),
            more => format!(", as have {more} more parameters"),
        };
        let ranks: Vec<usize> = idle.ranks.iter().map(named).collect();
        let are_idle = match ranks.as_slice() {
            [one] => format!("rank {one} is idle"),
            ranks => format!("ranks {} are idle", rank_list(ranks)),
        };
        let (first, pieces, dim) = (&idle.first, idle.pieces, idle.dim);
        let (ways, axes) = (mesh.axes_size(&idle.axes), mesh.display_axes(&idle.axes));
        Note::new(
            "idle-ranks",
            format!(
                "{first} has {pieces} blocks along dimension {dim} for {ways} ranks over {axes}{others}: {are_idle} there"
            ),
        )
    };
    idle(graph, mesh, layouts).into_iter().map(note).collect()
}

/// Predicted seconds of a step on its slowest rank: the sum over its ops and its collectives,
/// without overlap.
pub fn step_s(partitioned: &Partitioned) -> f64 {
    let Partitioned { graph, mesh, cluster, .. } = partitioned;
    let work_s = |local: &Graph| {
        let own = local.nodes.iter().filter(|node| !node.op.is_collective());
        own.map(|node| op_s(cluster, local, node, 1)).sum::<f64>()
    };
    let local = |step: &Step| matches!(step, Step::Slice { .. } | Step::ToPartial { .. });
    let exchanges = partitioned.moves.iter().filter(|m| !local(&m.step.step));
    // Scalars of one phase over the same axes, such as the parts of a gradient's norm, are exchanged as one message.
    let mut scalars: Vec<(Option<Phase>, &Step)> = Vec::new();
    let exchanges = exchanges.filter(|m| {
        if graph.ty(m.value).rank() > 0 {
            return true;
        }
        let phase = graph.value(m.value).definition.map(|(node, _)| graph.node(node).phase);
        let is_new = !scalars.contains(&(phase, &m.step.step));
        scalars.push((phase, &m.step.step));
        is_new
    });
    let exchanged_s = exchanges.map(|m| {
        let ty = graph.ty(m.value);
        cluster.reshard_cost(mesh, &ty.shape, ty.dtype.size_bytes()).step_s(&m.before, &m.step)
    });
    let exchanged_s: f64 = exchanged_s.sum();
    partitioned.locals.iter().map(work_s).fold(0.0, f64::max) + exchanged_s
}

/// A better mesh for the same step.
#[derive(Clone, PartialEq, Debug)]
pub struct BetterMesh {
    /// The mesh.
    pub mesh: Mesh,
    /// Predicted seconds of a step on it.
    pub step_s: f64,
    /// Predicted seconds of a step on the given mesh.
    pub given_s: f64,
}

impl std::fmt::Display for BetterMesh {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let percent = 100.0 * self.step_s / self.given_s;
        write!(
            f,
            "the next best mesh is {}: a step takes {percent:.0} % of the time by the cost model",
            self.mesh
        )
    }
}

/// Tries a few meshes on which fewer ranks are idle, and returns the best if it is better than the
/// mesh of `given`: a shorter predicted step, or an equal one on fewer ranks. `on` partitions the
/// same step for another mesh; a mesh for which it fails is skipped.
pub fn better_mesh(
    given: &Partitioned,
    on: &mut dyn FnMut(&Mesh) -> Result<Partitioned>,
) -> Option<BetterMesh> {
    let mut best = None;
    let given_s = step_s(given);
    let mut least = (given_s, given.mesh.rank_count());
    for mesh in candidates(&given.mesh, &idle(&given.graph, &given.mesh, &given.layouts)) {
        let Ok(other) = on(&mesh) else { continue };
        let (step_s, ranks) = (step_s(&other), mesh.rank_count());
        let is_same = (step_s - least.0).abs() <= SAME * least.0;
        let is_better = if is_same { ranks < least.1 } else { step_s < least.0 };
        if is_better {
            least = (step_s, ranks);
            best = Some(BetterMesh { mesh, step_s, given_s });
        }
    }
    best
}

/// Times with a smaller relative difference are considered equal.
const SAME: f64 = 1e-6;

/// Meshes with smaller axes where ranks are idle: one with as many ranks as there are shards, and
/// one with the most ranks that divide the axis. The remaining ranks go to the `dp` axis, or are
/// left out.
fn candidates(mesh: &Mesh, idle: &[Idle]) -> Vec<Mesh> {
    let mut found: Vec<Mesh> = Vec::new();
    let mut add = |candidate: Mesh| {
        if candidate.axes != mesh.axes && !found.iter().any(|known| known.axes == candidate.axes) {
            found.push(candidate);
        }
    };
    for idle in idle {
        for &axis in &idle.axes {
            let size = mesh.axes[axis.axis].size;
            let others = mesh.axes_size(&idle.axes) / axis.size;
            let most = (idle.pieces / others).clamp(1, size);
            let divides = (1..=most).rev().find(|n| size.is_multiple_of(*n)).unwrap_or(1);
            for fewer in [most, divides] {
                let mut narrower = mesh.clone();
                narrower.device_ids = None;
                narrower.axes[axis.axis].size = fewer;
                if size.is_multiple_of(fewer) {
                    add(with_more_data_ranks(&narrower, size / fewer));
                }
                add(narrower);
            }
        }
    }
    found
}

/// The mesh with a `dp` axis `times` as large.
fn with_more_data_ranks(mesh: &Mesh, times: usize) -> Mesh {
    let mut mesh = mesh.clone();
    match mesh.axis_of(AxisRole::Data) {
        Some(dp) => mesh.axes[dp.axis].size *= times,
        None => mesh.axes.insert(0, Axis { name: AxisRole::Data.axis().to_string(), size: times }),
    }
    mesh
}
