//! `model.kind = "mlp"`: stacked linear layers with an activation between them.

use super::{ModelKind, ModelSource, Sizes};
use crate::keys::Section;
use partita_base::{DType, Result};
use partita_ir::Graph;
use partita_mesh::Mesh;
use partita_nn::{MlpConfig, Model, ModelConfig};
use partita_schedule::{Plan, ReadyOptions, ready_plan};
use std::sync::Arc;

/// The kind `mlp`.
pub(super) struct Mlp;

impl ModelKind for Mlp {
    fn name(&self) -> &str {
        "mlp"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let d = MlpConfig::default();
        Ok(Arc::new(MlpConfig {
            dims: section.get("dims", d.dims, "features before, between and after the layers")?,
            activation: d.activation,
            bias: section.get("bias", d.bias, "whether linear layers have a bias")?,
            classify: section.get("classify", d.classify, "whether the outputs are scores of classes")?,
        }))
    }
}

impl ModelSource for MlpConfig {
    fn name(&self) -> &str {
        "mlp"
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        ModelConfig::Mlp(self.clone()).build(batch, dtype, training)
    }

    fn validate(&self) -> Result<()> {
        ModelConfig::Mlp(self.clone()).validate()
    }

    fn sizes(&self, batch: usize) -> Sizes {
        let widest = self.dims.iter().copied().max().map_or(0.0, |dim| dim as f64);
        Sizes {
            layers: self.dims.len(),
            tensors: vec![
                ("batch x features", batch as f64 * widest),
                ("features x features", widest * widest),
            ],
        }
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        ready_plan("mlp", forward, mesh, options)
    }
}
