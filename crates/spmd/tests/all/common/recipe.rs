//! Random graphs. A recipe is a list of steps, each of which adapts to the values that exist, so
//! that any prefix or sublist is a valid recipe too and failures shrink.

use super::numbers;
use partita_base::DType;
use partita_cost::Cluster;
use partita_ir::composites::{DROPOUT, GELU, LAYER_NORM, RMS_NORM, SOFTMAX};
use partita_ir::ops::{
    self, BinaryKind, Direction, DotGeneral, GatherDims, OptimizationBarrier, ReduceWindow, Reducer,
    ScatterDims, ShardingConstraint, UnaryKind, Update,
};
use partita_ir::{
    Annotation, Attribute, Graph, GraphBuilder, Literal, Op, Role, TensorType, ValueId, autodiff,
};
use partita_mesh::{AxisList, AxisRef, Combiner, Mesh, Sharding};
use partita_spmd::Options;
use proptest::prelude::*;

/// What a step does to a value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Unary,
    Binary,
    Clamp,
    Select,
    Dot,
    Sum,
    Max,
    Merge,
    Split,
    Transpose,
    Broadcast,
    Gather,
    Scatter,
    Softmax,
    LayerNorm,
    RmsNorm,
    Gelu,
    Dropout,
    Concatenate,
    Slice,
    DynamicSlice,
    Pad,
    Reverse,
    Iota,
    CumulativeSum,
    Constraint,
    Barrier,
}

use Kind::*;

/// Ops that make or take partial values come often.
const KINDS: &[Kind] = &[
    Unary,
    Binary,
    Binary,
    Binary,
    Clamp,
    Select,
    Dot,
    Dot,
    Dot,
    Sum,
    Sum,
    Max,
    Merge,
    Split,
    Transpose,
    Broadcast,
    Broadcast,
    Gather,
    Scatter,
    Softmax,
    LayerNorm,
    RmsNorm,
    Gelu,
    Dropout,
    Concatenate,
    Slice,
    DynamicSlice,
    Pad,
    Reverse,
    Iota,
    CumulativeSum,
    Constraint,
    Constraint,
    Barrier,
];

/// Meshes that recipes choose from. Parts of axes of 4, 6 and 8 are used too.
pub const MESHES: &[&[(&str, usize)]] = &[
    &[("x", 2)],
    &[("x", 3)],
    &[("x", 4)],
    &[("x", 2), ("y", 2)],
    &[("x", 1), ("y", 2)],
    &[("x", 2), ("y", 3)],
    &[("x", 6)],
    &[("x", 2), ("y", 2), ("z", 2)],
    &[("x", 2), ("y", 4)],
    &[("x", 1)],
];

/// Most elements of a tensor.
const MAX_ELEMENTS: usize = 400;

/// A random graph with random annotations.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Index into [`MESHES`].
    pub mesh: usize,
    /// Shapes of the first inputs.
    pub inputs: Vec<Vec<usize>>,
    /// Steps, each with the number from which its choices derive.
    pub steps: Vec<(Kind, u64)>,
    /// Annotations, each derived from a number.
    pub pins: Vec<u64>,
    /// Whether gradients of a scalar are appended.
    pub gradient: bool,
    /// Seed of the numbers.
    pub seed: u64,
}

/// Recipes over the first `meshes` meshes.
pub fn recipes(meshes: usize, most_steps: usize) -> impl Strategy<Value = Recipe> {
    let extent = prop_oneof![1 => Just(0usize), 4 => Just(1), 10 => Just(2), 10 => Just(3), 10 => Just(4),
        8 => Just(5), 8 => Just(6), 6 => Just(8)];
    let shape = prop::collection::vec(extent, 0..4);
    (
        0..meshes,
        prop::collection::vec(shape, 1..4),
        prop::collection::vec((prop::sample::select(KINDS), any::<u64>()), 1..most_steps),
        prop::collection::vec(any::<u64>(), 2..9),
        any::<bool>(),
        0..1000u64,
    )
        .prop_map(|(mesh, inputs, steps, pins, gradient, seed)| Recipe {
            mesh,
            inputs,
            steps,
            pins,
            gradient,
            seed,
        })
}

