//! The check of `--rank`.

use partita_base::{Diagnostic, Result};

/// E014 for a rank that does not exist.
pub fn check_rank(rank: usize, ranks: usize) -> Result<()> {
    if rank < ranks {
        return Ok(());
    }
    Err(Diagnostic::new("E014", format!("there is no rank {rank}"))
        .at("--rank")
        .expected(format!("below {ranks}, the ranks of the mesh")))
}
