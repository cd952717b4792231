//! Diagnostics: the one error type of all crates, with a code that `docs/ERRORS.md` explains.

use std::fmt;

/// The form of every error message: code, message, what was expected and found, location, notes,
/// and a hint.
#[derive(Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// `E` and three digits. E0xx input and config, E1xx graphs and ops, E2xx meshes and plans,
    /// E3xx data and checkpoints, E4xx programs and running.
    pub code: &'static str,
    /// One line: the problem, in global shapes and module paths.
    pub message: String,
    /// The expected value.
    pub expected: Option<String>,
    /// The value that was found.
    pub found: Option<String>,
    /// `file:line`, a module path, or a config key.
    pub at: Option<String>,
    /// Further facts.
    pub notes: Vec<String>,
    /// A hint how to fix it.
    pub help: Option<String>,
}

/// A result whose error is a [`Diagnostic`].
pub type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

impl Diagnostic {
    /// A diagnostic with a code and a headline. Boxed, so that `Result`s stay small.
    pub fn new(code: &'static str, message: impl Into<String>) -> Box<Self> {
        Box::new(Diagnostic {
            code,
            message: message.into(),
            expected: None,
            found: None,
            at: None,
            notes: Vec::new(),
            help: None,
        })
    }

    /// Adds the expected value.
    pub fn expected(mut self: Box<Self>, text: impl Into<String>) -> Box<Self> {
        self.expected = Some(text.into());
        self
    }

    /// Adds the value that was found.
    pub fn found(mut self: Box<Self>, text: impl Into<String>) -> Box<Self> {
        self.found = Some(text.into());
        self
    }

    /// Adds the location.
    pub fn at(mut self: Box<Self>, text: impl Into<String>) -> Box<Self> {
        self.at = Some(text.into());
        self
    }

    /// Adds a note.
    pub fn note(mut self: Box<Self>, text: impl Into<String>) -> Box<Self> {
        self.notes.push(text.into());
        self
    }

    /// Adds a hint.
    pub fn help(mut self: Box<Self>, text: impl Into<String>) -> Box<Self> {
        self.help = Some(text.into());
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.message)?;
        let mut line =
            |label: &str, text: &str| write!(f, "\n  {label:>8}: {}", text.replace('\n', "\n            "));
        if let Some(at) = &self.at {
            line("at", at)?;
        }
        if let Some(expected) = &self.expected {
            line("expected", expected)?;
        }
        if let Some(found) = &self.found {
            line("found", found)?;
        }
        for note in &self.notes {
            line("note", note)?;
        }
        if let Some(help) = &self.help {
            line("help", help)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Diagnostic {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_reads_from_what_to_what_to_do() {
        let text = Diagnostic::new("E201", "mesh does not fit")
            .at("--mesh dp=3")
            .expected("a divisor of 4")
            .found("3")
            .help("use dp=2 or dp=4")
            .to_string();
        assert_eq!(
            text,
            "error[E201]: mesh does not fit\n        at: --mesh dp=3\n  expected: a divisor of 4\n     found: 3\n      help: use dp=2 or dp=4"
        );
    }
}
