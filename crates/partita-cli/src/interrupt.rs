//! Ctrl-C, the request to terminate, and the end of the terminal, in a command that has something to finish; and files that
//! grow too large.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// The exit code of a process that was stopped by Ctrl-C.
pub const EXIT_CODE: u8 = 130;

/// How often the watcher thread checks for a signal.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The signals that end a run: Ctrl-C, the request to terminate, and the end of the terminal, unless `nohup` has had it
/// ignored.
fn ending_signals() -> impl Iterator<Item = i32> {
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| signal != SIGHUP || !is_ignored(signal))
}

/// Whether this process ignores a signal, as Linux tells it: a process inherits that.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// Makes a file that grows beyond the limit of the process (`ulimit -f`) an error of the write, as a full disk is, and not
/// the end of the process. Where the system does not allow that, it stays the end.
pub fn survive_file_limits() {
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Ends the process with [`EXIT_CODE`] on such a signal: at once, or the second time while [`Interrupt::defer`] runs.
pub struct Interrupt {
    /// Whether the next signal ends the process.
    at_once: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over these signals for the rest of the process.
    ///
    /// # Errors
    /// Where the system does not allow it.
    pub fn catch() -> io::Result<Interrupt> {
        let interrupt = Interrupt { at_once: Arc::new(AtomicBool::new(true)), stop: Arc::default() };
        for signal in ending_signals() {
            // They run in this order: the first signal arms what the second one finds.
            flag::register_conditional_shutdown(signal, i32::from(EXIT_CODE), interrupt.at_once.clone())?;
            flag::register(signal, interrupt.at_once.clone())?;
            flag::register(signal, interrupt.stop.clone())?;
        }
        Ok(interrupt)
    }

    /// Runs `work`, which is to return soon after the flag it gets is set. The first signal sets it, and `announce` is
    /// called on another thread; the second one ends the process.
    pub fn defer<T>(&self, announce: impl FnOnce() + Send, work: impl FnOnce(&AtomicBool) -> T) -> T {
        self.at_once.store(false, Ordering::SeqCst);
        let done = AtomicBool::new(false);
        let result = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !self.stop.load(Ordering::SeqCst) && !done.load(Ordering::SeqCst) {
                    std::thread::park_timeout(CHECK_EVERY);
                }
                // The work may have ended since: it ended because of the signal.
                if self.stop.load(Ordering::SeqCst) {
                    announce();
                }
            });
            let _end = End { done: &done, watcher: watcher.thread() };
            work(&self.stop)
        });
        self.at_once.store(true, Ordering::SeqCst);
        result
    }
}

/// These signals as requests that the command answers itself.
pub struct Requests(Arc<AtomicBool>);

impl Requests {
    /// Takes over these signals for the rest of the process.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn catch() -> io::Result<Requests> {
        let requests = Requests(Arc::default());
        for signal in ending_signals() {
            flag::register(signal, requests.0.clone())?;
        }
        Ok(requests)
    }

    /// Whether a signal has arrived since the last call.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

/// Lets the watcher end, also where the work panics.
struct End<'a> {
    done: &'a AtomicBool,
    watcher: &'a Thread,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::SeqCst);
        self.watcher.unpark();
    }
}
