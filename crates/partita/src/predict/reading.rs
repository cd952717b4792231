//! How the slices of a small step are read: which seconds of a program's run over a clock belong to which part of the step.

use super::small::{Blocks, Part, SmallSlice, Spent};
use partita_base::CollectiveId;
use partita_ir::{Phase, Role};
use partita_pipeline::Task;
use partita_program::{
    Action, BufferId, Collective, CollectiveKind, CollectiveOp, Event, Instruction, Origin, Program,
    ProgramSet, Start,
};
use partita_simulate::{ClassRun, Simulation};
use std::collections::{BTreeMap, BTreeSet};

/// The part of a task's compute, as one in so many, that may come behind what makes the task done.
const LATE: u64 = 3;

/// How the events of a slice are read.
pub(super) struct Reading<'a> {
    pub set: &'a ProgramSet,
    pub simulation: &'a Simulation,
    /// The messages of no microbatch.
    pub once: &'a BTreeSet<usize>,
    pub blocks: &'a Blocks,
    /// The tasks of the slice, in order.
    pub tasks: &'a [Task],
    pub is_several: bool,
    pub is_pipeline: bool,
}

impl Reading<'_> {
    /// The position of the task that an instruction is part of.
    fn task(&self, origin: &Origin) -> Option<usize> {
        let microbatch = origin.microbatch.or((!self.is_several).then_some(0))?;
        let is_own = |task: &Task| task.microbatch == microbatch && task.kind.includes(origin.phase);
        self.tasks.iter().position(is_own)
    }

    /// What a rank of a class does.
    pub fn of(&self, program: &Program, run: &ClassRun) -> SmallSlice {
        let beside = Beside::of(self, program);
        // Waits for other slices do not count, nor those for what runs beside.
        let is_counted = |event: &&Event| match &program.instructions[event.instruction].action {
            Action::Wait(collective) => !self.is_message(*collective) && !beside.contains(*collective),
            _ => true,
        };
        let events: Vec<&Event> = run.events.iter().filter(is_counted).collect();
        let task_of: Vec<Option<usize>> =
            events.iter().map(|event| self.task(&program.instructions[event.instruction].origin)).collect();
        let later = self.first_left(program, &events, &task_of);
        let (begin, sends) = (self.first_begin(program), self.last_sends(program));
        let mut read = SmallSlice::default();
        let mut current: Option<usize> = None;
        // The part at which an instruction counts that comes before the event `at`, and its task.
        let part = |instruction: usize, at: usize, current: Option<usize>| {
            let task = self.task(&program.instructions[instruction].origin);
            match task.map(|task| self.tasks[task]) {
                Some(task) if instruction < begin => Part::Ahead(task.kind, task.microbatch),
                Some(task) => Part::Task(task.kind, task.microbatch),
                None if later[at] == usize::MAX => Part::After,
                None => current.map_or(Part::Before, |task| self.once(self.tasks[task])),
            }
        };
        let mut reductions = beside.reductions.iter().peekable();
        let mut at_ends: BTreeMap<Part, [Vec<f64>; 2]> = BTreeMap::new();
        for (at, event) in events.iter().enumerate() {
            let mut count = |instruction: usize, own: Part, current: Option<usize>, spent: Spent| {
                let place = self.blocks.place(&program.instructions[instruction].origin.path);
                let of = &mut read.spent.entry(own).or_insert_with(|| self.blocks.none())[place];
                *of = of.plus(spent);
                let task = self.task(&program.instructions[instruction].origin).or(current);
                let sent = task.filter(|_| instruction >= begin && own != Part::After);
                if sent.and_then(|task| sends[task]).is_some_and(|sent| instruction > sent) {
                    let of = &mut read.behind_send.entry(own).or_insert_with(|| self.blocks.none())[place];
                    *of = of.plus(spent);
                }
            };
            while let Some((&start, collective)) =
                reductions.next_if(|(start, _)| **start < event.instruction)
            {
                let spent = Spent { reduced: self.taken_s(*collective), ..Spent::default() };
                let own = part(start, at, current);
                count(start, own, current, spent);
                if self.blocks.is_at_end(&program.instructions[start].origin.path) {
                    at_ends.entry(own).or_default()[1].push(spent.reduced);
                }
            }
            let seconds = (event.end_ns - event.begin_ns) as f64 / 1e9;
            if task_of[at].is_some_and(|task| event.instruction >= begin && task <= later[at]) {
                current = task_of[at];
                read.tasks_end_s = event.end_ns as f64 / 1e9;
            }
            let spent = match program.instructions[event.instruction].action {
                Action::Compute(_) => Spent { compute: seconds, ..Spent::default() },
                _ => Spent { exposed: seconds, ..Spent::default() },
            };
            count(event.instruction, part(event.instruction, at, current), current, spent);
        }
        read.at_ends = at_ends;
        for (start, collective) in &beside.gathers {
            let origin = &program.instructions[*start].origin;
            let Some(task) = self.task(origin).map(|task| self.tasks[task]) else { continue };
            let place = self.blocks.place(&origin.path);
            let (part, seconds) = (Part::Task(task.kind, task.microbatch), self.taken_s(*collective));
            read.spent.entry(part).or_insert_with(|| self.blocks.none())[place].gathered += seconds;
            if self.blocks.is_at_end(&origin.path) {
                read.at_ends.entry(part).or_default()[0].push(seconds);
            }
        }
        let ends = beside.reductions.values().map(|collective| self.times_s(*collective).1);
        read.tasks_end_s = ends.fold(read.tasks_end_s, f64::max);
        read
    }

    /// When a collective of the slice begins and ends.
    fn times_s(&self, collective: CollectiveId) -> (f64, f64) {
        let Collective { bucket, label, .. } = &self.set.collectives[collective.index()];
        let is_own = |id: CollectiveId| {
            let other = &self.set.collectives[id.index()];
            (other.bucket, &other.label) == (*bucket, label)
        };
        let own = self.simulation.exchanged.iter().find(|exchanged| is_own(exchanged.collective));
        own.map_or((0.0, 0.0), |own| (own.begin_s, own.end_s))
    }

    /// The seconds that a collective of the slice takes.
    fn taken_s(&self, collective: CollectiveId) -> f64 {
        let (begin_s, end_s) = self.times_s(collective);
        end_s - begin_s
    }

    /// The part of what happens once a step while a task is under way. Microbatches in the middle stand for any number of
    /// others, so it counts with the first one there.
    fn once(&self, under_way: Task) -> Part {
        let is_last = self.tasks.iter().all(|task| task.microbatch <= under_way.microbatch);
        Part::Along(under_way.kind, if is_last { under_way.microbatch } else { 0 })
    }

    /// Whether a collective is a message between slices.
    fn is_message(&self, collective: CollectiveId) -> bool {
        self.set.collectives[collective.index()].kind == CollectiveKind::Send
    }

    /// Whether a collective is a message of no microbatch.
    fn is_once(&self, collective: CollectiveId) -> bool {
        self.once.contains(&self.set.collectives[collective.index()].bucket)
    }

    /// Whether a collective is a message that a program receives.
    fn is_received(&self, program: &Program, collective: CollectiveId) -> bool {
        let collective = &self.set.collectives[collective.index()];
        let own = collective.member(program.rank());
        collective.transfers.iter().any(|transfer| match &transfer.exchange {
            CollectiveOp::Send { boxes } => boxes.iter().any(|moved| Some(moved.target) == own),
            _ => false,
        })
    }

    /// The instruction with which the first task begins: the one that waits for its input, if that comes from another slice.
    fn first_begin(&self, program: &Program) -> usize {
        let of_first = || {
            let all = program.instructions.iter().enumerate();
            all.filter(|(_, instruction)| self.task(&instruction.origin) == Some(0))
        };
        let input = of_first().find_map(|(_, instruction)| match &instruction.action {
            Action::Start(Start { collective, .. }) => {
                Some(*collective).filter(|&one| self.is_received(program, one) && !self.is_once(one))
            }
            _ => None,
        });
        let is_waiting = |action: &Action| input.is_some_and(|input| *action == Action::Wait(input));
        let mut begins = of_first();
        let waits = of_first().find(|(_, instruction)| is_waiting(&instruction.action));
        waits.or_else(|| begins.next()).map_or(0, |(at, _)| at)
    }

    /// For each event, and behind the last one, the first task that is not done by then: an event of a later task runs ahead
    /// of it. A task is done with most of its compute; what comes behind that, such as adding up a gradient that was
    /// exchanged while the next tasks ran, keeps none of these from being under way.
    fn first_left(&self, program: &Program, events: &[&Event], task_of: &[Option<usize>]) -> Vec<usize> {
        let is_compute =
            |event: &Event| matches!(program.instructions[event.instruction].action, Action::Compute(_));
        let mut left = vec![0; self.tasks.len()];
        for (event, task) in events.iter().zip(task_of) {
            if let Some(task) = task.filter(|_| is_compute(event)) {
                left[task] += event.end_ns - event.begin_ns;
            }
        }
        let late: Vec<_> = left.iter().map(|all| all / LATE).collect();
        let mut done_at = vec![None; self.tasks.len()];
        for (at, (event, task)) in events.iter().zip(task_of).enumerate() {
            let Some(task) = *task else { continue };
            if is_compute(event) {
                left[task] -= event.end_ns - event.begin_ns;
            }
            if left[task] <= late[task] && is_compute(event) {
                done_at[task].get_or_insert(at);
            }
        }
        let mut first_left = vec![usize::MAX; events.len() + 1];
        for (task, done_at) in done_at.iter().enumerate() {
            if let Some(at) = *done_at {
                first_left[at] = first_left[at].min(task);
            }
        }
        // The last task ends with its last event.
        let end = task_of.iter().rposition(|task| task.is_some());
        for at in (0..events.len()).rev() {
            let last = if Some(at) == end { self.tasks.len() - 1 } else { usize::MAX };
            first_left[at] = first_left[at].min(first_left[at + 1]).min(last);
        }
        first_left
    }

    /// The last instruction of each task that sends something to another slice.
    fn last_sends(&self, program: &Program) -> Vec<Option<usize>> {
        let mut sends = vec![None; self.tasks.len()];
        for (at, instruction) in program.instructions.iter().enumerate() {
            let Action::Start(start) = &instruction.action else { continue };
            let is_sent = self.is_message(start.collective)
                && !self.is_once(start.collective)
                && !self.is_received(program, start.collective);
            if let Some(task) = self.task(&instruction.origin).filter(|_| is_sent) {
                sends[task] = Some(at);
            }
        }
        sends
    }
}

