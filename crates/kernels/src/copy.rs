//! Copies between layouts (including transposes), fills and `iota`.

use bytemuck::{Pod, cast_slice_mut};
use partita_base::DType;

use crate::convert::Cast;
use crate::element::dispatch;
use crate::scalar::Scalar;
use crate::tiles::{TILE, TileBytes, Writer, tiles};
use crate::view::{MAX_RANK, View, ViewMut};

/// Side of the square blocks of a transposing copy: the rows and the columns of a square both stay in L1, so
/// that each cache line is moved once.
const BLOCK: usize = 16;

/// One dimension of a copy: its size and both strides.
#[derive(Clone, Copy, Default)]
struct Axis {
    size: usize,
    from: isize,
    to: isize,
}

/// `out = x` between any strides: transposes, broadcasts, slices, the parts of a concatenation and the inside
/// of a pad.
///
/// # Panics
/// Where shapes or types differ.
pub fn copy(x: &View<'_>, out: &mut ViewMut<'_>) {
    assert_eq!(x.shape(), out.shape(), "a copy keeps the shape");
    assert_eq!(x.dtype(), out.dtype(), "a copy keeps the type");
    if x.is_empty() {
        return;
    }
    // Any order of the loops is correct: follow the memory order of the output, and merge dimensions that are
    // regular in both.
    let mut axes = [Axis::default(); MAX_RANK];
    let mut count = 0;
    for ((&size, &from), &to) in x.shape().iter().zip(x.strides()).zip(out.strides()) {
        if size > 1 {
            axes[count] = Axis { size, from, to };
            count += 1;
        }
    }
    axes[..count].sort_by_key(|axis| std::cmp::Reverse(axis.to.unsigned_abs()));
    let mut merged = 0usize;
    for i in 0..count {
        let axis = axes[i];
        let steps = axis.size as isize;
        match merged.checked_sub(1).map(|last| &mut axes[last]) {
            Some(last) if last.from == axis.from * steps && last.to == axis.to * steps => {
                *last = Axis { size: last.size * axis.size, ..axis };
            }
            _ => {
                axes[merged] = axis;
                merged += 1;
            }
        }
    }
    let axes = &axes[..merged];
    let (from, to) = (x.as_ptr(), out.as_mut_ptr());
    // SAFETY: the axes enumerate the elements of both views, which guarantee them and their alignment; the
    // word has the size of an element.
    unsafe {
        match x.dtype().size_bytes() {
            1 => copy_words::<u8>(from, to, axes),
            2 => copy_words::<u16>(from.cast(), to.cast(), axes),
            4 => copy_words::<u32>(from.cast(), to.cast(), axes),
            _ => copy_words::<u64>(from.cast(), to.cast(), axes),
        }
    }
}

/// # Safety
/// `axes` describe elements that are readable at `from` and writable at `to`.
unsafe fn copy_words<W: Pod>(from: *const W, to: *mut W, axes: &[Axis]) {
    let Some((&inner, outer)) = axes.split_last() else {
        // SAFETY: without axes there is one element.
        return unsafe { to.write(from.read()) };
    };
    // If another axis is the dense one of the source, copy in square blocks of both.
    let dense = if inner.from.unsigned_abs() > 1 {
        (0..outer.len()).filter(|&i| outer[i].from != 0).min_by_key(|&i| outer[i].from.unsigned_abs())
    } else {
        None
    };
    let dense = dense.filter(|&i| outer[i].from.unsigned_abs() < inner.from.unsigned_abs());
    let mut index = [0usize; MAX_RANK];
    let (mut from, mut to) = (from, to);
    loop {
        // SAFETY: `from` and `to` are at an index of the outer axes (at the start of the dense one), and the
        // inner loops stay within their sizes.
        unsafe {
            match dense {
                Some(d) => copy_square(from, to, outer[d], inner),
                None => copy_row(from, to, inner),
            }
        }
        let mut d = outer.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            if Some(d) == dense {
                continue;
            }
            index[d] += 1;
            from = from.wrapping_offset(outer[d].from);
            to = to.wrapping_offset(outer[d].to);
            if index[d] < outer[d].size {
                break;
            }
            from = from.wrapping_offset(-(outer[d].from * index[d] as isize));
            to = to.wrapping_offset(-(outer[d].to * index[d] as isize));
            index[d] = 0;
        }
    }
}

