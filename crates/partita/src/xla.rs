//! A training step for XLA: StableHLO text, and what a runner has to know to feed it and to keep its state.
//!
//! There are two forms. In the uniform one our partition decides: all ranks run one local program, collectives included,
//! as replicas that XLA does not partition. In the global one the step of one device carries our propagated layouts as
//! `sdy` annotations, and XLA partitions. The stages of a pipeline are cut into pieces, each a
//! program. The runner, [`RUNNER`], is a script over jaxlib: it knows neither models nor plans, only the [`Manifest`].

pub mod cache;
pub mod manifest;
mod pieces;
pub mod plugins;
pub mod protocol;
pub mod runner;

pub use manifest::{Form, Kind, Manifest, Module, Part, Tensor};

use crate::execution::{literal, state_layout, tensor_data};
use crate::layouts::with_layouts;
use crate::run_files::Saved;
use crate::session::Session;
use indexmap::IndexMap;
use manifest::{FEEDS_FILE, FORMAT, MANIFEST_FILE, RUNNER_FILE, STATE_FILE};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::text::{PrintOptions, Ranks, print_with};
use partita_ir::{
    Annotation, Graph, InputKind, Literal, OutputKind, Pieces, TensorType, ValueId, graph_edit,
};
use partita_mesh::Sharding;
use partita_pipeline::Source;
use partita_runtime::StateLayout;
use partita_runtime::checkpoint::{self, Checkpoint, TensorData, export_weights};
use partita_schedule::{Built, Stage};
use partita_spmd::{Partitioned, uniform};
use pieces::{Piece, pieces};
use std::collections::BTreeMap;
use std::path::Path;

/// The variable that names another interpreter of Python than `python3`.
pub const PYTHON: &str = "PARTITA_PYTHON";

/// The interpreter that runs the runner, and whose packages may have PJRT plugins.
pub fn python() -> String {
    std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_string())
}

/// The script that runs an exported step.
pub const RUNNER: &str = include_str!("xla/run.py");

/// A step for XLA, in memory.
#[derive(Clone, Debug)]
pub struct XlaStep {
    /// What the other parts are.
    pub manifest: Manifest,
    /// The texts of the modules, by file.
    pub modules: IndexMap<String, String>,
    /// Parameters and states; what is missing starts at zero.
    pub state: IndexMap<String, TensorData>,
    /// The batches of the steps that are left: `<step>/<name>`.
    pub feeds: IndexMap<String, TensorData>,
    /// The state that its runner saves.
    pub layout: StateLayout,
}

impl XlaStep {
    /// Writes the files of the step to an existing folder.
    ///
    /// # Errors
    /// E316 if a file exists or cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).map_err(|error| {
                Diagnostic::new("E316", "the step cannot be written")
                    .at(folder.join(name).display().to_string())
                    .expected("a folder that can be written")
                    .found(error.to_string())
            })
        };
        for (file, text) in &self.modules {
            write(file, text)?;
        }
        export_weights(&folder.join(STATE_FILE), &self.state)?;
        export_weights(&folder.join(FEEDS_FILE), &self.feeds)?;
        write(RUNNER_FILE, RUNNER)?;
        write(MANIFEST_FILE, &self.manifest.to_json())
    }
}

