//! The structural pass: lines of a plan that mark, name or replace parts of the forward graph
//! before differentiation. None can change what is computed: a replacement is compared with the
//! original on random numbers.

mod experts;
mod frames;
mod replace;
mod ring;

use crate::modules::{Modules, is_inside};
use crate::offload::offloaded_by;
use crate::pattern::{Match, Pattern};
use crate::pipeline::{Mark, last_nodes, stages_in_order};
use crate::plan::{Entry, Plan};
use crate::primitive::{FOREIGN_COMPILERS, FORK_RNG_NOTE, PIPELINE_NOTE, Primitive, STAGE_ENDS};
use crate::style::Kind;
use crate::{Argument, verify::StepRunner};
pub(crate) use experts::has_grouped;
use frames::Frames;
use partita_base::{DType, Diagnostic, Note, Result, did_you_mean};
use partita_ir::outline::outline;
use partita_ir::{Graph, Node, NodeId, Op, Operation, Registry, graph_edit, precision, remat};
use partita_mesh::Mesh;
use partita_nn::{Model, StepOptions};
pub(crate) use ring::is_self_attention;
use std::collections::BTreeSet;

/// Names that structural lines may refer to.
#[derive(Clone, Copy)]
pub struct BuildContext<'a> {
    /// Composites, including custom ones.
    pub registry: &'a Registry,
    /// The runner of the step, which knows what it runs as one kernel.
    pub runner: &'a dyn StepRunner,
}

/// A note on a parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct Tag {
    /// The parameter's full name.
    pub parameter: String,
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Argument,
}

/// A model after structural lines.
#[derive(Clone, Debug)]
pub struct Structured {
    /// The model; its forward graph is restructured.
    pub model: Model,
    /// Notes on parameters.
    pub tags: Vec<Tag>,
    /// The marks that end pipeline stages, in order of the lines.
    pub(crate) stages: Vec<Mark>,
    /// Whether a line clusters the model into layers; then each node has its layer as its stage.
    pub(crate) has_layers: bool,
    /// Notes for the user.
    pub notes: Vec<Note>,
    /// Lines that request a change and left the model as it was, with the reason.
    pub(crate) unchanged: Vec<(String, String)>,
    /// Lines that request an element type, their modules, and the type.
    computed: Vec<(String, BTreeSet<String>, DType)>,
    frames: Frames,
}

/// Applies the structural lines of a plan to a model and ignores the others.
pub fn restructure(plan: &Plan, model: &Model, context: &BuildContext) -> Result<Structured> {
    Structured::new(model).with_lines(plan, context)
}

/// The model that a plan is compared with: unchanged, but in the precision that the plan requests.
pub fn reference_model(plan: &Plan, model: &Model, context: &BuildContext) -> Result<Structured> {
    let is_precision = |entry: &&Entry| matches!(entry.primitive, Primitive::Precision { .. });
    let entries = plan.entries.iter().filter(is_precision).cloned().collect();
    restructure(&Plan { entries }, model, context)
}

impl Structured {
    /// The unchanged model.
    pub fn new(model: &Model) -> Structured {
        Structured::from_model(model.clone())
    }

    /// This model, unchanged.
    pub(crate) fn from_model(model: Model) -> Structured {
        let frames = Frames::of(&model);
        Structured {
            model,
            tags: Vec::new(),
            stages: Vec::new(),
            has_layers: false,
            notes: Vec::new(),
            unchanged: Vec::new(),
            computed: Vec::new(),
            frames,
        }
    }

    /// With the structural lines of a plan, in order; the others change nothing.
    ///
    /// # Errors
    /// Those of [`Structured::apply`].
    pub(crate) fn with_lines(mut self, plan: &Plan, context: &BuildContext) -> Result<Structured> {
        plan.entries.iter().try_for_each(|entry| self.apply(entry, context))?;
        Ok(self)
    }