/// # Safety
/// The same as for [`copy_words`] with one axis.
unsafe fn copy_row<W: Pod>(from: *const W, to: *mut W, axis: Axis) {
    // SAFETY: the caller guarantees all elements of the axis.
    unsafe {
        match (axis.from, axis.to) {
            (1, 1) => std::ptr::copy(from, to, axis.size),
            (0, 1) => {
                let value = from.read();
                for i in 0..axis.size {
                    to.add(i).write(value);
                }
            }
            _ => {
                for i in 0..axis.size as isize {
                    to.offset(i * axis.to).write(from.offset(i * axis.from).read());
                }
            }
        }
    }
}

/// # Safety
/// The same as for [`copy_words`] with two axes.
unsafe fn copy_square<W: Pod>(from: *const W, to: *mut W, a: Axis, b: Axis) {
    for a_start in (0..a.size).step_by(BLOCK) {
        let a_end = a.size.min(a_start + BLOCK);
        for b_start in (0..b.size).step_by(BLOCK) {
            let b_end = b.size.min(b_start + BLOCK);
            for i in a_start as isize..a_end as isize {
                // SAFETY: i and j stay within the axes, which the caller guarantees.
                unsafe {
                    let (from, to) = (from.offset(i * a.from), to.offset(i * a.to));
                    for j in b_start as isize..b_end as isize {
                        to.offset(j * b.to).write(from.offset(j * b.from).read());
                    }
                }
            }
        }
    }
}

/// Fills bytes with a repeated value.
pub(crate) fn fill_tile(value: &Scalar, out: &mut [u8]) {
    dispatch!(value.dtype(), T => cast_slice_mut::<u8, T>(out).fill(value.get()))
}

/// Sets every element to one value.
///
/// # Panics
/// Where the types differ.
pub fn fill(out: &mut ViewMut<'_>, value: &Scalar) {
    assert_eq!(out.dtype(), value.dtype(), "a fill keeps the type");
    let mut writer = Writer::new(out);
    let len = writer.len();
    if writer.is_direct() {
        return fill_tile(value, writer.tile(0, len).expect("a direct writer lends its memory"));
    }
    let mut scratch: TileBytes = [0; TILE];
    let tile = &mut cast_slice_mut(&mut scratch)[..len.min(TILE) * value.dtype().size_bytes()];
    fill_tile(value, tile);
    for (start, count) in tiles(len) {
        writer.store(start, &tile[..count * value.dtype().size_bytes()]);
    }
}

/// The index along one dimension of size `size`, for the elements `start..`; `inner` elements separate two
/// steps along that dimension.
pub(crate) fn iota_tile(dtype: DType, size: usize, inner: usize, start: usize, out: &mut [u8]) {
    dispatch!(dtype, T => {
        let out: &mut [T] = cast_slice_mut(out);
        let mut index = (start / inner) % size;
        let mut run = inner - start % inner;
        for value in out {
            *value = (index as u64).cast();
            run -= 1;
            if run == 0 {
                run = inner;
                index += 1;
                if index == size {
                    index = 0;
                }
            }
        }
    })
}

/// `out[.., i, ..] = i`, the index along `dim`, converted as [`crate::convert()`] does.
///
/// # Panics
/// Where there is no such dimension.
pub fn iota(dim: usize, out: &mut ViewMut<'_>) {
    let (dtype, size) = (out.dtype(), out.shape()[dim]);
    let inner = out.shape()[dim + 1..].iter().product();
    let mut writer = Writer::new(out);
    let mut scratch: TileBytes = [0; TILE];
    for (start, count) in tiles(writer.len()) {
        let tile = &mut cast_slice_mut(&mut scratch)[..count * dtype.size_bytes()];
        iota_tile(dtype, size, inner, start, tile);
        writer.store(start, tile);
    }
}
