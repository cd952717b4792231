//! A steady step allocates nothing. In its own test binary, because the allocator counts for the whole
//! process.

#[path = "all/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use partita_base::Result;
use partita_ir::{ClassGraph, CustomOp, Graph, GraphBuilder, Role, TensorType};
use partita_program::{LowerOptions, lower};
use partita_runtime::{Cpu, CpuKernel, Runner, RunnerOptions, TensorView, TensorViewMut};

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

/// Feeds and runs a step whose input does not change, so that its numbers stay finite.
fn step(runner: &mut Runner, bytes: &[Vec<Vec<u8>>]) {
    for (rank, bytes) in bytes.iter().enumerate() {
        runner.write_input(rank, "x", &bytes[0]).unwrap();
        if runner.has_input(rank, "rate") {
            runner.write_input(rank, "rate", &[0; 4]).unwrap();
        }
    }
    runner.step().unwrap();
    assert!(runner.read_number(0, "loss").unwrap().is_finite());
}

/// The number of allocations and the growth of the heap in 20 steps.
fn measure(graphs: &[Graph], options: RunnerOptions) -> (usize, usize) {
    let inputs = inputs(graphs, 3);
    let bytes: Vec<Vec<Vec<u8>>> =
        inputs.iter().map(|rank| rank.iter().map(|l| l.to_bytes()).collect()).collect();
    let set = lower(&ClassGraph::each(graphs.to_vec()), &LowerOptions::default(), &options.cpu).unwrap();
    let mut runner = in_process(set, options).unwrap();
    feed(&mut runner, graphs, &inputs);
    // Warm-up: threads and kernels allocate what they keep.
    for _ in 0..3 {
        step(&mut runner, &bytes);
    }
    let (allocations, live_bytes) = (ALLOCATIONS.load(Ordering::SeqCst), LIVE_BYTES.load(Ordering::SeqCst));
    for _ in 0..20 {
        step(&mut runner, &bytes);
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
    let (graphs, cpu) = with_composites();
    assert_eq!(measure(&graphs, RunnerOptions { cpu, ..RunnerOptions::default() }), (0, 0));
}
