use crate::element::{Number, Real, dispatch};
use crate::reduce::{BLOCK_ROWS, LANES, Sum, fold_into, join_lanes};
use crate::rows::lane_sum;
use crate::simd::{Ahead, multiversion};
use crate::softmax::row_count;
use crate::tiles::{Reader, Scratch, Writer, tiles};
use crate::workspace::{Workspace, piece_bytes};
use crate::{Float, View, ViewMut};
use partita_base::DType;

multiversion! {
    fn sum[C: Real](x: &[C]) -> C {
        lane_sum!(C; x; x)
    }
}

multiversion! {
    /// The sum of (x - mean)^2; memory ahead comes meanwhile.
    fn sum_squared_deviation[C: Real](x: &[C], mean: C, ahead: Ahead) -> C {
        lane_sum!(C, ahead; x; (x - mean) * (x - mean))
    }
}

multiversion! {
    fn normalize[C: Real](x: &[C], mean: C, scale: C, weight: &[C], bias: &[C], out: &mut [C]) {
        for (((out, &x), &weight), &bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
            *out = (x - mean) * scale * weight + bias;
        }
    }
}

multiversion! {
    /// The sums of dy weight y, where y is the normalized x, and of dy weight; dy y and dy join the totals.
    /// Memory ahead comes meanwhile.
    fn gradient_sums[C: Real](x: &[C], mean: C, scale: C, weight: &[C], dy: &[C], weight_total: &mut [C], bias_total: &mut [C], ahead: Ahead) -> [C; 2] {
        let (mut slopes, mut shifts) = ([C::ZERO; LANES], [C::ZERO; LANES]);
        macro_rules! add {
            ($l:ident, $x:expr, $weight:expr, $dy:expr, $weight_total:expr, $bias_total:expr) => {{
                let (y, seen) = (($x[$l] - mean) * scale, $dy[$l] * $weight[$l]);
                slopes[$l] = slopes[$l] + seen * y;
                shifts[$l] = shifts[$l] + seen;
                $weight_total[$l] = $weight_total[$l] + $dy[$l] * y;
                $bias_total[$l] = $bias_total[$l] + $dy[$l];
            }};
        }
        let (x, x_rest) = x.as_chunks::<LANES>();
        let (weight, weight_rest) = weight.as_chunks::<LANES>();
        let (dy, dy_rest) = dy.as_chunks::<LANES>();
        let (weight_total, weight_total_rest) = weight_total.as_chunks_mut::<LANES>();
        let (bias_total, bias_total_rest) = bias_total.as_chunks_mut::<LANES>();
        let whole = x.iter().zip(weight).zip(dy).zip(weight_total.iter_mut().zip(bias_total));
        for (i, (((x, weight), dy), (weight_total, bias_total))) in whole.enumerate() {
            ahead.fetch(i);
            for l in 0..LANES {
                add!(l, x, weight, dy, weight_total, bias_total);
            }
        }
        for l in 0..x_rest.len() {
            add!(l, x_rest, weight_rest, dy_rest, weight_total_rest, bias_total_rest);
        }
        // Not by a closure: lanes whose address is taken would live in memory.
        [join_lanes::<C, Sum>(slopes), join_lanes::<C, Sum>(shifts)]
    }
}

multiversion! {
    /// The gradient of a row. Memory ahead comes meanwhile.
    fn gradient[C: Real](x: &[C], mean: C, scale: C, weight: &[C], dy: &[C], shift: C, slope: C, dx: &mut [C], ahead: Ahead) {
        let of = |x: C, weight: C, dy: C| scale * ((dy * weight - shift) - ((x - mean) * scale) * slope);
        let (x, x_rest) = x.as_chunks::<LANES>();
        let (weight, weight_rest) = weight.as_chunks::<LANES>();
        let (dy, dy_rest) = dy.as_chunks::<LANES>();
        let (dx, dx_rest) = dx.as_chunks_mut::<LANES>();
        for (i, (((dx, x), weight), dy)) in dx.iter_mut().zip(x).zip(weight).zip(dy).enumerate() {
            ahead.fetch(i);
            for l in 0..LANES {
                dx[l] = of(x[l], weight[l], dy[l]);
            }
        }
        for (((dx, &x), &weight), &dy) in dx_rest.iter_mut().zip(x_rest).zip(weight_rest).zip(dy_rest) {
            *dx = of(x, weight, dy);
        }
    }
}

