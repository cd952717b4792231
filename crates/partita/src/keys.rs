//! Reading a TOML table strictly: every key is typed, and what nobody asked for is an error with a suggestion.

use partita_base::{Diagnostic, Result, did_you_mean};
use toml::{Table, Value};

/// A section of the config. Call [`Section::end`] when all keys have been asked for.
pub struct Section {
    name: String,
    table: Table,
    asked: Vec<String>,
    /// Keys that may go unread.
    optional: Vec<String>,
}

impl Section {
    /// The sub-table `name` of `root`, empty where absent. E002 when it is not a table.
    pub fn take(root: &mut Table, name: &str) -> Result<Section> {
        let table = match root.remove(name) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(other) => return Err(wrong(name, "a table", &other)),
        };
        Ok(Section { name: name.to_string(), table, asked: Vec::new(), optional: Vec::new() })
    }

    /// Lets these keys go unread.
    pub fn with_optional(mut self, keys: &[String]) -> Section {
        self.optional = keys.to_vec();
        self
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    /// The raw value of a key.
    pub fn value(&mut self, key: &str) -> Option<Value> {
        self.asked.push(key.to_string());
        self.table.remove(key)
    }

    /// A text.
    pub fn text(&mut self, key: &str) -> Result<Option<String>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.full(key), "a string", &other)),
        }
    }

    /// A finite number; an integer counts as one.
    pub fn number(&mut self, key: &str) -> Result<Option<f64>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Float(number)) if number.is_finite() => Ok(Some(number)),
            Some(Value::Integer(number)) => Ok(Some(number as f64)),
            Some(other) => Err(wrong(&self.full(key), "a finite number", &other)),
        }
    }

    /// A count: an integer that is not negative.
    pub fn count(&mut self, key: &str) -> Result<Option<usize>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Integer(number)) if number >= 0 => Ok(Some(number as usize)),
            Some(other) => Err(wrong(&self.full(key), "an integer of at least 0", &other)),
        }
    }

    /// A truth value.
    pub fn flag(&mut self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Boolean(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(&self.full(key), "true or false", &other)),
        }
    }

    /// A list of texts.
    pub fn texts(&mut self, key: &str) -> Result<Option<Vec<String>>> {
        let full = self.full(key);
        let expected = "a list of strings";
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| item.as_str().map(str::to_string).ok_or_else(|| wrong(&full, expected, item)))
                .collect::<Result<Vec<String>>>()
                .map(Some),
            Some(other) => Err(wrong(&full, expected, &other)),
        }
    }

    /// A list of counts.
    pub fn counts(&mut self, key: &str) -> Result<Option<Vec<usize>>> {
        let full = self.full(key);
        let expected = "a list of integers of at least 0";
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| {
                    item.as_integer()
                        .and_then(|i| usize::try_from(i).ok())
                        .ok_or_else(|| wrong(&full, expected, item))
                })
                .collect::<Result<Vec<usize>>>()
                .map(Some),
            Some(other) => Err(wrong(&full, expected, &other)),
        }
    }

    /// What nobody asked for, as a table of its own.
    pub fn rest(&mut self) -> Table {
        std::mem::take(&mut self.table)
    }

    /// E001 where a key is left that nobody asked for and that is not optional; returns those that are.
    pub fn end(self) -> Result<Vec<String>> {
        match self.table.keys().find(|key| !self.optional.contains(key)) {
            None => Ok(self.table.keys().map(|key| self.full(key)).collect()),
            Some(key) => Err(unknown(&format!("[{}] {key}", self.name), key, &self.asked)),
        }
    }
}

/// E001: an unknown key, with what there is.
pub fn unknown(at: &str, key: &str, known: &[String]) -> Box<Diagnostic> {
    let mut error = Diagnostic::new("E001", format!("unknown config key `{key}`")).at(at);
    if let Some(help) = did_you_mean(key, known.iter().map(String::as_str)) {
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
