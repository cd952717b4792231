//! The models that are measured, in the sizes that others are measured in.

use super::fused::{Pass, least_traffic_bytes};
use partita::models::ModelSource;
use partita_base::{DType, Result};
use partita_ir::ops::DotGeneral;
use partita_nn::{
    Activation, BertConfig, Context, GptConfig, Linear, Model, ModelConfig, Module, Optimizer, StepOptions,
};
use partita_nn::{Init, losses};
use partita_schedule::StepKind;

/// A training step, or a part of one.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// One product of `[m, k]` and `[k, n]`, rows over `dp`.
    Product([usize; 3]),
    /// Slapo's MLP: two layers with GELU between, `[2, 512, 1024]` in and out, forward and backward.
    Slapo,
    /// Alpa's MLP of four layers, each with ReLU, 1024 rows; a whole step of Adam.
    Alpa,
    /// A GPT of these sizes and rows; a whole step of AdamW.
    Gpt(GptConfig, usize),
    /// A BERT of these sizes and rows; a whole step of AdamW.
    Bert(BertConfig, usize),
    /// Something that memory bounds.
    Pass(Pass),
}

/// Features of Slapo's MLP.
const SLAPO: [usize; 3] = [1024; 3];
/// Features of Alpa's.
const ALPA: [usize; 5] = [1024, 4096, 1024, 4096, 1024];
/// Rows of both; Slapo's come as 2 of 512.
const ROWS: usize = 1024;

impl Step {
    /// A GPT of the named size: `tiny`, `small`, `small8h` or `gpt2`.
    ///
    /// # Panics
    /// For another name.
    pub fn gpt(name: &str) -> Step {
        let (vocab, dim, layers, heads, sequence, rows) = match name {
            "tiny" => (256, 128, 4, 4, 128, 16),
            "small" => (256, 384, 6, 6, 256, 8),
            "small8h" => (256, 384, 6, 8, 256, 8),
            "gpt2" => (50257, 768, 12, 12, 256, 2),
            other => unreachable!("no GPT of size {other}"),
        };
        Step::Gpt(GptConfig { vocab, dim, layers, heads, sequence, ..GptConfig::default() }, rows)
    }

    /// BERT's base size, with 128 positions.
    pub fn bert() -> Step {
        let sizes = BertConfig {
            vocab: 30522,
            dim: 768,
            layers: 12,
            heads: 12,
            sequence: 128,
            ..BertConfig::default()
        };
        Step::Bert(BertConfig { fused_qkv: true, ..sizes }, 4)
    }

    /// The forward graph.
    pub fn model(&self) -> Result<Model> {
        match self {
            Step::Product([m, k, n]) => {
                let mut cx = Context::new("product", DType::F32, false);
                let lhs = cx.input("inputs", DType::F32, &[*m, *k]);
                let rhs = cx.param("weight", &[*k, *n], Init::Uniform { bound: 1.0 })?;
                let dims = DotGeneral {
                    lhs_contracting: vec![1],
                    rhs_contracting: vec![0],
                    ..DotGeneral::default()
                };
                let product = cx.builder.dot_general(lhs, rhs, dims)?;
                cx.finish(vec![("product".to_string(), product)])
            }
            Step::Slapo => stack(&[2, ROWS / 2], &SLAPO, Activation::Gelu, false),
            Step::Alpa => stack(&[ROWS], &ALPA, Activation::Relu, true),
            Step::Pass(pass) => pass.model(),
            Step::Gpt(config, rows) => ModelConfig::Gpt(config.clone()).build(*rows, DType::F32, true),
            Step::Bert(config, rows) => ModelConfig::Bert(config.clone()).build(*rows, DType::F32, true),
        }
    }

    /// The part of a training step that is measured.
    pub fn part(&self) -> StepKind {
        match self {
            Step::Product(_) | Step::Pass(_) => StepKind::Loss,
            Step::Slapo => StepKind::Gradients,
            Step::Alpa | Step::Gpt(..) | Step::Bert(..) => StepKind::Step,
        }
    }

