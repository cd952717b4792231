//! From a config to programs: the life of a training step, one function per stage.

use crate::config::Config;
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Graph, Literal, Role, Value, graph_edit};
use partita_mesh::Mesh;
use partita_nn::{Model, append_update, gradient_graph_wrt, train_step};
use partita_program::{LowerOptions, ProgramSet, RegionSizes};
use partita_runtime::Cpu;
use partita_schedule::{ApplyOptions, Plan, ReadyOptions, apply, ready_plan};
use partita_spmd::{Options, Partitioned, Pieces, microbatch, partition, specialise, split_fused};

/// A step planned for a mesh, up to each rank's local graph.
#[derive(Debug)]
pub struct Planned {
    /// The global step with the plan's annotations.
    pub step: Graph,
    /// The plan, as data.
    pub plan: Plan,
    /// Parameters stored in pieces.
    pub pieces: Vec<Pieces>,
    /// Layouts and class graphs.
    pub partitioned: Partitioned,
    /// Each rank's graph.
    pub locals: Vec<Graph>,
    /// Facts worth telling.
    pub notes: Vec<String>,
}

/// What is varied between a training run and a verification of it.
#[derive(Clone, Debug)]
pub struct Build {
    /// Rows of the whole batch.
    pub batch: usize,
    /// Type of parameters and activations.
    pub dtype: DType,
    /// Whether the step also returns gradients.
    pub output_gradients: bool,
    /// Whether the step also returns what the model says beside its loss.
    pub output_predictions: bool,
    /// Whether the step also returns the gradient with respect to the first real input, `grad.<input>`.
    pub input_gradient: bool,
    /// The device, with kernels of one's own if there are any; the runner's options name it too.
    pub cpu: Cpu,
    /// Test hook: see [`Options::break_rule_at`].
    pub break_rule_at: Option<String>,
}

impl Build {
    /// What the config says.
    pub fn from_config(config: &Config) -> Build {
        Build {
            batch: config.train.batch,
            dtype: config.train.dtype,
            output_gradients: false,
            output_predictions: false,
            input_gradient: false,
            cpu: Cpu::default(),
            break_rule_at: None,
        }
    }
}

/// The mesh a config asks for, `device_count` standing for `-1`.
pub fn mesh(config: &Config) -> Result<Mesh> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mesh = Mesh::parse(&config.mesh, Some(cores))?;
    let ranks = mesh.rank_count();
    if ranks > MOST_RANKS {
        return Err(Diagnostic::new("E007", format!("mesh {mesh} does not fit"))
            .at("mesh.shape")
            .expected(format!("at most {MOST_RANKS} ranks in one process"))
            .found(format!("{ranks} ranks")));
    }
    for axis in &mesh.axes {
        if axis.name == "pp" && axis.size > 1 {
            return Err(Diagnostic::new("E008", "pipeline stages are not there yet")
                .at("mesh.shape")
                .found(format!("pp={}", axis.size))
                .help("use dp, fsdp, tp or sp"));
        }
    }
    Ok(mesh)
}

/// More ranks than this in one process is a typo.
const MOST_RANKS: usize = 256;

/// The model for training.
pub fn model(config: &Config, build: &Build) -> Result<Model> {
    config.model.build(build.batch, build.dtype, true)
}

/// The step as it is written: one device, one batch, no plan. What verification compares with.
pub fn reference_step(config: &Config, model: &Model, build: &Build) -> Result<Graph> {
    let mut options = config.step.clone();
    options.output_gradients = build.output_gradients;
    train_step(&model.forward, &options)
}

/// The step planned for `mesh`.
pub fn plan_step(config: &Config, model: &Model, mesh: &Mesh, build: &Build) -> Result<Planned> {
    let mut options = config.step.clone();
    options.output_gradients = build.output_gradients;
    let (forward, pieces) = split_fused(&model.forward)?;
    let forward = if build.output_predictions { forward } else { loss_only(forward) };
    let input = if build.input_gradient { Some(first_real_input(&forward)?) } else { None };
    let gradients = gradient_graph_wrt(&forward, input.as_slice())?;
    let gradients = if config.train.microbatches > 1 {
        microbatch(&gradients, config.train.microbatches)?
    } else {
        gradients
    };
    let step = append_update(&gradients, &options)?;
    place(config, &step, pieces, None, mesh, &build.cpu, build.break_rule_at.clone())
}

