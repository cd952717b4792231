//! Prefetch of memory that a loop reads later, while it computes on other memory (`prefetcht0`, `prfm`).

/// Memory to be read or written later, asked for chunk by chunk while a loop computes on other memory: with each chunk that
/// is worked on, a piece of what lies a block further. On x86-64 it comes into the first cache: what leaves that one before it is needed
/// is in the second, and gradients of losses and norms take .93 of what they take otherwise.
///
/// A block is several pages, and the requests go round them. A processor that is asked for line after line has one page
/// under way at a time, and waits anew at the beginning of each.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    at: *const u8,
    /// Of one chunk.
    bytes: usize,
    further: usize,
}

/// Bytes that are asked for at a time: two lines, which many processors fetch together.
pub(crate) const PIECE_BYTES: usize = 128;
/// A block has as many pieces as a byte has values.
pub(crate) const BLOCK_BYTES: usize = PIECE_BYTES << u8::BITS;
/// Its pages are as many as there are values of this many bits.
pub(crate) const PAGE_BITS: u32 = 3;
pub(crate) const PAGE_BYTES: usize = BLOCK_BYTES >> PAGE_BITS;
const _: () = assert!(PAGE_BYTES == 4096, "what processors fetch ahead in");

impl Ahead {
    /// What lies so many bytes after chunks of so many bytes, of which the first is at `at`. It need not be anybody's.
    pub(crate) fn new(at: *const u8, bytes: usize, further: usize) -> Self {
        Ahead { at, bytes, further }
    }

    /// Nothing: chunks of no bytes.
    pub(crate) fn nothing() -> Self {
        Ahead::new(std::ptr::null(), 0, 0)
    }

    /// From so many chunks on.
    pub(crate) fn after(self, chunks: usize) -> Self {
        Ahead { at: self.at.wrapping_add(chunks * self.bytes), ..self }
    }

    /// The piece to be asked for when the one at `at` is worked on, in the same block: the first pieces of all its pages,
    /// then their second ones, and so on.
    #[inline(always)]
    fn turned(at: usize) -> usize {
        let piece = (at / PIECE_BYTES) as u8;
        (at & !(BLOCK_BYTES - 1)) | (usize::from(piece.rotate_right(PAGE_BITS)) * PIECE_BYTES)
    }

    /// Asks, without waiting, when a chunk is worked on, or the first piece of it.
    #[inline(always)]
    pub(crate) fn fetch(self, chunk: usize) {
        if self.bytes == 0 {
            return;
        }
        let piece = Self::turned(self.at.addr().wrapping_add(chunk * self.bytes)).wrapping_add(self.further);
        for line in [0, 64] {
            // Nobody reads by this pointer.
            let at = std::ptr::without_provenance::<u8>(piece.wrapping_add(line));
            // SAFETY: part of every x86-64 processor; no address makes it fail.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
            }
            // SAFETY: a hint; no address makes it fail, and it changes nothing that a program sees.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                use std::arch::asm;
                asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
            }
            let _ = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_asked_for() {
        let x = [0u8; 200];
        Ahead::new(std::ptr::null(), 0, 0).fetch(7);
        Ahead::nothing().fetch(7);
        Ahead::new(x.as_ptr(), 128, 2).fetch(3);
        Ahead::new(x.as_ptr().wrapping_sub(1 << 40), 64, 0).fetch(0);
        Ahead::new(std::ptr::without_provenance(usize::MAX), 128, 1).fetch(5);
    }

    #[test]
    fn every_piece_of_a_block_is_asked_for_once_and_neighbours_in_time_are_on_different_pages() {
        let block = 5 * BLOCK_BYTES;
        let at = |piece: usize| Ahead::turned(block + piece * PIECE_BYTES + 64) - block;
        let mut asked: Vec<usize> = (0..1 << u8::BITS).map(at).collect();
        let pages: Vec<usize> = asked.iter().map(|at| at / PAGE_BYTES).collect();
        assert_eq!(pages[..9], [0, 1, 2, 3, 4, 5, 6, 7, 0]);
        asked.sort();
        assert!(asked.into_iter().eq((0..BLOCK_BYTES).step_by(PIECE_BYTES)));
    }
}
