//! Convolutions as one matrix product over shifted slices of the input (im2col): for each position
//! of the kernel a strided slice, joined along the channels.

use super::{Rows, convert, one, operand, wide};
use crate::pt2::call::{Call, Outs};
use partita_base::Result;
use partita_ir::ValueId;
use partita_ir::ops::{DotGeneral, Pad, Reverse, Slice};

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
    /// The spatial extents of the result, without `ceil_mode`. E356 if no window fits.
    pub fn result(&self, call: &Call, spatial: &[usize]) -> Result<Vec<usize>> {
        let mut result = Vec::new();
        for dim in 0..spatial.len() {
            let reach = self.dilation[dim]
                .checked_mul(self.kernel[dim].saturating_sub(1))
                .map(|r| r.saturating_add(1));
            let padded = spatial[dim].saturating_add(self.padding[dim].0).saturating_add(self.padding[dim].1);
            match reach.and_then(|reach| padded.checked_sub(reach)) {
                Some(rest) if self.stride[dim] > 0 && self.kernel[dim] > 0 => {
                    result.push(rest / self.stride[dim] + 1)
                }
                _ => return Err(call.unsupported("a window within the padded input", format!("{spatial:?}"))),
            }
        }
        Ok(result)
    }

    /// For each position of the kernel, the slice `[n, c, result..]` of the padded input.
    pub fn slices(&self, call: &mut Call, x: ValueId, fill: f64, result: &[usize]) -> Result<Vec<ValueId>> {
        let ty = call.ty(x);
        let spatial = self.kernel.len();
        let positions = self.kernel.iter().try_fold(1usize, |n, &k| n.checked_mul(k)).unwrap_or(usize::MAX);
        call.check_nodes(positions)?;
        let mut low = vec![0; 2];
        let mut high = vec![0; 2];
        let mut padded = ty.shape.clone();
        for (dim, &(before, after)) in self.padding.iter().enumerate() {
            low.push(before as i64);
            // Rows that no window reaches are cut; with `ceil_mode` more are added.
            let reach =
                (result[dim].max(1) - 1) * self.stride[dim] + self.dilation[dim] * (self.kernel[dim] - 1) + 1;
            let after = (after as i64).max(reach as i64 - (padded[dim + 2] + before) as i64);
            high.push(after);
            padded[dim + 2] += before + after as usize;
        }
        call.check_size(&padded)?;
        let x = if low.iter().chain(&high).any(|&edge| edge != 0) {
            let fill = call.b().scalar(ty.dtype, fill);
            call.b().push1(Pad { low, high, interior: vec![0; 2 + spatial] }, &[x, fill])?
        } else {
            x
        };
        let mut slices = Vec::with_capacity(positions);
        for position in 0..positions {
            let mut rest = position;
            let mut start = vec![0; 2];
            let mut at = vec![0; spatial];
            for dim in (0..spatial).rev() {
                at[dim] = rest % self.kernel[dim] * self.dilation[dim];
                rest /= self.kernel[dim];
            }
            start.extend(&at);
            let mut limit = padded[..2].to_vec();
            let mut stride = vec![1; 2];
            for dim in 0..spatial {
                limit.push(at[dim] + (result[dim].max(1) - 1) * self.stride[dim] + 1);
                stride.push(self.stride[dim]);
            }
            slices.push(call.b().push1(Slice { start, limit, stride }, &[x])?);
        }
        Ok(slices)
    }
}

