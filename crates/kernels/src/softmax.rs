use crate::element::{Number, Real, dispatch};
use crate::reduce::{LANES, Peak, Sum, fold_run, join_lanes};
use crate::rows::{
    SumExp, add_exp_into, add_exponentials, dot, exp_into, exp_scaled, join_exponentials, scale_in_place,
    scale_into, softmax_gradient_into, sum_exp_times,
};
use crate::tiles::{Reader, Scratch, TILE, Writer, tiles};
use crate::workspace::{Workspace, piece_bytes};
use crate::{Float, View, ViewMut};
use partita_base::DType;

/// Rows of a view: all dimensions but the last.
pub(crate) fn row_count(view: &View<'_>) -> usize {
    view.shape()[..view.rank() - 1].iter().product()
}

/// The largest number of a row; a NaN shows in the sum of exponentials.
fn row_max<T: Float>(x: &Reader<'_>, row: usize, count: usize, scratch: &mut Scratch) -> T::Compute {
    let mut max = T::Compute::LOWEST;
    for (start, some) in tiles(count) {
        let tile = x.widened::<T>(row * count + start, some, scratch);
        let peak = fold_run::<T::Compute, Peak>(tile);
        max = if peak > max { peak } else { max };
    }
    max
}

/// What no number of a row is far above, and the sum of e^(x - that) over it; a NaN shows in the sum.
pub(crate) fn row_sum_exp<T: Float>(
    x: &Reader<'_>,
    row: usize,
    count: usize,
    scratch: &mut Scratch,
) -> (T::Compute, T::Compute) {
    let mut total = SumExp::new();
    for (start, some) in tiles(count) {
        let at = row * count + start;
        add_exponentials(&mut total, x.widened::<T>(at, some, scratch), x.ahead(at, 0));
    }
    join_exponentials(&total)
}

/// Fills `powers` with e^(x - max) of a row and returns their sum. Meanwhile the next row comes, whose maximum is then
/// found in a cache, and the memory where this one's results go.
pub(crate) fn row_exp<T: Float>(
    x: &Reader<'_>,
    row: usize,
    powers: &mut [T::Compute],
    out: &Writer<'_>,
    scratch: &mut Scratch,
) -> T::Compute {
    let count = powers.len();
    let max = row_max::<T>(x, row, count, scratch);
    let mut sum = T::Compute::ZERO;
    for (start, some) in tiles(count) {
        let at = row * count + start;
        let ahead = [x.ahead(at, count), out.ahead(at, count)];
        let x = x.widened::<T>(at, some, scratch);
        sum = sum + exp_into(x, max, &mut powers[start..start + some], &ahead);
    }
    sum
}

/// Bytes of workspace that [`softmax`] and [`crate::cross_entropy_backward`] need for a last dimension of size `d`: a
/// row as it is computed.
pub fn row_workspace_bytes(dtype: DType, d: usize) -> usize {
    if dtype == DType::F64 { piece_bytes::<f64>(d) } else { piece_bytes::<f32>(d) }
}

