//! Ring attention: self-attention of a sequence that ranks share (Liu et al., 2023, "Ring Attention with Blockwise
//! Transformers").
//!
//! One factor is the sequence of queries, keys and values at once. Its kind is `Exchange`: sharded over r ranks, each rank
//! keeps its queries and sees the keys and values of all ranks, one shard after the other, which travel around a ring of
//! the ranks, packed into one tensor: r-1 permutes. Each shard gives a part of the result (`attention_part`), and parts join
//! by the logarithm of their sums, so that the result is exact and no rank ever holds the keys of all.
//!
//! The gradient needs the output and that logarithm, so the op returns it. Keys and values travel again, r-1 permutes, and
//! their gradients travel with them, from rank to rank and at last home: r permutes.
//!
//! Uneven shards are padded to the largest, and each part knows how many of its keys exist. Under a window, keys travel only
//! as far as some query sees them.
//!
//! Under a causal mask the last rank has the most work. In **zigzag** order it is even: of 2r chunks of the sequence, rank i
//! computes with the chunks i and 2r-1-i. Each rank sends its two chunks there first, and the results back.

mod ring;

use self::ring::{Ring, Travelling};
use super::checks::{operand_count, same_type};
use super::reduce::refused;
use super::{Composite, ParseOp};
use crate::builder::GraphBuilder;
use crate::composite::{Attribute, Attributes, Template};
use crate::composites::{ATTENTION_PART, ATTENTION_PART_GRADIENT, head_factors};
use crate::graph::{Graph, Node, Role, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::text::{OpParser, OpPrinter, Value, print_f64};
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};

/// Which keys a query sees, how scores are scaled, and where the tokens of a rank are.
#[derive(Clone, PartialEq, Debug)]
pub struct RingOptions {
    /// Whether a position attends only to itself and earlier ones.
    pub causal: bool,
    /// With a window of N, a position sees none that is N or more away.
    pub window: Option<usize>,
    /// Whether ranks compute in zigzag order. A sequence without an even number of tokens for each rank keeps its order.
    pub zigzag: bool,
    /// The factor on scores.
    pub scale: f64,
}

/// `(q[b, h, s, d], k[b, g, s, d], v[b, g, s, d], limits i32[b, s, 2]?) -> (out[b, h, s, d], lse[b, h, s])`: scaled
/// dot-product attention, and the logarithm of the sum of the exponentials of each row's scores, in f32 for narrower types.
/// h is a multiple of g. `limits` are the position of the first token that each query sees, and of the one behind the last.
#[derive(Clone, PartialEq, Debug)]
pub struct RingAttention {
    /// The mask and the order.
    pub options: RingOptions,
}

/// `(q, k, v, lse, delta[b, h, s], dout, limits?) -> (dq, dk, dv)`: the gradients of [`RingAttention`]. `delta` is the sum
/// of `dout` times the output over the last dimension, less the cotangent of `lse`.
#[derive(Clone, PartialEq, Debug)]
pub struct RingAttentionGradient {
    /// As in [`RingAttention`].
    pub options: RingOptions,
}

const NAME: &str = "partita.ring_attention";
const GRADIENT: &str = "partita.ring_attention_gradient";

/// The factor of the sequence in the rules of both ops.
const SEQUENCE: FactorId = 3;

