use crate::element::{Number, Real, dispatch};
use crate::reduce::{BLOCK_ROWS, LANES, Sum, fold_into, join_lanes, padded};
use crate::rows::{map_into, sum_in_lanes};
use crate::simd::{Ahead, multiversion};
use crate::softmax::row_count;
use crate::stream::{Streaming, put, stream};
use crate::tiles::{Rows, Scratch, TILE, Writer, tiles};
use crate::workspace::{Workspace, piece_bytes};
use crate::{Float, View, ViewMut};
use partita_base::DType;

/// The most rows that are worked on together: none waits for its own sums alone.
const TOGETHER: usize = 2;

/// Rows of `count` elements that are worked on together: one where they do not stay in the first cache or have to be copied,
/// or where results go past the caches: each row is then on its way to memory while the next is computed.
fn together<T: Float>(inputs: &[&Rows<'_, T>], out: &Writer<'_>, count: usize) -> usize {
    let stay = TOGETHER * count <= 4 * TILE && !out.streams();
    if stay && inputs.iter().all(|rows| rows.are_lent()) { TOGETHER } else { 1 }
}

/// Elements of a gradient that are computed before they go past the caches together, beside three streams that are read.
const PIECE: usize = TILE / 4;

/// Sums of some rows.
type Sums<C> = [C; TOGETHER];

/// The lanes that make up the sums of some rows.
type Lanes<C> = [[C; LANES]; TOGETHER];

/// The sums of the first `rows` rows. Not inlined: where the compiler sees what becomes of lanes, it takes their vectors
/// apart.
#[inline(never)]
fn join<C: Real>(lanes: &Lanes<C>, rows: usize) -> Sums<C> {
    let mut sums = [C::ZERO; TOGETHER];
    for (sum, lanes) in sums.iter_mut().zip(lanes).take(rows) {
        *sum = join_lanes::<C, Sum>(*lanes);
    }
    sums
}

multiversion! {
    /// The sum of each row.
    fn sums[C: Real](x: &[C], count: usize, lanes: &mut Lanes<C>) {
        for (x, lanes) in x.chunks_exact(count).zip(lanes) {
            *lanes = sum_in_lanes!(C; x; x);
        }
    }
}

multiversion! {
    /// The sum of (x - mean)^2 of each row; memory ahead comes meanwhile.
    fn sums_of_squared_deviations[C: Real](x: &[C], count: usize, mean: &Sums<C>, ahead: Ahead, lanes: &mut Lanes<C>) {
        for (row, ((x, lanes), &mean)) in x.chunks_exact(count).zip(lanes).zip(mean).enumerate() {
            let ahead = ahead.after(row * count / LANES);
            *lanes = sum_in_lanes!(C, ahead; x; (x - mean) * (x - mean));
        }
    }
}

/// A tile of a row that is written while sums are taken of the same elements of the next rows: of squared deviations of
/// the one, and of the elements of the one after that. So no row waits for its own sums, memory is read and written
/// throughout, and is asked for a row once.
struct Row<'a, C> {
    x: &'a [C],
    mean: C,
    scale: C,
    weight: &'a [C],
    bias: &'a [C],
    next: &'a [C],
    next_mean: C,
    after_next: &'a [C],
    ahead: Ahead,
    /// Whether the sums begin here, not with what their lanes hold. Zeros that are stored to be read again would wait
    /// behind all that is on its way to memory.
    begins: bool,
}

