//! Strict reading of a TOML table: each key has a type, a default and a line of meaning, and a key that no reader knows
//! is an error with a suggestion.
//!
//! The calls that read the config are the only list of its keys: a [`Section`] records each key that was read, so
//! [`Config::keys`](crate::config::Config::keys) lists them by reading an empty config.

use partita_base::{Diagnostic, Result, did_you_mean};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use toml::{Table, Value};

/// A key of the config.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// The section: `train`.
    pub section: String,
    /// The name within the section: `steps`.
    pub name: String,
    /// The type of its values: `count`.
    pub takes: &'static str,
    /// The default as TOML, or what a config without the key means.
    pub default: String,
    /// Its meaning in one line.
    pub about: &'static str,
    /// The values of `kind` in the section for which there is such a key; empty if there is one for all of them.
    pub kinds: Vec<String>,
}

/// A type of values in a config.
pub trait Setting: Sized {
    /// The name of the type in lists of keys.
    const TAKES: &'static str;
    /// What an error says was expected.
    const EXPECTED: &'static str;

    /// The value, or the part of it that is of another type.
    fn read(value: &Value) -> std::result::Result<Self, &Value>;

    /// The value as TOML.
    fn write(&self) -> Value;
}

impl Setting for String {
    const TAKES: &'static str = "text";
    const EXPECTED: &'static str = "a string";

    fn read(value: &Value) -> std::result::Result<String, &Value> {
        value.as_str().map(str::to_string).ok_or(value)
    }

    fn write(&self) -> Value {
        self.clone().into()
    }
}

impl Setting for PathBuf {
    const TAKES: &'static str = "path";
    const EXPECTED: &'static str = "a string";

    fn read(value: &Value) -> std::result::Result<PathBuf, &Value> {
        String::read(value).map(PathBuf::from)
    }

    fn write(&self) -> Value {
        self.display().to_string().into()
    }
}

impl Setting for f64 {
    const TAKES: &'static str = "number";
    const EXPECTED: &'static str = "a finite number";

    fn read(value: &Value) -> std::result::Result<f64, &Value> {
        match value {
            Value::Float(number) if number.is_finite() => Ok(*number),
            Value::Integer(number) => Ok(*number as f64),
            other => Err(other),
        }
    }

    fn write(&self) -> Value {
        (*self).into()
    }
}

impl Setting for usize {
    const TAKES: &'static str = "count";
    const EXPECTED: &'static str = "an integer of at least 0";

    fn read(value: &Value) -> std::result::Result<usize, &Value> {
        value.as_integer().and_then(|number| usize::try_from(number).ok()).ok_or(value)
    }

    fn write(&self) -> Value {
        Value::Integer(*self as i64)
    }
}

impl Setting for u64 {
    const TAKES: &'static str = usize::TAKES;
    const EXPECTED: &'static str = usize::EXPECTED;

    fn read(value: &Value) -> std::result::Result<u64, &Value> {
        usize::read(value).map(|count| count as u64)
    }

    fn write(&self) -> Value {
        (*self as usize).write()
    }
}

impl Setting for NonZeroUsize {
    const TAKES: &'static str = usize::TAKES;
    const EXPECTED: &'static str = "an integer of at least 1";

    fn read(value: &Value) -> std::result::Result<NonZeroUsize, &Value> {
        usize::read(value).and_then(|count| NonZeroUsize::new(count).ok_or(value))
    }

    fn write(&self) -> Value {
        self.get().write()
    }
}

impl Setting for bool {
    const TAKES: &'static str = "true or false";
    const EXPECTED: &'static str = "true or false";

    fn read(value: &Value) -> std::result::Result<bool, &Value> {
        value.as_bool().ok_or(value)
    }

    fn write(&self) -> Value {
        (*self).into()
    }
}

impl Setting for Vec<String> {
    const TAKES: &'static str = "texts";
    const EXPECTED: &'static str = "a list of strings";

    fn read(value: &Value) -> std::result::Result<Vec<String>, &Value> {
        value.as_array().ok_or(value)?.iter().map(String::read).collect()
    }

    fn write(&self) -> Value {
        self.clone().into()
    }
}

impl Setting for Vec<usize> {
    const TAKES: &'static str = "counts";
    const EXPECTED: &'static str = "a list of integers of at least 0";

    fn read(value: &Value) -> std::result::Result<Vec<usize>, &Value> {
        value.as_array().ok_or(value)?.iter().map(usize::read).collect()
    }

