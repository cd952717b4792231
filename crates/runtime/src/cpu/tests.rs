//! Every kernel against the reference interpreter, on operands with all kinds of strides.

mod composites;
mod parts;
mod spatial;

use composites::composite;
use partita_base::DType;
use partita_ir::composite::Template;
use partita_ir::composites as templates;
use partita_ir::literal::indices;
use partita_ir::ops::*;
use partita_ir::{
    Attribute, Graph, GraphBuilder, Literal, Op, Operation, Role, Storage, Target, TensorType, ValueId,
    evaluate,
};
use partita_mesh::Combiner;
use partita_program::{Region, RegionKind};

use super::{Cpu, cut};
use crate::arena::{Arena, Place, Span};

/// Random numbers from a seed.
pub(super) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit.max(1)
    }

    fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 31) as f64
    }

    /// Floats in (-2, 2), integers in -6..=6 or 0..=6.
    pub fn literal(&mut self, ty: &TensorType) -> Literal {
        let count = ty.element_count();
        let value = |random: &mut Random| match ty.dtype {
            d if d.is_float() => random.unit() * 4.0 - 2.0,
            d if d.is_signed_integer() => random.below(13) as f64 - 6.0,
            DType::Bool => random.below(2) as f64,
            _ => random.below(7) as f64,
        };
        let values: Vec<f64> = (0..count).map(|_| value(self)).collect();
        Literal::from_f64(ty, values.into_iter())
    }

    fn integers(&mut self, dtype: DType, shape: &[usize], low: i64, high: i64) -> Literal {
        let ty = TensorType::new(dtype, shape);
        let values: Vec<f64> = (0..ty.element_count())
            .map(|_| (low + self.below((high - low) as usize) as i64) as f64)
            .collect();
        Literal::from_f64(&ty, values.into_iter())
    }

    /// Strides under which no two elements overlap: some order of the dimensions, gaps, some reversed.
    fn place(&mut self, end: &mut usize, ty: &TensorType) -> Place {
        let rank = ty.rank();
        let mut order: Vec<usize> = (0..rank).collect();
        let mut strides = vec![0isize; rank];
        let is_plain = self.below(3) == 0;
        if !is_plain {
            for i in (1..rank).rev() {
                order.swap(i, self.below(i + 1));
            }
        }
        let mut step = 1usize;
        for &d in order.iter().rev() {
            let (gap, backwards) = (self.below(4) == 0, self.below(5) == 0);
            strides[d] = if backwards && !is_plain { -(step as isize) } else { step as isize };
            step *= ty.shape[d].max(1) + usize::from(gap && !is_plain);
        }
        let size = ty.dtype.size_bytes();
        let back: isize = (0..rank)
            .filter(|&d| strides[d] < 0)
            .map(|d| strides[d] * (ty.shape[d].max(1) as isize - 1))
            .sum();
        let offset = end.next_multiple_of(64);
        *end = offset + step * size;
        let offset_bytes = offset + back.unsigned_abs() * size;
        Place { offset_bytes, dtype: ty.dtype, shape: ty.shape.clone(), strides, moved: None }
    }
}

fn element_span(place: &Place, index: &[usize]) -> Span {
    let size = place.dtype.size_bytes();
    let offset: isize = index.iter().zip(&place.strides).map(|(&i, s)| i as isize * s).sum();
    Span { offset: place.offset_bytes.checked_add_signed(offset * size as isize).unwrap(), bytes: size }
}

