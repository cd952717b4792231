//! Modules, functions, scopes and calls. What follows an op's name is read by the op's own file.

use super::attributes::{Attributes, Value};
use super::lexer::{Kind, Token, Tokens, tokenize, unquote};
use super::location::{LocationText, Origin};
use super::op_parser::OpParser;
use super::sharding::ShardingText;
use super::source::Source;
use crate::composite::{self, CompositeDefinition, Registry};
use crate::graph::{Annotation, Graph, Node, NodeId, Role, Value as GraphValue, ValueId};
use crate::op::{Op, Operation};
use crate::ops;
use crate::types::TensorType;
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_mesh::Mesh;
use std::collections::HashMap;
use std::sync::Arc;

/// How deep regions, calls and attributes may nest, all together: a bound on recursion.
const DEPTH_LIMIT: usize = 64;

/// Nodes that inlining calls may add up to: calls of calls could otherwise multiply without bound.
const NODE_LIMIT: usize = 1 << 20;

/// What a region does with a value of the graph around it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capture {
    /// Nothing is visible: the body of a function.
    Function,
    /// Constants are copied into the region; anything else is refused.
    Constants,
    /// Constants are copied; anything else becomes one more input.
    Inputs,
    /// Everything becomes one more input.
    All,
}

/// A region read: its graph, and the outer values that its last inputs stand for.
#[derive(Debug)]
pub(crate) struct Region {
    pub graph: Graph,
    /// For each captured input, the outer value.
    pub captures: Vec<ValueId>,
}

/// A graph being read.
struct Frame<'t> {
    graph: Graph,
    capture: Capture,
    names: HashMap<&'t str, Vec<ValueId>>,
    /// Outer value to its copy here.
    captured: HashMap<ValueId, ValueId>,
    captures: Vec<ValueId>,
    /// Roles that name other values: resolved when all names are known.
    roles: Vec<(ValueId, String, usize)>,
}

/// A function of the module: where it stands, and its graph once read.
struct Function {
    /// The token after its name.
    start: usize,
    is_public: bool,
    state: State,
}

enum State {
    Unread,
    InProgress,
    Read(Arc<Graph>),
}

/// The parser: an index over tokens, the module's symbols, and the graphs under construction.
pub(crate) struct Parser<'t> {
    pub source: Source<'t>,
    pub tokens: Tokens,
    pub position: usize,
    pub meshes: Vec<Mesh>,
    pub aliases: HashMap<&'t str, usize>,
    functions: IndexMap<String, Function>,
    registry: &'t Registry,
    definitions: Vec<Arc<CompositeDefinition>>,
    parsers: HashMap<&'static str, ops::ParseOp>,
    frames: Vec<Frame<'t>>,
    line_starts: Vec<usize>,
    depth: usize,
    inlined_nodes: usize,
}

