//! Waiting for a change: spin first, then sleep.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, fence, spin_loop, yield_now};

/// Spins before the thread yields its core, about 10 microseconds.
const SPINS_BEFORE_YIELD: u32 = 400;

/// A counter of arrivals, progress and failures, on which threads can sleep.
///
/// Read [`Notify::epoch`], then poll; if nothing was ready, pass that epoch to
/// [`Notify::wait_for_change`]: no change in between is missed.
#[derive(Debug, Default)]
pub struct Notify {
    epoch: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Notify {
    /// A counter at zero.
    pub fn new() -> Self {
        Notify::default()
    }

    /// The number of changes so far.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Counts a change and wakes all sleepers.
    ///
    /// Costs one atomic addition if no thread sleeps. No wake-up is lost: a sleeper counts itself
    /// and then reads the epoch; this method increments the epoch and then reads the sleepers, with
    /// a sequentially consistent fence between the two steps of each, so at least one sees the
    /// other. A sleeper also holds the lock from its check of the epoch until it sleeps.
    pub fn bump(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Waits until the epoch differs from `seen`: spins for the time `awake`, then sleeps. Returns
    /// false if `timeout` passed without a change.
    pub fn wait_for_change(&self, seen: u64, awake: Duration, timeout: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < awake.min(timeout) {
            for _ in 0..SPINS_BEFORE_YIELD {
                if self.epoch() != seen {
                    return true;
                }
                spin_loop();
            }
            yield_now();
        }
        // Capped, because an instant too far in the future cannot be represented.
        let deadline = begun + timeout.min(Duration::from_secs(1 << 30));
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.epoch() == seen {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            guard = self.changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        drop(guard);
        self.epoch() != seen
    }
}
