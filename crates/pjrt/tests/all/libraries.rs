//! Loading what is no plugin; no plugin is needed.

use partita_pjrt::Plugin;
use std::path::Path;

/// The diagnostic of loading this path, as text.
fn refused(path: &Path) -> String {
    let error = Plugin::load(path).expect_err("it is no plugin");
    assert_eq!(error.code, "E062", "{error}");
    assert_eq!(error.at.as_deref(), Some(path.to_str().unwrap()));
    error.to_string()
}

#[test]
fn paths_without_a_library_are_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(refused(&folder.join("no_such_plugin.so")).contains("there is no PJRT plugin here"));
    for file in [folder.join("Cargo.toml"), folder.join("src"), "/dev/null".into()] {
        let text = refused(&file);
        assert!(text.contains("cannot be loaded as a shared library"), "{text}");
        assert!(text.contains("note: "), "the loader says why: {text}");
    }
}

/// Every Linux process of Rust has a library of C, which is no plugin.
#[test]
#[cfg(target_os = "linux")]
fn a_library_of_something_else_is_refused() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
    let libraries = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let library = libraries.into_iter().find(|path| path.contains("/libc.so") || path.contains("/libc-"));
    let Some(library) = library else {
        eprintln!("skipped: a_library_of_something_else_is_refused: no shared library of C");
        return;
    };
    let text = refused(Path::new(library));
    assert!(text.contains("this library is no PJRT plugin"), "{text}");
    assert!(text.contains("GetPjrtApi"), "the loader says which symbol: {text}");
}
