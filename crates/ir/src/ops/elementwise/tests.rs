//! Tests of elementwise ops: values, gradients, factor rules, element types.

use super::binary::BINARY_KINDS as BINARY;
use super::unary::UNARY_KINDS as UNARY;
use super::*;
use crate::literal::Literal;
use crate::op::Operation;
use crate::testing::{apply, check_gradient, check_rule, gradients, random, refusal};
use half::{bf16, f16};

fn vector(values: &[f64]) -> Literal {
    Literal::new([values.len()], values.to_vec())
}

fn unary(kind: UnaryKind, x: Literal) -> Literal {
    apply(Unary { kind }, &[x]).remove(0)
}

fn binary(kind: BinaryKind, x: Literal, y: Literal) -> Literal {
    apply(Binary { kind }, &[x, y]).remove(0)
}

/// Random numbers moved into the open interval where the function and its derivative exist.
fn in_domain(kind: UnaryKind, shape: &[usize]) -> Literal {
    let x = random(3, shape);
    let moved = x.to_f64().into_iter().map(|x| match kind {
        UnaryKind::Log | UnaryKind::Sqrt | UnaryKind::Rsqrt | UnaryKind::Cbrt => x + 1.5,
        UnaryKind::ErfInv | UnaryKind::LogPlusOne => 0.8 * x,
        _ => 2.0 * x,
    });
    Literal::from_f64(&x.ty, moved)
}

#[test]
fn inference_keeps_the_type_and_names_what_it_refuses() {
    let ty = TensorType::new(DType::F32, [2, 3]);
    assert_eq!(Unary { kind: UnaryKind::IsFinite }.infer(&[&ty]).unwrap()[0].to_string(), "tensor<2x3xi1>");
    let text = refusal(Unary { kind: UnaryKind::Exponential }, &[ty.with_dtype(DType::I32)]);
    assert!(text.contains("E103") && text.contains("`stablehlo.exponential`") && text.contains("i32"));
    assert!(refusal(Unary { kind: UnaryKind::Not }, std::slice::from_ref(&ty)).contains("E103"));
    assert!(refusal(Unary { kind: UnaryKind::Abs }, &[ty.with_dtype(DType::U8)]).contains("E103"));
    assert!(refusal(Unary { kind: UnaryKind::Abs }, &[]).contains("E101"));
    let add = Binary { kind: BinaryKind::Add };
    let text = refusal(add.clone(), &[ty.clone(), ty.with_shape([3, 2])]);
    assert!(text.contains("E102") && text.contains("tensor<2x3xf32>") && text.contains("tensor<3x2xf32>"));
    assert!(refusal(add.clone(), &[ty.clone(), ty.with_dtype(DType::F64)]).contains("E102"));
    assert!(refusal(add, std::slice::from_ref(&ty)).contains("E101"));
    let shift = Binary { kind: BinaryKind::ShiftLeft };
    assert!(refusal(shift, &[ty.clone(), ty.clone()]).contains("E103"));
    let booleans = ty.with_dtype(DType::Bool);
    let subtract = Binary { kind: BinaryKind::Subtract };
    assert!(refusal(subtract, &[booleans.clone(), booleans]).contains("E103"));
}

#[test]
fn singles_agree_with_the_processor() {
    let values = |literal: &Literal| match &*literal.data.filled() {
        crate::Storage::F32(v) => v.clone(),
        other => panic!("{other:?}"),
    };
    let ty = TensorType::new(DType::F32, [200]);
    let x = Literal::from_f64(&ty, random(1, &[200]).to_f64().into_iter().map(|x| x * 30.0));
    let y = Literal::from_f64(&ty, random(2, &[200]).to_f64().into_iter().map(|x| x * 7.0));
    let exact: [(BinaryKind, fn(f32, f32) -> f32); 5] = [
        (BinaryKind::Add, |x, y| x + y),
        (BinaryKind::Subtract, |x, y| x - y),
        (BinaryKind::Multiply, |x, y| x * y),
        (BinaryKind::Divide, |x, y| x / y),
        (BinaryKind::Remainder, |x, y| x % y),
    ];
    for (kind, function) in exact {
        let expected: Vec<f32> =
            values(&x).into_iter().zip(values(&y)).map(|(x, y)| function(x, y)).collect();
        assert_eq!(values(&binary(kind, x.clone(), y.clone())), expected, "{kind:?}");
    }
    let near: [(UnaryKind, fn(f32) -> f32); 4] = [
        (UnaryKind::Exponential, f32::exp),
        (UnaryKind::Tanh, f32::tanh),
        (UnaryKind::Sine, f32::sin),
        (UnaryKind::Cbrt, f32::cbrt),
    ];
    for (kind, function) in near {
        for (found, x) in values(&unary(kind, x.clone())).into_iter().zip(values(&x)) {
            let expected = function(x);
            assert!((found - expected).abs() <= 2.5e-7 * expected.abs(), "{kind:?}({x})");
        }
    }
}

