//! A convolution without gaps as a matmul: the kernel as a matrix [output features, K] times the patches of the
//! input [K, windows], where K counts the input features and the entries of a window.
//!
//! The matrix of patches is a grid (`gemm/operand.rs`): packing reads its elements from the input, so it is
//! never stored, and the only scratch memory is the packing buffer of the matmul.

use super::{Convolution, ConvolutionWindow};
use crate::element::{Element, Number};
use crate::gemm::operand::{Grid, Index, Move, Side, Spatial};
use crate::gemm::{Factor, Part, product};
use crate::matrix::MatrixMut;
use crate::options::KernelOptions;
use crate::view::{MAX_RANK, View, ViewMut};

/// One group of a convolution: the kernel's matrix times the patches of some windows. The elements of the
/// result are at constant strides along both.
struct Product<C> {
    kernel: Grid<C>,
    patches: Grid<C>,
    out: MatrixMut<C>,
    /// Output features, terms of each sum, windows.
    sizes: [usize; 3],
}

/// Calls `each` with the products of a convolution.
fn products<C: Element>(
    op: &Convolution,
    windows: &[ConvolutionWindow],
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
    mut each: impl FnMut(Product<C>),
) {
    let (x, w) = (&op.input, &op.kernel);
    let size = |view: &View<'_>, dim: usize| view.shape()[dim];
    let (inputs, outputs) = (size(kernel, w.feature), size(kernel, w.batch));
    let first: *mut C = out.as_mut_ptr().cast();
    let shape = out.as_view();
    let batch = shape.shape()[op.output.batch];
    let groups = op.groups(input, kernel, batch);
    assert!(
        shape.shape()[op.output.feature] == outputs
            && outputs.is_multiple_of(groups)
            && size(input, x.batch) == if op.groups_of_batch { groups * batch } else { batch }
            && size(input, x.feature) == if op.groups_of_batch { inputs } else { groups * inputs }
            && windows.iter().all(|window| window.input_dilation == 1)
            && [x, w, &op.output].iter().all(|dims| dims.spatial.len() == windows.len()),
        "a convolution of {:?} and {:?} does not give {:?}",
        input.shape(),
        kernel.shape(),
        shape.shape()
    );
    let outputs = outputs / groups;
    let mut spatial = [Spatial::default(); MAX_RANK];
    for (number, window) in windows.iter().enumerate() {
        let dim = x.spatial[number];
        let first_entry = window.entry(0, size(kernel, w.spatial[number])) as isize;
        spatial[number] =
            Spatial::new(size(input, dim), input.strides()[dim], first_entry - window.low as isize);
    }
    let spatial = &mut spatial[..windows.len()];

    // The terms, in the order of the kernel's dimensions.
    let term = |dim: usize| -> Option<[Index; 2]> {
        let size = size(kernel, dim);
        let own = Index { size, moves: Move::By(kernel.strides()[dim]) };
        if dim == w.batch {
            return None;
        }
        let Some(number) = w.spatial.iter().position(|&d| d == dim) else {
            return Some([own, Index { size, moves: Move::By(input.strides()[x.feature]) }]);
        };
        let step = windows[number].kernel_dilation as isize;
        let step = if windows[number].reversed { -step } else { step };
        Some([own, Index { size, moves: Move::Along(number, step) }])
    };
    let terms = || (0..kernel.rank()).filter_map(term);
    let depth = terms().map(|[index, _]| index.size).product();

    // The windows, in the order of the result in memory. The inner ones are at a constant stride.
    let mut order = [0; MAX_RANK];
    let mut count = 0;
    for dim in (0..shape.rank()).filter(|&dim| dim != op.output.feature && shape.shape()[dim] != 1) {
        order[count] = dim;
        count += 1;
    }
    let order = &mut order[..count];
    order.sort_by_key(|&dim| std::cmp::Reverse(shape.strides()[dim].unsigned_abs()));
    let merges = |pair: &[usize]| {
        shape.strides()[pair[0]] == shape.strides()[pair[1]] * shape.shape()[pair[1]] as isize
    };
    let inner = order.windows(2).rposition(|pair| !merges(pair)).map_or(0, |at| at + 1);
    let (outer, inner) = order.split_at(inner);
    let window = |dim: usize| -> Index {
        let moves = match op.output.spatial.iter().position(|&d| d == dim) {
            Some(number) => Move::Along(number, windows[number].stride as isize),
            None => Move::By(input.strides()[x.batch]),
        };
        Index { size: shape.shape()[dim], moves }
    };
    let width = inner.iter().map(|&dim| shape.shape()[dim]).product();
    let strides = [shape.strides()[op.output.feature], inner.last().map_or(1, |&dim| shape.strides()[dim])];

    let (grouped, group_size) = if op.groups_of_batch { (x.batch, batch) } else { (x.feature, inputs) };
    let blocks: usize = outer.iter().map(|&dim| shape.shape()[dim]).product();
    for block in 0..groups * blocks {
        let (group, mut rest) = (block / blocks, block % blocks);
        let group_at = |elements: usize, stride: isize| (group * elements) as isize * stride;
        let mut from = group_at(group_size, input.strides()[grouped]);
        let mut to = group_at(outputs, strides[0]);
        let mut spatial_here = [Spatial::default(); MAX_RANK];
        spatial_here[..spatial.len()].copy_from_slice(spatial);
        for &dim in outer.iter().rev() {
            let at = (rest % shape.shape()[dim]) as isize;
            rest /= shape.shape()[dim];
            to += at * shape.strides()[dim];
            match window(dim).moves {
                Move::By(step) => from += at * step,
                Move::Along(number, step) => spatial_here[number].origin += at * step,
            }
        }
        let features = Index { size: outputs, moves: Move::By(kernel.strides()[w.batch]) };
        let weights = kernel.as_ptr().cast::<C>();
        let weights = weights.wrapping_offset(group_at(outputs, kernel.strides()[w.batch]));
        each(Product {
            kernel: Grid::new(
                weights,
                &[],
                Side::new([features].into_iter()),
                Side::new(terms().map(|[own, _]| own)),
            ),
            patches: Grid::new(
                input.as_ptr().cast::<C>().wrapping_offset(from),
                &spatial_here[..spatial.len()],
                Side::new(terms().map(|[_, moves]| moves)),
                Side::new(inner.iter().map(|&dim| window(dim))),
            ),
            out: MatrixMut { pointer: first.wrapping_offset(to), row: strides[0], column: strides[1] },
            sizes: [outputs, depth, width],
        });
    }
}

