//! `model.kind = "file"`: a model that another framework wrote to a file, with the values of its parameters.

use super::{ModelKind, ModelSource, Terms};
use crate::config::argument::file_beside;
use crate::keys::Section;
use partita_base::{DType, Diagnostic, Result};
use partita_import::stablehlo::dotted;
use partita_import::{ImportOptions, ImportedModel, Limits, ModelFile, Weights};
use partita_ir::TensorType;
use partita_ir::port::LOSS;
use partita_nn::{Model, ParamSpec};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The kind `file`.
pub(super) struct File;

impl ModelKind for File {
    fn name(&self) -> &str {
        "file"
    }

    fn read(&self, section: &mut Section) -> Result<Arc<dyn ModelSource>> {
        let path: Option<PathBuf> =
            section.find("path", "none: it has to be given", "file with the model: .pt2 or .mlir")?;
        let loss = section.find("loss", "the only float scalar output", "output that is the loss")?;
        let parameters: Option<Vec<String>> = section.find(
            "parameters",
            "those that the file marks",
            "inputs of a StableHLO program that are trained; * ends a beginning",
        )?;
        let state: Option<Vec<String>> = section.find(
            "state",
            "those that were donated",
            "arguments of a StableHLO step that results of the same paths replace",
        )?;
        let ranks: Option<usize> = section.find(
            "ranks",
            "what its collectives say",
            "ranks that a PyTorch program with collectives is one of",
        )?;
        let weights: Option<PathBuf> = section.find(
            "weights",
            "the values in the model's file",
            "file of initial values by name: .safetensors, .npz",
        )?;
        let name = path.as_ref().and_then(|path| path.file_stem());
        let name = name.map_or("file".to_string(), |stem| stem.to_string_lossy().into_owned());
        Ok(Arc::new(FileModel {
            name,
            path,
            loss,
            parameters: parameters.unwrap_or_default(),
            state: state.unwrap_or_default(),
            ranks,
            weights,
            opened: OnceLock::new(),
        }))
    }
}

/// A model in a file.
#[derive(Debug)]
struct FileModel {
    /// The name of the file without its ending.
    name: String,
    path: Option<PathBuf>,
    loss: Option<String>,
    parameters: Vec<String>,
    state: Vec<String>,
    ranks: Option<usize>,
    weights: Option<PathBuf>,
    opened: OnceLock<Opened>,
}

/// What the file says.
#[derive(Debug)]
struct Opened {
    file: ModelFile,
    /// The fewest and the most rows of a batch, if their number can be chosen.
    batch_bounds: Option<[usize; 2]>,
    /// The model for the batch of the file.
    example: ImportedModel,
    /// Initial values that stand instead of those of the file.
    weights: Weights,
}

impl FileModel {
    /// The file, opened once.
    fn opened(&self) -> Result<&Opened> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let path = self.path.as_deref().ok_or_else(|| {
            Diagnostic::new("E050", "a model of kind `file` needs a file")
                .at("model.path")
                .expected("the path of a file that ends in `.pt2` or `.mlir`")
                .found("no path")
        })?;
        let limits = Limits::default();
        let file = ModelFile::open(path, &limits).map_err(|mut error| {
            error.help = error.help.take().or_else(|| file_beside(path).filter(|_| !path.exists()));
            error
        })?;
        let weights = self.weights.as_deref().map(|path| Weights::open(path, &limits)).transpose()?;
        let example = located(file.import(&self.options(None)), path)?;
        let batch_bounds = file.batch_bounds()?;
        let opened = Opened { file, batch_bounds, example, weights: weights.unwrap_or_default() };
        Ok(self.opened.get_or_init(|| opened))
    }

    fn options(&self, batch: Option<usize>) -> ImportOptions {
        let (loss, parameters, state) = (self.loss.clone(), self.parameters.clone(), self.state.clone());
        ImportOptions { loss, batch, parameters, state, ranks: self.ranks, ..ImportOptions::default() }
    }
}

/// Says in which file an error is.
fn located<T>(result: Result<T>, path: &std::path::Path) -> Result<T> {
    result.map_err(|error| match error.at {
        Some(_) => error,
        None => error.at(path.display().to_string()),
    })
}

impl Opened {
    /// The rows of the batch of the file: dimension 0 of the first input that has one, but not the single row of an input
    /// that all samples share, such as positions of `[1, T]`.
    fn rows(&self) -> Option<usize> {
        let extents = || self.example.inputs.values().filter_map(|ty| ty.shape.first().copied());
        extents().find(|&rows| rows != 1).or_else(|| extents().next())
    }

