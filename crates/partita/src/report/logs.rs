//! What a run wrote while it went on: the JSON lines of `partita train --json` and `--metrics`.

use crate::session::Session;
use partita_base::{Diagnostic, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Figures over steps, as pairs of step and value.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Log {
    /// The name in drawings.
    pub name: String,
    /// Training losses.
    pub losses: Vec<(f64, f64)>,
    /// Losses of validations.
    pub validations: Vec<(f64, f64)>,
    /// Tokens (rows, without tokens) per second.
    pub speeds: Vec<(f64, f64)>,
    /// Whether these are tokens; `None` for a log that does not say it.
    pub has_tokens: Option<bool>,
}

impl Log {
    /// What the speeds count; of a log that does not say it, what the throughput of the session does.
    pub fn unit(&self, session: &Session) -> &'static str {
        let has_tokens = self.has_tokens.unwrap_or(session.config().model.tokens().is_some());
        if has_tokens { "tokens/s" } else { "rows/s" }
    }
}

/// The logs in the folder of a run: its files that end in .jsonl, by name.
///
/// # Errors
/// E531 for a folder that cannot be read, and as [`log`].
pub fn logs(folder: &Path) -> Result<Vec<Log>> {
    let entries = std::fs::read_dir(folder).map_err(|error| {
        Diagnostic::new("E531", "the folder of the run cannot be read")
            .at(folder.display().to_string())
            .found(error.to_string())
    })?;
    let is_log = |path: &PathBuf| path.extension().is_some_and(|end| end == "jsonl");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_log).collect();
    paths.sort();
    paths.iter().map(|path| log(path)).collect()
}

/// The figures of a log. A line with the event `step`, or without an event, has `step` and `loss`.
///
/// # Errors
/// E531 for a file that cannot be read, that has no such line, or with a line that is no event or has no numbers.
pub fn log(path: &Path) -> Result<Log> {
    let refused = |found: String| {
        Diagnostic::new("E531", "the log has no losses")
            .at(path.display().to_string())
            .expected("the lines that `partita train --json` and `--metrics` write, those of steps with `step` and `loss`")
            .found(found)
    };
    let text = partita_base::read_text(path).map_err(|error| refused(error.to_string()))?;
    let mut log = Log { name: path.display().to_string(), ..Log::default() };
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: &str| {
            let shown: String = line.chars().take(60).collect();
            refused(format!("line {}, {what}: `{shown}`", number + 1))
        };
        let event: Value = serde_json::from_str(line).map_err(|_| wrong("which is no JSON"))?;
        let (name, number_of) = (event.get("event"), |key: &str| event.get(key).and_then(Value::as_f64));
        let figures = match name {
            Some(name) if name == "step" => &mut log.losses,
            Some(name) if name == "validation" => &mut log.validations,
            None if event.is_object() => &mut log.losses,
            Some(_) => continue,
            None => return Err(wrong("which is no event")),
        };
        let (Some(step), Some(loss)) = (number_of("step"), number_of("loss")) else {
            return Err(wrong("which has no numbers for `step` and `loss`"));
        };
        figures.push((step, loss));
        log.speeds.extend(number_of("tokens_per_s").map(|speed| (step, speed)));
        if let (Some(tokens), Some(rows)) = (number_of("tokens_per_s"), number_of("rows_per_s")) {
            log.has_tokens = Some(tokens > rows);
        }
    }
    match log.losses.is_empty() {
        true => Err(refused(format!("{} lines without a step", text.lines().count()))),
        false => Ok(log),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_those_of_steps_and_a_line_that_is_wrong_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let step = "{\"event\":\"step\",\"step\":1,\"loss\":2.5}\n";
        let validation = "{\"event\":\"validation\",\"step\":1,\"loss\":9}\n";
        let note = "{\"event\":\"note\",\"message\":\"a note\"}\n";
        std::fs::write(&path, format!("{note}{step}\n{validation}{{\"step\":2,\"loss\":2}}\n")).unwrap();
        let read = log(&path).unwrap();
        assert_eq!(read.losses, [(1.0, 2.5), (2.0, 2.0)]);
        assert_eq!((read.validations, read.speeds), (vec![(1.0, 9.0)], Vec::new()));
        // Of a model without tokens, both rates are those of rows.
        assert_eq!(read.has_tokens, None);
        for (rates, has_tokens) in
            [("\"rows_per_s\":2,\"tokens_per_s\":2", false), ("\"rows_per_s\":2,\"tokens_per_s\":8", true)]
        {
            std::fs::write(&path, format!("{{\"event\":\"step\",\"step\":1,\"loss\":2,{rates}}}\n")).unwrap();
            assert_eq!(log(&path).unwrap().has_tokens, Some(has_tokens));
        }
        for (wrong, at) in [
            ("a note", "line 2"),
            ("7", "line 2"),
            ("{\"step\":2}", "line 2"),
            ("{\"event\":\"step\",\"step\":2,\"loss\":null}", "line 2"),
            ("{\"event\":\"step\",\"step\":2,\"lo", "line 2"),
        ] {
            std::fs::write(&path, format!("{step}{wrong}\n")).unwrap();
            let error = log(&path).unwrap_err();
            assert!(error.code == "E531" && error.to_string().contains(at), "{wrong}: {error}");
        }
        std::fs::write(&path, note).unwrap();
        assert_eq!(log(&path).unwrap_err().code, "E531");
        assert_eq!(log(&folder.path().join("none")).unwrap_err().code, "E531");
        std::fs::write(folder.path().join("b.jsonl"), step).unwrap();
        std::fs::write(folder.path().join("a.jsonl"), step).unwrap();
        let names: Vec<String> = logs(folder.path()).unwrap().into_iter().map(|log| log.name).collect();
        assert!(names.len() == 2 && names[0].ends_with("a.jsonl"), "{names:?}");
    }
}
