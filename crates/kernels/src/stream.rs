//! Writing past the caches: what is long has left them before anybody reads it, and what is written line by line need not
//! be read first.

use crate::reduce::LANES;

/// Where an output is at least so long, it leaves the caches before anybody reads it: it may as well not enter them.
pub const STREAM_BYTES: usize = 8 << 20;
/// Where memory that is streamed to begins: at a cache line.
pub(crate) const STREAM_ALIGNMENT: usize = 64;

/// Held while memory is written past the caches. At its end what was written is in order with what is written next.
pub(crate) struct Streaming;

impl Drop for Streaming {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: part of every x86-64 processor.
        unsafe {
            std::arch::x86_64::_mm_sfence()
        };
    }
}

/// Copies past the caches, to memory aligned to [`STREAM_ALIGNMENT`], while there is a [`Streaming`].
///
/// # Safety
/// As many elements can be written at `to`, where those that are read do not lie.
pub(crate) unsafe fn stream(from: &[f32], to: *mut f32) {
    // Eight vectors a turn: one by one, large results of softmax take a sixth longer.
    let (chunks, rest) = from.as_chunks::<LANES>();
    for (i, chunk) in chunks.iter().enumerate() {
        // SAFETY: the caller's; every x86-64 processor has these vectors.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
            for (j, vector) in chunk.as_chunks::<4>().0.iter().enumerate() {
                _mm_stream_ps(to.add(i * LANES + 4 * j), _mm_loadu_ps(vector.as_ptr()));
            }
        }
        // SAFETY: the caller's.
        #[cfg(not(target_arch = "x86_64"))]
        unsafe {
            to.add(i * LANES).copy_from_nonoverlapping(chunk.as_ptr(), LANES)
        };
    }
    let done = from.len() - rest.len();
    // SAFETY: the caller's.
    unsafe { to.add(done).copy_from_nonoverlapping(rest.as_ptr(), rest.len()) };
}
