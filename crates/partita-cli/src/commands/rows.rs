//! `partita simulate --validate`: predicted beside measured, for tables of published runs.

use crate::commands::simulate::SimulateArgs;
use crate::files::write_new;
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::table;
use crate::run::answer;
use partita::predict::Blocks;
use partita::predict::fit::{Run, fit, held_out_rows, held_out_sources, mean_and_tail, sources, spearman};
use partita::predict::rows::{Measured, read};
use partita::predict::step::{Forecast, Priced, Software};
use partita_base::{Diagnostic, Result};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Runs of a table, predicted.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rows {
    /// Each run.
    pub rows: Vec<Predicted>,
    /// Each source of runs.
    pub sources: Vec<Source>,
    /// Mean of absolute errors and 90th percentile over rows that the fit of their source did not see; absent without such
    /// rows, as in what follows.
    pub held_out_rows: Option<[f64; 2]>,
    /// The same over sources that the fit did not see.
    pub held_out_sources: Option<[f64; 2]>,
    /// Mean of absolute errors of memory.
    pub memory: Option<f64>,
    /// Runs that ran out of memory, and those among them that are predicted to.
    pub ran_out: [usize; 2],
    /// Runs that ran and are predicted to run out of memory.
    pub false_alarms: Vec<String>,
}

/// A run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Predicted {
    /// Its name.
    pub row: String,
    /// Predicted seconds of a step.
    pub step_s: Option<f64>,
    /// Of these, seconds of compute, of collectives that no compute hides, and of waiting for other slices.
    pub parts_s: Option<[f64; 3]>,
    /// Seconds with the cluster's figures alone, without constants of software.
    pub plain_s: Option<f64>,
    /// Measured seconds.
    pub measured_s: Option<f64>,
    /// Predicted bytes of the fullest rank.
    pub bytes: Option<f64>,
    /// Measured bytes.
    pub measured_bytes: Option<f64>,
    /// Predicted to run out of memory.
    pub runs_out: Option<bool>,
    /// Why it cannot be predicted.
    pub why_not: Option<String>,
}

/// The runs of one source.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Source {
    /// Its name.
    pub source: String,
    /// Runs with a measured time that are predicted.
    pub rows: usize,
    /// The constants of its software.
    pub compute: f64,
    /// The factor of its collectives.
    pub communication: f64,
    /// Seconds of a launch.
    pub launch_s: f64,
    /// Mean of absolute errors with these constants.
    pub fitted: Option<f64>,
    /// Mean and 90th percentile on rows held out within the source.
    pub held_out: Option<[f64; 2]>,
    /// Mean of errors with the constants of all other sources.
    pub unseen: Option<f64>,
    /// Spearman's correlation of predicted and measured tokens per second and device.
    pub spearman: Option<f64>,
    /// Mean of absolute errors of memory.
    pub memory: Option<f64>,
}

impl Event for Rows {
    const NAME: &'static str = "rows";
}

/// Bytes that a process takes on a device beside its tensors: context, kernels, buffers of collectives.
const CONTEXT_BYTES: f64 = 3.0 * (1u64 << 30) as f64;

/// The same where the whole device was measured (`nvidia-smi`), with what the allocator holds unused.
const DEVICE_BYTES: f64 = 11.0 * (1u64 << 30) as f64;

/// Runs the command.
///
/// # Errors
/// E513 for a malformed table, E005 for one that cannot be read, E043 if the constants cannot be written.
pub fn rows(args: &SimulateArgs, file: &Path, output: &mut Output) -> Result<()> {
    let text = partita_base::read_text(file).map_err(|error| {
        Diagnostic::new("E005", format!("no table `{}`", file.display())).found(error.to_string())
    })?;
    let mut measured = read(&text, &file.display().to_string())?;
    if let Some(only) = &args.only {
        let first = measured.first().map(|row| row.row.clone()).unwrap_or_default();
        measured.retain(|row| row.row.starts_with(only.as_str()));
        if measured.is_empty() {
            return Err(Diagnostic::new("E513", format!("no row of the table begins with `{only}`"))
                .at("--only")
                .expected(format!("the begin of the name of a row, such as `{first}`"))
                .found(only.clone()));
        }
    }
    let answer_of = output.during("predicting the runs", || Ok::<_, Box<Diagnostic>>(predict(&measured)))?;
    if let Some(path) = &args.fit {
        write_new(path, "the constants", "--fit", |file| {
            std::io::Write::write_all(file, constants(&answer_of.sources).as_bytes())
        })?;
    }
    answer(&answer_of, Rows::text, output);
    Ok(())
}

/// The constants as a file.
fn constants(sources: &[Source]) -> String {
    let mut text =
        "# Factors of the time of compute and of collectives, fitted by `partita simulate --validate --fit`.\n"
            .to_string();
    for source in sources {
        text += &format!(
            "[{}]\ncompute = {:.4}\ncommunication = {:.4}\nlaunch_s = {:.3e}\n",
            source.source, source.compute, source.communication, source.launch_s
        );
    }
    text
}

fn mean_of(errors: impl IntoIterator<Item = f64>) -> Option<f64> {
    mean_and_tail(errors).map(|[mean, _]| mean)
}

