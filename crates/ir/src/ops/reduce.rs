//! Combination along dimensions.

use super::checks::{distinct_dims, element_type, operand_count, same_dtype, shapes};
use super::{BinaryKind, Direction};
use crate::builder::{GraphBuilder, identity};
use crate::graph::{Graph, Node, ValueId};
use crate::interpret;
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;

/// How elements are combined.
#[derive(Clone, PartialEq, Debug)]
pub enum Reducer {
    /// A known associative combiner (Sum, Max, Min, Prod, And, Or).
    Combiner(Combiner),
    /// A general body: a graph from (accumulators.., elements..) scalars to accumulators.
    Body(Box<Graph>),
}

/// Operands (inputs.., initial values..), both of the same count; combines along `dims`.
///
/// A sum counts its initial value once per rank when its input is still partial, so only sums that start from zero
/// may be used where layouts are chosen: [`GraphBuilder::reduce_with_init`] builds such.
#[derive(Clone, PartialEq, Debug)]
pub struct Reduce {
    /// The dimensions that disappear, ascending.
    pub dims: Vec<usize>,
    /// The combiner or body.
    pub reducer: Reducer,
}

const NAME: &str = "stablehlo.reduce";

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
    /// The combiner that a body of one op over both its scalars stands for; `None` for any other body. Addition of
    /// booleans is `Or`, their product `And`.
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

    /// The combiner, where the reducer is one.
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
        !bitwise || !dtype.is_float(),
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

/// Elements in the widest type of their kind, so that a chain of combinations is rounded or wrapped once.
#[derive(Clone, Debug)]
pub(crate) enum Numbers {
    Floats(Vec<f64>),
    Ints(Vec<i128>),
}

impl Numbers {
    /// The elements of a literal.
    pub(crate) fn of(literal: &Literal) -> Numbers {
        if literal.ty.dtype.is_float() {
            Numbers::Floats(literal.to_f64())
        } else {
            Numbers::Ints(literal.to_i128())
        }
    }

    /// One scalar many times.
    pub(crate) fn repeat(scalar: &Literal, count: usize) -> Numbers {
        match Numbers::of(scalar) {
            Numbers::Floats(v) => Numbers::Floats(vec![v[0]; count]),
            Numbers::Ints(v) => Numbers::Ints(vec![v[0]; count]),
        }
    }

    /// Combines element `to` with element `from` of `other`. Both are of one kind.
    pub(crate) fn combine(&mut self, combiner: Combiner, to: usize, other: &Numbers, from: usize) {
        match (self, other) {
            (Numbers::Floats(a), Numbers::Floats(b)) => a[to] = combine_floats(combiner, a[to], b[from]),
            (Numbers::Ints(a), Numbers::Ints(b)) => a[to] = combine_ints(combiner, a[to], b[from]),
            _ => unreachable!("combined values have one element type"),
        }
    }

    /// Back to a type, rounded or wrapped.
    pub(crate) fn literal(self, ty: &TensorType) -> Literal {
        match self {
            Numbers::Floats(v) => Literal::from_f64(ty, v.into_iter()),
            Numbers::Ints(v) => Literal::from_i128(ty, v.into_iter()),
        }
    }
}

/// NaN wins over every number in Max and Min.
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

/// Sums and products wrap at 128 bits, which leaves the lower 64 right.
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

/// Folds values into result elements in order: `steps` yields (result position, input position), `None` meaning the
/// initial value itself (padding).
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

/// Whether a value is a constant that is the combiner's identity.
fn is_identity(graph: &Graph, value: ValueId, combiner: Combiner) -> bool {
    let Some((node, _)) = graph.value(value).definition else { return false };
    match &graph.node(node).op {
        Op::Constant(constant) => constant.value == identity(combiner, constant.value.ty.dtype),
        _ => false,
    }
}

