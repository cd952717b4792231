//! Composites with built-in kernels. All others, and those with types that the kernel does not support, are
//! inlined before lowering.

mod attention;

use std::ops::Range;

use attention::Mask;
use partita_base::DType;
use partita_ir::composites::TRANSPOSED;
use partita_ir::ops::{Composite, DotGeneral};
use partita_ir::{AttributesExt, Op, TensorType};
use partita_kernels::{self as kernels, KernelOptions, MAX_RANK};

use super::cut::{Share, outer_dim, ranges};
use super::random::{Draw, random};
use super::{Kernel, Value, dot};
use crate::arena::Place;

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
        ("attention", _) => attention::kind(composite, own, &wanted, is_gradient),
        ("attention_part", false) => {
            attention::mask_of_part(composite, &own[..3]).map(|mask| Kind::AttentionPart { mask })
        }
        ("attention_part_gradient", false) if own[5].dtype == first.dtype => {
            attention::mask_of_part(composite, &own[..3]).map(|mask| Kind::AttentionPartGradient { mask })
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

/// The kernel of a composite for a share of its results.
pub(super) fn compile(composite: &Composite, share: Share, options: KernelOptions) -> Option<Kernel> {
    match kind(composite)? {
        Kind::Softmax => softmax(options, share),
        Kind::LogSoftmax => Some(log_softmax(options, share)),
        Kind::SoftmaxGradient => Some(softmax_gradient(options, share)),
        Kind::LayerNorm { epsilon } => Some(layer_norm(options, share, epsilon)),
        Kind::RmsNorm { epsilon } => Some(rms_norm(options, share, epsilon)),
        Kind::NormGradient { .. } => None,
        Kind::Attention { mask, behind } => Some(attention::whole(options, share, mask, behind)),
        Kind::AttentionGradient { mask, behind } => {
            Some(attention::whole_gradient(options, share, mask, behind))
        }
        Kind::AttentionPart { mask } => Some(attention::part(options, share, mask)),
        Kind::AttentionPartGradient { mask } => Some(attention::part_gradient(options, share, mask)),
        Kind::CrossEntropy { ignore_index } => Some(cross_entropy(options, share, ignore_index)),
        Kind::CrossEntropyGradient { ignore_index } => cross_entropy_gradient(options, share, ignore_index),
        Kind::ProductAdded => {
            let Share { operands, outputs, .. } = share;
            let (op, out) = (product(composite)?, outputs[0].clone());
            dot::compile(op, options, &operands[1..], operands.first(), out)
        }
        Kind::Grouped { transposed } => Some(grouped(options, share, transposed)),
        Kind::GroupedOuter => Some(grouped_outer(options, share)),
        Kind::Random { stream, draw } => {
            let global: Vec<u64> =
                composite.attributes.ints("global_shape").iter().map(|&s| s as u64).collect();
            let Share { operands, outputs, begins } = share;
            random(options, operands, outputs[0].clone(), begins, stream, global, draw)
        }
    }
}

fn softmax(options: KernelOptions, Share { operands, outputs, .. }: Share) -> Option<Kernel> {
    let bytes = kernels::row_workspace_bytes(outputs[0].dtype, *outputs[0].shape.last()?);
    Some(Kernel::new(bytes, move |memory, workspace| {
        let (out, scratch) = (&mut memory.view_mut(&outputs[0]), memory.bytes_mut(workspace));
        kernels::softmax(options, &operands[0].view(memory), out, scratch);
        Ok(())
    }))
}

fn log_softmax(options: KernelOptions, Share { operands, outputs, .. }: Share) -> Kernel {
    Kernel::plain(move |memory| {
        kernels::log_softmax(options, &operands[0].view(memory), &mut memory.view_mut(&outputs[0]));
    })
}

fn softmax_gradient(options: KernelOptions, Share { operands, outputs, .. }: Share) -> Kernel {
    Kernel::plain(move |memory| {
        let [x, dy] = [0, 1].map(|i| operands[i].view(memory));
        kernels::softmax_backward(options, &x, &dy, &mut memory.view_mut(&outputs[0]));
    })
}

fn layer_norm(options: KernelOptions, Share { operands, outputs, .. }: Share, epsilon: f64) -> Kernel {
    Kernel::plain(move |memory| {
        let view = |i: usize| operands.get(i).map(|value| value.view(memory));
        let (x, out) = (operands[0].view(memory), &mut memory.view_mut(&outputs[0]));
        kernels::layer_norm(options, &x, view(1).as_ref(), view(2).as_ref(), epsilon, out);
    })
}

fn rms_norm(options: KernelOptions, Share { operands, outputs, .. }: Share, epsilon: f64) -> Kernel {
    Kernel::plain(move |memory| {
        let weight = operands.get(1).map(|value| value.view(memory));
        let (x, out) = (operands[0].view(memory), &mut memory.view_mut(&outputs[0]));
        kernels::rms_norm(options, &x, weight.as_ref(), epsilon, out);
    })
}

fn cross_entropy(
    options: KernelOptions,
    Share { operands, outputs, .. }: Share,
    ignore_index: i64,
) -> Kernel {
    Kernel::new(0, move |memory, _| {
        let [logits, labels] = [0, 1].map(|i| operands[i].view(memory));
        kernels::cross_entropy(options, &logits, &labels, ignore_index, &mut memory.view_mut(&outputs[0]))
    })
}

fn cross_entropy_gradient(
    options: KernelOptions,
    Share { operands, outputs, .. }: Share,
    ignore_index: i64,
) -> Option<Kernel> {
    let bytes = kernels::row_workspace_bytes(outputs[0].dtype, *outputs[0].shape.last()?);
    Some(Kernel::new(bytes, move |memory, workspace| {
        let [logits, labels, dloss] = [0, 1, 2].map(|i| operands[i].view(memory));
        let (out, scratch) = (&mut memory.view_mut(&outputs[0]), memory.bytes_mut(workspace));
        kernels::cross_entropy_backward(options, &logits, &labels, ignore_index, &dloss, out, scratch)
    }))
}

fn grouped(options: KernelOptions, Share { operands, outputs, .. }: Share, transposed: bool) -> Kernel {
    let (rows, k) = rows_and_width(operands[0].shape());
    let (_, n) = rows_and_width(&outputs[0].shape);
    let bytes = kernels::grouped_matmul_workspace_bytes(outputs[0].dtype, rows, k, n);
    Kernel::new(bytes, move |memory, workspace| {
        let [x, weight, own] = [0, 1, 2].map(|i| operands[i].view(memory));
        let weight = if transposed { weight.permute(&[0, 2, 1]) } else { weight };
        let (out, scratch) = (&mut memory.view_mut(&outputs[0]), memory.bytes_mut(workspace));
        kernels::grouped_matmul(options, &x, &weight, &own, out, scratch);
        Ok(())
    })
}

fn grouped_outer(options: KernelOptions, Share { operands, outputs, .. }: Share) -> Kernel {
    let [(rows, k), (_, n)] = [0, 1].map(|i| rows_and_width(operands[i].shape()));
    let bytes = kernels::grouped_outer_workspace_bytes(outputs[0].dtype, rows, k, n);
    Kernel::new(bytes, move |memory, workspace| {
        let [x, y, own] = [0, 1, 2].map(|i| operands[i].view(memory));
        let (out, scratch) = (&mut memory.view_mut(&outputs[0]), memory.bytes_mut(workspace));
        kernels::grouped_outer(options, &x, &y, &own, out, scratch);
        Ok(())
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
