//! Lowering as a list of passes.
//!
//! A [`Lowering`] starts as the local graphs of all rank classes and ends as their programs. Each
//! of the [`PASSES`] is a function from `Lowering` to `Lowering`: the first ones rewrite graphs,
//! the middle ones decide on fusion, bucketing and order, the last ones emit instructions and plan
//! memory. Any prefix of the list can be run and printed: `partita lower --print-after NAME`,
//! `partita opt FILE --pass NAME`.

pub(crate) mod accumulate;
pub(crate) mod bucket;
pub(crate) mod collective_matmul;
pub(crate) mod emit;
pub(crate) mod fuse;
pub(crate) mod head;
pub(crate) mod keep;
pub(crate) mod keep_gathered;
pub(crate) mod memory;
mod occupied;
pub(crate) mod offload;
pub(crate) mod order;
pub(crate) mod pause;
pub(crate) mod repeat;
pub(crate) mod scratch;
pub(crate) mod simplify;
pub(crate) mod timing;

use crate::check::check;
use crate::outside::{Outside, StageEnds};
use crate::program::{Program, ProgramSet};
use crate::ranks::Classes;
use crate::{LowerOptions, RegionTarget};
use bucket::{Bucket, BucketClass};
use collective_matmul::{CollectiveMatmul, RingChoice};
use fuse::{Fusion, Step};
use head::HeadCut;
use order::Item;
use partita_base::Result;
use partita_ir::pass::{Form, Pass, Segment, no_pass};
use partita_ir::{ClassGraph, Graph, NodeId, Offload, Operation, Role, ValueId, text};
use std::fmt::Write;
use timing::Timing;

/// The edges of a stage: (position among the inputs or outputs of its graph, number of the edge).
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Edges {
    /// Received values, which are the last inputs.
    pub received: Vec<(usize, usize)>,
    /// Sent values, which are the last outputs.
    pub sent: Vec<(usize, usize)>,
}

/// What all passes may use: the options of lowering, and the device.
#[derive(Clone, Copy)]
pub struct PassContext<'a> {
    /// The options of lowering.
    pub options: &'a LowerOptions,
    /// The device that will run the regions.
    pub target: &'a dyn RegionTarget,
}

/// A step between two passes of lowering.
pub struct Lowering {
    classes: Classes,
    /// One graph per class, all of one structure: the same nodes with the same operands.
    graphs: Vec<Graph>,
    /// The roles of the inputs, by class. They refer to values of the graphs before the first pass.
    roles: Vec<Vec<Role>>,
    /// The edges of received and sent values, with their positions among inputs and outputs. They
    /// are no ports of the program.
    edges: Edges,
    /// When tasks run, if a timetable orders them.
    timing: Option<Timing>,
    /// What the caller touches, and when.
    outside: Outside,
    /// What is kept in host memory.
    offload: Offload,
    /// The buckets: collectives that run as one, and sends over edges.
    buckets: Vec<Bucket>,
    /// Gathers of the backward pass that became views of what the forward pass gathered.
    kept: Vec<NodeId>,
    /// The order of nodes and of the starts and waits of collectives.
    items: Vec<Item>,
    /// The items that become one instruction each.
    steps: Vec<Step>,
    /// The report of fusion.
    fusion: Option<Fusion>,
    /// The programs, from the pass `emit` on.
    set: Option<ProgramSet>,
}

/// The way from the local graphs of all ranks to their programs.
pub struct Back;

impl Segment for Back {
    type State = Lowering;
    type Context<'a> = PassContext<'a>;
}

