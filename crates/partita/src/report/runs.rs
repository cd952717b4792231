//! Runs beside each other: what they came to, and in which keys of their configs they differ.

use super::Log;
use crate::figures::Figures;
use crate::session::Session;
use partita_base::{Result, format_bytes, format_count, format_seconds};
use partita_report::{Body, Report};
use std::collections::BTreeMap;
use toml::{Table, Value};

/// A run: its session, and what its folder has.
pub struct Run {
    /// The name, such as its folder.
    pub name: String,
    /// Its session.
    pub session: Session,
    /// The steps of its newest checkpoint.
    pub steps: Option<u64>,
    /// Its logs.
    pub logs: Vec<Log>,
}

/// Adds a table of the runs, a column for each, and one of the keys in which they differ; nothing without runs.
/// `first_figures` are those of the first run.
///
/// # Errors
/// What building, lowering and simulating refuse.
pub(super) fn compare(report: &mut Report, runs: &[Run], first_figures: &Figures) -> Result<()> {
    let Some((first, others)) = runs.split_first() else { return Ok(()) };
    let mut columns = vec![column(first, first_figures)];
    for run in others {
        columns.push(column(run, &run.session.figures(&super::price(&run.session)?)?));
    }
    let rows = (0..columns[0].len()).map(|row| {
        let cells = columns.iter().map(|column| column[row].1.clone());
        std::iter::once(columns[0][row].0.to_string()).chain(cells).collect()
    });
    let (header, rows) = (header("", runs), rows.collect());
    report.section(
        "Runs",
        "What they came to, and what is predicted for a step.",
        Body::Table { header, rows },
    );
    let rows = differences(&runs.iter().map(|run| &run.session.config().resolved).collect::<Vec<_>>());
    if !rows.is_empty() {
        let header = self::header("key", runs);
        report.section("Configs", "The keys in which the runs differ.", Body::Table { header, rows });
    }
    Ok(())
}

fn header(first: &str, runs: &[Run]) -> Vec<String> {
    std::iter::once(first.to_string()).chain(runs.iter().map(|run| run.name.clone())).collect()
}

/// Names and values, the same names for every run.
fn column(run: &Run, figures: &Figures) -> Vec<(&'static str, String)> {
    let session = &run.session;
    let config = session.config();
    let last = |of: fn(&Log) -> &Vec<(f64, f64)>| {
        let found = run.logs.iter().filter_map(|log| of(log).last()).max_by(|a, b| a.0.total_cmp(&b.0));
        found.map_or("-".to_string(), |(_, value)| format!("{value:.4}"))
    };
    let speeds = || run.logs.iter().flat_map(|log| log.speeds.iter().map(|(_, speed)| *speed));
    let count = speeds().count();
    let speed = match count {
        0 => "-".to_string(),
        _ => format_count(speeds().sum::<f64>() / count as f64),
    };
    let unit = run.logs.iter().find(|log| !log.speeds.is_empty()).map_or("", |log| log.unit(session));
    vec![
        ("model", config.model_name().to_string()),
        ("mesh", session.mesh().to_string()),
        ("steps saved", run.steps.map_or("-".to_string(), |steps| steps.to_string())),
        ("last training loss", last(|log| &log.losses)),
        ("last validation loss", last(|log| &log.validations)),
        ("measured throughput, mean", format!("{speed} {unit}").trim_end().to_string()),
        ("predicted step", format_seconds(figures.step_s)),
        ("predicted throughput", figures.throughput()),
        ("MFU", format!("{:.1}%", 100.0 * figures.mfu)),
        ("peak memory", format_bytes(figures.fill.bytes)),
    ]
}

/// The keys whose values are not all equal, each with its values.
fn differences(configs: &[&Table]) -> Vec<Vec<String>> {
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (number, config) in configs.iter().enumerate() {
        for (section, values) in config.iter() {
            let values = values.as_table().into_iter().flatten();
            for (key, value) in values {
                let shown = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let cells = keys.entry(format!("{section}.{key}"));
                cells.or_insert_with(|| vec!["-".to_string(); configs.len()])[number] = shown;
            }
        }
    }
    let differ = |cells: &[String]| cells.windows(2).any(|pair| pair[0] != pair[1]);
    let different = keys.into_iter().filter(|(_, cells)| differ(cells));
    different.map(|(key, cells)| std::iter::once(key).chain(cells).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_listed_where_their_values_differ_or_one_is_missing() {
        let one: Table = "[train]\nsteps = 4\nbatch = 8\n[mesh]\nshape = \"dp=2\"".parse().unwrap();
        let other: Table = "[train]\nsteps = 4\n[mesh]\nshape = \"tp=2\"".parse().unwrap();
        let rows = differences(&[&one, &other]);
        assert_eq!(rows, [["mesh.shape", "dp=2", "tp=2"], ["train.batch", "8", "-"]]);
    }
}
