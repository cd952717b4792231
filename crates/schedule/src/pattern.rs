//! Patterns: subgraphs to search for, as data.
//!
//! A pattern is written as model code over a builder, as an expression (`gelu(x + bias)`), or as
//! StableHLO text. [`Pattern::find`] matches by dataflow: operands must be the same values, in
//! either order if the op is commutative; program order does not matter.
//!
//! Extents and element types do not matter. Broadcasts in a graph are skipped: an input of an
//! expression matches the value before the broadcast. An input that model code broadcasts does too,
//! if the dimensions agree counted from the last; an input that model code reads directly matches
//! the broadcast itself. A number matches any constant filled with it, behind broadcasts and
//! conversions. All skipped nodes belong to the match.

mod compile;
mod expression;
mod search;

use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, Result};
use partita_ir::text::{PrintOptions, parse_named, print_with};
use partita_ir::{Graph, GraphBuilder, NodeId, Op, Role, TensorType, ValueId, graph_edit};

/// A dataflow graph with named inputs to search for.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    inputs: Vec<String>,
    /// Alternative forms; a graph matches if it contains any of them.
    forms: Vec<Form>,
}

/// One occurrence of a pattern.
#[derive(Clone, PartialEq, Debug)]
pub struct Match {
    /// All nodes of the match in graph order: those of the pattern, and the constants, broadcasts and conversions of
    /// constants between them.
    pub nodes: Vec<NodeId>,
    /// The value matched by each input of the pattern, in pattern order.
    pub inputs: IndexMap<String, ValueId>,
    /// The value matched by each output of the pattern.
    pub outputs: Vec<ValueId>,
}

/// One way to write a pattern.
#[derive(Clone, Debug, Default)]
struct Form {
    /// Operands come first.
    nodes: Vec<PatternNode>,
    outputs: Vec<Source>,
}

#[derive(Clone, Debug)]
struct PatternNode {
    matcher: Matcher,
    operands: Vec<Operand>,
}

/// The condition that a node of a graph must meet.
#[derive(Clone, Debug)]
enum Matcher {
    /// An op of this name, with any attributes.
    Named(String),
    /// The same op with the same attributes, over other extents and element types.
    Like { op: Op, operands: Vec<TensorType> },
    /// The matmul of a linear layer: contracts the last dimension of operand 0 with dimension 1 of
    /// operand 1.
    Linear,
    /// A whole module whose path, or a suffix of it, matches a regular expression.
    Module(regex_lite::Regex),
}

#[derive(Clone, Debug)]
struct Operand {
    source: Source,
    broadcast: Broadcast,
}

/// Where an operand comes from.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Source {
    Input(usize),
    /// Node and result number.
    Result(usize, usize),
    /// A constant with every element equal to this number.
    Number(f64),
}

/// What the pattern requires of a broadcast between an operand's source and its reader.
#[derive(Clone, PartialEq, Debug)]
enum Broadcast {
    /// Nothing (an expression).
    Unsaid,
    /// No broadcast: the input is read directly.
    None,
    /// A broadcast: for each dimension of the source, its position in the result counted from the
    /// end.
    Dims(Vec<usize>),
}

/// Patterns are equal when their texts are, because the text determines the rest.
impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Pattern {
    /// A pattern from its text: StableHLO if it contains a `func.func`, an expression otherwise.
    ///
    /// An expression is a list of outputs over operators `+ - * /`, numbers and calls, after
    /// statements that name what is used more than once: `h = x + bias; gelu(h), h`. A call names
    /// an op without `stablehlo.` (`dot_general`, `tanh`), a composite without `partita.` (`gelu`,
    /// `layer_norm`), any op by its full name with dots, or one of
    ///
    /// | call | meaning |
    /// |---|---|
    /// | `relu(x)` | `maximum(x, 0)`, or the choice that [`partita_nn::ReLU`] writes |
    /// | `linear(x, w)`, `linear(x, w, b)` | what [`partita_nn::Linear`] writes |
    /// | `module("regex", x, ..)` | a module whose path matches, or the end of it; arguments are the activations it reads, in order of first use |
    ///
    /// Attributes of ops named in an expression are free, those in StableHLO must be equal. Every
    /// other identifier is an input. E240 if the text cannot be parsed, E241 if it is no pattern.
    pub fn parse(text: &str) -> Result<Pattern> {
        if !text.contains("func.func") {
            return expression::parse(text);
        }
        let graph = parse_named(text, "<pattern>").map_err(|cause| {
            let mut error = Diagnostic::new("E240", "the pattern is not valid StableHLO text");
            error.at = cause.at.clone();
            error.expected = cause.expected.clone();
            error.found = cause.found.clone();
            error.help = cause.help.clone();
            error.note(format!("{}: {}", cause.code, cause.message))
        })?;
        Pattern::from_graph(graph)
    }

    /// A pattern from model code over f32 inputs of these names and shapes. The extents are
    /// examples. E241 if it computes nothing or ignores an input; also any error of the builder.
    pub fn from_model(
        inputs: &[(&str, &[usize])],
        build: impl FnOnce(&mut GraphBuilder, &[ValueId]) -> Result<Vec<ValueId>>,
    ) -> Result<Pattern> {
        let mut builder = GraphBuilder::new("main");
        let values: Vec<ValueId> = inputs
            .iter()
            .map(|(name, shape)| builder.input(name, TensorType::new(DType::F32, *shape), Role::Input))
            .collect();
        let outputs = build(&mut builder, &values)?;
        Pattern::from_graph(builder.finish(outputs))
    }

    fn from_graph(graph: Graph) -> Result<Pattern> {
        let graph = graph_edit::prune(graph);
        let text = print_with(&graph, &PrintOptions { locations: false, ..Default::default() });
        let (inputs, form) = compile::compile(&graph)?;
        Ok(Pattern { text, inputs, forms: vec![form] })
    }

    /// Text that parses back to this pattern: an expression as it was written, StableHLO for model code.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of the inputs.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }
}

/// A value seen through broadcasts: the source, the broadcasts between, and the position of each
/// source dimension.
struct View {
    source: ValueId,
    through: Vec<NodeId>,
    dims: Vec<usize>,
}

/// The value itself, then the source of its broadcast, and so on.
fn views(graph: &Graph, value: ValueId) -> Vec<View> {
    let dims = (0..graph.ty(value).rank()).collect();
    let mut views = vec![View { source: value, through: Vec::new(), dims }];
    loop {
        let last = views.last().expect("not empty");
        let Some((id, _)) = graph.value(last.source).definition else { return views };
        let Op::BroadcastInDim(broadcast) = &graph.node(id).op else { return views };
        let through = last.through.iter().copied().chain([id]).collect();
        let dims = broadcast.dims.iter().map(|&d| last.dims[d]).collect();
        views.push(View { source: graph.node(id).operands[0], through, dims });
    }
}

/// The constant whose single number fills a value, behind broadcasts and conversions: the literal
/// and all nodes between.
fn number_behind(graph: &Graph, value: ValueId) -> Option<(&partita_ir::Literal, Vec<NodeId>)> {
    let (mut value, mut nodes) = (value, Vec::new());
    loop {
        let (id, _) = graph.value(value).definition?;
        nodes.push(id);
        let op = &graph.node(id).op;
        if let Op::Constant(constant) = op {
            let full = constant.value.is_splat() && constant.value.ty.element_count() > 0;
            return full.then_some((&constant.value, nodes));
        }
        if !matches!(op, Op::BroadcastInDim(_) | Op::Convert(_)) {
            return None;
        }
        value = graph.node(id).operands[0];
    }
}
