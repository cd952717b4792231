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
    for template in ALL.iter().filter(|template| template.gradient.is_some()) {
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
