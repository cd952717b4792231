//! Convolutions, windows, sorts and selections of any numbers.

use super::*;
use partita_kernels::KernelOptions;

fn shuffled(random: &mut Random, rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).collect();
    for i in (1..rank).rev() {
        order.swap(i, random.below(i + 1));
    }
    order
}

fn side(order: &[usize]) -> ConvolutionSide {
    ConvolutionSide { batch: order[0], feature: order[1], spatial: order[2..].to_vec() }
}

/// Extents in the order batch, feature, spatial, as the shape of a tensor with these dimensions.
fn shape(side: &ConvolutionSide, extents: &[usize]) -> Vec<usize> {
    let mut shape = vec![0; extents.len()];
    let dims = [side.batch, side.feature].into_iter().chain(side.spatial.iter().copied());
    dims.zip(extents).for_each(|(dim, &extent)| shape[dim] = extent);
    shape
}

/// A convolution of random numbers, and its operands.
fn convolution(random: &mut Random, dtype: DType) -> (Convolution, [Literal; 2]) {
    let spatial = [2, 2, 1, 3, 0][random.below(5)];
    let groups = [1, 1, 2, 3][random.below(4)];
    let by_batch = groups > 1 && random.below(3) == 0;
    let (batch, inputs, outputs) = (1 + random.below(3), 1 + random.below(4), 1 + random.below(5));
    let sides = [(); 3].map(|()| match random.below(3) {
        0 => side(&(0..spatial + 2).collect::<Vec<_>>()),
        _ => side(&shuffled(random, spatial + 2)),
    });
    let window = |random: &mut Random| ConvolutionWindow {
        stride: 1 + random.below(3),
        padding: (random.below(5) as i64 - 1, random.below(5) as i64 - 1),
        input_dilation: [1, 1, 2, 3][random.below(4)],
        kernel_dilation: [1, 1, 2][random.below(3)],
        reversed: random.below(3) == 0,
    };
    let mut input = vec![batch, inputs];
    let mut kernel = vec![outputs * groups, inputs];
    input[usize::from(!by_batch)] *= groups;
    let mut windows = Vec::new();
    for _ in 0..spatial {
        let entries = 1 + random.below(3);
        kernel.push(entries);
        input.push(if random.below(20) == 0 { 0 } else { 1 + random.below(9) });
        let plain = ConvolutionWindow::default();
        windows.push(if random.below(4) == 0 { plain } else { window(random) });
    }
    let [x, w, y] = sides;
    let literals = [(&x, &input), (&w, &kernel)]
        .map(|(side, extents)| random.literal(&TensorType::new(dtype, shape(side, extents))));
    let op = Convolution {
        input: x,
        kernel: w,
        output: y,
        windows,
        feature_groups: if by_batch { 1 } else { groups },
        batch_groups: if by_batch { groups } else { 1 },
        dtype,
    };
    (op, literals)
}

#[test]
fn convolutions_of_any_numbers() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let types = [DType::F32, DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I8];
        let dtype = types[random.below(types.len())];
        let (mut op, operands) = convolution(&mut random, dtype);
        if dtype == DType::BF16 && random.below(2) == 0 {
            op.dtype = DType::F32;
        }
        if dtype == DType::I8 && random.below(2) == 0 {
            op.dtype = DType::I32;
        }
        check_single(op, &operands, false);
    }
}

