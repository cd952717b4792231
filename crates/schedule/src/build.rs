//! From a model and a plan to the local graphs of all ranks: one function per pass of the middle
//! end (restructure, differentiate, microbatch, update, apply layouts, cut into stages, partition).

mod admission;
mod arriving;
mod outputs;

pub use arriving::{annotated_differentiated, build_differentiated};

use crate::apply::{Applied, ApplyOptions, apply};
use crate::arrivals::arrivals;
use crate::differentiated;
use crate::effects::{Idle, idle_lines};
use crate::offload::{Offload, offloaded};
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::primitive::PIPELINE_NOTE;
use crate::stages::{self, Stage};
use crate::structure::{Structured, Tools, restructure};
use crate::verify::StepRunner;
use outputs::{predictions, without_outputs};
use partita_base::{Diagnostic, Result};
use partita_cost::Cluster;
use partita_ir::composites::DROPOUT;
use partita_ir::ops::Composite;
use partita_ir::port::LOSS;
use partita_ir::{Attribute, F8, Graph, Node, Pieces, Role, TensorType, Value, graph_edit, quantise};
use partita_mesh::{AxisList, Mesh, Slice};
use partita_nn::{LossScaling, Model, Quantised, StepOptions, append_update, scaled_gradient_graph};
use partita_pipeline::{Cut, Edge, Order, StageGraph, Timetable};
use partita_spmd::{
    LaidOut, Layouts, Options, Partitioned, is_computed, lay_out, microbatch_of, partition, propagate,
    specialise, split_fused, virtual_ranks,
};
use std::collections::{BTreeMap, BTreeSet};

