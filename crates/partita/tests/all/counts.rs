//! How often ranks meet in a step, exactly.
//!
//! No collective is written anywhere: each number below follows from layouts. A product whose contracted dimension is
//! cut leaves partial sums, which an all-reduce completes; a value cut one way and read another is gathered or
//! scattered. So a column-parallel layer followed by a row-parallel one costs one all-reduce forward (the second layer's
//! partial sums) and one backward (the first layer's input gradient), whatever lies between; a transformer layer has two
//! such pairs; cutting the residual stream along the sequence turns each all-reduce into a reduce-scatter and an
//! all-gather; cutting stored parameters gathers each block once per phase. Where a number holds before collectives are
//! joined into buckets (`logical`), it is the number of tensors.

use crate::session;
use partita::Session;
use partita_base::DType;
use partita_ir::{ClassGraph, Graph, Phase};
use partita_mesh::Mesh;
use partita_nn::{Context, Linear, Model};
use partita_program::{
    Action, CollectiveKind, Counts, PhaseCounts, Program, ProgramSet, counts, counts_of_graph,
};
use partita_runtime::Cpu;
use partita_schedule::{ApplyOptions, Built, Plan, apply};
use partita_spmd::{Options, partition, specialise};

fn lowered(session: &Session, input_gradient: bool) -> (Built, ProgramSet) {
    let session = if input_gradient { &session.clone().with_input_gradient() } else { session };
    let planned = session.build().unwrap_or_else(|error| panic!("{error}"));
    let set = session.lower(&planned).unwrap_or_else(|error| panic!("{error}"));
    (planned, set)
}

const BATCH: usize = 8;
const SEQUENCE: usize = 64;
const DIM: usize = 32;
/// Bytes of the residual stream.
const STREAM_BYTES: usize = BATCH * SEQUENCE * DIM * 4;
/// Parameters of a layer: six matrices and two norms, each with a bias.
const PER_LAYER: usize = 16;
/// Parameters around the layers: two embeddings, the last norm's two, the head.
const AROUND: usize = 5;

/// A GPT of `layers` layers: untied, without clipping and dropout.
fn gpt(layers: usize, overrides: &[&str]) -> (Built, ProgramSet) {
    let sizes = [
        format!("model.layers={layers}"),
        format!("train.batch={BATCH}"),
        format!("model.sequence={SEQUENCE}"),
        format!("model.dim={DIM}"),
    ];
    let mut all: Vec<&str> = sizes.iter().map(String::as_str).collect();
    all.extend(["model.heads=4", "model.vocab=64", "model.dropout=0", "model.tied=false"]);
    all.push("optimizer.clip_grad_norm=0");
    all.extend(overrides);
    lowered(&session("gpt", &all), false)
}

/// (kind, meetings, tensors) of the kinds that occur.
pub fn seen(phase: &PhaseCounts) -> Vec<(&'static str, usize, usize)> {
    let used = phase.kinds.iter().filter(|(_, of)| of.count > 0);
    used.map(|(&kind, of)| (kind, of.count, of.logical)).collect()
}

fn all_reduce(phase: &PhaseCounts) -> usize {
    phase.of(CollectiveKind::AllReduce).count
}

#[test]
fn a_column_and_a_row_parallel_layer_meet_once_forward_and_once_backward_for_the_input() {
    let session =
        session("mlp", &["model.dims=[1024,4096,1024]", "mesh.shape=tp=2", &format!("train.batch={BATCH}")]);
    let without = counts(&lowered(&session, false).1, 0);
    assert_eq!(seen(&without.forward), [("all_reduce", 1, 1)]);
    assert_eq!(without.forward.total().bytes, BATCH * 1024 * 4, "the second layer's output");
    assert_eq!(seen(&without.backward), []);
    let with = counts(&lowered(&session, true).1, 0);
    assert_eq!(seen(&with.forward), [("all_reduce", 1, 1)]);
    assert_eq!(seen(&with.backward), [("all_reduce", 1, 1)]);
    assert_eq!(with.backward.total().bytes, BATCH * 1024 * 4, "the first layer's input gradient");
    // The norm of what is cut, both weights and the first bias: their squares add up before ranks meet.
    for counts in [without, with] {
        assert_eq!(seen(&counts.update), [("all_reduce", 1, 1)]);
    }
}

