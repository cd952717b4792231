//! The executor over a clock: one per rank class, always advancing the class whose clock is
//! furthest behind, so that events happen in the order of their times.
//!
//! A compute instruction takes the time that the cluster's roofline gives for its work. A
//! collective begins when all its members have started it and none of them is busy with an earlier
//! one (each rank has one queue of collectives, as one stream of NCCL), its time is that of
//! [`crate::collective_s`], and where ranks share links, groups that exchange at the same time share them and others take
//! turns. Moves between a device and host memory have a queue for each direction of their link. Compute,
//! collectives and moves of a rank overlap.
//!
//! # Why classes suffice
//! The ranks of a class execute the same instructions with the same costs, and each collective that
//! one of them starts has members in the same classes as the collective that another one starts at the same
//! place. So the clocks of a class agree if those of its members do when the step begins. Where the ranks of a program
//! share collectives with different classes or have different devices, they are several classes here ([`alike_on`]); the
//! result has the slowest one of each program and device.

use crate::links::{CollectiveKey, Links, StartedCollective, Turns};
use crate::memory::{Memory, over_time};
use indexmap::IndexMap;
use partita_base::{CollectiveId, DType, Diagnostic, Result};
use partita_cost::{Cluster, Device, Fill, Work};
use partita_program::{
    Action, Communicator, Compute, Cursor, Event, Instruction, Move, MoveKind, Program, ProgramSet, Progress,
    RankDevice, Start, StepOutcome, alike_on, step_once,
};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A collective on the clock.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchanged {
    /// The collective, in [`ProgramSet::collectives`].
    pub collective: CollectiveId,
    /// The classes that take part, ascending, with the times in seconds at which they started it.
    pub starts: Vec<(usize, f64)>,
    /// When data began to move.
    pub begin_s: f64,
    /// When it was complete.
    pub end_s: f64,
}

/// A move between a device and host memory on the clock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Moved {
    /// What moves.
    pub moved: Move,
    /// When data began to move.
    pub begin_s: f64,
    /// When it was complete.
    pub end_s: f64,
}

/// The step of the ranks of one class.
#[derive(Clone, PartialEq, Debug)]
pub struct ClassRun {
    /// The position of its program in the set.
    pub program: usize,
    /// The ranks, ascending.
    pub ranks: Vec<usize>,
    /// Bytes of the memory of the device of each.
    pub device_bytes: u64,
    /// The instructions in order of time. Waits that cost no time have no event.
    pub events: Vec<Event>,
    /// Seconds of compute instructions.
    pub compute_s: f64,
    /// Seconds in which the ranks wait for a collective: communication that no compute hides, and
    /// bubbles of a pipeline.
    pub waiting_s: f64,
    /// Of these, seconds in which they wait for a move from or to host memory.
    pub host_waiting_s: f64,
    /// The moves from and to host memory, in the order in which they began.
    pub moved: Vec<Moved>,
    /// When the last instruction ends.
    pub end_s: f64,
    /// Bytes in use after each change.
    pub memory: Memory,
}

/// A predicted step.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulation {
    /// Seconds of the step: those of the slowest class.
    pub step_s: f64,
    /// One for each program of the set and kind of device that runs it, in the order of the programs.
    pub classes: Vec<ClassRun>,
    /// The collectives among several ranks, in the order in which they began. Alike groups count
    /// once.
    pub exchanged: Vec<Exchanged>,
}

impl Simulation {
    /// The share of the step in which ranks do not compute, over all ranks.
    pub fn idle_share(&self) -> f64 {
        let ranks = |class: &ClassRun| class.ranks.len() as f64;
        let all: f64 = self.classes.iter().map(ranks).sum();
        let busy: f64 = self.classes.iter().map(|class| ranks(class) * class.compute_s).sum();
        if self.step_s > 0.0 { 1.0 - busy / (all * self.step_s) } else { 0.0 }
    }

    /// The arena of the rank with the least room, and what its device holds.
    pub fn fullest(&self) -> Fill {
        let fill = |class: &ClassRun| Fill::new(class.memory.arena_bytes as u64, class.device_bytes);
        Fill::fullest(self.classes.iter().map(fill))
    }

    /// The class of each rank, in `classes`.
    pub fn class_of_ranks(&self) -> Vec<usize> {
        let mut class_of = vec![0; self.classes.iter().map(|class| class.ranks.len()).sum()];
        for (number, class) in self.classes.iter().enumerate() {
            class.ranks.iter().for_each(|&rank| class_of[rank] = number);
        }
        class_of
    }
}

