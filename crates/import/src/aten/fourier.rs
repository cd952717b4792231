//! Discrete Fourier transforms, one dimension after the other.

use super::{Rows, one};
use crate::pt2::call::{Call, Outs};
use partita_base::{DType, InertType, Result};
use partita_ir::ValueId;
use partita_ir::ops::{Fft, FftKind, Pad};

use FftKind::{Fft as Forward, Ifft as Inverse, Irfft as InverseReal, Rfft as ForwardReal};

pub const ROWS: Rows = &[
    ("aten.fft_fft.default", |c| named(c, Forward, Some("n"))),
    ("aten.fft_ifft.default", |c| named(c, Inverse, Some("n"))),
    ("aten.fft_rfft.default", |c| named(c, ForwardReal, Some("n"))),
    ("aten.fft_irfft.default", |c| named(c, InverseReal, Some("n"))),
    ("aten.fft_fft2.default", |c| named(c, Forward, Some("s"))),
    ("aten.fft_ifft2.default", |c| named(c, Inverse, Some("s"))),
    ("aten.fft_rfft2.default", |c| named(c, ForwardReal, Some("s"))),
    ("aten.fft_irfft2.default", |c| named(c, InverseReal, Some("s"))),
    ("aten.fft_fftn.default", |c| named(c, Forward, None)),
    ("aten.fft_ifftn.default", |c| named(c, Inverse, None)),
    ("aten.fft_rfftn.default", |c| named(c, ForwardReal, None)),
    ("aten.fft_irfftn.default", |c| named(c, InverseReal, None)),
    ("aten._fft_r2c.default", |c| {
        let kind = if c.flag("onesided", true)? { ForwardReal } else { Forward };
        numbered(c, kind)
    }),
    ("aten._fft_c2c.default", |c| {
        let kind = if c.flag("forward", true)? { Forward } else { Inverse };
        numbered(c, kind)
    }),
    ("aten._fft_c2r.default", |c| numbered(c, InverseReal)),
];

fn is_inverse(kind: FftKind) -> bool {
    matches!(kind, Inverse | InverseReal)
}

/// A function of `torch.fft`. `sizes` names the argument of the lengths, and so how many dimensions there are by default:
/// the last one for `n`, the last two for `s`; all if there is none.
fn named(call: &mut Call, kind: FftKind, sizes: Option<&str>) -> Outs {
    let x = call.tensor("self")?;
    let shape = call.shape(x);
    let given = call.maybe_ints(sizes.unwrap_or("s"))?;
    let dims: Vec<i64> = match (call.maybe_ints("dim")?, &given, sizes) {
        (Some(dims), _, _) => dims,
        (None, _, Some("n")) => vec![-1],
        (None, _, Some(_)) => vec![-2, -1],
        (None, Some(given), None) => (1..=given.len() as i64).rev().map(|at| -at).collect(),
        (None, None, None) => (0..shape.len() as i64).collect(),
    };
    let dims = call.wrap_all(&dims, shape.len())?;
    let mut lengths: Vec<usize> = dims.iter().filter_map(|&dim| shape.get(dim).copied()).collect();
    if let (InverseReal, Some(last)) = (kind, lengths.last_mut()) {
        *last = 2 * last.saturating_sub(1);
    }
    for (length, given) in lengths.iter_mut().zip(given.unwrap_or_default()) {
        if given != -1 {
            *length = call.extents(&[given])?[0];
        }
    }
    let scale = match call.text("norm", "backward")? {
        "backward" => Scale::Inverse,
        "ortho" => Scale::Both,
        "forward" => Scale::Forward,
        other => return Err(call.unsupported("the norm backward, ortho or forward", other.to_string())),
    };
    let power = match (scale, is_inverse(kind)) {
        (Scale::Both, _) => 0.5,
        (Scale::Forward, inverse) => f64::from(u8::from(!inverse)),
        (Scale::Inverse, inverse) => f64::from(u8::from(inverse)),
    };
    one(transformed(call, x, kind, &dims, &lengths, power)?)
}

/// Where a pair of transforms divides by the number of elements.
#[derive(Clone, Copy)]
enum Scale {
    Forward,
    Inverse,
    /// By the root in each.
    Both,
}

