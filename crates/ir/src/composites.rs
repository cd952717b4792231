//! The composites every training program needs, each written once as model code over primitives.
//!
//! Naming follows PyTorch. Shapes: `..` stands for any leading dimensions.

use crate::composite::{Attribute, Attributes, AttributesExt, Template};
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::ops::checks::element_type;
use crate::ops::{BinaryKind, Composite, Direction, DotGeneral, Iota, UnaryKind};
use crate::rule::{FactorKind, Rule};
use crate::{GraphBuilder, TensorType};
use partita_base::{DType, Diagnostic, Result};

/// Every template of this file.
pub static ALL: &[&Template] = &[
    &SOFTMAX,
    &LOG_SOFTMAX,
    &LAYER_NORM,
    &RMS_NORM,
    &GELU,
    &SILU,
    &ATTENTION,
    &ROTARY,
    &DROPOUT,
    &CROSS_ENTROPY,
    &DOT_GENERAL_ADD,
    &EMBEDDING,
    &MSE,
    &RANDOM_BITS,
    &UNIFORM,
    &NORMAL,
];

/// `softmax(x[.., n]) -> [.., n]` over the last dimension.
pub static SOFTMAX: Template = Template {
    name: "partita.softmax",
    arguments: &["x"],
    optional: 0,
    build: build_softmax,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `log_softmax(x[.., n]) -> [.., n]` over the last dimension.
pub static LOG_SOFTMAX: Template = Template {
    name: "partita.log_softmax",
    arguments: &["x"],
    optional: 0,
    build: build_log_softmax,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `layer_norm(x[.., n], weight[n]?, bias[n]?) -> [.., n]`; attribute `epsilon`.
pub static LAYER_NORM: Template = Template {
    name: "partita.layer_norm",
    arguments: &["x", "weight", "bias"],
    optional: 2,
    build: build_layer_norm,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `rms_norm(x[.., n], weight[n]?) -> [.., n]`; attribute `epsilon`.
pub static RMS_NORM: Template = Template {
    name: "partita.rms_norm",
    arguments: &["x", "weight"],
    optional: 1,
    build: build_rms_norm,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `gelu(x)`; attribute `tanh` chooses the approximation.
pub static GELU: Template = Template {
    name: "partita.gelu",
    arguments: &["x"],
    optional: 0,
    build: build_gelu,
    gradient: Some(gelu_gradient),
    rule: None,
    offsets_operand: None,
};
/// `silu(x) = x * logistic(x)`.
pub static SILU: Template = Template {
    name: "partita.silu",
    arguments: &["x"],
    optional: 0,
    build: build_silu,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `attention(q[b, h, s, d], k[b, g, t, d], v[b, g, t, d], mask[b, 1, s, t]?) -> [b, h, s, d]`; h is a multiple of
/// g; attributes `causal`, `scale`. Rows with nothing to attend to give 0.
pub static ATTENTION: Template = Template {
    name: "partita.attention",
    arguments: &["q", "k", "v", "mask"],
    optional: 1,
    build: build_attention,
    gradient: None,
    rule: Some(attention_rule),
    offsets_operand: None,
};
/// `rotary(x[b, h, s, d], cos[s, d], sin[s, d]) -> [b, h, s, d]`: rotates pairs (i, i + d/2).
pub static ROTARY: Template = Template {
    name: "partita.rotary",
    arguments: &["x", "cos", "sin"],
    optional: 0,
    build: build_rotary,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `dropout(x, seed: u64 scalar) -> x` with elements kept with probability `1 - rate` and scaled by its inverse;
/// attributes `rate`, `stream`. The mask depends on seed, stream and global element index alone.
pub static DROPOUT: Template = Template {
    name: "partita.dropout",
    arguments: &["x", "seed"],
    optional: 0,
    build: build_dropout,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `cross_entropy(logits[.., v], labels[..]) -> [..]`: the negative log-likelihood of each label in the logits'
/// type, 0 where the label is `ignore_index`. The mean is the caller's, over the whole batch's count.
pub static CROSS_ENTROPY: Template = Template {
    name: "partita.cross_entropy",
    arguments: &["logits", "labels"],
    optional: 0,
    build: build_cross_entropy,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `dot_general_add(sum, lhs, rhs) -> sum`: `sum + dot_general(lhs, rhs)`; attributes as [`dot_general_dims`] lists them.
pub static DOT_GENERAL_ADD: Template = Template {
    name: "partita.dot_general_add",
    arguments: &["sum", "lhs", "rhs"],
    optional: 0,
    build: build_dot_general_add,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `embedding(weight[v, d], ids[..]) -> [.., d]`.
pub static EMBEDDING: Template = Template {
    name: "partita.embedding",
    arguments: &["weight", "ids"],
    optional: 0,
    build: build_embedding,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `mse(prediction, target) -> (prediction - target)^2`, elementwise; the mean is the caller's.
pub static MSE: Template = Template {
    name: "partita.mse",
    arguments: &["prediction", "target"],
    optional: 0,
    build: build_mse,
    gradient: None,
    rule: None,
    offsets_operand: None,
};
/// `random_bits(seed: u64 scalar, offsets: i64[rank]) -> u32[shape]`; attributes `shape`, `global_shape`, `stream`.
/// The generator: `key = mix(seed + GAMMA (stream + 1))`, `bits(i) = mix(key + GAMMA (i + 1))`, upper half, with SplitMix64's
/// `mix` and the row-major *global* index `i`.
pub static RANDOM_BITS: Template = Template {
    name: "partita.random_bits",
    arguments: &["seed", "offsets"],
    optional: 0,
    build: build_random_bits,
    gradient: None,
    rule: Some(random_bits_rule),
    offsets_operand: Some(1),
};
/// `uniform(seed, offsets) -> [0, 1)` of attribute `dtype`; other attributes as [`RANDOM_BITS`].
pub static UNIFORM: Template = Template {
    name: "partita.uniform",
    arguments: &["seed", "offsets"],
    optional: 0,
    build: build_uniform,
    gradient: None,
    rule: Some(random_bits_rule),
    offsets_operand: Some(1),
};
/// `normal(seed, offsets)`: standard normal of attribute `dtype` by inverse error function.
pub static NORMAL: Template = Template {
    name: "partita.normal",
    arguments: &["seed", "offsets"],
    optional: 0,
    build: build_normal,
    gradient: None,
    rule: Some(random_bits_rule),
    offsets_operand: Some(1),
};

impl GraphBuilder {
    /// Applies a template.
    pub fn composite(
        &mut self,
        template: &'static Template,
        attributes: &[(&str, Attribute)],
        operands: &[ValueId],
    ) -> Result<ValueId> {
        self.check(operands)?;
        let attributes: Attributes = attributes.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        let types: Vec<TensorType> = operands.iter().map(|&v| self.ty(v).clone()).collect();
        let composite = Composite::new(template, attributes, &types)?;
        self.push1(composite, operands)
    }

    /// Random numbers of a template over `shape`, from the start of the global index space.
    pub fn random(
        &mut self,
        template: &'static Template,
        seed: ValueId,
        stream: u64,
        shape: &[usize],
        dtype: DType,
    ) -> Result<ValueId> {
        let offsets = self.constant(Literal::zeros(&TensorType::new(DType::I64, [shape.len()])));
        let dims: Vec<i64> = shape.iter().map(|&s| s as i64).collect();
        self.composite(
            template,
            &[
                ("shape", Attribute::Ints(dims.clone())),
                ("global_shape", Attribute::Ints(dims)),
                ("stream", Attribute::Int(stream as i64)),
                ("dtype", Attribute::DType(dtype)),
            ],
            &[seed, offsets],
        )
    }

    /// Repeats `x` (the result of reducing the last dimension of `shape`) along that dimension again.
    fn spread_last(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        let dims: Vec<usize> = (0..shape.len().saturating_sub(1)).collect();
        self.broadcast_in_dim(x, shape, &dims)
    }
}

/// The last dimension. E104 for a scalar.
fn last(b: &GraphBuilder, x: ValueId) -> Result<usize> {
    let ty = b.ty(x);
    ty.rank().checked_sub(1).ok_or_else(|| {
        Diagnostic::new("E104", format!("`{}` works along the last dimension", b.graph().name))
            .expected("a tensor of at least 1 dimension")
            .found(ty.to_string())
    })
}

/// The extents of an operand of as many dimensions. E104 for another number.
fn extents<const RANK: usize>(b: &GraphBuilder, x: ValueId, what: &str) -> Result<[usize; RANK]> {
    b.shape(x).try_into().map_err(|found: Vec<usize>| {
        Diagnostic::new("E104", format!("{what} of `{}`", b.graph().name))
            .expected(format!("a tensor of {RANK} dimensions"))
            .found(format!("{found:?}"))
    })
}

/// Computes in f32 when the type is narrower.
fn widened(b: &mut GraphBuilder, x: ValueId) -> Result<(ValueId, DType)> {
    let dtype = b.ty(x).dtype;
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    Ok((b.convert(x, wide)?, dtype))
}

/// `x - max(x)` along the last dimension: exp of it cannot overflow. Softmax does not depend on the shift, so no
/// gradient flows through the maximum.
fn shifted(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let max = b.reduce_max(x, &[dim])?;
    let max = b.stop_gradient(max)?;
    let max = b.spread_last(max, &shape)?;
    b.subtract(x, max)
}

fn build_softmax(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (x, dtype) = widened(b, args[0])?;
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let x = shifted(b, x)?;
    let e = b.exponential(x)?;
    let sum = b.reduce_sum(e, &[dim])?;
    let sum = b.spread_last(sum, &shape)?;
    let y = b.divide(e, sum)?;
    Ok(vec![b.convert(y, dtype)?])
}

fn log_softmax(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let x = shifted(b, x)?;
    let e = b.exponential(x)?;
    let sum = b.reduce_sum(e, &[dim])?;
    let log = b.unary(UnaryKind::Log, sum)?;
    let log = b.spread_last(log, &shape)?;
    b.subtract(x, log)
}

fn build_log_softmax(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (x, dtype) = widened(b, args[0])?;
    let y = log_softmax(b, x)?;
    Ok(vec![b.convert(y, dtype)?])
}

/// Multiplies by `weight` and adds `bias` along the last dimension, where present.
fn affine(b: &mut GraphBuilder, x: ValueId, parameters: &[ValueId], dtype: DType) -> Result<Vec<ValueId>> {
    let shape = b.shape(x);
    let mut y = b.convert(x, dtype)?;
    for (position, &parameter) in parameters.iter().enumerate() {
        let wide = b.broadcast_trailing(parameter, &shape)?;
        y = if position == 0 { b.multiply(y, wide)? } else { b.add(y, wide)? };
    }
    Ok(vec![y])
}

fn build_layer_norm(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let epsilon = a.float("epsilon")?;
    let (x, dtype) = widened(b, args[0])?;
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let count = shape[dim] as f64;
    let mean = b.reduce_sum(x, &[dim])?;
    let mean = b.scale(mean, 1.0 / count)?;
    let mean = b.spread_last(mean, &shape)?;
    let centred = b.subtract(x, mean)?;
    let squares = b.multiply(centred, centred)?;
    let variance = b.reduce_sum(squares, &[dim])?;
    let variance = b.scale(variance, 1.0 / count)?;
    let variance = b.offset(variance, epsilon)?;
    let inverse = b.unary(UnaryKind::Rsqrt, variance)?;
    let inverse = b.spread_last(inverse, &shape)?;
    let y = b.multiply(centred, inverse)?;
    affine(b, y, &args[1..], dtype)
}

fn build_rms_norm(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let epsilon = a.float("epsilon")?;
    let (x, dtype) = widened(b, args[0])?;
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let squares = b.multiply(x, x)?;
    let mean = b.reduce_sum(squares, &[dim])?;
    let mean = b.scale(mean, 1.0 / shape[dim] as f64)?;
    let mean = b.offset(mean, epsilon)?;
    let inverse = b.unary(UnaryKind::Rsqrt, mean)?;
    let inverse = b.spread_last(inverse, &shape)?;
    let y = b.multiply(x, inverse)?;
    affine(b, y, &args[1..], dtype)
}

/// sqrt(2 / pi)
const ROOT_2_OVER_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
const GELU_SLOPE: f64 = 2.0 * ROOT_2_OVER_PI;
const GELU_CUBIC: f64 = 0.044715;

/// `slope (1 + cubic x^2)`
fn gelu_slope(b: &mut GraphBuilder, square: ValueId, cubic: f64) -> Result<ValueId> {
    let scaled = b.scale(square, cubic * GELU_SLOPE)?;
    b.offset(scaled, GELU_SLOPE)
}

/// The square of x, and the gate of x in its GELU by tanh: 0.5 (1 + tanh(v)) = logistic(2 v), where
/// v = sqrt(2/pi) (x + 0.044715 x^3). So there are fewer steps, and nothing cancels where the hyperbolic tangent is near -1.
fn gelu_gate(b: &mut GraphBuilder, x: ValueId) -> Result<(ValueId, ValueId)> {
    let square = b.unary(UnaryKind::Square, x)?;
    let slope = gelu_slope(b, square, GELU_CUBIC)?;
    let inner = b.multiply(x, slope)?;
    Ok((square, b.unary(UnaryKind::Logistic, inner)?))
}

/// `erf(x / sqrt(2))`
fn gelu_erf(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let scaled = b.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
    b.unary(UnaryKind::Erf, scaled)
}

fn build_gelu(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let x = args[0];
    if a.flag("tanh") {
        let (_, gate) = gelu_gate(b, x)?;
        return Ok(vec![b.multiply(x, gate)?]);
    }
    let inner = gelu_erf(b, x)?;
    let one = b.offset(inner, 1.0)?;
    let half = b.scale(x, 0.5)?;
    Ok(vec![b.multiply(half, one)?])
}

/// By tanh `gate + gate (1 - gate) x slope (1 + 3 cubic x^2)`, by the normal distribution `Phi(x) + x phi(x)`, times the
/// result's cotangent.
fn gelu_gradient(
    a: &Attributes,
    b: &mut GraphBuilder,
    args: &[ValueId],
    cotangents: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>> {
    let (x, Some(cotangent)) = (args[0], cotangents[0]) else { return Ok(vec![None]) };
    let derivative = if a.flag("tanh") {
        let (square, gate) = gelu_gate(b, x)?;
        let slope = gelu_slope(b, square, 3.0 * GELU_CUBIC)?;
        let one = b.full_like(gate, 1.0)?;
        let rest = b.subtract(one, gate)?;
        let steepness = b.multiply(rest, gate)?;
        // In this order nothing is infinite times zero where x is large.
        let change = b.multiply(steepness, x)?;
        let change = b.multiply(change, slope)?;
        b.add(change, gate)?
    } else {
        let erf = gelu_erf(b, x)?;
        let distribution = b.scale(erf, 0.5)?;
        let distribution = b.offset(distribution, 0.5)?;
        let square = b.unary(UnaryKind::Square, x)?;
        let exponent = b.scale(square, -0.5)?;
        let bell = b.exponential(exponent)?;
        let density = b.scale(bell, 0.5 * ROOT_2_OVER_PI)?;
        let change = b.multiply(x, density)?;
        b.add(change, distribution)?
    };
    Ok(vec![Some(b.multiply(derivative, cotangent)?)])
}

fn build_silu(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let gate = b.unary(UnaryKind::Logistic, args[0])?;
    Ok(vec![b.multiply(args[0], gate)?])
}

fn build_attention(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (q, k, v) = (args[0], args[1], args[2]);
    let (scale, causal) = (a.float("scale")?, a.flag("causal"));
    let (qs, ks) = (b.shape(q), b.shape(k));
    let [batch, heads, s, d] = qs[..] else { return Err(attention_shape(&qs)) };
    let [_, groups, t, _] = ks[..] else { return Err(attention_shape(&ks)) };
    if groups != heads && (groups == 0 || heads % groups != 0) {
        return Err(attention_shape(&ks));
    }
    let (q, dtype) = widened(b, q)?;
    let (k, _) = widened(b, k)?;
    let (v, _) = widened(b, v)?;
    let per = heads.checked_div(groups).unwrap_or(1);
    // The query heads of one group share a key head: [b, g, per, s, d] x [b, g, t, d].
    let q = b.reshape(q, &[batch, groups, per, s, d])?;
    let scores = b.dot_general(
        q,
        k,
        DotGeneral {
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
            lhs_contracting: vec![4],
            rhs_contracting: vec![3],
            result_dtype: None,
        },
    )?;
    let mut scores = b.scale(scores, scale)?;
    let shape = [batch, groups, per, s, t];
    let mut allowed: Option<ValueId> = None;
    if causal {
        let ty = TensorType::new(DType::I32, shape);
        let row = b.push1(Iota { ty: ty.clone(), dim: 3 }, &[])?;
        let column = b.push1(Iota { ty, dim: 4 }, &[])?;
        // With fewer queries than keys, the queries are the last ones.
        let row = b.offset(row, t as f64 - s as f64)?;
        allowed = Some(b.compare(Direction::Ge, row, column)?);
    }
    if let Some(&mask) = args.get(3) {
        let ms: [usize; 4] = extents(b, mask, "mask")?;
        let mask = if ms[1] == 1 {
            let mask = b.reshape(mask, &[ms[0], ms[2], ms[3]])?;
            let dims = [0, 3, 4];
            b.broadcast_in_dim(mask, &shape, &dims)?
        } else {
            let mask = b.reshape(mask, &[ms[0], groups, per, ms[2], ms[3]])?;
            b.broadcast_in_dim(mask, &shape, &[0, 1, 2, 3, 4])?
        };
        allowed = Some(match allowed {
            Some(other) => b.binary(BinaryKind::And, other, mask)?,
            None => mask,
        });
    }
    let wide = b.ty(scores).dtype;
    if let Some(allowed) = allowed {
        // A finite floor keeps rows without any key free of NaN; they are zeroed below.
        let floor = b.full(&TensorType::new(wide, shape), if wide == DType::F64 { -1e300 } else { -1e30 })?;
        scores = b.select(allowed, scores, floor)?;
    }
    let shifted = shifted(b, scores)?;
    let mut e = b.exponential(shifted)?;
    if let Some(allowed) = allowed {
        let zero = b.full(&TensorType::new(wide, shape), 0.0)?;
        e = b.select(allowed, e, zero)?;
    }
    let sum = b.reduce_sum(e, &[4])?;
    // An empty row has sum 0 and e all 0; dividing by at least a tiny number leaves 0.
    let tiny = b.full_like(sum, 1e-30)?;
    let sum = b.maximum(sum, tiny)?;
    let sum = b.spread_last(sum, &shape)?;
    let p = b.divide(e, sum)?;
    let out = b.dot_general(
        p,
        v,
        DotGeneral {
            lhs_batch: vec![0, 1],
            rhs_batch: vec![0, 1],
            lhs_contracting: vec![4],
            rhs_contracting: vec![2],
            result_dtype: None,
        },
    )?;
    let out = b.reshape(out, &[batch, heads, s, d])?;
    Ok(vec![b.convert(out, dtype)?])
}

fn attention_shape(found: &[usize]) -> Box<Diagnostic> {
    Diagnostic::new("E116", "attention operands")
        .expected("q [batch, heads, s, d]; k, v [batch, groups, t, d]; heads a multiple of groups")
        .found(format!("{found:?}"))
}

/// Batch and head groups pass; a query row needs all keys, and is independent of other rows unless masks look at
/// its place.
fn attention_rule(a: &Attributes, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
    use FactorKind::{Pass, Whole};
    let (q, k) = (&operands[0].shape, &operands[1].shape);
    let mut rule = Rule::default();
    let batch = rule.factor(q[0], Pass);
    let group = rule.factor(k[1], Pass);
    let per = rule.factor(q[1].checked_div(k[1]).unwrap_or(1), Whole);
    // With a causal mask a shard of the rows would have to know where it starts.
    let rows = rule.factor(q[2], if a.flag("causal") { Whole } else { Pass });
    let keys = rule.factor(k[2], Whole);
    let depth = rule.factor(q[3], Whole);
    let heads = if q[1] == k[1] { vec![group] } else { vec![group, per] };
    let q_dims = vec![vec![batch], heads.clone(), vec![rows], vec![depth]];
    let k_dims = vec![vec![batch], vec![group], vec![keys], vec![depth]];
    rule.operands = vec![q_dims.clone(), k_dims.clone(), k_dims];
    if let Some(mask) = operands.get(3) {
        let dim = |extent: usize, of: usize, factors: Vec<usize>| if extent == of { factors } else { vec![] };
        let m = &mask.shape;
        rule.operands.push(vec![
            dim(m[0], q[0], vec![batch]),
            if m[1] == 1 { vec![] } else { heads },
            dim(m[2], q[2], vec![rows]),
            vec![keys],
        ]);
    }
    rule.results = vec![q_dims];
    // The output is linear in the values.
    rule.linear_in(&[2])
}

fn build_rotary(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let x = args[0];
    let shape = b.shape(x);
    let dim = last(b, x)?;
    let half = shape[dim] / 2;
    let low = b.slice_dim(x, dim, 0, half)?;
    let high = b.slice_dim(x, dim, half, shape[dim])?;
    let high = b.negate(high)?;
    let turned = b.concatenate(&[high, low], dim)?;
    let cos = b.broadcast_trailing(args[1], &shape)?;
    let sin = b.broadcast_trailing(args[2], &shape)?;
    let straight = b.multiply(x, cos)?;
    let across = b.multiply(turned, sin)?;
    Ok(vec![b.add(straight, across)?])
}

fn build_dropout(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let rate = a.float("rate")?;
    let x = args[0];
    let ty = b.ty(x).clone();
    let bits = b.random(&RANDOM_BITS, args[1], a.int("stream")? as u64, &ty.shape, DType::U32)?;
    // Kept when the 32-bit draw is at least rate * 2^32.
    let threshold = b.full(&TensorType::new(DType::U32, ty.shape.clone()), (rate * 4294967296.0).round())?;
    let keep = b.compare(Direction::Ge, bits, threshold)?;
    let scaled = b.scale(x, 1.0 / (1.0 - rate))?;
    let zero = b.full(&ty, 0.0)?;
    Ok(vec![b.select(keep, scaled, zero)?])
}

fn build_cross_entropy(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (logits, dtype) = widened(b, args[0])?;
    let labels = args[1];
    let shape = b.shape(logits);
    let dim = last(b, logits)?;
    let found = b.ty(labels).dtype;
    element_type("partita.cross_entropy", found.is_integer(), "labels of whole numbers", found)?;
    // log(sum(exp(x))) - x[label], shifted: neither half of the gradient needs a sum over classes of its own.
    let shifted = shifted(b, logits)?;
    let e = b.exponential(shifted)?;
    let sum = b.reduce_sum(e, &[dim])?;
    let log = b.unary(UnaryKind::Log, sum)?;
    // Picking by comparison rather than by gather lets the class dimension be sharded: each shard finds or does not
    // find the label, and the sum is over all.
    let label_ty = b.ty(labels).clone();
    let classes = b.iota(label_ty.with_shape(shape.clone()), dim)?;
    let wide = b.spread_last(labels, &shape)?;
    let hit = b.compare(Direction::Eq, classes, wide)?;
    let zero = b.full_like(shifted, 0.0)?;
    let picked = b.select(hit, shifted, zero)?;
    let picked = b.reduce_sum(picked, &[dim])?;
    let loss = b.subtract(log, picked)?;
    let ignored = b.full_like(labels, a.float("ignore_index")?)?;
    let counts = b.compare(Direction::Ne, labels, ignored)?;
    let nothing = b.full_like(loss, 0.0)?;
    let loss = b.select(counts, loss, nothing)?;
    Ok(vec![b.convert(loss, dtype)?])
}

/// An attribute that lists sizes or dimensions.
fn sizes(a: &Attributes, name: &str) -> Vec<usize> {
    a.ints(name).iter().map(|&size| size as usize).collect()
}

/// The dimensions of a product as attributes of [`DOT_GENERAL_ADD`].
pub fn dot_general_dims(dot: &DotGeneral) -> Attributes {
    let dims = [&dot.lhs_batch, &dot.rhs_batch, &dot.lhs_contracting, &dot.rhs_contracting];
    let list = |dims: &Vec<usize>| Attribute::Ints(dims.iter().map(|&dim| dim as i64).collect());
    DOT_GENERAL_DIMS.iter().map(|name| name.to_string()).zip(dims.map(list)).collect()
}

const DOT_GENERAL_DIMS: [&str; 4] = ["lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting"];

fn build_dot_general_add(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let [lhs_batch, rhs_batch, lhs_contracting, rhs_contracting] =
        DOT_GENERAL_DIMS.map(|name| sizes(a, name));
    let (dtype, own) = (b.ty(args[0]).dtype, b.ty(args[1]).dtype);
    let result_dtype = (dtype != own).then_some(dtype);
    let dims = DotGeneral { lhs_batch, rhs_batch, lhs_contracting, rhs_contracting, result_dtype };
    let product = b.dot_general(args[1], args[2], dims)?;
    Ok(vec![b.add(args[0], product)?])
}

fn build_embedding(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (table, ids) = (extents::<2>(b, args[0], "table")?, b.shape(args[1]));
    let gather = crate::ops::Gather {
        dims: crate::ops::GatherDims {
            offset_dims: vec![ids.len()],
            collapsed_slice_dims: vec![0],
            start_index_map: vec![0],
            index_vector_dim: ids.len(),
            ..Default::default()
        },
        slice_sizes: vec![1, table[1]],
        indices_are_sorted: false,
    };
    Ok(vec![b.push1(gather, args)?])
}

fn build_mse(_: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let difference = b.subtract(args[0], args[1])?;
    Ok(vec![b.multiply(difference, difference)?])
}

/// A 64-bit constant of the generator, in a whole shape.
fn u64_full(b: &mut GraphBuilder, value: u64, shape: &[usize]) -> Result<ValueId> {
    let scalar = b.constant(Literal::splat_int(&TensorType::scalar(DType::U64), value as i128));
    b.broadcast_scalar(scalar, shape)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that flips each output bit
/// with probability 1/2 for any input bit flipped.
fn mix(b: &mut GraphBuilder, x: ValueId) -> Result<ValueId> {
    let shape = b.shape(x);
    let xor_shift = |b: &mut GraphBuilder, x: ValueId, bits: u64| -> Result<ValueId> {
        let bits = u64_full(b, bits, &shape)?;
        let shifted = b.binary(BinaryKind::ShiftRightLogical, x, bits)?;
        b.binary(BinaryKind::Xor, x, shifted)
    };
    let x = xor_shift(b, x, 30)?;
    let c = u64_full(b, 0xBF58_476D_1CE4_E5B9, &shape)?;
    let x = b.multiply(x, c)?;
    let x = xor_shift(b, x, 27)?;
    let c = u64_full(b, 0x94D0_49BB_1331_11EB, &shape)?;
    let x = b.multiply(x, c)?;
    xor_shift(b, x, 31)
}

/// The golden-ratio increment of SplitMix64.
const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// `key = mix(seed + GAMMA (stream + 1))`, `bits(i) = mix(key + GAMMA (i + 1))`, upper half, where `i` is the
/// row-major index of the element in the *global* shape: any shard of any mesh draws the same numbers.
fn build_random_bits(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (shape, global) = (sizes(a, "shape"), sizes(a, "global_shape"));
    let stream = a.int("stream")? as u64;
    let seed = b.convert(args[0], DType::U64)?;
    let start = u64_full(b, GAMMA.wrapping_mul(stream.wrapping_add(1)), &[])?;
    let key = b.add(seed, start)?;
    let key = mix(b, key)?;
    let ty = TensorType::new(DType::U64, shape.clone());
    let mut index = u64_full(b, 1, &shape)?;
    let strides = crate::types::row_major_strides(&global);
    for (dim, &stride) in strides.iter().enumerate() {
        let along = b.iota(ty.clone(), dim)?;
        let offset = b.slice_dim(args[1], 0, dim, dim + 1)?;
        let offset = b.reshape(offset, &[])?;
        let offset = b.convert(offset, DType::U64)?;
        let offset = b.broadcast_scalar(offset, &shape)?;
        let along = b.add(along, offset)?;
        let stride = u64_full(b, stride as u64, &shape)?;
        let along = b.multiply(along, stride)?;
        index = b.add(index, along)?;
    }
    let gamma = u64_full(b, GAMMA, &shape)?;
    let index = b.multiply(index, gamma)?;
    let key = b.broadcast_scalar(key, &shape)?;
    let word = b.add(key, index)?;
    let word = mix(b, word)?;
    let half = u64_full(b, 32, &shape)?;
    let upper = b.binary(BinaryKind::ShiftRightLogical, word, half)?;
    Ok(vec![b.convert(upper, DType::U32)?])
}

/// Every element is drawn on its own; places enter through the offsets.
fn random_bits_rule(_: &Attributes, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
    let mut rule = Rule::default();
    let offsets = rule.factor(operands[1].shape[0], FactorKind::Whole);
    let dims = results[0].shape.iter().map(|&size| vec![rule.factor(size, FactorKind::Pass)]).collect();
    rule.operands = vec![vec![], vec![vec![offsets]]];
    rule.results = vec![dims];
    rule
}

/// 24 random bits as a number in (0, 1): `(bits / 2^8 + 1/2) / 2^24`, exact in f32 and never 0 or 1.
fn unit_interval(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<(ValueId, DType)> {
    let bits = build_random_bits(a, b, args)?[0];
    let shape = b.shape(bits);
    let dtype = match a.get("dtype") {
        Some(Attribute::DType(dtype)) => *dtype,
        _ => DType::F32,
    };
    let eight = b.full(&TensorType::new(DType::U32, shape), 8.0)?;
    let bits = b.binary(BinaryKind::ShiftRightLogical, bits, eight)?;
    // f64 throughout, so that f32 and f64 runs start from the same numbers.
    let wide = b.convert(bits, DType::F64)?;
    let wide = b.offset(wide, 0.5)?;
    Ok((b.scale(wide, 1.0 / 16777216.0)?, dtype))
}

fn build_uniform(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (unit, dtype) = unit_interval(a, b, args)?;
    Ok(vec![b.convert(unit, dtype)?])
}

fn build_normal(a: &Attributes, b: &mut GraphBuilder, args: &[ValueId]) -> Result<Vec<ValueId>> {
    let (unit, dtype) = unit_interval(a, b, args)?;
    // sqrt(2) erf_inv(2 u - 1)
    let two = b.scale(unit, 2.0)?;
    let symmetric = b.offset(two, -1.0)?;
    let inverse = b.unary(UnaryKind::ErfInv, symmetric)?;
    let normal = b.scale(inverse, std::f64::consts::SQRT_2)?;
    Ok(vec![b.convert(normal, dtype)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autodiff;
    use crate::interpret::evaluate;
    use crate::testing::{check_gradient, random};

    /// Templates whose gradient is written out, with what they are applied to.
    fn cases() -> Vec<(&'static Template, Attributes, Vec<Literal>)> {
        let by_tanh = |tanh| Attributes::from_iter([("tanh".to_string(), Attribute::Bool(tanh))]);
        let line = Literal::new([401], (-200..=200).map(|i| f64::from(i) * 0.1).collect::<Vec<f64>>());
        vec![(&GELU, by_tanh(true), vec![line.clone()]), (&GELU, by_tanh(false), vec![line])]
    }

    #[test]
    fn gradients_that_are_written_out_are_those_of_the_decomposition() {
        for template in ALL.iter().filter(|template| template.gradient.is_some()) {
            assert!(
                cases().iter().any(|(case, ..)| case.name == template.name),
                "{} has no case",
                template.name
            );
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
}
