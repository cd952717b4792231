//! The life of a step up to each rank's graph, one function per stage.

use crate::apply::{ApplyOptions, apply};
use crate::plan::Plan;
use crate::structure::{Structured, Tools, restructure};
use crate::verify::StepRunner;
use partita_base::{Diagnostic, Result};
use partita_ir::{Graph, Role, Value, graph_edit};
use partita_mesh::Mesh;
use partita_nn::{Model, StepOptions, append_update, gradient_graph_wrt, train_step};
use partita_spmd::{Options, Partitioned, Pieces, microbatch, partition, specialise, split_fused};

/// A step planned for a mesh, up to each rank's local graph.
#[derive(Clone, Debug)]
pub struct Built {
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

/// What is built beside what the plan says.
#[derive(Clone, PartialEq, Debug)]
pub struct BuildOptions {
    /// Optimizer, clipping, whether gradients are returned.
    pub step: StepOptions,
    /// Pieces the batch is worked off in.
    pub microbatches: usize,
    /// See [`ApplyOptions::sequence_parallel`].
    pub sequence_parallel: bool,
    /// Whether the step also returns what the model says beside its loss.
    pub output_predictions: bool,
    /// Whether the step also returns the gradient with respect to the first real input, `grad.<input>`.
    pub input_gradient: bool,
    /// Test hook: see [`Options::break_rule_at`].
    pub break_rule_at: Option<String>,
}

impl BuildOptions {
    /// A step in one piece that returns its loss and the new state.
    pub fn new(step: StepOptions) -> BuildOptions {
        BuildOptions {
            step,
            microbatches: 1,
            sequence_parallel: false,
            output_predictions: false,
            input_gradient: false,
            break_rule_at: None,
        }
    }

    /// With all that can be compared: gradients and predictions.
    pub fn for_verification(mut self) -> BuildOptions {
        self.step.output_gradients = true;
        self.output_predictions = true;
        self
    }
}

/// The step as it is written: one device, one batch, no plan. What verification compares with.
pub fn reference_step(model: &Model, options: &StepOptions) -> Result<Graph> {
    train_step(&model.forward, options)
}

/// The step of a model planned for `mesh`.
pub fn build(
    model: &Model,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    tools: &Tools,
) -> Result<Built> {
    build_structured(&restructure(plan, model, tools)?, plan, mesh, options, tools.runner)
}

/// As [`build`], after the structural lines of the plan.
pub(crate) fn build_structured(
    structured: &Structured,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
) -> Result<Built> {
    let (gradients, pieces) = gradients_of(structured, options)?;
    let step = append_update(&gradients, &options.step)?;
    let mut built = place(&step, pieces, plan, mesh, options, runner)?;
    built.notes.splice(0..0, structured.notes.iter().cloned());
    Ok(built)
}

/// The forward and backward pass of a model planned for `mesh`, without an update: outputs `loss` and `grad.<parameter>`.
pub fn build_gradients(
    model: &Model,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    tools: &Tools,
) -> Result<Built> {
    let (gradients, pieces) = gradients_of(&restructure(plan, model, tools)?, options)?;
    place(&gradients, pieces, plan, mesh, options, tools.runner)
}

/// Forward and backward pass after the structural lines of a plan, and the parameters that were taken apart.
fn gradients_of(structured: &Structured, options: &BuildOptions) -> Result<(Graph, Vec<Pieces>)> {
    let (forward, pieces) = split_fused(&structured.model.forward)?;
    let forward = if options.output_predictions { forward } else { loss_only(forward) };
    let input = if options.input_gradient { Some(first_real_input(&forward)?) } else { None };
    let gradients = gradient_graph_wrt(&forward, input.as_slice())?;
    let gradients = match options.microbatches {
        1 => gradients,
        pieces => microbatch(&gradients, pieces)?,
    };
    Ok((gradients, pieces))
}

/// The model without training: its loss alone, planned for `mesh`.
pub fn build_evaluation(
    model: &Model,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    tools: &Tools,
) -> Result<Built> {
    let mut forward = restructure(plan, model, tools)?.model.forward;
    // There is no backward pass to compute anything again for.
    forward.nodes.iter_mut().for_each(|node| node.remat = None);
    let (forward, pieces) = split_fused(&graph_edit::prune(&loss_only(forward)))?;
    place(&forward, pieces, plan, mesh, options, tools.runner)
}

/// A graph whose fused parameters have been taken apart into `pieces`: opened, laid out and partitioned.
fn place(
    graph: &Graph,
    pieces: Vec<Pieces>,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
) -> Result<Built> {
    let graph = open_without_kernels(graph, runner)?;
    let applied = apply(plan, &graph, mesh, &ApplyOptions { sequence_parallel: options.sequence_parallel })?;
    let cutting = Options { break_rule_at: options.break_rule_at.clone(), ..Options::default() };
    let partitioned = partition(&applied.graph, mesh, &cutting)?;
    let locals = (0..mesh.rank_count())
        .map(|rank| specialise(partitioned.local(rank), rank))
        .collect::<Result<Vec<Graph>>>()?;
    let mut notes = applied.notes;
    notes.extend(partitioned.notes.iter().cloned());
    Ok(Built { step: applied.graph, plan: plan.clone(), pieces, partitioned, locals, notes })
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

/// The graph with every composite opened that the device has no kernel for, and what nobody needs dropped: a gradient
/// composite that is opened may turn out not to read a weight, which then need not be gathered.
pub fn open_without_kernels(graph: &Graph, runner: &dyn StepRunner) -> Result<Graph> {
    Ok(graph_edit::prune(&graph_edit::open_composites(graph, &|c| !runner.has_kernel(c))?))
}
