//! A vision transformer (Dosovitskiy et al. 2020) whose patches are averaged (Beyer et al. 2022).

use super::gpt::{STD, add_positions};
use super::{image_inputs, positive, rate, with_loss};
use crate::context::Context;
use crate::init::Init;
use crate::modules::{Conv2d, LayerNorm, Linear, Mlp, MultiheadAttention};
use partita_base::{Diagnostic, Result};
use partita_ir::ValueId;

/// Parameters: `embed_patches`, `embed_positions`, `layers.N.{attn_norm,mlp_norm}`, `layers.N.attn.{q,k,v,o}_proj`,
/// `layers.N.mlp.{up,down}_proj`, `norm`, `head`. Images are `inputs` `[batch, image, image, channels]`.
#[derive(Clone, PartialEq, Debug)]
pub struct VitConfig {
    /// Height and width of an image; a multiple of `patch`.
    pub image: usize,
    /// Height and width of a patch.
    pub patch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Classes.
    pub classes: usize,
    /// Features of the residual stream.
    pub dim: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Hidden features of the feed-forward block, in multiples of `dim`.
    pub mlp_ratio: usize,
    /// Dropout after the embedding and each block.
    pub dropout: f64,
}

impl Default for VitConfig {
    fn default() -> Self {
        VitConfig {
            image: 16,
            patch: 4,
            channels: 3,
            classes: 10,
            dim: 32,
            layers: 2,
            heads: 4,
            mlp_ratio: 4,
            dropout: 0.0,
        }
    }
}

impl VitConfig {
    /// Patches of an image.
    pub fn sequence(&self) -> usize {
        (self.image / self.patch.max(1)).pow(2)
    }

    fn attention(&self) -> MultiheadAttention {
        MultiheadAttention {
            init: Some(Init::Normal { std: STD }),
            ..MultiheadAttention::new(self.dim, self.heads)
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        for (key, value) in [
            ("image", self.image),
            ("patch", self.patch),
            ("channels", self.channels),
            ("classes", self.classes),
            ("dim", self.dim),
            ("layers", self.layers),
            ("mlp_ratio", self.mlp_ratio),
        ] {
            positive(key, value)?;
        }
        if !self.image.is_multiple_of(self.patch) {
            return Err(Diagnostic::new("E050", "patches do not cover the image")
                .at("patch")
                .expected(format!("a divisor of {}", self.image))
                .found(self.patch.to_string()));
        }
        rate("dropout", self.dropout)?;
        self.attention().validate()
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let init = Init::Normal { std: STD };
        let (images, labels) = image_inputs(cx, batch, [self.image, self.image, self.channels]);
        let patches =
            Conv2d { padding: 0, ..Conv2d::new(self.channels, self.dim, self.patch).stride(self.patch) };
        let x = cx.call("embed_patches", &patches, images)?;
        let mut x = cx.builder.reshape(x, &[batch, self.sequence(), self.dim])?;
        x = add_positions(cx, x, self.sequence(), self.dim)?;
        x = cx.dropout(x, self.dropout)?;
        let norm = LayerNorm::new(self.dim).epsilon(1e-6);
        let mlp = Mlp { init: Some(init), ..Mlp::new(self.dim, self.mlp_ratio * self.dim) };
        let attention = self.attention();
        for layer in 0..self.layers {
            x = cx.scope(&format!("layers.{layer}"), |cx| {
                let h = cx.call("attn_norm", &norm, x)?;
                let h = cx.call("attn", &attention, h)?;
                let h = cx.dropout(h, self.dropout)?;
                let x = cx.builder.add(x, h)?;
                let h = cx.call("mlp_norm", &norm, x)?;
                let h = cx.call("mlp", &mlp, h)?;
                let h = cx.dropout(h, self.dropout)?;
                cx.builder.add(x, h)
            })?;
        }
        x = cx.call("norm", &norm, x)?;
        let pooled = cx.mean(x, &[1])?;
        let logits = cx.call("head", &Linear::new(self.dim, self.classes).init(init), pooled)?;
        with_loss(cx, logits, labels)
    }
}
