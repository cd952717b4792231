//! Reducing the same stretch of several buffers, in the order of the buffers.
//!
//! Element by element the association is `((x0 + x1) + x2) + ...`, whatever the chunks, so the bits depend only
//! on the inputs. Chunks keep the accumulator in the first-level cache; the loops over a chunk have no calls and
//! no branches, so they vectorise.

use std::ops::{BitAnd, BitOr};

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use partita_base::{Combiner, DType};

use crate::copy::copy_bytes;

/// Elements that are accumulated before they are stored: with accumulators of four bytes half a page, so that what is
/// held does not compete with the inputs for the same sets of the first-level cache.
const CHUNK: usize = 512;

/// Elements on lines of the cache, so that no vector straddles two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Chunk<T>([T; CHUNK]);

/// Part of the elements of every member's input, reduced into the same place of outputs: `rows` stretches of `len` elements.
#[derive(Clone, Debug)]
pub(crate) struct Reduction {
    pub(crate) combiner: Combiner,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) len: usize,
    /// Elements before the first stretch, and from one stretch to the next.
    pub(crate) input_offset: usize,
    pub(crate) input_stride: usize,
    pub(crate) output_offset: usize,
    pub(crate) output_stride: usize,
}

impl Reduction {
    /// Bytes of one member's input that are read.
    pub(crate) fn input_bytes(&self) -> usize {
        self.rows * self.len * self.dtype.size_bytes()
    }

    /// The same reduction in parts that read at most `most` bytes of each input. None where there is nothing to do.
    pub(crate) fn split(&self, most: usize) -> Vec<Reduction> {
        let most = (most / self.dtype.size_bytes()).max(1);
        let (rows, len) = ((most / self.len.max(1)).max(1), most.min(self.len).max(1));
        let part = |row: usize, begin: usize| Reduction {
            rows: rows.min(self.rows - row),
            len: len.min(self.len - begin),
            input_offset: self.input_offset + row * self.input_stride + begin,
            output_offset: self.output_offset + row * self.output_stride + begin,
            ..self.clone()
        };
        let parts = |row| (0..self.len).step_by(len).map(move |begin| part(row, begin));
        (0..self.rows).step_by(rows).flat_map(parts).collect()
    }

    /// Reduces the inputs, in their order, into all outputs; past the caches where `streams`.
    ///
    /// # Safety
    /// Every stretch must lie within its buffer; buffers are aligned to the element; inputs are initialised and
    /// not written meanwhile; nobody else touches the outputs' stretches.
    pub(crate) unsafe fn run(
        &self,
        inputs: impl Iterator<Item = *const u8> + Clone,
        outputs: impl Iterator<Item = *mut u8> + Clone,
        streams: bool,
    ) {
        // Booleans are bytes of 0 or 1, on which everything is either `or` or `and`.
        let logical = match self.combiner {
            Combiner::Sum | Combiner::Max | Combiner::Or => Combiner::Or,
            Combiner::Prod | Combiner::Min | Combiner::And => Combiner::And,
        };
        // SAFETY: the caller's promise, passed on; `dtype` is the type of the buffers' elements.
        unsafe {
            match self.dtype {
                DType::Bool => self.run_as::<u8>(logical, inputs, outputs, streams),
                DType::I8 => self.run_as::<i8>(self.combiner, inputs, outputs, streams),
                DType::I16 => self.run_as::<i16>(self.combiner, inputs, outputs, streams),
                DType::I32 => self.run_as::<i32>(self.combiner, inputs, outputs, streams),
                DType::I64 => self.run_as::<i64>(self.combiner, inputs, outputs, streams),
                DType::U8 => self.run_as::<u8>(self.combiner, inputs, outputs, streams),
                DType::U16 => self.run_as::<u16>(self.combiner, inputs, outputs, streams),
                DType::U32 => self.run_as::<u32>(self.combiner, inputs, outputs, streams),
                DType::U64 => self.run_as::<u64>(self.combiner, inputs, outputs, streams),
                DType::F16 => self.run_as::<f16>(self.combiner, inputs, outputs, streams),
                DType::BF16 => self.run_as::<bf16>(self.combiner, inputs, outputs, streams),
                DType::F32 => self.run_as::<f32>(self.combiner, inputs, outputs, streams),
                DType::F64 => self.run_as::<f64>(self.combiner, inputs, outputs, streams),
            }
        }
    }

    /// # Safety
    /// See [`Reduction::run`].
    unsafe fn run_as<T: Element>(
        &self,
        combiner: Combiner,
        inputs: impl Iterator<Item = *const u8> + Clone,
        outputs: impl Iterator<Item = *mut u8> + Clone,
        streams: bool,
    ) {
        let mut buffers = [Chunk([T::Accumulator::zeroed(); CHUNK]); 3];
        let mut narrow = Chunk([T::zeroed(); CHUNK]);
        for row in 0..self.rows {
            for begin in (0..self.len).step_by(CHUNK) {
                let count = CHUNK.min(self.len - begin);
                let [held, free, scratch] = buffers.each_mut().map(|chunk| &mut chunk.0[..count]);
                let (mut held, mut free) = (held, free);
                let first = self.input_offset + row * self.input_stride + begin;
                let mut sources = inputs.clone().map(|input| {
                    // SAFETY: inside a stretch of that input, aligned and not written meanwhile.
                    unsafe { std::slice::from_raw_parts(input.cast::<T>().add(first), count) }
                });
                let one = sources.next().expect("a collective has members");
                match sources.next() {
                    Some(two) => {
                        combine(combiner, T::widen(one, held), T::widen(two, scratch), free, streams);
                        std::mem::swap(&mut held, &mut free);
                    }
                    None => held.copy_from_slice(T::widen(one, scratch)),
                }
                for next in sources {
                    combine(combiner, held, T::widen(next, scratch), free, streams);
                    std::mem::swap(&mut held, &mut free);
                }
                let result = T::narrow(held, &mut narrow.0[..count]);
                let first = self.output_offset + row * self.output_stride + begin;
                for output in outputs.clone() {
                    // SAFETY: inside a stretch of that output, which is ours alone.
                    unsafe {
                        let target = output.cast::<T>().add(first).cast();
                        copy_bytes(result.as_ptr().cast(), target, size_of_val(result), streams);
                    }
                }
            }
        }
    }
}

