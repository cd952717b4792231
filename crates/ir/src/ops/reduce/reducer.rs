//! Reducers: combiners, general bodies, and folding with them.

use crate::builder::GraphBuilder;
use crate::complex::Complex;
use crate::graph::{Graph, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::Op;
use crate::ops::checks::element_type;
use crate::ops::{Binary, BinaryKind};
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;

/// The combining function of a reduction.
#[derive(Clone, PartialEq, Debug)]
pub enum Reducer {
    /// A known associative combiner (Sum, Max, Min, Prod, And, Or).
    Combiner(Combiner),
    /// A general body: a graph from (accumulators.., elements..) scalars to accumulators.
    Body(Box<Graph>),
}

/// The elementwise function that combines two values.
pub fn combining_op(combiner: Combiner) -> BinaryKind {
    match combiner {
        Combiner::Sum => BinaryKind::Add,
        Combiner::Max => BinaryKind::Maximum,
        Combiner::Min => BinaryKind::Minimum,
        Combiner::Prod => BinaryKind::Multiply,
        Combiner::And => BinaryKind::And,
        Combiner::Or => BinaryKind::Or,
    }
}

impl Reducer {
    /// The combiner equal to a body of one op over both its scalars; `None` for any other body.
    /// Addition of booleans is `Or`, multiplication `And`.
    pub fn from_body(body: &Graph) -> Option<Combiner> {
        let ([node], [a, b], [output]) = (&body.nodes[..], &body.inputs[..], &body.outputs[..]) else {
            return None;
        };
        let Op::Binary(op) = &node.op else { return None };
        let takes_both = node.operands == [*a, *b] || node.operands == [*b, *a];
        if !takes_both || node.results != [*output] {
            return None;
        }
        let combiner = Combiner::ALL.into_iter().find(|&c| combining_op(c) == op.kind)?;
        Some(match (combiner, body.ty(*output).dtype) {
            (Combiner::Sum, DType::Bool) => Combiner::Or,
            (Combiner::Prod, DType::Bool) => Combiner::And,
            (combiner, _) => combiner,
        })
    }

    /// The combiner, if the reducer is one.
    pub(crate) fn combiner(&self) -> Option<Combiner> {
        match self {
            Reducer::Combiner(combiner) => Some(*combiner),
            Reducer::Body(_) => None,
        }
    }

    pub(crate) fn regions(&self) -> Vec<&Graph> {
        match self {
            Reducer::Combiner(_) => Vec::new(),
            Reducer::Body(body) => vec![body],
        }
    }

    /// E101, E103 or E107 unless the reducer combines scalars of these element types.
    pub(crate) fn check(&self, name: &str, dtypes: &[DType]) -> Result<()> {
        match self {
            Reducer::Combiner(combiner) => {
                if dtypes.len() != 1 {
                    return Err(Diagnostic::new("E101", format!("`{name}` by {combiner} has one input"))
                        .expected("1 input")
                        .found(dtypes.len().to_string()));
                }
                check_combiner(name, *combiner, dtypes[0])
            }
            Reducer::Body(body) => {
                let scalars: Vec<TensorType> = dtypes.iter().map(|&d| TensorType::scalar(d)).collect();
                region_signature(name, "body", body, &[&scalars[..], &scalars].concat(), &scalars)
            }
        }
    }
}

/// E103 unless the combiner is defined for this element type.
pub(crate) fn check_combiner(name: &str, combiner: Combiner, dtype: DType) -> Result<()> {
    let bitwise = matches!(combiner, Combiner::And | Combiner::Or);
    element_type(
        &format!("{name} by {combiner}"),
        !bitwise || dtype == DType::Bool || dtype.is_integer(),
        "a boolean or integer",
        dtype,
    )
}

/// E107 unless a region maps these types to those.
pub(crate) fn region_signature(
    name: &str,
    region: &str,
    graph: &Graph,
    inputs: &[TensorType],
    outputs: &[TensorType],
) -> Result<()> {
    let list = |types: &mut dyn Iterator<Item = String>| types.collect::<Vec<_>>().join(", ");
    let signature = |inputs: &[&TensorType], outputs: &[&TensorType]| {
        format!(
            "({}) -> ({})",
            list(&mut inputs.iter().map(|ty| ty.to_string())),
            list(&mut outputs.iter().map(|ty| ty.to_string()))
        )
    };
    let own_inputs: Vec<&TensorType> = graph.inputs.iter().map(|&v| graph.ty(v)).collect();
    let own_outputs: Vec<&TensorType> = graph.outputs.iter().map(|&v| graph.ty(v)).collect();
    let (inputs, outputs): (Vec<_>, Vec<_>) = (inputs.iter().collect(), outputs.iter().collect());
    if own_inputs == inputs && own_outputs == outputs {
        return Ok(());
    }
    Err(Diagnostic::new("E107", format!("the {region} of `{name}` has the wrong signature"))
        .expected(signature(&inputs, &outputs))
        .found(signature(&own_inputs, &own_outputs)))
}

/// Elements in the widest type of their kind, so that a sequence of combinations is rounded or
/// wrapped once.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    Floats(Vec<f64>),
    Ints(Vec<i128>),
    Complex(Vec<Complex>),
}

