//! Recorded steps as a trace: the steps, a track for each rank and thread, collectives on tracks of their own, arrows from
//! each send to its receive, and counters of memory and tokens.

use super::{Done, Recording};
use partita_program::{Action, CollectiveId, CollectiveOp, Event, Program};
use partita_runtime::Runner;
use partita_simulate::{MemoryKind, over_time};
use partita_trace::{Counter, Flow, Span, Trace, TrackId};
use std::collections::BTreeMap;

/// A collective of one rank in flight: when it was started and when the wait for it was over, in seconds, and its track.
type Flight = (f64, f64, TrackId);

/// The recorded steps on one clock, whose zero is the begin of the first. `process` names this process, such as a host;
/// `tokens` are those of a step, 0 if the model does not read tokens.
pub fn timeline(recording: &Recording, runner: &Runner, process: &str, tokens: usize) -> Trace {
    let mut trace = Trace::default();
    let zero_ns = recording.steps.first().map_or(0, |step| step.begin_ns);
    let at = |ns: u64| ns.saturating_sub(zero_ns) as f64 / 1e9;
    let steps = trace.track(process, "steps");
    let mut tracks: BTreeMap<(usize, usize), TrackId> = BTreeMap::new();
    for step in &recording.steps {
        tracks.extend(step.events.iter().map(|event| ((event.rank, event.thread), TrackId(0))));
    }
    for ((rank, thread), track) in &mut tracks {
        *track = trace.track(process, format!("rank {rank}, thread {thread}"));
    }
    let mut lanes: Vec<Vec<(TrackId, f64)>> = vec![Vec::new(); runner.local_ranks().len()];
    for step in &recording.steps {
        trace.spans.push(Span {
            track: steps,
            name: format!("step {}", step.step),
            category: "step",
            begin_s: at(step.begin_ns),
            duration_s: step.seconds(),
            arguments: Vec::new(),
        });
        if tokens > 0 {
            trace.counters.push(Counter {
                track: steps,
                name: "throughput".to_string(),
                at_s: at(step.begin_ns),
                values: vec![("tokens/s", tokens as f64 / step.seconds().max(f64::MIN_POSITIVE))],
            });
        }
        let programs: BTreeMap<usize, &Program> =
            runner.local_ranks().iter().copied().zip(runner.programs()).collect();
        for event in &step.events {
            let Some(program) = programs.get(&event.rank) else { continue };
            trace.spans.push(span(event, program, tracks[&(event.rank, event.thread)], &at));
        }
        let mut flights: BTreeMap<(CollectiveId, usize), Flight> = BTreeMap::new();
        for (place, (done, program)) in step.instructions(runner).iter().zip(runner.programs()).enumerate() {
            let rank = runner.local_ranks()[place];
            memory(
                &mut trace,
                done,
                program,
                steps_track(&tracks, rank, steps),
                rank,
                at(step.begin_ns),
                &at,
            );
            for (collective, begin_s, end_s) in in_flight(done, program, &at) {
                let label = &runner.program_set().collectives[collective.index()];
                let track = lane(&mut trace, &mut lanes[place], process, rank, begin_s, end_s);
                flights.insert((collective, rank), (begin_s, end_s, track));
                trace.spans.push(Span {
                    track,
                    name: label.label.clone(),
                    category: "collective",
                    begin_s,
                    duration_s: end_s - begin_s,
                    arguments: vec![("ranks", label.members.len().to_string())],
                });
            }
        }
        arrows(&mut trace, runner, &flights);
    }
    trace
}

/// The track to which the counters of a rank belong.
fn steps_track(tracks: &BTreeMap<(usize, usize), TrackId>, rank: usize, steps: TrackId) -> TrackId {
    tracks.range((rank, 0)..=(rank, usize::MAX)).next().map_or(steps, |(_, &track)| track)
}