/// What is stored in buffers.
trait Element: Pod {
    /// What sums are kept in.
    type Accumulator: Number;
    /// The elements as accumulators: themselves, or converted into `scratch` (of the same length).
    fn widen<'a>(source: &'a [Self], scratch: &'a mut [Self::Accumulator]) -> &'a [Self::Accumulator];
    /// The accumulators as elements, each rounded once: themselves, or converted into `scratch`.
    fn narrow<'a>(source: &'a [Self::Accumulator], scratch: &'a mut [Self]) -> &'a [Self];
}

/// What can be combined.
trait Number: Pod {
    fn sum(self, other: Self) -> Self;
    fn prod(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
}

/// `target[i] = left[i] combined with right[i]`. Where the data is in a cache, with the widest vectors there are;
/// where it comes from memory (`streams`) those are slower by a third than the narrow ones. The arithmetic is the same.
fn combine<N: Number>(combiner: Combiner, left: &[N], right: &[N], target: &mut [N], streams: bool) {
    #[cfg(target_arch = "x86_64")]
    if streams {
        return combine_plain(combiner, left, right, target);
    } else if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the processor has what the function needs.
        return unsafe { combine_avx512(combiner, left, right, target) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { combine_avx2(combiner, left, right, target) };
    }
    let _ = streams;
    combine_plain(combiner, left, right, target);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn combine_avx512<N: Number>(combiner: Combiner, left: &[N], right: &[N], target: &mut [N]) {
    combine_plain(combiner, left, right, target);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn combine_avx2<N: Number>(combiner: Combiner, left: &[N], right: &[N], target: &mut [N]) {
    combine_plain(combiner, left, right, target);
}

#[inline(always)]
fn combine_plain<N: Number>(combiner: Combiner, left: &[N], right: &[N], target: &mut [N]) {
    #[inline(always)]
    fn each<N: Number>(left: &[N], right: &[N], target: &mut [N], f: impl Fn(N, N) -> N) {
        for ((to, &a), &b) in target.iter_mut().zip(left).zip(right) {
            *to = f(a, b);
        }
    }
    match combiner {
        Combiner::Sum => each(left, right, target, N::sum),
        Combiner::Prod => each(left, right, target, N::prod),
        Combiner::Max => each(left, right, target, N::max),
        Combiner::Min => each(left, right, target, N::min),
        Combiner::And => each(left, right, target, N::and),
        Combiner::Or => each(left, right, target, N::or),
    }
}

macro_rules! own_accumulator {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Accumulator = $t;
            fn widen<'a>(source: &'a [$t], _scratch: &'a mut [$t]) -> &'a [$t] {
                source
            }
            fn narrow<'a>(source: &'a [$t], _scratch: &'a mut [$t]) -> &'a [$t] {
                source
            }
        }
    )*};
}
own_accumulator!(i8, i16, i32, i64, u8, u16, u32, u64, f32, f64);

macro_rules! half_accumulator {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Accumulator = f32;
            fn widen<'a>(source: &'a [$t], scratch: &'a mut [f32]) -> &'a [f32] {
                source.convert_to_f32_slice(scratch);
                scratch
            }
            fn narrow<'a>(source: &'a [f32], scratch: &'a mut [$t]) -> &'a [$t] {
                scratch.convert_from_f32_slice(source);
                scratch
            }
        }
    )*};
}
half_accumulator!(f16, bf16);

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
            fn and(self, other: $t) -> $t { self.bitand(other) }
            #[inline(always)]
            fn or(self, other: $t) -> $t { self.bitor(other) }
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
            // IEEE 754-2019 maximum and minimum: NaN wins (a comparison with it is false, so `other` is taken
            // where only that one is NaN), and zeros are ordered by sign.
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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn vectors_of_any_width_give_the_same_bits() {
        let special = [0.0, -0.0, 1.5, -1e30, 1e-40, 3.4e38, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let value = |i: usize| special[i * i / 7 % 9] * ((i % 5) as f32 + 0.3);
        for len in [0, 1, 7, 16, 33, 200] {
            let left: Vec<f32> = (0..len).map(value).collect();
            let right: Vec<f32> = (0..len).map(|i| value(3 * i + 1)).collect();
            for combiner in [Combiner::Sum, Combiner::Prod, Combiner::Max, Combiner::Min] {
                let bits = |combine: &dyn Fn(&mut [f32])| {
                    let mut target = vec![7.0; len];
                    combine(&mut target);
                    // Which NaN comes out is nobody's concern.
                    target.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect::<Vec<_>>()
                };
                let plain = bits(&|target| combine_plain(combiner, &left, &right, target));
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has it.
                    assert_eq!(plain, bits(&|t| unsafe { combine_avx2(combiner, &left, &right, t) }));
                }
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                    // SAFETY: the processor has it.
                    assert_eq!(plain, bits(&|t| unsafe { combine_avx512(combiner, &left, &right, t) }));
                }
            }
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
