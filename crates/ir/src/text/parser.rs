//! The parser: the syntax tree, a position in the tokens of the current op, and errors that point
//! at it.

use super::functions::{Extent, Function};
use super::scope::Frame;
use crate::composite::{CompositeDefinition, Registry};
use crate::ops;
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_mesh::Mesh;
use partita_mlir::{Cursor, DEPTH_LIMIT, Kind, Source, Token, Tree, unquote};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// The parser state: the syntax tree, a position in the tokens of the current op, the module's
/// symbols, and the graphs under construction.
pub(crate) struct Parser<'t> {
    pub source: Source<'t>,
    pub tree: Rc<Tree<'t>>,
    pub position: usize,
    /// The last consumed `{`.
    pub brace: usize,
    pub meshes: Vec<Mesh>,
    /// `mhlo.num_replicas` of the module.
    pub replicas: Option<usize>,
    /// `mhlo.num_partitions` of the module.
    pub partitions: Option<usize>,
    pub aliases: HashMap<String, usize>,
    pub(super) functions: IndexMap<String, Function>,
    pub registry: &'t Registry,
    pub definitions: Vec<Arc<CompositeDefinition>>,
    /// The expanded size of decompositions, by address; the definitions are kept alive so that
    /// addresses stay unique.
    pub extents: HashMap<*const CompositeDefinition, (Arc<CompositeDefinition>, Extent)>,
    pub parsers: HashMap<&'static str, ops::ParseOp>,
    pub frames: Vec<Frame<'t>>,
    line_starts: Vec<usize>,
    depth: usize,
    pub inlined_nodes: usize,
    /// Pairs of sharding groups that share a value.
    pub groups: Vec<(u64, u64)>,
}

impl<'t> Parser<'t> {
    pub fn new(source: Source<'t>, registry: &'t Registry) -> Result<Parser<'t>> {
        let tree = Rc::new(Tree::parse(source)?);
        let newlines = source.text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
        Ok(Parser {
            line_starts: std::iter::once(0).chain(newlines).collect(),
            source,
            tree,
            position: 0,
            brace: 0,
            meshes: Vec::new(),
            replicas: None,
            partitions: None,
            aliases: HashMap::new(),
            functions: IndexMap::new(),
            registry,
            definitions: Vec::new(),
            extents: HashMap::new(),
            parsers: ops::parsers().collect(),
            frames: Vec::new(),
            depth: 0,
            inlined_nodes: 0,
            groups: Vec::new(),
        })
    }

    // ---- tokens ----------------------------------------------------------------------------------------

    pub fn token(&self) -> Token {
        self.tree.tokens.list[self.position]
    }

    pub fn kind(&self) -> Kind {
        self.token().kind
    }

    pub fn kind_at(&self, position: usize) -> Kind {
        self.tree.tokens.list.get(position).map_or(Kind::End, |t| t.kind)
    }

    pub fn text_at(&self, position: usize) -> &'t str {
        let token = self.tree.tokens.list[position];
        &self.source.text[token.start..token.end]
    }

    pub fn text(&self) -> &'t str {
        self.text_at(self.position)
    }

    pub fn advance(&mut self) {
        if self.kind() != Kind::End {
            self.position += 1;
        }
    }

    pub fn at_word(&self, word: &str) -> bool {
        self.kind() == Kind::Word && self.text() == word
    }

    pub fn eat(&mut self, mark: char) -> bool {
        let found = self.kind() == Kind::Mark(mark);
        if found {
            if mark == '{' {
                self.brace = self.position;
            }
            self.advance();
        }
        found
    }

    pub fn mark(&mut self, mark: char) -> Result<()> {
        if self.eat(mark) { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    pub fn keyword(&mut self, word: &str) -> Result<()> {
        if !self.at_word(word) {
            return Err(self.unexpected(&format!("`{word}`")));
        }
        self.advance();
        Ok(())
    }

    /// `@name`, without the `@`.
    pub fn symbol(&mut self) -> Result<String> {
        if self.kind() != Kind::Symbol {
            return Err(self.unexpected("a symbol such as `@main`"));
        }
        let name = unquote(&self.text()[1..]);
        self.advance();
        Ok(name)
    }

    /// Skips a bracketed group.
    pub fn skip_group(&mut self) {
        let closing = self.tree.tokens.closing[self.position];
        if closing != usize::MAX {
            self.position = closing;
        }
        self.advance();
    }

    /// The line of a token, from 1.
    pub fn line(&self, position: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= self.tree.tokens.list[position].start)
    }

    /// A cursor of the syntax at the current token.
    pub fn cursor<'a>(&self, tree: &'a Tree<'t>) -> Cursor<'a, 't> {
        Cursor { source: self.source, tokens: &tree.tokens, position: self.position, depth: self.depth }
    }

    // ---- errors ----------------------------------------------------------------------------------------

    pub fn error_at(
        &self,
        position: usize,
        code: &'static str,
        message: impl Into<String>,
    ) -> Box<Diagnostic> {
        self.source.error(code, message, self.tree.tokens.list[position].start)
    }

    pub fn error(&self, code: &'static str, message: impl Into<String>) -> Box<Diagnostic> {
        self.error_at(self.position, code, message)
    }

    /// The current token, formatted for a diagnostic.
    pub fn found(&self) -> String {
        match self.kind() {
            Kind::End => "the end of the text".to_string(),
            _ => {
                let text: String = self.text().chars().take(40).collect();
                format!("`{text}`")
            }
        }
    }

    pub fn unexpected(&self, expected: &str) -> Box<Diagnostic> {
        self.error("E140", "unexpected text").expected(expected).found(self.found())
    }

    /// One level deeper. E149 at the limit.
    pub fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > DEPTH_LIMIT { Err(self.too_deep(self.position)) } else { Ok(()) }
    }

    /// E149 if something with this nesting depth would exceed the limit here.
    pub fn check_depth(&self, depth: usize, at: usize) -> Result<()> {
        if self.depth + depth > DEPTH_LIMIT { Err(self.too_deep(at)) } else { Ok(()) }
    }

    fn too_deep(&self, at: usize) -> Box<Diagnostic> {
        self.error_at(at, "E149", format!("this nests deeper than {DEPTH_LIMIT} levels"))
    }

    pub fn leave(&mut self) {
        self.depth -= 1;
    }
}
