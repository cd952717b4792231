//! Models imported from PyTorch (`tests/pt2`) under plans: equal to one device on every mesh, their
//! modules found by the names that they have in PyTorch.

use crate::common::ok;
use partita_import::{ImportOptions, Limits, Pt2};
use partita_ir::Registry;
use partita_mesh::Mesh;
use partita_nn::{Model, Optimizer, StepOptions};
use partita_schedule::verify::{Interpreter, Unwatched, Verification};
use partita_schedule::{BuildContext, BuildOptions, Plan};
use std::path::Path;

fn model(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/pt2/{name}.pt2"));
    ok(ok(Pt2::open(&path, &Limits::default())).import(&ImportOptions::default())).model
}

/// The models, and which of their modules a tensor-parallel plan cuts: columns, rows.
const MODELS: &[(&str, &[&str], &[&str])] = &[
    ("mlp", &["model.0"], &["model.2"]),
    ("gpt", &["h.*.attn.qkv", "h.*.mlp.0"], &["h.*.attn.out", "h.*.mlp.2"]),
    ("gpt_manual", &["h.*.attn.qkv", "h.*.mlp.0"], &["h.*.attn.out", "h.*.mlp.2"]),
    ("bert", &["layer.linear1"], &["layer.linear2"]),
    ("llama", &["layers.*.gate", "layers.*.up"], &["layers.*.down"]),
    ("conv", &[], &[]),
    ("lstm", &[], &[]),
    ("frozen", &[], &["model.4"]),
    ("buffers", &[], &[]),
    ("detach", &["model.a"], &[]),
    ("no_grad", &["model.a"], &["model.b"]),
    ("straight_through", &["model.a"], &["model.b"]),
    ("in_place", &[], &[]),
    ("shared", &[], &["model.b"]),
];

/// Verifies one step of every model under the plan that `plan` gives.
fn verified(mesh: &str, models: &[&str], plan: impl Fn(&[&str], &[&str]) -> String) {
    let mesh = ok(Mesh::parse(mesh, None));
    let options = StepOptions { grad_norm: false, ..StepOptions::new(Optimizer::sgd()) };
    for (name, columns, rows) in MODELS {
        if !models.is_empty() && !models.contains(name) {
            continue;
        }
        let model = model(name);
        let verification = Verification {
            model: &model,
            precise: None,
            options: &BuildOptions::new(options.clone()).for_verification(),
            context: BuildContext { registry: &Registry::default(), runner: &Interpreter },
            seed: 1,
            learning_rate: 0.1,
            watcher: &Unwatched,
        };
        let plan = ok(Plan::from_toml(&plan(columns, rows), "test"));
        let report = ok(verification.run(&plan, &mesh)).report;
        assert!(report.ok, "{name} on {mesh:?}: {:?}", report.worst());
        let gradients = report.tensors.iter().filter(|tensor| tensor.tensor.starts_with("grad.")).count();
        assert_eq!(gradients, model.params.len(), "{name}");
    }
}

fn unplanned(_: &[&str], _: &[&str]) -> String {
    "[plan]\n".to_string()
}

fn tensor_parallel(columns: &[&str], rows: &[&str]) -> String {
    let line = |module: &&str, style: &str| format!("\"{module}\" = \"{style}\"\n");
    let columns: String = columns.iter().map(|module| line(module, "colwise")).collect();
    let rows: String = rows.iter().map(|module| line(module, "rowwise")).collect();
    format!("[plan]\n{columns}{rows}")
}

#[test]
fn imported_models_run_data_parallel() {
    verified("dp=2", &[], unplanned);
    verified("fsdp=4", &[], |_, _| "[plan]\n\"*\" = \"fsdp\"\n".to_string());
}

#[test]
fn imported_models_run_tensor_parallel() {
    verified("tp=2", &[], tensor_parallel);
    verified("dp=2,tp=2", &["mlp", "gpt", "bert", "llama"], tensor_parallel);
}

#[test]
fn imported_models_run_in_pipelines() {
    verified("pp=2", &["mlp", "gpt", "bert", "lstm", "conv", "frozen"], unplanned);
}
