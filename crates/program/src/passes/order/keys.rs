//! The preferred times of the units of an order.

use crate::LowerOptions;
use crate::passes::bucket::{Bucket, BucketClass, follows_reductions};
use crate::passes::keep_gathered::readers;
use crate::passes::order::{Stage, is_free};
use crate::passes::timing::Places;
use partita_ir::{Graph, NodeId, Operation, Phase};
use partita_pipeline::block_of;
use std::collections::BTreeMap;

/// The preferred time of a unit: a position in the order of nodes, and the event at that node.
pub(super) type Key = (isize, At);

/// The events at a node's position, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum At {
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

/// The preferred times of the units of a stage.
struct Times<'a> {
    stage: &'a Stage<'a>,
    /// The nodes that follow from reduced gradients, which no op of the backward pass waits for.
    reduced: Vec<bool>,
    bucket_of: Vec<Option<usize>>,
    /// The place of the first node that needs each value, looking through views.
    first_use: Vec<isize>,
    nodes: Vec<Key>,
    starts: Vec<Key>,
    waits: Vec<Key>,
}

/// The preferred time of each unit but the pause, and the buckets that start right behind another one.
pub(super) fn keys(stage: &Stage) -> (Vec<Key>, Vec<(usize, usize)>) {
    let Stage { graph, buckets, options, .. } = *stage;
    let mut times = Times::of(stage);
    let begins = times.begins();
    times.starts = buckets.iter().map(|bucket| times.start(bucket, &begins)).collect();

    let led = led(graph, buckets, &begins, (&times.starts, &times.waits));
    for &(bucket, leader) in &led {
        times.starts[bucket] = (times.starts[leader].0, At::Receive);
    }
    if !options.split_backward {
        times.postpone(&begins);
    }
    times.start_gathers();
    let Times { mut nodes, starts, waits, .. } = times;
    nodes.extend(starts);
    nodes.extend(waits);
    (nodes, led)
}

