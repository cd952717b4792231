//! Options that a command does not read: they are refused by name, so that none is ignored silently.
//!
//! Every command that takes a CONFIG has the flags of [`ConfigFlags`], each of which sets a key. A command lists the keys
//! (or whole sections) that cannot change its answer; a flag that sets one of them is an error. `--set` sets keys of the
//! config of a run, as its file does, and a command about a run may need only a part of them; it is refused where no run is
//! meant at all.

use super::{Command, ConfigFlags};
use partita_base::{Diagnostic, Result};

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

impl Command {
    /// E033 for an option that the command does not read.
    pub fn check_options(&self) -> Result<()> {
        let (name, flags, unread) = match self {
            Command::Verify(args) => ("verify", &args.flags, OF_VERIFY),
            Command::Show(args) => ("show", &args.flags, if args.keys { OF_KEYS } else { OF_A_STEP }),
            Command::Explain(args) => {
                ("explain", &args.flags, if args.code().is_some() { OF_PAGE } else { OF_A_STEP })
            }
            Command::Lower(args) => ("lower", &args.flags, OF_A_STEP),
            Command::Eval(args) => ("eval", &args.flags, OF_EVAL),
            Command::Simulate(args) => {
                ("simulate", &args.flags, if args.rows.is_some() { OF_ROWS } else { OF_A_STEP })
            }
            Command::Estimate(args) => ("estimate", &args.flags, OF_ESTIMATE),
            Command::Plan(args) => ("plan", &args.flags, OF_A_STEP),
            Command::Profile(args) => ("profile", &args.flags, OF_PROFILE),
            Command::Report(args) => {
                ("report", &args.flags, if args.measured { OF_PROFILE } else { OF_A_STEP })
            }
            _ => return Ok(()),
        };
        flags.refuse(name, unread)
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
            let is_within = |section: &str| {
                section.is_empty()
                    || key == section
                    || key.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'))
            };
            if let Some((_, why)) = unread.keys.iter().find(|(section, _)| is_within(section)) {
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
