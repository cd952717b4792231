//! The memory of one rank: one aligned block (the arena), in which every buffer of its program has
//! a fixed offset.
//!
//! # Why it is sound
//!
//! Every access checks the offset against the size of the block, so nothing outside it is accessed.
//! The static checks of the program settle before the first step *when* each buffer may be
//! accessed: buffers with overlapping lifetimes do not overlap (except an elementwise output in the
//! exact place of an input, which the kernels allow), and from the start of a collective to its
//! wait only the collective accesses its buffers. One worker at a time runs a rank, under a lock;
//! the threads that help it write different elements of an instruction's results, each with its own
//! scratch memory, and finish before the next instruction. Other ranks access the memory only
//! through the transport, between that start and that wait. The block outlives the transport's use
//! of it: a step ends after every collective was waited for, or with `Transport::fail`, after which
//! no buffer is accessed.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use partita_base::{DType, Diagnostic, Result};
use partita_comm::{CollectiveId, Transport};
use partita_kernels::{View, ViewMut};

use crate::executor::cores;

/// Alignment of every arena, in bytes.
const ALIGNMENT: usize = partita_program::ALIGNMENT_BYTES;

/// A range of bytes of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub offset: usize,
    pub bytes: usize,
}

/// A strided tensor at a fixed offset of an arena.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// The offset of element 0.
    pub offset_bytes: usize,
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// In elements.
    pub strides: Vec<isize>,
    /// The index of the memory's move that is added to the offset, for work that is done block by
    /// block.
    pub moved: Option<usize>,
}

impl Place {
    /// A row-major tensor.
    pub fn dense(offset_bytes: usize, dtype: DType, shape: &[usize]) -> Place {
        let strides = dense_strides(shape);
        Place { offset_bytes, dtype, shape: shape.to_vec(), strides, moved: None }
    }

    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether elements are contiguous in row-major order.
    pub fn is_dense(&self) -> bool {
        let dense = dense_strides(&self.shape);
        let same = |d: usize| self.shape[d] == 1 || self.strides[d] == dense[d];
        self.element_count() == 0 || (0..self.shape.len()).all(same)
    }

    /// The bytes from the first to the last element, both included.
    pub fn span(&self) -> Span {
        let size = self.dtype.size_bytes();
        if self.element_count() == 0 {
            return Span { offset: self.offset_bytes, bytes: 0 };
        }
        let (mut low, mut high) = (0isize, 0isize);
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = (extent as isize - 1) * stride;
            if reach < 0 { low += reach } else { high += reach }
        }
        let offset =
            self.offset_bytes.checked_add_signed(low * size as isize).expect("a view starts in its arena");
        Span { offset, bytes: ((high - low) as usize + 1) * size }
    }

    /// A range of one dimension.
    pub fn sliced(&self, dim: usize, range: std::ops::Range<usize>) -> Place {
        let step = self.strides[dim] * self.dtype.size_bytes() as isize;
        let mut part = self.clone();
        part.shape[dim] = range.len();
        if part.element_count() > 0 {
            let offset = self.offset_bytes.checked_add_signed(range.start as isize * step);
            part.offset_bytes = offset.expect("a slice lies in its arena");
        }
        part
    }

    /// The same elements with permuted dimensions.
    pub fn permuted(&self, order: &[usize]) -> Place {
        Place {
            shape: order.iter().map(|&d| self.shape[d]).collect(),
            strides: order.iter().map(|&d| self.strides[d]).collect(),
            ..self.clone()
        }
    }
}

/// Row-major strides, in elements.
pub(crate) fn dense_strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for d in (1..shape.len()).rev() {
        strides[d - 1] = strides[d] * shape[d] as isize;
    }
    strides
}

/// One rank's memory, initially zero: whole pages from the system.
pub(crate) struct Arena {
    pages: MmapMut,
    base: NonNull<u8>,
}

