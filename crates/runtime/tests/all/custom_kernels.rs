//! Custom kernels in programs of several ranks, and outlined composites that run as one kernel without a
//! custom one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{f32s, in_process, literal};
use partita_base::{DType, Result};
use partita_ir::graph_edit::{open_composites, prune};
use partita_ir::ops::{Composite, UnaryKind};
use partita_ir::{
    Annotation, ClassGraph, CustomOp, Graph, GraphBuilder, Literal, Operation, Role, Target, TensorType,
    ValueId, autodiff, evaluate,
};
use partita_mesh::{Mesh, Sharding};
use partita_program::{Action, LowerOptions, ProgramSet, lower};
use partita_runtime::{Cpu, CpuKernel, RunnerOptions, TensorView, TensorViewMut};
use partita_spmd::{Options, Partitioned, partition, virtual_ranks};

// ---- two custom ops and their kernels ----

/// `gelu(x[.., n] + bias[n])`, exactly.
fn bias_gelu() -> CustomOp {
    CustomOp::new("mine.bias_gelu", &["x", "bias"], |b, args| {
        let shape = b.shape(args[0]);
        let bias = b.broadcast_trailing(args[1], &shape)?;
        let x = b.add(args[0], bias)?;
        let inner = b.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
        let inner = b.unary(UnaryKind::Erf, inner)?;
        let inner = b.offset(inner, 1.0)?;
        let half = b.scale(x, 0.5)?;
        Ok(vec![b.multiply(half, inner)?])
    })
}

/// The mean over the last dimension.
fn mean() -> CustomOp {
    CustomOp::new("mine.mean", &["x"], |b, x| {
        let shape = b.shape(x[0]);
        let sum = b.reduce_sum(x[0], &[shape.len() - 1])?;
        Ok(vec![b.scale(sum, 1.0 / shape[shape.len() - 1] as f64)?])
    })
}

/// `(x[.., n] - mean) / sqrt(variance + 1e-5) * weight[n]`.
fn norm() -> CustomOp {
    CustomOp::new("mine.norm", &["x", "weight"], |b, args| {
        let shape = b.shape(args[0]);
        let last = shape.len() - 1;
        let dims: Vec<usize> = (0..last).collect();
        let count = 1.0 / shape[last] as f64;
        let mean = b.reduce_sum(args[0], &[last])?;
        let mean = b.scale(mean, count)?;
        let mean = b.broadcast_in_dim(mean, &shape, &dims)?;
        let centred = b.subtract(args[0], mean)?;
        let squares = b.multiply(centred, centred)?;
        let variance = b.reduce_sum(squares, &[last])?;
        let variance = b.scale(variance, count)?;
        let variance = b.offset(variance, 1e-5)?;
        let inverse = b.unary(UnaryKind::Rsqrt, variance)?;
        let inverse = b.broadcast_in_dim(inverse, &shape, &dims)?;
        let y = b.multiply(centred, inverse)?;
        let weight = b.broadcast_trailing(args[1], &shape)?;
        Ok(vec![b.multiply(y, weight)?])
    })
}

type Rows = fn(&[&[f32]], &mut [f32]);

/// A kernel on f32 that processes the first operand row by row; the other operands are one row. Counts its
/// runs.
struct ByRow {
    row: Rows,
    runs: Arc<AtomicUsize>,
}

impl CpuKernel for ByRow {
    fn supports(&self, operands: &[TensorType], results: &[TensorType]) -> bool {
        operands.iter().chain(results).all(|ty| ty.dtype == DType::F32)
    }
    fn run(
        &self,
        operands: &[TensorView<'_>],
        results: &mut [TensorViewMut<'_>],
        _: &mut [u8],
    ) -> Result<()> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let width = operands[0].shape().last().copied().unwrap_or(1);
        let x = operands[0].elements::<f32>()?;
        let step = if results[0].shape().len() == operands[0].shape().len() { width } else { 1 };
        let out = results[0].elements::<f32>()?;
        if x.is_empty() {
            out.fill(0.0);
            return Ok(());
        }
        let vector = match operands.get(1) {
            Some(view) => view.elements::<f32>()?,
            None => &[],
        };
        for (x, out) in x.chunks(width).zip(out.chunks_mut(step)) {
            (self.row)(&[x, vector], out);
        }
        Ok(())
    }
}

fn bias_gelu_row(args: &[&[f32]], out: &mut [f32]) {
    for ((x, bias), out) in args[0].iter().zip(args[1]).zip(out) {
        let x = f64::from(x + bias);
        *out = (0.5 * x * (1.0 + erf(x / 2f64.sqrt()))) as f32;
    }
}

/// The error function by its Taylor series, which converges everywhere.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn tanh_gelu_row(args: &[&[f32]], out: &mut [f32]) {
    for ((x, bias), out) in args[0].iter().zip(args[1]).zip(out) {
        let x = x + bias;
        let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        *out = 0.5 * x * (1.0 + inner.tanh());
    }
}

