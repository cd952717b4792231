//! `partita simulate` at any scale: the step folded to its repeated layer.

use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::{bytes, seconds, table};
use crate::run::answer;
use partita::figures::Figures;
use partita::predict::step::{Bytes, Forecast};
use partita::session::Session;
use partita_mesh::Slice;
use partita_schedule::PIPELINE_AXIS;
use serde::Serialize;
use std::collections::BTreeMap;

/// A predicted step of a large model.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Folded {
    /// The mesh.
    pub mesh: String,
    /// The cluster whose figures are used.
    pub cluster: String,
    /// Parameters of the model.
    pub parameters: f64,
    /// Those that a token uses, of a model with experts.
    pub active: Option<f64>,
    /// Seconds of a step.
    pub step_s: f64,
    /// Rows of the batch per second.
    pub rows_per_s: f64,
    /// Tokens (rows, without tokens) a second, over all ranks.
    pub tokens_per_s: f64,
    /// Model FLOPs, those of the step on one device without recomputation, for each rank, in 10^12 a second.
    pub tflops_per_rank: f64,
    /// The part of the peak of all devices that this is.
    pub mfu: f64,
    /// The share of the step in which the slowest slice waits for others.
    pub bubble: f64,
    /// Seconds of collectives that no compute hides.
    pub exposed_s: f64,
    /// Bytes of one rank of each slice of the pipeline, by kind; they sum to those of the rank.
    pub slices: Vec<BTreeMap<&'static str, u64>>,
    /// The kinds of devices of each slice, if the cluster has several.
    pub devices: Vec<String>,
    /// Bytes of the rank with the least room.
    pub peak_bytes: u64,
    /// Bytes by which it exceeds its device's memory; negative if it fits.
    pub exceeds_bytes: i64,
}

impl Event for Folded {
    const NAME: &'static str = "simulate";
}

/// Prints the forecast.
pub(crate) fn answer_folded(session: &Session, forecast: &Forecast, figures: Figures, output: &mut Output) {
    let (config, mesh) = (session.config(), session.mesh());
    let (step_s, fullest) = (figures.step_s, figures.fill);
    let result = Folded {
        mesh: mesh.to_string(),
        cluster: config.cluster.name.clone(),
        parameters: figures.parameters,
        active: figures.active,
        step_s,
        rows_per_s: figures.rows_per_s,
        tokens_per_s: figures.tokens_per_s.unwrap_or(figures.rows_per_s),
        tflops_per_rank: figures.flops_per_s / 1e12,
        mfu: figures.mfu,
        bubble: forecast.seconds.bubble_s / step_s,
        exposed_s: forecast.seconds.exposed_s,
        slices: forecast.stages.iter().map(|bytes| bytes.by_kind().into_iter().collect()).collect(),
        peak_bytes: fullest.bytes,
        exceeds_bytes: fullest.bytes as i64 - fullest.limit as i64,
        devices: devices_of_slices(session),
    };
    let stages = forecast.stages.clone();
    answer(&result, |result| result.text(&figures, &stages), output);
}

/// The kinds of devices of each slice of the pipeline, if the cluster has several.
fn devices_of_slices(session: &Session) -> Vec<String> {
    let mesh = session.mesh();
    let cluster = session.config().cluster.of_first(mesh.rank_count());
    let kinds = |slice: &Slice| {
        let mut kinds: Vec<String> = Vec::new();
        for &rank in &slice.ranks {
            let kind = &cluster.device_of(rank).kind;
            if !kinds.contains(kind) {
                kinds.push(kind.clone());
            }
        }
        kinds.join(", ")
    };
    if cluster.is_mixed() { mesh.slices(PIPELINE_AXIS).iter().map(kinds).collect() } else { Vec::new() }
}

/// The bytes of one rank of each slice of a forecast as a table.
pub(crate) fn memory_table(session: &Session, forecast: &Forecast) -> String {
    memory_of_slices(&forecast.stages, &devices_of_slices(session))
}

/// A table of the bytes of one rank of each slice, with their devices if they have several kinds. Slices with equal memory
/// share a row.
fn memory_of_slices(stages: &[Bytes], devices: &[String]) -> String {
    let is_mixed = !devices.is_empty();
    let mut head = vec!["slice"];
    head.extend(is_mixed.then_some("device"));
    head.push("memory");
    head.extend(Bytes::default().by_kind().map(|(name, _)| name));
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut from = 0;
    for (slice, of) in stages.iter().enumerate() {
        let is_like_next = |next: &Bytes| next == of && devices.get(slice) == devices.get(slice + 1);
        if stages.get(slice + 1).is_some_and(is_like_next) {
            continue;
        }
        let name = if from == slice { slice.to_string() } else { format!("{from}-{slice}") };
        let mut row = vec![name];
        row.extend(is_mixed.then(|| devices[slice].clone()));
        row.push(bytes(of.whole()));
        row.extend(of.by_kind().map(|(_, size)| bytes(size)));
        rows.push(row);
        from = slice + 1;
    }
    table(&head, &rows)
}

impl Folded {
    fn text(&self, figures: &Figures, stages: &[Bytes]) -> String {
        let mut text = format!(
            "predicted on {} for mesh {} from one repeated layer: {} parameters, {}, bubble {:.1}%, {} of exposed \
             communication\n\n",
            self.cluster,
            self.mesh,
            figures.parameters_text(),
            figures.speed(),
            100.0 * self.bubble,
            seconds(self.exposed_s)
        );
        text += &memory_of_slices(stages, &self.devices);
        text += "FLOP/s: model FLOPs, which are those of the step on one device, without recomputation or replicated work\n";
        if self.exceeds_bytes > 0 {
            text += &format!(
                "it does not fit: {} more than a device has. More ranks along tp or pp, a smaller microbatch, a checkpoint of \
                 \"layers.*\" or fsdp take less\n",
                bytes(self.exceeds_bytes.unsigned_abs())
            );
        }
        text
    }
}
