//! The transport interface for executors.

use partita_base::{CollectiveId, Diagnostic, Result};

use crate::liveness::Liveness;
use crate::notify::Notify;
use crate::spec::CollectiveSpec;

/// The state of a rank in a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Poll {
    /// The output is complete and no thread will access this rank's buffers any more. Also the
    /// state of a rank without a collective in flight.
    Ready,
    /// The rank waits for others.
    Pending,
    /// Some rank failed; see [`Transport::failure`]. No thread will access any buffer any more.
    Failed,
}

/// The code for a run that cannot continue because another of its processes has ended.
pub const PROCESS_ENDED: &str = "E447";

/// Why a run failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The rank that detected it.
    pub rank: usize,
    /// The code of its diagnostic.
    pub code: String,
    /// What happened.
    pub message: String,
}

impl Failure {
    /// The diagnostic for the user: E443.
    pub fn diagnostic(&self) -> Box<Diagnostic> {
        Diagnostic::new("E443", format!("rank {} failed: {}", self.rank, self.message))
    }
}

/// Runs the collectives of a program between ranks.
///
/// A collective may be used repeatedly (steps, loops), but a rank must be `Ready` in it before it
/// starts it again. Ranks need not be tied to threads.
pub trait Transport: Send + Sync {
    /// The number of ranks, over all processes.
    fn rank_count(&self) -> usize;

    /// The collectives, by id.
    fn collectives(&self) -> &[CollectiveSpec];

    /// Publishes `rank`'s buffers, one input and one output per exchange of the bucket. Never
    /// blocks.
    ///
    /// # Panics
    /// If the rank is no member or still in flight, if buffers have the wrong number, size or
    /// alignment, or if an input overlaps its output. Buffers of zero bytes may have any address.
    ///
    /// # Safety
    /// Until `poll` has returned `Ready` or `Failed` for this rank, or `fail` has returned: the
    /// inputs are valid, initialised and not written; the outputs are valid, and only this
    /// collective accesses them. No two threads start the same rank at a time.
    unsafe fn start(
        &self,
        collective: CollectiveId,
        rank: usize,
        inputs: &[*const [u8]],
        outputs: &[*mut [u8]],
    );

    /// Does the work that is possible without waiting: this rank's share, and when that is used up,
    /// its peers'. A thread that runs many ranks polls them all before it sleeps, so that each
    /// rank's share is usually done by the same thread.
    fn poll(&self, collective: CollectiveId, rank: usize) -> Poll;

    /// The counter to sleep on when polls are pending. It also moves when another process makes
    /// progress.
    fn notify(&self) -> &Notify;

    /// Fails the run: from now on every poll returns `Failed`. The first failure is kept. After
    /// this returns, no thread accesses any buffer.
    fn fail(&self, failure: Failure);

    /// The first failure.
    fn failure(&self) -> Option<Failure>;

    /// The member ranks that have not started this use of the collective although others have.
    fn missing(&self, collective: CollectiveId) -> Vec<usize>;

    /// Publishes that a local rank begins an instruction, for those who ask after it is stuck or dead. Costs one store.
    fn begin(&self, rank: usize, instruction: usize) {
        let _ = (rank, instruction);
    }

    /// What is known of a rank of any process.
    fn sign(&self, rank: usize) -> Liveness {
        let _ = rank;
        Liveness::default()
    }

    /// The control channel, for communication outside the collectives of a program: an all-gather
    /// of bytes in process order. One thread of each process calls it, at the same points of the
    /// run. It still works after [`Transport::fail`], so that processes can save their state after
    /// a failed step.
    ///
    /// # Errors
    /// E447 if another process has ended, E443 if one does not run.
    fn control_all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
}