/// The training step of a session with the batches of its steps, and with its initial state or that of a checkpoint, from
/// which it continues.
///
/// # Errors
/// E276 for a step with several pipeline stages in the global form, E275 for shards that pads cannot make equal, E304 and
/// E314 for a checkpoint of other data or of another model, E432 for a state that could not be saved and read back, and what
/// building refuses.
pub fn export(session: &Session, form: Form, from: Option<&Saved>) -> Result<XlaStep> {
    let model = session.model()?;
    let feed = session.feed(&model)?;
    let built = session.build_model(&model)?;
    let (mut manifest, modules) = program(&built, form)?;
    let layout = state_layout(&built)?;
    layout.is_kept_as(&saved_types(&manifest.modules, &manifest.pieces))?;
    let config = session.config();
    let at = |error: Box<Diagnostic>| match from {
        Some(saved) => error.at(saved.path.display().to_string()),
        None => error,
    };
    let (first, first_batch) = match from {
        Some(saved) => (saved.step(), feed.resume(saved.opened().meta()).map_err(at)?),
        None => (0, 0),
    };
    let feeds = crate::feeds::batches(feed.as_ref(), first..config.train.steps, first_batch)?;
    let state = match from {
        Some(saved) => saved_state(&saved.checkpoint()?, &manifest.modules, &manifest.pieces).map_err(at)?,
        None => {
            let split = |(name, value): (String, Literal)| match built
                .pieces
                .iter()
                .find(|pieces| pieces.name == name)
            {
                None => vec![(name, value)],
                Some(pieces) => pieces.split(&value),
            };
            let initial = model.initial(config.train.seed)?.into_iter().flat_map(split);
            initial.map(|(name, value)| (name, tensor_data(&value))).collect()
        }
    };
    manifest.seed = config.train.seed;
    manifest.first = first;
    manifest.learning_rates = (1..=config.train.steps).map(|step| config.schedule.at(step)).collect();
    Ok(XlaStep { manifest, modules, state, feeds, layout })
}

/// A built step of any origin: what a runner has to know, without steps to take, and the texts of the modules by file.
///
/// # Errors
/// E276 for a step with several pipeline stages in the global form, E275 for shards that pads cannot make equal.
pub fn program(built: &Built, form: Form) -> Result<(Manifest, IndexMap<String, String>)> {
    if form == Form::Global && built.stages.len() > 1 {
        return Err(Diagnostic::new("E276", "the stages of a pipeline have no global form for XLA")
            .at("mesh")
            .expected("a mesh without an axis pp of more than one rank, or the uniform form")
            .found(format!("{}, {} stages", built.mesh, built.stages.len()))
            .help("export with --form uniform"));
    }
    let graphs = built.stages.iter().map(|stage| match form {
        Form::Uniform => uniform(&stage.partitioned),
        Form::Global => global(&stage.partitioned),
    });
    let graphs = graphs.collect::<Result<Vec<Graph>>>()?;
    let (modules, texts) = modules(built, &graphs, form)?;
    let manifest = Manifest {
        format: FORMAT.to_string(),
        form,
        mesh: built.mesh.axes.iter().map(|axis| (axis.name.clone(), axis.size)).collect(),
        modules,
        seed: 0,
        first: 0,
        learning_rates: Vec::new(),
        pieces: parts(built, &graphs),
    };
    Ok((manifest, texts))
}