/// Every pass, in the order in which [`crate::lower`] runs them.
pub const PASSES: &[Pass<Back>] = &[
    Pass::<Back>::always(
        "after-pause",
        "count what follows from a cotangent to the backward pass",
        Form::Ranks,
        |mut lowering, _| {
            let graphs = std::mem::take(&mut lowering.graphs);
            lowering.graphs = lowering.outside.phased(graphs);
            Ok(lowering)
        },
    ),
    Pass::<Back>::always(
        "decompose",
        "inline composites that the device has no kernel for",
        Form::Ranks,
        |lowering, context| lowering.rewritten(|graphs| simplify::decompose(graphs, context.target)),
    ),
    Pass::<Back>::always(
        "chunk-head",
        "split large logits, their loss and their gradients into chunks of rows",
        Form::Ranks,
        |lowering, context| {
            lowering.rewritten(|graphs| head::cut_heads(graphs, context.options, context.target))
        },
    ),
    Pass::<Back>::always(
        "collective-matmul",
        "turn gathers before matmuls and reduce-scatters behind them into permutes under them",
        Form::Ranks,
        |mut lowering, context| {
            let graphs = std::mem::take(&mut lowering.graphs);
            lowering.graphs =
                collective_matmul::as_rings(graphs, &lowering.classes, &context.options.collective_matmul)?;
            Ok(lowering)
        },
    ),
    Pass::<Back>::always(
        "accumulate",
        "add a matmul to another one in place",
        Form::Ranks,
        |lowering, context| lowering.rewritten(|graphs| Ok(accumulate::accumulate(graphs, context.target))),
    ),
    Pass::<Back>::always(
        "scatter-into-sums",
        "turn a sum with a scatter into zeros into a scatter into the other operand",
        Form::Ranks,
        |lowering, _| lowering.rewritten(|graphs| Ok(simplify::scatter_into_sums(graphs))),
    ),
    Pass::<Back>::always(
        "simplify",
        "drop identities, unused nodes and repeated constants",
        Form::Ranks,
        |mut lowering, _| {
            lowering.graphs = simplify::simplify(&lowering.graphs, &lowering.classes)?;
            Ok(lowering)
        },
    ),
    Pass::<Back>::always(
        "recompute",
        "recompute cheap elementwise ops in the backward pass instead of storing them",
        Form::Ranks,
        |lowering, _| lowering.rewritten(|graphs| Ok(repeat::repeat(graphs))),
    ),
    Pass::<Back>::always(
        "keep",
        "keep forward values within a number of bytes and compute the others again",
        Form::Ranks,
        |lowering, context| lowering.rewritten(|graphs| keep::keep(graphs, context.options)),
    ),
    Pass::<Back>::always(
        "bucket",
        "merge collectives of one kind and group when no reader is delayed by it",
        Form::Ranks,
        |mut lowering, context| {
            let values = |ends: Vec<(usize, ValueId)>| ends.into_iter().map(|end| end.1).collect::<Vec<_>>();
            let ends = (&values(lowering.sent())[..], &values(lowering.received())[..]);
            let Lowering { graphs, classes, timing, outside, .. } = &lowering;
            let timing = timing.as_ref();
            lowering.buckets = bucket::bucket(graphs, classes, context.options, timing, outside, ends)?;
            let (graph, ranks) = (&lowering.graphs[0], lowering.classes.rank_count());
            let of_edge = |class, ends| Bucket::of_edge(graph, class, ends, ranks);
            let received = lowering.received().into_iter().map(|end| of_edge(BucketClass::Received, end));
            let sent = lowering.sent().into_iter().map(|end| of_edge(BucketClass::Sent, end));
            let of_edges: Vec<Bucket> = received.chain(sent).collect();
            lowering.buckets.extend(of_edges);
            Ok(lowering)
        },
    ),
    Pass::<Back>::always(
        "keep-gathered",
        "keep gathered parameters where the backward pass follows the forward pass at once",
        Form::Ranks,
        |mut lowering, _| {
            let Lowering { graphs, buckets, timing, .. } = &mut lowering;
            lowering.kept = keep_gathered::keep_gathered(graphs, buckets, timing.as_ref());
            Ok(lowering)
        },
    ),
    Pass::<Back>::always(
        "order",
        "order nodes, and start and wait for collectives so that they overlap with compute",
        Form::Ranks,
        |mut lowering, context| {
            let Lowering { graphs, buckets, kept, timing, outside, .. } = &lowering;
            lowering.items =
                order::order(&graphs[0], buckets, kept, context.options, timing.as_ref(), outside);
            Ok(lowering)
        },
    ),
    Pass::<Back>::always(
        "fuse",
        "fuse elementwise ops and reductions into regions",
        Form::Ranks,
        |mut lowering, context| {
            let Lowering { graphs, buckets, items, .. } = &lowering;
            let (steps, fusion) = fuse::fuse(graphs, buckets, items, context.options);
            (lowering.steps, lowering.fusion) = (steps, Some(fusion));
            Ok(lowering)
        },
    ),
    Pass::<Back>::always(
        "emit",
        "write instructions over views of buffers",
        Form::Ranks,
        |mut lowering, context| {
            lowering.set = Some(lowering.emitted(context));
            Ok(lowering)
        },
    ),
    Pass::<Back>::always(
        "replace-inputs",
        "write new parameters and states over the old ones",
        Form::Ranks,
        |lowering, context| {
            let guard = context.options.guard;
            Ok(lowering.each_program(|program| memory::replace_inputs(program, guard)))
        },
    ),
    Pass::<Back>::always(
        "offload",
        "keep states and activations in host memory while nothing uses them",
        Form::Ranks,
        |lowering, _| {
            let what = lowering.offload.clone();
            Ok(lowering.each_program(|program| offload::offload(program, &what)))
        },
    ),
    Pass::<Back>::always(
        "place",
        "give every buffer its place in the arena",
        Form::Ranks,
        |lowering, context| {
            let alignment = context.target.alignment_bytes();
            Ok(lowering.each_program(|program| memory::assign(program, alignment)))
        },
    ),
    Pass::<Back>::always(
        "check",
        "check the programs of all ranks against each other and against their memory maps",
        Form::Ranks,
        |lowering, _| {
            lowering.set.as_ref().map_or(Ok(()), |set| check(set).map(|_| ()))?;
            Ok(lowering)
        },
    ),
];

