//! Softmax, norms, activations and losses: values against loops in f64, gradients against central differences
//! of the f64 kernels, and every other type and layout against f64.

use crate::common::*;
use partita_base::DType;
use partita_kernels::KernelOptions;
use partita_kernels::*;
use proptest::prelude::*;

/// Rows along a last dimension, which is sometimes longer than a tile.
fn rows_shape(draw: &mut Draw) -> Vec<usize> {
    let mut shape: Vec<usize> = (0..draw.below(3)).map(|_| draw.pick(&[0, 1, 2, 5])).collect();
    shape.push(draw.pick(&[1, 2, 7, 33, 128, 1300]));
    shape
}

fn softmax_into(x: &Tensor, y: &mut Tensor) {
    let mut workspace = vec![1u8; row_workspace_bytes(x.dtype, x.shape[x.shape.len() - 1])];
    softmax(KernelOptions::native(), &x.view(), &mut y.view_mut(), &mut workspace);
}

fn softmax_of(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
    x.iter().map(|x| (x - max).exp() / sum).collect()
}

/// The gradient of `sum(dy * f(x))` by central differences, and a check of `dx` against it at some places.
fn check_gradient(draw: &mut Draw, x: &Tensor, dx: &Tensor, mut objective: impl FnMut(&Tensor) -> f64) {
    if x.len() == 0 {
        return;
    }
    for _ in 0..6 {
        let i = draw.below(x.len());
        let step = 1e-5;
        let mut shifted = Tensor::of(DType::F64, &x.shape, &x.values());
        let start = x.get(i);
        shifted.set(i, start + step);
        let above = objective(&shifted);
        shifted.set(i, start - step);
        let below = objective(&shifted);
        let slope = (above - below) / (2.0 * step);
        let found = dx.get(i);
        assert!((found - slope).abs() < 1e-6 * (1.0 + slope.abs()), "gradient at {i}: {found}, not {slope}");
    }
}

fn weigh(out: &Tensor, dy: &Tensor) -> f64 {
    (0..out.len()).map(|i| out.get(i) * dy.get(i)).sum()
}

