//! One rank: its memory, its compiled instructions, and its cursor.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use partita_base::{DType, Diagnostic, Result};
use partita_comm::{HostMemory, Poll, Transport};
use partita_kernels::Scalar;
use partita_program::{
    Action, BufferId, BufferKind, CollectiveId, Communicator, Compute, Cursor, Device, Move, Program,
    ProgramSet, RankDevice, Start, StepOutcome, View, advance,
};

use super::recorder::Track;
use super::team::{Idle, Team};
use super::{DIVERGED, Fault, PEER_FAILED, RunnerOptions};
use crate::arena::{Arena, Memory, Publication, Span};
use crate::cpu::{self, CpuRank, Kernel, begin_move, buffer_span, end_move, host_range};

/// Progress of the ranks of a process, for the watchdog; and whether they shall stop.
pub(super) struct RankProgress {
    /// Instructions done, over all ranks.
    pub done: AtomicU64,
    /// Whether ranks stop at their next compute instruction.
    pub is_stopped: AtomicBool,
}

impl RankProgress {
    fn end(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Why a rank stopped running.
pub(super) enum Outcome {
    Done,
    /// Blocked on this collective, or on nothing if a test made it hang.
    Blocked(Option<CollectiveId>),
    Failed(Box<Diagnostic>),
}

/// The error of a rank that a test made hang; never shown.
const HANG: &str = "hang";

/// A scalar output that must be finite.
struct Check {
    name: String,
    dtype: DType,
    span: Span,
}

impl Check {
    fn run(&self, memory: &Memory<'_>) -> Result<()> {
        let value = Scalar::from_bytes(self.dtype, memory.bytes(self.span)).to_f64();
        if value.is_finite() {
            return Ok(());
        }
        Err(diverged(format!("`{}` is not a finite number", self.name)).found(value.to_string()))
    }
}

/// The error of a step whose numbers are not finite.
fn diverged(message: String) -> Box<Diagnostic> {
    Diagnostic::new(DIVERGED, message).help(
        "lower the learning rate, clip gradients, lengthen the warm-up, or use a wider type; the mean over a batch in which \
         no label counts is no number either; parameters and states are those of the step before",
    )
}

/// A compiled instruction.
pub(super) enum Ready {
    Compute {
        kernel: Kernel,
        workspace: Span,
    },
    Start(Publication),
    /// A wait, or a move.
    Wait,
}

/// A rank's compiled program, and its memory.
pub(super) struct Body {
    pub instructions: Vec<Ready>,
    /// Per instruction: the highest byte it uses.
    ends: Vec<usize>,
    /// Per instruction, and per collective: the scalars that must be finite after it.
    checks: Vec<Vec<Check>>,
    collective_checks: Vec<Vec<Check>>,
    rank: usize,
    /// Per instruction: the bytes reported in its events.
    bytes: Vec<usize>,
    // Last, because the fields before hold pointers into it and must be dropped first.
    pub arena: Arena,
}

impl Body {
    /// Without checks and byte counts.
    pub fn new(instructions: Vec<Ready>, arena: Arena) -> Body {
        Body {
            checks: instructions.iter().map(|_| Vec::new()).collect(),
            ends: vec![0; instructions.len()],
            collective_checks: Vec::new(),
            rank: 0,
            bytes: vec![0; instructions.len()],
            instructions,
            arena,
        }
    }

    /// Rank, instruction and bytes of an event.
    pub fn event(&self, instruction: usize) -> (usize, usize, usize) {
        (self.rank, instruction, self.bytes[instruction])
    }

    /// Records where the numbers that the step is checked by become known.
    fn guard(&mut self, program: &Program) {
        for checked in program.checked() {
            let dtype = program.buffer(checked.buffer).ty.dtype;
            let span = buffer_span(program, checked.buffer);
            let check = Check { name: checked.name.to_string(), dtype, span };
            match &program.instructions[checked.known].action {
                Action::Wait(collective) => self.collective_checks[collective.index()].push(check),
                _ => self.checks[checked.known].push(check),
            }
        }
    }
}

/// The state of a running rank.
pub(super) struct Rank {
    pub team: Arc<Team>,
    /// What it keeps beside its arena, if anything.
    pub host: Option<HostMemory>,
    pub cursor: Cursor,
    pub is_done: bool,
    pub high_water_bytes: usize,
    /// (op, module path) of instructions that run on the interpreter.
    pub slow: Vec<(String, String)>,
    pub fault: Option<(usize, Fault)>,
}

impl Rank {
    /// The rank's team has `places` places, and its worker spins for `awake` while it waits for
    /// helpers. E426 if there is no memory.
    pub fn new(
        set: &ProgramSet,
        program: &Program,
        options: &RunnerOptions,
        places: usize,
        awake: Duration,
    ) -> Result<Rank> {
        let CpuRank { kernels, host, arena } = options.cpu.rank(program)?;
        let (mut instructions, mut ends, mut slow) = (Vec::new(), Vec::new(), Vec::new());
        for (instruction, kernel) in program.instructions.iter().zip(kernels) {
            let end_of_view = |view: &View| end(cpu::view_place(program, view).span());
            let end_of_buffer = |&id: &BufferId| end(buffer_span(program, id));
            match (&instruction.action, kernel) {
                (Action::Compute(compute), Some((kernel, workspace))) => {
                    let reads = compute.inputs.iter().map(end_of_view);
                    let touched =
                        reads.chain(compute.outputs.iter().map(end_of_buffer)).chain([end(workspace)]);
                    ends.push(touched.max().unwrap_or(0));
                    if kernel.is_slow {
                        let op = cpu::region_name(program.region(compute.region)).to_string();
                        slow.push((op, instruction.origin.path.clone()));
                    }
                    instructions.push(Ready::Compute { kernel, workspace });
                }
                (Action::Start(start), _) => {
                    let collective = &set.collectives[start.collective.index()];
                    ends.push(
                        start
                            .inputs
                            .iter()
                            .map(end_of_view)
                            .chain(start.outputs.iter().map(end_of_buffer))
                            .max()
                            .unwrap_or(0),
                    );
                    instructions.push(Ready::Start(publication(
                        &arena,
                        program,
                        start,
                        collective.transfers.len(),
                    )));
                }
                (Action::Move(moved) | Action::Moved(moved), _) => {
                    ends.push(end_of_buffer(&moved.buffer));
                    instructions.push(Ready::Wait);
                }
                (Action::Wait(_), _) | (Action::Compute(_), None) => {
                    ends.push(0);
                    instructions.push(Ready::Wait);
                }
            }
        }
        let mut body =
            Body { rank: program.rank(), bytes: traffic(program), ends, ..Body::new(instructions, arena) };
        if options.nan_guard {
            body.collective_checks.resize_with(set.collectives.len(), Vec::new);
            body.guard(program);
        }
        let constants = program.constants.iter().map(|(buffer, _)| end(buffer_span(program, *buffer)));
        Ok(Rank {
            high_water_bytes: constants.max().unwrap_or(0),
            team: Arc::new(Team::new(body, places, awake)),
            host,
            cursor: Cursor::default(),
            is_done: false,
            slow,
            fault: None,
        })
    }

    /// Goes to the beginning of a step. What the last one left in memory stays.
    pub fn rewind(&mut self) {
        (self.cursor, self.fault) = (Cursor::default(), None);
    }

    pub fn write(&mut self, program: &Program, buffer: BufferId, bytes: &[u8]) {
        self.place(program, buffer).copy_from_slice(bytes);
    }

    /// The span of a buffer, for writing from outside.
    pub fn place(&mut self, program: &Program, buffer: BufferId) -> &mut [u8] {
        if let (BufferKind::Host, Some(host)) = (program.buffer(buffer).kind, &mut self.host) {
            return host.bytes_mut(host_range(program, buffer));
        }
        let span = buffer_span(program, buffer);
        self.high_water_bytes = self.high_water_bytes.max(end(span));
        self.team.body.arena.memory().bytes_mut(span)
    }

    pub fn read(&self, program: &Program, buffer: BufferId) -> &[u8] {
        match (program.buffer(buffer).kind, &self.host) {
            (BufferKind::Host, Some(host)) => host.bytes(host_range(program, buffer)),
            _ => self.team.body.arena.memory().bytes(buffer_span(program, buffer)),
        }
    }

    /// Runs until the step is done or a collective is pending.
    pub fn advance(
        &mut self,
        program: &Program,
        transport: &dyn Transport,
        idle: &Idle,
        track: Track,
        progress: &RankProgress,
    ) -> Outcome {
        let Rank { team, host, cursor, high_water_bytes, fault, .. } = self;
        let body = &team.body;
        let (fault, touched) = (*fault, Cell::from_mut(high_water_bytes));
        let memory = body.arena.memory();
        let mut executor = RankExecutor {
            team,
            idle,
            track,
            memory,
            host: host.as_mut(),
            touched,
            transport,
            fault,
            progress,
        };
        let mut link = Link { body, track, memory: body.arena.memory(), touched, transport, fault, progress };
        match advance(program, cursor, &mut executor, &mut link) {
            StepOutcome::Done => Outcome::Done,
            StepOutcome::Blocked(collective) => Outcome::Blocked(Some(collective)),
            StepOutcome::Failed(error) if error.code == HANG => Outcome::Blocked(None),
            StepOutcome::Failed(error) => Outcome::Failed(error),
        }
    }
}

/// The error of a step that was stopped from outside.
pub(super) fn interrupted() -> Box<Diagnostic> {
    Diagnostic::new("E427", "the step was interrupted")
        .help("continue from the last checkpoint, in a new run")
}

/// The bytes that each instruction reads and writes.
fn traffic(program: &Program) -> Vec<usize> {
    let viewed = |view: &View| {
        view.shape.iter().product::<usize>() * program.buffer(view.buffer).ty.dtype.size_bytes()
    };
    let read = |views: &[View]| views.iter().map(viewed).sum::<usize>();
    let written = |ids: &[BufferId]| ids.iter().map(|&id| program.buffer(id).bytes).sum::<usize>();
    let mut arriving: BTreeMap<CollectiveId, usize> = BTreeMap::new();
    let mut bytes = Vec::with_capacity(program.instructions.len());
    for instruction in &program.instructions {
        bytes.push(match &instruction.action {
            Action::Compute(compute) => read(&compute.inputs) + written(&compute.outputs),
            Action::Start(start) => {
                arriving.insert(start.collective, written(&start.outputs));
                read(&start.inputs)
            }
            Action::Wait(collective) => arriving.get(collective).copied().unwrap_or(0),
            Action::Move(moved) | Action::Moved(moved) => program.buffer(moved.buffer).bytes,
        });
    }
    bytes
}

fn end(span: Span) -> usize {
    if span.bytes == 0 { 0 } else { span.offset + span.bytes }
}

/// The buffers of a start, one input and one output per tensor: a rank that only sends or only
/// receives has none on the other side.
fn publication(arena: &Arena, program: &Program, start: &Start, tensors: usize) -> Publication {
    let mut inputs: Vec<Span> =
        start.inputs.iter().map(|view| cpu::view_place(program, view).span()).collect();
    let mut outputs: Vec<Span> = start.outputs.iter().map(|&id| buffer_span(program, id)).collect();
    inputs.resize(tensors, Span::default());
    outputs.resize(tensors, Span::default());
    arena.publication(&inputs, &outputs)
}

fn hit(fault: Option<(usize, Fault)>, index: usize) -> Option<Fault> {
    fault.filter(|(at, _)| *at == index).map(|(_, fault)| fault)
}

/// Runs compute instructions.
struct RankExecutor<'a> {
    team: &'a Team,
    idle: &'a Idle<'a>,
    track: Track<'a>,
    memory: Memory<'a>,
    host: Option<&'a mut HostMemory>,
    touched: &'a Cell<usize>,
    transport: &'a dyn Transport,
    fault: Option<(usize, Fault)>,
    progress: &'a RankProgress,
}

impl RankDevice for RankExecutor<'_> {
    fn run(&mut self, program: &Program, index: usize, compute: &Compute) -> Result<()> {
        self.transport.begin(program.rank(), index);
        if self.progress.is_stopped.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        let fault = hit(self.fault, index);
        match fault {
            Some(Fault::Panic) => panic!("injected panic"),
            Some(Fault::Hang) => return Err(Diagnostic::new(HANG, "")),
            _ => {}
        }
        self.idle.count_me(false);
        let result = match fault {
            Some(Fault::Error) => Err(Diagnostic::new("E411", "injected failure")),
            _ => self.team.run(index, self.idle, self.track),
        };
        result.map_err(|error| refused(program, index, error))?;
        self.touched.update(|bytes| bytes.max(self.team.body.ends[index]));
        self.progress.end();
        if fault == Some(Fault::Nan) {
            // All ones is NaN in every float type.
            self.memory.bytes_mut(buffer_span(program, compute.outputs[0])).fill(0xff);
        }
        self.team.body.checks[index]
            .iter()
            .try_for_each(|check| check.run(&self.memory))
            .map_err(|e| placed(program, index, e))
    }

