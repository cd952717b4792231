//! The world of a run: a transport, and the ranks that this process runs.
//!
//! Between steps the processes of a world communicate over a control channel. Every process makes
//! the same calls, at the same points of the run and in the same order, each on one thread. If one
//! process runs all ranks, the calls cost nothing.

use std::sync::Arc;

use partita_base::{Diagnostic, Result};

use crate::processes::Processes;
use crate::shared_memory::SharedMemory;
use crate::spec::CollectiveSpec;
use crate::transport::{PROCESS_ENDED, Transport};

/// A transport and the local ranks: those that this process runs. Each runner has its own.
pub struct World {
    transport: Arc<dyn Transport>,
    /// Ascending.
    local_ranks: Vec<usize>,
    origin: Origin,
}

/// What makes a world like this one.
enum Origin {
    /// This process alone.
    Own,
    /// The processes that share the ranks.
    Processes(Arc<dyn Processes>),
    /// The caller, who gave the transport.
    Given,
}

impl World {
    /// A world with all of `rank_count` ranks in this process, over its memory, with all
    /// collectives that they will use; ids are positions in the list.
    ///
    /// # Errors
    /// See [`CollectiveSpec::validate`].
    pub fn in_process(rank_count: usize, collectives: Vec<CollectiveSpec>) -> Result<World> {
        let transport = Arc::new(SharedMemory::new(rank_count, collectives)?);
        Ok(World { transport, local_ranks: (0..rank_count).collect(), origin: Origin::Own })
    }

    /// The world of `processes` over this transport, which they made: the ranks of this process.
    pub(crate) fn of_processes(
        processes: &Arc<dyn Processes>,
        transport: Arc<dyn Transport>,
    ) -> Result<World> {
        let ranks = processes.ranks(processes.index(), transport.rank_count());
        Ok(World { origin: Origin::Processes(processes.clone()), ..World::new(transport, ranks.collect())? })
    }

    /// A world with these local ranks out of those that a transport connects.
    ///
    /// # Errors
    /// E444 unless they are ascending, at least one, and ranks of the transport.
    pub fn new(transport: Arc<dyn Transport>, local_ranks: Vec<usize>) -> Result<World> {
        let is_ascending = local_ranks.windows(2).all(|pair| pair[0] < pair[1]);
        if !is_ascending || local_ranks.last().is_none_or(|&last| last >= transport.rank_count()) {
            return Err(Diagnostic::new("E444", "a process cannot run these ranks")
                .expected(format!("ascending ranks below {}, at least one", transport.rank_count()))
                .found(format!("{local_ranks:?}")));
        }
        Ok(World { transport, local_ranks, origin: Origin::Given })
    }

    /// A new world with the same ranks and collectives, none of them in progress: what follows on a world whose
    /// transport has failed while its processes go on. Every process calls this at the same point of the run, and then
    /// drops the old world. Nothing of the old one reaches the new one: it has memory, a file or message tags of its
    /// own. `None` if the caller made the transport of this one.
    ///
    /// # Errors
    /// E447 and E448 if the processes cannot connect.
    pub fn renewed(&self) -> Result<Option<World>> {
        let (rank_count, collectives) = (self.rank_count(), self.transport.collectives().to_vec());
        match &self.origin {
            Origin::Own => World::in_process(rank_count, collectives).map(Some),
            Origin::Processes(processes) => processes.world(rank_count, collectives).map(Some),
            Origin::Given => Ok(None),
        }
    }

    /// The transport.
    pub fn transport(&self) -> &dyn Transport {
        self.transport.as_ref()
    }

    /// The number of ranks, over all processes.
    pub fn rank_count(&self) -> usize {
        self.transport.rank_count()
    }

    /// The ranks that this process runs, ascending.
    pub fn local_ranks(&self) -> &[usize] {
        &self.local_ranks
    }

