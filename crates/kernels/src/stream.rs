//! Non-temporal stores, which bypass the caches. A long output would be evicted before it is read again, and
//! a full cache line that is written at once need not be read first.

use bytemuck::Pod;

use crate::native::levels::{Machine, multiversion};
use crate::native::store_fence;
use crate::native::vector::LANES;
use crate::native::vector::Vector;

/// Outputs of at least this many bytes are written with non-temporal stores: they would be evicted before
/// they are read.
pub const STREAM_BYTES: usize = 8 << 20;
/// The alignment of memory for non-temporal stores, in bytes: a cache line.
pub(crate) const STREAM_ALIGNMENT: usize = 64;

/// Held while non-temporal stores are in use. Dropping it orders them before all later stores.
pub(crate) struct Streaming;

impl Drop for Streaming {
    fn drop(&mut self) {
        store_fence();
    }
}

/// Writes values, with non-temporal stores if a [`Streaming`] is held and `to` is aligned to a cache line.
/// Uses the widest vectors of the machine, because each store in flight occupies one buffer entry.
#[inline(always)]
pub(crate) fn put<M: Machine, C: Pod>(
    values: [C; LANES],
    to: &mut [C; LANES],
    streaming: Option<&Streaming>,
) {
    if streaming.is_none() || !to.as_ptr().addr().is_multiple_of(STREAM_ALIGNMENT) {
        *to = values;
        return;
    }
    let values: &[f32] = bytemuck::cast_slice(&values);
    let to: &mut [f32] = bytemuck::cast_slice_mut(to);
    for at in (0..values.len()).step_by(M::Vector::WIDTH) {
        // SAFETY: lanes are whole vectors, and `to` is aligned for any of them.
        unsafe { M::Vector::load(values.as_ptr().add(at)).stream(to.as_mut_ptr().add(at)) };
    }
}

multiversion! {
    /// Copies with non-temporal stores.
    pub(crate) fn stream(M)[](from: &[f32], to: &mut [f32], streaming: &Streaming) {
        let (from, from_rest) = from.as_chunks();
        let (to, to_rest) = to.as_chunks_mut();
        for (from, to) in from.iter().zip(to) {
            put::<M, f32>(*from, to, Some(streaming));
        }
        to_rest.copy_from_slice(from_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::levels::Baseline;
    #[cfg(target_arch = "x86_64")]
    use crate::native::levels::{Avx2, Avx512};
    use crate::options::KernelOptions;
    use crate::options::Level;

    #[repr(align(64))]
    struct Memory([f32; 3 * LANES]);

    /// Checks that exactly the lanes from element `first` on are written, whether `to` is aligned or not.
    fn is_written_whole<M: Machine>() {
        let values = std::array::from_fn(|i| i as f32 + 0.5);
        for (first, streams) in [(0, true), (LANES, true), (7, true), (16, true), (LANES, false)] {
            let mut memory = Memory([-1.0; 3 * LANES]);
            let streaming = streams.then_some(Streaming);
            let to = memory.0[first..].first_chunk_mut().expect("there is room");
            put::<M, f32>(values, to, streaming.as_ref());
            drop(streaming);
            let (before, rest) = memory.0.split_at(first);
            let (written, after) = rest.split_at(LANES);
            assert_eq!(written, values);
            assert!(before.iter().chain(after).all(|&x| x == -1.0), "around {first}");
        }
    }

    #[test]
    fn every_width_writes_all_lanes_and_no_more() {
        for options in KernelOptions::levels() {
            match options.level() {
                Level::Portable => is_written_whole::<Baseline>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => is_written_whole::<Avx2>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => is_written_whole::<Avx512>(),
            }
        }
    }

    #[test]
    fn copies_of_any_length_are_whole() {
        let from: Vec<f32> = (0..67).map(|i| i as f32).collect();
        let levels = KernelOptions::levels();
        for (count, &options) in
            [0, 1, 31, 32, 64, 67].into_iter().flat_map(|n| levels.iter().map(move |l| (n, l)))
        {
            let mut memory = Memory([-1.0; 3 * LANES]);
            stream(options, &from[..count], &mut memory.0[..count], &Streaming);
            let (copied, rest) = memory.0.split_at(count);
            assert!(copied == &from[..count] && rest.iter().all(|&x| x == -1.0), "{count}");
        }
    }
}
