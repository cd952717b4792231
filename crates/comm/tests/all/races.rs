//! Timing: many uses of the same slots, several ranks per thread, failures, and reports of missing
//! ranks.

use std::time::{Duration, Instant};

use partita_base::DType;
use partita_comm::*;

fn sum(members: Vec<usize>, len: usize) -> CollectiveSpec {
    CollectiveSpec::new("sum", members, vec![Exchange::all_reduce(Combiner::Sum, DType::F32, len)])
}

fn id(index: usize) -> CollectiveId {
    CollectiveId::new(index)
}

#[test]
fn thousands_of_steps_reuse_the_same_slots() {
    let (ranks, len, steps) = (3, 3000, 3000);
    let specs = vec![
        sum(vec![2, 0, 1], len),
        CollectiveSpec::new("gather", vec![0, 1, 2], vec![Exchange::all_gather(1, &[4, 8, 0])]),
        CollectiveSpec::send(1, 2, 4),
        CollectiveSpec::barrier(vec![0, 1, 2]),
    ];
    run_ranks(ranks, specs, |rank| {
        let mine = rank.rank();
        let (mut input, mut output) = (vec![0f32; len], vec![0f32; len]);
        for step in 0..steps {
            // Overwritten right after the last use: if a peer still read it, its sum would be
            // wrong.
            input.iter_mut().enumerate().for_each(|(i, x)| *x = (step * (mine + 1) + i % 5) as f32);
            rank.complete_one(id(0), &input, &mut output)?;
            for (i, x) in output.iter().enumerate() {
                assert_eq!(*x, (step * 6 + 3 * (i % 5)) as f32, "step {step}, element {i}");
            }
            let value = step as u32 * 10 + mine as u32;
            let mut gathered = [0u32; 3];
            rank.complete_one(id(1), &vec![value; [1, 2, 0][mine]], &mut gathered)?;
            let base = step as u32 * 10;
            assert_eq!(gathered, [base, base + 1, base + 1]);
            match mine {
                1 => rank.complete_one(id(2), &[value], &mut [])?,
                2 => {
                    let mut got = [0u32];
                    rank.complete_one(id(2), &[], &mut got)?;
                    assert_eq!(got, [base + 1]);
                }
                _ => {}
            }
            if step % 16 == 0 {
                rank.barrier(id(3))?;
            }
        }
        Ok(())
    })
    .unwrap();
}

/// A rank as a list of collectives and a cursor, as in the executor.
struct RankExecutor {
    rank: usize,
    step: usize,
    in_flight: bool,
    input: Vec<f32>,
    output: Vec<f32>,
}

#[test]
fn two_threads_play_four_ranks_each() {
    let (ranks, steps) = (8, 2000);
    // All ranks; both threads' halves; pairs across threads.
    let lens = [40, 1500, 9];
    let mut specs = vec![sum((0..8).collect(), lens[0])];
    specs.extend([sum(vec![0, 1, 2, 3], lens[1]), sum(vec![7, 6, 5, 4], lens[1])]);
    specs.extend((0..4).map(|i| sum(vec![i, 7 - i], lens[2])));
    let program = |rank: usize| [0, 1 + rank / 4, 3 + rank.min(7 - rank)];
    let world = World::in_process(ranks, specs).unwrap();
    let world = world.transport();
    let play = |thread: usize| {
        let mine = (0..ranks).filter(|r| r % 2 == thread);
        let mut players: Vec<RankExecutor> = mine
            .map(|rank| RankExecutor {
                rank,
                step: 0,
                in_flight: false,
                input: Vec::new(),
                output: Vec::new(),
            })
            .collect();
        loop {
            let seen = world.notify().epoch();
            let mut progress = false;
            for player in players.iter_mut().filter(|p| p.step < steps) {
                let slot = program(player.rank)[player.step % 3];
                let spec = &world.collectives()[slot];
                if !player.in_flight {
                    player.input = vec![(player.rank * player.step) as f32; lens[player.step % 3]];
                    player.output = vec![f32::NAN; player.input.len()];
                    let input: &[u8] = bytemuck::cast_slice(&player.input);
                    let output: &mut [u8] = bytemuck::cast_slice_mut(&mut player.output);
                    // SAFETY: neither is accessed until the poll below returns `Ready`.
                    unsafe { world.start(id(slot), player.rank, &[input], &[output]) };
                    player.in_flight = true;
                    progress = true;
                } else if world.poll(id(slot), player.rank) == Poll::Ready {
                    let expected = (spec.members.iter().sum::<usize>() * player.step) as f32;
                    assert!(player.output.iter().all(|x| *x == expected), "step {}", player.step);
                    player.in_flight = false;
                    player.step += 1;
                    progress = true;
                }
            }
            if players.iter().all(|p| p.step == steps) {
                return;
            }
            if !progress {
                let woken = world.notify().wait_for_change(seen, Duration::ZERO, Duration::from_secs(20));
                assert!(woken, "stuck: {:?}", players.iter().map(|p| (p.rank, p.step)).collect::<Vec<_>>());
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(0));
        scope.spawn(|| play(1));
    });
}

