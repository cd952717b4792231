//! Fusion: elementwise ops of one shape that feed each other run as one region, together with
//! reductions of its rows and the ops that broadcast the results back along the rows (softmax and
//! norm patterns). A reduction across many rows (a bias or norm-weight gradient) joins the region
//! that computes its operand; its result is ready only when the region has ended.
//!
//! The pass works on a fixed order of items, greedily and in that order. A region runs at the place
//! of one of its nodes. A node may be delayed to a later place if no other item reads it before, or
//! hoisted to an earlier place if its operands are ready there. Fusion therefore never changes what
//! is computed, or the order of collectives.

use std::collections::BTreeMap;
use std::fmt;

use crate::LowerOptions;
use crate::passes::bucket::{Bucket, BucketClass};
use crate::passes::head::HeadCut;
use crate::passes::order::{Item, checked_outputs, maker};
use indexmap::{IndexMap, IndexSet};
use partita_ir::ops::{Reduce, Reducer};
use partita_ir::traits::{ConstantOp, Traits, ViewMap};
use partita_ir::{Graph, Node, NodeId, Op, Operation, Phase, ValueId};

/// Most outputs of a fused region.
const FUSED_OUTPUTS: usize = 16;
/// Most elements in a row of a region that reduces its rows, so that a few values of a row fit in
/// L2.
const ROW_ELEMENTS: usize = 1 << 16;

/// Fewest rows for a reduction across rows: threads divide its work by blocks of rows.
const ACROSS_ROWS: usize = 256;

/// One step of a program, the same on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Elementwise nodes of one iteration shape, reductions of its rows with the views between
    /// them, and reductions across its rows, whose results no other node of the region reads.
    Fused {
        /// The nodes, in an order of execution.
        nodes: Vec<NodeId>,
        /// The values that other steps read.
        results: Vec<ValueId>,
    },
    /// One node.
    Single(NodeId),
    /// Start this bucket.
    Start(usize),
    /// Wait for this bucket.
    Wait(usize),
    /// The caller reads and writes ports.
    Pause,
}

/// The result of fusion on a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fusion {
    /// The number of ops of each region of elementwise ops and reductions, in program order.
    pub regions: Vec<usize>,
    /// Pairs of such ops in which one reads the other, but which do not run in one region.
    pub apart: Vec<Apart>,
    /// For each LM head, whether it runs in chunks.
    pub heads: Vec<HeadCut>,
}

/// Two ops that a user may expect to be fused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Apart {
    /// The op that reads, and its module path.
    pub reader: (String, String),
    /// The op that computes the value it reads, and its module path.
    pub maker: (String, String),
    /// The reason.
    pub why: Why,
}

/// Why two ops do not run in one region.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// They do not compute the same shape on every rank.
    Shape,
    /// They belong to different phase groups (forward, backward, update) or microbatches.
    Phase,
    /// The reader sees the value transposed, sliced or otherwise rearranged.
    View,
    /// The reader reduces neither the last dimensions, nor the first ones of many short rows.
    AcrossRows,
    /// Another op needs the value before the reader can run.
    ReadBefore(String),
    /// One region would exceed a limit on ops, inputs, outputs or elements of a row.
    Limit(&'static str, usize),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Shape => write!(f, "they compute different shapes"),
            Why::Phase => write!(f, "they belong to different phases or microbatches"),
            Why::View => write!(f, "it is read transposed, sliced or broadcast"),
            Why::AcrossRows => write!(f, "it is reduced across rows"),
            Why::ReadBefore(by) => write!(f, "{by} reads it in between"),
            Why::Limit(what, most) => write!(f, "together they would have more than {most} {what}"),
        }
    }
}

