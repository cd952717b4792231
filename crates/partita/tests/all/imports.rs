//! Files with models where a config stands: PyTorch's programs against what PyTorch recorded, and training steps in StableHLO.

use indexmap::IndexMap;
use partita::models::ModelKinds;
use partita::prelude::*;
use partita::trainer::StepDone;
use partita_import::{Limits, Weights, save};
use partita_ir::text;
use partita_program::{CollectiveKind, counts};
use partita_runtime::MemoryLimit;
use partita_schedule::verify::{Report, Unwatched, tolerance};
use partita_testkit::overrides;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2")
}

fn pt2(name: &str) -> String {
    folder().join(format!("{name}.pt2")).to_string_lossy().into_owned()
}

/// What PyTorch recorded.
fn recorded(name: &str) -> Fed {
    let path = folder().join(format!("{name}.safetensors"));
    let weights = Weights::open(&path, &Limits::default()).unwrap();
    weights.iter().map(|(name, tensor)| (name.to_string(), tensor.literal().unwrap())).collect()
}

fn loaded(file: &str, items: &[&str]) -> Session {
    Session::load(file, &overrides(items)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[derive(Default)]
struct Losses(Vec<f64>);

impl Observer for Losses {
    fn step(&mut self, step: &StepDone) {
        self.0.push(step.report.loss);
    }
}

/// That ranks along `tp` repeat the work of others.
const REPEATS: &str = "plan.\"**\"=replicate(axis=tp)";

/// The losses of a run of a session.
fn losses(session: &Session) -> Vec<f64> {
    let mut losses = Losses::default();
    let mut trainer = Trainer::start(session, None).unwrap_or_else(|error| panic!("{error}"));
    trainer.fit(&mut losses, &AtomicBool::new(false)).unwrap_or_else(|error| panic!("{error}"));
    losses.0
}

#[test]
fn outputs_loss_and_gradients_on_meshes_are_those_of_pytorch() {
    for (name, mesh) in [("mlp", "dp=2,tp=2"), ("gpt", "tp=2"), ("conv", "dp=2"), ("frozen", "dp=2")] {
        let session = loaded(&pt2(name), &[&format!("mesh.shape={mesh}")]);
        let (report, notes) = session.verify_against(&recorded(name), &session.step_runner()).unwrap();
        let compared: Vec<&str> = report.tensors.iter().map(|tensor| tensor.tensor.as_str()).collect();
        let gradients = compared.iter().filter(|name| name.starts_with("grad.")).count();
        assert!(report.ok, "{name} on {mesh}: {:?}", report.worst());
        assert_eq!(gradients, session.model().unwrap().params.len(), "{name}: {compared:?}");
        assert!(
            compared.contains(&"loss") && notes.iter().any(|note| note.contains("steps.sgd")),
            "{notes:?}"
        );
    }
    // Outputs may be recorded by their positions.
    let session = loaded(&pt2("mlp"), &[]);
    let mut by_position = recorded("mlp");
    let mut names = session.model().unwrap().forward.output_names.clone();
    for (place, name) in names.iter().enumerate() {
        if let Some(value) = by_position.swap_remove(name) {
            by_position.insert(format!("output.{place}"), value);
        }
    }
    names.retain(|name| recorded("mlp").contains_key(name));
    assert!(names.iter().any(|name| name == "loss"), "{names:?}");
    let (report, _) = session.verify_against(&by_position, &session.step_runner()).unwrap();
    for name in &names {
        assert!(
            report.ok && report.tensors.iter().any(|tensor| tensor.tensor == *name),
            "{name}: {report:?}"
        );
    }
    by_position.retain(|name, _| !name.starts_with("output.") && !name.starts_with("grad."));
    let error = session.verify_against(&by_position, &session.step_runner()).unwrap_err();
    assert_eq!(error.code, "E306", "nothing is left to compare: {error}");
    // A wrong number is found.
    let mut wrong = recorded("mlp");
    let loss = wrong["loss"].to_f64()[0];
    wrong.insert("loss".to_string(), Literal::scalar(DType::F32, loss + 0.1));
    let session = loaded(&pt2("mlp"), &[]);
    let (report, _) = session.verify_against(&wrong, &session.step_runner()).unwrap();
    assert!(!report.ok && report.worst().unwrap().tensor == "loss");
}

#[test]
fn five_steps_on_meshes_lose_as_in_pytorch_and_run_on_after_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let sgd = ["optimizer.kind=sgd", "optimizer.momentum=0.9", "optimizer.learning_rate=0.05"];
    let adamw = [
        "optimizer.kind=adamw",
        "optimizer.weight_decay=0.1",
        "optimizer.learning_rate=0.01",
        "optimizer.decay_1d=true",
    ];
    for (name, mesh, optimizer) in [
        ("mlp", "dp=2", &sgd[..]),
        ("mlp", "tp=2", &adamw[..]),
        ("gpt", "dp=2,tp=2", &adamw[..]),
        ("gpt", "pp=2", &sgd[..]),
        ("buffers", "dp=2", &sgd[..]),
    ] {
        let recorded = recorded(name);
        let data = inputs_of(&recorded, folder.path());
        let run = folder.path().join(format!("{name}-{mesh}"));
        let mut items: Vec<String> = optimizer.iter().map(|item| item.to_string()).collect();
        items.push(format!("data.path={}", data.display()));
        items.push(format!("checkpoint.dir={}", run.display()));
        items.push(format!("mesh.shape={mesh}"));
        items.extend(mesh.contains("tp").then(|| REPEATS.to_string()));
        items.push("train.steps=5".to_string());
        let items: Vec<&str> = items.iter().map(String::as_str).collect();
        let found = losses(&loaded(&pt2(name), &items));
        let kind = optimizer[0].trim_start_matches("optimizer.kind=");
        let expected = recorded[&format!("steps.{kind}")].to_f64();
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-3 * b.abs().max(1.0);
        assert!(
            found.len() == 5 && found.iter().zip(&expected).all(near),
            "{name} {mesh}: {found:?} {expected:?}"
        );
        // The config beside the checkpoint names the file again.
        let saved = partita::run_files::Saved::at(&run).unwrap();
        let config = saved.config(&ModelKinds::bundled(), &[]).unwrap();
        assert_eq!((config.model.name(), saved.step()), (name, 5));
        let weights = saved
            .weights(&config.model.build(config.train.batch, config.train.dtype, false).unwrap())
            .unwrap();
        assert!(!weights.is_empty());
    }
}

/// A file of the recorded inputs, to be fed in every step.
fn inputs_of(record: &Fed, folder: &Path) -> PathBuf {
    let inputs: IndexMap<String, Literal> = record
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("input.")?.to_string(), value.clone())))
        .collect();
    let data = folder.join("data.safetensors");
    save(&data, &inputs).unwrap();
    data
}