/// The position of a pass in [`PASSES`]; E017 for an unknown name.
pub fn find_pass(name: &str) -> Result<usize> {
    let position = PASSES.iter().position(|pass| pass.name == name);
    position.ok_or_else(|| no_pass(name, PASSES.iter().map(|pass| pass.name)))
}

impl Lowering {
    /// The local graphs of all classes, before the first pass.
    ///
    /// # Errors
    /// E400 if their structures differ or their classes do not partition the ranks; E170 for
    /// element types that no op supports.
    pub fn new(locals: &[ClassGraph]) -> Result<Lowering> {
        let ends = locals.first().map(|class| StageEnds { graph: &class.graph, received: &[], sent: &[] });
        let outside = Outside::of_stages(ends.as_slice()).pop().unwrap_or_default();
        Lowering::with_edges(locals, Edges::default(), outside)
    }

    /// As [`Lowering::new`] for a stage whose last inputs and outputs are received and sent over
    /// edges.
    pub(crate) fn with_edges(locals: &[ClassGraph], edges: Edges, outside: Outside) -> Result<Lowering> {
        locals.iter().try_for_each(|class| partita_ir::runnable(&class.graph))?;
        let classes = Classes::of(locals)?;
        let graphs: Vec<Graph> = locals.iter().map(|class| class.graph.clone()).collect();
        simplify::check_structure(&graphs)?;
        let roles = |graph: &Graph| -> Vec<Role> {
            graph.inputs.iter().map(|&value| graph.value(value).role.clone()).collect()
        };
        let roles = graphs.iter().map(roles).collect();
        let (buckets, kept, items, steps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (timing, offload) = (None, Offload::default());
        Ok(Lowering {
            classes,
            graphs,
            roles,
            edges,
            timing,
            outside,
            offload,
            buckets,
            kept,
            items,
            steps,
            fusion: None,
            set: None,
        })
    }

    /// The current graph of each class, before instructions are emitted.
    pub fn graphs(&self) -> Vec<ClassGraph> {
        let ranks = self.classes.ranks.iter();
        self.graphs
            .iter()
            .zip(ranks)
            .map(|(graph, ranks)| ClassGraph { graph: graph.clone(), ranks: ranks.clone() })
            .collect()
    }

    /// The programs, after the pass `emit`.
    pub fn programs(&self) -> Option<&ProgramSet> {
        self.set.as_ref()
    }

    /// As [`Lowering::programs`], consuming the lowering.
    pub fn into_programs(self) -> Option<ProgramSet> {
        self.set
    }

    /// The report of fusion, after the pass `fuse`.
    pub fn fusion(&self) -> Option<&Fusion> {
        self.fusion.as_ref()
    }

    /// The current form of a rank's work as text: its program, else its order of steps, else the
    /// graph of its class.
    pub fn print(&self, rank: usize) -> String {
        let Some(&class) = self.classes.of_rank.get(rank) else { return String::new() };
        let graph = &self.graphs[class];
        if let Some(set) = &self.set {
            return set.display(rank).to_string();
        }
        if self.items.is_empty() && self.buckets.is_empty() {
            return text::print(graph);
        }
        let mut lines = String::new();
        for (number, bucket) in self.buckets.iter().enumerate() {
            let groups: Vec<&[usize]> = bucket.meetings.iter().map(|group| &group[..]).collect();
            let ops: Vec<String> = bucket.nodes.iter().map(|&id| node_line(graph, id)).collect();
            let kind = bucket.kind.name();
            let _ = writeln!(lines, "bucket {number}: {kind} over {groups:?}\n  {}", ops.join("\n  "));
        }
        if self.steps.is_empty() {
            for item in &self.items {
                let _ = match item {
                    Item::Node(id) => writeln!(lines, "{}", node_line(graph, *id)),
                    Item::Start(bucket) => writeln!(lines, "start {bucket}"),
                    Item::Wait(bucket) => writeln!(lines, "wait {bucket}"),
                    Item::Pause => writeln!(lines, "pause"),
                };
            }
        }
        for step in &self.steps {
            let _ = match step {
                Step::Fused { nodes, .. } => {
                    let ops: Vec<String> = nodes.iter().map(|&id| node_line(graph, id)).collect();
                    writeln!(lines, "fused\n  {}", ops.join("\n  "))
                }
                Step::Single(id) => writeln!(lines, "single\n  {}", node_line(graph, *id)),
                Step::Start(bucket) => writeln!(lines, "start {bucket}"),
                Step::Wait(bucket) => writeln!(lines, "wait {bucket}"),
                Step::Pause => writeln!(lines, "pause"),
            };
        }
        lines
    }

    /// The graph of the first class.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graphs[0]
    }

