//! A slow reference executor that tests memory maps. Every tensor is at its planned place in the
//! arena, so a wrong map changes the numbers: memory that must not be read is poisoned, and
//! collectives move their data as late as the rules allow.

use crate::RegionTarget;
use crate::execute::{Communicator, Cursor, Device, RankDevice, RankMemory, StepOutcome, advance};
use crate::program::{
    BufferId, BufferKind, Compute, Move, MoveKind, Program, ProgramSet, Region, Start, View,
};
use partita_base::{CollectiveId, Diagnostic, Result};
use partita_ir::ops::Composite;
use partita_ir::{Literal, Target, TensorType, evaluate};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

const POISON: u8 = 0xa5;

/// Runs all ranks of a program set on one thread, on any device.
pub struct Reference<D: Device = Evaluation> {
    /// Holds one program per rank.
    set: ProgramSet,
    ranks: Ranks<D>,
    cursors: Vec<Cursor>,
    /// The collectives of the step.
    meetings: Vec<Rendezvous>,
}

/// Each rank is borrowed only while an instruction or a collective runs.
type Ranks<D> = Rc<[RefCell<<D as Device>::Rank>]>;

fn read(program: &Program, rank: &impl RankMemory, view: &View) -> Literal {
    let buffer = program.buffer(view.buffer);
    let bytes = rank.read(program, view.buffer);
    let whole = Literal::from_bytes(&buffer.ty, bytes).expect("a buffer has the bytes of its type");
    Literal { ty: buffer.ty.with_shape(view.shape.clone()), data: whole.data.pick(view.positions()) }
}

fn write(program: &Program, rank: &mut impl RankMemory, buffer: BufferId, literal: &Literal) {
    assert_eq!(program.buffer(buffer).ty, literal.ty, "{}", program.buffer(buffer).what);
    rank.write(program, buffer, &literal.to_bytes());
}

fn poison(program: &Program, rank: &mut impl RankMemory, buffer: BufferId) {
    rank.write(program, buffer, &vec![POISON; program.buffer(buffer).bytes]);
}

/// The reference interpreter as a device. It has a kernel for everything and poisons memory that
/// its ranks have not written.
pub struct Evaluation;

impl Target for Evaluation {
    fn has_kernel(&self, _: &Composite) -> bool {
        true
    }
}

impl RegionTarget for Evaluation {
    fn workspace_bytes(&self, _: &Region, _: &[View]) -> usize {
        0
    }
}

impl Device for Evaluation {
    type Rank = EvaluatedRank;

    fn rank(&self, program: &Program) -> Result<EvaluatedRank> {
        let mut rank = EvaluatedRank {
            arena: vec![POISON; program.arena_bytes],
            host: vec![POISON; program.host_bytes],
        };
        for (buffer, literal) in &program.constants {
            write(program, &mut rank, *buffer, literal);
        }
        Ok(rank)
    }
}

/// A rank of the [`Evaluation`] device.
pub struct EvaluatedRank {
    arena: Vec<u8>,
    host: Vec<u8>,
}

impl EvaluatedRank {
    fn range(program: &Program, buffer: BufferId) -> Range<usize> {
        let buffer = program.buffer(buffer);
        buffer.offset_bytes..buffer.offset_bytes + buffer.bytes
    }
}

impl RankMemory for EvaluatedRank {
    fn read(&self, program: &Program, buffer: BufferId) -> &[u8] {
        match program.buffer(buffer).kind {
            BufferKind::Host => &self.host[Self::range(program, buffer)],
            _ => &self.arena[Self::range(program, buffer)],
        }
    }

    fn write(&mut self, program: &Program, buffer: BufferId, bytes: &[u8]) {
        let memory = match program.buffer(buffer).kind {
            BufferKind::Host => &mut self.host,
            _ => &mut self.arena,
        };
        memory[Self::range(program, buffer)].copy_from_slice(bytes);
    }
}

impl RankDevice for EvaluatedRank {
    fn run(&mut self, program: &Program, _index: usize, compute: &Compute) -> Result<()> {
        let inputs: Vec<Literal> = compute.inputs.iter().map(|view| read(program, self, view)).collect();
        let outputs = evaluate(&program.region(compute.region).graph, &inputs)?;
        if let Some(workspace) = compute.workspace {
            poison(program, self, workspace);
        }
        for (&buffer, literal) in compute.outputs.iter().zip(&outputs) {
            write(program, self, buffer, literal);
        }
        Ok(())
    }

