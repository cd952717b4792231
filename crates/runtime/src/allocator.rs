//! The allocator of the command: where the system gives no more memory, it ends the process with a message.
//!
//! Requests whose size is known are refused before they are made ([`MemoryLimit`](crate::MemoryLimit)). What is left are
//! the many small ones of planning, under a limit of the address space (`ulimit -v`) or of a container. Without this
//! allocator they end in an abort, which names neither a limit nor what to do.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// The allocator of the system, for `#[global_allocator]` of a command. Where it has no more memory, the process writes E040
/// to standard error and ends with exit code 2. Checkpoints stay whole: each is written beside its place and renamed.
#[derive(Debug, Default)]
pub struct Allocator {
    has_failed: AtomicBool,
}

impl Allocator {
    /// The allocator.
    pub const fn new() -> Allocator {
        Allocator { has_failed: AtomicBool::new(false) }
    }

    /// Writes the message once, from the thread that fails first, and ends the process.
    #[cold]
    fn end(&self, bytes: usize) -> ! {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            // Formatted in place, because there is no memory.
            let mut text = Text { bytes: [0; 512], length: 0 };
            let _ = write!(
                text,
                "error[E040]: there is not enough memory\n  expected: {bytes} bytes more\n     found: none left within the \
                 limit of this process (ulimit -v, a container's, or the machine's)\n      help: use a smaller batch or model, \
                 or fewer ranks, or raise the limit; what was saved before is whole\n"
            );
            let _ = std::io::stderr().write_all(&text.bytes[..text.length]);
        }
        std::process::exit(2)
    }
}

/// A text of a fixed size; what does not fit is left out.
struct Text {
    bytes: [u8; 512],
    length: usize,
}

impl std::fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let left = &mut self.bytes[self.length..];
        let count = text.len().min(left.len());
        left[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

// SAFETY: every request goes to the allocator of the system with the caller's own arguments, so its promises are those of
// the system's; where it returns null, the process ends, and nothing unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size above zero.
        let place = unsafe { System.alloc(layout) };
        if place.is_null() { self.end(layout.size()) } else { place }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size above zero.
        let place = unsafe { System.alloc_zeroed(layout) };
        if place.is_null() { self.end(layout.size()) } else { place }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's place is of this allocator and of this layout, and the size is above zero.
        let place = unsafe { System.realloc(place, layout, size) };
        if place.is_null() { self.end(size) } else { place }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's place is of this allocator and of this layout.
        unsafe { System.dealloc(place, layout) }
    }
}
