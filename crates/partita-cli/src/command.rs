//! What a command is: a name, arguments, the keys that it does not read, and what it does.
//!
//! A command is a file in `commands/` with its arguments as a struct that implements [`Command`], and a row in
//! [`crate::commands::COMMANDS`]. Parsing, help, completions and the manual read the rows.

mod flags;
mod unread;

pub use flags::{ConfigFlags, item};
pub(crate) use flags::{KEYS, count_item, path_item};
pub use unread::{OF_A_STEP, Unread, of_no_run, of_run};

use crate::output::Output;
use crate::run::Ending;
use clap::ArgMatches;
use partita::engines::Engines;
use partita_base::Result;

/// A command, as the struct of its arguments.
pub trait Command: clap::Args {
    /// The name on the command line.
    const NAME: &'static str;
    /// What it does, for help: a sentence without its full stop.
    const ABOUT: &'static str;
    /// The keys of a config that can never change its answer. Its help leaves out the flags that set them.
    const UNREAD: Unread = Unread::NOTHING;

    /// Adds its arguments to a definition for clap. A command overrides it where choices depend on the application.
    fn arguments(command: clap::Command, application: &Application) -> clap::Command {
        let _ = application;
        Self::augment_args(command)
    }

    /// The flags that set keys of a config, and the keys that cannot change the answer to these arguments; `None` for a
    /// command that reads all keys, or has no config.
    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        None
    }

    /// Does it.
    ///
    /// # Errors
    /// What the config and the command refuse.
    fn run(&self, application: &Application, output: &mut Output) -> Result<Ending>;
}

/// What one program of this command line has.
#[derive(Clone, Debug)]
pub struct Application {
    /// The commands in the order of help.
    pub commands: &'static [Row],
    /// The engines that run plans.
    pub engines: Engines,
}

/// A command with the arguments that it was given.
pub trait Call {
    /// Does it, unless an option has no effect on it.
    ///
    /// # Errors
    /// E033 for an option that the command does not read; what the config and the command refuse.
    fn call(&self, application: &Application, output: &mut Output) -> Result<Ending>;
}

impl<C: Command> Call for C {
    fn call(&self, application: &Application, output: &mut Output) -> Result<Ending> {
        if let Some((flags, unread)) = self.flags() {
            flags.refuse(C::NAME, unread)?;
        }
        self.run(application, output)
    }
}

/// A command of the list.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name on the command line.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The keys of a config that it never reads.
    pub unread: Unread,
    /// Adds the arguments to a definition for clap.
    pub arguments: fn(clap::Command, &Application) -> clap::Command,
    /// Reads the arguments that clap found.
    pub read: fn(&ArgMatches) -> Result<Box<dyn Call>, clap::Error>,
}

/// The row of a command.
pub const fn row<C: Command + 'static>() -> Row {
    Row { name: C::NAME, about: C::ABOUT, unread: C::UNREAD, arguments: C::arguments, read: read::<C> }
}

fn read<C: Command + 'static>(matches: &ArgMatches) -> Result<Box<dyn Call>, clap::Error> {
    Ok(Box::new(C::from_arg_matches(matches)?))
}

impl Row {
    /// The command as clap reads it, with all its arguments.
    pub fn definition(&self, application: &Application) -> clap::Command {
        // The struct of the arguments has a text of its own about them.
        (self.arguments)(clap::Command::new(self.name), application).about(self.about).long_about(None)
    }

    /// The names of the flags that its help leaves out.
    pub fn unread_flags(&self) -> impl Iterator<Item = String> {
        let is_refused = |key: &str| self.unread.reason(key).is_some();
        let refused = KEYS.iter().filter(move |(_, key)| is_refused(key));
        refused.map(|(flag, _)| flag[2..].replace('-', "_"))
    }
}
