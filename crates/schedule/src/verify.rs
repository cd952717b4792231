//! Verification: compares the planned step on a mesh with the original step on one device.
//!
//! Both run on the same inputs. Loss, outputs, every gradient, every parameter and every optimizer
//! state after the step are compared; the first value that diverges is named. [`bounds`] defines
//! the permitted difference, and why no learning rate changes the verdict.

pub mod bounds;

pub use bounds::{Update, tolerance, tolerance_of, visible_rate};

use bounds::{Bound, Bounds};

use crate::build::{Built, reference_step};
use crate::feed::{Fed, random_feed, scalars};
use crate::plan::Plan;
use crate::request::{BuildOptions, BuildRequest, StepKind};
use crate::stages::{Stage, interpret as interpret_stages, trace};
use crate::structure::{BuildContext, Structured, reference_model};
use crate::tensors::{inputs_of, outputs_by_name, zero_states};
use indexmap::IndexMap;
use partita_base::{DType, Note, Result};
use partita_ir::ops::Composite;
use partita_ir::{Graph, Literal, Phase, Target, interpret};
use partita_mesh::Mesh;
use partita_nn::Model;
use partita_spmd::Partitioned;
use partita_spmd::virtual_ranks;

/// Runs a built step on global inputs and returns global outputs.
pub trait StepRunner: Send + Sync {
    /// A name for messages: `interpreter`, `cpu`.
    fn name(&self) -> &str;
    /// One step.
    fn run(&self, built: &Built, inputs: &[Literal]) -> Result<Vec<Literal>>;
    /// The target it runs on: composites with a kernel there stay; others are inlined before
    /// layouts are applied.
    fn target(&self) -> &dyn Target {
        &Interpreter
    }
    /// [`StepRunner::run`]; a runner that interprets reports to `watch` the operations of each
    /// finished node.
    fn run_watched(&self, built: &Built, inputs: &[Literal], watch: &dyn Fn(f64)) -> Result<Vec<Literal>> {
        let _ = watch;
        self.run(built, inputs)
    }
    /// Whether it runs steps on the reference interpreter.
    fn interprets(&self) -> bool {
        false
    }
    /// Called at the end of each pass of a build. An error aborts the build, for instance when
    /// memory runs short.
    fn at_stage(&self, stage: &str) -> Result<()> {
        let _ = stage;
        Ok(())
    }
    /// Called before so many bytes are taken for `what`. An error refuses it, for instance when it would not fit into
    /// memory.
    fn request(&self, bytes: u64, what: &str) -> Result<()> {
        let _ = (bytes, what);
        Ok(())
    }
}

/// The reference interpreter on virtual ranks in lock step: slow and simple.
pub struct Interpreter;

impl Target for Interpreter {
    fn has_kernel(&self, _composite: &Composite) -> bool {
        true
    }
}

impl StepRunner for Interpreter {
    fn name(&self) -> &str {
        "interpreter"
    }
    fn run(&self, built: &Built, inputs: &[Literal]) -> Result<Vec<Literal>> {
        self.run_watched(built, inputs, &|_| ())
    }
    fn run_watched(&self, built: &Built, inputs: &[Literal], watch: &dyn Fn(f64)) -> Result<Vec<Literal>> {
        interpret_stages(&built.stages, &built.edges, inputs, watch)
    }
    fn interprets(&self) -> bool {
        true
    }
}

/// The interpreter's work for a verification.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// Ranks of the planned step.
    pub ranks: usize,
    /// Nodes, over all ranks and the step on one device.
    pub nodes: usize,
    /// Operations on elements, likewise.
    pub operations: f64,
    /// The most bytes of values held at once.
    pub bytes: u64,
}

impl Work {
    /// The work of evaluating graphs one after another, then the graphs of all ranks of a planned
    /// step together.
    fn of(ranks: usize, alone: &[&Graph], planned: Option<&Built>) -> Work {
        let alone: Vec<interpret::Work> = alone.iter().map(|graph| interpret::work(graph)).collect();
        let together = planned.map_or(Vec::new(), Work::of_ranks);
        let all = || alone.iter().chain(&together);
        Work {
            ranks,
            nodes: all().map(|work| work.nodes).sum(),
            operations: all().map(|work| work.operations).sum(),
            bytes: alone
                .iter()
                .map(|work| work.peak_bytes)
                .chain([together.iter().map(|work| work.peak_bytes).sum()])
                .max()
                .unwrap_or(0),
        }
    }

