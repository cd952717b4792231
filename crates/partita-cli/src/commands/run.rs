//! `partita run`: a function of MLIR, once, on a mesh.

use crate::cli::RunArgs;
use crate::output::Output;
use crate::output::events::Event;
use crate::output::tensors::{elements, tensor};
use crate::run::answer;
use partita::function::Function;
use partita_base::Result;
use partita_ir::Literal;
use partita_runtime::MemoryLimit;
use serde::Serialize;

/// What a function returned.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Returned {
    /// The function.
    pub function: String,
    /// The mesh.
    pub mesh: String,
    /// In order.
    pub results: Vec<Tensor>,
}

/// A tensor.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tensor {
    /// `f32`.
    pub dtype: String,
    /// The extents.
    pub shape: Vec<usize>,
    /// The elements, row by row, see [`elements`].
    pub values: Vec<serde_json::Value>,
    /// The elements for people.
    #[serde(skip)]
    pub text: String,
}

impl Event for Returned {
    const NAME: &'static str = "results";
}

/// Runs the command.
///
/// # Errors
/// What reading, planning and running refuse.
pub fn run_file(args: &RunArgs, output: &mut Output) -> Result<()> {
    let function = Function::open(&args.file, args.function.as_deref())?;
    let inputs: Vec<String> = function.inputs().map(|(name, ty)| format!("{name}: {ty}")).collect();
    let graph = function.graph();
    let outputs: Vec<String> = graph.outputs.iter().map(|&value| graph.ty(value).to_string()).collect();
    let nodes = graph.nodes.len();
    output.note(format!(
        "read @{}({}) -> ({}), {nodes} ops",
        function.name(),
        inputs.join(", "),
        outputs.join(", ")
    ));
    let arguments = function.arguments(&args.input, args.seed, MemoryLimit::default())?;
    for ((name, _), value) in function.inputs().zip(&arguments) {
        output.note(format!("{name} = {}", tensor(value)));
    }
    let session = function.session(&args.mesh)?;
    session.check_runs_here()?;
    match function.only_interpreted(&session) {
        Some(dtype) => output.note(format!("evaluated by the interpreter: no device computes with {dtype}")),
        None => output.note(format!("run on mesh {}", session.mesh())),
    }
    let results = output.during("running", || function.run(&session, &arguments))?;
    let result = |value: &Literal| Tensor {
        dtype: value.ty.dtype.to_string(),
        shape: value.ty.shape.clone(),
        values: elements(value),
        text: tensor(value),
    };
    let returned = Returned {
        function: function.name().to_string(),
        mesh: session.mesh().to_string(),
        results: results.values().map(result).collect(),
    };
    answer(&returned, Returned::text, output);
    Ok(())
}

impl Returned {
    /// The results for people, one after the other.
    pub fn text(&self) -> String {
        self.results.iter().map(|result| result.text.clone() + "\n").collect()
    }
}
