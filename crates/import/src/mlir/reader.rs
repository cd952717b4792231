//! Functions, regions, types and operands; the ops themselves are in the tables of their dialects.

use super::{DIALECTS, REFUSED, TABLES};
use crate::Limits;
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use partita_ir::{Graph, GraphBuilder, Literal, Role, TensorType, ValueId, graph_edit, text};
use partita_mlir::{Cursor, Form, Kind, Operation, OperationId, Region, Tree, Type, unquote};
use std::collections::BTreeMap;

/// The most regions and calls within each other.
const DEPTH: usize = 64;

/// A function under construction.
pub(super) struct Reader<'a> {
    pub tree: &'a Tree<'a>,
    pub b: GraphBuilder,
    pub limits: &'a Limits,
    /// The integers that are known while reading: constants, and what is computed from them.
    pub known: BTreeMap<ValueId, i128>,
    /// The iteration space of the `linalg` op whose body is read: a scalar there is a tensor of this shape, or of rank 0.
    pub space: Option<Vec<usize>>,
    /// Values by name, the innermost region last.
    names: Vec<BTreeMap<String, ValueId>>,
    functions: BTreeMap<String, (OperationId, bool)>,
    /// The functions being read, outermost first.
    calls: Vec<String>,
    /// Regions that are open, those of callers included.
    depth: usize,
    /// Ops read so far, those of calls and loops each time.
    count: usize,
}

/// A type in the text.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Declared {
    pub ty: TensorType,
    /// Whether it is the type of a scalar, such as `f32` or `index`, and not of a tensor.
    pub is_scalar: bool,
}

/// An op in the text: the tokens after its name.
pub(super) struct Op<'a> {
    pub name: String,
    /// The token of its name.
    pub at: usize,
    pub operation: &'a Operation,
    pub cursor: Cursor<'a, 'a>,
    /// One past its last token.
    pub end: usize,
}

