//! The training loop: global batches in, global checkpoints out, on any mesh.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::*;
use partita_base::DType;
use partita_ir::{Graph, GraphBuilder, Pieces, Role, TensorType, ValueId};
use partita_mesh::{Mesh, Sharding, split_extents};
use partita_program::{Action, Instruction};
use partita_runtime::checkpoint::TensorData;
use partita_runtime::{
    BatchTensor, Fault, HostProcesses, Patience, RunnerOptions, TensorLayout, TrainLoop, World,
};

const ROWS: usize = 7;

/// A step of a linear model `y = x w` whose weight is stored in two parts and whose rows are sharded over
/// `ranks` (like ZeRO: the first part of `w` and its momentum are sharded too), with microbatches.
struct Model {
    graphs: Vec<Graph>,
    inputs: Vec<TensorLayout>,
    outputs: Vec<TensorLayout>,
}

fn model(ranks: usize, micro: usize) -> Model {
    let mesh = Arc::new(Mesh::new("mesh", &[("dp", ranks)]));
    let axis = mesh.full_axis(0);
    let layout = |name: &str, dtype: DType, shape: &[usize], is_sharded: bool| {
        let sharding = Sharding::replicated(shape.len());
        let sharding = if is_sharded { sharding.with_dim(0, [axis]) } else { sharding };
        let ranks = (0..ranks).collect();
        TensorLayout { name: name.into(), dtype, shape: shape.to_vec(), sharding, mesh: mesh.clone(), ranks }
    };
    let micro_rows: Vec<usize> = (0..micro).map(|i| ROWS / micro + usize::from(i < ROWS % micro)).collect();
    let mut inputs: Vec<TensorLayout> = Vec::new();
    for (i, &rows) in micro_rows.iter().enumerate() {
        let name = if micro == 1 { "x".to_string() } else { format!("x.micro{i}") };
        inputs.push(layout(&name, DType::F32, &[rows, 6], true));
    }
    inputs.push(layout("learning_rate", DType::F32, &[], false));
    inputs.push(layout("step", DType::I64, &[], false));
    inputs.push(layout("seed", DType::U64, &[], false));
    inputs.push(layout("w#0", DType::F32, &[6, 2], true));
    inputs.push(layout("w#1", DType::F32, &[6, 3], false));
    inputs.push(layout("optimizer.momentum.w#0", DType::F32, &[6, 2], true));
    inputs.push(layout("optimizer.momentum.w#1", DType::F32, &[6, 3], false));
    let outputs = vec![layout("seen", DType::I64, &[], false), layout("y", DType::F32, &[ROWS, 2], true)];
    let group: Vec<usize> = (0..ranks).collect();
    let graph = |rank: usize| {
        let mut b = GraphBuilder::new("step");
        let mut values: Vec<ValueId> = Vec::new();
        for layout in &inputs {
            let shape = layout.sharding.local_shape(&mesh, &layout.shape, rank);
            let role = if layout.name.starts_with('w') { Role::Param } else { Role::Input };
            values.push(b.input(&layout.name, TensorType::new(layout.dtype, shape), role));
        }
        let (x, rest) = values.split_at(micro);
        let [rate, step, seed, w0, w1, m0, m1] = rest[..] else { unreachable!() };
        let extents = split_extents(6, 1, &[axis]);
        let whole = all_gather(&mut b, w0, 0, &group, &extents);
        let mut loss = b.scalar(DType::F32, 0.0);
        let mut gradients: Option<[ValueId; 2]> = None;
        for &x in x {
            let mut new = [whole, w1];
            for weight in &mut new {
                let y = matmul(&mut b, x, *weight, [1, 0]);
                let squares = b.multiply(y, y).unwrap();
                let sum = b.reduce_sum(squares, &[0, 1]).unwrap();
                loss = b.add(loss, sum).unwrap();
                *weight = matmul(&mut b, x, y, [0, 0]);
            }
            gradients = Some(match gradients {
                None => new,
                Some([a, c]) => [b.add(a, new[0]).unwrap(), b.add(c, new[1]).unwrap()],
            });
        }
        let [g0, g1] = gradients.unwrap();
        let loss = all_reduce(&mut b, loss, &group);
        let g0 = reduce_scatter(&mut b, g0, 0, &group, &extents, rank);
        let g1 = all_reduce(&mut b, g1, &group);
        let mut update = |w: ValueId, m: ValueId, g: ValueId| {
            let m = b.scale(m, 0.5).unwrap();
            let m = b.add(m, g).unwrap();
            let shape = b.shape(m);
            let rate = b.broadcast_scalar(rate, &shape).unwrap();
            let change = b.multiply(m, rate).unwrap();
            (b.subtract(w, change).unwrap(), m)
        };
        let ((w0, m0), (w1, m1)) = (update(w0, m0, g0), update(w1, m1, g1));
        let seed = b.convert(seed, DType::I64).unwrap();
        let seen = b.add(seed, step).unwrap();
        let y = matmul(&mut b, x[0], whole, [1, 0]);
        let names = ["loss", "seen", "y", "w#0", "w#1", "optimizer.momentum.w#0", "optimizer.momentum.w#1"];
        let values = [loss, seen, y, w0, w1, m0, m1];
        let mut graph = b.finish_named(names.iter().map(|n| n.to_string()).zip(values).collect());
        graph.aliases = (0..4).map(|i| (micro + 3 + i, 3 + i)).collect();
        graph
    };
    Model { graphs: (0..ranks).map(graph).collect(), inputs, outputs }
}

