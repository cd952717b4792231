//! Passes that place a step on its mesh: layouts, stages, local graphs.

use super::building::{Building, OnMesh};
use crate::arrivals::arrivals;
use crate::pipeline::{Pipeline, coupled};
use crate::request::BuildRequest;
use crate::stages::{self, Stage};
use partita_base::{Diagnostic, Note, Result};
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_pipeline::{Cut, StageGraph};
use partita_spmd::{LaidOut, Options, is_computed, lay_out, propagate, virtual_ranks};
use std::collections::BTreeSet;

impl Building {
    /// A program in text as one stage on a mesh, with the layouts that its text requests.
    pub fn on_mesh(self, mesh: &Mesh) -> Building {
        let on_mesh =
            OnMesh { mesh: mesh.clone(), step: self.graph.clone(), cut: Cut::default(), layouts: None };
        Building { on_meshes: vec![on_mesh], pipeline: Pipeline::whole(mesh), ..self }
    }

    pub(super) fn annotated(mut self, request: &BuildRequest) -> Result<Building> {
        request.options.cluster.holds(request.mesh)?;
        self.notes.extend(coupled(&self.graph).filter(|_| request.options.microbatches > 1));
        for (mesh, applied) in self.applied(request)? {
            extend_new(&mut self.notes, &applied.notes);
            self.on_meshes.push(OnMesh { mesh, step: applied.graph, cut: Cut::default(), layouts: None });
        }
        Ok(self)
    }

    pub(super) fn without_hidden(mut self) -> Result<Building> {
        for mut on_mesh in std::mem::take(&mut self.on_meshes) {
            on_mesh.step = self.kept(on_mesh.step);
            has_distinct_names(&on_mesh.step)?;
            self.on_meshes.push(on_mesh);
        }
        Ok(self)
    }

    pub(super) fn cut(mut self, request: &BuildRequest) -> Result<Building> {
        let Building { pipeline, on_meshes, graph, .. } = &mut self;
        let slice_of = |stage: usize| pipeline.slice_of_stage[stage];
        for on_mesh in on_meshes.iter_mut() {
            on_mesh.cut = partita_pipeline::cut(&on_mesh.step, pipeline.slices.len(), &slice_of);
        }
        same_cuts(on_meshes)?;
        for name in request.options.fixed.keys() {
            is_computed(&on_meshes[0].step, name)?;
        }
        // A forward pass is not cut into microbatches.
        let microbatches = if request.part.has_gradients() { request.options.microbatches } else { 1 };
        self.timetable = pipeline.timetable(graph, microbatches)?;
        Ok(self)
    }

    pub(super) fn laid_out(mut self) -> Result<Building> {
        let Building { pipeline, on_meshes, laid_out, .. } = &mut self;
        if pipeline.slices.len() > 1 {
            // A received value does not say how the batch is sharded: it gets the layout that it has in the whole step on
            // this mesh.
            for on_mesh in on_meshes.iter_mut() {
                on_mesh.layouts = Some(propagate(&on_mesh.step, &on_mesh.mesh)?);
            }
        }
        for (number, slice) in pipeline.slices.iter().enumerate() {
            let on_mesh = on_meshes.iter_mut().find(|on| on.mesh == slice.mesh).expect("every slice has one");
            let mut stage = std::mem::take(&mut on_mesh.cut.stages[number]);
            if let Some(layouts) = &on_mesh.layouts {
                stages::lay_out_received(&mut stage, &on_mesh.cut.edges, layouts, &slice.mesh);
            }
            laid_out.push((lay_out(&stage.graph, &slice.mesh)?, stage));
        }
        Ok(self)
    }

    pub(super) fn partitioned(mut self, request: &BuildRequest) -> Result<Building> {
        let laid_out = std::mem::take(&mut self.laid_out);
        let options: Vec<Options> =
            (0..laid_out.len()).map(|number| self.options_of(number, &laid_out, request)).collect();
        for (number, ((laid_out, stage), options)) in laid_out.into_iter().zip(&options).enumerate() {
            let partitioned = laid_out.partition(options)?;
            request.context.runner.at_stage("partitioning the step")?;
            extend_new(&mut self.notes, &partitioned.notes);
            self.stages.push(Stage {
                classes: virtual_ranks::class_graphs(&partitioned)?,
                partitioned,
                ranks: self.pipeline.slices[number].ranks.clone(),
                inputs: stage.inputs,
                outputs: stage.outputs,
            });
        }
        Ok(self)
    }

    /// How a stage is partitioned.
    fn options_of(
        &self,
        number: usize,
        laid_out: &[(LaidOut, StageGraph)],
        request: &BuildRequest,
    ) -> Options {
        let options = request.options;
        let mut fixed = options.fixed.clone();
        fixed.retain(|name, _| is_computed(&laid_out[number].1.graph, name).is_ok());
        let slices = &self.pipeline.slices;
        let cluster = self.pipeline.cluster_of_slice(&options.cluster, request.mesh, number);
        let arrivals = arrivals(number, laid_out, self.edges(), slices, [&options.cluster, &cluster]);
        Options {
            ranks: slices[number].ranks.clone(),
            cluster,
            fixed,
            arrivals,
            #[cfg(feature = "testing")]
            break_rule_at: options.break_rule_at.clone(),
            ..Options::default()
        }
    }
}

/// E161 unless the inputs of a step, and its outputs, have distinct names: those of the user among them, and
/// those that the step derives, such as the gradient `grad.w` beside the new value of a parameter `grad.w`.
fn has_distinct_names(step: &Graph) -> Result<()> {
    let inputs = step.inputs.iter().map(|&input| step.value(input).name.as_str());
    for (what, names) in [
        ("inputs", inputs.collect::<Vec<_>>()),
        ("outputs", step.output_names.iter().map(String::as_str).collect()),
    ] {
        let mut seen = BTreeSet::new();
        if let Some(name) = names.into_iter().find(|name| !name.is_empty() && !seen.insert(*name)) {
            return Err(Diagnostic::new("E161", format!("`{name}` is the name of two {what} of the step"))
                .expected("parameters without a name that the step gives to its own inputs and outputs")
                .help("rename the parameter or the module that has it"));
        }
    }
    Ok(())
}

/// Stages are cut alike on all meshes: the layout of a value does not change who sends it. E464 otherwise.
fn same_cuts(on_meshes: &[OnMesh]) -> Result<()> {
    let ends = |on: &OnMesh| on.cut.edges.iter().map(|e| (e.from, e.to)).collect::<Vec<_>>();
    if on_meshes.windows(2).all(|pair| ends(&pair[0]) == ends(&pair[1])) {
        return Ok(());
    }
    Err(Diagnostic::new("E464", "the stages exchange different values on different slices")
        .at("pipeline_split")
        .help("this is a bug in partita; please report it"))
}

fn extend_new(notes: &mut Vec<Note>, more: &[Note]) {
    for note in more {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
}
