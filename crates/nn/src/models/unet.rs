//! A U-Net (Ronneberger et al. 2015) with group norms and SiLU, from images to images.

use super::positive;
use crate::context::Context;
use crate::losses;
use crate::modules::{Activation, Conv2d, ConvTranspose2d, GroupNorm, MaxPool2d, Module};
use partita_base::{Diagnostic, Result};
use partita_ir::ValueId;
use partita_ir::port::LOSS;

/// Parameters: `layers.N.{conv1,norm1,conv2,norm2}` for the blocks on the way down, the one at the bottom and those on the
/// way up, these with `layers.N.up`, and `head`. `inputs` are `[batch, image, image, channels]`, `targets` `[batch, image,
/// image, outputs]`; the loss is the mean squared error.
#[derive(Clone, PartialEq, Debug)]
pub struct UnetConfig {
    /// Height and width of an image; a multiple of 2 to the power of `depth`.
    pub image: usize,
    /// Channels of an input.
    pub channels: usize,
    /// Channels of an output.
    pub outputs: usize,
    /// Features at full resolution; twice as many at each halving.
    pub dim: usize,
    /// Halvings of the image.
    pub depth: usize,
    /// Groups of the norms; a divisor of `dim`.
    pub groups: usize,
}

impl Default for UnetConfig {
    fn default() -> Self {
        UnetConfig { image: 16, channels: 3, outputs: 3, dim: 8, depth: 2, groups: 4 }
    }
}

/// Two convolutions, each with norm and activation.
#[derive(Clone, Debug)]
struct Block {
    input: usize,
    output: usize,
    groups: usize,
}

impl Module for Block {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        let norm = GroupNorm::new(self.groups, self.output);
        let y = cx.apply("conv1", &Conv2d::new(self.input, self.output, 3), x)?;
        let y = cx.apply("norm1", &norm, y)?;
        let y = Activation::Silu.forward(cx, y)?;
        let y = cx.apply("conv2", &Conv2d::new(self.output, self.output, 3), y)?;
        let y = cx.apply("norm2", &norm, y)?;
        Activation::Silu.forward(cx, y)
    }
}

impl UnetConfig {
    pub(super) fn validate(&self) -> Result<()> {
        for (key, value) in [
            ("image", self.image),
            ("channels", self.channels),
            ("outputs", self.outputs),
            ("dim", self.dim),
            ("depth", self.depth),
            ("groups", self.groups),
        ] {
            positive(key, value)?;
        }
        let refused = |key: &str, expected: String, found: usize| {
            Diagnostic::new("E050", format!("`{key}` does not fit the network"))
                .at(key)
                .expected(expected)
                .found(found.to_string())
        };
        if self.depth > 16 || !self.image.is_multiple_of(1 << self.depth.min(16)) {
            return Err(refused(
                "image",
                format!("a multiple of 2 to the power of {}", self.depth),
                self.image,
            ));
        }
        if !self.dim.is_multiple_of(self.groups) {
            return Err(refused("groups", format!("a divisor of {}", self.dim), self.groups));
        }
        Ok(())
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let dtype = cx.dtype();
        let images = cx.input("inputs", dtype, &[batch, self.image, self.image, self.channels]);
        let targets = cx.input("targets", dtype, &[batch, self.image, self.image, self.outputs]);
        let groups = self.groups;
        let (mut x, mut features, mut number) = (images, self.channels, 0);
        let mut kept = Vec::new();
        for level in 0..=self.depth {
            let output = self.dim << level;
            x = cx.scope(&format!("layers.{number}"), |cx| {
                let pool = MaxPool2d { kernel: 2, stride: 2, padding: 0 };
                let x = if level > 0 { cx.call("pool", &pool, x)? } else { x };
                Block { input: features, output, groups }.forward(cx, x)
            })?;
            (features, number) = (output, number + 1);
            kept.push(x);
        }
        for level in (0..self.depth).rev() {
            let (output, beside) = (self.dim << level, kept[level]);
            x = cx.scope(&format!("layers.{number}"), |cx| {
                let up = ConvTranspose2d { in_channels: features, out_channels: output, kernel: 2 };
                let x = cx.call("up", &up, x)?;
                let both = cx.builder.concatenate(&[beside, x], 3)?;
                Block { input: 2 * output, output, groups }.forward(cx, both)
            })?;
            (features, number) = (output, number + 1);
        }
        let y = cx.call("head", &Conv2d::new(self.dim, self.outputs, 1), x)?;
        let loss = losses::mse(cx, y, targets)?;
        Ok(vec![(LOSS.to_string(), loss), ("outputs".to_string(), y)])
    }
}
