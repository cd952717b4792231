//! Patterns written as expressions.

use super::compile::unusable;
use super::{Broadcast, Form, Matcher, Operand, Pattern, PatternNode, Source};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_ir::ops::{Compare, Direction};
use partita_ir::{Registry, TensorType, ops};
use regex_lite::Regex;

/// Reads an expression. See [`Pattern::parse`].
pub(super) fn parse(text: &str) -> Result<Pattern> {
    let read = |relu| Parser::new(text, relu)?.program();
    let first = read(Relu::Maximum)?;
    let mut forms = vec![first.form];
    if first.has_relu {
        forms.push(read(Relu::Select)?.form);
    }
    Ok(Pattern { text: text.to_string(), inputs: first.inputs, forms })
}

/// Calls with a meaning of their own, with how they are written.
const SUGAR: [(&str, &str); 3] = [
    ("relu", "relu(x)"),
    ("linear", "linear(x, w) or linear(x, w, b)"),
    ("module", "module(\"regex\", x, ..)"),
];

/// The limit on nested parentheses and signs.
const DEPTH: usize = 100;

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Name(String),
    Number(f64),
    Text(String),
    Sign(char),
    End,
}

/// Every token with the byte it starts at.
fn tokens(text: &str) -> Result<Vec<(Token, usize)>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let span = |holds: &dyn Fn(char) -> bool| rest.find(|c| !holds(c)).unwrap_or(rest.len());
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
        let (token, length) = match first {
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            c if c.is_alphabetic() || c == '_' => {
                let length = span(&is_word);
                (Token::Name(rest[..length].to_string()), length)
            }
            c if c.is_ascii_digit() || c == '.' => {
                let mut length = span(&is_word);
                let after = &rest[length..];
                if rest[..length].ends_with(['e', 'E']) && after.starts_with(['-', '+']) {
                    length += 1 + after[1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len() - 1);
                }
                let number = rest[..length].parse().map_err(|_| {
                    unreadable(text, at, "a number that cannot be read")
                        .expected("digits, as in `0.5` or `1e-5`")
                        .found(format!("`{}`", &rest[..length]))
                })?;
                (Token::Number(number), length)
            }
            '"' => match rest[1..].find('"') {
                Some(length) => (Token::Text(rest[1..1 + length].to_string()), length + 2),
                None => {
                    return Err(unreadable(text, at, "a string without its closing quote").expected("`\"`"));
                }
            },
            c if "+-*/(),;=".contains(c) => (Token::Sign(c), 1),
            c => {
                return Err(unreadable(text, at, "a character that patterns do not have")
                    .expected("names, numbers, `+ - * /`, calls")
                    .found(format!("`{c}`")));
            }
        };
        tokens.push((token, at));
        at += length;
    }
    tokens.push((Token::End, text.len()));
    Ok(tokens)
}

/// E240, with the place.
fn unreadable(text: &str, at: usize, message: impl Into<String>) -> Box<Diagnostic> {
    let before = &text[..at];
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    let (row, column) = (before.matches('\n').count() + 1, before[start..].chars().count() + 1);
    Diagnostic::new("E240", message).at(format!("pattern `{line}`, line {row}, column {column}"))
}

/// How `relu` is written in the graph: one way throughout a form.
#[derive(Clone, Copy)]
enum Relu {
    Maximum,
    Select,
}

