//! The step of a session as a job: the axes of its mesh, its plan and its config.

use super::block::{BlockSpec, Recompute};
use super::small::check_stages;
use super::step::{Job, ParameterBytes, own_bytes};
use crate::session::Session;
use partita_base::{Diagnostic, Result};
use partita_mesh::AxisRole;
use partita_nn::Optimizer;
use partita_schedule::{Entry, Kind, Offloaded, Plan, Primitive};

/// The states of an optimizer for each element of a parameter, in numbers of single precision. Means of rows and columns,
/// and the scales of blocks, count as nothing.
pub fn states(optimizer: &Optimizer) -> f64 {
    match optimizer {
        Optimizer::Sgd { momentum, .. } if *momentum == 0.0 => 0.0,
        Optimizer::Adafactor { .. } => 0.0,
        Optimizer::Adam8bit { .. } => 0.5,
        Optimizer::Sgd { .. } | Optimizer::Lion { .. } | Optimizer::Muon { .. } => 1.0,
        Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Lamb { .. } => 2.0,
    }
}

/// The job of a session. The axes `dp`, `fsdp`, `tp` and `pp` are unfolded; `sp` and `cp` split the tokens of a row, `ep`
/// the experts of a layer.
///
/// # Errors
/// E511 for another axis, a model without repeated layers, or a batch that does not divide; what building the plan says.
pub fn job(session: &Session) -> Result<Job> {
    job_of(session, given_plan(session)?)
}

/// The job of a session under a plan; none is the ready plan. Lines of storage and of stages are what the job says itself,
/// all others apply to the layer.
///
/// # Errors
/// As [`job`].
pub fn job_of(session: &Session, plan: Option<Plan>) -> Result<Job> {
    let (config, mesh) = (session.config(), session.mesh());
    let refused = |expected: &str, found: String| {
        Err(Diagnostic::new("E511", "the step cannot be folded to one layer").expected(expected).found(found))
    };
    if let Some(axis) = mesh.axes.iter().find(|axis| AxisRole::from_axis(&axis.name).is_none()) {
        let known = AxisRole::names();
        return refused(&format!("mesh axes among {known}"), format!("axis `{}`", axis.name));
    }
    let [tp, pp, fsdp, ep] = [AxisRole::Model, AxisRole::Stages, AxisRole::Parameters, AxisRole::Experts]
        .map(|role| mesh.size_of(role));
    let cp = mesh.axes_size(&mesh.axes_where(AxisRole::shards_sequence));
    let Some([layers, _, dim]) = config.model.stream() else {
        return refused("a model with repeated layers", format!("`{}`", config.model.name()));
    };
    check_stages(session)?;
    let shards = mesh.batch_shards() / ep;
    let rows = rows_of_microbatch(session)?;
    let storage = |entry: &Entry| match &entry.primitive {
        Primitive::Style(style) if style.is_storage() => Some(style.kind),
        _ => None,
    };
    let offloads = |entry: &Entry| match entry.primitive {
        Primitive::Offload { what, .. } => Some(what),
        _ => None,
    };
    let mut bytes = own_bytes(config.train.dtype, states(&config.step.optimizer));
    if plan.iter().flat_map(|plan| &plan.entries).any(|entry| offloads(entry) == Some(Offloaded::Optimizer)) {
        bytes = ParameterBytes { state: 0.0, host: bytes.state, ..bytes };
    }
    let kinds: Vec<Kind> = plan.iter().flat_map(|plan| plan.entries.iter().filter_map(storage)).collect();
    let has = |kind: Kind| kinds.contains(&kind);
    let (zero, shard_group) = match () {
        () if fsdp > 1 || has(Kind::Fsdp) => (3, if fsdp > 1 { fsdp * cp } else { shards * cp }),
        () if has(Kind::Zero2) => (2, shards * cp),
        () if has(Kind::Zero1) => (1, shards * cp),
        () => (0, 1),
    };
    let order = config.train.timetable.clone();
    let chunks = if pp > 1 { order.chunks(pp) } else { 1 };
    if pp * chunks > layers {
        return refused(
            "at least one layer on each stage",
            format!("{layers} layers on {} stages", pp * chunks),
        );
    }
    let within = |entry: &Entry| {
        storage(entry).is_none() && !entry.primitive.ends_stage() && offloads(entry).is_none()
    };
    let lines = plan.map(|plan| Plan { entries: plan.entries.into_iter().filter(within).collect() });
    let block = BlockSpec {
        model: config.model.clone(),
        tp,
        ep,
        rows,
        dtype: config.train.dtype,
        sequence_parallel: config.plan.sequence_parallel,
        vocab_parallel: config.plan.vocab_parallel,
        recompute: Recompute::Nothing,
        fused_attention: true,
        step: config.step.clone(),
        plan: lines,
    };
    Ok(Job {
        pp,
        chunks,
        order: Some(order),
        clocked: true,
        cp,
        kv_features: dim,
        dp: shards * cp,
        microbatches: config.train.microbatches,
        zero,
        shard_group,
        ..Job::on_one_device(block, layers, bytes)
    })
}

/// The rows of a microbatch on a data parallel rank.
///
/// # Errors
/// E511 if the batch does not divide.
pub(super) fn rows_of_microbatch(session: &Session) -> Result<usize> {
    let (train, shards) = (&session.config().train, session.mesh().batch_shards());
    let rows = train.batch / (shards * train.microbatches).max(1);
    if rows == 0 || rows * shards * train.microbatches != train.batch {
        return Err(Diagnostic::new("E511", "the step cannot be folded to one layer")
            .expected("a batch that divides into microbatches on data parallel ranks")
            .found(format!("{} rows, {} microbatches, {shards} ranks", train.batch, train.microbatches)));
    }
    Ok(rows)
}

/// The plan that the user wrote; none if the ready plan is meant.
fn given_plan(session: &Session) -> Result<Option<Plan>> {
    let plan = &session.config().plan;
    if plan.file.is_none() && plan.styles.is_empty() {
        return Ok(None);
    }
    // A written plan does not read the model.
    let Some(model) = session.config().model.with_layers(1) else { return Ok(None) };
    let small = model.build(1, session.config().train.dtype, true)?;
    session.plan(&small).map(Some)
}
