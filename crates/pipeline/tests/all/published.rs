//! The figures that papers, their schedulers and PyTorch's pipelining give for the named timetables.

use partita_pipeline::timetables::{self, Named};
use partita_pipeline::{Task, TaskKind, Times, Timetable};

const SLICES: [usize; 3] = [2, 4, 8];

fn times(timetable: &Timetable) -> Times {
    timetable.times(|task| task.kind.slots()).unwrap_or_else(|error| panic!("{error}"))
}

/// The makespan, less the slots in which each slice works.
fn bubble(timetable: &Timetable) -> usize {
    let times = times(timetable);
    assert!(times.work.iter().all(|work| *work == times.work[0]), "all slices have the same work");
    times.bubble()
}

/// The longest time that a slice waits once it has begun.
fn idle(timetable: &Timetable) -> usize {
    let times = times(timetable);
    (0..timetable.slices.len()).map(|slice| times.idle(slice)).max().unwrap()
}

fn peaks(timetable: &Timetable) -> Vec<usize> {
    (0..timetable.slices.len()).map(|slice| timetable.peak(slice)).collect()
}

/// A timetable with the costs F, I and W: its bubble.
fn bubble_at(timetable: &Timetable, [forward, input, weight]: [usize; 3]) -> usize {
    let duration = |task: Task| match task.kind {
        TaskKind::Forward => forward,
        TaskKind::InputGrad => input,
        TaskKind::WeightGrad => weight,
        TaskKind::Backward => input + weight,
    };
    timetable.times(duration).unwrap().bubble()
}

#[test]
fn forward_only_fills_and_drains_once() {
    for p in SLICES {
        for m in 1..3 * p {
            let timetable = timetables::inference(p, m);
            assert!(!timetable.trains());
            assert_eq!(times(&timetable).makespan(), m + p - 1);
            assert_eq!(peaks(&timetable), vec![1; p]);
        }
    }
}

#[test]
fn gpipe_and_looped_bfs() {
    for p in SLICES {
        for m in p..=4 * p {
            assert_eq!(bubble(&timetables::gpipe(p, m)), 3 * (p - 1));
            assert_eq!(peaks(&timetables::gpipe(p, m)), vec![m; p]);
            for v in 2..=4 {
                assert_eq!(bubble(&timetables::looped_bfs(p, v, m)), 3 * (p - 1), "{p} {v} {m}");
                assert_eq!(peaks(&timetables::looped_bfs(p, v, m)), vec![v * m; p]);
            }
        }
    }
}

#[test]
fn one_forward_one_backward() {
    for p in SLICES {
        for m in 1..=4 * p {
            let timetable = timetables::one_f_one_b(p, m);
            assert_eq!(times(&timetable).makespan(), 3 * (m + p - 1));
            assert_eq!(peaks(&timetable), (0..p).map(|r| m.min(p - r)).collect::<Vec<_>>());
        }
    }
}

#[test]
fn interleaved_one_forward_one_backward() {
    for p in SLICES {
        for v in 2..=4 {
            for m in (1..=4).map(|n| n * p) {
                let timetable = timetables::interleaved_1f1b(p, v, m);
                assert_eq!(times(&timetable).makespan(), 3 * v * m + 3 * (p - 1), "{p} {v} {m}");
                let peak = |r| (v * m).min((v - 1) * p + 2 * (p - 1 - r) + 1);
                assert_eq!(peaks(&timetable), (0..p).map(peak).collect::<Vec<_>>());

                let timetable = timetables::interleaved_zero_bubble(p, v, m);
                assert_eq!(times(&timetable).makespan(), 3 * v * m + p - 1, "{p} {v} {m}");
                assert_eq!(peaks(&timetable), vec![v * m.min(p); p]);
            }
        }
    }
}

#[test]
fn zero_bubble_h1() {
    for p in SLICES {
        for m in p..=4 * p {
            let timetable = timetables::zb_h1(p, m);
            assert_eq!(bubble(&timetable), p - 1);
            assert_eq!(peaks(&timetable), vec![p; p]);
        }
        assert_eq!(bubble(&timetables::zb_h1(p, 1)), 2 * (p - 1));
    }
    // (p - 1) (F + I - W), as the authors' scheduler finds.
    for (p, bubble) in [(4, 39), (8, 91)] {
        for m in p..=4 * p {
            assert_eq!(bubble_at(&timetables::zb_h1(p, m), [10, 11, 8]), bubble, "{p} {m}");
        }
    }
}

