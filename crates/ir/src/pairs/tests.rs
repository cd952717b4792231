//! A graph of pairs computes what the interpreter computes with complex numbers.

use super::{complex_as_pairs, has_complex};
use crate::complex::{self, Complex};
use crate::ops::{
    Binary, BinaryKind, Concatenate, Direction, DotGeneral, Fft, FftKind, Pad, Reverse, Slice, Special,
    SpecialKind, Unary, UnaryKind,
};
use crate::testing::{random, random_values};
use crate::{Graph, GraphBuilder, Literal, Role, TensorType, ValueId, evaluate, text, verify};
use partita_base::{DType, InertType};

const COMPLEX: DType = DType::Inert(InertType::Complex128);

/// Random complex numbers.
fn numbers(seed: u64, shape: &[usize]) -> Literal {
    let ty = TensorType::new(COMPLEX, shape);
    let parts = random(seed, &[ty.element_count(), 2]).to_f64();
    Literal::from_complex(&ty, parts.chunks(2).map(|pair| [pair[0], pair[1]]))
}

/// A complex literal as one of pairs: the same bytes.
fn pairs(value: &Literal) -> Literal {
    match value.ty.as_pairs() {
        Some(ty) => Literal::from_bytes(&ty, &value.bytes()).expect("the same bytes"),
        None => value.clone(),
    }
}

/// Compares a graph with the same one on pairs; the results.
fn compare(graph: &Graph, inputs: &[Literal], tolerance: f64) -> Vec<Literal> {
    let rewritten = complex_as_pairs(graph.clone()).unwrap_or_else(|error| panic!("{error}"));
    verify::verify(&rewritten).unwrap_or_else(|error| panic!("{error}\n{}", text::print(&rewritten)));
    verify::runnable(&rewritten).expect("no complex values");
    assert!(!has_complex(&rewritten));
    let expected = evaluate(graph, inputs).expect("the interpreter knows complex numbers");
    let given: Vec<Literal> = inputs.iter().map(pairs).collect();
    let found = evaluate(&rewritten, &given).expect("the graph evaluates");
    for (found, expected) in found.iter().zip(&expected) {
        let expected = pairs(expected);
        assert_eq!(found.ty, expected.ty);
        for (f, e) in found.to_f64().iter().zip(expected.to_f64()) {
            let is_near =
                (f - e).abs() <= tolerance * e.abs().max(1.0) || f == &e || f.is_nan() && e.is_nan();
            assert!(is_near, "{f} instead of {e}\n{}", text::print(graph));
        }
    }
    expected
}

/// A graph of one op over complex inputs.
fn single(op: impl Into<crate::Op>, inputs: &[Literal]) -> Graph {
    let mut b = GraphBuilder::new("single");
    let input =
        |b: &mut GraphBuilder, at: usize| b.input(&format!("x{at}"), inputs[at].ty.clone(), Role::Input);
    let operands: Vec<ValueId> = (0..inputs.len()).map(|at| input(&mut b, at)).collect();
    let results = b.push(op, &operands).unwrap();
    b.finish(results)
}

/// Numbers below others, which depend only on the seed.
struct Choices(std::vec::IntoIter<f64>);

impl Choices {
    fn below(&mut self, limit: usize) -> usize {
        let drawn = self.0.next().expect("enough numbers") / 2.0 + 0.5;
        (drawn * limit as f64) as usize % limit
    }
}