/// A reduction of one input from any initial value, as one that starts from the combiner's identity, followed by the
/// initial value where that is not the identity itself.
pub fn canonical_reduce(
    builder: &mut GraphBuilder,
    combiner: Combiner,
    x: ValueId,
    initial: ValueId,
    dims: &[usize],
) -> Result<ValueId> {
    if is_identity(builder.graph(), initial, combiner) {
        let reducer = Reducer::Combiner(combiner);
        return builder.push1(Reduce { dims: dims.to_vec(), reducer }, &[x, initial]);
    }
    let reduced = builder.reduce(combiner, x, dims)?;
    let shape = builder.shape(reduced);
    let initial = builder.broadcast_scalar(initial, &shape)?;
    builder.binary(combining_op(combiner), reduced, initial)
}

impl GraphBuilder {
    /// As [`GraphBuilder::reduce`], from an initial value: where that is not the identity, it is combined
    /// with the result afterwards.
    pub fn reduce_with_init(
        &mut self,
        combiner: Combiner,
        x: ValueId,
        initial: ValueId,
        dims: &[usize],
    ) -> Result<ValueId> {
        canonical_reduce(self, combiner, x, initial, dims)
    }
}

impl Reduce {
    /// Of an input of this shape, the dimensions that disappear and those that stay, where the first ones disappear and
    /// more than one element stays: a reduction across rows.
    pub fn across_rows<'s>(&self, shape: &'s [usize]) -> Option<(&'s [usize], &'s [usize])> {
        let (rows, row) = shape.split_at_checked(self.dims.len())?;
        let is_first = !rows.is_empty() && self.dims.iter().copied().eq(0..rows.len());
        (is_first && row.iter().product::<usize>() != 1).then_some((rows, row))
    }

    fn kept(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|d| !self.dims.contains(d)).collect()
    }

    /// The cotangent of the input, from that of the result.
    fn input_cotangent(
        &self,
        builder: &mut GraphBuilder,
        combiner: Combiner,
        x: ValueId,
        initial: ValueId,
        result: ValueId,
        cotangent: ValueId,
    ) -> Result<Option<ValueId>> {
        let ty = builder.ty(x).clone();
        let kept = self.kept(ty.rank());
        match combiner {
            Combiner::Sum => Ok(Some(builder.broadcast_in_dim(cotangent, &ty.shape, &kept)?)),
            Combiner::Max | Combiner::Min => {
                // Elements that tie share the cotangent evenly, as JAX has it.
                let chosen = builder.broadcast_in_dim(result, &ty.shape, &kept)?;
                let chosen = builder.compare(Direction::Eq, x, chosen)?;
                let ones = builder.convert(chosen, ty.dtype)?;
                let count = builder.reduce_sum(ones, &self.dims)?;
                let share = builder.divide(cotangent, count)?;
                let share = builder.broadcast_in_dim(share, &ty.shape, &kept)?;
                let zero = builder.full(&ty, 0.0)?;
                Ok(Some(builder.select(chosen, share, zero)?))
            }
            Combiner::Prod => {
                // The product of all others is the product of what is not zero, divided by the element, as long as
                // no other element is zero.
                let zero = builder.full(&ty, 0.0)?;
                let one = builder.full(&ty, 1.0)?;
                let is_zero = builder.compare(Direction::Eq, x, zero)?;
                let others = builder.select(is_zero, one, x)?;
                let product = self.clone();
                let product = builder.push1(product, &[others, initial])?;
                let product = builder.multiply(product, cotangent)?;
                let product = builder.broadcast_in_dim(product, &ty.shape, &kept)?;
                let quotient = builder.divide(product, others)?;
                let ones = builder.convert(is_zero, ty.dtype)?;
                let zeros = builder.reduce_sum(ones, &self.dims)?;
                let zeros = builder.broadcast_in_dim(zeros, &ty.shape, &kept)?;
                let other_zeros = builder.subtract(zeros, ones)?;
                let none = builder.compare(Direction::Eq, other_zeros, zero)?;
                Ok(Some(builder.select(none, quotient, zero)?))
            }
            Combiner::And | Combiner::Or => Ok(None),
        }
    }
}

