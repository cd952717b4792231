//! What is asked for is checked before it is done: counts, costs, memory, and the plan itself.

use partita_testkit::{Outcome, Place, TINY, newest};
use std::fs;
use std::process::Command;

/// Runs a command on the tiny GPT, with `--json` and more arguments, whose flags win; `train` verifies first.
fn tiny(place: &Place, command: &str, arguments: &[&str]) -> Outcome {
    let is_flag = |item: &&&str| {
        let (key, _) = item.split_once('=').expect("key=value");
        arguments.contains(&&*format!("--{}", key.rsplit('.').next().expect("a key")))
    };
    let settings = TINY.iter().filter(|item| !is_flag(item));
    let mut all = vec![command, "gpt", "--json"];
    settings.for_each(|item| all.extend(["--set", item]));
    all.extend(arguments);
    place.run(&all)
}

#[test]
fn every_number_of_microbatches_that_a_batch_has_rows_for_is_verified_and_trained() {
    let place = crate::place();
    for arguments in [
        &["--batch", "32", "--microbatches", "8"][..],
        &["--batch", "9", "--microbatches", "9"],
        &["--batch", "10", "--microbatches", "7", "--mesh", "dp=3"],
    ] {
        let trained = tiny(&place, "train", &[&["--steps", "1"], arguments].concat());
        assert_eq!(trained.code, Some(0), "{arguments:?}: {}", trained.err);
        assert_eq!(trained.of("verify")[0]["ok"], true);
        let verified = tiny(&place, "verify", arguments);
        assert_eq!(verified.code, Some(0), "{arguments:?}: {}", verified.err);
    }
    for command in ["train", "verify"] {
        tiny(&place, command, &["--batch", "8", "--microbatches", "9"])
            .refuses("E225", &["9 microbatches of a batch of 8", "1 to 8"]);
    }
}

#[test]
fn counts_of_zero_and_below_are_refused_by_flag_and_by_key() {
    let place = crate::place();
    for (flag, key) in
        [("--steps", "train.steps"), ("--batch", "train.batch"), ("--microbatches", "train.microbatches")]
    {
        for command in ["train", "verify", "show", "lower"] {
            let words = [&format!("`{key}` is zero")[..], "at least 1"];
            tiny(&place, command, &[flag, "0"]).refuses("E031", &words);
            tiny(&place, command, &["--set", &format!("{key}=0")]).refuses("E031", &words);
        }
        tiny(&place, "train", &[flag, "-3"]).refuses("E002", &[key, "an integer of at least 0", "-3"]);
    }
    for key in ["train.validate_batches", "checkpoint.keep"] {
        tiny(&place, "train", &["--set", &format!("{key}=0")]).refuses("E031", &[key]);
    }
    tiny(&place, "train", &["--set", "optimizer.learning_rate=-1"]).refuses("E057", &["learning_rate", "-1"]);
    tiny(&place, "lower", &["--rank", "4"]).refuses("E014", &["no rank 4", "below 2"]);
    tiny(&place, "train", &["--log-every", "0"]).refuses("E033", &["--log-every"]);
    tiny(&place, "show", &["--set", "model.layers=100000"]).refuses("E015", &["at most 4096 layers"]);
}

#[test]
fn workers_that_no_process_can_have_are_refused() {
    let place = crate::place();
    for workers in ["0", "1025", "100000"] {
        for verify in [&[][..], &["--no-verify"]] {
            let outcome = tiny(&place, "train", &[&["--workers", workers], verify].concat());
            outcome.refuses("E032", &["1 to 1024 threads", &format!("found: {workers}")]);
        }
    }
    place.run(&["bench", "mlp", "--threads", "0", "--json"]).refuses("E032", &["1 to 1024 threads"]);
    tiny(&place, "train", &["--workers", "-2"]).refuses("E033", &["--workers", "found: -2"]);
}

