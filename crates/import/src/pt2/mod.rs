//! PyTorch's exported programs: `torch.export.save`, torch 2.9 and newer (schema major 8).
//!
//! A `.pt2` file is a ZIP archive of raw weights and one JSON graph of ATen ops. It is read without
//! Python and without pickles. [`Pt2::open`] reads the graph and leaves the weights in the file; [`Pt2::import`]
//! turns it into a model: parameters keep their names, nodes their module paths and source lines.
//! The graph that `torch.export` writes is not functional and not free of autograd state: ops may
//! change tensors in place, and regions without gradients are nested graphs. `lower` resolves both.

mod alias;
pub(crate) mod call;
mod known;
mod lower;
mod outputs;
mod payload;
mod places;
mod ranks;
pub(crate) mod schema;
mod symbols;

use crate::archive::{Archive, Compression};
use crate::source::located;
use crate::{ImportOptions, ImportedModel, Limits, Source, Tensor};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result, did_you_mean};
use schema::{InputSpec, OutputSpec, Program};
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) use outputs::usual_init;
pub(crate) use payload::pickled as pickle;
pub use symbols::Symbol;

/// The newest minor version of schema 8 that this reader was written for.
const NEWEST_MINOR: u64 = 20;

/// An opened `.pt2` file: its graph is read, its weights are read where they are used.
pub struct Pt2 {
    name: String,
    program: Program,
    /// Parameters and persistent buffers by name.
    weights: IndexMap<String, Tensor>,
    /// Other buffers and constants by name.
    constants: IndexMap<String, Tensor>,
    /// Names of weights with `requires_grad = False`.
    frozen: BTreeSet<String>,
    notes: Vec<String>,
}

impl Pt2 {
    /// Opens a file with one program, and keeps it open. One that is replaced or removed is read on as it was; one that is
    /// truncated or written in place gives E350 where a weight is read.
    ///
    /// # Errors
    /// E350 if it cannot be read or changes meanwhile, E351 if it is damaged, E352 if it is of another kind or has
    /// pickled tensors, E353 if its graph cannot be read, E354 if weights do not fit, E358 if a
    /// limit is exceeded.
    pub fn open(path: &Path, limits: &Limits) -> Result<Pt2> {
        Pt2::read(Source::open(path)?, None, limits).map_err(|error| located(path, error))
    }

    /// Reads the program `name`, or the only one, from bytes. Errors as [`Pt2::open`].
    pub fn read(source: Source, name: Option<&str>, limits: &Limits) -> Result<Pt2> {
        let first = source.read(0..4)?;
        if !first.starts_with(b"PK") {
            return Err(payload::not_an_archive(&first));
        }
        let archive = Archive::read(&source, Compression::Refused, limits)?;
        let (root, name) = locate(&archive, name)?;
        let text = |path: String| archive.text(&source, &format!("{root}{path}"), &path, limits);
        if let Some(order) = text("byteorder".into())?
            && order.trim_ascii() != b"little"
        {
            return Err(Diagnostic::new("E352", "the weights are big-endian")
                .expected("byteorder `little`")
                .found(String::from_utf8_lossy(&order[..order.len().min(20)]))
                .help("save the model on a little-endian machine"));
        }
        let graph = text(format!("models/{name}.json"))?.unwrap_or_default();
        let unreadable = |error: serde_json::Error| {
            Diagnostic::new("E353", format!("the graph of `{name}` cannot be read"))
                .expected("an exported program of schema version 8")
                .found(error.to_string())
                .help("save the model with torch 2.9 or newer")
        };
        #[derive(serde::Deserialize)]
        struct Head {
            schema_version: schema::Version,
        }
        // The version first: in a file of another version the rest may have any form.
        let version = serde_json::from_slice::<Head>(&graph).map_err(unreadable)?.schema_version;
        if version.major != 8 {
            return Err(Diagnostic::new("E353", "this version of exported programs cannot be read")
                .expected("schema version 8 (torch 2.9 and newer)")
                .found(format!("schema version {}.{}", version.major, version.minor))
                .help("export the model again with a torch of schema version 8"));
        }
        let program: Program = serde_json::from_slice(&graph).map_err(unreadable)?;
        let mut notes = Vec::new();
        if version.minor > NEWEST_MINOR {
            notes.push(format!(
                "the file has schema version 8.{}, newer than 8.{NEWEST_MINOR}: what is new in it is ignored",
                version.minor
            ));
        }
        let is_joint = program.graph_module.signature.output_specs.iter().any(OutputSpec::is_gradient);
        if program.verifiers.iter().any(|dialect| dialect == "ATEN") && !is_joint {
            notes.push(
                "the program was decomposed before it was saved: PyTorch drops `detach` and `no_grad` then, so gradients \
                 flow through them here; save the exported program without `run_decompositions()` to keep them"
                    .to_string(),
            );
        }
        let mut tables = Vec::new();
        let mut frozen = BTreeSet::new();
        for (folder, kind) in [("weights", "weights"), ("constants", "constants")] {
            let config = text(format!("data/{folder}/{name}_{kind}_config.json"))?;
            let pickled = format!("{root}data/{folder}/{name}.pt");
            tables.push(match config {
                Some(config) => {
                    let prefix = format!("{root}data/{folder}/");
                    let (tensors, constant) =
                        payload::read_table(&config, &prefix, &archive, &source, limits)?;
                    frozen.extend(constant);
                    tensors
                }
                None if archive.has(&pickled) => {
                    return Err(payload::pickled(&format!("`{pickled}`")));
                }
                None => IndexMap::new(),
            });
        }
        let constants = tables.pop().unwrap_or_default();
        let weights = tables.pop().unwrap_or_default();
        Ok(Pt2 { name, program, weights, constants, frozen, notes })
    }

