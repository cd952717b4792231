//! Applications of every op that a layout can split, one or several per op. To cover an op, add it
//! here.

use super::{indices, numbers};
use partita_base::{DType, Result};
use partita_ir::composite::Template;
use partita_ir::ops::*;
use partita_ir::{Attribute, Attributes, GraphBuilder, Literal, Op, Operation, Role, TensorType, ValueId};
use partita_mesh::Combiner;
use std::sync::Arc;

/// One application of an op: a name, the op, its operands.
pub type Case = (String, Op, Vec<Literal>);

/// Ops that partitioning emits itself or refuses, and that no layout splits. All others have a
/// case.
pub const PLACED: &[&str] = &[
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "AllToAll",
    "CollectivePermute",
    "CollectiveBroadcast",
    "PartitionId",
    "RankConstant",
    "ManualComputation",
];

/// The cases of one extent and element type.
struct Table {
    n: usize,
    dtype: DType,
    seed: u64,
    cases: Vec<Case>,
}

impl Table {
    /// Fresh numbers.
    fn x(&mut self, shape: &[usize]) -> Literal {
        self.seed += 1;
        numbers(shape, self.seed, self.dtype)
    }

    fn scalar(&self, value: f64) -> Literal {
        Literal::scalar(self.dtype, value)
    }

    /// Adds a case, unless the op is not defined for the element type or for tensors without
    /// elements.
    fn add(&mut self, name: &str, op: impl Into<Op>, operands: Vec<Literal>) {
        let op = op.into();
        let types: Vec<&TensorType> = operands.iter().map(|l| &l.ty).collect();
        match op.infer(&types) {
            Ok(_) => self.cases.push((format!("{name} n={} {}", self.n, self.dtype), op, operands)),
            Err(error) => assert!(self.dtype != DType::F64 || self.n == 0, "{name}: {error}"),
        }
    }

    /// Adds a composite and, if it has one, its gradient for the first `differentiated` operands.
    fn composite(
        &mut self,
        template: &'static Template,
        attributes: &[(&str, Attribute)],
        operands: Vec<Literal>,
        differentiated: usize,
    ) {
        let attributes: Attributes = attributes.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        let types: Vec<TensorType> = operands.iter().map(|l| l.ty.clone()).collect();
        let base = match Composite::new(template, attributes.clone(), &types) {
            Ok(base) => base,
            Err(error) => {
                return assert!(self.dtype != DType::F64 || self.n == 0, "{}: {error}", template.name);
            }
        };
        let name = format!("{} of {}", template.name, operands.len());
        if differentiated > 0 && self.dtype.is_float() {
            let wanted: Vec<usize> = (0..differentiated).collect();
            let vjp =
                base.definition.vjp(&attributes, &[0], &wanted).unwrap_or_else(|e| panic!("{name}: {e}"));
            let result = base.definition.decomposition.ty(base.definition.decomposition.outputs[0]).clone();
            let mut with_cotangent = operands.clone();
            with_cotangent.push(self.x(&result.shape));
            let gradient = Composite { attributes, definition: Arc::new(vjp) };
            self.add(&format!("gradient of {name}"), gradient, with_cotangent);
        }
        self.add(&name, base, operands);
    }
}

/// The table for an extent `n`: divisible by all axes, uneven, or shorter than an axis.
pub fn cases(n: usize, dtype: DType) -> Vec<Case> {
    let mut table = Table { n, dtype, seed: 0, cases: Vec::new() };
    elementwise(&mut table);
    movement(&mut table);
    contraction(&mut table);
    indexing(&mut table);
    control(&mut table).expect("regions are well-typed");
    numeric(&mut table).expect("regions are well-typed");
    composites(&mut table);
    table.cases
}

