//! Pages of docs/ that list what the code declares: the options of each command, the keys of a config, the events of `--json`.
//! Each page begins with text; what follows its line [`MARK`] is written by the test, which fails if the page is not current.
//! `PARTITA_WRITE_DOCS=1 cargo test --workspace --test all reference` writes the pages anew.

use crate::root;
use clap::{Arg, Command};
use partita::config::Config;
use partita::engines::Engines;
use partita::models::ModelKinds;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// What stands above the written part of a page.
const MARK: &str = "<!-- Below here the page is written by crates/partita-cli/tests/all/reference.rs. -->";

/// An option of so many commands is described once, in a table of its own.
const MIN_SHARED: usize = 5;

/// That a page has this text below its mark.
fn is_current(page: &str, written: &str) {
    let path = root().join("docs").join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, now) = text.split_once(MARK).unwrap_or_else(|| panic!("docs/{page} has no line {MARK}"));
    let written = format!("\n\n{}\n", written.trim());
    if std::env::var_os("PARTITA_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{begin}{MARK}{written}")).unwrap();
    } else {
        let line = now.lines().zip(written.lines()).find(|(now, then)| now != then);
        assert!(
            now == written,
            "docs/{page} is not current: run `PARTITA_WRITE_DOCS=1 cargo test --workspace --test all reference`; {line:?}"
        );
    }
}

/// A cell of a table: bars would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// `--mesh <MESH>`, `-n <PROCESSES>`, `[CONFIG]`.
fn spelled(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str());
    let values = match arg.get_action().takes_values() {
        true => cell(&values.collect::<Vec<_>>().join(" ")),
        false => String::new(),
    };
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), Some(short)) => format!("-{short}, --{long}"),
        (Some(long), None) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => return format!("`{values}`"),
    };
    if values.is_empty() { format!("`{name}`") } else { format!("`{name} {values}`") }
}

/// What an option means, with its choices and its default.
fn meaning(arg: &Arg) -> String {
    let mut text = cell(&arg.get_help().map(ToString::to_string).unwrap_or_default());
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set() && arg.get_action().takes_values())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !choices.is_empty() {
        write!(text, "; one of {}", choices.join(", ")).unwrap();
    }
    let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let default = defaults.collect::<Vec<_>>().join(" ");
    if !default.is_empty() && arg.get_action().takes_values() {
        write!(text, " (default: `{}`)", cell(&default)).unwrap();
    }
    text
}

fn shown(command: &Command) -> Vec<&Arg> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
        .collect()
}

/// The commands, with those under them: `checkpoint ls`.
fn all_commands<'a>(of: &'a Command, before: &str, found: &mut Vec<(String, &'a Command)>) {
    for command in
        of.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
    {
        let name = format!("{before}{}", command.get_name());
        if command.has_subcommands() {
            all_commands(command, &format!("{name} "), found);
        } else {
            found.push((name, command));
        }
    }
}

#[test]
fn options_of_commands_are_listed() {
    let mut cli = partita_cli::application(Engines::bundled()).definition();
    cli.build();
    let mut commands = Vec::new();
    all_commands(&cli, "", &mut commands);
    let row = |arg: &Arg| format!("| {} | {} |", spelled(arg), meaning(arg));
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for (_, command) in &commands {
        for arg in shown(command) {
            *uses.entry(row(arg)).or_default() += 1;
        }
    }
    let is_shared = |arg: &Arg| uses[&row(arg)] >= MIN_SHARED && arg.get_long().is_some();
    let mut text = String::from("## Options of many commands\n\n| option | meaning |\n|---|---|\n");
    let mut listed = BTreeSet::new();
    for (_, command) in &commands {
        for arg in shown(command).into_iter().filter(|arg| is_shared(arg)) {
            if listed.insert(row(arg)) {
                writeln!(text, "{}", row(arg)).unwrap();
            }
        }
    }
    for (name, command) in &commands {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(text, "\n## {name}\n\n{}.", about.trim_end_matches('.')).unwrap();
        let (shared, own): (Vec<&Arg>, Vec<&Arg>) =
            shown(command).into_iter().partition(|arg| is_shared(arg));
        if !own.is_empty() {
            writeln!(text, "\n| argument | meaning |\n|---|---|").unwrap();
            own.iter().for_each(|arg| writeln!(text, "{}", row(arg)).unwrap());
        }
        if !shared.is_empty() {
            let names: Vec<String> = shared
                .iter()
                .map(|arg| format!("`--{}`", arg.get_long().expect("shared ones have names")))
                .collect();
            writeln!(text, "\nAlso {}.", names.join(", ")).unwrap();
        }
    }
    assert!(commands.len() > 20, "{}", commands.len());
    is_current("CLI.md", &text);
}

