//! `report`: the page about a step says what other commands say.

use crate::place;
use serde_json::Value;

const SMALL: [&str; 10] = [
    "--set",
    "model.layers=2",
    "--set",
    "model.dropout=0",
    "--set",
    "model.dim=32",
    "--set",
    "model.heads=2",
    "--batch",
    "8",
];

/// The report of a small GPT as JSON.
fn reported(mesh: &str, more: &[&str]) -> Value {
    let place = place();
    let mut arguments = vec!["report", "gpt", "--mesh", mesh, "--out", "r.json"];
    arguments.extend(SMALL);
    arguments.extend(more);
    let outcome = place.run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap()
}

fn section<'a>(report: &'a Value, title: &str) -> &'a Value {
    let sections = report["sections"].as_array().unwrap();
    let titles: Vec<&Value> = sections.iter().map(|section| &section["title"]).collect();
    let found = sections.iter().find(|section| section["title"] == title);
    &found.unwrap_or_else(|| panic!("`{title}` is one of {titles:?}"))["body"]
}

fn sum(matrix: &Value) -> f64 {
    matrix["values"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| row.as_array().unwrap())
        .map(|v| v.as_f64().unwrap())
        .sum()
}

#[test]
fn bytes_of_the_matrix_are_those_of_the_gradients() {
    // Two ranks exchange every gradient once: of an all_reduce of n bytes, each sends n.
    let place = place();
    let mut arguments = vec!["show", "gpt", "--mesh", "dp=2"];
    arguments.extend(SMALL);
    let shown = place.run(&arguments).out;
    let elements = shown.lines().find(|line| line.contains(" elements; at most ")).unwrap();
    let elements: f64 = elements.split(' ').next().unwrap().parse().unwrap();
    let report = reported("dp=2", &["--set", "optimizer.clip_grad_norm=0"]);
    let moved = sum(section(&report, "Communication"));
    // The loss travels too: a few numbers.
    assert!(
        moved >= 2.0 * 4.0 * elements && moved <= 2.0 * 4.0 * elements + 64.0,
        "{moved} for {elements} elements"
    );
    let rows = section(&report, "Parameters")["rows"].as_array().unwrap().len();
    assert_eq!(rows, shown.lines().filter(|line| line.contains("weight") || line.contains("bias")).count());
}

#[test]
fn a_pipeline_has_stages_a_timetable_and_bytes_of_its_edges() {
    let report = reported("pp=2", &["--microbatches", "4", "--dtype", "f32"]);
    assert_eq!(section(&report, "Stages")["rows"].as_array().unwrap().len(), 2);
    assert!(section(&report, "Timetable")["text"].as_str().unwrap().contains("F"));
    let matrix = section(&report, "Communication");
    let (forward, backward) = (&matrix["values"][0][1], &matrix["values"][1][0]);
    // 8 rows of 64 tokens of 32 numbers cross once in each direction; beside them only scalars and shared gradients.
    let activations = 8.0 * 64.0 * 32.0 * 4.0;
    assert!(
        forward.as_f64().unwrap() >= activations && backward.as_f64().unwrap() >= activations,
        "{matrix}"
    );
    let timeline = &section(&report, "Timeline")["timeline"];
    assert!(timeline["spans"].as_array().unwrap().len() > 50);
    assert_eq!(section(&report, "Mesh")["cells"].as_array().unwrap().len(), 2);
}

#[test]
fn a_report_has_three_forms_and_shows_runs() {
    let place = place();
    std::fs::write(place.path("log"), "{\"event\":\"step\",\"step\":1,\"loss\":2.5}\n").unwrap();
    for (name, begin) in
        [("r.html", "<!doctype html>"), ("r.md", "# mlp on mesh "), ("r.json", "{\"title\":")]
    {
        let arguments = [
            "report",
            "mlp",
            "--mesh",
            "tp=2",
            "--out",
            name,
            "--losses",
            "log",
            "--measured",
            "--cycle",
            "wait=0,active=1",
        ];
        let outcome = place.run(&arguments);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        let text = std::fs::read_to_string(place.path(name)).unwrap();
        assert!(text.starts_with(begin), "{name}");
        for title in ["Loss", "Predicted and measured", "Roofline", "Time by op", "Plan"] {
            assert!(text.contains(title), "{name}: {title}");
        }
    }
}

#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let place = place();
    place.run(&["report", "mlp", "--json", "--out", "r.pdf"]).refuses("E033", &["r.pdf"]);
    place.run(&["report", "mlp", "--json", "--out", "none/r.html"]).refuses("E043", &["none"]);
    place.run(&["report", "mlp", "--json", "--out", "r.html", "--losses", "none"]).refuses("E531", &["none"]);
}
