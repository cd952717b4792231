//! The reference evaluation of a convolution.

use super::Convolution;
use crate::complex::{self, Complex};
use crate::literal::{Literal, indices};
use crate::ops::reduce::Numbers;
use crate::types::TensorType;

/// The convolution of two literals of one kind of number.
pub(super) fn convolution(op: &Convolution, input: &Literal, kernel: &Literal, result: &TensorType) -> Literal {
    let numbers = match (Numbers::of(input), Numbers::of(kernel)) {
        (Numbers::Floats(x), Numbers::Floats(k)) => {
            Numbers::Floats(sums(op, input, kernel, result, 0.0, |sum, i, j| sum + x[i] * k[j]))
        }
        (Numbers::Ints(x), Numbers::Ints(k)) => {
            let add = |sum: i128, i: usize, j: usize| sum.wrapping_add(x[i].wrapping_mul(k[j]));
            Numbers::Ints(sums(op, input, kernel, result, 0, add))
        }
        (Numbers::Complex(x), Numbers::Complex(k)) => {
            let add = |sum: Complex, i: usize, j: usize| complex::add(sum, complex::multiply(x[i], k[j]));
            Numbers::Complex(sums(op, input, kernel, result, [0.0, 0.0], add))
        }
        _ => unreachable!("operands are of one kind"),
    };
    numbers.literal(result)
}

/// For each element of the result, in order, the sum over all pairs of an input element
/// and the kernel element it is multiplied by, as positions.
fn sums<T: Copy>(
    op: &Convolution,
    input: &Literal,
    kernel: &Literal,
    result: &TensorType,
    zero: T,
    add: impl Fn(T, usize, usize) -> T,
) -> Vec<T> {
    let (x, k) = (&input.ty, &kernel.ty);
    let (x_strides, k_strides) = (x.strides(), k.strides());
    let inputs = k.shape[op.kernel.feature];
    let per_group = k.shape[op.kernel.batch] / op.feature_groups.max(op.batch_groups);
    let batch = result.shape[op.output.batch];
    let window: Vec<usize> = op.kernel.spatial.iter().map(|&dim| k.shape[dim]).collect();
    let entries: Vec<Vec<usize>> = indices(&window).collect();
    let element = |place: Vec<usize>| {
        let output = place[op.output.feature];
        let group = output / per_group.max(1);
        let first = if op.feature_groups > 1 { group * inputs } else { 0 };
        let row = place[op.output.batch] + if op.batch_groups > 1 { group * batch } else { 0 };
        let x_start = row * x_strides[op.input.batch] + first * x_strides[op.input.feature];
        let k_start = output * k_strides[op.kernel.batch];
        let mut sum = zero;
        for entry in &entries {
            // The positions of the entry in input and kernel; `None` in padding and gaps.
            let meet = (0..window.len()).try_fold((x_start, k_start), |(x_at, k_at), number| {
                let (dim, own) = (op.input.spatial[number], &op.windows[number]);
                let window_at = place[op.output.spatial[number]];
                let from = own.source(x.shape[dim], window[number], window_at, entry[number])?;
                Some((x_at + from * x_strides[dim], k_at + entry[number] * k_strides[op.kernel.spatial[number]]))
            });
            let Some((x_at, k_at)) = meet else { continue };
            for feature in 0..inputs {
                let (i, j) = (feature * x_strides[op.input.feature], feature * k_strides[op.kernel.feature]);
                sum = add(sum, x_at + i, k_at + j);
            }
        }
        sum
    };
    indices(&result.shape).map(element).collect()
}
