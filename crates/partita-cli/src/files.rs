//! Files that commands write. A file that exists is never replaced.

use partita_base::{Diagnostic, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

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
        .help(match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("free space on its disk, or name a file on another one with {flag}")
            }
            io::ErrorKind::FileTooLarge => "allow larger files: `ulimit -f`".to_string(),
            _ => format!("name another file in an existing folder with {flag}, or remove this one"),
        })
}

/// Writes a new file; `what` names it in messages, such as `the plan`, and `flag` is the flag that named it. It is written
/// beside its place and renamed, so that a full disk, or the end of the process, leaves no part of it under its name.
///
/// # Errors
/// E043 if the file exists or cannot be written.
pub fn write_new(
    path: &Path,
    what: &str,
    flag: &str,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let written = beside(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        let file = file.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_data()?;
        file.persist_noclobber(path).map_err(|error| error.error)
    });
    written.map(drop).map_err(|error| unwritable(path, what, flag, &error))
}

/// An unnamed part of a file in the folder of `path`, removed unless it is renamed.
fn beside(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".partita-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder_of(path))
}

/// The folder that a path is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a new folder with what `fill` writes into it. It is filled beside its place and renamed, so that an error leaves no
/// part of it under its name.
///
/// # Errors
/// E043 if there is one of this name or it cannot be made, and those of `fill`.
pub fn fill_new_folder(
    path: &Path,
    what: &str,
    flag: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let unmade = |error: io::Error| {
        Diagnostic::new("E043", format!("{what} cannot be made"))
            .at(path.display().to_string())
            .expected("the path of a new folder in a folder that can be written")
            .found(error.to_string())
            .help(format!("name another folder with {flag}, or remove this one"))
    };
    if path.symlink_metadata().is_ok() {
        return Err(unmade(io::Error::from(io::ErrorKind::AlreadyExists)));
    }
    let beside = tempfile::Builder::new().prefix(".partita-").tempdir_in(folder_of(path)).map_err(unmade)?;
    let made: PathBuf = beside.path().join("made");
    std::fs::create_dir(&made).map_err(unmade)?;
    fill(&made)?;
    std::fs::rename(&made, path).map_err(unmade)?;
    TempDir::close(beside).map_err(unmade)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_and_one_that_succeeds_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.toml");
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let failed = write_new(&path, "the plan", "--out", |file| {
            file.write_all(&[0; 100_000])?;
            Err(full())
        });
        assert_eq!((failed.unwrap_err().code, names(folder.path())), ("E043", vec![]));
        write_new(&path, "the plan", "--out", |file| file.write_all(b"whole")).unwrap();
        let again = write_new(&path, "the plan", "--out", |file| file.write_all(b"other"));
        assert_eq!(again.unwrap_err().code, "E043");
        assert_eq!(
            (names(folder.path()), std::fs::read(&path).unwrap()),
            (vec!["plan.toml".to_string()], b"whole".to_vec())
        );
    }

    #[test]
    fn a_folder_is_there_with_all_of_its_files_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step");
        let write = |folder: &Path| std::fs::write(folder.join("a"), "a").unwrap();
        let failed = fill_new_folder(&path, "the step", "--out", |made| {
            write(made);
            Err(Diagnostic::new("E316", "full"))
        });
        assert_eq!((failed.unwrap_err().code, names(folder.path())), ("E316", vec![]));
        fill_new_folder(&path, "the step", "--out", |made| {
            write(made);
            Ok(())
        })
        .unwrap();
        assert_eq!((names(folder.path()), names(&path)), (vec!["step".to_string()], vec!["a".to_string()]));
        assert_eq!(fill_new_folder(&path, "the step", "--out", |_| Ok(())).unwrap_err().code, "E043");
    }
}
