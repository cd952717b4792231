//! How many devices a model needs: bytes of states, activations and scratch memory by strategy and optimizer, the fewest
//! devices of a kind that hold them, the largest microbatch that fits there, and tokens a day.
//!
//! Training is in mixed precision: parameters, gradients and optimizer states are kept in single precision, and matmuls
//! read a copy in half precision, as under PyTorch's FSDP with a policy of mixed precision. The rule of thumb that it is
//! compared with, 12 GB for a billion parameters, counts 4 bytes each for parameters, gradients and the one state of
//! Lion; so it is right for FSDP with Lion and full recomputation on few devices, and wrong elsewhere.

use super::Blocks;
use super::block::{BlockSpec, Recompute};
use super::small::not_folded;
use super::step::{AttentionKernel, Bytes, Job, ParameterBytes, Software};
use crate::models::ModelSource;
use partita_base::{DType, Result};
use partita_cost::Cluster;
use partita_nn::{Optimizer, StepOptions};
use std::sync::Arc;

/// How the devices share the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strategy {
    /// Each holds all of it.
    DataParallel,
    /// ZeRO of stage 1, 2 or 3; stage 3 is FSDP.
    Zero(u8),
    /// Each holds a part of each layer, within a node.
    TensorParallel,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Strategy; 5] = [
        Strategy::DataParallel,
        Strategy::Zero(1),
        Strategy::Zero(2),
        Strategy::Zero(3),
        Strategy::TensorParallel,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::DataParallel => "ddp",
            Strategy::Zero(1) => "zero1",
            Strategy::Zero(2) => "zero2",
            Strategy::Zero(_) => "fsdp",
            Strategy::TensorParallel => "tp",
        }
    }
}

/// The optimizers of the table, with their states for each parameter.
pub const OPTIMIZERS: [(&str, f64); 3] = [("adamw", 2.0), ("lion", 1.0), ("sgd", 0.0)];

/// What one choice needs.
#[derive(Clone, PartialEq, Debug)]
pub struct Need {
    /// How the devices share the model.
    pub strategy: Strategy,
    /// The optimizer.
    pub optimizer: &'static str,
    /// Whether layers are recomputed.
    pub recompute: bool,
    /// Whether optimizer states are in host memory.
    pub offload: bool,
    /// The fewest devices, a power of two, and what they do; `None` if none of the tried counts is enough.
    pub fewest: Option<Fit>,
    /// Bytes of one device at the largest count that was tried.
    pub least_bytes: f64,
}

/// A number of devices that is enough.
#[derive(Clone, PartialEq, Debug)]
pub struct Fit {
    /// Devices.
    pub devices: usize,
    /// Bytes of each with one row.
    pub bytes: Bytes,
    /// The largest microbatch, in rows for each data parallel rank.
    pub rows: usize,
    /// Tokens a day with it.
    pub tokens_per_day: f64,
}

/// The rule of thumb: bytes for each parameter, over all devices.
pub const RULE_BYTES: f64 = 12.0;

/// What a process takes beside its tensors: context, kernels, buffers of collectives.
const CONTEXT_BYTES: f64 = 0.8e9;

/// The choices for a model on devices of a cluster, up to so many of them.
///
/// # Errors
/// E511 for a model without repeated layers; what building and lowering say.
pub fn needs(model: &Arc<dyn ModelSource>, cluster: &Cluster, most: usize) -> Result<(f64, Vec<Need>)> {
    let mut blocks = Blocks::default();
    let (mut found, mut parameters) = (Vec::new(), 0.0);
    for strategy in Strategy::ALL {
        for (recompute, offload) in [(false, false), (true, false), (false, true), (true, true)] {
            for (optimizer, states) in OPTIMIZERS.into_iter().filter(|(_, states)| !offload || *states > 0.0)
            {
                let mut need = Need {
                    strategy,
                    optimizer,
                    recompute,
                    offload,
                    fewest: None,
                    least_bytes: f64::INFINITY,
                };
                let counts = (0..).map(|power| 1usize << power).take_while(|&count| count <= most);
                for devices in counts {
                    let Some(job) = job(model, strategy, [recompute, offload], states, devices)? else {
                        continue;
                    };
                    let forecast = blocks.forecast(&job, cluster, &Software::default())?;
                    parameters = forecast.parameters;
                    let bytes = forecast.fullest();
                    need.least_bytes = need.least_bytes.min(bytes.total());
                    let over = if matches!(strategy, Strategy::Zero(_)) { devices as f64 } else { 1.0 };
                    let on_host = parameters * job.bytes.host / over / job.block.tp as f64;
                    if bytes.total() + CONTEXT_BYTES > cluster.memory_bytes() as f64
                        || on_host > cluster.host_bytes() as f64
                    {
                        continue;
                    }
                    // What a row adds grows with the rows.
                    let rest = cluster.memory_bytes() as f64 - CONTEXT_BYTES - bytes.total();
                    let rows = 1 + (rest / bytes.activations.max(1.0)) as usize;
                    let rows = rows.min(64);
                    let job = Job { block: BlockSpec { rows, ..job.block.clone() }, ..job };
                    let step = blocks.forecast(&job, cluster, &Software::default())?;
                    let tokens = model.stream().map_or(0, |[_, tokens, _]| tokens) * rows * job.dp;
                    need.fewest = Some(Fit {
                        devices,
                        bytes,
                        rows,
                        tokens_per_day: tokens as f64 / step.seconds.step_s * 86_400.0,
                    });
                    break;
                }
                found.push(need);
            }
        }
    }
    Ok((parameters, found))
}

/// A step with one microbatch; `None` if the strategy has no such number of devices.
fn job(
    model: &Arc<dyn ModelSource>,
    strategy: Strategy,
    [recompute, offload]: [bool; 2],
    states: f64,
    devices: usize,
) -> Result<Option<Job>> {
    let [layers, _, dim] = model.stream().ok_or_else(|| not_folded().found(format!("`{}`", model.name())))?;
    let (tp, dp, zero) = match strategy {
        Strategy::DataParallel => (1, devices, 0),
        Strategy::Zero(stage) => (1, devices, stage),
        Strategy::TensorParallel => (devices, 1, 0),
    };
    if tp > 8 {
        return Ok(None);
    }
    Ok(Some(Job {
        block: BlockSpec {
            model: model.clone(),
            tp,
            ep: 1,
            rows: 1,
            dtype: DType::BF16,
            sequence_parallel: tp > 1,
            vocab_parallel: tp > 1,
            recompute: if recompute { Recompute::Layers } else { Recompute::Nothing },
            fused_attention: true,
            step: StepOptions::new(Optimizer::adamw()),
            plan: None,
        },
        layers,
        pp: 1,
        chunks: 1,
        leaves_last: false,
        order: None,
        clocked: false,
        dp,
        cp: 1,
        kv_features: dim,
        microbatches: 1,
        zero,
        shard_group: if zero > 0 { dp } else { 1 },
        gathers_stages: false,
        overlaps: true,
        broadcasts: false,
        matmul_rate: 1.0,
        casts: 0.0,
        launch_s: 0.0,
        attention: AttentionKernel::Fused(0.5),
        bytes: ParameterBytes {
            parameter: 4.0,
            gradient: 4.0,
            state: if offload { 0.0 } else { 4.0 * states },
            host: if offload { 4.0 * states } else { 0.0 },
            update: 0.0,
            reduced: 2.0,
            gathered: 2.0,
        },
    }))
}
