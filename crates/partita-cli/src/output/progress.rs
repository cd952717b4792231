//! That something takes a while: one line on standard error after two seconds, written again every two seconds on a
//! terminal; elsewhere a new line every ten seconds.

use super::format::duration;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When lines are written, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Before the first line.
    pub first: Duration,
    /// From one line to the next.
    pub every: Duration,
    /// A line takes the place of the one before.
    pub in_place: bool,
}

impl Pace {
    /// For a terminal or something else.
    pub fn of(terminal: bool) -> Pace {
        let first = Duration::from_secs(2);
        Pace { first, every: if terminal { first } else { Duration::from_secs(10) }, in_place: terminal }
    }
}

/// Work under way; it ends when this is dropped.
pub struct Working {
    amount: Arc<Amount>,
    ticking: Option<(Sender<()>, JoinHandle<()>)>,
}

/// What is done, and how much of it.
#[derive(Debug)]
struct Amount {
    what: Mutex<String>,
    done: AtomicU64,
    /// 0 if unknown.
    total: AtomicU64,
}

impl Amount {
    fn line(&self, seconds: f64) -> String {
        let (done, total) = (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed));
        let share = match total {
            0 => String::new(),
            total => format!("{:.0} %, ", (100.0 * done as f64 / total as f64).min(100.0)),
        };
        format!("{}: {share}{}", lock(&self.what), duration(seconds))
    }
}

fn lock(text: &Mutex<String>) -> MutexGuard<'_, String> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Working {
    /// Work whose progress is not printed.
    pub fn silently() -> Working {
        let amount = Amount { what: Mutex::default(), done: AtomicU64::new(0), total: AtomicU64::new(0) };
        Working { amount: Arc::new(amount), ticking: None }
    }

    /// Work told to `sink` at this pace.
    pub(super) fn telling(what: &str, pace: Pace, mut sink: impl Write + Send + 'static) -> Working {
        let mut working = Working::silently();
        working.becomes(what);
        let amount = working.amount.clone();
        let (sender, stop) = channel();
        let tick = move || {
            let begin = Instant::now();
            let (mut written, mut wait) = (false, pace.first);
            while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(wait) {
                wait = pace.every;
                let line = amount.line(begin.elapsed().as_secs_f64());
                let _ = if pace.in_place { write!(sink, "\r\x1b[K{line}") } else { writeln!(sink, "{line}") };
                let _ = sink.flush();
                written = true;
            }
            if written && pace.in_place {
                let _ = write!(sink, "\r\x1b[K");
                let _ = sink.flush();
            }
        };
        // Without a thread, no progress is printed.
        working.ticking = std::thread::Builder::new().spawn(tick).ok().map(|thread| (sender, thread));
        working
    }

    /// Prints a fact on a line of its own, unless the progress is not printed either.
    pub fn say(&self, text: &str) {
        if self.ticking.is_some() {
            eprintln!("{text}");
        }
    }

    /// From here on it is something else, of which nothing is done.
    pub fn becomes(&self, what: &str) {
        *lock(&self.amount.what) = what.to_string();
        self.expect(0);
    }

    /// How much there is to do, from here on; 0 if unknown.
    pub fn expect(&self, total: u64) {
        self.amount.done.store(0, Ordering::Relaxed);
        self.amount.total.store(total, Ordering::Relaxed);
    }

    /// So much more is done.
    pub fn advance(&self, amount: u64) {
        self.amount.done.fetch_add(amount, Ordering::Relaxed);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.ticking.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    struct Lines(Sender<String>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_says_what_how_much_and_for_how_long() {
        let working = Working::silently();
        working.becomes("verifying");
        assert_eq!(working.amount.line(12.34), "verifying: 12.3 s");
        working.expect(200);
        working.advance(50);
        working.advance(51);
        assert_eq!(working.amount.line(245.0), "verifying: 50 %, 4 min 05 s");
        working.advance(1000);
        assert_eq!(working.amount.line(1.0), "verifying: 100 %, 1.0 s");
        working.becomes("lowering");
        assert_eq!(working.amount.line(1.0), "lowering: 1.0 s");
    }

    #[test]
    fn lines_come_until_the_work_is_done() {
        let (sender, lines) = channel();
        let pace = Pace { first: MOMENT, every: MOMENT, in_place: false };
        let working = Working::telling("planning the step", pace, Lines(sender));
        let mut text = String::new();
        while text.lines().count() < 2 || !text.ends_with('\n') {
            text += &lines.recv().expect("lines come");
        }
        assert!(text.lines().all(|line| line.starts_with("planning the step: ")), "{text}");
        drop(working);
        while lines.try_recv().is_ok() {}
        assert!(lines.recv().is_err(), "the thread has ended");
    }

    #[test]
    fn work_that_ends_at_once_says_nothing_and_a_terminal_is_left_clean() {
        let (sender, lines) = channel();
        drop(Working::telling("x", Pace::of(false), Lines(sender)));
        assert!(lines.recv().is_err());
        let (sender, lines) = channel();
        let pace = Pace { first: MOMENT, every: MOMENT, in_place: true };
        let working = Working::telling("x", pace, Lines(sender));
        let first = lines.recv().expect("a line comes");
        assert!(first.starts_with('\r'), "{first:?}");
        drop(working);
        let text: String = std::iter::from_fn(|| lines.recv().ok()).collect();
        assert!(text.ends_with("\r\x1b[K"), "{text:?}");
        for pace in [Pace::of(true), Pace::of(false)] {
            assert!(pace.first <= Duration::from_secs(2) && pace.every <= Duration::from_secs(10));
        }
    }
}
