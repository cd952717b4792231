//! Initial values of parameters, element by element from the global index, so that every rank of any mesh makes
//! exactly its shard.

use partita_base::DType;
use partita_ir::ops::{Unary, UnaryKind};
use partita_ir::{Literal, Op, Operation, Storage};

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
    /// Uniform in `(-1/sqrt(fan_in), 1/sqrt(fan_in))`: what PyTorch's `Linear` does (Kaiming with a = sqrt(5)).
    KaimingUniform {
        /// Inputs that each output sums over.
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

/// The number of the random stream that belongs to a name: FNV-1a, the same on every machine and in every version.
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
        let count = extent.iter().product();
        match *self {
            Init::Zeros => vec![0.0; count],
            Init::Ones => vec![1.0; count],
            Init::Constant(value) => vec![value; count],
            Init::Normal { std } => {
                let symmetric = symmetric(seed, stream, global_shape, offset, extent);
                let scale = |x: f64| x * std::f64::consts::SQRT_2 * std;
                inverse_error_function(symmetric).into_iter().map(scale).collect()
            }
            Init::Uniform { bound } => {
                symmetric(seed, stream, global_shape, offset, extent).into_iter().map(|x| x * bound).collect()
            }
            Init::KaimingUniform { fan_in } => {
                let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
                Init::Uniform { bound }.values(seed, stream, global_shape, offset, extent)
            }
        }
    }
}

/// `2 u - 1` of uniform draws u in (0, 1) of 24 bits each, for each element of a box.
fn symmetric(seed: u64, stream: u64, global_shape: &[usize], offset: &[usize], extent: &[usize]) -> Vec<f64> {
    let key = crate::random::key(seed, stream);
    let draw = |index: u64| {
        let bits = mix(key.wrapping_add(GAMMA.wrapping_mul(index + 1))) >> 32;
        let unit = ((bits >> 8) as f64 + 0.5) / 16_777_216.0;
        2.0 * unit - 1.0
    };
    let strides = partita_ir::types::row_major_strides(global_shape);
    let mut values = Vec::with_capacity(extent.iter().product());
    // Rows of the last dimension are contiguous in the global tensor.
    let (rows, row) = match extent.split_last() {
        Some((&row, rows)) => (rows, row),
        None => (extent, 1),
    };
    for index in partita_ir::literal::indices(rows) {
        let along = |dim: usize| (index.get(dim).copied().unwrap_or(0) + offset[dim]) * strides[dim];
        let start: usize = (0..extent.len()).map(along).sum();
        values.extend((start..start + row).map(|i| draw(i as u64)));
    }
    values
}

/// Through the op itself, so that host and graph agree to the last bit.
fn inverse_error_function(values: Vec<f64>) -> Vec<f64> {
    let literal = Literal::new([values.len()], values);
    debug_assert_eq!(literal.ty.dtype, DType::F64);
    let ty = literal.ty.clone();
    let op = Op::from(Unary { kind: UnaryKind::ErfInv });
    let mut results = op.evaluate(&[&literal], &[ty]).expect("erf_inv is defined on f64");
    match results.pop().map(|l| l.data) {
        Some(Storage::F64(values)) => values,
        other => unreachable!("erf_inv of f64 gives f64, not {other:?}"),
    }
}
