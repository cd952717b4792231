//! The command from outside: exit codes, and what goes to which stream.

use serde_json::Value;
use std::process::{Command, Output, Stdio};

fn partita(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partita")).args(arguments).output().unwrap()
}

fn events(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A reader that has enough closes its pipe; a disk that is full loses what was printed.
#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_printed_is_an_error_unless_nobody_reads() {
    for command in
        ["show mlp", "estimate gpt --json", "lower gpt --mesh dp=2", "completions bash", "--help", "env"]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let words: Vec<&str> = command.split(' ').collect();
        let outcome = Command::new(env!("CARGO_BIN_EXE_partita")).args(&words).stdout(full).output().unwrap();
        let said = text(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("error[E043]: standard output is not complete"), "{command}: {said}");
        let mut child = Command::new(env!("CARGO_BIN_EXE_partita"));
        let mut child = child.args(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let closed = child.wait_with_output().unwrap();
        let said = text(&closed.stderr);
        // On a slow machine there is progress.
        assert!(closed.status.code() == Some(0) && !said.contains("error"), "{command}: {said}");
    }
}

#[test]
fn env_describes_the_machine_for_people_and_machines() {
    let human = partita(&["env"]);
    assert_eq!(human.status.code(), Some(0));
    assert!(text(&human.stdout).contains("cores "), "{}", text(&human.stdout));
    let json = partita(&["env", "--json"]);
    let event: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(event["event"], "env");
    assert!(event["cores"].as_u64().unwrap() >= 1);
}

#[test]
fn bad_input_exits_with_2_and_says_why_without_colour() {
    let result = partita(&["train", "gpt", "--set", "train.stepz=1", "--json"]);
    assert_eq!(result.status.code(), Some(2));
    let event: Value = serde_json::from_slice(&result.stdout).unwrap();
    assert_eq!((&event["event"], &event["code"]), (&"error".into(), &"E001".into()));
    let error = text(&result.stderr);
    assert!(error.starts_with("error[E001]: ") && error.contains("did you mean `steps`"), "{error}");

    let result = partita(&["verify", "no-such-config"]);
    assert_eq!((result.status.code(), result.stdout.len()), (Some(2), 0));
    assert!(text(&result.stderr).contains("E005"));
    assert_eq!(partita(&["frobnicate"]).status.code(), Some(2));
    assert_eq!(partita(&["--help"]).status.code(), Some(0));
}

#[test]
fn a_verification_that_fails_exits_with_1_and_names_the_value() {
    let result = partita(&["verify", "mlp", "--mesh", "dp=2", "--json"]);
    let events = events(&result);
    assert_eq!(result.status.code(), Some(0), "{events:?}");
    assert_eq!(events.last().map(|event| &event["ok"]), Some(&true.into()));

    let result = partita(&["verify", "mlp", "--mesh", "tp=2", "--break-rule", "layers.1", "--json"]);
    let events = self::events(&result);
    let verify = events.last().unwrap();
    assert_eq!(result.status.code(), Some(1), "{events:?}");
    assert_eq!((&verify["event"], &verify["ok"]), (&"verify".into(), &false.into()));
    assert!(verify["first_diverging"].as_str().unwrap().contains("layers.1"), "{verify}");
}

#[test]
fn a_closed_pipe_does_not_fail_the_command() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_partita"))
        .arg("env")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let result = child.wait_with_output().unwrap();
    assert_eq!((result.status.code(), text(&result.stderr)), (Some(0), String::new()));
}

#[test]
fn opt_takes_what_stands_in_the_run_line_of_a_file_test() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/files/place/chain_op_by_op.mlir");
    let items = "device=plain,fused_ops=1,..check";
    let result = partita(&["opt", file, "--pass", items, "--ranks", "1"]);
    assert!(text(&result.stdout).contains("6 instructions, 7 buffers, arena 128 bytes"), "{result:?}");
    let result = partita(&["opt", file, "--pass", "fused_ops=few", "--ranks", "1"]);
    assert_eq!(result.status.code(), Some(2));
    assert!(text(&result.stderr).contains("E017"), "{result:?}");
    let list = text(&partita(&["opt", "--list"]).stdout);
    assert!(list.contains("print-fusion") && list.contains("..NAME"), "{list}");
}

#[test]
fn any_pass_from_the_model_to_the_program_can_be_printed() {
    let printed = |names: &str| {
        let result = partita(&["lower", "mlp", "--mesh", "dp=2", "--batch", "4", "--print-after", names]);
        assert_eq!(result.status.code(), Some(0), "{result:?}");
        text(&result.stdout)
    };
    // In the order of the passes, whatever the order of the names.
    let text = printed("fuse,partition,gradients,update");
    let places: Vec<Option<usize>> = ["gradients", "update", "partition", "fuse"]
        .map(|name| text.find(&format!("// after {name}: ")))
        .into();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    // The gradients of one device, the update of its parameters, and the mean over ranks that partitioning derives.
    let of = |from: usize, to: usize| &text[places[from].unwrap()..places[to].unwrap_or(text.len())];
    assert!(of(0, 1).contains("grad.layers.0.weight") && !of(0, 1).contains("learning_rate"), "{text}");
    assert!(of(1, 2).contains("learning_rate") && !of(1, 2).contains("all_reduce"), "{text}");
    assert!(of(2, 3).contains("all_reduce"), "{text}");
    // No two passes have one name.
    let all = printed("all");
    let mut names: Vec<&str> =
        all.lines().filter_map(|line| line.strip_prefix("// after ")?.split(':').next()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(count > 25 && names.len() == count, "{names:?}");
}

#[test]
fn a_command_refuses_options_that_it_does_not_read() {
    for (line, option) in [
        ("estimate gpt-13b --dtype f32", "--dtype"),
        ("estimate gpt-13b --mesh tp=8", "--mesh"),
        ("estimate gpt-13b --timetable gpipe", "--timetable"),
        ("estimate gpt-13b --seed 3", "--seed"),
        ("estimate gpt-13b --plan p.toml", "--plan"),
        ("estimate gpt-13b --sequence-parallel", "--sequence-parallel"),
        ("estimate gpt-13b --set optimizer.kind=sgd", "--set"),
        ("simulate gpt --data text.txt", "--data"),
        ("simulate --validate runs.csv --mesh tp=2", "--mesh"),
        ("verify gpt --data text.txt", "--data"),
        ("show --keys --batch 3", "--batch"),
        ("show gpt --seed 3", "--seed"),
        ("explain E231 --mesh tp=2", "--mesh"),
        ("eval runs/gpt --steps 3", "--steps"),
    ] {
        let result = partita(&line.split_whitespace().collect::<Vec<_>>());
        let error = text(&result.stderr);
        let name = line.split_whitespace().next().unwrap();
        assert_eq!(result.status.code(), Some(2), "{line}: {error}");
        assert!(
            error.starts_with(&format!("error[E033]: `partita {name}` does not read `{option}`")),
            "{line}: {error}"
        );
    }
    // What it reads is taken.
    let result = partita(&[
        "estimate",
        "gpt2-124m",
        "--cluster",
        "a100-40g",
        "--most",
        "1",
        "--set",
        "model.layers=2",
    ]);
    assert_eq!(result.status.code(), Some(0), "{}", text(&result.stderr));
}

#[test]
fn simulate_without_a_model_says_what_it_takes() {
    let error = text(&partita(&["simulate"]).stderr);
    assert!(error.starts_with("error[E033]") && error.contains("--validate FILE.csv"), "{error}");
}
