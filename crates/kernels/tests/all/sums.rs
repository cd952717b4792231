//! Reductions and matmul against loops in f64 and exact integers.

use crate::common::*;
use partita_base::DType;
use partita_kernels::KernelOptions;
use partita_kernels::*;
use proptest::prelude::*;

/// For each output of a reduction, in order, the elements that go into it, in order.
fn groups(shape: &[usize], reduced: &[bool]) -> Vec<Vec<usize>> {
    let kept: Vec<usize> = shape.iter().zip(reduced).map(|(&s, &r)| if r { 1 } else { s }).collect();
    let mut groups = vec![Vec::new(); kept.iter().product()];
    for i in 0..shape.iter().product() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for d in (0..shape.len()).rev() {
            if !reduced[d] {
                at += (rest % shape[d]) * step;
            }
            step *= kept[d];
            rest /= shape[d];
        }
        groups[at].push(i);
    }
    groups
}

fn reduced_shape(draw: &mut Draw, shape: &[usize], reduced: &[bool]) -> Vec<usize> {
    let keeps = draw.chance(2);
    let sizes = shape.iter().zip(reduced);
    sizes.filter(|&(_, &r)| keeps || !r).map(|(&s, &r)| if r { 1 } else { s }).collect()
}

/// Reductions of random floats, against a loop in f64.
fn float_reductions(seed: u64) {
    let mut draw = Draw(seed);
    let (shape, dtype) = (draw.shape(), draw.pick(&FLOATS));
    let reduced: Vec<bool> = shape.iter().map(|_| draw.chance(2)).collect();
    let op = draw.pick(&[Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min]);
    let special = draw.chance(4);
    let x = Tensor::random(&mut draw, dtype, &shape, |d| match op {
        _ if special && d.chance(300) => d.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]),
        Reduction::Prod => 1.0 + d.unit() * 0.01,
        _ => d.unit(),
    });
    let init = match op {
        Reduction::Max => f64::NEG_INFINITY,
        Reduction::Min => f64::INFINITY,
        Reduction::Prod => 1.5,
        _ => 0.25,
    };
    let mut out = {
        let shape = reduced_shape(&mut draw, &shape, &reduced);
        Tensor::scattered(&mut draw, dtype, &shape)
    };
    reduce(
        KernelOptions::native(),
        op,
        &x.view(),
        &reduced,
        &Scalar::from_f64(dtype, init),
        &mut out.view_mut(),
    );
    for (i, group) in groups(&shape, &reduced).into_iter().enumerate() {
        let mut size = init.abs();
        let right = group.iter().fold(init, |sum, &j| {
            let x = x.get(j);
            size += x.abs();
            match op {
                Reduction::Sum => sum + x,
                Reduction::Prod => sum * x,
                _ if sum.is_nan() || x.is_nan() => f64::NAN,
                Reduction::Max => sum.max(x),
                _ => sum.min(x),
            }
        });
        // Above the largest f16 there is only infinity: it counts as the next power of two.
        let half = |x: f64| if dtype == DType::F16 { x.clamp(-65536.0, 65536.0) } else { x };
        let (found, right) = (half(out.get(i)), half(right));
        // f16 and bf16 accumulate in f32: their error is one rounding, plus that of the f32 sum. The f64 loop
        // itself has an error that grows with its length.
        let factor = if dtype == DType::F64 { group.len() as f64 } else { 40.0 };
        let slack = match op {
            Reduction::Sum => {
                epsilon(dtype) * right.abs() + factor * epsilon(DType::F32).min(epsilon(dtype)) * size
            }
            Reduction::Prod => {
                (epsilon(dtype) + 1e-7f64.min(epsilon(dtype)) * group.len() as f64) * right.abs()
            }
            _ => 0.0,
        };
        // Subnormal f16 numbers are 6e-8 apart.
        let slack = if dtype == DType::F16 && slack > 0.0 { slack + 6e-8 } else { slack };
        let same = found == right || (found.is_nan() && right.is_nan());
        assert!(same || (found - right).abs() <= slack, "{:?} {}: {}, not {}", op, dtype, found, right);
    }
}

