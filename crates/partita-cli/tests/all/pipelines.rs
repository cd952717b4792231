//! What the command line says of pipelines and predicts: stages, edges, timetables, times.

use crate::place;
use partita_testkit::{Outcome, train_arguments};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// A small GPT in two stages.
const GPT: [&str; 6] = ["gpt", "--mesh", "pp=2,tp=2", "--batch", "8", "--microbatches=4"];

/// The only event of a command that went well.
fn event(outcome: &Outcome, name: &str) -> Value {
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let mut events = outcome.of(name);
    assert_eq!(events.len(), 1, "{}", outcome.out);
    events.remove(0)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is UTF-8")
}

fn with<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [command].into_iter().chain(GPT).chain(more.iter().copied()).collect()
}

#[test]
fn counts_name_what_crosses_between_stages() {
    let place = place();
    let sizes = ["--set", "model.dim=16", "--set", "model.heads=2", "--set", "model.sequence=8"];
    let outcome = place.run(&with("lower", &[&sizes[..], &["--counts", "--json"]].concat()));
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let edges = event(&outcome, "edges");
    let rows = edges["edges"].as_array().expect("a list");
    let row = |from: u64, to: u64, part: &str| {
        let found = rows.iter().find(|row| row["from"] == from && row["to"] == to && row["part"] == part);
        found.unwrap_or_else(|| panic!("{rows:?}")).clone()
    };
    // For each of four microbatches, the residual stream of 2 rows x 8 tokens x 16 features in f32; and, once, the weight of
    // 256 x 16 of the embedding, which the head shares. Both ranks of a slice receive all of it.
    let (stream, weight) = (4 * 2 * 8 * 16 * 4, 256 * 16 * 4);
    let forward = row(0, 1, "forward");
    assert_eq!((&forward["sends"], &forward["bytes"]), (&5.into(), &(2 * (stream + weight)).into()));
    // Back come the gradient of the stream and, from each microbatch, that of the weight.
    let backward = row(1, 0, "backward");
    assert_eq!((&backward["sends"], &backward["bytes"]), (&8.into(), &(2 * (stream + 4 * weight)).into()));
    let plain = place.run(&with("lower", &[&sizes[..], &["--counts"]].concat()));
    assert!(plain.out.contains("from  to      part  sends  bytes a step"), "{}", plain.out);
}

#[test]
fn show_and_explain_say_where_stages_end_and_why() {
    let place = place();
    let show = place.run(&with("show", &[]));
    assert_eq!(show.code, Some(0), "{}", show.err);
    for words in ["stage 0 ends there because of the default: blocks split", "0 | F0 F1"] {
        assert!(show.out.contains(words), "`{words}` is not in\n{}", show.out);
    }
    let plan = place.path("plan.py");
    std::fs::write(&plan, "sch[\"layers.0\"].pipeline_split()\n").unwrap();
    let explain = place.run(&with("explain", &["--plan", text(&plan), "--json"]));
    assert_eq!(explain.code, Some(0), "{}", explain.err);
    let stages = event(&explain, "explain")["stages"].clone();
    assert_eq!(stages.as_array().unwrap().len(), 2);
    assert_eq!(stages[0]["ranks"], serde_json::json!([0, 1]));
    assert!(stages[0]["because"].as_str().unwrap().contains("pipeline_split"), "{stages}");
    assert_eq!(stages[1]["because"], "");
    assert!(stages[1]["modules"].as_array().unwrap().iter().all(|module| module != "layers.0"), "{stages}");
    // 1F1B holds as many microbatches as there are stages behind.
    assert_eq!((&stages[0]["in_flight"], &stages[1]["in_flight"]), (&2.into(), &1.into()));
}

/// Losses of 20 steps of a tiny GPT with dropout and clipping.
const TRAINED: &[&str] = &[
    "--set",
    "model.layers=4",
    "--set",
    "model.dropout=0.1",
    "--set",
    "optimizer.clip_grad_norm=0.5",
    "--set",
    "train.steps=20",
    "--log-every=1",
];

fn close(losses: &[f64], expected: &[f64], what: &str) {
    assert_eq!(losses.len(), expected.len(), "{what}");
    for (step, (loss, expected)) in losses.iter().zip(expected).enumerate() {
        assert!((loss - expected).abs() <= 1e-4, "{what}, step {}: {loss} and {expected}", step + 1);
    }
}

