//! What the tests of ops share: numbers, gradients against finite differences, rules against shards.

use crate::builder::GraphBuilder;
use crate::graph::{Graph, Role};
use crate::interpret::evaluate;
use crate::literal::Literal;
use crate::op::{GradientContext, Op, Operation};
use crate::types::TensorType;
use partita_base::DType;

/// Numbers in (-1, 1) that depend on nothing but the seed.
pub(crate) fn random_values(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

/// An f64 tensor of numbers in (-1, 1).
pub(crate) fn random(seed: u64, shape: &[usize]) -> Literal {
    let ty = TensorType::new(DType::F64, shape);
    let values = random_values(seed, ty.element_count());
    Literal::from_f64(&ty, values.into_iter())
}

/// The op applied to these operands, types inferred.
pub(crate) fn apply(op: impl Into<Op>, inputs: &[Literal]) -> Vec<Literal> {
    let op = op.into();
    let types: Vec<&TensorType> = inputs.iter().map(|input| &input.ty).collect();
    let results = op.infer(&types).expect("the operands fit the op");
    let values = op.evaluate(&inputs.iter().collect::<Vec<_>>(), &results).expect("the op evaluates");
    assert_eq!(values.iter().map(|v| v.ty.clone()).collect::<Vec<_>>(), results, "{}", op.name());
    values
}

/// The op on fresh inputs of the types of `inputs`, and nothing else.
fn forward(op: &Op, inputs: &[Literal]) -> Graph {
    let mut builder = GraphBuilder::new("forward");
    let operands: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(i, input)| builder.input(&format!("x{i}"), input.ty.clone(), Role::Input))
        .collect();
    let results = builder.push(op.clone(), &operands).expect("the operands fit the op");
    builder.finish(results)
}

/// Compares the op's gradient with central differences of a randomly weighted sum of its float results.
/// Wanted operands must be f64; a gradient of `None` counts as zero; unwanted operands must get none.
pub(crate) fn check_gradient(op: impl Into<Op>, inputs: Vec<Literal>, wanted: &[bool]) {
    let op = op.into();
    let plain = forward(&op, &inputs);
    let weights: Vec<Option<Literal>> = plain
        .outputs
        .iter()
        .enumerate()
        .map(|(i, &v)| {
            let ty = plain.ty(v);
            let values = random_values(977 + i as u64, ty.element_count());
            ty.dtype.is_float().then(|| Literal::from_f64(ty, values.into_iter()))
        })
        .collect();

    let operands = plain.inputs.clone();
    let results = plain.outputs.clone();
    let mut builder = GraphBuilder::from_graph(plain.clone());
    let cotangents: Vec<_> = weights.iter().map(|w| w.clone().map(|w| builder.constant(w))).collect();
    let gradients = op
        .gradient(&mut GradientContext {
            builder: &mut builder,
            operands: &operands,
            results: &results,
            cotangents: &cotangents,
            wanted,
        })
        .expect("the op has a gradient");
    assert_eq!(gradients.len(), inputs.len(), "one cotangent per operand of {}", op.name());
    for (number, gradient) in gradients.iter().enumerate() {
        assert!(wanted[number] || gradient.is_none(), "{} answers for unwanted operand {number}", op.name());
    }
    let found: Vec<_> = gradients.iter().flatten().copied().collect();
    let mut values = evaluate(&builder.finish(found), &inputs).expect("the gradient evaluates").into_iter();

    let weighted_sum = |inputs: &[Literal]| -> f64 {
        let outputs = evaluate(&plain, inputs).expect("the op evaluates");
        let dot = |(y, w): (&Literal, &Literal)| -> f64 {
            y.to_f64().iter().zip(w.to_f64()).map(|(y, w)| y * w).sum()
        };
        outputs.iter().zip(&weights).filter_map(|(y, w)| Some((y, w.as_ref()?))).map(dot).sum()
    };
    for (number, gradient) in gradients.iter().enumerate().filter(|&(number, _)| wanted[number]) {
        let input = &inputs[number];
        assert_eq!(input.ty.dtype, DType::F64, "finite differences are taken in f64");
        let analytic = match gradient {
            Some(_) => values.next().expect("one value per gradient"),
            None => Literal::zeros(&input.ty),
        };
        assert_eq!(analytic.ty, input.ty, "cotangent of operand {number} of {}", op.name());
        let (point, analytic) = (input.to_f64(), analytic.to_f64());
        for element in 0..point.len() {
            let step = 1e-5 * point[element].abs().max(1.0);
            let shifted = |delta: f64| {
                let mut moved = point.clone();
                moved[element] += delta;
                let mut inputs = inputs.clone();
                inputs[number] = Literal::from_f64(&input.ty, moved.into_iter());
                weighted_sum(&inputs)
            };
            let numeric = (shifted(step) - shifted(-step)) / (2.0 * step);
            let error = (numeric - analytic[element]).abs();
            assert!(
                error <= 2e-6 * numeric.abs().max(1.0),
                "{}: operand {number}, element {element}: gradient {}, finite difference {numeric}",
                op.name(),
                analytic[element],
            );
        }
    }
}