/// A number consumed digit by digit.
struct Digits(u64);

impl Digits {
    fn below(&mut self, count: usize) -> usize {
        let digit = self.0 % count.max(1) as u64;
        self.0 /= count.max(1) as u64;
        digit as usize
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

impl Recipe {
    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        Mesh::new("mesh", MESHES[self.mesh])
    }

    /// Links and devices from very slow to very fast, so that all kinds of splits are chosen.
    pub fn options(&self) -> Options {
        let mut cluster = Cluster::default();
        let (links, devices) = (self.seed % 3, self.seed / 3 % 3);
        for level in &mut cluster.levels {
            level.link.latency_s *= [1.0, 0.0, 1e6][links as usize];
            level.link.bytes_per_s *= [1.0, 1e-6, 1e6][links as usize];
        }
        cluster.device.flops_per_s *= [1.0, 1e-8, 1e8][devices as usize];
        Options { cluster, ..Options::default() }
    }

    /// The graph with its annotations.
    pub fn graph(&self) -> Graph {
        let mut kitchen = Kitchen { b: GraphBuilder::new("main"), floats: Vec::new(), mesh: self.mesh() };
        for shape in &self.inputs {
            if shape.iter().product::<usize>() <= MAX_ELEMENTS {
                kitchen.input(shape);
            }
        }
        if kitchen.floats.is_empty() {
            kitchen.input(&[4]);
        }
        for &(kind, entropy) in &self.steps {
            if let Some(value) = kitchen.step(kind, Digits(entropy))
                && kitchen.b.ty(value).element_count() <= MAX_ELEMENTS
            {
                kitchen.floats.push(value);
            }
        }
        let mut graph = kitchen.finish(self.gradient, self.seed);
        let outputs = graph.outputs.len();
        graph.output_annotations = vec![None; outputs];
        for (number, &entropy) in self.pins.iter().enumerate() {
            let mut digits = Digits(entropy);
            let of_output = digits.below(6) == 0;
            let position = if of_output { digits.below(outputs) } else { digits.below(graph.values.len()) };
            let value = if of_output { graph.outputs[position] } else { ValueId::new(position) };
            let rank = graph.ty(value).rank();
            let annotation = annotation(&self.mesh(), rank, &mut digits, &format!("pin {number}"));
            let definition = graph.value(value).definition;
            if of_output {
                graph.output_annotations[position] = Some(annotation);
            } else if !definition.is_some_and(|(n, _)| matches!(graph.node(n).op, Op::ShardingConstraint(_)))
            {
                // A sharding constraint already annotates its result.
                graph.value_mut(value).annotation = Some(annotation);
            }
        }
        graph
    }

    /// A value for each input.
    pub fn values(&self, graph: &Graph) -> Vec<Literal> {
        let value = |(number, &input): (usize, &ValueId)| {
            let ty = graph.ty(input);
            numbers(&ty.shape, self.seed * 31 + number as u64, ty.dtype)
        };
        graph.inputs.iter().enumerate().map(value).collect()
    }
}

/// A valid layout: every axis, or each part of it, on some dimension or on none, in some order.
fn annotation(mesh: &Mesh, rank: usize, digits: &mut Digits, origin: &str) -> Annotation {
    let mut atoms: Vec<AxisRef> = Vec::new();
    for axis in 0..mesh.axes.len() {
        let full = mesh.full_axis(axis);
        match (digits.below(3), full.size) {
            (0, 4 | 6 | 8) => {
                let (major, minor) = full.split(2).expect("even");
                atoms.extend([major, minor]);
            }
            (1, 6) => {
                let (major, minor) = full.split(3).expect("a multiple of 3");
                atoms.extend([minor, major]);
            }
            _ => atoms.push(full),
        }
    }
    if digits.below(2) == 1 {
        atoms.reverse();
    }
    let mut lists: Vec<AxisList> = vec![AxisList::new(); rank];
    let mut replicated = Vec::new();
    for atom in atoms {
        let place = digits.below(rank + 1);
        match lists.get_mut(place) {
            Some(list) => list.push(atom),
            None if digits.below(3) == 0 => replicated.push(atom),
            None => {}
        }
    }
    let mut sharding = Sharding::replicated(rank);
    for (dim, list) in lists.into_iter().enumerate() {
        sharding = sharding.with_dim(dim, list);
    }
    let open = (0..rank).map(|_| digits.below(2) == 0).collect();
    Annotation { mesh: 0, sharding, open, replicated, origin: origin.to_string() }
}

/// A graph under construction and its real-valued values.
struct Kitchen {
    b: GraphBuilder,
    floats: Vec<ValueId>,
    mesh: Mesh,
}

impl Kitchen {
    fn input(&mut self, shape: &[usize]) -> ValueId {
        let number = self.b.graph().inputs.len();
        let role = if number.is_multiple_of(2) { Role::Input } else { Role::Param };
        let value = self.b.input(&format!("x{number}"), TensorType::new(DType::F64, shape), role);
        self.floats.push(value);
        value
    }