/// The results of one op on dense operands, at one level and in some parts.
fn at_level(op: &Op, operands: &[Literal], options: KernelOptions, parts: usize) -> Vec<Vec<u8>> {
    let types: Vec<TensorType> = operands.iter().map(|x| x.ty.clone()).collect();
    let region = Region::new(single(op.clone(), &types).expect("an op"), RegionKind::Single);
    let mut end = 0;
    let mut place = |ty: &TensorType| {
        let offset = end;
        end = (offset + ty.bytes()).next_multiple_of(64);
        Place::dense(offset, ty.dtype, &ty.shape)
    };
    let inputs: Vec<Place> = types.iter().map(&mut place).collect();
    let outputs: Vec<Place> = region.graph.outputs.iter().map(|&v| place(region.graph.ty(v))).collect();
    let cpu = Cpu { kernel_options: options, ..Cpu::default() };
    let kernel = cpu.compile_parts(&region, inputs.clone(), outputs.clone(), parts);
    assert!(!kernel.is_slow);
    let workspace = Span { offset: end, bytes: kernel.workspace_bytes() };
    let arena = Arena::new(workspace.offset + workspace.bytes).unwrap();
    let memory = arena.memory();
    for (place, literal) in inputs.iter().zip(operands) {
        let bytes = literal.to_bytes();
        memory.bytes_mut(Span { offset: place.offset_bytes, bytes: bytes.len() }).copy_from_slice(&bytes);
    }
    kernel.run_parts(&memory, workspace).unwrap();
    outputs.iter().map(|place| memory.bytes(place.span()).to_vec()).collect()
}

/// Sizes that fill several blocks of the matmul, and several tiles of a depthwise convolution.
#[test]
fn every_level_and_number_of_parts_gives_the_same_bits() {
    let window =
        |stride, padding| ConvolutionWindow { stride, padding: (padding, padding), ..Default::default() };
    let first = ConvolutionSide { batch: 0, feature: 1, spatial: vec![2, 3] };
    let last = ConvolutionSide { batch: 0, feature: 3, spatial: vec![1, 2] };
    let kernel_last = ConvolutionSide { batch: 3, feature: 2, spatial: vec![0, 1] };
    let case = |side: &ConvolutionSide, kernel: &ConvolutionSide, stride, groups| Convolution {
        input: side.clone(),
        kernel: kernel.clone(),
        output: side.clone(),
        windows: vec![window(stride, 1), window(stride, 2)],
        feature_groups: groups,
        batch_groups: 1,
        dtype: DType::F32,
    };
    let mut random = Random(7);
    for (op, x, w) in [
        (case(&first, &first, 1, 1), [2, 48, 13, 17], [37, 48, 3, 3]),
        (case(&last, &kernel_last, 2, 1), [3, 14, 9, 45], [3, 3, 45, 70]),
        (case(&first, &first, 2, 21), [2, 21, 9, 19], [21, 1, 3, 3]),
        (case(&last, &kernel_last, 1, 33), [2, 9, 7, 33], [3, 3, 1, 33]),
        (case(&first, &first, 1, 5), [1, 5, 90, 90], [5, 1, 3, 3]),
    ] {
        let types = [f32s(&x), f32s(&w)];
        let mut b = GraphBuilder::new("gradients");
        let operands: Vec<ValueId> =
            types.iter().map(|ty| b.input("", ty.clone(), Role::Activation)).collect();
        let y = b.push1(op.clone(), &operands).unwrap();
        let graph = b.finish(vec![y]);
        let result = graph.ty(y).clone();
        // The op and both of its gradients.
        let gradient = partita_ir::autodiff::vjp(&graph, &[0], &[0, 1]).unwrap();
        let inputs = [random.literal(&types[0]), random.literal(&types[1]), random.literal(&result)];
        let mut ops: Vec<(Op, Vec<Literal>)> = vec![(op.into(), inputs[..2].to_vec())];
        for node in &gradient.nodes {
            if let Op::Convolution(_) = &node.op {
                let operands = node.operands.iter().map(|&v| random.literal(gradient.ty(v))).collect();
                ops.push((node.op.clone(), operands));
            }
        }
        assert_eq!(ops.len(), 3);
        for (op, operands) in ops {
            let expected = at_level(&op, &operands, KernelOptions::portable(), 1);
            for options in KernelOptions::levels() {
                for parts in [1, 2, 3, 7] {
                    assert!(
                        at_level(&op, &operands, options, parts) == expected,
                        "{op:?} {options:?} {parts}"
                    );
                }
            }
            // Sums of whole numbers are exact.
            let whole = |x: &Literal| Literal::from_f64(&x.ty, x.to_f64().into_iter().map(f64::round));
            check_single(op, &operands.iter().map(whole).collect::<Vec<_>>(), false);
        }
    }
}