fn predict(measured: &[Measured]) -> Rows {
    let (runs, reasons) = priced(measured);
    let (by_row, by_source) = (held_out_rows(&runs), held_out_sources(&runs));
    let mut summary = Vec::new();
    let mut software_of: BTreeMap<String, Software> = BTreeMap::new();
    for source in sources(&runs) {
        let of: Vec<&Run> = runs.iter().filter(|run| run.measured.source == source).collect();
        let timed: Vec<&Run> =
            of.iter().copied().filter(|run| run.error(&Software::default()).is_some()).collect();
        let software = fit(&timed);
        software_of.insert(source.clone(), software);
        summary.push(summary_of(source, &timed, &software, &by_row, &by_source));
    }
    let mut rows = Vec::new();
    let mut memory = Memory::of(measured);
    for row in measured {
        let run = runs.iter().find(|run| run.measured.row == row.row);
        let forecast = run.and_then(|run| run.forecast(&software_of[&row.source]).ok());
        let runs_out = run.zip(forecast.as_ref()).map(|(run, forecast)| memory.runs_out(row, run, forecast));
        memory.count(row, forecast.as_ref(), runs_out);
        let why_not = reasons.get(row.row.as_str()).cloned();
        rows.push(predicted(row, run, forecast, runs_out, why_not));
    }
    let Memory { errors, ran_out, false_alarms, .. } = memory;
    for source in &mut summary {
        source.memory = errors.get(source.source.as_str()).and_then(|errors| mean_of(errors.clone()));
    }
    Rows {
        rows,
        sources: summary,
        held_out_rows: mean_and_tail(by_row.into_values()),
        held_out_sources: mean_and_tail(by_source.into_values()),
        memory: mean_of(errors.into_values().flatten()),
        ran_out,
        false_alarms,
    }
}

/// The runs that can be predicted, and why others cannot, by the names of their rows.
fn priced(measured: &[Measured]) -> (Vec<Run<'_>>, BTreeMap<&str, String>) {
    let mut blocks = Blocks::default();
    let mut reasons: BTreeMap<&str, String> = BTreeMap::new();
    let mut runs: Vec<Run> = Vec::new();
    for row in measured {
        match &row.job {
            Err(why) => drop(reasons.insert(&row.row, why.clone())),
            Ok((job, cluster)) => match blocks.of(&job.block) {
                Ok(block) => {
                    let priced = Priced::of(job, &block, cluster);
                    runs.push(Run { measured: row, job, cluster, block, priced });
                }
                Err(error) => drop(reasons.insert(&row.row, format!("{}: {}", error.code, error.message))),
            },
        }
    }
    (runs, reasons)
}

/// The timed runs of a source, with the constants that fit them, and the errors of held-out rows and sources by row.
fn summary_of(
    source: String,
    timed: &[&Run],
    software: &Software,
    by_row: &BTreeMap<String, f64>,
    by_source: &BTreeMap<String, f64>,
) -> Source {
    let errors = |from: &BTreeMap<String, f64>| -> Vec<f64> {
        timed.iter().filter_map(|run| from.get(&run.measured.row).copied()).collect()
    };
    let per_token = |run: &Run| -> Option<(f64, f64)> {
        let scale = run.measured.tokens / run.measured.ranks as f64;
        let predicted = run.priced.seconds(run.job, software).ok()?.step_s;
        Some((scale / predicted, scale / run.measured.step_s?))
    };
    let pairs: Vec<(f64, f64)> = timed.iter().filter_map(|run| per_token(run)).collect();
    Source {
        source,
        rows: timed.len(),
        compute: software.compute,
        communication: software.communication,
        launch_s: software.launch_s,
        fitted: mean_of(timed.iter().filter_map(|run| run.error(software))),
        held_out: mean_and_tail(errors(by_row)),
        unseen: mean_of(errors(by_source)),
        spearman: spearman(&pairs),
        memory: None,
    }
}

/// Predicted memory beside measured memory, over the rows so far.
struct Memory<'a> {
    /// Sources that measured whole devices.
    whole_device: BTreeSet<&'a str>,
    /// Relative errors, by source.
    errors: BTreeMap<&'a str, Vec<f64>>,
    /// As [`Rows::ran_out`].
    ran_out: [usize; 2],
    /// As [`Rows::false_alarms`].
    false_alarms: Vec<String>,
}

