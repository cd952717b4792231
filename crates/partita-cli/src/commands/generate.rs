//! `partita generate`: text from a saved run.

use crate::command::{Application, Command, item};
use crate::commands::saved::Source;
use crate::output::Output;
use crate::output::events::Sample;
use crate::run::{Ending, answer};
use clap::Args;
use partita::sample::{Decoder, Sampler, render};
use partita_base::{Diagnostic, Result};
use std::path::PathBuf;

/// Flags of `generate`.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct GenerateArgs {
    /// The folder of a run or of one of its checkpoints; or a config, for a checkpoint named by --from.
    #[arg(value_name = "RUN|CONFIG")]
    pub source: String,
    /// The folder of a run or of a checkpoint with the parameters; by default RUN, or the newest run of the config's model.
    #[arg(long, value_name = "RUN")]
    pub from: Option<PathBuf>,
    /// The text to continue.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// The number of tokens to generate; a token is a byte.
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tokens: u32,
    /// Divides the logits: below 1 makes likely tokens likelier; 0 always takes the likeliest.
    #[arg(long, value_name = "T", default_value_t = 0.8, value_parser = temperature)]
    pub temperature: f64,
    /// Draw from this many of the likeliest tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    pub top_k: usize,
    /// Seed of the draws.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// The mesh, for instance tp=2; by default one rank.
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<String>,
    /// Set any key of the config: train.kernels=portable.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

impl GenerateArgs {
    /// The overrides these flags stand for: `--set` last.
    pub fn overrides(&self) -> Vec<String> {
        let mesh = self.mesh.clone().map(|mesh| item("mesh.shape", mesh));
        mesh.into_iter().chain(self.set.iter().cloned()).collect()
    }
}

/// A temperature of `generate`.
fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(temperature) if temperature.is_finite() && temperature >= 0.0 => Ok(temperature),
        _ => Err("expected a finite number of at least 0".to_string()),
    }
}

impl Command for GenerateArgs {
    const NAME: &'static str = "generate";
    const ABOUT: &'static str = "Continue a text with a saved run";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        generate(self, output)?;
        Ok(Ending::Done)
    }
}

/// Runs the command.
///
/// # Errors
/// E011 for a model that does not generate text, E311 to E314 for a checkpoint that is not there or does not fit, E424 if
/// no logit is finite.
fn generate(args: &GenerateArgs, output: &mut Output) -> Result<()> {
    let source = Source::open(&args.source, args.from.as_deref(), &args.overrides())?;
    let session = &source.session;
    session.check_runs_here()?;
    let saved = source.saved()?;
    let decoder = output.during("lowering the model", || match args.mesh {
        Some(_) => Decoder::new(session),
        None => Decoder::alone(session),
    })?;
    let mut decoder = decoder.ok_or_else(|| {
        let name = session.config().model.name();
        Diagnostic::new("E011", format!("a model of kind `{name}` does not generate text"))
            .at(args.source.clone())
            .expected("a model that scores the next token, such as gpt or llama")
            .found(name)
    })?;
    let at = |error: Box<Diagnostic>| error.at(saved.path.display().to_string());
    decoder.restore(&saved.checkpoint()?).map_err(at)?;
    let sampler = Sampler { temperature: args.temperature, top_k: args.top_k, seed: args.seed };
    let prompt = args.prompt.as_bytes();
    let text = output.during("generating", || decoder.generate(&sampler, prompt, args.tokens as usize))?;
    let sample = Sample { prompt: render(prompt), text: render(&text) };
    answer(&sample, |sample| format!("{}{}", sample.prompt, sample.text), output);
    Ok(())
}
