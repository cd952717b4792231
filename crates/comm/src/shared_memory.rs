//! The transport between the ranks of one process.
//!
//! # Why it is correct
//!
//! A member of a collective has three counters, each the number of the last use (epoch) for which something
//! holds: `arrived` (its pointers are published), `reduced` (its slice of an all-reduce is in its output) and
//! `done` (it has read all it needs; its output is complete). They only grow, each by one per use.
//!
//! - *Data.* Whoever stores a counter with `Release` has before it written what the counter speaks of; whoever
//!   then touches that has loaded the counter with `Acquire`. So: buffers and pointers written before `start`
//!   are seen by those that saw `arrived`; a slice by those that saw `reduced`; and the owner that saw `done` of
//!   a reader may overwrite its buffers, since the reads come before that store.
//! - *Reuse.* A member starts use `e + 1` only when it is done with `e` and so are all that read its buffers. So
//!   while a reader is at `e` and has seen `arrived >= e` (or `reduced >= e`) of a member that it reads,
//!   that member is at `e` exactly, and the pointers found there are those of `e`.
//! - *One writer.* A member's share of the work is done under its `turn`, a mutex that is only tried: so one
//!   thread at a time writes its output, be it the rank's own or a peer's that has nothing better to do.
//!   In an all-reduce peers read a slice that is no longer written while others are being filled in: disjoint
//!   bytes, through raw pointers.
//! - *Failure.* A poll counts itself in `working` and then looks at `failed`; a failure sets `failed` and then
//!   waits until every `working` is zero. Both in one sequentially consistent order: so a poll that missed the
//!   failure is waited for, and later ones touch nothing. Work never waits, so this ends.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use partita_base::Result;

use crate::notify::Notify;
use crate::share::{Fetch, Share, shares};
use crate::spec::CollectiveSpec;
use crate::transport::{CollectiveId, Failure, Poll, Transport};

/// Collectives over the memory of one process. Everything is allocated here, once; a use of a collective
/// allocates nothing.
pub struct SharedMemory {
    specs: Vec<CollectiveSpec>,
    slots: Vec<Slot>,
    /// Per rank: polls that may be touching buffers.
    working: Vec<Line<AtomicUsize>>,
    notify: Notify,
    failed: AtomicBool,
    failure: OnceLock<Failure>,
}

/// Keeps what different threads write on different cache lines (in pairs, as prefetchers fetch them).
#[repr(align(128))]
struct Line<T>(T);

/// Where the members of one collective meet.
struct Slot {
    shares: Vec<Share>,
    members: Vec<Line<Member>>,
}

struct Member {
    arrived: AtomicU64,
    reduced: AtomicU64,
    done: AtomicU64,
    /// Per exchange. Published by `arrived`; atomic only so that no protocol error can be a data race.
    inputs: Vec<AtomicPtr<u8>>,
    outputs: Vec<AtomicPtr<u8>>,
    turn: Mutex<Turn>,
}

/// What is done of a member's share of the current use.
struct Turn {
    zero_filled: bool,
    inputs_fetched: Vec<bool>,
    reduced: bool,
    outputs_fetched: Vec<bool>,
}

impl SharedMemory {
    /// A world of `rank_count` ranks and all collectives they will ever use; ids are positions in the list.
    ///
    /// # Errors
    /// See [`CollectiveSpec::validate`].
    pub fn new(rank_count: usize, collectives: Vec<CollectiveSpec>) -> Result<Self> {
        collectives.iter().try_for_each(|spec| spec.validate(rank_count))?;
        Ok(SharedMemory {
            slots: collectives.iter().map(Slot::new).collect(),
            specs: collectives,
            working: (0..rank_count).map(|_| Line(AtomicUsize::new(0))).collect(),
            notify: Notify::new(),
            failed: AtomicBool::new(false),
            failure: OnceLock::new(),
        })
    }

    fn member(&self, collective: CollectiveId, rank: usize) -> usize {
        let spec = &self.specs[collective.index()];
        spec.members
            .iter()
            .position(|&r| r == rank)
            .unwrap_or_else(|| panic!("rank {rank} takes no part in collective `{}`", spec.label))
    }

    /// Waits until no poll touches buffers. To be called after `failed` is set.
    fn quiesce(&self) {
        for working in &self.working {
            while working.0.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
    }
}

impl Transport for SharedMemory {
    fn rank_count(&self) -> usize {
        self.working.len()
    }

    fn collectives(&self) -> &[CollectiveSpec] {
        &self.specs
    }