/// The results of a region for these inputs at random places, and whether the interpreter ran it. Several
/// parts must give the same results.
pub(super) fn run(
    graph: &Graph,
    kind: RegionKind,
    inputs: &[Literal],
    seed: u64,
) -> Result<(Vec<Literal>, bool), String> {
    let whole = run_parts(graph, kind, inputs, seed, 1);
    for parts in [2, 3, 5] {
        let cut = run_parts(graph, kind, inputs, seed, parts);
        let bytes = |result: &Result<(Vec<Literal>, bool), String>| {
            let bytes = |(literals, slow): &(Vec<Literal>, bool)| {
                (literals.iter().map(Literal::to_bytes).collect::<Vec<_>>(), *slow)
            };
            result.as_ref().map(bytes).map_err(String::clone)
        };
        // Several parts may report different errors first.
        assert!(
            bytes(&cut) == bytes(&whole) || (cut.is_err() && whole.is_err()),
            "{parts} parts of {}: {cut:?}, not {whole:?}",
            graph.nodes.last().map_or("nothing", |node| node.op.name())
        );
    }
    whole
}

pub(super) fn run_parts(
    graph: &Graph,
    kind: RegionKind,
    inputs: &[Literal],
    seed: u64,
    parts: usize,
) -> Result<(Vec<Literal>, bool), String> {
    let mut random = Random(seed);
    let mut end = 0;
    let places: Vec<Place> = inputs.iter().map(|literal| random.place(&mut end, &literal.ty)).collect();
    let outputs: Vec<Place> = graph
        .outputs
        .iter()
        .map(|&v| {
            let offset = end.next_multiple_of(64);
            end = offset + graph.ty(v).bytes();
            Place::dense(offset, graph.ty(v).dtype, &graph.ty(v).shape)
        })
        .collect();
    let region = Region::new(graph.clone(), kind);
    let kernel = Cpu::default().compile_parts(&region, places.clone(), outputs.clone(), parts);
    let workspace = Span { offset: end.next_multiple_of(64), bytes: kernel.workspace_bytes() };
    let arena = Arena::new(workspace.offset + workspace.bytes).unwrap();
    let memory = arena.memory();
    memory.bytes_mut(Span { offset: 0, bytes: workspace.offset + workspace.bytes }).fill(0xa5);
    for (place, literal) in places.iter().zip(inputs) {
        let (bytes, size) = (literal.to_bytes(), place.dtype.size_bytes());
        for (position, index) in indices(&place.shape).enumerate() {
            memory.bytes_mut(element_span(place, &index)).copy_from_slice(&bytes[position * size..][..size]);
        }
    }
    // As several threads run it, and as one thread does if that is different.
    kernel.run_parts(&memory, workspace).map_err(|error| error.to_string())?;
    let written = |place: &Place| {
        let bytes = place.element_count() * place.dtype.size_bytes();
        memory.bytes_mut(Span { offset: place.offset_bytes, bytes })
    };
    if kernel.is_better_alone() {
        let together: Vec<Vec<u8>> = outputs.iter().map(|place| written(place).to_vec()).collect();
        outputs.iter().for_each(|place| written(place).fill(0xa5));
        kernel.run(&memory, workspace).map_err(|error| error.to_string())?;
        assert!(outputs.iter().zip(together).all(|(place, bytes)| written(place) == bytes), "one thread");
    }
    let read = |place: &Place| {
        let ty = TensorType::new(place.dtype, place.shape.clone());
        let bytes = memory.bytes(Span { offset: place.offset_bytes, bytes: ty.bytes() });
        Literal::from_bytes(&ty, bytes).unwrap()
    };
    Ok((outputs.iter().map(read).collect(), kernel.is_slow))
}

fn close(found: &Literal, expected: &Literal, tolerance: f64) -> Result<(), String> {
    assert_eq!(found.ty, expected.ty);
    if !found.ty.dtype.is_float() {
        return if found == expected { Ok(()) } else { Err(format!("{found:?} for {expected:?}")) };
    }
    for (position, (f, e)) in found.to_f64().iter().zip(expected.to_f64()).enumerate() {
        let same = *f == e || (f.is_nan() && e.is_nan());
        let near = (f - e).abs() <= tolerance * e.abs().max(1.0);
        if !same && !near {
            return Err(format!("element {position}: {f} for {e}"));
        }
    }
    Ok(())
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2e-2,
        DType::F16 => 3e-3,
        DType::F32 => 2e-5,
        _ => 1e-11,
    }
}

