//! Memory planning: which outputs overwrite inputs, when each buffer is live, and its offset in the
//! arena.

use crate::passes::emit::push_copy;
use crate::passes::occupied::{LiveRanges, Occupied};
use crate::program::{
    Action, Buffer, BufferId, BufferKind, Compute, Instruction, Origin, Program, RegionKind, View,
};
use indexmap::IndexMap;
use partita_ir::Phase;

/// The (first, last) instructions of each access to a buffer. A collective or a move accesses its buffers
/// from its start to its wait.
#[derive(Clone, Default, Debug)]
pub(crate) struct Accesses {
    pub reads: Vec<(usize, usize)>,
    pub writes: Vec<(usize, usize)>,
}

impl Accesses {
    fn last(&self) -> Option<usize> {
        self.reads.iter().chain(&self.writes).map(|&(_, last)| last).max()
    }
}

/// The accesses of every buffer. A collective without a wait lasts to the end.
pub(crate) fn accesses(program: &Program) -> Vec<Accesses> {
    let end = program.instructions.len().saturating_sub(1);
    let (mut waits, mut moved) = (IndexMap::new(), IndexMap::new());
    for (index, instruction) in program.instructions.iter().enumerate() {
        match instruction.action {
            Action::Wait(collective) => _ = waits.entry(collective).or_insert(index),
            Action::Moved(of) => _ = moved.entry(of).or_insert(index),
            Action::Compute(_) | Action::Start(_) | Action::Move(_) => {}
        }
    }
    let mut accesses = vec![Accesses::default(); program.buffers.len()];
    for (index, instruction) in program.instructions.iter().enumerate() {
        let last = match &instruction.action {
            Action::Compute(_) => index,
            Action::Start(start) => waits.get(&start.collective).copied().unwrap_or(end),
            Action::Move(of) => moved.get(of).copied().unwrap_or(end),
            Action::Wait(_) | Action::Moved(_) => continue,
        };
        let (inputs, outputs) = instruction.action.accesses();
        for input in inputs {
            accesses[input.index()].reads.push((index, last));
        }
        for output in outputs {
            accesses[output.index()].writes.push((index, last));
        }
        if let Action::Compute(Compute { workspace: Some(workspace), .. }) = &instruction.action {
            accesses[workspace.index()].writes.push((index, index));
        }
    }
    accesses
}

/// Whether `output` may be written over `input` by this instruction: the instruction reads all of
/// `input`, in the output's shape and element size, and either elementwise or as its region allows.
pub(crate) fn may_overwrite(
    program: &Program,
    instruction: &Instruction,
    input: BufferId,
    output: BufferId,
) -> bool {
    let Action::Compute(compute) = &instruction.action else { return false };
    let (old, new) = (&program.buffer(input).ty, &program.buffer(output).ty);
    let region = program.region(compute.region);
    let allows = |position: usize| match region.kind {
        RegionKind::Fused if !region.reduces_rows() => true,
        RegionKind::Copy => false,
        RegionKind::Fused | RegionKind::Single => region
            .overwrites
            .iter()
            .any(|&(from, to)| from == position && compute.outputs.get(to) == Some(&output)),
    };
    let mut reads = compute.inputs.iter().enumerate().filter(|(_, view)| view.buffer == input).peekable();
    reads.peek().is_some()
        && reads.all(|(position, view)| view.is_whole(old) && allows(position))
        && old.shape == new.shape
        && old.dtype.size_bytes() == new.dtype.size_bytes()
}

/// Places outputs that replace inputs in the inputs' buffers: written there directly if the old
/// contents are not needed any more, otherwise copied before the caller may read them. Instructions behind a pause that read
/// the old contents then read a copy of them. With `guard`, none is written before the numbers that validate the step are
/// known, except for what the caller reads at a pause.
pub(crate) fn replace_inputs(mut program: Program, guard: bool) -> Program {
    let mut accesses = accesses(&program);
    let mut renamed: Vec<BufferId> = (0..program.buffers.len()).map(BufferId::new).collect();
    let mut copied = Vec::new();
    let known = program.checked().iter().map(|checked| checked.known).max().filter(|_| guard);
    for position in 0..program.outputs.len() {
        let port = &program.outputs[position];
        let Some(input) = port.replaces else { continue };
        let (old, new) = (program.inputs[input].buffer, port.buffer);
        if old == new {
            continue;
        }
        let writer = accesses[new.index()].writes[0].0;
        let is_free = match accesses[old.index()].last() {
            None => true,
            Some(last) if last == writer => may_overwrite(&program, &program.instructions[writer], old, new),
            Some(last) => last < writer,
        };
        let is_read_at_pause = port.at <= program.pauses.len();
        let is_direct = is_free && (is_read_at_pause || known.is_none_or(|known| known < writer));
        if is_direct {
            renamed[new.index()] = old;
            let moved = std::mem::take(&mut accesses[new.index()]);
            accesses[old.index()].reads.extend(moved.reads);
            accesses[old.index()].writes.extend(moved.writes);
        } else {
            program.buffers[new.index()].kind = BufferKind::Temporary;
            copied.push((old, new, port.at));
        }
        program.outputs[position].buffer = old;
    }
    for (old, new, moment) in copied {
        let at = program.before(moment);
        if accesses[old.index()].reads.iter().any(|&(first, _)| first >= at) {
            let saved = BufferId::new(program.buffers.len());
            renamed.push(saved);
            let contents = program.buffer(old).clone();
            program.buffers.push(Buffer { kind: BufferKind::Temporary, ..contents });
            program.instructions[at..]
                .iter_mut()
                .for_each(|instruction| read_instead(instruction, old, saved));
            insert_copy(&mut program, moment, old, saved);
        }
        insert_copy(&mut program, moment, new, old);
    }
    rename(program, &renamed)
}

