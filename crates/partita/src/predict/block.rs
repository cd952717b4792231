//! A repeated layer, from the programs that would run: the step of the same model with one and with two layers is
//! lowered for the mesh axis within a layer (`tp`), and every layer beyond adds the difference of the two.
//!
//! A [`Block`] holds work and bytes, no seconds, so one block serves every cluster and every number of layers, stages,
//! microbatches and data parallel ranks.

use super::small::not_folded;
use crate::execution;
use crate::figures::forward_flops;
use crate::models::ModelSource;
use crate::target::{Gpu, NotRun};
use partita_base::{DType, Diagnostic, Result};
use partita_ir::composites::{ATTENTION, EMBEDDING};
use partita_ir::ops::Composite;
use partita_ir::{Graph, Op, Operation, Phase, Registry, Role};
use partita_mesh::Mesh;
use partita_nn::StepOptions;
use partita_program::{
    Action, BufferKind, Collective, CollectiveKind, Compute, LowerOptions, Program, ProgramSet, lower_stages,
};
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Plan, ReadyOptions};
use std::sync::Arc;

/// What the backward pass computes again instead of keeping it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Recompute {
    /// Nothing.
    #[default]
    Nothing,
    /// The softmax of the attention and what surrounds it, as fused attention does by itself.
    Attention,
    /// The feed-forward blocks, from their inputs.
    FeedForward,
    /// Whole layers, from their inputs.
    Layers,
}

/// What one layer depends on.
#[derive(Clone, Debug)]
pub struct BlockSpec {
    /// The model; its number of layers does not matter.
    pub model: Arc<dyn ModelSource>,
    /// Ranks over which a layer is tensor parallel.
    pub tp: usize,
    /// Ranks over which the experts of a layer are sharded by number; they shard rows too.
    pub ep: usize,
    /// Rows of a microbatch on a rank.
    pub rows: usize,
    /// The type of parameters and activations.
    pub dtype: DType,
    /// The residual stream is sharded over `tp` along the sequence.
    pub sequence_parallel: bool,
    /// Embedding and head are sharded over `tp` along the vocabulary.
    pub vocab_parallel: bool,
    /// What is recomputed.
    pub recompute: Recompute,
    /// Attention runs as one kernel, without its scores in memory.
    pub fused_attention: bool,
    /// Optimizer, clipping.
    pub step: StepOptions,
    /// Lines of a plan in place of the ready one.
    pub plan: Option<Plan>,
}

impl BlockSpec {
    /// What distinguishes blocks.
    pub fn key(&self) -> String {
        let model = self.model.with_layers(1);
        format!(
            "{model:?} {} {} {} {:?} {} {} {:?} {} {:?} {:?}",
            self.tp,
            self.ep,
            self.rows,
            self.dtype,
            self.sequence_parallel,
            self.vocab_parallel,
            self.recompute,
            self.fused_attention,
            self.step,
            self.plan
        )
    }
}

/// The part of the model that work or memory belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// The embeddings, on the first stage.
    First,
    /// The repeated layers.
    Layers,
    /// The last norm, the head and the loss, on the last stage.
    Last,
}

impl Place {
    fn of(path: &str) -> Place {
        match path {
            path if path.starts_with("layers.") => Place::Layers,
            path if path.starts_with("embed") => Place::First,
            _ => Place::Last,
        }
    }
}

/// What an instruction does.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// A matmul.
    Matmul,
    /// Attention.
    Attention {
        /// Whether later tokens are masked.
        causal: bool,
        /// Whether it is the gradient.
        backward: bool,
        /// Elements of the scores: rows x heads x queries x keys.
        scores: f64,
    },
    /// Everything else, which moves memory.
    Elementwise,
    /// A collective among these ranks of the block's mesh.
    Collective(CollectiveKind, Arc<[usize]>),
}

/// An instruction of a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Item {
    /// The part of the model.
    pub place: Place,
    /// The part of the step.
    pub phase: Phase,
    /// What it does.
    pub work: Work,
    /// Its arithmetic.
    pub flops: f64,
    /// Bytes of memory that it moves; of a collective, as [`partita_cost::Collective::seconds`] takes them.
    pub bytes: f64,
    /// The element type of its arithmetic.
    pub dtype: DType,
}

