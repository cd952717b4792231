//! The compile target: which composites a device runs as one kernel, and how.

use crate::ops::Composite;
use partita_base::DType;

/// A device as a target: the CPU, another compiler, a simulator. This trait answers questions about
/// ops and composites of graphs; the trait for regions of programs is in `partita_program`.
pub trait Target {
    /// Whether a composite runs as one kernel. Others are inlined.
    fn has_kernel(&self, composite: &Composite) -> bool;

    /// Why a composite from a schedule does not run as one kernel, as a phrase such as "dot_general
    /// in `mlp.up_proj` is no elementwise op".
    fn fusible(&self, _composite: &Composite) -> Result<(), String> {
        Ok(())
    }

    /// Whether that kernel needs dense row-major operands: views are copied first.
    fn needs_dense(&self, _composite: &Composite) -> bool {
        false
    }

    /// (operand, result) positions: whether that kernel may write a result in place of an operand
    /// of its type.
    fn overwrites(&self, _composite: &Composite) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// The block length in which a matmul of this type splits a sum of so many terms, if it does:
    /// it sums each block in order and then adds the block sums in order. So the matmul may be
    /// computed block by block.
    fn product_block(&self, _dtype: DType, _terms: usize) -> Option<usize> {
        None
    }
}