fn pieces() -> Vec<Pieces> {
    vec![Pieces { name: "w".into(), dim: 1, limits: vec![("w#0".into(), 0, 2), ("w#1".into(), 2, 5)] }]
}

fn train(ranks: usize, micro: usize, workers: usize) -> TrainLoop {
    train_with(ranks, micro, RunnerOptions { workers: Some(workers), ..RunnerOptions::default() })
}

fn train_with(ranks: usize, micro: usize, options: RunnerOptions) -> TrainLoop {
    let Model { graphs, inputs, outputs } = model(ranks, micro);
    TrainLoop::new(in_process(program(&graphs), options).unwrap(), inputs, outputs, pieces(), 40).unwrap()
}

fn numbers(seed: u64, count: usize) -> Vec<u8> {
    let ty = f32s(&[count]);
    literal(&mut seed.clone(), &ty).to_bytes()
}

fn start(train: &mut TrainLoop) {
    let tensor =
        |seed, columns: usize| TensorData::new(DType::F32, vec![6, columns], numbers(seed, 6 * columns));
    train.set_tensor("w#0", &tensor(1, 2)).unwrap();
    train.set_tensor("w#1", &tensor(2, 3)).unwrap();
}

fn steps(train: &mut TrainLoop, range: std::ops::Range<u64>) -> Vec<f64> {
    let step = |i: u64| {
        let x = numbers(50 + i, ROWS * 6);
        let batch = BatchTensor { name: "x", dtype: DType::F32, shape: &[ROWS, 6], bytes: &x };
        let report = train.step(&[batch], 1.0 / 4096.0).unwrap();
        assert_eq!(report.step, i + 1);
        assert_eq!((report.grad_norm, report.peak_bytes_used), (None, report.peak_bytes_planned));
        assert!(report.tokens_per_s > 0.0);
        // Step and seed are inputs of the program.
        assert_eq!(train.output("seen").unwrap().bytes, (40 + i as i64 + 1).to_ne_bytes());
        report.loss
    };
    range.map(step).collect()
}

fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= 1e-5 * e.abs().max(1.0), "{found:?} for {expected:?}");
    }
}

#[test]
fn every_mesh_and_microbatching_trains_alike_and_loss_falls() {
    let mut alone = train(1, 1, 1);
    start(&mut alone);
    let expected = steps(&mut alone, 0..6);
    assert!(expected[5] < expected[0], "{expected:?}");
    let saved = alone.checkpoint(BTreeMap::new()).unwrap();
    for (ranks, micro, workers) in [(2, 1, 2), (3, 1, 2), (1, 3, 1), (2, 2, 1), (4, 2, 4)] {
        let mut many = train(ranks, micro, workers);
        start(&mut many);
        close(&steps(&mut many, 0..6), &expected);
        let other = many.checkpoint(BTreeMap::new()).unwrap();
        let floats = |t: &TensorData| -> Vec<f64> {
            bytemuck::allocation::pod_collect_to_vec::<u8, f32>(&t.bytes).into_iter().map(f64::from).collect()
        };
        for (name, tensor) in &saved.tensors {
            assert_eq!(other.tensors[name].shape, tensor.shape);
            close(&floats(&other.tensors[name]), &floats(tensor));
        }
        if micro == 1 {
            assert_eq!(many.output("y").unwrap().shape, [ROWS, 2]);
        }
    }
}

