//! Files that commands write. A file that exists is never replaced.

use partita_base::{Diagnostic, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// E043 unless a file can be created there: a path that nothing has, in a folder that exists.
pub fn check_new(path: &Path, what: &str, flag: &str) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (std::fs::symlink_metadata(path), std::fs::metadata(folder)) {
        (Ok(_), _) => Err(unwritable(path, what, flag, &io::ErrorKind::AlreadyExists.into())),
        (_, Err(error)) => Err(unwritable(path, what, flag, &error)),
        (_, Ok(folder)) if !folder.is_dir() => {
            Err(unwritable(path, what, flag, &io::ErrorKind::NotADirectory.into()))
        }
        _ => Ok(()),
    }
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
