//! Initial values of parameters, computed per element from the global index, so that every rank of
//! any mesh makes exactly its shard.

use crate::random::key;
use partita_ir::ops::UnaryKind;
use partita_ir::types::row_major_strides;
use std::f64::consts::SQRT_2;
use std::ops::Range;

/// How a parameter starts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Init {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// All the same number.
    Constant(f64),
    /// Normal around 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Uniform in `(-bound, bound)`.
    Uniform {
        /// Largest magnitude.
        bound: f64,
    },
    /// Uniform in `(-1/sqrt(fan_in), 1/sqrt(fan_in))`: the default of PyTorch's `Linear` (Kaiming
    /// with a = sqrt(5)).
    KaimingUniform {
        /// The number of inputs per output.
        fan_in: usize,
    },
}

/// The golden-ratio increment of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The stream number of a name: FNV-1a, the same on every machine and in every version.
pub fn stream_of(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ byte as u64).wrapping_mul(0x0100_0000_01B3))
}

impl Init {
    /// The elements of the box of `extent` at `offset` in a tensor of `global_shape`, row-major. The numbers are those
    /// of the composites `partita.uniform` and `partita.normal` with this seed and stream.
    pub fn values(
        &self,
        seed: u64,
        stream: u64,
        global_shape: &[usize],
        offset: &[usize],
        extent: &[usize],
    ) -> Vec<f64> {
        let (key, cut) = (key(seed, stream), Cut { shape: global_shape, offset, extent });
        let of_draw = |index| self.of_draw(symmetric(key, index));
        cut.runs(0..cut.element_count()).flatten().map(of_draw).collect()
    }

    /// The element for a [symmetric] draw.
    pub(crate) fn of_draw(&self, x: f64) -> f64 {
        match *self {
            Init::Zeros => 0.0,
            Init::Ones => 1.0,
            Init::Constant(value) => value,
            Init::Normal { std } => UnaryKind::ErfInv.of_float(x) * SQRT_2 * std,
            Init::Uniform { bound } => x * bound,
            Init::KaimingUniform { fan_in } => x * (1.0 / (fan_in.max(1) as f64).sqrt()),
        }
    }
}

/// `2 u - 1` for the uniform 24-bit draw u in (0, 1) of one element.
pub(crate) fn symmetric(key: u64, index: u64) -> f64 {
    let bits = mix(key.wrapping_add(GAMMA.wrapping_mul(index + 1))) >> 32;
    let unit = ((bits >> 8) as f64 + 0.5) / 16_777_216.0;
    2.0 * unit - 1.0
}

/// A box of a row-major tensor.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    pub shape: &'a [usize],
    pub offset: &'a [usize],
    pub extent: &'a [usize],
}

impl Cut<'_> {
    pub fn element_count(&self) -> usize {
        self.extent.iter().product()
    }

    /// The tensor positions of elements `range` of the box, in row-major order: runs within rows of
    /// the last dimension.
    pub fn runs(self, range: Range<usize>) -> impl Iterator<Item = Range<u64>> {
        let strides = row_major_strides(self.shape);
        let width = self.extent.last().copied().unwrap_or(1);
        let mut next = range.start;
        std::iter::from_fn(move || {
            if next >= range.end {
                return None;
            }
            let (mut rest, mut start) = (next, 0);
            for ((&extent, &offset), &stride) in self.extent.iter().zip(self.offset).zip(&strides).rev() {
                start += (rest % extent + offset) * stride;
                rest /= extent;
            }
            let length = (width - next % width).min(range.end - next);
            next += length;
            Some(start as u64..(start + length) as u64)
        })
    }
}
