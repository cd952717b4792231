//! What a resumed run may have otherwise than its checkpoint, and checkpoints whose files have changed.

use partita_runtime::checkpoint::{Checkpoint, FileStorage, RunFolder, load};
use partita_testkit::{Outcome, Place, newest};
use std::fs;
use std::path::Path;

/// A folder with a run of six steps in `saved`, by AdamW, with dropout.
fn trained(more: &[&str]) -> Place {
    let place = crate::place();
    let outcome = place.train("gpt", "dp=1", &[&["--checkpoint-dir", "saved"], more].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    place
}

/// Trains two steps more, in another folder, with these overrides.
fn resume(place: &Place, more: &[&str]) -> Outcome {
    let _ = fs::remove_dir_all(place.path("more"));
    let flags = ["--resume", "saved", "--checkpoint-dir", "more", "--set", "train.steps=8"];
    place.train("gpt", "dp=1", &[&flags[..], more].concat())
}

/// The notes of a run.
fn notes(outcome: &Outcome) -> Vec<String> {
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    outcome.of("note").iter().map(|note| note["message"].as_str().unwrap().to_string()).collect()
}

#[test]
fn another_model_or_rule_of_equal_tensors_is_refused_unless_it_may_change() {
    let place = trained(&[]);
    let same = notes(&resume(&place, &[]));
    assert!(same.iter().any(|note| note.starts_with("train.steps is 8; ")), "{same:?}");
    assert_eq!(same.iter().filter(|note| note.contains("was made with")).count(), 1, "{same:?}");
    for (item, was, is) in [
        ("model.heads=2", "model.heads = 4", "model.heads = 2"),
        ("model.window=8", "model.window = all before it", "model.window = 8"),
        ("optimizer.kind=adam", "optimizer.kind = \"adamw\"", "optimizer.kind = \"adam\""),
        ("optimizer.kind=lamb", "optimizer.kind = \"adamw\"", "optimizer.kind = \"lamb\""),
        ("optimizer.beta1=0.8", "optimizer.beta1 = 0.9", "optimizer.beta1 = 0.8"),
        ("optimizer.weight_decay=0.2", "optimizer.weight_decay = 0.1", "optimizer.weight_decay = 0.2"),
        ("optimizer.decay_1d=true", "optimizer.decay_1d = false", "optimizer.decay_1d = true"),
    ] {
        let outcome = resume(&place, &["--set", item]);
        outcome.refuses("E317", &[was, is, "--resume-changed", "saved/step-00000006"]);
        assert!(outcome.of("step").is_empty(), "{item}");
        let goes_on = resume(&place, &["--set", item, "--resume-changed"]);
        assert_eq!(goes_on.losses().len(), 2, "{item}");
        let key = item.split('=').next().unwrap();
        let line = format!("{key} is ");
        assert!(notes(&goes_on).iter().any(|note| note.starts_with(&line)), "{item}: {}", goes_on.out);
    }
    // Another size is still told by the shapes of its tensors, whatever may change.
    resume(&place, &["--set", "model.layers=2", "--resume-changed"]).refuses("E314", &["layers.1"]);
    place.train("gpt", "dp=1", &["--resume-changed"]).refuses("E033", &["--resume"]);
}

#[test]
fn a_key_that_says_what_was_so_before_is_no_change() {
    let place = trained(&[]);
    // As many heads of keys as there are; numbers as integers; another mesh, plan and number of microbatches.
    for more in [
        &["--set", "model.kv_heads=4"][..],
        &["--set", "optimizer.clip_grad_norm=1"],
        &["--mesh", "tp=2", "--microbatches", "2"],
        &["--mesh", "fsdp=2", "--kernels", "portable"],
    ] {
        let outcome = resume(&place, more);
        assert_eq!(outcome.losses().len(), 2, "{more:?}");
        let changed: Vec<String> =
            notes(&outcome).into_iter().filter(|note| note.contains("was made with")).collect();
        let others = changed.iter().filter(|note| !note.starts_with("train.steps"));
        assert!(others.clone().all(|note| note.starts_with("model.kv_heads is 4;")), "{more:?}: {changed:?}");
    }
}

#[test]
fn every_other_difference_is_named_in_a_line() {
    let place = trained(&[]);
    fs::copy(place.path("text.txt"), place.path("moved.txt")).unwrap();
    for (item, line) in [
        ("train.batch=4", "train.batch is 4; the checkpoint was made with 8"),
        (
            "optimizer.learning_rate=0.001",
            "optimizer.learning_rate is 0.001; the checkpoint was made with 0.003",
        ),
        ("optimizer.clip_grad_norm=0.5", "optimizer.clip_grad_norm is 0.5; the checkpoint was made with 1.0"),
        ("model.dropout=0.2", "model.dropout is 0.2; the checkpoint was made with 0.1"),
        ("train.precision=bf16", "train.precision is \"bf16\"; the checkpoint was made with that of dtype"),
        ("data.path=moved.txt", "data.path is \"moved.txt\"; the checkpoint was made with \"text.txt\""),
    ] {
        let told = notes(&resume(&place, &["--set", item]));
        assert!(told.iter().any(|note| note == line), "{line}: {told:?}");
    }
    // A plan changes no number, so another one is told and taken.
    let is_told = |more: &[&str]| {
        notes(&resume(&place, more))
            .iter()
            .any(|note| note.starts_with("the plan is another than the one in"))
    };
    assert!(!is_told(&[]) && is_told(&["--set", "plan.\"layers.*\"=checkpoint"]));
    fs::write(place.path("plan.toml"), "[plan]\n\"layers.*\" = \"checkpoint\"\n").unwrap();
    assert!(is_told(&["--plan", "plan.toml"]));
    // The same from another kind of engine would be refused alike; what belongs to other data is, as before.
    resume(&place, &["--set", "train.seed=2"]).refuses("E304", &["seed"]);
    let mut text = fs::read(place.path("text.txt")).unwrap();
    text[5000] ^= 1;
    fs::write(place.path("text.txt"), text).unwrap();
    resume(&place, &[]).refuses("E304", &["another text"]);
}

/// Flips a bit of a file, runs, and flips it back.
fn with_flip(file: &Path, bit: usize, run: impl FnOnce()) {
    let bytes = fs::read(file).unwrap();
    let mut changed = bytes.clone();
    changed[bit / 8] ^= 1 << (bit % 8);
    fs::write(file, changed).unwrap();
    run();
    fs::write(file, bytes).unwrap();
}

#[test]
fn changed_files_of_a_checkpoint_are_refused_by_every_command() {
    for sharded in ["false", "true"] {
        let place = trained(&["--set", &format!("checkpoint.sharded={sharded}")]);
        let folder = newest(&place.path("saved"));
        let names: Vec<String> = fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        assert!(names.len() >= 4, "{names:?}");
        for name in names {
            let file = folder.join(&name);
            let bits = 8 * fs::metadata(&file).unwrap().len() as usize;
            for bit in [bits / 7, bits / 2 + 3, bits - 5] {
                with_flip(&file, bit, || {
                    let verified = place.run(&["checkpoint", "verify", "saved", "--json"]);
                    assert_eq!(verified.code, Some(1), "bit {bit} of {name}: {}", verified.out);
                    let problem = verified.of("checkpoints")[0]["checkpoints"][0]["problem"].to_string();
                    assert!(problem.contains("E312") && problem.contains(&name), "{problem}");
                    place.run(&["eval", "saved", "--json"]).refuses("E312", &[&name]);
                    resume(&place, &[]).refuses("E312", &[&name]);
                });
            }
        }
        let verified = place.run(&["checkpoint", "verify", "saved"]);
        assert_eq!(verified.code, Some(0), "{}", verified.out);
        // A seed and a number of heads that someone else wrote.
        let config = folder.join("config.toml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, text.replace("heads = 4", "heads = 2")).unwrap();
        place.run(&["eval", "saved", "--json"]).refuses("E312", &["config.toml", "checksum"]);
        fs::write(&config, text).unwrap();
        // A folder that holds another step.
        fs::rename(&folder, folder.with_file_name("step-00000040")).unwrap();
        let renamed = place.run(&["checkpoint", "verify", "saved", "--json"]);
        assert_eq!(renamed.code, Some(1), "{}", renamed.out);
        assert!(renamed.out.contains("the state after step 6"), "{}", renamed.out);
    }
}

/// A checkpoint of the version before there was a manifest, as that version wrote it, is read and said to have none.
#[test]
fn a_checkpoint_of_an_earlier_version_is_read_and_says_what_it_lacks() {
    let place = crate::place();
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/earlier");
    for kind in ["whole", "sharded"] {
        let folder = place.path(kind).join("step-00000001");
        fs::create_dir_all(&folder).unwrap();
        for file in fs::read_dir(recorded.join(kind)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        let verified = place.run(&["checkpoint", "verify", kind, "--json"]);
        assert_eq!(verified.code, Some(0), "{}", verified.out);
        let listed = &verified.of("checkpoints")[0]["checkpoints"][0];
        assert!(listed["remark"].as_str().unwrap().contains("has no manifest"), "{listed}");
        assert!(listed.get("problem").is_none());
        let more = ["mlp", "--json", "--no-verify", "--resume", kind, "--checkpoint-dir", "more"];
        let sizes = ["--set", "model.dims=[4,8,4]", "--batch", "4", "--steps", "2", "--mesh", "tp=2"];
        let resumed = place.run(&[&["train"], &more[..], &sizes].concat());
        assert_eq!(resumed.losses().len(), 1, "{}", resumed.out);
        assert!(notes(&resumed).iter().any(|note| note.contains("has no manifest")), "{}", resumed.out);
        fs::remove_dir_all(place.path("more")).unwrap();
        // Its config says what would have been another rule.
        let rule = ["--set", "optimizer.weight_decay=0.3"];
        let refused = place.run(&[&["train"], &more[..], &sizes, &rule].concat());
        refused.refuses("E317", &["optimizer.weight_decay"]);
        let _ = fs::remove_dir_all(place.path("more"));
    }
}

#[test]
fn a_config_belongs_to_its_checkpoint() {
    let place = trained(&[]);
    let whole = load(&place.path("saved")).unwrap();
    let none = RunFolder::create(&place.path("bare"), 1).unwrap();
    none.save(&FileStorage, Checkpoint { beside: Default::default(), ..whole }).unwrap();
    drop(none);
    place.run(&["eval", "bare", "--json"]).refuses("E005", &["config.toml"]);
    fs::remove_file(newest(&place.path("saved")).join("config.toml")).unwrap();
    place.run(&["eval", "saved", "--json"]).refuses("E312", &["config.toml"]);
}