/// Where a norm looks for its center and how far it regularizes.
#[derive(Clone, Copy)]
struct Norm {
    centered: bool,
    epsilon: f64,
}

impl Norm {
    /// `(mean, 1 / sqrt(variance + epsilon))` of a row; the mean is zero where the norm is not centered. Its second sum,
    /// which finds the row in the first cache, brings memory `ahead` of an element.
    fn statistics<T: Float>(
        self,
        x: &Reader<'_>,
        row: usize,
        count: usize,
        ahead: impl Fn(usize) -> Ahead,
        scratch: &mut Scratch,
    ) -> (T::Compute, T::Compute) {
        let size = T::Compute::from_f64(count as f64);
        let mut mean = T::Compute::ZERO;
        if self.centered {
            for (start, some) in tiles(count) {
                let at = row * count + start;
                mean = mean + sum(x.widened::<T>(at, some, scratch));
            }
            mean = mean / size;
        }
        let mut squares = T::Compute::ZERO;
        for (start, some) in tiles(count) {
            let at = row * count + start;
            let tile = x.widened::<T>(at, some, scratch);
            squares = squares + sum_squared_deviation(tile, mean, ahead(at));
        }
        (mean, T::Compute::ONE / (squares / size + T::Compute::from_f64(self.epsilon)).sqrt())
    }
}

/// A vector along the last dimension, or one value for all of it.
enum Along<'a> {
    Vector(Reader<'a>),
    Value(f64),
}

impl<'a> Along<'a> {
    fn new(vector: Option<&View<'a>>, otherwise: f64, dtype: DType, count: usize, out: &ViewMut<'_>) -> Self {
        match vector {
            None => Along::Value(otherwise),
            Some(view) => {
                assert!(
                    view.shape() == [count] && view.dtype() == dtype,
                    "weight and bias are [{count}] of {dtype}"
                );
                Along::Vector(Reader::apart_from(view, out))
            }
        }
    }

    fn tile<'b, T: Float>(
        &'b self,
        start: usize,
        count: usize,
        scratch: &'b mut Scratch,
    ) -> &'b [T::Compute] {
        match self {
            Along::Vector(reader) => reader.widened::<T>(start, count, scratch),
            Along::Value(value) => {
                let tile = scratch.wide(count);
                tile.fill(T::Compute::from_f64(*value));
                tile
            }
        }
    }
}

/// `out = (x - mean) / sqrt(variance + epsilon) * weight + bias` over the last dimension, of size d; `weight`
/// and `bias` are `[d]`, one and zero where absent. The variance is the mean squared deviation. Halves compute
/// in f32.
///
/// # Panics
/// Where shapes or types do not fit.
pub fn layer_norm(
    x: &View<'_>,
    weight: Option<&View<'_>>,
    bias: Option<&View<'_>>,
    epsilon: f64,
    out: &mut ViewMut<'_>,
) {
    let norm = Norm { centered: true, epsilon };
    dispatch!(float x.dtype(), T => forward::<T>(norm, x, weight, bias, out))
}

/// `out = x / sqrt(mean(x^2) + epsilon) * weight` over the last dimension, of size d; `weight` is `[d]`, one
/// where absent. Halves compute in f32.
///
/// # Panics
/// Where shapes or types do not fit.
pub fn rms_norm(x: &View<'_>, weight: Option<&View<'_>>, epsilon: f64, out: &mut ViewMut<'_>) {
    let norm = Norm { centered: false, epsilon };
    dispatch!(float x.dtype(), T => forward::<T>(norm, x, weight, None, out))
}