    fn begin_move(&mut self, program: &Program, index: usize, moved: Move) -> Result<()> {
        self.transport.begin(program.rank(), index);
        let (memory, host) = (&self.memory, self.host.as_deref_mut());
        self.track.time(|| self.team.body.event(index), || begin_move(program, moved, memory, host));
        self.progress.end();
        Ok(())
    }

    fn end_move(&mut self, program: &Program, index: usize, moved: Move) -> Result<()> {
        let (memory, host) = (&self.memory, self.host.as_deref());
        self.track.time(|| self.team.body.event(index), || end_move(program, moved, memory, host));
        self.touched.update(|bytes| bytes.max(self.team.body.ends[index]));
        self.progress.end();
        Ok(())
    }
}

/// The error of a kernel that rejected its data: E411.
fn refused(program: &Program, index: usize, mut error: Box<Diagnostic>) -> Box<Diagnostic> {
    let what = &program.instructions[index].origin.what;
    error.code = "E411";
    error.message = format!("rank {}: {what} failed: {}", program.rank(), error.message);
    placed(program, index, error)
}

/// The instruction that waits for a collective.
fn wait_index(program: &Program, collective: CollectiveId) -> usize {
    program.instructions.iter().position(|i| i.action == Action::Wait(collective)).unwrap_or(0)
}

