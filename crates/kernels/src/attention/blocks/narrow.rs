//! Attention of bf16, as fused kernels compute it: scores, sums and gradients of scores are f32; probabilities and gradients
//! of scores are rounded to bf16 before the matmuls that they enter. So every matmul has factors of bf16, and runs on the
//! machine's instruction where it has one, with the bits of f32 sums over the rounded factors.

use half::bf16;
use partita_base::DType;
use std::ops::Range;

use super::{Tile, chunks, mean};
use crate::element::{Float, Number, Real};
use crate::gemm::{BAND_ROWS, Band};
use crate::matrix::{Matrix, MatrixMut};
use crate::native::levels::multiversion;
use crate::native::vector::LANES;
use crate::native::{Bf16Out, NativeBackend, backend};
use crate::options::KernelOptions;
use crate::view::View;

/// How the matmuls of attention run for an element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::attention) enum Products {
    /// In the compute type throughout.
    Wide,
    /// In f32, of factors that were rounded to bf16.
    Rounded,
    /// Of bf16, by the machine's instruction; operands are read where they are.
    Narrow,
}

impl Products {
    pub fn of<T: Float>(options: KernelOptions, width: usize) -> Products {
        /// Heads that the instruction is used for: longer sums than any block of keys do not occur.
        const MAX_WIDTH: usize = 2048;
        match T::DTYPE {
            DType::BF16 if options.bf16_unit() && width <= MAX_WIDTH => Products::Narrow,
            DType::BF16 => Products::Rounded,
            _ => Products::Wide,
        }
    }

    /// Elements of a buffer of scores in bf16, if there is one.
    pub fn scores(self, count: usize) -> usize {
        if self == Products::Narrow { count } else { 0 }
    }
}

/// Some rows of one head of bf16 where they are.
pub(in crate::attention) fn rows_of(
    view: &View<'_>,
    [b, h]: [usize; 2],
    rows: &Range<usize>,
) -> Matrix<bf16> {
    Matrix::of_view(&view.index(0, b).index(0, h).slice(0, rows.start, rows.end, 1))
}

impl Tile<'_> {
    /// The keys of the tile, of those of a block.
    pub fn keys_of(&self, block: &Range<usize>) -> Range<usize> {
        block.start + self.before..block.end
    }

    /// `out = scale a b^T` where not masked; `a` has a row for each query and `b` has a row for each key.
    ///
    /// # Safety
    /// The matrices have these rows, and the options the instruction for bf16.
    pub unsafe fn narrow_scores<C: Real>(
        &self,
        options: KernelOptions,
        scale: C,
        [a, b]: [Matrix<bf16>; 2],
        out: &mut [C],
    ) {
        let size = [self.rows, self.width, self.reach()];
        let out = MatrixMut::of(bytemuck::cast_slice_mut(out), self.pitch);
        let scale = scale.to_f64() as f32;
        // SAFETY: the caller upholds the contract; `out` has room for the matmul.
        unsafe { multiply(options, size, scale, a, b.transposed(), out, false, Band::Out(self.shift)) }
    }

    /// `out += p x`: `p` holds rounded scores, `x` has a row for each key, `out` has a row for each query.
    ///
    /// # Safety
    /// `x` has these rows, and the options the instruction for bf16.
    pub unsafe fn narrow_over_keys<C: Real>(
        &self,
        options: KernelOptions,
        p: &[bf16],
        x: Matrix<bf16>,
        out: &mut [C],
    ) {
        let size = [self.rows, self.keys, self.width];
        let out = MatrixMut::of(bytemuck::cast_slice_mut(out), self.columns);
        let p = Matrix::of(p, self.pitch);
        // SAFETY: `p` is rows by keys; the caller upholds the rest.
        unsafe { multiply(options, size, 1.0, p, x, out, true, Band::Lower(self.shift)) }
    }

    /// `out += p^T x`: `p` holds rounded scores, `x` has a row for each query, `out` has a row for each key.
    ///
    /// # Safety
    /// `x` has these rows, and the options the instruction for bf16.
    pub unsafe fn narrow_over_rows<C: Real>(
        &self,
        options: KernelOptions,
        p: &[bf16],
        x: Matrix<bf16>,
        out: &mut [C],
    ) {
        let size = [self.reach(), self.rows, self.width];
        let out = MatrixMut::of(bytemuck::cast_slice_mut(out), self.columns);
        let p = Matrix::of(p, self.pitch).transposed();
        // SAFETY: `p` is rows by keys; the caller upholds the rest.
        unsafe { multiply(options, size, 1.0, p, x, out, true, Band::Upper(self.shift)) }
    }

    /// The elements of a row of scores that a matmul may read.
    #[inline(always)]
    fn read_of_row(&self, row: usize) -> Range<usize> {
        let end = (self.below(row) + BAND_ROWS).min(self.keys).next_multiple_of(LANES);
        row * self.pitch..row * self.pitch + end
    }
}

/// A matmul by the instruction for bf16.
///
/// # Safety
/// The matrices have these sizes, `out` overlaps neither of the others, and the options have the instruction.
unsafe fn multiply(
    options: KernelOptions,
    size: [usize; 3],
    scale: f32,
    a: Matrix<bf16>,
    b: Matrix<bf16>,
    out: MatrixMut<f32>,
    accumulate: bool,
    band: Band,
) {
    if size[0] == 0 || size[2] == 0 {
        return;
    }
    // SAFETY: the caller upholds the contract.
    let is_done =
        unsafe { backend(options).matmul_bf16(size, scale, a, b, Bf16Out::F32(out), accumulate, band) };
    assert!(is_done, "the instruction is there, and sums are short");
}

multiversion! {
    /// Rounds scores times the factor of their row; without factors, as they are.
    pub(in crate::attention) fn round_scores[T: Float](tile: &Tile<'_>, from: &[T::Compute], factors: &[T::Compute], into: &mut [T]) {
        for row in 0..tile.rows {
            let (factor, read) = (factors.get(row).copied().unwrap_or(T::Compute::ONE), tile.read_of_row(row));
            for (into, &score) in into[read.clone()].iter_mut().zip(&from[read]) {
                *into = T::store(score * factor);
            }
        }
    }
}

multiversion! {
    /// As [`round_scores`], in place.
    pub(in crate::attention) fn round_scores_here[T: Float](tile: &Tile<'_>, scores: &mut [T::Compute], factors: &[T::Compute]) {
        for row in 0..tile.rows {
            let factor = factors.get(row).copied().unwrap_or(T::Compute::ONE);
            for score in &mut scores[tile.read_of_row(row)] {
                *score = T::store(*score * factor).load();
            }
        }
    }
}

multiversion! {
    /// `d = scale p inverse (d - mean)` by rows: the scaled gradient through a softmax with the exponentials `p`.
    /// If the means are not complete yet, first adds this tile's part to them.
    pub(in crate::attention) fn gradients_of_whole[C: Real](
        tile: &Tile<'_>,
        p: &[C],
        d: &mut [C],
        means: &mut [C],
        inverses: &[C],
        scale: C,
        complete: bool
    ) {
        for row in 0..tile.rows {
            let (p, d) = (&p[row * tile.pitch..], chunks(tile, row, d, C::ZERO));
            if !complete {
                means[row] = means[row] + mean(p, d) * inverses[row];
            }
            let (shift, factor) = (means[row], inverses[row] * scale);
            for (d, &p) in d.as_flattened_mut().iter_mut().zip(p) {
                *d = p * factor * (*d - shift);
            }
        }
    }
}
