//! Seconds of the collectives of a program.

use partita_cost::{Cluster, Collective as Cost};
use partita_program::{Collective, CollectiveKind, CollectiveOp};

/// Seconds of a collective, all tensors of its bucket together.
///
/// A reduction or a gather moves the full tensor around the rings of its group, an `all_to_all` or a
/// permute the tensor of each rank. A send takes as long as the busiest of its members, which sends
/// or receives its boxes one after the other.
pub fn collective_s(collective: &Collective, cluster: &Cluster) -> f64 {
    let cost = match collective.kind {
        CollectiveKind::AllReduce => Cost::AllReduce,
        CollectiveKind::AllGather | CollectiveKind::CollectiveBroadcast => Cost::AllGather,
        CollectiveKind::ReduceScatter => Cost::ReduceScatter,
        CollectiveKind::AllToAll => Cost::AllToAll,
        CollectiveKind::CollectivePermute => Cost::Permute,
        CollectiveKind::Send => return send_s(collective, cluster),
    };
    let bytes = |member: usize| -> usize {
        collective.transfers.iter().map(|transfer| transfer.full_bytes(member)).sum()
    };
    let bytes = (0..collective.members.len()).map(bytes).max().unwrap_or(0);
    cost.seconds(bytes as f64, &cluster.rings_among(&collective.members))
}

fn send_s(collective: &Collective, cluster: &Cluster) -> f64 {
    let messages = collective.transfers.iter().flat_map(|transfer| {
        let boxes = match &transfer.exchange {
            CollectiveOp::Send { boxes } => &boxes[..],
            _ => &[],
        };
        let element = transfer.inputs[0].dtype.size_bytes();
        boxes.iter().map(move |moved| {
            let bytes = moved.extents.iter().product::<usize>() * element;
            (collective.members[moved.source], collective.members[moved.target], bytes)
        })
    });
    cluster.messages_s(messages)
}