fn norm_row(args: &[&[f32]], out: &mut [f32]) {
    let count = args[0].len() as f32;
    let mean = args[0].iter().sum::<f32>() / count;
    let variance = args[0].iter().map(|x| (x - mean).powi(2)).sum::<f32>() / count;
    for ((x, weight), out) in args[0].iter().zip(args[1]).zip(out) {
        *out = (x - mean) / (variance + 1e-5).sqrt() * weight;
    }
}

fn mean_row(args: &[&[f32]], out: &mut [f32]) {
    out[0] = args[0].iter().sum::<f32>() / args[0].len() as f32;
}

fn register(
    cpu: &mut Cpu,
    op: &CustomOp,
    row: Rows,
    examples: &[Vec<TensorType>],
) -> Result<Arc<AtomicUsize>> {
    let runs = Arc::new(AtomicUsize::new(0));
    cpu.kernels.register(op, Arc::new(ByRow { row, runs: runs.clone() }), examples)?;
    runs.store(0, Ordering::SeqCst);
    Ok(runs)
}

// ---- running graphs ----

/// The graph partitioned over ranks that shard the first input along `dim`, and its programs.
fn programs(graph: &Graph, ranks: usize, dim: usize, cpu: &Cpu) -> (Partitioned, ProgramSet) {
    let mesh = Mesh::new("mesh", &[("dp", ranks)]);
    let mut graph = prune(open_composites(graph, &|c| !cpu.has_kernel(c)).unwrap());
    graph.meshes = vec![mesh.clone()];
    let x = graph.inputs[0];
    let rank = graph.ty(x).rank();
    let sharding = Sharding::replicated(rank).with_dim(dim, mesh.axis_named("dp"));
    let open = vec![false; rank];
    graph.value_mut(x).annotation =
        Some(Annotation { mesh: 0, sharding, open, replicated: vec![], origin: "test".into() });
    let partitioned = partition(&graph, &mesh, &Options::default()).unwrap();
    let locals = virtual_ranks::rank_graphs(&partitioned).unwrap();
    let set = lower(&ClassGraph::each(locals.clone()), &LowerOptions::default(), cpu).unwrap();
    (partitioned, set)
}

/// The name of the last op of each compute instruction of rank 0.
fn computed(set: &ProgramSet) -> Vec<String> {
    let program = &set.programs[0];
    let region = |action: &Action| match action {
        Action::Compute(compute) => {
            let nodes = &program.region(compute.region).graph.nodes;
            Some(nodes.last().map_or("copy".to_string(), |node| node.op.name().to_string()))
        }
        _ => None,
    };
    program.instructions.iter().filter_map(|i| region(&i.action)).collect()
}

/// The global outputs of one step on the device.
fn run(partitioned: &Partitioned, set: &ProgramSet, cpu: &Cpu, inputs: &[Literal]) -> Vec<Literal> {
    let options = RunnerOptions { cpu: cpu.clone(), nan_guard: false, ..RunnerOptions::default() };
    let mut runner = in_process(set.clone(), options).unwrap();
    let (graph, mesh) = (&partitioned.graph, &partitioned.mesh);
    for ((&value, sharding), input) in graph.inputs.iter().zip(&partitioned.inputs).zip(inputs) {
        for rank in 0..mesh.rank_count() {
            let local = virtual_ranks::distribute(input, sharding, mesh, rank);
            runner.write_input(rank, &graph.value(value).name, &local.to_bytes()).unwrap();
        }
    }
    runner.step().unwrap();
    assert_eq!(runner.slow_ops(), []);
    assert_eq!(runner.peak_bytes_used(), runner.planned_bytes());
    let outputs = graph.outputs.iter().zip(&graph.output_names).zip(&partitioned.outputs);
    outputs
        .map(|((&value, name), sharding)| {
            let ty = graph.ty(value);
            let local = |rank: usize| {
                let ty = ty.with_shape(sharding.local_shape(mesh, &ty.shape, rank));
                Literal::from_bytes(&ty, &runner.read_output(rank, name).unwrap()).unwrap()
            };
            let locals: Vec<Literal> = (0..mesh.rank_count()).map(local).collect();
            virtual_ranks::collect(ty, sharding, mesh, &locals.iter().collect::<Vec<_>>()).unwrap()
        })
        .collect()
}

