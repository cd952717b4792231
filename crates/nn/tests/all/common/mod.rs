//! Common helpers of the tests: running graphs by input and output names.

use indexmap::IndexMap;
use partita_base::DType;
use partita_ir::{Graph, Literal, TensorType, evaluate};
use partita_nn::{Model, gradient_graph};

pub type Values = IndexMap<String, Literal>;

/// Evaluates a graph on named inputs; names that the graph lacks are ignored.
pub fn run(graph: &Graph, inputs: &Values) -> Values {
    let feed: Vec<Literal> = graph
        .inputs
        .iter()
        .map(|&v| {
            let name = &graph.value(v).name;
            inputs.get(name).unwrap_or_else(|| panic!("no input `{name}`")).clone()
        })
        .collect();
    let outputs = evaluate(graph, &feed).expect("the graph evaluates");
    graph.output_names.iter().cloned().zip(outputs).collect()
}

pub fn f64s(shape: &[usize], values: &[f64]) -> Literal {
    Literal::new(shape, values.to_vec())
}

pub fn i32s(shape: &[usize], values: &[i32]) -> Literal {
    Literal::new(shape, values.to_vec())
}

pub fn scalar(dtype: DType, value: f64) -> Literal {
    Literal::scalar(dtype, value)
}

/// Numbers in (-1, 1), from a linear congruential generator.
pub fn noise(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
    let mut draw = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    for _ in 0..4 {
        draw();
    }
    (0..count).map(|_| draw()).collect()
}

/// Integers in `0..limit` as an i32 tensor.
pub fn integers(seed: u64, shape: &[usize], limit: usize) -> Literal {
    let count = shape.iter().product();
    let draw = |x: f64| (((x + 1.0) / 2.0 * limit as f64) as i32).min(limit as i32 - 1);
    Literal::new(shape, noise(seed, count).into_iter().map(draw).collect::<Vec<i32>>())
}

/// Initial parameters with added noise of this size, so that no gradient is small.
pub fn parameters(model: &Model, size: f64) -> Values {
    let moved = |(index, (name, literal)): (usize, (String, Literal))| {
        let noise = noise(100 + index as u64, literal.ty.element_count());
        let values = literal.to_f64().into_iter().zip(noise).map(|(v, n)| v + size * n);
        (name, Literal::from_f64(&literal.ty.clone(), values))
    };
    model.initial(7).unwrap().into_iter().enumerate().map(moved).collect()
}

/// A value with one element changed by `delta`.
pub fn nudged(literal: &Literal, element: usize, delta: f64) -> Literal {
    let mut values = literal.to_f64();
    values[element] += delta;
    Literal::from_f64(&literal.ty, values.into_iter())
}

pub fn single(values: &Values, name: &str) -> f64 {
    values[name].to_f64()[0]
}

pub fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance * e.abs().max(1.0), "{what}[{i}]: {f}, expected {e}");
    }
}

pub fn zeros(ty: &TensorType) -> Literal {
    Literal::zeros(ty)
}

/// Compares the gradient of a few elements of every parameter with central differences of the loss.
pub fn check_gradients(model: &Model, values: &Values) {
    let outputs = run(&gradient_graph(&model.forward).unwrap(), values);
    for (index, (name, spec)) in model.params.iter().enumerate() {
        let gradient = outputs[&format!("grad.{name}")].to_f64();
        let count = spec.ty.element_count();
        for element in [0, (index * 7 + 3) % count] {
            let loss = |delta: f64| {
                let mut moved = values.clone();
                moved.insert(name.clone(), nudged(&values[name], element, delta));
                single(&run(&model.forward, &moved), "loss")
            };
            let step = 1e-5;
            let numeric = (loss(step) - loss(-step)) / (2.0 * step);
            let error = (gradient[element] - numeric).abs();
            assert!(error < 1e-7, "{name}[{element}]: gradient {}, difference {numeric}", gradient[element]);
        }
    }
}
