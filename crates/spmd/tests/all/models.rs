//! The number of collectives of whole models, asserted exactly: it follows from layouts, so a
//! change here changes the cost for users.

use crate::common::check_uniform;
use partita_base::DType;
use partita_ir::text::{PrintOptions, Ranks, parse, print_with};
use partita_ir::{Annotation, Graph, Literal, Op, Phase, Role, TensorType, ValueId, evaluate};
use partita_mesh::{Mesh, Sharding};
use partita_nn::{
    BertConfig, GptConfig, LlamaConfig, MlpConfig, ModelConfig, Optimizer, StepOptions, T5Config, UnetConfig,
    VitConfig, WideResNetConfig, train_step,
};
use partita_spmd::{Options, Partitioned, partition, uniform, virtual_ranks};
use std::collections::BTreeMap;

fn pin(graph: &mut Graph, value: ValueId, sharding: Sharding) {
    let open = vec![false; sharding.dims.len()];
    graph.value_mut(value).annotation =
        Some(Annotation { mesh: 0, sharding, open, replicated: vec![], origin: "test".into() });
}

/// Megatron's layout by hand: q, k, v and up column-wise, o and down row-wise; images by height over `sp`.
fn megatron(graph: &mut Graph, mesh: &Mesh) {
    let tp = mesh.axis_named("tp");
    let data: Vec<_> = ["dp", "fsdp"].iter().filter_map(|a| mesh.axis_named(a)).collect();
    let height = mesh.axis_named("sp");
    for input in graph.inputs.clone() {
        let value = graph.value(input).clone();
        let rank = value.ty.rank();
        let mut sharding = Sharding::replicated(rank);
        match value.role {
            Role::Input if rank == 4 => sharding = sharding.with_dim(0, data.clone()).with_dim(1, height),
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
    let counts = counts(&partitioned);
    // Two per layer over tp; the loss and the count of labels over dp.
    assert_eq!(counts[&("forward", "all_reduce".into())], 4 + 2);
    assert_eq!(counts[&("input_grad", "all_reduce".into())], 4);
    // One per parameter.
    assert_eq!(counts[&("weight_grad", "all_reduce".into())], graph.params().len());
    assert_eq!(counts.keys().filter(|(_, kind)| kind != "all_reduce").count(), 0);
}

fn random(ty: &TensorType, seed: u64, below: f64) -> Literal {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let values = (0..ty.element_count()).map(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
        if ty.dtype.is_float() { unit - 0.5 } else { (unit * below).floor() }
    });
    Literal::from_f64(ty, values.collect::<Vec<_>>().into_iter())
}

fn check_step(config: &ModelConfig, mesh: &Mesh, optimizer: Optimizer) {
    let model = config.build(5, DType::F64, true).unwrap_or_else(|e| panic!("{e}"));
    let mut options = StepOptions::new(optimizer);
    options.output_gradients = true;
    options.clip_grad_norm = Some(1.0);
    let mut graph = train_step(&model.forward, &options).unwrap_or_else(|e| panic!("{e}"));
    let inputs: Vec<Literal> = graph
        .inputs
        .iter()
        .enumerate()
        .map(|(i, &v)| match (&graph.value(v).role, graph.value(v).name.as_str()) {
            (Role::StateOf(_), _) => Literal::zeros(graph.ty(v)),
            (_, "step") => Literal::scalar(DType::I64, 1.0),
            _ => random(graph.ty(v), i as u64, 30.0),
        })
        .collect();
    let expected = evaluate(&graph, &inputs).unwrap_or_else(|e| panic!("{e}"));
    megatron(&mut graph, mesh);
    let partitioned = partition(&graph, mesh, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let actual = virtual_ranks::interpret(&partitioned, &inputs).unwrap_or_else(|e| panic!("{e}"));
    for ((a, e), name) in actual.iter().zip(&expected).zip(&graph.output_names) {
        let (a, e) = (a.to_f64(), e.to_f64());
        let magnitude = e.iter().fold(1e-6f64, |m, v| m.max(v.abs()));
        let worst = a.iter().zip(&e).map(|(x, y)| (x - y).abs() / magnitude).fold(0.0, f64::max);
        assert!(worst < 1e-9, "{} on {mesh}: `{name}` is off by {worst:e}", config.name());
    }
    check_program(&partitioned, &inputs, &expected);
}

/// The one program of all ranks has the collectives of each rank's graph and no other, is plain StableHLO over replicas
/// that reads back as it was printed, and gives the numbers of one device.
fn check_program(partitioned: &Partitioned, inputs: &[Literal], expected: &[Literal]) {
    let mesh = &partitioned.mesh;
    let program = uniform(partitioned).unwrap_or_else(|e| panic!("{mesh}: {e}"));
    let collectives = |graph: &Graph| -> Vec<&'static str> {
        graph.nodes.iter().filter_map(|node| kind(&node.op)).collect()
    };
    assert_eq!(collectives(&program), collectives(&partitioned.locals[0]), "{mesh}");
    let options = PrintOptions { ranks: Some(Ranks::Replicas(mesh.rank_count())), ..PrintOptions::default() };
    let text = print_with(&program, &options);
    for foreign in
        ["stablehlo.composite", "partition_id", "channel_handle", "use_global_device_ids", ".extents"]
    {
        assert!(!text.contains(foreign), "{mesh}: {foreign}");
    }
    let read = parse(&text).unwrap_or_else(|e| panic!("{mesh}: {e}"));
    assert!(print_with(&read, &options) == text, "{mesh}: what was read prints as something else");
    check_uniform(partitioned, &read, inputs, expected)
        .unwrap_or_else(|(code, e)| panic!("{mesh}: {code}: {e}"));
}

#[test]
fn a_planned_step_equals_one_device_for_every_model_and_mesh() {
    let small = |name: &str| -> ModelConfig {
        match ModelConfig::from_name(name).expect("known") {
            ModelConfig::Gpt(c) => ModelConfig::Gpt(GptConfig {
                vocab: 31,
                dim: 16,
                layers: 1,
                heads: 4,
                sequence: 6,
                dropout: 0.1,
                ..c
            }),
            ModelConfig::Llama(c) => ModelConfig::Llama(LlamaConfig {
                vocab: 31,
                dim: 16,
                layers: 1,
                heads: 4,
                kv_heads: Some(2),
                sequence: 6,
                ..c
            }),
            ModelConfig::Bert(c) => ModelConfig::Bert(BertConfig {
                vocab: 31,
                dim: 16,
                layers: 1,
                heads: 4,
                sequence: 6,
                dropout: 0.1,
                ..c
            }),
            ModelConfig::Mlp(c) => ModelConfig::Mlp(MlpConfig { dims: vec![6, 10, 6], ..c }),
            other => other,
        }
    };
    for name in ["mlp", "gpt", "llama", "bert"] {
        for axes in [&[("tp", 2)][..], &[("dp", 4)], &[("dp", 2), ("tp", 2)], &[("tp", 3)], &[("dp", 3)]] {
            check_step(&small(name), &Mesh::new("mesh", axes), Optimizer::adamw());
        }
    }
}

/// Halos, kernels' gradients and pools of whole models, on the ranks' own graphs and in the one program of all ranks.
#[test]
fn a_step_on_shards_of_images_equals_one_device() {
    let resnet = WideResNetConfig { dim: 4, classes: 30, stem: 7, ..WideResNetConfig::default() };
    let resnet = ModelConfig::WideResNet(WideResNetConfig { image: 32, ..resnet });
    let unet = ModelConfig::Unet(UnetConfig { dim: 4, groups: 2, ..UnetConfig::default() });
    let vit =
        ModelConfig::Vit(VitConfig { dim: 8, layers: 1, heads: 2, classes: 30, ..VitConfig::default() });
    for config in [resnet, unet, vit] {
        for axes in [&[("sp", 2)][..], &[("sp", 4)], &[("sp", 2), ("tp", 2)]] {
            // Adam would divide the rounding of gradients that are zero in exact arithmetic by itself.
            check_step(&config, &Mesh::new("mesh", axes), Optimizer::sgd());
        }
    }
}

/// Cross attention, whose memory all layers of the decoder read, and positions that all layers share.
#[test]
fn a_step_of_an_encoder_and_a_decoder_equals_one_device() {
    let t5 = T5Config {
        vocab: 31,
        dim: 6,
        layers: 2,
        heads: 4,
        head_features: 2,
        hidden: 8,
        sequence: 7,
        buckets: 8,
        distance: 10,
        ..T5Config::default()
    };
    for axes in [&[("tp", 2)][..], &[("dp", 2), ("tp", 2)], &[("tp", 3)], &[("dp", 3)]] {
        check_step(&ModelConfig::T5(t5.clone()), &Mesh::new("mesh", axes), Optimizer::adamw());
    }
}
