//! How many devices a model needs: bytes of states, activations and scratch memory by strategy and optimizer, the fewest
//! devices of a kind that hold them, the largest microbatch that fits there, and rows a day.
//!
//! Training is in mixed precision: parameters, gradients and optimizer states are kept in single precision, and matmuls
//! read a copy in half precision, as under PyTorch's FSDP with a policy of mixed precision. The rule of thumb that it is
//! compared with, 12 GB for a billion parameters, counts 4 bytes each for parameters, gradients and the one state of
//! Lion; so it is right for FSDP with Lion and full recomputation on few devices, and wrong elsewhere.
//!
//! A model with repeated layers is folded to one of them (`folded`); of any other the whole step is lowered and run over a
//! clock, as `partita simulate` does (`whole`).

mod folded;
mod whole;

use super::step::Bytes;
use crate::config::notes_on_halves;
use crate::cores::on_all_cores;
use crate::session::Session;
use folded::Folded;
use partita_base::{DType, Result};
use partita_cost::Cluster;
use std::sync::atomic::{AtomicUsize, Ordering};
use whole::Whole;

/// How the devices share the model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Strategy {
    /// Each holds all of it.
    DataParallel,
    /// ZeRO of stage 1, 2 or 3; stage 3 is FSDP.
    Zero(u8),
    /// Each holds a part of each layer, within a node.
    TensorParallel,
}

/// The most ranks of `tp`: those of a node.
const MOST_TP: usize = 8;

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

    /// The most devices among which it shares something, of so many.
    fn most(self, devices: usize) -> usize {
        match self {
            Strategy::DataParallel => 1,
            Strategy::Zero(_) => devices,
            Strategy::TensorParallel => devices.min(MOST_TP),
        }
    }

    /// Of these bytes on one device, those that it shares.
    fn shared(self, bytes: &Bytes) -> f64 {
        let Bytes { parameters, gradients, optimizer_state, .. } = *bytes;
        match self {
            Strategy::DataParallel => 0.0,
            Strategy::Zero(1) => optimizer_state,
            Strategy::Zero(2) => optimizer_state + gradients,
            Strategy::Zero(_) => optimizer_state + gradients + parameters,
            Strategy::TensorParallel => bytes.total(),
        }
    }

    /// Ranks that share the rows of a batch, of so many devices.
    fn data_parallel(self, devices: usize) -> usize {
        if self == Strategy::TensorParallel { 1 } else { devices }
    }
}

/// The optimizers of the table, with their states for each parameter.
pub const OPTIMIZERS: [(&str, f64); 3] = [("adamw", 2.0), ("lion", 1.0), ("sgd", 0.0)];

/// One line of the table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// How the devices share the model.
    pub strategy: Strategy,
    /// The optimizer, one of [`OPTIMIZERS`].
    pub optimizer: &'static str,
    /// Its states for each parameter.
    states: f64,
    /// Whether layers are recomputed.
    pub recompute: bool,
    /// Whether optimizer states are in host memory.
    pub offload: bool,
}

/// What one choice needs.
#[derive(Clone, PartialEq, Debug)]
pub struct Need {
    /// The choice.
    pub choice: Choice,
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
    /// Bytes of each with one row, or as few as the model takes; of a model whose batch is fixed, with its share of it.
    pub bytes: Bytes,
    /// The largest microbatch, in rows for each data parallel rank.
    pub rows: usize,
    /// Rows a day with it, over all devices.
    pub rows_per_day: f64,
}

/// What all choices need.
#[derive(Clone, PartialEq, Debug)]
pub struct Needs {
    /// Parameters of the model; tied ones count once.
    pub parameters: f64,
    /// The batch of the model, where it has no other.
    pub batch: Option<usize>,
    /// The most rows of a device that were tried.
    pub most_rows: usize,
    /// Each choice.
    pub choices: Vec<Need>,
}

/// The rule of thumb: bytes for each parameter, over all devices.
pub const RULE_BYTES: f64 = 12.0;

