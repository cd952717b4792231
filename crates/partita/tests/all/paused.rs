//! Steps that pause between their forward and their backward pass, for a caller that computes the loss: the same numbers as
//! on one device on every mesh, and the same bits whatever was run before.

use crate::staged::{mesh, model, options, plan};
use indexmap::IndexMap;
use partita::execution::{CpuStep, train_loop, with_batch};
use partita_base::DType;
use partita_ir::port::{LOSS, cotangent_name};
use partita_ir::{GraphBuilder, Literal, Phase, Registry, Role, evaluate};
use partita_nn::Model;
use partita_program::{Action, Instruction};
use partita_runtime::checkpoint::TensorData;
use partita_runtime::{RunnerOptions, TrainLoop};
use partita_schedule::feed::{Fed, random_feed, scalars};
use partita_schedule::tensors::{inputs_of, zero_states};
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Built, StepKind};
use std::time::Duration;

/// The model without its loss: the inner product of its logits with an input is its loss.
fn weighed(model: &Model) -> Model {
    let mut builder = GraphBuilder::from_graph(model.forward.clone());
    let named = |name: &&String| name.as_str() != LOSS;
    let name = model.forward.output_names.iter().find(named).expect("there are predictions").clone();
    let output = model.forward.output_named(&name).unwrap();
    let ty = model.forward.ty(output).clone();
    let dims: Vec<usize> = (0..ty.rank()).collect();
    let cotangent = builder.input(&cotangent_name(&name), ty, Role::Input);
    let product = builder.multiply(output, cotangent).unwrap();
    let loss = builder.reduce_sum(product, &dims).unwrap();
    let graph = builder.finish_checked(vec![(name, output), (LOSS.to_string(), loss)]).unwrap();
    Model { forward: partita_ir::graph_edit::prune(graph), ..model.clone() }
}

/// Forward and backward pass of a model on a mesh.
fn built(name: &str, on: &str, microbatches: usize) -> (Model, Built) {
    let (model, mesh) = (weighed(&model(name, 4, 6)), mesh(on));
    let context = BuildContext { registry: &Registry::default(), runner: &CpuStep::default() };
    let options = BuildOptions { output_predictions: true, ..options(microbatches, "1f1b") };
    let built = BuildRequest::new(&model, &plan(name, &model, &mesh), &mesh, &options, context)
        .part(StepKind::Gradients)
        .build();
    let built = built.unwrap_or_else(|error| panic!("{name} on {on}: {error}"));
    (model, built)
}

/// A loop with drawn parameters, and a batch in two parts: what the forward pass reads, and the cotangents.
fn ready(model: &Model, built: &Built) -> (TrainLoop, Fed, Fed) {
    let options = RunnerOptions { watchdog: Duration::from_secs(20), ..RunnerOptions::default() };
    let mut train = train_loop(built, 5, options).unwrap();
    for (name, value) in model.initial(3).unwrap() {
        let data = |value: &Literal| TensorData::new(DType::F64, value.ty.shape.clone(), value.to_bytes());
        match built.pieces.iter().find(|pieces| pieces.name == name) {
            None => train.set_tensor(&name, &data(&value)).unwrap(),
            Some(pieces) => pieces.split(&value).iter().for_each(|(part, value)| {
                train.set_tensor(part, &data(value)).unwrap();
            }),
        }
    }
    let mut batch = random_feed(model, 11, 0.0);
    batch.retain(|name, _| !["seed", "step", "learning_rate"].contains(&name.as_str()));
    let (cotangents, batch): (Fed, Fed) =
        batch.into_iter().partition(|(name, _)| name.starts_with("cotangent."));
    (train, batch, cotangents)
}

fn outputs(train: &TrainLoop, names: &[String]) -> IndexMap<String, Vec<u8>> {
    let output = |name: &String| (name.clone(), train.output(name).unwrap().bytes);
    names.iter().map(output).collect()
}

