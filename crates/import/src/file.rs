//! Files with a model, of any kind that can be read, told apart by their ending.

use crate::{ImportOptions, ImportedModel, Limits, Pt2, StableHlo};
use partita_base::{Diagnostic, Result};
use std::path::Path;

/// An opened file with a model.
#[derive(Debug)]
pub enum ModelFile {
    /// A program that `torch.export.save` wrote.
    Pt2(Box<Pt2>),
    /// A program of StableHLO as text.
    StableHlo(Box<StableHlo>),
}

impl ModelFile {
    /// Whether a path has the ending of a file with a model: `.pt2` or `.mlir`.
    pub fn is_named(path: &Path) -> bool {
        path.extension().is_some_and(|ending| ending == "pt2" || ending == "mlir")
    }

    /// Opens a file: see [`Pt2::open`] for what happens if it changes.
    ///
    /// # Errors
    /// E352 for another ending, else those of [`Pt2::open`] and [`StableHlo::open`].
    pub fn open(path: &Path, limits: &Limits) -> Result<ModelFile> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("pt2") => Pt2::open(path, limits).map(|file| ModelFile::Pt2(Box::new(file))),
            Some("mlir") => StableHlo::open(path, limits).map(|file| ModelFile::StableHlo(Box::new(file))),
            _ => Err(Diagnostic::new("E352", "the file has no model that can be read")
                .at(path.display().to_string())
                .expected("a file that ends in `.pt2` or `.mlir`")
                .found("another ending")),
        }
    }

    /// The model.
    ///
    /// # Errors
    /// Those of [`Pt2::import`] and [`StableHlo::import`].
    pub fn import(&self, options: &ImportOptions) -> Result<ImportedModel> {
        match self {
            ModelFile::Pt2(file) => file.import(options),
            ModelFile::StableHlo(file) => file.import(options),
        }
    }

    /// The fewest and the most rows of a batch, if their number can be chosen: if the first dimension of the first input is
    /// symbolic.
    ///
    /// # Errors
    /// Those of [`Pt2::symbols`].
    pub fn batch_bounds(&self) -> Result<Option<[usize; 2]>> {
        match self {
            ModelFile::Pt2(file) => file.batch_bounds(),
            ModelFile::StableHlo(_) => Ok(None),
        }
    }
}
