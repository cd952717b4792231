//! `partita train`: verify, train, validate, sample, save, summarise.

use crate::cli::TrainArgs;
use crate::commands::launch;
use crate::commands::verify::{Guard, refused_to_train, verification_batch, verify_watched};
use crate::compile::{self, Build};
use crate::config::Config;
use crate::feeds;
use crate::interrupt::Interrupt;
use crate::one_device;
use crate::output::Output;
use crate::output::events::{Stopped, Summary};
use crate::play::{self, CpuStep};
use crate::run::Ending;
use crate::sample::{self, Sampler};
use crate::trainer::Trainer;
use crate::training::{Finished, Progress, Training, Validator, default_dir, find_checkpoint};
use partita_base::{Diagnostic, Result};
use partita_ir::graph_edit;
use partita_nn::ModelConfig;
use partita_runtime::{Runner, RunnerOptions, TrainLoop};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What the first Ctrl-C is answered with.
const STOPPING: &str = "stopping: the step at hand is completed and saved; once more ends at once";

/// Runs the command.
pub fn train(args: &TrainArgs, config: &Config, output: &mut Output) -> Result<Ending> {
    let interrupt = Interrupt::catch();
    if let Err(error) = &interrupt {
        output.note(format!("Ctrl-C will end this run without a checkpoint: {error}"));
    }
    let mesh = compile::mesh(config)?;
    compile::runs_here(&mesh)?;
    let feed = output.during("reading the data", || feeds::feed(config))?;
    let build = Build::from_config(config);
    let model = compile::model(config, &build)?;
    output.note(format!(
        "{} with {} parameters on mesh {mesh}, {} of {} rows a step",
        config.model.name(),
        model.parameter_count(),
        config.train.dtype,
        config.train.batch
    ));
    output.note(feed.describe());

    let options = RunnerOptions {
        cpu: config.cpu()?,
        workers: args.workers,
        memory: config.train.memory_limit,
        deterministic: args.deterministic,
        ..RunnerOptions::default()
    };
    options.check()?;
    let options = launch::share(options, mesh.rank_count())?;
    // What is wrong with the checkpoint or the folder is said before the verification, which takes a while.
    let checkpoint = args.resume.as_ref().map(|path| find_checkpoint(config, path.as_deref())).transpose()?;
    let resumed = checkpoint.as_ref().map(|(path, checkpoint)| (path.clone(), checkpoint.step));
    let planned = output.during("planning the step", || compile::plan_step(config, &model, &mesh, &build))?;
    for note in compile::notes(config, &model, &planned, &build) {
        output.note(note);
    }
    let trainer = output.during("lowering the step", || {
        Trainer::uninitialized(&planned, config.train.seed, options.clone())
    })?;
    let mut training = Training::new(trainer, config, feed.as_ref(), checkpoint)?;
    if let Some((path, step)) = &resumed {
        output.note(format!("resumed {} after step {step}", path.display()));
        if training.first_batch() != *step {
            output
                .note(format!("the data goes on at step {} of this batch size", training.first_batch() + 1));
        }
    } else if let Some(folder) = training.folder()
        && config.checkpoint.dir.is_none()
        && folder != default_dir(config)
    {
        output.note(format!(
            "checkpoints go to {}: another run uses {}",
            folder.display(),
            default_dir(config).display()
        ));
    }

    let mut verify_ok = None;
    if !args.no_verify {
        let rows = verification_batch(config, &mesh);
        let (guard, runner) = (Guard::new(config, output, false), CpuStep { options: options.clone() });
        let verified = verify_watched(config, rows, &runner, args.break_rule.clone(), &guard)?;
        drop(guard);
        output.verify(&verified.report);
        if !verified.report.ok {
            output.error(&refused_to_train());
            return Ok(Ending::CheckFailed);
        }
        verify_ok = Some(verified.report.ok);
    }
    if resumed.is_none() {
        training.trainer.initialize(&model, config.train.seed)?;
    }
    note_slow_ops(training.trainer.player.runner(), output);
    let mut validator = output
        .during("lowering the validation", || Validator::new(config, &planned.plan, options.clone()))?;

    output.begin(training.first() + 1, config.train.steps);
    let announcer = output.announcer();
    let mut run = |stop: &AtomicBool| {
        training.run(&mut validator, stop, &mut |progress| match progress {
            Progress::Step(step) => output.step(&step),
            Progress::Validation(validation) => output.validation(&validation),
            Progress::Note(note) => output.note(note),
        })
    };
    let finished = match &interrupt {
        Ok(interrupt) => interrupt.defer(|| announcer(STOPPING), run),
        Err(_) => run(&AtomicBool::new(false)),
    }?;
    output.end();
    if finished.is_stopped {
        output.stopped(&Stopped {
            step: finished.done,
            checkpoint: finished.saved.map(|(_, path)| path.display().to_string()),
            resume: training.folder().unwrap_or(&default_dir(config)).display().to_string(),
        });
        return Ok(Ending::Stopped);
    }

    if config.train.sample_bytes > 0 {
        print_sample(config, &training.trainer.player, options.clone(), output)?;
    }
    let Finished { done, last, validation_loss, saved, duration, .. } = finished;
    let steps = done - training.first();
    // Two of them would be more memory than the run was planned with.
    drop((training, validator));
    let one_device = match mesh.rank_count() > 1 && steps > 0 {
        true => one_device::tokens_per_s(config, &model, feed.as_ref(), options, mean(duration, steps))?,
        false => None,
    };
    let baselines = feed.baselines(config.train.validate_batches);
    let seconds = duration.as_secs_f64().max(1e-9);
    output.summary(&Summary {
        steps: done,
        loss: last.map(|r| r.loss),
        validation_loss,
        model_nats: baselines.and(validation_loss),
        bigram_nats: baselines.map(|b| b.bigram_nats),
        unigram_nats: baselines.map(|b| b.unigram_nats),
        tokens_per_s: steps as f64 * feed.tokens_per_batch() as f64 / seconds,
        tokens_per_s_one_device: one_device,
        seconds,
        checkpoint: saved.map(|(_, path)| path.display().to_string()),
        verify_ok,
        peak_bytes_planned: last.map_or(0, |r| r.peak_bytes_planned as u64),
        peak_bytes_used: last.map(|r| r.peak_bytes_used as u64),
    });
    Ok(Ending::Done)
}