// SAFETY: the block is owned, and the module's rules say which thread accesses what when.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// E426 if the system cannot provide this many bytes.
    pub fn new(bytes: usize) -> Result<Arena> {
        let refused = |error: std::io::Error| {
            Diagnostic::new("E426", format!("cannot allocate {bytes} bytes for a rank"))
                .found(error.to_string())
                .help("shard parameters and states over more ranks (fsdp), checkpoint layers, or shrink the batch")
        };
        let mut pages = MmapMut::map_anon(bytes.max(1)).map_err(refused)?;
        wish_for_large_pages(&pages, true);
        let base = NonNull::new(pages.as_mut_ptr()).expect("mapped memory is somewhere");
        assert!(base.as_ptr().addr().is_multiple_of(ALIGNMENT), "pages are aligned");
        Ok(Arena { pages, base })
    }

    /// Prefaults all pages on all cores, before they hold data. Faults one by one on first write
    /// take longer, and on first read (a state that starts at zero) several times as long, because
    /// the system first maps the shared zero page and must replace it later.
    ///
    /// Huge pages fault faster than the same bytes of small ones and save TLB misses later. But a
    /// virtual machine may have to wait for its host for each of them: if they turn out to be slow,
    /// the rest are small. The system may still merge small pages while steps run.
    pub fn bring_in(&mut self) {
        /// Bytes that a thread faults at a time.
        const SHARE: usize = 8 << 20;
        /// The time limit of a share: twice the time with small pages.
        const PATIENCE: Duration = Duration::from_millis(8);
        /// The number of slow shares after which huge pages are turned off; a single one may be
        /// chance.
        const SLOW: u32 = 2;
        /// The smallest page size of any machine.
        const PAGE: usize = 4096;
        let (bytes, next, slow) = (self.pages.len(), AtomicUsize::new(0), AtomicU32::new(0));
        let arena = &*self;
        let bring = |share: Span| {
            #[cfg(target_os = "linux")]
            if arena.pages.advise_range(memmap2::Advice::PopulateWrite, share.offset, share.bytes).is_ok() {
                return;
            }
            arena.memory().bytes_mut(share).iter_mut().step_by(PAGE).for_each(|byte| *byte = 0);
        };
        let work = || loop {
            let offset = next.fetch_add(SHARE, Ordering::Relaxed);
            if offset >= bytes {
                return;
            }
            let begin = Instant::now();
            bring(Span { offset, bytes: SHARE.min(bytes - offset) });
            if begin.elapsed() > PATIENCE && slow.fetch_add(1, Ordering::SeqCst) + 1 == SLOW {
                wish_for_large_pages(&arena.pages, false);
            }
        };
        std::thread::scope(|scope| {
            (1..cores().min(bytes.div_ceil(SHARE))).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        wish_for_large_pages(&self.pages, true);
    }

    pub fn memory(&self) -> Memory<'_> {
        let (base, bytes) = (self.base.as_ptr(), self.pages.len());
        Memory { base, bytes, moves: &[], rows_before: 0, arena: PhantomData }
    }

    /// The buffers of one collective, ready to be published.
    pub fn publication(&self, inputs: &[Span], outputs: &[Span]) -> Publication {
        let memory = self.memory();
        Publication {
            inputs: inputs
                .iter()
                .map(|&s| std::ptr::slice_from_raw_parts(memory.at(s).cast_const(), s.bytes))
                .collect(),
            outputs: outputs
                .iter()
                .map(|&s| std::ptr::slice_from_raw_parts_mut(memory.at(s), s.bytes))
                .collect(),
        }
    }
}

/// Advises the system to use huge pages, or not to. It is only a hint: all else works without it.
fn wish_for_large_pages(pages: &MmapMut, wish: bool) {
    #[cfg(target_os = "linux")]
    let _ = pages.advise(if wish { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage });
    #[cfg(not(target_os = "linux"))]
    let _ = (pages, wish);
}

/// The buffers that a rank publishes for a collective.
pub(crate) struct Publication {
    inputs: Vec<*const [u8]>,
    outputs: Vec<*mut [u8]>,
}

// SAFETY: the pointers are only passed to the transport, which is thread-safe.
unsafe impl Send for Publication {}
// SAFETY: as above; through a shared reference nothing here can be written except the memory behind
// the pointers.
unsafe impl Sync for Publication {}

impl Publication {
    /// [`Transport::start`] with these buffers. Never blocks.
    pub fn start(&self, transport: &dyn Transport, collective: CollectiveId, rank: usize) {
        // SAFETY: the buffers are in the rank's arena, which outlives the transport's use of it;
        // the checked program accesses none of them before the wait, and writes inputs before the
        // start.
        unsafe { transport.start(collective, rank, &self.inputs, &self.outputs) }
    }
}

