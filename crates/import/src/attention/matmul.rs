//! The dimensions of matmuls by their kind.

use super::axes::Dims;
use partita_ir::ops::DotGeneral;
use partita_ir::traits::ViewMap;
use partita_ir::{Graph, Node, NodeId, Traits};

/// The dimensions of one operand of a matmul by their kind.
pub(super) struct Side<'n> {
    pub batch: &'n [usize],
    pub contracting: &'n [usize],
    pub free: Vec<usize>,
    pub shape: &'n [usize],
}

impl Side<'_> {
    /// Those of some dimensions that are larger than 1.
    pub fn large<'a>(&'a self, dims: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        dims.iter().copied().filter(|&dim| self.shape[dim] > 1)
    }
}

/// The dimensions of both operands.
pub(super) fn sides<'n>(graph: &'n Graph, node: &'n Node, dot: &'n DotGeneral) -> [Side<'n>; 2] {
    [(0, &dot.lhs_batch, &dot.lhs_contracting), (1, &dot.rhs_batch, &dot.rhs_contracting)].map(
        |(operand, batch, contracting)| {
            let shape = &graph.ty(node.operands[operand]).shape[..];
            let free =
                (0..shape.len()).filter(|dim| !batch.contains(dim) && !contracting.contains(dim)).collect();
            Side { batch, contracting, free, shape }
        },
    )
}

/// The extents of the axes that each batch dimension of a matmul joins: several if a reader of the result sees it apart.
pub(super) fn batch_axes(graph: &Graph, readers: &[(NodeId, usize)], side: &Side) -> Vec<Vec<usize>> {
    let whole: Vec<Vec<usize>> = side.large(side.batch).map(|dim| vec![side.shape[dim]]).collect();
    let apart = |reader: &(NodeId, usize)| -> Option<Vec<Vec<usize>>> {
        let node = graph.node(reader.0);
        let Traits::View(ViewMap::Reshape) = graph.traits(node) else { return None };
        let (old, new) = (&graph.ty(node.operands[0]).shape, &graph.ty(node.results[0]).shape);
        let behind = &old[side.batch.len()..];
        let mut parts = new.strip_suffix(behind)?.iter().copied().filter(|&extent| extent > 1);
        let mut axes = Vec::with_capacity(whole.len());
        for extent in whole.iter().flatten() {
            let mut own: Vec<usize> = Vec::new();
            while own.iter().product::<usize>() < *extent {
                own.push(parts.next()?);
            }
            axes.push(own);
        }
        let fits = axes.iter().zip(&whole).all(|(own, whole)| own.iter().product::<usize>() == whole[0]);
        (fits && parts.next().is_none()).then_some(axes)
    };
    readers.iter().find_map(apart).unwrap_or(whole)
}

/// The dimensions of a matmul's result.
pub(super) fn product_dims(sides: &[Side; 2], dims: [&Dims; 2]) -> Dims {
    let of =
        |side: usize, some: &[usize]| some.iter().map(move |&dim| dims[side][dim].clone()).collect::<Dims>();
    [of(0, sides[0].batch), of(0, &sides[0].free), of(1, &sides[1].free)].concat()
}