const NUMBERS: [DType; 8] =
    [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I8, DType::U64, DType::Bool];

fn random_shape(random: &mut Random, most: usize) -> Vec<usize> {
    (0..1 + random.below(4)).map(|_| if random.below(25) == 0 { 0 } else { 1 + random.below(most) }).collect()
}

#[test]
fn windows_of_any_numbers() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let dtype = NUMBERS[random.below(NUMBERS.len())];
        let combiners =
            [Combiner::Sum, Combiner::Max, Combiner::Min, Combiner::Prod, Combiner::Or, Combiner::And];
        let combiner = combiners[random.below(if dtype.is_float() { 4 } else { 6 })];
        let shape = random_shape(&mut random, 9);
        let x = random.literal(&TensorType::new(dtype, shape.clone()));
        let ones = vec![1; shape.len()];
        let mut op = ReduceWindow {
            window: ones.clone(),
            strides: ones.clone(),
            base_dilation: ones.clone(),
            window_dilation: ones,
            padding: vec![(0, 0); shape.len()],
            reducer: Reducer::Combiner(combiner),
        };
        for d in 0..shape.len() {
            if random.below(3) > 0 {
                op.window[d] = 1 + random.below(4);
                op.strides[d] = 1 + random.below(3);
                op.base_dilation[d] = [1, 1, 2, 3][random.below(4)];
                op.window_dilation[d] = [1, 1, 2][random.below(3)];
                op.padding[d] = (random.below(5) as i64 - 1, random.below(5) as i64 - 1);
            }
        }
        let initial = [0.0, 1.0, 3.0][random.below(3)];
        check_single(op, &[x, Literal::scalar(dtype, initial)], false);
    }
}

#[test]
fn cumulative_windows_in_both_directions() {
    for seed in 0..120 {
        let mut random = Random(seed);
        let dtype = NUMBERS[random.below(NUMBERS.len())];
        let (combiner, initial) = [
            (Combiner::Sum, 0.0),
            (Combiner::Sum, 2.0),
            (Combiner::Prod, 1.0),
            (Combiner::Max, if dtype.is_float() { f64::NEG_INFINITY } else { 1.0 }),
            (Combiner::Min, 1.0),
        ][random.below(5)];
        let shape = random_shape(&mut random, 20);
        let x = random.literal(&TensorType::new(dtype, shape.clone()));
        let dim = random.below(shape.len());
        let ones = vec![1; shape.len()];
        let (mut window, mut padding) = (ones.clone(), vec![(0, 0); shape.len()]);
        window[dim] = shape[dim].max(1);
        let edge = window[dim] as i64 - 1;
        padding[dim] = if random.below(2) == 0 { (edge, 0) } else { (0, edge) };
        let op = ReduceWindow {
            window,
            strides: ones.clone(),
            base_dilation: ones.clone(),
            window_dilation: ones,
            padding,
            reducer: Reducer::Combiner(combiner),
        };
        check_single(op, &[x, Literal::scalar(dtype, initial)], false);
    }
}

