//! Convolutions over an input with gaps, as convolutions without.
//!
//! Along a dimension, which entries of the kernel meet an element depends only on the remainder of the
//! window's number by a period. So the windows are divided into one share for each remainder; the entries
//! that its windows use have a period too, and both meet elements at constant distances. Each share is a convolution
//! of the same input with a part of the kernel, in total as much work as the elements need.
//!
//! The results of a share lie apart in memory. They are computed side by side in the workspace, some images
//! at a time, and copied to their places.

use super::{Convolution, ConvolutionWindow};
use crate::copy::{copy, fill};
use crate::element::Element;
use crate::scalar::Scalar;
use crate::view::{MAX_RANK, View, ViewMut};
use crate::windows::each_index;
use crate::workspace::Workspace;

/// Elements of a share that are computed at once, if that is more than one image.
const TOGETHER: usize = 1 << 16;

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

impl ConvolutionWindow {
    /// The number of shares of the windows along a dimension.
    fn shares(&self) -> usize {
        self.input_dilation / common_divisor(self.stride, self.input_dilation)
    }
}

/// The windows `number, number + period, ..` along one dimension.
struct Share {
    /// The first of the entries that they use, and the distance of these entries; none if all meet gaps.
    entries: Option<(usize, usize)>,
    window: ConvolutionWindow,
}

impl Share {
    fn new(window: &ConvolutionWindow, number: usize, entries: usize) -> Share {
        let gap = window.input_dilation;
        let period = gap / common_divisor(window.kernel_dilation, gap);
        let place =
            |entry: usize| (number * window.stride + window.entry(entry, entries)) as i64 - window.low;
        let first = (0..period.min(entries)).find(|&entry| place(entry).rem_euclid(gap as i64) == 0);
        let mut own = ConvolutionWindow { input_dilation: 1, ..*window };
        let Some(first) = first else { return Share { entries: None, window: own } };
        let count = (entries - first).div_ceil(period);
        own.stride = window.shares() * window.stride / gap;
        own.kernel_dilation = period * window.kernel_dilation / gap;
        own.low = own.entry(0, count) as i64 - place(first) / gap as i64;
        Share { entries: Some((first, period)), window: own }
    }
}

/// The sizes of the largest share of a result, and how many images are computed at once.
fn largest(op: &Convolution, shape: &[usize]) -> ([usize; MAX_RANK], usize) {
    let mut sizes = [1; MAX_RANK];
    sizes[..shape.len()].copy_from_slice(shape);
    for (window, &dim) in op.windows.iter().zip(&op.output.spatial) {
        sizes[dim] = sizes[dim].div_ceil(window.shares());
    }
    let batch = std::mem::replace(&mut sizes[op.output.batch], 1);
    let image: usize = sizes[..shape.len()].iter().product();
    // Groups of the batch are images of other groups.
    let together = if op.groups_of_batch { batch } else { (TOGETHER / image.max(1)).clamp(1, batch.max(1)) };
    sizes[op.output.batch] = together;
    (sizes, together)
}

/// The most elements of a share that are computed at once; none if there is only one share.
pub(super) fn share_elements(op: &Convolution, shape: &[usize]) -> usize {
    match op.windows.iter().any(|window| window.shares() > 1) {
        true => largest(op, shape).0[..shape.len()].iter().product(),
        false => 0,
    }
}

/// Calls `compute` with the windows, the input, the kernel and the result of convolutions without gaps.
pub(super) fn without<C: Element>(
    op: &Convolution,
    input: &View<'_>,
    kernel: &View<'_>,
    out: &mut ViewMut<'_>,
    workspace: &mut Workspace<'_>,
    mut compute: impl FnMut(&[ConvolutionWindow], &View<'_>, &View<'_>, &mut ViewMut<'_>),
) {
    if op.windows.iter().all(|window| window.input_dilation == 1) {
        return compute(&op.windows, input, kernel, out);
    }
    let scratch = workspace.take::<C>(share_elements(op, out.shape()));
    let (rank, batch) = (out.rank(), op.output.batch);
    let (_, together) = largest(op, out.shape());
    // Features first, so that the windows of all images follow each other, unless they are the innermost.
    let mut order: [usize; MAX_RANK] = std::array::from_fn(|dim| dim);
    let order = &mut order[..rank];
    order.sort_by_key(|&dim| std::cmp::Reverse(out.strides()[dim].unsigned_abs()));
    if order[rank - 1] != op.output.feature {
        order.sort_by_key(|&dim| dim != op.output.feature);
    }
    let mut counts = [1; MAX_RANK];
    for (number, window) in op.windows.iter().enumerate() {
        counts[number] = window.shares().min(out.shape()[op.output.spatial[number]]);
    }
    each_index(&counts[..op.windows.len()], |share| {
        let mut windows = [op.windows[0]; MAX_RANK];
        let (mut x, mut w, mut out) = (*input, *kernel, out.reborrow());
        for (number, window) in op.windows.iter().enumerate() {
            let (dim, along) = (op.kernel.spatial[number], op.output.spatial[number]);
            let entries = kernel.shape()[dim];
            let own = Share::new(window, share[number], entries);
            let (first, period) = own.entries.unwrap_or((entries, 1));
            windows[number] = own.window;
            w = w.slice(dim, first, entries, period);
            let size = out.shape()[along];
            out = out.slice(along, share[number], size, window.shares());
        }
        if w.is_empty() {
            return fill(&mut out, &Scalar::from_f64(C::DTYPE, 0.0));
        }
        let windows = &windows[..op.windows.len()];
        if scratch.is_empty() {
            return compute(windows, &x, &w, &mut out);
        }
        let images = out.shape()[batch];
        for first in (0..images).step_by(together) {
            let end = images.min(first + together);
            if !op.groups_of_batch {
                x = input.slice(op.input.batch, first, end, 1);
            }
            let mut out = out.reborrow().slice(batch, first, end, 1);
            let mut sizes = [1; MAX_RANK];
            let mut inverse = [0; MAX_RANK];
            for (at, &dim) in order.iter().enumerate() {
                (sizes[at], inverse[dim]) = (out.shape()[dim], at);
            }
            let count = out.len();
            let mut near = ViewMut::of(&mut scratch[..count], &sizes[..rank]).permute(&inverse[..rank]);
            compute(windows, &x, &w, &mut near);
            copy(&near.as_view(), &mut out);
        }
    });
}