/// Predicts one step of a program set on a cluster; rank `n` runs on device `n`.
///
/// # Errors
/// E510 if ranks wait for each other forever, which [`partita_program::check`] excludes.
pub fn simulate(set: &ProgramSet, cluster: &Cluster) -> Result<Simulation> {
    let program_of = set.class_of_ranks();
    let kind_of = cluster.kinds(program_of.len());
    let class_of = alike_on(set, &kind_of);
    let mut classes: Vec<Class> = Vec::new();
    for (rank, &class) in class_of.iter().enumerate() {
        let number = program_of[rank];
        let own = &set.programs[number];
        if classes.iter().any(|known| known.number == class) {
            continue;
        }
        let program = match own.rank() == rank {
            true => Cow::Borrowed(own),
            false => set.program(rank).map_or(Cow::Borrowed(own), Cow::Owned),
        };
        classes.push(Class::new(class, (number, kind_of[rank]), program, cluster.device_of(rank)));
    }
    classes.sort_by_key(|class| class.number);
    for (rank, &class) in class_of.iter().enumerate() {
        classes[class].ranks.push(rank);
    }
    let mut links = Links::new(set, cluster, class_of, classes.len());
    let mut cores = Cores(Turns::new(cluster.cores.unwrap_or(0)));
    // Always the class that is furthest behind; ties go to the first.
    let runnable = |classes: &[Class]| {
        let able = classes.iter().filter(|class| !class.is_done && class.blocked.is_none());
        let first = able.min_by(|a, b| a.now_s.get().total_cmp(&b.now_s.get()));
        first.map(|class| class.number)
    };
    loop {
        let class = runnable(&classes);
        let is_next = |begin_s: f64| class.is_none_or(|class| begin_s <= classes[class].now_s.get());
        if links.next_shared_s().is_some_and(is_next) {
            links.begin_shared();
            classes.iter_mut().for_each(|class| class.unblock(&links));
            continue;
        }
        let Some(class) = class else {
            let Some(stuck) = classes.iter().find(|class| !class.is_done) else { break };
            return Err(Diagnostic::new("E510", "the simulated ranks wait for each other forever")
                .at(format!("rank {}, instruction {}", stuck.program.rank(), stuck.cursor.next))
                .expected("programs that the static checks accept"));
        };
        classes[class].advance(&mut links, &mut cores)?;
        classes.iter_mut().for_each(|class| class.unblock(&links));
    }
    // The result has the slowest class of each program and kind of device, for all of their ranks.
    let mut told: BTreeMap<(usize, usize), (usize, Vec<usize>)> = BTreeMap::new();
    for (place, class) in classes.iter().enumerate() {
        let (slowest, ranks) = told.entry(class.told_with).or_insert_with(|| (place, Vec::new()));
        ranks.extend(&class.ranks);
        if class.now_s > classes[*slowest].now_s {
            *slowest = place;
        }
    }
    let told: Vec<(usize, Vec<usize>)> = told.into_values().collect();
    let told_as = |class: usize| told.iter().position(|&(place, _)| place == class);
    let of_told = links.meetings.into_values().filter_map(|meeting| exchanged_by(meeting, &told_as));
    let mut exchanged: Vec<Exchanged> = of_told.collect();
    exchanged.sort_by(|a, b| a.begin_s.total_cmp(&b.begin_s));
    let mut runs: Vec<(usize, ClassRun)> = Vec::new();
    for class in classes {
        if let Some(place) = told_as(class.number) {
            let mut ranks = told[place].1.clone();
            ranks.sort_unstable();
            runs.push((place, class.finish(ranks)));
        }
    }
    runs.sort_by_key(|(place, _)| *place);
    let classes: Vec<ClassRun> = runs.into_iter().map(|(_, run)| run).collect();
    let step_s = classes.iter().map(|class| class.end_s).fold(0.0, f64::max);
    Ok(Simulation { step_s, classes, exchanged })
}

/// The cores that the ranks of a machine share; none where each rank has a device of its own.
struct Cores(Turns);

impl Cores {
    /// When an instruction of so many ranks ends that each could begin now and that takes so long on a core: a rank waits
    /// for a core, and several ranks on fewer cores take turns.
    fn end_s(&mut self, ranks: usize, now_s: f64, seconds: f64) -> f64 {
        let Cores(turns) = self;
        if ranks.min(turns.count()) == 0 {
            return now_s + seconds;
        }
        let times = (ranks as f64 / turns.count() as f64).max(1.0);
        let end_s = turns.begin_s(ranks, now_s) + seconds * times;
        turns.take(ranks, end_s);
        end_s
    }
}

