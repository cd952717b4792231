//! Mixed precision and collectives under matmuls: the keys of `[train]` that choose them.

use super::Config;
use crate::keys::Section;
use partita_base::{DType, Diagnostic, Result};
use partita_cost::Cluster;
use partita_nn::{LossScaling, StepOptions};
use partita_program::CollectiveMatmul;

/// Reads which collectives around matmuls become permutes under them. E004 for another choice.
pub(super) fn collective_matmul(s: &mut Section) -> Result<String> {
    let name: String = s.get(
        "collective_matmul",
        CollectiveMatmul::NAMES[0].to_string(),
        "gathers before matmuls and reduce-scatters behind them as permutes under them: off, on, or auto, where faster",
    )?;
    let checked = CollectiveMatmul::named(&name, &Cluster::default());
    checked.map(|_| name).map_err(|error| error.at("train.collective_matmul"))
}

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
                "what the model computes in: bf16, f16 (scales the loss), or matmuls in mxfp8, f8-block, f8-delayed",
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
        // Matmuls in 8 bits are computed with numbers of f32 or f64.
        let least = options.precision.unwrap_or(DType::BF16).size_bytes();
        if dtype.size_bytes() <= least {
            return Err(refused("precision", "parameters have no more bits than the precision")
                .expected("`train.dtype` f32 or f64")
                .found(dtype.name()));
        }
        if let (Some(_), Some(f8)) = (self.scale, options.f8) {
            return Err(refused("loss_scale", "matmuls in 8 bits have scales of their own")
                .expected("`train.precision` bf16 or f16")
                .found(f8.name()));
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

impl Config {
    /// The type in which the model computes, and that of its parameters where it is another: `bf16, parameters in f32`.
    pub fn types(&self) -> String {
        let computes = match (self.step.f8, self.step.precision) {
            (Some(f8), _) => f8.name().to_string(),
            (None, Some(precision)) => precision.to_string(),
            (None, None) => return self.train.dtype.to_string(),
        };
        format!("{computes}, parameters in {}", self.train.dtype)
    }

    /// What a predicted price leaves out, and where it is slow: matmuls in 8 bits, the launches of kernels, and devices
    /// among the first ranks that have no matrix units for the type of matmuls, but for another one of as many bits.
    pub fn notes_on_price(&self, ranks: usize) -> Vec<String> {
        let of_f8 = self.step.f8.map(|f8| {
            format!(
                "matmuls in {} are priced as they run: operands are rounded to 8 bits and multiplied in {}, not by matrix \
                 units of 8 bits",
                f8.name(),
                self.train.dtype
            )
        });
        let slow = notes_on_halves(&self.cluster.of_first(ranks), self.matmul_dtype());
        let of_launches = self.cluster.with_launches().map(|other| {
            format!(
                "cluster `{}` has round figures without the time that a kernel takes to launch, so small steps look too \
                 fast: `--cluster {other}` has it",
                self.cluster.name
            )
        });
        of_f8.into_iter().chain(of_launches).chain(slow).collect()
    }
}

/// The devices of a cluster on which matmuls in this type of half precision are slower than in the other one.
pub(crate) fn notes_on_halves(cluster: &Cluster, dtype: DType) -> Vec<String> {
    let other = match dtype {
        DType::BF16 => DType::F16,
        DType::F16 => DType::BF16,
        _ => return Vec::new(),
    };
    let mut notes: Vec<String> = Vec::new();
    for device in cluster.devices().filter(|device| device.peak(other) > device.peak(dtype)) {
        let single = if device.peak(dtype) == device.peak(DType::F32) { ", that of f32" } else { "" };
        let note = format!(
            "on {}, matmuls in {dtype} run at {:.1} TFLOP/s{single}: {other} is {:.1} times faster",
            device.kind,
            device.peak(dtype) / 1e12,
            device.peak(other) / device.peak(dtype)
        );
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}
