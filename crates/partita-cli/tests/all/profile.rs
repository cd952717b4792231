//! `profile` and `train --profile`: the table adds up, the timeline is well formed.

use crate::place;
use partita::Session;
use partita_program::{Action, Instruction, Program};
use serde_json::Value;
use std::collections::BTreeMap;

const SMALL: [&str; 10] = [
    "--set",
    "model.layers=2",
    "--set",
    "model.dropout=0",
    "--batch",
    "8",
    "--set",
    "model.dim=32",
    "--set",
    "model.heads=2",
];

/// The only `recorded` event, and the events of the timeline.
fn profiled(mesh: &str, more: &[&str]) -> (Value, Vec<Value>) {
    let place = place();
    let mut arguments = vec!["profile", "gpt", "--mesh", mesh, "--json", "--trace", "t.json"];
    arguments.extend(SMALL);
    arguments.extend(more);
    let outcome = place.run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let recorded = outcome.of("recorded");
    assert_eq!(recorded.len(), 1);
    let text = std::fs::read(place.path("t.json")).unwrap();
    let trace: Value = serde_json::from_slice(&text).unwrap();
    (recorded[0].clone(), trace["traceEvents"].as_array().unwrap().clone())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

/// Spans of one track are disjoint or nested.
fn assert_nested(events: &[Value]) {
    let mut tracks: BTreeMap<(u64, u64), Vec<(i64, i64)>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let nanos = |key: &str| (number(&event[key]) * 1e3).round() as i64;
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        tracks.entry(track).or_default().push((nanos("ts"), nanos("ts") + nanos("dur")));
    }
    for (track, mut spans) in tracks {
        spans.sort_by_key(|&(begin, end)| (begin, -end));
        let mut open: Vec<i64> = Vec::new();
        for (begin, end) in spans {
            while open.last().is_some_and(|&until| until <= begin) {
                open.pop();
            }
            assert!(open.last().is_none_or(|&until| end <= until), "{track:?}: a span overlaps another");
            open.push(end);
        }
    }
}

/// Both ends of an arrow are on the edge of, or inside, a span of their track.
fn assert_arrows_meet_spans(events: &[Value]) {
    let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    for end in events.iter().filter(|event| event["ph"] == "s" || event["ph"] == "f") {
        let at = number(&end["ts"]);
        let encloses = |span: &&&Value| {
            let (begin, duration) = (number(&span["ts"]), number(&span["dur"]));
            span["tid"] == end["tid"] && begin - 1e-3 <= at && at <= begin + duration + 1e-3
        };
        assert!(spans.iter().find(encloses).is_some(), "{end} is in no span");
    }
}

#[test]
fn the_table_adds_up_and_counts_what_lower_counts() {
    let (recorded, events) = profiled("dp=2", &["--cycle", "wait=0,warmup=1,active=2", "--by", "collective"]);
    assert_eq!(recorded["steps"], 2);
    let rows = recorded["rows"].as_array().unwrap();
    let shares: f64 = rows.iter().map(|row| number(&row["share"])).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    // As many as the programs start and wait for.
    let calls: f64 = rows.iter().map(|row| number(&row["calls"])).sum();
    let overrides: Vec<String> = [
        "mesh.shape=dp=2",
        "model.layers=2",
        "model.dropout=0",
        "train.batch=8",
        "model.dim=32",
        "model.heads=2",
    ]
    .map(String::from)
    .to_vec();
    let session = Session::load("gpt", &overrides).unwrap_or_else(|error| panic!("{error}"));
    let set =
        session.build().and_then(|built| session.lower(&built)).unwrap_or_else(|error| panic!("{error}"));
    let is_link = |instruction: &Instruction| !matches!(instruction.action, Action::Compute(_));
    let links =
        |program: &Program| program.instructions.iter().filter(|i| is_link(i)).count() * program.ranks.len();
    assert_eq!(calls, set.programs.iter().map(links).sum::<usize>() as f64);
    assert_nested(&events);
    let steps = events.iter().filter(|event| event["cat"] == "step").count();
    assert_eq!(steps, 2);
}

#[test]
fn each_way_to_group_sums_the_same_time() {
    for mesh in ["tp=2", "pp=2"] {
        let mut calls = Vec::new();
        for by in ["op", "module", "phase", "stage", "rank"] {
            let (recorded, _) = profiled(mesh, &["--by", by, "--microbatches", "2", "--sort", "calls"]);
            let rows = recorded["rows"].as_array().unwrap().clone();
            calls.push(rows.iter().map(|row| number(&row["calls"])).sum::<f64>());
            let sorted: Vec<f64> = rows.iter().map(|row| number(&row["calls"])).collect();
            assert!(sorted.is_sorted_by(|a, b| a >= b), "{by}: {sorted:?}");
        }
        assert!(calls.iter().all(|&count| count == calls[0] && count > 0.0), "{mesh}: {calls:?}");
    }
}

