//! `dot_general` as a batch of strided matmuls.
//!
//! The dimensions form four groups: batch, left free, right free, contracted. Adjacent dimensions of a group
//! are merged if they are contiguous with each other in every tensor that has them. All but one of the
//! remaining free dimensions join the batch, with stride 0 in the other operand. The contracted group must
//! become one dimension, because splitting the sum would change its bits: an operand in which that is
//! impossible is copied first.

use partita_base::DType;
use partita_ir::TensorType;
use partita_ir::ops::DotGeneral;
use partita_kernels::{self as kernels, KernelOptions, MAX_RANK, View, ViewMut};

use super::{Kernel, Value};
use crate::arena::{Memory, Place, Span, dense_strides};

/// A dimension: its size, and its strides in left operand, right operand and result (0 if a tensor does not
/// have it).
type Axis = (usize, [isize; 3]);

/// Merges adjacent dimensions that are contiguous; drops those of size one.
fn merge(axes: impl Iterator<Item = Axis>) -> Vec<Axis> {
    let mut merged: Vec<Axis> = Vec::new();
    for (size, strides) in axes.filter(|(size, _)| *size != 1) {
        let goes_on =
            |outer: &Axis| outer.1.iter().zip(strides).all(|(&outer, inner)| outer == inner * size as isize);
        match merged.last_mut() {
            Some(last) if goes_on(last) => *last = (last.0 * size, strides),
            _ => merged.push((size, strides)),
        }
    }
    merged
}

/// A matrix operand: its place, and whether it is copied to the workspace first.
struct Operand {
    /// Dimensions in the order batch, free, contracted.
    place: Place,
    copied: bool,
}

impl Operand {
    fn strides(&self) -> Vec<isize> {
        if self.copied { dense_strides(&self.place.shape) } else { self.place.strides.clone() }
    }

    fn copy_bytes(&self) -> usize {
        let bytes = self.place.element_count() * self.place.dtype.size_bytes();
        if self.copied { bytes.next_multiple_of(64) + 64 } else { 0 }
    }
}

/// The shape and strides of one tensor of the matmul.
struct Matrices {
    shape: Vec<usize>,
    strides: Vec<isize>,
}

/// Whether adding the matmul to `sum` in the kernel gives the bits of a separate addition: if k is a single
/// block.
pub(super) fn adds_at_once(op: &DotGeneral, lhs: &TensorType, sum: &TensorType) -> bool {
    let terms = op.terms(&lhs.shape);
    let block = kernels::matmul_sum_block(lhs.dtype, terms);
    lhs.dtype == sum.dtype && block.is_some_and(|block| (1..=block).contains(&terms))
}

