//! A training step for XLA: StableHLO text, and what a runner has to know to feed it and to keep its state.
//!
//! There are two forms. In the uniform one our partition decides: all ranks run one local program, collectives included,
//! as replicas that XLA does not partition. In the global one the step of one device carries our propagated layouts as
//! `sdy` annotations, and XLA partitions. The runner, [`RUNNER`], is a script over jaxlib: it knows neither models nor
//! plans, only the [`Manifest`].

use crate::execution::{literal, tensor_data};
use crate::layouts::with_layouts;
use crate::run_files::Saved;
use crate::session::Session;
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_ir::text::{PrintOptions, Ranks, print_with};
use partita_ir::{
    Annotation, Graph, InputKind, Literal, OutputKind, Pieces, TensorType, ValueId, graph_edit,
};
use partita_mesh::Sharding;
use partita_runtime::checkpoint::{self, Checkpoint, TensorData, export_weights};
use partita_schedule::Built;
use partita_spmd::{Partitioned, uniform};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The script that runs an exported step.
pub const RUNNER: &str = include_str!("xla/run.py");

/// The version of [`Manifest`].
const FORMAT: &str = "partita-xla-1";

/// Who partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// We do: one local program with collectives, which all ranks run.
    Uniform,
    /// XLA does: the step of one device with a layout on every value.
    Global,
}

/// What the files of an exported step are.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// Name and version of this format.
    pub format: &'static str,
    /// Who partitions.
    pub form: Form,
    /// The axes of the mesh with their sizes, major first.
    pub mesh: Vec<(String, usize)>,
    /// The modules, one for each pipeline stage.
    pub modules: Vec<Module>,
    /// The seed of initial values, data and dropout.
    pub seed: u64,
    /// Steps before the state was saved; 0 for an initial state.
    pub first: u64,
    /// The learning rate of each step, from step 1.
    pub learning_rates: Vec<f64>,
    /// Parameters and states that are stored as several tensors.
    pub pieces: Vec<Part>,
}

/// A part of a parameter or state.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// The name of the whole.
    pub whole: String,
    /// The name of the part.
    pub part: String,
    /// The dimension along which it is a part.
    pub dim: usize,
    /// Its first and one past its last element along it.
    pub window: [usize; 2],
}

/// The program of one stage.
#[derive(Clone, Debug, Serialize)]
pub struct Module {
    /// The file with its text.
    pub file: String,
    /// The ranks that run it.
    pub ranks: Vec<usize>,
    /// The arguments of `@main`.
    pub inputs: Vec<Tensor>,
    /// Its results.
    pub outputs: Vec<Tensor>,
}

/// An argument or a result.
#[derive(Clone, Debug, Serialize)]
pub struct Tensor {
    /// Its name: the module path of a parameter, `loss`, ..
    pub name: String,
    /// What it is: `parameter`, `state`, `batch`, `learning_rate`, `step`, `seed`; of results `loss`, `grad_norm`,
    /// `gradient`, `new_value`, `metric`.
    pub kind: &'static str,
    /// The element type as MLIR names it.
    pub dtype: String,
    /// The global shape.
    pub shape: Vec<usize>,
    /// The layout.
    pub layout: String,
    /// The shape that each rank holds, pads at the end of each dimension included.
    pub held: Vec<usize>,
    /// For each rank, the first and one past the last global index of its shard, for each dimension.
    pub shards: Vec<Vec<[usize; 2]>>,
    /// Of a batch tensor: the tensor it is taken from, and its rows of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<(String, [usize; 2])>,
    /// Of an argument that is donated: the number of the result that replaces it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<usize>,
}

/// A step for XLA, in memory.
#[derive(Clone, Debug)]
pub struct XlaStep {
    /// What the other parts are.
    pub manifest: Manifest,
    /// The text of each module, in the order of the manifest.
    pub modules: Vec<String>,
    /// Parameters and states; what is missing starts at zero.
    pub state: IndexMap<String, TensorData>,
    /// The batches of the steps that are left: `<step>/<name>`.
    pub feeds: IndexMap<String, TensorData>,
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
        for (module, text) in self.manifest.modules.iter().zip(&self.modules) {
            write(&module.file, text)?;
        }
        export_weights(&folder.join("state.safetensors"), &self.state)?;
        export_weights(&folder.join("feeds.safetensors"), &self.feeds)?;
        write("run.py", RUNNER)?;
        write(
            "manifest.json",
            &serde_json::to_string(&self.manifest).expect("a manifest has only strings as keys"),
        )
    }
}