impl Numbers {
    /// The elements of a literal.
    pub(crate) fn of(literal: &Literal) -> Numbers {
        if literal.ty.dtype.is_float() {
            Numbers::Floats(literal.to_f64())
        } else if literal.ty.dtype.is_complex() {
            Numbers::Complex(literal.to_complex())
        } else {
            Numbers::Ints(literal.to_i128())
        }
    }

    /// One scalar many times.
    pub(crate) fn repeat(scalar: &Literal, count: usize) -> Numbers {
        match Numbers::of(scalar) {
            Numbers::Floats(v) => Numbers::Floats(vec![v[0]; count]),
            Numbers::Ints(v) => Numbers::Ints(vec![v[0]; count]),
            Numbers::Complex(v) => Numbers::Complex(vec![v[0]; count]),
        }
    }

    /// Combines element `to` with element `from` of `other`. Both are of one kind.
    pub(crate) fn combine(&mut self, combiner: Combiner, to: usize, other: &Numbers, from: usize) {
        match (self, other) {
            (Numbers::Floats(a), Numbers::Floats(b)) => a[to] = combine_floats(combiner, a[to], b[from]),
            (Numbers::Ints(a), Numbers::Ints(b)) => a[to] = combine_ints(combiner, a[to], b[from]),
            (Numbers::Complex(a), Numbers::Complex(b)) => {
                a[to] = combining_op(combiner).of_complex(a[to], b[from]);
            }
            _ => unreachable!("combined values have one element type"),
        }
    }

    /// Converts back to a type, rounded or wrapped.
    pub(crate) fn literal(self, ty: &TensorType) -> Literal {
        match self {
            Numbers::Floats(v) => Literal::from_f64(ty, v.into_iter()),
            Numbers::Ints(v) => Literal::from_i128(ty, v.into_iter()),
            Numbers::Complex(v) => Literal::from_complex(ty, v.into_iter()),
        }
    }
}

/// Max and Min propagate NaN.
fn combine_floats(combiner: Combiner, a: f64, b: f64) -> f64 {
    match combiner {
        Combiner::Sum => a + b,
        Combiner::Prod => a * b,
        _ if a.is_nan() => a,
        _ if b.is_nan() => b,
        Combiner::Max => a.max(b),
        Combiner::Min => a.min(b),
        Combiner::And | Combiner::Or => unreachable!("type inference refuses bitwise combination of floats"),
    }
}

/// Sums and products wrap at 128 bits, so the lower 64 bits are right.
fn combine_ints(combiner: Combiner, a: i128, b: i128) -> i128 {
    match combiner {
        Combiner::Sum => a.wrapping_add(b),
        Combiner::Prod => a.wrapping_mul(b),
        Combiner::Max => a.max(b),
        Combiner::Min => a.min(b),
        Combiner::And => a & b,
        Combiner::Or => a | b,
    }
}

/// The one element at this position as a scalar literal.
pub(crate) fn element(literal: &Literal, position: usize) -> Literal {
    Literal { ty: TensorType::scalar(literal.ty.dtype), data: literal.data.pick(std::iter::once(position)) }
}

