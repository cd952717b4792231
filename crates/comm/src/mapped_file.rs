//! The transport between processes of one host, over a file that all of them map.
//!
//! A member that starts a collective copies its inputs into the file. Once all members have done so, each
//! computes its own outputs from there, with the plan of the in-process transport and in the same
//! order, so the results are bitwise equal. Then it is ready: it does not wait until other members
//! have computed their outputs, which another pipeline stage may do much later. Consecutive uses
//! alternate between two places for each input. A member that starts use `n` has ended use `n - 1`,
//! so all members have started `n - 1`, so all have ended `n - 2`, and its inputs can be overwritten.
//!
//! The file is zero at first. Counters only grow. Data is written before its counter moves
//! (`Release`) and read after the counter was seen to move (`Acquire`).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use partita_base::{CollectiveId, Diagnostic, Result};

use crate::liveness::Liveness;
use crate::notify::Notify;
use crate::processes::{HostProcesses, Processes};
use crate::share::{Action, Piece, Plan};
use crate::spec::CollectiveSpec;
use crate::transport::{Failure, PROCESS_ENDED, Poll, Transport};

/// Alignment of data of one writer, so that no two processes write one cache line.
const LINE_BYTES: usize = 128;

/// The chunk size of the control channel.
const CHUNK_BYTES: usize = 256 << 10;

/// The longest failure message, its code included.
const MESSAGE_BYTES: usize = 4096;

/// The polling interval for other processes: for their progress, and whether they are alive.
const LOOK_EVERY: Duration = Duration::from_micros(50);
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// States of a process in a world: not joined, joined, left.
const JOINED: u64 = 1;
const LEFT: u64 = 2;

/// States of the failure message: none, being written, readable.
const WRITING: u64 = 1;
const WRITTEN: u64 = 2;

/// A position in the file.
type Place = usize;

/// Allocates positions in the file.
#[derive(Default)]
struct Places {
    end: usize,
}

impl Places {
    fn take(&mut self, bytes: usize) -> Place {
        let place = self.end;
        self.end = (place + bytes).next_multiple_of(LINE_BYTES);
        place
    }
}

/// The values that one process writes and all others read.
struct Post {
    state: Place,
    /// Chunks sent over the control channel, and chunks received from all.
    given: Place,
    seen: Place,
    /// Bytes left to send, this chunk included.
    left: Place,
    chunk: Place,
}

/// The file and its layout.
struct Board {
    map: MmapRaw,
    processes: Arc<HostProcesses>,
    /// Counts all changes.
    changes: Place,
    failed: Place,
    failed_rank: Place,
    message_bytes: Place,
    message: Place,
    posts: Vec<Post>,
    /// Per rank, one more than the instruction that it has begun last.
    begun: Vec<Place>,
    notify: Notify,
    is_over: AtomicBool,
}

/// One collective.
struct Slot {
    plan: Plan,
    members: Vec<Member>,
}

struct Member {
    process: usize,
    /// Uses started.
    arrived: Place,
    /// By turn and exchange, the position of its input copy.
    inputs: [Vec<Place>; 2],
    /// The current use of each member of this process.
    own: Mutex<Use>,
}

#[derive(Default)]
struct Use {
    number: u64,
    /// Whether its outputs are still to be made.
    is_open: bool,
    outputs: Vec<Output>,
}

impl Use {
    /// Which of the two places of each input a use takes.
    fn turn(number: u64) -> usize {
        (number % 2) as usize
    }
}

/// An output of the current use.
struct Output {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: the owner lent the pointer to the collective, whichever thread polls it.
unsafe impl Send for Output {}

/// The transport; see the module.
pub(crate) struct MappedFile {
    board: Arc<Board>,
    rank_count: usize,
    specs: Vec<CollectiveSpec>,
    slots: Vec<Slot>,
    watcher: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    fn counter(&self, place: Place) -> &AtomicU64 {
        // SAFETY: `Places` allocated it, aligned, within the file, which is mapped as long as
        // `self` lives; it is only accessed as an atomic.
        unsafe { &*self.map.as_mut_ptr().add(place).cast::<AtomicU64>() }
    }

