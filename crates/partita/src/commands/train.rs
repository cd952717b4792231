//! `partita train`: verify, train, validate, sample, save, summarise.

use crate::cli::TrainArgs;
use crate::commands::verify::{Guard, refused_to_train, verification_batch, verify_watched};
use crate::compile::{self, Build};
use crate::config::Config;
use crate::feeds::{self, Fed, Feed};
use crate::output::Output;
use crate::output::events::{Step, Summary, Validation};
use crate::play::{self, CpuStep};
use crate::sample::{self, Sampler};
use crate::trainer::Trainer;
use partita_base::{Diagnostic, Result};
use partita_ir::{Registry, Role, graph_edit};
use partita_nn::ModelConfig;
use partita_runtime::checkpoint::{self, FileStorage};
use partita_runtime::{Cpu, Products, RunnerOptions, TrainLoop};
use partita_schedule::{Tools, build_evaluation};
use partita_spmd::Pieces;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where checkpoints go when nobody says.
const DEFAULT_DIR: &str = "runs";

/// Runs the command. `false`: verification found a difference, and nothing was trained.
pub fn train(args: &TrainArgs, config: &Config, output: &mut Output) -> Result<bool> {
    let mesh = compile::mesh(config)?;
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
        cpu: Cpu { products: Products::new(args.portable), ..Cpu::default() },
        workers: args.workers,
        memory: config.train.memory_limit,
        deterministic: args.deterministic,
        ..RunnerOptions::default()
    };
    options.check()?;
    let planned = output.during("planning the step", || compile::plan_step(config, &model, &mesh, &build))?;
    for note in compile::notes(config, &model, &planned, &build) {
        output.note(note);
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
            return Ok(false);
        }
        verify_ok = Some(verified.report.ok);
    }

    let mut trainer = output
        .during("lowering the step", || Trainer::new(&planned, &model, config.train.seed, options.clone()))?;
    let runner = trainer.player.runner();
    if let Some(slow) = runner.slow_ops().first() {
        output.note(format!(
            "{} of {} instructions run on the reference interpreter, slowly; most often {} in {}",
            runner.slow_ops().iter().map(|op| op.count).sum::<usize>(),
            runner.programs().programs.iter().map(|p| p.instructions.len()).sum::<usize>(),
            slow.op,
            slow.path
        ));
    }
    let dir =
        config.checkpoint.dir.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DIR).join(config.model.name()));
    let first = match &args.resume {
        None => 0,
        Some(path) => resume(&mut trainer.player, feed.as_ref(), path.as_deref().unwrap_or(&dir), output)?,
    };
    if config.train.steps > first {
        prepare_folder(&dir)?;
    }
    let mut validator = Validator::new(config, &planned.plan, options.clone())?;

    let mut saved = None;
    let mut last = None;
    let mut validation_loss = None;
    let began = Instant::now();
    let mut seconds_validating = 0.0;
    output.begin(first + 1, config.train.steps);
    for step in first..config.train.steps {
        let batch = feed.batch(step)?;
        let rate = config.schedule.at(step + 1);
        let report = trainer.step(&batch, rate)?;
        let done = step + 1;
        output.step(&Step {
            step: done,
            loss: report.loss,
            grad_norm: report.grad_norm,
            tokens_per_s: report.tokens_per_s,
            peak_bytes_planned: report.peak_bytes_planned as u64,
            peak_bytes_used: Some(report.peak_bytes_used as u64),
            learning_rate: rate,
        });
        last = Some(report);
        let every = |period: u64| period > 0 && done.is_multiple_of(period);
        let is_last = done == config.train.steps;
        if is_last || every(config.train.validate_every) {
            let pause = Instant::now();
            if let Some(loss) =
                validator.loss(&trainer.player, feed.as_ref(), config.train.validate_batches)?
            {
                output.validation(&Validation { step: done, loss });
                validation_loss = Some(loss);
            }
            seconds_validating += pause.elapsed().as_secs_f64();
        }
        if is_last || every(config.checkpoint.every) {
            let checkpoint = trainer.player.checkpoint(metadata(config, feed.as_ref(), done))?;
            saved = Some(checkpoint::save(&FileStorage, &dir, &checkpoint, config.checkpoint.keep)?);
        }
    }
    output.end();
    let seconds = (began.elapsed().as_secs_f64() - seconds_validating).max(1e-9);
    if let Some(path) = &saved {
        let resolved = toml::to_string(&config.resolved).expect("a table prints");
        // The checkpoint is complete without it: a failure here must not undo the run.
        if let Err(error) = std::fs::write(path.join("config.toml"), resolved) {
            output.note(format!("could not write config.toml beside the checkpoint: {error}"));
        }
    }
    if config.train.sample_bytes > 0 {
        print_sample(config, &trainer.player, options, output)?;
    }
    let baselines = feed.baselines(config.train.validate_batches);
    let steps_run = config.train.steps.saturating_sub(first);
    output.summary(&Summary {
        steps: config.train.steps.max(first),
        loss: last.map(|r| r.loss),
        validation_loss,
        model_nats: baselines.and(validation_loss),
        bigram_nats: baselines.map(|b| b.bigram_nats),
        unigram_nats: baselines.map(|b| b.unigram_nats),
        tokens_per_s: steps_run as f64 * feed.tokens_per_batch() as f64 / seconds,
        seconds,
        checkpoint: saved.map(|path| path.display().to_string()),
        verify_ok,
        peak_bytes_planned: last.map_or(0, |r| r.peak_bytes_planned as u64),
        peak_bytes_used: last.map(|r| r.peak_bytes_used as u64),
    });
    Ok(verify_ok != Some(false))
}