impl<'a> Reader<'a> {
    pub fn new(tree: &'a Tree<'a>, limits: &'a Limits) -> Reader<'a> {
        Reader {
            tree,
            b: GraphBuilder::new("main"),
            limits,
            known: BTreeMap::new(),
            space: None,
            names: Vec::new(),
            functions: BTreeMap::new(),
            calls: Vec::new(),
            depth: 0,
            count: 0,
        }
    }

    /// The graph of a function.
    pub fn read(mut self, name: Option<&str>) -> Result<Graph> {
        self.index(&self.tree.top)?;
        let name = match name {
            Some(name) => name.to_string(),
            None => self.entry()?,
        };
        let outputs = self.function(&name, None, 0)?;
        let named =
            outputs.into_iter().enumerate().map(|(at, value)| (format!("result{at}"), value)).collect();
        let mut graph = graph_edit::prune(self.b.finish_checked(named)?);
        graph.name = name;
        Ok(graph)
    }

    /// Finds the functions of a module.
    fn index(&mut self, operations: &[OperationId]) -> Result<()> {
        for &id in operations {
            let operation = self.tree.operation(id);
            match self.tree.name(operation).as_str() {
                "module" | "builtin.module" => {
                    for &region in operation.regions() {
                        for block in &self.tree.region(region).blocks {
                            self.index(&block.operations)?;
                        }
                    }
                }
                "func.func" | "func" => {
                    let mut cursor = self.cursor(operation.name + 1);
                    let is_public = !cursor.at_word("private");
                    if cursor.kind() == Kind::Word {
                        cursor.advance();
                    }
                    if cursor.kind() != Kind::Symbol {
                        return Err(cursor.unexpected("the name of a function"));
                    }
                    let name = unquote(cursor.text().trim_start_matches('@'));
                    if self.functions.insert(name.clone(), (id, is_public)).is_some() {
                        return Err(cursor.error("E143", format!("function `@{name}` is defined twice")));
                    }
                }
                _ => {
                    return Err(self.error(operation.name, "E140", "unexpected text").expected("a function"));
                }
            }
        }
        Ok(())
    }

    /// `@main`, or the only public function.
    fn entry(&self) -> Result<String> {
        if self.functions.contains_key("main") {
            return Ok("main".to_string());
        }
        let public: Vec<&String> =
            self.functions.iter().filter(|(_, (_, public))| *public).map(|(name, _)| name).collect();
        match public[..] {
            [only] => Ok(only.clone()),
            _ => Err(Diagnostic::new("E143", "there is no entry function")
                .at(self.tree.source.file)
                .expected("a function `@main`, a single public function, or the name of one")
                .found(public.iter().map(|name| format!("`@{name}`")).collect::<Vec<_>>().join(", "))),
        }
    }

    /// The results of a function for these arguments; without them, its arguments become inputs of the graph.
    pub fn function(
        &mut self,
        name: &str,
        arguments: Option<Vec<ValueId>>,
        at: usize,
    ) -> Result<Vec<ValueId>> {
        let Some(&(id, _)) = self.functions.get(name) else {
            let mut error = match arguments {
                Some(_) => self.error(at, "E143", format!("there is no function `@{name}`")),
                None => Diagnostic::new("E143", format!("there is no function `@{name}`"))
                    .at(self.tree.source.file)
                    .found(self.functions.keys().cloned().collect::<Vec<_>>().join(", ")),
            };
            error.help = did_you_mean(name, self.functions.keys().map(String::as_str));
            return Err(error);
        };
        if self.calls.iter().any(|caller| caller == name) {
            return Err(self.error(at, "E149", format!("function `@{name}` calls itself")));
        }
        let operation = self.tree.operation(id);
        let mut cursor = self.cursor(operation.name + 1);
        while cursor.kind() != Kind::Symbol {
            cursor.advance();
        }
        cursor.advance();
        let declared = self.arguments(&mut cursor)?;
        let [region] = operation.regions() else {
            return Err(self.error(operation.name, "E144", format!("`@{name}` has no body")));
        };
        let values = match arguments {
            None => (declared.iter().enumerate())
                .map(|(at, (name, ty, given))| {
                    let plain = || match name.trim_start_matches('%') {
                        digits if digits.starts_with(|c: char| c.is_ascii_digit()) => format!("arg{at}"),
                        name => name.to_string(),
                    };
                    let name = given.clone().unwrap_or_else(plain);
                    self.b.input(&name, ty.ty.clone(), Role::Input)
                })
                .collect(),
            Some(values) => {
                let taken: Vec<TensorType> = declared.iter().map(|(_, ty, _)| ty.ty.clone()).collect();
                let given: Vec<TensorType> = values.iter().map(|&value| self.b.ty(value).clone()).collect();
                if given != taken {
                    return Err(self
                        .error(at, "E146", format!("this call does not fit `@{name}`"))
                        .expected(format!("{taken:?}"))
                        .found(format!("{given:?}")));
                }
                values
            }
        };
        let names = declared.into_iter().map(|(name, ..)| name).zip(values).collect();
        // A function sees nothing of its caller.
        let outer = std::mem::take(&mut self.names);
        let space = self.space.take();
        self.calls.push(name.to_string());
        let results = self.region(self.tree.region(*region), names);
        self.calls.pop();
        (self.names, self.space) = (outer, space);
        results
    }

    /// `(%a: T {attributes} loc(..), ..)`: names, types, and the name that an attribute `partita.name` gives.
    fn arguments(&self, cursor: &mut Cursor<'a, 'a>) -> Result<Vec<(String, Declared, Option<String>)>> {
        cursor.mark('(')?;
        let mut list = Vec::new();
        while cursor.kind() == Kind::Value {
            let name = cursor.text().to_string();
            cursor.advance();
            cursor.mark(':')?;
            let ty = self.read_type(cursor)?;
            let mut given = None;
            if cursor.kind() == Kind::Mark('{') {
                for named in cursor.dictionary()? {
                    if unquote(self.tree.text(named.name)) == "partita.name"
                        && let partita_mlir::Attribute::Plain(token, _) = named.value
                    {
                        given = Some(unquote(self.tree.text(token)));
                    }
                }
            }
            if cursor.at_word("loc") {
                cursor.advance();
                cursor.group();
            }
            list.push((name, ty, given));
            if !cursor.eat(',') {
                break;
            }
        }
        cursor.mark(')')?;
        Ok(list)
    }

    /// The operands of the terminator of a region whose values see those around it.
    pub fn region(&mut self, region: &'a Region, names: BTreeMap<String, ValueId>) -> Result<Vec<ValueId>> {
        let [block] = &region.blocks[..] else {
            return Err(self.error(region.span.start, "E144", "branches between blocks are not read"));
        };
        if self.depth >= DEPTH {
            return Err(self.error(
                region.span.start,
                "E149",
                format!("regions and calls nest deeper than {DEPTH} levels"),
            ));
        }
        self.depth += 1;
        self.names.push(names);
        let mut results = None;
        for &id in &block.operations {
            let operation = self.tree.operation(id);
            if results.is_some() {
                return Err(self.error(operation.name, "E140", "an op after the end of its block"));
            }
            results = self.statement(operation)?;
        }
        self.names.pop();
        self.depth -= 1;
        results.ok_or_else(|| {
            self.error(region.span.end - 1, "E140", "a block without an end").expected("`return`")
        })
    }

    /// The arguments of the first block of a region with their names.
    pub fn block_arguments(&self, region: &'a Region) -> Result<Vec<(String, Declared)>> {
        match region.blocks.first().and_then(|block| block.arguments.clone()) {
            None => Ok(Vec::new()),
            Some(span) => {
                let list = self.arguments(&mut self.cursor(span.start))?;
                Ok(list.into_iter().map(|(name, ty, _)| (name, ty)).collect())
            }
        }
    }

    /// An op; the operands of a terminator.
    fn statement(&mut self, operation: &'a Operation) -> Result<Option<Vec<ValueId>>> {
        self.count += 1;
        if self.count > self.limits.nodes {
            let limit = self.limits.nodes;
            return Err(self.error(
                operation.name,
                "E149",
                format!("calls and loops give more than {limit} ops"),
            ));
        }
        let name = self.tree.name(operation);
        let mut op = self.op(operation, name);
        if op.name.ends_with(".yield") || matches!(op.name.as_str(), "return" | "func.return") {
            let operands = self.simple(&mut op)?.operands;
            return Ok(Some(operands));
        }
        self.b.location = None;
        let results = match op.name.as_str() {
            "call" | "func.call" => self.call(&mut op)?,
            _ => self.apply(&mut op)?,
        };
        let wanted: usize = operation.results.iter().map(|names| names.count).sum();
        if wanted != results.len() {
            return Err(self
                .error(operation.span.start, "E146", "a wrong number of results is named")
                .expected(results.len().to_string())
                .found(wanted.to_string()));
        }
        let mut rest = &results[..];
        for names in &operation.results {
            let (own, others) = rest.split_at(names.count);
            let name = self.tree.text(names.name).to_string();
            for (number, &value) in own.iter().enumerate() {
                let name = if names.count == 1 { name.clone() } else { format!("{name}#{number}") };
                let scope = self.names.last_mut().expect("a region is open");
                if scope.insert(name.clone(), value).is_some() {
                    return Err(self.error(names.name, "E143", format!("`{name}` is defined twice")));
                }
            }
            rest = others;
        }
        Ok(None)
    }

    /// An op of a table. E141 or E144 if there is none of its name.
    pub fn apply(&mut self, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
        let found = TABLES.iter().flat_map(|table| table.iter()).find(|(name, _)| *name == op.name);
        if let Some((_, action)) = found {
            return self.act(*action, op);
        }
        let dialect = op.name.split_once('.').map_or("", |(dialect, _)| dialect);
        if let Some((_, reason)) = REFUSED.iter().find(|(refused, _)| *refused == dialect) {
            return Err(self
                .error(op.at, "E144", format!("`{}` is not supported: {reason}", op.name))
                .expected(format!("ops of {} on tensors, or StableHLO", DIALECTS.join(", ")))
                .help("take the program before it is lowered"));
        }
        let mut error = self.error(op.at, "E141", format!("unknown operation `{}`", op.name));
        let known = TABLES.iter().flat_map(|table| table.iter()).map(|(name, _)| *name);
        error.help = did_you_mean(&op.name, known);
        Err(error)
    }

    fn call(&mut self, op: &mut Op<'a>) -> Result<Vec<ValueId>> {
        if op.cursor.kind() != Kind::Symbol {
            return Err(op.cursor.unexpected("the name of a function"));
        }
        let (at, name) = (op.cursor.position, unquote(op.cursor.text().trim_start_matches('@')));
        op.cursor.advance();
        op.cursor.mark('(')?;
        let operands = self.operands(&mut op.cursor)?;
        op.cursor.mark(')')?;
        self.function(&name, Some(operands), at)
    }

    /// The op whose name is at a token.
    fn op(&self, operation: &'a Operation, name: String) -> Op<'a> {
        let cursor = self.cursor(operation.name + 1);
        Op { name, at: operation.name, operation, cursor, end: operation.span.end }
    }

    pub fn cursor(&self, position: usize) -> Cursor<'a, 'a> {
        Cursor { source: self.tree.source, tokens: &self.tree.tokens, position, depth: 0 }
    }

    /// A diagnostic that points at a token.
    pub fn error(&self, token: usize, code: &'static str, message: impl Into<String>) -> Box<Diagnostic> {
        self.cursor(token).error(code, message)
    }

    /// `%a, %b`, any number of them.
    pub fn operands(&self, cursor: &mut Cursor<'a, 'a>) -> Result<Vec<ValueId>> {
        let mut operands = Vec::new();
        while cursor.kind() == Kind::Value {
            operands.push(self.operand(cursor)?);
            if cursor.kind() != Kind::Mark(',') || cursor.ahead(1) != Kind::Value {
                break;
            }
            cursor.advance();
        }
        Ok(operands)
    }

    /// `%a`.
    pub fn operand(&self, cursor: &mut Cursor<'a, 'a>) -> Result<ValueId> {
        if cursor.kind() != Kind::Value {
            return Err(cursor.unexpected("a value"));
        }
        let name = cursor.text();
        let found = self
            .names
            .iter()
            .rev()
            .find_map(|scope| scope.get(name).or_else(|| scope.get(&format!("{name}#0"))));
        let Some(&value) = found else {
            let mut error = cursor.error("E143", format!("there is no value `{name}`"));
            error.help =
                did_you_mean(name, self.names.iter().flat_map(|scope| scope.keys().map(String::as_str)));
            return Err(error);
        };
        cursor.advance();
        Ok(value)
    }

    /// `tensor<2x3xf32>`, `f32`, `index`.
    pub fn read_type(&self, cursor: &mut Cursor<'a, 'a>) -> Result<Declared> {
        let at = cursor.position;
        let refuse = |what: &str, found: &str| self.error(at, "E142", what).found(format!("`{found}`"));
        match cursor.read_type()? {
            Type::Plain(token) => {
                let word = self.tree.text(token);
                let dtype = if word == "index" { Some(DType::I64) } else { DType::from_mlir_name(word) };
                let dtype = dtype.ok_or_else(|| refuse("this type is not supported", word))?;
                Ok(Declared { ty: TensorType::scalar(dtype), is_scalar: true })
            }
            Type::Builtin(word, inside) if self.tree.text(word) == "tensor" => {
                let raw = self.tree.slice(&inside).replace("index", "i64");
                let ty = text::tensor_type(&raw, &|what| refuse(what, &format!("tensor<{raw}>")))?;
                self.limits.count(&ty.shape, "a tensor").map_err(|error| {
                    self.error(at, "E149", "this tensor has too many elements")
                        .found(error.found.unwrap_or_default())
                })?;
                Ok(Declared { ty, is_scalar: false })
            }
            Type::Builtin(word, _) if matches!(self.tree.text(word), "memref" | "vector") => {
                let (word, reason) = match self.tree.text(word) {
                    "memref" => ("memref", REFUSED[0].1),
                    _ => ("vector", "the program is vectorised"),
                };
                Err(self
                    .error(at, "E144", format!("`{word}` is not supported: {reason}"))
                    .expected("tensors and scalars")
                    .help("take the program before it is lowered"))
            }
            _ => Err(refuse("this type is not supported", self.tree.text(at))),
        }
    }

    /// Types with commas between, in brackets or not.
    pub fn types(&self, cursor: &mut Cursor<'a, 'a>) -> Result<Vec<Declared>> {
        let is_closed = cursor.eat('(');
        let mut types = Vec::new();
        if !(is_closed && cursor.kind() == Kind::Mark(')')) {
            loop {
                types.push(self.read_type(cursor)?);
                if !cursor.eat(',') {
                    break;
                }
            }
        }
        if is_closed {
            cursor.mark(')')?;
        }
        Ok(types)
    }

    /// E146 unless a value has the type that the text declares for it.
    pub fn check(&self, value: ValueId, declared: &Declared, at: usize) -> Result<()> {
        let ty = self.b.ty(value);
        let fits = match (&self.space, declared.is_scalar) {
            (Some(_), true) => ty.dtype == declared.ty.dtype,
            _ => *ty == declared.ty,
        };
        match fits {
            true => Ok(()),
            false => Err(self
                .error(at, "E146", "a value has another type than declared")
                .expected(declared.ty.to_string())
                .found(ty.to_string())),
        }
    }

    /// The number of a constant, which the op needs while it is read.
    pub fn constant_of(&self, value: ValueId, at: usize) -> Result<i128> {
        self.known.get(&value).copied().ok_or_else(|| {
            self.error(at, "E144", "this number is not known before the program runs").expected("a constant")
        })
    }

    /// A known integer.
    pub fn integer(&mut self, dtype: DType, number: i128) -> ValueId {
        let value = self.b.constant(Literal::splat_int(&TensorType::scalar(dtype), number));
        self.known.insert(value, number);
        value
    }

    /// Gives an error of the builder the position of an op.
    pub fn placed<T>(&self, result: Result<T>, at: usize) -> Result<T> {
        result.map_err(|mut error| {
            let here = self.error(at, "E146", "");
            error.at = here.at;
            error.notes.extend(here.notes);
            error
        })
    }
}

impl<'a> Op<'a> {
    /// The attributes of the generic form.
    pub fn generic(&self) -> Option<&'a partita_mlir::Generic> {
        match &self.operation.form {
            Form::Generic(generic) => Some(generic),
            Form::Pretty { .. } => None,
        }
    }
}
