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
    let first: *mut C = out.as_mut_ptr().cast();
    let shape = out.as_view();
    let patches = Patches { op, windows, input, kernel, out: &shape };
    let groups = patches.groups();
    let order = patches.order();
    let (outer, inner) = order.split();
    let spatial = patches.spatial();
    let blocks: usize = outer.iter().map(|&dim| shape.shape()[dim]).product();
    for block in 0..groups * blocks {
        each(patches.product(first, groups, &spatial, [block / blocks, block % blocks], [outer, inner]));
    }
}

/// A convolution whose windows are the columns of matrices.
struct Patches<'a> {
    op: &'a Convolution,
    windows: &'a [ConvolutionWindow],
    input: &'a View<'a>,
    kernel: &'a View<'a>,
    out: &'a View<'a>,
}

/// Dimensions of the result, the outermost in memory first; the last ones are at a constant stride.
struct Order {
    dims: [usize; MAX_RANK],
    outer: usize,
    count: usize,
}

impl Order {
    fn split(&self) -> (&[usize], &[usize]) {
        self.dims[..self.count].split_at(self.outer)
    }
}

impl Patches<'_> {
    /// The number of groups, whose shapes must fit.
    fn groups(&self) -> usize {
        let Patches { op, windows, input, kernel, out } = self;
        let (x, w) = (&op.input, &op.kernel);
        let (inputs, outputs) = (kernel.shape()[w.feature], kernel.shape()[w.batch]);
        let batch = out.shape()[op.output.batch];
        let groups = op.groups(input, kernel, batch);
        assert!(
            out.shape()[op.output.feature] == outputs
                && outputs.is_multiple_of(groups)
                && input.shape()[x.batch] == if op.groups_of_batch { groups * batch } else { batch }
                && input.shape()[x.feature] == if op.groups_of_batch { inputs } else { groups * inputs }
                && windows.iter().all(|window| window.input_dilation == 1)
                && [x, w, &op.output].iter().all(|dims| dims.spatial.len() == windows.len()),
            "a convolution of {:?} and {:?} does not give {:?}",
            input.shape(),
            kernel.shape(),
            out.shape()
        );
        groups
    }

    /// The spatial dimensions of the input, from the first entry of the first window on.
    fn spatial(&self) -> [Spatial; MAX_RANK] {
        let Patches { op, windows, input, kernel, .. } = self;
        let mut spatial = [Spatial::default(); MAX_RANK];
        for (number, window) in windows.iter().enumerate() {
            let dim = op.input.spatial[number];
            let first_entry = window.entry(0, kernel.shape()[op.kernel.spatial[number]]) as isize;
            let origin = first_entry - window.low as isize;
            spatial[number] = Spatial::new(input.shape()[dim], input.strides()[dim], origin);
        }
        spatial
    }

    /// The terms of the sums as indices of the kernel and of the input, in the order of the kernel's dimensions.
    fn terms(&self) -> impl Iterator<Item = [Index; 2]> {
        (0..self.kernel.rank()).filter_map(|dim| self.term(dim))
    }

    fn term(&self, dim: usize) -> Option<[Index; 2]> {
        let Patches { op, windows, input, kernel, .. } = self;
        let size = kernel.shape()[dim];
        let own = Index { size, moves: Move::By(kernel.strides()[dim]) };
        if dim == op.kernel.batch {
            return None;
        }
        let Some(number) = op.kernel.spatial.iter().position(|&d| d == dim) else {
            return Some([own, Index { size, moves: Move::By(input.strides()[op.input.feature]) }]);
        };
        let step = windows[number].kernel_dilation as isize;
        let step = if windows[number].reversed { -step } else { step };
        Some([own, Index { size, moves: Move::Along(number, step) }])
    }

    /// The windows, in the order of the result in memory. The inner ones are at a constant stride.
    fn order(&self) -> Order {
        let Patches { op, out, .. } = self;
        let mut dims = [0; MAX_RANK];
        let mut count = 0;
        for dim in (0..out.rank()).filter(|&dim| dim != op.output.feature && out.shape()[dim] != 1) {
            dims[count] = dim;
            count += 1;
        }
        let order = &mut dims[..count];
        order.sort_by_key(|&dim| std::cmp::Reverse(out.strides()[dim].unsigned_abs()));
        let merges =
            |pair: &[usize]| out.strides()[pair[0]] == out.strides()[pair[1]] * out.shape()[pair[1]] as isize;
        let outer = order.windows(2).rposition(|pair| !merges(pair)).map_or(0, |at| at + 1);
        Order { dims, outer, count }
    }

    /// How the windows along a dimension of the result move through the input.
    fn window(&self, dim: usize) -> Index {
        let Patches { op, windows, input, out, .. } = self;
        let moves = match op.output.spatial.iter().position(|&d| d == dim) {
            Some(number) => Move::Along(number, windows[number].stride as isize),
            None => Move::By(input.strides()[op.input.batch]),
        };
        Index { size: out.shape()[dim], moves }
    }

    /// The product of a group and a block: `block` counts the positions along the outer dimensions. `first` is the first
    /// element of the result.
    fn product<C: Element>(
        &self,
        first: *mut C,
        groups: usize,
        spatial: &[Spatial; MAX_RANK],
        [group, block]: [usize; 2],
        [outer, inner]: [&[usize]; 2],
    ) -> Product<C> {
        let Patches { op, windows, input, kernel, out } = self;
        let (x, w) = (&op.input, &op.kernel);
        let outputs = kernel.shape()[w.batch] / groups;
        let depth = self.terms().map(|[index, _]| index.size).product();
        let width = inner.iter().map(|&dim| out.shape()[dim]).product();
        let strides = [out.strides()[op.output.feature], inner.last().map_or(1, |&dim| out.strides()[dim])];
        let (grouped, group_size) = match op.groups_of_batch {
            true => (x.batch, out.shape()[op.output.batch]),
            false => (x.feature, kernel.shape()[w.feature]),
        };
        let group_at = |elements: usize, stride: isize| (group * elements) as isize * stride;
        let mut from = group_at(group_size, input.strides()[grouped]);
        let mut to = group_at(outputs, strides[0]);
        let mut spatial_here = *spatial;
        let mut rest = block;
        for &dim in outer.iter().rev() {
            let at = (rest % out.shape()[dim]) as isize;
            rest /= out.shape()[dim];
            to += at * out.strides()[dim];
            match self.window(dim).moves {
                Move::By(step) => from += at * step,
                Move::Along(number, step) => spatial_here[number].origin += at * step,
            }
        }
        let features = Index { size: outputs, moves: Move::By(kernel.strides()[w.batch]) };
        let weights = kernel.as_ptr().cast::<C>();
        let weights = weights.wrapping_offset(group_at(outputs, kernel.strides()[w.batch]));
        Product {
            kernel: Grid::new(
                weights,
                &[],
                Side::new([features].into_iter()),
                Side::new(self.terms().map(|[own, _]| own)),
            ),
            patches: Grid::new(
                input.as_ptr().cast::<C>().wrapping_offset(from),
                &spatial_here[..windows.len()],
                Side::new(self.terms().map(|[_, moves]| moves)),
                Side::new(inner.iter().map(|&dim| self.window(dim))),
            ),
            out: MatrixMut { pointer: first.wrapping_offset(to), row: strides[0], column: strides[1] },
            sizes: [outputs, depth, width],
        }
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