fn elementwise(t: &mut Table) {
    let n = t.n;
    let (x, y, z) = (t.x(&[n, 3]), t.x(&[n, 3]), t.x(&[n, 3]));
    let truths = |shape: &[usize]| {
        let ty = TensorType::new(DType::Bool, shape);
        Literal::from_f64(&ty, (0..ty.element_count()).map(|i| (i % 3 == 0) as u8 as f64))
    };
    t.add("tanh", Unary { kind: UnaryKind::Tanh }, vec![x.clone()]);
    t.add("negate", Unary { kind: UnaryKind::Negate }, vec![x.clone()]);
    for kind in [BinaryKind::Add, BinaryKind::Multiply, BinaryKind::Maximum] {
        t.add(&format!("{kind:?}"), Binary { kind }, vec![x.clone(), y.clone()]);
    }
    t.add("select", Select, vec![truths(&[n, 3]), x.clone(), y.clone()]);
    t.add("select by one", Select, vec![truths(&[]), x.clone(), y.clone()]);
    let less = Compare { direction: Direction::Lt, compare_type: None };
    t.add("compare", less, vec![x.clone(), y.clone()]);
    t.add("clamp", Clamp, vec![y, x.clone(), z]);
    t.add("clamp by scalars", Clamp, vec![t.scalar(-1.0), x.clone(), t.scalar(1.0)]);
    t.add("convert", Convert { dtype: DType::F32 }, vec![x.clone()]);
    t.add("bitcast", BitcastConvert { dtype: DType::I64 }, vec![numbers(&[n, 3], 1, DType::F64)]);
    t.add("bitcast apart", BitcastConvert { dtype: DType::I32 }, vec![numbers(&[n, 3], 1, DType::F64)]);
    t.add("bitcast together", BitcastConvert { dtype: DType::I64 }, vec![indices(&[n, 3, 2], 1, 9)]);
}

fn movement(t: &mut Table) {
    let (n, dtype) = (t.n, t.dtype);
    let x = t.x(&[n, 4]);
    for dim in [0, 1] {
        t.add("iota", Iota { ty: TensorType::new(dtype, [n, 4]), dim }, vec![]);
        t.add("reverse", Reverse { dims: vec![dim] }, vec![x.clone()]);
        let mut other = vec![n, 4];
        other[dim] = 3;
        let operands = vec![x.clone(), t.x(&other), x.clone()];
        t.add("concatenate", Concatenate { dim }, operands);
        let (mut low, mut high, mut interior) = (vec![0; 2], vec![0; 2], vec![0; 2]);
        (low[dim], high[dim], interior[dim]) = (1, -1, 1);
        t.add("pad", Pad { low, high, interior }, vec![x.clone(), t.scalar(2.0)]);
        let (mut start, limit, mut stride) = (vec![0; 2], vec![n, 4], vec![1; 2]);
        (start[dim], stride[dim]) = (1, 2);
        t.add("slice", Slice { start, limit, stride }, vec![x.clone()]);
        let mut sizes = vec![n, 4];
        sizes[dim] -= usize::from(sizes[dim] > 1);
        let starts = [Literal::scalar(DType::I32, 0.0), Literal::scalar(DType::I32, 1.0)];
        let update = t.x(&sizes);
        let operands = [vec![x.clone()], starts.to_vec()].concat();
        t.add("dynamic slice", DynamicSlice { sizes }, operands);
        let operands = [vec![x.clone(), update], starts.to_vec()].concat();
        t.add("dynamic update slice", DynamicUpdateSlice, operands);
    }
    t.add("constant", Constant { value: x.clone() }, vec![]);
    let narrow = t.x(&[n, 1]);
    t.add("broadcast", BroadcastInDim { shape: vec![4, n, 3], dims: vec![1, 2] }, vec![narrow]);
    t.add("reshape merge", Reshape { shape: vec![n * 4] }, vec![x]);
    let (merged, odd, cube) = (t.x(&[n * 4, 2]), t.x(&[2, 6]), t.x(&[n, 2, 4]));
    t.add("reshape split", Reshape { shape: vec![n, 4, 2] }, vec![merged]);
    t.add("reshape odd", Reshape { shape: vec![4, 3] }, vec![odd]);
    t.add("transpose", Transpose { permutation: vec![2, 0, 1] }, vec![cube]);
}

