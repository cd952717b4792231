//! What a planned step costs: seconds and bytes, computed in one way for all commands.
//!
//! Programs of a small step run whole over a clock ([`partita_simulate`]). A large step is folded: the programs of two small
//! ones like it run over a clock, and it is unfolded from them ([`crate::predict::unfold`]). Which of the two depends on the
//! model, the mesh and the microbatches, never on the plan; both agree, so that prices can be compared.

use crate::auto_plan::Freedom;
use crate::predict::fold::job_of;
use crate::predict::small::check_stages;
use crate::predict::step::{Forecast, Job};
use crate::predict::unfold::{self, SmallSteps};
use crate::session::{Session, part_of};
use partita_base::Result;
use partita_cost::{Cluster, Fill};
use partita_nn::Model;
use partita_program::ProgramSet;
use partita_schedule::{Built, Plan};
use partita_simulate::{ClassRun, Simulation, simulate};

/// Layers times microbatches beyond which a step is folded.
pub(crate) const MOST_LAYERS: usize = 64;
/// Ranks beyond which a step is folded.
const MOST_RANKS: usize = 64;
/// Layers times ranks beyond which a step is folded. A search prices hundreds of meshes of so many ranks, with seconds for
/// each whole step. Models of few layers stay whole: their embedding and head weigh as much as the layers, and folding would
/// mislead the search.
const MOST_LAYERS_OF_RANKS: usize = 256;
/// Layers times the square of their features beyond which a step is folded: a twelfth of the parameters of a transformer.
/// Every expert counts as a layer, and so does each block of an encoder and a decoder.
const MOST_ELEMENTS: usize = 1 << 25;

/// A priced step.
#[derive(Debug)]
pub enum Price {
    /// The programs, and their step over a clock.
    Whole(Box<(ProgramSet, Simulation)>),
    /// The forecast from small steps.
    Folded(Box<Forecast>),
}

impl Price {
    /// Seconds of a step.
    pub fn step_s(&self) -> f64 {
        match self {
            Price::Whole(whole) => whole.1.step_s,
            Price::Folded(folded) => folded.seconds.step_s,
        }
    }

    /// Bytes of host memory of the rank of a cluster with the least room there. Of a folded step they are not known.
    pub fn host(&self, cluster: &Cluster) -> Fill {
        match self {
            Price::Whole(whole) => {
                let (set, simulation) = &**whole;
                let fill = |class: &ClassRun| {
                    let device = cluster.device_of(class.ranks.first().copied().unwrap_or(0));
                    Fill::new(set.programs[class.program].host_bytes as u64, device.host_bytes)
                };
                Fill::fullest(simulation.classes.iter().map(fill))
            }
            Price::Folded(_) => Fill::new(0, cluster.host_bytes()),
        }
    }

    /// Bytes of the rank with the least room.
    pub fn bytes(&self) -> u64 {
        self.fullest().bytes
    }

    /// Bytes of the rank with the least room, and what its device holds.
    pub fn fullest(&self) -> Fill {
        match self {
            Price::Whole(whole) => whole.1.fullest(),
            Price::Folded(folded) => folded.fill(),
        }
    }
}

impl Session {
    /// Whether the step is folded to price it: its programs would be large, and a layer like any other.
    pub fn is_folded(&self) -> bool {
        let Some([layers, _, features]) = self.config().model.stream() else { return false };
        if check_stages(self).is_err() {
            return false;
        }
        let experts = self.config().model.experts().map_or(1, |experts| experts.count.max(1));
        let blocks = self.blocks();
        let squares = layers.saturating_mul(experts).max(blocks);
        self.is_long()
            || blocks.saturating_mul(self.mesh().rank_count()) > MOST_LAYERS_OF_RANKS
            || squares.saturating_mul(features).saturating_mul(features) > MOST_ELEMENTS
    }

    /// Whether the step has many layers, counted for each microbatch, or many ranks.
    pub(crate) fn is_long(&self) -> bool {
        self.blocks() * self.config().train.microbatches > MOST_LAYERS
            || self.mesh().rank_count() > MOST_RANKS
    }

    /// The repeated blocks of the model; each of an encoder and of a decoder counts.
    fn blocks(&self) -> usize {
        let model = &self.config().model;
        model.stream().map_or(1, |[layers, ..]| layers) * model.period()
    }

    /// The price of the step under the plan of the config.
    ///
    /// # Errors
    /// What building and lowering refuse; of a folded step E511, and E474 for a mesh that the cluster does not hold.
    pub fn price(&self) -> Result<Price> {
        if !self.is_folded() {
            return self.price_of(&self.build()?);
        }
        self.price_folded(self.searched_folded_plan()?.as_ref())
    }

    /// The plan of a folded step, if it is to be searched for; none is that of the config.
    ///
    /// # Errors
    /// What the search refuses.
    pub(crate) fn searched_folded_plan(&self) -> Result<Option<Plan>> {
        if !self.searches_plan() {
            return Ok(None);
        }
        let mesh = std::slice::from_ref(self.mesh());
        Ok(Some(self.auto_plan_over(None, mesh, Freedom::default(), &|_| {})?.best.plan))
    }

    /// The price of a built step, whole.
    ///
    /// # Errors
    /// What lowering refuses.
    pub fn price_of(&self, built: &Built) -> Result<Price> {
        let set = self.lower(built)?;
        let simulation = simulate(&set, &self.config().cluster)?;
        Ok(Price::Whole(Box::new((set, simulation))))
    }

    /// The price of a folded step under a plan of the whole model; none is the plan of the config.
    ///
    /// # Errors
    /// Those of [`unfold::forecast`].
    pub fn price_folded(&self, plan: Option<&Plan>) -> Result<Price> {
        Ok(Price::Folded(Box::new(unfold::forecast(self, plan)?)))
    }

    /// As [`Session::price_folded`], with the small steps of other prices of the same model and config.
    pub(crate) fn price_folded_with(&self, plan: &Plan, small: &SmallSteps) -> Result<Price> {
        Ok(Price::Folded(Box::new(unfold::forecast_with(self, Some(plan), small)?)))
    }

    /// The job of the folded step under a plan.
    pub(crate) fn job_under(&self, plan: &Plan) -> Result<Job> {
        job_of(self, Some(plan.clone()))
    }

    /// The step of a model under a plan as a run builds it; of a model without a loss, its outputs.
    pub(crate) fn built_under(&self, model: &Model, plan: &Plan) -> Result<Built> {
        self.build_part(model, plan, part_of(model))
    }
}
