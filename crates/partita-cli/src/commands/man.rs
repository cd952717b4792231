//! `partita man`: the manual of the command line.

use crate::command::{Application, Command};
use crate::output::Output;
use crate::run::Ending;
use clap::Args;
use partita_base::{Diagnostic, Result};
use std::path::PathBuf;

/// Flags of `man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The folder for the pages, such as ~/.local/share/man/man1.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

impl Command for ManArgs {
    const NAME: &'static str = "man";
    const ABOUT: &'static str = "Write the manual, a page for each command";

    /// Writes a page for the command line and one for each command; E043 if the folder cannot be written.
    fn run(&self, application: &Application, output: &mut Output) -> Result<Ending> {
        let unwritable = |error: std::io::Error| {
            Diagnostic::new("E043", "the manual cannot be written")
                .at(self.folder.display().to_string())
                .expected("a folder that can be written")
                .found(error.to_string())
        };
        std::fs::create_dir_all(&self.folder).map_err(unwritable)?;
        clap_mangen::generate_to(application.command_line(), &self.folder).map_err(unwritable)?;
        output.note(format!("the manual is in {0}: `man {0}/partita.1` shows it", self.folder.display()));
        Ok(Ending::Done)
    }
}
