//! The table of functions of a loaded plugin: calls, errors, and objects that are destroyed when they are dropped.

use crate::layout::{
    Ask, Entry, ErrorCode, ErrorDestroy, ErrorMessage, EventAwait, Function, Kind, Question, RawError,
    RawEvent,
};
use partita_base::Diagnostic;
use std::ffi::c_void;
use std::ptr::NonNull;

/// The functions of a plugin. A plugin is never unloaded, so they are there until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    functions: &'static [Option<Entry>],
    /// Major and minor version of the interface.
    pub version: (i32, i32),
    /// Bytes of the file of the library.
    pub library_bytes: u64,
}

/// Why a call did not succeed.
pub(crate) enum Failure {
    /// The plugin has no function of this name.
    Absent { name: &'static str, version: (i32, i32) },
    /// The plugin returned an error: its status code and its text.
    Refused { status: i32, text: String },
    /// The function of this name succeeded without the result that it must give.
    Empty { name: &'static str },
    /// What the plugin returned cannot be used here.
    Unusable { what: &'static str },
}

/// What a call returns.
pub(crate) type Call<T> = Result<T, Failure>;

/// The names of status codes, which all of XLA uses.
const STATUS: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The number of the status of a function that a platform does not have.
const UNIMPLEMENTED: i32 = 12;

impl Failure {
    /// Whether this plugin or its platform does not have what was called.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, Failure::Absent { .. } | Failure::Refused { status: UNIMPLEMENTED, .. })
    }

    /// The failure as a diagnostic: `message` says what did not succeed, the note has the text of the plugin. A missing
    /// function is always E063, whatever `code` is.
    pub(crate) fn report(self, code: &'static str, message: impl Into<String>) -> Box<Diagnostic> {
        match self {
            Failure::Absent { name, version: (major, minor) } => {
                Diagnostic::new("E063", format!("{}: the plugin has no {name}", message.into()))
                    .expected(format!("a plugin with {name}"))
                    .found(format!("PJRT {major}.{minor} without it"))
                    .help("use a newer plugin, or one of another vendor")
            }
            Failure::Refused { text, .. } if text.trim().is_empty() => {
                Diagnostic::new(code, message).note("the plugin gives no reason")
            }
            Failure::Refused { status, text } => {
                let name = usize::try_from(status).ok().and_then(|at| STATUS.get(at));
                let name = name.map_or_else(|| format!("status {status}"), |name| name.to_string());
                Diagnostic::new(code, message).note(format!("XLA says {name}: {}", text.trim_end()))
            }
            Failure::Empty { name } => {
                Diagnostic::new(code, message).note(format!("{name} succeeded without a result"))
            }
            Failure::Unusable { what } => Diagnostic::new(code, message).note(what),
        }
    }
}

impl Api {
    /// The table of a plugin: `functions` must be its functions in the order of the header.
    pub(crate) fn new(functions: &'static [Option<Entry>], version: (i32, i32), library_bytes: u64) -> Api {
        Api { functions, version, library_bytes }
    }

    /// What tells builds of plugins apart, such as `PJRT 0.115 of 202116616 bytes`.
    pub(crate) fn build(&self) -> String {
        format!("PJRT {}.{} of {} bytes", self.version.0, self.version.1, self.library_bytes)
    }

    /// The number of functions that the plugin states to have.
    pub(crate) fn function_count(&self) -> usize {
        self.functions.len()
    }

    fn entry<F: Function>(&self) -> Option<Entry> {
        self.functions.get(F::POSITION).copied().flatten()
    }

    /// Calls a function.
    ///
    /// # Safety
    ///
    /// The pointers in `arguments` must be what the C header requires: live objects of this plugin, and arrays of the
    /// given lengths.
    pub(crate) unsafe fn call<F: Function>(&self, arguments: &mut F) -> Call<()> {
        let Some(function) = self.entry::<F>() else {
            return Err(Failure::Absent { name: F::NAME, version: self.version });
        };
        // SAFETY: the function at `F::POSITION` takes this struct, whose size is in it; its pointers are good by the
        // contract of this function.
        let error = unsafe { function(std::ptr::from_mut(arguments).cast()) };
        match NonNull::new(error) {
            None => Ok(()),
            Some(error) => Err(self.failure(error)),
        }
    }

    /// Calls a function that takes one object, and returns its struct with the results.
    ///
    /// # Safety
    ///
    /// `object` must be a live object of this plugin.
    pub(crate) unsafe fn ask<F: Ask>(&self, object: Object<F::Of>) -> Call<F> {
        let mut arguments = F::of(object.pointer());
        // SAFETY: the object is live, and the only input.
        unsafe { self.call(&mut arguments)? };
        Ok(arguments)
    }

    /// Reads and destroys an error object.
    fn failure(&self, error: NonNull<RawError>) -> Failure {
        let mut code = ErrorCode::of(error.as_ptr());
        if let Some(function) = self.entry::<ErrorCode>() {
            // SAFETY: the error is live, and this function only reads it. An error of it would be about a wrong size of
            // the struct, and is dropped: the code stays 0.
            unsafe { function(std::ptr::from_mut(&mut code).cast()) };
        }
        let mut message = ErrorMessage::of(error.as_ptr());
        self.without_result(&mut message);
        // SAFETY: the text belongs to the error, which is alive.
        let text = unsafe { text(message.text, message.length) };
        self.without_result(&mut ErrorDestroy::of(error.as_ptr()));
        Failure::Refused { status: code.code, text }
    }

    /// Calls one of the two functions about errors, which return nothing.
    fn without_result<F: Ask<Of = RawError>>(&self, arguments: &mut F) {
        let Some(function) = self.entry::<F>() else { return };
        // SAFETY: only the type of the result differs; the header declares these functions as `void`.
        let function: unsafe extern "C" fn(*mut c_void) = unsafe { std::mem::transmute(function) };
        // SAFETY: the struct is the one of this function and has a live error.
        unsafe { function(std::ptr::from_mut(arguments).cast()) }
    }

    /// Takes over an object that a call has created; null is a failure of that call.
    ///
    /// # Safety
    ///
    /// `pointer` must be null or an object of this plugin that no other code destroys.
    pub(crate) unsafe fn own<K: Kind>(&self, pointer: *mut K, name: &'static str) -> Call<Handle<K>> {
        let object = Object::new(pointer, name)?;
        Ok(Handle { api: *self, object })
    }
}

/// The address of an object of a plugin, not null.
pub(crate) struct Object<K>(NonNull<K>);

// SAFETY: it is an address. Where it is used, the object must be alive, and objects of PJRT may be used from any thread:
// XLA's clients, devices, buffers and executables lock what they change, and JAX calls them from several threads.
unsafe impl<K> Send for Object<K> {}
// SAFETY: as for `Send`.
unsafe impl<K> Sync for Object<K> {}

impl<K> Clone for Object<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Object<K> {}

impl<K> PartialEq for Object<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<K> Object<K> {
    /// The object at `pointer`, which the function `name` has given.
    pub(crate) fn new(pointer: *mut K, name: &'static str) -> Call<Self> {
        NonNull::new(pointer).map(Object).ok_or(Failure::Empty { name })
    }

    /// Its address.
    pub(crate) fn pointer(self) -> *mut K {
        self.0.as_ptr()
    }
}

/// An object that is ours to destroy, which dropping does. It does not keep its client alive: structs hold the client
/// in a field below it, so that it is dropped first.
pub(crate) struct Handle<K: Kind> {
    api: Api,
    object: Object<K>,
}

impl<K: Kind> Handle<K> {
    /// The functions of the plugin that created it.
    pub(crate) fn api(&self) -> Api {
        self.api
    }

    /// The object, valid as long as this handle.
    pub(crate) fn object(&self) -> Object<K> {
        self.object
    }

    /// The address of the object, valid as long as this handle.
    pub(crate) fn pointer(&self) -> *mut K {
        self.object.pointer()
    }

    /// Calls a function that takes only this object.
    pub(crate) fn ask<F: Question<Of = K>>(&self) -> Call<F> {
        // SAFETY: the object is alive until this handle is dropped, and a question leaves it alive.
        unsafe { self.api.ask(self.object) }
    }
}

impl<K: Kind> Drop for Handle<K> {
    fn drop(&mut self) {
        // SAFETY: the object was created for us, and this is the only place that destroys it. An error of it cannot be
        // reported here, and changes nothing.
        let _ = unsafe { self.api.ask::<K::Destroy>(self.object) };
    }
}

impl Handle<RawEvent> {
    /// Waits for the event, and returns its error if it has one.
    pub(crate) fn wait(self) -> Call<()> {
        self.ask::<EventAwait>().map(|_| ())
    }
}

/// Bytes of the plugin as a text; what is not UTF-8 is replaced.
///
/// # Safety
///
/// As [`list`].
pub(crate) unsafe fn text(bytes: *const u8, length: usize) -> String {
    // SAFETY: by the contract of this function.
    String::from_utf8_lossy(unsafe { list(bytes, length) }).into_owned()
}

/// An array of the plugin; null is an empty one.
///
/// # Safety
///
/// `first` must be null, or point to `length` values that stay as they are while the result is in use.
pub(crate) unsafe fn list<'a, T>(first: *const T, length: usize) -> &'a [T] {
    if first.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: by the contract of this function.
    unsafe { std::slice::from_raw_parts(first, length) }
}