multiversion! {
    /// Writes a tile of a row; its lanes are of squared deviations and of elements.
    fn normalize(M)[C: Real](row: &Row<'_, C>, out: &mut [C], streaming: Option<&Streaming>, lanes: &mut Lanes<C>) {
        let &Row { mean, scale, next_mean, ahead, begins, .. } = row;
        let ([mut squares, mut sums], zeros) = (*lanes, [C::ZERO; LANES]);
        if begins {
            (squares, sums) = (zeros, zeros);
        }
        let of = |x: C, weight: C, bias: C| (x - mean) * scale * weight + bias;
        let (x, x_rest) = row.x.as_chunks::<LANES>();
        let (weight, weight_rest) = row.weight.as_chunks::<LANES>();
        let (bias, bias_rest) = row.bias.as_chunks::<LANES>();
        let (next, next_rest) = row.next.as_chunks::<LANES>();
        let (after_next, after_next_rest) = row.after_next.as_chunks::<LANES>();
        let (out, out_rest) = out.as_chunks_mut::<LANES>();
        let whole = out.iter_mut().zip(x).zip(weight).zip(bias).zip(next).zip(after_next);
        for (i, (((((out, x), weight), bias), next), after_next)) in whole.enumerate() {
            ahead.fetch(i);
            let mut values = zeros;
            for l in 0..LANES {
                values[l] = of(x[l], weight[l], bias[l]);
                let deviation = next[l] - next_mean;
                squares[l] = squares[l] + deviation * deviation;
                sums[l] = sums[l] + after_next[l];
            }
            put::<M, C>(values, out, streaming);
        }
        *lanes = [squares, sums];
        for l in 0..x_rest.len() {
            out_rest[l] = of(x_rest[l], weight_rest[l], bias_rest[l]);
            let deviation = next_rest[l] - next_mean;
            lanes[0][l] = lanes[0][l] + deviation * deviation;
            lanes[1][l] = lanes[1][l] + after_next_rest[l];
        }
    }
}

multiversion! {
    /// The sums of dy weight y, where y is the normalized x, and of dy weight; dy y and dy join the totals.
    /// Memory ahead comes meanwhile.
    fn gradient_sums[C: Real](x: &[C], mean: C, scale: C, weight: &[C], dy: &[C], weight_total: &mut [C], bias_total: &mut [C], ahead: Ahead, slope: &mut [C; LANES], shift: &mut [C; LANES]) {
        let (mut slopes, mut shifts) = ([C::ZERO; LANES], [C::ZERO; LANES]);
        // Of so many lanes, the others keep what they have.
        macro_rules! add {
            ($count:expr, $x:expr, $weight:expr, $dy:expr, $weight_total:expr, $bias_total:expr) => {
                for l in 0..LANES {
                    let (y, seen) = (($x[l] - mean) * scale, $dy[l] * $weight[l]);
                    slopes[l] = if l < $count { slopes[l] + seen * y } else { slopes[l] };
                    shifts[l] = if l < $count { shifts[l] + seen } else { shifts[l] };
                    $weight_total[l] = $weight_total[l] + $dy[l] * y;
                    $bias_total[l] = $bias_total[l] + $dy[l];
                }
            };
        }
        let (x, x_rest) = x.as_chunks::<LANES>();
        let (weight, weight_rest) = weight.as_chunks::<LANES>();
        let (dy, dy_rest) = dy.as_chunks::<LANES>();
        let (weight_total, weight_total_rest) = weight_total.as_chunks_mut::<LANES>();
        let (bias_total, bias_total_rest) = bias_total.as_chunks_mut::<LANES>();
        let whole = x.iter().zip(weight).zip(dy).zip(weight_total.iter_mut().zip(bias_total));
        for (i, (((x, weight), dy), (weight_total, bias_total))) in whole.enumerate() {
            ahead.fetch(i);
            add!(LANES, x, weight, dy, weight_total, bias_total);
        }
        if !x_rest.is_empty() {
            let count = x_rest.len();
            let (x, weight, dy) = (padded(x_rest), padded(weight_rest), padded(dy_rest));
            let (mut weight_total, mut bias_total) = (padded(weight_total_rest), padded(bias_total_rest));
            add!(count, x, weight, dy, weight_total, bias_total);
            weight_total_rest.copy_from_slice(&weight_total[..count]);
            bias_total_rest.copy_from_slice(&bias_total[..count]);
        }
        // Not by a closure: lanes whose address is taken would live in memory.
        *slope = slopes;
        *shift = shifts;
    }
}

multiversion! {
    /// The gradient of a row. Memory ahead comes meanwhile.
    fn gradient(M)[C: Real](x: &[C], mean: C, scale: C, weight: &[C], dy: &[C], shift: C, slope: C, dx: &mut [C], ahead: Ahead) {
        map_into!(M, C, ahead; x, weight, dy; scale * ((dy * weight - shift) - ((x - mean) * scale) * slope); dx, None);
    }
}

