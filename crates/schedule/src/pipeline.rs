//! How a mesh runs a step in stages: which ranks run each stage, where the stages end, and which
//! timetable orders their work.
//!
//! Without marks, the axis `pp` of the mesh cuts it into equal slices, and the forward graph is cut
//! into stages of nearly equal work. Marks (`pipeline_split`) say where stages end. A mark may also
//! name the mesh of the slice that runs its stage; then slices may differ in size and in their axes,
//! and a layout line applies on the slices that have its axis.

use crate::modules::{is_inside, matches_around};
use crate::plan::{Entry, Plan};
use crate::primitive::Primitive;
use crate::request::BuildOptions;
use crate::stages::PIPELINE_AXIS;
use crate::structure::Structured;
use partita_base::{Diagnostic, Note, Result};
use partita_cost::Cluster;
use partita_ir::{Graph, Node, Operation, Phase};
use partita_mesh::{Axis, AxisRole, Mesh, Slice};
use partita_pipeline::{Order, Timetable, block_of, crossing_bytes, mark as marks};
use partita_spmd::coupled_op;

/// A stage as a line of the plan lists it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Mark {
    /// The module that ends the stage; the root for the last stage.
    pub module: String,
    /// The mesh of its slice.
    pub mesh: Option<Mesh>,
    /// The ranks of its slice; empty for the next ones.
    pub ranks: Vec<usize>,
    /// The line, for messages.
    pub line: String,
}

impl Mark {
    /// The module that ends the stage, and the line.
    fn end(&self) -> (String, String) {
        (self.module.clone(), self.line.clone())
    }
}

/// The slices of a mesh, the stages on them and the timetable. A mesh without stages is one slice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipeline {
    /// The slices, in order of their first stage.
    pub slices: Vec<Slice>,
    /// The slice that runs each stage.
    pub slice_of_stage: Vec<usize>,
    /// The module that ends each stage but the last, and the line that says so; empty for an even split.
    ends: Vec<(String, String)>,
    /// Whether an even split groups the layers into which the plan clusters the model.
    has_layers: bool,
    /// The order of work; `None` for a single stage.
    order: Option<Order>,
    /// Whether the plan lists the slices.
    is_listed: bool,
}

impl Structured {
    /// The pipeline that runs the model on a mesh. Errors as [`Pipeline::of`].
    pub(crate) fn pipeline(&self, mesh: &Mesh, options: &BuildOptions) -> Result<Pipeline> {
        Pipeline::of(&self.stages, self.has_layers, mesh, &options.timetable)
    }
}

impl Pipeline {
    /// One stage on a whole mesh.
    pub fn whole(mesh: &Mesh) -> Pipeline {
        Pipeline { slices: vec![Slice::whole(mesh)], slice_of_stage: vec![0], ..Pipeline::default() }
    }

    /// The pipeline that the marks of a plan and the axis `pp` of a mesh describe.
    ///
    /// # Errors
    /// E463 if marks, mesh and timetable disagree on the number of stages, or if
    /// only some marks name a mesh, E467 if slices overlap or leave ranks over.
    pub fn of(marks: &[Mark], has_layers: bool, mesh: &Mesh, order: &Order) -> Result<Pipeline> {
        if let Some(listed) = marks.iter().find(|mark| mark.mesh.is_some()) {
            return Pipeline::listed(marks, &listed.line, mesh, order);
        }
        let slices = mesh.slices(PIPELINE_AXIS);
        if slices.len() == 1 {
            let (slice_of_stage, ends) = (vec![0], Vec::new());
            return Ok(Pipeline { slices, slice_of_stage, ends, has_layers, order: None, is_listed: false });
        }
        let slice_of_stage = order.slice_of_stage(slices.len())?;
        let ends: Vec<(String, String)> = marks.iter().map(Mark::end).collect();
        let stages = slice_of_stage.len();
        if !ends.is_empty() && ends.len() + 1 != stages {
            let ranks = slices.len();
            return Err(disagree()
                .expected(format!(
                    "{} stage boundaries: the timetable `{}` runs {stages} stages on {PIPELINE_AXIS}={ranks}",
                    stages - 1,
                    order.name()
                ))
                .found(format!("{}: after {}", ends.len(), modules_of(&ends).join(", ")))
                .help(match stages == ranks {
                    true => format!(
                        "use `{PIPELINE_AXIS}={}`, or remove the `pipeline_split` lines",
                        ends.len() + 1
                    ),
                    false => "add or remove `pipeline_split` lines".to_string(),
                }));
        }
        let order = Some(order.clone());
        Ok(Pipeline { slices, slice_of_stage, ends, has_layers, order, is_listed: false })
    }

