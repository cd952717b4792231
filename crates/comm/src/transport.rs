//! What a transport offers to those who run programs.

use partita_base::{CollectiveId, Diagnostic, Result};

use crate::notify::Notify;
use crate::spec::CollectiveSpec;

/// How far a rank is in a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Poll {
    /// The output is complete and nobody will touch this rank's buffers any more. Also the state of a rank that
    /// has nothing in flight.
    Ready,
    /// Others have to act first.
    Pending,
    /// Some rank failed; see [`Transport::failure`]. Nobody will touch any buffer any more.
    Failed,
}

/// The code of what cannot go on since another process of the run has ended.
pub const PROCESS_ENDED: &str = "E447";

/// Why a run cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The rank that found out.
    pub rank: usize,
    /// The code of its diagnostic.
    pub code: String,
    /// What happened.
    pub message: String,
}

impl Failure {
    /// As told to the user: E443.
    pub fn diagnostic(&self) -> Box<Diagnostic> {
        Diagnostic::new("E443", format!("rank {} failed: {}", self.rank, self.message))
    }
}

/// Runs the collectives of a program between ranks.
///
/// A collective may be used again and again (steps, loops), but a rank must be `Ready` in it before it starts it
/// again. Ranks need not be tied to threads.
pub trait Transport: Send + Sync {
    /// The number of ranks, over all processes.
    fn rank_count(&self) -> usize;

    /// The collectives, by id.
    fn collectives(&self) -> &[CollectiveSpec];

    /// Publishes `rank`'s buffers, one input and one output per exchange of the bucket. Never blocks.
    ///
    /// # Panics
    /// Where the rank is no member, is still in flight, or where buffers have the wrong number, size or
    /// alignment, or an input overlaps its output. Buffers of zero bytes may have any address.
    ///
    /// # Safety
    /// Until `poll` has returned `Ready` or `Failed` for this rank, or `fail` has returned: the inputs are
    /// valid, initialised and not written; the outputs are valid, and are accessed by nobody
    /// but this collective. No two threads start the same rank at a time.
    unsafe fn start(
        &self,
        collective: CollectiveId,
        rank: usize,
        inputs: &[*const [u8]],
        outputs: &[*mut [u8]],
    );

    /// Does what can be done now, without waiting: this rank's part of the work, and where nothing is left of
    /// that, its peers'. A thread that plays many ranks polls them all before it sleeps, so that each rank's part is
    /// mostly done by the same thread.
    fn poll(&self, collective: CollectiveId, rank: usize) -> Poll;

    /// What to sleep on when polls are pending. Moves as well when another process has got ahead.
    fn notify(&self) -> &Notify;

    /// Ends the run: from now on every poll returns `Failed`. The first failure is kept. When this returns,
    /// nobody touches any buffer any more.
    fn fail(&self, failure: Failure);

    /// The first failure.
    fn failure(&self) -> Option<Failure>;

    /// The member ranks that have not started this use of the collective while others have.
    fn missing(&self, collective: CollectiveId) -> Vec<usize>;

    /// The control channel, for what is no collective of a program: returns what every process gives, in the order of
    /// the processes. Called by one thread of each, at the same points of the run. It outlives [`Transport::fail`], so
    /// that processes can save what a failed step has left.
    ///
    /// # Errors
    /// E447 where another process has ended.
    fn control_all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
}
