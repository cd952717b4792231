//! Elementwise kernels against scalar arithmetic written out here.

use crate::common::*;
use half::{bf16, f16};
use partita_base::DType;
use partita_kernels::KernelOptions;
use partita_kernels::*;
use proptest::prelude::*;

fn right_unary(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }
        }
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Cbrt => x.cbrt(),
        Unary::Tanh => x.tanh(),
        Unary::Logistic => 1.0 / (1.0 + (-x).exp()),
        Unary::Sine => x.sin(),
        Unary::Cosine => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::RoundHalfAway => x.round(),
        Unary::RoundHalfEven => x.round_ties_even(),
        Unary::Erf => libm::erf(x),
        Unary::Erfc => libm::erfc(x),
        // No library has it; its own unit test inverts erf.
        Unary::ErfInv => f64::NAN,
        Unary::IsFinite => f64::from(u8::from(x.is_finite())),
        Unary::Not => unreachable!("not of a float"),
    }
}

/// Wraps an exact integer to the type.
fn wrap(dtype: DType, x: i128) -> i128 {
    int_of_bits(dtype, truncate(dtype, x as u64))
}

fn right_int_binary(op: Binary, dtype: DType, a: i128, b: i128) -> i128 {
    let bits = 8 * dtype.size_bytes() as i128;
    let counted = (0..bits).contains(&b);
    let unsigned = |x: i128| i128::from(truncate(dtype, x as u64));
    wrap(
        dtype,
        match op {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a.wrapping_mul(b),
            Binary::Div => {
                if b == 0 {
                    -1
                } else {
                    a / b
                }
            }
            Binary::Rem => {
                if b == 0 {
                    a
                } else {
                    a % b
                }
            }
            Binary::Max => a.max(b),
            Binary::Min => a.min(b),
            Binary::Pow => {
                if b < 0 {
                    match a {
                        1 => 1,
                        -1 => 1 - 2 * (b & 1),
                        _ => 0,
                    }
                } else {
                    let (mut product, mut base, mut left) = (1i128, a, b);
                    while left > 0 {
                        if left & 1 == 1 {
                            product = wrap(dtype, product.wrapping_mul(base));
                        }
                        base = wrap(dtype, base.wrapping_mul(base));
                        left >>= 1;
                    }
                    product
                }
            }
            Binary::And => a & b,
            Binary::Or => a | b,
            Binary::Xor => a ^ b,
            Binary::ShiftLeft => {
                if counted {
                    a << b
                } else {
                    0
                }
            }
            Binary::ShiftRightLogical => {
                if counted {
                    unsigned(a) >> b
                } else {
                    0
                }
            }
            Binary::ShiftRightArithmetic => {
                // The sign bit is copied for unsigned types as well.
                let shift = 128 - bits;
                let signed = (a << shift) >> shift;
                signed >> if counted { b } else { bits - 1 }
            }
            Binary::Atan2 => unreachable!("an angle of integers"),
        },
    )
}

fn right_float_binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Rem => a % b,
        Binary::Pow => a.powf(b),
        Binary::Atan2 => a.atan2(b),
        Binary::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Min if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        _ => unreachable!("bits of floats"),
    }
}

