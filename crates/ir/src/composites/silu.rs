//! The sigmoid linear unit.

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
    let gate = b.unary(UnaryKind::Logistic, args[0])?;
    Ok(vec![b.multiply(args[0], gate)?])
}