/// The step of a model of few layers on one rank.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Traced {
    /// Its instructions.
    pub items: Vec<Item>,
    /// Elements of parameters of the whole model; tied ones count once.
    pub whole_parameters: f64,
    /// Arithmetic of the forward pass on one device that computes all of it: its matmuls and convolutions.
    pub whole_flops: f64,
    /// Elements of parameters on the rank, by [`Place`].
    pub parameters: [f64; 3],
    /// Bytes that the forward pass keeps for the backward pass, by place.
    pub saved: [f64; 3],
    /// The most bytes beside parameters, gradients and what is kept, by the place of the instruction.
    pub transient: [f64; 3],
    /// Bytes of optimizer state.
    pub state_bytes: f64,
}

/// A model folded to its repeated layer and its ends.
#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    /// With one layer.
    pub one: Traced,
    /// With two layers.
    pub two: Traced,
    /// Bytes of the residual stream of a microbatch on one rank, which stages send each other.
    pub stream_bytes: f64,
}

impl Block {
    /// Compiles a block.
    ///
    /// # Errors
    /// E511 for a model without repeated layers; what building and lowering refuse.
    pub fn compile(spec: &BlockSpec) -> Result<Block> {
        let layers = |count| {
            let refused = || not_folded().found(format!("`{}`", spec.model.name()));
            spec.model.with_layers(count).ok_or_else(refused)
        };
        let one = trace(layers(1)?.as_ref(), spec)?;
        let two = trace(layers(2)?.as_ref(), spec)?;
        let [_, tokens, dim] = spec.model.stream().unwrap_or([1, 1, 1]);
        let split = if spec.sequence_parallel { spec.tp } else { 1 };
        let stream_bytes = (spec.rows * tokens * dim * spec.dtype.size_bytes()) as f64 / split as f64;
        Ok(Block { one, two, stream_bytes })
    }

    /// The block of `rows` rows, from those of two other numbers of rows: work, traffic and memory grow evenly with them.
    /// Nothing where the programs of the two differ in more than sizes.
    pub fn at_rows(few: (&Block, usize), more: (&Block, usize), rows: usize) -> Option<Block> {
        let along = (rows as f64 - few.1 as f64) / (more.1 as f64 - few.1 as f64);
        Some(Block {
            one: Traced::between(&few.0.one, &more.0.one, along)?,
            two: Traced::between(&few.0.two, &more.0.two, along)?,
            stream_bytes: line(few.0.stream_bytes, more.0.stream_bytes, along),
        })
    }

    /// A figure of one layer: that of two layers less that of one.
    pub fn layer(&self, figure: impl Fn(&Traced) -> f64) -> f64 {
        (figure(&self.two) - figure(&self.one)).max(0.0)
    }
}

/// The figure `along` of the way from one figure to another.
fn line(from: f64, to: f64, along: f64) -> f64 {
    (from + (to - from) * along).max(0.0)
}

fn trace(model: &dyn ModelSource, spec: &BlockSpec) -> Result<Traced> {
    let target = Gpu::default();
    let built_model = model.build(spec.rows * spec.ep, spec.dtype, true)?;
    let axes = [("ep", spec.ep), ("tp", spec.tp)];
    let mesh = Mesh::new("mesh", &axes[usize::from(spec.ep == 1)..]);
    let ready = ReadyOptions {
        sequence_parallel: spec.sequence_parallel,
        vocab_parallel: spec.vocab_parallel,
        ..ReadyOptions::default()
    };
    let mut plan = match &spec.plan {
        Some(plan) => plan.clone(),
        None => model.plan(&built_model.forward, &mesh, &ready)?,
    };
    let recomputed = match spec.recompute {
        Recompute::Nothing | Recompute::Attention => None,
        Recompute::FeedForward => Some("layers.*.mlp"),
        Recompute::Layers => Some("layers.*"),
    };
    if let Some(modules) = recomputed {
        plan.add(modules, "checkpoint", "recomputation")?;
    }
    let step = StepOptions { abridged: true, ..spec.step.clone() };
    let options = BuildOptions { sequence_parallel: spec.sequence_parallel, ..BuildOptions::new(step) };
    let context = BuildContext { registry: &Registry::default(), runner: &NotRun(&target) };
    let built = BuildRequest::new(&built_model, &plan, &mesh, &options, context).build()?;
    let lowering = LowerOptions { guard: false, logits_bytes: usize::MAX, ..LowerOptions::default() };
    let set = lower_stages(&execution::stages(&built), &lowering, &target)?;
    let program = set.programs.first().ok_or_else(|| Diagnostic::new("E511", "the step has no program"))?;
    let whole_parameters = built_model.parameter_count() as f64;
    let whole_flops = forward_flops(&built_model.forward) / spec.ep as f64;
    let mut traced = Traced { whole_parameters, whole_flops, ..Traced::of(program, &set) };
    if !spec.fused_attention {
        traced.keep_scores(spec.recompute);
    }
    Ok(traced)
}

