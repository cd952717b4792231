//! Composites on the CPU, against their decompositions.

use super::*;

/// A graph of a composite over inputs of these types, or of its gradient with respect to `wanted`.
pub(super) fn composite(
    template: &'static Template,
    attributes: &[(&str, Attribute)],
    types: &[TensorType],
    wanted: &[usize],
) -> (Composite, Option<Composite>) {
    let attributes: partita_ir::Attributes =
        attributes.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
    let forward = Composite::new(template, attributes, types).unwrap();
    if wanted.is_empty() {
        return (forward, None);
    }
    let definition = forward.definition.vjp(&forward.attributes, &[0], wanted).unwrap();
    let mut attributes = forward.attributes.clone();
    attributes.insert("wanted".into(), Attribute::Ints(wanted.iter().map(|&w| w as i64).collect()));
    attributes.insert("seeded".into(), Attribute::Ints(vec![0]));
    let gradient = Composite { attributes, definition: std::sync::Arc::new(definition) };
    (forward, Some(gradient))
}

/// Checks a composite and its gradient; both must have kernels.
pub(super) fn check_composite(
    template: &'static Template,
    attributes: &[(&str, Attribute)],
    inputs: &[Literal],
    wanted: &[usize],
    random: &mut Random,
) {
    let types: Vec<TensorType> = inputs.iter().map(|i| i.ty.clone()).collect();
    let (forward, gradient) = composite(template, attributes, &types, wanted);
    let graph = &forward.definition.decomposition;
    let result = graph.ty(graph.outputs[0]).clone();
    assert!(Cpu::default().has_kernel(&forward), "{} on {types:?}", template.name);
    check_single(forward, inputs, false);
    if let Some(gradient) = gradient {
        assert!(Cpu::default().has_kernel(&gradient), "{}.vjp on {types:?}", template.name);
        let inputs = [inputs, &[random.literal(&result)]].concat();
        check_single(gradient, &inputs, false);
    }
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];

