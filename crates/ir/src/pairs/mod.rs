//! Complex numbers as pairs of real ones: devices have no complex element types.
//!
//! Inside the graph, each complex value becomes two real values, its parts. An input or a result of shape `[..]` becomes one
//! real tensor of shape `[.., 2]`: byte for byte what complex64 and complex128 are in memory, and what `view_as_real` of
//! PyTorch returns. So callers convert without a copy, and names, layouts and aliases stay.
//!
//! Ops fall into four kinds. Those that move or add elements apply to each part. Products of two operands become four
//! products of parts. Functions of single elements and Fourier transforms have formulas (`elementwise`, `fourier`). Loops
//! and branches carry both parts, with their regions rewritten in the same way. E170 names an op that is of no kind.
//!
//! An imaginary part that is zero everywhere, such as that of a real operand, is not computed with: a product of a real and
//! a complex tensor is two products. Zeros then count as no term at all, also beside infinities and NaN.
//!
//! The gradient of a real loss with respect to a pair is the pair of both derivatives: PyTorch's gradient of a complex
//! tensor.

mod elementwise;
mod fourier;
#[cfg(test)]
mod tests;

use crate::builder::GraphBuilder;
use crate::graph::{Annotation, Graph, Node, ValueId};
use crate::graph_edit::{carry, open_composites, push_copy, remap_roles};
use crate::literal::Literal;
use crate::op::{Op, Operation};
use crate::ops::{
    BinaryKind, BitcastConvert, Case, Constant, Convolution, DotGeneral, Iota, Reduce, ReduceWindow, Reducer,
    Scatter, Update, While,
};
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, InertType, Result};
use partita_mesh::{Combiner, DimSharding};
use std::collections::BTreeMap;

/// A complex value.
#[derive(Clone, Copy)]
struct Parts {
    /// The real part.
    re: ValueId,
    /// The imaginary part; `None` if it is zero everywhere.
    im: Option<ValueId>,
}

/// What a value of the old graph is in the new one.
#[derive(Clone, Copy)]
enum Twin {
    /// The same value.
    Real(ValueId),
    /// A complex value as two.
    Complex(Parts),
    /// A complex input as one real tensor, which each reader takes apart.
    Joined(ValueId),
}

/// How a graph takes and returns complex values.
#[derive(Clone, Copy, PartialEq)]
enum Border {
    /// As one tensor with a last dimension of 2.
    Joined,
    /// As two tensors: inside a loop or a branch.
    Apart,
}

/// The element type of the parts of a complex one; `None` for others.
fn part_dtype(dtype: DType) -> Option<DType> {
    match dtype {
        DType::Inert(InertType::Complex64) => Some(DType::F32),
        DType::Inert(InertType::Complex128) => Some(DType::F64),
        _ => None,
    }
}

impl TensorType {
    /// The real type of one more dimension, of extent 2, that has the same bytes as this complex one: `f32[3,2]` for
    /// `complex<f32>[3]`. `None` if it is not complex.
    pub fn as_pairs(&self) -> Option<TensorType> {
        Some(TensorType::new(part_dtype(self.dtype)?, [&self.shape[..], &[2]].concat()))
    }
}

/// Whether a graph, or one inside its ops, has complex values.
pub fn has_complex(graph: &Graph) -> bool {
    let inside = |node: &Node| node.op.regions().into_iter().any(has_complex);
    graph.values.iter().any(|value| value.ty.dtype.is_complex()) || graph.nodes.iter().any(inside)
}

/// The graph with pairs of real numbers in place of complex ones, see the top of this file; without complex values, the
/// graph as it is.
///
/// # Errors
/// E170 for an op that has no counterpart on pairs.
pub fn complex_as_pairs(graph: Graph) -> Result<Graph> {
    if !has_complex(&graph) {
        return Ok(graph);
    }
    // A composite is what it is made of.
    let graph = open_composites(&graph, &|composite| has_complex(&composite.definition.decomposition))?;
    Ok(crate::graph_edit::prune(rewritten(&graph, Border::Joined)?))
}

fn rewritten(graph: &Graph, border: Border) -> Result<Graph> {
    let mut target = graph.emptied();
    let is_complex = |value: ValueId| graph.ty(value).dtype.is_complex();
    if border == Border::Joined {
        for (annotation, &output) in target.output_annotations.iter_mut().zip(&graph.outputs) {
            annotation.iter_mut().filter(|_| is_complex(output)).for_each(widen);
        }
    }
    let mut rewriting = Rewriting {
        graph,
        b: GraphBuilder::from_graph(target),
        twins: vec![None; graph.values.len()],
        taken: BTreeMap::new(),
    };
    for &input in &graph.inputs {
        rewriting.input(input, border);
    }
    for index in 0..graph.nodes.len() {
        rewriting.node(index)?;
    }
    rewriting.finish(border)
}