/// Adds the module to an error.
fn placed(program: &Program, index: usize, error: Box<Diagnostic>) -> Box<Diagnostic> {
    let path = &program.instructions[index].origin.path;
    error.at(if path.is_empty() { "<root>" } else { path })
}

/// The error of a rank whose peers have failed. If the first failure is in this process, that rank
/// has reported it.
fn ended(transport: &dyn Transport) -> Box<Diagnostic> {
    match transport.failure() {
        // Every rank continues from the state of the step before.
        Some(first) if first.code == DIVERGED => diverged(first.message),
        Some(first) => Diagnostic::new(PEER_FAILED, format!("rank {} failed: {}", first.rank, first.message)),
        None => Diagnostic::new(PEER_FAILED, "another rank failed"),
    }
}

/// Runs collectives.
struct Link<'a> {
    body: &'a Body,
    track: Track<'a>,
    memory: Memory<'a>,
    touched: &'a Cell<usize>,
    transport: &'a dyn Transport,
    fault: Option<(usize, Fault)>,
    progress: &'a RankProgress,
}

impl Communicator for Link<'_> {
    fn start(&mut self, program: &Program, index: usize, start: &Start) -> Result<()> {
        self.transport.begin(program.rank(), index);
        match hit(self.fault, index) {
            Some(Fault::Panic) => panic!("injected panic"),
            Some(Fault::Hang) => return Err(Diagnostic::new(HANG, "")),
            _ => {}
        }
        let Ready::Start(publication) = &self.body.instructions[index] else {
            unreachable!("starts are compiled")
        };
        self.touched.update(|bytes| bytes.max(self.body.ends[index]));
        let start = || publication.start(self.transport, start.collective, program.rank());
        self.track.time(|| self.body.event(index), start);
        self.progress.end();
        Ok(())
    }

    fn has_ended(&mut self, program: &Program, collective: CollectiveId) -> Result<bool> {
        let poll = || self.transport.poll(collective, program.rank());
        match self.track.time(|| self.body.event(wait_index(program, collective)), poll) {
            Poll::Pending => Ok(false),
            Poll::Failed => Err(ended(self.transport)),
            Poll::Ready => {
                self.progress.end();
                let checks = self.body.collective_checks.get(collective.index());
                checks
                    .into_iter()
                    .flatten()
                    .try_for_each(|check| check.run(&self.memory))
                    .map_err(|error| placed(program, wait_index(program, collective), error))?;
                Ok(true)
            }
        }
    }
}
