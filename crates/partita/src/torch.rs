//! A training step for the distributed runtime of PyTorch: the model as a module of PyTorch, the lines of the plan, and
//! what a runner has to know to feed it and to keep its state.
//!
//! The runner is a script, `run.py`. Beside it lie the models and the package that applies plans to modules, which is that
//! of `partita.torch`: a plan means the same from Rust, from Python and from an exported folder.

use crate::execution::{state_layout, tensor_data};
use crate::run_files::Saved;
use crate::session::Session;
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::Phase;
use partita_nn::Optimizer;
use partita_pipeline::block_of;
use partita_runtime::StateLayout;
use partita_runtime::checkpoint::{TensorData, export_weights};
use partita_schedule::Built;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;

/// The files that every exported step has, by their paths in its folder.
const FILES: [(&str, &str); 10] = [
    ("run.py", include_str!("torch/run.py")),
    ("models.py", include_str!("torch/models.py")),
    ("parallel/_needs.py", include_str!("torch/needs.py")),
    ("parallel/__init__.py", include_str!("../../../python/partita/torch/__init__.py")),
    ("parallel/_apply.py", include_str!("../../../python/partita/torch/_apply.py")),
    ("parallel/_batch.py", include_str!("../../../python/partita/torch/_batch.py")),
    ("parallel/_layouts.py", include_str!("../../../python/partita/torch/_layouts.py")),
    ("parallel/_lines.py", include_str!("../../../python/partita/torch/_lines.py")),
    ("parallel/_parallel.py", include_str!("../../../python/partita/torch/_parallel.py")),
    ("parallel/_stages.py", include_str!("../../../python/partita/torch/_stages.py")),
];

/// The version of [`Manifest`].
const FORMAT: &str = "partita-torch-1";

/// A model as a module of PyTorch.
#[derive(Clone, PartialEq, Debug)]
pub struct Module {
    /// Its class in `models.py`.
    pub class: &'static str,
    /// The named arguments of the class.
    pub sizes: Value,
    /// The function of `models.py` that is its loss: a mean over the rows of the batch.
    pub loss: &'static str,
    /// The fed inputs: those of the module, then the target.
    pub inputs: Vec<&'static str>,
    /// The share of elements that dropout zeroes.
    pub dropout: f64,
}

impl Module {
    /// A model that learns to predict the next token.
    pub fn of_text(class: &'static str, sizes: Value, dropout: f64) -> Module {
        Module { class, sizes, loss: "cross_entropy", inputs: vec!["tokens", "labels"], dropout }
    }
}

/// What the files of an exported step are.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// Name and version of this format.
    pub format: &'static str,
    /// The class of the model.
    pub model: &'static str,
    /// Its named arguments.
    pub sizes: Value,
    /// The loss.
    pub loss: &'static str,
    /// The fed inputs, the target last.
    pub inputs: Vec<&'static str>,
    /// The axes of the mesh with their sizes, major first.
    pub mesh: Vec<(String, usize)>,
    /// The lines of the plan: pattern, request, origin.
    pub plan: Vec<[String; 3]>,
    /// Microbatches of each rank.
    pub microbatches: usize,
    /// The order in which stages work.
    pub timetable: Option<Tasks>,
    /// The class of the optimizer, `name`, and its constants but the learning rate.
    pub optimizer: Value,
    /// Whether weight decay also acts on parameters of fewer than two dimensions.
    pub decay_1d: bool,
    /// The largest norm of the gradients.
    pub clip_grad_norm: Option<f64>,
    /// The seed of random numbers.
    pub seed: u64,
    /// Steps before the state was saved; 0 for an initial state.
    pub first: u64,
    /// The learning rate of each step, from step 1.
    pub learning_rates: Vec<f64>,
}

/// A timetable in the CSV form of PyTorch.
#[derive(Clone, Debug, Serialize)]
pub struct Tasks {
    /// Its name.
    pub name: String,
    /// Stages of the model.
    pub stages: usize,
    /// Slices of the mesh.
    pub slices: usize,
    /// Microbatches.
    pub microbatches: usize,
    /// A line for each slice.
    pub tasks: String,
}

/// A step for PyTorch, in memory.
#[derive(Clone, Debug)]
pub struct TorchStep {
    /// What the other parts are.
    pub manifest: Manifest,
    /// Parameters and states; what is missing starts at zero.
    pub state: IndexMap<String, TensorData>,
    /// The batches of the steps that are left: `<step>/<name>`.
    pub feeds: IndexMap<String, TensorData>,
    /// The state that its runner saves.
    pub layout: StateLayout,
}

impl TorchStep {
    /// Writes the files of the step to an existing folder.
    ///
    /// # Errors
    /// E316 if a file exists or cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let at = |name: &str, error: std::io::Error| {
            Diagnostic::new("E316", "the step cannot be written")
                .at(folder.join(name).display().to_string())
                .expected("a folder that can be written")
                .found(error.to_string())
        };
        std::fs::create_dir(folder.join("parallel")).map_err(|error| at("parallel", error))?;
        for (name, text) in FILES {
            std::fs::write(folder.join(name), text).map_err(|error| at(name, error))?;
        }
        export_weights(&folder.join("state.safetensors"), &self.state)?;
        export_weights(&folder.join("feeds.safetensors"), &self.feeds)?;
        let manifest = serde_json::to_string(&self.manifest).expect("a manifest has only strings as keys");
        std::fs::write(folder.join("manifest.json"), manifest).map_err(|error| at("manifest.json", error))
    }
}

