//! Hand-written gradients against those of the decompositions.

use super::*;
use crate::autodiff;
use crate::composite::Attributes;
use crate::interpret::evaluate;
use crate::testing::{check_gradient, random};

/// Templates with a hand-written gradient, and operands for them.
fn cases() -> Vec<(&'static Template, Attributes, Vec<Literal>)> {
    let by_tanh = |tanh| Attributes::from_iter([("tanh".to_string(), Attribute::Bool(tanh))]);
    let line = Literal::new([401], (-200..=200).map(|i| f64::from(i) * 0.1).collect::<Vec<f64>>());
    vec![(&GELU, by_tanh(true), vec![line.clone()]), (&GELU, by_tanh(false), vec![line])]
}

#[test]
fn gradients_that_are_written_out_are_those_of_the_decomposition() {
    // Rounding passes gradients on as they are, whatever the derivative of its steps.
    let is_written = |template: &&&Template| template.gradient.is_some() && template.name != QUANTISE.name;
    for template in ALL.iter().filter(is_written) {
        assert!(cases().iter().any(|(case, ..)| case.name == template.name), "{} has no case", template.name);
    }
    for (template, attributes, operands) in cases() {
        let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty.clone()).collect();
        let composite = Composite::new(template, attributes.clone(), &types).unwrap();
        let graph = &composite.definition.decomposition;
        let wanted: Vec<usize> = (0..operands.len()).collect();
        let written = composite.definition.vjp(&attributes, &[0], &wanted).unwrap();
        let derived = autodiff::vjp(graph, &[0], &wanted).unwrap();
        let mut inputs = operands.clone();
        inputs.push(random(5, &graph.ty(graph.outputs[0]).shape));
        let of = |graph: &crate::Graph| evaluate(graph, &inputs).unwrap();
        for (written, derived) in of(&written.decomposition).iter().zip(&of(&derived)) {
            for (element, (w, d)) in written.to_f64().iter().zip(derived.to_f64()).enumerate() {
                assert!((w - d).abs() <= 1e-12, "{} at {element}: {w}, not {d}", template.name);
            }
        }
        check_gradient(composite, operands, &vec![true; types.len()]);
    }
}

/// Windows and documents, as PyTorch computes them with the masks of Transformers (`tests/attention/make.py`).
#[test]
fn masked_attention_is_that_of_pytorch() {
    let numbers = |number: usize, shape: [usize; 4]| {
        let count = shape.iter().product::<usize>();
        Literal::new(shape, (0..count).map(|i| (0.37 * i as f64 + number as f64).cos()).collect::<Vec<f64>>())
    };
    let (queries, keys) = ([2, 4, 6, 3], [2, 2, 6, 3]);
    let operands = [numbers(0, queries), numbers(1, keys), numbers(2, keys)];
    let documents: [&[std::ops::Range<i32>]; 2] = [&[0..3, 3..6], &[0..1, 1..5, 5..6]];
    let limits =
        documents.iter().flat_map(|row| (0..6).map(|at| row.iter().find(|own| own.contains(&at)).unwrap()));
    let limits = limits.flat_map(|own| [own.start, own.end]).collect::<Vec<i32>>();
    let limits = Literal::new([2, 6, 2], limits);
    let recorded = include_str!("../../../../tests/attention/recorded.txt");
    let cases = [
        ("window", true, Some(3), false),
        ("documents", true, None, true),
        ("both", true, Some(2), true),
        ("documents_of_an_encoder", false, None, true),
    ];
    for (case, causal, window, is_limited) in cases {
        let mut attributes = Attributes::from_iter([
            ("causal".to_string(), Attribute::Bool(causal)),
            ("scale".to_string(), Attribute::Float(0.7)),
        ]);
        attributes.extend(window.map(|window| ("window".to_string(), Attribute::Int(window))));
        let mut operands = operands.to_vec();
        operands.extend(is_limited.then(|| limits.clone()));
        let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty.clone()).collect();
        let composite = Composite::new(&ATTENTION, attributes.clone(), &types).unwrap();
        let gradient = composite.definition.vjp(&attributes, &[0], &[0, 1, 2]).unwrap();
        let mut found = evaluate(&composite.definition.decomposition, &operands).unwrap();
        operands.push(numbers(3, queries));
        found.extend(evaluate(&gradient.decomposition, &operands).unwrap());
        for (tensor, found) in ["out", "dq", "dk", "dv"].into_iter().zip(found) {
            let line = recorded.lines().find_map(|line| line.strip_prefix(&format!("{case} {tensor} ")));
            let expected: Vec<f64> =
                line.expect("it is recorded").split(' ').map(|number| number.parse().unwrap()).collect();
            assert_eq!(found.to_f64().len(), expected.len());
            for (at, (found, expected)) in found.to_f64().into_iter().zip(expected).enumerate() {
                assert!((found - expected).abs() < 1e-12, "{case} {tensor} {at}: {found}, not {expected}");
            }
        }
    }
}
