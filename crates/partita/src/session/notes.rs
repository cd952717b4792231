//! What a session tells its user of a built step.

use super::Session;
use super::plan::Given;
use crate::execution;
use partita_base::{Note, format_bytes, format_seconds};
use partita_ir::{Op, Role};
use partita_mesh::{AxisRole, Mesh, rank_list};
use partita_nn::Model;
use partita_pipeline::Order;
use partita_program::{CollectiveMatmul, Program, RingChoice, Stages, collective_matmuls, lower_stages};
use partita_schedule::{Built, Stage, StepKind, unused_axes};
use partita_spmd::better_mesh;
use std::collections::{BTreeMap, BTreeSet};

impl Session {
    /// Facts about a built step for the user: choices of the config without effect, and a better mesh or more
    /// microbatches if ranks are idle.
    pub fn notes(&self, model: &Model, built: &Built) -> Vec<String> {
        self.notes_with(model, built, None)
    }

    /// As [`Session::notes`], of a step whose ranks are simulated to be idle for this share of the time.
    pub fn notes_with(&self, model: &Model, built: &Built, idle_share: Option<f64>) -> Vec<String> {
        let repeated = unused_axes(built).into_iter().map(|(_, why)| why);
        let told = built.notes.iter().map(Note::to_string).chain(repeated);
        let told = told.chain(without_rows(built)).chain(idle_dispatch(built));
        let told = told.chain(self.vain_offload(built)).chain(self.unused(built)).chain(self.rings(built));
        told.chain(self.bubble(built, idle_share)).chain(self.advice(model, built)).collect()
    }

    /// Choices of the config that change nothing here.
    fn unused(&self, built: &Built) -> Vec<String> {
        let config = &self.config;
        let mut notes = Vec::new();
        if config.train.timetable != Order::default() && built.timetable.is_none() {
            notes.push(format!("the timetable changes nothing: mesh {} has one pipeline stage", self.mesh));
        }
        let has_tp = self.mesh.size_of(AxisRole::Model) > 1;
        let missing = match (!matches!(self.given_plan(), Ok(Given::Lines(_))), has_tp) {
            (true, _) => "it selects lines of the built-in plan, and another plan is given".to_string(),
            (false, false) => format!("mesh {} has no axis `tp` of several ranks", self.mesh),
            (false, true) => return notes,
        };
        if config.plan.vocab_parallel {
            notes.push(format!("`--vocab-parallel` changes nothing: {missing}"));
        }
        notes
    }

    /// That one microbatch leaves the stages of a pipeline waiting for each other: by the slots of the timetable, unless a
    /// simulation knows better.
    fn bubble(&self, built: &Built, idle_share: Option<f64>) -> Option<String> {
        let timetable = built.timetable.as_ref().filter(|timetable| timetable.trains())?;
        let times = timetable.times(|task| task.kind.slots()).ok()?;
        let slices = timetable.slices.len();
        let (all, idle) =
            (times.makespan() * slices, (0..slices).map(|slice| times.bubble_of(slice)).sum::<usize>());
        let idle_share = idle_share.unwrap_or(idle as f64 / all.max(1) as f64);
        (timetable.microbatches == 1).then(|| {
            format!(
                "with 1 microbatch, the stages of the pipeline are idle {:.0}% of the time: `--microbatches {}` or more \
                 keeps them busier",
                // The rest of what is said to be busy.
                100.0 - (100.0 * (1.0 - idle_share)).round(),
                4 * slices
            )
        })
    }

    /// A better mesh, if ranks are idle and the cost model knows one.
    pub(super) fn advice(&self, model: &Model, built: &Built) -> Option<String> {
        // The cost model does not cover pipelines, whose stages overlap.
        let [stage] = &built.stages[..] else { return None };
        if stage.partitioned.notes.is_empty() {
            return None;
        }
        let mut on = |mesh: &Mesh| {
            let built =
                self.build_on(model, &self.plan_on(model, mesh)?, StepKind::Step, mesh, &mut |_, _| Ok(()))?;
            Ok(built.stages.into_iter().next().expect("a step has a stage").partitioned)
        };
        better_mesh(&stage.partitioned, &mut on).map(|better| better.to_string())
    }