/// What a process takes beside its tensors: context, kernels, buffers of collectives.
pub const CONTEXT_BYTES: f64 = 0.8e9;

/// A step under a choice.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Cost {
    /// Bytes of the fullest rank.
    bytes: Bytes,
    /// Bytes of a rank in host memory.
    host_bytes: f64,
    /// Seconds.
    step_s: f64,
}

impl Cost {
    fn fits(&self, cluster: &Cluster) -> bool {
        self.bytes.total() + CONTEXT_BYTES <= cluster.memory_bytes() as f64
            && self.host_bytes <= cluster.host_bytes() as f64
    }
}

/// What prices choices.
trait Pricing: Sync {
    /// Parameters of the model.
    fn parameters(&self) -> Result<f64>;

    /// The batch of the model, if it has no other.
    fn batch(&self) -> Option<usize> {
        None
    }

    /// The fewest and the most rows of a batch, over all devices.
    fn bounds(&self) -> [usize; 2] {
        [1, usize::MAX]
    }

    /// Whether there is something to recompute.
    fn recomputes(&self) -> bool {
        true
    }

    /// The most rows of a device that are tried.
    fn most_rows(&self) -> usize;

    /// The step of a choice on so many devices with so many rows on each data parallel rank.
    fn cost(&self, choice: &Choice, devices: usize, rows: usize) -> Result<Cost>;
}

/// What the choices for the model of a session need on devices of its cluster, up to so many of them. `watch` receives how
/// many choices of how many are done, from any thread.
///
/// # Errors
/// E511 for a step that is already differentiated or has no loss; what building and lowering say.
pub fn needs(session: &Session, most: usize, watch: &(dyn Fn(usize, usize) + Sync)) -> Result<Needs> {
    let pricing: Box<dyn Pricing> = match session.config().model.stream() {
        Some(_) => Box::new(Folded::of(session)),
        None => Box::new(Whole::of(session)?),
    };
    let (cluster, pricing) = (&session.config().cluster, pricing.as_ref());
    let choices = choices(pricing.recomputes());
    let done = AtomicUsize::new(0);
    let tell = |_: &Result<Need>| watch(done.fetch_add(1, Ordering::Relaxed) + 1, choices.len());
    let found = on_all_cores(choices.len(), tell, |number| need(pricing, choices[number], cluster, most));
    let choices = found.into_iter().collect::<Result<Vec<Need>>>()?;
    Ok(Needs {
        parameters: pricing.parameters()?,
        batch: pricing.batch(),
        most_rows: pricing.most_rows(),
        choices,
    })
}

/// What a user may not expect of the element type of matmuls: half precision that is not bf16, or a slow type that the model
/// has.
pub fn notes(session: &Session) -> Vec<String> {
    let cluster = &session.config().cluster;
    let half = cluster.half();
    match session.config().model.terms().dtype {
        Some(dtype) if dtype != DType::F32 => notes_on_halves(cluster, dtype),
        _ if half == DType::BF16 => Vec::new(),
        _ => {
            let why = notes_on_halves(cluster, DType::BF16);
            why.into_iter().map(|why| format!("half precision is {half} here: {why}")).collect()
        }
    }
}

/// The lines of the table.
fn choices(recomputes: bool) -> Vec<Choice> {
    let mut found = Vec::new();
    for strategy in Strategy::ALL {
        for (recompute, offload) in [(false, false), (true, false), (false, true), (true, true)] {
            let with_states = OPTIMIZERS.into_iter().filter(|(_, states)| !offload || *states > 0.0);
            if recompute && !recomputes {
                continue;
            }
            found.extend(with_states.map(|(optimizer, states)| Choice {
                strategy,
                optimizer,
                states,
                recompute,
                offload,
            }));
        }
    }
    found
}

