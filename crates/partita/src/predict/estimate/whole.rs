//! The choices for a model without repeated layers: the programs of each step, over a clock.

use super::{Choice, Cost, Pricing, Strategy};
use crate::auto_plan::recomputed;
use crate::config::PlanConfig;
use crate::predict::small::not_folded;
use crate::predict::small_bytes::bytes;
use crate::price::Price;
use crate::session::{Session, has_loss};
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::{AxisRole, Mesh};
use partita_nn::{Optimizer, StepOptions};
use partita_schedule::{Entry, Primitive};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// A model whose steps are built whole.
pub(super) struct Whole {
    /// The session of one microbatch.
    session: Session,
    /// The batch of the model, if it has no other.
    batch: Option<usize>,
    /// The fewest and the most rows of a batch.
    bounds: [usize; 2],
    parameters: f64,
    recomputes: bool,
    /// Steps that were priced: strategies are the same on one device.
    known: Mutex<BTreeMap<String, Cost>>,
}

impl Whole {
    /// The model of a session, in mixed precision unless its element type is fixed.
    ///
    /// # Errors
    /// E511 for a step that is already differentiated or has no loss; what building the model says.
    pub fn of(session: &Session) -> Result<Whole> {
        let terms = session.config().model.terms();
        let batch = terms.rows.filter(|_| terms.are_rows_fixed);
        let bounds = terms.row_bounds.unwrap_or([1, usize::MAX]);
        let dtype = terms.dtype.unwrap_or(DType::F32);
        let narrow = (dtype == DType::F32).then(|| session.config().cluster.half());
        let session = session.clone().in_this_process().with_config(|config| {
            config.train.dtype = dtype;
            config.train.microbatches = 1;
            config.plan = PlanConfig::default();
            let step = config.step.clone();
            config.step = StepOptions { precision: narrow, loss_scaling: None, f8: None, ..step };
        });
        let model = session.clone().with_batch(batch.unwrap_or(bounds[0])).model()?;
        let refused = |found: &str| {
            Err(Diagnostic::new("E511", "the model is not trained by a step of its own")
                .at(session.config().model.name())
                .expected("a forward pass with a loss, to which `estimate` adds gradients and optimizers")
                .found(found)
                .help("`partita simulate` takes any step"))
        };
        if model.is_step() {
            return refused("a training step with its own update");
        }
        if !has_loss(&model) {
            return refused("a model without a loss; `model.loss` names one of its outputs");
        }
        Ok(Whole {
            batch,
            bounds,
            parameters: model.parameter_count() as f64,
            recomputes: !recomputed(&model.forward).is_empty(),
            session,
            known: Mutex::default(),
        })
    }

    /// The session of a choice on so many devices.
    fn on(&self, choice: &Choice, devices: usize, rows: usize) -> Session {
        let axis = match choice.strategy {
            _ if devices == 1 => AxisRole::Data,
            Strategy::DataParallel | Strategy::Zero(1 | 2) => AxisRole::Data,
            Strategy::Zero(_) => AxisRole::Parameters,
            Strategy::TensorParallel => AxisRole::Model,
        };
        let optimizer = match choice.optimizer {
            "adamw" => Optimizer::adamw(),
            "lion" => Optimizer::lion(),
            _ => Optimizer::sgd(),
        };
        let session = self.session.clone().with_config(|config| config.step.optimizer = optimizer);
        let session = session.with_mesh(Mesh::new("mesh", &[(axis.axis(), devices)]));
        session.with_batch(rows * choice.strategy.data_parallel(devices))
    }
}

impl Pricing for Whole {
    fn parameters(&self) -> Result<f64> {
        Ok(self.parameters)
    }

    fn batch(&self) -> Option<usize> {
        self.batch
    }

    fn bounds(&self) -> [usize; 2] {
        self.bounds
    }

    fn recomputes(&self) -> bool {
        self.recomputes
    }

    /// Each step is compiled, which takes the longer the more rows it has.
    fn most_rows(&self) -> usize {
        64
    }

    fn cost(&self, choice: &Choice, devices: usize, rows: usize) -> Result<Cost> {
        let session = self.on(choice, devices, rows);
        let model = session.model()?;
        let mut plan = session.plan(&model)?;
        let is_storage =
            |entry: &Entry| matches!(&entry.primitive, Primitive::Style(style) if style.is_storage());
        let shared = match choice.strategy {
            Strategy::Zero(1) => Some("zero1"),
            Strategy::Zero(2) => Some("zero2"),
            // The ready plan of a model says so itself.
            Strategy::Zero(_) if !plan.entries.iter().any(is_storage) => Some("fsdp"),
            _ => None,
        };
        let shared = shared.filter(|_| devices > 1);
        for style in shared.into_iter().chain(choice.offload.then_some("offload(optimizer)")) {
            plan.add("**", style, "estimate")?;
        }
        for modules in recomputed(&model.forward).iter().filter(|_| choice.recompute) {
            plan.add(modules, "checkpoint", "estimate")?;
        }
        let key = format!("{} {} {} {plan:?}", session.mesh(), rows, choice.optimizer);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cost) = known().get(&key) {
            return Ok(*cost);
        }
        let Price::Whole(whole) = session.price_of(&session.built_under(&model, &plan)?)? else {
            return Err(not_folded());
        };
        let (set, simulation) = *whole;
        let fullest = simulation.classes.iter().max_by_key(|class| class.memory.arena_bytes);
        let host_bytes = set.programs.iter().map(|program| program.host_bytes).max().unwrap_or(0);
        let cost = Cost {
            bytes: fullest.map(bytes).unwrap_or_default(),
            host_bytes: host_bytes as f64,
            step_s: simulation.step_s,
        };
        known().insert(key, cost);
        Ok(cost)
    }
}