impl<'a> Times<'a> {
    /// When nodes run and waits end: no earlier than they must, and no later.
    fn of(stage: &'a Stage<'a>) -> Times<'a> {
        let mut bucket_of = vec![None; stage.graph.nodes.len()];
        for (number, bucket) in stage.buckets.iter().enumerate() {
            bucket.nodes.iter().for_each(|node| bucket_of[node.index()] = Some(number));
        }
        let reduced = reduced(stage);
        let first_use = first_uses(stage, &reduced);
        let (nodes, starts, waits) = (Vec::new(), Vec::new(), Vec::new());
        let mut times = Times { stage, reduced, bucket_of, first_use, nodes, starts, waits };
        times.waits = stage.buckets.iter().map(|bucket| times.wait(bucket)).collect();
        for id in stage.graph.node_ids() {
            times.nodes.push(times.node(id));
        }
        times
    }

    /// A bucket ends just before its first reader, one that is sent when the other stage has taken it.
    fn wait(&self, bucket: &Bucket) -> Key {
        let Stage { graph, timing, ref places, .. } = *self.stage;
        match bucket.edge {
            Some((edge, _)) if bucket.class == BucketClass::Sent => {
                (places.begin_of(timing.and_then(|timing| timing.release(edge))), At::Release)
            }
            _ => {
                let results = bucket.results(graph).into_iter();
                let first = results.map(|r| self.first_use[r.index()]).min();
                (first.unwrap_or(graph.nodes.len() as isize), At::Wait)
            }
        }
    }

    /// When a node runs, from the times of the nodes before it.
    fn node(&self, id: NodeId) -> Key {
        let Stage { graph, ref places, .. } = *self.stage;
        let definitions = graph.node(id).operands.iter().filter_map(|o| graph.value(*o).definition);
        match self.bucket_of[id.index()] {
            Some(bucket) => self.waits[bucket],
            // As early as possible.
            None if is_free(graph, id) => {
                definitions.map(|(node, _)| self.nodes[node.index()]).max().unwrap_or((-1, At::Wait))
            }
            None if graph.node(id).phase == Phase::Update || self.reduced[id.index()] => (-1, At::Node),
            None => (places.of_node[id.index()], At::Node),
        }
    }

    /// Where the work of a block in a part of the step begins for a microbatch.
    fn begins(&self) -> Begins<'a> {
        let Stage { graph, options, ref places, .. } = *self.stage;
        let mut begins: Begins = BTreeMap::new();
        for id in graph.node_ids().filter(|id| self.bucket_of[id.index()].is_none() && !is_free(graph, *id)) {
            let node = graph.node(id);
            let key = (options.part(node.phase), node.microbatch, block_of(&node.path));
            let begin = begins.entry(key).or_insert(graph.nodes.len() as isize);
            *begin = (*begin).min(places.of_node[id.index()]);
        }
        begins
    }

    /// A collective starts as soon as its last operand is ready. One of the backward pass starts no earlier than the
    /// backward pass of its block: what it gathers of activations takes memory from its start on.
    fn start(&self, bucket: &Bucket, begins: &Begins) -> Key {
        let Stage { graph, buckets, options, ref places, .. } = *self.stage;
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
            let own = self.bucket_of[node.index()].map(|bucket| buckets[bucket].class);
            self.reduced[node.index()] || own == Some(BucketClass::GradientReduction)
        };
        let definitions = definitions.filter(|&(node, _)| !is_reduced(node));
        let (place, _) =
            definitions.map(|(node, _)| self.nodes[node.index()]).max().unwrap_or((-1, At::Wait));
        let is_late = bucket.phase.is_backward() && bucket.class == BucketClass::Activation;
        let begin = begins.get(&(bucket.phase, bucket.microbatch, bucket.block.as_str()));
        // What the update exchanges starts before more is updated: new parameters are gathered while those of the next
        // block are computed, and no stage waits for another one's part of a norm.
        let at = if bucket.phase == Phase::Update { At::Prefetch } else { At::Start };
        (begin.filter(|_| is_late).map_or(place, |begin| place.max(*begin)), at)
    }

    /// Moves exchanges for weight gradients, and their readers, behind the start of a later exchange.
    fn postpone(&mut self, begins: &Begins) {
        let Stage { graph, buckets, options, .. } = *self.stage;
        for (bucket, readers, place) in
            postponed(graph, buckets, options, (&self.starts, &self.waits), begins)
        {
            self.waits[bucket] = (place, At::Behind);
            let nodes = buckets[bucket].nodes.iter().chain(&readers);
            nodes.for_each(|node| self.nodes[node.index()] = self.waits[bucket]);
        }
    }

    /// Parameter gathers start during the previous block, or just before use.
    fn start_gathers(&mut self) {
        let Stage { graph, buckets, kept, options, ref places, .. } = *self.stage;
        let stretches = Stretches::of(graph, buckets, &self.starts, places);
        let mut gathers: Vec<usize> =
            (0..buckets.len()).filter(|&b| buckets[b].class == BucketClass::ParameterGather).collect();
        gathers.sort_by_key(|&bucket| (self.waits[bucket], bucket));
        let set = |bucket: usize| -> (Phase, Option<usize>, &str) {
            let Bucket { phase, microbatch, block, .. } = &buckets[bucket];
            (*phase, *microbatch, block)
        };
        // What was kept is read as if it had been gathered again.
        let read = |id: &NodeId| self.first_use[graph.node(*id).results[0].index()];
        let mut kept: Vec<isize> = kept.iter().map(read).collect();
        kept.sort_unstable();
        let mut previous: isize = -1;
        for blocks in gathers.chunk_by(|&a, &b| set(a) == set(b)) {
            let wait = self.waits[blocks[0]].0;
            let begin = kept[..kept.partition_point(|&place| place < wait)].last().copied();
            let ahead = stretches.longest(previous.max(begin.unwrap_or(previous)), wait);
            for &bucket in blocks {
                let start =
                    if options.prefetch { (ahead, At::Prefetch) } else { (self.waits[bucket].0, At::Wait) };
                self.starts[bucket] = start;
                self.bring_forward(&buckets[bucket].nodes, start);
            }
            previous = wait;
        }
    }

    /// Nodes between a parameter and its gather, such as a conversion, run no later than the gather starts.
    fn bring_forward(&mut self, gather: &[NodeId], start: Key) {
        let graph = self.stage.graph;
        let mut stack: Vec<NodeId> = gather.to_vec();
        while let Some(id) = stack.pop() {
            for operand in &graph.node(id).operands {
                if let Some((definition, _)) = graph.value(*operand).definition {
                    self.nodes[definition.index()] = self.nodes[definition.index()].min(start);
                    stack.push(definition);
                }
            }
        }
    }
}

/// The nodes that follow from reduced gradients.
fn reduced(stage: &Stage) -> Vec<bool> {
    let mut is_reduction = vec![false; stage.graph.nodes.len()];
    for bucket in stage.buckets.iter().filter(|bucket| bucket.class == BucketClass::GradientReduction) {
        bucket.nodes.iter().for_each(|node| is_reduction[node.index()] = true);
    }
    follows_reductions(stage.graph, &is_reduction)
}

/// For each value, the place of the first node that needs it, looking through views.
fn first_uses(stage: &Stage, reduced: &[bool]) -> Vec<isize> {
    let Stage { graph, buckets, timing, outside, ref places, .. } = *stage;
    let end = graph.nodes.len() as isize;
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
    first_use
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
