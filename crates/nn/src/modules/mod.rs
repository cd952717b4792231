//! Modules, named and initialised as in PyTorch. A module is plain data; applying it declares its
//! parameters in the context, under the module path of the call.

mod attention;
mod basic;
mod conv;
mod latent_attention;
mod mlp;
mod moe;

pub use attention::MultiheadAttention;
pub use basic::{Activation, Dropout, Embedding, GELU, LayerNorm, Linear, RMSNorm, ReLU, SiLU, Tanh};
pub use conv::{BatchNorm2d, Conv2d, ConvTranspose2d, GroupNorm, MaxPool2d};
pub use latent_attention::LatentAttention;
pub use mlp::{Mlp, SwiGlu};
pub use moe::{MixtureOfExperts, Scores};

use crate::context::Context;
use partita_base::Result;
use partita_ir::ValueId;
use std::fmt;

/// A part of a model with one input and one output.
pub trait Module: fmt::Debug {
    /// Appends the module's nodes at the current module path.
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId>;

    /// The kind, as a schedule names it: `Linear`.
    fn kind(&self) -> &'static str {
        let name = std::any::type_name::<Self>();
        name.rsplit("::").next().unwrap_or(name)
    }
}

/// Modules applied in sequence, each under its name.
#[derive(Debug, Default)]
pub struct Sequential {
    /// Name and module, in order.
    pub modules: Vec<(String, Box<dyn Module>)>,
}

impl Sequential {
    /// No modules: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a module, named by its number as PyTorch does.
    pub fn push(self, module: impl Module + 'static) -> Sequential {
        let name = self.modules.len().to_string();
        self.push_named(&name, module)
    }

    /// Appends a module under a name.
    pub fn push_named(mut self, name: &str, module: impl Module + 'static) -> Sequential {
        self.modules.push((name.to_string(), Box::new(module)));
        self
    }
}

impl Module for Sequential {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        self.modules.iter().try_fold(x, |x, (name, module)| cx.apply(name, module.as_ref(), x))
    }
}
