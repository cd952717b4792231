//! Convolutions, transposed ones too, as the op of the same name.

use super::{Rows, convert, one, operand, wide};
use crate::pt2::call::{Call, Outs};
use partita_base::Result;
use partita_ir::ValueId;
use partita_ir::ops::{Convolution, ConvolutionSide, ConvolutionWindow};

pub const ROWS: Rows = &[
    ("aten.conv1d.default", |c| convolution(c, 1, false)),
    ("aten.conv2d.default", |c| convolution(c, 2, false)),
    ("aten.conv3d.default", |c| convolution(c, 3, false)),
    ("aten.conv1d.padding", |c| convolution(c, 1, false)),
    ("aten.conv2d.padding", |c| convolution(c, 2, false)),
    ("aten.conv3d.padding", |c| convolution(c, 3, false)),
    ("aten.conv_transpose1d.default", |c| convolution(c, 1, true)),
    ("aten.conv_transpose2d.input", |c| convolution(c, 2, true)),
    ("aten.conv_transpose3d.input", |c| convolution(c, 3, true)),
    ("aten.convolution.default", |c| {
        let transposed = c.flag("transposed", false)?;
        let stride = c.ints("stride")?.len();
        convolution(c, stride, transposed)
    }),
];

/// The sizes of an argument, one for each of `count` dimensions; a single one counts for all.
pub(super) fn per_dim(call: &Call, name: &str, count: usize, default: i64) -> Result<Vec<usize>> {
    let sizes =
        call.maybe_ints(name)?.filter(|sizes| !sizes.is_empty()).unwrap_or_else(|| vec![default; count]);
    let sizes = if sizes.len() == 1 { vec![sizes[0]; count] } else { sizes };
    let whole: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
    match whole.filter(|whole| whole.len() == count && whole.iter().all(|&size| size < 1 << 31)) {
        Some(whole) => Ok(whole),
        None => Err(call.unsupported(&format!("{count} sizes as `{name}`"), format!("{sizes:?}"))),
    }
}

/// The windows of a kernel over the spatial dimensions of `[n, c, spatial..]`.
pub(super) struct Windows {
    pub kernel: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    /// (low, high) edges.
    pub padding: Vec<(usize, usize)>,
}

impl Windows {
    /// The extent that a number of windows cover along a dimension.
    pub fn reach(&self, dim: usize, windows: usize) -> usize {
        let entries = self.dilation[dim].saturating_mul(self.kernel[dim].saturating_sub(1));
        (windows.max(1) - 1).saturating_mul(self.stride[dim]).saturating_add(entries).saturating_add(1)
    }

    /// The spatial extents of the result, without `ceil_mode`. E356 if no window fits.
    pub fn result(&self, call: &Call, spatial: &[usize]) -> Result<Vec<usize>> {
        let mut result = Vec::new();
        for dim in 0..spatial.len() {
            let padded = spatial[dim].saturating_add(self.padding[dim].0).saturating_add(self.padding[dim].1);
            match padded.checked_sub(self.reach(dim, 1)) {
                Some(rest) if self.stride[dim] > 0 && self.kernel[dim] > 0 => {
                    result.push(rest / self.stride[dim] + 1)
                }
                _ => return Err(call.unsupported("a window within the padded input", format!("{spatial:?}"))),
            }
        }
        Ok(result)
    }
}

