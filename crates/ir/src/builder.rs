//! Building graphs: one method per op, types inferred, module path and phase recorded.

use crate::composite::Definitions;
use crate::graph::{Annotation, Graph, Location, Node, NodeId, Phase, Role, Value, ValueId};
use crate::literal::Literal;
use crate::op::{Op, Operation};
use crate::ops::checks::distinct_dims;
use crate::ops::*;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;
use std::panic::Location as Caller;
use std::sync::OnceLock;

/// A graph under construction. New nodes get the current module path, phase and location.
///
/// A value belongs to the builder that made it. Another builder rejects it with E160 if its id is
/// out of range, or if the two builders have different names or were created at different source
/// locations.
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    /// Identifies the values made here; 0 accepts values of any builder.
    owner: u32,
    /// The first error of a call that cannot return it; the next call that can, returns it.
    mistake: OnceLock<Box<Diagnostic>>,
    /// The definitions of its composites.
    pub(crate) definitions: Definitions,
    /// Module path of new nodes.
    pub path: String,
    /// Phase of new nodes.
    pub phase: Phase,
    /// Source location of new nodes.
    pub location: Option<Location>,
    /// Microbatch of new nodes.
    pub microbatch: Option<usize>,
    /// Pipeline stage of new nodes.
    pub stage: usize,
    /// Recomputation group of new nodes (activation checkpointing).
    pub remat: Option<usize>,
}

impl GraphBuilder {
    /// An empty graph.
    #[track_caller]
    pub fn new(name: &str) -> Self {
        GraphBuilder {
            graph: Graph { name: name.to_string(), ..Graph::default() },
            owner: owner_of(name, Caller::caller()),
            ..GraphBuilder::default()
        }
    }

    /// Continues an existing graph, whose values may come from any builder.
    pub fn from_graph(graph: Graph) -> Self {
        GraphBuilder { graph, ..GraphBuilder::default() }
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph so far, mutable.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
    }

    /// Records an error in a call that cannot return one; the next call with a `Result` returns it.
    /// Only the first is kept.
    pub fn reject(&self, mistake: Box<Diagnostic>) {
        let _ = self.mistake.set(mistake);
    }

    /// Checks that values may be used here. E160 for one of another graph; also an error recorded
    /// by [`GraphBuilder::reject`].
    pub fn check(&self, values: &[ValueId]) -> Result<()> {
        if let Some(mistake) = self.mistake.get() {
            return Err(mistake.clone());
        }
        match values.iter().find(|v| self.is_foreign(**v)) {
            Some(&value) => Err(self.foreign(value)),
            None => Ok(()),
        }
    }

    fn is_foreign(&self, value: ValueId) -> bool {
        let another = self.owner != 0 && value.owner() != 0 && value.owner() != self.owner;
        another || value.index() >= self.graph.values.len()
    }

    fn foreign(&self, value: ValueId) -> Box<Diagnostic> {
        let path = if self.path.is_empty() { "<root>" } else { &self.path };
        let at = match &self.location {
            Some(location) => format!("{path} at {location}"),
            None => path.to_string(),
        };
        let count = self.graph.values.len();
        Diagnostic::new("E160", "this value belongs to another graph")
            .at(at)
            .expected(format!("one of the {count} values of `{}`", self.graph.name))
            .found(format!("value {} of another context or builder", value.index()))
            .help("use a value only in the context that created it: build a model in one context")
    }

    /// [`GraphBuilder::finish_named`] for outputs from user code. E160 as [`GraphBuilder::check`].
    pub fn finish_checked(self, outputs: Vec<(String, ValueId)>) -> Result<Graph> {
        let values: Vec<ValueId> = outputs.iter().map(|(_, value)| *value).collect();
        self.check(&values)?;
        Ok(self.finish_named(outputs))
    }

    /// Ends construction with these outputs, without names.
    pub fn finish(mut self, outputs: Vec<ValueId>) -> Graph {
        self.graph.outputs = outputs;
        self.graph
    }

