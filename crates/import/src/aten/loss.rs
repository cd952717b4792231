//! Losses. Means divide by counts over the whole batch, so that they do not depend on its split.

use super::activation::{along, softplus};
use super::{Rows, broadcast_pair, convert, one, operand, operands, wide};
use crate::pt2::call::{Call, Out, Outs};
use partita_base::{DType, Result};
use partita_ir::composites::{CROSS_ENTROPY, LOG_SOFTMAX, MSE};
use partita_ir::ops::{BinaryKind, Direction, UnaryKind};
use partita_ir::{Attribute, TensorType, ValueId};

pub const ROWS: Rows = &[
    ("aten.cross_entropy_loss.default", cross_entropy),
    ("aten.nll_loss.default", nll_loss),
    ("aten.nll_loss_nd.default", nll_loss),
    ("aten.nll_loss_forward.default", nll_loss),
    ("aten.nll_loss2d_forward.default", nll_loss),
    ("aten.mse_loss.default", mse_loss),
    ("aten.l1_loss.default", l1_loss),
    ("aten.smooth_l1_loss.default", |c| huber(c, "beta", true)),
    ("aten.huber_loss.default", |c| huber(c, "delta", false)),
    ("aten.binary_cross_entropy.default", binary_cross_entropy),
    ("aten.binary_cross_entropy_with_logits.default", binary_cross_entropy_with_logits),
    ("aten.kl_div.default", kl_div),
];

/// `reduction`: 0 none, 1 mean, 2 sum.
fn reduced(call: &mut Call, losses: ValueId, dtype: DType) -> Outs {
    let reduction = call.int("reduction", 1)?;
    let shape = call.shape(losses);
    let dims: Vec<usize> = (0..shape.len()).collect();
    let total =
        if reduction == 0 || dims.is_empty() { losses } else { call.b().reduce_sum(losses, &dims)? };
    let count: usize = shape.iter().product();
    // The mean of nothing is NaN.
    let y = if reduction == 1 { call.b().scale(total, 1.0 / count as f64)? } else { total };
    one(convert(call, y, dtype)?)
}

/// `self` and `target` in the type of sums, broadcast.
fn pair(call: &mut Call) -> Result<([ValueId; 2], DType)> {
    let dtype = call.result_dtype(0)?;
    Ok((operands(call, ["self", "target"], wide(dtype))?, dtype))
}

fn mse_loss(call: &mut Call) -> Outs {
    let ([x, y], dtype) = pair(call)?;
    let squares = call.b().composite(&MSE, &[], &[x, y])?;
    reduced(call, squares, dtype)
}

fn l1_loss(call: &mut Call) -> Outs {
    let ([x, y], dtype) = pair(call)?;
    let difference = call.b().subtract(x, y)?;
    let size = call.b().unary(UnaryKind::Abs, difference)?;
    reduced(call, size, dtype)
}

/// Quadratic up to `width`, linear beyond; `smooth` divides by the width.
fn huber(call: &mut Call, width: &str, smooth: bool) -> Outs {
    let ([x, y], dtype) = pair(call)?;
    let width = call.float(width, 1.0)?;
    if width == 0.0 && smooth {
        return l1_loss(call);
    }
    if width <= 0.0 {
        return Err(call.unsupported("a width above 0", width.to_string()));
    }
    let difference = call.b().subtract(x, y)?;
    let size = call.b().unary(UnaryKind::Abs, difference)?;
    let limit = call.b().full_like(size, width)?;
    let is_outer = call.b().compare(Direction::Ge, size, limit)?;
    // The square that is not taken must not be infinite: its gradient would be NaN.
    let zero = call.b().full_like(size, 0.0)?;
    let near = call.b().select(is_outer, zero, difference)?;
    let square = call.b().multiply(near, near)?;
    let inner = call.b().scale(square, 0.5)?;
    let outer = call.b().offset(size, -0.5 * width)?;
    let outer = call.b().scale(outer, width)?;
    let mut losses = call.b().select(is_outer, outer, inner)?;
    if smooth {
        losses = call.b().scale(losses, 1.0 / width)?;
    }
    reduced(call, losses, dtype)
}

/// The weights of elements, where given.
fn weighted(call: &mut Call, losses: ValueId) -> Result<ValueId> {
    if !call.has("weight") {
        return Ok(losses);
    }
    let dtype = call.ty(losses).dtype;
    let weight = operand(call, "weight", dtype)?;
    let [losses, weight] = broadcast_pair(call, losses, weight)?;
    call.b().multiply(losses, weight)
}