#[test]
fn no_learning_rate_changes_the_verdict_on_a_right_plan() {
    let place = crate::place();
    for (kind, rates) in
        [("adamw", &["1e-6", "0.5", "10"][..]), ("sgd", &["0.5"]), ("lion", &["10"]), ("muon", &["0.5"])]
    {
        for rate in rates {
            let rate = format!("optimizer.learning_rate={rate}");
            let kind = format!("optimizer.kind={kind}");
            let set = ["--set", &rate, "--set", &kind, "--set", "optimizer.warmup_steps=0"];
            for runner in ["interpreter", "cpu"] {
                let verified = tiny(&place, "verify", &[&set[..], &["--runner", runner]].concat());
                assert_eq!(verified.code, Some(0), "{set:?} {runner}: {}{}", verified.out, verified.err);
            }
        }
    }
}

/// Whether any run has saved anything.
fn has_checkpoints(place: &Place) -> bool {
    let Ok(runs) = fs::read_dir(place.path("runs")) else { return false };
    runs.flatten().any(|run| {
        let saved = fs::read_dir(run.path()).into_iter().flatten().flatten();
        saved.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
    })
}

#[test]
fn training_does_not_start_where_verification_fails() {
    let place = crate::place();
    let broken = ["--mesh", "tp=2", "--break-rule", "layers.0.mlp.down_proj"];
    let outcome = tiny(&place, "train", &broken);
    assert_eq!(outcome.code, Some(1), "{}", outcome.err);
    assert_eq!(outcome.of("verify")[0]["ok"], false);
    let errors = outcome.of("error");
    assert_eq!((errors.len(), &errors[0]["code"]), (1, &"E030".into()));
    assert!(errors[0]["help"].as_str().unwrap().contains("--no-verify"));
    assert!(outcome.of("step").is_empty() && !has_checkpoints(&place));
    let anyway = tiny(&place, "train", &[&broken[..], &["--no-verify"]].concat());
    assert_eq!((anyway.code, anyway.of("step").len()), (Some(0), 6), "{}", anyway.err);
}

#[test]
fn every_level_of_kernels_trains_to_the_same_losses_and_others_are_refused() {
    let place = crate::place();
    let losses = |flags: &[&str]| {
        let trained = tiny(&place, "train", &[&["--no-verify", "--steps", "2"], flags].concat());
        trained.losses().iter().map(|loss| loss.to_bits()).collect::<Vec<_>>()
    };
    let portable = losses(&["--kernels", "portable"]);
    assert_eq!(losses(&["--set", "train.kernels=portable"]), portable);
    let environment = place.run(&["env", "--json"]);
    let levels = environment.of("env")[0]["kernels"].clone();
    for level in levels.as_array().expect("levels").iter().map(|level| level.as_str().expect("a name")) {
        // A matrix unit rounds elsewhere.
        if level != "native" {
            assert_eq!(losses(&["--kernels", level]), portable, "{level}");
        }
    }
    let verified = tiny(&place, "verify", &["--runner", "cpu", "--kernels", "portable"]);
    assert_eq!(verified.code, Some(0), "{}", verified.err);
    for command in ["train", "verify"] {
        let words = ["`avx1024`", "portable, avx2, avx512, native", "[train] kernels"];
        tiny(&place, command, &["--kernels", "avx1024"]).refuses("E466", &words);
        tiny(&place, command, &["--portable"]).refuses("E033", &["--kernels portable"]);
    }
    place.run(&["bench", "--json", "--kernels", "avx1024"]).refuses("E033", &["avx1024", "portable, avx2"]);
}

#[test]
fn a_verification_tells_its_cost_and_refuses_what_is_too_much() {
    let place = crate::place();
    let told = tiny(&place, "verify", &["--mesh", "tp=2"]);
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(told.err.contains("verifying on the CPU device: 2 ranks, "), "{}", told.err);
    assert!(
        format!("{}{}", told.out, told.err).contains("comparing the step of tp=2 on the CPU device with")
    );
    let told = tiny(&place, "verify", &["--mesh", "tp=2", "--runner", "interpreter"]);
    assert!(told.err.contains("verifying on the interpreter: 2 ranks, "), "{}", told.err);
    assert!(told.err.contains("operations on elements"), "{}", told.err);
    for command in ["train", "verify"] {
        tiny(&place, command, &["--mesh", "tp=2", "--verify-limit", "1000"])
            .refuses("E042", &["at most 1.0k operations", "2 ranks", "--verify-limit"]);
    }
    assert!(!has_checkpoints(&place));
}

