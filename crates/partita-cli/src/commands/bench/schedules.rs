//! `partita bench schedules`: one model as it is written, then scheduled primitive by primitive, with PyTorch beside it.
//!
//! A rung is a plan: its lines as calls, then the ready plan of its mesh. Each has the lines of the one before and some
//! more, so that the difference of two times is the gain of these lines (Slapo, arXiv 2302.08005, section 5, presents
//! schedules in this way). Rungs run one after another: side by side their memory would not fit.

use super::measurement::{MIB, Measurement};
use super::middle;
use super::models::Step;
use super::suites::{Case, Suite, Work};
use crate::output::events::Event;
use crate::output::format::{bytes, table};
use partita_schedule::ReadyOptions;
use serde::Serialize;
use std::fmt::Write;
use std::io;
use std::process::Command;

/// The same models in PyTorch.
const PYTORCH: &str = include_str!("pytorch.py");
/// How PyTorch runs them, and what this is called.
const MODES: [(&str, &str); 2] = [("eager", "PyTorch eager"), ("compile", "torch.compile")];

/// Every module is its plain ops, none of which has a kernel of its own.
const PLAIN: &str = "sch[\"**\"].decompose()";
/// Bias and activation of the feed-forward layers as one kernel.
const FUSED: &str = "sch[\"UP\"].decompose()\nsch.trace(flatten=True)\nsch.fuse(\"ACT(x + bias)\", name=\"bench.bias_ACT\", backend=\"cpu\")";
/// Blocks are computed again in the backward pass.
const AGAIN: &str = "sch[\"layers.*\"].checkpoint()";

/// The models: name, step, the modules whose bias is fused with the activation, and the activation.
fn models() -> [(&'static str, Step, [&'static str; 2]); 4] {
    [
        ("mlp", Step::Slapo, ["layers.0", "gelu"]),
        ("mlp4", Step::Alpa, ["layers.*", "relu"]),
        ("gpt2", Step::gpt("gpt2"), ["layers.*.mlp.up_proj", "gelu"]),
        ("bert", Step::bert(), ["layers.*.mlp.up_proj", "gelu"]),
    ]
}

/// The rungs of all models, each a group of its own.
pub fn cases() -> Vec<Vec<Case>> {
    let mut groups = Vec::new();
    for (model, step, [up, activation]) in models() {
        let fused = FUSED.replace("UP", up).replace("ACT", activation);
        let sequence =
            ReadyOptions { sequence_parallel: true, vocab_parallel: true, ..ReadyOptions::default() };
        let plain = ReadyOptions::default();
        let mut rungs = vec![
            ("unscheduled", PLAIN.to_string(), "dp=1", plain),
            ("kernels", String::new(), "dp=1", plain),
            ("fuse", fused.clone(), "dp=1", plain),
            ("shard", fused.clone(), "tp=2", plain),
        ];
        if !model.starts_with("mlp") {
            rungs.push(("sync", fused.clone(), "tp=2", sequence));
            rungs.push(("checkpoint", format!("{fused}\n{AGAIN}"), "tp=2", sequence));
        }
        groups.extend(rungs.into_iter().map(|(rung, calls, mesh, ready)| {
            vec![Case {
                suite: Suite::Schedules,
                name: format!("{model}/{rung}"),
                mesh: mesh.to_string(),
                calls,
                ready,
                threads: None,
                work: Work::Step(step.clone()),
            }]
        }));
    }
    groups
}

/// A rung, or PyTorch beside it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Rung {
    /// The model.
    pub model: String,
    /// The lines that were added.
    pub rung: String,
    /// The mesh.
    pub mesh: String,
    /// The middle run, in milliseconds.
    pub median_ms: f64,
    /// Planned memory of all ranks; `None` for PyTorch.
    pub planned_mb: Option<f64>,
    /// The time of the rung before over its own; `None` for the first one.
    pub gain: Option<f64>,
    /// The time of the unscheduled model over its own.
    pub over_unscheduled: Option<f64>,
}

/// All rungs.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Rungs {
    /// In the order of models and their lines; PyTorch last.
    pub rungs: Vec<Rung>,
    /// Why PyTorch is missing.
    pub without_torch: Option<String>,
}

impl Event for Rungs {
    const NAME: &'static str = "schedules";
}

impl Rungs {
    /// The rungs that were measured, with PyTorch beside each model where the interpreter `python` has it.
    pub fn new(measured: &[Measurement], python: &str, threads: usize, repeats: u32) -> Rungs {
        let mut all = Rungs::default();
        for (model, ..) in models() {
            let own =
                measured.iter().filter_map(|m| Some((m, m.case.strip_prefix(model)?.strip_prefix('/')?)));
            let mut first: Option<f64> = None;
            let mut before: Option<f64> = None;
            for (measurement, rung) in own {
                let ms = measurement.median_ms;
                if rung == "unscheduled" {
                    first = Some(ms);
                }
                all.rungs.push(Rung {
                    model: model.to_string(),
                    rung: rung.to_string(),
                    mesh: measurement.mesh.clone(),
                    median_ms: ms,
                    planned_mb: Some(measurement.planned_mb),
                    gain: before.map(|before| before / ms),
                    over_unscheduled: first.map(|first| first / ms),
                });
                before = Some(ms);
            }
            if before.is_none() {
                continue;
            }
            for (mode, rung) in MODES {
                match pytorch(model, mode, python, threads, repeats) {
                    Ok(ms) => all.rungs.push(Rung {
                        model: model.to_string(),
                        rung: rung.to_string(),
                        mesh: String::new(),
                        median_ms: ms,
                        planned_mb: None,
                        gain: None,
                        over_unscheduled: first.map(|first| first / ms),
                    }),
                    Err(why) => all.without_torch = Some(format!("{mode}: {why}")),
                }
            }
        }
        all
    }

