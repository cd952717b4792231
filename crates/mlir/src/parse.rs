//! The parser: from text to tree.

use crate::cursor::Cursor;
use crate::lexer::{Kind, tokenize};
use crate::source::Source;
use crate::tree::{
    Alias, Block, Form, Generic, Operation, OperationId, Region, RegionId, ResultNames, Span, Tree,
};
use partita_base::Result;
use std::collections::HashMap;

/// Maximum number of results under one name.
const RESULT_LIMIT: usize = 65_536;

/// Operation names that have no dialect prefix.
const BARE: [&str; 6] = ["call", "constant", "func", "module", "return", "unrealized_conversion_cast"];

/// What has been parsed so far, besides the tokens.
#[derive(Default)]
struct Read {
    operations: Vec<Operation>,
    regions: Vec<Region>,
    region_at: HashMap<usize, RegionId>,
    aliases: Vec<Alias>,
    resources: Vec<Span>,
}

impl<'t> Tree<'t> {
    /// Parses a text of any dialects.
    ///
    /// # Errors
    /// E140 for text that is not well formed, E149 for text that nests too deeply.
    pub fn parse(source: Source<'t>) -> Result<Tree<'t>> {
        let tokens = tokenize(&source)?;
        let mut cursor = Cursor { source, tokens: &tokens, position: 0, depth: 0 };
        let mut read = Read::default();
        let mut top = Vec::new();
        while cursor.kind() != Kind::End {
            top.extend(read.top_level(&mut cursor)?);
        }
        let Read { operations, regions, region_at, aliases, resources } = read;
        Ok(Tree { source, tokens, operations, regions, top, aliases, resources, region_at })
    }
}

impl Read {
    /// An alias, resources, or an operation; only an operation is returned.
    fn top_level(&mut self, cursor: &mut Cursor) -> Result<Option<OperationId>> {
        match (cursor.kind(), cursor.ahead(1), cursor.ahead(2)) {
            (Kind::Hash, ..) => {
                let name = cursor.text().to_string();
                cursor.advance();
                self.alias(name, cursor)?;
            }
            (Kind::Mark('!'), Kind::Word, Kind::Mark('=')) => {
                cursor.advance();
                let name = format!("!{}", cursor.text());
                cursor.advance();
                self.alias(name, cursor)?;
            }
            (Kind::Mark('{'), Kind::Mark('-'), _) => self.resources.push(cursor.group()),
            _ => return self.operation(cursor).map(Some),
        }
        Ok(None)
    }

    /// `= value`, after the name of an alias.
    fn alias(&mut self, name: String, cursor: &mut Cursor) -> Result<()> {
        cursor.mark('=')?;
        if cursor.at_word("loc") && cursor.ahead(1) != Kind::Mark('(') {
            cursor.advance();
            return Err(cursor.unexpected("`(`"));
        }
        let value = cursor.attribute()?;
        self.aliases.push(Alias { name, value });
        Ok(())
    }

    /// `%a, %b:2 = name ..`.
    fn operation(&mut self, cursor: &mut Cursor) -> Result<OperationId> {
        let start = cursor.position;
        let mut results = Vec::new();
        while cursor.kind() == Kind::Value {
            let name = cursor.take();
            let mut count = 1;
            if cursor.eat(':') {
                count = match cursor.text().parse() {
                    Ok(count @ 1..=RESULT_LIMIT) if cursor.kind() == Kind::Number => count,
                    _ => return Err(cursor.error("E140", "not a number of results")),
                };
                cursor.advance();
            }
            results.push(ResultNames { name, count });
            if !cursor.eat(',') {
                break;
            }
        }
        if !results.is_empty() {
            cursor.mark('=')?;
        }
        if !matches!(cursor.kind(), Kind::Word | Kind::Text) {
            return Err(cursor.unexpected("an operation"));
        }
        let is_generic = cursor.kind() == Kind::Text;
        let name = cursor.take();
        let form = if is_generic { self.generic(cursor)? } else { self.pretty(cursor)? };
        let mut location = None;
        match &form {
            Form::Generic(_) if cursor.at_word("loc") => {
                cursor.advance();
                if cursor.kind() != Kind::Mark('(') {
                    return Err(cursor.unexpected("`(`"));
                }
                location = Some(cursor.group());
            }
            Form::Generic(_) => {}
            Form::Pretty { tokens, .. } => location = location_at_end(cursor, tokens),
        }
        let id = OperationId(self.operations.len());
        self.operations.push(Operation { results, name, form, location, span: start..cursor.position });
        Ok(id)
    }

    /// The generic form, after a quoted name.
    fn generic(&mut self, cursor: &mut Cursor) -> Result<Form> {
        let mut generic = Generic::default();
        cursor.mark('(')?;
        while cursor.kind() == Kind::Value {
            generic.operands.push(cursor.take());
            if !cursor.eat(',') {
                break;
            }
        }
        cursor.mark(')')?;
        if cursor.eat('[') {
            while cursor.kind() == Kind::Label {
                generic.successors.push(cursor.take());
                if !cursor.eat(',') {
                    break;
                }
            }
            cursor.mark(']')?;
        }
        if cursor.eat('<') {
            generic.attributes = cursor.dictionary()?;
            generic.properties = generic.attributes.len();
            cursor.mark('>')?;
        }
        if cursor.eat('(') {
            loop {
                generic.regions.push(self.region(cursor)?);
                if !cursor.eat(',') {
                    break;
                }
            }
            cursor.mark(')')?;
        }
        if cursor.kind() == Kind::Mark('{') {
            generic.attributes.extend(cursor.dictionary()?);
        }
        cursor.mark(':')?;
        let start = cursor.position;
        generic.operand_types = cursor.types()?;
        if cursor.kind() != Kind::Arrow {
            return Err(cursor.unexpected("`->`"));
        }
        cursor.advance();
        generic.result_types = cursor.types()?;
        generic.signature = start..cursor.position;
        Ok(Form::Generic(Box::new(generic)))
    }

