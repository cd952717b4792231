//! Losses: scalars in the accumulation type, means over the whole batch.
//!
//! A mean is the sum over all rows divided by the count over all rows, never a mean of means: so it stays the same
//! number however the batch is cut.

use crate::accumulation_dtype;
use crate::context::Context;
use partita_base::Result;
use partita_ir::Attribute;
use partita_ir::ValueId;
use partita_ir::composites::{CROSS_ENTROPY, MSE};
use partita_ir::ops::Direction;

/// Labels with this value do not count, as in PyTorch.
pub const IGNORE_INDEX: i64 = -100;

/// `logits[.., v], labels[..] -> scalar`: the mean negative log-likelihood over labels other than [`IGNORE_INDEX`]; 0
/// when there are none.
pub fn cross_entropy(cx: &mut Context, logits: ValueId, labels: ValueId) -> Result<ValueId> {
    cx.inside("loss", |cx| {
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

/// `prediction[..], target[..] -> scalar`: the mean squared error over all elements.
pub fn mse(cx: &mut Context, prediction: ValueId, target: ValueId) -> Result<ValueId> {
    cx.inside("loss", |cx| {
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