fn convolution(call: &mut Call, spatial: usize, transposed: bool) -> Outs {
    let dtype = call.result_dtype(0)?;
    let mut x = operand(call, "input", dtype)?;
    let mut w = operand(call, "weight", dtype)?;
    let is_single = call.shape(x).len() == spatial + 1;
    if is_single {
        let shape = [&[1], &call.shape(x)[..]].concat();
        x = call.b().reshape(x, &shape)?;
    }
    let (own, kernel) = (call.shape(x), call.shape(w));
    let groups = usize::try_from(call.int("groups", 1)?).ok().filter(|&groups| groups > 0);
    let (Some(groups), true, true) = (groups, own.len() == spatial + 2, kernel.len() == spatial + 2) else {
        return Err(call.unsupported(
            &format!("input and weight of {} dimensions", spatial + 2),
            format!("{own:?}, {kernel:?}"),
        ));
    };
    // The weight is [outputs, inputs / groups, ..], and [inputs, outputs / groups, ..] of a transposed one.
    let inputs = if transposed { Some(kernel[0]) } else { kernel[1].checked_mul(groups) };
    if inputs != Some(own[1]) || !kernel[0].is_multiple_of(groups) {
        return Err(call.unsupported(
            "channels of input and weight that fit the groups",
            format!("{own:?}, {kernel:?}"),
        ));
    }
    let stride = per_dim(call, "stride", spatial, 1)?;
    let dilation = per_dim(call, "dilation", spatial, 1)?;
    let padding = padding(call, &kernel[2..], &dilation)?;
    let side = ConvolutionSide { batch: 0, feature: 1, spatial: (2..spatial + 2).collect() };
    let mut of_kernel = side.clone();
    let windows: Vec<ConvolutionWindow>;
    let result: Vec<usize>;
    if transposed {
        let extra = per_dim(call, "output_padding", spatial, 0)?;
        (windows, result) = transposed_windows(call, &own, &kernel, &stride, &dilation, &padding, &extra)?;
        if groups > 1 {
            w = regrouped(call, w, groups)?;
        } else {
            (of_kernel.batch, of_kernel.feature) = (1, 0);
        }
    } else {
        let kernel = kernel[2..].to_vec();
        let own_windows = Windows { kernel, stride, dilation, padding };
        result = own_windows.result(call, &own[2..])?;
        let window = |dim: usize| ConvolutionWindow {
            stride: own_windows.stride[dim],
            padding: (own_windows.padding[dim].0 as i64, own_windows.padding[dim].1 as i64),
            kernel_dilation: own_windows.dilation[dim],
            ..Default::default()
        };
        windows = (0..spatial).map(window).collect();
    }
    let outputs = if transposed { kernel[1].saturating_mul(groups) } else { kernel[0] };
    let mut shape = [&[own[0], outputs], &result[..]].concat();
    call.check_size(&shape)?;
    // A bias is added before the result is rounded.
    let has_bias = call.has("bias");
    let op = Convolution {
        input: side.clone(),
        kernel: of_kernel,
        output: side,
        windows,
        feature_groups: groups,
        batch_groups: 1,
        dtype: if has_bias { wide(dtype) } else { dtype },
    };
    let mut y = call.b().push1(op, &[x, w])?;
    if has_bias {
        let bias = operand(call, "bias", wide(dtype))?;
        if call.shape(bias) != [shape[1]] {
            return Err(call.unsupported("a bias for each channel", call.ty(bias).to_string()));
        }
        let bias = call.b().broadcast_in_dim(bias, &shape, &[1])?;
        y = call.b().add(y, bias)?;
    }
    if is_single {
        shape.remove(0);
        y = call.b().reshape(y, &shape)?;
    }
    one(convert(call, y, dtype)?)
}

/// Edges by number, or by name: `valid` has none, `same` keeps the extents.
fn padding(call: &Call, kernel: &[usize], dilation: &[usize]) -> Result<Vec<(usize, usize)>> {
    if let Ok(name) = call.text("padding", "")
        && !name.is_empty()
    {
        return match name {
            "valid" => Ok(vec![(0, 0); kernel.len()]),
            "same" => {
                let whole = |(k, d): (&usize, &usize)| d.saturating_mul(k.saturating_sub(1));
                Ok(kernel
                    .iter()
                    .zip(dilation)
                    .map(whole)
                    .map(|whole| (whole / 2, whole - whole / 2))
                    .collect())
            }
            other => Err(call.unsupported("padding `valid` or `same`", other)),
        };
    }
    Ok(per_dim(call, "padding", kernel.len(), 0)?.into_iter().map(|edge| (edge, edge)).collect())
}

/// The windows of a transposed convolution and the extents of its result: it is the gradient of the input of the
/// convolution with these numbers, so strides are gaps of the input, the kernel is reversed, and the edges are what
/// the convolution reaches beyond its own padding.
fn transposed_windows(
    call: &Call,
    own: &[usize],
    kernel: &[usize],
    stride: &[usize],
    dilation: &[usize],
    padding: &[(usize, usize)],
    extra: &[usize],
) -> Result<(Vec<ConvolutionWindow>, Vec<usize>)> {
    let (mut windows, mut result) = (Vec::new(), Vec::new());
    for dim in 0..stride.len() {
        let reach = dilation[dim].saturating_mul(kernel[dim + 2].saturating_sub(1)).min(1 << 40) as i64;
        let edges = (reach - padding[dim].0 as i64, reach - padding[dim].1 as i64 + extra[dim] as i64);
        let spread = match own[dim + 2] {
            0 => 0,
            extent => (extent - 1).saturating_mul(stride[dim]).min(1 << 40) as i64 + 1,
        };
        let windows_here = edges.0 + spread + edges.1 - reach;
        if windows_here <= 0 || stride[dim] == 0 || kernel[dim + 2] == 0 {
            return Err(
                call.unsupported("a result with elements", format!("{own:?}, {kernel:?}, {padding:?}"))
            );
        }
        result.push(windows_here as usize);
        windows.push(ConvolutionWindow {
            stride: 1,
            padding: edges,
            input_dilation: stride[dim],
            kernel_dilation: dilation[dim],
            reversed: true,
        });
    }
    Ok((windows, result))
}

/// `[groups * a, b, ..]` as `[groups * b, a, ..]`.
fn regrouped(call: &mut Call, w: ValueId, groups: usize) -> Result<ValueId> {
    let kernel = call.shape(w);
    let (a, b) = (kernel[0] / groups, kernel[1]);
    let split = [&[groups, a, b], &kernel[2..]].concat();
    let w = call.b().reshape(w, &split)?;
    let mut order: Vec<usize> = (0..split.len()).collect();
    order.swap(1, 2);
    let w = call.b().transpose(w, &order)?;
    call.b().reshape(w, &[&[groups.saturating_mul(b), a], &kernel[2..]].concat())
}
