//! The standard composites, each written once as model code over primitives in its own file.
//!
//! Naming follows PyTorch. Shapes: `..` means any leading dimensions.

mod attention;
mod attention_part;
mod cross_entropy;
mod dot_general_add;
mod dropout;
mod embedding;
mod gelu;
mod grouped_matmul;
mod layer_norm;
mod log_softmax;
mod mse;
mod normal;
mod quantise;
#[cfg(test)]
mod quantise_tests;
mod random_bits;
mod rms_norm;
mod rotary;
mod silu;
mod softmax;
#[cfg(test)]
mod tests;
mod uniform;

pub(crate) use attention::head_factors;
pub use attention::{ATTENTION, attention_window};
pub use attention_part::{ATTENTION_PART, ATTENTION_PART_GRADIENT};
pub use cross_entropy::CROSS_ENTROPY;
pub use dot_general_add::{DOT_GENERAL_ADD, dot_general_dims};
pub use dropout::DROPOUT;
pub use embedding::EMBEDDING;
pub use gelu::GELU;
pub use grouped_matmul::{GROUPED_MATMUL, GROUPED_OUTER, TRANSPOSED};
pub use layer_norm::LAYER_NORM;
pub use log_softmax::LOG_SOFTMAX;
pub use mse::MSE;
pub use normal::NORMAL;
pub use quantise::{Narrow, QUANTISE};
pub use random_bits::RANDOM_BITS;
pub use rms_norm::RMS_NORM;
pub use rotary::ROTARY;
pub use silu::SILU;
pub use softmax::SOFTMAX;
pub use uniform::UNIFORM;

use crate::composite::{Attribute, Attributes, AttributesExt, Registry, Template};
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::ops::Composite;
use crate::{GraphBuilder, TensorType};
use partita_base::{DType, Diagnostic, Result};

/// Every template; the default registry holds these.
pub static ALL: &[&Template] = &[
    &SOFTMAX,
    &LOG_SOFTMAX,
    &LAYER_NORM,
    &RMS_NORM,
    &GELU,
    &GROUPED_MATMUL,
    &GROUPED_OUTER,
    &SILU,
    &ATTENTION,
    &ATTENTION_PART,
    &ATTENTION_PART_GRADIENT,
    &ROTARY,
    &DROPOUT,
    &CROSS_ENTROPY,
    &DOT_GENERAL_ADD,
    &EMBEDDING,
    &MSE,
    &RANDOM_BITS,
    &UNIFORM,
    &NORMAL,
    &QUANTISE,
];

impl Default for Registry {
    /// The composites of this folder.
    fn default() -> Self {
        let mut registry = Registry::empty();
        for template in ALL {
            registry.add(template);
        }
        registry
    }
}

impl GraphBuilder {
    /// Applies a template.
    pub fn composite(
        &mut self,
        template: &'static Template,
        attributes: &[(&str, Attribute)],
        operands: &[ValueId],
    ) -> Result<ValueId> {
        self.check(operands)?;
        let attributes: Attributes = attributes.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        let types: Vec<TensorType> = operands.iter().map(|&v| self.ty(v).clone()).collect();
        let definition = self.definitions.of_template(template, &attributes, &types)?;
        self.push1(Composite { attributes, definition }, operands)
    }

    /// Random numbers from a template over `shape`, from the start of the global index space.
    pub fn random(
        &mut self,
        template: &'static Template,
        seed: ValueId,
        stream: u64,
        shape: &[usize],
        dtype: DType,
    ) -> Result<ValueId> {
        let offsets = self.constant(Literal::zeros(&TensorType::new(DType::I64, [shape.len()])));
        let dims: Vec<i64> = shape.iter().map(|&s| s as i64).collect();
        self.composite(
            template,
            &[
                ("shape", Attribute::Ints(dims.clone())),
                ("global_shape", Attribute::Ints(dims)),
                ("stream", Attribute::Int(stream as i64)),
                ("dtype", Attribute::DType(dtype)),
            ],
            &[seed, offsets],
        )
    }

    /// Broadcasts `x` (a reduction over the last dimension of `shape`) along that dimension.
    pub(crate) fn spread_last(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        let dims: Vec<usize> = (0..shape.len().saturating_sub(1)).collect();
        self.broadcast_in_dim(x, shape, &dims)
    }
}

/// The last dimension. E104 for a scalar.
fn last(b: &GraphBuilder, x: ValueId) -> Result<usize> {
    let ty = b.ty(x);
    ty.rank().checked_sub(1).ok_or_else(|| {
        Diagnostic::new("E104", format!("`{}` works along the last dimension", b.graph().name))
            .expected("a tensor of at least 1 dimension")
            .found(ty.to_string())
    })
}

/// The extents of an operand with this rank. E104 for another rank.
fn extents<const RANK: usize>(b: &GraphBuilder, x: ValueId, what: &str) -> Result<[usize; RANK]> {
    b.shape(x).try_into().map_err(|found: Vec<usize>| {
        Diagnostic::new("E104", format!("{what} of `{}` has the wrong rank", b.graph().name))
            .expected(format!("a tensor of {RANK} dimensions"))
            .found(format!("{found:?}"))
    })
}

/// Converts to f32 if the type is narrower.
fn widened(b: &mut GraphBuilder, x: ValueId) -> Result<(ValueId, DType)> {
    let dtype = b.ty(x).dtype;
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    Ok((b.convert(x, wide)?, dtype))
}

/// An attribute that lists sizes or dimensions.
fn sizes(a: &Attributes, name: &str) -> Vec<usize> {
    a.ints(name).iter().map(|&size| size as usize).collect()
}
