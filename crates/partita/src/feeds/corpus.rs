//! Finding text where nobody named any.

use crate::config::Data;
use partita_base::{Diagnostic, Result};
use partita_runtime::data::{Corpus, FileFilter};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// How much of the text found on the machine is read unless the config says otherwise.
const DEFAULT_BYTES: u64 = 16 << 20;

/// The text a config asks for, and where it is from: `data.path`, else [`default_corpus`]. E301 and E302 where there
/// is none.
pub fn open_corpus(data: &Data) -> Result<(Corpus, String)> {
    let (path, filter) = match &data.path {
        Some(path) => (path.clone(), FileFilter::default()),
        None => default_corpus()?,
    };
    let filter = FileFilter {
        extensions: data.extensions.clone().or(filter.extensions),
        max_bytes: data.max_bytes.or(filter.max_bytes),
    };
    Ok((Corpus::open(&path, &filter)?, short_path(&path)))
}

/// A path as people write it: `~` for the home folder.
fn short_path(path: &Path) -> String {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    match home.and_then(|home| path.strip_prefix(home).ok().map(Path::to_path_buf)) {
        Some(rest) => format!("~/{}", rest.display()),
        None => path.display().to_string(),
    }
}

/// Text that is on the machine already: the Rust sources cargo keeps (`$CARGO_HOME/registry/src`, or under
/// `~/.cargo`), else those of this project, looked for above the current folder and the executable. The first 16 MiB in
/// the order of paths. E301 where there is neither.
pub fn default_corpus() -> Result<(PathBuf, FileFilter)> {
    let starts: Vec<PathBuf> =
        [std::env::current_dir(), std::env::current_exe()].into_iter().flatten().collect();
    find(&|name| std::env::var_os(name), &starts)
}

fn find(variable: &dyn Fn(&str) -> Option<OsString>, starts: &[PathBuf]) -> Result<(PathBuf, FileFilter)> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || set("HOME").or_else(|| set("USERPROFILE")).map(|home| home.join(".cargo"));
    let sources = [set("CARGO_HOME"), home()].into_iter().flatten().map(|cargo| cargo.join("registry/src"));
    let project = starts.iter().flat_map(|start| start.ancestors()).find(|folder| is_project(folder));
    let path = sources.into_iter().find(|folder| holds_something(folder)).or(project.map(Path::to_path_buf));
    let path = path.ok_or_else(|| {
        Diagnostic::new("E301", "no text to train on")
            .expected("a file or folder of text, or Rust sources in cargo's folder")
            .found("neither a config key `data.path` nor ~/.cargo/registry/src")
            .help("name a text file or a folder of text files: --data PATH")
    })?;
    let filter = FileFilter { extensions: Some(vec!["rs".into()]), max_bytes: Some(DEFAULT_BYTES) };
    Ok((path, filter))
}

fn is_project(folder: &Path) -> bool {
    folder.join("Cargo.toml").is_file() && folder.join("crates").is_dir()
}

fn holds_something(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn cargo_sources_come_first_then_the_project_then_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let (home, project) = (folder.path().join("home"), folder.path().join("project"));
        fs::create_dir_all(project.join("crates/x")).unwrap();
        fs::write(project.join("Cargo.toml"), "").unwrap();
        let variable = |name: &str| (name == "HOME").then(|| home.clone().into_os_string());
        let starts = [project.join("crates/x")];

        let error = find(&variable, &[folder.path().join("nowhere")]).unwrap_err();
        assert_eq!(error.code, "E301");
        assert!(error.help.as_ref().unwrap().contains("--data PATH"), "{error}");

        let (path, filter) = find(&variable, &starts).unwrap();
        assert_eq!((path, filter.max_bytes), (project, Some(16 << 20)));

        // An empty registry folder is no text.
        let sources = home.join(".cargo/registry/src");
        fs::create_dir_all(&sources).unwrap();
        assert_ne!(find(&variable, &starts).unwrap().0, sources);
        fs::write(sources.join("lib.rs"), "fn main() {}").unwrap();
        assert_eq!(find(&variable, &starts).unwrap().0, sources);

        let other = folder.path().join("cargo");
        fs::create_dir_all(other.join("registry/src/x")).unwrap();
        let variable = |name: &str| (name == "CARGO_HOME").then(|| other.clone().into_os_string());
        assert_eq!(find(&variable, &starts).unwrap().0, other.join("registry/src"));
    }

    #[test]
    fn a_named_path_is_read_as_the_config_says() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt"), "abcdef").unwrap();
        fs::write(folder.path().join("b.md"), "ghi").unwrap();
        let data = |max_bytes| Data {
            path: Some(folder.path().to_path_buf()),
            extensions: Some(vec!["txt".into()]),
            max_bytes,
            validation_fraction: 0.0,
        };
        assert_eq!(open_corpus(&data(None)).unwrap().0.report().bytes, 6);
        assert_eq!(open_corpus(&data(Some(4))).unwrap().0.report().bytes, 4);
    }
}
