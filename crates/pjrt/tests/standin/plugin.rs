//! A stand-in for a PJRT plugin, which tests compile as a shared library. It computes nothing: a program returns copies of
//! its arguments, or takes over their memory. It checks what it is given, and counts the objects that are alive.
//!
//! Arguments are read as words by their position in the C header of version 0.115, apart from the structs under test.
//! `standin_defect` selects a defect before it is loaded as a plugin.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock};

type Args = *mut usize;
type Entry = unsafe extern "C" fn(Args) -> usize;

const INVALID_ARGUMENT: usize = 3;
const INTERNAL: usize = 13;
const UNIMPLEMENTED: usize = 12;

/// An object: its class, the objects that it must not outlive, and what its class needs.
#[derive(Clone, Default)]
struct Object {
    class: &'static str,
    parents: Vec<usize>,
    data: Vec<u8>,
    dims: Vec<i64>,
    element: usize,
    device: usize,
    code: usize,
    is_deleted: bool,
    lists: Vec<usize>,
}

/// All objects that are alive by their address, which is a number that counts up; and what was wrong so far.
#[derive(Default)]
struct World {
    objects: BTreeMap<usize, Box<Object>>,
    next: usize,
    faults: Vec<String>,
    defect: String,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

fn world<T>(act: impl FnOnce(&mut World) -> T) -> T {
    let mut world = WORLD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    act(world.get_or_insert_default())
}

fn defect() -> String {
    world(|world| world.defect.clone())
}

fn create(object: Object) -> usize {
    world(|world| {
        world.next += 64;
        let address = 0x1000 + world.next;
        world.objects.insert(address, Box::new(object));
        address
    })
}

fn fault(what: String) {
    world(|world| world.faults.push(what));
}

/// The object at an address, if it is alive and of this class.
fn get(address: usize, class: &str) -> Object {
    let found = world(|world| world.objects.get(&address).map(|object| (**object).clone()));
    match found {
        Some(object) if object.class == class => object,
        Some(object) => {
            fault(format!("a {} for a {class}", object.class));
            Object::default()
        }
        None => {
            fault(format!("a {class} that is not alive"));
            Object::default()
        }
    }
}

/// Destroys an object, which nothing that is alive may depend on.
fn destroy(address: usize, class: &str) {
    get(address, class);
    world(|world| {
        world.objects.remove(&address);
        let left = world.objects.values().find(|object| object.parents.contains(&address));
        if let Some(left) = left {
            world.faults.push(format!("a {class} is destroyed before a {}", left.class));
        }
    });
}

fn error(code: usize, text: impl Into<String>) -> usize {
    create(Object { class: "error", code, data: text.into().into_bytes(), ..Object::default() })
}

/// Class, words and meaning of a function: what is beyond the known words must be zero.
unsafe fn words(args: Args, known: usize, name: &str) -> Result<&'static mut [usize], usize> {
    let (size, extension) = unsafe { (*args, *args.add(1)) };
    // A later version has more fields: as many as the spare words, or more than can be there.
    let known = known
        + match defect().as_str() {
            "newer" => 8,
            "far newer" => 20,
            _ => 0,
        };
    if size < known * 8 {
        return Err(error(
            INVALID_ARGUMENT,
            format!("Unexpected {name} size: expected {}, got {size}", known * 8),
        ));
    }
    let all = unsafe { std::slice::from_raw_parts_mut(args, size / 8) };
    if extension != 0 || all[known..].iter().any(|word| *word != 0) {
        fault(format!("{name} has words that no version defines"));
    }
    Ok(all)
}

unsafe fn bytes(first: usize, length: usize) -> Vec<u8> {
    if length == 0 {
        vec![]
    } else {
        unsafe { std::slice::from_raw_parts(first as *const u8, length) }.to_vec()
    }
}

unsafe fn many(first: usize, length: usize) -> Vec<usize> {
    if length == 0 {
        vec![]
    } else {
        unsafe { std::slice::from_raw_parts(first as *const usize, length) }.to_vec()
    }
}

/// The address of bytes that stay until the process ends.
fn kept<T>(values: Vec<T>) -> usize {
    values.leak().as_ptr() as usize
}

