//! `native`: the CPU device, on threads of this process or of the processes of `partita launch` on one host.

use super::{Engine, EngineState, EngineTrainer, Recorder, TrainingRun};
use crate::one_device;
use crate::profile::{Cycle, Recording};
use crate::sample::Sampler;
use crate::trainer::{Finished, Observer, Trainer};
use partita_base::Result;
use partita_runtime::Runner;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The engine `native`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Native;

impl Engine for Native {
    fn name(&self) -> &'static str {
        "native"
    }

    fn about(&self) -> &'static str {
        "the CPU cores of this host"
    }

    fn state(&self) -> EngineState {
        EngineState {
            name: self.name(),
            ready: true,
            about: "CPU cores of this host, also in processes of `partita launch`".to_string(),
            plugins: Vec::new(),
        }
    }

    fn trainer(&self, run: &TrainingRun, observer: &mut dyn Observer) -> Result<Box<dyn EngineTrainer>> {
        trainer(run, observer)
    }

    fn one_device_tokens_per_s(&self, run: &TrainingRun, step: Duration) -> Result<Option<f64>> {
        one_device::tokens_per_s(run.session, run.model, run.feed.as_ref(), step)
    }
}

/// A run on the CPU device.
pub(super) fn trainer(run: &TrainingRun, observer: &mut dyn Observer) -> Result<Box<dyn EngineTrainer>> {
    observer.begins("planning the step");
    let built = run.session.build_model(run.model)?;
    for note in run.session.notes(run.model, &built) {
        observer.note(&note);
    }
    observer.begins("lowering the step");
    let trainer = Trainer::new(run.session, run.model.clone(), &built, run.feed.clone(), run.resumed)?;
    Ok(Box::new(trainer))
}

impl EngineTrainer for Trainer {
    fn first(&self) -> u64 {
        Trainer::first(self)
    }

    fn first_batch(&self) -> u64 {
        Trainer::first_batch(self)
    }

    fn folder(&self) -> Option<&Path> {
        Trainer::folder(self)
    }

    fn changes(&self) -> &[String] {
        Trainer::changes(self)
    }

    fn recorder(&mut self) -> Option<&mut dyn Recorder> {
        Some(self)
    }

    fn prepare(&mut self, observer: &mut dyn Observer) -> Result<()> {
        self.initialize()?;
        if let Some(note) = slow_ops(self.step().train_loop.runner()) {
            observer.note(&note);
        }
        observer.begins("lowering the validation");
        self.prepare_validation()
    }

    fn can_stop(&self) -> bool {
        true
    }

    fn fit(&mut self, observer: &mut dyn Observer, stop: &AtomicBool) -> Result<Finished> {
        Trainer::fit(self, observer, stop)
    }

    fn sample(&self, prompt: &[u8], count: usize, sampler: &Sampler) -> Result<Option<Vec<u8>>> {
        Trainer::sample(self, prompt, count, sampler)
    }
}

impl Recorder for Trainer {
    fn profile(&mut self, cycle: Cycle) {
        Trainer::profile(self, cycle);
    }

    fn take_recording(&mut self) -> Result<Option<Recording>> {
        Trainer::take_recording(self)
    }

    fn record(&mut self, is_on: bool) {
        Trainer::record(self, is_on);
    }
}

/// Names the instructions without a kernel, if there are any.
fn slow_ops(runner: &Runner) -> Option<String> {
    let slow_ops = runner.slow_ops();
    let slow = slow_ops.first()?;
    Some(format!(
        "{} of {} instructions run on the reference interpreter, slowly; most often {} in {}",
        slow_ops.iter().map(|op| op.count).sum::<usize>(),
        runner.programs().iter().map(|p| p.instructions.len()).sum::<usize>(),
        slow.op,
        slow.path
    ))
}