/// The modules in the order in which they run, and their texts by file: one for a step without a pipeline.
fn modules(built: &Built, graphs: &[Graph], form: Form) -> Result<(Vec<Module>, IndexMap<String, String>)> {
    let wholes: Vec<Module> = built
        .stages
        .iter()
        .zip(graphs)
        .map(|(stage, graph)| module(&stage.partitioned, graph, &stage.ranks))
        .collect();
    let text = |graph: &Graph, ranks: usize, locations: bool| {
        let ranks = match form {
            Form::Uniform => Ranks::Replicas(ranks),
            Form::Global => Ranks::Partitions(ranks),
        };
        print_with(graph, &PrintOptions { ranks: Some(ranks), locations })
    };
    let Some(timetable) = &built.timetable else {
        let texts = wholes
            .iter()
            .zip(graphs)
            .map(|(whole, graph)| (whole.file.clone(), text(graph, whole.ranks.len(), true)));
        let texts = texts.collect();
        return Ok((wholes, texts));
    };
    // Of a value that stages receive: the tensor that its own stage returns, or reads.
    let mut files: IndexMap<String, String> = IndexMap::new();
    let mut modules = Vec::new();
    let sent_at = |stage: usize, value: ValueId| {
        let mut sent = built.stages[stage].sent().into_iter().map(|(position, _)| position);
        sent.find(|&position| graphs[stage].outputs[position] == value)
    };
    let key = |stage: usize, value: ValueId| match graphs[stage].value(value).definition {
        Some(_) => format!("stage {stage}: {}", value.index()),
        None => graphs[stage].value(value).name.clone(),
    };
    let carried = |stage: usize, value: ValueId| {
        let TensorType { shape, dtype } = graphs[stage].ty(value);
        let local = Tensor {
            name: String::new(),
            kind: Kind::Carried,
            dtype: dtype.mlir_name().to_string(),
            shape: shape.clone(),
            layout: String::new(),
            held: shape.clone(),
            shards: Vec::new(),
            rows: None,
            replaced_by: None,
        };
        let whole = sent_at(stage, value).map(|position| wholes[stage].outputs[position].clone());
        Tensor { name: key(stage, value), kind: Kind::Carried, ..whole.unwrap_or(local) }
    };
    for piece in pieces(&built.stages, graphs, timetable)? {
        let Piece { stage, mut graph, inputs, outputs } = piece;
        // The manifest has the names of inputs; without them the texts of two microbatches can be equal.
        for input in graph.inputs.clone() {
            graph.value_mut(input).name.clear();
        }
        let (whole, from) = (&wholes[stage], &built.stages[stage].inputs);
        let input = |(place, source): (usize, &pieces::Source)| {
            let mut tensor = match *source {
                pieces::Source::Carried(value) => carried(stage, value),
                pieces::Source::Stage(position) => match from[position] {
                    Source::Step(_) => whole.inputs[position].clone(),
                    Source::Edge(edge) => {
                        let (sender, output) = built.edges[edge].from;
                        let name = key(sender, graphs[sender].outputs[output]);
                        Tensor { name, kind: Kind::Received, ..whole.inputs[position].clone() }
                    }
                },
            };
            let replaced = graph.aliases.iter().find(|(input, _)| *input == place);
            tensor.replaced_by = replaced.map(|(_, output)| *output);
            tensor
        };
        let output = |sink: &pieces::Sink| match *sink {
            pieces::Sink::Carried(value) => carried(stage, value),
            pieces::Sink::Stage(position) => whole.outputs[position].clone(),
        };
        let text = text(&graph, whole.ranks.len(), false);
        let known = files.iter().find(|(_, other)| **other == text).map(|(file, _)| file.clone());
        let file = known.unwrap_or_else(|| format!("piece-{}.mlir", files.len()));
        files.entry(file.clone()).or_insert(text);
        modules.push(Module {
            file,
            ranks: whole.ranks.clone(),
            inputs: inputs.iter().enumerate().map(input).collect(),
            outputs: outputs.iter().map(output).collect(),
        });
    }
    Ok((modules, files))
}

/// The parameters and states that modules keep.
fn kept_inputs(modules: &[Module]) -> IndexMap<&String, &Tensor> {
    let inputs = modules.iter().flat_map(|module| &module.inputs);
    inputs.filter(|input| input.kind.is_kept()).map(|input| (&input.name, input)).collect()
}

/// The global tensors that a runner of these modules saves, and that it reads from a checkpoint.
fn saved_types(modules: &[Module], parts: &[Part]) -> Vec<(String, DType, Vec<usize>)> {
    let mut saved = IndexMap::new();
    for input in kept_inputs(modules).values() {
        let dtype = input.dtype().expect("a type of the module");
        let (mut name, mut shape) = (&input.name, input.shape.clone());
        if let Some(part) = parts.iter().find(|part| part.part == *name) {
            let all = parts.iter().filter(|other| other.whole == part.whole);
            shape[part.dim] = all.map(|other| other.window[1]).max().unwrap_or(0);
            name = &part.whole;
        }
        saved.insert(name.clone(), (dtype, shape));
    }
    saved.into_iter().map(|(name, (dtype, shape))| (name, dtype, shape)).collect()
}