    /// Stages whose slices the plan lists.
    fn listed(marks: &[Mark], line: &str, mesh: &Mesh, order: &Order) -> Result<Pipeline> {
        let mut slices: Vec<Slice> = Vec::new();
        let mut lines: Vec<&str> = Vec::new();
        let mut slice_of_stage = Vec::with_capacity(marks.len());
        let mut next = 0;
        for mark in marks {
            let Some(own) = &mark.mesh else {
                return Err(disagree()
                    .expected("a mesh for every stage, or for none: `pipeline_split(mesh=\"tp=2\")`")
                    .found(mark.line.clone())
                    .note(format!("{line} names a mesh")));
            };
            if own.axis_named(PIPELINE_AXIS).is_some() {
                return Err(uncovered(&format!(
                    "the mesh of a pipeline stage has the axis `{PIPELINE_AXIS}`"
                ))
                .at(mark.line.clone())
                .expected("the mesh of one slice, such as `dp=2,tp=2`")
                .found(own.to_string())
                .help("list a stage for each position on the axis"));
            }
            let ranks: Vec<usize> = match mark.ranks.is_empty() {
                true => (next..next + own.rank_count()).collect(),
                false => mark.ranks.clone(),
            };
            if ranks.len() != own.rank_count() || !ranks.is_sorted_by(|a, b| a < b) {
                return Err(uncovered("the ranks of a pipeline slice do not fit its mesh")
                    .at(mark.line.clone())
                    .expected(format!("{} ranks in ascending order, for mesh {own}", own.rank_count()))
                    .found(format!("{ranks:?}")));
            }
            next = ranks.last().expect("a mesh has ranks") + 1;
            let slice = Slice { mesh: own.clone(), ranks };
            let known = slices.iter().position(|other| *other == slice);
            slice_of_stage.push(known.unwrap_or(slices.len()));
            if known.is_none() {
                slices.push(slice);
                lines.push(&mark.line);
            }
        }
        if marks.last().is_none_or(|mark| !mark.module.is_empty()) {
            return Err(disagree()
                .expected("a line for the last stage: `sch.pipeline_split(mesh=..)`")
                .found(marks.iter().map(|mark| mark.line.as_str()).collect::<Vec<_>>().join(", ")));
        }
        let mut taken: Vec<Option<usize>> = vec![None; mesh.rank_count()];
        for (number, slice) in slices.iter().enumerate() {
            for &rank in &slice.ranks {
                match taken.get_mut(rank) {
                    None => {
                        return Err(uncovered("a pipeline slice names a rank that does not exist")
                            .at(lines[number])
                            .expected(format!("ranks below {} of mesh {mesh}", mesh.rank_count()))
                            .found(format!("rank {rank}"))
                            .help(format!("give the mesh the {} ranks of all slices", ranks_of(&slices))));
                    }
                    Some(Some(other)) => {
                        return Err(uncovered("two pipeline slices share a rank")
                            .at(lines[number])
                            .note(format!("slice {other}: {}", lines[*other]))
                            .expected("each rank in one slice")
                            .found(format!("rank {rank} in slices {other} and {number}")));
                    }
                    Some(place) => *place = Some(number),
                }
            }
        }
        let left: Vec<usize> = (0..taken.len()).filter(|&rank| taken[rank].is_none()).collect();
        if !left.is_empty() {
            return Err(uncovered("some ranks belong to no pipeline slice")
                .expected(format!("all {} ranks of mesh {mesh} in a slice", mesh.rank_count()))
                .found(format!("ranks {left:?} in no slice")));
        }
        let ends = marks[..marks.len() - 1].iter().map(Mark::end).collect();
        let order = (slice_of_stage.len() > 1).then(|| order.clone());
        if let Some(order) = &order {
            let placed = order.slice_of_stage(slices.len())?;
            if placed != slice_of_stage {
                let ranks =
                    |(stage, &slice): (usize, &usize)| format!("stage {stage} on {:?}", slices[slice].ranks);
                let found: Vec<String> = slice_of_stage.iter().enumerate().map(ranks).collect();
                return Err(disagree()
                    .expected(match slice_of_stage.len() > slices.len() && placed.len() == slices.len() {
                        true => format!("other ranks for each stage: the timetable `{}`", order.name()),
                        false => format!("stages on slices {placed:?}: the timetable `{}`", order.name()),
                    })
                    .found(format!("ranks: {}", found.join(", "))));
            }
        }
        Ok(Pipeline { slices, slice_of_stage, ends, has_layers: false, order, is_listed: true })
    }

