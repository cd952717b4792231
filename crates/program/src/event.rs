//! Trace events as plain data: which thread ran which instruction, and when. An executor measures
//! them, a simulator predicts them; the form is the same.

/// One uninterrupted span of work by one thread on one instruction of a rank.
///
/// An instruction may have several events: one for each part that a thread ran, and one for each
/// poll of a collective that a rank waits for. In the time between its events a thread waits or
/// sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The rank that the instruction belongs to.
    pub rank: usize,
    /// The thread that ran it, from 0.
    pub thread: usize,
    /// The instruction's position in the rank's program.
    pub instruction: usize,
    /// Begin, in nanoseconds since a fixed point before the first step.
    pub begin_ns: u64,
    /// End, on the same clock.
    pub end_ns: u64,
    /// Bytes that the whole instruction reads and writes, whatever its number of events: inputs and
    /// outputs of a compute, inputs of the start of a collective, outputs of its wait.
    pub bytes: usize,
}

impl Event {
    /// Duration in nanoseconds.
    pub fn nanos(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns)
    }
}
