//! Pipelines end to end: what crosses between stages, what stages hold, and steps of random models
//! and orders, each against a count or a step that does not know of stages.

use crate::common::pipeline::{built, mesh, model, options, pairs, plan, stages, verify};
use partita_base::DType;
use partita_cost::Cluster;
use partita_ir::{Graph, Phase, Role, ValueId};
use partita_nn::{MlpConfig, ModelConfig};
use partita_pipeline::{TaskKind, Timetable, timetables};
use partita_program::{
    CollectiveKind, EdgeCount, LowerOptions, counts_of_graph, edge_counts, held, lower_stages,
};
use partita_runtime::Cpu;
use partita_schedule::{BuildOptions, Built, Plan};
use std::collections::{BTreeMap, BTreeSet};

/// A step on a mesh, with the ready plan.
fn step(name: &str, layers: usize, on: &str, microbatches: usize, timetable: &str) -> Built {
    let (model, mesh) = (model(name, layers, 8), mesh(on));
    built(&model, &plan(name, &model, &mesh), &mesh, &options(microbatches, timetable))
        .unwrap_or_else(|error| panic!("{name} on {on}: {error}"))
}

/// The part of a step: 0 forward, 1 backward, 2 update.
fn part(phase: Phase) -> usize {
    match phase {
        Phase::Forward => 0,
        Phase::InputGrad | Phase::WeightGrad => 1,
        Phase::Update => 2,
    }
}

/// The values that cross between slices of one rank, counted over the whole step graph: for each
/// sender, receiver and part, the number of values and their bytes.
fn crossing(
    step: &Graph,
    slice_of: &dyn Fn(usize) -> usize,
    slices: usize,
) -> BTreeMap<(usize, usize, usize), (usize, usize)> {
    // What follows from fed tensors and constants alone is computed by every slice.
    let mut depends = vec![false; step.values.len()];
    step.inputs.iter().for_each(|v| depends[v.index()] = step.value(*v).role != Role::Input);
    let mut home = vec![0; step.values.len()];
    for node in &step.nodes {
        let any = node.operands.iter().any(|v| depends[v.index()]);
        for result in &node.results {
            (depends[result.index()], home[result.index()]) = (any, slice_of(node.stage));
        }
    }
    for &(input, output) in &step.aliases {
        home[step.inputs[input].index()] = home[step.outputs[output].index()];
    }
    let mut readers: BTreeSet<(ValueId, usize)> = BTreeSet::new();
    for node in &step.nodes {
        readers.extend(node.operands.iter().map(|&operand| (operand, slice_of(node.stage))));
    }
    // Float scalars that validate the step, such as the loss, are known to every slice.
    for (position, &output) in step.outputs.iter().enumerate() {
        let replaces = step.aliases.iter().any(|alias| alias.1 == position);
        if step.ty(output).rank() == 0 && step.ty(output).dtype.is_float() && !replaces {
            readers.extend((0..slices).map(|slice| (output, slice)));
        }
    }
    let mut counts: BTreeMap<(usize, usize, usize), (usize, usize)> = BTreeMap::new();
    for (value, reader) in readers {
        let from = home[value.index()];
        if from != reader && depends[value.index()] {
            let phase =
                step.value(value).definition.map_or(Phase::Forward, |(node, _)| step.node(node).phase);
            let count = counts.entry((from, reader, part(phase))).or_default();
            *count = (count.0 + 1, count.1 + step.ty(value).bytes());
        }
    }
    counts
}

#[test]
fn edges_carry_the_values_that_are_read_on_another_slice() {
    for (name, layers, slices, microbatches, timetable) in [
        ("mlp", 4, 2, 4, "1f1b"),
        ("mlp", 8, 4, 3, "zbv"),
        // The head reads the embedding, which the first stage updates.
        ("gpt", 4, 4, 2, "1f1b"),
        ("llama", 4, 2, 1, "interleaved-1f1b"),
        ("bert", 3, 3, 2, "zb-h1"),
    ] {
        let step = step(name, layers, &format!("pp={slices}"), microbatches, timetable);
        let slice_of = step.timetable.as_ref().expect("there are stages").slice_of_stage();
        let expected = crossing(&step.step, &|stage| slice_of[stage], slices);
        let counts = edge_counts(&stages(&step));
        let found =
            counts.rows.iter().map(|row| ((row.from, row.to, part(row.phase)), (row.sends, row.bytes)));
        assert_eq!(found.collect::<BTreeMap<_, _>>(), expected, "{name} on {slices} slices:\n{counts}");
        assert_eq!(counts.sends(), expected.values().map(|count| count.0).sum::<usize>());
        assert_eq!(counts.bytes(), expected.values().map(|count| count.1).sum::<usize>());
        assert!(counts.rows.iter().all(|row| !row.values.is_empty()), "{counts}");
    }
}

