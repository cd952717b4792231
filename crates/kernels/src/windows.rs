//! Reductions over sliding windows (pooling), cumulative sums, and the gradient of the pooling by maxima.
//!
//! Windows are reduced line by line of the result: for each entry of the window, the elements that meet it
//! are combined into a line of accumulators, so that memory is read in order. Windows that end (or begin) at
//! each element and reach to the end of a dimension are cumulative: one pass computes them. f16 and bf16
//! accumulate in f32, and cumulative f32 sums in f64.

use bytemuck::{bytes_of, bytes_of_mut};

use crate::compare::Direction;
use crate::element::{Element, Number, dispatch};
use crate::native::levels::multiversion;
use crate::options::KernelOptions;
use crate::reduce::Reduction;
use crate::scalar::Scalar;
use crate::tiles::TILE;
use crate::view::{MAX_RANK, View, ViewMut};

/// The windows along one dimension. The shape of the result says how many there are, and so the padding
/// above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Entries of a window.
    pub size: usize,
    /// The distance of two windows.
    pub stride: usize,
    /// The distance of two neighbours of the input.
    pub base_dilation: usize,
    /// The distance of two entries.
    pub window_dilation: usize,
    /// Padding below; negative padding removes.
    pub low: i64,
}

impl Window {
    /// Whether each window is the element at the same place.
    fn is_pointwise(&self) -> bool {
        (self.size, self.stride, self.base_dilation, self.low) == (1, 1, 1, 0)
    }

    /// The position of an entry of a window; element `i` is at `i * base_dilation`.
    #[inline(always)]
    fn position(&self, window: usize, entry: usize) -> i64 {
        (window * self.stride + entry * self.window_dilation) as i64 - self.low
    }

    /// The element at a position.
    #[inline(always)]
    fn element(&self, position: i64, size: usize) -> Option<usize> {
        let position = usize::try_from(position).ok()?;
        let found = position / self.base_dilation;
        (found * self.base_dilation == position && found < size).then_some(found)
    }
}

/// Calls `visit` with every index of a shape, in order.
#[inline(always)]
pub(crate) fn each_index(sizes: &[usize], mut visit: impl FnMut(&[usize])) {
    if sizes.contains(&0) {
        return;
    }
    let mut index = [0; MAX_RANK];
    let index = &mut index[..sizes.len()];
    loop {
        visit(index);
        let mut d = sizes.len();
        loop {
            let Some(next) = d.checked_sub(1) else { return };
            d = next;
            index[d] += 1;
            if index[d] < sizes[d] {
                break;
            }
            index[d] = 0;
        }
    }
}

/// The dimension whose neighbours are closest in memory, of those with more than one element; the last if
/// there is none.
fn nearest(shape: &[usize], strides: &[isize], skip: Option<usize>) -> Option<usize> {
    let long = (0..shape.len()).filter(|&d| Some(d) != skip && shape[d] > 1);
    long.min_by_key(|&d| strides[d].unsigned_abs()).or((0..shape.len()).rfind(|&d| Some(d) != skip))
}

/// `shape` with size one along some dimensions.
fn without(shape: &[usize], dims: &[Option<usize>]) -> [usize; MAX_RANK] {
    std::array::from_fn(|d| if d >= shape.len() || dims.contains(&Some(d)) { 1 } else { shape[d] })
}

/// The dimension along which all windows are cumulative, and whether they begin at their element instead of
/// ending there.
fn cumulative(windows: &[Window], x: &[usize], out: &[usize]) -> Option<(usize, bool)> {
    let mut wide = (0..windows.len()).filter(|&d| !windows[d].is_pointwise());
    let (Some(dim), None) = (wide.next(), wide.next()) else { return None };
    let Window { size, stride, base_dilation, window_dilation, low } = windows[dim];
    let reaches = x == out && size == x[dim] && (stride, base_dilation, window_dilation) == (1, 1, 1);
    match low {
        0 if reaches => Some((dim, true)),
        low if reaches && low == size as i64 - 1 => Some((dim, false)),
        _ => None,
    }
}

