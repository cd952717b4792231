//! The small steps of large ones, which forecasts share.

use super::fold::rows_of_microbatch;
use super::small::{MICROBATCHES, Small, splits_backward};
use crate::session::Session;
use partita_base::{Result, format_bytes};
use partita_cost::Cluster;
use partita_schedule::{Entry, PIPELINE_AXIS, Plan};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The small steps of forecasts: steps that differ only in their slices, microbatches or the order of tasks share theirs.
#[derive(Debug, Default)]
pub struct SmallSteps {
    known: Mutex<BTreeMap<String, Arc<SmallPair>>>,
}

/// Two small steps, the second one with a layer more on each stage, by the kind of devices that they run on.
pub(super) type SmallPair = [Vec<Small>; 2];

impl SmallSteps {
    /// The small steps of a session; they are built without holding up others.
    pub(super) fn of(&self, session: &Session, plan: Option<&Plan>, stages: usize) -> Result<Arc<SmallPair>> {
        let (config, mut mesh) = (session.config(), session.mesh().clone());
        let clusters = clusters_of_slices(session, stages);
        mesh.axes.retain(|axis| axis.name != PIPELINE_AXIS);
        let (microbatches, rows) = (config.train.microbatches, rows_of_microbatch(session)?);
        // Small steps do not depend on where the stages of the large one end.
        let lines: Option<Vec<&Entry>> =
            plan.map(|plan| plan.entries.iter().filter(|entry| !entry.primitive.ends_stage()).collect());
        let key = format!(
            "{stages} {mesh} {:?} {rows} {} {} {:?} {lines:?}",
            clusters
                .iter()
                .map(|cluster| (&cluster.levels, &cluster.device, &cluster.others))
                .collect::<Vec<_>>(),
            microbatches.min(MICROBATCHES),
            splits_backward(session)?,
            (config.plan.sequence_parallel, limit_of_layer(session))
        );
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(small) = known().get(&key) {
            return Ok(small.clone());
        }
        let small = Arc::new(few_and_more(session, plan, stages, &clusters)?);
        known().insert(key, small.clone());
        Ok(small)
    }
}

/// The layers on each stage of the smaller one of the small steps; the larger one has one more on each. A layer hides the
/// gathers of the next one, and norms of gradients are taken while the next two are on their way, so a stage needs two of
/// them; and with too few, memory is fullest in another part of the step than with many. On the last one of three stages the
/// head and the loss take the place of one.
pub(super) fn few_layers(stages: usize) -> Vec<usize> {
    match stages {
        1 => vec![3],
        2 => vec![2, 2],
        _ => vec![2, 2, 1],
    }
}

/// The bytes that each layer may keep for the backward pass of a microbatch, of those that a rank may.
fn limit_of_layer(session: &Session) -> Option<usize> {
    let config = session.config();
    let layers = config.model.stream().map_or(1, |[layers, ..]| layers);
    let slices = session.mesh().axis_named(PIPELINE_AXIS).map_or(1, |axis| axis.size);
    config.train.activation_limit.map(|limit| limit * slices / layers.max(1))
}

/// For each kind of slices of the mesh, the cluster on which all slices of the small steps are like them.
fn clusters_of_slices(session: &Session, stages: usize) -> Vec<Cluster> {
    let (cluster, mesh) = (&session.config().cluster, session.mesh());
    let mut clusters = Vec::new();
    for (slice, kind) in cluster.kinds_of_slices(mesh, PIPELINE_AXIS).into_iter().enumerate() {
        if kind == clusters.len() {
            clusters.push(cluster.like_slice(mesh, PIPELINE_AXIS, slice, stages));
        }
    }
    clusters
}

/// The small steps on each of these clusters, built on two cores.
fn few_and_more(
    session: &Session,
    plan: Option<&Plan>,
    stages: usize,
    clusters: &[Cluster],
) -> Result<SmallPair> {
    let few = few_layers(stages);
    let more: Vec<usize> = few.iter().map(|layers| layers + 1).collect();
    let (limit, whole) = (limit_of_layer(session), session.config().train.activation_limit);
    let session = session.clone().in_this_process().only_priced();
    let small = |layers: &[usize]| {
        let most = layers.iter().copied().max().unwrap_or(1);
        let session = session.clone();
        let session = match limit {
            Some(limit) => session.with_activation_limit(limit * most),
            None => session,
        };
        Small::on(clusters, &session, plan, layers).map_err(|error| match whole {
            // The figures are those of the small step.
            Some(whole) if error.code == "E478" => error.note(format!(
                "priced by {most} layers that stand for all, which may keep their part of the limit of {}",
                format_bytes(whole as u64)
            )),
            _ => error,
        })
    };
    let (few, more) = std::thread::scope(|scope| {
        let other = scope.spawn(|| small(&few));
        let more = small(&more);
        (other.join(), more)
    });
    match few {
        Ok(few) => Ok([few?, more?]),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