fn mean(duration: Duration, steps: u64) -> Duration {
    duration.div_f64(steps as f64)
}

/// Tells which instructions have no kernel.
fn note_slow_ops(runner: &Runner, output: &mut Output) {
    let slow_ops = runner.slow_ops();
    if let Some(slow) = slow_ops.first() {
        output.note(format!(
            "{} of {} instructions run on the reference interpreter, slowly; most often {} in {}",
            slow_ops.iter().map(|op| op.count).sum::<usize>(),
            runner.programs().iter().map(|p| p.instructions.len()).sum::<usize>(),
            slow.op,
            slow.path
        ));
    }
}

/// What the model writes, on one rank, from the beginning of the held-out text's format: a new line.
fn print_sample(
    config: &Config,
    trainer: &TrainLoop,
    options: RunnerOptions,
    output: &mut Output,
) -> Result<()> {
    let sequence = match &config.model {
        ModelConfig::Gpt(model) => model.sequence,
        ModelConfig::Llama(model) => model.sequence,
        // No next byte to ask for.
        ModelConfig::Bert(_) | ModelConfig::Mlp(_) => return Ok(()),
    };
    let model = config.model.build(1, config.train.dtype, false)?;
    let mut forward = model.forward;
    let logits = forward
        .output_position("logits")
        .ok_or_else(|| Diagnostic::new("E011", "the model has no output `logits` to sample from"))?;
    forward.outputs = vec![forward.outputs[logits]];
    forward.output_names = vec!["logits".into()];
    let mut solo = play::solo(&graph_edit::prune(forward), config.train.seed, options)?;
    let checkpoint = trainer.checkpoint(Default::default())?;
    if !trainer.runner().world().is_first() {
        return Ok(());
    }
    for name in model.params.keys() {
        solo.set_tensor(name, &checkpoint.tensors[name])?;
    }
    let labels = vec![0i32; sequence];
    let mut scores = |tokens: &[i32]| -> Result<Vec<f32>> {
        let window = sample::window(tokens, sequence);
        if solo.runner().has_input(0, "labels") {
            let labels = partita_ir::Literal::new([1, sequence], labels.clone());
            solo.set_tensor("labels", &play::tensor_data(&labels))?;
        }
        solo.set_tensor("tokens", &play::tensor_data(&window))?;
        solo.runner_mut().step()?;
        let logits = play::literal(&solo.output("logits")?);
        Ok(sample::scores_at(&logits, tokens.len() - 1))
    };
    let prompt = b"fn ";
    let sampler = Sampler { seed: config.train.seed, ..Sampler::default() };
    let text = sample::generate(&sampler, prompt, config.train.sample_bytes, sequence, &mut scores)?;
    output.sample(prompt, &text);
    Ok(())
}
