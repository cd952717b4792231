//! Test files as cases: for each test function, the programs that compute what is compared.
//!
//! The checks are not operations of our language. So a test function is rewritten, as text: checks
//! are removed, and the values that they compare become results of the function. A
//! `run_parallel` ends a stage: what stands before it computes its operands, and its results are
//! arguments of the functions of later stages.

use partita_base::{Diagnostic, Result};
use partita_mlir::{Attribute, Form, Kind, Operation, Region, Source, Span, Tree, Type};
use std::collections::HashMap;

/// How two values are compared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Check {
    /// Equal elements.
    Equal,
    /// Up to an absolute or relative difference.
    Almost(f64),
    /// Up to a number of floats between them, and at least another number.
    Close { min: u64, max: u64 },
}

/// One `run_parallel`.
#[derive(Clone, Debug)]
pub struct Parallel {
    /// The function of each partition of each replica.
    pub programs: Vec<Vec<String>>,
    /// The functions that give the values that `infeed` reads, in order.
    pub infeed: Vec<String>,
}

/// One test function.
pub struct Case {
    /// Its name.
    pub function: String,
    /// The module of each stage; the function takes the results of all earlier stages' programs.
    pub stages: Vec<String>,
    /// What runs after each stage but the last.
    pub runs: Vec<Parallel>,
    /// How each pair of results of the last stage is compared.
    pub checks: Vec<Check>,
}

/// The modules of a file, without what only prints.
pub fn modules(text: &str) -> Vec<String> {
    let prints = |line: &&str| line.trim_start().starts_with("interpreter.print");
    let text = &text.lines().filter(|line| !prints(line)).collect::<Vec<_>>().join("\n");
    let Some((_, parts)) = text.split_once("//--- part1.mlir") else {
        return text.split("// -----").map(str::to_string).filter(|part| has_code(part)).collect();
    };
    let (first, second) = parts.split_once("//--- part2.mlir").unwrap_or((parts, ""));
    // Copies of the functions under other names: those that the header makes with `sed`, and the
    // references that runners of such files make by convention.
    let mut copies: Vec<(&str, &str)> = text.split("sed 's/").skip(1).filter_map(renaming).collect();
    for (from, to) in [("parallel_", "sequential_"), ("transformed_", "original_")] {
        if first.contains(&format!("@{from}")) && !first.contains(&format!("@{to}")) {
            copies.push((from, to));
        }
    }
    let copies: Vec<String> = copies.into_iter().filter_map(|copy| twins(first, copy).ok()).collect();
    vec![format!("{first}\n{}\n{second}", copies.join("\n"))]
}

fn has_code(part: &str) -> bool {
    part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//"))
}

/// `a/b/g'` of a substitution.
fn renaming(text: &str) -> Option<(&str, &str)> {
    let (from, rest) = text.split_once('/')?;
    let (to, end) = rest.split_once('/')?;
    end.starts_with("g'").then_some((from, to))
}

/// The functions of a text under other names. On one device their layouts mean nothing.
fn twins(text: &str, (from, to): (&str, &str)) -> Result<String> {
    let tree = Tree::parse(Source { text, file: "part1" })?;
    let functions = functions(&tree);
    let texts = functions.iter().map(|function| tree.slice(&function.operation.span));
    Ok(texts.collect::<Vec<_>>().join("\n").replace(from, to))
}

struct Function<'a> {
    operation: &'a Operation,
    name: String,
    is_private: bool,
    takes_nothing: bool,
    body: Option<&'a Region>,
}

