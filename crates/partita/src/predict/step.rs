//! From the folded layer to a step of any size: stages, microbatches, data parallel ranks.
//!
//! The work of a stage is that of its layers and, on the first and last one, of the ends of the model. The timetable runs
//! over a clock with these durations. Where it has too many tasks, or more stages on a slice than a named timetable, its
//! closed form is used: all microbatches on the slowest slice, and a ramp of one microbatch over the other slices, as
//! short as a slice has stages (D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
//! Megatron-LM", 2021, section 2.2).
//!
//! Data parallel ranks all-reduce gradients (stage 0 of ZeRO), reduce-scatter them and gather parameters (1, 2), or also
//! gather the parameters of each layer for each use (3) (S. Rajbhandari et al., "ZeRO", 2020, section 7). Ranks are
//! numbered with `tp` minor, then `sp`, `dp` and `pp`, so that the collectives of a layer stay within a node.

use super::attention::AttentionKernel;
use super::block::{Block, BlockSpec, Item, Place, Recompute, Traced, Work};
use super::bytes::bytes_of_slices;
use super::exchanges::Exchanges;
pub use super::forecast::{Bytes, Forecast};
use partita_base::{DType, Result};
use partita_cost::{Cluster, Collective as Cost, Device};
use partita_ir::Phase;
use partita_pipeline::{Order, Task, TaskKind};
use partita_program::CollectiveKind;

/// A training step to predict.
#[derive(Clone, Debug)]
pub struct Job {
    /// What one layer depends on.
    pub block: BlockSpec,
    /// Layers of the model.
    pub layers: usize,
    /// Slices of the mesh along the pipeline.
    pub pp: usize,
    /// Stages on each slice.
    pub chunks: usize,
    /// Whether layers that are left over when stages get equally many go to the last stages, instead of to those in the
    /// middle.
    pub leaves_last: bool,
    /// The order of tasks; `None` is 1F1B, interleaved where a slice has several stages.
    pub order: Option<Order>,
    /// Whether the timetable runs over a clock; otherwise its closed form is used.
    pub clocked: bool,
    /// Ranks with equal parameters: data parallel ones, and those that share a sequence.
    pub dp: usize,
    /// Ranks that share a sequence (context parallelism): each has its part of the tokens, and receives the keys and
    /// values of the others.
    pub cp: usize,
    /// Features of keys and values of a token.
    pub kv_features: usize,
    /// Microbatches of a step.
    pub microbatches: usize,
    /// What data parallel ranks share.
    pub zero: u8,
    /// Whether the collectives of a rank over the same links run one after another, as in the library's own programs: those
    /// within a layer wait for gathers of parameters, and nothing hides the gather of parameters that are updated under ZeRO
    /// stages 1 and 2.
    pub queues: bool,
    /// Whether the gradients of a microbatch are added to those of others by kernels of their own, as in the library's own
    /// programs.
    pub adds: bool,
    /// Ranks over which ZeRO shards; the others have replicas.
    pub shard_group: usize,
    /// Whether the collectives of data parallel ranks hide behind the backward pass.
    pub overlaps: bool,
    /// Whether each rank sends the parameters that it updated to all others under ZeRO stages 1 and 2, one rank after
    /// another, instead of one gather.
    pub broadcasts: bool,
    /// The rate of matmuls of layers relative to that of the cluster's device: 2 for most devices in 8 bits.
    pub matmul_rate: f64,
    /// Bytes that rounding to 8 bits writes, relative to those that a matmul moves in 16 bits.
    pub casts: f64,
    /// Seconds of a kernel's launch that no other kernel hides.
    pub launch_s: f64,
    /// How attention is computed.
    pub attention: AttentionKernel,
    /// Bytes of a parameter and of what belongs to it.
    pub bytes: ParameterBytes,
}

/// Bytes for one parameter.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ParameterBytes {
    /// The parameter as it is kept between steps.
    pub parameter: f64,
    /// The gradient as it is kept until the update.
    pub gradient: f64,
    /// The optimizer's states, a master copy included.
    pub state: f64,
    /// The optimizer's states that are in host memory instead.
    pub host: f64,
    /// What the update needs beside these while it runs, sharded as the states are.
    pub update: f64,
    /// The gradient as it is reduced over ranks.
    pub reduced: f64,
    /// The parameter as it is gathered from ranks, and as matmuls read it.
    pub gathered: f64,
}

