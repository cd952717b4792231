//! From a name on the command line to the table of a config: bundled text, a file, or a file with a model; and overrides.

use super::{BUNDLED, SECTIONS};
use crate::keys::unknown;
use partita_base::{Diagnostic, Result, did_you_mean};
use std::path::Path;
use toml::{Table, Value};

/// The config of a file with a model.
pub(super) fn of_file(path: &str) -> Table {
    let model = Table::from_iter([("kind".to_string(), "file".into()), ("path".to_string(), path.into())]);
    Table::from_iter([("model".to_string(), model.into())])
}

/// The table of a TOML text. E003 with file and line if it is none.
pub(super) fn parse(text: &str, name: &str) -> Result<Table> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |s| text[..s.start].matches('\n').count() + 1);
        Diagnostic::new("E003", "the config is not valid TOML")
            .at(format!("{name}:{line}"))
            .found(error.message().to_string())
    })
}

/// The text of a config file. E005 if it cannot be read, with similar names.
pub(super) fn read_file(name: &str) -> Result<String> {
    let path = Path::new(name);
    std::fs::read_to_string(path).map_err(|error| {
        let mut names: Vec<&str> = BUNDLED.iter().map(|(n, _)| *n).collect();
        let expected = format!("a TOML file, a file with a model (.pt2), or one of {}", names.join(", "));
        names.extend(crate::models::named::names());
        let mut diagnostic = Diagnostic::new("E005", format!("no config `{name}`"))
            .expected(expected)
            .found(error.to_string());
        if let Some(help) = did_you_mean(name, names) {
            diagnostic = diagnostic.help(help);
        }
        diagnostic
    })
}

/// `train.steps=50`: the value is TOML; what is not is taken as a string.
pub(super) fn apply_override(table: &mut Table, item: &str) -> Result<()> {
    let (path, text) = item.split_once('=').ok_or_else(|| {
        Diagnostic::new("E006", format!("cannot read the override `{item}`")).expected("section.key=value")
    })?;
    let value = format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut t| t.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_string()));
    let (section, key) = path.split_once('.').ok_or_else(|| {
        Diagnostic::new("E006", format!("cannot read the override `{item}`"))
            .expected("section.key=value")
            .found(format!("`{path}` without a section"))
    })?;
    if !SECTIONS.contains(&section) {
        let known: Vec<String> = SECTIONS.iter().map(|s| s.to_string()).collect();
        return Err(unknown(&format!("--set {item}"), section, &known));
    }
    let entry = table.entry(section.to_string()).or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(inner) = entry {
        inner.insert(key.trim_matches('"').to_string(), value);
    }
    Ok(())
}