fn check(inputs: &[&View<'_>], out: &ViewMut<'_>) {
    assert!(out.rank() > 0, "a softmax needs a dimension");
    for x in inputs {
        assert!(x.shape() == out.shape() && x.dtype() == out.dtype(), "a softmax keeps shape and type");
    }
}

/// `out = e^x / sum(e^x)` along the last dimension, safe from overflow. Floats; halves compute in f32.
///
/// # Panics
/// Where shapes or types differ or the workspace is too small.
pub fn softmax(x: &View<'_>, out: &mut ViewMut<'_>, workspace: &mut [u8]) {
    check(&[x], out);
    dispatch!(float x.dtype(), T => softmax_rows::<T>(x, out, workspace))
}

fn softmax_rows<T: Float>(x: &View<'_>, out: &mut ViewMut<'_>, workspace: &mut [u8]) {
    let (rows, count) = (row_count(x), x.shape()[x.rank() - 1]);
    let reader = Reader::apart_from(x, out);
    let mut writer = Writer::streaming(out, &[x]);
    let (mut scratch, mut out_scratch) = (Scratch::new(), Scratch::new());
    if count <= TILE && writer.streams() {
        return softmax_short_rows::<T>(&reader, &mut writer, [rows, count]);
    }
    let powers = Workspace::new(workspace).take::<T::Compute>(count);
    for row in 0..rows {
        if count <= TILE {
            // One tile: the exponentials stay in the first cache.
            let max = row_max::<T>(&reader, row, count, &mut scratch);
            let tile = reader.widened::<T>(row * count, count, &mut scratch);
            let next = [reader.ahead(row * count, 0)];
            writer.widened::<T>(row * count, count, &mut out_scratch, |out| {
                let sum = exp_into(tile, max, out, &next);
                scale_in_place(out, T::Compute::ONE / sum);
            });
            continue;
        }
        let scale = T::Compute::ONE / row_exp::<T>(&reader, row, powers, &writer, &mut scratch);
        for (start, some) in tiles(count) {
            writer.widened::<T>(row * count + start, some, &mut out_scratch, |out| {
                scale_into(&powers[start..start + some], scale, out);
            });
        }
    }
}

/// Rows of a tile at most, which go past the caches: a row is written, piece by piece, while the next one is computed, so
/// that memory and arithmetic do not wait for each other.
fn softmax_short_rows<T: Float>(x: &Reader<'_>, writer: &mut Writer<'_>, [rows, count]: [usize; 2]) {
    let mut scratch = [Scratch::new(), Scratch::new(), Scratch::new(), Scratch::new()];
    let [x_scratch, out_scratch, powers, written] = &mut scratch;
    let (mut powers, mut written) = (powers.wide(count), written.wide(count));
    let mut scale = T::Compute::ZERO;
    for row in 0..=rows {
        let max = if row < rows { row_max::<T>(x, row, count, x_scratch) } else { T::Compute::ZERO };
        let mut sum = [T::Compute::ZERO; LANES];
        for (start, some) in writer.tiles(count) {
            let at = row * count + start;
            if row < rows {
                let (ahead, x) = ([x.ahead(at, 0)], x.widened::<T>(at, some, x_scratch));
                add_exp_into(x, max, &mut powers[start..start + some], &mut sum, &ahead);
            }
            if row > 0 {
                writer.widened::<T>(at - count, some, out_scratch, |out| {
                    scale_into(&written[start..start + some], scale, out);
                });
            }
        }
        scale = T::Compute::ONE / join_lanes::<T::Compute, Sum>(sum);
        std::mem::swap(&mut powers, &mut written);
    }
}

/// `out = x - ln(sum(e^x))` along the last dimension, safe from overflow. Floats; halves compute in f32.
///
/// # Panics
/// Where shapes or types differ.
pub fn log_softmax(x: &View<'_>, out: &mut ViewMut<'_>) {
    check(&[x], out);
    dispatch!(float x.dtype(), T => log_softmax_rows::<T>(x, out))
}

fn log_softmax_rows<T: Float>(x: &View<'_>, out: &mut ViewMut<'_>) {
    let (rows, count) = (row_count(x), x.shape()[x.rank() - 1]);
    let reader = Reader::apart_from(x, out);
    let mut writer = Writer::streaming(out, &[x]);
    let (mut scratch, mut out_scratch) = (Scratch::new(), Scratch::new());
    for row in 0..rows {
        let (max, sum) = row_sum_exp::<T>(&reader, row, count, &mut scratch);
        let log = sum.ln();
        for (start, some) in tiles(count) {
            let tile = reader.widened::<T>(row * count + start, some, &mut scratch);
            writer.widened::<T>(row * count + start, some, &mut out_scratch, |out| {
                for (out, &x) in out.iter_mut().zip(tile) {
                    *out = (x - max) - log;
                }
            });
        }
    }
}

/// The gradient of [`softmax`], which is computed anew from its argument `x`:
/// `dx = y (dy - sum(y dy))` with `y = softmax(x)`.
///
/// # Panics
/// Where shapes or types differ.
pub fn softmax_backward(x: &View<'_>, dy: &View<'_>, dx: &mut ViewMut<'_>) {
    check(&[x, dy], dx);
    dispatch!(float x.dtype(), T => softmax_backward_rows::<T>(x, dy, dx))
}

fn softmax_backward_rows<T: Float>(x: &View<'_>, dy: &View<'_>, dx: &mut ViewMut<'_>) {
    let (rows, count) = (row_count(x), x.shape()[x.rank() - 1]);
    let inputs = [x, dy];
    let (x, dy) = (Reader::apart_from(x, dx), Reader::apart_from(dy, dx));
    let mut writer = Writer::streaming(dx, &inputs);
    let mut scratch = [Scratch::new(), Scratch::new(), Scratch::new(), Scratch::new()];
    let [x_scratch, dy_scratch, y_scratch, dx_scratch] = &mut scratch;
    for row in 0..rows {
        if count <= TILE {
            // One tile: the exponentials are kept.
            let max = row_max::<T>(&x, row, count, x_scratch);
            let y = y_scratch.wide::<T::Compute>(count);
            let x = x.widened::<T>(row * count, count, x_scratch);
            let scale = T::Compute::ONE / exp_into(x, max, y, &[]);
            let dy = dy.widened::<T>(row * count, count, dy_scratch);
            let mean = dot(y, dy) * scale;
            writer.widened::<T>(row * count, count, dx_scratch, |dx| {
                softmax_gradient_into(y, scale, dy, mean, dx);
            });
            continue;
        }
        let (max, sum) = row_sum_exp::<T>(&x, row, count, x_scratch);
        let mut weighted = T::Compute::ZERO;
        for (start, some) in tiles(count) {
            let x = x.widened::<T>(row * count + start, some, x_scratch);
            let dy = dy.widened::<T>(row * count + start, some, dy_scratch);
            weighted = weighted + sum_exp_times(x, max, dy);
        }
        let (scale, mean) = (T::Compute::ONE / sum, weighted / sum);
        for (start, some) in tiles(count) {
            let x = x.widened::<T>(row * count + start, some, x_scratch);
            let dy = dy.widened::<T>(row * count + start, some, dy_scratch);
            let y = y_scratch.wide::<T::Compute>(some);
            exp_scaled(x, max, scale, y);
            writer.widened::<T>(row * count + start, some, dx_scratch, |dx| {
                softmax_gradient_into(y, T::Compute::ONE, dy, mean, dx);
            });
        }
    }
}
