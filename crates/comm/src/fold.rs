//! Elementwise reduction of several memory ranges into several others, in source order.
//!
//! A range is processed in blocks that fit registers: every source is read once and every target
//! written once, without intermediate buffers.

use bytemuck::Pod;
use partita_base::Combiner;

/// Elements of a block: with four bytes each, they fill four of the widest registers, or eight of
/// the narrow ones.
#[cfg(target_arch = "x86_64")]
const WIDE_BLOCK: usize = 64;
const NARROW_BLOCK: usize = 32;

/// An element type with combiners.
pub(crate) trait Number: Pod {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
}

/// The vector width to use. The arithmetic is the same for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vectors {
    /// The baseline of the architecture: for data from memory, wider vectors are slower by a third.
    Narrow,
    /// The widest that the CPU has.
    Wide,
}

/// Combines `count` elements of all sources, at least one, into every target.
///
/// # Safety
/// All pointers must be valid for that many elements, aligned or not; sources are initialised and
/// not written meanwhile, unless a target is one of them; no other thread accesses the targets.
pub(crate) unsafe fn fold<N: Number>(
    combiner: Combiner,
    sources: impl Iterator<Item = *const N> + Clone,
    targets: impl Iterator<Item = *mut N> + Clone,
    count: usize,
    vectors: Vectors,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match combiner {
            Combiner::Sum => fold_by(sources, targets, count, vectors, N::sum),
            Combiner::Prod => fold_by(sources, targets, count, vectors, N::prod),
            Combiner::Max => fold_by(sources, targets, count, vectors, N::max),
            Combiner::Min => fold_by(sources, targets, count, vectors, N::min),
            Combiner::And => fold_by(sources, targets, count, vectors, N::and),
            Combiner::Or => fold_by(sources, targets, count, vectors, N::or),
        }
    }
}

/// Software prefetch into L1 at a distance beyond the next `bytes` bytes; the address need not be
/// valid. Hardware prefetchers stop at page boundaries.
#[inline(always)]
pub(crate) fn ask_ahead(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const FURTHER_BYTES: usize = 1024;
        for line in (0..bytes).step_by(64) {
            // SAFETY: part of every x86-64 processor; it reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(FURTHER_BYTES + line).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// Copies `bytes` bytes to every target, reading them once.
///
/// # Safety
/// All pointers must be valid for that many bytes; no other thread writes the source or accesses
/// the targets meanwhile.
pub(crate) unsafe fn spread(source: *const u8, targets: impl Iterator<Item = *mut u8> + Clone, bytes: usize) {
    // SAFETY: guaranteed by the caller; the CPU has the features that the functions need.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            return spread_avx512(source, targets, bytes);
        } else if is_x86_feature_detected!("avx2") {
            return spread_avx2(source, targets, bytes);
        }
        spread_by::<u128>(source, targets, bytes);
    }
}

/// # Safety
/// See [`spread`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn spread_avx512(source: *const u8, targets: impl Iterator<Item = *mut u8> + Clone, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { spread_by::<std::arch::x86_64::__m512i>(source, targets, bytes) };
}

/// # Safety
/// See [`spread`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn spread_avx2(source: *const u8, targets: impl Iterator<Item = *mut u8> + Clone, bytes: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { spread_by::<std::arch::x86_64::__m256i>(source, targets, bytes) };
}

/// Four vectors at a time.
///
/// # Safety
/// See [`spread`].
#[inline(always)]
unsafe fn spread_by<V: Copy>(
    source: *const u8,
    targets: impl Iterator<Item = *mut u8> + Clone,
    bytes: usize,
) {
    let block = 4 * size_of::<V>();
    let whole = bytes / block * block;
    // SAFETY: all offsets are below `bytes`.
    unsafe {
        for begin in (0..whole).step_by(block) {
            ask_ahead(source.add(begin), block);
            let from = source.add(begin).cast::<V>();
            let held = [0, 1, 2, 3].map(|i| from.add(i).read_unaligned());
            for target in targets.clone() {
                let to = target.add(begin).cast::<V>();
                for (i, &held) in held.iter().enumerate() {
                    to.add(i).write_unaligned(held);
                }
            }
        }
        for target in targets {
            target.add(whole).copy_from_nonoverlapping(source.add(whole), bytes - whole);
        }
    }
}

