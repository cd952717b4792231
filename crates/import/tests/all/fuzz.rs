//! Mutated files: whatever a file says, reading it and importing it neither panics, nor hangs, nor
//! allocates beyond a limit.
//!
//! Two kinds of mutation, from a seeded generator: bytes of the file are changed, cut or repeated;
//! numbers, words and parts of the graph's JSON are exchanged and the archive is written again, so
//! that the mutation reaches the import. In texts of MLIR, words are exchanged for others of the text.
//! `PARTITA_FUZZ=1000000 cargo test --workspace --test all -- fuzz` runs so many of each reader, those of plans, configs and
//! timetables included; `PARTITA_FUZZ_SECONDS=300` runs each for so long.

use crate::common::{Entry, recorded, sealed, unzip, zip};
use crate::torch_dialect::{ATTENTION, PERCEPTRON};
use partita_import::{ImportOptions, Limits, Pt2, StableHlo, Weights, mlir, numpy};
use partita_testkit::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes in use, and the most since the last reset.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: both functions pass their arguments to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most that one file may allocate: a multiple of its size, and a constant.
fn allowed_bytes(file: usize) -> usize {
    64 * file + (64 << 20)
}

/// The tests of this file take turns, since they measure the memory of the process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const LONGEST: Duration = Duration::from_secs(5);

/// So many rounds, or as the environment says.
fn rounds(short: usize) -> impl Iterator<Item = usize> {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<usize>().ok());
    let (count, seconds) = (number("PARTITA_FUZZ"), number("PARTITA_FUZZ_SECONDS"));
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds as u64));
    let most = count.unwrap_or(if seconds.is_some() { usize::MAX } else { short });
    (0..most).take_while(move |_| end.is_none_or(|end| Instant::now() < end))
}

/// The recorded files with this ending, up to a size: mutations of small files reach more.
fn files(ending: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(recorded())
        .expect("recorded files")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == ending))
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .filter(|(_, bytes)| bytes.len() < 100_000)
        .collect();
    files.sort();
    files
}

/// Runs `read` on bytes. A panic fails the test by itself, after the case is named.
fn survives(case: &str, bytes: Vec<u8>, read: impl Fn(Vec<u8>)) {
    let allowed = allowed_bytes(bytes.len());
    let before = USED.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(bytes)));
    assert!(outcome.is_ok(), "{case} panics");
    assert!(start.elapsed() < LONGEST, "{case} takes {:?}", start.elapsed());
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(peak <= allowed, "{case} allocates {peak} bytes, {allowed} are allowed");
}

/// Opens, reads all tensors, and imports.
fn read_model(bytes: Vec<u8>) {
    let limits = Limits { expanded_bytes: 1 << 20, nodes: 1 << 14, ..Limits::default() };
    let Ok(file) = Pt2::read(bytes.into(), None, &limits) else { return };
    file.tensors().for_each(|(_, tensor)| drop(tensor.literal().unwrap()));
    let _ = file.import(&ImportOptions { limits, ..ImportOptions::default() });
}

fn read_weights(bytes: Vec<u8>) {
    if let Ok(weights) = Weights::read(bytes.into(), &Limits::default()) {
        weights.iter().for_each(|(_, tensor)| drop(tensor.literal().unwrap()));
    }
}

/// Changes some bytes, cuts the file, or repeats a part of it.
fn mutated(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match random.below(8) {
        0 => bytes.truncate(random.below(bytes.len())),
        1 => {
            let (from, at) = (random.below(bytes.len()), random.below(bytes.len()));
            let part = bytes[from..bytes.len().min(from + 64)].to_vec();
            bytes.splice(at..at, part);
        }
        _ => {
            // Headers are at the end of an archive, and at the start of safetensors.
            let (from, count) = match random.below(3) {
                0 => (bytes.len().saturating_sub(2000), 2000.min(bytes.len())),
                1 => (0, 300.min(bytes.len())),
                _ => (0, bytes.len()),
            };
            for _ in 0..1 + random.below(6) {
                let at = from + random.below(count);
                bytes[at] = match random.below(4) {
                    0 => 0xFF,
                    1 => 0,
                    2 => bytes[at] ^ (1 << random.below(8)),
                    _ => random.bits() as u8,
                };
            }
        }
    }
    bytes
}

