//! How fast one device is that has all the cores which the ranks of a mesh share.

use crate::feeds::Feed;
use crate::session::Session;
use partita_base::Result;
use partita_ir::Op;
use partita_mesh::Mesh;
use partita_nn::Model;
use partita_schedule::{Plan, StepKind};
use std::time::{Duration, Instant};

/// Steps that are measured after a first one, at most.
const MOST_STEPS: u64 = 20;
/// At least.
const FEWEST_STEPS: u64 = 2;
/// The time that measured steps may take together.
const BUDGET: Duration = Duration::from_millis(300);
/// A mesh whose steps take longer is not compared: building and trying another one would be felt.
const SLOW_STEP: Duration = Duration::from_millis(250);

/// Tokens per second (rows, for a model without tokens) of the session's step on one device without a plan, with the batch
/// and the threads of the mesh. `None` if `step`, the time of a step on the mesh, is too long for a comparison in passing,
/// and for a model with a part that is written for the ranks of its mesh.
///
/// # Errors
/// What building, lowering and running refuse.
pub fn tokens_per_s(
    session: &Session,
    model: &Model,
    feed: &dyn Feed,
    step: Duration,
) -> Result<Option<f64>> {
    let is_manual = model.forward.nodes.iter().any(|node| matches!(node.op, Op::ManualComputation(_)));
    if step > SLOW_STEP || is_manual {
        return Ok(None);
    }
    let session = session.clone().with_mesh(Mesh::new("one", &[("dp", 1)]));
    let config = session.config();
    let mut trained = session.prepare(&session.build_part(model, &Plan::default(), StepKind::Step)?)?;
    trained.initialize(model, config.train.seed)?;
    let mut timed = |index: u64| -> Result<Duration> {
        let batch = feed.batch(index)?;
        let begin = Instant::now();
        trained.step(&batch, config.schedule.at(index + 1))?;
        Ok(begin.elapsed())
    };
    // The first one brings memory in.
    timed(0)?;
    let (mut steps, mut spent) = (0, Duration::ZERO);
    while steps < FEWEST_STEPS || (steps < MOST_STEPS && spent < BUDGET) {
        steps += 1;
        spent += timed(steps)?;
    }
    Ok(Some(steps as f64 * feed.tokens_per_batch() as f64 / spent.as_secs_f64().max(1e-9)))
}