/// What a choice needs. More devices need no more bytes on each, so the fewest are near the count at which what they share
/// would fit, as one device has it.
fn need(pricing: &dyn Pricing, choice: Choice, cluster: &Cluster, most: usize) -> Result<Need> {
    let (batch, [fewest, most_of_batch]) = (pricing.batch(), pricing.bounds());
    let rows_of = |devices: usize| {
        let sharing = choice.strategy.data_parallel(devices);
        batch.map_or(fewest.div_ceil(sharing), |batch| batch / sharing)
    };
    let has_share = |&devices: &usize| {
        let sharing = choice.strategy.data_parallel(devices);
        let all = rows_of(devices).saturating_mul(sharing);
        batch.map_or(all <= most_of_batch, |batch| batch.is_multiple_of(sharing))
    };
    let powers = (0..).map(|power| 1usize << power);
    // Devices always share a fixed batch.
    let most = match choice.strategy {
        Strategy::DataParallel if batch.is_some() => most,
        strategy => strategy.most(most),
    };
    let counts: Vec<usize> = powers.take_while(|&count| count <= most).filter(has_share).collect();
    let cost = |at: usize| pricing.cost(&choice, counts[at], rows_of(counts[at]));
    let mut at = 0;
    let mut known = cost(at)?;
    if !known.fits(cluster) && counts.len() > 1 {
        let [all, shared] = [known.bytes.total(), choice.strategy.shared(&known.bytes)];
        let is_enough = |&devices: &usize| {
            let away = known.host_bytes / devices as f64;
            let bytes = all - shared + shared / devices as f64 + CONTEXT_BYTES;
            bytes <= cluster.memory_bytes() as f64 && away <= cluster.host_bytes() as f64
        };
        at = counts.iter().position(is_enough).unwrap_or(counts.len() - 1).max(1);
        known = cost(at)?;
        while !known.fits(cluster) && at + 1 < counts.len() {
            at += 1;
            known = cost(at)?;
        }
        // One device is not enough.
        while known.fits(cluster) && at > 1 {
            let fewer = cost(at - 1)?;
            if !fewer.fits(cluster) {
                break;
            }
            (at, known) = (at - 1, fewer);
        }
    }
    let least_bytes = known.bytes.total();
    if !known.fits(cluster) {
        return Ok(Need { choice, fewest: None, least_bytes });
    }
    let devices = counts[at];
    let (rows, step_s) = match batch {
        Some(_) => (rows_of(devices), known.step_s),
        None => most_rows(pricing, &choice, devices, (rows_of(devices), &known), cluster)?,
    };
    let rows_per_day = (rows * choice.strategy.data_parallel(devices)) as f64 / step_s * 86_400.0;
    let fewest = Fit { devices, bytes: known.bytes, rows, rows_per_day };
    Ok(Need { choice, fewest: Some(fewest), least_bytes })
}

/// The largest microbatch of a device and the seconds of its step, from the step of the fewest rows, most often one: bytes
/// are a line in the rows. What does not fit after all gives a better line.
fn most_rows(
    pricing: &dyn Pricing,
    choice: &Choice,
    devices: usize,
    (few, cost_of_few): (usize, &Cost),
    cluster: &Cluster,
) -> Result<(usize, f64)> {
    let rest = cluster.memory_bytes() as f64 - CONTEXT_BYTES - cost_of_few.bytes.total();
    let most = pricing.most_rows().min(pricing.bounds()[1] / choice.strategy.data_parallel(devices));
    if most <= few {
        return Ok((few, cost_of_few.step_s));
    }
    let of_line = |rows: usize, cost: &Cost| -> usize {
        let of_row = (cost.bytes.total() - cost_of_few.bytes.total()) / (rows - few) as f64;
        few + (rest / of_row.max(1.0)).min(most as f64) as usize
    };
    let next = pricing.cost(choice, devices, few + 1)?;
    let mut rows = of_line(few + 1, &next).min(most);
    while rows > few {
        let tried = if rows == few + 1 { next } else { pricing.cost(choice, devices, rows)? };
        if tried.fits(cluster) {
            return Ok((rows, tried.step_s));
        }
        rows = of_line(rows, &tried).min(rows - 1);
    }
    Ok((few, cost_of_few.step_s))
}
