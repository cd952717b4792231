//! Sums over many elements, against f64: the error does not grow with their number.

use crate::common::*;
use partita_base::DType;
use partita_kernels::*;

/// What the elements of a long row are.
#[derive(Clone, Copy, Debug)]
enum Data {
    /// Normal, mean 0 and deviation 1.
    Normal,
    /// Normal, mean 10 and deviation 1.
    Raised,
    /// `3 max(0, x) + 1` for normal x: half of the elements are one.
    Clipped,
}

const DATA: [Data; 3] = [Data::Normal, Data::Raised, Data::Clipped];

impl Data {
    fn draw(self, seed: u64, count: usize) -> Vec<f32> {
        let mut draw = Draw(seed);
        let normal = |draw: &mut Draw| {
            let (radius, angle) = ((draw.unit() + 1.0) / 2.0, draw.unit() * std::f64::consts::PI);
            (-2.0 * radius.max(1e-300).ln()).sqrt() * angle.cos()
        };
        let element = |x: f64| match self {
            Data::Normal => x,
            Data::Raised => 10.0 + x,
            Data::Clipped => 3.0 * x.max(0.0) + 1.0,
        };
        (0..count).map(|_| element(normal(&mut draw)) as f32).collect()
    }
}

fn wide(x: &[f32]) -> impl Iterator<Item = f64> + Clone {
    x.iter().map(|&x| f64::from(x))
}

/// The largest error among elements, in parts of the largest right element.
fn error(found: &[f32], right: impl Iterator<Item = f64>) -> f64 {
    let (mut error, mut size) = (0f64, 0f64);
    for (found, right) in wide(found).zip(right) {
        error = error.max((found - right).abs());
        size = size.max(right.abs());
    }
    error / size
}

fn sum(x: &View<'_>, reduced: [bool; 2], options: KernelOptions) -> Vec<f32> {
    let count = if reduced[0] { x.shape()[1] } else { x.shape()[0] };
    let mut out = vec![0f32; count];
    let zero = Scalar::new(0f32);
    reduce(options, Reduction::Sum, x, &reduced, &zero, &mut ViewMut::of(&mut out, &[count]));
    out
}

/// Sums over rows and over columns, on every level.
#[test]
fn sums_have_the_error_of_one_rounding() {
    for (exponent, data) in [10, 14, 18, 22].into_iter().flat_map(|e| DATA.map(|data| (e, data))) {
        let x = data.draw(exponent, 1 << exponent);
        for columns in [1, 4, 16] {
            let (shape, turned) = ([x.len() / columns, columns], [columns, x.len() / columns]);
            // A sum of numbers of both signs is compared with their sizes.
            let x = &x;
            let sums = |at: &dyn Fn(usize, usize) -> usize| -> (Vec<f64>, f64) {
                let terms = |i: usize| (0..shape[0]).map(move |row| f64::from(x[at(row, i)]));
                let size = (0..columns).map(|i| terms(i).map(f64::abs).sum::<f64>()).fold(0.0, f64::max);
                ((0..columns).map(|i| terms(i).sum()).collect(), size)
            };
            let across = sums(&|row, column| row * columns + column);
            let along = sums(&|row, column| column * shape[0] + row);
            let cases =
                [(View::of(x, &shape), [true, false], across), (View::of(x, &turned), [false, true], along)];
            for (view, reduced, (right, size)) in cases {
                let found = sum(&view, reduced, KernelOptions::native());
                for (found, right) in found.iter().zip(&right) {
                    let error = (f64::from(*found) - right).abs();
                    // A block of rows is added up in f32.
                    let most = 6e-8 * right.abs() + 4e-7 * size / (shape[0] as f64 / 64.0).max(1.0).sqrt();
                    assert!(
                        error <= most,
                        "2^{exponent} {data:?} as {:?}: {error:e} of {right}",
                        view.shape()
                    );
                }
                for options in KernelOptions::levels() {
                    assert_eq!(sum(&view, reduced, options), found, "{options:?} has other bits");
                }
            }
        }
    }
}

