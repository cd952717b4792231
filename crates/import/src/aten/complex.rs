//! Complex numbers: their parts, and functions that only they have. Arithmetic on them is in the other families: it is that
//! of the graph. [`partita_ir::complex_as_pairs`] makes real numbers of all when the import ends.

use super::contract::matmul;
use super::{Rows, broadcast_pair, one, operands};
use crate::pt2::call::{Call, Outs, View};
use partita_base::Result;
use partita_ir::ValueId;
use partita_ir::ops::{BinaryKind, Direction, Special, SpecialKind, UnaryKind};

pub const ROWS: Rows = &[
    ("aten.view_as_real.default", |c| c.view("self", vec![View::Pairs])),
    ("aten.view_as_complex.default", as_complex),
    ("aten.real.default", |c| of_complex(c, View::Part { is_imaginary: false })),
    ("aten.imag.default", |c| of_complex(c, View::Part { is_imaginary: true })),
    ("aten._conj.default", |c| of_complex(c, View::Conjugate)),
    ("aten.conj_physical.default", conjugate),
    ("aten.resolve_conj.default", |c| c.view("self", Vec::new())),
    ("aten.resolve_neg.default", |c| c.view("self", Vec::new())),
    ("aten.complex.default", from_parts),
    ("aten.polar.default", polar),
    ("aten.angle.default", angle),
    ("aten.vdot.default", conjugate_product),
];

fn is_complex(call: &Call) -> Result<bool> {
    Ok(call.type_of(call.reference("self")?).dtype.is_complex())
}

fn special(call: &mut Call, kind: SpecialKind, operands: &[ValueId]) -> Result<ValueId> {
    call.b().push1(Special { kind }, operands)
}

/// A view of complex numbers; of a real tensor, itself.
fn of_complex(call: &mut Call, view: View) -> Outs {
    let views = if is_complex(call)? { vec![view] } else { Vec::new() };
    call.view("self", views)
}

fn as_complex(call: &mut Call) -> Outs {
    let ty = call.type_of(call.reference("self")?);
    match ty.shape.last() {
        Some(2) => call.view("self", vec![View::Complex]),
        _ => Err(call.unsupported("a last dimension of 2", ty.to_string())),
    }
}

fn conjugate(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    one(if is_complex(call)? { special(call, SpecialKind::Conj, &[x])? } else { x })
}

fn from_parts(call: &mut Call) -> Outs {
    let (re, im) = (call.tensor("real")?, call.tensor("imag")?);
    let [re, im] = broadcast_pair(call, re, im)?;
    one(special(call, SpecialKind::Complex, &[re, im])?)
}

/// `abs e^(i angle)`
fn polar(call: &mut Call) -> Outs {
    let (magnitude, angle) = (call.tensor("abs")?, call.tensor("angle")?);
    let [magnitude, angle] = broadcast_pair(call, magnitude, angle)?;
    let parts = [UnaryKind::Cosine, UnaryKind::Sine].map(|kind| {
        let direction = call.b().unary(kind, angle)?;
        call.b().multiply(magnitude, direction)
    });
    let [re, im] = parts;
    one(special(call, SpecialKind::Complex, &[re?, im?])?)
}

/// The angle, without a gradient at 0; of a real number, pi if it is negative.
fn angle(call: &mut Call) -> Outs {
    let x = call.tensor("self")?;
    if !is_complex(call)? {
        let x = call.b().stop_gradient(x)?;
        let zero = call.b().full_like(x, 0.0)?;
        let half = call.b().full_like(x, std::f64::consts::PI)?;
        let is_negative = call.b().compare(Direction::Lt, x, zero)?;
        let angle = call.b().select(is_negative, half, zero)?;
        let is_number = call.b().compare(Direction::Eq, x, x)?;
        return one(call.b().select(is_number, angle, x)?);
    }
    let (re, im) = (special(call, SpecialKind::Real, &[x])?, special(call, SpecialKind::Imag, &[x])?);
    let zero = call.b().full_like(re, 0.0)?;
    let no_real = call.b().compare(Direction::Eq, re, zero)?;
    let no_imaginary = call.b().compare(Direction::Eq, im, zero)?;
    let is_zero = call.b().binary(BinaryKind::And, no_real, no_imaginary)?;
    let (fixed_re, fixed_im) = (call.b().stop_gradient(re)?, call.b().stop_gradient(im)?);
    let ones = call.b().full_like(re, 1.0)?;
    let (safe_re, safe_im) = (call.b().select(is_zero, ones, re)?, call.b().select(is_zero, zero, im)?);
    let of_zero = call.b().binary(BinaryKind::Atan2, fixed_im, fixed_re)?;
    let angle = call.b().binary(BinaryKind::Atan2, safe_im, safe_re)?;
    one(call.b().select(is_zero, of_zero, angle)?)
}

/// The sum of `conj(self) other`.
fn conjugate_product(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let [mut a, b] = operands(call, ["self", "other"], dtype)?;
    if is_complex(call)? {
        a = special(call, SpecialKind::Conj, &[a])?;
    }
    one(matmul(call, a, b)?)
}
