//! Tests of the builder: foreign values and rejected calls.

use super::*;
use crate::Attribute;
use crate::composites::{ALL, CROSS_ENTROPY, EMBEDDING, LAYER_NORM, SOFTMAX};
use crate::custom::CustomOp;
use crate::verify::verify;

fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    result.unwrap_err().code
}

#[test]
fn a_value_of_another_builder_is_refused_by_every_call() {
    let mut other = GraphBuilder::new("other");
    let foreign = other.input("y", f32s(&[3]), Role::Input);
    let mut b = GraphBuilder::new("mine");
    b.path = "layers.0".to_string();
    let x = b.input("x", f32s(&[3]), Role::Input);
    assert_eq!(x, foreign, "the index is the same");
    let error = b.add(x, foreign).unwrap_err();
    assert_eq!((error.code, error.at.as_deref()), ("E160", Some("layers.0")));
    assert_eq!(error.expected.as_deref(), Some("one of the 1 values of `mine`"));
    assert_eq!(code(b.composite(&SOFTMAX, &[], &[foreign])), "E160");
    assert_eq!(code(b.concatenate(&[x, foreign], 0)), "E160");
    assert_eq!(code(b.slice_dim(foreign, 0, 0, 1)), "E160");
    assert_eq!(code(b.inline(&other.clone().finish(vec![foreign]), &[foreign], true)), "E160");
    let op = CustomOp::new("mine.negate", &["x"], |b, v| Ok(vec![b.negate(v[0])?]));
    assert_eq!(code(op.apply(&mut b, &[foreign])), "E160");
    // A custom op that reads a value from outside of it.
    let outside = CustomOp::new("mine.sum", &["x"], move |b, v| Ok(vec![b.add(v[0], foreign)?]));
    assert_eq!(code(outside.apply(&mut b, &[x])), "E160");
    let outside = CustomOp::new("mine.other", &["x"], move |_, _| Ok(vec![foreign]));
    assert_eq!(code(outside.apply(&mut b, &[x])), "E160");
    assert_eq!(code(b.clone().finish_checked(vec![("y".into(), foreign)])), "E160");
    // None of this changed anything.
    let sum = b.add(x, x).unwrap();
    verify(&b.finish_checked(vec![("sum".into(), sum)]).unwrap()).unwrap();
}

#[test]
fn a_call_that_cannot_report_a_mistake_leaves_it_to_the_next() {
    let mut other = GraphBuilder::new("other");
    let foreign = other.input("y", f32s(&[3]), Role::Input);
    let mut b = GraphBuilder::new("mine");
    let x = b.input("x", f32s(&[2]), Role::Input);
    assert_eq!(b.shape(foreign), Vec::<usize>::new());
    assert_eq!(code(b.negate(x)), "E160");
    assert_eq!(code(b.finish_checked(vec![("x".into(), x)])), "E160");
}

#[test]
fn a_graph_that_goes_on_takes_the_values_it_had() {
    let mut b = GraphBuilder::new("first");
    let x = b.input("x", f32s(&[2]), Role::Input);
    let y = b.negate(x).unwrap();
    let mut on = GraphBuilder::from_graph(b.finish(vec![y]));
    let z = on.add(x, y).unwrap();
    assert_eq!(code(on.add(z, ValueId::new(9))), "E160", "but none that are not there");
    verify(&on.finish(vec![z])).unwrap();
}