    /// The work of evaluating a graph and those of all ranks, keeping every value.
    fn of_trace(built: &Built) -> Work {
        let mut all = Work::of_ranks(built);
        all.extend(built.stages.iter().map(|stage| interpret::work(&stage.partitioned.graph)));
        Work {
            ranks: built.mesh.rank_count(),
            nodes: all.iter().map(|work| work.nodes).sum(),
            operations: all.iter().map(|work| work.operations).sum(),
            bytes: all.iter().map(|work| work.bytes).sum(),
        }
    }

    /// The work of each rank; ranks of one class have one graph.
    fn of_ranks(built: &Built) -> Vec<interpret::Work> {
        let of_stage = |stage: &Stage| {
            let Partitioned { locals, class_of_rank, .. } = &stage.partitioned;
            let classes: Vec<interpret::Work> = locals.iter().map(interpret::work).collect();
            class_of_rank.iter().map(|&class| classes[class]).collect::<Vec<_>>()
        };
        built.stages.iter().flat_map(of_stage).collect()
    }
}

/// A task of the interpreter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// The step on one device and, where the runner interprets, the planned step.
    Compare,
    /// Every value of both, to name the first one that differs. If the watcher refuses it, it is
    /// skipped.
    Trace,
}

/// Observes a verification and may refuse tasks.
pub trait Watcher {
    /// The interpreter is about to start this task. An error refuses it.
    fn begins(&self, task: Task, work: &Work) -> Result<()>;
    /// This many more operations are done.
    fn advances(&self, operations: f64);
}

/// What a verification needs memory for.
const VALUES: &str = "the values of a verification";

/// No watcher.
pub struct Unwatched;

impl Watcher for Unwatched {
    fn begins(&self, _: Task, _: &Work) -> Result<()> {
        Ok(())
    }
    fn advances(&self, _: f64) {}
}

/// The comparison of one tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorError {
    /// Name: an output, `grad.<parameter>`, a parameter or a state.
    pub tensor: String,
    /// The largest difference relative to the tensor's largest magnitude, without excused elements.
    pub rel_error: f64,
    /// The largest difference of an element relative to its permitted difference: above 1, it is
    /// wrong.
    pub of_permitted: f64,
    /// Elements beyond the tolerance that rounding explains.
    pub excused: usize,
    /// Elements that differ by more than rounding explains.
    pub wrong: usize,
}

/// The outcome of a verification.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Whether no difference is left unexplained.
    pub ok: bool,
    /// Every compared tensor, in output order.
    pub tensors: Vec<TensorError>,
    /// The tolerance used.
    pub tolerance: f64,
    /// The first value that differs, if any: its description and error.
    pub first_diverging: Option<String>,
}

impl Report {
    /// The tensor that comes nearest to its bound or exceeds it most.
    pub fn worst(&self) -> Option<&TensorError> {
        self.tensors
            .iter()
            .max_by(|a, b| (a.wrong > 0).cmp(&(b.wrong > 0)).then(a.of_permitted.total_cmp(&b.of_permitted)))
    }

    /// Elements that differ by rounding only.
    pub fn excused(&self) -> usize {
        self.tensors.iter().map(|t| t.excused).sum()
    }
}

/// One step of a model, to compare under any plan with the same step on one device.
pub struct Verification<'a> {
    /// The model.
    pub model: &'a Model,
    /// The same model in f64, if the model's type is narrower: separates rounding from errors.
    pub precise: Option<&'a Model>,
    /// The step; see [`BuildOptions::for_verification`].
    pub options: &'a BuildOptions,
    /// What names in the plan refer to, and the runner of the planned step.
    pub context: BuildContext<'a>,
    /// Seed of parameters, inputs and dropout.
    pub seed: u64,
    /// The step's learning rate; at least [`visible_rate`] is fed, so that the update is visible.
    pub learning_rate: f64,
    /// Observes the interpreter's work and progress.
    pub watcher: &'a dyn Watcher,
}

/// The report, with notes about the two sides.
#[derive(Clone, PartialEq, Debug)]
pub struct Verified {
    /// The comparison.
    pub report: Report,
    /// Notes for the user.
    pub notes: Vec<Note>,
}

