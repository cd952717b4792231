//! When the nodes of a stage run, according to the tasks of a timetable.
//!
//! A node belongs to the task of its stage, phase and microbatch. A node without a microbatch, such
//! as a sum over all of them, belongs to the first task in which all its operands are ready. A
//! value that depends on step inputs only, such as a mask or the number of tokens of the whole
//! batch, belongs to the first task that reads it. Updates come after all tasks.

use crate::passes::order::maker;
use partita_base::Result;
use partita_ir::{Graph, NodeId, Phase, ValueId};
use partita_pipeline::{Task, TaskKind, Timetable, from_feed};
use std::collections::BTreeMap;

/// The tasks of the mesh slice that runs a graph, and the times at which values cross its edges.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Timing {
    tasks: Vec<Task>,
    /// The slot in which each task begins.
    slots: Vec<usize>,
    microbatches: usize,
    /// Received values, with their edges.
    received: BTreeMap<ValueId, usize>,
    /// Sent values, by edge.
    sent: BTreeMap<usize, ValueId>,
    /// For each edge, the slot in which the sender has the value; `None` if it is ready before the
    /// first slot.
    ready: BTreeMap<usize, Option<usize>>,
    /// For each edge, the slot in which the last of its readers begins to read it.
    taken: BTreeMap<usize, usize>,
}

/// The slot of updates, after all tasks.
const UPDATE: usize = usize::MAX;

/// A stage as a graph, with the values that it receives and sends and their edges.
pub type StageGraph<'a> = (&'a Graph, Vec<(usize, ValueId)>, Vec<(usize, ValueId)>);

/// The tasks of a stage, for an executor of graphs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageTasks {
    /// The task of each node, by its place in the order of the stage; the number of tasks for updates.
    pub of_node: Vec<usize>,
    /// The slot in which each task begins.
    pub slots: Vec<usize>,
}

/// The tasks of each stage of a step in the order of a timetable: those that programs follow.
///
/// # Errors
/// E461 if the timetable does not fit these stages.
pub fn tasks_of_stages(timetable: &Timetable, graphs: &[StageGraph]) -> Result<Vec<StageTasks>> {
    let timings = Timing::of_stages(timetable, graphs)?;
    let tasks = |(timing, (graph, ..)): (Timing, &StageGraph)| StageTasks {
        of_node: timing.tasks_of_nodes(graph),
        slots: timing.slots,
    };
    Ok(timings.into_iter().zip(graphs).map(tasks).collect())
}

impl Timing {
    /// The timing of each stage of a step. `graphs` holds each stage's graph, with the values that
    /// it receives and sends and their edges.
    ///
    /// # Errors
    /// E461 if the timetable does not fit these stages.
    pub fn of_stages(timetable: &Timetable, graphs: &[StageGraph]) -> Result<Vec<Timing>> {
        let slots = timetable.slots()?;
        let mut all: Vec<Timing> = graphs
            .iter()
            .enumerate()
            .map(|(slice, (_, received, sent))| Timing {
                tasks: timetable.slices.get(slice).cloned().unwrap_or_default(),
                slots: slots.get(slice).cloned().unwrap_or_default(),
                microbatches: timetable.microbatches,
                received: received.iter().map(|&(edge, value)| (value, edge)).collect(),
                sent: sent.iter().copied().collect(),
                ready: BTreeMap::new(),
                taken: BTreeMap::new(),
            })
            .collect();
        // The task of a node without a microbatch may depend on what other stages send: iterate to
        // a fixed point.
        let mut ready: BTreeMap<usize, Option<usize>> = BTreeMap::new();
        loop {
            let mut now = BTreeMap::new();
            for (timing, (graph, ..)) in all.iter_mut().zip(graphs) {
                timing.ready.clone_from(&ready);
                let of_node = timing.tasks_of_nodes(graph);
                for (&edge, &value) in &timing.sent {
                    let task = maker(graph, value).map(|node| of_node[node.index()]);
                    now.insert(edge, task.map(|task| timing.slot(task)));
                }
            }
            if now == ready {
                break;
            }
            ready = now;
        }
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        for (timing, (graph, ..)) in all.iter().zip(graphs) {
            for (&edge, task) in &timing.readers(graph, &timing.tasks_of_nodes(graph)) {
                let slot = taken.entry(edge).or_default();
                *slot = (*slot).max(timing.slot(*task));
            }
        }
        for timing in &mut all {
            timing.taken.clone_from(&taken);
        }
        Ok(all)
    }

