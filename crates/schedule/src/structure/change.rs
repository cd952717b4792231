//! What each structural line does to a model.

use super::{BuildContext, Structured, Tag, experts, forward_ops, named, replace, ring};
use crate::Argument;
use crate::modules::{Modules, is_inside};
use crate::offload::offloaded_by;
use crate::pattern::Pattern;
use crate::pipeline::{Mark, last_nodes, stages_in_order};
use crate::plan::Entry;
use crate::primitive::{FOREIGN_COMPILERS, FORK_RNG_NOTE, PIPELINE_NOTE, Primitive, STAGE_ENDS};
use crate::style::{Kind, Style};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Note, Result, did_you_mean};
use partita_ir::outline::outline;
use partita_ir::{Graph, Node, NodeId, Op, graph_edit, precision, remat};
use partita_mesh::Mesh;
use std::collections::BTreeSet;

/// The arguments of a composite: names and attributes that differ from those of what it replaces.
type Bindings = IndexMap<String, Argument>;

impl Structured {
    /// Applies one line, whether or not it leaves the model as it was.
    pub(super) fn change(&mut self, entry: &Entry, context: &BuildContext) -> Result<()> {
        if entry.stage.is_some() {
            stages_in_order(&self.stages, &self.model.forward)?;
        }
        match &entry.primitive {
            Primitive::Style(style) => self.distribute(style, entry),
            Primitive::Shard { .. } | Primitive::Sync { .. } => Ok(()),
            Primitive::Checkpoint { pattern: None } => self.checkpoint_modules(entry),
            Primitive::Checkpoint { pattern: Some(pattern) } => self.checkpoint_matches(pattern, entry),
            Primitive::Decompose => self.decompose(entry),
            Primitive::Trace { flatten } => self.trace(*flatten, entry),
            Primitive::Fuse { pattern, name, backend, at } => {
                let pattern = Pattern::parse(pattern)?;
                self.each_match(&pattern, at, entry, |graph, found| {
                    fuse(graph, &found.nodes, name, backend.as_deref(), entry, context)
                })?;
                if let Some(foreign) = backend.as_deref().filter(|b| FOREIGN_COMPILERS.contains(b)) {
                    let text = foreign_note(foreign, context.runner.name());
                    self.notes.push(Note::on_line("other-compiler", entry.describe(), text));
                }
                Ok(())
            }
            Primitive::Replace { with, ops: Some(ops), bindings, .. } => {
                self.replace_ops(*ops, with, bindings, entry, context)
            }
            Primitive::Replace { with, pattern: None, bindings, .. } => {
                let modules = Modules::of(&self.model.forward);
                let paths: Vec<String> = named(&modules, entry)?.into_iter().map(str::to_string).collect();
                self.replace_modules(&paths, with, bindings, entry, context)
            }
            Primitive::Replace { with, pattern: Some(pattern), at, bindings, .. } => {
                let pattern = Pattern::parse(pattern)?;
                self.each_match(&pattern, at, entry, |graph, found| {
                    replace::subgraph(graph, found, with, bindings, entry, context)
                })
            }
            Primitive::ReplaceAll { kind, with, bindings } => {
                let paths = self.of_kind(kind, entry)?;
                self.replace_modules(&paths, with, bindings, entry, context)
            }
            Primitive::PipelineSplit { mesh, ranks } => self.split_pipeline(mesh.as_deref(), ranks, entry),
            Primitive::Layers { count, remat } => self.cluster_layers(*count, *remat, entry),
            Primitive::Annotate { tensor, key, value } => self.annotate(tensor, key, value, entry),
            Primitive::Precision { compute } => self.compute_in(*compute, entry),
            // Concerns the programs of ranks alone.
            Primitive::Offload { .. } => offloaded_by(entry, &Modules::of(&self.model.forward)).map(|_| ()),
            Primitive::ForkRng => {
                for module in named(&Modules::of(&self.model.forward), entry)? {
                    let text = format!("`{module}`: fork_rng {FORK_RNG_NOTE}");
                    self.notes.push(Note { code: "no-effect", line: Some(entry.describe()), text });
                }
                Ok(())
            }
        }
    }

    /// Styles that exchange values inside a module, around attention or experts; the others only say layouts.
    fn distribute(&mut self, style: &Style, entry: &Entry) -> Result<()> {
        let graph = &self.model.forward;
        if style.kind == Kind::Ring {
            let modules = Modules::of(graph);
            self.model.forward = ring::around(graph, &named(&modules, entry)?, entry, style.zigzag)?;
        } else if style.kind == Kind::Auto {
            return Err(Diagnostic::new("E235", "`attention_auto` is chosen for a cluster")
                .at(entry.describe())
                .expected("a plan in which `attention_auto` is replaced, as that of a config is")
                .help("write `ulysses` or `ring`"));
        } else if style.kind == Kind::Dispatch {
            let modules = Modules::of(graph);
            self.model.forward = experts::together(graph, &named(&modules, entry)?, entry)?;
        }
        Ok(())
    }

    fn checkpoint_modules(&mut self, entry: &Entry) -> Result<()> {
        let modules = Modules::of(&self.model.forward);
        let mut marked = self.model.forward.clone();
        for module in named(&modules, entry)? {
            let nodes = modules.forward_nodes(module);
            remat::mark(&mut marked, nodes).map_err(|error| error.note(entry.describe()))?;
        }
        self.model.forward = marked;
        Ok(())
    }

    fn checkpoint_matches(&mut self, pattern: &str, entry: &Entry) -> Result<()> {
        let pattern = Pattern::parse(pattern)?;
        let mut marked = self.model.forward.clone();
        for found in self.found(&pattern, entry)? {
            remat::mark(&mut marked, found.nodes).map_err(|error| error.note(entry.describe()))?;
        }
        self.model.forward = marked;
        Ok(())
    }

