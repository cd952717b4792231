//! A GPT-2 style decoder: learned positions, pre-norm blocks, tanh GELU.

use super::{Documents, ExpertsConfig, positive, rate, token_inputs, with_loss};
use crate::context::Context;
use crate::init::Init;
use crate::modules::{Activation, Embedding, LayerNorm, Linear, Mlp, MultiheadAttention};
use partita_base::Result;
use partita_ir::ValueId;

/// Parameters: `embed_tokens`, `embed_positions`, `layers.N.attn_norm`,
/// `layers.N.attn.{q,k,v,o}_proj` (or `qkv_proj`), `layers.N.mlp_norm`,
/// `layers.N.mlp.{up,down}_proj`, `norm`, `lm_head`. Initialised as GPT-2: normal with standard
/// deviation 0.02, divided by sqrt(2 layers) in layers that write to the residual stream.
#[derive(Clone, PartialEq, Debug)]
pub struct GptConfig {
    /// Vocabulary size.
    pub vocab: usize,
    /// Features of the residual stream.
    pub dim: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `None` means as many as `heads`.
    pub kv_heads: Option<usize>,
    /// Positions.
    pub sequence: usize,
    /// How many positions a query sees, its own among them; `None` for all before it.
    pub window: Option<usize>,
    /// Whether rows are packed with documents: then there is an input `positions` i32 `[batch, sequence]`, the position of
    /// each token in its document, and a token sees its own document only.
    pub documents: bool,
    /// Hidden features of the feed-forward block, in multiples of `dim`.
    pub mlp_ratio: usize,
    /// Dropout after the embedding and each attention and feed-forward block.
    pub dropout: f64,
    /// Whether `lm_head.weight` is `embed_tokens.weight`.
    pub tied: bool,
    /// Whether q, k, v share one projection.
    pub fused_qkv: bool,
    /// Whether linear layers (but `lm_head`) and norms have a bias.
    pub bias: bool,
    /// Experts in place of some feed-forward blocks (GShard, Lepikhin et al. 2020).
    pub experts: Option<ExpertsConfig>,
}

impl Default for GptConfig {
    fn default() -> Self {
        GptConfig {
            vocab: 256,
            dim: 64,
            layers: 2,
            heads: 4,
            kv_heads: None,
            sequence: 64,
            window: None,
            documents: false,
            mlp_ratio: 4,
            dropout: 0.0,
            tied: true,
            fused_qkv: false,
            bias: true,
            experts: None,
        }
    }
}

/// GPT-2's standard deviation of initial weights, kept by most models since.
pub(super) const STD: f64 = 0.02;

/// The initial weight of layers that write to the residual stream: keeps its magnitude independent
/// of depth.
pub(super) fn residual_init(layers: usize) -> Init {
    Init::Normal { std: STD / (2.0 * layers.max(1) as f64).sqrt() }
}

impl GptConfig {
    /// The tiny default with experts in every second layer.
    pub fn with_experts() -> GptConfig {
        GptConfig { experts: Some(ExpertsConfig::default()), ..GptConfig::default() }
    }

    fn attention(&self) -> MultiheadAttention {
        MultiheadAttention {
            kv_heads: self.kv_heads.unwrap_or(self.heads),
            causal: true,
            window: self.window,
            fused_qkv: self.fused_qkv,
            bias: self.bias,
            init: Some(Init::Normal { std: STD }),
            out_init: Some(residual_init(self.layers)),
            ..MultiheadAttention::new(self.dim, self.heads)
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        positive("vocab", self.vocab)?;
        positive("dim", self.dim)?;
        positive("layers", self.layers)?;
        positive("sequence", self.sequence)?;
        positive("mlp_ratio", self.mlp_ratio)?;
        rate("dropout", self.dropout)?;
        if let Some(experts) = &self.experts {
            experts.validate(self.layers)?;
            experts.mixture(self.dim, self.mlp_ratio * self.dim, false, self.layers).validate()?;
        }
        self.attention().validate()
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let init = Init::Normal { std: STD };
        let (tokens, labels) = token_inputs(cx, batch, self.sequence);
        let documents = self.documents.then(|| Documents::of(cx, batch, self.sequence)).transpose()?;
        let table = Embedding::new(self.vocab, self.dim).init(init);
        let mut x = cx.call("embed_tokens", &table, tokens)?;
        x = match &documents {
            None => add_positions(cx, x, self.sequence, self.dim)?,
            Some(documents) => {
                let table = Embedding::new(self.sequence, self.dim).init(init);
                let places = cx.call("embed_positions", &table, documents.positions)?;
                cx.builder.add(x, places)?
            }
        };
        x = cx.dropout(x, self.dropout)?;
        let norm = LayerNorm::new(self.dim).bias(self.bias);
        let mlp = Mlp {
            activation: Activation::GeluTanh,
            bias: self.bias,
            init: Some(init),
            out_init: Some(residual_init(self.layers)),
            ..Mlp::new(self.dim, self.mlp_ratio * self.dim)
        };
        let attention = self.attention();
        let experts = self.experts.as_ref();
        let mixture =
            experts.map(|experts| experts.mixture(self.dim, self.mlp_ratio * self.dim, false, self.layers));
        for layer in 0..self.layers {
            x = cx.scope(&format!("layers.{layer}"), |cx| {
                let h = cx.call("attn_norm", &norm, x)?;
                let h = cx.scope("attn", |cx| {
                    cx.note_kind(&attention);
                    attention.forward_masked(cx, h, documents.map(|documents| documents.limits))
                })?;
                let h = cx.dropout(h, self.dropout)?;
                let x = cx.builder.add(x, h)?;
                let h = cx.call("mlp_norm", &norm, x)?;
                let h = match (experts, &mixture) {
                    (Some(experts), Some(mixture)) if experts.has(layer) => cx.call("moe", mixture, h)?,
                    _ => cx.call("mlp", &mlp, h)?,
                };
                let h = cx.dropout(h, self.dropout)?;
                cx.builder.add(x, h)
            })?;
        }
        x = cx.call("norm", &norm, x)?;
        if self.tied {
            cx.tie("lm_head.weight", "embed_tokens.weight")?;
        }
        let head = Linear::new(self.dim, self.vocab).bias(false).init(init);
        let logits = cx.call("lm_head", &head, x)?;
        with_loss(cx, logits, labels)
    }
}

/// `x[batch, sequence, dim]` plus the table `embed_positions.weight[sequence, dim]`.
pub(super) fn add_positions(cx: &mut Context, x: ValueId, sequence: usize, dim: usize) -> Result<ValueId> {
    let positions = Embedding::new(sequence, dim).init(Init::Normal { std: STD });
    cx.scope("embed_positions", |cx| {
        let table = positions.table(cx)?;
        let shape = cx.shape(x);
        let table = cx.builder.broadcast_trailing(table, &shape)?;
        cx.builder.add(x, table)
    })
}
