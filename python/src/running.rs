//! How programs run in this process: alone or as one of several, and until Ctrl-C.

use crate::error::{OrRaise, raised};
use partita::engines::Engine;
use partita::engines::native::Native;
use partita::session::Execution;
use partita_base::{Diagnostic, Result};
use partita_runtime::{Interrupter, RunnerOptions};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The place of this process among those of `python -m partita.launch`, once it is known. A process joins the others once.
static PLACE: Mutex<Option<Execution>> = Mutex::new(None);

/// The options of programs for so many ranks: under `python -m partita.launch` the processes share them.
///
/// # Errors
/// E448 if this process cannot join the others, E449 if there are more processes than ranks.
pub fn options(ranks: usize) -> Result<RunnerOptions> {
    let mut place = PLACE.lock().unwrap_or_else(PoisonError::into_inner);
    let execution = match &*place {
        Some(known) if known.processes.as_ref().is_none_or(|all| all.count() <= ranks) => known.clone(),
        _ => place.insert(Native.share(Execution::default(), ranks)?).clone(),
    };
    let Execution { workers, processes, .. } = execution;
    Ok(RunnerOptions { workers, processes, ..RunnerOptions::default() })
}

/// The process that runs programs: the one that was the first to ask for it.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// E433 in a process that was forked from the one that runs programs: its threads do not exist here.
pub fn check_process() -> Result<()> {
    let (first, own) = (*PROCESS.get_or_init(std::process::id), std::process::id());
    if own == first {
        return Ok(());
    }
    Err(Diagnostic::new("E433", "a forked child cannot run the programs of its parent")
        .expected(format!("process {first}, which has the threads of the ranks"))
        .found(format!("process {own}"))
        .help("start workers with multiprocessing.get_context(\"spawn\"), as with DataLoader(.., multiprocessing_context=\"spawn\"), \
               or call trainers and built modules in the parent alone"))
}

/// What has threads and files, such as the programs of a step. A forked child has copies of neither: it leaves them alone when
/// it ends.
pub struct OfProcess<T> {
    value: Option<Mutex<T>>,
    process: u32,
}

impl<T> OfProcess<T> {
    /// Made by this process.
    pub fn new(value: T) -> OfProcess<T> {
        OfProcess { value: Some(Mutex::new(value)), process: std::process::id() }
    }

    /// For this thread alone.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let value = self.value.as_ref().expect("a value until it is dropped");
        value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}

/// How often a long run looks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A run that takes longer is watched the next time.
const LONG: Duration = Duration::from_millis(100);

/// Ends the runs of a step on Ctrl-C.
pub struct Watched {
    interrupter: Interrupter,
    /// Whether the last run was long, or there was none: watching takes a thread.
    is_long: AtomicBool,
}

impl Watched {
    /// For the steps of a runner.
    pub fn new(interrupter: Interrupter) -> Watched {
        Watched { interrupter, is_long: AtomicBool::new(true) }
    }

    /// Runs `work`, which runs the step, without the interpreter lock. Raises its diagnostic, or `KeyboardInterrupt` if
    /// that came, or what another handler of a signal raises; the step then fails with E427 from there on.
    pub fn run<T: Send>(&self, py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
        check_process().or_raise(py)?;
        let begin = Instant::now();
        let result = match self.is_long.load(Ordering::Relaxed) {
            true => py.detach(|| self.watch(work))?,
            false => py.detach(work),
        };
        self.is_long.store(begin.elapsed() > LONG, Ordering::Relaxed);
        result.map_err(|diagnostic| raised(py, &diagnostic))
    }

    fn watch<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> PyResult<Result<T>> {
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let running = scope.spawn(move || {
                let result = work();
                drop(sender);
                result
            });
            let mut caught = None;
            while receiver.recv_timeout(LOOK_EVERY) == Err::<(), _>(mpsc::RecvTimeoutError::Timeout) {
                if caught.is_none()
                    && let Err(error) = Python::attach(|py| py.check_signals())
                {
                    self.interrupter.interrupt();
                    caught = Some(error);
                }
            }
            let result = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            caught.map_or(Ok(result), Err)
        })
    }
}
