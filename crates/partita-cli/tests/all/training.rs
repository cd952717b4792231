//! Training from outside: a mesh, microbatches or an interruption never change the numbers.

use partita_testkit::{Outcome, Place, newest, train_arguments};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

const MESHES: &[&str] = &["dp=1", "tp=2", "dp=4", "fsdp=4", "dp=2,tp=2", "fsdp=2,tp=2", "tp=3"];

/// Settings as arguments; the learning rate does not depend on the number of steps, so that runs can be compared.
fn settings(items: &[&str]) -> Vec<String> {
    let fixed = ["optimizer.decay_steps=100", "optimizer.warmup_steps=2", "model.dropout=0.1"];
    fixed.iter().chain(items).flat_map(|item| ["--set".to_string(), item.to_string()]).collect()
}

fn train(place: &Place, model: &str, mesh: &str, items: &[&str], more: &[&str]) -> Outcome {
    let settings = settings(items);
    let mut arguments: Vec<&str> = settings.iter().map(String::as_str).collect();
    arguments.extend(more);
    place.train(model, mesh, &arguments)
}

#[track_caller]
fn assert_close(expected: &[f64], actual: &[f64], what: &str) {
    assert_eq!(expected.len(), actual.len(), "{what}");
    for (step, (e, a)) in expected.iter().zip(actual).enumerate() {
        assert!((e - a).abs() <= 1e-4 * e.abs(), "{what}, step {}: {e} and {a}", step + 1);
    }
}

#[test]
fn losses_are_the_same_on_every_mesh_with_any_microbatches() {
    let place = crate::place();
    let expected = train(&place, "gpt", "dp=1", &[], &[]).losses();
    assert_eq!(expected.len(), 6);
    assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "{expected:?}");
    for mesh in MESHES {
        for microbatches in [1, 2, 4] {
            let item = format!("train.microbatches={microbatches}");
            let actual = train(&place, "gpt", mesh, &[&item], &[]).losses();
            assert_close(&expected, &actual, &format!("{mesh}, {microbatches} microbatches"));
        }
    }
    for mesh in ["tp=2", "dp=2,tp=2", "tp=3"] {
        let actual = train(&place, "gpt", mesh, &[], &["--sequence-parallel"]).losses();
        assert_close(&expected, &actual, &format!("{mesh}, sequence parallel"));
    }
}

#[test]
fn dropout_is_on() {
    let place = crate::place();
    let with = train(&place, "gpt", "dp=1", &[], &[]).losses();
    let without = train(&place, "gpt", "dp=1", &["model.dropout=0.0"], &[]).losses();
    assert!((with[0] - without[0]).abs() > 1e-4 * with[0], "{} and {}", with[0], without[0]);
}

/// What counts towards the loss differs from row to row: means of means would be off.
#[test]
fn losses_are_the_same_where_labels_are_ignored_unevenly() {
    let place = crate::place();
    let base = ["model.vocab=257"];
    let expected = train(&place, "bert", "dp=1", &base, &[]).losses();
    for mesh in ["dp=1", "dp=4", "fsdp=2,tp=2", "tp=3"] {
        for microbatches in ["1", "2", "4"] {
            let item = format!("train.microbatches={microbatches}");
            let actual = train(&place, "bert", mesh, &[base[0], &item], &[]).losses();
            assert_close(&expected, &actual, &format!("{mesh}, {microbatches} microbatches"));
        }
    }
}

#[test]
fn uneven_batches_give_the_same_losses() {
    let place = crate::place();
    let expected = train(&place, "gpt", "dp=1", &["train.batch=7"], &[]).losses();
    for mesh in ["dp=2", "dp=3", "fsdp=5", "dp=3,tp=2"] {
        let actual = train(&place, "gpt", mesh, &["train.batch=7"], &[]).losses();
        assert_close(&expected, &actual, mesh);
    }
}

#[test]
fn ranks_without_rows_change_nothing() {
    let place = crate::place();
    for (model, vocab) in [("gpt", "model.vocab=256"), ("bert", "model.vocab=257")] {
        let expected = train(&place, model, "dp=1", &[vocab], &[]).losses();
        for (mesh, microbatches) in [("dp=4", 4), ("fsdp=4", 4), ("dp=16", 1), ("dp=5,tp=2", 2)] {
            let item = format!("train.microbatches={microbatches}");
            let actual = train(&place, model, mesh, &[vocab, &item], &[]).losses();
            assert_close(&expected, &actual, &format!("{model} on {mesh}, {microbatches} microbatches"));
        }
    }
}