#[test]
fn memory_is_asked_for_before_it_is_taken() {
    let place = crate::place();
    // Compiling alone takes more.
    for command in ["train", "verify", "show", "lower"] {
        let outcome = tiny(&place, command, &["--memory-limit", "1M"]);
        outcome.refuses("E040", &["memory ran short after", "at most 1.0 MiB", "--memory-limit"]);
    }
    // Compiling fits, the planned buffers do not: 256 MiB of weights, and states.
    let large =
        ["train", "mlp", "--json", "--no-verify", "--set", "model.dims=[64,8192,8192]", "--batch", "1"];
    let outcome = place.run(&[&large[..], &["--mesh", "tp=2", "--memory-limit", "500M"]].concat());
    outcome.refuses(
        "E040",
        &["not enough memory for the planned buffers of all ranks (2)", "needed", "500.0 MiB"],
    );
    // The values of a verification, before the first of them; the arguments of a function; unrolled microbatches.
    place
        .run(&["verify", "gpt3-13b", "--memory-limit", "1G", "--json"])
        .refuses("E040", &["the values of a verification", "GiB needed", "1.0 GiB"]);
    let wide = "func.func @f(%x: tensor<1000000x1000000xf32>) -> tensor<1000000x1000000xf32> {\n  \
                %y = stablehlo.negate %x : tensor<1000000x1000000xf32>\n  return %y : tensor<1000000x1000000xf32>\n}\n";
    fs::write(place.path("wide.mlir"), wide).unwrap();
    place.run(&["run", "wide.mlir", "--json"]).refuses("E040", &["the arguments of `f`", "3.6 TiB needed"]);
    for command in ["show", "explain", "train"] {
        let counts = ["--batch", "4294967296", "--microbatches", "4294967296"];
        place
            .run(&[&[command, "gpt", "--json"], &counts[..]].concat())
            .refuses("E040", &["4294967296 microbatches"]);
    }
    tiny(&place, "train", &["--memory-limit", "lots"]).refuses("E041", &["`lots`", "80%"]);
    tiny(&place, "train", &["--set", "train.memory_limit=0"]).refuses("E041", &["1073741824"]);
}

#[test]
fn sizes_that_no_run_has_are_answered_at_once() {
    let place = crate::place();
    // Timetables of billions of tasks, and logits that would be divided into thousands of chunks.
    place
        .run(&["show", "gpt", "--mesh", "pp=65536", "--json"])
        .refuses("E461", &["too many tasks", "65536 stages"]);
    let predicted = place.run(&["simulate", "gpt", "--batch", "1048576"]);
    assert_eq!(predicted.code, Some(0), "{}", predicted.err);
    assert!(predicted.out.contains("does NOT fit"), "{}", predicted.out);
    let chunks = place.run(&["lower", "gpt", "--batch", "1048576", "--stage", "program", "--why"]);
    assert!(chunks.out.contains("blocks of rows, more than 8192"), "{}", chunks.out);
}

/// Under a limit of the address space, the small allocations of planning fail too.
#[cfg(target_os = "linux")]
#[test]
fn too_little_address_space_is_an_error_and_no_abort() {
    let place = crate::place();
    let program = place.command(&[]).get_program().to_owned();
    for kibibytes in ["40000", "60000", "100000", "150000"] {
        for command in ["show gpt3-13b", "simulate gpt3-175b", "plan gpt --devices 4", "estimate gpt3-175b"] {
            let script = format!("ulimit -v {kibibytes} && exec \"$0\" {command}");
            let run =
                Command::new("sh").args(["-c", &script]).arg(&program).current_dir(place.path("")).output();
            let run = run.unwrap();
            let said = String::from_utf8_lossy(&run.stderr);
            match run.status.code() {
                Some(0) => {}
                Some(2) => assert!(said.contains("error[E040]"), "{command} in {kibibytes} KiB: {said}"),
                code => panic!("{command} in {kibibytes} KiB: {code:?}, {said}"),
            }
        }
    }
}