/// A collective as those of its classes see it that the result has.
fn exchanged_by(meeting: StartedCollective, told_as: &dyn Fn(usize) -> Option<usize>) -> Option<Exchanged> {
    let StartedCollective { collective, is_real, starts, begin_s, end_s, .. } = meeting;
    let own = starts.into_iter().filter_map(|(class, start_s)| Some((told_as(class)?, start_s)));
    let mut starts: Vec<(usize, f64)> = own.collect();
    starts.sort_by_key(|&(class, _)| class);
    let end_s = end_s.filter(|_| is_real && !starts.is_empty())?;
    Some(Exchanged { collective, starts, begin_s, end_s })
}

/// The clock of a class.
struct Class<'a> {
    number: usize,
    /// The position of its program in the set, and the kind of its device.
    told_with: (usize, usize),
    program: Cow<'a, Program>,
    device: &'a Device,
    cursor: Cursor,
    now_s: Cell<f64>,
    /// Its ranks.
    ranks: Vec<usize>,
    /// Seconds of each instruction that computes.
    computing_s: Vec<f64>,
    blocked: Option<CollectiveKey>,
    is_done: bool,
    events: Vec<Event>,
    compute_s: f64,
    waiting_s: f64,
    host_waiting_s: f64,
    host: RefCell<HostLink>,
}

/// The link of a device to host memory.
#[derive(Default)]
struct HostLink {
    /// When it is free in each direction.
    free_s: [f64; 2],
    /// When the data of a move is where it should be: a load of what is being stored waits for it.
    moved: IndexMap<Move, Moved>,
}

impl HostLink {
    fn begin(&mut self, moved: Move, now_s: f64, seconds: f64) {
        let opposite = Move {
            kind: if moved.kind == MoveKind::Load { MoveKind::Store } else { MoveKind::Load },
            ..moved
        };
        let before_s = self.moved.get(&opposite).map_or(0.0, |other| other.end_s);
        let free_s = &mut self.free_s[moved.kind as usize];
        let begin_s = now_s.max(*free_s).max(before_s);
        *free_s = begin_s + seconds;
        self.moved.insert(moved, Moved { moved, begin_s, end_s: *free_s });
    }
}

