//! Losses: scalars in the accumulation type, means over the whole batch.
//!
//! A mean is the sum over all rows divided by the count over all rows, never a mean of means: so it
//! does not depend on how the batch is split.

use crate::accumulation_dtype;
use crate::context::Context;
use partita_base::{Diagnostic, Result};
use partita_ir::Attribute;
use partita_ir::ValueId;
use partita_ir::composites::{CROSS_ENTROPY, MSE};
use partita_ir::ops::Direction;

/// Labels with this value are ignored, as in PyTorch.
pub const IGNORE_INDEX: i64 = -100;

/// `logits[.., v], labels[..] -> scalar`: the mean negative log-likelihood over labels other than
/// [`IGNORE_INDEX`]; 0 when there are none. E050 for labels that are not integers, or not one for
/// each row.
pub fn cross_entropy(cx: &mut Context, logits: ValueId, labels: ValueId) -> Result<ValueId> {
    cx.inside("loss", |cx| {
        cx.real(logits, "cross_entropy")?;
        cx.builder.check(&[labels])?;
        let (scores, classes) = (cx.builder.ty(logits), cx.builder.ty(labels));
        let fits = scores.shape.split_last().is_some_and(|(_, rows)| rows == classes.shape);
        if !fits || !classes.dtype.is_integer() {
            return Err(Diagnostic::new("E050", "the labels do not fit the logits")
                .at(cx.builder.path.clone())
                .expected(match scores.shape.split_last() {
                    Some((count, rows)) => format!("integers below {count}, of shape {rows:?}"),
                    None => "logits [.., classes]".to_string(),
                })
                .found(format!("labels {classes} for logits {scores}")));
        }
        let b = &mut cx.builder;
        let dtype = accumulation_dtype(b.ty(logits).dtype);
        let logits = b.convert(logits, dtype)?;
        let rows = b.composite(
            &CROSS_ENTROPY,
            &[("ignore_index", Attribute::Int(IGNORE_INDEX))],
            &[logits, labels],
        )?;
        let dims: Vec<usize> = (0..b.ty(rows).rank()).collect();
        let sum = b.reduce_sum(rows, &dims)?;
        let ignored = b.full_like(labels, IGNORE_INDEX as f64)?;
        let kept = b.compare(Direction::Ne, labels, ignored)?;
        // Counted in integers: exact for any batch.
        let label_dtype = b.ty(labels).dtype;
        let kept = b.convert(kept, label_dtype)?;
        let count = b.reduce_sum(kept, &dims)?;
        let one = b.full_like(count, 1.0)?;
        let count = b.maximum(count, one)?;
        let count = b.convert(count, dtype)?;
        b.divide(sum, count)
    })
}

/// `prediction[..], target[..] -> scalar`: the mean squared error over all elements. E050 unless
/// predictions are floats.
pub fn mse(cx: &mut Context, prediction: ValueId, target: ValueId) -> Result<ValueId> {
    cx.inside("loss", |cx| {
        cx.real(prediction, "mse")?;
        cx.builder.check(&[target])?;
        let b = &mut cx.builder;
        let dtype = accumulation_dtype(b.ty(prediction).dtype);
        let prediction = b.convert(prediction, dtype)?;
        let target = b.convert(target, dtype)?;
        let squares = b.composite(&MSE, &[], &[prediction, target])?;
        let dims: Vec<usize> = (0..b.ty(squares).rank()).collect();
        let count = b.ty(squares).element_count().max(1);
        let sum = b.reduce_sum(squares, &dims)?;
        let count = b.scalar(dtype, count as f64);
        b.divide(sum, count)
    })
}
