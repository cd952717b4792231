//! Running named passes on a program in text: what `partita opt` and the tests under `tests/files` share.
//!
//! A [`Unit`] begins as one global graph, read from StableHLO text. Passes take it further: graph passes rewrite it,
//! `propagate` writes the layout of every value into it, `partition` makes it the local graphs of a mesh, and the passes
//! of lowering ([`partita_program::PASSES`]) make those the ranks' programs. The passes named `print-..` leave the program
//! as it is and add a report to what is printed.

use crate::layouts::{annotated, origin};
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_cost::Cluster;
use partita_import::{fold_padding, recognise_attention};
use partita_ir::ops::Composite;
use partita_ir::{
    ClassGraph, F8, Graph, Literal, Operation, Registry, Role, Target, TensorType, evaluate, evaluate_ranks,
    graph_edit, precision, quantise, remat, text,
};
use partita_mesh::Mesh;
use partita_program::{
    CollectiveMatmul, KindCount, LowerOptions, Lowering, PASSES, PassContext, ProgramSet, Reference, Region,
    RegionTarget, View, counts, counts_of_graph, find_pass, fusion,
};
use partita_spmd::{Options, Partitioned, microbatch, partition, propagate, split_fused, virtual_ranks};
use std::fmt::Write;

/// A program on its way through passes.
pub struct Unit {
    state: State,
    /// How the global graph was partitioned, once it was.
    partitioned: Option<Box<Partitioned>>,
    /// What the passes named `print-..` have said so far.
    reports: String,
}

enum State {
    /// One graph, for the whole mesh.
    Global(Box<Graph>),
    /// Local graphs, or what lowering has made of them.
    Local(Box<Lowering>),
}

/// Options of the passes.
#[derive(Clone, Default)]
pub struct OptOptions {
    /// The mesh; by default the one that the text declares.
    pub mesh: Option<Mesh>,
    /// Take the text for the local graph of so many alike ranks, with its collectives written out.
    pub ranks: Option<usize>,
    /// What links and devices cost.
    pub cluster: Cluster,
    /// The choices of lowering.
    pub lower: LowerOptions,
    /// Lower for a device that has no kernels of composites and needs no scratch, so that places in memory follow from
    /// the program alone.
    pub plain_device: bool,
}

/// A device without kernels of composites and without scratch.
struct PlainDevice;

impl Target for PlainDevice {
    fn has_kernel(&self, _: &Composite) -> bool {
        false
    }
}

impl RegionTarget for PlainDevice {
    fn workspace_bytes(&self, _: &Region, _: &[View]) -> usize {
        0
    }
}

