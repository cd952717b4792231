//! Wide residual networks of bottleneck blocks (He et al. 2015, Zagoruyko and Komodakis 2016), in the shape of Alpa's
//! benchmark.

use super::{image_inputs, positive, with_loss};
use crate::context::Context;
use crate::init::Init;
use crate::modules::{Activation, BatchNorm2d, Conv2d, Linear, MaxPool2d, Module};
use partita_base::{Diagnostic, Result};
use partita_ir::ValueId;

/// Parameters: `stem.{conv,norm}`, `layers.N.{conv,norm}{1,2,3}` and, in the first block of a stage,
/// `layers.N.{proj,proj_norm}`, `head`. Block N of the whole network is `layers.N`. Images are `inputs`
/// `[batch, image, image, channels]`.
#[derive(Clone, PartialEq, Debug)]
pub struct WideResNetConfig {
    /// Blocks of each stage; images are half as large and features twice as many from each stage to the next.
    pub blocks: Vec<usize>,
    /// Features of the first stage within a block.
    pub dim: usize,
    /// Features behind the middle convolution of a block, over those before it.
    pub width: usize,
    /// Features between blocks, over those within them.
    pub expansion: usize,
    /// Height and width of an image.
    pub image: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Classes.
    pub classes: usize,
    /// Extent of the windows of the first convolution, which has a stride of 2 and is followed by pooling; 3 for one of
    /// stride 1 without pooling, as for small images.
    pub stem: usize,
}

impl Default for WideResNetConfig {
    fn default() -> Self {
        WideResNetConfig {
            blocks: vec![1, 1],
            dim: 8,
            width: 2,
            expansion: 4,
            image: 16,
            channels: 3,
            classes: 10,
            stem: 3,
        }
    }
}

/// One block: `relu(x + norm3(conv3(relu(norm2(conv2(relu(norm1(conv1(x)))))))))`.
#[derive(Clone, Debug)]
struct Block {
    input: usize,
    dim: usize,
    middle: usize,
    output: usize,
    stride: usize,
}

/// A convolution without a bias, initialised for a ReLU behind it (He et al. 2015).
fn conv(input: usize, output: usize, kernel: usize) -> Conv2d {
    let std = (2.0 / (output * kernel * kernel) as f64).sqrt();
    Conv2d { init: Init::Normal { std }, ..Conv2d::new(input, output, kernel) }.bias(false)
}

impl Module for Block {
    fn forward(&self, cx: &mut Context, x: ValueId) -> Result<ValueId> {
        let y = cx.apply("conv1", &conv(self.input, self.dim, 1), x)?;
        let y = cx.apply("norm1", &BatchNorm2d::new(self.dim), y)?;
        let y = Activation::Relu.forward(cx, y)?;
        let y = cx.apply("conv2", &conv(self.dim, self.middle, 3).stride(self.stride), y)?;
        let y = cx.apply("norm2", &BatchNorm2d::new(self.middle), y)?;
        let y = Activation::Relu.forward(cx, y)?;
        let y = cx.apply("conv3", &conv(self.middle, self.output, 1), y)?;
        let y = cx.apply("norm3", &BatchNorm2d::new(self.output), y)?;
        let mut residual = x;
        if self.input != self.output || self.stride != 1 {
            residual = cx.apply("proj", &conv(self.input, self.output, 1).stride(self.stride), x)?;
            residual = cx.apply("proj_norm", &BatchNorm2d::new(self.output), residual)?;
        }
        let sum = cx.builder.add(residual, y)?;
        Activation::Relu.forward(cx, sum)
    }
}

impl WideResNetConfig {
    pub(super) fn validate(&self) -> Result<()> {
        for (key, value) in [
            ("dim", self.dim),
            ("width", self.width),
            ("expansion", self.expansion),
            ("image", self.image),
            ("channels", self.channels),
            ("classes", self.classes),
            ("stem", self.stem),
            ("blocks", self.blocks.len()),
        ] {
            positive(key, value)?;
        }
        self.blocks.iter().try_for_each(|&blocks| positive("blocks", blocks))?;
        let halvings = self.blocks.len() - 1 + if self.stem > 3 { 2 } else { 0 };
        if self.image >> halvings.min(63) == 0 {
            return Err(Diagnostic::new("E050", "images are too small for so many stages")
                .at("image")
                .expected(format!("at least {} elements on each side", 1u64 << halvings.min(62)))
                .found(self.image.to_string()));
        }
        Ok(())
    }

    pub(super) fn forward(&self, cx: &mut Context, batch: usize) -> Result<Vec<(String, ValueId)>> {
        let (images, labels) = image_inputs(cx, batch, [self.image, self.image, self.channels]);
        let mut x = cx.scope("stem", |cx| {
            let is_large = self.stem > 3;
            let stem = conv(self.channels, self.dim, self.stem).stride(if is_large { 2 } else { 1 });
            let x = cx.call("conv", &stem, images)?;
            let x = cx.call("norm", &BatchNorm2d::new(self.dim), x)?;
            let x = Activation::Relu.forward(cx, x)?;
            let pool = MaxPool2d { kernel: 3, stride: 2, padding: 1 };
            if is_large { pool.forward(cx, x) } else { Ok(x) }
        })?;
        let (mut features, mut number) = (self.dim, 0);
        for (stage, &blocks) in self.blocks.iter().enumerate() {
            let dim = self.dim << stage;
            for place in 0..blocks {
                let stride = if stage > 0 && place == 0 { 2 } else { 1 };
                let (middle, output) = (dim * self.width, dim * self.expansion);
                x = cx.call(
                    &format!("layers.{number}"),
                    &Block { input: features, dim, middle, output, stride },
                    x,
                )?;
                (features, number) = (output, number + 1);
            }
        }
        let pooled = cx.mean(x, &[1, 2])?;
        let logits = cx.call("head", &Linear::new(features, self.classes), pooled)?;
        with_loss(cx, logits, labels)
    }
}
