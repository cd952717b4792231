//! Properties of prices: a path costs the sum of its steps, more work never costs less, and the
//! search finds a path as cheap as an exhaustive search does.

use partita_base::DType;
use partita_cost::{Algorithm, Cluster, Collective, Curve, Level, Link, Ring, Work};
use partita_mesh::{AxisList, AxisRef, Combiner, LinkCost, Mesh, ReshardStep, Sharding, Step};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SUM: Combiner = Combiner::Sum;

/// Three axes of two ranks.
fn mesh() -> Mesh {
    Mesh::new("m", &[("x", 2), ("y", 2), ("z", 2)])
}

/// Every layout of a matrix over these axes, each used as a whole.
fn layouts(mesh: &Mesh) -> Vec<Sharding> {
    let mut all = vec![Sharding::replicated(2)];
    for axis in (0..mesh.axes.len()).map(|axis| mesh.full_axis(axis)) {
        let mut next = Vec::new();
        for layout in all {
            next.push(layout.clone().with_partial([axis], SUM));
            for dim in 0..2 {
                for place in 0..=layout.dims[dim].axes.len() {
                    let mut with = layout.clone();
                    with.dims[dim].axes.insert(place, axis);
                    next.push(with);
                }
            }
            next.push(layout);
        }
        all = next;
    }
    all
}

/// The nonempty lists of some of `axes`, in every order.
fn lists(axes: &[AxisRef]) -> Vec<AxisList> {
    let mut all = vec![AxisList::new()];
    let mut found = Vec::new();
    for _ in axes {
        let longer = |list: &AxisList| {
            let free: Vec<_> = axes.iter().filter(|axis| !list.contains(axis)).copied().collect();
            let list = list.clone();
            free.into_iter().map(move |axis| list.iter().copied().chain([axis]).collect::<AxisList>())
        };
        all = all.iter().flat_map(longer).collect();
        found.extend(all.iter().cloned());
    }
    found
}

/// Every single step from a layout over axes of two ranks, to any layout.
fn steps_from(mesh: &Mesh, all: &[Sharding], from: &Sharding) -> Vec<ReshardStep> {
    let whole: Vec<_> = (0..mesh.axes.len()).map(|axis| mesh.full_axis(axis)).collect();
    let unused: Vec<_> = whole.iter().filter(|axis| !from.uses_axis(**axis)).copied().collect();
    let partial = from.partial_axes();
    let mut steps = Vec::new();
    let mut push = |step: Step, after: Sharding| steps.push(ReshardStep { step, after });
    let without = |axes: &AxisList| {
        let mut after = from.clone();
        after.partial.retain(|(axis, _)| !axes.contains(axis));
        after
    };
    for axes in lists(&unused) {
        let after = from.clone().with_partial(axes.iter().copied(), SUM);
        push(Step::ToPartial { axes: axes.clone(), combiner: SUM }, after);
        for dim in 0..2 {
            let mut after = from.clone();
            after.dims[dim].axes.extend(axes.iter().copied());
            push(Step::Slice { dim, axes: axes.clone() }, after);
        }
    }
    for axes in lists(&partial) {
        push(Step::AllReduce { axes: axes.clone(), combiner: SUM }, without(&axes));
        for dim in 0..2 {
            let mut after = without(&axes);
            after.dims[dim].axes.extend(axes.iter().copied());
            push(Step::ReduceScatter { dim, axes: axes.clone(), combiner: SUM }, after);
        }
    }
    for dim in 0..2 {
        let held = &from.dims[dim].axes;
        for start in 0..held.len() {
            let axes = AxisList::from_slice(&held[start..]);
            let mut after = from.clone();
            after.dims[dim].axes.truncate(start);
            push(Step::AllGather { dim, axes: axes.clone() }, after.clone());
            after.dims[1 - dim].axes.extend(axes.iter().copied());
            push(Step::AllToAll { from_dim: dim, to_dim: 1 - dim, axes }, after);
        }
    }
    let pieces = |s: &Sharding| (s.dims[0].axes.len(), s.dims[1].axes.len(), s.partial.len());
    let alike = |s: &&Sharding| *s != from && pieces(s) == pieces(from);
    for after in all.iter().filter(alike) {
        push(Step::Permute {}, after.clone());
    }
    steps
}

