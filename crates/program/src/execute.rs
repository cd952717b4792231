//! Execution of a program: a list of instructions and a cursor, so that one worker can run several
//! ranks alternately. Traits run regions and move data; memory is given as views, which an
//! implementation resolves.

use crate::RegionTarget;
use crate::program::{Action, BufferId, Compute, Move, Program, Start};
use partita_base::{CollectiveId, Diagnostic, Result};

/// A kind of device: what programs are compiled for (as a [`RegionTarget`]) and what runs them,
/// such as the CPU. Other compilers or a simulator implement the same trait.
pub trait Device: RegionTarget {
    /// A rank on this device.
    type Rank: RankDevice + RankMemory;

    /// A rank with its own memory that is ready to run its program: constants loaded, regions
    /// compiled.
    fn rank(&self, program: &Program) -> Result<Self::Rank>;
}

/// Access to the buffers of one rank, to write inputs, read outputs, and move data between ranks.
pub trait RankMemory {
    /// The bytes of a buffer.
    fn read(&self, program: &Program, buffer: BufferId) -> &[u8];
    /// Overwrites a buffer. `bytes` must have the size of the buffer.
    fn write(&mut self, program: &Program, buffer: BufferId, bytes: &[u8]);
}

/// Runs compute instructions on one rank's arena.
pub trait RankDevice {
    /// Runs `program.region(compute.region)`: reads the views and writes every output buffer in
    /// full. `index` is the instruction's position, for traces and per-instruction caches.
    fn run(&mut self, program: &Program, index: usize, compute: &Compute) -> Result<()>;
    /// Begins a move between the arena and host memory; need not block.
    fn begin_move(&mut self, program: &Program, index: usize, moved: Move) -> Result<()>;
    /// Returns when a move that has begun is complete.
    fn end_move(&mut self, program: &Program, index: usize, moved: Move) -> Result<()>;
}

/// Moves data between the ranks' arenas.
pub trait Communicator {
    /// Publishes this rank's inputs and outputs of a collective; never blocks.
    fn start(&mut self, program: &Program, index: usize, start: &Start) -> Result<()>;
    /// Whether a started collective has ended for this rank: its outputs are complete, and no peer
    /// will read its inputs again. Never blocks. Must not be called again after it returned `true`.
    fn has_ended(&mut self, program: &Program, collective: CollectiveId) -> Result<bool>;
}

/// Why [`advance`] returned.
#[derive(Debug)]
pub enum StepOutcome {
    /// The step is complete, and the cursor is at the first instruction again; or it is at its pause.
    Done,
    /// The rank waits for this collective: run another rank, then call again.
    Blocked(CollectiveId),
    /// The rank cannot continue.
    Failed(Box<Diagnostic>),
}

/// A rank's position in its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    /// The next instruction.
    pub next: usize,
    /// The instruction before which the rank pauses, if any.
    pub pause: Option<usize>,
}

/// What one call of [`step_once`] did.
#[derive(Debug)]
pub enum Progress {
    /// The instruction is complete; the cursor is at the next one.
    Advanced,
    /// Nothing more can be done now.
    Ended(StepOutcome),
}

/// Runs one instruction, if it can run now.
pub fn step_once(
    program: &Program,
    cursor: &mut Cursor,
    device: &mut dyn RankDevice,
    communicator: &mut dyn Communicator,
) -> Progress {
    let index = cursor.next;
    if cursor.pause == Some(index) {
        return Progress::Ended(StepOutcome::Done);
    }
    let Some(instruction) = program.instructions.get(index) else {
        cursor.next = 0;
        return Progress::Ended(StepOutcome::Done);
    };
    let result = match &instruction.action {
        Action::Compute(compute) => device.run(program, index, compute),
        Action::Start(start) => communicator.start(program, index, start),
        Action::Wait(collective) => match communicator.has_ended(program, *collective) {
            Ok(true) => Ok(()),
            Ok(false) => return Progress::Ended(StepOutcome::Blocked(*collective)),
            Err(error) => Err(error),
        },
        Action::Move(moved) => device.begin_move(program, index, *moved),
        Action::Moved(moved) => device.end_move(program, index, *moved),
    };
    match result {
        Ok(()) => {
            cursor.next += 1;
            Progress::Advanced
        }
        Err(error) => {
            let origin = &instruction.origin;
            let path = if origin.path.is_empty() { "<root>" } else { &origin.path };
            Progress::Ended(StepOutcome::Failed(error.note(format!(
                "rank {}, instruction {index}: {} in {path}",
                program.rank(),
                origin.what
            ))))
        }
    }
}

/// Runs instructions from the cursor until the step is complete or a wait is not ready.
pub fn advance(
    program: &Program,
    cursor: &mut Cursor,
    device: &mut dyn RankDevice,
    communicator: &mut dyn Communicator,
) -> StepOutcome {
    loop {
        if let Progress::Ended(outcome) = step_once(program, cursor, device, communicator) {
            return outcome;
        }
    }
}