const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "7",
    "-7",
    "255",
    "65536",
    "2147483647",
    "4294967296",
    "1000000007",
    "9223372036854775807",
    "-9223372036854775808",
    "1e308",
    "0.5",
    "\"Infinity\"",
    "\"NaN\"",
    "null",
    "true",
    "[]",
    "{}",
    "\"x\"",
];

/// The places of numbers and of texts in JSON.
fn tokens(text: &str) -> Vec<(usize, usize, bool)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += 1 + usize::from(bytes[at] == b'\\');
                }
                at += 1;
                found.push((start, at.min(bytes.len()), false));
            }
            b'-' | b'0'..=b'9' => {
                while at < bytes.len() && matches!(bytes[at], b'-' | b'+' | b'.' | b'e' | b'0'..=b'9') {
                    at += 1;
                }
                found.push((start, at, true));
            }
            _ => at += 1,
        }
    }
    found
}

/// Exchanges numbers for extreme ones, and texts (names, ops) for others of the same graph.
fn rewritten(random: &mut Random, text: &str) -> String {
    let mut text = text.to_string();
    for _ in 0..1 + random.below(4) {
        let tokens = tokens(&text);
        let numbers: Vec<_> = tokens.iter().filter(|token| token.2).collect();
        let words: Vec<_> = tokens.iter().filter(|token| !token.2).collect();
        if random.below(3) > 0 && !numbers.is_empty() {
            let &&(from, to, _) = &numbers[random.below(numbers.len())];
            text.replace_range(from..to, NUMBERS[random.below(NUMBERS.len())]);
        } else if !words.is_empty() {
            let (&&(from, to, _), &&(start, end, _)) =
                (&words[random.below(words.len())], &words[random.below(words.len())]);
            let other = text[start..end].to_string();
            text.replace_range(from..to, &other);
        }
    }
    text
}

#[test]
fn mutated_bytes_of_models_are_survived() {
    let _turn = turn();
    let (files, mut random) = (files("pt2"), Random(1));
    for round in rounds(400) {
        let (name, bytes) = &files[random.below(files.len())];
        let changed = mutated(&mut random, bytes);
        // With the checksums of before, most are refused for these alone.
        let changed = if round % 4 == 0 { changed } else { sealed(changed) };
        survives(&format!("round {round}, {name}"), changed, read_model);
    }
}

#[test]
fn mutated_graphs_and_tables_are_survived() {
    let _turn = turn();
    let files: Vec<(String, Vec<Entry>)> =
        files("pt2").into_iter().map(|(name, bytes)| (name, unzip(&bytes))).collect();
    let mut random = Random(2);
    for round in rounds(600) {
        let (name, entries) = &files[random.below(files.len())];
        let mut entries = entries.clone();
        let texts: Vec<usize> =
            (0..entries.len()).filter(|&at| entries[at].name.ends_with(".json")).collect();
        // The graph more often than the tables.
        let graph = texts.iter().copied().find(|&at| entries[at].name.contains("/models/")).unwrap();
        let at = if random.below(4) == 0 { texts[random.below(texts.len())] } else { graph };
        let text = rewritten(&mut random, std::str::from_utf8(&entries[at].data).unwrap());
        entries[at] = Entry::new(&entries[at].name, text);
        survives(&format!("round {round}, {name}"), zip(&entries), read_model);
    }
}

#[test]
fn mutated_safetensors_are_survived() {
    let _turn = turn();
    let (files, mut random) = (files("safetensors"), Random(3));
    for round in rounds(2000) {
        let (name, bytes) = &files[random.below(files.len())];
        let changed = mutated(&mut random, bytes);
        survives(&format!("round {round}, {name}"), changed, read_weights);
    }
}