macro_rules! functions {
    ($($position:literal $name:ident($words:literal) $a:ident $body:block)*) => {
        $(unsafe extern "C" fn $name(args: Args) -> usize {
            #[allow(unused_variables)]
            let $a = match unsafe { words(args, $words, stringify!($name)) } {
                Ok(words) => words,
                Err(error) => return error,
            };
            #[allow(unused_unsafe)]
            unsafe { $body }
        })*
        const FUNCTIONS: &[(usize, Entry)] = &[$(($position, $name)),*];
    };
}

functions! {
    0 error_destroy(3) a { destroy(a[2], "error"); 0 }
    1 error_message(5) a {
        let text = get(a[2], "error").data;
        (a[4], a[3]) = (text.len(), kept(text));
        0
    }
    2 error_code(4) a { a[3] = get(a[2], "error").code; 0 }
    3 initialize(2) a { if defect() == "initialize" { error(INTERNAL, "no licence") } else { 0 } }
    4 attributes(4) a { 0 }
    5 event_destroy(3) a { destroy(a[2], "event"); 0 }
    8 event_await(3) a {
        let event = get(a[2], "event");
        if event.code == 0 { 0 } else { error(event.code, "the computation has failed") }
    }
    10 client_create(11) a {
        for at in 0..a[3] {
            let option = many(a[2] + at * 56, 7);
            let name = String::from_utf8(bytes(option[2], option[3])).unwrap();
            if (name.as_str(), option[4] & 0xffff_ffff) != ("devices", 1) {
                return error(INVALID_ARGUMENT, format!("Unexpected option name passed to PJRT_Client_Create: {name}"));
            }
        }
        if let Some(text) = use_store(a) { return error(INTERNAL, text); }
        let count = if a[3] == 0 { 1 } else { *((a[2] + 40) as *const usize) };
        let client = create(Object { class: "client", ..Object::default() });
        let devices: Vec<usize> = (0..count)
            .map(|id| create(Object { class: "device", element: id, device: client, ..Object::default() }))
            .collect();
        world(|world| world.objects.get_mut(&client).unwrap().lists = devices.leak().to_vec());
        a[8] = client;
        0
    }
    11 client_destroy(3) a {
        for device in get(a[2], "client").lists { destroy(device, "device"); }
        destroy(a[2], "client");
        0
    }
    12 platform_name(5) a { get(a[2], "client"); (a[3], a[4]) = (c"stand-in".as_ptr() as usize, 8); 0 }
    14 platform_version(5) a { get(a[2], "client"); (a[3], a[4]) = (c"1\n2".as_ptr() as usize, 3); 0 }
    16 client_devices(5) a {
        let devices = get(a[2], "client").lists;
        (a[4], a[3]) = (devices.len(), kept(devices));
        0
    }
    20 compile(7) a {
        get(a[2], "client");
        let program = many(a[3], 6);
        let (text, format) = (bytes(program[2], program[3]), bytes(program[4], program[5]));
        if format != b"mlir" || !text.starts_with(b"module") {
            return error(INVALID_ARGUMENT, "1:1: error: expected a module\n  \u{fffd}");
        }
        if text.ends_with(b"nothing") {
            return 0;
        }
        a[6] = create(Object {
            class: "loaded executable", parents: vec![a[2]], data: text, element: bytes(a[4], a[5]).len(),
            lists: get(a[2], "client").lists, ..Object::default()
        });
        0
    }
    22 from_host(15) a {
        let (client, device) = (get(a[2], "client"), get(a[10], "device"));
        if device.device != a[2] { fault("a device of another client".into()); }
        let dims: Vec<i64> = many(a[5], a[6]).iter().map(|dim| *dim as i64).collect();
        let size = dims.iter().product::<i64>() as usize * 4;
        drop(client);
        let failed = dims == [13];
        a[13] = create(Object { class: "event", code: if failed { INTERNAL } else { 0 }, ..Object::default() });
        a[14] = create(Object {
            class: "buffer", parents: vec![a[2]], data: bytes(a[3], size), dims, element: a[4] & 0xffff_ffff,
            device: a[10], ..Object::default()
        });
        0
    }
    23 device_id(4) a { a[3] = get(a[2], "device").element; 0 }
    26 device_kind(5) a { get(a[2], "device"); (a[3], a[4]) = (c"none".as_ptr() as usize, 4); 0 }
    29 device_description(4) a { get(a[2], "device"); a[3] = a[2]; 0 }
    34 memory_stats(24) a {
        if get(a[2], "device").element != 0 { return error(UNIMPLEMENTED, "MemoryStats is not supported"); }
        // In use, peak, allocations (not counted), largest, limit.
        (a[3], a[4], a[5], a[6], a[8], a[9], a[10], a[11]) = (100, 200, 1, 9, 50, 1, 1000, 1);
        0
    }
    40 executable_destroy(3) a { destroy(a[2], "executable"); 0 }
    41 executable_name(5) a { get(a[2], "executable"); (a[3], a[4]) = (c"copy".as_ptr() as usize, 4); 0 }
    44 output_count(4) a { get(a[2], "executable"); a[3] = 1; 0 }
    49 serialize(7) a {
        let text = get(a[2], "executable").data;
        a[5] = create(Object { class: "saved", ..Object::default() });
        (a[4], a[3], a[6]) = (text.len(), kept(text), free_saved as *const () as usize);
        0
    }
    50 loaded_destroy(3) a { destroy(a[2], "loaded executable"); 0 }
    51 get_executable(4) a {
        let data = get(a[2], "loaded executable").data;
        a[3] = create(Object { class: "executable", data, ..Object::default() });
        0
    }
    52 loaded_devices(5) a {
        let devices = get(a[2], "loaded executable").lists;
        (a[4], a[3]) = (devices.len(), kept(devices));
        0
    }
    55 execute(10) a {
        let (executable, options) = (get(a[2], "loaded executable"), many(a[3], 14));
        if options[0] < 112 { return error(INVALID_ARGUMENT, "PJRT_ExecuteOptions size"); }
        let keep = many(options[7], options[8]);
        if a[5] != executable.lists.len() || a[8] != 0 { fault("a run with other devices, or events".into()); }
        if executable.data.ends_with(b"fails") { return error(INTERNAL, "out of luck"); }
        for device in 0..a[5] {
            let arguments = many(*((a[4] as *const usize).add(device)), a[6]);
            let results = *((a[7] as *const *mut usize).add(device));
            let argument = get(arguments[0], "buffer");
            if argument.is_deleted { return error(INVALID_ARGUMENT, "Buffer has been deleted or donated."); }
            if !keep.contains(&0) {
                world(|world| world.objects.get_mut(&arguments[0]).unwrap().is_deleted = true);
            }
            *results = create(argument);
        }
        0
    }
    56 load(8) a {
        let data = bytes(a[3], a[4]);
        if data.ends_with(b"unsaved") { return error(INVALID_ARGUMENT, "no executable"); }
        let lists = get(a[2], "client").lists;
        a[5] = create(Object { class: "loaded executable", parents: vec![a[2]], data, lists, ..Object::default() });
        0
    }
    58 buffer_destroy(3) a { destroy(a[2], "buffer"); 0 }
    59 buffer_type(4) a { a[3] = get(a[2], "buffer").element; 0 }
    60 buffer_dims(5) a {
        let dims = get(a[2], "buffer").dims;
        (a[4], a[3]) = (dims.len(), kept(dims));
        0
    }
    65 buffer_device(4) a { a[3] = get(a[2], "buffer").device; 0 }
    68 is_deleted(4) a { a[3] = usize::from(get(a[2], "buffer").is_deleted); 0 }
    69 copy_to_device(5) a {
        get(a[3], "device");
        a[4] = create(Object { device: a[3], ..get(a[2], "buffer") });
        0
    }
    70 to_host(7) a {
        let data = get(a[2], "buffer").data;
        if a[4] == 0 { a[5] = data.len(); return 0; }
        std::ptr::copy_nonoverlapping(data.as_ptr(), a[4] as *mut u8, data.len());
        a[6] = create(Object { class: "event", ..Object::default() });
        0
    }
    72 ready_event(4) a { get(a[2], "buffer"); a[3] = create(Object { class: "event", ..Object::default() }); 0 }
    90 output_types(5) a { get(a[2], "executable"); (a[3], a[4]) = (kept(vec![99i32]), 1); 0 }
    91 output_dims(6) a { get(a[2], "executable"); (a[3], a[4], a[5]) = (1, kept(vec![3i64]), kept(vec![1usize])); 0 }
}

