//! Where the time of a run goes: recorded steps, and what can be said of them.
//!
//! A [`Profiler`] turns the runtime's recorder of events on for some steps of a run. Which ones, a [`Cycle`] says, in the
//! words of `torch.profiler.schedule`: wait, warm up, record, repeat. What was recorded is a [`Recording`]; [`rows()`] sums
//! it by op, module, phase, stage, collective, rank or wait, [`waits`] says which rank waited for which, and [`timeline`]
//! draws it. In a run of several processes the first one gets the events of all. The recorder costs two readings of the
//! clock per event while it is on, and a comparison while it is off.

mod ranks;
mod rows;
mod timeline;
mod waits;

pub use ranks::{Ranks, host};
pub use rows::{By, Row, Sort, Totals, label, rows};
pub use timeline::timeline;
pub use waits::{Waits, waits};

use partita_base::{Diagnostic, Result};
use partita_program::{Action, CollectiveId, Event, Program};
use partita_runtime::Runner;

use crate::planned_step::PlannedStep;
use crate::session::Session;

/// Which steps of a run are recorded: `wait` steps without, `warm_up` steps whose events are dropped, `active` steps that
/// are kept, and again from the beginning, `repeat` times in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// Steps without the recorder.
    pub wait: u64,
    /// Steps with the recorder whose events are dropped.
    pub warm_up: u64,
    /// Steps that are kept.
    pub active: u64,
    /// How often all that happens; 0 is as long as the run lasts.
    pub repeat: u64,
}

impl Default for Cycle {
    fn default() -> Cycle {
        Cycle { wait: 1, warm_up: 1, active: 3, repeat: 1 }
    }
}

/// What happens in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Off,
    WarmUp,
    Active,
}

impl Cycle {
    /// Reads `wait=1,warmup=1,active=3,repeat=1`; what is left out keeps its default.
    ///
    /// # Errors
    /// E530 for another key, a key that is there twice, a number that is none, or a cycle that records no step.
    pub fn parse(text: &str) -> Result<Cycle> {
        let refused = |found: &str| {
            Diagnostic::new("E530", format!("`{text}` does not say which steps to profile"))
                .expected(
                    "wait=1,warmup=1,active=3,repeat=1: counts of steps, of which at least one is active",
                )
                .found(format!("`{found}`"))
        };
        let mut cycle = Cycle::default();
        let mut known: Vec<&str> = Vec::new();
        let items = if text.is_empty() { Vec::new() } else { text.split(',').map(str::trim).collect() };
        for item in items {
            let (key, count) = item.split_once('=').ok_or_else(|| refused(item))?;
            let (key, count) = (key.trim(), count.trim().parse().map_err(|_| refused(item))?);
            if known.contains(&key) {
                return Err(refused(item).note(format!("`{key}` is there twice")));
            }
            known.push(key);
            let place = match key {
                "wait" => &mut cycle.wait,
                "warmup" => &mut cycle.warm_up,
                "active" => &mut cycle.active,
                "repeat" => &mut cycle.repeat,
                _ => return Err(refused(item)),
            };
            *place = count;
        }
        match cycle.active {
            0 => Err(refused("active=0")),
            _ => Ok(cycle),
        }
    }

    /// The number of steps after which nothing more is recorded; `None` if it repeats for ever.
    pub fn steps(&self) -> Option<u64> {
        let once = self.wait.saturating_add(self.warm_up).saturating_add(self.active);
        (self.repeat > 0).then(|| once.saturating_mul(self.repeat))
    }

    /// What happens in a step, counted from 0.
    fn part(&self, step: u64) -> Part {
        if self.steps().is_some_and(|steps| step >= steps) {
            return Part::Off;
        }
        let once = self.wait.saturating_add(self.warm_up).saturating_add(self.active);
        match step % once {
            place if place < self.wait => Part::Off,
            place if place < self.wait.saturating_add(self.warm_up) => Part::WarmUp,
            _ => Part::Active,
        }
    }
}

/// What ranks did in one step.
#[derive(Clone, PartialEq, Debug)]
pub struct RecordedStep {
    /// Steps done with this one, from 1.
    pub step: u64,
    /// Begin of the step in nanoseconds on the clock of its events.
    pub begin_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// What each thread did: see [`Runner::events`].
    pub events: Vec<Event>,
}

impl RecordedStep {
    /// Duration in seconds.
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.begin_ns) as f64 / 1e9
    }
}

/// The recorded steps of a run, in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recording {
    /// Whose they are.
    pub ranks: Ranks,
    /// The steps.
    pub steps: Vec<RecordedStep>,
}

/// An instruction in one step: the events of its threads and polls together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Done {
    /// The position of its rank among those of the recording.
    pub rank: usize,
    /// The position in the rank's program.
    pub instruction: usize,
    /// When its first event begins, in nanoseconds.
    pub begin_ns: u64,
    /// When its last event ends.
    pub end_ns: u64,
    /// The sum over its events, on all threads.
    pub thread_ns: u64,
    /// Bytes that it reads and writes.
    pub bytes: usize,
}