/// Compares with the interpreter on three sets of strides. Returns whether the interpreter ran it.
pub(super) fn check(graph: &Graph, kind: RegionKind, inputs: &[Literal], what: &str) -> bool {
    let expected = evaluate(graph, inputs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut is_slow = false;
    for seed in 0..3 {
        let (found, slow) = run(graph, kind, inputs, seed).unwrap_or_else(|error| panic!("{what}: {error}"));
        is_slow = slow;
        for (found, expected) in found.iter().zip(&expected) {
            let narrowest = inputs.iter().map(|i| tolerance(i.ty.dtype)).fold(0.0, f64::max);
            if let Err(error) = close(found, expected, narrowest.max(tolerance(found.ty.dtype))) {
                panic!("{what}, strides {seed}: {error}");
            }
        }
    }
    is_slow
}

/// A graph of one op on inputs of these types; `None` if the op does not accept them.
fn single(op: impl Into<Op>, types: &[TensorType]) -> Option<Graph> {
    let mut b = GraphBuilder::new("region");
    let operands: Vec<ValueId> = types.iter().map(|ty| b.input("", ty.clone(), Role::Activation)).collect();
    let results = b.push(op, &operands).ok()?;
    Some(b.finish(results))
}

/// Checks one op on random inputs; it must have a kernel unless `may_be_slow`.
fn check_single(op: impl Into<Op>, inputs: &[Literal], may_be_slow: bool) {
    let op: Op = op.into();
    let what = format!("{op:?} on {:?}", inputs.iter().map(|i| i.ty.to_string()).collect::<Vec<_>>());
    let types: Vec<TensorType> = inputs.iter().map(|i| i.ty.clone()).collect();
    let graph = single(op, &types).unwrap_or_else(|| panic!("{what} is no op"));
    let is_slow = check(&graph, RegionKind::Single, inputs, &what);
    assert!(may_be_slow || !is_slow, "{what} runs on the interpreter");
}

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

const UNARY: [UnaryKind; 26] = [
    UnaryKind::Negate,
    UnaryKind::Abs,
    UnaryKind::Sign,
    UnaryKind::Exponential,
    UnaryKind::ExponentialMinusOne,
    UnaryKind::Log,
    UnaryKind::LogPlusOne,
    UnaryKind::Sqrt,
    UnaryKind::Rsqrt,
    UnaryKind::Cbrt,
    UnaryKind::Tanh,
    UnaryKind::Logistic,
    UnaryKind::Sine,
    UnaryKind::Cosine,
    UnaryKind::Tan,
    UnaryKind::Floor,
    UnaryKind::Ceil,
    UnaryKind::RoundNearestAfz,
    UnaryKind::RoundNearestEven,
    UnaryKind::Not,
    UnaryKind::IsFinite,
    UnaryKind::Popcnt,
    UnaryKind::Erf,
    UnaryKind::Erfc,
    UnaryKind::ErfInv,
    UnaryKind::Square,
];

const BINARY: [BinaryKind; 15] = [
    BinaryKind::Add,
    BinaryKind::Subtract,
    BinaryKind::Multiply,
    BinaryKind::Divide,
    BinaryKind::Maximum,
    BinaryKind::Minimum,
    BinaryKind::Remainder,
    BinaryKind::Power,
    BinaryKind::Atan2,
    BinaryKind::And,
    BinaryKind::Or,
    BinaryKind::Xor,
    BinaryKind::ShiftLeft,
    BinaryKind::ShiftRightLogical,
    BinaryKind::ShiftRightArithmetic,
];

#[test]
fn every_elementwise_op_on_every_type_it_takes() {
    let mut random = Random(1);
    for dtype in DType::ALL {
        let ty = TensorType::new(dtype, [3, 5]);
        let mut ops: Vec<(Op, usize)> = UNARY.iter().map(|&kind| (Unary { kind }.into(), 1)).collect();
        ops.extend(BINARY.iter().map(|&kind| (Binary { kind }.into(), 2)));
        ops.extend(DType::ALL.map(|dtype| (Convert { dtype }.into(), 1)));
        ops.extend(DType::ALL.map(|dtype| (BitcastConvert { dtype }.into(), 1)));
        for direction in
            [Direction::Eq, Direction::Ne, Direction::Lt, Direction::Le, Direction::Gt, Direction::Ge]
        {
            for compare_type in [None, Some(CompareType::TotalOrder), Some(CompareType::Unsigned)] {
                ops.push((Compare { direction, compare_type }.into(), 2));
            }
        }
        ops.push((Clamp.into(), 3));
        for (op, count) in ops {
            // Other widths change the shape; bytes other than 0 and 1 are not bools.
            let changes = |to: DType| to.size_bytes() != dtype.size_bytes() || to == DType::Bool;
            let same_width = !matches!(&op, Op::BitcastConvert(to) if changes(to.dtype));
            let Some(graph) = single(op.clone(), &vec![ty.clone(); count]).filter(|_| same_width) else {
                continue;
            };
            let inputs: Vec<Literal> = (0..count).map(|_| random.literal(&ty)).collect();
            let is_slow = check(&graph, RegionKind::Fused, &inputs, &format!("{op:?} on {ty}"));
            assert!(!is_slow || matches!(&op, Op::Unary(u) if u.kind == UnaryKind::Popcnt), "{op:?} on {ty}");
        }
        let predicate = random.literal(&ty.with_dtype(DType::Bool));
        check_single(Select, &[predicate, random.literal(&ty), random.literal(&ty)], false);
    }
}

#[test]
fn random_chains_fuse_to_the_same_numbers() {
    for seed in 0..60 {
        let mut random = Random(seed + 100);
        let dtype = [DType::F32, DType::F64, DType::BF16, DType::F16][random.below(4)];
        let shape: Vec<usize> = (0..1 + random.below(4)).map(|_| 1 + random.below(6)).collect();
        let ty = TensorType::new(dtype, shape.clone());
        let mut b = GraphBuilder::new("chain");
        let mut values: Vec<ValueId> =
            (0..1 + random.below(4)).map(|_| b.input("", ty.clone(), Role::Activation)).collect();
        let input_count = values.len();
        for _ in 0..3 + random.below(12) {
            let (x, y) = (values[random.below(values.len())], values[random.below(values.len())]);
            let value = match random.below(9) {
                0 => b.unary(UnaryKind::Tanh, x).unwrap(),
                1 => b.unary(UnaryKind::Square, x).and_then(|x| b.scale(x, 0.25)).unwrap(),
                2 => b.add(x, y).and_then(|x| b.scale(x, 0.5)).unwrap(),
                3 => b.subtract(x, y).unwrap(),
                4 => b.multiply(x, y).unwrap(),
                5 => b.offset(x, 0.75).unwrap(),
                6 => {
                    let places = b.iota(ty.with_dtype(DType::I32), random.below(shape.len())).unwrap();
                    let places = b.convert(places, dtype).unwrap();
                    b.minimum(x, places).unwrap()
                }
                7 => {
                    let less = b.compare(Direction::Lt, x, y).unwrap();
                    b.select(less, y, x).unwrap()
                }
                _ => {
                    let wide = b.convert(x, DType::F64).unwrap();
                    let wide = b.unary(UnaryKind::Sine, wide).unwrap();
                    b.convert(wide, dtype).unwrap()
                }
            };
            values.push(value);
        }
        let outputs = vec![values[values.len() - 1], values[random.below(values.len())]];
        let graph = b.finish(outputs);
        let inputs: Vec<Literal> = (0..input_count).map(|_| random.literal(&ty)).collect();
        let is_slow = check(&graph, RegionKind::Fused, &inputs, &format!("chain {seed} of {ty}"));
        assert!(!is_slow, "chain {seed} is not fused");
    }
}

#[test]
fn dot_general_with_any_roles_of_dimensions() {
    let mut added = 0;
    for seed in 0..150 {
        let mut random = Random(seed);
        let dtype = DType::ALL[random.below(DType::ALL.len())];
        // Each dimension of either operand has a random role; sizes of 0 and 1 are included.
        let extent =
            |random: &mut Random| [1, 2, 3, 4, 5, 2, 3, 0][random.below(if seed % 5 == 0 { 8 } else { 7 })];
        let [batch, left, right, contracted] = [3, 3, 3, 3].map(|limit| random.below(limit));
        let sizes = |random: &mut Random, n: usize| (0..n).map(|_| extent(random)).collect::<Vec<_>>();
        let (bs, ls, rs, cs) = (
            sizes(&mut random, batch),
            sizes(&mut random, left),
            sizes(&mut random, right),
            sizes(&mut random, contracted),
        );
        let shuffled = |random: &mut Random, groups: [&[usize]; 3]| {
            // (group, position in group), in random order.
            let mut dims: Vec<(usize, usize, usize)> = groups
                .iter()
                .enumerate()
                .flat_map(|(g, sizes)| sizes.iter().enumerate().map(move |(i, &s)| (g, i, s)))
                .collect();
            for i in (1..dims.len()).rev() {
                dims.swap(i, random.below(i + 1));
            }
            dims
        };
        let lhs = shuffled(&mut random, [&bs, &ls, &cs]);
        let rhs = shuffled(&mut random, [&bs, &rs, &cs]);
        let role = |dims: &[(usize, usize, usize)], group: usize, count: usize| -> Vec<usize> {
            (0..count).map(|i| dims.iter().position(|d| d.0 == group && d.1 == i).unwrap()).collect()
        };
        let shape = |dims: &[(usize, usize, usize)]| dims.iter().map(|d| d.2).collect::<Vec<_>>();
        let widens = matches!(dtype, DType::BF16 | DType::F16) && random.below(2) == 0;
        let op = DotGeneral {
            lhs_batch: role(&lhs, 0, batch),
            rhs_batch: role(&rhs, 0, batch),
            lhs_contracting: role(&lhs, 2, contracted),
            rhs_contracting: role(&rhs, 2, contracted),
            result_dtype: widens.then_some(DType::F32),
        };
        let inputs = [
            random.literal(&TensorType::new(dtype, shape(&lhs))),
            random.literal(&TensorType::new(dtype, shape(&rhs))),
        ];
        let [lhs, rhs] = &inputs;
        let sum = random.literal(&op.infer(&[&lhs.ty, &rhs.ty]).unwrap()[0]);
        let types = [&sum, lhs, rhs].map(|literal| literal.ty.clone());
        let sums =
            Composite::new(&templates::DOT_GENERAL_ADD, templates::dot_general_dims(&op), &types).unwrap();
        check_single(op, &inputs, false);
        if Cpu::default().has_kernel(&sums) {
            added += 1;
            let [lhs, rhs] = inputs;
            check_single(sums, &[sum, lhs, rhs], false);
        }
    }
    assert!(added > 10, "{added} were added to something");
}

#[test]
fn reduce_every_combiner_and_type() {
    for (seed, dtype) in (0..).zip(DType::ALL) {
        let mut random = Random(seed);
        for combiner in
            [Combiner::Sum, Combiner::Prod, Combiner::Max, Combiner::Min, Combiner::And, Combiner::Or]
        {
            if dtype.is_float() && matches!(combiner, Combiner::And | Combiner::Or) {
                continue;
            }
            for dims in [vec![], vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
                let ty = TensorType::new(dtype, [2, 3, 4]);
                let reducer = Reducer::Combiner(combiner);
                let initial = Literal::scalar(dtype, 1.0);
                check_single(Reduce { dims, reducer }, &[random.literal(&ty), initial], false);
            }
        }
    }
}

#[test]
fn ops_that_move_elements() {
    let mut random = Random(9);
    for dtype in [DType::F32, DType::Bool, DType::I64, DType::BF16] {
        let literal = |random: &mut Random, shape: &[usize]| random.literal(&TensorType::new(dtype, shape));
        let scalar =
            |value: i64| Literal::from_f64(&TensorType::scalar(DType::I32), [value as f64].into_iter());
        let pieces =
            [literal(&mut random, &[2, 3]), literal(&mut random, &[2, 0]), literal(&mut random, &[2, 2])];
        check_single(Concatenate { dim: 1 }, &pieces, false);
        for (low, high, interior) in [
            ([0, 0], [0, 0], [0, 0]),
            ([1, 2], [0, 3], [0, 0]),
            ([-1, 2], [-1, -2], [0, 1]),
            ([-4, 0], [1, 0], [2, 0]),
            ([2, -2], [-3, 1], [1, 2]),
        ] {
            let op = Pad { low: low.to_vec(), high: high.to_vec(), interior: interior.to_vec() };
            let inputs = [literal(&mut random, &[3, 4]), literal(&mut random, &[])];
            if single(op.clone(), &[inputs[0].ty.clone(), inputs[1].ty.clone()]).is_some() {
                check_single(op, &inputs, false);
            }
        }
        for start in [-3, 0, 1, 7] {
            let x = literal(&mut random, &[4, 5]);
            check_single(DynamicSlice { sizes: vec![2, 3] }, &[x.clone(), scalar(start), scalar(1)], false);
            let update = literal(&mut random, &[2, 5]);
            check_single(DynamicUpdateSlice, &[x, update, scalar(start), scalar(start)], false);
        }
        check_single(Transpose { permutation: vec![2, 0, 1] }, &[literal(&mut random, &[2, 3, 4])], false);
        check_single(Reshape { shape: vec![4, 6] }, &[literal(&mut random, &[2, 3, 4])], false);
        let op = BroadcastInDim { shape: vec![2, 3, 4], dims: vec![0, 2] };
        check_single(op, &[literal(&mut random, &[2, 1])], false);
        let mut b = GraphBuilder::new("copy");
        let x = b.input("", TensorType::new(dtype, [3, 2, 4]), Role::Activation);
        let graph = b.finish(vec![x]);
        assert!(!check(&graph, RegionKind::Copy, &[literal(&mut random, &[3, 2, 4])], "copy"));
    }
}

#[test]
fn gather_rows_and_windows_clamped() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let index = [DType::I32, DType::I64, DType::U32, DType::U64, DType::I8][random.below(5)];
        let low = if index.is_signed_integer() { -3 } else { 0 };
        let table = random.literal(&TensorType::new(DType::F32, [6, 4]));
        // Rows of a table, with an implicit and an explicit index vector.
        for (shape, vector) in [(vec![2, 3], 2), (vec![2, 3, 1], 2), (vec![1, 5], 0)] {
            let batch = if vector == 0 { 1 } else { 2 };
            let dims = GatherDims {
                offset_dims: vec![batch],
                collapsed_slice_dims: vec![0],
                start_index_map: vec![0],
                index_vector_dim: vector,
                ..GatherDims::default()
            };
            let op = Gather { dims, slice_sizes: vec![1, 4], indices_are_sorted: false };
            check_single(op, &[table.clone(), random.integers(index, &shape, low, 9)], false);
        }
        // Windows of a matrix, the window in front of the batch.
        let dims = GatherDims {
            offset_dims: vec![0, 1],
            start_index_map: vec![1, 0],
            index_vector_dim: 1,
            ..GatherDims::default()
        };
        let op = Gather { dims, slice_sizes: vec![2, 3], indices_are_sorted: false };
        check_single(op, &[table.clone(), random.integers(index, &[5, 2], low, 9)], false);
        // One element per row of a batch: the logit of a label.
        let dims = GatherDims {
            collapsed_slice_dims: vec![1],
            operand_batching_dims: vec![0],
            start_indices_batching_dims: vec![0],
            start_index_map: vec![1],
            index_vector_dim: 1,
            ..GatherDims::default()
        };
        let op = Gather { dims, slice_sizes: vec![1, 1], indices_are_sorted: false };
        check_single(op, &[table, random.integers(index, &[6, 1], low, 9)], false);
        // Rows of an empty shard, which has none.
        for (shape, slice_sizes) in [([0, 4], vec![0, 4]), ([6, 0], vec![1, 0])] {
            let dims = GatherDims {
                offset_dims: vec![2],
                collapsed_slice_dims: vec![0],
                start_index_map: vec![0],
                index_vector_dim: 2,
                ..GatherDims::default()
            };
            let op = Gather { dims, slice_sizes, indices_are_sorted: false };
            let operands = [random.literal(&f32s(&shape)), random.integers(index, &[2, 3], low, 9)];
            check_single(op, &operands, false);
        }
    }
}

