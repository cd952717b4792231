//! Signs of life: what each rank did last, and whether its process still runs.
//!
//! Every process of a host has a heartbeat: a thread that raises a number in a file of its own and reads the numbers of
//! the others. How long another process has been silent is counted in own heartbeats since its number has moved, so no
//! clock is read, and a process that was itself stopped for a while does not count the time. This separates three faults:
//!
//! * *dead*: the system has released the lock of the process ([`Sign::has_ended`]);
//! * *stopped*: it holds its lock, and has no heartbeat ([`Sign::silence`]), as after SIGSTOP;
//! * *stuck*: it has a heartbeat, and its ranks begin no instruction ([`Sign::instruction`]).

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
pub struct Sign {
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

    pub(crate) fn sign(&self, rank: usize) -> Sign {
        let begun = self.0[rank].load(Ordering::Relaxed);
        Sign { instruction: begun.checked_sub(1), ..Sign::default() }
    }
}

/// The heartbeat of this process, and what it hears of the others.
#[derive(Debug)]
pub(crate) struct Heart {
    heard: Arc<Heard>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Heard {
    is_over: AtomicBool,
    /// Per process: own heartbeats since its number has moved, and its id.
    silent: Vec<AtomicU64>,
    ids: Vec<AtomicU32>,
}

impl Heart {
    /// Writes the first heartbeat of a process to its file.
    pub(crate) fn prepare(folder: &Path, index: usize) -> io::Result<File> {
        let mut file = File::create(path(folder, index))?;
        beat(&mut file, 1)?;
        Ok(file)
    }

    /// Starts the heartbeat of process `index`, after all processes have prepared theirs.
    pub(crate) fn start(folder: &Path, index: usize, count: usize, mut own: File) -> io::Result<Heart> {
        let open =
            |other: usize| if other == index { Ok(None) } else { File::open(path(folder, other)).map(Some) };
        let mut others = (0..count).map(open).collect::<io::Result<Vec<_>>>()?;
        let heard = Arc::new(Heard {
            is_over: AtomicBool::new(false),
            silent: (0..count).map(|_| AtomicU64::new(0)).collect(),
            ids: (0..count).map(|_| AtomicU32::new(std::process::id())).collect(),
        });
        let shared = heard.clone();
        let mut seen = vec![0; count];
        let mut round = move |number: u64| {
            // A file that cannot be written is a heartbeat that stops: the others tell of it.
            let _ = beat(&mut own, number);
            for (other, file) in others.iter_mut().enumerate() {
                let Some((number, id)) = file.as_mut().and_then(|file| read(file).ok()) else { continue };
                shared.ids[other].store(id, Ordering::Relaxed);
                if std::mem::replace(&mut seen[other], number) == number {
                    shared.silent[other].fetch_add(1, Ordering::Relaxed);
                } else {
                    shared.silent[other].store(0, Ordering::Relaxed);
                }
            }
        };
        round(2);
        let shared = heard.clone();
        let life = move || {
            for number in 3.. {
                std::thread::park_timeout(BEAT_EVERY);
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                round(number);
            }
        };
        let thread = std::thread::Builder::new().name("partita heartbeat".into()).spawn(life)?;
        Ok(Heart { heard, thread: Some(thread) })
    }

    /// How long a process has been silent.
    pub(crate) fn silence(&self, process: usize) -> Duration {
        let beats = self.heard.silent[process].load(Ordering::Relaxed);
        BEAT_EVERY.saturating_mul(u32::try_from(beats).unwrap_or(u32::MAX))
    }

    /// The id of a process.
    pub(crate) fn id(&self, process: usize) -> u32 {
        self.heard.ids[process].load(Ordering::Relaxed)
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.heard.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
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
