//! Strided memory as a sequence of tiles: the only place where elementwise and row kernels touch pointers.
//!
//! Elements are numbered in row-major order. A [`Reader`] gives the elements `start..start + count`: borrowed
//! from memory if they are contiguous, otherwise gathered into a scratch tile. A [`Writer`] does the reverse.

use bytemuck::Pod;
use partita_base::DType;
use std::marker::PhantomData;

use crate::element::{Element, Float};
use crate::native::prefetch::{Ahead, BLOCK_BYTES};
use crate::native::vector::LANES;
use crate::stream::{STREAM_ALIGNMENT, STREAM_BYTES, Streaming};
use crate::view::{MAX_RANK, View, ViewMut};

/// Elements per tile: small enough for a few tiles to stay in L1, large enough to hide the fixed cost of a
/// tile.
pub const TILE: usize = 1024;
/// Shorter rows get no tiles of their own, because the fixed cost of a tile exceeds that of copying.
pub(crate) const SHORTEST_TILE: usize = TILE / 4;

/// Scratch for one tile of any type.
pub(crate) type TileBytes = [u64; TILE];

/// Shape and strides with dimensions merged where possible, so that a traversal has few and long runs.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [isize; MAX_RANK],
    pub(crate) len: usize,
}

impl Layout {
    pub(crate) fn new(shape: &[usize], strides: &[isize]) -> Self {
        let len = shape.iter().product();
        let mut layout = Layout { rank: 0, shape: [1; MAX_RANK], strides: [0; MAX_RANK], len };
        for (&size, &stride) in shape.iter().zip(strides) {
            if size == 1 {
                continue;
            }
            let last = layout.rank.wrapping_sub(1);
            if layout.rank > 0 && layout.strides[last] == stride.wrapping_mul(size as isize) {
                layout.shape[last] *= size;
                layout.strides[last] = stride;
            } else {
                layout.shape[layout.rank] = size;
                layout.strides[layout.rank] = stride;
                layout.rank += 1;
            }
        }
        layout
    }

    /// Whether the elements are contiguous.
    pub(crate) fn is_contiguous(&self) -> bool {
        self.len <= 1 || (self.rank == 1 && self.strides[0] == 1)
    }

    /// See [`Reader::ahead`]; for elements of `size` bytes.
    fn ahead(&self, pointer: *const u8, size: usize, start: usize, reread: usize) -> Ahead {
        let further = BLOCK_BYTES.max(reread * size);
        if self.is_contiguous() && start * size + further < self.len * size {
            Ahead::new(pointer.wrapping_add(start * size), LANES * size, further)
        } else {
            Ahead::nothing()
        }
    }

    /// Whether all indices refer to one element.
    pub(crate) fn is_uniform(&self) -> bool {
        self.len == 1 || (self.rank == 1 && self.strides[0] == 0)
    }

    /// The length of rows of contiguous or equal elements; `None` if the innermost stride is neither 1 nor 0.
    fn row(&self) -> Option<usize> {
        let inner = self.rank.checked_sub(1)?;
        (self.strides[inner] == 1 || self.strides[inner] == 0).then_some(self.shape[inner])
    }

    /// The offset of element `start` and the stride from there, if it holds for `count` elements.
    fn run(&self, start: usize, count: usize) -> Option<(isize, isize)> {
        let inner = self.rank.checked_sub(1)?;
        let (mut rest, mut offset) = (start, 0);
        // The outermost dimension needs no division.
        for d in (1..self.rank).rev() {
            let index = rest % self.shape[d];
            if d == inner && index + count > self.shape[d] {
                return None;
            }
            offset += index as isize * self.strides[d];
            rest /= self.shape[d];
        }
        let inside = if inner == 0 { rest + count <= self.shape[0] } else { rest < self.shape[0] };
        inside.then_some((offset + rest as isize * self.strides[0], self.strides[inner]))
    }

