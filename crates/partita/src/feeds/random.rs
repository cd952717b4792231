//! Random numbers for every input: data for a model of a file whose inputs mean nothing here, to see that and how fast it
//! runs.

use super::{Fed, Feed};
use crate::signature::{Input, Signature};
use partita_base::{Diagnostic, Result};
use partita_nn::random::Draws;
use partita_schedule::feed::random;
use std::collections::BTreeMap;

/// Validation batches before they would repeat; there is no end to them, but a validation needs one.
const VALIDATION_BATCHES: u64 = 1 << 20;

/// Normal numbers, and integers within the bounds that the ops which read them imply, by (seed, input, step).
pub struct RandomFeed {
    inputs: Vec<Input>,
    batch: usize,
    seed: u64,
}

impl RandomFeed {
    /// For the inputs of a model.
    pub fn new(signature: &Signature, batch: usize, seed: u64) -> RandomFeed {
        RandomFeed { inputs: signature.inputs.clone(), batch, seed }
    }

    fn draw(&self, part: &str, step: u64) -> Fed {
        let value = |input: &Input| {
            let draws = Draws::new(self.seed, &format!("{part}.{step}.{}", input.name));
            (input.name.clone(), random(&input.ty, draws, input.choices))
        };
        self.inputs.iter().map(value).collect()
    }
}

impl Feed for RandomFeed {
    fn batch(&self, step: u64) -> Result<Fed> {
        Ok(self.draw("training", step))
    }

    fn validation(&self, index: u64) -> Result<Fed> {
        Ok(self.draw("validation", index))
    }

    fn validation_batches(&self) -> u64 {
        VALIDATION_BATCHES
    }

    fn tokens_per_batch(&self) -> usize {
        self.batch
    }

    fn describe(&self) -> String {
        let names: Vec<&str> = self.inputs.iter().map(|input| input.name.as_str()).collect();
        format!("random numbers for {}: --data names a file of tensors", names.join(", "))
    }

    fn position(&self, steps: u64) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("data.steps".to_string(), steps.to_string()),
            ("data.seed".to_string(), self.seed.to_string()),
        ])
    }

    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64> {
        let saved = |key: &str| position.get(key).map_or("nothing", String::as_str);
        match saved("data.steps").parse() {
            Ok(steps) if saved("data.seed") == self.seed.to_string() => Ok(steps),
            _ => Err(Diagnostic::new("E304", "the checkpoint was made with other data")
                .expected(format!("random numbers of seed {}", saved("data.seed")))
                .found(format!("random numbers of seed {}", self.seed))
                .help("resume with the same seed")),
        }
    }
}