/// Bytes of a score that attention without a kernel of its own keeps for the backward pass: the softmax and its dropout in
/// half precision, and the mask of dropout (V. Korthikanti et al., "Reducing Activation Recomputation", 2022, section 4.1).
const KEPT_BYTES: f64 = 5.0;
/// Bytes of a score that it needs at a time.
const SCORE_BYTES: f64 = 9.0;

impl Traced {
    /// The step `along` of the way from one step to another; nothing if they differ in more than sizes.
    fn between(few: &Traced, more: &Traced, along: f64) -> Option<Traced> {
        let of_all = |few: &[f64; 3], more: &[f64; 3]| [0, 1, 2].map(|at| line(few[at], more[at], along));
        let item = |(few, more): (&Item, &Item)| {
            let work = match (&few.work, &more.work) {
                (
                    Work::Attention { causal, backward, scores },
                    Work::Attention { causal: other, backward: also, scores: most },
                ) if causal == other && backward == also => Work::Attention {
                    causal: *causal,
                    backward: *backward,
                    scores: line(*scores, *most, along),
                },
                (one, other) if one == other => one.clone(),
                _ => return None,
            };
            let is_alike = few.place == more.place && few.phase == more.phase && few.dtype == more.dtype;
            is_alike.then(|| Item {
                work,
                flops: line(few.flops, more.flops, along),
                bytes: line(few.bytes, more.bytes, along),
                ..*few
            })
        };
        if few.items.len() != more.items.len() {
            return None;
        }
        Some(Traced {
            items: few.items.iter().zip(&more.items).map(item).collect::<Option<Vec<Item>>>()?,
            whole_parameters: few.whole_parameters,
            whole_flops: line(few.whole_flops, more.whole_flops, along),
            parameters: few.parameters,
            saved: of_all(&few.saved, &more.saved),
            transient: of_all(&few.transient, &more.transient),
            state_bytes: few.state_bytes,
        })
    }

    /// Adds the scores of attention to what is kept, or to what is needed at a time.
    fn keep_scores(&mut self, recompute: Recompute) {
        let scores = self.items.iter().filter_map(|item| match item.work {
            Work::Attention { scores, .. } if item.phase == Phase::Forward => Some(scores),
            _ => None,
        });
        let (sum, most) = scores.fold((0.0, 0.0f64), |(sum, most), scores| (sum + scores, most.max(scores)));
        let layers = Place::Layers as usize;
        if matches!(recompute, Recompute::Nothing | Recompute::FeedForward) {
            self.saved[layers] += KEPT_BYTES * sum;
        }
        self.transient[layers] += SCORE_BYTES * most;
    }