/// Where a norm looks for its center and how far it regularizes.
#[derive(Clone, Copy)]
struct Norm {
    centered: bool,
    epsilon: f64,
}

impl Norm {
    /// The mean of a row of `count` elements by their sum; zero where the norm is not centered.
    fn mean<C: Real>(self, sum: C, count: usize) -> C {
        if self.centered { sum / C::from_f64(count as f64) } else { C::ZERO }
    }

    /// `1 / sqrt(variance + epsilon)` of a row by the sum of its squared deviations.
    fn scale<C: Real>(self, squares: C, count: usize) -> C {
        C::ONE / (squares / C::from_f64(count as f64) + C::from_f64(self.epsilon)).sqrt()
    }

    /// The means of some rows.
    fn means<C: Real>(self, x: &[C], count: usize) -> Sums<C> {
        let mut lanes = [[C::ZERO; LANES]; TOGETHER];
        if self.centered {
            sums(x, count, &mut lanes);
        }
        join(&lanes, x.len() / count).map(|sum| self.mean(sum, count))
    }

    /// The mean and scale of some rows. The second sums, which find the rows in the first cache, bring memory `ahead`.
    fn statistics<C: Real>(self, x: &[C], count: usize, ahead: Ahead) -> (Sums<C>, Sums<C>) {
        let mut lanes = [[C::ZERO; LANES]; TOGETHER];
        let mean = self.means(x, count);
        sums_of_squared_deviations(x, count, &mean, ahead, &mut lanes);
        (mean, join(&lanes, x.len() / count).map(|squares| self.scale(squares, count)))
    }
}

