//! Models of images: `model.kind = "wide-resnet"` (Zagoruyko and Komodakis 2016), `"vit"` (Dosovitskiy et al. 2020) and
//! `"unet"` (Ronneberger et al. 2015).

use super::{ModelKind, ModelSource, Sizes};
use crate::keys::Section;
use partita_base::{DType, Result};
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_nn::{Model, ModelConfig, UnetConfig, VitConfig, WideResNetConfig};
use partita_schedule::{Plan, ReadyOptions, ready_plan};
use std::sync::Arc;

/// The kind `wide-resnet`.
pub(super) struct WideResNet;

impl ModelKind for WideResNet {
    fn name(&self) -> &str {
        "wide-resnet"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let d = WideResNetConfig::default();
        Ok(Arc::new(WideResNetConfig {
            blocks: section.get("blocks", d.blocks, "residual blocks of each stage")?,
            dim: section.get("dim", d.dim, "features of the first stage within a block")?,
            width: section.get(
                "width",
                d.width,
                "features behind the middle convolution of a block over those before",
            )?,
            expansion: section.get("expansion", d.expansion, "features between blocks over those within")?,
            image: section.get("image", d.image, "height and width of an image")?,
            channels: section.get("channels", d.channels, "channels of an image")?,
            classes: section.get("classes", d.classes, "classes of images")?,
            stem: section.get(
                "stem",
                d.stem,
                "extent of the first convolution's window; above 3 it halves, and pools",
            )?,
        }))
    }
}

/// The kind `vit`.
pub(super) struct Vit;

impl ModelKind for Vit {
    fn name(&self) -> &str {
        "vit"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let d = VitConfig::default();
        Ok(Arc::new(VitConfig {
            image: section.get("image", d.image, "height and width of an image")?,
            patch: section.get("patch", d.patch, "height and width of a patch")?,
            channels: section.get("channels", d.channels, "channels of an image")?,
            classes: section.get("classes", d.classes, "classes of images")?,
            dim: section.get("dim", d.dim, "features of the residual stream")?,
            layers: section.get("layers", d.layers, "transformer layers")?,
            heads: section.get("heads", d.heads, "heads of the attention")?,
            mlp_ratio: section.get(
                "mlp_ratio",
                d.mlp_ratio,
                "hidden features of the feed-forward block, in multiples of dim",
            )?,
            dropout: section.get("dropout", d.dropout, "dropout after the embedding and each block")?,
        }))
    }
}

/// The kind `unet`.
pub(super) struct Unet;

impl ModelKind for Unet {
    fn name(&self) -> &str {
        "unet"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let d = UnetConfig::default();
        Ok(Arc::new(UnetConfig {
            image: section.get("image", d.image, "height and width of an image")?,
            channels: section.get("channels", d.channels, "channels of an image")?,
            outputs: section.get("outputs", d.outputs, "channels of an output")?,
            dim: section.get("dim", d.dim, "features at full resolution")?,
            depth: section.get("depth", d.depth, "halvings of the image")?,
            groups: section.get("groups", d.groups, "groups of the norms")?,
        }))
    }
}

/// Elements of images `side` wide, with so many features.
fn images(batch: usize, side: usize, features: f64) -> (&'static str, f64) {
    ("batch x image x features", batch as f64 * (side as f64).powi(2) * features)
}

impl ModelSource for WideResNetConfig {
    fn name(&self) -> &str {
        "wide-resnet"
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::WideResNet(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::WideResNet(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let most = self.dim as f64 * 2f64.powi(self.blocks.len().min(64) as i32 - 1);
        let (middle, output) = (most * self.width as f64, most * self.expansion as f64);
        Sizes {
            layers: self.blocks.iter().fold(0, |sum, &blocks| sum.saturating_add(blocks)),
            tensors: vec![
                images(batch, self.image, self.channels.max(self.dim) as f64),
                ("features x features x window", (9.0 * most * middle).max(middle * output)),
                ("features x classes", output * self.classes as f64),
            ],
        }
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        ready_plan("wide-resnet", forward, mesh, options)
    }
}

impl ModelSource for VitConfig {
    fn name(&self) -> &str {
        "vit"
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::Vit(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::Vit(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let side = self.image as f64 / self.patch.max(1) as f64;
        let sequence = (side * side).min(1e15) as usize;
        let hidden = self.dim as f64 * self.mlp_ratio as f64;
        let mut sizes =
            Sizes::of_transformer(batch, self.layers, [self.classes, self.dim, self.heads, sequence], hidden);
        sizes.tensors.push(images(batch, self.image, self.channels as f64));
        sizes
    }

    fn with_layers(&self, layers: usize) -> Option<Arc<dyn ModelSource>> {
        Some(Arc::new(VitConfig { layers, ..self.clone() }))
    }

    fn stream(&self) -> Option<[usize; 3]> {
        Some([self.layers, self.sequence(), self.dim])
    }

    /// What counts is images, not their patches.
    fn tokens(&self) -> Option<usize> {
        None
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        ready_plan("vit", forward, mesh, options)
    }
}

impl ModelSource for UnetConfig {
    fn name(&self) -> &str {
        "unet"
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::Unet(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::Unet(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let most = self.dim as f64 * 2f64.powi(self.depth.min(64) as i32);
        Sizes {
            layers: self.depth.saturating_mul(2).saturating_add(1),
            tensors: vec![
                images(
                    batch,
                    self.image,
                    (2 * self.dim.min(1 << 40)).max(self.channels).max(self.outputs) as f64,
                ),
                ("features x features x window", 9.0 * most * most),
            ],
        }
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        ready_plan("unet", forward, mesh, options)
    }
}