#[track_caller]
fn all_close(found: &Tensor, right: &[f64], relative: f64, absolute: f64, what: &str) {
    let dtype = found.dtype;
    for (i, &right) in right.iter().enumerate() {
        let slack = (relative.max(2.0 * epsilon(dtype))) * right.abs() + absolute.max(2.0 * epsilon(dtype));
        assert!(
            (found.get(i) - right).abs() <= slack,
            "{what} {dtype} at {i}: {}, not {right}",
            found.get(i)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn softmax_and_its_logarithm_match_a_loop(seed: u64) {
        let mut draw = Draw(seed);
        let (shape, dtype) = (rows_shape(&mut draw), draw.pick(&FLOATS));
        let x = Tensor::random(&mut draw, dtype, &shape, |d| d.unit() * 20.0 + 100.0);
        let [mut y, mut log] = [(); 2].map(|()| Tensor::scattered(&mut draw, dtype, &shape));
        softmax_into(&x, &mut y);
        log_softmax(KernelOptions::native(), &x.view(), &mut log.view_mut());
        let right: Vec<f64> = x.values().chunks(shape[shape.len() - 1]).flat_map(softmax_of).collect();
        let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
        all_close(&y, &right, tolerance, 0.0, "softmax");
        let right: Vec<f64> = right.iter().map(|y| y.ln()).collect();
        all_close(&log, &right, tolerance, tolerance, "log_softmax");
    }

    #[test]
    fn softmax_gradient_matches_differences(seed: u64) {
        let mut draw = Draw(seed);
        let shape = rows_shape(&mut draw);
        let x = Tensor::random(&mut draw, DType::F64, &shape, |d| d.unit() * 3.0);
        let dy = Tensor::random(&mut draw, DType::F64, &shape, |d| d.unit());
        let mut dx = Tensor::scattered(&mut draw, DType::F64, &shape);
        softmax_backward(KernelOptions::native(), &x.view(), &dy.view(), &mut dx.view_mut());
        // Differences are taken on a copy without repeated elements, so that each element of x counts once.
        check_gradient(&mut draw, &x, &dx, |x| {
            let mut y = Tensor::zeros(DType::F64, &shape);
            softmax_into(x, &mut y);
            weigh(&y, &dy)
        });
        let dtype = draw.pick(&FLOATS);
        let narrow = |t: &Tensor| Tensor::of(dtype, &shape, &t.values());
        let mut narrow_dx = Tensor::zeros(dtype, &shape);
        softmax_backward(KernelOptions::native(), &narrow(&x).view(), &narrow(&dy).view(), &mut narrow_dx.view_mut());
        all_close(&narrow_dx, &dx.values(), 1e-4, 4.0 * epsilon(dtype), "softmax_backward");
    }

    #[test]
    fn norms_match_a_loop(seed: u64) {
        let mut draw = Draw(seed);
        let (shape, dtype) = (rows_shape(&mut draw), draw.pick(&FLOATS));
        let d = shape[shape.len() - 1];
        let x = Tensor::random(&mut draw, dtype, &shape, |d| d.unit() * 2.0 + 0.5);
        let weight = Tensor::random(&mut draw, dtype, &[d], |d| d.unit());
        let bias = Tensor::random(&mut draw, dtype, &[d], |d| d.unit());
        let (has_weight, has_bias, centered) = (draw.chance(2), draw.chance(2), draw.chance(2));
        let (w, b) = (weight.view(), bias.view());
        let (w, b) = (has_weight.then_some(&w), has_bias.then_some(&b));
        let mut y = Tensor::scattered(&mut draw, dtype, &shape);
        if centered {
            layer_norm(KernelOptions::native(), &x.view(), w, b, 1e-3, &mut y.view_mut());
        } else {
            rms_norm(KernelOptions::native(), &x.view(), w, 1e-3, &mut y.view_mut());
        }
        let mut right = Vec::new();
        for row in x.values().chunks(d) {
            let mean = if centered { row.iter().sum::<f64>() / d as f64 } else { 0.0 };
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / d as f64;
            for (j, x) in row.iter().enumerate() {
                let w = if has_weight { weight.get(j) } else { 1.0 };
                let b = if has_bias && centered { bias.get(j) } else { 0.0 };
                right.push((x - mean) / (variance + 1e-3).sqrt() * w + b);
            }
        }
        let tolerance = if dtype == DType::F64 { 1e-11 } else { 2e-5 };
        // A row of one value is all rounding error, which 1 / sqrt(epsilon) magnifies.
        all_close(&y, &right, tolerance, 5.0 * tolerance, "norm");
    }

    #[test]
    fn norm_gradients_match_differences(seed: u64) {
        let mut draw = Draw(seed);
        let shape = rows_shape(&mut draw);
        let (d, rows) = (shape[shape.len() - 1], shape[..shape.len() - 1].iter().product::<usize>());
        let f = DType::F64;
        let x = Tensor::random(&mut draw, f, &shape, |d| d.unit() * 2.0);
        let x = Tensor::of(f, &shape, &x.values());
        let weight = Tensor::random(&mut draw, f, &[d], |d| d.unit());
        let bias = Tensor::zeros(f, &[d]);
        let dy = Tensor::random(&mut draw, f, &shape, |d| d.unit());
        let centered = draw.chance(2);
        let forward = |x: &Tensor, weight: &Tensor, bias: &Tensor| {
            let mut y = Tensor::zeros(f, &shape);
            if centered {
                layer_norm(KernelOptions::native(), &x.view(), Some(&weight.view()), Some(&bias.view()), 1e-2, &mut y.view_mut());
            } else {
                rms_norm(KernelOptions::native(), &x.view(), Some(&weight.view()), 1e-2, &mut y.view_mut());
            }
            weigh(&y, &dy)
        };
        let backward = |draw: &mut Draw, x: &Tensor, weight: &Tensor, dy: &Tensor| {
            let dtype = x.dtype;
            let mut workspace = vec![1u8; norm_backward_workspace_bytes(dtype, rows, d)];
            let mut dx = Tensor::scattered(draw, dtype, &shape);
            let [mut dw, mut db] = [(); 2].map(|()| Tensor::scattered(draw, dtype, &[d]));
            let (x, w, dy) = (x.view(), weight.view(), dy.view());
            let (mut dx_view, mut dw_view, mut db_view) = (dx.view_mut(), dw.view_mut(), db.view_mut());
            if centered {
                layer_norm_backward(KernelOptions::native(), &x, Some(&w), &dy, 1e-2, &mut dx_view, &mut workspace);
            } else {
                rms_norm_backward(KernelOptions::native(), &x, Some(&w), &dy, 1e-2, &mut dx_view, &mut workspace);
            }
            let sums = std::iter::once((rows, &mut workspace[..]));
            norm_parameter_gradients(KernelOptions::native(), sums, dtype, d, Some(&mut dw_view), centered.then_some(&mut db_view));
            (dx, dw, db)
        };
        let (dx, dw, db) = backward(&mut draw, &x, &weight, &dy);
        check_gradient(&mut draw, &x, &dx, |x| forward(x, &weight, &bias));
        check_gradient(&mut draw, &weight, &dw, |weight| forward(&x, weight, &bias));
        if centered {
            check_gradient(&mut draw, &bias, &db, |bias| forward(&x, &weight, bias));
        }
        let narrow = |t: &Tensor| Tensor::of(DType::F32, &t.shape, &t.values());
        let found = backward(&mut draw, &narrow(&x), &narrow(&weight), &narrow(&dy));
        let slack = 1e-5 * (1.0 + (rows as f64).sqrt());
        all_close(&found.0, &dx.values(), 1e-4, 1e-4, "dx");
        all_close(&found.1, &dw.values(), 1e-4, slack, "dweight");
        if centered {
            all_close(&found.2, &db.values(), 1e-4, slack, "dbias");
        }
    }

    #[test]
    fn activations_match_their_definitions_and_differences(seed: u64) {
        let mut draw = Draw(seed);
        let shape = draw.shape();
        for kind in [Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            let right = |x: f64| match kind {
                Activation::Gelu => 0.5 * x * libm::erfc(-x / 2f64.sqrt()),
                Activation::GeluTanh => {
                    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
                }
                Activation::Silu => x / (1.0 + (-x).exp()),
            };
            let dtype = draw.pick(&FLOATS);
            let x = Tensor::random(&mut draw, dtype, &shape, |d| d.unit() * 7.0);
            let dy = Tensor::random(&mut draw, dtype, &shape, |d| d.unit());
            let [mut y, mut dx] = [(); 2].map(|()| Tensor::scattered(&mut draw, dtype, &shape));
            activation(KernelOptions::native(), kind, &x.view(), &mut y.view_mut());
            activation_backward(KernelOptions::native(), kind, &x.view(), &dy.view(), &mut dx.view_mut());
            let values: Vec<f64> = x.values().into_iter().map(right).collect();
            // In the tail the value is a small difference, so the error is relative to one.
            let absolute = if dtype == DType::F64 { 1e-8 } else { 2e-6 };
            all_close(&y, &values, 1e-15, absolute, "activation");
            let step = 1e-5;
            let slopes: Vec<f64> = (0..x.len())
                .map(|i| (right(x.get(i) + step) - right(x.get(i) - step)) / (2.0 * step) * dy.get(i))
                .collect();
            all_close(&dx, &slopes, 1e-8, absolute, "activation_backward");
        }
    }

    #[test]
    fn cross_entropy_and_its_gradient_match_a_loop(seed: u64) {
        let mut draw = Draw(seed);
        let (shape, dtype) = (rows_shape(&mut draw), draw.pick(&FLOATS));
        let (lead, classes) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
        let logits = Tensor::random(&mut draw, dtype, &shape, |d| d.unit() * 8.0);
        let id_type = draw.pick(&[DType::I32, DType::I64]);
        let labels = Tensor::random(&mut draw, id_type, lead, |d| {
            if d.chance(4) { -100.0 } else { d.below(classes) as f64 }
        });
        let dloss = Tensor::random(&mut draw, dtype, lead, |d| d.unit());
        let loss_type = draw.pick(&[dtype, DType::F32]);
        let mut loss = Tensor::scattered(&mut draw, loss_type, lead);
        cross_entropy(KernelOptions::native(), &logits.view(), &labels.view(), -100, &mut loss.view_mut()).unwrap();
        let mut dlogits = Tensor::scattered(&mut draw, dtype, &shape);
        let mut workspace = vec![1u8; row_workspace_bytes(dtype, classes)];
        let (logits_view, labels_view, dloss_view) = (logits.view(), labels.view(), dloss.view());
        let out = &mut dlogits.view_mut();
        cross_entropy_backward(KernelOptions::native(), &logits_view, &labels_view, -100, &dloss_view, out, &mut workspace).unwrap();
        let (mut losses, mut gradient) = (Vec::new(), Vec::new());
        for (row, x) in logits.values().chunks(classes).enumerate() {
            let label = labels.get(row);
            let p = softmax_of(x);
            losses.push(if label < 0.0 { 0.0 } else { -p[label as usize].ln() });
            for (j, p) in p.iter().enumerate() {
                let target = f64::from(u8::from(j as f64 == label));
                gradient.push(if label < 0.0 { 0.0 } else { (p - target) * dloss.get(row) });
            }
        }
        let tolerance = if dtype == DType::F64 && loss_type == dtype { 1e-12 } else { 2e-6 };
        all_close(&loss, &losses, tolerance, tolerance, "cross_entropy");
        let tolerance = if dtype == DType::F64 { 1e-12 } else { 2e-6 };
        all_close(&dlogits, &gradient, tolerance, tolerance, "cross_entropy_backward");
    }
}

#[test]
fn a_label_that_is_no_class_is_an_error() {
    let logits = Tensor::zeros(DType::F32, &[2, 3]);
    let labels = Tensor::of(DType::I64, &[2], &[0.0, 3.0]);
    let mut loss = Tensor::zeros(DType::F32, &[2]);
    let error =
        cross_entropy(KernelOptions::native(), &logits.view(), &labels.view(), -1, &mut loss.view_mut())
            .unwrap_err();
    assert_eq!((error.code, error.found.as_deref()), ("E422", Some("3")));
}

#[test]
fn softmax_keeps_infinities_apart() {
    let x = Tensor::of(DType::F32, &[1, 3], &[f64::NEG_INFINITY, 0.0, 0.0]);
    let mut y = Tensor::zeros(DType::F32, &[1, 3]);
    softmax_into(&x, &mut y);
    assert_eq!(y.values(), [0.0, 0.5, 0.5]);
}

#[test]
fn softmax_shows_a_number_that_is_none() {
    for row in [vec![1.0, f64::NAN, 2.0], vec![f64::NAN; 2000]] {
        let x = Tensor::of(DType::F32, &[row.len()], &row);
        let mut y = Tensor::zeros(DType::F32, &[row.len()]);
        softmax_into(&x, &mut y);
        assert!(y.values().iter().all(|y| y.is_nan()));
    }
}

#[test]
fn the_largest_number_of_a_row_may_come_late_or_not_at_all() {
    let count = 2500;
    let hidden = |at: usize, shown: f64| if at < 1100 { f64::NEG_INFINITY } else { shown };
    let ramp = |at: usize| at as f64 * 0.25 - 300.0;
    let rows: [&dyn Fn(usize) -> f64; 9] = [
        &ramp,
        // Somewhat above the earlier numbers, and then far above the first ones.
        &|at| 3.0 * (at / 600) as f64,
        &|at| ramp(count - at),
        &|at| hidden(at, ramp(at) / 100.0),
        &|at| if at + 1 == count { 3e38 } else { -3e38 },
        &|at| -1000.0 - (at % 7) as f64,
        // From here on there is no loss.
        &|_| f64::NEG_INFINITY,
        &|at| if at == 77 { f64::NAN } else { hidden(at, 0.0) },
        &|at| if at == 2000 { f64::INFINITY } else { 0.0 },
    ];
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-6)] {
        for (number, row) in rows.iter().enumerate() {
            let logits = Tensor::of(dtype, &[1, count], &(0..count).map(row).collect::<Vec<_>>());
            let labels = Tensor::of(DType::I64, &[1], &[2499.0]);
            let [mut loss, mut log] = [vec![1], vec![1, count]].map(|shape| Tensor::zeros(dtype, &shape));
            cross_entropy(KernelOptions::native(), &logits.view(), &labels.view(), -1, &mut loss.view_mut())
                .unwrap();
            log_softmax(KernelOptions::native(), &logits.view(), &mut log.view_mut());
            let x = logits.values();
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let right = x.iter().map(|x| (x - max).exp()).sum::<f64>().ln() + (max - x[2499]);
            assert_eq!(right.is_nan(), number >= 6);
            for found in [loss.get(0), -log.get(2499)] {
                let near = (found - right).abs() <= tolerance * (1.0 + right.abs());
                assert!(
                    near || (found.is_nan() && right.is_nan()),
                    "{dtype}, row {number}: {found}, not {right}"
                );
            }
        }
    }
}