/// The convolution as matmuls.
pub(super) fn matmuls<C: Number + Factor>(
    options: KernelOptions,
    op: &Convolution,
    windows: &[ConvolutionWindow],
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
) {
    products::<C>(op, windows, input, kernel, out, |Product { kernel, patches, out, sizes }| {
        // SAFETY: the views guarantee the elements of both grids and of the result, which a writable view
        // keeps apart from the operands.
        unsafe { product::<C>(options, sizes, C::ONE, &kernel, &patches, out, false, Part::WHOLE) }
    });
}

/// Plain loops, for integers.
pub(super) fn integers(
    op: &Convolution,
    windows: &[ConvolutionWindow],
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
) {
    products::<i64>(op, windows, input, kernel, out, |Product { kernel, patches, out, sizes }| {
        let [rows, depth, columns] = sizes;
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            let mut sum = 0i64;
            for p in 0..depth {
                if let (Some(left), Some(right)) = (kernel.find(i, p), patches.find(p, j)) {
                    // SAFETY: the views guarantee the elements that a grid finds.
                    sum = unsafe { sum.wrapping_add(left.read().wrapping_mul(right.read())) };
                }
            }
            // SAFETY: row and column are inside the result.
            unsafe { out.rows_after(i).columns_after(j).pointer.write(sum) };
        }
    });
}