    unsafe fn start(
        &self,
        collective: CollectiveId,
        rank: usize,
        inputs: &[*const [u8]],
        outputs: &[*mut [u8]],
    ) {
        let spec = &self.specs[collective.index()];
        let slot = &self.slots[collective.index()];
        let index = self.member(collective, rank);
        let member = &slot.members[index].0;
        let label = &spec.label;
        assert_eq!(inputs.len(), spec.exchanges.len(), "inputs of `{label}`: one per tensor of the bucket");
        assert_eq!(outputs.len(), spec.exchanges.len(), "outputs of `{label}`: one per tensor of the bucket");
        for ((exchange, &input), &output) in spec.exchanges.iter().zip(inputs).zip(outputs) {
            assert_eq!(
                input.len(),
                exchange.input_bytes(index),
                "bytes of an input of `{label}`, rank {rank}"
            );
            assert_eq!(
                output.len(),
                exchange.output_bytes(index),
                "bytes of an output of `{label}`, rank {rank}"
            );
            let (from, to) = (input.cast::<u8>().addr(), output.cast::<u8>().addr());
            let aligned = |address: usize, bytes: usize| {
                bytes == 0 || address.is_multiple_of(exchange.alignment_bytes())
            };
            assert!(
                aligned(from, input.len()) && aligned(to, output.len()),
                "alignment of buffers of `{label}`"
            );
            let apart = input.len() == 0
                || output.len() == 0
                || from + input.len() <= to
                || to + output.len() <= from;
            assert!(apart, "an input of `{label}` overlaps its output on rank {rank}");
        }
        // Held by others only while they find that there is nothing to do.
        let mut turn = member.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if !slot.is_complete(index) {
            drop(turn);
            panic!("rank {rank} starts `{label}` while it is still in flight there");
        }
        turn.zero_filled = false;
        turn.inputs_fetched.fill(false);
        turn.reduced = false;
        turn.outputs_fetched.fill(false);
        for (published, &input) in member.inputs.iter().zip(inputs) {
            published.store(input.cast::<u8>().cast_mut(), Ordering::Relaxed);
        }
        for (published, &output) in member.outputs.iter().zip(outputs) {
            published.store(output.cast::<u8>(), Ordering::Relaxed);
        }
        // Moved only here, under the turn, so no update is lost.
        member.arrived.store(member.arrived.load(Ordering::Relaxed) + 1, Ordering::Release);
        drop(turn);
        self.notify.bump();
    }

    fn poll(&self, collective: CollectiveId, rank: usize) -> Poll {
        let slot = &self.slots[collective.index()];
        let member = self.member(collective, rank);
        let working = Working::enter(&self.working[rank].0);
        if self.failed.load(Ordering::SeqCst) {
            drop(working);
            self.quiesce();
            return Poll::Failed;
        }
        // My own share first; while that is not enough, everybody's, for as long as that leads anywhere.
        let mut progress = slot.advance(member, &self.specs[collective.index()]);
        let mut any_progress = progress;
        while !slot.is_complete(member) {
            progress = false;
            for offset in 0..slot.members.len() {
                let other = (member + offset) % slot.members.len();
                progress |= slot.advance(other, &self.specs[collective.index()]);
            }
            if !progress {
                break;
            }
            any_progress = true;
        }
        drop(working);
        if any_progress {
            self.notify.bump();
        }
        if slot.is_complete(member) { Poll::Ready } else { Poll::Pending }
    }

    fn notify(&self) -> &Notify {
        &self.notify
    }

    fn fail(&self, failure: Failure) {
        // Who comes second leaves the first message in place.
        let _ = self.failure.set(failure);
        self.failed.store(true, Ordering::SeqCst);
        self.notify.bump();
        self.quiesce();
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    fn missing(&self, collective: CollectiveId) -> Vec<usize> {
        let slot = &self.slots[collective.index()];
        let arrived: Vec<u64> = slot.members.iter().map(|m| m.0.arrived.load(Ordering::Acquire)).collect();
        let latest = arrived.iter().copied().max().unwrap_or(0);
        let ranks = self.specs[collective.index()].members.iter();
        ranks.zip(arrived).filter(|(_, epoch)| *epoch < latest).map(|(&rank, _)| rank).collect()
    }
}

/// Counts a poll as one that may touch buffers, also while it unwinds.
struct Working<'a>(&'a AtomicUsize);

impl<'a> Working<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Working(count)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Member {
    fn is_unfinished(&self) -> bool {
        self.done.load(Ordering::Acquire) < self.arrived.load(Ordering::Acquire)
    }

    fn has_arrived(&self, epoch: u64) -> bool {
        self.arrived.load(Ordering::Acquire) >= epoch
    }

