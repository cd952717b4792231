//! AdamW with 8-bit states (Dettmers et al. 2022, <https://arxiv.org/abs/2110.02861>).
//!
//! A moment is a code of 8 bits times the largest magnitude of its block. Codes are a dynamic tree: the position of the
//! highest bit is a power of ten, the bits below it are a linear fraction within the decade. Code `2^i + j` of `D` decades
//! is `10^(i + 1 - D) (0.1 + 0.9 (j + 1) / 2^i)`, so the largest code is 1, and code 0 is 0. The mean has a sign and
//! 7 decades; the mean of squares has 8, and is never rounded to 0, so that no update is divided by `epsilon` alone.
//!
//! A block is a part of a row. So blocks are whole on each rank if the shards of a row are whole blocks, and otherwise the
//! largest magnitude is a reduction over ranks: either way the codes are those of one device.

use super::{Shared, Subject, adam_direction, step_by};
use partita_base::{DType, Result};
use partita_ir::ops::{Direction, UnaryKind};
use partita_ir::{GraphBuilder, TensorType, ValueId};

/// The most elements of a block.
const BLOCK: usize = 256;
/// The fewest, unless a row is shorter.
const MIN_BLOCK: usize = 32;

/// Codes and scales; full moments for parameters of fewer than two dimensions.
pub(super) fn states(ty: &TensorType) -> Vec<(&'static str, TensorType)> {
    if ty.rank() < 2 {
        return vec![("exp_avg", ty.clone()), ("exp_avg_sq", ty.clone())];
    }
    let mut scales = ty.clone();
    let columns = scales.shape.last_mut().expect("a matrix has two dimensions");
    *columns /= block(*columns);
    vec![
        ("exp_avg", ty.with_dtype(DType::I8)),
        ("exp_avg_sq", ty.with_dtype(DType::U8)),
        ("exp_avg_scale", scales.clone()),
        ("exp_avg_sq_scale", scales),
    ]
}

/// The elements of a block of rows of this extent: the largest divisor up to [`BLOCK`], or the row if that is too short.
fn block(columns: usize) -> usize {
    let divisor = (1..=BLOCK.min(columns)).rev().find(|&size| columns.is_multiple_of(size)).unwrap_or(1);
    if divisor < MIN_BLOCK { columns } else { divisor }
}

pub(super) fn update(
    b: &mut GraphBuilder,
    shared: &Shared,
    subject: &Subject,
    betas: [f64; 2],
    epsilon: f64,
) -> Result<(ValueId, Vec<ValueId>)> {
    let &[mean, square, mean_scale, square_scale] = subject.states else {
        unreachable!("two codes and two scales")
    };
    let (means, squares) = (Codes { decades: 7, signed: true }, Codes { decades: 8, signed: false });
    let moments = [means.decode(b, mean, mean_scale)?, squares.decode(b, square, square_scale)?];
    let (direction, [mean, square]) = adam_direction(b, shared, subject.g, moments, betas, epsilon)?;
    let p = subject.decayed(b, shared)?;
    let p = step_by(b, p, direction, shared.step_size)?;
    let (mean, mean_scale) = means.encode(b, mean)?;
    let (square, square_scale) = squares.encode(b, square)?;
    Ok((p, vec![mean, square, mean_scale, square_scale]))
}

/// A code book.
struct Codes {
    decades: i32,
    signed: bool,
}

impl Codes {
    /// The largest number of a decade; decade 0 is the smallest.
    fn top(&self, decade: i32) -> f64 {
        10f64.powi(decade + 1 - self.decades)
    }

    /// Numbers from codes and the scales of their blocks.
    fn decode(&self, b: &mut GraphBuilder, codes: ValueId, scales: ValueId) -> Result<ValueId> {
        let dtype = b.ty(scales).dtype;
        let signed = b.convert(codes, dtype)?;
        let code = if self.signed { b.unary(UnaryKind::Abs, signed)? } else { signed };
        let mut value = b.scale(code, self.top(0))?;
        for decade in 1..self.decades {
            let count = 2f64.powi(decade);
            // 0.1 + 0.9 (code + 1 - count) / count
            let step = 0.9 * self.top(decade) / count;
            let fraction = b.scale(code, step)?;
            let inside = b.offset(fraction, 0.1 * self.top(decade) + step * (1.0 - count))?;
            let first = b.full_like(code, count)?;
            let reaches = b.compare(Direction::Ge, code, first)?;
            value = b.select(reaches, inside, value)?;
        }
        if self.signed {
            let sign = b.unary(UnaryKind::Sign, signed)?;
            value = b.multiply(value, sign)?;
        }
        let scales = over_blocks(b, scales, value)?;
        b.multiply(value, scales)
    }

    /// The nearest codes of numbers, and the largest magnitude of each block.
    fn encode(&self, b: &mut GraphBuilder, x: ValueId) -> Result<(ValueId, ValueId)> {
        let magnitude = if self.signed { b.unary(UnaryKind::Abs, x)? } else { x };
        let shape = b.shape(x);
        let columns = *shape.last().expect("a matrix has two dimensions");
        let mut blocks = shape.clone();
        blocks.pop();
        blocks.extend([columns / block(columns), block(columns)]);
        let parted = b.reshape(magnitude, &blocks)?;
        let scales = b.reduce_max(parted, &[shape.len()])?;
        let zero = b.full_like(scales, 0.0)?;
        let one = b.full_like(scales, 1.0)?;
        let is_empty = b.compare(Direction::Eq, scales, zero)?;
        let divisor = b.select(is_empty, one, scales)?;
        let divisor = over_blocks(b, divisor, magnitude)?;
        let share = b.divide(magnitude, divisor)?;
        let scaled = b.scale(share, 1.0 / self.top(0))?;
        let mut code = b.unary(UnaryKind::RoundNearestEven, scaled)?;
        for decade in 1..self.decades {
            let count = 2f64.powi(decade);
            let steps = count / 0.9;
            let scaled = b.scale(share, steps / self.top(decade))?;
            let scaled = b.offset(scaled, -0.1 * steps)?;
            let rounded = b.unary(UnaryKind::RoundNearestEven, scaled)?;
            let inside = b.offset(rounded, count - 1.0)?;
            let bottom = b.full_like(share, self.top(decade - 1))?;
            let exceeds = b.compare(Direction::Gt, share, bottom)?;
            code = b.select(exceeds, inside, code)?;
        }
        let sign = b.unary(UnaryKind::Sign, x)?;
        if self.signed {
            code = b.multiply(code, sign)?;
        } else {
            code = b.maximum(code, sign)?;
        }
        let dtype = if self.signed { DType::I8 } else { DType::U8 };
        Ok((b.convert(code, dtype)?, scales))
    }
}

/// The number of each block `[.., blocks]` at each of its elements.
fn over_blocks(b: &mut GraphBuilder, scales: ValueId, like: ValueId) -> Result<ValueId> {
    let shape = b.shape(like);
    let mut blocks = b.shape(scales);
    let columns = *shape.last().expect("a matrix has two dimensions");
    let dims: Vec<usize> = (0..blocks.len()).collect();
    blocks.push(block(columns));
    let spread = b.broadcast_in_dim(scales, &blocks, &dims)?;
    b.reshape(spread, &shape)
}
