//! A task made up on the spot: imitate a fixed random network.

use super::{Fed, Feed};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Literal, TensorType};
use partita_nn::random::Draws;
use std::collections::BTreeMap;

/// Validation batches before they would repeat; there is no end to them, but a validation needs one.
const VALIDATION_BATCHES: u64 = 1 << 20;

/// Feeds an MLP: normal `inputs`, and as `targets` what a teacher makes of them, `tanh(x A) B` with fixed random A and
/// B; or, for classification, the largest of the teacher's outputs as `labels`.
pub struct RegressionFeed {
    inputs: usize,
    hidden: usize,
    outputs: usize,
    classify: bool,
    batch: usize,
    dtype: DType,
    seed: u64,
    /// `[inputs, hidden]` and `[hidden, outputs]`, row-major.
    teacher: [Vec<f64>; 2],
}

impl RegressionFeed {
    /// `batch` rows of the first of `dims` features in, the last of `dims` out, both in `dtype`.
    ///
    /// # Panics
    /// If `dims` is empty; `MlpConfig::validate` sees to that.
    pub fn new(dims: &[usize], classify: bool, batch: usize, dtype: DType, seed: u64) -> RegressionFeed {
        let (inputs, outputs) = (dims[0], dims[dims.len() - 1]);
        let hidden = 2 * inputs;
        let matrix = |name: &str, rows: usize, columns: usize| -> Vec<f64> {
            let (draws, scale) = (Draws::new(seed, name), 1.0 / (rows as f64).sqrt());
            (0..(rows * columns) as u64).map(|i| draws.normal(i) * scale).collect()
        };
        let teacher = [matrix("teacher.0", inputs, hidden), matrix("teacher.1", hidden, outputs)];
        RegressionFeed { inputs, hidden, outputs, classify, batch, dtype, seed, teacher }
    }

    fn rows(&self, stream: &str, step: u64) -> Fed {
        let draws = Draws::new(self.seed, stream);
        let count = self.batch * self.inputs;
        let first = step * count as u64;
        let ty = TensorType::new(self.dtype, [self.batch, self.inputs]);
        let inputs = Literal::from_f64(&ty, (first..first + count as u64).map(|i| draws.normal(i)));
        let mut targets = Vec::with_capacity(self.batch * self.outputs);
        for row in inputs.to_f64().chunks(self.inputs) {
            let hidden: Vec<f64> =
                multiply(row, &self.teacher[0], self.hidden).into_iter().map(f64::tanh).collect();
            targets.extend(multiply(&hidden, &self.teacher[1], self.outputs));
        }
        let (name, goal) = if self.classify {
            let largest = |row: &[f64]| {
                (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as i32
            };
            let labels: Vec<i32> = targets.chunks(self.outputs).map(largest).collect();
            ("labels", Literal::new([self.batch], labels))
        } else {
            let ty = TensorType::new(self.dtype, [self.batch, self.outputs]);
            ("targets", Literal::from_f64(&ty, targets.into_iter()))
        };
        IndexMap::from([("inputs".to_string(), inputs), (name.to_string(), goal)])
    }
}

/// A row times a row-major matrix.
fn multiply(row: &[f64], matrix: &[f64], columns: usize) -> Vec<f64> {
    let mut result = vec![0.0; columns];
    for (x, weights) in row.iter().zip(matrix.chunks(columns)) {
        result.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
    }
    result
}

impl Feed for RegressionFeed {
    fn batch(&self, step: u64) -> Result<Fed> {
        Ok(self.rows("inputs", step))
    }

    fn validation(&self, index: u64) -> Result<Fed> {
        Ok(self.rows("inputs.validation", index))
    }

    fn validation_batches(&self) -> u64 {
        VALIDATION_BATCHES
    }

    fn tokens_per_batch(&self) -> usize {
        self.batch
    }

    fn describe(&self) -> String {
        let goal = if self.classify { "classes" } else { "targets" };
        format!(
            "random inputs, {goal} from a random tanh network {}-{}-{}",
            self.inputs, self.hidden, self.outputs
        )
    }

