//! Hand-written gradients against those of the decompositions.

use super::*;
use crate::autodiff;
use crate::composite::Attributes;
use crate::graph::{Phase, Role};
use crate::interpret::evaluate;
use crate::ops::{Direction, GROUPS, TopK};
use crate::testing::{check_gradient, random};

/// Templates with a hand-written gradient, and operands for them.
fn cases() -> Vec<(&'static Template, Attributes, Vec<Literal>)> {
    let by_tanh = |tanh| Attributes::from_iter([("tanh".to_string(), Attribute::Bool(tanh))]);
    let line = Literal::new([401], (-200..=200).map(|i| f64::from(i) * 0.1).collect::<Vec<f64>>());
    // Shares of one group, of two and of none; no row has any of group 2.
    let own = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, -2.0], [0.0; 4], [0.0, 1.0, 0.0, 0.0]];
    let own = Literal::new([2, 2, 4], own.concat());
    let rows = vec![random(1, &[2, 2, 3]), random(2, &[4, 5, 3]), own.clone()];
    let cotangents = vec![random(1, &[2, 2, 5]), random(2, &[4, 5, 3]), own];
    let transposed = Attributes::from_iter([(TRANSPOSED.to_string(), Attribute::Bool(true))]);
    vec![
        (&GELU, by_tanh(true), vec![line.clone()]),
        (&GELU, by_tanh(false), vec![line]),
        (&GROUPED_MATMUL, Attributes::new(), rows),
        (&GROUPED_MATMUL, transposed, cotangents),
    ]
}

/// A graph of one composite.
fn applied(composite: &Composite, operands: &[TensorType]) -> crate::Graph {
    let mut b = GraphBuilder::new("applied");
    let inputs: Vec<ValueId> = operands.iter().map(|ty| b.input("", ty.clone(), Role::Activation)).collect();
    let results = b.push(composite.clone(), &inputs).unwrap();
    b.finish(results)
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
        let written = autodiff::vjp(&applied(&composite, &types), &[0], &wanted).unwrap();
        let derived = autodiff::vjp(graph, &[0], &wanted).unwrap();
        let mut inputs = operands.clone();
        inputs.push(random(5, &graph.ty(graph.outputs[0]).shape));
        let of = |graph: &crate::Graph| evaluate(graph, &inputs).unwrap();
        for (written, derived) in of(&written).iter().zip(&of(&derived)) {
            for (element, (w, d)) in written.to_f64().iter().zip(derived.to_f64()).enumerate() {
                assert!((w - d).abs() <= 1e-12, "{} at {element}: {w}, not {d}", template.name);
            }
        }
        check_gradient(composite, operands, &vec![true; types.len()]);
    }
}

/// The gradients of a grouped matmul are two nodes of their own phases, and a choice, which comes from integers, gets none.
#[test]
fn rows_and_matrices_of_groups_have_gradients_of_their_own() {
    let mut b = GraphBuilder::new("experts");
    let float = |shape: &[usize]| TensorType::new(DType::F64, shape);
    let x = b.input("x", float(&[6, 3]), Role::Activation);
    let scores = b.input("scores", float(&[6, 4]), Role::Param);
    let weight = b.input("weight", float(&[4, 5, 3]), Role::Param);
    let x2 = b.multiply(x, x).unwrap();
    let best = b.push(TopK { k: 1 }, &[scores]).unwrap()[1];
    let best = b.broadcast_in_dim(best, &[6, 4], &[0, 1]).unwrap();
    let number = b.iota(TensorType::new(DType::I32, [6, 4]), 1).unwrap();
    let own = b.compare(Direction::Eq, best, number).unwrap();
    let own = b.convert(own, DType::F64).unwrap();
    let groups = [(GROUPS, Attribute::Int(4))];
    let y = b.composite(&GROUPED_MATMUL, &groups, &[x2, weight, own]).unwrap();
    let seed = b.full_like(y, 1.0).unwrap();
    let gradients = autodiff::backward(&mut b, &[(y, seed)], &[x, scores, weight]).unwrap();
    assert!(gradients[1].is_none() && gradients[0].is_some() && gradients[2].is_some());
    let graph = b.finish(gradients.into_iter().flatten().collect());
    let found: Vec<(&str, Phase, bool)> = graph
        .nodes
        .iter()
        .filter_map(|node| Some((node.phase, node.op.composite()?)))
        .map(|(phase, own)| (own.definition.name.as_str(), phase, own.attributes.flag(TRANSPOSED)))
        .collect();
    let expected = [
        (GROUPED_MATMUL.name, Phase::Forward, false),
        (GROUPED_MATMUL.name, Phase::InputGrad, true),
        (GROUPED_OUTER.name, Phase::WeightGrad, false),
    ];
    assert_eq!(found, expected);
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