/// The collectives of a slice of a pipeline that run beside its tasks, by the instruction that starts them.
#[derive(Default)]
struct Beside {
    /// Gathers of parameters for a microbatch, each of which starts where the one before is needed.
    gathers: BTreeMap<usize, CollectiveId>,
    /// Reductions of gradients, one at a time.
    reductions: BTreeMap<usize, CollectiveId>,
}

impl Beside {
    fn of(reading: &Reading, program: &Program) -> Beside {
        let mut beside = Beside::default();
        if !reading.is_pipeline {
            return beside;
        }
        let parameters = program.inputs.iter().filter(|port| port.role == Role::Param);
        // What holds parameters, those of other slices too, or follows from them alone.
        let mut of_parameters: BTreeSet<BufferId> = parameters.map(|port| port.buffer).collect();
        let is_of_task = |instruction: &Instruction| {
            !matches!(instruction.action, Action::Wait(_)) && reading.task(&instruction.origin).is_some()
        };
        let last = program.instructions.iter().rposition(is_of_task).unwrap_or(0);
        for (at, instruction) in program.instructions[..=last].iter().enumerate() {
            let (reads, writes) = instruction.action.accesses();
            let is_parameter = match instruction.action {
                Action::Start(Start { collective, .. }) if reading.is_message(collective) => {
                    reading.is_once(collective)
                }
                _ => !reads.is_empty() && reads.iter().all(|buffer| of_parameters.contains(buffer)),
            };
            if is_parameter {
                of_parameters.extend(writes);
            }
            let Action::Start(Start { collective, .. }) = instruction.action else { continue };
            match reading.set.collectives[collective.index()].kind {
                CollectiveKind::AllGather if is_parameter && is_of_task(instruction) => {
                    beside.gathers.insert(at, collective);
                }
                CollectiveKind::AllReduce | CollectiveKind::ReduceScatter
                    if instruction.origin.phase == Phase::WeightGrad =>
                {
                    beside.reductions.insert(at, collective);
                }
                _ => {}
            }
        }
        beside
    }

    fn contains(&self, collective: CollectiveId) -> bool {
        self.gathers.values().chain(self.reductions.values()).any(|own| *own == collective)
    }
}