    /// A form of the forward graph in the precision of the options: modules for which a line requests an element type keep
    /// that. E267 for a step that arrived differentiated, and the errors of [`precision::mixed`].
    pub fn in_precision(&self, forward: Graph, options: &StepOptions) -> Result<Graph> {
        if options.precision.is_none() && options.f8.is_none() {
            return Ok(forward);
        }
        if self.model.is_step() {
            return Err(Diagnostic::new(
                "E267",
                "a step that contains its gradients has the precision that it was written with",
            )
            .at("train.precision")
            .expected("the forward pass of a model, to be differentiated here")
            .found(format!("`{}`, a whole step", forward.name))
            .help("leave `train.precision` out, and convert in the program that the step comes from"));
        }
        match options.precision {
            Some(compute) => precision::mixed(&forward, compute, &|node| self.keeps_type(node)),
            None => Ok(forward),
        }
    }

    /// Whether a line requests the element type in which a node computes.
    pub(crate) fn keeps_type(&self, node: &Node) -> bool {
        let inside = |modules: &BTreeSet<String>| modules.iter().any(|module| is_inside(&node.path, module));
        self.computed.iter().any(|(_, modules, _)| inside(modules))
    }

    /// Applies one line; an error changes nothing. A layout line does nothing here.
    ///
    /// Errors: E221 a path that matches nothing, E242 a pattern without a match, E248 a match that
    /// crosses the boundary of a module; also the errors of each primitive.
    pub fn apply(&mut self, entry: &Entry, context: &BuildContext) -> Result<()> {
        let why = match &entry.primitive {
            Primitive::Replace { .. } | Primitive::ReplaceAll { .. } => "its modules are that already",
            Primitive::Precision { .. } => "its modules compute in this type already",
            _ => return self.change(entry, context),
        };
        let before = self.model.forward.clone();
        self.change(entry, context)?;
        if computes_as(&self.model.forward, &before) {
            self.unchanged.push((entry.describe(), why.to_string()));
        }
        Ok(())
    }

