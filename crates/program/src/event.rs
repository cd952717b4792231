//! What happened when, as plain data: the same from an executor that measures and from one that only predicts.

/// What one thread did without a break for one instruction of a rank.
///
/// An instruction may have several: one for each part of it that some thread ran, one for each look at a collective that
/// a rank waits for. Time between the events of a thread is spent waiting or asleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Whose instruction it is.
    pub rank: usize,
    /// The thread that ran it, from 0.
    pub thread: usize,
    /// The instruction's position in the rank's program.
    pub instruction: usize,
    /// When it began, in nanoseconds since some point before the first step.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// What the whole instruction reads and writes, however many events it has: inputs and outputs of a compute, inputs
    /// of the start of a collective, outputs of its wait.
    pub bytes: usize,
}

impl Event {
    /// How long it took.
    pub fn nanos(&self) -> u64 {
        self.end_ns.saturating_sub(self.begin_ns)
    }
}
