//! The tables of weights and constants, and what is refused in their place.

use super::schema::{PayloadTable, STRIDED, Size, TensorMeta};
use crate::archive::Archive;
use crate::{Limits, Source, Tensor};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, InertType, Result};
use partita_ir::TensorType;
use std::collections::BTreeMap;
use std::ops::Range;

const SAVE_AGAIN: &str =
    "save the model with `torch.export.save(torch.export.export(model, args), path)`, torch 2.9 or newer";

/// The element type with this number in `schema.py: ScalarType`. E354 for types without arithmetic here.
pub fn dtype(code: u64, what: &str) -> Result<DType> {
    Ok(match code {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        10 => DType::Inert(InertType::Complex64),
        11 => DType::Inert(InertType::Complex128),
        12 => DType::Bool,
        13 => DType::BF16,
        28 => DType::U16,
        34 => DType::U32,
        35 => DType::U64,
        _ => {
            let name = match code {
                9 => "complex numbers of 16 bits".to_string(),
                29..=33 => "floats of 8 bits".to_string(),
                _ => format!("type number {code}"),
            };
            return Err(Diagnostic::new("E354", format!("{what} has an unsupported element type"))
                .expected(
                    "floats of 16, 32 or 64 bits, complex numbers of 32 or 64 bits, integers, or booleans",
                )
                .found(name)
                .help("convert the module before the export, for example with `.float()`"));
        }
    })
}

/// E352: a pickle where plain bytes are expected.
pub fn pickled(what: &str) -> Box<Diagnostic> {
    Diagnostic::new("E352", format!("{what} is a pickle"))
        .expected("plain bytes")
        .found("a Python pickle, which could run any code when it is read")
        .help(SAVE_AGAIN)
}

/// E352 or E351 for a file that is no archive.
pub fn not_an_archive(bytes: &[u8]) -> Box<Diagnostic> {
    match bytes {
        // Protocols 2 to 5 begin with the opcode PROTO.
        [0x80, 2..=5, ..] => pickled("the file"),
        _ => Diagnostic::new("E351", "the archive is damaged, or not a `.pt2` file")
            .expected("a ZIP archive")
            .found(if bytes.is_empty() { "an empty file" } else { "other bytes" })
            .help(SAVE_AGAIN),
    }
}

/// E352 for an archive without a program of this format.
pub fn another_kind(archive: &Archive) -> Box<Diagnostic> {
    let has = |part: &str| archive.names().any(|name| name.contains(part));
    let found = if has("serialized_exported_program.json") {
        "a program of torch 2.8 or older"
    } else if has("data/aotinductor/") {
        "a compiled program (AOTInductor), which has no graph"
    } else if has("data.pkl") || has(".pkl") {
        "a checkpoint of `torch.save`: a pickle, which could run any code when it is read"
    } else if has(".npy") {
        "NumPy arrays"
    } else {
        "a ZIP archive without `models/<name>.json`"
    };
    Diagnostic::new("E352", "the archive is not an exported program")
        .expected("what `torch.export.save` of torch 2.9 or newer writes")
        .found(found)
        .help(SAVE_AGAIN)
}

/// Reads a table and views each payload as its type; also returns the names of tensors without a
/// gradient.
pub fn read_table(
    text: &[u8],
    prefix: &str,
    archive: &Archive,
    source: &Source,
    limits: &Limits,
) -> Result<(IndexMap<String, Tensor>, Vec<String>)> {
    let table: PayloadTable = serde_json::from_slice(text).map_err(|error| {
        Diagnostic::new("E353", "the table of weights cannot be read")
            .at(prefix)
            .expected("a table as `torch.export.save` writes it")
            .found(error.to_string())
    })?;
    let mut tensors: IndexMap<String, Tensor> = IndexMap::new();
    let mut constant = Vec::new();
    // Tied weights share a payload, which is compared with its checksum once.
    let mut places: BTreeMap<String, Range<usize>> = BTreeMap::new();
    for (name, payload) in table.config {
        if payload.use_pickle {
            return Err(pickled(&format!("`{prefix}{}`", payload.path_name))
                .note(format!("it has the values of `{name}`")));
        }
        let Some(meta) = payload.tensor_meta else { continue };
        let path = format!("{prefix}{}", payload.path_name);
        let place = match places.get(&path) {
            Some(place) => place.clone(),
            None => archive.place(source, &path)?.ok_or_else(|| {
                Diagnostic::new("E354", format!("the values of `{name}` are missing"))
                    .expected(format!("an entry `{path}`"))
                    .found("none in the archive")
            })?,
        };
        places.insert(path, place.clone());
        let (ty, strides, offset) = view(&name, &meta)?;
        if !meta.requires_grad {
            constant.push(name.clone());
        }
        tensors
            .insert(name.clone(), Tensor::new(&name, ty, &strides, offset, source.clone(), place, limits)?);
    }
    check_overlaps(&tensors)?;
    Ok((tensors, constant))
}

/// Type, strides and offset of a stored tensor.
fn view(name: &str, meta: &TensorMeta) -> Result<(TensorType, Vec<usize>, usize)> {
    let whole = |size: &Size| match size {
        Size::AsInt(value) => usize::try_from(*value).ok(),
        Size::AsExpr(_) => None,
    };
    let all = |sizes: &[Size]| sizes.iter().map(whole).collect::<Option<Vec<usize>>>();
    let (sizes, strides) = (all(&meta.sizes), all(&meta.strides));
    let (Some(sizes), Some(strides), Some(offset), STRIDED) =
        (sizes, strides, whole(&meta.storage_offset), meta.layout)
    else {
        return Err(Diagnostic::new("E354", format!("the type of `{name}` is not that of a stored tensor"))
            .expected("a strided layout with sizes, strides and an offset of at least 0")
            .found(format!("sizes {:?}, strides {:?}, layout {}", meta.sizes, meta.strides, meta.layout)));
    };
    Ok((TensorType::new(dtype(meta.dtype, &format!("`{name}`"))?, sizes), strides, offset))
}

/// Two names may have one view, or views of different parts of one storage. E354 if views overlap
/// in part: training would have to change both at once.
fn check_overlaps(tensors: &IndexMap<String, Tensor>) -> Result<()> {
    let mut by_place: Vec<(&String, &Tensor)> = tensors.iter().filter(|(_, t)| t.has_values()).collect();
    by_place.sort_by_key(|(_, tensor)| tensor.first_byte());
    // Within a group of overlapping places, all views must be the same.
    let mut widest: Option<(&String, &Tensor)> = None;
    for (name, tensor) in by_place {
        if let Some((other_name, other)) = widest
            && tensor.overlaps(other)
        {
            if !tensor.is_same_view(other) {
                return Err(Diagnostic::new(
                    "E354",
                    format!("`{other_name}` and `{name}` share some of their values"),
                )
                .expected("tensors that are the same view of their storage, or share nothing")
                .found(format!("{other:?} and {tensor:?}"))
                .help("copy one of them before the export: `.clone()`"));
            }
            continue;
        }
        widest = Some((name, tensor));
    }
    Ok(())
}