    fn change(&mut self, entry: &Entry, context: &BuildContext) -> Result<()> {
        let graph = &self.model.forward;
        if entry.stage.is_some() {
            stages_in_order(&self.stages, graph)?;
        }
        let modules = Modules::of(graph);
        match &entry.primitive {
            Primitive::Style(style) if style.kind == Kind::Ring => {
                self.model.forward = ring::around(graph, &named(&modules, entry)?, entry, style.zigzag)?;
            }
            Primitive::Style(style) if style.kind == Kind::Auto => {
                return Err(Diagnostic::new("E235", "`attention_auto` is chosen for a cluster")
                    .at(entry.describe())
                    .expected("a plan in which `attention_auto` is replaced, as that of a config is")
                    .help("write `ulysses` or `ring`"));
            }
            Primitive::Style(style) if style.kind == Kind::Dispatch => {
                self.model.forward = experts::together(graph, &named(&modules, entry)?, entry)?;
            }
            Primitive::Style(_) | Primitive::Shard { .. } | Primitive::Sync { .. } => {}
            Primitive::Checkpoint { pattern: None } => {
                let mut marked = graph.clone();
                for module in named(&modules, entry)? {
                    let nodes = modules.forward_nodes(module);
                    remat::mark(&mut marked, nodes).map_err(|error| error.note(entry.describe()))?;
                }
                self.model.forward = marked;
            }
            Primitive::Checkpoint { pattern: Some(pattern) } => {
                let pattern = Pattern::parse(pattern)?;
                let mut marked = graph.clone();
                for found in self.found(&pattern, entry)? {
                    remat::mark(&mut marked, found.nodes).map_err(|error| error.note(entry.describe()))?;
                }
                self.model.forward = marked;
            }
            Primitive::Decompose => self.decompose(entry)?,
            Primitive::Trace { flatten } => {
                for module in named(&modules, entry)? {
                    if *flatten {
                        self.frames.flatten(module, &modules);
                    }
                }
            }
            Primitive::Fuse { pattern, name, backend, at } => {
                let pattern = Pattern::parse(pattern)?;
                self.each_match(&pattern, at, entry, |graph, found| {
                    fuse(graph, &found.nodes, name, backend.as_deref(), entry, context)
                })?;
                if let Some(foreign) = backend.as_deref().filter(|b| FOREIGN_COMPILERS.contains(b)) {
                    let text = foreign_note(foreign, context.runner.name());
                    self.notes.push(Note::on_line("other-compiler", entry.describe(), text));
                }
            }
            Primitive::Replace { with, ops: Some((first, end)), bindings, .. } => {
                let within = named(&modules, entry)?;
                let nodes = forward_ops(graph, &within);
                let chosen =
                    nodes.get(*first..*end).filter(|chosen| !chosen.is_empty()).ok_or_else(|| {
                        Diagnostic::new("E264", format!("`{}` has no such ops", entry.modules))
                            .at(entry.describe())
                            .expected(format!(
                                "consecutive ops from 0 to {}, the end not included",
                                nodes.len()
                            ))
                            .found(format!("{first}:{end}"))
                            .help("print the ops of a module with their numbers: `forward_ops()`")
                    })?;
                self.model.forward = replace::ops(graph, chosen, with, bindings, entry, context)?;
            }
            Primitive::Replace { with, pattern: None, bindings, .. } => {
                let paths: Vec<String> = named(&modules, entry)?.into_iter().map(str::to_string).collect();
                self.replace_modules(&paths, with, bindings, entry, context)?;
            }
            Primitive::Replace { with, pattern: Some(pattern), at, bindings, .. } => {
                let pattern = Pattern::parse(pattern)?;
                self.each_match(&pattern, at, entry, |graph, found| {
                    replace::subgraph(graph, found, with, bindings, entry, context)
                })?;
            }
            Primitive::ReplaceAll { kind, with, bindings } => {
                let paths = self.of_kind(kind, entry, &modules)?;
                self.replace_modules(&paths, with, bindings, entry, context)?;
            }
            Primitive::PipelineSplit { mesh, ranks } => {
                let mesh = mesh.as_ref().map(|axes| Mesh::parse(axes, None)).transpose();
                let mesh = mesh.map_err(|error| error.at(entry.describe()))?;
                let mut stages = self.stages.clone();
                for module in named(&modules, entry)? {
                    let is_bare_root = module.is_empty() && mesh.is_none();
                    if is_bare_root || stages.iter().any(|stage| stage.module == module) {
                        let why = if is_bare_root {
                            "nothing follows the complete model"
                        } else {
                            "a stage already ends there"
                        };
                        return Err(Diagnostic::new(
                            "E256",
                            format!("no pipeline stage can end here: {why}"),
                        )
                        .at(entry.describe())
                        .expected("a module inside the model, at most once")
                        .found(format!("`{module}`")));
                    }
                    stages.push(Mark {
                        module: module.to_string(),
                        mesh: mesh.clone(),
                        ranks: ranks.clone(),
                        line: entry.describe(),
                    });
                }
                // The structural lines of a stage are for the nodes that have its number.
                let mut marked = graph.clone();
                partita_pipeline::mark::after(&mut marked, &last_nodes(&stages, graph));
                self.model.forward = marked;
                self.stages = stages;
                self.notes.push(Note::on_line(STAGE_ENDS, entry.describe(), PIPELINE_NOTE));
            }
            Primitive::Layers { count, remat } => {
                if !entry.modules.is_empty() || self.has_layers {
                    return Err(Diagnostic::new(
                        "E256",
                        "`layers(..)` clusters the layers of the complete model, once",
                    )
                    .at(entry.describe())
                    .expected("one line for the complete model: `sch.layers(4)`"));
                }
                let mut marked = graph.clone();
                let layers = partita_pipeline::mark::layered(&mut marked, *count)
                    .map_err(|error| error.note(entry.describe()))?;
                for layer in layers.into_iter().filter(|_| *remat) {
                    remat::mark(&mut marked, layer.map(NodeId::new))
                        .map_err(|error| error.note(entry.describe()))?;
                }
                self.model.forward = marked;
                self.has_layers = true;
            }
            Primitive::Annotate { tensor, key, value } => {
                let mut tags = Vec::new();
                for module in named(&modules, entry)? {
                    let full = if module.is_empty() { tensor.clone() } else { format!("{module}.{tensor}") };
                    if !self.model.params.contains_key(&full) {
                        let mut error = Diagnostic::new("E232", format!("there is no parameter `{full}`"))
                            .at(entry.describe());
                        error.help = did_you_mean(&full, self.model.params.keys().map(String::as_str));
                        return Err(error);
                    }
                    tags.push(Tag { parameter: full, key: key.clone(), value: value.clone() });
                }
                for tag in tags {
                    let same = |other: &Tag| (&other.parameter, &other.key) == (&tag.parameter, &tag.key);
                    if let Some(place) = self.tags.iter().position(same) {
                        let before = self.tags.remove(place);
                        if before.value != tag.value {
                            let (key, of, was) = (&tag.key, &tag.parameter, before.value.describe());
                            let text = format!("replaces `{key}` of `{of}`, which was {was}");
                            self.notes.push(Note::on_line("replaced", entry.describe(), text));
                        }
                    }
                    self.tags.push(tag);
                }
            }
            Primitive::Precision { compute } => {
                let mut nodes: BTreeSet<NodeId> = BTreeSet::new();
                for module in named(&modules, entry)? {
                    nodes.extend(modules.forward_nodes(module));
                }
                let modules: BTreeSet<String> =
                    named(&modules, entry)?.into_iter().map(str::to_string).collect();
                self.model.forward = precision::compute_in(graph, &nodes, *compute)?;
                let line = entry.describe();
                for (before, earlier, other) in &self.computed {
                    let inside = |path: &String| modules.iter().any(|module| is_inside(path, module));
                    if other != compute && earlier.iter().all(inside) {
                        let text = format!("{line} replaces {before}");
                        self.notes.push(Note { code: "replaced", line: Some(before.clone()), text });
                        self.unchanged.push((before.clone(), format!("{line} replaces it")));
                    }
                }
                self.computed.push((line, modules, *compute));
            }
            // Concerns the programs of ranks alone.
            Primitive::Offload { .. } => _ = offloaded_by(entry, &modules)?,
            Primitive::ForkRng => {
                for module in named(&modules, entry)? {
                    let text = format!("`{module}`: fork_rng {FORK_RNG_NOTE}");
                    self.notes.push(Note { code: "no-effect", line: Some(entry.describe()), text });
                }
            }
        }
        Ok(())
    }

