//! Bucketing: merges collectives of one kind and group into one, if no reader waits longer than for
//! the last of them.

mod groupings;
mod joining;

use crate::LowerOptions;
use crate::collective::{CollectiveKind, groups, kind};
use crate::outside::Outside;
use crate::passes::keep_gathered::readers;
use crate::passes::timing::Timing;
use crate::ranks::Classes;
use groupings::{Groupings, check_members, combiner};
use indexmap::IndexSet;
use joining::{Agreement, Joining};
use partita_base::Result;
use partita_ir::traits::CollectiveRef;
use partita_ir::{Graph, Node, NodeId, Op, Phase, Role, Traits, ValueId};
use partita_pipeline::block_of;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The use of a bucket in a training step, which decides when it starts and ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum BucketClass {
    /// Gathers shards of parameters. It may start at any time, but takes memory from then on.
    ParameterGather,
    /// Reduces gradients, which no op needs before the update.
    GradientReduction,
    /// Anything else: the next op waits for it.
    Activation,
    /// A send to other stages.
    Sent,
    /// A receive from another stage.
    Received,
}

/// Collective nodes that run as one collective.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Bucket {
    pub kind: CollectiveKind,
    pub class: BucketClass,
    /// The merged nodes, in graph order, the same on every rank; empty for a send between stages.
    pub nodes: Vec<NodeId>,
    /// For a send: the edge between stages and its value, which is an output or an input of the
    /// graph.
    pub edge: Option<(usize, ValueId)>,
    /// The groups of ranks; every rank is in one.
    pub meetings: Arc<[Arc<[usize]>]>,
    /// Forward, backward (`InputGrad`) or update.
    pub phase: Phase,
    pub microbatch: Option<usize>,
    /// Block of the first node.
    pub block: String,
    /// Whether it reduces gradients again that were reduced before, such as shards among their replicas.
    pub is_again: bool,
    /// Whether only weight gradients read it, such as a gathered input of the layer: no input gradient waits for it.
    pub for_weights: bool,
    /// Bytes of all operands, on the rank where they are largest.
    bytes: usize,
    /// The collectives before and after it.
    chain: Chain,
}

/// The longest chains of collectives, each of which depends on the one before, that lead to a collective and from it;
/// the collective itself is not counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Chain {
    before: usize,
    after: usize,
}

impl Chain {
    fn length(self) -> usize {
        self.before + self.after
    }

    /// The chains of two collectives that run as one.
    fn joined(self, other: Chain) -> Chain {
        Chain { before: self.before.max(other.before), after: self.after.max(other.after) }
    }

    /// Whether no chain gets longer if the two run as one.
    fn suits(self, other: Chain) -> bool {
        self.joined(other).length() <= self.length().max(other.length())
    }
}

/// The chains to and from each node.
fn chains(graph: &Graph) -> Vec<Chain> {
    let mut chains = vec![Chain::default(); graph.nodes.len()];
    let weight = |id: NodeId| usize::from(graph.traits(graph.node(id)).collective().is_some());
    let weights: Vec<usize> = graph.node_ids().map(weight).collect();
    for id in graph.node_ids() {
        let definitions = graph.node(id).operands.iter().filter_map(|&value| graph.value(value).definition);
        let lengths = definitions.map(|(other, _)| chains[other.index()].before + weights[other.index()]);
        chains[id.index()].before = lengths.max().unwrap_or(0);
    }
    for id in graph.node_ids().rev() {
        let length = chains[id.index()].after + weights[id.index()];
        for &value in &graph.node(id).operands {
            if let Some((other, _)) = graph.value(value).definition {
                let after = &mut chains[other.index()].after;
                *after = length.max(*after);
            }
        }
    }
    chains
}

impl Bucket {
    /// The values that ranks send, in the order of the transfers.
    pub fn operands(&self, graph: &Graph) -> Vec<ValueId> {
        match self.edge {
            Some((_, value)) if self.class == BucketClass::Sent => vec![value],
            Some(_) => Vec::new(),
            None => self.nodes.iter().map(|&id| graph.node(id).operands[0]).collect(),
        }
    }

    /// The values that ranks receive, in the same order.
    pub fn results(&self, graph: &Graph) -> Vec<ValueId> {
        match self.edge {
            Some((_, value)) if self.class == BucketClass::Received => vec![value],
            Some(_) => Vec::new(),
            None => self.nodes.iter().map(|&id| graph.node(id).results[0]).collect(),
        }
    }

