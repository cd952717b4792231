//! A naive definition of what each rank holds and of what a step does, against which the tests
//! check all planners and executors of collectives. Buffers are of `i64`, one per rank, in the
//! order of [`held_indices`].

use crate::mesh::{AxisRef, Mesh};
use crate::reshard::{ReshardStep, Step, permute_pairs};
use crate::sharding::Sharding;
use partita_base::Combiner;
use std::collections::BTreeMap;

/// The global linear (row-major) indices of the elements that `rank` holds, ascending, as in its
/// buffer.
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

/// The neutral element of a combiner.
pub fn identity(combiner: Combiner) -> i64 {
    match combiner {
        Combiner::Sum | Combiner::Or => 0,
        Combiner::Max => i64::MIN,
        Combiner::Min => i64::MAX,
        Combiner::Prod => 1,
        Combiner::And => -1,
    }
}

/// Combines two values, with wrapping arithmetic.
pub fn combine(combiner: Combiner, a: i64, b: i64) -> i64 {
    match combiner {
        Combiner::Sum => a.wrapping_add(b),
        Combiner::Max => a.max(b),
        Combiner::Min => a.min(b),
        Combiner::Prod => a.wrapping_mul(b),
        Combiner::And => a & b,
        Combiner::Or => a | b,
    }
}

/// The ranks' buffers of a global tensor (row-major). If `sharding` is partial, the summands of
/// element `index` derive from `noise(index, position along the partial axes)` and combine to the
/// element.
pub fn distribute(
    mesh: &Mesh,
    sharding: &Sharding,
    shape: &[usize],
    global: &[i64],
    noise: impl Fn(usize, usize) -> i64,
) -> Vec<Vec<i64>> {
    let axes = sharding.partial_axes();
    let summands = mesh.axes_size(&axes);
    let summand = |index: usize, position: usize| {
        let (value, others) = (global[index], 0..summands - 1);
        let Some(combiner) = sharding.combiner() else { return value };
        // Every position but the last holds noise that cannot change the result; the last corrects
        // it.
        let disturb = |p: usize| match combiner {
            Combiner::Sum => noise(index, p),
            Combiner::Max => value.min(noise(index, p)),
            Combiner::Min => value.max(noise(index, p)),
            Combiner::Prod => noise(index, p) | 1,
            Combiner::And => value | noise(index, p),
            Combiner::Or => value & noise(index, p),
        };
        match combiner {
            _ if position + 1 < summands => disturb(position),
            Combiner::Sum => others.fold(value, |rest, p| rest.wrapping_sub(disturb(p))),
            // Odd numbers have inverses modulo 2^64.
            Combiner::Prod => others.fold(value, |rest, p| rest.wrapping_mul(inverse(disturb(p)))),
            _ => value,
        }
    };
    let buffer = |rank| {
        let indices = held_indices(mesh, sharding, shape, rank);
        indices.iter().map(|&index| summand(index, mesh.position(rank, &axes))).collect()
    };
    (0..mesh.rank_count()).map(buffer).collect()
}

/// The global tensor (row-major) of these buffers, or an error: a buffer of the wrong length,
/// replicas that differ, or an element that no rank holds.
pub fn collect(
    mesh: &Mesh,
    sharding: &Sharding,
    shape: &[usize],
    values: &[Vec<i64>],
) -> Result<Vec<i64>, String> {
    let axes = sharding.partial_axes();
    let mut summands: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for (rank, buffer) in values.iter().enumerate() {
        let indices = held_indices(mesh, sharding, shape, rank);
        if indices.len() != buffer.len() {
            return Err(format!("rank {rank} holds {} elements, not {}", buffer.len(), indices.len()));
        }
        for (&index, &value) in indices.iter().zip(buffer) {
            let known = *summands.entry((index, mesh.position(rank, &axes))).or_insert(value);
            if known != value {
                return Err(format!("rank {rank} holds {value} for element {index}, another rank {known}"));
            }
        }
    }
    let element = |index| {
        let held = (0..mesh.axes_size(&axes)).map(|position| summands.get(&(index, position)).copied());
        let held: Option<Vec<i64>> = held.collect();
        let held = held.ok_or_else(|| format!("no rank holds element {index}"))?;
        Ok(held
            .into_iter()
            .reduce(|a, b| combine(sharding.combiner().unwrap_or(Combiner::Sum), a, b))
            .unwrap_or(0))
    };
    (0..shape.iter().product()).map(element).collect()
}

