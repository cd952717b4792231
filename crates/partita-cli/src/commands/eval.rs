//! `partita eval`: the loss of a saved run on its validation data, on any mesh.

use crate::command::{Application, Command, ConfigFlags, Unread, of_run};
use crate::commands::saved::Source;
use crate::output::Output;
use crate::output::events::Event;
use crate::output::format::number;
use crate::run::{Ending, answer};
use clap::Args;
use partita::validator::Validator;
use partita_base::{Diagnostic, Result};
use serde::Serialize;
use std::path::PathBuf;

/// Flags of `eval`.
#[derive(Args, Clone, Debug)]
pub struct EvalArgs {
    /// The folder of a run or of one of its checkpoints; or a config, for a checkpoint named by --from.
    #[arg(value_name = "RUN|CONFIG")]
    pub source: String,
    /// The folder of a run or of a checkpoint with the parameters; by default RUN, or the newest run of the config's model.
    #[arg(long, value_name = "RUN")]
    pub from: Option<PathBuf>,
    /// Validation batches; by default train.validate_batches.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub batches: Option<u64>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
}

impl Command for EvalArgs {
    const NAME: &'static str = "eval";
    const ABOUT: &'static str = "Compute the loss of a saved run on its validation data, on any mesh";
    const UNREAD: Unread = of_run(&[
        ("train.steps", "the checkpoint says how many steps it has"),
        ("train.verify_limit", "nothing is verified"),
    ]);

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, Self::UNREAD))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        eval(self, output)?;
        Ok(Ending::Done)
    }
}

/// The loss of a checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f64,
    /// The validation batches of that mean.
    pub batches: u64,
    /// Rows of a batch.
    pub rows: usize,
    /// The mesh.
    pub mesh: String,
    /// The checkpoint.
    pub checkpoint: String,
    /// Steps before the checkpoint.
    pub step: u64,
    /// The loss of counting bytes, in nats per byte; `None` without text.
    pub unigram_nats: Option<f64>,
    /// The loss of counting pairs of bytes.
    pub bigram_nats: Option<f64>,
}

impl Event for Evaluation {
    const NAME: &'static str = "evaluation";
}

/// Runs the command.
///
/// # Errors
/// E303 if no data is held out, E311 to E314 for a checkpoint that is not there or does not fit, and what the config
/// refuses.
fn eval(args: &EvalArgs, output: &mut Output) -> Result<()> {
    let source = Source::open(&args.source, args.from.as_deref(), &args.flags.overrides()?)?;
    let session = &source.session;
    session.check_runs_here()?;
    let saved = source.saved()?;
    let model = session.model()?;
    let feed = output.during("reading the data", || session.feed(&model))?;
    let (asked, held_out) =
        (args.batches.unwrap_or(session.config().train.validate_batches), feed.validation_batches());
    let batches = asked.min(held_out);
    if batches < asked && args.batches.is_some() && batches > 0 {
        output.note(format!(
            "the data has {held_out} validation batches, not {asked}: all of them are evaluated"
        ));
    }
    let mut validator = output
        .during("lowering the validation", || Validator::new(session, &model, &session.plan(&model)?))?;
    let at = |error: Box<Diagnostic>| error.at(saved.path.display().to_string());
    validator.restore(&saved.checkpoint()?).map_err(at)?;
    let loss = output.during("evaluating", || validator.loss(feed.as_ref(), batches, &|| Ok(false)))?;
    let loss = loss.ok_or_else(|| {
        Diagnostic::new("E303", "no data is held out for validation")
            .help("set `data.validation_fraction` above 0")
    })?;
    let baselines = feed.baselines(batches);
    let evaluation = Evaluation {
        loss,
        batches,
        rows: session.config().train.batch,
        mesh: session.mesh().to_string(),
        checkpoint: saved.path.display().to_string(),
        step: saved.step(),
        unigram_nats: baselines.map(|baselines| baselines.unigram_nats),
        bigram_nats: baselines.map(|baselines| baselines.bigram_nats),
    };
    answer(&evaluation, Evaluation::text, output);
    Ok(())
}

impl Evaluation {
    /// The result for people.
    pub fn text(&self) -> String {
        let nats = |value: f64| format!("{value:.4} nats/byte");
        let loss = if self.bigram_nats.is_some() { nats(self.loss) } else { number(self.loss) };
        let mut rows = vec![
            ("validation loss", loss),
            ("data", format!("{} batches of {} rows", self.batches, self.rows)),
            ("checkpoint", format!("{}, after step {}", self.checkpoint, self.step)),
            ("mesh", self.mesh.clone()),
        ];
        rows.extend(self.bigram_nats.map(|value| ("bigram counts", nats(value))));
        rows.extend(self.unigram_nats.map(|value| ("unigram counts", nats(value))));
        rows.iter().map(|(label, value)| format!("{label:<16} {value}\n")).collect()
    }
}