    /// What a move writes is unknown until it ends.
    fn begin_move(&mut self, program: &Program, _index: usize, moved: Move) -> Result<()> {
        poison(program, self, target(moved));
        Ok(())
    }

    fn end_move(&mut self, program: &Program, _index: usize, moved: Move) -> Result<()> {
        let source = if moved.kind == MoveKind::Load { moved.host } else { moved.buffer };
        let bytes = RankMemory::read(self, program, source).to_vec();
        self.write(program, target(moved), &bytes);
        Ok(())
    }
}

/// The buffer that a move writes.
fn target(moved: Move) -> BufferId {
    if moved.kind == MoveKind::Load { moved.buffer } else { moved.host }
}

/// A rank that is borrowed for one instruction at a time.
struct OnRank<'a, D: Device>(&'a RefCell<D::Rank>);

impl<D: Device> RankDevice for OnRank<'_, D> {
    fn run(&mut self, program: &Program, index: usize, compute: &Compute) -> Result<()> {
        self.0.borrow_mut().run(program, index, compute)
    }

    fn begin_move(&mut self, program: &Program, index: usize, moved: Move) -> Result<()> {
        self.0.borrow_mut().begin_move(program, index, moved)
    }

    fn end_move(&mut self, program: &Program, index: usize, moved: Move) -> Result<()> {
        self.0.borrow_mut().end_move(program, index, moved)
    }
}

/// A collective in progress: the inputs of each member, and which members have left.
#[derive(Clone, Default)]
struct Rendezvous {
    arrived: Vec<Option<Start>>,
    is_done: bool,
    left: usize,
}

struct Exchanger<'a, D: Device> {
    set: &'a ProgramSet,
    ranks: Ranks<D>,
    meetings: Vec<Rendezvous>,
}

impl<D: Device> Exchanger<'_, D> {
    fn exchange(&self, id: CollectiveId) -> Result<()> {
        let collective = &self.set.collectives[id.index()];
        let arrived = &self.meetings[id.index()].arrived;
        let starts: Vec<(&Program, &Start)> = collective
            .members
            .iter()
            .zip(arrived)
            .map(|(&rank, start)| (&self.set.programs[rank], start.as_ref().expect("all have arrived")))
            .collect();
        for (number, transfer) in collective.transfers.iter().enumerate() {
            let inputs: Vec<Literal> = starts
                .iter()
                .map(|(program, start)| {
                    read(program, &*self.ranks[program.rank()].borrow(), &start.inputs[number])
                })
                .collect();
            let types: Vec<TensorType> = transfer.outputs.to_vec();
            let outputs = transfer.exchange.apply(&inputs, &types)?;
            for ((program, start), literal) in starts.iter().zip(&outputs) {
                let rank = &mut *self.ranks[program.rank()].borrow_mut();
                write(program, rank, start.outputs[number], literal);
            }
        }
        Ok(())
    }
}

impl<D: Device> Communicator for Exchanger<'_, D> {
    fn start(&mut self, program: &Program, _index: usize, start: &Start) -> Result<()> {
        let collective = &self.set.collectives[start.collective.index()];
        let meeting = &mut self.meetings[start.collective.index()];
        meeting.arrived.resize(collective.members.len(), None);
        let member = collective.member(program.rank()).expect("the checks saw that it is a member");
        meeting.arrived[member] = Some(start.clone());
        let rank = &mut *self.ranks[program.rank()].borrow_mut();
        start.outputs.iter().for_each(|&buffer| poison(program, rank, buffer));
        Ok(())
    }

    fn has_ended(&mut self, _program: &Program, id: CollectiveId) -> Result<bool> {
        let meeting = &self.meetings[id.index()];
        if !meeting.is_done {
            if meeting.arrived.iter().any(Option::is_none) {
                return Ok(false);
            }
            self.exchange(id)?;
            self.meetings[id.index()].is_done = true;
        }
        let meeting = &mut self.meetings[id.index()];
        meeting.left += 1;
        if meeting.left == meeting.arrived.len() {
            *meeting = Rendezvous::default();
        }
        Ok(true)
    }
}

impl Reference {
    /// Runs on the reference interpreter.
    pub fn new(set: &ProgramSet) -> Self {
        Reference::on(set, &Evaluation).expect("the interpreter refuses no program")
    }
}