/// A graph whose fused parameters have been taken apart into `pieces`: opened, laid out by `plan` (the config's where
/// absent) and partitioned.
pub fn place(
    config: &Config,
    graph: &Graph,
    pieces: Vec<Pieces>,
    plan: Option<&Plan>,
    mesh: &Mesh,
    cpu: &Cpu,
    break_rule_at: Option<String>,
) -> Result<Planned> {
    let graph = open_without_kernels(graph, cpu)?;
    let plan = match plan {
        Some(plan) => plan.clone(),
        None => plan_of(config, &graph, mesh)?,
    };
    let options = ApplyOptions { sequence_parallel: config.plan.sequence_parallel };
    let applied = apply(&plan, &graph, mesh, &options)?;
    let partitioned = partition(&applied.graph, mesh, &Options { break_rule_at, ..Options::default() })?;
    let locals = (0..mesh.rank_count())
        .map(|rank| specialise(partitioned.local(rank), rank))
        .collect::<Result<Vec<Graph>>>()?;
    let mut notes = applied.notes;
    if config.plan.strict
        && let Some(note) = partitioned.notes.first()
    {
        return Err(Diagnostic::new("E009", "the mesh leaves ranks idle").at("--strict").note(note.clone()));
    }
    notes.extend(partitioned.notes.iter().cloned());
    Ok(Planned { step: applied.graph, plan, pieces, partitioned, locals, notes })
}

/// A forward graph with its loss as the one output: what else it says would live to the end of the step.
fn loss_only(mut forward: Graph) -> Graph {
    if let Some(loss) = forward.output_position("loss") {
        forward.outputs = vec![forward.outputs[loss]];
        forward.output_names = vec!["loss".to_string()];
        let annotation = forward.output_annotations.get(loss).cloned();
        forward.output_annotations = annotation.into_iter().collect();
    }
    forward
}

/// The name of the first fed tensor of real numbers.
fn first_real_input(forward: &Graph) -> Result<&str> {
    let real = |value: &&Value| value.role == Role::Input && value.ty.rank() > 0 && value.ty.dtype.is_float();
    forward.inputs.iter().map(|&v| forward.value(v)).find(real).map(|value| value.name.as_str()).ok_or_else(
        || {
            Diagnostic::new("E013", format!("`{}` has no input with a gradient", forward.name))
                .expected("an input of real numbers")
        },
    )
}

/// The graph with every composite opened that the device has no kernel for, and what nobody needs dropped: a
/// gradient composite that is opened may turn out not to read a weight, which then need not be gathered.
pub fn open_without_kernels(graph: &Graph, device: &dyn RegionSizes) -> Result<Graph> {
    Ok(graph_edit::prune(&graph_edit::open_composites(graph, &|c| !device.has_kernel(c))?))
}

/// The plan: from a file, from the config, else the ready one for the model and mesh.
fn plan_of(config: &Config, step: &Graph, mesh: &Mesh) -> Result<Plan> {
    if let Some(path) = &config.plan.file {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Diagnostic::new("E005", format!("no plan file `{}`", path.display())).found(error.to_string())
        })?;
        return Plan::from_toml(&text, &path.display().to_string());
    }
    if !config.plan.styles.is_empty() {
        return Plan::from_value(&toml::Value::Table(config.plan.styles.clone()), "[plan]");
    }
    let options = ReadyOptions {
        sequence_parallel: config.plan.sequence_parallel,
        vocab_parallel: config.plan.vocab_parallel,
        ..ReadyOptions::default()
    };
    ready_plan(config.model.name(), step, mesh, &options)
}

/// The programs of all ranks.
pub fn lower(planned: &Planned, sizes: &dyn RegionSizes) -> Result<ProgramSet> {
    partita_program::lower(&planned.locals, &LowerOptions::default(), sizes)
}