/// A layout for one more dimension, which is not sharded.
fn widen(annotation: &mut Annotation) {
    annotation.sharding.dims.push(DimSharding::whole());
    annotation.open.push(false);
}

/// A graph that is being rewritten.
struct Rewriting<'g> {
    graph: &'g Graph,
    b: GraphBuilder,
    twins: Vec<Option<Twin>>,
    /// The parts of joined inputs by input and module path: readers of one module share them, and no part crosses modules.
    taken: BTreeMap<(usize, String), Parts>,
}

impl Rewriting<'_> {
    fn input(&mut self, input: ValueId, border: Border) {
        let (graph, value) = (self.graph, self.graph.value(input));
        let twin = match (value.ty.as_pairs(), border) {
            (None, _) => {
                let new = self.b.input(&value.name, value.ty.clone(), value.role.clone());
                carry(graph, input, &mut self.b, new);
                Twin::Real(new)
            }
            (Some(pairs), Border::Joined) => {
                let new = self.b.input(&value.name, pairs, value.role.clone());
                let mut annotation = value.annotation.clone();
                annotation.iter_mut().for_each(widen);
                self.b.graph_mut().value_mut(new).annotation = annotation;
                Twin::Joined(new)
            }
            (Some(pairs), Border::Apart) => {
                let ty = TensorType::new(pairs.dtype, value.ty.shape.clone());
                let [re, im] = [0, 1].map(|_| self.b.input(&value.name, ty.clone(), value.role.clone()));
                Twin::Complex(Parts { re, im: Some(im) })
            }
        };
        self.twins[input.index()] = Some(twin);
    }

    fn node(&mut self, index: usize) -> Result<()> {
        let (graph, node) = (self.graph, &self.graph.nodes[index]);
        let tensors = || node.operands.iter().chain(&node.results);
        let is_touched = tensors().any(|&value| graph.ty(value).dtype.is_complex())
            || node.op.regions().into_iter().any(has_complex);
        self.b.enter(node);
        let operands: Vec<Twin> =
            node.operands.iter().map(|&operand| self.operand(operand, &node.path)).collect::<Result<_>>()?;
        let results = match is_touched {
            true => self.results(node, &operands)?,
            false => {
                let operands: Vec<ValueId> = operands.iter().map(|twin| twin.first()).collect();
                push_copy(&mut self.b, graph, index, &operands).into_iter().map(Twin::Real).collect()
            }
        };
        for (&old, twin) in node.results.iter().zip(results) {
            carry(graph, old, &mut self.b, twin.first());
            if let Twin::Complex(Parts { im: Some(im), .. }) = twin {
                // One of both has the role.
                let role = self.b.graph().value(im).role.clone();
                carry(graph, old, &mut self.b, im);
                self.b.graph_mut().value_mut(im).role = role;
            }
            self.twins[old.index()] = Some(twin);
        }
        Ok(())
    }

    /// An operand; one that is an input in its parts.
    fn operand(&mut self, old: ValueId, path: &str) -> Result<Twin> {
        let twin = self.twins[old.index()].expect("operands come first");
        let Twin::Joined(whole) = twin else { return Ok(twin) };
        let key = (old.index(), path.to_string());
        if let Some(parts) = self.taken.get(&key) {
            return Ok(Twin::Complex(*parts));
        }
        let shape = &self.graph.ty(old).shape;
        let b = &mut self.b;
        let mut part = |number: usize| {
            let part = b.slice_dim(whole, shape.len(), number, number + 1)?;
            b.reshape(part, shape)
        };
        let parts = Parts { re: part(0)?, im: Some(part(1)?) };
        self.taken.insert(key, parts);
        Ok(Twin::Complex(parts))
    }

    fn finish(mut self, border: Border) -> Result<Graph> {
        let graph = self.graph;
        let (mut outputs, mut names) = (Vec::new(), Vec::new());
        for (place, &output) in graph.outputs.iter().enumerate() {
            let before = outputs.len();
            let definition = graph.value(output).definition;
            definition.iter().for_each(|(node, _)| self.b.enter(graph.node(*node)));
            match (self.twins[output.index()].expect("outputs are defined"), border) {
                (Twin::Real(value) | Twin::Joined(value), _) => outputs.push(value),
                (Twin::Complex(parts), Border::Joined) => outputs.push(joined(&mut self.b, parts)?),
                (Twin::Complex(parts), Border::Apart) => outputs.extend(both(&mut self.b, parts)?),
            }
            let name = graph.output_names.get(place).into_iter();
            names.extend(name.flat_map(|name| vec![name.clone(); outputs.len() - before]));
        }
        let map: Vec<Option<ValueId>> = self.twins.iter().map(|twin| twin.map(|twin| twin.first())).collect();
        let mut result = self.b.finish(outputs);
        result.output_names = names;
        remap_roles(graph, &map, &mut result);
        Ok(result)
    }

    /// The results of a node with complex operands, results or regions.
    fn results(&mut self, node: &Node, x: &[Twin]) -> Result<Vec<Twin>> {
        self.counterpart(node, x)?.ok_or_else(|| self.refused(node))
    }

    /// The results, by the rule of the op; `None` for an op that has no counterpart on pairs.
    fn counterpart(&mut self, node: &Node, x: &[Twin]) -> Result<Option<Vec<Twin>>> {
        let b = &mut self.b;
        let one = |parts: Parts| Ok(Some(vec![Twin::Complex(parts)]));
        let some = |twin: Option<Twin>| Ok(twin.map(|twin| vec![twin]));
        let is_sum = |reducer: &Reducer| matches!(reducer, Reducer::Combiner(Combiner::Sum));
        match &node.op {
            Op::Constant(constant) => one(constant_parts(b, &constant.value)),
            Op::Iota(iota) => one(counted(b, iota)?),
            Op::Convert(op) => some(Some(converted(b, op.dtype, x[0])?)),
            // To the same type, it is the identity without a gradient.
            Op::BitcastConvert(op) => match part_dtype(op.dtype) {
                Some(dtype) if op.dtype == self.graph.ty(node.operands[0]).dtype => {
                    one(each_part(b, &BitcastConvert { dtype }.into(), x)?)
                }
                _ => Ok(None),
            },
            Op::Unary(op) => some(elementwise::unary(b, op.kind, x[0].parts())?),
            Op::Binary(op) => match binary(b, node, op.kind, x)? {
                Some(parts) => one(parts),
                None => Ok(None),
            },
            Op::Special(op) => some(elementwise::special(b, op.kind, x)?),
            Op::Compare(op) => {
                some(Some(Twin::Real(elementwise::compare(b, op, x[0].parts(), x[1].parts())?)))
            }
            Op::DotGeneral(dot) => {
                let result_dtype = dot.result_dtype.and_then(part_dtype);
                let dot = DotGeneral { result_dtype, ..dot.clone() };
                one(bilinear(b, &dot.into(), x[0].parts(), x[1].parts())?)
            }
            Op::Convolution(op) => {
                let dtype = part_dtype(op.dtype).unwrap_or(op.dtype);
                let op = Convolution { dtype, ..op.clone() };
                one(bilinear(b, &op.into(), x[0].parts(), x[1].parts())?)
            }
            Op::Fft(fft) => some(fourier::transformed(b, fft, x[0].parts())?),
            // Indices and predicates are operands of both parts.
            Op::BroadcastInDim(_)
            | Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Reverse(_)
            | Op::Slice(_)
            | Op::Concatenate(_)
            | Op::Pad(_)
            | Op::DynamicSlice(_)
            | Op::DynamicUpdateSlice(_)
            | Op::Gather(_)
            | Op::Select(_)
            | Op::ShardingConstraint(_)
            | Op::PropagationBarrier(_) => one(each_part(b, &node.op, x)?),
            Op::Scatter(Scatter { update: Update::Assign, .. }) => one(each_part(b, &node.op, x)?),
            Op::Scatter(Scatter { update: Update::Combine(reducer), .. })
            | Op::ReduceWindow(ReduceWindow { reducer, .. })
            | Op::Reduce(Reduce { reducer, .. })
                if is_sum(reducer) =>
            {
                one(each_part(b, &node.op, x)?)
            }
            Op::Reduce(Reduce { dims, reducer: Reducer::Body(body) }) => {
                let reducer = Reducer::Body(Box::new(rewritten(body, Border::Apart)?));
                self.apart(node, Reduce { dims: dims.clone(), reducer }.into(), x)
            }
            Op::While(op) => self.apart(node, loop_apart(op)?.into(), x),
            Op::Case(op) => self.apart(node, branches_apart(op)?.into(), x),
            Op::OptimizationBarrier(_) => self.apart(node, node.op.clone(), x),
            Op::Scatter(_)
            | Op::ReduceWindow(_)
            | Op::Reduce(_)
            | Op::Clamp(_)
            | Op::RankConstant(_)
            | Op::SelectAndScatter(_)
            | Op::Sort(_)
            | Op::TopK(_)
            | Op::ReducePrecision(_)
            | Op::Cholesky(_)
            | Op::TriangularSolve(_)
            | Op::RngBitGenerator(_)
            | Op::AllReduce(_)
            | Op::AllGather(_)
            | Op::ReduceScatter(_)
            | Op::AllToAll(_)
            | Op::CollectivePermute(_)
            | Op::CollectiveBroadcast(_)
            | Op::PartitionId(_)
            | Op::ManualComputation(_)
            | Op::RingAttention(_)
            | Op::RingAttentionGradient(_)
            | Op::Experts(_)
            | Op::ExpertsGradient(_)
            | Op::Composite(_) => Ok(None),
        }
    }

    /// An op over both parts of its complex operands, with both parts of its complex results.
    fn apart(&mut self, node: &Node, op: Op, x: &[Twin]) -> Result<Option<Vec<Twin>>> {
        let mut operands = Vec::with_capacity(2 * x.len());
        for twin in x {
            match twin {
                Twin::Complex(parts) => operands.extend(both(&mut self.b, *parts)?),
                twin => operands.push(twin.first()),
            }
        }
        let mut found = self.b.push(op, &operands)?.into_iter();
        let mut next = || found.next().expect("two results for each complex one");
        let twin = |&old: &ValueId| match self.graph.ty(old).dtype.is_complex() {
            true => Twin::Complex(Parts { re: next(), im: Some(next()) }),
            false => Twin::Real(next()),
        };
        Ok(Some(node.results.iter().map(twin).collect()))
    }

    fn refused(&self, node: &Node) -> Box<Diagnostic> {
        let list =
            |types: Vec<&TensorType>| types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ");
        let (operands, results) = (self.graph.operand_types(node), self.graph.result_types(node));
        let path = if node.path.is_empty() { "<root>" } else { &node.path };
        Diagnostic::new("E170", format!("no device computes `{}` of complex numbers", node.op.name()))
            .at(match &node.location {
                Some(location) => format!("{path} at {location}"),
                None => path.to_string(),
            })
            .expected(
                "of complex numbers: arithmetic, exp, log, sqrt, sin, cos, tanh, abs, products, sums, Fourier transforms, and \
                 ops that move elements",
            )
            .found(format!("({}) -> ({})", list(operands), list(results)))
            .help(
                "write it with real and imaginary parts; `partita run` on one rank evaluates any op on the interpreter",
            )
    }
}

