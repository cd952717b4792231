//! The workers: which worker runs which rank, when they sleep, and how a run ends after a failure.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use partita_base::{Diagnostic, Result};
use partita_comm::{BEAT_EVERY, CollectiveId, Failure, Notify, PROCESS_ENDED, World};
use partita_program::{Program, ProgramSet};

use super::cores::HomeCores;
use super::rank::{Outcome, Rank, RankProgress, interrupted};
use super::recorder::{Recorder, Track};
use super::team::{Idle, Team};
use super::{PEER_FAILED, lock};

/// How long a failed step waits for workers that are inside a kernel.
const GRACE: Duration = Duration::from_secs(3);

/// From when on a process without a heartbeat counts as stopped.
const SILENT: Duration = BEAT_EVERY.saturating_mul(5);

/// The most places of ranks in a message.
const MAX_PLACES: usize = 32;

/// How often a worker that sleeps wakes within the time of the watchdog, to see whether ranks have made progress.
const WAKES_PER_TIMEOUT: u32 = 4;

/// State shared by all workers.
pub(super) struct Shared {
    /// The programs of all ranks.
    pub set: ProgramSet,
    /// The world of the current step. Workers look it up when a step begins.
    pub world: Mutex<Arc<World>>,
    /// The programs of the local ranks; all per-rank fields below are for local ranks.
    pub programs: Vec<Program>,
    /// One worker runs a rank, so these locks are contended only after a failure.
    pub ranks: Vec<Mutex<Rank>>,
    /// Per rank, the parts that others can steal.
    pub teams: Vec<Arc<Team>>,
    /// The number of idle workers; those without a rank always count.
    pub idle: AtomicUsize,
    /// Ranks that have not finished the step.
    pub open: AtomicUsize,
    pub workers: usize,
    pub home_cores: HomeCores,
    /// How long a waiting worker spins before it sleeps.
    pub awake: Duration,
    pub watchdog: Duration,
    pub progress: RankProgress,
    pub recorder: Recorder,
    pub control: Control,
    pub has_failed: AtomicBool,
    pub failure: Mutex<Option<Box<Diagnostic>>>,
}

/// Where workers wait between steps.
#[derive(Default)]
pub(super) struct Control {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    step: u64,
    /// Running workers other than the calling thread.
    busy: usize,
    is_stopped: bool,
}

