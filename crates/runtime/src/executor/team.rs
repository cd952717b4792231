//! The threads of one rank: the worker that plays it, and helpers that run parts of its kernels.
//!
//! The worker posts the number of an instruction and runs its own share of the parts; each helper runs its share and
//! counts itself out; the worker goes on when all have. So an instruction begins after the one before has ended, on
//! all threads, and which thread runs a part is fixed.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use partita_base::{Diagnostic, Result};
use partita_comm::Notify;

use super::lock;
use super::rank::{Body, Ready};
use crate::arena::Span;
use crate::cpu::Kernel;

/// How a part ended that did not end well.
enum Failure {
    Error(Box<Diagnostic>),
    Panic(Box<dyn Any + Send>),
}

/// What the threads of a rank share.
pub(super) struct Team {
    pub body: Body,
    /// Helpers and the worker.
    threads: usize,
    /// Looks before sleeping.
    spins: u32,
    /// The instruction that was posted last, counted in `posted`.
    instruction: AtomicUsize,
    posted: Notify,
    /// Helpers that are still at it.
    busy: AtomicUsize,
    returned: Notify,
    failure: Mutex<Option<Failure>>,
    is_over: AtomicBool,
}

/// How long a thread sleeps at most before it looks again; it is woken before.
const NAP: Duration = Duration::from_secs(1);

impl Team {
    pub fn new(body: Body, threads: usize, spins: u32) -> Team {
        Team {
            body,
            threads: threads.max(1),
            spins,
            instruction: AtomicUsize::new(0),
            posted: Notify::new(),
            busy: AtomicUsize::new(0),
            returned: Notify::new(),
            failure: Mutex::new(None),
            is_over: AtomicBool::new(false),
        }
    }

    /// Runs a compute instruction. For the worker.
    pub fn run(&self, instruction: usize) -> Result<()> {
        self.run_parts(instruction)?;
        let (kernel, workspace) = self.kernel(instruction);
        kernel.finish(&self.body.arena.memory(), workspace)
    }

    /// Runs all parts but the last.
    fn run_parts(&self, instruction: usize) -> Result<()> {
        if self.threads == 1 || self.kernel(instruction).0.part_count() == 1 {
            return self.share(instruction, 0);
        }
        self.instruction.store(instruction, Ordering::SeqCst);
        self.busy.store(self.threads - 1, Ordering::SeqCst);
        self.posted.bump();
        // Helpers look at what the worker does next only when they are done, whatever becomes of its own share.
        let own = catch_unwind(AssertUnwindSafe(|| self.share(instruction, 0)));
        loop {
            let seen = self.returned.epoch();
            if self.busy.load(Ordering::SeqCst) == 0 {
                break;
            }
            self.returned.wait_for_change(seen, self.spins, NAP);
        }
        match (own, lock(&self.failure).take()) {
            (Err(panic), _) | (_, Some(Failure::Panic(panic))) => resume_unwind(panic),
            (Ok(Err(error)), _) | (_, Some(Failure::Error(error))) => Err(error),
            (Ok(Ok(())), None) => Ok(()),
        }
    }

    /// The kernel of a compute instruction, and its scratch memory.
    fn kernel(&self, instruction: usize) -> (&Kernel, Span) {
        let Ready::Compute { kernel, workspace } = &self.body.instructions[instruction] else {
            unreachable!("only compute instructions are run")
        };
        (kernel, *workspace)
    }

    /// The parts of one thread.
    fn share(&self, instruction: usize, thread: usize) -> Result<()> {
        let (kernel, workspace) = self.kernel(instruction);
        let memory = self.body.arena.memory();
        (thread..kernel.part_count())
            .step_by(self.threads)
            .try_for_each(|part| kernel.run_part(part, &memory, workspace))
    }

    /// The life of a helper.
    pub fn help(&self, thread: usize) {
        let mut seen = 0;
        loop {
            if !self.posted.wait_for_change(seen, self.spins, NAP) {
                continue;
            }
            seen = self.posted.epoch();
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            let instruction = self.instruction.load(Ordering::SeqCst);
            let failure = match catch_unwind(AssertUnwindSafe(|| self.share(instruction, thread))) {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(Failure::Error(error)),
                Err(panic) => Some(Failure::Panic(panic)),
            };
            if let Some(failure) = failure {
                lock(&self.failure).get_or_insert(failure);
            }
            if self.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.returned.bump();
            }
        }
    }

    /// Sends the helpers home.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.posted.bump();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use std::sync::Arc;

    /// Three bytes of work: each part adds one to its own, or does something else.
    fn team(threads: usize, last: fn() -> Result<()>) -> Arc<Team> {
        let part = |at: usize, end: fn() -> Result<()>| {
            Kernel::new(0, move |memory, _| {
                memory.bytes_mut(Span { offset: at, bytes: 1 })[0] += 1;
                end()
            })
        };
        staffed(Kernel::together([part(0, || Ok(())), part(1, || Ok(())), part(2, last)]), 3, threads)
    }

    /// A team, its helpers at work, with one instruction on so many bytes.
    fn staffed(kernel: Kernel, bytes: usize, threads: usize) -> Arc<Team> {
        let instructions = vec![Ready::Compute { kernel, workspace: Span::default() }];
        let body = Body::new(instructions, Arena::new(bytes, false).unwrap());
        let team = Arc::new(Team::new(body, threads, 10));
        for thread in 1..threads {
            let team = team.clone();
            std::thread::spawn(move || team.help(thread));
        }
        team
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
            team.end();
        }
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
            team.end();
        }
    }

    #[test]
    fn what_happens_to_a_helper_is_told_by_the_worker() {
        for threads in 1..=3 {
            let refusing = team(threads, || Err(Diagnostic::new("E411", "no")));
            assert_eq!(refusing.run(0).unwrap_err().code, "E411");
            // All are there for the next instruction.
            assert_eq!(refusing.run(0).unwrap_err().code, "E411");
            assert_eq!(bytes(&refusing), [2; 3]);
            refusing.end();
            let panicking = team(threads, || panic!("told to panic"));
            let panic = catch_unwind(AssertUnwindSafe(|| panicking.run(0))).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"told to panic"));
            assert_eq!(bytes(&panicking), [1; 3]);
            panicking.end();
        }
    }
}