impl Twin {
    /// The value, or the real part.
    fn first(self) -> ValueId {
        match self {
            Twin::Real(value) | Twin::Joined(value) | Twin::Complex(Parts { re: value, .. }) => value,
        }
    }

    /// As a complex value; a real one has no imaginary part.
    fn parts(self) -> Parts {
        if let Twin::Complex(parts) = self { parts } else { Parts { re: self.first(), im: None } }
    }
}

/// Both parts, zeros included.
fn both(b: &mut GraphBuilder, parts: Parts) -> Result<[ValueId; 2]> {
    let im = match parts.im {
        Some(im) => im,
        None => b.full_like(parts.re, 0.0)?,
    };
    Ok([parts.re, im])
}

/// A complex value as one tensor with a last dimension of 2.
fn joined(b: &mut GraphBuilder, parts: Parts) -> Result<ValueId> {
    let shape = b.shape(parts.re);
    let column = [&shape[..], &[1]].concat();
    let [re, im] = both(b, parts)?;
    let columns = [b.reshape(re, &column)?, b.reshape(im, &column)?];
    b.concatenate(&columns, shape.len())
}

/// A complex constant.
fn constant_parts(b: &mut GraphBuilder, value: &Literal) -> Parts {
    let ty = value.ty.with_dtype(part_dtype(value.ty.dtype).unwrap_or(value.ty.dtype));
    let numbers = value.to_complex();
    let is_splat = value.is_splat() && !numbers.is_empty();
    let mut part = |number: usize| {
        b.constant(match is_splat {
            true => Literal::splat(&ty, numbers[0][number]),
            false => Literal::from_f64(&ty, numbers.iter().map(|z| z[number])),
        })
    };
    let is_real = numbers.iter().all(|z| z[1] == 0.0);
    Parts { re: part(0), im: (!is_real).then(|| part(1)) }
}

