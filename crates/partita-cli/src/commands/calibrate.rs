//! `partita calibrate`: the figures of this machine as a cluster file. A rank is one thread: products of matrices and copies
//! of growing sizes give the rates and the efficiency curves, which hold the constant time of a small op too; a sum over
//! two ranks gives latency and bandwidth of their link.

use crate::command::{Application, Command};
use crate::commands::bench::exchange::Traffic;
use crate::commands::bench::models::Step;
use crate::commands::bench::suites::{Case, Suite, Work};
use crate::commands::bench::{Taken, predicted, taken};
use crate::commands::env::cpu_name;
use crate::files::write_new;
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::table;
use crate::output::progress::Working;
use crate::run::{Ending, answer};
use clap::Args;
use partita_base::Result;
use partita_cost::{Algorithm, Cluster, Curve, Level, Link};
use partita_schedule::ReadyOptions;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `calibrate`.
#[derive(Args, Clone, Debug)]
pub struct CalibrateArgs {
    /// A new file for the figures; by default they are printed.
    #[arg(long, value_name = "FILE.toml")]
    pub out: Option<PathBuf>,
    /// Timed runs of each measurement; the fastest counts.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeats: u32,
    /// Also measure ten steps of models under plans, and print them beside their predictions.
    #[arg(long)]
    pub compare: bool,
}

impl Command for CalibrateArgs {
    const NAME: &'static str = "calibrate";
    const ABOUT: &'static str = "Measure this machine and write a cluster file for --cluster";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        calibrate(self, output)?;
        Ok(Ending::Done)
    }
}

/// The figures of a machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Calibration {
    /// The processor, and what a rank is on it.
    pub device: String,
    /// Operations per second of the best product of matrices.
    pub flops_per_s: f64,
    /// The part of it by operations.
    pub flops_efficiency: Vec<(f64, f64)>,
    /// Bytes per second of the best copy, reads and writes together.
    pub memory_bytes_per_s: f64,
    /// The part of it by bytes.
    pub memory_efficiency: Vec<(f64, f64)>,
    /// Seconds of a message.
    pub latency_s: f64,
    /// Bytes per second between two ranks.
    pub link_bytes_per_s: f64,
    /// Ranks that compute at the same time: the cores of the machine.
    pub cores: usize,
    /// The largest time of a median run relative to that of the fastest run, over all measurements.
    pub noise: f64,
    /// Steps beside their predictions.
    pub compared: Vec<Compared>,
}

/// A step beside its prediction.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Compared {
    /// The model.
    pub model: &'static str,
    /// The mesh.
    pub mesh: &'static str,
    /// Predicted seconds.
    pub predicted_s: f64,
    /// Measured seconds.
    pub measured_s: f64,
    /// Predicted bytes of the rank with most.
    pub predicted_bytes: usize,
    /// The bytes that it used.
    pub used_bytes: usize,
}

impl Event for Calibration {
    const NAME: &'static str = "calibration";
}

/// Sizes of square products.
const PRODUCTS: [usize; 6] = [16, 32, 64, 128, 256, 512];
/// Bytes of copies.
const COPIES: [usize; 6] = [1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22, 1 << 25];
/// Bytes of sums over two ranks: one for the latency, one for the bandwidth.
const SUMS: [usize; 2] = [1 << 9, 1 << 22];

/// Ten steps: models under the ready plans of meshes.
const COMPARED: [(&str, &str); 10] = [
    ("tiny", "dp=1"),
    ("tiny", "dp=2"),
    ("tiny", "tp=2"),
    ("tiny", "fsdp=2"),
    ("small", "dp=1"),
    ("small", "dp=2"),
    ("small", "tp=2"),
    ("alpa", "dp=1"),
    ("alpa", "dp=2"),
    ("alpa", "tp=2"),
];

/// How long one figure is measured, and how long one step: on a slow machine, fewer runs than requested.
const MOST_OF_FIGURE: Duration = Duration::from_secs(4);
const MOST_OF_STEP: Duration = Duration::from_secs(12);

/// Runs the command.
///
/// # Errors
/// E043 if the file cannot be written; what preparing a measurement refuses.
fn calibrate(args: &CalibrateArgs, output: &mut Output) -> Result<()> {
    let working = output.working("measuring this machine");
    let calibration = measure(args, &working)?;
    drop(working);
    if calibration.noise > NOISY {
        output.note(calibration.noise_text());
    }
    if let Some(path) = &args.out {
        let text = calibration.toml();
        write_new(path, "the figures", "--out", |file| std::io::Write::write_all(file, text.as_bytes()))?;
    }
    answer(&calibration, Calibration::text, output);
    Ok(())
}

