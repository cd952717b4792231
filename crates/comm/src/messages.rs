//! Point-to-point messages between processes, and processes that share a world over them.
//!
//! [`Messages`] is what a message-passing library such as MPI offers: tagged messages between
//! numbered processes that start without blocking and are tested for completion. It is all that the
//! transport over messages needs, so that the order of every summation stays ours.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use partita_base::{Diagnostic, Result};

use crate::heartbeat::{self, MessageHeartbeat};
use crate::message_transport::MessageTransport;
use crate::processes::Processes;
use crate::spec::CollectiveSpec;
use crate::transport::Transport;

/// A message on its way, as the library that moves it names it.
pub type Handle = usize;

/// Moves messages between the processes of a run. Messages from one process to another with one
/// tag arrive in the order in which they were sent.
pub trait Messages: std::fmt::Debug + Send + Sync {
    /// The index of this process.
    fn index(&self) -> usize;

    /// The number of processes.
    fn count(&self) -> usize;

    /// Tags are below this number.
    fn tags(&self) -> usize;

    /// Starts to send bytes, and does not block.
    ///
    /// # Safety
    /// The bytes are valid and not written until [`Messages::test`] has returned true for the
    /// message, or for ever.
    unsafe fn send(&self, process: usize, tag: usize, bytes: *const [u8]) -> Handle;

    /// Starts to receive a message of exactly this size, and does not block.
    ///
    /// # Safety
    /// The bytes are valid and not accessed until [`Messages::test`] has returned true for the
    /// message, or [`Messages::cancel`] has returned.
    unsafe fn receive(&self, process: usize, tag: usize, bytes: *mut [u8]) -> Handle;

    /// Whether a message is complete; its handle is invalid then.
    fn test(&self, handle: Handle) -> bool;

    /// Gives up a message that is not complete. Its handle is invalid afterwards.
    fn cancel(&self, handle: Handle);
}

/// The processes of a run that exchange messages, on one host or on several.
#[derive(Debug)]
pub struct MessageProcesses {
    messages: Arc<dyn Messages>,
    heartbeat: Arc<MessageHeartbeat>,
    /// Each world has tags of its own. All processes make the same worlds in the same order.
    next_tag: AtomicUsize,
}

impl MessageProcesses {
    /// This process among those that the messages connect, with a heartbeat.
    pub fn join(messages: Arc<dyn Messages>) -> Arc<dyn Processes> {
        let heartbeat = Arc::new(MessageHeartbeat::start(&messages));
        Arc::new(MessageProcesses { messages, heartbeat, next_tag: AtomicUsize::new(heartbeat::TAG + 1) })
    }
}

impl Processes for MessageProcesses {
    fn index(&self) -> usize {
        self.messages.index()
    }

    fn count(&self) -> usize {
        self.messages.count()
    }

    fn transport(
        self: Arc<Self>,
        rank_count: usize,
        collectives: Vec<CollectiveSpec>,
    ) -> Result<Arc<dyn Transport>> {
        let count = MessageTransport::tags(&collectives);
        let first = self.next_tag.fetch_add(count, Ordering::SeqCst);
        if first + count > self.messages.tags() {
            return Err(Diagnostic::new("E448", "the run has more collectives than there are message tags")
                .expected(format!("at most {} tags", self.messages.tags()))
                .found(format!("{} tags", first + count)));
        }
        let (messages, heartbeat) = (self.messages.clone(), self.heartbeat.clone());
        let ranks = (0..self.count()).map(|process| self.ranks(process, rank_count)).collect();
        Ok(Arc::new(MessageTransport::open(messages, heartbeat, first, rank_count, ranks, collectives)?))
    }

    fn tolerate(&self, silence: Duration) {
        self.heartbeat.tolerate(silence);
    }

    fn stopped(&self) -> Vec<usize> {
        (0..self.count()).filter(|&process| self.heartbeat.is_silent(process)).collect()
    }
}

/// Memory for messages, aligned for every element type; zeros at first.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<u64>);

impl Buffer {
    pub(crate) fn new(bytes: usize) -> Buffer {
        Buffer(vec![0; bytes.div_ceil(size_of::<u64>())])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// A message on its way with its memory.
pub(crate) struct Transfer {
    messages: Arc<dyn Messages>,
    handle: Option<Handle>,
    memory: Memory,
}

enum Memory {
    Sent(Option<Arc<Buffer>>),
    Received(Buffer),
}

impl Transfer {
    /// Sends a range of bytes.
    pub(crate) fn send(
        messages: &Arc<dyn Messages>,
        process: usize,
        tag: usize,
        buffer: Arc<Buffer>,
        range: Range<usize>,
    ) -> Transfer {
        let bytes: *const [u8] = &buffer.bytes()[range];
        // SAFETY: the transfer keeps the buffer, which nothing writes while it is shared, until the
        // message is complete; an incomplete one leaks it.
        let handle = unsafe { messages.send(process, tag, bytes) };
        Transfer { messages: messages.clone(), handle: Some(handle), memory: Memory::Sent(Some(buffer)) }
    }

    /// Receives a range of bytes.
    pub(crate) fn receive(
        messages: &Arc<dyn Messages>,
        process: usize,
        tag: usize,
        mut buffer: Buffer,
        range: Range<usize>,
    ) -> Transfer {
        let bytes: *mut [u8] = &mut buffer.bytes_mut()[range];
        // SAFETY: the transfer keeps the buffer, and nothing accesses it, until the message is
        // complete or cancelled.
        let handle = unsafe { messages.receive(process, tag, bytes) };
        Transfer { messages: messages.clone(), handle: Some(handle), memory: Memory::Received(buffer) }
    }

    /// Whether it is complete.
    pub(crate) fn is_done(&mut self) -> bool {
        if self.handle.is_some_and(|handle| self.messages.test(handle)) {
            self.handle = None;
        }
        self.handle.is_none()
    }

    /// The buffer of a complete message that was received.
    pub(crate) fn buffer(mut self) -> Buffer {
        match &mut self.memory {
            Memory::Received(buffer) if self.handle.is_none() => std::mem::take(buffer),
            _ => Buffer::default(),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.messages.cancel(handle);
            // The library may still read what it sends.
            if let Memory::Sent(buffer) = &mut self.memory {
                std::mem::forget(buffer.take());
            }
        }
    }
}
