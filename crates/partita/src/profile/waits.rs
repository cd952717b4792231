//! Which rank waited for which: the time between the last instruction of a rank and the end of its wait for a collective,
//! divided into waiting for the last member to arrive and moving the data.

use super::rows::{Row, Sums};
use super::{Done, Ranks, RecordedStep, Recording};
use partita_program::{Action, CollectiveId, Program};
use serde::Serialize;
use std::collections::BTreeMap;

/// Seconds per step that each rank waited.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Waits {
    /// The ranks.
    pub ranks: Vec<usize>,
    /// `for_rank[i][j]`: how long `ranks[i]` waited for `ranks[j]` to start a collective of both.
    pub for_rank: Vec<Vec<f64>>,
    /// How long each waited after every member had started: data that moves, and a thread that was busy with another rank.
    pub rest_s: Vec<f64>,
}

/// A wait of one rank: for the members of a collective to start it, then for its data.
struct Wait {
    /// The position of the rank that waited.
    rank: usize,
    /// The position of the member that started last, if it was another one, and for how long it was waited for.
    late: Option<(usize, u64)>,
    /// How long was waited after that.
    rest_ns: u64,
}

/// Who waited for whom, on average over the recorded steps.
pub fn waits(recording: &Recording) -> Waits {
    let ranks = &recording.ranks;
    let count = ranks.numbers.len();
    let mut waits = Waits {
        ranks: ranks.numbers.clone(),
        for_rank: vec![vec![0.0; count]; count],
        rest_s: vec![0.0; count],
    };
    for wait in all(recording) {
        if let Some((late, ns)) = wait.late {
            waits.for_rank[wait.rank][late] += ns as f64 / 1e9;
        }
        waits.rest_s[wait.rank] += wait.rest_ns as f64 / 1e9;
    }
    let steps = recording.steps.len().max(1) as f64;
    waits.for_rank.iter_mut().flatten().chain(&mut waits.rest_s).for_each(|seconds| *seconds /= steps);
    waits
}

/// Waits as rows of a table: for each rank those for each other one, and those for data.
pub(super) fn rows(recording: &Recording, sums: &mut Sums) {
    let numbers = &recording.ranks.numbers;
    let mut add = |what: String, ns: u64| {
        if ns > 0 {
            let (row, _) = sums
                .entry(what)
                .or_insert_with_key(|what| (Row { what: what.clone(), ..Row::default() }, 0.0));
            row.calls += 1.0;
            row.seconds += ns as f64 / 1e9;
        }
    };
    for Wait { rank, late, rest_ns } in all(recording) {
        if let Some((late, ns)) = late {
            add(format!("rank {} for rank {}", numbers[rank], numbers[late]), ns);
        }
        add(format!("rank {} for data", numbers[rank]), rest_ns);
    }
}

/// The waits of all recorded steps.
fn all(recording: &Recording) -> Vec<Wait> {
    recording.steps.iter().flat_map(|step| of_step(step, &recording.ranks)).collect()
}

fn of_step(step: &RecordedStep, ranks: &Ranks) -> Vec<Wait> {
    let done = step.instructions(ranks);
    let programs = &ranks.programs;
    let started = starts(&done, programs);
    let mut waits = Vec::new();
    for (rank, (instructions, program)) in done.iter().zip(programs).enumerate() {
        let mut free_ns = step.begin_ns;
        for done in instructions {
            if let Action::Wait(collective) = &program.instructions[done.instruction].action {
                // The member that started last, of those that started while this rank waited.
                let late = started.get(collective).and_then(|starts| starts.iter().max_by_key(|(_, at)| *at));
                let (late, until_ns) = match late {
                    Some(&(late, at_ns)) if late != rank => {
                        let until_ns = at_ns.clamp(free_ns, done.end_ns.max(free_ns));
                        (Some((late, until_ns - free_ns)), until_ns)
                    }
                    _ => (None, free_ns),
                };
                waits.push(Wait { rank, late, rest_ns: done.end_ns.saturating_sub(until_ns) });
            }
            free_ns = free_ns.max(done.end_ns);
        }
    }
    waits
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