    fn index_input(&mut self, shape: &[usize]) -> ValueId {
        let number = self.b.graph().inputs.len();
        self.b.input(&format!("i{number}"), TensorType::new(DType::I32, shape), Role::Input)
    }

    /// A random value of the same type, possibly `x` itself.
    fn like(&self, x: ValueId, digits: &mut Digits) -> ValueId {
        let same: Vec<ValueId> =
            self.floats.iter().copied().filter(|&v| self.b.ty(v) == self.b.ty(x)).collect();
        digits.pick(&same)
    }

    /// Applies a step; `None` if no existing value fits it.
    fn step(&mut self, kind: Kind, mut digits: Digits) -> Option<ValueId> {
        // Prefers later values, so that graphs get deep.
        let recent = digits.below(2) == 0;
        let from = if recent { self.floats.len().saturating_sub(3) } else { 0 };
        let x = digits.pick(&self.floats[from..]);
        let y = self.like(x, &mut digits);
        let shape = self.b.shape(x);
        let rank = shape.len();
        let dim = digits.below(rank);
        let needs_dim = !matches!(
            kind,
            Unary | Binary | Clamp | Select | Broadcast | Gelu | Dropout | Constraint | Barrier
        );
        if needs_dim && rank == 0 {
            return None;
        }
        let b = &mut self.b;
        let f64_scalar = |b: &mut GraphBuilder, value| b.scalar(DType::F64, value);
        let epsilon = [("epsilon", Attribute::Float(1e-2))];
        let made = match kind {
            Unary => {
                let kinds = [UnaryKind::Tanh, UnaryKind::Negate, UnaryKind::Logistic, UnaryKind::Sine];
                b.unary(digits.pick(&kinds), x)
            }
            Binary => {
                b.binary(digits.pick(&[BinaryKind::Add, BinaryKind::Subtract, BinaryKind::Multiply]), x, y)
            }
            Clamp => {
                let (low, high) = (f64_scalar(b, -0.512), f64_scalar(b, 0.637));
                b.push1(ops::Clamp, &[low, x, high])
            }
            Select => {
                // No computed value equals this number.
                let limit = b.full_like(y, 0.123456789).ok()?;
                let predicate = b.compare(Direction::Lt, y, limit).ok()?;
                b.select(predicate, x, y)
            }
            Dot => return self.dot(x, &mut digits),
            Sum => {
                let bits = digits.below(1 << rank).max(1);
                let dims: Vec<usize> = (0..rank).filter(|d| bits >> d & 1 == 1).collect();
                b.reduce_sum(x, &dims)
            }
            Max if shape[dim] == 0 => return None,
            Max => b.reduce_max(x, &[dim]),
            Merge => {
                let end = dim + 1 + digits.below(rank - dim);
                let merged: usize = shape[dim..end].iter().product();
                b.reshape(x, &[&shape[..dim], &[merged], &shape[end..]].concat())
            }
            Split => {
                let parts: Vec<usize> = (1..=shape[dim]).filter(|p| shape[dim].is_multiple_of(*p)).collect();
                if parts.is_empty() {
                    return None;
                }
                let major = digits.pick(&parts);
                b.reshape(x, &[&shape[..dim], &[major, shape[dim] / major], &shape[dim + 1..]].concat())
            }
            Transpose => {
                let mut left: Vec<usize> = (0..rank).collect();
                let order: Vec<usize> = (0..rank).map(|_| left.remove(digits.below(left.len()))).collect();
                b.transpose(x, &order)
            }
            Broadcast => {
                let at = digits.below(rank + 1);
                let extent = digits.pick(&[1, 2, 3, 4]);
                let dims: Vec<usize> = (0..=rank).filter(|&d| d != at).collect();
                b.broadcast_in_dim(x, &[&shape[..at], &[extent], &shape[at..]].concat(), &dims)
            }
            Gather if shape[0] == 0 => return None,
            Gather | Scatter => {
                let count = digits.pick(&[1, 2, 3, 4, 6]);
                let window: Vec<usize> = (1..rank).collect();
                let index = self.index_input(&[count]);
                if let Gather = kind {
                    let dims = GatherDims {
                        offset_dims: window,
                        collapsed_slice_dims: vec![0],
                        start_index_map: vec![0],
                        index_vector_dim: 1,
                        ..GatherDims::default()
                    };
                    let slice_sizes = [&[1], &shape[1..]].concat();
                    let op = ops::Gather { dims, slice_sizes, indices_are_sorted: false };
                    self.b.push1(op, &[x, index])
                } else {
                    let updates = self.input(&[&[count], &shape[1..]].concat());
                    let dims = ScatterDims {
                        update_window_dims: window,
                        inserted_window_dims: vec![0],
                        scatter_dims_to_operand_dims: vec![0],
                        index_vector_dim: 1,
                        ..ScatterDims::default()
                    };
                    let op = ops::Scatter {
                        dims,
                        update: Update::Combine(Reducer::Combiner(Combiner::Sum)),
                        indices_are_sorted: false,
                        unique_indices: false,
                    };
                    self.b.push1(op, &[x, index, updates])
                }
            }
            Softmax => b.composite(&SOFTMAX, &[], &[x]),
            LayerNorm | RmsNorm => {
                let count = digits.below(3);
                let parameters: Vec<ValueId> = (0..count).map(|_| self.input(&shape[rank - 1..])).collect();
                let most = if let LayerNorm = kind { 2 } else { 1 };
                let operands = [&[x], &parameters[..count.min(most)]].concat();
                let template = if let LayerNorm = kind { &LAYER_NORM } else { &RMS_NORM };
                self.b.composite(template, &epsilon, &operands)
            }
            Gelu => b.composite(&GELU, &[("tanh", Attribute::Bool(true))], &[x]),
            Dropout => {
                let seed = b.scalar(DType::U64, 7.0);
                let attributes = [("rate", Attribute::Float(0.3)), ("stream", Attribute::Int(2))];
                b.composite(&DROPOUT, &attributes, &[x, seed])
            }
            Concatenate => b.concatenate(&[x, y], dim),
            Slice => {
                let start = digits.below(shape[dim] + 1);
                let limit = start + digits.below(shape[dim] - start + 1);
                b.slice_dim(x, dim, start, limit)
            }
            DynamicSlice => {
                let mut sizes = shape.clone();
                sizes[dim] = digits.below(shape[dim] + 1);
                let start = self.index_input(&[]);
                let operands = [&[x][..], &vec![start; rank]].concat();
                self.b.push1(ops::DynamicSlice { sizes }, &operands)
            }
            Pad => {
                let value = f64_scalar(b, 0.25);
                let edge = |digits: &mut Digits| digits.below(3) as i64;
                let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
                (low[dim], high[dim]) = (edge(&mut digits), edge(&mut digits));
                b.push1(ops::Pad { low, high, interior: vec![0; rank] }, &[x, value])
            }
            Reverse => b.push1(ops::Reverse { dims: vec![dim] }, &[x]),
            Iota => {
                let ty = b.ty(x).clone();
                let count = b.iota(ty, dim).ok()?;
                b.add(x, count)
            }
            CumulativeSum if shape[dim] == 0 => return None,
            CumulativeSum => {
                let zero = f64_scalar(b, 0.0);
                let (mut window, mut padding) = (vec![1; rank], vec![(0, 0); rank]);
                (window[dim], padding[dim]) = (shape[dim], (shape[dim] as i64 - 1, 0));
                let ones = vec![1; rank];
                let op = ReduceWindow {
                    window,
                    strides: ones.clone(),
                    base_dilation: ones.clone(),
                    window_dilation: ones,
                    padding,
                    reducer: Reducer::Combiner(Combiner::Sum),
                };
                b.push1(op, &[x, zero])
            }
            Constraint => {
                let annotation = annotation(&self.mesh, rank, &mut digits, "constraint");
                b.push1(ShardingConstraint { annotation }, &[x])
            }
            Barrier => return b.push(OptimizationBarrier, &[x, y]).ok().map(|results| results[0]),
        };
        Some(made.unwrap_or_else(|e| panic!("{kind:?} on {:?}: {e}", shape)))
    }