/// The parameters and states of the modules from a checkpoint, whole ones divided into the parts that the modules keep.
fn saved_state(
    checkpoint: &Checkpoint,
    modules: &[Module],
    parts: &[Part],
) -> Result<IndexMap<String, TensorData>> {
    let part_of = |name: &str| parts.iter().find(|part| part.part == name);
    let kept = kept_inputs(modules);
    checkpoint::compare(&saved_types(modules, parts), checkpoint)?;
    let value = |input: &Tensor| {
        let Some(part) = part_of(&input.name) else { return checkpoint.tensors[&input.name].clone() };
        let [start, limit] = part.window;
        let pieces = Pieces {
            name: part.whole.clone(),
            dim: part.dim,
            limits: vec![(part.part.clone(), start, limit)],
        };
        let (_, value) = pieces.split(&literal(&checkpoint.tensors[&part.whole])).remove(0);
        tensor_data(&value)
    };
    Ok(kept.values().map(|input| (input.name.clone(), value(input))).collect())
}

/// The step of one device with our layouts: XLA divides inputs and outputs evenly or not at all.
fn global(partitioned: &Partitioned) -> Result<Graph> {
    let annotated = with_layouts(partitioned);
    let mesh = annotated.meshes.iter().position(|mesh| *mesh == partitioned.mesh).unwrap_or(0);
    let mut graph = graph_edit::open_composites(&annotated, &|_| true)?;
    for annotation in graph.values.iter_mut().filter_map(|value| value.annotation.as_mut()) {
        annotation.sharding.partial.clear();
        annotation.origin.clear();
    }
    let annotation = |value: ValueId, layout: &Sharding| {
        let sharding = at_the_edge(partitioned, &partitioned.graph.ty(value).shape, layout);
        let open = vec![false; sharding.dims.len()];
        Annotation { mesh, sharding, open, replicated: Vec::new(), origin: String::new() }
    };
    for (position, (&value, layout)) in partitioned.graph.inputs.iter().zip(&partitioned.inputs).enumerate() {
        let input = graph.inputs[position];
        graph.value_mut(input).annotation = Some(annotation(value, layout));
    }
    let outputs = partitioned.graph.outputs.iter().zip(&partitioned.outputs);
    graph.output_annotations = outputs.map(|(&value, layout)| Some(annotation(value, layout))).collect();
    graph.name = "main".to_string();
    Ok(graph)
}

/// The layout of an input or output of the global form: whole where shards would be uneven.
fn at_the_edge(partitioned: &Partitioned, shape: &[usize], layout: &Sharding) -> Sharding {
    let mut layout = layout.clone();
    layout.partial.clear();
    for (dim, &size) in layout.dims.iter_mut().zip(shape) {
        if dim.even_extent(size).is_none() {
            *dim = partita_mesh::DimSharding::whole();
        }
    }
    layout.normalise(&partitioned.mesh, shape);
    layout
}

