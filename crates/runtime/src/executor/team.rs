//! Work stealing within a rank: the owning worker splits each kernel into parts; idle workers steal
//! parts.
//!
//! The worker posts an instruction and deals its parts to the places of the team, adjacent parts to
//! one place. The worker takes its own parts from the front, a helper those of its place. When
//! these are used up, both steal from the back of other places. So a slow, sleeping or preempted
//! thread delays the others by at most one part. The worker continues when all parts are done, so
//! an instruction begins after the previous one on all threads. Results do not depend on which
//! thread runs a part.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use partita_base::{Diagnostic, Result};
use partita_comm::Notify;

use super::lock;
use super::rank::{Body, Ready};
use super::recorder::Track;
use crate::arena::Span;
use crate::cpu::Kernel;

/// How a part failed.
enum Failure {
    Error(Box<Diagnostic>),
    Panic(Box<dyn Any + Send>),
}

/// The parts of one post that are dealt to one place and not yet taken. The word also holds the
/// number of the post (generation), so a late thread finds no part of a later post.
struct TaskQueue(AtomicU64);

/// The most parts of an instruction.
const MAX_PARTS: usize = u16::MAX as usize;

impl TaskQueue {
    fn word(post: u32, parts: Range<usize>) -> u64 {
        debug_assert!(parts.end <= MAX_PARTS);
        u64::from(post) << 32 | (parts.start as u64) << 16 | parts.end as u64
    }

    fn put(&self, post: u32, parts: Range<usize>) {
        self.0.store(Self::word(post, parts), Ordering::SeqCst);
    }

    /// Takes the first or the last part.
    fn take(&self, post: u32, first: bool) -> Option<usize> {
        let parts = |word: u64| usize::from((word >> 16) as u16)..usize::from(word as u16);
        let taken = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            let Range { start, end } = parts(word);
            let rest = if first { start + 1..end } else { start..end.wrapping_sub(1) };
            ((word >> 32) as u32 == post && start < end).then(|| Self::word(post, rest))
        });
        taken.ok().map(|word| if first { parts(word).start } else { parts(word).end - 1 })
    }
}

/// The workers that are idle and steal parts.
pub(super) struct Idle<'a> {
    count: &'a AtomicUsize,
    /// Where they wait.
    notify: &'a Notify,
    /// Whether this worker is counted as idle.
    is_counted: Cell<bool>,
}

impl<'a> Idle<'a> {
    pub fn new(count: &'a AtomicUsize, notify: &'a Notify) -> Idle<'a> {
        Idle { count, notify, is_counted: Cell::new(false) }
    }

    /// Counts this worker as idle, or not.
    pub fn count_me(&self, is_idle: bool) {
        match (self.is_counted.replace(is_idle), is_idle) {
            (false, true) => _ = self.count.fetch_add(1, Ordering::SeqCst),
            (true, false) => _ = self.count.fetch_sub(1, Ordering::SeqCst),
            _ => {}
        }
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Wakes idle workers after a post. A worker counts itself idle and then looks for posts; this
    /// method posts and then checks the count. So at least one sees the other.
    fn call(&self) {
        if !self.is_empty() {
            self.notify.bump();
        }
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.count_me(false);
    }
}

/// State shared by the threads that work on a rank.
pub(super) struct Team {
    pub body: Body,
    /// Per place, the worker's first.
    queues: Box<[TaskQueue]>,
    /// How long a worker that waits for helpers spins before it sleeps.
    awake: Duration,
    /// The last post: its number in the upper half, the instruction in the lower.
    post: AtomicU64,
    /// Parts of the last post that are not done.
    left: AtomicUsize,
    ended: Notify,
    failure: Mutex<Option<Failure>>,
}

impl Team {
    pub fn new(body: Body, places: usize, awake: Duration) -> Team {
        Team {
            body,
            queues: (0..places.max(1)).map(|_| TaskQueue(AtomicU64::new(0))).collect(),
            awake,
            post: AtomicU64::new(0),
            left: AtomicUsize::new(0),
            ended: Notify::new(),
            failure: Mutex::new(None),
        }
    }