    /// The update, and its learning rate.
    pub fn update(&self) -> (StepOptions, f64) {
        let (optimizer, rate) = match self {
            Step::Product(_) | Step::Pass(_) | Step::Slapo => {
                (Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false }, 0.0)
            }
            Step::Alpa => (Optimizer::from_name("adam").expect("a known optimizer"), 1e-3),
            Step::Gpt(..) | Step::Bert(..) => {
                (Optimizer::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 }, 3e-4)
            }
        };
        // The programs that these are compared with do not compute the norm of the gradients.
        let decay_1d = matches!(self, Step::Gpt(..) | Step::Bert(..));
        (StepOptions { grad_norm: false, decay_1d, ..StepOptions::new(optimizer) }, rate)
    }

    /// The ready plan that suits it, by name of a model; `None` where data parallelism is all there is.
    pub fn plan(&self) -> Option<&'static str> {
        match self {
            Step::Product(_) | Step::Pass(_) => None,
            Step::Slapo | Step::Alpa => Some("mlp"),
            Step::Gpt(..) => Some("gpt"),
            Step::Bert(..) => Some("bert"),
        }
    }

    /// Bytes of inputs and outputs, where memory bounds the step.
    pub fn least_traffic_bytes(&self) -> Option<usize> {
        let Step::Pass(pass) = self else { return None };
        pass.model().ok().map(|model| least_traffic_bytes(&model.forward))
    }

    /// Floating-point operations of the matrix products: forward once and backward twice, less the gradient of what is fed
    /// for the MLP of Slapo; causal attention counts in full. The counts that others' figures are made with.
    pub fn flops(&self) -> f64 {
        let layers = |dims: &[usize]| -> f64 {
            dims.windows(2).map(|pair| 6.0 * (ROWS * pair[0] * pair[1]) as f64).sum()
        };
        let first = |dims: &[usize]| 2.0 * (ROWS * dims[0] * dims[1]) as f64;
        match self {
            Step::Pass(_) => 0.0,
            Step::Product([m, k, n]) => 2.0 * *m as f64 * *k as f64 * *n as f64,
            Step::Slapo => layers(&SLAPO) - first(&SLAPO),
            Step::Alpa => layers(&ALPA) - first(&ALPA),
            Step::Gpt(config, rows) => {
                transformer([config.dim, config.sequence, config.vocab, config.layers, *rows])
            }
            // The head of a masked language model has one more product of the features.
            Step::Bert(config, rows) => {
                let head = 6.0 * (rows * config.sequence * config.dim * config.dim) as f64;
                head + transformer([config.dim, config.sequence, config.vocab, config.layers, *rows])
            }
        }
    }
}

/// Operations of a step of a transformer: of features, positions, vocabulary, layers and rows.
fn transformer(sizes: [usize; 5]) -> f64 {
    let [dim, sequence, vocab, layers, rows] = sizes.map(|n| n as f64);
    let layer = 24.0 * dim * dim + 4.0 * sequence * dim;
    3.0 * rows * sequence * (layers * layer + 2.0 * dim * vocab)
}

impl ModelSource for Step {
    fn name(&self) -> &str {
        "bench"
    }

    fn build(&self, _: usize, _: DType, _: bool) -> Result<Model> {
        self.model()
    }
}

/// Linear layers with an activation after each (the last one only where `closed`) and a mean squared error.
fn stack(rows: &[usize], dims: &[usize], activation: Activation, closed: bool) -> Result<Model> {
    let mut cx = Context::new("mlp", DType::F32, true);
    let with = |features: usize| [rows, &[features]].concat();
    let mut x = cx.input("inputs", DType::F32, &with(dims[0]));
    let targets = cx.input("targets", DType::F32, &with(dims[dims.len() - 1]));
    for (index, pair) in dims.windows(2).enumerate() {
        x = cx.call(&format!("layers.{index}"), &Linear::new(pair[0], pair[1]), x)?;
        if closed || index + 2 < dims.len() {
            x = activation.forward(&mut cx, x)?;
        }
    }
    let loss = losses::mse(&mut cx, x, targets)?;
    cx.finish(vec![("loss".to_string(), loss)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameters of the same models elsewhere: GPT-2 has 124M, of which 50257 x 768 in the tied table, and 256 positions
    /// here.
    #[test]
    fn the_models_have_the_sizes_of_those_they_stand_for() {
        let count = |step: Step| step.model().unwrap_or_else(|error| panic!("{error}")).parameter_count();
        let layer = |d: usize| 12 * d * d + 13 * d;
        assert_eq!(count(Step::gpt("gpt2")), (50257 + 256) * 768 + 12 * layer(768) + 2 * 768);
        assert_eq!(count(Step::gpt("small8h")), 512 * 384 + 6 * layer(384) + 2 * 384);
        assert_eq!(count(Step::gpt("tiny")), (256 + 128) * 128 + 4 * layer(128) + 2 * 128);
        assert_eq!(count(Step::Slapo), 2 * (1024 * 1024 + 1024));
        assert_eq!(count(Step::Alpa), 4 * 1024 * 4096 + 2 * (4096 + 1024));
    }

    /// 855 ms at 171 GFLOP/s, as recorded for the small GPT.
    #[test]
    fn flops_are_those_of_hand_counts() {
        assert_eq!(Step::Product([2, 3, 5]).flops(), 60.0);
        assert_eq!(Step::Slapo.flops(), 10.0 * 1024f64.powi(3));
        let small = 3.0 * 2048.0 * (6.0 * (24.0 * 384.0 * 384.0 + 4.0 * 256.0 * 384.0) + 2.0 * 384.0 * 256.0);
        assert_eq!(Step::gpt("small").flops(), small);
    }
}
