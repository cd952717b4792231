//! What costs memory more than arithmetic: tensors of 64 MiB that ought to be read once and written once.

use partita_base::{DType, Result};
use partita_ir::composites::{CROSS_ENTROPY, GELU, LAYER_NORM, SOFTMAX};
use partita_ir::ops::UnaryKind;
use partita_ir::{Attribute, Graph, GraphBuilder, TensorType, ValueId, autodiff};
use partita_nn::{Context, Init, Model};

/// One such piece of a training step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// GELU, by tanh, of x and a bias, added to a residual.
    Gelu,
    /// Its gradients with respect to x and the bias.
    GeluGradient,
    /// AdamW: parameter, gradient and two moments to the next parameter and moments.
    AdamW,
    /// Softmax of rows of 1024.
    Softmax,
    /// Layer norm of rows of 1024, with weight and bias.
    LayerNorm,
    /// Its gradients with respect to x, weight and bias.
    LayerNormGradient,
    /// Root mean square norm of rows of 1024, with weight, written out op by op.
    NormOps,
    /// The loss of rows of 16384 logits.
    CrossEntropy,
    /// Its gradient.
    CrossEntropyGradient,
}

/// Rows and columns of a tensor of 64 MiB, and of one of logits.
const SHAPE: [usize; 2] = [16384, 1024];
const LOGITS: [usize; 2] = [1024, 16384];

impl Pass {
    /// All of them.
    pub const ALL: [Pass; 9] = [
        Pass::Gelu,
        Pass::GeluGradient,
        Pass::AdamW,
        Pass::Softmax,
        Pass::LayerNorm,
        Pass::LayerNormGradient,
        Pass::NormOps,
        Pass::CrossEntropy,
        Pass::CrossEntropyGradient,
    ];

    /// `gelu`, `gelu_gradient`, ...
    pub fn name(self) -> &'static str {
        match self {
            Pass::Gelu => "gelu",
            Pass::GeluGradient => "gelu_gradient",
            Pass::AdamW => "adamw",
            Pass::Softmax => "softmax",
            Pass::LayerNorm => "layer_norm",
            Pass::LayerNormGradient => "layer_norm_gradient",
            Pass::NormOps => "norm_ops",
            Pass::CrossEntropy => "cross_entropy",
            Pass::CrossEntropyGradient => "cross_entropy_gradient",
        }
    }

    /// The graph; rows are the batch.
    pub fn model(self) -> Result<Model> {
        let mut cx = Context::new(self.name(), DType::F32, true);
        let [rows, columns] = SHAPE;
        let vector = |cx: &mut Context, name: &str| cx.param(name, &[columns], Init::Uniform { bound: 1.0 });
        let tensor = |cx: &mut Context, name: &str| cx.input(name, DType::F32, &[rows, columns]);
        let results = match self {
            Pass::Gelu | Pass::GeluGradient => {
                let x = tensor(&mut cx, "x");
                let other = tensor(&mut cx, "other");
                let bias = vector(&mut cx, "bias")?;
                let b = &mut cx.builder;
                let repeated = b.broadcast_trailing(bias, &SHAPE)?;
                let sum = b.add(x, repeated)?;
                let gelu = b.composite(&GELU, &[("tanh", Attribute::Bool(true))], &[sum])?;
                match self {
                    Pass::Gelu => vec![b.add(gelu, other)?],
                    _ => gradients(b, gelu, other, &[x, bias])?,
                }
            }
            Pass::AdamW => {
                let [p, g, m, v] =
                    ["parameter", "gradient", "first", "second"].map(|name| tensor(&mut cx, name));
                adamw(&mut cx.builder, [p, g, m, v])?
            }
            Pass::Softmax => {
                let x = tensor(&mut cx, "x");
                vec![cx.builder.composite(&SOFTMAX, &[], &[x])?]
            }
            Pass::LayerNorm | Pass::LayerNormGradient => {
                let x = tensor(&mut cx, "x");
                let operands = [x, vector(&mut cx, "weight")?, vector(&mut cx, "bias")?];
                let epsilon = [("epsilon", Attribute::Float(1e-5))];
                let y = cx.builder.composite(&LAYER_NORM, &epsilon, &operands)?;
                match self {
                    Pass::LayerNorm => vec![y],
                    _ => {
                        let dy = tensor(&mut cx, "dy");
                        gradients(&mut cx.builder, y, dy, &operands)?
                    }
                }
            }
            Pass::NormOps => {
                let (x, weight) = (tensor(&mut cx, "x"), vector(&mut cx, "weight")?);
                vec![norm(&mut cx.builder, x, weight)?]
            }
            Pass::CrossEntropy | Pass::CrossEntropyGradient => {
                let logits = cx.input("logits", DType::F32, &LOGITS);
                let labels = cx.input("labels", DType::I64, &LOGITS[..1]);
                let ignored = [("ignore_index", Attribute::Int(-100))];
                let loss = cx.builder.composite(&CROSS_ENTROPY, &ignored, &[logits, labels])?;
                match self {
                    Pass::CrossEntropy => vec![loss],
                    _ => {
                        let dloss = cx.input("dloss", DType::F32, &LOGITS[..1]);
                        gradients(&mut cx.builder, loss, dloss, &[logits])?
                    }
                }
            }
        };
        let named = results.into_iter().enumerate().map(|(i, value)| (format!("result.{i}"), value));
        cx.finish(named.collect())
    }
}

