//! The verdict of a verification does not depend on the learning rate: a correct plan passes and a
//! wrong update fails at every rate, for every optimizer.

use crate::common::ok;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::{Graph, GraphBuilder, Literal, Registry, evaluate};
use partita_mesh::Mesh;
use partita_nn::{
    GptConfig, Model, ModelConfig, Optimizer, StepOptions, append_update, gradient_graph, train_step,
};
use partita_schedule::feed::Fed;
use partita_schedule::tensors::inputs_of;
use partita_schedule::verify::{
    Interpreter, StepRunner, Task, Unwatched, Verification, Verified, Watcher, Work,
};
use partita_schedule::{BuildContext, BuildOptions, Built, ReadyOptions, ready_plan};
use std::cell::RefCell;

const RATES: [f64; 7] = [1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 10.0];

fn gpt(dtype: DType) -> Model {
    let config = GptConfig { vocab: 13, dim: 8, layers: 1, heads: 2, sequence: 4, ..GptConfig::default() };
    ok(ModelConfig::Gpt(config).build(4, dtype, true))
}

fn optimizers() -> Vec<Optimizer> {
    let weight_decay = 0.1;
    vec![
        Optimizer::Sgd { momentum: 0.0, weight_decay, nesterov: false },
        Optimizer::Sgd { momentum: 0.9, weight_decay, nesterov: false },
        Optimizer::Sgd { momentum: 0.9, weight_decay, nesterov: true },
        Optimizer::Adam { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay },
        Optimizer::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay },
        Optimizer::Lion { beta1: 0.9, beta2: 0.99, weight_decay },
    ]
}

/// Those that see whole tensors, and states of 8 bits.
fn of_whole_tensors() -> Vec<Optimizer> {
    ["adafactor", "lamb", "muon", "adam8bit"]
        .map(|name| Optimizer::from_name(name).expect("it is known"))
        .to_vec()
}

fn without_decay(mut optimizer: Optimizer) -> Optimizer {
    match &mut optimizer {
        Optimizer::Sgd { weight_decay, .. }
        | Optimizer::Adam { weight_decay, .. }
        | Optimizer::AdamW { weight_decay, .. }
        | Optimizer::Lion { weight_decay, .. }
        | Optimizer::Adafactor { weight_decay, .. }
        | Optimizer::Lamb { weight_decay, .. }
        | Optimizer::Muon { weight_decay, .. }
        | Optimizer::Adam8bit { weight_decay, .. } => *weight_decay = 0.0,
    }
    optimizer
}

fn verify(options: &StepOptions, dtype: DType, rate: f64, runner: &dyn StepRunner) -> Verified {
    ok(watched(options, dtype, rate, runner, None, &Unwatched))
}

/// With a reduction left out in the feed-forward network.
fn broken(options: &StepOptions, rate: f64, watcher: &dyn Watcher) -> Result<Verified> {
    watched(options, DType::F32, rate, &Interpreter, Some("layers.0.mlp.down_proj".to_string()), watcher)
}

fn watched(
    options: &StepOptions,
    dtype: DType,
    rate: f64,
    runner: &dyn StepRunner,
    break_rule_at: Option<String>,
    watcher: &dyn Watcher,
) -> Result<Verified> {
    let (model, precise) = (gpt(dtype), gpt(DType::F64));
    let mesh = ok(Mesh::parse("dp=2,tp=2", None));
    let options = BuildOptions { break_rule_at, ..BuildOptions::new(options.clone()).for_verification() };
    let verification = Verification {
        model: &model,
        precise: (dtype != DType::F64).then_some(&precise),
        options: &options,
        context: BuildContext { registry: &Registry::default(), runner },
        seed: 1,
        learning_rate: rate,
        watcher,
    };
    verification.run(&ok(ready_plan("gpt", &model.forward, &mesh, &ReadyOptions::default())), &mesh)
}

/// Runs the planned step, but takes new parameters and states from another step on one device.
struct Faulty {
    step: Graph,
}

