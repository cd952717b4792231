//! Published training runs as jobs: the columns of a table of runs become a model, a mesh, styles and options.

use super::attention::AttentionKernel;
use super::block::{BlockSpec, Recompute};
use super::csv::{Csv, Row};
use super::step::{Job, ParameterBytes};
use crate::models::ModelSource;
use partita_base::{Diagnostic, Result};
use partita_cost::{Cluster, gpu};
use partita_nn::optim::Optimizer;
use partita_nn::{GptConfig, LlamaConfig, StepOptions};
use partita_pipeline::Order;
use std::sync::Arc;

/// The columns that a table must have.
pub const NEEDED: &[&str] = &[
    "row_id",
    "source_id",
    "hw_gpu",
    "gpus",
    "gpus_per_node",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "mlp",
    "vocab",
    "seq",
    "gbs",
    "mbs",
    "tp",
    "pp",
    "dp",
    "vpp",
    "seq_parallel",
    "zero_stage",
    "recompute",
    "dtype",
    "step_time_s",
];

/// A measured run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Its name.
    pub row: String,
    /// The publication.
    pub source: String,
    /// The model and hardware that it compares with others in its source.
    pub group: String,
    /// Seconds of a step, if published.
    pub step_s: Option<f64>,
    /// Tokens of a step.
    pub tokens: f64,
    /// Ranks.
    pub ranks: usize,
    /// Bytes of memory in use, if published, and what they count.
    pub memory: Option<(f64, String)>,
    /// Whether it ran out of memory.
    pub ran_out: bool,
    /// Whether it is published what the backward pass computes again.
    pub is_recompute_known: bool,
    /// Whether a compiler that knows all sizes ahead computes more again until the step fits, as XLA does for TPUs.
    pub is_made_to_fit: bool,
    /// What to predict, or why it cannot be.
    pub job: std::result::Result<(Job, Cluster), String>,
}

/// Reads a table of runs.
///
/// # Errors
/// E513 for a malformed table, with line and column.
pub fn read(text: &str, origin: &str) -> Result<Vec<Measured>> {
    let table = Csv::parse(text, origin)?;
    table.needs(NEEDED)?;
    table.rows().map(|row| measured(&row)).collect()
}

fn measured(row: &Row) -> Result<Measured> {
    let tokens = row.number("seq")?.unwrap_or(0.0) * row.number("gbs")?.unwrap_or(0.0);
    let scale = if row.text("mem_kind").contains("GiB") { (1u64 << 30) as f64 } else { 1e9 };
    // nvidia-smi counts in MiB and people call 1024 of them a GB.
    let scale = if row.text("mem_kind").contains("nvidia-smi") { (1u64 << 30) as f64 } else { scale };
    let memory = row.number("mem_gb")?.map(|gb| (gb * scale, row.text("mem_kind").to_string()));
    Ok(Measured {
        row: row.text("row_id").to_string(),
        source: row.text("source_id").to_string(),
        group: format!("{} {}", row.text("group"), row.text("hw_gpu")),
        step_s: row.above_zero("step_time_s")?,
        tokens,
        ranks: row.count("gpus")?.unwrap_or(1),
        memory,
        ran_out: row.text("status") == "oom",
        is_recompute_known: !row.text("recompute").is_empty(),
        is_made_to_fit: row.text("hw_gpu").starts_with("TPU"),
        job: match job(row) {
            Ok(job) => Ok(job),
            Err(Refusal::Malformed(error)) => return Err(error),
            Err(Refusal::Why(why)) => Err(why),
        },
    })
}

/// Bytes that rounding to 8 bits writes, relative to those that a matmul moves in 16 bits.
const CASTS: f64 = 0.5;

/// Seconds that a kernel takes beside its work where the host waits for each one before it launches the next
/// (`CUDA_LAUNCH_BLOCKING=1`). PyTorch runs several kernels for one of a program that is fused.
const BLOCKING_LAUNCH_S: f64 = 100e-6;

/// Why a row has no job.
enum Refusal {
    Malformed(Box<Diagnostic>),
    Why(String),
}

impl From<Box<Diagnostic>> for Refusal {
    fn from(error: Box<Diagnostic>) -> Refusal {
        Refusal::Malformed(error)
    }
}

fn why(text: impl Into<String>) -> Refusal {
    Refusal::Why(text.into())
}