/// Layouts that differ only in the order of partial axes are equal.
fn key(mut layout: Sharding) -> Sharding {
    layout.partial.sort();
    layout
}

/// Whether a step puts no axis where the target does not want it.
fn is_no_detour(before: &Sharding, after: &Sharding, target: &Sharding) -> bool {
    let within = |now: &[AxisRef], old: &[AxisRef], then: &[AxisRef]| {
        now.iter().all(|axis| old.contains(axis) || then.contains(axis))
    };
    let dims = (0..2).all(|d| within(&after.dims[d].axes, &before.dims[d].axes, &target.dims[d].axes));
    dims && within(&after.partial_axes(), &before.partial_axes(), &target.partial_axes())
}

/// The seconds of the cheapest path between two layouts and a description of its steps, by relaxing
/// all steps until nothing changes.
fn cheapest(
    mesh: &Mesh,
    all: &[Sharding],
    (from, to): (&Sharding, &Sharding),
    cost: &dyn LinkCost,
    detours: bool,
) -> (f64, String) {
    let mut best = BTreeMap::from([(key(from.clone()), (0.0, String::new()))]);
    loop {
        let mut changed = false;
        for (layout, (seconds, told)) in best.clone() {
            for step in steps_from(mesh, all, &layout) {
                let total = seconds + cost.step_s(&layout, &step);
                let after = key(step.after);
                if !detours && !is_no_detour(&layout, &after, to) {
                    continue;
                }
                if best.get(&after).is_none_or(|(known, _)| total < known * (1.0 - 1e-12)) {
                    let told = format!("{told}, {:?} to {}", step.step, after.display(mesh));
                    best.insert(after, (total, told));
                    changed = true;
                }
            }
        }
        if !changed {
            return best[&key(to.clone())].clone();
        }
    }
}

/// A cluster of one level, whose devices copy at several times the speed of their links.
fn cluster(latency_s: f64, bytes_per_s: f64, algorithm: Algorithm) -> Cluster {
    let levels = vec![Level { ranks: None, link: Link { latency_s, bytes_per_s, algorithm }, links: None }];
    let mut cluster = Cluster { levels, ..Cluster::default() };
    cluster.device.memory_bytes_per_s = 2.5 * bytes_per_s;
    cluster
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_search_finds_the_cheapest_path(
        (from, to) in any::<(prop::sample::Index, prop::sample::Index)>(),
        (rows, columns) in (3u32..12, 3u32..12),
        (latency, bandwidth) in (0i32..3, 8i32..12),
        tree in any::<bool>(),
    ) {
        let mesh = Mesh::new("m", &[("x", 2), ("y", 2)]);
        let all = layouts(&mesh);
        // A value becomes partial last, by a local copy.
        let whole: Vec<&Sharding> = all.iter().filter(|layout| !layout.is_partial()).collect();
        let (from, to) = (&all[from.index(all.len())], whole[to.index(whole.len())]);
        let shape = [1 << rows, 1 << columns];
        let algorithm = if tree { Algorithm::Tree } else { Algorithm::Ring };
        let cluster = cluster(1e-6 * 10f64.powi(latency), 10f64.powi(bandwidth), algorithm);
        let cost = cluster.reshard_cost(&mesh, &shape, 4);
        let found_s = cost.reshard_s(from, to);
        let (best_s, told) = cheapest(&mesh, &all, (from, to), &cost, false);
        let ways: Vec<String> = cost.steps(from, to).iter().map(|s| s.after.display(&mesh)).collect();
        prop_assert!(
            found_s <= best_s * (1.0 + 1e-9),
            "{} to {}: {found_s} s by {ways:?}, {best_s} s by {told}",
            from.display(&mesh), to.display(&mesh),
        );
        let (bound_s, told) = cheapest(&mesh, &all, (from, to), &cost, true);
        prop_assert!(
            found_s >= bound_s * (1.0 - 1e-9),
            "{} to {}: {found_s} s by {ways:?}, no less than {bound_s} s by {told}",
            from.display(&mesh), to.display(&mesh),
        );
    }
}

