//! The search behind [`crate::reshard`]: Dijkstra's algorithm over layouts, weighted by seconds.
//!
//! The axes of both layouts are first divided into *atoms*, the coarsest parts that both layouts
//! use as a whole. A state is a layout in atoms. Edges are the collectives and local operations
//! that can bring it nearer to the target, which keeps the graph at a few tens of states. The
//! direct way always works ([`Search::direct`]): combine partial values, gather everything that is
//! not in place, and slice. Its time is the upper bound of the search.

use crate::mesh::{AxisList, AxisRef, Mesh};
use crate::reshard::{LinkCost, ReshardStep, Step};
use crate::sharding::{DimSharding, Sharding, merged};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Relative difference below which two paths cost the same: sums of the same steps in another
/// order.
const SAME: f64 = 1e-9;
/// Most states to expand before the search falls back to the direct way.
const MAX_STATES: usize = 2000;

/// The cheapest steps found between two different layouts, which fit the mesh and the shape.
pub(crate) fn cheapest_path(
    mesh: &Mesh,
    from: &Sharding,
    to: &Sharding,
    shape: &[usize],
    cost: &dyn LinkCost,
) -> Vec<ReshardStep> {
    let (from, to) = atoms(mesh, from, to, shape);
    let search = Search { mesh, shape, cost, target: to };
    let direct = search.direct(&from);
    let mut steps = search.better_than(cost.path_s(&from, &direct), &from).unwrap_or(direct);
    for ReshardStep { step, after } in &mut steps {
        after.canonicalise(mesh);
        match step {
            Step::Slice { axes, .. }
            | Step::AllGather { axes, .. }
            | Step::AllReduce { axes, .. }
            | Step::ReduceScatter { axes, .. }
            | Step::AllToAll { axes, .. }
            | Step::ToPartial { axes, .. } => *axes = merged(axes),
            Step::Permute {} => {}
        }
    }
    steps
}

/// Both layouts, with their axes divided at every boundary of either, where that changes no split.
fn atoms(mesh: &Mesh, from: &Sharding, to: &Sharding, shape: &[usize]) -> (Sharding, Sharding) {
    let (mut from, mut to) = (from.clone(), to.clone());
    from.normalise(mesh, shape);
    to.normalise(mesh, shape);
    let mut cuts: BTreeSet<(usize, usize)> = BTreeSet::new();
    for sharding in [&from, &to] {
        for axis in sharding.sharded_axes().iter().chain(&sharding.partial_axes()) {
            cuts.extend([(axis.axis, axis.pre), (axis.axis, axis.end())]);
        }
    }
    for sharding in [&mut from, &mut to] {
        for (dim, &size) in sharding.dims.iter_mut().zip(shape) {
            cut_up_dim(dim, &cuts, size);
        }
        if let Some(combiner) = sharding.combiner() {
            let axes = cut_up(&sharding.partial_axes(), &cuts, |_| true);
            sharding.partial = axes.into_iter().map(|axis| (axis, combiner)).collect();
            sharding.partial.sort();
        }
    }
    (from, to)
}

/// Divides the axes of a dimension of `size` elements; axes by units and by element stay apart.
fn cut_up_dim(dim: &mut DimSharding, cuts: &BTreeSet<(usize, usize)>, size: usize) {
    let extents = dim.extents(size);
    let (in_units, by_element) = dim.by_granularity();
    let (in_units, by_element) = (AxisList::from_slice(in_units), AxisList::from_slice(by_element));
    let layout = |in_units: &[AxisRef], by_element: &[AxisRef]| DimSharding {
        axes: in_units.iter().chain(by_element).copied().collect(),
        unit: dim.unit,
        by_element: by_element.len(),
    };
    let in_units = cut_up(&in_units, cuts, |finer| layout(finer, &by_element).extents(size) == extents);
    let by_element = cut_up(&by_element, cuts, |finer| layout(&in_units, finer).extents(size) == extents);
    *dim = layout(&in_units, &by_element);
}

