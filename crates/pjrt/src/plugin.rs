//! Loading a plugin: the shared library, its version, and its attributes.

use crate::api::Api;
use crate::client::Client;
use crate::layout::{Entry, PluginAttributes, PluginInitialize};
use crate::store::Store;
use crate::topology::Topology;
use crate::value::Value;
use partita_base::{Diagnostic, Result};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The oldest version of the interface that is used, 0.90: since then compiled memory statistics have their totals. The
/// order of functions is the same since 0.57.
const OLDEST: (i32, i32) = (0, 90);

/// Bytes before the first function in the table: its size, its extensions and its version.
const HEAD: usize = 40;

/// The most functions that a table may state to have; 0.116 has 138.
const MOST_FUNCTIONS: usize = 4096;

/// The function by which a plugin gives its table.
const ENTRY: &str = "GetPjrtApi";

/// A PJRT plugin: a shared library that compiles and runs StableHLO on one platform.
///
/// It stays loaded until the process ends, since plugins start threads which cannot be stopped. Clones are the same
/// plugin.
#[derive(Clone)]
pub struct Plugin {
    pub(crate) api: Api,
    path: Arc<Path>,
    attributes: Arc<[(String, Value)]>,
}

impl Plugin {
    /// Loads the shared library at `path`, checks the version of its interface, and initializes it.
    ///
    /// A plugin is code that runs with all rights of the process: load only files that you trust. Load one once and
    /// clone it.
    ///
    /// # Errors
    ///
    /// E062 for a path without a file, a file that is no shared library for this machine, a library that is no plugin, and
    /// a plugin that fails to initialize itself. E063 for a version of the interface older than 0.90, or a major version
    /// other than 0, whose layouts may differ.
    pub fn load(path: impl AsRef<Path>) -> Result<Plugin> {
        let path = path.as_ref();
        let refused = |what: &str, note: String| {
            let help = "give the path of a PJRT plugin, such as pjrt_c_api_cpu_plugin.so";
            Diagnostic::new("E062", what).at(path.display().to_string()).note(note).help(help)
        };
        // A name without a folder would be searched in the folders of the system, so the loader gets a full path.
        let full = std::fs::canonicalize(path);
        let full = full.and_then(|full| Ok((std::fs::metadata(&full)?.len(), full)));
        let (library_bytes, full) =
            full.map_err(|error| refused("there is no PJRT plugin here", error.to_string()))?;
        let library = open(&full)
            .map_err(|error| refused("this file cannot be loaded as a shared library", chain(&error)))?;
        // SAFETY: a symbol of this name is the function that the C header declares, without arguments.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const usize>(ENTRY) };
        let entry = *entry.map_err(|error| refused("this library is no PJRT plugin", chain(&error)))?;
        // SAFETY: it takes nothing and returns a table that lives as long as the library.
        let table = unsafe { entry() };
        // The library is kept: threads of the plugin run its code until the process ends.
        std::mem::forget(library);
        // SAFETY: the table is that of a library which is not unloaded.
        let api = unsafe { read_table(table, library_bytes) }
            .map_err(|error| error.at(path.display().to_string()))?;
        let mut plugin = Plugin { api, path: full.into(), attributes: Arc::new([]) };
        plugin.initialize().map_err(|error| error.at(path.display().to_string()))?;
        Ok(plugin)
    }

    fn initialize(&mut self) -> Result<()> {
        // SAFETY: it has no input.
        unsafe { self.api.call(&mut PluginInitialize::zeroed()) }
            .map_err(|failure| failure.report("E062", "the PJRT plugin cannot be initialized"))?;
        let mut found = PluginAttributes::zeroed();
        // SAFETY: it has no input.
        unsafe { self.api.call(&mut found) }
            .map_err(|failure| failure.report("E062", "the PJRT plugin does not state its attributes"))?;
        // SAFETY: the attributes belong to the plugin and never change.
        self.attributes = unsafe { Value::read(found.list, found.length) }.into();
        Ok(())
    }

    /// Major and minor version of the C interface that the plugin was built with.
    pub fn api_version(&self) -> (i32, i32) {
        self.api.version
    }

    /// The full path of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A text that differs between builds of plugins: the version of the interface, and the size of the library. Saved
    /// programs are only valid for the build that saved them.
    pub fn build(&self) -> String {
        self.api.build()
    }

