//! `partita verify`: the planned step against one device.

use crate::compile::{self, Build};
use crate::config::Config;
use crate::output::Output;
use crate::output::format::{bytes, short};
use crate::output::progress::Working;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::Registry;
use partita_mesh::Mesh;
use partita_runtime::MemoryLimit;
use partita_schedule::verify::{StepRunner, Task, Unwatched, Verification, Verified, Watcher, Work};
use partita_schedule::{Tools, batch_shards};

/// Rows that a verification has at least, where the batch has as many.
const LEAST_ROWS: usize = 6;

/// The rows of the smallest batch that stands for a batch of `batch` rows in a verification: at least six, and split as
/// unevenly or evenly as that one. It has a row for each microbatch, its microbatches have equal sizes exactly where
/// the real ones have, and a microbatch divides among `shards` data-parallel shards exactly where a real one does, with
/// no empty shard that the real one does not have.
pub fn verification_rows(batch: usize, microbatches: usize, shards: usize) -> usize {
    // Of the largest and the smallest microbatch: whether its shards are equal, and how many of them hold a row.
    let shape = |rows: usize| {
        let sizes = [rows.div_ceil(microbatches), rows / microbatches];
        (sizes[0] == sizes[1], sizes.map(|size| (size.is_multiple_of(shards), size.min(shards))))
    };
    // More microbatches than rows: the split says so.
    match (1..=batch).contains(&microbatches) && shards > 0 {
        true => (LEAST_ROWS.min(batch)..batch).find(|&rows| shape(rows) == shape(batch)).unwrap_or(batch),
        false => batch,
    }
}

/// [`verification_rows`] of a config on its mesh.
pub fn verification_batch(config: &Config, mesh: &Mesh) -> usize {
    verification_rows(config.train.batch, config.train.microbatches, batch_shards(mesh))
}

/// Runs the step of `config` on its mesh through `runner` and on one device through the interpreter, on `batch` rows
/// with labels to ignore spread unevenly, and compares everything both return.
pub fn verify(
    config: &Config,
    batch: usize,
    runner: &dyn StepRunner,
    break_rule_at: Option<String>,
) -> Result<Verified> {
    verify_watched(config, batch, runner, break_rule_at, &Unwatched)
}

/// As [`verify`]; `watcher` hears what the interpreter has to do, and may refuse it.
pub fn verify_watched(
    config: &Config,
    batch: usize,
    runner: &dyn StepRunner,
    break_rule_at: Option<String>,
    watcher: &dyn Watcher,
) -> Result<Verified> {
    let mesh = compile::mesh(config)?;
    let varied = Build { batch, break_rule_at, ..Build::from_config(config) };
    let model = compile::model(config, &varied)?;
    let precise = match config.train.dtype {
        DType::F64 => None,
        _ => Some(compile::model(config, &Build { dtype: DType::F64, ..varied.clone() })?),
    };
    let verification = Verification {
        model: &model,
        precise: precise.as_ref(),
        options: &compile::build_options(config, &varied).for_verification(),
        tools: Tools { registry: &Registry::default(), runner },
        seed: config.train.seed,
        learning_rate: config.schedule.at(1),
        watcher,
    };
    verification.run(&compile::plan_of(config, &model, &mesh)?, &mesh)
}

/// Tells how far a verification is, and refuses what costs more than a config allows.
pub struct Guard {
    memory: MemoryLimit,
    most_operations: f64,
    working: Working,
    /// Whether the cost is told before it begins.
    tells_cost: bool,
}

impl Guard {
    /// For a config; `tells_cost` puts the cost on standard error before it begins.
    pub fn new(config: &Config, output: &Output, tells_cost: bool) -> Guard {
        Guard {
            memory: config.train.memory_limit,
            most_operations: config.train.verify_limit,
            working: output.working("planning the step to verify"),
            tells_cost,
        }
    }
}

impl Watcher for Guard {
    fn begins(&self, task: Task, work: &Work) -> Result<()> {
        let cost = format!(
            "{} ranks, {} ops, {} operations on elements, {} of values",
            work.ranks,
            short(work.nodes as f64),
            short(work.operations),
            bytes(work.bytes)
        );
        if work.operations > self.most_operations {
            return Err(Diagnostic::new("E042", "the verification costs too much on the interpreter")
                .expected(format!("at most {} operations on elements", short(self.most_operations)))
                .found(cost)
                .help("use a smaller model, batch or mesh, or --verify-limit OPERATIONS; `train --no-verify` trains without"));
        }
        self.memory.request(work.bytes, "the values of a verification")?;
        let what = match task {
            Task::Compare => "verifying",
            Task::Trace => "looking for the first value that differs",
        };
        if self.tells_cost {
            self.working.say(&format!("{what} on the interpreter: {cost}"));
        }
        self.working.becomes(what);
        self.working.expect(work.operations as u64);
        Ok(())
    }

    fn advances(&self, operations: f64) {
        self.working.advance(operations as u64);
    }
}

/// E030: why training does not start.
pub fn refused_to_train() -> Box<Diagnostic> {
    Diagnostic::new("E030", "training does not start: the plan changes the numbers")
        .expected("what one device computes")
        .found("a planned step that computes something else, as told above")
        .help("`partita verify CONFIG --runner cpu` tells more; `train --no-verify` trains all the same")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_batch_stands_for_a_large_one() {
        for ((batch, microbatches, shards), rows) in [
            ((32, 1, 1), 6),
            ((32, 1, 2), 6),
            ((32, 1, 4), 8),
            // 32 rows over 3 shards are uneven, 7 are too.
            ((32, 1, 3), 7),
            ((33, 1, 3), 6),
            ((32, 8, 2), 16),
            ((32, 8, 1), 8),
            ((32, 8, 4), 32),
            // Microbatches of 5, 5, 4 and 4 rows are split over two shards as those of 3, 2, 2 and 2 are.
            ((18, 4, 2), 9),
            // Fewer rows than shards stay so.
            ((3, 1, 4), 3),
            ((4, 2, 4), 4),
            ((1, 1, 1), 1),
            // What the split refuses is left to it.
            ((8, 9, 2), 8),
            ((8, 0, 2), 8),
        ] {
            assert_eq!(
                verification_rows(batch, microbatches, shards),
                rows,
                "{batch} {microbatches} {shards}"
            );
        }
    }
}
