//! Files that change after they were opened: what is read of them is what they had, or E350 with their name.

use crate::common::{Entry, recorded, zip};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_import::families::Family;
use partita_import::{ImportOptions, Limits, Pt2, Tensor, Weights, save_sharded};
use partita_ir::{Literal, TensorType};
use partita_testkit::Random;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Writes a file that was last modified a while ago, so that a write now is later on every file system.
fn written(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap();
    let ago = SystemTime::now() - Duration::from_secs(60);
    File::options().write(true).open(path).unwrap().set_modified(ago).unwrap();
}

/// The tensors of a file by name.
fn open(path: &Path) -> Result<IndexMap<String, Tensor>> {
    let owned = |(name, tensor): (&str, &Tensor)| (name.to_string(), tensor.clone());
    Ok(match path.extension().and_then(|ending| ending.to_str()) {
        Some("pt2") => Pt2::open(path, &Limits::default())?.tensors().map(owned).collect(),
        _ => Weights::open(path, &Limits::default())?.iter().map(owned).collect(),
    })
}

/// All numbers of a file, in full, one half after the other, and turned.
fn numbers(tensor: &Tensor) -> Result<Vec<Literal>> {
    let mut found = vec![tensor.literal()?];
    if let Some(&rows) = tensor.ty.shape.first() {
        let (mut offset, mut extent) = (vec![0; tensor.ty.rank()], tensor.ty.shape.clone());
        for (start, end) in [(0, rows / 2), (rows / 2, rows)] {
            (offset[0], extent[0]) = (start, end - start);
            found.push(tensor.window(&offset, &extent)?);
        }
        found.push(Tensor::joined(&[tensor.rows(0, rows / 2), tensor.clone()])?.expect("parts").literal()?);
    }
    if tensor.ty.rank() == 2 {
        found.push(tensor.transposed().literal()?);
    }
    Ok(found)
}

/// A file of each kind: its name, and its bytes.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let array = |seed: usize, is_fortran: bool| {
        let order = if is_fortran { "True" } else { "False" };
        let header = format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': (60, 80), }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend((0..60 * 80).flat_map(|at| ((at * seed) as f32).to_le_bytes()));
        bytes
    };
    let plain = [Entry::new("x.npy", array(1, false)), Entry::new("y.npy", array(3, true))];
    let mixed = [Entry::deflated("x.npy", &array(5, false)), Entry::new("y.npy", array(7, false))];
    let recorded = |name: &str| fs::read(recorded().join(name)).unwrap();
    vec![
        ("w.safetensors", recorded("families/gpt/model.safetensors")),
        ("w.npz", zip(&plain)),
        ("mixed.npz", zip(&mixed)),
        ("w.npy", array(9, true)),
        ("gpt.pt2", recorded("gpt.pt2")),
        ("buffers.pt2", recorded("buffers.pt2")),
    ]
}

fn is_of(error: &Diagnostic, path: &Path, found: &str) {
    assert_eq!(error.code, "E350", "{error}");
    assert_eq!(error.message, "a file of weights changed while it was read");
    assert_eq!(error.at.as_deref(), Some(path.to_str().unwrap()));
    assert_eq!(error.found.as_deref(), Some(found));
    assert!(error.expected.is_some() && error.help.is_some(), "{error}");
}

#[test]
fn a_file_that_is_truncated_after_it_was_opened_gives_no_other_number() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(350);
    for (name, bytes) in files() {
        let path = folder.path().join(name);
        written(&path, &bytes);
        let honest = open(&path).unwrap();
        let honest: IndexMap<&String, Vec<Literal>> =
            honest.iter().map(|(name, tensor)| (name, numbers(tensor).unwrap())).collect();
        assert!(honest.len() > usize::from(!name.ends_with("npy")), "{name} has tensors");
        for _ in 0..20 {
            written(&path, &bytes);
            let opened = open(&path).unwrap();
            let kept = random.below(bytes.len());
            File::options().write(true).open(&path).unwrap().set_len(kept as u64).unwrap();
            let mut refused = 0;
            for (of, tensor) in &opened {
                match numbers(tensor) {
                    Ok(found) => assert_eq!(found, honest[of], "{of} of {name}, cut to {kept}"),
                    Err(error) => {
                        is_of(&error, &path, &format!("{kept} bytes: it was truncated"));
                        refused += 1;
                    }
                }
            }
            // What was expanded when the archive was opened is in memory, and so is what has no elements.
            let in_memory = if name == "mixed.npz" { 1 } else { 0 };
            let with_elements = opened.values().filter(|tensor| tensor.ty.element_count() > 0).count();
            assert_eq!(refused, with_elements - in_memory, "{name}, cut to {kept}");
            // Opened now, it is another file, which is refused for what it is.
            assert!(open(&path).is_err(), "{name}, cut to {kept}");
        }
    }
}

