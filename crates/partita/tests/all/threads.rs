//! Several threads for one rank: the same bits, in the memory planned.

use partita::prelude::*;
use partita_schedule::{BuildContext, BuildOptions, BuildRequest, ReadyOptions, ready_plan};

/// Losses and gradient norms of a few steps on so many threads for each rank; with none, on one thread for all.
fn steps(shape: &str, threads: usize) -> Vec<(u64, Option<u64>)> {
    let config = GptConfig {
        vocab: 96,
        dim: 64,
        layers: 2,
        heads: 4,
        sequence: 64,
        dropout: 0.1,
        ..GptConfig::default()
    };
    let model = ModelConfig::Gpt(config).build(6, DType::F32, true).unwrap();
    let mesh = Mesh::parse(shape, None).unwrap();
    let ranks = mesh.rank_count();
    let plan = ready_plan("gpt", &model.forward, &mesh, &ReadyOptions::default()).unwrap();
    let all = (threads * ranks).max(1);
    let options =
        RunnerOptions { workers: Some(all), deterministic: threads == 0, ..RunnerOptions::default() };
    let step = StepOptions { clip_grad_norm: Some(1.0), ..StepOptions::new(Optimizer::adamw()) };
    let context = BuildContext { registry: &Registry::default(), runner: &CpuStep::default() };
    let built = BuildRequest::new(&model, &plan, &mesh, &BuildOptions::new(step), context).build().unwrap();
    let mut planned = PlannedStep::new(&built, &model, 3, options).unwrap();
    assert_eq!(planned.train_loop.runner().thread_count(), all);
    let reports: Vec<_> = (0..3)
        .map(|number| {
            let report = planned.step(&random_feed(&model, number, 0.0), 0.01).unwrap();
            (report.loss.to_bits(), report.grad_norm.map(f64::to_bits))
        })
        .collect();
    let runner = planned.train_loop.runner();
    assert_eq!(runner.peak_bytes_used(), runner.planned_bytes(), "{shape}, {threads} threads");
    reports
}

#[test]
fn threads_change_no_bit() {
    for shape in ["dp=1", "tp=2", "fsdp=2"] {
        let alone = steps(shape, 0);
        assert!(alone.windows(2).all(|pair| pair[0] != pair[1]), "it learns");
        // Where every thread has a core, workers help each other, with one thread for a rank too.
        for threads in 1..=4 {
            assert_eq!(steps(shape, threads), alone, "{shape}, {threads} threads");
        }
    }
}
