//! A matmul accumulated into a tensor.

use super::sizes;
use crate::GraphBuilder;
use crate::composite::{Attribute, Attributes, Template};
use crate::graph::ValueId;
use crate::ops::DotGeneral;
use partita_base::Result;

/// `dot_general_add(sum, lhs, rhs) -> sum`: `sum + dot_general(lhs, rhs)`; attributes as [`dot_general_dims`] lists them.
pub static DOT_GENERAL_ADD: Template = Template {
    name: "partita.dot_general_add",
    arguments: &["sum", "lhs", "rhs"],
    optional: 0,
    build: build_dot_general_add,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

/// The dimensions of a matmul as attributes of [`DOT_GENERAL_ADD`].
pub fn dot_general_dims(dot: &DotGeneral) -> Attributes {
    let dims = [&dot.lhs_batch, &dot.rhs_batch, &dot.lhs_contracting, &dot.rhs_contracting];
    let list = |dims: &Vec<usize>| Attribute::Ints(dims.iter().map(|&dim| dim as i64).collect());
    DOT_GENERAL_DIMS.iter().map(|name| name.to_string()).zip(dims.map(list)).collect()
}

const DOT_GENERAL_DIMS: [&str; 4] = ["lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting"];

fn build_dot_general_add(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let [lhs_batch, rhs_batch, lhs_contracting, rhs_contracting] =
        DOT_GENERAL_DIMS.map(|name| sizes(a, name));
    let (dtype, own) = (b.ty(args[0]).dtype, b.ty(args[1]).dtype);
    let result_dtype = (dtype != own).then_some(dtype);
    let dims = DotGeneral { lhs_batch, rhs_batch, lhs_contracting, rhs_contracting, result_dtype };
    let product = b.dot_general(args[1], args[2], dims)?;
    Ok(vec![b.add(args[0], product)?])
}
