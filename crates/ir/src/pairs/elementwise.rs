//! Functions of single complex numbers in terms of their parts.
//!
//! Magnitudes and quotients are computed from numbers divided by the larger part, so that squares neither overflow nor
//! vanish. The divisor has no gradient: what is computed does not depend on it.

use super::{Parts, Twin, bilinear, both};
use crate::builder::GraphBuilder;
use crate::graph::ValueId;
use crate::ops::{Binary, BinaryKind, Compare, Direction, SpecialKind, UnaryKind};
use partita_base::Result;

/// `z + w` or `z - w`.
pub(super) fn sum(b: &mut GraphBuilder, kind: BinaryKind, z: Parts, w: Parts) -> Result<Parts> {
    let im = match (z.im, w.im) {
        (Some(x), Some(y)) => Some(b.binary(kind, x, y)?),
        (None, Some(y)) if kind == BinaryKind::Subtract => Some(b.negate(y)?),
        (x, y) => x.or(y),
    };
    Ok(Parts { re: b.binary(kind, z.re, w.re)?, im })
}

/// Both parts divided by the larger magnitude of the two, and that magnitude; 1 instead of 0 and of infinity.
fn scaled(b: &mut GraphBuilder, z: Parts) -> Result<([ValueId; 2], ValueId)> {
    let [re, im] = both(b, z)?;
    let (x, y) = (b.unary(UnaryKind::Abs, re)?, b.unary(UnaryKind::Abs, im)?);
    let largest = b.maximum(x, y)?;
    let zero = b.full_like(largest, 0.0)?;
    let one = b.full_like(largest, 1.0)?;
    let is_finite = b.unary(UnaryKind::IsFinite, largest)?;
    let is_positive = b.compare(Direction::Gt, largest, zero)?;
    let fits = b.binary(BinaryKind::And, is_finite, is_positive)?;
    let size = b.select(fits, largest, one)?;
    let size = b.stop_gradient(size)?;
    Ok(([b.divide(re, size)?, b.divide(im, size)?], size))
}

/// `x^2 + y^2`
fn squares(b: &mut GraphBuilder, [x, y]: [ValueId; 2]) -> Result<ValueId> {
    let (x, y) = (b.multiply(x, x)?, b.multiply(y, y)?);
    b.add(x, y)
}

/// `|z|`, whose gradient at 0 is 0, as PyTorch has it.
fn absolute(b: &mut GraphBuilder, z: Parts) -> Result<ValueId> {
    if z.im.is_none() {
        return b.unary(UnaryKind::Abs, z.re);
    }
    let (parts, size) = scaled(b, z)?;
    let square = squares(b, parts)?;
    let zero = b.full_like(square, 0.0)?;
    let one = b.full_like(square, 1.0)?;
    let is_zero = b.compare(Direction::Eq, square, zero)?;
    let safe = b.select(is_zero, one, square)?;
    let root = b.unary(UnaryKind::Sqrt, safe)?;
    let root = b.multiply(root, size)?;
    b.select(is_zero, zero, root)
}

/// `z / w`
pub(super) fn divide(b: &mut GraphBuilder, z: Parts, w: Parts) -> Result<Parts> {
    if w.im.is_none() {
        let im = z.im.map(|im| b.divide(im, w.re)).transpose()?;
        return Ok(Parts { re: b.divide(z.re, w.re)?, im });
    }
    let ([re, im], size) = scaled(b, w)?;
    let conjugate = Parts { re, im: Some(b.negate(im)?) };
    let product = bilinear(b, &Binary { kind: BinaryKind::Multiply }.into(), z, conjugate)?;
    let square = squares(b, [re, im])?;
    let [re, im] = both(b, product)?;
    let mut quotient = |part: ValueId| {
        let part = b.divide(part, square)?;
        b.divide(part, size)
    };
    Ok(Parts { re: quotient(re)?, im: Some(quotient(im)?) })
}

