//! `partita completions`: what a shell needs to know of the command line.

use crate::command::{Application, Command};
use crate::output::Output;
use crate::run::Ending;
use clap::Args;
use clap_complete::Shell;
use partita_base::Result;

/// Flags of `completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

impl Command for CompletionsArgs {
    const NAME: &'static str = "completions";
    const ABOUT: &'static str = "Print the completions of this command for a shell";

    fn run(&self, application: &Application, output: &mut Output) -> Result<Ending> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut application.command_line(), "partita", &mut text);
        output.text(String::from_utf8_lossy(&text).into_owned());
        Ok(Ending::Done)
    }
}
