//! Who sends how much to whom in a step.

use indexmap::IndexMap;
use partita_base::format_bytes;
use partita_program::{Collective, CollectiveOp, ProgramSet, Transfer};
use partita_report::Body;
use partita_simulate::Simulation;

/// Ranks up to which the matrix has a row for each; beyond, it has one for each class.
const MOST_RANKS: usize = 32;

/// Bytes from each rank, or class of ranks, to each other one.
pub fn matrix(set: &ProgramSet, simulation: &Simulation) -> Body {
    let count = set.rank_count();
    let (names, group_of): (Vec<String>, Vec<usize>) = match count <= MOST_RANKS {
        true => ((0..count).map(|rank| format!("rank {rank}")).collect(), (0..count).collect()),
        false => {
            let name = |ranks: &[usize]| format!("ranks {}", super::ranks_name(ranks));
            (simulation.classes.iter().map(|class| name(&class.ranks)).collect(), simulation.class_of_ranks())
        }
    };
    let mut values = vec![vec![0.0; names.len()]; names.len()];
    for collective in &set.collectives {
        for (source, target, bytes) in
            collective.transfers.iter().flat_map(|transfer| moves(collective, transfer))
        {
            let (source, target) = (collective.members[source], collective.members[target]);
            values[group_of[source]][group_of[target]] += bytes;
        }
    }
    Body::Matrix { rows: names.clone(), columns: names, values, unit: "bytes from".to_string() }
}

/// (source, target, bytes) of a transfer, as member positions. Sends and permutes move what they say. Of the others, each
/// member sends to its neighbour on the ring of the members, as bandwidth-optimal algorithms do: of n members, all_gather
/// and reduce_scatter (n - 1) / n of the full tensor, all_reduce twice that. P. Patarasuk and X. Yuan, "Bandwidth optimal
/// all-reduce algorithms for clusters of workstations", 2009.
fn moves(collective: &Collective, transfer: &Transfer) -> Vec<(usize, usize, f64)> {
    let members = collective.members.len();
    let part = |member: usize| transfer.full_bytes(member) as f64 * (members - 1) as f64 / members as f64;
    let ring =
        |times: f64| (0..members).map(|from| (from, (from + 1) % members, times * part(from))).collect();
    match &transfer.exchange {
        _ if members < 2 => Vec::new(),
        CollectiveOp::AllReduce { .. } => ring(2.0),
        CollectiveOp::AllGather { .. } | CollectiveOp::ReduceScatter { .. } => ring(1.0),
        CollectiveOp::AllToAll { split_extents, .. } => {
            let all: usize = split_extents.iter().sum();
            let pairs = (0..members).flat_map(|from| (0..members).map(move |to| (from, to)));
            let bytes = |from: usize, to: usize| {
                transfer.inputs[from].bytes() as f64 * split_extents[to] as f64 / all.max(1) as f64
            };
            pairs.filter(|(from, to)| from != to).map(|(from, to)| (from, to, bytes(from, to))).collect()
        }
        CollectiveOp::CollectivePermute { pairs } => {
            let moved = pairs.iter().filter(|(from, to)| from != to);
            moved.map(|&(from, to)| (from, to, transfer.inputs[from].bytes() as f64)).collect()
        }
        CollectiveOp::CollectiveBroadcast { has_root: false } => Vec::new(),
        CollectiveOp::CollectiveBroadcast { has_root: true } => {
            (1..members).map(|to| (0, to, transfer.inputs[0].bytes() as f64)).collect()
        }
        CollectiveOp::Send { boxes } => boxes
            .iter()
            .filter(|moved| moved.source != moved.target)
            .map(|moved| {
                let bytes = moved.elements() * transfer.inputs[moved.source].dtype.size_bytes();
                (moved.source, moved.target, bytes as f64)
            })
            .collect(),
    }
}

/// The collectives of a step by kind, part of the step and number of members.
pub fn table(set: &ProgramSet) -> Body {
    let mut kinds: IndexMap<(String, &'static str, usize), (usize, usize, f64)> = IndexMap::new();
    for collective in set.collectives.iter().filter(|collective| collective.members.len() > 1) {
        let key = (collective.kind.name().to_string(), collective.phase.name(), collective.members.len());
        let (groups, tensors, bytes) = kinds.entry(key).or_default();
        *groups += 1;
        *tensors += collective.transfers.len();
        let moved = collective.transfers.iter().flat_map(|transfer| moves(collective, transfer));
        *bytes += moved.map(|(_, _, bytes)| bytes).sum::<f64>();
    }
    let header = ["collective", "phase", "ranks", "groups", "tensors", "moved"].map(String::from).to_vec();
    let row =
        |((kind, phase, ranks), (groups, tensors, bytes)): ((String, &str, usize), (usize, usize, f64))| {
            vec![
                kind,
                phase.to_string(),
                ranks.to_string(),
                groups.to_string(),
                tensors.to_string(),
                format_bytes(bytes as u64),
            ]
        };
    Body::Table { header, rows: kinds.into_iter().map(row).collect() }
}
