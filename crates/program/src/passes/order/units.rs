//! The units of the order, and which of them must come before which.

use crate::passes::bucket::{Bucket, BucketClass};
use crate::passes::order::{Item, Stage, checked_outputs, maker};
use crate::passes::timing::Places;
use partita_ir::{Graph, NodeId, Phase, ValueId};
use std::collections::BTreeMap;

/// Nodes that are not collectives, the start and the wait of each bucket, and the pause. They are numbered in this order.
pub(crate) struct Units<'a> {
    pub stage: &'a Stage<'a>,
    /// The unit that has computed each node: a collective's is the wait of its bucket.
    pub of_node: Vec<usize>,
    /// The waits for received values.
    received: BTreeMap<ValueId, usize>,
    /// For each unit, those that must come after it.
    pub followers: Vec<Vec<usize>>,
    /// For each unit, how many must still come before it.
    pub missing: Vec<usize>,
}

impl<'a> Units<'a> {
    /// The units of a stage, none of which has to follow another one yet.
    pub fn of(stage: &'a Stage<'a>) -> Units<'a> {
        let (of_node, received) = ((0..stage.graph.nodes.len()).collect(), BTreeMap::new());
        let mut units = Units { stage, of_node, received, followers: Vec::new(), missing: Vec::new() };
        for (number, bucket) in stage.buckets.iter().enumerate() {
            let wait = units.wait(number);
            bucket.nodes.iter().for_each(|node| units.of_node[node.index()] = wait);
            let value = bucket.edge.filter(|_| bucket.class == BucketClass::Received);
            units.received.extend(value.map(|(_, value)| (value, wait)));
        }
        let count = units.pause() + stage.outside.pauses;
        (units.followers, units.missing) = (vec![Vec::new(); count], vec![0; count]);
        units
    }

    /// The start of a bucket.
    pub fn start(&self, bucket: usize) -> usize {
        self.stage.graph.nodes.len() + bucket
    }

    /// The wait for a bucket.
    pub fn wait(&self, bucket: usize) -> usize {
        self.start(self.stage.buckets.len()) + bucket
    }

    fn pause(&self) -> usize {
        self.wait(self.stage.buckets.len())
    }

    /// Whether a number is that of a unit, not of a node that runs in a bucket.
    pub fn is_unit(&self, unit: usize) -> bool {
        unit >= self.stage.graph.nodes.len() || self.of_node[unit] == unit
    }

    /// What a unit does.
    pub fn item(&self, unit: usize) -> Item {
        if unit < self.start(0) {
            Item::Node(NodeId::new(unit))
        } else if unit < self.wait(0) {
            Item::Start(unit - self.start(0))
        } else if unit == self.pause() {
            Item::Pause
        } else {
            Item::Wait(unit - self.wait(0))
        }
    }

    /// The unit that makes a value; `None` for an input.
    pub fn source(&self, value: ValueId) -> Option<usize> {
        match self.stage.graph.value(value).definition {
            Some((definition, _)) => Some(self.of_node[definition.index()]),
            None => self.received.get(&value).copied(),
        }
    }

    /// The unit that reads the operands of a node: a collective's is the start of its bucket.
    fn reader(&self, id: NodeId) -> usize {
        let unit = self.of_node[id.index()];
        if unit < self.start(0) { unit } else { unit - self.stage.buckets.len() }
    }

    /// One unit must come after another one.
    pub fn follow(&mut self, leader: usize, follower: usize) {
        self.followers[leader].push(follower);
        self.missing[follower] += 1;
    }

    /// Operands are computed before they are read.
    pub fn read_after_writes(&mut self) {
        for id in self.stage.graph.node_ids() {
            let reader = self.reader(id);
            for operand in &self.stage.graph.node(id).operands {
                if let Some(unit) = self.source(*operand) {
                    self.follow(unit, reader);
                }
            }
        }
    }

    /// A bucket ends after it starts, and a value is sent when it is there.
    pub fn transfer_in_order(&mut self) {
        for (number, bucket) in self.stage.buckets.iter().enumerate() {
            self.follow(self.start(number), self.wait(number));
            if let Some(unit) = sent(bucket).and_then(|value| self.source(value)) {
                self.follow(unit, self.start(number));
            }
        }
    }

    /// The new value of a parameter is written after all reads of the old one, unless the caller reads it at the pause.
    pub fn replace_after_reads(&mut self) {
        let graph = self.stage.graph;
        let uses = graph.uses();
        for &(input, output) in &graph.aliases {
            let Some((writer, _)) = graph.value(graph.outputs[output]).definition else { continue };
            if graph.node(writer).phase != Phase::Update || self.stage.outside.is_read_at_pause(output) {
                continue;
            }
            for reader in readers_before_update(graph, &uses, graph.inputs[input]) {
                self.follow(self.reader(reader), self.reader(writer));
            }
        }
    }

    /// New parameters and states are written after the numbers that validate the step.
    pub fn replace_after_checks(&mut self) {
        let Stage { graph, options, outside, .. } = *self.stage;
        let checked: Vec<usize> =
            checked_outputs(graph, options).filter_map(|value| self.source(value)).collect();
        let precedes = predecessors(&self.followers, &checked);
        for &(_, output) in graph.aliases.iter().filter(|&&(_, output)| !outside.is_read_at_pause(output)) {
            let Some(writer) = maker(graph, graph.outputs[output]) else { continue };
            let writer = self.reader(writer);
            if !precedes[writer] {
                checked.iter().for_each(|&unit| self.follow(unit, writer));
            }
        }
    }

    /// What the update receives may depend on all that this stage sends before: it waits after that.
    pub fn receive_after_sends(&mut self) {
        let Stage { graph, buckets, ref places, .. } = *self.stage;
        for (number, place) in late_receives(graph, buckets, places) {
            for (other, bucket) in buckets.iter().enumerate() {
                let maker = sent(bucket).and_then(|value| maker(graph, value));
                if maker.is_some_and(|maker| places.of_node[maker.index()] < place) {
                    self.follow(self.start(other), self.wait(number));
                }
            }
        }
    }

    /// The forward pass comes before the pause, and what the caller's values lead to after it.
    pub fn order_around_pause(&mut self) {
        let pause = self.pause();
        let (before, after) = self.stage.around_pause(self);
        for unit in before {
            self.follow(unit, pause);
        }
        // What the caller reads is computed before, even if its part of the step comes later.
        let precedes = predecessors(&self.followers, &[pause]);
        for unit in after.into_iter().filter(|&unit| !precedes[unit]) {
            self.follow(pause, unit);
        }
    }
}

/// The value that a bucket sends to another stage.
fn sent(bucket: &Bucket) -> Option<ValueId> {
    bucket.edge.filter(|_| bucket.class == BucketClass::Sent).map(|(_, value)| value)
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
