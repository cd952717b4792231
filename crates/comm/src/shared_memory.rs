//! The transport between the ranks of one process.
//!
//! [`Rendezvous`] decides when a chunk may run and when a rank may reuse its buffers, [`Gate`]
//! prevents buffer accesses after a failure, [`Notify`] wakes waiting threads; each of these files
//! contains its correctness argument, and they are model-checked. This file has the pointers and
//! the work.

use std::ptr;
use std::sync::OnceLock;

use partita_base::{CollectiveId, Result};

use crate::copy::finish_streams;
use crate::liveness::{Begun, Liveness};
use crate::notify::Notify;
use crate::rendezvous::{Gate, Rendezvous};
use crate::share::{Action, Piece, Plan};
use crate::spec::CollectiveSpec;
use crate::sync::{AtomicPtr, Ordering};
use crate::transport::{Failure, Poll, Transport};

/// Collectives over the memory of one process. All allocation happens here, once; a use of a
/// collective allocates nothing.
pub struct SharedMemory {
    specs: Vec<CollectiveSpec>,
    slots: Vec<Slot>,
    gate: Gate,
    notify: Notify,
    failure: OnceLock<Failure>,
    begun: Begun,
}

/// The state of one collective.
struct Slot {
    plan: Plan,
    rendezvous: Rendezvous,
    /// Per exchange.
    buffers: Vec<Buffers>,
}

/// The members' buffers in their current use, in member order. Published by arrival; atomic only so
/// that no protocol error can be a data race.
struct Buffers {
    inputs: Vec<AtomicPtr<u8>>,
    outputs: Vec<AtomicPtr<u8>>,
}

/// Stores a pointer for the other members. It is usually unchanged since the last use, so that
/// their cached copy stays valid.
fn publish(place: &AtomicPtr<u8>, pointer: *mut u8) {
    if place.load(Ordering::Relaxed) != pointer {
        place.store(pointer, Ordering::Relaxed);
    }
}

/// The published pointers.
fn published(places: &[AtomicPtr<u8>]) -> impl Iterator<Item = *mut u8> + Clone + '_ {
    places.iter().map(|place| place.load(Ordering::Relaxed))
}

impl SharedMemory {
    /// A world of `rank_count` ranks with all collectives that they will use; ids are positions in
    /// the list.
    ///
    /// # Errors
    /// See [`CollectiveSpec::validate`].
    pub fn new(rank_count: usize, collectives: Vec<CollectiveSpec>) -> Result<Self> {
        collectives.iter().try_for_each(|spec| spec.validate(rank_count))?;
        Ok(SharedMemory {
            slots: collectives.iter().map(Slot::new).collect(),
            specs: collectives,
            gate: Gate::new(rank_count),
            notify: Notify::new(),
            failure: OnceLock::new(),
            begun: Begun::new(rank_count),
        })
    }

    fn member(&self, collective: CollectiveId, rank: usize) -> usize {
        let spec = &self.specs[collective.index()];
        spec.members
            .iter()
            .position(|&r| r == rank)
            .unwrap_or_else(|| panic!("rank {rank} takes no part in collective `{}`", spec.label))
    }
}

impl Transport for SharedMemory {
    fn rank_count(&self) -> usize {
        self.gate.ranks()
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
        let label = &spec.label;
        spec.expect_buffers(index, inputs, outputs);
        assert!(
            slot.rendezvous.is_complete(index),
            "rank {rank} starts `{label}` while it is still in flight there"
        );
        for &exchange in &slot.plan.zero_fills[index] {
            if outputs[exchange].len() > 0 {
                // SAFETY: the caller guarantees a valid output, and until it is published only this
                // thread accesses it.
                unsafe { outputs[exchange].cast::<u8>().write_bytes(0, outputs[exchange].len()) };
            }
        }
        slot.rendezvous.arrive(index, &self.notify, || {
            for ((buffers, &input), &output) in slot.buffers.iter().zip(inputs).zip(outputs) {
                publish(&buffers.inputs[index], input.cast::<u8>().cast_mut());
                publish(&buffers.outputs[index], output.cast::<u8>());
            }
        });
    }

    fn poll(&self, collective: CollectiveId, rank: usize) -> Poll {
        let slot = &self.slots[collective.index()];
        let member = self.member(collective, rank);
        slot.rendezvous
            .poll(member, self.gate.enter(rank), &self.notify, |share, chunk| slot.run(share, chunk))
    }

    fn notify(&self) -> &Notify {
        &self.notify
    }

    fn fail(&self, failure: Failure) {
        // A later failure does not replace the first message.
        let _ = self.failure.set(failure);
        self.gate.shut(&self.notify);
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.get().cloned()
    }

    fn missing(&self, collective: CollectiveId) -> Vec<usize> {
        let (spec, slot) = (&self.specs[collective.index()], &self.slots[collective.index()]);
        let arrived: Vec<u64> = (0..spec.members.len()).map(|m| slot.rendezvous.epoch(m)).collect();
        let latest = arrived.iter().copied().max().unwrap_or(0);
        let ranks = spec.members.iter();
        ranks.zip(arrived).filter(|(_, epoch)| *epoch < latest).map(|(&rank, _)| rank).collect()
    }

    fn begin(&self, rank: usize, instruction: usize) {
        self.begun.begin(rank, instruction);
    }

    fn sign(&self, rank: usize) -> Liveness {
        self.begun.sign(rank)
    }

    fn control_all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![bytes.to_vec()])
    }
}

impl Slot {
    fn new(spec: &CollectiveSpec) -> Self {
        let plan = Plan::new(spec);
        let null = || spec.members.iter().map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        let shares: Vec<_> = plan.shares.iter().map(|s| (s.chunks.len(), s.touches.clone())).collect();
        Slot {
            rendezvous: Rendezvous::new(&shares),
            buffers: spec.exchanges.iter().map(|_| Buffers { inputs: null(), outputs: null() }).collect(),
            plan,
        }
    }

    /// Runs a chunk that was claimed from [`Rendezvous`].
    fn run(&self, share: usize, chunk: usize) {
        let streams = self.plan.streams;
        for Piece { exchange, targets, action } in &self.plan.shares[share].chunks[chunk] {
            let Buffers { inputs, outputs } = &self.buffers[*exchange];
            let outputs = published(&outputs[targets.clone()]);
            // SAFETY: a chunk runs once per use, and only while all members that it touches are in
            // that use: pointers, sizes and alignment are those that `start` checked, inputs are
            // not written, and only the collective writes outputs. Validation and the plan ensure
            // that pieces are inside the buffers and that no two write the same bytes.
            unsafe {
                match action {
                    Action::Reduce(reduction) => {
                        reduction.run(published(inputs).map(<*mut u8>::cast_const), outputs, streams);
                    }
                    Action::Copy(source, copy) => {
                        copy.run(inputs[*source].load(Ordering::Relaxed), outputs, streams);
                    }
                }
            }
        }
        if streams {
            finish_streams();
        }
    }
}