impl Operation for Reduce {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        if operands.is_empty() || !operands.len().is_multiple_of(2) {
            operand_count(NAME, operands, (operands.len() + 1).max(2))?;
        }
        let (inputs, initial) = operands.split_at(operands.len() / 2);
        for (input, initial) in inputs.iter().zip(initial) {
            same_dtype(NAME, input, initial)?;
            shapes(
                initial.shape.is_empty(),
                format!("initial values of `{NAME}` are scalars"),
                TensorType::scalar(input.dtype).to_string(),
                initial.to_string(),
            )?;
            shapes(
                input.shape == inputs[0].shape,
                format!("inputs of `{NAME}` must have one shape"),
                format!("{:?}", inputs[0].shape),
                format!("{:?}", input.shape),
            )?;
        }
        distinct_dims(NAME, "dimensions", &self.dims, inputs[0].rank())?;
        if !self.dims.is_sorted() {
            return Err(Diagnostic::new("E105", format!("dimensions of `{NAME}` must ascend"))
                .found(format!("{:?}", self.dims)));
        }
        let dtypes: Vec<DType> = inputs.iter().map(|ty| ty.dtype).collect();
        self.reducer.check(NAME, &dtypes)?;
        let kept = self.kept(inputs[0].rank());
        let shape: Vec<usize> = kept.iter().map(|&d| inputs[0].shape[d]).collect();
        Ok(inputs.iter().map(|input| input.with_shape(shape.clone())).collect())
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let mut rule = Rule::default();
        let mut input: Vec<Vec<FactorId>> = Vec::new();
        let mut result = Vec::new();
        for (dim, &size) in operands[0].shape.iter().enumerate() {
            let kind = match (self.dims.contains(&dim), &self.reducer) {
                (false, _) => FactorKind::Pass,
                (true, Reducer::Combiner(combiner)) => FactorKind::Reduce(*combiner),
                (true, Reducer::Body(_)) => FactorKind::Whole,
            };
            let factor = rule.factor(size, kind);
            input.push(vec![factor]);
            if kind == FactorKind::Pass {
                result.push(vec![factor]);
            }
        }
        rule.operands = vec![input; results.len()];
        rule.operands.extend(vec![Vec::new(); results.len()]);
        rule.results = vec![result; results.len()];
        match self.reducer {
            Reducer::Combiner(Combiner::Sum) => rule.linear_in(&[0]),
            _ => rule,
        }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let flops = operands[0].element_count() * results.len();
        Cost { flops: flops as f64, bytes: bytes as f64 }
    }

    /// Ties in Max and Min share evenly. E120 for a general body, and for initial values of anything but a sum.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let mut gradients = vec![None; context.operands.len()];
        let Reducer::Combiner(combiner) = self.reducer else {
            return Err(refused(NAME, "a general body"));
        };
        let Some(cotangent) = context.cotangents[0] else { return Ok(gradients) };
        let (x, initial, result) = (context.operands[0], context.operands[1], context.results[0]);
        if context.wanted[0] {
            gradients[0] = self.input_cotangent(context.builder, combiner, x, initial, result, cotangent)?;
        }
        if context.wanted[1] {
            if combiner != Combiner::Sum {
                return Err(refused(NAME, "a differentiated initial value"));
            }
            let all: Vec<usize> = (0..context.builder.ty(cotangent).rank()).collect();
            gradients[1] = Some(context.builder.reduce_sum(cotangent, &all)?);
        }
        Ok(gradients)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (inputs, initial) = operands.split_at(results.len());
        let kept = self.kept(inputs[0].ty.rank());
        let strides = results[0].strides();
        let position = |index: Vec<usize>| kept.iter().zip(&strides).map(|(&d, s)| index[d] * s).sum();
        let steps =
            indices(&inputs[0].ty.shape).enumerate().map(|(from, index)| (position(index), Some(from)));
        fold(&self.reducer, inputs, initial, results, steps)
    }

    /// Where a reduced dimension is cut, only the leader starts from the initial value. (The largest or smallest of
    /// several equal initial values is that value, so Max, Min, And and Or need no care.)
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let mut operands = context.operands().to_vec();
        if let Reducer::Combiner(combiner @ (Combiner::Sum | Combiner::Prod)) = self.reducer {
            // In the rule, dimension d of the input is factor d.
            let cut: Vec<FactorId> = self.dims.iter().copied().filter(|&d| context.is_sharded(d)).collect();
            if !cut.is_empty() && !is_identity(context.builder().graph(), operands[1], combiner) {
                let leader = context.leader(&cut)?;
                let builder = context.builder();
                let neutral = builder.constant(identity(combiner, builder.ty(operands[1]).dtype));
                operands[1] = builder.select(leader, operands[1], neutral)?;
            }
        }
        let types = (0..operands.len() / 2).map(|result| context.local_result(result)).collect();
        Ok(context.builder().push_typed(self.clone(), &operands, types))
    }

    fn regions(&self) -> Vec<&Graph> {
        self.reducer.regions()
    }
}