/// Every input of a step graph by position: what is fed, parameters (whole or in pieces), optimizer states, from
/// tensors by their global names. Microbatch inputs are cut from the whole ones. E010 names what is missing.
pub fn inputs_of(
    step: &Graph,
    pieces: &[Pieces],
    tensors: &IndexMap<String, Literal>,
) -> Result<Vec<Literal>> {
    let mut cut: IndexMap<String, Literal> = IndexMap::new();
    for piece in pieces {
        for (name, value) in tensors {
            // A piece cuts its parameter and the parameter's states.
            if *name == piece.name || name.ends_with(&format!(".{}", piece.name)) {
                let prefix = &name[..name.len() - piece.name.len()];
                for (part, literal) in piece.split(value) {
                    cut.insert(format!("{prefix}{part}"), literal);
                }
            }
        }
    }
    let micro = micro_counts(step);
    step.inputs
        .iter()
        .map(|&input| {
            let name = &step.value(input).name;
            if let Some(value) = tensors.get(name).or_else(|| cut.get(name)) {
                return Ok(value.clone());
            }
            if let Some((whole, index)) = micro_name(name)
                && let Some(value) = tensors.get(whole)
            {
                let rows = value.ty.shape[0];
                let (start, limit) = micro_rows(rows, micro[whole], index);
                let (mut offset, mut shape) = (vec![0; value.ty.rank()], value.ty.shape.clone());
                (offset[0], shape[0]) = (start, limit - start);
                return Ok(value.window(&offset, &shape));
            }
            Err(Diagnostic::new("E010", format!("nothing to feed to input `{name}`"))
                .expected(step.ty(input).to_string()))
        })
        .collect()
}

/// `tokens.micro1` is piece 1 of `tokens`.
pub fn micro_name(name: &str) -> Option<(&str, usize)> {
    let (whole, index) = name.rsplit_once(".micro")?;
    Some((whole, index.parse().ok()?))
}

fn micro_counts(step: &Graph) -> IndexMap<String, usize> {
    let mut counts: IndexMap<String, usize> = IndexMap::new();
    for &input in &step.inputs {
        if let Some((whole, index)) = micro_name(&step.value(input).name) {
            let count = counts.entry(whole.to_string()).or_default();
            *count = (*count).max(index + 1);
        }
    }
    counts
}

/// Rows of microbatch `index` of `count`: balanced, the first ones get one more.
pub fn micro_rows(rows: usize, count: usize, index: usize) -> (usize, usize) {
    let start = |i: usize| i * (rows / count) + i.min(rows % count);
    (start(index), start(index + 1))
}

/// Outputs by name, pieces joined under their parameter's name.
pub fn outputs_by_name(step: &Graph, pieces: &[Pieces], outputs: Vec<Literal>) -> IndexMap<String, Literal> {
    let mut named: IndexMap<String, Literal> = step.output_names.iter().cloned().zip(outputs).collect();
    for piece in pieces {
        let Some((first, _, _)) = piece.limits.first() else { continue };
        let prefixes: Vec<String> = named
            .keys()
            .filter(|name| *name == first || name.ends_with(&format!(".{first}")))
            .map(|name| name[..name.len() - first.len()].to_string())
            .collect();
        for prefix in prefixes {
            let parts: Vec<Literal> = piece
                .limits
                .iter()
                .filter_map(|(part, _, _)| named.shift_remove(&format!("{prefix}{part}")))
                .collect();
            named.insert(format!("{prefix}{}", piece.name), piece.join(&parts));
        }
    }
    named
}

/// Zero states for every [`Role::StateOf`] input of a step, by name.
pub fn zero_states(step: &Graph) -> IndexMap<String, Literal> {
    let mut states = IndexMap::new();
    for &input in &step.inputs {
        let value = step.value(input);
        if matches!(value.role, Role::StateOf(_)) {
            states.insert(value.name.clone(), Literal::zeros(&value.ty));
        }
    }
    states
}
