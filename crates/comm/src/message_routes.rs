//! Who sends what in a collective between processes that exchange messages: the parts of each member's
//! inputs that members of another process read, from the plan of shares; or, in an all-reduce whose
//! work processes share, the part that the other process reduces.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use crate::message_sums::Sums;
use crate::messages::{Buffer, Transfer};
use crate::share::{Action, Piece, Plan};
use crate::spec::{CollectiveSpec, Exchange};

/// Alignment of an input in the buffer of its member.
const ALIGNMENT_BYTES: usize = 64;

/// Parts of a buffer with a gap of fewer bytes between them are sent as one.
const MIN_GAP_BYTES: usize = 256;

/// One collective.
pub(crate) struct Slot {
    pub(crate) plan: Plan,
    /// Of an all-reduce whose work processes share.
    pub(crate) sums: Option<Sums>,
    /// Its sums have the tag of their place, from this one.
    pub(crate) sums_tag: usize,
    pub(crate) members: Vec<Member>,
    /// What members of this process read from members of others.
    pub(crate) received: Vec<Route>,
    /// What members of other processes read from members of this one.
    pub(crate) sent: Vec<Route>,
    pub(crate) state: Mutex<Messaging>,
    /// Messages on their way.
    pub(crate) pending: AtomicUsize,
}

