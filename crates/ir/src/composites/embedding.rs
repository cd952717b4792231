//! Embedding lookup: rows of a table by index.

use super::extents;
use crate::GraphBuilder;
use crate::composite::{Attributes, Template};
use crate::graph::ValueId;
use partita_base::Result;

/// `embedding(weight[v, d], ids[..]) -> [.., d]`.
pub static EMBEDDING: Template = Template {
    name: "partita.embedding",
    arguments: &["weight", "ids"],
    optional: 0,
    build: build_embedding,
    gradient: None,
    rule: None,
    offsets_operand: None,
};

fn build_embedding(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (table, ids) = (extents::<2>(b, args[0], "table")?, b.shape(args[1]));
    let gather = crate::ops::Gather {
        dims: crate::ops::GatherDims {
            offset_dims: vec![ids.len()],
            collapsed_slice_dims: vec![0],
            start_index_map: vec![0],
            index_vector_dim: ids.len(),
            ..Default::default()
        },
        slice_sizes: vec![1, table[1]],
        indices_are_sorted: false,
    };
    Ok(vec![b.push1(gather, args)?])
}
