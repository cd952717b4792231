//! Steps that pause between their forward and their backward pass.

use partita_base::{Diagnostic, Result};
use partita_program::{Action, Program};

use super::Runner;

impl Runner {
    /// Runs the forward pass of a step with cotangents ([`Program::pauses`]) on the local ranks; [`Runner::step`] then
    /// runs the rest of the step. Inputs other than cotangents must have been written before, and after [`Runner::give_up`]
    /// if the step before did not go on after its pause.
    ///
    /// # Errors
    /// E428 if the step has no pause; otherwise as [`Runner::step`].
    pub fn forward(&mut self) -> Result<()> {
        self.pauses()?;
        self.give_up()?;
        self.advance(true)?;
        self.is_paused = true;
        Ok(())
    }

    /// E428 if the step has no pause.
    pub fn pauses(&self) -> Result<()> {
        if self.has_pause() {
            return Ok(());
        }
        Err(Diagnostic::new("E428", "the step does not pause after its forward pass")
            .expected("a step of one microbatch with an input `cotangent.<output>`")
            .help("run the whole step"))
    }

    /// Whether the step pauses.
    pub fn has_pause(&self) -> bool {
        self.shared.set.programs.iter().all(|program| !program.pauses.is_empty())
    }

    /// E428 if a step that pauses is to run from its beginning to its end: its caller gives inputs at the pause, which
    /// have no memory before.
    pub(super) fn runs_whole(&self) -> Result<()> {
        if self.is_paused || !self.has_pause() {
            return Ok(());
        }
        Err(Diagnostic::new("E428", "the step pauses after its forward pass")
            .expected("its forward pass, then the gradients of its outputs, then the rest")
            .found("a step from its beginning to its end"))
    }

    /// Gives up a step that paused after its forward pass; does nothing otherwise. If collectives are in progress, the
    /// rest of the step runs, so that they end.
    ///
    /// # Errors
    /// As [`Runner::step`].
    pub fn give_up(&mut self) -> Result<()> {
        let is_paused = std::mem::take(&mut self.is_paused);
        if is_paused && self.shared.programs.iter().any(is_in_flight_at_pause) {
            self.advance(false)?;
        }
        Ok(())
    }
}

/// Whether a collective is in progress where a program pauses.
fn is_in_flight_at_pause(program: &Program) -> bool {
    let before = &program.instructions[..program.pauses.first().copied().unwrap_or(0)];
    let count = |is: fn(&Action) -> bool| before.iter().filter(|instruction| is(&instruction.action)).count();
    count(|action| matches!(action, Action::Start(_))) > count(|action| matches!(action, Action::Wait(_)))
}
