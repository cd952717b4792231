//! Running named passes on a program in text: what `partita opt` and the tests under `tests/files` share.
//!
//! A [`Unit`] begins as one global graph, read from StableHLO text. Passes take it further: graph passes rewrite it,
//! `propagate` writes the layout of every value into it, `partition` makes it the local graphs of a mesh, and the passes
//! of lowering ([`partita_program::PASSES`]) make those the ranks' programs. The passes named `print-..` leave the program
//! as it is and add a report to what is printed.

use crate::layouts::{annotated, origin};
use crate::target::NotRun;
use partita_base::{Diagnostic, Result};
use partita_cost::Cluster;
use partita_import::{fold_padding, recognise_attention};
use partita_ir::ops::Composite;
use partita_ir::pass::{Form, Pass, no_pass, run_passes};
use partita_ir::{
    ClassGraph, Graph, Literal, Operation, Registry, Role, Target, TensorType, complex_as_pairs, evaluate,
    evaluate_ranks, text,
};
use partita_mesh::{MAX_RANKS, Mesh};
use partita_nn::{Optimizer, StepOptions};
use partita_program::{
    CollectiveMatmul, KindCount, LowerOptions, Lowering, PASSES, PassContext, ProgramSet, Reference, Region,
    RegionTarget, View, counts, counts_of_graph, find_pass, fusion,
};
use partita_schedule::passes::{self, Building, Front};
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Differentiated, Plan, Source};
use partita_spmd::{LaidOut, Partitioned, propagate, virtual_ranks};
use std::fmt::Write;

/// Sends a program in text through one pass, whether or not a model would go through it. A pass that works on a mesh first
/// places the graph there, and runs the passes before it that also work on a mesh, unless they have run.
///
/// # Errors
/// E017 for a pass that a text cannot go through; what the pass finds.
fn one_pass(building: Building, pass: &Pass<Front>, request: &BuildRequest) -> Result<Building> {
    let is_placed = building.is_on_mesh();
    match pass.form {
        Form::Graph if !is_placed => (pass.run)(building, request),
        Form::Graph => Err(misplaced(pass.name, "the graph is on a mesh already: run it before `propagate`")),
        Form::Mesh => {
            request.options.cluster.holds(request.mesh)?;
            let building = if is_placed { building } else { building.on_mesh(request.mesh) };
            let on_mesh = || passes::PASSES.iter().filter(|other| other.form == Form::Mesh);
            let last = on_mesh().position(|other| other.name == pass.name).unwrap_or(0);
            run_passes(on_mesh().take(last + 1), building, request, &mut |_, _| Ok(()))
        }
        Form::Model | Form::Ranks => {
            Err(misplaced(pass.name, "it needs a model and its plan: `partita lower`"))
        }
    }
}

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
    Global(Box<Building>),
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

/// What importers do to a program in text, which is a graph of one device.
const IMPORT_PASSES: &[Pass<Front>] = &[
    Pass::<Front>::always(
        "complex-as-pairs",
        "compute with pairs of real numbers in place of complex ones",
        Form::Graph,
        |building, _| building.rewritten(complex_as_pairs),
    ),
    Pass::<Front>::always(
        "attention",
        "recognise attention that is written out, and its gradient: they become composites",
        Form::Graph,
        |building, _| building.rewritten(|graph| recognise_attention(&graph)),
    ),
    Pass::<Front>::always(
        "padding",
        "take padding into the windows that read it, and slices that remove it again",
        Form::Graph,
        |building, _| building.rewritten(|graph| fold_padding(&graph)),
    ),
];

/// Every pass over the graph of one device, or from it to local graphs.
fn front() -> impl Iterator<Item = &'static Pass<Front>> {
    IMPORT_PASSES.iter().chain(passes::PASSES)
}

/// Names of passes with a choice of theirs.
const CHOICES: &[(&str, &str, &str)] = &[
    ("precision-bf16", "precision", "in bf16"),
    ("precision-f16", "precision", "in f16"),
    ("mxfp8", "quantise", "in blocks of 32 along their contraction"),
    ("f8-block", "quantise", "in blocks of 128, of 128 x 128 for weights"),
    ("f8-delayed", "quantise", "each tensor with a scale from the largest magnitudes of the steps before"),
];

