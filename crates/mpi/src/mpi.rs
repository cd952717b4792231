//! The messages of MPI (MPI: A Message-Passing Interface Standard, chapters 3 and 8): non-blocking sends and receives of
//! bytes on a communicator of our own.
//!
//! One thread at a time calls the library (`MPI_THREAD_SERIALIZED`). No call blocks, so a thread that computes is never
//! held up by another that communicates.

use partita_base::{Diagnostic, Result};
use partita_comm::{Handle, Messages};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

// SAFETY: these are the functions of `shim.c` with their types.
unsafe extern "C" {
    fn partita_mpi_start(index: *mut c_int, count: *mut c_int, tags: *mut c_int) -> c_int;
    fn partita_mpi_send(bytes: *const c_char, size: usize, process: c_int, tag: c_int) -> *mut c_void;
    fn partita_mpi_receive(bytes: *mut c_char, size: usize, process: c_int, tag: c_int) -> *mut c_void;
    fn partita_mpi_test(handle: *mut c_void) -> c_int;
    fn partita_mpi_cancel(handle: *mut c_void);
    fn partita_mpi_finish();
}

/// The library, started.
#[derive(Debug)]
pub struct Mpi {
    index: usize,
    count: usize,
    tags: usize,
    /// Held by the thread that calls the library; whether it has ended.
    turn: Mutex<bool>,
}

impl Mpi {
    /// Starts the library. Once in a process.
    ///
    /// # Errors
    /// E448 if it cannot be called from several threads.
    pub fn start() -> Result<Mpi> {
        let (mut index, mut count, mut tags) = (0, 1, 0);
        // SAFETY: three places for numbers.
        if unsafe { partita_mpi_start(&raw mut index, &raw mut count, &raw mut tags) } != 0 {
            return Err(Diagnostic::new("E448", "this MPI library cannot be called from several threads")
                .expected("the thread level MPI_THREAD_SERIALIZED")
                .help("use an MPI library that was built with threads"));
        }
        let number = |value: c_int| usize::try_from(value).unwrap_or(0);
        Ok(Mpi { index: number(index), count: number(count), tags: number(tags), turn: Mutex::new(false) })
    }

    /// Ends the library, after all processes have called this. Messages that are still on their way stay there.
    pub fn finish(&self) {
        let mut is_over = self.turn();
        *is_over = true;
        // SAFETY: it was started, and no message is tested or started any more.
        unsafe { partita_mpi_finish() };
    }

    fn turn(&self) -> MutexGuard<'_, bool> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number of a process or a tag, which is below the limits of the library.
fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("below the limit of the library")
}

fn pointer(handle: Handle) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(handle)
}

impl Messages for Mpi {
    fn index(&self) -> usize {
        self.index
    }

    fn count(&self) -> usize {
        self.count
    }

    fn tags(&self) -> usize {
        self.tags
    }

    unsafe fn send(&self, process: usize, tag: usize, bytes: *const [u8]) -> Handle {
        let _turn = self.turn();
        // SAFETY: the caller's promise about the bytes.
        let handle = unsafe { partita_mpi_send(bytes.cast(), bytes.len(), int(process), int(tag)) };
        handle.expose_provenance()
    }

    unsafe fn receive(&self, process: usize, tag: usize, bytes: *mut [u8]) -> Handle {
        let _turn = self.turn();
        // SAFETY: the caller's promise about the bytes.
        let handle = unsafe { partita_mpi_receive(bytes.cast(), bytes.len(), int(process), int(tag)) };
        handle.expose_provenance()
    }

    fn test(&self, handle: Handle) -> bool {
        let is_over = self.turn();
        // SAFETY: a handle of `send` or `receive` that no test has completed.
        !*is_over && unsafe { partita_mpi_test(pointer(handle)) != 0 }
    }

    fn cancel(&self, handle: Handle) {
        let is_over = self.turn();
        if !*is_over {
            // SAFETY: as above.
            unsafe { partita_mpi_cancel(pointer(handle)) };
        }
    }
}
