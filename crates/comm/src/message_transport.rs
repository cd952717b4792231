//! The transport between processes that exchange messages.
//!
//! A member that starts a collective copies its inputs into a buffer and sends to each other process
//! the part that members there read. A member whose inputs have arrived, from its own process and
//! from others, computes its outputs from these buffers with the plan of the in-process transport
//! and in the same order, so the results are bitwise equal. It is ready then: its own buffers were
//! copied, and it waits for no member of another process from which it gets nothing. In a large
//! all-reduce, each process computes a part for all instead, as soon as it has the inputs of all
//! members, and sends the sums.
//!
//! Consecutive uses alternate between two buffers for each input. A member is ready in use `n` only
//! after all members of its own process have started `n`, so that the buffers of use `n - 1` are
//! read by then, and after the messages of use `n - 1` were sent, so that no process runs ahead.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use partita_base::{CollectiveId, Diagnostic, Result};

use crate::heartbeat::MessageHeartbeat;
use crate::liveness::{Begun, Liveness};
use crate::message_routes::{Incoming, Messaging, Output, Slot, turn};
use crate::messages::{Buffer, Messages, Transfer};
use crate::notify::Notify;
use crate::spec::CollectiveSpec;
use crate::transport::{Failure, PROCESS_ENDED, Poll, Transport};

/// How often a thread tests messages while no rank polls, and while it waits for the control channel.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// How long a transport that ends waits until the others have taken its messages.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the last messages of a process may take after the notice that it has left.
const GRACE: Duration = Duration::from_millis(500);

/// The size of a notice: its kind, a rank and the length of a text, then the text.
const NOTICE_BYTES: usize = 4096;
const HEAD_BYTES: usize = 3 * size_of::<u64>();

/// Kinds of notices: a rank failed, and the process sends nothing more.
const FAILED: u64 = 1;
const LEFT: u64 = 2;

/// Tags of a world before those of its collectives: notices, and the control channel.
const OWN_TAGS: usize = 2;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The transport; see the module.
pub(crate) struct MessageTransport {
    link: Arc<Link>,
    watcher: Option<JoinHandle<()>>,
}

/// What the threads of this process share.
struct Link {
    messages: Arc<dyn Messages>,
    heartbeat: Arc<MessageHeartbeat>,
    first_tag: usize,
    rank_count: usize,
    /// Per process.
    ranks: Vec<Range<usize>>,
    specs: Vec<CollectiveSpec>,
    slots: Vec<Slot>,
    peers: Vec<Peer>,
    notify: Notify,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    is_over: AtomicBool,
    /// Of the local ranks.
    begun: Begun,
}

/// Another process.
struct Peer {
    process: usize,
    /// When it said that it sends nothing more.
    left: OnceLock<Instant>,
    /// Whether all that it sent before has had the time to arrive.
    has_left: AtomicBool,
    /// The notice that it may send next.
    notice: Mutex<Option<Transfer>>,
}

