//! Modules, functions, scopes and calls. What follows an op's name is read by the op's own file.

use super::attributes::{Attributes, Value};
use super::location::{LocationText, Origin};
use super::op_parser::OpParser;
use super::scope::{Capture, Frame, add_value};
use crate::composite::{CompositeDefinition, Registry};
use crate::graph::{Annotation, Graph, Node, NodeId, ValueId};
use crate::op::{Op, Operation};
use crate::ops;
use crate::types::TensorType;
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_mesh::Mesh;
use partita_mlir::{Attribute, Cursor, DEPTH_LIMIT, Kind, OperationId, Source, Span, Token, Tree, unquote};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Nodes that calls and composites may unfold to: calls of calls could otherwise multiply without bound.
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
    Read(Arc<Graph>, Extent),
}

/// What a graph unfolds to, regions and decompositions included.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Extent {
    /// Nodes, a region counting as a few.
    pub nodes: usize,
    /// How deep regions and decompositions nest.
    pub depth: usize,
}

/// What a region takes beside its nodes, in nodes.
const REGION_NODES: usize = 4;

/// The reader: the tree of the text, a place in the tokens of the op being read, the module's symbols, and the graphs
/// under construction.
pub(crate) struct Parser<'t> {
    pub source: Source<'t>,
    pub tree: Rc<Tree<'t>>,
    pub position: usize,
    /// The last `{` passed.
    pub brace: usize,
    pub meshes: Vec<Mesh>,
    /// `mhlo.num_replicas` of the module.
    pub replicas: Option<usize>,
    /// `mhlo.num_partitions` of the module.
    partitions: Option<usize>,
    pub aliases: HashMap<String, usize>,
    functions: IndexMap<String, Function>,
    pub registry: &'t Registry,
    pub definitions: Vec<Arc<CompositeDefinition>>,
    /// What decompositions unfold to, by address; the definitions are kept so that addresses stay theirs.
    extents: HashMap<*const CompositeDefinition, (Arc<CompositeDefinition>, Extent)>,
    parsers: HashMap<&'static str, ops::ParseOp>,
    pub frames: Vec<Frame<'t>>,
    line_starts: Vec<usize>,
    depth: usize,
    inlined_nodes: usize,
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
    fn skip_group(&mut self) {
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
        if self.depth > DEPTH_LIMIT { Err(self.too_deep(self.position)) } else { Ok(()) }
    }

    /// E149 where something that nests so deep would stand too deep here.
    pub fn check_depth(&self, depth: usize, at: usize) -> Result<()> {
        if self.depth + depth > DEPTH_LIMIT { Err(self.too_deep(at)) } else { Ok(()) }
    }

    fn too_deep(&self, at: usize) -> Box<Diagnostic> {
        self.error_at(at, "E149", format!("this nests deeper than {DEPTH_LIMIT} levels"))
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
        let (graph, _) = self.function_with_extent(&entry, 0)?;
        self.functions.clear();
        let mut graph = Arc::try_unwrap(graph).unwrap_or_else(|shared| (*shared).clone());
        if graph.meshes.is_empty() {
            graph.meshes = std::mem::take(&mut self.meshes);
        }
        Ok(graph)
    }

    /// Notes where functions, meshes and location aliases stand, bodies unread.
    fn index_module(&mut self, meshes: &mut Vec<usize>) -> Result<()> {
        let tree = self.tree.clone();
        for alias in &tree.aliases {
            if let Attribute::Location(span) = &alias.value {
                self.aliases.insert(alias.name.clone(), span.start + 1);
            }
        }
        self.index(&tree, &tree.top, meshes)
    }

    fn index(&mut self, tree: &Tree, operations: &[OperationId], meshes: &mut Vec<usize>) -> Result<()> {
        for &id in operations {
            let operation = tree.operation(id);
            self.position = operation.span.start;
            match tree.text(operation.name) {
                _ if operation.name != operation.span.start => return Err(self.not_in_a_module()),
                "module" | "builtin.module" => {
                    for &region in operation.regions() {
                        let region = tree.region(region);
                        self.module_attributes(operation.name..region.span.start);
                        for block in &region.blocks {
                            self.index(tree, &block.operations, meshes)?;
                        }
                    }
                }
                "sdy.mesh" => meshes.push(operation.name + 1),
                "func.func" | "func" => {
                    self.index_function()?;
                    if self.position != operation.span.end {
                        return Err(self.not_in_a_module());
                    }
                }
                _ => return Err(self.not_in_a_module()),
            }
        }
        Ok(())
    }

    fn not_in_a_module(&self) -> Box<Diagnostic> {
        self.unexpected("`module`, `func.func` or `sdy.mesh`")
    }

    /// What a module says of itself: how many replicas and partitions the program has. The rest is skipped.
    fn module_attributes(&mut self, tokens: Span) {
        for at in tokens {
            let count = match self.kind_at(at + 1) {
                Kind::Mark('=') if self.kind_at(at + 2) == Kind::Number => self.text_at(at + 2).parse().ok(),
                _ => None,
            };
            match self.text_at(at) {
                "mhlo.num_replicas" => self.replicas = count.or(self.replicas),
                "mhlo.num_partitions" => self.partitions = count.or(self.partitions),
                _ => {}
            }
        }
    }

    /// The number of partitions: what the module says, or the ranks of its meshes where they agree.
    pub fn partition_count(&self) -> Option<usize> {
        let mut ranks = self.meshes.iter().map(Mesh::rank_count);
        self.partitions.or_else(|| ranks.next().filter(|&first| ranks.all(|count| count == first)))
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
        Ok(self.function_with_extent(name, used_at)?.0)
    }

    /// As [`Parser::function`], with what the graph unfolds to. E149 where that is too much.
    fn function_with_extent(&mut self, name: &str, used_at: usize) -> Result<(Arc<Graph>, Extent)> {
        let Some(function) = self.functions.get_mut(name) else {
            let mut error = self.error_at(used_at, "E143", format!("there is no function `@{name}`"));
            error.help = did_you_mean(name, self.functions.keys().map(|k| k.as_str()));
            return Err(error);
        };
        let start = function.start;
        match &function.state {
            State::Read(graph, extent) => return Ok((graph.clone(), *extent)),
            State::InProgress => {
                return Err(self.error_at(used_at, "E149", format!("function `@{name}` calls itself")));
            }
            State::Unread => function.state = State::InProgress,
        }
        let back = std::mem::replace(&mut self.position, start);
        let graph = Arc::new(self.function_body(name)?);
        self.position = back;
        let extent = self.extent(&graph);
        // What stands in the text is bounded by the text.
        if extent.nodes > NODE_LIMIT + self.tree.tokens.list.len() {
            return Err(self.too_many_nodes(used_at));
        }
        self.functions[name].state = State::Read(graph.clone(), extent);
        Ok((graph, extent))
    }

    fn too_many_nodes(&self, at: usize) -> Box<Diagnostic> {
        self.error_at(at, "E149", format!("calls and composites unfold to more than {NODE_LIMIT} nodes"))
    }

    /// What a graph unfolds to. Each decomposition is counted once and remembered.
    fn extent(&mut self, graph: &Graph) -> Extent {
        let mut total = Extent { nodes: graph.nodes.len(), depth: 0 };
        for node in &graph.nodes {
            let mut add = |inner: Extent| {
                total.nodes = total.nodes.saturating_add(REGION_NODES).saturating_add(inner.nodes);
                total.depth = total.depth.max(1 + inner.depth);
            };
            match &node.op {
                Op::Composite(composite) => add(self.definition_extent(&composite.definition)),
                op => op.regions().into_iter().for_each(|region| add(self.extent(region))),
            }
        }
        total
    }

    pub fn definition_extent(&mut self, definition: &Arc<CompositeDefinition>) -> Extent {
        if let Some((_, extent)) = self.extents.get(&Arc::as_ptr(definition)) {
            return *extent;
        }
        let extent = self.extent(&definition.decomposition);
        self.extents.insert(Arc::as_ptr(definition), (definition.clone(), extent));
        extent
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
        if !self.eat('{') {
            return Err(self.unexpected("the function's body"));
        }
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
            let graph = self.graph();
            let replaced = graph.ty(graph.inputs[input]);
            if *replaced != types[output] {
                return Err(self
                    .error_at(at, "E156", "an output cannot replace an input of another type")
                    .expected(replaced.to_string())
                    .found(types[output].to_string()));
            }
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
    pub fn statement(&mut self, id: OperationId) -> Result<()> {
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
        let (results, attributes) = self.operation(id)?;
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
    fn operation(&mut self, id: OperationId) -> Result<(Vec<ValueId>, Attributes)> {
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
        let mut op = OpParser::new(self, name, at, id);
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
        let declared = self.result_types()?;
        if self.kind() != Kind::Arrow {
            return Err(self.unexpected("`->`"));
        }
        self.advance();
        let results = self.result_types()?;
        let (callee, extent) = self.function_with_extent(&name, at)?;
        let graph = self.graph();
        let given: Vec<TensorType> = arguments.iter().map(|&v| graph.ty(v).clone()).collect();
        let taken: Vec<TensorType> = callee.inputs.iter().map(|&v| callee.ty(v).clone()).collect();
        let returned: Vec<TensorType> = callee.outputs.iter().map(|&v| callee.ty(v).clone()).collect();
        if given != taken || declared != taken || returned != results {
            let show = |a: &[TensorType], b: &[TensorType]| {
                format!("({}) -> {}", super::types::print_types(a), super::types::print_results(b))
            };
            return Err(self
                .error_at(at, "E146", format!("this call does not fit `@{name}`"))
                .expected(show(&taken, &returned))
                .found(show(if given == taken { &declared } else { &given }, &results)));
        }
        self.inlined_nodes = self.inlined_nodes.saturating_add(extent.nodes);
        if self.inlined_nodes > NODE_LIMIT {
            return Err(self.too_many_nodes(at));
        }
        self.check_depth(extent.depth, at)?;
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
        // Uneven collectives differ by rank, so only the text knows which of their types this is.
        let of_rank = match (operand_types.as_slice(), declared) {
            ([operand], Some([result])) if op.is_collective() => Some((*operand, result)),
            _ => None,
        };
        let inferred = match (op.infer(&operand_types), of_rank) {
            (Err(error), Some((operand, result)))
                if error.code == "E118" && op.yields_on_some_rank(operand, result) =>
            {
                vec![result.clone()]
            }
            (inferred, _) => inferred.map_err(place)?,
        };
        let types = match declared {
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
