//! The sigmoid linear unit. Of f16 and bf16 it computes in f32 and rounds once.

use super::widened;
use crate::GraphBuilder;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::UnaryKind;
use partita_base::Result;

/// `silu(x) = x * logistic(x)`.
pub static SILU: Template = Template {
    name: "partita.silu",
    arguments: &["x"],
    optional: 0,
    build: build_silu,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn build_silu(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (x, dtype) = widened(b, args[0])?;
    let gate = b.unary(UnaryKind::Logistic, x)?;
    let result = b.multiply(x, gate)?;
    Ok(vec![b.convert(result, dtype)?])
}