fn job(row: &Row) -> std::result::Result<(Job, Cluster), Refusal> {
    let count = |column: &str| -> std::result::Result<usize, Refusal> {
        row.count(column)?.ok_or_else(|| why(format!("`{column}` is not published")))
    };
    let or_one =
        |column: &str| -> std::result::Result<usize, Refusal> { Ok(row.count(column)?.unwrap_or(1)) };
    let [layers, dim, heads, vocab, seq] =
        [count("layers")?, count("hidden")?, count("heads")?, count("vocab")?, count("seq")?];
    let [gbs, tp, pp, dp] = [count("gbs")?, count("tp")?, count("pp")?, count("dp")?];
    let kv_heads = row.count("kv_heads")?.unwrap_or(heads);
    let (cp, chunks, ranks) = (or_one("cp")?, or_one("vpp")?, count("gpus")?);
    if tp * pp * cp * dp != ranks {
        return Err(why(format!("tp {tp} x pp {pp} x cp {cp} x dp {dp} are not {ranks} devices")));
    }
    if heads % tp != 0 {
        return Err(why(format!("{heads} heads do not divide over tp {tp}")));
    }
    // Embedding and head may take the place of a layer.
    if pp * chunks > layers + 2 {
        return Err(why(format!("{layers} layers do not fill {pp} x {chunks} stages")));
    }
    let mbs = match row.count("mbs")? {
        Some(mbs) => mbs,
        None => return Err(why("`mbs` is not published")),
    };
    if gbs % (mbs * dp) != 0 {
        return Err(why(format!("{gbs} rows do not divide into microbatches of {mbs} on {dp} ranks")));
    }
    let name = row.text("hw_gpu");
    let name = if name.starts_with("A100-class") { "a100-80g" } else { name };
    let device = gpu(name).ok_or_else(|| why(format!("no figures of device `{name}`")))?;
    let per_node = or_one("gpus_per_node")?.min(ranks);
    let near = row.number("intra_gbs_unidir")?.map(|gb| gb * 1e9);
    let far = row.number("inter_gbps_per_gpu")?.map(|gbit| gbit * 1e9 / 8.0);
    let cluster = device.cluster(Some(ranks.div_ceil(per_node)), per_node, near, far);
    let dtype = row.text("dtype");
    let is_eighth = dtype.contains("fp8");
    if is_eighth && device.eighth_flops_per_s == 0.0 {
        return Err(why(format!("no 8-bit matmuls on `{name}`")));
    }
    let attention = row.text("attn_impl");
    // A source of half precision that names no kernel is of the time before they were common.
    let is_unfused = attention.starts_with("unfused") || attention.is_empty() && dtype.starts_with("fp16");
    let recompute = match row.text("recompute") {
        "full" => Recompute::Layers,
        text if text.starts_with("selective_layers") || text.contains("save_qkv") => Recompute::Layers,
        "selective_op" => Recompute::FeedForward,
        text if text.starts_with("selective") => Recompute::Attention,
        "" | "none" => Recompute::Nothing,
        text => return Err(why(format!("unknown recomputation `{text}`"))),
    };
    let zero: u8 = match row.text("zero_stage") {
        "" => 1,
        text => match text.parse() {
            Ok(stage @ 0..=3) => stage,
            _ => return Err(why(format!("unknown ZeRO stage `{text}`"))),
        },
    };
    let sequence_parallel = tp > 1 && row.text("seq_parallel") == "1";
    let shard_group =
        row.count("shard_group")?.unwrap_or(if zero > 0 { dp * cp } else { 1 }).clamp(1, dp * cp);
    let is_sharded = zero >= 2;
    let order = match row.text("pp_schedule") {
        "zb-1p" => Some("zb-h1"),
        "zb-2p" => Some("zb-h2"),
        _ => None,
    };
    let model = model(row, [layers, dim, heads, vocab, seq])?;
    Ok((
        Job {
            block: BlockSpec {
                model,
                tp,
                ep: 1,
                rows: mbs,
                dtype: cluster.half(),
                sequence_parallel,
                vocab_parallel: tp > 1,
                recompute,
                fused_attention: !is_unfused,
                step: StepOptions { grad_norm: false, ..StepOptions::new(Optimizer::adam()) },
                plan: None,
            },
            layers,
            pp,
            chunks,
            // InternEvo, `partition_uniform`.
            leaves_last: is_internevo(row),
            order: order.map(Order::named).transpose()?,
            clocked: false,
            // Ranks that share a sequence share parameters too.
            dp: dp * cp,
            cp,
            kv_features: dim / heads * kv_heads,
            microbatches: gbs / (mbs * dp),
            zero,
            shard_group,
            queues: false,
            adds: false,
            // InternEvo's configs have `overlap_sync_grad=True`.
            overlaps: is_internevo(row) || overlaps(row.text("overlap_notes"), is_sharded),
            attention: if is_unfused {
                AttentionKernel::unfused(dim / heads)
            } else if attention.contains("cudnn") || device.half_flops_per_s < 400e12 {
                AttentionKernel::Fused(0.5)
            } else {
                // Kernels written for the generation before.
                AttentionKernel::Fused(0.32)
            },
            broadcasts: is_internevo(row),
            // Blocks along the contraction, as in MXFP8, differ between the forward and the backward pass: an operand is
            // rounded for each.
            casts: if dtype.contains("mxfp8") { 2.0 * CASTS } else { CASTS },
            launch_s: if row.text("overlap_notes").contains("LAUNCH_BLOCKING") {
                BLOCKING_LAUNCH_S
            } else {
                0.0
            },
            matmul_rate: if is_eighth { device.eighth_flops_per_s / device.half_flops_per_s } else { 1.0 },
            bytes: parameter_bytes(row, is_sharded),
        },
        cluster,
    ))
}