/// Access to an arena for the threads that run its rank.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    base: *mut u8,
    bytes: usize,
    /// Bytes added to the offset of moved places.
    moves: &'a [isize],
    /// Rows of a part that precede the current block.
    pub rows_before: usize,
    arena: PhantomData<&'a Arena>,
}

impl<'a> Memory<'a> {
    /// The memory as seen from another block of a kernel's work; `rows_before` rows of the part
    /// precede it.
    pub fn moved(self, moves: &'a [isize], rows_before: usize) -> Memory<'a> {
        Memory { moves, rows_before, ..self }
    }

    /// The offset of element 0 of a place, in bytes.
    pub fn offset(&self, place: &Place) -> usize {
        self.along(place, place.offset_bytes)
    }

    /// An offset within a place, with the place's move added.
    fn along(&self, place: &Place, offset: usize) -> usize {
        let moved = place.moved.map_or(0, |number| self.moves[number]);
        offset.checked_add_signed(moved).expect("a block lies in its arena")
    }

    /// The bytes that a place spans.
    pub fn span(&self, place: &Place) -> Span {
        let span = place.span();
        Span { offset: self.along(place, span.offset), ..span }
    }

    fn at(&self, span: Span) -> *mut u8 {
        let end = span.offset.checked_add(span.bytes).expect("a span ends in memory");
        assert!(end <= self.bytes, "bytes {}..{end} of an arena of {}", span.offset, self.bytes);
        self.base.wrapping_add(span.offset)
    }

    fn check(&self, place: &Place) -> *mut u8 {
        let (span, offset) = (self.span(place), self.offset(place));
        assert!(span.bytes == 0 || offset.is_multiple_of(place.dtype.size_bytes()), "alignment of a view");
        self.at(span);
        self.base.wrapping_add(offset)
    }

    /// A tensor for reading.
    pub fn view(&self, place: &Place) -> View<'a> {
        let pointer = self.check(place);
        // SAFETY: every element is in the arena, aligned; by the module's rules no thread writes it
        // meanwhile.
        unsafe { View::from_raw(pointer, place.dtype, &place.shape, &place.strides) }
    }

    /// A tensor for reading that begins at `place`, with other dimensions. Panics if they leave the
    /// bytes that `place` spans.
    pub fn view_with(&self, place: &Place, shape: &[usize], strides: &[isize]) -> View<'a> {
        let span = self.span(place);
        let size = place.dtype.size_bytes();
        let offset = (self.offset(place) - span.offset) / size;
        View::strided(self.bytes(span), offset, place.dtype, shape, strides)
    }

    /// A tensor for writing.
    pub fn view_mut(&self, place: &Place) -> ViewMut<'a> {
        let pointer = self.check(place);
        // SAFETY: every element is in the arena, aligned; by the module's rules no other thread
        // accesses it.
        unsafe { ViewMut::from_raw(pointer, place.dtype, &place.shape, &place.strides) }
    }

    /// Bytes for reading.
    pub fn bytes(&self, span: Span) -> &'a [u8] {
        let pointer = self.at(span);
        // SAFETY: inside the arena, whose bytes are always initialised; no thread writes them
        // meanwhile.
        unsafe { std::slice::from_raw_parts(pointer, span.bytes) }
    }

    /// Bytes for writing, by a thread that runs the rank.
    // The lifetime is the arena's; a rule of the module ensures that no two such slices overlap
    // while in use.
    #[allow(clippy::mut_from_ref)]
    pub fn bytes_mut(&self, span: Span) -> &'a mut [u8] {
        let pointer = self.at(span);
        // SAFETY: inside the arena; by the module's rules no other thread accesses them meanwhile.
        unsafe { std::slice::from_raw_parts_mut(pointer, span.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_brought_in_is_zero_and_can_be_written() {
        let bytes = (20 << 20) + 5;
        let mut arena = Arena::new(bytes).unwrap();
        arena.bring_in();
        let memory = arena.memory().bytes_mut(Span { offset: 0, bytes });
        assert!(memory.iter().all(|&byte| byte == 0));
        memory.fill(1);
    }
}