    fn trace(&mut self, flatten: bool, entry: &Entry) -> Result<()> {
        let modules = Modules::of(&self.model.forward);
        for module in named(&modules, entry)? {
            if flatten {
                self.frames.flatten(module, &modules);
            }
        }
        Ok(())
    }

    /// Replaces the ops of these numbers, the end not included, by a composite.
    fn replace_ops(
        &mut self,
        (first, end): (usize, usize),
        with: &str,
        bindings: &Bindings,
        entry: &Entry,
        context: &BuildContext,
    ) -> Result<()> {
        let graph = &self.model.forward;
        let modules = Modules::of(graph);
        let nodes = forward_ops(graph, &named(&modules, entry)?);
        let chosen = nodes.get(first..end).filter(|chosen| !chosen.is_empty()).ok_or_else(|| {
            Diagnostic::new("E264", format!("`{}` has no such ops", entry.modules))
                .at(entry.describe())
                .expected(format!("consecutive ops from 0 to {}, the end not included", nodes.len()))
                .found(format!("{first}:{end}"))
                .help("print the ops of a module with their numbers: `forward_ops()`")
        })?;
        self.model.forward = replace::ops(graph, chosen, with, bindings, entry, context)?;
        Ok(())
    }

    /// Ends a pipeline stage after each module of the line.
    fn split_pipeline(&mut self, mesh: Option<&str>, ranks: &[usize], entry: &Entry) -> Result<()> {
        let graph = &self.model.forward;
        let modules = Modules::of(graph);
        let mesh = mesh.map(|axes| Mesh::parse(axes, None)).transpose();
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
                return Err(Diagnostic::new("E256", format!("no pipeline stage can end here: {why}"))
                    .at(entry.describe())
                    .expected("a module inside the model, at most once")
                    .found(format!("`{module}`")));
            }
            stages.push(Mark {
                module: module.to_string(),
                mesh: mesh.clone(),
                ranks: ranks.to_vec(),
                line: entry.describe(),
            });
        }
        // The structural lines of a stage are for the nodes that have its number.
        let mut marked = graph.clone();
        partita_pipeline::mark::after(&mut marked, &last_nodes(&stages, graph));
        self.model.forward = marked;
        self.stages = stages;
        self.notes.push(Note::on_line(STAGE_ENDS, entry.describe(), PIPELINE_NOTE));
        Ok(())
    }

    /// Makes layers of the complete model, to be recomputed from their inputs if `remat` says so.
    fn cluster_layers(&mut self, count: usize, remat: bool, entry: &Entry) -> Result<()> {
        if !entry.modules.is_empty() || self.has_layers {
            return Err(Diagnostic::new(
                "E256",
                "`layers(..)` clusters the layers of the complete model, once",
            )
            .at(entry.describe())
            .expected("one line for the complete model: `sch.layers(4)`"));
        }
        let mut marked = self.model.forward.clone();
        let layers = partita_pipeline::mark::layered(&mut marked, count)
            .map_err(|error| error.note(entry.describe()))?;
        for layer in layers.into_iter().filter(|_| remat) {
            remat::mark(&mut marked, layer.map(NodeId::new)).map_err(|error| error.note(entry.describe()))?;
        }
        self.model.forward = marked;
        self.has_layers = true;
        Ok(())
    }

    /// Attaches a note to a parameter of each module, in place of an earlier one with the same key.
    fn annotate(&mut self, tensor: &str, key: &str, value: &Argument, entry: &Entry) -> Result<()> {
        let modules = Modules::of(&self.model.forward);
        let mut tags = Vec::new();
        for module in named(&modules, entry)? {
            let full = if module.is_empty() { tensor.to_string() } else { format!("{module}.{tensor}") };
            if !self.model.params.contains_key(&full) {
                let mut error =
                    Diagnostic::new("E232", format!("there is no parameter `{full}`")).at(entry.describe());
                error.help = did_you_mean(&full, self.model.params.keys().map(String::as_str));
                return Err(error);
            }
            tags.push(Tag { parameter: full, key: key.to_string(), value: value.clone() });
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
        Ok(())
    }

    /// The modules compute in an element type; earlier lines for the same modules lose their effect.
    fn compute_in(&mut self, compute: DType, entry: &Entry) -> Result<()> {
        let graph = &self.model.forward;
        let modules = Modules::of(graph);
        let mut nodes: BTreeSet<NodeId> = BTreeSet::new();
        for module in named(&modules, entry)? {
            nodes.extend(modules.forward_nodes(module));
        }
        let modules: BTreeSet<String> = named(&modules, entry)?.into_iter().map(str::to_string).collect();
        self.model.forward = precision::compute_in(graph, &nodes, compute)?;
        let line = entry.describe();
        for (before, earlier, other) in &self.computed {
            let inside = |path: &String| modules.iter().any(|module| is_inside(path, module));
            if *other != compute && earlier.iter().all(inside) {
                let text = format!("{line} replaces {before}");
                self.notes.push(Note { code: "replaced", line: Some(before.clone()), text });
                self.unchanged.push((before.clone(), format!("{line} replaces it")));
            }
        }
        self.computed.push((line, modules, compute));
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
    fn of_kind(&self, kind: &str, entry: &Entry) -> Result<Vec<String>> {
        let modules = Modules::of(&self.model.forward);
        let around = named(&modules, entry)?;
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
        bindings: &Bindings,
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

/// The note for a PyTorch compiler named as backend.
fn foreign_note(compiler: &str, runner: &str) -> String {
    format!("{compiler} is not used: the subgraph runs as one kernel of `{runner}`")
}
