//! What is wrong is refused with exit code 2, a code, and words that help; never with a panic.

use partita_testkit::{newest, train_arguments};
use std::fs;
use std::process::Stdio;

/// Trains the tiny GPT on `tp=2` with more settings.
#[track_caller]
fn refused(settings: &[&str], code: &str, words: &[&str]) {
    let place = crate::place();
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    place.train("gpt", "tp=2", &arguments).refuses(code, words);
}

/// Files that do not end, or are larger than any text, are read up to a bound: with more, the allocator would end the
/// command under this limit of 1 GB.
#[cfg(target_os = "linux")]
#[test]
fn files_without_end_are_refused() {
    let place = crate::place();
    let limited = |arguments: &[&str]| {
        let script = "ulimit -v 1000000 && exec timeout 20 \"$0\" \"$@\"";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).arg(env!("CARGO_BIN_EXE_partita")).args(arguments);
        let output = command.current_dir(place.path("")).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap() + &String::from_utf8(output.stdout).unwrap();
        (output.status.code(), said)
    };
    fs::File::create(place.path("sparse.toml")).unwrap().set_len(10 << 30).unwrap();
    for endless in ["/dev/zero", "sparse.toml"] {
        for (arguments, code) in [
            (&["simulate", "gpt", "--cluster", endless][..], "E473"),
            (&["show", "gpt", "--plan", endless], "E005"),
            (&["show", endless], "E005"),
            (&["simulate", "--validate", endless], "E005"),
        ] {
            let (status, said) = limited(arguments);
            assert!(status == Some(2) && said.contains(code), "{arguments:?}: {status:?} {said}");
            assert!(said.contains("at most 67108864 are read"), "{arguments:?}: {said}");
        }
    }
    place.train("mlp", "dp=2", &["--checkpoint-dir", "run"]);
    let step = newest(&place.path("run"));
    for name in ["manifest.json", "state.json", "config.toml", "../latest"] {
        let file = step.join(name);
        let whole = fs::read(&file).unwrap();
        let damages: [&dyn Fn(); 3] = [
            &|| fs::File::options().write(true).open(&file).unwrap().set_len(10 << 30).unwrap(),
            &|| {
                fs::remove_file(&file).unwrap();
                std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
            },
            &|| {
                fs::remove_file(&file).unwrap();
                assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
            },
        ];
        for (number, damage) in damages.iter().enumerate() {
            damage();
            // A run whose `latest` says nothing has a newest checkpoint, which is whole.
            let expected = if name == "../latest" { 0 } else { 1 };
            let (status, said) = limited(&["checkpoint", "verify", "run"]);
            assert_eq!(status, Some(expected), "{name} {number}: {said}");
            let (status, said) = limited(&["eval", step.to_str().unwrap()]);
            let expected = if name == "../latest" { Some(0) } else { Some(2) };
            assert_eq!(status, expected, "{name} {number}: {said}");
            fs::remove_file(&file).unwrap();
            fs::write(&file, &whole).unwrap();
        }
    }
}

/// Files of other kinds where a config is expected, and what to do with them.
#[test]
fn a_file_of_another_kind_gets_advice() {
    let place = crate::place();
    fs::write(place.path("data.npz"), [0x50, 0x4b, 0xff, 0xfe]).unwrap();
    fs::write(place.path("model.py"), "import torch\n").unwrap();
    fs::write(place.path("plan.toml"), "[plan]\n\"layers.*\" = \"checkpoint\"\n").unwrap();
    fs::write(place.path("hybrid.pt2"), "").unwrap();
    for (name, code, words) in [
        ("data.npz", "E005", "--data FILE"),
        ("model.py", "E003", "torch.export.save"),
        ("plan.toml", "E035", "verify MODEL --plan FILE"),
        ("hybird.toml", "E005", "did you mean `hybrid.pt2`"),
        ("hybird.pt2", "E350", "did you mean `hybrid.pt2`"),
        ("llma", "E005", "did you mean `llama`"),
    ] {
        place.run(&["show", name, "--mesh", "dp=2", "--json"]).refuses(code, &[words]);
    }
    place.run(&["explain", "E9999", "--json"]).refuses("E016", &["E9999"]);
}

#[test]
fn an_unknown_key_gets_a_suggestion() {
    refused(&["train.stepz=3"], "E001", &["`stepz`", "did you mean `steps`"]);
    refused(&["trian.steps=3"], "E001", &["`trian`", "did you mean `train`"]);
    refused(&["model.epsilon=1"], "E001", &["`epsilon`", "one of kind, vocab"]);
}