impl<'a> Class<'a> {
    fn new(
        number: usize,
        told_with: (usize, usize),
        program: Cow<'a, Program>,
        device: &'a Device,
    ) -> Class<'a> {
        let computing_s = computing_s(&program, device);
        Class {
            number,
            told_with,
            program,
            device,
            cursor: Cursor::default(),
            now_s: Cell::new(0.0),
            ranks: Vec::new(),
            computing_s,
            blocked: None,
            is_done: false,
            events: Vec::new(),
            compute_s: 0.0,
            waiting_s: 0.0,
            host_waiting_s: 0.0,
            host: RefCell::default(),
        }
    }

    /// May advance again if the collective that it waits for has an end.
    fn unblock(&mut self, links: &Links) {
        self.blocked.take_if(|key| links.meetings[&*key].end_s.is_some());
    }

    /// Runs the next instruction, or finds out that it has to wait.
    fn advance(&mut self, links: &mut Links, cores: &mut Cores) -> Result<()> {
        let (index, begin_s) = (self.cursor.next, self.now_s.get());
        let (now_s, computing_s, host) = (&self.now_s, &self.computing_s[..], &self.host);
        let (ranks, device) = (self.ranks.len(), self.device);
        let mut device = ClockDevice { ranks, now_s, computing_s, cores, host, device };
        let mut communicator = ClockCommunicator { class: self.number, now_s: &self.now_s, links };
        match step_once(&self.program, &mut self.cursor, &mut device, &mut communicator) {
            Progress::Advanced => self.record(index, begin_s),
            Progress::Ended(StepOutcome::Done) => self.is_done = true,
            Progress::Ended(StepOutcome::Blocked(collective)) => self.blocked = Some(links.key(collective)),
            Progress::Ended(StepOutcome::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn record(&mut self, instruction: usize, begin_s: f64) {
        let end_s = self.now_s.get();
        let action = &self.program.instructions[instruction].action;
        match action {
            Action::Compute(_) => self.compute_s += end_s - begin_s,
            Action::Start(_) | Action::Move(_) => return,
            Action::Wait(_) | Action::Moved(_) if end_s == begin_s => return,
            Action::Wait(_) => self.waiting_s += end_s - begin_s,
            Action::Moved(_) => {
                self.waiting_s += end_s - begin_s;
                self.host_waiting_s += end_s - begin_s;
            }
        }
        let bytes = match action {
            Action::Compute(compute) => self.program.cost(compute).bytes as usize,
            _ => 0,
        };
        self.events.push(Event {
            rank: self.program.rank(),
            thread: self.told_with.0,
            instruction,
            begin_ns: nanoseconds(begin_s),
            end_ns: nanoseconds(end_s),
            bytes,
        });
    }

    /// The result of its run, for all of these ranks.
    fn finish(self, ranks: Vec<usize>) -> ClassRun {
        let memory = over_time(&self.program, &self.events, 0.0);
        ClassRun {
            program: self.told_with.0,
            ranks,
            device_bytes: self.device.memory_bytes,
            events: self.events,
            compute_s: self.compute_s,
            waiting_s: self.waiting_s,
            host_waiting_s: self.host_waiting_s,
            moved: self.host.into_inner().moved.into_values().collect(),
            end_s: self.now_s.get(),
            memory,
        }
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// Seconds of each instruction of a program that computes; 0 for others.
pub fn computing_s(program: &Program, device: &Device) -> Vec<f64> {
    let seconds = |instruction: &Instruction| match &instruction.action {
        Action::Compute(compute) => device.op_s(&work(program, compute)),
        _ => 0.0,
    };
    program.instructions.iter().map(seconds).collect()
}

/// The work of an instruction; its arithmetic has the element type of the op with most operations.
pub fn work(program: &Program, compute: &Compute) -> Work {
    let cost = program.cost(compute);
    let graph = &program.region(compute.region).graph;
    let flops = |node: &partita_ir::Node| {
        use partita_ir::Operation;
        node.op.cost(&graph.operand_types(node), &graph.result_types(node)).flops
    };
    let main = graph.nodes.iter().max_by(|a, b| flops(a).total_cmp(&flops(b)));
    let dtype = main.and_then(|node| node.operands.first().or(node.results.first()));
    Work { flops: cost.flops, bytes: cost.bytes, dtype: dtype.map_or(DType::F32, |&v| graph.ty(v).dtype) }
}

/// A device that computes nothing and takes the time that computing would take.
struct ClockDevice<'a> {
    ranks: usize,
    now_s: &'a Cell<f64>,
    computing_s: &'a [f64],
    cores: &'a mut Cores,
    host: &'a RefCell<HostLink>,
    device: &'a Device,
}

impl RankDevice for ClockDevice<'_> {
    fn run(&mut self, _: &Program, index: usize, _: &Compute) -> Result<()> {
        self.now_s.set(self.cores.end_s(self.ranks, self.now_s.get(), self.computing_s[index]));
        Ok(())
    }

    fn begin_move(&mut self, program: &Program, _: usize, moved: Move) -> Result<()> {
        let seconds = self.device.host_s(program.buffer(moved.buffer).bytes as f64);
        self.host.borrow_mut().begin(moved, self.now_s.get(), seconds);
        Ok(())
    }

    fn end_move(&mut self, _: &Program, _: usize, moved: Move) -> Result<()> {
        let end_s = self.host.borrow().moved.get(&moved).map_or(0.0, |moved| moved.end_s);
        self.now_s.set(self.now_s.get().max(end_s));
        Ok(())
    }
}

/// A communicator that moves nothing and takes the time that moving would take.
struct ClockCommunicator<'a, 'b> {
    class: usize,
    now_s: &'a Cell<f64>,
    links: &'a mut Links<'b>,
}

impl Communicator for ClockCommunicator<'_, '_> {
    fn start(&mut self, _: &Program, _: usize, start: &Start) -> Result<()> {
        self.links.start(self.class, start.collective, self.now_s.get());
        Ok(())
    }

    fn has_ended(&mut self, _: &Program, collective: CollectiveId) -> Result<bool> {
        let end_s = self.links.meetings.get(&self.links.key(collective)).and_then(|meeting| meeting.end_s);
        if let Some(end_s) = end_s {
            self.now_s.set(self.now_s.get().max(end_s));
        }
        Ok(end_s.is_some())
    }
}
