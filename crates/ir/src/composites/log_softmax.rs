//! The logarithm of softmax over the last dimension.

use super::softmax::shifted;
use super::{last, widened};
use crate::GraphBuilder;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::UnaryKind;
use partita_base::Result;

/// `log_softmax(x[.., n]) -> [.., n]` over the last dimension.
pub static LOG_SOFTMAX: Template = Template {
    name: "partita.log_softmax",
    arguments: &["x"],
    optional: 0,
    build: build_log_softmax,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn log_softmax(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let x = shifted(b, x)?;
    let e = b.exponential(x)?;
    let sum = b.reduce_sum(e, &[dim])?;
    let log = b.unary(UnaryKind::Log, sum)?;
    let log = b.spread_last(log, &shape)?;
    b.subtract(x, log)
}

fn build_log_softmax(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (x, dtype) = widened(b, args[0])?;
    let y = log_softmax(b, x)?;
    Ok(vec![b.convert(y, dtype)?])
}