fn any_bits(draw: &mut Draw, tensor: &mut Tensor) {
    for i in 0..tensor.len() {
        let bits = match draw.below(3) {
            0 => draw.bits(),
            1 => draw.below(5) as u64,
            _ => (draw.below(130) as u64).wrapping_sub(65),
        };
        let bits = if tensor.dtype == DType::Bool { bits & 1 } else { truncate(tensor.dtype, bits) };
        tensor.set_bits(i, bits);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn unary_floats_match_scalar_functions(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        for op in Unary::ALL.into_iter().filter(|&op| op != Unary::Not && op != Unary::ErfInv) {
            let dtype = draw.pick(&FLOATS);
            let x = Tensor::random(&mut draw, dtype, &shape, any_float);
            let result = op.result_dtype(dtype).unwrap();
            let mut out = Tensor::scattered(&mut draw, result, &shape);
            unary(KernelOptions::native(), op, &x.view(), &mut out.view_mut());
            for i in 0..x.len() {
                let right = right_unary(op, x.get(i));
                // Cancellation near poles of tan, and subnormal results of logistic, need an absolute
                // tolerance.
                assert_close(dtype, out.get(i), right, 3.0, 1e-30, &format!("{op:?}({:e})", x.get(i)));
            }
        }
    }

    #[test]
    fn unary_integers_match_exact_arithmetic(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        for op in [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Not] {
            let dtype = draw.pick(&INTEGERS);
            let mut x = Tensor::scattered(&mut draw, dtype, &shape);
            any_bits(&mut draw, &mut x);
            let mut out = Tensor::scattered(&mut draw, dtype, &shape);
            unary(KernelOptions::native(), op, &x.view(), &mut out.view_mut());
            for i in 0..x.len() {
                let a = x.int(i);
                let right = match op {
                    Unary::Neg => -a,
                    Unary::Abs => a.abs(),
                    Unary::Sign => a.signum(),
                    _ => !a,
                };
                prop_assert_eq!(out.int(i), wrap(dtype, right), "{:?} of {} {}", op, dtype, a);
            }
        }
    }

    #[test]
    fn binary_floats_match_scalar_functions(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        for op in Binary::ALL {
            let dtype = draw.pick(&FLOATS);
            if !op.supports(dtype) {
                continue;
            }
            let a = Tensor::random(&mut draw, dtype, &shape, any_float);
            let b = Tensor::random(&mut draw, dtype, &shape, any_float);
            let mut out = Tensor::scattered(&mut draw, dtype, &shape);
            binary(KernelOptions::native(), op, &a.view(), &b.view(), &mut out.view_mut());
            for i in 0..a.len() {
                let right = right_float_binary(op, a.get(i), b.get(i));
                let what = format!("{op:?}({:e}, {:e})", a.get(i), b.get(i));
                let ulps = if matches!(op, Binary::Atan2 | Binary::Pow) { 2.0 } else { 1.0 };
                assert_close(dtype, out.get(i), right, ulps, 1e-37, &what);
            }
        }
    }

    #[test]
    fn binary_integers_match_exact_arithmetic(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        for op in Binary::ALL.into_iter().filter(|op| op.supports(DType::I32)) {
            let dtype = draw.pick(&INTEGERS);
            let mut a = Tensor::scattered(&mut draw, dtype, &shape);
            let mut b = Tensor::scattered(&mut draw, dtype, &shape);
            any_bits(&mut draw, &mut a);
            any_bits(&mut draw, &mut b);
            let mut out = Tensor::scattered(&mut draw, dtype, &shape);
            binary(KernelOptions::native(), op, &a.view(), &b.view(), &mut out.view_mut());
            for i in 0..a.len() {
                let right = right_int_binary(op, dtype, a.int(i), b.int(i));
                prop_assert_eq!(out.int(i), right, "{:?} of {} {} {}", op, dtype, a.int(i), b.int(i));
            }
        }
    }

    #[test]
    fn comparisons_follow_ieee_and_the_total_order(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        let dtype = draw.pick(&[DType::F16, DType::BF16, DType::F32, DType::F64, DType::I8, DType::U64, DType::Bool]);
        let a = Tensor::random(&mut draw, dtype, &shape, any_float);
        let mut b = Tensor::random(&mut draw, dtype, &shape, any_float);
        if !dtype.is_float() {
            any_bits(&mut draw, &mut b);
        }
        for direction in Direction::ALL {
            for total_order in [false, true] {
                let mut out = Tensor::scattered(&mut draw, DType::Bool, &shape);
                compare(KernelOptions::native(), direction, total_order, &a.view(), &b.view(), &mut out.view_mut());
                for i in 0..a.len() {
                    let order = if !dtype.is_float() {
                        Some(a.int(i).cmp(&b.int(i)))
                    } else if total_order {
                        Some(a.get(i).total_cmp(&b.get(i)))
                    } else {
                        a.get(i).partial_cmp(&b.get(i))
                    };
                    let right = match direction {
                        Direction::Eq => order.is_some_and(|o| o.is_eq()),
                        Direction::Ne => order.is_none_or(|o| o.is_ne()),
                        Direction::Lt => order.is_some_and(|o| o.is_lt()),
                        Direction::Le => order.is_some_and(|o| o.is_le()),
                        Direction::Gt => order.is_some_and(|o| o.is_gt()),
                        Direction::Ge => order.is_some_and(|o| o.is_ge()),
                    };
                    prop_assert_eq!(out.bits(i), u64::from(right));
                }
            }
        }
    }

    #[test]
    fn select_takes_bits_where_the_predicate_holds(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        let dtype = draw.pick(&DType::ALL);
        let pred_shape = if draw.chance(3) { vec![] } else { shape.clone() };
        let pred = Tensor::random(&mut draw, DType::Bool, &pred_shape, |d| d.below(2) as f64);
        let mut a = Tensor::scattered(&mut draw, dtype, &shape);
        any_bits(&mut draw, &mut a);
        let mut b = a.clone();
        any_bits(&mut draw, &mut b);
        let mut out = Tensor::scattered(&mut draw, dtype, &shape);
        select(KernelOptions::native(), &pred.view(), &a.view(), &b.view(), &mut out.view_mut());
        for i in 0..a.len() {
            let holds = pred.bits(if pred_shape.is_empty() { 0 } else { i }) != 0;
            prop_assert_eq!(out.bits(i), if holds { a.bits(i) } else { b.bits(i) });
        }
    }

    #[test]
    fn clamp_bounds_from_both_sides(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        let dtype = draw.pick(&FLOATS);
        let low = Tensor::of(dtype, &[], &[-1.25]);
        let x = Tensor::random(&mut draw, dtype, &shape, any_float);
        let high = Tensor::random(&mut draw, dtype, &shape, |d| d.unit() * 3.0);
        let mut out = Tensor::scattered(&mut draw, dtype, &shape);
        clamp(KernelOptions::native(), &low.view(), &x.view(), &high.view(), &mut out.view_mut());
        for i in 0..x.len() {
            let right = if x.get(i).is_nan() { f64::NAN } else { x.get(i).max(-1.25).min(high.get(i)) };
            assert_close(dtype, out.get(i), right, 0.0, 0.0, "clamp");
        }
    }

    #[test]
    fn conversions_saturate_truncate_wrap_and_round(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        let (from, to) = (draw.pick(&DType::ALL), draw.pick(&DType::ALL));
        let mut x = Tensor::random(&mut draw, from, &shape, |d| any_float(d) * 10f64.powi(d.below(12) as i32));
        if !from.is_float() {
            any_bits(&mut draw, &mut x);
        }
        let mut out = Tensor::scattered(&mut draw, to, &shape);
        convert(KernelOptions::native(), &x.view(), &mut out.view_mut());
        for i in 0..x.len() {
            let right = match (from.is_float(), to.is_float()) {
                (false, false) if to == DType::Bool => u64::from(x.int(i) != 0),
                (false, false) => truncate(to, x.int(i) as u64),
                (false, true) if to == DType::F32 => u64::from((x.int(i) as f32).to_bits()),
                (false, true) => bits_of(to, x.int(i) as f64),
                (true, true) => bits_of(to, x.get(i)),
                (true, false) if to == DType::Bool => u64::from(x.get(i) != 0.0),
                (true, false) => {
                    let bits = 8 * to.size_bytes() as u32;
                    let (low, high) = if to.is_signed_integer() {
                        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
                    } else {
                        (0, (1i128 << bits) - 1)
                    };
                    truncate(to, (x.get(i) as i128).clamp(low, high) as u64)
                }
            };
            let nan = to.is_float() && x.get(i).is_nan();
            prop_assert!(out.bits(i) == right || (nan && out.get(i).is_nan()),
                "{} of {} to {}: {:x}, not {:x}", x.get(i), from, to, out.bits(i), right);
        }
    }

    #[test]
    fn a_value_gives_the_same_bits_at_every_position(value in -20f32..20.0, length in 1usize..3000) {
        let x = vec![value; length];
        let mut out = vec![0f32; length];
        for op in [Unary::Exp, Unary::Tanh, Unary::Erf, Unary::Log1p, Unary::Logistic, Unary::Expm1] {
            unary(KernelOptions::native(), op, &View::of(&x, &[length]), &mut ViewMut::of(&mut out, &[length]));
            prop_assert!(out.iter().all(|y| y.to_bits() == out[0].to_bits()), "{:?}", op);
        }
        for kind in [Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            activation(KernelOptions::native(), kind, &View::of(&x, &[length]), &mut ViewMut::of(&mut out, &[length]));
            prop_assert!(out.iter().all(|y| y.to_bits() == out[0].to_bits()), "{:?}", kind);
        }
    }
}

#[test]
fn halves_round_like_their_reference_for_every_bit_pattern() {
    // The bf16 rounding under test is this crate's; the reference is the `half` crate's.
    let floats: Vec<f32> = (0..u32::MAX).step_by(10_007).map(f32::from_bits).collect();
    let mut out = vec![bf16::ZERO; floats.len()];
    convert(
        KernelOptions::native(),
        &View::of(&floats, &[floats.len()]),
        &mut ViewMut::of(&mut out, &[floats.len()]),
    );
    for (x, y) in floats.iter().zip(&out) {
        let right = bf16::from_f32(*x);
        assert!(y.to_bits() == right.to_bits() || (x.is_nan() && y.is_nan()), "{x}");
    }
    let patterns: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let mut wide = vec![0f32; patterns.len()];
    convert(
        KernelOptions::native(),
        &View::of(&patterns, &[patterns.len()]),
        &mut ViewMut::of(&mut wide, &[patterns.len()]),
    );
    assert!(patterns.iter().zip(&wide).all(|(x, y)| x.to_f32().to_bits() == y.to_bits() || x.is_nan()));
    let patterns: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    convert(
        KernelOptions::native(),
        &View::of(&patterns, &[patterns.len()]),
        &mut ViewMut::of(&mut wide, &[patterns.len()]),
    );
    assert!(patterns.iter().zip(&wide).all(|(x, y)| x.to_f32().to_bits() == y.to_bits() || x.is_nan()));
}

#[test]
fn bitcast_keeps_bits() {
    let x = [1.0f32, -0.0, f32::NAN];
    let mut out = [0u32; 3];
    bitcast(&View::of(&x, &[3]), &mut ViewMut::of(&mut out, &[3]));
    assert_eq!(out, x.map(f32::to_bits));
}

#[test]
fn an_output_may_lie_over_its_input() {
    let shape = [3usize, 1000];
    let mut x: Vec<f32> = (0..3000).map(|i| i as f32 * 0.001).collect();
    let right: Vec<f32> = x.iter().map(|x| x + x).collect();
    let pointer = x.as_mut_ptr().cast::<u8>();
    for strides in [[1000isize, 1], [1, 3]] {
        let mut x = x.clone();
        let pointer = x.as_mut_ptr().cast::<u8>();
        // SAFETY: the views cover `x` with one layout, and nothing else uses it meanwhile.
        unsafe {
            let input = View::from_raw(pointer, DType::F32, &shape, &strides);
            let mut out = ViewMut::from_raw(pointer, DType::F32, &shape, &strides);
            binary(KernelOptions::native(), Binary::Add, &input, &input, &mut out);
        }
        assert_eq!(x, right);
    }
    // SAFETY: as above.
    unsafe {
        let input = View::from_raw(pointer, DType::F32, &shape, &[1000, 1]);
        let mut out = ViewMut::from_raw(pointer, DType::F32, &shape, &[1000, 1]);
        let mut workspace = vec![1u8; row_workspace_bytes(DType::F32, shape[1])];
        softmax(KernelOptions::native(), &input, &mut out, &mut workspace);
    }
    assert!((x[..1000].iter().sum::<f32>() - 1.0).abs() < 1e-5);
}

#[test]
#[should_panic(expected = "does not fit")]
fn a_view_past_its_memory_is_refused() {
    View::strided(&[0; 16], 1, DType::U8, &[4, 4], &[4, 1]);
}

#[test]
#[should_panic(expected = "must not repeat")]
fn a_repeating_output_is_refused() {
    ViewMut::strided(&mut [0; 16], 0, DType::U8, &[4, 4], &[0, 1]);
}
