//! The choices for a model with repeated layers, from one of them in closed form.

use super::{Choice, Cost, MOST_TP, Pricing, Strategy};
use crate::predict::Blocks;
use crate::predict::block::{BlockSpec, Recompute};
use crate::predict::small::not_folded;
use crate::predict::step::{Job, ParameterBytes, Software};
use crate::session::Session;
use partita_base::Result;
use partita_nn::{Optimizer, StepOptions};
use std::sync::{Mutex, PoisonError};

/// A model that is folded.
pub(super) struct Folded<'a> {
    session: &'a Session,
    blocks: Mutex<Blocks>,
}

impl Folded<'_> {
    pub fn of(session: &Session) -> Folded<'_> {
        Folded { session, blocks: Mutex::default() }
    }

    /// A step with one microbatch.
    fn job(&self, choice: &Choice, devices: usize, rows: usize) -> Result<Job> {
        let model = &self.session.config().model;
        let refused = || not_folded().found(format!("`{}`", model.name()));
        let [layers, _, dim] = model.stream().ok_or_else(refused)?;
        let Choice { strategy, states, recompute, offload, .. } = *choice;
        let (tp, dp, zero) = match strategy {
            Strategy::DataParallel => (1, devices, 0),
            Strategy::Zero(stage) => (1, devices, stage),
            Strategy::TensorParallel => (devices.min(MOST_TP), 1, 0),
        };
        let block = BlockSpec {
            model: model.clone(),
            tp,
            ep: 1,
            rows,
            dtype: self.session.config().cluster.half(),
            sequence_parallel: tp > 1,
            vocab_parallel: tp > 1,
            recompute: if recompute { Recompute::Layers } else { Recompute::Nothing },
            fused_attention: true,
            step: StepOptions::new(Optimizer::adamw()),
            plan: None,
        };
        let bytes = ParameterBytes {
            parameter: 4.0,
            gradient: 4.0,
            state: if offload { 0.0 } else { 4.0 * states },
            host: if offload { 4.0 * states } else { 0.0 },
            update: 0.0,
            reduced: 2.0,
            gathered: 2.0,
        };
        Ok(Job {
            dp,
            kv_features: dim,
            zero,
            shard_group: if zero > 0 { dp } else { 1 },
            ..Job::on_one_device(block, layers, bytes)
        })
    }
}

impl Pricing for Folded<'_> {
    fn parameters(&self) -> Result<f64> {
        let choice = Choice {
            strategy: Strategy::DataParallel,
            optimizer: "sgd",
            states: 0.0,
            recompute: false,
            offload: false,
        };
        let job = self.job(&choice, 1, 1)?;
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(blocks.forecast(&job, &self.session.config().cluster, &Software::default())?.parameters)
    }

    /// More than any device holds of a model worth sharing.
    fn most_rows(&self) -> usize {
        1 << 16
    }

    fn cost(&self, choice: &Choice, devices: usize, rows: usize) -> Result<Cost> {
        let job = self.job(choice, devices, rows)?;
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let forecast = blocks.forecast(&job, &self.session.config().cluster, &Software::default())?;
        let over = if matches!(choice.strategy, Strategy::Zero(_)) { devices } else { job.block.tp };
        Ok(Cost {
            bytes: forecast.fullest(),
            host_bytes: forecast.parameters * job.bytes.host / over as f64,
            step_s: forecast.seconds.step_s,
        })
    }
}
