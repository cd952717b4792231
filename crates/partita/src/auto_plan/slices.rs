//! Stages on slices of different sizes, such as two ranks and one, which no axis `pp` divides.
//!
//! What each block costs on slices of so many ranks follows from the searches over layouts on their meshes; the dynamic
//! program over stages ([`partita_planner::inter`]) then says which blocks are best run by how many ranks. The divisions
//! that promise most are built and priced as any other candidate.

use super::blocks::{BlockCosts, Slices, blocks, table_of};
use super::layouts::{Layouts, Searches};
use super::trial::{Trial, suits};
use super::{Candidate, Freedom, SearchTime, Tried, in_order, is_free, orders};
use crate::predict::unfold::is_inside;
use crate::price::MOST_LAYERS;
use crate::session::Session;
use partita_base::Result;
use partita_cost::Cluster;
use partita_ir::{Graph, Operation, Phase};
use partita_mesh::Mesh;
use partita_nn::Model;
use partita_pipeline::{crossing_bytes, mark};
use partita_planner::inter::{SliceKind, Stage, Submeshes, makespan_s, stages, submeshes};
use partita_schedule::{Entry, PIPELINE_AXIS, Plan, Primitive, ReadyOptions, matches};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What these plans are called.
pub(super) const SOURCE: &str = "planner, slices";
/// Devices up to which slices of any number of them are tried; beyond, powers of two within a node, and whole nodes.
const MOST_EVERY: usize = 8;
/// Devices beyond which no slices of different sizes are tried.
const MOST_DEVICES: usize = 64;
/// Divisions that are built.
const BUILT: usize = 2;
/// The most numbers of microbatches that are tried.
const COUNTS: usize = 4;
/// By how much longer than equal slices a division may take by the estimate of the search, to be built.
const MARGIN: f64 = 1.1;
/// And by how much longer than the best one.
const CLOSE: f64 = 1.03;
/// How many times as much work as the mean the dearest block has, where blocks cost differently.
const DEAR: f64 = 1.25;

/// Slices of so many ranks, with the ways in which these share a stage.
#[derive(Debug)]
struct Kind {
    kind: SliceKind,
    /// The links and devices of such a slice.
    cluster: Cluster,
    /// Its meshes.
    meshes: Vec<Mesh>,
}

/// What blocks cost on each kind of slice, and the meshes of the ways in which its ranks share a stage.
struct OnKinds {
    slices: Vec<Slices>,
    meshes: Vec<Vec<Mesh>>,
}

/// A division that may be built.
struct Proposal {
    microbatches: usize,
    stages: Vec<(Stage, Mesh)>,
    /// Seconds of a step by the estimate of the search.
    step_s: f64,
}

/// The search for one model on so many devices.
pub(super) struct Divider<'a> {
    session: Session,
    model: &'a Model,
    pins: &'a Plan,
    freedom: Freedom,
    searches: &'a Searches,
    blocks: Vec<String>,
}