/// Inserts a copy of a whole buffer before the caller acts at a moment.
fn insert_copy(program: &mut Program, moment: usize, from: BufferId, to: BufferId) {
    let ty = program.buffer(to).ty.clone();
    let phase = if moment <= program.pauses.len() { Phase::Forward } else { Phase::Update };
    let path = program.buffer(to).what.clone();
    let origin = Origin { what: "copy".into(), path, phase, microbatch: None, stage: 0 };
    push_copy(program, &ty, View::whole(from, &ty.shape), to, origin);
    let at = program.before(moment).min(program.instructions.len() - 1);
    program.instructions[at..].rotate_right(1);
    program.pauses.iter_mut().skip(moment - 1).for_each(|pause| *pause += 1);
}

/// Makes an instruction read another buffer of the same type.
pub(crate) fn read_instead(instruction: &mut Instruction, old: BufferId, other: BufferId) {
    let views: &mut [View] = match &mut instruction.action {
        Action::Compute(compute) => &mut compute.inputs,
        Action::Start(start) => &mut start.inputs,
        Action::Wait(_) | Action::Move(_) | Action::Moved(_) => return,
    };
    views.iter_mut().filter(|view| view.buffer == old).for_each(|view| view.buffer = other);
}

/// Renames buffers everywhere and drops unused ones.
fn rename(mut program: Program, renamed: &[BufferId]) -> Program {
    let mut kept = Vec::new();
    let mut number: Vec<Option<BufferId>> = vec![None; renamed.len()];
    for (index, buffer) in std::mem::take(&mut program.buffers).into_iter().enumerate() {
        if renamed[index].index() == index {
            number[index] = Some(BufferId::new(kept.len()));
            kept.push(buffer);
        }
    }
    program.buffers = kept;
    let rename = |id: &mut BufferId| *id = number[renamed[id.index()].index()].expect("its new name is kept");
    for instruction in &mut program.instructions {
        match &mut instruction.action {
            Action::Compute(compute) => {
                compute.inputs.iter_mut().for_each(|view| rename(&mut view.buffer));
                compute.outputs.iter_mut().for_each(rename);
                compute.workspace.iter_mut().for_each(rename);
            }
            Action::Start(start) => {
                start.inputs.iter_mut().for_each(|view| rename(&mut view.buffer));
                start.outputs.iter_mut().for_each(rename);
            }
            Action::Wait(_) => {}
            Action::Move(moved) | Action::Moved(moved) => {
                rename(&mut moved.buffer);
                rename(&mut moved.host);
            }
        }
    }
    program.inputs.iter_mut().chain(&mut program.outputs).for_each(|port| rename(&mut port.buffer));
    program.constants.iter_mut().for_each(|(buffer, _)| rename(buffer));
    program.rank_constants.iter_mut().for_each(|(buffer, _)| rename(buffer));
    program
}

/// Memory shared by buffers that overwrite one another in place.
pub(super) struct Storage {
    pub first: usize,
    pub last: usize,
    pub bytes: usize,
}

