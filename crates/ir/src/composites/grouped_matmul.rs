//! A matmul in which each row has its own matrix of a stack, as layers of experts need it.

use super::{extents, last};
use crate::GraphBuilder;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use crate::ops::DotGeneral;
use partita_base::Result;

/// `grouped_matmul(x[.., k], weight[g, n, k], own[.., g]) -> [.., n]`: the sum over `g` of `own[.., g] weight[g] x[.., :]`.
/// With a 1 at one group of each row and 0 elsewhere, each row is multiplied by the matrix of its group. The attribute
/// [`GROUPS`](crate::ops::GROUPS) says so to the cost model: the number of groups of the whole tensor.
///
/// `g` is contracted like `k`: with groups sharded over ranks, each rank computes the rows of its own groups, and the
/// results are added.
pub static GROUPED_MATMUL: Template = Template {
    name: "partita.grouped_matmul",
    arguments: &["x", "weight", "own"],
    optional: 0,
    build: build_grouped_matmul,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn build_grouped_matmul(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let [groups, _, features] = extents::<3>(b, args[1], "weight")?;
    let rows = last(b, args[0])?;
    let mut laid_out = b.shape(args[0]);
    laid_out.truncate(rows);
    laid_out.extend([groups, features]);
    // Each row once for each group, times its share of that group.
    let mut of_x: Vec<usize> = (0..rows).collect();
    of_x.push(rows + 1);
    let x = b.broadcast_in_dim(args[0], &laid_out, &of_x)?;
    let of_own: Vec<usize> = (0..=rows).collect();
    let own = b.broadcast_in_dim(args[2], &laid_out, &of_own)?;
    let x = b.multiply(x, own)?;
    let dims = DotGeneral {
        lhs_contracting: vec![rows, rows + 1],
        rhs_contracting: vec![0, 2],
        ..DotGeneral::default()
    };
    Ok(vec![b.dot_general(x, args[1], dims)?])
}