/// Whether both parts are equal, or one is not.
pub(super) fn compare(b: &mut GraphBuilder, op: &Compare, z: Parts, w: Parts) -> Result<ValueId> {
    let re = b.push1(op.clone(), &[z.re, w.re])?;
    if z.im.is_none() && w.im.is_none() {
        return Ok(re);
    }
    let (z, w) = (both(b, z)?, both(b, w)?);
    let im = b.push1(op.clone(), &[z[1], w[1]])?;
    b.binary(if op.direction == Direction::Ne { BinaryKind::Or } else { BinaryKind::And }, re, im)
}

/// Parts, the complex number of two reals, the conjugate; `None` for functions that have no formula here.
pub(super) fn special(b: &mut GraphBuilder, kind: SpecialKind, x: &[Twin]) -> Result<Option<Twin>> {
    Ok(Some(match (kind, x) {
        (SpecialKind::Complex, &[Twin::Real(re), Twin::Real(im)]) => {
            Twin::Complex(Parts { re, im: Some(im) })
        }
        (SpecialKind::Real, &[Twin::Complex(z)]) => Twin::Real(z.re),
        (SpecialKind::Imag, &[Twin::Complex(z)]) => Twin::Real(both(b, z)?[1]),
        (SpecialKind::Conj, &[Twin::Complex(z)]) => {
            Twin::Complex(Parts { re: z.re, im: z.im.map(|im| b.negate(im)).transpose()? })
        }
        (SpecialKind::Sinh, &[Twin::Complex(z)]) => Twin::Complex(hyperbolic(b, z)?[0]),
        (SpecialKind::Cosh, &[Twin::Complex(z)]) => Twin::Complex(hyperbolic(b, z)?[1]),
        _ => return Ok(None),
    }))
}

/// A function of one number; `None` for those that have no formula here.
pub(super) fn unary(b: &mut GraphBuilder, kind: UnaryKind, z: Parts) -> Result<Option<Twin>> {
    let parts = match kind {
        UnaryKind::Abs => return Ok(Some(Twin::Real(absolute(b, z)?))),
        UnaryKind::Negate => Parts { re: b.negate(z.re)?, im: z.im.map(|im| b.negate(im)).transpose()? },
        UnaryKind::Square => bilinear(b, &Binary { kind: BinaryKind::Multiply }.into(), z, z)?,
        UnaryKind::Sign => {
            let size = absolute(b, z)?;
            let zero = b.full_like(size, 0.0)?;
            let one = b.full_like(size, 1.0)?;
            let is_zero = b.compare(Direction::Eq, size, zero)?;
            let re = b.select(is_zero, one, size)?;
            let Parts { re, im } = divide(b, z, Parts { re, im: None })?;
            // Without a gradient at 0.
            let mut kept = |part| b.select(is_zero, zero, part);
            Parts { re: kept(re)?, im: im.map(kept).transpose()? }
        }
        UnaryKind::Exponential => {
            let [re, im] = both(b, z)?;
            let size = b.exponential(re)?;
            polar(b, size, im)?
        }
        UnaryKind::Log => {
            let size = absolute(b, z)?;
            let [re, im] = both(b, z)?;
            let angle = b.binary(BinaryKind::Atan2, im, re)?;
            Parts { re: b.unary(UnaryKind::Log, size)?, im: Some(angle) }
        }
        UnaryKind::Sqrt => square_root(b, z)?,
        UnaryKind::Sine => {
            // sin z = -i sinh iz
            let turned = times_i(b, z)?;
            let [sine, _] = hyperbolic(b, turned)?;
            let [re, im] = both(b, sine)?;
            Parts { re: im, im: Some(b.negate(re)?) }
        }
        UnaryKind::Cosine => {
            let turned = times_i(b, z)?;
            hyperbolic(b, turned)?[1]
        }
        UnaryKind::Tanh => tangent(b, z)?,
        _ => return Ok(None),
    };
    Ok(Some(Twin::Complex(parts)))
}

/// `size e^(i angle)`
fn polar(b: &mut GraphBuilder, size: ValueId, angle: ValueId) -> Result<Parts> {
    let (cosine, sine) = (b.unary(UnaryKind::Cosine, angle)?, b.unary(UnaryKind::Sine, angle)?);
    Ok(Parts { re: b.multiply(size, cosine)?, im: Some(b.multiply(size, sine)?) })
}