#[test]
fn no_pass_leaves_anything_to_the_next() {
    for (name, on) in [
        ("mlp", "dp=1"),
        ("mlp", "dp=4"),
        ("mlp", "tp=2"),
        ("gpt", "dp=1"),
        ("gpt", "dp=2,tp=2"),
        ("gpt", "fsdp=2"),
        ("gpt", "pp=2"),
        ("llama", "tp=3"),
        ("llama", "fsdp=2,tp=2"),
        ("bert", "dp=3"),
        ("bert", "pp=2,dp=2"),
    ] {
        let at = format!("{name} on {on}");
        let (model, built) = built(name, on, 1);
        let (mut train, batch, cotangents) = ready(&model, &built);
        let names: Vec<String> =
            built.step.output_names.iter().filter(|name| *name != LOSS).cloned().collect();
        let (predictions, gradients): (Vec<String>, Vec<String>) =
            names.iter().cloned().partition(|name| !name.starts_with("grad."));
        assert!(!predictions.is_empty() && gradients.len() == model.params.len() + added(&built), "{at}");

        assert_eq!(train.runner_mut().step().unwrap_err().code, "E428", "{at}: it pauses");
        with_batch(&batch, |batch| train.forward(batch)).unwrap();
        with_batch(&cotangents, |cotangents| train.backward(cotangents)).unwrap();
        let whole = outputs(&train, &names);
        let mut all = zero_states(&built.step);
        all.extend(model.initial(3).unwrap());
        all.extend(batch.iter().chain(&cotangents).map(|(name, value)| (name.clone(), value.clone())));
        all.extend(scalars(&built.step, 5, 1, 0.0));
        let alone = evaluate(&built.step, &inputs_of(&built.step, &built.pieces, &all).unwrap()).unwrap();
        for ((name, &output), expected) in built.step.output_names.iter().zip(&built.step.outputs).zip(&alone)
        {
            let Some(bytes) = whole.get(name) else { continue };
            let found = Literal::from_bytes(built.step.ty(output), bytes).unwrap();
            let size = expected.to_f64().into_iter().map(f64::abs).fold(1e-6, f64::max);
            let apart = found.to_f64().into_iter().zip(expected.to_f64()).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f64::max) <= 1e-9 * size, "{at}: {name}");
        }

        // Another batch's step is given up at its pause.
        let other: Fed =
            batch.iter().map(|(name, value)| (name.clone(), Literal::splat(&value.ty, 1.0))).collect();
        with_batch(&other, |other| train.forward(other)).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(outputs(&train, &predictions)[0] != whole[0], "{at}");
        for _ in 0..2 {
            with_batch(&batch, |batch| train.forward(batch)).unwrap();
            for (name, bytes) in outputs(&train, &predictions) {
                assert!(bytes == whole[&name], "{at}: {name} at the pause");
            }
            with_batch(&cotangents, |cotangents| train.backward(cotangents)).unwrap();
            assert!(outputs(&train, &names) == whole, "{at}");
        }
    }
}

/// How many more gradients there are than parameters, because some parameters are stored in pieces.
fn added(built: &Built) -> usize {
    built.pieces.iter().map(|pieces| pieces.limits.len() - 1).sum()
}

#[test]
fn the_pause_splits_the_two_passes() {
    let (_, built) = built("gpt", "fsdp=2,tp=2", 1);
    let train = train_loop(&built, 5, RunnerOptions::default()).unwrap();
    for program in train.runner().programs() {
        let &[pause] = &program.pauses[..] else { panic!("it reads cotangents") };
        let phases = |instructions: &[Instruction]| -> Vec<Phase> {
            let computes = instructions.iter().filter(|i| matches!(i.action, Action::Compute(_)));
            computes.map(|instruction| instruction.origin.phase).collect()
        };
        let (before, after) = program.instructions.split_at(pause);
        assert!(phases(before).iter().all(|phase| *phase == Phase::Forward));
        assert!(phases(after).iter().all(|phase| phase.is_backward()));
        assert!(phases(before).len() > 20 && phases(after).len() > 20);
    }
}

#[test]
fn a_step_that_does_not_pause_says_so() {
    let (model, built) = built("mlp", "dp=2", 2);
    let (mut train, batch, _) = ready(&model, &built);
    let error = with_batch(&batch, |batch| train.forward(batch)).unwrap_err();
    assert_eq!(error.code, "E428");
    assert!(train.runner().programs()[0].pauses.is_empty(), "it has two microbatches");
}

#[test]
fn each_part_of_a_batch_is_asked_for_in_its_pass() {
    let (model, built) = built("mlp", "tp=2", 1);
    let (mut train, batch, cotangents) = ready(&model, &built);
    let error = with_batch(&cotangents, |batch| train.forward(batch)).unwrap_err();
    assert_eq!(error.code, "E430");
    with_batch(&batch, |batch| train.forward(batch)).unwrap();
    let error = with_batch(&batch, |batch| train.backward(batch)).unwrap_err();
    assert_eq!(error.code, "E430");
}
