//! Recorded steps as a trace: the steps, a track for each rank and thread, collectives on tracks of their own, arrows from
//! each send to its receive, and counters of memory and tokens.

use super::{Done, Ranks, Recording};
use partita_program::{Action, CollectiveId, CollectiveOp, Event, Program};
use partita_simulate::{MemoryKind, over_time};
use partita_trace::{Counter, Flow, Span, Trace, TrackId};
use std::collections::BTreeMap;

/// A collective of one rank in flight: when it was started and when the wait for it was over, in seconds, and its track.
type Flight = (f64, f64, TrackId);

/// The recorded steps on one clock, whose zero is the begin of the first. Each host is a process of the trace, and its name
/// is followed by `what`, such as `measured`; `tokens` are those of a step, 0 if the model does not read tokens.
pub fn timeline(recording: &Recording, what: &str, tokens: usize) -> Trace {
    let mut trace = Trace::default();
    let ranks = &recording.ranks;
    let process = |place: usize| format!("{}: {what}", ranks.hosts[place]);
    let Some(first) = recording.steps.first().filter(|_| !ranks.numbers.is_empty()) else { return trace };
    let at = |ns: u64| ns.saturating_sub(first.begin_ns) as f64 / 1e9;
    let steps = trace.track(process(0), "steps");
    let mut tracks: BTreeMap<(usize, usize), TrackId> = BTreeMap::new();
    for event in recording.steps.iter().flat_map(|step| &step.events) {
        tracks.insert((event.rank, event.thread), steps);
    }
    tracks.retain(|&(rank, _), _| ranks.position(rank).is_some());
    for (&(rank, thread), track) in &mut tracks {
        let host = process(ranks.position(rank).unwrap_or_default());
        *track = trace.rank_track(host, format!("rank {rank}, thread {thread}"), rank);
    }
    let mut lanes: Vec<Vec<(TrackId, f64)>> = vec![Vec::new(); ranks.numbers.len()];
    for step in &recording.steps {
        trace.spans.push(Span {
            track: steps,
            name: format!("step {}", step.step),
            category: "step",
            begin_s: at(step.begin_ns),
            duration_s: step.seconds(),
            arguments: vec![("step", step.step.to_string())],
        });
        if tokens > 0 {
            trace.counters.push(Counter {
                track: steps,
                name: "throughput".to_string(),
                at_s: at(step.begin_ns),
                values: vec![("tokens/s", tokens as f64 / step.seconds().max(f64::MIN_POSITIVE))],
            });
        }
        for event in &step.events {
            let Some(place) = ranks.position(event.rank) else { continue };
            let track = tracks[&(event.rank, event.thread)];
            trace.spans.push(span(event, &ranks.programs[place], track, &at));
        }
        let mut flights: BTreeMap<(CollectiveId, usize), Flight> = BTreeMap::new();
        for (place, (done, program)) in step.instructions(ranks).iter().zip(&ranks.programs).enumerate() {
            let rank = ranks.numbers[place];
            let track = first_track(&tracks, rank, steps);
            memory(&mut trace, done, program, track, rank, at(step.begin_ns), &at);
            for (collective, bytes, begin_s, end_s) in in_flight(done, program, &at) {
                let about = &ranks.collectives[collective.index()];
                let track = lane(&mut trace, &mut lanes[place], process(place), rank, begin_s, end_s);
                flights.insert((collective, rank), (begin_s, end_s, track));
                trace.spans.push(Span {
                    track,
                    name: about.label.clone(),
                    category: "collective",
                    begin_s,
                    duration_s: end_s - begin_s,
                    arguments: vec![
                        ("kind", about.kind.name().to_string()),
                        ("ranks", about.members.len().to_string()),
                        ("bytes", bytes.to_string()),
                    ],
                });
            }
        }
        arrows(&mut trace, ranks, &flights);
    }
    trace
}

/// The track to which the counters of a rank belong.
fn first_track(tracks: &BTreeMap<(usize, usize), TrackId>, rank: usize, steps: TrackId) -> TrackId {
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
        Action::Move(moved) => (format!("start the {} of {}", moved.kind.name(), origin.what), "start"),
        Action::Moved(moved) => (format!("wait for the {} of {}", moved.kind.name(), origin.what), "wait"),
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

/// The collectives of a rank with the bytes that it gives, from the begin of the start to the end of the wait.
fn in_flight(
    done: &[Done],
    program: &Program,
    at: &dyn Fn(u64) -> f64,
) -> Vec<(CollectiveId, usize, f64, f64)> {
    let mut started: BTreeMap<CollectiveId, (usize, f64)> = BTreeMap::new();
    let mut flights = Vec::new();
    for done in done {
        match &program.instructions[done.instruction].action {
            Action::Start(start) => {
                started.insert(start.collective, (done.bytes, at(done.begin_ns)));
            }
            Action::Wait(collective) => {
                if let Some((bytes, begin_s)) = started.remove(collective) {
                    flights.push((*collective, bytes, begin_s, at(done.end_ns)));
                }
            }
            Action::Compute(_) | Action::Move(_) | Action::Moved(_) => {}
        }
    }
    flights.sort_by(|a, b| a.2.total_cmp(&b.2));
    flights
}

/// A track of the rank on which nothing else happens meanwhile: spans of one track never overlap.
fn lane(
    trace: &mut Trace,
    lanes: &mut Vec<(TrackId, f64)>,
    process: String,
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
        lanes.push((trace.rank_track(process, name, rank), 0.0));
        lanes.len() - 1
    });
    lanes[number].1 = end_s;
    lanes[number].0
}

/// An arrow from each rank that sends to each that receives from it.
fn arrows(trace: &mut Trace, ranks: &Ranks, flights: &BTreeMap<(CollectiveId, usize), Flight>) {
    let mut numbers: Vec<CollectiveId> = flights.keys().map(|&(collective, _)| collective).collect();
    numbers.dedup();
    for number in numbers {
        let collective = &ranks.collectives[number.index()];
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
