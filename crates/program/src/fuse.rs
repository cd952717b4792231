//! Fusion: elementwise nodes of one shape that feed each other run as one region.
//!
//! Everything happens on the fixed order of items. A region runs at the place of one of its nodes; a node may
//! be delayed to a later place while nobody in between reads it, or hoisted to an earlier one where its operands
//! are there already. So regions never change what is computed, or the order of collectives.

use crate::LowerOptions;
use crate::bucket::{Bucket, phase_class};
use crate::classify::{Class, class};
use crate::order::Item;
use indexmap::{IndexMap, IndexSet};
use partita_ir::{Graph, NodeId, ValueId};

/// Most outputs of a fused region.
const FUSED_OUTPUTS: usize = 16;

/// One step of a program, the same on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Elementwise nodes of one iteration shape.
    Fused(Vec<NodeId>),
    /// One node.
    Single(NodeId),
    /// Start this bucket.
    Start(usize),
    /// Wait for this bucket.
    Wait(usize),
}

/// A reader of a value: its place in the order, and whether a view stands between.
type Reader = (usize, bool);

struct Fusion<'a> {
    graph: &'a Graph,
    options: &'a LowerOptions,
    items: &'a [Item],
    /// Place of the item that computes each node.
    place: Vec<Option<usize>>,
    /// Who reads each value.
    readers: Vec<Vec<Reader>>,
    /// Whether the value is an output, perhaps through views.
    is_output: Vec<bool>,
    /// Group of each place.
    group: Vec<usize>,
    /// Places of a group's nodes.
    members: Vec<Vec<usize>>,
    /// Where the group runs.
    runs_at: Vec<usize>,
}

/// Fuses what the order allows. An iteration shape is one on every rank.
pub(crate) fn fuse(
    graphs: &[Graph],
    buckets: &[Bucket],
    items: &[Item],
    options: &LowerOptions,
) -> Vec<Step> {
    let graph = &graphs[0];
    let mut fusion = Fusion::new(graph, buckets, items, options);
    let mut shapes: IndexSet<(Vec<&[usize]>, _, Option<usize>)> = IndexSet::new();
    let mut shape_of: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (place, item) in items.iter().enumerate() {
        let &Item::Node(id) = item else { continue };
        let node = graph.node(id);
        if class(graph, node) != Class::Elementwise {
            continue;
        }
        let shape = graphs.iter().map(|g| g.ty(g.node(id).results[0]).shape.as_slice()).collect();
        let shape = shapes.insert_full((shape, phase_class(node.phase), node.microbatch)).0;
        shape_of[id.index()] = Some(shape);
        let mut groups: IndexSet<usize> = IndexSet::new();
        for operand in &node.operands {
            if let Some((definition, _)) = graph.value(*operand).definition
                && shape_of[definition.index()] == Some(shape)
            {
                let at = fusion.place[definition.index()].expect("an elementwise node has a place");
                groups.insert(fusion.group[at]);
            }
        }
        fusion.join(place, groups.into_iter().collect());
    }
    fusion.steps()
}

