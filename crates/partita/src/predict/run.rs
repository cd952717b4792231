//! The timetable of a large step over a clock: one for each slice, always advancing the slice whose clock is furthest
//! behind, so that events happen in the order of their times.
//!
//! As in the programs, a rank has a queue of collectives for each level of links: one for what data parallel ranks exchange
//! and the messages over the same links, one for other messages. Gathers of parameters and reductions of gradients run
//! beside the tasks of a slice: a gather starts where the one before is needed, and a reduction ends where the next one
//! starts. A message begins when both ends have started it and neither is busy with an earlier collective; the receiver
//! starts it with the task before the one that reads it, and the sender waits for it where the timetable says that it is
//! read.

use super::small::Spent;
use partita_base::{Diagnostic, Result};
use partita_pipeline::{Task, TaskKind, Timetable};

/// What a task does, in order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Act {
    /// Needs parameters that are gathered in so many seconds.
    Gathered(f64),
    /// Computes, and waits for collectives that nothing hides.
    Works(Spent),
    /// Starts a reduction of gradients that takes so many seconds.
    Reduces(f64),
    /// Sends its result to another slice, if there is one that reads it.
    Sends,
}

/// The tasks of a large step.
pub(super) struct Tasks<'a> {
    pub timetable: &'a Timetable,
    /// The slice of each stage.
    pub slice_of: &'a [usize],
    /// Kinds of tasks.
    pub scripts: Vec<Vec<Act>>,
    /// The kind of each task of each slice.
    pub script_of: Vec<Vec<usize>>,
    /// For each stage but the last, the seconds of a microbatch on its way to the next stage, and back.
    pub messages_s: &'a [[f64; 2]],
    /// The queue of messages between two slices: 0 for that of gathers and reductions, 1 for the other one.
    pub queue_of: &'a dyn Fn(usize, usize) -> usize,
    /// What each slice does before its first task.
    pub before: Vec<Spent>,
    /// Seconds of the parameters of a tied head on their way from the first stage to the last one, and of their gradients on
    /// their way back.
    pub tied_s: [f64; 2],
}

/// A task of the timetable of a large step, as it ran over the clock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TaskRun {
    /// The slice of the mesh.
    pub slice: usize,
    /// The task.
    pub task: Task,
    /// When it begins.
    pub begin_s: f64,
    /// When it ends.
    pub end_s: f64,
}

/// A message between slices.
#[derive(Clone, Copy)]
struct Message {
    from: usize,
    to: usize,
    seconds: f64,
    queue: usize,
    /// When each end has started it.
    starts_s: [Option<f64>; 2],
    end_s: Option<f64>,
    /// The task of the sender at which it waits for it.
    released_at: usize,
}

/// A slice under way.
#[derive(Default)]
struct Running {
    now_s: f64,
    /// What it has done, and the waits for what runs beside.
    busy: Spent,
    /// Its task, and the next act of it; none before it begins.
    task: usize,
    act: Option<usize>,
    begin_s: f64,
    is_blocked: bool,
    /// When its queues of collectives are empty.
    queue_s: [f64; 2],
    /// The end of the gather that is under way, and where the gather is that comes next: a task and an act of it.
    gathered_s: f64,
    next_gather: (usize, usize),
    /// The end of the reduction that is under way.
    reduced_s: f64,
    /// Messages that it has sent and not waited for.
    sent: Vec<usize>,
}

/// The messages of a step.
struct Messages {
    all: Vec<Message>,
    /// For each slice and task, the message that it reads and the one that it sends.
    read: Vec<Vec<Option<usize>>>,
    sent: Vec<Vec<Option<usize>>>,
    /// The gradients of a tied head.
    tied: Option<usize>,
    /// How many have begun.
    met: usize,
}