/// `-(y log(x) + (1 - y) log(1 - x))`, logarithms at least -100 as in PyTorch. The slope is PyTorch's too: that of
/// the loss without limits, `(x - y) / (x (1 - x))`, whose denominator is at least 1e-12. So a saturated probability
/// is still pushed away.
fn binary_cross_entropy(call: &mut Call) -> Outs {
    let ([x, y], dtype) = pair(call)?;
    let fixed = call.b().stop_gradient(x)?;
    let ones = call.b().full_like(x, 1.0)?;
    let (rest_x, rest_y) = (call.b().subtract(ones, fixed)?, call.b().subtract(ones, y)?);
    let least = call.b().full_like(x, -100.0)?;
    let mut sum = None;
    for (probability, weight) in [(fixed, y), (rest_x, rest_y)] {
        let log = call.b().unary(UnaryKind::Log, probability)?;
        let log = call.b().maximum(log, least)?;
        let term = call.b().multiply(weight, log)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => call.b().add(sum, term)?,
        });
    }
    let losses = call.b().negate(sum.expect("two terms"))?;
    // 0 with that slope.
    let labels = call.b().stop_gradient(y)?;
    let error = call.b().subtract(fixed, labels)?;
    let spread = call.b().multiply(rest_x, fixed)?;
    let floor = call.b().full_like(spread, 1e-12)?;
    let spread = call.b().maximum(spread, floor)?;
    let slope = call.b().divide(error, spread)?;
    let moved = call.b().subtract(x, fixed)?;
    let moved = call.b().multiply(moved, slope)?;
    let losses = call.b().add(losses, moved)?;
    let losses = weighted(call, losses)?;
    reduced(call, losses, dtype)
}

/// `(1 - y) x + (1 + (p - 1) y) softplus(-x)`, with the weight `p` of positive labels.
fn binary_cross_entropy_with_logits(call: &mut Call) -> Outs {
    let ([x, y], dtype) = pair(call)?;
    let ones = call.b().full_like(x, 1.0)?;
    let rest = call.b().subtract(ones, y)?;
    let first = call.b().multiply(rest, x)?;
    let negative = call.b().negate(x)?;
    let mut second = softplus(call, negative, 1.0, 40.0)?;
    if call.has("pos_weight") {
        let weight = operand(call, "pos_weight", wide(dtype))?;
        let shape = call.shape(x);
        let weight = call.spread(weight, &shape)?;
        let more = call.b().subtract(weight, ones)?;
        let more = call.b().multiply(more, y)?;
        let factor = call.b().add(ones, more)?;
        second = call.b().multiply(factor, second)?;
    }
    let losses = call.b().add(first, second)?;
    let losses = weighted(call, losses)?;
    reduced(call, losses, dtype)
}

/// `target (log(target) - self)`, or `exp(target) (target - self)` for logarithms.
fn kl_div(call: &mut Call) -> Outs {
    let ([x, y], dtype) = pair(call)?;
    if call.flag("log_target", false)? {
        let difference = call.b().subtract(y, x)?;
        let probability = call.b().exponential(y)?;
        let losses = call.b().multiply(probability, difference)?;
        return reduced(call, losses, dtype);
    }
    // 0 log(0) is 0.
    let zero = call.b().full_like(y, 0.0)?;
    let is_positive = call.b().compare(Direction::Gt, y, zero)?;
    let ones = call.b().full_like(y, 1.0)?;
    let safe = call.b().select(is_positive, y, ones)?;
    let log = call.b().unary(UnaryKind::Log, safe)?;
    let own = call.b().multiply(y, log)?;
    let cross = call.b().multiply(y, x)?;
    let losses = call.b().subtract(own, cross)?;
    reduced(call, losses, dtype)
}

/// Scores with the classes, dimension 1 (or 0 of a single row), as the last dimension.
fn classes_last(call: &mut Call, scores: ValueId) -> Result<ValueId> {
    let rank = call.shape(scores).len();
    if rank <= 2 {
        return Ok(scores);
    }
    let order: Vec<usize> = std::iter::once(0).chain(2..rank).chain([1]).collect();
    call.b().transpose(scores, &order)
}

/// Sum of the losses of rows, or their mean over the rows that count: NaN if none does, as in PyTorch.
fn over_rows(
    call: &mut Call,
    losses: ValueId,
    labels: ValueId,
    ignored: i64,
    dtype: DType,
) -> Result<[ValueId; 2]> {
    let own = call.ty(losses).dtype;
    let label_ty = call.ty(labels);
    let ignored = call.b().full_like(labels, ignored as f64)?;
    let counts = call.b().compare(Direction::Ne, labels, ignored)?;
    // Counted in integers: exact for any batch.
    let counts = convert(call, counts, label_ty.dtype)?;
    let dims: Vec<usize> = (0..label_ty.rank()).collect();
    let count = if dims.is_empty() { counts } else { call.b().reduce_sum(counts, &dims)? };
    let total_weight = convert(call, count, dtype)?;
    let reduction = call.int("reduction", 1)?;
    let total =
        if reduction == 0 || dims.is_empty() { losses } else { call.b().reduce_sum(losses, &dims)? };
    let y = if reduction == 1 {
        let least = call.b().full_like(count, 1.0)?;
        let has_rows = call.b().compare(Direction::Ge, count, least)?;
        let count = call.b().maximum(count, least)?;
        let count = convert(call, count, own)?;
        let mean = call.b().divide(total, count)?;
        let nothing = call.b().full_like(mean, f64::NAN)?;
        call.b().select(has_rows, mean, nothing)?
    } else {
        total
    };
    Ok([convert(call, y, dtype)?, total_weight])
}

