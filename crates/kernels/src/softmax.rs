//! Softmax and log-softmax of rows, and their gradients, with the largest element subtracted first.

use crate::element::Float;
use crate::element::{Number, Real, dispatch};
use crate::native::vector::LANES;
use crate::options::KernelOptions;
use crate::reduce::{Fold, Peak, Sum, fold_run, join_lanes};
use crate::rows::{
    SumExp, add_exp_into, add_exponentials, dot, exp_into, exp_scaled, join_exponentials, log_softmax_into,
    scale_into, softmax_gradient_into, sum_exp_times,
};
use crate::stream::Streaming;
use crate::tiles::{Reader, Scratch, TILE, Writer, tiles};
use crate::total::{RUN, Total};
use crate::view::{View, ViewMut};
use crate::workspace::{Workspace, piece_bytes};
use partita_base::DType;

/// The number of rows of a view: the product of all dimensions but the last.
pub(crate) fn row_count(view: &View<'_>) -> usize {
    view.shape()[..view.rank() - 1].iter().product()
}

/// The largest number of a row. NaNs are ignored; they make the sum of exponentials NaN.
fn row_max<T: Float>(
    options: KernelOptions,
    x: &Reader<'_>,
    row: usize,
    count: usize,
    scratch: &mut Scratch,
) -> T::Compute {
    let mut max = T::Compute::LOWEST;
    for (start, some) in tiles(count) {
        let tile = x.widened::<T>(row * count + start, some, scratch);
        let peak = fold_run::<T::Compute, Peak>(options, tile);
        max = if peak > max { peak } else { max };
    }
    max
}

/// A shift that no number of a row is far above, and the row's sum of `e^(x - shift)`, which is NaN if an
/// element is.
pub(crate) fn row_sum_exp<T: Float>(
    options: KernelOptions,
    x: &Reader<'_>,
    row: usize,
    count: usize,
    scratch: &mut Scratch,
) -> (T::Compute, T::Compute) {
    let mut total = SumExp::new();
    for (start, some) in tiles(count) {
        let at = row * count + start;
        add_exponentials(options, &mut total, x.widened::<T>(at, some, scratch), x.ahead(at, 0));
    }
    join_exponentials(options, &total)
}

/// Applies `finish` to the exponentials of rows. `join` turns a row's sum of `e^(x - max)` into the value
/// that `finish` receives, with the position in the row and the exponentials from there on. Rows that are not
/// wanted become zeros. `writer` may overwrite `x`; the workspace has [`row_workspace_bytes`].
///
/// The rows are pipelined: one row is written, tile by tile, while the exponentials of the next row replace
/// its own in the workspace and the row after that is prefetched, so that memory accesses and arithmetic
/// overlap.
pub(crate) fn finish_exponentials<T: Float, R>(
    options: KernelOptions,
    x: &Reader<'_>,
    writer: &mut Writer<'_>,
    [rows, count]: [usize; 2],
    workspace: &mut [u8],
    is_wanted: impl Fn(usize) -> bool,
    join: impl Fn(usize, T::Compute) -> R,
    finish: impl Fn(&R, usize, &[T::Compute], &mut [T::Compute], Option<&Streaming>),
) {
    let powers: &mut [T::Compute] = Workspace::new(workspace).take(count);
    let (mut x_scratch, mut out_scratch) = (Scratch::new(), Scratch::new());
    let mut before = None;
    for row in 0..=rows {
        let is_computed = row < rows && is_wanted(row);
        let max =
            if is_computed { row_max::<T>(options, x, row, count, &mut x_scratch) } else { T::Compute::ZERO };
        let (mut sum, mut total) = ([T::Compute::ZERO; LANES], Sum::begin(T::Compute::ZERO));
        for (start, some) in tiles(count) {
            let at = row * count + start;
            let powers = &mut powers[start..start + some];
            if row > 0 {
                writer.widened::<T>(at - count, some, &mut out_scratch, |out, streaming| match &before {
                    Some(joined) => finish(joined, start, powers, out, streaming),
                    None => out.fill(T::Compute::ZERO),
                });
            }
            if is_computed {
                let ahead = [x.ahead(at, count), writer.ahead(at, 0)];
                let x = x.widened::<T>(at, some, &mut x_scratch);
                add_exp_into(options, x, max, powers, &mut sum, &ahead);
                if (start + some).is_multiple_of(RUN) || start + some == count {
                    total = Sum::join(total, join_lanes::<T::Compute, Sum>(sum));
                    sum = [T::Compute::ZERO; LANES];
                }
            }
        }
        before = is_computed.then(|| join(row, Sum::end(total)));
    }
}

/// Bytes of workspace that [`softmax`] and [`crate::cross_entropy_backward`] need for a last dimension of
/// size `d`: one row in the compute type.
pub fn row_workspace_bytes(dtype: DType, d: usize) -> usize {
    if dtype == DType::F64 { piece_bytes::<f64>(d) } else { piece_bytes::<f32>(d) }
}

