//! What is predicted of a step: seconds, and bytes of each slice beside what its devices hold.

use super::step::StepSeconds;
use partita_cost::Fill;

/// Bytes of one rank at the fullest moment of a step, by kind.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Bytes {
    /// Parameters.
    pub parameters: f64,
    /// Gradients.
    pub gradients: f64,
    /// States of the optimizer.
    pub optimizer_state: f64,
    /// What the forward passes in flight keep, and scratch memory.
    pub activations: f64,
    /// Gathered parameters and messages.
    pub communication: f64,
}

impl Bytes {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.parameters + self.gradients + self.optimizer_state + self.activations + self.communication
    }

    /// All of them in whole bytes.
    pub fn whole(&self) -> u64 {
        self.total().ceil() as u64
    }

    /// Names and whole bytes, which sum to [`Bytes::whole`]: each is what the sum up to it, rounded up, adds to the one
    /// before.
    pub fn by_kind(&self) -> [(&'static str, u64); 5] {
        let mut sum = 0.0f64;
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer state", self.optimizer_state),
            ("activations", self.activations),
            ("communication", self.communication),
        ]
        .map(|(name, bytes)| {
            let before = sum.ceil() as u64;
            sum += bytes;
            (name, sum.ceil() as u64 - before)
        })
    }
}

/// A predicted step.
#[derive(Clone, PartialEq, Debug)]
pub struct Forecast {
    /// Its seconds.
    pub seconds: StepSeconds,
    /// Arithmetic of the step on one device, without recomputation. What ranks compute more than once under a plan, or
    /// because a layer is recomputed, does not count.
    pub flops: f64,
    /// Parameters of the whole model; tied ones count once.
    pub parameters: f64,
    /// Bytes of the fullest rank of each slice.
    pub stages: Vec<Bytes>,
    /// Bytes of the smallest memory of a device of each slice.
    pub limits: Vec<u64>,
}

impl Forecast {
    /// The slice with the least room.
    fn tightest(&self) -> Option<(Bytes, u64)> {
        let room = |&(bytes, limit): &(Bytes, u64)| limit as f64 - bytes.total();
        let slices = self.stages.iter().copied().zip(self.limits.iter().copied());
        // Of equals the last.
        slices.reduce(|least, slice| if room(&slice) <= room(&least) { slice } else { least })
    }

    /// The bytes of the slice with the least room.
    pub fn fullest(&self) -> Bytes {
        self.tightest().map_or_else(Bytes::default, |(bytes, _)| bytes)
    }

    /// What its ranks need beside what its devices hold.
    pub fn fill(&self) -> Fill {
        self.tightest().map_or_else(Fill::default, |(bytes, limit)| Fill::new(bytes.whole(), limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_parts_add_up_to_the_whole() {
        let bytes = Bytes {
            parameters: 10.25,
            gradients: 0.25,
            optimizer_state: 20.75,
            activations: 0.0,
            communication: 7.5,
        };
        assert_eq!((bytes.total(), bytes.whole()), (38.75, 39));
        assert_eq!(bytes.by_kind().map(|(_, part)| part), [11, 0, 21, 0, 7]);
    }
}
