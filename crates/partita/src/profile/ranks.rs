//! Whose events a recording has: the ranks of this process, or those of all processes of a run on one clock.

use super::RecordedStep;
use partita_base::{Diagnostic, Result};
use partita_program::{Collective, Event, Program};
use partita_runtime::{PROCESS_ENDED, Runner};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The ranks whose events a recording has, and what they run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Ranks {
    /// Their numbers, ascending.
    pub numbers: Vec<usize>,
    /// What each of them runs.
    pub programs: Vec<Program>,
    /// The host of each.
    pub hosts: Vec<String>,
    /// The collectives that the programs name.
    pub collectives: Vec<Collective>,
    /// Ranks of the mesh.
    pub of: usize,
    /// Threads that share them.
    pub threads: usize,
}

impl Ranks {
    /// Those of this process.
    pub fn local(runner: &Runner) -> Ranks {
        let numbers = runner.local_ranks().to_vec();
        Ranks {
            hosts: vec![host(); numbers.len()],
            numbers,
            programs: runner.programs().to_vec(),
            collectives: runner.program_set().collectives.clone(),
            of: runner.rank_count(),
            threads: runner.thread_count(),
        }
    }

    /// The position of a rank among these.
    pub fn position(&self, rank: usize) -> Option<usize> {
        self.numbers.binary_search(&rank).ok()
    }
}

/// The name of this host.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "this host".to_string(),
        name => name.to_string(),
    }
}

/// The events of one rank, as one process tells another.
#[derive(Serialize, Deserialize)]
struct Told {
    host: String,
    process: u32,
    threads: usize,
    /// The zero of the clock of the events, in nanoseconds since 1970.
    zero_ns: u64,
    steps: Vec<ToldStep>,
}

#[derive(Serialize, Deserialize)]
struct ToldStep {
    step: u64,
    begin_ns: u64,
    end_ns: u64,
    /// Thread, instruction, begin, end, bytes.
    events: Vec<(usize, usize, u64, u64, usize)>,
}

/// The steps of all processes, in the process of rank 0, on its clock; in other processes their own. All processes call it.
/// The clocks of processes are compared by the time of day, so those of several hosts are as equal as their times of day.
///
/// # Errors
/// E447 if another process has ended.
pub fn gather(steps: Vec<RecordedStep>, runner: &Runner) -> Result<(Ranks, Vec<RecordedStep>)> {
    let world = runner.world();
    let mut ranks = Ranks::local(runner);
    if world.is_whole() {
        return Ok((ranks, steps));
    }
    let zero_ns = zero_ns(runner);
    let mut all = Vec::new();
    for rank in 0..world.rank_count() {
        let told = world.gather(rank, || {
            let told = tell(&steps, rank, zero_ns, &ranks);
            serde_json::to_vec(&told).map_err(|error| unreadable(rank, &error))
        })?;
        if let Some(told) = told {
            let told: Told = serde_json::from_slice(&told).map_err(|error| unreadable(rank, &error))?;
            all.push(told);
        }
    }
    if !world.is_first() {
        return Ok((ranks, steps));
    }
    let steps = merged(&all, zero_ns);
    let mut processes: Vec<(&str, u32, usize)> =
        all.iter().map(|told| (told.host.as_str(), told.process, told.threads)).collect();
    processes.sort_unstable();
    processes.dedup();
    ranks.threads = processes.iter().map(|(_, _, threads)| threads).sum();
    ranks.numbers = (0..all.len()).collect();
    ranks.programs = ranks.numbers.iter().filter_map(|&rank| runner.program_set().program(rank)).collect();
    ranks.hosts = all.into_iter().map(|told| told.host).collect();
    Ok((ranks, steps))
}

/// The zero of the clock of a runner's events, in nanoseconds since 1970.
fn zero_ns(runner: &Runner) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64).saturating_sub(runner.now_ns())
}

fn unreadable(rank: usize, error: &serde_json::Error) -> Box<Diagnostic> {
    Diagnostic::new(PROCESS_ENDED, format!("the events of rank {rank} cannot be read"))
        .found(error.to_string())
}

fn tell(steps: &[RecordedStep], rank: usize, zero_ns: u64, ranks: &Ranks) -> Told {
    let told = |step: &RecordedStep| ToldStep {
        step: step.step,
        begin_ns: step.begin_ns,
        end_ns: step.end_ns,
        events: step
            .events
            .iter()
            .filter(|event| event.rank == rank)
            .map(|event| (event.thread, event.instruction, event.begin_ns, event.end_ns, event.bytes))
            .collect(),
    };
    Told {
        host: host(),
        process: std::process::id(),
        threads: ranks.threads,
        zero_ns,
        steps: steps.iter().map(told).collect(),
    }
}

/// The steps of each rank, in the order of ranks, as steps of all on the clock whose zero is `zero_ns`.
fn merged(all: &[Told], zero_ns: u64) -> Vec<RecordedStep> {
    let count = all.iter().map(|told| told.steps.len()).min().unwrap_or(0);
    let merge =
        |number: usize| {
            let mut whole = RecordedStep { step: 0, begin_ns: u64::MAX, end_ns: 0, events: Vec::new() };
            for (rank, told) in all.iter().enumerate() {
                let here = |ns: u64| (told.zero_ns + ns).saturating_sub(zero_ns);
                let step = &told.steps[number];
                whole.step = step.step;
                whole.begin_ns = whole.begin_ns.min(here(step.begin_ns));
                whole.end_ns = whole.end_ns.max(here(step.end_ns));
                whole.events.extend(step.events.iter().map(|&(thread, instruction, begin, end, bytes)| {
                    Event { rank, thread, instruction, begin_ns: here(begin), end_ns: here(end), bytes }
                }));
            }
            whole
        };
    let mut steps: Vec<RecordedStep> = (0..count).map(merge).collect();
    // A step of all ends where the first process begins the next one: steps of the timeline never overlap.
    let begins: Vec<u64> = steps.iter().skip(1).map(|step| step.begin_ns).collect();
    for (step, next_ns) in steps.iter_mut().zip(begins) {
        step.end_ns = step.end_ns.min(next_ns);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_two_processes_are_put_on_one_clock() {
        let step = |step: u64, begin: u64| ToldStep {
            step,
            begin_ns: begin,
            end_ns: begin + 50,
            events: vec![(0, 7, begin + 10, begin + 20, 64)],
        };
        let told = |process: u32, zero_ns: u64, begin: u64| Told {
            host: "a".to_string(),
            process,
            threads: 1,
            zero_ns,
            steps: vec![step(4, begin), step(5, begin + 52)],
        };
        // The second process began to count 1000 ns later, and its step began 5 ns later.
        let steps = merged(&[told(1, 5000, 1200), told(2, 6000, 205)], 5000);
        let spans: Vec<_> = steps.iter().map(|step| (step.step, step.begin_ns, step.end_ns)).collect();
        // The second process is still in the first step when the first one begins the second.
        assert_eq!(spans, [(4, 1200, 1252), (5, 1252, 1307)]);
        let places: Vec<_> = steps[0].events.iter().map(|event| (event.rank, event.begin_ns)).collect();
        assert_eq!(places, [(0, 1210), (1, 1215)]);
    }
}