type Callback = unsafe extern "C" fn(*mut usize) -> usize;
type Free = unsafe extern "C" fn(usize);

unsafe extern "C" fn callback_error(code: i32, text: *const u8, length: usize) -> usize {
    error(code as usize, String::from_utf8(unsafe { bytes(text as usize, length) }).unwrap())
}

/// Runs the callbacks of a store, if they are given. The text of the first unexpected error.
unsafe fn use_store(a: &[usize]) -> Option<String> {
    let callback = |at: usize| unsafe { std::mem::transmute::<usize, Option<Callback>>(a[at]) };
    let (Some(get), Some(put), Some(try_get)) = (callback(4), callback(6), callback(9)) else { return None };
    let make: unsafe extern "C" fn(i32, *const u8, usize) -> usize = callback_error;
    let make = &raw const make as usize;
    let said = |error: usize| {
        let found = get_error(error);
        destroy(error, "error");
        found
    };
    // As XLA does, the size is left as it is: here a number that is none.
    let put = |key: &str, value: &[u8]| unsafe {
        let mut it =
            [77, 0, key.as_ptr() as usize, key.len(), value.as_ptr() as usize, value.len(), make, a[7]];
        put(it.as_mut_ptr())
    };
    let take = |it: &[usize]| unsafe {
        let value = bytes(it[0], it[1]);
        std::mem::transmute::<usize, Free>(it[2])(it[0]);
        value
    };
    let get = |key: &str, milliseconds: usize| unsafe {
        let mut it = [77, 0, key.as_ptr() as usize, key.len(), milliseconds, make, a[5], 0, 0, 0];
        let error = get(it.as_mut_ptr());
        if error == 0 { Ok(take(&it[7..])) } else { Err(said(error)) }
    };
    let try_get = |key: &str| unsafe {
        let mut it = [77, 0, key.as_ptr() as usize, key.len(), make, a[10], 0, 0, 0];
        let error = try_get(it.as_mut_ptr());
        if error == 0 { Ok(take(&it[6..])) } else { Err(said(error)) }
    };
    let error = put("id", b"a\0b");
    if error != 0 {
        return Some(said(error).1);
    }
    let all =
        (put("empty", b""), get("id", 9), try_get("id"), try_get("empty"), get("late", 9), try_get("none"));
    let right = (
        0,
        Ok(b"a\0b".to_vec()),
        Ok(b"a\0b".to_vec()),
        Ok(vec![]),
        Err((4, "late is not there after 9ms".to_string())),
        Err((5, "none is not there".to_string())),
    );
    (all != right).then(|| format!("{all:?}"))
}

