//! Softmax over the last dimension.

use super::{last, widened};
use crate::GraphBuilder;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use partita_base::Result;

/// `softmax(x[.., n]) -> [.., n]` over the last dimension.
pub static SOFTMAX: Template = Template {
    name: "partita.softmax",
    arguments: &["x"],
    optional: 0,
    build: build_softmax,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

/// `x - max(x)` along the last dimension: exp of it cannot overflow. Softmax does not depend on the shift, so no
/// gradient flows through the maximum.
pub(super) fn shifted(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let max = b.reduce_max(x, &[dim])?;
    let max = b.stop_gradient(max)?;
    let max = b.spread_last(max, &shape)?;
    b.subtract(x, max)
}

fn build_softmax(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (x, dtype) = widened(b, args[0])?;
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let x = shifted(b, x)?;
    let e = b.exponential(x)?;
    let sum = b.reduce_sum(e, &[dim])?;
    let sum = b.spread_last(sum, &shape)?;
    let y = b.divide(e, sum)?;
    Ok(vec![b.convert(y, dtype)?])
}
