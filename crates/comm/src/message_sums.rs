//! All-reduces whose work processes share: each reduces one part of the elements for all, from the inputs of all members in
//! their order, and sends the sums to the others. With `n` processes of one member each, a process sends `2 (n - 1) / n`
//! times its input instead of `n - 1` times, and reduces an `n`-th of the elements. The bits are the same.

use std::ops::Range;
use std::sync::Arc;

use partita_base::{Combiner, DType};

use crate::messages::Buffer;
use crate::reduce::Reduction;
use crate::share::PIECE_BYTES;
use crate::spec::{CollectiveSpec, Exchange};

/// The least part of a process. Below it the second message costs more than it saves.
const MIN_PART_BYTES: usize = 16 << 10;

/// Parts are aligned to cache lines, and so to elements of every type.
const LINE_BYTES: usize = 64;

/// The parts of an all-reduce. All buffers have the layout of a member's inputs.
pub(crate) struct Sums {
    /// The processes that have members, in order, each with the bytes that it reduces.
    pub(crate) parts: Vec<(usize, Range<usize>)>,
    tensors: Vec<Tensor>,
}

/// A tensor in the buffer of each member.
struct Tensor {
    combiner: Combiner,
    dtype: DType,
    len: usize,
    offset: usize,
}

impl Tensor {
    /// The elements of it in a range of bytes of the buffer.
    fn elements(&self, part: &Range<usize>) -> Range<usize> {
        let element =
            |byte: usize| (byte.saturating_sub(self.offset) / self.dtype.size_bytes()).min(self.len);
        element(part.start)..element(part.end)
    }
}

impl Sums {
    /// The parts, if the collective has all-reduces alone and is large enough. `processes` are those of the members, and
    /// `offsets` the places of the tensors in a buffer of `bytes`.
    pub(crate) fn new(
        spec: &CollectiveSpec,
        processes: &[usize],
        offsets: &[usize],
        bytes: usize,
    ) -> Option<Sums> {
        let tensor = |(exchange, &offset): (&Exchange, &usize)| match *exchange {
            Exchange::AllReduce { combiner, dtype, len } => Some(Tensor { combiner, dtype, len, offset }),
            _ => None,
        };
        let tensors = spec.exchanges.iter().zip(offsets).map(tensor).collect::<Option<Vec<Tensor>>>()?;
        let mut all = processes.to_vec();
        all.sort_unstable();
        all.dedup();
        if all.len() < 2 || bytes < MIN_PART_BYTES * all.len() {
            return None;
        }
        let extent = bytes.div_ceil(all.len()).next_multiple_of(LINE_BYTES);
        let part = |place: usize| (extent * place).min(bytes)..(extent * (place + 1)).min(bytes);
        let parts = all.into_iter().enumerate().map(|(place, process)| (process, part(place))).collect();
        Some(Sums { parts, tensors })
    }

    /// The part that a process reduces.
    pub(crate) fn part(&self, process: usize) -> &Range<usize> {
        let part = self.parts.iter().find(|(other, _)| *other == process);
        &part.expect("a process with members").1
    }

    /// Reduces a part of the inputs of all members, in their order.
    pub(crate) fn reduce(&self, part: &Range<usize>, inputs: &[Arc<Buffer>], sum: &mut Buffer) {
        for tensor in self.tensors.iter().filter(|tensor| !tensor.elements(part).is_empty()) {
            let elements = tensor.elements(part);
            let whole = Reduction {
                combiner: tensor.combiner,
                dtype: tensor.dtype,
                rows: 1,
                len: elements.len(),
                input_offset: elements.start,
                input_stride: 0,
                output_offset: elements.start,
                output_stride: 0,
            };
            let output = sum.bytes_mut()[tensor.offset..].as_mut_ptr();
            for reduction in whole.split(PIECE_BYTES) {
                let sources = inputs.iter().map(|input| input.bytes()[tensor.offset..].as_ptr());
                // SAFETY: the elements are in the tensor, which every buffer has at this offset, aligned to lines within
                // words. The inputs are shared, so nothing writes them; the output is borrowed.
                unsafe { reduction.run(sources, std::iter::once(output), false) };
            }
        }
    }

    /// For each tensor, the bytes of it that a part has, in the buffer.
    pub(crate) fn ranges<'a>(
        &'a self,
        part: &'a Range<usize>,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        self.tensors.iter().enumerate().map(move |(exchange, tensor)| {
            let (size, elements) = (tensor.dtype.size_bytes(), tensor.elements(part));
            (exchange, tensor.offset + elements.start * size..tensor.offset + elements.end * size)
        })
    }

    /// Where a tensor begins in the buffer.
    pub(crate) fn offset(&self, exchange: usize) -> usize {
        self.tensors[exchange].offset
    }
}