#[test]
fn a_tensor_parallel_layer_meets_twice_each_way() {
    let forms: [&[&str]; 4] = [
        &[],
        &["model.fused_qkv=true"],
        &["model.kv_heads=2"],
        // Pieces of 32, 16 and 16 rows.
        &["model.fused_qkv=true", "model.kv_heads=2"],
    ];
    for layers in [1, 2, 3] {
        for form in forms {
            let counts = counts(&gpt(layers, &[&["mesh.shape=tp=2"], form].concat()).1, 0);
            assert_eq!(seen(&counts.forward), [("all_reduce", 2 * layers, 2 * layers)], "{form:?}");
            assert_eq!(seen(&counts.backward), [("all_reduce", 2 * layers, 2 * layers)], "{form:?}");
            assert_eq!(counts.forward.total().bytes, 2 * layers * STREAM_BYTES);
            assert_eq!(counts.backward.total().bytes, 2 * layers * STREAM_BYTES);
            // q, k, v, up with their biases, o and down without: a scalar each, in one meeting.
            assert_eq!(seen(&counts.update), [("all_reduce", 1, 10 * layers)], "{form:?}");
            assert_eq!(counts.update.total().bytes, 4 * 10 * layers);
        }
    }
}

#[test]
fn sequence_parallel_scatters_and_gathers_instead_and_holds_less() {
    for layers in [1, 2, 3] {
        let (_, plain) = gpt(layers, &["mesh.shape=tp=2"]);
        let (_, cut) = gpt(layers, &["mesh.shape=tp=2", "plan.sequence_parallel=true"]);
        let counts = counts(&cut, 0);
        assert_eq!(
            seen(&counts.forward),
            // What is reduced is the loss: two scalars, since each rank sees part of the sequence.
            [
                ("all_reduce", 1, 2),
                ("all_gather", 2 * layers, 2 * layers),
                ("reduce_scatter", 2 * layers, 2 * layers)
            ]
        );
        assert_eq!(counts.forward.of(CollectiveKind::AllReduce).bytes, 2 * 4);
        let gradients = 6 * layers + 4;
        assert_eq!(
            seen(&counts.backward),
            [
                // Gradients of what is whole on every rank but sees part of the sequence: four of norms and the two
                // biases after a scatter in each layer; token embedding, last norm, head.
                ("all_reduce", 1, gradients),
                // The cotangents of both row-parallel layers, and once more what entered both column-parallel ones:
                // holding it would cost what cutting saves. Only weight gradients read that, so it travels apart, once a
                // layer. The gradient of the positions is cut and kept whole.
                ("all_gather", 3 * layers + 1, 4 * layers + 1),
                ("reduce_scatter", 2 * layers, 2 * layers),
            ]
        );
        let reduced = cut.collectives.iter().filter(|c| c.kind == CollectiveKind::AllReduce);
        let backward = reduced.filter(|c| c.phase.is_backward()).flat_map(|c| c.transfers.iter());
        assert!(backward.into_iter().all(|t| t.what.starts_with("grad.")), "no activation is all-reduced");
        let (whole, less) = (plain.programs[0].arena_bytes, cut.programs[0].arena_bytes);
        assert!(less < whole, "{layers} layers: {less} bytes with sequence parallel, {whole} without");
    }
}

