//! Orders a step: nodes in graph order, collectives where they overlap best with compute.
//!
//! The pass is a topological sort that always takes the ready unit with the smallest key. The key
//! of a plain node is its position in the graph, so nodes move only when they must wait for a
//! bucket. Update nodes, and sums of gradients that were reduced, run as early as possible, while
//! gradients are in cache and so that few gradients are held. With [`LowerOptions::guard`] no
//! update replaces a parameter or optimizer state before the loss and the gradient norm, which
//! validate the step, are known. The keys of
//! starts and waits give their best time; dependencies ensure that it is legal.

mod keys;
mod units;

use crate::LowerOptions;
use crate::outside::Outside;
use crate::passes::bucket::{Bucket, BucketClass};
use crate::passes::timing::{Places, Timing};
use keys::{At, Key, keys};
use partita_ir::{Graph, NodeId, Traits, ValueId};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
pub(crate) use units::Units;

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

/// A stage with the buckets that connect it to others, and what its caller touches.
pub(crate) struct Stage<'a> {
    /// The graph of any class, since all have one structure.
    pub graph: &'a Graph,
    pub buckets: &'a [Bucket],
    /// The gathers that became views.
    pub kept: &'a [NodeId],
    pub options: &'a LowerOptions,
    pub timing: Option<&'a Timing>,
    pub outside: &'a Outside,
    pub places: Places,
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
    let places = Places::of(graph, timing);
    let stage = Stage { graph, buckets, kept, options, timing, outside, places };
    let mut units = Units::of(&stage);
    units.read_after_writes();
    units.transfer_in_order();
    units.replace_after_reads();
    units.replace_after_checks();
    units.receive_after_sends();
    let (mut keys, led) = keys(&stage);
    for (bucket, leader) in led {
        units.follow(units.start(leader), units.start(bucket));
    }
    if outside.pauses > 0 {
        keys.push((stage.places.behind_forward(timing), At::Pause));
        units.order_around_pause();
    }
    Sort::of(units, keys).items()
}

/// A topological sort that always takes the ready unit with the smallest key.
struct Sort<'a> {
    units: Units<'a>,
    keys: Vec<Key>,
    /// The units whose leaders are all done.
    ready: BinaryHeap<Reverse<(Key, usize)>>,
    done: Vec<bool>,
    /// The reductions in progress: of gradients, and of what was reduced before.
    in_flight: [Option<usize>; 2],
    items: Vec<Item>,
}

impl<'a> Sort<'a> {
    fn of(units: Units<'a>, keys: Vec<Key>) -> Sort<'a> {
        let unit_count = units.missing.len();
        let mut ready = BinaryHeap::new();
        for unit in (0..unit_count).filter(|&unit| units.is_unit(unit) && units.missing[unit] == 0) {
            ready.push(Reverse((keys[unit], unit)));
        }
        Sort { units, keys, ready, done: vec![false; unit_count], in_flight: [None; 2], items: Vec::new() }
    }

    fn items(mut self) -> Vec<Item> {
        while let Some(Reverse((_, unit))) = self.ready.pop() {
            if self.done[unit] {
                continue;
            }
            match self.units.item(unit) {
                Item::Node(id) => {
                    if !is_free(self.units.stage.graph, id) {
                        self.items.push(Item::Node(id));
                    }
                }
                Item::Start(bucket) => self.start(bucket),
                Item::Pause => self.items.push(Item::Pause),
                Item::Wait(bucket) => self.wait(bucket),
            }
            self.finish(unit);
        }
        let Sort { units, done, .. } = &self;
        debug_assert!(
            (0..done.len()).all(|unit| done[unit] || !units.is_unit(unit)),
            "buckets make no cycle"
        );
        self.items
    }

    fn start(&mut self, bucket: usize) {
        let Bucket { class, is_again, .. } = self.units.stage.buckets[bucket];
        // Only one gradient reduction is in progress at a time: the full gradients are freed at
        // its wait.
        if class == BucketClass::GradientReduction
            && let Some(earlier) = self.in_flight[usize::from(is_again)].replace(bucket)
        {
            self.items.push(Item::Wait(earlier));
            self.finish(self.units.wait(earlier));
        }
        self.items.push(Item::Start(bucket));
    }

    fn wait(&mut self, bucket: usize) {
        let own = &mut self.in_flight[usize::from(self.units.stage.buckets[bucket].is_again)];
        own.take_if(|other| *other == bucket);
        self.items.push(Item::Wait(bucket));
    }

    /// Its followers no longer wait for this unit.
    fn finish(&mut self, unit: usize) {
        self.done[unit] = true;
        for &follower in &self.units.followers[unit] {
            self.units.missing[follower] -= 1;
            if self.units.missing[follower] == 0 {
                self.ready.push(Reverse((self.keys[follower], follower)));
            }
        }
    }
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