    /// Which collectives around matmuls become permutes under them, and what that gains by the cost model. Layers count as
    /// one.
    fn rings(&self, built: &Built) -> Option<String> {
        /// The modules that are named.
        const NAMED: usize = 3;
        let options = self.lower_options();
        if !matches!(options.collective_matmul, CollectiveMatmul::Auto(_)) {
            return None;
        }
        let priced =
            |stage: &Stage| collective_matmuls(&stage.classes, &options, &self.cpu).unwrap_or_default();
        let all: Vec<RingChoice> = built.stages.iter().flat_map(priced).collect();
        let taken: Vec<&RingChoice> = all.iter().filter(|choice| choice.pays()).collect();
        if taken.is_empty() {
            return Some(match all.len() {
                0 => "`train.collective_matmul` changes nothing: no gather stands before a matmul, and no reduce-scatter \
                      behind one, that may become permutes"
                    .to_string(),
                count => format!(
                    "`train.collective_matmul` changes nothing: none of the {count} collectives around matmuls is faster \
                     as permutes under them"
                ),
            });
        }
        let mut modules: BTreeMap<(String, &str), (usize, f64, f64)> = BTreeMap::new();
        for choice in &taken {
            let part =
                |part: &str| if part.parse::<usize>().is_ok() { "*".to_string() } else { part.to_string() };
            let path: Vec<String> = choice.path.split('.').map(part).collect();
            let sum = modules.entry((path.join("."), choice.kind)).or_default();
            *sum = (sum.0 + 1, sum.1 + choice.ring_s, sum.2 + choice.apart_s);
        }
        let mut modules: Vec<_> = modules.into_iter().collect();
        modules.sort_by(|(_, a), (_, b)| (b.2 - b.1).total_cmp(&(a.2 - a.1)));
        let one = |((path, kind), (count, ring_s, apart_s)): &((String, &str), (usize, f64, f64))| {
            format!(
                "{count} {kind} of `{path}` {} instead of {}",
                format_seconds(*ring_s),
                format_seconds(*apart_s)
            )
        };
        let named: Vec<String> = modules.iter().take(NAMED).map(one).collect();
        let total = |of: fn(&RingChoice) -> f64| format_seconds(taken.iter().map(|choice| of(choice)).sum());
        Some(format!(
            "{} of {} collectives around matmuls become permutes under them: by the cost model both take {} instead of {} in \
             a step ({}{})",
            taken.len(),
            all.len(),
            total(|choice| choice.ring_s),
            total(|choice| choice.apart_s),
            named.join(", "),
            if modules.len() > NAMED { ", .." } else { "" }
        ))
    }

    /// That activations in host memory make no rank's arena smaller.
    fn vain_offload(&self, built: &Built) -> Option<String> {
        if built.offload.activations.is_empty() {
            return None;
        }
        let peak = |stages: Stages<'_>| -> Option<(usize, usize)> {
            let set = lower_stages(&stages, &self.lower_options(), &*self.target()).ok()?;
            let most = |of: fn(&Program) -> usize| set.programs.iter().map(of).max().unwrap_or(0);
            Some((most(|program| program.arena_bytes), most(|program| program.host_bytes)))
        };
        let (with, host) = peak(execution::stages(built))?;
        let mut stages = execution::stages(built);
        stages.offload.activations.clear();
        let (without, states) = peak(stages)?;
        let moved = match host.saturating_sub(states) {
            0 => "nothing is moved, because the backward pass needs again at once what these modules keep"
                .to_string(),
            bytes => format!(
                "up to {} of a rank are moved, but not while most are in use",
                format_bytes(bytes as u64)
            ),
        };
        (with >= without).then(|| {
            format!(
                "`offload(activations)` saves nothing: a rank needs {} with it and {} without; {moved}",
                format_bytes(with as u64),
                format_bytes(without as u64)
            )
        })
    }
}

/// The ranks that get no row of the batch, in a sentence; `None` if each gets some.
pub(super) fn without_rows(built: &Built) -> Option<String> {
    built.stages.iter().find_map(|stage| {
        let (graph, mesh) = (&stage.partitioned.graph, &stage.partitioned.mesh);
        let inputs = graph.inputs.iter().zip(&stage.partitioned.inputs);
        inputs.filter(|(input, _)| graph.value(**input).role == Role::Input).find_map(|(&input, sharding)| {
            let value = graph.value(input);
            let is_empty = |rank: &usize| sharding.local_shape(mesh, &value.ty.shape, *rank).contains(&0);
            let empty: Vec<usize> =
                (0..mesh.rank_count()).filter(is_empty).map(|rank| stage.ranks[rank]).collect();
            let rows = value.ty.shape.first().copied().unwrap_or(0);
            (!empty.is_empty()).then(|| {
                format!(
                    "ranks {} get nothing of `{}`, whose {rows} rows are too few for mesh {mesh}",
                    rank_list(&empty),
                    value.name
                )
            })
        })
    })
}

/// That experts are one op, but all of them are on each rank, in a sentence with their modules.
fn idle_dispatch(built: &Built) -> Option<String> {
    let mut modules: BTreeSet<&str> = BTreeSet::new();
    for Stage { partitioned, .. } in &built.stages {
        let (graph, layouts) = (&partitioned.graph, &partitioned.layouts);
        for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Experts(_))) {
            let choices = layouts.sharding(node.operands[2]);
            let matrices = layouts.sharding(node.operands[3]);
            if choices.dims[3].axes.is_empty() && matrices.dims[0].axes.is_empty() {
                modules.insert(&node.path);
            }
        }
    }
    let first = modules.first()?;
    let others = match modules.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "`dispatch` of `{first}`{others} changes no exchange: nothing shards the experts over mesh {}, so their products are \
         only computed again in the backward pass",
        built.mesh
    ))
}