impl<'a> Memory<'a> {
    fn of(measured: &'a [Measured]) -> Memory<'a> {
        let whole_device: BTreeSet<&str> = measured
            .iter()
            .filter(|row| row.memory.as_ref().is_some_and(|(_, kind)| kind.contains("nvidia-smi")))
            .map(|row| row.source.as_str())
            .collect();
        Memory { whole_device, errors: BTreeMap::new(), ran_out: [0, 0], false_alarms: Vec::new() }
    }

    /// Whether a run is predicted to run out of memory.
    fn runs_out(&self, row: &Measured, run: &Run, forecast: &Forecast) -> bool {
        let is_whole = self.whole_device.contains(row.source.as_str());
        let beside = if is_whole { DEVICE_BYTES } else { CONTEXT_BYTES };
        let fullest = forecast.fullest();
        let needed = match run.measured.is_made_to_fit {
            true => fullest.parameters + fullest.gradients + fullest.optimizer_state,
            false => fullest.total() + beside,
        };
        // What is not published may have been what makes the step fit.
        run.measured.is_recompute_known && needed > run.cluster.memory_bytes() as f64
    }

    fn count(&mut self, row: &'a Measured, forecast: Option<&Forecast>, runs_out: Option<bool>) {
        let bytes = forecast.map(|forecast| forecast.fullest().total());
        if let (Some(bytes), Some((measured, kind))) = (bytes, &row.memory) {
            let beside = if kind.contains("nvidia-smi") { DEVICE_BYTES } else { 0.0 };
            self.errors.entry(&row.source).or_default().push((bytes + beside) / measured - 1.0);
        }
        if row.ran_out {
            self.ran_out[0] += 1;
            self.ran_out[1] += usize::from(runs_out == Some(true));
        } else if runs_out == Some(true) {
            self.false_alarms.push(row.row.clone());
        }
    }
}

/// A row of the answer.
fn predicted(
    row: &Measured,
    run: Option<&Run>,
    forecast: Option<Forecast>,
    runs_out: Option<bool>,
    why_not: Option<String>,
) -> Predicted {
    Predicted {
        row: row.row.clone(),
        parts_s: forecast.as_ref().map(|forecast| {
            let seconds = &forecast.seconds;
            [seconds.compute_s, seconds.exposed_s, seconds.bubble_s]
        }),
        plain_s: run
            .and_then(|run| run.priced.seconds(run.job, &Software::default()).ok())
            .map(|seconds| seconds.step_s),
        bytes: forecast.as_ref().map(|forecast| forecast.fullest().total()),
        step_s: forecast.map(|forecast| forecast.seconds.step_s),
        measured_s: row.step_s,
        measured_bytes: row.memory.as_ref().map(|(bytes, _)| *bytes),
        runs_out,
        why_not,
    }
}

impl Rows {
    fn text(&self) -> String {
        let percent = |part: f64| format!("{:.1}%", 100.0 * part);
        let nothing = "nothing is measured and predicted";
        let errors = |pair: Option<[f64; 2]>| match pair.map(|pair| pair.map(percent)) {
            Some([mean, tail]) => format!("mean error {mean}, 90% within {tail}"),
            None => nothing.to_string(),
        };
        let maybe = |number: Option<String>| number.unwrap_or_else(|| "-".to_string());
        let row = |row: &Predicted| {
            let error = row
                .step_s
                .zip(row.measured_s)
                .map(|(predicted, measured)| percent(predicted / measured - 1.0));
            vec![
                row.row.clone(),
                maybe(row.step_s.map(|s| format!("{s:.3}"))),
                maybe(row.measured_s.map(|s| format!("{s:.3}"))),
                maybe(error),
                maybe(row.bytes.map(|bytes| format!("{:.1}", bytes / (1u64 << 30) as f64))),
                maybe(row.measured_bytes.map(|bytes| format!("{:.1}", bytes / (1u64 << 30) as f64))),
                row.why_not.clone().unwrap_or_else(|| {
                    if row.runs_out == Some(true) { "out of memory".to_string() } else { String::new() }
                }),
            ]
        };
        let head = ["row", "predicted s", "measured s", "error", "predicted GiB", "measured GiB", "note"];
        let mut text = table(&head, &self.rows.iter().map(row).collect::<Vec<_>>());
        let source = |source: &Source| {
            vec![
                source.source.clone(),
                source.rows.to_string(),
                format!("{:.3}", source.compute),
                format!("{:.3}", source.communication),
                format!("{:.1}", 1e6 * source.launch_s),
                maybe(source.fitted.map(percent)),
                maybe(source.held_out.map(|[mean, _]| percent(mean))),
                maybe(source.held_out.map(|[_, tail]| percent(tail))),
                maybe(source.unseen.map(percent)),
                maybe(source.spearman.map(|r| format!("{r:.3}"))),
                maybe(source.memory.map(percent)),
            ]
        };
        let head = [
            "source",
            "rows",
            "compute",
            "communication",
            "launch us",
            "fitted",
            "held out",
            "90%",
            "unseen",
            "spearman",
            "memory",
        ];
        text += "\n";
        text += &table(&head, &self.sources.iter().map(source).collect::<Vec<_>>());
        text += &format!(
            "\n(a) rows held out within their source: {}\n\
             (b) sources held out: {}\n\
             memory: {}; {} of {} runs out of memory foreseen; {} false alarms{}\n",
            errors(self.held_out_rows),
            errors(self.held_out_sources),
            self.memory.map_or(nothing.to_string(), |mean| format!("mean error {}", percent(mean))),
            self.ran_out[1],
            self.ran_out[0],
            self.false_alarms.len(),
            if self.false_alarms.is_empty() {
                String::new()
            } else {
                format!(" ({})", self.false_alarms.join(", "))
            },
        );
        text
    }
}
