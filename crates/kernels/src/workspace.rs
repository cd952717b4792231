//! Scratch memory of a kernel, split into aligned parts.

use bytemuck::Pod;

const ALIGNMENT: usize = 64;

/// Scratch memory that is handed out part by part, aligned to cache lines.
pub(crate) struct Workspace<'a> {
    rest: &'a mut [u8],
}

impl<'a> Workspace<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Workspace { rest: bytes }
    }

    /// `count` elements with unspecified values.
    ///
    /// # Panics
    /// Where the workspace is smaller than the kernel's `*_workspace_bytes` said.
    pub(crate) fn take<T: Pod>(&mut self, count: usize) -> &'a mut [T] {
        let rest = std::mem::take(&mut self.rest);
        let skip = rest.as_ptr().align_offset(ALIGNMENT);
        let bytes = count * size_of::<T>();
        assert!(
            count == 0 || skip + bytes <= rest.len(),
            "the workspace is too small: {} bytes left, {bytes} needed",
            rest.len()
        );
        if count == 0 {
            self.rest = rest;
            return &mut [];
        }
        let (piece, rest) = rest[skip..].split_at_mut(bytes);
        self.rest = rest;
        bytemuck::cast_slice_mut(piece)
    }
}

/// Bytes that [`Workspace::take`] uses, wherever the workspace begins.
pub(crate) fn piece_bytes<T>(count: usize) -> usize {
    if count == 0 { 0 } else { count * size_of::<T>() + ALIGNMENT }
}
