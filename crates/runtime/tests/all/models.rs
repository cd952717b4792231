//! Complete models over meshes: training steps on worker threads against the interpreter on one device.

use std::sync::Arc;

use partita_base::DType;
use partita_ir::{Annotation, ClassGraph, Graph, Literal, Role, TensorType, ValueId, evaluate};
use partita_mesh::{Mesh, Sharding};
use partita_nn::{
    BertConfig, GptConfig, LlamaConfig, MlpConfig, Model, ModelConfig, Optimizer, StepOptions, train_step,
};
use partita_program::{LowerOptions, lower};
use partita_runtime::checkpoint::TensorData;
use partita_runtime::{BatchTensor, Cpu, Runner, RunnerOptions, TensorLayout, TrainLoop};
use partita_spmd::{Options, Partitioned, partition, specialise};

fn pin(graph: &mut Graph, value: ValueId, sharding: Sharding) {
    let open = vec![false; sharding.dims.len()];
    graph.value_mut(value).annotation =
        Some(Annotation { mesh: 0, sharding, open, replicated: vec![], origin: "test".into() });
}

/// Megatron's layout written by hand if the mesh has `tp`, data parallelism over `dp`.
fn lay_out(graph: &mut Graph, mesh: &Mesh) {
    let (tp, dp) = (mesh.axis_named("tp"), mesh.axis_named("dp"));
    for input in graph.inputs.clone() {
        let value = graph.value(input).clone();
        let rank = value.ty.rank();
        let mut sharding = Sharding::replicated(rank);
        match value.role {
            Role::Input if rank > 0 => sharding = sharding.with_dim(0, dp),
            Role::Param => {
                let module = value.name.rsplit_once('.').map_or("", |m| m.0);
                let is_bias = value.name.ends_with(".bias");
                match module.rsplit('.').next().unwrap_or("") {
                    "q_proj" | "k_proj" | "v_proj" | "gate_proj" | "up_proj" => {
                        sharding = sharding.with_dim(0, tp);
                    }
                    "o_proj" | "down_proj" if !is_bias => sharding = sharding.with_dim(1, tp),
                    _ => {}
                }
            }
            _ => continue,
        }
        pin(graph, input, sharding);
    }
}

fn layouts(
    partitioned: &Partitioned,
    names: impl Fn(usize) -> String,
    values: &[ValueId],
    shardings: &[Sharding],
) -> Vec<TensorLayout> {
    let mesh = Arc::new(partitioned.mesh.clone());
    let layout = |(position, (&value, sharding)): (usize, (&ValueId, &Sharding))| TensorLayout {
        name: names(position),
        dtype: partitioned.graph.ty(value).dtype,
        shape: partitioned.graph.ty(value).shape.clone(),
        sharding: sharding.clone(),
        mesh: mesh.clone(),
        ranks: (0..mesh.rank_count()).collect(),
    };
    values.iter().zip(shardings).enumerate().map(layout).collect()
}

/// A training loop of a step graph on a mesh.
fn train_loop(step: &Graph, mesh: &Mesh, options: RunnerOptions) -> TrainLoop {
    let mut graph = step.clone();
    graph.meshes = vec![mesh.clone()];
    lay_out(&mut graph, mesh);
    let partitioned = partition(&graph, mesh, &Options::default()).unwrap();
    let locals: Vec<Graph> =
        (0..mesh.rank_count()).map(|rank| specialise(partitioned.local(rank), rank).unwrap()).collect();
    let set = lower(&ClassGraph::each(locals.clone()), &LowerOptions::default(), &Cpu::default()).unwrap();
    let whole = &partitioned.graph;
    let inputs = layouts(
        &partitioned,
        |i| whole.value(whole.inputs[i]).name.clone(),
        &whole.inputs,
        &partitioned.inputs,
    );
    let outputs =
        layouts(&partitioned, |i| whole.output_names[i].clone(), &whole.outputs, &partitioned.outputs);
    let world = options.world(&set).unwrap();
    TrainLoop::new(Runner::new(set, world, options).unwrap(), inputs, outputs, vec![], 7).unwrap()
}

fn step_graph(model: &Model) -> Graph {
    train_step(&model.forward, &StepOptions::new(Optimizer::adamw())).unwrap()
}

fn data(literal: &Literal) -> TensorData {
    TensorData::new(literal.ty.dtype, literal.ty.shape.clone(), literal.to_bytes())
}

/// A batch with every fed tensor of the step: tokens and labels below 11, floats in (-1, 1).
fn batch(step: &Graph, number: u64) -> Vec<(String, Literal)> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let fed = |v: &&ValueId| step.value(**v).role == Role::Input && step.ty(**v).rank() > 0;
    let mut literal = |ty: &TensorType| {
        let count = ty.element_count();
        let values: Vec<f64> = (0..count)
            .map(|_| {
                if ty.dtype.is_float() {
                    next() as f64 / (1u64 << 30) as f64 - 1.0
                } else {
                    (next() % 11) as f64
                }
            })
            .collect();
        Literal::from_f64(ty, values.into_iter())
    };
    let ids: Vec<ValueId> = step.inputs.iter().filter(fed).copied().collect();
    ids.iter().map(|&v| (step.value(v).name.clone(), literal(step.ty(v)))).collect()
}

const RATE: f64 = 0.01;