#[test]
fn a_failure_wakes_all_and_the_first_one_is_told() {
    let begin = Instant::now();
    let error = run_ranks(4, vec![sum(vec![0, 1, 2, 3], 10)], |rank| {
        if rank.rank() == 2 {
            std::thread::sleep(Duration::from_millis(50));
            panic!("out of luck");
        }
        let error = rank.complete_one(id(0), &[1f32; 10], &mut [0f32; 10]).unwrap_err();
        assert!(error.message.contains("rank 2 failed: panicked: out of luck"), "{error}");
        Err::<(), _>(error)
    })
    .unwrap_err();
    assert_eq!((error.code, error.message.as_str()), ("E443", "rank 2 failed: panicked: out of luck"));
    assert!(begin.elapsed() < Duration::from_secs(10), "the others waited for their patience to run out");
}

#[test]
fn every_poll_after_a_failure_says_so_and_the_second_failure_is_dropped() {
    let world = World::in_process(2, vec![CollectiveSpec::barrier(vec![0, 1])]).unwrap();
    let world = world.transport();
    assert_eq!(world.poll(id(0), 0), Poll::Ready);
    world.fail(Failure { rank: 1, code: "E443".into(), message: "first".into() });
    world.fail(Failure { rank: 0, code: "E443".into(), message: "second".into() });
    assert_eq!(world.poll(id(0), 0), Poll::Failed);
    assert_eq!(world.failure(), Some(Failure { rank: 1, code: "E443".into(), message: "first".into() }));
}

#[test]
fn who_loses_patience_names_the_absent() {
    let error = run_ranks(5, vec![sum(vec![4, 1, 3, 0], 10)], |rank| {
        if [0, 4].contains(&rank.rank()) {
            let patient = rank.with_patience(Duration::from_millis(30));
            patient.complete_one(id(0), &[1f32; 10], &mut [0f32; 10])?;
        }
        Ok(())
    })
    .unwrap_err();
    assert!(error.message.contains("in `sum`; ranks that did not arrive: [1, 3]"), "{error}");
}

#[test]
fn missing_counts_by_use_of_the_collective() {
    let world = World::in_process(3, vec![CollectiveSpec::barrier(vec![2, 0, 1])]).unwrap();
    let world = world.transport();
    // SAFETY: there are no buffers.
    let start = |rank| unsafe { world.start(id(0), rank, &[], &[]) };
    assert_eq!(world.missing(id(0)), []);
    start(0);
    assert_eq!(world.missing(id(0)), [2, 1]);
    start(1);
    start(2);
    assert_eq!(world.missing(id(0)), []);
    assert!((0..3).all(|rank| world.poll(id(0), rank) == Poll::Ready));
    start(2);
    assert_eq!(world.missing(id(0)), [0, 1]);
}

#[test]
fn a_waiting_rank_does_the_work_of_peers_that_compute() {
    let world = World::in_process(2, vec![sum(vec![0, 1], 5000)]).unwrap();
    let world = world.transport();
    let inputs = [vec![1f32; 5000], vec![2f32; 5000]];
    let mut outputs = [vec![0f32; 5000], vec![0f32; 5000]];
    for (rank, (input, output)) in inputs.iter().zip(&mut outputs).enumerate() {
        let (input, output): (&[u8], &mut [u8]) =
            (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        // SAFETY: the buffers are not accessed until both ranks are ready.
        unsafe { world.start(id(0), rank, &[input], &[output]) };
    }
    // Rank 0 has started and never polls before rank 1 is ready; rank 1 does its own share first
    // and then the other.
    assert_eq!(world.poll(id(0), 1), Poll::Pending);
    assert_eq!(world.poll(id(0), 1), Poll::Ready);
    assert_eq!(world.poll(id(0), 0), Poll::Ready);
    assert!(outputs.iter().flatten().all(|x| *x == 3.0));
}

#[test]
#[should_panic(expected = "overlaps its output")]
fn input_and_output_must_be_apart() {
    let world = World::in_process(1, vec![sum(vec![0], 4)]).unwrap();
    let world = world.transport();
    let mut buffer = [0f32; 4];
    let bytes: *mut [u8] = bytemuck::cast_slice_mut::<f32, u8>(&mut buffer);
    // SAFETY: rejected before any access.
    unsafe { world.start(id(0), 0, &[bytes.cast_const()], &[bytes]) };
}

#[test]
#[should_panic(expected = "still in flight")]
fn a_rank_must_be_ready_before_it_starts_again() {
    let world = World::in_process(2, vec![CollectiveSpec::barrier(vec![0, 1])]).unwrap();
    let world = world.transport();
    // SAFETY: there are no buffers.
    unsafe {
        world.start(id(0), 0, &[], &[]);
        world.start(id(0), 0, &[], &[]);
    }
}
