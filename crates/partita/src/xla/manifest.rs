//! What is known of an exported step beside its programs: a file that the export writes and runners read.

use partita_base::DType;
use serde::{Deserialize, Serialize};

/// The file of the [`Manifest`].
pub const MANIFEST_FILE: &str = "manifest.json";
/// The file of the initial parameters and states.
pub const STATE_FILE: &str = "state.safetensors";
/// The file of the batches.
pub const FEEDS_FILE: &str = "feeds.safetensors";
/// The script that runs the step.
pub const RUNNER_FILE: &str = "run.py";

/// The version of [`Manifest`].
pub const FORMAT: &str = "partita-xla-1";

/// Who partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// We do: one local program with collectives, which all ranks run.
    Uniform,
    /// XLA does: the step of one device with a layout on every value.
    Global,
}

/// What the files of an exported step are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Name and version of this format.
    pub format: String,
    /// Who partitions.
    pub form: Form,
    /// The axes of the mesh with their sizes, major first.
    pub mesh: Vec<(String, usize)>,
    /// The modules in the order in which they run: one, or the pieces of pipeline stages.
    pub modules: Vec<Module>,
    /// The seed of initial values, data and dropout.
    pub seed: u64,
    /// Steps before the state was saved; 0 for an initial state.
    pub first: u64,
    /// The learning rate of each step, from step 1.
    pub learning_rates: Vec<f64>,
    /// Parameters and states that are stored as several tensors.
    pub pieces: Vec<Part>,
}

impl Manifest {
    /// It as JSON, which the runner reads.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a manifest has only strings as keys")
    }
}

/// A part of a parameter or state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The name of the whole.
    pub whole: String,
    /// The name of the part.
    pub part: String,
    /// The dimension along which it is a part.
    pub dim: usize,
    /// Its first and one past its last element along it.
    pub window: [usize; 2],
}

/// A program of the ranks of one stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Module {
    /// The file with its text; several modules may share one.
    pub file: String,
    /// The ranks that run it.
    pub ranks: Vec<usize>,
    /// The arguments of `@main`.
    pub inputs: Vec<Tensor>,
    /// Its results.
    pub outputs: Vec<Tensor>,
}

/// What an argument or a result is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A parameter.
    Parameter,
    /// A state of the optimizer or of the model.
    State,
    /// Rows of a tensor of the batch.
    Batch,
    /// The gradient of a result, of a function that is no training step.
    Cotangent,
    /// The learning rate of the step.
    LearningRate,
    /// The number of the step, the first one being 1.
    Step,
    /// The seed of dropout.
    Seed,
    /// A value of a module before, or for a later one.
    Carried,
    /// A value of a module before on other ranks, or what they keep.
    Received,
    /// The loss.
    Loss,
    /// The norm of all gradients.
    GradNorm,
    /// A gradient.
    Gradient,
    /// The new value of a parameter or state.
    NewValue,
    /// Another figure of the step.
    Metric,
}

impl Kind {
    /// Whether it is an argument that stays on its devices between steps.
    pub fn is_kept(self) -> bool {
        matches!(self, Kind::Parameter | Kind::State)
    }
}

/// An argument or a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name: the module path of a parameter, `loss`, ..; of a new value that of what it replaces.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The element type as MLIR names it.
    pub dtype: String,
    /// The global shape.
    pub shape: Vec<usize>,
    /// The layout.
    pub layout: String,
    /// The shape that each rank holds, pads at the end of each dimension included.
    pub held: Vec<usize>,
    /// For each rank, the first and one past the last global index of its shard, for each dimension. None for what stays
    /// on its ranks.
    pub shards: Vec<Vec<[usize; 2]>>,
    /// Of a batch tensor: the tensor it is taken from, and its rows of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<(String, [usize; 2])>,
    /// Of an argument that is donated: the number of the result that replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<usize>,
}

impl Tensor {
    /// Its element type; `None` for a word that is none.
    pub fn dtype(&self) -> Option<DType> {
        DType::from_mlir_name(&self.dtype)
    }
}
