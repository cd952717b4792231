//! Common helpers of the schedule tests.

use partita_base::{DType, Result};
use partita_ir::Registry;
use partita_nn::modules::GELU;
use partita_nn::{Context, LayerNorm, Linear, Model, losses};
use partita_schedule::verify::Interpreter;
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, Built, Plan, Schedule};

/// A norm, two layers with a GELU between them, `[6, 4]` to `[6, 12]` and back, and a loss.
pub fn block() -> Model {
    let mut cx = Context::new("block", DType::F64, true);
    let mut build = || -> Result<Vec<_>> {
        let x = cx.input("inputs", DType::F64, &[6, 4]);
        let goal = cx.input("targets", DType::F64, &[6, 4]);
        let h = cx.call("norm", &LayerNorm::new(4), x)?;
        let h = cx.call("linear1", &Linear::new(4, 12), h)?;
        let h = cx.call("activation", &GELU::default(), h)?;
        let y = cx.call("linear2", &Linear::new(12, 4), h)?;
        Ok(vec![("loss".to_string(), losses::mse(&mut cx, y, goal)?), ("prediction".to_string(), y)])
    };
    let outputs = ok(build());
    cx.finish(outputs).unwrap()
}

/// The step of a schedule, also where a line of it or an axis of its mesh changes nothing.
pub fn unchecked(sch: &mut Schedule, model: &Model, registry: &Registry) -> Result<Built> {
    let (plan, options) = (sch.plan().clone(), sch.options().clone());
    build_as(&plan, sch, model, &options, registry)
}

/// The step of a model under a plan, on the mesh of a schedule.
pub fn build_as(
    plan: &Plan,
    sch: &Schedule,
    model: &Model,
    options: &BuildOptions,
    registry: &Registry,
) -> Result<Built> {
    BuildRequest::new(model, plan, sch.mesh(), options, BuildContext { registry, runner: &Interpreter })
        .build()
}

/// Unwraps a result that must be `Ok`.
pub fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}