fn check(inputs: &[&View<'_>], out: &ViewMut<'_>) {
    assert!(out.rank() > 0, "a softmax needs a dimension");
    for x in inputs {
        assert!(x.shape() == out.shape() && x.dtype() == out.dtype(), "a softmax keeps shape and type");
    }
}

/// `out = e^x / sum(e^x)` along the last dimension, without overflow. Float types; f16 and bf16 compute in
/// f32.
///
/// # Panics
/// Where shapes or types differ or the workspace is too small.
pub fn softmax(options: KernelOptions, x: &View<'_>, out: &mut ViewMut<'_>, workspace: &mut [u8]) {
    check(&[x], out);
    dispatch!(float x.dtype(), T => softmax_rows::<T>(options, x, out, workspace))
}

fn softmax_rows<T: Float>(options: KernelOptions, x: &View<'_>, out: &mut ViewMut<'_>, workspace: &mut [u8]) {
    let (rows, count) = (row_count(x), x.shape()[x.rank() - 1]);
    let reader = Reader::apart_from(x, out);
    let mut writer = Writer::streaming(out, &[x]);
    finish_exponentials::<T, _>(
        options,
        &reader,
        &mut writer,
        [rows, count],
        workspace,
        |_| true,
        |_, sum| T::Compute::ONE / sum,
        |&scale, _, powers, out, streaming| scale_into(options, powers, scale, out, streaming),
    );
}

/// `out = x - ln(sum(e^x))` along the last dimension, without overflow. Float types; f16 and bf16 compute in
/// f32.
///
/// # Panics
/// Where shapes or types differ.
pub fn log_softmax(options: KernelOptions, x: &View<'_>, out: &mut ViewMut<'_>) {
    check(&[x], out);
    dispatch!(float x.dtype(), T => log_softmax_rows::<T>(options, x, out))
}

fn log_softmax_rows<T: Float>(options: KernelOptions, x: &View<'_>, out: &mut ViewMut<'_>) {
    let (rows, count) = (row_count(x), x.shape()[x.rank() - 1]);
    let reader = Reader::apart_from(x, out);
    let mut writer = Writer::streaming(out, &[x]);
    let (mut scratch, mut out_scratch) = (Scratch::new(), Scratch::new());
    for row in 0..rows {
        let (max, sum) = row_sum_exp::<T>(options, &reader, row, count, &mut scratch);
        let log = sum.ln();
        for (start, some) in tiles(count) {
            let tile = reader.widened::<T>(row * count + start, some, &mut scratch);
            writer.widened::<T>(row * count + start, some, &mut out_scratch, |out, streaming| {
                log_softmax_into(options, tile, max, log, out, streaming);
            });
        }
    }
}

/// The gradient of [`softmax`], recomputed from its argument `x`: `dx = y (dy - sum(y dy))` with
/// `y = softmax(x)`.
///
/// # Panics
/// Where shapes or types differ.
pub fn softmax_backward(options: KernelOptions, x: &View<'_>, dy: &View<'_>, dx: &mut ViewMut<'_>) {
    check(&[x, dy], dx);
    dispatch!(float x.dtype(), T => softmax_backward_rows::<T>(options, x, dy, dx))
}

fn softmax_backward_rows<T: Float>(
    options: KernelOptions,
    x: &View<'_>,
    dy: &View<'_>,
    dx: &mut ViewMut<'_>,
) {
    let (rows, count) = (row_count(x), x.shape()[x.rank() - 1]);
    let inputs = [x, dy];
    let (x, dy) = (Reader::apart_from(x, dx), Reader::apart_from(dy, dx));
    let mut writer = Writer::streaming(dx, &inputs);
    let mut scratch = [Scratch::new(), Scratch::new(), Scratch::new(), Scratch::new()];
    let [x_scratch, dy_scratch, y_scratch, dx_scratch] = &mut scratch;
    for row in 0..rows {
        if count <= TILE {
            // For a row of one tile, the exponentials are kept.
            let max = row_max::<T>(options, &x, row, count, x_scratch);
            let y = y_scratch.wide::<T::Compute>(count);
            let x = x.widened::<T>(row * count, count, x_scratch);
            let scale = T::Compute::ONE / exp_into(options, x, max, y);
            let dy = dy.widened::<T>(row * count, count, dy_scratch);
            let mean = dot(options, y, dy) * scale;
            writer.widened::<T>(row * count, count, dx_scratch, |dx, streaming| {
                softmax_gradient_into(options, y, scale, dy, mean, dx, streaming);
            });
            continue;
        }
        let (max, sum) = row_sum_exp::<T>(options, &x, row, count, x_scratch);
        let mut weighted = Sum::begin(T::Compute::ZERO);
        for (start, some) in tiles(count) {
            let x = x.widened::<T>(row * count + start, some, x_scratch);
            let dy = dy.widened::<T>(row * count + start, some, dy_scratch);
            weighted = Sum::join(weighted, sum_exp_times(options, x, max, dy));
        }
        let (scale, mean) = (T::Compute::ONE / sum, weighted.over(sum));
        for (start, some) in tiles(count) {
            let x = x.widened::<T>(row * count + start, some, x_scratch);
            let dy = dy.widened::<T>(row * count + start, some, dy_scratch);
            let y = y_scratch.wide::<T::Compute>(some);
            exp_scaled(options, x, max, scale, y);
            writer.widened::<T>(row * count + start, some, dx_scratch, |dx, streaming| {
                softmax_gradient_into(options, y, T::Compute::ONE, dy, mean, dx, streaming);
            });
        }
    }
}
