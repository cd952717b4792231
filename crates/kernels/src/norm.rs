//! Layer norm and RMS norm of rows, and their gradients.
//!
//! Both directions are software pipelines over rows, so that no row waits for its own statistics and memory
//! is read and written throughout. Forward, the pass for row r computes at the same time, tile by tile:
//!
//! ```text
//! row r      out = (x - mean) scale weight + bias      mean and scale are known
//! row r + 1  sum of (x - mean)^2                       mean is known
//! row r + 2  sum of x
//! ```
//!
//! Backward has one more stage: row r writes dx, row r + 1 sums for the gradients, row r + 2 sums squared
//! deviations, and row r + 3 sums x. The first passes, with r < 0, write nothing and only fill the pipeline.

use crate::element::Float;
use crate::element::{Number, Real, dispatch};
use crate::native::levels::multiversion;
use crate::native::prefetch::Ahead;
use crate::native::vector::LANES;
use crate::options::KernelOptions;
use crate::reduce::{BLOCK_ROWS, Sum, join_lanes, join_parts};
use crate::softmax::row_count;
use crate::stream::{Streaming, put};
use crate::tiles::{Rows, Scratch, Writer, tiles};
use crate::total::{RUN, Total};
use crate::view::{View, ViewMut};
use crate::workspace::{Workspace, piece_bytes};
use partita_base::DType;
use smallvec::SmallVec;

/// Statistics of one row, which the stages of the pipeline fill in: mean, then scale, then shift and slope.
#[derive(Clone, Copy)]
struct Statistics<C> {
    mean: C,
    /// See [`Norm::scale`].
    scale: C,
    /// Backward only: the mean of dy weight (`shift`) and of dy weight times the normalized row (`slope`).
    shift: C,
    slope: C,
}

impl<C: Real> Statistics<C> {
    const UNKNOWN: Self = Statistics { mean: C::ZERO, scale: C::ZERO, shift: C::ZERO, slope: C::ZERO };

    #[inline(always)]
    fn squared_deviation(self, x: C) -> C {
        let deviation = x - self.mean;
        deviation * deviation
    }

    #[inline(always)]
    fn normalized(self, x: C) -> C {
        (x - self.mean) * self.scale
    }

    /// The gradient with respect to x.
    #[inline(always)]
    fn gradient(self, x: C, dy: C, weight: C) -> C {
        self.scale * ((dy * weight - self.shift) - self.normalized(x) * self.slope)
    }
}

/// The lanes of several sums.
type Lanes<C, const SUMS: usize> = [[C; LANES]; SUMS];

/// Not inlined: otherwise the compiler splits the lanes into scalars.
#[inline(never)]
fn join<C: Real, const SUMS: usize>(lanes: &Lanes<C, SUMS>) -> [C; SUMS] {
    let mut sums = [C::ZERO; SUMS];
    for (sum, lanes) in sums.iter_mut().zip(lanes) {
        *sum = join_lanes::<C, Sum>(*lanes);
    }
    sums
}

/// Adds the sums of a run that ends at element `end` of a row to the row's totals.
#[inline(always)]
fn add_run<C: Real, const SUMS: usize>(totals: &mut [C::Total; SUMS], lanes: &Lanes<C, SUMS>, end: usize) {
    let sums = join(lanes);
    // Stored totals that are loaded again in another width would wait for all stores in flight.
    *totals =
        std::array::from_fn(|i| if end <= RUN { C::Total::new(sums[i]) } else { totals[i].plus(sums[i]) });
}

/// Whether a run of elements begins or ends at this position of a row of `count` elements.
fn bounds_run(position: usize, count: usize) -> bool {
    position.is_multiple_of(RUN) || position == count
}

/// The lanes to which a tile adds: zeros at the beginning of a run. (Stored zeros that are loaded again would
/// wait for all stores in flight.)
#[inline(always)]
fn begun<C: Real, const SUMS: usize>(lanes: &Lanes<C, SUMS>, begins: bool) -> Lanes<C, SUMS> {
    if begins { [[C::ZERO; LANES]; SUMS] } else { *lanes }
}

/// A tile of a forward pass: `x` holds the same columns of rows r, r + 1 and r + 2. The tile of row r is
/// written, that of row r + 1 adds to the sum of squared deviations, and that of row r + 2 to the sum of
/// elements.
struct Normal<'a, C> {
    x: [&'a [C]; 3],
    known: [Statistics<C>; 2],
    weight: &'a [C],
    bias: &'a [C],
    ahead: Ahead,
    /// Whether this tile is the first of a run.
    begins: bool,
}