/// Creates the checkpoint folder, so that a run that could not be saved does not begin. E315.
fn prepare_folder(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| {
        Diagnostic::new("E315", "the checkpoint folder cannot be created")
            .at(dir.display().to_string())
            .found(error.to_string())
            .help("name another one with --checkpoint-dir, or check the permissions")
    })
}

/// Restores a checkpoint; returns the steps done.
fn resume(trainer: &mut TrainLoop, feed: &dyn Feed, path: &Path, output: &mut Output) -> Result<u64> {
    let checkpoint = checkpoint::load(path)?;
    trainer.restore(&checkpoint)?;
    let step = feed.resume(&checkpoint.meta)?;
    output.note(format!("resumed {} after step {}", path.display(), checkpoint.step));
    if step != checkpoint.step {
        output.note(format!("the data goes on at step {} of this batch size", step + 1));
    }
    Ok(checkpoint.step)
}

fn metadata(config: &Config, feed: &dyn Feed, steps: u64) -> std::collections::BTreeMap<String, String> {
    let mut meta = feed.position(steps);
    meta.insert("model".into(), config.model.name().into());
    meta.insert("mesh".into(), config.mesh.clone());
    meta.insert("seed".into(), config.train.seed.to_string());
    meta.insert("optimizer".into(), config.step.optimizer.name().into());
    meta
}

/// The loss without dropout on what is held out, on the same mesh and plan.
struct Validator {
    player: TrainLoop,
    pieces: Vec<Pieces>,
    parameters: Vec<String>,
}

impl Validator {
    fn new(config: &Config, plan: &partita_schedule::Plan, options: RunnerOptions) -> Result<Validator> {
        let mesh = compile::mesh(config)?;
        let model = config.model.build(config.train.batch, config.train.dtype, true)?;
        let build_options = compile::build_options(config, &Build::from_config(config));
        let runner = CpuStep { options: options.clone() };
        let tools = Tools { registry: &Registry::default(), runner: &runner };
        let placed = build_evaluation(&model, plan, &mesh, &build_options, &tools)?;
        let parameters = placed
            .step
            .inputs
            .iter()
            .filter(|&&v| placed.step.value(v).role == Role::Param)
            .map(|&v| placed.step.value(v).name.clone())
            .collect();
        let player =
            play::player(&placed.partitioned, &placed.classes, &placed.pieces, config.train.seed, options)?;
        Ok(Validator { player, pieces: placed.pieces, parameters })
    }

    /// The mean over up to `batches` held-out batches; `None` where nothing is held out.
    fn loss(&mut self, trainer: &TrainLoop, feed: &dyn Feed, batches: u64) -> Result<Option<f64>> {
        debug_assert!(self.pieces.iter().all(|p| !self.parameters.contains(&p.name)));
        for name in &self.parameters {
            self.player.set_tensor(name, &trainer.tensor(name)?)?;
        }
        let batches = batches.min(feed.validation_batches());
        let mut sum = 0.0;
        for index in 0..batches {
            let batch: Fed = feed.validation(index)?;
            sum += play::with_batch(&batch, |batch| self.player.step(batch, 0.0))?.loss;
        }
        Ok((batches > 0).then(|| sum / batches as f64))
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
