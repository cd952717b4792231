//! Models and tensors of other tools: PyTorch's exported programs (`.pt2`), safetensors files, NumPy's arrays.
//!
//! Knows: file formats, ATen ops, how they become graphs of `ir` and models of `nn`, and what attention looks like
//! there. Must not know: what executes a graph, meshes, plans.
//!
//! ```no_run
//! use partita_import::{ImportOptions, Limits, Pt2};
//!
//! # fn main() -> partita_base::Result<()> {
//! let file = Pt2::open("model.pt2".as_ref(), &Limits::default())?;
//! let imported = file.import(&ImportOptions { batch: Some(32), ..ImportOptions::default() })?;
//! let step = partita_nn::gradient_graph(&imported.model.forward)?;
//! let first = imported.weights.values().next().map(|tensor| tensor.literal()).transpose()?;
//! # Ok(())
//! # }
//! ```
//!
//! In Python: `torch.export.save(torch.export.export(module, args), "model.pt2")`, where `forward` takes
//! the labels and returns the loss among its outputs. An export has no backward pass: what a
//! `torch.autograd.Function` defines as its own gradient is not in the file, and the gradient here is
//! that of its forward ops.
#![forbid(unsafe_code)]

mod archive;
mod aten;
mod attention;
pub mod families;
pub mod file;
mod inflate;
pub mod limits;
pub mod mlir;
pub mod model;
pub mod numpy;
mod padding;
pub mod pt2;
pub mod source;
pub mod stablehlo;
mod strided;
pub mod tensor;
pub mod weights;

pub use attention::recognise_attention;
pub use file::ModelFile;
pub use limits::Limits;
pub use model::{ImportOptions, ImportedModel, State};
pub use padding::fold_padding;
pub use pt2::Pt2;
pub use source::Source;
pub use stablehlo::StableHlo;
pub use tensor::Tensor;
pub use weights::{Weights, save, save_sharded};