/// An event of a thread.
fn span(event: &Event, program: &Program, track: TrackId, at: &dyn Fn(u64) -> f64) -> Span {
    let instruction = &program.instructions[event.instruction];
    let origin = &instruction.origin;
    let (name, category) = match instruction.action {
        Action::Compute(_) => (origin.what.clone(), "compute"),
        Action::Start(_) => (format!("start {}", origin.what), "start"),
        Action::Wait(_) => (format!("wait for {}", origin.what), "wait"),
    };
    let mut arguments = vec![("path", origin.path.clone()), ("phase", origin.phase.name().to_string())];
    arguments.push(("bytes", event.bytes.to_string()));
    arguments.extend(origin.microbatch.map(|number| ("microbatch", number.to_string())));
    Span {
        track,
        name,
        category,
        begin_s: at(event.begin_ns),
        duration_s: event.nanos() as f64 / 1e9,
        arguments,
    }
}

/// Bytes in use of a rank, by kind.
fn memory(
    trace: &mut Trace,
    done: &[Done],
    program: &Program,
    track: TrackId,
    rank: usize,
    begin_s: f64,
    at: &dyn Fn(u64) -> f64,
) {
    let event = |done: &Done| Event {
        rank,
        thread: 0,
        instruction: done.instruction,
        begin_ns: (at(done.begin_ns) * 1e9) as u64,
        end_ns: (at(done.end_ns) * 1e9) as u64,
        bytes: done.bytes,
    };
    let events: Vec<Event> = done.iter().map(event).collect();
    for (at_s, bytes) in over_time(program, &events, begin_s).over_time {
        let values = MemoryKind::ALL.iter().zip(bytes).map(|(kind, bytes)| (kind.name(), bytes as f64));
        let values = values.collect();
        trace.counters.push(Counter { track, name: format!("memory of rank {rank}"), at_s, values });
    }
}

/// The collectives of a rank, from the begin of the start to the end of the wait.
fn in_flight(done: &[Done], program: &Program, at: &dyn Fn(u64) -> f64) -> Vec<(CollectiveId, f64, f64)> {
    let mut started: BTreeMap<CollectiveId, f64> = BTreeMap::new();
    let mut flights = Vec::new();
    for done in done {
        match &program.instructions[done.instruction].action {
            Action::Start(start) => {
                started.insert(start.collective, at(done.begin_ns));
            }
            Action::Wait(collective) => {
                if let Some(begin_s) = started.remove(collective) {
                    flights.push((*collective, begin_s, at(done.end_ns)));
                }
            }
            Action::Compute(_) => {}
        }
    }
    flights.sort_by(|a, b| a.1.total_cmp(&b.1));
    flights
}

/// A track of the rank on which nothing else happens meanwhile: spans of one track never overlap.
fn lane(
    trace: &mut Trace,
    lanes: &mut Vec<(TrackId, f64)>,
    process: &str,
    rank: usize,
    begin_s: f64,
    end_s: f64,
) -> TrackId {
    let free = lanes.iter().position(|&(_, until_s)| until_s <= begin_s);
    let number = free.unwrap_or_else(|| {
        let name = match lanes.len() {
            0 => format!("rank {rank}: collectives"),
            more => format!("rank {rank}: collectives {}", more + 1),
        };
        lanes.push((trace.track(process, name), 0.0));
        lanes.len() - 1
    });
    lanes[number].1 = end_s;
    lanes[number].0
}

/// An arrow from each rank that sends to each that receives from it.
fn arrows(trace: &mut Trace, runner: &Runner, flights: &BTreeMap<(CollectiveId, usize), Flight>) {
    let mut numbers: Vec<CollectiveId> = flights.keys().map(|&(collective, _)| collective).collect();
    numbers.dedup();
    for number in numbers {
        let collective = &runner.program_set().collectives[number.index()];
        let boxes = collective.transfers.iter().filter_map(|transfer| match &transfer.exchange {
            CollectiveOp::Send { boxes } => Some(boxes.iter()),
            _ => None,
        });
        let mut pairs: Vec<(usize, usize)> = boxes
            .flatten()
            .map(|moved| (collective.members[moved.source], collective.members[moved.target]))
            .filter(|(source, target)| source != target)
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        for (source, target) in pairs {
            let ends = (flights.get(&(number, source)), flights.get(&(number, target)));
            if let (Some(&(begin_s, _, from)), Some(&(_, end_s, to))) = ends {
                trace.flows.push(Flow {
                    name: collective.label.clone(),
                    from: (from, begin_s),
                    to: (to, end_s),
                });
            }
        }
    }
}
