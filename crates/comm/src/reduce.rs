//! Reducing the same stretch of several buffers, in the order of the buffers.
//!
//! Element by element the association is `((x0 + x1) + x2) + ...`, whatever the chunks, so the bits depend only
//! on the inputs. Chunks keep the accumulator in the first-level cache; the loops over a chunk have no calls and
//! no branches, so they vectorise.

use std::ops::{BitAnd, BitOr};

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use partita_base::DType;

use partita_base::Combiner;

/// Elements that are accumulated before they are stored.
const CHUNK: usize = 1024;

/// Part of the elements of every member's input, reduced into one output: `rows` stretches of `len` elements.
#[derive(Debug)]
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
    /// Reduces `input(0) ..= input(member_count - 1)` into `output`.
    ///
    /// # Safety
    /// Every stretch must lie within its buffer; buffers are aligned to the element; inputs are initialised and
    /// not written meanwhile; nobody else touches the output's stretches.
    pub(crate) unsafe fn run(
        &self,
        member_count: usize,
        input: impl Fn(usize) -> *const u8,
        output: *mut u8,
    ) {
        // Booleans are bytes of 0 or 1, on which everything is either `or` or `and`.
        let logical = match self.combiner {
            Combiner::Sum | Combiner::Max | Combiner::Or => Combiner::Or,
            Combiner::Prod | Combiner::Min | Combiner::And => Combiner::And,
        };
        // SAFETY: the caller's promise, passed on; `dtype` is the type of the buffers' elements.
        unsafe {
            match self.dtype {
                DType::Bool => self.run_as::<u8>(logical, member_count, input, output),
                DType::I8 => self.run_as::<i8>(self.combiner, member_count, input, output),
                DType::I16 => self.run_as::<i16>(self.combiner, member_count, input, output),
                DType::I32 => self.run_as::<i32>(self.combiner, member_count, input, output),
                DType::I64 => self.run_as::<i64>(self.combiner, member_count, input, output),
                DType::U8 => self.run_as::<u8>(self.combiner, member_count, input, output),
                DType::U16 => self.run_as::<u16>(self.combiner, member_count, input, output),
                DType::U32 => self.run_as::<u32>(self.combiner, member_count, input, output),
                DType::U64 => self.run_as::<u64>(self.combiner, member_count, input, output),
                DType::F16 => self.run_as::<f16>(self.combiner, member_count, input, output),
                DType::BF16 => self.run_as::<bf16>(self.combiner, member_count, input, output),
                DType::F32 => self.run_as::<f32>(self.combiner, member_count, input, output),
                DType::F64 => self.run_as::<f64>(self.combiner, member_count, input, output),
            }
        }
    }

    /// # Safety
    /// See [`Reduction::run`].
    unsafe fn run_as<T: Element>(
        &self,
        combiner: Combiner,
        member_count: usize,
        input: impl Fn(usize) -> *const u8,
        output: *mut u8,
    ) {
        let mut accumulator = [T::Accumulator::zeroed(); CHUNK];
        let mut scratch = [T::Accumulator::zeroed(); CHUNK];
        for row in 0..self.rows {
            for begin in (0..self.len).step_by(CHUNK) {
                let count = CHUNK.min(self.len - begin);
                let accumulator = &mut accumulator[..count];
                let source = |member: usize| {
                    let first = self.input_offset + row * self.input_stride + begin;
                    // SAFETY: inside a stretch of that member's input, aligned and not written meanwhile.
                    unsafe { std::slice::from_raw_parts(input(member).cast::<T>().add(first), count) }
                };
                accumulator.copy_from_slice(T::widen(source(0), &mut scratch[..count]));
                for member in 1..member_count {
                    combine(combiner, accumulator, T::widen(source(member), &mut scratch[..count]));
                }
                let first = self.output_offset + row * self.output_stride + begin;
                // SAFETY: inside a stretch of the output, which is ours alone, and does not overlap any input.
                let target = unsafe { std::slice::from_raw_parts_mut(output.cast::<T>().add(first), count) };
                T::narrow(accumulator, target);
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
    /// The accumulators as elements, each rounded once.
    fn narrow(source: &[Self::Accumulator], target: &mut [Self]);
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

fn combine<N: Number>(combiner: Combiner, accumulator: &mut [N], source: &[N]) {
    #[inline(always)]
    fn each<N: Number>(accumulator: &mut [N], source: &[N], f: impl Fn(N, N) -> N) {
        for (a, &b) in accumulator.iter_mut().zip(source) {
            *a = f(*a, b);
        }
    }
    match combiner {
        Combiner::Sum => each(accumulator, source, N::sum),
        Combiner::Prod => each(accumulator, source, N::prod),
        Combiner::Max => each(accumulator, source, N::max),
        Combiner::Min => each(accumulator, source, N::min),
        Combiner::And => each(accumulator, source, N::and),
        Combiner::Or => each(accumulator, source, N::or),
    }
}

macro_rules! own_accumulator {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Accumulator = $t;
            fn widen<'a>(source: &'a [$t], _scratch: &'a mut [$t]) -> &'a [$t] {
                source
            }
            fn narrow(source: &[$t], target: &mut [$t]) {
                target.copy_from_slice(source);
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
            fn narrow(source: &[f32], target: &mut [$t]) {
                target.convert_from_f32_slice(source);
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
