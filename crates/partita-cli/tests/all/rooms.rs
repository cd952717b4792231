//! The size of rooms: circles among the modules of a crate, and long functions. Modules that import each other, directly or
//! by way of others, can only be read together. New ones are refused; where one is opened, its line here goes down.

use crate::house::{crates, sources, without_tests};
use std::collections::{BTreeMap, BTreeSet};
use syn::{Item, UseTree};

/// The circles of each crate that has any.
const CIRCLES: [(&str, usize); 14] = [
    ("comm", 2),
    ("cost", 2),
    ("import", 1),
    ("ir", 5),
    ("kernels", 3),
    ("mesh", 1),
    ("nn", 2),
    ("partita", 6),
    ("partita-cli", 2),
    ("pjrt", 1),
    ("program", 3),
    ("runtime", 2),
    ("schedule", 4),
    ("spmd", 1),
];

/// A module by its path in the crate; the root is empty.
type Module = Vec<String>;

/// The module that a file below `src` holds.
fn module_of(file: &str) -> Module {
    let mut path: Module = file.trim_end_matches(".rs").split('/').map(String::from).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

/// The paths that an import names.
fn paths(tree: &UseTree, before: &[String], found: &mut Vec<Vec<String>>) {
    let with = |name: String| before.iter().cloned().chain([name]).collect::<Vec<String>>();
    match tree {
        UseTree::Path(path) => paths(&path.tree, &with(path.ident.to_string()), found),
        UseTree::Name(name) => found.push(with(name.ident.to_string())),
        UseTree::Rename(name) => found.push(with(name.ident.to_string())),
        UseTree::Glob(_) => found.push(before.to_vec()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| paths(tree, before, found)),
    }
}

/// The modules that a module imports from. A module that makes names of its own children public does not depend on them,
/// and what is imported from the root of a crate is a name that the root makes public.
fn imports(module: &Module, text: &str, all: &BTreeSet<Module>) -> BTreeSet<Module> {
    let file = syn::parse_file(text).expect("Rust");
    let mut found = BTreeSet::new();
    for item in &file.items {
        let Item::Use(import) = item else { continue };
        let is_public = !matches!(import.vis, syn::Visibility::Inherited);
        let mut named = Vec::new();
        paths(&import.tree, &[], &mut named);
        for path in named {
            let up = path.iter().take_while(|part| *part == "super").count();
            let from: Module = match path.first().map(String::as_str) {
                Some("crate") => path[1..].to_vec(),
                Some("self") => [&module[..], &path[1..]].concat(),
                Some("super") => [&module[..module.len() - up], &path[up..]].concat(),
                _ => continue,
            };
            let home = (0..=from.len()).rev().map(|length| from[..length].to_vec()).find(|m| all.contains(m));
            let Some(home) = home.filter(|home| !home.is_empty() && home != module) else { continue };
            if !(is_public && home.starts_with(module)) {
                found.insert(home);
            }
        }
    }
    found
}

/// The circles: the largest sets of modules of which each reaches all others.
fn circles(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<String>> {
    let reached = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = next.pop() {
            for other in &edges[&module] {
                if seen.insert(other.clone()) {
                    next.push(other.clone());
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        edges.keys().map(|module| (module, reached(module))).collect();
    let mut found = BTreeSet::new();
    for (module, others) in &reach {
        if others.contains(*module) {
            let circle = others.iter().filter(|other| reach[other].contains(*module));
            found.insert(circle.map(|module| module.join("::")).collect::<Vec<_>>());
        }
    }
    found.into_iter().collect()
}

fn circles_of(files: &[(String, String)]) -> Vec<Vec<String>> {
    let texts: BTreeMap<Module, &str> =
        files.iter().map(|(file, text)| (module_of(file), without_tests(file, text))).collect();
    let all: BTreeSet<Module> = texts.keys().cloned().collect();
    circles(&texts.iter().map(|(module, text)| (module.clone(), imports(module, text, &all))).collect())
}

#[test]
fn circles_are_found() {
    let files = |texts: &[(&str, &str)]| -> Vec<(String, String)> {
        texts.iter().map(|(file, text)| (file.to_string(), text.to_string())).collect()
    };
    let circle = [
        ("lib.rs", "mod a; pub use a::X;"),
        ("a.rs", "use crate::b::{c::Y, Z};"),
        ("b/mod.rs", "pub use self::c::Y; mod c;"),
        ("b/c.rs", "use super::super::d::W;"),
        ("d.rs", "use crate::a::X;"),
    ];
    assert_eq!(circles_of(&files(&circle)), [["a", "b::c", "d"]]);
    let line = [("a.rs", "use crate::b::Y;"), ("b.rs", "use crate::c::Z; use crate::Q;"), ("c.rs", "")];
    assert_eq!(circles_of(&files(&line)), [[""; 0]; 0]);
}

#[test]
fn modules_import_each_other_in_no_new_circles() {
    let known: BTreeMap<&str, usize> = CIRCLES.into_iter().collect();
    for name in crates() {
        let found = circles_of(&sources(&name));
        let expected = known.get(name.as_str()).copied().unwrap_or(0);
        let lines: Vec<String> = found.iter().map(|circle| format!("  {}", circle.join(", "))).collect();
        assert_eq!(found.len(), expected, "circles in the crate {name}:\n{}", lines.join("\n"));
    }
}

/// The most lines of a function, from its name to its last brace.
const MAX_LINES: usize = 100;

/// Longer functions: loops over blocks of keys and rows that share their registers and scratch memory.
const LONGER: [(&str, &str); 2] =
    [("attention/backward.rs", "backward"), ("attention/part.rs", "contributions")];

/// Functions of more than 60 lines; where one is split, the number goes down.
const LONG_FUNCTIONS: usize = 116;

/// The functions of a file that rustfmt has formatted, with their lines: each ends at the first brace in its own column.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_qualifier = |word: &&str| {
            word.starts_with("pub") || matches!(*word, "const" | "unsafe" | "extern" | "\"C\"" | "in")
        };
        let named = words.iter().position(|word| !is_qualifier(word)).filter(|&at| words[at] == "fn");
        let Some(name) = named.and_then(|at| words.get(at + 1)) else { continue };
        // A declaration without a body has none of its own.
        let signature = lines[first..].iter().take_while(|other| !other.ends_with(['{', '}']));
        if signature.into_iter().any(|other| other.ends_with(';')) {
            continue;
        }
        let ends = |other: &&str| indent(other) == indent(line) && other.trim_start().starts_with('}');
        if let Some(end) = lines[first + 1..].iter().position(ends) {
            let name = name.split(['(', '<']).next().unwrap_or(name);
            found.push((name, if line.ends_with('}') { 1 } else { end + 2 }));
        }
    }
    found
}

#[test]
fn functions_are_measured() {
    let text = "fn one() {}\npub(crate) fn two<T>(\n    a: T,\n) {\n    a;\n}\nimpl X {\n    pub fn three(&self) {\n    }\n}\n";
    assert_eq!(functions(text), [("one", 1), ("two", 5), ("three", 2)]);
}

/// The predictor and the search, which are to become one, are left out.
#[test]
fn functions_fit_on_a_screen() {
    let (mut too_long, mut long) = (Vec::new(), 0);
    for name in crates() {
        for (file, text) in sources(&name) {
            if file.starts_with("predict/") || file.starts_with("auto_plan/") {
                continue;
            }
            for (function, lines) in functions(without_tests(&file, &text)) {
                long += usize::from(lines > 60);
                let is_known = LONGER.contains(&(file.as_str(), function));
                if (lines > MAX_LINES) != is_known {
                    too_long.push(format!("crates/{name}/src/{file}: `{function}` has {lines} lines"));
                }
            }
        }
    }
    assert!(too_long.is_empty(), "{too_long:#?}");
    assert!(long <= LONG_FUNCTIONS, "{long} functions have over 60 lines, {LONG_FUNCTIONS} had");
}
