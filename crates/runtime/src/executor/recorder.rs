//! Events: what each thread did for which instruction, and when. Off by default; then the cost is
//! one comparison per instruction. It can be turned on and off between steps.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use partita_program::Event;

use super::lock;

/// The events of all threads since the last `take`.
pub(super) struct Recorder {
    origin: Instant,
    /// One list per thread, written only by that thread during a step.
    threads: Box<[Mutex<Vec<Event>>]>,
    /// Written only between steps, whose start publishes it to all threads.
    is_on: AtomicBool,
}

impl Recorder {
    /// For this many threads.
    pub fn new(threads: usize, is_on: bool) -> Recorder {
        Recorder {
            origin: Instant::now(),
            threads: (0..threads).map(|_| Mutex::default()).collect(),
            is_on: AtomicBool::new(is_on),
        }
    }

    /// Turns recording on or off, from the next step on.
    pub fn turn(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Nanoseconds on the clock of the events.
    pub fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Whether events are recorded.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
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
        if !self.recorder.is_on() {
            return work();
        }
        let begin_ns = self.recorder.now_ns();
        let result = work();
        let end_ns = self.recorder.now_ns();
        let (rank, instruction, bytes) = what();
        lock(&self.recorder.threads[self.thread]).push(Event {
            rank,
            thread: self.thread,
            instruction,
            begin_ns,
            end_ns,
            bytes,
        });
        result
    }
}
