//! Events and figures of a run as data, measured or predicted, and the files that others' tools read.
//!
//! Knows: tracks, spans, flows and counters with times in seconds. Must not know what a program, a
//! collective or a device is.
//!
//! [`Trace::chrome`] writes the JSON object format of the Trace Event Format (Google, "Trace Event
//! Format", section "JSON Object Format"), which Perfetto and `chrome://tracing` read. [`Trace::kineto`] writes the work of
//! one rank in the words of PyTorch's profiler. [`EventFile`] writes figures over steps for TensorBoard.
#![forbid(unsafe_code)]

mod event_file;
mod kineto;

pub use event_file::EventFile;

use serde_json::{Value, json};
use std::io::{self, Write};

/// Names a [`Track`] of a trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TrackId(pub usize);

/// A row of a timeline: one thread of one process.
#[derive(Clone, PartialEq, Debug)]
pub struct Track {
    /// The process, such as a host. Tracks of one process are shown together.
    pub process: String,
    /// The name within the process, such as `rank 3`.
    pub name: String,
    /// The rank whose work it shows, if it is the work of one.
    pub rank: Option<usize>,
}

/// An uninterrupted piece of work on a track.
#[derive(Clone, PartialEq, Debug)]
pub struct Span {
    /// Where it is shown.
    pub track: TrackId,
    /// What it does, such as `dot_general`.
    pub name: String,
    /// The kind of work, such as `compute`.
    pub category: &'static str,
    /// Begin in seconds on the clock of the trace.
    pub begin_s: f64,
    /// Duration in seconds.
    pub duration_s: f64,
    /// Further facts, by name.
    pub arguments: Vec<(&'static str, String)>,
}

/// An arrow between two spans, such as from a send to its receive.
#[derive(Clone, PartialEq, Debug)]
pub struct Flow {
    /// What moves.
    pub name: String,
    /// The track and the time in seconds, inside a span, where the arrow begins.
    pub from: (TrackId, f64),
    /// Where it ends.
    pub to: (TrackId, f64),
}

/// The values of a group of quantities from a time on, such as bytes of memory by kind.
#[derive(Clone, PartialEq, Debug)]
pub struct Counter {
    /// The track whose process it belongs to.
    pub track: TrackId,
    /// The group, such as `memory`.
    pub name: String,
    /// The time in seconds.
    pub at_s: f64,
    /// The values by name.
    pub values: Vec<(&'static str, f64)>,
}

/// A run on one clock.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trace {
    /// The rows, in the order in which they are shown.
    pub tracks: Vec<Track>,
    /// The work, in any order.
    pub spans: Vec<Span>,
    /// The arrows.
    pub flows: Vec<Flow>,
    /// The counters.
    pub counters: Vec<Counter>,
}

impl Trace {
    /// Adds a track.
    pub fn track(&mut self, process: impl Into<String>, name: impl Into<String>) -> TrackId {
        self.tracks.push(Track { process: process.into(), name: name.into(), rank: None });
        TrackId(self.tracks.len() - 1)
    }

    /// Adds a track with work of one rank.
    pub fn rank_track(
        &mut self,
        process: impl Into<String>,
        name: impl Into<String>,
        rank: usize,
    ) -> TrackId {
        let track = self.track(process, name);
        self.tracks[track.0].rank = Some(rank);
        track
    }

    /// Adds the tracks of another trace behind those of this one, on the same clock.
    pub fn append(&mut self, other: Trace) {
        let behind = self.tracks.len();
        let moved = |track: TrackId| TrackId(track.0 + behind);
        self.tracks.extend(other.tracks);
        self.spans.extend(other.spans.into_iter().map(|span| Span { track: moved(span.track), ..span }));
        self.flows.extend(other.flows.into_iter().map(|flow| Flow {
            from: (moved(flow.from.0), flow.from.1),
            to: (moved(flow.to.0), flow.to.1),
            ..flow
        }));
        let counters = other.counters.into_iter();
        self.counters.extend(counters.map(|counter| Counter { track: moved(counter.track), ..counter }));
    }