    /// Inlines every composite of the modules by one level, and makes their leaf layers visible to
    /// patterns.
    fn decompose(&mut self, entry: &Entry) -> Result<()> {
        let graph = &self.model.forward;
        let modules = Modules::of(graph);
        let paths = named(&modules, entry)?;
        let within = |path: &str| paths.iter().any(|module| is_inside(path, module));
        let is_opened = |node: &Node| matches!(node.op, Op::Composite(_)) && within(&node.path);
        let leaves: Vec<String> = paths
            .iter()
            .filter(|path| self.frames.is_closed_leaf(path))
            .map(|path| path.to_string())
            .collect();
        if leaves.is_empty() && !graph.nodes.iter().any(is_opened) {
            return Err(Diagnostic::new("E255", "there is nothing to decompose")
                .at(entry.describe())
                .expected("a module with composites, or a layer such as Linear")
                .found(format!("`{}` is already primitive ops", paths.join("`, `"))));
        }
        self.model.forward = graph_edit::open_once(graph, &is_opened)?;
        leaves.iter().for_each(|leaf| self.frames.open(leaf));
        Ok(())
    }

    /// The modules of a kind inside those that a line names.
    fn of_kind(&self, kind: &str, entry: &Entry, modules: &Modules) -> Result<Vec<String>> {
        let around = named(modules, entry)?;
        let all = &self.model.modules;
        let inside = |path: &str| around.iter().any(|module| is_inside(path, module));
        let paths: Vec<String> =
            all.iter().filter(|(path, k)| *k == kind && inside(path)).map(|(path, _)| path.clone()).collect();
        if paths.is_empty() {
            let mut kinds: Vec<&str> = all.values().map(String::as_str).collect();
            kinds.sort_unstable();
            kinds.dedup();
            let mut error = Diagnostic::new("E221", format!("there is no module of kind `{kind}`"))
                .at(entry.describe())
                .expected(kinds.join(", "))
                .found(kind);
            error.help = did_you_mean(kind, kinds.iter().copied());
            return Err(error);
        }
        Ok(paths)
    }

