//! Stacked linear layers for regression or classification.

use super::{positive, with_loss};
use crate::context::Context;
use crate::losses;
use crate::modules::{Activation, Linear, Module};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::ValueId;
use partita_ir::port::LOSS;

/// Layers `layers.0`, `layers.1`, .. with an activation between them.
///
/// Inputs: `inputs` `[batch, first dim]`; for regression `targets` `[batch, last dim]`, for classification `labels` i32
/// `[batch]`. Outputs: `loss` (mean squared error or cross entropy) and `prediction` or `logits`.
#[derive(Clone, PartialEq, Debug)]
pub struct MlpConfig {
    /// Features before, between and after the layers.
    pub dims: Vec<usize>,
    /// The activation between layers.
    pub activation: Activation,
    /// Whether layers have a bias.
    pub bias: bool,
    /// Whether the last dimension holds class scores rather than predicted numbers.
    pub classify: bool,
}

impl Default for MlpConfig {
    fn default() -> Self {
        MlpConfig { dims: vec![8, 32, 32, 4], activation: Activation::Relu, bias: true, classify: false }
    }
}

impl MlpConfig {
    pub(super) fn validate(&self) -> Result<()> {
        if self.dims.len() < 2 {
            return Err(Diagnostic::new("E050", "`dims` is too short")
                .at("dims")
                .expected("at least an input and an output size")
                .found(format!("{:?}", self.dims)));
        }
        self.dims.iter().try_for_each(|&dim| positive("dims", dim))
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let (first, last) = (self.dims[0], self.dims[self.dims.len() - 1]);
        let dtype = cx.dtype();
        let mut x = cx.input("inputs", dtype, &[batch, first]);
        let goal = if self.classify {
            cx.input("labels", DType::I32, &[batch])
        } else {
            cx.input("targets", dtype, &[batch, last])
        };
        for (index, pair) in self.dims.windows(2).enumerate() {
            let layer = Linear::new(pair[0], pair[1]).bias(self.bias);
            x = cx.call(&format!("layers.{index}"), &layer, x)?;
            if index + 2 < self.dims.len() {
                x = self.activation.forward(cx, x)?;
            }
        }
        if self.classify {
            return with_loss(cx, x, goal);
        }
        let loss = losses::mse(cx, x, goal)?;
        Ok(vec![(LOSS.to_string(), loss), ("prediction".to_string(), x)])
    }
}
