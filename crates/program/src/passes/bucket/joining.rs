//! Which of the buckets so far a collective joins.

use super::{Bucket, BucketClass, Facts};
use crate::collective::CollectiveKind;
use indexmap::IndexMap;
use partita_ir::traits::CollectiveRef;
use partita_ir::{Graph, NodeId, Phase};
use partita_mesh::Combiner;
use std::sync::Arc;

/// What the collectives of a bucket have in common.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Agreement {
    pub kind: CollectiveKind,
    pub meetings: Arc<[Arc<[usize]>]>,
    pub combiner: Option<Combiner>,
    pub pairs: Vec<(usize, usize)>,
    pub class: BucketClass,
    pub phase: Phase,
    pub microbatch: Option<usize>,
    pub is_again: bool,
    pub for_weights: bool,
    /// Whether they follow from what the caller writes at a pause.
    pub is_late: bool,
    /// The stage and the task of activations. Between two stages of one slice, a value may pass through another slice.
    pub place: Option<(usize, Option<usize>)>,
    /// The set of received values that they depend on.
    pub reply: usize,
    /// The block, unless only the size limit ends a bucket.
    pub block: Option<String>,
}

/// The buckets so far, in graph order.
pub(super) struct Joining<'a> {
    facts: &'a Facts<'a>,
    pub buckets: Vec<Bucket>,
    bucket_of: Vec<Option<usize>>,
    open: IndexMap<Agreement, Vec<usize>>,
    paths: Paths<'a>,
    /// Number of changes of the microbatch so far.
    turn: usize,
    microbatch: Option<usize>,
    /// The turn in which each bucket began.
    turn_of: Vec<usize>,
}

impl<'a> Joining<'a> {
    pub fn of(facts: &'a Facts<'a>) -> Joining<'a> {
        Joining {
            facts,
            buckets: Vec::new(),
            bucket_of: vec![None; facts.graph.nodes.len()],
            open: IndexMap::new(),
            paths: Paths::new(facts.graph),
            turn: 0,
            microbatch: None,
            turn_of: Vec::new(),
        }
    }

    /// Notes the microbatch of the next node.
    pub fn pass(&mut self, id: NodeId) {
        let node = self.facts.graph.node(id);
        if node.microbatch.is_some() && node.microbatch != self.microbatch {
            (self.turn, self.microbatch) = (self.turn + 1, node.microbatch);
        }
    }

    /// Merges a collective, in a bucket of its own, into a bucket so far, or adds it.
    pub fn join(&mut self, id: NodeId, own: Bucket, op: CollectiveRef) {
        let is_capped = self.facts.is_capped(id, &own);
        let known: &mut Vec<usize> = self.open.entry(self.facts.agreement(id, op, &own)).or_default();
        let mut is_free = |candidate: usize| {
            let bucket = &self.buckets[candidate];
            let fits = !is_capped || bucket.bytes + own.bytes <= self.facts.options.bucket_cap_bytes;
            let near = own.class != BucketClass::Activation || self.turn_of[candidate] == self.turn;
            // No ancestor of a gather of a parameter is a collective, so no path can lead through a bucket; one of what was
            // gathered from another stage has one.
            let is_own = own.class == BucketClass::ParameterGather && self.facts.parameters.is_empty();
            fits && near && (is_own || self.paths.is_free(&self.buckets, &self.bucket_of, candidate, id))
        };
        let suited = known.iter().rev().filter(|_| own.class == BucketClass::Activation).copied();
        let suits = |candidate: &usize| self.buckets[*candidate].chain.suits(own.chain);
        let suited = suited.filter(suits).find(|&candidate| is_free(candidate));
        if let Some(candidate) = suited.or_else(|| known.last().copied().filter(|&last| is_free(last))) {
            let bucket = &mut self.buckets[candidate];
            bucket.nodes.push(id);
            bucket.bytes += own.bytes;
            bucket.chain = bucket.chain.joined(own.chain);
            self.bucket_of[id.index()] = Some(candidate);
            self.paths.joined(candidate);
            return;
        }
        self.bucket_of[id.index()] = Some(self.buckets.len());
        known.push(self.buckets.len());
        self.turn_of.push(self.turn);
        self.buckets.push(own);
    }
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
