//! Memory of a step unfolded from one layer: parameters and what belongs to them, divided as ZeRO divides them, and the
//! activations of the microbatches in flight.

use super::block::{Block, Place};
use super::step::{Bytes, Job};

/// Bytes of each slice of the pipeline.
pub(super) fn bytes_of_slices(job: &Job, block: &Block, counts: &[usize], in_flight: &[f64]) -> Vec<Bytes> {
    let of_layer = block.layer(|traced| traced.parameters[Place::Layers as usize]);
    let (one, stages) = (&block.one, counts.len());
    let at = |figures: &[f64; 3], place: Place| figures[place as usize];
    let saved_layer = block.layer(|traced| traced.saved.iter().sum());
    let saved_last = (at(&one.saved, Place::Last) + at(&one.saved, Place::Layers) - saved_layer).max(0.0);
    let over = |from: u8| if job.zero >= from { job.shard_group as f64 } else { 1.0 };
    let is_tied = at(&one.parameters, Place::Last) < at(&one.parameters, Place::First) / 2.0;
    let of_slice = |slice: usize| {
        let own = (0..stages).filter(|stage| stage % job.pp == slice);
        let (mut elements, mut saved, mut transient) = (0.0, 0.0, at(&one.transient, Place::Layers));
        for stage in own {
            elements += of_layer * counts[stage] as f64;
            saved += saved_layer * counts[stage] as f64 * in_flight[stage];
            if stage == 0 {
                elements += at(&one.parameters, Place::First);
                saved += at(&one.saved, Place::First) * in_flight[stage];
            }
            if stage + 1 == stages {
                elements += at(&one.parameters, Place::Last);
                if is_tied && stages > 1 {
                    elements += at(&one.parameters, Place::First);
                }
                saved += saved_last;
                transient = transient.max(at(&one.transient, Place::Last));
            }
        }
        // Two layers are gathered at a time.
        let gathered = if job.zero == 3 { 2.0 * of_layer * job.bytes.gathered } else { 0.0 };
        let message = if job.pp > 1 { 2.0 * block.stream_bytes } else { 0.0 };
        let tokens = job.cp as f64;
        // Of states in host memory, those of a parameter in use, of the next one and of the one before are here.
        let largest = at(&one.parameters, Place::First).max(of_layer / 3.0).min(elements);
        let window = 3.0 * largest.min(elements / 3.0);
        Bytes {
            parameters: elements * job.bytes.parameter / over(3),
            gradients: elements * job.bytes.gradient / over(2),
            optimizer_state: (elements * (job.bytes.state + job.bytes.update) + window * job.bytes.host)
                / over(1),
            activations: (saved + transient) / tokens,
            communication: gathered + message,
        }
    };
    (0..job.pp).map(of_slice).collect()
}

/// Bytes of a stage of so many layers on one of its devices, with what is before and behind them or not: parameters and
/// what belongs to them, the activations that one microbatch keeps, and what is needed at a time beside these.
pub(crate) fn bytes_of_stage(
    job: &Job,
    block: &Block,
    layers: usize,
    is_first: bool,
    is_last: bool,
) -> [f64; 3] {
    let one = &block.one;
    let at = |figures: &[f64; 3], place: Place| figures[place as usize];
    let [first, last] = [Place::First, Place::Last].map(|place| at(&one.parameters, place));
    let saved_layer = block.layer(|traced| traced.saved.iter().sum());
    let saved_last = (at(&one.saved, Place::Last) + at(&one.saved, Place::Layers) - saved_layer).max(0.0);
    let mut elements = block.layer(|traced| traced.parameters[Place::Layers as usize]) * layers as f64;
    let (mut saved, mut transient) = (saved_layer * layers as f64, at(&one.transient, Place::Layers));
    if is_first {
        elements += first;
        saved += at(&one.saved, Place::First);
    }
    if is_last {
        // A tied head is the embedding.
        elements += last + if last < first / 2.0 && !is_first { first } else { 0.0 };
        saved += saved_last;
        transient = transient.max(at(&one.transient, Place::Last));
    }
    let over = |from: u8| if job.zero >= from { job.shard_group as f64 } else { 1.0 };
    let each = job.bytes.parameter / over(3) + job.bytes.gradient / over(2) + job.bytes.state / over(1);
    [elements * each, saved, transient]
}