/// A cumulative sum over one long line takes one pass: as windows it would take 10^10 steps. The numbers are
/// such that sums in f32 would drift.
#[test]
fn long_cumulative_sums_and_their_gradients_are_linear_and_exact() {
    let count = 100_000;
    let mut b = GraphBuilder::new("sums");
    let x = b.input("x", f32s(&[count]), Role::Activation);
    let zero = b.scalar(DType::F32, 0.0);
    let op = ReduceWindow {
        window: vec![count],
        strides: vec![1],
        base_dilation: vec![1],
        window_dilation: vec![1],
        padding: vec![(count as i64 - 1, 0)],
        reducer: Reducer::Combiner(Combiner::Sum),
    };
    let y = b.push1(op.clone(), &[x, zero]).unwrap();
    let graph = b.finish(vec![y]);
    let gradient = partita_ir::autodiff::vjp(&graph, &[0], &[0]).unwrap();
    let transposed = gradient.nodes.iter().rev().find_map(|node| {
        let Op::ReduceWindow(op) = &node.op else { return None };
        Some(op.clone())
    });
    let values: Vec<f32> = (0..count).map(|i| 0.1 + (i % 7) as f32).collect();
    let inputs = [Literal::new([count], values.clone()), Literal::scalar(DType::F32, 0.0)];
    for (op, backwards) in [(op, false), (transposed.expect("a sum of windows"), true)] {
        let result = at_level(&op.into(), &inputs, KernelOptions::native(), 1).remove(0);
        let found = Literal::from_bytes(&f32s(&[count]), &result).unwrap().to_f64();
        let (mut sum, mut order) = (0.0, (0..count).collect::<Vec<_>>());
        if backwards {
            order.reverse();
        }
        for i in order {
            sum += f64::from(values[i]);
            assert_eq!(found[i], f64::from(sum as f32), "{i} {backwards}");
        }
    }
}

fn two_scalars(dtype: DType, build: impl Fn(&mut GraphBuilder, ValueId, ValueId) -> ValueId) -> Box<Graph> {
    let mut b = GraphBuilder::new("region");
    let [x, y] = [0, 1].map(|_| b.input("", TensorType::scalar(dtype), Role::Activation));
    let result = build(&mut b, x, y);
    Box::new(b.finish(vec![result]))
}

#[test]
fn chosen_elements_of_windows_receive_the_source() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let dtype = [DType::F32, DType::F64, DType::BF16, DType::I32][random.below(4)];
        let direction = [Direction::Ge, Direction::Ge, Direction::Gt, Direction::Le][random.below(4)];
        let shape = random_shape(&mut random, 8);
        let rank = shape.len();
        let mut op = SelectAndScatter {
            window: vec![1; rank],
            strides: vec![1; rank],
            padding: vec![(0, 0); rank],
            select: two_scalars(dtype, |b, x, y| b.compare(direction, x, y).unwrap()),
            scatter: Reducer::Combiner([Combiner::Sum, Combiner::Max][random.below(2)]),
        };
        let mut windows = shape.clone();
        for d in 0..rank {
            if random.below(3) > 0 {
                op.window[d] = 1 + random.below(3);
                op.strides[d] = 1 + random.below(3);
                op.padding[d] = (random.below(3) as i64, random.below(3) as i64);
            }
            let padded = shape[d] as i64 + op.padding[d].0 + op.padding[d].1 - op.window[d] as i64;
            windows[d] = if padded < 0 { 0 } else { padded as usize / op.strides[d] + 1 };
        }
        let x = random.literal(&TensorType::new(dtype, shape));
        let source = random.literal(&TensorType::new(dtype, windows));
        check_single(op, &[x, source, Literal::scalar(dtype, 1.0)], false);
    }
}