    fn of(program: &Program, set: &ProgramSet) -> Traced {
        let mut traced = Traced { items: items(program, set), ..Traced::default() };
        let mut is_persistent = vec![false; program.buffers.len()];
        for port in &program.inputs {
            let buffer = program.buffer(port.buffer);
            is_persistent[port.buffer.index()] = true;
            match port.role {
                Role::Param => {
                    traced.parameters[Place::of(&port.name) as usize] += buffer.ty.element_count() as f64;
                }
                Role::StateOf(_) => traced.state_bytes += buffer.bytes as f64,
                _ => {}
            }
        }
        // The buffers that a step allocates. What is written before the forward pass ends, and read last in the backward
        // pass, is kept: also what the backward pass recomputes if that begins early, such as a gather that other work
        // hides. What lives from the backward pass into the update is a gradient.
        let first = |wanted: &dyn Fn(Phase) -> bool| {
            let found = program.instructions.iter().position(|instruction| wanted(instruction.origin.phase));
            found.unwrap_or(program.instructions.len())
        };
        let update = first(&|phase| phase == Phase::Update);
        let turn =
            program.instructions.iter().rposition(|one| one.origin.phase == Phase::Forward).unwrap_or(0);
        let writer = writers(program);
        let count = program.instructions.len();
        let mut changes = vec![0.0; count + 1];
        for (index, buffer) in program.buffers.iter().enumerate() {
            if is_persistent[index] || matches!(buffer.kind, BufferKind::Persistent | BufferKind::Input) {
                continue;
            }
            let phase = |at: usize| program.instructions.get(at).map(|instruction| instruction.origin.phase);
            let is_within = |at: usize| phase(at).is_some_and(Phase::is_backward);
            let is_gradient = buffer.last >= update && is_within(buffer.first);
            let is_before = phase(buffer.first) == Some(Phase::Forward)
                || is_within(buffer.first) && buffer.first < turn && buffer.last > turn;
            let is_saved = is_before && is_within(buffer.last);
            if is_saved {
                let place =
                    writer[index].map_or(Place::Last, |at| Place::of(&program.instructions[at].origin.path));
                traced.saved[place as usize] += buffer.bytes as f64;
            } else if !is_gradient {
                changes[buffer.first] += buffer.bytes as f64;
                changes[(buffer.last + 1).min(count)] -= buffer.bytes as f64;
            }
        }
        let mut live = 0.0f64;
        for (instruction, change) in program.instructions.iter().zip(&changes) {
            live += change;
            let place = Place::of(&instruction.origin.path) as usize;
            if instruction.origin.phase != Phase::Update {
                traced.transient[place] = traced.transient[place].max(live);
            }
        }
        traced
    }
}

/// The instruction that writes each buffer.
fn writers(program: &Program) -> Vec<Option<usize>> {
    let mut writer = vec![None; program.buffers.len()];
    for (at, instruction) in program.instructions.iter().enumerate() {
        let outputs = match &instruction.action {
            Action::Compute(compute) => &compute.outputs,
            Action::Start(start) => &start.outputs,
            Action::Wait(_) | Action::Move(_) | Action::Moved(_) => continue,
        };
        for output in outputs {
            writer[output.index()].get_or_insert(at);
        }
    }
    writer
}

fn items(program: &Program, set: &ProgramSet) -> Vec<Item> {
    let item = |instruction: &partita_program::Instruction| {
        let (place, phase) = (Place::of(&instruction.origin.path), instruction.origin.phase);
        match &instruction.action {
            Action::Compute(compute) => Some(of_region(program, compute, place, phase)),
            Action::Start(start) => of_collective(&set.collectives[start.collective.index()], place, phase),
            // What is offloaded is priced beside the closed form.
            Action::Wait(_) | Action::Move(_) | Action::Moved(_) => None,
        }
    };
    program.instructions.iter().filter_map(item).collect()
}

fn of_collective(collective: &Collective, place: Place, phase: Phase) -> Option<Item> {
    if collective.members.len() < 2 {
        return None;
    }
    let bytes = |member: usize| -> usize { collective.transfers.iter().map(|t| t.full_bytes(member)).sum() };
    let bytes = (0..collective.members.len()).map(bytes).max().unwrap_or(0) as f64;
    let work = Work::Collective(collective.kind, collective.members.iter().copied().collect());
    Some(Item { place, phase, work, flops: 0.0, bytes, dtype: DType::F32 })
}