    /// Ends construction with named outputs.
    pub fn finish_named(mut self, outputs: Vec<(String, ValueId)>) -> Graph {
        (self.graph.output_names, self.graph.outputs) = outputs.into_iter().unzip();
        self.graph
    }

    /// The type of a value. A value of another graph gives a scalar type, and the next op returns
    /// E160.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        static UNKNOWN: TensorType = TensorType { dtype: DType::F32, shape: Vec::new() };
        if self.is_foreign(value) {
            self.reject(self.foreign(value));
            return &UNKNOWN;
        }
        self.graph.ty(value)
    }

    /// The shape of a value; see [`GraphBuilder::ty`].
    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.ty(value).shape.clone()
    }

    /// Runs `body` with `name` appended to the module path.
    pub fn scope<T>(&mut self, name: &str, body: impl FnOnce(&mut Self) -> T) -> T {
        let outer = self.path.clone();
        self.path = if outer.is_empty() { name.to_string() } else { format!("{outer}.{name}") };
        let result = body(self);
        self.path = outer;
        result
    }

    /// A new graph input.
    pub fn input(&mut self, name: &str, ty: TensorType, role: Role) -> ValueId {
        let id = ValueId::owned(self.graph.values.len(), self.owner);
        self.graph.values.push(Value {
            ty,
            definition: None,
            name: name.to_string(),
            role,
            annotation: None,
            group: None,
        });
        self.graph.inputs.push(id);
        id
    }

    /// Requests a layout for a value. A value of another graph is ignored, and the next op returns
    /// E160.
    pub fn annotate(&mut self, value: ValueId, annotation: Annotation) {
        match self.is_foreign(value) {
            true => self.reject(self.foreign(value)),
            false => self.graph.value_mut(value).annotation = Some(annotation),
        }
    }

    /// New nodes get the path, phase, location, microbatch, stage and group of this one.
    pub fn enter(&mut self, node: &Node) {
        self.path = node.path.clone();
        self.phase = node.phase;
        self.location = node.location.clone();
        self.microbatch = node.microbatch;
        self.stage = node.stage;
        self.remat = node.remat;
    }

    /// Appends a node. E160 as [`GraphBuilder::check`], else the error of type inference with the
    /// module path.
    pub fn push(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        self.check(operands)?;
        let op = op.into();
        let types: Vec<&TensorType> = operands.iter().map(|&v| self.graph.ty(v)).collect();
        let results = op.infer(&types).map_err(|mut error| {
            if error.at.is_none() {
                let path = if self.path.is_empty() { "<root>" } else { &self.path };
                error.at = Some(match &self.location {
                    Some(location) => format!("{path} ({}) at {location}", op.name()),
                    None => format!("{path} ({})", op.name()),
                });
            }
            error
        })?;
        Ok(self.push_typed(op, operands, results))
    }

    /// Appends a node whose operand and result types are known to be correct.
    pub fn push_typed(
        &mut self,
        op: impl Into<Op>,
        operands: &[ValueId],
        result_types: Vec<TensorType>,
    ) -> Vec<ValueId> {
        let node = NodeId::new(self.graph.nodes.len());
        let results: Vec<ValueId> = result_types
            .into_iter()
            .enumerate()
            .map(|(number, ty)| {
                let id = ValueId::owned(self.graph.values.len(), self.owner);
                self.graph.values.push(Value {
                    ty,
                    definition: Some((node, number)),
                    name: String::new(),
                    role: Role::Activation,
                    annotation: None,
                    group: None,
                });
                id
            })
            .collect();
        self.graph.nodes.push(Node {
            op: op.into(),
            operands: operands.to_vec(),
            results: results.clone(),
            path: self.path.clone(),
            location: self.location.clone(),
            phase: self.phase,
            microbatch: self.microbatch,
            stage: self.stage,
            remat: self.remat,
        });
        results
    }

    /// Appends a node and returns its first result. E101 for an op without results.
    pub fn push1(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<ValueId> {
        let results = self.push(op, operands)?;
        results
            .first()
            .copied()
            .ok_or_else(|| Diagnostic::new("E101", "an op without results is used as a value"))
    }

    /// Copies the nodes of `graph` here, with its inputs bound to `arguments`; returns its outputs.
    /// Unless `keep_origin`, the nodes get the builder's path, phase, location, microbatch, stage
    /// and group. E131 for a wrong number of arguments, E152 for an ill-formed graph.
    pub fn inline(
        &mut self,
        graph: &Graph,
        arguments: &[ValueId],
        keep_origin: bool,
    ) -> Result<Vec<ValueId>> {
        if graph.inputs.len() != arguments.len() {
            return Err(Diagnostic::new(
                "E131",
                format!("`{}` called with a wrong number of arguments", graph.name),
            )
            .expected(graph.inputs.len().to_string())
            .found(arguments.len().to_string()));
        }
        self.check(arguments)?;
        let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
        for (&input, &argument) in graph.inputs.iter().zip(arguments) {
            map[input.index()] = Some(argument);
        }
        let defined = |map: &[Option<ValueId>], v: &ValueId| {
            map.get(v.index()).copied().flatten().ok_or_else(|| {
                Diagnostic::new("E152", format!("`{}` uses a value before it is defined", graph.name))
                    .found(format!("value {}", v.index()))
            })
        };
        for node in &graph.nodes {
            let operands: Vec<ValueId> =
                node.operands.iter().map(|v| defined(&map, v)).collect::<Result<_>>()?;
            let types = node.results.iter().map(|&v| graph.ty(v).clone()).collect();
            let results = self.push_typed(node.op.clone(), &operands, types);
            if keep_origin {
                let last = self.graph.nodes.last_mut().expect("just pushed");
                last.path.clone_from(&node.path);
                last.location.clone_from(&node.location);
                (last.phase, last.microbatch) = (node.phase, node.microbatch);
                (last.stage, last.remat) = (node.stage, node.remat);
            }
            for (&old, &new) in node.results.iter().zip(&results) {
                let source = graph.value(old);
                let target = self.graph.value_mut(new);
                target.name = source.name.clone();
                target.annotation = source.annotation.clone();
                target.group = source.group;
                map[old.index()] = Some(new);
            }
        }
        graph.outputs.iter().map(|v| defined(&map, v)).collect()
    }

    // ---- constants -------------------------------------------------------------------------------------

    /// A literal.
    pub fn constant(&mut self, value: Literal) -> ValueId {
        let ty = value.ty.clone();
        self.push_typed(Constant { value }, &[], vec![ty])[0]
    }

    /// A scalar literal.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> ValueId {
        self.constant(Literal::scalar(dtype, value))
    }

    /// A shape filled with one number: a scalar constant, broadcast.
    pub fn full(&mut self, ty: &TensorType, value: f64) -> Result<ValueId> {
        let scalar = self.scalar(ty.dtype, value);
        self.broadcast_scalar(scalar, &ty.shape)
    }

    /// The type of `like` filled with one number.
    pub fn full_like(&mut self, like: ValueId, value: f64) -> Result<ValueId> {
        let ty = self.ty(like).clone();
        self.full(&ty, value)
    }

    /// `result[i] = i[dim]`.
    pub fn iota(&mut self, ty: TensorType, dim: usize) -> Result<ValueId> {
        self.push1(Iota { ty, dim }, &[])
    }

    // ---- elementwise -----------------------------------------------------------------------------------

    /// An elementwise function of one operand.
    pub fn unary(&mut self, kind: UnaryKind, x: ValueId) -> Result<ValueId> {
        self.push1(Unary { kind }, &[x])
    }

    /// An elementwise function of two operands of one type.
    pub fn binary(&mut self, kind: BinaryKind, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.push1(Binary { kind }, &[a, b])
    }

    /// `a + b`.
    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryKind::Add, a, b)
    }

    /// `a - b`.
    pub fn subtract(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryKind::Subtract, a, b)
    }

    /// `a * b`.
    pub fn multiply(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryKind::Multiply, a, b)
    }

    /// `a / b`.
    pub fn divide(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryKind::Divide, a, b)
    }

    /// The larger of each pair.
    pub fn maximum(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryKind::Maximum, a, b)
    }

    /// The smaller of each pair.
    pub fn minimum(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.binary(BinaryKind::Minimum, a, b)
    }

    /// `-x`.
    pub fn negate(&mut self, x: ValueId) -> Result<ValueId> {
        self.unary(UnaryKind::Negate, x)
    }

    /// `e^x`.
    pub fn exponential(&mut self, x: ValueId) -> Result<ValueId> {
        self.unary(UnaryKind::Exponential, x)
    }

    /// `x * factor`.
    pub fn scale(&mut self, x: ValueId, factor: f64) -> Result<ValueId> {
        let factor = self.full_like(x, factor)?;
        self.multiply(x, factor)
    }

    /// `x + offset`.
    pub fn offset(&mut self, x: ValueId, offset: f64) -> Result<ValueId> {
        let offset = self.full_like(x, offset)?;
        self.add(x, offset)
    }

    /// `a <direction> b`, in the natural order of the element type.
    pub fn compare(&mut self, direction: Direction, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.push1(Compare { direction, compare_type: None }, &[a, b])
    }

    /// `predicate ? on_true : on_false`.
    pub fn select(&mut self, predicate: ValueId, on_true: ValueId, on_false: ValueId) -> Result<ValueId> {
        self.push1(Select, &[predicate, on_true, on_false])
    }

    /// Another element type; the identity if it is the same.
    pub fn convert(&mut self, x: ValueId, dtype: DType) -> Result<ValueId> {
        if self.ty(x).dtype == dtype { Ok(x) } else { self.push1(Convert { dtype }, &[x]) }
    }

    /// The identity without a gradient: a bitcast to the same type.
    pub fn stop_gradient(&mut self, x: ValueId) -> Result<ValueId> {
        let dtype = self.ty(x).dtype;
        self.push1(BitcastConvert { dtype }, &[x])
    }

    // ---- shape -----------------------------------------------------------------------------------------

    /// Operand dimension `d` becomes result dimension `dims[d]`.
    pub fn broadcast_in_dim(&mut self, x: ValueId, shape: &[usize], dims: &[usize]) -> Result<ValueId> {
        self.push1(BroadcastInDim { shape: shape.to_vec(), dims: dims.to_vec() }, &[x])
    }

    /// A scalar repeated over `shape`; the scalar itself for an empty shape.
    pub fn broadcast_scalar(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        if shape.is_empty() { Ok(x) } else { self.broadcast_in_dim(x, shape, &[]) }
    }

    /// Aligns the trailing dimensions of `x` with `shape` and repeats it, as NumPy does.
    pub fn broadcast_trailing(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        let own = self.shape(x);
        if own == shape {
            return Ok(x);
        }
        let first = shape.len().saturating_sub(own.len());
        let dims: Vec<usize> = (first..shape.len()).collect();
        self.broadcast_in_dim(x, shape, &dims)
    }

    /// Another shape with the same element count; the identity if it is the same.
    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        if self.ty(x).shape == shape { Ok(x) } else { self.push1(Reshape { shape: shape.to_vec() }, &[x]) }
    }

    /// Result dimension `d` is operand dimension `permutation[d]`.
    pub fn transpose(&mut self, x: ValueId, permutation: &[usize]) -> Result<ValueId> {
        self.push1(Transpose { permutation: permutation.to_vec() }, &[x])
    }

    /// The elements `start..limit` of one dimension. E105 if the dimension does not exist.
    pub fn slice_dim(&mut self, x: ValueId, dim: usize, start: usize, limit: usize) -> Result<ValueId> {
        self.check(&[x])?;
        let shape = self.shape(x);
        distinct_dims("slice_dim", "dim", &[dim], shape.len())?;
        let mut low = vec![0; shape.len()];
        let mut high = shape.clone();
        (low[dim], high[dim]) = (start, limit);
        self.push1(Slice { start: low, limit: high, stride: vec![1; shape.len()] }, &[x])
    }

    /// Concatenates along a dimension.
    pub fn concatenate(&mut self, pieces: &[ValueId], dim: usize) -> Result<ValueId> {
        self.push1(Concatenate { dim }, pieces)
    }

    // ---- contraction -----------------------------------------------------------------------------------

    /// The generalised matmul.
    pub fn dot_general(&mut self, a: ValueId, b: ValueId, dims: DotGeneral) -> Result<ValueId> {
        self.push1(dims, &[a, b])
    }

    /// `x[.., k] * w[n, k] -> [.., n]`: a linear layer with PyTorch's weight layout.
    pub fn linear(&mut self, x: ValueId, weight: ValueId) -> Result<ValueId> {
        let last = self.ty(x).rank().saturating_sub(1);
        let dims =
            DotGeneral { lhs_contracting: vec![last], rhs_contracting: vec![1], ..DotGeneral::default() };
        self.dot_general(x, weight, dims)
    }

    /// Reduces along dimensions, starting from the combiner's identity.
    pub fn reduce(&mut self, combiner: Combiner, x: ValueId, dims: &[usize]) -> Result<ValueId> {
        let initial = self.constant(identity(combiner, self.ty(x).dtype));
        self.push1(Reduce { dims: dims.to_vec(), reducer: Reducer::Combiner(combiner) }, &[x, initial])
    }

    /// Sum along dimensions.
    pub fn reduce_sum(&mut self, x: ValueId, dims: &[usize]) -> Result<ValueId> {
        self.reduce(Combiner::Sum, x, dims)
    }

    /// Maximum along dimensions.
    pub fn reduce_max(&mut self, x: ValueId, dims: &[usize]) -> Result<ValueId> {
        self.reduce(Combiner::Max, x, dims)
    }
}

