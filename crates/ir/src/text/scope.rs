//! Scopes: the graphs being parsed, the names of their values, and what regions see of the graphs
//! around them.

use super::parser::Parser;
use crate::graph::{Graph, Node, NodeId, Role, Value, ValueId};
use crate::op::Op;
use crate::types::TensorType;
use partita_base::{Result, did_you_mean};
use partita_mlir::{Form, Kind};
use std::collections::HashMap;

/// Names of the ops that end a block.
const TERMINATORS: [&str; 5] = ["return", "func.return", "stablehlo.return", "sdy.return", "chlo.return"];

/// How a region captures a value of the surrounding graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Capture {
    /// Nothing is visible: the body of a function.
    Function,
    /// Constants are copied into the region; anything else is rejected.
    Constants,
    /// Constants are copied; anything else becomes one more input.
    Inputs,
    /// Everything becomes one more input.
    All,
}

/// A parsed region: its graph, and the outer values of its last inputs.
#[derive(Debug)]
pub(crate) struct Region {
    pub graph: Graph,
    /// For each captured input, the outer value.
    pub captures: Vec<ValueId>,
}

/// A graph being read.
pub(crate) struct Frame<'t> {
    pub graph: Graph,
    pub capture: Capture,
    pub names: HashMap<&'t str, Vec<ValueId>>,
    /// Outer value to its copy here.
    pub captured: HashMap<ValueId, ValueId>,
    pub captures: Vec<ValueId>,
    /// Roles that name other values: resolved when all names are known.
    pub roles: Vec<(ValueId, String, usize)>,
}

impl<'t> Parser<'t> {
    // ---- regions ---------------------------------------------------------------------------------------

    pub fn frame(&mut self) -> &mut Frame<'t> {
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
            if let Some(name) = self.argument_name()? {
                self.frame().graph.value_mut(value).name = name;
            }
            if !self.eat(',') {
                break;
            }
        }
        Ok(())
    }

    /// The name that a location `loc("name")` gives to an argument; `None` for other locations.
    pub fn argument_name(&mut self) -> Result<Option<String>> {
        let plain = self.kind_at(self.position + 3) == Kind::Mark(')');
        let name = self.optional_location()?.and_then(|location| location.name);
        Ok(name.filter(|_| plain))
    }

    /// The statements of a region whose arguments are already read, and its closing bracket.
    pub fn region_rest(&mut self) -> Result<Region> {
        self.enter()?;
        self.block()?;
        self.leave();
        self.pop_frame()
    }

    /// The statements behind the last `{`, up to the terminator and the closing bracket. Returns
    /// the position of the terminator.
    pub fn block(&mut self) -> Result<usize> {
        let tree = self.tree.clone();
        let (open, close) = (self.brace, tree.tokens.closing[self.brace]);
        let blocks = tree.region_at(open).map_or(&[][..], |region| &region.blocks);
        if let Some(label) = blocks.get(1).and_then(|block| block.label) {
            return Err(self.error_at(label, "E144", "a region of several blocks is not supported"));
        }
        let operations = blocks.first().map_or(&[][..], |block| &block.operations);
        for (number, &id) in operations.iter().enumerate() {
            let operation = tree.operation(id);
            self.position = operation.span.start;
            let is_terminator = TERMINATORS.contains(&tree.text(operation.name).trim_matches('"'));
            if is_terminator && operation.results.is_empty() {
                let at = self.position;
                self.advance();
                self.terminator(matches!(operation.form, Form::Generic(_)))?;
                if number + 1 < operations.len() || self.position != operation.span.end {
                    return Err(self.unexpected("`}` after the return"));
                }
                self.position = close + 1;
                return Ok(at);
            }
            self.statement(id)?;
            if self.position != operation.span.end {
                return Err(self.unexpected("an operation or `return`"));
            }
        }
        self.position = close;
        Err(self.unexpected("an operation or `return`"))
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

    // ---- names -----------------------------------------------------------------------------------------

    /// Names results. E143 if the name is taken.
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

    /// A value by name: of this graph, or captured from the graphs around it.
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

    /// Captures a value of the frame around `inner` into `inner`.
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
                    format!("`{name}` is defined outside this region, which can use only its arguments"),
                ));
            }
        };
        self.frames[inner].captured.insert(outer, value);
        Ok(value)
    }
}

/// Adds a value without name, role or layout.
pub(crate) fn add_value(graph: &mut Graph, ty: TensorType, definition: Option<(NodeId, usize)>) -> ValueId {
    let id = ValueId::new(graph.values.len());
    graph.values.push(Value {
        ty,
        definition,
        name: String::new(),
        role: Role::Activation,
        annotation: None,
        group: None,
    });
    id
}
