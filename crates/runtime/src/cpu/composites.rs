//! Composites with built-in kernels. All others, and those with types that the kernel does not support, are
//! inlined before lowering.

use std::ops::Range;

use partita_base::DType;
use partita_ir::composites::{TRANSPOSED, attention_window};
use partita_ir::ops::{Composite, DotGeneral};
use partita_ir::{AttributesExt, Op, TensorType};
use partita_kernels::{self as kernels, AttentionOptions, KernelOptions, MAX_RANK, Places, View};

use super::cut::{Share, outer_dim, ranges};
use super::random::{Draw, random};
use super::{Kernel, Value, dot, integer};
use crate::arena::{Memory, Place};

/// Whether a composite runs as one kernel with these types and attributes. The compiler inlines all others.
pub(super) fn has_kernel(composite: &Composite) -> bool {
    kind(composite).is_some()
}

/// (operand, result) positions of results that may overwrite an operand.
pub(super) fn overwrites(composite: &Composite) -> Vec<(usize, usize)> {
    match kind(composite) {
        Some(Kind::CrossEntropyGradient { .. } | Kind::ProductAdded) => vec![(0, 0)],
        _ => Vec::new(),
    }
}

/// Whether a composite has the kernel of [`GROUPED_OUTER`](partita_ir::composites::GROUPED_OUTER).
pub(super) fn is_grouped_outer(composite: &Composite) -> bool {
    matches!(kind(composite), Some(Kind::GroupedOuter))
}

/// The computation of a composite that has a kernel.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Softmax,
    LogSoftmax,
    SoftmaxGradient,
    LayerNorm {
        epsilon: f64,
    },
    RmsNorm {
        epsilon: f64,
    },
    /// Operand positions of the weight and bias, and result positions of their gradients.
    NormGradient {
        centered: bool,
        epsilon: f64,
        weight: bool,
        results: [Option<usize>; 3],
    },
    /// With how many positions the first query is behind the first key.
    Attention {
        mask: Mask,
        behind: isize,
    },
    AttentionGradient {
        mask: Mask,
        behind: isize,
    },
    AttentionPart {
        mask: Mask,
    },
    AttentionPartGradient {
        mask: Mask,
    },
    CrossEntropy {
        ignore_index: i64,
    },
    CrossEntropyGradient {
        ignore_index: i64,
    },
    ProductAdded,
    Grouped {
        transposed: bool,
    },
    GroupedOuter,
    Random {
        stream: u64,
        draw: Draw,
    },
}

