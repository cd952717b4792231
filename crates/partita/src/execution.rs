//! Built steps on the CPU device: from local graphs to a loop that runs them.

use crate::session::runs_here;
use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::ops::Composite;
use partita_ir::{InputKind, Literal, Target};
use partita_mesh::{BoxMove, Sharding};
use partita_program::{Edge, LowerOptions, Port, Program, ProgramSet, Stage, Stages, lower_stages};
use partita_runtime::checkpoint::TensorData;
use partita_runtime::{
    BatchTensor, Cpu, MemoryLimit, Runner, RunnerOptions, StateLayout, TensorLayout, TrainLoop,
};
use partita_schedule::verify::{Interpreter, StepRunner};
use partita_schedule::{Built, moves};
use partita_spmd::{Partitioned, virtual_ranks};
use std::sync::Arc;

/// A built step, lowered and ready to run. Parameters and state are zeros until set.
pub fn train_loop(built: &Built, seed: u64, options: RunnerOptions) -> Result<TrainLoop> {
    runs_here(&built.mesh)?;
    let options = options.sharing(built.mesh.rank_count());
    let memory = options.memory;
    let set = programs(built, &options)?;
    memory.check("lowering the step")?;
    let world = options.world(&set)?;
    let runner = Runner::new(set, world, options)?;
    let Layouts { inputs, outputs, .. } = layouts(built);
    TrainLoop::new(runner, inputs, outputs, built.pieces.clone(), seed)
}

/// The layouts of what a built step is fed and keeps, and of what it returns.
struct Layouts {
    inputs: Vec<TensorLayout>,
    /// The kind of each input.
    kinds: Vec<InputKind>,
    outputs: Vec<TensorLayout>,
}

fn layouts(built: &Built) -> Layouts {
    let (mut inputs, mut kinds, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for stage in &built.stages {
        let Partitioned { graph, mesh, .. } = &stage.partitioned;
        let mesh = Arc::new(mesh.clone());
        let layout = |name: &str, value, sharding: &Sharding| TensorLayout {
            name: name.to_string(),
            dtype: graph.ty(value).dtype,
            shape: graph.ty(value).shape.clone(),
            sharding: sharding.clone(),
            mesh: mesh.clone(),
            ranks: stage.ranks.clone(),
        };
        for (position, _) in stage.fed() {
            let input = graph.inputs[position];
            let value = graph.value(input);
            let is_replaced = graph.aliases.iter().any(|&(old, _)| old == position);
            kinds.push(InputKind::of(&value.name, &value.role, is_replaced));
            inputs.push(layout(&value.name, input, &stage.partitioned.inputs[position]));
        }
        outputs.extend(stage.returned().map(|(position, _)| {
            let (value, name) = (graph.outputs[position], &graph.output_names[position]);
            layout(name, value, &stage.partitioned.outputs[position])
        }));
    }
    Layouts { inputs, kinds, outputs }
}

/// Where the state of a built step is, whatever runs it.
///
/// # Errors
/// Those of [`StateLayout::new`].
pub fn state_layout(built: &Built) -> Result<StateLayout> {
    let Layouts { inputs, kinds, .. } = layouts(built);
    StateLayout::new(&inputs, &kinds, &built.pieces)
}

/// The stages and edges of a built step, in the form that lowering takes.
pub fn stages(built: &Built) -> Stages<'_> {
    // Microbatches send alike.
    let mut known: IndexMap<_, (Arc<[usize]>, Arc<[BoxMove]>)> = IndexMap::new();
    let mut edge = |edge: &partita_pipeline::Edge| {
        let ((from, output), (to, input)) = (edge.from, edge.to);
        let (sent, received) = (&built.stages[from].partitioned, &built.stages[to].partitioned);
        let shape = sent.graph.ty(sent.graph.outputs[output]).shape.clone();
        let key = (from, to, shape, sent.outputs[output].clone(), received.inputs[input].clone());
        let (members, boxes) = known.entry(key).or_insert_with(|| {
            let (members, boxes) = moves(&built.stages, edge);
            (members.into(), boxes.into())
        });
        Edge { name: edge.name.clone(), members: members.clone(), boxes: boxes.clone() }
    };
    Stages {
        stages: built.stages.iter().map(stage).collect(),
        edges: built.edges.iter().map(&mut edge).collect(),
        timetable: built.timetable.as_ref(),
        offload: built.offload.clone(),
    }
}