/// E120: no gradient for `name` with this.
pub(crate) fn refused(name: &str, with: &str) -> Box<Diagnostic> {
    Diagnostic::new("E120", format!("`{name}` with {with} has no gradient"))
        .help("express it with ops that have one, or keep it out of what is differentiated")
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{Capture, Kind, OpParser, OpPrinter, join, print_results, print_types};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_reduce)];

impl Reducer {
    /// The reducer that a region spells.
    pub(crate) fn from_region(mut body: Graph) -> Reducer {
        drop_constraints(&mut body);
        match Reducer::from_body(&body) {
            Some(combiner) => Reducer::Combiner(combiner),
            None => Reducer::Body(Box::new(body)),
        }
    }

    /// The region that spells this reducer, over these element types.
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
    let results = builder.push_typed(super::Binary { kind: combining_op(combiner) }, &[a, b], vec![scalar]);
    builder.finish(results)
}

/// JAX constrains the scalars of reduction bodies to be replicated, which says nothing: such nodes are bypassed.
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

impl TextForm for Reduce {
    /// `stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (T, U) -> V`; a body of its own
    /// follows as ` reducer(%a: T, %b: T) (%c: U, %d: U) {..}`, a pair for each input.
    fn print(&self, printer: &mut OpPrinter) {
        let count = printer.node.operands.len() / 2;
        let pairs: Vec<String> = (0..count)
            .map(|i| format!("({} init: {})", printer.operand(i), printer.operand(count + i)))
            .collect();
        printer.push(&format!("{NAME}{}", pairs.join(", ")));
        if let Reducer::Combiner(combiner) = self.reducer {
            printer.push(&format!(" applies {}", super::Binary { kind: combining_op(combiner) }.name()));
        }
        printer.push(&format!(" across dimensions = [{}]", join(&self.dims)));
        printer.attributes();
        let (operands, results) = (printer.operand_types(), printer.result_types());
        printer.push(&format!(" : ({}) -> {}", print_types(&operands), print_results(&results)));
        if let Reducer::Body(body) = &self.reducer {
            let mut names = printer.printer.input_names(body);
            let argument =
                |i: usize| format!("{}: {}", names[body.inputs[i].index()], body.ty(body.inputs[i]));
            let pairs: Vec<String> =
                (0..count).map(|i| format!("({}, {})", argument(i), argument(count + i))).collect();
            printer.push("\n");
            printer.printer.line();
            printer.push(&format!(" reducer{} {{\n", pairs.join(" ")));
            printer.statements(body, &mut names, "stablehlo.return");
            printer.push("}");
        }
    }
}