    /// Visits elements `start..start + count` as runs: `(memory offset in elements, stride, run length)`.
    #[inline(always)]
    fn runs(&self, start: usize, count: usize, mut visit: impl FnMut(isize, isize, usize)) {
        if count == 0 {
            return;
        }
        if self.rank == 0 {
            return visit(0, 1, 1);
        }
        let inner = self.rank - 1;
        let mut index = [0usize; MAX_RANK];
        let mut offset = 0isize;
        let mut rest = start;
        for d in (0..self.rank).rev() {
            (rest, index[d]) = (rest / self.shape[d], rest % self.shape[d]);
            offset += index[d] as isize * self.strides[d];
        }
        let mut left = count;
        loop {
            let run = left.min(self.shape[inner] - index[inner]);
            visit(offset, self.strides[inner], run);
            left -= run;
            if left == 0 {
                return;
            }
            // The run ended a row: return to its start, and advance along the outer dimensions.
            offset -= index[inner] as isize * self.strides[inner];
            index[inner] = 0;
            let mut d = inner;
            while d > 0 {
                d -= 1;
                index[d] += 1;
                offset += self.strides[d];
                if index[d] < self.shape[d] {
                    break;
                }
                offset -= index[d] as isize * self.strides[d];
                index[d] = 0;
            }
        }
    }
}

/// Whether two ranges of addresses share a byte.
pub(crate) fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// The location of some elements of a view; a raw pointer, because an output may share the memory.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// Contiguous from here on.
    Together(*const u8),
    /// All are this element.
    Same(*const u8),
    /// They must be copied before they are read.
    Scattered,
}

