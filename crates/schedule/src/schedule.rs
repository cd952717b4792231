//! The schedule language in Rust: a fluent API over a model; each call adds a line to the plan.

use crate::build::Built;
use crate::call::Argument;
use crate::effects::check_effects;
use crate::modules::{Modules, matches_around, owner};
use crate::passes::{Building, up_to};
use crate::pattern::{Match, Pattern};
use crate::plan::{Entry, Plan};
use crate::primitive::{Offloaded, Primitive};
use crate::request::{BuildOptions, BuildRequest, StepKind};
use crate::structure::{BuildContext, Structured, forward_ops, restructure};
use crate::style::Style;
use crate::sync::{SyncMode, SyncOp};
use crate::verify::{Interpreter, Report, StepRunner, Unwatched, Verification};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Note, Result};
use partita_ir::port::LOSS;
use partita_ir::{Graph, NodeId, Op, Operation, Registry, ValueId};
use partita_mesh::Mesh;
use partita_nn::{Model, Optimizer, StepOptions};
use std::fmt;
use std::ops::{Deref, Range};
use std::panic::Location;

/// A model, a mesh, and the plan so far.
///
/// Every call is checked immediately on the whole model and becomes a line of the [`Plan`]; a
/// rejected call changes nothing. The build derives the layouts that the plan does not name.
///
/// ```
/// # use partita_schedule::Schedule;
/// # use partita_nn::{MlpConfig, ModelConfig};
/// # use partita_base::DType;
/// # use partita_mesh::Mesh;
/// let model = ModelConfig::Mlp(MlpConfig::default()).build(6, DType::F64, true)?;
/// let mut sch = Schedule::new(&model, &Mesh::parse("tp=2", None)?)?;
/// sch.at("layers.0")?.shard("weight", 0)?.shard("bias", 0)?;
/// sch.at("layers.1")?.shard("weight", 1)?.sync("fwd_post", "all_reduce")?;
/// assert_eq!(sch.plan().entries.len(), 4);
/// let built = sch.build()?;
/// assert_eq!(built.mesh.rank_count(), 2);
/// # Ok::<(), Box<partita_base::Diagnostic>>(())
/// ```
pub struct Schedule {
    model: Model,
    mesh: Mesh,
    registry: Registry,
    runner: Box<dyn StepRunner>,
    options: BuildOptions,
    plan: Plan,
    structured: Structured,
    /// The step on which layout lines are checked; valid while `structured`, `options` and `runner`
    /// stay the same.
    step: Option<Building>,
}

impl Schedule {
    /// An empty schedule. Steps run on the reference interpreter until [`Schedule::on`] says otherwise, and update with
    /// AdamW until [`Schedule::options`] does.
    pub fn new(model: &Model, mesh: &Mesh) -> Result<Schedule> {
        let optimizer = Optimizer::from_name("adamw").expect("it is bundled");
        Ok(Schedule {
            model: model.clone(),
            mesh: mesh.clone(),
            registry: Registry::default(),
            runner: Box::new(Interpreter),
            options: BuildOptions::new(StepOptions::new(optimizer)),
            plan: Plan::default(),
            structured: Structured::new(model),
            step: None,
        })
    }

    /// With custom composites for `replace`.
    pub fn with_registry(mut self, registry: Registry) -> Schedule {
        self.registry = registry;
        self
    }

    /// Builds for a device: composites with a kernel on it stay, and verification runs on it.
    pub fn on(mut self, runner: impl StepRunner + 'static) -> Schedule {
        self.runner = Box::new(runner);
        self.step = None;
        self
    }

    /// The build options: optimizer, microbatches, outputs.
    pub fn options(&mut self) -> &mut BuildOptions {
        self.step = None;
        &mut self.options
    }