struct Program {
    inputs: Vec<String>,
    form: Form,
    has_relu: bool,
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, usize)>,
    position: usize,
    depth: usize,
    relu: Relu,
    has_relu: bool,
    inputs: Vec<String>,
    /// Names defined by statements.
    named: IndexMap<String, Source>,
    form: Form,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, relu: Relu) -> Result<Parser<'a>> {
        Ok(Parser {
            text,
            tokens: tokens(text)?,
            position: 0,
            depth: 0,
            relu,
            has_relu: false,
            inputs: Vec::new(),
            named: IndexMap::new(),
            form: Form::default(),
        })
    }

    fn token(&self) -> &Token {
        &self.tokens[self.position].0
    }

    fn at(&self) -> usize {
        self.tokens[self.position].1
    }

    /// Consumes a sign if it is next.
    fn take(&mut self, sign: char) -> bool {
        let there = *self.token() == Token::Sign(sign);
        self.position += there as usize;
        there
    }

    fn unexpected(&self, expected: &str) -> Box<Diagnostic> {
        let end = [self.text.len()];
        let next = self.tokens[self.position + 1..].iter().map(|(_, at)| *at).chain(end).next();
        let found = self.text[self.at()..next.expect("the end at least")].trim();
        let found = if found.is_empty() { "the end".to_string() } else { format!("`{found}`") };
        unreadable(self.text, self.at(), "a pattern that cannot be read").expected(expected).found(found)
    }

    fn program(mut self) -> Result<Program> {
        while let (Token::Name(name), Some((Token::Sign('='), _))) =
            (self.token().clone(), self.tokens.get(self.position + 1))
        {
            let given_twice = self.named.contains_key(&name) || self.inputs.contains(&name);
            if given_twice {
                return Err(unreadable(self.text, self.at(), format!("`{name}` is already defined"))
                    .expected("a new name on the left of `=`"));
            }
            self.position += 2;
            let value = self.sum()?;
            self.named.insert(name, value);
            if !self.take(';') {
                return Err(self.unexpected("`;` and, after all statements, what the pattern returns"));
            }
        }
        loop {
            let value = self.sum()?;
            self.form.outputs.push(value);
            if !self.take(',') {
                break;
            }
        }
        if *self.token() != Token::End {
            return Err(self.unexpected("an operator, `,` or the end"));
        }
        self.check()?;
        Ok(Program { inputs: self.inputs, form: self.form, has_relu: self.has_relu })
    }

    /// E241 if a returned value is not computed, or a computed value is not returned.
    fn check(&self) -> Result<()> {
        let mut used = vec![false; self.form.nodes.len()];
        for output in &self.form.outputs {
            match output {
                Source::Result(node, _) => used[*node] = true,
                Source::Input(input) => {
                    return Err(unusable(format!("a pattern returns its input `{}`", self.inputs[*input])));
                }
                Source::Number(number) => return Err(unusable(format!("a pattern returns {number}"))),
            }
        }
        // Operands come first.
        for (node, pattern) in self.form.nodes.iter().enumerate().rev() {
            for operand in pattern.operands.iter().filter(|_| used[node]).collect::<Vec<_>>() {
                if let Source::Result(node, _) = operand.source {
                    used[node] = true;
                }
            }
        }
        let unused = self.named.iter().find(|(_, source)| match source {
            Source::Result(node, _) => !used[*node],
            Source::Input(_) | Source::Number(_) => false,
        });
        match unused {
            Some((name, _)) => Err(unusable(format!("a pattern computes `{name}` and does not use it"))),
            None => Ok(()),
        }
    }

    fn sum(&mut self) -> Result<Source> {
        let mut value = self.product()?;
        loop {
            let op = match self.token() {
                Token::Sign('+') => "stablehlo.add",
                Token::Sign('-') => "stablehlo.subtract",
                _ => return Ok(value),
            };
            self.position += 1;
            let right = self.product()?;
            value = self.node(Matcher::Named(op.into()), &[value, right]);
        }
    }

    fn product(&mut self) -> Result<Source> {
        let mut value = self.factor()?;
        loop {
            let op = match self.token() {
                Token::Sign('*') => "stablehlo.multiply",
                Token::Sign('/') => "stablehlo.divide",
                _ => return Ok(value),
            };
            self.position += 1;
            let right = self.factor()?;
            value = self.node(Matcher::Named(op.into()), &[value, right]);
        }
    }

    fn factor(&mut self) -> Result<Source> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(unreadable(self.text, self.at(), "a pattern nested too deeply")
                .expected(format!("at most {DEPTH} levels"))
                .help("name parts of it: `h = ..; ..`"));
        }
        let value = self.simple();
        self.depth -= 1;
        value
    }

    fn simple(&mut self) -> Result<Source> {
        let start = self.position;
        match self.token().clone() {
            Token::Number(number) => {
                self.position += 1;
                Ok(Source::Number(number))
            }
            Token::Sign('-') => {
                self.position += 1;
                Ok(match self.factor()? {
                    Source::Number(number) => Source::Number(-number),
                    value => self.node(Matcher::Named("stablehlo.negate".into()), &[value]),
                })
            }
            Token::Sign('(') => {
                self.position += 1;
                let value = self.sum()?;
                if self.take(')') { Ok(value) } else { Err(self.unexpected("`)`")) }
            }
            Token::Name(name) => {
                self.position += 1;
                if self.take('(') {
                    return self.call(&name, start);
                }
                if let Some(&value) = self.named.get(&name) {
                    return Ok(value);
                }
                let known = self.inputs.iter().position(|input| *input == name);
                let position = known.unwrap_or_else(|| {
                    self.inputs.push(name);
                    self.inputs.len() - 1
                });
                Ok(Source::Input(position))
            }
            _ => Err(self.unexpected("a name, a number, a call, `-` or `(`")),
        }
    }

    /// Parses what follows the opening parenthesis of a call; `start` is the token of its name.
    fn call(&mut self, name: &str, start: usize) -> Result<Source> {
        let mut regex = None;
        if name == "module" {
            let Token::Text(text) = self.token().clone() else {
                return Err(self.unexpected("the module's path in quotes, as a regular expression"));
            };
            // The path or a suffix of it, in whole components.
            let whole = Regex::new(&format!(r"(?:^|\.)(?:{text})$")).map_err(|error| {
                unreadable(self.text, self.at(), format!("`{text}` is not a regular expression"))
                    .found(error.to_string())
            })?;
            regex = Some(whole);
            self.position += 1;
            self.take(',');
        }
        let mut arguments = Vec::new();
        while !self.take(')') {
            arguments.push(self.sum()?);
            if !self.take(',') && *self.token() != Token::Sign(')') {
                return Err(self.unexpected("`,` or `)`"));
            }
        }
        if let Some(regex) = regex {
            return Ok(self.node(Matcher::Module(regex), &arguments));
        }
        match (name, &arguments[..]) {
            ("relu", &[x]) => Ok(self.relu(x)),
            ("linear", &[x, w]) => Ok(self.node(Matcher::Linear, &[x, w])),
            ("linear", &[x, w, b]) => {
                let product = self.node(Matcher::Linear, &[x, w]);
                Ok(self.node(Matcher::Named("stablehlo.add".into()), &[product, b]))
            }
            // Broadcasts are skipped wherever they occur.
            ("broadcast_in_dim", &[x]) => Ok(x),
            _ => {
                let op = self.op_name(name, start, arguments.len())?;
                Ok(self.node(Matcher::Named(op), &arguments))
            }
        }
    }

    fn relu(&mut self, x: Source) -> Source {
        self.has_relu = true;
        let zero = Source::Number(0.0);
        match self.relu {
            Relu::Maximum => self.node(Matcher::Named("stablehlo.maximum".into()), &[x, zero]),
            Relu::Select => {
                let compare = Compare { direction: Direction::Le, compare_type: None };
                let operands = vec![TensorType::scalar(partita_base::DType::F32); 2];
                let low = self.node(Matcher::Like { op: compare.into(), operands }, &[x, zero]);
                self.node(Matcher::Named("stablehlo.select".into()), &[low, zero, x])
            }
        }
    }

    /// The full name of an op or a composite. E240 where there is none.
    fn op_name(&self, name: &str, start: usize, arguments: usize) -> Result<String> {
        let at = self.tokens[start].1;
        if let Some((_, usage)) = SUGAR.iter().find(|(sugar, _)| *sugar == name) {
            return Err(unreadable(self.text, at, format!("`{name}` with {arguments} arguments"))
                .expected(format!("`{usage}`")));
        }
        if name.contains('.') {
            return Ok(name.to_string());
        }
        let registry = Registry::default();
        let mut known: Vec<&str> = ops::names().collect();
        known.extend(registry.names());
        fn short(full: &str) -> &str {
            full.split_once('.').map_or(full, |(_, short)| short)
        }
        if let Some(full) = known.iter().find(|full| full.split_once('.').is_some_and(|(_, s)| s == name)) {
            return Ok(full.to_string());
        }
        let near = known.iter().copied().map(short).chain(SUGAR.map(|(sugar, _)| sugar));
        let mut error = unreadable(self.text, at, format!("there is no op `{name}`"))
            .expected("an op of StableHLO, a composite, `relu`, `linear` or `module`");
        error.help = did_you_mean(name, near);
        Err(error)
    }

    fn node(&mut self, matcher: Matcher, operands: &[Source]) -> Source {
        let operand = |&source: &Source| Operand { source, broadcast: Broadcast::Unsaid };
        self.form.nodes.push(PatternNode { matcher, operands: operands.iter().map(operand).collect() });
        Source::Result(self.form.nodes.len() - 1, 0)
    }
}
