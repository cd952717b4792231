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
//! Uneven shards are padded to the largest, and each part knows how many of its keys exist.

use super::checks::{operand_count, same_type};
use super::reduce::refused;
use super::{CollectivePermute, Composite, Pad, ParseOp};
use crate::builder::GraphBuilder;
use crate::composite::{Attribute, Attributes, Template};
use crate::composites::{ATTENTION_PART, ATTENTION_PART_GRADIENT, head_factors};
use crate::graph::{Graph, Node, Role, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::text::{OpParser, OpPrinter, Value, print_f64};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};

/// `(q[b, h, s, d], k[b, g, s, d], v[b, g, s, d]) -> (out[b, h, s, d], lse[b, h, s])`: scaled dot-product attention, and the
/// logarithm of the sum of the exponentials of each row's scores, in f32 for narrower types. h is a multiple of g.
#[derive(Clone, PartialEq, Debug)]
pub struct RingAttention {
    /// Whether a position attends only to itself and earlier ones.
    pub causal: bool,
    /// The factor on scores.
    pub scale: f64,
}

/// `(q, k, v, lse, delta[b, h, s], dout) -> (dq, dk, dv)`: the gradients of [`RingAttention`]. `delta` is the sum of `dout`
/// times the output over the last dimension, less the cotangent of `lse`.
#[derive(Clone, PartialEq, Debug)]
pub struct RingAttentionGradient {
    /// As in [`RingAttention`].
    pub causal: bool,
    /// As in [`RingAttention`].
    pub scale: f64,
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

fn check(name: &str, q: &TensorType, k: &TensorType, v: &TensorType) -> Result<()> {
    same_type(name, k, v)?;
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

/// Tensors over the queries, over the keys, and rows of the queries.
struct Dims {
    rule: Rule,
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
    let rows = vec![vec![batch], heads, vec![sequence]];
    let mut queries = rows.clone();
    queries.push(vec![depth]);
    Dims { rule, queries, keys: vec![vec![batch], vec![group], vec![sequence], vec![depth]], rows }
}

/// Operations of `products` matmuls between queries, keys and features; half of them under a causal mask.
fn cost(causal: bool, products: usize, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
    let q = operands[0];
    let share = if causal { 1.0 } else { 2.0 };
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops: share * (products * q.element_count()) as f64 * q.shape[2] as f64, bytes: bytes as f64 }
}

impl Operation for RingAttention {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 3)?;
        check(NAME, operands[0], operands[1], operands[2])?;
        Ok(vec![operands[0].clone(), row_type(operands[0])])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let Dims { rule, queries, keys, rows } = dims(operands[0], operands[1]);
        Rule { operands: vec![queries.clone(), keys.clone(), keys], results: vec![queries, rows], ..rule }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        cost(self.causal, 2, operands, results)
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
        let op = RingAttentionGradient { causal: self.causal, scale: self.scale };
        let &[q, k, v] = context.operands else { unreachable!("three operands") };
        let gradients = b.push(op, &[q, k, v, context.results[1], delta, dout])?;
        Ok(gradients.into_iter().zip(context.wanted).map(|(g, wanted)| wanted.then_some(g)).collect())
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        evaluate(operands, |b, ring, values| self.emit(b, ring, values))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let ring = Ring::of(context)?;
        let operands = context.operands().to_vec();
        self.emit(context.builder(), &ring, &operands)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }
}

impl RingAttention {
    fn emit(&self, b: &mut GraphBuilder, ring: &Ring, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let &[q, k, v] = operands else { unreachable!("three operands") };
        let mut travelling = Travelling::new(b, ring, [k, v])?;
        let mut joined: Option<[ValueId; 2]> = None;
        for &place in &ring.places {
            let [k, v] = travelling.next(b, ring)?;
            let part = part(b, &ATTENTION_PART, self.causal, self.scale, &[q, k, v, place])?;
            let part = [part[0], part[1]];
            joined = Some(match joined {
                Some(before) => join(b, before, part)?,
                None => part,
            });
        }
        let [out, lse] = joined.expect("there is at least one part");
        let dtype = b.ty(q).dtype;
        Ok(vec![b.convert(out, dtype)?, lse])
    }
}

impl Operation for RingAttentionGradient {
    fn name(&self) -> &str {
        GRADIENT
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(GRADIENT, operands, 6)?;
        let [q, k, v] = [operands[0], operands[1], operands[2]];
        check(GRADIENT, q, k, v)?;
        for (expected, found) in [(&row_type(q), operands[3]), (&row_type(q), operands[4]), (q, operands[5])] {
            same_type(GRADIENT, expected, found)?;
        }
        Ok(vec![q.clone(), k.clone(), v.clone()])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let Dims { rule, queries, keys, rows } = dims(operands[0], operands[1]);
        let results = vec![queries.clone(), keys.clone(), keys.clone()];
        let operands = vec![queries.clone(), keys.clone(), keys, rows.clone(), rows, queries];
        Rule { operands, results, ..rule }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        cost(self.causal, 5, operands, results)
    }

