//! Fusion: elementwise nodes of one shape that feed each other run as one region.
//!
//! Everything happens on the fixed order of items. A region runs at the place of one of its nodes; a node may
//! be delayed to a later place while nobody in between reads it, or hoisted to an earlier one where its operands
//! are there already. So regions never change what is computed, or the order of collectives.

use std::fmt;

use crate::LowerOptions;
use crate::bucket::{Bucket, phase_class};
use crate::classify::{Class, class, op_name};
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

/// What fusion made of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fusion {
    /// Ops of each region of elementwise ops, in program order.
    pub regions: Vec<usize>,
    /// Elementwise ops that read what another one makes, and do not run together with it.
    pub apart: Vec<Apart>,
}

/// Two elementwise ops that could be thought to run as one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Apart {
    /// The op that reads, and its module path.
    pub reader: (String, String),
    /// The op that makes what it reads, and its module path.
    pub maker: (String, String),
    /// What stands between them.
    pub why: Why,
}

/// What keeps two elementwise ops apart.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// They do not compute the same shape on every rank.
    Shape,
    /// Forward, backward or update, or another microbatch.
    Phase,
    /// The reader looks at it transposed, sliced or otherwise rearranged.
    View,
    /// Somebody else needs the value before the reader can run.
    ReadBefore(String),
    /// One region would have more ops, inputs or outputs than it may.
    Limit(&'static str, usize),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Shape => write!(f, "they compute different shapes"),
            Why::Phase => write!(f, "they belong to different phases or microbatches"),
            Why::View => write!(f, "it is read transposed, sliced or broadcast"),
            Why::ReadBefore(by) => write!(f, "{by} reads it before"),
            Why::Limit(what, most) => write!(f, "together they would have more than {most} {what}"),
        }
    }
}

impl fmt::Display for Fusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops: usize = self.regions.iter().sum();
        let joined = self.regions.iter().filter(|&&ops| ops > 1).count();
        writeln!(f, "fusion: {ops} elementwise ops in {} regions, {joined} of several", self.regions.len())?;
        // What happens in every layer is told once.
        let mut alike: IndexMap<(&str, &str, &Why), Vec<&Apart>> = IndexMap::new();
        for apart in &self.apart {
            alike.entry((&apart.reader.0, &apart.maker.0, &apart.why)).or_default().push(apart);
        }
        for ((reader, maker, why), all) in alike {
            let Apart { reader: (_, at), maker: (_, from), .. } = all[0];
            let times = if all.len() > 1 { format!(" and {} more", all.len() - 1) } else { String::new() };
            writeln!(f, "  {reader} in {at}{times} runs apart from {maker} in {from}: {why}")?;
        }
        Ok(())
    }
}

/// A reader of a value: its place in the order, and whether a view stands between.
type Reader = (usize, bool);

struct Fuser<'a> {
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
    /// Why a place did not join the group of another, by (place, a member of that group).
    refused: IndexMap<(usize, usize), Why>,
}

/// Fuses what the order allows. An iteration shape is one on every rank.
pub(crate) fn fuse(
    graphs: &[Graph],
    buckets: &[Bucket],
    items: &[Item],
    options: &LowerOptions,
) -> (Vec<Step>, Fusion) {
    let graph = &graphs[0];
    let mut fuser = Fuser::new(graph, buckets, items, options);
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
                let at = fuser.place[definition.index()].expect("an elementwise node has a place");
                groups.insert(fuser.group[at]);
            }
        }
        fuser.join(place, groups.into_iter().collect());
    }
    let apart = fuser.apart(|a, b| match (shape_of[a.index()], shape_of[b.index()]) {
        (Some(a), Some(b)) if shapes[a].0 != shapes[b].0 => Some(Why::Shape),
        (a, b) if a != b => Some(Why::Phase),
        _ => None,
    });
    let steps = fuser.steps();
    let size = |step: &Step| if let Step::Fused(nodes) = step { Some(nodes.len()) } else { None };
    let regions = steps.iter().filter_map(size).collect();
    (steps, Fusion { regions, apart })
}

