//! The rules of the house, read off the files: who may import whom, what must be written down where, how long a
//! file may be, where unsafe code may stand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The floor of each crate. Imports point strictly down; dev-dependencies may also stay on the floor.
const FLOORS: &[(&str, u32)] = &[
    ("base", 0),
    ("mesh", 1),
    ("kernels", 1),
    ("comm", 1),
    ("ir", 2),
    ("nn", 3),
    ("pipeline", 4),
    ("spmd", 4),
    ("schedule", 5),
    ("program", 5),
    ("runtime", 6),
    ("partita", 7),
];

/// Where unsafe code may stand: a crate, and files of its `src` (none given: all of them).
const UNSAFE: &[(&str, &[&str])] =
    &[("kernels", &[]), ("comm", &[]), ("runtime", &["data/corpus.rs", "arena.rs"])];

/// The most lines a source file may have.
const MOST_LINES: usize = 1000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate lies in crates/")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest(path: &Path) -> Table {
    read(path).parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders of `crates/`, by name.
fn crates() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(root().join("crates"))
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.join("Cargo.toml").exists())
        .map(|path| path.file_name().expect("named").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Every file with this ending below `folder`, build outputs and hidden folders aside.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("readable").map(|entry| entry.expect("readable").path()) {
            let name = entry.file_name().expect("named").to_string_lossy().into_owned();
            if entry.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "runs" {
                    folders.push(entry);
                }
            } else if name.ends_with(ending) {
                found.push(entry);
            }
        }
    }
    found.sort();
    found
}

/// The source files of a crate, with their paths below `src` and their text.
fn sources(name: &str) -> Vec<(String, String)> {
    let folder = root().join("crates").join(name).join("src");
    let below = |path: &PathBuf| {
        path.strip_prefix(&folder).expect("below").to_string_lossy().replace(std::path::MAIN_SEPARATOR, "/")
    };
    files(&folder, ".rs").iter().map(|path| (below(path), read(path))).collect()
}

/// The text without its unit tests.
fn without_tests<'a>(file: &str, text: &'a str) -> &'a str {
    let leaf = file.rsplit('/').next().expect("a name");
    if leaf == "tests.rs" || leaf == "testing.rs" || leaf.ends_with("_tests.rs") {
        return "";
    }
    text.split("#[cfg(test)]\nmod tests {").next().expect("a first part")
}

/// The part of a document under the heading that begins with `heading`, up to the next one of its level.
fn section(text: &str, heading: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(heading));
    assert!(lines.next().is_some(), "no section `{heading}`");
    lines.take_while(|line| !line.starts_with("## ")).collect::<Vec<_>>().join("\n")
}

fn tables<'a>(manifest: &'a Table, kind: &str) -> Vec<&'a Table> {
    let own = manifest.get(kind).and_then(Value::as_table);
    let targets = manifest.get("target").and_then(Value::as_table);
    let of_targets =
        targets.into_iter().flat_map(|t| t.values()).filter_map(|t| t.get(kind).and_then(Value::as_table));
    own.into_iter().chain(of_targets).collect()
}

fn report(title: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{title}:\n  {}", offenders.join("\n  "));
}

#[test]
fn imports_point_down_the_floors() {
    let floors: BTreeMap<&str, u32> = FLOORS.iter().copied().collect();
    let mut offenders = Vec::new();
    for name in crates() {
        let Some(&floor) = floors.get(name.as_str()) else {
            offenders.push(format!("crate `{name}` has no floor"));
            continue;
        };
        let manifest = manifest(&root().join("crates").join(&name).join("Cargo.toml"));
        for (kind, ceiling) in
            [("dependencies", floor), ("build-dependencies", floor), ("dev-dependencies", floor + 1)]
        {
            for (dependency, value) in tables(&manifest, kind).into_iter().flatten() {
                if value.get("workspace").and_then(Value::as_bool) != Some(true) {
                    offenders.push(format!("`{name}` does not take `{dependency}` from the workspace"));
                }
                let own = dependency.strip_prefix("partita-").unwrap_or(dependency);
                if floors.get(own).is_some_and(|&below| below >= ceiling) {
                    offenders.push(format!("`{name}` (floor {floor}) imports `{dependency}` in [{kind}]"));
                }
            }
        }
    }
    report("imports that do not point down", offenders);
}