/// A `.npy` file of these extents.
fn array(descr: &str, shape: &str, values: usize) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..values).map(|at| at as u8));
    bytes
}

/// An archive as `np.savez_compressed` writes it.
fn compressed() -> Vec<u8> {
    let entry = Entry::deflated("x.npy", &array("<f4", "16, 4", 256));
    zip(&[entry, Entry::new("y.npy", array("<i8", "8,", 64))])
}

#[test]
fn archives_of_numpy_are_read_compressed_or_not_and_bombs_are_refused() {
    let arrays = numpy::npz(compressed().into(), &Limits::default()).unwrap();
    let numbers = |name: &str| arrays[name].literal().unwrap().bytes().to_vec();
    assert_eq!(numbers("x"), (0..256).map(|at| at as u8).collect::<Vec<u8>>());
    assert_eq!(numbers("y"), (0..64).collect::<Vec<u8>>());
    let mut bomb = Entry::deflated("x.npy", &vec![0u8; 1 << 22]);
    let limits = Limits { inflated_bytes: 1 << 20, ..Limits::default() };
    let code = |entry: &Entry| numpy::npz(zip(std::slice::from_ref(entry)).into(), &limits).unwrap_err().code;
    assert_eq!(code(&bomb), "E358");
    // A claim that is too small, and one that no stream of its length can fill.
    bomb.size = 1 << 10;
    assert_eq!(code(&bomb), "E361");
    let mut short = Entry::deflated("x.npy", b"short");
    short.size = 1 << 19;
    assert_eq!(code(&short), "E358");
}

#[test]
fn mutated_arrays_of_numpy_are_survived() {
    let _turn = turn();
    let plain =
        zip(&[Entry::new("x.npy", array("<f4", "4, 2", 32)), Entry::new("y.npy", array("|b1", "3,", 3))]);
    let (archives, alone) = ([plain, compressed()], array("<f2", "5, 2", 20));
    let limits = Limits { inflated_bytes: 1 << 20, ..Limits::default() };
    let mut random = Random(4);
    for round in rounds(2000) {
        let archive = random.below(2);
        let archive = mutated(&mut random, &archives[archive]);
        let archive = if round % 4 == 0 { archive } else { sealed(archive) };
        survives(&format!("round {round}, an archive"), archive, |bytes| {
            if let Ok(arrays) = numpy::npz(bytes.into(), &limits) {
                arrays.values().for_each(|tensor| drop(tensor.literal().unwrap()));
            }
        });
        let array = mutated(&mut random, &alone);
        survives(&format!("round {round}, an array"), array, |bytes| {
            if let Ok(tensor) = numpy::npy("x", bytes.into(), &limits) {
                drop(tensor.literal().unwrap());
            }
        });
    }
}

