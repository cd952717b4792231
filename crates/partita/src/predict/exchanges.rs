//! Seconds of what data parallel ranks, ranks that share a sequence, and neighbouring stages exchange.

use super::block::{Block, Place};
use super::step::{Job, LINK};
use partita_cost::{Cluster, Collective as Cost};

/// Seconds of the collectives of data parallel ranks and between stages.
#[derive(Clone, Debug)]
pub(super) struct Exchanges {
    /// Of one layer and microbatch under stage 3: forward, backward.
    pub(super) of_layer: [f64; 2],
    /// Of the ends of the model under stage 3.
    pub(super) of_ends: [f64; 2],
    /// Keys and values of a layer among the ranks that share a sequence: forward, backward.
    pub(super) keys: [f64; 2],
    /// Once a step.
    pub(super) step_s: f64,
    /// Once a step, behind the update: a gather of updated parameters that nothing hides, and what it takes beyond that
    /// where each rank sends its own to all others, one after another: each passes from rank to rank.
    pub(super) late_s: f64,
    /// One microbatch from one stage to the next.
    pub(super) send_s: f64,
    /// Whether gathers of parameters go over the same links as the collectives within a layer, and take turns with them.
    pub(super) are_queued: bool,
}

impl Exchanges {
    /// Those of a job on a cluster.
    pub(super) fn of(job: &Job, block: &Block, cluster: &Cluster) -> Exchanges {
        let inner = job.block.tp * job.block.ep;
        let group =
            |ranks: usize, apart: usize| -> Vec<usize> { (0..ranks).map(|rank| rank * apart).collect() };
        let seconds = |kind: Cost, bytes: f64, members: &[usize]| {
            kind.seconds(bytes / LINK, &cluster.rings_among(members))
        };
        let sharded = group(job.shard_group, inner);
        let replicas = group(job.dp / job.shard_group.max(1), inner * job.shard_group);
        let all = group(job.dp, inner);
        let of_layer = block.layer(|traced| traced.parameters[Place::Layers as usize]);
        let of_ends =
            block.one.parameters[Place::First as usize] + block.one.parameters[Place::Last as usize];
        let on_slice = of_layer * (job.layers as f64 / job.pp as f64).ceil()
            + if job.pp == 1 { of_ends } else { of_ends.max(block.one.parameters[Place::First as usize]) };
        let (reduced, gathered) = (job.bytes.reduced, job.bytes.gathered);
        let gather = |elements: f64| seconds(Cost::AllGather, elements * gathered, &sharded);
        let scatter = |elements: f64| seconds(Cost::ReduceScatter, elements * reduced, &sharded);
        let among_replicas =
            |elements: f64| seconds(Cost::AllReduce, elements * reduced / job.shard_group as f64, &replicas);
        let m = job.microbatches as f64;
        let updated_s = if matches!(job.zero, 1 | 2) { gather(on_slice) } else { 0.0 };
        let (passes, ends, step_s) = match job.zero {
            0 => ([0.0; 2], [0.0; 2], seconds(Cost::AllReduce, on_slice * reduced, &all)),
            1 => ([0.0; 2], [0.0; 2], scatter(on_slice) + among_replicas(on_slice)),
            2 => ([0.0; 2], [0.0; 2], m * scatter(on_slice) + among_replicas(on_slice)),
            _ => (
                [gather(of_layer), gather(of_layer) + scatter(of_layer)],
                [gather(of_ends), gather(of_ends) + scatter(of_ends)],
                among_replicas(on_slice),
            ),
        };
        // The last rank of a slice sends to the first one of the next.
        let apart = inner * job.dp;
        let split = if job.block.sequence_parallel { 1.0 } else { job.block.tp as f64 };
        let bytes = block.stream_bytes / split / job.cp as f64;
        let send_s = if job.pp > 1 { seconds(Cost::Permute, bytes, &[0, apart]) } else { 0.0 };
        let ring = group(job.cp, inner);
        let kept = block.stream_bytes / job.block.model.stream().map_or(1, |[_, _, dim]| dim) as f64;
        let split_tokens = if job.block.sequence_parallel { 1.0 } else { job.block.tp as f64 };
        let keys = seconds(Cost::AllGather, 2.0 * kept * job.kv_features as f64 / split_tokens, &ring);
        let hops = cluster
            .rings_among(&sharded)
            .into_iter()
            .map(|ring| ring.link.latency_s * (ring.ranks - 1) as f64);
        let broadcasts_s = if job.broadcasts && matches!(job.zero, 1 | 2) {
            sharded.len() as f64 * hops.sum::<f64>()
        } else {
            0.0
        };
        let (step_s, late_s) = match job.queues {
            true => (step_s, updated_s + broadcasts_s),
            false => (step_s + updated_s, broadcasts_s),
        };
        let levels = |members: &[usize]| cluster.rings_among(members).into_iter().map(|ring| ring.level);
        let within: Vec<usize> = levels(&group(inner, 1)).collect();
        let are_queued = job.queues && levels(&sharded).any(|level| within.contains(&level));
        Exchanges {
            are_queued,
            late_s,
            keys: [keys, 2.0 * keys],
            of_layer: passes,
            of_ends: ends,
            step_s,
            send_s,
        }
    }
}
