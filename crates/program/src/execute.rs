//! The executor: a program is a list plus a cursor, so one worker can play several ranks in turn. What runs a
//! region and what moves data are traits; memory is spoken of in views, which an implementation resolves.

use crate::RegionTarget;
use crate::program::{Action, BufferId, Compute, Program, Start};
use partita_base::{CollectiveId, Diagnostic, Result};

/// A kind of device: what programs are lowered for, as [`RegionTarget`] says, and what their ranks run on. The CPU is
/// one; another compiler or a simulator stands beside it.
pub trait Device: RegionTarget {
    /// A rank on this kind of device.
    type Rank: RankDevice + RankMemory;

    /// A rank with its own memory, ready to run its program: the constants in place, the regions compiled.
    fn rank(&self, program: &Program) -> Result<Self::Rank>;
}

/// The buffers of one rank, as those see them who feed it, read it, or move data between ranks.
pub trait RankMemory {
    /// The bytes of a buffer.
    fn read(&self, program: &Program, buffer: BufferId) -> &[u8];
    /// Replaces the bytes of a buffer, by as many.
    fn write(&mut self, program: &Program, buffer: BufferId, bytes: &[u8]);
}

/// What runs compute instructions on one rank's arena.
pub trait RankDevice {
    /// Runs `program.region(compute.region)`: reads the views, writes every output buffer in full. `index` is
    /// the instruction's position, for traces and per-instruction caches.
    fn run(&mut self, program: &Program, index: usize, compute: &Compute) -> Result<()>;
}

/// What moves data between the ranks' arenas.
pub trait Communicator {
    /// Publishes this rank's inputs and outputs of a collective; never blocks.
    fn start(&mut self, program: &Program, index: usize, start: &Start) -> Result<()>;
    /// Whether a started collective has ended for this rank: its outputs are complete and no peer will read its inputs
    /// again. Never blocks, and is not called again after `true`.
    fn has_ended(&mut self, program: &Program, collective: CollectiveId) -> Result<bool>;
}

/// Where [`advance`] stopped.
#[derive(Debug)]
pub enum StepOutcome {
    /// The step is complete; the cursor stands at the beginning again.
    Done,
    /// Waits for this collective: let another rank run, then come back.
    Blocked(CollectiveId),
    /// Cannot go on.
    Failed(Box<Diagnostic>),
}

/// Where a rank stands in its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The next instruction.
    pub next: usize,
}

/// Runs instructions from the cursor on until the step is done or a wait is not ready.
pub fn advance(
    program: &Program,
    cursor: &mut Cursor,
    device: &mut dyn RankDevice,
    communicator: &mut dyn Communicator,
) -> StepOutcome {
    while let Some(instruction) = program.instructions.get(cursor.next) {
        let index = cursor.next;
        let result = match &instruction.action {
            Action::Compute(compute) => device.run(program, index, compute),
            Action::Start(start) => communicator.start(program, index, start),
            Action::Wait(collective) => match communicator.has_ended(program, *collective) {
                Ok(true) => Ok(()),
                Ok(false) => return StepOutcome::Blocked(*collective),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = result {
            let origin = &instruction.origin;
            return StepOutcome::Failed(error.note(format!(
                "rank {}, instruction {index}: {} in {}",
                program.rank(),
                origin.what,
                origin.path
            )));
        }
        cursor.next += 1;
    }
    cursor.next = 0;
    StepOutcome::Done
}
