//! Every assignment of ordered mesh axes to an op's factors equals one device. The cases are generated from the
//! factor rules, so a new op is covered by adding one application of it to the table.

use partita_base::DType;
use partita_ir::composites::*;
use partita_ir::ops::*;
use partita_ir::{
    Attribute, Attributes, FactorKind, Graph, GraphBuilder, Literal, Op, Operation, Role, Rule, TensorType,
    evaluate,
};
use partita_mesh::{AxisList, Combiner, Mesh};
use partita_spmd::{Options, partition, virtual_ranks};
use std::collections::BTreeMap;

/// One application of an op: a name, the op, its operands.
type Case = (String, Op, Vec<Literal>);

fn numbers(shape: &[usize], seed: u64, dtype: DType) -> Literal {
    let ty = TensorType::new(dtype, shape);
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let values = (0..ty.element_count()).map(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
    });
    Literal::from_f64(&ty, values.collect::<Vec<_>>().into_iter())
}

fn reals(shape: &[usize], seed: u64) -> Literal {
    numbers(shape, seed, DType::F64)
}

fn indices(shape: &[usize], seed: u64, below: usize) -> Literal {
    let raw = reals(shape, seed).to_f64();
    let ty = TensorType::new(DType::I32, shape);
    Literal::from_f64(&ty, raw.into_iter().map(|v| ((v + 1.0) * 0.4999 * below as f64).floor()))
}

fn composite(
    template: &'static partita_ir::composite::Template,
    attributes: &[(&str, Attribute)],
    args: &[Literal],
) -> Op {
    let attributes: Attributes = attributes.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
    let types: Vec<TensorType> = args.iter().map(|l| l.ty.clone()).collect();
    Composite::new(template, attributes, &types).expect("template applies").into()
}