/// Gives tiles of a view.
pub(crate) struct Reader<'a> {
    pointer: *const u8,
    size: usize,
    layout: Layout,
    /// Tiles are copied even if memory is contiguous, because an output will overwrite it.
    detached: bool,
    lifetime: PhantomData<&'a [u8]>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(view: &View<'a>) -> Self {
        Reader {
            pointer: view.as_ptr(),
            size: view.dtype().size_bytes(),
            layout: Layout::new(view.shape(), view.strides()),
            detached: false,
            lifetime: PhantomData,
        }
    }

    /// A reader that does not borrow memory that `out` overlaps.
    pub(crate) fn apart_from(view: &View<'a>, out: &ViewMut<'_>) -> Self {
        let detached = overlap(view.address_range(), out.address_range());
        Reader { detached, ..Reader::new(view) }
    }

    /// Forbids borrowing memory that `out` overlaps.
    pub(crate) fn keep_apart_from(&mut self, view: &View<'a>, out: &ViewMut<'_>) {
        self.detached |= overlap(view.address_range(), out.address_range());
    }

    /// Whether tiles are borrowed without copying.
    pub(crate) fn is_direct(&self) -> bool {
        self.layout.is_contiguous() && !self.detached
    }

    /// All bytes, if they are contiguous and may be borrowed.
    pub(crate) fn whole(&self) -> Option<&'a [u8]> {
        if self.layout.len == 0 {
            return Some(bytemuck::cast_slice::<u64, u8>(&[]));
        }
        // SAFETY: the view guarantees all elements, contiguous, as long as it lives. No output overlaps them:
        // the reader is not detached.
        self.is_direct()
            .then(|| unsafe { std::slice::from_raw_parts(self.pointer, self.layout.len * self.size) })
    }

    /// Whether all elements are one.
    pub(crate) fn is_uniform(&self) -> bool {
        self.layout.is_uniform()
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.len
    }

    /// The tile length, at most `most`, at which every tile is contiguous or one repeated element; `None` if
    /// that is unknown or has no advantage.
    pub(crate) fn even_tile(&self, most: usize) -> Option<usize> {
        if self.is_direct() || self.is_uniform() || self.detached {
            return None;
        }
        let row = self.layout.row().filter(|&row| row >= SHORTEST_TILE)?;
        let tile = row / row.div_ceil(most);
        (row.is_multiple_of(tile) && tile.is_multiple_of(LANES)).then_some(tile)
    }

    /// The location of elements `start..start + count`.
    #[inline]
    pub(crate) fn find(&self, start: usize, count: usize) -> Found {
        if self.detached {
            return Found::Scattered;
        }
        let (offset, stride) = match self.layout.run(start, count) {
            Some(run) => run,
            None if self.is_direct() && start + count <= self.layout.len => (start as isize, 1),
            None => return Found::Scattered,
        };
        let pointer = self.pointer.wrapping_offset(offset * self.size as isize);
        match stride {
            1 => Found::Together(pointer),
            0 => Found::Same(pointer),
            _ => Found::Scattered,
        }
    }

    /// The stride between rows of `count` elements, in elements; `None` if it is not constant, or rows must
    /// be copied.
    pub(crate) fn row_step(&self, count: usize) -> Option<isize> {
        let Layout { rank, shape, strides, .. } = &self.layout;
        match rank {
            _ if self.detached => None,
            _ if self.is_direct() => Some(count as isize),
            _ if self.is_uniform() => Some(0),
            2 if shape[1] == count && (strides[1] == 0 || strides[1] == 1) => Some(strides[0]),
            _ => None,
        }
    }

    /// The bytes of elements `start..start + count` in memory, if they are contiguous and may be borrowed.
    #[inline]
    pub(crate) fn lent(&self, start: usize, count: usize) -> Option<&[u8]> {
        match self.find(start, count) {
            // SAFETY: the view guarantees elements of its layout; these are `count` contiguous elements of
            // one row. No output overlaps them: the reader is not detached.
            Found::Together(pointer) => unsafe {
                Some(std::slice::from_raw_parts(pointer, count * self.size))
            },
            Found::Same(_) | Found::Scattered => None,
        }
    }

    /// Prefetch of what is read one block after the elements from `start` on, in chunks of [`LANES`]; or
    /// `reread` elements after them if that is further, because those elements are read several times first.
    /// Nothing if elements are not contiguous or there are none.
    pub(crate) fn ahead(&self, start: usize, reread: usize) -> Ahead {
        self.layout.ahead(self.pointer, self.size, start, reread)
    }

    /// The bytes of elements `start..start + count`, in memory or in `scratch`.
    pub(crate) fn tile<'b>(&'b self, start: usize, count: usize, scratch: &'b mut [u8]) -> &'b [u8] {
        assert!(start + count <= self.layout.len, "a tile lies inside its view");
        if count == 0 {
            return bytemuck::cast_slice::<u64, u8>(&[]);
        }
        if self.is_direct() {
            // SAFETY: the view guarantees its `len` elements, contiguous from `pointer`, and the tile is
            // inside. Nothing writes there while the slice lives: an output that overlaps this memory makes
            // the reader detached.
            return unsafe {
                std::slice::from_raw_parts(self.pointer.add(start * self.size), count * self.size)
            };
        }
        let scratch = &mut scratch[..count * self.size];
        match self.size {
            1 => self.gather::<u8>(start, scratch),
            2 => self.gather::<u16>(start, scratch),
            4 => self.gather::<u32>(start, scratch),
            _ => self.gather::<u64>(start, scratch),
        }
        scratch
    }

    fn gather<W: Pod>(&self, start: usize, scratch: &mut [u8]) {
        let scratch: &mut [W] = bytemuck::cast_slice_mut(scratch);
        let pointer = self.pointer.cast::<W>();
        let mut done = 0;
        self.layout.runs(start, scratch.len(), |offset, stride, run| {
            let into = &mut scratch[done..done + run];
            // SAFETY: `runs` yields offsets of elements of the view, which guarantees them and their
            // alignment; W has the element's size and any bits are a W. `into` is scratch memory, disjoint
            // from the view.
            unsafe {
                let from = pointer.offset(offset);
                match stride {
                    1 => std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), run),
                    0 => into.fill(from.read()),
                    _ => {
                        for (i, value) in into.iter_mut().enumerate() {
                            *value = from.offset(i as isize * stride).read();
                        }
                    }
                }
            }
            done += run;
        });
    }

    /// [`Reader::tile`] for elements of a Rust type, which must be the view's.
    #[inline]
    pub(crate) fn typed<'b, T: Element>(
        &'b self,
        start: usize,
        count: usize,
        scratch: &'b mut TileBytes,
    ) -> &'b [T] {
        debug_assert_eq!(size_of::<T>(), self.size);
        bytemuck::cast_slice(self.tile(start, count, bytemuck::cast_slice_mut(scratch)))
    }

    /// [`Reader::typed`], widened to the compute type.
    #[inline]
    pub(crate) fn widened<'b, T: Element>(
        &'b self,
        start: usize,
        count: usize,
        scratch: &'b mut Scratch,
    ) -> &'b [T::Compute] {
        let tile = self.typed::<T>(start, count, &mut scratch.raw);
        if T::DTYPE == T::Compute::DTYPE {
            return bytemuck::cast_slice(tile);
        }
        let wide: &mut [T::Compute] = &mut bytemuck::cast_slice_mut(&mut scratch.wide)[..count];
        for (wide, &x) in wide.iter_mut().zip(tile) {
            *wide = x.load();
        }
        wide
    }
}