    /// A table for people.
    pub fn text(&self) -> String {
        let times = |times: Option<f64>| times.map_or(String::new(), |times| format!("{times:.2} x"));
        let row = |rung: &Rung| {
            vec![
                format!("{} {}", rung.model, rung.rung),
                rung.mesh.clone(),
                format!("{:.2} ms", rung.median_ms),
                times(rung.gain),
                times(rung.over_unscheduled),
                rung.planned_mb.map_or(String::new(), |mb| bytes((mb * MIB) as u64)),
            ]
        };
        let rows: Vec<Vec<String>> = self.rungs.iter().map(row).collect();
        let header = ["", "mesh", "step", "gain", "of all lines", "memory"];
        let note = self.without_torch.as_ref().map(|why| format!("without PyTorch: {why}\n"));
        format!("\n{}{}", table(&header, &rows), note.unwrap_or_default())
    }

    /// A bar for each rung, as long as its speed over that of the unscheduled model.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn svg(&self, out: &mut dyn io::Write) -> io::Result<()> {
        const ROW: usize = 22;
        const LEFT: f64 = 190.0;
        const WIDTH: f64 = 720.0;
        let speeds: Vec<f64> = self.rungs.iter().map(|rung| rung.over_unscheduled.unwrap_or(1.0)).collect();
        let most = speeds.iter().copied().fold(1.0, f64::max);
        let scale = (WIDTH - LEFT - 90.0) / most;
        let height = (self.rungs.len() + 2) * ROW;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{LEFT}\" y=\"16\" fill=\"#555\">steps per second over those of the unscheduled model</text>\n"
        );
        for (number, (rung, speed)) in self.rungs.iter().zip(speeds).enumerate() {
            let y = (number + 1) * ROW;
            let colour = match rung.rung.as_str() {
                "unscheduled" => "#6b7280",
                name if MODES.iter().any(|(_, mode)| *mode == name) => "#c2571a",
                _ => "#2457c5",
            };
            let _ = writeln!(
                text,
                "<text x=\"{:.0}\" y=\"{}\" text-anchor=\"end\">{} {}</text>\
                 <rect x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"16\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{speed:.2} x, {:.1} ms</text>",
                LEFT - 8.0,
                y + 14,
                rung.model,
                rung.rung,
                y + 2,
                speed * scale,
                LEFT + speed * scale + 6.0,
                y + 14,
                rung.median_ms
            );
        }
        let (x, bottom) = (LEFT + scale, (self.rungs.len() + 1) * ROW);
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {ROW}V{bottom}\" stroke=\"#999\" stroke-dasharray=\"3 3\"/>\n</svg>"
        );
        out.write_all(text.as_bytes())
    }
}

/// The middle step of a model in PyTorch, in milliseconds; or why there is none.
fn pytorch(model: &str, mode: &str, python: &str, threads: usize, repeats: u32) -> Result<f64, String> {
    let arguments = ["-c", PYTORCH, model, mode, &threads.to_string(), &repeats.to_string()];
    let done = Command::new(python).args(arguments).output();
    let done = done.map_err(|error| format!("{python}: {error}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(said.lines().last().unwrap_or("it ended without a word").to_string());
    }
    let text = String::from_utf8_lossy(&done.stdout);
    let milliseconds: Vec<f64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    match milliseconds.is_empty() {
        true => Err(format!("{python} printed no times")),
        false => Ok(middle(milliseconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(case: &str, median_ms: f64) -> Measurement {
        Measurement { suite: "schedules", case: case.to_string(), median_ms, ..Measurement::default() }
    }

    #[test]
    fn gains_are_over_the_rung_before_and_over_the_unscheduled_model() {
        let measured = [
            measurement("mlp/unscheduled", 8.0),
            measurement("mlp/kernels", 4.0),
            measurement("mlp/fuse", 5.0),
            measurement("bert/kernels", 9.0),
        ];
        let rungs = Rungs::new(&measured, "/no/such/python", 1, 1);
        let gains: Vec<_> =
            rungs.rungs.iter().map(|r| (r.model.as_str(), r.gain, r.over_unscheduled)).collect();
        let expected = [
            ("mlp", None, Some(1.0)),
            ("mlp", Some(2.0), Some(2.0)),
            ("mlp", Some(0.8), Some(1.6)),
            ("bert", None, None),
        ];
        assert_eq!(gains, expected);
        assert!(rungs.text().contains("without PyTorch: compile: /no/such/python"), "{}", rungs.text());
        let mut svg = Vec::new();
        rungs.svg(&mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert_eq!(svg.matches("<rect").count(), 1 + measured.len());
        assert!(svg.contains(">1.60 x, 5.0 ms<"), "{svg}");
    }
}
