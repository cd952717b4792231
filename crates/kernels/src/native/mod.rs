//! Machine code, fenced: vectors of each level (AVX2, AVX-512), just-in-time compilation of elementwise chains, and matrix
//! products on the matrix unit (AMX); beside them prefetches, and the fence behind non-temporal stores.
//!
//! What the rest of this crate knows of it is one trait, [`NativeBackend`], whose portable twin does nothing: then chains
//! are interpreted and products run in vectors, which are correct everywhere. [`levels`] compiles one source for each
//! width of vectors.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod jit;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes;
pub(crate) mod levels;
mod portable;
pub(crate) mod prefetch;
pub(crate) mod vector;

use crate::chain::steps::{Kind, Operands, Step};
use crate::matrix::{Matrix, MatrixMut};
use crate::options::KernelOptions;

/// A chain compiled to machine code. Its bits are those of the steps.
pub(crate) trait CompiledChain: Send + Sync {
    /// Runs as many whole rounds as fit into `count` elements; returns how many elements are left.
    ///
    /// # Safety
    /// As for [`crate::chain::run`], for the steps and kinds of operands that this was made of.
    unsafe fn run(&self, operands: &mut Operands, count: usize) -> usize;
}

/// What a machine does by code of its own, or leaves to portable code.
pub(crate) trait NativeBackend {
    /// The code of steps on operands of these kinds; with `prefetches`, it prefetches what it will read later. `None` where
    /// the steps have to be interpreted.
    fn compile(&self, steps: &[Step], kinds: &[Kind], prefetches: bool) -> Option<Box<dyn CompiledChain>>;

    /// `out[m, n] = scale * lhs[m, k] rhs[k, n]`, added to what is there if `accumulate`. False where there is no matrix
    /// unit to do it, and nothing was written.
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
}

/// Puts non-temporal stores before this in order with what is written next.
pub(crate) fn store_fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of every x86-64 processor.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

/// What these options let a machine do.
#[cfg(target_arch = "x86_64")]
pub(crate) fn backend(options: KernelOptions) -> impl NativeBackend {
    X86(options)
}

/// What these options let a machine do.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn backend(_: KernelOptions) -> impl NativeBackend {
    portable::Portable
}

/// Intel's and AMD's processors of 64 bits.
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
        // SAFETY: the caller's; options with a matrix unit are made only where there is one.
        unsafe {
            if !self.0.matrix_unit() {
                return portable::Portable.matmul(sizes, scale, lhs, rhs, out, accumulate);
            }
            amx::product(sizes, scale, lhs, rhs, out, accumulate);
        }
        true
    }
}