    fn slot(&self, task: usize) -> usize {
        self.slots.get(task).copied().unwrap_or(UPDATE)
    }

    /// The first task that is no forward pass.
    pub fn first_backward(&self) -> usize {
        let first = self.tasks.iter().position(|task| task.kind != TaskKind::Forward);
        first.unwrap_or(self.tasks.len())
    }

    /// The first task that begins in a slot or later.
    fn task_at(&self, slot: usize) -> usize {
        self.slots.partition_point(|&begin| begin < slot)
    }

    /// The task of each node; the number of tasks for updates.
    pub fn tasks_of_nodes(&self, graph: &Graph) -> Vec<usize> {
        let mut of_phase: BTreeMap<(usize, Phase, usize), usize> = BTreeMap::new();
        for (number, task) in self.tasks.iter().enumerate() {
            for phase in [Phase::Forward, Phase::InputGrad, Phase::WeightGrad] {
                if task.kind.includes(phase) {
                    of_phase.insert((task.stage, phase, task.microbatch), number);
                }
            }
        }
        // A step with one microbatch does not number it.
        let only = (self.microbatches == 1).then_some(0);
        let mut of_node: Vec<usize> = Vec::with_capacity(graph.nodes.len());
        // A node follows from the feed if its results do.
        let values = from_feed(graph, |value| self.received.contains_key(&value));
        let from_feed: Vec<bool> =
            graph.nodes.iter().map(|node| node.results.iter().all(|v| values[v.index()])).collect();
        for node in &graph.nodes {
            let own = node.microbatch.or(only).and_then(|m| of_phase.get(&(node.stage, node.phase, m)));
            let of_operand = |value: &ValueId| match graph.value(*value).definition {
                Some((maker, _)) if from_feed[maker.index()] => 0,
                Some((maker, _)) => of_node[maker.index()],
                None => match self.received.get(value).and_then(|edge| self.ready.get(edge)) {
                    Some(&Some(UPDATE)) => self.tasks.len(),
                    Some(&Some(slot)) => self.task_at(slot + 1),
                    _ => 0,
                },
            };
            of_node.push(match own {
                _ if node.phase == Phase::Update => self.tasks.len(),
                // A value from another stage may arrive later than the node's own task: the gradient of
                // a tied weight.
                own => node.operands.iter().map(of_operand).fold(own.copied().unwrap_or(0), usize::max),
            });
        }
        let mut first_reader: Vec<Option<usize>> = vec![None; graph.nodes.len()];
        for id in graph.node_ids().rev() {
            if from_feed[id.index()] {
                of_node[id.index()] = first_reader[id.index()].unwrap_or(of_node[id.index()]);
            }
            let task = of_node[id.index()];
            for (maker, _) in graph.node(id).operands.iter().filter_map(|v| graph.value(*v).definition) {
                let first = &mut first_reader[maker.index()];
                *first = Some(first.map_or(task, |other| other.min(task)));
            }
        }
        of_node
    }

    /// For each node, whether its results are only sent, or used to compute sent values.
    fn only_send(&self, graph: &Graph) -> Vec<bool> {
        let mut is_read = vec![false; graph.values.len()];
        let returned = graph.outputs.len() - self.sent.len();
        graph.outputs[..returned].iter().for_each(|value| is_read[value.index()] = true);
        let mut only_send = vec![false; graph.nodes.len()];
        let mut leads_to_send = vec![false; graph.values.len()];
        self.sent.values().for_each(|value| leads_to_send[value.index()] = true);
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            let is_only = node.results.iter().all(|v| !is_read[v.index()])
                && node.results.iter().any(|v| leads_to_send[v.index()]);
            only_send[id.index()] = is_only;
            let marks = if is_only { &mut leads_to_send } else { &mut is_read };
            node.operands.iter().for_each(|v| marks[v.index()] = true);
        }
        only_send
    }

    /// For each edge of a received value, the first task that reads it.
    fn readers(&self, graph: &Graph, of_node: &[usize]) -> BTreeMap<usize, usize> {
        let mut first = BTreeMap::new();
        for (node, &task) in graph.nodes.iter().zip(of_node) {
            for edge in node.operands.iter().filter_map(|operand| self.received.get(operand)) {
                let reader = first.entry(*edge).or_insert(task);
                *reader = task.min(*reader);
            }
        }
        // A value that is only returned is read at the end.
        self.received.values().for_each(|&edge| _ = first.entry(edge).or_insert(self.tasks.len()));
        first
    }

    /// The first task on this slice that begins no earlier than the last reader of an edge; the
    /// number of tasks if none does. `None` if only the end of the step is late enough, because
    /// updates read the value.
    pub fn release(&self, edge: usize) -> Option<usize> {
        self.taken.get(&edge).filter(|&&slot| slot != UPDATE).map(|&slot| self.task_at(slot))
    }
}