    /// The transfer of a value over an edge between stages, as the ranks of one of them see it.
    pub fn of_edge(
        graph: &Graph,
        class: BucketClass,
        (edge, value): (usize, ValueId),
        ranks: usize,
    ) -> Bucket {
        // A parameter that is sent belongs to no part of the step.
        let is_sent_input = class == BucketClass::Sent && graph.value(value).definition.is_none();
        let node = edge_node(graph, value).filter(|_| !is_sent_input);
        Bucket {
            kind: CollectiveKind::Send,
            class,
            nodes: Vec::new(),
            edge: Some((edge, value)),
            meetings: [(0..ranks).collect()].into(),
            phase: node.map_or(Phase::Forward, |node| node.phase),
            microbatch: node.and_then(|node| node.microbatch),
            block: node.map_or(String::new(), |node| block_of(&node.path).to_string()),
            is_again: false,
            for_weights: false,
            bytes: graph.ty(value).bytes(),
            chain: Chain::default(),
        }
    }
}

/// The node that computes the value of an edge; for a received value, its first reader.
pub(crate) fn edge_node(graph: &Graph, value: ValueId) -> Option<&Node> {
    match graph.value(value).definition {
        Some((id, _)) => Some(graph.node(id)),
        None => graph.nodes.iter().find(|node| node.operands.contains(&value)),
    }
}

/// Forward, backward (as `InputGrad`) or update.
pub(crate) fn phase_class(phase: Phase) -> Phase {
    if phase.is_backward() { Phase::InputGrad } else { phase }
}

/// Whether a value is a persistent graph input, or one of these values, possibly through views and conversions.
fn is_parameter(graph: &Graph, others: &BTreeSet<ValueId>, mut value: ValueId) -> bool {
    while let Some((definition, _)) = graph.value(value).definition.filter(|_| !others.contains(&value)) {
        let node = graph.node(definition);
        if !graph.traits(node).is_view() && !matches!(node.op, Op::Convert(_)) {
            return false;
        }
        value = node.operands[0];
    }
    graph.value(value).role != Role::Input || others.contains(&value)
}

/// The received values that several microbatches read, parameters of other stages such as a tied weight, and what is
/// gathered from received ones for several microbatches.
fn read_by_all(graph: &Graph, received: &[ValueId]) -> BTreeSet<ValueId> {
    let empty = || BTreeSet::<usize>::new();
    let mut microbatches: BTreeMap<ValueId, _> = received.iter().map(|&value| (value, empty())).collect();
    for node in &graph.nodes {
        for operand in &node.operands {
            microbatches.get_mut(operand).into_iter().for_each(|of| of.extend(node.microbatch));
        }
        let is_gather = matches!(graph.traits(node).collective(), Some(CollectiveRef::AllGather(_)));
        if is_gather && microbatches.contains_key(&node.operands[0]) {
            microbatches.insert(node.results[0], empty());
        }
    }
    microbatches.into_iter().filter(|(_, of)| of.len() > 1).map(|(value, _)| value).collect()
}

fn bucket_class(graph: &Graph, others: &BTreeSet<ValueId>, node: &Node, kind: CollectiveKind) -> BucketClass {
    match kind {
        CollectiveKind::AllGather if is_parameter(graph, others, node.operands[0]) => {
            BucketClass::ParameterGather
        }
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter if node.phase == Phase::WeightGrad => {
            BucketClass::GradientReduction
        }
        _ => BucketClass::Activation,
    }
}

/// For each node, whether it follows from reduced gradients in the backward pass, and only leads to more such nodes and to
/// the update: sums over microbatches, and reductions among the replicas of shards. No op of the backward pass waits for
/// it. `reduces` says which nodes reduce gradients.
pub(crate) fn follows_reductions(graph: &Graph, reduces: &[bool]) -> Vec<bool> {
    let mut follows = vec![false; graph.nodes.len()];
    for id in graph.node_ids() {
        let node = graph.node(id);
        // A node that also reads other values, such as gathered activations, would keep them alive until the update.
        let makers = || node.operands.iter().filter_map(|v| graph.value(*v).definition);
        let is_reduced = |(maker, _): (NodeId, usize)| reduces[maker.index()] || follows[maker.index()];
        let is_constant = |maker: NodeId| matches!(graph.traits(graph.node(maker)), Traits::Constant(_));
        follows[id.index()] = node.phase.is_backward()
            && makers().any(is_reduced)
            && makers().all(|maker| is_reduced(maker) || is_constant(maker.0));
    }
    let mut is_read = vec![false; graph.values.len()];
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        follows[id.index()] &= node.results.iter().all(|result| !is_read[result.index()]);
        if node.phase != Phase::Update && !follows[id.index()] {
            node.operands.iter().for_each(|operand| is_read[operand.index()] = true);
        }
    }
    follows
}

