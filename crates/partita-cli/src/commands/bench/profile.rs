//! Where the time of a case goes, per kind of instruction.

use crate::output::events::Event;
use crate::output::format::table;
use indexmap::IndexMap;
use partita::profile::label;
use partita_base::Result;
use partita_program::Action;
use partita_runtime::Runner;
use serde::Serialize;

/// Rows shown to people; machines get all.
const ROWS_SHOWN: usize = 30;

/// One kind of instruction.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Row {
    /// The op or the fused ops; for matrix products with the shapes of the operands.
    pub what: String,
    /// Part of the step.
    pub phase: &'static str,
    /// Instructions of this kind in one step of all ranks.
    pub instructions: usize,
    /// Milliseconds per step and thread, each instruction at its fastest.
    pub ms: f64,
    /// Floating-point operations per second of a thread, in units of 10^9.
    pub gflops: f64,
    /// Bytes of inputs and outputs per second of a thread, in units of 10^9.
    pub gbytes_per_s: f64,
}

/// The kinds of instructions of a case, the slowest first.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Profile {
    /// `suite/case`.
    pub case: String,
    /// The fastest step in milliseconds.
    pub step_ms: f64,
    /// What of it is in no instruction: waiting for others, waking up, reading the loss; and what instructions took longer
    /// in that step than at best.
    pub other_ms: f64,
    /// The kinds.
    pub rows: Vec<Row>,
}

impl Event for Profile {
    const NAME: &'static str = "profile";
}

/// The clocks of a runner: nanoseconds per rank and instruction.
pub fn clocks(runner: &Runner) -> Result<Vec<Vec<u64>>> {
    runner.local_ranks().iter().map(|&rank| Ok(runner.instruction_nanos(rank)?.to_vec())).collect()
}

/// How long each instruction took in the run in which it was fastest: others that want the same core disturb that least.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct InstructionTimes {
    last: Vec<Vec<u64>>,
    fastest: Vec<Vec<u64>>,
}

impl InstructionTimes {
    /// A run has ended, and the clocks now stand here.
    pub fn note(&mut self, clocks: Vec<Vec<u64>>) {
        if self.last.is_empty() {
            (self.last, self.fastest) = (clocks.clone(), clocks);
            return;
        }
        for ((last, fastest), now) in self.last.iter_mut().zip(&mut self.fastest).zip(clocks) {
            for ((last, fastest), now) in last.iter_mut().zip(fastest).zip(now) {
                *fastest = (*fastest).min(now - *last);
                *last = now;
            }
        }
    }

    /// Forgets the runs so far.
    pub fn restart(&mut self) {
        self.fastest.iter_mut().flatten().for_each(|nanos| *nanos = u64::MAX);
    }

    /// Nanoseconds per rank and instruction.
    pub fn fastest(&self) -> &[Vec<u64>] {
        &self.fastest
    }
}

impl Profile {
    /// From the nanoseconds of every instruction of every rank of `runner`, and the milliseconds of the whole step.
    pub fn new(case: String, runner: &Runner, nanos: &[Vec<u64>], step_ms: f64) -> Profile {
        let mut kinds: IndexMap<(String, &'static str), (usize, u64, f64, f64)> = IndexMap::new();
        for (program, spent) in runner.programs().iter().zip(nanos) {
            for (index, instruction) in program.instructions.iter().enumerate() {
                let key = (label(program, instruction, " "), instruction.origin.phase.name());
                let (count, nanos, flops, bytes) = kinds.entry(key).or_default();
                *count += 1;
                *nanos += spent[index];
                if let Action::Compute(compute) = &instruction.action {
                    let cost = program.region(compute.region).cost();
                    (*flops, *bytes) = (*flops + cost.flops, *bytes + cost.bytes);
                }
            }
        }
        let row = |((what, phase), (instructions, nanos, flops, bytes))| {
            // Operations in a nanosecond are 10^9 in a second.
            let nanos = (nanos as f64).max(1.0);
            let (gflops, gbytes_per_s) = (flops / nanos, bytes / nanos);
            let ms = nanos / runner.thread_count() as f64 / 1e6;
            Row { what, phase, instructions, ms, gflops, gbytes_per_s }
        };
        let mut rows: Vec<Row> = kinds.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        let other_ms = step_ms - rows.iter().map(|row| row.ms).sum::<f64>();
        Profile { case, step_ms, other_ms, rows }
    }

    /// A table for people.
    pub fn text(&self) -> String {
        let work_ms: f64 = self.rows.iter().map(|row| row.ms).sum();
        let share = |ms: f64| format!("{:.1} %", 100.0 * ms / work_ms);
        let line = |row: &Row| {
            vec![
                row.what.clone(),
                row.phase.to_string(),
                row.instructions.to_string(),
                format!("{:.3}", row.ms),
                share(row.ms),
                format!("{:.1}", row.gflops),
                format!("{:.1}", row.gbytes_per_s),
            ]
        };
        let rest = self.rows.iter().skip(ROWS_SHOWN);
        let mut lines: Vec<Vec<String>> = self.rows.iter().take(ROWS_SHOWN).map(line).collect();
        let count: usize = rest.clone().map(|row| row.instructions).sum();
        if count > 0 {
            let ms: f64 = rest.map(|row| row.ms).sum();
            lines.push(vec![
                "all others".into(),
                String::new(),
                count.to_string(),
                format!("{ms:.3}"),
                share(ms),
            ]);
        }
        lines.push(vec![
            "waiting and the rest".into(),
            String::new(),
            String::new(),
            format!("{:.3}", self.other_ms),
        ]);
        let header = ["instruction", "phase", "count", "ms", "share", "GFLOP/s", "GB/s"];
        format!("{}: {:.3} ms a step\n{}", self.case, self.step_ms, table(&header, &lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instruction_is_counted_at_its_fastest() {
        let mut times = InstructionTimes::default();
        times.note(vec![vec![5, 50]]);
        times.restart();
        for clocks in [[15, 53], [22, 63], [42, 68]] {
            times.note(vec![clocks.to_vec()]);
        }
        assert_eq!(times.fastest(), [[7, 3]]);
    }
}
