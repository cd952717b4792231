//! Mutated files: whatever a file says, reading it and importing it neither panics, nor hangs, nor
//! allocates beyond a limit.
//!
//! Two kinds of mutation, from a seeded generator: bytes of the file are changed, cut or repeated;
//! numbers, words and parts of the graph's JSON are exchanged and the archive is written again, so
//! that the mutation reaches the import. `PARTITA_FUZZ=1000000` runs so many of each.

use crate::common::{Entry, recorded, unzip, zip};
use partita_import::{ImportOptions, Limits, Pt2, Weights};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

fn rounds(short: usize) -> usize {
    std::env::var("PARTITA_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(short)
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
    let Ok(file) = Pt2::read(Arc::new(bytes), None, &limits) else { return };
    file.tensors().for_each(|(_, tensor)| drop(tensor.literal()));
    let _ = file.import(&ImportOptions { limits, ..ImportOptions::default() });
}

fn read_weights(bytes: Vec<u8>) {
    if let Ok(weights) = Weights::read(Arc::new(bytes), &Limits::default()) {
        weights.iter().for_each(|(_, tensor)| drop(tensor.literal()));
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
                    _ => random.next() as u8,
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
    for round in 0..rounds(400) {
        let (name, bytes) = &files[random.below(files.len())];
        let changed = mutated(&mut random, bytes);
        survives(&format!("round {round}, {name}"), changed, read_model);
    }
}

#[test]
fn mutated_graphs_and_tables_are_survived() {
    let _turn = turn();
    let files: Vec<(String, Vec<Entry>)> =
        files("pt2").into_iter().map(|(name, bytes)| (name, unzip(&bytes))).collect();
    let mut random = Random(2);
    for round in 0..rounds(600) {
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
    for round in 0..rounds(2000) {
        let (name, bytes) = &files[random.below(files.len())];
        let changed = mutated(&mut random, bytes);
        survives(&format!("round {round}, {name}"), changed, read_weights);
    }
}