/// The software of a run: what its kernels and collectives take, relative to the figures of the cluster.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Software {
    /// Factor of the time of compute.
    pub compute: f64,
    /// Factor of the time of collectives.
    pub communication: f64,
    /// Seconds that each kernel takes beside its work.
    pub launch_s: f64,
    /// The part of a step that each doubling of the number of ranks adds, since all wait for the slowest.
    pub stragglers: f64,
    /// The same for each doubling of the ranks that wait for each other in every layer, as where these gather parameters.
    pub layer_stragglers: f64,
}

impl Default for Software {
    fn default() -> Software {
        Software { compute: 1.0, communication: 1.0, launch_s: 0.0, stragglers: 0.0, layer_stragglers: 0.0 }
    }
}

/// The part of a link's bandwidth that a collective reaches.
pub(super) const LINK: f64 = 0.8;

/// The part of a layer's compute between two of its collectives, which alone hides a gather of parameters.
const BETWEEN_EXCHANGES: f64 = 0.5;

/// Seconds of compute and of collectives.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Seconds {
    compute: f64,
    exchange: f64,
    /// The number of kernels.
    kernels: f64,
}

impl Seconds {
    fn with(self, software: &Software) -> Seconds {
        Seconds {
            compute: self.compute * software.compute + self.kernels * software.launch_s,
            exchange: self.exchange * software.communication,
            kernels: self.kernels,
        }
    }

    fn sum(self) -> f64 {
        self.compute + self.exchange
    }

    fn times(self, count: f64) -> Seconds {
        Seconds {
            compute: self.compute * count,
            exchange: self.exchange * count,
            kernels: self.kernels * count,
        }
    }

    fn plus(self, other: Seconds) -> Seconds {
        Seconds {
            compute: self.compute + other.compute,
            exchange: self.exchange + other.exchange,
            kernels: self.kernels + other.kernels,
        }
    }
}

/// What a job says about kernels.
#[derive(Clone, Copy, Debug)]
struct Rates {
    matmul: f64,
    casts: f64,
    attention: AttentionKernel,
}

/// Seconds of an instruction.
fn item_s(item: &Item, cluster: &Cluster, rates: Rates) -> Seconds {
    let Rates { matmul: matmul_rate, casts, attention } = rates;
    let one = Seconds { kernels: 1.0, ..Seconds::default() };
    let compute_s = |device: &Device| {
        let memory_s = device.memory_s(item.bytes.max(1.0));
        let matmul_s = |flops: f64, part: f64| (device.arithmetic_s(flops, item.dtype) / part).max(memory_s);
        match &item.work {
            Work::Matmul => {
                let rate = if item.place == Place::Layers { matmul_rate } else { 1.0 };
                // What a matmul in 8 bits reads is rounded and written first.
                matmul_s(item.flops, rate) + if rate > 1.0 { casts * memory_s } else { 0.0 }
            }
            Work::Attention { causal, backward, scores } => match attention {
                AttentionKernel::Fused(part) => {
                    matmul_s(if *causal { item.flops / 2.0 } else { item.flops }, part)
                }
                AttentionKernel::Unfused(part) => {
                    // The gradient of a kernel computes the scores again; here they are kept.
                    let (flops, bytes) = if *backward { (0.8, 17.0) } else { (1.0, 13.0) };
                    matmul_s(item.flops * flops, part) + device.memory_s((scores * bytes).max(1.0))
                }
            },
            Work::Elementwise => memory_s,
            Work::Collective(..) => 0.0,
        }
    };
    match &item.work {
        Work::Matmul | Work::Attention { .. } | Work::Elementwise => {
            Seconds { compute: cluster.slowest(compute_s), ..one }
        }
        Work::Collective(kind, members) => {
            let cost = match kind {
                CollectiveKind::AllReduce => Cost::AllReduce,
                CollectiveKind::AllGather | CollectiveKind::CollectiveBroadcast => Cost::AllGather,
                CollectiveKind::ReduceScatter => Cost::ReduceScatter,
                CollectiveKind::AllToAll => Cost::AllToAll,
                CollectiveKind::CollectivePermute | CollectiveKind::Send => Cost::Permute,
            };
            let seconds = cost.seconds(item.bytes / LINK, &cluster.rings_among(members));
            Seconds { exchange: seconds, ..one }
        }
    }
}