#[test]
fn keys_of_configs_are_listed() {
    let keys = Config::keys(&ModelKinds::bundled());
    let mut text = String::new();
    let mut section = "";
    for key in &keys {
        if key.section != section {
            section = &key.section;
            writeln!(text, "\n## [{section}]\n\n| key | takes | default | meaning |\n|---|---|---|---|")
                .unwrap();
        }
        let kinds = match &key.kinds[..] {
            [] => String::new(),
            some => format!(" (`kind` {})", some.join(", ")),
        };
        let default =
            if key.default.is_empty() { String::new() } else { format!("`{}`", cell(&key.default)) };
        writeln!(text, "| `{}` | {} | {default} | {}{kinds} |", key.name, key.takes, cell(key.about))
            .unwrap();
    }
    assert!(keys.len() > 80, "{}", keys.len());
    is_current("CONFIG.md", &text);
}

/// A struct of the sources.
struct Declared {
    file: PathBuf,
    about: String,
    fields: Vec<Field>,
}

struct Field {
    name: String,
    about: String,
    ty: syn::Type,
    is_flattened: bool,
    may_be_absent: bool,
}

/// The documentation of an item, as one line.
fn documentation(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let text = lines.filter_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => {
                Some(text.value().trim().to_string())
            }
            _ => None,
        },
        _ => None,
    });
    text.collect::<Vec<_>>().join(" ").trim().to_string()
}

/// The fields of a struct that are written to JSON.
fn fields(of: &syn::ItemStruct) -> Vec<Field> {
    let mut all = Vec::new();
    for field in &of.fields {
        let Some(name) = &field.ident else { continue };
        let mut entry = Field {
            name: name.to_string(),
            about: documentation(&field.attrs),
            ty: field.ty.clone(),
            is_flattened: false,
            may_be_absent: false,
        };
        let mut is_skipped = false;
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("serde")) {
            attribute
                .parse_nested_meta(|meta| {
                    let value = meta.value().and_then(|value| value.parse::<syn::LitStr>());
                    match (meta.path.get_ident().map(ToString::to_string).as_deref(), value) {
                        (Some("skip"), _) => is_skipped = true,
                        (Some("flatten"), _) => entry.is_flattened = true,
                        (Some("skip_serializing_if"), _) => entry.may_be_absent = true,
                        (Some("rename"), Ok(value)) => entry.name = value.value(),
                        _ => {}
                    }
                    Ok(())
                })
                .unwrap();
        }
        if !is_skipped {
            all.push(entry);
        }
    }
    all
}

/// Every struct in the sources of the crates that events are made of, by name, and the struct of each event.
fn declarations() -> (BTreeMap<String, Vec<Declared>>, Vec<(String, String, PathBuf)>) {
    let (mut structs, mut events) = (BTreeMap::<String, Vec<Declared>>::new(), Vec::new());
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                let is_source = !["tests", "examples", "benches", "target", "mpi"]
                    .contains(&path.file_name().unwrap().to_str().unwrap());
                folders.extend(is_source.then_some(path));
                continue;
            }
            if path.extension().is_none_or(|end| end != "rs") {
                continue;
            }
            for item in syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap().items {
                match item {
                    syn::Item::Struct(item) => {
                        let declared = Declared {
                            file: path.clone(),
                            about: documentation(&item.attrs),
                            fields: fields(&item),
                        };
                        structs.entry(item.ident.to_string()).or_default().push(declared);
                    }
                    // `event!(Step, "step");`
                    syn::Item::Macro(item) if item.mac.path.is_ident("event") && item.ident.is_none() => {
                        let tokens = item.mac.tokens.to_string();
                        let (ty, name) = tokens.split_once(',').unwrap();
                        events.push((
                            name.trim().trim_matches('"').to_string(),
                            ty.trim().to_string(),
                            path.clone(),
                        ));
                    }
                    // `impl Event for Found { const NAME: &'static str = "plan"; }`
                    syn::Item::Impl(item) => {
                        let is_event =
                            item.trait_.as_ref().is_some_and(|(_, path, _)| path.is_ident("Event"));
                        let syn::Type::Path(ty) = &*item.self_ty else { continue };
                        for part in item.items.iter().filter(|_| is_event) {
                            if let syn::ImplItem::Const(syn::ImplItemConst {
                                expr: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(name), .. }),
                                ..
                            }) = part
                            {
                                let ty = ty.path.segments.last().unwrap().ident.to_string();
                                events.push((name.value(), ty, path.clone()));
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    events.sort();
    (structs, events)
}

/// The struct of this name that a file means: its own, or the only one there is.
fn declared<'a>(
    structs: &'a BTreeMap<String, Vec<Declared>>,
    name: &str,
    file: &Path,
) -> Option<&'a Declared> {
    let found = structs.get(name)?;
    let of_crate = |path: &Path| {
        path.strip_prefix(root().join("crates")).unwrap().components().next().unwrap().as_os_str().to_owned()
    };
    let nearest = found.iter().find(|one| one.file == file);
    let mut here = found.iter().filter(|one| of_crate(&one.file) == of_crate(file));
    let alone = match (here.next(), here.next()) {
        (Some(one), None) => Some(one),
        _ => None,
    };
    nearest.or(alone).or(if found.len() == 1 { found.first() } else { None })
}