fn assert_close(found: &[Literal], expected: &[Literal], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.ty, expected.ty);
        for (position, (f, e)) in found.to_f64().iter().zip(expected.to_f64()).enumerate() {
            let near = *f == e || (f - e).abs() <= tolerance * e.abs().max(1.0);
            assert!(near, "{what}: element {position} of result {number}: {f} for {e}");
        }
    }
}

fn inputs_of(graph: &Graph, seed: u64) -> Vec<Literal> {
    let mut seed = seed;
    graph.inputs.iter().map(|&v| literal(&mut seed, graph.ty(v))).collect()
}

/// A graph of one op.
fn graph_of(op: &CustomOp, types: &[TensorType]) -> Graph {
    let mut b = GraphBuilder::new("step");
    let operands: Vec<ValueId> =
        types.iter().zip(&op.arguments).map(|(ty, name)| b.input(name, ty.clone(), Role::Input)).collect();
    let results = op.apply(&mut b, &operands).unwrap();
    let names = (0..results.len()).map(|i| format!("result{i}"));
    b.finish_named(names.zip(results).collect())
}

/// Compares a graph on ranks that shard its first input along `dim` with the interpreter on the full tensors.
fn check(graph: &Graph, ranks: usize, dim: usize, cpu: &Cpu, tolerance: f64) -> Vec<String> {
    let (partitioned, set) = programs(graph, ranks, dim, cpu);
    let inputs = inputs_of(graph, 5);
    let found = run(&partitioned, &set, cpu, &inputs);
    let expected = evaluate(graph, &inputs).unwrap();
    assert_close(&found, &expected, tolerance, &format!("{ranks} ranks, dimension {dim}"));
    computed(&set)
}

// ---- custom kernels ----