#[test]
fn a_trace_with_data_parallelism_takes_tensor_parallelism_on_another_axis() {
    let folder = tempfile::tempdir().unwrap();
    let record = recorded("data_parallel");
    let data = inputs_of(&record, folder.path());
    let columns_and_rows = "\"model.h.*.attn.qkv\" = \"colwise\"\n\"model.h.*.attn.out\" = \"rowwise\"\n\
                            \"model.h.*.mlp.0\" = \"colwise\"\n\"model.h.*.mlp.2\" = \"rowwise\"\n";
    // All-reduces and the tensors they carry. Those of the trace on dp: the loss, then the gradients of all 29 parameters at
    // once. Two a block on tp, in each direction.
    for (mesh, plan, forward, backward) in [
        ("dp=2", "", (1, 1), (1, 29)),
        ("tp=2", columns_and_rows, (4, 4), (4, 4)),
        ("dp=2,tp=2", columns_and_rows, (5, 5), (5, 33)),
    ] {
        let config = folder.path().join(format!("{mesh}.toml"));
        let text = format!(
            "[model]\nkind = \"file\"\npath = {:?}\nranks = 2\n[mesh]\nshape = \"{mesh}\"\n[data]\npath = {data:?}\n\
             [train]\nsteps = 5\n[optimizer]\nkind = \"adamw\"\nweight_decay = 0.1\nlearning_rate = 0.01\ndecay_1d = true\n\
             [checkpoint]\ndir = {:?}\n[plan]\n{plan}",
            pt2("data_parallel"),
            folder.path().join(format!("run-{mesh}")),
        );
        std::fs::write(&config, text).unwrap();
        let session = loaded(&config.to_string_lossy(), &[]);
        let (report, _) = session.verify_against(&record, &session.step_runner()).unwrap();
        assert!(report.ok, "{mesh}: {:?}", report.worst());
        let counts = counts(&session.lower(&session.build().unwrap()).unwrap(), 0);
        let [before, after] = [&counts.forward, &counts.backward].map(|phase| {
            let of = phase.of(CollectiveKind::AllReduce);
            (of.count, of.logical)
        });
        assert_eq!((before, after), (forward, backward), "{mesh}");
        if mesh == "dp=2" {
            assert_eq!(counts.forward.total().bytes, 4, "the loss and nothing else");
        }
        // Two processes of PyTorch with gloo lost as much.
        let (found, expected) = (losses(&session), record["steps.adamw"].to_f64());
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-3 * b.abs().max(1.0);
        assert!(found.len() == 5 && found.iter().zip(&expected).all(near), "{mesh}: {found:?} {expected:?}");
    }
}

