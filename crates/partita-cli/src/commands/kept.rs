//! The limits on what a rank keeps for its backward pass: bytes against work done again.

use crate::output::events::{KeptRow, KeptRows};
use crate::output::format::{bytes, table};
use crate::rank::check_rank;
use partita::Session;
use partita::execution::stages;
use partita_base::Result;
use partita_program::{LowerOptions, kept_curve, lower_stages};

/// The number of limits that are tried.
const POINTS: usize = 11;

/// The trade of the stage of a rank.
///
/// # Errors
/// What building and lowering refuse, E014 for a rank that the mesh does not have.
pub fn kept(session: &Session, rank: usize) -> Result<KeptRows> {
    let built = session.build()?;
    check_rank(rank, built.mesh.rank_count())?;
    let (options, target) = (session.lower_options(), session.target());
    let stage = &built.stages[built.place_of(rank)?.0];
    let mut rows: Vec<KeptRow> = Vec::new();
    for point in kept_curve(&stage.classes, &options, &*target, POINTS)? {
        let limited = LowerOptions { kept_bytes: Some(point.bytes as usize), ..options.clone() };
        let programs = lower_stages(&stages(&built), &limited, &*target)?.programs;
        let row = KeptRow {
            bytes: point.bytes as u64,
            peak_bytes: programs.iter().map(|program| program.arena_bytes as u64).max().unwrap_or(0),
            again: point.again,
            least: point.least,
        };
        if rows.last().is_none_or(|last| last.bytes != row.bytes) {
            rows.push(row);
        }
    }
    Ok(KeptRows { rows })
}

impl KeptRows {
    /// A table.
    pub fn text(&self) -> String {
        let share = |share: f64| format!("{:.2}%", 100.0 * share);
        let row =
            |row: &KeptRow| vec![bytes(row.bytes), bytes(row.peak_bytes), share(row.again), share(row.least)];
        let rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
        table(&["kept", "memory in all", "done again", "at least"], &rows)
    }
}
