//! The named timetables: each is a function from stages and microbatches to an order of tasks.

mod gpipe;
mod one_f_one_b;

pub use gpipe::gpipe;
pub use one_f_one_b::one_f_one_b;

use crate::Timetable;
use partita_base::{Diagnostic, Result, did_you_mean};

/// A timetable with a name.
#[derive(Debug)]
pub struct Named {
    /// Its name in a config.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// Makes the timetable for these numbers of stages and microbatches.
    pub make: fn(stages: usize, microbatches: usize) -> Timetable,
}

/// Every timetable. The first is the default.
pub const ALL: &[Named] = &[
    Named {
        name: "1f1b",
        about: "one forward, one backward in turn once the pipeline is full: the least memory",
        make: one_f_one_b,
    },
    Named { name: "gpipe", about: "all forward passes, then all backward passes", make: gpipe },
];

/// The timetable with this name. E462 with the nearest name if there is none.
pub fn find(name: &str) -> Result<&'static Named> {
    ALL.iter().find(|timetable| timetable.name == name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|timetable| timetable.name).collect();
        let mut error = Diagnostic::new("E462", format!("there is no timetable `{name}`"))
            .expected(format!("one of {}", names.join(", ")));
        error.help = did_you_mean(name, names);
        error
    })
}