/// Rows of f32 and a result that begins `skip` elements into its memory, or overwrites the rows.
fn beside_and_over(shape: &[usize], skip: usize, kernel: &dyn Fn(&View<'_>, &mut ViewMut<'_>)) {
    let count: usize = shape.iter().product();
    let x: Vec<f32> = (0..count).map(|i| (i * 37 % 101) as f32 * 0.1 - 5.0).collect();
    let mut beside = vec![7f32; skip + count + 1];
    kernel(&View::of(&x, shape), &mut ViewMut::of(&mut beside[skip..], shape));
    assert!(
        beside[..skip].iter().chain(&beside[skip + count..]).all(|&x| x == 7.0),
        "nothing else is written"
    );
    let mut over = [vec![7f32; skip], x].concat();
    let pointer = over[skip..].as_mut_ptr().cast::<u8>();
    let strides: Vec<isize> = vec![shape[1] as isize, 1];
    // SAFETY: row kernels may write their result over their first input.
    let (from, mut to) = unsafe {
        (
            View::from_raw(pointer, DType::F32, shape, &strides),
            ViewMut::from_raw(pointer, DType::F32, shape, &strides),
        )
    };
    kernel(&from, &mut to);
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&over[skip..]), bits(&beside[skip..skip + count]), "{shape:?} from {skip}");
}

