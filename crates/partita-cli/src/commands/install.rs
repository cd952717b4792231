//! `partita completions` and `partita man`: what a shell and `man` need to know of the command line.

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::output::Output;
use partita_base::{Diagnostic, Result};

/// Prints the completions of a shell.
pub fn completions(args: &CompletionsArgs, output: &mut Output) {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command_line(), "partita", &mut text);
    output.text(String::from_utf8_lossy(&text).into_owned());
}

/// Writes a page for the command and each of its subcommands.
///
/// # Errors
/// E043 if the folder cannot be written.
pub fn man(args: &ManArgs, output: &mut Output) -> Result<()> {
    let unwritable = |error: std::io::Error| {
        Diagnostic::new("E043", "the manual cannot be written")
            .at(args.folder.display().to_string())
            .expected("a folder that can be written")
            .found(error.to_string())
    };
    std::fs::create_dir_all(&args.folder).map_err(unwritable)?;
    clap_mangen::generate_to(Cli::command_line(), &args.folder).map_err(unwritable)?;
    output.note(format!("the manual is in {0}: `man {0}/partita.1` shows it", args.folder.display()));
    Ok(())
}