#[test]
fn a_checkpoint_joins_pieces_and_goes_on_on_another_mesh() {
    let mut first = train(3, 1, 2);
    start(&mut first);
    steps(&mut first, 0..3);
    let saved = first.checkpoint(BTreeMap::new()).unwrap();
    let shapes: Vec<(&str, &[usize])> =
        saved.tensors.iter().map(|(name, t)| (name.as_str(), t.shape.as_slice())).collect();
    assert_eq!(shapes, [("w", &[6, 5][..]), ("optimizer.momentum.w", &[6, 5])]);
    assert_eq!(saved.step, 3);
    let expected = steps(&mut first, 3..6);
    let mut second = train(2, 2, 2);
    second.restore(&saved).unwrap();
    assert_eq!(second.steps_taken(), 3);
    close(&steps(&mut second, 3..6), &expected);
    // On the same mesh, bit for bit.
    let mut third = train(3, 1, 1);
    third.restore(&saved).unwrap();
    assert_eq!(steps(&mut third, 3..6), expected);

    let mut broken = saved.clone();
    broken.tensors.shift_remove("w");
    assert_eq!(third.restore(&broken).unwrap_err().code, "E314");
}

#[test]
fn a_loss_that_is_not_a_number_names_the_step() {
    let mut train = train(2, 1, 2);
    start(&mut train);
    steps(&mut train, 0..2);
    let instructions = &train.runner().programs()[1].instructions;
    let product = instructions.iter().position(|i| i.origin.what == "dot_general").unwrap();
    train.runner_mut().inject(1, product, Fault::Nan).unwrap();
    let x = numbers(5, ROWS * 6);
    let error = train
        .step(&[BatchTensor { name: "x", dtype: DType::F32, shape: &[ROWS, 6], bytes: &x }], 0.1)
        .unwrap_err();
    let text = error.to_string();
    assert!(error.code == "E412" && text.contains("at step 3") && text.contains("learning rate"), "{text}");
}

