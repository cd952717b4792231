//! `partita launch`: a run of several processes is the run of one, and ends as a whole.

use partita_testkit::{Outcome, Place, newest, train_arguments};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The arguments of `launch` for a training run in so many processes.
pub fn launch(processes: usize, model: &str, mesh: &str, more: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = ["launch", "-n", &processes.to_string(), "--"].map(String::from).to_vec();
    all.push(env!("CARGO_BIN_EXE_partita").to_string());
    all.extend(train_arguments(model, mesh, more));
    all
}

pub fn run(place: &Place, arguments: &[String]) -> Outcome {
    place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_run_in_several_processes_has_the_bits_of_one() {
    let place = crate::place();
    for (model, mesh, processes) in [
        ("gpt", "dp=2,tp=2", 2),
        ("gpt", "fsdp=3", 3),
        ("mlp", "tp=2", 2),
        ("mlp", "pp=2", 2),
        ("mlp", "pp=2,tp=2", 2),
    ] {
        let more =
            |dir: &'static str| ["--checkpoint-every", "3", "--set", "train.validate_every=2", "--set", dir];
        let alone = place.train(model, mesh, &more("checkpoint.dir=alone"));
        let together = run(&place, &launch(processes, model, mesh, &more("checkpoint.dir=together")));
        let numbers = |outcome: &Outcome, event: &str, keys: &[&str]| -> Vec<String> {
            let of = |e: &serde_json::Value| keys.iter().map(|key| e[key].to_string()).collect::<String>();
            outcome.of(event).iter().map(of).collect()
        };
        assert_eq!(together.losses(), alone.losses(), "{model} {mesh}: {}", together.err);
        for (event, keys) in [("step", &["step", "loss", "grad_norm"][..]), ("validation", &["step", "loss"])]
        {
            let (found, expected) = (numbers(&together, event, keys), numbers(&alone, event, keys));
            assert!(!expected.is_empty() && found == expected, "{model} {mesh}: {found:?} {expected:?}");
        }
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let bytes = |dir: &str| fs::read(newest(&place.path(dir)).join(file)).unwrap();
            assert!(bytes("together") == bytes("alone"), "{model} {mesh}: other bytes in {file}");
        }
        // It goes on from there, in one process or in several.
        let further = ["--resume", "--set", "checkpoint.dir=together", "--set", "train.steps=8"];
        let resumed = run(&place, &launch(processes, model, mesh, &further));
        assert_eq!(resumed.losses().len(), 2, "{}", resumed.out);
        for dir in ["alone", "together"] {
            fs::remove_dir_all(place.path(dir)).unwrap();
        }
    }
}

#[test]
fn a_run_is_verified_and_samples_as_in_one_process() {
    let place = crate::place();
    let mut arguments = launch(2, "gpt", "dp=2", &["--set", "train.sample_bytes=8"]);
    arguments.retain(|argument| argument != "--no-verify");
    let outcome = run(&place, &arguments);
    assert_eq!(outcome.losses().len(), 6);
    assert_eq!(outcome.of("verify")[0]["ok"], true);
    assert_eq!((outcome.of("sample").len(), outcome.of("summary").len()), (1, 1), "{}", outcome.out);
}

#[test]
fn what_is_wrong_is_told_once() {
    let place = crate::place();
    let wrong = run(&place, &launch(2, "gpt", "dp=2", &["--set", "train.stepz=3"]));
    assert_eq!((wrong.code, wrong.err.matches("error[").count()), (Some(2), 1), "{}", wrong.err);
    let diverged =
        launch(2, "mlp", "tp=2", &["--set", "optimizer.learning_rate=1e30", "--set", "train.steps=50"]);
    let diverged = run(&place, &diverged);
    assert_eq!((diverged.code, diverged.err.matches("error[").count()), (Some(2), 1), "{}", diverged.err);
    assert!(
        diverged.err.contains("error[E412]") && diverged.err.contains("is in runs/mlp"),
        "{}",
        diverged.err
    );
    place
        .run(&["--json", "launch", "-n", "2", "--", "/no/such/program"])
        .refuses("E449", &["cannot be started"]);
    for (command, code, words) in [
        (&["false"][..], 1, &["process 0 of 2 failed: exit status: 1"][..]),
        (&["sh", "-c", "exit 3"], 2, &["process 0 of 2 failed: exit status: 3"]),
        (
            &["sh", "-c", "case $PARTITA_LAUNCH in 1/*) echo so >&2; exit 7;; esac"],
            2,
            &["process 1 of 2", "7", "so"],
        ),
    ] {
        let failed = place.run(&[&["launch", "-n", "2", "--"], command].concat());
        assert_eq!(
            (failed.code, failed.err.matches("error[E449]").count()),
            (Some(code), 1),
            "{}",
            failed.err
        );
        assert!(words.iter().all(|word| failed.err.contains(word)), "{}", failed.err);
    }
    let lost = place.run_with(&["train", "mlp", "--json", "--no-verify"], |c| c.env("PARTITA_LAUNCH", "one"));
    lost.refuses("E449", &["PARTITA_LAUNCH"]);
}

