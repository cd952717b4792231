//! Moving one N-dimensional box between two dense buffers.

/// A box copy in its simplest form: runs of contiguous bytes under as few strided loops as possible.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StridedCopy {
    source_offset: usize,
    target_offset: usize,
    run_bytes: usize,
    /// Outermost first. All in bytes.
    loops: Vec<Loop>,
}

#[derive(Debug, PartialEq, Eq)]
struct Loop {
    count: usize,
    source_stride: usize,
    target_stride: usize,
}

impl StridedCopy {
    /// The copy of a box of `extents` elements that begins at `*_start` in dense row-major buffers of `*_shape`.
    /// `None` where the box is empty. The box must lie within both shapes.
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
        // From the innermost dimension outwards: a dimension whose stride continues what is already there, on
        // both sides, joins it; otherwise it becomes a loop of its own.
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

    /// The contiguous range `[offset, offset + bytes)` of both buffers. `None` where it is empty.
    pub(crate) fn of_range(offset: usize, bytes: usize) -> Option<Self> {
        StridedCopy::of_box(1, &[usize::MAX], &[offset], &[usize::MAX], &[offset], &[bytes])
    }

    /// Copies.
    ///
    /// # Safety
    /// The box must lie within both buffers; they do not overlap; nobody writes the source's box or touches the
    /// target's box meanwhile.
    pub(crate) unsafe fn run(&self, source: *const u8, target: *mut u8) {
        // SAFETY: the caller's promise: offsets and strides stay within the buffers. Short runs get a copy of
        // constant length, which compiles to one load and one store instead of a call.
        unsafe {
            let (source, target) = (source.add(self.source_offset), target.add(self.target_offset));
            match self.run_bytes {
                1 => nest(&self.loops, source, target, |s, t| t.copy_from_nonoverlapping(s, 1)),
                2 => nest(&self.loops, source, target, |s, t| t.copy_from_nonoverlapping(s, 2)),
                4 => nest(&self.loops, source, target, |s, t| t.copy_from_nonoverlapping(s, 4)),
                8 => nest(&self.loops, source, target, |s, t| t.copy_from_nonoverlapping(s, 8)),
                n => nest(&self.loops, source, target, |s, t| t.copy_from_nonoverlapping(s, n)),
            }
        }
    }
}

/// # Safety
/// `copy` must be allowed at every position that the loops visit.
unsafe fn nest(loops: &[Loop], source: *const u8, target: *mut u8, copy: impl Fn(*const u8, *mut u8) + Copy) {
    let Some((outer, inner)) = loops.split_first() else { return copy(source, target) };
    for i in 0..outer.count {
        // SAFETY: within the box, by the caller's promise.
        unsafe {
            let (source, target) = (source.add(i * outer.source_stride), target.add(i * outer.target_stride));
            if inner.is_empty() {
                copy(source, target);
            } else {
                nest(inner, source, target, copy);
            }
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
        assert_eq!(StridedCopy::of_range(3, 0), None);
    }
}