fn get_error(address: usize) -> (usize, String) {
    let found = get(address, "error");
    (found.code, String::from_utf8(found.data).unwrap())
}

unsafe extern "C" fn free_saved(holder: *mut c_void) {
    destroy(holder as usize, "saved");
}

/// The table of functions: size, extensions, the version struct, functions.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const usize {
    static TABLE: OnceLock<Vec<usize>> = OnceLock::new();
    if defect() == "no table" {
        return std::ptr::null();
    }
    let table = TABLE.get_or_init(|| {
        let count = if defect() == "few functions" { 12 } else { 138 };
        let (major, minor) = match defect().as_str() {
            "old" => (0usize, 57usize),
            "other major" => (1, 90),
            _ => (0, 115),
        };
        let mut table = vec![40 + 8 * count, 0, 24, 0, major | minor << 32];
        table.resize(5 + count, 0);
        for (position, function) in FUNCTIONS.iter().filter(|(position, _)| *position < count) {
            table[5 + position] = *function as usize;
        }
        if defect() == "small table" {
            table[0] = 24;
        }
        if defect() == "large table" {
            table[0] = usize::MAX;
        }
        table
    });
    table.as_ptr()
}

/// Selects a defect by its name, a text of so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_defect(name: *const u8, length: usize) {
    let name = String::from_utf8(unsafe { bytes(name as usize, length) }).unwrap();
    world(|world| world.defect = name);
}

/// Writes what is alive and what was wrong as text, of at most `room` bytes, and returns its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_report(to: *mut u8, room: usize) -> usize {
    let text = world(|world| {
        let mut alive: BTreeMap<&str, usize> = BTreeMap::new();
        for object in world.objects.values() {
            *alive.entry(object.class).or_default() += 1;
        }
        format!("alive {alive:?}, faults {:?}", world.faults)
    });
    let length = text.len().min(room);
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, length) };
    length
}