#[test]
fn vocabulary_parallel_adds_three_meetings_forward_and_one_backward() {
    for layers in [1, 2] {
        let counts = counts(&gpt(layers, &["mesh.shape=tp=2", "plan.vocab_parallel=true"]).1, 0);
        // The embedding's rows from the rank that has them; the loss's maximum, then its sum of exponentials together
        // with the label's logit.
        assert_eq!(seen(&counts.forward), [("all_reduce", 2 * layers + 3, 2 * layers + 4)]);
        // The head's input gradient. The loss's gradient needs no sums but those of the forward pass.
        assert_eq!(seen(&counts.backward), [("all_reduce", 2 * layers + 1, 2 * layers + 1)]);
        let loss = 3 * BATCH * SEQUENCE * 4;
        assert_eq!(counts.forward.total().bytes, (2 * layers + 1) * STREAM_BYTES + loss);
        assert_eq!(counts.backward.total().bytes, (2 * layers + 1) * STREAM_BYTES);
    }
}

/// The block a module path belongs to: `layers.3` of `layers.3.attn.q_proj.weight`.
fn block(path: &str) -> String {
    let parts: Vec<&str> = path.split('.').collect();
    if parts[0] == "layers" { parts[..2].join(".") } else { parts[0].to_string() }
}

/// For each bucket of this kind and part of the step, the blocks of what travels in it.
fn buckets(set: &ProgramSet, kind: CollectiveKind, backward: bool) -> Vec<Vec<String>> {
    let of = set.collectives.iter().filter(|c| {
        c.kind == kind
            && c.members.contains(&0)
            && c.phase.is_backward() == backward
            && c.phase != Phase::Update
    });
    let blocks = |c: &partita_program::Collective| {
        let mut blocks: Vec<String> =
            c.transfers.iter().map(|t| block(t.what.strip_prefix("grad.").unwrap_or(&t.what))).collect();
        blocks.dedup();
        blocks
    };
    let mut all: Vec<Vec<String>> = of.map(blocks).collect();
    all.sort();
    all
}

#[test]
fn cut_parameters_are_gathered_once_per_block_and_phase() {
    for (mesh, layers) in [("fsdp=2", 1), ("fsdp=2", 2), ("fsdp=2", 3), ("fsdp=4", 2)] {
        let (_, set) = gpt(layers, &[&format!("mesh.shape={mesh}")]);
        let counts = counts(&set, 0);
        let parameters = PER_LAYER * layers + AROUND;
        assert_eq!(
            seen(&counts.forward),
            // The loss and its count; the blocks, both embeddings, the last norm, the head.
            [("all_reduce", 1, 2), ("all_gather", layers + 4, parameters)]
        );
        assert_eq!(
            seen(&counts.backward),
            // Embeddings and the biases of linear layers are not read again, and the head is still there.
            [("all_gather", layers + 1, 10 * layers + 2), ("reduce_scatter", layers + 4, parameters)]
        );
        assert_eq!(seen(&counts.update), [("all_reduce", 1, 1)], "one sum over all shards");
        let mut around =
            vec!["embed_positions".to_string(), "embed_tokens".into(), "lm_head".into(), "norm".into()];
        around.extend((0..layers).map(|layer| format!("layers.{layer}")));
        around.sort();
        let forward: Vec<Vec<String>> = around.iter().map(|block| vec![block.clone()]).collect();
        let again: Vec<Vec<String>> = forward
            .iter()
            .filter(|block| block[0] == "norm" || block[0].starts_with("layers"))
            .cloned()
            .collect();
        assert_eq!(buckets(&set, CollectiveKind::AllGather, false), forward);
        assert_eq!(buckets(&set, CollectiveKind::AllGather, true), again);
        assert_eq!(buckets(&set, CollectiveKind::ReduceScatter, true), forward);
    }
}

