//! Random orders of tasks: legal ones run as a simulation in small steps says, and damaged ones are
//! refused with the name of a task that was damaged.

use partita_pipeline::timetables::Placement;
use partita_pipeline::{Task, TaskKind, Timetable, timetables};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};

/// Which of `count` a draw chooses.
fn pick(draws: &mut impl Iterator<Item = u32>, count: usize) -> usize {
    draws.next().unwrap_or(0) as usize % count
}

/// What a task reads, written down a second time.
fn reads(task: Task, stages: usize, all: &BTreeSet<Task>) -> Vec<Task> {
    let at = |stage, kind| Task { stage, kind, ..task };
    let mut reads = Vec::new();
    match task.kind {
        TaskKind::Forward => {
            reads.extend((task.stage > 0).then(|| at(task.stage.wrapping_sub(1), task.kind)))
        }
        TaskKind::WeightGrad => reads.push(at(task.stage, TaskKind::InputGrad)),
        TaskKind::Backward | TaskKind::InputGrad => {
            reads.push(at(task.stage, TaskKind::Forward));
            if task.stage + 1 < stages {
                let whole = at(task.stage + 1, TaskKind::Backward);
                reads.push(if all.contains(&whole) {
                    whole
                } else {
                    at(task.stage + 1, TaskKind::InputGrad)
                });
            }
        }
    }
    reads
}

/// A random legal order: slices take tasks that can run, until there are none.
fn legal(p: usize, v: usize, m: usize, placement: Placement, draws: &[u32]) -> Timetable {
    let mut draws = draws.iter().copied().cycle().zip(0u32..).map(|(draw, n)| draw.wrapping_add(n * 7919));
    let stages = p * v;
    let mut all = BTreeSet::new();
    for stage in 0..stages {
        for microbatch in 0..m {
            let is_split = pick(&mut draws, 2) == 0;
            let kinds: &[TaskKind] = if is_split {
                &[TaskKind::Forward, TaskKind::InputGrad, TaskKind::WeightGrad]
            } else {
                &[TaskKind::Forward, TaskKind::Backward]
            };
            all.extend(kinds.iter().map(|&kind| Task { stage, kind, microbatch }));
        }
    }
    let mut timetable = Timetable::new(stages, m, vec![Vec::new(); p]);
    let mut done: BTreeSet<Task> = BTreeSet::new();
    while done.len() < all.len() {
        let can_run = |task: &&Task| {
            !done.contains(task) && reads(**task, stages, &all).iter().all(|read| done.contains(read))
        };
        let ready: Vec<Task> = all.iter().filter(can_run).copied().collect();
        let task = ready[pick(&mut draws, ready.len())];
        timetable.slices[placement.slice(task.stage, p)].push(task);
        done.insert(task);
    }
    timetable
}

/// When tasks begin, found one unit of time after the other; the tasks that begin never are missing.
fn simulate(timetable: &Timetable, duration: &dyn Fn(Task) -> usize) -> BTreeMap<Task, usize> {
    let all: BTreeSet<Task> = timetable.slices.iter().flatten().copied().collect();
    let mut starts: BTreeMap<Task, usize> = BTreeMap::new();
    let mut next = vec![0; timetable.slices.len()];
    let mut free = vec![0; timetable.slices.len()];
    let longest: usize = all.iter().map(|&task| duration(task)).sum();
    for now in 0..=longest {
        for (slice, tasks) in timetable.slices.iter().enumerate() {
            let Some(&task) = tasks.get(next[slice]).filter(|_| free[slice] <= now) else { continue };
            let is_done = |read: &Task| starts.get(read).is_some_and(|start| start + duration(*read) <= now);
            if reads(task, timetable.stages, &all).iter().all(is_done) {
                starts.insert(task, now);
                next[slice] += 1;
                free[slice] = now + duration(task);
            }
        }
    }
    starts
}

fn shapes() -> impl Strategy<Value = Timetable> {
    let placements = prop_oneof![Just(Placement::Loop), Just(Placement::V)];
    (1usize..5, 1usize..4, 1usize..6, placements, prop::collection::vec(any::<u32>(), 1..20))
        .prop_map(|(p, v, m, placement, draws)| legal(p, v, m, placement, &draws))
}