/// A step planned for a mesh, up to the local graphs of its ranks.
#[derive(Clone, Debug)]
pub struct Built {
    /// The global step with the plan's annotations.
    pub step: Graph,
    /// The plan, as data.
    pub plan: Plan,
    /// Parameters that are stored as several parts.
    pub pieces: Vec<Pieces>,
    /// The whole mesh.
    pub mesh: Mesh,
    /// What each slice of the mesh runs; one stage if the step has no pipeline.
    pub stages: Vec<Stage>,
    /// The values sent between stages.
    pub edges: Vec<Edge>,
    /// The order in which the stages process microbatches; `None` for one stage.
    pub timetable: Option<Timetable>,
    /// For each stage of the model but the last, the line of the plan that ends it; empty where it was
    /// chosen automatically. A slice of the mesh may run several of these stages.
    pub ending_lines: Vec<String>,
    /// What ranks keep in host memory.
    pub offload: Offload,
    /// Lines of the plan that change nothing, of a training step: see [`check_effects`](crate::check_effects).
    pub idle: Vec<Idle>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Built {
    /// The local graph of one rank: the graph of its class with the rank's number folded in. E014
    /// if the rank does not exist.
    pub fn local(&self, rank: usize) -> Result<Graph> {
        let (stage, rank) = self.place_of(rank)?;
        specialise(self.stages[stage].partitioned.local(rank), rank)
    }

    /// The number of a rank's stage, and the rank's number within that stage. E014 if the rank does not
    /// exist.
    pub fn place_of(&self, rank: usize) -> Result<(usize, usize)> {
        let within = |(number, stage): (usize, &Stage)| Some((number, stage.position(rank)?));
        self.stages.iter().enumerate().find_map(within).ok_or_else(|| {
            Diagnostic::new("E014", format!("there is no rank {rank}")).expected(format!(
                "a rank below {} of mesh {}",
                self.mesh.rank_count(),
                self.mesh
            ))
        })
    }

    /// A graph on one rank, without a plan.
    pub fn solo(graph: &Graph, runner: &dyn StepRunner) -> Result<Built> {
        let mesh = Mesh::new("one", &[("dp", 1)]);
        let step = open_without_kernels(graph, runner)?;
        Built::of(partition(&step, &mesh, &Options::default())?)
    }

    /// A built step from one partitioned graph, without a pipeline.
    pub fn of(partitioned: Partitioned) -> Result<Built> {
        Ok(Built {
            step: partitioned.graph.clone(),
            plan: Plan::default(),
            pieces: Vec::new(),
            mesh: partitioned.mesh.clone(),
            notes: partitioned.notes.clone(),
            stages: vec![Stage::whole(partitioned)?],
            edges: Vec::new(),
            timetable: None,
            ending_lines: Vec::new(),
            offload: Offload::default(),
            idle: Vec::new(),
        })
    }

    /// Puts the notes of the structural lines first.
    fn noting(mut self, structured: &Structured) -> Built {
        // With several stages, the note that explains a stage mark is superfluous.
        let is_told = |note: &&String| self.stages.len() == 1 || !note.ends_with(PIPELINE_NOTE);
        let told: Vec<String> = structured.notes.iter().filter(is_told).cloned().collect();
        self.notes.splice(0..0, told);
        self
    }

    /// The shape of an input (a parameter, a state, a fed tensor) on each rank that has it; `None`
    /// if no input has this name.
    pub fn local_shapes(&self, input: &str) -> Option<Vec<Vec<usize>>> {
        let shapes = self.stages.iter().filter_map(|stage| {
            let Partitioned { graph, mesh, inputs, .. } = &stage.partitioned;
            let position = graph.inputs.iter().position(|&v| graph.value(v).name == input)?;
            let shape = &graph.ty(graph.inputs[position]).shape;
            let local = |rank| inputs[position].local_shape(mesh, shape, rank);
            Some((0..mesh.rank_count()).map(local).collect::<Vec<_>>())
        });
        let shapes: Vec<Vec<usize>> = shapes.flatten().collect();
        (!shapes.is_empty()).then_some(shapes)
    }
}

/// Options of a build that are not in the plan.
#[derive(Clone, PartialEq, Debug)]
pub struct BuildOptions {
    /// Optimizer, clipping, whether gradients are returned.
    pub step: StepOptions,
    /// The number of microbatches per step.
    pub microbatches: usize,
    /// The rows of a batch, where they are known: see [`microbatch_of`].
    pub rows: Option<usize>,
    /// See [`ApplyOptions::sequence_parallel`].
    pub sequence_parallel: bool,
    /// Whether the step also returns the other outputs of the model beside its loss.
    pub output_predictions: bool,
    /// Whether the step also returns the gradient with respect to the first real input, `grad.<input>`.
    pub input_gradient: bool,
    /// Further inputs with a float type whose gradients the step returns, `grad.<input>`.
    pub input_gradients: Vec<String>,
    /// What links and devices cost.
    pub cluster: Cluster,
    /// Splits fixed by hand: see [`Options::fixed`].
    pub fixed: BTreeMap<String, Vec<AxisList>>,
    /// The order in which pipeline stages work.
    pub timetable: Order,
    /// For tests: see [`Options::break_rule_at`].
    #[cfg(feature = "testing")]
    pub break_rule_at: Option<String>,
}

impl BuildOptions {
    /// Options for a step with one microbatch that returns its loss and the new state.
    pub fn new(step: StepOptions) -> BuildOptions {
        BuildOptions {
            step,
            microbatches: 1,
            rows: None,
            sequence_parallel: false,
            output_predictions: false,
            input_gradient: false,
            input_gradients: Vec::new(),
            cluster: Cluster::default(),
            fixed: BTreeMap::new(),
            timetable: Order::default(),
            #[cfg(feature = "testing")]
            break_rule_at: None,
        }
    }

    /// The options that [`apply`] needs.
    pub(crate) fn applying(&self) -> ApplyOptions {
        ApplyOptions { sequence_parallel: self.sequence_parallel }
    }

