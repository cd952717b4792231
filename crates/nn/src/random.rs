//! Counter-based random numbers: each draw is a function of (seed, stream, index), independent of
//! earlier draws.

use crate::init::{GAMMA, mix, stream_of};

/// One stream of random numbers.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    key: u64,
}

impl Draws {
    /// The stream of a name.
    pub fn new(seed: u64, name: &str) -> Draws {
        Draws { key: key(seed, stream_of(name)) }
    }

    /// A stream within this one, for a step or a row.
    pub fn within(self, index: u64) -> Draws {
        Draws { key: key(self.key, index) }
    }

    /// 64 random bits.
    pub fn bits(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(GAMMA.wrapping_mul(index.wrapping_add(1))))
    }

    /// Uniform in [0, 1).
    pub fn unit(self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..count`; 0 for a count of 0. The bias is `count / 2^64`.
    pub fn below(self, index: u64, count: usize) -> usize {
        ((u128::from(self.bits(index)) * count as u128) >> 64) as usize
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(self, index: u64) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit(2 * index)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit(2 * index + 1)).cos()
    }
}

/// The key of a stream, as [`partita_ir::composites::RANDOM_BITS`] derives it.
pub(crate) fn key(seed: u64, stream: u64) -> u64 {
    mix(seed.wrapping_add(GAMMA.wrapping_mul(stream.wrapping_add(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_draws_have_the_moments_of_a_normal() {
        let draws = Draws::new(3, "test");
        let values: Vec<f64> = (0..20_000).map(|i| draws.normal(i)).collect();
        let moment = |k: i32| values.iter().map(|v| v.powi(k)).sum::<f64>() / values.len() as f64;
        assert!(moment(1).abs() < 0.03, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.04, "{}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.3, "{}", moment(4));
    }

    #[test]
    fn streams_and_indices_differ_and_counts_are_kept_to() {
        let draws = Draws::new(3, "test");
        assert_ne!(draws.bits(0), draws.bits(1));
        assert_ne!(draws.bits(0), Draws::new(3, "other").bits(0));
        assert_ne!(draws.bits(0), Draws::new(4, "test").bits(0));
        assert_ne!(draws.within(0).bits(0), draws.within(1).bits(0));
        let mut seen = [0; 7];
        (0..7000).for_each(|i| seen[draws.below(i, 7)] += 1);
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
    }
}