/// What the attributes of attention say about its scores.
#[derive(Clone, Copy, Debug)]
struct Mask {
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

fn kind(composite: &Composite) -> Option<Kind> {
    // A user's composite may have the same name and another meaning.
    if super::is_outlined(&composite.definition.origin) {
        return None;
    }
    let graph = &composite.definition.decomposition;
    let operands: Vec<&TensorType> = graph.inputs.iter().map(|&v| graph.ty(v)).collect();
    let results: Vec<&TensorType> = graph.outputs.iter().map(|&v| graph.ty(v)).collect();
    let attributes = &composite.attributes;
    let (first, result) = (*operands.first()?, *results.first()?);
    if operands.iter().chain(&results).any(|ty| ty.rank() > MAX_RANK) {
        return None;
    }
    let name = composite.definition.name.strip_prefix("partita.")?;
    let (base, is_gradient) = name.strip_suffix(".vjp").map_or((name, false), |base| (base, true));
    if is_gradient && attributes.ints("seeded") != [0] {
        return None;
    }
    let wanted = attributes.ints("wanted");
    let rows = first.dtype.is_float() && first.rank() > 0;
    // Operands of the composite itself; the cotangent follows them in a gradient.
    let own = &operands[..operands.len() - usize::from(is_gradient)];
    let vectors = |some: &[&TensorType]| {
        some.iter().all(|ty| ty.dtype == first.dtype && ty.shape == first.shape[first.rank() - 1..])
    };
    match (base, is_gradient) {
        ("softmax", false) if rows => Some(Kind::Softmax),
        ("softmax", true) if rows => Some(Kind::SoftmaxGradient),
        ("log_softmax", false) if rows => Some(Kind::LogSoftmax),
        ("layer_norm", false) if rows && vectors(&own[1..]) => {
            Some(Kind::LayerNorm { epsilon: attributes.float("epsilon").ok()? })
        }
        ("rms_norm", false) if rows && vectors(&own[1..]) => {
            Some(Kind::RmsNorm { epsilon: attributes.float("epsilon").ok()? })
        }
        ("layer_norm" | "rms_norm", true) if rows && vectors(&own[1..]) && wanted.contains(&0) => {
            let position = |operand: i64| wanted.iter().position(|&w| w == operand);
            Some(Kind::NormGradient {
                centered: base == "layer_norm",
                epsilon: attributes.float("epsilon").ok()?,
                weight: own.len() > 1,
                results: [position(0), position(1), position(2)],
            })
        }
        ("attention", _) => attention(composite, own, &wanted, is_gradient),
        ("attention_part", false) => part(composite, &own[..3]).map(|mask| Kind::AttentionPart { mask }),
        ("attention_part_gradient", false) if own[5].dtype == first.dtype => {
            part(composite, &own[..3]).map(|mask| Kind::AttentionPartGradient { mask })
        }
        ("cross_entropy", _) => {
            let labels = operands.get(1)?;
            let index = matches!(labels.dtype, DType::I32 | DType::I64 | DType::U32 | DType::U64);
            let ignore_index = attributes.float("ignore_index").ok()? as i64;
            match is_gradient {
                _ if !rows || !index || labels.shape != first.shape[..first.rank() - 1] => None,
                false => Some(Kind::CrossEntropy { ignore_index }),
                true => (wanted == [0]).then_some(Kind::CrossEntropyGradient { ignore_index }),
            }
        }
        ("dot_general_add", false) => {
            dot::adds_at_once(product(composite)?, operands.get(1)?, result).then_some(Kind::ProductAdded)
        }
        ("grouped_matmul" | "grouped_outer", false) if rows => {
            let is_typed = own.iter().chain(&results).all(|ty| ty.dtype == first.dtype);
            let transposed = attributes.flag(TRANSPOSED);
            let kind =
                if base == "grouped_outer" { Kind::GroupedOuter } else { Kind::Grouped { transposed } };
            is_typed.then_some(kind)
        }
        ("random_bits" | "uniform" | "normal", false) if result.rank() > 0 && first.dtype.is_integer() => {
            let draw = match base {
                "random_bits" => Draw::Bits,
                "uniform" => Draw::Uniform,
                _ => Draw::Normal,
            };
            let same_rank = attributes.ints("global_shape").len() == result.rank();
            let typed = if draw == Draw::Bits { result.dtype == DType::U32 } else { result.dtype.is_float() };
            let stream = attributes.int("stream").ok()? as u64;
            (same_rank && typed).then_some(Kind::Random { stream, draw })
        }
        _ => None,
    }
}

/// The matmul of a composite that adds a matmul to a tensor, if there is a kernel for it.
pub(super) fn product_added(composite: &Composite) -> Option<&DotGeneral> {
    matches!(kind(composite)?, Kind::ProductAdded).then(|| product(composite))?
}

/// The matmul in a composite.
fn product(composite: &Composite) -> Option<&DotGeneral> {
    composite
        .definition
        .decomposition
        .nodes
        .iter()
        .find_map(|node| if let Op::DotGeneral(dot) = &node.op { Some(dot) } else { None })
}

fn attention(composite: &Composite, own: &[&TensorType], wanted: &[i64], is_gradient: bool) -> Option<Kind> {
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
fn part(composite: &Composite, own: &[&TensorType]) -> Option<Mask> {
    let [q, k, ..] = own else { return None };
    // Where queries and keys are says another operand.
    let alone = TensorType::new(q.dtype, [&q.shape[..2], &k.shape[2..3], &q.shape[3..]].concat());
    match attention(composite, &[&alone, own[1], own[2]], &[], false)? {
        Kind::Attention { mask, .. } => Some(mask),
        _ => None,
    }
}

/// The kernel of a composite for a share of its results.
pub(super) fn compile(composite: &Composite, share: Share, kernel_options: KernelOptions) -> Option<Kernel> {
    let kind = kind(composite)?;
    let Share { operands, outputs, begins } = share;
    let dtype = outputs[0].dtype;
    Some(match kind {
        Kind::Softmax => {
            let bytes = kernels::row_workspace_bytes(dtype, *outputs[0].shape.last()?);
            Kernel::new(bytes, move |memory, workspace| {
                let scratch = memory.bytes_mut(workspace);
                kernels::softmax(
                    kernel_options,
                    &operands[0].view(memory),
                    &mut memory.view_mut(&outputs[0]),
                    scratch,
                );
                Ok(())
            })
        }
        Kind::LogSoftmax => Kernel::plain(move |memory| {
            kernels::log_softmax(
                kernel_options,
                &operands[0].view(memory),
                &mut memory.view_mut(&outputs[0]),
            );
        }),
        Kind::SoftmaxGradient => Kernel::plain(move |memory| {
            let [x, dy] = [0, 1].map(|i| operands[i].view(memory));
            kernels::softmax_backward(kernel_options, &x, &dy, &mut memory.view_mut(&outputs[0]));
        }),
        Kind::LayerNorm { epsilon } => Kernel::plain(move |memory| {
            let view = |i: usize| operands.get(i).map(|value| value.view(memory));
            let out = &mut memory.view_mut(&outputs[0]);
            kernels::layer_norm(
                kernel_options,
                &operands[0].view(memory),
                view(1).as_ref(),
                view(2).as_ref(),
                epsilon,
                out,
            );
        }),
        Kind::RmsNorm { epsilon } => Kernel::plain(move |memory| {
            let weight = operands.get(1).map(|value| value.view(memory));
            kernels::rms_norm(
                kernel_options,
                &operands[0].view(memory),
                weight.as_ref(),
                epsilon,
                &mut memory.view_mut(&outputs[0]),
            );
        }),
        Kind::NormGradient { .. } => return None,
        Kind::Attention { mask: seen, behind } => {
            let (queries, keys, width) = attention_sizes(&operands);
            let bytes = kernels::attention_workspace_bytes(dtype, queries, keys, width);
            Kernel::new(bytes, move |memory, workspace| {
                let mask = operands.get(3).map(|mask| mask.view(memory));
                let options = seen.options(mask, Places::behind(behind));
                let [q, k, v] = [0, 1, 2].map(|i| operands[i].view(memory));
                let scratch = memory.bytes_mut(workspace);
                kernels::attention(
                    kernel_options,
                    &q,
                    &k,
                    &v,
                    &options,
                    &mut memory.view_mut(&outputs[0]),
                    scratch,
                );
                Ok(())
            })
        }
        Kind::AttentionGradient { mask: seen, behind } => {
            let (queries, keys, width) = attention_sizes(&operands);
            let group = operands[0].shape()[1].checked_div(operands[1].shape()[1]).unwrap_or(0);
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
                    &q,
                    &k,
                    &v,
                    &options,
                    &dout,
                    &mut dq,
                    &mut dk,
                    &mut dv,
                    scratch,
                );
                Ok(())
            })
        }
        Kind::AttentionPart { mask: seen } => {
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
        Kind::AttentionPartGradient { mask: seen } => {
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
        Kind::CrossEntropy { ignore_index } => Kernel::new(0, move |memory, _| {
            let [logits, labels] = [0, 1].map(|i| operands[i].view(memory));
            kernels::cross_entropy(
                kernel_options,
                &logits,
                &labels,
                ignore_index,
                &mut memory.view_mut(&outputs[0]),
            )
        }),
        Kind::CrossEntropyGradient { ignore_index } => {
            let bytes = kernels::row_workspace_bytes(dtype, *outputs[0].shape.last()?);
            Kernel::new(bytes, move |memory, workspace| {
                let [logits, labels, dloss] = [0, 1, 2].map(|i| operands[i].view(memory));
                let (out, scratch) = (&mut memory.view_mut(&outputs[0]), memory.bytes_mut(workspace));
                kernels::cross_entropy_backward(
                    kernel_options,
                    &logits,
                    &labels,
                    ignore_index,
                    &dloss,
                    out,
                    scratch,
                )
            })
        }
        Kind::ProductAdded => {
            let (op, out) = (product(composite)?, outputs[0].clone());
            dot::compile(op, kernel_options, &operands[1..], operands.first(), out)?
        }
        Kind::Grouped { transposed } => {
            let (rows, k) = rows_and_width(operands[0].shape());
            let (_, n) = rows_and_width(&outputs[0].shape);
            let bytes = kernels::grouped_matmul_workspace_bytes(dtype, rows, k, n);
            Kernel::new(bytes, move |memory, workspace| {
                let [x, weight, own] = [0, 1, 2].map(|i| operands[i].view(memory));
                let weight = if transposed { weight.permute(&[0, 2, 1]) } else { weight };
                let (out, scratch) = (&mut memory.view_mut(&outputs[0]), memory.bytes_mut(workspace));
                kernels::grouped_matmul(kernel_options, &x, &weight, &own, out, scratch);
                Ok(())
            })
        }
        Kind::GroupedOuter => {
            let [(rows, k), (_, n)] = [0, 1].map(|i| rows_and_width(operands[i].shape()));
            let bytes = kernels::grouped_outer_workspace_bytes(dtype, rows, k, n);
            Kernel::new(bytes, move |memory, workspace| {
                let [x, y, own] = [0, 1, 2].map(|i| operands[i].view(memory));
                let (out, scratch) = (&mut memory.view_mut(&outputs[0]), memory.bytes_mut(workspace));
                kernels::grouped_outer(kernel_options, &x, &y, &own, out, scratch);
                Ok(())
            })
        }
        Kind::Random { stream, draw } => {
            let global: Vec<u64> =
                composite.attributes.ints("global_shape").iter().map(|&s| s as u64).collect();
            random(kernel_options, operands, outputs[0].clone(), begins, stream, global, draw)?
        }
    })
}

/// The kernel of a norm's gradient, if this is one: parts are whole blocks of rows, and a last part sums the
/// blocks.
pub(super) fn norm_gradient(
    kernel_options: KernelOptions,
    composite: &Composite,
    operands: &[Value],
    outputs: &[Place],
    parts: usize,
) -> Option<Kernel> {
    let Kind::NormGradient { centered, epsilon, weight, results } = kind(composite)? else { return None };
    let [dx, dweight, dbias] = results.map(|result| result.map(|result| outputs[result].clone()));
    let dx = dx?;
    let (&d, lead) = dx.shape.split_last()?;
    // Without leading dimensions there is one row, and no split.
    let dim = outer_dim(lead).unwrap_or(0);
    let (size, rows_each) = match lead.get(dim) {
        Some(&size) => (size, lead[dim + 1..].iter().product::<usize>()),
        None => (1, 1),
    };
    // The smallest step that is a multiple of the kernel's blocks of rows.
    let step = (1..kernels::NORM_BLOCK_ROWS).find(|step| (step * rows_each) % kernels::NORM_BLOCK_ROWS == 0);
    let step = step.unwrap_or(kernels::NORM_BLOCK_ROWS);
    let share = |range: Range<usize>| {
        let elements = range.start * step..size.min(range.end * step);
        let rows = elements.len() * rows_each;
        let sliced =
            |value: &Value| if lead.is_empty() { value.clone() } else { value.sliced(dim, elements.clone()) };
        let (x, dy) = (sliced(&operands[0]), sliced(&operands[operands.len() - 1]));
        let weight = weight.then(|| operands[1].clone());
        let dx = if lead.is_empty() { dx.clone() } else { dx.sliced(dim, elements) };
        let bytes = kernels::norm_backward_workspace_bytes(dx.dtype, rows, d);
        let kernel = Kernel::new(bytes, move |memory, workspace| {
            let (x, dy) = (x.view(memory), dy.view(memory));
            let weight = weight.as_ref().map(|weight| weight.view(memory));
            let (mut dx, scratch) = (memory.view_mut(&dx), memory.bytes_mut(workspace));
            let backward = if centered { kernels::layer_norm_backward } else { kernels::rms_norm_backward };
            backward(kernel_options, &x, weight.as_ref(), &dy, epsilon, &mut dx, scratch);
            Ok(())
        });
        (rows, kernel)
    };
    let (rows, kernels): (Vec<usize>, Vec<Kernel>) = ranges(size.div_ceil(step), parts).map(share).unzip();
    let dtype = dx.dtype;
    Some(Kernel::together(kernels).then(move |memory, workspace| {
        let sums = rows.iter().enumerate().map(|(part, &rows)| (rows, memory.bytes_mut(workspace(part))));
        let [mut dweight, mut dbias] =
            [&dweight, &dbias].map(|out| out.as_ref().map(|out| memory.view_mut(out)));
        kernels::norm_parameter_gradients(kernel_options, sums, dtype, d, dweight.as_mut(), dbias.as_mut());
        Ok(())
    }))
}

/// The number of rows of a tensor, and their extent.
fn rows_and_width(shape: &[usize]) -> (usize, usize) {
    let (&width, lead) = shape.split_last().expect("a tensor of rows");
    (lead.iter().product(), width)
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
