//! Measures the partitioning of a GPT training step: `cargo run --release -p partita-spmd --example
//! timing -- [layers] [mesh]`, 24 layers on `dp=2,tp=2` by default.

use partita_base::DType;
use partita_ir::{Annotation, Graph, Role};
use partita_mesh::{Mesh, Sharding};
use partita_nn::{GptConfig, ModelConfig, Optimizer, StepOptions, train_step};
use partita_spmd::{Options, partition, propagate, virtual_ranks};
use std::time::Instant;

/// Data parallel over `dp`, Megatron column and row sharding over `tp`, and all parameters over
/// `fsdp`, if the mesh has these axes.
fn pin(graph: &mut Graph, mesh: &Mesh) {
    for input in graph.inputs.clone() {
        let value = graph.value(input);
        let rank = value.ty.rank();
        let mut sharding = Sharding::replicated(rank);
        let leaf =
            value.name.rsplit_once('.').map_or("", |(module, _)| module.rsplit('.').next().unwrap_or(""));
        let tensor_dim = match leaf {
            "q_proj" | "k_proj" | "v_proj" | "up_proj" => Some(0),
            "o_proj" | "down_proj" if rank == 2 => Some(1),
            _ => None,
        };
        match value.role {
            Role::Input if rank > 0 => sharding = sharding.with_dim(0, mesh.axis_named("dp")),
            Role::Param => {
                if let (Some(dim), Some(tp)) = (tensor_dim, mesh.axis_named("tp")) {
                    sharding = sharding.with_dim(dim, [tp]);
                }
            }
            _ => continue,
        }
        let open = vec![false; rank];
        let origin = "timing".to_string();
        let annotation = Annotation { mesh: 0, sharding, open, replicated: vec![], origin };
        graph.value_mut(input).annotation = Some(annotation);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let layers = arguments.first().map_or(24, |a| a.parse().expect("a number of layers"));
    let mesh = Mesh::parse(arguments.get(1).map_or("dp=2,tp=2", String::as_str), None).expect("a mesh");
    let config = GptConfig { layers, dim: 64, heads: 4, sequence: 32, vocab: 128, ..GptConfig::default() };
    let model = ModelConfig::Gpt(config).build(8, DType::F32, true).expect("valid config");
    let mut graph =
        train_step(&model.forward, &StepOptions::new(Optimizer::adamw())).expect("differentiable");
    pin(&mut graph, &mesh);
    println!("{} nodes on {mesh}", graph.nodes.len());
    let start = Instant::now();
    propagate(&graph, &mesh).expect("layouts fit");
    println!("propagate  {:6.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let partitioned = partition(&graph, &mesh, &Options::default()).expect("partitions");
    println!(
        "partition  {:6.2} s, {} local nodes, {} classes",
        start.elapsed().as_secs_f64(),
        partitioned.locals[0].nodes.len(),
        partitioned.locals.len()
    );
    let start = Instant::now();
    virtual_ranks::rank_graphs(&partitioned).expect("specialises");
    println!("specialise {:6.2} s", start.elapsed().as_secs_f64());
}