/// # Safety
/// See [`fold`].
unsafe fn fold_by<N: Number>(
    sources: impl Iterator<Item = *const N> + Clone,
    targets: impl Iterator<Item = *mut N> + Clone,
    count: usize,
    vectors: Vectors,
    combine: impl Fn(N, N) -> N + Copy,
) {
    // SAFETY: guaranteed by the caller; the CPU has the features that the functions need.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if vectors == Vectors::Wide {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                return fold_avx512(sources, targets, count, combine);
            } else if is_x86_feature_detected!("avx2") {
                return fold_avx2(sources, targets, count, combine);
            }
        }
        let _ = vectors;
        fold_blocks::<N, NARROW_BLOCK>(sources, targets, count, combine);
    }
}

/// # Safety
/// See [`fold`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn fold_avx512<N: Number>(
    sources: impl Iterator<Item = *const N> + Clone,
    targets: impl Iterator<Item = *mut N> + Clone,
    count: usize,
    combine: impl Fn(N, N) -> N + Copy,
) {
    // SAFETY: guaranteed by the caller.
    unsafe { fold_blocks::<N, WIDE_BLOCK>(sources, targets, count, combine) };
}

/// # Safety
/// See [`fold`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn fold_avx2<N: Number>(
    sources: impl Iterator<Item = *const N> + Clone,
    targets: impl Iterator<Item = *mut N> + Clone,
    count: usize,
    combine: impl Fn(N, N) -> N + Copy,
) {
    // SAFETY: guaranteed by the caller.
    unsafe { fold_blocks::<N, WIDE_BLOCK>(sources, targets, count, combine) };
}

/// # Safety
/// See [`fold`].
#[inline(always)]
unsafe fn fold_blocks<N: Number, const BLOCK: usize>(
    sources: impl Iterator<Item = *const N> + Clone,
    targets: impl Iterator<Item = *mut N> + Clone,
    count: usize,
    combine: impl Fn(N, N) -> N + Copy,
) {
    let whole = count / BLOCK * BLOCK;
    // SAFETY: the blocks are within `count` elements.
    unsafe {
        for begin in (0..whole).step_by(BLOCK) {
            fold_block::<N, BLOCK>(sources.clone(), targets.clone(), begin, combine);
        }
        for begin in whole..count {
            fold_block::<N, 1>(sources.clone(), targets.clone(), begin, combine);
        }
    }
}

