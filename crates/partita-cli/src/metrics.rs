//! `train --metrics FILE` and `--tensorboard DIR`: figures of a run for other programs, written while it runs.
//!
//! A file whose name ends in `.prom` is replaced as a whole after each step, in the text format of Prometheus, for its
//! textfile collector (Prometheus, "Exposition formats"). A JSON line per step and validation, as `--json` prints,
//! is added to any other file. TensorBoard's file is that of [`EventFile`].

use crate::output::events::{Event, Step, Validation};
use crate::output::json_line;
use partita::profile::host;
use partita_base::{Diagnostic, Result};
use partita_trace::EventFile;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The files that get the figures of a run.
#[derive(Debug, Default)]
pub struct Metrics {
    lines: Vec<(PathBuf, File)>,
    snapshots: Vec<PathBuf>,
    tensorboard: Option<EventFile>,
    /// The last figures, for a snapshot that has all.
    step: Option<Step>,
    validation: Option<Validation>,
    /// Whether a write has failed, which is said once.
    has_failed: bool,
}

impl Metrics {
    /// Opens the files. Lines are added to those that a file has, so that a run that is resumed or started again continues
    /// its file.
    ///
    /// # Errors
    /// E043 for a file that cannot be written.
    pub fn create(paths: &[PathBuf], tensorboard: Option<&Path>) -> Result<Metrics> {
        let mut metrics = Metrics::default();
        if let Some(folder) = tensorboard {
            let events = EventFile::create(folder, now_s(), &host(), std::process::id());
            metrics.tensorboard = Some(events.map_err(|error| unwritable(folder, "--tensorboard", &error))?);
        }
        for path in paths {
            if path.extension().is_some_and(|end| end == "prom") {
                replace(path, "").map_err(|error| unwritable(path, "--metrics", &error))?;
                metrics.snapshots.push(path.clone());
            } else {
                let file = OpenOptions::new().append(true).create(true).open(path);
                metrics
                    .lines
                    .push((path.clone(), file.map_err(|error| unwritable(path, "--metrics", &error))?));
            }
        }
        Ok(metrics)
    }

    /// A step is done. Returns what the user should know: a run does not end because its metrics cannot be written.
    pub fn step(&mut self, step: &Step) -> Option<String> {
        self.step = Some(*step);
        let mut figures = vec![("loss/training", step.loss)];
        let mut figure = |name, value: Option<f64>| figures.extend(value.map(|value| (name, value)));
        figure("optimizer/gradient norm", step.grad_norm);
        figure("optimizer/learning rate", Some(step.learning_rate));
        figure("throughput/tokens per second", Some(step.tokens_per_s));
        figure("memory/planned bytes", Some(step.peak_bytes_planned as f64));
        figure("memory/used bytes", step.peak_bytes_used.map(|bytes| bytes as f64));
        self.write(step, step.step, &figures)
    }

    /// A validation is done; otherwise as [`Metrics::step`].
    pub fn validation(&mut self, validation: &Validation) -> Option<String> {
        self.validation = Some(*validation);
        self.write(validation, validation.step, &[("loss/validation", validation.loss)])
    }

    fn write<E: Event>(&mut self, event: &E, step: u64, figures: &[(&str, f64)]) -> Option<String> {
        if self.lines.is_empty() && self.snapshots.is_empty() && self.tensorboard.is_none() {
            return None;
        }
        let line = json_line(event);
        let text = self.snapshot();
        let lines =
            self.lines.iter_mut().map(|(path, file)| (path.as_path(), file.write_all(line.as_bytes())));
        let snapshots = self.snapshots.iter().map(|path| (path.as_path(), replace(path, &text)));
        let events = self.tensorboard.iter_mut().map(|events| {
            let written = events.scalars(now_s(), step, figures);
            (events.path(), written)
        });
        // Every file is written, also behind one that failed.
        let failed: Vec<String> = lines
            .chain(snapshots)
            .chain(events)
            .filter_map(|(path, written)| Some(format!("{}: {}", path.display(), written.err()?)))
            .collect();
        let is_news = !failed.is_empty() && !self.has_failed;
        self.has_failed |= is_news;
        is_news.then(|| format!("metrics are not written: {}", failed.join("; ")))
    }

    /// All figures in the text format of Prometheus.
    fn snapshot(&self) -> String {
        let mut text = String::new();
        let mut figure = |name: &str, about: &str, kind: &str, value: Option<f64>| {
            if let Some(value) = value {
                text += &format!(
                    "# HELP partita_{name} {about}\n# TYPE partita_{name} {kind}\npartita_{name} {value}\n"
                );
            }
        };
        let step = self.step.as_ref();
        figure("steps_total", "Optimizer steps done.", "counter", step.map(|s| s.step as f64));
        figure("loss", "Training loss of the last step.", "gauge", step.map(|s| s.loss));
        let about = "Global norm of the gradient before clipping.";
        figure("gradient_norm", about, "gauge", step.and_then(|s| s.grad_norm));
        figure("learning_rate", "Learning rate of the last step.", "gauge", step.map(|s| s.learning_rate));
        figure("tokens_per_second", "Tokens, or rows without tokens.", "gauge", step.map(|s| s.tokens_per_s));
        let about = "Largest memory of a rank, as planned.";
        figure("planned_bytes", about, "gauge", step.map(|s| s.peak_bytes_planned as f64));
        let about = "Largest memory of a rank, as used so far.";
        figure("used_bytes", about, "gauge", step.and_then(|s| s.peak_bytes_used).map(|bytes| bytes as f64));
        figure("validation_loss", "Loss of the last validation.", "gauge", self.validation.map(|v| v.loss));
        text
    }
}

/// Seconds since 1970.
fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Replaces a file as a whole: who reads it meanwhile sees the old text or the new one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}

fn unwritable(path: &Path, flag: &str, error: &std::io::Error) -> Box<Diagnostic> {
    Diagnostic::new("E043", "the file of metrics cannot be written")
        .at(path.display().to_string())
        .expected("a path in a folder that can be written")
        .found(error.to_string())
        .help(format!("name another path with {flag}"))
}