/// The backward pass of a microbatch follows its forward pass at once on the last stage of 1F1B. In GPipe those of other
/// microbatches lie between.
#[test]
fn a_tied_head_is_gathered_once_where_its_backward_pass_follows_at_once() {
    let (vocab, microbatches) = (64, 3);
    let weight_bytes = vocab * DIM * 4;
    for (mesh, timetable, again) in [
        ("pp=2,fsdp=2", "1f1b", 0),
        ("pp=2,fsdp=2", "zb-h1", 0),
        ("pp=2,fsdp=2", "gpipe", 3),
        ("fsdp=2", "1f1b", 0),
    ] {
        let lines = [
            &format!("mesh.shape='{mesh}'") as &str,
            &format!("train.timetable='{timetable}'"),
            &format!("train.microbatches={microbatches}"),
            "model.tied=true",
            "train.batch=9",
        ];
        let (_, set) = gpt(2, &lines);
        let program = set.programs.last().unwrap();
        let heads = |backward: bool| -> Vec<usize> {
            let starts = program.instructions.iter().filter_map(|instruction| match &instruction.action {
                Action::Start(start) if instruction.origin.phase.is_backward() == backward => Some(start),
                _ => None,
            });
            let is_gather = |kind| kind == CollectiveKind::AllGather;
            let gathers = starts.filter(|start| is_gather(set.collectives[start.collective.index()].kind));
            let bytes = gathers.flat_map(|start| start.outputs.iter().map(|&out| program.buffer(out).bytes));
            bytes.filter(|&bytes| bytes == weight_bytes).collect()
        };
        // On one stage the embedding reads the same weight.
        let embeddings = if mesh == "fsdp=2" { microbatches } else { 0 };
        assert_eq!(heads(false).len(), microbatches + embeddings, "{mesh} {timetable}");
        assert_eq!(heads(true).len(), again, "{mesh} {timetable}");
    }
}

/// The most bytes of gathered parameters that are live at one instruction, and the bytes of each block's.
fn gathered(set: &ProgramSet, program: &Program) -> (usize, Vec<usize>) {
    let mut live = vec![0usize; program.instructions.len()];
    let mut of_block: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for instruction in &program.instructions {
        let Action::Start(start) = &instruction.action else { continue };
        let collective = &set.collectives[start.collective.index()];
        if collective.kind != CollectiveKind::AllGather {
            continue;
        }
        for (transfer, &output) in collective.transfers.iter().zip(&start.outputs) {
            let buffer = program.buffer(output);
            live[buffer.first..=buffer.last].iter_mut().for_each(|bytes| *bytes += buffer.bytes);
            if instruction.origin.phase == Phase::Forward {
                *of_block.entry(block(&transfer.what)).or_default() += buffer.bytes;
            }
        }
    }
    (live.into_iter().max().unwrap_or(0), of_block.into_values().collect())
}

#[test]
fn no_more_than_two_blocks_of_gathered_parameters_are_held() {
    for mesh in ["fsdp=2", "fsdp=4"] {
        for layers in [1, 2, 4] {
            let (_, set) = gpt(layers, &[&format!("mesh.shape={mesh}")]);
            for program in &set.programs {
                let (most, mut blocks) = gathered(&set, program);
                blocks.sort();
                let two: usize = blocks.iter().rev().take(2).sum();
                assert!(most > 0 && most <= two, "{mesh}, {layers} layers: {most} of {blocks:?}");
            }
        }
    }
}

/// The local shapes of what gradients of `module`'s weight are summed up in over microbatches.
fn accumulators(program: &Program, module: &str) -> Vec<Vec<usize>> {
    let mut shapes = Vec::new();
    for instruction in &program.instructions {
        let origin = &instruction.origin;
        if let Action::Compute(compute) = &instruction.action
            && (origin.path.as_str(), origin.phase) == (module, Phase::WeightGrad)
            && matches!(origin.what.as_str(), "add" | "dot_general_add")
        {
            let shape = program.buffer(compute.outputs[0]).ty.shape.clone();
            if shape.len() == 2 {
                shapes.push(shape);
            }
        }
    }
    shapes
}

