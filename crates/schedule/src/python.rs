//! Reads a plan from a Python file, as PyTorch programs hold it: a dictionary from module patterns
//! to styles.
//!
//! ```python
//! from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
//!
//! parallelize_plan = {
//!     "in_proj": ColwiseParallel(input_layouts=Shard(0)),
//!     "out_proj": RowwiseParallel(output_layouts=Shard(0)),
//! }
//! ```
//!
//! The file is parsed, never executed. The parser accepts literals (dictionaries, strings, numbers,
//! `True`, `False`, `None`, tuples, lists) and calls of styles and layouts; it skips comments and
//! imports. Anything else is E260.

use crate::call::{Argument, Call, MAX_DEPTH};
use crate::plan::Plan;
use partita_base::{Diagnostic, Result, did_you_mean};

/// Accepted names of the dictionary.
const NAMES: [&str; 4] = ["parallelize_plan", "plan", "tp_plan", "base_model_tp_plan"];

/// Parses the plan of a Python text. E260 for anything but a literal, E261 for a repeated pattern,
/// E222 for an unknown style; each with line and column.
pub(crate) fn parse(text: &str, origin: &str) -> Result<Plan> {
    let mut reader = Reader { text, origin, place: 0, depth: 0 };
    let mut plan: Option<(String, Plan)> = None;
    loop {
        reader.skip(true);
        if reader.rest().is_empty() {
            break;
        }
        let start = reader.place;
        if reader.starts_text() {
            reader.text()?;
        } else {
            match reader.word() {
                Some("import" | "from") => reader.skip_statement(),
                Some(name) if reader.skip_to_assigned() => {
                    if !NAMES.contains(&name) {
                        let mut error = reader.wrong(start, "one dictionary, the plan");
                        error.help = did_you_mean(name, NAMES)
                            .or_else(|| Some(format!("call it one of {}", NAMES.join(", "))));
                        return Err(error);
                    }
                    if let Some((before, _)) = &plan {
                        return Err(reader
                            .wrong(start, "one dictionary, the plan")
                            .note(format!("`{before}` is a plan already")));
                    }
                    plan = Some((name.to_string(), reader.plan()?));
                }
                _ => return Err(reader.wrong(start, "imports and one dictionary, the plan")),
            }
        }
        reader.end_of_statement()?;
    }
    plan.map(|(_, plan)| plan).ok_or_else(|| {
        Diagnostic::new("E260", "the file contains no plan")
            .at(origin)
            .expected(format!("a dictionary called {}", NAMES.join(" or ")))
            .found(if text.trim().is_empty() { "nothing" } else { "only imports and comments" })
    })
}