#[test]
fn a_wrong_type_says_what_was_expected_and_found() {
    refused(
        &["train.steps=\"many\""],
        "E002",
        &["`train.steps`", "an integer of at least 0", "\"many\" (string)"],
    );
    refused(&["train.batch=-1"], "E002", &["`train.batch`", "-1 (integer)"]);
    refused(&["optimizer.learning_rate=nan"], "E002", &["`optimizer.learning_rate`", "a finite number"]);
    refused(&["plan.strict=1"], "E002", &["true or false", "1 (integer)"]);
    refused(&["train.steps"], "E006", &["section.key=value"]);
}

#[test]
fn a_word_that_is_no_choice_names_the_choices() {
    refused(&["train.dtype=i32"], "E004", &["f32, f64, bf16, f16"]);
    refused(&["optimizer.kind=adamm"], "E004", &["`adamm`", "sgd, adam, adamw, lion, adafactor"]);
    refused(&["model.kind=lama"], "E004", &["did you mean `llama`"]);
    refused(&["data.validation_fraction=1.5"], "E004", &["below 1", "1.5"]);
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    refused(&["model.heads=5"], "E050", &["a divisor of 24"]);
    refused(&["model.layers=0"], "E050", &["`layers` is zero"]);
    refused(&["model.dropout=1.0"], "E050", &["less than 1"]);
    refused(&["train.microbatches=9"], "E225", &["9 microbatches of a batch of 8"]);
    refused(&["optimizer.learning_rate=-1e-3"], "E057", &["`learning_rate` out of range", "at least 0"]);
    refused(&["model.vocab=100"], "E305", &["at least 256", "100"]);
    for size in ["train.batch=9223372036854775807", "model.dim=99999999996", "train.batch=1000000000000"] {
        refused(&[size], "E015", &["too large", "typo"]);
    }
}

#[test]
fn a_config_that_cannot_be_read_says_where() {
    let place = crate::place();
    fs::write(place.path("broken.toml"), "[model]\nkind = \"gpt\"\n[train\nsteps = 1\n").unwrap();
    place.run(&["train", "broken.toml", "--json"]).refuses("E003", &["broken.toml:3"]);
    place.run(&["train", "lama", "--json"]).refuses("E005", &["`lama`", "did you mean `llama`"]);
    place.run(&["train", ".", "--json"]).refuses("E005", &["a TOML file"]);
}