#[test]
fn zero1_sums_whole_gradients_and_zero2_pieces() {
    const MICROBATCHES: usize = 4;
    let of = |style: &str| {
        let overrides =
            ["mesh.shape=dp=2", &format!("train.microbatches={MICROBATCHES}"), &format!("plan.**={style}")];
        gpt(1, &overrides).1
    };
    let (zero1, zero2) = (of("zero1"), of("zero2"));
    let parameters = PER_LAYER + AROUND;
    let blocks = 5;
    // Zero1: one reduce-scatter of each gradient at the end. Zero2: one for each microbatch.
    assert_eq!(seen(&counts(&zero1, 0).backward), [("reduce_scatter", blocks, parameters)]);
    let times = |n: usize| n * MICROBATCHES;
    assert_eq!(seen(&counts(&zero2, 0).backward), [("reduce_scatter", times(blocks), times(parameters))]);
    let module = "layers.0.mlp.up_proj";
    assert_eq!(accumulators(&zero1.programs[0], module), vec![vec![128, 32]; MICROBATCHES - 1]);
    assert_eq!(accumulators(&zero2.programs[0], module), vec![vec![64, 32]; MICROBATCHES - 1]);
    // Both gather the parameters that the cut states have moved on.
    for set in [zero1, zero2] {
        let of = counts(&set, 0);
        assert_eq!(seen(&of.update), [("all_reduce", 1, 1), ("all_gather", blocks, parameters)]);
        // The number of labels over the whole batch, with the first loss; the other losses.
        assert_eq!(all_reduce(&of.forward), MICROBATCHES + 1);
    }
}

#[test]
fn a_microbatch_is_done_before_the_next_begins() {
    let (_, set) = gpt(2, &["mesh.shape=dp=2", "train.microbatches=4"]);
    for program in &set.programs {
        let place = |wanted: usize, backward: bool| {
            let hits = program.instructions.iter().enumerate().filter(move |(_, instruction)| {
                let origin = &instruction.origin;
                origin.microbatch == Some(wanted)
                    && origin.path.starts_with("layers.")
                    && origin.phase.is_backward() == backward
            });
            hits.map(|(index, _)| index)
        };
        for microbatch in 0..3 {
            let last_backward = place(microbatch, true).max().expect("it has a backward pass");
            let next_forward = place(microbatch + 1, false).min().expect("so has the next a forward pass");
            assert!(last_backward < next_forward, "microbatch {microbatch}");
        }
    }
}

#[test]
fn gradients_of_data_parallel_ranks_travel_together() {
    let layers = 2;
    let gradients = PER_LAYER * layers + AROUND;
    let dp = counts(&gpt(layers, &["mesh.shape=dp=2"]).1, 0);
    assert_eq!(seen(&dp.forward), [("all_reduce", 1, 2)]);
    assert_eq!(seen(&dp.backward), [("all_reduce", 1, gradients)]);
    assert_eq!(seen(&dp.update), [], "every rank has every gradient");
    let both = counts(&gpt(layers, &["mesh.shape=dp=2,tp=2"]).1, 0);
    assert_eq!(seen(&both.forward), [("all_reduce", 2 * layers + 1, 2 * layers + 2)]);
    assert_eq!(seen(&both.backward), [("all_reduce", 2 * layers + 1, 2 * layers + gradients)]);
    assert_eq!(seen(&both.update), [("all_reduce", 1, 10 * layers)]);
    let sharded = counts(&gpt(layers, &["mesh.shape=fsdp=2,tp=2"]).1, 0);
    assert_eq!(
        seen(&sharded.forward),
        [("all_reduce", 2 * layers + 1, 2 * layers + 2), ("all_gather", layers + 4, gradients)]
    );
    assert_eq!(
        seen(&sharded.backward),
        [
            ("all_reduce", 2 * layers, 2 * layers),
            ("all_gather", layers + 1, 10 * layers + 2),
            ("reduce_scatter", layers + 4, gradients)
        ]
    );
}

