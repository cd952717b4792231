//! Rotary position embedding.

use super::last;
use crate::GraphBuilder;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use partita_base::Result;

/// `rotary(x[b, h, s, d], cos[s, d], sin[s, d]) -> [b, h, s, d]`: rotates pairs (i, i + d/2).
pub static ROTARY: Template = Template {
    name: "partita.rotary",
    arguments: &["x", "cos", "sin"],
    optional: 0,
    build: build_rotary,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn build_rotary(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let x = args[0];
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let half = shape[dim] / 2;
    let low = b.slice_dim(x, dim, 0, half)?;
    let high = b.slice_dim(x, dim, half, shape[dim])?;
    let high = b.negate(high)?;
    let turned = b.concatenate(&[high, low], dim)?;
    let cos = b.broadcast_trailing(args[1], &shape)?;
    let sin = b.broadcast_trailing(args[2], &shape)?;
    let straight = b.multiply(x, cos)?;
    let across = b.multiply(turned, sin)?;
    Ok(vec![b.add(straight, across)?])
}
