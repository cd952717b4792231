//! The portable twin of machine code: chains are interpreted step by step, and matmul uses vectors.

use super::{Bf16Out, CompiledChain, NativeBackend};
use crate::chain::steps::{Kind, Step};
use crate::gemm::Band;
use crate::matrix::{Matrix, MatrixMut};

/// No machine code.
pub(crate) struct Portable;

impl NativeBackend for Portable {
    fn compile(&self, _: &[Step], _: &[Kind], _: bool) -> Option<Box<dyn CompiledChain>> {
        None
    }

    unsafe fn matmul(
        &self,
        _: [usize; 3],
        _: f32,
        _: Matrix<f32>,
        _: Matrix<f32>,
        _: MatrixMut<f32>,
        _: bool,
    ) -> bool {
        false
    }
    unsafe fn matmul_bf16(
        &self,
        _: [usize; 3],
        _: f32,
        _: Matrix<half::bf16>,
        _: Matrix<half::bf16>,
        _: Bf16Out,
        _: bool,
        _: Band,
    ) -> bool {
        false
    }
}
