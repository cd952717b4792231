//! What is to be built: a model, its plan and mesh, and which part of the training step.

use crate::apply::ApplyOptions;
use crate::build::Built;
use crate::differentiated::Differentiated;
use crate::passes::{Building, Front, GROWING, PASSES, up_to};
use crate::plan::Plan;
use crate::structure::{BuildContext, Structured};
use partita_base::Result;
use partita_cost::Cluster;
use partita_ir::Graph;
use partita_ir::pass::{Pass, run_passes};
use partita_mesh::{AxisList, Mesh};
use partita_nn::{Model, StepOptions};
use partita_pipeline::Order;
use std::collections::BTreeMap;

/// The program of one device that is planned.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A model: the structural lines of the plan apply to its forward pass, which is differentiated.
    Model(&'a Model),
    /// A model to which the structural lines of the plan are applied already.
    Structured(&'a Structured),
    /// A step that arrives differentiated, such as one of JAX, or any other program in text. Neither optimizer nor
    /// gradients are those of the options: they are part of the program. Its stages end where the scopes of its ops say
    /// so, see [`by_scopes`](partita_pipeline::mark::by_scopes).
    Differentiated {
        /// The program.
        step: &'a Graph,
        /// What is known of it beside its text.
        known: &'a Differentiated,
        /// Whether the output at a position is returned.
        is_returned: &'a dyn Fn(usize) -> bool,
    },
}

impl<'a> From<&'a Model> for Source<'a> {
    fn from(model: &'a Model) -> Source<'a> {
        Source::Model(model)
    }
}

impl<'a> From<&'a Structured> for Source<'a> {
    fn from(structured: &'a Structured) -> Source<'a> {
        Source::Structured(structured)
    }
}

/// The part of a training step that is built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// The forward pass as training computes it. Its dropout has the masks that the gradients and the step have for the
    /// same seed and step.
    Forward,
    /// The loss alone, without dropout; of a model without a loss, all outputs. Every plan line that matches in the
    /// training step also matches here.
    Loss,
    /// All outputs of the model, without dropout.
    Outputs,
    /// Loss and gradients, without an update: outputs `loss` and `grad.<parameter>`. A model with inputs
    /// `cotangent.<output>`, whose loss is their inner product with its outputs, returns no loss.
    Gradients,
    /// Loss, gradients and update. A model that is a whole step already is not differentiated and gets no optimizer.
    Step,
}

impl StepKind {
    /// Whether it has a backward pass.
    pub fn has_gradients(self) -> bool {
        matches!(self, StepKind::Gradients | StepKind::Step)
    }

    /// Whether dropout is disabled.
    pub fn is_evaluation(self) -> bool {
        matches!(self, StepKind::Loss | StepKind::Outputs)
    }
}

/// Options of a build that are not in the plan.
#[derive(Clone, PartialEq, Debug)]
pub struct BuildOptions {
    /// Optimizer, clipping, whether gradients are returned.
    pub step: StepOptions,
    /// The number of microbatches per step.
    pub microbatches: usize,
    /// The rows of a batch, where they are known: see [`microbatch_of`](partita_spmd::microbatch_of).
    pub rows: Option<usize>,
    /// See [`ApplyOptions::sequence_parallel`].
    pub sequence_parallel: bool,
    /// Whether the step also returns the other outputs of the model beside its loss.
    pub output_predictions: bool,
    /// Whether the step also returns the gradient with respect to the first real input, `grad.<input>`.
    pub input_gradient: bool,
    /// Further inputs with a float type whose gradients the step returns, `grad.<input>`.
    pub input_gradients: Vec<String>,
    /// What links and devices cost.
    pub cluster: Cluster,
    /// Splits fixed by hand: see [`Options::fixed`](partita_spmd::Options::fixed).
    pub fixed: BTreeMap<String, Vec<AxisList>>,
    /// The order in which pipeline stages work.
    pub timetable: Order,
    /// For tests: see [`Options::break_rule_at`](partita_spmd::Options::break_rule_at).
    #[cfg(feature = "testing")]
    pub break_rule_at: Option<String>,
}