fn traced_s(traced: &Traced, cluster: &Cluster, rates: Rates, wanted: impl Fn(&Item) -> bool) -> Seconds {
    let items = traced.items.iter().filter(|item| wanted(item));
    items.fold(Seconds::default(), |sum, item| sum.plus(item_s(item, cluster, rates)))
}

/// Seconds of one microbatch by part of the model: forward and backward.
#[derive(Clone, Debug)]
struct Pieces {
    first: [Seconds; 2],
    layer: [Seconds; 2],
    last: [Seconds; 2],
    /// Seconds of the update for one layer, and for the ends.
    update: [f64; 2],
}

impl Pieces {
    fn of(block: &Block, cluster: &Cluster, rates: Rates, cp: usize) -> Pieces {
        let pass = |traced: &Traced, backward: bool, place: Option<Place>| {
            traced_s(traced, cluster, rates, |item| {
                let of_pass = if backward { item.phase.is_backward() } else { item.phase == Phase::Forward };
                of_pass && place.is_none_or(|place| item.place == place)
            })
        };
        let share = |seconds: Seconds| Seconds { kernels: seconds.kernels, ..seconds.times(1.0 / cp as f64) };
        let less = |a: Seconds, b: Seconds| Seconds {
            compute: (a.compute - b.compute).max(0.0),
            exchange: (a.exchange - b.exchange).max(0.0),
            kernels: (a.kernels - b.kernels).max(0.0),
        };
        let both = |of: &dyn Fn(bool) -> Seconds| [of(false), of(true)];
        let layer =
            both(&|backward| less(pass(&block.two, backward, None), pass(&block.one, backward, None)));
        let first = both(&|backward| pass(&block.one, backward, Some(Place::First)));
        let last = both(&|backward| {
            let index = usize::from(backward);
            less(less(pass(&block.one, backward, None), layer[index]), first[index])
        });
        let update =
            |traced: &Traced| traced_s(traced, cluster, rates, |item| item.phase == Phase::Update).compute;
        let of_layer = (update(&block.two) - update(&block.one)).max(0.0);
        let [first, layer, last] =
            [first, layer, last].map(|[forward, backward]| [share(forward), share(backward)]);
        Pieces { first, layer, last, update: [of_layer, (update(&block.one) - of_layer).max(0.0)] }
    }
}

/// Layers on each stage: as even as possible; what is left over goes to the stages in the middle, since the ends have the
/// embeddings and the head.
pub fn layers_of_stages(layers: usize, stages: usize) -> Vec<usize> {
    let (each, left) = (layers / stages, layers % stages);
    let begin = (stages - left) / 2;
    (0..stages).map(|stage| each + usize::from((begin..begin + left).contains(&stage))).collect()
}

impl Job {
    /// A step of so many layers on one device, with the kernels of the library.
    pub(super) fn on_one_device(block: BlockSpec, layers: usize, bytes: ParameterBytes) -> Job {
        Job {
            block,
            layers,
            pp: 1,
            chunks: 1,
            leaves_last: false,
            order: None,
            clocked: false,
            dp: 1,
            cp: 1,
            kv_features: 0,
            microbatches: 1,
            zero: 0,
            queues: true,
            adds: true,
            shard_group: 1,
            overlaps: true,
            broadcasts: false,
            matmul_rate: 1.0,
            casts: 0.0,
            launch_s: 0.0,
            attention: AttentionKernel::Fused(0.5),
            bytes,
        }
    }

    /// Layers on each of its stages.
    fn layers_of_stages(&self) -> Vec<usize> {
        let stages = self.pp * self.chunks;
        let mut counts = layers_of_stages(self.layers, stages);
        if self.leaves_last {
            counts.sort_unstable();
        }
        counts
    }
}

/// Tasks beyond which the closed form is used, not the clock.
const MOST_TASKS: usize = 60_000;

/// The seconds of a block on a cluster, which jobs of the same layer share.
#[derive(Clone, Debug)]
pub struct BlockSeconds {
    pieces: Pieces,
}

impl BlockSeconds {
    /// Prices a block for the kernels of a job.
    pub fn of(job: &Job, block: &Block, cluster: &Cluster) -> BlockSeconds {
        let rates = Rates { matmul: job.matmul_rate, casts: job.casts, attention: job.attention };
        BlockSeconds { pieces: Pieces::of(block, cluster, rates, job.cp) }
    }