impl Shared {
    /// Runs one step from its beginning `to_pause`, or from where it is to its end; the calling thread is worker 0.
    pub fn step(&self, to_pause: bool) -> Result<()> {
        self.failed()?;
        for (rank, program) in self.ranks.iter().zip(&self.programs) {
            let mut rank = lock(rank);
            rank.is_done = false;
            rank.cursor.pause = program.pauses.first().copied().filter(|_| to_pause);
            if to_pause {
                rank.cursor.next = 0;
            }
        }
        self.open.store(self.ranks.len(), Ordering::SeqCst);
        {
            let mut state = lock(&self.control.state);
            state.step += 1;
            state.busy = self.workers - 1;
        }
        self.control.changed.bump();
        self.play(0);
        let mut deadline = None;
        loop {
            let seen = self.control.changed.epoch();
            if !self.has_stragglers() {
                break;
            }
            let mut wait = Duration::MAX;
            if self.has_failed.load(Ordering::SeqCst) {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + GRACE);
                wait = deadline.saturating_duration_since(Instant::now());
                if wait.is_zero() {
                    break;
                }
            }
            self.control.changed.wait_for_change(seen, self.awake, wait);
        }
        self.failed()
    }

    /// The world of the current step.
    pub fn world(&self) -> Arc<World> {
        lock(&self.world).clone()
    }

    /// The failure of the run, if it has failed.
    pub fn failed(&self) -> Result<()> {
        match &*lock(&self.failure) {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Brings the ranks back to the beginning of a step after one that was refused, on a new world. What the refused
    /// step had begun stays with the old world: its collectives are not in progress on the new one, and no thread or
    /// process reaches the ranks' memory through it any more, since a transport that has failed lets none in.
    ///
    /// # Errors
    /// E417 if a worker is still inside a kernel of the refused step after the time of the watchdog.
    pub fn restart(&self, world: Arc<World>) -> Result<()> {
        let deadline = Instant::now() + self.watchdog;
        loop {
            let seen = self.control.changed.epoch();
            if !self.has_stragglers() {
                break;
            }
            let wait = deadline.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return Err(Diagnostic::new("E417", "a worker is still busy with a failed step"));
            }
            self.control.changed.wait_for_change(seen, self.awake, wait);
        }
        for rank in &self.ranks {
            lock(rank).rewind();
        }
        *lock(&self.world) = world;
        *lock(&self.failure) = None;
        self.has_failed.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// The main loop of a worker other than the calling thread.
    pub fn serve(&self, worker: usize) {
        let mut played = 0;
        loop {
            let seen = self.control.changed.epoch();
            let State { step, is_stopped, .. } = *lock(&self.control.state);
            if is_stopped {
                return;
            }
            if step == played {
                self.control.changed.wait_for_change(seen, self.awake, Duration::MAX);
                continue;
            }
            played = step;
            self.play(worker);
            lock(&self.control.state).busy -= 1;
            self.control.changed.bump();
        }
    }

    /// Stops the workers.
    pub fn stop(&self) {
        lock(&self.control.state).is_stopped = true;
        self.control.changed.bump();
    }

    /// Whether a worker has not returned from a step.
    pub fn has_stragglers(&self) -> bool {
        lock(&self.control.state).busy > 0
    }

    /// Runs this worker's ranks, and steals work while they are blocked, until the step ends or the
    /// run has failed.
    fn play(&self, worker: usize) {
        self.home_cores.settle(worker);
        let world = self.world();
        let transport = world.transport();
        let mut last = LastProgress { done: 0, since: Instant::now() };
        let idle = Idle::new(&self.idle, transport.notify());
        let track = self.recorder.track(worker);
        let has_ranks = worker < self.ranks.len();
        loop {
            // Read before the checks below, so that a later change ends the wait.
            let seen = transport.notify().epoch();
            if self.has_failed.load(Ordering::SeqCst) || self.open.load(Ordering::SeqCst) == 0 {
                return;
            }
            let (mut moved, mut waiting) = (false, None);
            for local in (worker..self.ranks.len()).step_by(self.workers) {
                let mut player = lock(&self.ranks[local]);
                if player.is_done {
                    continue;
                }
                let before = player.cursor;
                let program = &self.programs[local];
                let rank = program.rank();
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    player.advance(program, transport, &idle, track, &self.progress)
                }));
                match outcome {
                    Ok(Outcome::Done) => {
                        transport.begin(rank, program.instructions.len());
                        player.is_done = true;
                        moved = true;
                        if self.open.fetch_sub(1, Ordering::SeqCst) == 1 {
                            transport.notify().bump();
                        }
                    }
                    Ok(Outcome::Blocked(collective)) => {
                        transport.begin(rank, player.cursor.next);
                        moved |= player.cursor != before;
                        if let (None | Some((_, None)), at) = (waiting, collective) {
                            waiting = Some((rank, at));
                        }
                    }
                    Ok(Outcome::Failed(error)) => return self.fail(rank, self.with_dead(error)),
                    Err(panic) => {
                        let index = player.cursor.next;
                        return self.fail(rank, self.panicked(rank, index, panic.as_ref()));
                    }
                }
            }
            if moved {
                continue;
            }
            idle.count_me(has_ranks);
            if self.help(worker, track) {
                continue;
            }
            let Some(waiting) = waiting else {
                transport.notify().wait_for_change(seen, self.awake, Duration::MAX);
                continue;
            };
            let done = self.progress.done.load(Ordering::Relaxed);
            if done != last.done {
                last = LastProgress { done, since: Instant::now() };
            }
            // A worker that waits in a collective can report more than one that is stuck without a
            // reason, so it reports first. If ranks have made progress while it slept, it counts from
            // the moment at which it wakes.
            let patience = if waiting.1.is_some() { self.watchdog } else { 3 * self.watchdog };
            let left = patience.saturating_sub(last.since.elapsed());
            // A single worker without progress is stuck, unless another process can help.
            let alone = self.workers == 1 && world.is_whole() && transport.notify().epoch() == seen;
            if left.is_zero() || alone {
                return self.fail(waiting.0, self.stuck(waiting, last.since.elapsed()));
            }
            transport.notify().wait_for_change(seen, self.awake, left.min(self.watchdog / WAKES_PER_TIMEOUT));
        }
    }

    /// Runs a part of a kernel of another worker's rank. Returns whether there was one.
    fn help(&self, worker: usize, track: Track) -> bool {
        let count = self.ranks.len();
        let mut others = (worker + 1..worker + 1 + count).map(|rank| rank % count);
        others.any(|rank| {
            let place = (worker + self.workers - rank % self.workers) % self.workers;
            place > 0 && self.teams[rank].run_one_part(place, track)
        })
    }

    /// Ends the current step on all ranks with E427, soon. The runner is unusable afterwards.
    pub fn interrupt(&self) {
        self.progress.is_stopped.store(true, Ordering::Relaxed);
        let rank = self.world().local_ranks().first().copied().unwrap_or(0);
        self.fail(rank, interrupted());
    }

    /// Fails the run for all ranks. The first failure is the reported one.
    fn fail(&self, rank: usize, error: Box<Diagnostic>) {
        let (code, message) = (error.code.to_string(), error.message.clone());
        lock(&self.failure).get_or_insert(error);
        self.has_failed.store(true, Ordering::SeqCst);
        self.world().transport().fail(Failure { rank, code, message });
        self.control.changed.bump();
    }

    fn at(&self, rank: usize, index: usize) -> String {
        match self.set.class_of(rank).expect("every rank has a class").instructions.get(index) {
            Some(instruction) => {
                let origin = &instruction.origin;
                let path = if origin.path.is_empty() { "<root>" } else { &origin.path };
                format!("instruction {index}: {} in {path}", origin.what)
            }
            None => "the end of its step".to_string(),
        }
    }

    fn panicked(&self, rank: usize, index: usize, panic: &(dyn std::any::Any + Send)) -> Box<Diagnostic> {
        let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "no message".into());
        let origin = self
            .set
            .class_of(rank)
            .and_then(|p| p.instructions.get(index))
            .map(|i| i.origin.clone())
            .unwrap_or_default();
        Diagnostic::new("E410", format!("rank {rank} panicked in {}: {text}", origin.what))
            .at(if origin.path.is_empty() { "<root>".to_string() } else { origin.path })
            .note(format!("rank {rank}, {}", self.at(rank, index)))
            .help("this is a bug: please report it with the plan and the config")
    }

    /// Where a rank is, and whether its process lives and runs.
    fn place(&self, rank: usize) -> String {
        let sign = self.world().transport().sign(rank);
        let at =
            sign.instruction.map_or_else(|| "no known instruction".to_string(), |index| self.at(rank, index));
        match &sign.process {
            process if sign.has_ended => format!("{at}; {process} has ended"),
            process if sign.silence > SILENT => {
                format!("{at}; {process} has not run for {:.1?}: it is stopped, as by SIGSTOP", sign.silence)
            }
            _ => at,
        }
    }

    /// The places of ranks, one line for neighbours at the same place.
    fn places(&self, ranks: impl Iterator<Item = usize>, is: [&str; 2]) -> Vec<String> {
        let mut groups: Vec<(Vec<String>, String)> = Vec::new();
        for rank in ranks {
            let place = self.place(rank);
            match groups.last_mut() {
                Some((ranks, last)) if *last == place => ranks.push(rank.to_string()),
                _ => groups.push((vec![rank.to_string()], place)),
            }
        }
        let more = groups.len().saturating_sub(MAX_PLACES);
        let line = |(ranks, place): &(Vec<String>, String)| match ranks.as_slice() {
            [rank] => format!("rank {rank} {} at {place}", is[0]),
            ranks => format!("ranks {} {} at {place}", ranks.join(", "), is[1]),
        };
        let mut lines: Vec<String> = groups.iter().take(MAX_PLACES).map(line).collect();
        if more > 0 {
            lines.push(format!("and {more} more groups of ranks"));
        }
        lines
    }

    /// The error of a rank whose peers have failed, with what the ranks of a dead process did last.
    fn with_dead(&self, mut error: Box<Diagnostic>) -> Box<Diagnostic> {
        let world = self.world();
        let transport = world.transport();
        let is_dead = |rank: &usize| transport.sign(*rank).has_ended;
        if error.code == PEER_FAILED && transport.failure().is_some_and(|first| first.code == PROCESS_ENDED) {
            let dead = (0..world.rank_count()).filter(is_dead);
            error.notes.extend(self.places(dead, ["was last", "were last"]));
        }
        error
    }

    /// No rank makes progress: E413 names the collective that one of them waits in, the ranks
    /// that have not arrived, and where every rank is.
    fn stuck(&self, (rank, collective): (usize, Option<CollectiveId>), waited: Duration) -> Box<Diagnostic> {
        let places = self.places(0..self.world().rank_count(), ["is", "are"]);
        let Some(id) = collective else {
            let mut error = Diagnostic::new("E413", format!("rank {rank} makes no progress"))
                .at(self.place(rank))
                .found(format!("no progress on any rank for {waited:.1?}"));
            error.notes.extend(places);
            return error;
        };
        let collective = &self.set.collectives[id.index()];
        let missing = self.world().transport().missing(id);
        let mut error = Diagnostic::new("E413", format!("rank {rank} is stuck in {}", collective.label))
            .at(collective.transfers.first().map_or_else(|| collective.label.clone(), |t| t.what.clone()))
            .expected(format!("ranks {:?} to take part", collective.members))
            .found(format!("ranks {missing:?} have not arrived; no progress on any rank for {waited:.1?}"));
        error.notes.extend(places);
        error
    }
}

/// The instructions that had been done when ranks last made progress, and when that was.
struct LastProgress {
    done: u64,
    since: Instant,
}