impl BuildOptions {
    /// Options for a step with one microbatch that returns its loss and the new state.
    pub fn new(step: StepOptions) -> BuildOptions {
        BuildOptions {
            step,
            microbatches: 1,
            rows: None,
            sequence_parallel: false,
            output_predictions: false,
            input_gradient: false,
            input_gradients: Vec::new(),
            cluster: Cluster::default(),
            fixed: BTreeMap::new(),
            timetable: Order::default(),
            #[cfg(feature = "testing")]
            break_rule_at: None,
        }
    }

    /// The options that [`apply`](crate::apply) needs.
    pub(crate) fn applying(&self) -> ApplyOptions {
        ApplyOptions { sequence_parallel: self.sequence_parallel }
    }

    /// Returns everything that can be compared: gradients and predictions.
    pub fn for_verification(mut self) -> BuildOptions {
        self.step.output_gradients = true;
        self.output_predictions = true;
        self
    }
}

/// What is to be built.
#[derive(Clone, Copy)]
pub struct BuildRequest<'a> {
    /// The program of one device.
    pub source: Source<'a>,
    /// How the mesh runs it.
    pub plan: &'a Plan,
    /// The mesh.
    pub mesh: &'a Mesh,
    /// The part of the step.
    pub part: StepKind,
    /// Everything else.
    pub options: &'a BuildOptions,
    /// The composites and the device that the plan may refer to.
    pub context: BuildContext<'a>,
}

impl<'a> BuildRequest<'a> {
    /// The whole training step of a program.
    pub fn new(
        source: impl Into<Source<'a>>,
        plan: &'a Plan,
        mesh: &'a Mesh,
        options: &'a BuildOptions,
        context: BuildContext<'a>,
    ) -> BuildRequest<'a> {
        BuildRequest { source: source.into(), plan, mesh, part: StepKind::Step, options, context }
    }

    /// Another part of the step.
    pub fn part(self, part: StepKind) -> BuildRequest<'a> {
        BuildRequest { part, ..self }
    }

    /// Whether the program is a model, and not one that arrives differentiated.
    pub(crate) fn is_model(&self) -> bool {
        !matches!(self.source, Source::Differentiated { .. })
    }

    /// Whether the program is a model that is a whole step already.
    pub(crate) fn is_step(&self) -> bool {
        match self.source {
            Source::Model(model) => model.is_step(),
            Source::Structured(structured) => structured.model.is_step(),
            Source::Differentiated { .. } => false,
        }
    }

    /// Whether the forward pass of a model is built, and everything else is derived from it. A model that is a whole step
    /// already has its gradients.
    pub(crate) fn is_forward(&self) -> bool {
        self.is_model() && !(self.is_step() && self.part.has_gradients())
    }

    /// The part of the step, planned for the mesh.
    ///
    /// # Errors
    /// What the plan and the passes refuse.
    pub fn build(&self) -> Result<Built> {
        self.build_watched(&mut |_, _| Ok(()))
    }

    /// As [`BuildRequest::build`]; `after` sees what each of the [`PASSES`] leaves.
    ///
    /// # Errors
    /// What the plan, the passes and `after` refuse.
    pub fn build_watched(
        &self,
        after: &mut dyn FnMut(&Pass<Front>, &Building) -> Result<()>,
    ) -> Result<Built> {
        self.run(PASSES, after)?.finish(self)
    }

    /// The step with the layouts that the plan requests, before propagation, on the mesh of each distinct slice of a
    /// pipeline: what a planner searches.
    ///
    /// # Errors
    /// What the plan and the passes refuse.
    pub fn annotated(&self) -> Result<Vec<(Mesh, Graph)>> {
        Ok(self.run(up_to("drop-outputs"), &mut |_, _| Ok(()))?.into_annotated())
    }

    /// Sends the program through those of these passes that it has to go through.
    pub(crate) fn run<'p>(
        &self,
        passes: impl IntoIterator<Item = &'p Pass<Front>>,
        after: &mut dyn FnMut(&Pass<Front>, &Building) -> Result<()>,
    ) -> Result<Building> {
        let runner = self.context.runner;
        run_passes(passes, Building::new(self), self, &mut |pass, building| {
            if GROWING.contains(&pass.name) {
                runner.at_stage(&format!("the pass `{}`", pass.name))?;
            }
            after(pass, building)
        })
    }
}
