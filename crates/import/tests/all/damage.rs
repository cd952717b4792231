//! Files in which bits have changed: what an archive has a checksum of is refused with its name, and no change of the rest
//! changes what is read.

use crate::common::{Entry, recorded, sealed, zip};
use partita_import::{Limits, Pt2, Weights, numpy};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The archive whose entries are deflated.
const COMPRESSED: &str = "savez_compressed";

/// What a reader gives: of each tensor its name, type and bytes; or a code, and a text.
type Read = Result<BTreeMap<String, (String, Vec<u8>)>, (&'static str, String)>;

fn read_pt2(bytes: Vec<u8>) -> Read {
    let file = Pt2::read(bytes.into(), None, &Limits::default());
    let file = file.map_err(|error| (error.code, error.to_string()))?;
    let tensor = |(name, tensor): (&str, &partita_import::Tensor)| {
        (name.to_string(), (tensor.ty.to_string(), tensor.literal().unwrap().bytes().to_vec()))
    };
    Ok(file.tensors().map(tensor).collect())
}

fn read_npz(bytes: Vec<u8>) -> Read {
    let arrays = numpy::npz(bytes.into(), &Limits::default());
    let arrays = arrays.map_err(|error| (error.code, error.to_string()))?;
    let tensor = |(name, tensor): (String, partita_import::Tensor)| {
        (name, (tensor.ty.to_string(), tensor.literal().unwrap().bytes().to_vec()))
    };
    Ok(arrays.into_iter().map(tensor).collect())
}

/// The places of the payloads of an archive by name, from its central directory.
fn payloads(bytes: &[u8]) -> BTreeMap<String, Range<usize>> {
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0usize, |value, &byte| value << 8 | usize::from(byte))
    };
    let end = bytes.len() - 22;
    let mut at = number(end + 16, 4);
    let mut places = BTreeMap::new();
    for _ in 0..number(end + 10, 2) {
        let (name, header) = (&bytes[at + 46..at + 46 + number(at + 28, 2)], number(at + 42, 4));
        let start = header + 30 + number(header + 26, 2) + number(header + 28, 2);
        places.insert(String::from_utf8(name.to_vec()).unwrap(), start..start + number(at + 20, 4));
        at += 46 + number(at + 28, 2) + number(at + 30, 2) + number(at + 32, 2);
    }
    places
}

/// Flips `count` bits of the payloads that are read, spread evenly, and `count` of the whole file. Of those none may be
/// accepted, of these none that changes a tensor.
fn flipped(
    what: &str,
    bytes: &[u8],
    is_read: impl Fn(&str) -> bool,
    count: usize,
    read: fn(Vec<u8>) -> Read,
) {
    let honest = read(bytes.to_vec()).unwrap();
    let all = payloads(bytes).into_iter().filter(|(name, place)| is_read(name) && !place.is_empty());
    let all: Vec<(String, Range<usize>)> = all.collect();
    let total: usize = all.iter().map(|(_, place)| 8 * place.len()).sum();
    let flip = |bit: usize| {
        let mut changed = bytes.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        read(changed)
    };
    for index in 0..count {
        let mut bit = index * total / count;
        let (name, place) = all
            .iter()
            .find(|(_, place)| {
                let is_here = bit < 8 * place.len();
                bit -= if is_here { 0 } else { 8 * place.len() };
                is_here
            })
            .unwrap();
        let (code, text) = match flip(8 * place.start + bit) {
            Err(refused) => refused,
            Ok(found) => {
                // Some bits at the end of a deflated stream belong to no code.
                assert!(what == COMPRESSED && found == honest, "{what}: bit {bit} of {name} passes");
                continue;
            }
        };
        // What is deflated may end elsewhere, or nowhere.
        assert!(code == "E351" || code == "E361", "{what}: bit {bit} of {name}: {text}");
        assert!(text.contains(name.as_str()), "{what}: {name} in {text}");
    }
    for index in 0..count {
        let bit = index * 8 * bytes.len() / count;
        if let Ok(found) = flip(bit) {
            assert!(found == honest, "{what}: bit {bit} of the file changes what is read");
        }
    }
}

/// The small recorded programs whose graph and weights are read.
fn programs() -> Vec<(String, Vec<u8>)> {
    let path = |name: &str| recorded().join(format!("{name}.pt2"));
    let names = ["gpt", "buffers", "conv"];
    names.iter().map(|name| (name.to_string(), std::fs::read(path(name)).unwrap())).collect()
}

/// Whether the reader looks at an entry of a `.pt2` file.
fn is_read(name: &str) -> bool {
    let pieces = ["/models/", "/data/weights/", "/data/constants/", "/byteorder"];
    pieces.iter().any(|piece| name.contains(piece))
}

/// A `.npy` file of 48 numbers.
fn array(seed: u8) -> Vec<u8> {
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 8), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..48u16).flat_map(|at| f32::from(at * u16::from(seed)).to_le_bytes()));
    bytes
}

fn arrays() -> Vec<(&'static str, Vec<u8>)> {
    let plain = zip(&[Entry::new("x.npy", array(1)), Entry::new("y.npy", array(3))]);
    let deflated = zip(&[Entry::deflated("x.npy", &array(1)), Entry::deflated("y.npy", &array(3))]);
    vec![("savez", plain), (COMPRESSED, deflated)]
}

#[test]
fn a_bit_that_flips_in_an_archive_is_noticed() {
    for (name, bytes) in programs() {
        flipped(&name, &bytes, is_read, 200, read_pt2);
    }
    for (name, bytes) in arrays() {
        flipped(name, &bytes, |_| true, 200, read_npz);
    }
}

/// Each bit of the archives of arrays, and 20,000 of each program:
/// `cargo test -p partita-import --release -- --ignored bits_of_archives`.
#[test]
#[ignore = "reads archives some 100,000 times"]
fn bits_of_archives_that_flip_are_noticed() {
    for (name, bytes) in programs() {
        flipped(&name, &bytes, is_read, 20_000, read_pt2);
    }
    for (name, bytes) in arrays() {
        flipped(name, &bytes, |_| true, 8 * bytes.len(), read_npz);
    }
}

#[test]
fn a_wrong_checksum_is_refused_with_file_and_entry() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let told = |path: &Path, error: Box<partita_base::Diagnostic>, entry: &str| {
        assert_eq!(error.code, "E351", "{error}");
        assert_eq!(error.at.as_deref(), Some(format!("{}: {entry}", path.display()).as_str()));
        assert!(error.expected.as_ref().unwrap().contains("CRC-32"), "{error}");
    };
    let (_, program) = &programs()[0];
    let places = payloads(program);
    let (name, place) = places.iter().find(|(name, _)| name.ends_with("weights/weight_1")).unwrap();
    let mut changed = program.clone();
    changed[place.start + 1] ^= 1;
    let path = file("changed.pt2", &changed);
    told(&path, Pt2::open(&path, &Limits::default()).unwrap_err(), name);
    for (kind, bytes) in arrays() {
        let mut changed = bytes.clone();
        let directory = bytes.len() - 22 - 2 * (46 + "x.npy".len());
        changed[directory + 16] ^= 1;
        let path = file(&format!("{kind}.npz"), &changed);
        told(&path, Weights::open(&path, &Limits::default()).unwrap_err(), "x.npy");
        // The same with the checksum that it has.
        std::fs::write(&path, sealed(changed)).unwrap();
        assert_eq!(Weights::open(&path, &Limits::default()).unwrap().len(), 2);
    }
}
