//! The processes of a run that share a world, and those of one host: how they find each other, and
//! how one detects that another has ended.
//!
//! Processes of one host use a common folder. Each process locks a file of its own there; the system releases the
//! lock when the process ends, however it ends. Its heartbeat tells that it also runs ([`crate::liveness`]). Each world is a
//! file there too.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use partita_base::{Diagnostic, Result};

use crate::liveness::{Listener, host};
use crate::mapped_file::MappedFile;
use crate::spec::CollectiveSpec;
use crate::transport::Transport;
use crate::world::World;

/// The polling interval while waiting for other processes.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// This process among those of a run, each of which has a part of the ranks.
pub trait Processes: std::fmt::Debug + Send + Sync {
    /// The index of this process.
    fn index(&self) -> usize;

    /// The number of processes.
    fn count(&self) -> usize;

    /// The ranks of a process out of `rank_count`: consecutive ones, as evenly as possible.
    fn ranks(&self, process: usize, rank_count: usize) -> Range<usize> {
        rank_count * process / self.count()..rank_count * (process + 1) / self.count()
    }

    /// The process of a rank out of `rank_count`.
    fn process_of(&self, rank: usize, rank_count: usize) -> usize {
        (0..self.count()).find(|&process| self.ranks(process, rank_count).contains(&rank)).unwrap_or(0)
    }

    /// A transport between all ranks. Every process makes the same ones in the same order.
    ///
    /// # Errors
    /// See [`CollectiveSpec::validate`]; E447 and E448 if the processes cannot connect.
    fn transport(
        self: Arc<Self>,
        rank_count: usize,
        collectives: Vec<CollectiveSpec>,
    ) -> Result<Arc<dyn Transport>>;

    /// Sets how long another process may have no heartbeat between steps, for processes that joined before this was known.
    fn tolerate(&self, _silence: Duration) {}

    /// Those of the processes that have had no heartbeat for too long, as far as it is known here.
    fn stopped(&self) -> Vec<usize> {
        Vec::new()
    }
}

impl dyn Processes {
    /// The first process that is not among [`Processes::stopped`]; no process counts itself as stopped.
    pub fn first_running(&self) -> usize {
        let stopped = self.stopped();
        (0..self.count()).find(|process| !stopped.contains(process)).unwrap_or_else(|| self.index())
    }

    /// The next world of all processes, with this process's part of the ranks. If there are fewer
    /// ranks than processes, each process runs all of them for itself.
    ///
    /// # Errors
    /// Those of [`Processes::transport`].
    pub fn world(self: &Arc<Self>, rank_count: usize, collectives: Vec<CollectiveSpec>) -> Result<World> {
        if rank_count < self.count() || self.count() == 1 {
            return World::in_process(rank_count, collectives);
        }
        let transport = self.clone().transport(rank_count, collectives)?;
        World::of_processes(self, transport)
    }
}

/// The processes of one host, which share files.
#[derive(Debug)]
pub struct HostProcesses {
    folder: PathBuf,
    index: usize,
    count: usize,
    /// The number of worlds so far. All processes make the same ones in the same order.
    worlds: AtomicUsize,
    host: String,
    listener: Listener,
    /// How long another process may have no heartbeat.
    silence: Duration,
    /// Locked as long as the process lives.
    _life: File,
}

/// How long a process waits for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Until all have joined.
    pub joining: Duration,
    /// For one without a heartbeat, between steps. Within steps, the watchdog of the caller decides.
    pub silence: Duration,
}

impl Default for Patience {
    /// A minute to join, and two without a heartbeat.
    fn default() -> Patience {
        Patience { joining: Duration::from_secs(60), silence: Duration::from_secs(120) }
    }
}

impl HostProcesses {
    /// Joins the others in an existing folder, as process `index` of `count`, and returns when all
    /// have joined.
    ///
    /// # Errors
    /// E448 if the folder cannot be used, another process has this index, or some process has not
    /// joined in time.
    pub fn join(folder: &Path, index: usize, count: usize, patience: Patience) -> Result<Arc<dyn Processes>> {
        let refused = |what: &str, found: String| {
            Diagnostic::new("E448", format!("process {index} of {count} cannot join the others: {what}"))
                .at(folder.display().to_string())
                .found(found)
        };
        if index >= count {
            return Err(refused("there is no such process", format!("index {index}"))
                .expected(format!("an index below {count}")));
        }
        let life = File::options().create(true).truncate(false).write(true).open(life(folder, index));
        let life = life.map_err(|error| refused("its file cannot be opened", error.to_string()))?;
        life.try_lock().map_err(|error| refused("another process has this index", error.to_string()))?;
        let unwritten = |error: std::io::Error| refused("its file cannot be written", error.to_string());
        let beat = Listener::prepare(folder, index).map_err(unwritten)?;
        let joined = |index: usize| folder.join(format!("joined-{index}"));
        File::create(joined(index)).map_err(unwritten)?;
        let begin = Instant::now();
        loop {
            let missing: Vec<usize> = (0..count).filter(|&other| !joined(other).exists()).collect();
            if missing.is_empty() {
                break;
            }
            if begin.elapsed() > patience.joining {
                let found = format!("processes {missing:?} have not joined after {:?}", patience.joining);
                return Err(refused("some processes have not joined", found));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let listener = Listener::start(folder, index, count, beat);
        let listener = listener.map_err(|error| refused("it cannot have a heartbeat", error.to_string()))?;
        Ok(Arc::new(HostProcesses {
            folder: folder.to_path_buf(),
            index,
            count,
            worlds: AtomicUsize::new(0),
            host: host(),
            listener,
            silence: patience.silence,
            _life: life,
        }))
    }

    /// How messages call a process.
    pub(crate) fn name(&self, process: usize) -> String {
        format!("process {process} (id {} on {})", self.listener.id(process), self.host)
    }

    /// How long a process had no heartbeat.
    pub(crate) fn silence(&self, process: usize) -> Duration {
        self.listener.silence(process)
    }

    /// Whether a process had no heartbeat for longer than it may.
    pub(crate) fn is_silent(&self, process: usize) -> bool {
        self.silence(process) > self.silence
    }

    /// Whether another process has ended, for any reason.
    pub(crate) fn has_ended(&self, process: usize) -> bool {
        let Ok(life) = File::open(life(&self.folder, process)) else { return true };
        life.try_lock_shared().is_ok()
    }
}

impl Processes for HostProcesses {
    fn index(&self) -> usize {
        self.index
    }

    fn count(&self) -> usize {
        self.count
    }

    fn transport(
        self: Arc<Self>,
        rank_count: usize,
        collectives: Vec<CollectiveSpec>,
    ) -> Result<Arc<dyn Transport>> {
        let number = self.worlds.fetch_add(1, Ordering::SeqCst);
        let path = self.folder.join(format!("world-{number}"));
        Ok(Arc::new(MappedFile::open(self, &path, rank_count, collectives)?))
    }
}

/// The lock file of a process.
fn life(folder: &Path, process: usize) -> PathBuf {
    folder.join(format!("process-{process}"))
}
