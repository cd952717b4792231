//! Attention: whose masks and types have kernels, and those kernels.

use partita_base::DType;
use partita_ir::composites::attention_window;
use partita_ir::ops::Composite;
use partita_ir::{AttributesExt, TensorType};
use partita_kernels::{self as kernels, AttentionOptions, KernelOptions, Places, View};

use super::Kind;
use crate::arena::Memory;
use crate::cpu::cut::Share;
use crate::cpu::{Kernel, Value, integer};

/// What the attributes of attention say about its scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask {
    causal: bool,
    window: Option<usize>,
    scale: f64,
}

impl Mask {
    /// The kernel's options, with `mask` a tensor of bools or the limits of what each query sees.
    fn options<'a>(self, mask: Option<View<'a>>, places: Places) -> AttentionOptions<'a> {
        let Mask { causal, window, scale } = self;
        let (visible, mask) = match mask {
            Some(limits) if limits.rank() == 3 => (Some(limits), None),
            mask => (None, mask),
        };
        AttentionOptions { mask, causal, window, visible, places, scale }
    }
}

/// The computation of attention, if it has a kernel with these operands.
pub(super) fn kind(
    composite: &Composite,
    own: &[&TensorType],
    wanted: &[i64],
    is_gradient: bool,
) -> Option<Kind> {
    let [q, k, v, mask @ ..] = own else { return None };
    let (&[batch, heads, queries, width], &[_, groups, keys, _]) = (&q.shape[..], &k.shape[..]) else {
        return None;
    };
    let shared =
        k.shape == [batch, groups, keys, width] && v.shape == k.shape && groups > 0 && heads % groups == 0;
    let typed = q.dtype.is_float() && q.dtype == k.dtype && q.dtype == v.dtype;
    let masked = match mask {
        [] => true,
        [limits] if limits.dtype != DType::Bool => {
            limits.dtype == DType::I32 && limits.shape == [batch, queries, 2]
        }
        [mask] => {
            let full = [batch, heads, queries, keys];
            mask.dtype == DType::Bool
                && mask.rank() == 4
                && mask.shape.iter().zip(full).all(|(&m, f)| m == f || m == 1)
        }
        _ => false,
    };
    if !shared || !typed || !masked {
        return None;
    }
    let mask = Mask {
        causal: composite.attributes.flag("causal"),
        window: attention_window(&composite.attributes),
        scale: composite.attributes.float("scale").ok()?,
    };
    // With fewer queries than keys, the queries are the last ones.
    let is_placed = mask.causal || mask.window.is_some();
    let behind = if is_placed { keys.checked_sub(queries)? as isize } else { 0 };
    match is_gradient {
        false => Some(Kind::Attention { mask, behind }),
        true => (wanted == [0, 1, 2]).then_some(Kind::AttentionGradient { mask, behind }),
    }
}

/// What a part of attention sees, if it has a kernel with these queries, keys and values.
pub(super) fn mask_of_part(composite: &Composite, own: &[&TensorType]) -> Option<Mask> {
    let [q, k, ..] = own else { return None };
    // Where queries and keys are says another operand.
    let alone = TensorType::new(q.dtype, [&q.shape[..2], &k.shape[2..3], &q.shape[3..]].concat());
    match kind(composite, &[&alone, own[1], own[2]], &[], false)? {
        Kind::Attention { mask, .. } => Some(mask),
        _ => None,
    }
}

pub(super) fn whole(
    kernel_options: KernelOptions,
    Share { operands, outputs, .. }: Share,
    seen: Mask,
    behind: isize,
) -> Kernel {
    let (queries, keys, width) = attention_sizes(&operands);
    let bytes = kernels::attention_workspace_bytes(outputs[0].dtype, queries, keys, width);
    Kernel::new(bytes, move |memory, workspace| {
        let mask = operands.get(3).map(|mask| mask.view(memory));
        let options = seen.options(mask, Places::behind(behind));
        let [q, k, v] = [0, 1, 2].map(|i| operands[i].view(memory));
        let (out, scratch) = (&mut memory.view_mut(&outputs[0]), memory.bytes_mut(workspace));
        kernels::attention(kernel_options, [&q, &k, &v], &options, out, scratch);
        Ok(())
    })
}

