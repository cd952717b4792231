//! Tests of the protocol under every interleaving of a few threads, and every value that the
//! orderings let a load return (loom).
//!
//! Buffers are cells that report a read or write that is not ordered after the last write, and a
//! write that is not ordered after all reads. A thread that sleeps for ever is a deadlock and is
//! reported too.

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread;

use crate::endpoint::Endpoint;
use crate::notify::Notify;
use crate::rendezvous::{Gate, Rendezvous};
use crate::spec::CollectiveSpec;
use crate::sync::{AtomicUsize, Ordering};
use crate::transport::{Failure, Poll, Transport};
use partita_base::{CollectiveId, Result as Checked};

/// One collective whose chunks read an input of every member that they touch and write to an output of each.
struct World {
    rendezvous: Rendezvous,
    gate: Gate,
    notify: Notify,
    /// Per share: its chunks and the members that they touch.
    shares: Vec<(usize, Vec<usize>)>,
    members: Vec<Member>,
    failure: std::sync::Mutex<Option<Failure>>,
}

struct Member {
    /// Represents a pointer: the number of its use.
    pointer: AtomicUsize,
    input: UnsafeCell<usize>,
    /// Per share and chunk.
    outputs: Vec<Vec<UnsafeCell<usize>>>,
}

// SAFETY: cells are accessed as the protocol allows; the tests check that, and loom stops a test
// that violates it.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    fn new(shares: &[(usize, &[usize])]) -> Arc<World> {
        let shares: Vec<_> = shares.iter().map(|(chunks, touches)| (*chunks, touches.to_vec())).collect();
        let outputs = |(chunks, _): &(usize, Vec<usize>)| (0..*chunks).map(|_| UnsafeCell::new(0)).collect();
        let member = |_| Member {
            pointer: AtomicUsize::new(0),
            input: UnsafeCell::new(0),
            outputs: shares.iter().map(outputs).collect(),
        };
        Arc::new(World {
            rendezvous: Rendezvous::new(&shares),
            gate: Gate::new(shares.len()),
            notify: Notify::new(),
            members: (0..shares.len()).map(member).collect(),
            shares,
            failure: std::sync::Mutex::new(None),
        })
    }

    /// The work of a rank before a use: it fills its input and clears its outputs, which it owns.
    fn begin(&self, rank: usize, using: usize) {
        let member = &self.members[rank];
        // SAFETY: see `World`.
        member.input.with_mut(|input| unsafe { *input = using });
        for output in member.outputs.iter().flatten() {
            // SAFETY: see `World`.
            output.with_mut(|output| unsafe { *output = 0 });
        }
        self.rendezvous.arrive(rank, &self.notify, || member.pointer.store(using, Ordering::Relaxed));
    }

    /// The work of a rank after a use: it reads its outputs.
    fn end(&self, rank: usize, using: usize) {
        for (share, (_, touches)) in self.shares.iter().enumerate() {
            for output in &self.members[rank].outputs[share] {
                let expected = if touches.contains(&rank) { using } else { 0 };
                // SAFETY: see `World`.
                output.with(|output| assert_eq!(unsafe { *output }, expected));
            }
        }
    }

    fn run(&self, share: usize, chunk: usize) {
        let mut using = None;
        for &touched in &self.shares[share].1 {
            let member = &self.members[touched];
            // SAFETY: see `World`.
            let input = member.input.with(|input| unsafe { *input });
            assert_eq!(member.pointer.load(Ordering::Relaxed), input, "a pointer of another use");
            assert_eq!(*using.get_or_insert(input), input, "inputs of different uses");
        }
        for &touched in &self.shares[share].1 {
            // SAFETY: see `World`.
            self.members[touched].outputs[share][chunk].with_mut(|output| unsafe {
                assert_eq!(*output, 0, "a chunk is run twice");
                *output = using.expect("a share touches its own member");
            });
        }
    }

    fn wait(&self, rank: usize) -> Result<(), String> {
        Endpoint::new(self, rank).wait(CollectiveId::new(0)).map_err(|error| error.message)
    }
}

impl Transport for World {
    fn rank_count(&self) -> usize {
        self.members.len()
    }

    fn collectives(&self) -> &[CollectiveSpec] {
        &[]
    }

    unsafe fn start(&self, _: CollectiveId, _: usize, _: &[*const [u8]], _: &[*mut [u8]]) {
        unreachable!("ranks of a model begin")
    }

    fn poll(&self, _: CollectiveId, rank: usize) -> Poll {
        self.rendezvous.poll(rank, self.gate.enter(rank), &self.notify, |share, chunk| self.run(share, chunk))
    }

    fn notify(&self) -> &Notify {
        &self.notify
    }