impl<'a> Divider<'a> {
    /// The search, where slices of different sizes may pay: the devices are no power of two, fill their nodes partly or
    /// differ, or the blocks of the model cost differently. None for plans that say where stages end, and for steps that
    /// arrive differentiated.
    pub fn of(
        session: &Session,
        model: &'a Model,
        pins: &'a Plan,
        freedom: Freedom,
        searches: &'a Searches,
        devices: usize,
    ) -> Option<Divider<'a>> {
        let decides = |entry: &Entry| entry.primitive.decides_stages();
        let blocks = blocks(&model.forward);
        let order = &session.config().train.timetable;
        let runs_slices = order.slice_of_stage(2).is_ok_and(|slices| slices.len() == 2);
        let is_possible = (3..=MOST_DEVICES).contains(&devices)
            && blocks.len() > 1
            && runs_slices
            && !freedom.alpa
            && is_free(pins)
            && !pins.entries.iter().any(decides)
            && !model.is_step()
            && !model.forward.inputs.is_empty();
        let node = session.config().cluster.levels.first().and_then(|level| level.ranks);
        let is_part = node.is_some_and(|node| devices > node && !devices.is_multiple_of(node));
        let is_uneven = !devices.is_power_of_two() || is_part || session.config().cluster.is_mixed();
        if !is_possible || !(is_uneven || cost_differently(&model.forward, &blocks)) {
            return None;
        }
        let mesh = Mesh::new("mesh", &[(PIPELINE_AXIS, devices)]);
        let session = session.clone().with_mesh(mesh);
        session.config().cluster.holds(session.mesh()).ok()?;
        Some(Divider { session, model, pins, freedom, searches, blocks })
    }

    /// The best candidates.
    pub fn run(&self) -> Tried {
        let mut tried = Tried::default();
        let mesh = self.session.mesh().clone();
        let counts = self.counts();
        let rows = self.session.config().train.batch / counts[0].max(1);
        let found =
            self.kinds(rows).and_then(|kinds| Ok((self.proposals(&kinds, &counts, &mut tried)?, kinds)));
        let (mut proposals, kinds) = match found {
            Ok(found) => found,
            Err(error) => {
                tried.refuse(&mesh, SOURCE, error);
                return tried;
            }
        };
        proposals.truncate(BUILT);
        for Proposal { microbatches, stages, .. } in &proposals {
            match self.plans(*microbatches, stages, &kinds, &mut tried.time) {
                Ok(plans) => tried.join(self.trial(*microbatches).of_plans(SOURCE, plans)),
                Err(error) => tried.refuse(&mesh, SOURCE, error),
            }
        }
        let best = tried.found.iter().min_by(|a, b| in_order(a, b)).cloned();
        if let Some(Candidate { source, plan, microbatches, slices, .. }) = best {
            let own = &self.session.config().train.timetable;
            let dimensions = [self.blocks.len(), slices.len(), microbatches];
            let others = orders(own, dimensions, self.freedom);
            // A slice that the plan names runs one stage.
            for order in others.iter().filter(|&order| order != own && order.chunks(slices.len()) == 1) {
                let session =
                    self.session.clone().with_microbatches(microbatches).with_timetable(order.clone());
                let trial = Trial::new(session, self.model, self.pins, self.freedom, self.searches);
                tried.join(trial.of_plan(source, plan.clone()));
            }
        }
        tried
    }

    fn trial(&self, microbatches: usize) -> Trial<'a> {
        let session = self.session.clone().with_microbatches(microbatches);
        Trial::new(session, self.model, self.pins, self.freedom, self.searches)
    }

    /// The numbers of microbatches to try: that of the config, or those that keep so many stages busy.
    fn counts(&self) -> Vec<usize> {
        let (own, batch) = (self.session.config().train.microbatches, self.session.config().train.batch);
        if own > 1 || !self.freedom.microbatches {
            return vec![own];
        }
        let most = 4 * self.blocks.len().min(self.session.mesh().rank_count());
        let mut counts: Vec<usize> = Vec::new();
        let mut least = 2;
        while counts.len() < COUNTS && least <= most.min(batch) {
            let Some(count) = (least..=batch.min(MOST_LAYERS)).find(|&count| suits(&self.session, count))
            else {
                break;
            };
            counts.push(count);
            least = 2 * count;
        }
        if counts.is_empty() { vec![own] } else { counts }
    }

    /// Divisions whose slices are not all alike, those that promise most first: for each number of microbatches and of
    /// stages the best one, if it is nearly as good as the best of equal slices.
    fn proposals(&self, kinds: &[Kind], counts: &[usize], tried: &mut Tried) -> Result<Vec<Proposal>> {
        let devices = self.session.mesh().rank_count();
        let order = &self.session.config().train.timetable;
        let slices_at = self.costs(kinds, counts, tried)?;
        let (mut found, mut equal_s): (Vec<Proposal>, f64) = (Vec::new(), f64::INFINITY);
        for (&microbatches, OnKinds { slices, meshes }) in counts.iter().zip(&slices_at) {
            let cut = self.cut(microbatches);
            let (table, chosen) = table_of(slices, self.blocks.len(), microbatches, cut);
            for division in stages(&table, devices, microbatches) {
                let mesh_of = |stage: &Stage| {
                    let way = chosen[stage.first][stage.last][stage.slice];
                    meshes[stage.slice][way].clone()
                };
                let step_s = makespan_s(&table, &division.stages, order, microbatches)?;
                let stages: Vec<(Stage, Mesh)> =
                    division.stages.iter().map(|stage| (*stage, mesh_of(stage))).collect();
                match stages.iter().any(|(_, mesh)| *mesh != stages[0].1) {
                    true => found.push(Proposal { microbatches, stages, step_s }),
                    false => equal_s = equal_s.min(step_s),
                }
            }
        }
        found.sort_by(|a, b| a.step_s.total_cmp(&b.step_s));
        let Some(Proposal { microbatches, stages, step_s }) = found.first() else { return Ok(found) };
        let best_s = *step_s;
        if best_s > equal_s * MARGIN {
            let slices: Vec<String> = stages.iter().map(|(_, mesh)| mesh.to_string()).collect();
            tried.told.push(format!(
                "slices of different sizes are not expected to pay: the best ones, {} with {microbatches} microbatches, are \
                 estimated at {:.2} times the seconds of equal ones",
                slices.join(" | "),
                best_s / equal_s
            ));
        }
        found.retain(|proposal| proposal.step_s <= (CLOSE * best_s).min(MARGIN * equal_s));
        Ok(found)
    }

    /// What the blocks cost on each kind of slice, for each number of microbatches. Layouts are searched for one of these
    /// numbers; with others, seconds change as they do on one device.
    fn costs(&self, kinds: &[Kind], counts: &[usize], tried: &mut Tried) -> Result<Vec<OnKinds>> {
        let batch = self.session.config().train.batch;
        let (few, middle, many) = (counts[0], counts[counts.len() / 2], counts[counts.len() - 1]);
        let rows_of = |count: usize| batch / count.max(1);
        let (one, cluster) = (Mesh::new("mesh", &[("dp", 1)]), &kinds[0].cluster);
        let mut alone = Vec::new();
        for count in [few, middle, many] {
            alone.push(self.of_all(&*self.layouts(&one, cluster, count, &mut tried.time)?));
        }
        let alone_at = |rows: usize| alone[0].between(&alone[2], [rows_of(few), rows_of(many), rows]);
        let mut searched: Vec<Vec<(&Mesh, BlockCosts)>> = Vec::new();
        for kind in kinds {
            let mut ways = Vec::new();
            for mesh in &kind.meshes {
                match self.layouts(mesh, &kind.cluster, middle, &mut tried.time) {
                    Ok(layouts) => ways.push((mesh, self.of_all(&layouts))),
                    Err(error) => tried.refuse(mesh, SOURCE, error),
                }
            }
            searched.push(ways);
        }
        let at = |&count: &usize| {
            let rows = rows_of(count);
            let share = rows as f64 / rows_of(middle).max(1) as f64;
            let mut on_kinds = OnKinds { slices: Vec::new(), meshes: Vec::new() };
            for (kind, ways) in kinds.iter().zip(&searched) {
                let suits = ways.iter().filter(|(mesh, _)| mesh.batch_shards() <= rows);
                let (meshes, ways) = suits
                    .map(|(mesh, costs)| ((*mesh).clone(), costs.scaled(&alone[1], &alone_at(rows), share)))
                    .unzip();
                let available = Some(kind.cluster.memory_bytes());
                on_kinds.meshes.push(meshes);
                on_kinds.slices.push(Slices { kind: kind.kind.clone(), ways, available });
            }
            on_kinds
        };
        Ok(counts.iter().map(at).collect())
    }

    /// The kinds of slices, each with its meshes for so many rows of a microbatch at most. A slice is within one block of
    /// each level of links, or begins with one. Slices of as many ranks with other devices are another kind.
    fn kinds(&self, rows: usize) -> Result<Vec<Kind>> {
        let cluster = &self.session.config().cluster;
        let devices = self.session.mesh().rank_count();
        let node = cluster.levels.first().and_then(|level| level.ranks).unwrap_or(devices).min(devices);
        let which = if devices <= MOST_EVERY { Submeshes::Every } else { Submeshes::All };
        let sizes = submeshes(devices.div_ceil(node), node, which)?;
        // Equal slices too, so that the others are compared with them.
        let equal = (2..=self.blocks.len()).filter(|&count| devices.is_multiple_of(count));
        let sizes = sizes.into_iter().map(|(nodes, of_node)| nodes * of_node);
        let sizes: BTreeSet<usize> = sizes.chain(equal.map(|count| devices / count)).collect();
        let mut kinds: Vec<Kind> = Vec::new();
        for size in sizes.into_iter().filter(|&size| size < devices) {
            let mut of_size: Vec<(Cluster, Vec<usize>)> = Vec::new();
            for begin in 0..=devices - size {
                let Some(own) = cluster.of_run(begin, size, devices) else { continue };
                match of_size.iter_mut().find(|(cluster, _)| *cluster == own) {
                    Some((_, begins)) => begins.push(begin),
                    None => of_size.push((own, vec![begin])),
                }
            }
            kinds.extend(of_size.into_iter().map(|(cluster, begins)| Kind {
                kind: SliceKind { devices: size, begins: Some(begins) },
                cluster,
                meshes: logical_meshes(size, rows),
            }));
        }
        Ok(kinds)
    }

    /// The layouts on a slice.
    fn layouts(
        &self,
        mesh: &Mesh,
        cluster: &Cluster,
        microbatches: usize,
        time: &mut SearchTime,
    ) -> Result<Arc<Layouts>> {
        let session = self.session.clone().with_mesh(mesh.clone()).with_cluster(cluster.clone());
        let session = session.with_microbatches(microbatches);
        self.searches.of(&session, self.model, self.pins, self.freedom, time)
    }

    /// The costs of all blocks, where few of them were searched.
    fn of_all(&self, layouts: &Layouts) -> BlockCosts {
        layouts.of_all(&*self.session.config().model, &self.blocks)
    }

    /// Seconds to send a microbatch's activations after each block, and their gradients back, by the devices before the cut.
    fn cut(&self, microbatches: usize) -> Vec<Vec<f64>> {
        let forward = &self.model.forward;
        let bytes = crossing_bytes(forward);
        let cluster = &self.session.config().cluster;
        let devices = self.session.mesh().rank_count();
        let after = |block: &String| {
            let last = forward.nodes.iter().rposition(|node| is_inside(&node.path, block));
            let sent = last.map_or(0, |last| bytes[last]) / microbatches.max(1);
            let at = |before: usize| match before {
                0 => 0.0,
                _ => 2.0 * cluster.messages_s([(before - 1, before, sent)]),
            };
            (0..devices).map(at).collect()
        };
        self.blocks.iter().map(after).collect()
    }

    /// The plans of a division: the layouts that the searches found for each slice, with more or fewer lines, and the ready
    /// ones.
    fn plans(
        &self,
        microbatches: usize,
        stages: &[(Stage, Mesh)],
        kinds: &[Kind],
        time: &mut SearchTime,
    ) -> Result<Vec<Plan>> {
        let mut marked = self.model.forward.clone();
        let ends = stages[..stages.len() - 1].iter().filter_map(|(stage, _)| {
            let block = &self.blocks[stage.last];
            marked.nodes.iter().rposition(|node| is_inside(&node.path, block))
        });
        let ends: Vec<usize> = ends.collect();
        mark::after(&mut marked, &ends);
        let mut of_meshes: Vec<Vec<Plan>> = Vec::new();
        for (stage, mesh) in stages {
            let layouts = self.layouts(mesh, &kinds[stage.slice].cluster, microbatches, time)?;
            let options = ReadyOptions {
                sequence_parallel: self.session.config().plan.sequence_parallel,
                ..ReadyOptions::default()
            };
            let ready = self.session.config().model.plan(&self.model.forward, mesh, &options)?;
            of_meshes.push([&layouts.plans[..], &[ready]].concat());
        }
        let variants = of_meshes.iter().map(Vec::len).max().unwrap_or(0);
        let mut plans: Vec<Plan> = Vec::new();
        for variant in 0..variants {
            let mut plan = self.pins.clone();
            for (number, (stage, mesh)) in stages.iter().enumerate() {
                let is_last = number + 1 == stages.len();
                let module = if is_last { "" } else { &self.blocks[stage.last] };
                let split = Primitive::PipelineSplit { mesh: Some(mesh.to_string()), ranks: Vec::new() };
                plan.push(module, split, "planner");
                // The last of a slice's plans is the ready one.
                let own = &of_meshes[number];
                let at = if variant + 1 == variants { own.len() - 1 } else { variant.min(own.len() - 2) };
                let lines = own[at].entries.iter().filter(|entry| !self.pins.entries.contains(entry));
                let lines = lines.filter(|entry| is_of_stage(&marked, number, entry));
                plan.entries.extend(lines.map(|line| Entry { stage: Some(number), ..line.clone() }));
            }
            if !plans.contains(&plan) {
                plans.push(plan);
            }
        }
        Ok(plans)
    }
}