impl<D: Device> Reference<D> {
    /// Runs on ranks of this device, with the constants loaded.
    ///
    /// # Errors
    /// Errors of the device if it cannot run a program.
    pub fn on(set: &ProgramSet, device: &D) -> Result<Self> {
        let set = set.each_rank();
        let ranks = set.programs.iter().map(|program| device.rank(program).map(RefCell::new));
        let ranks = ranks.collect::<Result<Vec<_>>>()?.into();
        let (cursors, meetings) = (Vec::new(), Vec::new());
        Ok(Reference { set, ranks, cursors, meetings })
    }

    /// Writes an input of a rank. E403 if the type or size differs.
    pub fn write_input(&mut self, rank: usize, position: usize, literal: &Literal) -> Result<()> {
        let program = &self.set.programs[rank];
        let port = &program.inputs[position];
        let ty = &program.buffer(port.buffer).ty;
        if ty != &literal.ty {
            return Err(Diagnostic::new(
                "E403",
                format!("input `{}` of rank {rank} has the wrong type", port.name),
            )
            .expected(ty.to_string())
            .found(literal.ty.to_string()));
        }
        write(program, &mut *self.ranks[rank].borrow_mut(), port.buffer, literal);
        Ok(())
    }

    /// Reads an output of a rank, from its moment ([`Port::at`](crate::Port::at)) on.
    pub fn output(&self, rank: usize, position: usize) -> Literal {
        let program = &self.set.programs[rank];
        let buffer = program.outputs[position].buffer;
        read(program, &*self.ranks[rank].borrow(), &View::whole(buffer, &program.buffer(buffer).ty.shape))
    }

    /// Reads the buffer of a rank's input: after a step, the value that replaced it.
    pub fn input(&self, rank: usize, position: usize) -> Literal {
        let program = &self.set.programs[rank];
        let buffer = program.inputs[position].buffer;
        read(program, &*self.ranks[rank].borrow(), &View::whole(buffer, &program.buffer(buffer).ty.shape))
    }

    /// Runs one step on all ranks, which take turns on this thread. E405 if they block each other.
    pub fn step(&mut self) -> Result<()> {
        let pieces = self.set.programs.iter().map(|program| program.pauses.len() + 1).max().unwrap_or(0);
        (0..pieces).try_for_each(|piece| self.run_piece(piece))
    }

    /// As [`Reference::step`], one piece of a step, after those before it: up to the next pause, or to the end.
    pub fn run_piece(&mut self, piece: usize) -> Result<()> {
        if piece == 0 {
            self.cursors = vec![Cursor::default(); self.set.programs.len()];
            self.meetings = vec![Rendezvous::default(); self.set.collectives.len()];
        }
        for (cursor, program) in self.cursors.iter_mut().zip(&self.set.programs) {
            cursor.pause = program.pauses.get(piece).copied();
        }
        let meetings = std::mem::take(&mut self.meetings);
        let mut communicator: Exchanger<'_, D> =
            Exchanger { set: &self.set, ranks: self.ranks.clone(), meetings };
        let cursors = &mut self.cursors;
        let mut waiting: Vec<usize> = (0..cursors.len()).collect();
        while !waiting.is_empty() {
            let before = cursors.clone();
            let mut still = Vec::new();
            for rank in std::mem::take(&mut waiting) {
                let mut device = OnRank::<D>(&self.ranks[rank]);
                match advance(&self.set.programs[rank], &mut cursors[rank], &mut device, &mut communicator) {
                    StepOutcome::Done => {}
                    StepOutcome::Blocked(_) => still.push(rank),
                    StepOutcome::Failed(error) => return Err(error),
                }
            }
            if !still.is_empty() && *cursors == before {
                return Err(Diagnostic::new("E405", format!("ranks {still:?} wait for each other")));
            }
            waiting = still;
        }
        self.meetings = communicator.meetings;
        Ok(())
    }
}

/// Runs one step of a program set. Takes the inputs of each rank in graph order, and returns the
/// outputs in the same form.
pub fn interpret(set: &ProgramSet, inputs: &[Vec<Literal>]) -> Result<Vec<Vec<Literal>>> {
    let mut reference = Reference::new(set);
    for (rank, inputs) in inputs.iter().enumerate() {
        for (position, literal) in inputs.iter().enumerate() {
            reference.write_input(rank, position, literal)?;
        }
    }
    reference.step()?;
    let outputs = |program: &Program| {
        (0..program.outputs.len()).map(|position| reference.output(program.rank(), position)).collect()
    };
    Ok(reference.set.programs.iter().map(outputs).collect())
}
