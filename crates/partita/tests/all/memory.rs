//! The memory that is predicted is the memory that a run allocates and uses, to the byte.

use crate::session;
use partita::price::Price;

/// Model, mesh, rows of the batch, microbatches, timetable, and further overrides.
const RUNS: [(&str, &str, usize, usize, &str, &[&str]); 24] = [
    ("mlp", "dp=1", 32, 1, "1f1b", &[]),
    ("mlp", "tp=2", 32, 2, "1f1b", &[]),
    ("mlp", "pp=2,dp=2", 31, 4, "gpipe", &[]),
    ("gpt", "dp=1", 8, 1, "1f1b", &[]),
    ("gpt", "dp=1", 8, 3, "1f1b", &["train.activation_limit=200K"]),
    ("gpt", "dp=2", 9, 2, "1f1b", &["plan.\"**\"=zero1"]),
    ("gpt", "tp=3", 6, 1, "1f1b", &[]),
    ("gpt", "fsdp=2", 6, 3, "1f1b", &[]),
    ("gpt", "pp=2,fsdp=2", 6, 3, "1f1b", &[]),
    ("gpt", "pp=2", 8, 4, "zb-h1", &[]),
    ("gpt", "pp=2", 8, 4, "gpipe", &["optimizer.clip_grad_norm=1.0"]),
    ("gpt", "dp=2,tp=2", 6, 1, "1f1b", &["train.precision='bf16'"]),
    ("gpt", "dp=2", 6, 1, "1f1b", &["train.precision='f16'"]),
    ("gpt", "dp=4", 6, 1, "1f1b", &["plan.\"layers.*\"=\"checkpoint()\""]),
    ("llama", "dp=1", 4, 1, "1f1b", &[]),
    ("llama", "tp=2", 4, 2, "1f1b", &["plan.sequence_parallel=true"]),
    ("llama", "pp=2,tp=2", 4, 2, "1f1b", &["plan.vocab_parallel=true"]),
    ("bert", "fsdp=4", 8, 1, "1f1b", &[]),
    ("bert", "pp=2,dp=2", 8, 4, "zb-h1", &[]),
    ("mixtral", "ep=2", 4, 1, "1f1b", &[]),
    ("mixtral", "dp=2", 4, 2, "1f1b", &[]),
    ("moe-gpt", "ep=2,tp=2", 4, 1, "1f1b", &[]),
    ("vit", "dp=2", 9, 3, "1f1b", &[]),
    ("vit", "pp=2,tp=2", 8, 4, "interleaved-1f1b", &["model.layers=4"]),
];

#[test]
fn predicted_bytes_are_those_that_a_run_allocates() {
    for (model, mesh, rows, microbatches, timetable, more) in RUNS {
        let mut overrides = vec![
            format!("mesh.shape='{mesh}'"),
            format!("train.batch={rows}"),
            format!("train.microbatches={microbatches}"),
            format!("train.timetable='{timetable}'"),
        ];
        overrides.extend(more.iter().map(|item| item.to_string()));
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let session = session(model, &overrides);
        let label = format!("{model} {overrides:?}");

        let Price::Whole(whole) = session.price().unwrap_or_else(|error| panic!("{label}: {error}")) else {
            panic!("{label} is not folded");
        };
        let mut predicted = vec![0; session.mesh().rank_count()];
        for class in &whole.1.classes {
            class.ranks.iter().for_each(|&rank| predicted[rank] = class.memory.arena_bytes);
        }

        let model = session.model().unwrap();
        let mut step = session.prepare(&session.build_model(&model).unwrap()).unwrap();
        step.initialize(&model, 0).unwrap();
        let batch = session.feed(&model).unwrap().batch(0).unwrap();
        step.step(&batch, 1e-3).unwrap_or_else(|error| panic!("{label}: {error}"));
        let runner = step.train_loop.runner();
        assert_eq!(predicted, runner.planned_bytes(), "{label}: allocated");
        assert_eq!(predicted, runner.peak_bytes_used(), "{label}: used");
    }
}

#[test]
fn on_other_clusters_bytes_do_not_depend_on_the_threads_of_this_machine() {
    let bytes = |cluster: &str, workers: usize| {
        let cluster = format!("cluster.name='{cluster}'");
        let of_run = ["mesh.shape='pp=2,fsdp=2'", "train.batch=6", "train.microbatches=3"];
        let session = session("gpt", &[&of_run[..], &[&cluster]].concat());
        let execution = partita::session::Execution { workers: Some(workers), ..Default::default() };
        session.with_execution(execution).unwrap().price().unwrap().bytes()
    };
    let (one, many) = (bytes("laptop", 1), bytes("laptop", 64));
    assert!(one < many, "each thread has scratch memory: {one} and {many}");
    assert_eq!(bytes("a100-8", 1), bytes("a100-8", 64));
}
