//! `partita generate`: text from a saved run.

use crate::cli::GenerateArgs;
use crate::commands::saved::Source;
use crate::output::Output;
use crate::output::events::Sample;
use crate::run::answer;
use partita::sample::{Decoder, Sampler, render};
use partita_base::{Diagnostic, Result};

/// Runs the command.
///
/// # Errors
/// E011 for a model that does not generate text, E311 to E314 for a checkpoint that is not there or does not fit, E424 if
/// no logit is finite.
pub fn generate(args: &GenerateArgs, output: &mut Output) -> Result<()> {
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