/// Divides axes at each of `cuts` (an axis and a `pre`) if `harmless` accepts the result.
fn cut_up(
    axes: &[AxisRef],
    cuts: &BTreeSet<(usize, usize)>,
    harmless: impl Fn(&[AxisRef]) -> bool,
) -> AxisList {
    let mut axes = AxisList::from_slice(axes);
    let mut at = 0;
    while at < axes.len() {
        let axis = axes[at];
        let inside = cuts.range((axis.axis, axis.pre + 1)..(axis.axis, axis.end()));
        let cut = inside.filter(|(_, pre)| pre % axis.pre == 0).find_map(|(_, pre)| {
            let (major, minor) = axis.split(pre / axis.pre)?;
            let mut finer = axes.clone();
            finer[at] = major;
            finer.insert(at + 1, minor);
            harmless(&finer).then_some(finer)
        });
        axes = cut.unwrap_or(axes);
        at += 1;
    }
    axes
}

/// Seconds with a total order, for the queue.
#[derive(Clone, Copy, Debug)]
struct Seconds(f64);

impl Ord for Seconds {
    fn cmp(&self, other: &Seconds) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Seconds {
    fn partial_cmp(&self, other: &Seconds) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Seconds {
    fn eq(&self, other: &Seconds) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Seconds {}

struct Search<'a> {
    mesh: &'a Mesh,
    shape: &'a [usize],
    cost: &'a dyn LinkCost,
    target: Sharding,
}

impl Search<'_> {
    /// Dijkstra's algorithm from `from` to the target; `None` if no path takes fewer seconds than
    /// `bound`.
    fn better_than(&self, bound: f64, from: &Sharding) -> Option<Vec<ReshardStep>> {
        let bound = bound * (1.0 - SAME);
        let mut best: BTreeMap<Sharding, f64> = BTreeMap::from([(from.clone(), 0.0)]);
        let mut reached_by: BTreeMap<Sharding, (Sharding, Step)> = BTreeMap::new();
        let mut queue = BinaryHeap::from([Reverse((Seconds(0.0), from.clone()))]);
        let mut expanded = 0;
        while let Some(Reverse((Seconds(cost), state))) = queue.pop() {
            if self.arrived(&state) {
                return Some(walk_back(&reached_by, state));
            }
            if cost > best[&state] {
                continue;
            }
            expanded += 1;
            if expanded > MAX_STATES {
                return None;
            }
            for next in self.moves(&state) {
                let total = cost + self.cost.step_s(&state, &next);
                if total < bound && best.get(&next.after).is_none_or(|&known| total < known) {
                    best.insert(next.after.clone(), total);
                    reached_by.insert(next.after.clone(), (state.clone(), next.step));
                    queue.push(Reverse((Seconds(total), next.after)));
                }
            }
        }
        None
    }

    /// The direct way: combine partial values, gather down to the axes in place, slice.
    fn direct(&self, from: &Sharding) -> Vec<ReshardStep> {
        let mut steps: Vec<ReshardStep> = Vec::new();
        let mut state = from.clone();
        let mut take = |state: &mut Sharding, step: ReshardStep| {
            *state = step.after.clone();
            steps.push(step);
        };
        let unwanted = self.unwanted(&state);
        if !unwanted.is_empty() {
            let step = self.all_reduce(&state, unwanted);
            take(&mut state, step);
        }
        for dim in 0..self.shape.len() {
            let loose = state.dims[dim].axes.len() - self.in_place(&state, dim);
            if loose > 0 {
                let step = self.all_gather(&state, dim, loose);
                take(&mut state, step);
            }
        }
        while let Some(step) = self.free_slice(&state).or_else(|| self.to_partial(&state)) {
            take(&mut state, step);
        }
        debug_assert!(self.arrived(&state), "what is in place stays, and all else is free");
        steps
    }

    fn arrived(&self, state: &Sharding) -> bool {
        state.partial == self.target.partial && self.dims_arrived(state)
    }

    fn dims_arrived(&self, state: &Sharding) -> bool {
        (0..self.shape.len()).all(|dim| {
            let in_place = self.in_place(state, dim);
            in_place == state.dims[dim].axes.len() && in_place == self.target.dims[dim].axes.len()
        })
    }

    /// The number of major axes of a dimension that already match the target and give the same
    /// split.
    fn in_place(&self, state: &Sharding, dim: usize) -> usize {
        let (now, then) = (&state.dims[dim], &self.target.dims[dim]);
        let mut count = now.axes.iter().zip(&then.axes).take_while(|(a, b)| a == b).count();
        let splits_alike = |count| {
            let (now, then) = (now.truncated(count), then.truncated(count));
            now == then || now.extents(self.shape[dim]) == then.extents(self.shape[dim])
        };
        while !splits_alike(count) {
            count -= 1;
        }
        count
    }

    /// The axes of a dimension that are not in place yet, in the target's order.
    fn awaited(&self, state: &Sharding, dim: usize) -> &[AxisRef] {
        &self.target.dims[dim].axes[self.in_place(state, dim)..]
    }

    /// The axes over which partial values must be combined.
    fn unwanted(&self, state: &Sharding) -> AxisList {
        state.partial.iter().filter(|p| !self.target.partial.contains(p)).map(|p| p.0).collect()
    }

    /// The steps to try from this state.
    fn moves(&self, state: &Sharding) -> Vec<ReshardStep> {
        // A slice into place is always taken first: it is local and makes later steps smaller.
        // Waiting could only be cheaper on devices that copy at less than twice the speed of their
        // links.
        if let Some(slice) = self.free_slice(state) {
            return vec![slice];
        }
        let mut moves = Vec::new();
        moves.extend(self.to_partial(state));
        self.all_reduces(state, &mut moves);
        for dim in 0..self.shape.len() {
            self.reduce_scatters(state, dim, &mut moves);
            self.all_to_alls(state, dim, &mut moves);
            let loose = state.dims[dim].axes.len() - self.in_place(state, dim);
            moves.extend((1..=loose).map(|count| self.all_gather(state, dim, count)));
            // A slice with its axes out of order, which a later permute corrects.
            let free: AxisList =
                self.awaited(state, dim).iter().copied().filter(|&a| !state.uses_axis(a)).collect();
            if !free.is_empty() {
                moves.push(self.slice(state, dim, free));
            }
        }
        self.permutes(state, &mut moves);
        moves
    }

    /// A slice that puts unused axes into place.
    fn free_slice(&self, state: &Sharding) -> Option<ReshardStep> {
        (0..self.shape.len()).find_map(|dim| {
            if self.in_place(state, dim) < state.dims[dim].axes.len() {
                return None;
            }
            let awaited = self.awaited(state, dim).iter().copied();
            let axes: AxisList = awaited.take_while(|&axis| !state.uses_axis(axis)).collect();
            (!axes.is_empty()).then(|| self.slice(state, dim, axes))
        })
    }

    /// The last step to a partial target, once all else is done.
    fn to_partial(&self, state: &Sharding) -> Option<ReshardStep> {
        let combiner = self.target.combiner()?;
        let missing = self.target.partial.iter().filter(|p| !state.partial.contains(p));
        let axes: AxisList = missing.map(|p| p.0).collect();
        let ready = !axes.is_empty() && self.unwanted(state).is_empty() && self.dims_arrived(state);
        ready.then(|| {
            let after = state.clone().with_partial(axes.iter().copied(), combiner);
            ReshardStep { step: Step::ToPartial { axes, combiner }, after }
        })
    }

    fn all_reduces(&self, state: &Sharding, moves: &mut Vec<ReshardStep>) {
        let unwanted = self.unwanted(state);
        let scattered = self.target.sharded_axes();
        let homeless: AxisList = unwanted.iter().copied().filter(|axis| !scattered.contains(axis)).collect();
        let singles = unwanted.iter().map(|&axis| AxisList::from_elem(axis, 1));
        let choices: BTreeSet<AxisList> = singles.chain([unwanted.clone(), homeless]).collect();
        moves.extend(choices.into_iter().filter(|c| !c.is_empty()).map(|axes| self.all_reduce(state, axes)));
    }

    /// Reduce-scatters over any run of the missing axes of a dimension that are partial now.
    fn reduce_scatters(&self, state: &Sharding, dim: usize, moves: &mut Vec<ReshardStep>) {
        let Some(combiner) = state.combiner() else { return };
        let (awaited, partial) = (self.awaited(state, dim), state.partial_axes());
        for start in 0..awaited.len() {
            let run = awaited[start..].iter().take_while(|axis| partial.contains(axis)).count();
            for end in start + 1..=start + run {
                let axes = AxisList::from_slice(&awaited[start..end]);
                let after = self.appended(&without_partial(state, &axes), dim, &axes);
                moves.push(ReshardStep { step: Step::ReduceScatter { dim, axes, combiner }, after });
            }
        }
    }

    /// All-to-alls of the minor-most axes of other dimensions that `to_dim` is missing.
    fn all_to_alls(&self, state: &Sharding, to_dim: usize, moves: &mut Vec<ReshardStep>) {
        let awaited = self.awaited(state, to_dim);
        for from_dim in (0..self.shape.len()).filter(|&d| d != to_dim) {
            let held = &state.dims[from_dim].axes;
            for count in 1..=held.len() - self.in_place(state, from_dim) {
                let axes = AxisList::from_slice(&held[held.len() - count..]);
                if awaited.windows(count).any(|run| run == axes.as_slice()) {
                    let after = self.appended(&shortened(state, from_dim, count), to_dim, &axes);
                    moves.push(ReshardStep { step: Step::AllToAll { from_dim, to_dim, axes }, after });
                }
            }
        }
    }

    /// Permutes to layouts nearer to the target, with the same shards on other ranks.
    fn permutes(&self, state: &Sharding, moves: &mut Vec<ReshardStep>) {
        let mut all = state.clone();
        let mut candidates = Vec::new();
        for (dim, now) in state.dims.iter().enumerate() {
            let mut one = state.clone();
            if let Some(there) = self.same_pieces_in_target(state, dim) {
                one.dims[dim] = there.clone();
                candidates.push(one);
                all.dims[dim] = there;
            } else {
                // Move the target's axes of this dimension to the front, in its order; the rest is
                // then minor-most and can leave.
                let wanted = &self.target.dims[dim].axes;
                let (first, rest) = (
                    wanted.iter().filter(|a| now.axes.contains(a)),
                    now.axes.iter().filter(|a| !wanted.contains(a)),
                );
                one.dims[dim].axes = first.chain(rest).copied().collect();
                candidates.push(one);
            }
        }
        let summands = |s: &Sharding| (self.mesh.axes_size(&s.partial_axes()), s.combiner());
        if summands(state) == summands(&self.target) {
            candidates.push(Sharding { partial: self.target.partial.clone(), ..all.clone() });
        }
        candidates.push(all);
        let fitting =
            candidates.into_iter().filter(|after| after != state && self.is_permutation(state, after));
        moves.extend(fitting.map(|after| ReshardStep { step: Step::Permute {}, after }));
    }

    /// The major axes of the target on `dim` that split it into the shards that it has now.
    fn same_pieces_in_target(&self, state: &Sharding, dim: usize) -> Option<DimSharding> {
        let (now, then) = (&state.dims[dim], &self.target.dims[dim]);
        let pieces = self.mesh.axes_size(&now.axes);
        let count = (1..=then.axes.len()).find(|&n| self.mesh.axes_size(&then.axes[..n]) == pieces)?;
        let there = then.truncated(count);
        (now.extents(self.shape[dim]) == there.extents(self.shape[dim])).then_some(there)
    }

    /// Whether the ranks hold the same shards after as before in another order, with unchanged
    /// local shapes.
    fn is_permutation(&self, before: &Sharding, after: &Sharding) -> bool {
        let partial = after.partial_axes();
        let axes: Vec<AxisRef> = after.sharded_axes().iter().chain(&partial).copied().collect();
        let clash = (1..axes.len()).any(|i| axes[..i].iter().any(|earlier| earlier.overlaps(axes[i])));
        !clash
            && (0..self.shape.len()).all(|dim| {
                let (old, new, size) = (&before.dims[dim], &after.dims[dim], self.shape[dim]);
                let extents = old.extents(size);
                let even = extents.iter().all(|e| *e == extents[0]);
                let held = |d: &DimSharding, rank| d.piece(self.mesh, size, rank).1;
                old == new
                    || extents == new.extents(size)
                        && (even
                            || (0..self.mesh.rank_count()).all(|rank| held(old, rank) == held(new, rank)))
            })
    }

    fn slice(&self, state: &Sharding, dim: usize, axes: AxisList) -> ReshardStep {
        let after = self.appended(state, dim, &axes);
        ReshardStep { step: Step::Slice { dim, axes }, after }
    }

    fn all_gather(&self, state: &Sharding, dim: usize, count: usize) -> ReshardStep {
        let held = &state.dims[dim].axes;
        let axes = AxisList::from_slice(&held[held.len() - count..]);
        ReshardStep { step: Step::AllGather { dim, axes }, after: shortened(state, dim, count) }
    }

    fn all_reduce(&self, state: &Sharding, axes: AxisList) -> ReshardStep {
        let combiner = state.combiner().expect("only a partial value is reduced");
        ReshardStep { after: without_partial(state, &axes), step: Step::AllReduce { axes, combiner } }
    }

    /// `state` with `axes` appended as minor-most on `dim`. A dimension whose axes are in place
    /// takes the target's unit. Axes that the target splits by element, and all axes after them,
    /// are appended by element.
    fn appended(&self, state: &Sharding, dim: usize, axes: &[AxisRef]) -> Sharding {
        let mut after = state.clone();
        let (cut, target) = (&mut after.dims[dim], &self.target.dims[dim]);
        if self.in_place(state, dim) == cut.axes.len() {
            *cut = DimSharding { axes: cut.axes.clone(), ..target.truncated(cut.axes.len()) };
            cut.unit = target.unit;
        }
        let (_, by_element) = target.by_granularity();
        let finer = axes.iter().filter(|axis| by_element.contains(axis)).count();
        cut.by_element += if cut.by_element > 0 { axes.len() } else { finer };
        cut.axes.extend_from_slice(axes);
        after
    }
}

/// `state` without the `count` minor-most axes of `dim`.
fn shortened(state: &Sharding, dim: usize, count: usize) -> Sharding {
    let mut after = state.clone();
    after.dims[dim] = state.dims[dim].truncated(state.dims[dim].axes.len() - count);
    after
}

/// `state` with the values combined over `axes`.
fn without_partial(state: &Sharding, axes: &[AxisRef]) -> Sharding {
    let mut after = state.clone();
    after.partial.retain(|(axis, _)| !axes.contains(axis));
    after
}

/// The steps that led to `state`.
fn walk_back(reached_by: &BTreeMap<Sharding, (Sharding, Step)>, mut state: Sharding) -> Vec<ReshardStep> {
    let mut steps = Vec::new();
    while let Some((before, step)) = reached_by.get(&state) {
        steps.push(ReshardStep { step: step.clone(), after: state });
        state = before.clone();
    }
    steps.reverse();
    steps
}
