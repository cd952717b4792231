//! Options that a command does not read: they are refused by name, so that none is ignored silently.
//!
//! Every command that takes a CONFIG has the flags of [`ConfigFlags`], each of which sets a key. A command lists the keys
//! (or whole sections) that cannot change its answer; a flag that sets one of them is an error. `--set` sets keys of the
//! config of a run, as its file does, and a command about a run may need only a part of them; it is refused where no run is
//! meant at all. The help of a command leaves out the flags that it never reads.

use super::ConfigFlags;
use partita_base::{Diagnostic, Result};

/// What a command does not read.
#[derive(Clone, Copy, Debug)]
pub struct Unread {
    /// Keys, or sections, and why they do not matter; the empty key means all of them.
    keys: &'static [(&'static str, &'static str)],
    /// Whether the command is about a run.
    is_of_run: bool,
}

/// Of a command about a run.
pub const fn of_run(keys: &'static [(&'static str, &'static str)]) -> Unread {
    Unread { keys, is_of_run: true }
}

/// Of a command, or of some arguments of it, that means no run.
pub const fn of_no_run(keys: &'static [(&'static str, &'static str)]) -> Unread {
    Unread { keys, is_of_run: false }
}

/// Of commands about one planned step.
pub const OF_A_STEP: Unread = of_run(&[
    ("data", "no data is read"),
    ("train.seed", "no random number is drawn"),
    ("train.verify_limit", "nothing is verified"),
]);

impl Unread {
    /// A command that reads all keys, or has no config.
    pub const NOTHING: Unread = of_run(&[]);

    /// Why this key does not matter; `None` if it does.
    pub fn reason(&self, key: &str) -> Option<&'static str> {
        let is_within = |section: &str| {
            let rest = key.strip_prefix(section);
            section.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.keys.iter().find(|(section, _)| is_within(section)).map(|(_, why)| *why)
    }
}

impl ConfigFlags {
    /// E033 for an option that sets one of these keys.
    pub(crate) fn refuse(&self, command: &str, unread: Unread) -> Result<()> {
        for (flag, item) in self.given()? {
            if flag == "--set" && unread.is_of_run {
                continue;
            }
            let key = item.split('=').next().unwrap_or_default();
            if let Some(why) = unread.reason(key) {
                return Err(Diagnostic::new("E033", format!("`partita {command}` does not read `{flag}`"))
                    .at(flag)
                    .expected(format!("options that can change its answer; `{key}` cannot: {why}"))
                    .found(item.clone())
                    .help("leave it out"));
            }
        }
        Ok(())
    }
}