/// Whether the results of a collective in the backward pass are read by weight gradients of its microbatch alone, which run
/// on this rank.
fn reads_for_weights(graph: &Graph, uses: &[Vec<(NodeId, usize)>], id: NodeId) -> bool {
    let node = graph.node(id);
    let readers = readers(graph, uses, node.results[0]);
    let is_weight = |&reader: &NodeId| {
        let reader = graph.node(reader);
        reader.phase == Phase::WeightGrad
            && reader.microbatch == node.microbatch
            && graph.traits(reader).collective().is_none()
    };
    node.phase.is_backward() && !readers.is_empty() && readers.iter().all(is_weight)
}

/// For each node, whether it leads to a value that another stage waits for, through the forward and
/// backward pass alone: what the update sends, such as parts of a norm, depends on every gradient.
fn awaited(graph: &Graph, sent: &[ValueId]) -> Vec<bool> {
    let mut is_awaited = vec![false; graph.values.len()];
    sent.iter().for_each(|value| is_awaited[value.index()] = true);
    let mut awaited = vec![false; graph.nodes.len()];
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        if node.phase != Phase::Update && node.results.iter().any(|result| is_awaited[result.index()]) {
            awaited[id.index()] = true;
            node.operands.iter().for_each(|operand| is_awaited[operand.index()] = true);
        }
    }
    awaited
}

/// For each node of the update, a number of the set of received values that it depends on: those that
/// the update reads first. If two nodes have one set, no path leads from one to the other through
/// another stage, since a value that returns by such a path is only in the set of the second.
fn replies(graph: &Graph, received: &[ValueId]) -> Vec<usize> {
    let mut sets: IndexSet<BTreeSet<ValueId>> = IndexSet::from([BTreeSet::new()]);
    let mut of_value = vec![0; graph.values.len()];
    let mut first_phase: Vec<Option<Phase>> = vec![None; graph.values.len()];
    for node in graph.nodes.iter().rev() {
        node.operands.iter().for_each(|operand| first_phase[operand.index()] = Some(node.phase));
    }
    for &value in received.iter().filter(|value| first_phase[value.index()] == Some(Phase::Update)) {
        of_value[value.index()] = sets.insert_full(BTreeSet::from([value])).0;
    }
    let mut set_of = |node: &Node| -> usize {
        let of_operands: BTreeSet<usize> = node.operands.iter().map(|v| of_value[v.index()]).collect();
        let set = match of_operands.len() {
            0 | 1 => of_operands.first().copied().unwrap_or(0),
            _ => {
                let all = of_operands.iter().flat_map(|&set| sets[set].iter().copied()).collect();
                sets.insert_full(all).0
            }
        };
        node.results.iter().for_each(|result| of_value[result.index()] = set);
        set
    };
    graph.nodes.iter().map(&mut set_of).collect()
}

/// What decides which collectives of a stage may share a bucket.
struct Facts<'a> {
    graph: &'a Graph,
    options: &'a LowerOptions,
    uses: Vec<Vec<(NodeId, usize)>>,
    /// The chains of collectives to and from each node.
    chains: Vec<Chain>,
    /// Whether each node leads to a value that another stage waits for.
    awaited: Vec<bool>,
    /// Whether each node follows from reduced gradients.
    reduced: Vec<bool>,
    /// For each node, the number of the set of received values that it depends on.
    replies: Vec<usize>,
    /// Received values that count as parameters.
    parameters: BTreeSet<ValueId>,
    /// The task of each node, if a timetable orders them.
    tasks: Option<Vec<usize>>,
    /// Whether each value follows from what the caller writes at a pause.
    is_late: Vec<bool>,
}

