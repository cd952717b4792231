//! A steady step allocates nothing. In its own test binary, because the allocator counts for the whole
//! process.

#[path = "all/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use partita_base::{DType, Result};
use partita_ir::{ClassGraph, CustomOp, Graph, GraphBuilder, Role, TensorType};
use partita_mesh::BoxMove;
use partita_nn::{MlpConfig, ModelConfig, Optimizer, StepOptions, append_update, gradient_graph};
use partita_pipeline::{Order, Sink, Source, StageGraph, cut, mark};
use partita_program::{
    CollectiveKind, Edge, LowerOptions, Offload, ProgramSet, Stage, Stages, lower, lower_stages,
};
use partita_runtime::{Cpu, CpuKernel, Runner, RunnerOptions, TensorView, TensorViewMut};
use partita_spmd::microbatch;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        LIVE_BYTES.fetch_add(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        LIVE_BYTES.fetch_add(bytes.wrapping_sub(layout.size()), Ordering::SeqCst);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An elementwise step that updates state, with an all-reduce, a softmax and sums: every kind of op except
/// matmul.
fn without_products(ranks: usize) -> Vec<Graph> {
    let group: Vec<usize> = (0..ranks).collect();
    let graph = |_| {
        let mut b = GraphBuilder::new("step");
        let x = b.input("x", f32s(&[6, 40]), Role::Input);
        let w = b.input("w", f32s(&[6, 40]), Role::Param);
        let y = b.multiply(x, w).unwrap();
        let y = b.composite(&partita_ir::composites::SOFTMAX, &[], &[y]).unwrap();
        let y = all_reduce(&mut b, y, &group);
        let y = b.scale(y, 0.5).unwrap();
        let turned = b.transpose(y, &[1, 0]).unwrap();
        let sums = b.reduce_sum(turned, &[0]).unwrap();
        // The region that computes it reduces it in both directions.
        let wide = b.broadcast_in_dim(x, &[300, 6, 40], &[1, 2]).unwrap();
        let wide = b.multiply(wide, wide).unwrap();
        let means = b.reduce_sum(wide, &[0]).unwrap();
        let means = b.reduce_sum(means, &[0]).unwrap();
        let rows = b.reduce_sum(wide, &[2]).unwrap();
        let rows = b.reduce_sum(rows, &[0, 1]).unwrap();
        let loss = b.reduce_sum(sums, &[0]).unwrap();
        let loss = b.add(loss, rows).unwrap();
        let means = b.reduce_sum(means, &[0]).unwrap();
        let loss = b.subtract(loss, means).unwrap();
        let updated = b.subtract(w, y).unwrap();
        let mut graph = b.finish_named(vec![("loss".into(), loss), ("w".into(), updated)]);
        graph.aliases = vec![(1, 1)];
        graph
    };
    (0..ranks).map(graph).collect()
}

/// Doubles f32s.
struct Double;

impl CpuKernel for Double {
    fn supports(&self, _: &[TensorType], _: &[TensorType]) -> bool {
        true
    }
    fn run(
        &self,
        operands: &[TensorView<'_>],
        results: &mut [TensorViewMut<'_>],
        _: &mut [u8],
    ) -> Result<()> {
        let x = operands[0].elements::<f32>()?;
        results[0].elements::<f32>()?.iter_mut().zip(x).for_each(|(out, x)| *out = x + x);
        Ok(())
    }
}

/// A step with a custom kernel and a composite that runs as one kernel, and the device.
fn with_composites() -> (Vec<Graph>, Cpu) {
    let double = CustomOp::new("mine.double", &["x"], |b, x| Ok(vec![b.scale(x[0], 2.0)?]));
    let centre = CustomOp::new("mine.shift", &["x", "y"], |b, args| {
        let shape = b.shape(args[0]);
        let y = b.broadcast_trailing(args[1], &shape)?;
        Ok(vec![b.subtract(args[0], y)?])
    });
    let mut b = GraphBuilder::new("step");
    let x = b.input("x", f32s(&[6, 40]), Role::Input);
    let y = double.apply(&mut b, &[x]).unwrap()[0];
    let sums = b.reduce_sum(y, &[0]).unwrap();
    let shifted = centre.apply(&mut b, &[y, sums]).unwrap()[0];
    let loss = b.reduce_sum(shifted, &[0, 1]).unwrap();
    let mut cpu = Cpu::default();
    cpu.kernels.register(&double, Arc::new(Double), &[vec![f32s(&[2, 3])]]).unwrap();
    (vec![b.finish_named(vec![("loss".into(), loss)])], cpu)
}

/// The training step of two linear layers, a pipeline stage each, in four microbatches under 1F1B: its programs, and the
/// graphs of the two ranks.
fn in_two_stages(cpu: &Cpu) -> Result<(ProgramSet, Vec<Graph>)> {
    let mlp = MlpConfig { dims: vec![8, 8, 4], ..MlpConfig::default() };
    let mut forward = ModelConfig::Mlp(mlp).build(8, DType::F32, true)?.forward;
    mark::evenly(&mut forward, 2)?;
    let gradients = microbatch(&gradient_graph(&forward)?, 4)?;
    let step = append_update(&gradients, &StepOptions::new(Optimizer::sgd()))?;
    let cut = cut(&step, 2, &|stage| stage);
    let graphs: Vec<Graph> = cut.stages.iter().map(|stage| stage.graph.clone()).collect();
    let classes: Vec<Vec<ClassGraph>> =
        graphs.iter().map(|graph| ClassGraph::each(vec![graph.clone()])).collect();
    let stage = |(number, of): (usize, &StageGraph)| {
        let received = of.inputs.iter().enumerate().filter_map(|(position, source)| match source {
            Source::Edge(edge) => Some((position, *edge)),
            Source::Step(_) => None,
        });
        let sent = of.outputs.iter().enumerate().filter_map(|(position, sink)| match sink {
            Sink::Edge(edge) => Some((position, *edge)),
            Sink::Step(_) => None,
        });
        let (received, sent) = (received.collect(), sent.collect());
        Stage { classes: &classes[number], ranks: vec![number], received, sent }
    };
    let edge = |edge: &partita_pipeline::Edge| {
        let from = &cut.stages[edge.from.0].graph;
        let extents = from.ty(from.outputs[edge.from.1]).shape.clone();
        let start = vec![0; extents.len()];
        let moved =
            BoxMove { source: 0, target: 1, source_start: start.clone(), target_start: start, extents };
        Edge { name: edge.name.clone(), members: [edge.from.0, edge.to.0].into(), boxes: [moved].into() }
    };
    let timetable = Order::default().timetable(2, 4)?;
    let stages = Stages {
        stages: cut.stages.iter().enumerate().map(stage).collect(),
        edges: cut.edges.iter().map(edge).collect(),
        timetable: Some(&timetable),
        offload: Offload::default(),
    };
    Ok((lower_stages(&stages, &LowerOptions::default(), cpu)?, graphs))
}

/// Feeds and runs a step whose inputs do not change and whose learning rate is zero, so that its numbers stay finite.
fn step(runner: &mut Runner, fed: &[(usize, String, Vec<u8>)]) {
    for (rank, name, bytes) in fed {
        runner.write_input(*rank, name, bytes).unwrap();
    }
    runner.step().unwrap();
    assert!(runner.read_number(0, "loss").unwrap().is_finite());
}

/// The number of allocations and the growth of the heap in 20 steps, without a pipeline.
fn measure(graphs: &[Graph], options: RunnerOptions) -> (usize, usize) {
    let set = lower(&ClassGraph::each(graphs.to_vec()), &LowerOptions::default(), &options.cpu).unwrap();
    measure_set(set, graphs, options)
}

/// The number of allocations and the growth of the heap in 20 steps.
fn measure_set(set: ProgramSet, graphs: &[Graph], options: RunnerOptions) -> (usize, usize) {
    let inputs = inputs(graphs, 3);
    let mut runner = in_process(set, options).unwrap();
    let mut fed: Vec<(usize, String, Vec<u8>)> = Vec::new();
    for (rank, (graph, literals)) in graphs.iter().zip(&inputs).enumerate() {
        for (&input, literal) in graph.inputs.iter().zip(literals) {
            let value = graph.value(input);
            // What another stage sends is not fed.
            if !runner.has_input(rank, &value.name) {
                continue;
            }
            runner.write_input(rank, &value.name, &literal.to_bytes()).unwrap();
            if value.role == Role::Input {
                let is_scalar = value.ty.rank() == 0;
                let bytes = if is_scalar { vec![0; value.ty.bytes()] } else { literal.to_bytes() };
                fed.push((rank, value.name.clone(), bytes));
            }
        }
    }
    // Warm-up: threads and kernels allocate what they keep.
    for _ in 0..3 {
        step(&mut runner, &fed);
    }
    let (allocations, live_bytes) = (ALLOCATIONS.load(Ordering::SeqCst), LIVE_BYTES.load(Ordering::SeqCst));
    for _ in 0..20 {
        step(&mut runner, &fed);
    }
    let growth = LIVE_BYTES.load(Ordering::SeqCst).saturating_sub(live_bytes);
    (ALLOCATIONS.load(Ordering::SeqCst) - allocations, growth)
}

#[test]
fn a_steady_step_allocates_nothing() {
    // Meanwhile the thread that started this test becomes idle; it allocates, too.
    measure(&step_graphs(2), RunnerOptions::default());
    for (ranks, workers) in [(1, 1), (3, 1), (2, 2), (4, 3)] {
        let options = || RunnerOptions { workers: Some(workers), ..RunnerOptions::default() };
        assert_eq!(measure(&without_products(ranks), options()), (0, 0), "{ranks} ranks, {workers} workers");
        assert_eq!(measure(&step_graphs(ranks), options()), (0, 0), "{ranks} ranks, {workers} workers");
    }
    for workers in [1, 2, 3] {
        let options = RunnerOptions { workers: Some(workers), ..RunnerOptions::default() };
        let (set, graphs) = in_two_stages(&options.cpu).unwrap();
        let sends = set.collectives.iter().filter(|c| c.kind == CollectiveKind::Send).count();
        assert!(sends >= 8, "four microbatches cross forward and backward: {sends}");
        assert_eq!(measure_set(set, &graphs, options), (0, 0), "two stages, {workers} workers");
    }
    let (graphs, cpu) = with_composites();
    assert_eq!(measure(&graphs, RunnerOptions { cpu, ..RunnerOptions::default() }), (0, 0));
}
