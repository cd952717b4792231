//! Copies of one N-dimensional box between two dense buffers, and of bytes with non-temporal
//! stores.

use std::ops::Range;

use crate::fold::spread;

/// A box copy in its simplest form: contiguous runs of bytes under as few strided loops as
/// possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StridedCopy {
    source_offset: usize,
    target_offset: usize,
    run_bytes: usize,
    /// Outermost first. All in bytes.
    loops: Vec<Loop>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Loop {
    count: usize,
    source_stride: usize,
    target_stride: usize,
}

impl StridedCopy {
    /// The copy of a box of `extents` elements at `*_start` in dense row-major buffers of
    /// `*_shape`. `None` for an empty box. The box must be inside both shapes.
    pub(crate) fn of_box(
        element_bytes: usize,
        source_shape: &[usize],
        source_start: &[usize],
        target_shape: &[usize],
        target_start: &[usize],
        extents: &[usize],
    ) -> Option<Self> {
        if element_bytes == 0 || extents.contains(&0) {
            return None;
        }
        let mut copy =
            StridedCopy { source_offset: 0, target_offset: 0, run_bytes: element_bytes, loops: Vec::new() };
        let (mut source_stride, mut target_stride) = (element_bytes, element_bytes);
        // From the innermost dimension outwards: a dimension whose stride continues the run or loop
        // below it, on both sides, is merged with it; otherwise it becomes a loop.
        for d in (0..extents.len()).rev() {
            copy.source_offset += source_start[d] * source_stride;
            copy.target_offset += target_start[d] * target_stride;
            let count = extents[d];
            match copy.loops.last_mut() {
                _ if count == 1 => {}
                None if source_stride == copy.run_bytes && target_stride == copy.run_bytes => {
                    copy.run_bytes *= count;
                }
                Some(inner)
                    if source_stride == inner.source_stride * inner.count
                        && target_stride == inner.target_stride * inner.count =>
                {
                    inner.count *= count;
                }
                _ => copy.loops.push(Loop { count, source_stride, target_stride }),
            }
            source_stride *= source_shape[d];
            target_stride *= target_shape[d];
        }
        copy.loops.reverse();
        Some(copy)
    }

    /// Bytes that are copied.
    pub(crate) fn bytes(&self) -> usize {
        self.loops.iter().map(|l| l.count).product::<usize>() * self.run_bytes
    }

    /// The bytes of the source that are read, with gaps between them of less than `gap` bytes.
    pub(crate) fn source_ranges(&self, gap: usize) -> Vec<Range<usize>> {
        let mut read = self.run_bytes;
        let mut starts = vec![self.source_offset];
        for Loop { count, source_stride, .. } in self.loops.iter().rev() {
            if starts.len() == 1 && *source_stride < read + gap {
                read = read.max((count - 1) * source_stride + read);
                continue;
            }
            let turns = (0..*count).map(|turn| turn * source_stride);
            starts = turns.flat_map(|by| starts.iter().map(move |start| start + by)).collect();
        }
        starts.into_iter().map(|start| start..start + read).collect()
    }

    /// The same copy in parts of at most `most` bytes (more only where one element is larger than that).
    pub(crate) fn split(self, most: usize) -> Vec<StridedCopy> {
        if self.bytes() <= most {
            return vec![self];
        }
        let Some(outer) = self.loops.first() else {
            let part = |start: usize| StridedCopy {
                source_offset: self.source_offset + start,
                target_offset: self.target_offset + start,
                run_bytes: most.min(self.run_bytes - start),
                loops: Vec::new(),
            };
            return (0..self.run_bytes).step_by(most).map(part).collect();
        };
        let step = (most * outer.count / self.bytes()).max(1);
        let part = |start: usize| {
            let mut part = self.clone();
            part.source_offset += start * outer.source_stride;
            part.target_offset += start * outer.target_stride;
            part.loops[0].count = step.min(outer.count - start);
            if step == 1 {
                part.loops.remove(0);
            }
            part.split(most)
        };
        (0..outer.count).step_by(step).flat_map(part).collect()
    }

