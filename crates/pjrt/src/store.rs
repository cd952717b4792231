//! Bytes by key that the processes of a run share, and the callbacks by which a plugin uses them.

use crate::layout::{
    CallbackError, ClientCreate, GetCallback, Pointer, PutCallback, RawError, TryGetCallback,
};
use partita_base::{Diagnostic, Result};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// What clients of several processes exchange to become one run: who they are, and the ids of NCCL. Any store that the
/// processes share will do. Its methods are called from threads of the plugin, several at a time.
pub trait Store: Send + Sync {
    /// The value of a key, waiting for another process to put it. `None` if it is not there after `wait`, which may be
    /// zero.
    ///
    /// # Errors
    ///
    /// Its text reaches the plugin, and is part of the error of the call that needed the key.
    fn get(&self, key: &[u8], wait: Duration) -> Result<Option<Vec<u8>>>;

    /// Stores a value, for all processes.
    ///
    /// # Errors
    ///
    /// As for [`get`](Store::get).
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;
}

/// A store in the form in which a plugin gets it: by a thin pointer, so behind two. It must outlive the client.
pub(crate) struct Callbacks(Arc<Arc<dyn Store>>);

impl Callbacks {
    pub(crate) fn new(store: Arc<dyn Store>) -> Callbacks {
        Callbacks(Arc::new(store))
    }

    /// Sets the three callbacks. A plugin uses none of them unless it has all.
    pub(crate) fn give_to(&self, arguments: &mut ClientCreate) {
        let store: Pointer = Arc::as_ptr(&self.0).cast_mut().cast();
        (arguments.get_argument, arguments.put_argument, arguments.try_get_argument) = (store, store, store);
        arguments.get = Some(get);
        arguments.put = Some(put);
        arguments.try_get = Some(try_get);
    }
}

/// Status codes of XLA.
const DEADLINE_EXCEEDED: c_int = 4;
const NOT_FOUND: c_int = 5;
const INTERNAL: c_int = 13;

/// A status code and a text for the plugin.
type Refusal = (c_int, String);

/// Runs a method of the store at `store`. A panic becomes an error: it must not unwind through the plugin.
///
/// # Safety
///
/// `store` must be the address that [`Callbacks::give_to`] has given, of callbacks that are alive.
unsafe fn run<T>(
    store: Pointer,
    method: impl FnOnce(&dyn Store) -> Result<T>,
) -> std::result::Result<T, Refusal> {
    // SAFETY: it is the address of an `Arc<dyn Store>` that is alive.
    let store = unsafe { &*store.cast::<Arc<dyn Store>>() };
    match catch_unwind(AssertUnwindSafe(|| method(store.as_ref()))) {
        Ok(result) => result.map_err(|error: Box<Diagnostic>| (INTERNAL, error.to_string())),
        Err(_) => Err((INTERNAL, "the store has panicked".into())),
    }
}

/// The error object of a refusal, which the plugin makes.
///
/// # Safety
///
/// `make` must be the pointer to a function that the plugin gave with the arguments of a callback.
unsafe fn refuse(make: *const CallbackError, (code, text): Refusal) -> *mut RawError {
    // SAFETY: by the contract of this function; the text is copied.
    unsafe { (*make)(code, text.as_ptr(), text.len()) }
}

/// The bytes of a key or value.
///
/// # Safety
///
/// As [`crate::api::list`].
unsafe fn bytes<'a>(first: *const u8, length: usize) -> &'a [u8] {
    // SAFETY: by the contract of this function.
    unsafe { crate::api::list(first, length) }
}

/// Bytes in front of a value that is given to a plugin: [`free`] gets an address only, and reads the length there.
const HEAD: usize = size_of::<usize>();

/// A copy of a value that [`free`] frees.
fn give(value: &[u8]) -> *mut u8 {
    let block = [&value.len().to_ne_bytes()[..], value].concat().into_boxed_slice();
    // SAFETY: the block is at least as long as its head.
    unsafe { Box::into_raw(block).cast::<u8>().add(HEAD) }
}

/// Frees a value of [`give`].
unsafe extern "C" fn free(value: *mut u8) {
    // SAFETY: the plugin calls this once with an address of `give`: the length is in front of it, and both are one
    // block.
    unsafe {
        let block = value.sub(HEAD);
        let length = usize::from_ne_bytes(block.cast::<[u8; HEAD]>().read());
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(block, HEAD + length)));
    }
}

unsafe extern "C" fn get(it: *mut GetCallback) -> *mut RawError {
    // SAFETY: the plugin calls with its struct, a key of the stated length and the address of our store.
    unsafe {
        let it = &mut *it;
        let wait = Duration::from_millis(u64::try_from(it.milliseconds).unwrap_or(0));
        let key = bytes(it.key, it.key_length);
        let found = run(it.store, |store| store.get(key, wait));
        let absent =
            || (DEADLINE_EXCEEDED, format!("{} is not there after {wait:?}", String::from_utf8_lossy(key)));
        match found.and_then(|value| value.ok_or_else(absent)) {
            Ok(value) => (it.value, it.length) = (give(&value), value.len()),
            Err(refusal) => return refuse(it.error, refusal),
        }
        it.free = Some(free);
        std::ptr::null_mut()
    }
}

unsafe extern "C" fn try_get(it: *mut TryGetCallback) -> *mut RawError {
    // SAFETY: as for `get`.
    unsafe {
        let it = &mut *it;
        let key = bytes(it.key, it.key_length);
        let found = run(it.store, |store| store.get(key, Duration::ZERO));
        let absent = || (NOT_FOUND, format!("{} is not there", String::from_utf8_lossy(key)));
        match found.and_then(|value| value.ok_or_else(absent)) {
            Ok(value) => (it.value, it.length) = (give(&value), value.len()),
            Err(refusal) => return refuse(it.error, refusal),
        }
        it.free = Some(free);
        std::ptr::null_mut()
    }
}

unsafe extern "C" fn put(it: *mut PutCallback) -> *mut RawError {
    // SAFETY: as for `get`; the value has the stated length too.
    unsafe {
        let it = &mut *it;
        let (key, value) = (bytes(it.key, it.key_length), bytes(it.value, it.length));
        match run(it.store, |store| store.put(key, value)) {
            Ok(()) => std::ptr::null_mut(),
            Err(refusal) => refuse(it.error, refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_length_are_freed() {
        for value in [&b""[..], b"a", b"with \0 inside", &[7; 1000]] {
            let given = give(value);
            // SAFETY: it was given with this length, and is freed once.
            unsafe {
                assert_eq!(bytes(given, value.len()), value);
                free(given);
            }
        }
    }
}