/// An op that functions of `torch.fft` become, with its scale as a number: none, by the root of the elements, by their
/// number.
fn numbered(call: &mut Call, kind: FftKind) -> Outs {
    let x = call.tensor("self")?;
    let shape = call.shape(x);
    let dims = call.wrap_all(&call.ints("dim")?, shape.len())?;
    let mut lengths: Vec<usize> = dims.iter().map(|&dim| shape[dim]).collect();
    if let (InverseReal, Some(last)) = (kind, lengths.last_mut()) {
        *last = call.extents(&[call.required_int("last_dim_size")?])?[0];
    }
    let power = match call.required_int("normalization")? {
        0 => 0.0,
        1 => 0.5,
        2 => 1.0,
        other => return Err(call.unsupported("a normalization from 0 to 2", other.to_string())),
    };
    one(transformed(call, x, kind, &dims, &lengths, power)?)
}

/// The transform along dimensions, of `lengths` elements each: cut, or with zeros behind them. It is divided by this power
/// of the number of elements.
fn transformed(
    call: &mut Call,
    x: ValueId,
    kind: FftKind,
    dims: &[usize],
    lengths: &[usize],
    power: f64,
) -> Result<ValueId> {
    let count: usize = lengths.iter().product();
    let (Some((&last, others)), true) = (dims.split_last(), count > 0 && lengths.len() == dims.len()) else {
        return Err(call.unsupported("at least one element to transform", format!("{lengths:?}")));
    };
    let mut x = x;
    let real = kind == ForwardReal;
    let dtype = call.ty(x).dtype;
    let target = match (real, dtype) {
        (true, DType::F64) => DType::F64,
        (true, _) => DType::F32,
        (false, DType::F64 | DType::Inert(InertType::Complex128)) => DType::Inert(InertType::Complex128),
        (false, _) => DType::Inert(InertType::Complex64),
    };
    if real && dtype.is_complex() {
        return Err(call.unsupported("real numbers", dtype.to_string()));
    }
    x = call.b().convert(x, target)?;
    for (&dim, &length) in dims.iter().zip(lengths) {
        let is_half = kind == InverseReal && dim == last;
        x = resized(call, x, dim, if is_half { length / 2 + 1 } else { length })?;
    }
    let (&length, rest) = lengths.split_last().expect("a dimension");
    // A real side is that of the last dimension: it comes first, or in the inverse last.
    let (ordinary, own) = if is_inverse(kind) { (Inverse, kind) } else { (Forward, kind) };
    let mut rounds: Vec<(usize, usize, FftKind)> =
        others.iter().zip(rest).map(|(&dim, &length)| (dim, length, ordinary)).collect();
    rounds.insert(if is_inverse(kind) { rounds.len() } else { 0 }, (last, length, own));
    for (dim, length, kind) in rounds {
        x = along(call, x, dim, Fft { kind, length: vec![length] })?;
    }
    let own_power = if is_inverse(kind) { 1.0 } else { 0.0 };
    match power == own_power {
        true => Ok(x),
        false => call.b().scale(x, (count as f64).powf(own_power - power)),
    }
}

/// So many elements of a dimension: the first ones, or zeros behind them.
fn resized(call: &mut Call, x: ValueId, dim: usize, extent: usize) -> Result<ValueId> {
    let mut shape = call.shape(x);
    let own = std::mem::replace(&mut shape[dim], extent);
    if extent <= own {
        return if extent == own { Ok(x) } else { call.b().slice_dim(x, dim, 0, extent) };
    }
    call.check_size(&shape)?;
    let mut pad =
        Pad { low: vec![0; shape.len()], high: vec![0; shape.len()], interior: vec![0; shape.len()] };
    pad.high[dim] = (extent - own) as i64;
    let dtype = call.ty(x).dtype;
    let zero = call.b().scalar(dtype, 0.0);
    call.b().push1(pad, &[x, zero])
}

/// The transform of one dimension, which is the last one meanwhile.
fn along(call: &mut Call, x: ValueId, dim: usize, fft: Fft) -> Result<ValueId> {
    let rank = call.shape(x).len();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(dim, rank - 1);
    let turned = if order.is_sorted() { x } else { call.b().transpose(x, &order)? };
    let done = call.b().push1(fft, &[turned])?;
    if order.is_sorted() { Ok(done) } else { call.b().transpose(done, &order) }
}
