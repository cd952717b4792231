//! The stage search: the cost table of a published run, brute force, slices and memory.

use partita_pipeline::Order;
use partita_planner::inter::{
    Memory, SliceKind, Stage, StageTable, Submeshes, makespan_s, most_successors, stages, submeshes,
};

const NO: f64 = f64::INFINITY;

/// The costs that Alpa's tutorial on pipelines measured for two layers on eight GPUs, by first layer, last layer and
/// submesh (1, 1), (1, 2), (1, 4), (1, 8).
fn tutorial() -> StageTable {
    let seconds = vec![
        vec![
            vec![0.00349111, 0.00215724, 0.00140956, NO],
            vec![0.00656319, 0.00445792, 0.00305676, 0.00241473],
        ],
        vec![vec![NO; 4], vec![0.00369294, 0.0025937, 0.0019172, NO]],
    ];
    let successors = vec![
        vec![vec![1915, 3774, 4096, -1], vec![752, 1340, 2075, 4096]],
        vec![vec![-1; 4], vec![1608, 2767, 4096, -1]],
    ];
    StageTable::of_costs(vec![1, 2, 4, 8], seconds, successors)
}

#[test]
fn the_tutorials_costs_give_its_stages() {
    let two = vec![
        Stage { first: 0, last: 0, slice: 2, begin: 0 },
        Stage { first: 1, last: 1, slice: 2, begin: 4 },
    ];
    let one = vec![Stage { first: 0, last: 1, slice: 3, begin: 0 }];
    for (microbatches, expected, seconds) in [
        (16, &two, 0.03208476),
        (1, &one, 0.00241473),
        (2, &one, 0.00482946),
        (4, &two, 0.00907836),
        (64, &two, 0.12411036),
    ] {
        let found = &stages(&tutorial(), 8, microbatches)[0];
        assert_eq!(&found.stages, expected, "{microbatches}");
        assert!((found.seconds - seconds).abs() < 1e-9, "{microbatches}: {}", found.seconds);
    }
    let mut full = tutorial();
    full.successors[0][0][2] = 0;
    let found = &stages(&full, 8, 16)[0];
    assert_eq!(found.stages, one);
    assert!((found.seconds - 0.03863568).abs() < 1e-9);
}

#[test]
fn a_timetable_takes_what_its_formula_says() {
    let table = tutorial();
    let found = &stages(&table, 8, 16)[0];
    // In 1F1B, a slower last stage is never idle once it has begun.
    let forward = table.seconds[0][0][2] / 3.0;
    let backward = table.seconds[0][0][2] * 2.0 / 3.0;
    let expected = forward + 16.0 * table.seconds[1][1][2] + backward;
    let step_s = makespan_s(&table, &found.stages, &Order::default(), 16).unwrap();
    assert!((step_s - expected).abs() < 1e-6 * expected, "{step_s} {expected}");
}

/// A number from 1 to 1000 that follows from others.
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (1 + (*state >> 40) % 1000) as f64
}

/// Every division of the layers from `first` on over the devices from `begin` on.
fn divisions(table: &StageTable, first: usize, begin: usize, devices: usize) -> Vec<Vec<Stage>> {
    if first == table.layers {
        return if begin == devices { vec![Vec::new()] } else { Vec::new() };
    }
    let mut all = Vec::new();
    for last in first..table.layers {
        for (slice, kind) in table.slices.iter().enumerate() {
            let may_begin = kind.begins.as_ref().is_none_or(|begins| begins.contains(&begin));
            if may_begin && begin + kind.devices <= devices {
                for rest in divisions(table, last + 1, begin + kind.devices, devices) {
                    all.push([vec![Stage { first, last, slice, begin }], rest].concat());
                }
            }
        }
    }
    all
}

#[test]
fn no_division_is_faster() {
    for seed in 0..60u64 {
        let mut state = seed * 7919 + 1;
        let layers = 2 + seed as usize % 4;
        let sizes = if seed % 2 == 0 { vec![1, 2, 4] } else { vec![1, 2, 3, 6] };
        let devices = [3, 4, 6, 8][seed as usize / 2 % 4];
        let microbatches = [1, 2, 8, 64][seed as usize / 8 % 4];
        let grid = |of: &mut dyn FnMut() -> f64| -> Vec<Vec<Vec<f64>>> {
            (0..layers).map(|_| (0..layers).map(|_| sizes.iter().map(|_| of()).collect()).collect()).collect()
        };
        let seconds = grid(&mut || draw(&mut state));
        let once = grid(&mut || draw(&mut state));
        let room = grid(&mut || draw(&mut state));
        let successors = room
            .iter()
            .map(|r| r.iter().map(|r| r.iter().map(|&r| r as i64 % 5 - 1).collect()).collect())
            .collect();
        // In every other case, links between devices differ, and slices of some kinds have places of their own.
        let has_places = seed % 4 < 2;
        let places = if has_places { devices + 1 } else { 1 };
        let cut = (0..layers).map(|_| (0..places).map(|_| draw(&mut state) / 10.0).collect()).collect();
        let slices = sizes.iter().map(|&size| {
            let begins = (0..devices).filter(|begin| size == 1 || begin % size == 0);
            let begins = has_places.then(|| begins.collect());
            SliceKind { devices: size, begins }
        });
        let table = StageTable { layers, slices: slices.collect(), seconds, successors, once, cut };
        let fits =
            |division: &&Vec<Stage>| {
                division.iter().rev().enumerate().all(|(after, stage)| {
                    table.successors[stage.first][stage.last][stage.slice] >= after as i64
                })
            };
        let all = divisions(&table, 0, 0, devices);
        let least = all.iter().filter(fits).map(|d| table.step_s(d, microbatches)).min_by(f64::total_cmp);
        let found = stages(&table, devices, microbatches);
        assert_eq!(found.first().map(|found| found.seconds.round()), least.map(f64::round), "seed {seed}");
    }
}

