//! Figures over steps as TensorBoard reads them: a file of records, each of which is a message of protocol buffers.
//!
//! A record is its length in 8 bytes, a checksum of the length, the message, and a checksum of the message (TensorFlow,
//! "TFRecord and tf.train.Example", section "TFRecords format details"); a checksum is CRC-32C (RFC 3720, appendix B.4),
//! rotated and with a constant added. The messages are `Event` and `Summary` of TensorFlow's `event.proto` and
//! `summary.proto`; of their fields only those of a scalar are written.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The polynomial of CRC-32C, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What is added to a rotated checksum.
const MASK: u32 = 0xa282_ead8;

/// A file of figures that grows during a run.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// Makes a new file in a folder, which is made if need be. `wall_s` is the time in seconds since 1970; `host` and
    /// `process` tell files of one second apart. TensorBoard joins all files of a folder to one run.
    ///
    /// # Errors
    /// If the folder cannot be made or the file exists.
    pub fn create(folder: &Path, wall_s: f64, host: &str, process: u32) -> io::Result<EventFile> {
        std::fs::create_dir_all(folder)?;
        let host: String = host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = folder.join(format!("events.out.tfevents.{:010}.{host}.{process}.0", wall_s as u64));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        let mut events = EventFile { file, path };
        let mut message = wall(wall_s);
        bytes(&mut message, 3, b"brain.Event:2");
        events.record(&message)?;
        Ok(events)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the figures of one step, by their names. One write: who reads meanwhile sees whole records.
    ///
    /// # Errors
    /// Those of the file.
    pub fn scalars(&mut self, wall_s: f64, step: u64, figures: &[(&str, f64)]) -> io::Result<()> {
        let mut summary = Vec::new();
        for &(name, value) in figures {
            let mut scalar = Vec::new();
            bytes(&mut scalar, 1, name.as_bytes());
            tag(&mut scalar, 2, 5);
            scalar.extend((value as f32).to_le_bytes());
            bytes(&mut summary, 1, &scalar);
        }
        let mut message = wall(wall_s);
        tag(&mut message, 2, 0);
        varint(&mut message, step);
        bytes(&mut message, 5, &summary);
        self.record(&message)
    }

    fn record(&mut self, message: &[u8]) -> io::Result<()> {
        let length = (message.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(message.len() + 16);
        record.extend(length);
        record.extend(masked(crc32c(&length)).to_le_bytes());
        record.extend(message);
        record.extend(masked(crc32c(message)).to_le_bytes());
        self.file.write_all(&record)
    }
}

/// The begin of an `Event`: its time.
fn wall(wall_s: f64) -> Vec<u8> {
    let mut message = Vec::new();
    tag(&mut message, 1, 1);
    message.extend(wall_s.to_le_bytes());
    message
}

/// The number of a field and how its value is written.
fn tag(message: &mut Vec<u8>, field: u64, form: u64) {
    varint(message, field << 3 | form);
}

/// Seven bits a byte, the lowest first.
fn varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push(number as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

/// A field of text, or of another message.
fn bytes(message: &mut Vec<u8>, field: u64, value: &[u8]) {
    tag(message, field, 2);
    varint(message, value.len() as u64);
    message.extend(value);
}

fn crc32c(bytes: &[u8]) -> u32 {
    let folded = bytes.iter().fold(u32::MAX, |mut rest, &byte| {
        rest ^= u32::from(byte);
        for _ in 0..8 {
            rest = rest >> 1 ^ if rest & 1 == 1 { POLYNOMIAL } else { 0 };
        }
        rest
    });
    !folded
}

fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, appendix B.4: zeros, ones, ascending bytes; and the check value of the catalogue of CRCs.
        let ascending: Vec<u8> = (0..32).collect();
        let sums = [&[0; 32][..], &[0xff; 32], &ascending, b"123456789"].map(crc32c);
        assert_eq!(sums, [0x8a91_36aa, 0x62a8_ab43, 0x46dd_794e, 0xe306_9283]);
    }

    #[test]
    fn messages_have_the_bytes_of_protocol_buffers() {
        let mut message = Vec::new();
        tag(&mut message, 1, 0);
        varint(&mut message, 150);
        bytes(&mut message, 2, b"testing");
        // The two examples of "Protocol Buffers: Encoding".
        assert_eq!(message, b"\x08\x96\x01\x12\x07testing");
    }

    #[test]
    fn a_file_is_a_sequence_of_records() {
        let folder = std::env::temp_dir().join(format!("partita-event-file-{}", std::process::id()));
        let mut events = EventFile::create(&folder, 12.5, "a host", 7).unwrap();
        assert!(EventFile::create(&folder, 12.5, "a host", 7).is_err(), "no file is replaced");
        events.scalars(13.0, 300, &[("loss", 2.5)]).unwrap();
        let name = events.path().file_name().unwrap().to_str().unwrap().to_string();
        let mut rest = &std::fs::read(events.path()).unwrap()[..];
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(name, "events.out.tfevents.0000000012.a-host.7.0");
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            messages.push(&rest[12..12 + length]);
            rest = &rest[16 + length..];
        }
        let expected = [
            [b"\x09", &12.5f64.to_le_bytes()[..], b"\x1a\x0dbrain.Event:2"].concat(),
            [
                b"\x09",
                &13f64.to_le_bytes()[..],
                b"\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15",
                &2.5f32.to_le_bytes()[..],
            ]
            .concat(),
        ];
        assert_eq!(messages, expected);
    }
}
