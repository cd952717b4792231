//! Events: what each thread did for which instruction, and when. Off by default; then the cost is
//! one comparison per instruction.

use std::sync::Mutex;
use std::time::Instant;

use partita_program::Event;

use super::lock;

/// The events of all threads since the last `take`.
pub(super) struct Recorder {
    origin: Instant,
    /// One list per thread, written only by that thread during a step. Empty if recording is off.
    threads: Box<[Mutex<Vec<Event>>]>,
}

impl Recorder {
    /// For this many threads; zero turns recording off.
    pub fn new(threads: usize) -> Recorder {
        Recorder { origin: Instant::now(), threads: (0..threads).map(|_| Mutex::default()).collect() }
    }

    /// Whether events are recorded.
    pub fn is_on(&self) -> bool {
        !self.threads.is_empty()
    }

    /// The event list of a thread.
    pub fn track(&self, thread: usize) -> Track<'_> {
        Track { recorder: self, thread }
    }

    /// Takes the events so far, thread by thread, each in its order.
    pub fn take(&self) -> Vec<Event> {
        self.threads.iter().flat_map(|events| std::mem::take(&mut *lock(events))).collect()
    }
}

/// The events of one thread.
#[derive(Clone, Copy)]
pub(super) struct Track<'a> {
    recorder: &'a Recorder,
    thread: usize,
}

impl Track<'_> {
    /// Runs `work`; `what` gives rank, instruction and bytes, and is called only if recording is
    /// on.
    pub fn time<T>(&self, what: impl FnOnce() -> (usize, usize, usize), work: impl FnOnce() -> T) -> T {
        let Some(events) = self.recorder.threads.get(self.thread) else { return work() };
        let now = || self.recorder.origin.elapsed().as_nanos() as u64;
        let begin_ns = now();
        let result = work();
        let end_ns = now();
        let (rank, instruction, bytes) = what();
        lock(events).push(Event { rank, thread: self.thread, instruction, begin_ns, end_ns, bytes });
        result
    }
}
