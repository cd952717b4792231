//! The rules of the house, read off the files: who may import whom, what must be written down where, how long a
//! file may be, where unsafe code may stand.

use crate::root;
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
    ("mlir", 1),
    ("pjrt", 1),
    ("trace", 1),
    ("ir", 2),
    ("cost", 2),
    ("nn", 3),
    ("testkit", 3),
    ("import", 4),
    ("pipeline", 4),
    ("spmd", 4),
    ("schedule", 5),
    ("program", 5),
    ("runtime", 6),
    ("simulate", 6),
    ("report", 6),
    ("planner", 6),
    ("partita", 7),
    ("partita-cli", 8),
    ("mpi", 9),
];

/// Where unsafe code may stand: a crate, and files of its `src` (none given: all of them).
const UNSAFE: &[(&str, &[&str])] = &[
    ("kernels", &[]),
    ("comm", &[]),
    ("pjrt", &[]),
    ("mpi", &["mpi.rs"]),
    ("runtime", &["allocator.rs", "arena.rs"]),
];

/// The most lines a source file may have.
const MOST_LINES: usize = 600;

/// Longer files, with the reason why each is one file.
const LONG_FILES: [(&str, &str); 5] = [
    ("runtime/cpu/blocks.rs", "one way to split each kernel among threads: the cases are read side by side"),
    ("kernels/tiles.rs", "the steps of all elementwise types, which one macro expands"),
    ("kernels/native/amx.rs", "the whole protocol of AMX tiles, with its SAFETY reasons in one place"),
    ("program/check.rs", "the static checks share one abstract execution"),
    ("program/passes/fuse.rs", "the growth of a region and every reason to end it belong together"),
];