    /// The modules at a path or pattern (`layers.*`). E221 if there is none.
    pub fn at(&mut self, path: &str) -> Result<At<'_>> {
        Modules::of(self.graph()).named(path, &format!("sch[\"{path}\"]"))?;
        Ok(At { schedule: self, path: path.to_string(), axis: None })
    }

    /// The whole model.
    pub fn root(&mut self) -> At<'_> {
        At { schedule: self, path: String::new(), axis: None }
    }

    /// Every module by its path, with its kind if it is a library module.
    pub fn named_modules(&self) -> Vec<(String, Option<String>)> {
        let paths = Modules::of(&self.model.forward).paths;
        paths.into_iter().map(|path| (path.clone(), self.model.modules.get(&path).cloned())).collect()
    }

    /// The plan so far.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The forward graph with the structural lines so far.
    pub fn graph(&self) -> &Graph {
        &self.structured.model.forward
    }

    /// Notes for the user about the lines so far.
    pub fn notes(&self) -> &[Note] {
        &self.structured.notes
    }

    /// Adds a request for the modules that a pattern matches; an empty pattern is the whole model.
    /// An error changes nothing.
    #[track_caller]
    pub fn apply(&mut self, modules: &str, primitive: impl Into<Primitive>) -> Result<()> {
        let place = Location::caller();
        let origin = format!("{}:{}", place.file(), place.line());
        self.push(&[Entry { modules: modules.to_string(), primitive: primitive.into(), stage: None, origin }])
    }

    /// Appends every line of a plan. An error changes nothing.
    pub fn extend(&mut self, plan: &Plan) -> Result<()> {
        self.push(&plan.entries)
    }

    /// Appends lines, which are checked together: one of them may need another.
    fn push(&mut self, entries: &[Entry]) -> Result<()> {
        let (mut plan, mut structured) = (self.plan.clone(), self.structured.clone());
        for entry in entries {
            structured.apply(entry, &self.context())?;
            plan.entries.push(entry.clone());
        }
        let known = self.step.take().filter(|_| structured.model.forward == *self.graph());
        // Every line so far must still match in the step to be built, and no two may contradict
        // each other. An inference model has nothing to train.
        let trains = structured.model.forward.output_position(LOSS).is_some();
        let part = if trains { StepKind::Step } else { StepKind::Forward };
        let request = self.request(&structured, &plan).part(part);
        let step = match known {
            Some(step) => step,
            None => request.run(up_to("inline-composites"), &mut |_, _| Ok(()))?,
        };
        step.applied(&request)?;
        (self.plan, self.structured, self.step) = (plan, structured, Some(step));
        Ok(())
    }

    /// Removes the last line.
    pub fn undo(&mut self) -> Result<Option<Entry>> {
        let mut plan = self.plan.clone();
        let last = plan.entries.pop();
        let structured = restructure(&plan, &self.model, &self.context())?;
        (self.plan, self.structured, self.step) = (plan, structured, None);
        Ok(last)
    }

    /// The training step under the plan so far, up to the graph of each rank. E229 for a line that changes nothing, E009 for
    /// an axis of the mesh that nothing uses.
    pub fn build(&self) -> Result<Built> {
        let built = self.request(&self.structured, &self.plan).build()?;
        check_effects(&built)?;
        Ok(built)
    }

    /// Runs `body`, then compares one step under the resulting plan with the same step on one
    /// device: loss, every gradient, every parameter and optimizer state must agree. If they do
    /// not, or if `body` fails, the schedule is restored. E253 names the first value that differs
    /// and the line that covers it.
    pub fn verify(&mut self, body: impl FnOnce(&mut Schedule) -> Result<()>) -> Result<Report> {
        let before = (self.plan.clone(), self.structured.clone(), None);
        let known = self.plan.entries.len();
        let verified = body(self).and_then(|()| self.compare()).and_then(|report| match report.ok {
            true => Ok(report),
            false => Err(self.difference(&report, known)),
        });
        if verified.is_err() {
            (self.plan, self.structured, self.step) = before;
        }
        verified
    }

    /// Compares the step under the plan so far with the same step on one device.
    pub fn compare(&self) -> Result<Report> {
        let verification = Verification {
            model: &self.model,
            precise: None,
            options: &self.options.clone().for_verification(),
            context: self.context(),
            seed: 0,
            learning_rate: 1e-3,
            watcher: &Unwatched,
        };
        Ok(verification.run(&self.plan, &self.mesh)?.report)
    }

    /// As [`Schedule::compare`], the forward and the backward pass of `model`, which is the model of the schedule with
    /// inputs
    /// `cotangent.<output>`, as its caller runs them: see [`Verification::run_passes`].
    pub fn compare_passes(&self, model: &Model) -> Result<Report> {
        let verification = Verification {
            model,
            precise: None,
            options: &BuildOptions { microbatches: 1, ..self.options.clone().for_verification() },
            context: self.context(),
            seed: 1,
            learning_rate: 1e-3,
            watcher: &Unwatched,
        };
        Ok(verification.run_passes(&self.plan, &self.mesh)?.report)
    }

    fn context(&self) -> BuildContext<'_> {
        BuildContext { registry: &self.registry, runner: &*self.runner }
    }

    /// The training step of a restructured model.
    fn request<'a>(&'a self, structured: &'a Structured, plan: &'a Plan) -> BuildRequest<'a> {
        BuildRequest::new(structured, plan, &self.mesh, &self.options, self.context())
    }

    /// E253, with the last line since `known` whose modules contain the first difference.
    fn difference(&self, report: &Report, known: usize) -> Box<Diagnostic> {
        let worst = report.worst().map(|t| format!("{} off by {:.1e}", t.tensor, t.rel_error));
        let first = report.first_diverging.clone().or(worst).unwrap_or_default();
        let touches = |entry: &&Entry| {
            entry.modules.is_empty()
                || first.split([' ', ',', '(', ')']).any(|word| matches_around(&entry.modules, word))
        };
        let new = &self.plan.entries[known..];
        let line = new.iter().rev().find(touches).or(new.last()).map(Entry::describe).unwrap_or_default();
        Diagnostic::new("E253", "the schedule changes the numbers")
            .at(line)
            .expected("the numbers of one device")
            .found(first)
            .help("the schedule is back in its state before this scope; apply fewer lines in one scope to find the one that is wrong")
    }
}

