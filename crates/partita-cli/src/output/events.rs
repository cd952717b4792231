//! What a run tells: one struct per kind of event. In `--json` mode an event is one line: its fields and `event`.

use crate::rank::check_rank;
use partita::trainer::StepDone;
use partita_base::Result;
use partita_program::{CollectiveKind, KindCount, PhaseCounts, ProgramSet};
use partita_schedule::verify::Report;
use serde::Serialize;

/// An event that `--json` prints.
pub trait Event: Serialize {
    /// The value of `event` in JSON.
    const NAME: &'static str;
}

macro_rules! event {
    ($ty:ident, $name:literal) => {
        impl Event for $ty {
            const NAME: &'static str = $name;
        }
    };
}

/// An optimizer step.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Step {
    /// Steps done, this one included.
    pub step: u64,
    /// The training loss of its batch.
    pub loss: f64,
    /// The global norm of the gradient, before clipping; `None` where the step does not give it.
    pub grad_norm: Option<f64>,
    /// The factor of the loss in the next step, if the loss is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Steps so far that were skipped because gradients were not finite, if the loss is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// Rows of the batch processed per second, over all ranks.
    pub rows_per_s: f64,
    /// Tokens (rows, without tokens) processed per second, over all ranks.
    pub tokens_per_s: f64,
    /// The largest memory of any rank, as planned.
    pub peak_bytes_planned: u64,
    /// The largest memory of any rank, as used so far; `None` if it is not counted.
    pub peak_bytes_used: Option<u64>,
    /// The learning rate; for people only.
    #[serde(skip)]
    pub learning_rate: f64,
}
event!(Step, "step");

impl Step {
    /// A step whose rows are so many tokens each, one without tokens.
    pub fn new(done: &StepDone, tokens_per_row: f64) -> Step {
        let StepDone { step, report, learning_rate } = *done;
        Step {
            step,
            loss: report.loss,
            grad_norm: report.grad_norm,
            loss_scale: report.scaling.map(|scaling| scaling.scale),
            skipped_steps: report.scaling.map(|scaling| scaling.skipped),
            rows_per_s: report.tokens_per_s / tokens_per_row,
            tokens_per_s: report.tokens_per_s,
            peak_bytes_planned: report.peak_bytes_planned as u64,
            // An engine that does not count has none.
            peak_bytes_used: (report.peak_bytes_used > 0).then_some(report.peak_bytes_used as u64),
            learning_rate,
        }
    }
}

/// The loss on what is held out.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Validation {
    /// Steps done.
    pub step: u64,
    /// The mean loss.
    pub loss: f64,
}
event!(Validation, "validation");

/// What a run came to.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Summary {
    /// Steps done.
    pub steps: u64,
    /// The last training loss.
    pub loss: Option<f64>,
    /// The last validation loss.
    pub validation_loss: Option<f64>,
    /// The model's last validation loss in nats per byte; `None` without text.
    pub model_nats: Option<f64>,
    /// What counting pairs of bytes reaches, in nats per byte.
    pub bigram_nats: Option<f64>,
    /// What counting bytes reaches, in nats per byte.
    pub unigram_nats: Option<f64>,
    /// Rows of the batch per second of training.
    pub rows_per_s: f64,
    /// Tokens (rows, without tokens) per second of training.
    pub tokens_per_s: f64,
    /// The same of one device that has the cores which the ranks share; `None` if it was not measured.
    pub tokens_per_s_one_device: Option<f64>,
    /// Seconds of training.
    pub seconds: f64,
    /// Where the last checkpoint was written.
    pub checkpoint: Option<String>,
    /// Whether the planned step gave what one device gives; `None` without a verification.
    pub verify_ok: Option<bool>,
    /// The largest memory of any rank, as planned.
    pub peak_bytes_planned: u64,
    /// The largest memory of any rank, as used.
    pub peak_bytes_used: Option<u64>,
}
event!(Summary, "summary");

/// A run was asked to stop before its last step, and did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Stopped {
    /// Steps done.
    pub step: u64,
    /// The checkpoint of that step.
    pub checkpoint: Option<String>,
    /// What `--resume` takes to go on.
    pub resume: String,
}
event!(Stopped, "stopped");

/// A tensor and how far off it is.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Worst {
    /// The tensor's name.
    pub tensor: String,
    /// The largest difference over the largest magnitude; null in JSON where there is nothing to compare.
    pub rel_error: f64,
    /// The largest difference over what is permitted for its element; null likewise.
    pub of_permitted: f64,
}

/// The outcome of a verification.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Verify {
    /// Nothing differs but what rounding explains.
    pub ok: bool,
    /// The tensor that is furthest off.
    pub worst: Option<Worst>,
    /// The first value that differs.
    pub first_diverging: Option<String>,
    /// Elements that only rounding separates.
    pub excused: usize,
    /// The file that was compared with, if not one device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// The names of the tensors that were compared with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<Vec<String>>,
}
event!(Verify, "verify");

impl From<&Report> for Verify {
    fn from(report: &Report) -> Verify {
        Verify {
            ok: report.ok,
            worst: report.worst().map(|worst| Worst {
                tensor: worst.tensor.clone(),
                rel_error: worst.rel_error,
                of_permitted: worst.of_permitted,
            }),
            first_diverging: report.first_diverging.clone(),
            excused: report.excused(),
            against: None,
            compared: None,
        }
    }
}

/// How often each collective is in one phase of one rank's step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CollectiveCounts {
    /// Reductions whose result every rank receives.
    pub all_reduce: u64,
    /// Shards that every rank gathers.
    pub all_gather: u64,
    /// Reductions of which each rank keeps a shard.
    pub reduce_scatter: u64,
    /// Shards of one dimension swapped for shards of another.
    pub all_to_all: u64,
    /// Shards passed on along fixed pairs.
    pub collective_permute: u64,
    /// Values sent from one stage to another.
    pub send: u64,
}