multiversion! {
    /// Processes one tile of a forward pass; `lanes` holds the squared deviations of row r + 1 and the
    /// elements of row r + 2.
    fn normalize(M)[C: Real](tile: &Normal<'_, C>, out: &mut [C], streaming: Option<&Streaming>, lanes: &mut Lanes<C, 2>) {
        let &Normal { known: [known, next_known], ahead, .. } = tile;
        let [mut squares, mut sums] = begun(lanes, tile.begins);
        let [(x, x_rest), (next, next_rest), (last, last_rest)] = tile.x.map(<[C]>::as_chunks::<LANES>);
        let [(weight, weight_rest), (bias, bias_rest)] = [tile.weight, tile.bias].map(<[C]>::as_chunks::<LANES>);
        let (out, out_rest) = out.as_chunks_mut::<LANES>();
        let whole = out.iter_mut().zip(x).zip(weight).zip(bias).zip(next).zip(last);
        for (i, (((((out, x), weight), bias), next), last)) in whole.enumerate() {
            ahead.fetch(i);
            let mut values = [C::ZERO; LANES];
            for l in 0..LANES {
                values[l] = known.normalized(x[l]) * weight[l] + bias[l];
                squares[l] = squares[l] + next_known.squared_deviation(next[l]);
                sums[l] = sums[l] + last[l];
            }
            put::<M, C>(values, out, streaming);
        }
        *lanes = [squares, sums];
        let [squares, sums] = lanes;
        for l in 0..x_rest.len() {
            out_rest[l] = known.normalized(x_rest[l]) * weight_rest[l] + bias_rest[l];
            squares[l] = squares[l] + next_known.squared_deviation(next_rest[l]);
            sums[l] = sums[l] + last_rest[l];
        }
    }
}

