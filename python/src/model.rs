//! Imported models: the program of a `.pt2` file with its weights.

use crate::error::detached;
use crate::mesh::Mesh;
use crate::plan::Plan;
use crate::tensors::{Returned, Type, returned, type_of};
use indexmap::IndexMap;
use partita::execution::tensor_data;
use partita_base::Result;
use partita_import::{ImportOptions, ImportedModel, Limits, Pt2, Tensor};
use partita_ir::{Literal, TensorType};
use partita_nn::{Init, with_cotangents};
use partita_schedule::storage_plan;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// A model with its weights.
#[pyclass(frozen, module = "partita._partita")]
#[derive(Clone)]
pub struct Model {
    pub source: Arc<Source>,
}

/// What a file contains, in the forms that schedules and runs need.
pub struct Source {
    pub imported: ImportedModel,
    /// The model as it is imported; parameters are drawn at the scale of their values.
    pub model: partita_nn::Model,
    /// The model with the inner product of its float outputs with further inputs `cotangent.<output>` as its loss, whose
    /// gradients are the vector-Jacobian products of the model.
    pub weighed: partita_nn::Model,
    /// The rows of a batch, where the user names them.
    pub rows: Option<usize>,
}

impl Source {
    /// The model with a loss: its own, or the inner product.
    pub fn with_loss(&self) -> &partita_nn::Model {
        if self.imported.loss.is_some() { &self.model } else { &self.weighed }
    }

    /// The parameters and states that the file has, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&String, &Tensor)> {
        let states = self.imported.states.iter().map(|state| (&state.name, &state.initial));
        self.imported.weights.iter().chain(states)
    }
}

/// Draws for verification at the scale of a tensor's values. Zeros would hide errors: they are drawn too.
fn like(values: &Literal) -> Init {
    let numbers = values.to_f64();
    let first = numbers.first().copied().unwrap_or(0.0);
    if first != 0.0 && numbers.iter().all(|number| *number == first) {
        return Init::Constant(first);
    }
    let square = numbers.iter().map(|number| number * number).sum::<f64>() / numbers.len().max(1) as f64;
    let std = if square > 0.0 && square.is_finite() { square.sqrt() } else { 0.02 };
    Init::Normal { std }
}

impl Model {
    /// Opens a file.
    fn open(path: &std::path::Path, options: &ImportOptions) -> Result<Source> {
        let imported = Pt2::open(path, &Limits::default())?.import(options)?;
        let mut model = imported.model.clone();
        for (name, spec) in &mut model.params {
            spec.init = like(&imported.weights[name].literal()?);
        }
        let mut weighed = with_cotangents(&model, &imported.outputs)?;
        // States are fed in each pass: a pass that is given up changes none.
        weighed.forward.aliases.clear();
        Ok(Source { imported, model, weighed, rows: options.batch })
    }
}

fn types<'a>(of: impl Iterator<Item = (&'a String, &'a TensorType)>) -> Vec<Type> {
    of.map(|(name, ty)| type_of(name, ty)).collect()
}

#[pymethods]
impl Model {
    /// The plan for a mesh where the user gives none.
    fn storage_plan(&self, mesh: &Mesh) -> Plan {
        Plan { plan: storage_plan(&self.source.model.forward, &mesh.mesh) }
    }

    #[new]
    #[pyo3(signature = (path, loss = None, batch = None, ranks = None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        loss: Option<String>,
        batch: Option<usize>,
        ranks: Option<usize>,
    ) -> PyResult<Model> {
        // Who calls the model needs no loss; a trainer says that it does.
        let options = ImportOptions { loss, batch, ranks, may_lack_loss: true, ..ImportOptions::default() };
        let source = detached(py, || Model::open(&path, &options))?;
        Ok(Model { source: Arc::new(source) })
    }

    /// Name, element type and shape of each fed input.
    fn inputs(&self) -> Vec<Type> {
        types(self.source.imported.inputs.iter())
    }

    /// Name, element type and shape of each output.
    fn outputs(&self) -> Vec<Type> {
        let forward = &self.source.model.forward;
        let ty = |name: &String| Some((name.clone(), forward.ty(forward.output_named(name)?).clone()));
        let found: IndexMap<String, TensorType> =
            self.source.imported.outputs.iter().filter_map(ty).collect();
        types(found.iter())
    }

    /// Name, element type and shape of each trained parameter.
    fn parameters(&self) -> Vec<Type> {
        types(self.source.imported.weights.iter().map(|(name, tensor)| (name, &tensor.ty)))
    }

    /// Name, element type and shape of each tensor that is kept without an optimizer.
    fn states(&self) -> Vec<Type> {
        types(self.source.imported.states.iter().map(|state| (&state.name, &state.initial.ty)))
    }

    /// Further names of parameters, each with the first one.
    fn ties(&self) -> Vec<(String, String)> {
        self.source.imported.model.ties.clone()
    }

    /// The modules by path, with their kinds.
    fn modules(&self) -> Vec<(String, String)> {
        self.source.model.modules.iter().map(|(path, kind)| (path.clone(), kind.clone())).collect()
    }

    /// Whether an output is the loss.
    fn has_loss(&self) -> bool {
        self.source.imported.loss.is_some()
    }

    /// Whether a run draws random numbers, as dropout does.
    fn is_random(&self) -> bool {
        self.source.model.forward.input_named(partita_ir::port::SEED).is_some()
    }

    /// Remarks of the import.
    fn notes(&self) -> Vec<String> {
        self.source.imported.notes.clone()
    }

    /// The forward graph as StableHLO text.
    fn text(&self) -> String {
        partita_ir::text::print(&self.source.model.forward)
    }

    /// The value of a parameter or state in the file; `None` for an unknown name.
    fn value(&self, py: Python<'_>, name: &str) -> PyResult<Option<Returned>> {
        let Some((_, tensor)) = self.source.tensors().find(|(other, _)| *other == name) else {
            return Ok(None);
        };
        let value = detached(py, || tensor.literal())?;
        Ok(Some(returned(py, tensor_data(&value))))
    }
}