#[test]
fn a_boundary_of_an_mlp_sends_the_batch_once_forward_and_once_backward() {
    for microbatches in [1, 2, 4] {
        let step = step("mlp", 4, "pp=4", microbatches, "1f1b");
        let counts = edge_counts(&stages(&step));
        let of = |from, to, phase| {
            counts.rows.iter().find(|row: &&EdgeCount| (row.from, row.to, row.phase) == (from, to, phase))
        };
        for boundary in 0..3 {
            // 8 rows of 8 features in f64.
            let there = of(boundary, boundary + 1, Phase::Forward).expect("activations cross");
            assert_eq!((there.sends, there.bytes), (microbatches, 8 * 8 * 8), "{counts}");
            let back = of(boundary + 1, boundary, Phase::InputGrad).expect("gradients cross");
            assert_eq!((back.sends, back.bytes), (microbatches, 8 * 8 * 8), "{counts}");
        }
        // The loss goes to the three slices that do not compute it, once in a step.
        let losses = (0..3).filter_map(|slice| of(3, slice, Phase::Forward));
        assert!(losses.map(|row| (row.sends, row.bytes)).all(|count| count == (1, 8)), "{counts}");
    }
    assert!(edge_counts(&stages(&step("mlp", 2, "dp=2", 1, "1f1b"))).to_string().is_empty());
    let text = edge_counts(&stages(&step("mlp", 2, "pp=2", 2, "1f1b"))).to_string();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("from  to      part  sends  bytes a step  values"));
    let first = lines.next().unwrap();
    assert!(first.starts_with("   0   1   forward      2           512  "), "{text}");
}

/// Microbatches in flight on a slice of `p` in units of one stage, as publications and PyTorch's
/// timetables have them, for `m >= 2 p` microbatches; `None` where only the largest is published.
fn published(name: &str, p: usize, m: usize, rank: usize) -> (Option<usize>, usize) {
    let all = |count| (Some(count), count);
    match name {
        "1f1b" => (Some(p - rank), p),
        "gpipe" => all(m),
        "looped-bfs" => all(2 * m),
        "interleaved-1f1b" => (Some(p + 2 * (p - 1 - rank) + 1), 3 * p - 1),
        "interleaved-zero-bubble" | "zbv" => all(2 * p),
        "zb-h1" => all(p),
        "zb-h2" => all(2 * p - 1),
        "v-half" => (None, (p + 2) / 2 * 2),
        "v-min" => (None, (p + 4) / 3 * 2),
        "dualpipev" => (None, 2 * p + 1),
        other => panic!("nothing is published for {other}"),
    }
}

/// Bytes that a slice holds at most: tasks one after another, by what each stage of two layers with
/// 8 features in f64 keeps for each row. The gradients of the weights read the input of each layer
/// (64 bytes), those of the activations the mask of each ReLU (8) and the prediction (64).
fn bytes_held(timetable: &Timetable, slice: usize) -> usize {
    let (slice_of, last) = (timetable.slice_of_stage(), timetable.stages - 1);
    let (mut now, mut most) = (0, 0);
    for task in &timetable.slices[slice] {
        let stage = task.stage;
        let is_handed_on = |stage: usize| stage < last && slice_of[stage] == slice_of[stage + 1];
        // The first stage reads a fed tensor. The slice of the next stage may be this one.
        let received = if stage == 0 || is_handed_on(stage - 1) { 0 } else { 64 };
        let inputs = 64 + if stage == 0 { 0 } else { 64 };
        let written = received + 64 + if is_handed_on(stage) { 64 } else { 0 };
        let for_activations = if stage == last { 8 + 64 } else { 8 + 8 };
        if task.kind == TaskKind::Forward {
            now += written + for_activations;
            most = most.max(now);
        }
        if matches!(task.kind, TaskKind::Backward | TaskKind::InputGrad) {
            now -= for_activations;
        }
        if matches!(task.kind, TaskKind::Backward | TaskKind::WeightGrad) {
            now -= inputs;
        }
    }
    most
}