    /// The pretty form, after a name without quotes: all tokens up to the next statement.
    fn pretty(&mut self, cursor: &mut Cursor) -> Result<Form> {
        let start = cursor.position;
        let mut regions = Vec::new();
        while !ends_here(cursor, start) {
            match cursor.kind() {
                Kind::Mark('{') if begins_region(cursor) => regions.push(self.region(cursor)?),
                _ => {
                    cursor.group();
                }
            }
        }
        Ok(Form::Pretty { tokens: start..cursor.position, regions })
    }

    /// `{ .. }`: blocks of operations.
    fn region(&mut self, cursor: &mut Cursor) -> Result<RegionId> {
        let start = cursor.position;
        cursor.mark('{')?;
        cursor.enter()?;
        let mut blocks = vec![Block::default()];
        while cursor.kind() != Kind::Mark('}') {
            if cursor.kind() == Kind::Label {
                let label = Some(cursor.take());
                let arguments = (cursor.kind() == Kind::Mark('(')).then(|| cursor.group());
                cursor.mark(':')?;
                let is_first =
                    blocks.len() == 1 && blocks[0].operations.is_empty() && blocks[0].label.is_none();
                if is_first {
                    blocks.clear();
                }
                blocks.push(Block { label, arguments, operations: Vec::new() });
            } else {
                let operation = self.top_level(cursor)?;
                blocks.last_mut().expect("there is a block").operations.extend(operation);
            }
        }
        cursor.leave();
        cursor.advance();
        let id = RegionId(self.regions.len());
        self.regions.push(Region { blocks, span: start..cursor.position });
        self.region_at.insert(start, id);
        Ok(id)
    }
}

/// The brackets of `loc(..)` if they are the last of these tokens.
fn location_at_end(cursor: &Cursor, tokens: &Span) -> Option<Span> {
    let last = tokens.end.checked_sub(1).filter(|&last| last > tokens.start)?;
    let mut at = Cursor { position: last, ..*cursor };
    if at.kind() != Kind::Mark(')') {
        return None;
    }
    // A closing bracket has no link to its opening one; locations are short, so search backwards.
    let open = (tokens.start..last).rev().find(|&open| cursor.tokens.closing[open] == last)?;
    at.position = open.checked_sub(1)?;
    (open > tokens.start && at.at_word("loc")).then_some(open..tokens.end)
}

/// Whether the next token is the first on its line.
fn is_first_on_line(cursor: &Cursor) -> bool {
    let list = &cursor.tokens.list;
    let before = cursor.position.checked_sub(1).map_or(0, |before| list[before].end);
    cursor.source.text.as_bytes()[before..list[cursor.position].start].contains(&b'\n')
}

/// Whether a pretty operation whose tokens begin at `start` ends before the next token.
fn ends_here(cursor: &Cursor, start: usize) -> bool {
    match cursor.kind() {
        Kind::End | Kind::Mark('}') => true,
        Kind::Mark('{') if cursor.ahead(1) == Kind::Mark('-') => true,
        // Directly after the name, only a new line can begin another statement.
        _ if cursor.position == start && !is_first_on_line(cursor) => false,
        // A list of names is examined once, from its first name.
        Kind::Value if cursor.tokens.list[cursor.position - 1].kind == Kind::Mark(',') => false,
        Kind::Value => {
            let mut at = *cursor;
            loop {
                if at.kind() != Kind::Value {
                    return false;
                }
                at.advance();
                if at.kind() == Kind::Mark(':') && at.ahead(1) == Kind::Number {
                    at.position += 2;
                }
                if at.kind() == Kind::Mark('=') {
                    return true;
                }
                if !at.eat(',') {
                    return false;
                }
            }
        }
        Kind::Text => cursor.ahead(1) == Kind::Mark('('),
        Kind::Word => {
            let text = cursor.text();
            let names = text.contains('.') || BARE.contains(&text);
            let before = cursor.tokens.list[cursor.position - 1].kind;
            let may_follow = matches!(
                before,
                Kind::Mark('>' | ')' | ']' | '}') | Kind::Value | Kind::Symbol | Kind::Text | Kind::Number
            );
            names && cursor.ahead(1) != Kind::Mark('=') && (may_follow || is_first_on_line(cursor))
        }
        Kind::Label => is_first_on_line(cursor),
        Kind::Hash => cursor.ahead(1) == Kind::Mark('=') && is_first_on_line(cursor),
        Kind::Mark('!') => cursor.ahead(2) == Kind::Mark('=') && is_first_on_line(cursor),
        _ => false,
    }
}

/// Whether the next `{` opens a region: the tokens after it begin a statement, not a dictionary.
fn begins_region(cursor: &Cursor) -> bool {
    let mut inner = *cursor;
    inner.advance();
    let next = inner.ahead(1);
    match inner.kind() {
        Kind::Value | Kind::Label | Kind::Hash => true,
        Kind::Text => next == Kind::Mark('('),
        Kind::Word => {
            let last = inner.text().rsplit('.').next().unwrap_or_default();
            let ends = matches!(last, "return" | "yield" | "terminator");
            match next {
                Kind::Mark('=') => false,
                Kind::Mark(',' | '}') => ends,
                _ => true,
            }
        }
        _ => false,
    }
}
