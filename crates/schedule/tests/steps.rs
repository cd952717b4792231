//! Whole models under ready plans: the numbers of one device, and exactly the collectives that the plan means.

use partita_base::DType;
use partita_ir::{Graph, Literal, Op, Role, TensorType, evaluate};
use partita_mesh::Mesh;
use partita_nn::{
    GptConfig, LlamaConfig, ModelConfig, Optimizer, StepOptions, append_update, gradient_graph,
};
use partita_schedule::{ApplyOptions, ReadyOptions, apply, ready_plan};
use partita_spmd::{Options, Partitioned, microbatch, partition, split_fused, virtual_ranks};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Default)]
struct Variant {
    sequence_parallel: bool,
    vocab_parallel: bool,
    microbatches: usize,
}

fn gpt(layers: usize) -> ModelConfig {
    ModelConfig::Gpt(GptConfig {
        vocab: 32,
        dim: 16,
        layers,
        heads: 4,
        sequence: 8,
        dropout: 0.0,
        tied: false,
        ..GptConfig::default()
    })
}

fn planned(config: &ModelConfig, mesh: &Mesh, variant: Variant) -> (Graph, Partitioned) {
    let model = config.build(4, DType::F64, true).unwrap_or_else(|e| panic!("{e}"));
    let mut options = StepOptions::new(Optimizer::adamw());
    options.output_gradients = false;
    let (forward, _) = split_fused(&model.forward).unwrap_or_else(|e| panic!("{e}"));
    let mut gradients = gradient_graph(&forward).unwrap_or_else(|e| panic!("{e}"));
    if variant.microbatches > 1 {
        gradients = microbatch(&gradients, variant.microbatches).unwrap_or_else(|e| panic!("{e}"));
    }
    let step = append_update(&gradients, &options).unwrap_or_else(|e| panic!("{e}"));
    let ready = ReadyOptions {
        sequence_parallel: variant.sequence_parallel,
        vocab_parallel: variant.vocab_parallel,
        ..ReadyOptions::default()
    };
    let plan = ready_plan(config.name(), &step, mesh, &ready).unwrap_or_else(|e| panic!("{e}"));
    let apply_options =
        ApplyOptions { sequence_parallel: variant.sequence_parallel, ..ApplyOptions::default() };
    let applied = apply(&plan, &step, mesh, &apply_options).unwrap_or_else(|e| panic!("{e}"));
    let partitioned = partition(&applied.graph, mesh, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    (step, partitioned)
}

fn listing(partitioned: &Partitioned) -> Vec<(String, String, String, Vec<usize>)> {
    let local = &partitioned.locals[0];
    let mut rows = Vec::new();
    for node in &local.nodes {
        let kind = match &node.op {
            Op::AllReduce(_) => "all_reduce",
            Op::AllGather(_) => "all_gather",
            Op::ReduceScatter(_) => "reduce_scatter",
            Op::AllToAll(_) => "all_to_all",
            Op::CollectivePermute(_) => "collective_permute",
            _ => continue,
        };
        let shape = local.ty(node.results[0]).shape.clone();
        rows.push((node.phase.name().to_string(), kind.to_string(), node.path.clone(), shape));
    }
    rows
}

fn counts(partitioned: &Partitioned) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (phase, kind, path, shape) in listing(partitioned) {
        println!("{phase:12} {kind:16} {path} {shape:?}");
        *counts.entry(format!("{phase} {kind}")).or_insert(0) += 1;
    }
    println!("{counts:?}");
    counts
}

#[test]
fn sequence_parallel() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    counts(&planned(&gpt(2), &mesh, Variant { sequence_parallel: true, ..Variant::default() }).1);
}

#[test]
fn fully_sharded() {
    let mesh = Mesh::new("mesh", &[("fsdp", 2)]);
    counts(&planned(&gpt(2), &mesh, Variant::default()).1);
}

#[test]
fn vocab_parallel() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    counts(&planned(&gpt(1), &mesh, Variant { vocab_parallel: true, ..Variant::default() }).1);
}

#[test]
fn fused_qkv() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let ModelConfig::Gpt(config) = gpt(1) else { unreachable!() };
    let config = ModelConfig::Gpt(GptConfig { fused_qkv: true, kv_heads: Some(2), ..config });
    counts(&planned(&config, &mesh, Variant::default()).1);
}