    fn position(&self, steps: u64) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("data.samples".to_string(), (steps * self.batch as u64).to_string()),
            ("data.seed".to_string(), self.seed.to_string()),
        ])
    }

    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64> {
        let saved = |key: &str| position.get(key).map_or("nothing", String::as_str);
        if saved("data.seed") != self.seed.to_string() {
            return Err(Diagnostic::new("E304", "the checkpoint was made with another data.seed")
                .expected(saved("data.seed"))
                .found(self.seed.to_string())
                .help("resume with the same seed"));
        }
        match saved("data.samples").parse::<u64>() {
            Ok(samples) if samples % self.batch as u64 == 0 => Ok(samples / self.batch as u64),
            _ => Err(Diagnostic::new("E304", "the data position does not fall on the start of a batch")
                .expected(format!("a multiple of the batch size {}", self.batch))
                .found(format!("{} rows seen so far", saved("data.samples")))
                .help("resume with a batch size that divides it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_a_fixed_function_of_the_inputs() {
        // The teacher sees one row at a time: the same input row gives the same target in any batch.
        let (large, small) = (
            RegressionFeed::new(&[6, 9, 3], false, 8, DType::F64, 5),
            RegressionFeed::new(&[6, 9, 3], false, 4, DType::F64, 5),
        );
        let whole = large.batch(2).unwrap();
        let halves = [small.batch(4).unwrap(), small.batch(5).unwrap()];
        for name in ["inputs", "targets"] {
            let joined: Vec<f64> = halves.iter().flat_map(|h| h[name].to_f64()).collect();
            assert_eq!(whole[name].to_f64(), joined);
        }
        assert_eq!(
            (whole["inputs"].ty.shape.as_slice(), whole["targets"].ty.shape.as_slice()),
            (&[8, 6][..], &[8, 3][..])
        );
        assert_ne!(whole, large.batch(3).unwrap());
        assert_ne!(whole, large.validation(2).unwrap());
    }

    #[test]
    fn targets_can_be_learnt_but_are_not_linear() {
        // An odd bounded function: f(-x) = -f(x), and f(2x) != 2 f(x).
        let feed = RegressionFeed::new(&[4, 2], false, 1, DType::F64, 1);
        let teach = |x: [f64; 4]| {
            let hidden: Vec<f64> = multiply(&x, &feed.teacher[0], 8).into_iter().map(f64::tanh).collect();
            multiply(&hidden, &feed.teacher[1], 2)
        };
        let (one, minus, two) =
            (teach([1.0, 2.0, 0.5, -1.0]), teach([-1.0, -2.0, -0.5, 1.0]), teach([2.0, 4.0, 1.0, -2.0]));
        for i in 0..2 {
            assert!((one[i] + minus[i]).abs() < 1e-12);
            assert!((two[i] - 2.0 * one[i]).abs() > 1e-3);
        }
    }

    #[test]
    fn classes_are_all_met_and_types_follow_the_model() {
        let feed = RegressionFeed::new(&[5, 4], true, 400, DType::F32, 2);
        let fed = feed.batch(0).unwrap();
        assert_eq!((fed["inputs"].ty.dtype, fed["labels"].ty.dtype), (DType::F32, DType::I32));
        let labels = fed["labels"].to_i64();
        assert!((0..4).all(|class| labels.iter().filter(|&&l| l == class).count() > 10), "{labels:?}");
        assert!(labels.iter().all(|l| (0..4).contains(l)));
    }

    #[test]
    fn a_position_resumes_with_the_same_seed_only() {
        let feed = |batch, seed| RegressionFeed::new(&[5, 4], false, batch, DType::F32, seed);
        let position = feed(4, 2).position(6);
        assert_eq!(feed(8, 2).resume(&position).unwrap(), 3);
        assert_eq!(feed(4, 3).resume(&position).unwrap_err().code, "E304");
        assert_eq!(feed(7, 2).resume(&position).unwrap_err().code, "E304");
    }
}