/// The pass of this name with its choices: `microbatch=2`, or a name of [`CHOICES`].
///
/// # Errors
/// E017 for another choice.
fn chosen<'n>(pass: &'n str, options: &mut BuildOptions) -> Result<&'n str> {
    if let Some((name, number)) = pass.split_once('=') {
        let number = number.parse::<usize>().ok().filter(|&number| number > 0 && name == "microbatch");
        options.microbatches = number.ok_or_else(|| {
            Diagnostic::new("E017", format!("cannot read the pass `{pass}`"))
                .expected("a name, or `microbatch=` and a number above 0 such as `microbatch=2`")
        })?;
        return Ok(name);
    }
    let Some(&(_, name, _)) = CHOICES.iter().find(|(choice, ..)| *choice == pass) else { return Ok(pass) };
    options.step = options.step.in_precision(pass.strip_prefix("precision-").unwrap_or(pass))?;
    Ok(name)
}

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
pub fn passes() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for pass in front() {
        all.push((pass.name.to_string(), pass.about.to_string()));
        let choices = CHOICES.iter().filter(|(_, of, _)| *of == pass.name);
        all.extend(choices.map(|(name, of, how)| (name.to_string(), format!("the pass `{of}` {how}"))));
    }
    let reports = [PRINT_LAYOUTS, PRINT_FUSION, PRINT_COLLECTIVES];
    let lowering = PASSES.iter().map(|pass| (pass.name, pass.about)).chain(reports);
    all.extend(lowering.map(|(name, about)| (name.to_string(), about.to_string())));
    all
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
    /// What reading finds (E14x), E207 for more than [`MAX_RANKS`] ranks, and E400 where those of [`OptOptions::ranks`] do
    /// not exist.
    pub fn read(source: &str, file: &str, options: &OptOptions) -> Result<Unit> {
        let graph = text::parse_with(source, file, &Registry::default())?;
        let state = match options.ranks {
            None => State::Global(Box::new(Building::from_graph(graph))),
            Some(ranks) if ranks > MAX_RANKS => {
                return Err(Diagnostic::new("E207", "the mesh has too many ranks")
                    .at("--ranks")
                    .expected(format!("at most {MAX_RANKS} ranks"))
                    .found(ranks.to_string()));
            }
            Some(ranks) => State::Local(Box::new(Lowering::new(&ClassGraph::alike(graph, ranks))?)),
        };
        Ok(Unit { state, partitioned: None, reports: String::new() })
    }

    /// Runs one pass, given as `name` or `name=number`, or all passes of lowering up to one, given as `..name`.
    ///
    /// # Errors
    /// E017 for a pass that does not exist, or cannot run here; and what the pass finds.
    pub fn run(self, pass: &str, options: &OptOptions, target: &(dyn RegionTarget + Sync)) -> Result<Unit> {
        let Unit { state, partitioned, mut reports } = self;
        let target = if options.plain_device { &PlainDevice } else { target };
        let mut build = BuildOptions {
            cluster: options.cluster.clone(),
            ..BuildOptions::new(StepOptions::new(Optimizer::from_name("adamw").expect("it is bundled")))
        };
        let name = chosen(pass, &mut build)?;
        let state = match state {
            State::Global(building) if name == PRINT_LAYOUTS.0 => {
                let graph = building.graph();
                reports += &layouts(graph, &mesh_of(graph, options)?)?;
                State::Global(building)
            }
            State::Global(building) => {
                let mesh = mesh_of(building.graph(), options);
                let Some(pass) = front().find(|pass| pass.name == name) else {
                    return Err(misplaced(name, "the text is a global graph: run `partition` first"));
                };
                let mesh = match pass.form {
                    Form::Mesh => mesh?,
                    Form::Model | Form::Graph | Form::Ranks => {
                        mesh.unwrap_or_else(|_| Mesh::new("one", &[("dp", 1)]))
                    }
                };
                let (registry, runner) = (Registry::default(), NotRun(target));
                let context = BuildContext { registry: &registry, runner: &runner };
                // The program is in `building` already, and has neither a plan nor a model.
                let (step, plan, known) = (Graph::default(), Plan::default(), Differentiated::default());
                let source = Source::Differentiated { step: &step, known: &known, is_returned: &|_| true };
                let request = BuildRequest::new(source, &plan, &mesh, &build, context);
                let building = one_pass(*building, pass, &request)?;
                let Some(stage) = building.stages().first() else {
                    return Ok(Unit { state: State::Global(Box::new(building)), partitioned, reports });
                };
                let state = State::Local(Box::new(Lowering::new(&stage.classes)?));
                let partitioned = Some(Box::new(stage.partitioned.clone()));
                return Ok(Unit { state, partitioned, reports });
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
                State::Local(Box::new(run_passes(passes, *lowering, &context, &mut |_, _| Ok(()))?))
            }
        };
        Ok(Unit { state, partitioned, reports })
    }

    /// The program as text, where ranks differ in shapes that of each class of ranks, and the reports.
    pub fn print(&self) -> String {
        let program = match &self.state {
            State::Global(building) => match building.layouts().next() {
                Some(LaidOut { graph, layouts, .. }) => {
                    text::print(&annotated(graph, &layouts.mesh, layouts))
                }
                None => text::print(building.graph()),
            },
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
            (State::Global(building), None) => of(building.graph()),
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
            State::Global(building) => {
                let graph = building.graph();
                let step = |all: &[Vec<Literal>]| Ok(vec![evaluate(graph, &all[0])?]);
                let results = repeated(&[graph], vec![inputs.to_vec()], steps, step)?;
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
    let names: Vec<String> = passes().into_iter().map(|(name, _)| name).collect();
    if names.iter().any(|known| known == name) {
        return Diagnostic::new("E017", format!("the pass `{name}` cannot run here")).help(why);
    }
    no_pass(name, names.iter().map(String::as_str))
}