impl fmt::Display for Fusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ops: usize = self.regions.iter().sum();
        let joined = self.regions.iter().filter(|&&ops| ops > 1).count();
        writeln!(f, "fusion: {ops} ops in {} regions, {joined} with several ops", self.regions.len())?;
        // Equal findings, one for each layer, are reported once.
        let mut alike: IndexMap<(&str, &str, &Why), Vec<&Apart>> = IndexMap::new();
        for apart in &self.apart {
            alike.entry((&apart.reader.0, &apart.maker.0, &apart.why)).or_default().push(apart);
        }
        for ((reader, maker, why), all) in alike {
            let Apart { reader: (_, at), maker: (_, from), .. } = all[0];
            let who = match all.len() {
                1 => format!("{reader} in {at} is"),
                several => format!("{reader} in {at} and {} more are", several - 1),
            };
            writeln!(f, "  {who} not fused with {maker} in {from}: {why}")?;
        }
        self.heads.iter().try_for_each(|head| writeln!(f, "{head}"))
    }
}

/// How many leading dimensions the views between a value and its reader preserve; [`DIRECT`]
/// without views.
type Kept = usize;
const DIRECT: Kept = usize::MAX;

/// A reader of a value: its place in the order, and the dimensions that views preserve.
type Reader = (usize, Kept);

/// What the nodes of a region have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Frame {
    /// Number of the iteration shape.
    shape: usize,
    /// Number of leading dimensions that are rows, if the region reduces anything.
    lead: Option<usize>,
}

impl Frame {
    /// Whether nodes of the region may read its values through views that preserve this many
    /// dimensions.
    fn sees_through(self, kept: Kept) -> bool {
        kept == DIRECT || self.lead.is_some_and(|lead| kept >= lead)
    }
}

/// A shape on every rank, and the part of the step.
type Key<'a> = (Vec<&'a [usize]>, Part);

/// What a region cannot mix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Part {
    /// The number of pauses before it.
    piece: usize,
    phase: Phase,
    microbatch: Option<usize>,
}

/// Whether the shape is one element for each row of the other, on every rank.
fn is_row_of(shape: &Key<'_>, whole: &Key<'_>, lead: usize) -> bool {
    let fits = |(shape, whole): (&&[usize], &&[usize])| {
        shape.get(..lead).is_some_and(|rows| *rows == whole[..lead])
            && shape[lead..].iter().all(|&size| size == 1)
    };
    shape.1 == whole.1 && shape.0.iter().zip(&whole.0).all(fits)
}

/// A reduction by a known combiner from a constant initial value, with the shape of its operand.
fn known_reduction<'g>(graph: &'g Graph, node: &'g Node) -> Option<(&'g [usize], &'g Reduce)> {
    let Op::Reduce(op) = &node.op else { return None };
    let is_known =
        matches!(op.reducer, Reducer::Combiner(_)) && uniform(graph, *node.operands.get(1)?).is_some();
    (is_known && node.results.len() == 1).then_some((&graph.ty(node.operands[0]).shape, op))
}

/// The leading dimensions that a reduction of rows preserves.
fn kept_rows(graph: &Graph, node: &Node) -> Option<usize> {
    let (shape, op) = known_reduction(graph, node)?;
    let lead = *op.dims.first()?;
    (lead > 0 && op.dims.iter().copied().eq(lead..shape.len())).then_some(lead)
}

/// Whether a node reduces across many rows of moderate length.
fn is_across_rows(graph: &Graph, node: &Node) -> bool {
    let across = known_reduction(graph, node).and_then(|(shape, op)| op.across_rows(shape));
    let count = |dims: &[usize]| dims.iter().product::<usize>();
    across.is_some_and(|(rows, row)| count(rows) >= ACROSS_ROWS && count(row) <= ROW_ELEMENTS)
}

/// The leading dimensions that a view preserves.
fn kept_by_view(graph: &Graph, node: &Node) -> Kept {
    let (&[operand], &[result]) = (&node.operands[..], &node.results[..]) else { return 0 };
    let (from, to) = (&graph.ty(operand).shape, &graph.ty(result).shape);
    let same = from.iter().zip(to).take_while(|(from, to)| from == to).count();
    let Traits::View(view) = graph.traits(node) else { return 0 };
    match view {
        ViewMap::Broadcast { dims } => {
            dims.iter().enumerate().take_while(|(d, to)| d == *to).count().min(same)
        }
        // Behind the rows there is a single element, before and after.
        ViewMap::Reshape => {
            let ones = |shape: &[usize]| shape[same..].iter().all(|&size| size == 1);
            if ones(from) && ones(to) { same } else { 0 }
        }
        ViewMap::Identity
        | ViewMap::Transpose { .. }
        | ViewMap::Slice { .. }
        | ViewMap::Reverse { .. }
        | ViewMap::Window { .. } => 0,
    }
}

