//! Decoders with experts: `model.kind = "moe-gpt"` in the shape of GShard (Lepikhin et al. 2020), `model.kind = "mixtral"`
//! after Mixtral (Jiang et al. 2024).

use super::{ModelKind, ModelSource, gpt, llama};
use crate::keys::Section;
use partita_base::Result;
use partita_nn::{ExpertsConfig, GptConfig, LlamaConfig};
use std::sync::Arc;

/// The kind `moe-gpt`: a GPT whose every second layer has experts with a capacity.
pub(super) struct MoeGpt;

impl ModelKind for MoeGpt {
    fn name(&self) -> &str {
        "moe-gpt"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let config = gpt::read(section, GptConfig::with_experts())?;
        let experts = config.experts.map(|experts| read(section, experts)).transpose()?;
        Ok(Arc::new(GptConfig { experts, ..config }))
    }
}

/// The kind `mixtral`: a Llama whose every layer has experts that drop no token.
pub(super) struct Mixtral;

impl ModelKind for Mixtral {
    fn name(&self) -> &str {
        "mixtral"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let config = llama::read(section, LlamaConfig::mixtral())?;
        let experts = config.experts.map(|experts| read(section, experts)).transpose()?;
        Ok(Arc::new(LlamaConfig { experts, ..config }))
    }
}

/// Reads the keys of the experts.
fn read(section: &mut Section, d: ExpertsConfig) -> Result<ExpertsConfig> {
    let capacity = section.get(
        "capacity",
        d.capacity.unwrap_or(0.0),
        "slots of an expert over its even share of a row's choices; 0 drops no token",
    )?;
    Ok(ExpertsConfig {
        experts: section.get("experts", d.experts, "experts of a layer")?,
        top_k: section.get("top_k", d.top_k, "experts for each token")?,
        capacity: (capacity != 0.0).then_some(capacity),
        every: section.get("every", d.every, "every how many layers have experts")?,
        balance: section.get("balance", d.balance, "factor of the balance loss")?,
    })
}
