//! Tensors of NumPy: `.npy` files, one array each, and `.npz` files, archives of those.
//!
//! The format is described in `numpy.lib.format` (versions 1.0 to 3.0): a magic number, a header in the form of a Python
//! dictionary, the elements. The header is read by a parser of that one dictionary. Arrays of `np.savez` stay in the file;
//! those of `np.savez_compressed` are expanded, at most [`Limits::inflated_bytes`] in all. Arrays of objects are pickles and
//! refused.

use crate::archive::{Archive, Compression, Entry};
use crate::inflate::inflated;
use crate::limits::exceeded;
use crate::source::check_text;
use crate::{Limits, Source, Tensor};
use indexmap::IndexMap;
use partita_base::{DType, Diagnostic, InertType, Result};
use partita_ir::TensorType;
use std::ops::Range;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The most bytes that one byte of a deflated stream can stand for (RFC 1951: 258 bytes in 2 bits).
const MAX_EXPANSION: usize = 1032;

fn malformed(what: &str, found: impl Into<String>) -> Box<Diagnostic> {
    Diagnostic::new("E361", format!("{what} cannot be read"))
        .expected("an array as `numpy.save` writes it")
        .found(found)
        .help("save it again, or copy it again")
}

/// The array of a `.npy` file.
///
/// # Errors
/// E361 for a damaged file, E352 for a pickle and for big-endian elements, E354 for an element type without arithmetic or
/// for missing elements, E358 if a limit is exceeded.
pub fn npy(name: &str, source: Source, limits: &Limits) -> Result<Tensor> {
    let place = 0..source.len();
    array(name, source, place, limits)
}

/// The arrays of a `.npz` file, by name.
///
/// # Errors
/// As [`npy`], and E351 for a damaged archive.
pub fn npz(source: Source, limits: &Limits) -> Result<IndexMap<String, Tensor>> {
    let archive = Archive::read(&source, Compression::Deflate, limits)?;
    let mut arrays = IndexMap::new();
    let mut expanded = 0;
    for (name, entry) in archive.entries() {
        let Some(array_name) = name.strip_suffix(".npy") else {
            return Err(malformed(&format!("`{name}`"), "an entry that is no `.npy` file"));
        };
        let tensor = match entry {
            Entry { place, size: None, .. } => {
                entry.check_stored(name, &source)?;
                array(array_name, source.clone(), place.clone(), limits)?
            }
            Entry { place, size: Some(size), .. } => {
                expanded += size;
                let most = limits.inflated_bytes.min(place.len().saturating_mul(MAX_EXPANSION));
                if expanded > limits.inflated_bytes || *size > most {
                    let limit = format!("at most {most} bytes");
                    return Err(exceeded(&format!("`{name}`, expanded,"), limit, format!("{size} bytes")));
                }
                let values = inflated(&source, place.clone(), *size)?
                    .map_err(|found| malformed(&format!("`{name}`"), found))?;
                entry.check(name, &values)?;
                npy(array_name, values.into(), limits)?
            }
        };
        arrays.insert(array_name.to_string(), tensor);
    }
    Ok(arrays)
}