struct Fuser<'a> {
    graph: &'a Graph,
    options: &'a LowerOptions,
    items: &'a [Item],
    /// The number of pauses before each place.
    piece: Vec<usize>,
    /// Place of the item that computes each node.
    place: Vec<Option<usize>>,
    /// Place of the item that receives a value from another stage.
    received_at: BTreeMap<ValueId, usize>,
    /// The readers of each value.
    readers: Vec<Vec<Reader>>,
    /// Whether the value is an output, perhaps through views.
    is_output: Vec<bool>,
    /// Leading dimensions that each view preserves, on every rank.
    kept: Vec<Kept>,
    /// Shapes that nodes iterate over.
    shapes: IndexSet<Key<'a>>,
    /// The frame of each place's node alone; `None` if the node is not fusible.
    own: Vec<Option<Frame>>,
    /// The last place that computes a number which validates the step.
    checked: Option<usize>,
    /// Whether the node at a place computes a value that replaces an input.
    replaces: Vec<bool>,
    /// Whether the node at a place reduces across rows; then no node of its region may read its
    /// result.
    is_across: Vec<bool>,
    /// The frame of each group.
    frame: Vec<Option<Frame>>,
    /// The group of each place.
    group: Vec<usize>,
    /// The places of a group's nodes.
    members: Vec<Vec<usize>>,
    /// The place where the group runs.
    runs_at: Vec<usize>,
    /// Why a place did not join another group, by (place, a member of that group).
    refused: IndexMap<(usize, usize), Why>,
}

/// Fuses as far as the order of `items` allows. Nodes share an iteration shape only if they do so
/// on every rank.
pub(crate) fn fuse(
    graphs: &[Graph],
    buckets: &[Bucket],
    items: &[Item],
    options: &LowerOptions,
) -> (Vec<Step>, Fusion) {
    let mut fuser = Fuser::new(graphs, buckets, items, options);
    for place in 0..items.len() {
        fuser.place_node(graphs, place);
    }
    let apart = fuser.apart();
    let is_op = |id: &&NodeId| !graphs[0].traits(graphs[0].node(**id)).is_view();
    let steps = fuser.steps();
    let ops = |step: &Step| match step {
        Step::Fused { nodes, .. } => Some(nodes.iter().filter(is_op).count()),
        _ => None,
    };
    let regions = steps.iter().filter_map(ops).collect();
    (steps, Fusion { regions, apart, heads: Vec::new() })
}

impl Fusion {
    /// Appends the report on other graphs of the same step.
    pub fn with(mut self, other: Fusion) -> Fusion {
        self.regions.extend(other.regions);
        self.apart.extend(other.apart);
        self.heads.extend(other.heads);
        self
    }
}

