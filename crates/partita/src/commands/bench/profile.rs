//! Where the time of a case goes, per kind of instruction.

use crate::output::events::Event;
use crate::output::format::table;
use indexmap::IndexMap;
use partita_base::Result;
use partita_program::{Action, Instruction, Program, RegionKind};
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
    /// Milliseconds per step and thread.
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
    /// The mean step in milliseconds.
    pub step_ms: f64,
    /// What is in no instruction: waiting for others, waking up, reading the loss.
    pub other_ms: f64,
    /// The kinds.
    pub rows: Vec<Row>,
}

impl Event for Profile {
    const NAME: &'static str = "profile";
}

/// The clocks of a runner: nanoseconds per rank and instruction.
pub fn clocks(runner: &Runner) -> Result<Vec<Vec<u64>>> {
    (0..runner.rank_count()).map(|rank| runner.instruction_nanos(rank)).collect()
}

impl Profile {
    /// What the clocks of `runner` have counted since they stood at `before`, over `steps` steps of `step_ms`
    /// milliseconds on average.
    pub fn new(
        case: String,
        runner: &Runner,
        before: &[Vec<u64>],
        steps: usize,
        step_ms: f64,
    ) -> Result<Profile> {
        let mut kinds: IndexMap<(String, &'static str), (usize, u64, f64, f64)> = IndexMap::new();
        for ((program, now), before) in runner.programs().programs.iter().zip(clocks(runner)?).zip(before) {
            for (index, instruction) in program.instructions.iter().enumerate() {
                let key = (describe(program, instruction), instruction.origin.phase.name());
                let (count, nanos, flops, bytes) = kinds.entry(key).or_default();
                *count += 1;
                *nanos += now[index] - before[index];
                if let Action::Compute(compute) = &instruction.action {
                    let cost = program.region(compute.region).cost();
                    (*flops, *bytes) = (*flops + cost.flops, *bytes + cost.bytes);
                }
            }
        }
        let per_step = (steps.max(1) * runner.worker_count()) as f64;
        let row = |((what, phase), (instructions, nanos, flops, bytes))| {
            // Per step, over all threads: operations in a nanosecond are 10^9 in a second.
            let nanos_per_step = (nanos as f64 / steps.max(1) as f64).max(1.0);
            let (gflops, gbytes_per_s) = (flops / nanos_per_step, bytes / nanos_per_step);
            Row { what, phase, instructions, ms: nanos as f64 / per_step / 1e6, gflops, gbytes_per_s }
        };
        let mut rows: Vec<Row> = kinds.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        let other_ms = step_ms - rows.iter().map(|row| row.ms).sum::<f64>();
        Ok(Profile { case, step_ms, other_ms, rows })
    }

    /// A table for people.
    pub fn text(&self) -> String {
        let share = |ms: f64| format!("{:.1} %", 100.0 * ms / self.step_ms);
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
        let without_rates = |what: &str, count: usize, ms: f64| {
            let count = if count > 0 { count.to_string() } else { String::new() };
            vec![what.to_string(), String::new(), count, format!("{ms:.3}"), share(ms)]
        };
        let mut lines: Vec<Vec<String>> = self.rows.iter().take(ROWS_SHOWN).map(line).collect();
        let count: usize = rest.clone().map(|row| row.instructions).sum();
        if count > 0 {
            lines.push(without_rates("all others", count, rest.map(|row| row.ms).sum()));
        }
        lines.push(without_rates("outside of instructions", 0, self.other_ms));
        let header = ["instruction", "phase", "count", "ms", "share", "GFLOP/s", "GB/s"];
        format!("{}: {:.3} ms a step\n{}", self.case, self.step_ms, table(&header, &lines))
    }
}

/// What an instruction does, so that like is counted with like.
fn describe(program: &Program, instruction: &Instruction) -> String {
    let what = &instruction.origin.what;
    match &instruction.action {
        Action::Start(_) => format!("start {what}"),
        Action::Wait(_) => format!("wait {what}"),
        Action::Compute(compute) => {
            let region = program.region(compute.region);
            let is_product = region.kind == RegionKind::Single && what.contains("dot");
            if !is_product {
                return what.clone();
            }
            let shapes: Vec<String> = compute.inputs.iter().map(|view| format!("{:?}", view.shape)).collect();
            format!("{what} {}", shapes.join(" "))
        }
    }
}
