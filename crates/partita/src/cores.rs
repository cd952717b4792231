//! Work in parts, on all cores.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The results of so many parts, in their order, whatever core is faster. `watch` receives each when it is there, from any
/// thread.
pub(crate) fn on_all_cores<T: Send>(
    parts: usize,
    watch: impl Fn(&T) + Sync,
    part: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(parts);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own: Vec<(usize, T)> = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= parts {
                return own;
            }
            let found = part(number);
            watch(&found);
            own.push((number, found));
        }
    };
    let mut all: Vec<(usize, T)> = std::thread::scope(|scope| {
        // Where the system has no more threads, this one does all of it.
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let threads: Vec<_> = (1..cores).filter_map(start).collect();
        let mut all = work();
        for thread in threads {
            all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|(number, _)| *number);
    all.into_iter().map(|(_, found)| found).collect()
}
