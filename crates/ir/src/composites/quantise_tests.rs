//! Rounding to 8 bits against the values of all codes, and blocks against PyTorch (`tests/precision/make_f8.py`).

use super::*;
use crate::composite::Attributes;
use crate::op::Operation;
use crate::ops::Composite;
use crate::rule::FactorKind;
use crate::testing::{apply, gradients, random};
use partita_base::DType;

const RECORDED: &str = include_str!("../../../../tests/precision/recorded_f8.txt");

fn recorded(case: &str, what: &str) -> Vec<f32> {
    let line = RECORDED.lines().find_map(|line| line.strip_prefix(&format!("{case} {what} ")));
    line.expect("it is recorded").split(' ').map(|number| number.parse().unwrap()).collect()
}

fn quantise(narrow: Narrow, blocks: Option<(&[i64], bool)>, operands: &[Literal]) -> Composite {
    let mut attributes =
        Attributes::from_iter([("format".to_string(), Attribute::Text(narrow.name().to_string()))]);
    if let Some((blocks, power)) = blocks {
        attributes.insert("blocks".to_string(), Attribute::Ints(blocks.to_vec()));
        attributes.insert("power".to_string(), Attribute::Bool(power));
    }
    let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty.clone()).collect();
    Composite::new(&QUANTISE, attributes, &types).unwrap()
}

/// With a scale of 1.
fn rounded(narrow: Narrow, x: Literal) -> Vec<f64> {
    let operands = [x, Literal::scalar(DType::F32, 1.0)];
    apply(quantise(narrow, None, &operands), &operands)[0].to_f64()
}

/// The magnitudes of the finite codes in order: from the fields of each code, as the specification of OFP8 lists them.
fn magnitudes(narrow: Narrow) -> Vec<f64> {
    let (mantissa, bias, last) = match narrow {
        Narrow::E4M3 => (3, 7, 0x7e),
        Narrow::E5M2 => (2, 15, 0x7b),
    };
    let value = |code: i32| {
        let (exponent, fraction) =
            (code >> mantissa, f64::from(code & ((1 << mantissa) - 1)) / f64::from(1 << mantissa));
        match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
        }
    };
    (0..=last).map(value).collect()
}

#[test]
fn each_number_becomes_the_nearest_code() {
    for narrow in [Narrow::E4M3, Narrow::E5M2] {
        let codes = magnitudes(narrow);
        assert_eq!(codes.last(), Some(&narrow.largest()));
        let mut x = codes.clone();
        for pair in codes.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            x.extend([middle, middle * (1.0 + 1e-6), middle * (1.0 - 1e-6)]);
        }
        x.extend(random(1, &[200]).to_f64().into_iter().map(|x| x.abs() * 100.0));
        x.extend([460.0, 1e5, f64::INFINITY]);
        let nearest = |x: f64| {
            let distance = |code: &usize| (codes[*code] - x.min(narrow.largest())).abs();
            let order =
                |a: &usize, b: &usize| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2)));
            codes[(0..codes.len()).min_by(order).unwrap()]
        };
        for dtype in [DType::F32, DType::F64] {
            let ty = TensorType::new(dtype, [2 * x.len()]);
            let both = Literal::from_f64(&ty, x.iter().copied().chain(x.iter().map(|x| -x)));
            let found = rounded(narrow, both.clone());
            for (x, found) in both.to_f64().into_iter().zip(found) {
                assert_eq!(found, nearest(x.abs()).copysign(x), "{narrow:?} {dtype} {x}");
            }
        }
        let nan = rounded(narrow, Literal::new([2], vec![f32::NAN, -0.0]));
        assert!(nan[0].is_nan() && nan[1].is_sign_negative());
    }
}

#[test]
fn numbers_and_blocks_are_those_of_pytorch() {
    for narrow in [Narrow::E4M3, Narrow::E5M2] {
        let x = recorded(narrow.name(), "x");
        let expected = recorded(narrow.name(), "rounded");
        let found = rounded(narrow, Literal::new([x.len()], x));
        assert!(found.iter().zip(&expected).all(|(found, expected)| *found == f64::from(*expected)));
        let x = Literal::new([5, 70], recorded("blocks", "x"));
        for (name, power) in [("float", false), ("power", true)] {
            for blocks in [[1, 32], [3, 35], [5, 70]] {
                let case = format!("{}-{name}-{}x{}", narrow.name(), blocks[0], blocks[1]);
                let expected = recorded("blocks", &case);
                let operands = [x.clone()];
                let op = quantise(narrow, Some((&blocks, power)), &operands);
                let found = apply(op, &operands)[0].to_f64();
                for (at, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                    assert_eq!(found, f64::from(expected), "{case} at {at}");
                }
            }
        }
    }
}

#[test]
fn a_dimension_is_cut_between_blocks_only() {
    let kinds = |shape: &[usize], blocks: &[i64]| {
        let operands = [random(1, shape)];
        let op = quantise(Narrow::E4M3, Some((blocks, true)), &operands);
        let rule = op.rule(&[&operands[0].ty], &[&operands[0].ty]);
        assert_eq!(rule.operands, rule.results);
        let kind = |&factor: &usize| (rule.factors[factor].size, rule.factors[factor].kind);
        rule.operands[0].iter().map(|dim| dim.iter().map(kind).collect()).collect::<Vec<Vec<_>>>()
    };
    let (pass, whole) = (FactorKind::Pass, FactorKind::Whole);
    assert_eq!(kinds(&[6, 64], &[1, 32]), [vec![(6, pass)], vec![(2, pass), (32, whole)]]);
    assert_eq!(kinds(&[6, 33], &[6, 32]), [vec![(6, whole)], vec![(33, whole)]]);
    assert_eq!(kinds(&[6, 0], &[32, 32]), [vec![(6, whole)], vec![(0, pass)]]);
}

#[test]
fn the_gradient_is_that_of_the_identity_and_bad_attributes_are_refused() {
    let operands = [random(1, &[3, 4])];
    let op = quantise(Narrow::E4M3, Some((&[1, 32], true)), &operands);
    let cotangent = random(2, &[3, 4]);
    let found = gradients(op, &operands, &[Some(cotangent.clone())], &[true]);
    assert_eq!(found[0], Some(cotangent));
    let refused = |attributes: &[(&str, Attribute)], ty: TensorType| {
        let attributes = attributes.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        Composite::new(&QUANTISE, attributes, &[ty]).unwrap_err().code
    };
    let ty = TensorType::new(DType::F32, [3, 4]);
    let format = ("format", Attribute::Text("e4m3".to_string()));
    assert_eq!(refused(&[("format", Attribute::Text("e3m4".to_string()))], ty.clone()), "E132");
    assert_eq!(refused(&[format.clone(), ("blocks", Attribute::Ints(vec![1]))], ty.clone()), "E132");
    assert_eq!(refused(&[format], ty.with_dtype(DType::I32)), "E103");
}
