//! Functions, parsed at their first use, and their expanded size.

use super::attributes::Value;
use super::parser::Parser;
use super::scope::{Capture, add_value};
use crate::composite::CompositeDefinition;
use crate::graph::{Annotation, Graph, ValueId};
use crate::op::{Op, Operation};
use crate::types::TensorType;
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_mlir::Kind;
use std::sync::Arc;

/// The limit on nodes after expansion of calls and composites: nested calls could otherwise grow
/// without bound.
pub(super) const NODE_LIMIT: usize = 1 << 20;

/// A function of the module: its position, and its graph once parsed.
pub(super) struct Function {
    /// The token after its name.
    pub start: usize,
    pub is_public: bool,
    pub state: State,
}

pub(super) enum State {
    Unread,
    InProgress,
    Read(Arc<Graph>, Extent),
}

/// The expanded size of a graph, regions and decompositions included.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Extent {
    /// Nodes, a region counting as a few.
    pub nodes: usize,
    /// How deep regions and decompositions nest.
    pub depth: usize,
}

/// The cost of a region beside its nodes, in nodes.
const REGION_NODES: usize = 4;

impl Parser<'_> {
    /// The graph of a function, parsed at its first use.
    pub fn function(&mut self, name: &str, used_at: usize) -> Result<Arc<Graph>> {
        Ok(self.function_with_extent(name, used_at)?.0)
    }

    /// [`Parser::function`] with the expanded size of the graph. E149 if that exceeds the limit.
    pub(super) fn function_with_extent(
        &mut self,
        name: &str,
        used_at: usize,
    ) -> Result<(Arc<Graph>, Extent)> {
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
        // Text without calls is bounded by its own length.
        if extent.nodes > NODE_LIMIT + self.tree.tokens.list.len() {
            return Err(self.too_many_nodes(used_at));
        }
        self.functions[name].state = State::Read(graph.clone(), extent);
        Ok((graph, extent))
    }

    pub(super) fn too_many_nodes(&self, at: usize) -> Box<Diagnostic> {
        self.error_at(at, "E149", format!("inlining calls and composites gives more than {NODE_LIMIT} nodes"))
    }

    /// The expanded size of a graph. Each decomposition is counted once and remembered.
    fn extent(&mut self, graph: &Graph) -> Extent {
        let mut total = Extent { nodes: graph.nodes.len(), depth: 0 };
        for node in &graph.nodes {
            let mut add = |inner: Extent| {
                total.nodes = total.nodes.saturating_add(REGION_NODES).saturating_add(inner.nodes);
                total.depth = total.depth.max(1 + inner.depth);
            };
            if let Op::Composite(composite) = &node.op {
                add(self.definition_extent(&composite.definition));
            } else {
                node.op.regions().into_iter().for_each(|region| add(self.extent(region)));
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
        let (types, output_names, mut annotations) = self.function_results()?;
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
                self.error_at(at, "E147", "`tf.aliasing_output` is not the index of a result")
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
        for (position, sharding) in annotations.iter_mut().enumerate() {
            if let Some(annotation) = sharding {
                self.fit_rank(annotation, &types[position], return_at)?;
            }
        }
        if annotations.iter().any(Option::is_some) {
            graph.output_annotations = annotations;
            if graph.meshes.len() < self.meshes.len() {
                graph.meshes = self.meshes.clone();
            }
        }
        if output_names.iter().any(Option::is_some) {
            graph.output_names = output_names.into_iter().map(Option::unwrap_or_default).collect();
        }
        self.leave();
        Ok(graph)
    }

    /// Parses what follows the arguments: types, names and layouts of the results.
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

    /// `%a: T`, a new input of the current graph. A location behind it may name it.
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
}
