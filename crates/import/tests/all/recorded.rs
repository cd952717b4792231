//! Models exported by PyTorch, imported and evaluated by the reference interpreter: outputs, loss,
//! every gradient and every new buffer are those that PyTorch recorded (`tests/pt2/make.py`).
//!
//! `PARTITA_PT2=FOLDER` compares the models of that folder instead, for fresh exports.

use partita_base::DType;
use partita_import::{ImportOptions, ImportedModel, Limits, Pt2, Weights};
use partita_ir::port::{LEARNING_RATE, LOSS, SEED, STEP, gradient_name, name_of_user};
use partita_ir::{Graph, Literal, Operation, evaluate};
use partita_nn::{Optimizer, StepOptions, gradient_graph, train_step};
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    match std::env::var_os("PARTITA_PT2") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2"),
    }
}

fn names() -> Vec<String> {
    let entries =
        fs::read_dir(folder()).expect("the folder is there").map(|entry| entry.expect("readable").path());
    let models = entries.filter(|path| path.extension().is_some_and(|extension| extension == "pt2"));
    let mut names: Vec<String> =
        models.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn recorded(name: &str) -> Weights {
    Weights::open(&folder().join(format!("{name}.safetensors")), &Limits::default())
        .expect("recorded tensors")
}

fn open(name: &str) -> Pt2 {
    Pt2::open(&folder().join(format!("{name}.pt2")), &Limits::default())
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn import(name: &str) -> ImportedModel {
    // Its collectives do not say how many ranks take part.
    let ranks = (name == "data_parallel").then_some(2);
    let options = ImportOptions { ranks, ..ImportOptions::default() };
    open(name).import(&options).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The values of the inputs of a graph: the recorded batch, parameters and states of the file.
fn feed(graph: &Graph, imported: &ImportedModel, recorded: &Weights) -> Vec<Literal> {
    let value = |input: &partita_ir::ValueId| {
        let value = graph.value(*input);
        let name = value.name.as_str();
        if let Some(tensor) = imported.weights.get(name) {
            return tensor.literal().unwrap();
        }
        if let Some(state) = imported.states.iter().find(|state| state.name == name) {
            return state.initial.literal().unwrap();
        }
        match recorded.get(&format!("input.{name}")) {
            Some(tensor) => tensor.literal().unwrap(),
            None => Literal::zeros(&value.ty),
        }
    };
    graph.inputs.iter().map(value).collect()
}

/// The largest difference, relative to the largest expected element where that is above 1.
fn difference(found: &Literal, expected: &Literal) -> f64 {
    assert_eq!(found.ty, expected.ty);
    let (found, expected) = (found.to_f64(), expected.to_f64());
    let scale = expected.iter().fold(1.0f64, |most, x| most.max(x.abs()));
    let apart = |(a, b): (&f64, &f64)| if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() };
    found.iter().zip(&expected).map(apart).fold(0.0, |most: f64, x| if x.is_nan() { x } else { most.max(x) })
        / scale
}

fn tolerance(imported: &ImportedModel, name: &str) -> f64 {
    let is_half = |dtype| matches!(dtype, DType::BF16 | DType::F16);
    let halves = imported.model.params.values().any(|spec| is_half(spec.ty.dtype));
    if halves || name.starts_with("autocast") { 2e-2 } else { 1e-4 }
}

/// The losses of five steps: what replaces an input is fed to the next step.
fn train(
    name: &str,
    imported: &ImportedModel,
    recorded: &Weights,
    optimizer: Optimizer,
    rate: f64,
) -> Literal {
    let options = StepOptions { decay_1d: true, grad_norm: false, ..StepOptions::new(optimizer) };
    let graph =
        train_step(&imported.model.forward, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut values = feed(&graph, imported, recorded);
    let position = |wanted: &str| graph.inputs.iter().position(|&v| graph.value(v).name == wanted);
    let (rate_at, step_at) = (position(LEARNING_RATE).unwrap(), position(STEP).unwrap());
    values[rate_at] = Literal::scalar(values[rate_at].ty.dtype, rate);
    let loss = graph.output_position(LOSS).unwrap();
    let mut losses = Vec::new();
    for step in 1..=5 {
        values[step_at] = Literal::scalar(DType::I64, f64::from(step));
        let results = evaluate(&graph, &values).unwrap_or_else(|error| panic!("{name}: {error}"));
        losses.push(results[loss].to_f64()[0]);
        for &(input, output) in &graph.aliases {
            values[input] = results[output].clone();
        }
    }
    Literal::from_f64(&graph.ty(graph.outputs[loss]).with_shape([5]), losses.into_iter())
}

/// What differs between a model and its record.
fn compare(name: &str) -> Vec<String> {
    let (imported, recorded) = (import(name), recorded(name));
    let forward = &imported.model.forward;
    // A joint program has its gradients already, under names that no step gives to its own.
    let returned = |parameter: &str| name_of_user(&gradient_name(parameter), |_| false);
    let is_joint = imported.model.params.keys().any(|of| forward.output_named(&returned(of)).is_some());
    let graph = match is_joint {
        true => forward.clone(),
        false => gradient_graph(forward).unwrap_or_else(|error| panic!("{name}: {error}")),
    };
    let values = evaluate(&graph, &feed(&graph, &imported, &recorded))
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let found =
        |output: &str| &values[graph.output_position(output).unwrap_or_else(|| panic!("{name}: {output}"))];
    let mut differences = Vec::new();
    let mut seen = 0;
    for (key, expected) in recorded.iter() {
        let (kind, rest) = key.split_once('.').unwrap_or((key, ""));
        let output = match kind {
            "loss" => LOSS.to_string(),
            "output" => imported.outputs[rest.parse::<usize>().unwrap()].clone(),
            "grad" if is_joint => returned(rest),
            "grad" => gradient_name(rest),
            "buffer" => rest.to_string(),
            _ => continue,
        };
        seen += 1;
        let apart = difference(found(&output), &expected.literal().unwrap());
        if apart.is_nan() || apart > tolerance(&imported, name) {
            differences.push(format!("{name}: {key} differs by {apart:e}"));
        }
    }
    for (key, optimizer, rate) in [
        ("sgd", Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false }, 0.05),
        ("adamw", Optimizer::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 }, 0.01),
    ] {
        if is_joint {
            continue;
        }
        let expected = recorded.get(&format!("steps.{key}")).expect("recorded steps").literal().unwrap();
        let found = train(name, &imported, &recorded, optimizer, rate);
        let apart = difference(&found, &expected);
        // Five steps multiply the rounding errors of one.
        if apart.is_nan() || apart > 10.0 * tolerance(&imported, name) {
            differences.push(format!(
                "{name}: losses of {key} are {:?}, not {:?}",
                found.to_f64(),
                expected.to_f64()
            ));
        }
    }
    let gradients = recorded.iter().filter(|(key, _)| key.starts_with("grad.")).count();
    assert_eq!(gradients, imported.model.params.len(), "{name}: parameters");
    assert!(seen > gradients + 1, "{name}: loss and outputs are recorded");
    differences
}

#[test]
fn another_batch_is_computed_as_in_pytorch() {
    for (name, batch) in [("mlp_dynamic", 9), ("gpt_dynamic", 5), ("gpt_dynamic_core", 5), ("sizes", 7)] {
        let options = ImportOptions { batch: Some(batch), ..ImportOptions::default() };
        let imported = open(name).import(&options).unwrap();
        let (forward, recorded) = (&imported.model.forward, recorded(name));
        let input = |v: &partita_ir::ValueId| {
            let name = &forward.value(*v).name;
            match imported.weights.get(name) {
                Some(tensor) => tensor.literal().unwrap(),
                None => recorded.get(&format!("other.input.{name}")).expect("an input").literal().unwrap(),
            }
        };
        let results = evaluate(forward, &forward.inputs.iter().map(input).collect::<Vec<_>>()).unwrap();
        let expected = recorded.get("other.loss").unwrap().literal().unwrap();
        let apart = difference(&results[forward.output_position(LOSS).unwrap()], &expected);
        assert!(apart < 1e-4, "{name}: {apart:e}");
    }
}

#[test]
fn dropout_draws_by_seed_and_step_and_its_gradient_has_the_same_mask() {
    let (imported, recorded) = (import("dropout"), recorded("dropout"));
    assert!(imported.notes.iter().any(|note| note.contains("random numbers")), "{:?}", imported.notes);
    let graph = gradient_graph(&imported.model.forward).unwrap();
    let at = |wanted: &str| graph.inputs.iter().position(|&v| graph.value(v).name == wanted).unwrap();
    let mut values = feed(&graph, &imported, &recorded);
    let run = |values: &[Literal]| {
        let results = evaluate(&graph, values).unwrap();
        let of = |name: &str| results[graph.output_position(name).unwrap()].to_f64();
        (of("output.1"), of("grad.w"))
    };
    let (w, x) = (values[at("w")].to_f64(), values[at("x")].to_f64());
    let (y, gradient) = run(&values);
    let mut dropped = 0;
    for i in 0..w.len() {
        let keeps = y[i] != 0.0;
        dropped += usize::from(!keeps);
        let (expected, slope) = if keeps { (w[i] * x[i] / 0.75, x[i] / 0.75) } else { (0.0, 0.0) };
        assert!((y[i] - expected).abs() < 1e-5 && (gradient[i] - slope).abs() < 1e-5, "{i}");
    }
    assert!((1..w.len() / 2).contains(&dropped), "{dropped} of {}", w.len());
    assert_eq!(run(&values).0, y);
    for input in [SEED, STEP] {
        let position = at(input);
        let old = std::mem::replace(
            &mut values[position],
            Literal::scalar(graph.ty(graph.inputs[position]).dtype, 3.0),
        );
        assert!(run(&values).0 != y, "{input}");
        values[position] = old;
    }
}

#[test]
fn names_paths_lines_and_ties_are_those_of_the_model() {
    let gpt = import("gpt").model;
    assert_eq!(gpt.ties, [("head.weight".to_string(), "wte.weight".to_string())]);
    assert_eq!(gpt.modules.get("h.0.attn").map(String::as_str), Some("Attention"));
    assert_eq!(gpt.modules.get("h.1.mlp.0").map(String::as_str), Some("Linear"));
    let attention = gpt.forward.nodes.iter().filter(|node| node.op.name() == "partita.attention");
    let places: Vec<String> =
        attention.map(|node| format!("{} {}", node.path, node.location.as_ref().unwrap())).collect();
    assert!(
        places[0].starts_with("h.0.attn make.py:") && places[1].starts_with("h.1.attn make.py:"),
        "{places:?}"
    );
    assert_eq!(places.len(), 2);
    let count = |name: &str| gpt.forward.nodes.iter().filter(|node| node.op.name() == name).count();
    let composites =
        ["layer_norm", "gelu", "embedding", "cross_entropy"].map(|name| count(&format!("partita.{name}")));
    // The rows of the positions are in order: a slice of their table, not a lookup.
    assert_eq!(composites, [5, 2, 1, 1]);
    let shared = import("shared").model;
    assert_eq!(shared.params.keys().collect::<Vec<_>>(), ["model.a.weight", "model.a.bias", "model.b.bias"]);
}

#[test]
fn frozen_parameters_and_changed_buffers_are_states() {
    let names = |name: &str| -> Vec<(String, bool)> {
        import(name).states.into_iter().map(|state| (state.name, state.is_frozen_parameter)).collect()
    };
    let frozen = ["model.0.weight", "model.2.weight", "model.2.bias"].map(|name| (name.to_string(), true));
    assert_eq!(names("frozen"), frozen);
    assert_eq!(names("buffers"), [("model.count".to_string(), false), ("model.mean".to_string(), false)]);
    assert_eq!(names("conv").len(), 6);
    assert_eq!(names("conv_eval"), []);
}

#[test]
fn a_trained_model_has_the_names_of_its_state_dict() {
    let gpt = import("gpt");
    let new = Literal::splat(&gpt.weights["wte.weight"].ty, 0.5);
    let trained = gpt.trained(&[("wte.weight".to_string(), new.clone())].into_iter().collect()).unwrap();
    assert_eq!((&trained["wte.weight"], &trained["head.weight"]), (&new, &new));
    assert_eq!(trained["norm.weight"], gpt.weights["norm.weight"].literal().unwrap());
    assert_eq!(trained.len(), gpt.weights.len() + 1);
    // Persistent buffers belong to it; tensors that are only attributes do not.
    let buffers = import("buffers");
    let changed = buffers
        .trained(&[("model.count".to_string(), Literal::scalar(DType::I64, 3.0))].into_iter().collect())
        .unwrap();
    let names = ["model.a.bias", "model.a.weight", "model.count", "model.mean", "model.scale"];
    let mut found: Vec<&str> = changed.keys().map(String::as_str).collect();
    found.sort_unstable();
    assert_eq!(found, names);
    assert_eq!(changed["model.count"].to_f64(), [3.0]);
    assert_eq!(changed["model.scale"].to_f64(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn the_program_of_one_rank_becomes_that_of_all() {
    for (name, input, rows) in [("data_parallel", "tokens", 4), ("collectives", "x", 8)] {
        let imported = import(name);
        assert_eq!(imported.inputs[input].shape[0], rows, "{name}");
        let forward = &imported.model.forward;
        assert!(forward.nodes.iter().all(|node| !node.op.is_collective()), "{name}");
        assert_eq!(forward.ty(forward.output_named("output.1").unwrap()).shape[0], rows, "{name}");
    }
    // Composites and module paths stay, so kernels and plans find them.
    let nodes = import("data_parallel").model.forward.nodes;
    let attention = nodes.iter().filter(|node| node.op.name() == "partita.attention");
    assert_eq!(
        attention.map(|node| node.path.as_str()).collect::<Vec<_>>(),
        ["model.h.0.attn", "model.h.1.attn"]
    );
    let products = nodes.iter().filter(|node| node.op.name() == "stablehlo.dot_general");
    // Four products a block and the head: none is repeated for each rank.
    assert_eq!(products.count(), 9);
}

/// So they have kernels, rules and gradients: pooling by maxima scatters its cotangent to the chosen elements.
#[test]
fn convolutions_and_pooling_are_ops_of_their_own() {
    let count = |graph: &Graph, name: &str| graph.nodes.iter().filter(|node| node.op.name() == name).count();
    // The convolutions of each model, and its windows of maxima and of sums.
    for (name, convolutions, windows) in [("conv", 2, 1), ("conv_eval", 2, 1), ("conv_more", 3, 1)] {
        let model = import(name).model;
        assert_eq!(count(&model.forward, "stablehlo.convolution"), convolutions, "{name}");
        assert_eq!(count(&model.forward, "stablehlo.reduce_window"), windows, "{name}");
        assert_eq!(
            count(&model.forward, "stablehlo.dot_general"),
            usize::from(name != "conv_more"),
            "{name}"
        );
    }
    let graph = gradient_graph(&import("conv").model.forward).unwrap();
    // The input of the first has no gradient.
    assert_eq!(count(&graph, "stablehlo.convolution"), 2 + 1 + 2);
    assert_eq!(count(&graph, "stablehlo.select_and_scatter"), 1);
}

/// A slice has a pad as its gradient; a lookup by data has a scatter. BERT has positions in a buffer, cut to the row.
#[test]
fn rows_in_order_are_slices_of_their_table() {
    for (name, lookups) in [("gpt", 1), ("gpt_dynamic_core", 1), ("bert", 2)] {
        let nodes = import(name).model.forward.nodes;
        let found = nodes.iter().filter(|node| node.op.name() == "partita.embedding").count();
        assert_eq!(found, lookups, "{name}");
    }
}

#[test]
fn decomposed_programs_say_what_they_lost() {
    assert_eq!(import("mlp").notes, [""; 0]);
    assert!(import("mlp_core").notes[0].contains("`detach` and `no_grad`"));
    assert_eq!(import("mlp_joint").notes, [""; 0]);
}

#[test]
fn outputs_losses_and_gradients_are_those_of_pytorch() {
    let names = names();
    assert!(names.len() > 3, "recorded models");
    let only = std::env::var("PARTITA_PT2_ONLY").ok();
    let mut differences = Vec::new();
    // Its random numbers are compared by form, above.
    let compared = names.iter().filter(|name| *name != "dropout");
    for name in compared.filter(|name| only.as_ref().is_none_or(|only| *name == only)) {
        match std::panic::catch_unwind(|| compare(name)) {
            Ok(found) => differences.extend(found),
            Err(_) => differences.push(format!("{name}: failed")),
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