impl Link {
    fn own(&self) -> usize {
        self.messages.index()
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    fn member(&self, collective: CollectiveId, rank: usize) -> usize {
        let spec = &self.specs[collective.index()];
        let position = spec.members.iter().position(|&member| member == rank);
        position.unwrap_or_else(|| panic!("rank {rank} takes no part in collective `{}`", spec.label))
    }

    /// Starts to receive what members of other processes send in a use.
    fn post(&self, slot: &Slot, state: &mut Messaging, number: u64) {
        state.posted = number;
        let turn = turn(number);
        state.arrived[turn].fill(false);
        for (number, route) in slot.received.iter().enumerate() {
            let member = &slot.members[route.member];
            let (buffer, range) = match route.whole() {
                Some(range) => (reuse(&mut state.inputs[turn][route.member], member.bytes), range),
                None => (Buffer::new(route.bytes()), 0..route.bytes()),
            };
            let transfer = Transfer::receive(&self.messages, route.process, member.tag, buffer, range);
            state.receiving[turn].push((Incoming::Inputs(number), transfer));
        }
        for (place, (process, part)) in slot.sums.iter().flat_map(|sums| &sums.parts).enumerate() {
            let old = state.sums[turn][place].take();
            let buffer = reuse(&mut old.unwrap_or_default(), part.end);
            if *process == self.own() {
                state.unsummed[turn] = buffer;
            } else {
                let tag = slot.sums_tag + place;
                let transfer = Transfer::receive(&self.messages, *process, tag, buffer, part.clone());
                state.receiving[turn].push((Incoming::Sums(place), transfer));
            }
        }
    }

    /// Tests the messages of a collective; returns whether some were complete.
    fn advance(&self, slot: &Slot, state: &mut Messaging) -> bool {
        let mut changed = false;
        for turn in 0..2 {
            let Messaging { inputs, arrived, sums, receiving, sending, .. } = &mut *state;
            for (incoming, mut transfer) in std::mem::take(&mut receiving[turn]) {
                if !transfer.is_done() {
                    receiving[turn].push((incoming, transfer));
                    continue;
                }
                changed = true;
                match incoming {
                    Incoming::Sums(place) => sums[turn][place] = Some(Arc::new(transfer.buffer())),
                    Incoming::Inputs(number) => {
                        let route = &slot.received[number];
                        let input = &mut inputs[turn][route.member];
                        let mut buffer = transfer.buffer();
                        if route.whole().is_none() {
                            let packed = buffer;
                            buffer = reuse(input, slot.members[route.member].bytes);
                            route.unpack(&packed, &mut buffer);
                        }
                        *input = Arc::new(buffer);
                        arrived[turn][route.member] = true;
                    }
                }
            }
            let before = sending[turn].len();
            sending[turn].retain_mut(|transfer| !transfer.is_done());
            changed |= sending[turn].len() < before;
        }
        changed |= self.sum(slot, state);
        self.count(slot, state);
        changed
    }

    /// Reduces the part of this process in the current use, if the inputs of all members are there and it is not done,
    /// and sends the sums to the others; returns whether it did.
    fn sum(&self, slot: &Slot, state: &mut Messaging) -> bool {
        let (Some(sums), turn) = (&slot.sums, turn(state.posted)) else { return false };
        let Some(own) = sums.parts.iter().position(|(process, _)| *process == self.own()) else {
            return false;
        };
        let is_here = |(member, started): (usize, &u64)| match slot.members[member].process == self.own() {
            true => *started >= state.posted,
            false => state.arrived[turn][member],
        };
        if state.posted == 0
            || state.sums[turn][own].is_some()
            || !state.started.iter().enumerate().all(is_here)
        {
            return false;
        }
        let part = &sums.parts[own].1;
        let mut sum = std::mem::take(&mut state.unsummed[turn]);
        sums.reduce(part, &state.inputs[turn], &mut sum);
        let sum = Arc::new(sum);
        for (process, _) in sums.parts.iter().filter(|(process, _)| *process != self.own()) {
            let tag = slot.sums_tag + own;
            let send = Transfer::send(&self.messages, *process, tag, sum.clone(), part.clone());
            state.sending[turn].push(send);
        }
        state.sums[turn][own] = Some(sum);
        true
    }

    fn count(&self, slot: &Slot, state: &Messaging) {
        let messages = |turn: usize| state.receiving[turn].len() + state.sending[turn].len();
        slot.pending.store(messages(0) + messages(1), Ordering::SeqCst);
    }

    /// Whether a member has all that it needs in a use.
    fn is_ready(&self, slot: &Slot, state: &Messaging, member: usize, number: u64) -> bool {
        let is_own = |other: usize| slot.members[other].process == self.own();
        let all_started = (0..slot.members.len()).all(|m| !is_own(m) || state.started[m] >= number);
        let has_all = slot.lacked(state, member, number).next().is_none();
        all_started && has_all && state.sending[turn(number + 1)].is_empty()
    }

    /// Reads the notices that have come; returns whether there were any.
    fn notices(&self) -> bool {
        let mut changed = false;
        for peer in &self.peers {
            let mut notice = lock(&peer.notice);
            while notice.as_mut().is_some_and(Transfer::is_done) {
                let buffer = notice.take().expect("it is complete").buffer();
                let number = |i: usize| {
                    let bytes = buffer.bytes()[i * size_of::<u64>()..(i + 1) * size_of::<u64>()].try_into();
                    u64::from_le_bytes(bytes.expect("eight bytes"))
                };
                let text =
                    &buffer.bytes()[HEAD_BYTES..][..(number(2) as usize).min(NOTICE_BYTES - HEAD_BYTES)];
                let text = String::from_utf8_lossy(text).into_owned();
                if number(0) == FAILED {
                    let (code, message) = text.split_once('\n').unwrap_or((PROCESS_ENDED, &text));
                    let (code, message) = (code.to_string(), message.to_string());
                    self.record(Failure { rank: number(1) as usize, code, message });
                    *notice = Some(self.listen(peer.process));
                } else {
                    let _ = peer.left.set(Instant::now());
                }
                changed = true;
            }
            if peer.left.get().is_some_and(|left| left.elapsed() > GRACE) {
                changed |= !peer.has_left.swap(true, Ordering::SeqCst);
            }
        }
        changed
    }

    fn listen(&self, process: usize) -> Transfer {
        let buffer = Buffer::new(NOTICE_BYTES);
        Transfer::receive(&self.messages, process, self.first_tag, buffer, 0..NOTICE_BYTES)
    }

    /// Sends a notice to all others.
    fn tell(&self, kind: u64, rank: usize, text: &str) {
        let limit = NOTICE_BYTES - HEAD_BYTES;
        let end = (0..=limit.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        let mut buffer = Buffer::new(NOTICE_BYTES);
        let bytes = buffer.bytes_mut();
        for (place, number) in [kind, rank as u64, end as u64].into_iter().enumerate() {
            bytes[place * size_of::<u64>()..][..size_of::<u64>()].copy_from_slice(&number.to_le_bytes());
        }
        bytes[HEAD_BYTES..HEAD_BYTES + end].copy_from_slice(&text.as_bytes()[..end]);
        let buffer = Arc::new(buffer);
        let send = |peer: &Peer| {
            Transfer::send(&self.messages, peer.process, self.first_tag, buffer.clone(), 0..NOTICE_BYTES)
        };
        let mut sent: Vec<Transfer> = self.peers.iter().map(send).collect();
        // A notice is small: the library takes it at once, or soon.
        let begin = Instant::now();
        while !sent.iter_mut().all(Transfer::is_done) && begin.elapsed() < Duration::from_millis(100) {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Keeps the first failure; returns whether this is it.
    fn record(&self, failure: Failure) -> bool {
        let mut first = lock(&self.failure);
        let is_first = first.is_none();
        first.get_or_insert(failure);
        self.failed.store(true, Ordering::SeqCst);
        is_first
    }

    fn fail(&self, failure: Failure) {
        let (rank, text) = (failure.rank, format!("{}\n{}", failure.code, failure.message));
        if self.record(failure) {
            self.tell(FAILED, rank, &text);
        }
        self.notify.bump();
    }

    /// The thread that tests messages while ranks compute.
    fn watch(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            let mut changed = self.notices();
            for slot in self.slots.iter().filter(|slot| slot.pending.load(Ordering::SeqCst) > 0) {
                if let Ok(mut state) = slot.state.try_lock() {
                    changed |= self.advance(slot, &mut state);
                }
            }
            if changed {
                self.notify.bump();
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Sends bytes to all other processes and receives as many bytes as given from each.
    fn exchange(&self, bytes: &[u8], sizes: &[usize]) -> Result<Vec<Vec<u8>>> {
        let tag = self.first_tag + 1;
        let mut buffer = Buffer::new(bytes.len());
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let buffer = Arc::new(buffer);
        let others = self.peers.iter().map(|peer| (peer, sizes[peer.process]));
        let receive = |(peer, size): (_, usize)| {
            let peer: &Peer = peer;
            (peer, size, Transfer::receive(&self.messages, peer.process, tag, Buffer::new(size), 0..size))
        };
        let mut receiving: Vec<(&Peer, usize, Transfer)> = others.map(receive).collect();
        let send =
            |peer: &Peer| Transfer::send(&self.messages, peer.process, tag, buffer.clone(), 0..bytes.len());
        let mut sending: Vec<Transfer> = self.peers.iter().map(send).collect();
        loop {
            self.notices();
            let gone = |peer: &Peer| peer.has_left.load(Ordering::SeqCst);
            let left: Vec<usize> = self.peers.iter().filter(|p| gone(p)).map(|p| p.process).collect();
            let late: Vec<usize> = receiving
                .iter_mut()
                .filter_map(|(peer, _, transfer)| (!transfer.is_done()).then_some(peer.process))
                .collect();
            let mut others = self.peers.iter().zip(&mut sending);
            let unsent = others.find_map(|(peer, sent)| (!sent.is_done()).then_some(peer.process));
            if late.is_empty() && unsent.is_none() {
                break;
            }
            self.heartbeat.accuse(late.iter().copied().chain(unsent))?;
            if let Some(process) = late.iter().find(|process| left.contains(process)) {
                return Err(Diagnostic::new(PROCESS_ENDED, format!("process {process} has ended"))
                    .expected("all processes of the run to continue"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let mut all = vec![Vec::new(); self.messages.count()];
        all[self.own()] = bytes.to_vec();
        for (peer, size, transfer) in receiving {
            all[peer.process] = transfer.buffer().bytes()[..size].to_vec();
        }
        Ok(all)
    }

    /// The pending state; fails if a process that a member needs has ended.
    fn pending(&self, slot: &Slot, state: &mut Messaging, rank: usize, member: usize, number: u64) -> Poll {
        let has_left = |process: usize| {
            self.peers.iter().any(|peer| peer.process == process && peer.has_left.load(Ordering::SeqCst))
        };
        let lacks = |state: &Messaging| slot.lacked(state, member, number).find(|&process| has_left(process));
        if state.posted < number || lacks(state).is_none() {
            return Poll::Pending;
        }
        // The last messages before the notice may have arrived meanwhile.
        self.advance(slot, state);
        match lacks(state) {
            Some(process) => {
                let message = format!("process {process} has left the run");
                self.fail(Failure { rank, code: PROCESS_ENDED.into(), message });
                Poll::Failed
            }
            None => Poll::Pending,
        }
    }
}

/// A buffer of at least so many bytes: the old one, if nothing else has it.
fn reuse(old: &mut Arc<Buffer>, bytes: usize) -> Buffer {
    match Arc::try_unwrap(std::mem::take(old)) {
        Ok(buffer) if buffer.bytes().len() >= bytes => buffer,
        _ => Buffer::new(bytes),
    }
}

impl MessageTransport {
    /// The number of tags that a world with these collectives takes.
    pub(crate) fn tags(specs: &[CollectiveSpec]) -> usize {
        OWN_TAGS + specs.iter().map(Slot::tags).sum::<usize>()
    }

    /// A world whose tags begin at `first_tag`. Every process passes the same collectives, and the
    /// ranks of each process.
    ///
    /// # Errors
    /// See [`CollectiveSpec::validate`]; E448 if its thread cannot be started.
    pub(crate) fn open(
        messages: Arc<dyn Messages>,
        heartbeat: Arc<MessageHeartbeat>,
        first_tag: usize,
        rank_count: usize,
        ranks: Vec<Range<usize>>,
        specs: Vec<CollectiveSpec>,
    ) -> Result<MessageTransport> {
        specs.iter().try_for_each(|spec| spec.validate(rank_count))?;
        let own = messages.index();
        let mut tag = first_tag + OWN_TAGS;
        let slot = |spec: &CollectiveSpec| {
            let slot = Slot::new(spec, tag, &ranks, own);
            tag += Slot::tags(spec);
            slot
        };
        let slots = specs.iter().map(slot).collect();
        let others = (0..messages.count()).filter(|&process| process != own);
        let peer = |process| Peer {
            process,
            left: OnceLock::new(),
            has_left: AtomicBool::new(false),
            notice: Mutex::new(None),
        };
        let link = Arc::new(Link {
            heartbeat,
            first_tag,
            rank_count,
            ranks,
            specs,
            slots,
            peers: others.map(peer).collect(),
            notify: Notify::new(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            is_over: AtomicBool::new(false),
            begun: Begun::new(rank_count),
            messages,
        });
        for peer in &link.peers {
            *lock(&peer.notice) = Some(link.listen(peer.process));
        }
        let watched = link.clone();
        let watcher =
            std::thread::Builder::new().name("partita messages".into()).spawn(move || watched.watch());
        let watcher = watcher.map_err(|error| {
            Diagnostic::new("E448", "the thread that looks for messages cannot be started")
                .found(error.to_string())
        })?;
        Ok(MessageTransport { link, watcher: Some(watcher) })
    }
}

impl Transport for MessageTransport {
    fn rank_count(&self) -> usize {
        self.link.rank_count
    }

    fn collectives(&self) -> &[CollectiveSpec] {
        &self.link.specs
    }

    unsafe fn start(
        &self,
        collective: CollectiveId,
        rank: usize,
        inputs: &[*const [u8]],
        outputs: &[*mut [u8]],
    ) {
        let link = &*self.link;
        let spec = &link.specs[collective.index()];
        let index = link.member(collective, rank);
        spec.expect_buffers(index, inputs, outputs);
        let slot = &link.slots[collective.index()];
        let member = &slot.members[index];
        let mut own = lock(&member.own);
        assert!(
            link.has_failed() || !own.is_open,
            "rank {rank} starts `{}` while it is still in flight there",
            spec.label
        );
        own.number += 1;
        own.is_open = true;
        let lent = |output: &*mut [u8]| Output { pointer: output.cast::<u8>(), bytes: output.len() };
        own.outputs = outputs.iter().map(lent).collect();
        if link.has_failed() {
            return;
        }
        let (number, turn) = (own.number, turn(own.number));
        let mut state = lock(&slot.state);
        state.started[index] = number;
        if state.posted < number {
            link.post(slot, &mut state, number);
        }
        if Arc::get_mut(&mut state.inputs[turn][index]).is_none_or(|b| b.bytes().len() < member.bytes) {
            state.inputs[turn][index] = Arc::new(Buffer::new(member.bytes));
        }
        let buffer = Arc::get_mut(&mut state.inputs[turn][index]).expect("it is not shared");
        for (&input, &offset) in inputs.iter().zip(&member.offsets) {
            // A buffer of no bytes may have any address.
            if input.len() > 0 {
                // SAFETY: the caller's promise: inputs are valid and not written.
                buffer.bytes_mut()[offset..offset + input.len()].copy_from_slice(unsafe { &*input });
            }
        }
        let buffer = state.inputs[turn][index].clone();
        for route in slot.sent.iter().filter(|route| route.member == index) {
            let (buffer, range) = match route.whole() {
                Some(range) => (buffer.clone(), range),
                None => (Arc::new(route.pack(&buffer)), 0..route.bytes()),
            };
            let send = Transfer::send(&link.messages, route.process, member.tag, buffer, range);
            state.sending[turn].push(send);
        }
        link.count(slot, &state);
        drop(state);
        link.notify.bump();
    }

    fn poll(&self, collective: CollectiveId, rank: usize) -> Poll {
        let link = &*self.link;
        let slot = &link.slots[collective.index()];
        let index = link.member(collective, rank);
        let mut own = lock(&slot.members[index].own);
        if link.has_failed() {
            return Poll::Failed;
        }
        if !own.is_open {
            return Poll::Ready;
        }
        let mut state = lock(&slot.state);
        if link.advance(slot, &mut state) {
            link.notify.bump();
        }
        if !link.is_ready(slot, &state, index, own.number) {
            return link.pending(slot, &mut state, rank, index, own.number);
        }
        let turn = turn(own.number);
        let (inputs, sums) = (state.inputs[turn].clone(), state.sums[turn].clone());
        drop(state);
        slot.make(index, &inputs, &sums, &own.outputs);
        own.is_open = false;
        Poll::Ready
    }

    fn notify(&self) -> &Notify {
        &self.link.notify
    }

    fn fail(&self, failure: Failure) {
        self.link.fail(failure);
        // Threads that poll a local member now finish first; later ones see the failure.
        for member in self.link.slots.iter().flat_map(|slot| &slot.members) {
            drop(lock(&member.own));
        }
    }

    fn failure(&self) -> Option<Failure> {
        lock(&self.link.failure).clone()
    }

    fn missing(&self, collective: CollectiveId) -> Vec<usize> {
        let (spec, slot) = (&self.link.specs[collective.index()], &self.link.slots[collective.index()]);
        let state = lock(&slot.state);
        let latest = state.posted;
        let is_missing = |&(member, _): &(usize, &usize)| {
            let needed = slot.received.iter().any(|route| route.member == member);
            match slot.members[member].process == self.link.own() {
                true => state.started[member] < latest,
                false => needed && latest > 0 && !state.arrived[turn(latest)][member],
            }
        };
        spec.members.iter().enumerate().filter(is_missing).map(|(_, &rank)| rank).collect()
    }

    fn begin(&self, rank: usize, instruction: usize) {
        self.link.begun.begin(rank, instruction);
    }

    fn sign(&self, rank: usize) -> Liveness {
        let link = &*self.link;
        let process = link.ranks.iter().position(|ranks| ranks.contains(&rank)).unwrap_or(link.own());
        if process == link.own() { link.begun.sign(rank) } else { link.heartbeat.sign(process) }
    }

    fn control_all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let link = &*self.link;
        let sizes = vec![size_of::<u64>(); link.messages.count()];
        let sizes = link.exchange(&(bytes.len() as u64).to_le_bytes(), &sizes)?;
        let size = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes) as usize;
        link.exchange(bytes, &sizes.iter().map(size).collect::<Vec<_>>())
    }
}

impl Drop for MessageTransport {
    fn drop(&mut self) {
        let link = &*self.link;
        let begin = Instant::now();
        let is_sent = |slot: &Slot| {
            let mut state = lock(&slot.state);
            link.advance(slot, &mut state);
            state.sending.iter().all(Vec::is_empty)
        };
        while !link.has_failed() && begin.elapsed() < PATIENCE && !link.slots.iter().all(is_sent) {
            std::thread::sleep(LOOK_EVERY);
        }
        link.tell(LEFT, 0, "");
        link.is_over.store(true, Ordering::SeqCst);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}
