//! Signs of life: what each rank did last, and whether its process still runs.
//!
//! Every process of a host has a heartbeat: a thread that raises a number in a file of its own and reads the numbers of
//! the others. How long another process has been silent is counted in own heartbeats since its number has moved, so no
//! clock is read, and a process that was itself stopped for a while does not count the time. This separates three faults:
//!
//! * *dead*: the system has released the lock of the process ([`Liveness::has_ended`]);
//! * *stopped*: it holds its lock, and has no heartbeat ([`Liveness::silence`]), as after SIGSTOP;
//! * *stuck*: it has a heartbeat, and its ranks begin no instruction ([`Liveness::instruction`]).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time between two heartbeats of a process.
pub const BEAT_EVERY: Duration = Duration::from_millis(200);

/// The bytes of a heartbeat: its number, and the id of the process.
const BEAT_BYTES: usize = size_of::<u64>() + size_of::<u32>();

/// What is known of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Liveness {
    /// The instruction that the rank has begun last, if it has begun one and this is known here.
    pub instruction: Option<usize>,
    /// How messages call its process; empty if it is this one, or unknown.
    pub process: String,
    /// How long its process had no heartbeat. Zero in a process without heartbeats.
    pub silence: Duration,
    /// Whether its process has ended.
    pub has_ended: bool,
}

/// The instructions that ranks of one process have begun last.
pub(crate) struct Begun(Vec<AtomicUsize>);

impl Begun {
    pub(crate) fn new(rank_count: usize) -> Begun {
        Begun((0..rank_count).map(|_| AtomicUsize::new(0)).collect())
    }

    pub(crate) fn begin(&self, rank: usize, instruction: usize) {
        self.0[rank].store(instruction + 1, Ordering::Relaxed);
    }

    pub(crate) fn sign(&self, rank: usize) -> Liveness {
        let begun = self.0[rank].load(Ordering::Relaxed);
        Liveness { instruction: begun.checked_sub(1), ..Liveness::default() }
    }
}

/// How long each process has been silent, counted in own heartbeats.
#[derive(Debug)]
pub(crate) struct Silences(Vec<AtomicU64>);

impl Silences {
    pub(crate) fn new(count: usize) -> Silences {
        Silences((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts one own heartbeat, in which a process was heard or not.
    pub(crate) fn count(&self, process: usize, is_heard: bool) {
        match is_heard {
            true => self.0[process].store(0, Ordering::Relaxed),
            false => _ = self.0[process].fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Own heartbeats since a process was heard.
    pub(crate) fn beats(&self, process: usize) -> u64 {
        self.0[process].load(Ordering::Relaxed)
    }

    /// How long a process has been silent.
    pub(crate) fn of(&self, process: usize) -> Duration {
        BEAT_EVERY.saturating_mul(u32::try_from(self.beats(process)).unwrap_or(u32::MAX))
    }
}

/// The thread of a heartbeat, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Beats once, and starts the thread that beats every [`BEAT_EVERY`] from then on.
    pub(crate) fn start(mut beat: impl FnMut() + Send + 'static) -> io::Result<Heartbeat> {
        beat();
        let is_over = Arc::new(AtomicBool::new(false));
        let shared = is_over.clone();
        let life = move || {
            loop {
                std::thread::park_timeout(BEAT_EVERY);
                if shared.load(Ordering::SeqCst) {
                    return;
                }
                beat();
            }
        };
        let thread = std::thread::Builder::new().name("partita heartbeat".into()).spawn(life)?;
        Ok(Heartbeat { is_over, thread: Some(thread) })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The heartbeat of this process, and what it hears of the others.
#[derive(Debug)]
pub(crate) struct Listener {
    heard: Arc<Heard>,
    _heartbeat: Heartbeat,
}

#[derive(Debug)]
struct Heard {
    silences: Silences,
    /// Per process.
    ids: Vec<AtomicU32>,
}

impl Listener {
    /// Writes the first heartbeat of a process to its file.
    pub(crate) fn prepare(folder: &Path, index: usize) -> io::Result<File> {
        let mut file = File::create(path(folder, index))?;
        beat(&mut file, 1)?;
        Ok(file)
    }

    /// Starts the heartbeat of process `index`, after all processes have prepared theirs.
    pub(crate) fn start(folder: &Path, index: usize, count: usize, mut own: File) -> io::Result<Listener> {
        let open =
            |other: usize| if other == index { Ok(None) } else { File::open(path(folder, other)).map(Some) };
        let mut others = (0..count).map(open).collect::<io::Result<Vec<_>>>()?;
        let heard = Arc::new(Heard {
            silences: Silences::new(count),
            ids: (0..count).map(|_| AtomicU32::new(std::process::id())).collect(),
        });
        let shared = heard.clone();
        let (mut seen, mut numbers) = (vec![0; count], 2..);
        let heartbeat = Heartbeat::start(move || {
            // A file that cannot be written is a heartbeat that stops: the others tell of it.
            let _ = beat(&mut own, numbers.next().unwrap_or(u64::MAX));
            for (other, file) in others.iter_mut().enumerate() {
                let Some((number, id)) = file.as_mut().and_then(|file| read(file).ok()) else { continue };
                shared.ids[other].store(id, Ordering::Relaxed);
                shared.silences.count(other, std::mem::replace(&mut seen[other], number) != number);
            }
        })?;
        Ok(Listener { heard, _heartbeat: heartbeat })
    }

    /// How long a process has been silent.
    pub(crate) fn silence(&self, process: usize) -> Duration {
        self.heard.silences.of(process)
    }

    /// The id of a process.
    pub(crate) fn id(&self, process: usize) -> u32 {
        self.heard.ids[process].load(Ordering::Relaxed)
    }
}

/// The file of a process's heartbeats.
fn path(folder: &Path, process: usize) -> PathBuf {
    folder.join(format!("heartbeat-{process}"))
}

fn beat(file: &mut File, number: u64) -> io::Result<()> {
    let mut bytes = [0; BEAT_BYTES];
    bytes[..size_of::<u64>()].copy_from_slice(&number.to_le_bytes());
    bytes[size_of::<u64>()..].copy_from_slice(&std::process::id().to_le_bytes());
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&bytes)
}

fn read(file: &mut File) -> io::Result<(u64, u32)> {
    let (mut number, mut id) = ([0; size_of::<u64>()], [0; size_of::<u32>()]);
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut number)?;
    file.read_exact(&mut id)?;
    Ok((u64::from_le_bytes(number), u32::from_le_bytes(id)))
}

/// The name of this host.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "this host".to_string() } else { name.to_string() }
}