impl RecordedStep {
    /// The instructions of these ranks: for each rank in the order of its program.
    pub fn instructions(&self, ranks: &Ranks) -> Vec<Vec<Done>> {
        let mut done: Vec<Vec<Option<Done>>> =
            ranks.programs.iter().map(|program| vec![None; program.instructions.len()]).collect();
        for event in &self.events {
            let Some(rank) = ranks.position(event.rank) else { continue };
            let Some(place) = done[rank].get_mut(event.instruction) else { continue };
            let first = Done {
                rank,
                instruction: event.instruction,
                begin_ns: event.begin_ns,
                end_ns: event.end_ns,
                thread_ns: 0,
                bytes: event.bytes,
            };
            let known = place.get_or_insert(first);
            known.begin_ns = known.begin_ns.min(event.begin_ns);
            known.end_ns = known.end_ns.max(event.end_ns);
            known.thread_ns += event.nanos();
        }
        done.into_iter().map(|rank| rank.into_iter().flatten().collect()).collect()
    }
}

/// Records steps of a run as a cycle says.
#[derive(Clone, Debug)]
pub struct Profiler {
    cycle: Cycle,
    /// Steps seen so far.
    seen: u64,
    is_on: bool,
    begin_ns: u64,
    steps: Vec<RecordedStep>,
}

impl Profiler {
    /// Before the first step of a run.
    pub fn new(cycle: Cycle) -> Profiler {
        Profiler { cycle, seen: 0, is_on: false, begin_ns: 0, steps: Vec::new() }
    }

    /// A step is about to begin.
    pub fn before(&mut self, runner: &mut Runner) {
        let is_on = self.cycle.part(self.seen) != Part::Off;
        if is_on != self.is_on {
            runner.record(is_on);
            self.is_on = is_on;
        }
        self.begin_ns = runner.now_ns();
    }

    /// The step is done; `step` counts those of the run, this one included.
    pub fn after(&mut self, step: u64, runner: &mut Runner) {
        if self.cycle.part(self.seen) == Part::Active {
            let (begin_ns, end_ns) = (self.begin_ns, runner.now_ns());
            let events = runner.events().to_vec();
            self.steps.push(RecordedStep { step, begin_ns, end_ns, events });
        }
        self.seen += 1;
        if self.is_on && self.cycle.part(self.seen) == Part::Off {
            runner.record(false);
            self.is_on = false;
        }
    }

    /// What was recorded, of all ranks in the process of rank 0, and in other processes of their own. All processes call it.
    ///
    /// # Errors
    /// E447 if another process has ended.
    pub fn into_recording(self, runner: &Runner) -> Result<Recording> {
        let (ranks, steps) = ranks::gather(self.steps, runner)?;
        Ok(Recording { ranks, steps })
    }
}

/// A profiled run: the step with its programs, and what they did.
pub struct Profiled {
    /// The step.
    pub step: PlannedStep,
    /// What was recorded.
    pub recording: Recording,
    /// Tokens of a step; rows where there are no tokens.
    pub tokens: usize,
}

/// Runs as many steps of a session as the cycle needs, from initial parameters, and saves nothing. `watch` is called after
/// each step with the number of steps done and that of all.
///
/// # Errors
/// E530 for a cycle without an end; what building, lowering and running refuse.
pub fn profile(session: &Session, cycle: Cycle, watch: &mut dyn FnMut(u64, u64)) -> Result<Profiled> {
    let steps = cycle.steps().ok_or_else(|| {
        Diagnostic::new("E530", "the profile would never end")
            .expected("repeat=1 or more")
            .found("repeat=0, which is as long as the run lasts")
            .help("profile a run that ends with `partita train --profile`")
    })?;
    session.check_runs_here()?;
    let model = session.model()?;
    let feed = session.feed(&model)?;
    let mut step = session.prepare(&session.build_model(&model)?)?;
    step.initialize(&model, session.config().train.seed)?;
    let mut profiler = Profiler::new(cycle);
    for number in 0..steps {
        let batch = feed.batch(number)?;
        profiler.before(step.train_loop.runner_mut());
        step.step(&batch, session.config().schedule.at(number + 1))?;
        profiler.after(number + 1, step.train_loop.runner_mut());
        watch(number + 1, steps);
    }
    let recording = profiler.into_recording(step.train_loop.runner())?;
    Ok(Profiled { step, recording, tokens: feed.tokens_per_batch() })
}

/// The collective that an instruction starts or waits for.
fn collective_of(program: &Program, instruction: usize) -> Option<CollectiveId> {
    match &program.instructions[instruction].action {
        Action::Start(start) => Some(start.collective),
        Action::Wait(collective) => Some(*collective),
        Action::Compute(_) | Action::Move(_) | Action::Moved(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_waits_warms_up_records_and_repeats() {
        let cycle = Cycle::parse("wait=2, active=2,repeat=2").unwrap();
        assert_eq!(cycle, Cycle { wait: 2, warm_up: 1, active: 2, repeat: 2 });
        let parts: Vec<Part> = (0..11).map(|step| cycle.part(step)).collect();
        use Part::{Active, Off, WarmUp};
        let once = [Off, Off, WarmUp, Active, Active];
        assert_eq!(parts, [&once[..], &once[..], &[Off]].concat());
        assert_eq!(cycle.steps(), Some(10));
        assert_eq!(Cycle { repeat: 0, ..cycle }.steps(), None);
        assert_eq!(Cycle { repeat: 0, ..cycle }.part(1_000_003), Active);
    }

    #[test]
    fn what_is_no_cycle_is_refused() {
        for text in [
            "active=0",
            "wait",
            "wait=-1",
            "warm=1",
            "active=x",
            "active=2,active=5",
            "wait=1,,active=1",
            ",",
        ] {
            assert_eq!(Cycle::parse(text).unwrap_err().code, "E530", "{text}");
        }
    }
}