    /// Seconds of one microbatch, forward and backward, of so many layers, with what is before and behind them or not.
    pub fn stage_s(&self, layers: usize, is_first: bool, is_last: bool) -> f64 {
        let of = |seconds: &[Seconds; 2]| seconds[0].sum() + seconds[1].sum();
        let Pieces { first, layer, last, .. } = &self.pieces;
        let ends = [(is_first, first), (is_last, last)].into_iter().filter(|(has, _)| *has);
        of(layer) * layers as f64 + ends.map(|(_, end)| of(end)).sum::<f64>()
    }
}

impl BlockSeconds {
    /// Seconds of the forward pass of a layer for one microbatch.
    pub fn layer_forward_s(&self) -> f64 {
        self.pieces.layer[0].sum()
    }
}

/// A job with the seconds of its pieces on a cluster, before constants of software.
#[derive(Clone, Debug)]
pub struct Priced {
    pieces: Pieces,
    exchanges: Exchanges,
    update_s: f64,
    /// Seconds in which a microbatch adds its gradients to those of the microbatches before it: first, layer, last.
    adding_s: [f64; 3],
}

/// Where the seconds of a step go.
#[derive(Clone, PartialEq, Debug)]
pub struct StepSeconds {
    /// All of them.
    pub step_s: f64,
    /// Seconds in which the slowest slice computes.
    pub compute_s: f64,
    /// Seconds in which it waits for collectives that no compute hides.
    pub exposed_s: f64,
    /// Seconds in which it waits for other slices.
    pub bubble_s: f64,
    /// For each stage, the microbatches in flight at once.
    pub(super) in_flight: Vec<f64>,
}

impl Priced {
    /// Prices the pieces of a job.
    pub fn of(job: &Job, block: &Block, cluster: &Cluster) -> Priced {
        Priced::unfolded(job, block, cluster, &BlockSeconds::of(job, block, cluster))
    }

    /// As [`Priced::of`], from the seconds of the block.
    fn unfolded(
        job: &Job,
        block: &Block,
        cluster: &Cluster,
        BlockSeconds { pieces }: &BlockSeconds,
    ) -> Priced {
        let pieces = pieces.clone();
        let sharded = if job.zero == 0 { 1.0 } else { job.shard_group as f64 };
        let layers_per_slice = (job.layers as f64 / job.pp as f64).ceil();
        // The programs keep what they keep; a run with a master copy or another gradient moves more.
        let elements: f64 = block.one.parameters.iter().sum();
        let own = block.one.state_bytes / elements + job.block.dtype.size_bytes() as f64;
        let traffic = (job.bytes.state + job.bytes.host + job.bytes.gradient) / own;
        let update_s = (pieces.update[0] * layers_per_slice + pieces.update[1]) / sharded * traffic;
        // States are loaded and stored during the update, hardly at the same time: those of one parameter are loaded ahead.
        let of_layer = block.layer(|traced| traced.parameters.iter().sum());
        let of_slice = elements + of_layer * (layers_per_slice - 1.0);
        let host_bytes = of_slice * job.bytes.host / sharded;
        let host_s = cluster.slowest(|device| 2.0 * host_bytes / device.host_bytes_per_s);
        let update_s = update_s.max(host_s);
        Priced {
            pieces,
            exchanges: Exchanges::of(job, block, cluster),
            update_s,
            adding_s: adding_s(job, block, cluster),
        }
    }