    /// E120.
    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Err(refused(GRADIENT, "a second derivative"))
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        evaluate(operands, |b, ring, values| self.emit(b, ring, values))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let ring = Ring::of(context)?;
        let operands = context.operands().to_vec();
        self.emit(context.builder(), &ring, &operands)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }
}

impl RingAttentionGradient {
    fn emit(&self, b: &mut GraphBuilder, ring: &Ring, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let &[q, k, v, lse, delta, dout] = operands else { unreachable!("six operands") };
        let types = [q, k, v].map(|value| b.ty(value).clone());
        let mut travelling = Travelling::new(b, ring, [k, v])?;
        let (mut dq, mut packed): (Option<ValueId>, Option<ValueId>) = (None, None);
        for &place in &ring.places {
            let [k, v] = travelling.next(b, ring)?;
            let operands = [q, k, v, lse, delta, dout, place];
            let part = part(b, &ATTENTION_PART_GRADIENT, self.causal, self.scale, &operands)?;
            dq = Some(match dq {
                Some(sum) => b.add(sum, part[0])?,
                None => part[0],
            });
            let own = ring.pack(b, [part[1], part[2]])?;
            packed = Some(match packed {
                Some(before) => {
                    let before = ring.pass_on(b, before)?;
                    b.add(before, own)?
                }
                None => own,
            });
        }
        let (dq, mut packed) = (dq.expect("there is a part"), packed.expect("there is a part"));
        if ring.places.len() > 1 {
            packed = ring.pass_on(b, packed)?;
        }
        let rows = types[1].shape[2];
        let [dk, dv] = ring.unpack(b, packed)?.map(|gradient| b.slice_dim(gradient, 2, 0, rows));
        let gradients = [dq, dk?, dv?];
        gradients.into_iter().zip(types).map(|(gradient, ty)| b.convert(gradient, ty.dtype)).collect()
    }
}

/// How the shards of keys and values travel.
struct Ring {
    /// For each of the shards that a rank sees, in order, the operand `place` of its part. The first is its own.
    places: Vec<ValueId>,
    /// From each rank to the next.
    pairs: Vec<(usize, usize)>,
    /// The largest number of keys in a shard.
    most: usize,
}

impl Ring {
    /// One shard, which is all.
    fn alone(b: &mut GraphBuilder, keys: usize) -> Ring {
        let place = b.constant(Literal::new([3], vec![0, 0, keys as i64]));
        Ring { places: vec![place], pairs: Vec::new(), most: keys }
    }

    fn of(context: &mut dyn LocalContext) -> Result<Ring> {
        let Some(peers) = context.peers(SEQUENCE) else {
            let k = context.operands()[1];
            let keys = context.builder().ty(k).shape[2];
            return Ok(Ring::alone(context.builder(), keys));
        };
        let count = peers.extents.len();
        let extents: Vec<i64> = peers.extents.iter().map(|&extent| extent as i64).collect();
        let starts: Vec<i64> =
            extents.iter().scan(0, |next, extent| Some(std::mem::replace(next, *next + extent))).collect();
        let mut places = Vec::with_capacity(count);
        for hop in 0..count {
            // After so many hops, a rank holds the shard of the rank that many places before it.
            let before = |of: &[i64]| (0..count).map(|rank| of[(rank + count - hop) % count]).collect();
            let numbers: [Vec<i64>; 3] = [starts.clone(), before(&starts), before(&extents)];
            let mut place = Vec::with_capacity(3);
            for by_position in numbers {
                let number = context.by_position(SEQUENCE, &by_position)?;
                place.push(context.builder().reshape(number, &[1])?);
            }
            places.push(context.builder().concatenate(&place, 0)?);
        }
        let next = |group: &Vec<usize>| {
            let group = group.clone();
            (0..count).map(move |place| (group[place], group[(place + 1) % count])).collect::<Vec<_>>()
        };
        let pairs = peers.groups.iter().flat_map(next).collect();
        Ok(Ring { places, pairs, most: peers.extents.into_iter().max().unwrap_or(0) })
    }

    /// Two tensors `[b, g, keys, d]` as one `[2, b, g, keys, d]`, padded to the largest shard.
    fn pack(&self, b: &mut GraphBuilder, tensors: [ValueId; 2]) -> Result<ValueId> {
        let shape = [&[1], &b.shape(tensors[0])[..]].concat();
        let [first, second] = tensors.map(|tensor| b.reshape(tensor, &shape));
        let packed = b.concatenate(&[first?, second?], 0)?;
        if self.places.len() == 1 {
            return Ok(packed);
        }
        let dtype = b.ty(packed).dtype;
        let zero = b.scalar(dtype, 0.0);
        let high = vec![0, 0, 0, (self.most - shape[3]) as i64, 0];
        b.push1(Pad { low: vec![0; 5], high, interior: vec![0; 5] }, &[packed, zero])
    }