/// The words of a message that could be tasks.
fn names(error: &partita_base::Diagnostic, task: Task) -> bool {
    let name = task.to_string();
    error.message.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == name)
}

/// A task of a timetable, chosen by two draws.
fn chosen(timetable: &Timetable, slice: u32, place: u32) -> (usize, usize) {
    let slice = slice as usize % timetable.slices.len();
    (slice, place as usize % timetable.slices[slice].len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, rng_seed: RngSeed::Fixed(32), ..ProptestConfig::default() })]

    #[test]
    fn legal_orders_run_as_simulated(timetable in shapes(), costs in prop::array::uniform4(1usize..4)) {
        let duration = |task: Task| costs[task.kind as usize] + task.stage % 2;
        let times = timetable.times(duration).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let simulated = simulate(&timetable, &duration);
        for (slice, tasks) in timetable.slices.iter().enumerate() {
            let mut work = 0;
            for (place, task) in tasks.iter().enumerate() {
                prop_assert_eq!(times.starts[slice][place], simulated[task], "{}", task);
                prop_assert_eq!(times.ends[slice][place], simulated[task] + duration(*task));
                work += duration(*task);
            }
            prop_assert_eq!(times.work[slice], work);
            let span = times.ends[slice].last().unwrap() - times.starts[slice][0];
            prop_assert_eq!(times.idle(slice), span - work);
            // At the end nothing is held: every forward task was followed by its gradients.
            prop_assert_eq!(timetable.held(slice).pop(), Some(1));
            prop_assert!(timetable.peak(slice) >= 1);
        }
        let last = simulated.iter().map(|(task, start)| start + duration(*task)).max();
        prop_assert_eq!(Some(times.makespan()), last);
        prop_assert_eq!(Timetable::from_csv(&timetable.to_csv()).unwrap(), timetable.clone());
        // With every task in one slot, too.
        let simulated = simulate(&timetable, &|_| 1);
        for (tasks, slots) in timetable.slices.iter().zip(timetable.slots().unwrap()) {
            prop_assert_eq!(tasks.iter().map(|task| simulated[task]).collect::<Vec<_>>(), slots);
        }
    }

    #[test]
    fn a_missing_task_is_named(timetable in shapes(), slice: u32, place: u32) {
        let (slice, place) = chosen(&timetable, slice, place);
        let mut damaged = timetable.clone();
        let task = damaged.slices[slice].remove(place);
        // One forward task alone is a timetable for inference.
        prop_assume!(damaged.trains());
        let error = damaged.slots().unwrap_err();
        prop_assert_eq!(error.code, "E461");
        prop_assert!(names(&error, task) && error.message.contains("missing"), "{} without {}", error, task);
    }

    #[test]
    fn a_doubled_task_is_named(timetable in shapes(), from: (u32, u32), to: (u32, u32)) {
        let (slice, place) = chosen(&timetable, from.0, from.1);
        let task = timetable.slices[slice][place];
        let (slice, place) = chosen(&timetable, to.0, to.1);
        let mut damaged = timetable.clone();
        damaged.slices[slice].insert(place, task);
        let error = damaged.slots().unwrap_err();
        prop_assert_eq!(error.code, "E461");
        prop_assert!(names(&error, task) && error.message.contains("twice"), "{} with two {}", error, task);
    }

    #[test]
    fn a_task_on_the_wrong_slice_is_named(timetable in shapes(), from: (u32, u32), by: u32, at: u32) {
        prop_assume!(timetable.slices.len() > 1);
        let (slice, place) = chosen(&timetable, from.0, from.1);
        let mut damaged = timetable.clone();
        let task = damaged.slices[slice].remove(place);
        let other = (slice + 1 + by as usize % (timetable.slices.len() - 1)) % timetable.slices.len();
        let at = at as usize % (damaged.slices[other].len() + 1);
        damaged.slices[other].insert(at, task);
        let error = damaged.slots().unwrap_err();
        prop_assert_eq!(error.code, "E461");
        prop_assert!(error.message.contains("wrong slice"), "{}", error);
        let found = error.found.clone().unwrap_or_default();
        prop_assert!(found.contains(&task.to_string()) || names(&error, task), "{} with {} moved", error, task);
    }

    #[test]
    fn a_task_that_does_not_exist_is_named(timetable in shapes(), at: (u32, u32), by: bool) {
        let (slice, place) = chosen(&timetable, at.0, at.1);
        let mut damaged = timetable.clone();
        let (stages, microbatches) = (damaged.stages, damaged.microbatches);
        let task = &mut damaged.slices[slice][place];
        *(if by { &mut task.stage } else { &mut task.microbatch }) += stages.max(microbatches);
        let task = *task;
        let error = damaged.slots().unwrap_err();
        prop_assert_eq!(error.code, "E461");
        prop_assert!(names(&error, task) && error.message.contains("does not exist"), "{}", error);
    }

    #[test]
    fn swapped_tasks_run_or_are_refused_as_simulated(
        timetable in shapes(),
        slice: u32,
        places: (u32, u32),
        more: (u32, u32),
    ) {
        let mut swapped = timetable.clone();
        for (a, b) in [places, more] {
            let (slice, a) = chosen(&timetable, slice.wrapping_add(a % 3), a);
            let b = b as usize % swapped.slices[slice].len();
            swapped.slices[slice].swap(a, b);
        }
        let simulated = simulate(&swapped, &|_| 1);
        let all: usize = swapped.slices.iter().map(Vec::len).sum();
        match swapped.slots() {
            Ok(slots) => {
                prop_assert_eq!(simulated.len(), all);
                for (tasks, slots) in swapped.slices.iter().zip(slots) {
                    prop_assert_eq!(tasks.iter().map(|task| simulated[task]).collect::<Vec<_>>(), slots);
                }
            }
            Err(error) => {
                prop_assert_eq!(error.code, "E461");
                prop_assert!(simulated.len() < all, "{} of an order that runs", error);
                // Every task that the message names is one that a slice waits in.
                let waiting: Vec<Task> = swapped.slices.iter()
                    .filter_map(|tasks| tasks.iter().find(|task| !simulated.contains_key(task)).copied())
                    .collect();
                let named = waiting.iter().filter(|task| names(&error, **task)).count();
                prop_assert!(named > 0, "{}, where slices wait in {:?}", error, waiting);
            }
        }
    }
}