#[test]
fn a_product_of_halves_is_infinite_where_it_exceeds_the_largest() {
    float_reductions(4441693546479238621);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn float_reductions_match_a_loop(seed: u64) {
        float_reductions(seed);
    }

    #[test]
    fn integer_reductions_are_exact(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        let dtype = draw.pick(&INTEGERS);
        let reduced: Vec<bool> = shape.iter().map(|_| draw.chance(2)).collect();
        let x = Tensor::random(&mut draw, dtype, &shape, |d| d.below(250) as f64 - 120.0);
        for op in [Reduction::Sum, Reduction::Prod, Reduction::Max, Reduction::Min, Reduction::And, Reduction::Or] {
            let mut out = {
                let shape = reduced_shape(&mut draw, &shape, &reduced);
                Tensor::scattered(&mut draw, dtype, &shape)
            };
            reduce(KernelOptions::native(), op, &x.view(), &reduced, &Scalar::from_f64(dtype, 3.0), &mut out.view_mut());
            for (i, group) in groups(&shape, &reduced).into_iter().enumerate() {
                let right = group.iter().fold(3i128, |a, &j| {
                    let b = x.int(j);
                    let value = match op {
                        Reduction::Sum => a + b,
                        Reduction::Prod => a.wrapping_mul(b),
                        Reduction::Max => a.max(b),
                        Reduction::Min => a.min(b),
                        Reduction::And => a & b,
                        Reduction::Or => a | b,
                    };
                    int_of_bits(dtype, truncate(dtype, value as u64))
                });
                prop_assert_eq!(out.int(i), right, "{:?} of {}", op, dtype);
            }
        }
    }

    #[test]
    fn the_order_of_a_sum_does_not_depend_on_strides(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        let reduced: Vec<bool> = shape.iter().map(|_| draw.chance(2)).collect();
        let x = Tensor::random(&mut draw, DType::F32, &shape, |d| d.unit());
        let plain = Tensor::of(DType::F32, &shape, &x.values());
        let out_shape = reduced_shape(&mut draw, &shape, &reduced);
        let [mut a, mut b] = [(); 2].map(|()| Tensor::zeros(DType::F32, &out_shape));
        let zero = Scalar::new(0f32);
        reduce(KernelOptions::native(), Reduction::Sum, &x.view(), &reduced, &zero, &mut a.view_mut());
        reduce(KernelOptions::native(), Reduction::Sum, &plain.view(), &reduced, &zero, &mut b.view_mut());
        prop_assert_eq!(a.all_bits(), b.all_bits());
    }

    #[test]
    fn argmax_finds_the_first_largest(seed: u64) {
        let mut draw = Draw(seed);
        let mut shape = draw.shape();
        shape.push(1 + draw.below(9));
        let dim = draw.below(shape.len());
        if shape[dim] == 0 {
            return Ok(());
        }
        let dtype = draw.pick(&[DType::F32, DType::BF16, DType::F64, DType::I32]);
        let x = Tensor::random(&mut draw, dtype, &shape, |d| {
            if d.chance(200) { f64::NAN } else { d.below(40) as f64 - 20.0 }
        });
        let mut out_shape = shape.clone();
        out_shape.remove(dim);
        let mut out = Tensor::scattered(&mut draw, DType::I64, &out_shape);
        argmax(&x.view(), dim, &mut out.view_mut());
        let mut reduced = vec![false; shape.len()];
        reduced[dim] = true;
        for (i, group) in groups(&shape, &reduced).into_iter().enumerate() {
            let key = |j: usize| if x.get(j).is_nan() { f64::INFINITY } else { x.get(j) };
            let best = (0..group.len()).rev().max_by(|&a, &b| key(group[a]).total_cmp(&key(group[b]))).unwrap();
            prop_assert_eq!(out.get(i), best as f64);
        }
    }

    /// The machine's instruction for bf16, where it has one, gives the bits of sums in f32.
    #[test]
    fn products_of_bf16_have_the_bits_of_f32(seed: u64) {
        let mut draw = Draw(seed);
        let [m, n] = [0; 2].map(|_| draw.pick(&[1, 2, 7, 8, 9, 16, 40, 47, 48, 49, 67, 100]));
        let k = draw.pick(&[0, 1, 2, 15, 16, 17, 33, 64, 383, 384, 385, 800]);
        let operand = |draw: &mut Draw, shape: [usize; 2]| {
            Tensor::random(draw, DType::BF16, &shape, |d| if d.chance(3000) { f64::INFINITY } else { d.unit() - 0.5 })
        };
        let (a, b) = (operand(&mut draw, [m, k]), operand(&mut draw, [k, n]));
        let out_type = draw.pick(&[DType::F32, DType::BF16]);
        let mut with = Tensor::scattered(&mut draw, out_type, &[m, n]);
        for i in 0..with.len() {
            with.set(i, draw.unit());
        }
        let mut without = with.clone();
        let accumulate = draw.chance(2);
        let mut workspace = vec![0; matmul_workspace_bytes(DType::BF16, m, k, n)];
        let native = KernelOptions::native();
        for (options, out) in [(native, &mut with), (native.without_bf16_unit().without_matrix_unit(), &mut without)] {
            matmul(options, &a.view(), &b.view(), &mut out.view_mut(), accumulate, &mut workspace);
        }
        for i in 0..with.len() {
            let is_nan = with.get(i).is_nan() && without.get(i).is_nan();
            prop_assert!(is_nan || with.bits(i) == without.bits(i), "{} {}", with.get(i), without.get(i));
        }
    }

    #[test]
    fn products_match_a_loop(seed: u64) {
        let mut draw = Draw(seed);
        let dtype = draw.pick(&[DType::F32, DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::U8]);
        let size = |draw: &mut Draw| draw.pick(&[0, 1, 2, 3, 7, 17, 33, 64]);
        let (m, k, n) = (size(&mut draw), size(&mut draw), size(&mut draw));
        let batch: Vec<usize> = (0..draw.below(3)).map(|_| 1 + draw.below(3)).collect();
        let operand = |draw: &mut Draw, rows: usize, columns: usize| {
            let mut shape: Vec<usize> = batch.iter().map(|&b| if draw.chance(3) { 1 } else { b }).collect();
            if draw.chance(3) {
                shape.clear();
            }
            shape.extend([rows, columns]);
            Tensor::random(draw, dtype, &shape, |d| (d.unit() * 8.0).round() + if dtype.is_float() { d.unit() } else { 0.0 })
        };
        let (a, b) = (operand(&mut draw, m, k), operand(&mut draw, k, n));
        let out_shape: Vec<usize> = batch.iter().copied().chain([m, n]).collect();
        let out_type = if dtype == DType::BF16 && draw.chance(2) { DType::F32 } else { dtype };
        let mut out = Tensor::scattered(&mut draw, out_type, &out_shape);
        for i in 0..out.len() {
            out.set(i, draw.below(5) as f64);
        }
        let before = out.clone();
        let accumulate = draw.chance(2);
        let mut workspace = vec![0; matmul_workspace_bytes(dtype, m, k, n)];
        let levels: Vec<_> = KernelOptions::levels().into_iter().chain([KernelOptions::native()]).collect();
        let options = draw.pick(&levels);
        matmul(options, &a.view(), &b.view(), &mut out.view_mut(), accumulate, &mut workspace);
        for i in 0..out.len() {
            let (row, column) = (i / n % m, i % n);
            let matrix_of = |operand: &Tensor| {
                let lead = operand.shape.len() - 2;
                let (mut rest, mut at, mut step) = (i / n / m, 0, 1);
                for d in (0..batch.len()).rev() {
                    let index = rest % batch[d];
                    rest /= batch[d];
                    if lead > 0 {
                        at += if operand.shape[d] == 1 { 0 } else { index } * step;
                        step *= operand.shape[d];
                    }
                }
                at
            };
            let (left, right) = (matrix_of(&a), matrix_of(&b));
            let (a_at, b_at) = (|l: usize| (left * m + row) * k + l, |l: usize| (right * k + l) * n + column);
            if dtype.is_float() {
                let start = if accumulate { before.get(i) } else { 0.0 };
                let terms = (0..k).map(|l| a.get(a_at(l)) * b.get(b_at(l)));
                let (sum, size) = terms.fold((start, start), |(sum, size), x| (sum + x, size + x.abs()));
                // Equal terms round alike, so errors of the loops may add up.
                let slack = epsilon(out_type) * sum.abs() + (10 + k) as f64 * epsilon(out_type).min(1.2e-7) * size;
                prop_assert!((out.get(i) - sum).abs() <= slack, "{} {}: {}, not {}", dtype, i, out.get(i), sum);
            } else {
                let start = if accumulate { before.int(i) } else { 0 };
                let sum = (0..k).map(|l| a.int(a_at(l)) * b.int(b_at(l))).fold(start, |sum, x| sum + x);
                prop_assert_eq!(out.int(i), int_of_bits(dtype, truncate(dtype, sum as u64)));
            }
        }
    }
}

#[test]
fn long_sums_stay_accurate() {
    // Naive accumulation of 0.1 in f32 is off by percents after ten million terms.
    let count = 1 << 20;
    let x = vec![0.1f32; count];
    for (shape, reduced, outs) in
        [([1, count], [false, true], 1), ([count, 1], [true, false], 1), ([count / 4, 4], [true, false], 4)]
    {
        let mut out = vec![0f32; outs];
        let view = View::of(&x, &shape);
        reduce(
            KernelOptions::native(),
            Reduction::Sum,
            &view,
            &reduced,
            &Scalar::new(0f32),
            &mut ViewMut::of(&mut out, &[outs]),
        );
        let right = 0.1f32 as f64 * (count / outs) as f64;
        assert!(out.iter().all(|&y| (f64::from(y) - right).abs() < 2e-4 * right), "{out:?}, not {right}");
    }
}
