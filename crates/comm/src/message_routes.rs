//! Who sends what in a collective between processes that exchange messages: the part of each member's
//! inputs that members of another process read, from the plan of shares.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use crate::messages::{Buffer, Transfer};
use crate::share::{Action, Piece, Plan};
use crate::spec::{CollectiveSpec, Exchange};

/// Alignment of an input in the buffer of its member.
const ALIGNMENT_BYTES: usize = 64;

/// One collective.
pub(crate) struct Slot {
    pub(crate) plan: Plan,
    pub(crate) members: Vec<Member>,
    /// What members of this process read from members of others.
    pub(crate) received: Vec<Route>,
    /// What members of other processes read from members of this one.
    pub(crate) sent: Vec<Route>,
    pub(crate) state: Mutex<Messaging>,
    /// Messages on their way.
    pub(crate) pending: AtomicUsize,
}

/// A range of bytes of a member's buffer, which one other process sends or receives.
pub(crate) struct Route {
    pub(crate) member: usize,
    pub(crate) process: usize,
    pub(crate) range: Range<usize>,
}

pub(crate) struct Member {
    pub(crate) process: usize,
    pub(crate) tag: usize,
    /// Where each input begins in the buffer, and the size of the buffer.
    pub(crate) offsets: Vec<usize>,
    pub(crate) bytes: usize,
    /// Members of other processes whose inputs it reads.
    pub(crate) needs: Vec<usize>,
    /// The current use of each member of this process.
    pub(crate) own: Mutex<Use>,
}

/// Buffers and messages of the current uses, by turn.
#[derive(Default)]
pub(crate) struct Messaging {
    /// Uses started, of each member of this process.
    pub(crate) started: Vec<u64>,
    /// The last use whose messages are being received.
    pub(crate) posted: u64,
    /// By member: its inputs.
    pub(crate) inputs: [Vec<Arc<Buffer>>; 2],
    /// By member of another process: whether its inputs have come.
    pub(crate) arrived: [Vec<bool>; 2],
    pub(crate) receiving: [Vec<(usize, Transfer)>; 2],
    pub(crate) sending: [Vec<Transfer>; 2],
}

#[derive(Default)]
pub(crate) struct Use {
    pub(crate) number: u64,
    /// Whether its outputs are still to be made.
    pub(crate) is_open: bool,
    pub(crate) outputs: Vec<Output>,
}

/// Which of the two buffers of each input a use takes.
pub(crate) fn turn(number: u64) -> usize {
    (number % 2) as usize
}

/// An output of the current use.
pub(crate) struct Output {
    pub(crate) pointer: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: the owner lent the pointer to the collective, whichever thread polls it.
unsafe impl Send for Output {}

impl Slot {
    /// The collective, whose members have consecutive tags.
    pub(crate) fn new(spec: &CollectiveSpec, first_tag: usize, ranks: &[Range<usize>], own: usize) -> Slot {
        let plan = Plan::new(spec);
        let process = |rank: &usize| ranks.iter().position(|part| part.contains(rank)).unwrap_or(0);
        let processes: Vec<usize> = spec.members.iter().map(process).collect();
        let member = |member: usize| {
            let mut bytes = 0;
            let place = |exchange: &Exchange| {
                let place = bytes;
                bytes = (place + exchange.input_bytes(member)).next_multiple_of(ALIGNMENT_BYTES);
                place
            };
            let offsets = spec.exchanges.iter().map(place).collect();
            let tag = first_tag + member;
            Member {
                process: processes[member],
                tag,
                offsets,
                bytes,
                needs: Vec::new(),
                own: Mutex::default(),
            }
        };
        let mut members: Vec<Member> = (0..spec.members.len()).map(member).collect();
        let (mut received, mut sent) = (Vec::new(), Vec::new());
        for source in 0..members.len() {
            for reader in 0..members.len() {
                let (from, to) = (processes[source], processes[reader]);
                if from == to || !(from == own || to == own) {
                    continue;
                }
                let Some(range) = read_by(spec, &plan, &members[source].offsets, source, reader) else {
                    continue;
                };
                let (routes, process) = if from == own { (&mut sent, to) } else { (&mut received, from) };
                if to == own {
                    members[reader].needs.push(source);
                }
                let known: Option<&mut Route> =
                    routes.iter_mut().find(|r: &&mut Route| (r.member, r.process) == (source, process));
                match known {
                    Some(route) => {
                        route.range = route.range.start.min(range.start)..route.range.end.max(range.end);
                    }
                    None => routes.push(Route { member: source, process, range }),
                }
            }
        }
        let empty = || members.iter().map(|_| Arc::new(Buffer::default())).collect::<Vec<_>>();
        let state = Messaging {
            started: vec![0; members.len()],
            inputs: [empty(), empty()],
            arrived: [vec![false; members.len()], vec![false; members.len()]],
            ..Messaging::default()
        };
        Slot { plan, members, received, sent, state: Mutex::new(state), pending: AtomicUsize::new(0) }
    }
}

/// The bytes of the buffer of member `source` that member `reader` reads: from the first to the
/// last. `None` if it reads nothing; an empty range if it only waits for the other, at a barrier.
fn read_by(
    spec: &CollectiveSpec,
    plan: &Plan,
    offsets: &[usize],
    source: usize,
    reader: usize,
) -> Option<Range<usize>> {
    if spec.exchanges.is_empty() {
        return Some(0..0);
    }
    let mut all: Option<Range<usize>> = None;
    for Piece { exchange, targets, action } in plan.shares.iter().flat_map(|share| &share.chunks).flatten() {
        let own = match action {
            Action::Reduce(reduction) => reduction.input_range(),
            Action::Copy(from, copy) if *from == source => copy.source_range(),
            Action::Copy(..) => continue,
        };
        if targets.contains(&reader) {
            let range = offsets[*exchange] + own.start..offsets[*exchange] + own.end;
            let so_far = all.unwrap_or(range.clone());
            all = Some(so_far.start.min(range.start)..so_far.end.max(range.end));
        }
    }
    all
}
