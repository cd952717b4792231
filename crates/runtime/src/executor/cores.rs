//! Core home_cores: the cores that this process may use, and the one on which each worker begins a
//! step.

/// The cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// One core per worker, if the process has exactly as many cores as workers.
///
/// Some systems fill one core before they use the next, above all in virtual machines: workers that
/// wake together then share one core until the system notices, which takes longer than many small
/// collectives. So a worker that does not begin a step on its own core moves there. It is not
/// pinned there, because the system may have better reasons.
#[derive(Debug)]
pub(super) struct HomeCores(Vec<usize>);

impl HomeCores {
    /// Empty if there are more cores than workers or fewer: then the system chooses better.
    pub fn new(workers: usize) -> HomeCores {
        let cores = system::usable();
        HomeCores(if cores.len() == workers { cores } else { Vec::new() })
    }

    /// Moves the calling thread to the worker's core, if permitted.
    pub fn settle(&self, worker: usize) {
        if let Some(&home) = self.0.get(worker) {
            system::move_to(home);
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// The numbers of the cores that the calling thread may use.
    pub fn usable() -> Vec<usize> {
        let all = sched_getaffinity(None).unwrap_or_default();
        (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).collect()
    }

    /// Moves the calling thread to a core, if permitted.
    pub fn move_to(core: usize) {
        if sched_getcpu() == core {
            return;
        }
        // The cores of this thread; the starter of the process may have restricted them.
        let Ok(own) = sched_getaffinity(None) else { return };
        let mut only = CpuSet::new();
        only.set(core);
        if own.is_set(core) && sched_setaffinity(None, &only).is_ok() {
            // Restoring the earlier set always succeeds; if not, the thread stays on one of its own
            // cores.
            _ = sched_setaffinity(None, &own);
        }
    }
}

/// Other systems do not let a thread choose.
#[cfg(not(target_os = "linux"))]
mod system {
    pub fn usable() -> Vec<usize> {
        Vec::new()
    }

    pub fn move_to(_: usize) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::system::usable;
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    #[test]
    fn a_worker_settles_on_its_core_and_stays_free() {
        let cores = usable();
        let home_cores = HomeCores::new(cores.len());
        assert_eq!(home_cores.0, cores);
        let free = sched_getaffinity(None).unwrap();
        for (worker, &core) in cores.iter().enumerate() {
            // The system may move it again at any time.
            let settles = || {
                home_cores.settle(worker);
                sched_getcpu() == core
            };
            assert!((0..1000).any(|_| settles()), "worker {worker}");
            assert_eq!(sched_getaffinity(None).unwrap(), free);
        }
    }

    #[test]
    fn nobody_is_sent_where_cores_are_left_over_or_too_few() {
        let count = usable().len();
        for workers in [count - 1, count + 1] {
            assert!(HomeCores::new(workers).0.is_empty(), "{workers} workers on {count} cores");
        }
    }

    #[test]
    fn a_restricted_thread_stays_restricted() {
        let cores = usable();
        let home_cores = HomeCores::new(cores.len());
        let mut first = CpuSet::new();
        first.set(cores[0]);
        std::thread::spawn(move || {
            sched_setaffinity(None, &first).unwrap();
            (0..cores.len()).for_each(|worker| home_cores.settle(worker));
            assert_eq!(sched_getaffinity(None).unwrap(), first);
            assert_eq!(sched_getcpu(), cores[0]);
        })
        .join()
        .unwrap();
    }
}