/// A linear op of one result on each part.
fn each_part(b: &mut GraphBuilder, op: &Op, x: &[Twin]) -> Result<Parts> {
    let real: Vec<ValueId> = x.iter().map(|twin| twin.first()).collect();
    let re = b.push1(op.clone(), &real)?;
    let has_imaginary = |twin: &Twin| matches!(twin, Twin::Complex(Parts { im: Some(_), .. }));
    if !x.iter().any(has_imaginary) {
        return Ok(Parts { re, im: None });
    }
    let mut imaginary = Vec::with_capacity(x.len());
    for twin in x {
        imaginary.push(match twin {
            Twin::Complex(parts) => both(b, *parts)?[1],
            twin => twin.first(),
        });
    }
    Ok(Parts { re, im: Some(b.push1(op.clone(), &imaginary)?) })
}

/// The numbers along a dimension; their imaginary parts are zero.
fn counted(b: &mut GraphBuilder, iota: &Iota) -> Result<Parts> {
    let dtype = part_dtype(iota.ty.dtype).unwrap_or(iota.ty.dtype);
    Ok(Parts { re: b.push1(Iota { ty: iota.ty.with_dtype(dtype), dim: iota.dim }, &[])?, im: None })
}

/// A value in another element type. A real one is the real part.
fn converted(b: &mut GraphBuilder, to: DType, x: Twin) -> Result<Twin> {
    let Some(dtype) = part_dtype(to) else {
        return Ok(Twin::Real(b.convert(x.first(), to)?));
    };
    let Parts { re, im } = x.parts();
    let re = b.convert(re, dtype)?;
    Ok(Twin::Complex(Parts { re, im: im.map(|im| b.convert(im, dtype)).transpose()? }))
}

