//! The section `[optimizer]`: the update rule, and the learning rate over time.

use super::reader::Reader;
use crate::keys::Section;
use partita_base::{Diagnostic, Result};
use partita_nn::{Decay, LrSchedule, Optimizer, StepOptions};

/// Reads the section for a run of so many steps.
pub(super) fn read(reader: &mut Reader, steps: u64) -> Result<(StepOptions, LrSchedule)> {
    let (options, schedule) = reader.section("optimizer", |s| {
        let kind = s.get(
            "kind",
            "adamw".to_string(),
            "update rule: sgd, adam, adamw, lion, adafactor, lamb, muon or adam8bit",
        )?;
        let mut optimizer = Optimizer::from_name(&kind).ok_or_else(|| {
            Diagnostic::new("E004", format!("no optimizer `{kind}`")).expected(Optimizer::NAMES.join(", "))
        })?;
        constants(s, &mut optimizer)?;
        let peak = s.get("learning_rate", 1e-3, "learning rate after the warmup")?;
        let decay = s.get(
            "decay",
            "constant".to_string(),
            "learning rate after the warmup: constant, cosine or linear",
        )?;
        let decay = Decay::from_name(&decay).ok_or_else(|| {
            Diagnostic::new("E004", format!("no learning-rate decay `{decay}`"))
                .expected("constant, cosine or linear")
        })?;
        let schedule = LrSchedule {
            peak,
            floor: s
                .find("floor", "learning_rate / 10", "learning rate at the end of the decay")?
                .unwrap_or(peak * 0.1),
            warmup_steps: s.get("warmup_steps", 0, "steps over which the learning rate rises from 0")?,
            total_steps: s
                .find("decay_steps", "train.steps", "the step at which the decay ends")?
                .unwrap_or(steps),
            decay,
        };
        let mut options = StepOptions::new(optimizer);
        let limit: Option<f64> =
            s.find("clip_grad_norm", "no clipping", "largest norm of the gradients; 0 for no limit")?;
        options.clip_grad_norm = limit.filter(|norm| *norm > 0.0);
        options.decay_1d = s.get("decay_1d", false, "whether weight decay acts on norms and biases too")?;
        options.stochastic_rounding = s.get(
            "stochastic_rounding",
            false,
            "whether new parameters in bf16 are rounded up or down at random, so that small updates add up",
        )?;
        Ok((options, schedule))
    })?;
    options.validate()?;
    schedule.validate()?;
    Ok((options, schedule))
}

/// The constants of an update rule.
fn constants(s: &mut Section, optimizer: &mut Optimizer) -> Result<()> {
    let mut number = |slot: &mut f64, key: &str, about: &'static str| -> Result<()> {
        *slot = s.get(key, *slot, about)?;
        Ok(())
    };
    let (first, second) = ("decay of the mean of gradients", "decay of the mean of squared gradients");
    let decay = "weight decay, of the gradient (sgd, adam) or the direction (lamb)";
    match optimizer {
        Optimizer::Sgd { momentum, weight_decay, .. } => {
            number(momentum, "momentum", "momentum")?;
            number(weight_decay, "weight_decay", decay)?;
        }
        Optimizer::Adam { beta1, beta2, epsilon, weight_decay }
        | Optimizer::AdamW { beta1, beta2, epsilon, weight_decay }
        | Optimizer::Lamb { beta1, beta2, epsilon, weight_decay }
        | Optimizer::Adam8bit { beta1, beta2, epsilon, weight_decay } => {
            number(beta1, "beta1", first)?;
            number(beta2, "beta2", second)?;
            number(epsilon, "epsilon", "added to the root of the mean of squares")?;
            number(weight_decay, "weight_decay", decay)?;
        }
        Optimizer::Lion { beta1, beta2, weight_decay } => {
            number(beta1, "beta1", "share of the mean in the direction of an update")?;
            number(beta2, "beta2", first)?;
            number(weight_decay, "weight_decay", decay)?;
        }
        Optimizer::Adafactor { beta2_decay, epsilon2, clip, weight_decay, .. } => {
            number(
                beta2_decay,
                "beta2_decay",
                "exponent of the step in the share of a new squared gradient",
            )?;
            number(epsilon2, "epsilon2", "least root mean square of a parameter")?;
            number(clip, "clip", "root mean square beyond which an update is scaled down")?;
            number(weight_decay, "weight_decay", decay)?;
        }
        Optimizer::Muon { momentum, weight_decay, beta1, beta2, epsilon, .. } => {
            number(momentum, "momentum", "momentum")?;
            number(weight_decay, "weight_decay", decay)?;
            number(beta1, "beta1", first)?;
            number(beta2, "beta2", second)?;
            number(epsilon, "epsilon", "added to the root of the mean of squares")?;
        }
    }
    match optimizer {
        Optimizer::Adafactor { epsilon1, .. } => {
            let least = "least root mean square of gradients";
            *epsilon1 = s.find("epsilon1", "the unit of the element type", least)?.or(*epsilon1);
        }
        Optimizer::Muon { nesterov, match_rms, .. } => {
            *nesterov = s.get("nesterov", *nesterov, "whether momentum is Nesterov's")?;
            *match_rms = s.get("match_rms", *match_rms, "whether updates are as large as AdamW's")?;
        }
        Optimizer::Sgd { nesterov, .. } => {
            *nesterov = s.get("nesterov", *nesterov, "whether momentum is Nesterov's")?;
        }
        Optimizer::Adam { .. }
        | Optimizer::AdamW { .. }
        | Optimizer::Lion { .. }
        | Optimizer::Lamb { .. }
        | Optimizer::Adam8bit { .. } => {}
    }
    Ok(())
}
