//! A slow executor that keeps every tensor in its place of the arena, so that a wrong memory map shows as wrong
//! numbers: what must never be read is poisoned, and collectives move their data as late as they may.

use crate::execute::{Communicator, Cursor, Device, StepOutcome, advance};
use crate::program::{BufferId, Compute, Program, ProgramSet, Start, View};
use partita_base::{CollectiveId, Diagnostic, Result};
use partita_ir::{Literal, TensorType, evaluate};
use std::cell::RefCell;
use std::rc::Rc;

const POISON: u8 = 0xa5;

/// All ranks of a program set on one thread.
pub struct Reference {
    /// With a program for each rank.
    set: ProgramSet,
    arenas: Rc<Arenas>,
}

struct Arenas {
    bytes: Vec<RefCell<Vec<u8>>>,
}

impl Arenas {
    fn read(&self, program: &Program, view: &View) -> Literal {
        let buffer = program.buffer(view.buffer);
        let arena = self.bytes[program.rank()].borrow();
        let range = buffer.offset_bytes..buffer.offset_bytes + buffer.bytes;
        let whole =
            Literal::from_bytes(&buffer.ty, &arena[range]).expect("a buffer has the bytes of its type");
        Literal { ty: buffer.ty.with_shape(view.shape.clone()), data: whole.data.pick(view.positions()) }
    }

    fn write(&self, program: &Program, buffer: BufferId, literal: &Literal) {
        let buffer = program.buffer(buffer);
        assert_eq!(buffer.ty, literal.ty, "{}", buffer.what);
        let range = buffer.offset_bytes..buffer.offset_bytes + buffer.bytes;
        self.bytes[program.rank()].borrow_mut()[range].copy_from_slice(&literal.to_bytes());
    }

    fn poison(&self, program: &Program, buffer: BufferId) {
        let buffer = program.buffer(buffer);
        let range = buffer.offset_bytes..buffer.offset_bytes + buffer.bytes;
        self.bytes[program.rank()].borrow_mut()[range].fill(POISON);
    }
}

struct Evaluator(Rc<Arenas>);

impl Device for Evaluator {
    fn run(&mut self, program: &Program, _index: usize, compute: &Compute) -> Result<()> {
        let inputs: Vec<Literal> = compute.inputs.iter().map(|view| self.0.read(program, view)).collect();
        let outputs = evaluate(&program.region(compute.region).graph, &inputs)?;
        if let Some(workspace) = compute.workspace {
            self.0.poison(program, workspace);
        }
        for (&buffer, literal) in compute.outputs.iter().zip(&outputs) {
            self.0.write(program, buffer, literal);
        }
        Ok(())
    }
}

/// A collective under way: what each member brought, and who has gone.
#[derive(Clone, Default)]
struct Meeting {
    arrived: Vec<Option<Start>>,
    is_done: bool,
    left: usize,
}

struct Exchanger<'a> {
    set: &'a ProgramSet,
    arenas: Rc<Arenas>,
    meetings: Vec<Meeting>,
}

impl Exchanger<'_> {
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
                .map(|(program, start)| self.arenas.read(program, &start.inputs[number]))
                .collect();
            let types: Vec<TensorType> = transfer.outputs.to_vec();
            let outputs = transfer.exchange.apply(&inputs, &types)?;
            for ((program, start), literal) in starts.iter().zip(&outputs) {
                self.arenas.write(program, start.outputs[number], literal);
            }
        }
        Ok(())
    }
}

impl Communicator for Exchanger<'_> {
    fn start(&mut self, program: &Program, _index: usize, start: &Start) -> Result<()> {
        let collective = &self.set.collectives[start.collective.index()];
        let meeting = &mut self.meetings[start.collective.index()];
        meeting.arrived.resize(collective.members.len(), None);
        let member = collective.member(program.rank()).expect("the checks saw that it is a member");
        meeting.arrived[member] = Some(start.clone());
        start.outputs.iter().for_each(|&buffer| self.arenas.poison(program, buffer));
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
            *meeting = Meeting::default();
        }
        Ok(true)
    }
}

impl Reference {
    /// Fresh arenas with the constants loaded.
    pub fn new(set: &ProgramSet) -> Self {
        let set = set.each_rank();
        let bytes = set.programs.iter().map(|p| RefCell::new(vec![POISON; p.arena_bytes])).collect();
        let arenas = Rc::new(Arenas { bytes });
        for program in &set.programs {
            for (buffer, literal) in &program.constants {
                arenas.write(program, *buffer, literal);
            }
        }
        Reference { set, arenas }
    }

    /// Writes an input of a rank. E403 where it does not fit.
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
        self.arenas.write(program, port.buffer, literal);
        Ok(())
    }

    /// Reads an output of a rank, after a step.
    pub fn output(&self, rank: usize, position: usize) -> Literal {
        let program = &self.set.programs[rank];
        let buffer = program.outputs[position].buffer;
        self.arenas.read(program, &View::whole(buffer, &program.buffer(buffer).ty.shape))
    }

    /// Reads an input's buffer of a rank: after a step, what replaced it.
    pub fn input(&self, rank: usize, position: usize) -> Literal {
        let program = &self.set.programs[rank];
        let buffer = program.inputs[position].buffer;
        self.arenas.read(program, &View::whole(buffer, &program.buffer(buffer).ty.shape))
    }

    /// Runs one step on all ranks in turn. E405 where they block each other.
    pub fn step(&mut self) -> Result<()> {
        let mut device = Evaluator(self.arenas.clone());
        let meetings = vec![Meeting::default(); self.set.collectives.len()];
        let mut communicator = Exchanger { set: &self.set, arenas: self.arenas.clone(), meetings };
        let mut cursors = vec![Cursor::default(); self.set.programs.len()];
        let mut waiting: Vec<usize> = (0..cursors.len()).collect();
        while !waiting.is_empty() {
            let before = cursors.clone();
            let mut still = Vec::new();
            for rank in std::mem::take(&mut waiting) {
                match advance(&self.set.programs[rank], &mut cursors[rank], &mut device, &mut communicator) {
                    StepOutcome::Done => {}
                    StepOutcome::Blocked(_) => still.push(rank),
                    StepOutcome::Failed(error) => return Err(error),
                }
            }
            if !still.is_empty() && cursors == before {
                return Err(Diagnostic::new("E405", format!("ranks {still:?} wait for each other")));
            }
            waiting = still;
        }
        Ok(())
    }
}

/// Runs one step of a program set on these inputs, per rank in graph order, and returns the outputs likewise.
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