/// The id of process `index` of the processes that `launcher` has started.
#[cfg(target_os = "linux")]
pub fn process(launcher: u32, index: usize) -> Option<u32> {
    let place = format!("PARTITA_LAUNCH={index}/");
    let meeting = format!("partita-launch-{launcher}\0");
    let ids = fs::read_dir("/proc").unwrap().flatten();
    let mut ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.find(|id| {
        let variables = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        let variables = String::from_utf8_lossy(&variables).into_owned();
        variables.contains(&place) && variables.contains(&meeting)
    })
}

/// The launcher of a run in two processes that does not end by itself, after its first step, and the lines that follow.
#[cfg(target_os = "linux")]
fn endless(place: &Place, err: Stdio) -> (Child, Lines<BufReader<ChildStdout>>) {
    let arguments = launch(2, "mlp", "dp=2", &["--set", "train.steps=100000000"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut launcher = place.command(&arguments).stdout(Stdio::piped()).stderr(err).spawn().unwrap();
    let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("\"event\":\"step\"")), "no step was done");
    (launcher, lines)
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_is_killed_ends_the_others_with_one_message() {
    for killed in [1, 0] {
        let place = crate::place();
        let (mut launcher, lines) = endless(&place, Stdio::piped());
        let reader = std::thread::spawn(move || lines.count());
        let id = process(launcher.id(), killed).expect("the process runs");
        let begin = Instant::now();
        assert!(Command::new("kill").args(["-9", &id.to_string()]).status().unwrap().success());
        let status = launcher.wait().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert_eq!(status.code(), Some(2));
        reader.join().unwrap();
        let mut said = String::new();
        launcher.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said.matches("error[").count(), 1, "{said}");
        assert!(said.contains(&format!("error[E449]: process {killed} of 2 failed: signal: 9")), "{said}");
        assert!(said.contains(&format!("process {killed} (id {id} on ")), "{said}");
        assert!(said.contains(&format!("rank {killed} was last at ")), "{said}");
        assert!(process(launcher.id(), 1 - killed).is_none(), "the other process still runs");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_signal_to_the_launcher_alone_saves_and_ends_all_processes() {
    for signal in ["-TERM", "-INT"] {
        let place = crate::place();
        let arguments = launch(2, "mlp", "dp=2", &["--set", "train.steps=100000000"]);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut launcher = place.command(&arguments);
        let mut launcher = launcher.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(launcher.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("\"event\":\"step\"")), "no step was done");
        let reader = std::thread::spawn(move || lines.map_while(Result::ok).last().unwrap_or_default());
        assert!(Command::new("kill").args([signal, &launcher.id().to_string()]).status().unwrap().success());
        assert_eq!(launcher.wait().unwrap().code(), Some(130));
        let last = reader.join().unwrap();
        assert!(last.contains("\"event\":\"stopped\"") && last.contains("step-"), "{last}");
        assert!((0..2).all(|index| process(launcher.id(), index).is_none()), "a process still runs");
    }
}

/// The steps of a run, its checkpoint every 20, and its folder.
const LONG_RUN: [&str; 6] =
    ["--checkpoint-every", "20", "--set", "train.steps=600", "--set", "train.validate_every=0"];

/// A launched run of so many processes with these flags of the launcher, of which process `.1` is killed after step `.0`,
/// for each of `kills`: the last loss of each step, and what was said.
#[cfg(target_os = "linux")]
fn killed(
    place: &Place,
    (processes, mesh): (usize, &str),
    flags: &[&str],
    more: &[&str],
    kills: &[(u64, usize)],
) -> (Vec<f64>, String) {
    let mut arguments = launch(processes, "mlp", mesh, more);
    arguments.splice(3..3, flags.iter().map(|flag| flag.to_string()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut launcher = place.command(&arguments);
    let mut launcher = launcher.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = launcher.stderr.take().unwrap();
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        text
    });
    let (mut kills, mut losses) = (kills.iter(), Vec::new());
    let mut next = kills.next();
    for line in BufReader::new(launcher.stdout.take().unwrap()).lines().map(Result::unwrap) {
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        if event["event"] != "step" {
            continue;
        }
        let step = event["step"].as_u64().unwrap();
        losses.resize(losses.len().max(step as usize), f64::NAN);
        losses[step as usize - 1] = event["loss"].as_f64().unwrap();
        if let Some((last, index)) = next.copied().filter(|(last, _)| step >= *last) {
            let id =
                process(launcher.id(), index).unwrap_or_else(|| panic!("no process {index} after {last}"));
            assert!(Command::new("kill").args(["-9", &id.to_string()]).status().unwrap().success());
            next = kills.next();
        }
    }
    let status = launcher.wait().unwrap();
    let said = said.join().unwrap();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(next.is_none(), "not all were killed: {said}");
    (losses, said)
}

/// Asserts that the last checkpoints of two runs have the same bits.
#[cfg(target_os = "linux")]
fn same_state(place: &Place, dir: &str, other: &str) {
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let bytes = |dir: &str| fs::read(newest(&place.path(dir)).join(file)).unwrap();
        assert!(bytes(dir) == bytes(other), "{dir}: other bytes in {file}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_whose_process_dies_continues_from_its_last_checkpoint_to_the_same_bits() {
    let place = crate::place();
    let alone = place.train("mlp", "dp=2", &[&LONG_RUN[..], &["--checkpoint-dir", "alone"]].concat());
    for (seed, flags) in [(0, &["--restarts", "2"][..]), (1, &["--restarts", "1", "--elastic"])] {
        let dir = format!("restarted-{seed}");
        let more = [&LONG_RUN[..], &["--checkpoint-dir", &dir]].concat();
        // Before the first checkpoint, or some time after it.
        let last = [7, 233][seed];
        let (losses, said) = killed(&place, (2, "dp=2"), flags, &more, &[(last, seed)]);
        assert!(said.contains(&format!("process {seed} died: restart 1")), "{said}");
        assert!(losses == alone.losses(), "{seed}: other losses after a restart");
        same_state(&place, &dir, "alone");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn four_processes_of_which_two_die_one_by_one_end_as_two_with_the_same_bits() {
    let place = crate::place();
    let alone = place.train("mlp", "dp=2,tp=2", &[&LONG_RUN[..], &["--checkpoint-dir", "alone"]].concat());
    let more = [&LONG_RUN[..], &["--checkpoint-dir", "fewer"]].concat();
    let flags = ["--restarts", "3", "--elastic"];
    // Three processes run four ranks, so that one of them has two.
    let (losses, said) = killed(&place, (4, "dp=2,tp=2"), &flags, &more, &[(30, 3), (333, 0)]);
    for word in
        ["process 3 died: restart 1 of 3 in 3 processes", "process 0 died: restart 2 of 3 in 2 processes"]
    {
        assert!(said.contains(word), "{said}");
    }
    assert!(losses == alone.losses(), "other losses after restarts");
    same_state(&place, "fewer", "alone");
}

#[test]
fn an_engine_refuses_what_it_cannot_do_before_it_starts() {
    let place = crate::place();
    place.train("mlp", "dp=2", &["--engine", "mpi"]).refuses("E060", &["partita-mpi"]);
    place
        .train("mlp", "dp=2", &["--engine", "torch"])
        .refuses("E060", &["partita.torch.apply", "python/docs/torch.md", "--engine native"]);
    place.train("mlp", "dp=2", &["--engine", "cuda"]).refuses("E033", &["native"]);
    let none = place.run_with(&["train", "mlp", "--json", "--engine", "xla", "--no-verify"], |command| {
        command.env("PARTITA_PYTHON", "/no/such/python").env("PARTITA_PJRT_PLUGIN", "")
    });
    none.refuses("E061", &["PARTITA_PYTHON"]);
    // It is refused before the plan is verified, with the packages to install.
    let unverified = place
        .run_with(&["train", "mlp", "--json", "--mesh", "dp=2", "--engine", "xla"], |command| {
            command.env("PARTITA_PYTHON", "false").env("PARTITA_PJRT_PLUGIN", "")
        });
    unverified.refuses("E061", &["its Python lacks a package", "jax jaxlib", "PARTITA_PJRT_PLUGIN"]);
    assert_eq!(unverified.of("verify").len(), 0, "{}", unverified.out);
}

#[test]
fn checkpoints_are_listed_shown_and_verified() {
    let place = crate::place();
    place.train(
        "mlp",
        "dp=2",
        &["--set", "train.steps=4", "--checkpoint-every", "2", "--checkpoint-dir", "run"],
    );
    let run = |words: &str| place.run(&words.split(' ').chain(["--json"]).collect::<Vec<_>>());
    let listed = run("checkpoint ls run");
    let all = listed.of("checkpoints")[0]["checkpoints"].as_array().unwrap().clone();
    assert_eq!(all.iter().map(|c| c["latest"] == true).collect::<Vec<_>>(), [false, true]);
    let shown = run("checkpoint show run").of("checkpoint")[0].clone();
    assert_eq!((shown["step"].as_u64(), shown["meta"]["mesh"].as_str()), (Some(4), Some("dp=2")));
    assert!(shown["tensors"].as_array().unwrap().iter().any(|t| t["name"] == "layers.0.weight"), "{shown}");
    assert_eq!(run("checkpoint verify run").code, Some(0));
    // A flipped bit, and a file cut short.
    let model = |step: usize| place.path("run").join(format!("step-{step:08}")).join("model.safetensors");
    let mut bytes = fs::read(model(2)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(model(2), &bytes).unwrap();
    let damaged = run("checkpoint verify run");
    assert_eq!(damaged.code, Some(1), "{}", damaged.err);
    let all = damaged.of("checkpoints")[0]["checkpoints"].clone();
    assert!(all[0]["problem"].as_str().unwrap().starts_with("E312") && all[1]["problem"].is_null(), "{all}");
    fs::write(model(4), &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(run("checkpoint verify run/step-00000004").code, Some(1));
    run("checkpoint ls nowhere").refuses("E311", &["nowhere"]);
}

#[test]
#[cfg(target_os = "linux")]
fn processes_end_with_a_launcher_that_is_killed() {
    let place = crate::place();
    let (mut launcher, lines) = endless(&place, Stdio::null());
    assert!((0..2).all(|index| process(launcher.id(), index).is_some()), "both processes run");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    // The first process holds the other end of the pipe: it ends when that is closed.
    lines.for_each(drop);
    let begin = Instant::now();
    while (0..2).any(|index| process(launcher.id(), index).is_some()) {
        assert!(begin.elapsed() < Duration::from_secs(20), "a process still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_process_saves_its_shards_and_any_mesh_continues_from_them() {
    let place = crate::place();
    for (model, mesh, processes) in [("gpt", "fsdp=3", 3), ("gpt", "dp=2,tp=2", 2), ("mlp", "pp=2,tp=2", 2)] {
        let more = |dir: &'static str| ["--checkpoint-dir", dir, "--set", "train.steps=4"];
        let alone = place.train(model, mesh, &more("alone"));
        let sharded = [&more("sharded")[..], &["--set", "checkpoint.sharded=true"]].concat();
        let together = run(&place, &launch(processes, model, mesh, &sharded));
        assert_eq!(together.losses(), alone.losses(), "{model} {mesh}: {}", together.err);
        let files = fs::read_dir(newest(&place.path("sharded"))).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| name.starts_with("shards-")).count(), processes, "{model} {mesh}");
        // As whole tensors they are those of one process.
        let converted = place.run(&["checkpoint", "convert", "sharded", "--out", "whole", "--json"]);
        assert_eq!(converted.code, Some(0), "{}", converted.err);
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let bytes = |dir: &str| fs::read(newest(&place.path(dir)).join(file)).unwrap();
            assert!(bytes("whole") == bytes("alone"), "{model} {mesh}: other bytes in {file}");
        }
        // The same losses on another mesh, from shards and from whole tensors.
        let further = |dir: &'static str, out: &'static str| {
            let more = ["--resume", dir, "--checkpoint-dir", out, "--set", "train.steps=6"];
            place.train(model, "dp=2", &more).losses()
        };
        assert_eq!(further("sharded", "more-1"), further("alone", "more-2"), "{model} {mesh}");
        let folder = newest(&place.path("sharded"));
        let shards = folder.join("shards-00000.safetensors");
        let bytes = fs::read(&shards).unwrap();
        fs::write(&shards, &bytes[..bytes.len() - 1]).unwrap();
        place.run(&["checkpoint", "show", "sharded", "--json"]).refuses("E312", &["shards-00000"]);
        for dir in ["alone", "sharded", "whole", "more-1", "more-2"] {
            fs::remove_dir_all(place.path(dir)).unwrap();
        }
    }
}