impl<'t> Parser<'t> {
    pub fn new(source: Source<'t>, registry: &'t Registry) -> Result<Parser<'t>> {
        let tokens = tokenize(&source)?;
        let newlines = source.text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
        Ok(Parser {
            line_starts: std::iter::once(0).chain(newlines).collect(),
            source,
            tokens,
            position: 0,
            meshes: Vec::new(),
            aliases: HashMap::new(),
            functions: IndexMap::new(),
            registry,
            definitions: Vec::new(),
            parsers: ops::parsers().collect(),
            frames: Vec::new(),
            depth: 0,
            inlined_nodes: 0,
        })
    }

    // ---- tokens ----------------------------------------------------------------------------------------

    pub fn token(&self) -> Token {
        self.tokens.list[self.position]
    }

    pub fn kind(&self) -> Kind {
        self.token().kind
    }

    pub fn kind_at(&self, position: usize) -> Kind {
        self.tokens.list.get(position).map_or(Kind::End, |t| t.kind)
    }

    pub fn text_at(&self, position: usize) -> &'t str {
        let token = self.tokens.list[position];
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
    fn skip_group(&mut self) {
        let closing = self.tokens.closing[self.position];
        if closing != usize::MAX {
            self.position = closing;
        }
        self.advance();
    }

    /// The line of a token, from 1.
    pub fn line(&self, position: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= self.tokens.list[position].start)
    }

    // ---- errors ----------------------------------------------------------------------------------------

    pub fn error_at(
        &self,
        position: usize,
        code: &'static str,
        message: impl Into<String>,
    ) -> Box<Diagnostic> {
        self.source.error(code, message, self.tokens.list[position].start)
    }

    pub fn error(&self, code: &'static str, message: impl Into<String>) -> Box<Diagnostic> {
        self.error_at(self.position, code, message)
    }

    /// The current token as a diagnostic shows it.
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
        self.error("E140", "this is not what comes here").expected(expected).found(self.found())
    }

    /// One level deeper. E149 at the limit.
    pub fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > DEPTH_LIMIT {
            return Err(self.error("E149", format!("this nests deeper than {DEPTH_LIMIT} levels")));
        }
        Ok(())
    }

    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    // ---- modules ---------------------------------------------------------------------------------------

    /// The entry function of a module, everything it calls inlined.
    pub fn module(&mut self) -> Result<Graph> {
        let mut mesh_starts = Vec::new();
        self.index_module(&mut mesh_starts)?;
        for start in mesh_starts {
            self.position = start;
            let mesh = self.mesh()?;
            if self.meshes.iter().any(|m| m.name == mesh.name) {
                return Err(self.error_at(start, "E143", format!("mesh `@{}` is defined twice", mesh.name)));
            }
            self.meshes.push(mesh);
        }
        let entry = self.entry()?;
        let graph = self.function(&entry, 0)?;
        self.functions.clear();
        let mut graph = Arc::try_unwrap(graph).unwrap_or_else(|shared| (*shared).clone());
        if graph.meshes.is_empty() {
            graph.meshes = std::mem::take(&mut self.meshes);
        }
        Ok(graph)
    }

    /// Notes where functions, meshes and location aliases stand, skipping bodies.
    fn index_module(&mut self, meshes: &mut Vec<usize>) -> Result<()> {
        let mut open_modules = 0;
        loop {
            match self.kind() {
                Kind::End => return Ok(()),
                Kind::Mark('}') if open_modules > 0 => {
                    open_modules -= 1;
                    self.advance();
                    self.optional_location()?;
                }
                // `{-# .. #-}`: resources of other dialects.
                Kind::Mark('{') if self.kind_at(self.position + 1) == Kind::Mark('-') => self.skip_group(),
                Kind::Hash => {
                    let name = self.text();
                    self.advance();
                    self.mark('=')?;
                    if self.at_word("loc") {
                        self.aliases.insert(name, self.position + 2);
                        self.advance();
                        self.skip_group();
                    } else {
                        self.value()?;
                    }
                }
                Kind::Word if matches!(self.text(), "module" | "builtin.module") => {
                    self.advance();
                    if self.kind() == Kind::Symbol {
                        self.advance();
                    }
                    if self.at_word("attributes") {
                        self.advance();
                        self.skip_group();
                    }
                    self.mark('{')?;
                    open_modules += 1;
                }
                Kind::Word if self.at_word("sdy.mesh") => {
                    self.advance();
                    meshes.push(self.position);
                    self.symbol()?;
                    self.mark('=')?;
                    self.mark('<')?;
                    self.skip_angle()?;
                    if self.kind() == Kind::Mark('{') {
                        self.skip_group();
                    }
                    self.optional_location()?;
                }
                Kind::Word if matches!(self.text(), "func.func" | "func") => self.index_function()?,
                _ => return Err(self.unexpected("`module`, `func.func` or `sdy.mesh`")),
            }
        }
    }

    fn index_function(&mut self) -> Result<()> {
        self.advance();
        let mut is_public = true;
        if self.kind() == Kind::Word {
            is_public = match self.text() {
                "public" => true,
                "private" | "nested" => false,
                _ => return Err(self.unexpected("`public`, `private` or a name")),
            };
            self.advance();
        }
        let name_at = self.position;
        let name = self.symbol()?;
        let start = self.position;
        if self.kind() != Kind::Mark('(') {
            return Err(self.unexpected("`(`"));
        }
        self.skip_group();
        if self.kind() == Kind::Arrow {
            self.advance();
            if self.kind() == Kind::Mark('(') {
                self.skip_group();
            } else {
                self.tensor_type()?;
            }
        }
        if self.at_word("attributes") {
            self.advance();
            self.skip_group();
        }
        if self.kind() == Kind::Mark('{') {
            self.skip_group();
            self.optional_location()?;
        }
        let function = Function { start, is_public, state: State::Unread };
        if self.functions.insert(name.clone(), function).is_some() {
            return Err(self.error_at(name_at, "E143", format!("function `@{name}` is defined twice")));
        }
        Ok(())
    }

    /// `@main`, or the only public function.
    fn entry(&self) -> Result<String> {
        if self.functions.contains_key("main") {
            return Ok("main".to_string());
        }
        let public: Vec<&String> =
            self.functions.iter().filter(|(_, f)| f.is_public).map(|(name, _)| name).collect();
        match public.as_slice() {
            [one] => Ok(one.to_string()),
            many => {
                let names: Vec<String> = many.iter().map(|n| format!("`@{n}`")).collect();
                let found =
                    if names.is_empty() { "no public function".to_string() } else { names.join(", ") };
                Err(Diagnostic::new("E143", "there is no entry function")
                    .at(self.source.file)
                    .expected("a function `@main`, or a single public function")
                    .found(found))
            }
        }
    }

    // ---- functions -------------------------------------------------------------------------------------

    /// The graph of a function, read at its first use.
    pub fn function(&mut self, name: &str, used_at: usize) -> Result<Arc<Graph>> {
        let Some(function) = self.functions.get_mut(name) else {
            let mut error = self.error_at(used_at, "E143", format!("there is no function `@{name}`"));
            error.help = did_you_mean(name, self.functions.keys().map(|k| k.as_str()));
            return Err(error);
        };
        let start = function.start;
        match &function.state {
            State::Read(graph) => return Ok(graph.clone()),
            State::InProgress => {
                return Err(self.error_at(used_at, "E149", format!("function `@{name}` calls itself")));
            }
            State::Unread => function.state = State::InProgress,
        }
        let back = std::mem::replace(&mut self.position, start);
        let graph = Arc::new(self.function_body(name)?);
        self.position = back;
        self.functions[name].state = State::Read(graph.clone());
        Ok(graph)
    }

    /// `(%a: T {..}, ..) -> (T {..}, ..) attributes {..} { .. }`.
    fn function_body(&mut self, name: &str) -> Result<Graph> {
        self.enter()?;
        self.push_frame(Capture::Function);
        let graph = &mut self.frame().graph;
        graph.name = name.to_string();
        let mut aliases: Vec<(usize, i64, usize)> = Vec::new();
        self.mark('(')?;
        while self.kind() == Kind::Value {
            let value = self.block_argument()?;
            let at = self.position;
            let attributes = self.optional_dictionary()?;
            self.describe_values(&[value], &attributes, at)?;
            if let Some(Value::Int(output)) = attributes.get("tf.aliasing_output") {
                aliases.push((self.frame().graph.inputs.len() - 1, *output, at));
            }
            self.optional_location()?;
            if !self.eat(',') {
                break;
            }
        }
        self.mark(')')?;
        let (types, output_names, annotations) = self.function_results()?;
        if self.at_word("attributes") {
            self.advance();
            let attributes = self.dictionary()?;
            if let Some(name) = attributes.text("partita.name") {
                self.frame().graph.name = name.to_string();
            }
        }
        if self.kind() != Kind::Mark('{') {
            return Err(self.unexpected("the function's body"));
        }
        self.advance();
        let return_at = self.block()?;
        let graph = &self.frame().graph;
        let found: Vec<TensorType> = graph.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        if found != types {
            return Err(self
                .error_at(return_at, "E146", format!("`@{name}` does not return what it declares"))
                .expected(super::types::print_types(&types))
                .found(super::types::print_types(&found)));
        }
        for (input, output, at) in aliases {
            let output = usize::try_from(output).ok().filter(|&o| o < types.len()).ok_or_else(|| {
                self.error_at(at, "E147", "`tf.aliasing_output` is not the number of a result")
                    .expected(format!("a number below {}", types.len()))
                    .found(output.to_string())
            })?;
            self.frame().graph.aliases.push((input, output));
        }
        let region = self.pop_frame()?;
        let mut graph = region.graph;
        for (position, sharding) in annotations.iter().enumerate() {
            if let Some(annotation) = sharding {
                self.check_rank(annotation, &types[position], return_at)?;
            }
        }
        if annotations.iter().any(Option::is_some) {
            graph.output_annotations = annotations;
            if graph.meshes.is_empty() {
                graph.meshes = self.meshes.clone();
            }
        }
        if output_names.iter().any(Option::is_some) {
            graph.output_names = output_names.into_iter().map(Option::unwrap_or_default).collect();
        }
        self.leave();
        Ok(graph)
    }

    /// What follows the arguments: types, names and layouts of the results.
    fn function_results(
        &mut self,
    ) -> Result<(Vec<TensorType>, Vec<Option<String>>, Vec<Option<Annotation>>)> {
        let (mut types, mut names, mut annotations) = (Vec::new(), Vec::new(), Vec::new());
        if self.kind() != Kind::Arrow {
            return Ok((types, names, annotations));
        }
        self.advance();
        if self.kind() != Kind::Mark('(') {
            types.push(self.tensor_type()?);
            return Ok((types, vec![None], vec![None]));
        }
        self.advance();
        while self.kind() != Kind::Mark(')') {
            types.push(self.tensor_type()?);
            let at = self.position;
            let attributes = self.optional_dictionary()?;
            let name = attributes.text("partita.name").or(attributes.text("jax.result_info"));
            names.push(name.map(str::to_string));
            annotations.push(self.annotations(&attributes, 1, at)?.pop().flatten());
            self.optional_location()?;
            if !self.eat(',') {
                break;
            }
        }
        self.mark(')')?;
        Ok((types, names, annotations))
    }

    /// `%a: T`, a new input of the current graph. A location that follows may name it.
    pub fn block_argument(&mut self) -> Result<ValueId> {
        let at = self.position;
        if self.kind() != Kind::Value {
            return Err(self.unexpected("a value such as `%arg0`"));
        }
        self.advance();
        self.mark(':')?;
        let ty = self.tensor_type()?;
        let value = self.new_input(ty);
        self.define(at, vec![value])?;
        Ok(value)
    }

    /// Adds an input to the current graph.
    pub fn new_input(&mut self, ty: TensorType) -> ValueId {
        let frame = self.frame();
        let id = add_value(&mut frame.graph, ty, None);
        frame.graph.inputs.push(id);
        id
    }

    // ---- regions ---------------------------------------------------------------------------------------

    fn frame(&mut self) -> &mut Frame<'t> {
        self.frames.last_mut().expect("reading happens inside a function")
    }

    /// The graph being read.
    pub fn graph(&self) -> &Graph {
        &self.frames.last().expect("reading happens inside a function").graph
    }

    /// Starts a graph.
    pub fn push_frame(&mut self, capture: Capture) {
        self.frames.push(Frame {
            graph: Graph::default(),
            capture,
            names: HashMap::new(),
            captured: HashMap::new(),
            captures: Vec::new(),
            roles: Vec::new(),
        });
    }

    /// Ends a graph: roles that name values are resolved.
    pub fn pop_frame(&mut self) -> Result<Region> {
        let roles = std::mem::take(&mut self.frame().roles);
        for (value, text, at) in roles {
            let role = self.role(&text, at)?;
            self.frame().graph.value_mut(value).role = role;
        }
        let frame = self.frames.pop().expect("reading happens inside a function");
        Ok(Region { graph: frame.graph, captures: frame.captures })
    }

    /// `{ .. }` with arguments `^bb0(%a: T):` or none.
    pub fn region(&mut self, capture: Capture) -> Result<Region> {
        self.mark('{')?;
        self.push_frame(capture);
        if self.kind() == Kind::Label {
            self.advance();
            if self.eat('(') {
                self.region_arguments()?;
                self.mark(')')?;
            }
            self.mark(':')?;
        }
        self.region_rest()
    }

    /// `%a: T loc("name"), ..`.
    pub fn region_arguments(&mut self) -> Result<()> {
        while self.kind() == Kind::Value {
            let value = self.block_argument()?;
            if let Some(LocationText { name: Some(name), .. }) = self.optional_location()? {
                self.frame().graph.value_mut(value).name = name;
            }
            if !self.eat(',') {
                break;
            }
        }
        Ok(())
    }

    /// The statements of a region whose arguments are already read, and its closing bracket.
    pub fn region_rest(&mut self) -> Result<Region> {
        self.enter()?;
        self.block()?;
        self.leave();
        self.pop_frame()
    }

    /// Statements up to the terminator and the closing bracket. Returns where the terminator stands.
    fn block(&mut self) -> Result<usize> {
        loop {
            let at = self.position;
            let name = match self.kind() {
                Kind::Text => unquote(self.text()),
                _ => self.text().to_string(),
            };
            let terminators = ["return", "func.return", "stablehlo.return", "sdy.return", "chlo.return"];
            if matches!(self.kind(), Kind::Word | Kind::Text) && terminators.contains(&name.as_str()) {
                let generic = self.kind() == Kind::Text;
                self.advance();
                self.terminator(generic)?;
                if self.kind() != Kind::Mark('}') {
                    return Err(self.unexpected("`}` after the return"));
                }
                self.advance();
                self.optional_location()?;
                return Ok(at);
            }
            if self.kind() == Kind::Mark('}') {
                return Err(self.unexpected("an operation or `return`"));
            }
            self.statement()?;
        }
    }

    fn terminator(&mut self, generic: bool) -> Result<()> {
        let at = self.position;
        if generic {
            self.mark('(')?;
        }
        let mut outputs = Vec::new();
        while self.kind() == Kind::Value {
            outputs.push(self.operand()?);
            if !self.eat(',') {
                break;
            }
        }
        if generic {
            self.mark(')')?;
        }
        self.optional_dictionary()?;
        let mut types = Vec::new();
        if self.eat(':') {
            types = if self.kind() == Kind::Mark('(') { self.result_types()? } else { self.type_list()? };
            if self.kind() == Kind::Arrow {
                self.advance();
                self.result_types()?;
            }
        }
        self.optional_location()?;
        let graph = self.graph();
        let found: Vec<TensorType> = outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        if found != types {
            return Err(self
                .error_at(at, "E146", "the types after `:` are not those of the values")
                .expected(super::types::print_types(&found))
                .found(super::types::print_types(&types)));
        }
        self.frame().graph.outputs = outputs;
        Ok(())
    }

    // ---- statements ------------------------------------------------------------------------------------

    /// `%a, %b:2 = op ..` or `op ..`.
    fn statement(&mut self) -> Result<()> {
        let start = self.position;
        let mut names: Vec<(usize, usize)> = Vec::new();
        while self.kind() == Kind::Value {
            let at = self.position;
            self.advance();
            let mut count = 1;
            if self.eat(':') {
                let count_at = self.position;
                count = match usize::try_from(self.integer()?) {
                    Ok(count @ 1..=65536) => count,
                    _ => return Err(self.error_at(count_at, "E140", "not a number of results")),
                };
            }
            names.push((at, count));
            if !self.eat(',') {
                break;
            }
        }
        if !names.is_empty() {
            self.mark('=')?;
        }
        let first_node = self.graph().nodes.len();
        let first_value = self.graph().values.len();
        let op_at = self.position;
        let wanted: usize = names.iter().map(|(_, count)| count).sum();
        let (results, attributes) = self.operation()?;
        let origin = self.optional_location()?.map(LocationText::origin).unwrap_or_default();
        self.set_origin(first_node, origin);
        if wanted != results.len() && !names.is_empty() {
            return Err(self
                .error_at(start, "E146", "a wrong number of results is named")
                .expected(results.len().to_string())
                .found(wanted.to_string()));
        }
        let fresh = results.iter().all(|v| v.index() >= first_value);
        if fresh {
            self.describe_values(&results, &attributes, op_at)?;
        }
        let mut rest = results.as_slice();
        for (at, count) in names {
            let (own, others) = rest.split_at(count);
            self.define(at, own.to_vec())?;
            rest = others;
        }
        Ok(())
    }

    /// The op at the current token, with its operands, attributes, regions and types.
    fn operation(&mut self) -> Result<(Vec<ValueId>, Attributes)> {
        let at = self.position;
        let generic = self.kind() == Kind::Text;
        let name = match self.kind() {
            Kind::Text => unquote(self.text()),
            Kind::Word => self.text().to_string(),
            _ => return Err(self.unexpected("an operation")),
        };
        if matches!(name.as_str(), "call" | "func.call") {
            self.advance();
            return self.call(generic);
        }
        let Some(&parse) = self.parsers.get(name.as_str()) else { return Err(self.unknown_op(&name)) };
        self.advance();
        let mut op = OpParser::new(self, name, at, generic);
        let results = parse(&mut op)?;
        let attributes = std::mem::take(&mut op.attributes);
        Ok((results, attributes))
    }

    fn unknown_op(&self, name: &str) -> Box<Diagnostic> {
        if ops::UNSUPPORTED.contains(&name) {
            return self.error("E144", format!("`{name}` is not supported"));
        }
        if name.ends_with(".custom_call") {
            let target = (self.position..self.position + 4)
                .find(|&p| self.kind_at(p) == Kind::Symbol)
                .map_or("?", |p| self.text_at(p));
            let mut error = self.error("E144", format!("custom call `{target}` is not supported"));
            if target.contains("hard") {
                error = error
                    .help("lower with Shardy (`jax.config.update(\"jax_use_shardy_partitioner\", True)`)");
            }
            return error;
        }
        let mut error = self.error("E141", format!("unknown operation `{name}`"));
        let mut known: Vec<&str> = self.parsers.keys().copied().collect();
        known.sort_unstable();
        error.help = did_you_mean(name, known);
        error
    }

    /// `call @f(%a) : (T) -> U`, inlined.
    fn call(&mut self, generic: bool) -> Result<(Vec<ValueId>, Attributes)> {
        let at = self.position;
        let mut name = if generic { String::new() } else { self.symbol()? };
        self.mark('(')?;
        let mut arguments = Vec::new();
        while self.kind() == Kind::Value {
            arguments.push(self.operand()?);
            if !self.eat(',') {
                break;
            }
        }
        self.mark(')')?;
        let mut attributes = Attributes::default();
        if generic && self.eat('<') {
            attributes = self.dictionary()?;
            self.mark('>')?;
        }
        attributes.list.extend(self.optional_dictionary()?.list);
        if let (true, Some(Value::Symbol(callee))) = (generic, attributes.get("callee")) {
            name = callee.clone();
        }
        self.mark(':')?;
        self.result_types()?;
        if self.kind() != Kind::Arrow {
            return Err(self.unexpected("`->`"));
        }
        self.advance();
        let results = self.result_types()?;
        let callee = self.function(&name, at)?;
        let graph = self.graph();
        let given: Vec<TensorType> = arguments.iter().map(|&v| graph.ty(v).clone()).collect();
        let taken: Vec<TensorType> = callee.inputs.iter().map(|&v| callee.ty(v).clone()).collect();
        let returned: Vec<TensorType> = callee.outputs.iter().map(|&v| callee.ty(v).clone()).collect();
        if given != taken || returned != results {
            let show = |a: &[TensorType], b: &[TensorType]| {
                format!("({}) -> {}", super::types::print_types(a), super::types::print_results(b))
            };
            return Err(self
                .error_at(at, "E146", format!("this call does not fit `@{name}`"))
                .expected(show(&taken, &returned))
                .found(show(&given, &results)));
        }
        self.inlined_nodes += callee.nodes.len();
        if self.inlined_nodes > NODE_LIMIT {
            return Err(self.error_at(at, "E149", format!("calls unfold to more than {NODE_LIMIT} nodes")));
        }
        Ok((self.inline(&callee, &arguments), attributes))
    }

    /// Copies the nodes of a function here.
    fn inline(&mut self, callee: &Graph, arguments: &[ValueId]) -> Vec<ValueId> {
        if !callee.meshes.is_empty() {
            self.use_meshes();
        }
        let mut map: Vec<Option<ValueId>> = vec![None; callee.values.len()];
        for (input, &argument) in callee.inputs.iter().zip(arguments) {
            map[input.index()] = Some(argument);
        }
        let graph = &mut self.frame().graph;
        for node in &callee.nodes {
            let id = NodeId::new(graph.nodes.len());
            let find = |v: &ValueId| map[v.index()].expect("nodes stand in execution order");
            let operands = node.operands.iter().map(find).collect();
            let mut results = Vec::new();
            for (number, &old) in node.results.iter().enumerate() {
                let source = callee.value(old);
                let new = add_value(graph, source.ty.clone(), Some((id, number)));
                graph.value_mut(new).name = source.name.clone();
                graph.value_mut(new).annotation = source.annotation.clone();
                map[old.index()] = Some(new);
                results.push(new);
            }
            graph.nodes.push(Node { operands, results, ..node.clone() });
        }
        callee.outputs.iter().map(|v| map[v.index()].expect("outputs are defined")).collect()
    }

    /// Gives the nodes from `first` on an origin; what a callee says of itself stays.
    fn set_origin(&mut self, first: usize, origin: Origin) {
        for node in &mut self.frame().graph.nodes[first..] {
            if node.path.is_empty() {
                node.path = origin.path.clone();
            }
            if node.location.is_none() {
                node.location = origin.location.clone();
            }
            if node.phase == Default::default() {
                node.phase = origin.phase;
            }
            node.microbatch = node.microbatch.or(origin.microbatch);
        }
    }

    /// Appends a node; types are inferred and, where text declares them, compared. Diagnostics of inference get
    /// the place in the text.
    pub fn emit(
        &mut self,
        op: Op,
        operands: &[ValueId],
        declared: Option<&[TensorType]>,
        at: usize,
    ) -> Result<Vec<ValueId>> {
        let graph = self.graph();
        let operand_types: Vec<&TensorType> = operands.iter().map(|&v| graph.ty(v)).collect();
        let place = |mut error: Box<Diagnostic>| {
            let here = self.error_at(at, "E146", "");
            error.at = here.at;
            error.notes.extend(here.notes);
            error
        };
        let inferred = op.infer(&operand_types).map_err(place)?;
        // Uneven collectives differ by rank, so only the text knows their types.
        let types = match declared {
            Some(declared) if op.is_collective() => declared.to_vec(),
            Some(declared) if declared != inferred => {
                return Err(self
                    .error_at(at, "E146", format!("`{}` does not yield the declared type", op.name()))
                    .expected(super::types::print_results(&inferred))
                    .found(super::types::print_results(declared)));
            }
            _ => inferred,
        };
        let graph = &mut self.frame().graph;
        let id = NodeId::new(graph.nodes.len());
        let results: Vec<ValueId> = types
            .into_iter()
            .enumerate()
            .map(|(number, ty)| add_value(graph, ty, Some((id, number))))
            .collect();
        graph.nodes.push(Node {
            op,
            operands: operands.to_vec(),
            results: results.clone(),
            path: String::new(),
            location: None,
            phase: Default::default(),
            microbatch: None,
        });
        Ok(results)
    }

    // ---- names -----------------------------------------------------------------------------------------

    /// Gives results a name. E143 when it is taken.
    pub fn define(&mut self, at: usize, values: Vec<ValueId>) -> Result<()> {
        let name = self.text_at(at);
        if name.contains('#') {
            return Err(self.error_at(at, "E140", "a definition names a value without `#`"));
        }
        if self.frame().names.insert(name, values).is_some() {
            return Err(self.error_at(at, "E143", format!("`{name}` is defined twice")));
        }
        Ok(())
    }

    /// A value by the name at the current token.
    pub fn operand(&mut self) -> Result<ValueId> {
        if self.kind() != Kind::Value {
            return Err(self.unexpected("a value such as `%0`"));
        }
        let at = self.position;
        let value = self.resolve(self.text(), at)?;
        self.advance();
        Ok(value)
    }

    /// A value by name: of this graph, or brought in from the graphs around it.
    pub fn resolve(&mut self, text: &str, at: usize) -> Result<ValueId> {
        let (name, number) = match text.split_once('#') {
            Some((name, number)) => (name, number.parse().unwrap_or(usize::MAX)),
            None => (text, 0),
        };
        let mut depth = self.frames.len() - 1;
        let values = loop {
            if let Some(values) = self.frames[depth].names.get(name) {
                break values;
            }
            if self.frames[depth].capture == Capture::Function || depth == 0 {
                let mut error = self.error_at(at, "E143", format!("`{name}` is not defined here"));
                let mut known: Vec<&str> = self.frames[depth].names.keys().copied().collect();
                known.sort_unstable();
                if known.len() < 500 {
                    error.help = did_you_mean(name, known);
                }
                return Err(error);
            }
            depth -= 1;
        };
        if values.len() > 1 && !text.contains('#') {
            return Err(self
                .error_at(at, "E143", format!("`{name}` names {} results", values.len()))
                .expected(format!("one of them, such as `{name}#0`")));
        }
        let Some(&value) = values.get(number) else {
            return Err(self
                .error_at(at, "E143", format!("`{name}` has no result {number}"))
                .expected(format!("a number below {}", values.len())));
        };
        let mut value = value;
        for inner in depth + 1..self.frames.len() {
            value = self.bring_in(value, inner, name, at)?;
        }
        Ok(value)
    }

    /// A value of the frame around `inner`, inside `inner`.
    fn bring_in(&mut self, outer: ValueId, inner: usize, name: &str, at: usize) -> Result<ValueId> {
        if let Some(&known) = self.frames[inner].captured.get(&outer) {
            return Ok(known);
        }
        let source = &self.frames[inner - 1].graph;
        let ty = source.ty(outer).clone();
        let constant = source
            .value(outer)
            .definition
            .map(|(node, _)| source.node(node))
            .filter(|node| matches!(node.op, Op::Constant(_)))
            .cloned();
        let frame = &mut self.frames[inner];
        let value = match (frame.capture, constant) {
            (Capture::Constants | Capture::Inputs, Some(node)) => {
                let id = NodeId::new(frame.graph.nodes.len());
                let value = add_value(&mut frame.graph, ty, Some((id, 0)));
                frame.graph.nodes.push(Node { results: vec![value], ..node });
                value
            }
            (Capture::Inputs | Capture::All, _) => {
                let value = add_value(&mut frame.graph, ty, None);
                frame.graph.inputs.push(value);
                frame.captures.push(outer);
                value
            }
            _ => {
                return Err(self.error_at(
                    at,
                    "E143",
                    format!(
                        "`{name}` belongs to the graph around this region, which only sees its arguments"
                    ),
                ));
            }
        };
        self.frames[inner].captured.insert(outer, value);
        Ok(value)
    }

    // ---- discardable attributes ------------------------------------------------------------------------

    /// Names, roles and layouts that attributes give to values.
    pub fn describe_values(&mut self, values: &[ValueId], attributes: &Attributes, at: usize) -> Result<()> {
        if attributes.list.is_empty() {
            return Ok(());
        }
        let texts = |key: &str| -> Vec<String> {
            match attributes.get(key) {
                Some(Value::Text(text)) => vec![text.clone()],
                Some(Value::List(list)) => list
                    .iter()
                    .map(|v| if let Value::Text(text) = v { text.clone() } else { String::new() })
                    .collect(),
                _ => Vec::new(),
            }
        };
        for (&value, name) in values.iter().zip(texts("partita.name")) {
            self.frame().graph.value_mut(value).name = name;
        }
        for (&value, role) in values.iter().zip(texts("partita.role")) {
            self.frame().roles.push((value, role, at));
        }
        let annotations = self.annotations(attributes, values.len(), at)?;
        for (&value, annotation) in values.iter().zip(annotations) {
            if let Some(annotation) = annotation {
                self.use_meshes();
                self.check_rank(&annotation, self.graph().ty(value), at)?;
                self.frame().graph.value_mut(value).annotation = Some(annotation);
            }
        }
        Ok(())
    }

    /// `sdy.sharding` with its units and origins, for `count` values.
    pub fn annotations(
        &mut self,
        attributes: &Attributes,
        count: usize,
        at: usize,
    ) -> Result<Vec<Option<Annotation>>> {
        let Some(Value::Shardings(list)) = attributes.get("sdy.sharding") else {
            return Ok(vec![None; count]);
        };
        let places: Vec<usize> = match attributes.get("partita.annotated") {
            Some(Value::Ints(places)) => {
                places.iter().map(|&p| usize::try_from(p).unwrap_or(count)).collect()
            }
            _ => (0..count).collect(),
        };
        if places.len() != list.len() || places.iter().any(|&p| p >= count) {
            return Err(self
                .error_at(at, "E148", "`sdy.sharding` does not have one sharding for each value")
                .expected(places.len().to_string())
                .found(list.len().to_string()));
        }
        let mut annotations = vec![None; count];
        for (number, (&place, text)) in places.iter().zip(list).enumerate() {
            annotations[place] = Some(self.annotation(text.clone(), attributes, number));
        }
        Ok(annotations)
    }

    /// The annotation of sharding `number` of an attribute list.
    pub fn annotation(&mut self, text: ShardingText, attributes: &Attributes, number: usize) -> Annotation {
        let pick = |key: &str| match attributes.get(key) {
            Some(Value::List(list)) => list.get(number),
            one if number == 0 => one,
            _ => None,
        };
        let origin = match pick("partita.origin") {
            Some(Value::Text(origin)) => origin.clone(),
            _ => format!("{}:{}", self.source.file, self.line(text.token)),
        };
        let mut annotation = text.annotation(origin);
        if let Some(Value::Ints(units)) = pick("partita.units") {
            set_units(&mut annotation.sharding, units);
        }
        annotation
    }

    /// E148 when a layout does not have the rank of its value.
    pub fn check_rank(&self, annotation: &Annotation, ty: &TensorType, at: usize) -> Result<()> {
        if annotation.sharding.dims.len() == ty.rank() {
            return Ok(());
        }
        Err(self
            .error_at(at, "E148", "a sharding must say something for each dimension")
            .expected(format!("{} dimensions for {ty}", ty.rank()))
            .found(annotation.sharding.dims.len().to_string()))
    }

    /// Makes the module's meshes those of the current graph.
    pub fn use_meshes(&mut self) {
        if self.graph().meshes.is_empty() {
            self.frame().graph.meshes = self.meshes.clone();
        }
    }

    fn role(&mut self, text: &str, at: usize) -> Result<Role> {
        Ok(match text {
            "" | "activation" => Role::Activation,
            "input" => Role::Input,
            "param" => Role::Param,
            _ => match text.split_once(' ') {
                Some(("state_of", name)) => Role::StateOf(self.resolve(name, at)?),
                Some(("grad_of", name)) => Role::GradOf(self.resolve(name, at)?),
                _ => {
                    return Err(self
                        .error_at(at, "E147", "unknown role")
                        .expected("activation, input, param, state_of %value or grad_of %value")
                        .found(format!("`{text}`")));
                }
            },
        })
    }

    // ---- composites ------------------------------------------------------------------------------------

    /// The definition of a composite. What it computes is the function. It comes from a template, or is a gradient,
    /// only where rebuilding it from there gives the same function; otherwise it is a subgraph like any other.
    pub fn definition(
        &mut self,
        name: &str,
        function: &str,
        attributes: &composite::Attributes,
        vjp: Option<&Attributes>,
        at: usize,
    ) -> Result<Arc<CompositeDefinition>> {
        self.enter()?;
        let decomposition = self.function(function, at)?;
        let built = match vjp {
            Some(fields) => self.gradient_definition(name, attributes, fields, at)?,
            None => self.registry.template(name).and_then(|template| {
                let types: Vec<TensorType> =
                    decomposition.inputs.iter().map(|&v| decomposition.ty(v).clone()).collect();
                CompositeDefinition::from_template(template, attributes, &types).ok()
            }),
        };
        let alike = |graph: &Graph| {
            let options = super::PrintOptions { locations: false };
            super::print_with(graph, &options) == super::print_with(&decomposition, &options)
        };
        let definition = match built.filter(|b| alike(&b.decomposition)) {
            Some(built) => built,
            None => CompositeDefinition {
                name: name.to_string(),
                decomposition: (*decomposition).clone(),
                origin: composite::Origin::Outlined,
            },
        };
        self.leave();
        // Applications of one composite share their definition.
        if let Some(met) = self.definitions.iter().find(|d| ***d == definition) {
            return Ok(met.clone());
        }
        let definition = Arc::new(definition);
        self.definitions.push(definition.clone());
        Ok(definition)
    }

    /// The gradient that `partita.vjp` describes; `None` where it cannot be.
    fn gradient_definition(
        &mut self,
        name: &str,
        attributes: &composite::Attributes,
        fields: &Attributes,
        at: usize,
    ) -> Result<Option<CompositeDefinition>> {
        let positions = |key: &str| match fields.get(key) {
            Some(Value::Ints(list)) => list.iter().map(|&i| usize::try_from(i).ok()).collect(),
            _ => None,
        };
        let (Some(Value::Symbol(base)), Some(base_name)) = (fields.get("base"), fields.text("name")) else {
            return Ok(None);
        };
        let (Some(seeded), Some(wanted)): (Option<Vec<usize>>, Option<Vec<usize>>) =
            (positions("seeded"), positions("wanted"))
        else {
            return Ok(None);
        };
        let inner = match fields.get("vjp") {
            Some(Value::Dictionary(inner)) => Some(inner.clone()),
            _ => None,
        };
        let (base, base_name) = (base.clone(), base_name.to_string());
        let base = self.definition(&base_name, &base, attributes, inner.as_ref(), at)?;
        let graph = &base.decomposition;
        let within =
            seeded.iter().all(|&s| s < graph.outputs.len()) && wanted.iter().all(|&w| w < graph.inputs.len());
        let ascending = |list: &[usize]| list.windows(2).all(|w| w[0] < w[1]);
        if !within || !ascending(&seeded) || !ascending(&wanted) {
            return Ok(None);
        }
        Ok(base.vjp(&seeded, &wanted).ok().filter(|built| built.name == name))
    }
}

/// Sets the unit of each dimension; what does not fit is left at 1.
pub(crate) fn set_units(sharding: &mut partita_mesh::Sharding, units: &[i64]) {
    for (dim, &unit) in sharding.dims.iter_mut().zip(units) {
        dim.unit = usize::try_from(unit).unwrap_or(1).max(1);
    }
}

fn add_value(graph: &mut Graph, ty: TensorType, definition: Option<(NodeId, usize)>) -> ValueId {
    let id = ValueId::new(graph.values.len());
    graph.values.push(GraphValue {
        ty,
        definition,
        name: String::new(),
        role: Role::Activation,
        annotation: None,
    });
    id
}
