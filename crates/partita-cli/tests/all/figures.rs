//! The figures of a step are the same, to the digit printed, in `simulate`, `plan`, `report` and `train`.

use crate::place;
use partita_testkit::Place;
use serde_json::Value;
use std::collections::BTreeMap;

/// Steps that run whole over a clock, and folded ones that the report shows whole or by slices.
const STEPS: [&str; 5] = [
    "gpt --mesh pp=2,tp=2 --microbatches 4",
    "gpt --mesh dp=2,tp=2 --cluster a100-80g:1x4 --precision bf16 --microbatches 1",
    "llama3-8b --mesh fsdp=8 --cluster h100-80g:1x8 --dtype bf16 --batch 64 --microbatches 8",
    "llama3-8b --mesh fsdp=4,tp=2 --cluster h100-80g:1x8 --dtype bf16 --batch 64 --microbatches 8",
    "llama3-70b --mesh pp=8,dp=4,tp=8 --cluster h100-80g:32x8 --dtype bf16 --batch 256 --microbatches 32",
];

/// The facts of a report as JSON, by name.
fn facts(place: &Place, step: &[&str]) -> BTreeMap<String, String> {
    let outcome = place.run(&[&["report"], step, &["--out", "r.json"]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let bytes = std::fs::read(place.path("r.json")).unwrap();
    std::fs::remove_file(place.path("r.json")).unwrap();
    let report: Value = serde_json::from_slice(&bytes).unwrap();
    stays_under_its_marks(&report);
    serde_json::from_value::<Vec<(String, String)>>(report["facts"].clone()).unwrap().into_iter().collect()
}

/// Memory over time never takes more than is allocated, the first mark.
fn stays_under_its_marks(report: &Value) {
    for section in report["sections"].as_array().unwrap() {
        let body = &section["body"];
        let Some(allocated) = body["marks"][0][1].as_f64() else { continue };
        let series = body["series"].as_array().unwrap();
        for moment in 0..series[0]["points"].as_array().unwrap().len() {
            let used: f64 = series.iter().map(|one| one["points"][moment][1].as_f64().unwrap()).sum();
            assert!(used <= allocated, "{}: {used} of {allocated}", section["title"]);
        }
    }
}

/// What `simulate` prints is what the report of the step says.
fn simulates_what_is_reported(place: &Place, step: &[&str], of: &BTreeMap<String, String>) {
    let simulated = place.run(&[&["simulate"], step].concat()).out;
    let (time, throughput, rate) = (&of["predicted step"], &of["throughput"], &of["model FLOPs of a rank"]);
    let parameters = &of["parameters"];
    let line = format!(
        "{parameters} parameters, {time} a step, {throughput}, {rate} a rank ({} of the peak)",
        of["MFU"]
    );
    assert!(simulated.contains(&line), "{step:?}: {line}\n{simulated}");
    let peak = format!("  {}  ", peak(of));
    assert!(simulated.contains(&peak), "{step:?}: {peak}\n{simulated}");
}

/// The first amount of `61.8 GiB of 80.0 GiB`.
fn peak(of: &BTreeMap<String, String>) -> &str {
    of["peak memory"].split(" of ").next().unwrap()
}

#[test]
fn simulate_and_report_print_the_same_figures() {
    for step in STEPS {
        let place = place();
        let step: Vec<&str> = step.split(' ').collect();
        let of = facts(&place, &step);
        simulates_what_is_reported(&place, &step, &of);
        // The page has the very facts.
        place.run(&[&["report"], &step[..], &["--out", "r.html"]].concat());
        let page = std::fs::read_to_string(place.path("r.html")).unwrap();
        for (name, value) in &of {
            assert!(page.contains(&format!("[\"{name}\",\"{value}\"]")), "{step:?}: {name} {value}");
        }
    }
}

#[test]
fn a_plan_that_was_found_is_reported_with_the_figures_that_plan_prints() {
    for step in STEPS {
        let place = place();
        let step: Vec<&str> = step.split(' ').collect();
        let planned = place.run(&[&["plan"], &step[..], &["--out", "found.toml"]].concat()).out;
        let step = [&step[..], &["--plan", "found.toml"]].concat();
        let of = facts(&place, &step);
        let first = planned.lines().next().unwrap();
        let (time, peak) =
            (format!("a step takes {} on", of["predicted step"]), format!(", {} on", peak(&of)));
        assert!(first.contains(&time) && first.contains(&peak), "{step:?}: {of:?}\n{first}");
        simulates_what_is_reported(&place, &step, &of);
    }
}

#[test]
fn the_figures_of_a_model_card_are_those_that_are_printed() {
    let step = "llama3-8b --mesh fsdp=8 --cluster h100-80g:1x8 --dtype bf16 --batch 64 --microbatches 8";
    let of = facts(&place(), &step.split(' ').collect::<Vec<_>>());
    let expected = [
        ("model", "llama3-8b"),
        ("parameters", "8.03 B"),
        ("computes in", "bf16"),
        ("batch", "64 rows of 8192 tokens"),
        ("mesh", "fsdp=8"),
        ("ranks", "8"),
        ("cluster", "h100-80g:1x8"),
    ];
    expected.iter().for_each(|(name, value)| assert_eq!(of[*name], *value));
    // Sizes of another model have no name, and a precision is that of the computation.
    let of = facts(
        &place(),
        &["llama3-8b", "--set", "model.layers=1", "--set", "model.dim=256", "--precision", "bf16"],
    );
    assert_eq!((&*of["model"], &*of["computes in"]), ("llama", "bf16, parameters in f32"));
}

#[test]
fn a_run_prints_the_parameters_and_the_memory_that_its_report_does() {
    let place = place();
    let of = facts(&place, &["gpt", "--mesh", "dp=2"]);
    let trained =
        place.run(&["train", "gpt", "--mesh", "dp=2", "--steps", "1", "--no-verify", "--no-sample"]);
    assert_eq!(trained.code, Some(0), "{}", trained.err);
    let printed = trained.out + &trained.err;
    for figure in [format!("gpt with {} parameters on", of["parameters"]), format!("memory {} ", peak(&of))] {
        assert!(printed.contains(&figure), "{figure}\n{printed}");
    }
}

/// A cluster without launch times, and one of which the mesh of the config uses little, are told of; others are not.
#[test]
fn what_a_prediction_leaves_out_is_told() {
    let said = |arguments: &[&str]| {
        let outcome = place().run(arguments);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        outcome.out + &outcome.err
    };
    let (launches, devices) =
        ("without the time that a kernel takes to launch", "`--mesh dp=-1` uses all of them");
    for (arguments, [has_launches, has_devices]) in [
        (&["simulate", "mlp", "--cluster", "a100-80g:2x8"][..], [false, true]),
        (&["simulate", "mlp", "--cluster", "a100-80g:2x8", "--mesh", "dp=2"], [false, false]),
        (&["simulate", "mlp", "--cluster", "h100-8", "--mesh", "dp=2"], [true, false]),
        (&["report", "mlp", "--cluster", "h100-8", "--mesh", "dp=2", "--out", "r.html"], [true, false]),
        (&["report", "mlp", "--cluster", "h100-8", "--out", "r.html"], [true, true]),
        (&["plan", "mlp", "--cluster", "h100-8", "--mesh", "dp=2"], [true, false]),
        (&["simulate", "mlp"], [false, false]),
    ] {
        let text = said(arguments);
        assert_eq!([text.contains(launches), text.contains(devices)], [has_launches, has_devices], "{text}");
    }
    let text = said(&["simulate", "mlp", "--cluster", "a100-80g:128x8"]);
    assert!(text.contains("uses 2 of the 1024 devices of cluster `a100-80g:128x8`"), "{text}");
    let text = said(&["simulate", "mlp", "--cluster", "h100-8", "--mesh", "dp=2"]);
    assert!(text.contains("`--cluster h100-80g:1x8` has it"), "{text}");
}

/// Throughput of images is in images, whatever the model does with them, and JSON has the rows of every model.
#[test]
fn throughput_is_in_tokens_where_rows_have_some() {
    for (model, unit) in [("gpt", "tokens/s"), ("vit", "rows/s"), ("unet", "rows/s")] {
        let simulated = place().run(&["simulate", model, "--mesh", "dp=2", "--batch", "8"]);
        assert!(simulated.out.contains(&format!(" {unit}, ")), "{}{}", simulated.out, simulated.err);
        let event =
            place().run(&["simulate", model, "--mesh", "dp=2", "--batch", "8", "--json"]).of("simulate");
        assert!(event[0]["rows_per_s"].as_f64().unwrap() > 0.0, "{}", event[0]);
        assert_eq!(event[0]["tokens_per_s"].is_null(), unit == "rows/s", "{}", event[0]);
        let train =
            ["train", model, "--mesh", "dp=2", "--batch", "8", "--steps", "1", "--no-verify", "--no-sample"];
        let trained = place().run(&train);
        assert_eq!(trained.code, Some(0), "{}", trained.err);
        assert_eq!(trained.out.contains("tokens/s"), unit == "tokens/s", "{}", trained.out);
        assert!(trained.out.contains(unit), "{}", trained.out);
    }
}