#[test]
fn slices_that_wait_for_each_other_are_named_with_their_tasks() {
    let mut timetable = timetables::one_f_one_b(2, 2);
    timetable.slices[0].swap(1, 2);
    assert!(timetable.slots().is_ok(), "0B0 before 0F1 is slow, and legal");
    timetable.slices[1].swap(1, 2);
    let error = timetable.slots().unwrap_err();
    assert_eq!(
        error.to_string(),
        "error[E461]: tasks 0B0, 1F1 wait for each other\n        \
         at: timetable\n      \
         note: slice 0 can begin 0B0 after 1B0, which slice 1 runs later than 1F1\n      \
         note: slice 1 can begin 1F1 after 0F1, which slice 0 runs later than 0B0"
    );
}

#[test]
fn overlapped_tasks_are_a_forward_and_a_backward_task() {
    let timetable = timetables::dualpipev(2, 4);
    let task = |stage, kind, microbatch| Task { stage, kind, microbatch };
    for wrong in
        [task(0, TaskKind::Forward, 0), task(0, TaskKind::Backward, 0), task(9, TaskKind::Forward, 0)]
    {
        let mut damaged = timetable.clone();
        damaged.overlapped.insert(wrong);
        let error = damaged.slots().unwrap_err();
        assert_eq!(error.code, "E461");
        assert!(names(&error, wrong), "{error}");
    }
    // A task cannot overlap its own backward task.
    let mut own =
        Timetable::new(1, 1, vec![vec![task(0, TaskKind::Forward, 0), task(0, TaskKind::Backward, 0)]]);
    assert!(own.slots().is_ok());
    own.overlapped.insert(task(0, TaskKind::Forward, 0));
    assert!(names(&own.slots().unwrap_err(), task(0, TaskKind::Backward, 0)));
}

#[test]
fn whole_and_split_backward_tasks_of_one_microbatch_are_refused() {
    let mut timetable = timetables::one_f_one_b(1, 1);
    timetable.slices[0].push(Task { stage: 0, kind: TaskKind::WeightGrad, microbatch: 0 });
    let error = timetable.slots().unwrap_err();
    assert_eq!(error.message, "task 0B0 is given both as B and as I/W");
}
