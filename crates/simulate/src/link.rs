//! Seconds of the collectives of a program.

use partita_base::CollectiveId;
use partita_cost::{Cluster, Collective as Cost, Occupied};
use partita_program::{Collective, CollectiveKind, CollectiveOp, ProgramSet};

/// Alike groups of a collective that exchange at the same time.
pub(crate) struct Exchange {
    /// Seconds until the bytes have arrived.
    pub seconds: f64,
    /// The links of nodes that they share, if these are fewer than their ranks.
    pub occupied: Vec<Occupied>,
}

/// The exchange of one of several alike groups, `one` of `groups`.
pub(crate) fn exchange(
    set: &ProgramSet,
    groups: &[CollectiveId],
    one: CollectiveId,
    cluster: &Cluster,
) -> Exchange {
    let of = |group: &CollectiveId| &set.collectives[group.index()];
    let collective = of(&one);
    let Some(cost) = cost(collective.kind) else {
        let messages = || groups.iter().flat_map(|group| messages(of(group)));
        let occupied = cluster.occupied_by_messages(messages());
        return Exchange { seconds: cluster.messages_s(messages()), occupied };
    };
    let flows = cluster.flows(groups.iter().map(|group| &of(group).members[..]));
    let rings = cluster.rings_of(&collective.members, &flows);
    let bytes = bytes(collective);
    let occupied = cluster.occupied(cost, bytes, &rings, &flows);
    Exchange { seconds: cost.seconds(bytes, &rings), occupied }
}

/// The levels of links over which a collective moves something.
pub(crate) fn levels(collective: &Collective, cluster: &Cluster) -> Vec<usize> {
    let mut levels: Vec<usize> = match collective.kind {
        CollectiveKind::Send => {
            messages(collective).map(|(from, to, _)| cluster.level_between(from, to)).collect()
        }
        _ => cluster.rings_among(&collective.members).into_iter().map(|ring| ring.level).collect(),
    };
    levels.sort_unstable();
    levels.dedup();
    levels
}

/// Seconds of a collective of one group alone, all tensors of its bucket together.
///
/// A reduction or a gather moves the full tensor around the rings of its group, an `all_to_all` or a
/// permute the tensor of each rank. A send takes as long as the busiest of its members, which sends
/// or receives its boxes one after the other.
pub fn collective_s(collective: &Collective, cluster: &Cluster) -> f64 {
    match cost(collective.kind) {
        Some(cost) => {
            let flows = cluster.flows([&collective.members[..]]);
            cost.seconds(bytes(collective), &cluster.rings_of(&collective.members, &flows))
        }
        None => cluster.messages_s(messages(collective)),
    }
}

/// What a collective costs as; none for a send.
fn cost(kind: CollectiveKind) -> Option<Cost> {
    Some(match kind {
        CollectiveKind::AllReduce => Cost::AllReduce,
        CollectiveKind::AllGather | CollectiveKind::CollectiveBroadcast => Cost::AllGather,
        CollectiveKind::ReduceScatter => Cost::ReduceScatter,
        CollectiveKind::AllToAll => Cost::AllToAll,
        CollectiveKind::CollectivePermute => Cost::Permute,
        CollectiveKind::Send => return None,
    })
}

/// Bytes of all tensors of a bucket: of the member with most of them.
fn bytes(collective: &Collective) -> f64 {
    let of_member = |member: usize| -> usize {
        collective.transfers.iter().map(|transfer| transfer.full_bytes(member)).sum()
    };
    (0..collective.members.len()).map(of_member).max().unwrap_or(0) as f64
}

/// The boxes of a send: from which rank, to which rank, bytes.
fn messages(collective: &Collective) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
    collective.transfers.iter().flat_map(move |transfer| {
        let boxes = match &transfer.exchange {
            CollectiveOp::Send { boxes } => &boxes[..],
            _ => &[],
        };
        let element = transfer.inputs[0].dtype.size_bytes();
        boxes.iter().map(move |moved| {
            let bytes = moved.extents.iter().product::<usize>() * element;
            (collective.members[moved.source], collective.members[moved.target], bytes)
        })
    })
}
