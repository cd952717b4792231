//! `partita checkpoint`: lists, shows, verifies and converts the checkpoints of a run.

use crate::command::{Application, Command};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{bytes, table};
use crate::run::{Ending, answer};
use clap::{Args, Subcommand};
use partita::resume::NO_MANIFEST;
use partita::run_files::CONFIG_FILE;
use partita_base::{Diagnostic, Result};
use partita_runtime::checkpoint::{FileStorage, Opened, RunFolder, find, latest, list, load, run_folder};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Flags of `checkpoint`.
#[derive(Args, Clone, Debug)]
pub struct CheckpointArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CheckpointCommand,
}

/// What `checkpoint` does.
#[derive(Clone, Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List the checkpoints of a run.
    Ls {
        /// The folder of a run.
        #[arg(value_name = "RUN")]
        path: PathBuf,
    },
    /// Show what a checkpoint says of its run, and its tensors.
    Show {
        /// The folder of a checkpoint, or of a run for its newest one.
        #[arg(value_name = "RUN")]
        path: PathBuf,
    },
    /// Write a checkpoint of shards as one of whole tensors, in the folder of a new run.
    Convert {
        /// The folder of a checkpoint, or of a run for its newest one.
        #[arg(value_name = "RUN")]
        path: PathBuf,
        /// The new folder.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Read checkpoints whole and compare their files with the checksums; the exit code is 1 if one is damaged.
    Verify {
        /// The folder of a checkpoint, or of a run for all of them.
        #[arg(value_name = "RUN")]
        path: PathBuf,
    },
}

impl Command for CheckpointArgs {
    const NAME: &'static str = "checkpoint";
    const ABOUT: &'static str = "List, show, convert or verify the checkpoints of a run";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        checkpoint(self, output)
    }
}

/// A checkpoint in a list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Listed {
    /// Its folder.
    pub path: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether a run continues from it by default.
    pub latest: bool,
    /// Of a verification: what is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Of a verification: what it cannot tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// The checkpoints of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Checkpoints {
    /// Oldest first.
    pub checkpoints: Vec<Listed>,
}

impl Event for Checkpoints {
    const NAME: &'static str = "checkpoints";
}

/// A tensor of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: String,
    /// Its global shape.
    pub shape: Vec<usize>,
}

/// One checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Shown {
    /// Its folder.
    pub path: String,
    /// Steps taken.
    pub step: u64,
    /// What it says of its run.
    pub meta: BTreeMap<String, String>,
    /// Its tensors, in their order.
    pub tensors: Vec<Stored>,
}

impl Event for Shown {
    const NAME: &'static str = "checkpoint";
}

/// Runs the command.
///
/// # Errors
/// E311 to E313 for a folder without a usable checkpoint, E315 and E330 for an output folder that cannot be used. A damaged
/// checkpoint is no error of `verify`, but its result.
fn checkpoint(args: &CheckpointArgs, output: &mut Output) -> Result<Ending> {
    match &args.command {
        CheckpointCommand::Ls { path } => {
            let checkpoints = present(path)?.iter().map(|path| listed(path)).collect();
            answer(&Checkpoints { checkpoints }, Checkpoints::text, output);
            Ok(Ending::Done)
        }
        CheckpointCommand::Show { path } => {
            answer(&shown(path)?, Shown::text, output);
            Ok(Ending::Done)
        }
        CheckpointCommand::Convert { path, out } => {
            let path = find(path)?;
            let mut checkpoint = load(&path)?;
            // The config beside a checkpoint is text, and stays as it is.
            if let Ok(config) = partita_base::read_text(path.join(CONFIG_FILE)) {
                checkpoint.beside.insert(CONFIG_FILE.to_string(), config);
            }
            let written = RunFolder::create(out, 1)?.save(&FileStorage, checkpoint)?;
            answer(&Checkpoints { checkpoints: vec![listed(&written)] }, Checkpoints::text, output);
            Ok(Ending::Done)
        }
        CheckpointCommand::Verify { path } => {
            let is_run = path.is_dir() && run_folder(path).is_none();
            let all = if is_run { present(path)? } else { vec![path.clone()] };
            let verified = |path: &PathBuf| {
                let found =
                    Opened::open(path).and_then(|opened| opened.load().map(|_| opened.has_manifest()));
                Listed {
                    problem: found.as_ref().err().map(|error| problem(error)),
                    remark: found.is_ok_and(|has_manifest| !has_manifest).then(|| NO_MANIFEST.to_string()),
                    ..listed(path)
                }
            };
            let checkpoints: Vec<Listed> = all.iter().map(verified).collect();
            let damaged = checkpoints.iter().filter(|checkpoint| checkpoint.problem.is_some()).count();
            let is_damaged = damaged > 0;
            output.note(format!(
                "verified: {} of {} checkpoints are whole",
                checkpoints.len() - damaged,
                checkpoints.len()
            ));
            answer(&Checkpoints { checkpoints }, Checkpoints::text, output);
            Ok(if is_damaged { Ending::CheckFailed } else { Ending::Done })
        }
    }
}

/// The checkpoints of a run. E311 if there are none.
fn present(path: &Path) -> Result<Vec<PathBuf>> {
    let all = list(path)?;
    // Loading explains what is there instead.
    if all.is_empty() {
        load(path)?;
    }
    Ok(all)
}

fn listed(path: &Path) -> Listed {
    let files = std::fs::read_dir(path).into_iter().flatten().flatten();
    let newest = run_folder(path).and_then(|run| latest(run).ok().flatten());
    Listed {
        path: path.display().to_string(),
        bytes: files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum(),
        latest: newest.is_some_and(|newest| newest == path),
        problem: None,
        remark: None,
    }
}

fn problem(error: &Diagnostic) -> String {
    let found = error.found.as_ref().map(|found| format!(": {found}")).unwrap_or_default();
    let at = error.at.as_ref().map(|at| format!(" ({at})")).unwrap_or_default();
    format!("{} {}{at}{found}", error.code, error.message)
}

fn shown(path: &Path) -> Result<Shown> {
    let path = find(path)?;
    let checkpoint = load(&path)?;
    let tensors = checkpoint.tensors.iter().map(|(name, tensor)| Stored {
        name: name.clone(),
        dtype: tensor.dtype.to_string(),
        shape: tensor.shape.clone(),
    });
    Ok(Shown {
        path: path.display().to_string(),
        step: checkpoint.step,
        tensors: tensors.collect(),
        meta: checkpoint.meta,
    })
}

impl Checkpoints {
    /// The list for people.
    pub fn text(&self) -> String {
        let row = |listed: &Listed| {
            let state = match listed.problem.as_ref().or(listed.remark.as_ref()) {
                Some(told) => told.clone(),
                None if listed.latest => "latest".to_string(),
                None => String::new(),
            };
            vec![listed.path.clone(), bytes(listed.bytes), state]
        };
        table(&["checkpoint", "size", ""], &self.checkpoints.iter().map(row).collect::<Vec<_>>())
    }
}

impl Shown {
    /// The checkpoint for people.
    pub fn text(&self) -> String {
        let mut text = format!("{}\nstep {}\n", self.path, self.step);
        for (key, value) in &self.meta {
            text += &format!("{key} {value}\n");
        }
        let row =
            |tensor: &Stored| vec![tensor.name.clone(), tensor.dtype.clone(), format!("{:?}", tensor.shape)];
        text + "\n" + &table(&["tensor", "type", "shape"], &self.tensors.iter().map(row).collect::<Vec<_>>())
    }
}
