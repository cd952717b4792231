//! `partita train --engine xla`: the step in a runner, with the lines and checkpoints of every engine.

use crate::cli::TrainArgs;
use crate::commands::launch;
use crate::commands::train::{Printing, verified};
use crate::metrics::Metrics;
use crate::output::Output;
use crate::output::events::Summary;
use crate::run::Ending;
use partita::run_files::Saved;
use partita::session::Session;
use partita::xla::trainer::XlaTrainer;
use partita_base::{Diagnostic, Result};

/// Verifies the plan on the CPU device, and trains under XLA.
pub fn train(args: &TrainArgs, session: &Session, output: &mut Output) -> Result<Ending> {
    if args.profile.is_some() {
        return Err(Diagnostic::new("E060", "the engine xla cannot run this: its ops are not recorded here")
            .at("--profile")
            .expected("a run without --profile, or the engine native or mpi")
            .help("leave --profile away, or profile the same plan with `partita profile`"));
    }
    let config = session.config();
    let resumed = match launch::restarted() {
        Some(path) => Some(Saved::at(&path)?),
        None => args.resume.as_ref().map(|path| Saved::find(config, path.as_deref())).transpose()?,
    };
    let resumed = resumed.map(|saved| saved.allowing_changes(args.resume_changed));
    let mut trainer = output.during("lowering the step", || XlaTrainer::new(session, resumed.as_ref()))?;
    launch::record(trainer.folder());
    let first = resumed.as_ref().map_or(0, Saved::step);
    if let Some(saved) = &resumed {
        saved.notes().iter().for_each(|note| output.note(note));
        output.note(format!("resumed {} after step {first}", saved.path.display()));
        trainer.changes().iter().for_each(|line| output.note(line));
    }
    let verify_ok = match verified(args, session, output)? {
        Some(false) => return Ok(Ending::CheckFailed),
        ok => ok,
    };
    // One process writes for all.
    let metrics = match trainer.folder() {
        Some(_) => Metrics::create(&args.metrics, args.tensorboard.as_deref())?,
        None => Metrics::default(),
    };
    output.begin(first + 1, config.train.steps);
    let finished = trainer.fit(&mut Printing { output: &mut *output, metrics })?;
    output.end();
    let model = session.model()?;
    let feed = session.feed(&model)?;
    let baselines = feed.baselines(config.train.validate_batches);
    let seconds = finished.duration.as_secs_f64();
    let steps = finished.done.saturating_sub(first);
    output.summary(&Summary {
        steps: finished.done,
        loss: finished.last.map(|report| report.loss),
        validation_loss: finished.validation_loss,
        model_nats: baselines.and(finished.validation_loss),
        bigram_nats: baselines.map(|b| b.bigram_nats),
        unigram_nats: baselines.map(|b| b.unigram_nats),
        tokens_per_s: steps as f64 * feed.tokens_per_batch() as f64 / seconds.max(1e-9),
        tokens_per_s_one_device: None,
        seconds,
        checkpoint: finished.saved.map(|(_, path)| path.display().to_string()),
        verify_ok,
        peak_bytes_planned: 0,
        peak_bytes_used: None,
    });
    Ok(Ending::Done)
}
