//! The result of a build: a step as the local graphs of all ranks; and the step that verification compares it with.

use crate::effects::Idle;
use crate::offload::Offload;
use crate::passes::{Building, PASSES, open_composites};
use crate::plan::Plan;
use crate::request::{BuildOptions, BuildRequest};
use crate::stages::Stage;
use crate::structure::{BuildContext, Structured};
use crate::verify::{Interpreter, StepRunner};
use partita_base::{Diagnostic, Note, Result};
use partita_ir::{Graph, Pieces, Registry};
use partita_mesh::Mesh;
use partita_nn::StepOptions;
use partita_pipeline::{Edge, Timetable};
use partita_spmd::{Options, Partitioned, partition};

/// A step planned for a mesh, up to the local graphs of its ranks.
#[derive(Clone, Debug)]
pub struct Built {
    /// The global step with the plan's annotations.
    pub step: Graph,
    /// The plan, as data.
    pub plan: Plan,
    /// Parameters that are stored as several parts.
    pub pieces: Vec<Pieces>,
    /// The whole mesh.
    pub mesh: Mesh,
    /// What each slice of the mesh runs; one stage if the step has no pipeline.
    pub stages: Vec<Stage>,
    /// The values sent between stages.
    pub edges: Vec<Edge>,
    /// The order in which the stages process microbatches; `None` for one stage.
    pub timetable: Option<Timetable>,
    /// For each stage of the model but the last, the line of the plan that ends it; empty where it was
    /// chosen automatically. A slice of the mesh may run several of these stages.
    pub ending_lines: Vec<String>,
    /// What ranks keep in host memory.
    pub offload: Offload,
    /// Lines of the plan that change nothing, of a training step: see [`check_effects`](crate::check_effects).
    pub idle: Vec<Idle>,
    /// Notes for the user.
    pub notes: Vec<Note>,
}

impl Built {
    /// The local graph of one rank: the graph of its class with the rank's number folded in. E014
    /// if the rank does not exist.
    pub fn local(&self, rank: usize) -> Result<Graph> {
        let (stage, rank) = self.place_of(rank)?;
        self.stages[stage].local(rank)
    }

    /// The number of a rank's stage, and the rank's number within that stage. E014 if the rank does not
    /// exist.
    pub fn place_of(&self, rank: usize) -> Result<(usize, usize)> {
        let within = |(number, stage): (usize, &Stage)| Some((number, stage.position(rank)?));
        self.stages.iter().enumerate().find_map(within).ok_or_else(|| {
            Diagnostic::new("E014", format!("there is no rank {rank}")).expected(format!(
                "a rank below {} of mesh {}",
                self.mesh.rank_count(),
                self.mesh
            ))
        })
    }

    /// A graph on one rank, without a plan.
    pub fn solo(graph: &Graph, runner: &dyn StepRunner) -> Result<Built> {
        let mesh = Mesh::new("one", &[("dp", 1)]);
        let step = open_composites(graph, runner.target())?;
        Built::of(partition(&step, &mesh, &Options::default())?)
    }

    /// A built step from one partitioned graph, without a pipeline.
    pub fn of(partitioned: Partitioned) -> Result<Built> {
        Ok(Built {
            step: partitioned.graph.clone(),
            plan: Plan::default(),
            pieces: Vec::new(),
            mesh: partitioned.mesh.clone(),
            notes: partitioned.notes.clone(),
            stages: vec![Stage::whole(partitioned)?],
            edges: Vec::new(),
            timetable: None,
            ending_lines: Vec::new(),
            offload: Offload::default(),
            idle: Vec::new(),
        })
    }

    /// The shape of an input (a parameter, a state, a fed tensor) on each rank that has it; `None`
    /// if no input has this name.
    pub fn local_shapes(&self, input: &str) -> Option<Vec<Vec<usize>>> {
        let shapes = self.stages.iter().filter_map(|stage| {
            let Partitioned { graph, mesh, inputs, .. } = &stage.partitioned;
            let position = graph.inputs.iter().position(|&v| graph.value(v).name == input)?;
            let shape = &graph.ty(graph.inputs[position]).shape;
            let local = |rank| inputs[position].local_shape(mesh, shape, rank);
            Some((0..mesh.rank_count()).map(local).collect::<Vec<_>>())
        });
        let shapes: Vec<Vec<usize>> = shapes.flatten().collect();
        (!shapes.is_empty()).then_some(shapes)
    }
}

/// The passes that make the step of one device, without a plan but for the precision of its lines.
const REFERENCE_PASSES: &[&str] =
    &["split-fused", "precision", "gradients", "quantise", "prune", "remat", "widen-sums", "update"];

/// The step as the model defines it: one device, one batch, no plan but for the precision of its lines. Verification
/// compares with this step. A model that is a whole step already is not differentiated and gets no optimizer. In 8 bits,
/// where blocks depend on the extents of a matmul, fused projections are split here too: also returns their parts.
pub fn reference_step(structured: &Structured, options: &StepOptions) -> Result<(Graph, Vec<Pieces>)> {
    let (plan, mesh, registry) = (Plan::default(), Mesh::new("one", &[("dp", 1)]), Registry::default());
    let options = BuildOptions::new(options.clone());
    let context = BuildContext { registry: &registry, runner: &Interpreter };
    let request = BuildRequest::new(structured, &plan, &mesh, &options, context);
    let is_needed = |name: &str| name != "split-fused" || options.step.f8.is_some();
    let passes = PASSES.iter().filter(|pass| REFERENCE_PASSES.contains(&pass.name) && is_needed(pass.name));
    let Building { graph, pieces, .. } = request.run(passes, &mut |_, _| Ok(()))?;
    Ok((graph, pieces))
}
