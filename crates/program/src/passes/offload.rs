//! Keeps tensors in host memory while nothing uses them: optimizer states between updates, and activations between the
//! forward and the backward pass.
//!
//! A tensor in host memory has a buffer of its own there ([`BufferKind::Host`]). The program loads it before its first
//! use and stores it behind its last one, as instructions with a start and a wait, like collectives. So memory planning
//! counts it only between the two, and nothing else knows of host memory: the engine copies, the simulator's clock has a
//! queue for the link to the host, and the static checks see to it that nothing touches a tensor on its way.
//!
//! Tensors of one use are a group: the states that one instruction updates, or what the backward pass of one block of the
//! model reads. The loads of a group begin with the use of the group [`Offload::ahead`] places before it, and what a group
//! stored is waited for as many groups later. At any time, then, at most `ahead + 1` groups are loaded or in use, and
//! `ahead` are being stored. This is the prefetching of ZeRO-Offload and ZeRO-Infinity (Rajbhandari et al., arXiv
//! 2104.07857), with the order of the program in place of a trace of the first step.

use crate::passes::memory::{Accesses, accesses, read_instead};
use crate::program::{Action, Buffer, BufferId, BufferKind, Instruction, Move, MoveKind, Origin, Program};
use indexmap::IndexMap;
use partita_ir::{Offload, Phase};
use partita_pipeline::block_of;
use std::collections::{BTreeMap, BTreeSet};

/// A tensor that is moved before or behind an instruction.
#[derive(Clone, Copy)]
struct Leg {
    moved: Move,
    /// The instruction that first uses its group, which names it.
    group: usize,
    /// The first instruction that uses the tensor, or the last one.
    at: usize,
}

/// Inserts the moves of a program whose buffers have no places yet.
pub(crate) fn offload(mut program: Program, what: &Offload) -> Program {
    if what.is_empty() {
        return program;
    }
    let accesses = accesses(&program);
    let mut inserted = Inserted::default();
    activations(&mut program, what, &accesses, &mut inserted);
    states(&mut program, what, &accesses, &mut inserted);
    inserted.into(program)
}

/// A buffer in host memory for the contents of a buffer.
fn host_of(program: &mut Program, buffer: BufferId) -> BufferId {
    let near = program.buffer(buffer).clone();
    add(program, Buffer { kind: BufferKind::Host, ..near })
}

fn add(program: &mut Program, buffer: Buffer) -> BufferId {
    program.buffers.push(buffer);
    BufferId::new(program.buffers.len() - 1)
}

/// The states that are named: their ports move to host memory, and their buffers in the arena become temporary.
fn states(program: &mut Program, what: &Offload, accesses: &[Accesses], inserted: &mut Inserted) {
    let (mut loads, mut stores): (Vec<Leg>, Vec<Leg>) = (Vec::new(), Vec::new());
    for position in 0..program.inputs.len() {
        let port = &program.inputs[position];
        let buffer = port.buffer;
        if !what.states.contains(&port.name) || program.buffer(buffer).kind != BufferKind::Persistent {
            continue;
        }
        let host = host_of(program, buffer);
        program.buffers[buffer.index()].kind = BufferKind::Temporary;
        let ports = program.inputs.iter_mut().chain(&mut program.outputs);
        ports.filter(|port| port.buffer == buffer).for_each(|port| port.buffer = host);
        let Accesses { reads, writes } = &accesses[buffer.index()];
        let first_of = |of: &[(usize, usize)]| of.iter().map(|&(first, _)| first).min();
        let Some(group) = first_of(reads).into_iter().chain(first_of(writes)).min() else { continue };
        let last = reads.iter().chain(writes).map(|&(_, last)| last).max().unwrap_or(group);
        if first_of(reads).is_some_and(|read| first_of(writes).is_none_or(|write| read <= write)) {
            loads.push(Leg { moved: Move { kind: MoveKind::Load, buffer, host }, group, at: group });
        }
        if !writes.is_empty() {
            stores.push(Leg { moved: Move { kind: MoveKind::Store, buffer, host }, group, at: last });
        }
    }
    let groups: BTreeSet<usize> = loads.iter().chain(&stores).map(|leg| leg.group).collect();
    let groups: Vec<usize> = groups.into_iter().collect();
    let place = |leg: &Leg| groups.binary_search(&leg.group).expect("it is one of them");
    // The first groups are loaded while the update begins, such as with the norm of the gradients.
    let first = groups.first().copied().unwrap_or(0);
    let is_update = |index: &usize| program.instructions[*index].origin.phase == Phase::Update;
    let begin = (0..first).rev().take_while(is_update).last().unwrap_or(first);
    for leg in &loads {
        let from = place(leg).checked_sub(what.ahead).map_or(begin, |earlier| groups[earlier].min(leg.at));
        inserted.load(program, leg, if place(leg) < what.ahead { from.min(first) } else { from });
    }
    let end = program.instructions.len();
    for leg in &stores {
        let until = groups.get(place(leg) + 1 + what.ahead).copied().unwrap_or(end);
        inserted.store(program, leg, until.max(leg.at + 1));
    }
}

/// The backward pass of a block on one microbatch.
type Part<'a> = (usize, Option<usize>, &'a str);