pub(super) fn whole_gradient(
    kernel_options: KernelOptions,
    Share { operands, outputs, .. }: Share,
    seen: Mask,
    behind: isize,
) -> Kernel {
    let (queries, keys, width) = attention_sizes(&operands);
    let group = operands[0].shape()[1].checked_div(operands[1].shape()[1]).unwrap_or(0);
    let dtype = outputs[0].dtype;
    let bytes = kernels::attention_backward_workspace_bytes(dtype, group, queries, keys, width);
    Kernel::new(bytes, move |memory, workspace| {
        let mask = (operands.len() == 5).then(|| operands[3].view(memory));
        let options = seen.options(mask, Places::behind(behind));
        let [q, k, v] = [0, 1, 2].map(|i| operands[i].view(memory));
        let dout = operands[operands.len() - 1].view(memory);
        let [mut dq, mut dk, mut dv] = [0, 1, 2].map(|i| memory.view_mut(&outputs[i]));
        let scratch = memory.bytes_mut(workspace);
        kernels::attention_backward(
            kernel_options,
            [&q, &k, &v, &dout],
            &options,
            [&mut dq, &mut dk, &mut dv],
            scratch,
        );
        Ok(())
    })
}

pub(super) fn part(
    kernel_options: KernelOptions,
    Share { operands, outputs, .. }: Share,
    seen: Mask,
) -> Kernel {
    let (queries, keys, width) = attention_sizes(&operands);
    // The result is wider than what it is computed from.
    let bytes = kernels::attention_workspace_bytes(operands[0].dtype(), queries, keys, width);
    Kernel::new(bytes, move |memory, workspace| {
        let (places, keys) = part_of(&operands[3], memory, keys);
        let limits = operands.get(4).map(|limits| limits.view(memory));
        let options = seen.options(limits, places);
        let [q, k, v] = [0, 1, 2].map(|i| operands[i].view(memory));
        let [mut out, mut lse] = [0, 1].map(|i| memory.view_mut(&outputs[i]));
        let scratch = memory.bytes_mut(workspace);
        let results = [&mut out, &mut lse];
        kernels::attention_part(kernel_options, [&q, &k, &v], keys, &options, results, scratch);
        Ok(())
    })
}

pub(super) fn part_gradient(
    kernel_options: KernelOptions,
    Share { operands, outputs, .. }: Share,
    seen: Mask,
) -> Kernel {
    let (queries, keys, width) = attention_sizes(&operands);
    let group = operands[0].shape()[1].checked_div(operands[1].shape()[1]).unwrap_or(0);
    let dtype = operands[0].dtype();
    let bytes = kernels::attention_part_backward_workspace_bytes(dtype, group, queries, keys, width);
    Kernel::new(bytes, move |memory, workspace| {
        let (places, keys) = part_of(&operands[6], memory, keys);
        let limits = operands.get(7).map(|limits| limits.view(memory));
        let options = seen.options(limits, places);
        let views = [0, 1, 2, 3, 4, 5].map(|i| operands[i].view(memory));
        let [mut dq, mut dk, mut dv] = [0, 1, 2].map(|i| memory.view_mut(&outputs[i]));
        let scratch = memory.bytes_mut(workspace);
        let gradients = [&mut dq, &mut dk, &mut dv];
        kernels::attention_part_backward(
            kernel_options,
            views.each_ref(),
            keys,
            &options,
            gradients,
            scratch,
        );
        Ok(())
    })
}

fn attention_sizes(operands: &[Value]) -> (usize, usize, usize) {
    let (q, k) = (operands[0].shape(), operands[1].shape());
    (q[2], k[2], q[3])
}

/// The positions of a part, and its number of keys, at most `most`.
fn part_of(place: &Value, memory: &Memory, most: usize) -> (Places, usize) {
    let numbers = place.shape()[0];
    let number = |at: usize| integer(place.element(memory, at as isize * place.stride(0)));
    let runs = (numbers - 1) / 2;
    let firsts = |at: usize| [0, 1].map(|run| if run < runs { number(at + run) as isize } else { 0 });
    let places = Places { runs, queries: firsts(0), keys: firsts(runs) };
    (places, usize::try_from(number(numbers - 1)).unwrap_or(0).min(most))
}
