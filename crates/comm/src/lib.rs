//! Collectives between ranks, behind a [`Transport`] trait: over the memory of one process, over a
//! mapped file between processes of one host ([`HostProcesses`]), or over the messages of another
//! library between processes anywhere ([`MessageProcesses`]). A [`World`] is a transport with the
//! ranks that this process runs.
//!
//! All collectives of a program are known before it runs: a [`CollectiveSpec`] lists the member
//! ranks and, for each tensor of the bucket, an [`Exchange`]. There are two mechanisms: *moves* of
//! N-dimensional boxes between the members' buffers (all-gather, all-to-all, permute, broadcast,
//! send) and *reductions* in member order (all-reduce, reduce-scatter), so that results are bitwise
//! independent of timing. Extents may differ between members and may be zero.
//!
//! A rank issues a collective with `start`, which publishes its buffers and never blocks. The
//! collective ends when `poll` returns [`Poll::Ready`]: then the result is complete and no peer
//! reads this rank's buffers again. A thread may run many ranks; a poll without work for its own
//! rank works for the others.
//!
//! This crate knows bytes, element types, groups and extents. It knows nothing of graphs, meshes or
//! programs.

mod copy;
mod endpoint;
mod fold;
mod heartbeat;
mod host;
mod liveness;
mod mapped_file;
mod message_routes;
mod message_sums;
mod message_transport;
mod messages;
mod notify;
mod processes;
mod reduce;
mod rendezvous;
#[cfg(test)]
mod rendezvous_tests;
mod share;
mod shared_memory;
mod spec;
mod sync;
mod transport;
mod world;

pub use endpoint::{Endpoint, run_ranks};
pub use host::HostMemory;
pub use liveness::{BEAT_EVERY, Liveness};
pub use messages::{Handle, MessageProcesses, Messages};
pub use notify::Notify;
pub use partita_base::{CollectiveId, Combiner};
pub use processes::{HostProcesses, Patience, Processes};
pub use spec::{BoxMove, CollectiveSpec, Exchange, Moves};
pub use transport::{Failure, PROCESS_ENDED, Poll, Transport};
pub use world::World;
