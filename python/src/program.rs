//! Programs in text: functions of a module of StableHLO, or of func, arith, math, tensor, linalg and scf on tensors.

use crate::error::{OrRaise, detached};
use crate::tensors::{Type, type_of};
use partita_base::Result;
use partita_import::Limits;
use partita_import::mlir::{has_other_dialects, read_function};
use partita_ir::{Graph, Registry, ValueId, text};
use partita_mlir::{Source, Tree};
use pyo3::prelude::*;
use std::sync::Arc;

/// A function of a module, everything it calls inlined.
#[pyclass(frozen, module = "partita._partita")]
pub struct Program {
    pub graph: Arc<Graph>,
}

/// The names of the public functions of a module, in order.
fn public_functions(text: &str, file: &str) -> Result<Vec<String>> {
    let tree = Tree::parse(Source { text, file })?;
    let mut found = Vec::new();
    let mut blocks = vec![tree.top.clone()];
    while let Some(operations) = blocks.pop() {
        for id in operations {
            let operation = tree.operation(id);
            match tree.text(operation.name) {
                "module" | "builtin.module" => {
                    let regions = operation.regions().iter().map(|&region| tree.region(region));
                    blocks.extend(regions.flat_map(|region| &region.blocks).map(|b| b.operations.clone()));
                }
                "func.func" | "func" => {
                    let header = operation.name + 1..operation.span.end;
                    let is_name = |at: &usize| tree.text(*at).starts_with('@');
                    let Some(name) = header.clone().find(is_name) else { continue };
                    if (header.start..name).all(|at| !matches!(tree.text(at), "private" | "nested")) {
                        found.push(tree.text(name).trim_start_matches('@').trim_matches('"').to_string());
                    }
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

#[pymethods]
impl Program {
    /// Reads a function, by default the entry.
    #[new]
    #[pyo3(signature = (text, file = "<text>", function = None))]
    fn new(py: Python<'_>, text: &str, file: &str, function: Option<&str>) -> PyResult<Program> {
        let registry = Registry::default();
        let graph = detached(py, || match function {
            _ if has_other_dialects(text, file)? => read_function(text, file, function, &Limits::default()),
            Some(function) => text::parse_function(text, file, &registry, function),
            None => text::parse_with(text, file, &registry),
        })?;
        Ok(Program { graph: Arc::new(graph) })
    }

    /// The names of the public functions of a text.
    #[staticmethod]
    fn functions(py: Python<'_>, text: &str, file: &str) -> PyResult<Vec<String>> {
        public_functions(text, file).or_raise(py)
    }

    /// Name, element type and shape of each argument; a name may be empty.
    fn inputs(&self) -> Vec<Type> {
        let of = |&input: &ValueId| type_of(&self.graph.value(input).name, self.graph.ty(input));
        self.graph.inputs.iter().map(of).collect()
    }

    /// Name, element type and shape of each result; a name may be empty.
    fn outputs(&self) -> Vec<Type> {
        let name = |place: usize| self.graph.output_names.get(place).map_or("", String::as_str);
        let outputs = self.graph.outputs.iter().enumerate();
        outputs.map(|(place, &output)| type_of(name(place), self.graph.ty(output))).collect()
    }

    /// Pairs (argument, result): the argument's memory is given to the result.
    fn carried(&self) -> Vec<(usize, usize)> {
        self.graph.aliases.clone()
    }

    /// The function as StableHLO text.
    fn text(&self) -> String {
        text::print(&self.graph)
    }
}