/// The type in which scores are computed.
fn wide(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// The type of one number for each row of the queries.
fn row_type(q: &TensorType) -> TensorType {
    TensorType::new(wide(q.dtype), q.shape[..3].to_vec())
}

fn check(name: &str, q: &TensorType, k: &TensorType, v: &TensorType, limits: Option<&&TensorType>) -> Result<()> {
    same_type(name, k, v)?;
    if let (Some(limits), &[batch, _, s, _]) = (limits, &q.shape[..]) {
        same_type(name, &TensorType::new(DType::I32, [batch, s, 2]), limits)?;
    }
    let fits = match (&q.shape[..], &k.shape[..]) {
        (&[b, h, s, d], &[kb, g, ks, kd]) => {
            [b, s, d] == [kb, ks, kd] && (h == g || (g > 0 && h.is_multiple_of(g)))
        }
        _ => false,
    };
    if fits && q.dtype.is_float() && q.dtype == k.dtype {
        return Ok(());
    }
    Err(Diagnostic::new("E116", format!("the operands of `{name}` do not fit together"))
        .expected("floats q [batch, heads, sequence, d]; k, v [batch, groups, sequence, d]; heads a multiple of groups")
        .found(format!("{q}, {k}, {v}")))
}

/// E103 unless there are so many operands, or one more.
fn count(name: &str, operands: &[&TensorType], needed: usize) -> Result<()> {
    operand_count(name, &operands[..operands.len().min(needed)], needed)?;
    operand_count(name, operands, operands.len().min(needed + 1))
}

/// Tensors over the queries, over the keys, rows of the queries and their limits.
struct Dims {
    rule: Rule,
    limits: Vec<Vec<FactorId>>,
    queries: Vec<Vec<FactorId>>,
    keys: Vec<Vec<FactorId>>,
    rows: Vec<Vec<FactorId>>,
}

fn dims(q: &TensorType, k: &TensorType) -> Dims {
    let mut rule = Rule::default();
    let (batch, group, heads) = head_factors(&mut rule, &q.shape, &k.shape);
    let sequence = rule.factor(q.shape[2], FactorKind::Exchange);
    debug_assert_eq!(sequence, SEQUENCE);
    let depth = rule.factor(q.shape[3], FactorKind::Whole);
    let both = rule.factor(2, FactorKind::Whole);
    let limits = vec![vec![batch], vec![sequence], vec![both]];
    let rows = vec![vec![batch], heads, vec![sequence]];
    let mut queries = rows.clone();
    queries.push(vec![depth]);
    Dims { rule, queries, keys: vec![vec![batch], vec![group], vec![sequence], vec![depth]], rows, limits }
}

/// Operations of `products` matmuls between queries, keys and features; half of them under a causal mask, fewer in a window.
fn cost(options: &RingOptions, products: usize, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
    let q = operands[0];
    let tokens = q.shape[2] as f64;
    let sides = if options.causal { 1.0 } else { 2.0 };
    let near = options.window.map_or(tokens, |window| (2.0 * window as f64).min(tokens));
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops: sides * (products * q.element_count()) as f64 * near, bytes: bytes as f64 }
}

impl Operation for RingAttention {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        count(NAME, operands, 3)?;
        check(NAME, operands[0], operands[1], operands[2], operands.get(3))?;
        Ok(vec![operands[0].clone(), row_type(operands[0])])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let Dims { rule, limits, queries, keys, rows } = dims(operands[0], operands[1]);
        let all = [queries.clone(), keys.clone(), keys, limits];
        Rule { operands: all[..operands.len()].to_vec(), results: vec![queries, rows], ..rule }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        cost(&self.options, 2, operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let b = &mut *context.builder;
        let out = context.results[0];
        let dtype = wide(b.ty(out).dtype);
        let dout = match context.cotangents[0] {
            Some(dout) => dout,
            None => b.full_like(out, 0.0)?,
        };
        let (wide_out, wide_dout) = (b.convert(out, dtype)?, b.convert(dout, dtype)?);
        let products = b.multiply(wide_out, wide_dout)?;
        let mut delta = b.reduce_sum(products, &[3])?;
        if let Some(dlse) = context.cotangents[1] {
            delta = b.subtract(delta, dlse)?;
        }
        let op = RingAttentionGradient { options: self.options.clone() };
        let &[q, k, v, ref limits @ ..] = context.operands else { unreachable!("three operands") };
        let operands = [&[q, k, v, context.results[1], delta, dout], limits].concat();
        let mut gradients: Vec<Option<ValueId>> = b.push(op, &operands)?.into_iter().map(Some).collect();
        gradients.resize(context.operands.len(), None);
        Ok(gradients.into_iter().zip(context.wanted).map(|(g, wanted)| g.filter(|_| *wanted)).collect())
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        evaluate(operands, |b, ring, values| self.emit(b, ring, values))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let operands = context.operands().to_vec();
        if !context.is_of_rank() {
            return context.builder().push(self.clone(), &operands);
        }
        let ring = Ring::of(context, &self.options)?;
        self.emit(context.builder(), &ring, &operands)
    }