/// What nothing can hold is answered from its sizes: no list of its blocks is made, and no tensor is allocated.
#[test]
fn a_batch_that_nothing_can_hold_is_answered_at_once() {
    let place = crate::place();
    let rows = ["--batch", "4294967296"];
    for (command, code) in [
        ("explain mixtral --mesh dp=2", 0),
        ("simulate t5 --json", 0),
        ("lower wide-resnet --counts", 0),
        ("report gpt --out page.html", 0),
        ("plan mlp --devices 2 --json", 2),
    ] {
        let began = std::time::Instant::now();
        let outcome = place.run(&[&command.split(' ').collect::<Vec<_>>()[..], &rows].concat());
        assert_eq!(outcome.code, Some(code), "{command}: {}", outcome.err);
        assert!(code == 0 || outcome.err.contains("error[E520]"), "{command}: {}", outcome.err);
        // Hundreds of seconds while blocks were listed one by one.
        assert!(began.elapsed().as_secs() < 60, "{command}: {:?}", began.elapsed());
    }
    let experts = ["--set", "model.experts=999999999999", "--set", "model.sequence=1000000"];
    let too_large = [&["explain", "mixtral", "--mesh", "dp=2", "--json"][..], &experts].concat();
    place.run(&too_large).refuses("E040", &["larger than the memory of any cluster", "64 PiB"]);
    // The memory of ranks is requested before exchanges are divided among them.
    let wide = [
        "train",
        "moe-gpt",
        "--no-verify",
        "--set",
        "model.experts=1000000",
        "--memory-limit",
        "500M",
        "--json",
    ];
    let outcome = place.run_with(&wide, |command| command.env("RUST_BACKTRACE", "0"));
    outcome.refuses("E040", &["the planned buffers of"]);
}

#[test]
fn a_mesh_is_looked_at_before_arguments_are_drawn() {
    let place = crate::place();
    let text = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n";
    fs::write(place.path("f.mlir"), text).unwrap();
    let run = place.run(&["run", "f.mlir", "--mesh", "dp=1000000", "--input", "none.npz", "--json"]);
    run.refuses("E007", &["1000000"]);
}