/// Folds values into result elements in order: `steps` yields (result position, input position);
/// `None` is the initial value (padding).
pub(crate) fn fold(
    reducer: &Reducer,
    inputs: &[&Literal],
    initial: &[&Literal],
    results: &[TensorType],
    steps: impl Iterator<Item = (usize, Option<usize>)>,
) -> Result<Vec<Literal>> {
    let count = results[0].element_count();
    match reducer {
        Reducer::Combiner(combiner) => {
            let (values, start) = (Numbers::of(inputs[0]), Numbers::of(initial[0]));
            let mut sums = Numbers::repeat(initial[0], count);
            for (to, from) in steps {
                match from {
                    Some(from) => sums.combine(*combiner, to, &values, from),
                    None => sums.combine(*combiner, to, &start, 0),
                }
            }
            Ok(vec![sums.literal(&results[0])])
        }
        Reducer::Body(body) => {
            let mut sums: Vec<Literal> = Vec::new();
            for (ty, initial) in results.iter().zip(initial) {
                sums.push(Literal { ty: ty.clone(), data: initial.data.pick(std::iter::repeat_n(0, count)) });
            }
            for (to, from) in steps {
                let mut arguments: Vec<Literal> = sums.iter().map(|s| element(s, to)).collect();
                arguments.extend(inputs.iter().zip(initial).map(|(input, initial)| match from {
                    Some(from) => element(input, from),
                    None => (*initial).clone(),
                }));
                let outputs = interpret::evaluate(body, &arguments)?;
                for (sum, output) in sums.iter_mut().zip(&outputs) {
                    sum.data.put(to, &output.data, 0);
                }
            }
            Ok(sums)
        }
    }
}

impl Reducer {
    /// The reducer of a parsed region.
    pub(crate) fn from_region(mut body: Graph) -> Reducer {
        drop_constraints(&mut body);
        match Reducer::from_body(&body) {
            Some(combiner) => Reducer::Combiner(combiner),
            None => Reducer::Body(Box::new(body)),
        }
    }

    /// The region of this reducer, over these element types.
    pub(crate) fn to_region(&self, dtypes: &[DType]) -> Graph {
        let combiner = match self {
            Reducer::Body(body) => return (**body).clone(),
            Reducer::Combiner(combiner) => *combiner,
        };
        combiner_region(combiner, dtypes[0])
    }
}

/// The region that combines two scalars.
pub(crate) fn combiner_region(combiner: Combiner, dtype: DType) -> Graph {
    let mut builder = GraphBuilder::new("");
    let scalar = TensorType::scalar(dtype);
    let a = builder.input("", scalar.clone(), crate::graph::Role::Activation);
    let b = builder.input("", scalar.clone(), crate::graph::Role::Activation);
    let results = builder.push_typed(Binary { kind: combining_op(combiner) }, &[a, b], vec![scalar]);
    builder.finish(results)
}

/// JAX constrains the scalars of reduction bodies to be replicated, which has no effect: such nodes
/// are removed.
fn drop_constraints(body: &mut Graph) {
    if !body.nodes.iter().any(|n| matches!(n.op, Op::ShardingConstraint(_))) {
        return;
    }
    let mut builder = GraphBuilder::new(&body.name);
    let mut map: Vec<Option<ValueId>> = vec![None; body.values.len()];
    for &input in &body.inputs {
        let value = body.value(input);
        map[input.index()] = Some(builder.input(&value.name, value.ty.clone(), value.role.clone()));
    }
    for node in &body.nodes {
        let operands: Vec<ValueId> =
            node.operands.iter().map(|v| map[v.index()].expect("nodes stand in execution order")).collect();
        let results = match node.op {
            Op::ShardingConstraint(_) => operands,
            _ => {
                let types = body.result_types(node).into_iter().cloned().collect();
                builder.push_typed(node.op.clone(), &operands, types)
            }
        };
        for (old, new) in node.results.iter().zip(results) {
            map[old.index()] = Some(new);
        }
    }
    let outputs = body.outputs.iter().map(|v| map[v.index()].expect("outputs are defined")).collect();
    *body = builder.finish(outputs);
}
