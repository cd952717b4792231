//! Matrix products: `linear`, `matmul` and its relatives, `einsum`.

use super::{Rows, broadcast_pair, convert, one, operand};
use crate::pt2::call::{Call, Outs};
use partita_base::Result;
use partita_ir::ValueId;
use partita_ir::ops::DotGeneral;

pub const ROWS: Rows = &[
    ("aten.linear.default", linear),
    ("aten.addmm.default", |c| add_product(c, "mat1", "mat2")),
    ("aten.baddbmm.default", |c| add_product(c, "batch1", "batch2")),
    ("aten.mm.default", |c| product(c, "mat2")),
    ("aten.bmm.default", |c| product(c, "mat2")),
    ("aten.matmul.default", |c| product(c, "other")),
    ("aten.mv.default", |c| product(c, "vec")),
    ("aten.dot.default", |c| product(c, "tensor")),
    ("aten.outer.default", outer),
    ("aten.einsum.default", einsum),
    ("aten._trilinear.default", trilinear),
    ("aten.bilinear.default", bilinear),
];

/// `input[.., k] weight[n, k] + bias[n]`
fn linear(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (x, w) = (operand(call, "input", dtype)?, operand(call, "weight", dtype)?);
    let (shape, weight) = (call.shape(x), call.shape(w));
    let fits =
        shape.last().is_some_and(|extent| Some(extent) == weight.last()) && (1..=2).contains(&weight.len());
    if !fits {
        return Err(call.unsupported("input [.., k] and weight [n, k]", format!("{shape:?} and {weight:?}")));
    }
    let y = if weight.len() == 1 {
        let last = shape.len() - 1;
        let dims =
            DotGeneral { lhs_contracting: vec![last], rhs_contracting: vec![0], ..DotGeneral::default() };
        call.b().dot_general(x, w, dims)?
    } else {
        let result = [&shape[..shape.len() - 1], &weight[..1]].concat();
        call.check_size(&result)?;
        call.b().linear(x, w)?
    };
    if !call.has("bias") {
        return one(y);
    }
    let bias = operand(call, "bias", dtype)?;
    let shape = call.shape(y);
    let bias = call.spread(bias, &shape)?;
    one(call.b().add(y, bias)?)
}

/// `torch.matmul`: vectors, matrices, and stacks of matrices that broadcast.
pub(super) fn matmul(call: &mut Call, a: ValueId, b: ValueId) -> Result<ValueId> {
    let (mut left, mut right) = (call.shape(a), call.shape(b));
    if left.is_empty() || right.is_empty() {
        return Err(call.unsupported("tensors of at least 1 dimension", format!("{left:?} and {right:?}")));
    }
    let (is_row, is_column) = (left.len() == 1, right.len() == 1);
    if is_row {
        left.insert(0, 1);
    }
    if is_column {
        right.push(1);
    }
    let (m, k) = (left[left.len() - 2], left[left.len() - 1]);
    let (inner, n) = (right[right.len() - 2], right[right.len() - 1]);
    if k != inner {
        return Err(call.unsupported("an inner dimension of one extent", format!("{left:?} and {right:?}")));
    }
    let (mut a, mut b) = (call.b().reshape(a, &left)?, call.b().reshape(b, &right)?);
    let batch = call.joint_shape(&left[..left.len() - 2], &right[..right.len() - 2])?;
    let mut result = [&batch[..], &[m, n]].concat();
    call.check_size(&result)?;
    let y = if right.len() == 2 {
        // The rows of all matrices are rows of one product.
        let dims = DotGeneral {
            lhs_contracting: vec![left.len() - 1],
            rhs_contracting: vec![0],
            ..DotGeneral::default()
        };
        call.b().dot_general(a, b, dims)?
    } else {
        let of_a = [&batch[..], &[m, k]].concat();
        let of_b = [&batch[..], &[k, n]].concat();
        (a, b) = (call.spread(a, &of_a)?, call.spread(b, &of_b)?);
        let stack: Vec<usize> = (0..batch.len()).collect();
        let dims = DotGeneral {
            lhs_batch: stack.clone(),
            rhs_batch: stack,
            lhs_contracting: vec![batch.len() + 1],
            rhs_contracting: vec![batch.len()],
            result_dtype: None,
        };
        call.b().dot_general(a, b, dims)?
    };
    if is_column {
        result.pop();
    }
    if is_row {
        result.remove(batch.len());
    }
    call.b().reshape(y, &result)
}

