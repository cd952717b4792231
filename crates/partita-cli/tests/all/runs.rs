//! What a run does to folders, and how it is resumed and stopped.

use partita_base::DType;
use partita_runtime::checkpoint;
use partita_testkit::{Outcome, Place, newest, train_arguments};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A learning rate that does not depend on the number of steps, so that runs can be compared.
const RATE: &[&str] = &["--set", "optimizer.decay_steps=100", "--set", "optimizer.warmup_steps=2"];

fn train(place: &Place, mesh: &str, more: &[&str]) -> Outcome {
    place.train("gpt", mesh, &[RATE, more].concat())
}

/// As [`train`], verified.
fn train_verified(place: &Place, more: &[&str]) -> Outcome {
    let all = train_arguments("gpt", "tp=2", more);
    let all: Vec<&str> =
        all.iter().map(String::as_str).filter(|argument| *argument != "--no-verify").collect();
    place.run(&all)
}

/// Every file below a folder and its bytes, but for the lock.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.ends_with("lock") {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// The steps saved in a folder.
fn saved(dir: &Path) -> Vec<u64> {
    checkpoint::list(dir).unwrap().iter().map(|path| checkpoint::load(path).unwrap().step).collect()
}

fn state(dir: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(newest(dir).join("state.json")).unwrap()).unwrap()
}

#[test]
fn every_run_has_a_folder_of_its_own_and_the_newest_is_resumed() {
    let place = crate::place();
    let every = ["--checkpoint-every", "1"];
    train(&place, "tp=2", &[&every[..], &["--set", "train.steps=3"]].concat()).losses();
    let first = files(&place.path("runs/gpt"));
    assert_eq!(saved(&place.path("runs/gpt")), [2, 3], "two are kept");
    for number in [2, 3] {
        let steps = format!("train.steps={number}");
        let outcome = train(&place, "tp=2", &["--set", &steps]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.err);
        let folder = format!("runs/gpt-{number}");
        assert!(outcome.out.contains(&format!("checkpoints go to {folder}")), "{}", outcome.out);
        assert_eq!(saved(&place.path(&folder)), [number]);
    }
    let resumed = train(&place, "tp=2", &[&every[..], &["--resume", "--checkpoint-keep", "3"]].concat());
    assert!(resumed.out.contains("resumed runs/gpt-3/step-00000003 after step 3"), "{}", resumed.out);
    assert_eq!(resumed.of("step").len(), 3);
    // What the run wrote before it was resumed is its own, and goes where it is too old.
    assert_eq!(saved(&place.path("runs/gpt-3")), [4, 5, 6]);
    assert_eq!(files(&place.path("runs/gpt")), first, "another run is not touched");
    assert!(!place.path("runs/gpt-4").exists());
}

#[test]
fn a_folder_of_another_run_is_refused_before_anything_is_done() {
    let place = crate::place();
    train(&place, "tp=2", &["--checkpoint-dir", "saved"]).losses();
    let before = files(&place.path("saved"));
    let again = train_verified(&place, &["--checkpoint-dir", "saved", "--checkpoint-every", "1"]);
    again.refuses(
        "E330",
        &["saved", "belongs to another run", "step-00000006", "--resume saved", "--checkpoint-dir"],
    );
    assert!(again.of("verify").is_empty() && again.of("step").is_empty(), "{}", again.out);
    // Resumed from elsewhere it is another run, too.
    train(&place, "tp=2", &["--checkpoint-dir", "other", "--set", "train.steps=2"]).losses();
    train(&place, "tp=2", &["--resume", "other", "--checkpoint-dir", "saved"]).refuses("E330", &["saved"]);
    assert_eq!(files(&place.path("saved")), before);
    // In a new folder it is welcome, and leaves what it came from.
    let other = files(&place.path("other"));
    train(&place, "tp=2", &["--resume", "other", "--checkpoint-dir", "third"]).losses();
    assert_eq!((saved(&place.path("third")), files(&place.path("other"))), (vec![6], other));
}