struct Reader<'a> {
    text: &'a str,
    origin: &'a str,
    place: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.place..]
    }

    /// `plan.py:3:5`, from a place in the text.
    fn at(&self, place: usize) -> String {
        let before = &self.text[..place];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("{}:{line}:{column}", self.origin)
    }

    /// The line of a place: `plan.py:3`.
    fn line_at(&self, place: usize) -> String {
        format!("{}:{}", self.origin, self.text[..place].matches('\n').count() + 1)
    }

    fn wrong(&self, place: usize, expected: &str) -> Box<Diagnostic> {
        let line = self.text[place..].lines().next().unwrap_or_default().trim_end();
        let found: String = line.chars().take(40).collect();
        let found = match (found.is_empty(), place == self.text.len()) {
            (true, true) => "the end of the file".to_string(),
            (true, false) => "the end of the line".to_string(),
            (false, _) if line.chars().count() > 40 => format!("`{found}..`"),
            (false, _) => format!("`{found}`"),
        };
        Diagnostic::new("E260", "a plan in Python is parsed and not run, and this is not a literal")
            .at(self.at(place))
            .expected(expected)
            .found(found)
            .help("write only literals and calls of styles")
    }

    /// Skips blanks, comments and continued lines; line ends too if `lines` is set.
    fn skip(&mut self, lines: bool) {
        loop {
            let rest = self.rest();
            let blanks = rest.len()
                - rest.trim_start_matches(|c: char| c.is_whitespace() && (lines || c != '\n')).len();
            self.place += blanks;
            let rest = self.rest();
            if rest.starts_with('#') {
                self.place += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("\\\n") || rest.starts_with("\\\r\n") {
                self.place += rest.find('\n').map_or(1, |end| end + 1);
            } else if blanks == 0 {
                return;
            }
        }
    }

    /// The next character inside brackets.
    fn peek(&mut self) -> Option<char> {
        self.skip(true);
        self.rest().chars().next()
    }

    fn take(&mut self, letter: char) -> bool {
        let found = self.peek() == Some(letter);
        if found {
            self.place += letter.len_utf8();
        }
        found
    }

    /// A name, perhaps dotted.
    fn word(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let starts = rest.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let length =
            rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.'))).unwrap_or(rest.len());
        starts.then(|| {
            self.place += length;
            &rest[..length]
        })
    }

    /// Skips the rest of an import: to the end of its line, or of its parentheses.
    fn skip_statement(&mut self) {
        let mut open = 0usize;
        loop {
            self.skip(open > 0);
            let Some(letter) = self.rest().chars().next() else { return };
            match letter {
                '(' => open += 1,
                ')' => open = open.saturating_sub(1),
                '\n' | ';' if open == 0 => return,
                _ => {}
            }
            self.place += letter.len_utf8();
        }
    }

    /// Skips `=` and a type annotation before it, and skips nothing elsewhere.
    fn skip_to_assigned(&mut self) -> bool {
        let start = self.place;
        self.skip(false);
        if self.rest().starts_with(':') {
            let line = self.rest().lines().next().unwrap_or_default();
            self.place += line.find('=').unwrap_or(line.len());
        }
        let assigned = self.rest().starts_with('=') && !self.rest().starts_with("==");
        self.place = if assigned { self.place + 1 } else { start };
        assigned
    }

    fn end_of_statement(&mut self) -> Result<()> {
        self.skip(false);
        match self.rest().chars().next() {
            None => Ok(()),
            Some('\n' | ';') => {
                self.place += 1;
                Ok(())
            }
            Some(_) => Err(self.wrong(self.place, "the end of the line")),
        }
    }

    /// The dictionary.
    fn plan(&mut self) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut patterns: Vec<(String, usize)> = Vec::new();
        if !self.take('{') {
            return Err(self.wrong(self.place, "`{`, a dictionary of module patterns and styles"));
        }
        while !self.take('}') {
            let start = self.place;
            if !self.starts_text() {
                return Err(self.wrong(start, "a module pattern in quotes"));
            }
            let pattern = self.text()?;
            if let Some((_, before)) = patterns.iter().find(|(other, _)| *other == pattern) {
                return Err(Diagnostic::new("E261", format!("the dictionary has the key `{pattern}` twice"))
                    .at(self.at(start))
                    .expected("one entry for each pattern")
                    .note(format!("the first one is at {}", self.at(*before)))
                    .help("write a list for several styles of one module: `[..., ...]`"));
            }
            patterns.push((pattern.clone(), start));
            if !self.take(':') {
                return Err(self.wrong(self.place, "`:`"));
            }
            self.styles(&mut plan, &pattern)?;
            self.comma_before('}')?;
        }
        Ok(plan)
    }

    /// The request for one pattern: a style, or a list of them.
    fn styles(&mut self, plan: &mut Plan, pattern: &str) -> Result<()> {
        let close = match self.peek() {
            Some('[') => ']',
            Some('(') => ')',
            _ => return self.style(plan, pattern),
        };
        self.place += 1;
        while !self.take(close) {
            self.style(plan, pattern)?;
            self.comma_before(close)?;
        }
        Ok(())
    }

    fn style(&mut self, plan: &mut Plan, pattern: &str) -> Result<()> {
        self.skip(true);
        let start = self.place;
        let call = if self.starts_text() {
            Call::parse(&self.text()?)
        } else {
            match self.value()? {
                Argument::Call(call) => Ok(call),
                _ => return Err(self.wrong(start, "a style: a call, or its name in quotes")),
            }
        };
        call.and_then(|call| plan.add_call(pattern, &call, &self.line_at(start)))
            .map_err(|error| error.at(format!("{}: \"{pattern}\"", self.at(start))))
    }

    fn comma_before(&mut self, close: char) -> Result<()> {
        if self.take(',') || self.peek() == Some(close) {
            return Ok(());
        }
        Err(self.wrong(self.place, &format!("`,` or `{close}`")))
    }

    fn value(&mut self) -> Result<Argument> {
        self.skip(true);
        let start = self.place;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wrong(start, &format!("at most {MAX_DEPTH} levels of nested values")));
        }
        let value = if self.starts_text() {
            Argument::Text(self.text()?)
        } else {
            match self.peek() {
                Some('[') => Argument::List(self.list(']')?.0),
                Some('(') => match self.list(')')? {
                    // One value in parentheses without a comma is not a tuple.
                    (mut values, false) if values.len() == 1 => values.remove(0),
                    (values, _) => Argument::List(values),
                },
                Some('{') => self.dictionary()?,
                Some(c) if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => self.number()?,
                _ => self.named()?,
            }
        };
        self.depth -= 1;
        Ok(value)
    }

    /// A call, or one of the names that are literals.
    fn named(&mut self) -> Result<Argument> {
        let start = self.place;
        let Some(name) = self.word() else { return Err(self.wrong(start, "a literal or a style")) };
        self.skip(true);
        if !self.rest().starts_with('(') {
            return match name {
                "True" => Ok(Argument::Bool(true)),
                "False" => Ok(Argument::Bool(false)),
                "None" => Ok(Argument::text("None")),
                _ => Err(self.wrong(start, "a literal or a style, which is a call: `Replicate()`")),
            };
        }
        self.place += 1;
        // Accepts any import form: `parallel.ColwiseParallel`.
        let mut call = Call::new(name.rsplit('.').next().unwrap_or(name));
        while !self.take(')') {
            let start = self.place;
            let key = self.word().filter(|_| self.skip_to_assigned());
            if key.is_none() {
                self.place = start;
            }
            let value = self.value()?;
            call = call.with(key, value);
            self.comma_before(')')?;
        }
        Ok(Argument::Call(call))
    }

    fn list(&mut self, close: char) -> Result<(Vec<Argument>, bool)> {
        self.place += 1;
        let (mut values, mut comma) = (Vec::new(), false);
        while !self.take(close) {
            values.push(self.value()?);
            let end = self.place;
            self.comma_before(close)?;
            comma |= self.text[end..self.place].ends_with(',');
        }
        Ok((values, comma))
    }

    /// A dictionary argument becomes its text, so that the style can reject it.
    fn dictionary(&mut self) -> Result<Argument> {
        let start = self.place;
        self.place += 1;
        while !self.take('}') {
            self.value()?;
            if !self.take(':') {
                return Err(self.wrong(self.place, "`:`"));
            }
            self.value()?;
            self.comma_before('}')?;
        }
        Ok(Argument::text(&self.text[start..self.place]))
    }

    fn number(&mut self) -> Result<Argument> {
        let rest = self.rest();
        // A sign is at the start, or follows the letter of an exponent.
        let mut last = ' ';
        let end = rest
            .find(|c: char| {
                let signed = matches!(c, '+' | '-') && matches!(last, ' ' | 'e' | 'E');
                last = c;
                !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_') || signed)
            })
            .unwrap_or(rest.len());
        let digits = rest[..end].replace('_', "");
        let value = match (digits.parse(), digits.parse::<f64>()) {
            (Ok(value), _) => Argument::Int(value),
            (_, Ok(value)) if value.is_finite() => Argument::Float(value),
            _ => return Err(self.wrong(self.place, "a decimal number")),
        };
        self.place += end;
        Ok(value)
    }

    /// Whether a string begins here, with or without a prefix.
    fn starts_text(&self) -> bool {
        let rest = self.rest();
        let after = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        rest.len() - after.len() <= 2 && after.starts_with(['"', '\''])
    }

    /// A string; adjacent strings are concatenated.
    fn text(&mut self) -> Result<String> {
        let mut text = String::new();
        loop {
            self.one_text(&mut text)?;
            let end = self.place;
            self.skip(true);
            if !self.starts_text() {
                self.place = end;
                return Ok(text);
            }
        }
    }

    fn one_text(&mut self, text: &mut String) -> Result<()> {
        let start = self.place;
        let raw = match self.rest().chars().next() {
            Some('"' | '\'') => false,
            Some(prefix) => {
                let quote = self.rest().chars().nth(1);
                if !matches!(prefix, 'r' | 'R' | 'u' | 'U') || !matches!(quote, Some('"' | '\'')) {
                    return Err(self.wrong(start, "a string without a prefix, or with `r` or `u`"));
                }
                self.place += 1;
                matches!(prefix, 'r' | 'R')
            }
            None => return Err(self.wrong(start, "a string")),
        };
        let quote = &self.rest()[..1];
        let triple = quote.repeat(3);
        let close = if self.rest().starts_with(&triple) { triple.as_str() } else { quote };
        self.place += close.len();
        loop {
            let rest = self.rest();
            let Some(letter) = rest.chars().next().filter(|c| close.len() == 3 || *c != '\n') else {
                return Err(self.wrong(start, "a string with its closing quote"));
            };
            if rest.starts_with(close) {
                self.place += close.len();
                return Ok(());
            }
            self.place += letter.len_utf8();
            match letter {
                '\\' if !raw => self.escape(text)?,
                '\\' => {
                    text.push('\\');
                    // A quote behind a backslash does not end a raw string.
                    if let Some(next) = self.rest().chars().next() {
                        text.push(next);
                        self.place += next.len_utf8();
                    }
                }
                letter => text.push(letter),
            }
        }
    }

    /// The character that an escape means.
    fn escape(&mut self, text: &mut String) -> Result<()> {
        let start = self.place - 1;
        let letter = self.rest().chars().next();
        let letter = letter.ok_or_else(|| self.wrong(start, "a string with its closing quote"))?;
        self.place += letter.len_utf8();
        let digits = match letter {
            'x' => 2,
            'u' => 4,
            _ => {
                match letter {
                    '\n' => {}
                    '\\' | '\'' | '"' => text.push(letter),
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    // As Python does.
                    _ => text.extend(['\\', letter]),
                }
                return Ok(());
            }
        };
        let code = self.rest().get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let decoded = code.and_then(char::from_u32);
        text.push(decoded.ok_or_else(|| self.wrong(start, "the code of a character"))?);
        self.place += digits;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOY: &str = r#""""Sequence parallelism, as the example of PyTorch has it."""
import torch.nn as nn
from torch.distributed.tensor.parallel import (  # of 2.5
    ColwiseParallel,
    RowwiseParallel,
)
from torch.distributed.tensor import \
    Shard

# The plan.
parallelize_plan: dict[str, "Style"] = {
    "in_proj": ColwiseParallel(input_layouts=Shard(0)),  # gathered
    'layers.*.'
    "out_proj": parallel.RowwiseParallel(output_layouts=Shard(dim=-1), use_local_output=False,),
    "norm": SequenceParallel(),
    r"attn\d": PrepareModuleInput(
        input_layouts=(Shard(1), None),
        desired_input_layouts=(Replicate(), None),
    ),
    "head": ["colwise_rep", "fsdp(axis='dp')"],
}
"#;

    #[test]
    fn a_dictionary_of_styles_is_read_as_it_stands() {
        let plan = Plan::parse(TOY, "toy.py").unwrap();
        let lines: Vec<String> = plan.entries.iter().map(|entry| entry.describe()).collect();
        assert_eq!(
            lines,
            [
                r#""in_proj" = "colwise(input_from=shard(0))" (toy.py:12)"#,
                r#""layers.*.out_proj" = "rowwise(output=shard(-1), use_local_output=false)" (toy.py:14)"#,
                r#""norm" = "sequence" (toy.py:15)"#,
                r#""attn\d" = "prepare(input_from=[shard(1), none], input=[replicate, none])" (toy.py:16)"#,
                r#""head" = "colwise(output=replicate)" (toy.py:20)"#,
                r#""head" = "fsdp(axis=dp)" (toy.py:20)"#,
            ]
        );
        for spelled in [plan.to_calls(), plan.to_dict_toml(), plan.to_toml()] {
            assert_eq!(Plan::parse(&spelled, "again").unwrap(), plan, "{spelled}");
        }
        for name in NAMES {
            let plan = Plan::parse(&format!("{name} = {{}}"), "toy.py").unwrap();
            assert!(plan.entries.is_empty());
        }
        let escaped = Plan::parse("plan = {'a\\x2e\\u0062\\\nc\\'': 'zero1'}", "toy.py").unwrap();
        assert_eq!(escaped.entries[0].modules, "a.bc'");
    }

    #[test]
    fn what_is_no_literal_is_named_with_line_and_column() {
        for (text, place, found) in [
            ("", "p.py", "nothing"),
            ("import torch\n# empty\n", "p.py", "only imports and comments"),
            ("x = 3", "p.py:1:1", "`x = 3`"),
            ("paln = {}", "p.py:1:1", "`paln = {}`"),
            ("plan = {}\ntp_plan = {}", "p.py:2:1", "`tp_plan = {}`"),
            ("plan = build()", "p.py:1:8", "`build()`"),
            ("plan = {} | other", "p.py:1:11", "`| other`"),
            ("plan = {\n  **base,\n}", "p.py:2:3", "`**base,`"),
            ("plan = {\n  name: colwise(),\n}", "p.py:2:3", "`name: colwise(),`"),
            ("plan = {\n  \"a\" + \"b\": colwise()}", "p.py:2:7", "`+ \"b\": colwise()}`"),
            ("plan = {f\"a.{i}\": 'colwise'}", "p.py:1:9", "`f\"a.{i}\": 'colwise'}`"),
            ("plan = {'a': style}", "p.py:1:14", "`style}`"),
            ("plan = {'a': ColwiseParallel(output_layouts=Replicate)}", "p.py:1:45", "`Replicate)}`"),
            ("plan = {'a': Shard(0 + 1)}", "p.py:1:22", "`+ 1)}`"),
            ("plan = {'a': Shard(0x10)}", "p.py:1:20", "`0x10)}`"),
            ("plan = {'a': colwise() for a in b}", "p.py:1:24", "`for a in b}`"),
            ("plan = {'a': 3}", "p.py:1:14", "`3}`"),
            ("plan = {'a': colwise(", "p.py:1:22", "the end of the file"),
            ("plan = {'a", "p.py:1:9", "`'a`"),
            ("plan = {'a' 'colwise'}", "p.py:1:22", "`}`"),
            ("plan = {'a\\xzz': colwise()}", "p.py:1:11", "`\\xzz': colwise()}`"),
            ("for i in range(3):\n  pass", "p.py:1:1", "`for i in range(3):`"),
            ("\n\nprint(plan)", "p.py:3:1", "`print(plan)`"),
        ] {
            let error = Plan::parse(text, "p.py").unwrap_err();
            assert_eq!(error.code, "E260", "{text}\n{error}");
            assert_eq!(error.at.as_deref(), Some(place), "{text}\n{error}");
            assert_eq!(error.found.as_deref(), Some(found), "{text}\n{error}");
        }
        let deep = format!("plan = {{'a': colwise(input={}", "(".repeat(100_000));
        let error = Plan::parse(&deep, "p.py").unwrap_err();
        assert_eq!(
            (error.code, error.expected.as_deref()),
            ("E260", Some("at most 32 levels of nested values"))
        );
    }

    #[test]
    fn a_pattern_twice_and_a_wrong_style_are_told_where_they_stand() {
        let error = Plan::parse("plan = {\n 'a': 'colwise',\n 'a': 'rowwise',\n}", "p.py").unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), ("E261", Some("p.py:3:2")));
        assert_eq!(error.notes, ["the first one is at p.py:2:2"]);
        let error = Plan::parse("plan = {\n 'a': ColwisParallel(),\n}", "p.py").unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), ("E222", Some("p.py:2:7: \"a\"")));
        assert!(error.help.as_deref().unwrap().contains("ColwiseParallel"), "{error}");
        let dictionary = "plan = {'a': PrepareModuleInput(input_kwarg_layouts={'mask': Shard(0)})}";
        let error = Plan::parse(dictionary, "p.py").unwrap_err();
        assert!(error.to_string().contains("by position, not by name"), "{error}");
    }
}