#[test]
fn wrong_dimensions_ranks_and_types_are_refused() {
    let mut b = GraphBuilder::new("b");
    let x = b.input("x", f32s(&[2, 3]), Role::Input);
    let (scalar, flat) = (b.scalar(DType::F32, 1.0), b.input("v", f32s(&[3]), Role::Input));
    let ids = b.input("ids", TensorType::new(DType::I32, [2]), Role::Input);
    assert_eq!(code(b.slice_dim(x, 2, 0, 1)), "E105");
    assert_eq!(code(b.slice_dim(scalar, 0, 0, 1)), "E105");
    assert_eq!(code(b.slice_dim(x, 1, 2, 1)), "E106");
    assert_eq!(code(b.transpose(x, &[0])), "E105");
    assert_eq!(code(b.transpose(x, &[0, 0])), "E105");
    assert_eq!(code(b.reduce_sum(x, &[2])), "E105");
    assert_eq!(code(b.concatenate(&[], 0)), "E101");
    assert_eq!(code(b.concatenate(&[x], 2)), "E105");
    assert_eq!(code(b.iota(f32s(&[2]), 1)), "E105");
    assert_eq!(code(b.broadcast_trailing(x, &[3])), "E105");
    assert_eq!(code(b.linear(x, flat)), "E105");
    assert_eq!(code(b.linear(scalar, x)), "E105");
    let epsilon = [("epsilon", Attribute::Float(1e-5))];
    assert_eq!(code(b.composite(&SOFTMAX, &[], &[scalar])), "E104");
    assert_eq!(code(b.composite(&LAYER_NORM, &epsilon, &[scalar])), "E104");
    assert_eq!(code(b.composite(&EMBEDDING, &[], &[flat, ids])), "E104");
    let ignored = [("ignore_index", Attribute::Int(-100))];
    assert_eq!(code(b.composite(&CROSS_ENTROPY, &ignored, &[scalar, ids])), "E104");
    let labels = b.input("labels", f32s(&[2]), Role::Input);
    assert_eq!(code(b.composite(&CROSS_ENTROPY, &ignored, &[x, labels])), "E103");
    assert_eq!(code(b.composite(&EMBEDDING, &[], &[x, labels])), "E103");
}

/// Numbers from 0 to below `n`, always the same: an xorshift generator (Marsaglia).
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn list(&mut self, below: usize) -> Vec<usize> {
        (0..self.below(4)).map(|_| self.below(below)).collect()
    }
}

#[test]
fn no_call_panics_whatever_it_is_given() {
    let mut draw = Draw(7);
    let (mut built, mut refused) = (0, 0);
    for _ in 0..300 {
        let mut other = GraphBuilder::new("other");
        let foreign = other.input("y", f32s(&[2]), Role::Input);
        let mut b = GraphBuilder::new("mine");
        let types = [DType::F32, DType::I32, DType::Bool, DType::U64, DType::F64];
        let mut values: Vec<ValueId> = (0..6)
            .map(|number| {
                let ty = TensorType::new(types[draw.below(5).min(draw.below(5))], draw.list(4));
                b.input(&format!("x{number}"), ty, Role::Input)
            })
            .collect();
        values.extend([foreign, ValueId::new(1000)]);
        for _ in 0..60 {
            let mut v = || values[draw.below(values.len())];
            let (x, y, z, w) = (v(), v(), v(), v());
            let dims = DotGeneral {
                lhs_batch: draw.list(3),
                rhs_batch: draw.list(3),
                lhs_contracting: draw.list(3),
                rhs_contracting: draw.list(3),
                result_dtype: None,
            };
            let (dim, low, high) = (draw.below(4), draw.below(4), draw.below(5));
            let (list, shape) = (draw.list(4), draw.list(4));
            let template = ALL[draw.below(ALL.len())];
            let attributes = [
                ("epsilon", Attribute::Float(1e-5)),
                ("scale", Attribute::Float(1.0)),
                ("causal", Attribute::Bool(low > 1)),
                ("rate", Attribute::Float(0.5)),
                ("stream", Attribute::Int(1)),
                ("ignore_index", Attribute::Int(-1)),
            ];
            let some = [x, y, z, w];
            let result = match draw.below(18) {
                0 => b.add(x, y),
                1 => b.select(x, y, z),
                2 => b.convert(x, DType::F32),
                3 => b.stop_gradient(x),
                4 => b.broadcast_in_dim(x, &shape, &list),
                5 => b.broadcast_trailing(x, &shape),
                6 => b.reshape(x, &shape),
                7 => b.transpose(x, &list),
                8 => b.slice_dim(x, dim, low, high),
                9 => b.concatenate(&some[..low], dim),
                10 => b.dot_general(x, y, dims),
                11 => b.linear(x, y),
                12 => b.reduce(Combiner::Max, x, &list),
                13 => b.iota(f32s(&shape), dim),
                14 => b.full_like(x, 2.0),
                15 => b.unary(UnaryKind::Exponential, x),
                16 => b.compare(Direction::Lt, x, y),
                _ => b.composite(template, &attributes, &some[..1 + low % 4]),
            };
            match result {
                Ok(value) => {
                    values.push(value);
                    built += 1;
                }
                // `full_like` or another method received a foreign value: all later calls are
                // rejected.
                Err(_) if b.check(&[]).is_err() => break,
                Err(_) => refused += 1,
            }
        }
        verify(b.graph()).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(built > 1000 && refused > 1000, "{built} built, {refused} refused");
}