#[test]
fn ranks_hold_the_activations_that_are_published() {
    for p in [2, 4, 8] {
        let m = 2 * p;
        for named in timetables::ALL.iter().filter(|named| named.name != "inference") {
            let dims = vec![8; 2 * named.chunks * p + 1];
            let config = ModelConfig::Mlp(MlpConfig { dims, ..MlpConfig::default() });
            let (model, mesh) = (config.build(m, DType::F64, true).unwrap(), mesh(&format!("pp={p}")));
            let built = built(&model, &Plan::default(), &mesh, &options(m, named.name)).unwrap();
            // Without prefetch a value arrives when the task that reads it begins.
            let options = LowerOptions { prefetch: false, ..LowerOptions::default() };
            let set = lower_stages(&stages(&built), &options, &Cpu::default()).unwrap();
            let timetable = built.timetable.as_ref().unwrap();
            let mut largest = 0;
            for rank in 0..p {
                let found = held(&set.program(rank).unwrap());
                let context = format!("{} on rank {rank} of {p}", named.name);
                let (in_flight, most) = published(named.name, p, m, rank);
                assert!(in_flight.is_none_or(|count| count == found.passes), "{context}: {found:?}");
                assert!(found.passes <= most, "{context}: {found:?}");
                assert_eq!(found.passes, timetable.peak(rank), "{context}");
                assert_eq!(found.bytes, bytes_held(timetable, rank), "{context}");
                largest = largest.max(found.passes);
            }
            assert_eq!(largest, published(named.name, p, m, 0).1, "{} on {p}", named.name);
        }
    }
}

#[test]
fn receivers_gather_among_themselves_where_that_is_cheaper() {
    // The tensor of each boundary, 8 rows of 8 features in f64, is replicated over `tp`.
    let (tensor, model) = (8 * 8 * 8, model("mlp", 4, 8));
    for (until, meshes, ranks, copies) in [
        // Two ranks receive one copy each, or half a copy.
        ("layers.1", ["tp=2", "tp=2"], 4, 2),
        // Shards of 3, 3 and 2.
        ("layers.1", ["tp=1", "tp=3"], 4, 3),
        ("layers.0", ["dp=2", "tp=2"], 4, 2),
    ] {
        let text = format!(
            "[[stages]]\nuntil = \"{until}\"\nmesh = \"{}\"\n[[stages]]\nmesh = \"{}\"\n",
            meshes[0], meshes[1]
        );
        let (plan, mesh) = (Plan::from_toml(&text, "plan").unwrap(), mesh(&format!("pp={ranks}")));
        for microbatches in [1, 2] {
            let crossing = |cluster: Cluster| {
                let options = BuildOptions { cluster, ..options(microbatches, "1f1b") };
                let report = verify(&model, &plan, &mesh, &options).unwrap();
                assert!(report.ok, "{meshes:?}: {:?}", report.worst());
                let built = built(&model, &plan, &mesh, &options).unwrap();
                let counts = edge_counts(&stages(&built));
                let forward = counts.rows.iter().find(|row| row.from == 0 && row.phase == Phase::Forward);
                let gathers: usize = (built.stages[1].classes.iter())
                    .map(|class| counts_of_graph(&class.graph).forward.of(CollectiveKind::AllGather).bytes)
                    .max()
                    .unwrap();
                (forward.expect("activations cross").bytes, gathers)
            };
            let gathered_anyway = crossing(Cluster::default()).1;
            assert_eq!(crossing(Cluster::default()), (copies * tensor, gathered_anyway), "{meshes:?}");
            assert_eq!(crossing(pairs()), (tensor, gathered_anyway + tensor), "{meshes:?}");
        }
    }
}
