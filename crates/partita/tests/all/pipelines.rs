//! Pipelines end to end: what crosses between stages, what stages hold, and steps of random models
//! and orders, each against a count or a step that does not know of stages.

use crate::staged::{built, mesh, model, options, pairs, plan, programs, run, verify};
use partita::execution::stages;
use partita_base::DType;
use partita_cost::Cluster;
use partita_ir::{Graph, Literal, Operation, Phase, Role, ValueId, evaluate, text};
use partita_nn::{MlpConfig, ModelConfig};
use partita_pipeline::timetables::{self, Named};
use partita_pipeline::{Order, TaskKind, Timetable, cut, mark};
use partita_program::{
    CollectiveKind, EdgeCount, LowerOptions, ProgramSet, counts as program_counts, counts_of_graph,
    edge_counts, held, lower_stages,
};
use partita_runtime::Cpu;
use partita_schedule::tensors::inputs_of;
use partita_schedule::{BuildOptions, Built, Differentiated, Plan};
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
    assert_eq!(lines.next(), Some("from  to     phase  sends  bytes a step  values"));
    let first = lines.next().unwrap();
    assert!(first.starts_with("   0   1   forward      2           512  "), "{text}");
}

/// The programs of a built step.
fn lowered(step: &Built) -> ProgramSet {
    let cpu = Cpu::default();
    lower_stages(&stages(step), &LowerOptions::default(), &cpu).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_gradient_of_a_tied_weight_is_sent_and_reduced_once_in_a_step() {
    let mut reduced: BTreeSet<(usize, usize)> = BTreeSet::new();
    for microbatches in [1, 2, 4] {
        for on in ["pp=2", "pp=2,dp=2"] {
            let step = step("gpt", 2, on, microbatches, "1f1b");
            let counts = edge_counts(&stages(&step));
            let back = counts.rows.iter().find(|row| (row.from, row.phase) == (1, Phase::InputGrad));
            // The gradient of the residual stream for each microbatch, and that of the embedding.
            assert_eq!(back.expect("gradients cross").sends, microbatches + 1, "{counts}");
            if on == "pp=2,dp=2" {
                let last = program_counts(&lowered(&step), 3).backward.of(CollectiveKind::AllReduce);
                reduced.insert((last.logical, last.bytes));
            }
        }
    }
    assert_eq!(
        reduced.len(),
        1,
        "the last stage reduces as much with any number of microbatches: {reduced:?}"
    );
}

#[test]
fn the_sends_of_all_ranks_are_those_of_the_edges() {
    for (name, on, timetable) in [
        ("gpt", "pp=2,tp=2", "1f1b"),
        ("gpt", "pp=2,dp=2", "zb-h1"),
        ("llama", "pp=2", "zbv"),
        ("mlp", "pp=4", "1f1b"),
    ] {
        let step = step(name, 4, on, 4, timetable);
        let (edges, set) = (edge_counts(&stages(&step)), lowered(&step));
        let ranks: Vec<_> = (0..set.rank_count()).map(|rank| program_counts(&set, rank)).collect();
        for (place, phase) in ["forward", "backward", "update"].into_iter().enumerate() {
            let sent: usize =
                ranks.iter().map(|of| of.phases()[place].1.of(CollectiveKind::Send).bytes).sum();
            let crossing: usize =
                edges.rows.iter().filter(|row| part(row.phase) == place).map(|row| row.bytes).sum();
            assert_eq!(sent, crossing, "{name} on {on}, {phase}:\n{edges}");
        }
    }
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

/// What the ranks of an MLP with two layers on each stage hold, under a timetable: equal to what its
/// order of tasks says, whatever the number of microbatches. Returns the passes in flight on each rank.
fn passes_held(named: &Named, p: usize, m: usize) -> Vec<usize> {
    let dims = vec![8; 2 * named.chunks * p + 1];
    let config = ModelConfig::Mlp(MlpConfig { dims, ..MlpConfig::default() });
    let (model, mesh) = (config.build(m, DType::F64, true).unwrap(), mesh(&format!("pp={p}")));
    let built = built(&model, &Plan::default(), &mesh, &options(m, named.name)).unwrap();
    // Without prefetch a value arrives when the task that reads it begins.
    let options = LowerOptions { prefetch: false, ..LowerOptions::default() };
    let set = lower_stages(&stages(&built), &options, &Cpu::default())
        .unwrap_or_else(|error| panic!("{} on {p} with {m} microbatches: {error}", named.name));
    let timetable = built.timetable.as_ref().unwrap();
    let of_rank = |rank: usize| {
        let found = held(&set.program(rank).unwrap());
        let context = format!("{} on rank {rank} of {p} with {m} microbatches", named.name);
        assert_eq!(found.passes, timetable.peak(rank), "{context}");
        assert_eq!(found.bytes, bytes_held(timetable, rank), "{context}");
        found.passes
    };
    (0..p).map(of_rank).collect()
}

#[test]
fn ranks_hold_the_activations_that_are_published() {
    for p in [2, 4, 8] {
        for named in timetables::ALL.iter().filter(|named| named.name != "inference") {
            let most = |m| published(named.name, p, m, 0).1;
            let found = passes_held(named, p, 2 * p);
            for (rank, &passes) in found.iter().enumerate() {
                let (in_flight, _) = published(named.name, p, 2 * p, rank);
                let fits = in_flight.map_or(passes <= most(2 * p), |count| count == passes);
                assert!(fits, "{} on {p}: {found:?}", named.name);
            }
            assert_eq!(found.iter().max(), Some(&most(2 * p)), "{} on {p}", named.name);
            // With fewer microbatches than the figures are published for, no rank holds more.
            for m in [1, p - 1, p + 1] {
                let found = passes_held(named, p, m);
                let cap = most(m).min(named.chunks * m);
                assert!(
                    found.iter().all(|&passes| passes <= cap),
                    "{} on {p} with {m}: {found:?}",
                    named.name
                );
            }
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

/// The gradient that the update of an output reads: `decay * state + rate * gradient`, or `parameter -
/// rate * gradient`.
fn gradient_of(step: &Graph, output: ValueId) -> ValueId {
    let maker = |value: ValueId| step.value(value).definition.map(|(node, _)| step.node(node));
    let is_scale =
        |value: ValueId| maker(value).is_some_and(|node| node.op.short_name() == "broadcast_in_dim");
    let products = maker(output).expect("it is computed").operands.iter().filter_map(|&v| maker(v));
    let factors = products.filter(|node| node.op.short_name() == "multiply").flat_map(|node| &node.operands);
    let gradient = factors.copied().find(|&v| maker(v).is_some() && !is_scale(v));
    gradient.expect("one factor is the gradient")
}

#[test]
fn steps_that_jax_differentiated_run_in_stages() {
    for (file, parameters, first_reader, carried, batched, microbatches) in [
        // Adam: three layers; the first moments read the gradients.
        ("mlp_adam_step", 6, 6, 19, vec![19, 20], [1, 3, 8]),
        // Plain gradient descent: a decoder of two layers.
        ("transformer_step", 25, 0, 25, vec![25, 26], [1, 2, 3]),
    ] {
        let path = format!("{}/../../tests/jax/{file}.mlir", env!("CARGO_MANIFEST_DIR"));
        let text =
            std::fs::read_to_string(&path).unwrap().replace("xf32>", "xf64>").replace("<f32>", "<f64>");
        let mut step = text::parse(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut gradients = Vec::new();
        for parameter in 0..parameters {
            let gradient = gradient_of(&step, step.outputs[first_reader + parameter]);
            gradients.push(format!("gradient.{parameter}"));
            step.value_mut(gradient).name.clone_from(&gradients[parameter]);
        }
        let known = Differentiated {
            loss: step.output_names.last().unwrap().clone(),
            gradients,
            batched,
            carried: (0..carried).map(|position| (position, position)).collect(),
        };
        let seed = &mut 5u64;
        let mut number = |is_float: bool| {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let top = (*seed >> 40) as f64 / 2f64.powi(24);
            if is_float { top } else { (top * 9.0).floor() }
        };
        let tensors: indexmap::IndexMap<String, Literal> = (step.inputs.iter().enumerate())
            .map(|(position, &input)| {
                let ty = step.ty(input);
                let values = (0..ty.element_count()).map(|_| number(ty.dtype.is_float())).collect::<Vec<_>>();
                (format!("arg{position}"), Literal::from_f64(ty, values.into_iter()))
            })
            .collect();
        let inputs: Vec<Literal> = tensors.values().cloned().collect();
        let expected = evaluate(&step, &inputs).unwrap();
        for microbatches in microbatches {
            for (timetable, slices) in [("1f1b", 2), ("zb-h1", 2), ("inference", 1)] {
                let mark = |forward: &mut Graph| mark::evenly(forward, slices);
                let split = known
                    .microbatched(&step, microbatches, &mark)
                    .unwrap_or_else(|error| panic!("{file}: {error}"));
                let inputs = inputs_of(&split, &[], &tensors).unwrap();
                let found = if slices == 1 {
                    evaluate(&split, &inputs).unwrap()
                } else {
                    let timetable = Order::named(timetable).unwrap().timetable(slices, microbatches).unwrap();
                    let cut = cut(&split, slices, &|stage| stage);
                    // Every parameter lives on one slice, and both slices have some.
                    let counts = cut.stages.iter().map(|stage| stage.graph.params().len());
                    let counts: Vec<usize> = counts.collect();
                    assert!(counts.iter().all(|&count| count > 1), "{file}: {counts:?}");
                    assert_eq!(counts.iter().sum::<usize>(), parameters, "{file}");
                    let set = programs(&cut, &timetable, &LowerOptions::default())
                        .unwrap_or_else(|error| panic!("{file}: {error}"));
                    run(&cut, &set, &inputs, split.outputs.len()).unwrap()
                };
                for ((name, a), b) in step.output_names.iter().zip(&expected).zip(&found) {
                    let (a, b) = (a.to_f64(), b.to_f64());
                    let scale = a.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
                    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert!(worst <= 1e-9 * scale, "{file} {microbatches} {timetable} {name}: {worst}");
                }
            }
        }
    }
}