/// Comparators: of one operand, of what JAX makes of floats, and by two keys.
fn comparators(types: &[DType], random: &mut Random) -> Box<Graph> {
    let mut b = GraphBuilder::new("comparator");
    let pairs: Vec<[ValueId; 2]> = types
        .iter()
        .map(|&dtype| [0, 1].map(|_| b.input("", TensorType::scalar(dtype), Role::Activation)))
        .collect();
    let directions = [Direction::Lt, Direction::Gt, Direction::Le, Direction::Ge];
    let direction = directions[random.below(4)];
    let total = Some(CompareType::TotalOrder).filter(|_| types[0].is_float());
    let canonical = |b: &mut GraphBuilder, x: ValueId| {
        let zero = b.scalar(types[0], 0.0);
        let nan = b.scalar(types[0], f64::NAN);
        let is_zero = b.compare(Direction::Eq, x, zero).unwrap();
        let x = b.select(is_zero, zero, x).unwrap();
        let is_nan = b.compare(Direction::Ne, x, x).unwrap();
        b.select(is_nan, nan, x).unwrap()
    };
    let [x, y] = pairs[0];
    let before = match random.below(4) {
        0 => b.compare(direction, x, y).unwrap(),
        1 if total.is_some() => {
            let (x, y) = (canonical(&mut b, x), canonical(&mut b, y));
            b.push1(Compare { direction, compare_type: total }, &[x, y]).unwrap()
        }
        2 => b.push1(Compare { direction, compare_type: total }, &[y, x]).unwrap(),
        _ => {
            let [u, v] = pairs[pairs.len() - 1];
            let equal = b.compare(Direction::Eq, x, y).unwrap();
            let (first, second) =
                (b.compare(direction, x, y).unwrap(), b.compare(Direction::Gt, u, v).unwrap());
            let tie = b.binary(BinaryKind::And, equal, second).unwrap();
            b.binary(BinaryKind::Or, first, tie).unwrap()
        }
    };
    Box::new(b.finish(vec![before]))
}

#[test]
fn sorts_of_several_operands_are_stable() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let types: Vec<DType> =
            (0..1 + random.below(3)).map(|_| NUMBERS[random.below(NUMBERS.len())]).collect();
        let mut shape: Vec<usize> = (0..1 + random.below(3)).map(|_| 1 + random.below(3)).collect();
        let dim = random.below(shape.len());
        shape[dim] = random.below(40);
        let mut operands: Vec<Literal> =
            types.iter().map(|&dtype| random.literal(&TensorType::new(dtype, shape.clone()))).collect();
        // Few different keys, with both zeros, infinities and NaN.
        if types[0].is_float() {
            let values = operands[0].to_f64().into_iter().map(|x| match (x * 4.0).round() {
                4.0 => f64::NAN,
                5.0 => f64::NEG_INFINITY,
                6.0 => -0.0,
                x => x,
            });
            let values: Vec<f64> = values.collect();
            operands[0] = Literal::from_f64(&operands[0].ty, values.into_iter());
        }
        let op = Sort { dim, is_stable: true, comparator: comparators(&types, &mut random) };
        let is_consistent = {
            let has_nan = types[0].is_float() && operands[0].to_f64().iter().any(|x| x.is_nan());
            let strict = |graph: &Graph| {
                let last = graph.nodes.last().expect("a comparison");
                !matches!(&last.op, Op::Compare(op) if matches!(op.direction, Direction::Le | Direction::Ge))
            };
            !has_nan && strict(&op.comparator)
        };
        // What an inconsistent comparator gives depends on the algorithm.
        if is_consistent || shape[dim] < 2 {
            check_single(op, &operands, false);
        }
    }
}

#[test]
fn the_largest_of_rows() {
    for seed in 0..120 {
        let mut random = Random(seed);
        let dtype = NUMBERS[random.below(NUMBERS.len())];
        let mut shape = random_shape(&mut random, 12);
        let last = shape.len() - 1;
        shape[last] = random.below(if seed % 10 == 0 { 300 } else { 30 });
        let mut x = random.literal(&TensorType::new(dtype, shape.clone()));
        if dtype.is_float() {
            let special = [f64::NAN, f64::INFINITY, -0.0, 0.0, -f64::NAN];
            let values: Vec<f64> = x
                .to_f64()
                .into_iter()
                .map(|x| if random.below(6) == 0 { special[random.below(5)] } else { x })
                .collect();
            x = Literal::from_f64(&x.ty, values.into_iter());
        }
        check_single(TopK { k: random.below(shape[last] + 1) }, &[x], false);
    }
}
