//! Models and weights of other tools: PyTorch's exported programs (`.pt2`) and safetensors files.
//!
//! Knows: file formats, ATen ops, how they become graphs of `ir` and models of `nn`. Must not know:
//! what executes a graph, meshes, plans.
#![deny(unsafe_code)]

mod archive;
mod aten;
pub mod families;
pub mod limits;
mod mapped;
pub mod model;
pub mod pt2;
pub mod tensor;
pub mod weights;

pub use limits::Limits;
pub use mapped::Bytes;
pub use model::{ImportOptions, ImportedModel, State};
pub use pt2::Pt2;
pub use tensor::Tensor;
pub use weights::{Weights, save, save_sharded};
