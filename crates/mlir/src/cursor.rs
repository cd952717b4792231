//! A position in a list of tokens, which advances as the parser reads them.

use crate::lexer::{Kind, Tokens};
use crate::source::Source;
use crate::tree::Span;
use partita_base::{Diagnostic, Result};

/// The maximum nesting depth of regions, attributes and types together, which bounds recursion.
pub const DEPTH_LIMIT: usize = 64;

/// Tokens, and the index of the next one.
#[derive(Clone, Copy)]
pub struct Cursor<'a, 't> {
    /// The text.
    pub source: Source<'t>,
    /// Its tokens.
    pub tokens: &'a Tokens,
    /// The next token.
    pub position: usize,
    /// The nesting depth of the next token.
    pub depth: usize,
}

impl<'t> Cursor<'_, 't> {
    /// The kind of the next token.
    pub fn kind(&self) -> Kind {
        self.tokens.list[self.position].kind
    }

    /// The kind of the token `ahead` places after the next one.
    pub fn ahead(&self, ahead: usize) -> Kind {
        self.tokens.list.get(self.position + ahead).map_or(Kind::End, |token| token.kind)
    }

    /// The text of the next token.
    pub fn text(&self) -> &'t str {
        let token = self.tokens.list[self.position];
        &self.source.text[token.start..token.end]
    }

    /// Whether the next token is this word.
    pub fn at_word(&self, word: &str) -> bool {
        self.kind() == Kind::Word && self.text() == word
    }

    /// Moves past the next token.
    pub fn advance(&mut self) {
        if self.kind() != Kind::End {
            self.position += 1;
        }
    }

    /// Moves past the next token and returns its index.
    pub fn take(&mut self) -> usize {
        let at = self.position;
        self.advance();
        at
    }

    /// Moves past this character if it is next; returns whether it was.
    pub fn eat(&mut self, mark: char) -> bool {
        let found = self.kind() == Kind::Mark(mark);
        if found {
            self.advance();
        }
        found
    }

    /// Moves past this character. E140 if another token is next.
    pub fn mark(&mut self, mark: char) -> Result<()> {
        if self.eat(mark) { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    /// Moves past a bracketed group, or a single token; returns the tokens passed.
    pub fn group(&mut self) -> Span {
        let start = self.position;
        let closing = self.tokens.closing[start];
        if closing != usize::MAX {
            self.position = closing;
        }
        self.advance();
        start..self.position
    }

    /// Moves past `<..>`; returns the tokens between.
    pub fn angle(&mut self) -> Result<Span> {
        self.mark('<')?;
        let start = self.position;
        let mut depth = 1;
        loop {
            match self.kind() {
                Kind::Mark('<') => depth += 1,
                Kind::Mark('>') => depth -= 1,
                Kind::Mark('(' | '[' | '{') => {
                    self.group();
                    continue;
                }
                Kind::End | Kind::Mark(')' | ']' | '}') => return Err(self.unexpected("`>`")),
                _ => {}
            }
            self.advance();
            if depth == 0 {
                return Ok(start..self.position - 1);
            }
        }
    }

    /// Enters one nesting level. E149 at the limit.
    pub fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth <= DEPTH_LIMIT {
            return Ok(());
        }
        Err(self.error("E149", format!("this nests deeper than {DEPTH_LIMIT} levels")))
    }

    /// Leaves one nesting level.
    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    /// A diagnostic that points at the next token.
    pub fn error(&self, code: &'static str, message: impl Into<String>) -> Box<Diagnostic> {
        self.source.error(code, message, self.tokens.list[self.position].start)
    }

    /// E140: something else was expected here.
    pub fn unexpected(&self, expected: &str) -> Box<Diagnostic> {
        let found = match self.kind() {
            Kind::End => "the end of the text".to_string(),
            _ => format!("`{}`", self.text().chars().take(40).collect::<String>()),
        };
        self.error("E140", "unexpected text").expected(expected).found(found)
    }
}
