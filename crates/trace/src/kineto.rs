//! The work of one rank in the words of PyTorch's profiler (Kineto), for tools that know these words alone:
//! HolisticTraceAnalysis and the profiler plugin of TensorBoard, torch-tb-profiler.
//!
//! They read one file for each rank, and find what they count by category and name: steps are annotations `ProfilerStep#n`;
//! work of a device is a `kernel` on a numbered stream, which the call of the host with the same `correlation` launched;
//! communication is a kernel whose name begins with `nccl`, with an annotation `nccl:KIND` of the same `External id`. A step
//! here is launched by one call, `partita::step`, so all its kernels have its correlation.

use crate::{Events, Span, Trace, microseconds};
use serde_json::{Value, json};
use std::io::{self, Write};

/// Kinds of collectives for which the plugin of TensorBoard has a name.
const NAMED: &[&str] = &["all_reduce", "all_gather", "reduce_scatter"];

/// Ids of steps begin here: HolisticTraceAnalysis keeps positions of events in the smallest type that holds these ids.
const FIRST_STEP: usize = 1 << 24;
/// Ids of collectives begin here.
const FIRST_COLLECTIVE: usize = 1 << 32;

impl Trace {
    /// Writes what `rank` of so many `ranks` did: the spans of its tracks, and those of category `step`. Spans of category
    /// `compute` and `collective` are kernels; a stream is a track. Others, such as waits, are calls of the host.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn kineto(&self, rank: usize, ranks: usize, out: &mut dyn Write) -> io::Result<()> {
        // HolisticTraceAnalysis looks for the rank with a pattern that needs the space behind the colon.
        let head = format!(
            "{{\"schemaVersion\": 1, \"deviceProperties\": [], \
             \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {rank}, \"world_size\": {ranks}}},\n\
             \"displayTimeUnit\": \"ms\", "
        );
        let mut events = Events::begin(out, &head)?;
        let steps: Vec<&Span> = self.spans.iter().filter(|span| span.category == "step").collect();
        for (number, step) in steps.iter().enumerate() {
            let id = FIRST_STEP + number;
            let name = argument(step, "step").map_or_else(|| (number + 1).to_string(), str::to_string);
            let annotation = format!("ProfilerStep#{name}");
            events.write(event(step, rank, 0, "user_annotation", &annotation, json!({})))?;
            let args = json!({"External id": id, "correlation": id});
            events.write(event(step, rank, 0, "cpu_op", "partita::step", args))?;
        }
        // The step in which a span begins.
        let step_of = |span: &Span| {
            let begun = steps.iter().rposition(|step| step.begin_s <= span.begin_s);
            FIRST_STEP + begun.unwrap_or(0)
        };
        for (number, span) in self.spans.iter().enumerate() {
            if self.tracks[span.track.0].rank != Some(rank) || span.category == "step" {
                continue;
            }
            let (stream, step) = (span.track.0 + 1, step_of(span));
            let launched = |id: usize| {
                let mut args = arguments(span);
                args["stream"] = json!(stream);
                args["device"] = json!(rank);
                args["correlation"] = json!(step);
                args["External id"] = json!(id);
                args
            };
            match span.category {
                "compute" => events.write(event(span, rank, stream, "kernel", &span.name, launched(step)))?,
                "collective" => {
                    let id = FIRST_COLLECTIVE + number;
                    let kind = argument(span, "kind").unwrap_or("collective");
                    if NAMED.contains(&kind) {
                        let bytes: u64 = argument(span, "bytes").and_then(|n| n.parse().ok()).unwrap_or(0);
                        let dims = [[bytes]];
                        let args = json!({"External id": id, "Input Dims": dims, "Input type": ["byte"]});
                        let name = format!("nccl:{kind}");
                        events.write(event(span, rank, stream, "user_annotation", &name, args))?;
                    }
                    let name = format!("ncclKernel_{kind} {}", span.name);
                    events.write(event(span, rank, stream, "kernel", &name, launched(id)))?;
                }
                _ => events.write(event(span, rank, stream, "cpu_op", &span.name, arguments(span)))?,
            }
        }
        events.end()
    }
}

/// An argument of a span by its name.
fn argument<'a>(span: &'a Span, name: &str) -> Option<&'a str> {
    span.arguments.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

fn arguments(span: &Span) -> Value {
    span.arguments.iter().map(|(name, value)| (name.to_string(), json!(value))).collect()
}

fn event(span: &Span, pid: usize, tid: usize, category: &str, name: &str, args: Value) -> Value {
    json!({
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
        "ts": microseconds(span.begin_s), "dur": microseconds(span.duration_s), "args": args,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_rank_and_every_kernel_has_the_call_that_launched_it() {
        let mut trace = Trace::default();
        let steps = trace.track("host", "steps");
        let (one, other) = (trace.rank_track("host", "rank 0", 0), trace.rank_track("host", "rank 1", 1));
        let span = |track, category, name: &str, begin_s: f64, arguments| Span {
            track,
            name: name.to_string(),
            category,
            begin_s,
            duration_s: 1e-6,
            arguments,
        };
        for begin_s in [0.0, 1.0] {
            let number = if begin_s == 0.0 { "7" } else { "8" };
            trace.spans.push(span(steps, "step", "step", begin_s, vec![("step", number.to_string())]));
            trace.spans.push(span(one, "compute", "add", begin_s + 0.1, Vec::new()));
            trace.spans.push(span(one, "wait", "wait for all_reduce", begin_s + 0.2, Vec::new()));
            let kind = vec![("kind", "all_reduce".to_string()), ("bytes", "64".to_string())];
            trace.spans.push(span(one, "collective", "layers.0", begin_s + 0.1, kind));
            trace.spans.push(span(other, "compute", "multiply", begin_s + 0.1, Vec::new()));
        }
        let mut text = Vec::new();
        trace.kineto(0, 2, &mut text).unwrap();
        assert!(String::from_utf8_lossy(&text).contains("\"rank\": 0"));
        let read: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(read["distributedInfo"]["world_size"], 2);
        let events = read["traceEvents"].as_array().unwrap();
        let of = |category: &str| -> Vec<&Value> {
            events.iter().filter(|event| event["cat"] == category).collect()
        };
        let names = |events: &[&Value]| -> Vec<String> {
            events.iter().map(|event| event["name"].as_str().unwrap().to_string()).collect()
        };
        let annotations = names(&of("user_annotation"));
        assert_eq!(annotations, ["ProfilerStep#7", "ProfilerStep#8", "nccl:all_reduce", "nccl:all_reduce"]);
        let kernels = of("kernel");
        let expected = ["add", "ncclKernel_all_reduce layers.0", "add", "ncclKernel_all_reduce layers.0"];
        assert_eq!(names(&kernels), expected);
        let calls: Vec<&Value> = of("cpu_op").into_iter().filter(|e| e["name"] == "partita::step").collect();
        for kernel in &kernels {
            let by = |call: &&&Value| call["args"]["correlation"] == kernel["args"]["correlation"];
            let call = calls.iter().find(by).expect("a call has the kernel's correlation");
            assert!(call["ts"].as_f64() <= kernel["ts"].as_f64(), "{call} {kernel}");
        }
        let ids = |events: &[&Value]| -> Vec<Value> {
            events.iter().map(|event| event["args"]["External id"].clone()).collect()
        };
        assert_eq!(ids(&of("user_annotation")[2..]), ids(&[kernels[1], kernels[3]]));
    }
}