impl<'a> Fuser<'a> {
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
        Fuser {
            graph,
            options,
            items,
            place,
            readers,
            is_output,
            group: (0..count).collect(),
            members: (0..count).map(|at| vec![at]).collect(),
            runs_at: (0..count).collect(),
            refused: IndexMap::new(),
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
            let bad = chosen.iter().enumerate().find_map(|(index, &group)| {
                self.reads_before(group, &chosen, place).map(|reader| (index, reader))
            });
            let (index, why) = match bad {
                Some((index, reader)) => (index, Why::ReadBefore(self.name(reader).0)),
                None => match self.exceeds(&chosen, place) {
                    None => return self.merge(&chosen, place, place),
                    // The group joined least recently is the least likely to be in cache.
                    Some(limit) => (0, limit),
                },
            };
            self.refused.insert((place, self.members[chosen.remove(index)][0]), why);
        }
        let mut latest = groups;
        latest.sort_by_key(|&group| std::cmp::Reverse(self.runs_at[group]));
        for group in latest {
            let is_good = self.can_hoist(place, group) && self.hands_on_no_more(group, place);
            if is_good && self.exceeds(&[group], place).is_none() {
                let at = self.runs_at[group];
                self.merge(&[group], place, at);
                return;
            }
        }
    }

    /// The place of somebody who reads the group's values before `place` but from within, or from within through a view.
    fn reads_before(&self, group: usize, with: &[usize], place: usize) -> Option<usize> {
        let within = |at: usize| at == place || with.contains(&self.group[at]);
        let runs_at = |at: usize| if within(at) { place } else { self.runs_at[self.group[at]] };
        self.members[group]
            .iter()
            .flat_map(|&member| self.readers_at(member))
            .find(|&&(at, through_view)| !((within(at) && !through_view) || runs_at(at) > place))
            .map(|&(at, _)| at)
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

    /// The limit that the joined group would not keep to.
    fn exceeds(&self, groups: &[usize], place: usize) -> Option<Why> {
        let mut places: Vec<usize> = groups.iter().flat_map(|&g| &self.members[g]).copied().collect();
        places.push(place);
        if places.len() > self.options.fused_ops {
            return Some(Why::Limit("ops", self.options.fused_ops));
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
        if inputs.len() > self.options.fused_inputs {
            return Some(Why::Limit("inputs", self.options.fused_inputs));
        }
        (self.output_count(&nodes) > FUSED_OUTPUTS).then_some(Why::Limit("outputs", FUSED_OUTPUTS))
    }

    /// The op at a place and its module path, for people.
    fn name(&self, place: usize) -> (String, String) {
        match self.items[place] {
            Item::Node(id) => {
                let node = self.graph.node(id);
                let path = if node.path.is_empty() { "<root>" } else { &node.path };
                (op_name(&node.op).to_string(), path.to_string())
            }
            Item::Start(_) | Item::Wait(_) => ("a collective".to_string(), "<root>".to_string()),
        }
    }

    /// The pairs of elementwise nodes that run apart though one reads the other. `differ` says why two of them cannot
    /// belong together whatever the order.
    fn apart(&self, differ: impl Fn(NodeId, NodeId) -> Option<Why>) -> Vec<Apart> {
        let is_elementwise = |id: NodeId| class(self.graph, self.graph.node(id)) == Class::Elementwise;
        let mut apart: Vec<Apart> = Vec::new();
        for (place, item) in self.items.iter().enumerate() {
            let &Item::Node(reader) = item else { continue };
            if !is_elementwise(reader) {
                continue;
            }
            let mut makers: IndexSet<usize> = IndexSet::new();
            for &operand in &self.graph.node(reader).operands {
                let Some(at) = self.source(operand) else { continue };
                let Item::Node(maker) = self.items[at] else { continue };
                if !is_elementwise(maker)
                    || self.group[at] == self.group[place]
                    || !makers.insert(self.group[at])
                {
                    continue;
                }
                let is_direct = self.graph.value(operand).definition.is_some_and(|(node, _)| node == maker);
                let refused = || {
                    let of = |&member: &usize| self.refused.get(&(place, member)).cloned();
                    self.members[self.group[at]].iter().find_map(of)
                };
                let view = || if is_direct { None } else { Some(Why::View) };
                let why = differ(reader, maker).or_else(view).or_else(refused);
                apart.push(Apart {
                    reader: self.name(place),
                    maker: self.name(at),
                    why: why.unwrap_or_else(|| Why::ReadBefore("another op".to_string())),
                });
            }
        }
        apart
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