impl CollectiveCounts {
    /// Names and counts, in the order of the fields.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("all_reduce", self.all_reduce),
            ("all_gather", self.all_gather),
            ("reduce_scatter", self.reduce_scatter),
            ("all_to_all", self.all_to_all),
            ("collective_permute", self.collective_permute),
            ("send", self.send),
        ]
    }
}

impl CollectiveCounts {
    fn of(counts: &PhaseCounts, figure: impl Fn(KindCount) -> usize) -> CollectiveCounts {
        let figure = |kind| figure(counts.of(kind)) as u64;
        CollectiveCounts {
            all_reduce: figure(CollectiveKind::AllReduce),
            all_gather: figure(CollectiveKind::AllGather),
            reduce_scatter: figure(CollectiveKind::ReduceScatter),
            all_to_all: figure(CollectiveKind::AllToAll),
            collective_permute: figure(CollectiveKind::CollectivePermute),
            send: figure(CollectiveKind::Send),
        }
    }
}

/// One figure for each part of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ByPhase<T> {
    /// Model and loss.
    pub forward: T,
    /// Gradients.
    pub backward: T,
    /// Clipping and the optimizer.
    pub update: T,
}

/// The communication of a rank in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// The rank.
    pub rank: usize,
    /// The number of its collectives; of sends, those in which it sends.
    #[serde(flatten)]
    pub meetings: ByPhase<CollectiveCounts>,
    /// Bytes of the full tensors that it takes part with, and of what it sends to other stages.
    pub bytes: ByPhase<u64>,
    /// Collectives before neighbours were joined into one.
    pub logical: ByPhase<CollectiveCounts>,
}

impl Counts {
    /// Counts what a rank's program exchanges.
    ///
    /// # Errors
    /// E014 if the rank does not exist.
    pub fn of_rank(programs: &ProgramSet, rank: usize) -> Result<Counts> {
        check_rank(rank, programs.rank_count())?;
        let counts = &partita_program::counts(programs, rank);
        fn by_phase<T>(counts: &partita_program::Counts, of: impl Fn(&PhaseCounts) -> T) -> ByPhase<T> {
            ByPhase {
                forward: of(&counts.forward),
                backward: of(&counts.backward),
                update: of(&counts.update),
            }
        }
        Ok(Counts {
            rank,
            meetings: by_phase(counts, |phase| CollectiveCounts::of(phase, |kind| kind.count)),
            bytes: by_phase(counts, |phase| phase.total().bytes as u64),
            logical: by_phase(counts, |phase| CollectiveCounts::of(phase, |kind| kind.logical)),
        })
    }
}
event!(Counts, "counts");

/// What crosses between the stages of a pipeline in one step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Edges {
    /// One for each sender, receiver and part of the step.
    pub edges: Vec<Edge>,
}
event!(Edges, "edges");

/// What one stage sends to another in one part of the step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Edge {
    /// The sending stage.
    pub from: usize,
    /// The receiving stage.
    pub to: usize,
    /// `forward`, `backward` or `update`.
    pub part: &'static str,
    /// Values: one for each value and microbatch.
    pub sends: usize,
    /// Bytes that cross from the ranks of one stage to those of the other.
    pub bytes: usize,
    /// The names of the values, or the ops that compute them.
    pub values: Vec<String>,
}

impl From<&partita_program::EdgeCounts> for Edges {
    fn from(counts: &partita_program::EdgeCounts) -> Edges {
        let edge = |row: &partita_program::EdgeCount| Edge {
            from: row.from,
            to: row.to,
            part: row.part(),
            sends: row.sends,
            bytes: row.bytes,
            values: row.values.clone(),
        };
        Edges { edges: counts.rows.iter().map(edge).collect() }
    }
}

/// The compute of a rank that overlaps with each of its gradient buckets.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Overlaps {
    /// Whose they are.
    pub rank: usize,
    /// In the order of their starts.
    pub buckets: Vec<Bucket>,
}
event!(Overlaps, "overlap");

/// What a rank keeps for the backward pass of a microbatch against the work that is done again for it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KeptRows {
    /// From the most bytes to the least.
    pub rows: Vec<KeptRow>,
}
event!(KeptRows, "kept");

/// One limit.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct KeptRow {
    /// Bytes that are kept.
    pub bytes: u64,
    /// The planned memory of the largest rank in all.
    pub peak_bytes: u64,
    /// Work that is done again, as a share of that of the step.
    pub again: f64,
    /// The least that any choice within these bytes does again.
    pub least: f64,
}

/// A bucket: gradients that one collective carries.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bucket {
    /// What ranks do with them.
    pub kind: &'static str,
    /// The first of them.
    pub first: String,
    /// How many.
    pub tensors: u64,
    /// Bytes of the full tensors.
    pub bytes: u64,
    /// Floating-point operations between start and wait.
    pub flops: f64,
}

/// A note for the user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Note {
    /// One or more lines.
    pub message: String,
}
event!(Note, "note");

/// Bytes a trained model wrote.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Sample {
    /// What it was given.
    pub prompt: String,
    /// What it wrote after that.
    pub text: String,
}
event!(Sample, "sample");

/// Text that is the answer itself: a lowered graph, a schedule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Text {
    /// All of it.
    pub text: String,
}
event!(Text, "text");

/// Why nothing more happens. The text on standard error says the same, with more about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failure {
    /// `E` and three digits.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// Where.
    pub at: Option<String>,
    /// What would have been right.
    pub expected: Option<String>,
    /// What was there instead.
    pub found: Option<String>,
    /// What to do.
    pub help: Option<String>,
}
event!(Failure, "error");
