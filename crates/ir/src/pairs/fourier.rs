//! Discrete Fourier transforms as matrix products.
//!
//! A transform of n elements is a product with the matrix of e^(-2 pi i jk / n), whose angles are reduced to jk mod n and
//! computed in f64. Above [`DIRECT`] elements, n = p q is done as q transforms of p elements, a product with a table of n
//! numbers, and p transforms of q elements (Cooley and Tukey, 1965), so n log n work for small factors. A prime factor p
//! takes a matrix of p^2 numbers.

use super::{Parts, Twin, bilinear, each_part, table};
use crate::builder::GraphBuilder;
use crate::complex::{self, Complex};
use crate::ops::{Binary, BinaryKind, DotGeneral, Fft, FftKind, Pad, Reshape, Slice, Transpose};
use partita_base::{DType, Result};

/// Transforms of so many elements are one product.
const DIRECT: usize = 64;

/// The largest prime factor above [`DIRECT`]: its matrices take 32 MiB in f32.
const LARGEST_PRIME: usize = 2048;

/// The transform; `None` for a length with a prime factor above [`LARGEST_PRIME`].
pub(super) fn transformed(b: &mut GraphBuilder, fft: &Fft, x: Parts) -> Result<Option<Twin>> {
    if fft.length.iter().any(|&length| largest_prime(length) > LARGEST_PRIME) {
        return Ok(None);
    }
    let mut z = x;
    let rank = b.shape(z.re).len();
    let leading = rank - fft.length.len();
    let line = |dim: usize| Line { dim, length: fft.length[dim - leading], inverse: false };
    match fft.kind {
        // The last dimension first: it has the fewest elements afterwards.
        FftKind::Fft | FftKind::Rfft => {
            for dim in (leading..rank).rev() {
                let length = fft.length[dim - leading];
                let is_half = fft.kind == FftKind::Rfft && dim == rank - 1 && length > 0;
                z = line(dim).transform(b, z, if is_half { length / 2 + 1 } else { length })?;
            }
        }
        FftKind::Ifft | FftKind::Irfft => {
            for dim in leading..rank {
                let length = fft.length[dim - leading];
                let is_half = fft.kind == FftKind::Irfft && dim == rank - 1;
                z = weighted(b, z, dim, length, is_half)?;
                z = Line { inverse: true, ..line(dim) }.transform(b, z, length)?;
            }
        }
    }
    Ok(Some(match fft.kind {
        FftKind::Irfft => Twin::Real(z.re),
        _ => Twin::Complex(z),
    }))
}

/// Divides by the length. Of half a spectrum, the elements that stand for two, an element and its conjugate, count twice:
/// the real part of the transform is then that of the whole spectrum.
fn weighted(b: &mut GraphBuilder, z: Parts, dim: usize, length: usize, is_half: bool) -> Result<Parts> {
    let ty = b.ty(z.re).clone();
    let weight = |at: usize| match is_half && at > 0 && 2 * at != length {
        true => 2.0 / length as f64,
        false => 1.0 / length as f64,
    };
    let weights = crate::Literal::from_f64(&ty.with_shape([ty.shape[dim]]), (0..ty.shape[dim]).map(weight));
    let weights = b.constant(weights);
    let re = b.broadcast_in_dim(weights, &ty.shape, &[dim])?;
    bilinear(b, &Binary { kind: BinaryKind::Multiply }.into(), z, Parts { re, im: None })
}

/// The smallest divisor from 2 on; 1 of 0 and 1.
fn smallest_factor(length: usize) -> usize {
    (2..).take_while(|p| p * p <= length).find(|p| length.is_multiple_of(*p)).unwrap_or(length.max(1))
}

fn largest_prime(mut length: usize) -> usize {
    let mut largest = 1;
    while length > 1 {
        largest = smallest_factor(length);
        length /= largest;
    }
    largest
}

/// The divisor that is next to the square root, at most that; 1 of a prime.
fn middle_factor(length: usize) -> usize {
    (1..=length.isqrt()).rev().find(|p| length.is_multiple_of(*p)).unwrap_or(1)
}

/// Transforms along one dimension, without a scale.
#[derive(Clone, Copy)]
struct Line {
    dim: usize,
    /// The number of elements that are transformed; the tensor may have fewer: zeros follow.
    length: usize,
    inverse: bool,
}

