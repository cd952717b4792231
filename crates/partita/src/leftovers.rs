//! Temporary folders of processes that were killed before they could remove them.
//!
//! Their names end with the id of the process that made them, after which more may follow: `<beginning><id>`,
//! `<beginning><id>-<more>`.

use std::path::Path;

/// Removes the folders in `parent` whose names begin so, that belong to the user of this process, and whose process has
/// ended. What cannot be read or removed stays.
pub fn remove(parent: &Path, beginning: &str) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(beginning)).unwrap_or_default();
        let id = rest.split('-').next().and_then(|id| id.parse::<i32>().ok());
        if id.is_some_and(has_ended) && is_own_folder(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether no other process has an id: one with that of this process has ended.
#[cfg(unix)]
fn has_ended(id: i32) -> bool {
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};
    u32::try_from(id) == Ok(std::process::id())
        || Pid::from_raw(id).is_some_and(|id| test_kill_process(id) == Err(Errno::SRCH))
}

#[cfg(not(unix))]
fn has_ended(_id: i32) -> bool {
    false
}

#[cfg(unix)]
fn is_own_folder(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid().as_raw();
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user)
}

#[cfg(not(unix))]
fn is_own_folder(_path: &Path) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    #[test]
    fn folders_of_processes_that_have_ended_go_and_others_stay() {
        let parent = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let running = std::os::unix::process::parent_id();
        let names = [
            (format!("partita-x-{dead}"), false),
            (format!("partita-x-{dead}-abc"), false),
            (format!("partita-x-{}", std::process::id()), false),
            (format!("partita-x-{running}"), true),
            (format!("partita-y-{dead}"), true),
            ("partita-x-abc".to_string(), true),
        ];
        for (name, _) in &names {
            std::fs::create_dir(parent.path().join(name)).unwrap();
        }
        super::remove(parent.path(), "partita-x-");
        for (name, stays) in names {
            assert_eq!(parent.path().join(&name).exists(), stays, "{name}");
        }
    }
}
