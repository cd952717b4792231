//! Named values: options of clients, topologies and compilation, and attributes of plugins.

use crate::api::{list, text};
use crate::layout::{NamedValue, Payload};
use std::fmt;

/// The value of an option or attribute. A plugin refuses an option of another kind than it expects.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Text.
    Text(String),
    /// A signed integer.
    Integer(i64),
    /// Several signed integers, such as device ids.
    Integers(Vec<i64>),
    /// A float of single precision.
    Float(f32),
    /// Yes or no.
    Bool(bool),
}

impl Value {
    /// The number of its kind in the C header.
    pub(crate) fn kind(&self) -> i32 {
        match self {
            Value::Text(_) => 0,
            Value::Integer(_) => 1,
            Value::Integers(_) => 2,
            Value::Float(_) => 3,
            Value::Bool(_) => 4,
        }
    }

    /// The name of its kind, for messages.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self {
            Value::Text(_) => "text",
            Value::Integer(_) => "integer",
            Value::Integers(_) => "list of integers",
            Value::Float(_) => "float",
            Value::Bool(_) => "boolean",
        }
    }

    /// The struct of an option. It points into `name` and `self`, so it is valid as long as these are.
    pub(crate) fn named(&self, name: &str) -> NamedValue {
        let mut it = NamedValue::zeroed();
        (it.name, it.name_length, it.kind) = (name.as_ptr(), name.len(), self.kind());
        (it.value, it.length) = match self {
            Value::Text(text) => (Payload { text: text.as_ptr() }, text.len()),
            Value::Integer(integer) => (Payload { integer: *integer }, 1),
            Value::Integers(integers) => (Payload { integers: integers.as_ptr() }, integers.len()),
            Value::Float(float) => (Payload { float: *float }, 1),
            Value::Bool(boolean) => (Payload { boolean: *boolean }, 1),
        };
        it
    }

    /// Reads an array of named values. Entries of a kind that is not known are left out.
    ///
    /// # Safety
    ///
    /// `first` must be null or point to `length` named values of a plugin.
    pub(crate) unsafe fn read(first: *const NamedValue, length: usize) -> Vec<(String, Value)> {
        if first.is_null() || length == 0 {
            return Vec::new();
        }
        // A later version may append fields, so the distance of two entries is the size that they state.
        // SAFETY: there is at least one entry.
        let distance = unsafe { (*first).size }.max(size_of::<NamedValue>());
        let entries = (0..length).filter_map(|at| {
            // SAFETY: `at` is below the number of entries.
            let entry = unsafe { &*first.byte_add(at * distance) };
            // SAFETY: the name belongs to the plugin, which stays loaded.
            let name = unsafe { text(entry.name, entry.name_length) };
            // SAFETY: `kind` says which field of the union is set, and pointers come with their length.
            let value = unsafe {
                match entry.kind {
                    0 => Value::Text(text(entry.value.text, entry.length)),
                    1 => Value::Integer(entry.value.integer),
                    2 => Value::Integers(list(entry.value.integers, entry.length).to_vec()),
                    3 => Value::Float(entry.value.float),
                    4 => Value::Bool(entry.value.boolean),
                    _ => return None,
                }
            };
            Some((name, value))
        });
        entries.collect()
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

impl From<i64> for Value {
    fn from(integer: i64) -> Value {
        Value::Integer(integer)
    }
}

impl From<f32> for Value {
    fn from(float: f32) -> Value {
        Value::Float(float)
    }
}

impl From<bool> for Value {
    fn from(boolean: bool) -> Value {
        Value::Bool(boolean)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Integer(integer) => write!(f, "{integer}"),
            Value::Integers(integers) => write!(f, "{integers:?}"),
            Value::Float(float) => write!(f, "{float}"),
            Value::Bool(boolean) => write!(f, "{boolean}"),
        }
    }
}

/// The most characters of a value in a message.
const MOST_SHOWN: usize = 60;

/// Options for a message: `name = value` in the order given. Of a long text, such as the description of a card, the
/// beginning of its first line.
pub(crate) fn describe(options: &[(&str, Value)]) -> String {
    if options.is_empty() {
        return "no options".into();
    }
    let all = options.iter().map(|(name, value)| {
        let text = value.to_string();
        let first = text.lines().next().unwrap_or_default();
        let shown: String = first.chars().take(MOST_SHOWN).collect();
        let more = if shown.len() < text.len() { ".." } else { "" };
        format!("{name} = {shown}{more} ({})", value.kind_name())
    });
    all.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_they_were_written() {
        let values = [
            ("text", Value::from("a \0 b")),
            ("empty", Value::from("")),
            ("integer", Value::from(-3)),
            ("integers", Value::Integers(vec![1, 20, 0])),
            ("none", Value::Integers(vec![])),
            ("float", Value::from(0.5)),
            ("yes", Value::from(true)),
        ];
        let named: Vec<NamedValue> = values.iter().map(|(name, value)| value.named(name)).collect();
        // SAFETY: an array of named values that point to `values`.
        let read = unsafe { Value::read(named.as_ptr(), named.len()) };
        let read: Vec<_> = read.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        assert_eq!(read, values);
        assert_eq!(
            describe(&values[2..4]),
            "integer = -3 (integer), integers = [1, 20, 0] (list of integers)"
        );
        let long = format!("{}\nmore", "x".repeat(59));
        assert_eq!(describe(&[("t", Value::from(&*long))]), format!("t = {}.. (text)", "x".repeat(59)));
        assert_eq!(describe(&[("t", Value::from(&long[..59]))]), format!("t = {} (text)", "x".repeat(59)));
    }

    #[test]
    fn entries_of_a_later_version_are_as_long_as_they_say_and_unknown_kinds_are_left_out() {
        #[repr(C)]
        struct Later {
            known: NamedValue,
            more: [u64; 2],
        }
        let later = |name: &str, value: &Value, kind| {
            let mut known = value.named(name);
            (known.size, known.kind) = (size_of::<Later>(), kind);
            Later { known, more: [u64::MAX; 2] }
        };
        let (a, b) = (Value::from(1), Value::from(2));
        let entries = [later("a", &a, 1), later("unknown", &a, 9), later("b", &b, 1)];
        // SAFETY: an array of named values that state their size.
        let read = unsafe { Value::read(entries.as_ptr().cast(), entries.len()) };
        assert_eq!(read, [("a".to_string(), a), ("b".to_string(), b)]);
        // SAFETY: null is an empty array.
        assert_eq!(unsafe { Value::read(std::ptr::null(), 3) }, []);
    }
}