#[test]
fn what_is_wrong_with_a_command_line_is_json_too() {
    let place = crate::place();
    for (arguments, message) in [
        (&["train", "--json", "--steps", "many"][..], "invalid value 'many'"),
        (&["train", "--batch", "2", "--batch", "4", "--json"], "cannot be used multiple times"),
        (&["--json", "frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (&["verify", "--json"], "required arguments were not provided"),
        (&["train", "--workers", "2", "--deterministic", "--json"], "cannot be used with"),
        (&["show", "gpt", "--as", "yaml", "--json"], "invalid value 'yaml'"),
        (&["train", "--stepz", "3", "--json"], "unexpected argument '--stepz'"),
        (&["--json"], "requires a subcommand"),
    ] {
        let outcome = place.run(arguments);
        outcome.refuses("E033", &[message]);
        let events = outcome.events();
        assert_eq!(events.len(), 1, "{}", outcome.out);
        let keys: Vec<&String> = events[0].as_object().unwrap().keys().collect();
        for key in ["code", "message", "expected", "found", "at", "help"] {
            assert!(keys.contains(&&key.to_string()), "{key} is not in {keys:?}");
        }
    }
    let form = place.run(&["show", "gpt", "--as", "yaml", "--json"]).events().remove(0);
    assert_eq!((&form["expected"], &form["found"]), (&"calls, dict, toml".into(), &"yaml".into()));
    let flag = place.run(&["train", "--stepz", "3", "--json"]).events().remove(0);
    assert!(flag["help"].as_str().unwrap().contains("--steps"), "{flag}");
    let help = place.run(&["--help", "--json"]);
    assert_eq!((help.code, help.events()[0]["event"].as_str()), (Some(0), Some("text")));
}

#[test]
fn another_kind_on_the_command_line_leaves_out_what_it_does_not_have() {
    let place = crate::place();
    let outcome = tiny(&place, "train", &["--set", "optimizer.kind=sgd", "--steps", "1"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert!(
        outcome.err.contains("left out of the bundled config `gpt`")
            && outcome.err.contains("optimizer.beta2")
    );
    // What is kept beside the checkpoint is a config of its own.
    let kept = newest(&place.path("runs/gpt")).join("config.toml");
    let text = fs::read_to_string(&kept).unwrap();
    assert!(text.contains("kind = \"sgd\"") && !text.contains("beta2"), "{text}");
    fs::copy(&kept, place.path("kept.toml")).unwrap();
    let again = place.run(&["show", "kept.toml"]);
    assert_eq!((again.code, again.err.as_str()), (Some(0), ""));
    let llama = place.run(&["show", "gpt", "--set", "model.kind=llama"]);
    assert_eq!(llama.code, Some(0), "{}", llama.err);
    assert!(llama.err.contains("model.bias"), "{}", llama.err);
    // A key that was asked for is not left out, and neither is one of a file.
    tiny(&place, "show", &["--set", "optimizer.kind=sgd", "--set", "optimizer.beta2=0.9"])
        .refuses("E001", &["`beta2`", "[optimizer]"]);
    fs::write(place.path("own.toml"), "[model]\nkind = \"gpt\"\n[optimizer]\nbeta2 = 0.9\n").unwrap();
    place
        .run(&["show", "own.toml", "--json", "--set", "optimizer.kind=sgd"])
        .refuses("E001", &["`beta2`", "`own.toml` holds the key; `optimizer.kind` is another than there"]);
}

#[test]
fn a_config_without_a_model_is_refused() {
    let place = crate::place();
    for (text, found) in [
        ("", "no section at all"),
        ("# only a comment\n", "no section at all"),
        ("[train]\nsteps = 3\n[mesh]\n", "[train], [mesh]"),
    ] {
        fs::write(place.path("config.toml"), text).unwrap();
        for command in ["train", "verify", "show"] {
            place.run(&[command, "config.toml", "--json"]).refuses("E035", &["no model", "[model]", found]);
        }
    }
}

#[test]
fn suggestions_are_near_and_places_are_named() {
    let place = crate::place();
    tiny(&place, "show", &["--set", "model.dmi=3"]).refuses("E001", &["did you mean `dim`?"]);
    fs::write(place.path("pyenv-installer"), "x").unwrap();
    let missing = tiny(&place, "train", &["--set", "data.path=penguins.txt"]);
    missing.refuses("E301", &["penguins.txt"]);
    assert!(!missing.err.contains("did you mean"), "{}", missing.err);
    tiny(&place, "train", &["--set", "data.path=tezt.txt"]).refuses("E301", &["did you mean `text.txt`?"]);
    let resumed = tiny(&place, "train", &["--no-verify", "--resume", "nowhere"]);
    resumed.refuses("E311", &["in the current folder:", "text.txt"]);
}

#[test]
fn idle_ranks_are_refused_in_the_same_words_everywhere() {
    let place = crate::place();
    let strict = ["--mesh", "tp=8", "--strict"];
    let told: Vec<String> =
        ["train", "verify", "show", "lower"].map(|command| tiny(&place, command, &strict).err).to_vec();
    assert!(told[0].starts_with("error[E009]: the mesh leaves ranks idle"), "{}", told[0]);
    assert!(told.iter().all(|text| *text == told[0]), "{told:?}");
}

#[test]
#[cfg(unix)]
fn a_path_that_is_not_utf_8_is_refused_and_not_changed() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let place = crate::place();
    let name = OsStr::from_bytes(b"te\xffxt.txt");
    fs::copy(place.path("text.txt"), place.path("").join(name)).unwrap();
    for flag in ["--data", "--plan", "--checkpoint-dir"] {
        let output = place.command(&["train", "gpt", "--json", flag]).arg(name).output().unwrap();
        let (out, err) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        Outcome { code: output.status.code(), out, err }.refuses("E034", &["not UTF-8", "te\\xFFxt.txt"]);
    }
}
