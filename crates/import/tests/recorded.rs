//! Models exported by PyTorch, imported and evaluated by the reference interpreter: outputs, loss,
//! every gradient and every new buffer are those that PyTorch recorded (`tests/pt2/make.py`).
//!
//! `PARTITA_PT2=FOLDER` compares the models of that folder instead, for fresh exports.

use partita_base::DType;
use partita_import::{ImportOptions, ImportedModel, Limits, Pt2, Weights};
use partita_ir::port::{LEARNING_RATE, LOSS, STEP, gradient_name};
use partita_ir::{Graph, Literal, evaluate};
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
    open(name).import(&ImportOptions::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The values of the inputs of a graph: the recorded batch, parameters and states of the file.
fn feed(graph: &Graph, imported: &ImportedModel, recorded: &Weights) -> Vec<Literal> {
    let value = |input: &partita_ir::ValueId| {
        let value = graph.value(*input);
        let name = value.name.as_str();
        if let Some(tensor) = imported.weights.get(name) {
            return tensor.literal();
        }
        if let Some(state) = imported.states.iter().find(|state| state.name == name) {
            return state.initial.literal();
        }
        match recorded.get(&format!("input.{name}")) {
            Some(tensor) => tensor.literal(),
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
    let graph = gradient_graph(forward).unwrap_or_else(|error| panic!("{name}: {error}"));
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
            "grad" => gradient_name(rest),
            "buffer" => rest.to_string(),
            _ => continue,
        };
        seen += 1;
        let apart = difference(found(&output), &expected.literal());
        if apart.is_nan() || apart > tolerance(&imported, name) {
            differences.push(format!("{name}: {key} differs by {apart:e}"));
        }
    }
    for (key, optimizer, rate) in [
        ("sgd", Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false }, 0.05),
        ("adamw", Optimizer::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 }, 0.01),
    ] {
        let expected = recorded.get(&format!("steps.{key}")).expect("recorded steps").literal();
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
fn outputs_losses_and_gradients_are_those_of_pytorch() {
    let names = names();
    assert!(names.len() > 3, "recorded models");
    let only = std::env::var("PARTITA_PT2_ONLY").ok();
    let mut differences = Vec::new();
    for name in names.iter().filter(|name| only.as_ref().is_none_or(|only| *name == only)) {
        match std::panic::catch_unwind(|| compare(name)) {
            Ok(found) => differences.extend(found),
            Err(_) => differences.push(format!("{name}: failed")),
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