fn convolution(call: &mut Call, spatial: usize, transposed: bool) -> Outs {
    let dtype = call.result_dtype(0)?;
    let mut x = operand(call, "input", wide(dtype))?;
    let mut w = operand(call, "weight", wide(dtype))?;
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
    let stride = per_dim(call, "stride", spatial, 1)?;
    let dilation = per_dim(call, "dilation", spatial, 1)?;
    let padding = padding(call, &kernel[2..], &dilation)?;
    let y = if transposed {
        let extra = per_dim(call, "output_padding", spatial, 0)?;
        (x, w) = backwards(call, x, w, groups, &stride)?;
        let mut edges = Vec::new();
        for dim in 0..spatial {
            let reach = dilation[dim].saturating_mul(kernel[dim + 2].saturating_sub(1));
            edges.push((
                reach as i64 - padding[dim].0 as i64,
                reach as i64 - padding[dim].1 as i64 + extra[dim] as i64,
            ));
        }
        // A transposed convolution pads what the convolution reaches beyond its own padding.
        let [low, high] = [|e: &(i64, i64)| e.0, |e: &(i64, i64)| e.1]
            .map(|of| [&[0, 0], &edges.iter().map(of).collect::<Vec<_>>()[..]].concat());
        let grown: Option<Vec<usize>> = call
            .shape(x)
            .iter()
            .zip(low.iter().zip(&high))
            .map(|(&extent, (low, high))| usize::try_from(extent as i64 + low + high).ok())
            .collect();
        let grown =
            grown.ok_or_else(|| call.unsupported("a result with elements", format!("{padding:?}")))?;
        call.check_size(&grown)?;
        let zero = call.b().scalar(wide(dtype), 0.0);
        let x = call.b().push1(Pad { low, high, interior: vec![0; spatial + 2] }, &[x, zero])?;
        forwards(call, x, w, groups, vec![1; spatial], dilation, vec![(0, 0); spatial])?
    } else {
        forwards(call, x, w, groups, stride, dilation, padding)?
    };
    let mut shape = call.shape(y);
    let mut y = y;
    if call.has("bias") {
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

/// `x[n, c, spatial..] * w[o, c / groups, kernel..] -> [n, o, result..]`
fn forwards(
    call: &mut Call,
    x: ValueId,
    w: ValueId,
    groups: usize,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    padding: Vec<(usize, usize)>,
) -> Result<ValueId> {
    let (own, kernel) = (call.shape(x), call.shape(w));
    let (n, c, o, per) = (own[0], own[1], kernel[0], kernel[1]);
    if per.checked_mul(groups) != Some(c) || !o.is_multiple_of(groups) {
        return Err(call.unsupported(
            "channels of input and weight that fit the groups",
            format!("{own:?}, {kernel:?}"),
        ));
    }
    let windows = Windows { kernel: kernel[2..].to_vec(), stride, dilation, padding };
    let result = windows.result(call, &own[2..])?;
    let positions: usize = kernel[2..].iter().product();
    let size: usize = result.iter().product();
    // [n, g, c/g, result..] for each position of the kernel, joined to [n, g, positions * c/g, result].
    call.check_size(&[&[n, c], &result[..]].concat())?;
    call.check_size(&[n, c, positions, size])?;
    let mut columns = Vec::with_capacity(positions);
    for slice in windows.slices(call, x, 0.0, &result)? {
        columns.push(call.b().reshape(slice, &[n, groups, per, size])?);
    }
    let columns = if columns.len() == 1 { columns[0] } else { call.b().concatenate(&columns, 2)? };
    // [o, c/g, positions] -> [g, o/g, positions * c/g]
    let w = call.b().reshape(w, &[groups, o / groups, per, positions])?;
    let w = call.b().transpose(w, &[0, 1, 3, 2])?;
    let w = call.b().reshape(w, &[groups, o / groups, positions * per])?;
    let dims = DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![1],
        lhs_contracting: vec![2],
        rhs_contracting: vec![2],
        result_dtype: None,
    };
    // [g, o/g, n, result]
    let y = call.b().dot_general(w, columns, dims)?;
    let y = call.b().transpose(y, &[2, 0, 1, 3])?;
    let shape = [&[n, o], &result[..]].concat();
    call.b().reshape(y, &shape)
}

/// Input and weight of the convolution that a transposed one is: the input spread by the stride, the
/// kernel turned around with input and output channels exchanged.
fn backwards(
    call: &mut Call,
    x: ValueId,
    w: ValueId,
    groups: usize,
    stride: &[usize],
) -> Result<(ValueId, ValueId)> {
    let (own, kernel) = (call.shape(x), call.shape(w));
    let spatial = stride.len();
    let (c, per) = (kernel[0], kernel[1]);
    if own[1] != c || !c.is_multiple_of(groups) || stride.contains(&0) {
        return Err(call.unsupported("channels that fit the groups", format!("{own:?}, {kernel:?}")));
    }
    let interior: Vec<usize> = [0, 0].into_iter().chain(stride.iter().map(|stride| stride - 1)).collect();
    let spread: Vec<usize> =
        own.iter().zip(&interior).map(|(&e, &i)| e.saturating_mul(i.saturating_add(1))).collect();
    call.check_size(&spread)?;
    let dtype = call.ty(x).dtype;
    let zero = call.b().scalar(dtype, 0.0);
    let edges = vec![0; spatial + 2];
    let x = call.b().push1(Pad { low: edges.clone(), high: edges, interior }, &[x, zero])?;
    let w = call.b().push1(Reverse { dims: (2..spatial + 2).collect() }, &[w])?;
    let split = [&[groups, c / groups, per], &kernel[2..]].concat();
    let w = call.b().reshape(w, &split)?;
    let mut order: Vec<usize> = (0..split.len()).collect();
    order.swap(1, 2);
    let w = call.b().transpose(w, &order)?;
    let turned = [&[groups.saturating_mul(per), c / groups], &kernel[2..]].concat();
    Ok((x, call.b().reshape(w, &turned)?))
}
