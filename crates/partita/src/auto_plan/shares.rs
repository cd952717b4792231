//! How the ranks of a built step share its work: axes over which they do not, and how long each stage computes.

use crate::price::Price;
use partita_ir::Phase;
use partita_mesh::Mesh;
use partita_schedule::Built;
use partita_spmd::Partitioned;

/// An axis of a slice over which no stage on such slices shards a value that its forward pass computes.
pub(super) fn idle_axis(built: &Built) -> Option<String> {
    let is_idle = |mesh: &Mesh, axis: usize| {
        let full = mesh.full_axis(axis);
        built.stages.iter().filter(|stage| stage.partitioned.mesh == *mesh).all(|stage| {
            let Partitioned { graph, layouts, .. } = &stage.partitioned;
            let mut forward = graph.nodes.iter().filter(|node| node.phase == Phase::Forward);
            forward.all(|node| node.results.iter().all(|&value| !layouts.sharding(value).uses_axis(full)))
        })
    };
    let mut meshes: Vec<&Mesh> = built.stages.iter().map(|stage| &stage.partitioned.mesh).collect();
    meshes.dedup();
    meshes.into_iter().find_map(|mesh| {
        let axis = (0..mesh.axes.len()).find(|&axis| mesh.axes[axis].size > 1 && is_idle(mesh, axis))?;
        Some(mesh.axes[axis].name.clone())
    })
}

/// The share of the step in which the ranks of each stage compute.
pub(super) fn busy(built: &Built, price: &Price) -> Vec<f64> {
    let Price::Whole(whole) = price else { return Vec::new() };
    let simulation = &whole.1;
    let of_rank = |rank: &usize| {
        let class = simulation.classes.iter().find(|class| class.ranks.contains(rank));
        class.map_or(0.0, |class| class.compute_s) / simulation.step_s.max(f64::MIN_POSITIVE)
    };
    let of_stage = |ranks: &Vec<usize>| ranks.iter().map(of_rank).sum::<f64>() / ranks.len().max(1) as f64;
    built.stages.iter().map(|stage| of_stage(&stage.ranks)).collect()
}