    /// Contracts a dimension of `x` with an equal one of another value; a second pair becomes a
    /// batch dimension.
    fn dot(&mut self, x: ValueId, digits: &mut Digits) -> Option<ValueId> {
        let shape = self.b.shape(x);
        let mut pairs: Vec<(ValueId, usize, usize)> = Vec::new();
        for &y in &self.floats {
            for (i, extent) in shape.iter().enumerate() {
                let equal = self.b.shape(y).into_iter().enumerate().filter(|(_, e)| e == extent);
                pairs.extend(equal.map(|(j, _)| (y, i, j)));
            }
        }
        if pairs.is_empty() {
            return None;
        }
        let (y, i, j) = digits.pick(&pairs);
        let batches: Vec<(usize, usize)> =
            pairs.iter().filter(|p| p.0 == y && p.1 != i && p.2 != j).map(|p| (p.1, p.2)).collect();
        let mut dot = DotGeneral { lhs_contracting: vec![i], rhs_contracting: vec![j], ..Default::default() };
        if !batches.is_empty() && digits.below(2) == 0 {
            let (k, l) = digits.pick(&batches);
            (dot.lhs_batch, dot.rhs_batch) = (vec![k], vec![l]);
        }
        let types = [self.b.ty(x).clone(), self.b.ty(y).clone()];
        let result = partita_ir::Operation::infer(&dot, &[&types[0], &types[1]]).expect("extents agree");
        let small = result[0].rank() <= 4 && result[0].element_count() <= MAX_ELEMENTS;
        small.then(|| self.b.dot_general(x, y, dot).expect("extents agree"))
    }

