//! The key `weights` of a bundled kind: its parameters begin with the values of a Hugging Face checkpoint.
//!
//! The sizes are those of the config: a checkpoint of other shapes is refused, and so is a `config.json` beside it that
//! states other numbers, of which the shapes tell nothing (heads, epsilon, rotary base, activation).

use super::{ModelSource, Sizes, Terms};
use crate::keys::Section;
use partita_base::{DType, Diagnostic, Result};
use partita_import::families::{Family, Loaded};
use partita_import::{Limits, Tensor, Weights};
use partita_ir::{Graph, Literal};
use partita_mesh::Mesh;
use partita_nn::{Model, ParamSpec, Values};
use partita_schedule::{Plan, ReadyOptions};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The largest `config.json` that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// What a model is: the name of each fact in `config.json`, what decides it here, and its value.
pub(super) type Facts = Vec<(&'static str, &'static str, Fact)>;

/// What the fact in `config.json` must be; a fact that it does not state is not compared.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Fact {
    /// This number.
    Is(f64),
    /// At least this number.
    AtLeast(f64),
    /// One of these texts.
    Named(&'static [&'static str]),
    /// Absent, null, false, or of the type `default`.
    Plain,
}

/// The source itself, or with the initial values of `model.weights`.
pub(super) fn read(
    section: &mut Section,
    source: Arc<dyn ModelSource>,
    facts: Facts,
) -> Result<Arc<dyn ModelSource>> {
    let path: Option<PathBuf> = section.find(
        "weights",
        "random by seed",
        "Hugging Face checkpoint with the initial values: a .safetensors file, or its folder",
    )?;
    Ok(match path {
        None => source,
        Some(path) => Arc::new(Pretrained { source, path, facts, weights: OnceLock::new() }),
    })
}

/// A bundled model that begins with the values of a checkpoint.
#[derive(Debug)]
struct Pretrained {
    source: Arc<dyn ModelSource>,
    path: PathBuf,
    facts: Facts,
    weights: OnceLock<Weights>,
}

/// A tensor of a file in the element type of the model.
#[derive(Debug)]
struct Converted(Tensor, DType);

impl Values for Converted {
    fn window(&self, offset: &[usize], extent: &[usize]) -> Result<Literal> {
        let window = self.0.window(offset, extent)?;
        Ok(match window.ty.dtype == self.1 {
            true => window,
            false => Literal::from_f64(&window.ty.with_dtype(self.1), window.to_f64().into_iter()),
        })
    }

    fn place(&self) -> Option<String> {
        Some(format!("{} as {}", self.0.place()?, self.1))
    }
}

impl Pretrained {
    fn weights(&self) -> Result<&Weights> {
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let weights = Weights::open(&self.path, &Limits::default())?;
        Ok(self.weights.get_or_init(|| weights))
    }

    /// The value of each parameter. E363 for a checkpoint of another model.
    fn loaded(&self, model: &Model) -> Result<Loaded> {
        let family = Family::of(self.source.name()).ok_or_else(|| {
            Diagnostic::new("E363", "no checkpoints are known for this kind of model")
                .at("model.weights")
                .expected("gpt, llama or bert")
                .found(self.source.name())
        })?;
        family.load(model, self.weights()?).map_err(|error| error.at(self.path.display().to_string()))
    }

    /// E363 if the `config.json` beside the weights states other numbers than the config.
    fn compare(&self) -> Result<()> {
        let folder = if self.path.is_dir() { Some(self.path.as_path()) } else { self.path.parent() };
        let Some(path) = folder.map(|folder| folder.join("config.json")) else { return Ok(()) };
        if !std::fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() <= MOST_BYTES) {
            return Ok(());
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let Ok(stated) = serde_json::from_str::<Value>(&text) else { return Ok(()) };
        let mut apart = Vec::new();
        for (name, key, fact) in &self.facts {
            // Newer files nest the numbers of rotary embeddings.
            let places = [Some(&stated), stated.get("rope_parameters"), stated.get("rope_scaling")];
            let found = places.into_iter().flatten().find_map(|place| place.get(*name));
            let Some(value) = found.filter(|value| !value.is_null()) else { continue };
            let (fits, expected) = match fact {
                Fact::Is(own) => (value.as_f64() == Some(*own), own.to_string()),
                Fact::AtLeast(own) => (value.as_f64().is_some_and(|v| v >= *own), format!("at least {own}")),
                Fact::Named(known) => {
                    (value.as_str().is_some_and(|v| known.contains(&v)), known.join(" or "))
                }
                Fact::Plain => (value == &Value::Bool(false) || value == "default", "none".to_string()),
            };
            if !fits {
                apart.push(format!("`{name}` is {value}; expected {expected}, by {key}"));
            }
        }
        if apart.is_empty() {
            return Ok(());
        }
        let mut error = Diagnostic::new("E363", "the checkpoint is of another model than the config")
            .at(path.display().to_string())
            .expected("the numbers of `[model]`")
            .found(format!("{} that differ", apart.len()))
            .help("give `[model]` the numbers of `config.json`");
        for difference in apart {
            error = error.note(difference);
        }
        Err(error)
    }
}

impl ModelSource for Pretrained {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn build(&self, batch: usize, dtype: DType, training: bool) -> Result<Model> {
        let mut model = self.source.build(batch, dtype, training)?;
        for (name, tensor) in self.loaded(&model)?.tensors {
            if let Some(spec) = model.params.get_mut(&name) {
                let dtype = spec.ty.dtype;
                *spec = ParamSpec::stored(&name, spec.ty.clone(), Converted(tensor, dtype));
            }
        }
        Ok(model)
    }

    fn validate(&self) -> Result<()> {
        self.source.validate()?;
        self.compare()?;
        self.weights().map(|_| ())
    }

    fn sizes(&self, batch: usize) -> Sizes {
        self.source.sizes(batch)
    }

    fn plan(&self, forward: &Graph, mesh: &Mesh, options: &ReadyOptions) -> Result<Plan> {
        self.source.plan(forward, mesh, options)
    }

    /// Without the values, which are those of all layers.
    fn with_layers(&self, layers: usize) -> Option<Arc<dyn ModelSource>> {
        self.source.with_layers(layers)
    }

    fn period(&self) -> usize {
        self.source.period()
    }

    fn stream(&self) -> Option<[usize; 3]> {
        self.source.stream()
    }

    fn tokens(&self) -> Option<usize> {
        self.source.tokens()
    }

    fn terms(&self) -> Terms {
        self.source.terms()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.source.notes();
        let loaded = self.source.build(1, DType::F32, false).and_then(|model| self.loaded(&model));
        if let Ok(Loaded { unused, .. }) = loaded
            && !unused.is_empty()
        {
            let shown = unused.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if unused.len() > 5 { ", .." } else { "" };
            notes.push(format!(
                "tensors of the checkpoint that the model does not use: {}: {shown}{more}",
                unused.len()
            ));
        }
        notes
    }

    fn explained(&self, error: Box<Diagnostic>) -> Box<Diagnostic> {
        self.source.explained(error)
    }

    fn is_bidirectional(&self) -> bool {
        self.source.is_bidirectional()
    }
}