/// A program of the dialects that are read beside StableHLO.
const STRUCTURED: &str = r#"#row = affine_map<(i, j) -> (j)>
#all = affine_map<(i, j) -> (i, j)>
#sum = affine_map<(i, j) -> (i)>
module {
  func.func private @twice(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = arith.addf %x, %x : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
  func.func @main(%x: tensor<2x3xf32>, %v: tensor<3xf32>) -> tensor<2xf32> {
    %zero = arith.constant 0.0 : f32
    %a = arith.constant 0 : index
    %b = arith.constant 3 : index
    %c = arith.constant 1 : index
    %e = tensor.empty() : tensor<2xf32>
    %o = linalg.fill ins(%zero : f32) outs(%e : tensor<2xf32>) -> tensor<2xf32>
    %y = scf.for %i = %a to %b step %c iter_args(%t = %x) -> (tensor<2x3xf32>) {
      %d = func.call @twice(%t) : (tensor<2x3xf32>) -> tensor<2x3xf32>
      scf.yield %d : tensor<2x3xf32>
    }
    %s = tensor.extract_slice %y[0, 0] [2, 3] [1, 1] : tensor<2x3xf32> to tensor<2x3xf32>
    %w = linalg.transpose ins(%s : tensor<2x3xf32>) outs(%m : tensor<3x2xf32>) permutation = [1, 0]
    %r = linalg.generic {indexing_maps = [#all, #row, #sum], iterator_types = ["parallel", "reduction"]}
      ins(%s, %v : tensor<2x3xf32>, tensor<3xf32>) outs(%o : tensor<2xf32>) {
    ^bb0(%p: f32, %q: f32, %acc: f32):
      %0 = arith.mulf %p, %q : f32
      %1 = arith.addf %acc, %0 : f32
      linalg.yield %1 : f32
    } -> tensor<2xf32>
    %n = math.tanh %r : tensor<2xf32>
    return %n : tensor<2xf32>
  }
}
"#;

/// Exchanges words and numbers of a text of MLIR for others of it, or for extreme ones; or changes its bytes.
fn reworded(random: &mut Random, text: &str) -> String {
    if random.below(4) == 0 {
        return String::from_utf8_lossy(&mutated(random, text.as_bytes())).into_owned();
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || "%#@_.-".contains(c);
    let mut text = text.to_string();
    for _ in 0..1 + random.below(4) {
        let mut words: Vec<(usize, usize)> = Vec::new();
        for (at, c) in text.char_indices().filter(|(_, c)| is_word(*c)) {
            match words.last_mut() {
                Some((_, end)) if *end == at => *end = at + c.len_utf8(),
                _ => words.push((at, at + c.len_utf8())),
            }
        }
        let Some(&(from, to)) = words.get(random.below(words.len())) else { break };
        let (start, end) = words[random.below(words.len())];
        let other = match random.below(3) {
            0 => NUMBERS[random.below(NUMBERS.len())].to_string(),
            _ => text[start..end].to_string(),
        };
        text.replace_range(from..to, &other);
    }
    text
}

#[test]
fn mutated_programs_of_linalg_are_survived() {
    let _turn = turn();
    let mut random = Random(5);
    let limits = Limits { nodes: 1 << 12, elements: 1 << 24, ..Limits::default() };
    for round in rounds(2000) {
        let text = reworded(&mut random, STRUCTURED);
        survives(&format!("round {round}:\n{text}"), text.clone().into_bytes(), |bytes| {
            let text = String::from_utf8(bytes).expect("a text");
            let _ = mlir::read_function(&text, "fuzz.mlir", None, &limits);
        });
    }
}

#[test]
fn mutated_programs_of_torch_are_survived() {
    let _turn = turn();
    let mut random = Random(7);
    let limits = Limits { nodes: 1 << 12, elements: 1 << 24, ..Limits::default() };
    for round in rounds(1000) {
        let text = reworded(&mut random, [PERCEPTRON, ATTENTION][round % 2]);
        survives(&format!("round {round}:\n{text}"), text.clone().into_bytes(), |bytes| {
            let text = String::from_utf8(bytes).expect("a text");
            let _ = mlir::read_function(&text, "fuzz.mlir", None, &limits);
        });
    }
}

#[test]
fn mutated_programs_of_stablehlo_are_survived() {
    let _turn = turn();
    let folder = recorded().join("../jax");
    let mut texts: Vec<(String, String)> = std::fs::read_dir(folder)
        .expect("recorded programs")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "mlir"))
        .map(|path| (path.display().to_string(), std::fs::read_to_string(&path).expect("a text")))
        .filter(|(_, text)| text.len() < 20_000)
        .collect();
    texts.sort();
    assert!(!texts.is_empty());
    let mut random = Random(6);
    for round in rounds(400) {
        let (name, text) = &texts[random.below(texts.len())];
        let text = reworded(&mut random, text);
        survives(&format!("round {round}, {name}"), text.into_bytes(), |bytes| {
            let text = String::from_utf8(bytes).expect("a text");
            if let Ok(file) = StableHlo::read(&text, "fuzz.mlir", &Limits::default()) {
                let _ = file.import(&ImportOptions::default());
            }
        });
    }
}
