//! The PJRT plugins of this machine: XLA for some kind of device, as a shared library.
//!
//! [`PLUGIN`] names one. Otherwise those are found that users have: in the packages of Python, and among the libraries of
//! the system. Only a child process loads them, which lists their devices: a plugin may end its process.

pub use crate::xla::protocol::Found;
use crate::xla::protocol::{COMMAND, DEVICES, Line};
use crate::xla::python;
use partita_base::{Diagnostic, Result};
use serde::Serialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names the library of a plugin.
pub const PLUGIN: &str = "PARTITA_PJRT_PLUGIN";

/// The option of the plugin for CPUs by which it has several devices.
pub const NUMBER_OF_CPUS: &str = "cpu_device_count";

/// The folder of Python packages with a plugin each.
const PACKAGES: &str = "jax_plugins";

/// The names of libraries in these packages.
const LIBRARIES: [&str; 5] = [
    "xla_cuda_plugin.so",
    "xla_rocm_plugin.so",
    "xla_oneapi_plugin.so",
    "pjrt_plugin_xpu.so",
    "pjrt_c_api_gpu_plugin.so",
];

/// Packages of another form: a name, the package and its library.
const OTHERS: [(&str, &str, &str); 2] =
    [("tpu", "libtpu", "libtpu.so"), ("cpu", "lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so")];

/// Libraries of the system: a name and a file.
const SYSTEM: [(&str, &str); 6] = [
    ("cuda", "xla_cuda_plugin.so"),
    ("rocm", "xla_rocm_plugin.so"),
    ("tpu", "libtpu.so"),
    ("oneapi", "xla_oneapi_plugin.so"),
    ("gpu", "pjrt_c_api_gpu_plugin.so"),
    ("cpu", "pjrt_c_api_cpu_plugin.so"),
];

/// The folders of the system.
const FOLDERS: [&str; 4] = ["/usr/local/lib", "/usr/lib", "/usr/lib64", "/lib"];

/// A plugin that may be usable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// What it is for: `cuda13`, `tpu`, `cpu`.
    pub name: String,
    /// Its library.
    pub path: PathBuf,
}

/// The search for a plugin that has devices.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    /// Those before it, and what is wrong with them.
    pub failed: Vec<(Candidate, Box<Diagnostic>)>,
    /// The plugin.
    pub chosen: Option<(Candidate, Found)>,
}

/// A plugin of this machine, for reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PluginState {
    /// What it is for.
    pub name: String,
    /// Its library.
    pub path: String,
    /// The version of the interface, if it can be used.
    pub version: Option<String>,
    /// The kind of each device.
    pub devices: Vec<String>,
    /// Why it cannot be used.
    pub error: Option<String>,
}

impl PluginState {
    /// A plugin that no program loads.
    pub fn unknown(candidate: Candidate) -> PluginState {
        let path = candidate.path.display().to_string();
        PluginState { name: candidate.name, path, version: None, devices: Vec::new(), error: None }
    }
}

/// The plugin that [`PLUGIN`] names, if it does.
pub fn named() -> Option<Candidate> {
    let path = std::env::var_os(PLUGIN).filter(|path| !path.is_empty())?;
    Some(Candidate { name: PLUGIN.to_string(), path: path.into() })
}

/// The plugins of this machine, those for accelerators first; the one that [`PLUGIN`] names alone.
pub fn search() -> Vec<Candidate> {
    match named() {
        Some(named) => vec![named],
        None => search_in(&python_folders(), &system_folders()),
    }
}

/// The plugins in these folders of Python packages and of the system.
fn search_in(packages: &[PathBuf], system: &[PathBuf]) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    let mut add = |name: &str, path: PathBuf| {
        if path.is_file() && !found.iter().any(|other| other.path == path) {
            found.push(Candidate { name: name.to_string(), path });
        }
    };
    for folder in packages {
        let entries = std::fs::read_dir(folder.join(PACKAGES)).into_iter().flatten().flatten();
        let mut plugins: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        // A later version before an earlier one.
        plugins.sort_by(|a, b| b.cmp(a));
        for plugin in plugins {
            let name = plugin.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.trim_start_matches("xla_");
            LIBRARIES.iter().for_each(|library| add(name, plugin.join(library)));
        }
        OTHERS.iter().for_each(|(name, package, library)| add(name, folder.join(package).join(library)));
    }
    for folder in system {
        SYSTEM.iter().for_each(|(name, library)| add(name, folder.join(library)));
    }
    found.sort_by_key(|candidate| rank(&candidate.name));
    found
}

