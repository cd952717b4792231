//! Ctrl-C, and the request to terminate, in a command that has something to finish; and files that grow too large.

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
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

/// Ends the process with [`EXIT_CODE`] on either signal: at once, or the second time while [`Interrupt::defer`] runs.
pub struct Interrupt {
    /// Whether the next signal ends the process.
    at_once: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over both signals for the rest of the process.
    ///
    /// # Errors
    /// Where the system does not allow it.
    pub fn catch() -> io::Result<Interrupt> {
        let interrupt = Interrupt { at_once: Arc::new(AtomicBool::new(true)), stop: Arc::default() };
        // A file beyond the limit of the process is then an error of the write, as a full disk is, and not the end.
        flag::register(SIGXFSZ, Arc::default())?;
        for signal in [SIGINT, SIGTERM] {
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

/// Both signals as requests that the command answers itself.
pub struct Requests(Arc<AtomicBool>);

impl Requests {
    /// Takes over both signals for the rest of the process.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn catch() -> io::Result<Requests> {
        let requests = Requests(Arc::default());
        for signal in [SIGINT, SIGTERM] {
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