/// What a runner knows of a module; `graph` is what is printed.
fn module(partitioned: &Partitioned, graph: &Graph, ranks: &[usize]) -> Module {
    let source = &partitioned.graph;
    let is_global = !graph.meshes.is_empty();
    let tensor = |name: &str, kind, value: ValueId, printed: ValueId, layout: &Sharding| {
        let TensorType { shape, dtype } = source.ty(value);
        let layout = if is_global { at_the_edge(partitioned, shape, layout) } else { layout.clone() };
        let mesh = &partitioned.mesh;
        let shard = |rank: usize| {
            let (offset, extent) =
                (layout.local_offset(mesh, shape, rank), layout.local_shape(mesh, shape, rank));
            offset.iter().zip(&extent).map(|(&start, &count)| [start, start + count]).collect()
        };
        let held =
            if is_global { layout.local_shape(mesh, shape, 0) } else { graph.ty(printed).shape.clone() };
        Tensor {
            name: name.to_string(),
            kind,
            dtype: dtype.mlir_name().to_string(),
            shape: shape.clone(),
            layout: layout.display(mesh),
            held,
            shards: (0..mesh.rank_count()).map(shard).collect(),
            rows: None,
            replaced_by: None,
        }
    };
    // The rows of a batch tensor that its microbatches so far have.
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    let mut inputs = Vec::new();
    for (position, (&value, layout)) in source.inputs.iter().zip(&partitioned.inputs).enumerate() {
        let replaced_by =
            source.aliases.iter().find(|(input, _)| *input == position).map(|(_, output)| *output);
        let own = source.value(value);
        let kind = InputKind::of(&own.name, &own.role, replaced_by.is_some());
        let name = kind_of_input(&kind);
        let mut input = tensor(&own.name, name, value, graph.inputs[position], layout);
        input.replaced_by = replaced_by;
        if let InputKind::Batch { name, microbatch } = kind {
            let rows = own.ty.shape.first().copied().unwrap_or(1);
            let start = taken.entry(name.clone()).or_default();
            input.rows = Some((name, [*start, *start + rows]));
            *start += if microbatch.is_some() { rows } else { 0 };
        }
        inputs.push(input);
    }
    let outputs = source.outputs.iter().zip(&partitioned.outputs).enumerate();
    let outputs = outputs.map(|(position, (&value, layout))| {
        let replaced = source.aliases.iter().find(|(_, output)| *output == position).map(|(input, _)| *input);
        let own = &source.output_names[position];
        let kind = OutputKind::of(own, replaced.is_some());
        // A new value has the name of what it replaces.
        let name = replaced.map_or(own, |input| &source.value(source.inputs[input]).name);
        tensor(name, kind_of_output(&kind), value, graph.outputs[position], layout)
    });
    let outputs = outputs.collect();
    Module { file: "step.mlir".to_string(), ranks: ranks.to_vec(), inputs, outputs }
}

fn kind_of_input(kind: &InputKind) -> Kind {
    match kind {
        InputKind::Parameter(_) => Kind::Parameter,
        InputKind::State(_) => Kind::State,
        InputKind::Batch { .. } => Kind::Batch,
        InputKind::Cotangent(_) => Kind::Cotangent,
        InputKind::LearningRate(_) => Kind::LearningRate,
        InputKind::Step => Kind::Step,
        InputKind::Seed => Kind::Seed,
    }
}

fn kind_of_output(kind: &OutputKind) -> Kind {
    match kind {
        OutputKind::Loss => Kind::Loss,
        OutputKind::GradientNorm => Kind::GradNorm,
        OutputKind::Gradient(_) => Kind::Gradient,
        OutputKind::NewValue(_) => Kind::NewValue,
        OutputKind::Metric(_) => Kind::Metric,
    }
}

/// The parts of the parameters and states that the step keeps in several tensors.
fn parts(built: &Built, graphs: &[Graph]) -> Vec<Part> {
    let mut parts = Vec::new();
    // What another stage receives is no part of the state.
    let own = |(stage, graph): (&Stage, &Graph)| -> Vec<(String, Vec<usize>)> {
        let inputs = stage.fed().map(|(position, _)| (position, graph.value(graph.inputs[position])));
        let whole = &stage.partitioned.graph;
        inputs
            .map(|(position, value)| (value.name.clone(), whole.ty(whole.inputs[position]).shape.clone()))
            .collect()
    };
    for (name, shape) in &built.stages.iter().zip(graphs).flat_map(own).collect::<Vec<_>>() {
        let (prefix, parameter) = match partita_ir::port::state_of(name) {
            Some((slot, parameter)) => (partita_ir::port::state_name(slot, ""), parameter),
            None => (String::new(), name.as_str()),
        };
        for pieces in &built.pieces {
            // A state of another shape than its parameter is no part of one.
            if let Some((_, start, limit)) = pieces.limits.iter().find(|(part, ..)| part == parameter)
                && shape.get(pieces.dim) == Some(&(limit - start))
            {
                parts.push(Part {
                    whole: format!("{prefix}{}", pieces.name),
                    part: name.clone(),
                    dim: pieces.dim,
                    window: [*start, *limit],
                });
            }
        }
    }
    parts
}
