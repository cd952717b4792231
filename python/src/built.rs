//! What a built step says about itself, without running.

use partita::execution::{CpuStep, stages};
use partita_base::{Note, Result};
use partita_cli::commands::explain::Explained;
use partita_ir::Graph;
use partita_program::{LowerOptions, ProgramSet, lower_stages};
use partita_schedule::Built;

/// How often a rank meets others: (phase, collective, count, bytes).
pub type Collectives = Vec<(String, String, usize, usize)>;

fn programs(built: &Built) -> Result<ProgramSet> {
    lower_stages(&stages(built), &LowerOptions::default(), &CpuStep::default().options.cpu)
}

/// Why the step is as it is: on one screen, or for one tensor or collective. `whole` is the program of one device.
pub fn explain(built: Built, whole: &Graph, name: Option<String>) -> Result<String> {
    let (programs, notes) = (programs(&built)?, built.notes.iter().map(Note::to_string).collect());
    let explained = Explained::new(built, whole.clone(), notes);
    match name {
        None => Ok(explained.overview_of(&programs, 0)?.text()),
        Some(name) => Ok(explained.about(&name, &mut |_, _| ())?.text()),
    }
}

/// How often a rank meets others in a step. E014 if there is no such rank.
pub fn collectives(built: &Built, rank: usize) -> Result<Collectives> {
    built.place_of(rank)?;
    let counts = partita_program::counts(&programs(built)?, rank);
    let mut found = Vec::new();
    for (phase, counts) in counts.phases() {
        for (kind, count) in counts.kinds.iter().filter(|(_, count)| count.count > 0) {
            found.push((phase.to_string(), kind.to_string(), count.count, count.bytes));
        }
    }
    Ok(found)
}

/// The program of a rank as text. E014 if there is no such rank.
pub fn program(built: &Built, rank: usize) -> Result<String> {
    built.place_of(rank)?;
    Ok(programs(built)?.display(rank).to_string())
}