/// A type as JSON has it, and the structs in it.
fn in_json(ty: &syn::Type, known: &dyn Fn(&str) -> bool, inside: &mut Vec<String>) -> String {
    match ty {
        syn::Type::Reference(reference) => in_json(&reference.elem, known, inside),
        syn::Type::Tuple(tuple) => {
            let parts: Vec<String> = tuple.elems.iter().map(|part| in_json(part, known, inside)).collect();
            format!("[{}]", parts.join(", "))
        }
        syn::Type::Array(array) => format!("list of {}", in_json(&array.elem, known, inside)),
        syn::Type::Slice(slice) => format!("list of {}", in_json(&slice.elem, known, inside)),
        syn::Type::Path(path) => {
            let segment = path.path.segments.last().unwrap();
            let name = segment.ident.to_string();
            let mut arguments: Vec<String> = Vec::new();
            if let syn::PathArguments::AngleBracketed(given) = &segment.arguments {
                for argument in &given.args {
                    if let syn::GenericArgument::Type(ty) = argument {
                        arguments.push(in_json(ty, known, inside));
                    }
                }
            }
            match (name.as_str(), arguments.as_slice()) {
                ("Option", [of]) => format!("{of} or null"),
                ("Vec", [of]) => format!("list of {of}"),
                ("Box" | "Arc" | "Cow", [of]) => of.clone(),
                ("BTreeMap" | "IndexMap" | "Map", [_, of]) => format!("object of {of}"),
                ("String" | "str" | "PathBuf", _) => "text".to_string(),
                ("bool", _) => "true or false".to_string(),
                ("f64" | "f32", _) => "number".to_string(),
                ("u64" | "usize" | "u32" | "i64" | "u8" | "u16", _) => "count".to_string(),
                (name, _) if known(name) => {
                    inside.push(name.to_string());
                    format!("[{name}](#{})", name.to_lowercase())
                }
                _ => "value".to_string(),
            }
        }
        _ => "value".to_string(),
    }
}

#[test]
fn events_of_json_are_listed() {
    let (structs, events) = declarations();
    let (mut text, mut types) = (String::from("## Events\n"), BTreeMap::<String, String>::new());
    let table = |of: &Declared| -> (String, Vec<(String, PathBuf)>) {
        let (mut rows, mut inside) = (String::new(), Vec::new());
        let mut todo: Vec<&Declared> = vec![of];
        while let Some(of) = todo.pop() {
            for field in &of.fields {
                let mut names = Vec::new();
                let known = |name: &str| declared(&structs, name, &of.file).is_some();
                let ty = in_json(&field.ty, &known, &mut names);
                if let (true, [name]) = (field.is_flattened, names.as_slice()) {
                    todo.extend(declared(&structs, name, &of.file));
                    continue;
                }
                inside.extend(names.into_iter().map(|name| (name, of.file.clone())));
                let absent = if field.may_be_absent { "; left out where there is none" } else { "" };
                let about = field.about.trim_end_matches('.');
                writeln!(rows, "| `{}` | {ty} | {}{absent} |", field.name, cell(about)).unwrap();
            }
        }
        let head = "| field | type | meaning |\n|---|---|---|\n";
        (if rows.is_empty() { String::new() } else { format!("\n{head}{rows}") }, inside)
    };
    for (event, name, file) in &events {
        let of = declared(&structs, name, file)
            .unwrap_or_else(|| panic!("no struct {name} for the event `{event}`"));
        let (rows, mut inside) = table(of);
        write!(text, "\n### `{event}`: {}\n{rows}", of.about.trim_end_matches('.')).unwrap();
        while let Some((name, file)) = inside.pop() {
            let of = declared(&structs, &name, &file).expect("it is known");
            if !types.contains_key(&name) {
                let (rows, more) = table(of);
                types.insert(name.clone(), format!("\n### {name}\n\n{}\n{rows}", of.about));
                inside.extend(more);
            }
        }
    }
    text.push_str("\n## Objects in them\n");
    types.values().for_each(|part| text.push_str(part));
    assert!(events.len() > 30, "{}", events.len());
    is_current("JSON.md", &text);
}