fn forward<T: Float>(
    norm: Norm,
    x: &View<'_>,
    weight: Option<&View<'_>>,
    bias: Option<&View<'_>>,
    out: &mut ViewMut<'_>,
) {
    assert!(out.rank() > 0, "a norm needs a dimension");
    assert!(x.shape() == out.shape() && x.dtype() == out.dtype(), "a norm keeps shape and type");
    let (rows, count) = (row_count(x), x.shape()[x.rank() - 1]);
    let reader = Reader::apart_from(x, out);
    let weight = Along::new(weight, 1.0, x.dtype(), count, out);
    let bias = Along::new(bias, 0.0, x.dtype(), count, out);
    let mut writer = Writer::streaming(out, &[x]);
    let mut scratch = [Scratch::new(), Scratch::new(), Scratch::new(), Scratch::new()];
    let [x_scratch, weight_scratch, bias_scratch, out_scratch] = &mut scratch;
    for row in 0..rows {
        // Time for where the results go.
        let ahead = |at| if norm.centered { writer.ahead(at, count) } else { Ahead::nothing() };
        let (mean, scale) = norm.statistics::<T>(&reader, row, count, ahead, x_scratch);
        for (start, some) in writer.tiles(count) {
            let ahead = reader.ahead(row * count + start, count);
            let x = reader.widened::<T>(row * count + start, some, x_scratch);
            let weight = weight.tile::<T>(start, some, weight_scratch);
            let bias = bias.tile::<T>(start, some, bias_scratch);
            writer.widened_asking::<T>(row * count + start, some, out_scratch, ahead, |out| {
                normalize(x, mean, scale, weight, bias, out);
            });
        }
    }
}

/// Blocks of rows whose sums are taken apart; one where there are no rows.
fn block_count(rows: usize) -> usize {
    rows.div_ceil(NORM_BLOCK_ROWS).max(1)
}

/// Rows whose contributions to the gradients of weight and bias are summed before they join the others': a large
/// batch may be cut between them, and no bit shows where.
pub const NORM_BLOCK_ROWS: usize = BLOCK_ROWS;

/// The sums of blocks of rows in a workspace: for each, of the weight's gradient and then the bias's.
fn block_sums<C: Real>(rows: usize, d: usize, workspace: &mut [u8]) -> &mut [C] {
    Workspace::new(workspace).take(2 * d * block_count(rows))
}

/// Bytes of workspace that [`layer_norm_backward`] and [`rms_norm_backward`] need for so many rows of size `d`.
pub fn norm_backward_workspace_bytes(dtype: DType, rows: usize, d: usize) -> usize {
    let count = 2 * d * block_count(rows);
    if dtype == DType::F64 { piece_bytes::<f64>(count) } else { piece_bytes::<f32>(count) }
}

/// The gradient of [`layer_norm`] with respect to `x`, recomputing its statistics. What the workspace holds
/// afterwards is for [`norm_parameter_gradients`].
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn layer_norm_backward(
    x: &View<'_>,
    weight: Option<&View<'_>>,
    dy: &View<'_>,
    epsilon: f64,
    dx: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let norm = Norm { centered: true, epsilon };
    dispatch!(float x.dtype(), T => backward::<T>(norm, x, weight, dy, dx, workspace))
}

/// The gradient of [`rms_norm`], as [`layer_norm_backward`].
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn rms_norm_backward(
    x: &View<'_>,
    weight: Option<&View<'_>>,
    dy: &View<'_>,
    epsilon: f64,
    dx: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let norm = Norm { centered: false, epsilon };
    dispatch!(float x.dtype(), T => backward::<T>(norm, x, weight, dy, dx, workspace))
}

