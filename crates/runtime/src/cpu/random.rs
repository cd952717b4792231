//! Random numbers by element: bits of a seed and a position in the global tensor, and the floats that are made of them.

use partita_base::DType;
use partita_kernels::{
    self as kernels, ElementwiseOp, ElementwiseProgram, EwInstr, KernelOptions, MAX_RANK, Scalar, View,
    ViewMut,
};

use super::{Kernel, Value, integer};
use crate::arena::{Memory, Place};

/// What is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Draw {
    /// Bits.
    Bits,
    /// Numbers in (0, 1).
    Uniform,
    /// Normal numbers.
    Normal,
}

/// Elements whose random bits are drawn at a time before they become floats.
const DRAWN: usize = 1 << 14;

/// The kernel that draws `out`: bits, or floats made of them. The operands are the seed and the offsets of the part.
pub(super) fn random(
    kernel_options: KernelOptions,
    operands: Vec<Value>,
    out: Place,
    (cut, begin): (usize, usize),
    stream: u64,
    global: Vec<u64>,
    draw: Draw,
) -> Option<Kernel> {
    let rank = out.shape.len();
    let Value::Place(offsets_place) = &operands[1] else {
        // One element: the offset is the same in every dimension.
        return None;
    };
    let offsets_dtype = offsets_place.dtype;
    if !offsets_dtype.is_integer() {
        return None;
    }
    let read = move |memory: &Memory<'_>| -> (u64, [u64; MAX_RANK]) {
        let seed = operands[0].scalar(memory);
        let seed = if seed.dtype() == DType::U64 { seed.get::<u64>() } else { integer(seed) as u64 };
        let step = operands[1].stride(0);
        let offset = |d: usize| integer(operands[1].element(memory, d as isize * step)) as u64;
        let mut offsets = std::array::from_fn(|d| if d < rank { offset(d) } else { 0 });
        offsets[cut] = offsets[cut].wrapping_add(begin as u64);
        (seed, offsets)
    };
    if draw == Draw::Bits {
        return Some(Kernel::plain(move |memory| {
            let (seed, offsets) = read(memory);
            kernels::random_bits(
                kernel_options,
                seed,
                stream,
                &offsets[..rank],
                &global,
                &mut memory.view_mut(&out),
            );
        }));
    }
    let program = to_numbers(draw, out.dtype)?;
    // Whole slices along the first dimension, a few at a time.
    let inner: usize = out.shape[1..].iter().product();
    let slices = (DRAWN / inner.max(1)).clamp(1, out.shape[0].max(1));
    let drawn_bytes = (slices * inner * 4).next_multiple_of(64) + 64;
    let bytes = drawn_bytes + kernels::elementwise_workspace_bytes(&program);
    Some(Kernel::new(bytes, move |memory, workspace| {
        let (seed, mut offsets) = read(memory);
        let (drawn, scratch) = memory.bytes_mut(workspace).split_at_mut(drawn_bytes);
        let skip = drawn.as_ptr().align_offset(64);
        let drawn = &mut drawn[skip..];
        let mut shape = [0; MAX_RANK];
        shape[..rank].copy_from_slice(&out.shape);
        let shape = &mut shape[..rank];
        let mut start = 0;
        while start < out.shape[0] {
            let limit = (start + slices).min(out.shape[0]);
            shape[0] = limit - start;
            kernels::random_bits(
                kernel_options,
                seed,
                stream,
                &offsets[..rank],
                &global,
                &mut ViewMut::contiguous(drawn, DType::U32, shape),
            );
            let target = memory.view_mut(&out).slice(0, start, limit, 1);
            let bits = View::contiguous(drawn, DType::U32, shape);
            kernels::run_elementwise(kernel_options, &program, &[bits], &mut [target], shape, scratch);
            offsets[0] = offsets[0].wrapping_add((limit - start) as u64);
            start = limit;
        }
        Ok(())
    }))
}

/// Converts 24 of the 32 bits to a number in (0, 1), or to the normal number of that quantile, as the
/// decompositions define it.
fn to_numbers(draw: Draw, dtype: DType) -> Option<ElementwiseProgram> {
    let mut registers = vec![DType::U32];
    let mut instructions = Vec::new();
    let mut push = |op: ElementwiseOp, args: Vec<usize>, dtype: DType| {
        registers.push(dtype);
        instructions.push(EwInstr { op, args, out: registers.len() - 1 });
        registers.len() - 1
    };
    let number = |value: f64| ElementwiseOp::Constant(Scalar::new(value));
    let (add, multiply) =
        (ElementwiseOp::Binary(kernels::Binary::Add), ElementwiseOp::Binary(kernels::Binary::Mul));
    let eight = push(ElementwiseOp::Constant(Scalar::new(8u32)), vec![], DType::U32);
    let bits = push(ElementwiseOp::Binary(kernels::Binary::ShiftRightLogical), vec![0, eight], DType::U32);
    let mut x = push(ElementwiseOp::Convert, vec![bits], DType::F64);
    let mut steps = vec![(add, 0.5), (multiply, 1.0 / 16777216.0)];
    if draw == Draw::Normal {
        steps.extend([(multiply, 2.0), (add, -1.0)]);
    }
    for (op, value) in steps {
        let constant = push(number(value), vec![], DType::F64);
        x = push(op, vec![x, constant], DType::F64);
    }
    if draw == Draw::Normal {
        x = push(ElementwiseOp::Unary(kernels::Unary::ErfInv), vec![x], DType::F64);
        let root = push(number(std::f64::consts::SQRT_2), vec![], DType::F64);
        x = push(multiply, vec![x, root], DType::F64);
    }
    if dtype != DType::F64 {
        x = push(ElementwiseOp::Convert, vec![x], dtype);
    }
    ElementwiseProgram::new(registers, 1, instructions, vec![x]).ok()
}
