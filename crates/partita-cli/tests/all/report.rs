//! `report`: the page about a step says what other commands say.

use crate::place;
use serde_json::Value;
use std::collections::BTreeMap;

pub(crate) const SMALL: [&str; 10] = [
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
    // Parameters of equal layers are one row: `layers.0,1.attn.q_proj.weight`.
    let of_row = |row: &Value| row[0].as_str().unwrap().split(',').count();
    let listed: usize = section(&report, "Parameters")["rows"].as_array().unwrap().iter().map(of_row).sum();
    assert_eq!(listed, shown.lines().filter(|line| line.contains("weight") || line.contains("bias")).count());
}

/// The page has the reductions of `explain`, those of weight gradients under `weight_grad`. Gathers of one parameter may have
/// become one.
#[test]
fn collectives_are_in_the_phases_that_explain_says() {
    for mesh in ["dp=2", "fsdp=2"] {
        let place = place();
        let explained = place.run(&[&["explain", "gpt", "--mesh", mesh, "--json"], &SMALL[..]].concat());
        let events = explained.out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut expected: BTreeMap<(String, String), usize> = BTreeMap::new();
        let text = |value: &Value| value.as_str().unwrap().to_string();
        for event in events.filter(|event| event["event"] == "explain") {
            let all = event["collectives"].as_array().unwrap();
            for one in all.iter().filter(|one| one["kind"] != "all_gather") {
                *expected.entry((text(&one["kind"]), text(&one["phase"]))).or_default() += 1;
            }
        }
        let mut found: BTreeMap<(String, String), usize> = BTreeMap::new();
        let report = reported(mesh, &[]);
        let rows = section(&report, "Collectives")["rows"].as_array().unwrap();
        for row in rows.iter().filter(|row| row[0] != "all_gather") {
            let tensors: usize = text(&row[4]).parse().unwrap();
            *found.entry((text(&row[0]), text(&row[1]))).or_default() += tensors;
        }
        assert!(expected.keys().any(|(_, phase)| phase == "weight_grad"), "{mesh}: {expected:?}");
        assert_eq!(found, expected, "{mesh}");
    }
}