#[test]
fn gradients_that_a_file_returns_are_not_those_of_the_step() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["mlp_joint", "mlp_uneven_joint"] {
        for mesh in ["fsdp=1", "fsdp=2", "fsdp=3"] {
            let config = folder.path().join(format!("{name}-{mesh}.toml"));
            let text = format!(
                "[model]\nkind = \"file\"\npath = {:?}\n[mesh]\nshape = \"{mesh}\"\n[plan]\n\"**\" = \"fsdp\"\n",
                pt2(name)
            );
            std::fs::write(&config, text).unwrap();
            let session = loaded(&config.to_string_lossy(), &[]);
            let (report, _) = session.verify_against(&recorded(name), &session.step_runner()).unwrap();
            let compared: Vec<&str> = report.tensors.iter().map(|tensor| tensor.tensor.as_str()).collect();
            assert!(report.ok, "{name} on {mesh}: {:?}", report.worst());
            for parameter in session.model().unwrap().params.keys() {
                assert!(compared.contains(&format!("grad.{parameter}").as_str()), "{compared:?}");
            }
        }
    }
}

#[test]
fn recorded_parameters_stand_instead_of_those_of_the_model_under_either_name() {
    let session = loaded(&pt2("mlp"), &["mesh.shape=dp=2"]);
    let model = session.model().unwrap();
    let plain = recorded("mlp");
    let with_parameters = |prefix: &str| {
        let mut record = plain.clone();
        for (name, value) in model.initial(0).unwrap() {
            let larger = value.to_f64().into_iter().map(|x| 1.5 * x);
            record.insert(format!("{prefix}{name}"), Literal::from_f64(&value.ty, larger));
        }
        session.verify_against(&record, &session.step_runner()).unwrap()
    };
    let errors = |(report, unknown): &(Report, Vec<String>)| {
        let told: Vec<&String> = unknown.iter().filter(|name| !name.starts_with("steps.")).collect();
        assert!(!report.ok && told.is_empty(), "{told:?}");
        report
            .tensors
            .iter()
            .map(|tensor| format!("{} {}", tensor.tensor, tensor.rel_error))
            .collect::<Vec<_>>()
    };
    let [own, input] = ["", "input."].map(|prefix| errors(&with_parameters(prefix)));
    assert_eq!(own, input);
}

