//! Whole models under whole plans: equal to one device, on virtual ranks.

use partita_base::DType;
use partita_ir::{Graph, Literal, Role, TensorType, evaluate};
use partita_mesh::Mesh;
use partita_nn::{
    BertConfig, GptConfig, LlamaConfig, MlpConfig, ModelConfig, Optimizer, StepOptions, append_update,
    gradient_graph,
};
use partita_schedule::{ApplyOptions, Plan, ReadyOptions, apply, ready_plan};
use partita_spmd::{Options, microbatch, partition, split_fused, virtual_ranks};

fn numbers(ty: &TensorType, seed: u64, below: f64) -> Literal {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let values = (0..ty.element_count()).map(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
        if ty.dtype.is_float() { unit - 0.5 } else { (unit * below).floor() }
    });
    Literal::from_f64(ty, values.collect::<Vec<_>>().into_iter())
}

fn feed(graph: &Graph) -> Vec<Literal> {
    let one = |(i, &v): (usize, &partita_ir::ValueId)| match &graph.value(v).role {
        Role::StateOf(_) => Literal::zeros(graph.ty(v)),
        _ if graph.value(v).name == "step" => Literal::scalar(DType::I64, 1.0),
        _ => numbers(graph.ty(v), i as u64, 9.0),
    };
    graph.inputs.iter().enumerate().map(one).collect()
}

/// The step of a tiny model with all features: split fused projections, dropout, clipping,
/// microbatches.
fn step(config: &ModelConfig, batch: usize, microbatches: usize) -> Graph {
    let forward = config.build(batch, DType::F64, true).unwrap().forward;
    let (forward, _) = split_fused(&forward).unwrap();
    let gradients = microbatch(&gradient_graph(&forward).unwrap(), microbatches).unwrap();
    let mut options = StepOptions::new(Optimizer::adamw());
    options.output_gradients = true;
    options.clip_grad_norm = Some(1.0);
    append_update(&gradients, &options).unwrap()
}

fn tiny(name: &str) -> ModelConfig {
    match name {
        "gpt" => ModelConfig::Gpt(GptConfig {
            vocab: 10,
            dim: 8,
            layers: 1,
            heads: 2,
            sequence: 4,
            dropout: 0.2,
            fused_qkv: true,
            ..GptConfig::default()
        }),
        "llama" => ModelConfig::Llama(LlamaConfig {
            vocab: 10,
            dim: 8,
            layers: 1,
            heads: 4,
            sequence: 4,
            ..LlamaConfig::default()
        }),
        "bert" => ModelConfig::Bert(BertConfig {
            vocab: 10,
            dim: 8,
            layers: 1,
            heads: 2,
            sequence: 4,
            padding_mask: true,
            ..BertConfig::default()
        }),
        _ => ModelConfig::Mlp(MlpConfig::default()),
    }
}

fn assert_same_numbers(step: &Graph, plan: &Plan, mesh: &Mesh, what: &str) {
    let inputs = feed(step);
    let expected = evaluate(step, &inputs).unwrap();
    let planned = apply(plan, step, mesh, &ApplyOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let partitioned =
        partition(&planned.graph, mesh, &Options::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = virtual_ranks::interpret(&partitioned, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
    for ((name, e), f) in step.output_names.iter().zip(&expected).zip(&found) {
        let (e, f) = (e.to_f64(), f.to_f64());
        let scale = e.iter().fold(1e-6, |m: f64, x| m.max(x.abs()));
        for (x, y) in e.iter().zip(&f) {
            assert!((x - y).abs() <= 1e-7 * scale, "{what}: {name}: {x} and {y}");
        }
    }
}

#[test]
fn ready_plans_give_the_numbers_of_one_device() {
    // A single axis may split unevenly; of two axes, each splits evenly.
    let meshes: [(usize, &[(&str, usize)]); 5] = [
        (4, &[("dp", 2), ("tp", 2)]),
        (4, &[("fsdp", 2), ("tp", 2)]),
        (4, &[("dp", 2), ("fsdp", 2)]),
        (5, &[("tp", 3)]),
        (5, &[("fsdp", 3)]),
    ];
    for name in ["mlp", "gpt", "llama", "bert"] {
        for (batch, axes) in meshes {
            let step = step(&tiny(name), batch, 1);
            let mesh = Mesh::new("mesh", axes);
            for (sequence_parallel, vocab_parallel) in [(false, false), (true, true)] {
                let options = ReadyOptions { sequence_parallel, vocab_parallel, zero: 2 };
                let plan = ready_plan(name, &step, &mesh, &options).unwrap();
                assert_same_numbers(&step, &plan, &mesh, &format!("{name} {mesh} {options:?}"));
            }
        }
    }
}

#[test]
fn microbatches_and_plans_go_together() {
    let step = step(&tiny("gpt"), 5, 2);
    for (axes, zero) in [(vec![("dp", 2), ("tp", 2)], 2), (vec![("fsdp", 2)], 0), (vec![("dp", 2)], 1)] {
        let mesh = Mesh::new("mesh", &axes);
        let options = ReadyOptions { zero, ..ReadyOptions::default() };
        let plan = ready_plan("gpt", &step, &mesh, &options).unwrap();
        assert_same_numbers(&step, &plan, &mesh, &format!("microbatches {mesh}"));
    }
}
