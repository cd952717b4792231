//! Mixed precision: the keys of `[train]` that choose it.

use crate::keys::Section;
use partita_base::{DType, Diagnostic, Result};
use partita_nn::{LossScaling, StepOptions};

/// What the keys say.
pub(super) struct Mixed {
    /// The narrow type in which the model computes.
    precision: Option<String>,
    /// The scale of the loss in the first step, where it is given.
    scale: Option<f64>,
    interval: u64,
}

impl Mixed {
    /// Reads the keys.
    pub fn read(s: &mut Section) -> Result<Mixed> {
        let usual = LossScaling::default();
        Ok(Mixed {
            precision: s.find(
                "precision",
                "that of dtype",
                "type in which the model computes beside parameters of dtype: bf16, or f16 with a scaled loss",
            )?,
            scale: s.find(
                "loss_scale",
                "65536 with precision f16, else 1",
                "factor of the loss in the first step, which then adapts",
            )?,
            interval: s.get(
                "loss_scale_interval",
                u64::from(usual.interval),
                "steps with finite gradients in a row after which the factor of the loss doubles",
            )?,
        })
    }

    /// The options of a step in this precision, with parameters of type `dtype`.
    pub fn apply(self, options: StepOptions, dtype: DType) -> Result<StepOptions> {
        let refused = |key: &str, message: &str| Diagnostic::new("E004", message).at(format!("train.{key}"));
        let Some(name) = self.precision else {
            return match self.scale {
                None => Ok(options),
                Some(_) => Err(refused("loss_scale", "a scaled loss needs a precision")
                    .expected("`train.precision` too, bf16 or f16")
                    .found("no precision")),
            };
        };
        let mut options = options.in_precision(&name).map_err(|error| error.at("train.precision"))?;
        if options.precision.is_some_and(|narrow| dtype.size_bytes() <= narrow.size_bytes()) {
            return Err(refused("precision", "parameters have no more bits than the precision")
                .expected("`train.dtype` f32 or f64")
                .found(dtype.name()));
        }
        if let Some(initial) = self.scale {
            options.loss_scaling = Some(LossScaling { initial, ..LossScaling::default() });
        }
        if let Some(scaling) = &mut options.loss_scaling {
            scaling.interval = u32::try_from(self.interval).unwrap_or(u32::MAX);
        }
        options.validate()?;
        Ok(options)
    }
}