    /// The model of an import, whose parameters begin with the values of the file.
    fn with_values(&self, imported: &ImportedModel) -> Result<Model> {
        let mut model = imported.model.clone();
        for (name, spec) in model.params.iter_mut().chain(&mut model.states) {
            let given = self.weights.get(name);
            let Some(tensor) = given.or_else(|| imported.weights.get(name)) else { continue };
            if tensor.ty != spec.ty {
                return Err(Diagnostic::new("E363", format!("the initial value of `{name}` does not fit"))
                    .at("model.weights")
                    .expected(spec.ty.to_string())
                    .found(tensor.ty.to_string()));
            }
            *spec = ParamSpec::stored(name, spec.ty.clone(), tensor.clone());
        }
        Ok(model)
    }
}

impl ModelSource for FileModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn build(&self, batch: usize, dtype: DType, _training: bool) -> Result<Model> {
        self.terms().check(batch, dtype)?;
        let opened = self.opened()?;
        if opened.rows() == Some(batch) || opened.batch_bounds.is_none() {
            return opened.with_values(&opened.example);
        }
        let path = self.path.as_deref().unwrap_or("".as_ref());
        opened.with_values(&located(opened.file.import(&self.options(Some(batch))), path)?)
    }

    fn validate(&self) -> Result<()> {
        let opened = self.opened()?;
        let names = opened.weights.iter().map(|(name, _)| name);
        let model = &opened.example.model;
        let is_known = |name: &str| {
            model.kept().any(|(own, _)| own == name) || model.ties.iter().any(|(alias, _)| alias == name)
        };
        match names.into_iter().find(|name| !is_known(name)) {
            None => Ok(()),
            Some(name) => Err(Diagnostic::new("E363", format!("the model has no parameter `{name}`"))
                .at("model.weights")
                .expected(model.kept().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "))
                .found(name)),
        }
    }

    fn terms(&self) -> Terms {
        let Ok(opened) = self.opened() else { return Terms { takes_any_data: true, ..Terms::default() } };
        let mut types = opened.example.model.params.values().map(|spec| spec.ty.dtype);
        Terms {
            rows: opened.rows(),
            are_rows_fixed: opened.batch_bounds.is_none() && opened.rows().is_some(),
            row_bounds: opened.batch_bounds.map(|bounds| match self.ranks.unwrap_or(1) {
                // The ranks of a program with collectives share the batch.
                ranks @ 2.. => bounds.map(|rows| rows.saturating_mul(ranks)),
                _ => bounds,
            }),
            dtype: types.find(|dtype| dtype.is_float()),
            takes_any_data: true,
        }
    }

    /// A step of JAX that donates nothing has no state: which outputs could be the next state, and what to write.
    fn explained(&self, error: Box<Diagnostic>) -> Box<Diagnostic> {
        let opened = match self.opened() {
            Ok(opened) if error.code == "E055" && error.expected.is_none() => opened,
            _ => return error,
        };
        if !matches!(opened.file, ModelFile::StableHlo(_)) {
            return error;
        }
        let graph = &opened.example.model.forward;
        let mut free: Vec<(&str, &TensorType)> =
            opened.example.inputs.iter().map(|(name, ty)| (name.as_str(), ty)).collect();
        let (mut pairs, mut state): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
        for (name, &output) in graph.output_names.iter().zip(&graph.outputs) {
            let ty = graph.ty(output);
            let alike = |(_, other): &(&str, &TensorType)| *other == ty && ty.rank() > 0;
            let Some(place) = free.iter().position(alike) else { continue };
            let input = free.remove(place).0;
            pairs.push(format!("`{name}` and `{input}` ({ty})"));
            state.push(format!("\"{input}={}\"", dotted(name)));
        }
        let inputs = opened.example.inputs.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let mut error = error
            .at(self.path.as_deref().unwrap_or("".as_ref()).display().to_string())
            .expected("arguments that outputs replace (`tf.aliasing_output`), or inputs that `model.parameters` names")
            .found(format!("only inputs that are fed: {inputs}"));
        if !pairs.is_empty() {
            error = error.note(format!(
                "outputs of the type of an input, which may be its next value: {}",
                pairs.join(", ")
            ));
        }
        let first = opened.example.inputs.keys().next().map_or("NAME", String::as_str);
        let say = match state.is_empty() {
            true => String::new(),
            false => format!(", or say what replaces what: --set 'model.state=[{}]'", state.join(",")),
        };
        error.help(format!(
            "of a training step, donate the state and lower it again, jax.jit(step, donate_argnums=(0,)){say}; of a forward \
             pass, name what is trained: --set 'model.parameters=[\"{first}\"]'"
        ))
    }

    fn notes(&self) -> Vec<String> {
        let Ok(opened) = self.opened() else { return Vec::new() };
        let mut notes = opened.example.notes.clone();
        if opened.example.model.forward.output_position(LOSS).is_none() {
            notes.push("the model has no loss: it is compared and shown, but not trained".to_string());
        }
        notes
    }
}
