//! What a compiler asks of the device that it compiles for: which composites run as they stand, and how.

use crate::ops::Composite;
use partita_base::DType;

/// A device as a target: the CPU, another compiler, a simulator. What is asked here is about ops and composites, which
/// graphs are made of; what lowering asks about regions of programs stands with them, in `partita_program`.
pub trait Target {
    /// Whether a composite runs as one kernel. Others are replaced by their decompositions.
    fn has_kernel(&self, composite: &Composite) -> bool;

    /// Why a composite that a schedule made does not run as one kernel, in a phrase such as "dot_general in `mlp.up_proj`
    /// is no elementwise op".
    fn fusible(&self, _composite: &Composite) -> Result<(), String> {
        Ok(())
    }

    /// Whether that kernel needs the elements of its operands in row-major order: views are copied before.
    fn needs_dense(&self, _composite: &Composite) -> bool {
        false
    }

    /// (operand, result) positions: whether that kernel may write a result over an operand of its type.
    fn overwrites(&self, _composite: &Composite) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// Into how long blocks a matrix product in this type cuts a sum of so many products, if it does: it sums each block
    /// by itself, in order, and adds the sums in order. So a product over all of them may be done block by block.
    fn product_block(&self, _dtype: DType, _terms: usize) -> Option<usize> {
        None
    }
}
