//! A stand-in plugin, which the tests compile: versions, defects, errors, and that every object is destroyed once and before
//! its client. No plugin of XLA is needed.

use partita_base::{DType, Diagnostic, Result};
use partita_pjrt::{Buffer, Client, CompileOptions, Plugin, Store, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The bytes of the stand-in, which is compiled once in a process.
fn compiled() -> &'static [u8] {
    static COMPILED: OnceLock<Vec<u8>> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin/plugin.rs");
        let path = place("compiled");
        let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        command.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=standin", "-Aunused"]);
        let output = command.arg(source).arg("-o").arg(&path).output().expect("rustc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let bytes = std::fs::read(&path).expect("it was written");
        std::fs::remove_file(path).expect("it was written");
        bytes
    })
}

/// A path for a library that no other test process uses.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("standin-{}-{name}.so", std::process::id()))
}

/// A stand-in of its own, with a defect if `defect` is not empty: a copy of the file is a library with other counts.
fn library(defect: &str) -> (libloading::Library, PathBuf) {
    static COPIES: AtomicUsize = AtomicUsize::new(0);
    let path = place(&COPIES.fetch_add(1, Ordering::Relaxed).to_string());
    std::fs::write(&path, compiled()).expect("it can be written");
    // SAFETY: the library has no initializers that do anything, and the function takes a text and its length.
    let library = unsafe {
        let library = libloading::Library::new(&path).expect("it can be loaded");
        let select = library.get::<unsafe extern "C" fn(*const u8, usize)>("standin_defect");
        select.expect("it is exported")(defect.as_ptr(), defect.len());
        library
    };
    (library, path)
}

/// A plugin, and what it says of its objects.
struct Standin {
    plugin: Plugin,
    library: libloading::Library,
}

impl Standin {
    fn new(defect: &str) -> Standin {
        let (library, path) = library(defect);
        let plugin = Plugin::load(&path).expect("it is a plugin");
        std::fs::remove_file(path).expect("it was written");
        Standin { plugin, library }
    }

    fn client(&self, devices: i64) -> Client {
        self.plugin.client(&[("devices", Value::from(devices))]).expect("an option that it has")
    }

    /// What is alive, and what was wrong.
    fn report(&self) -> String {
        let mut text = vec![0; 4096];
        // SAFETY: the function of this name takes a target and its length.
        let length = unsafe {
            let report = self.library.get::<unsafe extern "C" fn(*mut u8, usize) -> usize>("standin_report");
            report.expect("it is exported")(text.as_mut_ptr(), text.len())
        };
        text.truncate(length);
        String::from_utf8(text).expect("text")
    }
}

const CLEAN: &str = "alive {}, faults []";

/// The diagnostic of loading a stand-in with this defect.
fn refused(defect: &str) -> Box<Diagnostic> {
    let (_library, path) = library(defect);
    let error = Plugin::load(&path).expect_err(defect);
    assert_eq!(error.at.as_deref(), path.to_str());
    std::fs::remove_file(path).expect("it was written");
    error
}

#[test]
fn plugins_of_another_version_are_refused() {
    let error = refused("old");
    assert_eq!((error.code, error.found.as_deref()), ("E063", Some("PJRT 0.57")));
    assert_eq!(error.expected.as_deref(), Some("PJRT 0.90 or a newer 0.x"));
    assert!(error.help.is_some());
    let error = refused("other major");
    assert_eq!((error.code, error.found.as_deref()), ("E063", Some("PJRT 1.90")));
}

#[test]
fn plugins_with_larger_structs_work_as_far_as_spare_words_reach() {
    let client = Standin::new("newer").client(1);
    let x = client.upload(DType::F32, &[1], &[1, 2, 3, 4], &client.devices()[0]).unwrap();
    assert_eq!(x.download().unwrap(), [1, 2, 3, 4]);
    let error = refused("far newer");
    assert_eq!(error.code, "E062");
    // Its functions about errors refuse our structs too, so there is no text.
    assert_eq!(error.notes, ["the plugin gives no reason"]);
}

#[test]
fn damaged_plugins_are_refused() {
    assert_eq!(refused("no table").found.as_deref(), Some("GetPjrtApi gives no table"));
    assert_eq!(refused("small table").found.as_deref(), Some("a table of 24 bytes"));
    assert!(refused("large table").found.unwrap().contains(&usize::MAX.to_string()));
    let error = refused("initialize");
    assert_eq!(error.code, "E062");
    assert_eq!(error.notes, ["XLA says INTERNAL: no licence"]);
}

#[test]
fn a_function_that_a_plugin_lacks_is_named() {
    let error = Standin::new("few functions").plugin.client(&[]).unwrap_err();
    assert_eq!(error.code, "E063");
    assert!(error.message.ends_with("the plugin has no PJRT_Client_PlatformName"), "{error}");
    assert_eq!(error.found.as_deref(), Some("PJRT 0.115 without it"));
    let standin = Standin::new("");
    let client = standin.client(1);
    assert_eq!(standin.plugin.topology("", &[]).unwrap_err().code, "E063");
    assert_eq!(client.topology().unwrap_err().code, "E063");
}