/// Combines `init` with all elements of each window, in order; positions outside the input and in its gaps
/// hold `init`.
///
/// # Panics
/// Where shapes or types do not fit, there is no dimension, or a bitwise reduction is applied to floats.
pub fn reduce_window(
    options: KernelOptions,
    op: Reduction,
    windows: &[Window],
    x: &View<'_>,
    init: &Scalar,
    out: &mut ViewMut<'_>,
) {
    let dtype = x.dtype();
    assert!(init.dtype() == dtype && out.dtype() == dtype, "a reduction keeps the type");
    assert!(
        x.rank() == windows.len() && out.rank() == windows.len() && !windows.is_empty(),
        "a window has every dimension"
    );
    if out.is_empty() {
        return;
    }
    let neutral = match op {
        Reduction::Sum => init.to_f64() == 0.0,
        Reduction::Prod => init.to_f64() == 1.0,
        Reduction::Max | Reduction::Min | Reduction::And | Reduction::Or => true,
    };
    match cumulative(windows, x.shape(), out.shape()).filter(|_| neutral) {
        Some((dim, backwards)) => {
            dispatch!(dtype, T => cumulate::<T>(options, op, dim, backwards, x, init.get(), out));
        }
        None => dispatch!(dtype, T => lines::<T>(options, op, windows, x, init.get(), out)),
    }
}

/// Combines two values. Every number is compared and added here, so loops over a type exist once.
#[inline(always)]
fn combine<C: Number>(op: Reduction, a: C, b: C) -> C {
    match op {
        Reduction::Sum => a.plus(b),
        Reduction::Prod => a.times(b),
        Reduction::Max => a.maximum(b),
        Reduction::Min => a.minimum(b),
        Reduction::And => bitwise(a, b, |a, b| a & b),
        Reduction::Or => bitwise(a, b, |a, b| a | b),
    }
}

#[inline(always)]
fn bitwise<C: Number>(mut a: C, b: C, apply: impl Fn(u8, u8) -> u8) -> C {
    for (a, &b) in bytes_of_mut(&mut a).iter_mut().zip(bytes_of(&b)) {
        *a = apply(*a, b);
    }
    a
}

/// Evaluates a loop with a combination that is known in it.
macro_rules! per_reduction {
    ($op:expr, $known:ident => $loop:expr) => {
        per_reduction!(@arms $op, $known => $loop, Sum Prod Max Min And Or)
    };
    (@arms $op:expr, $known:ident => $loop:expr, $($name:ident)*) => {
        match $op {
            $(Reduction::$name => { let $known = Reduction::$name; $loop })*
        }
    };
}

multiversion! {
    /// Combines a run of elements into as many accumulators.
    fn combine_run[T: Element; T](op: Reduction, totals: &mut [T::Compute], x: &[T]) {
        per_reduction!(op, known => {
            for (total, &x) in totals.iter_mut().zip(x) {
                *total = combine(known, *total, x.load());
            }
        })
    }
}

