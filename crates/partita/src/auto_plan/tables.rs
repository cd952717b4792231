//! What each range of layers costs on each part of the cluster, in the shape that Alpa's users know: `cost[i, j, m]`, the
//! most stages that may follow, and the memory of a stage (L. Zheng et al., "Alpa", 2022, section 5).

use super::Candidate;
use crate::predict::Blocks;
use crate::predict::bytes::bytes_of_stage;
use crate::predict::small::has_like_stages;
use crate::predict::step::{BlockSeconds, Job};
use crate::session::Session;
use partita_base::{Diagnostic, Result};
use partita_mesh::Mesh;
use partita_planner::inter::{Memory, Submeshes, most_successors, submeshes};
use partita_schedule::{Kind, Plan, Primitive};
use std::fmt::Write;

/// The costs of stages: arrays `[layers, layers, submeshes]` by first layer, last layer and submesh, rows first.
#[derive(Clone, PartialEq, Debug)]
pub struct StageCosts {
    /// Layers of the model.
    pub layers: usize,
    /// The parts of the cluster: nodes, and devices of each.
    pub submeshes: Vec<(usize, usize)>,
    /// For each of them, how its devices are used: data parallel ranks and tensor parallel ones.
    pub logical: Vec<Vec<(usize, usize)>>,
    /// Rows of a microbatch over all ranks of a stage.
    pub rows: usize,
    /// Seconds of a microbatch, forward and backward, without the exchange of gradients; infinite where a stage does not
    /// run.
    pub seconds: Vec<f64>,
    /// The most stages that may follow before the activations in flight exceed the memory; -1 if one microbatch does.
    pub successors: Vec<i64>,
    /// Bytes of a device: those of parameters and what belongs to them, those that a microbatch keeps, and those that are
    /// needed at a time beside them. `[layers, layers, submeshes, 3]`.
    pub memory: Vec<f64>,
    /// The position in `logical` of the use that the figures are those of; `usize::MAX` where a stage does not run.
    pub chosen: Vec<usize>,
}

impl StageCosts {
    /// The place of a stage in the arrays; of `memory`, three times that.
    pub fn at(&self, first: usize, last: usize, submesh: usize) -> usize {
        (first * self.layers + last) * self.submeshes.len() + submesh
    }

    /// The shape of the arrays.
    pub fn shape(&self) -> [usize; 3] {
        [self.layers, self.layers, self.submeshes.len()]
    }
}

impl Session {
    /// The costs of stages with the microbatches of a candidate, and with its recomputation and storage; layouts are those
    /// of the ready plan on the fastest logical mesh of each submesh.
    ///
    /// # Errors
    /// E511 for a model without repeated layers, E523 for a cluster without a number of devices; what building a layer
    /// refuses.
    pub fn stage_costs(&self, like: &Candidate) -> Result<StageCosts> {
        let config = self.config();
        let [layers, ..] = config.model.stream().ok_or_else(|| {
            Diagnostic::new("E511", "the step cannot be folded to one layer")
                .expected("a model with repeated layers, of which stages are made")
        })?;
        if !has_like_stages(config.model.as_ref()) {
            return Err(Diagnostic::new("E511", "the step cannot be folded to one layer")
                .expected("a model whose stages with equally many blocks do the same")
                .found(format!("`{}`", config.model.name())));
        }
        let (nodes, devices) = self.nodes(like.mesh.rank_count());
        // A slice of three devices is no power of two of them.
        let is_power = |slice: &Mesh| slice.rank_count() > devices || slice.rank_count().is_power_of_two();
        let has_powers = !like.has_slices() || like.slices.iter().all(is_power);
        let submeshes =
            submeshes(nodes, devices, if has_powers { Submeshes::All } else { Submeshes::Every })?;
        let rows = config.train.batch / like.microbatches.max(1);
        let mut blocks = Blocks::default();
        let mut jobs: Vec<Vec<(usize, usize, Job)>> = Vec::new();
        for &(nodes, devices) in &submeshes {
            let mut of_submesh = Vec::new();
            let divides =
                |tp: &usize| (nodes * devices).is_multiple_of(*tp) && (tp.is_power_of_two() || !has_powers);
            for tp in (1..=devices).filter(divides) {
                let dp = nodes * devices / tp;
                if rows.is_multiple_of(dp) {
                    of_submesh.extend(self.job_on(like, dp, tp, rows).ok().map(|job| (dp, tp, job)));
                }
            }
            jobs.push(of_submesh);
        }
        let specs: Vec<_> = jobs.iter().flatten().map(|(_, _, job)| &job.block).collect();
        blocks.prepare(&specs);
        let mut table = StageCosts {
            layers,
            logical: jobs.iter().map(|jobs| jobs.iter().map(|&(dp, tp, _)| (dp, tp)).collect()).collect(),
            rows,
            seconds: vec![f64::INFINITY; layers * layers * submeshes.len()],
            successors: vec![-1; layers * layers * submeshes.len()],
            memory: vec![0.0; 3 * layers * layers * submeshes.len()],
            chosen: vec![usize::MAX; layers * layers * submeshes.len()],
            submeshes,
        };
        let available = config.cluster.memory_bytes() as f64;
        for (submesh, jobs) in jobs.iter().enumerate() {
            for (number, (_, _, job)) in jobs.iter().enumerate() {
                let Ok(block) = blocks.of(&job.block) else { continue };
                let of_block = BlockSeconds::of(job, &block, &config.cluster);
                for first in 0..layers {
                    for last in first..layers {
                        let (count, ends) = (last + 1 - first, [first == 0, last + 1 == layers]);
                        let seconds = of_block.stage_s(count, ends[0], ends[1]);
                        let bytes = bytes_of_stage(job, &block, count, ends[0], ends[1]);
                        let [initial, intermediate, peak] = bytes;
                        let follow = most_successors(&Memory { available, peak, initial, intermediate });
                        let at = table.at(first, last, submesh);
                        // What fits is better than what does not.
                        let key = |successors: i64, seconds: f64| (successors < 0, seconds);
                        if key(follow, seconds) < key(table.successors[at], table.seconds[at]) {
                            (table.seconds[at], table.successors[at], table.chosen[at]) =
                                (seconds, follow, number);
                            table.memory[3 * at..3 * at + 3].copy_from_slice(&bytes);
                        }
                    }
                }
            }
        }
        Ok(table)
    }