proptest! {
    #[test]
    fn a_path_costs_its_steps_and_more_bytes_never_cost_less(
        (from, to) in any::<(prop::sample::Index, prop::sample::Index)>(),
        (rows, columns, more) in (1usize..40, 1usize..40, 0usize..40),
        ranks in 1usize..9,
    ) {
        let mesh = mesh();
        let all = layouts(&mesh);
        let (from, to) = (&all[from.index(all.len())], &all[to.index(all.len())]);
        let link = |latency_s, bytes_per_s| Link { latency_s, bytes_per_s, algorithm: Algorithm::Ring };
        let levels = vec![
            Level { ranks: Some(ranks), link: link(1e-6, 1e10), links: None },
            Level { ranks: None, link: link(1e-5, 1e9), links: None },
        ];
        let cluster = Cluster { levels, ..Cluster::default() };
        let (shape, taller) = ([8 * rows, 8 * columns], [8 * (rows + more), 8 * columns]);
        let cost = cluster.reshard_cost(&mesh, &shape, 4);
        let mut total_s = 0.0;
        let mut before = from.clone();
        for step in cost.steps(from, to) {
            total_s += cost.step_s(&before, &step);
            before = step.after;
        }
        prop_assert_eq!(cost.reshard_s(from, to), total_s);
        prop_assert!(
            from.same_layout(to, &mesh, &shape) || total_s > 0.0,
            "{} to {} takes nothing",
            from.display(&mesh), to.display(&mesh),
        );
        let larger = cluster.reshard_cost(&mesh, &taller, 4);
        prop_assert!(larger.reshard_s(from, to) >= total_s * (1.0 - 1e-9));
        let wider = cluster.reshard_cost(&mesh, &shape, 8);
        prop_assert!(wider.reshard_s(from, to) >= total_s * (1.0 - 1e-9));
    }

    #[test]
    fn more_bytes_or_slower_links_never_make_a_collective_cheaper(
        rings in prop::collection::vec((1usize..20, 0.0f64..1.0, 1.0f64..100.0, any::<bool>()), 0..3),
        (bytes, more) in (0.0f64..1e6, 0.0f64..1e6),
    ) {
        let ring = |slower: f64| rings.iter().map(|&(ranks, latency_s, bytes_per_s, tree)| {
            let algorithm = if tree { Algorithm::Tree } else { Algorithm::Ring };
            Ring { level: 0, ranks, link: Link { latency_s: latency_s * slower, bytes_per_s: bytes_per_s / slower, algorithm } }
        }).collect::<Vec<Ring>>();
        for kind in Collective::ALL {
            let seconds = kind.seconds(bytes, &ring(1.0));
            prop_assert!(kind.seconds(bytes + more, &ring(1.0)) >= seconds);
            prop_assert!(kind.seconds(bytes, &ring(2.0)) >= seconds);
        }
    }

    #[test]
    fn more_work_never_takes_less_time(
        points in prop::collection::vec((1.0f64..1e3, 0.0f64..1.0), 0..5),
        (flops, bytes, more) in (0.0f64..1e9, 0.0f64..1e9, 1.0f64..10.0),
        overlap in 0.0f64..=1.0,
    ) {
        // Sizes that ascend, and efficiencies that rise by a part of what they may.
        let (mut size, mut efficiency) = (1.0, 1e-6);
        let points = points.into_iter().map(|(factor, share)| {
            size *= factor;
            efficiency = f64::min(efficiency * factor.powf(share), 1.0);
            size *= 1.0 + 1e-9;
            (size, efficiency)
        });
        let mut device = Cluster::default().device;
        device.overlap = overlap;
        device.flops_efficiency = Curve::new(points.collect()).unwrap();
        device.memory_efficiency = device.flops_efficiency.clone();
        let work = Work { flops, bytes, dtype: DType::F32 };
        let seconds = device.op_s(&work);
        for work in [Work { flops: flops * more, ..work }, Work { bytes: bytes * more, ..work }] {
            prop_assert!(device.op_s(&work) >= seconds * (1.0 - 1e-12));
        }
    }
}