impl Verification<'_> {
    /// Runs the planned step and, on the interpreter, the original one, on random inputs with
    /// ignored labels spread unevenly, and compares all outputs. A precision that the plan requests
    /// applies to the original step too.
    pub fn run(&self, plan: &Plan, mesh: &Mesh) -> Result<Verified> {
        let plain = reference_model(plan, self.model, &self.context)?;
        let (reference, pieces) = reference_step(&plain, &self.options.step)?;
        let built = BuildRequest::new(self.model, plan, mesh, self.options, self.context).build()?;
        let of_params = self.model.params.values().map(|p| p.ty.dtype).next();
        let dtype = coarsest(&reference).or(of_params).unwrap_or(DType::F64);
        let tolerance = tolerance_of(dtype, self.options.step.f8);

        let full = self.options.step.in_full_precision();
        let precise = self.precise.map(|model| reference_step(&Structured::new(model), &full)).transpose()?;
        let precise = precise.map(|(step, _)| step);
        let alone: Vec<&Graph> = [Some(&reference), precise.as_ref()].into_iter().flatten().collect();
        let interpreted = self.context.runner.interprets().then_some(&built);
        self.begins(&Work::of(mesh.rank_count(), &alone, interpreted))?;

        let mut tensors: Fed = zero_states(&built.step);
        tensors.extend(zero_states(&reference));
        tensors.extend(self.model.trial(self.seed)?);
        tensors.extend(random_feed(self.model, self.seed, 0.3));
        let learning_rate = self.learning_rate.max(visible_rate(of_params.unwrap_or(dtype)));
        tensors.extend(scalars(&reference, self.seed, 1, learning_rate));
        let inputs = inputs_of(&reference, &pieces, &tensors)?;
        let watch = |operations: f64| self.watcher.advances(operations);
        let evaluate = |graph: &Graph, inputs: Vec<Literal>| -> Result<Fed> {
            let mut outputs = interpret::evaluate_ranks_lean(&[graph], &[inputs], Some(&watch))?;
            Ok(outputs_by_name(graph, &pieces, outputs.remove(0)))
        };
        let expected = evaluate(&reference, inputs)?;
        let precise = match &precise {
            None => None,
            Some(step) => {
                let inputs: Vec<Literal> = inputs_of(step, &pieces, &tensors)?
                    .into_iter()
                    .zip(&step.inputs)
                    .map(|(value, &input)| Literal::from_f64(step.ty(input), value.to_f64().into_iter()))
                    .collect();
                Some(evaluate(step, inputs)?)
            }
        };
        let inputs = inputs_of(&built.step, &built.pieces, &tensors)?;
        let outputs = match self.context.runner.run_watched(&built, &inputs, &watch) {
            Ok(outputs) => outputs,
            // Ranks disagree where they must agree: the trace below finds where.
            Err(error) if error.code == "E230" => {
                let first = self.first_diverging(&built, &inputs, tolerance)?;
                let report = Report { ok: false, tensors: Vec::new(), tolerance, first_diverging: first };
                return Ok(Verified { report, notes: built.notes });
            }
            Err(error) => return Err(error),
        };
        let actual = outputs_by_name(&built.step, &built.pieces, outputs);
        let update = Update { options: &self.options.step, before: &tensors, learning_rate };
        let update = (!self.model.is_step()).then_some(update);
        let mut notes = built.notes.clone();
        notes.extend(not_finite(&expected));
        let mut report = compare_within(&expected, &actual, precise.as_ref(), update, tolerance);
        if !report.ok {
            report.first_diverging = self.first_diverging(&built, &inputs, report.tolerance)?;
        }
        Ok(Verified { report, notes })
    }

    /// As [`Verification::run`], the forward and the backward pass of a model with inputs `cotangent.<output>`, as a program
    /// runs them whose caller computes the loss: in pieces, where the runner pauses between the passes. They are compared
    /// with the same passes on one device, on the interpreter.
    pub fn run_passes(&self, plan: &Plan, mesh: &Mesh) -> Result<Verified> {
        let built = BuildRequest::new(self.model, plan, mesh, self.options, self.context)
            .part(StepKind::Gradients)
            .build()?;
        let interpreted = self.context.runner.interprets().then_some(&built);
        self.begins(&Work::of(mesh.rank_count(), &[&built.step], interpreted))?;
        let mut tensors: Fed = zero_states(&built.step);
        tensors.extend(self.model.trial(self.seed)?);
        tensors.extend(random_feed(self.model, self.seed, 0.0));
        tensors.extend(scalars(&built.step, self.seed, 1, self.learning_rate));
        let inputs = inputs_of(&built.step, &built.pieces, &tensors)?;
        let watch = |operations: f64| self.watcher.advances(operations);
        let graph = &built.step;
        let mut alone =
            interpret::evaluate_ranks_lean(&[graph], std::slice::from_ref(&inputs), Some(&watch))?;
        let expected = outputs_by_name(graph, &built.pieces, alone.remove(0));
        let outputs = self.context.runner.run_watched(&built, &inputs, &watch)?;
        let actual = outputs_by_name(graph, &built.pieces, outputs);
        let tolerance = tolerance(coarsest(graph).unwrap_or(DType::F64));
        let report = compare_within(&expected, &actual, None, None, tolerance);
        Ok(Verified { report, notes: built.notes })
    }

    /// Asks the runner and the watcher before the first value is made: of a model that does not fit, not even the states
    /// of its optimizer do.
    fn begins(&self, work: &Work) -> Result<()> {
        self.context.runner.request(work.bytes, VALUES)?;
        self.watcher.begins(Task::Compare, work)
    }

    /// [`first_diverging`], if the watcher and the runner permit it.
    fn first_diverging(&self, built: &Built, inputs: &[Literal], tolerance: f64) -> Result<Option<String>> {
        let work = Work::of_trace(built);
        match self
            .context
            .runner
            .request(work.bytes, VALUES)
            .and_then(|()| self.watcher.begins(Task::Trace, &work))
        {
            Ok(()) => first_diverging(built, inputs, tolerance, &|done| self.watcher.advances(done)),
            Err(_) => Ok(None),
        }
    }
}

