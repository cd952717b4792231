//! Modules, functions, scopes and calls. What follows an op's name is read by the op's own file.

use super::attributes::{Attributes, Value};
use super::lexer::{Kind, Token, Tokens, tokenize, unquote};
use super::location::{LocationText, Origin};
use super::op_parser::OpParser;
use super::scope::{Capture, Frame, add_value};
use super::source::Source;
use crate::composite::{CompositeDefinition, Registry};
use crate::graph::{Annotation, Graph, Node, NodeId, ValueId};
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
    pub registry: &'t Registry,
    pub definitions: Vec<Arc<CompositeDefinition>>,
    parsers: HashMap<&'static str, ops::ParseOp>,
    pub frames: Vec<Frame<'t>>,
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
            if let Some(name) = self.argument_name()? {
                let own = &mut self.frame().graph.value_mut(value).name;
                if own.is_empty() {
                    *own = name;
                }
            }
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
        self.optional_location()?;
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

    // ---- statements ------------------------------------------------------------------------------------

    /// `%a, %b:2 = op ..` or `op ..`.
    pub fn statement(&mut self) -> Result<()> {
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
            graph.nodes.push(node.replaced(node.op.clone(), operands, results));
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
            if node.stage == 0 {
                node.stage = origin.stage;
            }
            node.remat = node.remat.or(origin.remat);
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
            stage: 0,
            remat: None,
        });
        Ok(results)
    }
}