fn contraction(t: &mut Table) {
    let n = t.n;
    let (a, b) = (t.x(&[2, n, 4]), t.x(&[2, 4, 3]));
    let batched = DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![2],
        rhs_contracting: vec![1],
        result_dtype: None,
    };
    t.add("dot batched", batched, vec![a, b]);
    let (a, b) = (t.x(&[3, n]), t.x(&[4, n]));
    let inner = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![1], ..DotGeneral::default() };
    t.add("dot", inner, vec![a, b]);
    let x = t.x(&[n, 4]);
    let starts = [
        (Combiner::Sum, 2.0),
        (Combiner::Prod, 2.0),
        (Combiner::Max, f64::NEG_INFINITY),
        (Combiner::Min, 0.0),
        (Combiner::Or, 5.0),
    ];
    for (combiner, start) in starts {
        // The initial value is not the identity: it must be counted once.
        let bitwise = combiner == Combiner::Or;
        let (x, start) = match bitwise {
            true => (indices(&[n, 4], 3, 16), Literal::scalar(DType::I32, start)),
            false => (x.clone(), t.scalar(start)),
        };
        for dims in [vec![0], vec![0, 1]] {
            let reduce = Reduce { dims, reducer: Reducer::Combiner(combiner) };
            t.add(&format!("reduce by {combiner}"), reduce, vec![x.clone(), start.clone()]);
        }
    }
    for dim in [0, 1] {
        let (mut window, mut padding) = (vec![1; 2], vec![(0, 0); 2]);
        let extent = [n, 4][dim];
        (window[dim], padding[dim]) = (extent, (extent as i64 - 1, 0));
        let cumulative = ReduceWindow {
            window,
            strides: vec![1; 2],
            base_dilation: vec![1; 2],
            window_dilation: vec![1; 2],
            padding,
            reducer: Reducer::Combiner(Combiner::Sum),
        };
        t.add("cumulative sum", cumulative, vec![x.clone(), t.scalar(0.0)]);
    }
    // Pools: overlapping windows, strides beyond windows, gaps, padding that another initial value shows.
    for (number, (window, stride, base_dilation, window_dilation, padding)) in [
        (3, 1, 1, 1, (1, 1)),
        (2, 2, 1, 1, (0, 1)),
        (1, 3, 1, 1, (0, 0)),
        (3, 2, 1, 2, (1, 2)),
        (2, 1, 2, 1, (1, 0)),
    ]
    .into_iter()
    .enumerate()
    .filter(|_| n == 2)
    {
        for (combiner, start) in [(Combiner::Max, f64::NEG_INFINITY), (Combiner::Sum, 0.5)] {
            let pool = ReduceWindow {
                window: vec![window, 1],
                strides: vec![stride, 1],
                base_dilation: vec![base_dilation, 1],
                window_dilation: vec![window_dilation, 1],
                padding: vec![padding, (0, 0)],
                reducer: Reducer::Combiner(combiner),
            };
            let images = t.x(&[9, 2]);
            t.add(&format!("pool {number} by {combiner}"), pool, vec![images, t.scalar(start)]);
        }
    }
}

