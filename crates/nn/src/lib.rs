//! Building training programs: modules, a model zoo, losses, optimizers, the training step.
//!
//! Knows: how models and their updates are written as graphs. Must not know: what executes a graph, meshes, plans.
#![forbid(unsafe_code)]

pub mod context;
pub mod cotangents;
mod functional;
pub mod init;
pub mod initializer;
pub mod loss_scaling;
pub mod losses;
pub mod model;
pub mod models;
pub mod modules;
pub mod optim;
pub mod random;
pub mod schedule;
pub mod step;
pub mod stored;

pub use context::{Context, ParamSpec};
pub use cotangents::with_cotangents;
pub use init::Init;
pub use initializer::Initializer;
pub use loss_scaling::LossScaling;
pub use model::Model;
pub use models::{
    BertConfig, DeepseekConfig, ExpertsConfig, GptConfig, LlamaConfig, MlpConfig, ModelConfig, T5Config,
    UnetConfig, VitConfig, WideResNetConfig,
};
pub use modules::{
    Activation, BatchNorm2d, Conv2d, ConvTranspose2d, Dropout, Embedding, GELU, GroupNorm, LatentAttention,
    LayerNorm, Linear, MaxPool2d, MixtureOfExperts, Mlp, Module, MultiheadAttention, RMSNorm, ReLU, Scores,
    Sequential, SiLU, SwiGlu, Tanh,
};
pub use optim::Optimizer;
pub use schedule::{Decay, LrSchedule};
pub use step::{
    Group, Rule, StepOptions, append_update, differentiate, gradient_graph, gradient_graph_wrt, train_step,
};
pub use stored::{Stored, Values};

use partita_base::DType;

/// The type of sums and updates: f32 for f16 and bf16, otherwise the type itself.
pub fn accumulation_dtype(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}