/// The array in a part of the bytes.
fn array(name: &str, source: Source, place: Range<usize>, limits: &Limits) -> Result<Tensor> {
    let what = format!("the array `{name}`");
    let first = source.read(place.start..place.end.min(place.start + MAGIC.len() + 6))?;
    if matches!(first[..], [0x80, 2..=5, ..]) {
        return Err(crate::pt2::pickle(&what));
    }
    let rest = first.strip_prefix(MAGIC).ok_or_else(|| malformed(&what, "no magic number of NumPy"))?;
    let (length, before) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), MAGIC.len() + 4),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, MAGIC.len() + 6),
        [version, ..] => return Err(malformed(&what, format!("version {version} of the format"))),
        [] => return Err(malformed(&what, "no version")),
    };
    let start = before + length;
    if start > place.len() {
        return Err(malformed(&what, "a header that is cut off"));
    }
    check_text(&format!("the header of {what}"), length, limits)?;
    let text = source.read(place.start + before..place.start + start)?;
    let text = std::str::from_utf8(&text).map_err(|_| malformed(&what, "a header that is not UTF-8"))?;
    let header = Header::read(text).ok_or_else(|| malformed(&what, format!("the header {}", short(text))))?;
    let dtype = dtype(name, &header.descr)?;
    limits.count(&header.shape, &format!("`{name}`"))?;
    let ty = TensorType::new(dtype, header.shape);
    let values = place.start + start..place.start + start + ty.bytes();
    if values.end > place.end {
        return Err(Diagnostic::new("E354", format!("the values of `{name}` do not fit its type"))
            .at(name)
            .expected(format!("{} bytes for {ty}", ty.bytes()))
            .found(format!("{} bytes", place.end - place.start - start))
            .help("the file is damaged: save it again, or copy it again"));
    }
    let strides = match header.is_fortran {
        false => ty.strides(),
        true => {
            // The first dimension is the innermost one.
            let mut step = 1;
            let stride = |&extent: &usize| {
                let stride = step;
                step *= extent.max(1);
                stride
            };
            ty.shape.iter().map(stride).collect()
        }
    };
    Tensor::new(name, ty, &strides, 0, source, values, limits)
}

fn short(text: &str) -> String {
    text.trim().chars().take(80).collect()
}

/// The element type of `<f4`.
fn dtype(name: &str, descr: &str) -> Result<DType> {
    let (order, kind) = match descr.strip_prefix(['<', '>', '|', '=']) {
        Some(kind) => (&descr[..1], kind),
        None => ("|", descr),
    };
    if kind.starts_with('O') {
        return Err(crate::pt2::pickle(&format!("the array `{name}`")));
    }
    if order == ">" && !matches!(kind, "b1" | "i1" | "u1") {
        return Err(Diagnostic::new("E352", format!("`{name}` is big-endian"))
            .expected("little-endian elements, `<f4`")
            .found(descr)
            .help("save it with `array.astype(array.dtype.newbyteorder('<'))`"));
    }
    Ok(match kind {
        "b1" => DType::Bool,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "c8" => DType::Inert(InertType::Complex64),
        "c16" => DType::Inert(InertType::Complex128),
        _ => {
            return Err(Diagnostic::new("E354", format!("`{name}` has an unsupported element type"))
                .expected("floats of 16, 32 or 64 bits, integers, or booleans")
                .found(format!("the type {} of NumPy", short(descr)))
                .help("convert it before it is saved, bfloat16 to float32 for instance"));
        }
    })
}

/// `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`
#[derive(PartialEq, Debug, Default)]
struct Header {
    descr: String,
    is_fortran: bool,
    shape: Vec<usize>,
}

impl Header {
    /// `None` if it is no such dictionary. A structured type is read as an empty `descr`.
    fn read(text: &str) -> Option<Header> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim_start();
        let mut header = Header::default();
        let mut seen = [false; 3];
        while !rest.is_empty() {
            let (key, after) = quoted(rest)?;
            rest = after.trim_start().strip_prefix(':')?.trim_start();
            match key {
                "descr" => {
                    // A list describes a record.
                    let (descr, after) = if rest.starts_with('[') {
                        ("", &rest[rest.find(']')? + 1..])
                    } else {
                        quoted(rest)?
                    };
                    (header.descr, rest, seen[0]) = (descr.to_string(), after, true);
                }
                "fortran_order" => {
                    let after = rest.strip_prefix("False").map(|after| (false, after));
                    let (value, after) = after.or_else(|| Some((true, rest.strip_prefix("True")?)))?;
                    (header.is_fortran, rest, seen[1]) = (value, after, true);
                }
                "shape" => {
                    let (extents, after) = rest.strip_prefix('(')?.split_once(')')?;
                    let extents = extents.split(',').map(str::trim).filter(|extent| !extent.is_empty());
                    header.shape = extents
                        .map(|extent| extent.trim_end_matches('L').parse().ok())
                        .collect::<Option<_>>()?;
                    (rest, seen[2]) = (after, true);
                }
                _ => return None,
            }
            rest = rest.trim_start();
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.is_empty() => rest,
                None => return None,
            };
        }
        seen.iter().all(|&seen| seen).then_some(header)
    }
}