/// A training step of `mean((tanh(a) b - y)^2)` with `a, b = split(x w, 2)`, as JAX lowers it.
const SPLIT_STEP: &str = r#"
module @step {
  func.func public @main(%arg0: tensor<4x16xf32> {tf.aliasing_output = 0 : i32} loc("p['w']"), %arg1: tensor<8x4xf32> loc("x"), %arg2: tensor<8x8xf32> loc("y")) -> (tensor<4x16xf32> {jax.result_info = "result[0]['w']"}, tensor<f32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %1 = stablehlo.slice %0 [0:8, 0:8] : (tensor<8x16xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.slice %0 [0:8, 8:16] : (tensor<8x16xf32>) -> tensor<8x8xf32>
    %3 = stablehlo.tanh %1 : tensor<8x8xf32>
    %one = stablehlo.constant dense<1.0> : tensor<8x8xf32>
    %4 = stablehlo.multiply %3, %3 : tensor<8x8xf32>
    %5 = stablehlo.subtract %one, %4 : tensor<8x8xf32>
    %6 = stablehlo.multiply %3, %2 : tensor<8x8xf32>
    %7 = stablehlo.subtract %6, %arg2 : tensor<8x8xf32>
    %8 = stablehlo.multiply %7, %7 : tensor<8x8xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %9 = stablehlo.reduce(%8 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    %count = stablehlo.constant dense<64.0> : tensor<f32>
    %10 = stablehlo.divide %9, %count : tensor<f32>
    %factor = stablehlo.constant dense<0.03125> : tensor<8x8xf32>
    %11 = stablehlo.multiply %7, %factor : tensor<8x8xf32>
    %12 = stablehlo.multiply %11, %3 : tensor<8x8xf32>
    %13 = stablehlo.multiply %11, %2 : tensor<8x8xf32>
    %14 = stablehlo.multiply %13, %5 : tensor<8x8xf32>
    %15 = stablehlo.concatenate %14, %12, dim = 1 : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x16xf32>
    %16 = stablehlo.dot_general %arg1, %15, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
    %rate = stablehlo.constant dense<0.1> : tensor<4x16xf32>
    %17 = stablehlo.multiply %rate, %16 : tensor<4x16xf32>
    %18 = stablehlo.subtract %arg0, %17 : tensor<4x16xf32>
    return %18, %10 : tensor<4x16xf32>, tensor<f32>
  }
}
"#;

#[test]
fn a_step_whose_parameter_is_split_trains_validates_saves_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.mlir");
    std::fs::write(&path, SPLIT_STEP).unwrap();
    for mesh in ["dp=1", "dp=2", "tp=2"] {
        let run = folder.path().join(format!("run-{mesh}"));
        let items = [format!("mesh.shape={mesh}"), format!("checkpoint.dir={}", run.display())];
        let steps = |steps: &str| {
            let mut items = vec![items[0].as_str(), items[1].as_str(), steps];
            items.extend(mesh.contains("tp").then_some(REPEATS));
            loaded(&path.to_string_lossy(), &items)
        };
        let mut trainer = Trainer::start(&steps("train.steps=3"), None).unwrap();
        let finished = trainer.fit(&mut Unobserved, &AtomicBool::new(false)).unwrap();
        assert!(finished.validation_loss.is_some_and(f64::is_finite), "{mesh}");
        drop(trainer);
        let saved = partita::run_files::Saved::at(&run).unwrap();
        let names: Vec<String> = saved.checkpoint().unwrap().tensors.keys().cloned().collect();
        assert_eq!((saved.step(), names), (3, vec!["p.w".to_string()]));
        let mut on = Trainer::start(&steps("train.steps=5"), Some(&saved)).unwrap();
        on.fit(&mut Unobserved, &AtomicBool::new(false)).unwrap();
    }
}

#[test]
fn inputs_and_outputs_whose_names_a_step_has_itself_are_those_of_the_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names.mlir");
    let text = r#"
module @names {
  func.func public @main(%arg0: tensor<2xf32> loc("w"), %arg1: tensor<6x2xf32> loc("x.micro0"), %arg2: tensor<6x2xf32> loc("seed"), %arg3: tensor<f32> loc("learning_rate"), %arg4: tensor<f32> loc("step")) -> (tensor<f32> {jax.result_info = "total"}, tensor<2xf32> {jax.result_info = "grad.w"}, tensor<f32> {jax.result_info = "grad_norm"}) {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [1] : (tensor<2xf32>) -> tensor<6x2xf32>
    %1 = stablehlo.multiply %0, %arg1 : tensor<6x2xf32>
    %2 = stablehlo.add %1, %arg2 : tensor<6x2xf32>
    %3 = stablehlo.multiply %2, %2 : tensor<6x2xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<6x2xf32>, tensor<f32>) -> tensor<f32>
    %5 = stablehlo.multiply %4, %arg3 : tensor<f32>
    %6 = stablehlo.multiply %5, %arg4 : tensor<f32>
    %7 = stablehlo.add %arg0, %arg0 : tensor<2xf32>
    return %6, %7, %4 : tensor<f32>, tensor<2xf32>, tensor<f32>
  }
}
"#;
    std::fs::write(&path, text).unwrap();
    let f32s = |shape: &[usize], values: &[f64]| {
        Literal::from_f64(&TensorType::new(DType::F32, shape), values.iter().copied())
    };
    let (x, seed) = ((1..=12).map(|i| f64::from(i) / 8.0), (1..=12).map(|i| f64::from(i % 5) / 4.0));
    let (x, seed): (Vec<f64>, Vec<f64>) = (x.collect(), seed.collect());
    let (w, rate, step) = ([0.5, -0.25], 0.75, 3.0);
    let sums: Vec<f64> = (0..12).map(|i| w[i % 2] * x[i] + seed[i]).collect();
    let squares: f64 = sums.iter().map(|s| s * s).sum();
    let gradient =
        |column: usize| (column..12).step_by(2).map(|i| 2.0 * sums[i] * x[i]).sum::<f64>() * rate * step;
    let mut record = Fed::new();
    for (name, value) in [
        ("input.w", f32s(&[2], &w)),
        ("x.micro0", f32s(&[6, 2], &x)),
        ("input.seed", f32s(&[6, 2], &seed)),
        ("learning_rate", f32s(&[], &[rate])),
        ("step", f32s(&[], &[step])),
        ("loss", f32s(&[], &[squares * rate * step])),
        ("grad.w", f32s(&[2], &[gradient(0), gradient(1)])),
        ("output.1", f32s(&[2], &[1.0, -0.5])),
        ("grad_norm", f32s(&[], &[squares])),
    ] {
        record.insert(name.to_string(), value);
    }
    for mesh in ["dp=1", "dp=2", "fsdp=2"] {
        let run = format!("checkpoint.dir={}", folder.path().join(mesh).display());
        let items = [&format!("mesh.shape={mesh}"), "model.parameters=[\"w\"]", "model.loss=total", &run];
        let session = loaded(&path.to_string_lossy(), &items);
        let (report, unknown) = session.verify_against(&record, &session.step_runner()).unwrap();
        let compared: Vec<&str> = report.tensors.iter().map(|tensor| tensor.tensor.as_str()).collect();
        assert!(report.ok && unknown.is_empty(), "{mesh}: {:?} {unknown:?}", report.worst());
        for name in ["loss", "grad.w", "grad_.w", "grad_norm_"] {
            assert!(compared.contains(&name), "{name} is not among {compared:?}");
        }
        assert_eq!(losses(&session).len() as u64, session.config().train.steps);
    }
}