fn times_i(b: &mut GraphBuilder, z: Parts) -> Result<Parts> {
    let [re, im] = both(b, z)?;
    Ok(Parts { re: b.negate(im)?, im: Some(re) })
}

/// `sinh z` and `cosh z`
fn hyperbolic(b: &mut GraphBuilder, z: Parts) -> Result<[Parts; 2]> {
    let [re, im] = both(b, z)?;
    // By the exponential minus one, which keeps the digits of a small sine.
    let up = b.unary(UnaryKind::ExponentialMinusOne, re)?;
    let re = b.negate(re)?;
    let down = b.unary(UnaryKind::ExponentialMinusOne, re)?;
    let (odd, even) = (b.subtract(up, down)?, b.add(up, down)?);
    let (odd, even) = (b.scale(odd, 0.5)?, b.scale(even, 0.5)?);
    let even = b.offset(even, 1.0)?;
    let (cosine, sine) = (b.unary(UnaryKind::Cosine, im)?, b.unary(UnaryKind::Sine, im)?);
    Ok([
        Parts { re: b.multiply(odd, cosine)?, im: Some(b.multiply(even, sine)?) },
        Parts { re: b.multiply(even, cosine)?, im: Some(b.multiply(odd, sine)?) },
    ])
}

/// `tanh z`, from `t = tanh a` and `u = tan b`: `(t (1 + u^2) + i u (1 - t^2)) / (1 + t^2 u^2)`.
fn tangent(b: &mut GraphBuilder, z: Parts) -> Result<Parts> {
    let [re, im] = both(b, z)?;
    let (t, u) = (b.unary(UnaryKind::Tanh, re)?, b.unary(UnaryKind::Tan, im)?);
    let (tt, uu) = (b.multiply(t, t)?, b.multiply(u, u)?);
    let product = b.multiply(tt, uu)?;
    let whole = b.offset(product, 1.0)?;
    let more = b.offset(uu, 1.0)?;
    let minus = b.negate(tt)?;
    let less = b.offset(minus, 1.0)?;
    let (re, im) = (b.multiply(t, more)?, b.multiply(u, less)?);
    Ok(Parts { re: b.divide(re, whole)?, im: Some(b.divide(im, whole)?) })
}

/// The root in the right half plane: `h = sqrt((|z| + |a|) / 2)` and `|b| / 2h` are its parts, or the other way round for a
/// negative `a`.
fn square_root(b: &mut GraphBuilder, z: Parts) -> Result<Parts> {
    let size = absolute(b, z)?;
    let [re, im] = both(b, z)?;
    let zero = b.full_like(re, 0.0)?;
    let one = b.full_like(re, 1.0)?;
    let is_left = b.compare(Direction::Lt, re, zero)?;
    // Also for -0, whose root is below the cut.
    let inverse = b.divide(one, im)?;
    let is_below = b.compare(Direction::Lt, inverse, zero)?;
    // Not by `abs`, which has no slope at 0: these have the one of the side that is taken.
    let mut magnitude = |is_negative, x| {
        let minus = b.negate(x)?;
        b.select(is_negative, minus, x)
    };
    let (x, y) = (magnitude(is_left, re)?, magnitude(is_below, im)?);
    let whole = b.add(size, x)?;
    let half = b.scale(whole, 0.5)?;
    let is_zero = b.compare(Direction::Eq, half, zero)?;
    let safe = b.select(is_zero, one, half)?;
    let root = b.unary(UnaryKind::Sqrt, safe)?;
    let ratio = b.divide(y, root)?;
    let small = b.scale(ratio, 0.5)?;
    let large = b.select(is_zero, zero, root)?;
    let (re, size) = (b.select(is_left, small, large)?, b.select(is_left, large, small)?);
    let below = b.negate(size)?;
    Ok(Parts { re, im: Some(b.select(is_below, below, size)?) })
}
