//! Files that commands write. A file that exists is never replaced.

use partita_base::{Diagnostic, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

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
    written.map_err(|error| {
        Diagnostic::new("E043", format!("{what} cannot be written"))
            .at(path.display().to_string())
            .expected("the path of a new file in a folder that can be written")
            .found(error.to_string())
            .help(format!("name another file in an existing folder with {flag}, or remove this one"))
    })
}