/// Gives complete rows in the compute type: borrowed if memory holds them so, otherwise copied one at a time.
pub(crate) struct Rows<'a, T: Float> {
    /// `None` for a row of one repeated value, which is in `copied`.
    reader: Option<Reader<'a>>,
    count: usize,
    /// All rows, if memory holds them in the compute type.
    lent: Option<&'a [T::Compute]>,
    copied: Vec<T::Compute>,
    /// Scratch for a tile that is not contiguous.
    scratch: Vec<u64>,
}

impl<'a, T: Float> Rows<'a, T> {
    /// The rows of a view, along its last dimension. Memory that `out` overlaps is not borrowed.
    pub(crate) fn apart_from(view: &View<'a>, out: &ViewMut<'_>) -> Self {
        let count = *view.shape().last().expect("rows have a dimension");
        let reader = Reader::apart_from(view, out);
        let lent = reader.whole().filter(|_| T::DTYPE == T::Compute::DTYPE).map(bytemuck::cast_slice);
        Rows { reader: Some(reader), count, lent, copied: Vec::new(), scratch: Vec::new() }
    }

    /// A row of one repeated value.
    pub(crate) fn of(value: T::Compute, count: usize) -> Self {
        Rows { reader: None, count, lent: None, copied: vec![value; count], scratch: Vec::new() }
    }

    /// See [`Reader::ahead`]: prefetch of the next row, because a row is read several times.
    pub(crate) fn ahead(&self, row: usize) -> Ahead {
        let reader = self.reader.as_ref();
        reader.map_or(Ahead::nothing(), |reader| reader.ahead(row * self.count, self.count))
    }

    #[inline]
    pub(crate) fn get(&mut self, row: usize) -> &[T::Compute] {
        if self.lent.is_none() {
            self.copy(row);
        }
        self.again(row)
    }

    #[inline(never)]
    fn copy(&mut self, row: usize) {
        let Some(reader) = &self.reader else { return };
        if !reader.is_direct() {
            self.scratch.resize(TILE, 0);
        }
        self.copied.clear();
        for (at, some) in tiles(self.count) {
            let scratch = bytemuck::cast_slice_mut(&mut self.scratch);
            let tile = reader.tile(row * self.count + at, some, scratch);
            self.copied.extend(bytemuck::cast_slice::<u8, T>(tile).iter().map(|x| x.load()));
        }
    }

    /// The row that [`Rows::get`] returned last.
    #[inline]
    pub(crate) fn again(&self, row: usize) -> &[T::Compute] {
        self.lent.map_or(&self.copied, |lent| &lent[row * self.count..][..self.count])
    }
}

