//! A parameter that is stored as several tensors under names of their own.

use crate::literal::Literal;

/// The pieces of one parameter, in order; its optimizer states are cut likewise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pieces {
    /// The global name.
    pub name: String,
    /// The dimension that is cut.
    pub dim: usize,
    /// For each piece: its name (`<name>#0`, `<name>#1`, ..), where it starts and where it ends in the dimension.
    pub limits: Vec<(String, usize, usize)>,
}

impl Pieces {
    /// The pieces of a whole tensor, with their names.
    pub fn split(&self, whole: &Literal) -> Vec<(String, Literal)> {
        let piece = |(name, start, limit): &(String, usize, usize)| {
            let (mut offset, mut shape) = (vec![0; whole.ty.rank()], whole.ty.shape.clone());
            (offset[self.dim], shape[self.dim]) = (*start, limit - start);
            (name.clone(), whole.window(&offset, &shape))
        };
        self.limits.iter().map(piece).collect()
    }

    /// The whole tensor from its pieces, in order.
    pub fn join(&self, pieces: &[Literal]) -> Literal {
        assert_eq!(pieces.len(), self.limits.len(), "pieces of {}", self.name);
        let mut shape = pieces[0].ty.shape.clone();
        shape[self.dim] = self.limits.last().map_or(0, |(_, _, limit)| *limit);
        let mut whole = Literal::zeros(&pieces[0].ty.with_shape(shape));
        for (piece, (_, start, _)) in pieces.iter().zip(&self.limits) {
            let mut offset = vec![0; piece.ty.rank()];
            offset[self.dim] = *start;
            whole.set_window(&offset, piece);
        }
        whole
    }
}
