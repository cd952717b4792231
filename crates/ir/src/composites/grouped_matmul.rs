//! Matmuls in which each row has its own matrix of a stack, as layers of experts need them, and their gradients.

use super::{extents, last};
use crate::GraphBuilder;
use crate::composite::{Attribute, Attributes, AttributesExt, Gradient, Template};
use crate::graph::ValueId;
use crate::op::GradientContext;
use crate::ops::{Composite, DotGeneral};
use partita_base::Result;

/// `grouped_matmul(x[.., k], weight[g, n, k], own[.., g]) -> [.., n]`: the sum over `g` of `own[.., g] weight[g] x[.., :]`.
/// With a 1 at one group of each row and 0 elsewhere, each row is multiplied by the matrix of its group. The attribute
/// [`GROUPS`](crate::ops::GROUPS) says so to the cost model: the number of groups of the whole tensor. With the attribute
/// [`TRANSPOSED`], matrices are `weight[g, k, n]`.
///
/// `g` is contracted like `k`: with groups sharded over ranks, each rank computes the rows of its own groups, and the
/// results are added.
///
/// The gradient of `x` is a grouped matmul with the matrices transposed, that of `weight` is [`GROUPED_OUTER`].
pub static GROUPED_MATMUL: Template = Template {
    name: "partita.grouped_matmul",
    arguments: &["x", "weight", "own"],
    optional: 0,
    build: build_grouped_matmul,
    gradient: Some(Gradient::Nodes(grouped_matmul_gradient)),
    rule: None,
    offsets_operand: None,
};

/// `grouped_outer(x[.., k], y[.., n], own[.., g]) -> [g, n, k]`: the sum over rows of `own[.., g] y[.., n] x[.., k]`, which
/// is 0 for a group without rows. [`GROUPS`](crate::ops::GROUPS) as in [`GROUPED_MATMUL`].
pub static GROUPED_OUTER: Template = Template {
    name: "partita.grouped_outer",
    arguments: &["x", "y", "own"],
    optional: 0,
    build: build_grouped_outer,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

/// The attribute of a grouped matmul whose matrices are `[g, k, n]`.
pub const TRANSPOSED: &str = "transposed";

/// The positions of `k` and `n` in the matrices.
fn sides(a: &Attributes) -> [usize; 2] {
    if a.flag(TRANSPOSED) { [1, 2] } else { [2, 1] }
}

/// `x[.., k]` by `own[.., g]`, `[.., g, k]`: each row once for each group, times its share of that group.
fn shared_out(b: &mut GraphBuilder, x: ValueId, own: ValueId) -> Result<ValueId> {
    let (rows, groups) = (last(b, x)?, last(b, own)?);
    let mut laid_out = b.shape(own);
    laid_out.push(b.shape(x)[rows]);
    let mut of_x: Vec<usize> = (0..rows).collect();
    of_x.push(rows + 1);
    let x = b.broadcast_in_dim(x, &laid_out, &of_x)?;
    let of_own: Vec<usize> = (0..=groups).collect();
    let own = b.broadcast_in_dim(own, &laid_out, &of_own)?;
    b.multiply(x, own)
}

fn build_grouped_matmul(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    extents::<3>(b, args[1], "weight")?;
    let x = shared_out(b, args[0], args[2])?;
    let features = last(b, x)?;
    let dims = DotGeneral {
        lhs_contracting: vec![features - 1, features],
        rhs_contracting: vec![0, sides(a)[0]],
        ..DotGeneral::default()
    };
    Ok(vec![b.dot_general(x, args[1], dims)?])
}

fn build_grouped_outer(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let rows: Vec<usize> = (0..last(b, args[0])?).collect();
    let y = shared_out(b, args[1], args[2])?;
    let dims = DotGeneral { lhs_contracting: rows.clone(), rhs_contracting: rows, ..DotGeneral::default() };
    Ok(vec![b.dot_general(y, args[0], dims)?])
}

fn grouped_matmul_gradient(a: &Attributes, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
    let &[x, weight, own] = context.operands else { unreachable!("the operands are checked") };
    let Some(dy) = context.cotangents[0] else { return Ok(vec![None; 3]) };
    let (b, wanted) = (&mut *context.builder, context.wanted);
    let mut apply = |template: &'static Template, attributes: Attributes, operands: [ValueId; 3]| {
        let types = operands.map(|operand| b.ty(operand).clone());
        b.push1(Composite::new(template, attributes, &types)?, &operands)
    };
    let is_transposed = a.flag(TRANSPOSED);
    let of_x = match wanted[0] {
        true => {
            let mut attributes = a.clone();
            attributes.shift_remove(TRANSPOSED);
            if !is_transposed {
                attributes.insert(TRANSPOSED.to_string(), Attribute::Bool(true));
            }
            Some(apply(&GROUPED_MATMUL, attributes, [dy, weight, own])?)
        }
        false => None,
    };
    let of_weight = match wanted[1] {
        true => {
            let mut attributes = a.clone();
            attributes.shift_remove(TRANSPOSED);
            let [inner, outer] = if is_transposed { [dy, x] } else { [x, dy] };
            Some(apply(&GROUPED_OUTER, attributes, [inner, outer, own])?)
        }
        false => None,
    };
    // A row's gradient for its share of each group, whether it has one or not: all rows meet all matrices.
    let of_own = match wanted[2] {
        true => {
            let rows = last(b, x)?;
            let [_, n] = sides(a);
            let products =
                DotGeneral { lhs_contracting: vec![rows], rhs_contracting: vec![n], ..DotGeneral::default() };
            let products = b.dot_general(dy, weight, products)?;
            let lead: Vec<usize> = (0..rows).collect();
            let sums = DotGeneral {
                lhs_batch: lead.clone(),
                rhs_batch: lead,
                lhs_contracting: vec![rows + 1],
                rhs_contracting: vec![rows],
                ..DotGeneral::default()
            };
            Some(b.dot_general(products, x, sums)?)
        }
        false => None,
    };
    Ok(vec![of_x, of_weight, of_own])
}
