//! `estimate` of models without repeated layers: its bytes are those of the whole step, and its counts the fewest.

use super::session;
use partita::Session;
use partita::predict::estimate::{Choice, Fit, needs};
use partita_ir::text;
use partita_nn::{Optimizer, StepOptions};
use partita_testkit::overrides;
use std::path::Path;

/// What a process takes beside its tensors.
const CONTEXT: u64 = 800_000_000;

/// The step of a choice on so many devices with so many rows of a device, as the config of a user says it.
fn step(model: &str, more: &[&str], choice: &Choice, devices: usize, rows: usize) -> Session {
    let name = choice.strategy.name();
    let axis = match name {
        "tp" => "tp",
        "fsdp" if devices > 1 => "fsdp",
        _ => "dp",
    };
    let batch = if axis == "tp" { rows } else { rows * devices };
    let mut items = vec![
        format!("mesh.shape='{axis}={devices}'"),
        format!("train.batch={batch}"),
        format!("optimizer.kind={}", choice.optimizer),
    ];
    if devices > 1 && name.starts_with("zero") {
        items.push(format!("plan.\"**\"='{name}'"));
    }
    if choice.recompute {
        items.push("plan.\"layers.*\"='checkpoint'".to_string());
    }
    let items: Vec<&str> = more.iter().copied().chain(items.iter().map(String::as_str)).collect();
    session(model, &items)
}

#[test]
fn bytes_are_those_of_the_whole_step_and_devices_the_fewest() {
    let small = ["model.dim=32", "model.blocks=[1,1]", "model.image=32", "model.stem=3", "model.classes=10"];
    for (model, sizes, memory) in [("wide-resnet-250m", &small[..], 6_000_000), ("unet", &[], 450_000)] {
        let memory = format!("cluster.memory_bytes={}", CONTEXT + memory);
        let cluster = ["cluster.name=a100-80g", memory.as_str(), "train.precision=bf16", "plan.strict=false"];
        let more = [sizes, &cluster].concat();
        let found = needs(&session(model, &more), 16, &|_, _| {}).unwrap_or_else(|error| panic!("{error}"));
        let limit = session(model, &more).config().cluster.device.memory_bytes - CONTEXT;
        let mut counts = Vec::new();
        for need in found.choices.iter().filter(|need| !need.choice.offload) {
            let choice = &need.choice;
            let bytes = |devices, rows| step(model, &more, choice, devices, rows).price().unwrap().bytes();
            let Some(Fit { devices, bytes: one, rows, .. }) = need.fewest else {
                assert!(need.least_bytes as u64 > limit, "{choice:?}");
                continue;
            };
            counts.push(devices);
            assert_eq!(one.total() as u64, bytes(devices, 1), "{model}: {choice:?} on {devices}");
            assert!(devices == 1 || bytes(devices / 2, 1) > limit, "{model}: {choice:?} on {devices}");
            assert!(bytes(devices, rows) <= limit, "{model}: {choice:?} with {rows} rows");
            // Bytes are nearly a line in the rows.
            assert!(
                rows == found.most_rows || bytes(devices, rows + 2) > limit,
                "{model}: {choice:?} with {rows} rows"
            );
        }
        counts.sort_unstable();
        counts.dedup();
        assert!(counts.len() > 1, "{model}: {counts:?}");
    }
}

/// Of a model with repeated layers any microbatch is tried: the rows of a device are the most that fit, whose
/// bytes are a line in the rows.
#[test]
fn rows_of_a_folded_model_are_the_most_that_fit() {
    let memory = |bytes: u64| format!("cluster.memory_bytes={}", CONTEXT + bytes);
    let rows = |bytes: u64| -> usize {
        let session = session("gpt", &["cluster.name=a100-80g", memory(bytes).as_str()]);
        let found = needs(&session, 1, &|_, _| {}).unwrap();
        let first = found.choices[0].fewest.as_ref().unwrap();
        let limit = bytes as f64;
        assert!(first.bytes.total() <= limit && first.rows < found.most_rows, "{first:?}");
        first.rows
    };
    let [few, twice, more] = [100 << 20, 200 << 20, 400 << 20].map(rows);
    assert!(few > 64, "{few}");
    assert!((more - twice).abs_diff(2 * (twice - few)) <= 2, "{few}, {twice}, {more}");
}

/// A batch that a file fixes is shared by the devices.
#[test]
fn a_fixed_batch_is_shared() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2");
    let file = folder.join("gpt.pt2").to_string_lossy().into_owned();
    let session = Session::load(&file, &overrides(&["cluster.name=a100-80g"])).unwrap();
    let rows = session.config().model.terms().rows.unwrap();
    let found = needs(&session, 4, &|_, _| {}).unwrap();
    assert_eq!(found.batch, Some(rows));
    assert!(found.choices.iter().all(|need| need.fewest.as_ref().is_some_and(|fit| fit.rows == rows)));
    assert_eq!(found.parameters, session.model().unwrap().parameter_count() as f64);
}

/// A batch that a file bounds has at least and at most so many rows: one row is too few here.
#[test]
fn rows_are_within_the_bounds_of_a_file() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2/mlp_dynamic.pt2");
    let session =
        Session::load(&file.to_string_lossy(), &overrides(&["cluster.name=a100-80g", "train.batch=8"]))
            .unwrap();
    assert_eq!(session.config().model.terms().row_bounds, Some([2, 64]));
    let found = needs(&session, 4, &|_, _| {}).unwrap_or_else(|error| panic!("{error}"));
    let rows: Vec<_> = found.choices.iter().map(|need| need.fewest.as_ref().map(|fit| fit.rows)).collect();
    assert!(!rows.is_empty() && rows.iter().all(|rows| *rows == Some(64)), "{rows:?}");
}

/// A training step with its own update takes no other optimizer.
#[test]
fn a_step_of_its_own_is_refused() {
    let model = session("mlp", &["train.batch=8"]).model().unwrap();
    let options = StepOptions::new(Optimizer::from_name("adamw").unwrap());
    let step = partita_nn::train_step(&model.forward, &options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("step.mlir");
    std::fs::write(&file, text::print(&step)).unwrap();
    let session = Session::load(&file.to_string_lossy(), &[]).unwrap();
    assert!(session.model().unwrap().is_step());
    let error = needs(&session, 4, &|_, _| {}).unwrap_err();
    assert!(error.code == "E511" && error.to_string().contains("its own update"), "{error}");
}
