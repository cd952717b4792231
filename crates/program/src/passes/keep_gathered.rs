//! Keeps a gathered parameter from the forward to the backward pass where one follows the other at once. Elsewhere a copy is
//! dropped after the forward pass and gathered again: to hold it would take the memory that sharding saves. An LM head runs
//! its backward pass right after the loss, so its weight is held, and gathered once.

use crate::passes::bucket::{Bucket, BucketClass};
use crate::passes::timing::{Places, Timing};
use partita_ir::ops::Reshape;
use partita_ir::{Graph, NodeId, ValueId};
use std::collections::BTreeMap;

/// Replaces gathers of the backward pass by views of what the forward pass of the same microbatch gathered, if nothing that
/// is read between the two was gathered from another parameter. Returns the nodes that became views. The graphs keep one
/// structure.
pub(crate) fn keep_gathered(
    graphs: &mut [Graph],
    buckets: &mut Vec<Bucket>,
    timing: Option<&Timing>,
) -> Vec<NodeId> {
    let gathers: Vec<NodeId> = buckets
        .iter()
        .filter(|bucket| bucket.class == BucketClass::ParameterGather)
        .flat_map(|bucket| bucket.nodes.iter().copied())
        .collect();
    let first = &graphs[0];
    let (backward, forward): (Vec<NodeId>, Vec<NodeId>) =
        gathers.iter().partition(|&&id| first.node(id).phase.is_backward());
    if backward.is_empty() || forward.is_empty() {
        return Vec::new();
    }
    let (uses, places) = (first.uses(), Places::of(first, timing));
    let places_of = |id: NodeId| -> Vec<isize> {
        let readers = readers(first, &uses, first.node(id).results[0]);
        readers.into_iter().map(|reader| places.of_node[reader.index()]).collect()
    };
    let mut reads: Vec<(isize, NodeId)> =
        gathers.iter().flat_map(|&id| places_of(id).into_iter().map(move |place| (place, id))).collect();
    reads.sort_unstable();
    let mut earlier: BTreeMap<(ValueId, Option<usize>), Vec<NodeId>> = BTreeMap::new();
    for &id in &forward {
        let node = first.node(id);
        earlier.entry((node.operands[0], node.microbatch)).or_default().push(id);
    }
    let follows_at_once = |kept: NodeId, again: NodeId| {
        let (last, next) = (places_of(kept).into_iter().max(), places_of(again).into_iter().min());
        let (Some(last), Some(next)) = (last, next) else { return false };
        let at = |place: isize| reads.partition_point(|&(other, _)| other < place);
        let between = reads.get(at(last + 1)..at(next)).unwrap_or_default();
        between.iter().all(|&(_, id)| id == kept || id == again)
    };
    let alike = |kept: NodeId, again: NodeId| graphs.iter().all(|g| g.node(kept).op == g.node(again).op);
    let pair = |&again: &NodeId| {
        let node = first.node(again);
        let known = earlier.get(&(node.operands[0], node.microbatch))?;
        let kept = known.iter().find(|&&kept| alike(kept, again) && follows_at_once(kept, again))?;
        Some((again, *kept))
    };
    let pairs: BTreeMap<NodeId, NodeId> = backward.iter().filter_map(pair).collect();
    for graph in graphs.iter_mut() {
        for (&again, &kept) in &pairs {
            let kept = graph.node(kept).results[0];
            let shape = graph.ty(kept).shape.clone();
            let node = &mut graph.nodes[again.index()];
            (node.op, node.operands) = (Reshape { shape }.into(), vec![kept]);
        }
    }
    buckets.iter_mut().for_each(|bucket| bucket.nodes.retain(|node| !pairs.contains_key(node)));
    buckets.retain(|bucket| !bucket.nodes.is_empty() || bucket.edge.is_some());
    pairs.into_keys().collect()
}

/// The nodes that read a value, looking through views.
pub(crate) fn readers(graph: &Graph, uses: &[Vec<(NodeId, usize)>], value: ValueId) -> Vec<NodeId> {
    let (mut readers, mut values) = (Vec::new(), vec![value]);
    while let Some(value) = values.pop() {
        for &(id, _) in &uses[value.index()] {
            let node = graph.node(id);
            match graph.traits(node).is_view() {
                true => values.extend(&node.results),
                false => readers.push(id),
            }
        }
    }
    readers
}