/// Elements are multiples of 2^-40, so that their sum is known exactly.
#[test]
fn sums_of_f64_have_the_error_of_one_rounding() {
    let mut draw = Draw(1);
    let count = 1 << 20;
    let whole: Vec<i64> = (0..count).map(|_| (draw.bits() >> 12) as i64).collect();
    let x: Vec<f64> = whole.iter().map(|&x| x as f64 * 2f64.powi(-40)).collect();
    for columns in [1, 2, 16] {
        let mut out = vec![0f64; columns];
        let (shape, zero) = ([count / columns, columns], Scalar::new(0f64));
        let view = View::of(&x, &shape);
        reduce(
            KernelOptions::native(),
            Reduction::Sum,
            &view,
            &[true, false],
            &zero,
            &mut ViewMut::of(&mut out, &[columns]),
        );
        for (column, found) in out.into_iter().enumerate() {
            let right: i128 = whole.iter().skip(column).step_by(columns).map(|&x| i128::from(x)).sum();
            let error = (found * 2f64.powi(40)) as i128 - right;
            assert!(
                error.abs() as f64 <= 2f64.powi(-53) * 1.5 * right as f64,
                "{columns} columns: {error} of {right}"
            );
        }
    }
}

/// Layer norm and RMS norm of one long row, and their gradients.
#[test]
fn norms_of_long_rows_are_accurate() {
    let options = KernelOptions::native();
    for (exponent, data) in [10, 14, 18, 22].into_iter().flat_map(|e| DATA.map(|data| (e, data))) {
        let count = 1 << exponent;
        let shape = [1, count];
        let (x, dy) = (data.draw(2 * exponent, count), Data::Normal.draw(2 * exponent + 1, count));
        let (x_view, dy_view) = (View::of(&x, &shape), View::of(&dy, &shape));
        for centered in [true, false] {
            let (mut y, mut dx) = (vec![0f32; count], vec![0f32; count]);
            let mut workspace = vec![0u8; norm_backward_workspace_bytes(DType::F32, 1, count)];
            let (out, dx_out) = (&mut ViewMut::of(&mut y, &shape), &mut ViewMut::of(&mut dx, &shape));
            if centered {
                layer_norm(options, &x_view, None, None, 1e-5, out);
                layer_norm_backward(options, &x_view, None, &dy_view, 1e-5, dx_out, &mut workspace);
            } else {
                rms_norm(options, &x_view, None, 1e-5, out);
                rms_norm_backward(options, &x_view, None, &dy_view, 1e-5, dx_out, &mut workspace);
            }
            let n = count as f64;
            let mean = if centered { wide(&x).sum::<f64>() / n } else { 0.0 };
            let scale = 1.0 / (wide(&x).map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-5).sqrt();
            let normalized = wide(&x).map(|x| (x - mean) * scale);
            let shift = if centered { wide(&dy).sum::<f64>() / n } else { 0.0 };
            let slope = wide(&dy).zip(normalized.clone()).map(|(dy, y)| dy * y).sum::<f64>() / n;
            let gradient = wide(&dy).zip(normalized.clone()).map(|(dy, y)| scale * (dy - shift - y * slope));
            let (forward, backward) = (error(&y, normalized), error(&dx, gradient));
            assert!(
                forward < 6e-7 && backward < 1e-6,
                "2^{exponent} {data:?}, centered {centered}: {forward:e} and {backward:e}"
            );
        }
    }
}

