//! The experts of a decoder: which layers have a mixture in place of the feed-forward block, and its sizes.

use super::gpt::{STD, residual_init};
use crate::init::Init;
use crate::modules::MixtureOfExperts;
use partita_base::{Diagnostic, Result};

/// The mixtures of a decoder. A layer that has one is made of `layers.N.moe` in place of `layers.N.mlp`.
#[derive(Clone, PartialEq, Debug)]
pub struct ExpertsConfig {
    /// The number of experts.
    pub experts: usize,
    /// Experts for each token.
    pub top_k: usize,
    /// Slots of an expert over its even share of a row's choices; `None` drops no token.
    pub capacity: Option<f64>,
    /// Every how many layers have a mixture, the last of each group: 2 is every second one, 1 is all.
    pub every: usize,
    /// The factor of the balance loss.
    pub balance: f64,
}

impl Default for ExpertsConfig {
    fn default() -> Self {
        ExpertsConfig { experts: 4, top_k: 2, capacity: Some(1.25), every: 2, balance: 0.01 }
    }
}

impl ExpertsConfig {
    /// Whether a layer has a mixture.
    pub fn has(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.every.max(1))
    }

    /// The mixture of a decoder of so many layers, with features and hidden features of an expert.
    pub(super) fn mixture(&self, dim: usize, hidden: usize, gated: bool, layers: usize) -> MixtureOfExperts {
        MixtureOfExperts {
            top_k: self.top_k,
            capacity: self.capacity,
            gated,
            balance: self.balance,
            normalise: self.top_k > 1,
            init: Init::Normal { std: STD },
            out_init: residual_init(layers),
            ..MixtureOfExperts::new(dim, hidden, self.experts)
        }
    }

    /// E050 unless every group of layers has one.
    pub(super) fn validate(&self, layers: usize) -> Result<()> {
        if (1..=layers).contains(&self.every) {
            return Ok(());
        }
        Err(Diagnostic::new("E050", "no layer has experts")
            .at("every")
            .expected(format!("1 to {layers}"))
            .found(self.every.to_string()))
    }
}