#[test]
fn what_a_file_fixes_is_not_overridden() {
    let refused = |items: &[&str]| Config::load(&pt2("mlp"), &overrides(items)).map(|_| ()).unwrap_err();
    assert_eq!(refused(&["train.batch=3"]).code, "E050");
    assert_eq!(refused(&["train.dtype=bf16"]).code, "E050");
    assert_eq!(refused(&["model.loss=nothing"]).code, "E360");
    assert_eq!(Config::load("nowhere.pt2", &[]).map(|_| ()).unwrap_err().code, "E350");
    // A symbolic batch has any number of rows.
    let session = loaded(&pt2("mlp_dynamic"), &["train.batch=10", "mesh.shape=dp=2"]);
    assert!(session.verify(10, &session.step_runner(), &Unwatched).unwrap().report.ok);
}

/// A training step of an MLP as text: donated pairs, marked gradients.
fn step_of_mlp(folder: &Path, batch: usize) -> (String, Session) {
    let session =
        crate::session("mlp", &["model.dims=[6,8,8,4]", &format!("train.batch={batch}"), "train.dtype=f64"]);
    let options = StepOptions::new(Optimizer::from_name("adamw").unwrap());
    let step = partita_nn::train_step(&session.model().unwrap().forward, &options).unwrap();
    let path = folder.join("step.mlir");
    std::fs::write(&path, text::print(&step)).unwrap();
    (path.to_string_lossy().into_owned(), session)
}

