//! Dropout with a counter-based mask that depends only on seed, stream and global element index.

use super::random_bits::RANDOM_BITS;
use crate::composite::AttributesExt;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::Direction;
use crate::{GraphBuilder, TensorType};
use partita_base::{DType, Result};

/// `dropout(x, seed: u64 scalar) -> x` : elements are kept with probability `1 - rate` and scaled
/// by its inverse; attributes `rate`, `stream`. The mask depends on seed, stream and global element
/// index alone.
pub static DROPOUT: Template = Template {
    name: "partita.dropout",
    arguments: &["x", "seed"],
    optional: 0,
    build: build_dropout,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn build_dropout(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let rate = a.float("rate")?;
    let x = args[0];
    let ty = b.ty(x).clone();
    let bits = b.random(&RANDOM_BITS, args[1], a.int("stream")? as u64, &ty.shape, DType::U32)?;
    // An element is kept if its 32-bit draw is at least rate * 2^32.
    let threshold = b.full(&TensorType::new(DType::U32, ty.shape.clone()), (rate * 4294967296.0).round())?;
    let keep = b.compare(Direction::Ge, bits, threshold)?;
    let scaled = b.scale(x, 1.0 / (1.0 - rate))?;
    let zero = b.full(&ty, 0.0)?;
    Ok(vec![b.select(keep, scaled, zero)?])
}