    fn get(&self, place: Place) -> u64 {
        self.counter(place).load(Ordering::Acquire)
    }

    fn set(&self, place: Place, number: u64) {
        self.counter(place).store(number, Ordering::Release);
    }

    /// Copies bytes into the file.
    fn write(&self, place: Place, bytes: &[u8]) {
        // SAFETY: `Places` allocated this many bytes, and by the protocol only this thread accesses
        // them now.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(place), bytes.len()) };
    }

    /// Bytes of the file that no process writes while they are borrowed.
    fn read(&self, place: Place, bytes: usize) -> &[u8] {
        // SAFETY: as above; the counter that moves after they were written was seen.
        unsafe { slice::from_raw_parts(self.map.as_ptr().add(place), bytes) }
    }

    fn bump(&self) {
        self.counter(self.changes).fetch_add(1, Ordering::AcqRel);
        self.notify.bump();
    }

    fn has_failed(&self) -> bool {
        self.get(self.failed) != 0
    }

    fn fail(&self, failure: &Failure) {
        let first =
            self.counter(self.failed).compare_exchange(0, WRITING, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            let mut text = format!("{}\n{}", failure.code, failure.message);
            let end = (0..=MESSAGE_BYTES.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
            text.truncate(end.unwrap_or(0));
            self.write(self.message, text.as_bytes());
            self.set(self.message_bytes, text.len() as u64);
            self.set(self.failed_rank, failure.rank as u64);
            self.set(self.failed, WRITTEN);
        }
        self.bump();
    }

    fn failure(&self) -> Option<Failure> {
        let begin = Instant::now();
        loop {
            match self.get(self.failed) {
                0 => return None,
                WRITING if begin.elapsed() < CHECK_EVERY => std::thread::sleep(LOOK_EVERY),
                // The writing process has ended meanwhile.
                WRITING => {
                    return Some(Failure { rank: 0, code: PROCESS_ENDED.into(), message: String::new() });
                }
                _ => break,
            }
        }
        let bytes = (self.get(self.message_bytes) as usize).min(MESSAGE_BYTES);
        let text = String::from_utf8_lossy(self.read(self.message, bytes)).into_owned();
        let (code, message) = text.split_once('\n').unwrap_or((PROCESS_ENDED, &text));
        let rank = self.get(self.failed_rank) as usize;
        Some(Failure { rank, code: code.to_string(), message: message.to_string() })
    }

    /// The others.
    fn peers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.processes.count()).filter(|&process| process != self.processes.index())
    }

    /// Whether a process sends nothing more.
    fn is_gone(&self, process: usize) -> bool {
        self.get(self.posts[process].state) == LEFT || self.processes.has_ended(process)
    }