impl StepRunner for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }

    fn run(&self, built: &Built, inputs: &[Literal]) -> Result<Vec<Literal>> {
        let outputs = Interpreter.run(built, inputs)?;
        let graph = &built.step;
        let names = graph.inputs.iter().map(|&input| graph.value(input).name.clone());
        let fed: Fed = names.zip(inputs.iter().cloned()).collect();
        let faulty = evaluate(&self.step, &inputs_of(&self.step, &[], &fed)?)?;
        let faulty: Fed = self.step.output_names.iter().cloned().zip(faulty).collect();
        let is_new = |name: &str| graph.input_named(name).is_some();
        let pairs = graph.output_names.iter().zip(outputs);
        Ok(pairs.map(|(name, own)| if is_new(name) { faulty[name].clone() } else { own }).collect())
    }
}

/// The step in which every gradient reaches the optimizer multiplied by `factor`.
fn scaled(options: &StepOptions, factor: f64) -> Graph {
    let gradients = ok(gradient_graph(&gpt(DType::F32).forward));
    let mut b = GraphBuilder::from_graph(gradients.clone());
    let outputs = gradients.output_names.iter().zip(&gradients.outputs).map(|(name, &value)| {
        let value = if name.starts_with("grad.") { ok(b.scale(value, factor)) } else { value };
        (name.clone(), value)
    });
    let outputs = outputs.collect();
    ok(append_update(&b.finish_named(outputs), options))
}

#[test]
fn a_right_plan_is_right_at_every_rate() {
    for optimizer in optimizers() {
        for clip_grad_norm in [None, Some(0.1)] {
            let options = StepOptions { clip_grad_norm, ..StepOptions::new(optimizer) };
            for rate in RATES {
                for dtype in [DType::F32, DType::F64] {
                    let report = verify(&options, dtype, rate, &Interpreter).report;
                    assert!(report.ok, "{optimizer:?} {rate} {dtype}: {:?}", report.worst());
                }
            }
            for dtype in [DType::BF16, DType::F16] {
                for rate in [1e-3, 0.5] {
                    let report = verify(&options, dtype, rate, &Interpreter).report;
                    assert!(report.ok, "{optimizer:?} {rate} {dtype}: {:?}", report.worst());
                }
            }
        }
    }
}

#[test]
fn a_reduction_left_out_is_found_at_every_rate() {
    for optimizer in optimizers() {
        for rate in RATES {
            let report = ok(broken(&StepOptions::new(optimizer), rate, &Unwatched)).report;
            assert!(!report.ok, "{optimizer:?} {rate}");
            assert!(report.first_diverging.is_some_and(|first| first.contains("layers.0.mlp.down_proj")));
        }
    }
}

#[test]
fn a_weight_decay_left_out_is_found_at_every_rate() {
    for optimizer in optimizers() {
        let options = StepOptions::new(optimizer);
        let faulty = StepOptions::new(without_decay(optimizer));
        let runner = Faulty { step: ok(train_step(&gpt(DType::F32).forward, &faulty)) };
        for rate in RATES {
            let report = verify(&options, DType::F32, rate, &runner).report;
            assert!(!report.ok, "{optimizer:?} {rate}: {:?}", report.worst());
            // Tensors without weight decay are not blamed.
            let wrong = report.tensors.iter().filter(|tensor| tensor.wrong > 0);
            for tensor in wrong {
                assert!(tensor.tensor.ends_with(".weight"), "{optimizer:?} {rate}: {tensor:?}");
            }
        }
    }
}

#[test]
fn a_gradient_that_reaches_the_optimizer_scaled_is_found_at_every_rate() {
    for optimizer in optimizers() {
        let options = StepOptions::new(optimizer);
        for factor in [2.0, 1.01] {
            let runner = Faulty { step: scaled(&options, factor) };
            for rate in RATES {
                let report = verify(&options, DType::F32, rate, &runner).report;
                assert!(!report.ok, "{optimizer:?} {rate} {factor}: {:?}", report.worst());
            }
        }
    }
}

