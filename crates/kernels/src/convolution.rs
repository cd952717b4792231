//! Convolution as a matmul: the kernel as a matrix [output features, K] times the patches of the input
//! [K, windows], where K counts the input features and the entries of a window.
//!
//! The matrix of patches is a grid (`gemm/operand.rs`): packing reads its elements from the input, so it is
//! never stored, and the only scratch memory is the packing buffer of the matmul. Both gradients of a
//! convolution are convolutions with other dimension numbers, and run in the same way. f16 and bf16 are
//! computed in f32 and round once; integers wrap.
//!
//! **Bits.** Those of the matmul over the patches, whose K is in the order of the kernel's dimensions.

use partita_base::DType;

use crate::convert::convert;
use crate::copy::fill;
use crate::element::{Element, Number};
use crate::gemm::operand::{Grid, Index, Move, Side, Spatial};
use crate::gemm::{Factor, Part, product};
use crate::matrix::MatrixMut;
use crate::options::KernelOptions;
use crate::scalar::Scalar;
use crate::view::{MAX_RANK, View, ViewMut};
use crate::workspace::{Workspace, piece_bytes};

/// The dimensions of one tensor of a convolution. For the kernel, `batch` is that of the output features and
/// `feature` that of the input features.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvolutionDims {
    /// The batch.
    pub batch: usize,
    /// The features.
    pub feature: usize,
    /// The dimensions along which the window moves.
    pub spatial: Vec<usize>,
}

/// The window along one spatial dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvolutionWindow {
    /// The distance of two windows.
    pub stride: usize,
    /// Padding below; negative padding removes. The shape of the result implies the padding above.
    pub low: i64,
    /// The distance of two neighbours of the input.
    pub input_dilation: usize,
    /// The distance of two neighbours of the kernel.
    pub kernel_dilation: usize,
    /// Whether the kernel is reversed.
    pub reversed: bool,
}

/// What a convolution computes; all sizes are those of its tensors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Convolution {
    /// The dimensions of the input.
    pub input: ConvolutionDims,
    /// The dimensions of the kernel.
    pub kernel: ConvolutionDims,
    /// The dimensions of the result.
    pub output: ConvolutionDims,
    /// The window of each spatial dimension.
    pub windows: Vec<ConvolutionWindow>,
    /// Whether groups divide the batch of the input, instead of its features.
    pub groups_of_batch: bool,
}

/// The type in which the sums are computed.
fn compute_type(types: [DType; 3]) -> DType {
    match types {
        _ if types.contains(&DType::F64) => DType::F64,
        _ if types[0].is_float() => DType::F32,
        _ => DType::I64,
    }
}

/// Bytes of workspace that [`convolution`] needs for an input, a kernel and a result of these types and
/// numbers of elements: copies of those that are not of the type in which the sums are computed.
pub fn convolution_workspace_bytes(tensors: [(DType, usize); 3]) -> usize {
    let compute = compute_type(tensors.map(|(dtype, _)| dtype));
    let copies = tensors.iter().filter(|(dtype, _)| *dtype != compute);
    copies
        .map(
            |&(_, count)| {
                if compute == DType::F32 { piece_bytes::<f32>(count) } else { piece_bytes::<f64>(count) }
            },
        )
        .sum()
}

/// Each element of the result is the sum of products of a window of the input, over all its features, with
/// the kernel of its output feature. The number of groups follows from the shapes. The types are all floats
/// or all integers.
///
/// # Panics
/// Where shapes or types do not fit, or the workspace is too small.
pub fn convolution(
    options: KernelOptions,
    op: &Convolution,
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) {
    let types = [input.dtype(), kernel.dtype(), out.dtype()];
    assert!(types.iter().all(|dtype| dtype.is_float() == types[0].is_float()), "a convolution of {types:?}");
    if out.is_empty() {
        return;
    }
    if input.is_empty() || kernel.is_empty() {
        return fill(out, &Scalar::from_f64(out.dtype(), 0.0));
    }
    let mut workspace = Workspace::new(workspace);
    match compute_type(types) {
        DType::F32 => in_type::<f32>(input, kernel, out, &mut workspace, |x, w, out| {
            matmuls::<f32>(options, op, x, w, out);
        }),
        DType::F64 => in_type::<f64>(input, kernel, out, &mut workspace, |x, w, out| {
            matmuls::<f64>(options, op, x, w, out);
        }),
        _ => in_type::<i64>(input, kernel, out, &mut workspace, |x, w, out| integers(op, x, w, out)),
    }
}

/// Calls `compute` with tensors of a type, which are copies of those of other types.
fn in_type<C: Element>(
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut Workspace<'_>,
    compute: impl FnOnce(&View<'_>, &View<'_>, &mut ViewMut<'_>),
) {
    let [x, w] = [input, kernel].map(|view| {
        if view.dtype() == C::DTYPE {
            return *view;
        }
        let copy = workspace.take::<C>(view.len());
        convert(view, &mut ViewMut::of(copy, view.shape()));
        View::of(copy, view.shape())
    });
    if out.dtype() == C::DTYPE {
        return compute(&x, &w, out);
    }
    let mut wide = ViewMut::of(workspace.take::<C>(out.len()), out.shape());
    compute(&x, &w, &mut wide);
    convert(&wide.as_view(), out);
}

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
    let groups = match op.groups_of_batch {
        true => size(input, x.batch) / batch,
        false => size(input, x.feature).checked_div(inputs).unwrap_or(1).max(1),
    };
    assert!(
        shape.shape()[op.output.feature] == outputs
            && outputs.is_multiple_of(groups)
            && size(input, x.batch) == if op.groups_of_batch { groups * batch } else { batch }
            && size(input, x.feature) == if op.groups_of_batch { inputs } else { groups * inputs }
            && [x, w, &op.output].iter().all(|dims| dims.spatial.len() == op.windows.len()),
        "a convolution of {:?} and {:?} does not give {:?}",
        input.shape(),
        kernel.shape(),
        shape.shape()
    );
    let outputs = outputs / groups;
    let mut spatial = [Spatial::default(); MAX_RANK];
    for (number, window) in op.windows.iter().enumerate() {
        let last = size(kernel, w.spatial[number]).max(1) - 1;
        let first_entry = if window.reversed { last * window.kernel_dilation } else { 0 };
        spatial[number] = Spatial::new(
            size(input, x.spatial[number]),
            window.input_dilation,
            input.strides()[x.spatial[number]],
            first_entry as isize - window.low as isize,
        );
    }
    let spatial = &mut spatial[..op.windows.len()];

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
        let step = op.windows[number].kernel_dilation as isize;
        let step = if op.windows[number].reversed { -step } else { step };
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
            Some(number) => Move::Along(number, op.windows[number].stride as isize),
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

fn matmuls<C: Number + Factor>(
    options: KernelOptions,
    op: &Convolution,
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
) {
    products::<C>(op, input, kernel, out, |Product { kernel, patches, out, sizes }| {
        // SAFETY: the views guarantee the elements of both grids and of the result, which a writable view
        // keeps apart from the operands.
        unsafe { product::<C>(options, sizes, C::ONE, &kernel, &patches, out, false, Part::WHOLE) }
    });
}

/// Plain loops, for integers.
fn integers(op: &Convolution, input: &View<'_>, kernel: &View<'_>, out: &mut ViewMut<'_>) {
    products::<i64>(
        op,
        input,
        kernel,
        out,
        |Product { kernel, patches, out, sizes: [rows, depth, columns] }| {
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
        },
    );
}
