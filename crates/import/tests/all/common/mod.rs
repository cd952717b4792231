//! Archives for tests: reading and writing ZIP entries without compression.
#![allow(dead_code)]

pub mod cases;

use std::path::{Path, PathBuf};

/// The folder of recorded models.
pub fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pt2")
}

/// An entry with what its headers say, which need not be right.
#[derive(Clone)]
pub struct Entry {
    pub name: String,
    pub data: Vec<u8>,
    pub method: u16,
    pub flags: u16,
    /// The size in the central directory.
    pub size: u32,
    /// The compressed size in the central directory.
    pub stored: u32,
    /// Added to the offset in the central directory.
    pub moved: i64,
    /// The checksum in the central directory.
    pub checksum: u32,
}

impl Entry {
    pub fn new(name: &str, data: impl Into<Vec<u8>>) -> Entry {
        let data = data.into();
        let size = data.len() as u32;
        let checksum = crc32fast::hash(&data);
        Entry { name: name.into(), data, method: 0, flags: 0, size, stored: size, moved: 0, checksum }
    }

    /// An entry that is deflated.
    pub fn deflated(name: &str, data: &[u8]) -> Entry {
        let (size, checksum) = (data.len() as u32, crc32fast::hash(data));
        let stored = miniz_oxide::deflate::compress_to_vec(data, 6);
        Entry { method: 8, size, checksum, ..Entry::new(name, stored) }
    }
}

/// An archive of these entries.
pub fn zip(entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    for entry in entries {
        let offset = (bytes.len() as i64 + entry.moved) as u32;
        let name = entry.name.as_bytes();
        bytes.extend(0x0403_4B50u32.to_le_bytes());
        bytes.extend([0u8; 22]);
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend([0u8; 2]);
        bytes.extend(name);
        bytes.extend(&entry.data);
        directory.extend(0x0201_4B50u32.to_le_bytes());
        directory.extend([0u8; 4]);
        directory.extend(entry.flags.to_le_bytes());
        directory.extend(entry.method.to_le_bytes());
        directory.extend([0u8; 4]);
        directory.extend(entry.checksum.to_le_bytes());
        directory.extend(entry.stored.to_le_bytes());
        directory.extend(entry.size.to_le_bytes());
        directory.extend((name.len() as u16).to_le_bytes());
        directory.extend([0u8; 12]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name);
    }
    let start = bytes.len() as u32;
    let count = (entries.len() as u16).to_le_bytes();
    bytes.extend(&directory);
    bytes.extend(0x0605_4B50u32.to_le_bytes());
    bytes.extend([0u8; 4]);
    bytes.extend(count);
    bytes.extend(count);
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0u8; 2]);
    bytes
}

/// The same archive as large ones are written: sizes and places in 64 bits (ZIP64).
pub fn zip64(entries: &[Entry]) -> Vec<u8> {
    let small = zip(entries);
    let end = small.len() - 22;
    let directory_start = u32::from_le_bytes(small[end + 16..end + 20].try_into().unwrap()) as usize;
    let mut bytes = small[..directory_start].to_vec();
    let mut at = directory_start;
    while at < end {
        let mut header = small[at..at + 46].to_vec();
        let name = usize::from(u16::from_le_bytes(header[28..30].try_into().unwrap()));
        let field =
            |at: usize| u64::from(u32::from_le_bytes(header[at..at + 4].try_into().unwrap())).to_le_bytes();
        // Another field first, then sizes and offset.
        let mut extra = vec![b'F', b'B', 2, 0, 0, 0, 1, 0, 24, 0];
        extra.extend([field(24), field(20), field(42)].concat());
        header[20..28].fill(0xFF);
        header[42..46].fill(0xFF);
        header[30..32].copy_from_slice(&(extra.len() as u16).to_le_bytes());
        bytes.extend(header);
        bytes.extend(&small[at + 46..at + 46 + name]);
        bytes.extend(extra);
        at += 46 + name;
    }
    let (record, size) = (bytes.len() as u64, (bytes.len() - directory_start) as u64);
    let count = (entries.len() as u64).to_le_bytes();
    bytes.extend(0x0606_4B50u32.to_le_bytes());
    bytes.extend(44u64.to_le_bytes());
    bytes.extend([0u8; 12]);
    bytes.extend([count, count, size.to_le_bytes(), (directory_start as u64).to_le_bytes()].concat());
    bytes.extend(0x0706_4B50u32.to_le_bytes());
    bytes.extend([0u8; 4]);
    bytes.extend(record.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(0x0605_4B50u32.to_le_bytes());
    bytes.extend([0u8; 4]);
    bytes.extend([0xFF; 12]);
    bytes.extend([0u8; 2]);
    bytes
}

/// The entries of a well-formed archive.
pub fn unzip(bytes: &[u8]) -> Vec<Entry> {
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0usize, |value, &byte| value << 8 | usize::from(byte))
    };
    let end = bytes.len() - 22;
    let (count, mut at) = (number(end + 10, 2), number(end + 16, 4));
    let mut entries = Vec::new();
    for _ in 0..count {
        let (size, name, header) = (number(at + 24, 4), number(at + 28, 2), number(at + 42, 4));
        let start = header + 30 + number(header + 26, 2) + number(header + 28, 2);
        let text = String::from_utf8(bytes[at + 46..at + 46 + name].to_vec()).unwrap();
        entries.push(Entry::new(&text, &bytes[start..start + size]));
        at += 46 + name + number(at + 30, 2) + number(at + 32, 2);
    }
    entries
}

/// Writes the checksums that the entries have now into the central directory, as far as an archive has one.
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let number = |bytes: &[u8], at: usize, size: usize| {
        let field = at.checked_add(size).and_then(|end| bytes.get(at..end));
        field.map(|field| field.iter().rev().fold(0usize, |value, &byte| value << 8 | usize::from(byte)))
    };
    let Some(end) = bytes.len().checked_sub(22) else { return bytes };
    let mut at = number(&bytes, end + 16, 4).unwrap_or(usize::MAX);
    while number(&bytes, at, 4) == Some(0x0201_4B50) {
        let field = |offset: usize, size: usize| number(&bytes, at + offset, size).unwrap_or(0);
        let (method, stored, header) = (field(10, 2), field(20, 4), field(42, 4));
        let next = at + 46 + field(28, 2) + field(30, 2) + field(32, 2);
        let names = [26, 28].map(|offset| number(&bytes, header + offset, 2).unwrap_or(0));
        let start = header + 30 + names[0] + names[1];
        if let Some(data) = bytes.get(start..start.saturating_add(stored)) {
            let checksum = match method {
                8 => miniz_oxide::inflate::decompress_to_vec_with_limit(data, 1 << 20)
                    .map(|data| crc32fast::hash(&data)),
                _ => Ok(crc32fast::hash(data)),
            };
            if let (Ok(checksum), Some(place)) = (checksum, bytes.get_mut(at + 16..at + 20)) {
                place.copy_from_slice(&checksum.to_le_bytes());
            }
        }
        at = next;
    }
    bytes
}