#[inline(never)]
fn lines<T: Element>(
    options: KernelOptions,
    op: Reduction,
    windows: &[Window],
    x: &View<'_>,
    init: T,
    out: &mut ViewMut<'_>,
) {
    let to: *mut T = out.as_mut_ptr().cast();
    let from: *const T = x.as_ptr().cast();
    let shape = out.as_view();
    let rank = windows.len();
    let line = nearest(shape.shape(), shape.strides(), None).expect("a dimension");
    let own = windows[line];
    let (step, out_step) = (x.strides()[line], shape.strides()[line]);
    let size = x.shape()[line];
    let mut entries = [1; MAX_RANK];
    (0..rank).filter(|&d| d != line).for_each(|d| entries[d] = windows[d].size);
    let pad = init.load();
    let mut sums = [pad; TILE];
    each_index(&without(shape.shape(), &[Some(line)])[..rank], |place| {
        let base: isize = place.iter().zip(shape.strides()).map(|(&i, s)| i as isize * s).sum();
        for start in (0..shape.shape()[line]).step_by(TILE) {
            let count = TILE.min(shape.shape()[line] - start);
            let sums = &mut sums[..count];
            sums.fill(pad);
            each_index(&entries[..rank], |entry| {
                let mut offset = Some(0isize);
                for d in (0..rank).filter(|&d| d != line) {
                    let found = windows[d].element(windows[d].position(place[d], entry[d]), x.shape()[d]);
                    offset = offset.zip(found).map(|(offset, i)| offset + i as isize * x.strides()[d]);
                }
                for e in 0..own.size {
                    let Some(offset) = offset else {
                        sums.iter_mut().for_each(|sum| *sum = combine(op, *sum, pad));
                        continue;
                    };
                    let at = |i: usize| own.position(start + i, e);
                    if own.base_dilation > 1 {
                        for (i, sum) in sums.iter_mut().enumerate() {
                            let found = own.element(at(i), size);
                            // SAFETY: the element is inside the view.
                            let value = found.map_or(pad, |found| unsafe {
                                from.offset(offset + found as isize * step).read().load()
                            });
                            *sum = combine(op, *sum, value);
                        }
                        continue;
                    }
                    let reach = |bound: i64| {
                        let missing = bound - at(0);
                        let stride = own.stride as i64;
                        (missing + stride - 1).div_euclid(stride).clamp(0, count as i64) as usize
                    };
                    let (first, end) = (reach(0), reach(size as i64).max(reach(0)));
                    for sum in sums[..first].iter_mut() {
                        *sum = combine(op, *sum, pad);
                    }
                    for sum in sums[end..].iter_mut() {
                        *sum = combine(op, *sum, pad);
                    }
                    if first == end {
                        continue;
                    }
                    let from = from.wrapping_offset(offset + at(first) as isize * step);
                    let apart = own.stride as isize * step;
                    if apart == 1 {
                        // SAFETY: the elements from `first` to `end` are inside the view and contiguous; the
                        // result, which a writable view keeps apart, is not written meanwhile.
                        let run = unsafe { std::slice::from_raw_parts(from, end - first) };
                        combine_run::<T>(options, op, &mut sums[first..end], run);
                    } else {
                        for (i, sum) in sums[first..end].iter_mut().enumerate() {
                            // SAFETY: as above, at a stride.
                            let value = unsafe { from.offset(i as isize * apart).read() };
                            *sum = combine(op, *sum, value.load());
                        }
                    }
                }
            });
            for (i, &sum) in sums.iter().enumerate() {
                // SAFETY: the place is inside the result.
                unsafe { to.offset(base + (start + i) as isize * out_step).write(T::store(sum)) };
            }
        }
    });
}

/// An element type with the type in which long sums of it are computed.
trait Total: Element {
    type Total: Number;
    fn widen(self) -> Self::Total;
    fn narrow(total: Self::Total) -> Self;
}
impl Total for f32 {
    type Total = f64;
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn narrow(total: f64) -> f32 {
        total as f32
    }
}
macro_rules! own_total {
    ($($type:ty)*) => {$(
        impl Total for $type {
            type Total = <$type as Element>::Compute;
            #[inline(always)]
            fn widen(self) -> Self::Total {
                self.load()
            }
            #[inline(always)]
            fn narrow(total: Self::Total) -> $type {
                <$type as Element>::store(total)
            }
        }
    )*};
}
own_total!(crate::Bool i8 i16 i32 i64 u8 u16 u32 u64 half::f16 half::bf16 f64);

multiversion! {
    /// Combines a row into the totals, and writes them.
    fn cumulate_row[T: Total; T](op: Reduction, totals: &mut [T::Total], x: &[T], out: &mut [T]) {
        per_reduction!(op, known => {
            for ((total, &x), out) in totals.iter_mut().zip(x).zip(out) {
                *total = combine(known, *total, x.widen());
                *out = T::narrow(*total);
            }
        })
    }
}

/// Lines that are at a distance in memory and that one pass cumulates side by side.
const SIDE_BY_SIDE: usize = 8;

#[inline(never)]
fn cumulate<T: Total>(
    options: KernelOptions,
    op: Reduction,
    dim: usize,
    backwards: bool,
    x: &View<'_>,
    init: T,
    out: &mut ViewMut<'_>,
) {
    let to: *mut T = out.as_mut_ptr().cast();
    let from: *const T = x.as_ptr().cast();
    let shape = out.as_view();
    let rank = shape.rank();
    let extent = shape.shape()[dim];
    let across = nearest(shape.shape(), shape.strides(), Some(dim));
    let (width, step, out_step) =
        across.map_or((1, 1, 1), |d| (shape.shape()[d], x.strides()[d], shape.strides()[d]));
    let together = if (step, out_step) == (1, 1) { TILE } else { SIDE_BY_SIDE };
    let mut totals = [init.widen(); TILE];
    each_index(&without(shape.shape(), &[Some(dim), across])[..rank], |place| {
        let base =
            |strides: &[isize]| -> isize { place.iter().zip(strides).map(|(&i, s)| i as isize * s).sum() };
        let (base, out_base) = (base(x.strides()), base(shape.strides()));
        for start in (0..width).step_by(together) {
            let count = together.min(width - start);
            let totals = &mut totals[..count];
            totals.fill(init.widen());
            for i in 0..extent {
                let i = if backwards { extent - 1 - i } else { i } as isize;
                let from = from.wrapping_offset(base + start as isize * step + i * x.strides()[dim]);
                let to = to.wrapping_offset(out_base + start as isize * out_step + i * shape.strides()[dim]);
                // SAFETY: the rows are inside the views, contiguous in the first case; a writable view keeps
                // the result apart from the input.
                unsafe {
                    if together == TILE {
                        let row = std::slice::from_raw_parts(from, count);
                        let out = std::slice::from_raw_parts_mut(to, count);
                        cumulate_row::<T>(options, op, totals, row, out);
                        continue;
                    }
                    for (j, total) in totals.iter_mut().enumerate() {
                        *total = combine(op, *total, from.offset(j as isize * step).read().widen());
                        to.offset(j as isize * out_step).write(T::narrow(*total));
                    }
                }
            }
        }
    });
}

