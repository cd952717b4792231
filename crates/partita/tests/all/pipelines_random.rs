//! Random models, cut anywhere, under random timetables and on random slices: a step in stages gives
//! the numbers of one device, and an order that is impossible is refused before anything runs.
//!
//! `cargo test -p partita --test all pipelines_random -- --ignored` searches longer; `CASES` says how long.

use crate::staged;
use crate::staged::{programs, run};
use indexmap::IndexMap;
use partita_base::{DType, Result};
use partita_cost::Cluster;
use partita_ir::ops::UnaryKind;
use partita_ir::{Graph, Literal, Phase, Role, ValueId, evaluate, graph_edit};
use partita_nn::{
    Context, Init, Linear, Model, Optimizer, StepOptions, append_update, gradient_graph, losses, train_step,
};
use partita_pipeline::timetables::Placement;
use partita_pipeline::{Order, Task, TaskKind, Timetable, cut, mark};
use partita_program::{LowerOptions, ProgramSet};
use partita_schedule::feed::{random_feed, scalars};
use partita_schedule::tensors::{inputs_of, outputs_by_name, zero_states};
use partita_schedule::{BuildOptions, Differentiated, Plan};
use partita_spmd::microbatch;
use std::collections::BTreeSet;

/// Features of every value.
const DIM: usize = 3;

/// Random choices, one after another.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// A model of `layers` modules: each reads any earlier value, adds one of another layer, and has a
/// weight of its own or that of an earlier layer. One layer may have a loss of its own, one weight
/// may be used by the loss.
fn random_model(draws: &mut Draws, layers: usize, batch: usize) -> Result<Model> {
    let mut cx = Context::new("random", DType::F64, true);
    let x = cx.input("inputs", DType::F64, &[batch, DIM]);
    let goal = cx.input("targets", DType::F64, &[batch, DIM]);
    let (mut values, mut weights): (Vec<ValueId>, Vec<String>) = (vec![x], Vec::new());
    let mut extra = Vec::new();
    for layer in 0..layers {
        let from = values[values.len() - 1 - draws.below(values.len().min(3))];
        let skip = values[draws.below(values.len())];
        let kind = draws.below(6);
        let tied = weights.get(draws.below(2 * layers)).cloned();
        let y = cx.scope(&format!("layers.{layer}"), |cx| -> Result<ValueId> {
            let weight = match &tied {
                Some(existing) => cx.tie("weight", existing)?,
                None => cx.param("weight", &[DIM, DIM], Init::Normal { std: 0.6 })?,
            };
            let y = cx.builder.linear(from, weight)?;
            match kind {
                0 => cx.builder.unary(UnaryKind::Tanh, y),
                1 => {
                    let bias = cx.param("bias", &[DIM], Init::Normal { std: 0.5 })?;
                    let bias = cx.builder.broadcast_in_dim(bias, &[batch, DIM], &[1])?;
                    cx.builder.add(y, bias)
                }
                2 => cx.dropout(y, 0.25),
                3 => cx.builder.multiply(y, skip),
                4 => Ok(y),
                _ => cx.builder.add(y, skip),
            }
        })?;
        weights.extend(tied.is_none().then(|| format!("layers.{layer}.weight")));
        values.push(y);
        if draws.below(4) == 0 {
            extra.push(losses::mse(&mut cx, y, goal)?);
        }
    }
    let y = *values.last().expect("the input is one");
    let y = if draws.below(3) == 0 { cx.call("head", &Linear::new(DIM, DIM), y)? } else { y };
    let mut loss = losses::mse(&mut cx, y, goal)?;
    for other in extra {
        loss = cx.builder.add(loss, other)?;
    }
    cx.finish(vec![("loss".into(), loss), ("prediction".into(), y)])
}

/// A random legal order of these stages: slices take tasks that can run, until there are none.
fn random_timetable(draws: &mut Draws, p: usize, v: usize, m: usize) -> Timetable {
    let placement = [Placement::Loop, Placement::V][draws.below(2)];
    let stages = p * v;
    let is_whole = draws.below(3) == 0;
    let mut left: BTreeSet<Task> = BTreeSet::new();
    for (stage, microbatch) in (0..stages).flat_map(|stage| (0..m).map(move |m| (stage, m))) {
        let kinds: &[TaskKind] = match is_whole || draws.below(2) == 0 {
            true => &[TaskKind::Forward, TaskKind::Backward],
            false => &[TaskKind::Forward, TaskKind::InputGrad, TaskKind::WeightGrad],
        };
        left.extend(kinds.iter().map(|&kind| Task { stage, kind, microbatch }));
    }
    let mut timetable = Timetable::new(stages, m, vec![Vec::new(); p]);
    while !left.is_empty() {
        let waits_for =
            |task: &Task, kind: TaskKind, stage: usize| left.contains(&Task { kind, stage, ..*task });
        let is_ready = |task: &&Task| match task.kind {
            TaskKind::Forward => task.stage == 0 || !waits_for(task, TaskKind::Forward, task.stage - 1),
            TaskKind::WeightGrad => !waits_for(task, TaskKind::InputGrad, task.stage),
            TaskKind::Backward | TaskKind::InputGrad => {
                !waits_for(task, TaskKind::Forward, task.stage)
                    && !waits_for(task, TaskKind::Backward, task.stage + 1)
                    && !waits_for(task, TaskKind::InputGrad, task.stage + 1)
            }
        };
        let ready: Vec<Task> = left.iter().filter(is_ready).copied().collect();
        let task = ready[draws.below(ready.len())];
        timetable.slices[placement.slice(task.stage, p)].push(task);
        left.remove(&task);
    }
    timetable
}