    /// Returns everything that can be compared: gradients and predictions.
    pub fn for_verification(mut self) -> BuildOptions {
        self.step.output_gradients = true;
        self.output_predictions = true;
        self
    }
}

/// The step as the model defines it: one device, one batch, no plan but for the precision of its lines. Verification
/// compares with this step. A model that is a whole step already is not differentiated and gets no optimizer. In 8 bits,
/// where blocks depend on the extents of a matmul, fused projections are split here too: also returns their parts.
pub fn reference_step(structured: &Structured, options: &StepOptions) -> Result<(Graph, Vec<Pieces>)> {
    let forward = structured.in_precision(structured.model.forward.clone(), options)?;
    if structured.model.is_step() {
        return Ok((forward, Vec::new()));
    }
    let (forward, pieces) = match options.f8.is_some() && options.optimizer.is_elementwise() {
        true => split_fused(&forward)?,
        false => (forward, Vec::new()),
    };
    let keeps = |node: &Node| structured.keeps_type(node);
    let f8 = options.f8.map(|f8| Quantised { f8, keeps: &keeps });
    let gradients = scaled_gradient_graph(&forward, &[], options.loss_scaling, f8)?;
    Ok((append_update(&gradients, options)?, pieces))
}

/// The training step of a model, planned for `mesh`.
pub fn build(
    model: &Model,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    tools: &Tools,
) -> Result<Built> {
    build_structured(&restructure(plan, model, tools)?, plan, mesh, options, tools.runner)
}

/// [`build`] for a model whose structural lines are applied already.
pub(crate) fn build_structured(
    structured: &Structured,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
) -> Result<Built> {
    let mut built = place(&unplaced_step(structured, mesh, options, runner)?, plan, mesh, options, runner)?;
    built.idle = idle_lines(&built, structured, options);
    Ok(built.noting(structured))
}

/// The training step of a model with the layouts that a plan requests, before propagation: what a planner searches. Slices
/// of a pipeline have a step each.
///
/// # Errors
/// What the plan and the passes refuse.
pub fn annotated_steps(
    model: &Model,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    tools: &Tools,
) -> Result<Vec<(Mesh, Graph)>> {
    unplaced_step(&restructure(plan, model, tools)?, mesh, options, tools.runner)?.annotated(plan, options)
}

/// The forward and backward pass of a model planned for `mesh`, without an update: outputs `loss` and `grad.<parameter>`.
/// A model with inputs `cotangent.<output>`, whose loss is their inner product with its outputs, returns no loss.
pub fn build_gradients(
    model: &Model,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    tools: &Tools,
) -> Result<Built> {
    let structured = restructure(plan, model, tools)?;
    admission::microbatches(&structured, options, tools.runner)?;
    let pipeline = structured.pipeline(mesh, options)?;
    let f8 = options.step.f8.map(F8::without_states);
    let (graph, pieces, mut spoken_of) = gradients_of(&structured, &pipeline, options, None, f8)?;
    let forward = &structured.model.forward;
    if forward.inputs.iter().any(|&input| forward.value(input).is_cotangent()) {
        spoken_of.push(LOSS.to_string());
    }
    let graph = open_without_kernels(&graph, tools.runner)?;
    let unplaced = Unplaced { graph, pieces, spoken_of, microbatches: options.microbatches, pipeline };
    let built = place(&unplaced, plan, mesh, options, tools.runner)?;
    Ok(built.noting(&structured))
}

/// The loss of a training model, planned for `mesh`, with dropout disabled. Every plan line that
/// matches in the training step also matches here.
pub fn build_evaluation(
    model: &Model,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    tools: &Tools,
) -> Result<Built> {
    let forward =
        if model.is_step() { differentiated::loss_of_step(&model.forward) } else { model.forward.clone() };
    let model = Model { forward: without_dropout(&forward)?, ..model.clone() };
    build_forward(&model, plan, mesh, options, tools)
}

/// The forward pass of a model as training computes it, planned for `mesh`. Its dropout has the masks that the step of
/// [`build`] and the gradients of [`build_gradients`] have for the same seed and step.
pub fn build_forward(
    model: &Model,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    tools: &Tools,
) -> Result<Built> {
    let structured = restructure(plan, model, tools)?;
    let built = place(
        &unplaced_forward(&structured, mesh, options, tools.runner)?,
        plan,
        mesh,
        options,
        tools.runner,
    )?;
    Ok(built.noting(&structured))
}

/// The forward graph with every dropout kept as a node but with probability zero.
fn without_dropout(forward: &Graph) -> Result<Graph> {
    graph_edit::rebuild(forward, |builder, _, index, operands| {
        let node = &forward.nodes[index];
        let Some(composite) = node.op.composite().filter(|c| c.definition.name == DROPOUT.name) else {
            return Ok(Some(graph_edit::push_copy(builder, forward, index, operands)));
        };
        let mut attributes = composite.attributes.clone();
        attributes.insert("rate".to_string(), Attribute::Float(0.0));
        let types: Vec<TensorType> = forward.operand_types(node).into_iter().cloned().collect();
        builder.enter(node);
        Ok(Some(builder.push(Composite::new(&DROPOUT, attributes, &types)?, operands)?))
    })
}

/// A step before its layout lines are applied.
#[derive(Clone, Debug)]
pub(crate) struct Unplaced {
    /// The step or forward pass; composites are inlined where the device has no kernel.
    pub graph: Graph,
    pieces: Vec<Pieces>,
    /// Hidden outputs: plan lines may name them, but the options did not request them. They are
    /// dropped before partitioning.
    spoken_of: Vec<String>,
    microbatches: usize,
    pipeline: Pipeline,
}

impl Unplaced {
    /// The step with the layout lines of a plan, for each distinct mesh of the pipeline's slices.
    pub fn apply(&self, plan: &Plan, options: &BuildOptions) -> Result<Vec<(Mesh, Applied)>> {
        self.pipeline.check_lines(plan, &self.graph)?;
        let mut applied: Vec<(Mesh, Applied)> = Vec::new();
        for Slice { mesh, .. } in &self.pipeline.slices {
            if applied.iter().all(|(other, _)| other != mesh) {
                let plan = self.pipeline.plan_on(plan, mesh);
                applied.push((mesh.clone(), apply(&plan, &self.graph, mesh, &options.applying())?));
            }
        }
        Ok(applied)
    }

