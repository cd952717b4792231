//! All machine-specific code: vectors of each level (AVX2, AVX-512), just-in-time compilation of elementwise
//! chains, matmul on AMX, matmul of bf16, prefetch, and the fence after non-temporal stores.
//!
//! The rest of the crate sees one trait, [`NativeBackend`]. Its portable twin does nothing: then chains are
//! interpreted and matmul uses vectors, which are correct everywhere. [`levels`] compiles one source for each
//! vector width.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16;
#[cfg(target_arch = "x86_64")]
mod jit;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes;
pub(crate) mod levels;
mod portable;
pub(crate) mod prefetch;
pub(crate) mod vector;

use crate::chain::steps::{Kind, Operands, Step};
use crate::gemm::Band;
use crate::matrix::{Matrix, MatrixMut};
use crate::options::KernelOptions;

/// A chain compiled to machine code. It gives the bits of the interpreter.
pub(crate) trait CompiledChain: Send + Sync {
    /// Runs as many rounds as fit into `count` elements; returns how many elements are left.
    ///
    /// # Safety
    /// The same as for [`crate::chain::run`], with the steps and kinds of operands that this was compiled
    /// from.
    unsafe fn run(&self, operands: &mut Operands, count: usize) -> usize;
}

/// The work that a machine does with its own code, or leaves to portable code.
pub(crate) trait NativeBackend {
    /// The code of steps on operands of these kinds; with `prefetches`, it also prefetches what it will read
    /// later. `None` if the steps have to be interpreted.
    fn compile(&self, steps: &[Step], kinds: &[Kind], prefetches: bool) -> Option<Box<dyn CompiledChain>>;

    /// `out[m, n] = scale * lhs[m, k] rhs[k, n]`, added to `out` if `accumulate`. False if there is no AMX to
    /// do it; then nothing was written.
    ///
    /// # Safety
    /// The matrices have these sizes, and `out` overlaps neither of the others.
    unsafe fn matmul(
        &self,
        sizes: [usize; 3],
        scale: f32,
        lhs: Matrix<f32>,
        rhs: Matrix<f32>,
        out: MatrixMut<f32>,
        accumulate: bool,
    ) -> bool;

    /// `out[m, n] = scale * lhs[m, k] rhs[k, n]` of bf16, or, with a scale of 1, added to `out` if `accumulate`;
    /// computes only what `band` selects. False if there is no instruction to do it, or k is too large for it; then nothing
    /// was written.
    ///
    /// # Safety
    /// The matrices have these sizes, and `out` overlaps neither of the others.
    unsafe fn matmul_bf16(
        &self,
        sizes: [usize; 3],
        scale: f32,
        lhs: Matrix<half::bf16>,
        rhs: Matrix<half::bf16>,
        out: Bf16Out,
        accumulate: bool,
        band: Band,
    ) -> bool;
}

/// Where a matmul of bf16 stores its sums.
#[derive(Clone, Copy)]
pub(crate) enum Bf16Out {
    Bf16(MatrixMut<half::bf16>),
    F32(MatrixMut<f32>),
}

impl Bf16Out {
    /// The matrix from row `row` on.
    pub(crate) fn rows_after(self, row: usize) -> Bf16Out {
        match self {
            Bf16Out::Bf16(out) => Bf16Out::Bf16(out.rows_after(row)),
            Bf16Out::F32(out) => Bf16Out::F32(out.rows_after(row)),
        }
    }

    /// The matrix from column `column` on.
    pub(crate) fn columns_after(self, column: usize) -> Bf16Out {
        match self {
            Bf16Out::Bf16(out) => Bf16Out::Bf16(out.columns_after(column)),
            Bf16Out::F32(out) => Bf16Out::F32(out.columns_after(column)),
        }
    }
}

/// Orders earlier non-temporal stores before all later stores.
pub(crate) fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// The backend that these options select.
#[cfg(target_arch = "x86_64")]
pub(crate) fn backend(options: KernelOptions) -> impl NativeBackend {
    X86(options)
}

/// The backend that these options select.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn backend(_: KernelOptions) -> impl NativeBackend {
    portable::Portable
}

/// 64-bit processors of Intel and AMD.
#[cfg(target_arch = "x86_64")]
struct X86(KernelOptions);

#[cfg(target_arch = "x86_64")]
impl NativeBackend for X86 {
    fn compile(&self, steps: &[Step], kinds: &[Kind], prefetches: bool) -> Option<Box<dyn CompiledChain>> {
        if !self.0.jit() {
            return portable::Portable.compile(steps, kinds, prefetches);
        }
        Some(Box::new(jit::Code::new(self.0.level(), steps, kinds, prefetches)?))
    }

    unsafe fn matmul(
        &self,
        sizes: [usize; 3],
        scale: f32,
        lhs: Matrix<f32>,
        rhs: Matrix<f32>,
        out: MatrixMut<f32>,
        accumulate: bool,
    ) -> bool {
        // SAFETY: the caller upholds the contract; options with AMX are made only where AMX is available.
        unsafe {
            if !self.0.matrix_unit() {
                return portable::Portable.matmul(sizes, scale, lhs, rhs, out, accumulate);
            }
            amx::product(sizes, scale, lhs, rhs, out, accumulate);
        }
        true
    }

    unsafe fn matmul_bf16(
        &self,
        sizes: [usize; 3],
        scale: f32,
        lhs: Matrix<half::bf16>,
        rhs: Matrix<half::bf16>,
        out: Bf16Out,
        accumulate: bool,
        band: Band,
    ) -> bool {
        // SAFETY: the caller upholds the contract; options with the instruction are made only where it is available.
        unsafe {
            if !self.0.bf16_unit() || sizes[1] > bf16::MAX_DEPTH {
                return portable::Portable.matmul_bf16(sizes, scale, lhs, rhs, out, accumulate, band);
            }
            bf16::product(sizes, scale, lhs, rhs, out, accumulate, band);
        }
        true
    }
}