/// The place of a plugin in the order of search.
fn rank(name: &str) -> usize {
    let order = ["cuda", "rocm", "tpu"];
    let known = order.iter().position(|kind| name.starts_with(kind));
    known.unwrap_or(order.len() + usize::from(name == "cpu"))
}

/// The folders in which Python finds packages.
fn python_folders() -> Vec<PathBuf> {
    let program = "import sys; print('\\n'.join(sys.path[1:]))";
    let done = Command::new(python()).args(["-c", program]).output();
    let text = done.map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
    text.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
}

fn system_folders() -> Vec<PathBuf> {
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|path| path.is_absolute());
    named.chain(FOLDERS.map(PathBuf::from)).collect()
}

/// A program that runs plugins: itself, when its first argument is [`COMMAND`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program(pub PathBuf);

impl Program {
    /// It as a command that runs a plugin, with the libraries that the plugin's package brings.
    pub fn command(&self, candidate: &Candidate) -> Command {
        let mut command = Command::new(&self.0);
        command.arg(COMMAND);
        if std::env::var_os("TF_CPP_MIN_LOG_LEVEL").is_none() {
            command.env("TF_CPP_MIN_LOG_LEVEL", "3");
        }
        let brought = libraries_beside(&candidate.path);
        if !brought.is_empty() {
            let set = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            let all = brought
                .into_iter()
                .chain(std::env::split_paths(&set).filter(|path| !path.as_os_str().is_empty()));
            if let Ok(all) = std::env::join_paths(all) {
                command.env("LD_LIBRARY_PATH", all);
            }
        }
        command
    }

    /// The devices of a plugin.
    ///
    /// # Errors
    /// E062 to E064 for a plugin that cannot be used, and E061 for one that ends its process.
    pub fn probe(&self, candidate: &Candidate) -> Result<Found> {
        let failed = |found: String| {
            Diagnostic::new("E061", "a PJRT plugin cannot be used")
                .at(candidate.path.display().to_string())
                .expected("a plugin that lists its devices")
                .found(found)
        };
        let done = self.command(candidate).arg(DEVICES).arg(&candidate.path).output();
        let done = done.map_err(|error| failed(error.to_string()))?;
        if let Ok(found) = serde_json::from_slice::<Found>(&done.stdout) {
            return Ok(found);
        }
        if let Ok(Line { error: Some(error), .. }) = serde_json::from_slice::<Line>(&done.stdout) {
            return Err(error.into());
        }
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let last = said.trim_end().lines().last().map(|last| format!(": {last}"));
        Err(failed(format!("{}{}", done.status, last.unwrap_or_default())))
    }

    /// The first plugin of this machine that has devices.
    pub fn first(&self) -> Tried {
        let mut tried = Tried::default();
        for candidate in search() {
            match self.probe(&candidate) {
                Ok(found) => {
                    tried.chosen = Some((candidate, found));
                    break;
                }
                Err(error) => tried.failed.push((candidate, error)),
            }
        }
        tried
    }

    /// The plugins of this machine with their devices.
    pub fn states(&self) -> Vec<PluginState> {
        let state = |candidate: Candidate| {
            let (found, error) = match self.probe(&candidate) {
                Ok(found) => (Some(found), None),
                Err(error) => (None, Some(one_line(&error))),
            };
            PluginState {
                name: found.as_ref().map_or(candidate.name, |found| found.platform.clone()),
                path: candidate.path.display().to_string(),
                version: found.as_ref().map(|found| found.version.clone()),
                devices: found.map(|found| found.devices).unwrap_or_default(),
                error,
            }
        };
        search().into_iter().map(state).collect()
    }
}

