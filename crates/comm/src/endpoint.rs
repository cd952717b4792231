//! A blocking view of a transport for one rank.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use partita_base::{CollectiveId, Result};

use crate::spec::CollectiveSpec;
use crate::transport::{Failure, Poll, Transport};
use crate::world::World;

/// A rank that runs its collectives one at a time and sleeps while it waits.
#[derive(Clone, Copy)]
pub struct Endpoint<'a> {
    transport: &'a dyn Transport,
    rank: usize,
    patience: Duration,
}

impl<'a> Endpoint<'a> {
    /// The view of `rank`, with a timeout of one minute per collective.
    pub fn new(transport: &'a dyn Transport, rank: usize) -> Self {
        Endpoint { transport, rank, patience: Duration::from_secs(60) }
    }

    /// The timeout of a collective; after it, this rank fails the run and names the missing ranks.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The transport.
    pub fn transport(&self) -> &'a dyn Transport {
        self.transport
    }

    /// Runs one collective from start to end: one input and one output per tensor of its bucket.
    ///
    /// # Errors
    /// E443 if any rank failed, or after the timeout.
    ///
    /// # Panics
    /// See [`Transport::start`].
    pub fn complete(
        &self,
        collective: CollectiveId,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        let inputs: Vec<*const [u8]> = inputs.iter().map(|&input| std::ptr::from_ref(input)).collect();
        let outputs: Vec<*mut [u8]> =
            outputs.iter_mut().map(|output| std::ptr::from_mut(&mut **output)).collect();
        let guard = Abandon(self);
        // SAFETY: the borrows last for the whole call, and it ends only after `Ready`, `Failed`,
        // or, on a panic, after the guard's `fail`.
        unsafe { self.transport.start(collective, self.rank, &inputs, &outputs) };
        let result = self.wait(collective);
        std::mem::forget(guard);
        result
    }

    /// [`Endpoint::complete`] for a collective of one tensor, with typed buffers.
    ///
    /// # Errors
    /// As for [`Endpoint::complete`].
    pub fn complete_one<T: Pod>(
        &self,
        collective: CollectiveId,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        self.complete(collective, &[bytemuck::cast_slice(input)], &mut [bytemuck::cast_slice_mut(output)])
    }

    /// Waits at a barrier: [`Endpoint::complete`] for a collective without tensors.
    ///
    /// # Errors
    /// As for [`Endpoint::complete`].
    pub fn barrier(&self, collective: CollectiveId) -> Result<()> {
        self.complete(collective, &[], &mut [])
    }

    /// Waits for a collective that was started on the transport.
    ///
    /// # Errors
    /// E443 if any rank failed, or after the timeout. The transport accesses no buffer after that.
    pub fn wait(&self, collective: CollectiveId) -> Result<()> {
        let begin = Instant::now();
        loop {
            let seen = self.transport.notify().epoch();
            match self.transport.poll(collective, self.rank) {
                Poll::Ready => return Ok(()),
                Poll::Failed => break,
                Poll::Pending => {}
            }
            let left = self.patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let label = &self.transport.collectives()[collective.index()].label;
                let missing = self.transport.missing(collective);
                self.fail(format!(
                    "waited {:?} in `{label}`; ranks that did not arrive: {missing:?}",
                    self.patience
                ));
                break;
            }
            self.transport.notify().wait_for_change(seen, Duration::ZERO, left);
        }
        let failure = self.transport.failure().expect("a failed poll follows a recorded failure");
        Err(failure.diagnostic())
    }

    /// Ends the run for all ranks.
    pub fn fail(&self, message: impl Into<String>) {
        self.transport.fail(Failure { rank: self.rank, code: "E443".into(), message: message.into() });
    }
}

/// Fails the run on a panic, so that no peer reads buffers that are being freed.
struct Abandon<'a>(&'a Endpoint<'a>);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.fail("left a collective before it was complete");
    }
}

/// Runs `body` once per rank, each on its own thread, and returns the results by rank.
///
/// # Errors
/// Invalid collectives, or the first failure (error or panic) of a rank; the other ranks then get
/// errors from their collectives.
pub fn run_ranks<T: Send>(
    rank_count: usize,
    collectives: Vec<CollectiveSpec>,
    body: impl Fn(Endpoint) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let world = World::in_process(rank_count, collectives)?;
    let world = world.transport();
    let run = |rank: usize| {
        let endpoint = Endpoint::new(world, rank);
        match catch_unwind(AssertUnwindSafe(|| body(endpoint))) {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) => {
                endpoint.fail(error.message);
                None
            }
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                endpoint.fail(format!("panicked: {}", text.unwrap_or_else(|| "no message".into())));
                None
            }
        }
    };
    let results: Option<Vec<T>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..rank_count).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|t| t.join().expect("panics of ranks are caught")).collect()
    });
    results.ok_or_else(|| world.failure().expect("a rank without a result has failed").diagnostic())
}