#[test]
fn rows_of_any_length_and_start_are_the_same_in_place() {
    for (rows, count) in [(0, 5), (3, 1), (2, 31), (3, 1024), (2, 1025), (3, 2048), (2, 4000)] {
        for skip in [0, 1, 13] {
            let mut labels: Vec<i64> = (0..rows as i64).map(|row| row * 7 % count as i64).collect();
            if let Some(last) = labels.last_mut() {
                *last = -100;
            }
            let dloss = vec![0.5f32; rows];
            let workspace = || vec![1u8; row_workspace_bytes(DType::F32, count)];
            beside_and_over(&[rows, count], skip, &|x, out| {
                softmax(KernelOptions::native(), x, out, &mut workspace())
            });
            beside_and_over(&[rows, count], skip, &|x, out| {
                let (labels, dloss) = (View::of(&labels, &[rows]), View::of(&dloss, &[rows]));
                cross_entropy_backward(
                    KernelOptions::native(),
                    x,
                    &labels,
                    -100,
                    &dloss,
                    out,
                    &mut workspace(),
                )
                .unwrap();
            });
        }
    }
}

#[test]
fn parts_of_whole_blocks_of_rows_do_not_show_in_norm_gradients() {
    let (rows, d) = (5 * NORM_BLOCK_ROWS + 3, 37);
    let mut draw = Draw(5);
    for dtype in FLOATS {
        let [x, dy] = [(); 2].map(|()| {
            let x = Tensor::random(&mut draw, DType::F64, &[rows, d], |d| d.unit());
            Tensor::of(dtype, &[rows, d], &x.values())
        });
        let weight = Tensor::random(&mut draw, dtype, &[d], |d| d.unit());
        let gradients = |ends: &[usize]| {
            let [mut dw, mut db] = [(); 2].map(|()| Tensor::zeros(dtype, &[d]));
            let mut dx = Tensor::zeros(dtype, &[rows, d]);
            let mut workspaces = Vec::new();
            let mut start = 0;
            for &end in ends {
                let mut workspace = vec![1u8; norm_backward_workspace_bytes(dtype, end - start, d)];
                let (x, dy) = (x.view().slice(0, start, end, 1), dy.view().slice(0, start, end, 1));
                let dx = &mut dx.view_mut().slice(0, start, end, 1);
                layer_norm_backward(
                    KernelOptions::native(),
                    &x,
                    Some(&weight.view()),
                    &dy,
                    1e-5,
                    dx,
                    &mut workspace,
                );
                workspaces.push((end - start, workspace));
                start = end;
            }
            let sums = workspaces.iter_mut().map(|(rows, workspace)| (*rows, &mut workspace[..]));
            norm_parameter_gradients(
                KernelOptions::native(),
                sums,
                dtype,
                d,
                Some(&mut dw.view_mut()),
                Some(&mut db.view_mut()),
            );
            [dx, dw, db].map(|tensor| (0..tensor.len()).map(|i| tensor.bits(i)).collect::<Vec<_>>())
        };
        let whole = gradients(&[rows]);
        let block = NORM_BLOCK_ROWS;
        for ends in [vec![block, rows], vec![2 * block, 5 * block, rows], vec![rows, rows]] {
            assert!(gradients(&ends) == whole, "{dtype}: parts that end at {ends:?}");
        }
    }
}