    /// Chooses some values as outputs, and optionally appends gradients of the sum of one of them.
    fn finish(mut self, gradient: bool, seed: u64) -> Graph {
        let last = *self.floats.last().expect("there are inputs");
        // The last value twice, one from the middle, perhaps an input, and all values without
        // readers.
        let middle = self.floats[seed as usize % self.floats.len()];
        let mut outputs = vec![last, middle, last];
        let uses = self.b.graph().uses();
        outputs.extend(self.floats.iter().copied().filter(|v| uses[v.index()].is_empty()));
        if gradient {
            let dims: Vec<usize> = (0..self.b.ty(last).rank()).collect();
            let square = self.b.multiply(last, last).expect("one type");
            let loss = self.b.reduce_sum(square, &dims).expect("its dimensions");
            let one = self.b.scalar(DType::F64, 1.0);
            let wrt: Vec<ValueId> = self.b.graph().inputs.clone();
            let wrt: Vec<ValueId> = wrt.into_iter().filter(|&v| self.b.ty(v).dtype == DType::F64).collect();
            let gradients = autodiff::backward(&mut self.b, &[(loss, one)], &wrt)
                .unwrap_or_else(|e| panic!("differentiable: {e}"));
            outputs.push(loss);
            outputs.extend(gradients.into_iter().flatten());
        }
        self.b.finish(outputs)
    }
}