/// # Safety
/// See [`fold`], of `LEN` elements from `begin` on.
#[inline(always)]
unsafe fn fold_block<N: Number, const LEN: usize>(
    mut sources: impl Iterator<Item = *const N>,
    targets: impl Iterator<Item = *mut N>,
    begin: usize,
    combine: impl Fn(N, N) -> N,
) {
    let first = sources.next().expect("something is combined");
    let mut held = [N::zeroed(); LEN];
    // SAFETY: guaranteed by the caller.
    unsafe {
        ask_ahead(first.wrapping_add(begin).cast(), size_of::<[N; LEN]>());
        for (i, held) in held.iter_mut().enumerate() {
            *held = first.add(begin + i).read_unaligned();
        }
        for source in sources {
            ask_ahead(source.wrapping_add(begin).cast(), size_of::<[N; LEN]>());
            for (i, held) in held.iter_mut().enumerate() {
                *held = combine(*held, source.add(begin + i).read_unaligned());
            }
        }
        for target in targets {
            for (i, &held) in held.iter().enumerate() {
                target.add(begin + i).write_unaligned(held);
            }
        }
    }
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn sum(self, other: $t) -> $t { self.wrapping_add(other) }
            #[inline(always)]
            fn prod(self, other: $t) -> $t { self.wrapping_mul(other) }
            #[inline(always)]
            fn max(self, other: $t) -> $t { Ord::max(self, other) }
            #[inline(always)]
            fn min(self, other: $t) -> $t { Ord::min(self, other) }
            #[inline(always)]
            fn and(self, other: $t) -> $t { self & other }
            #[inline(always)]
            fn or(self, other: $t) -> $t { self | other }
        }
    )*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn sum(self, other: $t) -> $t { self + other }
            #[inline(always)]
            fn prod(self, other: $t) -> $t { self * other }
            // IEEE 754-2019 maximum and minimum: NaN propagates (a comparison with it is false, so
            // `other` is chosen if only that one is NaN), and zeros are ordered by sign.
            #[inline(always)]
            fn max(self, other: $t) -> $t {
                let keep = (self > other) | self.is_nan() | ((self == other) & other.is_sign_negative());
                if keep { self } else { other }
            }
            #[inline(always)]
            fn min(self, other: $t) -> $t {
                let keep = (self < other) | self.is_nan() | ((self == other) & other.is_sign_positive());
                if keep { self } else { other }
            }
            fn and(self, _: $t) -> $t { unreachable!("validation refuses And on floats") }
            fn or(self, _: $t) -> $t { unreachable!("validation refuses Or on floats") }
        }
    )*};
}
floats!(f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random values, with the special ones among them.
    fn values(len: usize, stream: usize) -> Vec<f32> {
        let special = [0.0, -0.0, 1.5, -1e30, 1e-40, 3.4e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let value = |i: usize| special[i * i / 7 % 9] * ((i % 5) as f32 + 0.3);
        (0..len).map(|i| value(3 * stream * i + i + stream)).collect()
    }

    /// NaN payloads are not compared.
    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
    }

    #[test]
    fn vectors_of_any_width_give_the_bits_of_one_element_after_the_other() {
        for len in [0, 1, 7, 63, 64, 65, 200] {
            for count in 1..4 {
                let sources: Vec<Vec<f32>> = (0..count).map(|stream| values(len, stream)).collect();
                let table: [(Combiner, fn(f32, f32) -> f32); 4] = [
                    (Combiner::Sum, Number::sum),
                    (Combiner::Prod, Number::prod),
                    (Combiner::Max, Number::max),
                    (Combiner::Min, Number::min),
                ];
                for (combiner, combine) in table {
                    let at = |i: usize| sources.iter().map(|s| s[i]).reduce(combine).unwrap();
                    let expected = bits(&(0..len).map(at).collect::<Vec<f32>>());
                    for vectors in [Vectors::Narrow, Vectors::Wide] {
                        let mut targets = vec![vec![7.0f32; len + 1]; 2];
                        let to: Vec<*mut f32> = targets.iter_mut().map(|t| t.as_mut_ptr()).collect();
                        let from = sources.iter().map(|s| s.as_ptr());
                        // SAFETY: all have at least this length and are disjoint.
                        unsafe { fold(combiner, from, to.iter().copied(), len, vectors) };
                        for target in targets {
                            assert_eq!(bits(&target[..len]), expected, "{combiner:?} {len} {vectors:?}");
                            assert_eq!(target[len], 7.0);
                        }
                    }
                    #[cfg(target_arch = "x86_64")]
                    if is_x86_feature_detected!("avx2") {
                        let mut target = vec![7.0f32; len];
                        let to = std::iter::once(target.as_mut_ptr());
                        // SAFETY: as above, and the CPU has the feature.
                        unsafe { fold_avx2(sources.iter().map(|s| s.as_ptr()), to, len, combine) };
                        assert_eq!(bits(&target), expected, "{combiner:?} {len}");
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_are_spread_from_and_to_anywhere_and_no_other_is_touched() {
        let source: Vec<u8> = (0..700u32).map(|i| (i * 7) as u8).collect();
        for (start, bytes) in [(0, 0), (1, 3), (2, 4), (3, 256), (0, 257), (5, 611)] {
            let mut targets = [[0xee; 700], [0xee; 700], [0xee; 700]];
            let to: Vec<*mut u8> = targets.iter_mut().map(|t| t.as_mut_ptr()).collect();
            // SAFETY: all have 700 bytes and are disjoint.
            unsafe { spread(source.as_ptr().add(start), to.iter().map(|t| t.add(start + 1)), bytes) };
            let mut expected = [0xee; 700];
            expected[start + 1..start + 1 + bytes].copy_from_slice(&source[start..start + bytes]);
            assert_eq!(targets, [expected; 3], "{bytes} from {start}");
        }
    }

    #[test]
    fn float_extremes_order_zeros_and_pass_nan_on() {
        for (a, b) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
            assert_eq!(Number::max(a, b).to_bits(), 0.0f32.to_bits());
            assert_eq!(Number::min(a, b).to_bits(), (-0.0f32).to_bits());
        }
        for (a, b) in [(f64::NAN, 1.0), (1.0, f64::NAN), (f64::NAN, f64::INFINITY)] {
            assert!(Number::max(a, b).is_nan() && Number::min(a, b).is_nan());
        }
        assert_eq!((Number::max(-2.0f32, 3.0), Number::min(-2.0f32, 3.0)), (3.0, -2.0));
    }
}
