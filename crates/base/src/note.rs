//! Remarks on a step for its user: nothing is wrong, but something may be other than he thinks.

use std::fmt;

/// A remark on what a plan and a mesh make of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The kind of remark, such as `idle-ranks`. Code compares this, and never words of the text.
    pub code: &'static str,
    /// The line of the plan that it is about, if it is about one.
    pub line: Option<String>,
    /// What people read.
    pub text: String,
}

impl Note {
    /// A remark that is about no line of a plan in particular.
    pub fn new(code: &'static str, text: impl Into<String>) -> Note {
        Note { code, line: None, text: text.into() }
    }

    /// A remark on a line of a plan; its text begins with the line.
    pub fn on_line(code: &'static str, line: impl Into<String>, text: impl fmt::Display) -> Note {
        let line = line.into();
        Note { code, text: format!("{line}: {text}"), line: Some(line) }
    }

    /// Whether it is a remark of this kind on this line.
    pub fn is_about(&self, code: &str, line: &str) -> bool {
        self.code == code && self.line.as_deref() == Some(line)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
