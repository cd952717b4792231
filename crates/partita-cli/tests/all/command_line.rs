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
        ("simulate --rows runs.csv --mesh tp=2", "--mesh"),
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
    assert!(error.starts_with("error[E033]") && error.contains("--rows FILE.csv"), "{error}");
}
