//! Functions of MLIR on tensors: StableHLO as [`partita_ir::text`] reads it, and the dialects func, arith, math, tensor,
//! linalg and scf before bufferisation.
//!
//! Each dialect is a file with a table of its ops; `Reader` reads functions, regions and types, and finds ops in the
//! tables. Scalars are tensors of rank 0, `index` is i64. Calls are inlined and loops with constant bounds unrolled. The
//! body of a `linalg` op is read on tensors over its whole iteration space, so that the ops of `arith` and `math` mean the
//! same inside and outside; a body that multiplies and adds becomes a `dot_general`.
//!
//! Functions of the dialect torch become exported programs of PyTorch, which `pt2` reads (`torch.rs`).
//!
//! Programs on memory (memref) are refused with their position: what they compute depends on the order of their stores.
//! Diagnostics as those of `partita_ir::text`: E140 syntax, E141 unknown op, E142 type, E143 name, E144 known but not
//! supported, E145 literal, E146 types that do not agree, E149 limits.

mod arith;
mod elementwise;
mod linalg;
mod math;
mod reader;
mod scf;
mod structured;
mod tensor;
mod torch;

use crate::Limits;
use elementwise::Action;
use partita_base::Result;
use partita_ir::{Graph, Registry, text, unroll_loops};
use partita_mlir::{Source, Tree};
use reader::Reader;

/// The ops of all dialects by name.
const TABLES: &[&[(&str, Action)]] = &[arith::OPS, math::OPS, tensor::OPS, linalg::OPS, scf::OPS];

/// Dialects whose presence decides that a text is not StableHLO.
const DIALECTS: &[&str] = &["arith", "math", "tensor", "linalg", "scf", "torch"];

/// Dialects of programs that were lowered too far, or come from other compilers.
const REFUSED: &[(&str, &str)] = &[
    ("memref", "the program is bufferised: it works on memory, not on tensors"),
    ("bufferization", "the program is bufferised: it works on memory, not on tensors"),
    ("affine", "loops over memory are not read"),
    ("vector", "the program is vectorised"),
    ("cf", "branches between blocks are not read"),
    ("llvm", "the program is lowered to LLVM"),
    ("gpu", "the program is lowered to a GPU"),
    ("spirv", "the program is lowered to SPIR-V"),
    ("tosa", "the TOSA dialect is not read"),
    ("mhlo", "the MHLO dialect is not read; StableHLO is"),
];

/// Whether a text has ops of other dialects than StableHLO, which [`read_function`] reads or refuses.
///
/// # Errors
/// E140 and E149 with line and column.
pub fn has_other_dialects(source: &str, file: &str) -> Result<bool> {
    Ok(uses_other_dialects(&Tree::parse(Source { text: source, file })?))
}

fn uses_other_dialects(tree: &Tree) -> bool {
    let is_other = |name: &str| {
        let dialect = name.split_once('.').map_or(name, |(dialect, _)| dialect);
        DIALECTS.contains(&dialect) || REFUSED.iter().any(|(refused, _)| *refused == dialect)
    };
    tree.operations.iter().any(|operation| is_other(&tree.name(operation)))
}

/// Reads a function: the one of this name, or else `@main`, or the only public one. Inputs without a name are called
/// `arg0`, `arg1`, .. and outputs `result0`, .. Loops of known trip count are unrolled, up to [`Limits::unrolled_nodes`].
///
/// # Errors
/// E140 to E149 with line and column.
pub fn read_function(source: &str, file: &str, function: Option<&str>, limits: &Limits) -> Result<Graph> {
    let tree = Tree::parse(Source { text: source, file })?;
    let mut graph = match (uses_other_dialects(&tree), function) {
        (true, _) if torch::is_used(&tree) => torch::read(&tree, function, limits)?,
        (true, _) => Reader::new(&tree, limits).read(function)?,
        (false, None) => text::parse_named(source, file)?,
        (false, Some(name)) => text::parse_function(source, file, &Registry::default(), name)?,
    };
    graph = unroll_loops(&graph, limits.unrolled_nodes)?;
    for (position, input) in graph.inputs.clone().into_iter().enumerate() {
        let value = graph.value_mut(input);
        if value.name.is_empty() {
            value.name = format!("arg{position}");
        }
    }
    graph.output_names.resize(graph.outputs.len(), String::new());
    for (position, name) in graph.output_names.iter_mut().enumerate() {
        if name.is_empty() {
            *name = format!("result{position}");
        }
    }
    Ok(graph)
}
