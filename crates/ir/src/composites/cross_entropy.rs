//! The negative log-likelihood of labels.

use super::softmax::shifted;
use super::{last, widened};
use crate::GraphBuilder;
use crate::composite::AttributesExt;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::checks::element_type;
use crate::ops::{Direction, UnaryKind};
use partita_base::Result;

/// `cross_entropy(logits[.., v], labels[..]) -> [..]`: the negative log-likelihood of each label in
/// the logits' type, 0 where the label is `ignore_index`. The caller takes the mean over the count
/// of the whole batch.
pub static CROSS_ENTROPY: Template = Template {
    name: "partita.cross_entropy",
    arguments: &["logits", "labels"],
    optional: 0,
    build: build_cross_entropy,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn build_cross_entropy(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (logits, dtype) = widened(b, args[0])?;
    let labels = args[1];
    let shape = b.shape(logits);
    let dim = last(b, logits)?;
    let found = b.ty(labels).dtype;
    element_type("partita.cross_entropy", found.is_integer(), "integer labels", found)?;
    // log(sum(exp(x))) - x[label], shifted: no half of the gradient needs a separate sum over
    // classes.
    let shifted = shifted(b, logits)?;
    let e = b.exponential(shifted)?;
    let sum = b.reduce_sum(e, &[dim])?;
    let log = b.unary(UnaryKind::Log, sum)?;
    // Selecting the label by comparison instead of by gather lets the class dimension be sharded:
    // each shard compares with its own classes, and the sum covers all.
    let label_ty = b.ty(labels).clone();
    let classes = b.iota(label_ty.with_shape(shape.clone()), dim)?;
    let wide = b.spread_last(labels, &shape)?;
    let hit = b.compare(Direction::Eq, classes, wide)?;
    let zero = b.full_like(shifted, 0.0)?;
    let picked = b.select(hit, shifted, zero)?;
    let picked = b.reduce_sum(picked, &[dim])?;
    let loss = b.subtract(log, picked)?;
    let ignored = b.full_like(labels, a.float("ignore_index")?)?;
    let counts = b.compare(Direction::Ne, labels, ignored)?;
    let nothing = b.full_like(loss, 0.0)?;
    let loss = b.select(counts, loss, nothing)?;
    Ok(vec![b.convert(loss, dtype)?])
}