/// Whether PyTorch has the model, the element type and the optimizer of a session. The lines of its plan are read by
/// `partita.torch`, which refuses them with E394.
///
/// # Errors
/// E060 with what it lacks.
pub fn check(session: &Session) -> Result<()> {
    module(session)?;
    optimizer(session)?;
    let config = session.config();
    match config.train.dtype {
        DType::F32 => Ok(()),
        other => Err(lacks("its parameters are f32", "train.dtype=f32", other.to_string())),
    }
}

fn lacks(what: &str, expected: &str, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E060", format!("the engine torch cannot run this: {what}"))
        .at("--engine")
        .expected(expected)
        .found(found)
        .help("use `--engine native`, or `partita.torch.apply` on a module of your own")
}

/// Facts for the user of what differs from other engines.
///
/// # Errors
/// E060 for a model that PyTorch does not have.
pub fn notes(session: &Session) -> Result<Vec<String>> {
    let random = "dropout draws the random numbers of PyTorch, so losses differ from those of other engines";
    Ok(if module(session)?.dropout > 0.0 { vec![random.to_string()] } else { Vec::new() })
}

fn module(session: &Session) -> Result<Module> {
    let model = &session.config().model;
    model.torch().ok_or_else(|| {
        lacks(
            "it has no module of PyTorch for this model",
            "a model mlp, gpt or llama",
            model.name().to_string(),
        )
    })
}

/// The class and the constants of the optimizer.
fn optimizer(session: &Session) -> Result<Value> {
    let adam = |name: &str, [beta1, beta2, epsilon, decay]: [f64; 4]| {
        Ok(json!({"name": name, "betas": [beta1, beta2], "eps": epsilon, "weight_decay": decay}))
    };
    match session.config().step.optimizer {
        Optimizer::Sgd { momentum, weight_decay, nesterov } => Ok(
            json!({"name": "SGD", "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}),
        ),
        Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
            adam("Adam", [beta1, beta2, epsilon, weight_decay])
        }
        Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
            adam("AdamW", [beta1, beta2, epsilon, weight_decay])
        }
        other => Err(lacks("it has not this optimizer", "sgd, adam or adamw", other.name().to_string())),
    }
}

/// The training step of a session with the batches of its steps, and with its initial state or that of a checkpoint, from
/// which it continues.
///
/// # Errors
/// E060 for what PyTorch does not have, E304 and E314 for a checkpoint of other data or of another model, and what
/// building refuses.
pub fn export(session: &Session, from: Option<&Saved>) -> Result<TorchStep> {
    check(session)?;
    let Module { class, sizes, loss, inputs, .. } = module(session)?;
    let config = session.config();
    let model = session.model()?;
    let feed = session.feed(&model)?;
    let built = session.build_model(&model)?;
    let at = |error: Box<Diagnostic>| match from {
        Some(saved) => error.at(saved.path.display().to_string()),
        None => error,
    };
    let (first, first_batch) = match from {
        Some(saved) => (saved.step(), feed.resume(saved.opened().meta()).map_err(at)?),
        None => (0, 0),
    };
    let state = match from {
        Some(saved) => {
            saved.weights(&model)?;
            saved.checkpoint()?.tensors
        }
        None => {
            let initial = model.initial(config.train.seed);
            initial.iter().map(|(name, value)| (name.clone(), tensor_data(value))).collect()
        }
    };
    let manifest = Manifest {
        format: FORMAT,
        model: class,
        sizes,
        loss,
        inputs,
        mesh: built.mesh.axes.iter().map(|axis| (axis.name.clone(), axis.size)).collect(),
        plan: lines(&built),
        microbatches: config.train.microbatches,
        timetable: built.timetable.as_ref().map(|timetable| Tasks {
            name: config.train.timetable.name().to_string(),
            stages: timetable.slice_of_stage().len(),
            slices: timetable.slices.len(),
            microbatches: timetable.microbatches,
            tasks: timetable.to_csv(),
        }),
        optimizer: optimizer(session)?,
        decay_1d: config.step.decay_1d,
        clip_grad_norm: config.step.clip_grad_norm,
        seed: config.train.seed,
        first,
        learning_rates: (1..=config.train.steps).map(|step| config.schedule.at(step)).collect(),
    };
    let feeds = crate::feeds::batches(feed.as_ref(), first..config.train.steps, first_batch)?;
    Ok(TorchStep { manifest, state, feeds, layout: state_layout(&built)? })
}

/// The lines of the plan, with one for each end of a stage that was chosen by work.
fn lines(built: &Built) -> Vec<[String; 3]> {
    let line = |entry: &partita_schedule::Entry| {
        [entry.modules.clone(), entry.primitive.to_string(), entry.origin.clone()]
    };
    let mut lines: Vec<[String; 3]> = built.plan.entries.iter().map(line).collect();
    for (stage, own) in built.ending_lines.iter().enumerate() {
        let forward =
            built.step.nodes.iter().filter(|node| node.phase == Phase::Forward && node.stage == stage);
        let last = forward.map(|node| block_of(&node.path)).rfind(|block| !block.is_empty());
        if let (true, Some(block)) = (own.is_empty(), last) {
            let origin = format!("the end of stage {stage} of {}", built.mesh);
            lines.push([block.to_string(), "pipeline_split".to_string(), origin]);
        }
    }
    lines
}