/// The matmul of two operands, added to `sum` if there is one.
pub(super) fn compile(
    op: &DotGeneral,
    options: KernelOptions,
    operands: &[Value],
    sum: Option<&Value>,
    out: Place,
) -> Option<Kernel> {
    let (lhs, rhs) = (operands[0].place()?, operands[1].place()?);
    let widens = matches!(lhs.dtype, DType::F16 | DType::BF16) && out.dtype == DType::F32;
    if lhs.dtype != rhs.dtype || (out.dtype != lhs.dtype && !widens) {
        return None;
    }
    let free = |rank: usize, taken: [&[usize]; 2]| -> Vec<usize> {
        (0..rank).filter(|d| !taken.iter().any(|t| t.contains(d))).collect()
    };
    let lhs_free = free(lhs.shape.len(), [&op.lhs_batch, &op.lhs_contracting]);
    let rhs_free = free(rhs.shape.len(), [&op.rhs_batch, &op.rhs_contracting]);
    // The sum runs in the order of the left operand's dimensions, in whatever order the op lists them.
    let mut contracted: Vec<(usize, usize)> =
        op.lhs_contracting.iter().copied().zip(op.rhs_contracting.iter().copied()).collect();
    contracted.sort_unstable();
    let order = |batch: &[usize], free: &[usize], contracted: Vec<usize>| [batch, free, &contracted].concat();
    let lhs = lhs.permuted(&order(&op.lhs_batch, &lhs_free, contracted.iter().map(|c| c.0).collect()));
    let rhs = rhs.permuted(&order(&op.rhs_batch, &rhs_free, contracted.iter().map(|c| c.1).collect()));
    let (batch, m, n, k) = (op.lhs_batch.len(), lhs_free.len(), rhs_free.len(), contracted.len());
    let product = |shape: &[usize]| -> usize { shape.iter().product() };
    let [m_size, n_size, k_size] = [
        product(&lhs.shape[batch..batch + m]),
        product(&rhs.shape[batch..batch + n]),
        product(&lhs.shape[batch + m..]),
    ];

    // An operand is copied if its contracted dimensions do not merge.
    let own = |place: &Place, from: usize| {
        let axes = (from..from + k).map(|d| (place.shape[d], [place.strides[d], 0, 0]));
        merge(axes).len() > 1 && place.element_count() > 0
    };
    let mut lhs = Operand { copied: own(&lhs, batch + m), place: lhs };
    let mut rhs = Operand { copied: own(&rhs, batch + n), place: rhs };
    let axes = |lhs: &Operand, rhs: &Operand| {
        let (ls, rs) = (lhs.strides(), rhs.strides());
        let contracted = merge(
            (0..k).map(|i| (lhs.place.shape[batch + m + i], [ls[batch + m + i], rs[batch + n + i], 0])),
        );
        let batched = merge((0..batch).map(|i| (out.shape[i], [ls[i], rs[i], out.strides[i]])));
        let rows = merge((batch..batch + m).map(|i| (out.shape[i], [ls[i], 0, out.strides[i]])));
        let columns =
            merge((0..n).map(|i| (out.shape[batch + m + i], [0, rs[batch + i], out.strides[batch + m + i]])));
        (contracted, batched, rows, columns)
    };
    if axes(&lhs, &rhs).0.len() > 1 && k_size > 0 {
        // Each merges alone, but not both together. That should not occur after sizes of one are dropped, but
        // copies are always correct.
        (lhs.copied, rhs.copied) = (true, true);
    }
    let (contracted, mut batched, mut rows, mut columns) = axes(&lhs, &rhs);
    let one: Axis = (1, [0, 0, 0]);
    let row = rows.pop().unwrap_or(one);
    let column = columns.pop().unwrap_or(one);
    let inner = if k_size == 0 { (0, [0, 0, 0]) } else { contracted.last().copied().unwrap_or(one) };
    batched.extend(rows);
    batched.extend(columns);
    if batched.len() + 2 > MAX_RANK || lhs.place.shape.len() > MAX_RANK || rhs.place.shape.len() > MAX_RANK {
        return None;
    }
    let matrices = |tensor: usize, last: [Axis; 2]| Matrices {
        shape: batched.iter().chain(&last).map(|axis| axis.0).collect(),
        strides: batched.iter().chain(&last).map(|axis| axis.1[tensor]).collect(),
    };
    // A dimension that the other operand does not have has stride 0 there.
    let shapes = [matrices(0, [row, inner]), matrices(1, [inner, column]), matrices(2, [row, column])];
    let out_place =
        Place { shape: shapes[2].shape.clone(), strides: shapes[2].strides.clone(), ..out.clone() };
    let [lhs_shape, rhs_shape, _] = shapes;
    // The matmul accumulates into `out`; if `sum` is stored elsewhere, it is copied there first.
    let accumulate = sum.is_some();
    let copied = sum.filter(|sum| sum.place() != Some(&out)).map(|sum| (sum.clone(), out.clone()));
    let dtype = lhs.place.dtype;
    let product_bytes = kernels::matmul_workspace_bytes(dtype, m_size, k_size, n_size);
    let workspace_bytes = product_bytes + lhs.copy_bytes() + rhs.copy_bytes();
    Some(Kernel::new(workspace_bytes, move |memory: &Memory<'_>, workspace: Span| {
        if let Some((sum, out)) = &copied {
            kernels::copy(&sum.view(memory), &mut memory.view_mut(out));
        }
        let rest = memory.bytes_mut(workspace);
        let (lhs_copy, rest) = rest.split_at_mut(lhs.copy_bytes());
        let (rhs_copy, rest) = rest.split_at_mut(rhs.copy_bytes());
        let lhs = operand(memory, &lhs, &lhs_shape, lhs_copy);
        let rhs = operand(memory, &rhs, &rhs_shape, rhs_copy);
        kernels::matmul(options, &lhs, &rhs, &mut memory.view_mut(&out_place), accumulate, rest);
        Ok(())
    }))
}

/// The operand as matrices, copied first if necessary.
fn operand<'a>(memory: &Memory<'a>, operand: &Operand, matrices: &Matrices, copy: &'a mut [u8]) -> View<'a> {
    let (place, dtype) = (&operand.place, operand.place.dtype);
    if !operand.copied {
        // The operand's offset and type with other dimensions, built without allocation.
        return memory.view_with(place, &matrices.shape, &matrices.strides);
    }
    let skip = copy.as_ptr().align_offset(64);
    let copy = &mut copy[skip..];
    kernels::copy(&memory.view(place), &mut ViewMut::contiguous(copy, dtype, &place.shape));
    View::strided(copy, 0, dtype, &matrices.shape, &matrices.strides)
}
