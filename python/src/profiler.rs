//! What ranks did in the last run of a step: the events of the runtime's recorder, and the instructions that they name.

use partita_program::{Action, BufferKind, Program};
use partita_runtime::Runner;

/// An event: rank, thread, instruction, begin and duration in nanoseconds, bytes read and written.
pub type Event = (usize, usize, usize, u64, u64, usize);

/// An instruction: op, kind (`compute`, `start` or `wait`), part of the step, module path, element types with shapes of
/// what it reads, bytes of memory that are live from it on less those that are live no longer.
pub type Instruction = (String, &'static str, String, String, Vec<(&'static str, Vec<usize>)>, i64);

/// The events of the last run, and the time now on their clock.
pub fn events(runner: &Runner) -> (Vec<Event>, u64) {
    let mut events = Vec::with_capacity(runner.events().len());
    for event in runner.events() {
        let place = (event.rank, event.thread, event.instruction);
        events.push((place.0, place.1, place.2, event.begin_ns, event.nanos(), event.bytes));
    }
    (events, runner.now_ns())
}

/// The ranks of this process, and for each the number of its list of instructions: ranks with equal programs share one.
pub fn programs(runner: &Runner) -> (Vec<(usize, usize)>, Vec<Vec<Instruction>>) {
    let mut lists: Vec<(&Program, Vec<Instruction>)> = Vec::new();
    let mut places = Vec::new();
    for (&rank, program) in runner.local_ranks().iter().zip(runner.programs()) {
        let found = lists.iter().position(|(other, _)| other.instructions == program.instructions);
        places.push((
            rank,
            found.unwrap_or_else(|| {
                lists.push((program, instructions(program)));
                lists.len() - 1
            }),
        ));
    }
    (places, lists.into_iter().map(|(_, list)| list).collect())
}

fn instructions(program: &Program) -> Vec<Instruction> {
    let mut growth = vec![0i64; program.instructions.len()];
    for buffer in &program.buffers {
        if matches!(buffer.kind, BufferKind::Temporary | BufferKind::Output | BufferKind::Workspace) {
            for (at, bytes) in [(buffer.first, buffer.bytes as i64), (buffer.last, -(buffer.bytes as i64))] {
                if let Some(growth) = growth.get_mut(at) {
                    *growth += bytes;
                }
            }
        }
    }
    let mut found = Vec::with_capacity(program.instructions.len());
    for (instruction, growth) in program.instructions.iter().zip(growth) {
        let (kind, views) = match &instruction.action {
            Action::Compute(compute) => ("compute", &compute.inputs[..]),
            Action::Start(start) => ("start", &start.inputs[..]),
            Action::Move(_) => ("start", &[][..]),
            Action::Wait(_) | Action::Moved(_) => ("wait", &[][..]),
        };
        let read = views.iter().map(|view| (program.buffer(view.buffer).ty.dtype.name(), view.shape.clone()));
        let origin = &instruction.origin;
        let phase = origin.phase.name().to_string();
        found.push((origin.what.clone(), kind, phase, origin.path.clone(), read.collect(), growth));
    }
    found
}
