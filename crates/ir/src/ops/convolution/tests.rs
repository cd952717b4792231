//! Tests of convolutions: values against matrix products and padded copies, gradients against finite
//! differences, shards, refusals.

use super::*;
use crate::ops::DotGeneral;
use crate::testing::{apply, assert_close, check_gradient, check_rule, random, refusal};

fn side(batch: usize, feature: usize, spatial: &[usize]) -> ConvolutionSide {
    ConvolutionSide { batch, feature, spatial: spatial.to_vec() }
}

/// Input and output `[b, 0, .., f]`, kernel `[0, .., i, o]`.
fn plain(windows: &[ConvolutionWindow]) -> Convolution {
    let dims = windows.len();
    let spatial: Vec<usize> = (1..=dims).collect();
    let kernel: Vec<usize> = (0..dims).collect();
    Convolution {
        input: side(0, dims + 1, &spatial),
        kernel: side(dims + 1, dims, &kernel),
        output: side(0, dims + 1, &spatial),
        windows: windows.to_vec(),
        feature_groups: 1,
        batch_groups: 1,
        dtype: DType::F64,
    }
}

fn general() -> [ConvolutionWindow; 2] {
    [
        ConvolutionWindow { stride: 2, padding: (1, 2), input_dilation: 1, kernel_dilation: 2, reversed: false },
        ConvolutionWindow { stride: 1, padding: (-1, 3), input_dilation: 3, kernel_dilation: 1, reversed: true },
    ]
}

#[test]
fn without_a_window_it_is_a_matrix_product() {
    let (x, kernel) = (random(1, &[3, 4]), random(2, &[4, 5]));
    let product = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contracting: vec![1],
        rhs_contracting: vec![0],
        result_dtype: None,
    };
    let expected = apply(product, &[x.clone(), kernel.clone()]).remove(0);
    assert_close(&apply(plain(&[]), &[x, kernel])[0], &expected, "no spatial dimensions");
}

#[test]
fn a_window_of_one_dimension_is_counted_by_hand() {
    let x = Literal::new([1, 4, 1], vec![1f64, 2.0, 3.0, 4.0]);
    let kernel = Literal::new([2, 1, 1], vec![10f64, 1.0]);
    let run = |window| apply(plain(&[window]), &[x.clone(), kernel.clone()])[0].to_f64();
    let default = ConvolutionWindow::default();
    assert_eq!(run(default), [12.0, 23.0, 34.0]);
    assert_eq!(run(ConvolutionWindow { reversed: true, ..default }), [21.0, 32.0, 43.0]);
    assert_eq!(run(ConvolutionWindow { stride: 2, padding: (1, 0), ..default }), [1.0, 23.0]);
    assert_eq!(run(ConvolutionWindow { padding: (0, -1), ..default }), [12.0, 23.0]);
    assert_eq!(run(ConvolutionWindow { kernel_dilation: 3, ..default }), [14.0]);
    assert_eq!(
        run(ConvolutionWindow { input_dilation: 2, ..default }),
        [10.0, 2.0, 20.0, 3.0, 30.0, 4.0]
    );
}

#[test]
fn groups_are_convolutions_of_their_own() {
    // Two groups of features: each half of the output sees half of the input.
    let (x, kernel) = (random(3, &[2, 5, 4]), random(4, &[3, 2, 6]));
    let window = [ConvolutionWindow { padding: (1, 1), ..Default::default() }];
    let grouped = apply(Convolution { feature_groups: 2, ..plain(&window) }, &[x.clone(), kernel.clone()]).remove(0);
    for group in 0..2 {
        let part = apply(
            plain(&window),
            &[x.window(&[0, 0, 2 * group], &[2, 5, 2]), kernel.window(&[0, 0, 3 * group], &[3, 2, 3])],
        );
        assert_close(&grouped.window(&[0, 0, 3 * group], &[2, 5, 3]), &part[0], "feature groups");
    }
    // Two groups of the batch: each half of the output features sees half of the batch.
    let (x, kernel) = (random(5, &[4, 5, 2]), random(6, &[3, 2, 6]));
    let grouped = apply(Convolution { batch_groups: 2, ..plain(&window) }, &[x.clone(), kernel.clone()]).remove(0);
    assert_eq!(grouped.ty.shape, [2, 5, 6]);
    for group in 0..2 {
        let part = apply(
            plain(&window),
            &[x.window(&[2 * group, 0, 0], &[2, 5, 2]), kernel.window(&[0, 0, 3 * group], &[3, 2, 3])],
        );
        assert_close(&grouped.window(&[0, 0, 3 * group], &[2, 5, 3]), &part[0], "batch groups");
    }
}