    /// The timetable of a step with so many microbatches, or of a forward pass; `None` for a single
    /// stage.
    ///
    /// # Errors
    /// As [`Order::timetable`].
    pub fn timetable(&self, step: &Graph, microbatches: usize) -> Result<Option<Timetable>> {
        let trains = step.nodes.iter().any(|node| node.phase.is_backward());
        let Some(order) = &self.order else { return Ok(None) };
        match trains {
            true => order.timetable(self.slices.len(), microbatches),
            false => order.forward(self.slices.len(), 1),
        }
        .map(Some)
    }

    /// Assigns each node of a forward graph to a stage.
    ///
    /// # Errors
    /// E460 if the model has fewer blocks than there are stages, E463 if a marked module computes
    /// nothing, E468 if a stage ends where much more crosses than at the end of the block.
    pub fn mark(&self, forward: &mut Graph) -> Result<()> {
        let count = self.slice_of_stage.len();
        if count == 1 {
            marks::after(forward, &[]);
            return Ok(());
        }
        if self.ends.is_empty() {
            return match self.has_layers {
                true => marks::regrouped(forward, count),
                false => marks::evenly(forward, count),
            };
        }
        let last = |(module, _): &(String, String)| {
            let inside = |node: &Node| is_inside(&node.path, module);
            forward.nodes.iter().rposition(inside).ok_or_else(|| {
                Diagnostic::new("E463", format!("no pipeline stage can end after `{module}`"))
                    .at("pipeline_split")
                    .expected("a module that computes something")
            })
        };
        let ends = self.ends.iter().map(last).collect::<Result<Vec<usize>>>()?;
        if self.is_listed {
            in_order(&self.ends, &ends)?;
        }
        self.check_sends(forward, &ends)?;
        marks::after(forward, &ends);
        Ok(())
    }

    /// For each stage but the last, the line that ends it; empty where stages are chosen automatically.
    pub fn ending_lines(&self, step: &Graph) -> Vec<String> {
        let mut lines = vec![String::new(); self.slice_of_stage.len() - 1];
        for (module, line) in &self.ends {
            let inside = |node: &&Node| node.phase == Phase::Forward && is_inside(&node.path, module);
            let stage = step.nodes.iter().filter(inside).map(|node| node.stage).max();
            if let Some(own) = stage.and_then(|stage| lines.get_mut(stage)) {
                *own = line.clone();
            }
        }
        lines
    }