    /// The step with these lines, without the outputs that were not requested.
    fn annotated(&self, plan: &Plan, options: &BuildOptions) -> Result<Vec<(Mesh, Graph)>> {
        let kept = |graph| graph_edit::prune(without_outputs(graph, &self.spoken_of));
        Ok(self
            .apply(plan, options)?
            .into_iter()
            .map(|(mesh, applied)| (mesh, kept(applied.graph)))
            .collect())
    }
}

/// The training step of a model after the structural lines.
pub(crate) fn unplaced_step(
    structured: &Structured,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
) -> Result<Unplaced> {
    admission::microbatches(structured, options, runner)?;
    let pipeline = structured.pipeline(mesh, options)?;
    if structured.model.is_step() {
        let forward = &structured.in_precision(structured.model.forward.clone(), &options.step)?;
        let step =
            differentiated::split_step(forward, options.microbatches, &|forward| pipeline.mark(forward))?;
        let spoken_of = predictions(forward, options);
        let graph = open_without_kernels(&step, runner)?;
        return Ok(Unplaced {
            graph,
            pieces: Vec::new(),
            spoken_of,
            microbatches: options.microbatches,
            pipeline,
        });
    }
    let (gradients, pieces, spoken_of) =
        gradients_of(structured, &pipeline, options, options.step.loss_scaling, options.step.f8)?;
    runner.at_stage("differentiating the model")?;
    let step = append_update(&gradients, &options.step)?;
    let graph = open_without_kernels(&step, runner)?;
    Ok(Unplaced { graph, pieces, spoken_of, microbatches: options.microbatches, pipeline })
}

/// A form of the forward graph with fused projections split into parts, in the precision of the options. An optimizer that
/// sees whole tensors needs them whole.
fn parts_of(
    structured: &Structured,
    forward: &Graph,
    options: &BuildOptions,
) -> Result<(Graph, Vec<Pieces>)> {
    let (forward, pieces) = match options.step.optimizer.is_elementwise() {
        true => split_fused(forward)?,
        false => (forward.clone(), Vec::new()),
    };
    Ok((structured.in_precision(forward, &options.step)?, pieces))
}

/// Forward and backward pass, parameters that were split into parts, hidden outputs.
fn gradients_of(
    structured: &Structured,
    pipeline: &Pipeline,
    options: &BuildOptions,
    scaling: Option<LossScaling>,
    f8: Option<F8>,
) -> Result<(Graph, Vec<Pieces>, Vec<String>)> {
    let (mut forward, pieces) = parts_of(structured, &structured.model.forward, options)?;
    pipeline.mark(&mut forward)?;
    let mut inputs: Vec<&str> = options.input_gradients.iter().map(String::as_str).collect();
    if options.input_gradient {
        inputs.push(first_real_input(&forward)?);
    }
    let keeps = |node: &Node| structured.keeps_type(node);
    let f8 = f8.map(|f8| Quantised { f8, keeps: &keeps });
    let gradients = scaled_gradient_graph(&forward, &inputs, scaling, f8)?;
    let gradients = match options.microbatches {
        1 => gradients,
        pieces => microbatch_of(&gradients, pieces, options.rows)?,
    };
    Ok((gradients, pieces, predictions(&forward, options)))
}

/// The forward pass of a model after the structural lines.
pub(crate) fn unplaced_forward(
    structured: &Structured,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
) -> Result<Unplaced> {
    let mut forward = structured.model.forward.clone();
    // Without a backward pass there is nothing to recompute.
    forward.nodes.iter_mut().for_each(|node| node.remat = None);
    let (mut forward, pieces) = parts_of(structured, &forward, options)?;
    if let Some(f8) = options.step.f8 {
        forward =
            quantise::quantised(&forward, f8.without_states(), None, &|node| structured.keeps_type(node))?;
    }
    let pipeline = structured.pipeline(mesh, options)?;
    pipeline.mark(&mut forward)?;
    let graph = open_without_kernels(&forward, runner)?;
    let spoken_of = predictions(&forward, options);
    Ok(Unplaced { graph, pieces, spoken_of, microbatches: 1, pipeline })
}

/// Applies the layout lines, cuts the step into stages and partitions each. Without a pipeline
/// there is one stage, the whole step.
fn place(
    unplaced: &Unplaced,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
) -> Result<Built> {
    runner.at_stage("writing the step")?;
    options.cluster.holds(mesh)?;
    let Unplaced { pipeline, .. } = unplaced;
    let slice_of = |stage: usize| pipeline.slice_of_stage[stage];
    let mut notes = Vec::new();
    let mut on_meshes: Vec<OnMesh> = Vec::new();
    for (mesh, applied) in unplaced.apply(plan, options)? {
        extend_new(&mut notes, &applied.notes);
        let step = graph_edit::prune(without_outputs(applied.graph, &unplaced.spoken_of));
        has_distinct_names(&step)?;
        let cut = partita_pipeline::cut(&step, pipeline.slices.len(), &slice_of);
        // A received value does not say how the batch is sharded: it gets the layout that it has in the
        // whole step on this mesh.
        let layouts = (pipeline.slices.len() > 1).then(|| propagate(&step, &mesh)).transpose()?;
        on_meshes.push(OnMesh { mesh, step, cut, layouts });
    }
    runner.at_stage("applying the plan")?;
    same_cuts(&on_meshes)?;
    for name in options.fixed.keys() {
        is_computed(&on_meshes[0].step, name)?;
    }
    let mut laid_out: Vec<(LaidOut, StageGraph)> = Vec::with_capacity(pipeline.slices.len());
    for (number, slice) in pipeline.slices.iter().enumerate() {
        let on_mesh = on_meshes.iter_mut().find(|on| on.mesh == slice.mesh).expect("every slice has one");
        let mut stage = std::mem::take(&mut on_mesh.cut.stages[number]);
        if let Some(layouts) = &on_mesh.layouts {
            stages::lay_out_received(&mut stage, &on_mesh.cut.edges, layouts, &slice.mesh);
        }
        laid_out.push((lay_out(&stage.graph, &slice.mesh)?, stage));
    }
    let edges = &on_meshes[0].cut.edges;
    let options_of = |number: usize| {
        let mut fixed = options.fixed.clone();
        fixed.retain(|name, _| is_computed(&laid_out[number].1.graph, name).is_ok());
        let cluster = pipeline.cluster_of_slice(&options.cluster, mesh, number);
        let arrivals = arrivals(number, &laid_out, edges, &pipeline.slices, [&options.cluster, &cluster]);
        Options {
            ranks: pipeline.slices[number].ranks.clone(),
            cluster,
            fixed,
            arrivals,
            #[cfg(feature = "testing")]
            break_rule_at: options.break_rule_at.clone(),
            ..Options::default()
        }
    };
    let options_of_slices: Vec<Options> = (0..laid_out.len()).map(options_of).collect();
    let mut stages = Vec::with_capacity(laid_out.len());
    for (((laid_out, stage), options), slice) in
        laid_out.into_iter().zip(&options_of_slices).zip(&pipeline.slices)
    {
        let partitioned = laid_out.partition(options)?;
        runner.at_stage("partitioning the step")?;
        extend_new(&mut notes, &partitioned.notes);
        stages.push(Stage {
            classes: virtual_ranks::class_graphs(&partitioned)?,
            partitioned,
            ranks: slice.ranks.clone(),
            inputs: stage.inputs,
            outputs: stage.outputs,
        });
    }
    let (plan, pieces, mesh) = (plan.clone(), unplaced.pieces.clone(), mesh.clone());
    let timetable = pipeline.timetable(&unplaced.graph, unplaced.microbatches)?;
    let ending_lines = pipeline.ending_lines(&unplaced.graph);
    let OnMesh { step, cut, .. } = on_meshes.swap_remove(0);
    let offload = offloaded(&plan, &unplaced.graph)?;
    let (edges, idle) = (cut.edges, Vec::new());
    Ok(Built { step, plan, pieces, mesh, stages, edges, timetable, ending_lines, offload, idle, notes })
}

/// A step laid out on the mesh of some of the pipeline's slices, and cut into stages.
struct OnMesh {
    mesh: Mesh,
    step: Graph,
    cut: Cut,
    /// The layouts of the whole step on this mesh, if there are several slices.
    layouts: Option<Layouts>,
}

/// E161 unless the inputs of a step, and its outputs, have distinct names: those of the user among them, and
/// those that the step derives, such as the gradient `grad.w` beside the new value of a parameter `grad.w`.
fn has_distinct_names(step: &Graph) -> Result<()> {
    let inputs = step.inputs.iter().map(|&input| step.value(input).name.as_str());
    for (what, names) in [
        ("inputs", inputs.collect::<Vec<_>>()),
        ("outputs", step.output_names.iter().map(String::as_str).collect()),
    ] {
        let mut seen = BTreeSet::new();
        if let Some(name) = names.into_iter().find(|name| !name.is_empty() && !seen.insert(*name)) {
            return Err(Diagnostic::new("E161", format!("`{name}` is the name of two {what} of the step"))
                .expected("parameters without a name that the step gives to its own inputs and outputs")
                .help("rename the parameter or the module that has it"));
        }
    }
    Ok(())
}

/// Stages are cut alike on all meshes: the layout of a value does not change who sends it. E464 otherwise.
fn same_cuts(on_meshes: &[OnMesh]) -> Result<()> {
    let ends = |on: &OnMesh| on.cut.edges.iter().map(|e| (e.from, e.to)).collect::<Vec<_>>();
    if on_meshes.windows(2).all(|pair| ends(&pair[0]) == ends(&pair[1])) {
        return Ok(());
    }
    Err(Diagnostic::new("E464", "the stages exchange different values on different slices")
        .at("pipeline_split")
        .help("this is a bug in partita; please report it"))
}

fn extend_new(notes: &mut Vec<String>, more: &[String]) {
    for note in more {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
}

/// The name of the first fed tensor with a float element type.
fn first_real_input(forward: &Graph) -> Result<&str> {
    let real = |value: &&Value| value.role == Role::Input && value.ty.rank() > 0 && value.ty.dtype.is_float();
    forward.inputs.iter().map(|&v| forward.value(v)).find(real).map(|value| value.name.as_str()).ok_or_else(
        || {
            Diagnostic::new("E013", format!("`{}` has no input with a gradient", forward.name))
                .expected("an input with a float type")
        },
    )
}

/// Inlines every composite that the device has no kernel for, and removes dead nodes: an inlined
/// gradient composite may turn out not to read a weight, which then need not be gathered.
pub fn open_without_kernels(graph: &Graph, runner: &dyn StepRunner) -> Result<Graph> {
    Ok(graph_edit::prune(graph_edit::open_composites(graph, &|c| !runner.target().has_kernel(c))?))
}
