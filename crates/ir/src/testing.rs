//! Helpers for op tests: random numbers, gradients against finite differences, rules against
//! shards.

use crate::builder::GraphBuilder;
use crate::graph::{Graph, Role, ValueId};
use crate::interpret::evaluate;
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Op, Operation};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::types::TensorType;
use partita_base::{DType, Result};
use partita_mesh::Combiner;
use std::ops::Range;

/// Numbers in (-1, 1) that depend only on the seed.
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

/// A graph of only this op, with inputs of the types of `inputs`.
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

/// The cotangents of the operands for these cotangents of the results.
pub(crate) fn gradients(
    op: impl Into<Op>,
    inputs: &[Literal],
    cotangents: &[Option<Literal>],
    wanted: &[bool],
) -> Vec<Option<Literal>> {
    let op = op.into();
    let plain = forward(&op, inputs);
    let (operands, results) = (plain.inputs.clone(), plain.outputs.clone());
    let mut builder = GraphBuilder::from_graph(plain);
    let cotangents: Vec<_> = cotangents.iter().map(|w| w.clone().map(|w| builder.constant(w))).collect();
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
    let mut values = evaluate(&builder.finish(found), inputs).expect("the gradient evaluates").into_iter();
    gradients.into_iter().map(|gradient| gradient.and_then(|_| values.next())).collect()
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
    let gradients = gradients(op.clone(), &inputs, &weights, wanted);

    let weighted_sum = |inputs: &[Literal]| -> f64 {
        let outputs = evaluate(&plain, inputs).expect("the op evaluates");
        let dot = |(y, w): (&Literal, &Literal)| -> f64 {
            y.to_f64().iter().zip(w.to_f64()).map(|(y, w)| y * w).sum()
        };
        outputs.iter().zip(&weights).filter_map(|(y, w)| Some((y, w.as_ref()?))).map(dot).sum()
    };
    for (number, gradient) in gradients.into_iter().enumerate().filter(|&(number, _)| wanted[number]) {
        let input = &inputs[number];
        assert_eq!(input.ty.dtype, DType::F64, "finite differences are taken in f64");
        let analytic = gradient.unwrap_or_else(|| Literal::zeros(&input.ty));
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

/// The error of `infer` for operands that do not fit: the whole diagnostic as text.
pub(crate) fn refusal(op: impl Into<Op>, operands: &[TensorType]) -> String {
    let op = op.into();
    let error = op.infer(&operands.iter().collect::<Vec<_>>()).expect_err("the operands do not fit the op");
    assert!(error.expected.is_some() && error.found.is_some(), "{error} says what was expected and found");
    error.to_string()
}

/// Fails unless both have the same type and elements equal up to rounding; NaN equals NaN.
pub(crate) fn assert_close(found: &Literal, expected: &Literal, what: &str) {
    assert_eq!(found.ty, expected.ty, "{what}");
    for (i, (f, e)) in found.to_f64().into_iter().zip(expected.to_f64()).enumerate() {
        let close = f == e || (f.is_nan() && e.is_nan()) || (f - e).abs() <= 1e-12 * e.abs().max(1.0);
        assert!(close, "{what}: element {i} is {f}, expected {e}");
    }
}

/// One shard of a factor, on one of several ranks.
struct Shard<'a> {
    builder: GraphBuilder,
    operands: Vec<ValueId>,
    rule: &'a Rule,
    global_operands: &'a [TensorType],
    global_results: &'a [TensorType],
    factor: FactorId,
    rank: usize,
    range: Range<usize>,
}

impl Shard<'_> {
    /// The range of a dimension with these factors that this shard holds.
    fn window(&self, factors: &[FactorId], extent: usize) -> Range<usize> {
        match factors.iter().position(|&f| f == self.factor) {
            Some(place) => {
                let unit: usize = factors[place + 1..].iter().map(|&f| self.rule.factors[f].size).product();
                self.range.start * unit..self.range.end * unit
            }
            None => 0..extent,
        }
    }

    /// Offset and extents of this shard of a tensor.
    fn piece(&self, dims: &[Vec<FactorId>], ty: &TensorType) -> (Vec<usize>, Vec<usize>) {
        let window = |(factors, &extent): (&Vec<FactorId>, &usize)| {
            let window = self.window(factors, extent);
            (window.start, window.len())
        };
        dims.iter().zip(&ty.shape).map(window).unzip()
    }
}

