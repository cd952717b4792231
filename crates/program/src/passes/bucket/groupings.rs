//! The groups of ranks in which collectives meet.

use crate::collective::{groups, kind, meetings};
use crate::ranks::Classes;
use indexmap::IndexSet;
use partita_base::{Diagnostic, Result};
use partita_ir::traits::CollectiveRef;
use partita_ir::{Graph, NodeId};
use partita_mesh::Combiner;
use std::sync::Arc;

/// Groups of ranks; every rank is in one.
type Meetings = Arc<[Arc<[usize]>]>;

/// Most collectives of a step use one of a few groupings; each grouping is stored once.
#[derive(Default)]
pub(super) struct Groupings<'a> {
    stored: IndexSet<Meetings>,
    /// The group lists that ops share, with their stored form.
    shared: Vec<(&'a [Vec<usize>], Meetings)>,
}

impl<'a> Groupings<'a> {
    pub fn of(&mut self, op: CollectiveRef<'a>, ranks: usize) -> Result<Meetings> {
        let (members, pairs) = groups(op);
        let known = self.shared.iter().find(|(list, _)| pairs.is_empty() && std::ptr::eq(*list, members));
        if let Some((_, meetings)) = known {
            return Ok(meetings.clone());
        }
        let own: Meetings = meetings(op, ranks)?.into_iter().map(Arc::from).collect();
        let meetings = self.stored.get(&own).cloned().unwrap_or(own);
        self.stored.insert(meetings.clone());
        if pairs.is_empty() {
            self.shared.push((members, meetings.clone()));
        }
        Ok(meetings)
    }
}

/// E400 if ranks disagree on the groups of a collective, or on what it computes.
pub(super) fn check_members(
    graphs: &[Graph],
    classes: &Classes,
    id: NodeId,
    meeting: &[Arc<[usize]>],
) -> Result<()> {
    let op = exchange_of(&graphs[0], id);
    let (members, pairs) = groups(op);
    for (graph, of_class) in graphs.iter().zip(&classes.ranks) {
        let other = exchange_of(graph, id);
        let is_shared = std::ptr::eq(groups(other).0, members) && groups(other).1 == pairs;
        let mut meets_alike = is_shared || groups(other) == (members, pairs);
        if !meets_alike {
            let own = meetings(other, classes.rank_count())?;
            meets_alike = own.iter().map(Vec::as_slice).eq(meeting.iter().map(|group| &**group));
        }
        if !meets_alike || combiner(other) != combiner(op) {
            let (one, two) = (classes.ranks[0][0], of_class[0]);
            return Err(Diagnostic::new(
                "E400",
                format!("ranks {one} and {two} disagree on the members of {}", kind(op).name()),
            )
            .at(graphs[0].node(id).path.clone()));
        }
    }
    Ok(())
}

/// The collective op of a node that is known to be a collective.
fn exchange_of(graph: &Graph, id: NodeId) -> CollectiveRef<'_> {
    graph.traits(graph.node(id)).collective().expect("all classes have one structure")
}

/// How a reduction combines what ranks send.
pub(super) fn combiner(op: CollectiveRef) -> Option<Combiner> {
    match op {
        CollectiveRef::AllReduce(op) => Some(op.combiner),
        CollectiveRef::ReduceScatter(op) => Some(op.combiner),
        CollectiveRef::AllGather(_)
        | CollectiveRef::AllToAll(_)
        | CollectiveRef::CollectivePermute(_)
        | CollectiveRef::CollectiveBroadcast(_) => None,
    }
}