/// The training step of a session with the batches of its steps, and with its initial state or that of a checkpoint, from
/// which it continues.
///
/// # Errors
/// E276 for a step with several pipeline stages, E275 for shards that pads cannot make equal, E304 and E314 for a
/// checkpoint of other data or of another model, and what building refuses.
pub fn export(session: &Session, form: Form, from: Option<&Saved>) -> Result<XlaStep> {
    let model = session.model()?;
    let feed = session.feed(&model)?;
    let built = session.build_model(&model)?;
    let [stage] = &built.stages[..] else {
        return Err(Diagnostic::new("E276", "a pipeline cannot be exported for XLA")
            .at("mesh")
            .expected("a mesh without an axis pp of more than one rank")
            .found(format!("{}, {} stages", built.mesh, built.stages.len()))
            .help("export with dp, fsdp and tp axes; train runs pipelines"));
    };
    let partitioned = &stage.partitioned;
    let ranks = partitioned.mesh.rank_count();
    let (graph, ranks) = match form {
        Form::Uniform => (uniform(partitioned)?, Ranks::Replicas(ranks)),
        Form::Global => (global(partitioned)?, Ranks::Partitions(ranks)),
    };
    let config = session.config();
    let parts = parts(&built, &graph);
    let module = module(partitioned, &graph, &stage.ranks);
    let at = |error: Box<Diagnostic>| match from {
        Some(saved) => error.at(saved.path.display().to_string()),
        None => error,
    };
    let (first, first_batch) = match from {
        Some(saved) => (saved.step(), feed.resume(saved.opened().meta()).map_err(at)?),
        None => (0, 0),
    };
    let mut feeds = IndexMap::new();
    for step in first..config.train.steps {
        for (name, value) in feed.batch(first_batch + (step - first))? {
            feeds.insert(format!("{}/{name}", step + 1), tensor_data(&value));
        }
    }
    let state = match from {
        Some(saved) => saved_state(&saved.checkpoint()?, &module, &parts).map_err(at)?,
        None => {
            let split = |(name, value): (String, Literal)| match built
                .pieces
                .iter()
                .find(|pieces| pieces.name == name)
            {
                None => vec![(name, value)],
                Some(pieces) => pieces.split(&value),
            };
            let initial = model.initial(config.train.seed).into_iter().flat_map(split);
            initial.map(|(name, value)| (name, tensor_data(&value))).collect()
        }
    };
    let manifest = Manifest {
        format: FORMAT,
        form,
        mesh: built.mesh.axes.iter().map(|axis| (axis.name.clone(), axis.size)).collect(),
        modules: vec![module],
        seed: config.train.seed,
        first,
        learning_rates: (1..=config.train.steps).map(|step| config.schedule.at(step)).collect(),
        pieces: parts,
    };
    let text = print_with(&graph, &PrintOptions { ranks: Some(ranks), ..PrintOptions::default() });
    Ok(XlaStep { manifest, modules: vec![text], state, feeds })
}

/// The parameters and states of a module from a checkpoint, whole ones divided into the parts that the module keeps.
fn saved_state(
    checkpoint: &Checkpoint,
    module: &Module,
    parts: &[Part],
) -> Result<IndexMap<String, TensorData>> {
    let part_of = |name: &str| parts.iter().find(|part| part.part == name);
    let kept = || module.inputs.iter().filter(|input| matches!(input.kind, "parameter" | "state"));
    let mut wanted = IndexMap::new();
    for input in kept() {
        let dtype = partita_base::DType::from_mlir_name(&input.dtype).expect("a type of the module");
        let (mut name, mut shape) = (&input.name, input.shape.clone());
        if let Some(part) = part_of(name) {
            let all = parts.iter().filter(|other| other.whole == part.whole);
            shape[part.dim] = all.map(|other| other.window[1]).max().unwrap_or(0);
            name = &part.whole;
        }
        wanted.insert(name.clone(), (dtype, shape));
    }
    let wanted: Vec<_> = wanted.into_iter().map(|(name, (dtype, shape))| (name, dtype, shape)).collect();
    checkpoint::compare(&wanted, checkpoint)?;
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
    Ok(kept().map(|input| (input.name.clone(), value(input))).collect())
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
        let name = &source.output_names[position];
        let kind = OutputKind::of(name, source.aliases.iter().any(|(_, output)| *output == position));
        tensor(name, kind_of_output(&kind), value, graph.outputs[position], layout)
    });
    let outputs = outputs.collect();
    Module { file: "step.mlir".to_string(), ranks: ranks.to_vec(), inputs, outputs }
}

fn kind_of_input(kind: &InputKind) -> &'static str {
    match kind {
        InputKind::Parameter(_) => "parameter",
        InputKind::State(_) => "state",
        InputKind::Batch { .. } => "batch",
        InputKind::Cotangent(_) => "cotangent",
        InputKind::LearningRate => "learning_rate",
        InputKind::Step => "step",
        InputKind::Seed => "seed",
    }
}

fn kind_of_output(kind: &OutputKind) -> &'static str {
    match kind {
        OutputKind::Loss => "loss",
        OutputKind::GradientNorm => "grad_norm",
        OutputKind::Gradient(_) => "gradient",
        OutputKind::NewValue(_) => "new_value",
        OutputKind::Metric(_) => "metric",
    }
}

/// The parts of the parameters and states that the step keeps in several tensors.
fn parts(built: &Built, graph: &Graph) -> Vec<Part> {
    let mut parts = Vec::new();
    for &input in &graph.inputs {
        let name = &graph.value(input).name;
        let (prefix, parameter) = match partita_ir::port::state_of(name) {
            Some((slot, parameter)) => (partita_ir::port::state_name(slot, ""), parameter),
            None => (String::new(), name.as_str()),
        };
        for pieces in &built.pieces {
            if let Some((_, start, limit)) = pieces.limits.iter().find(|(part, ..)| part == parameter) {
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