/// The activations of the modules: what a compute instruction of the forward pass writes and the backward pass reads. What
/// the backward pass reads is another buffer.
fn activations(program: &mut Program, what: &Offload, accesses: &[Accesses], inserted: &mut Inserted) {
    if what.activations.is_empty() {
        return;
    }
    /// The last use in the forward pass, and the first one in the backward pass.
    struct Kept {
        buffer: BufferId,
        last: usize,
        again: usize,
    }
    let is_port: BTreeSet<BufferId> =
        program.inputs.iter().chain(&program.outputs).map(|port| port.buffer).collect();
    let mut parts: IndexMap<Part<'_>, Vec<Kept>> = IndexMap::new();
    for (index, (buffer, of)) in program.buffers.iter().zip(accesses).enumerate() {
        let id = BufferId::new(index);
        let [(writer, _)] = of.writes[..] else { continue };
        let Instruction { action, origin } = &program.instructions[writer];
        let is_taken = buffer.kind == BufferKind::Temporary
            && buffer.bytes > 0
            && !is_port.contains(&id)
            && matches!(action, Action::Compute(_))
            && origin.phase == Phase::Forward
            && what.takes(&origin.path);
        if !is_taken {
            continue;
        }
        let is_forward = |index: usize| program.instructions[index].origin.phase == Phase::Forward;
        let before = of.reads.iter().filter(|(first, _)| is_forward(*first));
        let last = before.map(|&(_, last)| last).max().unwrap_or(writer).max(writer);
        let after = of.reads.iter().filter(|(first, _)| !is_forward(*first)).map(|&(first, _)| first);
        let Some(again) = after.min().filter(|again| *again > last + 1) else { continue };
        let part = (origin.stage, origin.microbatch, block_of(&origin.path));
        parts.entry(part).or_default().push(Kept { buffer: id, last, again });
    }
    // The parts in the order in which the backward pass needs them, and in which the forward pass leaves them.
    let needed = |part: &[Kept]| part.iter().map(|kept| kept.again).min().unwrap_or(0);
    let left = |part: &[Kept]| part.iter().map(|kept| kept.last).min().unwrap_or(0);
    let mut parts: Vec<Vec<Kept>> = parts.into_values().collect();
    parts.sort_by_key(|part| needed(part));
    let starts: Vec<usize> = parts.iter().map(|part| needed(part)).collect();
    let mut stored: Vec<usize> = parts.iter().map(|part| left(part)).collect();
    stored.sort_unstable();
    for (number, part) in parts.iter().enumerate() {
        // What is needed again too soon stays.
        let Some(begin) = number.checked_sub(what.ahead).map(|earlier| starts[earlier]) else { continue };
        let place = stored.partition_point(|&at| at <= left(part));
        let settled = stored.get(place + what.ahead).copied().unwrap_or(begin).min(begin);
        for &Kept { buffer, last, again } in part.iter().filter(|kept| kept.last + 1 < begin) {
            let host = host_of(program, buffer);
            let near = program.buffer(buffer).clone();
            let back = add(program, near);
            let later = &mut program.instructions[last + 1..];
            later.iter_mut().for_each(|instruction| read_instead(instruction, buffer, back));
            let leg =
                |kind, buffer, at| Leg { moved: Move { kind, buffer, host }, group: starts[number], at };
            inserted.store(program, &leg(MoveKind::Store, buffer, last), settled.max(last + 1));
            inserted.load(program, &leg(MoveKind::Load, back, again), begin.min(again));
        }
    }
}

/// Instructions to insert, by the instruction before which they come, then by their order there.
#[derive(Default)]
struct Inserted {
    before: BTreeMap<(usize, u8), Vec<Instruction>>,
}

impl Inserted {
    fn push(&mut self, at: usize, order: u8, action: Action, origin: &Origin) {
        let instruction = Instruction { action, origin: origin.clone() };
        self.before.entry((at, order)).or_default().push(instruction);
    }

    /// Where a move comes from: from the instruction that uses the tensor.
    fn origin(program: &Program, leg: &Leg) -> Origin {
        let what = program.buffer(leg.moved.buffer).what.clone();
        Origin { what, ..program.instructions[leg.at].origin.clone() }
    }

    /// A load that begins before instruction `begin` and ends before it is used.
    fn load(&mut self, program: &Program, leg: &Leg, begin: usize) {
        let origin = Inserted::origin(program, leg);
        self.push(begin, 2, Action::Move(leg.moved), &origin);
        self.push(leg.at, 3, Action::Moved(leg.moved), &origin);
    }

    /// A store that begins behind the last use and is waited for before instruction `until`.
    fn store(&mut self, program: &Program, leg: &Leg, until: usize) {
        let origin = Inserted::origin(program, leg);
        self.push(leg.at + 1, 0, Action::Move(leg.moved), &origin);
        self.push(until, 1, Action::Moved(leg.moved), &origin);
    }

    /// The program with these instructions. What begins or ends at a pause does so before it.
    fn into(mut self, mut program: Program) -> Program {
        let old = std::mem::take(&mut program.instructions);
        let pauses = std::mem::take(&mut program.pauses);
        let end = old.len();
        for (index, instruction) in old.into_iter().map(Some).chain([None]).enumerate() {
            for order in 0..4 {
                program.instructions.extend(self.before.remove(&(index, order)).into_iter().flatten());
            }
            let here = pauses.iter().filter(|&&pause| pause == index).map(|_| program.instructions.len());
            program.pauses.extend(here);
            program.instructions.extend(instruction);
        }
        debug_assert!(self.before.is_empty(), "nothing comes behind {end} instructions");
        program
    }
}