/// Of many classes of ranks only the fullest are drawn, and the page says so; one rank is not several.
#[test]
fn classes_that_are_not_drawn_are_counted() {
    let report = reported("pp=4", &["--set", "model.layers=4", "--microbatches", "4"]);
    let sections = report["sections"].as_array().unwrap();
    let of = |title: &str| {
        let is_meant = |section: &&Value| section["title"].as_str().unwrap().starts_with(title);
        sections.iter().filter(is_meant).collect::<Vec<_>>()
    };
    let drawn = of("Memory of rank ");
    assert!(drawn.len() == 3 && of("Memory of ranks").is_empty(), "{drawn:?}");
    assert_eq!(of("Owners of the peak of rank ").len(), 3);
    let says: Vec<bool> =
        drawn.iter().map(|one| one["about"].as_str().unwrap().contains("1 more class is not")).collect();
    assert_eq!(says, [false, false, true]);
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
fn each_kind_of_device_has_its_roofline() {
    let cluster = ["--cluster", "a100-80g:1x2+v100-32g:1x2", "--dtype", "f16"];
    let report = reported("pp=2,dp=2", &[&cluster[..], &["--microbatches", "2"]].concat());
    let sections = report["sections"].as_array().unwrap();
    let rooflines: Vec<&Value> =
        sections.iter().filter(|section| section["body"]["kind"] == "roofline").collect();
    let titles: Vec<&str> = rooflines.iter().map(|section| section["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["Roofline of ranks 0,1", "Roofline of ranks 2,3"]);
    // The data sheets: f16 and bytes per second.
    for (section, kind, flops_per_s, bytes_per_s) in
        [(rooflines[0], "A100", 312e12, 2.039e12), (rooflines[1], "V100", 125e12, 9e11)]
    {
        let body = &section["body"];
        assert!(section["about"].as_str().unwrap().contains(kind), "{section}");
        assert_eq!((&body["flops_per_s"], &body["bytes_per_s"]), (&flops_per_s.into(), &bytes_per_s.into()));
        for point in body["points"].as_array().unwrap() {
            assert!(point["flops_per_s"].as_f64().unwrap() <= flops_per_s, "{point}");
        }
    }
    let points = |section: &Value| section["body"]["points"].as_array().unwrap().len();
    assert!(points(rooflines[0]) > 5 && points(rooflines[1]) > 5);
    // Ranks of one device have one.
    let report = reported("dp=2", &["--cluster", "a100-80g:1x2"]);
    section(&report, "Roofline");
}

/// The step of a large model on many ranks is unfolded from a small one, which is shown whole. Its figures are those that
/// `simulate` says; each slice runs a forward and a backward task for each microbatch and stage.
#[test]
fn a_large_step_is_shown_by_slices_beside_a_small_one() {
    let place = place();
    let step =
        ["llama3-405b", "--cluster", "h100-80g:2048x8", "--mesh", "pp=16,dp=128,tp=8", "--dtype", "bf16"];
    let step = [&step[..], &["--batch", "1024", "--microbatches", "8"]].concat();
    let outcome = place.run(&[&["report"], &step[..], &["--out", "r.json"]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let bytes = std::fs::read(place.path("r.json")).unwrap();
    assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
    let report: Value = serde_json::from_slice(&bytes).unwrap();
    let spans = section(&report, "Timeline")["timeline"]["spans"].as_array().unwrap();
    assert_eq!(spans.len(), 2 * 16 * 8);
    let simulated = place.run(&[&["simulate"], &step[..], &["--json"]].concat());
    let step_s = simulated.of("simulate")[0]["step_s"].as_f64().unwrap();
    let end = |span: &Value| span[1].as_f64().unwrap() + span[2].as_f64().unwrap();
    let last = spans.iter().map(end).fold(0.0, f64::max) / 1e6;
    assert!(last < step_s && last > 0.5 * step_s, "{last} of {step_s}");
    let count = |cell: &Value| {
        let text = cell["ranks"].as_str().unwrap();
        text[text.rfind('(').unwrap() + 1..text.len() - 1].parse::<usize>().unwrap()
    };
    let cells = section(&report, "Mesh")["cells"].as_array().unwrap();
    assert_eq!(cells.iter().map(count).sum::<usize>(), 16_384);
    let rows = section(&report, "Small step")["rows"].as_array().unwrap();
    assert_eq!(rows[0], serde_json::json!(["layers", "126", "5"]));
    let causes = section(&report, "Small step: parameters")["rows"].as_array().unwrap();
    assert!(
        causes.iter().any(|row| row[0] == "layers.0,1.mlp.up_proj.weight" && row[2] == "[{tp}, {}]"),
        "{causes:?}"
    );
    assert!(sum(section(&report, "Small step: communication")) > 0.0);
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
fn a_run_is_reported_with_its_logs_and_beside_another() {
    let place = place();
    for (dir, mesh) in [("one", "dp=2"), ("two", "tp=2")] {
        std::fs::create_dir(place.path(dir)).unwrap();
        let log = format!("{dir}.jsonl");
        let outcome = place.train("gpt", mesh, &["--checkpoint-dir", dir, "--metrics", &log]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        std::fs::rename(place.path(&log), place.path(dir).join("metrics.jsonl")).unwrap();
    }
    let outcome = place.run(&["report", "one", "--against", "two", "--out", "r.json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let report: Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    let lines = std::fs::read_to_string(place.path("one/metrics.jsonl")).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    let series = section(&report, "Loss")["series"].as_array().unwrap();
    assert!(series.len() >= 4, "training and validation of both: {}", series.len());
    let drawn = series[0]["points"].as_array().unwrap();
    let steps = of("step");
    assert_eq!(drawn.len(), steps.len());
    let points = |event: &&Value| event["loss"].as_f64() == drawn[0][1].as_f64();
    assert!(points(&steps[0]), "{} {}", steps[0], drawn[0]);
    let runs = section(&report, "Runs");
    assert_eq!(runs["header"], serde_json::json!(["", "one", "two"]));
    let row = |name: &str| {
        let rows = runs["rows"].as_array().unwrap();
        rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("{name} is in {runs}")).clone()
    };
    assert_eq!(row("mesh"), serde_json::json!(["mesh", "dp=2", "tp=2"]));
    assert_eq!(row("steps saved")[1], steps.len().to_string());
    let last = steps.last().unwrap()["loss"].as_f64().unwrap();
    assert_eq!(row("last training loss")[1], format!("{last:.4}"));
    let differences = section(&report, "Configs")["rows"].as_array().unwrap();
    let keys: Vec<&str> = differences.iter().map(|row| row[0].as_str().unwrap()).collect();
    assert_eq!(keys, ["checkpoint.dir", "mesh.shape"]);
}

#[test]
fn a_plan_file_is_reported_for_the_model_that_is_named() {
    let place = place();
    let plan = "mesh = \"tp=2\"\n[plan]\n\"layers.0\" = \"colwise\"\n\"layers.1\" = \"rowwise\"\n";
    std::fs::write(place.path("plan.toml"), plan).unwrap();
    place.run(&["report", "plan.toml", "--json", "--out", "r.json"]).refuses("E033", &["--model"]);
    place
        .run(&["report", "mlp", "--model", "mlp", "--json", "--out", "r.json"])
        .refuses("E033", &["--model mlp"]);
    let outcome = place.run(&["report", "plan.toml", "--model", "mlp", "--out", "r.json"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let report: Value = serde_json::from_slice(&std::fs::read(place.path("r.json")).unwrap()).unwrap();
    assert_eq!(report["title"], "mlp on mesh tp=2");
    let text = section(&report, "Plan")["text"].as_str().unwrap();
    assert!(text.contains("\"layers.0\" = \"colwise\""), "{text}");
}

#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let place = place();
    place.run(&["report", "mlp", "--json", "--out", "r.pdf"]).refuses("E033", &["r.pdf"]);
    place.run(&["report", "mlp", "--json", "--out", "none/r.html"]).refuses("E043", &["none"]);
    place.run(&["report", "mlp", "--json", "--out", "r.html", "--losses", "none"]).refuses("E531", &["none"]);
    std::fs::write(place.path("log"), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"lo").unwrap();
    place
        .run(&["report", "mlp", "--json", "--out", "r.html", "--losses", "log"])
        .refuses("E531", &["line 2"]);
}
