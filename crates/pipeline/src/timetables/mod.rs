//! The named timetables: each is a function from slices and microbatches to an order of tasks.
//!
//! Times are in slots: a forward task `F`, the gradients of activations `I` and those of parameters `W`
//! take one slot each, and a whole backward task `B` takes two. `p` is the number of slices, `v` the
//! number of stages on each, `m` the number of microbatches. `docs/TIMETABLES.md` has charts and formulas.

mod dualpipev;
mod gpipe;
mod inference;
mod interleaved;
mod interleaved_zero_bubble;
mod looped;
mod looped_bfs;
mod one_f_one_b;
mod queue;
mod v_block;
mod v_half;
mod v_min;
mod zb_h1;
mod zb_h2;
mod zbv;

pub use dualpipev::dualpipev;
pub use gpipe::gpipe;
pub(crate) use inference::forward;
pub use inference::inference;
pub use interleaved::interleaved_1f1b;
pub use interleaved_zero_bubble::interleaved_zero_bubble;
pub use looped_bfs::looped_bfs;
pub use one_f_one_b::one_f_one_b;
pub use v_half::v_half;
pub use v_min::v_min;
pub use zb_h1::zb_h1;
pub use zb_h2::zb_h2;
pub use zbv::zbv;

use crate::Timetable;
use partita_base::{Diagnostic, Result, did_you_mean};

/// Which slice runs which stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Stage `s` is on slice `s mod p`.
    Loop,
    /// Slices run their stages down and up again: stage `s` is on slice `s` for `s < p`, then on
    /// `2 p - 1 - s`, and so on.
    V,
}

impl Placement {
    /// The stage that is the `chunk`th one of a slice.
    pub fn stage(self, slice: usize, chunk: usize, slices: usize) -> usize {
        let turns = self == Placement::V && chunk % 2 == 1;
        chunk * slices + if turns { slices - 1 - slice } else { slice }
    }

    /// The slice that runs a stage.
    pub fn slice(self, stage: usize, slices: usize) -> usize {
        let turns = self == Placement::V && stage / slices % 2 == 1;
        if turns { slices - 1 - stage % slices } else { stage % slices }
    }
}

/// A timetable with a name.
#[derive(Debug)]
pub struct Named {
    /// Its name in a config.
    pub name: &'static str,
    /// Another name for it; empty if there is none.
    pub alias: &'static str,
    /// A short description.
    pub about: &'static str,
    /// How many stages each slice runs.
    pub chunks: usize,
    /// Which slice runs which stages.
    pub placement: Placement,
    /// Makes the timetable for these numbers of slices and microbatches, with
    /// [`Named::chunks`] times as many stages as slices.
    pub make: fn(slices: usize, microbatches: usize) -> Timetable,
    /// Makes it with another number of stages on each slice, where it exists for any number.
    pub with_chunks: Option<fn(slices: usize, chunks: usize, microbatches: usize) -> Timetable>,
}