/// The float type of all values of a step before its update in which most is lost: parameters may be f32, and results still
/// round as bf16 does.
pub fn coarsest(step: &Graph) -> Option<DType> {
    let nodes = step.nodes.iter().filter(|node| node.phase != Phase::Update);
    let types = nodes.flat_map(|node| &node.results).map(|&value| step.ty(value).dtype);
    types.filter(|dtype| dtype.is_float()).max_by(|a, b| tolerance(*a).total_cmp(&tolerance(*b)))
}

/// A note about outputs that are not finite on one device: equal ones prove little.
fn not_finite(expected: &Fed) -> Option<Note> {
    let is_bad = |value: &Literal| value.ty.dtype.is_float() && value.to_f64().iter().any(|x| !x.is_finite());
    let bad: Vec<&str> =
        expected.iter().filter(|(_, value)| is_bad(value)).map(|(name, _)| name.as_str()).collect();
    let first = bad.first()?;
    let text = format!(
        "{} of {} tensors have NaN or infinite elements on one device too, such as `{first}`: that they agree proves little",
        bad.len(),
        expected.len()
    );
    Some(Note::new("not-finite", text))
}

/// Compares the planned outputs with the reference by name: each element must be within its
/// rounding bound, see [`bounds`]. `precise` are the reference's outputs in f64 if both sides ran
/// in a narrower type. `update` describes the optimizer step; without it new parameters and states
/// are held to the tolerance.
pub fn compare(
    reference: &Fed,
    planned: &Fed,
    precise: Option<&Fed>,
    update: Option<Update>,
    dtype: DType,
) -> Report {
    compare_within(reference, planned, precise, update, tolerance(dtype))
}

/// [`compare`] where so much noise was measured in each output: by how much rounding alone may change it.
pub fn compare_beside_noise(
    reference: &Fed,
    planned: &Fed,
    noise: &IndexMap<String, f64>,
    dtype: DType,
) -> Report {
    compare_to(reference, planned, &Bounds::new(reference, None, None, tolerance(dtype)).beside(noise))
}

/// [`compare`] with this tolerance.
pub fn compare_within(
    reference: &Fed,
    planned: &Fed,
    precise: Option<&Fed>,
    update: Option<Update>,
    tolerance: f64,
) -> Report {
    compare_to(reference, planned, &Bounds::new(reference, precise, update, tolerance))
}

