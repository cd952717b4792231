//! The training driver as a library: observed, stopped, resumed, validated, saved, sampled.

use crate::session;
use partita::prelude::*;
use partita::run_files::Saved;
use partita::sample::Sampler;
use partita::trainer::StepDone;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps the losses, and asks for an end after so many steps.
#[derive(Default)]
struct Watching<'a> {
    losses: Vec<u64>,
    validations: Vec<(u64, f64)>,
    stop_after: Option<(u64, &'a AtomicBool)>,
}

impl Observer for Watching<'_> {
    fn step(&mut self, step: &StepDone) {
        self.losses.push(step.report.loss.to_bits());
        if let Some((after, stop)) = self.stop_after
            && step.step == after
        {
            stop.store(true, Ordering::SeqCst);
        }
    }

    fn validation(&mut self, step: u64, loss: f64) {
        self.validations.push((step, loss));
    }
}

const TINY: &[&str] = &[
    "model.dim=16",
    "model.heads=2",
    "model.layers=1",
    "model.sequence=8",
    "train.batch=4",
    "train.steps=6",
    "train.validate_batches=2",
    "mesh.shape=tp=2",
];

#[test]
fn a_run_that_is_stopped_and_resumed_has_the_bits_of_one_that_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let within = |name: &str| format!("checkpoint.dir={}", folder.path().join(name).display());
    let (whole, part) = (within("whole"), within("part"));
    let never = AtomicBool::new(false);

    let session_whole = session("gpt", &[TINY, &[&whole]].concat());
    let mut seen = Watching::default();
    let mut trainer = Trainer::start(&session_whole, None).unwrap_or_else(|error| panic!("{error}"));
    let finished = trainer.fit(&mut seen, &never).unwrap();
    assert_eq!((finished.done, finished.is_stopped, seen.losses.len()), (6, false, 6));
    assert_eq!(seen.validations, [(6, finished.validation_loss.unwrap())]);
    // Nothing is left to train, and validating again gives the same loss.
    assert_eq!(trainer.fit(&mut seen, &never).unwrap().done, 6);
    assert_eq!(trainer.validate(2).unwrap(), finished.validation_loss);
    assert_ne!(trainer.validate(1).unwrap(), finished.validation_loss);

    let session_part = session("gpt", &[TINY, &[&part]].concat());
    let stop = AtomicBool::new(false);
    let mut first = Watching { stop_after: Some((2, &stop)), ..Watching::default() };
    let mut trainer = Trainer::start(&session_part, None).unwrap();
    let stopped = trainer.fit(&mut first, &stop).unwrap();
    assert_eq!((stopped.done, stopped.is_stopped), (2, true));
    drop(trainer);
    let saved = Saved::find(session_part.config(), None).unwrap();
    assert_eq!(saved.step(), 2);
    let mut rest = Watching::default();
    let resumed = Trainer::start(&session_part, Some(&saved)).unwrap().fit(&mut rest, &never).unwrap();
    assert_eq!([first.losses, rest.losses].concat(), seen.losses);
    assert_eq!(resumed.validation_loss, finished.validation_loss);

    // The config beside the checkpoint is that of the run.
    let config = saved.config(&ModelKinds::bundled(), &[]).unwrap();
    assert_eq!((config.train.steps, config.mesh.as_str()), (6, "tp=2"));
}

#[test]
fn samples_are_a_function_of_the_seed_and_only_decoders_give_one() {
    let folder = tempfile::tempdir().unwrap();
    let dir = format!("checkpoint.dir={}", folder.path().join("run").display());
    let session = session("gpt", &[TINY, &[&dir, "train.steps=1"]].concat());
    let mut trainer = Trainer::start(&session, None).unwrap();
    trainer.fit(&mut Unobserved, &AtomicBool::new(false)).unwrap();
    let sample = |seed| {
        let sampler = Sampler { seed, ..Sampler::default() };
        trainer.sample(b"fn ", 12, &sampler).unwrap().expect("a decoder")
    };
    assert_eq!((sample(1).len(), sample(1)), (12, sample(1)));
    assert_ne!(sample(1), sample(2));

    for (name, items) in [("bert", TINY), ("mlp", &["train.batch=4"][..])] {
        let dir = format!("checkpoint.dir={}", folder.path().join(name).display());
        let vocab: &[&str] = if name == "bert" { &["model.vocab=257"] } else { &[] };
        let session = crate::session(name, &[items, vocab, &[&dir]].concat());
        let trainer = Trainer::start(&session, None).unwrap();
        assert_eq!(trainer.sample(b"fn ", 12, &Sampler::default()).unwrap(), None, "{name}");
    }
}

/// Infer from a checkpoint: the state that was trained, and not the initial one.
#[test]
fn a_checkpoint_gives_the_parameters_of_a_forward_run() {
    let folder = tempfile::tempdir().unwrap();
    let dir = format!("checkpoint.dir={}", folder.path().join("run").display());
    let trained = session("gpt", &[TINY, &[&dir, "model.dropout=0", "model.fused_qkv=true"]].concat());
    let mut trainer = Trainer::start(&trained, None).unwrap();
    trainer.fit(&mut Unobserved, &AtomicBool::new(false)).unwrap();
    let saved = Saved::find(trained.config(), None).unwrap();
    let fed = trained.feed(&trained.model().unwrap()).unwrap().validation(0).unwrap();
    let loss = |session: &Session, saved: Option<&Saved>| {
        session.infer(saved.map(|saved| saved.checkpoint().unwrap()).as_ref(), &fed).unwrap()["loss"].to_f64()
            [0]
    };
    let validated = trainer.validate(1).unwrap().unwrap();
    for mesh in ["mesh.shape=tp=2", "mesh.shape=dp=2", "mesh.shape=pp=1"] {
        let session = session("gpt", &[TINY, &["model.fused_qkv=true", mesh]].concat());
        let found = loss(&session, Some(&saved));
        assert!((found - validated).abs() < 1e-5, "{mesh}: {found} and {validated}");
        assert!((loss(&session, None) - validated).abs() > 1e-3, "{mesh}: the initial parameters");
    }
    let other = session("gpt", &[TINY, &["model.dim=32"]].concat());
    let error = other.infer(Some(&saved.checkpoint().unwrap()), &fed).unwrap_err();
    assert_eq!(error.code, "E314");
}
