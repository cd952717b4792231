//! A model that PyTorch exported trains on ranks of which some hold nothing of a tensor that is indexed.

use partita::execution::CpuStep;
use partita::planned_step::PlannedStep;
use partita_base::Result;
use partita_import::{ImportOptions, Limits, Pt2, Weights};
use partita_mesh::Mesh;
use partita_nn::Optimizer;
use partita_runtime::RunnerOptions;
use partita_schedule::Schedule;
use partita_schedule::feed::Fed;
use std::path::Path;

#[test]
fn a_rank_without_rows_gathers_zeros() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2");
    let imported =
        Pt2::open(&folder.join("shapes.pt2"), &Limits::default())?.import(&ImportOptions::default())?;
    let recorded = Weights::open(&folder.join("shapes.safetensors"), &Limits::default())?;
    let batch: Fed = imported
        .inputs
        .keys()
        .map(|name| {
            let tensor = recorded.get(&format!("input.{name}")).expect("it is recorded");
            (name.clone(), tensor.literal().unwrap())
        })
        .collect();
    let sgd = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false };
    let mut adamw = Optimizer::adamw();
    if let Optimizer::AdamW { weight_decay, .. } = &mut adamw {
        *weight_decay = 0.1;
    }
    for (name, rule, rate) in [("sgd", sgd, 0.05), ("adamw", adamw, 0.01)] {
        let expected =
            recorded.get(&format!("steps.{name}")).expect("it is recorded").literal().unwrap().to_f64();
        let mut schedule =
            Schedule::new(&imported.model, &Mesh::parse("dp=2", None)?)?.on(CpuStep::default());
        schedule.options().step.optimizer = rule;
        let mut step = PlannedStep::new(&schedule.build()?, &imported.model, 0, RunnerOptions::default())?;
        for (parameter, tensor) in &imported.weights {
            step.set_parameter(parameter, &tensor.literal().unwrap())?;
        }
        assert!(expected[2].is_finite(), "{expected:?}");
        for (number, &expected) in expected.iter().enumerate() {
            // The loss grows beyond f32, in PyTorch too.
            if !expected.is_finite() {
                assert_eq!(step.step(&batch, rate).unwrap_err().code, "E412", "{name}, step {number}");
                break;
            }
            let loss = step.step(&batch, rate)?.loss;
            let apart = (loss - expected).abs();
            assert!(apart < 1e-3 * expected.abs() + 1e-4, "{name}, step {number}: {loss} and {expected}");
        }
    }
    Ok(())
}