impl OptOptions {
    /// Takes an item such as `bucket_cap_bytes=64` as a choice of lowering; whether it is one. Besides the numbers and
    /// flags of [`LowerOptions`] there are `collective_matmul=on`, `device=plain`, see [`OptOptions::plain_device`], and
    /// `cluster=h100-8`, a ready cluster, before what depends on it.
    ///
    /// # Errors
    /// E017 where the value does not fit the choice, E473 for a cluster that there is not.
    pub fn set(&mut self, item: &str) -> Result<bool> {
        let Some((name, value)) = item.split_once('=') else { return Ok(false) };
        let unread = |expected: &str| {
            Diagnostic::new("E017", format!("cannot read the choice `{item}`")).expected(expected)
        };
        let (number, flag) = (value.parse::<usize>(), value.parse::<bool>());
        match name {
            "cluster" => self.cluster = Cluster::ready(value)?,
            "bucket_cap_bytes" => self.lower.bucket_cap_bytes = number.map_err(|_| unread("a number"))?,
            "collective_matmul" => {
                self.lower.collective_matmul = CollectiveMatmul::named(value, &self.cluster)?
            }
            "kept_bytes" => self.lower.kept_bytes = Some(number.map_err(|_| unread("a number"))?),
            "logits_bytes" => self.lower.logits_bytes = number.map_err(|_| unread("a number"))?,
            "fused_ops" => self.lower.fused_ops = number.map_err(|_| unread("a number"))?,
            "fused_inputs" => self.lower.fused_inputs = number.map_err(|_| unread("a number"))?,
            "prefetch" => self.lower.prefetch = flag.map_err(|_| unread("`true` or `false`"))?,
            "guard" => self.lower.guard = flag.map_err(|_| unread("`true` or `false`"))?,
            "device" if value == "plain" => self.plain_device = true,
            "device" => return Err(unread("`device=plain`, or nothing for the CPU")),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// A pass over the global graph.
struct GraphPass {
    name: &'static str,
    about: &'static str,
    run: fn(&Graph, &OptOptions, Option<usize>) -> Result<Graph>,
}

const GRAPH_PASSES: &[GraphPass] = &[
    GraphPass {
        name: "attention",
        about: "recognise attention that is written out, and its gradient: they become composites",
        run: |graph, _, _| recognise_attention(graph),
    },
    GraphPass {
        name: "padding",
        about: "take padding into the windows that read it, and slices that remove it again",
        run: |graph, _, _| fold_padding(graph),
    },
    GraphPass {
        name: "prune",
        about: "drop nodes that no output needs",
        run: |graph, _, _| Ok(graph_edit::prune(graph.clone())),
    },
    GraphPass {
        name: "remat",
        about: "compute what marked groups of the forward pass do not keep again where the backward pass reads it",
        run: |graph, _, _| remat::rematerialise(graph.clone()),
    },
    GraphPass {
        name: "precision-bf16",
        about: "compute products and what follows from them in bf16 beside parameters of a wider type",
        run: |graph, _, _| precision::mixed(graph, DType::BF16, &|_| false),
    },
    GraphPass {
        name: "precision-f16",
        about: "as precision-bf16, in f16",
        run: |graph, _, _| precision::mixed(graph, DType::F16, &|_| false),
    },
    GraphPass {
        name: "mxfp8",
        about: "round operands of matmuls by weights to 8 bits, in blocks of 32 along their contraction",
        run: |graph, _, _| quantise::quantised(graph, F8::Mx, None, &|_| false),
    },
    GraphPass {
        name: "f8-block",
        about: "as mxfp8, in blocks of 128, of 128 x 128 for weights",
        run: |graph, _, _| quantise::quantised(graph, F8::Block, None, &|_| false),
    },
    GraphPass {
        name: "f8-delayed",
        about: "as mxfp8, each tensor with a scale from the largest magnitudes of the steps before",
        run: |graph, _, _| quantise::quantised(graph, F8::Delayed, None, &|_| false),
    },
    GraphPass {
        name: "widen-sums",
        about: "end sums whose narrow result is only converted to a wider type in that type",
        run: |graph, _, _| precision::widen_sums(graph),
    },
    GraphPass {
        name: "split-fused",
        about: "split dots whose results are sliced (fused QKV) into dots of slices of the parameter",
        run: |graph, _, _| Ok(split_fused(graph)?.0),
    },
    GraphPass {
        name: "microbatch",
        about: "microbatch=N: run a gradient graph on N parts of the batch, one after the other",
        run: |graph, _, number| microbatch(graph, number.unwrap_or(1)),
    },
    GraphPass {
        name: "propagate",
        about: "give every value a layout, from the ones that are annotated",
        run: |graph, options, _| {
            let mesh = mesh_of(graph, options)?;
            Ok(annotated(graph, &mesh, &propagate(graph, &mesh)?))
        },
    },
];

const PARTITION: (&str, &str) =
    ("partition", "make local graphs, one per class of alike ranks, with their collectives");
const PRINT_LAYOUTS: (&str, &str) =
    ("print-layouts", "report the layout of every value that has a name, and where it comes from");
const PRINT_FUSION: (&str, &str) =
    ("print-fusion", "report what fusion makes of the ops, what keeps them apart, and what runs in chunks");
const PRINT_COLLECTIVES: (&str, &str) = (
    "print-collectives",
    "report the collectives of a local graph in order, and how often ranks meet in each phase",
);
/// Before the name of a pass of lowering: all passes of lowering from the first to that one.
const UP_TO: &str = "..";

/// Every pass, in an order in which they can run: its name and what it does.
pub fn passes() -> Vec<(&'static str, &'static str)> {
    let graph = GRAPH_PASSES.iter().map(|pass| (pass.name, pass.about));
    let lowering = PASSES.iter().map(|pass| (pass.name, pass.about));
    let reports = [PRINT_LAYOUTS, PRINT_FUSION, PRINT_COLLECTIVES];
    graph.chain([PARTITION]).chain(lowering).chain(reports).collect()
}

/// The mesh of the options, else the one of the graph. E017 where there is none, or more than one.
fn mesh_of(graph: &Graph, options: &OptOptions) -> Result<Mesh> {
    match (&options.mesh, &graph.meshes[..]) {
        (Some(mesh), _) => Ok(mesh.clone()),
        (None, [mesh]) => Ok(mesh.clone()),
        (None, meshes) => Err(Diagnostic::new("E017", "this pass needs a mesh")
            .expected("one `sdy.mesh` in the text, or `--mesh AXES`")
            .found(format!("{} meshes", meshes.len()))),
    }
}

impl Unit {
    /// Reads a program.
    ///
    /// # Errors
    /// What reading finds (E14x), and E400 where the ranks of [`OptOptions::ranks`] do not exist.
    pub fn read(source: &str, file: &str, options: &OptOptions) -> Result<Unit> {
        let graph = text::parse_with(source, file, &Registry::default())?;
        let state = match options.ranks {
            None => State::Global(Box::new(graph)),
            Some(ranks) => State::Local(Box::new(Lowering::new(&ClassGraph::alike(graph, ranks))?)),
        };
        Ok(Unit { state, partitioned: None, reports: String::new() })
    }

    /// Runs one pass, given as `name` or `name=number`, or all passes of lowering up to one, given as `..name`.
    ///
    /// # Errors
    /// E017 for a pass that does not exist, or cannot run here; and what the pass finds.
    pub fn run(self, pass: &str, options: &OptOptions, target: &dyn RegionTarget) -> Result<Unit> {
        let (name, number) = match pass.split_once('=') {
            None => (pass, None),
            Some((name, number)) => {
                let number = number.parse::<usize>().ok().filter(|&number| number > 0);
                let number = number.ok_or_else(|| {
                    Diagnostic::new("E017", format!("cannot read the pass `{pass}`"))
                        .expected("a name, or a name and a number above 0 such as `microbatch=2`")
                })?;
                (name, Some(number))
            }
        };
        let Unit { state, partitioned, mut reports } = self;
        let target = if options.plain_device { &PlainDevice } else { target };
        let state = match state {
            State::Global(graph) if name == PRINT_LAYOUTS.0 => {
                reports += &layouts(&graph, &mesh_of(&graph, options)?)?;
                State::Global(graph)
            }
            State::Global(graph) => {
                if let Some(pass) = GRAPH_PASSES.iter().find(|pass| pass.name == name) {
                    let graph = (pass.run)(&graph, options, number)?;
                    return Ok(Unit { state: State::Global(Box::new(graph)), partitioned, reports });
                }
                if name != PARTITION.0 {
                    return Err(misplaced(name, "the text is a global graph: run `partition` first"));
                }
                let mesh = mesh_of(&graph, options)?;
                options.cluster.holds(&mesh)?;
                let partitioning = Options { cluster: options.cluster.clone(), ..Options::default() };
                let partitioned = partition(&graph, &mesh, &partitioning)?;
                let lowering = Lowering::new(&virtual_ranks::class_graphs(&partitioned)?)?;
                let state = State::Local(Box::new(lowering));
                return Ok(Unit { state, partitioned: Some(Box::new(partitioned)), reports });
            }
            State::Local(lowering) if name == PRINT_FUSION.0 => {
                reports += &match lowering.fusion() {
                    Some(fusion) => fusion.to_string(),
                    None => fusion(&lowering.graphs(), &options.lower, target)?.to_string(),
                };
                State::Local(lowering)
            }
            State::Local(lowering) if name == PRINT_COLLECTIVES.0 => {
                reports += &collectives(&lowering);
                State::Local(lowering)
            }
            State::Local(lowering) => {
                let last = name.strip_prefix(UP_TO).unwrap_or(name);
                let last_position = find_pass(last)
                    .map_err(|_| misplaced(last, "local graphs go through the passes of lowering"))?;
                let first_position = if name == last { last_position } else { 0 };
                let context = PassContext { options: &options.lower, target };
                let passes = &PASSES[first_position..=last_position];
                State::Local(Box::new(lowering.run(passes, &context, &mut |_, _| {})?))
            }
        };
        Ok(Unit { state, partitioned, reports })
    }

    /// The program as text, where ranks differ in shapes that of each class of ranks, and the reports.
    pub fn print(&self) -> String {
        let program = match &self.state {
            State::Global(graph) => text::print(graph),
            State::Local(lowering) => {
                let classes = lowering.graphs();
                let head = |ranks: &[usize]| match classes.len() {
                    1 => String::new(),
                    _ => format!("// ranks {ranks:?}\n"),
                };
                classes.iter().map(|c| head(&c.ranks) + &lowering.print(c.ranks[0])).collect()
            }
        };
        program + &self.reports
    }

    /// The types of the inputs that [`Unit::interpret`] takes.
    pub fn inputs(&self) -> Vec<TensorType> {
        let of = |graph: &Graph| graph.inputs.iter().map(|&value| graph.ty(value).clone()).collect();
        match (&self.state, &self.partitioned) {
            (_, Some(partitioned)) => of(&partitioned.graph),
            (State::Global(graph), None) => of(graph),
            (State::Local(lowering), None) => {
                let graphs = lowering.graphs();
                let ranks = graphs.iter().flat_map(|class| class.ranks.iter().map(|_| of(&class.graph)));
                ranks.collect::<Vec<Vec<TensorType>>>().concat()
            }
        }
    }

    /// What the program computes in so many steps in a row, on the reference interpreter: the outputs of each step. What
    /// replaces an input is read by the next step. Inputs and outputs are global tensors, or those of one rank after the
    /// other where the text was a local graph.
    ///
    /// # Errors
    /// E017 where the program has buffers without a place; and what the interpreter finds.
    pub fn interpret(&self, inputs: &[Literal], steps: usize) -> Result<Vec<Vec<Literal>>> {
        let lowering = match &self.state {
            State::Global(graph) => {
                let step = |all: &[Vec<Literal>]| Ok(vec![evaluate(graph, &all[0])?]);
                let results = repeated(&[graph.as_ref()], vec![inputs.to_vec()], steps, step)?;
                return Ok(results.into_iter().flatten().collect());
            }
            State::Local(lowering) => lowering,
        };
        let classes = lowering.graphs();
        let ranks: usize = classes.iter().map(|class| class.ranks.len()).sum();
        let graph = |rank: usize| {
            let class = classes.iter().find(|class| class.ranks.contains(&rank));
            &class.expect("every rank is in a class").graph
        };
        let graphs: Vec<&Graph> = (0..ranks).map(graph).collect();
        let locals: Vec<Vec<Literal>> = match &self.partitioned {
            None => {
                let own = inputs.len() / ranks;
                (0..ranks).map(|rank| inputs[rank * own..][..own].to_vec()).collect()
            }
            Some(p) => {
                let local =
                    |value: &Literal, layout, rank| virtual_ranks::distribute(value, layout, &p.mesh, rank);
                let of_rank = |rank: usize| {
                    inputs.iter().zip(&p.inputs).map(|(value, layout)| local(value, layout, rank)).collect()
                };
                (0..ranks).map(of_rank).collect()
            }
        };
        let results = match lowering.programs() {
            Some(set) => run_programs(set, &graphs, &locals, steps)?,
            None => repeated(&graphs, locals, steps, |all| evaluate_ranks(&graphs, all))?,
        };
        let Some(p) = &self.partitioned else {
            return Ok(results.into_iter().map(|of_ranks| of_ranks.concat()).collect());
        };
        let collected = |of_ranks: Vec<Vec<Literal>>| {
            let outputs = p.graph.outputs.iter().zip(&p.outputs).enumerate();
            let whole = outputs.map(|(position, (&value, layout))| {
                let locals: Vec<&Literal> = of_ranks.iter().map(|result| &result[position]).collect();
                virtual_ranks::collect(p.graph.ty(value), layout, &p.mesh, &locals)
            });
            whole.collect()
        };
        results.into_iter().map(collected).collect()
    }
}

/// The outputs of all ranks in each of some steps; what replaces an input is an input of the next step.
fn repeated(
    graphs: &[&Graph],
    mut inputs: Vec<Vec<Literal>>,
    steps: usize,
    step: impl Fn(&[Vec<Literal>]) -> Result<Vec<Vec<Literal>>>,
) -> Result<Vec<Vec<Vec<Literal>>>> {
    let mut all = Vec::new();
    for _ in 0..steps {
        let outputs = step(&inputs)?;
        for ((graph, inputs), outputs) in graphs.iter().zip(&mut inputs).zip(&outputs) {
            for &(input, output) in &graph.aliases {
                inputs[input] = outputs[output].clone();
            }
        }
        all.push(outputs);
    }
    Ok(all)
}

/// As [`repeated`], in the arenas of the programs: only what has the role of an input is written again before each step.
fn run_programs(
    set: &ProgramSet,
    graphs: &[&Graph],
    inputs: &[Vec<Literal>],
    steps: usize,
) -> Result<Vec<Vec<Vec<Literal>>>> {
    if set.programs.iter().any(|program| program.arena_bytes == 0 && !program.buffers.is_empty()) {
        return Err(Diagnostic::new("E017", "this program cannot be interpreted")
            .found("buffers without a place in the arena")
            .help("run the pass `place` as well, or interpret before `emit`"));
    }
    let mut machine = Reference::new(set);
    let mut all = Vec::new();
    for step in 0..steps {
        for (rank, (graph, inputs)) in graphs.iter().zip(inputs).enumerate() {
            for (position, (&value, literal)) in graph.inputs.iter().zip(inputs).enumerate() {
                if step == 0 || graph.value(value).role == Role::Input {
                    machine.write_input(rank, position, literal)?;
                }
            }
        }
        machine.step()?;
        let outputs = graphs.iter().enumerate().map(|(rank, graph)| {
            (0..graph.outputs.len()).map(|position| machine.output(rank, position)).collect()
        });
        all.push(outputs.collect());
    }
    Ok(all)
}

/// The layouts of the values that have a name: `hidden: [{dp}, {tp}]  from w.up`.
fn layouts(graph: &Graph, mesh: &Mesh) -> Result<String> {
    let layouts = propagate(graph, mesh)?;
    let mut lines = "layouts\n".to_string();
    for value in graph.value_ids().filter(|&value| !graph.value(value).name.is_empty()) {
        let sharding = layouts.sharding(value).display(mesh);
        let line = format!("  {}: {sharding}  {}", graph.value(value).name, origin(graph, &layouts, value));
        let _ = writeln!(lines, "{}", line.trim_end());
    }
    Ok(lines)
}

/// The collectives of rank 0's graph in order, with the types of their results; and how often ranks meet in each phase,
/// for how many tensors and bytes. Once there are programs, that is the meetings of buckets.
fn collectives(lowering: &Lowering) -> String {
    let mut lines = String::new();
    let of_phases = match lowering.programs() {
        Some(set) => counts(set, 0),
        None => {
            let graph = &lowering.graphs()[0].graph;
            for node in graph.nodes.iter().filter(|node| node.op.is_collective()) {
                let name = node.op.name().trim_start_matches("stablehlo.");
                let ty = graph.ty(node.results[0]);
                let _ = writeln!(lines, "  {name} {ty} ({})", node.phase.name());
            }
            counts_of_graph(graph)
        }
    };
    let mut meetings = 0;
    for (phase, of) in of_phases.phases() {
        for (kind, KindCount { count, logical, bytes }) in of.kinds.iter().filter(|(_, of)| of.count > 0) {
            meetings += count;
            let _ = writeln!(lines, "  {phase}: {count} {kind}, {logical} tensors, {bytes} bytes");
        }
    }
    format!("collectives ({meetings})\n{lines}")
}

/// E017: a pass that does not exist, or has no place here.
fn misplaced(name: &str, why: &str) -> Box<Diagnostic> {
    let names: Vec<&str> = passes().into_iter().map(|(name, _)| name).collect();
    if names.contains(&name) {
        return Diagnostic::new("E017", format!("the pass `{name}` cannot run here")).help(why);
    }
    let mut error = Diagnostic::new("E017", format!("there is no pass `{name}`"))
        .expected(format!("one of {}", names.join(", ")));
    error.help = did_you_mean(name, names);
    error
}
