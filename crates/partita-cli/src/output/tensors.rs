//! Tensors as text, in the manner of NumPy.

use partita_ir::Literal;
use serde_json::Value as Json;

/// Larger tensors are shortened: [`ENDS`] elements at both ends of each dimension.
const LONGEST: usize = 1000;

/// Elements shown at each end of a dimension that is shortened.
const ENDS: usize = 3;

/// `[6. 8. 10. 12.]`; rows of a matrix on lines of their own.
pub fn tensor(value: &Literal) -> String {
    let elements: Vec<String> = match value.ty.dtype {
        dtype if dtype.is_complex() => value
            .to_complex()
            .into_iter()
            .map(|[real, imaginary]| {
                let is_single = dtype.size_bytes() < 16;
                let sign = if imaginary.is_sign_negative() { "-" } else { "+" };
                format!("{}{sign}{}j", float(real, is_single), float(imaginary.abs(), is_single))
            })
            .collect(),
        dtype if dtype.is_float() => {
            value.to_f64().into_iter().map(|number| float(number, dtype.size_bytes() < 8)).collect()
        }
        partita_base::DType::Bool => value
            .to_f64()
            .into_iter()
            .map(|flag| if flag == 0.0 { "False" } else { "True" }.to_string())
            .collect(),
        _ => value.to_i128().iter().map(i128::to_string).collect(),
    };
    let mut text = String::new();
    write(&mut text, &elements, &value.ty.shape, elements.len() > LONGEST, 1);
    text
}

/// The elements row by row for machines: integers exact, flags as booleans, complex numbers as pairs, and `"nan"`, `"inf"`
/// and `"-inf"`, which JSON has no numbers for, as texts.
pub fn elements(value: &Literal) -> Vec<Json> {
    let number = |number: f64| match number.is_finite() {
        true => Json::from(number),
        false => Json::from(float(number, false)),
    };
    let dtype = value.ty.dtype;
    if dtype.is_complex() {
        return value.to_complex().into_iter().map(|pair| Json::from(pair.map(number).to_vec())).collect();
    }
    if dtype.is_float() {
        return value.to_f64().into_iter().map(number).collect();
    }
    let integers = value.to_i128().into_iter();
    match dtype {
        partita_base::DType::Bool => integers.map(|flag| Json::from(flag != 0)).collect(),
        partita_base::DType::U64 => integers.map(|integer| Json::from(integer as u64)).collect(),
        _ => integers.map(|integer| Json::from(integer as i64)).collect(),
    }
}

fn write(text: &mut String, elements: &[String], shape: &[usize], is_shortened: bool, depth: usize) {
    let Some((&extent, inner)) = shape.split_first() else {
        text.extend(elements.iter().map(String::as_str));
        return;
    };
    let size: usize = inner.iter().product();
    let separator = match inner.len() {
        0 => " ".to_string(),
        more => "\n".repeat(more) + &" ".repeat(depth),
    };
    text.push('[');
    let is_cut = is_shortened && extent > 2 * ENDS;
    for at in 0..extent {
        if is_cut && (ENDS..extent - ENDS).contains(&at) {
            if at == ENDS {
                *text += &separator;
                text.push_str("...");
            }
            continue;
        }
        if at > 0 {
            *text += &separator;
        }
        write(text, &elements[at * size..(at + 1) * size], inner, is_shortened, depth + 1);
    }
    text.push(']');
}

/// The shortest text that reads back as the number.
fn float(number: f64, is_single: bool) -> String {
    if !number.is_finite() {
        return if number.is_nan() { "nan".to_string() } else { format!("{number}") };
    }
    let plain = (1e-4..1e16).contains(&number.abs()) || number == 0.0;
    let text = match (is_single, plain) {
        (true, true) => format!("{}", number as f32),
        (false, true) => format!("{number}"),
        (true, false) => format!("{:e}", number as f32),
        (false, false) => format!("{number:e}"),
    };
    if text.contains(['.', 'e']) { text } else { text + "." }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::{DType, InertType};
    use partita_ir::TensorType;

    #[test]
    fn tensors_read_as_numpy_prints_them() {
        let of = |dtype, shape: &[usize], numbers: &[f64]| {
            tensor(&Literal::from_f64(&TensorType::new(dtype, shape), numbers.iter().copied()))
        };
        assert_eq!(of(DType::F32, &[4], &[6.0, 8.0, 10.0, 12.0]), "[6. 8. 10. 12.]");
        assert_eq!(of(DType::F32, &[], &[0.1]), "0.1");
        assert_eq!(of(DType::I32, &[2, 2], &[1.0, 2.0, 3.0, -4.0]), "[[1 2]\n [3 -4]]");
        assert_eq!(of(DType::Bool, &[2], &[0.0, 1.0]), "[False True]");
        assert_eq!(of(DType::F64, &[2, 1, 2], &[1.0, 2.5, 3.0, 4.0]), "[[[1. 2.5]]\n\n [[3. 4.]]]");
        assert_eq!(of(DType::F32, &[3], &[1e-8, f64::NAN, f64::NEG_INFINITY]), "[1e-8 nan -inf]");
        assert_eq!(of(DType::F32, &[0], &[]), "[]");
        let pairs = Literal::from_complex(
            &TensorType::new(DType::Inert(InertType::Complex64), [2]),
            [[1.0, -2.5], [0.0, 0.1f32.into()]].into_iter(),
        );
        assert_eq!(tensor(&pairs), "[1.-2.5j 0.+0.1j]");
        assert_eq!(elements(&pairs)[0], serde_json::json!([1.0, -2.5]));
        let exact =
            Literal::from_i128(&TensorType::new(DType::I64, [1]), [9_007_199_254_740_993].into_iter());
        assert_eq!(elements(&exact), [serde_json::json!(9_007_199_254_740_993i64)]);
        let special =
            Literal::from_f64(&TensorType::new(DType::F32, [2]), [f64::NAN, f64::NEG_INFINITY].into_iter());
        assert_eq!(elements(&special), [serde_json::json!("nan"), serde_json::json!("-inf")]);
        let long: Vec<f64> = (0..2000).map(f64::from).collect();
        assert_eq!(of(DType::I32, &[2000], &long), "[0 1 2 ... 1997 1998 1999]");
    }
}
