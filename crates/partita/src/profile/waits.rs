//! Which rank waited for which: the time between the last instruction of a rank and the end of its wait for a collective,
//! divided into waiting for the last member to arrive and moving the data.

use super::{Done, RecordedStep, Recording};
use partita_program::{Action, CollectiveId, Program};
use partita_runtime::Runner;
use serde::Serialize;
use std::collections::BTreeMap;

/// Seconds per step that each rank of this process waited.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Waits {
    /// The ranks of this process.
    pub ranks: Vec<usize>,
    /// `for_rank[i][j]`: how long `ranks[i]` waited for `ranks[j]` to start a collective of both.
    pub for_rank: Vec<Vec<f64>>,
    /// How long each waited after every member of this process had started: data that moves, ranks of other processes,
    /// and a thread that was busy with another rank.
    pub rest_s: Vec<f64>,
}

/// Who waited for whom, on average over the recorded steps.
pub fn waits(recording: &Recording, runner: &Runner) -> Waits {
    let count = runner.local_ranks().len();
    let mut waits = Waits {
        ranks: runner.local_ranks().to_vec(),
        for_rank: vec![vec![0.0; count]; count],
        rest_s: vec![0.0; count],
    };
    for step in &recording.steps {
        add(&mut waits, step, runner);
    }
    let steps = recording.steps.len().max(1) as f64;
    waits.for_rank.iter_mut().flatten().chain(&mut waits.rest_s).for_each(|seconds| *seconds /= steps);
    waits
}

/// Adds the waits of a step.
fn add(waits: &mut Waits, step: &RecordedStep, runner: &Runner) {
    let done = step.instructions(runner);
    let programs = runner.programs();
    let started = starts(&done, programs);
    for (rank, (instructions, program)) in done.iter().zip(programs).enumerate() {
        let mut free_ns = step.begin_ns;
        for done in instructions {
            if let Action::Wait(collective) = &program.instructions[done.instruction].action {
                // The member that started last, of those that started while this rank waited.
                let late = started.get(collective).and_then(|starts| starts.iter().max_by_key(|(_, at)| *at));
                let until_ns = match late {
                    Some(&(late, at_ns)) if late != rank => at_ns.clamp(free_ns, done.end_ns.max(free_ns)),
                    _ => free_ns,
                };
                if let Some(&(late, _)) = late {
                    waits.for_rank[rank][late] += (until_ns - free_ns) as f64 / 1e9;
                }
                waits.rest_s[rank] += done.end_ns.saturating_sub(until_ns) as f64 / 1e9;
            }
            free_ns = free_ns.max(done.end_ns);
        }
    }
}

/// When each rank had started each collective.
fn starts(done: &[Vec<Done>], programs: &[Program]) -> BTreeMap<CollectiveId, Vec<(usize, u64)>> {
    let mut starts: BTreeMap<CollectiveId, Vec<(usize, u64)>> = BTreeMap::new();
    for (rank, (instructions, program)) in done.iter().zip(programs).enumerate() {
        for done in instructions {
            if let Action::Start(start) = &program.instructions[done.instruction].action {
                starts.entry(start.collective).or_default().push((rank, done.end_ns));
            }
        }
    }
    starts
}