fn case(name: &str, mesh: &str, ranks: usize, work: Work) -> Case {
    Case {
        suite: Suite::Gemm,
        name: name.to_string(),
        mesh: mesh.to_string(),
        calls: String::new(),
        ready: ReadyOptions::default(),
        threads: Some(ranks),
        work,
    }
}

/// A median beyond this multiple of the fastest run means that something else ran on the machine.
const NOISY: f64 = 1.3;

fn measure(args: &CalibrateArgs, working: &Working) -> Result<Calibration> {
    let compared = if args.compare { COMPARED.len() } else { 0 };
    working.expect((PRODUCTS.len() + COPIES.len() + SUMS.len() + compared) as u64);
    let mut noise = 1.0f64;
    let mut fastest_s = |case: &Case| -> Result<f64> {
        let Taken { fastest_s, median_s, .. } = taken(case, args.repeats, MOST_OF_FIGURE)?;
        working.advance(1);
        noise = noise.max(median_s / fastest_s.max(1e-12));
        Ok(fastest_s)
    };
    let mut products = Vec::new();
    for size in PRODUCTS {
        let seconds = fastest_s(&case("product", "dp=1", 1, Work::Step(Step::Product([size; 3]))))?;
        products.push((2.0 * (size as f64).powi(3), seconds));
    }
    let mut copies = Vec::new();
    for bytes in COPIES {
        let work = Work::Traffic { traffic: Traffic::Copy, bytes, times: 16 };
        copies.push((2.0 * bytes as f64, fastest_s(&case("copy", "dp=1", 1, work))?));
    }
    let mut sums = Vec::new();
    for bytes in SUMS {
        let work = Work::Traffic { traffic: Traffic::AllReduce, bytes, times: 16 };
        sums.push(fastest_s(&case("sum", "dp=2", 2, work))?);
    }
    let (flops_per_s, flops_efficiency) = rate_and_curve(&products);
    let (memory_bytes_per_s, memory_efficiency) = rate_and_curve(&copies);
    let mut calibration = Calibration {
        device: format!("one thread of {}", cpu_name().unwrap_or_else(|| "this machine".to_string())),
        noise,
        flops_per_s,
        flops_efficiency,
        memory_bytes_per_s,
        memory_efficiency,
        // A sum over two ranks is two hops, and moves the tensor once in all.
        latency_s: sums[0] / 2.0,
        link_bytes_per_s: SUMS[1] as f64 / (sums[1] - sums[0]).max(1e-9),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
        compared: Vec::new(),
    };
    if args.compare {
        let cluster = calibration.cluster()?;
        for (model, mesh) in COMPARED {
            let step = if model == "alpa" { Step::Alpa } else { Step::gpt(model) };
            let ranks = if mesh.ends_with("=2") { 2 } else { 1 };
            let case = case(model, mesh, ranks, Work::Step(step.clone()));
            let Taken { fastest_s: measured_s, bytes: used_bytes, .. } =
                taken(&case, args.repeats, MOST_OF_STEP)?;
            working.advance(1);
            let (predicted_s, predicted_bytes) = predicted(&case, &step, &cluster)?;
            let compared = Compared { model, mesh, predicted_s, measured_s, predicted_bytes, used_bytes };
            calibration.compared.push(compared);
        }
    }
    Ok(calibration)
}

/// The best rate of (amount, seconds), and the part of it by amount, such that more work takes no less time.
fn rate_and_curve(measured: &[(f64, f64)]) -> (f64, Vec<(f64, f64)>) {
    let best = measured.iter().map(|(amount, seconds)| amount / seconds).fold(0.0, f64::max);
    let mut curve: Vec<(f64, f64)> = Vec::new();
    for &(amount, seconds) in measured {
        let reached = (amount / seconds / best).min(1.0);
        let most = curve.last().map_or(1.0, |&(smaller, part)| part * amount / smaller);
        curve.push((amount, reached.min(most)));
    }
    (best, curve)
}

