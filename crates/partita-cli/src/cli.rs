//! From the words of a command line to a command with its arguments, and what is wrong with the words.

use crate::command::{Application, Call};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, FromArgMatches};
use partita_base::Diagnostic;
use std::ffi::OsString;

/// A command line that was read.
pub struct Cli {
    /// The command.
    pub command: Box<dyn Call>,
    /// Whether one JSON object per line is printed on standard output.
    pub json: bool,
}

/// Train models on a mesh of devices, from code written for one device and a plan that says what is sharded.
#[derive(Args)]
#[command(
    version,
    propagate_version = true,
    after_help = AFTER_HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Options {
    /// Print one JSON object per line on standard output.
    #[arg(long, global = true)]
    json: bool,
}

const AFTER_HELP: &str = "CONFIG is a TOML file, a file with a model (.pt2, .mlir), one of mlp, gpt, llama, bert, moe-gpt, mixtral, deepseek, wide-resnet, vit, unet, t5, or a model by name, such as \
    gpt3-13b.\n\
    Exit codes: 0 done, 1 the check failed, 2 bad input or a failed run, 130 stopped by Ctrl-C.";

impl Application {
    /// The commands as clap reads them, with all their arguments.
    pub fn definition(&self) -> clap::Command {
        let commands = self.commands.iter().map(|row| row.definition(self));
        Options::augment_args(clap::Command::new("partita").subcommands(commands))
    }

    /// As [`Application::definition`], for help: without the flags that a command refuses.
    pub fn command_line(&self) -> clap::Command {
        self.commands.iter().fold(self.definition(), |commands, row| {
            row.unread_flags().fold(commands, |commands, flag| {
                commands
                    .mut_subcommand(row.name, |command| command.mut_arg(flag, |argument| argument.hide(true)))
            })
        })
    }

    /// The command of these arguments, the name of the program first.
    ///
    /// # Errors
    /// Those of clap, and what it calls so: help and version.
    pub fn read<T>(&self, arguments: impl IntoIterator<Item = T>) -> Result<Cli, clap::Error>
    where
        T: Into<OsString> + Clone,
    {
        let matches = self.command_line().try_get_matches_from(arguments)?;
        let Options { json } = Options::from_arg_matches(&matches)?;
        let (name, arguments) = matches.subcommand().expect("clap asks for a command");
        let row = self.commands.iter().find(|row| row.name == name).expect("clap knows the rows alone");
        Ok(Cli { command: (row.read)(arguments)?, json })
    }
}

/// The error of a command line; `Err` returns what is no error, such as `--help`.
pub fn usage_error(error: clap::Error) -> Result<Box<Diagnostic>, clap::Error> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(error);
    }
    let text = error.render().to_string();
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let head = lines.next().unwrap_or_default().trim_start_matches("error: ").to_string();
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    let mut diagnostic = Diagnostic::new("E033", head);
    diagnostic.at = context(ContextKind::InvalidArg);
    diagnostic.expected = context(ContextKind::ValidValue).or(context(ContextKind::ValidSubcommand));
    diagnostic.found = context(ContextKind::InvalidValue).or(context(ContextKind::InvalidSubcommand));
    let mut help = None;
    for line in lines {
        match line.trim() {
            line if line.starts_with("tip: ") => help = Some(line.trim_start_matches("tip: ").to_string()),
            line if line.starts_with("Usage: ") => diagnostic.notes.push(line.to_string()),
            // The names of missing arguments, one per line.
            line if line.starts_with(['<', '-']) => diagnostic.notes.push(line.to_string()),
            _ => {}
        }
    }
    if let Some((_, new)) = RENAMED.iter().find(|(old, _)| diagnostic.at.as_deref() == Some(*old)) {
        help = Some(new.to_string());
    }
    diagnostic.help = help.or(Some("`partita COMMAND --help` lists all flags of a command".to_string()));
    Ok(instead_of_torch(&diagnostic).unwrap_or(diagnostic))
}

/// Flags that have other names now.
const RENAMED: [(&str, &str); 3] = [
    ("--portable", "`--kernels portable`, or `--kernels avx2` or `avx512`: faster, to the same bits"),
    ("--kept", "it is called `--activation-budgets`"),
    ("--rows", "`simulate --validate FILE.csv` predicts a table of measured runs"),
];

/// What to use instead of `--engine torch` and `--for torch`.
fn instead_of_torch(usage: &Diagnostic) -> Option<Box<Diagnostic>> {
    let flag = usage.at.as_deref()?.split(' ').next()?;
    let (asked, other) = match flag {
        "--engine" => ("train", "`--engine native` or `--engine xla` here"),
        "--for" => ("export", "`--for xla` here"),
        _ => return None,
    };
    let expected = usage.expected.as_deref().filter(|_| usage.found.as_deref() == Some("torch"))?;
    let error = Diagnostic::new("E060", format!("`partita {asked}` has no models for PyTorch"));
    let instead = "use `partita.torch.apply` on a module of your own, from Python (python/docs/torch.md)";
    Some(error.at(flag).expected(expected).found("torch").help(format!("{instead}, or {other}")))
}
