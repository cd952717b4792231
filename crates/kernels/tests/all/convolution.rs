//! Convolutions against loops in f64, at every level.

use crate::common::*;
use partita_base::DType;
use partita_kernels::*;
use proptest::prelude::*;

/// The convolution of dense [batch, features, h, w] and [outputs, inputs, h, w] tensors.
fn expected(
    x: &[f64],
    xs: [usize; 4],
    w: &[f64],
    ws: [usize; 4],
    ys: [usize; 4],
    windows: &[ConvolutionWindow],
) -> Vec<f64> {
    let groups = xs[1] / ws[1];
    let mut y = Vec::new();
    for n in 0..ys[0] {
        for o in 0..ys[1] {
            let first = o / (ys[1] / groups) * ws[1];
            for i in 0..ys[2] {
                for j in 0..ys[3] {
                    let mut sum = 0.0;
                    for f in 0..ws[1] {
                        for (p, q) in (0..ws[2]).flat_map(|p| (0..ws[3]).map(move |q| (p, q))) {
                            let at = |d: usize, window: usize, entry: usize, size: usize, entries: usize| {
                                let own = &windows[d];
                                let entry = if own.reversed { entries - 1 - entry } else { entry };
                                let place =
                                    (window * own.stride + entry * own.kernel_dilation) as i64 - own.low;
                                let gap = own.input_dilation as i64;
                                (place >= 0 && place % gap == 0 && place / gap < size as i64)
                                    .then_some((place / gap) as usize)
                            };
                            let (Some(h), Some(v)) = (at(0, i, p, xs[2], ws[2]), at(1, j, q, xs[3], ws[3]))
                            else {
                                continue;
                            };
                            let from = ((n * xs[1] + first + f) * xs[2] + h) * xs[3] + v;
                            sum += x[from] * w[((o * ws[1] + f) * ws[2] + p) * ws[3] + q];
                        }
                    }
                    y.push(sum);
                }
            }
        }
    }
    y
}

/// Convolutions of a few groups, or depthwise ones of many.
fn convolutions(seed: u64, is_depthwise: bool) {
    let mut draw = Draw(seed);
    let dtype = draw.pick(&[DType::F32, DType::F32, DType::F64]);
    let (groups, inputs, outputs) = match is_depthwise {
        true => (2 + draw.below(36), 1 + draw.below(3), 1),
        false => (1 + draw.below(3), 1 + draw.below(40), 1 + draw.below(20)),
    };
    let ws = [groups * outputs, inputs, 1 + draw.below(4), 1 + draw.below(4)];
    let xs = [1 + draw.below(3), groups * inputs, 1 + draw.below(12), 1 + draw.below(40)];
    let mut ys = [xs[0], ws[0], 0, 0];
    let mut windows = Vec::new();
    for d in 0..2 {
        let window = ConvolutionWindow {
            stride: 1 + draw.below(3),
            low: draw.below(5) as i64 - 1,
            input_dilation: 1 + draw.below(3) % 2,
            kernel_dilation: 1 + draw.below(3) % 2,
            reversed: draw.chance(3),
        };
        let padded = ((xs[d + 2] - 1) * window.input_dilation + 1) as i64 + window.low + draw.below(4) as i64;
        let reach = ((ws[d + 2] - 1) * window.kernel_dilation + 1) as i64;
        ys[d + 2] = if padded < reach { 0 } else { (padded - reach) as usize / window.stride + 1 };
        windows.push(window);
    }
    let x = Tensor::random(&mut draw, dtype, &xs, |d| d.unit());
    let w = Tensor::random(&mut draw, dtype, &ws, |d| d.unit());
    let dims = ConvolutionDims { batch: 0, feature: 1, spatial: vec![2, 3] };
    let op = Convolution {
        input: dims.clone(),
        kernel: dims.clone(),
        output: dims,
        windows: windows.clone(),
        groups_of_batch: false,
    };
    let want = expected(&x.values(), xs, &w.values(), ws, ys, &windows);
    let mut first: Option<Vec<f64>> = None;
    for options in KernelOptions::levels() {
        let mut out = Tensor::scattered(&mut draw, dtype, &ys);
        let bytes = convolution_workspace_bytes(&op, [(dtype, &xs), (dtype, &ws), (dtype, &ys)]);
        let mut workspace = vec![0; bytes];
        convolution(options, &op, &x.view(), &w.view(), &mut out.view_mut(), &mut workspace);
        let found = out.values();
        for (found, want) in found.iter().zip(&want) {
            let tolerance = if dtype == DType::F32 { 1e-4 } else { 1e-12 };
            assert!(
                (found - want).abs() <= tolerance * want.abs().max(1.0),
                "{seed}: {found} for {want}, {op:?}"
            );
        }
        assert_eq!(first.get_or_insert(found.clone()), &found, "{seed}, {options:?}");
    }
    // One group alone gives the same bits.
    let group = draw.below(groups);
    let x = x.view().slice(1, group * inputs, (group + 1) * inputs, 1);
    let w = w.view().slice(0, group * outputs, (group + 1) * outputs, 1);
    let shape = [ys[0], outputs, ys[2], ys[3]];
    let mut out = Tensor::scattered(&mut draw, dtype, &shape);
    let mut workspace = vec![0; 1 << 20];
    convolution(KernelOptions::native(), &op, &x, &w, &mut out.view_mut(), &mut workspace);
    let whole = first.expect("a level");
    let size = outputs * ys[2] * ys[3];
    let own = (0..ys[0]).flat_map(|n| whole[(n * groups + group) * size..][..size].iter().copied());
    assert_eq!(out.values(), own.collect::<Vec<_>>(), "{seed}, group {group} of {groups}");
}

proptest! {
    #[test]
    fn convolutions_match_loops_at_every_level(seed in any::<u64>()) {
        convolutions(seed, false);
    }

    #[test]
    fn depthwise_convolutions_match_loops_at_every_level(seed in any::<u64>()) {
        convolutions(seed, true);
    }
}