/// Bytes of a member's buffer, which one other process sends or receives in one message.
pub(crate) struct Route {
    pub(crate) member: usize,
    pub(crate) process: usize,
    /// In order; at least one.
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Route {
    /// The range, if there is one alone.
    pub(crate) fn whole(&self) -> Option<Range<usize>> {
        if let [range] = self.ranges.as_slice() { Some(range.clone()) } else { None }
    }

    /// The ranges of a buffer side by side.
    pub(crate) fn pack(&self, buffer: &Buffer) -> Buffer {
        let mut packed = Buffer::new(self.bytes());
        let mut place = 0;
        for range in &self.ranges {
            packed.bytes_mut()[place..place + range.len()].copy_from_slice(&buffer.bytes()[range.clone()]);
            place += range.len();
        }
        packed
    }

    /// Puts the ranges back to their places.
    pub(crate) fn unpack(&self, packed: &Buffer, buffer: &mut Buffer) {
        let mut place = 0;
        for range in &self.ranges {
            buffer.bytes_mut()[range.clone()].copy_from_slice(&packed.bytes()[place..place + range.len()]);
            place += range.len();
        }
    }

    /// The size of the message.
    pub(crate) fn bytes(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Sorts the ranges, and joins those that touch or nearly do.
    fn join(&mut self) {
        self.ranges.sort_unstable_by_key(|range| (range.start, range.end));
        let mut joined: Vec<Range<usize>> = Vec::new();
        for range in self.ranges.drain(..) {
            match joined.last_mut() {
                Some(last) if range.start <= last.end + MIN_GAP_BYTES => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        self.ranges = joined;
    }
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
    /// By place in [`Sums::parts`]: the sums that have come, those of this process among them.
    pub(crate) sums: [Vec<Option<Arc<Buffer>>>; 2],
    /// Memory for the sums of this process, before they are made.
    pub(crate) unsummed: [Buffer; 2],
    pub(crate) receiving: [Vec<(Incoming, Transfer)>; 2],
    pub(crate) sending: [Vec<Transfer>; 2],
}

/// What a message brings.
#[derive(Clone, Copy)]
pub(crate) enum Incoming {
    /// Inputs by a route, one of [`Slot::received`].
    Inputs(usize),
    /// The sums of a process, by its place.
    Sums(usize),
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
    /// The collective, whose tags begin at `first_tag`; there are [`Slot::tags`].
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
        let (offsets, bytes) =
            members.first().map_or((&[][..], 0), |first| (&first.offsets[..], first.bytes));
        let sums = Sums::new(spec, &processes, offsets, bytes);
        let (mut received, mut sent) = (Vec::new(), Vec::new());
        for source in 0..members.len() {
            for reader in 0..members.len() {
                let (from, to) = (processes[source], processes[reader]);
                if from == to || !(from == own || to == own) {
                    continue;
                }
                let ranges = match &sums {
                    Some(sums) => Some(vec![sums.part(to).clone()]),
                    None => read_by(spec, &plan, &members[source].offsets, source, reader),
                };
                let Some(ranges) = ranges else { continue };
                let (routes, process) = if from == own { (&mut sent, to) } else { (&mut received, from) };
                if to == own {
                    members[reader].needs.push(source);
                }
                let known: Option<&mut Route> =
                    routes.iter_mut().find(|r: &&mut Route| (r.member, r.process) == (source, process));
                match known {
                    Some(route) => route.ranges.extend(ranges),
                    None => routes.push(Route { member: source, process, ranges }),
                }
            }
        }
        received.iter_mut().chain(&mut sent).for_each(Route::join);
        let empty = || members.iter().map(|_| Arc::new(Buffer::default())).collect::<Vec<_>>();
        let no_sums = || vec![None; sums.as_ref().map_or(0, |sums| sums.parts.len())];
        let state = Messaging {
            started: vec![0; members.len()],
            inputs: [empty(), empty()],
            arrived: [vec![false; members.len()], vec![false; members.len()]],
            sums: [no_sums(), no_sums()],
            ..Messaging::default()
        };
        Slot {
            plan,
            sums,
            sums_tag: first_tag + members.len(),
            members,
            received,
            sent,
            state: Mutex::new(state),
            pending: AtomicUsize::new(0),
        }
    }

    /// The processes from which a member lacks something in a use: inputs that it reads, or sums.
    pub(crate) fn lacked<'a>(
        &'a self,
        state: &'a Messaging,
        member: usize,
        number: u64,
    ) -> impl Iterator<Item = usize> + 'a {
        let turn = turn(number);
        let missing = self.members[member].needs.iter().filter(move |&&source| !state.arrived[turn][source]);
        let parts = self.sums.iter().flat_map(|sums| &sums.parts).zip(&state.sums[turn]);
        let not_summed = parts.filter(|(_, sum)| sum.is_none()).map(|((process, _), _)| *process);
        missing.map(|&source| self.members[source].process).chain(not_summed)
    }

    /// Computes a member's outputs after all that it reads has arrived.
    pub(crate) fn make(
        &self,
        member: usize,
        inputs: &[Arc<Buffer>],
        found: &[Option<Arc<Buffer>>],
        outputs: &[Output],
    ) {
        if let Some(sums) = &self.sums {
            for ((_, part), sum) in sums.parts.iter().zip(found) {
                let sum = sum.as_ref().expect("all sums have come").bytes();
                for (exchange, range) in sums.ranges(part).filter(|(_, range)| !range.is_empty()) {
                    let place = range.start - sums.offset(exchange);
                    // SAFETY: lent by `start` until this use has ended; the range is in the tensor, whose size the
                    // output has. Only this member accesses the output.
                    unsafe {
                        let output = outputs[exchange].pointer.add(place);
                        output.copy_from_nonoverlapping(sum[range.clone()].as_ptr(), range.len());
                    }
                }
            }
            return;
        }
        for &exchange in &self.plan.zero_fills[member] {
            // SAFETY: lent by `start` until this use has ended, as the outputs below.
            unsafe { outputs[exchange].pointer.write_bytes(0, outputs[exchange].bytes) };
        }
        for Piece { exchange, targets, action } in self.plan.shares.iter().flat_map(|s| &s.chunks).flatten() {
            if !targets.contains(&member) || outputs[*exchange].bytes == 0 {
                continue;
            }
            let input = |source: usize| &inputs[source].bytes()[self.members[source].offsets[*exchange]..];
            let output = std::iter::once(outputs[*exchange].pointer);
            // SAFETY: the buffers have the sizes of the inputs of a valid collective, each aligned
            // to lines within words, and do not change while they are shared. Only this member
            // accesses the output.
            unsafe {
                match action {
                    Action::Reduce(reduction) => {
                        let sources = (0..self.members.len()).map(|source| input(source).as_ptr());
                        reduction.run(sources, output, false);
                    }
                    Action::Copy(source, copy) => copy.run(input(*source).as_ptr(), output, false),
                }
            }
        }
    }

    /// The number of tags of a collective: one for each member, and one for the sums of each process.
    pub(crate) fn tags(spec: &CollectiveSpec) -> usize {
        2 * spec.members.len()
    }
}

/// The ranges of the buffer of member `source` that member `reader` reads. `None` if it reads nothing; an empty range if
/// it only waits for the other, at a barrier.
fn read_by(
    spec: &CollectiveSpec,
    plan: &Plan,
    offsets: &[usize],
    source: usize,
    reader: usize,
) -> Option<Vec<Range<usize>>> {
    if spec.exchanges.is_empty() {
        return Some(std::iter::once(0..0).collect());
    }
    let mut all = Vec::new();
    for Piece { exchange, targets, action } in plan.shares.iter().flat_map(|share| &share.chunks).flatten() {
        if !targets.contains(&reader) {
            continue;
        }
        let read = match action {
            Action::Reduce(reduction) => reduction.input_ranges(MIN_GAP_BYTES),
            Action::Copy(from, copy) if *from == source => copy.source_ranges(MIN_GAP_BYTES),
            Action::Copy(..) => continue,
        };
        all.extend(read.into_iter().map(|own| offsets[*exchange] + own.start..offsets[*exchange] + own.end));
    }
    (!all.is_empty()).then_some(all)
}