impl fmt::Display for Schedule {
    /// The tree of modules with their parameters, and below each the requests for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", self.model.forward.name, self.mesh)?;
        let modules = Modules::of(self.graph());
        let lines = |f: &mut fmt::Formatter<'_>, path: &str, depth: usize| -> fmt::Result {
            for entry in self.plan.entries.iter().filter(|e| match path {
                "" => e.modules.is_empty(),
                path => modules.matching(e.scope()).contains(&path),
            }) {
                writeln!(f, "{}> {}", "  ".repeat(depth), entry.to_call().quoted())?;
            }
            Ok(())
        };
        lines(f, "", 1)?;
        for path in Modules::of(&self.model.forward).paths {
            let depth = path.matches('.').count() + 1;
            let own = path.rsplit('.').next().unwrap_or(&path);
            let kind = self.model.modules.get(&path).map_or("", String::as_str);
            writeln!(f, "{}", format!("{}{own} {kind}", "  ".repeat(depth)).trim_end())?;
            for (name, spec) in self.model.params.iter().filter(|(name, _)| owner(name).0 == path) {
                writeln!(f, "{}{}: {}", "  ".repeat(depth + 1), owner(name).1, spec.ty)?;
            }
            lines(f, &path, depth + 1)?;
        }
        Ok(())
    }
}

/// Matches of a pattern, to be fused or replaced.
#[derive(Clone, Debug)]
pub struct Subgraphs {
    /// The pattern.
    pub pattern: Pattern,
    /// The matches, in graph order.
    pub matches: Vec<Match>,
    /// The selected matches; empty means all.
    pub at: Vec<usize>,
    /// Each match as text.
    words: Vec<String>,
}