#[test]
fn zero_bubble_h2() {
    for p in SLICES {
        for m in 2 * p - 1..=4 * p {
            let timetable = timetables::zb_h2(p, m);
            assert_eq!(times(&timetable).makespan(), 3 * m + p - 1);
            assert_eq!(idle(&timetable), 0);
            assert_eq!(peaks(&timetable), vec![2 * p - 1; p]);
        }
    }
}

#[test]
fn zero_bubble_v() {
    for p in SLICES {
        for m in 2 * p..=4 * p {
            let timetable = timetables::zbv(p, m);
            assert_eq!(times(&timetable).makespan(), 6 * m + p - 1);
            assert_eq!(idle(&timetable), 0);
            assert_eq!(peaks(&timetable), vec![2 * p; p]);
        }
        assert_eq!(times(&timetables::zbv(p, p)).makespan(), 6 * p + 2 * (p - 1));
    }
    assert_eq!(
        timetables::zbv(2, 4).to_csv().lines().next().unwrap(),
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,0W1,3F3,3I3,3W3,0I2,0W2,0I3,0W3"
    );
}

#[test]
fn v_half_and_v_min() {
    for p in 2usize..=9 {
        let half = if p == 2 { 1 } else { 6 * p.div_ceil(2) - 7 };
        for m in 2 * p..=4 * p {
            let timetable = timetables::v_half(p, m);
            assert_eq!(bubble(&timetable), half, "{p} {m}");
            assert!(idle(&timetable) <= half);
            assert_eq!(*peaks(&timetable).iter().max().unwrap(), (p + 2) / 2 * 2);
        }
        let min = if p % 3 == 0 { 4 * p - 7 } else { 4 * p - 5 };
        for m in p..=4 * p {
            let timetable = timetables::v_min(p, m);
            assert_eq!((bubble(&timetable), idle(&timetable)), (min, min), "{p} {m}");
            assert_eq!(*peaks(&timetable).iter().max().unwrap(), (p + 4) / 3 * 2);
        }
    }
    assert_eq!(bubble_at(&timetables::v_min(4, 16), [2, 3, 1]), 119);
}

#[test]
fn dual_pipe_v() {
    for p in SLICES {
        for m in 2 * p..=4 * p {
            // (p - 1) (F&B + B - 3 W), with F&B = F + B.
            let mut timetable = timetables::dualpipev(p, m);
            assert_eq!(times(&timetable).makespan(), 6 * m + 2 * (p - 1));
            assert_eq!(*peaks(&timetable).iter().max().unwrap(), 2 * p + 1);
            assert_eq!(bubble_at(&timetable, [2, 2, 1]), (p - 1) * (5 + 3 - 3));
            // One after the other, both halves of a pair are done sooner.
            timetable.overlapped.clear();
            assert_eq!(times(&timetable).makespan(), 6 * m + p - 1);
        }
    }
}

/// What no slice may hold more of.
fn cap(name: &str, p: usize, m: usize, r: usize) -> usize {
    match name {
        "inference" => 1,
        "1f1b" => m.min(p - r),
        "gpipe" => m,
        "looped-bfs" => 2 * m,
        "interleaved-1f1b" => (2 * m).min(p + 2 * (p - 1 - r) + 1),
        "interleaved-zero-bubble" => 2 * m.min(p),
        "zb-h1" => m.min(p),
        "zb-h2" => m.min(2 * p - 1),
        "zbv" => 2 * m.min(p),
        "v-half" => (2 * m).min((p + 2) / 2 * 2),
        "v-min" => (2 * m).min((p + 4) / 3 * 2),
        "dualpipev" => (2 * m).min(2 * p + 1),
        other => panic!("no cap is known for {other}"),
    }
}

#[test]
fn any_number_of_microbatches_keeps_the_cap_and_is_no_slower_than_1f1b() {
    for named in timetables::ALL {
        for p in 1..=8 {
            for m in 1..=4 * p + 3 {
                let timetable = (named.make)(p, m);
                let context = format!("{} of {p} slices and {m} microbatches", named.name);
                assert_eq!((timetable.stages, timetable.microbatches), (named.chunks * p, m), "{context}");
                for (stage, slice) in timetable.slice_of_stage().into_iter().enumerate() {
                    assert_eq!(slice, named.placement.slice(stage, p), "{context}");
                    let chunk = timetable.chunk_of_stage()[stage];
                    assert_eq!(named.placement.stage(slice, chunk, p), stage, "{context}");
                }
                // The stages of 1F1B are as large as all stages of a slice together.
                let longest = 3 * named.chunks * (m + p - 1);
                let makespan = times(&timetable).makespan();
                assert!(makespan <= longest, "{context}: {makespan} slots, {longest} of 1f1b");
                for (r, peak) in peaks(&timetable).into_iter().enumerate() {
                    assert!(peak <= cap(named.name, p, m, r), "{context}: slice {r} holds {peak}");
                }
            }
        }
    }
}