    /// E468 if a stage ends inside a residual block, where it would send the residual stream and what
    /// is computed beside it: more than twice as many bytes as after the block.
    fn check_sends(&self, forward: &Graph, ends: &[usize]) -> Result<()> {
        let bytes = crossing_bytes(forward);
        for ((module, _), &end) in self.ends.iter().zip(ends) {
            let block = block_of(module);
            let inside = |node: &Node| is_inside(&node.path, block);
            let after = forward.nodes.iter().rposition(inside).map_or(0, |last| bytes[last]);
            if block != module && after > 0 && bytes[end] > 2 * after {
                return Err(Diagnostic::new(
                    "E468",
                    format!("a pipeline stage ends inside the block `{block}`"),
                )
                .at(format!("pipeline_split of `{module}`"))
                .expected(format!("a boundary such as that after `{block}`: {after} bytes cross in a step"))
                .found(format!("{} bytes after `{module}`", bytes[end]))
                .help(format!("end the stage after `{block}`")));
            }
        }
        Ok(())
    }

    /// The links and devices of a slice.
    pub fn cluster_of_slice(&self, cluster: &Cluster, mesh: &Mesh, slice: usize) -> Cluster {
        match self.is_listed {
            true => cluster.of_ranks(&self.slices[slice].ranks),
            false => cluster.of_slice(mesh, PIPELINE_AXIS, slice),
        }
    }

    /// The lines of a plan that apply on a slice: all but those of stages on other slices, and those
    /// over an axis that only other slices have.
    pub fn plan_on(&self, plan: &Plan, slice: &Mesh) -> Plan {
        let applies = |entry: &&Entry| match entry.stage {
            Some(stage) => self.slices[self.slice_of_stage[stage]].mesh == *slice,
            None => axis_of(&entry.primitive).is_none_or(|axis| !self.has_elsewhere(axis, slice)),
        };
        Plan { entries: plan.entries.iter().filter(applies).cloned().collect() }
    }

    fn has_elsewhere(&self, axis: &str, slice: &Mesh) -> bool {
        slice.axis_named(axis).is_none()
            && self.slices.iter().any(|other| other.mesh.axis_named(axis).is_some())
    }

    /// E463 for a line of a stage that does not exist, E223 for a layout line whose modules are all in
    /// stages on slices without its axis.
    pub fn check_lines(&self, plan: &Plan, step: &Graph) -> Result<()> {
        // Without a pipeline, no stage has a number.
        let is_whole = self.order.is_none() && !self.is_listed;
        let count = if is_whole { 0 } else { self.slice_of_stage.len() };
        if let Some(entry) = plan.entries.iter().find(|e| e.stage.is_some_and(|stage| stage >= count)) {
            return Err(disagree()
                .at(entry.describe())
                .expected(match is_whole {
                    true => format!("a mesh with the axis `{PIPELINE_AXIS}`, for a line of one stage"),
                    false => format!("a stage below {count}"),
                })
                .help(format!(
                    "give the mesh a rank along `{PIPELINE_AXIS}` for each stage of the plan, or remove the line"
                )));
        }
        for entry in plan.entries.iter().filter(|entry| entry.stage.is_none()) {
            let Some(axis) = axis_of(&entry.primitive) else { continue };
            let covered =
                |node: &&Node| node.phase == Phase::Forward && matches_around(&entry.modules, &node.path);
            let mut slices: Vec<usize> =
                step.nodes.iter().filter(covered).map(|node| self.slice_of_stage[node.stage]).collect();
            slices.sort_unstable();
            slices.dedup();
            let lacks = |&slice: &usize| self.has_elsewhere(axis, &self.slices[slice].mesh);
            if !slices.is_empty() && slices.iter().all(lacks) {
                let meshes: Vec<String> = slices.iter().map(|&s| self.slices[s].mesh.to_string()).collect();
                return Err(Diagnostic::new("E223", format!("the slice of the stage has no axis `{axis}`"))
                    .at(entry.describe())
                    .expected(format!("an axis of {}", meshes.join(" or ")))
                    .found(axis)
                    .help("name an axis of the slice that runs these modules: `axis=..`"));
            }
        }
        Ok(())
    }
}

/// The positions of the last nodes of the stages that end inside the model.
pub(crate) fn last_nodes(marks: &[Mark], forward: &Graph) -> Vec<usize> {
    let inner = marks.iter().filter(|mark| !mark.module.is_empty());
    let last = |mark: &Mark| forward.nodes.iter().rposition(|node| is_inside(&node.path, &mark.module));
    inner.filter_map(last).collect()
}