    /// Writes the trace as Chrome's JSON: one process per process name, one thread per track, times
    /// in microseconds with three decimals.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn chrome(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut processes: Vec<&str> = Vec::new();
        let mut process_of = Vec::with_capacity(self.tracks.len());
        for track in &self.tracks {
            let found = processes.iter().position(|&name| name == track.process);
            process_of.push(found.unwrap_or_else(|| {
                processes.push(&track.process);
                processes.len() - 1
            }));
        }
        let mut events = Events::begin(out, "{\"displayTimeUnit\":\"ms\",")?;
        for (pid, name) in processes.iter().enumerate() {
            events.write(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}))?;
        }
        let place = |track: TrackId| (process_of[track.0], track.0);
        for (tid, track) in self.tracks.iter().enumerate() {
            let (pid, args) = (process_of[tid], json!({"name": track.name}));
            events.write(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}))?;
            let args = json!({"sort_index": tid});
            events.write(
                json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": args}),
            )?;
        }
        for span in &self.spans {
            let (pid, tid) = place(span.track);
            let args: serde_json::Map<String, Value> =
                span.arguments.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
            events.write(json!({
                "ph": "X", "name": span.name, "cat": span.category, "pid": pid, "tid": tid,
                "ts": microseconds(span.begin_s), "dur": microseconds(span.duration_s), "args": args,
            }))?;
        }
        for (id, flow) in self.flows.iter().enumerate() {
            for (phase, (track, at_s)) in [("s", flow.from), ("f", flow.to)] {
                let (pid, tid) = place(track);
                let mut event = json!({
                    "ph": phase, "id": id, "name": flow.name, "cat": "flow", "pid": pid, "tid": tid,
                    "ts": microseconds(at_s),
                });
                if phase == "f" {
                    // The arrow ends at the span that encloses this time, not at the next one.
                    event["bp"] = json!("e");
                }
                events.write(event)?;
            }
        }
        for counter in &self.counters {
            let (pid, tid) = place(counter.track);
            let args: serde_json::Map<String, Value> =
                counter.values.iter().map(|&(name, value)| (name.to_string(), json!(value))).collect();
            let name = format!("{} ({})", counter.name, self.tracks[tid].name);
            events.write(json!({
                "ph": "C", "name": name, "pid": pid, "tid": tid, "ts": microseconds(counter.at_s), "args": args,
            }))?;
        }
        events.end()
    }
}

/// Seconds as microseconds, to the nanosecond.
fn microseconds(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}

/// Writes the elements of the list of events, one per line.
struct Events<'a> {
    out: &'a mut dyn Write,
    is_first: bool,
}

impl<'a> Events<'a> {
    /// Behind the other members of the object, which `head` opens.
    fn begin(out: &'a mut dyn Write, head: &str) -> io::Result<Events<'a>> {
        out.write_all(head.as_bytes())?;
        out.write_all(b"\"traceEvents\":[")?;
        Ok(Events { out, is_first: true })
    }

    fn end(self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")
    }

    fn write(&mut self, event: Value) -> io::Result<()> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        serde_json::to_writer(&mut *self.out, &event).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chrome_json_has_a_thread_per_track_and_both_ends_of_an_arrow() {
        let mut trace = Trace::default();
        let (a, b) = (trace.track("host", "rank 0"), trace.track("host", "rank \"1\""));
        let span = |track, begin_s| Span {
            track,
            name: "add".to_string(),
            category: "compute",
            begin_s,
            duration_s: 2.5e-6,
            arguments: vec![("path", "layers.0".to_string())],
        };
        trace.spans = vec![span(a, 1e-6), span(b, 1.0000000004)];
        trace.flows.push(Flow { name: "h".to_string(), from: (a, 2e-6), to: (b, 1.0) });
        trace.counters.push(Counter {
            track: b,
            name: "memory".to_string(),
            at_s: 0.0,
            values: vec![("parameters", 8.0)],
        });
        let mut text = Vec::new();
        trace.chrome(&mut text).unwrap();
        let read: Value = serde_json::from_slice(&text).unwrap();
        let events = read["traceEvents"].as_array().unwrap();
        let of = |phase: &str| events.iter().filter(|e| e["ph"] == phase).cloned().collect::<Vec<_>>();
        assert_eq!(of("M").len(), 1 + 2 * 2);
        let spans = of("X");
        assert_eq!((spans[0]["ts"].as_f64(), spans[0]["dur"].as_f64()), (Some(1.0), Some(2.5)));
        assert_eq!((spans[1]["tid"].as_u64(), spans[1]["ts"].as_f64()), (Some(1), Some(1000000.0)));
        assert_eq!(spans[1]["args"]["path"], "layers.0");
        assert_eq!(of("s")[0]["id"], of("f")[0]["id"]);
        assert_eq!(of("C")[0]["args"]["parameters"].as_f64(), Some(8.0));
        assert!(events.iter().any(|e| e["args"]["name"] == "rank \"1\""));
    }
}
