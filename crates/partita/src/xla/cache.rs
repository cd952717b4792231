//! Compiled programs on disk, so that a second run of a step does not compile it again.
//!
//! A program is found by all that it depends on: its text, the options, the flags of XLA, the build of the plugin, the
//! driver and the kind of device. A file that cannot be read or written only costs the time to compile.

use hmac_sha256::Hash as Sha256;
use partita_pjrt::{Client, CompileOptions, Executable, Plugin};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The variable that names the folder; an empty one turns the cache off.
pub const FOLDER: &str = "PARTITA_XLA_CACHE";

/// The ending of the files.
const ENDING: &str = "pjrt";
/// The most bytes of all files; the ones that were used least recently are removed.
const MOST_BYTES: u64 = 4 << 30;

/// The compiled programs of a plugin and its devices.
pub struct Cache {
    folder: Option<PathBuf>,
    /// What all programs of these devices depend on.
    common: Vec<String>,
}

impl Cache {
    /// The cache of the user: [`FOLDER`], or else `partita/xla` in the folder for caches.
    pub fn of_user(plugin: &Plugin, client: &Client) -> Cache {
        Cache {
            folder: folder(|name| std::env::var_os(name).map(PathBuf::from)),
            common: common(plugin, client),
        }
    }

    /// The program, and whether it was compiled before.
    ///
    /// # Errors
    /// E065 for a text that XLA does not compile.
    pub fn compile(
        &self,
        client: &Client,
        text: &str,
        options: &CompileOptions,
    ) -> partita_base::Result<(Executable, bool)> {
        let file = self.file(text, &options.encode()?);
        if let Some(program) = file.as_deref().and_then(|file| load(client, file)) {
            return Ok((program, true));
        }
        let program = client.compile(text, options)?;
        if let (Some(file), Ok(saved)) = (file, program.serialize()) {
            let _ = store(&file, &saved);
        }
        Ok((program, false))
    }

    /// The file of a program.
    fn file(&self, text: &str, options: &[u8]) -> Option<PathBuf> {
        let mut hash = Sha256::new();
        let parts = self.common.iter().map(|part| part.as_bytes()).chain([text.as_bytes(), options]);
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let name: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.folder.as_ref()?.join(format!("{name}.{ENDING}")))
    }
}

/// The folder of the cache by the variables of a process.
fn folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(named) = variable(FOLDER) {
        return (!named.as_os_str().is_empty()).then_some(named);
    }
    // As the specification of these folders says, a relative one does not count.
    let caches = variable("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let caches = caches.or_else(|| Some(variable("HOME").filter(|path| path.is_absolute())?.join(".cache")));
    Some(caches?.join("partita").join("xla"))
}

fn common(plugin: &Plugin, client: &Client) -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    // Code for CPUs uses what this one has; a home folder may be shared by machines of several kinds.
    let cpu = read("/proc/cpuinfo");
    let cpu: Vec<&str> = ["model name", "flags"]
        .iter()
        .filter_map(|label| cpu.lines().find(|line| line.starts_with(label)))
        .collect();
    let mut kinds: Vec<String> = client.devices().iter().map(|device| device.kind().to_string()).collect();
    kinds.dedup();
    vec![
        plugin.path().display().to_string(),
        plugin.build(),
        client.platform().to_string(),
        client.version().to_string(),
        kinds.join("\n"),
        read("/proc/driver/nvidia/version"),
        read("/sys/module/amdgpu/version"),
        cpu.join("\n"),
        std::env::var("XLA_FLAGS").unwrap_or_default(),
    ]
}

fn load(client: &Client, file: &Path) -> Option<Executable> {
    let program = client.load(&fs::read(file).ok()?).ok()?;
    // The time of its last use.
    let _ = File::options().append(true).open(file).and_then(|file| file.set_modified(SystemTime::now()));
    Some(program)
}

/// Writes a file that appears complete or not at all.
fn store(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    make_private(folder)?;
    let unfinished = file.with_extension(format!("tmp-{}", std::process::id()));
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, file));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    trim(folder, MOST_BYTES);
    written
}

/// Makes a folder that only its user reads and writes: the files are machine code that later runs load.
#[cfg(unix)]
fn make_private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn make_private(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)
}

/// Removes the files that were used least recently, until so many bytes are left.
fn trim(folder: &Path, most: u64) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let own = entries.filter(|entry| entry.path().extension().is_some_and(|ending| ending == ENDING));
    let mut files: Vec<(SystemTime, u64, PathBuf)> = own
        .filter_map(|entry| {
            let found = entry.metadata().ok()?;
            Some((found.modified().ok()?, found.len(), entry.path()))
        })
        .collect();
    files.sort();
    let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in files {
        if total <= most {
            break;
        }
        let _ = fs::remove_file(path);
        total -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_folder_is_that_of_caches_unless_a_variable_names_another_or_none() {
        let find = |set: &[(&str, &str)]| {
            folder(|name| set.iter().find(|(other, _)| *other == name).map(|(_, path)| PathBuf::from(path)))
        };
        let usual = [("HOME", "/home/a"), ("XDG_CACHE_HOME", "/caches")];
        assert_eq!(find(&usual), Some("/caches/partita/xla".into()));
        assert_eq!(find(&usual[..1]), Some("/home/a/.cache/partita/xla".into()));
        assert_eq!(
            find(&[("HOME", "/home/a"), ("XDG_CACHE_HOME", "caches")]),
            Some("/home/a/.cache/partita/xla".into())
        );
        assert_eq!(find(&[("HOME", "/home/a"), (FOLDER, "here")]), Some("here".into()));
        assert_eq!(find(&[("HOME", "/home/a"), (FOLDER, "")]), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn programs_that_differ_in_anything_have_files_of_their_own() {
        let of = |common: &[&str], text: &str, options: &[u8]| {
            let common = common.iter().map(|part| part.to_string()).collect();
            Cache { folder: Some("f".into()), common }.file(text, options).unwrap()
        };
        let all = [
            of(&["a", "b"], "t", &[1]),
            of(&["ab", ""], "t", &[1]),
            of(&["a", "b"], "u", &[1]),
            of(&["a", "b"], "t", &[2]),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(of(&["a", "b"], "t", &[1]), all[0]);
    }

    #[test]
    fn what_was_used_least_recently_is_removed_first() {
        let folder = tempfile::tempdir().unwrap();
        for (age, name) in [(3, "old.pjrt"), (2, "middle.pjrt"), (1, "new.pjrt"), (9, "other.txt")] {
            let path = folder.path().join(name);
            store(&path, &[0; 10]).unwrap();
            let file = File::options().append(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        trim(folder.path(), 20);
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert_eq!(left, ["middle.pjrt", "new.pjrt", "other.txt"]);
        assert!(store(&folder.path().join("other.txt").join("below.pjrt"), &[1]).is_err());
    }
}
