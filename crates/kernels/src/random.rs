//! Counter-based random bits: the bits of an element depend only on the seed, the stream and the element's
//! index in the *global* tensor, so any sharding and any batch split draw the same numbers.
//!
//! The generator is splitmix64 with random access (Steele, Lea and Flood, "Fast splittable pseudorandom
//! number generators", 2014). All arithmetic is modulo 2^64, with G = 0x9E3779B97F4A7C15:
//!
//! ```text
//! mix(x):  x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31
//! key      = mix(seed + G * (stream + 1))
//! bits(i)  = mix(key  + G * (i + 1))          i: row-major index in the global shape
//! ```
//!
//! A u32 is the upper half of `bits(i)`.

use crate::options::KernelOptions;
use bytemuck::cast_slice_mut;
use partita_base::DType;

use crate::native::levels::multiversion;
use crate::tiles::{TILE, TileBytes, Writer};
use crate::view::{MAX_RANK, ViewMut};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finalizer of splitmix64.
#[inline(always)]
pub fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The key of a stream: `mix(seed + G * (stream + 1))`.
pub fn random_key(seed: u64, stream: u64) -> u64 {
    mix(seed.wrapping_add(GOLDEN.wrapping_mul(stream.wrapping_add(1))))
}

/// The 64 bits of one element: `mix(key + G * (index + 1))`.
#[inline(always)]
pub fn random_bits_at(key: u64, index: u64) -> u64 {
    mix(key.wrapping_add(GOLDEN.wrapping_mul(index.wrapping_add(1))))
}

multiversion! {
    fn bits_64[](key: u64, first: u64, out: &mut [u64]) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = random_bits_at(key, first.wrapping_add(i as u64));
        }
    }
}

multiversion! {
    fn bits_32[](key: u64, first: u64, out: &mut [u32]) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = (random_bits_at(key, first.wrapping_add(i as u64)) >> 32) as u32;
        }
    }
}

multiversion! {
    /// `2 u - 1` for consecutive uniform draws u in (0, 1), of 24 bits: those of the elements from `first` on
    /// of the tensor whose stream has this key.
    pub fn symmetric_draws[](key: u64, first: u64, out: &mut [f64]) {
        for (i, out) in out.iter_mut().enumerate() {
            // The odd 25-bit number in the middle of the draw's interval.
            let odd = (random_bits_at(key, first.wrapping_add(i as u64)) >> 39 | 1) as i32;
            *out = f64::from(odd) / 16_777_216.0 - 1.0;
        }
    }
}

/// Fills `out`, the part at `offsets` of a tensor of shape `global_shape`, with random u32 or u64, by the
/// formula of this module ([`random_key`], [`random_bits_at`]).
///
/// # Panics
/// Where ranks differ or `out` is neither u32 nor u64.
pub fn random_bits(
    options: KernelOptions,
    seed: u64,
    stream: u64,
    offsets: &[u64],
    global_shape: &[u64],
    out: &mut ViewMut<'_>,
) {
    let rank = out.rank();
    assert!(
        offsets.len() == rank && global_shape.len() == rank,
        "offsets and global shape have the rank of `out`"
    );
    let mut shape = [1; MAX_RANK];
    shape[..rank].copy_from_slice(out.shape());
    let shape = &shape[..rank];
    let wide = match out.dtype() {
        DType::U64 => true,
        DType::U32 => false,
        other => panic!("random bits are u32 or u64, not {other}"),
    };
    let key = random_key(seed, stream);
    let row_size = shape.last().copied().unwrap_or(1);
    let mut writer = Writer::new(out);
    let mut scratch: TileBytes = [0; TILE];
    let mut at = 0;
    while at < writer.len() {
        // Up to the end of the row (or tile), global indices are consecutive.
        let (mut rest, mut index, mut step) = (at, 0u64, 1u64);
        for d in (0..rank).rev() {
            let here = (rest % shape[d]) as u64;
            rest /= shape[d];
            index = index.wrapping_add(offsets[d].wrapping_add(here).wrapping_mul(step));
            step = step.wrapping_mul(global_shape[d]);
        }
        let count = (row_size - at % row_size).min(TILE);
        let tile = if wide {
            let tile = &mut scratch[..count];
            bits_64(options, key, index, tile);
            bytemuck::cast_slice(tile)
        } else {
            let tile: &mut [u32] = &mut cast_slice_mut(&mut scratch)[..count];
            bits_32(options, key, index, tile);
            bytemuck::cast_slice(tile)
        };
        writer.store(at, tile);
        at += count;
    }
}