/// A tile of a backward pass: the same columns of rows r to r + 3 of x, and of rows r and r + 1 of dy.
struct Gradient<'a, C> {
    x: [&'a [C]; 4],
    dy: [&'a [C]; 2],
    known: [Statistics<C>; 3],
    weight: &'a [C],
    ahead: [Ahead; 3],
    /// Whether this tile is the first of a run.
    begins: bool,
}

multiversion! {
    /// Processes one tile of a backward pass: writes dx of row r and adds row r + 1 to the gradients of
    /// weight (dy y, where y is the normalized x) and bias (dy). `lanes` holds dy weight y and dy weight of
    /// row r + 1, and then as in [`normalize`].
    fn differentiate(M)[C: Real](tile: &Gradient<'_, C>, dx: &mut [C], streaming: Option<&Streaming>, weight_total: &mut [C], bias_total: &mut [C], lanes: &mut Lanes<C, 4>) {
        let &Gradient { known: [known, next_known, third_known], ahead, .. } = tile;
        let [mut slopes, mut shifts, mut squares, mut sums] = begun(lanes, tile.begins);
        let [(x, x_rest), (next_x, next_x_rest), (third, third_rest), (last, last_rest)] = tile.x.map(<[C]>::as_chunks::<LANES>);
        let [(dy, dy_rest), (next_dy, next_dy_rest)] = tile.dy.map(<[C]>::as_chunks::<LANES>);
        let (weight, weight_rest) = tile.weight.as_chunks::<LANES>();
        let (weight_total, weight_total_rest) = weight_total.as_chunks_mut::<LANES>();
        let (bias_total, bias_total_rest) = bias_total.as_chunks_mut::<LANES>();
        let (dx, dx_rest) = dx.as_chunks_mut::<LANES>();
        let totals = weight_total.iter_mut().zip(bias_total);
        let whole = dx.iter_mut().zip(x).zip(dy).zip(weight).zip(next_x).zip(next_dy).zip(totals).zip(third).zip(last);
        for (i, ((((((((dx, x), dy), weight), next_x), next_dy), (weight_total, bias_total)), third), last)) in whole.enumerate() {
            for ahead in ahead {
                ahead.fetch(i);
            }
            let (mut values, mut weight_sums, mut bias_sums) = ([C::ZERO; LANES], *weight_total, *bias_total);
            for l in 0..LANES {
                values[l] = known.gradient(x[l], dy[l], weight[l]);
                let (y, seen) = (next_known.normalized(next_x[l]), next_dy[l] * weight[l]);
                slopes[l] = slopes[l] + seen * y;
                shifts[l] = shifts[l] + seen;
                weight_sums[l] = weight_sums[l] + next_dy[l] * y;
                bias_sums[l] = bias_sums[l] + next_dy[l];
                squares[l] = squares[l] + third_known.squared_deviation(third[l]);
                sums[l] = sums[l] + last[l];
            }
            (*weight_total, *bias_total) = (weight_sums, bias_sums);
            put::<M, C>(values, dx, streaming);
        }
        *lanes = [slopes, shifts, squares, sums];
        let [slopes, shifts, squares, sums] = lanes;
        for l in 0..x_rest.len() {
            dx_rest[l] = known.gradient(x_rest[l], dy_rest[l], weight_rest[l]);
            let (y, seen) = (next_known.normalized(next_x_rest[l]), next_dy_rest[l] * weight_rest[l]);
            slopes[l] = slopes[l] + seen * y;
            shifts[l] = shifts[l] + seen;
            weight_total_rest[l] = weight_total_rest[l] + next_dy_rest[l] * y;
            bias_total_rest[l] = bias_total_rest[l] + next_dy_rest[l];
            squares[l] = squares[l] + third_known.squared_deviation(third_rest[l]);
            sums[l] = sums[l] + last_rest[l];
        }
    }
}

/// Some consecutive rows of a view.
struct Window<'a, T: Float, const ROWS: usize> {
    rows: [Rows<'a, T>; ROWS],
    /// The number of rows of the view.
    len: usize,
}

impl<'a, T: Float, const ROWS: usize> Window<'a, T, ROWS> {
    /// A window before the first row. Memory that `out` overlaps is copied, not borrowed.
    fn apart_from(view: &View<'a>, out: &ViewMut<'_>) -> Self {
        Window { rows: std::array::from_fn(|_| Rows::apart_from(view, out)), len: row_count(view) }
    }

    /// The rows from `first` on. `first` begins below zero and grows by one with each call. Rows before the
    /// first and after the last are replaced by the first or last row; their sums are not used.
    fn from(&mut self, first: isize) -> [&[T::Compute]; ROWS] {
        let of = |row: isize| row.clamp(0, self.len as isize - 1) as usize;
        let newest = first + ROWS as isize - 1;
        if newest < self.len as isize {
            self.rows[of(newest) % ROWS].get(of(newest));
        }
        std::array::from_fn(|i| self.rows[of(first + i as isize) % ROWS].again(of(first + i as isize)))
    }

    /// See [`Rows::ahead`].
    fn ahead(&self, row: isize) -> Ahead {
        usize::try_from(row).map_or(Ahead::nothing(), |row| self.rows[0].ahead(row))
    }
}

/// Whether a norm subtracts the mean, and its epsilon.
#[derive(Clone, Copy)]
struct Norm {
    centered: bool,
    epsilon: f64,
}

impl Norm {
    /// The mean of a row of `count` elements from their sum; zero if the norm is not centered.
    fn mean<C: Real>(self, sum: C::Total, count: usize) -> C {
        if self.centered { sum.over(C::from_f64(count as f64)) } else { C::ZERO }
    }

    /// `1 / sqrt(variance + epsilon)` of a row from the sum of its squared deviations.
    fn scale<C: Real>(self, squares: C::Total, count: usize) -> C {
        C::ONE / (squares.over(C::from_f64(count as f64)) + C::from_f64(self.epsilon)).sqrt()
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
/// and `bias` are `[d]`, one and zero if absent. The variance is the mean squared deviation. f16 and bf16
/// compute in f32.
///
/// # Panics
/// Where shapes or types do not fit.
pub fn layer_norm(
    options: KernelOptions,
    x: &View<'_>,
    weight: Option<&View<'_>>,
    bias: Option<&View<'_>>,
    epsilon: f64,
    out: &mut ViewMut<'_>,
) {
    let norm = Norm { centered: true, epsilon };
    dispatch!(float x.dtype(), T => forward::<T>(options, norm, x, weight, bias, out))
}

/// `out = x / sqrt(mean(x^2) + epsilon) * weight` over the last dimension, of size d; `weight` is `[d]`, one
/// if absent. f16 and bf16 compute in f32.
///
/// # Panics
/// Where shapes or types do not fit.
pub fn rms_norm(
    options: KernelOptions,
    x: &View<'_>,
    weight: Option<&View<'_>>,
    epsilon: f64,
    out: &mut ViewMut<'_>,
) {
    let norm = Norm { centered: false, epsilon };
    dispatch!(float x.dtype(), T => forward::<T>(options, norm, x, weight, None, out))
}

/// A function that takes `count` elements of a row from `start` on.
fn span<'a, C>(start: usize, count: usize) -> impl Fn(&'a [C]) -> &'a [C] + Copy {
    move |row| &row[start..start + count]
}

/// Lets `make` write a tile from element `start` on; into scratch memory before the first row.
#[inline]
fn write_tile<T: Float>(
    writer: &mut Writer<'_>,
    start: Option<usize>,
    count: usize,
    scratch: &mut Scratch,
    make: impl FnOnce(&mut [T::Compute], Option<&Streaming>),
) {
    match start {
        Some(start) => writer.widened::<T>(start, count, scratch, make),
        None => make(scratch.wide(count), None),
    }
}

fn forward<T: Float>(
    options: KernelOptions,
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
    let (weight, bias) = (weight.get(0), bias.get(0));
    let mut x_rows = Window::<T, 3>::apart_from(x, out);
    let mut writer = Writer::streaming(out, &[x]);
    let (mut scratch, mut lanes) = (Scratch::new(), [[T::Compute::ZERO; LANES]; 2]);
    let mut totals = [Total::new(T::Compute::ZERO); 2];
    let mut known = [Statistics::UNKNOWN; 2];
    for row in -2..rows as isize {
        let written = usize::try_from(row).ok();
        // Prefetch the destination if it is written through the caches, otherwise the next row of x.
        let ahead = match written {
            Some(row) if !writer.streams() && norm.centered => writer.ahead(row * count, count),
            _ => x_rows.ahead(row + 2),
        };
        let x = x_rows.from(row);
        for (start, some) in tiles(count) {
            let of = span(start, some);
            let (ahead, begins) = (ahead.after(start / LANES), bounds_run(start, count));
            let tile = Normal { x: x.map(of), known, weight: of(weight), bias: of(bias), ahead, begins };
            write_tile::<T>(
                &mut writer,
                written.map(|row| row * count + start),
                some,
                &mut scratch,
                |out, streaming| {
                    normalize(options, &tile, out, streaming, &mut lanes);
                },
            );
            if bounds_run(start + some, count) {
                add_run(&mut totals, &lanes, start + some);
            }
        }
        let [squares, sum] = totals;
        known[0] = Statistics { scale: norm.scale(squares, count), ..known[1] };
        known[1].mean = norm.mean(sum, count);
    }
}

/// Blocks of rows whose sums are accumulated separately; one block if there are no rows.
fn block_count(rows: usize) -> usize {
    rows.div_ceil(NORM_BLOCK_ROWS).max(1)
}

/// Rows whose contributions to the gradients of weight and bias are summed before they join the total: a
/// batch that is split between such blocks gives the same bits.
pub const NORM_BLOCK_ROWS: usize = BLOCK_ROWS;

/// The sums of blocks of rows in a workspace: for each block the weight's gradient, then the bias's.
fn block_sums<C: Real>(rows: usize, d: usize, workspace: &mut [u8]) -> &mut [C] {
    Workspace::new(workspace).take(2 * d * block_count(rows))
}

/// Bytes of workspace that [`layer_norm_backward`] and [`rms_norm_backward`] need for `rows` rows of size
/// `d`.
pub fn norm_backward_workspace_bytes(dtype: DType, rows: usize, d: usize) -> usize {
    let count = 2 * d * block_count(rows);
    if dtype == DType::F64 { piece_bytes::<f64>(count) } else { piece_bytes::<f32>(count) }
}

/// The gradient of [`layer_norm`] with respect to `x`; its statistics are recomputed. Afterwards the
/// workspace holds the sums for [`norm_parameter_gradients`].
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn layer_norm_backward(
    options: KernelOptions,
    x: &View<'_>,
    weight: Option<&View<'_>>,
    dy: &View<'_>,
    epsilon: f64,
    dx: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let norm = Norm { centered: true, epsilon };
    dispatch!(float x.dtype(), T => backward::<T>(options, norm, x, weight, dy, dx, workspace))
}

/// The gradient of [`rms_norm`]; see [`layer_norm_backward`].
///
/// # Panics
/// Where shapes or types do not fit or the workspace is too small.
pub fn rms_norm_backward(
    options: KernelOptions,
    x: &View<'_>,
    weight: Option<&View<'_>>,
    dy: &View<'_>,
    epsilon: f64,
    dx: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let norm = Norm { centered: false, epsilon };
    dispatch!(float x.dtype(), T => backward::<T>(options, norm, x, weight, dy, dx, workspace))
}

fn backward<T: Float>(
    options: KernelOptions,
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
    let weight = weight.get(0);
    let (mut x_rows, mut dy_rows) = (Window::<T, 4>::apart_from(x, dx), Window::<T, 2>::apart_from(dy, dx));
    let mut writer = Writer::streaming(dx, &[x, dy]);
    let mut scratch = Scratch::new();
    let size = T::Compute::from_f64(count as f64);
    let mut lanes = [[T::Compute::ZERO; LANES]; 4];
    let mut row_totals = [Total::new(T::Compute::ZERO); 4];
    let mut known = [Statistics::UNKNOWN; 3];
    // Receives the sums of rows that do not exist.
    let mut nowhere = vec![T::Compute::ZERO; 2 * count];
    for row in -3..rows as isize {
        let written = usize::try_from(row).ok();
        let ahead = [
            x_rows.ahead(row + 3),
            dy_rows.ahead(row + 1),
            written.map_or(Ahead::nothing(), |row| writer.ahead(row * count, count)),
        ];
        let (x, dy) = (x_rows.from(row), dy_rows.from(row));
        let totals = match usize::try_from(row + 1) {
            Ok(summed) if summed < rows => &mut sums[summed / NORM_BLOCK_ROWS * 2 * count..][..2 * count],
            _ => &mut nowhere,
        };
        let (weight_total, bias_total) = totals.split_at_mut(count);
        for (start, some) in tiles(count) {
            let of = span(start, some);
            let (ahead, begins) = (ahead.map(|ahead| ahead.after(start / LANES)), bounds_run(start, count));
            let tile = Gradient { x: x.map(of), dy: dy.map(of), known, weight: of(weight), ahead, begins };
            let totals = [&mut weight_total[start..start + some], &mut bias_total[start..start + some]];
            write_tile::<T>(
                &mut writer,
                written.map(|row| row * count + start),
                some,
                &mut scratch,
                |dx, streaming| {
                    let [weight_total, bias_total] = totals;
                    differentiate(options, &tile, dx, streaming, weight_total, bias_total, &mut lanes);
                },
            );
            if bounds_run(start + some, count) {
                add_run(&mut row_totals, &lanes, start + some);
            }
        }
        let [slope, shift, squares, sum] = row_totals;
        let shift = if norm.centered { shift.over(size) } else { T::Compute::ZERO };
        known[0] = Statistics { shift, slope: slope.over(size), ..known[1] };
        known[1] = Statistics { scale: norm.scale(squares, count), ..known[2] };
        known[2].mean = norm.mean(sum, count);
    }
}

/// The gradients of weight and bias (either may be absent), `[d]` of one float type, from the workspaces of a
/// norm's gradient: one for each part of the rows with its number of rows, in order. If all parts but the
/// last are whole blocks of [`NORM_BLOCK_ROWS`], the bits do not depend on the split.
///
/// # Panics
/// Where shapes or types do not fit, or there is no part.
pub fn norm_parameter_gradients<'a>(
    options: KernelOptions,
    parts: impl Iterator<Item = (usize, &'a mut [u8])>,
    dtype: DType,
    d: usize,
    dweight: Option<&mut ViewMut<'_>>,
    dbias: Option<&mut ViewMut<'_>>,
) {
    let wanted = [dweight.map(ViewMut::reborrow), dbias.map(ViewMut::reborrow)];
    dispatch!(float dtype, T => parameter_gradients::<T>(options, parts, d, wanted))
}

fn parameter_gradients<'a, T: Float>(
    options: KernelOptions,
    parts: impl Iterator<Item = (usize, &'a mut [u8])>,
    d: usize,
    wanted: [Option<ViewMut<'_>>; 2],
) {
    let parts: SmallVec<[&[T::Compute]; 64]> =
        parts.map(|(rows, workspace)| &*block_sums::<T::Compute>(rows, d, workspace)).collect();
    assert!(!parts.is_empty(), "a kernel has a part");
    for (number, out) in wanted.into_iter().enumerate() {
        if let Some(mut out) = out {
            assert!(out.shape() == [d] && out.dtype() == T::DTYPE, "weight gradients are [{d}]");
            join_parts::<T, Sum>(options, T::default(), &parts, 2 * d, number * d, &mut out);
        }
    }
}
