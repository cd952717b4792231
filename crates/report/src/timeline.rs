//! Work over time in a compact form: names once, spans as rows of numbers.

use partita_trace::Trace;
use serde::Serialize;
use std::collections::BTreeMap;

/// Work over time. A span is `[track, begin, duration, name, category, path]`: the times in microseconds, the others as
/// positions in the lists.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Timeline {
    /// The rows, from above.
    pub tracks: Vec<String>,
    /// Every text once.
    pub texts: Vec<String>,
    /// The spans, in the order of their begin.
    pub spans: Vec<(usize, f64, f64, usize, usize, usize)>,
    /// The shortest spans beyond the limit, which are left out.
    pub left_out: usize,
}

impl Timeline {
    /// The spans of a trace, the longest `most` of them.
    pub fn of(trace: &Trace, most: usize) -> Timeline {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        let mut texts: Vec<String> = Vec::new();
        let mut number = |text: &str| match numbers.get(text) {
            Some(&known) => known,
            None => {
                texts.push(text.to_string());
                numbers.insert(text.to_string(), texts.len() - 1);
                texts.len() - 1
            }
        };
        let mut longest: Vec<usize> = (0..trace.spans.len()).collect();
        let duration = |span: usize| trace.spans[span].duration_s;
        longest.sort_by(|&a, &b| duration(b).total_cmp(&duration(a)).then(a.cmp(&b)));
        let left_out = longest.len().saturating_sub(most);
        longest.truncate(most);
        longest.sort_by(|&a, &b| trace.spans[a].begin_s.total_cmp(&trace.spans[b].begin_s).then(a.cmp(&b)));
        let spans = longest.into_iter().map(|index| {
            let span = &trace.spans[index];
            let path = span.arguments.iter().find(|(name, _)| *name == "path").map_or("", |(_, path)| path);
            let micros = |seconds: f64| (seconds * 1e9).round() / 1e3;
            let (begin, duration) = (micros(span.begin_s), micros(span.duration_s));
            (span.track.0, begin, duration, number(&span.name), number(span.category), number(path))
        });
        let spans = spans.collect();
        let process = |name: &str| trace.tracks.iter().any(|track| track.process != name);
        let tracks = trace.tracks.iter().map(|track| match process(&track.process) {
            true => format!("{}: {}", track.process, track.name),
            false => track.name.clone(),
        });
        Timeline { tracks: tracks.collect(), texts, spans, left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_trace::Span;

    #[test]
    fn the_longest_spans_are_kept_in_the_order_of_time() {
        let mut trace = Trace::default();
        let track = trace.track("host", "rank 0");
        let span = |name: &str, begin_s: f64, duration_s: f64| Span {
            track,
            name: name.to_string(),
            category: "compute",
            begin_s,
            duration_s,
            arguments: vec![("path", "layers.0".to_string())],
        };
        trace.spans = vec![span("b", 2e-6, 3e-6), span("c", 1e-6, 1e-9), span("a", 0.0, 2e-6)];
        let timeline = Timeline::of(&trace, 2);
        let names: Vec<&str> = timeline.spans.iter().map(|span| timeline.texts[span.3].as_str()).collect();
        assert_eq!((names, timeline.left_out), (vec!["a", "b"], 1));
        assert_eq!((timeline.spans[1].1, timeline.spans[1].2), (2.0, 3.0));
        assert_eq!(timeline.tracks, ["rank 0"]);
    }
}