    /// Copies to every target; with non-temporal stores if `streams`.
    ///
    /// # Safety
    /// The box must be inside all buffers; they do not overlap; no other thread writes the source's
    /// box or accesses the targets' boxes meanwhile.
    pub(crate) unsafe fn run(
        &self,
        source: *const u8,
        targets: impl Iterator<Item = *mut u8> + Clone,
        streams: bool,
    ) {
        // SAFETY: the caller guarantees that offsets and strides stay within the buffers. Short
        // runs get a copy of constant length, which compiles to one load and one store instead of a
        // call.
        unsafe {
            let source = source.add(self.source_offset);
            let targets = targets.map(|target| target.add(self.target_offset));
            let n = self.run_bytes;
            if n > 8 {
                nest(&self.loops, 0, 0, &|s, t| {
                    copy_bytes(source.add(s), targets.clone().map(|target| target.add(t)), n, streams);
                });
                return;
            }
            for target in targets {
                let loops = &self.loops;
                match n {
                    1 => nest(loops, 0, 0, &|s, t| target.add(t).copy_from_nonoverlapping(source.add(s), 1)),
                    2 => nest(loops, 0, 0, &|s, t| target.add(t).copy_from_nonoverlapping(source.add(s), 2)),
                    4 => nest(loops, 0, 0, &|s, t| target.add(t).copy_from_nonoverlapping(source.add(s), 4)),
                    8 => nest(loops, 0, 0, &|s, t| target.add(t).copy_from_nonoverlapping(source.add(s), 8)),
                    n => nest(loops, 0, 0, &|s, t| target.add(t).copy_from_nonoverlapping(source.add(s), n)),
                }
            }
        }
    }
}

/// Shorter runs are not worth streaming: the partial lines at both ends go through the cache.
#[cfg(target_arch = "x86_64")]
const MIN_STREAM_BYTES: usize = 512;

/// Copies `bytes` bytes to every target, reading them once. If `streams`, whole cache lines are
/// written with non-temporal stores (no read for ownership, no cache pollution); [`finish_streams`]
/// must follow before other threads are notified.
///
/// # Safety
/// All ranges must be valid and disjoint; no other thread writes the source or accesses the targets
/// meanwhile.
pub(crate) unsafe fn copy_bytes(
    source: *const u8,
    targets: impl Iterator<Item = *mut u8> + Clone,
    bytes: usize,
    streams: bool,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if streams && bytes >= MIN_STREAM_BYTES {
            return targets.for_each(|target| stream_bytes(source, target, bytes));
        }
        let _ = streams;
        spread(source, targets, bytes);
    }
}

/// # Safety
/// See [`copy_bytes`]; at least a cache line.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_bytes(source: *const u8, target: *mut u8, bytes: usize) {
    use crate::fold::ask_ahead;
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const LINE_BYTES: usize = 64;
    let head = target.addr().wrapping_neg() % LINE_BYTES;
    let lines = (bytes - head) / LINE_BYTES;
    let tail = head + lines * LINE_BYTES;
    // SAFETY: all offsets are below `bytes`; from `head` on, the target is aligned to lines.
    unsafe {
        target.copy_from_nonoverlapping(source, head);
        for line in 0..lines {
            let from = source.add(head + line * LINE_BYTES);
            ask_ahead(from, LINE_BYTES);
            let from = from.cast::<__m128i>();
            let to = target.add(head + line * LINE_BYTES).cast::<__m128i>();
            let words = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, word) in words.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), word);
            }
        }
        target.add(tail).copy_from_nonoverlapping(source.add(tail), bytes - tail);
    }
}

