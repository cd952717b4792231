//! Playing graphs on the CPU device: from a placed graph to a loop that runs it.

use crate::compile::runs_here;
use crate::config::Config;
use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::ops::Composite;
use partita_ir::{ClassGraph, Graph, Literal, Pieces};
use partita_mesh::{Mesh, Sharding};
use partita_program::LowerOptions;
use partita_runtime::checkpoint::TensorData;
use partita_runtime::{BatchTensor, Cpu, MemoryLimit, Runner, RunnerOptions, TensorLayout, TrainLoop};
use partita_schedule::open_without_kernels;
use partita_schedule::verify::{Interpreter, StepRunner};
use partita_spmd::{Options, Partitioned, partition, virtual_ranks};
use std::sync::Arc;

/// A partitioned graph, lowered from the local graphs of its classes and ready to step. Parameters and state are zeros until set.
pub fn player(
    partitioned: &Partitioned,
    classes: &[ClassGraph],
    pieces: &[Pieces],
    seed: u64,
    options: RunnerOptions,
) -> Result<TrainLoop> {
    runs_here(&partitioned.mesh)?;
    let options = options.sharing(partitioned.mesh.rank_count());
    let memory = options.memory;
    let set = partita_program::lower(classes, &lower_options(&options), &options.cpu)?;
    memory.check("lowering the step")?;
    let runner = Runner::new(set, options)?;
    let graph = &partitioned.graph;
    let mesh = Arc::new(partitioned.mesh.clone());
    let layout = |name: &str, value, sharding: &Sharding| TensorLayout {
        name: name.to_string(),
        dtype: graph.ty(value).dtype,
        shape: graph.ty(value).shape.clone(),
        sharding: sharding.clone(),
        mesh: mesh.clone(),
        ranks: (0..mesh.rank_count()).collect(),
    };
    let inputs = graph
        .inputs
        .iter()
        .zip(&partitioned.inputs)
        .map(|(&value, sharding)| layout(&graph.value(value).name, value, sharding))
        .collect();
    let outputs = graph
        .outputs
        .iter()
        .zip(&graph.output_names)
        .zip(&partitioned.outputs)
        .map(|((&value, name), sharding)| layout(name, value, sharding))
        .collect();
    TrainLoop::new(runner, inputs, outputs, pieces.to_vec(), seed)
}

/// How programs are lowered that will run with these options.
fn lower_options(options: &RunnerOptions) -> LowerOptions {
    LowerOptions { guard: options.nan_guard, ..LowerOptions::default() }
}

/// A graph on one rank, without a plan.
pub fn solo(graph: &Graph, seed: u64, options: RunnerOptions) -> Result<TrainLoop> {
    let mesh = Mesh::new("one", &[("dp", 1)]);
    let graph = open_without_kernels(graph, &CpuStep { options: options.clone() })?;
    let partitioned = partition(&graph, &mesh, &Options::default())?;
    player(&partitioned, &virtual_ranks::class_graphs(&partitioned)?, &[], seed, options)
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

impl CpuStep {
    /// As a config says.
    pub fn of(config: &Config) -> CpuStep {
        CpuStep { options: RunnerOptions { memory: config.train.memory_limit, ..RunnerOptions::default() } }
    }
}

/// What the CPU device would run, on the reference interpreter.
#[derive(Clone, Debug, Default)]
pub struct InterpretedCpuStep {
    /// The device.
    pub cpu: Cpu,
    /// How much memory a build may take.
    pub memory: MemoryLimit,
}

impl StepRunner for InterpretedCpuStep {
    fn name(&self) -> &str {
        "interpreter"
    }

    fn has_kernel(&self, composite: &Composite) -> bool {
        self.cpu.has_kernel(composite)
    }

    fn run(&self, partitioned: &Partitioned, inputs: &[Literal]) -> Result<Vec<Literal>> {
        Interpreter.run(partitioned, inputs)
    }

    fn run_watched(
        &self,
        partitioned: &Partitioned,
        inputs: &[Literal],
        watch: &dyn Fn(f64),
    ) -> Result<Vec<Literal>> {
        Interpreter.run_watched(partitioned, inputs, watch)
    }

    fn interprets(&self) -> bool {
        true
    }

    fn at_stage(&self, stage: &str) -> Result<()> {
        self.memory.check(stage)
    }
}

impl StepRunner for CpuStep {
    fn name(&self) -> &str {
        "cpu"
    }

    fn has_kernel(&self, composite: &Composite) -> bool {
        self.options.cpu.has_kernel(composite)
    }

    fn fusible(&self, composite: &Composite) -> std::result::Result<(), String> {
        partita_runtime::fusible(composite)
    }

    fn at_stage(&self, stage: &str) -> Result<()> {
        self.options.memory.check(stage)
    }

    fn run(&self, partitioned: &Partitioned, inputs: &[Literal]) -> Result<Vec<Literal>> {
        let graph = &partitioned.graph;
        runs_here(&partitioned.mesh)?;
        let classes = virtual_ranks::class_graphs(partitioned)?;
        let ranks = partitioned.mesh.rank_count();
        let options = RunnerOptions { nan_guard: false, ..self.options.clone() }.sharing(ranks);
        let set = partita_program::lower(&classes, &lower_options(&self.options), &options.cpu)?;
        let mut runner = Runner::new(set, options)?;
        let mesh = &partitioned.mesh;
        for ((&value, sharding), literal) in graph.inputs.iter().zip(&partitioned.inputs).zip(inputs) {
            let name = &graph.value(value).name;
            for rank in 0..mesh.rank_count() {
                let local = virtual_ranks::distribute(literal, sharding, mesh, rank);
                runner.write_input(rank, name, &local.to_bytes())?;
            }
        }
        runner.step()?;
        graph
            .outputs
            .iter()
            .zip(&graph.output_names)
            .zip(&partitioned.outputs)
            .map(|((&value, name), sharding)| {
                let ty = graph.ty(value);
                let locals = (0..mesh.rank_count())
                    .map(|rank| {
                        let shape = sharding.local_shape(mesh, &ty.shape, rank);
                        let bytes = runner.read_output(rank, name)?;
                        Ok(Literal::from_bytes(&ty.with_shape(shape), &bytes)
                            .expect("an output fills its type"))
                    })
                    .collect::<Result<Vec<Literal>>>()?;
                virtual_ranks::collect(ty, sharding, mesh, &locals.iter().collect::<Vec<_>>())
            })
            .collect()
    }
}