/// A function of two operands; `None` if it has no formula.
fn binary(b: &mut GraphBuilder, node: &Node, kind: BinaryKind, x: &[Twin]) -> Result<Option<Parts>> {
    let found = match kind {
        BinaryKind::Add | BinaryKind::Subtract => elementwise::sum(b, kind, x[0].parts(), x[1].parts())?,
        BinaryKind::Multiply => bilinear(b, &node.op, x[0].parts(), x[1].parts())?,
        BinaryKind::Divide => elementwise::divide(b, x[0].parts(), x[1].parts())?,
        _ => return Ok(None),
    };
    Ok(Some(found))
}

/// A loop that carries both parts.
fn loop_apart(op: &While) -> Result<While> {
    let [condition, body] = [&op.condition, &op.body].map(|region| rewritten(region, Border::Apart));
    Ok(While { condition: Box::new(condition?), body: Box::new(body?) })
}

/// Branches that return both parts.
fn branches_apart(op: &Case) -> Result<Case> {
    let branches = op.branches.iter().map(|branch| rewritten(branch, Border::Apart));
    Ok(Case { branches: branches.collect::<Result<_>>()? })
}

/// A product, elementwise or with sums, of the parts of its operands.
fn bilinear(b: &mut GraphBuilder, op: &Op, z: Parts, w: Parts) -> Result<Parts> {
    let mut product = |x: ValueId, y: Option<ValueId>| y.map(|y| b.push1(op.clone(), &[x, y])).transpose();
    let re = product(z.re, Some(w.re))?.expect("there are real parts");
    let of_imaginary = match z.im {
        Some(im) => [product(im, w.im)?, product(im, Some(w.re))?],
        None => [None, None],
    };
    let crossed = product(z.re, w.im)?;
    let re = match of_imaginary[0] {
        Some(other) => b.subtract(re, other)?,
        None => re,
    };
    let im = match (crossed, of_imaginary[1]) {
        (Some(x), Some(y)) => Some(b.add(x, y)?),
        (x, y) => x.or(y),
    };
    Ok(Parts { re, im })
}

/// The parts of a constant tensor of complex numbers.
fn table(b: &mut GraphBuilder, dtype: DType, shape: &[usize], numbers: &[[f64; 2]]) -> Parts {
    let ty = TensorType::new(dtype, shape);
    let mut part = |number: usize| {
        let value = Literal::from_f64(&ty, numbers.iter().map(|z| z[number]));
        b.push_typed(Constant { value }, &[], vec![ty.clone()])[0]
    };
    Parts { re: part(0), im: Some(part(1)) }
}
