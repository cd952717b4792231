//! Losses of a run from its log: the JSON lines that `partita train --json` prints.

use partita_base::{Diagnostic, Result};
use std::path::Path;

/// The pairs of step and loss in a log.
///
/// # Errors
/// E531 for a file that cannot be read or has no line with a step and a loss.
pub fn losses(path: &Path) -> Result<Vec<(f64, f64)>> {
    let refused = |found: String| {
        Diagnostic::new("E531", "the log has no losses")
            .at(path.display().to_string())
            .expected("the lines that `partita train --json` prints, with `step` and `loss`")
            .found(found)
    };
    let text = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
    let point = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        Some((event.get("step")?.as_f64()?, event.get("loss")?.as_f64()?))
    };
    let points: Vec<(f64, f64)> = text.lines().filter_map(point).collect();
    match points.is_empty() {
        true => Err(refused(format!("{} lines without a loss", text.lines().count()))),
        false => Ok(points),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_and_other_lines_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "note\n{\"event\":\"step\",\"step\":1,\"loss\":2.5}\n{\"step\":2}\n").unwrap();
        assert_eq!(losses(&path).unwrap(), [(1.0, 2.5)]);
        std::fs::write(&path, "note\n").unwrap();
        assert_eq!(losses(&path).unwrap_err().code, "E531");
        assert_eq!(losses(&folder.path().join("none")).unwrap_err().code, "E531");
    }
}
