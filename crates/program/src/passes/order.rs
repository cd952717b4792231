//! The order of a step: nodes in graph order, collectives where they overlap best.
//!
//! A topological sort that always takes the ready unit with the smallest key. Plain nodes have their place in
//! the graph as key, so they only move where a bucket makes them wait; those of the update run as soon as they can,
//! while gradients are in cache and so that few of them are held. With [`LowerOptions::guard`] none of them replaces a
//! parameter or a state before the loss and the gradient norm, which the step is checked by, are known. The keys of starts
//! and waits say when they should happen; dependencies make sure that they can.

use crate::LowerOptions;
use crate::passes::bucket::{Bucket, BucketClass};
use crate::passes::timing::{Places, Timing};
use partita_ir::{Graph, NodeId, Phase, Traits, ValueId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// One entry of the order. Constants, iotas and views do not appear: whoever reads them takes care of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    /// Compute this node.
    Node(NodeId),
    /// Start this bucket.
    Start(usize),
    /// Wait for this bucket.
    Wait(usize),
}

/// When a unit should happen: a place in the order of nodes, and what happens around the node there.
type Key = (isize, At);

/// What happens around the node at a place, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum At {
    /// A value from another stage may arrive from here on.
    Receive,
    /// What was sent to another stage has been taken.
    Release,
    /// A collective has to end, since the node reads it.
    Wait,
    /// Parameters of a later block are gathered.
    Prefetch,
    /// The node itself.
    Node,
    /// A collective of its result starts.
    Start,
}

/// Whether the node has no place of its own in the order.
pub(crate) fn is_free(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.traits(graph.node(id)), Traits::View(_) | Traits::Constant(_) | Traits::Iota { .. })
}

/// Orders a graph with its buckets. `graph` is any rank's: they have one structure. With a timetable, the nodes of a task
/// come after those of the tasks before it.
pub(crate) fn order(
    graph: &Graph,
    buckets: &[Bucket],
    options: &LowerOptions,
    timing: Option<&Timing>,
) -> Vec<Item> {
    let node_count = graph.nodes.len();
    let start = |bucket: usize| node_count + bucket;
    let wait = |bucket: usize| node_count + buckets.len() + bucket;
    let unit_count = wait(buckets.len());

    // Units: nodes that are not collectives, starts, waits.
    let mut unit_of: Vec<usize> = (0..node_count).collect();
    for (number, bucket) in buckets.iter().enumerate() {
        bucket.nodes.iter().for_each(|node| unit_of[node.index()] = wait(number));
    }
    let mut received: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (number, bucket) in buckets.iter().enumerate() {
        let values = bucket.edge.filter(|_| bucket.class == BucketClass::Received);
        received.extend(values.map(|(_, value)| (value, wait(number))));
    }
    let source = |value: ValueId| match graph.value(value).definition {
        Some((definition, _)) => Some(unit_of[definition.index()]),
        None => received.get(&value).copied(),
    };
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); unit_count];
    let mut missing = vec![0usize; unit_count];
    for id in graph.node_ids() {
        let unit = unit_of[id.index()];
        let reader = if unit == id.index() { unit } else { unit - buckets.len() };
        for operand in &graph.node(id).operands {
            if let Some(unit) = source(*operand) {
                followers[unit].push(reader);
                missing[reader] += 1;
            }
        }
    }
    for (number, bucket) in buckets.iter().enumerate() {
        followers[start(number)].push(wait(number));
        missing[wait(number)] += 1;
        let sent = bucket.edge.filter(|_| bucket.class == BucketClass::Sent);
        if let Some(unit) = sent.and_then(|(_, value)| source(value)) {
            followers[unit].push(start(number));
            missing[start(number)] += 1;
        }
    }
    // What replaces a parameter comes after all who need the old one.
    let uses = graph.uses();
    let begins = |unit: usize| if unit < node_count { unit } else { unit - buckets.len() };
    for &(input, output) in &graph.aliases {
        let Some((writer, _)) = graph.value(graph.outputs[output]).definition else { continue };
        if graph.node(writer).phase != Phase::Update {
            continue;
        }
        for reader in readers_before_update(graph, &uses, graph.inputs[input]) {
            followers[begins(unit_of[reader.index()])].push(begins(unit_of[writer.index()]));
            missing[begins(unit_of[writer.index()])] += 1;
        }
    }
    // What replaces a parameter or a state comes after the numbers that the step is checked by.
    let checked: Vec<usize> = checked_outputs(graph, options).filter_map(source).collect();
    let precedes = predecessors(&followers, &checked);
    for &(_, output) in &graph.aliases {
        let Some(writer) = maker(graph, graph.outputs[output]) else { continue };
        let writer = begins(unit_of[writer.index()]);
        if !precedes[writer] {
            checked.iter().for_each(|&unit| followers[unit].push(writer));
            missing[writer] += checked.len();
        }
    }

    let key = keys(graph, buckets, options, timing);
    let mut ready: BinaryHeap<Reverse<(Key, usize)>> = BinaryHeap::new();
    let is_unit = |unit: usize| unit >= node_count || unit_of[unit] == unit;
    for unit in (0..unit_count).filter(|&unit| is_unit(unit) && missing[unit] == 0) {
        ready.push(Reverse((key[unit], unit)));
    }
    let mut items = Vec::new();
    let mut done = vec![false; unit_count];
    let mut in_flight: Option<usize> = None;
    while let Some(Reverse((_, unit))) = ready.pop() {
        if done[unit] {
            continue;
        }
        let mut finish = |unit: usize, ready: &mut BinaryHeap<_>| {
            done[unit] = true;
            for &follower in &followers[unit] {
                missing[follower] -= 1;
                if missing[follower] == 0 {
                    ready.push(Reverse((key[follower], follower)));
                }
            }
        };
        if unit < node_count {
            if !is_free(graph, NodeId::new(unit)) {
                items.push(Item::Node(NodeId::new(unit)));
            }
        } else if unit < wait(0) {
            let bucket = unit - node_count;
            // One reduction of gradients under way at a time: the full gradients die at the wait.
            if buckets[bucket].class == BucketClass::GradientReduction
                && let Some(earlier) = in_flight.replace(bucket)
            {
                items.push(Item::Wait(earlier));
                finish(wait(earlier), &mut ready);
            }
            items.push(Item::Start(bucket));
        } else {
            let bucket = unit - wait(0);
            if in_flight == Some(bucket) {
                in_flight = None;
            }
            items.push(Item::Wait(bucket));
        }
        finish(unit, &mut ready);
    }
    debug_assert!((0..unit_count).all(|unit| done[unit] || !is_unit(unit)), "buckets make no cycle");
    items
}

