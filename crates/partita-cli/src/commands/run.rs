//! `partita run`: a function of MLIR, once, on a mesh.

use crate::command::{Application, Command};
use crate::output::Output;
use crate::output::events::Event;
use crate::output::tensors::{elements, tensor};
use crate::run::{Ending, answer};
use clap::Args;
use partita::function::Function;
use partita_base::Result;
use partita_ir::Literal;
use partita_runtime::MemoryLimit;
use serde::Serialize;
use std::path::PathBuf;

/// Flags of `run`.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct RunArgs {
    /// A file of MLIR text: StableHLO, or func, arith, math, tensor, linalg and scf on tensors.
    #[arg(value_name = "FILE.mlir")]
    pub file: PathBuf,
    /// The function; by default main, or the only public one.
    #[arg(long, value_name = "NAME")]
    pub function: Option<String>,
    /// An argument, in order: numbers with commas between (one number fills a tensor), a .npy file, or a .npz or
    /// .safetensors file with arguments by name. Arguments that are not given are random.
    #[arg(long, value_name = "1,2,3|FILE", allow_hyphen_values = true)]
    pub input: Vec<String>,
    /// The mesh, for instance dp=2.
    #[arg(long, value_name = "AXES", default_value = "dp=1")]
    pub mesh: String,
    /// Seed of random arguments.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Command for RunArgs {
    const NAME: &'static str = "run";
    const ABOUT: &'static str = "Run a function of MLIR once, on any mesh";

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        run_file(self, output)?;
        Ok(Ending::Done)
    }
}

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
fn run_file(args: &RunArgs, output: &mut Output) -> Result<()> {
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
    let session = function.session(&args.mesh)?;
    session.check_runs_here()?;
    let arguments = function.arguments(&args.input, args.seed, MemoryLimit::default())?;
    for ((name, _), value) in function.inputs().zip(&arguments) {
        output.note(format!("{name} = {}", tensor(value)));
    }
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