/// Gives every buffer its live span and its offset.
///
/// Persistent buffers come first, in order. The others are placed by greedy best fit: each into the
/// smallest sufficient gap between placed buffers with overlapping spans, or behind them. Two
/// orders are tried, largest first, and first those that are live where most bytes are live; the
/// smaller result wins. All offsets are multiples of `alignment` bytes.
pub(crate) fn assign(mut program: Program, alignment: usize) -> Program {
    let end = program.instructions.len().saturating_sub(1);
    let accesses = accesses(&program);
    // The caller writes an input before the instruction behind the pause.
    let mut given = vec![0; program.buffers.len()];
    for port in &program.inputs {
        given[port.buffer.index()] = program.before(port.at).min(end);
    }
    for ((buffer, accesses), given) in program.buffers.iter_mut().zip(&accesses).zip(given) {
        let first = accesses.writes.iter().chain(&accesses.reads).map(|&(first, _)| first).min();
        (buffer.first, buffer.last) = match buffer.kind {
            BufferKind::Persistent | BufferKind::Host => (0, end),
            BufferKind::Input => (given, accesses.last().unwrap_or(given)),
            BufferKind::Output => (first.unwrap_or(0), end),
            BufferKind::Temporary | BufferKind::Workspace => {
                (first.unwrap_or(0), accesses.last().unwrap_or(0))
            }
        };
    }
    let storage_of = share(&program);
    let aligned = |bytes: usize| bytes.next_multiple_of(alignment);

    let mut storages: IndexMap<usize, Storage> = IndexMap::new();
    let (mut base, mut host) = (0, 0);
    for (index, buffer) in program.buffers.iter_mut().enumerate() {
        let end = match buffer.kind {
            BufferKind::Persistent => &mut base,
            BufferKind::Host => &mut host,
            _ => {
                let fresh = Storage { first: buffer.first, last: buffer.last, bytes: 0 };
                let storage = storages.entry(storage_of[index]).or_insert(fresh);
                storage.first = storage.first.min(buffer.first);
                storage.last = storage.last.max(buffer.last);
                storage.bytes = storage.bytes.max(aligned(buffer.bytes));
                continue;
            }
        };
        buffer.offset_bytes = *end;
        *end += aligned(buffer.bytes);
    }
    program.host_bytes = host;
    let crowd = LiveRanges::of(storages.values(), program.instructions.len());
    let mut by_size: Vec<usize> = (0..storages.len()).collect();
    by_size.sort_by_key(|&s| (std::cmp::Reverse(storages[s].bytes), storages[s].first, s));
    let mut by_crowd = by_size.clone();
    by_crowd.sort_by_cached_key(|&s| std::cmp::Reverse(crowd.most_live(&storages[s])));
    let maps = [by_size, by_crowd].map(|order| place(&storages, &order, base, program.instructions.len()));
    let (_, offsets) = maps.into_iter().min_by_key(|(end, _)| *end).expect("there are two");
    for (index, buffer) in program.buffers.iter_mut().enumerate() {
        if !matches!(buffer.kind, BufferKind::Persistent | BufferKind::Host) {
            let storage = storages.get_index_of(&storage_of[index]).expect("it has one");
            buffer.offset_bytes = offsets[storage];
        }
    }
    let of_arena = program.buffers.iter().filter(|buffer| buffer.kind != BufferKind::Host);
    program.arena_bytes = of_arena.map(|b| b.offset_bytes + b.bytes).max().unwrap_or(0);
    program
}

/// Places storages behind `base` in this order. Returns the end of the last one and the offset of
/// each.
fn place(
    storages: &IndexMap<usize, Storage>,
    order: &[usize],
    base: usize,
    instructions: usize,
) -> (usize, Vec<usize>) {
    let mut offsets = vec![base; storages.len()];
    let mut occupied = Occupied::new(instructions);
    let mut end = base;
    for (number, &storage) in order.iter().enumerate() {
        let Storage { first, last, bytes } = storages[storage];
        let ranges = match bytes {
            0 => in_order(storages, &order[..number], &offsets, first, last),
            _ => occupied.during(first, last),
        };
        let mut free_from = base;
        let mut best: Option<(usize, usize)> = None;
        for (from, to) in ranges {
            let gap = from.saturating_sub(free_from);
            if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
                best = Some((gap, free_from));
            }
            free_from = free_from.max(to);
        }
        let offset = best.map_or(free_from, |(_, offset)| offset);
        offsets[storage] = offset;
        end = end.max(offset + bytes);
        occupied.add(first, last, (offset, offset + bytes));
    }
    (end, offsets)
}

/// The address ranges of the `placed` storages with overlapping spans, by offset. For a storage
/// without bytes, which also fits between two adjacent ranges.
fn in_order(
    storages: &IndexMap<usize, Storage>,
    placed: &[usize],
    offsets: &[usize],
    first: usize,
    last: usize,
) -> Vec<(usize, usize)> {
    let meets = |&&storage: &&usize| storages[storage].last >= first && storages[storage].first <= last;
    let range = |&storage: &usize| (offsets[storage], offsets[storage] + storages[storage].bytes);
    let mut ranges: Vec<(usize, usize)> = placed.iter().filter(meets).map(range).collect();
    ranges.sort_by_key(|&(from, _)| from);
    ranges
}

/// For each buffer, the first buffer of the chain whose memory it reuses in place; itself if none.
fn share(program: &Program) -> Vec<usize> {
    let mut storage: Vec<usize> = (0..program.buffers.len()).collect();
    for (index, instruction) in program.instructions.iter().enumerate() {
        let Action::Compute(compute) = &instruction.action else { continue };
        let mut donors: Vec<BufferId> = Vec::new();
        for &output in &compute.outputs {
            // What has memory already, such as a state that was loaded, keeps it.
            if program.buffer(output).kind == BufferKind::Persistent || program.buffer(output).first < index {
                continue;
            }
            let donor = compute.inputs.iter().map(|view| view.buffer).find(|&input| {
                let buffer = program.buffer(input);
                matches!(buffer.kind, BufferKind::Temporary | BufferKind::Input)
                    && buffer.last == index
                    && !donors.contains(&input)
                    && may_overwrite(program, instruction, input, output)
            });
            if let Some(donor) = donor {
                donors.push(donor);
                storage[output.index()] = storage[donor.index()];
            }
        }
    }
    storage
}