/// One more value of shape 3 x 4, of those before.
fn next(b: &mut GraphBuilder, random: &mut Choices, values: &[ValueId]) -> ValueId {
    let shape = [3, 4];
    let [x, y] = [0, 1].map(|_| values[random.below(values.len())]);
    let unary = [
        UnaryKind::Negate,
        UnaryKind::Square,
        UnaryKind::Sign,
        UnaryKind::Sine,
        UnaryKind::Cosine,
        UnaryKind::Tanh,
    ];
    let ones = || vec![1; 2];
    match random.below(16) {
        0 => b.add(x, y),
        1 => b.subtract(x, y),
        2 => b.multiply(x, y),
        3 => {
            let size = b.unary(UnaryKind::Abs, y).unwrap();
            let size = b.offset(size, 0.5).unwrap();
            let size = b.convert(size, COMPLEX).unwrap();
            b.divide(x, size)
        }
        4 => {
            let one =
                b.constant(Literal::from_complex(&TensorType::scalar(COMPLEX), [[2.5, -0.5]].into_iter()));
            let one = b.broadcast_scalar(one, &shape).unwrap();
            let size = b.unary(UnaryKind::Tanh, y).unwrap();
            let size = b.add(size, one).unwrap();
            b.divide(x, size)
        }
        5 | 6 => b.unary(unary[random.below(unary.len())], x),
        7 => b.push1(Special { kind: SpecialKind::Conj }, &[x]),
        8 => {
            let turned = b.reshape(x, &[2, 6]).unwrap();
            let turned = b.transpose(turned, &[1, 0]).unwrap();
            b.reshape(turned, &shape)
        }
        9 => {
            let dot =
                DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![1], ..DotGeneral::default() };
            let square = b.dot_general(x, y, dot).unwrap();
            let dot =
                DotGeneral { lhs_contracting: vec![0], rhs_contracting: vec![0], ..DotGeneral::default() };
            let product = b.dot_general(square, y, dot).unwrap();
            b.unary(UnaryKind::Tanh, product)
        }
        10 => {
            let part = Slice { start: vec![0, 1], limit: vec![3, 4], stride: ones() };
            let part = b.push1(part, &[x]).unwrap();
            let zero = b.scalar(COMPLEX, 0.0);
            b.push1(Pad { low: vec![0, 1], high: vec![0, 0], interior: vec![0, 0] }, &[part, zero])
        }
        11 => {
            let row = b.reduce_sum(x, &[0]).unwrap();
            let row = b.unary(UnaryKind::Tanh, row).unwrap();
            b.broadcast_in_dim(row, &shape, &[1])
        }
        12 => {
            let is_equal = b.compare([Direction::Eq, Direction::Ne][random.below(2)], x, y).unwrap();
            b.select(is_equal, x, y)
        }
        13 => {
            let (re, im) = (Special { kind: SpecialKind::Real }, Special { kind: SpecialKind::Imag });
            let (re, im) = (b.push1(re, &[x]).unwrap(), b.push1(im, &[y]).unwrap());
            b.push1(Special { kind: SpecialKind::Complex }, &[im, re])
        }
        14 => {
            let kind = [FftKind::Fft, FftKind::Ifft][random.below(2)];
            let fft = b.push1(Fft { kind, length: vec![3, 4][random.below(2)..].to_vec() }, &[x]).unwrap();
            b.unary(UnaryKind::Sign, fft)
        }
        _ => {
            let both = b.push1(Concatenate { dim: 0 }, &[x, y]).unwrap();
            let turned = b.push1(Reverse { dims: vec![0] }, &[both]).unwrap();
            b.push1(Slice { start: vec![1, 0], limit: vec![4, 4], stride: ones() }, &[turned])
        }
    }
    .unwrap()
}

#[test]
fn random_graphs_compute_the_same_on_pairs() {
    for seed in 0..150 {
        let mut random = Choices(random_values(seed + 7000, 100).into_iter());
        let mut b = GraphBuilder::new("random");
        let inputs = [
            numbers(seed, &[3, 4]),
            crate::testing::random(seed + 500, &[3, 4]),
            numbers(seed + 900, &[3, 4]),
        ];
        let mut values: Vec<ValueId> = (inputs.iter().enumerate())
            .map(|(at, value)| b.input(&format!("x{at}"), value.ty.clone(), Role::Input))
            .collect();
        values[1] = b.convert(values[1], COMPLEX).unwrap();
        for _ in 0..6 {
            let value = next(&mut b, &mut random, &values);
            values.push(value);
        }
        let last = values[values.len() - 1];
        let size = b.unary(UnaryKind::Abs, last).unwrap();
        let other = values[random.below(values.len())];
        compare(&b.finish(vec![last, size, other]), &inputs, 1e-9);
    }
}

#[test]
fn functions_compute_the_same_at_special_points() {
    let line = [0.0, -0.0, 1.0, -1.0, 1e-200, -1e200, 0.3];
    let points: Vec<Complex> = line.iter().flat_map(|&a| line.map(|b| [a, b])).collect();
    let ty = TensorType::new(COMPLEX, [points.len()]);
    let x = Literal::from_complex(&ty, points.iter().copied());
    for kind in [UnaryKind::Abs, UnaryKind::Negate, UnaryKind::Sign] {
        compare(&single(Unary { kind }, std::slice::from_ref(&x)), std::slice::from_ref(&x), 1e-14);
    }
    // Negative zeros choose a side of a branch cut, infinite sizes have no direction.
    let plain = points.iter().filter(|z| z.iter().all(|part| part.is_sign_positive() || *part != 0.0));
    let plain: Vec<Complex> = plain.filter(|z| z.iter().all(|part| part.abs() < 2.0)).copied().collect();
    let x = Literal::from_complex(&ty.with_shape([plain.len()]), plain.iter().copied());
    for kind in [UnaryKind::Sqrt, UnaryKind::Log, UnaryKind::Exponential, UnaryKind::Sine, UnaryKind::Tanh] {
        compare(&single(Unary { kind }, std::slice::from_ref(&x)), std::slice::from_ref(&x), 1e-14);
    }
    let y = Literal::from_complex(&x.ty, plain.iter().map(|z| [z[1] + 1.5, -z[0]]));
    let divide = Binary { kind: BinaryKind::Divide };
    compare(&single(divide.clone(), &[x.clone(), y.clone()]), &[x, y], 1e-14);
    let huge = Literal::from_complex(&ty.with_shape([2]), [[1e200, 1e-200], [-3e200, 4e200]].into_iter());
    compare(&single(divide, &[huge.clone(), huge.clone()]), &[huge.clone(), huge], 1e-14);
}