#[test]
fn stages_train_to_the_losses_of_one_device_and_a_killed_run_resumes_on_another_mesh() {
    let place = place();
    let expected = place.train("gpt", "dp=1", &[TRAINED, &["--checkpoint-dir=one"]].concat()).losses();
    assert_eq!(expected.len(), 20);
    for (mesh, microbatches, timetable) in [
        ("pp=2", "4", "1f1b"),
        ("pp=4", "8", "zb-h1"),
        ("pp=2,tp=2", "2", "gpipe"),
        ("pp=2,fsdp=2", "3", "zbv"),
    ] {
        let folder = format!("--checkpoint-dir={mesh}");
        let flags = ["--microbatches", microbatches, "--timetable", timetable, &folder];
        close(&place.train("gpt", mesh, &[TRAINED, &flags].concat()).losses(), &expected, mesh);
    }
    // Killed without warning after the checkpoint of step 10.
    let flags = ["--microbatches=4", "--checkpoint-dir=killed", "--checkpoint-every=10"];
    let arguments = train_arguments("gpt", "pp=2", &[TRAINED, &flags].concat());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut child = place.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if line.unwrap().contains("\"step\":12,") {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let flags = ["--checkpoint-dir=killed", "--resume"];
    let resumed = place.train("gpt", "tp=2", &[TRAINED, &flags].concat()).losses();
    close(&resumed, &expected[10..], "resumed on tp=2");
}

#[test]
fn a_timetable_is_drawn_written_and_read_back() {
    let place = place();
    let list = place.run(&["timetable", "--json"]);
    assert_eq!(event(&list, "timetables")["timetables"][0]["name"], "1f1b");
    let (csv, svg) = (place.path("order.csv"), place.path("order.svg"));
    let drawn =
        place.run(&["timetable", "zb-h1", "--slices=2", "--csv", text(&csv), "--svg", text(&svg), "--json"]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.err);
    let drawn = event(&drawn, "timetable");
    assert_eq!((&drawn["slices"], &drawn["microbatches"]), (&2.into(), &8.into()));
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    let again = event(&place.run(&["timetable", text(&csv), "--json"]), "timetable");
    for figure in ["makespan", "idle", "in_flight", "chart"] {
        assert_eq!(drawn[figure], again[figure], "{figure}");
    }
    // Forward passes alone, of any number of microbatches.
    for forward in [&["timetable", "inference", "--json"][..], &["timetable", "1f1b", "--forward", "--json"]]
    {
        let drawn = event(&place.run(forward), "timetable");
        assert_eq!((&drawn["microbatches"], &drawn["makespan"]), (&8.into(), &11.into()));
    }
    // Files are never replaced.
    let refused = place.run(&["timetable", "gpipe", "--csv", text(&csv)]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("E043"), "{}", refused.err);
    // A wrong cell is named by row and column.
    let wrong = place.path("wrong.csv");
    std::fs::write(&wrong, std::fs::read_to_string(&csv).unwrap().replacen("0F1", "0Q1", 1)).unwrap();
    let refused = place.run(&["timetable", text(&wrong)]);
    assert!(
        refused.code == Some(2) && refused.err.contains("E500") && refused.err.contains("0Q1"),
        "{}",
        refused.err
    );
    let unknown = place.run(&["timetable", "1f2b"]);
    assert!(unknown.code == Some(2) && unknown.err.contains("did you mean `1f1b`"), "{}", unknown.err);
}

#[test]
fn a_step_is_predicted_and_its_timeline_written() {
    let place = place();
    let trace = place.path("trace.json");
    let outcome = place.run(&with("simulate", &["--cluster", "a100-8", "--trace", text(&trace), "--json"]));
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let predicted = event(&outcome, "simulate");
    assert_eq!(predicted["cluster"], "a100-8");
    let step_s = predicted["step_s"].as_f64().unwrap();
    for class in predicted["classes"].as_array().unwrap() {
        let spent = class["compute_s"].as_f64().unwrap() + class["waiting_s"].as_f64().unwrap();
        assert!(spent > 0.0 && spent <= step_s * (1.0 + 1e-9), "{class}");
    }
    let trace: Value = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 100);
    let plain = place.run(&with("simulate", &[]));
    assert!(plain.out.starts_with("predicted on laptop for mesh pp=2,tp=2:"), "{}", plain.out);
}
