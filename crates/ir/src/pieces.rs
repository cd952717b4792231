//! A parameter that is stored as several tensors (split fused projections).

use crate::literal::Literal;

/// The parts of one parameter, in order; its optimizer states are split in the same way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pieces {
    /// The global name.
    pub name: String,
    /// The split dimension.
    pub dim: usize,
    /// For each part: its name (`<name>#0`, `<name>#1`, ..), and its start and end in the
    /// dimension.
    pub limits: Vec<(String, usize, usize)>,
}

impl Pieces {
    /// The extent of the full tensor in the split dimension.
    pub fn extent(&self) -> usize {
        self.limits.last().map_or(0, |(_, _, limit)| *limit)
    }

    /// The parts of a full tensor, with their names.
    pub fn split(&self, whole: &Literal) -> Vec<(String, Literal)> {
        let piece = |(name, start, limit): &(String, usize, usize)| {
            let (mut offset, mut shape) = (vec![0; whole.ty.rank()], whole.ty.shape.clone());
            (offset[self.dim], shape[self.dim]) = (*start, limit - start);
            (name.clone(), whole.window(&offset, &shape))
        };
        self.limits.iter().map(piece).collect()
    }

    /// The full tensor from its parts, in order.
    pub fn join(&self, pieces: &[Literal]) -> Literal {
        assert_eq!(pieces.len(), self.limits.len(), "pieces of {}", self.name);
        let mut shape = pieces[0].ty.shape.clone();
        shape[self.dim] = self.extent();
        let mut whole = Literal::zeros(&pieces[0].ty.with_shape(shape));
        for (piece, (_, start, _)) in pieces.iter().zip(&self.limits) {
            let mut offset = vec![0; piece.ty.rank()];
            offset[self.dim] = *start;
            whole.set_window(&offset, piece);
        }
        whole
    }
}