fn stage(stage: &partita_schedule::Stage) -> Stage<'_> {
    Stage {
        classes: &stage.classes,
        ranks: stage.ranks.clone(),
        received: stage.received(),
        sent: stage.sent(),
    }
}

/// The programs that a runner with these options runs: what a run allocates, and what is predicted of it.
///
/// # Errors
/// E4xx of the static checks.
pub fn programs(built: &Built, options: &RunnerOptions) -> Result<ProgramSet> {
    lower_stages(&stages(built), &lower_options(options), &options.cpu)
}

/// How programs are lowered that run with these options.
pub(crate) fn lower_options(options: &RunnerOptions) -> LowerOptions {
    LowerOptions {
        guard: options.nan_guard,
        kept_bytes: options.kept_bytes,
        collective_matmul: options.collective_matmul.clone(),
        ..LowerOptions::default()
    }
}

/// A tensor as the runtime stores it.
pub fn tensor_data(literal: &Literal) -> TensorData {
    TensorData::new(literal.ty.dtype, literal.ty.shape.clone(), literal.to_bytes())
}

/// A tensor as the compiler sees it.
pub fn literal(data: &TensorData) -> Literal {
    let ty = partita_ir::TensorType::new(data.dtype, data.shape.clone());
    Literal::from_bytes(&ty, &data.bytes).expect("the bytes fill the shape")
}

