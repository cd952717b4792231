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
    // Back come the gradient of the stream and, summed over the microbatches, that of the weight.
    let backward = row(1, 0, "backward");
    assert_eq!((&backward["sends"], &backward["bytes"]), (&5.into(), &(2 * (stream + weight)).into()));
    // A rank of the second stage sends to its counterpart alone.
    let last = place.run(&with("lower", &[&sizes[..], &["--counts", "--json", "--rank", "3"]].concat()));
    let counts = event(&last, "counts");
    assert_eq!((&counts["rank"], &counts["backward"]["send"]), (&3.into(), &5.into()));
    assert_eq!(counts["bytes"]["backward"].as_u64().map(|bytes| bytes > stream + weight), Some(true));
    let plain = place.run(&with("lower", &[&sizes[..], &["--counts"]].concat()));
    assert!(plain.out.contains("from  to     phase  sends  bytes a step"), "{}", plain.out);
}

#[test]
fn show_and_explain_say_where_stages_end_and_why() {
    let place = place();
    let show = place.run(&with("show", &[]));
    assert_eq!(show.code, Some(0), "{}", show.err);
    for words in ["stage 0 ends there: chosen automatically: blocks split", "0 | F0 F1"] {
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
    // Killed without warning after the checkpoint of step 10, which training waits for.
    let flags = [
        "--microbatches=4",
        "--checkpoint-dir=killed",
        "--checkpoint-every=10",
        "--set=checkpoint.async=false",
    ];
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

/// A prediction says once how busy ranks are: what it advises is about the time that it simulated.
#[test]
fn the_idle_time_of_a_prediction_is_the_simulated_one() {
    let simulated = place().run(&["simulate", "gpt", "--mesh", "pp=2"]);
    assert_eq!(simulated.code, Some(0), "{}", simulated.err);
    let text = simulated.out + &simulated.err;
    let percent = |before: &str| -> u32 {
        let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{before} in {text}"));
        rest.split('%').next().unwrap().parse().unwrap()
    };
    let (busy, idle) = (percent("ranks compute "), percent("stages of the pipeline are idle "));
    assert_eq!(busy + idle, 100, "{text}");
}

#[test]
fn what_has_no_effect_is_told_or_refused() {
    let place = place();
    for (arguments, note) in [
        (
            &["show", "gpt", "--mesh", "dp=2", "--timetable", "gpipe"][..],
            "the timetable changes nothing: mesh dp=2",
        ),
        (
            &["show", "gpt", "--mesh", "dp=2", "--vocab-parallel"],
            "`--vocab-parallel` changes nothing: mesh dp=2",
        ),
        (&["show", "gpt", "--mesh", "pp=2"], "idle 50% of the time: `--microbatches 8` or more"),
    ] {
        let shown = place.run(arguments);
        assert!(shown.code == Some(0) && shown.out.contains(note), "`{note}`: {}{}", shown.out, shown.err);
    }
    for quiet in
        [&["show", "gpt", "--mesh", "tp=2", "--vocab-parallel"][..], &with("show", &["--timetable", "gpipe"])]
    {
        let shown = place.run(quiet);
        assert!(!shown.out.contains("changes nothing") && !shown.out.contains("idle"), "{}", shown.out);
    }
    let csv = place.path("order.csv");
    assert_eq!(place.run(&["timetable", "gpipe", "--csv", text(&csv)]).code, Some(0));
    let forward = event(&place.run(&["timetable", text(&csv), "--forward", "--json"]), "timetable");
    assert_eq!((&forward["slices"], &forward["makespan"]), (&4.into(), &11.into()));
    for (arguments, code, part) in [
        (&["timetable", "--csv", "other.csv"][..], "E033", "NAME"),
        (&["timetable", "--slices", "3"], "E033", "NAME"),
        (&["timetable", text(&csv), "--slices", "4"], "E033", "has 4 slices and 8 microbatches"),
        (&["timetable", "."], "E005", "directory"),
        (&["show", "gpt", "--mesh", "pp=2", "--timetable", "."], "E005", "directory"),
        (&["eval", "nope"], "E005", "no run and no config `nope`"),
        (&["lower", "gpt", "--print-after", "nope"], "E017", "no pass `nope`"),
    ] {
        place.run(&[arguments, &["--json"]].concat()).refuses(code, &[part]);
    }
    // Nothing is written unless everything can be.
    let svg = place.path("order.svg");
    place
        .run(&["timetable", "1f1b", "--csv", "nowhere/x.csv", "--svg", text(&svg), "--json"])
        .refuses("E043", &["nowhere"]);
    assert!(!svg.exists());
}

#[test]
fn slices_with_several_stages_are_called_slices() {
    let place = place();
    let shown = place.run(&with("show", &["--timetable", "zbv", "--set", "model.layers=4"]));
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    for words in ["slice  stages  mesh", "slice 0 [", "slice 1 stages end there: chosen automatically"] {
        assert!(shown.out.contains(words), "`{words}` is not in\n{}", shown.out);
    }
    let explained = place.run(&with("explain", &["--timetable", "zbv", "--set", "model.layers=4", "--json"]));
    let stages = event(&explained, "explain")["stages"].clone();
    assert_eq!(
        (&stages[0]["stages"], &stages[1]["stages"]),
        (&serde_json::json!([0, 3]), &serde_json::json!([1, 2]))
    );
}

#[test]
fn collectives_of_every_stage_have_a_name() {
    let place = place();
    let explained = event(&place.run(&with("explain", &["--json"])), "explain");
    let collectives = explained["collectives"].as_array().unwrap();
    let names: Vec<&str> = collectives.iter().map(|of| of["name"].as_str().unwrap()).collect();
    let mut distinct = names.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
    let last = collectives.last().unwrap();
    let facts = event(&place.run(&with("explain", &[last["name"].as_str().unwrap(), "--json"])), "explain");
    for fact in ["module", "value", "before", "after", "phase"] {
        assert_eq!(facts[fact], last[fact], "{fact}");
    }
    let beyond = format!("all_reduce:{}", names.len() + 1);
    let count = names.iter().filter(|name| name.starts_with("all_reduce:")).count();
    place
        .run(&with("explain", &[&beyond, "--json"]))
        .refuses("E258", &[&format!("a number from 1 to {count}")]);
    let of_rank = event(&place.run(&with("explain", &["--rank", "2", "--json"])), "explain");
    assert_eq!(of_rank["counts"]["rank"], 2);
    place.run(&with("explain", &["--rank", "4", "--json"])).refuses("E014", &["below 4"]);
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
    assert!(plain.out.contains("workspace") && !plain.out.contains("NOT fit"), "{}", plain.out);
    assert_eq!(predicted["fits"], true);
    let small = with("simulate", &["--set", "cluster.memory_bytes=10"]);
    assert!(place.run(&small).out.contains("the step does NOT fit: a rank needs"));
    let small = event(&place.run(&[&small[..], &["--json"]].concat()), "simulate");
    assert_eq!((&small["fits"], &small["device_bytes"]), (&false.into(), &10.into()));
    // On one core ranks take turns: nothing is idle, and the step takes their work.
    let cores = |cores: usize| format!("cluster.cores={cores}");
    let step_s = |on: usize| {
        let run = place.run(&with("simulate", &["--set", &cores(on), "--json"]));
        event(&run, "simulate")["step_s"].as_f64().unwrap()
    };
    assert!(step_s(1) > 2.0 * step_s(4));
    let told = |on: usize| place.run(&with("simulate", &["--set", &cores(on)])).out;
    let note = "4 ranks take turns on the cores of cluster `laptop` (cores = 1)";
    assert!(told(1).contains(note) && !told(4).contains("take turns"), "{}", told(1));
}
