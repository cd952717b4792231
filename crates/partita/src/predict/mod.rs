//! Predictions of training steps of any size: `partita simulate` at scale, `simulate --validate` and `estimate`.
//!
//! A model is folded to one repeated layer ([`block`]), whose programs are those that would run, and unfolded by stages,
//! microbatches and data parallel ranks ([`step`]). [`rows`] reads tables of published runs, [`fit`] the constants of
//! their software, [`estimate`] asks how many devices a model needs.

pub mod attention;
pub mod block;
pub(crate) mod bytes;
pub mod csv;
pub mod estimate;
mod exchanges;
pub mod fit;
pub mod fold;
mod forecast;
mod reading;
pub mod rows;
mod run;
pub(crate) mod small;
mod small_bytes;
mod small_steps;
pub mod step;
pub mod unfold;

use crate::cores::on_all_cores;
use block::{Block, BlockSpec};
use partita_base::Result;
use partita_cost::Cluster;
use std::collections::BTreeMap;
use std::sync::Arc;
use step::{Forecast, Job, Software, forecast};

/// The numbers of rows of which blocks are compiled where others are derived from them. One row has layouts of its own.
pub const FEW_ROWS: usize = 2;
/// See [`FEW_ROWS`].
pub const MORE_ROWS: usize = 4;

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

    /// The block of a specification, from those of [`FEW_ROWS`] and [`MORE_ROWS`] rows where their programs are alike.
    ///
    /// # Errors
    /// Those of [`Block::compile`].
    pub fn at_rows(&mut self, spec: &BlockSpec) -> Result<Arc<Block>> {
        let key = spec.key();
        if let Some(block) = self.known.get(&key) {
            return Ok(block.clone());
        }
        let [few, more] = [FEW_ROWS, MORE_ROWS].map(|rows| BlockSpec { rows, ..spec.clone() });
        let found = Block::at_rows((&*self.of(&few)?, FEW_ROWS), (&*self.of(&more)?, MORE_ROWS), spec.rows);
        let block = Arc::new(found.map_or_else(|| Block::compile(spec), Ok)?);
        self.known.insert(key, block.clone());
        Ok(block)
    }

    /// Compiles the blocks of these specifications on all cores. [`Blocks::of`] says why one cannot be compiled.
    pub fn prepare(&mut self, specs: &[&BlockSpec]) {
        let mut missing: BTreeMap<String, &BlockSpec> =
            specs.iter().map(|spec| (spec.key(), *spec)).collect();
        missing.retain(|key, _| !self.known.contains_key(key));
        let missing: Vec<(String, &BlockSpec)> = missing.into_iter().collect();
        let compile = |number: usize| Block::compile(missing[number].1).ok();
        let compiled = on_all_cores(missing.len(), |_| {}, compile);
        let known = missing.iter().zip(compiled).filter_map(|((key, _), block)| Some((key.clone(), block?)));
        self.known.extend(known.map(|(key, block)| (key, Arc::new(block))));
    }

    /// The forecast of a job.
    ///
    /// # Errors
    /// Those of [`Block::compile`] and [`forecast`].
    pub fn forecast(&mut self, job: &Job, cluster: &Cluster, software: &Software) -> Result<Forecast> {
        forecast(job, &*self.of(&job.block)?, cluster, software)
    }
}
