//! Steps in pipeline stages from a model and a plan, for the tests of pipelines.

use partita::execution::CpuStep;
use partita_base::{DType, Result};
use partita_cost::{Cluster, Level, Link};
use partita_ir::{ClassGraph, Literal, Registry};
use partita_mesh::{BoxMove, Mesh};
use partita_nn::{BertConfig, GptConfig, LlamaConfig, MlpConfig, Model, ModelConfig, Optimizer, StepOptions};
use partita_pipeline::{Cut, Order, Sink, Source, StageGraph, Timetable};
use partita_program::{Edge, Evaluation, LowerOptions, ProgramSet, Reference, Stage, Stages, lower_stages};
use partita_schedule::verify::{Report, Unwatched, Verification};
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Built, Plan, ReadyOptions, ready_plan};

/// A small model of the zoo in f64: `layers` blocks, 16 features, 8 tokens.
pub fn model(name: &str, layers: usize, batch: usize) -> Model {
    let (vocab, dim, heads, sequence) = (20, 16, 2, 8);
    let config = match name {
        "gpt" => {
            let dropout = 0.1;
            ModelConfig::Gpt(GptConfig {
                vocab,
                dim,
                layers,
                heads,
                sequence,
                dropout,
                ..GptConfig::default()
            })
        }
        "llama" => {
            ModelConfig::Llama(LlamaConfig { vocab, dim, layers, heads, sequence, ..LlamaConfig::default() })
        }
        "bert" => {
            ModelConfig::Bert(BertConfig { vocab, dim, layers, heads, sequence, ..BertConfig::default() })
        }
        "mlp" => {
            ModelConfig::Mlp(MlpConfig { dims: [vec![8; layers], vec![4]].concat(), ..MlpConfig::default() })
        }
        other => panic!("no model is called {other}"),
    };
    config.build(batch, DType::F64, true).unwrap_or_else(|error| panic!("{error}"))
}

pub fn mesh(text: &str) -> Mesh {
    Mesh::parse(text, None).unwrap_or_else(|error| panic!("{error}"))
}

/// Pairs of ranks with fast links among them, slow ones to all others.
pub fn pairs() -> Cluster {
    let mut cluster = Cluster::default();
    let link = |bytes_per_s| Link { latency_s: 1e-9, bytes_per_s, ..cluster.levels[0].link };
    cluster.levels = vec![
        Level { ranks: Some(2), link: link(1e12), links: None },
        Level { ranks: None, link: link(1e6), links: None },
    ];
    cluster
}

/// AdamW with clipping, under a timetable.
pub fn options(microbatches: usize, timetable: &str) -> BuildOptions {
    let mut step = StepOptions::new(Optimizer::adamw());
    step.clip_grad_norm = Some(1.0);
    let timetable = Order::named(timetable).unwrap_or_else(|error| panic!("{error}"));
    BuildOptions { microbatches, timetable, ..BuildOptions::new(step) }
}

/// The ready plan of a bundled model.
pub fn plan(name: &str, model: &Model, mesh: &Mesh) -> Plan {
    ready_plan(name, &model.forward, mesh, &ReadyOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// The training step of a model on a mesh.
pub fn built(model: &Model, plan: &Plan, mesh: &Mesh, options: &BuildOptions) -> Result<Built> {
    let context = BuildContext { registry: &Registry::default(), runner: &CpuStep::default() };
    BuildRequest::new(model, plan, mesh, options, context).build()
}

/// Compares the step on the CPU device with one device.
pub fn verify(model: &Model, plan: &Plan, mesh: &Mesh, options: &BuildOptions) -> Result<Report> {
    let verification = Verification {
        model,
        precise: None,
        options: &options.clone().for_verification(),
        context: BuildContext { registry: &Registry::default(), runner: &CpuStep::default() },
        seed: 7,
        learning_rate: 1e-3,
        watcher: &Unwatched,
    };
    Ok(verification.run(plan, mesh)?.report)
}

/// The programs of a step that is cut into slices of one rank each.
pub fn programs(cut: &Cut, timetable: &Timetable, options: &LowerOptions) -> Result<ProgramSet> {
    let class = |of: &StageGraph| [ClassGraph { graph: of.graph.clone(), ranks: vec![0] }];
    let classes: Vec<[ClassGraph; 1]> = cut.stages.iter().map(class).collect();
    let stage = |(number, of): (usize, &StageGraph)| {
        let edge_in = |(position, source): (usize, &Source)| match source {
            Source::Edge(edge) => Some((position, *edge)),
            Source::Step(_) => None,
        };
        let edge_out = |(position, sink): (usize, &Sink)| match sink {
            Sink::Edge(edge) => Some((position, *edge)),
            Sink::Step(_) => None,
        };
        Stage {
            classes: &classes[number],
            ranks: vec![number],
            received: of.inputs.iter().enumerate().filter_map(edge_in).collect(),
            sent: of.outputs.iter().enumerate().filter_map(edge_out).collect(),
        }
    };
    let edge = |edge: &partita_pipeline::Edge| {
        let from = &cut.stages[edge.from.0].graph;
        let extents = &from.ty(from.outputs[edge.from.1]).shape;
        let start = vec![0; extents.len()];
        let (source_start, target_start) = (start.clone(), start);
        let moved = BoxMove { source: 0, target: 1, source_start, target_start, extents: extents.clone() };
        Edge { name: edge.name.clone(), members: [edge.from.0, edge.to.0].into(), boxes: [moved].into() }
    };
    let stages = Stages {
        stages: cut.stages.iter().enumerate().map(stage).collect(),
        edges: cut.edges.iter().map(edge).collect(),
        timetable: Some(timetable),
        offload: partita_program::Offload::default(),
    };
    lower_stages(&stages, options, &Evaluation)
}

/// Runs a cut step on the reference executor; the outputs of the step by position.
pub fn run(cut: &Cut, set: &ProgramSet, inputs: &[Literal], outputs: usize) -> Result<Vec<Literal>> {
    let mut reference = Reference::new(set);
    for (rank, stage) in cut.stages.iter().enumerate() {
        for (position, source) in stage.inputs.iter().enumerate() {
            if let Source::Step(of_step) = source {
                reference.write_input(rank, position, &inputs[*of_step])?;
            }
        }
    }
    reference.step()?;
    let mut found: Vec<Option<Literal>> = vec![None; outputs];
    for (rank, stage) in cut.stages.iter().enumerate() {
        for (position, sink) in stage.outputs.iter().enumerate() {
            if let Sink::Step(of_step) = sink {
                let value = reference.output(rank, position);
                // What several stages return is the same on all.
                assert!(found[*of_step].as_ref().is_none_or(|other| *other == value));
                found[*of_step] = Some(value);
            }
        }
    }
    Ok(found.into_iter().map(|output| output.expect("a stage returns it")).collect())
}