    /// Whether this process runs the rank.
    pub fn is_local(&self, rank: usize) -> bool {
        self.position(rank).is_some()
    }

    /// The position of a rank among the local ones.
    pub fn position(&self, rank: usize) -> Option<usize> {
        self.local_ranks.binary_search(&rank).ok()
    }

    /// Whether this process runs all ranks.
    pub fn is_whole(&self) -> bool {
        self.local_ranks.len() == self.rank_count()
    }

    /// Whether this process runs rank 0: that process writes files for all.
    pub fn is_first(&self) -> bool {
        self.is_local(0)
    }

    /// Returns after every process has called it.
    ///
    /// # Errors
    /// E447 if another process has ended.
    pub fn barrier(&self) -> Result<()> {
        self.largest(0).map(|_| ())
    }

    /// The maximum of the numbers passed by the processes.
    ///
    /// # Errors
    /// E447 if another process has ended.
    pub fn largest(&self, number: u64) -> Result<u64> {
        self.joined(number, u64::max)
    }

    /// The bits that any process passed.
    ///
    /// # Errors
    /// E447 if another process has ended.
    pub fn union(&self, bits: u64) -> Result<u64> {
        self.joined(bits, |one, other| one | other)
    }

    fn joined(&self, number: u64, join: impl Fn(u64, u64) -> u64) -> Result<u64> {
        let all = self.gathered(&number.to_le_bytes())?;
        let numbers = all.iter().map(|bytes| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes));
        Ok(numbers.fold(number, join))
    }

    /// Whether any process passed true.
    ///
    /// # Errors
    /// E447 if another process has ended.
    pub fn any(&self, answer: bool) -> Result<bool> {
        Ok(self.largest(u64::from(answer))? > 0)
    }

    /// What every process passes, in the order of the processes.
    ///
    /// # Errors
    /// E447 if another process has ended.
    pub fn gathered(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.is_whole() { Ok(vec![bytes.to_vec()]) } else { self.transport.control_all_gather(bytes) }
    }

    /// Sends the bytes of the process of rank `source` to every process. If it fails to make them,
    /// it returns its own error and the others E447.
    ///
    /// # Errors
    /// As above; E447 if another process has ended.
    pub fn broadcast(&self, source: usize, bytes: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        if self.is_whole() {
            return bytes();
        }
        // The first byte encodes what follows: nothing, the requested bytes, or an error.
        let (mut given, mut error) = (vec![NOTHING], None);
        if self.is_local(source) {
            match bytes() {
                Ok(bytes) => {
                    given[0] = BYTES;
                    given.extend(bytes);
                }
                Err(failed) => {
                    given[0] = FAILED;
                    given.extend(failed.message.bytes());
                    error = Some(failed);
                }
            }
        }
        let all = self.transport.control_all_gather(&given)?;
        if let Some(error) = error {
            return Err(error);
        }
        for mut bytes in all {
            match bytes.first() {
                Some(&BYTES) => return Ok(bytes.split_off(1)),
                Some(&FAILED) => {
                    let message = String::from_utf8_lossy(&bytes[1..]).into_owned();
                    return Err(Diagnostic::new(
                        PROCESS_ENDED,
                        format!("rank {source} cannot continue: {message}"),
                    ));
                }
                _ => {}
            }
        }
        Err(Diagnostic::new(PROCESS_ENDED, format!("no process runs rank {source}"))
            .expected(format!("a rank below {}", self.rank_count())))
    }

    /// [`World::broadcast`] to the process of rank 0 only: the others get `None`.
    ///
    /// # Errors
    /// As for [`World::broadcast`].
    pub fn gather(&self, source: usize, bytes: impl FnOnce() -> Result<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        let bytes = self.broadcast(source, bytes)?;
        Ok(self.is_first().then_some(bytes))
    }
}

const NOTHING: u8 = 0;
const BYTES: u8 = 1;
const FAILED: u8 = 2;