    fn fail(&self, failure: Failure) {
        *self.failure.lock().unwrap() = Some(failure);
        self.gate.shut(&self.notify);
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap().clone()
    }

    fn missing(&self, _: CollectiveId) -> Vec<usize> {
        Vec::new()
    }

    fn control_all_gather(&self, _: &[u8]) -> Checked<Vec<Vec<u8>>> {
        unreachable!("a model has no control channel")
    }
}

/// Runs a test with at most `preemptions` preemptions, each at any point.
fn explore(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut model = Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

/// `uses` uses by ranks that each have a thread.
fn use_again_and_again(shares: &'static [(usize, &'static [usize])], uses: usize, preemptions: usize) {
    explore(preemptions, move || {
        let world = World::new(shares);
        let play = move |world: &World, rank: usize| {
            for using in 1..=uses {
                world.begin(rank, using);
                world.wait(rank).unwrap();
                world.end(rank, using);
            }
        };
        let peers: Vec<_> = (1..shares.len())
            .map(|rank| {
                let world = world.clone();
                thread::spawn(move || play(&world, rank))
            })
            .collect();
        play(&world, 0);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

#[test]
fn who_was_told_of_a_change_sees_it() {
    explore(3, || {
        let changed = Arc::new((Notify::new(), AtomicUsize::new(0)));
        let peer = changed.clone();
        let peer = thread::spawn(move || {
            peer.1.store(1, Ordering::Relaxed);
            peer.0.bump();
        });
        let (notify, value) = &*changed;
        loop {
            let seen = notify.epoch();
            if value.load(Ordering::Relaxed) == 1 {
                break;
            }
            notify.wait_for_change(seen, Duration::ZERO, Duration::from_secs(60));
        }
        peer.join().unwrap();
    });
}

#[test]
fn a_rank_that_arrives_and_computes_is_no_hindrance() {
    explore(3, || {
        let world = World::new(&[(1, &[0, 1]), (1, &[0, 1])]);
        let peer = world.clone();
        let peer = thread::spawn(move || {
            peer.begin(0, 1);
            peer.wait(0).unwrap();
            peer.end(0, 1);
        });
        world.begin(1, 1);
        peer.join().unwrap();
        world.wait(1).unwrap();
        world.end(1, 1);
    });
}

#[test]
fn reductions_of_two_ranks_follow_each_other() {
    use_again_and_again(&[(1, &[0, 1]), (1, &[0, 1])], 2, 2);
}

#[test]
fn two_ranks_share_the_chunks_of_one() {
    use_again_and_again(&[(2, &[0, 1]), (0, &[])], 2, 2);
}

#[test]
fn three_ranks_pass_on_in_a_chain() {
    use_again_and_again(&[(1, &[0, 1]), (1, &[1, 2]), (0, &[])], 1, 1);
}

#[test]
fn a_thread_that_plays_two_ranks_misses_no_change() {
    explore(2, || {
        let world = World::new(&[(1, &[0, 1, 2]), (1, &[0, 1, 2]), (1, &[0, 1, 2])]);
        let peer = world.clone();
        let peer = thread::spawn(move || {
            peer.begin(1, 1);
            peer.wait(1).unwrap();
            peer.end(1, 1);
        });
        // Like the workers of the executor.
        world.begin(0, 1);
        world.begin(2, 1);
        let mut open = vec![0, 2];
        while !open.is_empty() {
            let seen = world.notify.epoch();
            let before = open.len();
            open.retain(|&rank| world.poll(CollectiveId::new(0), rank) != Poll::Ready);
            if open.len() == before {
                world.notify.wait_for_change(seen, Duration::ZERO, Duration::from_secs(60));
            }
        }
        world.end(0, 1);
        world.end(2, 1);
        peer.join().unwrap();
    });
}

#[test]
fn a_failure_ends_all_and_frees_all_buffers() {
    // Rank 1 fails before it arrives, or after.
    for arrives in [false, true] {
        explore(3, move || {
            let world = World::new(&[(1, &[0, 1]), (1, &[0, 1])]);
            let peer = world.clone();
            let peer = thread::spawn(move || {
                peer.begin(0, 1);
                match peer.wait(0) {
                    Ok(()) => assert!(arrives),
                    Err(message) => assert_eq!(message, "rank 1 failed: out of luck"),
                }
            });
            if arrives {
                world.begin(1, 1);
            }
            world.fail(Failure { rank: 1, code: "E443".into(), message: "out of luck".into() });
            // No thread accesses the failed rank's buffers any more.
            world.members[1].input.with_mut(|_| ());
            world.members[1].outputs.iter().flatten().for_each(|output| output.with_mut(|_| ()));
            peer.join().unwrap();
        });
    }
}