#[test]
fn a_training_step_in_stablehlo_trains_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (file, session) = step_of_mlp(folder.path(), 8);
    let model = session.model().unwrap();
    let initial = folder.path().join("initial.safetensors");
    save(&initial, &model.initial(1).unwrap()).unwrap();
    let batches: IndexMap<String, Literal> = random_feed(&model, 3, 0.0)
        .into_iter()
        .filter(|(name, _)| ["inputs", "targets"].contains(&name.as_str()))
        .collect();
    let data = folder.path().join("data.safetensors");
    save(&data, &batches).unwrap();
    let own = {
        let options = StepOptions::new(Optimizer::from_name("adamw").unwrap());
        let mut step = partita_nn::train_step(&model.forward, &options).unwrap();
        let built = Built::solo(&std::mem::take(&mut step), &session.step_runner()).unwrap();
        let mut step = PlannedStep::new(&built, &model, 1, session.runner_options()).unwrap();
        (0..4).map(|_| step.step(&batches, 0.01).unwrap().loss).collect::<Vec<f64>>()
    };
    for (number, (mesh, microbatches)) in
        [("dp=1", 1), ("dp=2", 1), ("dp=2", 2), ("pp=2", 2)].into_iter().enumerate()
    {
        let items = [
            format!("mesh.shape={mesh}"),
            format!("train.microbatches={microbatches}"),
            format!("model.weights={}", initial.display()),
            format!("data.path={}", data.display()),
            format!("checkpoint.dir={}", folder.path().join(number.to_string()).display()),
            "train.steps=4".to_string(),
            "optimizer.learning_rate=0.01".to_string(),
        ];
        let items: Vec<&str> = items.iter().map(String::as_str).collect();
        let session = loaded(&file, &items);
        assert!(session.model().unwrap().is_step());
        let verified = session.verify(8, &session.step_runner(), &Unwatched).unwrap();
        assert!(verified.report.ok, "{mesh}: {:?}", verified.report.worst());
        let found = losses(&session);
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9 * b.abs();
        assert!(
            found.len() == 4 && found.iter().zip(&own).all(near),
            "{mesh} {microbatches}: {found:?} {own:?}"
        );
        assert!(found[3] < found[0]);
    }
}

/// JAX keeps parameters in f32 and computes in bf16. The CPU device rounds sums once, the interpreter each term.
#[test]
fn a_step_that_computes_in_bf16_is_verified_within_the_rounding_of_bf16() {
    let mut file = std::fs::read_to_string(folder().join("../jax/models.mlir")).unwrap();
    file.drain(..file.find("module @jit_decoder_bf16").unwrap());
    file.truncate(file.find("// -----").unwrap());
    // The first 13 arguments are the state, which the results replace in order.
    for number in 0..13 {
        let at = file.find(&format!("%arg{number}: ")).unwrap();
        let end = at + file[at..].find('>').unwrap() + 1;
        file.insert_str(end, &format!(" {{tf.aliasing_output = {number} : i32}}"));
    }
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("decoder.mlir");
    std::fs::write(&path, file).unwrap();
    for mesh in ["dp=1", "dp=2"] {
        let session = loaded(path.to_str().unwrap(), &[&format!("mesh.shape={mesh}")]);
        let report = session.verify(4, &session.step_runner(), &Unwatched).unwrap().report;
        assert!(
            report.ok && report.tolerance == tolerance(DType::BF16),
            "{mesh}: {} {:?}",
            report.tolerance,
            report.worst()
        );
    }
}

#[test]
fn a_forward_pass_in_stablehlo_is_differentiated_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("forward.mlir");
    std::fs::write(
        &path,
        "func.func @main(%arg0: tensor<4x3xf64> {partita.name = \"x\"}, %arg1: tensor<3xf64> {partita.name = \"params.w\"}) \
         -> (tensor<4xf64>, tensor<f64>) {\n\
         %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : \
         (tensor<4x3xf64>, tensor<3xf64>) -> tensor<4xf64>\n\
         %1 = stablehlo.multiply %0, %0 : tensor<4xf64>\n%c = stablehlo.constant dense<0.0> : tensor<f64>\n\
         %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [0] : \
         (tensor<4xf64>, tensor<f64>) -> tensor<f64>\n\
         return %0, %2 : tensor<4xf64>, tensor<f64>\n}",
    )
    .unwrap();
    let file = path.to_string_lossy().into_owned();
    let session = loaded(&file, &["model.parameters=[\"params*\"]", "mesh.shape=dp=2"]);
    assert!(
        session.config().notes.iter().any(|note| note.contains("stop_gradient")),
        "{:?}",
        session.config().notes
    );
    assert!(session.verify(4, &session.step_runner(), &Unwatched).unwrap().report.ok);
    let x = Literal::from_f64(&TensorType::new(DType::F64, [4, 3]), (0..12).map(f64::from));
    let w = Literal::from_f64(&TensorType::new(DType::F64, [3]), [1.0, -1.0, 2.0].into_iter());
    // y = x w is [3, 9, 15, 21]; the loss is y y, its gradient 2 x^T y.
    let y = [3.0, 9.0, 15.0, 21.0];
    let gradient: Vec<f64> =
        (0..3).map(|k| 2.0 * (0..4).map(|i| (3 * i + k) as f64 * y[i]).sum::<f64>()).collect();
    let of = |numbers: &[f64]| {
        Literal::from_f64(&TensorType::new(DType::F64, [numbers.len()]), numbers.iter().copied())
    };
    let recorded = IndexMap::from([
        ("x".to_string(), x),
        ("params.w".to_string(), w),
        ("result0".to_string(), of(&y)),
        ("grad.params.w".to_string(), of(&gradient)),
        ("loss".to_string(), Literal::scalar(DType::F64, y.iter().map(|y| y * y).sum())),
    ]);
    let (report, _) = session.verify_against(&recorded, &session.step_runner()).unwrap();
    assert!(report.ok && report.tensors.len() == 3, "{report:?}");
    let error = Config::load(&file, &overrides(&["model.parameters=[\"weights\"]"])).map(|_| ()).unwrap_err();
    assert_eq!(error.code, "E360");
}