    /// Replaces each of these modules by a composite.
    fn replace_modules(
        &mut self,
        paths: &[String],
        with: &str,
        bindings: &indexmap::IndexMap<String, Argument>,
        entry: &Entry,
        context: &BuildContext,
    ) -> Result<()> {
        let mut graph = self.model.forward.clone();
        for path in paths {
            graph = replace::module(&graph, path, with, bindings, entry, context)?;
        }
        self.model.forward = graph;
        Ok(())
    }

    /// Every match of a pattern in the modules of a line that crosses no boundary, in graph order.
    pub(crate) fn found(&self, pattern: &Pattern, entry: &Entry) -> Result<Vec<Match>> {
        self.found_in(&self.model.forward, pattern, entry)
    }

    fn found_in(&self, graph: &Graph, pattern: &Pattern, entry: &Entry) -> Result<Vec<Match>> {
        let modules = Modules::of(graph);
        let mut all: Vec<Match> = Vec::new();
        let mut blocked = None;
        for module in named(&modules, entry)? {
            for found in pattern.find(graph, &|id| is_inside(&graph.node(id).path, module)) {
                let nodes: BTreeSet<NodeId> = found.nodes.iter().copied().collect();
                match self.frames.boundary(graph, &modules, &nodes, module) {
                    Some(boundary) => _ = blocked.get_or_insert((boundary, module.to_string())),
                    None if all.iter().any(|other| other.nodes.iter().any(|n| nodes.contains(n))) => {}
                    None => all.push(found),
                }
            }
        }
        all.sort_by_key(|found| found.nodes.last().copied());
        match (all.is_empty(), blocked) {
            (false, _) => Ok(all),
            (true, Some((boundary, module))) => {
                let (what, help) = if self.frames.is_closed_leaf(&boundary) {
                    ("layer", format!("inline it first: sch[\"{boundary}\"].decompose()"))
                } else {
                    let place =
                        if module.is_empty() { "sch".to_string() } else { format!("sch[\"{module}\"]") };
                    ("module", format!("trace through it first: {place}.trace(flatten=True)"))
                };
                Err(Diagnostic::new(
                    "E248",
                    format!("the pattern crosses the boundary of the {what} `{boundary}`"),
                )
                .at(entry.describe())
                .expected("ops of one module, or whole modules")
                .found(format!("a match with some of the ops of `{boundary}` and some outside"))
                .help(help))
            }
            (true, None) => {
                let mut ops: Vec<&str> = Vec::new();
                for module in named(&modules, entry)? {
                    ops.extend(
                        modules.forward_nodes(module).iter().map(|&id| graph.node(id).op.short_name()),
                    );
                }
                ops.sort_unstable();
                ops.dedup();
                Err(Diagnostic::new("E242", "the pattern matches nothing")
                    .at(entry.describe())
                    .expected(format!("ops that feed each other as in `{}`", first_line(pattern.text())))
                    .found(format!("ops {} in `{}`", ops.join(", "), entry.modules))
                    .help(
                        "print the ops of a module with `forward_ops()`; inline composites with `decompose()`",
                    ))
            }
        }
    }

