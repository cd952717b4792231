//! Linear layers, embeddings, norms, activations, dropout.

use super::Module;
use crate::accumulation_dtype;
use crate::context::Context;
use crate::init::Init;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::composites::{EMBEDDING, GELU as GELU_TEMPLATE, LAYER_NORM, RMS_NORM, SILU};
use partita_ir::ops::{Direction, UnaryKind};
use partita_ir::{Attribute, ValueId};

/// `x[.., in] * weight[out, in] + bias[out] -> [.., out]`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// Extent of the last dimension of the input.
    pub in_features: usize,
    /// Extent of the last dimension of the output.
    pub out_features: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Initial weight.
    pub weight_init: Init,
    /// Initial bias.
    pub bias_init: Init,
}

impl Linear {
    /// With a bias, initialised as PyTorch does.
    pub fn new(in_features: usize, out_features: usize) -> Linear {
        let init = Init::KaimingUniform { fan_in: in_features };
        Linear { in_features, out_features, bias: true, weight_init: init, bias_init: init }
    }

    /// With or without a bias.
    pub fn bias(mut self, bias: bool) -> Linear {
        self.bias = bias;
        self
    }

    /// With this initial weight and a zero bias.
    pub fn init(mut self, weight: Init) -> Linear {
        self.weight_init = weight;
        self.bias_init = Init::Zeros;
        self
    }
}

impl Module for Linear {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        let weight = cx.param("weight", &[self.out_features, self.in_features], self.weight_init)?;
        let y = cx.builder.linear(x, weight)?;
        if !self.bias {
            return Ok(y);
        }
        let bias = cx.param("bias", &[self.out_features], self.bias_init)?;
        let shape = cx.shape(y);
        let bias = cx.builder.broadcast_trailing(bias, &shape)?;
        cx.builder.add(y, bias)
    }
}

/// `ids[..] -> weight[ids] [.., embedding_dim]`.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// Rows of the table.
    pub num_embeddings: usize,
    /// Extent of a row.
    pub embedding_dim: usize,
    /// Initial table.
    pub init: Init,
}

impl Embedding {
    /// A table of standard normal numbers, as in PyTorch.
    pub fn new(num_embeddings: usize, embedding_dim: usize) -> Embedding {
        Embedding { num_embeddings, embedding_dim, init: Init::Normal { std: 1.0 } }
    }

    /// With this initial table.
    pub fn init(mut self, init: Init) -> Embedding {
        self.init = init;
        self
    }

    /// Declares the table: `[num_embeddings, embedding_dim]`.
    pub fn table(&self, cx: &mut Context) -> Result<ValueId> {
        cx.param("weight", &[self.num_embeddings, self.embedding_dim], self.init)
    }
}

impl Module for Embedding {
    fn forward(&self, cx: &mut Context, ids: ValueId) -> Result<ValueId> {
        let dtype = cx.builder.ty(ids).dtype;
        if !dtype.is_integer() {
            return Err(Diagnostic::new("E050", "the ids of an embedding are not integers")
                .at(cx.builder.path.clone())
                .expected("i32 or i64")
                .found(dtype.name()));
        }
        let weight = self.table(cx)?;
        cx.builder.composite(&EMBEDDING, &[], &[weight, ids])
    }
}

/// Normalises the last dimensions jointly to mean 0 and variance 1, then scales and shifts each
/// element.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// Extents of the normalised last dimensions, also the shape of weight and bias.
    pub normalized_shape: Vec<usize>,
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether there is a shift.
    pub bias: bool,
}

impl LayerNorm {
    /// Over the last dimension, with weight and bias and an epsilon of 1e-5.
    pub fn new(dim: usize) -> LayerNorm {
        LayerNorm::over(&[dim])
    }

    /// [`LayerNorm::new`] over as many of the last dimensions as there are extents.
    pub fn over(normalized_shape: &[usize]) -> LayerNorm {
        LayerNorm { normalized_shape: normalized_shape.to_vec(), epsilon: 1e-5, bias: true }
    }

    /// With another epsilon.
    pub fn epsilon(mut self, epsilon: f64) -> LayerNorm {
        self.epsilon = epsilon;
        self
    }

    /// With or without a shift.
    pub fn bias(mut self, bias: bool) -> LayerNorm {
        self.bias = bias;
        self
    }
}