/// The gradients of a model without a loss are those of the sum of its outputs, each times a recorded cotangent, or one.
#[test]
fn a_model_without_a_loss_is_compared_with_a_record() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("product.mlir");
    std::fs::write(
        &path,
        "func.func @main(%arg0: tensor<4x3xf64> {partita.name = \"x\"}, %arg1: tensor<3xf64> {partita.name = \"params.w\"}) \
         -> tensor<4xf64> {\n\
         %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : \
         (tensor<4x3xf64>, tensor<3xf64>) -> tensor<4xf64>\nreturn %0 : tensor<4xf64>\n}",
    )
    .unwrap();
    let of = |shape: &[usize], numbers: &[f64]| {
        Literal::from_f64(&TensorType::new(DType::F64, shape), numbers.iter().copied())
    };
    let mut record = IndexMap::from([
        ("x".to_string(), of(&[4, 3], &(0..12).map(f64::from).collect::<Vec<_>>())),
        ("params.w".to_string(), of(&[3], &[1.0, -1.0, 2.0])),
        ("output".to_string(), of(&[4], &[3.0, 9.0, 15.0, 21.0])),
    ]);
    // The sums of the columns of x, and those of its rows times 1, 0, 0, 2.
    for (cotangent, gradient) in
        [(None, [18.0, 22.0, 26.0]), (Some([1.0, 0.0, 0.0, 2.0]), [18.0, 21.0, 24.0])]
    {
        record.insert("grad.params.w".to_string(), of(&[3], &gradient));
        if let Some(cotangent) = cotangent {
            record.insert("cotangent.output".to_string(), of(&[4], &cotangent));
        }
        for mesh in ["dp=1", "dp=2"] {
            let items = ["model.parameters=[\"params*\"]", &format!("mesh.shape={mesh}")];
            let session = loaded(path.to_str().unwrap(), &items);
            let (report, unknown) = session.verify_against(&record, &session.step_runner()).unwrap();
            assert!(report.ok && report.tensors.len() == 2 && unknown.is_empty(), "{report:?} {unknown:?}");
        }
    }
}

#[test]
fn a_step_of_jax_that_donates_nothing_says_what_could_be_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.mlir");
    std::fs::write(
        &path,
        "func.func public @main(%arg0: tensor<3xf32>, %arg1: tensor<8x3xf32>) -> \
         (tensor<f32>, tensor<3xf32>) {\n\
         %0 = stablehlo.dot_general %arg1, %arg0, contracting_dims = [1] x [0] : (tensor<8x3xf32>, tensor<3xf32>) -> tensor<8xf32>\n\
         %1 = stablehlo.multiply %0, %0 : tensor<8xf32>\n%c = stablehlo.constant dense<0.0> : tensor<f32>\n\
         %2 = stablehlo.reduce(%1 init: %c) applies stablehlo.add across dimensions = [0] : \
         (tensor<8xf32>, tensor<f32>) -> tensor<f32>\n\
         %3 = stablehlo.add %arg0, %arg0 : tensor<3xf32>\nreturn %2, %3 : tensor<f32>, tensor<3xf32>\n}",
    )
    .unwrap();
    let file = path.to_string_lossy().into_owned();
    let session = loaded(&file, &[]);
    let rows = session.config().train.batch;
    for error in [
        session.build().map(|_| ()).unwrap_err(),
        session.verify(rows, &session.step_runner(), &Unwatched).map(|_| ()).unwrap_err(),
    ] {
        assert_eq!((error.code, error.at.as_deref()), ("E055", Some(file.as_str())), "{error}");
        let text = error.to_string();
        let pair = "model.state=[\"arg0=result1\"]";
        for words in ["tf.aliasing_output", "(tensor<3xf32>)", "donate_argnums", "model.parameters", pair] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    // As it says.
    let trained = loaded(&file, &["model.state=[\"arg0=result1\"]"]);
    assert!(trained.build().is_ok());
}

