//! Programs of several ranks on worker threads: results, memory, and how a run ends when it fails.

use std::time::{Duration, Instant};

use crate::common::*;
use partita_ir::Literal;
use partita_program::{Action, ProgramSet};
use partita_runtime::{Fault, MAX_WORKERS, MemoryLimit, Runner, RunnerOptions};

fn options(workers: usize) -> RunnerOptions {
    RunnerOptions { workers: Some(workers), watchdog: Duration::from_secs(1), ..RunnerOptions::default() }
}

fn deterministic() -> RunnerOptions {
    RunnerOptions { deterministic: true, ..options(1) }
}

#[test]
fn ranks_compute_what_the_reference_computes_step_after_step() {
    for ranks in 1..=4 {
        let graphs = step_graphs(ranks);
        let set = program(&graphs);
        let inputs = inputs(&graphs, 17);
        for steps in [1, 3] {
            let expected: Vec<Vec<Vec<u8>>> = reference(&set, &inputs, steps)
                .iter()
                .map(|rank| rank.iter().map(|literal| literal.to_bytes()).collect())
                .collect();
            for options in [deterministic(), options(1), options(2), options(ranks)] {
                let found = run(&graphs, &set, options.clone(), &inputs, steps);
                for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    for (port, (found, expected)) in
                        set.programs[rank].outputs.iter().zip(found.iter().zip(expected))
                    {
                        let floats =
                            |bytes: &[u8]| bytemuck::allocation::pod_collect_to_vec::<u8, f32>(bytes);
                        let (found, expected) = (floats(found), floats(expected));
                        assert_eq!(found.len(), expected.len());
                        for (f, e) in found.iter().zip(&expected) {
                            assert!(
                                (f - e).abs() <= 1e-5 * e.abs().max(1.0),
                                "{} of rank {rank} of {ranks}, {options:?}: {f} for {e}",
                                port.name
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn ranks_compute_what_their_graphs_say() {
    for ranks in 1..=4 {
        let graphs = step_graphs(ranks);
        let inputs = inputs(&graphs, 23);
        let expected = partita_ir::evaluate_ranks(&graphs.iter().collect::<Vec<_>>(), &inputs).unwrap();
        let found = run(&graphs, &program(&graphs), options(2), &inputs, 1);
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (output, (found, expected)) in found.iter().zip(expected).enumerate() {
                let found = Literal::from_bytes(&expected.ty, found).unwrap();
                for (f, e) in found.to_f64().iter().zip(expected.to_f64()) {
                    let close = (f - e).abs() <= 1e-5 * e.abs().max(1.0);
                    assert!(close, "output {output} of rank {rank} of {ranks}: {f} for {e}");
                }
            }
        }
    }
}

#[test]
fn any_number_of_workers_gives_the_same_bits() {
    let graphs = step_graphs(4);
    let set = program(&graphs);
    let inputs = inputs(&graphs, 3);
    let alone = run(&graphs, &set, deterministic(), &inputs, 5);
    for workers in [2, 3, 4] {
        for _ in 0..5 {
            assert_eq!(run(&graphs, &set, options(workers), &inputs, 5), alone, "{workers} workers");
        }
    }
}

/// A worker that only steals must not sleep through the end of a step. Such short steps end just as it goes
/// to sleep.
#[test]
fn a_worker_without_a_rank_comes_back_from_every_step() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let graphs = step_graphs(1);
        let helped = RunnerOptions { nan_guard: false, ..options(2).sharing(1) };
        let mut runner = in_process(program(&graphs), helped).unwrap();
        assert_eq!(runner.thread_count(), 2);
        feed(&mut runner, &graphs, &inputs(&graphs, 1));
        (0..20_000).for_each(|_| runner.step().unwrap());
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("20 000 short steps end");
}

#[test]
fn the_memory_touched_is_the_memory_planned() {
    for ranks in [1, 3] {
        let graphs = step_graphs(ranks);
        let set = program(&graphs);
        let mut runner = in_process(set, deterministic()).unwrap();
        feed(&mut runner, &graphs, &inputs(&graphs, 1));
        runner.step().unwrap();
        assert_eq!(runner.peak_bytes_used(), runner.planned_bytes());
        assert!(runner.planned_bytes().iter().all(|&bytes| bytes > 8 * 5 * 4));
        assert_eq!(runner.slow_ops(), []);
    }
}

fn position(set: &ProgramSet, rank: usize, wanted: impl Fn(&Action) -> bool) -> usize {
    set.programs[rank]
        .instructions
        .iter()
        .position(|i| wanted(&i.action))
        .expect("there is such an instruction")
}

/// Runs a step with a fault and returns the error text.
fn fail(fault: Fault, rank: usize, at: impl Fn(&Action) -> bool, options: RunnerOptions) -> String {
    let graphs = step_graphs(4);
    let set = program(&graphs);
    let instruction = position(&set, rank, at);
    let mut runner = in_process(set, options).unwrap();
    feed(&mut runner, &graphs, &inputs(&graphs, 1));
    runner.step().unwrap();
    feed(&mut runner, &graphs, &inputs(&graphs, 1));
    runner.inject(rank, instruction, fault).unwrap();
    let begin = Instant::now();
    let error = runner.step().unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    feed(&mut runner, &graphs, &inputs(&graphs, 1));
    match error.code {
        // The next step runs as if this one had not been tried.
        "E412" => runner.step().unwrap(),
        // After any other failure every step fails, and everything can be dropped.
        _ => assert_eq!(runner.step().unwrap_err(), error),
    }
    drop(runner);
    error.to_string()
}

fn is_compute(action: &Action) -> bool {
    matches!(action, Action::Compute(_))
}

fn is_start(action: &Action) -> bool {
    matches!(action, Action::Start(_))
}

#[test]
fn a_panic_ends_all_ranks_and_is_told_once() {
    for options in [deterministic(), options(2), options(4)] {
        let text = fail(Fault::Panic, 2, is_compute, options);
        assert!(text.starts_with("error[E410]: rank 2 panicked in dot_general: injected panic"), "{text}");
        assert!(text.contains("at: model.linear"), "{text}");
    }
}

#[test]
fn a_kernel_that_fails_ends_all_ranks() {
    for options in [deterministic(), options(4)] {
        let text = fail(Fault::Error, 1, is_compute, options);
        assert!(text.starts_with("error[E411]: rank 1: dot_general failed: injected failure"), "{text}");
        assert!(text.contains("at: model.linear"), "{text}");
    }
}

#[test]
fn a_loss_that_is_not_a_number_is_found() {
    for options in [deterministic(), options(4)] {
        let text = fail(Fault::Nan, 3, is_compute, options);
        assert!(text.starts_with("error[E412]: `loss` is not a finite number"), "{text}");
        assert!(text.contains("at: loss") && text.contains("learning rate"), "{text}");
    }
    let unguarded = RunnerOptions { nan_guard: false, ..deterministic() };
    let graphs = step_graphs(2);
    let set = program(&graphs);
    let mut runner = in_process(set, unguarded).unwrap();
    feed(&mut runner, &graphs, &inputs(&graphs, 1));
    runner.inject(0, 0, Fault::Nan).unwrap();
    runner.step().unwrap();
    assert!(runner.read_number(0, "loss").unwrap().is_nan());
}

#[test]
fn a_rank_that_never_comes_is_named_by_those_who_wait() {
    for options in [deterministic(), options(2), options(4)] {
        let text = fail(Fault::Hang, 1, is_start, options);
        assert!(text.starts_with("error[E413]: rank"), "{text}");
        assert!(text.contains("ranks [1] have not arrived"), "{text}");
        assert!(text.contains("rank 1 is at instruction"), "{text}");
        assert!(text.contains("all_reduce") || text.contains("reduce_scatter"), "{text}");
    }
}

#[test]
fn a_step_is_interrupted_from_another_thread() {
    let graphs = step_graphs(3);
    for options in [deterministic(), options(2), options(4)] {
        let mut runner = in_process(program(&graphs), options).unwrap();
        feed(&mut runner, &graphs, &inputs(&graphs, 1));
        let index = runner.programs()[1].instructions.iter().position(|i| is_start(&i.action)).unwrap();
        runner.inject(1, index, Fault::Hang).unwrap();
        let interrupter = runner.interrupter();
        // One thread alone would find at once that a rank hangs: it is interrupted before the step.
        if runner.thread_count() == 1 {
            interrupter.interrupt();
        }
        let error = std::thread::scope(|scope| {
            scope.spawn(move || interrupter.interrupt());
            runner.step().unwrap_err()
        });
        assert_eq!(error.code, "E427", "{error}");
        assert_eq!(runner.step().unwrap_err().code, "E427");
    }
}

#[test]
fn names_and_sizes_are_checked() {
    let graphs = step_graphs(2);
    let mut runner = in_process(program(&graphs), deterministic()).unwrap();
    let error = runner.write_input(0, "ratte", &[]).unwrap_err();
    assert!(error.code == "E414" && error.to_string().contains("did you mean `rate`?"), "{error}");
    let error = runner.write_input(0, "rate", &[0; 3]).unwrap_err();
    assert!(error.code == "E415" && error.to_string().contains("4 bytes"), "{error}");
    assert_eq!(runner.read_output(5, "loss").unwrap_err().code, "E414");
}

#[test]
fn state_stays_between_steps_and_can_be_replaced() {
    let graphs = step_graphs(2);
    let mut runner = in_process(program(&graphs), options(2)).unwrap();
    feed(&mut runner, &graphs, &inputs(&graphs, 1));
    runner.step().unwrap();
    let state = runner.read_input(1, "w").unwrap();
    assert_eq!(state, runner.read_output(1, "w").unwrap());
    let loss = |runner: &mut Runner| {
        let values = inputs(&graphs, 1);
        for (rank, values) in values.iter().enumerate() {
            runner.write_input(rank, "x", &values[0].to_bytes()).unwrap();
            runner.write_input(rank, "rate", &values[2].to_bytes()).unwrap();
        }
        runner.step().unwrap();
        runner.read_number(0, "loss").unwrap()
    };
    let second = loss(&mut runner);
    assert_ne!(loss(&mut runner), second);
    for rank in 0..2 {
        runner.write_input(rank, "w", &state).unwrap();
    }
    assert_eq!(loss(&mut runner), second);
}

#[test]
fn more_memory_than_there_is_is_refused() {
    let mut b = partita_ir::GraphBuilder::new("huge");
    let x = b.input("x", f32s(&[1 << 56]), partita_ir::Role::Input);
    let y = b.add(x, x).unwrap();
    let graph = b.finish_named(vec![("y".into(), y)]);
    let set = program(&[graph]);
    let error = in_process(set.clone(), deterministic()).err().expect("no machine has so much");
    assert_eq!(error.code, "E040", "{error}");
    // If the limit permits the request, the system refuses it.
    let options = RunnerOptions { memory: MemoryLimit::Bytes(u64::MAX), ..deterministic() };
    let error = in_process(set, options).err().expect("no machine has so much");
    assert_eq!(error.code, "E426", "{error}");
}

#[test]
fn more_workers_than_a_process_can_have_are_refused() {
    let set = program(&step_graphs(2));
    for workers in [0, MAX_WORKERS + 1, usize::MAX] {
        let error = in_process(set.clone(), options(workers)).map(|_| ()).unwrap_err();
        assert_eq!(error.code, "E032");
        assert!(error.to_string().contains("1 to 1024 threads"), "{error}");
    }
}

#[test]
fn arenas_that_pass_the_limit_on_memory_are_refused() {
    let set = program(&step_graphs(3));
    let planned: u64 = set.programs.iter().map(|program| program.arena_bytes as u64).sum();
    let limited = |bytes| RunnerOptions { memory: MemoryLimit::Bytes(bytes), ..options(1) };
    let error = in_process(set.clone(), limited(planned)).map(|_| ()).unwrap_err();
    assert_eq!(error.code, "E040");
    let text = error.to_string();
    let need = format!("{} needed", partita_base::format_bytes(planned));
    assert!(text.contains("the planned buffers of all ranks (3)") && text.contains(&need), "{text}");
    assert!(in_process(set, limited(1 << 40)).is_ok());
}

#[test]
fn events_tell_what_each_thread_did_in_the_last_step() {
    let graphs = step_graphs(2);
    for (options, threads) in [(deterministic(), 1), (options(2), 2)] {
        let set = program(&graphs);
        let mut runner = in_process(set.clone(), RunnerOptions { record: true, ..options.clone() }).unwrap();
        feed(&mut runner, &graphs, &inputs(&graphs, 1));
        let mut spent = vec![vec![0; set.programs[0].instructions.len()]; 2];
        for _ in 0..2 {
            runner.step().unwrap();
            let events = runner.events();
            let order: Vec<_> = events.iter().map(|event| (event.thread, event.begin_ns)).collect();
            assert!(order.is_sorted(), "{order:?}");
            assert!(events.iter().all(|event| event.thread < threads && event.begin_ns <= event.end_ns));
            for (rank, program) in set.programs.iter().enumerate() {
                for (index, instruction) in program.instructions.iter().enumerate() {
                    let own = || events.iter().filter(|e| (e.rank, e.instruction) == (rank, index));
                    assert!(own().count() > 0, "rank {rank} did not run instruction {index}");
                    if let Action::Start(start) = &instruction.action {
                        let given = start.inputs.iter().map(|view| view.shape.iter().product::<usize>() * 4);
                        assert_eq!(own().map(|e| e.bytes).collect::<Vec<_>>(), [given.sum::<usize>()]);
                    }
                    spent[rank][index] += own().map(|event| event.nanos()).sum::<u64>();
                }
            }
        }
        assert_eq!(runner.instruction_nanos(1).unwrap(), spent[1]);
        assert_eq!(runner.instruction_nanos(2).unwrap_err().code, "E414");
        let mut silent = in_process(set, options).unwrap();
        feed(&mut silent, &graphs, &inputs(&graphs, 1));
        silent.step().unwrap();
        assert!(silent.events().is_empty() && silent.instruction_nanos(0).unwrap().is_empty());
        // Recording is turned on and off between steps.
        silent.record(true);
        silent.step().unwrap();
        let seen = silent.events().iter().map(|event| (event.rank, event.instruction));
        let last = silent.programs()[0].instructions.len() - 1;
        assert!(seen.clone().any(|place| place == (0, last)) && seen.clone().any(|place| place == (1, 0)));
        assert!(silent.events().iter().all(|event| event.end_ns <= silent.now_ns()));
        silent.record(false);
        silent.step().unwrap();
        assert!(silent.events().is_empty());
    }
}