/// Bytes that have to be read and written: every input once, every output once.
pub fn least_traffic_bytes(graph: &Graph) -> usize {
    graph.inputs.iter().chain(&graph.outputs).map(|&value| graph.ty(value).bytes()).sum()
}

fn gradients(b: &mut GraphBuilder, of: ValueId, seed: ValueId, wrt: &[ValueId]) -> Result<Vec<ValueId>> {
    let gradients = autodiff::backward(b, &[(of, seed)], wrt)?;
    Ok(gradients.into_iter().map(|gradient| gradient.expect("it depends on all of them")).collect())
}

/// `x / sqrt(mean(x^2) + 1e-5) weight`, as anybody would write it.
fn norm(b: &mut GraphBuilder, x: ValueId, weight: ValueId) -> Result<ValueId> {
    let square = b.multiply(x, x)?;
    let sum = b.reduce_sum(square, &[1])?;
    let mean = b.scale(sum, 1.0 / SHAPE[1] as f64)?;
    let mean = b.offset(mean, 1e-5)?;
    let scale = b.unary(UnaryKind::Rsqrt, mean)?;
    let scale = b.broadcast_in_dim(scale, &SHAPE, &[0])?;
    let weight = b.broadcast_trailing(weight, &SHAPE)?;
    let scaled = b.multiply(x, scale)?;
    b.multiply(scaled, weight)
}

/// The next parameter and moments, at a fixed rate and step.
fn adamw(b: &mut GraphBuilder, [p, g, m, v]: [ValueId; 4]) -> Result<Vec<ValueId>> {
    let ty = TensorType::new(DType::F32, SHAPE);
    let scaled = |b: &mut GraphBuilder, x: ValueId, factor: f64| -> Result<ValueId> {
        let factor = b.full(&ty, factor)?;
        b.multiply(x, factor)
    };
    let blend = |b: &mut GraphBuilder, old: ValueId, new: ValueId, beta: f64| -> Result<ValueId> {
        let (old, new) = (scaled(b, old, beta)?, scaled(b, new, 1.0 - beta)?);
        b.add(old, new)
    };
    let m = blend(b, m, g, 0.9)?;
    let square = b.multiply(g, g)?;
    let v = blend(b, v, square, 0.95)?;
    let (mean, variance) = (scaled(b, m, 1.9)?, scaled(b, v, 1.8)?);
    let root = b.unary(UnaryKind::Sqrt, variance)?;
    let epsilon = b.full(&ty, 1e-8)?;
    let root = b.add(root, epsilon)?;
    let change = b.divide(mean, root)?;
    let kept = scaled(b, p, 1.0 - 3e-5)?;
    let change = scaled(b, change, 3e-4)?;
    Ok(vec![b.subtract(kept, change)?, m, v])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_traffic_is_what_goes_in_and_out() {
        let bytes = |pass: Pass| least_traffic_bytes(&pass.model().unwrap_or_else(|e| panic!("{e}")).forward);
        let (tensor, vector) = (64 << 20, 4096);
        assert_eq!(bytes(Pass::Gelu), 3 * tensor + vector);
        assert_eq!(bytes(Pass::GeluGradient), 3 * tensor + 2 * vector);
        assert_eq!(bytes(Pass::AdamW), 7 * tensor);
        assert_eq!(bytes(Pass::Softmax), 2 * tensor);
        assert_eq!(bytes(Pass::LayerNormGradient), 3 * tensor + 4 * vector);
        assert_eq!(bytes(Pass::NormOps), 2 * tensor + vector);
        assert_eq!(bytes(Pass::CrossEntropyGradient), 2 * tensor + 1024 * 12);
    }
}