    /// The seconds of a step with these constants of software.
    ///
    /// # Errors
    /// E463 for a timetable of other numbers than the job's.
    pub fn seconds(&self, job: &Job, software: &Software) -> Result<StepSeconds> {
        let Priced { pieces, exchanges, update_s, adding_s } = self;
        let software = &Software { launch_s: software.launch_s + job.launch_s, ..*software };
        let stages = job.pp * job.chunks;
        let counts = job.layers_of_stages();
        // Seconds of one microbatch on a stage.
        let of_stage = |stage: usize, backward: usize| {
            let mut seconds = pieces.layer[backward].with(software);
            // Gathers and reductions of one layer hide behind the arithmetic of its neighbour.
            let shared = exchanges.of_layer[backward] * software.communication;
            // So do keys and values behind the attention to the part that is there.
            let keys = exchanges.keys[backward] * software.communication;
            seconds.exchange += (keys - seconds.compute / 2.0).max(0.0);
            let is_queued = exchanges.are_queued && seconds.exchange > 0.0;
            let hidden = match job.overlaps {
                true if is_queued => seconds.compute * BETWEEN_EXCHANGES,
                true => seconds.compute,
                false => 0.0,
            };
            seconds.exchange += (shared - hidden).max(0.0);
            let adding =
                |place: Place| if backward == 1 { adding_s[place as usize] * software.compute } else { 0.0 };
            seconds.compute += adding(Place::Layers);
            let mut seconds = seconds.times(counts[stage] as f64);
            if stage == 0 {
                seconds = seconds.plus(pieces.first[backward].with(software));
                seconds.compute += adding(Place::First);
            }
            if stage + 1 == stages {
                seconds = seconds.plus(pieces.last[backward].with(software));
                seconds.compute += adding(Place::Last);
                seconds.exchange += exchanges.of_ends[backward] * software.communication;
            }
            if stages > 1 {
                seconds.exchange += exchanges.send_s * software.communication;
            }
            seconds
        };
        let per_stage: Vec<[Seconds; 2]> =
            (0..stages).map(|stage| [of_stage(stage, 0), of_stage(stage, 1)]).collect();
        let mut slices = vec![(Seconds::default(), 0.0); job.pp];
        for (stage, [forward, backward]) in per_stage.iter().enumerate() {
            let (sum, of_backward) = &mut slices[stage % job.pp];
            *sum = sum.plus(forward.plus(*backward).times(job.microbatches as f64));
            *of_backward += backward.compute;
        }
        let slowest = slices.iter().map(|slice| slice.0).max_by(|a, b| a.sum().total_cmp(&b.sum()));
        let slowest = slowest.unwrap_or_default();
        let (passes_s, in_flight) = timetable_s(job, &per_stage, slowest)?;
        let hidden = if job.overlaps { slices.iter().map(|slice| slice.1).fold(0.0, f64::max) } else { 0.0 };
        let sync_s = (exchanges.step_s * software.communication - hidden).max(0.0)
            + exchanges.late_s * software.communication;
        let update_s = update_s * software.compute;
        let alone_s = passes_s + sync_s + update_s;
        let ranks = job.pp * job.dp * job.block.tp * job.block.ep;
        let in_layers = if job.zero == 3 { job.shard_group as f64 } else { 1.0 };
        let waiting =
            software.stragglers * (ranks as f64).log2() + software.layer_stragglers * in_layers.log2();
        let waiting_s = alone_s * waiting;
        Ok(StepSeconds {
            step_s: alone_s + waiting_s,
            compute_s: slowest.compute + update_s,
            exposed_s: slowest.exchange + sync_s + waiting_s,
            bubble_s: (passes_s - slowest.sum()).max(0.0),
            in_flight,
        })
    }
}

/// Seconds in which a microbatch adds its gradients to those of the microbatches before it, by part of the model: both are
/// read, and the sum is written. The first microbatch adds nothing; libraries whose matmuls add to their results take little
/// longer.
fn adding_s(job: &Job, block: &Block, cluster: &Cluster) -> [f64; 3] {
    if !job.adds {
        return [0.0; 3];
    }
    let shards = if job.zero >= 2 { job.shard_group as f64 } else { 1.0 };
    let rest = 1.0 - 1.0 / job.microbatches.max(1) as f64;
    let at = |place: Place| block.one.parameters[place as usize];
    let of_layer = block.layer(|traced| traced.parameters[Place::Layers as usize]);
    let seconds = |elements: f64| match elements * job.bytes.gradient / shards * 3.0 {
        bytes if bytes > 0.0 => cluster.memory_s(bytes) * rest,
        _ => 0.0,
    };
    [seconds(at(Place::First)), seconds(of_layer), seconds(at(Place::Last))]
}

/// Predicts a step.
///
/// # Errors
/// E463 for a timetable of other numbers than the job's.
pub fn forecast(job: &Job, block: &Block, cluster: &Cluster, software: &Software) -> Result<Forecast> {
    forecast_from(job, block, cluster, software, &BlockSeconds::of(job, block, cluster))
}

/// As [`forecast`], from the seconds of the block on this cluster.
///
/// # Errors
/// As [`forecast`].
pub fn forecast_from(
    job: &Job,
    block: &Block,
    cluster: &Cluster,
    software: &Software,
    of_block: &BlockSeconds,
) -> Result<Forecast> {
    let seconds = Priced::unfolded(job, block, cluster, of_block).seconds(job, software)?;
    let counts = job.layers_of_stages();
    let stages = bytes_of_slices(job, block, &counts, &seconds.in_flight);
    let ranks = job.dp * job.block.tp * job.block.ep;
    let limits = (0..job.pp).map(|slice| cluster.memory_of(slice * ranks..(slice + 1) * ranks)).collect();
    let (flops, parameters) = (model_flops(job, block), whole_parameters(job, block));
    Ok(Forecast { seconds, flops, parameters, stages, limits })
}

