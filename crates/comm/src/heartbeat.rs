//! Heartbeats of processes that exchange messages.
//!
//! A thread sends a message of a few bytes to every other process several times a second, on a tag of its own, and counts
//! its own heartbeats since another process was heard: a process that was itself stopped for a while does not count that
//! time. A process that is slow, as while it writes a checkpoint, has a heartbeat; a stopped one has none
//! ([`crate::liveness`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use partita_base::{Diagnostic, Result};

use crate::liveness::{BEAT_EVERY, Heartbeat, Liveness, Silences};
use crate::messages::{Buffer, Messages, Transfer};
use crate::processes::Patience;

/// The tag of heartbeats.
pub(crate) const TAG: usize = 0;

/// The size of a heartbeat, whose content is not read.
const BYTES: usize = size_of::<u64>();

/// The heartbeat of this process, and what it hears of the others.
#[derive(Debug)]
pub(crate) struct MessageHeartbeat {
    heard: Arc<Heard>,
    /// None in a process that is alone.
    _heartbeat: Option<Heartbeat>,
}

#[derive(Debug)]
struct Heard {
    silences: Silences,
    /// Per process: whether it was ever heard.
    is_known: Vec<AtomicBool>,
    /// Own heartbeats for which a process that was heard may be silent.
    limit: AtomicU64,
}

/// What goes to another process and comes from it.
struct Line {
    process: usize,
    sending: Option<Transfer>,
    listening: Transfer,
}

fn beats(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() / BEAT_EVERY.as_nanos()).unwrap_or(u64::MAX)
}

impl MessageHeartbeat {
    /// Starts the heartbeat of this process. If its thread cannot be started, no process counts as stopped here.
    pub(crate) fn start(messages: &Arc<dyn Messages>) -> MessageHeartbeat {
        let count = messages.count();
        let heard = Arc::new(Heard {
            silences: Silences::new(count),
            is_known: (0..count).map(|_| AtomicBool::new(false)).collect(),
            limit: AtomicU64::new(beats(Patience::default().silence)),
        });
        if count == 1 {
            return MessageHeartbeat { heard, _heartbeat: None };
        }
        let (messages, shared) = (messages.clone(), heard.clone());
        let listen = |messages: &Arc<dyn Messages>, process| {
            Transfer::receive(messages, process, TAG, Buffer::new(BYTES), 0..BYTES)
        };
        let line = |process| Line { process, sending: None, listening: listen(&messages, process) };
        let others = (0..count).filter(|&process| process != messages.index());
        let mut lines: Vec<Line> = others.map(line).collect();
        let buffer = Arc::new(Buffer::new(BYTES));
        let heartbeat = Heartbeat::start(move || {
            for line in &mut lines {
                // To a process that takes none there is one on its way, and no more.
                if line.sending.as_mut().is_none_or(Transfer::is_done) {
                    let sent = Transfer::send(&messages, line.process, TAG, buffer.clone(), 0..BYTES);
                    line.sending = Some(sent);
                }
                let mut is_heard = false;
                while line.listening.is_done() {
                    is_heard = true;
                    line.listening = listen(&messages, line.process);
                }
                shared.is_known[line.process].fetch_or(is_heard, Ordering::Relaxed);
                shared.silences.count(line.process, is_heard);
            }
        });
        MessageHeartbeat { heard, _heartbeat: heartbeat.ok() }
    }

    /// Sets how long a process may be silent.
    pub(crate) fn tolerate(&self, silence: Duration) {
        self.heard.limit.store(beats(silence), Ordering::Relaxed);
    }

    /// How long a process has been silent.
    pub(crate) fn silence(&self, process: usize) -> Duration {
        self.heard.silences.of(process)
    }

    /// What is known of the ranks of another process.
    pub(crate) fn sign(&self, process: usize) -> Liveness {
        Liveness {
            process: format!("process {process}"),
            silence: self.silence(process),
            ..Liveness::default()
        }
    }

    /// Whether a process has been silent for too long. Until it is heard for the first time it may take as long as
    /// processes have to join.
    pub(crate) fn is_silent(&self, process: usize) -> bool {
        let limit = self.heard.limit.load(Ordering::Relaxed);
        let joining = beats(Patience::default().joining);
        let is_known = self.heard.is_known[process].load(Ordering::Relaxed);
        self.heard.silences.beats(process) > if is_known { limit } else { limit.max(joining) }
    }

    /// E443 if one of these processes has been silent for too long.
    pub(crate) fn accuse(&self, mut processes: impl Iterator<Item = usize>) -> Result<()> {
        match processes.find(|&process| self.is_silent(process)) {
            Some(process) => {
                let silence = self.silence(process);
                Err(Diagnostic::new("E443", format!("process {process} has not run for {silence:.1?}"))
                    .expected("all processes of the run to continue")
                    .help(
                        "it is stopped, as by SIGSTOP, or its host has no memory left or cannot be reached",
                    ))
            }
            None => Ok(()),
        }
    }
}