impl<'a> Fusion<'a> {
    fn new(graph: &'a Graph, buckets: &[Bucket], items: &'a [Item], options: &'a LowerOptions) -> Self {
        let mut place = vec![None; graph.nodes.len()];
        let mut reads = vec![None; graph.nodes.len()];
        for (at, item) in items.iter().enumerate() {
            match *item {
                Item::Node(id) => (place[id.index()], reads[id.index()]) = (Some(at), Some(at)),
                Item::Start(b) => buckets[b].nodes.iter().for_each(|n| reads[n.index()] = Some(at)),
                Item::Wait(b) => buckets[b].nodes.iter().for_each(|n| place[n.index()] = Some(at)),
            }
        }
        let mut readers: Vec<Vec<Reader>> = vec![Vec::new(); graph.values.len()];
        let mut is_output = vec![false; graph.values.len()];
        graph.outputs.iter().for_each(|v| is_output[v.index()] = true);
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            for (number, operand) in node.operands.iter().enumerate() {
                match reads[id.index()] {
                    Some(at) => readers[operand.index()].push((at, false)),
                    // A view (or a constant, without operands): its readers are the operand's.
                    None => {
                        let result = node.results[number.min(node.results.len() - 1)].index();
                        let through: Vec<Reader> =
                            readers[result].iter().map(|&(at, _)| (at, true)).collect();
                        readers[operand.index()].extend(through);
                        is_output[operand.index()] |= is_output[result];
                    }
                }
            }
        }
        let count = items.len();
        Fusion {
            graph,
            options,
            items,
            place,
            readers,
            is_output,
            group: (0..count).collect(),
            members: (0..count).map(|at| vec![at]).collect(),
            runs_at: (0..count).collect(),
        }
    }

    fn node(&self, place: usize) -> NodeId {
        match self.items[place] {
            Item::Node(id) => id,
            other => unreachable!("{other:?} is not fused"),
        }
    }

    /// Joins the node at `place`, so far alone, with as many of the groups as order and limits allow.
    fn join(&mut self, place: usize, groups: Vec<usize>) {
        let mut chosen = groups.clone();
        while !chosen.is_empty() {
            let bad = chosen.iter().position(|&group| !self.can_delay(group, &chosen, place));
            if let Some(bad) = bad {
                chosen.remove(bad);
            } else if self.fits(&chosen, place) {
                self.merge(&chosen, place, place);
                return;
            } else {
                // The group joined least recently is the least likely to be in cache.
                chosen.remove(0);
            }
        }
        let mut latest = groups;
        latest.sort_by_key(|&group| std::cmp::Reverse(self.runs_at[group]));
        for group in latest {
            let is_good = self.can_hoist(place, group) && self.hands_on_no_more(group, place);
            if is_good && self.fits(&[group], place) {
                let at = self.runs_at[group];
                self.merge(&[group], place, at);
                return;
            }
        }
    }

    /// Whether nobody reads the group's values before `place`, but directly from within.
    fn can_delay(&self, group: usize, with: &[usize], place: usize) -> bool {
        let within = |at: usize| at == place || with.contains(&self.group[at]);
        let runs_at = |at: usize| if within(at) { place } else { self.runs_at[self.group[at]] };
        self.members[group]
            .iter()
            .flat_map(|&member| self.readers_at(member))
            .all(|&(at, through_view)| (within(at) && !through_view) || runs_at(at) > place)
    }

    /// Whether the node's operands are there when the group runs.
    fn can_hoist(&self, place: usize, group: usize) -> bool {
        let at = self.runs_at[group];
        self.graph.node(self.node(place)).operands.iter().all(|&operand| {
            let direct = self.graph.value(operand).definition.and_then(|(node, _)| self.place[node.index()]);
            if direct.is_some_and(|definition| self.group[definition] == group) {
                return true;
            }
            self.source(operand).is_none_or(|definition| self.runs_at[self.group[definition]] < at)
        })
    }

    /// The place that computes a value, seen through views.
    fn source(&self, value: ValueId) -> Option<usize> {
        let mut value = value;
        loop {
            let (node, number) = self.graph.value(value).definition?;
            if let Some(place) = self.place[node.index()] {
                return Some(place);
            }
            let operands = &self.graph.node(node).operands;
            value = *operands.get(number.min(operands.len().max(1) - 1))?;
        }
    }

    fn readers_at(&self, place: usize) -> impl Iterator<Item = &Reader> {
        self.graph.node(self.node(place)).results.iter().flat_map(|r| &self.readers[r.index()])
    }

    /// Whether the group has no more outputs with the node at `place` than without it: a result that is there early
    /// only fills memory until it is read.
    fn hands_on_no_more(&self, group: usize, place: usize) -> bool {
        let mut nodes: IndexSet<NodeId> = self.members[group].iter().map(|&at| self.node(at)).collect();
        let before = self.output_count(&nodes);
        nodes.insert(self.node(place));
        self.output_count(&nodes) <= before
    }

    fn output_count(&self, nodes: &IndexSet<NodeId>) -> usize {
        let results = nodes.iter().flat_map(|&id| &self.graph.node(id).results);
        results.filter(|result| self.escapes(**result, nodes)).count()
    }

    /// Whether the joined group keeps to the limits.
    fn fits(&self, groups: &[usize], place: usize) -> bool {
        let mut places: Vec<usize> = groups.iter().flat_map(|&g| &self.members[g]).copied().collect();
        places.push(place);
        if places.len() > self.options.fused_ops {
            return false;
        }
        let nodes: IndexSet<NodeId> = places.iter().map(|&at| self.node(at)).collect();
        let mut inputs: IndexSet<ValueId> = IndexSet::new();
        for &id in &nodes {
            let node = self.graph.node(id);
            inputs.extend(node.operands.iter().filter(|&&operand| {
                let definition = self.graph.value(operand).definition.map(|(node, _)| node);
                let is_iota = |node| class(self.graph, self.graph.node(node)) == Class::Iota;
                definition.is_none_or(|node| !nodes.contains(&node) && !is_iota(node))
                    && uniform(self.graph, operand).is_none()
            }));
        }
        inputs.len() <= self.options.fused_inputs && self.output_count(&nodes) <= FUSED_OUTPUTS
    }

    fn escapes(&self, value: ValueId, nodes: &IndexSet<NodeId>) -> bool {
        let outside = |&(at, through_view): &Reader| {
            through_view || !matches!(self.items[at], Item::Node(id) if nodes.contains(&id))
        };
        self.is_output[value.index()] || self.readers[value.index()].iter().any(outside)
    }

    fn merge(&mut self, groups: &[usize], place: usize, runs_at: usize) {
        let target = self.group[place];
        for &group in groups {
            for member in std::mem::take(&mut self.members[group]) {
                self.group[member] = target;
                self.members[target].push(member);
            }
        }
        self.runs_at[target] = runs_at;
    }

    fn steps(self) -> Vec<Step> {
        let mut steps: IndexMap<usize, Step> = IndexMap::new();
        for (group, members) in self.members.iter().enumerate() {
            let Some(&one) = members.first() else { continue };
            let step = match self.items[one] {
                Item::Start(bucket) => Step::Start(bucket),
                Item::Wait(bucket) => Step::Wait(bucket),
                Item::Node(id) if class(self.graph, self.graph.node(id)) == Class::Single => Step::Single(id),
                Item::Node(_) => {
                    let mut nodes: Vec<NodeId> = members.iter().map(|&at| self.node(at)).collect();
                    // Graph order is an execution order.
                    nodes.sort();
                    Step::Fused(nodes)
                }
            };
            steps.insert(self.runs_at[group], step);
        }
        steps.sort_unstable_keys();
        steps.into_values().collect()
    }
}

/// The scalar constant that fills a value, if one does.
pub(crate) fn uniform(graph: &Graph, mut value: ValueId) -> Option<&partita_ir::Literal> {
    use partita_ir::Op;
    loop {
        let node = graph.node(graph.value(value).definition?.0);
        match &node.op {
            Op::Constant(constant) if constant.value.ty.rank() == 0 => return Some(&constant.value),
            Op::BroadcastInDim(_) | Op::Reshape(_) => value = node.operands[0],
            _ => return None,
        }
    }
}
