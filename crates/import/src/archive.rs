//! ZIP archives, of `.pt2` and `.npz` files: entries found by the central directory (APPNOTE 6.3.10, sections 4.3.7 to
//! 4.3.16).
//!
//! PyTorch writes each payload at a multiple of 64 bytes and without compression, so that parts of it
//! can be read. Its local headers have no sizes; only the central directory has. A name that leaves the
//! archive, two entries with one name, entries that overlap and encryption do not occur in such a
//! file, and are refused. `np.savez_compressed` deflates entries; a `.pt2` file never does. The checksum (CRC-32) of every
//! entry that is read is compared; headers have none.

use crate::limits::exceeded;
use crate::source::check_text;
use crate::{Limits, Source};
use partita_base::{Diagnostic, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// The entries of an archive by name.
#[derive(Clone, PartialEq, Debug)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

/// An entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The place of its payload in the file.
    pub place: Range<usize>,
    /// The number of bytes that the payload expands to, as the archive claims; `None` if it is not compressed.
    pub size: Option<usize>,
    /// The CRC-32 of what it expands to.
    pub checksum: u32,
}

impl Entry {
    /// E351 unless the checksum is that of `contents`, what the payload expands to.
    pub fn check(&self, name: &str, contents: &[u8]) -> Result<()> {
        self.compare(name, contents.len(), crc32fast::hash(contents))
    }

    /// [`Entry::check`] of a payload that is not compressed, which is read in pieces. Also the errors of the source.
    pub fn check_stored(&self, name: &str, source: &Source) -> Result<()> {
        let mut hasher = crc32fast::Hasher::new();
        source.visit(self.place.clone(), &mut |piece| hasher.update(piece))?;
        self.compare(name, self.place.len(), hasher.finalize())
    }

    fn compare(&self, name: &str, bytes: usize, found: u32) -> Result<()> {
        if found == self.checksum {
            return Ok(());
        }
        Err(Diagnostic::new("E351", format!("the entry `{name}` of the archive is damaged"))
            .at(name)
            .expected(format!("{bytes} bytes of checksum {:08x} (CRC-32)", self.checksum))
            .found(format!("checksum {found:08x}"))
            .help("save the file again, or copy it again"))
    }
}

/// What the payloads of an archive may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Not compressed.
    Refused,
    /// Not compressed, or deflated.
    Deflate,
}

const END: u32 = 0x0605_4B50;
const END_64: u32 = 0x0606_4B50;
const END_64_LOCATOR: u32 = 0x0706_4B50;
const CENTRAL: u32 = 0x0201_4B50;
const LOCAL: u32 = 0x0403_4B50;

const END_BYTES: usize = 22;
const END_64_BYTES: usize = 56;
const CENTRAL_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;

fn damaged(found: impl Into<String>) -> Box<Diagnostic> {
    Diagnostic::new("E351", "the archive is damaged, or of another kind")
        .expected("a ZIP archive as `torch.export.save` or `numpy.savez` writes it")
        .found(found)
        .help("save it again, or copy the file again")
}

/// Bytes of a part of the archive, by their place in the archive.
struct Part<'a> {
    bytes: Cow<'a, [u8]>,
    start: usize,
}