#[test]
fn transforms_are_the_sums_of_their_definition() {
    for length in [1, 2, 5, 8, 64, 66, 67, 96, 134, 130] {
        let x = numbers(7, &[2, length]);
        let naive = |row: &[Complex], k: usize| -> Complex {
            let turned = |(j, z): (usize, &Complex)| {
                let angle = -2.0 * std::f64::consts::PI * (j * k) as f64 / length as f64;
                complex::multiply(*z, [angle.cos(), angle.sin()])
            };
            row.iter().enumerate().map(turned).fold([0.0, 0.0], complex::add)
        };
        let fft = Fft { kind: FftKind::Fft, length: vec![length] };
        let found = compare(&single(fft, std::slice::from_ref(&x)), std::slice::from_ref(&x), 1e-11);
        let rows = x.to_complex();
        for (at, z) in found[0].to_complex().iter().enumerate() {
            let expected = naive(&rows[at / length * length..][..length], at % length);
            assert!((z[0] - expected[0]).abs() + (z[1] - expected[1]).abs() < 1e-9);
        }
    }
    for (shape, length) in [
        (vec![2, 5], vec![5]),
        (vec![2, 6], vec![6]),
        (vec![3, 4, 5], vec![4, 5]),
        (vec![2, 3, 4], vec![2, 3, 4]),
        (vec![2, 130], vec![130]),
        (vec![100, 3], vec![100, 3]),
        (vec![2, 0], vec![0]),
    ] {
        let x = numbers(3, &shape);
        for kind in [FftKind::Fft, FftKind::Ifft] {
            compare(
                &single(Fft { kind, length: length.clone() }, std::slice::from_ref(&x)),
                std::slice::from_ref(&x),
                1e-10,
            );
        }
        let real = random(4, &shape);
        let fft = Fft { kind: FftKind::Rfft, length: length.clone() };
        compare(&single(fft, std::slice::from_ref(&real)), std::slice::from_ref(&real), 1e-10);
        // Also where the half is no transform of real numbers.
        let mut half = shape.clone();
        let last = half.last_mut().unwrap();
        *last = if *last == 0 { 0 } else { *last / 2 + 1 };
        let half = numbers(5, &half);
        let fft = Fft { kind: FftKind::Irfft, length };
        compare(&single(fft, std::slice::from_ref(&half)), std::slice::from_ref(&half), 1e-10);
    }
}

#[test]
fn loops_carry_both_parts() {
    let graph = text::parse(
        r#"func.func public @main(%arg0: tensor<2xcomplex<f64>>, %arg1: tensor<i32>) -> (tensor<2xcomplex<f64>>, tensor<2xf64>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %z = %arg0, %n = %arg1) : tensor<i32>, tensor<2xcomplex<f64>>, tensor<i32>
  cond {
    %c = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %w = stablehlo.constant dense<[(0.5, 1.0), (1.0, 0.0)]> : tensor<2xcomplex<f64>>
    %p = stablehlo.multiply %z, %w : tensor<2xcomplex<f64>>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %p, %n : tensor<i32>, tensor<2xcomplex<f64>>, tensor<i32>
  }
  %1 = stablehlo.imag %0#1 : (tensor<2xcomplex<f64>>) -> tensor<2xf64>
  return %0#1, %1 : tensor<2xcomplex<f64>>, tensor<2xf64>
}"#,
    )
    .unwrap_or_else(|error| panic!("{error}"));
    compare(&graph, &[numbers(1, &[2]), Literal::scalar(DType::I32, 3.0)], 1e-12);
}

#[test]
fn an_op_without_a_counterpart_is_named() {
    let power = single(Binary { kind: BinaryKind::Power }, &[numbers(1, &[2]), numbers(2, &[2])]);
    let error = complex_as_pairs(power).unwrap_err();
    assert!(error.code == "E170" && error.message.contains("stablehlo.power"), "{error}");
    let prime = single(Fft { kind: FftKind::Fft, length: vec![2053] }, &[numbers(1, &[2053])]);
    assert_eq!(complex_as_pairs(prime).unwrap_err().code, "E170");
}

#[test]
fn layouts_names_and_aliases_stay() {
    let graph = text::parse(
        r#"module {
  sdy.mesh @mesh = <["dp"=2]>
  func.func public @main(%arg0: tensor<4xcomplex<f32>> {partita.name = "w", sdy.sharding = #sdy.sharding<@mesh, [{"dp"}]>, tf.aliasing_output = 0 : i32}) -> (tensor<4xcomplex<f32>> {jax.result_info = "result"}) {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xcomplex<f32>>
    return %0 : tensor<4xcomplex<f32>>
  }
}"#,
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let pairs = complex_as_pairs(graph.clone()).unwrap();
    verify::verify(&pairs).unwrap();
    let input = pairs.value(pairs.inputs[0]);
    assert_eq!(
        (input.ty.to_string().as_str(), &input.name),
        ("tensor<4x2xf32>", &graph.value(graph.inputs[0]).name)
    );
    let sharding = &input.annotation.as_ref().expect("its layout").sharding;
    assert_eq!((sharding.dims.len(), sharding.dims[0].axes.len(), sharding.dims[1].axes.len()), (2, 1, 0));
    assert_eq!((pairs.aliases, pairs.output_names), (graph.aliases, graph.output_names));
}