/// The table. `n` is an extent that is varied: even for all meshes, uneven, and shorter than an axis.
fn cases(n: usize) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut add =
        |name: &str, op: Op, operands: Vec<Literal>| cases.push((format!("{name} n={n}"), op, operands));
    let unary = |kind| Op::from(Unary { kind });
    let binary = |kind| Op::from(Binary { kind });
    add("tanh", unary(UnaryKind::Tanh), vec![reals(&[n, 3], 1)]);
    add("add", binary(BinaryKind::Add), vec![reals(&[n, 3], 1), reals(&[n, 3], 2)]);
    add(
        "select",
        Select.into(),
        vec![
            Literal::from_f64(
                &TensorType::new(DType::Bool, [n, 2]),
                (0..n * 2).map(|i| (i % 3 == 0) as u8 as f64),
            ),
            reals(&[n, 2], 1),
            reals(&[n, 2], 2),
        ],
    );
    add(
        "compare",
        Compare { direction: Direction::Lt, compare_type: None }.into(),
        vec![reals(&[n], 1), reals(&[n], 2)],
    );
    add("convert", Convert { dtype: DType::F32 }.into(), vec![reals(&[n], 1)]);
    add("iota", Iota { ty: TensorType::new(DType::I32, [n, 4]), dim: 0 }.into(), vec![]);
    add("constant", Constant { value: reals(&[n, 4], 7) }.into(), vec![]);
    add(
        "broadcast",
        BroadcastInDim { shape: vec![4, n, 3], dims: vec![1, 2] }.into(),
        vec![reals(&[n, 1], 1)],
    );
    add("reshape merge", Reshape { shape: vec![n * 4] }.into(), vec![reals(&[n, 4], 1)]);
    add("reshape split", Reshape { shape: vec![n, 4, 2] }.into(), vec![reals(&[n * 4, 2], 1)]);
    add("reshape odd", Reshape { shape: vec![4, 3] }.into(), vec![reals(&[2, 6], 1)]);
    add("transpose", Transpose { permutation: vec![2, 0, 1] }.into(), vec![reals(&[n, 2, 4], 1)]);
    add("reverse", Reverse { dims: vec![0] }.into(), vec![reals(&[n, 4], 1)]);
    if n > 2 {
        add(
            "slice",
            Slice { start: vec![1, 0], limit: vec![n, 4], stride: vec![1, 1] }.into(),
            vec![reals(&[n, 4], 1)],
        );
    }
    add("concatenate", Concatenate { dim: 1 }.into(), vec![reals(&[n, 2], 1), reals(&[n, 3], 2)]);
    add(
        "pad",
        Pad { low: vec![0, 1], high: vec![0, -1], interior: vec![0, 1] }.into(),
        vec![reals(&[n, 3], 1), Literal::scalar(DType::F64, 0.5)],
    );
    add(
        "dynamic slice",
        DynamicSlice { sizes: vec![n, 2] }.into(),
        vec![reals(&[n, 5], 1), Literal::scalar(DType::I32, 0.0), Literal::scalar(DType::I32, 2.0)],
    );
    add(
        "dynamic update slice",
        DynamicUpdateSlice.into(),
        vec![
            reals(&[n, 5], 1),
            reals(&[n, 2], 2),
            Literal::scalar(DType::I32, 0.0),
            Literal::scalar(DType::I32, 1.0),
        ],
    );
    let dot = DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contracting: vec![2],
        rhs_contracting: vec![1],
        result_dtype: None,
    };
    add("dot batched", dot.into(), vec![reals(&[2, n, 4], 1), reals(&[2, 4, 3], 2)]);
    let dot = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![1], ..DotGeneral::default() };
    add("dot contracting", dot.into(), vec![reals(&[3, n], 1), reals(&[4, n], 2)]);
    for combiner in [Combiner::Sum, Combiner::Max] {
        add(
            "reduce",
            Reduce { dims: vec![0], reducer: Reducer::Combiner(combiner) }.into(),
            vec![
                reals(&[n, 4], 1),
                Literal::scalar(DType::F64, if combiner == Combiner::Sum { 0.25 } else { f64::NEG_INFINITY }),
            ],
        );
    }
    add(
        "embedding gather",
        Op::from(Gather {
            dims: GatherDims {
                offset_dims: vec![1],
                collapsed_slice_dims: vec![0],
                start_index_map: vec![0],
                index_vector_dim: 1,
                ..GatherDims::default()
            },
            slice_sizes: vec![1, 4],
            indices_are_sorted: false,
        }),
        vec![reals(&[n, 4], 1), indices(&[6], 3, n)],
    );
    add(
        "embedding scatter",
        Op::from(Scatter {
            dims: ScatterDims {
                update_window_dims: vec![1],
                inserted_window_dims: vec![0],
                scatter_dims_to_operand_dims: vec![0],
                index_vector_dim: 1,
                ..ScatterDims::default()
            },
            update: Update::Combine(Reducer::Combiner(Combiner::Sum)),
            indices_are_sorted: false,
            unique_indices: false,
        }),
        vec![reals(&[n, 4], 1), indices(&[6], 3, n), reals(&[6, 4], 5)],
    );
    add(
        "batched gather",
        Op::from(Gather {
            dims: GatherDims {
                operand_batching_dims: vec![0],
                start_indices_batching_dims: vec![0],
                collapsed_slice_dims: vec![1],
                start_index_map: vec![1],
                index_vector_dim: 1,
                ..GatherDims::default()
            },
            slice_sizes: vec![1, 1],
            indices_are_sorted: false,
        }),
        vec![reals(&[n, 5], 1), indices(&[n, 1], 3, 5)],
    );
    add("optimization barrier", OptimizationBarrier.into(), vec![reals(&[n, 2], 1), reals(&[3], 2)]);
    let args = vec![reals(&[n, 6], 1)];
    add("softmax", composite(&SOFTMAX, &[], &args), args);
    let args = vec![reals(&[n, 6], 1), reals(&[6], 2), reals(&[6], 3)];
    add("layer_norm", composite(&LAYER_NORM, &[("epsilon", Attribute::Float(1e-5))], &args), args);
    let args = vec![reals(&[n, 6], 1), indices(&[n], 2, 6)];
    let ignore = [("ignore_index", Attribute::Int(-100))];
    add("cross_entropy", composite(&CROSS_ENTROPY, &ignore, &args), args);
    for (heads, groups) in [(n, n), (2 * n, n)] {
        let args =
            vec![reals(&[2, heads, 3, 4], 1), reals(&[2, groups, 3, 4], 2), reals(&[2, groups, 3, 4], 3)];
        let attributes = [("scale", Attribute::Float(0.5)), ("causal", Attribute::Bool(true))];
        let op = composite(&ATTENTION, &attributes, &args);
        if let Op::Composite(attention) = &op {
            let vjp = attention.definition.clone().vjp(&[0], &[0, 1, 2]).expect("differentiable");
            let definition = std::sync::Arc::new(vjp);
            let gradient = Composite { attributes: attention.attributes.clone(), definition };
            let mut operands = args.clone();
            operands.push(reals(&[2, heads, 3, 4], 4));
            add("attention vjp", gradient.into(), operands);
        }
        add("attention", op, args);
    }
    let dims = Attribute::Ints(vec![n as i64, 4]);
    let attributes = [("shape", dims.clone()), ("global_shape", dims), ("stream", Attribute::Int(3))];
    let args = vec![Literal::scalar(DType::U64, 9.0), Literal::zeros(&TensorType::new(DType::I64, [2]))];
    add("random_bits", composite(&RANDOM_BITS, &attributes, &args), args);
    cases
}