#[test]
fn halves_round_once_per_op() {
    let (a, b) = (f16::from_f32(1.0009766), f16::from_f32(3.001953));
    let product = binary(BinaryKind::Multiply, Literal::new([1], vec![a]), Literal::new([1], vec![b]));
    assert_eq!(product, Literal::new([1], vec![f16::from_f32(a.to_f32() * b.to_f32())]));
    let big = binary(
        BinaryKind::Add,
        Literal::new([1], vec![bf16::from_f32(256.0)]),
        Literal::new([1], vec![bf16::from_f32(1.0)]),
    );
    assert_eq!(big, Literal::new([1], vec![bf16::from_f32(256.0)]));
}

#[test]
fn unary_functions_have_their_values() {
    let cases: [(UnaryKind, f64, f64); 27] = [
        (UnaryKind::Negate, 2.0, -2.0),
        (UnaryKind::Abs, -2.5, 2.5),
        (UnaryKind::Sign, -3.0, -1.0),
        (UnaryKind::Sign, 0.0, 0.0),
        (UnaryKind::ExponentialMinusOne, 1e-12, 1.0000000000005e-12),
        (UnaryKind::Log, 10.0, std::f64::consts::LN_10),
        (UnaryKind::LogPlusOne, 1e-12, 9.999999999995e-13),
        (UnaryKind::Sqrt, 9.0, 3.0),
        (UnaryKind::Rsqrt, 4.0, 0.5),
        (UnaryKind::Cbrt, -27.0, -3.0),
        (UnaryKind::Logistic, 2.0, 0.8807970779778823),
        (UnaryKind::Logistic, -800.0, 0.0),
        (UnaryKind::Cosine, 0.0, 1.0),
        (UnaryKind::Tan, 1.0, 1.557407724654902),
        (UnaryKind::Floor, -1.5, -2.0),
        (UnaryKind::Ceil, -1.5, -1.0),
        (UnaryKind::RoundNearestAfz, 2.5, 3.0),
        (UnaryKind::RoundNearestAfz, -2.5, -3.0),
        (UnaryKind::RoundNearestEven, 2.5, 2.0),
        (UnaryKind::RoundNearestEven, -3.5, -4.0),
        (UnaryKind::Erf, 0.5, 0.5204998778130465),
        (UnaryKind::Erfc, 3.0, 2.209049699858544e-5),
        (UnaryKind::ErfInv, 0.5, 0.4769362762044699),
        (UnaryKind::ErfInv, 1.0, f64::INFINITY),
        (UnaryKind::ErfInv, -1.0, f64::NEG_INFINITY),
        (UnaryKind::Square, -3.0, 9.0),
        (UnaryKind::Exponential, 1.0, std::f64::consts::E),
    ];
    for (kind, x, expected) in cases {
        let found = unary(kind, vector(&[x])).to_f64()[0];
        assert!(found == expected || (found / expected - 1.0).abs() < 1e-14, "{kind:?}({x}) = {found}");
    }
    let finite = unary(UnaryKind::IsFinite, vector(&[1.0, f64::NAN, f64::INFINITY]));
    assert_eq!(finite, Literal::new([3], vec![true, false, false]));
    let nan = |kind, x| unary(kind, vector(&[x])).to_f64()[0].is_nan();
    assert!(nan(UnaryKind::Sign, f64::NAN) && nan(UnaryKind::ErfInv, 1.5) && nan(UnaryKind::Log, -1.0));
}

#[test]
fn the_inverse_error_function_inverts_in_the_tails_too() {
    for exponent in 1..50 {
        let tail = 2f64.powi(-exponent);
        for x in [1.0 - tail, tail - 1.0, tail, -tail] {
            let y = unary(UnaryKind::ErfInv, vector(&[x])).to_f64()[0];
            let (found, expected) =
                if x.abs() > 0.5 { (libm::erfc(y.abs()), 1.0 - x.abs()) } else { (libm::erf(y), x) };
            assert!((found / expected - 1.0).abs() < 1e-13, "erf_inv({x}) = {y}");
            assert_eq!(y < 0.0, x < 0.0);
        }
    }
}