#[test]
fn composites_of_rows() {
    let mut random = Random(5);
    for dtype in FLOATS {
        let x = TensorType::new(dtype, [3, 2, 7]);
        let row = TensorType::new(dtype, [7]);
        let epsilon = [("epsilon", Attribute::Float(1e-5))];
        let x_value = random.literal(&x);
        check_composite(&templates::SOFTMAX, &[], std::slice::from_ref(&x_value), &[0], &mut random);
        check_composite(&templates::LOG_SOFTMAX, &[], std::slice::from_ref(&x_value), &[], &mut random);
        let [weight, bias] = [0, 1].map(|_| random.literal(&row));
        let norms: [(&'static Template, Vec<Literal>); 5] = [
            (&templates::LAYER_NORM, vec![]),
            (&templates::LAYER_NORM, vec![weight.clone()]),
            (&templates::LAYER_NORM, vec![weight.clone(), bias]),
            (&templates::RMS_NORM, vec![]),
            (&templates::RMS_NORM, vec![weight]),
        ];
        for (template, vectors) in norms {
            let inputs = [vec![x_value.clone()], vectors].concat();
            let all: Vec<usize> = (0..inputs.len()).collect();
            check_composite(template, &epsilon, &inputs, &all, &mut random);
            check_composite(template, &epsilon, &inputs, &[0], &mut random);
        }
        for index in [DType::I32, DType::I64] {
            let mut labels = random.integers(index, &[3, 2], 0, 7);
            labels.data.put(1, &Literal::from_f64(&TensorType::scalar(index), [-1.0].into_iter()).data, 0);
            let attributes = [("ignore_index", Attribute::Int(-1))];
            check_composite(
                &templates::CROSS_ENTROPY,
                &attributes,
                &[x_value.clone(), labels],
                &[0],
                &mut random,
            );
        }
    }
}

#[test]
fn norm_gradients_of_several_blocks_of_rows() {
    let mut random = Random(8);
    let epsilon = [("epsilon", Attribute::Float(1e-5))];
    for shape in [vec![200, 9], vec![1, 3, 64, 8], vec![7, 24, 5], vec![0, 6]] {
        let inputs = [&shape[..], &shape[shape.len() - 1..]]
            .map(|shape| random.literal(&TensorType::new(DType::F64, shape)));
        check_composite(&templates::LAYER_NORM, &epsilon, &inputs, &[0, 1], &mut random);
        check_composite(&templates::RMS_NORM, &epsilon, &inputs, &[0, 1], &mut random);
    }
}

#[test]
fn attention_with_groups_masks_and_more_keys_than_queries() {
    let mut random = Random(6);
    for dtype in FLOATS {
        for (heads, groups, queries, keys) in [(2, 2, 4, 4), (4, 2, 3, 5), (2, 1, 5, 5)] {
            let q = random.literal(&TensorType::new(dtype, [2, heads, queries, 6]));
            let [k, v] = [0, 1].map(|_| random.literal(&TensorType::new(dtype, [2, groups, keys, 6])));
            for causal in [false, true] {
                let attributes = [("causal", Attribute::Bool(causal)), ("scale", Attribute::Float(0.4))];
                let inputs = vec![q.clone(), k.clone(), v.clone()];
                check_composite(&templates::ATTENTION, &attributes, &inputs, &[0, 1, 2], &mut random);
                let mask = random.literal(&TensorType::new(DType::Bool, [2, 1, queries, keys]));
                let inputs = [inputs, vec![mask]].concat();
                check_composite(&templates::ATTENTION, &attributes, &inputs, &[0, 1, 2], &mut random);
            }
        }
    }
}

/// Windows and documents, and parts of attention in one run of positions and in two.
#[test]
fn attention_with_windows_and_documents() {
    let mut random = Random(7);
    for dtype in FLOATS {
        for (heads, groups, queries, keys) in [(4, 2, 6, 6), (2, 2, 4, 8)] {
            let q = random.literal(&TensorType::new(dtype, [2, heads, queries, 6]));
            let [k, v] = [0, 1].map(|_| random.literal(&TensorType::new(dtype, [2, groups, keys, 6])));
            let limits = (0..2 * queries as i32).flat_map(|row| [row % 3, row % 3 + row % 4 + 1]);
            let limits = Literal::new([2, queries, 2], limits.collect::<Vec<i32>>());
            for (causal, window) in [(true, 2), (false, 3), (true, 1 << 40)] {
                let attributes = [
                    ("causal", Attribute::Bool(causal)),
                    ("scale", Attribute::Float(0.4)),
                    ("window", Attribute::Int(window)),
                ];
                let inputs = vec![q.clone(), k.clone(), v.clone()];
                check_composite(&templates::ATTENTION, &attributes, &inputs, &[0, 1, 2], &mut random);
                let limited = [inputs.clone(), vec![limits.clone()]].concat();
                check_composite(&templates::ATTENTION, &attributes, &limited, &[0, 1, 2], &mut random);
                // Weights are below 1 where the logarithm of their sum is at least the largest score, here about 8.
                let rows = [8.0, 0.0].map(|least| {
                    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
                    let ty = TensorType::new(wide, [2, heads, queries]);
                    let rows = random.literal(&ty);
                    Literal::from_f64(&ty, rows.to_f64().into_iter().map(|value| value + least))
                });
                for place in [vec![3i64, 1, keys as i64 - 1], vec![2, 6, 0, 5, keys as i64]] {
                    let place = Literal::new([place.len()], place);
                    let parts = [inputs.clone(), vec![place.clone(), limits.clone()]].concat();
                    check_composite(&templates::ATTENTION_PART, &attributes, &parts, &[], &mut random);
                    let rest = [rows[0].clone(), rows[1].clone(), q.clone(), place, limits.clone()];
                    let gradients = [inputs.clone(), rest.to_vec()].concat();
                    let template = &templates::ATTENTION_PART_GRADIENT;
                    check_composite(template, &attributes, &gradients, &[], &mut random);
                }
            }
        }
    }
}

#[test]
fn random_numbers_of_shards() {
    let attributes = |dtype: DType| {
        [
            ("shape", Attribute::Ints(vec![3, 4])),
            ("global_shape", Attribute::Ints(vec![9, 11])),
            ("stream", Attribute::Int(5)),
            ("dtype", Attribute::DType(dtype)),
        ]
    };
    let offsets = Literal::new([2], vec![4i64, 6]);
    for seed in [Literal::new([], vec![u64::MAX - 3]), Literal::new([], vec![7i32])] {
        let inputs = [seed, offsets.clone()];
        let random = &mut Random(0);
        check_composite(&templates::RANDOM_BITS, &attributes(DType::U32), &inputs, &[], random);
        for dtype in FLOATS {
            check_composite(&templates::UNIFORM, &attributes(dtype), &inputs, &[], random);
            check_composite(&templates::NORMAL, &attributes(dtype), &inputs, &[], random);
        }
    }
}

#[test]
fn random_numbers_of_large_tensors_are_drawn_in_parts() {
    let shape = [70, 600];
    let dims = Attribute::Ints(shape.iter().map(|&s| s as i64).collect());
    let attributes = [
        ("shape", dims.clone()),
        ("global_shape", dims),
        ("stream", Attribute::Int(1)),
        ("dtype", Attribute::DType(DType::F32)),
    ];
    let inputs = [Literal::new([], vec![1u64]), Literal::new([2], vec![0i64, 0])];
    check_composite(&templates::NORMAL, &attributes, &inputs, &[], &mut Random(0));
}

#[test]
fn what_has_no_kernel_is_left_to_be_opened() {
    let none = |composite: &Composite| {
        assert!(!Cpu::default().has_kernel(composite), "{}", composite.definition.name)
    };
    none(&composite(&templates::GELU, &[], &[f32s(&[2, 3])], &[]).0);
    none(&composite(&templates::LOG_SOFTMAX, &[], &[f32s(&[2, 3])], &[0]).1.unwrap());
    // More queries than keys under a causal mask.
    let attributes = [("causal", Attribute::Bool(true)), ("scale", Attribute::Float(1.0))];
    let types = [f32s(&[1, 1, 4, 2]), f32s(&[1, 1, 3, 2]), f32s(&[1, 1, 3, 2])];
    none(&composite(&templates::ATTENTION, &attributes, &types, &[]).0);
    // Only some of the gradients.
    let types = [f32s(&[1, 1, 3, 2]), f32s(&[1, 1, 3, 2]), f32s(&[1, 1, 3, 2])];
    none(&composite(&templates::ATTENTION, &attributes, &types, &[0]).1.unwrap());
    let epsilon = [("epsilon", Attribute::Float(1e-5))];
    none(&composite(&templates::LAYER_NORM, &epsilon, &[f32s(&[2, 3]), f32s(&[3])], &[1]).1.unwrap());
    // Random numbers without dimensions.
    let attributes = [
        ("shape", Attribute::Ints(vec![])),
        ("global_shape", Attribute::Ints(vec![])),
        ("stream", Attribute::Int(0)),
    ];
    let types = [TensorType::scalar(DType::U64), TensorType::new(DType::I64, [0])];
    none(&composite(&templates::RANDOM_BITS, &attributes, &types, &[]).0);
}

#[test]
fn ops_without_a_kernel_run_on_the_interpreter() {
    let mut random = Random(2);
    let x = random.literal(&TensorType::new(DType::I32, [2, 3]));
    check_single(Unary { kind: UnaryKind::Popcnt }, &[x], true);
    // A wider type changes the shape.
    let x = random.literal(&TensorType::new(DType::I16, [3, 2]));
    check_single(BitcastConvert { dtype: DType::I32 }, &[x], true);
    // Loops, branches, and sorting by arithmetic.
    let x = random.literal(&TensorType::new(DType::F32, [3, 4]));
    let scalar = TensorType::scalar(DType::F32);
    let body = |build: &dyn Fn(&mut GraphBuilder, ValueId, ValueId) -> ValueId| {
        let mut b = GraphBuilder::new("body");
        let [x, y] = [0, 1].map(|_| b.input("", scalar.clone(), Role::Activation));
        let result = build(&mut b, x, y);
        Box::new(b.finish(vec![result]))
    };
    let comparator = body(&|b, x, y| {
        let distance = b.subtract(x, y).unwrap();
        b.compare(Direction::Lt, distance, y).unwrap()
    });
    check_single(Sort { dim: 1, is_stable: true, comparator }, std::slice::from_ref(&x), true);
    let reducer = Reducer::Body(body(&|b, x, y| b.maximum(x, y).unwrap()));
    check_single(Reduce { dims: vec![0], reducer }, &[x, Literal::scalar(DType::F32, -9.0)], true);
    let condition = body(&|b, x, y| b.compare(Direction::Lt, x, y).unwrap());
    let mut b = GraphBuilder::new("body");
    let [count, limit] = [0, 1].map(|_| b.input("", scalar.clone(), Role::Activation));
    let next = b.offset(count, 1.5).unwrap();
    let body = Box::new(b.finish(vec![next, limit]));
    let carried = [0.0, 7.0].map(|value| Literal::scalar(DType::F32, value));
    check_single(While { condition, body }, &carried, true);
    // Nine dimensions are more than a view has.
    let shape = [1, 2, 1, 2, 1, 2, 1, 2, 1];
    let inputs = [0, 1].map(|_| random.literal(&TensorType::new(DType::F32, shape)));
    check_single(Binary { kind: BinaryKind::Add }, &inputs, true);
}

#[test]
fn rows_of_experts() {
    let mut random = Random(9);
    for dtype in FLOATS {
        for (rows, groups) in [([2, 3], 4), ([1, 5], 1), ([4, 1], 3)] {
            let lead = |last: usize| TensorType::new(dtype, [rows[0], rows[1], last]);
            let x = random.literal(&lead(6));
            let weight = random.literal(&TensorType::new(dtype, [groups, 5, 6]));
            let chosen = random.integers(DType::I64, &rows, 0, groups as i64).to_i64();
            let share = |at: usize| f64::from(chosen[at / groups] == (at % groups) as i64);
            let own = Literal::from_f64(&lead(groups), (0..rows[0] * rows[1] * groups).map(share));
            let y = random.literal(&lead(5));
            let products: [(&'static Template, bool, Vec<Literal>); 3] = [
                (&templates::GROUPED_MATMUL, false, vec![x.clone(), weight.clone(), own.clone()]),
                (&templates::GROUPED_MATMUL, true, vec![y.clone(), weight, own.clone()]),
                (&templates::GROUPED_OUTER, false, vec![x, y, own]),
            ];
            for (template, transposed, inputs) in products {
                let attributes = [(templates::TRANSPOSED, Attribute::Bool(transposed))];
                check_composite(template, &attributes, &inputs, &[], &mut random);
            }
        }
    }
}