impl Line {
    /// `e^(-2 pi i part / length)`, or its conjugate.
    fn turn(self, part: usize) -> Complex {
        let turn = complex::turn(part, self.length);
        if self.inverse { turn } else { complex::conjugate(turn) }
    }

    /// The first `kept` elements of the transform.
    fn transform(self, b: &mut GraphBuilder, z: Parts, kept: usize) -> Result<Parts> {
        let (shape, dtype) = (b.shape(z.re), b.ty(z.re).dtype);
        let first = if self.length <= DIRECT { 1 } else { middle_factor(self.length) };
        match first {
            1 => self.product(b, z, dtype, kept),
            first => self.factored(b, z, dtype, &shape, [first, self.length / first], kept),
        }
    }

    fn product(self, b: &mut GraphBuilder, z: Parts, dtype: DType, kept: usize) -> Result<Parts> {
        let shape = b.shape(z.re);
        let (given, last) = (shape[self.dim], shape.len() - 1);
        let places = (0..given).flat_map(|j| (0..kept).map(move |k| (j, k)));
        let turns: Vec<Complex> = places.map(|(j, k)| self.turn(j * k)).collect();
        let matrix = table(b, dtype, &[given, kept], &turns);
        let dot =
            DotGeneral { lhs_contracting: vec![self.dim], rhs_contracting: vec![0], ..DotGeneral::default() };
        let product = bilinear(b, &dot.into(), z, matrix)?;
        if self.dim == last {
            return Ok(product);
        }
        // The transformed dimension came last.
        let mut permutation: Vec<usize> = (0..last).collect();
        permutation.insert(self.dim, last);
        each_part(b, &Transpose { permutation }.into(), &[Twin::Complex(product)])
    }

    /// With `j = j1 q + j2` and `k = k1 + p k2`, the transform is that of `p` elements `j1` to `k1`, times
    /// `e^(-2 pi i j2 k1 / n)`, then that of `q` elements `j2` to `k2`.
    fn factored(
        self,
        b: &mut GraphBuilder,
        z: Parts,
        dtype: DType,
        shape: &[usize],
        [p, q]: [usize; 2],
        kept: usize,
    ) -> Result<Parts> {
        let (dim, rank) = (self.dim, shape.len());
        let mut z = z;
        let each = |b: &mut GraphBuilder, z: &mut Parts, op: crate::Op| -> Result<()> {
            *z = each_part(b, &op, &[Twin::Complex(*z)])?;
            Ok(())
        };
        if shape[dim] < self.length {
            let mut pad = Pad { low: vec![0; rank], high: vec![0; rank], interior: vec![0; rank] };
            pad.high[dim] = (self.length - shape[dim]) as i64;
            let zero = b.scalar(dtype, 0.0);
            z = each_part(b, &pad.into(), &[Twin::Complex(z), Twin::Complex(Parts { re: zero, im: None })])?;
        }
        let split = [&shape[..dim], &[p, q], &shape[dim + 1..]].concat();
        each(b, &mut z, Reshape { shape: split.clone() }.into())?;
        z = Line { length: p, ..self }.transform(b, z, p)?;
        let places = (0..p).flat_map(|k| (0..q).map(move |j| (j, k)));
        let turns: Vec<Complex> = places.map(|(j, k)| self.turn(j * k)).collect();
        let twiddles = table(b, dtype, &[p, q], &turns);
        let mut spread = |part| b.broadcast_in_dim(part, &split, &[dim, dim + 1]);
        let twiddles = Parts { re: spread(twiddles.re)?, im: twiddles.im.map(&mut spread).transpose()? };
        z = bilinear(b, &Binary { kind: BinaryKind::Multiply }.into(), z, twiddles)?;
        z = Line { dim: dim + 1, length: q, ..self }.transform(b, z, q)?;
        let mut permutation: Vec<usize> = (0..rank + 1).collect();
        permutation.swap(dim, dim + 1);
        each(b, &mut z, Transpose { permutation }.into())?;
        let mut whole = shape.to_vec();
        whole[dim] = self.length;
        each(b, &mut z, Reshape { shape: whole.clone() }.into())?;
        if kept < self.length {
            let (start, stride) = (vec![0; rank], vec![1; rank]);
            whole[dim] = kept;
            each(b, &mut z, Slice { start, limit: whole, stride }.into())?;
        }
        Ok(z)
    }
}
