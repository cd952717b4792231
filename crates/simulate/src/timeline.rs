//! A simulated step as a trace: one track of compute and one of collectives for each class, and one for each direction of
//! its link to host memory if it moves anything.

use crate::clock::Simulation;
use crate::memory::MemoryKind;
use partita_program::{Action, Collective, CollectiveOp, MoveKind, ProgramSet};
use partita_trace::{Counter, Flow, Span, Trace, TrackId};
use std::collections::BTreeSet;

impl Simulation {
    /// The timeline of the step; `set` holds the programs that were simulated. An arrow leads from
    /// each send to its receive.
    pub fn trace(&self, set: &ProgramSet) -> Trace {
        let mut trace = Trace::default();
        let mut tracks: Vec<(TrackId, TrackId)> = Vec::new();
        // Of the link to host memory: both directions at a time.
        let mut of_host: Vec<[Option<TrackId>; 2]> = Vec::new();
        let class_of = self.class_of_ranks();
        for class in &self.classes {
            let ranks = match class.ranks[..] {
                [rank] => format!("rank {rank}"),
                [first, .., last] => format!("ranks {first} to {last}, {} alike", class.ranks.len()),
                [] => continue,
            };
            let compute = trace.track("predicted", ranks.clone());
            let collectives = trace.track("predicted", format!("{ranks}: collectives"));
            let mut host = |kind: MoveKind| {
                let moves = class.moved.iter().any(|moved| moved.moved.kind == kind);
                moves.then(|| trace.track("predicted", format!("{ranks}: {}s", kind.name())))
            };
            of_host.push([host(MoveKind::Load), host(MoveKind::Store)]);
            tracks.push((compute, collectives));
        }
        for (run, &(compute, _)) in self.classes.iter().zip(&tracks) {
            let program = &set.programs[run.program];
            for event in &run.events {
                let instruction = &program.instructions[event.instruction];
                let origin = &instruction.origin;
                let category = match instruction.action {
                    Action::Compute(_) => "compute",
                    _ => "wait",
                };
                let mut arguments =
                    vec![("path", origin.path.clone()), ("phase", origin.phase.name().to_string())];
                arguments.extend(origin.microbatch.map(|number| ("microbatch", number.to_string())));
                let what = if category == "wait" {
                    format!("wait for {}", origin.what)
                } else {
                    origin.what.clone()
                };
                trace.spans.push(Span {
                    track: compute,
                    name: what,
                    category,
                    begin_s: event.begin_ns as f64 / 1e9,
                    duration_s: event.nanos() as f64 / 1e9,
                    arguments,
                });
            }
            for (at_s, bytes) in &run.memory.over_time {
                let values = MemoryKind::ALL.iter().zip(bytes);
                let values = values.map(|(kind, &bytes)| (kind.name(), bytes as f64)).collect();
                trace.counters.push(Counter {
                    track: compute,
                    name: "memory".to_string(),
                    at_s: *at_s,
                    values,
                });
            }
        }
        for (run, host) in self.classes.iter().zip(&of_host) {
            let program = &set.programs[run.program];
            for moved in &run.moved {
                let buffer = program.buffer(moved.moved.buffer);
                let kind = moved.moved.kind;
                let Some(track) = host[kind as usize] else { continue };
                trace.spans.push(Span {
                    track,
                    name: format!("{} {}", kind.name(), buffer.what),
                    category: "host",
                    begin_s: moved.begin_s,
                    duration_s: moved.end_s - moved.begin_s,
                    arguments: vec![("bytes", buffer.bytes.to_string())],
                });
            }
        }
        for exchanged in &self.exchanged {
            let collective = &set.collectives[exchanged.collective.index()];
            for &(class, _) in &exchanged.starts {
                trace.spans.push(Span {
                    track: tracks[class].1,
                    name: collective.label.clone(),
                    category: "collective",
                    begin_s: exchanged.begin_s,
                    duration_s: exchanged.end_s - exchanged.begin_s,
                    arguments: vec![("ranks", collective.members.len().to_string())],
                });
            }
            for (from, to) in sends(collective, &class_of) {
                trace.flows.push(Flow {
                    name: collective.label.clone(),
                    from: (tracks[from].1, exchanged.begin_s),
                    to: (tracks[to].1, exchanged.end_s),
                });
            }
        }
        trace
    }
}

/// The classes between which a collective sends boxes.
fn sends(collective: &Collective, class_of: &[usize]) -> BTreeSet<(usize, usize)> {
    let boxes = collective.transfers.iter().filter_map(|transfer| match &transfer.exchange {
        CollectiveOp::Send { boxes } => Some(boxes.iter()),
        _ => None,
    });
    let class = |member: usize| class_of[collective.members[member]];
    boxes.flatten().map(|moved| (class(moved.source), class(moved.target))).collect()
}