impl Tasks<'_> {
    /// Runs the tasks. For each slice, when it ends and what it did.
    ///
    /// # Errors
    /// E461 for a timetable whose tasks wait for each other forever.
    pub fn run(&self, ran: &mut Vec<TaskRun>) -> Result<Vec<(f64, Spent)>> {
        let mut messages = self.messages()?;
        let mut slices: Vec<Running> = self
            .before
            .iter()
            .map(|&before| Running { now_s: before.sum(), busy: before, ..Running::default() })
            .collect();
        for slice in 0..slices.len() {
            self.gather_next(slice, &mut slices[slice], 0.0);
            self.receive(slice, 0, 0.0, &mut slices, &mut messages);
        }
        if let Some(tied) = messages.tied {
            let Message { from, to, queue, .. } = messages.all[tied];
            let end_s = slices[from].queue_s[queue].max(slices[to].queue_s[queue]) + self.tied_s[0];
            [from, to].into_iter().for_each(|slice| slices[slice].queue_s[queue] = end_s);
        }
        loop {
            // The slice that is furthest behind, and when the next one is.
            let (mut first, mut next_s) = (None, f64::INFINITY);
            for (slice, own) in slices.iter().enumerate() {
                if own.is_blocked || self.is_done(slice, own) {
                    continue;
                }
                match first {
                    Some((_, first_s)) if own.now_s >= first_s => next_s = next_s.min(own.now_s),
                    _ => {
                        next_s = first.map_or(next_s, |(_, first_s)| first_s);
                        first = Some((slice, own.now_s));
                    }
                }
            }
            let Some((slice, _)) = first else { break };
            let met = messages.met;
            // A message that begins may wake others.
            let goes_on = |own: &Running| !own.is_blocked && !self.is_done(slice, own) && own.now_s < next_s;
            self.advance(slice, &mut slices, &mut messages, ran);
            while messages.met == met && goes_on(&slices[slice]) {
                self.advance(slice, &mut slices, &mut messages, ran);
            }
        }
        if slices.iter().enumerate().any(|(slice, own)| !self.is_done(slice, own)) {
            return Err(Diagnostic::new("E510", "the simulated ranks wait for each other forever"));
        }
        Ok(slices.into_iter().map(|own| (own.now_s, own.busy)).collect())
    }

    fn is_done(&self, slice: usize, own: &Running) -> bool {
        own.task > self.timetable.slices[slice].len()
    }

    /// The messages, with the tasks that read and send them.
    fn messages(&self) -> Result<Messages> {
        let (timetable, slice_of) = (self.timetable, self.slice_of);
        let stages = timetable.stages;
        let place = |stage: usize, microbatch: usize, is_forward: bool| {
            (2 * stage + usize::from(is_forward)) * timetable.microbatches + microbatch
        };
        let slots = timetable.slots()?;
        // By the stage that reads it.
        let mut all: Vec<Option<Message>> = vec![None; 2 * stages * timetable.microbatches];
        let mut read = Vec::new();
        for (slice, tasks) in timetable.slices.iter().enumerate() {
            let of = |(at, task): (usize, &Task)| {
                let is_forward = task.kind == TaskKind::Forward;
                let from = match task.kind {
                    TaskKind::Forward => task.stage.checked_sub(1)?,
                    TaskKind::WeightGrad => return None,
                    _ => Some(task.stage + 1).filter(|&from| from < stages)?,
                };
                let seconds = self.messages_s[from.min(task.stage)][usize::from(!is_forward)];
                let from = slice_of[from];
                if from == slice {
                    return None;
                }
                let number = place(task.stage, task.microbatch, is_forward);
                let released_at = slots[from].partition_point(|&slot| slot < slots[slice][at]);
                let (starts_s, end_s) = ([None; 2], None);
                let queue = (self.queue_of)(from, slice);
                all[number] = Some(Message { from, to: slice, seconds, queue, starts_s, end_s, released_at });
                Some(number)
            };
            read.push(tasks.iter().enumerate().map(of).collect());
        }
        let sent = timetable.slices.iter().map(|tasks| {
            let of = |task: &Task| {
                let is_forward = task.kind == TaskKind::Forward;
                let to = match task.kind {
                    TaskKind::Forward => Some(task.stage + 1).filter(|&to| to < stages)?,
                    TaskKind::WeightGrad => return None,
                    _ => task.stage.checked_sub(1)?,
                };
                let number = place(to, task.microbatch, is_forward);
                all[number].map(|_| number)
            };
            tasks.iter().map(of).collect()
        });
        let sent = sent.collect();
        let none = Message {
            from: 0,
            to: 0,
            seconds: 0.0,
            queue: 0,
            starts_s: [None; 2],
            end_s: None,
            released_at: 0,
        };
        let mut all: Vec<Message> = all.into_iter().map(|message| message.unwrap_or(none)).collect();
        let [to, from] = [0, stages - 1].map(|stage| slice_of[stage]);
        let tied = (from != to && self.tied_s[1] > 0.0).then_some(all.len());
        // The sender waits for it at the end.
        let queue = (self.queue_of)(from, to);
        all.push(Message { from, to, seconds: self.tied_s[1], queue, released_at: usize::MAX, ..none });
        Ok(Messages { all, read, sent, tied, met: 0 })
    }

    fn acts(&self, slice: usize, task: usize) -> &[Act] {
        self.script_of[slice].get(task).map_or(&[], |&script| &self.scripts[script])
    }

    /// Starts the next gather of a slice.
    fn gather_next(&self, slice: usize, own: &mut Running, now_s: f64) {
        let (mut task, mut act) = own.next_gather;
        while task < self.script_of[slice].len() {
            let acts = self.acts(slice, task);
            let found = acts.iter().enumerate().skip(act).find_map(|(at, act)| match act {
                Act::Gathered(seconds) => Some((at, *seconds)),
                _ => None,
            });
            if let Some((at, seconds)) = found {
                own.queue_s[0] = own.queue_s[0].max(now_s) + seconds;
                own.gathered_s = own.queue_s[0];
                own.next_gather = (task, at + 1);
                return;
            }
            (task, act) = (task + 1, 0);
        }
        own.next_gather = (task, 0);
    }

    /// Starts to receive what a task reads.
    fn receive(
        &self,
        slice: usize,
        task: usize,
        now_s: f64,
        slices: &mut [Running],
        messages: &mut Messages,
    ) {
        if let Some(number) = messages.read[slice].get(task).copied().flatten() {
            messages.start(number, 1, now_s, slices);
        }
        let tied = messages.tied.filter(|&tied| messages.all[tied].to == slice);
        if let Some(tied) = tied.filter(|_| task + 1 >= self.timetable.slices[slice].len()) {
            messages.start(tied, 1, now_s, slices);
        }
    }

    /// Whether a task is the last one of the last stage.
    fn ends_last_stage(&self, task: Task) -> bool {
        let is_last =
            task.stage + 1 == self.timetable.stages && task.microbatch + 1 == self.timetable.microbatches;
        is_last && matches!(task.kind, TaskKind::Backward | TaskKind::WeightGrad)
    }

    /// Does what a slice does next.
    fn advance(&self, slice: usize, slices: &mut [Running], messages: &mut Messages, ran: &mut Vec<TaskRun>) {
        let tasks = &self.timetable.slices[slice];
        let own = &mut slices[slice];
        let Some(at) = own.act else {
            let (task, now_s) = (own.task, own.now_s);
            self.receive(slice, task + 1, now_s, slices, messages);
            let own = &mut slices[slice];
            let released =
                |&&number: &&usize| messages.all[number].released_at <= task || task == tasks.len();
            let read = messages.read[slice].get(task).copied().flatten();
            let awaited = own.sent.iter().filter(released).copied().chain(read);
            let Some(end_s) = awaited
                .map(|number| messages.all[number].end_s)
                .try_fold(0.0f64, |latest, end_s| Some(latest.max(end_s?)))
            else {
                own.is_blocked = true;
                return;
            };
            own.sent.retain(|number| messages.all[*number].released_at > task);
            own.now_s = own.now_s.max(end_s);
            own.begin_s = own.now_s;
            own.act = Some(0);
            let Some(task) = tasks.get(task) else {
                own.waits(own.reduced_s);
                own.task += 1;
                return;
            };
            if let Some(tied) = messages.tied.filter(|_| self.ends_last_stage(*task)) {
                own.sent.push(tied);
                let now_s = own.now_s;
                messages.start(tied, 0, now_s, slices);
            }
            return;
        };
        let Some(act) = self.acts(slice, own.task).get(at) else {
            ran.push(TaskRun { slice, task: tasks[own.task], begin_s: own.begin_s, end_s: own.now_s });
            (own.task, own.act) = (own.task + 1, None);
            return;
        };
        own.act = Some(at + 1);
        match *act {
            Act::Gathered(_) => {
                own.waits(own.gathered_s);
                self.gather_next(slice, own, own.now_s);
            }
            Act::Works(spent) => {
                own.now_s += spent.sum();
                own.busy = own.busy.plus(spent);
            }
            Act::Reduces(seconds) => {
                own.waits(own.reduced_s);
                own.queue_s[0] = own.queue_s[0].max(own.now_s) + seconds;
                own.reduced_s = own.queue_s[0];
            }
            Act::Sends => {
                if let Some(number) = messages.sent[slice][own.task] {
                    own.sent.push(number);
                    messages.start(number, 0, own.now_s, slices);
                }
            }
        }
    }
}