/// Whether the dearest block has much more work than the others.
fn cost_differently(forward: &Graph, blocks: &[String]) -> bool {
    let mut work = vec![0.0; blocks.len()];
    let mut current = 0;
    for node in &forward.nodes {
        let own = blocks.iter().position(|block| is_inside(&node.path, block));
        current = own.unwrap_or(current);
        work[current] += node.op.cost(&forward.operand_types(node), &forward.result_types(node)).flops;
    }
    let mean = work.iter().sum::<f64>() / work.len().max(1) as f64;
    work.into_iter().any(|work| work > DEAR * mean)
}

/// The meshes of so many ranks, with at most `rows` shards of the batch.
fn logical_meshes(ranks: usize, rows: usize) -> Vec<Mesh> {
    let data = (1..=ranks.min(rows.max(1))).filter(|&dp| ranks.is_multiple_of(dp));
    let mesh = |dp: usize| {
        let axes: Vec<(&str, usize)> =
            [("dp", dp), ("tp", ranks / dp)].into_iter().filter(|(_, size)| *size > 1).collect();
        Mesh::new("mesh", if axes.is_empty() { &[("dp", 1)] } else { &axes })
    };
    data.map(mesh).collect()
}

/// Whether a line has modules, and the parameter that it is about, in a stage of a forward graph.
fn is_of_stage(marked: &Graph, stage: usize, entry: &Entry) -> bool {
    // The modules of the stage: all of their nodes are in it.
    let mut within: BTreeMap<&str, bool> = BTreeMap::new();
    for node in marked.nodes.iter().filter(|node| node.phase == Phase::Forward) {
        let ends = node.path.match_indices('.').map(|(end, _)| end).chain([node.path.len()]);
        ends.for_each(|end| *within.entry(&node.path[..end]).or_insert(true) &= node.stage == stage);
    }
    let names_module = within.iter().any(|(path, own)| *own && matches(&entry.modules, path));
    let Primitive::Shard { tensor, .. } = &entry.primitive else {
        return names_module && !entry.modules.is_empty();
    };
    let is_named = |name: &str| {
        let (module, own) = name.rsplit_once('.').unwrap_or(("", name));
        own == tensor && matches(&entry.modules, module)
    };
    let named = marked.params().into_iter().filter(|&parameter| is_named(&marked.value(parameter).name));
    let first_stages: Vec<Option<usize>> = named
        .map(|parameter| {
            let readers = marked.nodes.iter().filter(|node| node.operands.contains(&parameter));
            readers.map(|node| node.stage).min()
        })
        .collect();
    names_module
        && !entry.modules.is_empty()
        && (first_stages.is_empty() || first_stages.contains(&Some(stage)))
}