impl fmt::Display for Subgraphs {
    /// The selected matches, one line each: number, modules with their ops, result types.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, words) in self.words.iter().enumerate() {
            if self.at.is_empty() || self.at.contains(&number) {
                writeln!(f, "{number:>4}  {words}")?;
            }
        }
        Ok(())
    }
}

impl Subgraphs {
    /// The number of selected matches.
    pub fn count(&self) -> usize {
        self.matches.len()
    }

    /// Selects these matches, from 0.
    pub fn only(mut self, at: &[usize]) -> Subgraphs {
        self.at = at.to_vec();
        self
    }
}

/// Modules of a schedule, for requests.
pub struct At<'a> {
    schedule: &'a mut Schedule,
    path: String,
    axis: Option<String>,
}

impl At<'_> {
    /// Uses this mesh axis in the following calls, rather than `tp` or the only one.
    pub fn over(&mut self, axis: &str) -> &mut Self {
        self.axis = Some(axis.to_string());
        self
    }

    /// Adds a request.
    #[track_caller]
    pub fn apply(&mut self, primitive: impl Into<Primitive>) -> Result<&mut Self> {
        let path = self.path.clone();
        self.schedule.apply(&path, primitive)?;
        Ok(self)
    }

    /// A declared style: `colwise`.
    #[track_caller]
    pub fn style(&mut self, style: &str) -> Result<&mut Self> {
        self.apply(Style::parse(style)?)
    }

    /// Shards a parameter, a buffer, or the `input` or `output` along a dimension; a negative
    /// number counts from the last. E231 if it is sharded along the axis already, E232 for an
    /// unknown tensor, E224 for an unknown dimension.
    #[track_caller]
    pub fn shard(&mut self, tensor: &str, dim: isize) -> Result<&mut Self> {
        let axis = self.axis.clone();
        self.apply(Primitive::Shard { tensor: tensor.to_string(), dim, axis })
    }

    /// Sets where a value is communicated and how: `fwd_pre`, `fwd_post` or `bwd_post`;
    /// `all_reduce`, `all_gather`, `reduce_scatter`, `scatter` or `RS->SR`. E233 if the value is
    /// replicated already, E234 if the operation contradicts its layout.
    #[track_caller]
    pub fn sync(&mut self, mode: &str, op: &str) -> Result<&mut Self> {
        let axis = self.axis.clone();
        self.apply(Primitive::Sync { mode: SyncMode::parse(mode)?, op: SyncOp::parse(op, None)?, axis })
    }

    /// As [`At::sync`], along a dimension.
    #[track_caller]
    pub fn sync_along(&mut self, mode: &str, op: &str, dim: isize) -> Result<&mut Self> {
        let axis = self.axis.clone();
        self.apply(Primitive::Sync { mode: SyncMode::parse(mode)?, op: SyncOp::parse(op, Some(dim))?, axis })
    }

    /// Recomputes each of the modules in the backward pass.
    #[track_caller]
    pub fn checkpoint(&mut self) -> Result<&mut Self> {
        self.apply(Primitive::Checkpoint { pattern: None })
    }

    /// Recomputes each match of a pattern in the backward pass.
    #[track_caller]
    pub fn checkpoint_subgraph(&mut self, pattern: &str) -> Result<&mut Self> {
        self.apply(Primitive::Checkpoint { pattern: Some(pattern.to_string()) })
    }

    /// Inlines composites by one level, and makes layers visible to patterns.
    #[track_caller]
    pub fn decompose(&mut self) -> Result<&mut Self> {
        self.apply(Primitive::Decompose)
    }

    /// Makes modules inside visible to patterns; with `flatten`, down to their layers.
    #[track_caller]
    pub fn trace(&mut self, flatten: bool) -> Result<&mut Self> {
        self.apply(Primitive::Trace { flatten })
    }

    /// Finds a pattern. E242 if it has no match, E248 if it matches only across the boundary of a
    /// module.
    pub fn find(&self, pattern: &Pattern) -> Result<Subgraphs> {
        let primitive = Primitive::Checkpoint { pattern: Some(pattern.text().to_string()) };
        let entry = Entry { modules: self.path.clone(), primitive, stage: None, origin: "find".to_string() };
        let place = |error: Box<Diagnostic>| error.at(format!("sch[\"{}\"].find(..)", self.path));
        let matches = self.schedule.structured.found(pattern, &entry).map_err(place)?;
        let words = matches.iter().map(|found| in_words(self.schedule.graph(), found)).collect();
        Ok(Subgraphs { pattern: pattern.clone(), matches, at: Vec::new(), words })
    }

    /// Makes each subgraph one composite. With a `backend`, that backend must run it as one kernel;
    /// E252 if it does not.
    #[track_caller]
    pub fn fuse(&mut self, subgraphs: &Subgraphs, name: &str, backend: Option<&str>) -> Result<&mut Self> {
        self.apply(Primitive::Fuse {
            pattern: subgraphs.pattern.text().to_string(),
            name: name.to_string(),
            backend: backend.map(str::to_string),
            at: subgraphs.at.clone(),
        })
    }

    /// Replaces the modules by a composite. `bindings` are its attributes, and its arguments if
    /// their names differ from the module's tensors. E250 if it does not fit, E251 if it does not
    /// compute the same.
    #[track_caller]
    pub fn replace(&mut self, with: &str, bindings: &[(&str, Argument)]) -> Result<&mut Self> {
        let bindings = owned(bindings);
        let with = with.to_string();
        self.apply(Primitive::Replace { with, pattern: None, at: Vec::new(), ops: None, bindings })
    }

    /// [`At::replace`] for consecutive ops, by their numbers in [`At::forward_ops`]. E264 if these
    /// ops do not exist.
    #[track_caller]
    pub fn replace_ops(
        &mut self,
        ops: Range<usize>,
        with: &str,
        bindings: &[(&str, Argument)],
    ) -> Result<&mut Self> {
        let (with, ops, bindings) = (with.to_string(), Some((ops.start, ops.end)), owned(bindings));
        self.apply(Primitive::Replace { with, pattern: None, at: Vec::new(), ops, bindings })
    }

    /// [`At::replace`] for each subgraph.
    #[track_caller]
    pub fn replace_subgraphs(
        &mut self,
        subgraphs: &Subgraphs,
        with: &str,
        bindings: &[(&str, Argument)],
    ) -> Result<&mut Self> {
        let pattern = Some(subgraphs.pattern.text().to_string());
        let (at, bindings) = (subgraphs.at.clone(), owned(bindings));
        self.apply(Primitive::Replace { with: with.to_string(), pattern, at, ops: None, bindings })
    }

    /// [`At::replace`] for every module of a kind inside.
    #[track_caller]
    pub fn replace_all(
        &mut self,
        kind: &str,
        with: &str,
        bindings: &[(&str, Argument)],
    ) -> Result<&mut Self> {
        self.apply(Primitive::ReplaceAll {
            kind: kind.to_string(),
            with: with.to_string(),
            bindings: owned(bindings),
        })
    }

    /// A pipeline stage ends after the module.
    #[track_caller]
    pub fn pipeline_split(&mut self) -> Result<&mut Self> {
        self.apply(Primitive::PipelineSplit { mesh: None, ranks: Vec::new() })
    }

    /// The pipeline stage that ends after the module (at the root: the last one) runs on a mesh of
    /// its own, such as `tp=2`, on the ranks that follow those of the previous stage.
    #[track_caller]
    pub fn pipeline_split_on(&mut self, mesh: &str) -> Result<&mut Self> {
        self.apply(Primitive::PipelineSplit { mesh: Some(mesh.to_string()), ranks: Vec::new() })
    }

    /// Clusters the ops of the whole model, at the root, into `count` layers of similar work with few
    /// bytes between them; pipeline stages consist of whole layers.
    #[track_caller]
    pub fn layers(&mut self, count: usize) -> Result<&mut Self> {
        self.apply(Primitive::Layers { count, remat: false })
    }

    /// Attaches a note to a parameter.
    #[track_caller]
    pub fn annotate(&mut self, tensor: &str, key: &str, value: Argument) -> Result<&mut Self> {
        self.apply(Primitive::Annotate { tensor: tensor.to_string(), key: key.to_string(), value })
    }

    /// Computes in this element type.
    #[track_caller]
    pub fn precision(&mut self, compute: DType) -> Result<&mut Self> {
        self.apply(Primitive::Precision { compute })
    }

    /// Keeps optimizer states, or activations, in host memory while nothing uses them.
    #[track_caller]
    pub fn offload(&mut self, what: Offloaded) -> Result<&mut Self> {
        self.apply(Primitive::Offload { what, ahead: None })
    }

    /// Accepted without effect: random numbers depend on the global index of an element on any
    /// mesh.
    #[track_caller]
    pub fn fork_rng(&mut self) -> Result<&mut Self> {
        self.apply(Primitive::ForkRng)
    }

    /// The forward ops of the modules, in order: module path and op name. The printed form numbers
    /// them for [`At::replace_ops`].
    pub fn forward_ops(&self) -> ForwardOps {
        let graph = self.schedule.graph();
        let modules = Modules::of(graph);
        let matching = if self.path.is_empty() { vec![""] } else { modules.matching(self.path.as_str()) };
        let nodes = forward_ops(graph, &matching);
        let op = |id: &NodeId| (graph.node(*id).path.clone(), graph.node(*id).op.short_name().to_string());
        ForwardOps {
            ops: nodes.iter().map(op).collect(),
            results: nodes.iter().map(|&id| types_of(graph, &graph.node(id).results)).collect(),
        }
    }
}