fn parse_reduce(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let (dims, reducer);
    if op.generic()? {
        dims = op.indices_of("dimensions")?;
        reducer = Reducer::from_region(op.region(0)?);
    } else {
        let mut initial = Vec::new();
        loop {
            op.parser.mark('(')?;
            let input = op.parser.operand()?;
            op.operands.push(input);
            op.parser.keyword("init")?;
            op.parser.mark(':')?;
            initial.push(op.parser.operand()?);
            op.parser.mark(')')?;
            if !op.parser.eat(',') {
                break;
            }
        }
        op.operands.extend(initial);
        let mut applied = None;
        if op.parser.at_word("applies") {
            op.parser.advance();
            let kind = Combiner::ALL.into_iter().find(|&c| {
                op.parser.kind() == Kind::Word
                    && op.parser.text() == super::Binary { kind: combining_op(c) }.name()
            });
            let kind = kind.ok_or_else(|| op.parser.unexpected("a combiner such as `stablehlo.add`"))?;
            op.parser.advance();
            applied = Some(kind);
        }
        op.parser.keyword("across")?;
        op.parser.keyword("dimensions")?;
        op.parser.mark('=')?;
        dims = op.index_list()?;
        op.types()?;
        reducer = match applied {
            Some(combiner) => Reducer::from_region(combiner_region(combiner, op.operand_type(0).dtype)),
            None => Reducer::from_region(parse_reducer(op)?),
        };
    }
    op.at_least(2)?;
    if op.operands.len() % 2 == 1 {
        return Err(op.error("E146", "each input of `stablehlo.reduce` has an initial value"));
    }
    let (input, initial) = (op.operands[0], op.operands[op.operands.len() / 2]);
    match reducer {
        Reducer::Combiner(combiner) if op.operands.len() == 2 => {
            let start = starts_from_identity(op.parser.graph(), initial, combiner);
            if start {
                return op.finish(Reduce { dims, reducer: Reducer::Combiner(combiner) });
            }
            // Only reductions that start from the identity may be split: any other initial value is combined after.
            op.check_operands()?;
            let dtype = op.operand_type(0).dtype;
            Reduce { dims: dims.clone(), reducer: Reducer::Combiner(combiner) }
                .infer(&[op.operand_type(0), op.operand_type(1)])?;
            let value = identity(combiner, dtype);
            let neutral = op.emit(super::Constant { value }, &[])?[0];
            let reduced =
                op.emit(Reduce { dims, reducer: Reducer::Combiner(combiner) }, &[input, neutral])?[0];
            let shape = op.parser.graph().ty(reduced).shape.clone();
            let initial = if shape.is_empty() {
                initial
            } else {
                op.emit(super::BroadcastInDim { shape, dims: Vec::new() }, &[initial])?[0]
            };
            op.emit(super::Binary { kind: combining_op(combiner) }, &[reduced, initial])
        }
        reducer => op.finish(Reduce { dims, reducer }),
    }
}

/// `reducer(%a: T, %b: T) (%c: U, %d: U) {..}`: inputs are reordered to accumulators, then elements.
fn parse_reducer(op: &mut OpParser) -> Result<Graph> {
    op.parser.keyword("reducer")?;
    op.parser.push_frame(Capture::Constants);
    let (mut accumulators, mut elements) = (Vec::new(), Vec::new());
    while op.parser.eat('(') {
        accumulators.push(op.parser.block_argument()?);
        op.parser.optional_location()?;
        op.parser.mark(',')?;
        elements.push(op.parser.block_argument()?);
        op.parser.optional_location()?;
        op.parser.mark(')')?;
    }
    op.parser.mark('{')?;
    let mut graph = op.parser.region_rest()?.graph;
    graph.inputs = accumulators.into_iter().chain(elements).collect();
    Ok(crate::text::canonical(&graph))
}