impl<'a> Fuser<'a> {
    fn new(graphs: &'a [Graph], buckets: &[Bucket], items: &'a [Item], options: &'a LowerOptions) -> Self {
        let graph = &graphs[0];
        let kept =
            |id: NodeId| graphs.iter().map(|graph| kept_by_view(graph, graph.node(id))).min().unwrap_or(0);
        let kept: Vec<Kept> = graph.node_ids().map(kept).collect();
        let mut place = vec![None; graph.nodes.len()];
        let mut reads = vec![None; graph.nodes.len()];
        for (at, item) in items.iter().enumerate() {
            match *item {
                Item::Node(id) => (place[id.index()], reads[id.index()]) = (Some(at), Some(at)),
                Item::Start(b) => buckets[b].nodes.iter().for_each(|n| reads[n.index()] = Some(at)),
                Item::Wait(b) => buckets[b].nodes.iter().for_each(|n| place[n.index()] = Some(at)),
                Item::Pause => {}
            }
        }
        let mut pauses = 0;
        let counted = |item: &Item| {
            pauses += usize::from(*item == Item::Pause);
            pauses
        };
        let piece = items.iter().map(counted).collect();
        let mut readers: Vec<Vec<Reader>> = vec![Vec::new(); graph.values.len()];
        let mut received_at = BTreeMap::new();
        for (at, item) in items.iter().enumerate() {
            match *item {
                Item::Start(bucket) if buckets[bucket].class == BucketClass::Sent => {
                    let sent = buckets[bucket].operands(graph);
                    sent.iter().for_each(|value| readers[value.index()].push((at, DIRECT)));
                }
                Item::Wait(bucket) if buckets[bucket].class == BucketClass::Received => {
                    received_at.extend(buckets[bucket].results(graph).into_iter().map(|value| (value, at)));
                }
                _ => {}
            }
        }
        let mut is_output = vec![false; graph.values.len()];
        graph.outputs.iter().for_each(|v| is_output[v.index()] = true);
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            for (number, operand) in node.operands.iter().enumerate() {
                match reads[id.index()] {
                    Some(at) => readers[operand.index()].push((at, DIRECT)),
                    // A view (or a constant, without operands): its readers are the operand's.
                    None => {
                        let result = node.results[number.min(node.results.len() - 1)].index();
                        let view = kept[id.index()];
                        let through: Vec<Reader> =
                            readers[result].iter().map(|&(at, kept)| (at, kept.min(view))).collect();
                        readers[operand.index()].extend(through);
                        is_output[operand.index()] |= is_output[result];
                    }
                }
            }
        }
        let count = items.len();
        let made_at = |value: ValueId| match maker(graph, value) {
            Some(node) => place[node.index()],
            None => received_at.get(&value).copied(),
        };
        let checked = checked_outputs(graph, options).filter_map(made_at).max();
        let mut replaces = vec![false; count];
        graph.aliases.iter().filter_map(|&(_, output)| made_at(graph.outputs[output])).for_each(|at| {
            replaces[at] = true;
        });
        Fuser {
            graph,
            options,
            items,
            piece,
            place,
            received_at,
            readers,
            is_output,
            kept,
            shapes: IndexSet::new(),
            own: vec![None; count],
            checked,
            replaces,
            is_across: vec![false; count],
            frame: vec![None; count],
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

    /// Finds the groups that the node at `place` may join, and merges it with those that it can.
    fn place_node(&mut self, graphs: &'a [Graph], place: usize) {
        let Item::Node(id) = self.items[place] else { return };
        let node = self.graph.node(id);
        let is_elementwise = self.graph.traits(node).is_elementwise();
        let lead = kept_rows(self.graph, node);
        let is_across = graphs.iter().all(|graph| is_across_rows(graph, graph.node(id)));
        if !is_elementwise && lead.is_none() && !is_across {
            return;
        }
        self.is_across[place] = is_across;
        let value = |graph: &Graph| {
            if is_elementwise { graph.node(id).results[0] } else { graph.node(id).operands[0] }
        };
        let shape = graphs.iter().map(|graph| graph.ty(value(graph)).shape.as_slice()).collect();
        let (phase, microbatch) = (self.options.part(node.phase), node.microbatch);
        let part = Part { piece: self.piece[place], phase, microbatch };
        let shape = self.shapes.insert_full((shape, part)).0;
        let mut frame = Frame { shape, lead };
        self.own[place] = Some(frame);
        self.frame[place] = Some(frame);
        let mut groups: IndexSet<usize> = IndexSet::new();
        for &operand in &node.operands {
            if let Some((at, kept)) = self.source(operand)
                && let Some(other) = self.frame[self.group[at]]
                && !self.is_across[at]
                && (kept == DIRECT || (is_elementwise && other.sees_through(kept)))
            {
                groups.insert(self.group[at]);
            }
        }
        // Groups that hold full rows come before groups with one element per row; all end in one
        // frame.
        let mut groups: Vec<usize> = groups.into_iter().collect();
        groups.sort_by_key(|&group| self.frame[group].is_some_and(|other| other.shape == shape));
        groups.retain(|&group| match self.frame[group].and_then(|other| self.join_frames(frame, other)) {
            Some(joined) => {
                frame = joined;
                true
            }
            None => false,
        });
        self.join(place, groups);
    }

    /// The common frame of two groups: that of the full rows, if one has them. `None` if they
    /// cannot be fused.
    fn join_frames(&self, one: Frame, other: Frame) -> Option<Frame> {
        if one.shape == other.shape {
            let agree = one.lead.is_none() || other.lead.is_none() || one.lead == other.lead;
            return agree.then_some(Frame { lead: one.lead.or(other.lead), ..one });
        }
        let is_row = |row: Frame, whole: Frame| {
            row.lead.is_none()
                && whole
                    .lead
                    .is_some_and(|lead| is_row_of(&self.shapes[row.shape], &self.shapes[whole.shape], lead))
        };
        if is_row(one, other) { Some(other) } else { is_row(other, one).then_some(one) }
    }

    /// The common frame of these groups and the node at `place`, which are known to fit.
    fn joined(&self, groups: &[usize], place: usize) -> Frame {
        let own = self.own[place].expect("the node is fused");
        let frames = groups.iter().filter_map(|&group| self.frame[group]);
        frames.fold(own, |frame, other| self.join_frames(frame, other).unwrap_or(frame))
    }

    /// Merges the node at `place`, so far in no group, with as many of the groups as order and
    /// limits allow.
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
            // A result reduced from many rows takes little memory.
            let is_small = self.is_across[place];
            let is_good = self.can_hoist(place, group) && (is_small || self.hands_on_no_more(group, place));
            if is_good && self.exceeds(&[group], place).is_none() {
                let at = self.runs_at[group];
                self.merge(&[group], place, at);
                return;
            }
        }
    }

    /// The place of a reader that prevents the group from moving to `place`: one outside the region
    /// that reads before `place`, or one inside that reads through a view that does not preserve
    /// the rows, or that reads the result of a reduction across rows.
    fn reads_before(&self, group: usize, with: &[usize], place: usize) -> Option<usize> {
        let frame = self.joined(with, place);
        let within = |at: usize| at == place || with.contains(&self.group[at]);
        let runs_at = |at: usize| if within(at) { place } else { self.runs_at[self.group[at]] };
        let seen_by = |&member: &usize| {
            let sees = |kept: Kept| frame.sees_through(kept) && !self.is_across[member];
            let mut readers = self.readers_at(member);
            readers.find(|&&(at, kept)| !((within(at) && sees(kept)) || runs_at(at) > place))
        };
        self.members[group].iter().find_map(seen_by).map(|&(at, _)| at)
    }

    /// Whether the node's operands are ready when the group runs, and, if the node replaces an
    /// input, also the numbers that validate the step.
    fn can_hoist(&self, place: usize, group: usize) -> bool {
        let at = self.runs_at[group];
        if self.replaces[place] && self.checked.is_some_and(|checked| at <= checked) {
            return false;
        }
        self.graph.node(self.node(place)).operands.iter().all(|&operand| {
            self.source(operand).is_none_or(|(definition, kept)| {
                let maker = self.group[definition];
                let is_within = maker == group && kept == DIRECT && !self.is_across[definition];
                is_within || self.runs_at[maker] < at
            })
        })
    }

    /// The place that computes a value, looking through views, and the dimensions that these
    /// preserve.
    fn source(&self, value: ValueId) -> Option<(usize, Kept)> {
        let (mut value, mut kept) = (value, DIRECT);
        loop {
            let Some((node, number)) = self.graph.value(value).definition else {
                return self.received_at.get(&value).map(|&place| (place, kept));
            };
            if let Some(place) = self.place[node.index()] {
                return Some((place, kept));
            }
            kept = kept.min(self.kept[node.index()]);
            let operands = &self.graph.node(node).operands;
            value = *operands.get(number.min(operands.len().max(1) - 1))?;
        }
    }

    fn readers_at(&self, place: usize) -> impl Iterator<Item = &Reader> {
        self.graph.node(self.node(place)).results.iter().flat_map(|r| &self.readers[r.index()])
    }

    /// Whether adding the node at `place` leaves the group with no more outputs than before: an
    /// early result only takes memory until it is read.
    fn hands_on_no_more(&self, group: usize, place: usize) -> bool {
        let mut nodes: IndexSet<NodeId> = self.members[group].iter().map(|&at| self.node(at)).collect();
        let frame = self.joined(&[group], place);
        let before = self.output_count(&nodes, frame);
        nodes.insert(self.node(place));
        self.output_count(&nodes, frame) <= before
    }

    /// The values that other steps read from these nodes.
    fn results<'f>(
        &'f self,
        nodes: &'f IndexSet<NodeId>,
        frame: Frame,
    ) -> impl Iterator<Item = ValueId> + use<'f, 'a> {
        let results = nodes.iter().flat_map(|&id| &self.graph.node(id).results).copied();
        results.filter(move |&result| self.escapes(result, nodes, frame))
    }

    fn output_count(&self, nodes: &IndexSet<NodeId>, frame: Frame) -> usize {
        self.results(nodes, frame).count()
    }

    /// The limit that the merged group would exceed.
    fn exceeds(&self, groups: &[usize], place: usize) -> Option<Why> {
        let mut places: Vec<usize> = groups.iter().flat_map(|&g| &self.members[g]).copied().collect();
        places.push(place);
        if places.len() > self.options.fused_ops {
            return Some(Why::Limit("ops", self.options.fused_ops));
        }
        let frame = self.joined(groups, place);
        if let Some(lead) = frame.lead {
            let row = |shape: &&[usize]| shape[lead..].iter().product::<usize>();
            if self.shapes[frame.shape].0.iter().map(row).any(|elements| elements > ROW_ELEMENTS) {
                return Some(Why::Limit("elements in a row", ROW_ELEMENTS));
            }
        }
        let nodes: IndexSet<NodeId> = places.iter().map(|&at| self.node(at)).collect();
        let mut inputs: IndexSet<ValueId> = IndexSet::new();
        for &id in &nodes {
            let node = self.graph.node(id);
            inputs.extend(node.operands.iter().filter(|&&operand| {
                let definition = self.graph.value(operand).definition.map(|(node, _)| node);
                let is_iota = |node| matches!(self.graph.traits(self.graph.node(node)), Traits::Iota { .. });
                definition.is_none_or(|node| !nodes.contains(&node) && !is_iota(node))
                    && uniform(self.graph, operand).is_none()
            }));
        }
        if inputs.len() > self.options.fused_inputs {
            return Some(Why::Limit("inputs", self.options.fused_inputs));
        }
        (self.output_count(&nodes, frame) > FUSED_OUTPUTS).then_some(Why::Limit("outputs", FUSED_OUTPUTS))
    }

    /// The op at a place and its module path, for messages.
    fn name(&self, place: usize) -> (String, String) {
        match self.items[place] {
            Item::Node(id) => {
                let node = self.graph.node(id);
                let path = if node.path.is_empty() { "<root>" } else { &node.path };
                (node.op.short_name().to_string(), path.to_string())
            }
            Item::Start(_) | Item::Wait(_) => ("a collective".to_string(), "<root>".to_string()),
            Item::Pause => ("the caller".to_string(), "<root>".to_string()),
        }
    }

    /// Why two nodes could not be fused in any order.
    fn differ(&self, reader: usize, maker: usize, kept: Kept) -> Option<Why> {
        let (Some(own), Some(other)) = (self.own[reader], self.own[maker]) else {
            return Some(Why::AcrossRows);
        };
        let (own_shape, other_shape) = (&self.shapes[own.shape], &self.shapes[other.shape]);
        if own_shape.1 != other_shape.1 {
            return Some(if own_shape.0 == other_shape.0 { Why::Phase } else { Why::Shape });
        }
        let group = self.frame[self.group[maker]].unwrap_or(other);
        if self.join_frames(own, group).is_none() {
            return Some(Why::Shape);
        }
        (!group.sees_through(kept)).then_some(Why::View)
    }

    /// The pairs of nodes that run apart although one reads the other.
    fn apart(&self) -> Vec<Apart> {
        let mut apart: Vec<Apart> = Vec::new();
        for (place, item) in self.items.iter().enumerate() {
            let &Item::Node(reader) = item else { continue };
            let node = self.graph.node(reader);
            if self.own[place].is_none() && !matches!(node.op, Op::Reduce(_)) {
                continue;
            }
            let mut makers: IndexSet<usize> = IndexSet::new();
            for &operand in &node.operands {
                let Some((at, kept)) = self.source(operand) else { continue };
                if self.own[at].is_none()
                    || self.is_across[at]
                    || self.group[at] == self.group[place]
                    || !makers.insert(self.group[at])
                {
                    continue;
                }
                let refused = || {
                    let of = |&member: &usize| self.refused.get(&(place, member)).cloned();
                    self.members[self.group[at]].iter().find_map(of)
                };
                let why = self.differ(place, at, kept).or_else(refused);
                apart.push(Apart {
                    reader: self.name(place),
                    maker: self.name(at),
                    why: why.unwrap_or_else(|| Why::ReadBefore("another op".to_string())),
                });
            }
        }
        apart
    }

    fn escapes(&self, value: ValueId, nodes: &IndexSet<NodeId>, frame: Frame) -> bool {
        let outside = |&(at, kept): &Reader| {
            !frame.sees_through(kept) || !matches!(self.items[at], Item::Node(id) if nodes.contains(&id))
        };
        self.is_output[value.index()] || self.readers[value.index()].iter().any(outside)
    }

    fn merge(&mut self, groups: &[usize], place: usize, runs_at: usize) {
        let target = self.group[place];
        self.frame[target] = Some(self.joined(groups, place));
        for &group in groups {
            for member in std::mem::take(&mut self.members[group]) {
                self.group[member] = target;
                self.members[target].push(member);
            }
        }
        self.runs_at[target] = runs_at;
    }

    /// A group as one step, including the views through which its nodes read each other.
    fn region(&self, group: usize) -> Step {
        let frame = self.frame[group].expect("its nodes are fused");
        let mut nodes: IndexSet<NodeId> = self.members[group].iter().map(|&at| self.node(at)).collect();
        // Graph order is an execution order.
        nodes.sort_unstable();
        let results = self.results(&nodes, frame).collect();
        let seen = |operand: &ValueId| {
            self.source(*operand)
                .is_some_and(|(at, kept)| self.group[at] == group && frame.sees_through(kept))
        };
        let operands = nodes.iter().flat_map(|&id| &self.graph.node(id).operands).copied();
        let mut open: Vec<ValueId> = operands.filter(seen).collect();
        while let Some(value) = open.pop() {
            if let Some((view, _)) = self.graph.value(value).definition
                && self.place[view.index()].is_none()
            {
                nodes.insert(view);
                open.push(self.graph.node(view).operands[0]);
            }
        }
        nodes.sort_unstable();
        Step::Fused { nodes: nodes.into_iter().collect(), results }
    }

    fn steps(self) -> Vec<Step> {
        let mut steps: IndexMap<usize, Step> = IndexMap::new();
        for (group, members) in self.members.iter().enumerate() {
            let Some(&one) = members.first() else { continue };
            let step = match self.items[one] {
                Item::Start(bucket) => Step::Start(bucket),
                Item::Wait(bucket) => Step::Wait(bucket),
                Item::Pause => Step::Pause,
                Item::Node(id)
                    if members.len() == 1 && self.graph.traits(self.graph.node(id)) == Traits::Opaque =>
                {
                    Step::Single(id)
                }
                Item::Node(_) => self.region(group),
            };
            steps.insert(self.runs_at[group], step);
        }
        steps.sort_unstable_keys();
        steps.into_values().collect()
    }
}

/// The scalar constant, of one rank or of each rank of a class, that fills a value, if there is
/// one.
pub(crate) fn uniform(graph: &Graph, mut value: ValueId) -> Option<ConstantOp<'_>> {
    loop {
        let node = graph.node(graph.value(value).definition?.0);
        let Traits::View(ViewMap::Broadcast { .. } | ViewMap::Reshape) = graph.traits(node) else { break };
        value = node.operands[0];
    }
    if graph.ty(value).rank() == 0 { graph.constant(value) } else { None }
}
