//! `train --engine xla` through a PJRT plugin, beside the engine `native`. Skipped where `PARTITA_PJRT_PLUGIN` names no
//! plugin.

use partita_testkit::{Outcome, Place, train_arguments};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How far losses may be apart.
const NEAR: f64 = 1e-5;

/// The plugin, if there is one.
fn plugin(test: &str) -> Option<String> {
    let named = std::env::var("PARTITA_PJRT_PLUGIN").ok().filter(|path| !path.is_empty());
    if named.is_none() {
        eprintln!("{test} is skipped: PARTITA_PJRT_PLUGIN names no plugin");
    }
    named
}

fn with_cache<'a>(place: &Place, command: &'a mut Command) -> &'a mut Command {
    command.env("PARTITA_XLA_CACHE", place.path("cache"))
}

fn outcome(command: &mut Command) -> Outcome {
    let done = command.output().expect("the command starts");
    Outcome {
        code: done.status.code(),
        out: String::from_utf8(done.stdout).expect("text"),
        err: String::from_utf8(done.stderr).expect("text"),
    }
}

/// Trains a small model under XLA.
fn train(place: &Place, model: &str, mesh: &str, more: &[&str]) -> Outcome {
    let all = train_arguments(model, mesh, &[&["--engine", "xla"], more].concat());
    let mut command = place.command(&all.iter().map(String::as_str).collect::<Vec<_>>());
    outcome(with_cache(place, &mut command))
}

fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= NEAR, "{what}, step {}: {found} for {expected}", step + 1);
    }
}

/// What a run says of its programs.
fn compiled(run: &Outcome) -> String {
    let notes = run.of("note");
    let texts = notes.iter().filter_map(|note| note["message"].as_str());
    texts.filter(|text| text.contains("program")).collect()
}

#[test]
fn losses_under_xla_are_those_of_the_native_engine_on_every_mesh() {
    if plugin("losses under xla").is_none() {
        return;
    }
    let place = crate::place();
    let pipeline: &[&str] = &["--set", "model.layers=2", "--microbatches", "4"];
    let zero = [pipeline, &["--set", "train.timetable=zb-h1"]].concat();
    let cases: [(&str, &[&str]); 7] = [
        ("dp=2", &[]),
        ("tp=2", &[]),
        ("fsdp=2", &["--set", "model.dropout=0.1"]),
        ("fsdp=3", &[]),
        ("dp=2,tp=2", &[]),
        ("pp=2", pipeline),
        ("dp=2,pp=2", &zero),
    ];
    for (mesh, more) in cases {
        let more = [more, &["--set", "train.steps=5"]].concat();
        let native = place.train("gpt", mesh, &more);
        let under_xla = train(&place, "gpt", mesh, &more);
        assert_near(&under_xla.losses(), &native.losses(), mesh);
        let step = &under_xla.of("step")[0];
        assert!(step["peak_bytes_planned"].as_u64() > Some(100_000), "{mesh}: {step}");
        assert!(step["grad_norm"].as_f64() > Some(0.0), "{mesh}: {step}");
        let loss = |run: &Outcome| run.of("summary")[0]["validation_loss"].as_f64().expect("it is validated");
        assert!((loss(&under_xla) - loss(&native)).abs() <= NEAR, "{mesh}");
    }
}

#[test]
fn a_run_goes_from_native_to_xla_and_back_and_the_second_time_nothing_is_compiled() {
    if plugin("a resumed run under xla").is_none() {
        return;
    }
    let place = crate::place();
    let (mesh, layers) = ("pp=2", ["--set", "model.layers=2", "--microbatches", "2"]);
    let whole = place.train("gpt", mesh, &layers).losses();
    let run = |engine: &str, steps: &str, more: &[&str]| {
        let more = [&layers[..], &["--set", steps, "--checkpoint-dir", "run"], more].concat();
        match engine {
            "native" => place.train("gpt", mesh, &more),
            _ => train(&place, "gpt", mesh, &more),
        }
    };
    let mut losses = run("native", "train.steps=2", &[]).losses();
    let second = run("xla", "train.steps=4", &["--resume"]);
    losses.extend(second.losses());
    losses.extend(run("native", "train.steps=6", &["--resume"]).losses());
    assert_near(&losses, &whole, "in three parts");
    assert!(compiled(&second).contains("XLA compiled"), "{}", second.out);
    let again = train(&place, "gpt", mesh, &layers);
    assert_near(&again.losses(), &whole, "with cached programs");
    assert!(compiled(&again).contains("compiled by an earlier run"), "{}", again.out);
    // A cache that is damaged, or cannot be written, costs the time to compile.
    for entry in std::fs::read_dir(place.path("cache")).unwrap() {
        std::fs::write(entry.unwrap().path(), "damaged").unwrap();
    }
    let damaged = train(&place, "gpt", mesh, &layers);
    assert!(compiled(&damaged).contains("XLA compiled"), "{}", damaged.out);
    let mut nowhere =
        place.command(&["train", "mlp", "--json", "--no-verify", "--mesh", "dp=2", "--engine", "xla"]);
    let nowhere = outcome(nowhere.args(["--steps", "2"]).env("PARTITA_XLA_CACHE", "/dev/null/cache"));
    assert_eq!(nowhere.losses().len(), 2);
}