/// A quoted text at the beginning, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `.npy` file of this version with this dictionary.
    fn file(version: u8, header: &str, values: &[u8]) -> Source {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((header.len() as u16).to_le_bytes()),
            _ => bytes.extend((header.len() as u32).to_le_bytes()),
        }
        bytes.extend(header.as_bytes());
        bytes.extend(values);
        bytes.into()
    }

    fn values(count: usize) -> Vec<u8> {
        (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect()
    }

    fn read(version: u8, header: &str, values: &[u8]) -> Result<Tensor> {
        npy("a", file(version, header, values), &Limits::default())
    }

    #[test]
    fn rows_and_columns_come_in_either_order() {
        let rows =
            read(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", &values(6)).unwrap();
        assert_eq!(
            (&rows.ty.shape[..], rows.literal().unwrap().to_f64()),
            (&[2, 3][..], vec![0., 1., 2., 3., 4., 5.])
        );
        let columns =
            read(2, "{'shape': (2, 3), 'fortran_order': True, 'descr': \"<f4\"}", &values(6)).unwrap();
        assert_eq!(columns.literal().unwrap().to_f64(), [0., 2., 4., 1., 3., 5.]);
        let scalar = read(3, "{'descr': '<f4', 'fortran_order': False, 'shape': ()}", &values(1)).unwrap();
        assert_eq!((scalar.ty.rank(), scalar.literal().unwrap().to_f64()), (0, vec![0.0]));
        let empty = read(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4)}", &[]).unwrap();
        assert_eq!(empty.ty.shape, [0, 4]);
        let flags = read(1, "{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", &[0, 1, 2]).unwrap();
        assert_eq!(flags.literal().unwrap().to_f64(), [0.0, 1.0, 1.0]);
    }

    #[test]
    fn other_arrays_are_refused_by_name() {
        let code = |descr: &str, rest: &str, count| {
            read(1, &format!("{{'descr': {descr}, {rest}}}"), &values(count)).unwrap_err().code
        };
        let rest = "'fortran_order': False, 'shape': (2,)";
        assert_eq!(code("'>f4'", rest, 2), "E352");
        assert_eq!(code("'|O'", rest, 2), "E352");
        assert_eq!(code("'<c32'", rest, 8), "E354");
        assert_eq!(code("[('x', '<f4')]", rest, 2), "E354");
        assert_eq!(code("'<f4'", rest, 1), "E354");
        assert_eq!(code("'<f4'", "'fortran_order': False, 'shape': (99999999999, 99999999999)", 1), "E358");
        assert_eq!(code("'<f4'", "'shape': (2,)", 2), "E361");
        assert_eq!(code("'<f4'", "'fortran_order': 0, 'shape': (2,)", 2), "E361");
        assert_eq!(code("'<f4'", "'fortran_order': False, 'shape': (-2,)", 2), "E361");
        let code = |bytes: &[u8]| npy("a", bytes.to_vec().into(), &Limits::default()).unwrap_err().code;
        assert_eq!(code(b""), "E361");
        assert_eq!(code(b"\x93NUMPY"), "E361");
        assert_eq!(code(b"\x93NUMPY\x09\0\0\0"), "E361");
        assert_eq!(code(b"\x93NUMPY\x01\0\xff\xff{"), "E361");
        assert_eq!(code(b"\x80\x04abc"), "E352");
    }
}