/// E356 unless labels are one integer for each row of scores.
fn check_labels(call: &Call, scores: ValueId, labels: ValueId) -> Result<()> {
    let (scores, labels) = (call.ty(scores), call.ty(labels));
    let fits =
        scores.shape.split_last().is_some_and(|(_, rows)| rows == labels.shape) && labels.dtype.is_integer();
    match fits {
        true => Ok(()),
        false => {
            Err(call
                .unsupported("one integer label for each row of scores", format!("{scores} and {labels}")))
        }
    }
}

fn cross_entropy(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let smoothing = call.float("label_smoothing", 0.0)?;
    if call.has("weight") {
        return Err(call.unsupported("classes of equal weight", "`weight`"));
    }
    let scores = operand(call, "self", wide(dtype))?;
    let scores = classes_last(call, scores)?;
    let labels = call.tensor("target")?;
    if call.ty(labels).dtype.is_float() {
        return probabilities(call, scores, smoothing, dtype);
    }
    check_labels(call, scores, labels)?;
    let ignored = call.int("ignore_index", -100)?;
    let attributes = [("ignore_index", Attribute::Int(ignored))];
    let mut losses = call.b().composite(&CROSS_ENTROPY, &attributes, &[scores, labels])?;
    if smoothing > 0.0 {
        // Part of the target is spread evenly over all classes.
        let last = call.shape(scores).len() - 1;
        let log = along(call, &LOG_SOFTMAX, scores, last)?;
        let sum = call.b().reduce_sum(log, &[last])?;
        let classes = extent(call, scores, last);
        let even = call.b().scale(sum, -1.0 / classes)?;
        let ignored = call.b().full_like(labels, ignored as f64)?;
        let counts = call.b().compare(Direction::Ne, labels, ignored)?;
        let zero = call.b().full_like(even, 0.0)?;
        let even = call.b().select(counts, even, zero)?;
        let (own, even) = (call.b().scale(losses, 1.0 - smoothing)?, call.b().scale(even, smoothing)?);
        losses = call.b().add(own, even)?;
    }
    let [y, _] = over_rows(call, losses, labels, ignored, dtype)?;
    one(y)
}

fn extent(call: &Call, x: ValueId, dim: usize) -> f64 {
    call.shape(x)[dim].max(1) as f64
}

/// Cross entropy with probabilities as targets: the mean is over rows.
fn probabilities(call: &mut Call, scores: ValueId, smoothing: f64, dtype: DType) -> Outs {
    let own = call.ty(scores).dtype;
    let targets = operand(call, "target", own)?;
    let mut targets = classes_last(call, targets)?;
    if call.shape(targets) != call.shape(scores) || call.shape(scores).is_empty() {
        return Err(call.unsupported("a probability for each score", call.ty(targets).to_string()));
    }
    let last = call.shape(scores).len() - 1;
    if smoothing > 0.0 {
        let scaled = call.b().scale(targets, 1.0 - smoothing)?;
        let classes = extent(call, scores, last);
        targets = call.b().offset(scaled, smoothing / classes)?;
    }
    let log = along(call, &LOG_SOFTMAX, scores, last)?;
    let terms = call.b().multiply(targets, log)?;
    let sum = call.b().reduce_sum(terms, &[last])?;
    let losses = call.b().negate(sum)?;
    reduced(call, losses, dtype)
}

/// The negative log-likelihood of labels from logarithms of probabilities.
fn nll_loss(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    if call.has("weight") {
        return Err(call.unsupported("classes of equal weight", "`weight`"));
    }
    let scores = operand(call, "self", wide(dtype))?;
    let scores = classes_last(call, scores)?;
    let labels = call.tensor("target")?;
    check_labels(call, scores, labels)?;
    let ignored = call.int("ignore_index", -100)?;
    // Selected by comparison, so that the classes may be sharded.
    let shape = call.shape(scores);
    let last = shape.len() - 1;
    let label_dtype = call.ty(labels).dtype;
    let classes = call.b().iota(TensorType::new(label_dtype, shape.clone()), last)?;
    let dims: Vec<usize> = (0..last).collect();
    let spread = call.b().broadcast_in_dim(labels, &shape, &dims)?;
    let hit = call.b().compare(Direction::Eq, classes, spread)?;
    let at = call.b().full_like(classes, ignored as f64)?;
    let counts = call.b().compare(Direction::Ne, spread, at)?;
    let hit = call.b().binary(BinaryKind::And, hit, counts)?;
    let zero = call.b().full_like(scores, 0.0)?;
    let picked = call.b().select(hit, scores, zero)?;
    let sum = call.b().reduce_sum(picked, &[last])?;
    let losses = call.b().negate(sum)?;
    let [y, total_weight] = over_rows(call, losses, labels, ignored, dtype)?;
    Ok(vec![Out::Value(y), Out::Value(total_weight)])
}