#[test]
fn an_exported_folder_runs_in_both_forms_without_python() {
    let Some(plugin) = plugin("an exported step") else { return };
    let place = crate::place();
    let sizes = ["--set", "model.layers=1", "--set", "model.dim=24", "--set", "model.heads=4"];
    let more = ["--set", "model.sequence=16", "--set", "train.batch=8", "--set", "train.steps=5"];
    let all = [&sizes[..], &more, &["--set", "data.path=text.txt", "--mesh", "fsdp=2,tp=2"]].concat();
    let native = [&["train", "gpt", "--json", "--no-verify", "--no-sample"], &all[..]].concat();
    let native = place.run(&native).losses();
    for form in ["uniform", "global"] {
        let exported = [&["export", "gpt", "--for", "xla", "--form", form, "--out", form], &all[..]].concat();
        assert_eq!(place.run(&exported).code, Some(0));
        let mut command = place.command(&["xla-runner", "train", &plugin, form, "0"]);
        // Its standard input stays open until it has ended.
        let mut child =
            with_cache(&place, &mut command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let done = child.wait_with_output().expect("it ends");
        drop(stdin);
        let out = String::from_utf8(done.stdout).expect("text");
        let lines = out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let losses: Vec<f64> = lines.filter_map(|line| line["loss"].as_f64()).collect();
        assert_near(&losses, &native, form);
        assert!(place.path(form).join("state-5.safetensors").exists());
    }
}

#[test]
fn a_plugin_that_is_none_is_refused_before_the_plan_is_verified() {
    let place = crate::place();
    std::fs::write(place.path("text.so"), "text").unwrap();
    for path in ["/no/such/plugin.so", "text.so"] {
        let arguments = ["train", "mlp", "--json", "--mesh", "dp=2", "--engine", "xla"];
        let refused = outcome(place.command(&arguments).env("PARTITA_PJRT_PLUGIN", path));
        refused.refuses("E062", &[path]);
        assert_eq!(refused.of("verify").len(), 0, "{}", refused.out);
        let listed = outcome(place.command(&["env", "--json"]).env("PARTITA_PJRT_PLUGIN", path));
        let engines = listed.of("env")[0]["engines"].clone();
        let xla = engines.as_array().unwrap().iter().find(|engine| engine["name"] == "xla").unwrap().clone();
        assert!(xla["plugins"][0]["error"].is_string(), "{xla}");
    }
    // The word by which the command runs steps is not for people.
    assert_eq!(place.run(&["xla-runner", "fly"]).code, Some(1));
}

#[test]
fn plugins_are_listed_with_version_and_devices() {
    let Some(path) = plugin("a list of plugins") else { return };
    let listed = crate::place().run(&["env", "--json"]).of("env")[0]["engines"].clone();
    let xla = listed.as_array().unwrap().iter().find(|engine| engine["name"] == "xla").unwrap().clone();
    let found = &xla["plugins"][0];
    assert_eq!((xla["ready"].as_bool(), found["path"].as_str()), (Some(true), Some(path.as_str())));
    assert!(found["version"].as_str().unwrap().starts_with("0."), "{found}");
    assert!(!found["devices"].as_array().unwrap().is_empty(), "{found}");
}

/// Children of a process, as Linux lists them.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<u32> {
    let list = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(list).unwrap_or_default();
    text.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// Waits until a file of a run is there.
fn wait_for(path: &Path) {
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < Duration::from_secs(120), "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a long run under XLA, sends a signal to it or to its runner after two checkpoints, and gives what it says.
#[cfg(target_os = "linux")]
fn interrupted(place: &Place, signal: &str, is_for_runner: bool) -> Outcome {
    let more = [
        "--engine",
        "xla",
        "--set",
        "train.steps=3000",
        "--checkpoint-every",
        "2",
        "--checkpoint-dir",
        "run",
    ];
    let all = train_arguments("mlp", "dp=2", &more);
    let mut command = place.command(&all.iter().map(String::as_str).collect::<Vec<_>>());
    let command = with_cache(place, &mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    wait_for(&place.path("run").join("latest"));
    let target = if is_for_runner { children(child.id())[0] } else { child.id() };
    let killed = Command::new("kill").args([signal, &target.to_string()]).status().expect("kill starts");
    assert!(killed.success());
    let done = child.wait_with_output().expect("it ends");
    Outcome {
        code: done.status.code(),
        out: String::from_utf8(done.stdout).expect("text"),
        err: String::from_utf8(done.stderr).expect("text"),
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_runner_that_dies_ends_the_run_with_one_message_and_its_checkpoint_stays() {
    if plugin("a killed runner").is_none() {
        return;
    }
    let place = crate::place();
    let killed = interrupted(&place, "-KILL", true);
    killed.refuses("E061", &["signal: 9", "--resume"]);
    assert_eq!(place.run(&["checkpoint", "verify", "run"]).code, Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_completes_the_step_and_saves_it() {
    if plugin("Ctrl-C under xla").is_none() {
        return;
    }
    let place = crate::place();
    let stopped = interrupted(&place, "-INT", false);
    assert_eq!(stopped.code, Some(130), "{}", stopped.err);
    let last = stopped.of("step").last().expect("it has steps")["step"].clone();
    assert_eq!(stopped.of("stopped")[0]["step"], last, "{}", stopped.out);
    let steps = format!("train.steps={}", last.as_u64().expect("a number") + 2);
    let resumed = train(&place, "mlp", "dp=2", &["--set", &steps, "--checkpoint-dir", "run", "--resume"]);
    assert_eq!(resumed.losses().len(), 2, "{}{}", resumed.out, resumed.err);
}
