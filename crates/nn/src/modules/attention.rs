//! Multi-head attention: separate or fused projections, grouped key/value heads, rotary positions.

use super::Module;
use super::mlp::linear;
use crate::accumulation_dtype;
use crate::context::Context;
use crate::init::Init;
use partita_base::{Diagnostic, Result};
use partita_ir::composites::{ATTENTION, ROTARY};
use partita_ir::ops::UnaryKind;
use partita_ir::{Attribute, TensorType, ValueId};

/// Self-attention over `x[batch, sequence, dim]`.
#[derive(Clone, Debug)]
pub struct MultiheadAttention {
    /// Extent of the last dimension.
    pub dim: usize,
    /// Query heads; each has `dim / heads` features.
    pub heads: usize,
    /// Key and value heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Whether attention is causal: a position attends only to itself and earlier ones.
    pub causal: bool,
    /// With a window of N, a position attends to none that is N or more away.
    pub window: Option<usize>,
    /// The base of rotary positions; `None` for no rotation.
    pub rotary: Option<f64>,
    /// One projection `qkv_proj` with the rows of q, then k, then v, instead of three.
    pub fused_qkv: bool,
    /// Whether the projections have a bias.
    pub bias: bool,
    /// Initial q, k, v; `None` is PyTorch's default of `Linear` for all projections.
    pub init: Option<Init>,
    /// Initial `o_proj` if `init` is given; `None` is the same as `init`.
    pub out_init: Option<Init>,
}

impl MultiheadAttention {
    /// Bidirectional attention with biases and as many key as query heads.
    pub fn new(dim: usize, heads: usize) -> MultiheadAttention {
        MultiheadAttention {
            dim,
            heads,
            kv_heads: heads,
            causal: false,
            window: None,
            rotary: None,
            fused_qkv: false,
            bias: true,
            init: None,
            out_init: None,
        }
    }

    /// E050 unless `heads` divides `dim`, `kv_heads` divides `heads`, and rotary heads have an even
    /// size.
    pub fn validate(&self) -> Result<()> {
        let complain = |message: &str, expected: String, found: usize| {
            Err(Diagnostic::new("E050", message).expected(expected).found(found.to_string()))
        };
        if self.heads == 0 || !self.dim.is_multiple_of(self.heads) {
            return complain(
                "heads do not divide the model dimension",
                format!("a divisor of {}", self.dim),
                self.heads,
            );
        }
        if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return complain(
                "kv_heads do not divide heads",
                format!("a divisor of {}", self.heads),
                self.kv_heads,
            );
        }
        if self.window == Some(0) {
            return complain("a window of no tokens", "at least 1 token".into(), 0);
        }
        if self.rotary.is_some() && !(self.dim / self.heads).is_multiple_of(2) {
            return complain(
                "rotary positions need an even head dimension",
                "an even dim / heads".into(),
                self.dim / self.heads,
            );
        }
        Ok(())
    }

    /// Attention with a mask `i1[batch, 1, sequence or 1, sequence]`, of which false masks a key, or with limits `i32[batch,
    /// sequence, 2]`: the first position that each one sees, and the one behind the last.
    pub fn forward_masked(&self, cx: &mut Context, x: ValueId, mask: Option<ValueId>) -> Result<ValueId> {
        self.validate()?;
        cx.builder.check(&[x])?;
        cx.builder.check(mask.as_slice())?;
        let shape = cx.shape(x);
        let [batch, sequence, _] = shape[..] else {
            return Err(Diagnostic::new("E050", "the input of attention has the wrong shape")
                .at(cx.builder.path.clone())
                .expected("[batch, sequence, dim]")
                .found(format!("{shape:?}")));
        };
        let depth = self.dim / self.heads;
        let (q_rows, kv_rows) = (self.dim, self.kv_heads * depth);
        let (q, k, v) = if self.fused_qkv {
            let fused = linear(self.dim, q_rows + 2 * kv_rows, self.bias, self.init);
            let all = cx.apply("qkv_proj", &fused, x)?;
            let mut part = |start: usize, rows: usize| cx.builder.slice_dim(all, 2, start, start + rows);
            (part(0, q_rows)?, part(q_rows, kv_rows)?, part(q_rows + kv_rows, kv_rows)?)
        } else {
            let mut project = |name: &str, rows: usize| {
                let linear = linear(self.dim, rows, self.bias, self.init);
                cx.apply(name, &linear, x)
            };
            (project("q_proj", q_rows)?, project("k_proj", kv_rows)?, project("v_proj", kv_rows)?)
        };
        let mut split = |x: ValueId, heads: usize| {
            let x = cx.builder.reshape(x, &[batch, sequence, heads, depth])?;
            cx.builder.transpose(x, &[0, 2, 1, 3])
        };
        let (mut q, mut k, v) = (split(q, self.heads)?, split(k, self.kv_heads)?, split(v, self.kv_heads)?);
        if let Some(base) = self.rotary {
            let tables = rotary_tables(cx, sequence, depth, base)?;
            q = cx.builder.composite(&ROTARY, &[], &[q, tables[0], tables[1]])?;
            k = cx.builder.composite(&ROTARY, &[], &[k, tables[0], tables[1]])?;
        }
        let mut attributes = vec![
            ("causal", Attribute::Bool(self.causal)),
            ("scale", Attribute::Float(1.0 / (depth as f64).sqrt())),
        ];
        attributes.extend(self.window.map(|window| ("window", Attribute::Int(window as i64))));
        let mut operands = vec![q, k, v];
        operands.extend(mask);
        let y = cx.builder.composite(&ATTENTION, &attributes, &operands)?;
        let y = cx.builder.transpose(y, &[0, 2, 1, 3])?;
        let y = cx.builder.reshape(y, &[batch, sequence, self.dim])?;
        let out = linear(self.dim, self.dim, self.bias, self.out_init.or(self.init));
        cx.apply("o_proj", &out, y)
    }
}

impl Module for MultiheadAttention {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        self.forward_masked(cx, x, None)
    }
}

/// Cosines and sines `[sequence, depth]` of `position * base^(-2 i / depth)`, for the pairs (i, i +
/// depth/2). Computed in the graph, once for all layers: a constant would enlarge every pass and
/// text.
pub(super) fn rotary_tables(
    cx: &mut Context,
    sequence: usize,
    depth: usize,
    base: f64,
) -> Result<Vec<ValueId>> {
    let dtype = cx.dtype();
    let key = format!("rotary_{sequence}_{depth}_{base}").replace('.', "_");
    cx.shared(&key, |b| {
        let ty = TensorType::new(accumulation_dtype(dtype), [sequence, depth / 2]);
        let position = b.iota(ty.clone(), 0)?;
        let pair = b.iota(ty, 1)?;
        let exponent = b.scale(pair, -2.0 / depth as f64 * base.ln())?;
        let frequency = b.exponential(exponent)?;
        let angle = b.multiply(position, frequency)?;
        let angle = b.concatenate(&[angle, angle], 1)?;
        let cosine = b.unary(UnaryKind::Cosine, angle)?;
        let sine = b.unary(UnaryKind::Sine, angle)?;
        Ok(vec![b.convert(cosine, dtype)?, b.convert(sine, dtype)?])
    })
}
