//! What a program and the runner that it starts say to each other.

use partita_base::Diagnostic;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The word by which a program becomes a runner: its first argument.
pub const COMMAND: &str = "xla-runner";
/// The word after [`COMMAND`] to train: then follow plugin, folder, and steps between saved states.
pub const TRAIN: &str = "train";
/// The word after [`COMMAND`] to list devices: then follows a plugin.
pub const DEVICES: &str = "devices";
/// The line on standard input that asks to stop after the current step.
pub const STOP: &str = "stop";

/// A line of a runner.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    /// Steps done.
    pub step: u64,
    /// The seconds of the step, or of compiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The most bytes on a device, as XLA has planned its programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_bytes: Option<u64>,
    /// The most bytes that were in use on a device so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// How many programs there are, and how many of them an earlier run has compiled; before the first step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub programs: Option<(usize, usize)>,
    /// The file of the state after the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<PathBuf>,
    /// Why the runner ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// The numbers of the step, by name: `loss`, `grad_norm`. One that is not finite is null.
    #[serde(flatten)]
    pub figures: BTreeMap<String, Option<f64>>,
}

/// A diagnostic of a runner.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Failure {
    code: String,
    message: String,
    at: Option<String>,
    expected: Option<String>,
    found: Option<String>,
    notes: Vec<String>,
    help: Option<String>,
}

/// The codes that a runner reports.
const CODES: [&str; 13] =
    ["E061", "E062", "E063", "E064", "E065", "E066", "E311", "E312", "E313", "E316", "E480", "E481", "E482"];

impl From<&Diagnostic> for Failure {
    fn from(error: &Diagnostic) -> Failure {
        let Diagnostic { code, message, expected, found, at, notes, help } = error.clone();
        Failure { code: code.to_string(), message, at, expected, found, notes, help }
    }
}

impl From<Failure> for Box<Diagnostic> {
    fn from(failure: Failure) -> Box<Diagnostic> {
        let Failure { code, message, at, expected, found, notes, help } = failure;
        let known = CODES.into_iter().find(|known| *known == code).unwrap_or(CODES[0]);
        Box::new(Diagnostic { code: known, message, expected, found, at, notes, help })
    }
}

/// What a plugin says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// The version of the interface.
    pub version: String,
    /// The platform: `cpu`, `cuda`.
    pub platform: String,
    /// The kind of each device.
    pub devices: Vec<String>,
}

impl Found {
    /// Whether it has as many devices as a run wants, on the cores of this host.
    pub fn is_for_cpus(&self) -> bool {
        self.platform == "cpu"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_script_and_carry_diagnostics() {
        let script: Line = serde_json::from_str(r#"{"step": 3, "loss": 2.5, "seconds": 0.1}"#).unwrap();
        assert_eq!((script.step, script.figures["loss"], script.seconds), (3, Some(2.5), Some(0.1)));
        let figures = BTreeMap::from([("loss".to_string(), None), ("grad_norm".to_string(), Some(1.0))]);
        let line = Line { step: 1, figures, planned_bytes: Some(9), ..Line::default() };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(text, r#"{"step":1,"planned_bytes":9,"grad_norm":1.0,"loss":null}"#);
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        let error =
            Diagnostic::new("E064", "no devices").at("a").expected("b").found("c").note("d").help("e");
        let text = serde_json::to_string(&Failure::from(&*error)).unwrap();
        let back: Box<Diagnostic> = serde_json::from_str::<Failure>(&text).unwrap().into();
        assert_eq!(back, error);
        let other = Failure { code: "E999".to_string(), ..Failure::from(&*error) };
        assert_eq!(Box::<Diagnostic>::from(other).code, "E061");
    }
}