/// Linear layers 10-32-5, rows `[rows, 10]`, with or without a loss.
fn toy(rows: usize, loss: bool) -> Model {
    let mut cx = Context::new("toy", DType::F32, true);
    let x = cx.input("inputs", DType::F32, &[rows, 10]);
    let build = |cx: &mut Context| {
        let h = cx.call("in_proj", &Linear::new(10, 32), x)?;
        let y = cx.call("out_proj", &Linear::new(32, 5), h)?;
        if !loss {
            return Ok(vec![("prediction".to_string(), y)]);
        }
        let targets = cx.input("targets", DType::F32, &[rows, 5]);
        Ok(vec![("loss".to_string(), partita_nn::losses::mse(cx, y, targets)?)])
    };
    let outputs = build(&mut cx).unwrap_or_else(|error: Box<partita_base::Diagnostic>| panic!("{error}"));
    cx.finish(outputs).unwrap()
}

const TOY_PLAN: &str =
    "[plan]\nin_proj = \"colwise(input=shard(0))\"\nout_proj = \"rowwise(output=shard(0))\"\n";

#[test]
fn two_layers_between_cut_rows_gather_once_and_scatter_once() {
    let mesh = Mesh::parse("tp=3", None).expect("a mesh");
    let plan = Plan::from_toml(TOY_PLAN, "toy").expect("a plan");
    let forward = toy(7, false).forward;
    let planned = apply(&plan, &forward, &mesh, &ApplyOptions::default()).expect("it fits");
    let parts = partition(&planned.graph, &mesh, &Options::default()).expect("it can be cut");
    let locals: Vec<Graph> =
        (0..3).map(|rank| specialise(parts.local(rank), rank).expect("it can be specialised")).collect();
    let held = |name: &str| -> Vec<Vec<usize>> {
        locals.iter().map(|g| g.ty(g.input_named(name).expect("it is an input")).shape.clone()).collect()
    };
    assert_eq!(held("in_proj.weight"), [[11, 10], [11, 10], [10, 10]]);
    assert_eq!(held("in_proj.bias"), [[11], [11], [10]]);
    assert_eq!(held("out_proj.weight"), [[5, 11], [5, 11], [5, 10]]);
    assert_eq!(held("out_proj.bias"), [[5], [5], [5]]);
    let rows = |v: partita_ir::ValueId| locals.iter().map(move |g| g.ty(v).shape[0]).collect::<Vec<_>>();
    assert_eq!(rows(locals[0].outputs[0]), [3, 2, 2]);
    for local in &locals {
        let counts = counts_of_graph(local);
        assert_eq!(seen(&counts.forward), [("all_gather", 1, 1), ("reduce_scatter", 1, 1)]);
    }
    let set = partita_program::lower(&ClassGraph::each(locals.clone()), &Default::default(), &Cpu::default())
        .expect("it can be lowered");
    assert_eq!(seen(&counts(&set, 0).forward), [("all_gather", 1, 1), ("reduce_scatter", 1, 1)]);
}

#[test]
fn the_toy_s_step_needs_one_more_for_the_loss() {
    let overrides = [
        "mesh.shape=tp=3",
        "plan.in_proj=colwise(input=shard(0))",
        "plan.out_proj=rowwise(output=shard(0))",
        "optimizer.clip_grad_norm=0",
    ];
    let session = session("mlp", &overrides);
    let planned = session.build_model(&toy(7, true)).unwrap_or_else(|error| panic!("{error}"));
    let set = session.lower(&planned).unwrap_or_else(|error| panic!("{error}"));
    let counts: Counts = counts(&set, 0);
    let forward = seen(&counts.forward);
    assert_eq!(forward, [("all_reduce", 1, 1), ("all_gather", 1, 1), ("reduce_scatter", 1, 1)]);
    assert_eq!(counts.forward.of(CollectiveKind::AllReduce).bytes, 4, "the loss");
}