impl Running {
    /// Waits for what runs beside.
    fn waits(&mut self, until_s: f64) {
        self.busy.exposed += (until_s - self.now_s).max(0.0);
        self.now_s = self.now_s.max(until_s);
    }
}

impl Messages {
    /// One end starts a message; with the other one it may begin.
    fn start(&mut self, number: usize, end: usize, now_s: f64, slices: &mut [Running]) {
        let message = &mut self.all[number];
        if message.starts_s[end].is_some() {
            return;
        }
        message.starts_s[end] = Some(now_s);
        let [Some(sent_s), Some(read_s)] = message.starts_s else { return };
        let ends = [message.from, message.to];
        let begin_s =
            ends.iter().map(|&slice| slices[slice].queue_s[message.queue]).fold(sent_s.max(read_s), f64::max);
        let end_s = begin_s + message.seconds;
        message.end_s = Some(end_s);
        self.met += 1;
        for slice in ends {
            slices[slice].queue_s[message.queue] = end_s;
            slices[slice].is_blocked = false;
        }
    }
}

/// Units of which some need parameters or give gradients that others exchange beside them; all as one if none does.
pub(super) fn joined(units: Vec<Spent>) -> Vec<Spent> {
    match units.iter().any(|unit| unit.gathered > 0.0 || unit.reduced > 0.0) {
        true => units,
        false => vec![units.into_iter().fold(Spent::default(), Spent::plus)],
    }
}

/// What runs beside a unit for so many seconds in all: these, and what is left.
pub(super) fn beside(seconds: f64, known: &[f64]) -> impl Iterator<Item = f64> {
    let left = seconds - known.iter().sum::<f64>();
    known.iter().copied().chain((left > 1e-9).then_some(left))
}

/// Puts where a task sends its result among its acts from `begin` on, of which this comes behind. The place.
pub(super) fn send(acts: &mut Vec<Act>, begin: usize, behind: Spent) -> usize {
    let (mut late_s, mut reduced_s) = (behind.sum(), behind.reduced);
    let mut at = acts.len();
    while at > begin {
        match acts[at - 1] {
            Act::Works(own) if own.sum() > late_s => {
                if late_s > 0.0 {
                    let late = late_s / own.sum();
                    acts[at - 1] = Act::Works(own.times(1.0 - late));
                    acts.insert(at, Act::Works(own.times(late)));
                }
                break;
            }
            Act::Works(own) => late_s -= own.sum(),
            Act::Reduces(seconds) if reduced_s < seconds / 2.0 => break,
            Act::Reduces(seconds) => reduced_s -= seconds,
            _ => {}
        }
        at -= 1;
    }
    acts.insert(at, Act::Sends);
    at
}
