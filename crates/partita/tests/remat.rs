//! Computing layers again in the backward pass: the same numbers to the bit, in less memory.

use partita::commands::show::{Memory, memory};
use partita::compile::{self, Build, Planned};
use partita::config::Config;
use partita::feeds::random_feed;
use partita::play::{player, tensor_data, with_batch};
use partita_ir::{Graph, remat};
use partita_runtime::{Cpu, RunnerOptions};

const VOCAB: usize = 64;

/// A model of `layers` layers, planned; each layer computed again where `again` says so.
fn planned(name: &str, layers: usize, again: bool, overrides: &[&str]) -> (Config, Planned) {
    let sizes = [format!("model.layers={layers}"), format!("model.vocab={VOCAB}")];
    let overrides = ["mesh.shape=dp=1"].iter().chain(overrides).map(|item| item.to_string());
    let config = Config::load(name, &sizes.into_iter().chain(overrides).collect::<Vec<_>>())
        .unwrap_or_else(|error| panic!("{error}"));
    let build = Build::from_config(&config);
    let mut model = compile::model(&config, &build).unwrap();
    if again {
        (0..layers).for_each(|layer| mark_layer(&mut model.forward, layer));
    }
    let mesh = compile::mesh(&config).unwrap();
    let planned =
        compile::plan_step(&config, &model, &mesh, &build).unwrap_or_else(|error| panic!("{error}"));
    (config, planned)
}

fn mark_layer(forward: &mut Graph, layer: usize) {
    let prefix = format!("layers.{layer}");
    let is_inside =
        |path: &str| path.strip_prefix(&prefix).is_some_and(|p| p.is_empty() || p.starts_with('.'));
    let nodes: Vec<_> = forward.node_ids().filter(|&id| is_inside(&forward.node(id).path)).collect();
    remat::mark(forward, nodes).unwrap();
}

/// Loss and gradient norm of a few steps.
fn steps(name: &str, again: bool, overrides: &[&str]) -> Vec<(u64, u64)> {
    let (config, planned) = planned(name, 2, again, overrides);
    let model = compile::model(&config, &Build::from_config(&config)).unwrap();
    let mut player =
        player(&planned.partitioned, &planned.pieces, config.train.seed, RunnerOptions::default()).unwrap();
    for (name, literal) in model.initial(config.train.seed) {
        player.set_tensor(&name, &tensor_data(&literal)).unwrap();
    }
    let step = |number: u64| {
        let batch = random_feed(&model, VOCAB, number, 0.0);
        with_batch(&batch, |tensors| player.step(tensors, 1e-2)).unwrap();
        let bits = |name: &str| player.runner().read_number(0, name).unwrap().to_bits();
        (bits("loss"), bits("grad_norm"))
    };
    (0..4).map(step).collect()
}

#[test]
fn losses_are_the_same_to_the_bit() {
    let sizes = ["model.dim=32", "model.heads=4", "model.sequence=16", "train.batch=4", "model.dropout=0.1"];
    let forms: [&[&str]; 6] = [
        &[],
        &["mesh.shape=tp=2"],
        &["mesh.shape=dp=2"],
        &["mesh.shape=dp=2", "train.microbatches=2", "model.kv_heads=2"],
        &["mesh.shape=tp=2", "plan.sequence_parallel=true"],
        &["mesh.shape=fsdp=2,tp=2"],
    ];
    for form in forms {
        let overrides = [&sizes, form].concat();
        let expected = steps("gpt", false, &overrides);
        assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "{form:?}: it learns");
        assert_eq!(steps("gpt", true, &overrides), expected, "{form:?}");
    }
}

const BATCH: usize = 4;
const SEQUENCE: usize = 128;
const DIM: usize = 32;
const HEADS: usize = 4;

/// What a rank holds at its peak.
fn held(layers: usize, again: bool, overrides: &[&str]) -> Memory {
    let sizes = [
        format!("model.dim={DIM}"),
        format!("model.heads={HEADS}"),
        format!("model.sequence={SEQUENCE}"),
        format!("train.batch={BATCH}"),
    ];
    let overrides: Vec<&str> = sizes.iter().map(String::as_str).chain(overrides.iter().copied()).collect();
    let set = compile::lower(&planned("gpt", layers, again, &overrides).1, &Cpu).unwrap();
    memory(&set)[0]
}

#[test]
fn a_layer_keeps_its_input_alone() {
    for (again, what) in [(false, "plain"), (true, "again")] {
        let all: Vec<Memory> = (1..=5).map(|layers| held(layers, again, &["model.dropout=0.1"])).collect();
        for pair in all.windows(2) {
            println!("{what}: {} {:?}", pair[1].activations - pair[0].activations, pair[1]);
        }
    }
    println!("stream {}", BATCH * SEQUENCE * DIM * 4);
}