/// A vector along the last dimension, or one value for all of it.
fn along<'a, T: Float>(
    vector: Option<&View<'a>>,
    otherwise: f64,
    count: usize,
    out: &ViewMut<'_>,
) -> Rows<'a, T> {
    match vector {
        None => Rows::of(T::Compute::from_f64(otherwise), count),
        Some(view) => {
            assert!(
                view.shape() == [count] && view.dtype() == T::DTYPE,
                "weight and bias are [{count}] of {}",
                T::DTYPE
            );
            Rows::apart_from(view, out)
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
    if out.is_empty() {
        return;
    }
    let (mut weight, mut bias) = (along::<T>(weight, 1.0, count, out), along::<T>(bias, 0.0, count, out));
    let (weight, bias) = (weight.get(0, 1), bias.get(0, 1));
    // What is written, and the two rows after it, of which sums are taken meanwhile.
    let mut x_rows: [_; 3] = std::array::from_fn(|_| Rows::<T>::apart_from(x, out));
    let mut writer = Writer::streaming(out, &[x]);
    let (mut scratch, mut lanes) = (Scratch::new(), [[T::Compute::ZERO; LANES]; 2]);
    let ([mut mean, _], [mut scale, _]) = norm.statistics(x_rows[0].get(0, 1), count, Ahead::nothing());
    let second = 1.min(rows - 1);
    let [mut next_mean, _] = norm.means(x_rows[second].get(second, 1), count);
    for row in 0..rows {
        // After the last row comes itself, whose sums nobody reads.
        let [next, after_next] = [1, 2].map(|later| (row + later).min(rows - 1));
        if after_next == row + 2 {
            x_rows[after_next % 3].get(after_next, 1);
        }
        // What is waited for: where results go, or else the next rows.
        let ahead = if writer.streams() || !norm.centered {
            x_rows[after_next % 3].ahead(after_next, 1)
        } else {
            writer.ahead(row * count, count)
        };
        let [x, next, after_next] = [row, next, after_next].map(|row| x_rows[row % 3].again(row, 1));
        for (start, some) in tiles(count) {
            let [x, next, after_next, weight, bias] =
                [x, next, after_next, weight, bias].map(|row| &row[start..start + some]);
            let (ahead, begins) = (ahead.after(start / LANES), start == 0);
            let tile = Row { x, mean, scale, weight, bias, next, next_mean, after_next, ahead, begins };
            writer.widened::<T>(row * count + start, some, &mut scratch, |out, streaming| {
                normalize(&tile, out, streaming, &mut lanes);
            });
        }
        let [squares, sum] = join(&lanes, 2);
        (mean, scale) = (next_mean, norm.scale(squares, count));
        next_mean = norm.mean(sum, count);
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
    let sums = block_sums::<T::Compute>(rows, count, workspace);
    sums.fill(T::Compute::ZERO);
    if dx.is_empty() {
        return;
    }
    let mut weight = along::<T>(weight, 1.0, count, dx);
    let weight = weight.get(0, 1);
    let (mut x_rows, mut dy_rows) = (Rows::<T>::apart_from(x, dx), Rows::<T>::apart_from(dy, dx));
    let mut writer = Writer::streaming(dx, &[x, dy]);
    let mut scratch = Scratch::new();
    let mut piece = [T::Compute::ZERO; PIECE];
    let size = T::Compute::from_f64(count as f64);
    let mut slopes = [[T::Compute::ZERO; LANES]; TOGETHER];
    let mut shifts = slopes;
    let step = together(&[&x_rows, &dy_rows], &writer, count);
    const { assert!(NORM_BLOCK_ROWS.is_multiple_of(TOGETHER)) };
    for first in (0..rows).step_by(step) {
        let some_rows = step.min(rows - first);
        // Each pass asks for one stream: here for where results go, then for x and at last for dy of the next rows. Many
        // requests at a time hold each other up, so the longest passes ask for what takes longest. Where results go past
        // the caches, x comes first.
        let mut ahead = [
            writer.ahead(first * count, some_rows * count),
            x_rows.ahead(first, some_rows),
            dy_rows.ahead(first, some_rows),
        ];
        if writer.streams() {
            ahead.swap(0, 1);
        }
        let (x, dy) = (x_rows.get(first, some_rows), dy_rows.get(first, some_rows));
        let (mean, scale) = norm.statistics(x, count, ahead[0]);
        let block = &mut sums[first / NORM_BLOCK_ROWS * 2 * count..][..2 * count];
        let (weight_total, bias_total) = block.split_at_mut(count);
        for (i, (x, dy)) in x.chunks_exact(count).zip(dy.chunks_exact(count)).enumerate() {
            let ahead = ahead[1].after(i * count / LANES);
            let lanes = (&mut slopes[i], &mut shifts[i]);
            gradient_sums(
                x,
                mean[i],
                scale[i],
                weight,
                dy,
                weight_total,
                bias_total,
                ahead,
                lanes.0,
                lanes.1,
            );
        }
        let slope = join(&slopes, some_rows);
        let shift = if norm.centered { join(&shifts, some_rows) } else { [T::Compute::ZERO; TOGETHER] };
        for (i, (x, dy)) in x.chunks_exact(count).zip(dy.chunks_exact(count)).enumerate() {
            let (shift, slope) = (shift[i] / size, slope[i] / size);
            for (start, some) in tiles(count) {
                let ahead = ahead[2].after((i * count + start) / LANES);
                writer.widened::<T>((first + i) * count + start, some, &mut scratch, |dx, streaming| {
                    let [x, weight, dy] = [x, weight, dy].map(|row| &row[start..start + some]);
                    let write = |at: usize, dx: &mut [T::Compute]| {
                        let [x, weight, dy] = [x, weight, dy].map(|row| &row[at..at + dx.len()]);
                        let ahead = ahead.after(at / LANES);
                        gradient(x, mean[i], scale[i], weight, dy, shift, slope, dx, ahead);
                    };
                    let Some(streaming) = streaming else { return write(0, dx) };
                    for (number, dx) in dx.chunks_mut(PIECE).enumerate() {
                        let piece = &mut piece[..dx.len()];
                        write(number * PIECE, piece);
                        stream(bytemuck::cast_slice(piece), bytemuck::cast_slice_mut(dx), streaming);
                    }
                });
            }
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