impl LocalContext for Shard<'_> {
    fn builder(&mut self) -> &mut GraphBuilder {
        &mut self.builder
    }
    fn operands(&self) -> &[ValueId] {
        &self.operands
    }
    fn global_operand(&self, operand: usize) -> &TensorType {
        &self.global_operands[operand]
    }
    fn global_result(&self, result: usize) -> &TensorType {
        &self.global_results[result]
    }
    fn local_result(&self, result: usize) -> TensorType {
        let ty = &self.global_results[result];
        ty.with_shape(self.piece(&self.rule.results[result], ty).1)
    }
    fn is_sharded(&self, factor: FactorId) -> bool {
        factor == self.factor
    }
    fn operand_offset(&mut self, operand: usize, dim: usize) -> Result<ValueId> {
        let offset = self.window(&self.rule.operands[operand][dim], 0).start;
        Ok(self.builder.scalar(DType::I64, offset as f64))
    }
    fn result_offset(&mut self, result: usize, dim: usize) -> Result<ValueId> {
        let offset = self.window(&self.rule.results[result][dim], 0).start;
        Ok(self.builder.scalar(DType::I64, offset as f64))
    }
    fn leader(&mut self, factors: &[FactorId]) -> Result<ValueId> {
        let leads = !factors.contains(&self.factor) || self.rank == 0;
        Ok(self.builder.scalar(DType::Bool, leads as u8 as f64))
    }
}

/// Elementwise combination of tensors of one type.
fn combine(combiner: Combiner, parts: &[Literal]) -> Literal {
    let combined = |a: f64, b: f64| match combiner {
        Combiner::Sum => a + b,
        Combiner::Prod => a * b,
        Combiner::Max | Combiner::Or => a.max(b),
        Combiner::Min | Combiner::And => a.min(b),
    };
    let mut values = parts[0].to_f64();
    for part in &parts[1..] {
        values = values.into_iter().zip(part.to_f64()).map(|(a, b)| combined(a, b)).collect();
    }
    Literal::from_f64(&parts[0].ty, values.into_iter())
}

/// Checks everything the op's factor rule promises: that dimensions consist of their factors; that
/// each factor can be sharded over 2 and 3 ranks, evenly or not, with local ops that give the
/// shards of the global result (or parts that combine to it); and that the op is linear where the
/// rule declares it.
pub(crate) fn check_rule(op: impl Into<Op>, inputs: &[Literal]) {
    let op = op.into();
    let operands: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
    let expected = apply(op.clone(), inputs);
    let results: Vec<TensorType> = expected.iter().map(|result| result.ty.clone()).collect();
    let rule = op.rule(&operands.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>());
    assert_eq!((rule.operands.len(), rule.results.len()), (operands.len(), results.len()), "{rule:?}");
    for (dims, ty) in rule.operands.iter().chain(&rule.results).zip(operands.iter().chain(&results)) {
        assert_eq!(dims.len(), ty.rank(), "dimensions of {ty} in {rule:?}");
        for (factors, &extent) in dims.iter().zip(&ty.shape).filter(|(factors, _)| !factors.is_empty()) {
            let size: usize = factors.iter().map(|&f| rule.factors[f].size).product();
            // Along windows, the input has an extent of its own.
            if matches!(rule.factors[factors[0]].kind, FactorKind::Window(window) if window.input == extent) {
                continue;
            }
            assert_eq!(size, extent, "a dimension of {ty} in {rule:?}");
        }
    }
    for (factor, ranks) in (0..rule.factors.len()).flat_map(|factor| [(factor, 2), (factor, 3)]) {
        check_factor(&op, &rule, inputs, &expected, factor, ranks);
    }
    for group in &rule.linear {
        check_linear(&op, inputs, &expected, &group.operands, Combiner::Sum);
        if group.any_combiner {
            check_linear(&op, inputs, &expected, &group.operands, Combiner::Max);
        }
    }
}

