//! A step between two passes.

use crate::apply::Applied;
use crate::build::Built;
use crate::effects::idle_lines;
use crate::offload::offloaded;
use crate::pipeline::Pipeline;
use crate::primitive::STAGE_ENDS;
use crate::request::{BuildRequest, Source, StepKind};
use crate::stages::Stage;
use crate::structure::Structured;
use partita_base::{Note, Result};
use partita_ir::{Graph, Pieces, ValueId, graph_edit};
use partita_mesh::Mesh;
use partita_pipeline::{Cut, Edge, StageGraph, Timetable};
use partita_spmd::{LaidOut, Layouts};

/// A step on its way from a model to the local graphs of all ranks.
///
/// At first there is one graph of one device, a forward pass and later a step; then that graph with the layouts of the
/// plan, once for each distinct mesh of a pipeline's slices; then a graph for each stage; at last the local graphs of its
/// ranks.
#[derive(Default)]
pub struct Building {
    /// The model that the pass `restructure` made.
    pub(super) structured: Option<Structured>,
    pub(crate) graph: Graph,
    /// The derivative of the loss by itself, from differentiation on.
    pub(super) seed: Option<ValueId>,
    /// Parameters that are stored as several parts.
    pub(crate) pieces: Vec<Pieces>,
    /// Hidden outputs: plan lines may name them, but the request leaves them out. They are dropped before partitioning.
    pub(super) hidden: Vec<String>,
    pub(super) pipeline: Pipeline,
    pub(super) on_meshes: Vec<OnMesh>,
    /// The graph of each stage with its layouts.
    pub(super) laid_out: Vec<(LaidOut, StageGraph)>,
    pub(super) stages: Vec<Stage>,
    pub(super) timetable: Option<Timetable>,
    pub(super) notes: Vec<Note>,
}

/// A step with the layouts that the plan requests on the mesh of some of the pipeline's slices, and cut into stages.
pub(super) struct OnMesh {
    pub mesh: Mesh,
    pub step: Graph,
    pub cut: Cut,
    /// The layouts of the whole step on this mesh, if there are several slices.
    pub layouts: Option<Layouts>,
}

impl Building {
    /// The program of a request, before the first pass.
    pub(crate) fn new(request: &BuildRequest) -> Building {
        let graph = match request.source {
            Source::Model(model) => model.forward.clone(),
            Source::Structured(structured) => structured.model.forward.clone(),
            Source::Differentiated { step, .. } => step.clone(),
        };
        Building::from_graph(graph)
    }

    /// A graph whose values may be annotated with layouts, on a mesh without stages: for passes over a program in text.
    pub fn from_graph(graph: Graph) -> Building {
        Building { graph, ..Building::default() }
    }

    /// The graph of one device, as far as there is one for the whole step.
    pub fn graph(&self) -> &Graph {
        match &self.on_meshes[..] {
            [] => &self.graph,
            [first, ..] => &first.step,
        }
    }

    /// The graph of each stage with its layouts, between propagation and partitioning.
    pub fn layouts(&self) -> impl Iterator<Item = &LaidOut> {
        self.laid_out.iter().map(|(laid_out, _)| laid_out)
    }

    /// The stages, once they are partitioned.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The model with the structural lines of its plan, once they are applied; `None` for a program that arrives
    /// differentiated.
    pub(super) fn structured<'s>(&'s self, request: &'s BuildRequest) -> Option<&'s Structured> {
        match request.source {
            Source::Structured(structured) => Some(structured),
            Source::Model(_) | Source::Differentiated { .. } => self.structured.as_ref(),
        }
    }

    /// Whether the graph has been differentiated.
    pub(super) fn has_gradients(&self) -> bool {
        self.seed.is_some()
    }

    /// Whether the graph is on a mesh.
    pub fn is_on_mesh(&self) -> bool {
        !self.on_meshes.is_empty()
    }

    /// Whether the step is cut into stages.
    pub(super) fn is_cut(&self) -> bool {
        self.on_meshes.iter().any(|on_mesh| !on_mesh.cut.stages.is_empty())
    }

    /// With another graph of one device.
    ///
    /// # Errors
    /// Those of `pass`.
    pub fn rewritten(mut self, pass: impl FnOnce(Graph) -> Result<Graph>) -> Result<Building> {
        self.graph = pass(std::mem::take(&mut self.graph))?;
        Ok(self)
    }

    /// The step under the layout lines of the plan, for each distinct mesh of the pipeline's slices.
    pub(crate) fn applied(&self, request: &BuildRequest) -> Result<Vec<(Mesh, Applied)>> {
        self.pipeline.check_lines(request.plan, &self.graph)?;
        let mut applied: Vec<(Mesh, Applied)> = Vec::new();
        for slice in &self.pipeline.slices {
            if applied.iter().all(|(other, _)| *other != slice.mesh) {
                let plan = self.pipeline.plan_on(request.plan, &slice.mesh);
                let on_mesh = crate::apply(&plan, &self.graph, &slice.mesh, &request.options.applying())?;
                applied.push((slice.mesh.clone(), on_mesh));
            }
        }
        Ok(applied)
    }

    /// The annotated step on each distinct mesh.
    pub(crate) fn into_annotated(self) -> Vec<(Mesh, Graph)> {
        self.on_meshes.into_iter().map(|OnMesh { mesh, step, .. }| (mesh, step)).collect()
    }

    /// The result of the last pass.
    pub(crate) fn finish(mut self, request: &BuildRequest) -> Result<Built> {
        let ending_lines = self.pipeline.ending_lines(&self.graph);
        let offload = offloaded(request.plan, &self.graph)?;
        let OnMesh { step, cut: Cut { edges, .. }, .. } = self.on_meshes.swap_remove(0);
        let mut notes = std::mem::take(&mut self.notes);
        let (pieces, stages) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.stages));
        let timetable = self.timetable.take();
        let structured = self.structured(request);
        // With several stages, the note that explains a stage mark is superfluous.
        let is_told = |note: &&Note| stages.len() == 1 || note.code != STAGE_ENDS;
        let structural = structured.iter().flat_map(|structured| &structured.notes).filter(is_told);
        notes.splice(0..0, structural.cloned());
        let mut built = Built {
            step,
            plan: request.plan.clone(),
            pieces,
            mesh: request.mesh.clone(),
            stages,
            edges,
            timetable,
            ending_lines,
            offload,
            idle: Vec::new(),
            notes,
        };
        if let (Some(structured), StepKind::Step) = (structured, request.part) {
            built.idle = idle_lines(&built, structured, request.options);
        }
        Ok(built)
    }

    /// The values that stages send to each other, alike on all meshes.
    pub(super) fn edges(&self) -> &[Edge] {
        &self.on_meshes[0].cut.edges
    }

    /// The graph without the hidden outputs and what only they need.
    pub(super) fn kept(&self, graph: Graph) -> Graph {
        graph_edit::prune(super::forward::without_outputs(graph, &self.hidden))
    }
}
