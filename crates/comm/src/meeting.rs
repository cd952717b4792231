//! How the members of a collective meet, share its work, and know when their buffers are their own again.
//!
//! The work is cut into *shares*, one per member, and these into chunks; a share *touches* the buffers of some
//! members. Each share has two counters:
//!
//! - `taken` holds the use (epoch) at which its member is, and how many of the share's chunks somebody has taken in
//!   that use. Arriving moves it to the next epoch; taking a chunk is a compare-and-swap on it.
//! - `finished` counts finished chunks over all uses.
//!
//! A share is *open* when all members that it touches have arrived at the epoch of its own member. A member is
//! *complete* when every share that touches its buffers is finished for its epoch.
//!
//! # Why it is correct
//!
//! - *Data.* Whoever moves a counter has written before, with `Release`, what it speaks of; whoever then touches that
//!   has loaded it with `Acquire`. Buffers and pointers that were there before a member arrived are seen by those
//!   that found the share open; what a chunk has read and written came before the load that finds it finished, and
//!   additions to a counter continue each other's release sequence.
//! - *Reuse.* A member arrives at the next epoch only when complete. So while a chunk of an epoch is taken and not
//!   finished, no member that it touches moves on: its pointers are those of this use, its buffers are not reused.
//!   A swap names the epoch, so who was late with it cannot take a chunk of a later, perhaps not yet open, use.
//! - *One writer.* A chunk is taken once, and no two chunks write the same bytes.

use crate::notify::Notify;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Line, Ordering, fence, yield_now};
use crate::transport::Poll;

/// The low bits of `taken`: chunks. The others hold the epoch.
const CHUNK_BITS: u32 = 24;
const CHUNK_MASK: u64 = (1 << CHUNK_BITS) - 1;

/// Where the members of one collective meet.
pub(crate) struct Meeting {
    shares: Vec<Line<Share>>,
}

struct Share {
    chunks: u64,
    /// Members whose buffers the chunks read or write, its own included; empty where there are no chunks.
    touches: Vec<usize>,
    /// Shares that touch the buffers of this one's member.
    users: Vec<usize>,
    taken: AtomicU64,
    finished: AtomicU64,
}

impl Meeting {
    /// A meeting of as many members as there are shares: the number of chunks of each, and the members that it
    /// touches (its own member among them unless there are no chunks).
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
                // Use 0 is over.
                taken: AtomicU64::new(chunks),
                finished: AtomicU64::new(0),
            })
        };
        Meeting { shares: shares.iter().enumerate().map(share).collect() }
    }

    /// How many times a member has arrived.
    pub(crate) fn epoch(&self, member: usize) -> u64 {
        self.shares[member].0.taken.load(Ordering::Acquire) >> CHUNK_BITS
    }

    /// Whether a member's output is complete and nobody will touch its buffers any more.
    pub(crate) fn is_complete(&self, member: usize) -> bool {
        let epoch = self.epoch(member);
        self.shares[member].0.users.iter().all(|&user| {
            let share = &self.shares[user].0;
            share.finished.load(Ordering::Acquire) >= epoch * share.chunks
        })
    }

    /// Lets a member that is complete arrive once more, after `publish` has left its pointers, and tells the others.
    /// To be called by one thread at a time for each member.
    pub(crate) fn arrive(&self, member: usize, notify: &Notify, publish: impl FnOnce()) {
        let taken = &self.shares[member].0.taken;
        publish();
        // All chunks are taken, so nobody else moves the counter now.
        let epoch = taken.load(Ordering::Relaxed) >> CHUNK_BITS;
        taken.store((epoch + 1) << CHUNK_BITS, Ordering::Release);
        notify.bump();
    }

    /// Gets a member ahead as far as that is possible without waiting. `run` runs a chunk of a share.
    ///
    /// The member's own share comes first. Where nothing is left of it the others' follow, but not in the same poll:
    /// a thread that plays many members turns to those before it takes work from other threads, whose caches hold
    /// what they had the last time.
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

    /// Runs the chunks of an open share that nobody has taken yet. Returns whether there were any.
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
            // Relaxed: what the chunk touches was seen above, and cannot change before it is finished.
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

/// Keeps work and the end of a run apart: once it is shut, nobody is inside.
///
/// Who enters counts itself and then looks whether the gate is shut; who shuts it does so and then looks at the
/// counts. Between the two steps of each stands a sequentially consistent fence, so at least one sees the other: who
/// missed that the gate was shut is waited for. Nobody waits inside, so that ends.
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

    /// Stays inside until the result is dropped. `None` where the gate is shut; everybody has left then.
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

    /// Shuts the gate, wakes those who wait, and waits until everybody has left.
    pub(crate) fn shut(&self, notify: &Notify) {
        self.is_shut.store(true, Ordering::Release);
        // Has the fence.
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

/// Somebody inside a gate, also while unwinding.
pub(crate) struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