#[test]
fn a_learning_rate_that_is_not_the_one_fed_is_found() {
    // The update of another rate: one percent more.
    struct Faster;
    impl StepRunner for Faster {
        fn name(&self) -> &str {
            "faster"
        }
        fn run(&self, built: &Built, inputs: &[Literal]) -> Result<Vec<Literal>> {
            let graph = &built.step;
            let mut inputs = inputs.to_vec();
            for (&input, value) in graph.inputs.iter().zip(&mut inputs) {
                if graph.value(input).name == "learning_rate" {
                    *value = Literal::splat(&value.ty, 1.01 * value.to_f64()[0]);
                }
            }
            Interpreter.run(built, &inputs)
        }
    }
    for optimizer in optimizers() {
        for rate in RATES {
            let report = verify(&StepOptions::new(optimizer), DType::F32, rate, &Faster).report;
            assert!(!report.ok, "{optimizer:?} {rate}: {:?}", report.worst());
        }
    }
}

/// The range of such an update is sampled: a right plan passes, and a wrong gradient is found, at any rate.
#[test]
fn updates_of_whole_tensors_are_judged_alike() {
    for optimizer in of_whole_tensors() {
        for clip_grad_norm in [None, Some(0.1)] {
            let options = StepOptions { clip_grad_norm, ..StepOptions::new(optimizer) };
            for (rate, dtype) in [
                (1e-4, DType::F32),
                (0.1, DType::F32),
                (10.0, DType::F32),
                (0.1, DType::F64),
                (0.1, DType::BF16),
            ] {
                let report = verify(&options, dtype, rate, &Interpreter).report;
                assert!(report.ok, "{optimizer:?} {rate} {dtype}: {:?}", report.worst());
            }
        }
        let options = StepOptions::new(optimizer);
        let report = ok(broken(&options, 0.1, &Unwatched)).report;
        assert!(!report.ok, "{optimizer:?}");
        let runner = Faulty { step: scaled(&options, 1.01) };
        for rate in [1e-4, 1.0] {
            let report = verify(&options, DType::F32, rate, &runner).report;
            assert!(!report.ok, "{optimizer:?} {rate}: {:?}", report.worst());
        }
    }
}

/// Counts the operations done, and refuses one task.
struct Counting {
    begun: RefCell<Vec<(Task, Work)>>,
    done: RefCell<Vec<f64>>,
    refused: Option<Task>,
}

impl Counting {
    fn refusing(refused: Option<Task>) -> Counting {
        Counting { begun: RefCell::default(), done: RefCell::default(), refused }
    }
}

impl Watcher for Counting {
    fn begins(&self, task: Task, work: &Work) -> Result<()> {
        if self.refused == Some(task) {
            return Err(Diagnostic::new("E042", "too much"));
        }
        self.begun.borrow_mut().push((task, *work));
        self.done.borrow_mut().push(0.0);
        Ok(())
    }

    fn advances(&self, operations: f64) {
        *self.done.borrow_mut().last_mut().expect("it has begun") += operations;
    }
}

#[test]
fn a_watcher_hears_of_all_the_work_and_may_refuse_it() {
    let options = StepOptions::new(Optimizer::adamw());
    let watcher = Counting::refusing(None);
    assert!(!ok(broken(&options, 0.1, &watcher)).report.ok);
    let (begun, done) = (watcher.begun.borrow(), watcher.done.borrow());
    assert_eq!(
        begun.iter().map(|(task, work)| (*task, work.ranks)).collect::<Vec<_>>(),
        [(Task::Compare, 4), (Task::Trace, 4)]
    );
    for ((task, work), done) in begun.iter().zip(&*done) {
        assert_eq!(work.operations, *done, "{task:?}");
        assert!(work.nodes > 0 && work.bytes > 0);
    }
    // The trace keeps every value.
    assert!(begun[1].1.bytes > begun[0].1.bytes);

    let report = ok(broken(&options, 0.1, &Counting::refusing(Some(Task::Trace)))).report;
    assert!(!report.ok && report.first_diverging.is_none());
    let refused = broken(&options, 0.1, &Counting::refusing(Some(Task::Compare))).map(|_| ()).unwrap_err();
    assert_eq!(refused.code, "E042");
}
