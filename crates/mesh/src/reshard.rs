//! Resharding: the collectives and local steps from one layout to another.

use crate::mesh::{AxisList, Mesh};
use crate::search;
use crate::sharding::Sharding;
use partita_base::Combiner;
use std::collections::BTreeMap;

/// One collective or local operation that changes a layout. Axes are major to minor.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Step {
    /// Local: appends axes as minor-most on a dimension; each rank keeps its shard.
    Slice {
        /// The dimension that is split.
        dim: usize,
        /// The appended axes.
        axes: AxisList,
    },
    /// Removes the minor-most axes of a dimension: each rank receives the shards of its group, in
    /// position order.
    AllGather {
        /// The dimension that grows.
        dim: usize,
        /// The removed axes.
        axes: AxisList,
    },
    /// Combines the partial values of each group; all of its ranks receive the result.
    AllReduce {
        /// The axes that are no longer partial.
        axes: AxisList,
        /// How values combine.
        combiner: Combiner,
    },
    /// Combines the partial values of each group; each of its ranks receives its shard along `dim`.
    ReduceScatter {
        /// The dimension that is split.
        dim: usize,
        /// The axes that are no longer partial, appended as minor-most on `dim`.
        axes: AxisList,
        /// How values combine.
        combiner: Combiner,
    },
    /// Within each group, every rank sends every other rank a part along `to_dim`, and concatenates
    /// the received parts along `from_dim`. In an uneven split, each member's extent differs.
    AllToAll {
        /// The dimension whose minor-most axes are removed.
        from_dim: usize,
        /// The dimension on which they become minor-most.
        to_dim: usize,
        /// The axes that move.
        axes: AxisList,
    },
    /// Shards move between ranks, and local shapes stay: see [`permute_pairs`].
    Permute {},
    /// Local: makes the value partial. Position 0 along the axes keeps it, the others hold the
    /// identity.
    ToPartial {
        /// The axes that become partial.
        axes: AxisList,
        /// How values will combine.
        combiner: Combiner,
    },
}

/// A step and the layout after it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ReshardStep {
    /// The step.
    pub step: Step,
    /// The layout after it.
    pub after: Sharding,
}

/// Prices the reshard steps of one tensor. The cost model implements it for the search behind
/// [`reshard`].
pub trait LinkCost {
    /// Seconds of a step, finite and not negative; `before` is the layout before it.
    fn step_s(&self, before: &Sharding, step: &ReshardStep) -> f64;

    /// Seconds of these steps one after another, from the layout `from`.
    fn path_s(&self, from: &Sharding, steps: &[ReshardStep]) -> f64 {
        let befores = [from].into_iter().chain(steps.iter().map(|s| &s.after));
        befores.zip(steps).map(|(before, step)| self.step_s(before, step)).sum()
    }
}

/// Plans the steps that take a tensor of this global shape from one layout to another; none if both
/// are the same layout. The `after` of the last step is `to` as given.
///
/// Both layouts may be any that [`Sharding::validate`] accepts for `shape`, with uneven and empty
/// shards. The search minimises the time by `cost`; beyond a limit on its size it returns a valid
/// but possibly slower path.
pub fn reshard(
    mesh: &Mesh,
    from: &Sharding,
    to: &Sharding,
    shape: &[usize],
    cost: &dyn LinkCost,
) -> Vec<ReshardStep> {
    debug_assert!(
        from.validate(mesh, shape).is_ok() && to.validate(mesh, shape).is_ok(),
        "layouts fit mesh and shape"
    );
    if from.same_layout(to, mesh, shape) {
        return Vec::new();
    }
    let mut steps = search::cheapest_path(mesh, from, to, shape, cost);
    if let Some(last) = steps.last_mut() {
        last.after = to.clone();
    }
    steps
}

/// The (source, target) ranks of a [`Step::Permute`], by target. Every rank is the source of one
/// transfer and the target of one; a rank that already holds its shard sends to itself.
pub fn permute_pairs(
    mesh: &Mesh,
    before: &Sharding,
    after: &Sharding,
    shape: &[usize],
) -> Vec<(usize, usize)> {
    let _ = shape;
    let ranks = mesh.rank_count();
    let (holders, takers) = (holders(mesh, before), holders(mesh, after));
    let mut source_of = vec![0; ranks];
    for (content, targets) in &takers {
        let sources = &holders[content];
        debug_assert_eq!(sources.len(), targets.len(), "a permute keeps the number of replicas");
        // A rank that holds its shard keeps it; the other replicas serve the other targets in rank
        // order.
        let free_sources = sources.iter().filter(|s| !targets.contains(s));
        let free_targets = targets.iter().filter(|t| !sources.contains(t));
        targets.iter().for_each(|&t| source_of[t] = t);
        free_sources.zip(free_targets).for_each(|(&s, &t)| source_of[t] = s);
    }
    source_of.into_iter().enumerate().map(|(target, source)| (source, target)).collect()
}

/// The ranks that hold each content: a shard of each dimension, and a term of the partial value.
fn holders(mesh: &Mesh, sharding: &Sharding) -> BTreeMap<Vec<usize>, Vec<usize>> {
    let mut holders: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for rank in 0..mesh.rank_count() {
        let mut content: Vec<usize> = sharding.dims.iter().map(|d| mesh.position(rank, &d.axes)).collect();
        content.push(mesh.position(rank, &sharding.partial_axes()));
        holders.entry(content).or_default().push(rank);
    }
    holders
}
