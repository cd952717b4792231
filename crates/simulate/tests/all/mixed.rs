//! Ranks on devices of several kinds, against sums by hand.

use super::{built, free_links, lowered, mlp, predicted};
use partita_cost::{Cluster, Device, Fill, Others};
use partita_program::{Action, Program};
use partita_simulate::work;

/// Links that cost nothing; the ranks from `first` on have a device that is as many times slower, with fewer bytes.
fn mixed(first: usize, times: f64, memory_bytes: u64) -> Cluster {
    let all = free_links();
    let own = &all.device;
    let device = Device {
        kind: "slow".to_string(),
        flops_per_s: own.flops_per_s / times,
        memory_bytes_per_s: own.memory_bytes_per_s / times,
        memory_bytes,
        ..own.clone()
    };
    Cluster { others: vec![Others { first, device, links: Vec::new() }], ..all }
}

/// Seconds of all instructions of a program on a device.
fn sum_s(program: &Program, device: &Device) -> f64 {
    let seconds = |action: &Action| match action {
        Action::Compute(compute) => device.op_s(&work(program, compute)),
        _ => 0.0,
    };
    program.instructions.iter().map(|instruction| seconds(&instruction.action)).sum()
}

#[test]
fn the_fast_rank_waits_for_the_slow_one() {
    let set = lowered(&built(&mlp(3, 16, 8).unwrap(), "dp=2", 1, "1f1b"));
    assert_eq!(set.programs.len(), 1);
    let cluster = mixed(1, 3.0, 1 << 30);
    let simulation = predicted(&set, &cluster);
    let [fast, slow] = &simulation.classes[..] else { panic!("one class for each kind of device") };
    assert_eq!((&fast.ranks[..], &slow.ranks[..]), (&[0][..], &[1][..]));
    assert_eq!((fast.program, slow.program), (0, 0));
    for (class, rank) in [(fast, 0), (slow, 1)] {
        let expected_s = sum_s(&set.programs[0], cluster.device_of(rank));
        assert!((class.compute_s - expected_s).abs() < 1e-12, "{rank}: {} {expected_s}", class.compute_s);
    }
    assert!((slow.compute_s - 3.0 * fast.compute_s).abs() < 1e-12);
    // The slow rank never waits, and the step takes what it takes.
    assert!(slow.waiting_s < 1e-12);
    assert!((simulation.step_s - slow.compute_s).abs() < 1e-12);
    // The fast rank goes on when the slow one starts the last collective for which it waits.
    let program = &set.programs[0];
    let before_s = |end: usize, device: &Device| {
        let instructions = program.instructions[..end].to_vec();
        sum_s(&Program { instructions, ..program.clone() }, device)
    };
    let actions = || program.instructions.iter().map(|instruction| &instruction.action);
    let wait = actions().collect::<Vec<_>>().iter().rposition(|action| matches!(action, Action::Wait(_)));
    let wait = wait.expect("data parallel ranks exchange gradients");
    let Action::Wait(last) = program.instructions[wait].action else { unreachable!() };
    let is_start = |action: &Action| matches!(action, Action::Start(start) if start.collective == last);
    let start = actions().position(is_start).unwrap();
    let expected_s = before_s(start, &cluster.others[0].device) - before_s(wait, &cluster.device);
    assert!((fast.waiting_s - expected_s).abs() < 1e-12, "{} {expected_s}", fast.waiting_s);
    // A trace has a track for both, and another one for the collectives of each.
    assert_eq!(simulation.trace(&set).tracks.len(), 4);
}

#[test]
fn the_rank_with_the_least_room_decides_whether_a_step_fits() {
    let set = lowered(&built(&mlp(4, 16, 8).unwrap(), "pp=2", 2, "1f1b"));
    let bytes: Vec<u64> = set.programs.iter().map(|program| program.arena_bytes as u64).collect();
    // The second slice has as many bytes as its device, or one less.
    for (less, fits) in [(0, true), (1, false)] {
        let simulation = predicted(&set, &mixed(1, 1.0, bytes[1] - less));
        assert_eq!(simulation.fullest(), Fill::new(bytes[1], bytes[1] - less));
        assert_eq!(simulation.fullest().fits(), fits);
    }
    // With enough of them the first one is the fullest.
    let simulation = predicted(&set, &mixed(1, 1.0, 1 << 60));
    assert_eq!(simulation.fullest(), Fill::new(bytes[0], Cluster::default().device.memory_bytes));
}

#[test]
fn two_equal_kinds_are_as_one() {
    for mesh in ["dp=4", "fsdp=4", "dp=2,tp=2", "pp=2,dp=2", "fsdp=2,tp=2"] {
        let set = lowered(&built(&mlp(4, 10, 8).unwrap(), mesh, 1, "1f1b"));
        let base = Cluster { cores: None, ..Cluster::default() };
        let device = Device { kind: "the same".to_string(), ..base.device.clone() };
        let two = Cluster { others: vec![Others { first: 2, device, links: Vec::new() }], ..base.clone() };
        let (one, two) = (predicted(&set, &base), predicted(&set, &two));
        assert_eq!(one.step_s, two.step_s, "{mesh}");
        let of_ranks = |simulation: &partita_simulate::Simulation| {
            let class_of = simulation.class_of_ranks();
            let figures = |&class: &usize| {
                let class = &simulation.classes[class];
                (class.end_s, class.compute_s, class.waiting_s, class.memory.clone())
            };
            class_of.iter().map(figures).collect::<Vec<_>>()
        };
        // The slowest class stands for the ranks of a program: with two kinds, for those of each.
        let slowest = |of: &[(f64, f64, f64, _)]| of.iter().map(|figures| figures.0).fold(0.0, f64::max);
        assert_eq!(slowest(&of_ranks(&one)), slowest(&of_ranks(&two)), "{mesh}");
    }
}

#[test]
fn each_slice_of_a_pipeline_runs_on_its_own_devices() {
    let set = lowered(&built(&mlp(4, 16, 8).unwrap(), "pp=2", 4, "1f1b"));
    let cluster = mixed(1, 2.0, 1 << 30);
    let simulation = predicted(&set, &cluster);
    for (rank, class) in simulation.classes.iter().enumerate() {
        let expected_s = sum_s(&set.programs[rank], cluster.device_of(rank));
        assert!((class.compute_s - expected_s).abs() < 1e-12, "{rank}");
    }
    // The other way round, the first slice is the slow one.
    let turned = Cluster {
        device: cluster.others[0].device.clone(),
        others: vec![Others { first: 1, device: cluster.device.clone(), links: Vec::new() }],
        ..cluster.clone()
    };
    let turned = predicted(&set, &turned);
    assert!((turned.classes[0].compute_s - 2.0 * simulation.classes[0].compute_s).abs() < 1e-12);
}
