//! Writes tensors alone to a safetensors file, for programs other than Partita.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use safetensors::tensor::TensorView;

use super::{FileStorage, Storage, TensorData, UNFINISHED, to_safetensors};

/// Writes tensors under their names to a new safetensors file. Its metadata say `format: pt`, which the readers of
/// PyTorch expect. The file appears complete or not at all.
///
/// # Errors
/// E316 if the file exists, or cannot be written.
pub fn export_weights(path: &Path, tensors: &IndexMap<String, TensorData>) -> Result<()> {
    let refused = |found: String| {
        Diagnostic::new("E316", "the weights cannot be written")
            .at(path.display().to_string())
            .expected("the path of a new file in a folder that can be written")
            .found(found)
            .help("name another file with --out, or remove this one")
    };
    if path.exists() {
        return Err(refused("a file or folder of this name".to_string()));
    }
    let views = tensors.iter().map(|(name, tensor)| {
        let view = TensorView::new(to_safetensors(tensor.dtype), tensor.shape.clone(), &tensor.bytes);
        (name, view.expect("the bytes of a tensor fill its shape"))
    });
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(|error| refused(error.to_string()))?;
    let unfinished = unfinished(path);
    let written = FileStorage.write(&unfinished, &bytes).and_then(|()| FileStorage.rename(&unfinished, path));
    written.map_err(|error: io::Error| {
        let _ = fs::remove_file(&unfinished);
        refused(error.to_string())
    })
}

/// The path under which a file is written before it is complete.
fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!("{UNFINISHED}{name}"))
}

#[cfg(test)]
mod tests {
    use super::super::import_weights;
    use super::*;
    use partita_base::DType;

    #[test]
    fn a_file_of_weights_reads_back_and_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let tensors = IndexMap::from([
            ("a.weight".to_string(), TensorData::new(DType::F32, vec![2], vec![0, 0, 128, 63, 0, 0, 0, 64])),
            ("b".to_string(), TensorData::new(DType::BF16, vec![1, 1], vec![128, 63])),
        ]);
        export_weights(&path, &tensors).unwrap();
        assert_eq!(import_weights(&path).unwrap(), tensors);
        assert_eq!(export_weights(&path, &tensors).unwrap_err().code, "E316");
        let nowhere = folder.path().join("nowhere/weights.safetensors");
        assert_eq!(export_weights(&nowhere, &tensors).unwrap_err().code, "E316");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