/// Ops of the forward pass in order: module path and op name of each.
#[derive(Clone, PartialEq, Debug)]
pub struct ForwardOps {
    ops: Vec<(String, String)>,
    results: Vec<String>,
}

impl Deref for ForwardOps {
    type Target = [(String, String)];
    fn deref(&self) -> &Self::Target {
        &self.ops
    }
}

impl fmt::Display for ForwardOps {
    /// One line for each: number, module path, op, and the types of its results.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |of: fn(&(String, String)) -> &String| self.ops.iter().map(|op| of(op).len()).max().unwrap_or(0);
        let (paths, names) = (width(|(path, _)| path), width(|(_, op)| op));
        for (number, ((path, op), results)) in self.ops.iter().zip(&self.results).enumerate() {
            writeln!(f, "{number:>4}  {path:<paths$}  {op:<names$}  {results}")?;
        }
        Ok(())
    }
}

/// The types of values, in order.
fn types_of(graph: &Graph, values: &[ValueId]) -> String {
    values.iter().map(|&v| graph.ty(v).to_string()).collect::<Vec<String>>().join(", ")
}

/// A match as text: the modules in order with their ops (constants excluded), and the result types.
fn in_words(graph: &Graph, found: &Match) -> String {
    let mut parts: Vec<(&str, Vec<&str>)> = Vec::new();
    for &id in &found.nodes {
        let node = graph.node(id);
        if matches!(node.op, Op::Constant(_)) {
            continue;
        }
        match parts.last_mut() {
            Some((path, ops)) if *path == node.path => ops.push(node.op.short_name()),
            _ => parts.push((&node.path, vec![node.op.short_name()])),
        }
    }
    let part = |(path, ops): &(&str, Vec<&str>)| match *path {
        "" => ops.join(" "),
        path => format!("{path}: {}", ops.join(" ")),
    };
    let parts: Vec<String> = parts.iter().map(part).collect();
    format!("{} -> {}", parts.join("; "), types_of(graph, &found.outputs))
}

fn owned(bindings: &[(&str, Argument)]) -> IndexMap<String, Argument> {
    bindings.iter().map(|(key, value)| (key.to_string(), value.clone())).collect()
}