/// Losses and final state of two steps on one device, by the interpreter.
fn expected(step: &Graph, model: &Model, steps: u64) -> (Vec<f64>, Vec<(String, Literal)>) {
    let initial = model.initial(3).unwrap();
    let mut state: Vec<Option<Literal>> = step
        .inputs
        .iter()
        .map(|&v| match step.value(v).role {
            Role::Param => Some(initial[&step.value(v).name].clone()),
            Role::StateOf(_) => Some(Literal::zeros(step.ty(v))),
            _ => None,
        })
        .collect();
    let mut losses = Vec::new();
    for number in 0..steps {
        let batch = batch(step, number);
        let inputs: Vec<Literal> = step
            .inputs
            .iter()
            .zip(&state)
            .map(|(&v, state)| {
                let (ty, name) = (step.ty(v), &step.value(v).name);
                match (state, name.as_str()) {
                    (Some(state), _) => state.clone(),
                    (None, "learning_rate") => Literal::splat(ty, RATE),
                    (None, "step") => Literal::splat(ty, (number + 1) as f64),
                    (None, "seed") => Literal::splat(ty, 7.0),
                    _ => batch.iter().find(|(n, _)| n == name).unwrap().1.clone(),
                }
            })
            .collect();
        let outputs = evaluate(step, &inputs).unwrap();
        losses.push(outputs[step.output_position("loss").unwrap()].to_f64()[0]);
        for &(input, output) in &step.aliases {
            state[input] = Some(outputs[output].clone());
        }
    }
    let names = step.inputs.iter().map(|&v| step.value(v).name.clone());
    (losses, names.zip(state).filter_map(|(name, state)| Some((name, state?))).collect())
}

fn check(model: ModelConfig, dtype: DType, meshes: &[&[(&str, usize)]]) {
    let model = model.build(6, dtype, true).unwrap();
    let step = step_graph(&model);
    let (losses, state) = expected(&step, &model, 2);
    for axes in meshes {
        let mesh = Mesh::new("mesh", axes);
        let mut train =
            train_loop(&step, &mesh, RunnerOptions { workers: Some(2), ..RunnerOptions::default() });
        for (name, literal) in model.initial(3).unwrap() {
            train.set_tensor(&name, &data(&literal)).unwrap();
        }
        for (number, loss) in losses.iter().enumerate() {
            let batch = batch(&step, number as u64);
            let bytes: Vec<Vec<u8>> = batch.iter().map(|(_, literal)| literal.to_bytes()).collect();
            let tensors: Vec<BatchTensor<'_>> = batch
                .iter()
                .zip(&bytes)
                .map(|((name, literal), bytes)| BatchTensor {
                    name,
                    dtype: literal.ty.dtype,
                    shape: &literal.ty.shape,
                    bytes,
                })
                .collect();
            let report = train.step(&tensors, RATE).unwrap();
            let close = (report.loss - loss).abs() <= 2e-5 * loss.abs();
            assert!(close, "{axes:?}: loss {} for {loss} at step {number}", report.loss);
            assert_eq!(report.peak_bytes_used, report.peak_bytes_planned, "{axes:?}");
        }
        for (name, literal) in &state {
            let found = train.tensor(name).unwrap();
            let found = Literal::from_bytes(&literal.ty, &found.bytes).unwrap();
            for (position, (f, e)) in found.to_f64().iter().zip(literal.to_f64()).enumerate() {
                // Adam divides by the root of tiny squares, which magnifies rounding differences.
                assert!(
                    (f - e).abs() <= 2e-3 * e.abs().max(1.0),
                    "{axes:?}: {name}[{position}]: {f} for {e}"
                );
            }
        }
        assert_eq!(train.runner().slow_ops(), [], "{axes:?}");
    }
}

const MESHES: [&[(&str, usize)]; 4] = [&[("dp", 1)], &[("dp", 2), ("tp", 2)], &[("dp", 4)], &[("tp", 3)]];

#[test]
fn a_gpt_trains_as_the_interpreter_does() {
    let config = GptConfig {
        vocab: 12,
        dim: 24,
        layers: 2,
        heads: 6,
        sequence: 5,
        dropout: 0.1,
        ..GptConfig::default()
    };
    check(ModelConfig::Gpt(config), DType::F32, &MESHES);
}

#[test]
fn a_llama_trains_as_the_interpreter_does() {
    let config =
        LlamaConfig { vocab: 12, dim: 24, layers: 2, heads: 6, sequence: 5, ..LlamaConfig::default() };
    check(ModelConfig::Llama(config), DType::F32, &MESHES);
}

/// The value gradient of a head that three query heads share sums over heads and positions at once: the
/// matmul copies its operand, and the memory plan includes that copy.
#[test]
fn scratch_memory_of_shared_heads_is_planned() {
    let config = LlamaConfig {
        vocab: 12,
        dim: 24,
        layers: 1,
        heads: 6,
        kv_heads: Some(1),
        sequence: 5,
        ..LlamaConfig::default()
    };
    check(ModelConfig::Llama(config), DType::F32, &[&[("tp", 2)]]);
}

#[test]
fn a_bert_trains_as_the_interpreter_does() {
    let config = BertConfig { vocab: 12, dim: 24, layers: 1, heads: 6, sequence: 5, ..BertConfig::default() };
    check(ModelConfig::Bert(config), DType::F64, &MESHES);
}

#[test]
fn an_mlp_trains_as_the_interpreter_does() {
    check(ModelConfig::Mlp(MlpConfig::default()), DType::F32, &[&[("dp", 1)], &[("dp", 4)]]);
}