/// Writes tiles of a view.
pub(crate) struct Writer<'a> {
    pointer: *mut u8,
    size: usize,
    layout: Layout,
    /// Held if the tiles of [`Writer::widened`] are written with non-temporal stores.
    streaming: Option<Streaming>,
    lifetime: PhantomData<&'a mut [u8]>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(view: &'a mut ViewMut<'_>) -> Self {
        Writer {
            pointer: view.as_mut_ptr(),
            size: view.dtype().size_bytes(),
            layout: Layout::new(view.shape(), view.strides()),
            streaming: None,
            lifetime: PhantomData,
        }
    }

    /// A writer that uses non-temporal stores if the view is so long that it would be evicted before it is
    /// read, and no input shares its memory (the caches would already hold it).
    pub(crate) fn streaming(view: &'a mut ViewMut<'_>, inputs: &[&View<'_>]) -> Self {
        let is_apart = |input: &&View<'_>| !overlap(input.address_range(), view.address_range());
        let may_stream = view.dtype() == DType::F32 && inputs.iter().all(is_apart);
        let writer = Writer::new(view);
        let streams = may_stream
            && writer.layout.len * writer.size >= STREAM_BYTES
            && writer.is_direct()
            && writer.pointer.addr().is_multiple_of(STREAM_ALIGNMENT);
        Writer { streaming: streams.then_some(Streaming), ..writer }
    }

    /// Whether tiles are written with non-temporal stores: then prefetching the destination has no use.
    pub(crate) fn streams(&self) -> bool {
        self.streaming.is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.len
    }

    /// [`Reader::ahead`] for the destination: a store to memory in cache does not stall. Nothing with
    /// non-temporal stores.
    pub(crate) fn ahead(&self, start: usize, reread: usize) -> Ahead {
        if self.streams() {
            Ahead::nothing()
        } else {
            self.layout.ahead(self.pointer, self.size, start, reread)
        }
    }

    /// Whether tiles can be written in place.
    pub(crate) fn is_direct(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The address of element `start`; all later elements follow contiguously.
    pub(crate) fn pointer_at(&mut self, start: usize) -> *mut u8 {
        debug_assert!(self.is_direct());
        self.pointer.wrapping_add(start * self.size)
    }

    /// The memory of elements `start..start + count`, if they are contiguous.
    pub(crate) fn tile(&mut self, start: usize, count: usize) -> Option<&mut [u8]> {
        assert!(start + count <= self.layout.len, "a tile lies inside its view");
        if count == 0 {
            return Some(bytemuck::cast_slice_mut::<u64, u8>(&mut []));
        }
        if !self.is_direct() {
            return None;
        }
        // SAFETY: the view guarantees its `len` elements, contiguous from `pointer`; the tile is inside; the
        // borrow of `self` keeps it unique among this writer's tiles, and readers of the same memory are
        // detached.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.pointer.add(start * self.size), count * self.size)
        })
    }

    /// Writes `values` from element `start` on.
    pub(crate) fn store(&mut self, start: usize, values: &[u8]) {
        assert!(start + values.len() / self.size <= self.layout.len, "a tile lies inside its view");
        match self.size {
            1 => self.scatter::<u8>(start, values),
            2 => self.scatter::<u16>(start, values),
            4 => self.scatter::<u32>(start, values),
            _ => self.scatter::<u64>(start, values),
        }
    }

    fn scatter<W: Pod>(&mut self, start: usize, values: &[u8]) {
        let values: &[W] = bytemuck::cast_slice(values);
        let pointer = self.pointer.cast::<W>();
        let mut done = 0;
        self.layout.runs(start, values.len(), |offset, stride, run| {
            let from = &values[done..done + run];
            // SAFETY: `runs` yields offsets of elements of the view, which guarantees them and their
            // alignment; W has the element's size. `values` is scratch memory, disjoint from the view.
            unsafe {
                let into = pointer.offset(offset);
                if stride == 1 {
                    std::ptr::copy_nonoverlapping(from.as_ptr(), into, run);
                } else {
                    for (i, &value) in from.iter().enumerate() {
                        into.offset(i as isize * stride).write(value);
                    }
                }
            }
            done += run;
        });
    }

    /// Lets `make` fill a tile in the compute type, and writes it rounded. With non-temporal stores, `make`
    /// receives the [`Streaming`] to [`put`](crate::stream::put) its values.
    #[inline]
    pub(crate) fn widened<T: Float>(
        &mut self,
        start: usize,
        count: usize,
        scratch: &mut Scratch,
        make: impl FnOnce(&mut [T::Compute], Option<&Streaming>),
    ) {
        if T::DTYPE == T::Compute::DTYPE && self.is_direct() {
            let streaming = self.streaming.take();
            let tile = self.tile(start, count).expect("a direct writer lends its memory");
            make(bytemuck::cast_slice_mut(tile), streaming.as_ref());
            self.streaming = streaming;
            return;
        }
        let wide: &mut [T::Compute] = &mut bytemuck::cast_slice_mut(&mut scratch.wide)[..count];
        make(wide, None);
        let raw: &mut [T] = &mut bytemuck::cast_slice_mut(&mut scratch.raw)[..count];
        for (raw, &x) in raw.iter_mut().zip(wide.iter()) {
            *raw = T::store(x);
        }
        self.store(start, bytemuck::cast_slice(raw));
    }
}