#[test]
fn a_mesh_that_does_not_fit_is_refused() {
    let place = crate::place();
    for (mesh, code, words) in [
        ("", "E201", ["no axes", "dp=2,tp=2"]),
        ("dp", "E202", ["`dp` has no size", "name=size"]),
        ("dp=x", "E202", ["not a number", "`dp=x`"]),
        ("dp=2,dp=2", "E203", ["`dp`", "given twice"]),
        ("dp=0", "E204", ["size zero", "leave `dp` out"]),
        ("dp=-1,tp=-1", "E205", ["only one", "dp=-1,tp=-1"]),
        ("dp=18446744073709551615,tp=2", "E207", ["too many ranks", "at most"]),
        ("dp=70000", "E007", ["at most 65536 ranks", "70000 ranks"]),
    ] {
        for command in ["train", "verify", "show", "lower"] {
            let outcome = place.run(&[command, "mlp", "--mesh", mesh, "--json"]);
            outcome.refuses(code, &words);
        }
    }
    // More ranks can be planned than one process runs.
    for command in [&["train", "mlp"][..], &["verify", "mlp", "--runner", "cpu"]] {
        let outcome = place.run(&[command, &["--mesh", "dp=300", "--json"]].concat());
        outcome.refuses("E007", &["at most 256 ranks that run", "300 ranks"]);
    }
    let planned = place.run(&["show", "mlp", "--mesh", "dp=300"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
}

#[test]
fn an_axis_that_nothing_uses_is_refused_and_repeats_the_work_if_a_line_says_so() {
    let place = crate::place();
    let slip = place.train("gpt", "zz=2", &["--steps", "1"]);
    slip.refuses("E009", &["nothing uses the axis `zz`", "replicate(axis=zz)"]);
    let repeats = "plan.\"**\"=replicate(axis=zz)";
    let outcome = place.train("gpt", "zz=2", &["--steps", "1", "--set", repeats]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let alone = place.train("gpt", "dp=1", &["--set", "train.steps=1"]);
    assert_eq!(outcome.of("step")[0]["loss"], alone.of("step")[0]["loss"]);
    assert!(outcome.out.contains("its 2 ranks all compute the same"), "{}", outcome.out);
}

#[test]
fn data_that_is_missing_empty_or_short_is_refused() {
    let place = crate::place();
    fs::create_dir(place.path("empty")).unwrap();
    fs::write(place.path("short.txt"), "short").unwrap();
    let train = |data: &str| place.train("gpt", "tp=2", &["--set", &format!("data.path={data}")]);
    train("nowhere").refuses("E301", &["nowhere", "check the path"]);
    train("empty").refuses("E302", &["0 files", "name a text file or a folder"]);
    train("short.txt").refuses("E303", &["34 bytes or more", "5 bytes", "shorter sequences"]);
}

#[test]
fn a_plan_that_does_not_fit_is_refused() {
    refused(
        &["plan.\"lyers.*.mlp.up_proj\"=colwise"],
        "E221",
        &["matches no module", "did you mean `layers.*.mlp.up_proj`"],
    );
    refused(
        &["plan.\"layers.*.mlp.up_proj\"=colwize"],
        "E222",
        &["no such style", "found: colwize", "did you mean `colwise`", "layers.*.mlp.up_proj"],
    );
    refused(
        &["plan.\"layers.*.mlp.up_proj.weight\"=shard(7)"],
        "E224",
        &["no dimension 7", "a dimension from 0 to 1 of [96, 24]"],
    );
    refused(&["plan.\"layers.*.mlp.up_proj\"=colwise(axis=zz)"], "E223", &["zz"]);
    refused(&["plan.file=nowhere.toml"], "E005", &["no plan file `nowhere.toml`"]);
}

#[test]
fn fewer_heads_than_ranks_is_told_and_strict_refuses() {
    let place = crate::place();
    let heads = ["--set", "model.heads=2", "--set", "train.steps=1"];
    let outcome = place.train("gpt", "tp=4", &heads);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    for fact in ["ranks 1,3 are idle", "the next best mesh is dp=2,tp=2"] {
        let told = |note: &serde_json::Value| note["message"].as_str().unwrap().contains(fact);
        assert!(outcome.of("note").iter().any(told), "{}", outcome.out);
    }
    let strict = place.train("gpt", "tp=4", &[&heads[..], &["--strict"]].concat());
    strict.refuses("E009", &["leaves ranks idle", "ranks 1,3 are idle", "the next best mesh is dp=2,tp=2"]);
}

#[test]
fn resuming_without_a_checkpoint_is_refused() {
    let place = crate::place();
    place
        .train("gpt", "tp=2", &["--resume"])
        .refuses("E311", &["no checkpoint here", "runs/gpt", "state.json"]);
    place
        .train("gpt", "tp=2", &["--resume", "nowhere"])
        .refuses("E311", &["nowhere", "name a step's folder"]);
    assert!(!place.path("runs").exists());
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused() {
    let place = crate::place();
    let saved = place.train("gpt", "tp=2", &["--steps", "1", "--checkpoint-dir", "saved"]);
    assert_eq!(saved.code, Some(0), "{}", saved.err);
    let resume = |more: &[&str]| place.train("gpt", "tp=2", &[&["--resume", "saved"], more].concat());

    let other = resume(&["--set", "model.dim=48"]);
    other.refuses(
        "E314",
        &["norm.weight: expected f32[48], found f32[24]", "settings the checkpoint was made with"],
    );
    resume(&["--set", "model.layers=2"]).refuses("E314", &["missing", "layers.1.attn.q_proj.weight"]);
    resume(&["--set", "train.seed=2"]).refuses("E304", &["seed"]);

    let folder = newest(&place.path("saved"));
    let optimizer = folder.join("optimizer.safetensors");
    let bytes = fs::read(&optimizer).unwrap();
    fs::write(&optimizer, &bytes[..bytes.len() / 2]).unwrap();
    resume(&[]).refuses("E312", &["damaged or incomplete", "optimizer.safetensors"]);
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&optimizer, &changed).unwrap();
    resume(&[]).refuses("E312", &["damaged or incomplete", "optimizer.safetensors"]);
    fs::write(&optimizer, &bytes).unwrap();
    // The run has its one step already.
    let again = resume(&["--steps", "1"]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    let told = |note: &serde_json::Value| note["message"].as_str().unwrap().starts_with("nothing left to do");
    assert!(again.of("note").iter().any(told), "{}", again.out);
    assert!(again.losses().is_empty(), "{}", again.out);

    fs::create_dir(place.path("foreign")).unwrap();
    fs::copy(folder.join("model.safetensors"), place.path("foreign/model.safetensors")).unwrap();
    let foreign = place.train("gpt", "tp=2", &["--resume", "foreign"]);
    foreign.refuses("E313", &["weights, not a checkpoint", "state.json", "model.safetensors"]);
}

#[test]
fn a_run_that_diverges_names_rank_op_and_module_and_keeps_its_checkpoint() {
    let place = crate::place();
    let rate = ["--set", "optimizer.learning_rate=1e30", "--checkpoint-every", "1"];
    for more in [&[][..], &["--deterministic"]] {
        let outcome = place.train("gpt", "tp=2", &[&rate[..], more].concat());
        outcome.refuses(
            "E412",
            &["`loss` is not a finite number", "rank ", "instruction ", " in loss", "at step 2"],
        );
        assert!(outcome.of("error")[0]["help"].as_str().unwrap().contains("lower the learning rate"));
        assert_eq!(outcome.of("step").len(), 1);
        assert_eq!(outcome.err.matches("error[").count(), 1, "{}", outcome.err);
    }
    let state = fs::read_to_string(newest(&place.path("runs/gpt")).join("state.json")).unwrap();
    assert!(state.contains("\"step\": 1"), "{state}");
}

#[test]
fn a_folder_that_cannot_be_written_stops_the_run_before_its_first_step() {
    let place = crate::place();
    let outcome = place.train("gpt", "tp=2", &["--checkpoint-dir", "text.txt/below"]);
    outcome.refuses("E315", &["text.txt/below", "--checkpoint-dir"]);
    assert!(outcome.of("step").is_empty());
}

#[test]
fn verification_of_a_broken_rule_exits_with_1_and_names_the_first_value() {
    let place = crate::place();
    let base =
        ["verify", "gpt", "--mesh", "tp=2", "--json", "--set", "model.layers=1", "--set", "model.dim=24"];
    for runner in ["interpreter", "cpu"] {
        let broken = ["--runner", runner, "--break-rule", "layers.0.mlp.down_proj"];
        let outcome = place.run(&[&base[..], &broken].concat());
        assert_eq!(outcome.code, Some(1), "{}", outcome.err);
        let verify = &outcome.of("verify")[0];
        assert_eq!(verify["ok"], false);
        let first = verify["first_diverging"].as_str().expect("a value is named");
        assert!(first.contains("layers.0.mlp.down_proj"), "{first}");
    }
}

#[test]
fn a_reader_that_went_away_does_not_end_training() {
    let place = crate::place();
    let arguments = train_arguments("gpt", "dp=2", &["--checkpoint-dir", "saved"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut child = place.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let result = child.wait_with_output().unwrap();
    assert_eq!(result.status.code(), Some(0), "{}", String::from_utf8_lossy(&result.stderr));
    assert!(newest(&place.path("saved")).ends_with("step-00000006"));
}

#[test]
fn predictions_of_large_models_refuse_what_makes_no_sense() {
    let place = crate::place();
    fs::write(place.path("runs.csv"), "row_id,source_id\na,\"b\n").unwrap();
    place
        .run(&["simulate", "--validate", "runs.csv", "--json"])
        .refuses("E513", &["runs.csv:2:3", "closing quote"]);
    fs::write(place.path("config.json"), "{\"model_type\": \"llama\",\n  hidden: 1}").unwrap();
    place.run(&["estimate", "config.json", "--json"]).refuses("E512", &["config.json:2:3"]);
    place.run(&["estimate", "gpt3-175c", "--json"]).refuses("E005", &["did you mean `gpt3-175b`"]);
    let large = ["simulate", "gpt3-175b", "--batch", "64", "--microbatches", "8", "--json"];
    let with = |more: &[&'static str]| [&large[..], more].concat();
    place.run(&with(&["--mesh", "dp=8", "--cluster", "a100-80g:8x"])).refuses("E477", &["column 12"]);
    place.run(&with(&["--mesh", "dp=8,tp=8", "--cluster", "a100-80g:8"])).refuses("E474", &["8 ranks", "64"]);
    place.run(&with(&["--mesh", "dp=128"])).refuses("E511", &["divides into microbatches"]);
}
