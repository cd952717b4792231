//! The source text, and the positions of errors in it.

use partita_base::Diagnostic;

/// Maximum number of characters of the offending line that a diagnostic shows: signatures of real programs
/// have thousands.
const SHOWN: usize = 96;

/// A text and its name in messages.
#[derive(Clone, Copy)]
pub struct Source<'t> {
    /// The whole text.
    pub text: &'t str,
    /// The name of the file, as messages show it.
    pub file: &'t str,
}

impl<'t> Source<'t> {
    /// Line and column of a byte offset, both counted from 1, the column in characters.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |p| p + 1);
        (
            before.bytes().filter(|&b| b == b'\n').count() + 1,
            self.text[line_start..offset].chars().count() + 1,
        )
    }

    /// A diagnostic at a byte offset: `file:line:column`, and the line with a caret under the position.
    pub fn error(&self, code: &'static str, message: impl Into<String>, offset: usize) -> Box<Diagnostic> {
        let (line, column) = self.position(offset);
        let line_start = self.text[..offset].rfind('\n').map_or(0, |p| p + 1);
        let line_text = self.text[line_start..].lines().next().unwrap_or("");
        let characters: Vec<char> = line_text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let place = column - 1;
        let indent = characters.iter().take_while(|c| **c == ' ').count().min(place);
        let first = if place - indent > SHOWN * 2 / 3 { place - SHOWN / 2 } else { indent };
        let last = characters.len().min(first + SHOWN);
        let mut shown = String::new();
        let mut caret = place - first;
        if first > indent {
            shown.push_str("..");
            caret += 2;
        }
        shown.extend(&characters[first.min(last)..last]);
        if last < characters.len() {
            shown.push_str("..");
        }
        Diagnostic::new(code, message)
            .at(format!("{}:{line}:{column}", self.file))
            .note(format!("{shown}\n{}^", " ".repeat(caret)))
    }
}
