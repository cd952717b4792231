//! Orders a step: nodes in graph order, collectives where they overlap best with compute.
//!
//! The pass is a topological sort that always takes the ready unit with the smallest key. The key
//! of a plain node is its position in the graph, so nodes move only when they must wait for a
//! bucket. Update nodes, and sums of gradients that were reduced, run as early as possible, while
//! gradients are in cache and so that few gradients are held. With [`LowerOptions::guard`] no
//! update replaces a parameter or optimizer state before the loss and the gradient norm, which
//! validate the step, are known. The keys of
//! starts and waits give their best time; dependencies ensure that it is legal.

use crate::LowerOptions;
use crate::outside::Outside;
use crate::passes::bucket::{Bucket, BucketClass, follows_reductions};
use crate::passes::keep_gathered::readers;
use crate::passes::pause::Ends;
use crate::passes::timing::{Places, Timing};
use partita_ir::{Graph, NodeId, Operation, Phase, Traits, ValueId};
use partita_pipeline::block_of;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// One entry of the order. Constants, iotas and views are no entries; their readers emit them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    /// Compute this node.
    Node(NodeId),
    /// Start this bucket.
    Start(usize),
    /// Wait for this bucket.
    Wait(usize),
    /// The caller reads and writes ports.
    Pause,
}

/// The preferred time of a unit: a position in the order of nodes, and the event at that node.
type Key = (isize, At);

/// The events at a node's position, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum At {
    /// The caller acts, before anything else at this position.
    Pause,
    /// A value from another stage may arrive from here on.
    Receive,
    /// A value sent to another stage has been received.
    Release,
    /// A collective whose result the node reads must end.
    Wait,
    /// The parameters of a later block are gathered.
    Prefetch,
    /// The node itself runs.
    Node,
    /// A collective of the node's result starts.
    Start,
    /// Work that nothing waits for runs while that collective is on its way.
    Behind,
}

/// Whether the node is no entry of the order.
pub(crate) fn is_free(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.traits(graph.node(id)), Traits::View(_) | Traits::Constant(_) | Traits::Iota { .. })
}