fn product(call: &mut Call, other: &str) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (a, b) = (operand(call, "self", dtype)?, operand(call, other, dtype)?);
    one(matmul(call, a, b)?)
}

/// `beta self + alpha (a b)`
fn add_product(call: &mut Call, a: &str, b: &str) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (alpha, beta) = (call.float("alpha", 1.0)?, call.float("beta", 1.0)?);
    let (a, b) = (operand(call, a, dtype)?, operand(call, b, dtype)?);
    let mut y = matmul(call, a, b)?;
    if alpha != 1.0 {
        y = call.b().scale(y, alpha)?;
    }
    if beta == 0.0 {
        return one(y);
    }
    let mut x = operand(call, "self", dtype)?;
    if beta != 1.0 {
        x = call.b().scale(x, beta)?;
    }
    let shape = call.shape(y);
    let x = call.spread(x, &shape)?;
    one(call.b().add(x, y)?)
}

fn outer(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (a, b) = (operand(call, "self", dtype)?, operand(call, "vec2", dtype)?);
    let (m, n) = (call.shape(a).iter().product(), call.shape(b).iter().product());
    let (a, b) = (call.b().reshape(a, &[m, 1])?, call.b().reshape(b, &[1, n])?);
    let [a, b] = broadcast_pair(call, a, b)?;
    one(call.b().multiply(a, b)?)
}

/// `x1[.., i] weight[o, i, j] x2[.., j] + bias[o]`
fn bilinear(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let (a, b) = (operand(call, "input1", dtype)?, operand(call, "input2", dtype)?);
    let w = operand(call, "weight", dtype)?;
    let (left, right) = (call.shape(a), call.shape(b));
    let [o, i, j] = call.shape(w)[..] else {
        return Err(call.unsupported("a weight [o, i, j]", "another shape"));
    };
    let fits = left.last() == Some(&i)
        && right.last() == Some(&j)
        && left[..left.len() - 1] == right[..right.len() - 1];
    if !fits {
        return Err(call.unsupported("inputs [.., i] and [.., j]", format!("{left:?} and {right:?}")));
    }
    let rows: usize = left[..left.len() - 1].iter().product();
    call.check_size(&[rows, o, j])?;
    let (a, b) = (call.b().reshape(a, &[rows, i])?, call.b().reshape(b, &[rows, j])?);
    let dims = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![1], ..DotGeneral::default() };
    let half = call.b().dot_general(a, w, dims)?;
    let dims = DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![2],
        rhs_contracting: vec![1],
        result_dtype: None,
    };
    let y = call.b().dot_general(half, b, dims)?;
    let shape = [&left[..left.len() - 1], &[o]].concat();
    let y = call.b().reshape(y, &shape)?;
    if !call.has("bias") {
        return one(y);
    }
    let bias = operand(call, "bias", dtype)?;
    let bias = call.spread(bias, &shape)?;
    one(call.b().add(y, bias)?)
}

/// Einstein summation, without repeated letters in one operand.
fn einsum(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let equation: String = call.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let mut operands = Vec::new();
    for x in call.tensors("tensors")? {
        operands.push(convert(call, x, dtype)?);
    }
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs.to_string(), output.to_string()),
        None => {
            // The letters that occur once, in alphabetic order.
            let once = |c: &char| equation.matches(*c).count() == 1 && c.is_alphabetic();
            let mut letters: Vec<char> = equation.chars().filter(once).collect();
            letters.sort_unstable();
            (equation.clone(), letters.into_iter().collect())
        }
    };
    let names: Vec<Vec<char>> = inputs.split(',').map(|names| names.chars().collect()).collect();
    let output: Vec<char> = output.chars().collect();
    let simple = |names: &Vec<char>| {
        names.iter().enumerate().all(|(i, c)| c.is_alphabetic() && !names[..i].contains(c))
    };
    let fits = names.len() == operands.len()
        && names.iter().all(simple)
        && simple(&output)
        && output.iter().all(|c| names.iter().any(|names| names.contains(c)))
        && names.iter().zip(&operands).all(|(names, &x)| names.len() == call.shape(x).len());
    if !fits {
        return Err(call.unsupported("operands that each have different letters", equation));
    }
    one(contracted(call, operands.into_iter().zip(names).collect(), &output)?)
}