    /// The thread that watches the other processes.
    fn watch(&self, rank_count: usize) {
        let (mut seen, mut checked) = (0, Instant::now());
        while !self.is_over.load(Ordering::SeqCst) {
            let changes = self.get(self.changes);
            if changes != seen {
                seen = changes;
                self.notify.bump();
            }
            if checked.elapsed() > CHECK_EVERY && !self.has_failed() {
                checked = Instant::now();
                let ended = |&process: &usize| {
                    self.get(self.posts[process].state) != LEFT && self.processes.has_ended(process)
                };
                if let Some(process) = self.peers().find(ended) {
                    let rank = self.processes.ranks(process, rank_count).start;
                    let message = format!("{} has ended", self.processes.name(process));
                    self.fail(&Failure { rank, code: PROCESS_ENDED.into(), message });
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// What is known of a rank.
    fn sign(&self, rank: usize) -> Liveness {
        let instruction = (self.get(self.begun[rank]) as usize).checked_sub(1);
        let process = self.processes.process_of(rank, self.begun.len());
        if process == self.processes.index() {
            return Liveness { instruction, ..Liveness::default() };
        }
        Liveness {
            instruction,
            process: self.processes.name(process),
            silence: self.processes.silence(process),
            has_ended: self.processes.has_ended(process),
        }
    }

    /// An error that names a process, and what its ranks did last.
    fn accused(&self, code: &'static str, process: usize, what: &str) -> Box<Diagnostic> {
        let error = Diagnostic::new(code, format!("{} {what}", self.processes.name(process)));
        let ranks = self.processes.ranks(process, self.begun.len());
        ranks.fold(error.expected("all processes of the run to continue"), |error, rank| {
            match self.sign(rank).instruction {
                Some(at) => error.note(format!("rank {rank} was last at instruction {at}")),
                None => error.note(format!("rank {rank} had begun no instruction")),
            }
        })
    }

    /// Waits until all processes have moved a counter to this number. E447 if one ended before, E443 if one has no
    /// heartbeat for too long.
    fn await_all(&self, counter: impl Fn(&Post) -> Place, number: u64) -> Result<()> {
        let mut checked = Instant::now();
        loop {
            let behind = |process: &usize| self.get(counter(&self.posts[*process])) < number;
            let Some(late) = (0..self.posts.len()).find(behind) else { return Ok(()) };
            if checked.elapsed() > CHECK_EVERY {
                checked = Instant::now();
                // It may have moved the counter before it ended.
                if self.is_gone(late) && behind(&late) {
                    return Err(self.accused(PROCESS_ENDED, late, "has ended"));
                }
                if self.processes.is_silent(late) {
                    let silence = self.processes.silence(late);
                    let error = self.accused("E443", late, &format!("has not run for {silence:?}"));
                    return Err(error.help("it is stopped, as by SIGSTOP, or its host has no memory left"));
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl MappedFile {
    /// The world in the file at `path`, which the first process creates. Every process passes the
    /// same collectives.
    ///
    /// # Errors
    /// See [`CollectiveSpec::validate`]; E448 if the file cannot be created; E447 if the first
    /// process has ended.
    pub fn open(
        processes: Arc<HostProcesses>,
        path: &Path,
        rank_count: usize,
        specs: Vec<CollectiveSpec>,
    ) -> Result<MappedFile> {
        specs.iter().try_for_each(|spec| spec.validate(rank_count))?;
        let mut places = Places::default();
        let counter = |places: &mut Places| places.take(size_of::<u64>());
        let [changes, failed, failed_rank, message_bytes] = [(); 4].map(|()| counter(&mut places));
        let message = places.take(MESSAGE_BYTES);
        let post = |places: &mut Places| Post {
            state: counter(places),
            given: counter(places),
            seen: counter(places),
            left: counter(places),
            chunk: places.take(CHUNK_BYTES),
        };
        let posts = (0..processes.count()).map(|_| post(&mut places)).collect();
        let begun = (0..rank_count).map(|_| counter(&mut places)).collect();
        let slot = |spec: &CollectiveSpec| {
            let member = |(member, &rank): (usize, &usize)| Member {
                process: processes.process_of(rank, rank_count),
                arrived: places.take(size_of::<u64>()),
                inputs: [(); 2]
                    .map(|()| spec.exchanges.iter().map(|e| places.take(e.input_bytes(member))).collect()),
                own: Mutex::default(),
            };
            Slot { plan: Plan::new(spec), members: spec.members.iter().enumerate().map(member).collect() }
        };
        let slots = specs.iter().map(slot).collect();
        let map = map(path, places.end, &processes)?;
        let board = Board {
            map,
            changes,
            failed,
            failed_rank,
            message_bytes,
            message,
            posts,
            begun,
            notify: Notify::new(),
            is_over: AtomicBool::new(false),
            processes,
        };
        board.set(board.posts[board.processes.index()].state, JOINED);
        let board = Arc::new(board);
        let watched = board.clone();
        let watcher = std::thread::Builder::new()
            .name("partita watcher".into())
            .spawn(move || watched.watch(rank_count));
        let watcher = watcher.map_err(|error| {
            Diagnostic::new("E448", "the thread that watches the other processes cannot be started")
                .found(error.to_string())
        })?;
        Ok(MappedFile { board, rank_count, specs, slots, watcher: Some(watcher) })
    }

    fn member(&self, collective: CollectiveId, rank: usize) -> usize {
        let spec = &self.specs[collective.index()];
        spec.members
            .iter()
            .position(|&r| r == rank)
            .unwrap_or_else(|| panic!("rank {rank} takes no part in collective `{}`", spec.label))
    }

    /// Computes a member's outputs after the inputs of all have arrived.
    fn make(&self, slot: &Slot, member: usize, turn: usize, outputs: &[Output]) {
        for &exchange in &slot.plan.zero_fills[member] {
            // SAFETY: lent by `start` until this use has ended, as the outputs below.
            unsafe { outputs[exchange].pointer.write_bytes(0, outputs[exchange].bytes) };
        }
        let base = self.board.map.as_ptr();
        for Piece { exchange, targets, action } in slot.plan.shares.iter().flat_map(|s| &s.chunks).flatten() {
            if !targets.contains(&member) || outputs[*exchange].bytes == 0 {
                continue;
            }
            // SAFETY: a position in the file.
            let inputs =
                slot.members.iter().map(|member| unsafe { base.add(member.inputs[turn][*exchange]) });
            let output = std::iter::once(outputs[*exchange].pointer);
            // SAFETY: all members have arrived, so inputs are written, and they do not change until
            // this member has ended its next use as well. They have the sizes of a valid collective
            // and are aligned to lines. Only this member accesses the output.
            unsafe {
                match action {
                    Action::Reduce(reduction) => reduction.run(inputs, output, false),
                    Action::Copy(source, copy) => {
                        copy.run(base.add(slot.members[*source].inputs[turn][*exchange]), output, false);
                    }
                }
            }
        }
    }

    /// The pending state; fails if a process that the collective needs has ended.
    fn pending(&self, slot: &Slot, rank: usize, number: u64) -> Poll {
        let is_late = |member: &&Member| self.board.get(member.arrived) < number;
        let state = |member: &Member| self.board.get(self.board.posts[member.process].state);
        let gone = slot.members.iter().filter(is_late).find(|member| state(member) == LEFT);
        match gone.filter(is_late) {
            Some(member) => {
                let message = format!("{} has left the run", self.board.processes.name(member.process));
                self.board.fail(&Failure { rank, code: PROCESS_ENDED.into(), message });
                Poll::Failed
            }
            None => Poll::Pending,
        }
    }
}

/// Maps a file of this many zero bytes, which the first process creates while the others wait. It
/// writes the zeros, so that a full disk is an error here and not a signal on access.
fn map(path: &Path, bytes: usize, processes: &HostProcesses) -> Result<MmapRaw> {
    let refused = |error: std::io::Error| {
        Diagnostic::new("E448", "the file that the processes share cannot be created")
            .at(path.display().to_string())
            .expected(format!("{bytes} bytes"))
            .found(error.to_string())
            .help("set TMPDIR to a folder with more free space")
    };
    if processes.index() == 0 {
        let unfinished = path.with_extension("tmp");
        let write = || {
            let mut file = File::create(&unfinished)?;
            let zeros = vec![0; CHUNK_BYTES];
            for begin in (0..bytes).step_by(CHUNK_BYTES) {
                file.write_all(&zeros[..CHUNK_BYTES.min(bytes - begin)])?;
            }
            std::fs::rename(&unfinished, path)
        };
        write().map_err(refused)?;
    }
    while !path.exists() {
        if processes.has_ended(0) && !path.exists() {
            return Err(Diagnostic::new(PROCESS_ENDED, "process 0 has ended")
                .expected("process 0 to create the file that the processes share"));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let file = File::options().read(true).write(true).open(path).map_err(refused)?;
    MmapOptions::new().len(bytes).map_raw(&file).map_err(refused)
}

impl Transport for MappedFile {
    fn rank_count(&self) -> usize {
        self.rank_count
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
        let index = self.member(collective, rank);
        let label = &spec.label;
        spec.expect_buffers(index, inputs, outputs);
        let member = &self.slots[collective.index()].members[index];
        let mut own = lock(&member.own);
        assert!(
            self.board.has_failed() || !own.is_open,
            "rank {rank} starts `{label}` while it is still in flight there"
        );
        let turn = Use::turn(own.number + 1);
        for (&input, &place) in inputs.iter().zip(&member.inputs[turn]) {
            // A buffer of no bytes may have any address.
            if input.len() > 0 {
                // SAFETY: the caller's promise: inputs are valid and not written.
                self.board.write(place, unsafe { &*input });
            }
        }
        own.number += 1;
        own.is_open = true;
        let lent = |output: &*mut [u8]| Output { pointer: output.cast::<u8>(), bytes: output.len() };
        own.outputs = outputs.iter().map(lent).collect();
        self.board.set(member.arrived, own.number);
        self.board.bump();
    }

    fn poll(&self, collective: CollectiveId, rank: usize) -> Poll {
        let slot = &self.slots[collective.index()];
        let index = self.member(collective, rank);
        let member = &slot.members[index];
        let mut own = lock(&member.own);
        if self.board.has_failed() {
            return Poll::Failed;
        }
        let number = own.number;
        if !slot.members.iter().all(|member| self.board.get(member.arrived) >= number) {
            return self.pending(slot, rank, number);
        }
        if own.is_open {
            self.make(slot, index, Use::turn(number), &own.outputs);
            own.is_open = false;
        }
        Poll::Ready
    }

    fn notify(&self) -> &Notify {
        &self.board.notify
    }

    fn fail(&self, failure: Failure) {
        self.board.fail(&failure);
        // Threads that poll a local member now finish first; later ones see the failure.
        for member in self.slots.iter().flat_map(|slot| &slot.members) {
            drop(lock(&member.own));
        }
    }

    fn failure(&self) -> Option<Failure> {
        self.board.failure()
    }

    fn missing(&self, collective: CollectiveId) -> Vec<usize> {
        let (spec, slot) = (&self.specs[collective.index()], &self.slots[collective.index()]);
        let arrived: Vec<u64> = slot.members.iter().map(|member| self.board.get(member.arrived)).collect();
        let latest = arrived.iter().copied().max().unwrap_or(0);
        let ranks = spec.members.iter();
        ranks.zip(arrived).filter(|(_, number)| *number < latest).map(|(&rank, _)| rank).collect()
    }

    fn begin(&self, rank: usize, instruction: usize) {
        self.board.counter(self.board.begun[rank]).store(instruction as u64 + 1, Ordering::Relaxed);
    }

    fn sign(&self, rank: usize) -> Liveness {
        self.board.sign(rank)
    }

    fn control_all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let board = &self.board;
        let own = &board.posts[board.processes.index()];
        let mut all = vec![Vec::new(); board.posts.len()];
        let (mut rest, mut is_open) = (bytes, true);
        while is_open {
            let (chunk, later) = rest.split_at(rest.len().min(CHUNK_BYTES));
            board.write(own.chunk, chunk);
            board.set(own.left, rest.len() as u64);
            let number = board.get(own.given) + 1;
            board.set(own.given, number);
            board.await_all(|post| post.given, number)?;
            is_open = false;
            for (post, bytes) in board.posts.iter().zip(&mut all) {
                let left = board.get(post.left) as usize;
                bytes.extend_from_slice(board.read(post.chunk, left.min(CHUNK_BYTES)));
                is_open |= left > CHUNK_BYTES;
            }
            board.set(own.seen, number);
            board.await_all(|post| post.seen, number)?;
            rest = later;
        }
        Ok(all)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.board.set(self.board.posts[self.board.processes.index()].state, LEFT);
        self.board.bump();
        self.board.is_over.store(true, Ordering::SeqCst);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}
