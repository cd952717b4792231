//! The atomics and locks of the protocol: those of the standard library, and in unit tests those of
//! loom, a model checker that runs a test under every interleaving and every reordering that the
//! orderings allow.

#[cfg(test)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex},
    thread::yield_now,
};
#[cfg(not(test))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex},
    thread::yield_now,
};

/// Puts data written by different threads on different cache lines (in pairs, because the
/// adjacent-line prefetcher fetches pairs).
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Line<T>(pub(crate) T);
