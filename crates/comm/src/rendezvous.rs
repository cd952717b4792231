//! The rendezvous of one collective: how members arrive, share its work, and learn when they may
//! reuse their buffers.
//!
//! The work is split into *shares*, one per member, and these into chunks; a share *touches* the
//! buffers of some members. Each share has two counters:
//!
//! - `taken` holds the epoch (number of the use) of its member, and how many of the share's chunks
//!   have been claimed in it. Arriving advances it to the next epoch; claiming a chunk is a
//!   compare-and-swap on it.
//! - `finished` counts finished chunks over all uses.
//!
//! A share is *open* when all members that it touches have arrived at the epoch of its own member.
//! A member is *complete* when every share that touches its buffers is finished for its epoch.
//!
//! # Why it is correct
//!
//! - *Data.* A thread writes data first and then advances the counter that guards it, with
//!   `Release`; a thread that reads the data has loaded that counter with `Acquire`. So a thread
//!   that finds a share open sees the buffers and pointers written before each arrival, and a
//!   thread that finds a chunk finished sees all its reads and writes as done. Additions to a
//!   counter continue each other's release sequence.
//! - *Reuse.* A member arrives at the next epoch only when complete. So while a chunk of an epoch
//!   is claimed and not finished, no member that it touches advances: its pointers are those of
//!   this use, and its buffers are not reused. The compare-and-swap includes the epoch, so a late
//!   thread cannot claim a chunk of a later use.
//! - *One writer.* A chunk is claimed once, and no two chunks write the same bytes.

use crate::notify::Notify;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Line, Ordering, fence, yield_now};
use crate::transport::Poll;

/// The low bits of `taken` count chunks. The others hold the epoch.
const CHUNK_BITS: u32 = 24;
const CHUNK_MASK: u64 = (1 << CHUNK_BITS) - 1;

/// The rendezvous of the members of one collective.
pub(crate) struct Rendezvous {
    shares: Vec<Line<Share>>,
}

struct Share {
    chunks: u64,
    /// Members whose buffers the chunks read or write, its own included; empty if there are no
    /// chunks.
    touches: Vec<usize>,
    /// Shares that touch the buffers of this one's member.
    users: Vec<usize>,
    taken: AtomicU64,
    finished: AtomicU64,
}

impl Rendezvous {
    /// A rendezvous with one member per share: the number of chunks of each, and the members that
    /// it touches (its own member among them unless there are no chunks).
    pub(crate) fn new(shares: &[(usize, Vec<usize>)]) -> Self {
        let share = |(member, (chunks, touches)): (usize, &(usize, Vec<usize>))| {
            let chunks = *chunks as u64;
            assert!(chunks < CHUNK_MASK, "a share has too many chunks");
            assert!(chunks == 0 || touches.contains(&member), "a share touches its own member");
            let users = (0..shares.len()).filter(|&s| shares[s].0 > 0 && shares[s].1.contains(&member));
            Line(Share {
                chunks,
                touches: touches.clone(),
                users: users.collect(),
                // Use 0 is finished.
                taken: AtomicU64::new(chunks),
                finished: AtomicU64::new(0),
            })
        };
        Rendezvous { shares: shares.iter().enumerate().map(share).collect() }
    }

    /// How many times a member has arrived.
    pub(crate) fn epoch(&self, member: usize) -> u64 {
        self.shares[member].0.taken.load(Ordering::Acquire) >> CHUNK_BITS
    }

    /// Whether a member's output is complete and no thread will access its buffers any more.
    pub(crate) fn is_complete(&self, member: usize) -> bool {
        let epoch = self.epoch(member);
        self.shares[member].0.users.iter().all(|&user| {
            let share = &self.shares[user].0;
            share.finished.load(Ordering::Acquire) >= epoch * share.chunks
        })
    }

    /// Lets a complete member arrive once more, after `publish` has stored its pointers, and
    /// notifies the others. Only one thread at a time may call this for a member.
    pub(crate) fn arrive(&self, member: usize, notify: &Notify, publish: impl FnOnce()) {
        let taken = &self.shares[member].0.taken;
        publish();
        // All chunks are claimed, so no other thread changes the counter now.
        let epoch = taken.load(Ordering::Relaxed) >> CHUNK_BITS;
        taken.store((epoch + 1) << CHUNK_BITS, Ordering::Release);
        notify.bump();
    }

