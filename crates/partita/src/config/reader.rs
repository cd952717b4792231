//! Reading a config section by section, with a record of its keys.

use crate::keys::{Key, Section};
use partita_base::Result;
use std::collections::BTreeMap;
use toml::Table;

/// By section, the keys that may be unknown.
pub(super) type Optional<'a> = BTreeMap<&'a str, Vec<String>>;

/// The sections that have not been read yet, and what the others contained.
pub(super) struct Reader<'a> {
    root: Table,
    optional: Optional<'a>,
    /// The keys of all sections so far.
    pub keys: Vec<Key>,
    /// By `section.key`, what each of them is.
    pub values: BTreeMap<String, String>,
    /// Optional keys that were not read: `section.key`.
    pub left_out: Vec<String>,
}

impl<'a> Reader<'a> {
    /// A reader of a whole config.
    pub fn new(root: Table, optional: Optional<'a>) -> Reader<'a> {
        Reader { root, optional, keys: Vec::new(), values: BTreeMap::new(), left_out: Vec::new() }
    }

    /// Reads a section to its end.
    pub fn section<T>(&mut self, name: &str, read: impl FnOnce(&mut Section) -> Result<T>) -> Result<T> {
        let optional = self.optional.get(name).map_or(&[][..], Vec::as_slice);
        let mut section = Section::take(&mut self.root, name)?.with_optional(optional);
        let value = read(&mut section)?;
        let ended = section.end()?;
        self.keys.extend(ended.keys);
        self.values.extend(ended.values);
        self.left_out.extend(ended.left_out);
        Ok(value)
    }

    /// A section that nothing has read.
    pub fn unread(&self) -> Option<&String> {
        self.root.keys().next()
    }
}
