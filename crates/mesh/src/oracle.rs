//! What each rank holds and what a step does, spelled out naively.

use crate::mesh::Mesh;
use crate::reshard::ReshardStep;
use crate::sharding::Sharding;

/// The global linear (row-major) indices of the elements that `rank` holds, ascending: in the order of its buffer.
pub fn held_indices(mesh: &Mesh, sharding: &Sharding, shape: &[usize], rank: usize) -> Vec<usize> {
    let (offset, extent) =
        (sharding.local_offset(mesh, shape, rank), sharding.local_shape(mesh, shape, rank));
    let mut indices = vec![0];
    for dim in 0..shape.len() {
        let range = offset[dim]..offset[dim] + extent[dim];
        indices = indices.iter().flat_map(|i| range.clone().map(move |j| i * shape[dim] + j)).collect();
    }
    indices
}

/// Executes one step on the ranks' local buffers.
pub fn apply_step(
    _mesh: &Mesh,
    _shape: &[usize],
    _before: &Sharding,
    _step: &ReshardStep,
    _values: Vec<Vec<i64>>,
) -> Vec<Vec<i64>> {
    todo!()
}
