//! One graph for all ranks that run the same ops on the same shapes (a rank class).
//!
//! Such ranks differ only in positions: the offset of a shard, the rows of a table. In a class
//! graph these are [`RankConstant`](crate::ops::RankConstant)s, which hold one value per rank; all
//! else exists once, however many ranks share it.

use crate::graph::Graph;

/// A graph and the ranks that run it, ascending.
#[derive(Clone, PartialEq, Debug)]
pub struct ClassGraph {
    /// The local graph.
    pub graph: Graph,
    /// The ranks of the class.
    pub ranks: Vec<usize>,
}

impl ClassGraph {
    /// Every rank in a class of its own: `graphs[r]` is rank `r`'s.
    pub fn each(graphs: impl IntoIterator<Item = Graph>) -> Vec<ClassGraph> {
        graphs.into_iter().enumerate().map(|(rank, graph)| ClassGraph { graph, ranks: vec![rank] }).collect()
    }

    /// The same graph on ranks `0..count`.
    pub fn alike(graph: Graph, count: usize) -> Vec<ClassGraph> {
        vec![ClassGraph { graph, ranks: (0..count).collect() }]
    }
}