/// Bytes of a parameter and of what belongs to it, by the software of a run. `is_sharded` says that gradients are sharded.
fn parameter_bytes(row: &Row, is_sharded: bool) -> ParameterBytes {
    let (dtype, notes) = (row.text("dtype"), row.text("overlap_notes"));
    let none = ParameterBytes {
        parameter: 2.0,
        gradient: 2.0,
        state: 12.0,
        host: 0.0,
        update: 0.0,
        reduced: 2.0,
        gathered: 2.0,
    };
    if is_internevo(row) {
        // Parameters and gradients in half precision; master parameters and moments in single precision. The update also
        // holds gradients in single precision, and the two temporaries of PyTorch's AdamW, the root of the second moment
        // and the denominator (InternEvo, `fsdp_optimizer.py` and `hybrid_zero_optim.py`).
        return ParameterBytes { update: 4.0 + 8.0, ..none };
    }
    if is_sharded {
        // Parameters, gradients and moments in single precision, each sharded; gathered in half precision.
        let reduced = if dtype.contains("PURE") { 2.0 } else { 4.0 };
        return ParameterBytes { parameter: 4.0, gradient: 4.0, state: 8.0, reduced, ..none };
    }
    // Parameters and gradients in half precision; master parameters and moments in single precision, and gradients in
    // single precision too: in DeepSpeed they belong to the sharded states in f16 and not in bf16, in Megatron-LM bf16
    // gradients are kept in single precision alone. NVIDIA's recipes, which overlap the collectives of every axis, reduce
    // gradients in half precision (`grad_sync_dtype=bf16`, `grad_reduce_in_fp32=False`).
    let is_recipe = notes.contains("recipes") || notes.contains("param gather overlap");
    let (gradient, state) = match (notes.contains("DeepSpeed"), dtype.starts_with("fp16") || is_recipe) {
        (true, true) => (2.0, 16.0),
        (true, false) => (6.0, 12.0),
        (false, true) => (2.0, 12.0),
        (false, false) => (4.0, 12.0),
    };
    ParameterBytes { gradient, state, reduced: f64::min(gradient, 4.0), ..none }
}

/// Whether the software of a run is InternEvo.
fn is_internevo(row: &Row) -> bool {
    row.text("source").contains("InternEvo")
}

/// Whether collectives of data parallel ranks hide behind compute, by what the source says.
fn overlaps(notes: &str, is_sharded: bool) -> bool {
    let says = notes.to_lowercase().contains("overlap") && !notes.contains("no grad overlap");
    says || is_sharded && !notes.is_empty()
}

fn model(
    row: &Row,
    [layers, dim, heads, vocab, sequence]: [usize; 5],
) -> std::result::Result<Arc<dyn ModelSource>, Refusal> {
    let (hidden, kv_heads) = (row.count("ffn")?.unwrap_or(4 * dim), row.count("kv_heads")?.unwrap_or(heads));
    let tied = row.text("tied_emb") == "1";
    Ok(match row.text("mlp") {
        "swiglu" | "geglu" => Arc::new(LlamaConfig {
            vocab,
            dim,
            layers,
            heads,
            kv_heads: Some(kv_heads),
            sequence,
            hidden: Some(hidden),
            tied,
            ..LlamaConfig::default()
        }),
        _ if hidden % dim == 0 => Arc::new(GptConfig {
            vocab,
            dim,
            layers,
            heads,
            kv_heads: Some(kv_heads),
            sequence,
            mlp_ratio: hidden / dim,
            tied,
            ..GptConfig::default()
        }),
        _ => return Err(why(format!("a feed-forward block of {hidden} features is no multiple of {dim}"))),
    })
}
