//! The comparisons of test files. NaN equals NaN in all of them.

use super::suite::Check;
use partita_base::{DType, InertType};
use partita_ir::Literal;

/// The first difference, if any.
pub fn difference(check: Check, found: &Literal, expected: &Literal) -> Option<String> {
    if found.ty != expected.ty {
        return Some(format!("{} instead of {}", found.ty, expected.ty));
    }
    let is_fine: Box<dyn Fn(usize) -> bool> = match check {
        Check::Equal => {
            let is_exact = !found.ty.dtype.is_float() && !is_complex(found.ty.dtype);
            let (x, y) = (parts(found), parts(expected));
            let (i, j) = if is_exact { (found.to_i128(), expected.to_i128()) } else { (vec![], vec![]) };
            Box::new(move |at| if is_exact { i[at] == j[at] } else { equal(x[at], y[at]) })
        }
        Check::Almost(tolerance) => {
            let (x, y) = (parts(found), parts(expected));
            Box::new(move |at| {
                let (x, y) = (x[at], y[at]);
                equal(x, y) || (x - y).abs() <= tolerance * y.abs().max(1.0)
            })
        }
        Check::Close { min, max } => {
            let Some((x, y)) = places(found).zip(places(expected)) else {
                return Some(format!("{} has no neighbouring floats", found.ty));
            };
            Box::new(move |at| match (x[at], y[at]) {
                (Some(x), Some(y)) => (min.into()..=max.into()).contains(&(x - y).unsigned_abs()),
                (x, y) => x == y && min == 0,
            })
        }
    };
    let width = if is_complex(found.ty.dtype) { 2 } else { 1 };
    let wrong: Vec<usize> = (0..width * found.ty.element_count()).filter(|&at| !is_fine(at)).collect();
    let first = *wrong.first()?;
    let (x, y) = (parts(found), parts(expected));
    let count = wrong.len();
    Some(format!("{} instead of {} at element {} ({count} differ)", x[first], y[first], first / width))
}

pub fn is_complex(dtype: DType) -> bool {
    matches!(dtype, DType::Inert(InertType::Complex64 | InertType::Complex128))
}

/// The elements; of complex ones, both parts.
fn parts(literal: &Literal) -> Vec<f64> {
    match is_complex(literal.ty.dtype) {
        true => literal.to_complex().into_iter().flatten().collect(),
        false => literal.to_f64(),
    }
}

fn equal(x: f64, y: f64) -> bool {
    x == y || (x.is_nan() && y.is_nan())
}

/// The position of each float among the floats of its type, infinities included; `None` for NaN.
/// `None` for other types.
fn places(literal: &Literal) -> Option<Vec<Option<i128>>> {
    let (size, mantissa) = match literal.ty.dtype {
        DType::F16 => (2, 10),
        DType::BF16 => (2, 7),
        DType::F32 | DType::Inert(InertType::Complex64) => (4, 23),
        DType::F64 | DType::Inert(InertType::Complex128) => (8, 52),
        _ => return None,
    };
    let place = |bytes: &[u8]| {
        let bits = bytes.iter().rev().fold(0i128, |bits, &byte| bits << 8 | i128::from(byte));
        let sign = 1i128 << (8 * size - 1);
        let infinity = (sign - 1) >> mantissa << mantissa;
        let magnitude = bits & (sign - 1);
        let signed = if bits & sign == 0 { magnitude } else { -magnitude };
        match magnitude.cmp(&infinity) {
            std::cmp::Ordering::Greater => None,
            // Far from the largest finite number: an infinity is close only to itself.
            std::cmp::Ordering::Equal => Some(signed.signum() << 100),
            std::cmp::Ordering::Less => Some(signed),
        }
    };
    Some(literal.to_bytes().chunks(size).map(place).collect())
}

#[test]
fn floats_are_compared_by_their_distance() {
    let one = |v: f32| Literal::new([1], vec![v]);
    let next = |v: f32, steps: u32| one(f32::from_bits(v.to_bits() + steps));
    let close = |max| Check::Close { min: 0, max };
    assert_eq!(difference(close(3), &next(1.0, 3), &one(1.0)), None);
    assert!(difference(close(3), &next(1.0, 4), &one(1.0)).is_some());
    assert_eq!(difference(close(2), &one(-f32::from_bits(1)), &one(f32::from_bits(1))), None);
    assert!(difference(close(1 << 40), &one(f32::INFINITY), &one(f32::MAX)).is_some());
    assert_eq!(difference(close(0), &one(f32::NAN), &one(-f32::NAN)), None);
    assert!(difference(Check::Close { min: 2, max: 9 }, &next(1.0, 1), &one(1.0)).is_some());
    assert!(difference(Check::Equal, &next(1.0, 1), &one(1.0)).is_some());
    assert_eq!(difference(Check::Almost(0.1), &one(10.9), &one(10.0)), None);
    assert!(difference(Check::Almost(0.1), &one(11.1), &one(10.0)).is_some());
    let large = |v: i64| Literal::new([1], vec![v]);
    assert!(difference(Check::Equal, &large(i64::MAX), &large(i64::MAX - 1)).is_some());
}
