//! The names that a program which schedules and trains models needs: `use partita::prelude::*`.

pub use crate::config::Config;
pub use crate::execution::CpuStep;
pub use crate::feeds::Feed;
pub use crate::infer::Inference;
pub use crate::keys::Section;
pub use crate::models::{ModelKind, ModelKinds, ModelSource, from_fn};
pub use crate::planned_step::PlannedStep;
pub use crate::session::Session;
pub use crate::trainer::{Observer, Trainer, Unobserved};
pub use partita_base::{DType, Diagnostic, Result};
pub use partita_ir::ops::UnaryKind;
pub use partita_ir::{
    Attribute, CustomOp, Graph, GraphBuilder, Literal, Op, Registry, Role, TensorType, ValueId, composites,
};
pub use partita_mesh::{Mesh, Sharding};
pub use partita_nn::{
    Activation, BertConfig, Context, Dropout, Embedding, GELU, GptConfig, Init, LayerNorm, Linear,
    LlamaConfig, Mlp, MlpConfig, Model, ModelConfig, Module, MultiheadAttention, Optimizer, RMSNorm, ReLU,
    Sequential, SiLU, StepOptions, SwiGlu, Tanh, losses,
};
pub use partita_program::{Counts, counts_of_graph};
pub use partita_runtime::{Cpu, CpuKernel, CpuKernels, RunnerOptions, StepReport, TensorView, TensorViewMut};
pub use partita_schedule::feed::{Fed, random_feed};
pub use partita_schedule::verify::{Report, StepRunner};
pub use partita_schedule::{Argument, At, Built, Pattern, Plan, Schedule, Style, Subgraphs};
