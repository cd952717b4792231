//! Layer normalisation with optional weight and bias.

use super::{last, widened};
use crate::GraphBuilder;
use crate::composite::AttributesExt;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::UnaryKind;
use partita_base::{DType, Result};

/// `layer_norm(x[.., n], weight[n]?, bias[n]?) -> [.., n]`; attribute `epsilon`.
pub static LAYER_NORM: Template = Template {
    name: "partita.layer_norm",
    arguments: &["x", "weight", "bias"],
    optional: 2,
    build: build_layer_norm,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

/// Multiplies by `weight` and adds `bias` along the last dimension, where present.
pub(super) fn affine(
    b: &mut GraphBuilder,
    x: ValueId,
    parameters: &[ValueId],
    dtype: DType,
) -> Result<Vec<ValueId>> {
    let shape = b.shape(x);
    let mut y = b.convert(x, dtype)?;
    for (position, &parameter) in parameters.iter().enumerate() {
        let wide = b.broadcast_trailing(parameter, &shape)?;
        y = if position == 0 { b.multiply(y, wide)? } else { b.add(y, wide)? };
    }
    Ok(vec![y])
}

fn build_layer_norm(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let epsilon = a.float("epsilon")?;
    let (x, dtype) = widened(b, args[0])?;
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let count = shape[dim] as f64;
    let mean = b.reduce_sum(x, &[dim])?;
    let mean = b.scale(mean, 1.0 / count)?;
    let mean = b.spread_last(mean, &shape)?;
    let centred = b.subtract(x, mean)?;
    let squares = b.multiply(centred, centred)?;
    let variance = b.reduce_sum(squares, &[dim])?;
    let variance = b.scale(variance, 1.0 / count)?;
    let variance = b.offset(variance, epsilon)?;
    let inverse = b.unary(UnaryKind::Rsqrt, variance)?;
    let inverse = b.spread_last(inverse, &shape)?;
    let y = b.multiply(centred, inverse)?;
    affine(b, y, &args[1..], dtype)
}