#[test]
fn kernels_run_on_shards_and_give_the_numbers_of_the_decomposition() {
    let mut cpu = Cpu::default();
    let ops: [(CustomOp, Rows); 2] = [(bias_gelu(), bias_gelu_row), (norm(), norm_row)];
    for (op, row) in ops {
        let runs = register(&mut cpu, &op, row, &[vec![f32s(&[3, 8]), f32s(&[8])]]).unwrap();
        // Shards of 3 and 2 rows, and one rank without rows.
        for (ranks, rows) in [(1, 5), (2, 5), (2, 4), (3, 2)] {
            runs.store(0, Ordering::SeqCst);
            let graph = graph_of(&op, &[f32s(&[rows, 8]), f32s(&[8])]);
            let computed = check(&graph, ranks, 0, &cpu, 1e-5);
            assert_eq!(computed, [op.name.as_str()]);
            assert_eq!(runs.load(Ordering::SeqCst), ranks, "{} on {ranks} ranks", op.name);
        }
        // Types that the kernel does not support.
        runs.store(0, Ordering::SeqCst);
        let wide = |shape: &[usize]| TensorType::new(DType::F64, shape);
        check(&graph_of(&op, &[wide(&[4, 8]), wide(&[8])]), 2, 0, &cpu, 1e-12);
        assert_eq!(runs.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn operands_that_are_views_reach_the_kernel_in_order() {
    let mut cpu = Cpu::default();
    let op = bias_gelu();
    let runs = register(&mut cpu, &op, bias_gelu_row, &[vec![f32s(&[3, 8]), f32s(&[8])]]).unwrap();
    let mut b = GraphBuilder::new("step");
    let x = b.input("x", f32s(&[6, 4]), Role::Input);
    let turned = b.transpose(x, &[1, 0]).unwrap();
    let bias = b.scalar(DType::F32, 0.5);
    let bias = b.broadcast_scalar(bias, &[6]).unwrap();
    let y = op.apply(&mut b, &[turned, bias]).unwrap()[0];
    let graph = b.finish_named(vec![("y".into(), y)]);
    // A broadcast scalar as bias, and columns as rows: both are copied first.
    assert_eq!(check(&graph, 1, 0, &cpu, 1e-5), ["copy", "copy", "mine.bias_gelu"]);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// Subtracts the mean of each row; the means are stored in the workspace meanwhile.
struct Centre;

impl CpuKernel for Centre {
    fn supports(&self, operands: &[TensorType], _: &[TensorType]) -> bool {
        operands[0].dtype == DType::F64 && operands[0].rank() == 2
    }
    fn workspace_bytes(&self, operands: &[TensorType], _: &[TensorType]) -> usize {
        operands[0].shape[0] * 8
    }
    fn run(
        &self,
        operands: &[TensorView<'_>],
        results: &mut [TensorViewMut<'_>],
        workspace: &mut [u8],
    ) -> Result<()> {
        let (x, width) = (operands[0].elements::<f64>()?, operands[0].shape()[1]);
        let means: &mut [f64] = bytemuck::cast_slice_mut(workspace);
        assert_eq!(means.len(), results[0].shape()[0]);
        for (mean, row) in means.iter_mut().zip(x.chunks(width)) {
            *mean = row.iter().sum::<f64>() / width as f64;
        }
        let rows = results[0].elements::<f64>()?.chunks_mut(width).zip(x.chunks(width)).zip(means);
        rows.for_each(|((out, x), mean)| out.iter_mut().zip(x).for_each(|(out, x)| *out = x - *mean));
        Ok(())
    }
}

#[test]
fn scratch_memory_of_a_kernel_is_planned() {
    let centre = CustomOp::new("mine.centre", &["x"], |b, x| {
        let mean = mean().apply(b, x)?[0];
        let mean = b.broadcast_in_dim(mean, &b.shape(x[0]), &[0])?;
        Ok(vec![b.subtract(x[0], mean)?])
    });
    let f64s = |shape: &[usize]| TensorType::new(DType::F64, shape);
    let mut cpu = Cpu::default();
    cpu.kernels.register(&centre, Arc::new(Centre), &[vec![f64s(&[3, 4])], vec![f64s(&[1, 9])]]).unwrap();
    for ranks in [1, 2, 3] {
        assert_eq!(check(&graph_of(&centre, &[f64s(&[5, 6])]), ranks, 0, &cpu, 1e-12), ["mine.centre"]);
    }
}

#[test]
fn a_kernel_does_not_run_where_a_shard_means_something_else() {
    let mut cpu = Cpu::default();
    let runs = register(&mut cpu, &mean(), mean_row, &[vec![f32s(&[3, 8])]]).unwrap();
    let graph = graph_of(&mean(), &[f32s(&[4, 8])]);
    assert_eq!(check(&graph, 2, 0, &cpu, 1e-6), ["mine.mean"]);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    // The mean of a sharded row is not the mean of one rank's shard.
    check(&graph, 2, 1, &cpu, 1e-6);
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[test]
fn a_gradient_may_have_a_kernel_too() {
    let mut cpu = Cpu::default();
    let gradient = mean().gradient(&[0], &[0]);
    let spread: Rows = |args, out| {
        let width = args[0].len();
        out.fill(args[1][0] / width as f32);
    };
    let examples = [vec![f32s(&[1, 8]), f32s(&[1])]];
    let runs = register(&mut cpu, &gradient, spread, &examples).unwrap();
    register(&mut cpu, &mean(), mean_row, &[vec![f32s(&[1, 8])]]).unwrap();
    let forward = graph_of(&mean(), &[f32s(&[1, 8])]);
    let mut graph = autodiff::vjp(&forward, &[0], &[0]).unwrap();
    graph.output_names = vec!["dx".into()];
    for (number, &input) in graph.inputs.clone().iter().enumerate() {
        graph.value_mut(input).name = format!("input{number}");
    }
    assert_eq!(check(&graph, 1, 0, &cpu, 1e-6), ["mine.mean.vjp"]);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn wrong_kernels_are_refused() {
    let example = vec![f32s(&[16, 8]), f32s(&[8])];
    let refuse = |row: Rows, examples: &[Vec<TensorType>]| {
        let mut cpu = Cpu::default();
        let error = register(&mut cpu, &bias_gelu(), row, examples).unwrap_err();
        let composite = bias_gelu().instantiate(&example).unwrap();
        let graph = graph_of(&bias_gelu(), &example);
        assert!(cpu.has_kernel(&composite));
        check(&graph, 2, 0, &cpu, 1e-5);
        error
    };
    let error = refuse(tanh_gelu_row, std::slice::from_ref(&example));
    assert_eq!(error.code, "E246");
    assert!(error.at.as_ref().unwrap().starts_with("result 0, index ["), "{error}");
    let numbers = [&error.expected, &error.found].map(|text| text.as_ref().unwrap().parse::<f64>().unwrap());
    let difference = (numbers[0] - numbers[1]).abs();
    assert!((1e-4..1e-2).contains(&difference), "{error}");
    assert!(error.notes[0].contains("tensor<16x8xf32>"), "{error}");
    // A kernel that writes nothing, or not all elements.
    assert_eq!(refuse(|_, _| (), std::slice::from_ref(&example)).code, "E246");
    let all_but_one: Rows = |args, out| bias_gelu_row(&[&args[0][..7], args[1]], &mut out[..7]);
    let error = refuse(all_but_one, std::slice::from_ref(&example));
    assert_eq!(error.at.as_deref(), Some("result 0, index [0, 7]"));
    assert_eq!(refuse(bias_gelu_row, &[]).code, "E247");
    assert_eq!(refuse(bias_gelu_row, &[vec![f32s(&[2, 8])]]).code, "E245");
    let wide = |shape: &[usize]| TensorType::new(DType::F64, shape);
    assert_eq!(refuse(bias_gelu_row, &[vec![wide(&[2, 8]), wide(&[8])]]).code, "E247");

    /// A kernel that accepts every type, but reads f32.
    struct Careless;
    impl CpuKernel for Careless {
        fn supports(&self, _: &[TensorType], _: &[TensorType]) -> bool {
            true
        }
        fn run(&self, operands: &[TensorView<'_>], _: &mut [TensorViewMut<'_>], _: &mut [u8]) -> Result<()> {
            operands[0].elements::<f32>().map(|_| ())
        }
    }
    let mut cpu = Cpu::default();
    let examples = [vec![wide(&[2, 8]), wide(&[8])]];
    assert_eq!(cpu.kernels.register(&bias_gelu(), Arc::new(Careless), &examples).unwrap_err().code, "E425");
}

// ---- outlined composites that run as one kernel ----

#[test]
fn an_elementwise_composite_is_one_instruction() {
    let cpu = Cpu::default();
    let graph = graph_of(&bias_gelu(), &[f32s(&[5, 8]), f32s(&[8])]);
    for ranks in [1, 2] {
        assert_eq!(check(&graph, ranks, 0, &cpu, 1e-5), ["mine.bias_gelu"]);
    }
    assert_eq!(check(&graph, 2, 1, &cpu, 1e-5), ["mine.bias_gelu"]);
    // Two results, one of them from a nested composite.
    let both = CustomOp::new("mine.both", &["x", "bias"], |b, args| {
        let y = bias_gelu().apply(b, args)?[0];
        Ok(vec![y, b.composite(&partita_ir::composites::SILU, &[], &[y])?])
    });
    let graph = graph_of(&both, &[f32s(&[5, 8]), f32s(&[8])]);
    assert_eq!(check(&graph, 2, 0, &cpu, 1e-5), ["mine.both"]);
}

#[test]
fn what_cannot_be_one_kernel_says_why_and_is_opened() {
    let cpu = Cpu::default();
    let reason =
        |op: &CustomOp, types: &[TensorType]| Cpu::default().fusible(&op.instantiate(types).unwrap());
    let types = [f32s(&[4, 8]), f32s(&[8])];
    assert_eq!(reason(&bias_gelu(), &types), Ok(()));
    assert_eq!(reason(&norm(), &types), Ok(()));
    let columns = CustomOp::new("mine.columns", &["x"], |b, x| Ok(vec![b.reduce_sum(x[0], &[0])?]));
    assert_eq!(reason(&columns, &types[..1]), Ok(()));
    let sum = CustomOp::new("mine.sum", &["x"], |b, x| Ok(vec![b.reduce_sum(x[0], &[0, 1])?]));
    assert_eq!(reason(&sum, &types[..1]), Err("it reduces its first dimension".to_string()));
    let product = CustomOp::new("mine.product", &["x", "w"], |b, args| {
        b.path = "mlp.up_proj".into();
        Ok(vec![b.linear(args[0], args[1])?])
    });
    let types = [f32s(&[4, 8]), f32s(&[6, 8])];
    assert_eq!(
        reason(&product, &types),
        Err("dot_general in `mlp.up_proj` is not an elementwise op".to_string())
    );
    let ragged = CustomOp::new("mine.ragged", &["x"], |b, x| {
        let y = b.negate(x[0])?;
        let z = b.slice_dim(x[0], 0, 0, 1)?;
        Ok(vec![y, z])
    });
    let error = reason(&ragged, &types[..1]).unwrap_err();
    assert_eq!(error, "its results have different shapes, [4, 8] and [1, 8]");
    let error = reason(&CustomOp::new("mine.none", &["x"], |_, _| Ok(vec![])), &types[..1]).unwrap_err();
    assert_eq!(error, "it has no results");
    let many =
        CustomOp::new("mine.many", &["x"], |b, x| (0..17).map(|i| b.offset(x[0], f64::from(i))).collect());
    let error = reason(&many, &types[..1]).unwrap_err();
    assert!(error.contains("1 inputs and 17 outputs"), "{error}");
    let graph = graph_of(&norm(), &[f32s(&[4, 8]), f32s(&[8])]);
    assert_eq!(check(&graph, 2, 0, &cpu, 1e-5), ["mine.norm"]);
    let graph = graph_of(&columns, &types[..1]);
    assert!(check(&graph, 2, 0, &cpu, 1e-5).contains(&"mine.columns".to_string()));
    let graph = graph_of(&sum, &types[..1]);
    assert!(!check(&graph, 2, 0, &cpu, 1e-5).contains(&"mine.sum".to_string()));
    check(&graph_of(&many, &types[..1]), 1, 0, &cpu, 1e-6);
}

#[test]
fn gradients_through_a_fused_composite_are_those_of_its_ops() {
    let swish = CustomOp::new("mine.swish", &["x", "y"], |b, args| {
        let gate = b.unary(UnaryKind::Logistic, args[0])?;
        let gated = b.multiply(args[0], gate)?;
        Ok(vec![b.multiply(gated, args[1])?])
    });
    let f64s = |shape: &[usize]| TensorType::new(DType::F64, shape);
    // One kernel, also if the gradient of a bias sums over rows.
    for (op, second) in [(swish, f64s(&[5, 4])), (bias_gelu(), f64s(&[4]))] {
        let forward = graph_of(&op, &[f64s(&[5, 4]), second]);
        let mut graph = autodiff::vjp(&forward, &[0], &[0, 1]).unwrap();
        graph.output_names = vec!["dx".into(), "dy".into()];
        graph.value_mut(graph.inputs[2]).name = "seed".into();
        let cpu = Cpu::default();
        for ranks in [1, 2] {
            let names = check(&graph, ranks, 0, &cpu, 1e-11);
            assert_eq!(names, [format!("{}.vjp", op.name)]);
        }
        // Compared with finite differences of the decomposition.
        let inputs = inputs_of(&graph, 5);
        let found = evaluate(&graph, &inputs).unwrap();
        let value = |inputs: &[Literal]| -> f64 {
            let y = evaluate(&forward, &inputs[..2]).unwrap()[0].to_f64();
            y.iter().zip(inputs[2].to_f64()).map(|(y, seed)| y * seed).sum()
        };
        for operand in 0..2 {
            for position in 0..inputs[operand].to_f64().len() {
                let moved = |step: f64| {
                    let mut inputs = inputs.clone();
                    let mut values = inputs[operand].to_f64();
                    values[position] += step;
                    inputs[operand] = Literal::from_f64(&inputs[operand].ty, values.into_iter());
                    value(&inputs)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                let gradient = found[operand].to_f64()[position];
                let near = (slope - gradient).abs() < 1e-6 * gradient.abs().max(1.0);
                assert!(near, "{} operand {operand}: {gradient}, not {slope}", op.name);
            }
        }
    }
}

#[test]
fn a_name_without_its_meaning_gets_no_kernel() {
    let own = CustomOp::new("partita.softmax", &["x"], |b, x| Ok(vec![b.scale(x[0], 2.0)?]));
    let graph = graph_of(&own, &[f32s(&[3, 4])]);
    assert_eq!(check(&graph, 2, 0, &Cpu::default(), 1e-6), ["partita.softmax"]);
    let mut cpu = Cpu::default();
    register(&mut cpu, &mean(), mean_row, &[vec![f32s(&[3, 8])]]).unwrap();
    let other = CustomOp::new("mine.mean", &["x"], |b, x| Ok(vec![b.reduce_max(x[0], &[0, 1])?]));
    let composite: Composite = other.instantiate(&[f32s(&[3, 8])]).unwrap();
    assert!(!cpu.has_kernel(&composite));
    check(&graph_of(&other, &[f32s(&[4, 8])]), 2, 0, &cpu, 1e-6);
}