/// AdamW with clipping; gradients are outputs.
fn step_options() -> StepOptions {
    let mut options = StepOptions::new(Optimizer::adamw());
    (options.clip_grad_norm, options.output_gradients) = (Some(0.5), true);
    options
}

/// Everything that a step reads, by name.
fn tensors(model: &Model, step: &Graph, seed: u64) -> IndexMap<String, Literal> {
    let mut tensors = model.initial(seed).unwrap();
    tensors.extend(zero_states(step));
    tensors.extend(random_feed(model, seed, 0.3));
    tensors.extend(scalars(step, seed, 1, 0.01));
    tensors
}

/// What one device computes: outputs by name.
fn alone(model: &Model, seed: u64) -> IndexMap<String, Literal> {
    let step = train_step(&model.forward, &step_options()).unwrap();
    let inputs = inputs_of(&step, &[], &tensors(model, &step, seed)).unwrap();
    step.output_names.iter().cloned().zip(evaluate(&step, &inputs).unwrap()).collect()
}

fn assert_close(expected: &IndexMap<String, Literal>, found: &IndexMap<String, Literal>, what: &str) {
    for (name, expected) in expected {
        let Some(found) = found.get(name) else { continue };
        let (expected, found) = (expected.to_f64(), found.to_f64());
        let scale = expected.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
        for (a, b) in expected.iter().zip(&found) {
            assert!((a - b).abs() <= 1e-9 * scale, "{what}: {name}: {a} and {b}");
        }
    }
    assert!(expected.keys().all(|name| name == "prediction" || found.contains_key(name)), "{what}");
}

