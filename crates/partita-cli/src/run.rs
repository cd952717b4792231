//! What commands share: how they end, the session of a config, and printing a result.

use crate::interrupt;
use crate::output::Output;
use crate::output::events::Event;
use partita::config::Config;
use partita::session::Session;
use partita_base::Result;

/// How a command ended whose input was valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It is done.
    Done,
    /// It is done, and the check failed.
    CheckFailed,
    /// It stopped early, because it was asked to.
    Stopped,
    /// It failed, and has reported why.
    Failed,
}

impl Ending {
    /// The exit code of the process.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Done => 0,
            Ending::CheckFailed => 1,
            Ending::Failed => 2,
            Ending::Stopped => interrupt::EXIT_CODE,
        }
    }
}

/// The session of a config; notes of the config go to standard error.
pub fn session(config: &str, overrides: Vec<String>, output: &mut Output) -> Result<Session> {
    let config = Config::load(config, &overrides)?;
    for note in &config.notes {
        output.waiting(note);
    }
    Session::new(config)
}

/// Prints a result: as an event with `--json`, as text without.
pub fn answer<E: Event>(result: &E, text: impl FnOnce(&E) -> String, output: &mut Output) {
    output.emit(result);
    if !output.is_json() {
        output.text(text(result));
    }
}
