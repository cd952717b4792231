//! The structural pass: lines of a plan that mark, name or replace parts of the forward graph
//! before differentiation. None can change what is computed: a replacement is compared with the
//! original on random numbers.

mod change;
mod experts;
mod frames;
mod replace;
mod ring;

use crate::modules::{Modules, is_inside};
use crate::pattern::{Match, Pattern};
use crate::pipeline::Mark;
use crate::plan::{Entry, Plan};
use crate::primitive::Primitive;
use crate::{Argument, verify::StepRunner};
pub(crate) use experts::has_grouped;
use frames::Frames;
use partita_base::{DType, Diagnostic, Note, Result};
use partita_ir::{Graph, Node, NodeId, Operation, Registry, precision};
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

/// The forward ops inside these modules, in order; op numbers count these.
pub(crate) fn forward_ops(graph: &Graph, modules: &[&str]) -> Vec<NodeId> {
    let inside = |id: &NodeId| modules.iter().any(|module| is_inside(&graph.node(*id).path, module));
    graph.node_ids().filter(inside).collect()
}

/// The modules that a line covers.
fn named<'m>(modules: &'m Modules, entry: &Entry) -> Result<Vec<&'m str>> {
    modules.named(entry.scope(), &entry.describe())
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}