/// Nine layers alike on two devices, the second half as fast: it gets half as many layers as the first, wherever it stands.
#[test]
fn a_slow_device_gets_fewer_layers() {
    for (fast, slow) in [(0, 1), (1, 0)] {
        let slices = vec![
            SliceKind { devices: 1, begins: Some(vec![fast]) },
            SliceKind { devices: 1, begins: Some(vec![slow]) },
        ];
        let range = |first: usize, last: usize| (last + 1 - first.min(last)) as f64;
        let seconds =
            (0..9).map(|f| (0..9).map(|l| vec![range(f, l), 2.0 * range(f, l)]).collect()).collect();
        let successors = vec![vec![vec![4096; 2]; 9]; 9];
        let once = vec![vec![vec![0.0; 2]; 9]; 9];
        let table = StageTable { layers: 9, slices, seconds, successors, once, cut: vec![vec![0.0]; 9] };
        let found = &stages(&table, 2, 8)[0];
        let layers: Vec<(usize, usize)> =
            found.stages.iter().map(|stage| (stage.slice, stage.last + 1 - stage.first)).collect();
        let expected = if fast == 0 { vec![(0, 6), (1, 3)] } else { vec![(1, 3), (0, 6)] };
        assert_eq!(layers, expected);
        assert_eq!(found.seconds, 12.0 + 7.0 * 6.0);
    }
}

/// The table of Alpa's test of its two dynamic programs: 4 or 8 layers, 1 or 4 nodes of 1 or 4 devices, 1, 16 or 512
/// microbatches, with costs from two seeds.
#[test]
fn the_instances_of_alpas_test_have_their_optimum() {
    let mut instances = 0;
    for (layers, nodes, of_node) in
        [(4, 1, 1), (4, 1, 4), (4, 4, 1), (4, 4, 4), (8, 1, 1), (8, 1, 4), (8, 4, 1), (8, 4, 4)]
    {
        let sizes: Vec<usize> =
            submeshes(nodes, of_node, Submeshes::All).unwrap().into_iter().map(|(n, d)| n * d).collect();
        for (microbatches, seed) in [(1, 0), (1, 1), (16, 0), (16, 1), (512, 0), (512, 1)] {
            let mut state = seed + 2 * layers as u64 + 32 * nodes as u64 + 256 * of_node as u64;
            let seconds: Vec<Vec<Vec<f64>>> = (0..layers)
                .map(|_| (0..layers).map(|_| sizes.iter().map(|_| draw(&mut state)).collect()).collect())
                .collect();
            let successors = vec![vec![vec![4096; sizes.len()]; layers]; layers];
            let table = StageTable::of_costs(sizes.clone(), seconds, successors);
            let all = divisions(&table, 0, 0, nodes * of_node);
            let least = all.iter().map(|d| table.step_s(d, microbatches)).min_by(f64::total_cmp).unwrap();
            let found = stages(&table, nodes * of_node, microbatches);
            let seconds = found.first().map(|found| found.seconds);
            let what = format!("{layers} layers, {nodes} x {of_node} devices, {microbatches} microbatches");
            assert!(
                seconds.is_some_and(|seconds| (seconds - least).abs() < 1e-9 * least),
                "{what}: {seconds:?} {least}"
            );
            instances += 1;
        }
    }
    assert_eq!(instances, 48);
}

#[test]
fn slices_are_parts_of_a_node_or_whole_nodes() {
    let of = |nodes, devices, kinds| submeshes(nodes, devices, kinds).unwrap();
    assert_eq!(of(1, 8, Submeshes::All), [(1, 1), (1, 2), (1, 4), (1, 8)]);
    assert_eq!(of(4, 8, Submeshes::PowerOfTwo), [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)]);
    assert_eq!(of(8, 8, Submeshes::SmallPowerOfTwo), [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)]);
    assert_eq!(of(3, 4, Submeshes::All), [(1, 1), (1, 2), (1, 4), (2, 4), (3, 4)]);
    assert_eq!(of(2, 6, Submeshes::All), [(1, 1), (1, 2), (1, 4), (1, 6), (2, 6)]);
    assert_eq!(of(1, 3, Submeshes::Every), [(1, 1), (1, 2), (1, 3)]);
    assert_eq!(submeshes(0, 8, Submeshes::All).unwrap_err().code, "E523");
}

#[test]
fn saved_activations_limit_the_stages_that_follow() {
    let (gib, mib) = (f64::from(1 << 30), f64::from(1 << 20));
    // The sizes are printed to three places in the published run, so the counts are near, not equal.
    for (peak, initial, intermediate, expected) in [
        (0.194, 0.125, 5.0, 2075),
        (0.194, 0.125, 2.75, 3774),
        (0.383, 0.250, 7.5, 1340),
        (0.194, 0.125, 3.75, 2767),
        (0.763, 0.5, 12.5, 752),
        (0.383, 0.25, 6.25, 1608),
    ] {
        let memory = Memory {
            available: 10.457 * gib,
            peak: peak * gib,
            initial: initial * gib,
            intermediate: intermediate * mib,
        };
        let found = most_successors(&memory);
        assert!((found - expected).abs() <= 1 + expected / 500, "{found} instead of {expected}");
    }
    let tiny = Memory { available: 10.0 * gib, intermediate: 1.0, ..Memory::default() };
    assert_eq!(most_successors(&tiny), 4096);
    assert_eq!(most_successors(&Memory { available: gib, peak: 2.0 * gib, ..tiny }), -1);
}
