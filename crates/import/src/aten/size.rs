//! Numbers computed from shapes: symbolic sizes are known once the import has fixed the inputs.

use super::Rows;
use crate::pt2::call::{Call, Out, Outs, Scalar};

pub const ROWS: Rows = &[
    ("aten.sym_size.int", size),
    ("aten.sym_numel.default", numel),
    ("_operator.add", |c| whole(c, i64::checked_add)),
    ("_operator.sub", |c| whole(c, i64::checked_sub)),
    ("_operator.mul", |c| whole(c, i64::checked_mul)),
    ("_operator.floordiv", |c| whole(c, floor_div)),
    ("_operator.mod", |c| whole(c, floor_mod)),
    ("_operator.neg", |c| {
        let (a, _) = arguments(c)?;
        match a {
            Scalar::Int(a) => number(Scalar::Int(a.wrapping_neg())),
            other => number(Scalar::Float(-other.as_f64())),
        }
    }),
    ("_operator.truediv", |c| {
        let (a, b) = pair(c)?;
        number(Scalar::Float(a.as_f64() / b.as_f64()))
    }),
    ("_operator.eq", |c| test(c, |a, b| a == b)),
    ("_operator.ne", |c| test(c, |a, b| a != b)),
    ("_operator.lt", |c| test(c, |a, b| a < b)),
    ("_operator.le", |c| test(c, |a, b| a <= b)),
    ("_operator.gt", |c| test(c, |a, b| a > b)),
    ("_operator.ge", |c| test(c, |a, b| a >= b)),
    ("torch.sym_max", |c| whole(c, |a, b| Some(a.max(b)))),
    ("torch.sym_min", |c| whole(c, |a, b| Some(a.min(b)))),
];

fn number(value: Scalar) -> Outs {
    Ok(vec![Out::Scalar(value)])
}

fn size(call: &mut Call) -> Outs {
    let shape = call.type_of(call.reference("self")?).shape;
    let dim = call.wrap(call.required_int("dim")?, shape.len())?;
    match shape.get(dim) {
        Some(&extent) => number(Scalar::Int(extent as i64)),
        None => Err(call.unsupported("a dimension", "a scalar")),
    }
}

fn numel(call: &mut Call) -> Outs {
    let shape = call.type_of(call.reference("self")?).shape;
    number(Scalar::Int(shape.iter().product::<usize>() as i64))
}

/// The arguments of a Python operator by position; the second may be missing.
fn arguments(call: &Call) -> partita_base::Result<(Scalar, Option<Scalar>)> {
    let mut numbers = call.numbers()?.into_iter();
    match numbers.next() {
        Some(first) => Ok((first, numbers.next())),
        None => Err(call.unsupported("numbers", "none")),
    }
}

fn pair(call: &Call) -> partita_base::Result<(Scalar, Scalar)> {
    match arguments(call)? {
        (a, Some(b)) => Ok((a, b)),
        _ => Err(call.unsupported("two numbers", "one")),
    }
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let ratio = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { ratio - 1 } else { ratio })
}

fn floor_mod(a: i64, b: i64) -> Option<i64> {
    let rest = a.checked_rem(b)?;
    Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
}

fn whole(call: &mut Call, op: fn(i64, i64) -> Option<i64>) -> Outs {
    let (a, b) = pair(call)?;
    let (Scalar::Int(a), Scalar::Int(b)) = (a, b) else {
        return Err(call.unsupported("integers", format!("{a:?} and {b:?}")));
    };
    match op(a, b) {
        Some(value) => number(Scalar::Int(value)),
        None => Err(call.unsupported("a result of 64 bits", format!("{a} and {b}"))),
    }
}

fn test(call: &mut Call, op: fn(f64, f64) -> bool) -> Outs {
    let (a, b) = pair(call)?;
    number(Scalar::Bool(op(a.as_f64(), b.as_f64())))
}