/// The numbers that a step is checked by before it replaces parameters and states: float scalars among the outputs, such
/// as the loss and the norm of the gradients, that replace nothing themselves. None without [`LowerOptions::guard`].
pub(crate) fn checked_outputs<'g>(
    graph: &'g Graph,
    options: &LowerOptions,
) -> impl Iterator<Item = ValueId> + use<'g> {
    let guard = options.guard;
    let replaces = |position: usize| graph.aliases.iter().any(|&(_, output)| output == position);
    graph.outputs.iter().enumerate().filter_map(move |(position, &value)| {
        let ty = graph.ty(value);
        (guard && ty.rank() == 0 && ty.dtype.is_float() && !replaces(position)).then_some(value)
    })
}

/// The node that computes a value, seen through views; `None` for an input.
pub(crate) fn maker(graph: &Graph, mut value: ValueId) -> Option<NodeId> {
    loop {
        let (id, _) = graph.value(value).definition?;
        if !graph.traits(graph.node(id)).is_view() {
            return Some(id);
        }
        value = *graph.node(id).operands.first()?;
    }
}

/// The units that have to come before one of `units`, and these themselves.
fn predecessors(followers: &[Vec<usize>], units: &[usize]) -> Vec<bool> {
    let mut leaders: Vec<Vec<usize>> = vec![Vec::new(); followers.len()];
    for (unit, after) in followers.iter().enumerate() {
        after.iter().for_each(|&follower| leaders[follower].push(unit));
    }
    let mut found = vec![false; followers.len()];
    let mut open = units.to_vec();
    while let Some(unit) = open.pop() {
        if !std::mem::replace(&mut found[unit], true) {
            open.extend(&leaders[unit]);
        }
    }
    found
}

/// Who reads a value, seen through views, in the forward and backward pass: before any update.
fn readers_before_update(graph: &Graph, uses: &[Vec<(NodeId, usize)>], value: ValueId) -> Vec<NodeId> {
    let (mut readers, mut values) = (Vec::new(), vec![value]);
    while let Some(value) = values.pop() {
        for &(id, _) in &uses[value.index()] {
            let node = graph.node(id);
            if graph.traits(node).is_view() {
                values.extend(&node.results);
            } else if node.phase != Phase::Update {
                readers.push(id);
            }
        }
    }
    readers
}

