//! Convolution of any numbers, in three steps.
//!
//! 1. Tensors of a narrower type are copied: f16 and bf16 are computed in f32 and round once; integers wrap.
//! 2. Windows over an input with gaps (the gradient of a convolution with strides) are divided by which
//!    entries of the kernel meet elements; each share is a convolution without gaps (`gaps.rs`).
//! 3. Depthwise convolutions are summed in vectors of groups (`depthwise.rs`), all others are matmuls
//!    (`patches.rs`).
//!
//! Both gradients of a convolution are convolutions with other dimension numbers, and run in the same way.
//!
//! **Bits.** The sum of an element takes its products in the order of the kernel's dimensions, without the
//! entries that meet only gaps, and adds them as the matmul does (`gemm/mod.rs`): in blocks whose length depends on
//! their number alone, each in order by fused multiply-adds; padding counts as zeros. So an element depends on
//! its window, its kernel and the numbers of the convolution: not on the other windows, groups or features
//! that are computed with it, on strides, or on the vector width. Only the payload of a NaN may differ.

mod depthwise;
mod gaps;
mod patches;

use partita_base::DType;

use crate::convert::convert;
use crate::copy::fill;
use crate::element::{Element, Number};
use crate::gemm::Factor;
use crate::options::KernelOptions;
use crate::scalar::Scalar;
use crate::view::{View, ViewMut};
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

impl ConvolutionWindow {
    /// The position of an entry of the kernel, relative to the first of its window.
    fn entry(&self, entry: usize, entries: usize) -> usize {
        let place = if self.reversed { entries.saturating_sub(1 + entry) } else { entry };
        place * self.kernel_dilation
    }
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

impl Convolution {
    /// The number of groups, for the batch of the result.
    fn groups(&self, input: &View<'_>, kernel: &View<'_>, batch: usize) -> usize {
        let groups = match self.groups_of_batch {
            true => input.shape()[self.input.batch].checked_div(batch),
            false => input.shape()[self.input.feature].checked_div(kernel.shape()[self.kernel.feature]),
        };
        groups.unwrap_or(1).max(1)
    }
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
/// shapes: copies of those that are not of the type in which the sums are computed, and the results of one share of
/// the windows if the input has gaps.
pub fn convolution_workspace_bytes(op: &Convolution, tensors: [(DType, &[usize]); 3]) -> usize {
    let compute = compute_type(tensors.map(|(dtype, _)| dtype));
    let bytes = |count: usize| match compute {
        DType::F32 => piece_bytes::<f32>(count),
        _ => piece_bytes::<f64>(count),
    };
    let copies = tensors.iter().filter(|(dtype, _)| *dtype != compute);
    let copies: usize = copies.map(|(_, shape)| bytes(shape.iter().product())).sum();
    copies + bytes(gaps::share_elements(op, tensors[2].1))
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
        DType::F32 => {
            in_type::<f32>(options, op, input, kernel, out, &mut workspace, floats::<f32>(options, op))
        }
        DType::F64 => {
            in_type::<f64>(options, op, input, kernel, out, &mut workspace, floats::<f64>(options, op))
        }
        _ => in_type::<i64>(options, op, input, kernel, out, &mut workspace, |windows, x, w, out| {
            patches::integers(op, windows, x, w, out);
        }),
    }
}

/// A convolution without gaps.
fn floats<C: Number + Factor>(
    options: KernelOptions,
    op: &Convolution,
) -> impl FnMut(&[ConvolutionWindow], &View<'_>, &View<'_>, &mut ViewMut<'_>) {
    move |windows, x, w, out| {
        if !depthwise::sums::<C>(options, op, windows, x, w, out) {
            patches::matmuls::<C>(options, op, windows, x, w, out);
        }
    }
}

/// Calls `compute` for convolutions without gaps, with tensors of a type, which are copies of those of other
/// types.
fn in_type<C: Element>(
    options: KernelOptions,
    op: &Convolution,
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut Workspace<'_>,
    compute: impl FnMut(&[ConvolutionWindow], &View<'_>, &View<'_>, &mut ViewMut<'_>),
) {
    let [x, w] = [input, kernel].map(|view| {
        if view.dtype() == C::DTYPE {
            return *view;
        }
        let copy = workspace.take::<C>(view.len());
        convert(options, view, &mut ViewMut::of(copy, view.shape()));
        View::of(copy, view.shape())
    });
    if out.dtype() == C::DTYPE {
        return gaps::without::<C>(op, &x, &w, out, workspace, compute);
    }
    let mut wide = ViewMut::of(workspace.take::<C>(out.len()), out.shape());
    gaps::without::<C>(op, &x, &w, &mut wide, workspace, compute);
    convert(options, &wide.as_view(), out);
}