    /// Runs a compute instruction; on this thread alone if no worker is idle and that saves work.
    /// Called by the worker.
    pub fn run(&self, instruction: usize, idle: &Idle, track: Track) -> Result<()> {
        let (kernel, workspace) = self.kernel(instruction);
        let memory = self.body.arena.memory();
        let is_alone = self.queues.len() == 1 || (kernel.is_better_alone() && idle.is_empty());
        let what = || self.body.event(instruction);
        if is_alone || kernel.part_count() == 1 || kernel.part_count() > MAX_PARTS {
            return track.time(what, || kernel.run(&memory, workspace));
        }
        self.run_parts(instruction, kernel.part_count(), idle, track)?;
        track.time(what, || kernel.finish(&memory, workspace))
    }

    /// Runs all parts except the final one; idle workers may steal them.
    fn run_parts(&self, instruction: usize, parts: usize, idle: &Idle, track: Track) -> Result<()> {
        let post = ((self.post.load(Ordering::SeqCst) >> 32) as u32).wrapping_add(1);
        let places = self.queues.len();
        self.left.store(parts, Ordering::SeqCst);
        for (place, queue) in self.queues.iter().enumerate() {
            queue.put(post, parts * place / places..parts * (place + 1) / places);
        }
        self.post.store(u64::from(post) << 32 | instruction as u64, Ordering::SeqCst);
        idle.call();
        while self.run_one_part(0, track) {}
        loop {
            let seen = self.ended.epoch();
            if self.left.load(Ordering::SeqCst) == 0 {
                break;
            }
            self.ended.wait_for_change(seen, self.awake, Duration::MAX);
        }
        match lock(&self.failure).take() {
            Some(Failure::Panic(panic)) => resume_unwind(panic),
            Some(Failure::Error(error)) => Err(error),
            None => Ok(()),
        }
    }

    /// The kernel of a compute instruction, and its scratch memory.
    fn kernel(&self, instruction: usize) -> (&Kernel, Span) {
        let Ready::Compute { kernel, workspace } = &self.body.instructions[instruction] else {
            unreachable!("only compute instructions are run")
        };
        (kernel, *workspace)
    }