    /// Edits the graph at each selected match of a pattern, one after the other. E243 for a number
    /// that no match has.
    fn each_match(
        &mut self,
        pattern: &Pattern,
        at: &[usize],
        entry: &Entry,
        mut edit: impl FnMut(&Graph, &Match) -> Result<Graph>,
    ) -> Result<()> {
        let mut graph = self.model.forward.clone();
        let count = self.found_in(&graph, pattern, entry)?.len();
        if let Some(index) = at.iter().find(|index| **index >= count) {
            return Err(Diagnostic::new("E243", format!("there is no match number {index}"))
                .at(entry.describe())
                .expected(format!("numbers from 0 to {}", count - 1))
                .found(index.to_string()));
        }
        // An edit renumbers nodes, so matches are searched for again after each. An edited place
        // usually no longer matches; if it does, or if it was not selected, it is skipped.
        let mut passed = 0;
        for index in 0..count {
            if !at.is_empty() && !at.contains(&index) {
                passed += 1;
                continue;
            }
            let matches = self.found_in(&graph, pattern, entry)?;
            graph = edit(&graph, &matches[passed])?;
            let left = self.found_in(&graph, pattern, entry).map_or(0, |matches| matches.len());
            passed += usize::from(left == matches.len());
        }
        self.model.forward = graph;
        Ok(())
    }
}

/// Whether two graphs apply the same ops in order, to values of the same types.
fn computes_as(graph: &Graph, other: &Graph) -> bool {
    let is_same = |(one, another): (&Node, &Node)| {
        let results = one.results.iter().zip(&another.results);
        one.op == another.op && results.into_iter().all(|(&a, &b)| graph.ty(a) == other.ty(b))
    };
    graph.nodes.len() == other.nodes.len() && graph.nodes.iter().zip(&other.nodes).all(is_same)
}

/// The note for a PyTorch compiler named as backend.
fn foreign_note(compiler: &str, runner: &str) -> String {
    format!("{compiler} is not used: the subgraph runs as one kernel of `{runner}`")
}

/// The forward ops inside these modules, in order; op numbers count these.
pub(crate) fn forward_ops(graph: &Graph, modules: &[&str]) -> Vec<NodeId> {
    let inside = |id: &NodeId| modules.iter().any(|module| is_inside(&graph.node(*id).path, module));
    graph.node_ids().filter(inside).collect()
}

/// Makes these nodes one composite.
fn fuse(
    graph: &Graph,
    nodes: &[NodeId],
    name: &str,
    backend: Option<&str>,
    entry: &Entry,
    context: &BuildContext,
) -> Result<Graph> {
    if context.registry.lookup(name).is_ok() || name.starts_with("partita.") || name.is_empty() {
        return Err(Diagnostic::new("E254", format!("`{name}` is the name of another composite"))
            .at(entry.describe())
            .expected("a name that no composite has")
            .help("choose one such as `mine.bias_gelu`"));
    }
    let (fused, id) = outline(graph, nodes, name).map_err(|error| error.note(entry.describe()))?;
    if let Some(backend) = backend {
        let runner = context.runner.name();
        if backend != runner && !FOREIGN_COMPILERS.contains(&backend) {
            return Err(Diagnostic::new("E252", format!("there is no backend `{backend}`"))
                .at(entry.describe())
                .expected(runner)
                .found(backend)
                .note(format!("{} mean `{runner}`", FOREIGN_COMPILERS.join(", ")))
                .help("leave `backend` out to only name the subgraph; then it runs on any device"));
        }
        let Op::Composite(composite) = &fused.node(id).op else {
            unreachable!("outlining gives a composite")
        };
        if let Err(why) = context.runner.target().fusible(composite) {
            return Err(Diagnostic::new("E252", format!("`{backend}` does not run `{name}` as one kernel"))
                .at(entry.describe())
                .found(why)
                .help("leave `backend` out to only name the subgraph, or fuse fewer ops"));
        }
    }
    Ok(fused)
}

/// The modules that a line covers.
fn named<'m>(modules: &'m Modules, entry: &Entry) -> Result<Vec<&'m str>> {
    modules.named(entry.scope(), &entry.describe())
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}