fn indexing(t: &mut Table) {
    let n = t.n;
    let gather = |dims, slice_sizes| Gather { dims, slice_sizes, indices_are_sorted: false };
    let rows = GatherDims {
        offset_dims: vec![1],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 1,
        ..GatherDims::default()
    };
    let (table, wide) = (t.x(&[n, 4]), t.x(&[n, 5]));
    // Indices out of range, too.
    let mut outside = indices(&[6], 3, n + 3).to_f64();
    outside.iter_mut().for_each(|i| *i -= 1.0);
    let outside = Literal::from_f64(&TensorType::new(DType::I32, [6]), outside.into_iter());
    t.add("gather rows", gather(rows.clone(), vec![1, 4]), vec![table.clone(), outside.clone()]);
    let parts = GatherDims { collapsed_slice_dims: vec![], offset_dims: vec![1, 2], ..rows };
    t.add("gather windows", gather(parts, vec![1, 2]), vec![table.clone(), outside.clone()]);
    let batched = GatherDims {
        operand_batching_dims: vec![0],
        start_indices_batching_dims: vec![0],
        collapsed_slice_dims: vec![1],
        start_index_map: vec![1],
        index_vector_dim: 1,
        ..GatherDims::default()
    };
    t.add("gather batched", gather(batched, vec![1, 1]), vec![wide.clone(), indices(&[n, 1], 3, 5)]);

    let updates = t.x(&[6, 4]);
    for (name, update) in [
        ("added", Update::Combine(Reducer::Combiner(Combiner::Sum))),
        ("multiplied", Update::Combine(Reducer::Combiner(Combiner::Prod))),
        ("the largest", Update::Combine(Reducer::Combiner(Combiner::Max))),
        ("assigned", Update::Assign),
    ] {
        let scatter =
            |dims| Scatter { dims, update: update.clone(), indices_are_sorted: false, unique_indices: false };
        let rows = ScatterDims {
            update_window_dims: vec![1],
            inserted_window_dims: vec![0],
            scatter_dims_to_operand_dims: vec![0],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        let operands = vec![table.clone(), outside.clone(), updates.clone()];
        t.add(&format!("scatter rows {name}"), scatter(rows), operands);
        let batched = ScatterDims {
            input_batching_dims: vec![0],
            scatter_indices_batching_dims: vec![0],
            inserted_window_dims: vec![1],
            scatter_dims_to_operand_dims: vec![1],
            index_vector_dim: 2,
            ..ScatterDims::default()
        };
        let operands = vec![wide.clone(), indices(&[n, 2, 1], 4, 5), t.x(&[n, 2])];
        t.add(&format!("scatter batched {name}"), scatter(batched), operands);
        let windows = ScatterDims {
            update_window_dims: vec![1, 2],
            scatter_dims_to_operand_dims: vec![1],
            index_vector_dim: 1,
            ..ScatterDims::default()
        };
        let operands = vec![wide.clone(), indices(&[3], 5, 5), t.x(&[3, n, 2])];
        t.add(&format!("scatter windows {name}"), scatter(windows), operands);
    }
}

/// A graph over scalars or carried values.
fn region(
    types: &[TensorType],
    body: impl FnOnce(&mut GraphBuilder, &[ValueId]) -> Result<Vec<ValueId>>,
) -> Result<Box<partita_ir::Graph>> {
    let mut b = GraphBuilder::new("region");
    let inputs: Vec<ValueId> = types.iter().map(|ty| b.input("", ty.clone(), Role::Input)).collect();
    let outputs = body(&mut b, &inputs)?;
    Ok(Box::new(b.finish(outputs)))
}

fn control(t: &mut Table) -> Result<()> {
    let (n, dtype) = (t.n, t.dtype);
    let (x, y) = (t.x(&[n, 4]), t.x(&[n, 4]));
    let place = indices(&[n, 4], 8, 9);
    let (real, whole) = (TensorType::scalar(dtype), TensorType::scalar(DType::I32));
    let comparator = region(&[real.clone(), real.clone(), whole.clone(), whole.clone()], |b, v| {
        Ok(vec![b.compare(Direction::Lt, v[0], v[1])?])
    })?;
    for dim in [0, 1] {
        let sort = Sort { dim, is_stable: true, comparator: comparator.clone() };
        t.add("sort", sort, vec![x.clone(), place.clone()]);
        let body = region(&[real.clone(), whole.clone(), real.clone(), whole.clone()], |b, v| {
            let more = b.compare(Direction::Gt, v[2], v[0])?;
            Ok(vec![b.select(more, v[2], v[0])?, b.select(more, v[3], v[1])?])
        })?;
        let argmax = Reduce { dims: vec![dim], reducer: Reducer::Body(body) };
        let operands = vec![x.clone(), place.clone(), t.scalar(-100.0), Literal::scalar(DType::I32, -1.0)];
        t.add("argmax", argmax, operands);
    }
    let carried = [whole, TensorType::new(dtype, [n, 4])];
    let condition = region(&carried, |b, v| {
        let limit = b.scalar(DType::I32, 3.0);
        Ok(vec![b.compare(Direction::Lt, v[0], limit)?])
    })?;
    let body = region(&carried, |b, v| Ok(vec![b.offset(v[0], 1.0)?, b.add(v[1], v[1])?]))?;
    t.add("while", While { condition, body }, vec![Literal::scalar(DType::I32, 0.0), x.clone()]);
    let branch = |sum: bool| {
        region(&[carried[1].clone(), carried[1].clone()], |b, v| {
            Ok(vec![if sum { b.add(v[0], v[1])? } else { b.subtract(v[0], v[1])? }])
        })
    };
    let branches = vec![*branch(true)?, *branch(false)?];
    t.add(
        "case",
        partita_ir::ops::Case { branches },
        vec![Literal::scalar(DType::I32, 1.0), x.clone(), y.clone()],
    );
    let small = t.x(&[3]);
    t.add("barrier", OptimizationBarrier, vec![x.clone(), small]);
    let annotation = partita_ir::Annotation {
        mesh: 0,
        sharding: partita_mesh::Sharding::replicated(2),
        open: vec![true; 2],
        replicated: vec![],
        origin: "table".into(),
    };
    t.add("constraint", ShardingConstraint { annotation }, vec![x.clone()]);
    t.add("layout barrier", PropagationBarrier { forward: true, backward: false }, vec![x]);
    Ok(())
}

/// Ops of images, spectra, matrices and special functions.
fn numeric(t: &mut Table) -> Result<()> {
    let (n, dtype) = (t.n, t.dtype);
    let (x, y) = (t.x(&[n, 4]), t.x(&[n, 4]));
    t.add("sinh", Special { kind: SpecialKind::Sinh }, vec![x.clone()]);
    t.add("next after", Special { kind: SpecialKind::NextAfter }, vec![x.clone(), y.clone()]);
    t.add("complex", Special { kind: SpecialKind::Complex }, vec![x.clone(), y]);
    t.add("reduce precision", ReducePrecision { exponent_bits: 5, mantissa_bits: 3 }, vec![x.clone()]);
    t.add("top k", TopK { k: 2 }, vec![x.clone()]);
    t.add("fft", Fft { kind: FftKind::Rfft, length: vec![4] }, vec![x.clone()]);
    let bits = RngBitGenerator { ty: TensorType::new(DType::U64, [n, 2]) };
    t.add("random bits", bits, vec![Literal::new([2], vec![3u64, 9])]);

    let ty = TensorType::new(dtype, [n, 2, 2]);
    let values = (0..n).flat_map(|i| [3.0 + i as f64, 1.0, 1.0, 2.0]);
    let matrices = Literal::from_f64(&ty, values);
    t.add("cholesky", Cholesky { lower: true }, vec![matrices.clone()]);
    let transpose = TransposeKind::None;
    let solve = TriangularSolve { left_side: true, lower: false, unit_diagonal: false, transpose };
    let columns = t.x(&[n, 2, 4]);
    t.add("triangular solve", solve, vec![matrices, columns]);

    let scalar = TensorType::scalar(dtype);
    let select = region(&[scalar.clone(), scalar], |b, v| Ok(vec![b.compare(Direction::Ge, v[0], v[1])?]))?;
    let pooling = SelectAndScatter {
        window: vec![1, 2],
        strides: vec![1, 2],
        padding: vec![(0, 0); 2],
        select,
        scatter: Reducer::Combiner(Combiner::Sum),
    };
    let source = t.x(&[n, 2]);
    t.add("select and scatter", pooling.clone(), vec![x, source, t.scalar(1.0)]);
    for (window, stride, padding, windows) in
        [(3, 2, (1, 1), 5), (2, 1, (0, 0), 8), (4, 3, (0, 0), 2), (3, 3, (2, 1), 4)]
    {
        if n == 2 {
            let op = SelectAndScatter {
                window: vec![window, 1],
                strides: vec![stride, 1],
                padding: vec![padding, (0, 0)],
                ..pooling.clone()
            };
            let (images, source) = (t.x(&[9, 2]), t.x(&[windows, 2]));
            t.add(&format!("gradient of a pool of {window}"), op, vec![images, source, t.scalar(1.0)]);
        }
    }

    let side = |batch, feature, spatial| ConvolutionSide { batch, feature, spatial: vec![spatial] };
    let padded = ConvolutionWindow { padding: (1, 1), ..ConvolutionWindow::default() };
    let plain = Convolution {
        input: side(0, 2, 1),
        kernel: side(2, 1, 0),
        output: side(0, 2, 1),
        windows: vec![padded],
        feature_groups: 1,
        batch_groups: 1,
        dtype,
    };
    let (images, kernel) = (t.x(&[n, 4, n]), t.x(&[3, n, 4]));
    t.add("convolution", plain.clone(), vec![images.clone(), kernel]);
    // Strides, gaps, crops, windows over several shards, and more entries than windows.
    let default = ConvolutionWindow::default();
    for (number, (extent, entries, window)) in [
        (9, 3, padded),
        (9, 3, ConvolutionWindow { stride: 2, ..padded }),
        (8, 2, ConvolutionWindow { stride: 2, ..default }),
        (7, 5, ConvolutionWindow { padding: (3, 1), reversed: true, ..default }),
        (8, 3, ConvolutionWindow { padding: (-1, 2), kernel_dilation: 2, ..default }),
        (5, 3, ConvolutionWindow { padding: (2, 1), input_dilation: 2, ..default }),
        (6, 2, ConvolutionWindow { stride: 2, padding: (1, 4), input_dilation: 3, ..default }),
        (9, 9, padded),
        (9, 5, ConvolutionWindow { padding: (1, 0), kernel_dilation: 2, ..default }),
        (
            8,
            4,
            ConvolutionWindow {
                stride: 2,
                padding: (1, 1),
                input_dilation: 1,
                kernel_dilation: 2,
                reversed: false,
            },
        ),
        (4, 7, ConvolutionWindow { padding: (0, 1), input_dilation: 2, ..default }),
        (12, 4, ConvolutionWindow { stride: 4, ..default }),
        (12, 3, ConvolutionWindow { kernel_dilation: 4, ..default }),
    ]
    .into_iter()
    .enumerate()
    {
        if n == 2 {
            let (images, kernel) = (t.x(&[2, extent, 2]), t.x(&[entries, 2, 1]));
            let op = Convolution { windows: vec![window], ..plain.clone() };
            t.add(&format!("windows {number}"), op, vec![images, kernel]);
        }
    }
    let kernel = t.x(&[1, n, 2]);
    let pointwise = Convolution { windows: vec![ConvolutionWindow::default()], ..plain.clone() };
    t.add("convolution of points", pointwise, vec![images.clone(), kernel]);
    if n > 0 {
        let kernel = t.x(&[3, 1, 2 * n]);
        t.add(
            "convolution by depth",
            Convolution { feature_groups: n, ..plain.clone() },
            vec![images.clone(), kernel],
        );
        let kernel = t.x(&[3, n, 2 * n]);
        t.add("convolution by batch", Convolution { batch_groups: n, ..plain }, vec![images, kernel]);
    }
    Ok(())
}

fn composites(t: &mut Table) {
    use partita_ir::composites::*;
    let n = t.n;
    let epsilon = [("epsilon", Attribute::Float(1e-2))];
    for shape in [vec![n, 6], vec![2, n]] {
        let features = shape[1];
        let x = t.x(&shape);
        t.composite(&SOFTMAX, &[], vec![x.clone()], 1);
        t.composite(&LOG_SOFTMAX, &[], vec![x.clone()], 1);
        for parameters in 0..3 {
            let mut operands = vec![x.clone()];
            operands.extend((0..parameters).map(|_| t.x(&[features])));
            t.composite(&LAYER_NORM, &epsilon, operands.clone(), operands.len());
            if parameters < 2 {
                t.composite(&RMS_NORM, &epsilon, operands.clone(), operands.len());
            }
        }
        let labels = indices(&shape[..1], 5, features);
        let ignore = [("ignore_index", Attribute::Int(1))];
        t.composite(&CROSS_ENTROPY, &ignore, vec![x.clone(), labels], 1);
        let target = t.x(&shape);
        t.composite(&MSE, &[], vec![x, target], 2);
    }
    for (shape, blocks) in
        [(vec![2 * n, 6], vec![1, 3]), (vec![6, 4 * n], vec![2, 4]), (vec![n, 5], vec![32, 2])]
    {
        let x = t.x(&shape);
        for power in [false, true] {
            let attributes = [
                ("format", Attribute::Text("e4m3".to_string())),
                ("blocks", Attribute::Ints(blocks.clone())),
                ("power", Attribute::Bool(power)),
            ];
            t.composite(&QUANTISE, &attributes, vec![x.clone()], 1);
        }
        let scale = t.scalar(3.0);
        t.composite(&QUANTISE, &[("format", Attribute::Text("e5m2".to_string()))], vec![x, scale], 1);
    }
    let dims =
        [("lhs_batch", 0..0), ("rhs_batch", 0..0), ("lhs_contracting", 1..2), ("rhs_contracting", 0..1)];
    let dims = dims.map(|(name, dims)| (name, Attribute::Ints(dims.collect())));
    let operands = vec![t.x(&[n, 6]), t.x(&[n, 4]), t.x(&[4, 6])];
    t.composite(&DOT_GENERAL_ADD, &dims, operands, 3);
    let operands = vec![t.x(&[2, n, 3]), t.x(&[n, 4, 3]), t.x(&[2, n, n])];
    t.composite(&GROUPED_MATMUL, &[], operands, 0);
    let (cotangents, transposed) =
        (vec![t.x(&[2, n, 4]), t.x(&[n, 4, 3]), t.x(&[2, n, n])], Attribute::Bool(true));
    t.composite(&GROUPED_MATMUL, &[(TRANSPOSED, transposed)], cotangents, 0);
    let operands = vec![t.x(&[2, n, 3]), t.x(&[2, n, 4]), t.x(&[2, n, n])];
    t.composite(&GROUPED_OUTER, &[], operands, 2);
    let x = t.x(&[n, 3]);
    for tanh in [true, false] {
        t.composite(&GELU, &[("tanh", Attribute::Bool(tanh))], vec![x.clone()], 1);
    }
    t.composite(&SILU, &[], vec![x.clone()], 1);
    let dropout = [("rate", Attribute::Float(0.4)), ("stream", Attribute::Int(5))];
    t.composite(&DROPOUT, &dropout, vec![x.clone(), Literal::scalar(DType::U64, 3.0)], 1);
    t.composite(&EMBEDDING, &[], vec![x, indices(&[2, 3], 4, n)], 1);
    let operands = vec![t.x(&[2, n, 3, 4]), t.x(&[3, 4]), t.x(&[3, 4])];
    t.composite(&ROTARY, &[], operands, 1);
    for (heads, groups, causal, masked) in [(n, n, true, false), (2 * n, n, false, false), (2, 1, true, true)]
    {
        let batch = if masked { n } else { 2 };
        let mut operands =
            vec![t.x(&[batch, heads, 3, 2]), t.x(&[batch, groups, 3, 2]), t.x(&[batch, groups, 3, 2])];
        if masked {
            let ty = TensorType::new(DType::Bool, [batch, 1, 3, 3]);
            operands.push(Literal::from_f64(&ty, (0..batch * 9).map(|i| (i % 4 != 1) as u8 as f64)));
        }
        let attributes = [("scale", Attribute::Float(0.5)), ("causal", Attribute::Bool(causal))];
        t.composite(&ATTENTION, &attributes, operands, 3);
    }
    for causal in [false, true] {
        let [q, k, v] = [[n, 4, 5, 2], [n, 2, 5, 2], [n, 2, 5, 2]].map(|shape| t.x(&shape));
        let rows = [0; 2].map(|_| t.x(&[n, 4, 5]));
        let window = causal.then_some(3);
        let options = RingOptions { causal, window, zigzag: causal, scale: 0.5 };
        let op = RingAttention { options: options.clone() };
        t.add("ring attention", op.clone(), vec![q.clone(), k.clone(), v.clone()]);
        let limits = (0..n * 5).flat_map(|row| [row as i32 % 5 / 2 * 2, row as i32 % 5 / 2 * 2 + 2]);
        let limits = Literal::new([n, 5, 2], limits.collect::<Vec<i32>>());
        let operands = vec![q.clone(), k.clone(), v.clone(), limits.clone()];
        t.add("ring attention of documents", op, operands.clone());
        let attributes = [("scale", Attribute::Float(0.5)), ("window", Attribute::Int(2))];
        t.composite(&ATTENTION, &attributes, operands, 3);
        let place = Literal::new([3], vec![2i64, 1, 4]);
        let attributes = [("scale", Attribute::Float(0.5)), ("causal", Attribute::Bool(causal))];
        let mut operands = vec![q.clone(), k, v];
        t.composite(&ATTENTION_PART, &attributes, [&operands[..], std::slice::from_ref(&place)].concat(), 0);
        operands.extend(rows.into_iter().chain([q]));
        t.add("ring attention gradient", RingAttentionGradient { options }, operands.clone());
        operands.push(place);
        t.composite(&ATTENTION_PART_GRADIENT, &attributes, operands, 0);
    }
    for gated in [false, true] {
        let mut operands = vec![t.x(&[n, 3, 2]), t.x(&[n, 3, 2])];
        // Each choice has one expert.
        let own = (0..n * 24).map(|at| f64::from(u8::from(at % 4 == (at / 4 * 3 + 1) % 4)));
        let own = Literal::from_f64(&t.x(&[n, 3, 2, 4]).ty, own);
        operands.push(own);
        operands.extend((0..1 + usize::from(gated)).map(|_| t.x(&[4, 5, 2])).collect::<Vec<_>>());
        operands.push(t.x(&[4, 2, 5]));
        t.add("experts", Experts { experts: 4 }, operands.clone());
        operands.push(t.x(&[n, 3, 2]));
        t.add("experts gradient", ExpertsGradient { experts: 4 }, operands);
    }
    for template in [&RANDOM_BITS, &UNIFORM, &NORMAL] {
        let dims = Attribute::Ints(vec![n as i64, 4]);
        let attributes = [
            ("shape", dims.clone()),
            ("global_shape", dims),
            ("stream", Attribute::Int(3)),
            ("dtype", Attribute::DType(if t.dtype.is_float() { t.dtype } else { DType::F32 })),
        ];
        let offsets = Literal::zeros(&TensorType::new(DType::I64, [2]));
        t.composite(template, &attributes, vec![Literal::scalar(DType::U64, 9.0), offsets], 0);
    }
}
