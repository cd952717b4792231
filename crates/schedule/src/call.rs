//! `name(argument, key=value)`: the notation of styles and primitives in every spelling of a plan.

use partita_base::{Diagnostic, Result};
use std::fmt::{self, Write};

/// A name with arguments.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// `colwise`, `shard`.
    pub name: String,
    /// Arguments in order, with their keys where they have one.
    pub arguments: Vec<(Option<String>, Argument)>,
}

/// The value of an argument.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Debug)]
pub enum Argument {
    Int(i64),
    Float(f64),
    Bool(bool),
    /// A word or a quoted text.
    Text(String),
    /// A list or a tuple.
    List(Vec<Argument>),
    Call(Call),
}

impl Call {
    /// A call without arguments.
    pub fn new(name: &str) -> Call {
        Call { name: name.to_string(), arguments: Vec::new() }
    }

    /// With one more argument.
    pub fn with(mut self, key: Option<&str>, value: Argument) -> Call {
        self.arguments.push((key.map(str::to_string), value));
        self
    }

    /// Parses a call; a bare name has no arguments. E222 gives the position of the error.
    pub fn parse(text: &str) -> Result<Call> {
        let mut reader = Reader { text, place: 0, depth: 0 };
        let call = reader.call()?;
        reader.end()?;
        Ok(call)
    }

    /// As a call of a programming language, texts quoted: `shard("weight", 0)`.
    pub fn quoted(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, true);
        text
    }

    fn write(&self, text: &mut String, quoted: bool) {
        text.push_str(&self.name);
        // A method call has parentheses; a word in a dictionary needs none.
        if self.arguments.is_empty() && !quoted {
            return;
        }
        text.push('(');
        for (position, (key, value)) in self.arguments.iter().enumerate() {
            if position > 0 {
                text.push_str(", ");
            }
            if let Some(key) = key {
                let _ = write!(text, "{key}=");
            }
            value.write(text, quoted);
        }
        text.push(')');
    }
}

impl fmt::Display for Call {
    /// The spelling in a dictionary; words are unquoted if they parse back: `shard(weight, 0)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text, false);
        f.write_str(&text)
    }
}

impl Argument {
    /// A text.
    pub fn text(text: impl Into<String>) -> Argument {
        Argument::Text(text.into())
    }

    fn write(&self, text: &mut String, quoted: bool) {
        match self {
            Argument::Int(value) => _ = write!(text, "{value}"),
            Argument::Float(value) => _ = write!(text, "{value:?}"),
            Argument::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
            Argument::Text(value) if !quoted && is_word(value) => text.push_str(value),
            Argument::Text(value) => text.push_str(&serde_json::Value::from(value.as_str()).to_string()),
            Argument::List(values) => {
                text.push('[');
                for (position, value) in values.iter().enumerate() {
                    if position > 0 {
                        text.push_str(", ");
                    }
                    value.write(text, quoted);
                }
                text.push(']');
            }
            Argument::Call(call) => call.write(text, quoted),
        }
    }

    /// Its kind, for messages.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, false);
        text
    }
}

/// Whether a text parses back as one word: a name, perhaps dotted, that is no number and not `true`
/// or `false`.
fn is_word(text: &str) -> bool {
    let mut letters = text.chars();
    let first = letters.next().is_some_and(|c| c.is_alphabetic() || c == '_');
    first && letters.all(is_inside_word) && !matches!(text, "true" | "false" | "True" | "False")
}

fn is_inside_word(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '.' | '/')
}

/// The limit on nesting, which protects the stack.
pub(crate) const MAX_DEPTH: usize = 32;

/// The position of the first `letter` outside quotes, inner parentheses and comments.
pub(crate) fn closing(text: &str, letter: char) -> Option<usize> {
    let (mut quote, mut escaped, mut depth) = (None, false, 0usize);
    for (place, c) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == letter && (depth == 0 || letter == '#') => return Some(place),
            None => match c {
                '"' | '\'' => quote = Some(c),
                '(' | '[' => depth += 1,
                ')' | ']' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
    }
    None
}