#[test]
fn what_cannot_be_resumed_is_refused_before_the_verification() {
    let place = crate::place();
    train(&place, "tp=2", &["--checkpoint-dir", "saved", "--set", "train.steps=1"]).losses();
    fs::write(place.path("other.txt"), "another text ".repeat(1000)).unwrap();
    for (more, code, words) in [
        (&["--resume"][..], "E311", "runs/gpt"),
        (&["--resume", "nowhere"], "E311", "nowhere"),
        (&["--resume", "text.txt"], "E311", "text.txt"),
        (&["--resume", "saved/latest"], "E311", "saved/latest"),
        (&["--resume", "saved/step-00000009"], "E311", "step-00000001"),
        (&["--resume", "saved", "--set", "model.dim=48"], "E314", "step-00000001"),
        (&["--resume", "saved", "--set", "optimizer={kind=\"sgd\"}"], "E006", "section.key"),
        (&["--resume", "saved", "--set", "data.path=other.txt"], "E304", "step-00000001"),
        (&["--resume", "saved", "--set", "train.seed=7"], "E304", "seed"),
        (&["--checkpoint-dir", "text.txt"], "E315", "a file of this name"),
        (&["--resume", "saved", "--checkpoint-dir", "text.txt/below"], "E315", "--checkpoint-dir"),
    ] {
        let outcome = train_verified(&place, more);
        outcome.refuses(code, &[words]);
        assert!(outcome.of("verify").is_empty(), "{more:?}: {}", outcome.out);
    }
    assert!(!place.path("runs").exists());
    assert_eq!(saved(&place.path("saved")), [1]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_without_permission_is_refused() {
    // Nobody can create a file there, not even root.
    for dir in ["/proc", "/proc/new"] {
        let outcome = train_verified(&crate::place(), &["--checkpoint-dir", dir]);
        outcome.refuses("E315", &[dir, "cannot be written to", "permissions"]);
        assert!(outcome.of("verify").is_empty(), "{}", outcome.out);
    }
}

#[test]
fn data_goes_on_where_it_was_with_batches_of_another_size() {
    let place = crate::place();
    train(&place, "dp=1", &["--checkpoint-dir", "saved", "--set", "train.steps=3"]).losses();
    let more = ["--resume", "saved", "--set", "train.batch=4", "--set", "train.steps=4"];
    let outcome = train(&place, "dp=1", &more);
    assert!(outcome.out.contains("the data continues at step 7 of this batch size"), "{}", outcome.out);
    assert_eq!(state(&place.path("saved"))["meta"]["data.samples"], "28");
}

#[test]
fn a_run_that_diverges_saves_the_state_of_its_last_good_step() {
    let place = crate::place();
    let outcome = place.train("gpt", "dp=2", &["--set", "optimizer.learning_rate=1e30"]);
    outcome.refuses("E412", &["at step 2", "the state after step 1 is in runs/gpt/step-00000001"]);
    let saved = checkpoint::load(&place.path("runs/gpt")).unwrap();
    assert_eq!(saved.step, 1);
    for (name, tensor) in &saved.tensors {
        assert_eq!(tensor.dtype, DType::F32);
        let (numbers, _) = tensor.bytes.as_chunks::<4>();
        assert!(numbers.iter().all(|bytes| f32::from_le_bytes(*bytes).is_finite()), "{name}");
    }
}

#[test]
fn one_device_is_measured_beside_a_mesh() {
    let place = crate::place();
    let speed = |mesh: &str| train(&place, mesh, &[]).of("summary")[0]["tokens_per_s_one_device"].clone();
    assert!(speed("dp=2,tp=2").as_f64() > Some(0.0));
    assert_eq!(speed("dp=1"), Value::Null);
}

/// A child that trains, and what it prints.
struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    fn start(place: &Place, arguments: &[String]) -> Running {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (out, err) = (place.path("out.log"), place.path("err.log"));
        let file = |path: &Path| Stdio::from(fs::File::create(path).unwrap());
        let child = place.command(&arguments).stdout(file(&out)).stderr(file(&err)).spawn().unwrap();
        Running { child, out, err }
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.out).unwrap() + &fs::read_to_string(&self.err).unwrap()
    }

    /// Until a text has been printed so often.
    fn wait_for(&mut self, text: &str, count: usize) {
        let begin = Instant::now();
        while self.printed().matches(text).count() < count {
            assert!(self.child.try_wait().unwrap().is_none(), "ended: {}", self.printed());
            assert!(begin.elapsed() < Duration::from_secs(300), "{}", self.printed());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[cfg(unix)]
    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// The events it printed, once it has ended with this code.
    #[cfg(unix)]
    fn ends(mut self, code: i32) -> Vec<Value> {
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{}", self.printed());
        let out = fs::read_to_string(&self.out).unwrap();
        out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Arguments of a run that does not end by itself.
fn endless(more: &[&str]) -> Vec<String> {
    train_arguments("gpt", "dp=2", &[RATE, &["--set", "train.steps=1000000000"], more].concat())
}

#[test]
fn two_processes_do_not_write_to_one_folder() {
    let place = crate::place();
    let mut running = Running::start(&place, &endless(&["--checkpoint-every", "1"]));
    running.wait_for("\"event\":\"step\"", 3);
    train(&place, "dp=2", &["--resume", "runs/gpt"]).refuses("E331", &["runs/gpt", "another run", "lock"]);
    train(&place, "dp=2", &["--checkpoint-dir", "runs/gpt"]).refuses("E330", &["runs/gpt"]);
    // A new run goes elsewhere.
    train(&place, "dp=2", &[]).losses();
    assert_eq!(saved(&place.path("runs/gpt-2")), [6]);
    // The system gives the lock back however the process ends.
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let done = state(&place.path("runs/gpt"))["step"].as_u64().unwrap();
    let steps = format!("train.steps={}", done + 1);
    assert_eq!(train(&place, "dp=2", &["--resume", "runs/gpt", "--set", &steps]).losses().len(), 1);
}

#[test]
#[cfg(unix)]
fn a_run_that_is_stopped_saves_and_goes_on_as_if_nothing_had_happened() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let place = crate::place();
        let mut running = Running::start(&place, &endless(&["--checkpoint-dir", "saved"]));
        running.wait_for("\"event\":\"step\"", 3);
        running.signal(signal);
        let err = running.err.clone();
        let events = running.ends(130);
        let told = fs::read_to_string(err).unwrap();
        assert_eq!(told, "stopping after this step; Ctrl-C again ends the run at once\n");
        let stopped = events.last().unwrap();
        let done = stopped["step"].as_u64().unwrap();
        let expected = serde_json::json!({
            "event": "stopped",
            "step": done,
            "checkpoint": format!("saved/step-{done:08}"),
            "resume": "saved",
        });
        assert_eq!(stopped, &expected);
        let steps = events.iter().filter(|event| event["event"] == "step").count() as u64;
        assert_eq!((steps, saved(&place.path("saved"))), (done, vec![done]));

        let total = format!("train.steps={}", done + 2);
        let rest = train(&place, "dp=2", &["--resume", "saved", "--set", &total]).losses();
        let whole = train(&place, "dp=2", &["--set", &total]).losses();
        assert_eq!(rest, whole[done as usize..]);
    }
}

/// Sizes at which a step, and a verification, take seconds.
const LARGE: &[&str] = &["model.dim=96", "model.layers=4", "train.batch=1024", "model.sequence=64"];

fn large(more: &[&str]) -> Vec<String> {
    let sizes: Vec<&str> = LARGE.iter().flat_map(|size| ["--set", size]).collect();
    endless(&[&sizes, more].concat())
}

#[test]
#[cfg(unix)]
fn the_second_signal_ends_a_run_at_once() {
    let place = crate::place();
    let mut running =
        Running::start(&place, &large(&["--checkpoint-dir", "saved", "--checkpoint-every", "1"]));
    // A run looks for signals after a step and before its checkpoint: with the second checkpoint the third step begins,
    // which takes seconds.
    let second = place.path("saved/step-00000002");
    let begin = Instant::now();
    while !second.exists() {
        assert!(begin.elapsed() < Duration::from_secs(300), "{}", running.printed());
        std::thread::sleep(Duration::from_millis(2));
    }
    running.signal("-INT");
    running.wait_for("stopping", 1);
    running.signal("-INT");
    let events = running.ends(130);
    assert!(events.iter().all(|event| event["event"] != "stopped"), "{events:?}");
    // The checkpoints that are there are whole.
    assert_eq!(saved(&place.path("saved")).first(), Some(&1));
}

#[test]
#[cfg(unix)]
fn before_the_first_step_a_signal_ends_a_run_at_once() {
    let place = crate::place();
    let verified: Vec<String> = large(&[]).into_iter().filter(|argument| argument != "--no-verify").collect();
    let mut running = Running::start(&place, &verified);
    running.wait_for("parameters on mesh", 1);
    running.signal("-INT");
    let events = running.ends(130);
    assert!(events.iter().all(|event| event["event"] == "note"), "{events:?}");
}
