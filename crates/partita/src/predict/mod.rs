//! Predictions of training steps of any size: `partita simulate` at scale, `simulate --rows` and `estimate`.
//!
//! A model is folded to one repeated layer ([`block`]), whose programs are those that would run, and unfolded by stages,
//! microbatches and data parallel ranks ([`step`]). [`rows`] reads tables of published runs, [`fit`] the constants of
//! their software, [`estimate`] asks how many devices a model needs.

pub mod block;
pub mod csv;
pub mod estimate;
pub mod fit;
pub mod fold;
pub mod rows;
pub mod step;

use block::{Block, BlockSpec};
use partita_base::Result;
use partita_cost::Cluster;
use std::collections::BTreeMap;
use std::sync::Arc;
use step::{Forecast, Job, Software, forecast};

/// Blocks that were compiled, so that runs which share one compile it once.
#[derive(Debug, Default)]
pub struct Blocks {
    known: BTreeMap<String, Arc<Block>>,
}

impl Blocks {
    /// The block of a specification.
    ///
    /// # Errors
    /// Those of [`Block::compile`].
    pub fn of(&mut self, spec: &BlockSpec) -> Result<Arc<Block>> {
        let key = spec.key();
        if let Some(block) = self.known.get(&key) {
            return Ok(block.clone());
        }
        let block = Arc::new(Block::compile(spec)?);
        self.known.insert(key, block.clone());
        Ok(block)
    }

    /// The forecast of a job.
    ///
    /// # Errors
    /// Those of [`Block::compile`] and [`forecast`].
    pub fn forecast(&mut self, job: &Job, cluster: &Cluster, software: &Software) -> Result<Forecast> {
        forecast(job, &*self.of(&job.block)?, cluster, software)
    }
}