/// Arithmetic of a step on one device, without recomputation: the backward pass does twice that of the forward pass.
fn model_flops(job: &Job, block: &Block) -> f64 {
    let whole = block.layer(|traced| traced.whole_flops) * (job.layers - 1) as f64 + block.one.whole_flops;
    // Ranks that share a sequence share its rows.
    3.0 * whole * (job.dp / job.cp * job.microbatches) as f64
}

fn whole_parameters(job: &Job, block: &Block) -> f64 {
    block.layer(|traced| traced.whole_parameters) * (job.layers - 1) as f64 + block.one.whole_parameters
}

/// Seconds from the first task to the end of the last one, and for each stage the microbatches in flight at once.
fn timetable_s(job: &Job, per_stage: &[[Seconds; 2]], slowest: Seconds) -> Result<(f64, Vec<f64>)> {
    let (stages, m) = (per_stage.len(), job.microbatches);
    if job.pp == 1 {
        return Ok((slowest.sum(), vec![1.0; stages]));
    }
    let order = match (&job.order, job.chunks) {
        (Some(order), _) => Some(order.clone()),
        (None, 1) => Some(Order::default()),
        (None, _) => None,
    };
    let splits = job.order.as_ref().is_some_and(|order| order.name().starts_with("zb"));
    if let Some(order) = order.filter(|_| job.clocked && stages * m * 2 <= MOST_TASKS) {
        let timetable = order.timetable(job.pp, m)?;
        let nanoseconds = |task: Task| {
            let [forward, backward] = per_stage[task.stage.min(stages - 1)];
            let seconds = match task.kind {
                TaskKind::Forward => forward.sum(),
                TaskKind::Backward => backward.sum(),
                TaskKind::InputGrad => backward.sum() - backward.compute / 2.0,
                TaskKind::WeightGrad => backward.compute / 2.0,
            };
            (seconds * 1e9) as usize
        };
        let times = timetable.times(nanoseconds)?;
        let slice_of = timetable.slice_of_stage();
        let in_flight = (0..stages)
            .map(|s| timetable.peak(slice_of[s.min(slice_of.len() - 1)]) as f64 / job.chunks as f64);
        return Ok((times.makespan() as f64 / 1e9, in_flight.collect()));
    }
    // The ramp: one microbatch through the stages of the other slices.
    let all: f64 = per_stage.iter().map(|[forward, backward]| forward.sum() + backward.sum()).sum();
    let ramp = all / stages as f64 * (job.pp - 1) as f64 * if splits { 1.0 / 3.0 } else { 1.0 };
    let (pp, chunks) = (job.pp as f64, job.chunks as f64);
    let fills = job.order.as_ref().is_some_and(|order| order.name() == "zb-h2");
    let in_flight = (0..stages).map(|stage| {
        let slice = (stage % job.pp) as f64;
        let most = match () {
            // Gradients of weights wait where others wait for the pipeline to fill, so all slices hold equally many.
            () if fills => 2.0 * pp - 1.0,
            () if splits => pp,
            () if job.chunks == 1 => pp - slice,
            () => (pp - 1.0 - slice) * 2.0 / chunks + (chunks - 1.0) * pp / chunks + 1.0 / chunks,
        };
        most.min(m as f64)
    });
    Ok((slowest.sum() + ramp, in_flight.collect()))
}

/// The bytes of the library's own steps: parameters and gradients in the type of the model, states in single precision.
pub fn own_bytes(dtype: DType, states: f64) -> ParameterBytes {
    let size = dtype.size_bytes() as f64;
    let (state, host) = (4.0 * states, 0.0);
    let (reduced, gathered, update) = (size, size, 0.0);
    ParameterBytes { parameter: size, gradient: size, state, host, update, reduced, gathered }
}

/// What recomputation is called.
pub fn recompute_name(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::Nothing => "none",
        Recompute::Attention => "attention",
        Recompute::FeedForward => "feed-forward",
        Recompute::Layers => "full",
    }
}
