//! Writing past the caches: what is long has left them before anybody reads it, and what is written line by line need not
//! be read first.

#[cfg(target_arch = "x86_64")]
use crate::simd::{Level, level};
#[cfg(target_arch = "x86_64")]
use crate::vector::Vector;

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

/// Copies past the caches, to memory aligned to [`STREAM_ALIGNMENT`], while there is a [`Streaming`]. As wide as the machine
/// can: what waits on its way to memory takes a place for each vector.
///
/// # Safety
/// As many elements can be written at `to`, where those that are read do not lie.
pub(crate) unsafe fn stream(from: &[f32], to: *mut f32) {
    // SAFETY: the caller's; `level` found what they need on this machine.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        match level() {
            Level::Avx512 => stream_avx512(from, to),
            Level::Avx2 => stream_avx2(from, to),
            Level::Baseline => stream_baseline(from, to),
        }
    }
    // SAFETY: the caller's.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe {
        to.copy_from_nonoverlapping(from.as_ptr(), from.len())
    };
}

/// [`stream`] in vectors of one type.
#[cfg(target_arch = "x86_64")]
macro_rules! stream_in_vectors {
    ($name:ident, $feature:literal, $vector:ident) => {
        /// # Safety
        /// That of [`stream`], and the machine has the vectors.
        #[target_feature(enable = $feature)]
        unsafe fn $name(from: &[f32], to: *mut f32) {
            use std::arch::x86_64::$vector;
            let (vectors, rest) = from.split_at(from.len() / $vector::WIDTH * $vector::WIDTH);
            for at in (0..vectors.len()).step_by($vector::WIDTH) {
                // SAFETY: the caller's.
                unsafe { $vector::load(vectors.as_ptr().add(at)).stream(to.add(at)) };
            }
            // SAFETY: the caller's.
            unsafe { to.add(vectors.len()).copy_from_nonoverlapping(rest.as_ptr(), rest.len()) };
        }
    };
}
#[cfg(target_arch = "x86_64")]
stream_in_vectors!(stream_avx512, "avx512f", __m512);
#[cfg(target_arch = "x86_64")]
stream_in_vectors!(stream_avx2, "avx", __m256);
#[cfg(target_arch = "x86_64")]
stream_in_vectors!(stream_baseline, "sse", __m128);

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn every_width_copies_all_elements_and_no_more() {
        #[repr(align(64))]
        struct Memory([f32; 80]);
        let from: Vec<f32> = (0..67).map(|i| i as f32 + 0.5).collect();
        let is_usable = |width: &Level| match width {
            Level::Baseline => true,
            Level::Avx2 => level() != Level::Baseline,
            Level::Avx512 => level() == Level::Avx512,
        };
        for width in [Level::Baseline, Level::Avx2, Level::Avx512].iter().filter(|width| is_usable(width)) {
            for count in [0, 1, 15, 16, 31, 64, 67] {
                let mut memory = Memory([-1.0; 80]);
                let (from, to) = (&from[..count], memory.0.as_mut_ptr());
                // SAFETY: there are 80 aligned elements at `to`, and the machine has the width.
                unsafe {
                    let _streaming = Streaming;
                    match width {
                        Level::Baseline => stream_baseline(from, to),
                        Level::Avx2 => stream_avx2(from, to),
                        Level::Avx512 => stream_avx512(from, to),
                    }
                }
                let (copied, rest) = memory.0.split_at(count);
                assert!(copied == from && rest.iter().all(|&x| x == -1.0), "{width:?} {count}");
            }
        }
    }
}