/// Every timetable. The first is the default.
pub const ALL: &[Named] = &[
    Named {
        name: "1f1b",
        alias: "",
        about: "one forward, one backward in turn once the pipeline is full: the least memory with one stage on each slice",
        chunks: 1,
        placement: Placement::Loop,
        make: one_f_one_b,
        with_chunks: None,
    },
    Named {
        name: "gpipe",
        alias: "",
        about: "all forward passes, then all backward passes",
        chunks: 1,
        placement: Placement::Loop,
        make: gpipe,
        with_chunks: None,
    },
    Named {
        name: "looped-bfs",
        alias: "",
        about: "gpipe with two stages on each slice: half its bubble",
        chunks: 2,
        placement: Placement::Loop,
        make: |slices, microbatches| looped_bfs(slices, 2, microbatches),
        with_chunks: Some(looped_bfs),
    },
    Named {
        name: "interleaved-1f1b",
        alias: "",
        about: "1f1b with two stages on each slice: half its bubble, more memory",
        chunks: 2,
        placement: Placement::Loop,
        make: |slices, microbatches| interleaved_1f1b(slices, 2, microbatches),
        with_chunks: Some(interleaved_1f1b),
    },
    Named {
        name: "interleaved-zero-bubble",
        alias: "",
        about: "interleaved 1f1b with split backward passes: a third of its bubble",
        chunks: 2,
        placement: Placement::Loop,
        make: |slices, microbatches| interleaved_zero_bubble(slices, 2, microbatches),
        with_chunks: Some(interleaved_zero_bubble),
    },
    Named {
        name: "zb-h1",
        alias: "zb1p",
        about: "1f1b with split backward passes: a third of its bubble, the same peak of memory",
        chunks: 1,
        placement: Placement::Loop,
        make: zb_h1,
        with_chunks: None,
    },
    Named {
        name: "zb-h2",
        alias: "",
        about: "no slice waits once it has begun, with twice the memory of 1f1b",
        chunks: 1,
        placement: Placement::Loop,
        make: zb_h2,
        with_chunks: None,
    },
    Named {
        name: "zbv",
        alias: "zbvzerobubble",
        about: "no slice waits once it has begun, with the memory of 1f1b; two stages on each slice",
        chunks: 2,
        placement: Placement::V,
        make: zbv,
        with_chunks: None,
    },
    Named {
        name: "v-half",
        alias: "",
        about: "towards half the memory of 1f1b with many slices, about half its bubble; two stages on each slice",
        chunks: 2,
        placement: Placement::V,
        make: v_half,
        with_chunks: None,
    },
    Named {
        name: "v-min",
        alias: "",
        about: "towards a third of the memory of 1f1b with many slices, about two thirds of its bubble; two stages on each slice",
        chunks: 2,
        placement: Placement::V,
        make: v_min,
        with_chunks: None,
    },
    Named {
        name: "dualpipev",
        alias: "",
        about: "forward tasks overlap backward tasks, so that each hides the communication of the other",
        chunks: 2,
        placement: Placement::V,
        make: dualpipev,
        with_chunks: None,
    },
    Named {
        name: "inference",
        alias: "",
        about: "forward passes alone",
        chunks: 1,
        placement: Placement::Loop,
        make: inference,
        with_chunks: None,
    },
];

/// The timetable with this name, in small or capital letters, with or without hyphens: `ZB-H1`,
/// PyTorch's `Interleaved1F1B`. E462 with the nearest name if there is none.
pub fn find(name: &str) -> Result<&'static Named> {
    let plain = |name: &str| name.replace(['-', '_'], "").to_lowercase();
    let wanted = plain(name);
    let has_name = |timetable: &&Named| {
        plain(timetable.name) == wanted || (!wanted.is_empty() && timetable.alias == wanted)
    };
    ALL.iter().find(has_name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|timetable| timetable.name).collect();
        let mut error = Diagnostic::new("E462", format!("there is no timetable `{name}`"))
            .expected("a timetable of the list, or a CSV file");
        error.notes = list().lines().map(str::to_string).collect();
        error.help = did_you_mean(name, names);
        error
    })
}

/// The most stages on a slice that a name may request.
pub const MAX_CHUNKS: usize = 64;

/// The timetable and its stages on a slice, for a name with their number behind a colon: `interleaved-1f1b:4`. Nothing for
/// a name without one.
///
/// # Errors
/// E462 if there is no such timetable, or not with so many stages.
pub fn with_chunks(name: &str) -> Result<Option<(&'static Named, usize)>> {
    let Some((base, chunks)) = name.split_once(':') else { return Ok(None) };
    let named = find(base)?;
    let wanted = chunks.parse().ok().filter(|chunks| (1..=MAX_CHUNKS).contains(chunks));
    match wanted.filter(|&chunks| chunks == named.chunks || named.with_chunks.is_some()) {
        Some(chunks) => Ok(Some((named, chunks))),
        None => {
            let looped: Vec<&str> =
                ALL.iter().filter(|named| named.with_chunks.is_some()).map(|named| named.name).collect();
            Err(Diagnostic::new("E462", format!("there is no timetable `{name}`"))
                .expected(format!(
                    "1 to {MAX_CHUNKS} stages on each slice behind one of {}",
                    looped.join(", ")
                ))
                .found(format!("`{chunks}` behind `{base}`")))
        }
    }
}

/// Every timetable with its description, one a line.
pub fn list() -> String {
    let width = ALL.iter().map(|timetable| timetable.name.len()).max().unwrap_or(0);
    ALL.iter().map(|timetable| format!("{:width$}  {}\n", timetable.name, timetable.about)).collect()
}
