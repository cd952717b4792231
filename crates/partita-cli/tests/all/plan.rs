//! `partita plan`, and `--plan auto`.

use partita_testkit::Place;
use serde_json::Value;
use std::process::{Command, Output};

fn partita(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partita")).args(arguments).output().unwrap()
}

/// The event `plan` of a command.
fn found(arguments: &[&str]) -> Value {
    let output = partita(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    events.into_iter().find(|event| event["event"] == "plan").unwrap()
}

#[test]
fn the_plan_found_is_the_fastest_and_the_bound_is_below_it() {
    let event = found(&["plan", "mlp", "--mesh", "dp=2,tp=2", "--why"]);
    let seconds: Vec<f64> =
        event["candidates"].as_array().unwrap().iter().map(|row| row["step_s"].as_f64().unwrap()).collect();
    assert!(seconds.len() >= 2 && seconds.iter().all(|&other| seconds[0] <= other), "{event}");
    assert!(
        event["candidates"].as_array().unwrap().iter().any(|row| row["source"] == "ready plan"),
        "{event}"
    );
    let search = &event["searches"][0];
    let cost_s = search["cost_s"].as_f64().unwrap();
    assert!(search["bound_s"].as_f64().unwrap() <= cost_s, "{event}");
    let without = search["without"].as_array().unwrap();
    assert!(!without.is_empty(), "{event}");
    for line in without {
        assert!(line[1].as_f64().is_none_or(|other_s| other_s >= cost_s * (1.0 - 1e-9)), "{line}");
    }
}

#[test]
fn every_mesh_of_the_devices_is_tried_and_the_plan_reads_back() {
    let place = Place::of(env!("CARGO_BIN_EXE_partita"));
    let file = place.path("found.toml");
    let path = file.to_str().unwrap();
    let event = found(&["plan", "mlp", "--devices", "2", "--batch", "8", "--out", path]);
    let meshes: Vec<&str> =
        event["candidates"].as_array().unwrap().iter().map(|row| row["mesh"].as_str().unwrap()).collect();
    for mesh in ["tp=2", "dp=2", "pp=2"] {
        assert!(meshes.contains(&mesh), "{meshes:?}");
    }
    let best = &event["candidates"][0];
    let (mesh, microbatches) = (best["mesh"].as_str().unwrap(), best["microbatches"].to_string());
    // The file says for which mesh it is; another one may be given.
    let told = std::fs::read_to_string(&file).unwrap();
    assert!(told.starts_with(&format!("mesh = \"{mesh}\"\nmicrobatches = {microbatches}\n")), "{told}");
    let other = format!("{mesh},zz=1");
    let other = other.as_str();
    for (more, used) in [(vec![], mesh), (vec!["--mesh", other], other)] {
        let run = partita(&[&["show", "mlp", "--batch", "8", "--plan", path][..], &more].concat());
        let (shown, notes) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(shown.starts_with(&format!("model mlp on mesh {used} (")), "{shown}{notes}");
        assert_eq!(notes.contains(&format!("was made for mesh = \"{mesh}\"")), used != mesh, "{notes}");
    }
    let verify = partita(&["verify", "mlp", "--batch", "8", "--plan", path]);
    assert_eq!(verify.status.code(), Some(0), "{}", String::from_utf8_lossy(&verify.stderr));
}

#[test]
fn a_searched_plan_changes_no_number() {
    for mesh in ["tp=4", "dp=2,tp=2"] {
        let verify = partita(&["verify", "mlp", "--mesh", mesh, "--plan", "auto"]);
        assert_eq!(verify.status.code(), Some(0), "{mesh}: {}", String::from_utf8_lossy(&verify.stderr));
    }
}

#[test]
fn a_device_that_is_too_small_says_by_how_much() {
    let output = partita(&["plan", "mlp", "--mesh", "tp=2", "--set", "cluster.memory_bytes=1000"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(error.contains("E520") && error.contains("too many"), "{error}");
}
