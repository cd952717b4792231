//! Steps that arrive differentiated, such as a training step of JAX: microbatches and stages first, then the passes of any
//! other step.

use super::{BuildOptions, Built, Unplaced, open_without_kernels, place};
use crate::differentiated::Differentiated;
use crate::pipeline::Pipeline;
use crate::plan::Plan;
use crate::verify::StepRunner;
use partita_base::Result;
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_pipeline::mark::{by_scopes, without_scopes};

/// A step that arrives differentiated, or any other program in text, planned for `mesh`: see [`Differentiated`]. Its stages
/// end where the scopes of its ops say so, see [`by_scopes`]. Of its outputs the step returns those that `is_returned`.
/// Neither optimizer nor gradients are those of `options`: they are part of the program.
///
/// # Errors
/// Those of [`Differentiated::microbatched`] and [`by_scopes`], and what the plan and the mesh refuse.
pub fn build_differentiated(
    step: &Graph,
    known: &Differentiated,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
    is_returned: &dyn Fn(usize) -> bool,
) -> Result<Built> {
    place(
        &unplaced_differentiated(step, known, mesh, options, runner, is_returned)?,
        plan,
        mesh,
        options,
        runner,
    )
}

/// The step of [`build_differentiated`] with the layouts that a plan requests, before propagation: what a planner searches.
/// Slices of a pipeline have a step each.
///
/// # Errors
/// Those of [`build_differentiated`].
pub fn annotated_differentiated(
    step: &Graph,
    known: &Differentiated,
    plan: &Plan,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
    is_returned: &dyn Fn(usize) -> bool,
) -> Result<Vec<(Mesh, Graph)>> {
    unplaced_differentiated(step, known, mesh, options, runner, is_returned)?.annotated(plan, options)
}

fn unplaced_differentiated(
    step: &Graph,
    known: &Differentiated,
    mesh: &Mesh,
    options: &BuildOptions,
    runner: &dyn StepRunner,
    is_returned: &dyn Fn(usize) -> bool,
) -> Result<Unplaced> {
    let pipeline = Pipeline::of(&[], false, mesh, &options.timetable)?;
    let stages = pipeline.slice_of_stage.len();
    let mut graph = if known.gradients.is_empty() && stages == 1 && options.microbatches == 1 {
        known.named(step)?
    } else {
        known.microbatched(step, options.microbatches, &|forward| by_scopes(forward, stages))?
    };
    for node in &mut graph.nodes {
        node.path = without_scopes(&node.path);
    }
    let graph = open_without_kernels(&graph, runner)?;
    let names = graph.output_names.iter().enumerate();
    let spoken_of = names.filter(|(place, _)| !is_returned(*place)).map(|(_, name)| name.clone()).collect();
    Ok(Unplaced { graph, pieces: Vec::new(), spoken_of, microbatches: options.microbatches, pipeline })
}