/// Executes one step on the ranks' buffers. Data moves only as a collective of that kind allows:
/// within the groups of its axes, as full buffers in a permute, not at all in a local step.
///
/// # Panics
/// If the step is not possible: a rank needs an element that no rank of its group holds, a
/// reduction is over different elements, shards are out of order, or a permute changes a buffer.
pub fn apply_step(
    mesh: &Mesh,
    shape: &[usize],
    before: &Sharding,
    step: &ReshardStep,
    values: Vec<Vec<i64>>,
) -> Vec<Vec<i64>> {
    let held = |sharding: &Sharding| -> Vec<Vec<usize>> {
        (0..mesh.rank_count()).map(|rank| held_indices(mesh, sharding, shape, rank)).collect()
    };
    let (has, needs) = (held(before), held(&step.after));
    // The elements that `rank` needs, taken from the buffers of `sources`.
    let picked = |rank: usize, sources: &[usize]| -> Vec<i64> {
        let pool: BTreeMap<usize, i64> =
            sources.iter().flat_map(|&s| has[s].iter().copied().zip(values[s].iter().copied())).collect();
        let pick = |index| {
            *pool.get(index).unwrap_or_else(|| panic!("rank {rank} lacks element {index} in {step:?}"))
        };
        needs[rank].iter().map(pick).collect()
    };
    // A collective concatenates or distributes the shards of a group in position order.
    let in_order = |sharding: &Sharding, dim: usize, axes: &[AxisRef]| {
        for group in mesh.groups(axes) {
            let offsets = group.iter().map(|&rank| sharding.local_offset(mesh, shape, rank)[dim]);
            assert!(offsets.is_sorted(), "shards of dimension {dim} are in position order in {step:?}");
        }
    };
    match &step.step {
        Step::AllGather { dim, axes } => in_order(before, *dim, axes),
        Step::ReduceScatter { dim, axes, .. } => in_order(&step.after, *dim, axes),
        Step::AllToAll { from_dim, to_dim, axes } => {
            in_order(before, *from_dim, axes);
            in_order(&step.after, *to_dim, axes);
        }
        Step::Slice { .. } | Step::AllReduce { .. } | Step::Permute {} | Step::ToPartial { .. } => {}
    }
    let ranks = 0..mesh.rank_count();
    match &step.step {
        Step::Slice { .. } => ranks.map(|rank| picked(rank, &[rank])).collect(),
        Step::AllGather { axes, .. } | Step::AllToAll { axes, .. } => {
            ranks.map(|rank| picked(rank, &mesh.group_of(rank, axes))).collect()
        }
        Step::AllReduce { axes, combiner } | Step::ReduceScatter { axes, combiner, .. } => {
            let reduced = |rank: usize| {
                let group = mesh.group_of(rank, axes);
                assert!(
                    group.iter().all(|&member| has[member] == has[rank]),
                    "a reduction combines like with like"
                );
                let sum = |at: usize| {
                    group.iter().fold(identity(*combiner), |sum, &m| combine(*combiner, sum, values[m][at]))
                };
                let position_of =
                    |index| has[rank].binary_search(index).expect("a reduction adds no elements");
                needs[rank].iter().map(|index| sum(position_of(index))).collect()
            };
            ranks.map(reduced).collect()
        }
        Step::Permute {} => {
            let pairs = permute_pairs(mesh, before, &step.after, shape);
            let mut received: Vec<Option<Vec<i64>>> = vec![None; mesh.rank_count()];
            let mut sends = vec![0; mesh.rank_count()];
            for (source, target) in pairs {
                assert_eq!(has[source], needs[target], "a permute moves whole buffers");
                assert_eq!(
                    before.local_shape(mesh, shape, target),
                    step.after.local_shape(mesh, shape, target),
                    "a permute keeps the local shape"
                );
                assert!(received[target].replace(values[source].clone()).is_none(), "one source per target");
                sends[source] += 1;
            }
            assert!(sends.iter().all(|&s| s == 1), "one target per source");
            received.into_iter().map(|buffer| buffer.expect("every rank receives")).collect()
        }
        Step::ToPartial { axes, combiner } => {
            let kept = |rank: usize| {
                let keeps = mesh.position(rank, axes) == 0;
                picked(rank, &[rank])
                    .into_iter()
                    .map(|v| if keeps { v } else { identity(*combiner) })
                    .collect()
            };
            ranks.map(kept).collect()
        }
    }
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration: each round doubles the number
/// of correct bits.
fn inverse(odd: i64) -> i64 {
    (0..6).fold(odd, |x, _| x.wrapping_mul(2i64.wrapping_sub(odd.wrapping_mul(x))))
}