/// Orders a graph with its buckets. `graph` is that of any class, since all have one structure.
/// With a timetable, the nodes of a task come after those of the tasks before it. `kept` are the gathers that became views.
pub(crate) fn order(
    graph: &Graph,
    buckets: &[Bucket],
    kept: &[NodeId],
    options: &LowerOptions,
    timing: Option<&Timing>,
    outside: &Outside,
) -> Vec<Item> {
    let node_count = graph.nodes.len();
    let start = |bucket: usize| node_count + bucket;
    let wait = |bucket: usize| node_count + buckets.len() + bucket;
    let pause = wait(buckets.len());
    let unit_count = pause + outside.pauses;

    // Units: nodes that are not collectives, starts, waits, the pause.
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
    // The new value of a parameter is written after all reads of the old one, unless the caller reads it at the pause.
    let uses = graph.uses();
    let begins = |unit: usize| if unit < node_count { unit } else { unit - buckets.len() };
    for &(input, output) in &graph.aliases {
        let Some((writer, _)) = graph.value(graph.outputs[output]).definition else { continue };
        if graph.node(writer).phase != Phase::Update || outside.is_read_at_pause(output) {
            continue;
        }
        for reader in readers_before_update(graph, &uses, graph.inputs[input]) {
            followers[begins(unit_of[reader.index()])].push(begins(unit_of[writer.index()]));
            missing[begins(unit_of[writer.index()])] += 1;
        }
    }
    // New parameters and states are written after the numbers that validate the step.
    let checked: Vec<usize> = checked_outputs(graph, options).filter_map(source).collect();
    let precedes = predecessors(&followers, &checked);
    for &(_, output) in graph.aliases.iter().filter(|&&(_, output)| !outside.is_read_at_pause(output)) {
        let Some(writer) = maker(graph, graph.outputs[output]) else { continue };
        let writer = begins(unit_of[writer.index()]);
        if !precedes[writer] {
            checked.iter().for_each(|&unit| followers[unit].push(writer));
            missing[writer] += checked.len();
        }
    }

    let places = Places::of(graph, timing);
    // What the update receives may depend on all that this stage sends before: it waits after that.
    for (number, place) in late_receives(graph, buckets, &places) {
        for (other, bucket) in buckets.iter().enumerate() {
            let sent = bucket.edge.filter(|_| bucket.class == BucketClass::Sent);
            let maker = sent.and_then(|(_, value)| maker(graph, value));
            if maker.is_some_and(|maker| places.of_node[maker.index()] < place) {
                followers[start(other)].push(wait(number));
                missing[wait(number)] += 1;
            }
        }
    }

    let reduces = |bucket: usize| buckets[bucket].class == BucketClass::GradientReduction;
    let mut is_reduction = vec![false; node_count];
    for bucket in (0..buckets.len()).filter(|&bucket| reduces(bucket)) {
        buckets[bucket].nodes.iter().for_each(|node| is_reduction[node.index()] = true);
    }
    let reduced = follows_reductions(graph, &is_reduction);
    let (mut key, led) = keys(graph, buckets, kept, options, timing, &places, &reduced, outside);
    for (bucket, leader) in led {
        followers[start(leader)].push(start(bucket));
        missing[start(bucket)] += 1;
    }
    if outside.pauses > 0 {
        key.push((places.behind_forward(timing), At::Pause));
        let ends = Ends { graph, buckets, places: &places, timing, outside };
        let (before, after) = ends.around_pause(&unit_of, &source, (&start, &wait));
        for unit in before {
            followers[unit].push(pause);
            missing[pause] += 1;
        }
        // What the caller reads is computed before, even if its part of the step comes later.
        let precedes = predecessors(&followers, &[pause]);
        for unit in after.into_iter().filter(|&unit| !precedes[unit]) {
            followers[pause].push(unit);
            missing[unit] += 1;
        }
    }
    let mut ready: BinaryHeap<Reverse<(Key, usize)>> = BinaryHeap::new();
    let is_unit = |unit: usize| unit >= node_count || unit_of[unit] == unit;
    for unit in (0..unit_count).filter(|&unit| is_unit(unit) && missing[unit] == 0) {
        ready.push(Reverse((key[unit], unit)));
    }
    let mut items = Vec::new();
    let mut done = vec![false; unit_count];
    // Of gradients, and of what was reduced before.
    let mut in_flight: [Option<usize>; 2] = [None; 2];
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
            // Only one gradient reduction is in progress at a time: the full gradients are freed at
            // its wait.
            if reduces(bucket)
                && let Some(earlier) = in_flight[usize::from(buckets[bucket].is_again)].replace(bucket)
            {
                items.push(Item::Wait(earlier));
                finish(wait(earlier), &mut ready);
            }
            items.push(Item::Start(bucket));
        } else if unit == pause {
            items.push(Item::Pause);
        } else {
            let bucket = unit - wait(0);
            let own = &mut in_flight[usize::from(buckets[bucket].is_again)];
            own.take_if(|other| *other == bucket);
            items.push(Item::Wait(bucket));
        }
        finish(unit, &mut ready);
    }
    debug_assert!((0..unit_count).all(|unit| done[unit] || !is_unit(unit)), "buckets make no cycle");
    items
}

/// The numbers that validate a step before it replaces parameters and states: float scalar outputs,
/// such as the loss and the gradient norm, that replace no input. Empty without
/// [`LowerOptions::guard`].
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

/// The node that computes a value, looking through views; `None` for an input.
pub(crate) fn maker(graph: &Graph, mut value: ValueId) -> Option<NodeId> {
    loop {
        let (id, _) = graph.value(value).definition?;
        if !graph.traits(graph.node(id)).is_view() {
            return Some(id);
        }
        value = *graph.node(id).operands.first()?;
    }
}

/// These units and all units that must come before one of them.
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

/// The nodes that read a value, looking through views, in the forward and backward pass, and thus
/// before any update.
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