/// A kernel from two tensors of `rows` rows to one.
type RowKernel = fn(&View<'_>, &View<'_>, &mut ViewMut<'_>);

/// Long results use non-temporal stores; row by row they do not; the bits are the same, on cache lines and
/// off them.
#[test]
fn long_results_have_the_bits_of_short_ones() {
    let weight: Vec<f32> = (0..3000).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
    let kernels: [(&str, RowKernel); 5] = [
        ("softmax", |x, _, out| {
            let mut workspace = vec![1u8; row_workspace_bytes(DType::F32, x.shape()[1])];
            softmax(KernelOptions::native(), x, out, &mut workspace);
        }),
        ("log_softmax", |x, _, out| log_softmax(KernelOptions::native(), x, out)),
        ("softmax_backward", |x, dy, dx| softmax_backward(KernelOptions::native(), x, dy, dx)),
        ("rms_norm", |x, _, out| rms_norm(KernelOptions::native(), x, None, 1e-3, out)),
        ("layer_norm_backward", |x, dy, out| {
            let bytes = norm_backward_workspace_bytes(DType::F32, x.shape()[0], x.shape()[1]);
            layer_norm_backward(KernelOptions::native(), x, None, dy, 1e-3, out, &mut vec![1u8; bytes]);
        }),
    ];
    for (columns, skip) in [(1024, 0), (1040, 0), (2064, 0), (1001, 0), (1024, 1)] {
        let rows = STREAM_BYTES / size_of::<f32>() / columns + 1;
        let shape = [rows, columns];
        let numbers = |step: usize| -> Vec<f32> {
            (0..rows * columns).map(|i| (i * step % 1009) as f32 * 0.01 - 5.0).collect()
        };
        let (x, dy) = (numbers(1), numbers(17));
        let (x, dy) = (View::of(&x, &shape), View::of(&dy, &shape));
        let weight = View::of(&weight[..columns], &[columns]);
        let mut memory = [(); 2].map(|()| vec![7f32; rows * columns + 48]);
        let starts = memory.each_ref().map(|memory| memory.as_ptr().align_offset(64) + skip);
        let mut check = |name: &str, run: &dyn Fn(&View<'_>, &View<'_>, &mut ViewMut<'_>)| {
            let [long, short] = &mut memory;
            // With some elements after the result, which must not change.
            let count = rows * columns + 16;
            let [long, short] = [&mut long[starts[0]..][..count], &mut short[starts[1]..][..count]];
            run(&x, &dy, &mut ViewMut::of(long, &shape));
            for row in 0..rows {
                let [x, dy] = [x, dy].map(|view| view.slice(0, row, row + 1, 1));
                run(&x, &dy, &mut ViewMut::of(short, &shape).slice(0, row, row + 1, 1));
            }
            let [long, short] = [long, short].map(|out| out.iter().map(|y| y.to_bits()));
            assert!(long.eq(short), "{name} of {shape:?}, {skip} off");
        };
        for (name, kernel) in kernels {
            check(name, &kernel);
        }
        check("layer_norm", &|x, _, out| {
            layer_norm(KernelOptions::native(), x, Some(&weight), Some(&weight), 1e-3, out)
        });
    }
}
