//! The processes of a run begin with the same settings and files, or end with one message: ranks that read different files
//! would train a mixture of both.

use crate::launch::run;
use partita_testkit::{Outcome, Place, train_arguments};
use std::fs;

const PROCESSES: usize = 2;

/// A run of several processes, each of which begins in a folder of its own: `0`, `1`, ..
fn apart(place: &Place, arguments: &[String]) -> Outcome {
    let script = "cd ${PARTITA_LAUNCH%%/*} && exec \"$0\" \"$@\"";
    let count = PROCESSES.to_string();
    let launch = ["launch", "-n", &count, "--", "sh", "-c", script, env!("CARGO_BIN_EXE_partita")];
    run(
        place,
        &launch.iter().map(|word| word.to_string()).chain(arguments.iter().cloned()).collect::<Vec<_>>(),
    )
}

/// Writes a file of each process.
fn write(place: &Place, name: &str, bytes: [&[u8]; PROCESSES]) {
    for (process, bytes) in bytes.iter().enumerate() {
        fs::create_dir_all(place.path(&process.to_string())).unwrap();
        fs::write(place.path(&format!("{process}/{name}")), bytes).unwrap();
    }
}

/// Both files of a pair alike, then another one for the second process.
fn refused_unless_alike(place: &Place, name: &str, pair: [&[u8]; 2], arguments: &[String], words: &[&str]) {
    let [one, other] = pair;
    write(place, name, [one, one]);
    let alike = apart(place, arguments);
    assert_eq!((alike.code, alike.err.as_str()), (Some(0), ""), "{name}");
    write(place, name, [one, other]);
    let mixed = apart(place, arguments);
    mixed.refuses("E434", words);
    assert!(mixed.err.matches("error[").count() == 1 && mixed.of("step").is_empty(), "{}", mixed.err);
}

#[test]
fn other_data_in_one_process_is_refused() {
    let place = crate::place();
    let text = b"All work and no play makes Jack a dull boy. ".repeat(40);
    let other = [&text[..text.len() - 1], b"!"].concat();
    let train = train_arguments("gpt", "dp=2", &["--set", "data.path=text", "--set", "train.steps=2"]);
    refused_unless_alike(&place, "text", [&text, &other], &train, &["data.digest", "in process 1"]);
}

#[test]
fn other_weights_in_one_process_are_refused() {
    let place = crate::place();
    let model = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/pt2/mlp.pt2")).unwrap();
    write(&place, "mlp.pt2", [&model, &model]);
    // One file that both open is not read before it is used; copies are compared.
    let shown = place.run(&["export", "0/mlp.pt2", "--for", "safetensors", "--out", "own.safetensors"]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    let own = fs::read(place.path("own.safetensors")).unwrap();
    let mut other = own.clone();
    *other.last_mut().unwrap() ^= 1;
    let mut train: Vec<String> =
        ["train", "mlp.pt2", "--json", "--steps", "2", "--no-verify", "--mesh", "dp=2"]
            .map(String::from)
            .to_vec();
    train.extend(["--set", "model.weights=w.safetensors"].map(String::from));
    refused_unless_alike(&place, "w.safetensors", [&own, &other], &train, &["the initial value of"]);
}

#[test]
fn other_settings_and_another_checkpoint_in_one_process_are_refused() {
    let place = crate::place();
    let config = |seed: usize| {
        let keys = "[model]\nkind = \"mlp\"\ndims = [4, 8, 4]\n\n[mesh]\nshape = \"dp=2\"\n";
        format!("{keys}\n[train]\nsteps = 2\nbatch = 8\nseed = {seed}\n").into_bytes()
    };
    let train: Vec<String> = ["train", "c.toml", "--json", "--no-verify"].map(String::from).to_vec();
    refused_unless_alike(&place, "c.toml", [&config(1), &config(2)], &train, &["seed", "`1`", "`2`"]);
    // Each process has a checkpoint of its own, of the same settings and other values.
    for (process, steps) in ["3", "3"].iter().enumerate() {
        let dir = format!("{process}/saved");
        let rate = format!("optimizer.learning_rate=0.0{}", process + 1);
        let more = ["--set", &rate, "--set", &format!("train.steps={steps}"), "--checkpoint-dir", &dir];
        place.train("mlp", "dp=2", &more);
    }
    let more = ["--resume", "saved", "--set", "train.steps=5", "--set", "optimizer.learning_rate=0.01"];
    let resumed = apart(&place, &train_arguments("mlp", "dp=2", &more));
    resumed.refuses("E434", &["the checkpoint"]);
    assert!(resumed.of("step").is_empty());
}