    fn precision(&self) -> Precision {
        Precision::Product
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }
}

impl RingAttention {
    fn emit(&self, b: &mut GraphBuilder, ring: &Ring, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let dims = [2, 2, 2, 1];
        let operands = ring.enter(b, &operands.iter().copied().zip(dims).collect::<Vec<_>>())?;
        let &[q, k, v, ref limits @ ..] = &operands[..] else { unreachable!("three operands") };
        let mut travelling = Travelling::new(b, ring, [k, v])?;
        let mut joined: Option<[ValueId; 2]> = None;
        for (hop, &place) in ring.places.iter().enumerate() {
            let [k, v] = travelling.at(b, ring, hop)?;
            let operands = [&[q, k, v, place], limits].concat();
            let part = part(b, &ATTENTION_PART, &self.options, &operands)?;
            let part = [part[0], part[1]];
            joined = Some(match joined {
                Some(before) => join(b, before, part)?,
                None => part,
            });
        }
        let [out, lse] = joined.expect("there is at least one part");
        let out = b.convert(out, b.ty(q).dtype)?;
        ring.leave(b, &[(out, 2), (lse, 2)])
    }
}

impl Operation for RingAttentionGradient {
    fn name(&self) -> &str {
        GRADIENT
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        count(GRADIENT, operands, 6)?;
        let [q, k, v] = [operands[0], operands[1], operands[2]];
        check(GRADIENT, q, k, v, operands.get(6))?;
        for (expected, found) in [(&row_type(q), operands[3]), (&row_type(q), operands[4]), (q, operands[5])] {
            same_type(GRADIENT, expected, found)?;
        }
        Ok(vec![q.clone(), k.clone(), v.clone()])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let Dims { rule, limits, queries, keys, rows } = dims(operands[0], operands[1]);
        let results = vec![queries.clone(), keys.clone(), keys.clone()];
        let all = [queries.clone(), keys.clone(), keys, rows.clone(), rows, queries, limits];
        Rule { operands: all[..operands.len()].to_vec(), results, ..rule }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        cost(&self.options, 5, operands, results)
    }

    /// E120.
    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Err(refused(GRADIENT, "a second derivative"))
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        evaluate(operands, |b, ring, values| self.emit(b, ring, values))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let operands = context.operands().to_vec();
        if !context.is_of_rank() {
            return context.builder().push(self.clone(), &operands);
        }
        let ring = Ring::of(context, &self.options)?;
        self.emit(context.builder(), &ring, &operands)
    }

    fn precision(&self) -> Precision {
        Precision::Product
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }
}

impl RingAttentionGradient {
    fn emit(&self, b: &mut GraphBuilder, ring: &Ring, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let dims = [2, 2, 2, 2, 2, 2, 1];
        let operands = ring.enter(b, &operands.iter().copied().zip(dims).collect::<Vec<_>>())?;
        let &[q, k, v, lse, delta, dout, ref limits @ ..] = &operands[..] else { unreachable!("six operands") };
        let types = [q, k, v].map(|value| b.ty(value).clone());
        let mut travelling = Travelling::new(b, ring, [k, v])?;
        let (mut dq, mut packed): (Option<ValueId>, Option<ValueId>) = (None, None);
        for (hop, &place) in ring.places.iter().enumerate() {
            let [k, v] = travelling.at(b, ring, hop)?;
            let operands = [&[q, k, v, lse, delta, dout, place], limits].concat();
            let part = part(b, &ATTENTION_PART_GRADIENT, &self.options, &operands)?;
            dq = Some(match dq {
                Some(sum) => b.add(sum, part[0])?,
                None => part[0],
            });
            let own = ring.pack(b, [part[1], part[2]])?;
            packed = Some(match packed {
                Some(before) => {
                    let before = ring.pass_on(b, before, hop)?;
                    b.add(before, own)?
                }
                None => own,
            });
        }
        let (dq, packed) = (dq.expect("there is a part"), packed.expect("there is a part"));
        let packed = ring.pass_home(b, packed)?;
        let rows = types[1].shape[2];
        let [dk, dv] = ring.unpack(b, packed)?.map(|gradient| b.slice_dim(gradient, 2, 0, rows));
        let mut gradients = Vec::with_capacity(3);
        for (gradient, ty) in [dq, dk?, dv?].into_iter().zip(types) {
            gradients.push((b.convert(gradient, ty.dtype)?, 2));
        }
        ring.leave(b, &gradients)
    }
}