#[test]
fn every_model_trains_alike_on_one_device_and_many() {
    let place = crate::place();
    for model in ["llama", "mlp"] {
        let train = |mesh: &str| match model {
            "mlp" => place.train(model, mesh, &[]).losses(),
            _ => place.train(model, mesh, &["--set", "model.kv_heads=2"]).losses(),
        };
        let expected = train("dp=1");
        for mesh in ["tp=2", "dp=4", "fsdp=2,tp=2"] {
            assert_close(&expected, &train(mesh), &format!("{model} on {mesh}"));
        }
    }
}

fn tensors(place: &Place, folder: &str) -> [Vec<u8>; 2] {
    let newest = newest(&place.path(folder));
    ["model.safetensors", "optimizer.safetensors"].map(|file| fs::read(newest.join(file)).unwrap())
}

#[test]
fn a_resumed_run_ends_bit_for_bit_as_one_that_was_not_interrupted() {
    for (model, mesh, items) in [
        ("gpt", "dp=2,tp=2", vec!["train.microbatches=2"]),
        ("gpt", "fsdp=4", vec!["model.fused_qkv=true"]),
        ("bert", "tp=3", vec!["model.vocab=257"]),
    ] {
        let place = crate::place();
        let whole =
            train(&place, model, mesh, &items, &["--checkpoint-dir", "whole", "--checkpoint-every", "3"]);
        let first =
            train(&place, model, mesh, &items, &["--checkpoint-dir", "parts", "--set", "train.steps=3"]);
        let parts = ["--checkpoint-dir", "parts", "--resume"];
        let rest = train(&place, model, mesh, &items, &parts);
        assert_eq!(rest.of("step")[0]["step"], 4);
        assert_eq!([first.losses(), rest.losses()].concat(), whole.losses(), "{model} on {mesh}");
        assert!(tensors(&place, "whole") == tensors(&place, "parts"), "{model} on {mesh}");
    }
}

#[test]
fn a_run_goes_on_on_another_mesh() {
    let place = crate::place();
    let expected = train(&place, "gpt", "dp=2,tp=2", &[], &["--checkpoint-dir", "whole"]).losses();
    let first = ["--checkpoint-dir", "first", "--set", "train.steps=3"];
    train(&place, "gpt", "dp=2,tp=2", &[], &first).losses();
    for mesh in ["dp=1", "tp=3", "fsdp=4"] {
        let rest = train(&place, "gpt", mesh, &[], &["--resume", "first", "--checkpoint-dir", mesh]);
        assert_close(&expected[3..], &rest.losses(), mesh);
    }
}

#[test]
fn a_finished_run_has_nothing_to_resume_and_says_so() {
    let place = crate::place();
    train(&place, "gpt", "tp=2", &[], &[]).losses();
    let again = train(&place, "gpt", "tp=2", &[], &["--resume"]);
    assert!(again.losses().is_empty());
    assert_eq!(again.of("summary")[0]["steps"], 6);
}

/// The last complete line of a kind, as a killed process may stop in the middle of one.
fn last(out: &str, event: &str) -> Option<Value> {
    let lines = out.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.rev().find(|value| value["event"] == event)
}