#[test]
fn a_file_that_is_written_in_place_is_refused_and_a_replaced_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files() {
        let path = folder.path().join(name);
        let other: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x40).collect();
        written(&path, &bytes);
        let opened = open(&path).unwrap();
        let tensor = opened.values().next_back().unwrap();
        let honest = numbers(tensor).unwrap();
        // Replaced and removed: the file that was opened is there still.
        let new = folder.path().join("new");
        written(&new, &other);
        fs::rename(&new, &path).unwrap();
        assert_eq!(numbers(tensor).unwrap(), honest, "{name}");
        fs::remove_file(&path).unwrap();
        assert_eq!(numbers(tensor).unwrap(), honest, "{name}");
        // In place, with the same size.
        written(&path, &bytes);
        let opened = open(&path).unwrap();
        fs::write(&path, &other).unwrap();
        let error = numbers(opened.values().next_back().unwrap()).unwrap_err();
        is_of(&error, &path, &format!("{} bytes, written later: it was changed in place", bytes.len()));
    }
}

#[test]
fn shards_are_refused_by_the_name_of_the_shard() {
    let folder = tempfile::tempdir().unwrap();
    let count = 300;
    let tensors: IndexMap<String, Literal> = (0..count)
        .map(|at| {
            let ty = TensorType::new(partita_base::DType::F32, [4]);
            (format!("t{at:03}"), Literal::from_f64(&ty, (0..4).map(|i| f64::from(at * 4 + i))))
        })
        .collect();
    let shard = |number: usize, of: usize| -> PathBuf {
        folder.path().join(format!("model-{number:05}-of-{of:05}.safetensors"))
    };
    // Few shards are kept open, many are opened for each read.
    for (bytes, of) in [(4 * 4 * 10, 30), (4 * 4, 300)] {
        save_sharded(folder.path(), &tensors, bytes).unwrap();
        let weights = Weights::open(folder.path(), &Limits::default()).unwrap();
        let read = |name: &str| weights.get(name).unwrap().literal();
        assert!(tensors.iter().all(|(name, value)| read(name).unwrap() == *value));
        let path = shard(of, of);
        File::options().write(true).open(&path).unwrap().set_len(9).unwrap();
        is_of(&read("t299").unwrap_err(), &path, "9 bytes: it was truncated");
        assert_eq!(read("t000").unwrap(), tensors["t000"]);
    }
}

#[test]
fn what_reads_weights_says_that_they_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("buffers.pt2");
    written(&path, &fs::read(recorded().join("buffers.pt2")).unwrap());
    let opened = Pt2::open(&path, &Limits::default()).unwrap();
    let imported = opened.import(&ImportOptions::default()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert_eq!(imported.trained(&IndexMap::new()).unwrap_err().code, "E350");
    assert_eq!(opened.import(&ImportOptions::default()).unwrap_err().code, "E350", "the values of buffers");
    let states = imported.model.states.values().chain(imported.model.params.values());
    for spec in states.filter(|spec| spec.stored.is_some()) {
        assert_eq!(spec.initial(0).unwrap_err().code, "E350");
    }
    assert_eq!(imported.model.initial(0).map(|_| ()).unwrap_err().code, "E350", "the first values of states");
    // Three tensors of a checkpoint are joined to one parameter when it is loaded.
    let path = folder.path().join("bert.safetensors");
    written(&path, &fs::read(recorded().join("families/bert/model.safetensors")).unwrap());
    let weights = Weights::open(&path, &Limits::default()).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let config = partita_nn::BertConfig {
        vocab: 31,
        dim: 16,
        layers: 2,
        heads: 2,
        sequence: 8,
        mlp_ratio: 2,
        types: 2,
        fused_qkv: true,
        ..Default::default()
    };
    let model = partita_nn::ModelConfig::Bert(config).build(1, partita_base::DType::F32, false).unwrap();
    is_of(&Family::Bert.load(&model, &weights).unwrap_err(), &path, "100 bytes: it was truncated");
}