/// Applies the template of a part.
fn part(
    b: &mut GraphBuilder,
    template: &'static Template,
    options: &RingOptions,
    operands: &[ValueId],
) -> Result<Vec<ValueId>> {
    let mut attributes = Attributes::new();
    attributes.insert("causal".to_string(), Attribute::Bool(options.causal));
    attributes.insert("scale".to_string(), Attribute::Float(options.scale));
    if let Some(window) = options.window {
        attributes.insert("window".to_string(), Attribute::Int(window as i64));
    }
    let types: Vec<TensorType> = operands.iter().map(|&value| b.ty(value).clone()).collect();
    b.push(Composite::new(template, attributes, &types)?, operands)
}

/// The attention to the keys of two parts. Each output counts as much as the sum of its exponentials.
fn join(b: &mut GraphBuilder, a: [ValueId; 2], c: [ValueId; 2]) -> Result<[ValueId; 2]> {
    let shape = b.shape(a[0]);
    let max = b.maximum(a[1], c[1])?;
    let mut sums = Vec::with_capacity(2);
    for part in [a, c] {
        let shifted = b.subtract(part[1], max)?;
        sums.push(b.exponential(shifted)?);
    }
    let sum = b.add(sums[0], sums[1])?;
    let mut weighted = Vec::with_capacity(2);
    for (part, own) in [a, c].into_iter().zip(sums) {
        let share = b.divide(own, sum)?;
        let share = b.spread_last(share, &shape)?;
        weighted.push(b.multiply(part[0], share)?);
    }
    let log = b.unary(super::UnaryKind::Log, sum)?;
    Ok([b.add(weighted[0], weighted[1])?, b.add(max, log)?])
}

/// The values on one rank that holds the whole sequence.
fn evaluate(
    operands: &[&Literal],
    emit: impl FnOnce(&mut GraphBuilder, &Ring, &[ValueId]) -> Result<Vec<ValueId>>,
) -> Result<Vec<Literal>> {
    let mut b = GraphBuilder::new("ring_attention");
    let values: Vec<ValueId> =
        operands.iter().map(|operand| b.input("", operand.ty.clone(), Role::Activation)).collect();
    let ring = Ring::alone(&mut b, operands[1].ty.shape[2]);
    let results = emit(&mut b, &ring, &values)?;
    let operands: Vec<Literal> = operands.iter().map(|&operand| operand.clone()).collect();
    interpret::evaluate(&b.finish(results), &operands)
}

// ---- text ----

/// The ops by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_ring_attention), (GRADIENT, parse_gradient)];

fn print(name: &str, options: &RingOptions, printer: &mut OpPrinter) {
    let mut attributes = vec![("causal", options.causal.to_string())];
    attributes.push(("scale", format!("{} : f64", print_f64(options.scale))));
    attributes.extend(options.window.map(|window| ("window", format!("{window} : i64"))));
    attributes.extend(options.zigzag.then(|| ("zigzag", "true".to_string())));
    printer.generic(name, &attributes, &[]);
}

/// The attributes of the generic form, with so many operands or one more.
fn parse(op: &mut OpParser, operands: usize) -> Result<RingOptions> {
    if !op.generic()? {
        return Err(op.error("E140", format!("`{}` must be written in the generic form", op.name)));
    }
    op.at_least(operands)?;
    op.arity(op.operands.len().min(operands + 1))?;
    let window = op.attributes.get("window").is_some().then(|| op.index_of("window")).transpose()?;
    match op.attributes.get("scale") {
        Some(&Value::Float(scale)) => {
            Ok(RingOptions { causal: op.flag("causal"), window, zigzag: op.flag("zigzag"), scale })
        }
        _ => Err(op.error("E147", format!("`{}` has no scale", op.name)).expected("`scale = 0.125 : f64`")),
    }
}