/// Shards one factor and compares.
fn check_factor(
    op: &Op,
    rule: &Rule,
    inputs: &[Literal],
    expected: &[Literal],
    factor: FactorId,
    ranks: usize,
) {
    // A minor factor alone would give a strided shard, which no layout has.
    let strided = |factors: &Vec<FactorId>| {
        let place = factors.iter().position(|&f| f == factor).unwrap_or(0);
        factors[..place].iter().any(|&f| rule.factors[f].size != 1)
    };
    let kind = rule.factors[factor].kind;
    let minor = rule.operands.iter().chain(&rule.results).flatten().any(strided);
    // Shards that are exchanged need ranks.
    if minor
        || matches!(
            kind,
            FactorKind::Whole | FactorKind::Shift | FactorKind::Exchange | FactorKind::Window(_)
        )
    {
        return;
    }
    let global_operands: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
    let global_results: Vec<TensorType> = expected.iter().map(|result| result.ty.clone()).collect();
    let what = format!("{} with factor {factor} of {rule:?} over {ranks} ranks", op.name());
    let mut parts: Vec<Vec<Literal>> = vec![Vec::new(); expected.len()];
    for rank in 0..ranks {
        let size = rule.factors[factor].size;
        let mut shard = Shard {
            builder: GraphBuilder::new("local"),
            operands: Vec::new(),
            rule,
            global_operands: &global_operands,
            global_results: &global_results,
            factor,
            rank,
            range: size * rank / ranks..size * (rank + 1) / ranks,
        };
        let mut local_inputs = Vec::new();
        for (input, dims) in inputs.iter().zip(&rule.operands) {
            let (offset, extents) = shard.piece(dims, &input.ty);
            let local = input.window(&offset, &extents);
            let operand = shard.builder.input("", local.ty.clone(), Role::Input);
            shard.operands.push(operand);
            local_inputs.push(local);
        }
        let results = op.localise(&mut shard).expect("the op has a local form");
        let graph = std::mem::take(&mut shard.builder).finish(results);
        for id in graph.node_ids() {
            let node = graph.node(id);
            let inferred = node.op.infer(&graph.operand_types(node)).expect("local types fit");
            assert_eq!(inferred.iter().collect::<Vec<_>>(), graph.result_types(node), "{what}");
        }
        for (number, local) in
            evaluate(&graph, &local_inputs).expect("the shard evaluates").iter().enumerate()
        {
            if rule.results[number].iter().any(|factors| factors.contains(&factor)) {
                let (offset, extents) = shard.piece(&rule.results[number], &global_results[number]);
                assert_close(local, &expected[number].window(&offset, &extents), &what);
            } else {
                parts[number].push(local.clone());
            }
        }
    }
    for (parts, expected) in parts.iter().zip(expected).filter(|(parts, _)| !parts.is_empty()) {
        match kind {
            FactorKind::Reduce(combiner) => assert_close(&combine(combiner, parts), expected, &what),
            _ => parts.iter().for_each(|part| assert_close(part, expected, &what)),
        }
    }
}

/// Splits some operands into two parts and compares the combination of the two results.
fn check_linear(op: &Op, inputs: &[Literal], expected: &[Literal], group: &[usize], combiner: Combiner) {
    let mut parts = [inputs.to_vec(), inputs.to_vec()];
    for (&operand, seed) in group.iter().zip(500..) {
        let (ty, x) = (&inputs[operand].ty, inputs[operand].to_f64());
        assert_eq!(ty.dtype, DType::F64, "partial operands are tested in f64");
        let noise = random_values(seed, x.len());
        let split = |x: f64, r: f64| match combiner {
            Combiner::Sum => (x - r, r),
            _ if r > 0.0 => (x, x - r),
            _ => (x + r, x),
        };
        let (a, b): (Vec<f64>, Vec<f64>) = x.into_iter().zip(noise).map(|(x, r)| split(x, r)).unzip();
        parts[0][operand] = Literal::from_f64(ty, a.into_iter());
        parts[1][operand] = Literal::from_f64(ty, b.into_iter());
    }
    let [first, second] = parts.map(|inputs| apply(op.clone(), &inputs));
    for ((first, second), expected) in first.into_iter().zip(second).zip(expected) {
        let what = format!("{} with operands {group:?} partial ({combiner:?})", op.name());
        assert_close(&combine(combiner, &[first, second]), expected, &what);
    }
}
