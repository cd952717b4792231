//! What was measured of one case, and its line.

use crate::output::events::Event;
use crate::output::format::bytes;
use serde::Serialize;

/// Bytes of a MiB.
pub(super) const MIB: f64 = (1 << 20) as f64;

/// What was measured of one case.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Measurement {
    /// The suite.
    pub suite: &'static str,
    /// The case within it.
    pub case: String,
    /// The mesh it ran on.
    pub mesh: String,
    /// Ranks of the mesh.
    pub ranks: usize,
    /// Threads that ran them.
    pub threads: usize,
    /// Timed runs.
    pub repeats: usize,
    /// The middle run, in milliseconds.
    pub median_ms: f64,
    /// The fastest run.
    pub min_ms: f64,
    /// The slowest less the fastest, over the middle one.
    pub spread: f64,
    /// Processor time of the mean run, over all threads of this process, to a tick of the scheduler: what a busy machine
    /// disturbs least. `None` where the system does not tell.
    pub cpu_ms: Option<f64>,
    /// Floating-point operations of matrix products per second of the fastest run, in units of 10^9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gflops: Option<f64>,
    /// Bytes of the whole tensor, or of all inputs and outputs of what memory bounds, per second of the fastest run, in
    /// units of 10^9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbytes_per_s: Option<f64>,
    /// For a collective, and for ops that memory bounds: the time that its inputs and outputs, read and written once, would
    /// take at the bandwidth of the plain copy beside it, over the fastest run's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_limit: Option<f64>,
    /// For a collective: the same at the bandwidth of the plain exchange beside it, whose bytes another core has written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_exchange: Option<f64>,
    /// For a step on several ranks: its time over that of one rank with all threads in the same round, of rounds the middle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_one_rank: Option<f64>,
    /// From the model to programs that are ready to run in memory that has been brought in, that of parameters included.
    pub compile_ms: f64,
    /// Giving parameters their initial values, which a model that others are given has.
    pub initialize_ms: f64,
    /// From the model to the end of the first run, less `initialize_ms`.
    pub first_step_ms: f64,
    /// The most memory that this process has had so far, all cases included; `None` where the system does not tell.
    pub peak_rss_mb: Option<f64>,
    /// The planned memory of all ranks of this case.
    pub planned_mb: f64,
    /// The losses of the first steps, where it is a model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<f64>,
}

impl Event for Measurement {
    const NAME: &'static str = "bench";
}

impl Measurement {
    /// One line for people.
    pub fn text(&self) -> String {
        let rate = match (self.gflops, self.gbytes_per_s) {
            (Some(gflops), _) => format!("{gflops:7.1} GFLOP/s"),
            (_, Some(rate)) => format!("{rate:7.2} GB/s   "),
            _ => String::new(),
        };
        let of = |what: &str, share: Option<f64>| {
            share.map_or(String::new(), |share| format!("  {share:.2} of the {what}"))
        };
        let limit = of("limit", self.of_limit)
            + &of("exchange", self.of_exchange)
            + &of("time of one rank", self.of_one_rank);
        let cpu = self.cpu_ms.map_or(String::new(), |ms| format!("  cpu {ms:>9.3} ms"));
        let first =
            format!("  initialize {:.0} ms  first step {:.0} ms", self.initialize_ms, self.first_step_ms);
        format!(
            "{:<34} {:<7} median {}  min {}{cpu}  spread {:>4.0} %  {rate}  memory {}{}{limit}\n",
            format!("{}/{}", self.suite, self.case),
            self.mesh,
            time(self.median_ms),
            time(self.min_ms),
            100.0 * self.spread,
            bytes((self.planned_mb * MIB) as u64),
            if self.losses.is_empty() { String::new() } else { first },
        )
    }
}

/// Milliseconds in three places after the point, microseconds where that says little.
fn time(ms: f64) -> String {
    if ms < 1.0 { format!("{:>9.2} us", 1e3 * ms) } else { format!("{ms:>9.3} ms") }
}