/// In each window one element of `x` is selected, and the element of `source` that belongs to the window is
/// combined into `out` at its place. All of `out` starts from `init`. An element stays selected against a
/// later one if `stays` holds between them. Windows do not select padding; dilations are one.
///
/// # Panics
/// Where shapes or types do not fit, or a bitwise reduction is applied to floats.
pub fn select_and_scatter(
    stays: Direction,
    op: Reduction,
    windows: &[Window],
    x: &View<'_>,
    source: &View<'_>,
    init: &Scalar,
    out: &mut ViewMut<'_>,
) {
    let dtype = x.dtype();
    assert!(source.dtype() == dtype && init.dtype() == dtype && out.dtype() == dtype, "one type");
    assert!(
        x.shape() == out.shape() && x.rank() == windows.len() && source.rank() == windows.len(),
        "a window has every dimension"
    );
    crate::copy::fill(out, init);
    dispatch!(dtype, T => scatter_selected::<T>(stays, op, windows, x, source, out));
}

#[inline(never)]
fn scatter_selected<T: Element>(
    stays: Direction,
    op: Reduction,
    windows: &[Window],
    x: &View<'_>,
    source: &View<'_>,
    out: &mut ViewMut<'_>,
) {
    let to: *mut T = out.as_mut_ptr().cast();
    let (from, given): (*const T, *const T) = (x.as_ptr().cast(), source.as_ptr().cast());
    let strides = out.as_view();
    let rank = windows.len();
    let holds = |a: T::Compute, b: T::Compute| match stays {
        Direction::Eq => a == b,
        Direction::Ne => a != b,
        Direction::Lt => a < b,
        Direction::Le => a <= b,
        Direction::Gt => a > b,
        Direction::Ge => a >= b,
    };
    each_index(source.shape(), |place| {
        // The entries of the window that are inside, and where they begin.
        let (mut inside, mut starts) = ([1; MAX_RANK], [0; MAX_RANK]);
        for d in 0..rank {
            let begin = windows[d].position(place[d], 0);
            let end = (begin + windows[d].size as i64).clamp(0, x.shape()[d] as i64);
            let begin = begin.clamp(0, end);
            (inside[d], starts[d]) = ((end - begin) as usize, begin as usize);
        }
        let at = |strides: &[isize], entry: &[usize]| -> isize {
            (0..rank).map(|d| (starts[d] + entry[d]) as isize * strides[d]).sum()
        };
        let mut best: Option<(T::Compute, [usize; MAX_RANK])> = None;
        each_index(&inside[..rank], |entry| {
            // SAFETY: the entry is inside the view.
            let value = unsafe { from.offset(at(x.strides(), entry)).read().load() };
            if !best.is_some_and(|(kept, _)| holds(kept, value)) {
                let mut chosen = [0; MAX_RANK];
                chosen[..rank].copy_from_slice(entry);
                best = Some((value, chosen));
            }
        });
        let Some((_, chosen)) = best else { return };
        let own: isize = place.iter().zip(source.strides()).map(|(&i, s)| i as isize * s).sum();
        // SAFETY: both places are inside their views.
        unsafe {
            let to = to.offset(at(strides.strides(), &chosen));
            let sum = combine(op, to.read().load(), given.offset(own).read().load());
            to.write(T::store(sum));
        }
    });
}
