//! Waiting until something has changed, awake and then asleep.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::sync::{AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, fence, spin_loop, yield_now};

/// Looks, some ten microseconds of them, after which who is awake lets others have the core that need it.
const LOOKS: u32 = 400;

/// A counter that moves whenever a rank arrives, makes progress or fails, and on which threads can sleep.
///
/// Read [`Notify::epoch`], then poll; if nothing was ready, pass that epoch to [`Notify::wait_for_change`]: what
/// happened in between is not missed.
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
    /// Costs one atomic addition while nobody sleeps. A wake-up is not lost: a sleeper counts itself and then
    /// reads the epoch, this counts the epoch and then reads the sleepers, with a sequentially consistent fence
    /// between the two steps of each, so at least one sees the other; and a sleeper holds the lock from its look at
    /// the epoch until it sleeps.
    pub fn bump(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Waits until the epoch differs from `seen`: for the time `awake` it looks again and again, then it sleeps.
    /// Returns false where `timeout` passed without a change.
    pub fn wait_for_change(&self, seen: u64, awake: Duration, timeout: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < awake.min(timeout) {
            for _ in 0..LOOKS {
                if self.epoch() != seen {
                    return true;
                }
                spin_loop();
            }
            yield_now();
        }
        // Capped, as a far enough point in time cannot be represented.
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
