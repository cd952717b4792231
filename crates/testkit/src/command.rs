//! A command in a folder of its own, with some text to train on.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder in which a command runs.
pub struct Place {
    folder: TempDir,
    program: PathBuf,
}

/// The result of a command.
pub struct Outcome {
    /// The exit code; `None` for a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Sizes at which a step takes milliseconds.
pub const TINY: &[&str] = &[
    "model.dim=24",
    "model.heads=4",
    "model.layers=1",
    "model.sequence=16",
    "train.batch=8",
    "train.steps=6",
    "train.sample_bytes=0",
    "train.validate_batches=1",
    "train.validate_every=0",
    "data.path=text.txt",
];

impl Place {
    /// A new folder with `text.txt`, for this program.
    pub fn of(program: impl Into<PathBuf>) -> Place {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let words = ["the ", "cat ", "sat ", "on ", "a ", "mat\n", "fn ", "let "];
        let mut state = 1u64;
        let mut text = String::new();
        for _ in 0..4000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            text += words[(state >> 61) as usize];
        }
        std::fs::write(folder.path().join("text.txt"), text).expect("the folder can be written");
        Place { folder, program: program.into() }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command, to be run in the folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(self.folder.path()).env("RUST_BACKTRACE", "0");
        command
    }

    /// Runs it.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        self.run_with(arguments, |command| command)
    }

    /// Runs it with another environment.
    pub fn run_with(&self, arguments: &[&str], change: fn(&mut Command) -> &mut Command) -> Outcome {
        let output = change(&mut self.command(arguments)).output().expect("the command starts");
        Outcome {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("text"),
            err: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// Trains a tiny model on some mesh, unverified, with `--json` and more arguments.
    pub fn train(&self, model: &str, mesh: &str, arguments: &[&str]) -> Outcome {
        let all = train_arguments(model, mesh, arguments);
        self.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// The arguments of [`Place::train`]; later ones win.
pub fn train_arguments(model: &str, mesh: &str, arguments: &[&str]) -> Vec<String> {
    let mut all: Vec<String> = ["train", model, "--json", "--no-verify"].map(String::from).to_vec();
    // Of those an MLP has the training alone: it reads no text.
    for item in TINY.iter().filter(|item| model != "mlp" || item.starts_with("train.")) {
        all.extend(["--set".to_string(), item.to_string()]);
    }
    all.extend(["--set".to_string(), format!("mesh.shape={mesh}")]);
    all.extend(arguments.iter().map(|a| a.to_string()));
    all
}

impl Outcome {
    /// The lines of `--json`.
    pub fn events(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// The events of one kind.
    pub fn of(&self, event: &str) -> Vec<Value> {
        self.events().into_iter().filter(|e| e["event"] == event).collect()
    }

    /// The losses of the steps of a run that went well.
    pub fn losses(&self) -> Vec<f64> {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.of("step").iter().map(|step| step["loss"].as_f64().expect("a number")).collect()
    }

    /// Asserts a refusal: exit code 2, one `error` event with `code`, and every word on standard error.
    #[track_caller]
    pub fn refuses(&self, code: &str, words: &[&str]) {
        assert_eq!(self.code, Some(2), "{}{}", self.out, self.err);
        let errors = self.of("error");
        assert_eq!(errors.len(), 1, "{}", self.out);
        assert_eq!(errors[0]["code"], code, "{}", self.err);
        // On a slow machine, lines of progress come first.
        let mut lines = self.err.lines().skip_while(|line| line.ends_with(" s"));
        assert!(
            lines.next().is_some_and(|line| line.starts_with(&format!("error[{code}]: "))),
            "{}",
            self.err
        );
        assert!(!self.err.contains("panicked"), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "`{word}` is not in\n{}", self.err);
        }
    }
}

/// The checkpoint of a run that the next one would resume.
pub fn newest(dir: &Path) -> PathBuf {
    dir.join(std::fs::read_to_string(dir.join("latest")).expect("a checkpoint").trim())
}