#[test]
fn integers_wrap_and_never_trap() {
    let bytes = |values: &[i8]| Literal::new([values.len()], values.to_vec());
    let check = |kind, x: &[i8], y: &[i8], expected: &[i8]| {
        assert_eq!(binary(kind, bytes(x), bytes(y)), bytes(expected), "{kind:?}");
    };
    check(BinaryKind::Add, &[127, -128], &[1, -1], &[-128, 127]);
    check(BinaryKind::Subtract, &[-128], &[1], &[127]);
    check(BinaryKind::Multiply, &[100], &[3], &[44]);
    check(BinaryKind::Divide, &[7, -7, 5, -128], &[2, 2, 0, -1], &[3, -3, -1, -128]);
    check(BinaryKind::Remainder, &[7, -7, 5, -128], &[4, 4, 0, -1], &[3, -3, 5, 0]);
    check(BinaryKind::Power, &[3, 2, -1, -1, 5, 0], &[4, 9, -3, -2, -1, 0], &[81, 0, -1, 1, 0, 1]);
    check(BinaryKind::ShiftLeft, &[1, 1, 1, 3], &[7, 8, -1, 7], &[-128, 0, 0, -128]);
    check(BinaryKind::ShiftRightLogical, &[-128, -1, -1], &[7, 4, 8], &[1, 15, 0]);
    check(BinaryKind::ShiftRightArithmetic, &[-128, 64, -5, 5], &[7, 5, 100, -1], &[-1, 2, -1, 0]);
    check(BinaryKind::And, &[12], &[10], &[8]);
    check(BinaryKind::Or, &[12], &[10], &[14]);
    check(BinaryKind::Xor, &[12, -1], &[10, 1], &[6, -2]);
    check(BinaryKind::Maximum, &[3, -3], &[-4, 4], &[3, 4]);
    assert_eq!(unary(UnaryKind::Popcnt, bytes(&[-1, 5, 0])), bytes(&[8, 2, 0]));
    assert_eq!(unary(UnaryKind::Not, bytes(&[0, 5])), bytes(&[-1, -6]));
    assert_eq!(unary(UnaryKind::Abs, bytes(&[-128, -3])), bytes(&[-128, 3]));

    let words = |values: &[u64]| Literal::new([values.len()], values.to_vec());
    let big = u64::MAX;
    assert_eq!(binary(BinaryKind::Multiply, words(&[big]), words(&[big])), words(&[1]));
    assert_eq!(binary(BinaryKind::Divide, words(&[9]), words(&[0])), words(&[big]));
    assert_eq!(binary(BinaryKind::ShiftRightLogical, words(&[big]), words(&[63])), words(&[1]));
    assert_eq!(binary(BinaryKind::ShiftRightArithmetic, words(&[big - 1]), words(&[1])), words(&[big]));
    assert_eq!(binary(BinaryKind::Add, words(&[big]), words(&[2])), words(&[1]));
}

#[test]
fn booleans_add_as_or_and_multiply_as_and() {
    let (x, y) = (
        Literal::new([4], vec![false, false, true, true]),
        Literal::new([4], vec![false, true, false, true]),
    );
    let or = Literal::new([4], vec![false, true, true, true]);
    let and = Literal::new([4], vec![false, false, false, true]);
    for kind in [BinaryKind::Add, BinaryKind::Maximum, BinaryKind::Or] {
        assert_eq!(binary(kind, x.clone(), y.clone()), or, "{kind:?}");
    }
    for kind in [BinaryKind::Multiply, BinaryKind::Minimum, BinaryKind::And] {
        assert_eq!(binary(kind, x.clone(), y.clone()), and, "{kind:?}");
    }
    assert_eq!(unary(UnaryKind::Not, and), Literal::new([4], vec![true, true, true, false]));
}

#[test]
fn extrema_spread_nan_and_order_zeros() {
    let (x, y) = (vector(&[f64::NAN, 1.0, -0.0, 3.0]), vector(&[1.0, f64::NAN, 0.0, 4.0]));
    let largest = binary(BinaryKind::Maximum, x.clone(), y.clone()).to_f64();
    let smallest = binary(BinaryKind::Minimum, x, y).to_f64();
    for values in [&largest, &smallest] {
        assert!(values[0].is_nan() && values[1].is_nan());
    }
    assert!(largest[2].is_sign_positive() && smallest[2].is_sign_negative());
    assert_eq!((largest[3], smallest[3]), (4.0, 3.0));
}

#[test]
fn unary_gradients_are_the_slopes() {
    for kind in UNARY.into_iter().filter(|kind| kind.accepts(DType::F64).0) {
        check_gradient(Unary { kind }, vec![in_domain(kind, &[2, 5])], &[true]);
    }
}