#[test]
fn a_killed_run_can_always_be_resumed() {
    let place = crate::place();
    let base = settings(&["checkpoint.every=1", "checkpoint.dir=saved"]);
    let mut done = 0;
    for round in 0..8u64 {
        let mut arguments = base.clone();
        arguments.extend(["--set".to_string(), "train.steps=1000000".into()]);
        if round > 0 {
            arguments.push("--resume".into());
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let arguments = train_arguments("gpt", "dp=2,tp=2", &arguments);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let log = fs::File::create(place.path("log")).unwrap();
        let mut child = place.command(&arguments).stdout(Stdio::from(log)).spawn().unwrap();
        let printed = || fs::read_to_string(place.path("log")).unwrap();
        // Three steps at least: the save of the second waited until that of the first was complete.
        while last(&printed(), "step").is_none_or(|step| step["step"].as_u64() < Some(done + 3)) {
            assert!(child.try_wait().unwrap().is_none(), "round {round}: {}", printed());
            std::thread::sleep(Duration::from_millis(2));
        }
        // A moment within the next steps and saves.
        std::thread::sleep(Duration::from_micros(round * 7919 % 23_000));
        child.kill().unwrap();
        child.wait().unwrap();
        let printed = printed();
        if round > 0 {
            assert!(printed.contains(&format!("after step {done}\"")), "round {round}: {printed}");
        }
        let step = last(&printed, "step").unwrap()["step"].as_u64().unwrap();
        let state: Value = serde_json::from_str(
            &fs::read_to_string(newest(&place.path("saved")).join("state.json")).unwrap(),
        )
        .unwrap();
        done = state["step"].as_u64().unwrap();
        // A step is printed, and written to the disk while the next one runs.
        assert!(done + 2 >= step && done <= step + 1, "printed {step}, saved {done}");
    }
    let total = format!("train.steps={}", done + 2);
    let rest = train(&place, "gpt", "dp=2,tp=2", &[&total], &["--resume", "saved"]).losses();
    let whole = train(&place, "gpt", "dp=2,tp=2", &[&total], &["--checkpoint-dir", "whole"]).losses();
    assert_eq!(rest, whole[done as usize..], "as if nothing had happened");
}

#[test]
fn memory_used_is_memory_planned() {
    let place = crate::place();
    for mesh in MESHES {
        for event in train(&place, "gpt", mesh, &["train.microbatches=2", "train.steps=2"], &[]).events() {
            if event["event"] == "step" || event["event"] == "summary" {
                assert!(event["peak_bytes_planned"].as_u64() > Some(0));
                assert_eq!(event["peak_bytes_planned"], event["peak_bytes_used"], "{mesh}");
            }
        }
    }
}

#[test]
fn threads_change_not_a_bit() {
    let place = crate::place();
    for mesh in ["dp=4", "fsdp=2,tp=2"] {
        let run = |folder: &str, more: &[&str]| {
            let more = [&["--checkpoint-dir", folder], more].concat();
            let losses = train(&place, "gpt", mesh, &[], &more).losses();
            (losses, tensors(&place, folder))
        };
        let expected = run("one", &["--deterministic"]);
        for (folder, more) in
            [("two", &["--deterministic"][..]), ("three", &[]), ("four", &[]), ("five", &["--workers", "4"])]
        {
            assert!(run(folder, more) == expected, "{mesh}, {more:?}");
        }
        fs::remove_dir_all(place.path("one")).unwrap();
        for folder in ["two", "three", "four", "five"] {
            fs::remove_dir_all(place.path(folder)).unwrap();
        }
    }
}

#[test]
fn events_have_exactly_the_documented_fields() {
    let place = crate::place();
    let items = ["train.validate_every=3", "train.sample_bytes=4"];
    let trained = train(&place, "gpt", "dp=2", &items, &["--set", "train.steps=4"]);
    let verified = place.run(&["verify", "mlp", "--mesh", "dp=2", "--json"]);
    let failed = place.run(&["train", "nothing", "--json"]);
    let fields = |event: &str| -> &[&str] {
        match event {
            "note" => &["message"],
            "step" => &[
                "step",
                "loss",
                "grad_norm",
                "rows_per_s",
                "tokens_per_s",
                "peak_bytes_planned",
                "peak_bytes_used",
            ],
            "validation" => &["step", "loss"],
            "sample" => &["prompt", "text"],
            "verify" => &["ok", "worst", "first_diverging", "excused"],
            "error" => &["code", "message", "at", "expected", "found", "help"],
            "summary" => &[
                "steps",
                "loss",
                "validation_loss",
                "model_nats",
                "bigram_nats",
                "unigram_nats",
                "rows_per_s",
                "tokens_per_s",
                "tokens_per_s_one_device",
                "seconds",
                "checkpoint",
                "verify_ok",
                "peak_bytes_planned",
                "peak_bytes_used",
            ],
            other => panic!("an event nobody documented: {other}"),
        }
    };
    let mut kinds = BTreeSet::new();
    for event in [trained.events(), verified.events(), failed.events()].concat() {
        let kind = event["event"].as_str().unwrap().to_string();
        let mut expected: BTreeSet<&str> = fields(&kind).iter().copied().collect();
        expected.insert("event");
        let actual: BTreeSet<&str> = event.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(actual, expected, "{kind}");
        kinds.insert(kind);
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
    assert_eq!(trained.of("validation").len(), 2);
    assert!(trained.of("step").iter().all(|step| step["grad_norm"].as_f64() > Some(0.0)));
}