    /// Runs a part of the last post, preferably one dealt to `place`. Returns whether there was
    /// one.
    pub fn run_one_part(&self, place: usize, track: Track) -> bool {
        let place = place % self.queues.len();
        let word = self.post.load(Ordering::SeqCst);
        let (post, instruction) = ((word >> 32) as u32, word as u32 as usize);
        let mut others = self.queues[place + 1..].iter().chain(&self.queues[..place]);
        let own = self.queues[place].take(post, true);
        // A part that was taken keeps the post alive; without one, only the post's number was read.
        let Some(part) = own.or_else(|| others.find_map(|queue| queue.take(post, false))) else {
            return false;
        };
        let run = || {
            let (kernel, workspace) = self.kernel(instruction);
            let memory = self.body.arena.memory();
            track.time(|| self.body.event(instruction), || kernel.run_part(part, &memory, workspace))
        };
        let failure = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Failure::Error(error)),
            Err(panic) => Some(Failure::Panic(panic)),
        };
        if let Some(failure) = failure {
            lock(&self.failure).get_or_insert(failure);
        }
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.ended.bump();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorder::Recorder;
    use super::*;
    use crate::arena::Arena;
    use partita_program::Event;
    use std::ops::Deref;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// A team and its helper threads, which end when it is dropped.
    struct Staffed {
        team: Arc<Team>,
        idle: Arc<Notify>,
        idle_count: AtomicUsize,
        is_over: Arc<AtomicBool>,
        recorder: Arc<Recorder>,
    }

    impl Staffed {
        fn run(&self, instruction: usize) -> Result<()> {
            let idle = Idle::new(&self.idle_count, &self.idle);
            self.team.run(instruction, &idle, self.recorder.track(0))
        }
    }

    impl Deref for Staffed {
        type Target = Team;

        fn deref(&self) -> &Team {
            &self.team
        }
    }

    impl Drop for Staffed {
        fn drop(&mut self) {
            self.is_over.store(true, Ordering::SeqCst);
            self.idle.bump();
        }
    }

    /// Three bytes of work: each part adds one to its own, or does something else.
    fn team(threads: usize, last: fn() -> Result<()>) -> Staffed {
        let part = |at: usize, end: fn() -> Result<()>| {
            Kernel::new(0, move |memory, _| {
                memory.bytes_mut(Span { offset: at, bytes: 1 })[0] += 1;
                end()
            })
        };
        staffed(Kernel::together([part(0, || Ok(())), part(1, || Ok(())), part(2, last)]), 3, threads)
    }

    /// A team with running helpers, and one instruction over this many bytes.
    fn staffed(kernel: Kernel, bytes: usize, threads: usize) -> Staffed {
        staffed_with(Recorder::new(threads, false), kernel, bytes, threads)
    }

    /// With this recorder.
    fn staffed_with(recorder: Recorder, kernel: Kernel, bytes: usize, threads: usize) -> Staffed {
        let recorder = Arc::new(recorder);
        let instructions = vec![Ready::Compute { kernel, workspace: Span::default() }];
        let body = Body::new(instructions, Arena::new(bytes).unwrap());
        let team = Arc::new(Team::new(body, threads, Duration::from_micros(10)));
        let (idle, is_over) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        for place in 1..threads {
            let (team, idle, is_over) = (team.clone(), idle.clone(), is_over.clone());
            let recorder = recorder.clone();
            std::thread::spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let seen = idle.epoch();
                    if !team.run_one_part(place, recorder.track(place)) {
                        idle.wait_for_change(seen, Duration::from_micros(10), Duration::from_millis(1));
                    }
                }
            });
        }
        Staffed { team, idle, idle_count: AtomicUsize::new(threads - 1), is_over, recorder }
    }

    fn bytes(team: &Team) -> Vec<u8> {
        team.body.arena.memory().bytes(Span { offset: 0, bytes: 3 }).to_vec()
    }

    #[test]
    fn every_part_runs_once_whoever_runs_it() {
        for threads in 1..=4 {
            let team = team(threads, || Ok(()));
            for step in 1..=200 {
                team.run(0).unwrap();
                assert_eq!(bytes(&team), [step; 3], "{threads} threads");
            }
        }
    }

    #[test]
    fn who_is_done_takes_what_others_have_not_begun() {
        let ended = Arc::new(AtomicUsize::new(0));
        let part = |at: usize| {
            let ended = ended.clone();
            Kernel::new(0, move |_, _| {
                if at > 0 {
                    ended.fetch_add(1, Ordering::SeqCst);
                    return Ok(());
                }
                // The first one waits for all others, on whichever thread it runs.
                while ended.compare_exchange(6, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                    std::thread::yield_now();
                }
                Ok(())
            })
        };
        for threads in 2..=3 {
            let team = staffed(Kernel::together((0..7).map(part)), 3, threads);
            for _ in 0..100 {
                team.run(0).unwrap();
                assert_eq!(ended.load(Ordering::SeqCst), 0, "{threads} threads");
            }
        }
    }

    #[test]
    fn what_is_better_alone_is_shared_only_with_those_who_have_nothing_to_do() {
        let add = |at: usize, what: u8| {
            Kernel::new(0, move |memory, _| {
                memory.bytes_mut(Span { offset: at, bytes: 1 })[0] += what;
                Ok(())
            })
        };
        let kernel = || Kernel::together((0..3).map(|at| add(at, 1))).or_alone(add(0, 7));
        for (threads, idle, expected) in [(1, 0, [7, 0, 0]), (2, 0, [7, 0, 0]), (2, 1, [1; 3])] {
            let team = staffed(kernel(), 3, threads);
            team.idle_count.store(idle, Ordering::SeqCst);
            team.run(0).unwrap();
            assert_eq!(bytes(&team), expected, "{threads} threads, {idle} of them idle");
        }
    }

    #[test]
    fn a_worker_counts_once_and_only_while_it_has_nothing_to_do() {
        let (count, notify) = (AtomicUsize::new(0), Notify::new());
        let (one, other) = (Idle::new(&count, &notify), Idle::new(&count, &notify));
        let idle = |worker: &Idle, is_idle: bool| {
            worker.count_me(is_idle);
            count.load(Ordering::SeqCst)
        };
        assert_eq!([idle(&one, false), idle(&one, true), idle(&one, true), idle(&other, true)], [0, 1, 1, 2]);
        let epoch = notify.epoch();
        other.call();
        assert!(notify.epoch() > epoch);
        drop(one);
        assert_eq!(idle(&other, false), 0);
        let epoch = notify.epoch();
        other.call();
        assert_eq!(notify.epoch(), epoch, "nobody is called");
    }

    #[test]
    fn the_last_part_begins_when_all_others_have_ended() {
        let byte = |at: usize| Span { offset: at, bytes: 1 };
        for threads in 1..=4 {
            let part = move |at: usize| {
                Kernel::new(0, move |memory, _| {
                    std::thread::sleep(Duration::from_micros(50 * at as u64));
                    memory.bytes_mut(byte(at))[0] += 1;
                    Ok(())
                })
            };
            let kernel = Kernel::together((0..5).map(part)).then(move |memory, workspace| {
                assert!((0..5).all(|part| workspace(part).bytes == 0));
                memory.bytes_mut(byte(5))[0] = memory.bytes(Span { offset: 0, bytes: 5 }).iter().sum();
                Ok(())
            });
            let team = staffed(kernel, 6, threads);
            for step in 1..=40 {
                team.run(0).unwrap();
                assert_eq!(team.body.arena.memory().bytes(byte(5)), [5 * step], "{threads} threads");
            }
        }
    }

    #[test]
    fn events_tell_what_every_thread_did_in_its_order() {
        const PARTS: usize = 3;
        let nap = Duration::from_millis(2);
        for threads in 1..=PARTS {
            let begun = Arc::new(AtomicUsize::new(0));
            let part = |_| {
                let begun = begun.clone();
                Kernel::new(0, move |_, _| {
                    // Every thread has a part.
                    begun.fetch_add(1, Ordering::SeqCst);
                    while begun.load(Ordering::SeqCst) < threads {
                        std::thread::yield_now();
                    }
                    std::thread::sleep(nap);
                    Ok(())
                })
            };
            for recorder in [true, false].map(|is_on| Recorder::new(threads, is_on)) {
                begun.store(0, Ordering::SeqCst);
                let is_on = recorder.is_on();
                let team = staffed_with(recorder, Kernel::together((0..PARTS).map(part)), 0, threads);
                team.run(0).unwrap();
                let events = team.recorder.take();
                if !is_on {
                    assert_eq!(events, []);
                    continue;
                }
                let spent: u64 = events.iter().map(Event::nanos).sum();
                assert!(spent >= PARTS as u64 * nap.as_nanos() as u64, "{events:?}");
                for thread in 0..threads {
                    let own: Vec<_> = events.iter().filter(|event| event.thread == thread).collect();
                    assert!(!own.is_empty(), "thread {thread} of {threads} had no part");
                    assert!(own.windows(2).all(|pair| pair[0].end_ns <= pair[1].begin_ns));
                    assert!(own.iter().all(|event| (event.rank, event.instruction) == (0, 0)));
                }
            }
        }
    }

    #[test]
    fn what_happens_to_a_helper_is_told_by_the_worker() {
        for threads in 1..=3 {
            let refusing = team(threads, || Err(Diagnostic::new("E411", "no")));
            assert_eq!(refusing.run(0).unwrap_err().code, "E411");
            // All threads are available for the next instruction.
            assert_eq!(refusing.run(0).unwrap_err().code, "E411");
            assert_eq!(bytes(&refusing), [2; 3]);
            let panicking = team(threads, || panic!("told to panic"));
            let panic = catch_unwind(AssertUnwindSafe(|| panicking.run(0))).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"told to panic"));
            assert_eq!(bytes(&panicking), [1; 3]);
        }
    }
}