#[test]
fn scatter_rows_and_windows_in_order() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let index = [DType::I32, DType::I64, DType::U32, DType::I8][random.below(4)];
        let low = if index.is_signed_integer() { -3 } else { 0 };
        for dtype in [DType::F32, DType::F64, DType::I32, DType::BF16] {
            let table = random.literal(&TensorType::new(dtype, [6, 4]));
            let mut updates = vec![Update::Assign];
            updates.extend(
                [Combiner::Sum, Combiner::Max, Combiner::Prod].map(|c| Update::Combine(Reducer::Combiner(c))),
            );
            for update in updates {
                for (shape, vector) in [(vec![2, 3], 2), (vec![2, 3, 1], 2)] {
                    let dims = ScatterDims {
                        update_window_dims: vec![2],
                        inserted_window_dims: vec![0],
                        scatter_dims_to_operand_dims: vec![0],
                        index_vector_dim: vector,
                        ..ScatterDims::default()
                    };
                    let op = Scatter {
                        dims,
                        update: update.clone(),
                        indices_are_sorted: false,
                        unique_indices: false,
                    };
                    let rows = random.literal(&TensorType::new(dtype, [2, 3, 4]));
                    check_single(op, &[table.clone(), random.integers(index, &shape, low, 9), rows], false);
                }
                let dims = ScatterDims {
                    update_window_dims: vec![0, 1],
                    scatter_dims_to_operand_dims: vec![1, 0],
                    index_vector_dim: 1,
                    ..ScatterDims::default()
                };
                let op = Scatter {
                    dims,
                    update: update.clone(),
                    indices_are_sorted: false,
                    unique_indices: false,
                };
                let windows = random.literal(&TensorType::new(dtype, [2, 3, 5]));
                check_single(op, &[table.clone(), random.integers(index, &[5, 2], low, 9), windows], false);
            }
        }
    }
}

#[test]
fn labels_that_are_no_classes_are_refused() {
    let attributes = [("ignore_index", Attribute::Int(-1))];
    let logits = Literal::zeros(&TensorType::new(DType::F32, [2, 3]));
    let labels = Literal { ty: TensorType::new(DType::I32, [2]), data: Storage::I32(vec![0, 3]) };
    let types = [logits.ty.clone(), labels.ty.clone()];
    let (composite, _) = composite(&templates::CROSS_ENTROPY, &attributes, &types, &[]);
    let graph = single(composite, &types).unwrap();
    let error = run(&graph, RegionKind::Single, &[logits, labels], 0).unwrap_err();
    assert!(error.contains("label 3"), "{error}");
}