impl<'a> Facts<'a> {
    fn of(
        graph: &'a Graph,
        options: &'a LowerOptions,
        timing: Option<&Timing>,
        outside: &Outside,
        (sent, received): (&[ValueId], &[ValueId]),
    ) -> Facts<'a> {
        let mut facts = Facts {
            graph,
            options,
            uses: graph.uses(),
            chains: chains(graph),
            awaited: awaited(graph, sent),
            reduced: Vec::new(),
            replies: replies(graph, received),
            parameters: read_by_all(graph, received),
            tasks: timing.map(|timing| timing.tasks_of_nodes(graph)),
            is_late: outside.late_values(graph),
        };
        let reduces = |id: NodeId| {
            let collective = graph.traits(graph.node(id)).collective();
            collective.is_some_and(|op| facts.class(id, kind(op)) == BucketClass::GradientReduction)
        };
        facts.reduced = follows_reductions(graph, &graph.node_ids().map(reduces).collect::<Vec<bool>>());
        facts
    }

    fn class(&self, id: NodeId, kind: CollectiveKind) -> BucketClass {
        match bucket_class(self.graph, &self.parameters, self.graph.node(id), kind) {
            BucketClass::GradientReduction if self.awaited[id.index()] => BucketClass::Activation,
            class => class,
        }
    }

    /// The bucket of a single collective, which sends so many bytes.
    fn bucket(&self, id: NodeId, op: CollectiveRef, meetings: Arc<[Arc<[usize]>]>, bytes: usize) -> Bucket {
        let node = self.graph.node(id);
        let kind = kind(op);
        let class = self.class(id, kind);
        Bucket {
            kind,
            class,
            nodes: vec![id],
            edge: None,
            meetings,
            phase: self.options.part(node.phase),
            microbatch: node.microbatch,
            block: block_of(&node.path).to_string(),
            is_again: class == BucketClass::GradientReduction && self.reduced[id.index()],
            for_weights: class == BucketClass::Activation && reads_for_weights(self.graph, &self.uses, id),
            bytes,
            chain: self.chains[id.index()],
        }
    }

    /// Whether a collective, in this bucket of its own, shares buckets across blocks, up to the size limit.
    fn is_capped(&self, id: NodeId, bucket: &Bucket) -> bool {
        bucket.kind == CollectiveKind::AllReduce
            && matches!(self.graph.node(id).phase, Phase::WeightGrad | Phase::Update)
            && !self.awaited[id.index()]
            && !bucket.is_again
    }

    /// What a collective, in this bucket of its own, must share with others of one bucket.
    fn agreement(&self, id: NodeId, op: CollectiveRef, bucket: &Bucket) -> Agreement {
        let node = self.graph.node(id);
        let task = self.tasks.as_ref().map(|tasks| tasks[id.index()]);
        Agreement {
            kind: bucket.kind,
            meetings: bucket.meetings.clone(),
            combiner: combiner(op),
            pairs: groups(op).1.to_vec(),
            class: bucket.class,
            phase: bucket.phase,
            microbatch: bucket.microbatch,
            is_again: bucket.is_again,
            for_weights: bucket.for_weights,
            is_late: self.is_late[node.results[0].index()],
            place: (bucket.class == BucketClass::Activation).then_some((node.stage, task)),
            reply: self.replies[id.index()],
            block: (!self.is_capped(id, bucket)).then(|| bucket.block.clone()),
        }
    }
}

/// Groups the collectives of the ranks' graphs into buckets. Two collectives may share a bucket if
/// they agree in kind, groups, combiner, part of the step and microbatch, and no path leads from
/// one to the other. In addition
/// - all-reduces of gradients and of the update share a bucket up to the size limit, unless what they reduce was reduced
///   before, block by block;
/// - others share a bucket if they belong to one block and no work of another microbatch, which
///   would have to wait, is between them; those of activations also to one pipeline stage, and apart from them those that
///   only weight gradients read, and to one task of the timetable, since what another task reads may have to wait for
///   another stage. Of several buckets, that of activations joins the latest that makes no chain of collectives longer.
///
/// What follows from what the caller writes at a pause shares no bucket with what does not.
/// Other stages lie between some collectives. A gradient that another stage waits for, that of a tied
/// weight, is reduced as activations are, and collectives of the update share a bucket only if they
/// depend on the same values of other stages. `ends` are the values that cross: the sent and the received ones.
///
/// E400 if ranks disagree on groups.
pub(crate) fn bucket(
    graphs: &[Graph],
    classes: &Classes,
    options: &LowerOptions,
    timing: Option<&Timing>,
    outside: &Outside,
    ends: (&[ValueId], &[ValueId]),
) -> Result<Vec<Bucket>> {
    let first = &graphs[0];
    let facts = Facts::of(first, options, timing, outside, ends);
    let mut groupings = Groupings::default();
    let mut joining = Joining::of(&facts);
    for id in first.node_ids() {
        joining.pass(id);
        let Some(op) = first.traits(first.node(id)).collective() else { continue };
        let meetings = groupings.of(op, classes.rank_count())?;
        check_members(graphs, classes, id, &meetings)?;
        let bytes = graphs.iter().map(|g| g.ty(g.node(id).operands[0]).bytes()).max().unwrap_or(0);
        let bucket = facts.bucket(id, op, meetings, bytes);
        joining.join(id, bucket, op);
    }
    Ok(joining.buckets)
}