fn of_region(program: &Program, compute: &Compute, place: Place, phase: Phase) -> Item {
    let region = program.region(compute.region);
    let graph = &region.graph;
    let written: usize = graph.outputs.iter().map(|&value| graph.ty(value).bytes()).sum();
    let mut bytes = program.cost(compute).bytes;
    let flops_of =
        |node: &partita_ir::Node| node.op.cost(&graph.operand_types(node), &graph.result_types(node)).flops;
    let mut flops: f64 = graph.nodes.iter().map(|node| flops_of(node) * padding(graph, node)).sum();
    let main = graph.nodes.iter().max_by(|a, b| flops_of(a).total_cmp(&flops_of(b)));
    let operand = main.and_then(|node| node.operands.first().or(node.results.first()));
    let dtype = operand.map_or(DType::F32, |&value| graph.ty(value).dtype);
    let mut work = Work::Elementwise;
    for node in &graph.nodes {
        if matches!(node.op, Op::DotGeneral(_)) {
            work = Work::Matmul;
        } else if is_lookup(node) {
            // Only the rows that are looked up are read.
            bytes = 2.0 * written as f64;
        } else if let Some(composite) = node.op.composite() {
            let name = &*composite.definition.name;
            if name.starts_with(ATTENTION.name) {
                work = attention(graph, node, composite);
                flops *= alignment(graph, node);
            } else if has_matmul(&composite.definition.decomposition) {
                work = Work::Matmul;
            }
        }
    }
    Item { place, phase, work, flops, bytes, dtype }
}

/// Whether a node looks up rows of a table, as an op or as a composite.
fn is_lookup(node: &partita_ir::Node) -> bool {
    let is_embedding = |composite: &Composite| *composite.definition.name == *EMBEDDING.name;
    matches!(node.op, Op::Gather(_)) || node.op.composite().is_some_and(is_embedding)
}

/// What a size costs that does not suit the units of matmuls, which load 128 bytes at a time: a multiple of 8 elements
/// in half precision is loaded in parts, another size element by element (NVIDIA, "Matrix Multiplication Background",
/// on alignment).
fn misfit(size: usize) -> f64 {
    match size {
        size if size.is_multiple_of(64) => 1.0,
        size if size.is_multiple_of(8) => 1.2,
        _ => 2.0,
    }
}

/// The misfit of a matmul in half precision: that of its worst dimension.
fn padding(graph: &Graph, node: &partita_ir::Node) -> f64 {
    let Op::DotGeneral(dims) = &node.op else { return 1.0 };
    let [lhs, rhs] = [0, 1].map(|at| graph.ty(node.operands[at]));
    if lhs.dtype.size_bytes() > 2 {
        return 1.0;
    }
    let free = |shape: &[usize], batch: &[usize], contracting: &[usize]| -> usize {
        let others = (0..shape.len()).filter(|dim| !batch.contains(dim) && !contracting.contains(dim));
        others.map(|dim| shape[dim]).product()
    };
    let contracted: usize = dims.lhs_contracting.iter().map(|&dim| lhs.shape[dim]).product();
    let sizes = [
        free(&lhs.shape, &dims.lhs_batch, &dims.lhs_contracting),
        free(&rhs.shape, &dims.rhs_batch, &dims.rhs_contracting),
        contracted,
    ];
    sizes.into_iter().map(misfit).fold(1.0, f64::max)
}

/// The misfit of the features of a head.
fn alignment(graph: &Graph, node: &partita_ir::Node) -> f64 {
    graph.ty(node.operands[0]).shape.last().map_or(1.0, |&features| misfit(features))
}

fn attention(graph: &Graph, node: &partita_ir::Node, composite: &Composite) -> Work {
    let causal = matches!(composite.attributes.get("causal"), Some(partita_ir::Attribute::Bool(true)));
    // Queries [rows, heads, tokens, features], keys [rows, groups, tokens, features].
    let [queries, keys] = [0, 1].map(|at| &graph.ty(node.operands[at]).shape);
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let scores = count(&queries[..queries.len().min(3)]) * keys.get(2).copied().unwrap_or(1);
    Work::Attention { causal, backward: &*composite.definition.name != ATTENTION.name, scores: scores as f64 }
}

fn has_matmul(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.op, Op::DotGeneral(_)))
}