fn backward<T: Float>(
    norm: Norm,
    x: &View<'_>,
    weight: Option<&View<'_>>,
    dy: &View<'_>,
    dx: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    assert!(dx.rank() > 0, "a norm needs a dimension");
    for view in [x, dy] {
        assert!(view.shape() == dx.shape() && view.dtype() == dx.dtype(), "a norm keeps shape and type");
    }
    let (rows, count) = (row_count(x), x.shape()[x.rank() - 1]);
    let (x_reader, dy_reader) = (Reader::apart_from(x, dx), Reader::apart_from(dy, dx));
    let weight = Along::new(weight, 1.0, x.dtype(), count, dx);
    let mut writer = Writer::streaming(dx, &[x, dy]);
    let mut scratch = [Scratch::new(), Scratch::new(), Scratch::new(), Scratch::new()];
    let [x_scratch, dy_scratch, weight_scratch, dx_scratch] = &mut scratch;
    let sums = block_sums::<T::Compute>(rows, count, workspace);
    sums.fill(T::Compute::ZERO);
    let size = T::Compute::from_f64(count as f64);
    for row in 0..rows {
        let block = &mut sums[row / NORM_BLOCK_ROWS * 2 * count..][..2 * count];
        let (weight_block, bias_block) = block.split_at_mut(count);
        // Each pass asks for one stream: here for where results go, then for x and at last for dy of the next rows. Many
        // requests at a time hold each other up, so the longest passes ask for what takes longest.
        let ahead = |at| writer.ahead(at, count);
        let (mean, scale) = norm.statistics::<T>(&x_reader, row, count, ahead, x_scratch);
        let (mut shift, mut slope) = (T::Compute::ZERO, T::Compute::ZERO);
        for (start, some) in tiles(count) {
            let at = row * count + start;
            let x = x_reader.widened::<T>(at, some, x_scratch);
            let dy = dy_reader.widened::<T>(at, some, dy_scratch);
            let weight = weight.tile::<T>(start, some, weight_scratch);
            let range = start..start + some;
            let totals = (&mut weight_block[range.clone()], &mut bias_block[range]);
            let sums =
                gradient_sums(x, mean, scale, weight, dy, totals.0, totals.1, x_reader.ahead(at, count));
            slope = slope + sums[0];
            if norm.centered {
                shift = shift + sums[1];
            }
        }
        let (shift, slope) = (shift / size, slope / size);
        for (start, some) in writer.tiles(count) {
            let at = row * count + start;
            let x = x_reader.widened::<T>(at, some, x_scratch);
            let dy = dy_reader.widened::<T>(at, some, dy_scratch);
            let weight = weight.tile::<T>(start, some, weight_scratch);
            let ahead = dy_reader.ahead(at, count);
            writer.widened::<T>(at, some, dx_scratch, |dx| {
                gradient(x, mean, scale, weight, dy, shift, slope, dx, ahead);
            });
        }
    }
}

/// The gradients of weight and bias, `[d]` of one float type, where they are wanted, from what the gradient of a norm
/// left in its workspace: one for each part of the rows, with its number of rows, in order. All parts but the last
/// are of whole blocks of [`NORM_BLOCK_ROWS`]; then the parts do not show. The workspaces are used up.
///
/// # Panics
/// Where shapes or types do not fit, or there is no part.
pub fn norm_parameter_gradients<'a>(
    parts: impl Iterator<Item = (usize, &'a mut [u8])>,
    dtype: DType,
    d: usize,
    dweight: Option<&mut ViewMut<'_>>,
    dbias: Option<&mut ViewMut<'_>>,
) {
    let wanted = [dweight.map(ViewMut::reborrow), dbias.map(ViewMut::reborrow)];
    dispatch!(float dtype, T => parameter_gradients::<T>(parts, d, wanted))
}

fn parameter_gradients<'a, T: Float>(
    parts: impl Iterator<Item = (usize, &'a mut [u8])>,
    d: usize,
    wanted: [Option<ViewMut<'_>>; 2],
) {
    let mut parts = parts.map(|(rows, workspace)| block_sums::<T::Compute>(rows, d, workspace));
    // Two levels of sums over rows keep the rounding error of large batches small.
    let (total, rest) = parts.next().expect("a kernel has a part").split_at_mut(2 * d);
    for sums in std::iter::once(rest).chain(parts) {
        for block in sums.chunks(2 * d.max(1)) {
            fold_into::<T::Compute, Sum>(total, block);
        }
    }
    let mut scratch = Scratch::new();
    let (weight, bias) = total.split_at(d);
    for (out, total) in wanted.into_iter().zip([weight, bias]) {
        if let Some(mut out) = out {
            assert!(out.shape() == [d] && out.dtype() == T::DTYPE, "weight gradients are [{d}]");
            crate::matmul::round::<T>(total, &mut out, &mut scratch);
        }
    }
}