/// E463 if stages do not follow each other in the model, so that their numbers would be ambiguous.
pub(crate) fn stages_in_order(marks: &[Mark], forward: &Graph) -> Result<()> {
    let inner: Vec<(String, String)> =
        marks.iter().filter(|mark| !mark.module.is_empty()).map(Mark::end).collect();
    in_order(&inner, &last_nodes(marks, forward))
}

/// E463 if the ends of stages are not in ascending order.
fn in_order(ends: &[(String, String)], positions: &[usize]) -> Result<()> {
    let later = (1..positions.len()).find(|&stage| positions[stage] <= positions[stage - 1]);
    let Some(stage) = later else { return Ok(()) };
    let [(before, first), (module, second)] = [&ends[stage - 1], &ends[stage]];
    Err(Diagnostic::new("E463", "the stages are not in the order of the model")
        .at(second.clone())
        .expected(format!("stage {stage} to end after `{before}`, where stage {} ends", stage - 1))
        .found(format!("stage {stage} ends after `{module}`"))
        .note(format!("stage {}: {first}", stage - 1))
        .help("list the stages in the order in which the model runs them"))
}

/// The mesh that the stages of a plan make up, if they name the meshes of their slices: `pp` over
/// equal slices of consecutive ranks, otherwise as many ranks as all slices have, `pp=5`. `None` if no
/// stage names a mesh.
///
/// # Errors
/// Those of [`Mesh::parse`].
pub fn mesh_of_stages(plan: &Plan) -> Result<Option<Mesh>> {
    let mut slices: Vec<(Mesh, &[usize])> = Vec::new();
    for entry in &plan.entries {
        let Primitive::PipelineSplit { mesh: Some(mesh), ranks } = &entry.primitive else { continue };
        let slice = (Mesh::parse(mesh, None)?, &ranks[..]);
        // Two stages with the same ranks are on one slice.
        if ranks.is_empty() || !slices.contains(&slice) {
            slices.push(slice);
        }
    }
    let Some((first, _)) = slices.first() else { return Ok(None) };
    let are_equal = slices.iter().all(|(mesh, ranks)| mesh == first && ranks.is_empty());
    let (count, rest): (usize, &[Axis]) = match are_equal {
        true => (slices.len(), &first.axes),
        false => (slices.iter().fold(0, |sum, (mesh, _)| sum.saturating_add(mesh.rank_count())), &[]),
    };
    let rest = rest.iter().filter(|axis| axis.size > 1).map(|axis| format!("{}={}", axis.name, axis.size));
    let axes: Vec<String> = [format!("{PIPELINE_AXIS}={count}")].into_iter().chain(rest).collect();
    Mesh::parse(&axes.join(","), None).map(Some)
}

fn modules_of(ends: &[(String, String)]) -> Vec<&str> {
    ends.iter().map(|(module, _)| module.as_str()).collect()
}

/// A note if the microbatches of a step cannot run one after the other: an op needs the rows of all of them.
pub(crate) fn coupled(step: &Graph) -> Option<Note> {
    let node = step.node(coupled_op(step)?);
    let name = if node.path.is_empty() { node.op.name() } else { &node.path };
    let text = format!(
        "`{name}` needs the rows of the whole batch, as a batch norm does: microbatches wait for each other there, so they \
         neither overlap in a pipeline nor take less memory"
    );
    Some(Note::new("coupled-rows", text))
}

fn ranks_of(slices: &[Slice]) -> usize {
    slices.iter().map(|slice| slice.ranks.len()).sum()
}

/// The mesh axis that a layout line shards over.
fn axis_of(primitive: &Primitive) -> Option<&str> {
    match primitive {
        Primitive::Style(style) => Some(style.axis_name()),
        Primitive::Shard { axis, .. } | Primitive::Sync { axis, .. } => {
            Some(axis.as_deref().unwrap_or(AxisRole::Model.axis()))
        }
        _ => None,
    }
}

