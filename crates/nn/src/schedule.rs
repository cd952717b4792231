//! Learning-rate schedules, computed on the host and fed as the input `learning_rate`.

use partita_base::{Diagnostic, Result};

/// The decay after the warm-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Decay {
    /// Stay at the peak.
    #[default]
    Constant,
    /// Half a cosine wave down to the floor.
    Cosine,
    /// A straight line down to the floor.
    Linear,
}

impl Decay {
    /// The decay spelled `constant`, `cosine` or `linear`.
    pub fn from_name(name: &str) -> Option<Decay> {
        match name {
            "constant" => Some(Decay::Constant),
            "cosine" => Some(Decay::Cosine),
            "linear" => Some(Decay::Linear),
            _ => None,
        }
    }
}

/// A linear warm-up to `peak`, then a decay to `floor` at `total_steps`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LrSchedule {
    /// The largest rate.
    pub peak: f64,
    /// The rate at and after `total_steps`.
    pub floor: f64,
    /// Steps until the peak is reached; 0 starts at the peak.
    pub warmup_steps: u64,
    /// Steps until the floor is reached; not used by [`Decay::Constant`].
    pub total_steps: u64,
    /// The shape between.
    pub decay: Decay,
}

impl LrSchedule {
    /// The same rate at every step.
    pub fn constant(rate: f64) -> LrSchedule {
        LrSchedule { peak: rate, floor: rate, warmup_steps: 0, total_steps: 0, decay: Decay::Constant }
    }

    /// E057 if a rate is negative or not finite.
    pub fn validate(&self) -> Result<()> {
        for (name, rate) in [("learning_rate", self.peak), ("floor", self.floor)] {
            if !(rate.is_finite() && rate >= 0.0) {
                return Err(Diagnostic::new("E057", format!("`{name}` out of range"))
                    .expected("a finite number, at least 0")
                    .found(rate.to_string()));
            }
        }
        Ok(())
    }

    /// The rate of a step; the first step is 1. Warm-up step `s` of `w` gets `peak s / w`.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * step as f64 / self.warmup_steps as f64;
        }
        if self.decay == Decay::Constant {
            return self.peak;
        }
        let length = self.total_steps.saturating_sub(self.warmup_steps);
        let progress =
            if length == 0 { 1.0 } else { ((step - self.warmup_steps) as f64 / length as f64).min(1.0) };
        let remaining = match self.decay {
            Decay::Cosine => (1.0 + (std::f64::consts::PI * progress).cos()) / 2.0,
            Decay::Linear | Decay::Constant => 1.0 - progress,
        };
        self.floor + (self.peak - self.floor) * remaining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_finite_and_at_least_zero() {
        assert!(LrSchedule::constant(0.0).validate().is_ok());
        for rate in [-1e-3, f64::NAN, f64::INFINITY] {
            assert_eq!(LrSchedule::constant(rate).validate().unwrap_err().code, "E057");
            let floor = LrSchedule { floor: rate, ..LrSchedule::constant(1.0) };
            assert!(floor.validate().unwrap_err().message.contains("`floor`"));
        }
    }

    #[test]
    fn the_rate_rises_to_the_peak_and_falls_to_the_floor() {
        let cosine =
            LrSchedule { peak: 1.0, floor: 0.1, warmup_steps: 10, total_steps: 30, decay: Decay::Cosine };
        assert_eq!(cosine.at(1), 0.1);
        assert_eq!(cosine.at(5), 0.5);
        assert_eq!(cosine.at(10), 1.0);
        assert!((cosine.at(20) - 0.55).abs() < 1e-12);
        assert!((cosine.at(15) - (0.1 + 0.45 * (1.0 + 0.5f64.sqrt()))).abs() < 1e-12);
        assert_eq!(cosine.at(30), 0.1);
        assert_eq!(cosine.at(1000), 0.1);
        let linear = LrSchedule { decay: Decay::Linear, ..cosine };
        assert!((linear.at(25) - (0.1 + 0.9 * 0.25)).abs() < 1e-12);
        let constant = LrSchedule { decay: Decay::Constant, ..cosine };
        assert_eq!(constant.at(1000), 1.0);
        assert_eq!(LrSchedule::constant(3e-4).at(1), 3e-4);
    }

    #[test]
    fn a_schedule_that_is_all_warmup_ends_at_the_floor() {
        let s = LrSchedule { peak: 1.0, floor: 0.0, warmup_steps: 4, total_steps: 4, decay: Decay::Linear };
        assert_eq!(s.at(3), 0.75);
        assert_eq!(s.at(4), 0.0);
    }
}
