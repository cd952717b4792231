//! Normalisation by the root of the mean square.

use super::layer_norm::affine;
use super::{last, widened};
use crate::GraphBuilder;
use crate::composite::AttributesExt;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::UnaryKind;
use partita_base::Result;

/// `rms_norm(x[.., n], weight[n]?) -> [.., n]`; attribute `epsilon`.
pub static RMS_NORM: Template = Template {
    name: "partita.rms_norm",
    arguments: &["x", "weight"],
    optional: 1,
    build: build_rms_norm,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn build_rms_norm(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let epsilon = a.float("epsilon")?;
    let (x, dtype) = widened(b, args[0])?;
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let squares = b.multiply(x, x)?;
    let mean = b.reduce_sum(squares, &[dim])?;
    let mean = b.scale(mean, 1.0 / shape[dim] as f64)?;
    let mean = b.offset(mean, epsilon)?;
    let inverse = b.unary(UnaryKind::Rsqrt, mean)?;
    let inverse = b.spread_last(inverse, &shape)?;
    let y = b.multiply(x, inverse)?;
    affine(b, y, &args[1..], dtype)
}
