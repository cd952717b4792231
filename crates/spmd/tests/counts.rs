//! How many collectives whole models need, asserted exactly: they follow from layouts, so a change here is a change
//! of what users pay.

use partita_base::DType;
use partita_ir::{Annotation, Graph, Op, Phase, Role, ValueId};
use partita_mesh::{Mesh, Sharding};
use partita_nn::{GptConfig, ModelConfig, Optimizer, StepOptions, train_step};
use partita_spmd::{Options, Partitioned, partition};
use std::collections::BTreeMap;

fn pin(graph: &mut Graph, value: ValueId, sharding: Sharding) {
    let open = vec![false; sharding.dims.len()];
    graph.value_mut(value).annotation =
        Some(Annotation { mesh: 0, sharding, open, replicated: vec![], origin: "test".into() });
}

/// Megatron's layout by hand: q, k, v and up column-wise, o and down row-wise.
fn megatron(graph: &mut Graph, mesh: &Mesh) {
    let tp = mesh.axis_named("tp");
    let data: Vec<_> = ["dp", "fsdp"].iter().filter_map(|a| mesh.axis_named(a)).collect();
    for input in graph.inputs.clone() {
        let value = graph.value(input).clone();
        let rank = value.ty.rank();
        let mut sharding = Sharding::replicated(rank);
        match value.role {
            Role::Input if rank > 0 => sharding = sharding.with_dim(0, data.clone()),
            Role::Param => {
                let module = value.name.rsplit_once('.').map_or("", |m| m.0);
                let leaf = module.rsplit('.').next().unwrap_or("");
                let bias = value.name.ends_with(".bias");
                match leaf {
                    "q_proj" | "k_proj" | "v_proj" | "up_proj" => sharding = sharding.with_dim(0, tp),
                    "o_proj" | "down_proj" if !bias => sharding = sharding.with_dim(1, tp),
                    _ => {}
                }
            }
            _ => continue,
        }
        pin(graph, input, sharding);
    }
}

fn kind(op: &Op) -> Option<&'static str> {
    match op {
        Op::AllReduce(_) => Some("all_reduce"),
        Op::AllGather(_) => Some("all_gather"),
        Op::ReduceScatter(_) => Some("reduce_scatter"),
        Op::AllToAll(_) => Some("all_to_all"),
        Op::CollectivePermute(_) => Some("collective_permute"),
        _ => None,
    }
}

fn counts(partitioned: &Partitioned) -> BTreeMap<(&'static str, String), usize> {
    let mut counts = BTreeMap::new();
    for node in &partitioned.locals[0].nodes {
        if let Some(kind) = kind(&node.op) {
            let phase = match node.phase {
                Phase::Forward => "forward",
                Phase::InputGrad => "input_grad",
                Phase::WeightGrad => "weight_grad",
                Phase::Update => "update",
            };
            *counts.entry((phase, kind.to_string())).or_insert(0) += 1;
        }
    }
    counts
}

fn gpt_step(layers: usize) -> Graph {
    let config = GptConfig {
        vocab: 32,
        dim: 16,
        layers,
        heads: 4,
        sequence: 8,
        dropout: 0.0,
        tied: false,
        ..GptConfig::default()
    };
    let model = ModelConfig::Gpt(config).build(4, DType::F64, true).expect("valid config");
    train_step(&model.forward, &StepOptions::new(Optimizer::adamw())).expect("differentiable")
}

#[test]
fn tensor_parallel_gpt_has_two_all_reduces_per_layer_and_direction() {
    let mesh = Mesh::new("mesh", &[("tp", 2)]);
    let mut graph = gpt_step(3);
    megatron(&mut graph, &mesh);
    let partitioned = partition(&graph, &mesh, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    for node in &partitioned.locals[0].nodes {
        if let Some(kind) = kind(&node.op) {
            println!(
                "{} {:?} {} {:?}",
                kind,
                node.phase,
                node.path,
                partitioned.locals[0].ty(node.results[0])
            );
        }
    }
    let counts = counts(&partitioned);
    let all_reduce = |phase: &'static str| counts.get(&(phase, "all_reduce".into())).copied().unwrap_or(0);
    assert_eq!(all_reduce("forward"), 6);
    assert_eq!(all_reduce("input_grad"), 6);
    assert_eq!(all_reduce("weight_grad"), 0);
}

#[test]
fn data_parallel_adds_only_sums_of_weight_gradients_and_scalars() {
    let mesh = Mesh::new("mesh", &[("dp", 2), ("tp", 2)]);
    let mut graph = gpt_step(2);
    megatron(&mut graph, &mesh);
    let partitioned = partition(&graph, &mesh, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    for node in &partitioned.locals[0].nodes {
        if let Some(kind) = kind(&node.op) {
            println!("{kind} {:?} {} {:?}", node.phase, node.path, partitioned.locals[0].ty(node.results[0]));
        }
    }
    println!("{:?} {}", counts(&partitioned), graph.nodes.len());
}
