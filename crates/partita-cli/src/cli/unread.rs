//! Options that a command does not read: they are refused by name, so that none is ignored silently.
//!
//! Every command that takes a CONFIG has the flags of [`ConfigFlags`], each of which sets a key. A command lists the keys
//! (or whole sections) that cannot change its answer; a flag that sets one of them is an error. `--set` sets keys of the
//! config of a run, as its file does, and a command about a run may need only a part of them; it is refused where no run is
//! meant at all. The help of a command leaves out the flags that it never reads.

use super::flags::KEYS;
use super::{Cli, Command, ConfigFlags};
use clap::{CommandFactory, FromArgMatches};
use partita_base::{Diagnostic, Result};
use std::ffi::OsString;

/// What a command does not read.
#[derive(Clone, Copy)]
pub(crate) struct Unread {
    /// Keys, or sections, and why they do not matter; the empty key means all of them.
    keys: &'static [(&'static str, &'static str)],
    /// Whether the command is about a run.
    is_of_run: bool,
}

const fn of_run(keys: &'static [(&'static str, &'static str)]) -> Unread {
    Unread { keys, is_of_run: true }
}

const fn of_no_run(keys: &'static [(&'static str, &'static str)]) -> Unread {
    Unread { keys, is_of_run: false }
}

/// Of commands about one planned step.
const OF_A_STEP: Unread = of_run(&[
    ("data", "no data is read"),
    ("train.seed", "no random number is drawn"),
    ("train.verify_limit", "nothing is verified"),
]);

const OF_VERIFY: Unread = of_run(&[("data", "the two steps are compared on random numbers")]);

const OF_EVAL: Unread = of_run(&[
    ("train.steps", "the checkpoint says how many steps it has"),
    ("train.verify_limit", "nothing is verified"),
]);

/// Of commands that run some steps here.
const OF_PROFILE: Unread = of_run(&[
    ("train.steps", "--cycle says how many steps run"),
    ("train.verify_limit", "nothing is verified"),
]);

const OF_ESTIMATE: Unread = of_no_run(&[
    ("train", "it answers for mixed precision with one microbatch, and finds the largest microbatch itself"),
    ("mesh", "it tries 1, 2, 4, .. devices for each strategy; --most limits them"),
    ("plan", "it has a row for each strategy"),
    ("optimizer", "it has a row for each optimizer"),
    ("data", "no data is read"),
    ("checkpoint", "nothing is saved"),
]);

const OF_ROWS: Unread = of_no_run(&[("", "the table says all about its runs")]);
const OF_KEYS: Unread = of_no_run(&[("", "the keys are those of every config")]);
const OF_PAGE: Unread = of_no_run(&[("", "the page of a code has no config")]);

/// Of `export` with a plan file.
pub(crate) const OF_A_PLAN_FILE: Unread =
    of_no_run(&[("", "the plan is converted as it is, without a model")]);

/// What the commands do not read, whatever else is given.
const OF_COMMANDS: [(&str, Unread); 9] = [
    ("verify", OF_VERIFY),
    ("show", OF_A_STEP),
    ("explain", OF_A_STEP),
    ("lower", OF_A_STEP),
    ("eval", OF_EVAL),
    ("simulate", OF_A_STEP),
    ("estimate", OF_ESTIMATE),
    ("plan", OF_A_STEP),
    ("profile", OF_PROFILE),
];

impl Cli {
    /// The command of these arguments, the name of the program first.
    ///
    /// # Errors
    /// Those of clap, and what it calls so: help and version.
    pub fn read<T>(arguments: impl IntoIterator<Item = T>) -> std::result::Result<Cli, clap::Error>
    where
        T: Into<OsString> + Clone,
    {
        Cli::from_arg_matches(&Cli::command_line().try_get_matches_from(arguments)?)
    }

    /// The commands as clap reads them and prints their help, without the flags that a command refuses.
    pub fn command_line() -> clap::Command {
        OF_COMMANDS.iter().fold(Cli::command(), |commands, (name, unread)| {
            let is_refused = |key: &str| unread.reason(key).is_some();
            let flags =
                KEYS.iter().filter(|(_, key)| is_refused(key)).map(|(flag, _)| flag[2..].replace('-', "_"));
            flags.fold(commands, |commands, flag| {
                commands.mut_subcommand(name, |command| command.mut_arg(flag, |argument| argument.hide(true)))
            })
        })
    }
}

impl Unread {
    /// Why this key does not matter.
    fn reason(&self, key: &str) -> Option<&'static str> {
        let is_within = |section: &str| {
            let rest = key.strip_prefix(section);
            section.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.keys.iter().find(|(section, _)| is_within(section)).map(|(_, why)| *why)
    }
}

impl Command {
    /// E033 for an option that the command does not read.
    pub fn check_options(&self) -> Result<()> {
        let (name, flags, otherwise) = match self {
            Command::Verify(args) => ("verify", &args.flags, None),
            Command::Show(args) => ("show", &args.flags, args.keys.then_some(OF_KEYS)),
            Command::Explain(args) => ("explain", &args.flags, args.code().map(|_| OF_PAGE)),
            Command::Lower(args) => ("lower", &args.flags, None),
            Command::Eval(args) => ("eval", &args.flags, None),
            Command::Simulate(args) => ("simulate", &args.flags, args.rows.as_ref().map(|_| OF_ROWS)),
            Command::Estimate(args) => ("estimate", &args.flags, None),
            Command::Plan(args) => ("plan", &args.flags, None),
            Command::Profile(args) => ("profile", &args.flags, None),
            Command::Report(args) => {
                ("report", &args.flags, Some(if args.measured { OF_PROFILE } else { OF_A_STEP }))
            }
            _ => return Ok(()),
        };
        let of_command = || OF_COMMANDS.iter().find(|(of, _)| *of == name).map(|(_, unread)| *unread);
        flags.refuse(name, otherwise.or_else(of_command).expect("a command of the table"))
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