/// Scratch for one tile, as stored and in the compute type.
pub(crate) struct Scratch {
    raw: TileBytes,
    wide: TileBytes,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Scratch { raw: [0; TILE], wide: [0; TILE] }
    }

    /// A tile of a compute type with unspecified values.
    pub(crate) fn wide<C: Pod>(&mut self, count: usize) -> &mut [C] {
        &mut bytemuck::cast_slice_mut(&mut self.wide)[..count]
    }
}

/// Splits `0..len` into tiles: `(start, count)`.
pub(crate) fn tiles(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(TILE).map(move |start| (start, TILE.min(len - start)))
}

/// Applies `f` to corresponding bytes of all inputs and the output: in one call if all are contiguous,
/// otherwise tile by tile.
pub(crate) fn map_tiles<const N: usize>(
    inputs: [&View<'_>; N],
    out: &mut ViewMut<'_>,
    f: impl Fn([&[u8]; N], &mut [u8]),
) {
    for input in inputs {
        assert_eq!(input.shape(), out.shape(), "inputs and output of an elementwise kernel have one shape");
    }
    let readers = inputs.map(|view| Reader::apart_from(view, out));
    let mut writer = Writer::new(out);
    let len = writer.len();
    if len == 0 {
        return;
    }
    if writer.is_direct() && readers.iter().all(Reader::is_direct) {
        let tiles = std::array::from_fn(|i| readers[i].tile(0, len, &mut []));
        f(tiles, writer.tile(0, len).expect("a direct writer lends its memory"));
        return;
    }
    map_gathered(&readers, &mut writer, f);
}

#[inline(never)]
fn map_gathered<const N: usize>(
    readers: &[Reader<'_>; N],
    writer: &mut Writer<'_>,
    f: impl Fn([&[u8]; N], &mut [u8]),
) {
    let mut scratch: [TileBytes; N] = [[0; TILE]; N];
    let mut result: TileBytes = [0; TILE];
    let len = writer.len();
    for (i, reader) in readers.iter().enumerate() {
        if reader.is_uniform() && !reader.is_direct() {
            reader.tile(0, len.min(TILE), bytemuck::cast_slice_mut(&mut scratch[i]));
        }
    }
    for (start, count) in tiles(len) {
        let mut pieces = scratch.iter_mut();
        let inputs = std::array::from_fn(|i| {
            let reader = &readers[i];
            let piece: &mut [u8] = bytemuck::cast_slice_mut(pieces.next().expect("one for each reader"));
            if reader.is_uniform() && !reader.is_direct() {
                // Filled above, once for all tiles.
                return &piece[..count * reader.size];
            }
            reader.tile(start, count, piece)
        });
        let size = writer.size;
        if let Some(tile) = writer.tile(start, count) {
            f(inputs, tile);
        } else {
            let tile = &mut bytemuck::cast_slice_mut(&mut result)[..count * size];
            f(inputs, tile);
            writer.store(start, tile);
        }
    }
}