/// `sum(i1 i2 i3)` over `sumdim`, where operand `k` lacks the dimensions `expand<k>`.
fn trilinear(call: &mut Call) -> Outs {
    let dtype = call.result_dtype(0)?;
    let mut factors = Vec::new();
    for (name, lacks) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let x = operand(call, name, dtype)?;
        let lacks = call.ints(lacks)?;
        let rank = call.shape(x).len() + lacks.len();
        let lacks = call.wrap_all(&lacks, rank)?;
        factors.push((x, (0..rank).filter(|dim| !lacks.contains(dim)).collect::<Vec<usize>>(), rank));
    }
    let rank = factors[0].2;
    let summed = call.wrap_all(&call.ints("sumdim")?, rank)?;
    let output: Vec<usize> = (0..rank).filter(|dim| !summed.contains(dim)).collect();
    let fits = factors.iter().all(|(_, _, of)| *of == rank)
        && output.iter().all(|dim| factors.iter().any(|(_, dims, _)| dims.contains(dim)));
    if !fits {
        return Err(call.unsupported("operands that together have every dimension", format!("{output:?}")));
    }
    let factors = factors.into_iter().map(|(x, dims, _)| (x, dims)).collect();
    one(contracted(call, factors, &output)?)
}

/// The product of tensors whose dimensions have names, summed over the names that `output` lacks; names of one
/// extent in all operands. Operands are contracted in pairs, from left to right.
fn contracted<N: Copy + PartialEq>(
    call: &mut Call,
    operands: Vec<(ValueId, Vec<N>)>,
    output: &[N],
) -> Result<ValueId> {
    let mut rest = operands.into_iter().collect::<std::collections::VecDeque<_>>();
    let none = || call.unsupported("at least one operand", "none");
    let mut product = rest.pop_front().ok_or_else(none)?;
    while let Some(next) = rest.pop_front() {
        let later: Vec<N> = rest.iter().flat_map(|(_, names)| names).chain(output).copied().collect();
        product = contracted_pair(call, product, next, &later)?;
    }
    let (y, names) = summed_alone(call, product, output)?;
    let order: Vec<usize> = output.iter().filter_map(|n| names.iter().position(|name| name == n)).collect();
    if order.is_sorted() { Ok(y) } else { call.b().transpose(y, &order) }
}

/// An operand summed over the names that nothing else reads.
fn summed_alone<N: Copy + PartialEq>(
    call: &mut Call,
    (x, names): (ValueId, Vec<N>),
    read: &[N],
) -> Result<(ValueId, Vec<N>)> {
    let alone: Vec<usize> = (0..names.len()).filter(|&dim| !read.contains(&names[dim])).collect();
    let x = if alone.is_empty() { x } else { call.b().reduce_sum(x, &alone)? };
    Ok((x, names.into_iter().filter(|name| read.contains(name)).collect()))
}

/// The product of two operands with the names that are read later.
fn contracted_pair<N: Copy + PartialEq>(
    call: &mut Call,
    a: (ValueId, Vec<N>),
    b: (ValueId, Vec<N>),
    later: &[N],
) -> Result<(ValueId, Vec<N>)> {
    let (read_by_a, read_by_b) = ([&b.1[..], later].concat(), [&a.1[..], later].concat());
    let (a, left) = summed_alone(call, a, &read_by_a)?;
    let (b, right) = summed_alone(call, b, &read_by_b)?;
    let both: Vec<N> = left.iter().copied().filter(|name| right.contains(name)).collect();
    let (batch, summed): (Vec<N>, Vec<N>) = both.iter().partition(|name| later.contains(name));
    let at = |names: &[N], which: &[N]| -> Vec<usize> {
        which.iter().filter_map(|name| names.iter().position(|n| n == name)).collect()
    };
    let dims = DotGeneral {
        lhs_batch: at(&left, &batch),
        rhs_batch: at(&right, &batch),
        lhs_contracting: at(&left, &summed),
        rhs_contracting: at(&right, &summed),
        result_dtype: None,
    };
    let free = |names: &[N]| names.iter().copied().filter(|name| !both.contains(name)).collect::<Vec<N>>();
    let names = [batch, free(&left), free(&right)].concat();
    let (left_shape, right_shape) = (call.shape(a), call.shape(b));
    let extent = |name: &N| match left.iter().position(|n| n == name) {
        Some(dim) => left_shape[dim],
        None => right.iter().position(|n| n == name).map_or(1, |dim| right_shape[dim]),
    };
    let shape: Vec<usize> = names.iter().map(extent).collect();
    call.check_size(&shape)?;
    Ok((call.b().dot_general(a, b, dims)?, names))
}