impl Part<'_> {
    /// The part at `place`, cut at the end of the archive. Errors of the source.
    fn read(source: &Source, place: Range<usize>) -> Result<Part<'_>> {
        Ok(Part { start: place.start, bytes: source.read(place)? })
    }

    fn get(&self, place: Range<usize>) -> Option<&[u8]> {
        self.bytes.get(place.start.checked_sub(self.start)?..place.end.checked_sub(self.start)?)
    }

    /// A little-endian number of `size` bytes at `at`.
    fn number(&self, at: usize, size: usize) -> Result<u64> {
        let part = at.checked_add(size).and_then(|end| self.get(at..end));
        let part = part.ok_or_else(|| damaged(format!("it ends in the middle of a field at byte {at}")))?;
        Ok(part.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn u16_at(&self, at: usize) -> Result<usize> {
        Ok(self.number(at, 2)? as usize)
    }

    fn u32_at(&self, at: usize) -> Result<u64> {
        self.number(at, 4)
    }
}

/// Place and entry count of the central directory.
fn directory(source: &Source) -> Result<(Range<usize>, usize)> {
    let length = source.len();
    let last = length.checked_sub(END_BYTES).ok_or_else(|| damaged("a file of a few bytes"))?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let tail = Part::read(source, first..length)?;
    let ends = |at: &usize| {
        tail.u32_at(*at) == Ok(u64::from(END)) && tail.u16_at(*at + 20) == Ok(length - END_BYTES - *at)
    };
    let end = (first..=last).rev().find(ends).ok_or_else(|| damaged("no end of a central directory"))?;
    let (mut count, mut size, mut start) =
        (tail.u16_at(end + 10)? as u64, tail.u32_at(end + 12)?, tail.u32_at(end + 16)?);
    let mut limit = end;
    if count == 0xFFFF || size == 0xFFFF_FFFF || start == 0xFFFF_FFFF {
        let locator = end.checked_sub(20).ok_or_else(|| damaged("no ZIP64 locator"))?;
        let part = Part::read(source, locator..end)?;
        if part.u32_at(locator)? != u64::from(END_64_LOCATOR) {
            return Err(damaged("no ZIP64 locator"));
        }
        let record = usize::try_from(part.number(locator + 8, 8)?).unwrap_or(usize::MAX);
        let part = Part::read(source, record..record.saturating_add(END_64_BYTES))?;
        if part.u32_at(record)? != u64::from(END_64) {
            return Err(damaged("no ZIP64 end of the central directory"));
        }
        (count, size, start) =
            (part.number(record + 32, 8)?, part.number(record + 40, 8)?, part.number(record + 48, 8)?);
        limit = record;
    }
    let stop = start.checked_add(size).filter(|&stop| stop <= limit as u64);
    let stop = stop.ok_or_else(|| damaged("a central directory beyond the end of the file"))?;
    Ok((start as usize..stop as usize, usize::try_from(count).unwrap_or(usize::MAX)))
}

/// Sizes and offset of an entry; a ZIP64 extra field replaces those that are all ones.
fn places(part: &Part, header: usize, extra: Range<usize>) -> Result<[u64; 3]> {
    // Uncompressed size, compressed size, offset: the order of the extra field.
    let mut values = [part.u32_at(header + 24)?, part.u32_at(header + 20)?, part.u32_at(header + 42)?];
    let mut at = extra.start;
    while at + 4 <= extra.end {
        let (tag, size) = (part.u16_at(at)?, part.u16_at(at + 2)?);
        let mut field = at + 4;
        at = field + size;
        if tag != 1 {
            continue;
        }
        for value in values.iter_mut().filter(|value| **value == 0xFFFF_FFFF) {
            if field + 8 > at.min(extra.end) {
                return Err(damaged("a ZIP64 field that is too short"));
            }
            *value = part.number(field, 8)?;
            field += 8;
        }
    }
    Ok(values)
}

/// E351 for a name that could leave the archive.
fn checked_name(name: &[u8]) -> Result<&str> {
    let name = std::str::from_utf8(name).map_err(|_| damaged("a name that is not UTF-8"))?;
    let is_strange = name.is_empty()
        || name.contains(['\\', '\0', ':'])
        || name.split('/').any(|part| part == ".." || part == ".")
        || name.starts_with('/');
    match is_strange {
        true => Err(damaged(format!("an entry named {name:?}, which could name a file outside"))),
        false => Ok(name),
    }
}

impl Archive {
    /// Reads the central directory. E351 for a damaged archive or one with entries that `.pt2` files do not have, E358 for
    /// too many entries; errors of the source.
    pub fn read(source: &Source, compression: Compression, limits: &Limits) -> Result<Archive> {
        let (place, count) = directory(source)?;
        if count > limits.entries {
            return Err(exceeded(
                "the archive",
                format!("at most {} entries", limits.entries),
                format!("{count} entries"),
            ));
        }
        check_text("the directory of the archive", place.len(), limits)?;
        let part = Part::read(source, place.clone())?;
        let mut entries = BTreeMap::new();
        // The bytes of each entry with its header.
        let mut taken: Vec<(Range<usize>, String)> = Vec::new();
        let mut at = place.start;
        for _ in 0..count {
            if at + CENTRAL_BYTES > place.end || part.u32_at(at)? != u64::from(CENTRAL) {
                return Err(damaged("a central directory with fewer entries than it says"));
            }
            let lengths = [part.u16_at(at + 28)?, part.u16_at(at + 30)?, part.u16_at(at + 32)?];
            let name_start = at + CENTRAL_BYTES;
            let extra = name_start + lengths[0]..name_start + lengths[0] + lengths[1];
            let next = extra.end + lengths[2];
            if next > place.end {
                return Err(damaged("an entry that goes beyond the central directory"));
            }
            let name = checked_name(part.get(name_start..extra.start).unwrap_or_default())?.to_string();
            let (flags, method) = (part.u16_at(at + 8)?, part.u16_at(at + 10)?);
            let [size, stored, offset] = places(&part, at, extra)?;
            if flags & 1 != 0 {
                return Err(damaged(format!("`{name}` is encrypted")));
            }
            let is_deflated = method == 8 && compression == Compression::Deflate;
            if !is_deflated && (method != 0 || size != stored) {
                return Err(damaged(format!("`{name}` is compressed")).note(
                    "compressed entries could expand without limit, and parts of them cannot be read",
                ));
            }
            let header = usize::try_from(offset).ok().filter(|&header| header < place.start);
            let header = header.ok_or_else(|| damaged(format!("`{name}` has its data outside the file")))?;
            let own_name = header + LOCAL_BYTES..header + LOCAL_BYTES + lengths[0];
            let local = Part::read(source, header..own_name.end)?;
            if local.u32_at(header)? != u64::from(LOCAL) {
                return Err(damaged(format!("`{name}` has no header where the directory says")));
            }
            let start = own_name.start + local.u16_at(header + 26)? + local.u16_at(header + 28)?;
            let end = usize::try_from(stored).ok().and_then(|stored| start.checked_add(stored));
            let end = end.filter(|&end| end <= place.start);
            let end =
                end.ok_or_else(|| damaged(format!("`{name}` of {stored} bytes has data outside the file")))?;
            if local.u16_at(header + 26)? != lengths[0] || local.get(own_name) != Some(name.as_bytes()) {
                return Err(damaged(format!("`{name}` has another name in its own header")));
            }
            taken.push((header..end, name.clone()));
            let checksum = part.u32_at(at + 16)? as u32;
            let expanded = is_deflated.then(|| usize::try_from(size).unwrap_or(usize::MAX));
            if entries.insert(name.clone(), Entry { place: start..end, size: expanded, checksum }).is_some() {
                return Err(damaged(format!("two entries named `{name}`")));
            }
            at = next;
        }
        if at != place.end {
            return Err(damaged("a central directory with more entries than it says"));
        }
        taken.sort_by_key(|(place, _)| (place.start, place.end));
        match taken.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
            Some(pair) => Err(damaged(format!("`{}` and `{}` overlap", pair[0].1, pair[1].1))),
            None => Ok(Archive { entries }),
        }
    }

    /// The names of all entries.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Every name and entry.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Whether there is an entry with this name.
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Where the payload of an entry that is not compressed is in the file, after comparing its checksum. E351 if that
    /// differs; errors of the source.
    pub fn place(&self, source: &Source, name: &str) -> Result<Option<Range<usize>>> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        entry.check_stored(name, source)?;
        Ok(Some(entry.place.clone()))
    }

    /// The text of an entry that is not compressed, which people know as `path`. E351 for another checksum, E358 for a long
    /// one; errors of the source.
    pub fn text<'a>(
        &self,
        source: &'a Source,
        name: &str,
        path: &str,
        limits: &Limits,
    ) -> Result<Option<Cow<'a, [u8]>>> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        check_text(&format!("`{path}`"), entry.place.len(), limits)?;
        let text = source.read(entry.place.clone())?;
        entry.check(name, &text)?;
        Ok(Some(text))
    }
}
