//! `partita verify`: the planned step against one device.

use crate::compile::{self, Build};
use crate::config::Config;
use partita_base::{DType, Result};
use partita_ir::Registry;
use partita_schedule::Tools;
use partita_schedule::verify::{StepRunner, Verification, Verified};

/// Rows of the batch used for verification: every data-parallel rank of the meshes in the docs has one, unevenly.
pub const VERIFY_BATCH: usize = 6;

/// Runs the step of `config` on its mesh through `runner` and on one device through the interpreter, on `batch` rows
/// with labels to ignore spread unevenly, and compares everything both return.
pub fn verify(
    config: &Config,
    batch: usize,
    runner: &dyn StepRunner,
    break_rule_at: Option<String>,
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
    };
    verification.run(&compile::plan_of(config, &model, &mesh)?, &mesh)
}