/// The buckets of values that arrive from other stages for the update alone, with the place of the
/// first node that reads each.
fn late_receives(graph: &Graph, buckets: &[Bucket], places: &Places) -> Vec<(usize, isize)> {
    let mut first: BTreeMap<ValueId, (isize, Phase)> = BTreeMap::new();
    for (node, &place) in graph.nodes.iter().zip(&places.of_node) {
        for &operand in &node.operands {
            let known = first.entry(operand).or_insert((place, node.phase));
            *known = (*known).min((place, node.phase));
        }
    }
    let late = |(number, bucket): (usize, &Bucket)| {
        let (_, value) = bucket.edge.filter(|_| bucket.class == BucketClass::Received)?;
        first.get(&value).filter(|(_, phase)| *phase == Phase::Update).map(|&(place, _)| (number, place))
    };
    buckets.iter().enumerate().filter_map(late).collect()
}

/// The work between the collectives that ops wait for. A rank has one queue of collectives, so one that starts behind a
/// gather of parameters waits for it: the gather hides behind the work before that.
struct Stretches {
    /// Where such collectives start, ascending.
    exchanges: Vec<isize>,
    /// Floating-point operations of the nodes before each place; empty without such collectives.
    flops: Vec<f64>,
}

impl Stretches {
    fn of(graph: &Graph, buckets: &[Bucket], starts: &[Key], places: &Places) -> Stretches {
        let is_awaited = |bucket: &Bucket| {
            bucket.class == BucketClass::Activation && bucket.meetings.iter().any(|members| members.len() > 1)
        };
        let own = buckets.iter().zip(starts).filter(|(bucket, _)| is_awaited(bucket));
        let mut exchanges: Vec<isize> = own.map(|(_, start)| start.0).collect();
        let gathers = buckets.iter().any(|bucket| bucket.class == BucketClass::ParameterGather);
        if exchanges.is_empty() || !gathers {
            return Stretches { exchanges: Vec::new(), flops: Vec::new() };
        }
        exchanges.sort_unstable();
        let mut flops = vec![0.0; graph.nodes.len() + 1];
        for (node, &place) in graph.nodes.iter().zip(&places.of_node) {
            let cost = node.op.cost(&graph.operand_types(node), &graph.result_types(node));
            flops[place as usize + 1] = cost.flops;
        }
        for place in 1..flops.len() {
            flops[place] += flops[place - 1];
        }
        Stretches { exchanges, flops }
    }

    /// Where the stretch with most work begins, between two places; the first one of equals.
    fn longest(&self, begin: isize, end: isize) -> isize {
        let inside = self.exchanges.partition_point(|&place| place < begin)
            ..self.exchanges.partition_point(|&place| place < end);
        let Some(exchanges) = self.exchanges.get(inside).filter(|own| !own.is_empty()) else { return begin };
        let ends = exchanges.iter().copied().chain([end]);
        let stretches = [begin].into_iter().chain(exchanges.iter().map(|place| place + 1)).zip(ends);
        let flops = |place: isize| self.flops[place.clamp(0, self.flops.len() as isize - 1) as usize];
        let mut longest = (begin, 0.0);
        for (begin, end) in stretches {
            let work = flops(end) - flops(begin);
            if work > longest.1 {
                longest = (begin, work);
            }
        }
        longest.0
    }
}

/// Where the work of a block begins in a part of the step, for a microbatch.
type Begins<'g> = BTreeMap<(Phase, Option<usize>, &'g str), isize>;

/// How many blocks further on weight gradients may be computed, with what they read held until then.
const BLOCKS_BEHIND: usize = 2;

/// Whether a bucket exchanges activations or their gradients between ranks in the backward pass.
fn is_exchange(bucket: &Bucket) -> bool {
    bucket.class == BucketClass::Activation
        && bucket.phase.is_backward()
        && bucket.meetings.iter().any(|members| members.len() > 1)
}

