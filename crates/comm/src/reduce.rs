//! Reduces the same range of several buffers, in buffer order.
//!
//! Each element is `((x0 + x1) + x2) + ...` whatever the chunks, so the result depends bitwise only
//! on the inputs. Data in a cache is reduced in registers. Elements with a wider accumulator type,
//! and data from memory, are reduced chunk by chunk in accumulators in L1.

use std::iter::once;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use partita_base::{Combiner, DType};

use crate::copy::copy_bytes;
use crate::fold::{Number, Vectors, fold};

/// Elements per accumulator chunk: with four-byte accumulators half a page, so that the chunk does
/// not compete with the inputs for the same L1 sets.
const CHUNK: usize = 512;

/// Elements aligned to cache lines, so that no vector straddles two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Chunk<T>([T; CHUNK]);

/// A part of the elements of every member's input, reduced into the same positions of the outputs:
/// `rows` ranges of `len` elements.
#[derive(Clone, Debug)]
pub(crate) struct Reduction {
    pub(crate) combiner: Combiner,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) len: usize,
    /// Elements before the first range, and from one range to the next.
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

    /// The bytes of a member's input that are read, with gaps between them of less than `gap` bytes.
    pub(crate) fn input_ranges(&self, gap: usize) -> Vec<Range<usize>> {
        let size = self.dtype.size_bytes();
        let bytes = |row: usize, rows: usize| {
            let start = self.input_offset + row * self.input_stride;
            start * size..(start + (rows - 1) * self.input_stride + self.len) * size
        };
        if self.rows == 0 || self.len == 0 {
            return Vec::new();
        }
        match (self.input_stride - self.len.min(self.input_stride)) * size < gap {
            true => vec![bytes(0, self.rows)],
            false => (0..self.rows).map(|row| bytes(row, 1)).collect(),
        }
    }

    /// The same reduction in parts that read at most `most` bytes of each input; no parts if it is
    /// empty.
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

    /// Reduces the inputs, in order, into all outputs; with non-temporal stores if `streams`.
    ///
    /// # Safety
    /// Every range must be inside its buffer; buffers are aligned to the element; inputs are
    /// initialised and not written meanwhile; no other thread accesses the outputs' ranges.
    pub(crate) unsafe fn run(
        &self,
        inputs: impl Iterator<Item = *const u8> + Clone,
        outputs: impl Iterator<Item = *mut u8> + Clone,
        streams: bool,
    ) {
        // Booleans are bytes of 0 or 1, on which every combiner is `or` or `and`.
        let logical = match self.combiner {
            Combiner::Sum | Combiner::Max | Combiner::Or => Combiner::Or,
            Combiner::Prod | Combiner::Min | Combiner::And => Combiner::And,
        };
        // SAFETY: guaranteed by the caller; `dtype` is the element type of the buffers.
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
                DType::Inert(inert) => unreachable!("lowering refuses {}", inert.name()),
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
        for row in 0..self.rows {
            let first = self.input_offset + row * self.input_stride;
            // SAFETY: the start of each range, guaranteed by the caller.
            let sources = inputs.clone().map(|input| unsafe { input.cast::<T>().add(first) });
            let first = self.output_offset + row * self.output_stride;
            // SAFETY: as above.
            let targets = outputs.clone().map(|output| unsafe { output.cast::<T>().add(first) });
            // SAFETY: guaranteed by the caller; accumulators are the elements themselves if the
            // trait says so.
            unsafe {
                if T::IS_ACCUMULATOR && !streams {
                    let sources = sources.map(|source| source.cast::<T::Accumulator>());
                    let targets = targets.map(|target| target.cast::<T::Accumulator>());
                    fold(combiner, sources, targets, self.len, Vectors::Wide);
                } else {
                    self.run_held(combiner, sources, targets, streams);
                }
            }
        }
    }

    /// Reduces one row through accumulators in L1.
    ///
    /// # Safety
    /// See [`Reduction::run`]; here pointers are to the start of the row's ranges.
    unsafe fn run_held<T: Element>(
        &self,
        combiner: Combiner,
        sources: impl Iterator<Item = *const T> + Clone,
        targets: impl Iterator<Item = *mut T> + Clone,
        streams: bool,
    ) {
        let mut buffers = [Chunk([T::Accumulator::zeroed(); CHUNK]); 2];
        let mut narrow = Chunk([T::zeroed(); CHUNK]);
        let vectors = if streams { Vectors::Narrow } else { Vectors::Wide };
        for begin in (0..self.len).step_by(CHUNK) {
            let count = CHUNK.min(self.len - begin);
            let [held, scratch] = buffers.each_mut().map(|chunk| &mut chunk.0[..count]);
            // SAFETY: inside a range of that input, aligned and not written meanwhile.
            unsafe {
                let sources = sources.clone().map(|source| source.add(begin));
                T::accumulate(combiner, sources, held, scratch, vectors);
            }
            let result = T::narrow(held, &mut narrow.0[..count]);
            // SAFETY: inside a range of that output, which only this call accesses.
            unsafe {
                let targets = targets.clone().map(|target| target.add(begin).cast());
                copy_bytes(result.as_ptr().cast(), targets, size_of_val(result), streams);
            }
        }
    }
}

/// An element type of buffers.
trait Element: Pod {
    /// The type that sums are accumulated in.
    type Accumulator: Number;
    /// Whether that is the element type itself.
    const IS_ACCUMULATOR: bool;
    /// Combines `held.len()` elements of all sources into `held`; `scratch` has the same length.
    ///
    /// # Safety
    /// As for [`fold`]; sources are aligned.
    unsafe fn accumulate(
        combiner: Combiner,
        sources: impl Iterator<Item = *const Self> + Clone,
        held: &mut [Self::Accumulator],
        scratch: &mut [Self::Accumulator],
        vectors: Vectors,
    );
    /// The accumulators as elements, each rounded once: the slice itself, or converted into
    /// `scratch`.
    fn narrow<'a>(source: &'a [Self::Accumulator], scratch: &'a mut [Self]) -> &'a [Self];
}

macro_rules! own_accumulator {
    ($($t:ty),*) => {$(
        impl Element for $t {
            type Accumulator = $t;
            const IS_ACCUMULATOR: bool = true;
            unsafe fn accumulate(
                combiner: Combiner,
                sources: impl Iterator<Item = *const $t> + Clone,
                held: &mut [$t],
                _scratch: &mut [$t],
                vectors: Vectors,
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe { fold(combiner, sources, once(held.as_mut_ptr()), held.len(), vectors) };
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
            const IS_ACCUMULATOR: bool = false;
            unsafe fn accumulate(
                combiner: Combiner,
                mut sources: impl Iterator<Item = *const $t> + Clone,
                held: &mut [f32],
                scratch: &mut [f32],
                vectors: Vectors,
            ) {
                let count = held.len();
                // SAFETY: guaranteed by the caller.
                let slice = |source: *const $t| unsafe { std::slice::from_raw_parts(source, count) };
                let first = sources.next().expect("a collective has members");
                slice(first).convert_to_f32_slice(held);
                let sum = held.as_mut_ptr();
                for next in sources {
                    slice(next).convert_to_f32_slice(scratch);
                    let pair = [sum.cast_const(), scratch.as_ptr()];
                    // SAFETY: both have `count` elements.
                    unsafe { fold(combiner, pair.iter().copied(), once(sum), count, vectors) };
                }
            }
            fn narrow<'a>(source: &'a [f32], scratch: &'a mut [$t]) -> &'a [$t] {
                scratch.convert_from_f32_slice(source);
                scratch
            }
        }
    )*};
}
half_accumulator!(f16, bf16);
