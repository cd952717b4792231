//! Tensors as text, in the manner of NumPy.

use partita_ir::Literal;

/// Larger tensors are shortened: [`ENDS`] elements at both ends of each dimension.
const LONGEST: usize = 1000;

/// Elements shown at each end of a dimension that is shortened.
const ENDS: usize = 3;

/// `[6. 8. 10. 12.]`; rows of a matrix on lines of their own.
pub fn tensor(value: &Literal) -> String {
    let elements: Vec<String> = match value.ty.dtype {
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
    use partita_base::DType;
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
        let long: Vec<f64> = (0..2000).map(f64::from).collect();
        assert_eq!(of(DType::I32, &[2000], &long), "[0 1 2 ... 1997 1998 1999]");
    }
}