/// Calls `with` with a batch as the training loop takes it.
pub fn with_batch<T>(batch: &IndexMap<String, Literal>, with: impl FnOnce(&[BatchTensor<'_>]) -> T) -> T {
    let bytes: Vec<Vec<u8>> = batch.values().map(Literal::to_bytes).collect();
    let tensors: Vec<BatchTensor<'_>> = batch
        .iter()
        .zip(&bytes)
        .map(|((name, value), bytes)| BatchTensor {
            name,
            dtype: value.ty.dtype,
            shape: &value.ty.shape,
            bytes,
        })
        .collect();
    with(&tensors)
}

/// The CPU device as verification sees it: the very programs that training runs.
#[derive(Clone, Debug, Default)]
pub struct CpuStep {
    /// How the programs are run.
    pub options: RunnerOptions,
}

/// What the CPU device would run, on the reference interpreter.
#[derive(Clone, Debug, Default)]
pub struct InterpretedCpuStep {
    /// The device.
    pub cpu: Cpu,
    /// How much memory a build may take.
    pub memory: MemoryLimit,
}

impl Target for InterpretedCpuStep {
    fn has_kernel(&self, composite: &Composite) -> bool {
        self.cpu.has_kernel(composite)
    }
}

impl StepRunner for InterpretedCpuStep {
    fn name(&self) -> &str {
        "interpreter"
    }

    fn target(&self) -> &dyn Target {
        self
    }

    fn run(&self, built: &Built, inputs: &[Literal]) -> Result<Vec<Literal>> {
        Interpreter.run(built, inputs)
    }

    fn run_watched(&self, built: &Built, inputs: &[Literal], watch: &dyn Fn(f64)) -> Result<Vec<Literal>> {
        Interpreter.run_watched(built, inputs, watch)
    }

    fn interprets(&self) -> bool {
        true
    }

    fn at_stage(&self, stage: &str) -> Result<()> {
        self.memory.check(stage)
    }

    fn request(&self, bytes: u64, what: &str) -> Result<()> {
        self.memory.request(bytes, what)
    }
}

impl StepRunner for CpuStep {
    fn name(&self) -> &str {
        "cpu"
    }

    fn target(&self) -> &dyn Target {
        &self.options.cpu
    }

    fn at_stage(&self, stage: &str) -> Result<()> {
        self.options.memory.check(stage)
    }

    fn request(&self, bytes: u64, what: &str) -> Result<()> {
        self.options.memory.request(bytes, what)
    }

    fn run(&self, built: &Built, inputs: &[Literal]) -> Result<Vec<Literal>> {
        runs_here(&built.mesh)?;
        let options = self.options.clone().sharing(built.mesh.rank_count());
        let set = programs(built, &options)?;
        // Every process verifies for itself.
        let options = RunnerOptions { nan_guard: false, processes: None, ..options };
        let world = options.world(&set)?;
        let mut pieces =
            Pieces { built, runner: Runner::new(set, world, options)?, outputs: IndexMap::new() };
        if pieces.runner.has_pause() {
            // A step that read a stale cotangent would read one of these ones.
            pieces.step(inputs, Some(1.0))?;
        }
        pieces.step(inputs, None)?;
        let mut outputs = pieces.outputs;
        let count = built.step.outputs.len();
        Ok((0..count).map(|output| outputs.swap_remove(&output).expect("a stage returns it")).collect())
    }
}

/// A built step that runs piece by piece, as its caller runs it: each input is written, and each output read, at the moment
/// that the programs name ([`Port::at`](partita_program::Port::at)).
struct Pieces<'a> {
    built: &'a Built,
    runner: Runner,
    /// By position in the step.
    outputs: IndexMap<usize, Literal>,
}

impl Pieces<'_> {
    /// A step from beginning to end. `late` is the value of all inputs that are written at a pause, if not their own.
    fn step(&mut self, inputs: &[Literal], late: Option<f64>) -> Result<()> {
        self.outputs.clear();
        self.write(0, inputs, None)?;
        let mut moment = 1;
        if self.runner.has_pause() {
            self.runner.forward()?;
            self.read(moment)?;
            self.write(moment, inputs, late)?;
            moment += 1;
        }
        self.runner.step()?;
        self.read(moment)
    }

    /// The moment of a port, which is the same on all ranks of a stage.
    fn moment(&self, rank: usize, port: impl Fn(&Program) -> Option<&Port>) -> usize {
        let programs = &self.runner.program_set().programs;
        let own = programs.iter().find(|program| program.ranks.contains(&rank));
        own.and_then(port).map_or(0, |port| port.at)
    }

    /// Writes the inputs that are due, or this value to all elements of them.
    fn write(&mut self, moment: usize, inputs: &[Literal], splat: Option<f64>) -> Result<()> {
        for stage in &self.built.stages {
            let Partitioned { graph, mesh, inputs: layouts, .. } = &stage.partitioned;
            for (position, of_step) in stage.fed() {
                let name = &graph.value(graph.inputs[position]).name;
                if self.moment(stage.ranks[0], |program| program.inputs.get(position)) != moment {
                    continue;
                }
                let given = splat.map(|value| Literal::splat(&inputs[of_step].ty, value));
                let value = given.as_ref().unwrap_or(&inputs[of_step]);
                for (local, &rank) in stage.ranks.iter().enumerate() {
                    let shard = virtual_ranks::distribute(value, &layouts[position], mesh, local);
                    self.runner.write_input(rank, name, &shard.to_bytes())?;
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, moment: usize) -> Result<()> {
        for stage in &self.built.stages {
            let Partitioned { graph, mesh, outputs: layouts, .. } = &stage.partitioned;
            for (position, of_step) in stage.returned() {
                if self.moment(stage.ranks[0], |program| program.outputs.get(position)) != moment {
                    continue;
                }
                let ty = graph.ty(graph.outputs[position]);
                let shard = |(local, &rank): (usize, &usize)| {
                    let shape = layouts[position].local_shape(mesh, &ty.shape, local);
                    let bytes = self.runner.read_output(rank, &graph.output_names[position])?;
                    Ok(Literal::from_bytes(&ty.with_shape(shape), &bytes).expect("an output fills its type"))
                };
                let locals = stage.ranks.iter().enumerate().map(shard).collect::<Result<Vec<Literal>>>()?;
                let locals: Vec<&Literal> = locals.iter().collect();
                let whole = virtual_ranks::collect(ty, &layouts[position], mesh, &locals)?;
                self.outputs.insert(of_step, whole);
            }
        }
        Ok(())
    }
}