fn compare_to(reference: &Fed, planned: &Fed, bounds: &Bounds) -> Report {
    let compared = |(name, expected): (&String, &Literal)| match planned.get(name) {
        Some(actual) => compare_tensor(name, expected, actual, &bounds.of(name, expected)),
        None => TensorError {
            tensor: name.clone(),
            rel_error: f64::INFINITY,
            of_permitted: f64::INFINITY,
            excused: 0,
            wrong: expected.ty.element_count().max(1),
        },
    };
    let tensors: Vec<TensorError> = reference.iter().map(compared).collect();
    let ok = tensors.iter().all(|t| t.wrong == 0);
    Report { ok, tensors, tolerance: bounds.tolerance, first_diverging: None }
}

fn compare_tensor(name: &str, expected: &Literal, actual: &Literal, bound: &Bound) -> TensorError {
    let (e, a) = (expected.to_f64(), actual.to_f64());
    let tensor = name.to_string();
    let mut error = TensorError { tensor, rel_error: 0.0, of_permitted: 0.0, excused: 0, wrong: 0 };
    if expected.ty != actual.ty {
        (error.rel_error, error.of_permitted) = (f64::INFINITY, f64::INFINITY);
        error.wrong = e.len().max(1);
        return error;
    }
    for (index, (x, y)) in e.iter().zip(&a).enumerate() {
        if x.to_bits() == y.to_bits() {
            continue;
        }
        let (difference, permitted) = ((x - y).abs(), bound.explained.of(index));
        // NaN compares false with everything: it must not pass.
        let explained = difference <= permitted;
        error.of_permitted = largest(error.of_permitted, difference / permitted);
        if explained && difference > bound.plain {
            error.excused += 1;
            continue;
        }
        error.wrong += usize::from(!explained);
        error.rel_error = largest(error.rel_error, difference / bound.magnitude);
    }
    error
}

/// The larger one; NaN counts as larger than all numbers.
fn largest(a: f64, b: f64) -> f64 {
    if b.is_nan() { f64::INFINITY } else { a.max(b) }
}

/// The first value whose shards do not reassemble to the value of one device, with its node:
/// ordered by part of the step, stage, execution order. Runs both sides on the interpreter.
pub fn first_diverging(
    built: &Built,
    inputs: &[Literal],
    tolerance: f64,
    watch: &dyn Fn(f64),
) -> Result<Option<String>> {
    let trace = trace(&built.stages, &built.edges, inputs, watch)?;
    let nothing = Fed::new();
    let bounds = Bounds::new(&nothing, None, None, tolerance);
    let mut first: Option<(Phase, String)> = None;
    for (number, stage) in built.stages.iter().enumerate() {
        let Partitioned { graph, mesh, placements, .. } = &stage.partitioned;
        for placement in placements {
            let Some(expected) = &trace.whole[number][placement.global.index()] else { continue };
            let maker = graph.value(placement.global).definition;
            let phase = maker.map_or(Phase::Forward, |(node, _)| graph.node(node).phase);
            if first.as_ref().is_some_and(|(earlier, _)| *earlier <= phase) {
                continue;
            }
            let shard = |values: &'_ Vec<Option<Literal>>| values[placement.local.index()].clone();
            let shards: Vec<Literal> = trace.on_ranks[number]
                .iter()
                .map(shard)
                .collect::<Option<_>>()
                .expect("every node was evaluated");
            let name = graph.describe(placement.global);
            let laid = format!("{}, layout {}", expected.ty, placement.sharding.display(mesh));
            let shards: Vec<&Literal> = shards.iter().collect();
            let actual = match virtual_ranks::collect(&expected.ty, &placement.sharding, mesh, &shards) {
                Ok(actual) => actual,
                Err(error) => {
                    first = Some((phase, format!("{name}: {laid}: {}", error.message)));
                    continue;
                }
            };
            let error = compare_tensor(&name, expected, &actual, &bounds.of("", expected));
            if error.wrong > 0 {
                first = Some((phase, format!("{name}: {laid}: off by {:.1e}", error.rel_error)));
            }
        }
    }
    Ok(first.map(|(_, found)| found))
}
