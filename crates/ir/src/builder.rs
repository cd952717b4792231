//! Building graphs: one method per op, types inferred, module path and phase recorded.

use crate::graph::{Annotation, Graph, Location, Node, NodeId, Phase, Role, Value, ValueId};
use crate::literal::Literal;
use crate::op::{Op, Operation};
use crate::ops::*;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;

/// A graph under construction. New nodes get the current module path, phase and location.
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    /// Module path of new nodes.
    pub path: String,
    /// Phase of new nodes.
    pub phase: Phase,
    /// Source location of new nodes.
    pub location: Option<Location>,
    /// Microbatch of new nodes.
    pub microbatch: Option<usize>,
    /// Group of new nodes to be computed again in the backward pass.
    pub remat: Option<usize>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        GraphBuilder {
            graph: Graph { name: name.to_string(), ..Graph::default() },
            ..GraphBuilder::default()
        }
    }

    /// Continues an existing graph.
    pub fn from_graph(graph: Graph) -> Self {
        GraphBuilder { graph, ..GraphBuilder::default() }
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph so far, to change.
    pub fn graph_mut(&mut self) -> &mut Graph {
        &mut self.graph
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

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// The shape of a value.
    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.graph.ty(value).shape.clone()
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
        let id = ValueId::new(self.graph.values.len());
        self.graph.values.push(Value {
            ty,
            definition: None,
            name: name.to_string(),
            role,
            annotation: None,
        });
        self.graph.inputs.push(id);
        id
    }

    /// Asks for a layout of a value.
    pub fn annotate(&mut self, value: ValueId, annotation: Annotation) {
        self.graph.value_mut(value).annotation = Some(annotation);
    }

    /// New nodes get the path, phase, location, microbatch and group of this one.
    pub fn enter(&mut self, node: &Node) {
        self.path = node.path.clone();
        self.phase = node.phase;
        self.location = node.location.clone();
        self.microbatch = node.microbatch;
        self.remat = node.remat;
    }

    /// Appends a node. E100 wraps what type inference finds, with the module path.
    pub fn push(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<Vec<ValueId>> {
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

    /// Appends a node whose result types are already known.
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
                let id = ValueId::new(self.graph.values.len());
                self.graph.values.push(Value {
                    ty,
                    definition: Some((node, number)),
                    name: String::new(),
                    role: Role::Activation,
                    annotation: None,
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
            remat: self.remat,
        });
        results
    }

    /// Appends a node with one result.
    pub fn push1(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<ValueId> {
        Ok(self.push(op, operands)?[0])
    }

    /// Copies the nodes of `graph` here, its inputs bound to `arguments`; returns its outputs. Where `keep_origin` is
    /// false, they get the builder's path, phase, location, microbatch and group.
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
        let mut map: Vec<Option<ValueId>> = vec![None; graph.values.len()];
        for (&input, &argument) in graph.inputs.iter().zip(arguments) {
            map[input.index()] = Some(argument);
        }
        for node in &graph.nodes {
            let operands: Vec<ValueId> = node
                .operands
                .iter()
                .map(|v| map[v.index()].expect("nodes stand in execution order"))
                .collect();
            let types = node.results.iter().map(|&v| graph.ty(v).clone()).collect();
            let results = self.push_typed(node.op.clone(), &operands, types);
            if keep_origin {
                let last = self.graph.nodes.last_mut().expect("just pushed");
                last.path.clone_from(&node.path);
                last.location.clone_from(&node.location);
                (last.phase, last.microbatch, last.remat) = (node.phase, node.microbatch, node.remat);
            }
            for (&old, &new) in node.results.iter().zip(&results) {
                let source = graph.value(old);
                let target = self.graph.value_mut(new);
                target.name = source.name.clone();
                target.annotation = source.annotation.clone();
                map[old.index()] = Some(new);
            }
        }
        Ok(graph.outputs.iter().map(|v| map[v.index()].expect("outputs are defined")).collect())
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

    /// One number in a whole shape: a scalar constant, broadcast.
    pub fn full(&mut self, ty: &TensorType, value: f64) -> Result<ValueId> {
        let scalar = self.scalar(ty.dtype, value);
        self.broadcast_scalar(scalar, &ty.shape)
    }

    /// One number in the type of `like`.
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

    /// Another element type; the identity when it is the same.
    pub fn convert(&mut self, x: ValueId, dtype: DType) -> Result<ValueId> {
        if self.ty(x).dtype == dtype { Ok(x) } else { self.push1(Convert { dtype }, &[x]) }
    }

    /// The identity, with no gradient: a reinterpretation of the bits as the type they already have.
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

    /// Another shape of the same element count; the identity when it is the same.
    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        if self.ty(x).shape == shape { Ok(x) } else { self.push1(Reshape { shape: shape.to_vec() }, &[x]) }
    }

    /// Result dimension `d` is operand dimension `permutation[d]`.
    pub fn transpose(&mut self, x: ValueId, permutation: &[usize]) -> Result<ValueId> {
        self.push1(Transpose { permutation: permutation.to_vec() }, &[x])
    }

    /// The elements `start..limit` of one dimension.
    pub fn slice_dim(&mut self, x: ValueId, dim: usize, start: usize, limit: usize) -> Result<ValueId> {
        let shape = self.shape(x);
        let mut low = vec![0; shape.len()];
        let mut high = shape.clone();
        (low[dim], high[dim]) = (start, limit);
        self.push1(Slice { start: low, limit: high, stride: vec![1; shape.len()] }, &[x])
    }

    /// Joins along a dimension.
    pub fn concatenate(&mut self, pieces: &[ValueId], dim: usize) -> Result<ValueId> {
        self.push1(Concatenate { dim }, pieces)
    }

    // ---- contraction -----------------------------------------------------------------------------------

    /// The generalised matrix product.
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

    /// Combines along dimensions, starting from the combiner's identity.
    pub fn reduce(&mut self, combiner: Combiner, x: ValueId, dims: &[usize]) -> Result<ValueId> {
        let initial = self.constant(identity(combiner, self.ty(x).dtype));
        self.push1(Reduce { dims: dims.to_vec(), reducer: Reducer::Combiner(combiner) }, &[x, initial])
    }

    /// Sums along dimensions.
    pub fn reduce_sum(&mut self, x: ValueId, dims: &[usize]) -> Result<ValueId> {
        self.reduce(Combiner::Sum, x, dims)
    }

    /// The largest along dimensions.
    pub fn reduce_max(&mut self, x: ValueId, dims: &[usize]) -> Result<ValueId> {
        self.reduce(Combiner::Max, x, dims)
    }
}

/// The identity element of a combiner, as a scalar.
pub fn identity(combiner: Combiner, dtype: DType) -> Literal {
    let lowest = |dtype: DType| match dtype {
        d if d.is_float() => Literal::scalar(d, f64::NEG_INFINITY),
        DType::I8 => Literal::scalar(dtype, i8::MIN as f64),
        DType::I16 => Literal::scalar(dtype, i16::MIN as f64),
        DType::I32 => Literal::scalar(dtype, i32::MIN as f64),
        DType::I64 => Literal::scalar(dtype, i64::MIN as f64),
        _ => Literal::scalar(dtype, 0.0),
    };
    let highest = |dtype: DType| match dtype {
        d if d.is_float() => Literal::scalar(d, f64::INFINITY),
        DType::Bool => Literal::scalar(dtype, 1.0),
        // Out of range for f64, so the conversion saturates at the type's largest value.
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