#[test]
fn every_object_is_destroyed_before_its_client() {
    let standin = Standin::new("");
    {
        let client = standin.client(2);
        assert_eq!((client.platform(), client.version()), ("stand-in", "1\n2"));
        let devices = client.devices();
        let program = client.compile("module", &CompileOptions::replicas(&[0, 1])).unwrap();
        assert_eq!((program.name(), program.inputs(), program.memory().unwrap()), ("copy", None, None));
        let data: Vec<u8> = (0..12).collect();
        let x: Vec<Buffer> =
            devices.iter().map(|device| client.upload(DType::F32, &[3], &data, device).unwrap()).collect();
        let kept = program.run_keeping(&[[&x[0]], [&x[1]]], &[0]).unwrap();
        assert!(!x[0].is_deleted().unwrap());
        let moved = program.run(&[[&x[0]], [&x[1]]]).unwrap();
        assert!(x[1].is_deleted().unwrap());
        assert_eq!(moved[1][0].download().unwrap(), data);
        moved[1][0].wait().unwrap();
        let there = kept[0][0].copy_to(&devices[1]).unwrap();
        assert_eq!((there.device().unwrap(), there.shape().unwrap()), (devices[1].clone(), vec![3]));
        let loaded = client.load(&program.serialize().unwrap()).unwrap();
        let results = loaded.run(&[[&kept[0][0]], [&kept[1][0]]]).unwrap();
        // The client is dropped first, and the results last.
        drop((client, devices, program, loaded, x, moved, kept, there));
        assert!(
            standin.report().contains("\"buffer\": 2, \"client\": 1, \"device\": 2}"),
            "{}",
            standin.report()
        );
        assert_eq!(results[0][0].download().unwrap(), data);
    }
    assert_eq!(standin.report(), CLEAN);
}

#[test]
fn errors_are_read_and_destroyed() {
    let standin = Standin::new("");
    let error = standin.plugin.client(&[("memory", Value::from(0.5))]).unwrap_err();
    let text = "error[E064]: the PJRT plugin does not create a client\n        at: memory = 0.5 (float)\n      note: XLA says \
                INVALID_ARGUMENT: Unexpected option name passed to PJRT_Client_Create: memory";
    assert_eq!(error.to_string(), text);
    {
        let client = standin.client(1);
        let device = &client.devices()[0];
        let one = CompileOptions::replicas(&[0]);
        let code = |error: Box<Diagnostic>| (error.code, error.notes.join("; "));
        let refused = code(client.compile("text", &one).unwrap_err());
        assert_eq!(
            refused,
            ("E065", "XLA says INVALID_ARGUMENT: 1:1: error: expected a module\n  \u{fffd}".into())
        );
        let refused = code(client.compile("module of nothing", &one).unwrap_err());
        assert_eq!(refused, ("E065", "PJRT_Client_Compile succeeded without a result".into()));
        // What the plugin itself refuses to load: it saves this program as a text that it does not know.
        let saved = client.compile("module unsaved", &one).unwrap().serialize().unwrap();
        let refused = code(client.load(&saved).unwrap_err());
        assert_eq!(refused, ("E066", "XLA says INVALID_ARGUMENT: no executable".into()));
        // The copy of 13 elements begins, and fails later.
        let refused = code(client.upload(DType::F32, &[13], &[0; 52], device).unwrap_err());
        assert_eq!(refused, ("E481", "XLA says INTERNAL: the computation has failed".into()));
        let x = client.upload(DType::F32, &[3], &[0; 12], device).unwrap();
        let program = client.compile("module that fails", &one).unwrap();
        assert_eq!(
            code(program.run(&[[&x]]).unwrap_err()),
            ("E480", "XLA says INTERNAL: out of luck".into())
        );
        let refused = program.outputs().unwrap_err();
        assert_eq!((refused.code, refused.found.as_deref()), ("E482", Some("number 99 of the C header")));
        assert_eq!(x.size_on_device().unwrap_err().code, "E063");
    }
    assert_eq!(standin.report(), CLEAN);
}

/// A store within the process, which refuses keys or panics if `defect` says so.
struct Shared {
    values: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    defect: &'static str,
}

impl Store for Shared {
    fn get(&self, key: &[u8], _wait: Duration) -> Result<Option<Vec<u8>>> {
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        assert!(self.defect != "panics", "a defect");
        if self.defect == "refuses" {
            return Err(Diagnostic::new("E447", "the launcher has ended"));
        }
        self.values.lock().unwrap().insert(key.to_vec(), value.to_vec());
        Ok(())
    }
}

#[test]
fn processes_share_a_store() {
    let standin = Standin::new("");
    let create = |defect| {
        let store = Arc::new(Shared { values: Mutex::default(), defect });
        let client = standin.plugin.client_of_several(&[], store.clone());
        (client.map_err(|error| error.to_string()), store)
    };
    let (client, store) = create("");
    assert_eq!(Arc::strong_count(&store), 2, "the client keeps it");
    assert_eq!(client.unwrap().devices().len(), 1);
    assert_eq!(Arc::strong_count(&store), 1);
    assert_eq!(store.values.lock().unwrap()[&b"id"[..]], b"a\0b");
    let refused = create("refuses").0.unwrap_err();
    assert!(refused.contains("error[E064]") && refused.contains("the launcher has ended"), "{refused}");
    let refused = create("panics").0.unwrap_err();
    assert!(refused.contains("the store has panicked"), "{refused}");
    assert_eq!(standin.report(), CLEAN);
}

#[test]
fn memory_is_counted_where_the_platform_counts() {
    let standin = Standin::new("");
    let client = standin.client(2);
    let counts: Vec<_> = client.devices().iter().map(|device| device.memory_stats().unwrap()).collect();
    let first = counts[0].expect("it counts");
    assert_eq!((first.in_use, first.peak, first.allocations), (100, Some(200), None));
    assert_eq!((first.largest_allocation, first.limit, first.pool), (Some(50), Some(1000), None));
    assert_eq!(counts[1], None, "this device does not count");
}
