//! Files that commands write. A file that exists is never replaced.

use partita_base::{Diagnostic, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// E043 unless a new file can be written there. It is made and removed, since permissions alone do not tell: the file
/// system may be read-only or full.
pub fn check_new(path: &Path, what: &str, flag: &str) -> Result<()> {
    let made = File::create_new(path).and_then(|file| {
        drop(file);
        std::fs::remove_file(path)
    });
    made.map_err(|error| unwritable(path, what, flag, &error))
}

/// E043 unless new files can be written in a folder, which is made if need be.
pub fn check_folder(folder: &Path, what: &str, flag: &str) -> Result<()> {
    let probe = folder.join(format!(".partita-{}", std::process::id()));
    let made = std::fs::create_dir_all(folder).and_then(|()| File::create_new(&probe)).and_then(|file| {
        drop(file);
        std::fs::remove_file(&probe)
    });
    made.map_err(|error| {
        Diagnostic::new("E043", format!("{what} cannot be written"))
            .at(folder.display().to_string())
            .expected("a folder that can be made and written")
            .found(error.to_string())
            .help(format!("name another folder with {flag}"))
    })
}

fn unwritable(path: &Path, what: &str, flag: &str, error: &io::Error) -> Box<Diagnostic> {
    Diagnostic::new("E043", format!("{what} cannot be written"))
        .at(path.display().to_string())
        .expected("the path of a new file in a folder that can be written")
        .found(error.to_string())
        .help(format!("name another file in an existing folder with {flag}, or remove this one"))
}

/// Writes a new file; `what` names it in messages, such as `the plan`, and
/// `flag` is the flag that named it.
///
/// # Errors
/// E043 if the file exists or cannot be written.
pub fn write_new(
    path: &Path,
    what: &str,
    flag: &str,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let file = File::create_new(path);
    let written = file.and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()
    });
    written.map_err(|error| unwritable(path, what, flag, &error))
}
