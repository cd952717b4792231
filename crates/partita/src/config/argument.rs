//! The argument CONFIG: a bundled config, a TOML file, a model by name, or a file with a model; and overrides of its keys.

use super::{BUNDLED, SECTIONS};
use crate::keys::unknown;
use crate::models::named;
use partita_base::{Diagnostic, Result, did_you_mean, nearest};
use partita_import::ModelFile;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The table of a config by its name; `bundled` is its text if it is a bundled one.
///
/// # Errors
/// E003 for a text that is not TOML, E005 for a file that cannot be read.
pub(super) fn table(name: &str, bundled: Option<&str>) -> Result<Table> {
    match (bundled, named::find(name)?) {
        (Some(text), _) => parse(text, name),
        (None, Some(model)) => Ok(Table::from_iter([("model".to_string(), Value::Table(model))])),
        (None, None) if ModelFile::is_named(Path::new(name)) => Ok(of_file(name)),
        (None, None) => parse(&read_file(name)?, name),
    }
}

/// The config of a file with a model.
fn of_file(path: &str) -> Table {
    let model = Table::from_iter([("kind".to_string(), "file".into()), ("path".to_string(), path.into())]);
    Table::from_iter([("model".to_string(), model.into())])
}

fn parse(text: &str, name: &str) -> Result<Table> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |s| text[..s.start].matches('\n').count() + 1);
        let mut invalid = Diagnostic::new("E003", "the config is not valid TOML")
            .at(format!("{name}:{line}"))
            .found(error.message().to_string());
        invalid.help = advice(Path::new(name));
        invalid
    })
}

/// What to do with a file that is no config, by its ending.
fn advice(path: &Path) -> Option<String> {
    let advice = match path.extension()?.to_str()? {
        "npz" | "npy" | "safetensors" => {
            "a file of tensors is data, `--data FILE`, or initial values, `--set model.weights=FILE`"
        }
        "py" => {
            "write the model with `torch.export.save(torch.export.export(model, inputs), \"model.pt2\")`, and give model.pt2; \
             a plan in Python is `--plan FILE`"
        }
        _ => return None,
    };
    Some(advice.to_string())
}

/// E035 for the table of a file that has no model; what is there may be a plan.
pub(super) fn no_model(file: &Table) -> Box<Diagnostic> {
    let sections: Vec<String> = file.keys().map(|section| format!("[{section}]")).collect();
    let error = Diagnostic::new("E035", "the config has no model")
        .at("[model]")
        .expected("a section [model], such as the line `kind = \"gpt\"` below it")
        .found(if sections.is_empty() { "no section at all".to_string() } else { sections.join(", ") });
    match file.contains_key("plan") || file.contains_key("stages") {
        true => error.help("this is a plan: name the model first, `partita verify MODEL --plan FILE`"),
        false => error.help("begin with a bundled config: `partita train gpt`; docs/CONFIG.md shows one"),
    }
}

fn read_file(name: &str) -> Result<String> {
    let path = Path::new(name);
    partita_base::read_text(path).map_err(|error| {
        if path.exists() {
            let mut unread = Diagnostic::new("E005", format!("cannot read the config `{name}`"))
                .expected("a TOML file in UTF-8 that can be read, or a file with a model (.pt2, .mlir)")
                .found(error.to_string());
            unread.help = advice(path);
            return unread;
        }
        let mut names: Vec<&str> = BUNDLED.iter().map(|(n, _)| *n).collect();
        let expected =
            format!("a TOML file, a file with a model (.pt2, .mlir), or one of {}", names.join(", "));
        names.extend(named::names());
        let mut diagnostic = Diagnostic::new("E005", format!("no config `{name}`"))
            .expected(expected)
            .found(error.to_string())
            .note(format!("models by name: {}", named::names().join(", ")));
        diagnostic.help = file_beside(path).or_else(|| did_you_mean(&name.to_ascii_lowercase(), names));
        diagnostic
    })
}

/// The config or model in the same folder whose name is near that of a file that is not there.
pub(crate) fn file_beside(path: &Path) -> Option<String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?.flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| PathBuf::from(entry.file_name())).collect();
    files.retain(|file| ModelFile::is_named(file) || file.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    // Endings are short, and would count as much as the names before them.
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let stems: Vec<String> = files.iter().filter_map(|file| stem(file)).collect();
    let near = nearest(&stem(path)?, stems.iter().map(String::as_str)).into_iter().next()?;
    let found = files.into_iter().find(|file| stem(file).as_deref() == Some(&near))?;
    let found = folder.map_or(found.clone(), |folder| folder.join(&found));
    Some(format!("did you mean `{}`?", found.display()))
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

/// What a plan file may say it was made for: the key there, and that of the config.
const MADE_FOR: [(&str, &str, &str); 5] = [
    ("mesh", "mesh", "shape"),
    ("microbatches", "train", "microbatches"),
    ("timetable", "train", "timetable"),
    ("sequence_parallel", "plan", "sequence_parallel"),
    ("activation_limit", "train", "activation_limit"),
];

/// Takes mesh and microbatches from the plan file that the config names, if it has them. Overrides win. The notes say what
/// was taken, and what was not. A file that cannot be read is reported where the plan is needed.
pub(super) fn apply_plan_file(table: &mut Table, overrides: &[String]) -> Vec<String> {
    let path =
        table.get("plan").and_then(|plan| plan.get("file")).and_then(Value::as_str).map(str::to_string);
    let Some(path) = path else { return Vec::new() };
    let text = partita_base::read_text(&path).unwrap_or_default();
    let Ok(file) = text.parse::<Table>() else { return Vec::new() };
    let mut notes = Vec::new();
    for (key, section, name) in MADE_FOR {
        let Some(own) = file.get(key) else { continue };
        let entry = table.entry(section.to_string()).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(entry) = entry else { continue };
        let before = entry.get(name).cloned();
        if before.as_ref() == Some(own) {
            continue;
        }
        let path_of_key = format!("{section}.{name}=");
        match before.filter(|_| overrides.iter().any(|item| item.starts_with(&path_of_key))) {
            Some(given) => {
                notes
                    .push(format!("the plan `{path}` was made for {key} = {own}; the given {given} is used"));
            }
            None => {
                entry.insert(name.to_string(), own.clone());
                notes.push(format!("{key} = {own}, as the plan `{path}` says"));
            }
        }
    }
    notes
}

/// Notes where an unknown key comes from, if it is one of the file and an override names another kind than the file.
pub(super) fn blame_file(
    error: Box<Diagnostic>,
    file: &str,
    changed: &[&str],
    before: &Table,
) -> Box<Diagnostic> {
    let of = |section: &&&str| {
        let own = before.get(**section).and_then(Value::as_table).into_iter().flat_map(Table::keys);
        error.at.as_ref().is_some_and(|at| at.starts_with(&format!("[{section}] ")))
            && own.into_iter().any(|key| error.message.contains(&format!("`{key}`")))
    };
    match changed.iter().find(of) {
        Some(section) if error.code == "E001" => {
            let note = format!("`{file}` holds the key; `{section}.kind` is another than there");
            error.note(note)
        }
        _ => error,
    }
}
