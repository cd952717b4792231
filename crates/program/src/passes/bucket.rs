//! Bucketing: merges collectives of one kind and group into one, if no reader waits longer than for
//! the last of them.

use crate::LowerOptions;
use crate::collective::{CollectiveKind, groups, kind, meetings};
use crate::outside::Outside;
use crate::passes::keep_gathered::readers;
use crate::passes::timing::Timing;
use crate::ranks::Classes;
use indexmap::{IndexMap, IndexSet};
use partita_base::{Diagnostic, Result};
use partita_ir::traits::CollectiveRef;
use partita_ir::{Graph, Node, NodeId, Op, Phase, Role, Traits, ValueId};
use partita_mesh::Combiner;
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

/// The collective op of a node that is known to be a collective.
fn exchange_of(graph: &Graph, id: NodeId) -> CollectiveRef<'_> {
    graph.traits(graph.node(id)).collective().expect("all classes have one structure")
}

fn combiner(op: CollectiveRef) -> Option<Combiner> {
    match op {
        CollectiveRef::AllReduce(op) => Some(op.combiner),
        CollectiveRef::ReduceScatter(op) => Some(op.combiner),
        CollectiveRef::AllGather(_)
        | CollectiveRef::AllToAll(_)
        | CollectiveRef::CollectivePermute(_)
        | CollectiveRef::CollectiveBroadcast(_) => None,
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
/// depend on the same values of other stages. `sent` and `received` are the values that cross.
///
/// E400 if ranks disagree on groups.
pub(crate) fn bucket(
    graphs: &[Graph],
    classes: &Classes,
    options: &LowerOptions,
    timing: Option<&Timing>,
    outside: &Outside,
    (sent, received): (&[ValueId], &[ValueId]),
) -> Result<Vec<Bucket>> {
    let first = &graphs[0];
    let awaited = awaited(first, sent);
    let replies = replies(first, received);
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut bucket_of: Vec<Option<usize>> = vec![None; first.nodes.len()];
    let mut open: IndexMap<_, Vec<usize>> = IndexMap::new();
    let chains = chains(first);
    let parameters = read_by_all(first, received);
    let class_of = |id: NodeId, kind| match bucket_class(first, &parameters, first.node(id), kind) {
        BucketClass::GradientReduction if awaited[id.index()] => BucketClass::Activation,
        class => class,
    };
    let reduces = |id: NodeId| {
        let collective = first.traits(first.node(id)).collective();
        collective.is_some_and(|op| class_of(id, kind(op)) == BucketClass::GradientReduction)
    };
    let reduced = follows_reductions(first, &first.node_ids().map(reduces).collect::<Vec<bool>>());
    let mut paths = Paths::new(first);
    let uses = first.uses();
    let tasks = timing.map(|timing| timing.tasks_of_nodes(first));
    let is_late = outside.late_values(first);
    // Number of changes of the microbatch so far, in graph order.
    let (mut turn, mut microbatch) = (0, None);
    let mut turn_of: Vec<usize> = Vec::new();
    // Most collectives of a step use one of a few groupings; each grouping is stored once.
    let mut groupings: IndexSet<Arc<[Arc<[usize]>]>> = IndexSet::new();
    // The group lists that ops share, with their stored form.
    let mut shared: Vec<(&[Vec<usize>], Arc<[Arc<[usize]>]>)> = Vec::new();
    for id in first.node_ids() {
        let node = first.node(id);
        if node.microbatch.is_some() && node.microbatch != microbatch {
            (turn, microbatch) = (turn + 1, node.microbatch);
        }
        let Some(op) = first.traits(node).collective() else { continue };
        let (kind, ranks) = (kind(op), classes.rank_count());
        let (members, pairs) = groups(op);
        let known = shared.iter().find(|(list, _)| pairs.is_empty() && std::ptr::eq(*list, members));
        let meeting = match known {
            Some((_, meeting)) => meeting.clone(),
            None => {
                let own: Arc<[Arc<[usize]>]> = meetings(op, ranks)?.into_iter().map(Arc::from).collect();
                let meeting = groupings.get(&own).cloned().unwrap_or(own);
                groupings.insert(meeting.clone());
                if pairs.is_empty() {
                    shared.push((members, meeting.clone()));
                }
                meeting
            }
        };
        for (graph, of_class) in graphs.iter().zip(&classes.ranks) {
            let other = exchange_of(graph, id);
            let is_shared = std::ptr::eq(groups(other).0, members) && groups(other).1 == pairs;
            let meets_alike = is_shared
                || groups(other) == (members, pairs)
                || meetings(other, ranks)?.iter().map(Vec::as_slice).eq(meeting.iter().map(|group| &**group));
            if !meets_alike || combiner(other) != combiner(op) {
                let (one, two) = (classes.ranks[0][0], of_class[0]);
                return Err(Diagnostic::new(
                    "E400",
                    format!("ranks {one} and {two} disagree on the members of {}", kind.name()),
                )
                .at(node.path.clone()));
            }
        }
        let is_awaited = awaited[id.index()];
        let class = class_of(id, kind);
        let is_again = class == BucketClass::GradientReduction && reduced[id.index()];
        let bytes = graphs.iter().map(|g| g.ty(g.node(id).operands[0]).bytes()).max().unwrap_or(0);
        let capped = kind == CollectiveKind::AllReduce
            && matches!(node.phase, Phase::WeightGrad | Phase::Update)
            && !is_awaited
            && !is_again;
        let block = block_of(&node.path).to_string();
        let phase = options.part(node.phase);
        let for_weights = class == BucketClass::Activation && reads_for_weights(first, &uses, id);
        let key = (
            (kind, meeting.clone(), combiner(op), pairs.to_vec()),
            (class, phase, node.microbatch, is_again, for_weights, is_late[node.results[0].index()]),
            // Between two stages of one slice, a value may pass through another slice.
            (class == BucketClass::Activation)
                .then(|| (node.stage, tasks.as_ref().map(|tasks| tasks[id.index()]))),
            replies[id.index()],
            if capped { None } else { Some(block.clone()) },
        );
        let chain = chains[id.index()];
        let known: &mut Vec<usize> = open.entry(key).or_default();
        let mut is_free = |candidate: usize| {
            let bucket = &buckets[candidate];
            let fits = !capped || bucket.bytes + bytes <= options.bucket_cap_bytes;
            let near = class != BucketClass::Activation || turn_of[candidate] == turn;
            // No ancestor of a gather of a parameter is a collective, so no path can lead through a bucket; one of what was
            // gathered from another stage has one.
            let is_own = class == BucketClass::ParameterGather && parameters.is_empty();
            fits && near && (is_own || paths.is_free(&buckets, &bucket_of, candidate, id))
        };
        let suited = known.iter().rev().filter(|_| class == BucketClass::Activation).copied();
        let suited = suited.filter(|&candidate| buckets[candidate].chain.suits(chain)).find(|&c| is_free(c));
        if let Some(candidate) = suited.or_else(|| known.last().copied().filter(|&last| is_free(last))) {
            let bucket = &mut buckets[candidate];
            bucket.nodes.push(id);
            bucket.bytes += bytes;
            bucket.chain = bucket.chain.joined(chain);
            bucket_of[id.index()] = Some(candidate);
            paths.joined(candidate);
            continue;
        }
        bucket_of[id.index()] = Some(buckets.len());
        known.push(buckets.len());
        turn_of.push(turn);
        buckets.push(Bucket {
            kind,
            class,
            nodes: vec![id],
            edge: None,
            meetings: meeting,
            phase,
            microbatch: node.microbatch,
            block,
            is_again,
            for_weights,
            bytes,
            chain,
        });
    }
    Ok(buckets)
}

/// Reachability in a graph whose buckets count as one node each. The graph is always acyclic.
struct Paths<'a> {
    graph: &'a Graph,
    /// The bucket of the current search.
    target: Option<usize>,
    /// For each node, the last search that found it not to depend on the target.
    seen: Vec<usize>,
    search: usize,
}

impl<'a> Paths<'a> {
    fn new(graph: &'a Graph) -> Self {
        Paths { graph, target: None, seen: vec![0; graph.nodes.len()], search: 0 }
    }

    /// Whether `node`, later in the graph than all members of buckets, can join one without a
    /// cycle, which means that it depends on no member.
    fn is_free(
        &mut self,
        buckets: &[Bucket],
        bucket_of: &[Option<usize>],
        bucket: usize,
        node: NodeId,
    ) -> bool {
        if self.target.replace(bucket) != Some(bucket) {
            self.search += 1;
        }
        let mut stack: Vec<NodeId> = vec![node];
        while let Some(id) = stack.pop() {
            for operand in &self.graph.node(id).operands {
                let Some((definition, _)) = self.graph.value(*operand).definition else { continue };
                let other = bucket_of[definition.index()];
                if other == Some(bucket) {
                    // Nodes visited by this search may depend on the bucket.
                    self.target = None;
                    return false;
                }
                if std::mem::replace(&mut self.seen[definition.index()], self.search) == self.search {
                    continue;
                }
                match other {
                    Some(other) => {
                        for &member in &buckets[other].nodes {
                            self.seen[member.index()] = self.search;
                            stack.push(member);
                        }
                    }
                    None => stack.push(definition),
                }
            }
        }
        true
    }

    /// Records a new member of a bucket. Nodes that depend on the bucket now depend on more, so
    /// results of searches for other buckets are void. A node that does not depend on this bucket
    /// does not depend on the new member either, since that comes later in the graph.
    fn joined(&mut self, bucket: usize) {
        if self.target != Some(bucket) {
            self.target = None;
        }
    }
}