/// When each unit should happen.
fn keys(graph: &Graph, buckets: &[Bucket], options: &LowerOptions, timing: Option<&Timing>) -> Vec<Key> {
    let node_count = graph.nodes.len();
    let end = node_count as isize;
    let places = Places::of(graph, timing);
    // The first node that needs a value, seen through views.
    let mut first_use = vec![end; graph.values.len()];
    // What other stages wait for is needed as soon as it can be there.
    for bucket in buckets.iter().filter(|bucket| bucket.class == BucketClass::Sent) {
        for value in bucket.operands(graph) {
            if let Some((node, _)) = graph.value(value).definition {
                first_use[value.index()] = places.of_node[node.index()];
            }
        }
    }
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        let place = if graph.traits(node).is_view() {
            node.results.iter().map(|r| first_use[r.index()]).min().unwrap_or(end)
        } else {
            places.of_node[id.index()]
        };
        node.operands.iter().for_each(|o| first_use[o.index()] = first_use[o.index()].min(place));
    }
    let bucket_use = |bucket: &Bucket| {
        let results = bucket.results(graph).into_iter();
        results.map(|r| first_use[r.index()]).min().unwrap_or(end)
    };
    let waits: Vec<Key> = buckets
        .iter()
        .map(|bucket| match bucket.edge {
            Some((edge, _)) if bucket.class == BucketClass::Sent => {
                (places.begin_of(timing.and_then(|timing| timing.release(edge))), At::Release)
            }
            _ => (bucket_use(bucket), At::Wait),
        })
        .collect();

    let mut key: Vec<Key> = Vec::with_capacity(node_count);
    let mut bucket_of = vec![None; node_count];
    for (number, bucket) in buckets.iter().enumerate() {
        bucket.nodes.iter().for_each(|node| bucket_of[node.index()] = Some(number));
    }
    for id in graph.node_ids() {
        let definitions = graph.node(id).operands.iter().filter_map(|o| graph.value(*o).definition);
        key.push(match bucket_of[id.index()] {
            Some(bucket) => waits[bucket],
            // As early as possible.
            None if is_free(graph, id) => {
                definitions.map(|(node, _)| key[node.index()]).max().unwrap_or((-1, At::Wait))
            }
            None if graph.node(id).phase == Phase::Update => (-1, At::Node),
            None => (places.of_node[id.index()], At::Node),
        });
    }
    // Starts as soon as the last operand is there.
    let mut starts: Vec<Key> = buckets
        .iter()
        .map(|bucket| {
            if let (BucketClass::Received, Some((edge, _))) = (bucket.class, bucket.edge) {
                let task = places.reader(edge);
                // With prefetch, while the task before runs.
                let task = task.map(|task| if options.prefetch { task.saturating_sub(1) } else { task });
                return (places.begin_of(task), At::Receive);
            }
            let operands = bucket.operands(graph).into_iter();
            let definitions = operands.filter_map(|o| graph.value(o).definition);
            let (place, _) = definitions.map(|(node, _)| key[node.index()]).max().unwrap_or((-1, At::Wait));
            (place, At::Start)
        })
        .collect();

    // Parameter gathers: with the first wait of the block before, or just before use.
    let mut gathers: Vec<usize> =
        (0..buckets.len()).filter(|&b| buckets[b].class == BucketClass::ParameterGather).collect();
    gathers.sort_by_key(|&bucket| (waits[bucket], bucket));
    let set = |bucket: usize| -> (Phase, Option<usize>, &str) {
        let Bucket { phase, microbatch, block, .. } = &buckets[bucket];
        (*phase, *microbatch, block)
    };
    let mut previous: Key = (-1, At::Wait);
    for blocks in gathers.chunk_by(|&a, &b| set(a) == set(b)) {
        for &bucket in blocks {
            starts[bucket] =
                if options.prefetch { (previous.0, At::Prefetch) } else { (waits[bucket].0, At::Wait) };
            // What stands between the parameter and its gather (a conversion) goes along.
            let mut stack: Vec<NodeId> = buckets[bucket].nodes.clone();
            while let Some(id) = stack.pop() {
                for operand in &graph.node(id).operands {
                    if let Some((definition, _)) = graph.value(*operand).definition {
                        key[definition.index()] = key[definition.index()].min(starts[bucket]);
                        stack.push(definition);
                    }
                }
            }
        }
        previous = waits[blocks[0]];
    }
    key.extend(starts);
    key.extend(waits);
    key
}