    /// The edges over which values are received, with the values.
    pub(crate) fn received(&self) -> Vec<(usize, ValueId)> {
        let value = |&(position, edge): &(usize, usize)| (edge, self.graphs[0].inputs[position]);
        self.edges.received.iter().map(value).collect()
    }

    /// The edges over which values are sent, with the values.
    pub(crate) fn sent(&self) -> Vec<(usize, ValueId)> {
        let value = |&(position, edge): &(usize, usize)| (edge, self.graphs[0].outputs[position]);
        self.edges.sent.iter().map(value).collect()
    }

    /// Sets what is kept in host memory.
    pub(crate) fn offloading(self, offload: &Offload) -> Lowering {
        Lowering { offload: offload.clone(), ..self }
    }

    /// Sets the timing of a timetable's tasks, which later passes follow.
    pub(crate) fn timed(self, timing: Timing) -> Lowering {
        Lowering { timing: Some(timing), ..self }
    }

    /// Reports how the pass `chunk-head` will run each LM head.
    pub(crate) fn heads(&self, context: &PassContext) -> Vec<HeadCut> {
        head::cuts_of_heads(&self.graphs, context.options, context.target)
    }

    /// The collectives around matmuls that the cost model compares with rings.
    pub(crate) fn priced_rings(&self, choice: &CollectiveMatmul) -> Vec<RingChoice> {
        collective_matmul::priced(&self.graphs, &self.classes, choice)
    }

    fn rewritten(mut self, pass: impl FnOnce(Vec<Graph>) -> Result<Vec<Graph>>) -> Result<Lowering> {
        self.graphs = pass(std::mem::take(&mut self.graphs))?;
        Ok(self)
    }

    fn emitted(&self, context: &PassContext) -> ProgramSet {
        let (collectives, first_meeting) = emit::collectives(&self.graphs, &self.classes, &self.buckets);
        let program = |((graph, ranks), roles): ((&Graph, &Vec<usize>), &Vec<Role>)| {
            let (inputs, outputs) =
                (graph.inputs.len() - self.edges.received.len(), graph.outputs.len() - self.edges.sent.len());
            let ports = emit::Ports { roles: &roles[..inputs], outputs, outside: &self.outside };
            emit::emit(ranks, graph, ports, &self.steps, &self.buckets, &first_meeting, context.target)
        };
        let programs = self.graphs.iter().zip(&self.classes.ranks).zip(&self.roles).map(program).collect();
        ProgramSet { programs, collectives }
    }

    fn each_program(mut self, pass: impl Fn(Program) -> Program) -> Lowering {
        if let Some(set) = &mut self.set {
            set.programs = std::mem::take(&mut set.programs).into_iter().map(pass).collect();
        }
        self
    }
}

/// An op and its module path: `add in layers.0.mlp (tensor<4x8xf32>)`.
fn node_line(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let path = if node.path.is_empty() { "<root>" } else { &node.path };
    let types: Vec<String> = node.results.iter().map(|&result| graph.ty(result).to_string()).collect();
    format!("{} in {path} ({})", node.op.short_name(), types.join(", "))
}

/// A name of a value for messages: its own, else the op and module path that compute it.
pub(crate) fn describe(graph: &Graph, value: ValueId) -> String {
    let name = &graph.value(value).name;
    match graph.value(value).definition {
        Some((node, _)) if name.is_empty() => {
            let node = graph.node(node);
            let path = if node.path.is_empty() { "<root>" } else { &node.path };
            format!("{} in {path}", node.op.short_name())
        }
        _ => name.clone(),
    }
}
