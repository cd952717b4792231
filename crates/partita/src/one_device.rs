//! How fast one device is that has all the cores which the ranks of a mesh share.

use crate::compile::{self, Build};
use crate::config::Config;
use crate::feeds::Feed;
use crate::play::CpuStep;
use crate::trainer::Trainer;
use partita_base::Result;
use partita_ir::Registry;
use partita_mesh::Mesh;
use partita_nn::Model;
use partita_runtime::RunnerOptions;
use partita_schedule::{Plan, Tools, build};
use std::time::{Duration, Instant};

/// Steps that are measured after a first one, at most.
const MOST_STEPS: u64 = 20;
/// At least.
const FEWEST_STEPS: u64 = 2;
/// The time that measured steps may take together.
const BUDGET: Duration = Duration::from_millis(300);
/// A mesh whose steps take longer is not compared: building and trying another one would be felt.
const SLOW_STEP: Duration = Duration::from_millis(250);

/// Tokens (rows, without tokens) per second of the config's step without a plan on one device, with the batch and the
/// threads that the mesh has. `None` where `step`, the time of a step on the mesh, is too long to try it in passing.
///
/// # Errors
/// What building, lowering and running say.
pub fn tokens_per_s(
    config: &Config,
    model: &Model,
    feed: &dyn Feed,
    options: RunnerOptions,
    step: Duration,
) -> Result<Option<f64>> {
    if step > SLOW_STEP {
        return Ok(None);
    }
    let mesh = Mesh::new("one", &[("dp", 1)]);
    let build_options = compile::build_options(config, &Build::from_config(config));
    let tools = Tools { registry: &Registry::default(), runner: &CpuStep { options: options.clone() } };
    let built = build(model, &Plan::default(), &mesh, &build_options, &tools)?;
    let mut trainer = Trainer::new(&built, model, config.train.seed, options)?;
    let mut timed = |index: u64| -> Result<Duration> {
        let batch = feed.batch(index)?;
        let begin = Instant::now();
        trainer.step(&batch, config.schedule.at(index + 1))?;
        Ok(begin.elapsed())
    };
    // The first one brings memory in.
    timed(0)?;
    let (mut steps, mut spent) = (0, Duration::ZERO);
    while steps < FEWEST_STEPS || (steps < MOST_STEPS && spent < BUDGET) {
        steps += 1;
        spent += timed(steps)?;
    }
    Ok(Some(steps as f64 * feed.tokens_per_batch() as f64 / spent.as_secs_f64().max(1e-9)))
}
