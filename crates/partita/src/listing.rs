//! A large step for a listing: its layouts, plan and stages, without its programs.
//!
//! Layouts, lines of a plan and the cuts of a pipeline do not depend on the number of microbatches: they are read off the
//! same step with two of them. Its timetable has all of them, and its bytes are those of the folded step
//! ([`crate::predict::unfold`]), as `partita simulate` predicts them.

use crate::predict::unfold::{LargeStep, SmallSteps, unfolded};
use crate::session::Session;
use crate::stage_table::{StageRow, stage_table};
use partita_base::Result;
use partita_nn::Model;
use partita_schedule::{Built, PIPELINE_AXIS};

/// Microbatches of the step whose layouts are listed: with one alone, the stages of a pipeline would never overlap.
const FEW: usize = 2;

/// A large step for a listing.
pub struct Listing {
    /// The session of the step with few microbatches.
    pub session: Session,
    /// Its model.
    pub model: Model,
    /// The step with few microbatches.
    pub built: Built,
    /// The whole step in terms of its slices.
    pub large: LargeStep,
}

impl Session {
    /// The step for a listing, if it is large: it is folded to price it, and has many layers and microbatches, or many
    /// ranks. `None` also where it cannot be folded, as under a plan that lists slices.
    ///
    /// # Errors
    /// What the search for a plan, building and lowering refuse.
    pub fn listing(&self) -> Result<Option<Listing>> {
        if !self.is_folded() || !self.is_long() {
            return Ok(None);
        }
        let plan = self.searched_folded_plan()?;
        let large = match unfolded(self, plan.as_ref(), &SmallSteps::default()) {
            // What cannot be unfolded is listed whole.
            Err(error) if error.code == "E511" => return Ok(None),
            large => large?,
        };
        let train = &self.config().train;
        let few = train.microbatches.min(FEW);
        if train.timetable.timetable(self.mesh().slices(PIPELINE_AXIS).len(), few).is_err() {
            return Ok(None);
        }
        let rows = train.batch / train.microbatches.max(1) * few;
        let session = self.clone().with_batch(rows).with_microbatches(few);
        let model = session.model()?;
        let built = match plan {
            None => session.build_model(&model)?,
            Some(plan) => session.built_under(&model, &plan)?,
        };
        Ok(Some(Listing { session, model, built, large }))
    }
}

impl Listing {
    /// The stages of the whole step; see [`stage_table`].
    pub fn stages(&self) -> Vec<StageRow> {
        let times =
            self.large.timetable.microbatches as f64 / self.session.config().train.microbatches as f64;
        let mut rows = stage_table(&self.built);
        for (slice, row) in rows.iter_mut().enumerate() {
            row.forward_flops *= times;
            row.in_flight = self.large.timetable.peak(slice);
        }
        rows
    }
}
