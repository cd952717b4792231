//! The candidates of a search.

use crate::price::Price;
use crate::session::Session;
use partita_cost::Fill;
use partita_mesh::Mesh;
use partita_pipeline::Order;
use partita_schedule::{Entry, Offloaded, PIPELINE_AXIS, Plan, Primitive};
use std::cmp::Ordering;

/// A plan that was tried on a mesh.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh.
    pub mesh: Mesh,
    /// Where the plan comes from: the planner, or a ready plan.
    pub source: &'static str,
    /// The plan.
    pub plan: Plan,
    /// The microbatches of a step.
    pub microbatches: usize,
    /// The order of microbatches in a pipeline.
    pub timetable: Order,
    /// Whether the residual stream is sharded along the sequence, `--sequence-parallel`.
    pub sequence_parallel: bool,
    /// The most bytes that a rank keeps for the backward pass of a microbatch, `--activation-limit`; the others are computed
    /// again.
    pub activation_limit: Option<usize>,
    /// Predicted seconds of a step.
    pub step_s: f64,
    /// Bytes of the rank with the least room.
    pub bytes: u64,
    /// Bytes that its device holds.
    pub limit: u64,
    /// A mesh axis that shards nothing: its ranks all compute the same.
    pub idle: Option<String>,
    /// The modules of each stage, by the first and the last.
    pub stages: Vec<(String, String)>,
    /// The mesh of the slice of each stage.
    pub slices: Vec<Mesh>,
    /// The share of the step in which the ranks of each stage compute; empty where it is not known.
    pub busy: Vec<f64>,
}

impl Candidate {
    /// The flags with which other commands run this candidate, beside its plan.
    pub fn flags(&self) -> String {
        let sequence = if self.sequence_parallel { " --sequence-parallel" } else { "" };
        let timetable = self.other_timetable().map(|name| format!(" --timetable {name}")).unwrap_or_default();
        let kept =
            self.activation_limit.map(|bytes| format!(" --activation-limit {bytes}")).unwrap_or_default();
        format!("--mesh {} --microbatches {}{timetable}{sequence}{kept}", self.mesh, self.microbatches)
    }

    /// The keys of a plan file that say the same: a run with this file needs no flags.
    pub fn made_for(&self) -> String {
        let sequence = if self.sequence_parallel { "sequence_parallel = true\n" } else { "" };
        let timetable =
            self.other_timetable().map(|name| format!("timetable = \"{name}\"\n")).unwrap_or_default();
        let kept =
            self.activation_limit.map(|bytes| format!("activation_limit = {bytes}\n")).unwrap_or_default();
        format!("mesh = \"{}\"\nmicrobatches = {}\n{timetable}{sequence}{kept}", self.mesh, self.microbatches)
    }

    /// The name of the timetable, unless it is the default one or there is no pipeline.
    pub fn other_timetable(&self) -> Option<&str> {
        let is_pipeline = self.mesh.axis_named(PIPELINE_AXIS).is_some_and(|axis| axis.size > 1);
        (is_pipeline && self.timetable != Order::default()).then(|| self.timetable.name())
    }

    /// What the rank with the least room needs beside what its device holds.
    pub fn fill(&self) -> Fill {
        Fill::new(self.bytes, self.limit)
    }

    /// Whether every rank fits its device.
    pub fn fits(&self) -> bool {
        self.fill().fits()
    }

    /// Whether optimizer states are in host memory.
    pub fn offloads(&self) -> bool {
        let is_states =
            |entry: &Entry| matches!(entry.primitive, Primitive::Offload { what: Offloaded::Optimizer, .. });
        self.plan.entries.iter().any(is_states)
    }

    /// What a plan of a session takes, without its stages.
    pub(super) fn priced(session: &Session, source: &'static str, plan: Plan, price: &Price) -> Candidate {
        let config = session.config();
        Candidate {
            mesh: session.mesh().clone(),
            source,
            plan,
            microbatches: config.train.microbatches,
            timetable: config.train.timetable.clone(),
            sequence_parallel: config.plan.sequence_parallel,
            activation_limit: config.train.activation_limit,
            step_s: price.step_s(),
            bytes: price.fullest().bytes,
            limit: price.fullest().limit,
            idle: None,
            stages: Vec::new(),
            slices: Vec::new(),
            busy: Vec::new(),
        }
    }

    /// Whether stages are on slices of different sizes or shapes.
    pub fn has_slices(&self) -> bool {
        self.slices.iter().any(|slice| *slice != self.slices[0])
    }

    /// The order of candidates: those that fit, then those without idle axes, then the fastest, or of those that do not fit
    /// the smallest. Of equals, the one with most data parallel ranks.
    fn rank(&self) -> (bool, bool, f64, [usize; 3]) {
        let size = |name: &str| self.mesh.axis_named(name).map_or(1, |axis| axis.size);
        let is_large = !self.fits();
        let key = if is_large { self.fill().missing() as f64 } else { self.step_s };
        (is_large, self.idle.is_some(), key, ["tp", "pp", "fsdp"].map(size))
    }
}

/// The better candidate first; see [`Candidate::rank`].
pub(super) fn in_order(a: &Candidate, b: &Candidate) -> Ordering {
    let (a, b) = (a.rank(), b.rank());
    (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)).then(a.3.cmp(&b.3))
}