/// The most columns of a comment line; rows of tables may be wider.
const WIDEST_COMMENT: usize = 125;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest(path: &Path) -> Table {
    read(path).parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders of `crates/`, by name.
pub fn crates() -> Vec<String> {
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
pub fn sources(name: &str) -> Vec<(String, String)> {
    let folder = root().join("crates").join(name).join("src");
    let below = |path: &PathBuf| {
        path.strip_prefix(&folder).expect("below").to_string_lossy().replace(std::path::MAIN_SEPARATOR, "/")
    };
    files(&folder, ".rs").iter().map(|path| (below(path), read(path))).collect()
}

/// The text without its unit tests.
pub fn without_tests<'a>(file: &str, text: &'a str) -> &'a str {
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
                // A workspace of its own has no table to take it from.
                let is_apart = manifest.contains_key("workspace");
                if !is_apart && value.get("workspace").and_then(Value::as_bool) != Some(true) {
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
            let is_long = LONG_FILES.iter().any(|(long, _)| *long == format!("{name}/{file}"));
            if (lines > MOST_LINES) != is_long {
                offenders.push(format!("crates/{name}/src/{file} has {lines} lines"));
            }
            // Rows of tables cannot be broken.
            let is_wide = |line: &&str| {
                let comment = line.trim_start();
                let is_row = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
                comment.starts_with("//") && !is_row && line.chars().count() > WIDEST_COMMENT
            };
            if let Some(wide) = text.lines().find(is_wide) {
                offenders.push(format!("crates/{name}/src/{file}: a wide comment: {wide}"));
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

/// What commands are made of does not import commands: they import it.
#[test]
fn commands_are_imported_by_their_list_alone() {
    let mut offenders = Vec::new();
    for (file, text) in sources("partita-cli") {
        if file.starts_with("commands/") || file == "lib.rs" {
            continue;
        }
        let lines = code_of(&text);
        offenders.extend(
            lines
                .lines()
                .filter(|line| line.contains("crate::commands"))
                .map(|line| format!("{file}: {}", line.trim())),
        );
    }
    report("what commands import imports them back", offenders);
}

/// The lines with an unsafe block or implementation that no `SAFETY` comment stands above, of its own statement.
fn unexplained(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let code = code_of(text);
    let is_unsafe = |line: &str| line.contains("unsafe {") || line.contains("unsafe impl");
    let is_explained = |at: usize| {
        let statement = lines[..at].iter().rev().take_while(|line| {
            line.starts_with("//") || !(line.is_empty() || line.ends_with([';', '{', '}']))
        });
        statement.into_iter().any(|line| line.starts_with("//") && line.contains("SAFETY"))
    };
    let found = code.lines().enumerate().filter(|(at, line)| is_unsafe(line) && !is_explained(*at));
    found.map(|(at, _)| at + 1).collect()
}

#[test]
fn unsafe_blocks_without_a_reason_are_found() {
    let explained = "// SAFETY: it is there.\n#[cfg(a)]\nlet x = unsafe { p.read() };\nf(\"unsafe { \");";
    assert_eq!(unexplained(explained), [0usize; 0]);
    for text in [
        "let x = unsafe { p.read() };",
        "// SAFETY: of another.\nf();\nunsafe { p.read() }",
        "($a:expr) => {\n    unsafe { $a }\n};",
        "/// # Safety\nfn f() {\n    unsafe impl Send for X {}\n}",
    ] {
        assert_eq!(unexplained(text).len(), 1, "{text}");
    }
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    let mut offenders = Vec::new();
    for name in crates() {
        for (file, text) in sources(&name) {
            offenders
                .extend(unexplained(&text).iter().map(|line| format!("crates/{name}/src/{file}:{line}")));
        }
    }
    report("unsafe code without a `// SAFETY:` line above it", offenders);
}

/// What only machine code does, and the files of `kernels/src` that may, as the beginnings of their paths.
const MACHINE_CODE: &[(&str, &[&str])] = &[
    ("std::arch", &["native/"]),
    ("asm!", &["native/"]),
    ("make_exec", &["native/jit/"]),
    ("is_x86_feature_detected", &["options.rs"]),
];

#[test]
fn machine_code_of_the_kernels_is_in_one_folder_and_their_files_say_what_they_are() {
    let mut offenders = Vec::new();
    for (file, text) in sources("kernels") {
        let code = code_of(&text);
        for (word, allowed) in MACHINE_CODE {
            if code.contains(word) && !allowed.iter().any(|begin| file.starts_with(begin)) {
                offenders.push(format!("{file} has `{word}`, which belongs to {allowed:?}"));
            }
        }
        if !text.starts_with("//! ") {
            offenders.push(format!("{file} does not begin with a line that says what it is"));
        }
        let through_root = |line: &&str| {
            let path = line.trim().trim_start_matches("pub(crate) ").strip_prefix("use crate::");
            file != "lib.rs"
                && path.is_some_and(|path| path.starts_with(|c: char| c == '{' || c.is_uppercase()))
        };
        offenders.extend(
            code.lines().filter(through_root).map(|line| format!("{file}: {} by way of lib.rs", line.trim())),
        );
    }
    report("kernels", offenders);
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

/// Crates with comments in the words of docs/GLOSSARY.md, and what the paths of exempt files of their `src` begin with.
const PLAIN: &[(&str, Option<&str>)] = &[
    ("base", None),
    ("comm", None),
    ("cost", None),
    ("import", None),
    ("ir", None),
    ("kernels", None),
    ("mesh", None),
    ("mlir", None),
    ("mpi", None),
    ("nn", None),
    ("partita", None),
    ("partita-cli", None),
    ("pipeline", None),
    ("pjrt", None),
    ("planner", None),
    ("program", None),
    ("report", None),
    ("runtime", None),
    ("schedule", None),
    ("simulate", None),
    ("spmd", None),
    ("testkit", None),
    ("trace", None),
];

/// Phrases that hide the subject of a sentence or the field's word for it. None may occur in a comment of those crates.
const RIDDLES: &[&str] = &[
    "anew",
    "are told",
    "ask for",
    "asked for",
    "asks for",
    "at hand",
    "everybody",
    "first cache",
    "goes on",
    "in turn",
    "is told",
    "lies",
    "matrix unit",
    "meets",
    "nobody",
    "of one's own",
    "past the caches",
    "played",
    "plays",
    "second cache",
    "somebody",
    "speaks of",
    "stands",
    "stood",
    "truth value",
    "who comes",
    "who has",
    "whoever",
    "worked off",
];

/// The words of the comments of a text, in lower case and between single blanks; a bar ends each comment.
fn comment_words(text: &str) -> String {
    let mut words = String::from(" ");
    for line in text.lines() {
        if let Some(comment) = line.trim_start().strip_prefix("//") {
            let parts = comment.split(|c: char| !c.is_alphanumeric() && c != '\'');
            for word in parts.filter(|word| !word.is_empty()) {
                words.push_str(&word.to_lowercase());
                words.push(' ');
            }
        } else if !words.ends_with("| ") {
            words.push_str("| ");
        }
    }
    words
}

/// The phrases of [`RIDDLES`] in the comments of a text.
fn riddles(text: &str) -> Vec<&'static str> {
    let words = comment_words(text);
    RIDDLES.iter().copied().filter(|phrase| words.contains(&format!(" {phrase} "))).collect()
}

#[test]
fn riddles_in_comments_are_found() {
    assert_eq!(
        riddles("fn f() {}\n    /// Whoever waits is asked\n    /// for more."),
        ["asked for", "whoever"]
    );
    assert_eq!(riddles("// Composites of one's own.\nfn f() {}"), ["of one's own"]);
    assert_eq!(riddles("// It is asked\nfn f() {}\n// for. Whoeverness.\nlet nobody = 1;"), [""; 0]);
}

#[test]
fn comments_use_the_words_of_the_field() {
    let mut offenders = Vec::new();
    for (name, exempt) in PLAIN {
        for (file, text) in sources(name) {
            if exempt.is_some_and(|exempt| file.starts_with(exempt)) {
                continue;
            }
            if !text.starts_with("//!") {
                offenders.push(format!("crates/{name}/src/{file} does not begin with a `//!` line"));
            }
            for phrase in riddles(&text) {
                offenders.push(format!("crates/{name}/src/{file} says `{phrase}` in a comment"));
            }
        }
    }
    report("comments that need a second reading: name the subject, and use the field's word", offenders);
}

/// What ops are told apart by: the enum of ops, and what their traits say of them.
const OP_ENUMS: &[&str] = &["Op", "Traits", "Elementwise", "ConstantOp", "ViewMap", "CollectiveRef"];

/// Matches over ops outside of `ir/src/ops` that decide for ops which they do not name, each with the reason why that is
/// right for an op that does not exist yet.
const OPEN_MATCHES: &[(&str, &str)] = &[
    (
        "runtime/src/cpu.rs",
        "op_kernel: an op without a kernel runs on the interpreter, and the report says so",
    ),
    ("runtime/src/cpu/cut.rs", "choose: a kernel that nobody knows how to cut is run by one thread"),
    (
        "runtime/src/cpu/sort.rs",
        "comparator: a comparator with other ops runs on the interpreter, and the report says so",
    ),
];

/// The text with blanks in place of comments and of what stands in quotes.
fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let at = |place: usize| chars.get(place).copied().unwrap_or(' ');
    let mut code = String::with_capacity(text.len());
    let mut place = 0;
    while place < chars.len() {
        let begin = place;
        match at(place) {
            '/' if at(place + 1) == '/' => {
                while place < chars.len() && at(place) != '\n' {
                    place += 1;
                }
            }
            'r' if at(place + 1) == '#' && at(place + 2) == '"' => {
                place += 3;
                while place < chars.len() && (at(place), at(place + 1)) != ('"', '#') {
                    place += 1;
                }
                place += 2;
            }
            '"' => {
                place += 1;
                while place < chars.len() && at(place) != '"' {
                    place += if at(place) == '\\' { 2 } else { 1 };
                }
                place += 1;
            }
            '\'' if at(place + 1) == '\\' => place += 3 + usize::from(at(place + 3) != '\''),
            '\'' if at(place + 2) == '\'' => place += 3,
            other => {
                code.push(other);
                place += 1;
                continue;
            }
        }
        code.extend(chars[begin..place.min(chars.len())].iter().map(|&c| if c == '\n' { c } else { ' ' }));
    }
    code
}

/// The patterns of each `match` in code without comments and quotes, and the line where it begins.
fn matches_in(code: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for (begin, _) in code.match_indices("match ") {
        if code[..begin].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let (mut depth, mut is_pattern, mut in_block) = (0, true, false);
        let (mut patterns, mut pattern) = (Vec::new(), String::new());
        // What is matched on ends at the first brace outside of parentheses.
        let mut parentheses = 0;
        let body = code[begin..].char_indices().find(|&(_, c)| {
            parentheses += i32::from(matches!(c, '(' | '[')) - i32::from(matches!(c, ')' | ']'));
            c == '{' && parentheses == 0
        });
        let Some((body, _)) = body else { continue };
        let rest = &code[begin + body + 1..];
        for (place, c) in rest.char_indices() {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' if depth == 0 => break,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
            let ends = depth == 0 && !is_pattern && (c == ',' || (c == '}' && in_block));
            if ends {
                (is_pattern, in_block) = (true, false);
            } else if is_pattern && depth == 0 && rest[place..].starts_with("=>") {
                patterns.push(std::mem::take(&mut pattern).trim_matches([',', ' ', '\n']).to_string());
                is_pattern = false;
                in_block = rest[place + 2..].trim_start().starts_with('{');
            } else if is_pattern {
                pattern.push(c);
            }
        }
        found.push((1 + code[..begin].matches('\n').count(), patterns));
    }
    found
}

/// Whether a pattern names a variant of one of the enums of ops.
fn names_an_op(pattern: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = pattern.match_indices("::").map(|(end, _)| {
        let begin = pattern[..end].rfind(|c| !is_word(c)).map_or(0, |before| before + 1);
        &pattern[begin..end]
    });
    words.any(|word| OP_ENUMS.contains(&word))
}

/// Whether a pattern takes whatever there is: `_`, `other`, `Some(_)`, `(_, b)`.
fn takes_anything(pattern: &str) -> bool {
    let open = pattern.replace("Some(", " ").replace("Ok(", " ");
    let mut words = open.split(|c: char| "(),&| \n".contains(c)).filter(|word| !word.is_empty()).peekable();
    words.peek().is_some()
        && words.all(|word| word.starts_with(|c: char| c == '_' || c.is_lowercase()))
        && !pattern.split_whitespace().any(|word| word == "if")
}

/// The lines of matches over ops that have an arm for whatever else there is.
fn open_matches(text: &str) -> Vec<usize> {
    let is_open = |patterns: &[String]| {
        patterns.iter().any(|pattern| names_an_op(pattern)) && patterns.iter().any(|p| takes_anything(p))
    };
    let found = matches_in(&code_of(text)).into_iter();
    found.filter(|(_, patterns)| is_open(patterns)).map(|(line, _)| line).collect()
}

#[test]
fn open_matches_over_ops_are_found() {
    let open = [
        "match &node.op { Op::Sort(_) => 1, _ => 2 }",
        "match op {\n  Op::Reduce(op) if { op.is_sum() } => { 1 }\n  other => f(other),\n}",
        "match (a, b) { (Op::Slice(a), Op::Slice(b)) => a == b, (a, b) => a == b }",
        "match graph.traits(node) { Traits::View(ViewMap::Reshape) => Some(1), _ => None }",
        "x(match definition { Some(Op::Iota(_)) => '}', Some(_) => '{', None => ' ' })",
    ];
    let closed = [
        "match op { EwOp::Clamp => 1, _ => 2 }",
        "match kind { Some(kind) => matches!(op, Op::Sort(_)), _ => match kind { _ => false } }",
        "match view { ViewMap::Reshape | ViewMap::Identity => 1, ViewMap::Slice { .. } => 2 }",
        "match op { /* _ => */ Op::Sort(_) => \"_ => {\", Op::Iota(_) => 2 } // Op::Sort(_) => 1, _ => 2",
        "match constant { Some(ConstantOp::OfAll(c)) => { c } Some(ConstantOp::ByRank(_)) | None => 0 }",
    ];
    for text in open {
        assert_eq!(open_matches(text).len(), 1, "{text}");
    }
    for text in closed {
        assert_eq!(open_matches(text).len(), 0, "{text}");
    }
}

#[test]
fn no_match_outside_ops_decides_for_ops_that_it_does_not_name() {
    let mut offenders = Vec::new();
    let mut left: Vec<&str> = OPEN_MATCHES.iter().map(|(file, _)| *file).collect();
    for name in crates() {
        for (file, text) in sources(&name) {
            let file = format!("{name}/src/{file}");
            if file.starts_with("ir/src/ops/") {
                continue;
            }
            for line in open_matches(&text) {
                match left.iter().position(|other| *other == file) {
                    Some(place) => drop(left.remove(place)),
                    None => offenders.push(format!("crates/{file}:{line}")),
                }
            }
        }
    }
    offenders
        .extend(left.iter().map(|file| format!("crates/{file} has no such match: take it off the list")));
    report(
        "matches over ops with an arm for all others: name them, ask for their traits, or use `if let`",
        offenders,
    );
}
