//! Tests of mixed precision: which nodes compute in which type, and that gradients of parameters end in theirs.

use super::*;
use crate::composites::{ATTENTION, CROSS_ENTROPY, EMBEDDING, GELU, LAYER_NORM, SOFTMAX};
use crate::graph::{Phase, Role};
use crate::{autodiff, evaluate};
use partita_base::DType::{BF16, F16, F32, F64};

const EPSILON: (&str, Attribute) = ("epsilon", Attribute::Float(1e-5));

/// A token model with one block: embedding, norm, attention, GELU, residual sum, softmax in the middle, head, loss.
fn model(dtype: DType) -> Graph {
    let mut b = GraphBuilder::new("model");
    let tokens = b.input("tokens", TensorType::new(DType::I32, [2, 4]), Role::Input);
    let labels = b.input("labels", TensorType::new(DType::I32, [2, 4]), Role::Input);
    let param = |b: &mut GraphBuilder, name: &str, shape: &[usize]| {
        b.input(name, TensorType::new(dtype, shape), Role::Param)
    };
    let table = param(&mut b, "table", &[7, 6]);
    let [scale, shift] = ["scale", "shift"].map(|name| param(&mut b, name, &[6]));
    let w = param(&mut b, "w", &[6, 6]);
    let x = b.composite(&EMBEDDING, &[], &[table, tokens]).unwrap();
    let n = b.composite(&LAYER_NORM, &[EPSILON], &[x, scale, shift]).unwrap();
    let dims = DotGeneral { lhs_contracting: vec![2], rhs_contracting: vec![0], ..DotGeneral::default() };
    let h = b.dot_general(n, w, dims.clone()).unwrap();
    let heads = b.reshape(h, &[2, 1, 4, 6]).unwrap();
    let attributes = [("causal", Attribute::Bool(true)), ("scale", Attribute::Float(0.5))];
    let a = b.composite(&ATTENTION, &attributes, &[heads, heads, heads]).unwrap();
    let a = b.reshape(a, &[2, 4, 6]).unwrap();
    let a = b.composite(&GELU, &[], &[a]).unwrap();
    let r = b.add(x, a).unwrap();
    let n = b.composite(&LAYER_NORM, &[EPSILON], &[r, scale, shift]).unwrap();
    let s = b.composite(&SOFTMAX, &[], &[n]).unwrap();
    let head = DotGeneral { rhs_contracting: vec![1], ..dims };
    let logits = b.dot_general(s, table, head).unwrap();
    let loss =
        b.composite(&CROSS_ENTROPY, &[("ignore_index", Attribute::Int(-1))], &[logits, labels]).unwrap();
    let loss = b.reduce_sum(loss, &[0, 1]).unwrap();
    b.finish_named(vec![("loss".into(), loss), ("logits".into(), logits)])
}

/// The ops of a graph with the types of their results, without conversions.
fn computed(graph: &Graph) -> Vec<(String, DType)> {
    let nodes = graph.nodes.iter().filter(|node| !matches!(node.op, Op::Convert(_) | Op::Constant(_)));
    nodes.map(|node| (node.op.short_name().to_string(), graph.ty(node.results[0]).dtype)).collect()
}

#[test]
fn products_and_what_reads_them_are_narrow_and_the_loss_is_not() {
    for narrow in [BF16, F16] {
        let graph = mixed(&model(F32), narrow, &|_| false).unwrap();
        crate::verify::verify(&graph).unwrap();
        let types: Vec<(String, DType)> = computed(&graph);
        let expected = [
            ("embedding", F32),
            ("layer_norm", F32),
            ("dot_general", narrow),
            ("reshape", narrow),
            ("attention", narrow),
            ("reshape", narrow),
            ("gelu", narrow),
            ("add", narrow),
            ("layer_norm", narrow),
            ("softmax", narrow),
            ("dot_general", narrow),
            ("cross_entropy", F32),
            ("reduce", F32),
        ];
        assert_eq!(types, expected.map(|(name, ty)| (name.to_string(), ty)));
        // Inputs and outputs have the types that they had.
        let before = model(F32);
        let types =
            |graph: &Graph, of: &[ValueId]| of.iter().map(|&v| graph.ty(v).clone()).collect::<Vec<_>>();
        assert_eq!(types(&graph, &graph.inputs), types(&before, &before.inputs));
        assert_eq!(types(&graph, &graph.outputs), types(&before, &before.outputs));
    }
}

#[test]
fn a_module_that_is_kept_computes_in_its_own_type() {
    let graph = mixed(&model(F32), BF16, &|node| node.op.short_name() == "attention").unwrap();
    assert!(computed(&graph).contains(&("attention".to_string(), F32)));
    assert!(mixed(&model(F32), BF16, &|_| true).unwrap() == graph_edit::prune(model(F32)));
    // A model in the narrow type already has nothing to convert.
    let graph = mixed(&model(BF16), BF16, &|_| false).unwrap();
    assert!(computed(&graph).iter().all(|(_, ty)| *ty == BF16));
}

#[test]
fn gradients_of_parameters_have_the_parameters_types_and_no_narrow_sum_but_that_of_norms() {
    let forward = mixed(&model(F64), BF16, &|_| false).unwrap();
    let params = forward.params();
    let loss = forward.outputs[0];
    let mut b = GraphBuilder::from_graph(forward.clone());
    b.phase = Phase::InputGrad;
    let one = b.scalar(F64, 1.0);
    let gradients = autodiff::backward(&mut b, &[(loss, one)], &params).unwrap();
    let outputs = gradients.into_iter().map(|gradient| ("grad".to_string(), gradient.unwrap())).collect();
    let graph = widen_sums(&graph_edit::prune(b.finish_named(outputs))).unwrap();
    crate::verify::verify(&graph).unwrap();
    assert!(graph.outputs.iter().all(|&v| graph.ty(v).dtype == F64));
    let products = graph
        .nodes
        .iter()
        .filter(|node| matches!(node.op, Op::DotGeneral(_)) && node.phase == Phase::WeightGrad);
    let types: Vec<DType> = products.map(|node| graph.ty(node.results[0]).dtype).collect();
    assert_eq!(types, [F64, F64]);
}

/// Rounding to 8 bits moves a value by at most 2^-9 of itself; the model rounds some tens of times.
#[test]
fn the_loss_moves_by_roundings_of_the_narrow_type() {
    let value = |graph: &Graph, name: usize| {
        let inputs: Vec<Literal> = graph
            .inputs
            .iter()
            .enumerate()
            .map(|(number, &input)| {
                let ty = graph.ty(input);
                let wave = |i: usize| ((i * 7 + number * 3) as f64 * 0.7).sin();
                match ty.dtype.is_float() {
                    true => Literal::from_f64(ty, (0..ty.element_count()).map(wave)),
                    false => Literal::from_i128(ty, (0..ty.element_count()).map(|i| (i % 7) as i128)),
                }
            })
            .collect();
        evaluate(graph, &inputs).unwrap()[name].to_f64()
    };
    let exact = value(&model(F64), 0)[0];
    let in_bf16 = value(&mixed(&model(F32), BF16, &|_| false).unwrap(), 0)[0];
    let in_f16 = value(&mixed(&model(F32), F16, &|_| false).unwrap(), 0)[0];
    let error = |loss: f64| (loss - exact).abs() / exact.abs();
    assert!(error(in_bf16) > 0.0 && error(in_bf16) < 2f64.powi(-6), "{in_bf16} {exact}");
    assert!(error(in_f16) > 0.0 && error(in_f16) < 2f64.powi(-9), "{in_f16} {exact}");
}