/// Orders non-temporal stores before later stores (a store fence).
pub(crate) fn finish_streams() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// Calls `copy` with the offsets in the source and in a target at each loop position.
fn nest(loops: &[Loop], source: usize, target: usize, copy: &impl Fn(usize, usize)) {
    let Some((outer, inner)) = loops.split_first() else { return copy(source, target) };
    for i in 0..outer.count {
        let (source, target) = (source + i * outer.source_stride, target + i * outer.target_stride);
        if inner.is_empty() {
            copy(source, target);
        } else {
            nest(inner, source, target, copy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_rows_join_into_one_run() {
        let copy = StridedCopy::of_box(4, &[6, 5], &[2, 0], &[3, 5], &[0, 0], &[3, 5]).unwrap();
        assert_eq!((copy.run_bytes, copy.loops.len(), copy.source_offset), (60, 0, 40));
    }

    #[test]
    fn outer_dimensions_join_over_a_strided_inner_one() {
        let copy = StridedCopy::of_box(2, &[3, 4, 8], &[0, 0, 1], &[3, 4, 2], &[0; 3], &[3, 4, 2]).unwrap();
        assert_eq!((copy.run_bytes, copy.source_offset), (4, 2));
        assert_eq!(copy.loops, [Loop { count: 12, source_stride: 16, target_stride: 4 }]);
    }

    #[test]
    fn empty_boxes_copy_nothing() {
        assert_eq!(StridedCopy::of_box(4, &[0, 5], &[0, 0], &[0, 5], &[0, 0], &[0, 5]), None);
    }

    /// Bytes (source, target) that a copy moves, in order.
    fn moved(copy: &StridedCopy) -> Vec<(usize, usize)> {
        let mut starts = vec![(copy.source_offset, copy.target_offset)];
        for l in &copy.loops {
            let steps = |&(s, t): &(usize, usize)| {
                (0..l.count).map(move |i| (s + i * l.source_stride, t + i * l.target_stride))
            };
            starts = starts.iter().flat_map(steps).collect();
        }
        starts.iter().flat_map(|&(s, t)| (0..copy.run_bytes).map(move |i| (s + i, t + i))).collect()
    }

    #[test]
    fn only_wide_gaps_divide_what_is_read() {
        // Three rows of 4 bytes of 10, of two planes of 100.
        let copy = StridedCopy::of_box(1, &[2, 10, 10], &[0, 2, 3], &[2, 3, 4], &[0; 3], &[2, 3, 4]).unwrap();
        assert_eq!(copy.source_ranges(200), std::slice::from_ref(&(23..147)));
        assert_eq!(copy.source_ranges(20), [23..47, 123..147]);
        assert_eq!(copy.source_ranges(1), [23..27, 33..37, 43..47, 123..127, 133..137, 143..147]);
    }

    #[test]
    fn parts_are_small_and_move_the_same_bytes() {
        let whole = StridedCopy::of_box(2, &[5, 7, 9], &[1, 2, 3], &[4, 3, 6], &[0; 3], &[4, 3, 6]).unwrap();
        for most in [1, 5, 12, 13, 36, 40, 80, 1000] {
            let parts = whole.clone().split(most);
            assert!(parts.iter().all(|part| part.bytes() <= most), "{most}: {parts:?}");
            assert_eq!(parts.iter().flat_map(moved).collect::<Vec<_>>(), moved(&whole), "{most}");
        }
    }

    #[test]
    fn streams_copy_every_byte_and_no_other() {
        let source: Vec<u8> = (0..2000u32).map(|i| i as u8).collect();
        for (start, bytes) in [(0, 0), (3, 511), (0, 512), (1, 1024), (63, 577), (64, 1900), (17, 1983)] {
            let mut target = vec![0xee; 2000];
            // SAFETY: both have 2000 bytes.
            unsafe {
                let to = std::iter::once(target.as_mut_ptr().add(start));
                copy_bytes(source.as_ptr().add(start), to, bytes, true);
            }
            finish_streams();
            let mut expected = vec![0xee; 2000];
            expected[start..start + bytes].copy_from_slice(&source[start..start + bytes]);
            assert_eq!(target, expected, "{bytes} from {start}");
        }
    }
}