/// The number of a builder, equal in every run: a hash of its name and source location. Never 0.
fn owner_of(name: &str, place: &Caller) -> u32 {
    let mut hash: u32 = 0x811C_9DC5; // FNV-1a
    let numbers = [place.line(), place.column()].map(u32::to_le_bytes);
    for &byte in name.as_bytes().iter().chain(place.file().as_bytes()).chain(numbers.as_flattened()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash.max(1)
}

/// The identity element of a combiner, as a scalar.
pub fn identity(combiner: Combiner, dtype: DType) -> Literal {
    let lowest = |dtype: DType| match dtype {
        d if d.is_float() => Literal::scalar(d, f64::NEG_INFINITY),
        // Out of range for f64, so the conversion saturates at the type's smallest value.
        d if d.is_signed_integer() => Literal::scalar(d, -1e30),
        _ => Literal::scalar(dtype, 0.0),
    };
    let highest = |dtype: DType| match dtype {
        d if d.is_float() => Literal::scalar(d, f64::INFINITY),
        DType::Bool => Literal::scalar(dtype, 1.0),
        // And here at its largest value.
        _ => Literal::scalar(dtype, 1e30),
    };
    let all_ones = |dtype: DType| match dtype {
        DType::Bool => Literal::scalar(dtype, 1.0),
        d if d.is_signed_integer() => Literal::scalar(d, -1.0),
        d => Literal::scalar(d, 1e30),
    };
    match combiner {
        Combiner::Sum | Combiner::Or => Literal::scalar(dtype, 0.0),
        Combiner::Prod => Literal::scalar(dtype, 1.0),
        Combiner::And => all_ones(dtype),
        Combiner::Max => lowest(dtype),
        Combiner::Min => highest(dtype),
    }
}

#[cfg(test)]
#[path = "builder_tests.rs"]
mod tests;