#[test]
fn the_architecture_text_names_every_crate_and_dependency() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let (map, reasons) = (section(&text, "## Code map"), section(&text, "## Dependencies"));
    let mut offenders = Vec::new();
    for name in crates() {
        if !map.contains(&format!("`crates/{name}`")) {
            offenders.push(format!("the code map lacks `crates/{name}`"));
        }
    }
    let workspace = manifest(&root().join("Cargo.toml"));
    let dependencies = workspace["workspace"]["dependencies"].as_table().expect("a table");
    for (name, _) in dependencies.iter().filter(|(_, value)| value.get("path").is_none()) {
        let row = reasons.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let reason = row.and_then(|row| row.split('|').nth(2)).map(str::trim);
        if reason.is_none_or(str::is_empty) {
            offenders.push(format!("no reason is given for the dependency `{name}`"));
        }
    }
    report("ARCHITECTURE.md is incomplete", offenders);
}

#[test]
fn every_library_says_what_it_knows_and_where_it_is_unsafe() {
    let mut offenders = Vec::new();
    for name in crates() {
        let sources = sources(&name);
        let Some((_, library)) = sources.iter().find(|(file, _)| file == "lib.rs") else { continue };
        let header: String =
            library.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join(" ");
        if !header.to_lowercase().contains("know") {
            offenders.push(format!("the first doc lines of `{name}` do not say what it knows"));
        }
        match UNSAFE.iter().find(|(exempt, _)| *exempt == name) {
            None if !library.contains("#![forbid(unsafe_code)]") => {
                offenders.push(format!("`{name}` does not forbid unsafe code"));
            }
            Some((_, allowed)) if !allowed.is_empty() => {
                for (file, text) in &sources {
                    let used =
                        ["unsafe {", "unsafe impl", "unsafe fn"].iter().any(|word| text.contains(word));
                    if used && !allowed.contains(&file.as_str()) {
                        offenders.push(format!("`{name}` has unsafe code in {file}"));
                    }
                }
            }
            _ => {}
        }
    }
    report("what crates may know and do", offenders);
}

#[test]
fn source_files_are_short_and_finished() {
    let mut offenders = Vec::new();
    for name in crates() {
        for (file, text) in sources(&name) {
            let lines = text.lines().count();
            if lines > MOST_LINES {
                offenders.push(format!("crates/{name}/src/{file} has {lines} lines"));
            }
            for word in ["todo!(", "unimplemented!(", "TODO", "FIXME"] {
                if let Some(line) = text.lines().position(|line| line.contains(word)) {
                    offenders.push(format!("crates/{name}/src/{file}:{}: {word}", line + 1));
                }
            }
        }
    }
    report("too long or unfinished", offenders);
}

/// The targets of `[text](target)` outside of code.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        if in_block {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        for part in prose.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                links.push(target.to_string());
            }
        }
    }
    links
}

#[test]
fn links_in_documents_lead_somewhere() {
    let mut offenders = Vec::new();
    for file in files(&root(), ".md") {
        for link in links(&read(&file)) {
            let target = link.split('#').next().expect("a first part");
            let outside = ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme));
            if !outside && !target.is_empty() && !file.parent().expect("a folder").join(target).exists() {
                offenders.push(format!("{}: {link}", file.display()));
            }
        }
    }
    report("links that lead nowhere", offenders);
}

/// Every diagnostic code that a text reports: `"E123"`, unless it is only compared with.
fn codes(text: &str) -> BTreeSet<String> {
    let pieces: Vec<&str> = text.split('"').collect();
    let is_code = |piece: &str| {
        piece.len() == 4 && piece.starts_with('E') && piece[1..].bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_compared = |before: &str| before.trim_end().ends_with("==") || before.trim_end().ends_with("!=");
    pieces
        .windows(2)
        .filter(|pair| is_code(pair[1]) && !is_compared(pair[0]))
        .map(|pair| pair[1].to_string())
        .collect()
}

#[test]
fn every_diagnostic_code_is_explained_and_belongs_to_its_crates() {
    let text = read(&root().join("docs/ERRORS.md"));
    let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in text.lines().filter(|line| line.starts_with("| E")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [code, crates, meaning] = cells[..] else { panic!("a row has three cells: {row}") };
        assert!(!meaning.is_empty(), "{code} has no meaning");
        assert!(owners.insert(code, crates.split(", ").collect()).is_none(), "{code} has two rows");
    }
    let mut offenders = Vec::new();
    for name in crates() {
        for (file, text) in sources(&name) {
            for code in codes(without_tests(&file, &text)) {
                match owners.get(code.as_str()) {
                    None => offenders.push(format!("{code} (crates/{name}/src/{file}) has no row")),
                    Some(crates) if !crates.contains(name.as_str()) => offenders.push(format!(
                        "{code} (crates/{name}/src/{file}) belongs to {crates:?}: take another code, or name the \
                         crate if it means the same"
                    )),
                    Some(_) => {}
                }
            }
        }
    }
    report("codes that docs/ERRORS.md does not explain: add `| code | crates | meaning |`", offenders);
}