/// What weight gradients alone read, and what is there before the backward pass of its block, such as shards of the block's
/// input: such buckets, each with the first one of its block that input gradients wait for. It starts right behind that,
/// which it would delay before it; all work of the block hides it.
fn led(
    graph: &Graph,
    buckets: &[Bucket],
    begins: &Begins,
    (starts, waits): (&[Key], &[Key]),
) -> Vec<(usize, usize)> {
    let part = |bucket: &Bucket| (bucket.phase, bucket.microbatch, bucket.block.clone());
    let begin = |number: usize| {
        let Bucket { phase, microbatch, block, .. } = &buckets[number];
        begins.get(&(*phase, *microbatch, block.as_str())).copied()
    };
    let exchanges = || (0..buckets.len()).filter(|&number| is_exchange(&buckets[number]));
    let is_first = |number: &usize| begin(*number).is_some_and(|begin| starts[*number].0 <= begin);
    let mut leaders: BTreeMap<_, usize> = BTreeMap::new();
    for number in exchanges().filter(is_first).filter(|&number| !buckets[number].for_weights) {
        // What input gradients wait for follows from no weight gradient.
        if buckets[number].nodes.iter().all(|&id| graph.node(id).phase == Phase::InputGrad) {
            let first = leaders.entry(part(&buckets[number])).or_insert(number);
            if waits[number] < waits[*first] {
                *first = number;
            }
        }
    }
    let own = exchanges().filter(is_first).filter(|&number| buckets[number].for_weights);
    own.filter_map(|number| Some((number, *leaders.get(&part(&buckets[number]))?))).collect()
}

/// Of other exchanges that only weight gradients read: each such bucket with its readers, and the place of the next exchange
/// that input gradients wait for, behind whose start they run. The work before it hides their exchange, and they hide that
/// one.
fn postponed(
    graph: &Graph,
    buckets: &[Bucket],
    options: &LowerOptions,
    (starts, waits): (&[Key], &[Key]),
    begins: &Begins,
) -> Vec<(usize, Vec<NodeId>, isize)> {
    let uses = graph.uses();
    let stage = |bucket: &Bucket| bucket.nodes.first().map(|&id| graph.node(id).stage);
    let (mut own, mut awaited) = (Vec::new(), BTreeMap::<_, Vec<isize>>::new());
    for (number, bucket) in buckets.iter().enumerate().filter(|(_, bucket)| is_exchange(bucket)) {
        let (place, at) = starts[number];
        match bucket.for_weights {
            true if at == At::Start => own.push(number),
            true => {}
            false => awaited.entry((bucket.microbatch, stage(bucket))).or_default().push(place),
        }
    }
    awaited.values_mut().for_each(|places| places.sort_unstable());
    let next = |number: usize| {
        let (bucket, place) = (&buckets[number], waits[number].0);
        let results = bucket.results(graph).into_iter();
        let readers = results.flat_map(|result| readers(graph, &uses, result)).collect();
        let places = awaited.get(&(bucket.microbatch, stage(bucket)))?;
        let next = *places.get(places.partition_point(|&other| other <= place))?;
        let part = options.part(bucket.phase);
        let of_part = begins
            .iter()
            .filter(|((phase, microbatch, _), _)| (*phase, *microbatch) == (part, bucket.microbatch));
        let between = of_part.filter(|&(_, &begin)| place < begin && begin <= next).count();
        (between <= BLOCKS_BEHIND).then_some((number, readers, next))
    };
    own.into_iter().filter_map(next).collect()
}