/// Runs a step that must fail with `code`, and checks that parameters, states and the step counter do not
/// change.
#[track_caller]
fn fails(train: &mut TrainLoop, batch: &[BatchTensor<'_>], rate: f64, code: &str, words: &[&str]) {
    let before = train.checkpoint(BTreeMap::new()).unwrap();
    let error = train.step(batch, rate).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.code, code, "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "`{word}` is not in\n{text}"));
    assert_eq!(train.checkpoint(BTreeMap::new()).unwrap(), before, "{text}");
}

#[test]
fn a_step_that_is_refused_names_what_is_wrong_and_changes_nothing() {
    for micro in [1, 3] {
        let [mut train, mut other] = [(); 2].map(|()| {
            let mut train = train(2, micro, 2);
            start(&mut train);
            steps(&mut train, 0..2);
            train
        });
        let bytes = numbers(5, ROWS * 6);
        let tensor =
            |name, dtype, shape, count: usize| BatchTensor { name, dtype, shape, bytes: &bytes[..count] };
        let x = tensor("x", DType::F32, &[ROWS, 6], bytes.len());
        let wanted = "x: f32[7, 6]";
        fails(&mut train, &[], 0.1, "E430", &["has no `x`", wanted, "an empty batch"]);
        let unknown = tensor("xs", DType::F32, &[ROWS, 6], bytes.len());
        fails(&mut train, &[x, unknown], 0.1, "E414", &["no input `xs`", wanted, "did you mean `x`?"]);
        let state = tensor("w#0", DType::F32, &[6, 2], 48);
        fails(&mut train, &[x, state], 0.1, "E414", &["`w#0` does not belong to a batch", wanted]);
        let turned = tensor("x", DType::F32, &[6, ROWS], bytes.len());
        fails(&mut train, &[turned], 0.1, "E415", &["another shape", "f32[7, 6]", "f32[6, 7]"]);
        let short = tensor("x", DType::F32, &[ROWS, 6], bytes.len() - 4);
        fails(&mut train, &[short], 0.1, "E415", &["168 bytes", "164 bytes"]);
        let whole_numbers = tensor("x", DType::I32, &[ROWS, 6], bytes.len());
        fails(&mut train, &[whole_numbers], 0.1, "E415", &["another element type", "i32[7, 6]"]);
        for rate in [-1e-3, f64::NAN, f64::INFINITY, 1e39] {
            fails(&mut train, &[x], rate, "E431", &["learning rate", "within the range of f32"]);
        }
        // Every step needs a new batch.
        assert_eq!(train.run().unwrap_err().code, "E430");
        // A batch may contain the scalars of a step; the loop's own values replace them.
        let seed = BatchTensor { name: "seed", dtype: DType::U64, shape: &[], bytes: &[9; 8] };
        train.step(&[x, seed], 0.0).unwrap();
        assert_eq!(train.output("seen").unwrap().bytes, 43i64.to_ne_bytes());
        other.step(&[x], 0.0).unwrap();
        assert_eq!(steps(&mut train, 3..5), steps(&mut other, 3..5));
    }
}

/// The batch of a step with these values in place of some elements.
fn spoilt(seed: u64, values: &[(usize, f32)]) -> Vec<u8> {
    let mut bytes = numbers(seed, ROWS * 6);
    for (at, value) in values {
        bytes[at * 4..][..4].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn x(bytes: &[u8]) -> BatchTensor<'_> {
    BatchTensor { name: "x", dtype: DType::F32, shape: &[ROWS, 6], bytes }
}

#[test]
fn a_step_that_is_not_finite_is_as_if_it_had_not_been_tried() {
    for (ranks, micro, workers) in [(1, 1, 1), (1, 3, 1), (2, 1, 2), (3, 2, 2), (4, 1, 4)] {
        let [mut train, mut other] = [(); 2].map(|()| {
            let mut train = train(ranks, micro, workers);
            start(&mut train);
            steps(&mut train, 0..2);
            train
        });
        let words = ["`loss` is not a finite number", "at step 3", "the step before"];
        for _ in 0..3 {
            let nan = spoilt(5, &[(9, f32::NAN), (10, f32::NAN), (20, f32::INFINITY)]);
            fails(&mut train, &[x(&nan)], 0.1, "E412", &words);
            let place =
                "the batch is not finite: `x` has 2 NaN and 1 infinite of 42 elements, the first at [1, 3]";
            fails(&mut train, &[x(&nan)], 0.1, "E412", &[place, "mend the data"]);
            assert_eq!(train.steps_taken(), 2);
            assert_eq!(train.run().unwrap_err().code, "E430");
        }
        assert_eq!(steps(&mut train, 2..4), steps(&mut other, 2..4));
        // A batch that is finite, and a loss that is not.
        let large = spoilt(5, &[(0, 3e38)]);
        fails(&mut train, &[x(&large)], 0.1, "E412", &["help: lower the learning rate"]);
        let infinite = spoilt(5, &[(0, f32::NEG_INFINITY)]);
        let place =
            "`x` has 1 infinite of 42 elements, the first at [0, 0]; if that is meant, as in a mask, lower";
        fails(&mut train, &[x(&infinite)], 0.1, "E412", &[place]);
        assert_eq!(steps(&mut train, 4..6), steps(&mut other, 4..6));
        let [one, two] = [train, other].map(|train| train.checkpoint(BTreeMap::new()).unwrap());
        assert_eq!(one, two);
    }
}

#[test]
fn a_step_that_is_not_finite_leaves_two_processes_as_if_it_had_not_been_tried() {
    let folder = tempfile::tempdir().unwrap();
    let mut alone = train(3, 2, 2);
    start(&mut alone);
    let losses = steps(&mut alone, 0..4);
    let process = |index: usize| {
        let processes = HostProcesses::join(folder.path(), index, 2, Patience::default()).unwrap();
        let options =
            RunnerOptions { workers: Some(2), processes: Some(processes), ..RunnerOptions::default() };
        let mut train = train_with(3, 2, options);
        start(&mut train);
        for step in 0..4 {
            for _ in 0..2 {
                let nan = spoilt(step, &[(41, f32::NAN)]);
                let place = "`x` has 1 NaN of 42 elements, the first at [6, 5]";
                fails(&mut train, &[x(&nan)], 0.1, "E412", &[place]);
            }
            assert_eq!(steps(&mut train, step..step + 1), losses[step as usize..step as usize + 1]);
        }
    };
    std::thread::scope(|scope| {
        let process = &process;
        let both = [0, 1].map(|index| scope.spawn(move || process(index)));
        both.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn whatever_goes_wrong_before_the_loss_is_known_leaves_the_state() {
    let instructions = train(1, 1, 1).runner().programs()[0].instructions.len();
    let bytes = numbers(5, ROWS * 6);
    let x = BatchTensor { name: "x", dtype: DType::F32, shape: &[ROWS, 6], bytes: &bytes };
    let mut failed = 0;
    for at in 0..instructions {
        let mut train = train(1, 1, 1);
        start(&mut train);
        let before = train.checkpoint(BTreeMap::new()).unwrap();
        train.runner_mut().inject(0, at, Fault::Nan).unwrap();
        if train.step(&[x], 0.1).is_err() {
            failed += 1;
            assert_eq!(train.checkpoint(BTreeMap::new()).unwrap(), before, "instruction {at}");
        }
    }
    assert!(failed > 0 && failed < instructions, "{failed} of {instructions}");
}

#[test]
fn two_processes_train_and_save_to_the_bits_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut alone = train(3, 2, 2);
    start(&mut alone);
    let losses = steps(&mut alone, 0..4);
    let saved = alone.checkpoint(BTreeMap::new()).unwrap();
    let process = |index: usize| {
        let processes = HostProcesses::join(folder.path(), index, 2, Patience::default()).unwrap();
        let options = RunnerOptions {
            workers: Some(2),
            processes: Some(processes.clone()),
            ..RunnerOptions::default()
        };
        let mut train = train_with(3, 2, options.clone());
        start(&mut train);
        assert_eq!(steps(&mut train, 0..2), losses[..2]);
        let half = train.checkpoint(BTreeMap::new()).unwrap();
        assert_eq!((half.step, half.tensors.is_empty()), (2, index == 1));
        assert_eq!(steps(&mut train, 2..4), losses[2..]);
        let ended = train.checkpoint(BTreeMap::new()).unwrap();
        assert_eq!(ended.tensors, if index == 0 { saved.tensors.clone() } else { Default::default() });
        assert_eq!(train.tensor("w#0").unwrap(), alone_tensor(&saved));
        // From the checkpoint of one process.
        train.restore(&saved).unwrap();
        assert_eq!(train.steps_taken(), 4);
        // Tensors of other processes can be neither read nor written.
        let (runner, other) = (train.runner_mut(), if index == 0 { 2 } else { 0 });
        assert_eq!(runner.local_ranks(), [&[0][..], &[1, 2]][index]);
        for error in [
            runner.read_output(other, "loss").unwrap_err(),
            runner.read_number(other, "loss").unwrap_err(),
            runner.read_input(other, "w#0").unwrap_err(),
            runner.write_input(other, "w#0", &[]).unwrap_err(),
            runner.fill_inputs(&[other], "w#0", |_| Ok(())).unwrap_err(),
            runner.instruction_nanos(other).unwrap_err(),
            runner.inject(other, 0, Fault::Nan).unwrap_err(),
        ] {
            assert_eq!(error.code, "E446", "{error}");
        }
        assert!(runner.has_output(other, "loss") && runner.input_type(other, "w#0").is_ok());
        // A world for other programs.
        let set = program(&model(2, 1).graphs);
        let error =
            partita_runtime::Runner::new(set, World::in_process(3, vec![]).unwrap(), options).err().unwrap();
        assert_eq!(error.code, "E445", "{error}");
        // A failure on one process ends all.
        runner.world().barrier().unwrap();
        if index == 1 {
            let at = |i: &Instruction| matches!(i.action, Action::Compute(_));
            let first = runner.programs()[1].instructions.iter().position(at).unwrap();
            runner.inject(2, first, Fault::Error).unwrap();
        }
        let x = numbers(50, ROWS * 6);
        let batch = BatchTensor { name: "x", dtype: DType::F32, shape: &[ROWS, 6], bytes: &x };
        let error = train.step(&[batch], 1.0 / 4096.0).unwrap_err();
        (error.code, error.message.clone())
    };
    let told = std::thread::scope(|scope| {
        let process = &process;
        let both = [0, 1].map(|index| scope.spawn(move || process(index)));
        both.map(|thread| thread.join().unwrap())
    });
    let [(other, consequence), (own, reason)] = told;
    assert_eq!((other, own), ("E418", "E411"));
    assert_eq!(consequence, format!("rank 2 failed: {reason}"));
}

/// The first part of the parameter in a checkpoint.
fn alone_tensor(saved: &partita_runtime::checkpoint::Checkpoint) -> TensorData {
    let whole = &saved.tensors["w"];
    let rows = whole.bytes.chunks(5 * 4).flat_map(|row| &row[..2 * 4]);
    TensorData::new(DType::F32, vec![6, 2], rows.copied().collect())
}