impl Module for LayerNorm {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        check_epsilon(cx, self.epsilon)?;
        let (own, shape) = (&self.normalized_shape, cx.shape(x));
        if own.is_empty() || !shape.ends_with(own) {
            return Err(Diagnostic::new("E050", "the input does not end in the normalised dimensions")
                .at(cx.builder.path.clone())
                .expected(if own.is_empty() {
                    "at least one extent".into()
                } else {
                    format!("[.., {own:?}]")
                })
                .found(format!("{shape:?}")));
        }
        let mut operands = vec![x, cx.param("weight", own, Init::Ones)?];
        if self.bias {
            operands.push(cx.param("bias", own, Init::Zeros)?);
        }
        let epsilon = [("epsilon", Attribute::Float(self.epsilon))];
        // The composite normalises one dimension: several are flattened to one and restored.
        let (batch, count) = (shape[..shape.len() - own.len()].to_vec(), own.iter().product());
        let flat = |shape: &[usize]| [shape, &[count]].concat();
        operands[0] = cx.builder.reshape(operands[0], &flat(&batch))?;
        for parameter in &mut operands[1..] {
            *parameter = cx.builder.reshape(*parameter, &flat(&[]))?;
        }
        let y = cx.builder.composite(&LAYER_NORM, &epsilon, &operands)?;
        cx.builder.reshape(y, &shape)
    }
}

/// E050 unless epsilon is a number that prevents a division by zero.
fn check_epsilon(cx: &Context, epsilon: f64) -> Result<()> {
    if epsilon.is_finite() && epsilon >= 0.0 {
        return Ok(());
    }
    Err(Diagnostic::new("E050", "epsilon out of range")
        .at(cx.builder.path.clone())
        .expected("a finite number, at least 0")
        .found(epsilon.to_string()))
}

/// Divides the last dimension by its root mean square and scales it.
#[derive(Clone, Debug)]
pub struct RMSNorm {
    /// Extent of the last dimension.
    pub dim: usize,
    /// Added to the mean square; `None` is the machine epsilon of the computation type.
    pub epsilon: Option<f64>,
}

impl RMSNorm {
    /// With a weight and the machine epsilon, as in PyTorch.
    pub fn new(dim: usize) -> RMSNorm {
        RMSNorm { dim, epsilon: None }
    }

    /// With another epsilon.
    pub fn epsilon(mut self, epsilon: f64) -> RMSNorm {
        self.epsilon = Some(epsilon);
        self
    }
}

impl Module for RMSNorm {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        let machine = match accumulation_dtype(cx.dtype()) {
            DType::F64 => f64::EPSILON,
            _ => f32::EPSILON as f64,
        };
        let epsilon = self.epsilon.unwrap_or(machine);
        check_epsilon(cx, epsilon)?;
        let epsilon = Attribute::Float(epsilon);
        let weight = cx.param("weight", &[self.dim], Init::Ones)?;
        cx.builder.composite(&RMS_NORM, &[("epsilon", epsilon)], &[x, weight])
    }
}

/// Zeroes elements at random during training.
#[derive(Clone, Debug)]
pub struct Dropout {
    /// Probability of zeroing an element.
    pub rate: f64,
}

impl Module for Dropout {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        cx.dropout(x, self.rate)
    }
}

/// `x Phi(x)`, Phi the normal distribution function.
#[derive(Clone, Debug, Default)]
pub struct GELU {
    /// Whether to use the approximation by tanh.
    pub tanh: bool,
}

impl Module for GELU {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        cx.builder.composite(&GELU_TEMPLATE, &[("tanh", Attribute::Bool(self.tanh))], &[x])
    }
}

/// `x logistic(x)`.
#[derive(Clone, Debug, Default)]
pub struct SiLU;

impl Module for SiLU {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        cx.builder.composite(&SILU, &[], &[x])
    }
}

/// `max(x, 0)`; its gradient at 0 is 0, and NaN stays NaN, as in PyTorch.
#[derive(Clone, Debug, Default)]
pub struct ReLU;

impl Module for ReLU {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        let zero = cx.builder.full_like(x, 0.0)?;
        let low = cx.builder.compare(Direction::Le, x, zero)?;
        cx.builder.select(low, zero, x)
    }
}

/// `tanh(x)`.
#[derive(Clone, Debug, Default)]
pub struct Tanh;

impl Module for Tanh {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        cx.builder.unary(UnaryKind::Tanh, x)
    }
}

/// An activation chosen by a config.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Activation {
    /// [`GELU`], exact.
    #[default]
    Gelu,
    /// [`GELU`] by tanh.
    GeluTanh,
    /// [`ReLU`].
    Relu,
    /// [`SiLU`].
    Silu,
    /// [`Tanh`].
    Tanh,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 5] =
        [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Silu, Activation::Tanh];

    /// `gelu`, `gelu_tanh`, `relu`, `silu` or `tanh`.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Relu => "relu",
            Activation::Silu => "silu",
            Activation::Tanh => "tanh",
        }
    }

    /// The activation with this [`Activation::name`].
    pub fn from_name(name: &str) -> Option<Activation> {
        Activation::ALL.into_iter().find(|a| a.name() == name)
    }
}

impl Module for Activation {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        match self {
            Activation::Gelu => GELU { tanh: false }.forward(cx, x),
            Activation::GeluTanh => GELU { tanh: true }.forward(cx, x),
            Activation::Relu => ReLU.forward(cx, x),
            Activation::Silu => SiLU.forward(cx, x),
            Activation::Tanh => Tanh.forward(cx, x),
        }
    }
}