#[test]
fn arrows_lead_from_sends_to_receives_and_predictions_stand_beside() {
    let (recorded, events) = profiled("pp=2", &["--microbatches", "2", "--predicted"]);
    assert_nested(&events);
    let ids = |phase: &str| {
        let mut ids: Vec<u64> =
            events.iter().filter(|e| e["ph"] == phase).map(|e| e["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(ids("s"), ids("f"));
    assert_arrows_meet_spans(&events);
    // Each microbatch crosses once forward and once backward in each of 3 recorded steps and in the predicted one.
    assert!(ids("s").len() >= 4 * 2 * 2, "{}", ids("s").len());
    let processes: Vec<&str> = events
        .iter()
        .filter(|e| e["name"] == "process_name")
        .map(|e| e["args"]["name"].as_str().unwrap())
        .collect();
    assert!(
        matches!(processes[..], [host, "predicted"] if host.ends_with(": measured")),
        "the host's work, and what is predicted: {processes:?}"
    );
    let waits = &recorded["waits"];
    let waited = waits["for_rank"].as_array().unwrap();
    assert!(
        waited.iter().enumerate().all(|(rank, row)| number(&row[rank]) == 0.0),
        "no rank waits for itself: {waits}"
    );
    let memory = |e: &&Value| e["ph"] == "C" && e["name"].as_str().unwrap().starts_with("memory");
    let bytes = |e: &Value| e["args"].as_object().unwrap().values().map(number).sum::<f64>();
    assert!(events.iter().filter(memory).all(|e| bytes(e) > 0.0));
}

#[test]
fn a_training_run_is_profiled_without_a_change_of_its_losses() {
    let (plain, profiled) = (place(), place());
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--steps", "4"]);
    let first = plain.train("gpt", "dp=2", &arguments);
    arguments.extend(["--profile", "t.json", "--cycle", "wait=0,warmup=1,active=9"]);
    let second = profiled.train("gpt", "dp=2", &arguments);
    assert_eq!(first.losses(), second.losses());
    let recorded = second.of("recorded");
    assert_eq!(recorded[0]["steps"], 5, "of 6 steps the first warms up, and the run ends before the cycle");
    assert!(profiled.path("t.json").exists());
}

#[test]
fn a_launch_has_the_ranks_of_all_processes_on_one_clock() {
    let place = place();
    let command = env!("CARGO_BIN_EXE_partita");
    let mut arguments =
        vec!["launch", "-n", "2", "--", command, "profile", "gpt", "--mesh", "dp=2", "--json"];
    arguments.extend(["--trace", "t.json", "--by", "wait", "--cycle", "wait=0,warmup=1,active=2"]);
    arguments.extend(SMALL);
    let outcome = place.run(&arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let trace: Value = serde_json::from_slice(&std::fs::read(place.path("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().clone();
    assert_nested(&events);
    let tracks: Vec<&str> = events
        .iter()
        .filter(|e| e["name"] == "thread_name")
        .map(|e| e["args"]["name"].as_str().unwrap())
        .collect();
    for rank in [0, 1] {
        assert!(tracks.contains(&format!("rank {rank}, thread 0").as_str()), "{tracks:?}");
    }
    // Both ranks compute in each step: their clocks agree.
    let begins = |of: &dyn Fn(&Value) -> bool| -> Vec<(f64, f64)> {
        let found = events.iter().filter(|e| e["ph"] == "X" && of(e));
        found.map(|e| (number(&e["ts"]), number(&e["ts"]) + number(&e["dur"]))).collect()
    };
    let steps = begins(&|e| e["cat"] == "step");
    assert_eq!(steps.len(), 2);
    let compute = begins(&|e| e["cat"] == "compute");
    let begins_in = |&(begin, _): &(f64, f64)| steps.iter().any(|step| step.0 <= begin && begin <= step.1);
    assert!(compute.iter().all(begins_in), "{steps:?}");
    let recorded = &outcome.of("recorded")[0];
    assert_eq!(recorded["waits"]["ranks"], serde_json::json!([0, 1]));
    let rows = recorded["rows"].as_array().unwrap();
    let shares: f64 = rows.iter().map(|row| number(&row["share"])).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    assert!(rows.iter().all(|row| row["what"].as_str().unwrap().contains(" for ")), "{rows:?}");
}

#[test]
fn the_files_for_tensorboard_have_a_rank_each_and_the_steps_that_were_recorded() {
    let place = place();
    let arguments = ["--profile", "--tensorboard", "log", "--cycle", "wait=1,warmup=1,active=2"];
    let outcome = place.train("gpt", "dp=2", &arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let folder = place.path("log/plugins/profile/run-1");
    for rank in [0, 1] {
        let text = std::fs::read(folder.join(format!("rank-{rank}.pt.trace.json"))).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let about = &trace["distributedInfo"];
        assert_eq!((&about["rank"], &about["world_size"]), (&rank.into(), &2.into()));
        let events = trace["traceEvents"].as_array().unwrap();
        assert_nested(events);
        let steps: Vec<&str> = events
            .iter()
            .map(|e| e["name"].as_str().unwrap())
            .filter(|name| name.starts_with("ProfilerStep#"))
            .collect();
        assert_eq!(steps, ["ProfilerStep#3", "ProfilerStep#4"]);
        assert!(events.iter().any(|e| e["name"] == "nccl:all_reduce"), "gradients are reduced");
    }
    // The figures are in the same folder, one file; a second run has files of its own.
    let files = |end: &str| std::fs::read_dir(place.path(end)).unwrap().count();
    assert_eq!(files("log"), 2);
    place.run(&["profile", "mlp", "--tensorboard", "log", "--cycle", "wait=0,active=1"]);
    assert!(place.path("log/plugins/profile/run-2/rank-0.pt.trace.json").exists());
}

#[test]
fn what_cannot_be_profiled_is_refused_before_anything_runs() {
    let place = place();
    place.run(&["profile", "mlp", "--json", "--cycle", "active=0"]).refuses("E530", &["active=0"]);
    place.run(&["profile", "mlp", "--json", "--cycle", "repeat=0"]).refuses("E530", &["never end"]);
    let twice = ["profile", "mlp", "--json", "--cycle", "active=2,active=5"];
    place.run(&twice).refuses("E530", &["active=5", "twice"]);
    place.run(&["profile", "mlp", "--json", "--depth", "2"]).refuses("E033", &["--depth", "--by module"]);
    place.run(&["profile", "mlp", "--json", "--rows", "0"]).refuses("E033", &["--rows"]);
    std::fs::write(place.path("t.json"), "").unwrap();
    place.run(&["profile", "mlp", "--json", "--trace", "t.json"]).refuses("E043", &["t.json"]);
    // What the system never lets anyone write, whatever the permissions say.
    place.run(&["profile", "mlp", "--json", "--trace", "/proc/t.json"]).refuses("E043", &["/proc/t.json"]);
    place.run(&["profile", "mlp", "--json", "--tensorboard", "/proc/log"]).refuses("E043", &["/proc/log"]);
}

#[test]
fn metrics_are_lines_and_a_snapshot_of_the_last_step() {
    let place = place();
    let arguments = ["--metrics", "log.jsonl", "--metrics", "now.prom", "--set", "train.validate_every=3"];
    let outcome = place.train("gpt", "dp=2", &arguments);
    let losses = outcome.losses();
    let text = std::fs::read_to_string(place.path("log.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| -> Vec<f64> {
        lines.iter().filter(|line| line["event"] == name).map(|line| number(&line["loss"])).collect()
    };
    assert_eq!(of("step"), losses);
    assert_eq!(of("validation").len(), outcome.of("validation").len());
    let snapshot = std::fs::read_to_string(place.path("now.prom")).unwrap();
    let value = |name: &str| -> f64 {
        let line = snapshot.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} is in\n{snapshot}")).split(' ').nth(1).unwrap().parse().unwrap()
    };
    assert_eq!(value("partita_steps_total"), losses.len() as f64);
    assert_eq!(value("partita_loss"), *losses.last().unwrap());
    assert_eq!(value("partita_validation_loss"), *of("validation").last().unwrap());
    // A second run adds its lines to those of the first.
    assert_eq!(place.train("gpt", "dp=2", &["--metrics", "log.jsonl"]).losses().len(), losses.len());
    let more = std::fs::read_to_string(place.path("log.jsonl")).unwrap();
    assert!(more.starts_with(&text) && more.lines().count() > text.lines().count());
    place.train("gpt", "dp=2", &["--metrics", "none/log.jsonl"]).refuses("E043", &["none/log.jsonl"]);
}