/// The preferred time of each unit, and the buckets that start right behind another one.
fn keys(
    graph: &Graph,
    buckets: &[Bucket],
    kept: &[NodeId],
    options: &LowerOptions,
    timing: Option<&Timing>,
    places: &Places,
    reduced: &[bool],
    outside: &Outside,
) -> (Vec<Key>, Vec<(usize, usize)>) {
    let node_count = graph.nodes.len();
    let end = node_count as isize;
    // The first node that needs a value, looking through views.
    let mut first_use = vec![end; graph.values.len()];
    // What the caller reads at the pause is needed there.
    for (output, value) in graph.outputs.iter().enumerate() {
        if outside.is_read_at_pause(output) {
            first_use[value.index()] = places.behind_forward(timing);
        }
    }
    // A value for another stage is needed as soon as it can be computed.
    for bucket in buckets.iter().filter(|bucket| bucket.class == BucketClass::Sent) {
        for value in bucket.operands(graph) {
            if let Some((node, _)) = graph.value(value).definition {
                first_use[value.index()] = places.of_node[node.index()];
            }
        }
    }
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        let place = if graph.traits(node).is_view() || reduced[id.index()] {
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
    let mut waits: Vec<Key> = buckets
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
            None if graph.node(id).phase == Phase::Update || reduced[id.index()] => (-1, At::Node),
            None => (places.of_node[id.index()], At::Node),
        });
    }
    // Where the work of a block in a part of the step begins for a microbatch.
    let mut begins: Begins = BTreeMap::new();
    for id in graph.node_ids().filter(|id| bucket_of[id.index()].is_none() && !is_free(graph, *id)) {
        let node = graph.node(id);
        let key = (options.part(node.phase), node.microbatch, block_of(&node.path));
        let begin = begins.entry(key).or_insert(end);
        *begin = (*begin).min(places.of_node[id.index()]);
    }
    // A collective starts as soon as its last operand is ready. One of the backward pass starts no earlier than the backward
    // pass of its block: what it gathers of activations takes memory from its start on.
    let mut starts: Vec<Key> = buckets
        .iter()
        .map(|bucket| {
            if let (BucketClass::Received, Some((edge, _))) = (bucket.class, bucket.edge) {
                let task = places.reader(edge);
                // With prefetch, during the previous task.
                let task = task.map(|task| if options.prefetch { task.saturating_sub(1) } else { task });
                return (places.begin_of(task), At::Receive);
            }
            let operands = bucket.operands(graph).into_iter();
            let definitions = operands.filter_map(|o| graph.value(o).definition);
            // No op of the backward pass waits for a second reduction: it starts as soon as the first one has ended.
            let is_reduced = |node: NodeId| {
                let own = bucket_of[node.index()].map(|bucket| buckets[bucket].class);
                reduced[node.index()] || own == Some(BucketClass::GradientReduction)
            };
            let definitions = definitions.filter(|&(node, _)| !is_reduced(node));
            let (place, _) = definitions.map(|(node, _)| key[node.index()]).max().unwrap_or((-1, At::Wait));
            let is_late = bucket.phase.is_backward() && bucket.class == BucketClass::Activation;
            let begin = begins.get(&(bucket.phase, bucket.microbatch, bucket.block.as_str()));
            // What the update exchanges starts before more is updated: new parameters are gathered while those of the next
            // block are computed, and no stage waits for another one's part of a norm.
            let at = if bucket.phase == Phase::Update { At::Prefetch } else { At::Start };
            (begin.filter(|_| is_late).map_or(place, |begin| place.max(*begin)), at)
        })
        .collect();

    let led = led(graph, buckets, &begins, (&starts, &waits));
    for &(bucket, leader) in &led {
        starts[bucket] = (starts[leader].0, At::Receive);
    }
    let begins = (!options.split_backward).then_some(&begins);
    for (bucket, readers, place) in
        begins.map_or(Vec::new(), |begins| postponed(graph, buckets, options, (&starts, &waits), begins))
    {
        waits[bucket] = (place, At::Behind);
        buckets[bucket].nodes.iter().chain(&readers).for_each(|node| key[node.index()] = waits[bucket]);
    }

    // Parameter gathers start during the previous block, or just before use.
    let stretches = Stretches::of(graph, buckets, &starts, places);
    let mut gathers: Vec<usize> =
        (0..buckets.len()).filter(|&b| buckets[b].class == BucketClass::ParameterGather).collect();
    gathers.sort_by_key(|&bucket| (waits[bucket], bucket));
    let set = |bucket: usize| -> (Phase, Option<usize>, &str) {
        let Bucket { phase, microbatch, block, .. } = &buckets[bucket];
        (*phase, *microbatch, block)
    };
    // What was kept is read as if it had been gathered again.
    let read = |id: &NodeId| first_use[graph.node(*id).results[0].index()];
    let mut kept: Vec<isize> = kept.iter().map(read).collect();
    kept.sort_unstable();
    let mut previous: isize = -1;
    for blocks in gathers.chunk_by(|&a, &b| set(a) == set(b)) {
        let wait = waits[blocks[0]].0;
        let begin = kept[..kept.partition_point(|&place| place < wait)].last().copied();
        let ahead = stretches.longest(previous.max(begin.unwrap_or(previous)), wait);
        for &bucket in blocks {
            starts[bucket] =
                if options.prefetch { (ahead, At::Prefetch) } else { (waits[bucket].0, At::Wait) };
            // Nodes between the parameter and its gather, such as a conversion, move along.
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
        previous = wait;
    }
    key.extend(starts);
    key.extend(waits);
    (key, led)
}