/// Whether the value is the combiner's identity; zero of either sign starts a sum.
fn starts_from_identity(graph: &Graph, mut value: ValueId, combiner: Combiner) -> bool {
    while let Some((node, _)) = graph.value(value).definition {
        match &graph.node(node).op {
            Op::Constant(constant) => {
                let literal = &constant.value;
                return literal.data.len() == 1
                    && literal.to_f64() == identity(combiner, literal.ty.dtype).to_f64();
            }
            Op::BroadcastInDim(_) | Op::Reshape(_) => value = graph.node(node).operands[0],
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Role;
    use crate::testing::{apply, check_gradient, check_rule, random};

    fn reduce(combiner: Combiner, dims: &[usize]) -> Reduce {
        Reduce { dims: dims.to_vec(), reducer: Reducer::Combiner(combiner) }
    }

    /// The larger value and its index, the smaller index where values tie.
    fn argmax() -> Reduce {
        let mut b = GraphBuilder::new("argmax");
        let scalar =
            |b: &mut GraphBuilder, name, dtype| b.input(name, TensorType::scalar(dtype), Role::Input);
        let (x, i) = (scalar(&mut b, "x", DType::F32), scalar(&mut b, "i", DType::I32));
        let (y, j) = (scalar(&mut b, "y", DType::F32), scalar(&mut b, "j", DType::I32));
        let keep = b.compare(Direction::Ge, x, y).unwrap();
        let value = b.select(keep, x, y).unwrap();
        let index = b.select(keep, i, j).unwrap();
        Reduce { dims: vec![1], reducer: Reducer::Body(Box::new(b.finish(vec![value, index]))) }
    }

    #[test]
    fn reductions_match_plain_loops() {
        let x = random(1, &[2, 3, 4]);
        let values = x.to_f64();
        let functions: [(Combiner, fn(f64, f64) -> f64); 4] = [
            (Combiner::Sum, |a, b| a + b),
            (Combiner::Prod, |a, b| a * b),
            (Combiner::Max, f64::max),
            (Combiner::Min, f64::min),
        ];
        for (combiner, function) in functions {
            let got = apply(reduce(combiner, &[0, 2]), &[x.clone(), Literal::scalar(DType::F64, 0.25)]);
            assert_eq!(got[0].ty.shape, [3]);
            for middle in 0..3 {
                let mut expected = 0.25;
                for outer in 0..2 {
                    for inner in 0..4 {
                        expected = function(expected, values[(outer * 3 + middle) * 4 + inner]);
                    }
                }
                assert!((got[0].to_f64()[middle] - expected).abs() < 1e-12, "{combiner}");
            }
        }
    }

    #[test]
    fn integers_wrap_and_bits_combine() {
        let x = Literal::new([3], vec![100u8, 100, 100]);
        let zero = Literal::scalar(DType::U8, 0.0);
        assert_eq!(apply(reduce(Combiner::Sum, &[0]), &[x.clone(), zero.clone()])[0].to_i64(), [44]);
        let x = Literal::new([2], vec![0b1100u8, 0b1010]);
        assert_eq!(apply(reduce(Combiner::Or, &[0]), &[x.clone(), zero])[0].to_i64(), [0b1110]);
        let ones = identity(Combiner::And, DType::U8);
        assert_eq!(apply(reduce(Combiner::And, &[0]), &[x, ones])[0].to_i64(), [0b1000]);
        let flags = Literal::new([2], vec![false, true]);
        let no = Literal::scalar(DType::Bool, 0.0);
        assert_eq!(apply(reduce(Combiner::Or, &[0]), &[flags, no])[0].data, vec![true].into());
    }

    #[test]
    fn not_a_number_wins_and_empty_reductions_are_the_initial_value() {
        let x = Literal::new([3], vec![1f32, f32::NAN, 2.0]);
        let low = identity(Combiner::Max, DType::F32);
        assert!(apply(reduce(Combiner::Max, &[0]), &[x, low])[0].to_f64()[0].is_nan());
        let empty = Literal::new([2, 0], Vec::<f32>::new());
        let got = apply(reduce(Combiner::Sum, &[1]), &[empty, Literal::scalar(DType::F32, 7.0)]);
        assert_eq!(got[0], Literal::new([2], vec![7f32, 7.0]));
    }

    #[test]
    fn a_general_body_folds_several_inputs_in_order() {
        let values = Literal::new([2, 3], vec![1f32, 5.0, 5.0, -1.0, -2.0, -0.5]);
        let numbers = Literal::new([2, 3], vec![0i32, 1, 2, 0, 1, 2]);
        let start = [Literal::scalar(DType::F32, f64::NEG_INFINITY), Literal::scalar(DType::I32, 9.0)];
        let got = apply(argmax(), &[values, numbers, start[0].clone(), start[1].clone()]);
        assert_eq!(got[0], Literal::new([2], vec![5f32, -0.5]));
        assert_eq!(got[1], Literal::new([2], vec![1i32, 2]));
    }

    #[test]
    fn gradients_match_finite_differences() {
        let initial = |value| Literal::scalar(DType::F64, value);
        let x = random(2, &[3, 2, 3]);
        check_gradient(reduce(Combiner::Sum, &[0, 2]), vec![x.clone(), initial(0.5)], &[true, true]);
        check_gradient(reduce(Combiner::Max, &[1]), vec![x.clone(), initial(-9.0)], &[true, false]);
        check_gradient(reduce(Combiner::Min, &[0]), vec![x.clone(), initial(0.1)], &[true, false]);
        check_gradient(reduce(Combiner::Prod, &[2]), vec![x.clone(), initial(2.0)], &[true, false]);
        for zeros in [vec![1], vec![0, 4], vec![0, 1]] {
            let mut values = x.to_f64();
            zeros.into_iter().for_each(|i| values[i] = 0.0);
            let x = Literal::from_f64(&x.ty, values.into_iter());
            check_gradient(reduce(Combiner::Prod, &[2]), vec![x, initial(1.0)], &[true, false]);
        }
    }

    #[test]
    fn shards_combine_to_the_whole() {
        let x = random(3, &[3, 2, 4]);
        check_rule(reduce(Combiner::Sum, &[0, 2]), &[x.clone(), Literal::scalar(DType::F64, 0.0)]);
        for combiner in [Combiner::Prod, Combiner::Max, Combiner::Min] {
            check_rule(reduce(combiner, &[0, 2]), &[x.clone(), Literal::scalar(DType::F64, 0.5)]);
        }
        let start = [Literal::scalar(DType::F32, f64::NEG_INFINITY), Literal::scalar(DType::I32, 9.0)];
        let values = Literal::new([3, 2], vec![1f32, 5.0, 5.0, -1.0, -2.0, -0.5]);
        let numbers = Literal::new([3, 2], vec![0i32, 1, 0, 1, 0, 1]);
        check_rule(argmax(), &[values, numbers, start[0].clone(), start[1].clone()]);
    }

    #[test]
    fn cut_sums_count_their_initial_value_once() {
        let op = Reduce { dims: vec![0], reducer: Reducer::Combiner(Combiner::Prod) };
        check_rule(op, &[random(4, &[5]), Literal::scalar(DType::F64, 3.0)]);
    }

    #[test]
    fn ties_share_the_gradient() {
        let mut b = GraphBuilder::new("f");
        let x = b.input("x", TensorType::new(DType::F64, [4]), Role::Input);
        let y = b.reduce_max(x, &[0]).unwrap();
        let Op::Reduce(op) = b.graph().nodes.last().unwrap().op.clone() else { panic!("a reduce") };
        let initial = b.graph().nodes.last().unwrap().operands[1];
        let one = b.scalar(DType::F64, 1.0);
        let gradients = op
            .gradient(&mut GradientContext {
                builder: &mut b,
                operands: &[x, initial],
                results: &[y],
                cotangents: &[Some(one)],
                wanted: &[true, false],
            })
            .unwrap();
        let graph = b.finish(vec![gradients[0].unwrap()]);
        let got = interpret::evaluate(&graph, &[Literal::new([4], vec![1f64, 3.0, 3.0, 2.0])]).unwrap();
        assert_eq!(got[0].to_f64(), [0.0, 0.5, 0.5, 0.0]);
    }

    #[test]
    fn bodies_of_one_op_are_recognised() {
        let body = |kind, dtype, swap: bool, twice: bool| {
            let mut b = GraphBuilder::new("body");
            let x = b.input("x", TensorType::scalar(dtype), Role::Input);
            let y = b.input("y", TensorType::scalar(dtype), Role::Input);
            let r = if swap { b.binary(kind, y, x) } else { b.binary(kind, x, if twice { x } else { y }) };
            b.finish(vec![r.unwrap()])
        };
        assert_eq!(Reducer::from_body(&body(BinaryKind::Add, DType::F32, false, false)), Some(Combiner::Sum));
        assert_eq!(
            Reducer::from_body(&body(BinaryKind::Maximum, DType::F32, true, false)),
            Some(Combiner::Max)
        );
        assert_eq!(Reducer::from_body(&body(BinaryKind::Or, DType::Bool, false, false)), Some(Combiner::Or));
        assert_eq!(Reducer::from_body(&body(BinaryKind::Add, DType::F32, false, true)), None);
        assert_eq!(Reducer::from_body(&body(BinaryKind::Subtract, DType::F32, false, false)), None);
    }

    #[test]
    fn canonical_reductions_start_from_the_identity() {
        let mut b = GraphBuilder::new("f");
        let x = b.input("x", TensorType::new(DType::F32, [2, 3]), Role::Input);
        let seven = b.scalar(DType::F32, 7.0);
        let y = b.reduce_with_init(Combiner::Sum, x, seven, &[1]).unwrap();
        let zero = b.scalar(DType::F32, 0.0);
        let nodes = b.graph().nodes.len();
        let z = b.reduce_with_init(Combiner::Sum, x, zero, &[1]).unwrap();
        assert_eq!(b.graph().nodes.len(), nodes + 1, "the identity adds nothing");
        let graph = b.finish(vec![y, z]);
        let x = Literal::new([2, 3], vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let got = interpret::evaluate(&graph, &[x]).unwrap();
        assert_eq!(got[0].to_f64(), [13.0, 22.0]);
        assert_eq!(got[1].to_f64(), [6.0, 15.0]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ty = TensorType::new(DType::F32, [2, 3]);
        let scalar = TensorType::scalar(DType::F32);
        let code = |op: Reduce, operands: &[&TensorType]| op.infer(operands).unwrap_err().code;
        assert_eq!(code(reduce(Combiner::Sum, &[0]), &[&ty]), "E101");
        assert_eq!(code(reduce(Combiner::Sum, &[0]), &[&ty, &ty, &scalar, &scalar]), "E101");
        assert_eq!(code(reduce(Combiner::Sum, &[0]), &[&ty, &TensorType::scalar(DType::F64)]), "E102");
        assert_eq!(code(reduce(Combiner::And, &[0]), &[&ty, &scalar]), "E103");
        assert_eq!(code(reduce(Combiner::Sum, &[0]), &[&ty, &ty]), "E104");
        assert_eq!(code(reduce(Combiner::Sum, &[2]), &[&ty, &scalar]), "E105");
        assert_eq!(code(reduce(Combiner::Sum, &[1, 0]), &[&ty, &scalar]), "E105");
        assert_eq!(code(argmax(), &[&ty, &ty, &scalar, &scalar]), "E107");
    }
}