/// The gradients of weight and bias are sums over rows.
#[test]
fn gradients_of_norm_parameters_over_many_rows_are_accurate() {
    let (options, d) = (KernelOptions::native(), 8);
    for (exponent, data) in [10, 14, 18].into_iter().flat_map(|e| DATA.map(|data| (e, data))) {
        let shape = [1 << exponent, d];
        let (x, dy) =
            (data.draw(3 * exponent, d << exponent), Data::Raised.draw(3 * exponent + 1, d << exponent));
        let mut workspace = vec![0u8; norm_backward_workspace_bytes(DType::F32, shape[0], d)];
        let (mut dx, mut dweight, mut dbias) = (vec![0f32; x.len()], vec![0f32; d], vec![0f32; d]);
        let (x_view, dy_view) = (View::of(&x, &shape), View::of(&dy, &shape));
        let out = &mut ViewMut::of(&mut dx, &shape);
        layer_norm_backward(options, &x_view, None, &dy_view, 1e-5, out, &mut workspace);
        norm_parameter_gradients(
            options,
            [(shape[0], &mut workspace[..])].into_iter(),
            DType::F32,
            d,
            Some(&mut ViewMut::of(&mut dweight, &[d])),
            Some(&mut ViewMut::of(&mut dbias, &[d])),
        );
        let (mut right, mut size) = ([[0f64; 8]; 2], 0f64);
        for (x, dy) in x.chunks(d).zip(dy.chunks(d)) {
            let mean = wide(x).sum::<f64>() / d as f64;
            let scale = 1.0 / (wide(x).map(|x| (x - mean).powi(2)).sum::<f64>() / d as f64 + 1e-5).sqrt();
            for (i, (x, dy)) in wide(x).zip(wide(dy)).enumerate() {
                right[0][i] += dy * (x - mean) * scale;
                right[1][i] += dy;
            }
            size += wide(dy).sum::<f64>() / d as f64;
        }
        for (found, right) in [dweight, dbias].iter().zip(right) {
            for (found, right) in wide(found).zip(right) {
                let error = (found - right).abs();
                assert!(
                    error <= 6e-8 * right.abs() + 6e-8 * size,
                    "2^{exponent} {data:?}: {error:e} of {right}"
                );
            }
        }
    }
}

/// Softmax, its logarithm, cross-entropy, and their gradients.
#[test]
fn exponentials_over_many_classes_are_accurate() {
    let options = KernelOptions::native();
    for (exponent, data) in [10, 15, 20].into_iter().flat_map(|e| DATA.map(|data| (e, data))) {
        let count = 1 << exponent;
        let shape = [1, count];
        let (x, dy) = (data.draw(4 * exponent, count), Data::Normal.draw(4 * exponent + 1, count));
        let (x_view, dy_view) = (View::of(&x, &shape), View::of(&dy, &shape));
        let max = wide(&x).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = wide(&x).map(|x| (x - max).exp()).sum();
        let right: Vec<f64> = wide(&x).map(|x| (x - max).exp() / sum).collect();
        let log = sum.ln() + max;
        let run = |kernel: &dyn Fn(&mut ViewMut<'_>, &mut [u8])| {
            let (mut out, mut workspace) =
                (vec![0f32; count], vec![0u8; row_workspace_bytes(DType::F32, count)]);
            kernel(&mut ViewMut::of(&mut out, &shape), &mut workspace);
            out
        };
        let check = |name: &str, found: &[f32], right: &mut dyn Iterator<Item = f64>| {
            let error = error(found, right);
            assert!(error < 4e-7, "{name} of 2^{exponent} {data:?}: {error:e}");
        };
        let y = run(&|out, workspace| softmax(options, &x_view, out, workspace));
        check("softmax", &y, &mut right.iter().copied());
        let y = run(&|out, _| log_softmax(options, &x_view, out));
        check("log_softmax", &y, &mut wide(&x).map(|x| x - log));
        let mean: f64 = right.iter().zip(wide(&dy)).map(|(y, dy)| y * dy).sum();
        let dx = run(&|out, _| softmax_backward(options, &x_view, &dy_view, out));
        check("softmax_backward", &dx, &mut right.iter().zip(wide(&dy)).map(|(y, dy)| y * (dy - mean)));
        let (label, one) = ([3i64], [1f32]);
        let (labels, dloss) = (View::of(&label, &[1]), View::of(&one, &[1]));
        let mut loss = [0f32];
        cross_entropy(options, &x_view, &labels, -1, &mut ViewMut::of(&mut loss, &[1])).unwrap();
        check("cross_entropy", &loss, &mut std::iter::once(log - f64::from(x[3])));
        let mut dx = run(&|out, workspace| {
            cross_entropy_backward(options, &x_view, &labels, -1, &dloss, out, workspace).unwrap();
        });
        // The label's gradient is near -1: beside it, all others would count for nothing.
        dx[3] += 1.0;
        dx[3] = if (f64::from(dx[3]) - right[3]).abs() < 1.2e-7 { right[3] as f32 } else { dx[3] };
        check("cross_entropy_backward", &dx, &mut right.iter().copied());
    }
}