    fn input(&self, exchange: usize) -> *const u8 {
        self.inputs[exchange].load(Ordering::Relaxed)
    }

    fn output(&self, exchange: usize) -> *mut u8 {
        self.outputs[exchange].load(Ordering::Relaxed)
    }
}

impl Slot {
    fn new(spec: &CollectiveSpec) -> Self {
        let shares = shares(spec);
        let null = || (0..spec.exchanges.len()).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        let member = |share: &Share| {
            Line(Member {
                arrived: AtomicU64::new(0),
                reduced: AtomicU64::new(0),
                done: AtomicU64::new(0),
                inputs: null(),
                outputs: null(),
                turn: Mutex::new(Turn {
                    zero_filled: false,
                    inputs_fetched: vec![false; share.inputs.len()],
                    reduced: false,
                    outputs_fetched: vec![false; share.outputs.len()],
                }),
            })
        };
        Slot { members: shares.iter().map(member).collect(), shares }
    }

    /// Whether a member's output is complete and nobody will read its buffers any more.
    fn is_complete(&self, index: usize) -> bool {
        let epoch = self.members[index].0.arrived.load(Ordering::Acquire);
        let done = |member: usize| self.members[member].0.done.load(Ordering::Acquire) >= epoch;
        done(index) && self.shares[index].readers.iter().all(|&reader| done(reader))
    }

    /// Does what can be done now of a member's share. Returns whether that was anything.
    fn advance(&self, index: usize, spec: &CollectiveSpec) -> bool {
        let (member, share) = (&self.members[index].0, &self.shares[index]);
        if !member.is_unfinished() {
            return false;
        }
        // Somebody else is at it; they will tell when they get somewhere.
        let Ok(mut turn) = member.turn.try_lock() else { return false };
        // Once more, as it may have been finished in between. Under its turn a member neither starts nor ends.
        if !member.is_unfinished() {
            return false;
        }
        let epoch = member.arrived.load(Ordering::Acquire);
        let turn = &mut *turn;
        let mut progress = false;
        if !turn.zero_filled {
            for &exchange in &share.zero_fills {
                // SAFETY: the output has that many bytes, and under its turn it is ours alone.
                unsafe {
                    let bytes = spec.exchanges[exchange].output_bytes(index);
                    if bytes > 0 {
                        member.output(exchange).write_bytes(0, bytes);
                    }
                }
            }
            turn.zero_filled = true;
        }
        for (fetch, fetched) in share.inputs.iter().zip(&mut turn.inputs_fetched) {
            let peer = &self.members[fetch.peer].0;
            if !*fetched && peer.has_arrived(epoch) {
                // SAFETY: the peer has arrived, so its pointers are those of this use and its input is valid and
                // not written until our `done`; validation has shown that boxes lie within the buffers.
                unsafe { run_copies(fetch, |exchange| peer.input(exchange), member) };
                *fetched = true;
                progress = true;
            }
        }
        if !turn.reduced && (!share.needs_all || self.members.iter().all(|m| m.0.has_arrived(epoch))) {
            for (exchange, reduction) in &share.reductions {
                // SAFETY: as above, for all members; the share's stretches lie within the buffers, whose sizes
                // and alignment `start` has checked.
                unsafe {
                    let input = |m: usize| self.members[m].0.input(*exchange);
                    reduction.run(self.members.len(), input, member.output(*exchange));
                }
            }
            turn.reduced = true;
            member.reduced.store(epoch, Ordering::Release);
            progress = true;
        }
        for (fetch, fetched) in share.outputs.iter().zip(&mut turn.outputs_fetched) {
            let peer = &self.members[fetch.peer].0;
            if !*fetched && peer.reduced.load(Ordering::Acquire) >= epoch {
                // SAFETY: the peer has reduced its slice in this use and does not write it again before our
                // `done`; in our output that slice is written only here.
                unsafe { run_copies(fetch, |exchange| peer.output(exchange), member) };
                *fetched = true;
                progress = true;
            }
        }
        if turn.reduced && turn.inputs_fetched.iter().chain(&turn.outputs_fetched).all(|f| *f) {
            member.done.store(epoch, Ordering::Release);
            progress = true;
        }
        progress
    }
}

/// # Safety
/// Every copy must be allowed from `source` of its exchange to the member's output.
unsafe fn run_copies(fetch: &Fetch, source: impl Fn(usize) -> *const u8, member: &Member) {
    for (exchange, copy) in &fetch.copies {
        // SAFETY: the caller's promise.
        unsafe { copy.run(source(*exchange), member.output(*exchange)) };
    }
}