/// A diagnostic in one line: what, and the reason.
pub fn one_line(error: &Diagnostic) -> String {
    let why = error.notes.first().or(error.found.as_ref());
    let why = why.and_then(|why| why.lines().next());
    why.map_or(error.message.clone(), |why| format!("{}: {why}", error.message))
}

/// The folders of libraries of NVIDIA and Intel that were installed as packages with a plugin.
fn libraries_beside(plugin: &Path) -> Vec<PathBuf> {
    let packages =
        plugin.ancestors().nth(2).filter(|folder| folder.file_name() == Some(OsStr::new(PACKAGES)));
    let Some(site) = packages.and_then(Path::parent) else { return Vec::new() };
    let entries = std::fs::read_dir(site.join("nvidia")).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path().join("lib")).collect();
    // Packages of Intel put theirs into the folder `lib` of Python itself: lib/python3.11/site-packages.
    let is_intel =
        plugin.file_name().is_some_and(|name| name == "xla_oneapi_plugin.so" || name == "pjrt_plugin_xpu.so");
    found.extend(
        site.ancestors().nth(2).filter(|lib| is_intel && lib.ends_with("lib")).map(Path::to_path_buf),
    );
    found.retain(|folder| folder.is_dir());
    found.sort();
    found
}

/// What to install for the accelerator of this machine, or for its CPU.
pub fn to_install() -> &'static str {
    let is_there = |path: &str| Path::new(path).exists();
    if is_there("/proc/driver/nvidia/version") || is_there("/dev/nvidiactl") {
        "pip install \"jax-cuda13-plugin[with-cuda]\""
    } else if is_there("/dev/kfd") {
        "pip install jax-rocm7-plugin jax-rocm7-pjrt"
    } else if is_there("/dev/accel0") || is_there("/dev/vfio/0") {
        "pip install libtpu"
    } else {
        "pip install jax"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_found_in_the_packages_that_users_have_accelerators_first() {
        let folder = tempfile::tempdir().unwrap();
        let (site, system) =
            (folder.path().join("lib/python3.11/site-packages"), folder.path().join("system"));
        let files = [
            "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
            "libtpu/libtpu.so",
            "jax_plugins/xla_oneapi/xla_oneapi_plugin.so",
            "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
            "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
            "jax_plugins/xla_rocm7/xla_rocm_plugin.so",
            "jax_plugins/mine/other.so",
            "nvidia/cudnn/lib/libcudnn.so.9",
            "nvidia/nccl/include/nccl.h",
        ];
        let write = |path: PathBuf| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        files.iter().for_each(|file| write(site.join(file)));
        write(system.join("libtpu.so"));
        let found = search_in(&[site.clone(), site.clone()], std::slice::from_ref(&system));
        let names: Vec<&str> = found.iter().map(|candidate| candidate.name.as_str()).collect();
        assert_eq!(names, ["cuda13", "cuda12", "rocm7", "tpu", "tpu", "oneapi", "cpu"]);
        assert_eq!(found[4].path, system.join("libtpu.so"));
        let beside = libraries_beside(&found[0].path);
        assert_eq!(beside, [site.join("nvidia/cudnn/lib")]);
        let beside = libraries_beside(&found[5].path);
        assert_eq!(beside, [folder.path().join("lib"), site.join("nvidia/cudnn/lib")]);
        assert!(libraries_beside(&found[6].path).is_empty());
        assert_eq!(search_in(&[], &[]), []);
    }

    #[test]
    fn a_program_that_is_no_runner_lists_no_devices() {
        let candidate = Candidate { name: "cpu".to_string(), path: "/no/plugin.so".into() };
        for program in ["/no/such/program", "true", "false"] {
            let error = Program(program.into()).probe(&candidate).unwrap_err();
            assert_eq!((error.code, error.at.as_deref()), ("E061", Some("/no/plugin.so")), "{program}");
        }
        let error = Diagnostic::new("E064", "no client").note("No visible GPU devices.\nmore");
        assert_eq!(one_line(&error), "no client: No visible GPU devices.");
        assert!(to_install().starts_with("pip install "));
    }
}
