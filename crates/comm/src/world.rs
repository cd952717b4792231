//! The world of a run: a transport, and which of its ranks this process runs.
//!
//! Between steps the processes of a world talk over a control channel. Its calls are made by every process, at the same
//! points of the run and in the same order, each by one thread. Where one process runs all ranks they cost nothing.

use std::sync::Arc;

use partita_base::{Diagnostic, Result};

use crate::shared_memory::SharedMemory;
use crate::spec::CollectiveSpec;
use crate::transport::{PROCESS_ENDED, Transport};

/// A transport and the ranks that are local: those that this process runs. It is one runner's.
pub struct World {
    transport: Arc<dyn Transport>,
    /// Ascending.
    local_ranks: Vec<usize>,
}

impl World {
    /// All of `rank_count` ranks in this process, over its memory, with all collectives that they will ever use; ids are
    /// positions in the list.
    ///
    /// # Errors
    /// See [`CollectiveSpec::validate`].
    pub fn in_process(rank_count: usize, collectives: Vec<CollectiveSpec>) -> Result<World> {
        let transport = Arc::new(SharedMemory::new(rank_count, collectives)?);
        Ok(World { transport, local_ranks: (0..rank_count).collect() })
    }

    /// The ranks that this process runs of those that a transport connects.
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
        Ok(World { transport, local_ranks })
    }

    /// What moves data between the ranks.
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

    /// Whether this process runs rank 0: it writes files for all.
    pub fn is_first(&self) -> bool {
        self.is_local(0)
    }

    /// Returns when every process has called it.
    ///
    /// # Errors
    /// E447 where another process has ended.
    pub fn barrier(&self) -> Result<()> {
        self.largest(0).map(|_| ())
    }

    /// The largest of the numbers that the processes give.
    ///
    /// # Errors
    /// E447 where another process has ended.
    pub fn largest(&self, number: u64) -> Result<u64> {
        if self.is_whole() {
            return Ok(number);
        }
        let all = self.transport.control_all_gather(&number.to_le_bytes())?;
        let numbers = all.iter().map(|bytes| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes));
        Ok(numbers.max().unwrap_or(number))
    }

    /// Whether the answer of any process is yes.
    ///
    /// # Errors
    /// E447 where another process has ended.
    pub fn any(&self, answer: bool) -> Result<bool> {
        Ok(self.largest(u64::from(answer))? > 0)
    }

    /// The bytes that the process of rank `source` makes, on every process. Where it fails to make them, all get an
    /// error: it its own, the others E447.
    ///
    /// # Errors
    /// As said; E447 where another process has ended.
    pub fn broadcast(&self, source: usize, bytes: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        if self.is_whole() {
            return bytes();
        }
        // The first byte says what follows: nothing, what was asked for, or why there is none.
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
                        format!("rank {source} cannot go on: {message}"),
                    ));
                }
                _ => {}
            }
        }
        Err(Diagnostic::new(PROCESS_ENDED, format!("no process runs rank {source}"))
            .expected(format!("a rank below {}", self.rank_count())))
    }

    /// As [`World::broadcast`], for the process of rank 0 alone: the others get `None`.
    ///
    /// # Errors
    /// As there.
    pub fn gather(&self, source: usize, bytes: impl FnOnce() -> Result<Vec<u8>>) -> Result<Option<Vec<u8>>> {
        let bytes = self.broadcast(source, bytes)?;
        Ok(self.is_first().then_some(bytes))
    }
}

const NOTHING: u8 = 0;
const BYTES: u8 = 1;
const FAILED: u8 = 2;
