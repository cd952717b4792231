//! Errors of the library that no command can cause.

use partita::prelude::*;

#[test]
fn a_step_refuses_a_batch_without_an_input() {
    let model = ModelConfig::Mlp(MlpConfig::default()).build(8, DType::F32, true).unwrap();
    let schedule = Schedule::new(&model, &Mesh::parse("dp=2", None).unwrap()).unwrap().on(CpuStep::default());
    let mut planned =
        PlannedStep::new(&schedule.build().unwrap(), &model, 0, RunnerOptions::default()).unwrap();
    let mut batch = random_feed(&model, 1, 0.0);
    let error = planned.step(&Fed::new(), 0.01).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), ("E430", "the batch has no `inputs`, no `targets`"));
    let targets = batch.shift_remove("targets").unwrap();
    let error = planned.step(&batch, 0.01).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), ("E430", "the batch has no `targets`"));
    assert_eq!(error.expected.as_deref(), Some("inputs: f32[8, 8], targets: f32[8, 4]"));
    batch.insert("targets".to_string(), targets);
    assert_eq!(planned.step(&batch, 0.01).unwrap().step, 1);
}
