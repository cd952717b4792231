//! The feed-forward blocks of transformer layers.

use super::{Activation, Linear, Module};
use crate::context::Context;
use crate::init::Init;
use partita_base::Result;
use partita_ir::ValueId;

/// `down_proj(activation(up_proj(x)))`.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Extent of the last dimension.
    pub dim: usize,
    /// Extent between the two layers.
    pub hidden: usize,
    /// The activation between them.
    pub activation: Activation,
    /// Whether the layers have a bias.
    pub bias: bool,
    /// Initial `up_proj`; `None` is PyTorch's default for both layers.
    pub init: Option<Init>,
    /// Initial `down_proj` if `init` is given; `None` is the same as `init`.
    pub out_init: Option<Init>,
}

impl Mlp {
    /// With biases, exact GELU, initialised as PyTorch does.
    pub fn new(dim: usize, hidden: usize) -> Mlp {
        Mlp { dim, hidden, activation: Activation::Gelu, bias: true, init: None, out_init: None }
    }
}

/// A linear layer with this initialisation, or PyTorch's default.
pub(super) fn linear(input: usize, output: usize, bias: bool, init: Option<Init>) -> Linear {
    let linear = Linear::new(input, output).bias(bias);
    match init {
        Some(init) => linear.init(init),
        None => linear,
    }
}

impl Module for Mlp {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        let up = linear(self.dim, self.hidden, self.bias, self.init);
        let down = linear(self.hidden, self.dim, self.bias, self.out_init.or(self.init));
        let h = cx.apply("up_proj", &up, x)?;
        let h = self.activation.forward(cx, h)?;
        cx.apply("down_proj", &down, h)
    }
}

/// `down_proj(silu(gate_proj(x)) * up_proj(x))`, without biases.
#[derive(Clone, Debug)]
pub struct SwiGlu {
    /// Extent of the last dimension.
    pub dim: usize,
    /// Extent between the layers.
    pub hidden: usize,
    /// Initial `gate_proj` and `up_proj`; `None` is PyTorch's default for all layers.
    pub init: Option<Init>,
    /// Initial `down_proj` if `init` is given; `None` is the same as `init`.
    pub out_init: Option<Init>,
}

impl SwiGlu {
    /// Initialised as PyTorch does.
    pub fn new(dim: usize, hidden: usize) -> SwiGlu {
        SwiGlu { dim, hidden, init: None, out_init: None }
    }
}

impl Module for SwiGlu {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        let wide = linear(self.dim, self.hidden, false, self.init);
        let down = linear(self.hidden, self.dim, false, self.out_init.or(self.init));
        let gate = cx.apply("gate_proj", &wide, x)?;
        let up = cx.apply("up_proj", &wide, x)?;
        let gate = Activation::Silu.forward(cx, gate)?;
        let h = cx.builder.multiply(gate, up)?;
        cx.apply("down_proj", &down, h)
    }
}