    /// The nodes that so many devices fill, and the devices of each.
    fn nodes(&self, ranks: usize) -> (usize, usize) {
        let node = self.config().cluster.levels.first().and_then(|level| level.ranks).unwrap_or(ranks);
        let devices = node.min(ranks).max(1);
        (ranks.div_ceil(devices), devices)
    }

    /// The job of a stage on a logical mesh.
    fn job_on(&self, like: &Candidate, dp: usize, tp: usize, rows: usize) -> Result<Job> {
        let axes: Vec<(&str, usize)> =
            [("dp", dp), ("tp", tp)].into_iter().filter(|(_, size)| *size > 1).collect();
        let mesh = Mesh::new("mesh", if axes.is_empty() { &[("dp", 1)] } else { &axes });
        let is_kept = |primitive: &Primitive| match primitive {
            Primitive::Style(style) => style.is_storage() && style.kind != Kind::Fsdp,
            Primitive::Checkpoint { .. } => true,
            _ => false,
        };
        let kept = like.plan.entries.iter().filter(|entry| is_kept(&entry.primitive)).cloned();
        let model = self.config().model.with_layers(1);
        let small = model.ok_or_else(|| Diagnostic::new("E511", "the step cannot be folded to one layer"))?;
        let forward = small.build(1, self.config().train.dtype, true)?.forward;
        let sequence_parallel = like.sequence_parallel && tp > 1;
        let options = partita_schedule::ReadyOptions {
            sequence_parallel,
            vocab_parallel: sequence_parallel,
            ..partita_schedule::ReadyOptions::default()
        };
        let ready = small.plan(&forward, &mesh, &options)?;
        let plan = Plan { entries: ready.entries.into_iter().chain(kept).collect() };
        let session = self.clone().with_mesh(mesh).with_batch(rows).with_microbatches(1);
        session.with_sequence_parallel(sequence_parallel).job_under(&plan)
    }

    /// What Alpa prints of a plan, under the same names: the layers of each stage, the devices of each as nodes and devices
    /// of a node, their use as data parallel ranks and ranks of `tp`, and the options of each search, which are none.
    pub fn alpa_result(&self, candidate: &Candidate) -> String {
        // Of each stage: the nodes and the devices of each, data parallel ranks and the others.
        let physical = |stage: usize| self.nodes(candidate.slices[stage].rank_count());
        let logical = |stage: usize| {
            let (slice, dp) = (&candidate.slices[stage], candidate.slices[stage].batch_shards().max(1));
            (dp, slice.rank_count() / dp)
        };
        let number = |block: &str| block.rsplit('.').next().and_then(|n| n.parse::<usize>().ok());
        let layers = |(first, last): &(String, String)| match (number(first), number(last)) {
            (Some(first), Some(last)) => (first..=last).map(|n| n.to_string()).collect::<Vec<_>>().join(", "),
            _ => String::new(),
        };
        let list = |of: &dyn Fn(usize) -> String| {
            (0..candidate.stages.len()).map(of).collect::<Vec<String>>().join(", ")
        };
        let mut text = String::new();
        let ids = list(&|stage| format!("[{}]", layers(&candidate.stages[stage])));
        let _ = writeln!(text, "Result forward_stage_layer_ids: [{ids}]");
        let _ = writeln!(text, "Result meshes: [{}]", list(&|stage| format!("{:?}", physical(stage))));
        let _ = writeln!(
            text,
            "Result logical_mesh_shapes: [{}]",
            list(&|stage| format!("{:?}", logical(stage)))
        );
        let _ = writeln!(text, "Result autosharding_option_dicts: [{}]", list(&|_| "{}".to_string()));
        text
    }
}

/// An array as `numpy.save` writes it (NumPy format 1.0): `descr` is `<f8` or `<i8`.
pub fn npy(descr: &str, shape: &[usize], values: impl Iterator<Item = [u8; 8]>) -> Vec<u8> {
    let shape: String = shape.iter().map(|extent| format!("{extent}, ")).collect();
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", shape.trim_end());
    // The values begin at a multiple of 64 bytes.
    let unpadded = 10 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    values.for_each(|value| bytes.extend(value));
    bytes
}