    fn unpack(&self, b: &mut GraphBuilder, packed: ValueId) -> Result<[ValueId; 2]> {
        let shape = b.shape(packed)[1..].to_vec();
        let [first, second] = [0, 1].map(|number| {
            let one = b.slice_dim(packed, 0, number, number + 1)?;
            b.reshape(one, &shape)
        });
        Ok([first?, second?])
    }

    /// What the rank before held.
    fn pass_on(&self, b: &mut GraphBuilder, value: ValueId) -> Result<ValueId> {
        b.push1(CollectivePermute { pairs: self.pairs.clone() }, &[value])
    }
}

/// Keys and values on their way around the ring.
struct Travelling {
    own: Option<[ValueId; 2]>,
    packed: Option<ValueId>,
}

impl Travelling {
    fn new(b: &mut GraphBuilder, ring: &Ring, own: [ValueId; 2]) -> Result<Travelling> {
        let packed = if ring.places.len() > 1 { Some(ring.pack(b, own)?) } else { None };
        Ok(Travelling { own: Some(own), packed })
    }

    /// The next shard of keys and values; the first is the rank's own.
    fn next(&mut self, b: &mut GraphBuilder, ring: &Ring) -> Result<[ValueId; 2]> {
        if let Some(own) = self.own.take() {
            return Ok(own);
        }
        let packed = self.packed.expect("several shards are packed");
        let packed = *self.packed.insert(ring.pass_on(b, packed)?);
        ring.unpack(b, packed)
    }
}

/// Applies the template of a part.
fn part(
    b: &mut GraphBuilder,
    template: &'static Template,
    causal: bool,
    scale: f64,
    operands: &[ValueId],
) -> Result<Vec<ValueId>> {
    let mut attributes = Attributes::new();
    attributes.insert("causal".to_string(), Attribute::Bool(causal));
    attributes.insert("scale".to_string(), Attribute::Float(scale));
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

fn print(name: &str, causal: bool, scale: f64, printer: &mut OpPrinter) {
    let scale = format!("{} : f64", print_f64(scale));
    printer.generic(name, &[("causal", causal.to_string()), ("scale", scale)], &[]);
}

/// The attributes `causal` and `scale` of the generic form.
fn parse(op: &mut OpParser, operands: usize) -> Result<(bool, f64)> {
    if !op.generic()? {
        return Err(op.error("E140", format!("`{}` must be written in the generic form", op.name)));
    }
    op.arity(operands)?;
    match op.attributes.get("scale") {
        Some(&Value::Float(scale)) => Ok((op.flag("causal"), scale)),
        _ => Err(op.error("E147", format!("`{}` has no scale", op.name)).expected("`scale = 0.125 : f64`")),
    }
}

impl TextForm for RingAttention {
    /// The generic form, with `causal` and `scale`.
    fn print(&self, printer: &mut OpPrinter) {
        print(NAME, self.causal, self.scale, printer);
    }
}

impl TextForm for RingAttentionGradient {
    /// The generic form, with `causal` and `scale`.
    fn print(&self, printer: &mut OpPrinter) {
        print(GRADIENT, self.causal, self.scale, printer);
    }
}

fn parse_ring_attention(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let (causal, scale) = parse(op, 3)?;
    op.finish(RingAttention { causal, scale })
}

fn parse_gradient(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let (causal, scale) = parse(op, 6)?;
    op.finish(RingAttentionGradient { causal, scale })
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

    #[test]
    fn it_is_attention() {
        for (causal, sequence) in [(false, 5), (true, 5), (true, 1)] {
            let inputs = operands(4, 2, sequence);
            let mut attributes = Attributes::new();
            attributes.insert("causal".to_string(), Attribute::Bool(causal));
            attributes.insert("scale".to_string(), Attribute::Float(0.7));
            let types: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
            let expected = apply(Composite::new(&ATTENTION, attributes, &types).unwrap(), &inputs);
            let found = apply(RingAttention { causal, scale: 0.7 }, &inputs);
            assert_close(&found[0], &expected[0], "out");
        }
    }

    #[test]
    fn gradients_of_both_results_are_those_of_differences() {
        for causal in [false, true] {
            check_gradient(RingAttention { causal, scale: 0.7 }, operands(2, 1, 3), &[true; 3]);
        }
    }

    #[test]
    fn batch_and_groups_may_be_cut() {
        check_rule(RingAttention { causal: true, scale: 1.0 }, &operands(4, 2, 3));
        let op = RingAttention { causal: true, scale: 1.0 };
        let types: Vec<TensorType> = operands(3, 2, 3).iter().map(|input| input.ty.clone()).collect();
        assert!(refusal(op, &types).contains("E116"));
    }
}