#[test]
fn binary_gradients_are_the_slopes() {
    let positive = |seed, by| {
        let x = random(seed, &[3, 4]);
        Literal::from_f64(&x.ty, x.to_f64().into_iter().map(|x| x + by))
    };
    for kind in BINARY.into_iter().filter(|kind| kind.accepts(DType::F64).0) {
        for wanted in [[true, true], [true, false], [false, true]] {
            check_gradient(Binary { kind }, vec![positive(5, 1.5), positive(6, 1.4)], &wanted);
        }
    }
    check_gradient(
        Binary { kind: BinaryKind::Remainder },
        vec![vector(&[7.3, -7.3, 7.3]), vector(&[2.0, 2.0, -3.0])],
        &[true, true],
    );
}

#[test]
fn gradients_at_corners_follow_convention() {
    let one = Some(vector(&[1.0]));
    let tie = gradients(
        Binary { kind: BinaryKind::Maximum },
        &[vector(&[2.0]), vector(&[2.0])],
        std::slice::from_ref(&one),
        &[true, true],
    );
    assert_eq!(tie, [Some(vector(&[0.5])), Some(vector(&[0.5]))]);
    let power = |x, y| {
        let inputs = [vector(&[x]), vector(&[y])];
        let found =
            gradients(Binary { kind: BinaryKind::Power }, &inputs, std::slice::from_ref(&one), &[true, true]);
        found.into_iter().map(|g| g.unwrap().to_f64()[0]).collect::<Vec<_>>()
    };
    assert_eq!(power(0.0, 2.0), [0.0, 0.0]);
    assert_eq!(power(0.0, 0.0), [0.0, 0.0]);
    assert_eq!(power(0.0, -1.0), [f64::NEG_INFINITY; 2]);
    // A negative base has no logarithm: its power changes with no other exponent.
    let [base, exponent] = power(-2.0, 3.0)[..] else { panic!("two gradients") };
    assert!(base == 12.0 && exponent.is_nan());
    for kind in [BinaryKind::Maximum, BinaryKind::Minimum] {
        let inputs = [vector(&[f64::NAN]), vector(&[2.0])];
        let both = gradients(Binary { kind }, &inputs, std::slice::from_ref(&one), &[true, true]);
        assert_eq!(both, [one.clone(), one.clone()], "{kind:?} beside NaN");
    }
    let origin = [vector(&[0.0]), vector(&[-0.0])];
    let angle = gradients(
        Binary { kind: BinaryKind::Atan2 },
        &origin,
        std::slice::from_ref(&one),
        &[true, true],
    );
    assert!(angle.into_iter().all(|g| g.unwrap().to_f64() == [0.0]));
    for x in [0.0, f64::NAN] {
        let inputs = [vector(&[x])];
        let abs =
            gradients(Unary { kind: UnaryKind::Abs }, &inputs, std::slice::from_ref(&one), &[true]);
        assert_eq!(abs, [Some(vector(&[0.0]))]);
    }
}

#[test]
fn integers_have_no_gradient() {
    let x = Literal::new([2], vec![1i32, 2]);
    let add = Binary { kind: BinaryKind::Add };
    assert_eq!(gradients(add, &[x.clone(), x.clone()], &[Some(x.clone())], &[true, true]), [None, None]);
    let negate = Unary { kind: UnaryKind::Negate };
    assert_eq!(gradients(negate, std::slice::from_ref(&x), &[Some(x.clone())], &[true]), [None]);
}

#[test]
fn rules_hold_on_shards_and_partial_operands() {
    for kind in UNARY.into_iter().filter(|kind| kind.accepts(DType::F64).0) {
        check_rule(Unary { kind }, &[in_domain(kind, &[5, 2])]);
    }
    for kind in BINARY.into_iter().filter(|kind| kind.accepts(DType::F64).0) {
        check_rule(Binary { kind }, &[random(8, &[5, 2]), random(9, &[5, 2])]);
    }
    let rule = |dtype| {
        let ty = TensorType::new(dtype, [2]);
        Binary { kind: BinaryKind::Divide }.rule(&[&ty, &ty], &[&ty])
    };
    assert_eq!((rule(DType::F32).linear.len(), rule(DType::I32).linear.len()), (1, 0));
}

#[test]
fn transcendental_functions_cost_more() {
    let ty = TensorType::new(DType::F32, [10]);
    let cost = |kind| Unary { kind }.cost(&[&ty], &[&ty]);
    assert_eq!(cost(UnaryKind::Negate), Cost { flops: 10.0, bytes: 80.0 });
    assert_eq!(cost(UnaryKind::Tanh), Cost { flops: 80.0, bytes: 80.0 });
}