fn graph_of(case: &Case) -> Graph {
    let (_, op, operands) = case;
    let mut builder = GraphBuilder::new("main");
    let inputs: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(i, l)| builder.input(&format!("x{i}"), l.ty.clone(), Role::Input))
        .collect();
    let outputs = builder.push(op.clone(), &inputs).unwrap_or_else(|e| panic!("{}: {e}", case.0));
    builder.finish(outputs)
}

/// Every way to give each axis to one splittable factor or to none, and, where a factor has several, every order.
fn assignments(rule: &Rule, mesh: &Mesh) -> Vec<Vec<AxisList>> {
    let mut all = vec![vec![AxisList::new(); rule.factors.len()]];
    for axis in 0..mesh.axes.len() {
        let mut next = Vec::new();
        for base in &all {
            next.push(base.clone());
            for (factor, f) in rule.factors.iter().enumerate() {
                if matches!(f.kind, FactorKind::Pass | FactorKind::Reduce(_)) {
                    for place in 0..=base[factor].len() {
                        let mut with = base.clone();
                        with[factor].insert(place, mesh.full_axis(axis));
                        next.push(with);
                    }
                }
            }
        }
        all = next;
    }
    all
}

fn check(case: &Case, mesh: &Mesh) -> usize {
    let graph = graph_of(case);
    let expected = evaluate(&graph, &case.2).unwrap_or_else(|e| panic!("{}: {e}", case.0));
    let node = &graph.nodes[0];
    let rule = node.op.rule(&graph.operand_types(node), &graph.result_types(node));
    let mut run = 0;
    for assignment in assignments(&rule, mesh) {
        let what = || format!("{} on {mesh} with {assignment:?}", case.0);
        let options = Options { fixed: BTreeMap::from([(0, assignment.clone())]), ..Options::default() };
        let partitioned = match partition(&graph, mesh, &options) {
            Ok(partitioned) => partitioned,
            // Strided pieces have no layout.
            Err(error) if error.code == "E218" => continue,
            Err(error) => panic!("{}: {error}", what()),
        };
        let actual =
            virtual_ranks::interpret(&partitioned, &case.2).unwrap_or_else(|e| panic!("{}: {e}", what()));
        for (a, e) in actual.iter().zip(&expected) {
            assert_eq!(a.ty, e.ty, "{}", what());
            for (x, y) in a.to_f64().iter().zip(e.to_f64()) {
                let close = (x - y).abs() <= 1e-9 * (1.0 + y.abs()) || x.to_bits() == y.to_bits();
                assert!(close, "{}: {x} instead of {y}\n{:?}\n{:?}", what(), a, e);
            }
        }
        run += 1;
    }
    run
}

#[test]
fn every_split_of_every_op_equals_one_device() {
    let meshes = [
        Mesh::new("m", &[("x", 2)]),
        Mesh::new("m", &[("x", 3)]),
        Mesh::new("m", &[("x", 4)]),
        Mesh::new("m", &[("x", 2), ("y", 2)]),
    ];
    let mut run = 0;
    for n in [4, 5, 2, 1] {
        for case in cases(n) {
            for mesh in &meshes {
                run += check(&case, mesh);
            }
        }
    }
    assert!(run > 1000, "only {run} splits were tried");
}