#[test]
fn more_stages_on_a_slice_take_any_number_of_microbatches() {
    for v in 1..=4 {
        for p in 1..=6 {
            for m in 1..=3 * p + 2 {
                for timetable in [
                    timetables::looped_bfs(p, v, m),
                    timetables::interleaved_1f1b(p, v, m),
                    timetables::interleaved_zero_bubble(p, v, m),
                ] {
                    assert!(times(&timetable).makespan() <= 3 * v * (m + p - 1), "{p} {v} {m}");
                }
                for (r, peak) in peaks(&timetables::interleaved_1f1b(p, v, m)).into_iter().enumerate() {
                    assert!(peak <= (v * m).min((v - 1) * p + 2 * (p - 1 - r) + 1), "{p} {v} {m}");
                }
            }
        }
    }
}

#[test]
fn no_slices_and_no_microbatches_are_empty_timetables() {
    for named in timetables::ALL {
        for (p, m) in [(0, 0), (0, 3), (3, 0)] {
            let timetable = (named.make)(p, m);
            assert_eq!(timetable.slices, vec![Vec::<Task>::new(); p], "{}", named.name);
            assert_eq!(times(&timetable).makespan(), 0);
        }
    }
}

#[test]
fn names_of_pytorch_are_known_in_any_case() {
    let name_of = |name: &str| timetables::find(name).map(|Named { name, .. }| *name);
    for (theirs, ours) in [
        ("1F1B", "1f1b"),
        ("Interleaved1F1B", "interleaved-1f1b"),
        ("GPipe", "gpipe"),
        ("LoopedBFS", "looped-bfs"),
        ("InterleavedZeroBubble", "interleaved-zero-bubble"),
        ("ZBVZeroBubble", "zbv"),
        ("zbvzerobubble", "zbv"),
        ("DualPipeV", "dualpipev"),
        ("ZB-H1", "zb-h1"),
        ("ZB1P", "zb-h1"),
        ("zb_h2", "zb-h2"),
    ] {
        assert_eq!(name_of(theirs).unwrap(), ours);
    }
    for wrong in ["", "-", "zb", "1f1bb"] {
        assert_eq!(name_of(wrong).unwrap_err().code, "E462", "`{wrong}`");
    }
}

/// Where each task is in the order of its slice.
fn place(timetable: &Timetable, slice: usize, kind: TaskKind, microbatch: usize) -> Option<usize> {
    timetable.slices[slice].iter().position(|task| task.kind == kind && task.microbatch == microbatch)
}

/// Tasks of one slice, each before the next one; those of microbatches that there are not are left out.
fn in_order(timetable: &Timetable, slice: usize, tasks: &[(TaskKind, usize)]) -> bool {
    let places: Vec<usize> =
        tasks.iter().filter_map(|&(kind, microbatch)| place(timetable, slice, kind, microbatch)).collect();
    places.is_sorted_by(|a, b| a < b)
}

#[test]
fn orders_obey_the_laws_of_shardy() {
    use TaskKind::{Backward, Forward, InputGrad, WeightGrad};
    for n in 1..=8 {
        for m in 1..=3 * n {
            let (plain, h1, h2) =
                (timetables::one_f_one_b(n, m), timetables::zb_h1(n, m), timetables::zb_h2(n, m));
            for k in 0..n {
                let warm = |k: usize| 2 * (n - k) - 1;
                for i in 0..m {
                    let of_1f1b = |kind| [(Forward, i + n - k - 1), (kind, i), (Forward, i + n - k)];
                    assert!(in_order(&plain, k, &of_1f1b(Backward)), "{n} {m} {k} {i}");
                    assert!(in_order(&h1, k, &of_1f1b(InputGrad)), "{n} {m} {k} {i}");
                    assert!(in_order(&h1, k, &[(WeightGrad, i), (Forward, i + n)]), "{n} {m} {k} {i}");
                    let weights = [(InputGrad, i + k), (WeightGrad, i), (InputGrad, i + k + 1)];
                    assert!(in_order(&h1, k, &weights), "{n} {m} {k} {i}");
                    let ends = [(Forward, i + warm(k) - 1), (InputGrad, i), (Forward, i + warm(k))];
                    assert!(in_order(&h2, k, &ends), "{n} {m} {k} {i}");
                    let late = warm(n - 1 - k);
                    let weights = [(InputGrad, i + late - 1), (WeightGrad, i), (InputGrad, i + late)];
                    assert!(in_order(&h2, k, &weights), "{n} {m} {k} {i}");
                }
            }
        }
    }
}