#[test]
fn gradients_match_finite_differences() {
    let both = [true, true];
    check_gradient(plain(&general()), vec![random(1, &[2, 6, 3, 2]), random(2, &[2, 2, 2, 3])], &both);
    check_gradient(plain(&[]), vec![random(1, &[2, 3]), random(2, &[3, 2])], &both);
    let window = [ConvolutionWindow { stride: 2, padding: (1, 0), ..Default::default() }];
    let (x, kernel) = (random(3, &[2, 5, 4]), random(4, &[3, 2, 6]));
    check_gradient(Convolution { feature_groups: 2, ..plain(&window) }, vec![x, kernel], &both);
    let (x, kernel) = (random(5, &[4, 5, 2]), random(6, &[3, 2, 6]));
    check_gradient(Convolution { batch_groups: 2, ..plain(&window) }, vec![x, kernel], &both);
    // Batch and features first, as images often are.
    let first = Convolution {
        input: side(0, 1, &[2]),
        kernel: side(0, 1, &[2]),
        output: side(0, 1, &[2]),
        ..plain(&window)
    };
    check_gradient(first, vec![random(7, &[2, 3, 4]), random(8, &[2, 3, 3])], &both);
}

#[test]
fn shards_of_batch_features_and_groups_agree() {
    let window = [ConvolutionWindow { padding: (1, 1), ..Default::default() }];
    check_rule(plain(&window), &[random(1, &[4, 5, 6]), random(2, &[3, 6, 6])]);
    check_rule(plain(&[ConvolutionWindow::default()]), &[random(1, &[4, 6, 3]), random(2, &[1, 3, 6])]);
    for feature_groups in [2, 6] {
        let op = Convolution { feature_groups, ..plain(&window) };
        check_rule(op, &[random(3, &[4, 5, 6]), random(4, &[3, 6 / feature_groups, 12])]);
    }
    check_rule(Convolution { batch_groups: 2, ..plain(&window) }, &[random(5, &[4, 5, 3]), random(6, &[3, 3, 4])]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (x, kernel) = (TensorType::new(DType::F64, [2, 5, 4]), TensorType::new(DType::F64, [3, 4, 6]));
    let window = [ConvolutionWindow::default()];
    let refused = |op: Convolution, kernel: &TensorType| refusal(op, &[x.clone(), kernel.clone()]);
    assert!(refused(plain(&window), &kernel.with_shape([3, 3, 6])).contains("E106"));
    assert!(refused(Convolution { feature_groups: 3, ..plain(&window) }, &kernel).contains("E106"));
    assert!(refused(Convolution { batch_groups: 3, ..plain(&window) }, &kernel).contains("E106"));
    let still = [ConvolutionWindow { stride: 0, ..Default::default() }];
    assert!(refused(plain(&still), &kernel).contains("E106"));
    assert!(refused(plain(&general()), &kernel).contains("E105"));
    assert!(refused(plain(&window), &kernel.with_shape([3, 4])).contains("E104"));
    assert!(refused(plain(&window), &kernel.with_dtype(DType::I32)).contains("E103"));
    assert!(refused(Convolution { kernel: side(1, 1, &[0]), ..plain(&window) }, &kernel).contains("E105"));
}