impl Calibration {
    /// The figures as a cluster of any number of ranks.
    fn cluster(&self) -> Result<Cluster> {
        let mut cluster = Cluster::default();
        let device = &mut cluster.device;
        device.kind.clone_from(&self.device);
        (device.flops_per_s, device.flops_per_s_by_type) = (self.flops_per_s, BTreeMap::new());
        device.memory_bytes_per_s = self.memory_bytes_per_s;
        device.flops_efficiency = Curve::new(self.flops_efficiency.clone())?;
        device.memory_efficiency = Curve::new(self.memory_efficiency.clone())?;
        let link = Link {
            latency_s: self.latency_s,
            bytes_per_s: self.link_bytes_per_s,
            algorithm: Algorithm::Ring,
        };
        cluster.levels = vec![Level { ranks: None, link, links: None }];
        cluster.cores = Some(self.cores);
        cluster.check()?;
        Ok(cluster)
    }

    /// The cluster file.
    fn toml(&self) -> String {
        let curve = |points: &[(f64, f64)]| {
            points
                .iter()
                .map(|(size, part)| format!("[{size:.0}.0, {part:.6}]"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        format!(
            "# Measured by `partita calibrate`; {}.\n\
             # What was not measured, such as the memory of a device, is that of the ready cluster of this name.\n\
             name = \"laptop\"\ndevice = {}\nflops_per_s = {:.6e}\nflops_efficiency = [{}]\nmemory_bytes_per_s = {:.6e}\nmemory_efficiency = [{}]\n\
             links = [{{ latency_s = {:.3e}, bytes_per_s = {:.6e} }}]\ncores = {}\n",
            self.noise_text(),
            toml::Value::from(self.device.clone()),
            self.flops_per_s,
            curve(&self.flops_efficiency),
            self.memory_bytes_per_s,
            curve(&self.memory_efficiency),
            self.latency_s,
            self.link_bytes_per_s,
            self.cores
        )
    }

    /// How steady the machine was, as one line.
    fn noise_text(&self) -> String {
        let noise = self.noise;
        match noise > NOISY {
            true => format!(
                "noisy: the median run of a measurement took {noise:.1} times as long as the fastest one, so other programs \
                 ran; measure again on an idle machine"
            ),
            false => format!("steady: median runs took at most {noise:.2} times as long as the fastest ones"),
        }
    }

    fn text(&self) -> String {
        let mut text = self.toml();
        if self.compared.is_empty() {
            return text;
        }
        let error = |row: &Compared| row.predicted_s / row.measured_s - 1.0;
        let row = |row: &Compared| {
            vec![
                row.model.to_string(),
                row.mesh.to_string(),
                format!("{:.2}", 1e3 * row.predicted_s),
                format!("{:.2}", 1e3 * row.measured_s),
                format!("{:.1}%", 100.0 * error(row)),
                row.predicted_bytes.to_string(),
                row.used_bytes.to_string(),
            ]
        };
        text += "\n";
        let rows: Vec<Vec<String>> = self.compared.iter().map(row).collect();
        text += &table(
            &["model", "mesh", "predicted ms", "measured ms", "error", "predicted bytes", "used"],
            &rows,
        );
        let mean = self.compared.iter().map(|row| error(row).abs()).sum::<f64>() / self.compared.len() as f64;
        text += &format!("mean error {:.1}%\n", 100.0 * mean);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_never_lets_more_work_take_less_time() {
        // The third measurement is a lucky one: it took less time than the second.
        let (best, curve) = rate_and_curve(&[(1.0, 1.0), (10.0, 5.0), (20.0, 4.0)]);
        assert_eq!(best, 5.0);
        assert_eq!(curve, [(1.0, 0.2), (10.0, 0.4), (20.0, 0.8)]);
        Curve::new(curve).unwrap();
    }

    #[test]
    fn the_file_is_the_cluster() {
        let calibration = Calibration {
            device: "one thread of a \"CPU\"".to_string(),
            noise: 1.5,
            flops_per_s: 5e10,
            flops_efficiency: vec![(100.0, 0.5), (1e6, 1.0)],
            memory_bytes_per_s: 1e10,
            memory_efficiency: vec![(1e3, 0.25), (1e6, 1.0)],
            latency_s: 2e-6,
            link_bytes_per_s: 4e9,
            cores: 6,
            compared: Vec::new(),
        };
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("here.toml");
        std::fs::write(&path, calibration.toml()).unwrap();
        let overrides = [format!("cluster.name={}", toml::Value::from(path.to_str().unwrap()))];
        let read = partita::Config::load("gpt", &overrides).unwrap().cluster;
        let own = calibration.cluster().unwrap();
        assert!(calibration.toml().contains("noisy: the median run of a measurement took 1.5 times"));
        assert!(Calibration { noise: 1.1, ..calibration }.toml().contains("steady"));
        assert_eq!((read.levels, read.device, read.cores), (own.levels, own.device, Some(6)));
    }
}
