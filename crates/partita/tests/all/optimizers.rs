//! Optimizers that see whole tensors are exact on any mesh: the planned step equals the step of one device in f64.

use partita::config::Config;
use partita::execution::CpuStep;
use partita::prelude::*;
use partita::run_files::Saved;
use partita::trainer::StepDone;
use partita_schedule::verify::{Interpreter, StepRunner, Unwatched};
use std::sync::atomic::AtomicBool;

/// A small Llama in f64, without biases: no gradient is zero in exact arithmetic.
fn session(optimizer: &str, mesh: &str, more: &str) -> Session {
    let text = format!(
        "[model]\nkind = \"llama\"\nvocab = 32\ndim = 16\nheads = 4\nkv_heads = 2\nsequence = 8\n{more}\n\
         [optimizer]\nkind = \"{optimizer}\"\nclip_grad_norm = 1.0\n[mesh]\nshape = \"{mesh}\"\n"
    );
    let config = Config::from_table(text.parse().unwrap()).unwrap_or_else(|error| panic!("{text}{error}"));
    Session::new(config).unwrap_or_else(|error| panic!("{error}"))
}

const ONE_LAYER: &str = "layers = 1\nhidden = 24\n[train]\ndtype = \"f64\"\nbatch = 4";

/// Panics if any element of any tensor is beyond 1e-9 of the largest.
#[track_caller]
fn exact(optimizer: &str, mesh: &str, more: &str, runner: &dyn StepRunner) {
    let session = session(optimizer, mesh, more);
    let report = session.verify(4, runner, &Unwatched).unwrap_or_else(|error| panic!("{error}")).report;
    let worst = report.worst().expect("tensors were compared");
    assert!(report.ok, "{optimizer} {mesh}: {worst:?}, {:?}", report.first_diverging);
    for tensor in &report.tensors {
        assert!(tensor.rel_error < 1e-9 && tensor.excused == 0, "{optimizer} {mesh}: {tensor:?}");
    }
}

#[test]
fn every_mesh_computes_the_step_of_one_device() {
    for optimizer in ["adafactor", "lamb", "muon", "adam8bit"] {
        for mesh in ["dp=2", "tp=2", "fsdp=4", "dp=2,tp=2"] {
            exact(optimizer, mesh, ONE_LAYER, &Interpreter);
        }
    }
}

#[test]
fn shards_of_different_sizes_and_stages_change_nothing() {
    for optimizer in ["adafactor", "lamb", "muon", "adam8bit"] {
        let uneven = "layers = 1\nhidden = 40\n[train]\ndtype = \"f64\"\nbatch = 4";
        exact(optimizer, "fsdp=3", uneven, &Interpreter);
        let staged = "layers = 2\nhidden = 24\n[train]\ndtype = \"f64\"\nbatch = 4\nmicrobatches = 2";
        exact(optimizer, "pp=2", staged, &Interpreter);
    }
}

/// A projection of queries, keys and values is one tensor to such an optimizer, so it is not split into parts.
#[test]
fn a_fused_projection_stays_whole() {
    for optimizer in ["adafactor", "lamb", "muon"] {
        exact(optimizer, "tp=2", &format!("fused_qkv = true\n{ONE_LAYER}"), &Interpreter);
    }
}

#[test]
fn the_kernels_of_the_cpu_agree() {
    for optimizer in ["adafactor", "lamb", "muon", "adam8bit"] {
        exact(optimizer, "dp=2,tp=2", ONE_LAYER, &CpuStep::default());
    }
}

/// Codes of 8 bits, and biases of routers, are states like any other: saved, and read again to the bit.
#[test]
fn a_run_with_codes_and_biases_goes_on_from_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let session = |name: &str, steps: u64| {
        let dir = folder.path().join(name).display().to_string();
        let text = format!(
            "[model]\nkind = \"deepseek\"\ndim = 16\nheads = 2\nsequence = 8\nbias_rate = 0.25\n\
             [train]\nsteps = {steps}\nbatch = 4\nvalidate_batches = 1\n\
             [optimizer]\nkind = \"adam8bit\"\n[mesh]\nshape = \"ep=2\"\n[checkpoint]\ndir = {dir:?}\n"
        );
        Session::new(Config::from_table(text.parse().unwrap()).unwrap())
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let losses = |session: &Session, saved: Option<&Saved>| {
        let mut seen = Losses::default();
        Trainer::start(session, saved).unwrap().fit(&mut seen, &AtomicBool::new(false)).unwrap();
        seen.0
    };
    let whole = losses(&session("whole", 5), None);
    let first = losses(&session("part", 2), None);
    let saved = Saved::find(session("part", 2).config(), None).unwrap();
    let rest = losses(&session("part", 5), Some(&saved));
    assert_eq!([first, rest].concat(), whole);
}

/// The bits of the losses of a run.
#[derive(Default)]
struct Losses(Vec<u64>);

impl Observer for Losses {
    fn step(&mut self, step: &StepDone) {
        self.0.push(step.report.loss.to_bits());
    }
}