    fn write(&self) -> Value {
        self.iter().map(usize::write).collect::<Vec<Value>>().into()
    }
}

/// A section of the config. [`Section::end`] follows when all keys have been read.
pub struct Section {
    name: String,
    table: Table,
    keys: Vec<Key>,
    values: BTreeMap<String, String>,
    /// Keys that may be left unread.
    optional: Vec<String>,
}

/// What is left of a section after all its keys were read.
pub struct Ended {
    /// The keys that were read.
    pub keys: Vec<Key>,
    /// By `section.key`, the value of each of them as TOML, or what its absence means.
    pub values: BTreeMap<String, String>,
    /// Optional keys of the table that were not read: `section.key`.
    pub left_out: Vec<String>,
}

impl Section {
    /// The sub-table `name` of `root`; an empty one if there is none. E002 if it is not a table.
    pub fn take(root: &mut Table, name: &str) -> Result<Section> {
        let table = match root.remove(name) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(other) => return Err(wrong(name, "a table", &other)),
        };
        let (keys, values) = (Vec::new(), BTreeMap::new());
        Ok(Section { name: name.to_string(), table, keys, values, optional: Vec::new() })
    }

    /// Lets these keys be left unread.
    pub fn with_optional(mut self, keys: &[String]) -> Section {
        self.optional = keys.to_vec();
        self
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    /// The value of a key, or its default. E002 for a value of another type.
    pub fn get<T: Setting>(&mut self, key: &str, default: T, about: &'static str) -> Result<T> {
        let written = default.write().to_string();
        Ok(self.find(key, &written, about)?.unwrap_or(default))
    }

    /// The value of a key, if there is one; `absent` says what its absence means. E002 for a value of another type.
    pub fn find<T: Setting>(&mut self, key: &str, absent: &str, about: &'static str) -> Result<Option<T>> {
        let Some(value) = self.raw(key, T::TAKES, absent, about) else { return Ok(None) };
        let read = T::read(&value).map_err(|found| wrong(&self.full(key), T::EXPECTED, found))?;
        // 1 and 1.0 are one number.
        self.values.insert(self.full(key), read.write().to_string());
        Ok(Some(read))
    }

    /// The value of a key whose type the caller checks; `takes` names that type.
    pub fn raw(
        &mut self,
        key: &str,
        takes: &'static str,
        absent: &str,
        about: &'static str,
    ) -> Option<Value> {
        self.keys.push(Key {
            section: self.name.clone(),
            name: key.to_string(),
            takes,
            default: absent.to_string(),
            about,
            kinds: Vec::new(),
        });
        let value = self.table.remove(key);
        let written = value.as_ref().map_or(absent.to_string(), Value::to_string);
        self.values.insert(self.full(key), written);
        value
    }

    /// All keys that have not been read, as a table.
    pub fn rest(&mut self) -> Table {
        std::mem::take(&mut self.table)
    }

    /// E001 if a key is left that is not optional.
    pub fn end(self) -> Result<Ended> {
        if let Some(key) = self.table.keys().find(|key| !self.optional.contains(key)) {
            let known: Vec<String> = self.keys.iter().map(|key| key.name.clone()).collect();
            return Err(unknown(&format!("[{}] {key}", self.name), key, &known));
        }
        let left_out = self.table.keys().map(|key| self.full(key)).collect();
        Ok(Ended { keys: self.keys, values: self.values, left_out })
    }
}

/// Keys that have other names now.
const RENAMED: [(&str, &str); 1] = [("[cluster] others", "it is called `[[cluster.devices]]`")];

/// E001: an unknown key, with the known ones.
pub fn unknown(at: &str, key: &str, known: &[String]) -> Box<Diagnostic> {
    let mut error = Diagnostic::new("E001", format!("unknown config key `{key}`")).at(at);
    let renamed = RENAMED.iter().find(|(old, _)| *old == at).map(|(_, new)| new.to_string());
    if let Some(help) = renamed.or_else(|| did_you_mean(key, known.iter().map(String::as_str))) {
        error = error.help(help);
    }
    error.expected(format!("one of {}", known.join(", ")))
}

/// E002: a value of the wrong type.
pub fn wrong(key: &str, expected: &str, found: &Value) -> Box<Diagnostic> {
    Diagnostic::new("E002", format!("config key `{key}` does not take this value"))
        .expected(expected)
        .found(format!("{} ({})", found, found.type_str()))
}