/// How many cases a long search takes.
fn cases(usual: u64) -> u64 {
    std::env::var("CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

/// A random model, cut at random nodes, under a random timetable.
fn random_case(seed: u64) {
    let draws = &mut Draws(seed);
    let (p, v, m) = (1 + draws.below(4), 1 + draws.below(2), 1 + draws.below(4));
    let layers = 2 + draws.below(5);
    let batch = m + draws.below(4);
    let model = random_model(draws, layers, batch).unwrap();
    let mut forward = model.forward.clone();
    let count = forward.nodes.len();
    let ends: Vec<usize> = (1..p * v).map(|_| draws.below(count)).collect();
    mark::after(&mut forward, &ends);
    let gradients = gradient_graph(&forward).unwrap();
    let gradients = if m == 1 { gradients } else { microbatch(&gradients, m).unwrap() };
    let step = append_update(&gradients, &step_options()).unwrap();
    let timetable = random_timetable(draws, p, v, m);
    let what = format!(
        "seed {seed}: stages end after {ends:?} of {count} nodes, {p} slices\n{}",
        timetable.to_csv()
    );
    let slice_of = timetable.slice_of_stage();
    let cut = cut(&step, p, &|stage| slice_of[stage]);
    let options = LowerOptions {
        prefetch: draws.below(2) == 0,
        guard: draws.below(2) == 0,
        fused_ops: [1, 4, 64][draws.below(3)],
        ..LowerOptions::default()
    };
    let set = programs(&cut, &timetable, &options).unwrap_or_else(|error| panic!("{what}{error}"));
    let inputs = inputs_of(&step, &[], &tensors(&model, &step, seed)).unwrap();
    let outputs =
        run(&cut, &set, &inputs, step.outputs.len()).unwrap_or_else(|error| panic!("{what}{error}"));
    assert_close(&alone(&model, seed), &outputs_by_name(&step, &[], outputs), &what);
}

#[test]
fn random_cuts_under_random_timetables_agree_with_one_device() {
    (0..150).for_each(random_case);
}

#[test]
#[ignore = "takes minutes; CASES says how many"]
fn many_random_cuts_agree_with_one_device() {
    (150..150 + cases(5000)).for_each(random_case);
}

/// A step of a random model as an importer would give it, one flat function without phases, roles and
/// composites, with its gradients named: again in microbatches and stages.
fn differentiated(seed: u64) {
    let draws = &mut Draws(seed);
    let (p, v, m) = (1 + draws.below(3), 1 + draws.below(2), 1 + draws.below(4));
    let (layers, batch) = (2 + draws.below(5), m + draws.below(4));
    let model = random_model(draws, layers, batch).unwrap();
    let step = train_step(&model.forward, &step_options()).unwrap();
    let tensors = tensors(&model, &step, seed);
    let mut flat = graph_edit::open_composites(&step, &|_| true).unwrap();
    let known = Differentiated {
        loss: "loss".into(),
        gradients: flat.output_names.iter().filter(|name| name.starts_with("grad.")).cloned().collect(),
        batched: (0..flat.inputs.len())
            .filter(|&place| ["inputs", "targets"].contains(&flat.value(flat.inputs[place]).name.as_str()))
            .collect(),
        carried: std::mem::take(&mut flat.aliases),
    };
    for value in &mut flat.values {
        value.role = if value.definition.is_none() { Role::Input } else { Role::Activation };
    }
    for node in &mut flat.nodes {
        (node.path, node.phase, node.stage) = (String::new(), Phase::Forward, 0);
    }
    let draw = draws.below(1000);
    let mark = |forward: &mut Graph| {
        let draws = &mut Draws(seed + draw as u64);
        let ends: Vec<usize> = (1..p * v).map(|_| draws.below(forward.nodes.len())).collect();
        mark::after(forward, &ends);
        Ok(())
    };
    let timetable = random_timetable(draws, p, v, m);
    let what = format!("seed {seed}: {p} slices\n{}", timetable.to_csv());
    let split = known.microbatched(&flat, m, &mark).unwrap_or_else(|error| panic!("{what}{error}"));
    let slice_of = timetable.slice_of_stage();
    let cut = cut(&split, p, &|stage| slice_of[stage]);
    let set =
        programs(&cut, &timetable, &LowerOptions::default()).unwrap_or_else(|error| panic!("{what}{error}"));
    let inputs = inputs_of(&split, &[], &tensors).unwrap_or_else(|error| panic!("{what}{error}"));
    let outputs =
        run(&cut, &set, &inputs, split.outputs.len()).unwrap_or_else(|error| panic!("{what}{error}"));
    assert_close(&alone(&model, seed), &outputs_by_name(&split, &[], outputs), &what);
}

#[test]
fn random_steps_that_arrive_differentiated_agree_with_one_device() {
    (0..80).for_each(differentiated);
}

#[test]
#[ignore = "takes minutes; CASES says how many"]
fn many_steps_that_arrive_differentiated_agree_with_one_device() {
    (80..80 + cases(2000)).for_each(differentiated);
}

/// Two stages with a skip and a tied weight, for timetables that are wrong.
fn small(timetable: &Timetable) -> Result<ProgramSet> {
    let mut cx = Context::new("small", DType::F64, true);
    let batch = timetable.microbatches;
    let x = cx.input("inputs", DType::F64, &[batch, DIM]);
    let goal = cx.input("targets", DType::F64, &[batch, DIM]);
    let weight = cx.param("weight", &[DIM, DIM], Init::Ones)?;
    let mut y = x;
    let mut ends = Vec::new();
    for _ in 0..timetable.stages {
        let product = cx.builder.linear(y, weight)?;
        y = cx.builder.add(product, x)?;
        ends.push(cx.builder.graph().nodes.len() - 1);
    }
    let loss = losses::mse(&mut cx, y, goal)?;
    let mut forward = cx.finish(vec![("loss".into(), loss)])?.forward;
    mark::after(&mut forward, &ends[..timetable.stages - 1]);
    let gradients = gradient_graph(&forward)?;
    let gradients = if batch == 1 { gradients } else { microbatch(&gradients, batch)? };
    let step = append_update(&gradients, &step_options())?;
    let slice_of = timetable.slice_of_stage();
    let cut = cut(&step, timetable.slices.len(), &|stage| slice_of[stage]);
    programs(&cut, timetable, &LowerOptions::default())
}

/// Whether a message names a task.
fn names(error: &partita_base::Diagnostic, task: Task) -> bool {
    let name = task.to_string();
    error.to_string().split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == name)
}

#[test]
fn impossible_timetables_are_refused_before_anything_runs() {
    for seed in 0..300 {
        let draws = &mut Draws(seed);
        let (p, v, m) = (1 + draws.below(3), 1 + draws.below(2), 1 + draws.below(3));
        let legal = random_timetable(draws, p, v, m);
        let mut wrong = legal.clone();
        let slice = draws.below(p);
        let place = draws.below(wrong.slices[slice].len());
        let task = wrong.slices[slice][place];
        let damage = ["missing", "doubled", "before what it reads", "deadlock"][seed as usize % 4];
        match damage {
            "missing" => _ = wrong.slices[slice].remove(place),
            "doubled" => wrong.slices[slice].insert(place, task),
            // The backward pass of the last stage before its forward pass.
            "before what it reads" => {
                let last = wrong.slice_of_stage()[wrong.stages - 1];
                let is_first = |t: &Task| t.stage == p * v - 1 && t.microbatch == 0;
                let tasks = &mut wrong.slices[last];
                let places: Vec<usize> = (0..tasks.len()).filter(|&place| is_first(&tasks[place])).collect();
                tasks.swap(places[0], places[1]);
            }
            // Of two slices, each waits for the other.
            _ => {
                let task = |stage, kind, microbatch| Task { stage, kind, microbatch };
                let (f, b) = (TaskKind::Forward, TaskKind::Backward);
                let first = vec![task(0, f, 0), task(0, b, 0), task(0, f, 1), task(0, b, 1)];
                let second = vec![task(1, f, 1), task(1, f, 0), task(1, b, 0), task(1, b, 1)];
                wrong = Timetable::new(2, 2, vec![first, second]);
            }
        }
        if !wrong.trains() {
            continue;
        }
        let error = match small(&wrong) {
            Err(error) => error,
            Ok(_) => panic!("{damage}: accepted\n{}", wrong.to_csv()),
        };
        assert_eq!(error.code, "E461", "{damage}: {error}");
        let named: Vec<Task> = legal.slices.iter().chain(&wrong.slices).flatten().copied().collect();
        assert!(named.iter().any(|&task| names(&error, task)), "{damage}: {error}");
        if matches!(damage, "missing" | "doubled") {
            assert!(names(&error, task), "{damage} {task}: {error}");
        }
        small(&legal).unwrap_or_else(|error| panic!("{error}\n{}", legal.to_csv()));
    }
}

/// A random model, and a plan with its stages on slices of different sizes.
fn slices(seed: u64) -> (Model, Plan, usize, BuildOptions) {
    let draws = &mut Draws(seed);
    let (stages, m) = (2 + draws.below(2), 1 + draws.below(3));
    let layers = stages + 1 + draws.below(3);
    let batch = 2 * m + draws.below(3);
    let model = random_model(draws, layers, batch).unwrap();
    let mut ends: BTreeSet<usize> = BTreeSet::new();
    while ends.len() + 1 < stages {
        ends.insert(draws.below(layers - 1));
    }
    let (mut plan, mut ranks, mut begin) = (Plan::default(), 0, 0);
    for end in ends.iter().copied().chain([layers - 1]) {
        let (mesh, size) =
            [("dp=1", 1), ("dp=2", 2), ("tp=2", 2), ("tp=3", 3), ("dp=2,tp=2", 4), ("fsdp=2", 2)]
                [draws.below(6)];
        let module = if end + 1 < layers { format!("layers.{end}") } else { String::new() };
        plan.add(&module, &format!("pipeline_split(mesh=\"{mesh}\")"), "test").unwrap();
        for layer in (begin..=end).filter(|_| mesh.contains("tp")) {
            let shard = format!("shard(\"weight\", {})", draws.below(2));
            // A tied weight has no name of its own in a later layer.
            if model.params.contains_key(&format!("layers.{layer}.weight")) && draws.below(2) == 0 {
                plan.add(&format!("layers.{layer}"), &shard, "test").unwrap();
            }
        }
        (ranks, begin) = (ranks + size, end + 1);
    }
    let timetable = random_timetable(draws, stages, 1, m);
    let options = BuildOptions {
        microbatches: m,
        timetable: Order::Given("random".into(), timetable),
        cluster: if draws.below(2) == 0 { Cluster::default() } else { staged::pairs() },
        ..BuildOptions::new(step_options())
    };
    (model, plan, ranks, options)
}

/// Such a step through plan lines and the CPU device.
fn random_slices(seed: u64) {
    let (model, plan, ranks, options) = slices(seed);
    let what = format!("seed {seed}: {plan:?}\n{:?}\n", options.timetable);
    let report = staged::verify(&model, &plan, &staged::mesh(&format!("pp={ranks}")), &options)
        .unwrap_or_else(|error| panic!("{what}{error}"));
    assert!(report.ok && report.tolerance <= 1e-9, "{what}{:?} {:?}", report.worst(), report.first_diverging);
}

#[test]
fn random_slices_agree_with_one_device() {
    // The last two: a gradient of a tied weight and a part of a norm that other stages wait for.
    (0..40).chain([178, 1436]).for_each(random_slices);
}

#[test]
#[ignore = "takes minutes; CASES says how many"]
fn many_random_slices_agree_with_one_device() {
    (40..40 + cases(1000)).for_each(random_slices);
}