/// The positions of a graph's nodes when tasks run in the order of the timetable.
pub(crate) struct Places {
    /// The position of each node.
    pub of_node: Vec<isize>,
    /// The first position of each task, and of the updates.
    begin: Vec<isize>,
    /// The position behind all nodes.
    end: isize,
    /// For each edge of a received value, the first task that reads it.
    readers: BTreeMap<usize, usize>,
    /// Whether each node belongs to the backward pass or the update.
    pub is_behind: Vec<bool>,
}

impl Places {
    /// Graph order; with a timetable, tasks in its order and graph order within a task.
    pub fn of(graph: &Graph, timing: Option<&Timing>) -> Places {
        let end = graph.nodes.len() as isize;
        let Some(timing) = timing else {
            let (of_node, begin, readers) = ((0..end).collect(), Vec::new(), BTreeMap::new());
            let is_behind = graph.nodes.iter().map(|node| node.phase != Phase::Forward).collect();
            return Places { of_node, begin, end, readers, is_behind };
        };
        let task_of = timing.tasks_of_nodes(graph);
        // A node that only prepares a value to be sent comes right after its last operand. Values are
        // received in graph order, so that no two stages wait for each other.
        let only_sends = timing.only_send(graph);
        let mut after: Vec<usize> = Vec::with_capacity(graph.nodes.len());
        for id in graph.node_ids() {
            let operands = &graph.node(id).operands;
            let is_early =
                only_sends[id.index()] && !operands.iter().any(|v| timing.received.contains_key(v));
            let makers = operands.iter().filter_map(|v| graph.value(*v).definition);
            let last = makers.map(|(maker, _)| after[maker.index()]).max().unwrap_or(0);
            after.push(if is_early { last } else { id.index() });
        }
        let mut order: Vec<NodeId> = graph.node_ids().collect();
        order.sort_by_key(|id| (task_of[id.index()], after[id.index()], id.index()));
        let mut of_node = vec![0; graph.nodes.len()];
        order.iter().enumerate().for_each(|(place, id)| of_node[id.index()] = place as isize);
        let first = |task| order.partition_point(|id| task_of[id.index()] < task) as isize;
        let begin = (0..=timing.tasks.len()).map(first).collect();
        let is_behind = task_of.iter().map(|&task| task >= timing.first_backward()).collect();
        Places { of_node, begin, end, readers: timing.readers(graph, &task_of), is_behind }
    }

    /// The position where a task begins; behind all nodes if there is no such task.
    pub fn begin_of(&self, task: Option<usize>) -> isize {
        task.and_then(|task| self.begin.get(task)).copied().unwrap_or(self.end)
    }

    /// The position behind the forward pass; behind all nodes without a timetable.
    pub fn behind_forward(&self, timing: Option<&Timing>) -> isize {
        self.begin_of(timing.map(Timing::first_backward))
    }

    /// The first task that reads the value of an edge.
    pub fn reader(&self, edge: usize) -> Option<usize> {
        self.readers.get(&edge).copied()
    }
}

/// Whether a timetable runs input gradients and weight gradients at different times.
pub(crate) fn splits_backward(timetable: &Timetable) -> bool {
    timetable.slices.iter().flatten().any(|task| task.kind == TaskKind::WeightGrad)
}