    /// Advances a member as far as possible without waiting. `run` runs a chunk of a share.
    ///
    /// The member's own share comes first. When it is used up, the shares of others follow, but not
    /// in the same poll: a thread that runs many members polls those first, before it takes work
    /// from other threads, whose caches still hold their buffers from the previous use.
    pub(crate) fn poll(
        &self,
        member: usize,
        inside: Option<Inside<'_>>,
        notify: &Notify,
        run: impl Fn(usize, usize),
    ) -> Poll {
        let Some(inside) = inside else { return Poll::Failed };
        if self.is_complete(member) {
            return Poll::Ready;
        }
        let mut progress = self.work(member, &run);
        if !progress {
            let count = self.shares.len();
            for offset in (1..count).take_while(|_| !self.is_complete(member)) {
                progress |= self.work((member + offset) % count, &run);
            }
        }
        drop(inside);
        if progress {
            notify.bump();
        }
        if self.is_complete(member) { Poll::Ready } else { Poll::Pending }
    }

    /// Runs the unclaimed chunks of an open share. Returns whether there were any.
    fn work(&self, index: usize, run: impl Fn(usize, usize)) -> bool {
        let share = &self.shares[index].0;
        let mut taken = share.taken.load(Ordering::Acquire);
        let epoch = taken >> CHUNK_BITS;
        let has_chunks = |taken: u64| taken >> CHUNK_BITS == epoch && taken & CHUNK_MASK < share.chunks;
        if !has_chunks(taken) || share.touches.iter().any(|&member| self.epoch(member) < epoch) {
            return false;
        }
        let mut progress = false;
        while has_chunks(taken) {
            // Relaxed: the chunk's data was acquired above, and cannot change before the chunk is
            // finished.
            match share.taken.compare_exchange(taken, taken + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    run(index, (taken & CHUNK_MASK) as usize);
                    share.finished.fetch_add(1, Ordering::Release);
                    progress = true;
                    taken += 1;
                }
                Err(now) => taken = now,
            }
        }
        progress
    }
}

/// Separates work from the end of a run: after the gate is shut, no thread is inside.
///
/// `enter` increments a count, then checks whether the gate is shut; `shut` sets the flag, then
/// waits for the counts to reach zero. A sequentially consistent fence between the two steps of
/// each guarantees that at least one sees the other (Dekker's protocol): `shut` waits for every
/// thread that missed the flag. No thread blocks inside the gate, so the wait ends.
pub(crate) struct Gate {
    is_shut: AtomicBool,
    /// Per rank.
    inside: Vec<Line<AtomicUsize>>,
}

impl Gate {
    pub(crate) fn new(ranks: usize) -> Self {
        let inside = (0..ranks).map(|_| Line(AtomicUsize::new(0))).collect();
        Gate { is_shut: AtomicBool::new(false), inside }
    }

    /// The number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.inside.len()
    }

    /// Enters until the result is dropped. `None` if the gate is shut, after waiting for all
    /// threads to leave.
    pub(crate) fn enter(&self, rank: usize) -> Option<Inside<'_>> {
        let count = &self.inside[rank].0;
        count.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let inside = Inside(count);
        if self.is_shut.load(Ordering::Acquire) {
            drop(inside);
            self.wait_until_empty();
            return None;
        }
        Some(inside)
    }

    /// Shuts the gate, wakes all waiting threads, and waits until all threads have left.
    pub(crate) fn shut(&self, notify: &Notify) {
        self.is_shut.store(true, Ordering::Release);
        // `bump` contains the fence.
        notify.bump();
        self.wait_until_empty();
    }

    fn wait_until_empty(&self) {
        for count in &self.inside {
            while count.0.load(Ordering::Acquire) > 0 {
                yield_now();
            }
        }
    }
}

/// A thread inside a gate, also while unwinding.
pub(crate) struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