fn disagree() -> Box<Diagnostic> {
    Diagnostic::new("E463", "the plan and the mesh disagree on the pipeline stages").at("pipeline_split")
}

fn uncovered(message: &str) -> Box<Diagnostic> {
    Diagnostic::new("E467", message).at("pipeline_split")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(stages: &[(&str, Option<&str>, &[usize])]) -> Vec<Mark> {
        let mark = |&(module, mesh, ranks): &(&str, Option<&str>, &[usize])| Mark {
            module: module.to_string(),
            mesh: mesh.map(|mesh| Mesh::parse(mesh, None).unwrap()),
            ranks: ranks.to_vec(),
            line: format!("pipeline_split of `{module}`"),
        };
        stages.iter().map(mark).collect()
    }

    fn of(stages: &[(&str, Option<&str>, &[usize])], mesh: &str) -> Result<Pipeline> {
        Pipeline::of(&marks(stages), false, &Mesh::parse(mesh, None).unwrap(), &Order::default())
    }

    #[test]
    fn listed_slices_take_the_ranks_in_order() {
        let pipeline = of(&[("a", Some("tp=2"), &[]), ("", Some("dp=1"), &[])], "pp=3").unwrap();
        let ranks: Vec<&[usize]> = pipeline.slices.iter().map(|slice| &slice.ranks[..]).collect();
        assert_eq!(ranks, [&[0, 1][..], &[2]]);
        let pipeline = of(&[("a", Some("tp=2"), &[1, 3]), ("", Some("dp=2"), &[0, 2])], "dp=4").unwrap();
        assert_eq!(pipeline.slices[0].ranks, [1, 3]);
        assert_eq!(pipeline.slice_of_stage, [0, 1]);
    }

    #[test]
    fn slices_that_do_not_cover_the_mesh_once_are_refused() {
        let code = |stages: &[(&str, Option<&str>, &[usize])], mesh| of(stages, mesh).unwrap_err().code;
        // Overlap, ranks left over, ranks that do not exist, another number of ranks than the mesh.
        assert_eq!(code(&[("a", Some("tp=2"), &[0, 1]), ("", Some("tp=2"), &[1, 2])], "pp=3"), "E467");
        assert_eq!(code(&[("a", Some("tp=2"), &[]), ("", Some("dp=1"), &[])], "pp=4"), "E467");
        assert_eq!(code(&[("a", Some("tp=2"), &[]), ("", Some("dp=2"), &[])], "pp=3"), "E467");
        assert_eq!(code(&[("a", Some("tp=2"), &[0]), ("", Some("dp=1"), &[1])], "pp=3"), "E467");
        // Only some stages with a mesh, no line for the last stage, other marks than stages.
        assert_eq!(code(&[("a", Some("tp=2"), &[]), ("", None, &[])], "pp=3"), "E463");
        assert_eq!(code(&[("a", Some("tp=2"), &[]), ("b", Some("dp=1"), &[])], "pp=3"), "E463");
        assert_eq!(code(&[("a", None, &[])], "pp=3"), "E463");
    }

    #[test]
    fn a_line_applies_on_the_slices_that_have_its_axis() {
        let pipeline = of(&[("a", Some("tp=2"), &[]), ("", Some("dp=2"), &[])], "pp=4").unwrap();
        let mut plan = Plan::default();
        plan.add("a", "colwise", "test").unwrap();
        plan.add("b", "shard(weight, 0, axis=dp)", "test").unwrap();
        plan.add("b", "shard(weight, 0, axis=mp)", "test").unwrap();
        let lines = |slice: usize| {
            let plan = pipeline.plan_on(&plan, &pipeline.slices[slice].mesh);
            plan.entries.iter().map(|entry| entry.primitive.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(lines(0), ["colwise", "shard(weight, 0, axis=mp)"]);
        assert_eq!(lines(1), ["shard(weight, 0, axis=dp)", "shard(weight, 0, axis=mp)"]);
    }
}