#[test]
fn a_function_gives_the_same_results_on_any_mesh() {
    let text = "func.func @f(%seed: tensor<5x3xf32>, %s: tensor<f32>) -> (tensor<3xf32>, tensor<5x3xf32>) {\n\
                %e = tensor.empty() : tensor<3xf32>\n%z = arith.constant 0.0 : f32\n\
                %o = linalg.fill ins(%z : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>\n\
                %r = linalg.reduce { arith.addf } ins(%seed : tensor<5x3xf32>) outs(%o : tensor<3xf32>) dimensions = [0]\n\
                %q = arith.mulf %seed, %seed : tensor<5x3xf32>\nreturn %r, %q : tensor<3xf32>, tensor<5x3xf32>\n}";
    let numbers = Literal::from_f64(&TensorType::new(DType::F32, [5, 3]), (0..15).map(f64::from));
    let arguments = [numbers, Literal::scalar(DType::F32, 2.0)];
    for mesh in ["dp=1", "dp=2", "dp=3,tp=2"] {
        let results = partita::run_function(text, "f.mlir", Some("f"), &arguments, mesh).unwrap();
        assert_eq!(results[0].to_f64(), [30.0, 35.0, 40.0], "{mesh}");
        assert_eq!(results[1].to_f64(), (0..15).map(|n| f64::from(n * n)).collect::<Vec<_>>(), "{mesh}");
    }
    let function = partita::function::Function::read(text, "f.mlir", None).unwrap();
    let given = |texts: &[&str]| {
        let texts: Vec<String> = texts.iter().map(|text| text.to_string()).collect();
        function.arguments(&texts, 1, MemoryLimit::default())
    };
    assert_eq!(given(&["1", "0.5"]).unwrap()[0].to_f64(), [1.0; 15]);
    assert_eq!(given(&["1,2", "0.5"]).unwrap_err().code, "E415");
    assert_eq!(given(&["1", "x"]).unwrap_err().code, "E415");
    for beyond in ["1e99", "-1e99", "1e999"] {
        let error = given(&["1", beyond]).unwrap_err();
        assert!(error.code == "E415" && error.found.as_deref().unwrap().contains("beyond f32"), "{error}");
    }
    assert_eq!(given(&["1", "-inf"]).unwrap()[1].to_f64(), [f64::NEG_INFINITY]);
    let error = partita::function::Function::read(text, "f.mlir", Some("g")).unwrap_err();
    assert!(error.code == "E143" && error.to_string().contains('f'), "{error}");
    let plain = "func.func @one(%a: tensor<f32>) -> tensor<f32> {\nreturn %a : tensor<f32>\n}\n\
                 func.func private @two(%a: tensor<f32>) -> tensor<f32> {\nreturn %a : tensor<f32>\n}";
    let error = partita::function::Function::read(plain, "f.mlir", Some("three")).unwrap_err();
    assert!(error.code == "E143" && error.to_string().contains("one, two"), "{error}");
    assert_eq!(given(&["1", "2", "3"]).unwrap_err().code, "E414");
}

/// A file may name arguments as JAX does, or with dots as models do.
#[test]
fn arguments_in_a_file_have_the_names_of_the_text_or_of_models() {
    let folder = tempfile::tempdir().unwrap();
    let text = "func.func @main(%arg0: tensor<2xf32> loc(\"b['x']\"), %arg1: tensor<f32> loc(\"s\")) -> tensor<2xf32> {\n\
                return %arg0 : tensor<2xf32>\n}";
    let function = partita::function::Function::read(text, "f.mlir", None).unwrap();
    let given = |name: &str| {
        let path = folder.path().join("x.safetensors");
        let tensors = IndexMap::from([(name.to_string(), Literal::new([2], vec![3.0f32, 4.0]))]);
        save(&path, &tensors).unwrap();
        function.arguments(&[path.display().to_string()], 1, MemoryLimit::default())
    };
    for name in ["b['x']", "b.x"] {
        assert_eq!(given(name).unwrap()[0].to_f64(), [3.0, 4.0], "{name}");
    }
    assert_eq!(given("b.y").unwrap_err().code, "E414");
}