impl TextForm for RingAttention {
    /// The generic form, with the options as attributes.
    fn print(&self, printer: &mut OpPrinter) {
        print(NAME, &self.options, printer);
    }
}

impl TextForm for RingAttentionGradient {
    /// The generic form, with the options as attributes.
    fn print(&self, printer: &mut OpPrinter) {
        print(GRADIENT, &self.options, printer);
    }
}

fn parse_ring_attention(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let options = parse(op, 3)?;
    op.finish(RingAttention { options })
}

fn parse_gradient(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let options = parse(op, 6)?;
    op.finish(RingAttentionGradient { options })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::composites::ATTENTION;
    use crate::testing::{apply, assert_close, check_gradient, check_rule, random, refusal};

    fn operands(heads: usize, groups: usize, sequence: usize) -> Vec<Literal> {
        let keys = [2, groups, sequence, 3];
        vec![random(1, &[2, heads, sequence, 3]), random(2, &keys), random(3, &keys)]
    }

    fn options(causal: bool, window: Option<usize>) -> RingOptions {
        RingOptions { causal, window, zigzag: false, scale: 0.7 }
    }

    /// Two documents, the second of two tokens.
    fn limits(sequence: usize) -> Literal {
        let (cut, end) = (sequence as i32 - 2, sequence as i32);
        let row = (0..end).flat_map(|token| if token < cut { [0, cut] } else { [cut, end] });
        Literal::new([2, sequence, 2], [row.clone(), row].into_iter().flatten().collect::<Vec<i32>>())
    }

    #[test]
    fn it_is_attention() {
        for (causal, sequence, window, limited) in
            [(false, 5, None, false), (true, 5, None, false), (true, 1, None, false), (true, 5, Some(2), false)]
                .into_iter()
                .chain([(false, 5, Some(2), false), (false, 5, None, true), (true, 5, Some(3), true)])
        {
            let mut inputs = operands(4, 2, sequence);
            inputs.extend(limited.then(|| limits(sequence)));
            let mut attributes = Attributes::new();
            attributes.insert("causal".to_string(), Attribute::Bool(causal));
            attributes.insert("scale".to_string(), Attribute::Float(0.7));
            if let Some(window) = window {
                attributes.insert("window".to_string(), Attribute::Int(window as i64));
            }
            let types: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
            let expected = apply(Composite::new(&ATTENTION, attributes, &types).unwrap(), &inputs);
            let found = apply(RingAttention { options: options(causal, window) }, &inputs);
            assert_close(&found[0], &expected[0], "out");
        }
    }

    #[test]
    fn gradients_of_both_results_are_those_of_differences() {
        for (causal, window) in [(false, None), (true, None), (true, Some(2)), (false, Some(1))] {
            let op = RingAttention { options: options(causal, window) };
            check_gradient(op, operands(2, 1, 3), &[true; 3]);
        }
        let inputs = [operands(2, 1, 4), vec![limits(4)]].concat();
        check_gradient(RingAttention { options: options(true, None) }, inputs, &[true, true, true, false]);
    }

    #[test]
    fn batch_and_groups_may_be_cut() {
        check_rule(RingAttention { options: options(true, None) }, &operands(4, 2, 3));
        let inputs = [operands(4, 2, 3), vec![limits(3)]].concat();
        check_rule(RingAttention { options: options(true, Some(2)) }, &inputs);
        let op = RingAttention { options: options(true, None) };
        let types: Vec<TensorType> = operands(3, 2, 3).iter().map(|input| input.ty.clone()).collect();
        assert!(refusal(op.clone(), &types).contains("E116"));
        let mut types: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
        types[3].shape[1] = 2;
        assert!(refusal(op, &types).contains("operands"), "limits of other queries");
    }
}