/// The functions of a module and of the modules inside it.
fn functions<'a>(tree: &'a Tree) -> Vec<Function<'a>> {
    let mut found = Vec::new();
    let mut open = tree.top.clone();
    while let Some(id) = open.pop() {
        let operation = tree.operation(id);
        match tree.name(operation).as_str() {
            "module" | "builtin.module" => {
                let regions = operation.regions().iter().map(|&region| tree.region(region));
                open.extend(regions.flat_map(|region| &region.blocks).flat_map(|block| &block.operations));
            }
            "func.func" | "func" => {
                let symbol = operation.span.clone().find(|&at| tree.tokens.list[at].kind == Kind::Symbol);
                let Some(symbol) = symbol else { continue };
                found.push(Function {
                    operation,
                    name: tree.text(symbol)[1..].to_string(),
                    is_private: tree.text(symbol - 1) == "private",
                    takes_nothing: tree.tokens.closing[symbol + 1] == symbol + 2,
                    body: operation.regions().last().map(|&region| tree.region(region)),
                });
            }
            _ => {}
        }
    }
    found.sort_by_key(|function| function.operation.span.start);
    found
}

/// The test functions of a module. An error if its text is not MLIR, or a check has an unknown form.
pub fn cases(text: &str) -> Result<Vec<Case>> {
    let tree = Tree::parse(Source { text, file: "test" })?;
    let functions = functions(&tree);
    let is_used = |name: &str| {
        let symbol = format!("@{name}");
        let uses = tree.tokens.list.iter().filter(|token| token.kind == Kind::Symbol);
        uses.filter(|token| text[token.start..token.end] == symbol).count() > 1
    };
    let is_test = |f: &&Function| f.takes_nothing && !f.is_private && f.body.is_some() && !is_used(&f.name);
    functions.iter().filter(is_test).map(|function| Rewrite::of(&tree, function)).collect()
}

/// A function being rewritten.
struct Rewrite<'a, 't> {
    tree: &'a Tree<'t>,
    function: &'a Function<'a>,
    /// The statements of every stage so far.
    body: String,
    /// Names of values that stand for others.
    names: HashMap<String, String>,
    probes: HashMap<String, String>,
    /// Arguments: name and type.
    arguments: Vec<(String, String)>,
    /// The values that are compared, in pairs, with their types.
    compared: Vec<(String, String)>,
    case: Case,
}

impl<'a, 't> Rewrite<'a, 't> {
    fn of(tree: &'a Tree<'t>, function: &'a Function<'a>) -> Result<Case> {
        let case = Case { function: function.name.clone(), stages: vec![], runs: vec![], checks: vec![] };
        let mut rewrite = Rewrite {
            tree,
            function,
            body: String::new(),
            names: HashMap::new(),
            probes: HashMap::new(),
            arguments: Vec::new(),
            compared: Vec::new(),
            case,
        };
        let blocks = function.body.map_or(&[][..], |body| &body.blocks);
        let operations = blocks.first().map_or(&[][..], |block| &block.operations);
        for &id in operations {
            rewrite.statement(tree.operation(id))?;
        }
        let compared = std::mem::take(&mut rewrite.compared);
        rewrite.stage(&compared);
        Ok(rewrite.case)
    }

    fn unknown(&self, operation: &Operation, what: &str) -> Box<Diagnostic> {
        let start = self.tree.tokens.list[operation.span.start].start;
        self.tree.source.error("E144", format!("the test harness does not know {what}"), start)
    }

    fn statement(&mut self, operation: &Operation) -> Result<()> {
        let name = self.tree.name(operation);
        let target = match name.as_str() {
            "stablehlo.custom_call" => self.find(operation, |text| text.starts_with("@check.")),
            _ => None,
        };
        let is_call = target.is_some();
        let name = target.map_or(name, |at| self.tree.text(at)[1..].to_string());
        match name.as_str() {
            "return" | "func.return" | "interpreter.print" => {}
            "interpreter.probe" => self.probe(operation),
            "interpreter.run_parallel" => self.parallel(operation)?,
            _ => match name.strip_prefix("check.") {
                Some(check) => self.check(operation, check, is_call)?,
                None => {
                    let text = self.rendered(&operation.span);
                    self.body.push_str(&format!("    {text}\n"));
                }
            },
        }
        Ok(())
    }

    /// The first token of an operation with such a text.
    fn find(&self, operation: &Operation, is: impl Fn(&str) -> bool) -> Option<usize> {
        operation.span.clone().find(|&at| is(self.tree.text(at)))
    }