    /// A program with its constants by name.
    pub(crate) fn of_program(name: &str, program: Program, constants: IndexMap<String, Tensor>) -> Pt2 {
        let (name, weights) = (name.to_string(), IndexMap::new());
        Pt2 { name, program, weights, constants, frozen: BTreeSet::new(), notes: Vec::new() }
    }

    /// The name of the program in its file; `model` unless the user chose another.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The torch version that wrote the file.
    pub fn torch_version(&self) -> &str {
        &self.program.torch_version
    }

    /// Every tensor of the file by name: parameters, buffers, constants.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.weights.iter().chain(&self.constants).map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The symbolic sizes of the inputs, in order of first use.
    pub fn symbols(&self) -> Result<Vec<Symbol>> {
        symbols::of(&self.program)
    }

    /// The fewest and the most rows of a batch, if the first dimension of the first input is symbolic. Errors as
    /// [`Pt2::symbols`].
    pub fn batch_bounds(&self) -> Result<Option<[usize; 2]>> {
        let first = symbols::user_inputs(&self.program).next();
        let symbols = self.symbols()?;
        let batch = symbols.iter().find(|s| Some(s.first.0.as_str()) == first && s.first.1 == 0);
        let extent = |bound: Option<i64>| bound.map(|bound| usize::try_from(bound).unwrap_or(0).max(1));
        Ok(batch.map(|Symbol { bounds: (min, max), .. }| {
            let fewest = extent(*min).unwrap_or(1);
            [fewest, extent(*max).unwrap_or(usize::MAX).max(fewest)]
        }))
    }

    /// The model.
    ///
    /// # Errors
    /// E355 for ops that the import does not know, all of them at once; E356 for an op with an
    /// argument that has no counterpart; E357 for a graph that contradicts itself; E358 if a limit
    /// is exceeded; E359 for a symbolic size that does not exist or is out of range; E360 if the
    /// loss is ambiguous or does not exist; E161 and E162 for names that a model cannot have.
    pub fn import(&self, options: &ImportOptions) -> Result<ImportedModel> {
        lower::lower(self, options)
    }

    fn value_of(&self, spec: &InputSpec) -> Option<&Tensor> {
        match spec {
            InputSpec::Parameter { parameter_name: name, .. } => self.weights.get(name),
            InputSpec::Buffer { buffer_name: name, .. } => {
                self.weights.get(name).or_else(|| self.constants.get(name))
            }
            InputSpec::TensorConstant { tensor_constant_name: name, .. } => self.constants.get(name),
            InputSpec::UserInput { .. }
            | InputSpec::ConstantInput { .. }
            | InputSpec::CustomObj { .. }
            | InputSpec::Token { .. } => None,
        }
    }
}

impl std::fmt::Debug for Pt2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pt2({}, {} weights, {} constants)", self.name, self.weights.len(), self.constants.len())
    }
}

/// The root folder, with its slash, and the name of the program.
fn locate(archive: &Archive, wanted: Option<&str>) -> Result<(String, String)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for entry in archive.names() {
        let model = entry.strip_suffix(".json").and_then(|path| path.rsplit_once("models/"));
        if let Some((root, model)) = model
            && (root.is_empty() || root.ends_with('/'))
            && root.matches('/').count() <= 1
            && !model.contains('/')
        {
            found.push((root, model));
        }
    }
    if found.is_empty() {
        return Err(payload::another_kind(archive));
    }
    let names = || found.iter().map(|(_, name)| *name).collect::<Vec<_>>();
    let chosen = match (wanted, &found[..]) {
        (None, [only]) => Some(only),
        (None, _) => found.iter().find(|(_, name)| *name == "model"),
        (Some(wanted), _) => found.iter().find(|(_, name)| *name == wanted),
    };
    let Some((root, name)) = chosen else {
        let mut error = Diagnostic::new("E352", "the file has several programs")
            .expected("the name of one of them")
            .found(names().join(", "));
        error.help = wanted.and_then(|wanted| did_you_mean(wanted, names()));
        return Err(error);
    };
    Ok((root.to_string(), name.to_string()))
}