    /// What the plugin states of itself, such as `stablehlo_current_version` = `[1, 20, 0]`: the newest StableHLO that
    /// it reads. Empty for a plugin that states nothing.
    pub fn attributes(&self) -> &[(String, Value)] {
        &self.attributes
    }

    /// The attribute with this name.
    pub fn attribute(&self, name: &str) -> Option<&Value> {
        self.attributes.iter().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    /// Creates a client: the devices of this process, with their memory. Which options there are depends on the
    /// plugin: that of the CPU has `cpu_device_count` (a negative one ends the process), that for CUDA `memory_fraction`,
    /// `preallocate`, `allocator`, `visible_devices` and others.
    ///
    /// # Errors
    ///
    /// E064 for an unknown option, one of another kind than the plugin expects, and a machine without such devices.
    pub fn client(&self, options: &[(&str, Value)]) -> Result<Client> {
        Client::create(self.api, options, None)
    }

    /// Creates a client that is one of several processes, with the store that they share. Of the plugin for CUDA, the
    /// options `num_nodes` and `node_id` say how many they are, and which one this is. Waits for the others.
    ///
    /// # Errors
    ///
    /// As for [`client`](Plugin::client), and E064 if the store fails, or a process does not come in time.
    pub fn client_of_several(&self, options: &[(&str, Value)], store: Arc<dyn Store>) -> Result<Client> {
        Client::create(self.api, options, Some(store))
    }

    /// Describes devices that need not be there, to compile for them. `name` may be empty. For CUDA, the options are
    /// `target_config` (the card as a text of `GpuTargetConfigProto`) and `topology` (such as `1x1x4`); compiling then
    /// needs NVIDIA's `ptxas` and `libdevice`, below the folder that the flag `xla_gpu_cuda_data_dir` names.
    ///
    /// # Errors
    ///
    /// E064 if the plugin refuses the options or describes no devices that are not there.
    pub fn topology(&self, name: &str, options: &[(&str, Value)]) -> Result<Topology> {
        Topology::create(self.api, name, options)
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Plugin");
        it.field("path", &self.path).field("api_version", &self.api.version);
        it.field("functions", &self.api.function_count()).finish()
    }
}

/// Loads a library with all its symbols, so that a missing one is an error now and does not end the process later.
#[cfg(unix)]
fn open(path: &Path) -> std::result::Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: the library runs its initializers, which is what loading a plugin is for.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
}

/// Loads a library.
#[cfg(not(unix))]
fn open(path: &Path) -> std::result::Result<libloading::Library, libloading::Error> {
    // SAFETY: the library runs its initializers, which is what loading a plugin is for.
    unsafe { libloading::Library::new(path) }
}

/// An error of the loader with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Checks the head of a table of functions.
///
/// # Safety
///
/// `table` must be null or the table of a plugin that is never unloaded.
unsafe fn read_table(table: *const usize, library_bytes: u64) -> Result<Api> {
    if table.is_null() {
        return Err(Diagnostic::new("E062", "this library is no PJRT plugin")
            .found(format!("{ENTRY} gives no table")));
    }
    // SAFETY: every table begins with its size.
    let size = unsafe { table.read() };
    let damaged = size < HEAD || (size - HEAD) / size_of::<usize>() > MOST_FUNCTIONS;
    if damaged {
        return Err(Diagnostic::new("E062", "this library is no PJRT plugin")
            .expected(format!("a table of {HEAD} bytes and a pointer for each function"))
            .found(format!("a table of {size} bytes")));
    }
    // SAFETY: the version is in the last 8 of the first 40 bytes, which are there.
    let version =
        unsafe { (table.byte_add(32).cast::<i32>().read(), table.byte_add(36).cast::<i32>().read()) };
    if version.0 != OLDEST.0 || version.1 < OLDEST.1 {
        return Err(Diagnostic::new("E063", "the version of this PJRT plugin is not supported")
            .expected(format!("PJRT {}.{} or a newer {}.x", OLDEST.0, OLDEST.1, OLDEST.0))
            .found(format!("PJRT {}.{}", version.0, version.1))
            .help("use a plugin of 2026, such as jax-cuda13-pjrt 0.12"));
    }
    let count = (size - HEAD) / size_of::<usize>();
    // SAFETY: the size says that so many function pointers follow, null for those that the plugin does not have; the
    // table is constant and never unloaded.
    let functions =
        unsafe { std::slice::from_raw_parts(table.byte_add(HEAD).cast::<Option<Entry>>(), count) };
    Ok(Api::new(functions, version, library_bytes))
}