    /// The value of `name = value`.
    fn attribute(&self, operation: &Operation, name: &str) -> Option<&'t str> {
        self.find(operation, |text| text == name).map(|at| self.tree.text(at + 2))
    }

    /// The names of the operands.
    fn operands(&self, operation: &Operation) -> Vec<String> {
        let start = operation.name + 1;
        let values = (start..operation.span.end).filter(|&at| self.tree.tokens.list[at].kind == Kind::Value);
        values.map(|at| self.name(self.tree.text(at))).collect()
    }

    fn name(&self, text: &str) -> String {
        self.names.get(text).cloned().unwrap_or_else(|| text.to_string())
    }

    /// The first tensor type of a signature: behind the last colon outside brackets.
    fn tensor(&self, operation: &Operation) -> Option<String> {
        let mut at = operation.name + 1;
        let mut signature = None;
        while at < operation.span.end {
            if self.tree.tokens.list[at].kind == Kind::Mark(':') {
                signature = Some(at);
            }
            let closing = self.tree.tokens.closing[at];
            at = if closing == usize::MAX { at + 1 } else { closing + 1 };
        }
        let word = (signature?..operation.span.end).find(|&at| self.tree.text(at) == "tensor")?;
        Some(self.tree.slice(&(word..self.angle(word + 1))).to_string())
    }

    /// The token behind the `>` that closes the `<` at `at`.
    fn angle(&self, at: usize) -> usize {
        let mut depth = 0;
        for position in at..self.tree.tokens.list.len() {
            match self.tree.tokens.list[position].kind {
                Kind::Mark('<') => depth += 1,
                Kind::Mark('>') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return position + 1;
            }
        }
        self.tree.tokens.list.len() - 1
    }

    /// The text of these tokens with values renamed.
    fn rendered(&self, span: &Span) -> String {
        let (text, tokens) = (self.tree.source.text, &self.tree.tokens.list);
        let mut out = String::new();
        let mut copied = tokens[span.start].start;
        for token in &tokens[span.clone()] {
            let name = &text[token.start..token.end];
            if let (Kind::Value, Some(other)) = (token.kind, self.names.get(name)) {
                out.push_str(&text[copied..token.start]);
                out.push_str(other);
                copied = token.end;
            }
        }
        out.push_str(&text[copied..tokens[span.end - 1].end]);
        out
    }

    fn probe(&mut self, operation: &Operation) {
        let operand = self.operands(operation).remove(0);
        if let Some(result) = operation.results.first() {
            self.names.insert(self.tree.text(result.name).to_string(), operand.clone());
        }
        if let Some(id) = self.attribute(operation, "probe_id") {
            self.probes.insert(id.to_string(), operand);
        }
    }

    /// A check, as an operation of its own or as a custom call, which has wider tolerances.
    fn check(&mut self, operation: &Operation, check: &str, is_call: bool) -> Result<()> {
        let ty = self.tensor(operation).ok_or_else(|| self.unknown(operation, "this check"))?;
        let mut values = self.operands(operation);
        if let Some(at) = self.find(operation, |text| text == "dense") {
            let constant = format!("%check_{}", self.compared.len());
            let dense = self.tree.slice(&(at..self.angle(at + 1)));
            self.body.push_str(&format!("    {constant} = stablehlo.constant {dense} : {ty}\n"));
            values.push(constant);
        }
        if check == "expect_serialized_eq" {
            let id = self.attribute(operation, "probe_id").unwrap_or("");
            let probe = self.probes.get(id).cloned();
            values.push(probe.ok_or_else(|| self.unknown(operation, "this probe"))?);
        }
        let ulps = |name: &str, default: u64| {
            self.attribute(operation, name).map_or(Some(default), |text| text.parse().ok())
        };
        let kind = match check {
            "expect_eq" | "expect_eq_const" | "expect_serialized_eq" => Some(Check::Equal),
            "expect_almost_eq" | "expect_almost_eq_const" => {
                let tolerance = self.attribute(operation, "tolerance").map(str::parse);
                tolerance.unwrap_or(Ok(if is_call { 1e-3 } else { 1e-4 })).ok().map(Check::Almost)
            }
            "expect_close" => {
                let (min, max) =
                    (ulps("min_ulp_difference", 0), ulps("max_ulp_difference", if is_call { 3 } else { 1 }));
                min.zip(max).map(|(min, max)| Check::Close { min, max })
            }
            _ => None,
        };
        let (Some(kind), [first, second]) = (kind, &values[..]) else {
            return Err(self.unknown(operation, &format!("`check.{check}`")));
        };
        self.case.checks.push(kind);
        self.compared.extend([(first.clone(), ty.clone()), (second.clone(), ty)]);
        Ok(())
    }

    fn parallel(&mut self, operation: &Operation) -> Result<()> {
        let Form::Generic(generic) = &operation.form else {
            return Err(self.unknown(operation, "this form"));
        };
        let text_of = |ty: &Type| match ty {
            Type::Plain(word) => self.tree.text(*word).to_string(),
            Type::Builtin(word, inner) => self.tree.slice(&(*word..inner.end + 1)).to_string(),
            _ => String::new(),
        };
        let operands: Vec<String> =
            generic.operands.iter().map(|&at| self.name(self.tree.text(at))).collect();
        let operand_types = generic.operand_types.iter().map(text_of);
        let returned: Vec<(String, String)> = operands.into_iter().zip(operand_types).collect();
        let result_types: Vec<String> = generic.result_types.iter().map(text_of).collect();
        let named = |name: &str| {
            let named = generic.attributes.iter().find(|named| self.tree.text(named.name) == name);
            named.map(|named| &named.value)
        };
        let symbols = |attribute: &Attribute| -> Vec<String> {
            let Attribute::List(list) = attribute else { return Vec::new() };
            let symbol = |attribute: &Attribute| match attribute {
                Attribute::Symbol(span) => self.tree.slice(span)[1..].to_string(),
                _ => String::new(),
            };
            list.iter().map(symbol).collect()
        };
        let programs = match named("programs") {
            Some(Attribute::List(replicas)) => replicas.iter().map(symbols).collect(),
            _ => Vec::new(),
        };
        let run = Parallel { programs, infeed: named("infeed").map(symbols).unwrap_or_default() };
        self.stage(&returned);
        let number = self.case.runs.len();
        self.case.runs.push(run);
        let mut types = result_types.into_iter();
        for result in &operation.results {
            let name = self.tree.text(result.name);
            for position in 0..result.count {
                let argument = format!("%run{number}_{}_{position}", &name[1..]);
                self.names.insert(format!("{name}#{position}"), argument.clone());
                if position == 0 {
                    self.names.insert(name.to_string(), argument.clone());
                }
                self.arguments.push((argument, types.next().unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// Ends a stage that returns these values.
    fn stage(&mut self, returned: &[(String, String)]) {
        let list = |parts: Vec<&str>| parts.join(", ");
        let arguments: Vec<String> =
            self.arguments.iter().map(|(name, ty)| format!("{name}: {ty}")).collect();
        let types = list(returned.iter().map(|(_, ty)| ty.as_str()).collect());
        let values = list(returned.iter().map(|(name, _)| name.as_str()).collect());
        let colon = if returned.is_empty() { "" } else { " : " };
        let function = format!(
            "func.func public @{}({}) -> ({types}) {{\n{}    return {values}{colon}{types}\n  }}",
            self.function.name,
            arguments.join(", "),
            self.body
        );
        let (text, tokens) = (self.tree.source.text, &self.tree.tokens.list);
        let span = &self.function.operation.span;
        let (before, after) = (tokens[span.start].start, tokens[span.end - 1].end);
        self.case.stages.push(format!("{}{function}{}", &text[..before], &text[after..]));
    }
}