struct Reader<'a> {
    text: &'a str,
    place: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.place..]
    }

    fn skip_blanks(&mut self) {
        self.place += self.rest().len() - self.rest().trim_start().len();
    }

    /// The next character after blanks.
    fn peek(&mut self) -> Option<char> {
        self.skip_blanks();
        self.rest().chars().next()
    }

    fn take(&mut self, letter: char) -> bool {
        let found = self.peek() == Some(letter);
        if found {
            self.place += letter.len_utf8();
        }
        found
    }

    fn wrong(&self, expected: &str) -> Box<Diagnostic> {
        let rest: String = self.rest().chars().take(20).collect();
        let rest = if rest.is_empty() { "the end".to_string() } else { format!("`{rest}`") };
        let text: String = match self.text.char_indices().nth(120) {
            Some((end, _)) => format!("{}..", &self.text[..end]),
            None => self.text.to_string(),
        };
        Diagnostic::new("E222", format!("`{text}` cannot be read"))
            .expected(expected)
            .found(format!("{rest} at character {}", self.text[..self.place].chars().count() + 1))
            .help("write `name(argument, key=value)`: `shard(weight, 0)`, `colwise(output=shard(1))`")
    }

    fn end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.wrong("nothing more")),
        }
    }

    fn word(&mut self) -> Option<&'a str> {
        self.skip_blanks();
        let rest = self.rest();
        let starts = rest.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let length = rest.find(|c| !is_inside_word(c)).unwrap_or(rest.len());
        (starts && length > 0).then(|| {
            self.place += length;
            &rest[..length]
        })
    }

    fn call(&mut self) -> Result<Call> {
        let name = self.word().ok_or_else(|| self.wrong("a name"))?;
        let mut call = Call::new(name);
        if self.take('(') {
            call.arguments = self.arguments()?;
        }
        Ok(call)
    }

    /// Parses up to and including the closing parenthesis.
    fn arguments(&mut self) -> Result<Vec<(Option<String>, Argument)>> {
        let mut arguments = Vec::new();
        while !self.take(')') {
            let start = self.place;
            let key = self.word().filter(|_| self.take('='));
            if key.is_none() {
                self.place = start;
            }
            arguments.push((key.map(str::to_string), self.value()?));
            if !self.take(',') && self.peek() != Some(')') {
                return Err(self.wrong("`,` or `)`"));
            }
        }
        Ok(arguments)
    }

    fn value(&mut self) -> Result<Argument> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wrong(&format!("at most {MAX_DEPTH} levels of nested values")));
        }
        let value = self.one_value();
        self.depth -= 1;
        value
    }

    fn one_value(&mut self) -> Result<Argument> {
        match self.peek() {
            Some('"') => self.quoted(),
            Some('\'') => {
                // Single quotes hold no escapes.
                let inside = &self.rest()[1..];
                let end = inside.find('\'').ok_or_else(|| self.wrong("a closing quote"))?;
                self.place += end + 2;
                Ok(Argument::text(&inside[..end]))
            }
            Some('[') => Ok(Argument::List(self.list(']')?.0)),
            Some('(') => match self.list(')')? {
                // One value in parentheses without a comma is not a tuple.
                (mut values, false) if values.len() == 1 => Ok(values.remove(0)),
                (values, _) => Ok(Argument::List(values)),
            },
            Some(c) if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number(),
            // A function is kept as its text and rejected later by name.
            _ if self.rest().starts_with("lambda ") || self.rest().starts_with("lambda:") => {
                let rest = self.rest();
                let end = closing(rest, ')').ok_or_else(|| self.wrong("`)`"))?;
                self.place += end;
                Ok(Argument::text(rest[..end].trim()))
            }
            _ => {
                let call = self.call()?;
                let is_call = self.text[..self.place].ends_with(')');
                Ok(match (call.name.as_str(), is_call) {
                    (_, true) => Argument::Call(call),
                    ("true" | "True", _) => Argument::Bool(true),
                    ("false" | "False", _) => Argument::Bool(false),
                    _ => Argument::Text(call.name),
                })
            }
        }
    }

    /// A list up to and including its closing character, and whether it contains a comma.
    fn list(&mut self, close: char) -> Result<(Vec<Argument>, bool)> {
        self.place += 1;
        let (mut values, mut comma) = (Vec::new(), false);
        while !self.take(close) {
            values.push(self.value()?);
            let separated = self.take(',');
            comma |= separated;
            if !separated && self.peek() != Some(close) {
                return Err(self.wrong(&format!("`,` or `{close}`")));
            }
        }
        Ok((values, comma))
    }

    /// A text with JSON's escapes.
    fn quoted(&mut self) -> Result<Argument> {
        let mut values = serde_json::Deserializer::from_str(self.rest()).into_iter::<String>();
        match values.next() {
            Some(Ok(text)) => {
                self.place += values.byte_offset();
                Ok(Argument::Text(text))
            }
            _ => Err(self.wrong("a string with its closing quote")),
        }
    }

    fn number(&mut self) -> Result<Argument> {
        let rest = self.rest();
        let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
        let text = &rest[..rest.find(|c| !inside(c)).unwrap_or(rest.len())];
        let value = match (text.parse(), text.parse()) {
            (Ok(value), _) => Argument::Int(value),
            (_, Ok(value)) => Argument::Float(value),
            _ => return Err(self.wrong("a number")),
        };
        self.place += text.len();
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_read_back_what_they_print() {
        for (text, quoted) in [
            ("colwise", "colwise()"),
            ("colwise(output=shard(1))", "colwise(output=shard(1))"),
            ("shard(weight, -1, axis=tp)", "shard(\"weight\", -1, axis=\"tp\")"),
            ("fuse(\"gelu(x + b)\", name=bias_gelu)", "fuse(\"gelu(x + b)\", name=\"bias_gelu\")"),
            ("replace(partita.layer_norm, epsilon=1e-5)", "replace(\"partita.layer_norm\", epsilon=1e-5)"),
            ("at([0, 2], \"true\", true, \"a\\n\\\"b\")", "at([0, 2], \"true\", true, \"a\\n\\\"b\")"),
        ] {
            let call = Call::parse(text).unwrap();
            assert_eq!(call.to_string(), text);
            assert_eq!(call.quoted(), quoted);
            assert_eq!(Call::parse(quoted).unwrap(), call, "{text}");
        }
        assert_eq!(Call::parse(" a( 'b c' ,d = 2., ) ").unwrap().to_string(), "a(\"b c\", d=2.0)");
        assert_eq!(Call::parse("a((b, 1), (c), (d,), ())").unwrap().to_string(), "a([b, 1], c, [d], [])");
    }

    #[test]
    fn what_is_no_call_says_where() {
        for text in [
            "", "(", "a(", "a)", "a(b", "a(b c)", "a(,)", "a(=1)", "a(\"b)", "a(1x)", "a() b", "a([1)",
            "a('b)",
        ] {
            let error = Call::parse(text).unwrap_err();
            assert_eq!(error.code, "E222", "{text}");
            assert!(error.found.as_deref().unwrap().contains("character"), "{error}");
        }
        for open in ["(", "[", "a("] {
            let error = Call::parse(&format!("a({}", open.repeat(100_000))).unwrap_err();
            assert!(error.expected.as_deref().unwrap().contains("at most 32"), "{:?}", error.expected);
        }
    }
}
