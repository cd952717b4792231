//! Times one convolution of a residual network, forward or one of its gradients, on two threads that split it
//! as the CPU device does: `cargo run --release -p partita-kernels --example convolution -- 3x3-64 forward`.
//! Prints the shortest time in milliseconds. `benches/convolution.py` alternates it with PyTorch.

use std::time::Instant;

use partita_kernels::*;

/// Channels, extent, output features, window, stride, groups; the batch is 8 and the padding keeps the extent.
const CASES: [(&str, [usize; 6]); 6] = [
    ("3x3-64", [64, 56, 64, 3, 1, 1]),
    ("3x3-128-stride-2", [128, 28, 128, 3, 2, 1]),
    ("3x3-256", [256, 14, 256, 3, 1, 1]),
    ("1x1-256-64", [256, 56, 64, 1, 1, 1]),
    ("7x7-3-stride-2", [3, 224, 64, 7, 2, 1]),
    ("depthwise-3x3", [96, 56, 96, 3, 1, 96]),
];
const BATCH: usize = 8;

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37) % 1001) as f32 / 500.0 - 1.0).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (name, what) =
        (arguments.next().expect("a case"), arguments.next().expect("forward, input or kernel"));
    let case = CASES.iter().find(|case| case.0 == name).expect("one of the cases").1;
    let [channels, extent, features, entries, stride, groups] = case;
    let padding = entries / 2;
    let reduced = (extent + 2 * padding - entries) / stride + 1;
    let x_shape = [BATCH, channels, extent, extent];
    let w_shape = [features, channels / groups, entries, entries];
    let y_shape = [BATCH, features, reduced, reduced];
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let [mut x, mut w, mut y] = [&x_shape, &w_shape, &y_shape].map(|shape| numbers(count(shape)));

    let dims = |batch: usize| ConvolutionDims { batch, feature: 1 - batch, spatial: vec![2, 3] };
    let window =
        |stride: usize, low: usize, input_dilation: usize, kernel_dilation: usize, reversed: bool| {
            let window =
                ConvolutionWindow { stride, low: low as i64, input_dilation, kernel_dilation, reversed };
            vec![window; 2]
        };
    let convolution = |input: usize, kernel: usize, output: usize, windows, groups_of_batch| Convolution {
        input: dims(input),
        kernel: dims(kernel),
        output: dims(output),
        windows,
        groups_of_batch,
    };
    let forward = convolution(0, 0, 0, window(stride, padding, 1, 1, false), false);
    let to_input =
        convolution(0, usize::from(groups == 1), 0, window(1, entries - 1 - padding, stride, 1, true), false);
    let to_kernel = convolution(1, 1, 1, window(1, padding, 1, stride, false), groups > 1);
    // Operands and result, and the dimension of each that the threads split.
    let (op, left, right, out, cut) = match what.as_str() {
        "forward" => (forward, (&x, &x_shape), (&w, &w_shape), (&mut y, &y_shape), [Some(0), None, Some(0)]),
        "input" => (to_input, (&y, &y_shape), (&w, &w_shape), (&mut x, &x_shape), [Some(0), None, Some(0)]),
        _ if groups > 1 => {
            (to_kernel, (&x, &x_shape), (&y, &y_shape), (&mut w, &w_shape), [Some(1), Some(1), Some(0)])
        }
        _ if channels % 2 == 1 => {
            (to_kernel, (&x, &x_shape), (&y, &y_shape), (&mut w, &w_shape), [None, Some(1), Some(0)])
        }
        _ => (to_kernel, (&x, &x_shape), (&y, &y_shape), (&mut w, &w_shape), [Some(1), None, Some(1)]),
    };
    let whole = Out { pointer: out.0.as_mut_ptr().cast(), shape: out.1 };
    let tensors = [left.1, right.1, out.1].map(|shape| (partita_base::DType::F32, &shape[..]));
    let bytes = convolution_workspace_bytes(&op, tensors);
    let mut workspaces = [vec![0u8; bytes], vec![0u8; bytes]];
    let run = |part: usize, workspace: &mut [u8]| {
        let dim = cut[2].expect("a dimension of the result");
        let range = half(whole.shape[dim], part);
        let mut out = whole.view().slice(dim, range.start, range.end, 1);
        let left = with_half(View::of(left.0, left.1), cut[0], part);
        let right = with_half(View::of(right.0, right.1), cut[1], part);
        partita_kernels::convolution(KernelOptions::native(), &op, &left, &right, &mut out, workspace);
    };
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < 0.25 {
        let start = Instant::now();
        let [first, second] = &mut workspaces;
        std::thread::scope(|scope| {
            scope.spawn(|| run(1, second));
            run(0, first);
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{:.4}", best * 1e3);
}

/// One half of a dimension.
fn half(size: usize, part: usize) -> std::ops::Range<usize> {
    if part == 0 { 0..size / 2 } else { size / 2..size }
}

/// One half of a tensor along a dimension, or all of it.
fn with_half(view: View<'_>, dim: Option<usize>, part: usize) -> View<'_> {
    let Some(dim) = dim else { return view };
    let range = half(view.shape()[dim], part);
    view.slice(dim, range.start, range.end, 1)
}

/// The result, of which each thread writes its own half.
struct Out<'a> {
    pointer: *mut u8,
    shape: &'a [usize; 4],
}

// SAFETY: threads write different elements.
unsafe impl Sync for Out<'_> {}

impl Out<'_> {
    fn view(&self) -> ViewMut<'_> {
        let [_, b, c, d] = self.shape.map(|size| size as isize);
        // SAFETY: the elements are those of a vector that outlives this, and no two threads write the same.
        unsafe {
            ViewMut::from_raw(self.pointer, partita_base::DType::F32, self.shape, &[b * c * d, c * d, d, 1])
        }
    }
}
