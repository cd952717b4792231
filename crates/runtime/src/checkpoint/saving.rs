//! A save while training continues: the state was copied, a thread of this process writes it, and the processes agree on it
//! when all of them have written.
//!
//! All processes of a world make the same calls in the same order. Between [`Saving::begin`] and [`Saving::finish`] they may
//! train on. The checkpoint appears by one rename: of whole tensors as soon as they are written, of shards in `finish`, when
//! every process has told that its file is on disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use partita_comm::World;

use super::shards::{Unfinished, write_own};
use super::*;

/// A checkpoint that is being written.
pub struct Saving {
    /// Of this process: the path of the whole checkpoint, or the report of its file.
    thread: Option<JoinHandle<Result<Vec<u8>>>>,
    shards: Option<Unfinished>,
}

/// Where checkpoints are written, from any thread.
pub type SharedStorage = Arc<dyn Storage + Send + Sync>;

impl Saving {
    /// Begins to write a checkpoint. Only the process of rank 0 has the folder; it writes the checkpoint whole, or every
    /// process its shards.
    ///
    /// # Errors
    /// E315 if the folder or the thread cannot be made, E447 in the other processes then.
    pub fn begin(
        folder: Option<&Arc<RunFolder>>,
        world: &World,
        storage: SharedStorage,
        checkpoint: Checkpoint,
        shards: Option<Vec<Shard>>,
    ) -> Result<Saving> {
        let Some(shards) = shards else {
            let write = folder.cloned().map(|folder| {
                spawn(move || {
                    let path = folder.save(storage.as_ref(), checkpoint)?;
                    Ok(path.to_string_lossy().into_owned().into_bytes())
                })
            });
            return Ok(Saving { thread: write.transpose()?, shards: None });
        };
        let unfinished = Unfinished::begin(folder, world, storage.clone(), checkpoint)?;
        let (path, rank) = (unfinished.path.clone(), world.local_ranks()[0]);
        let write = move || {
            let report = write_own(storage.as_ref(), &path, rank, &shards)?;
            Ok(serde_json::to_vec(&report).expect("text and numbers are always JSON"))
        };
        Ok(Saving { thread: Some(spawn(write)?), shards: Some(unfinished) })
    }

    /// Whether this process has written, so that [`Saving::finish`] does not wait for its disk.
    pub fn is_written(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the checkpoint is complete; returns its path.
    ///
    /// # Errors
    /// E315 in the process that could not write, and in that of rank 0; E447 in the others. Earlier checkpoints stay.
    pub fn finish(mut self, world: &World) -> Result<PathBuf> {
        let written = self.thread.take().map_or(Ok(Vec::new()), |thread| {
            let panicked =
                |_| Err(unwritten(Path::new(""), "the thread that writes has panicked".to_string()));
            thread.join().unwrap_or_else(panicked)
        });
        match self.shards.take() {
            Some(unfinished) => unfinished.end(world, written),
            None => {
                let told = world.broadcast(0, || written)?;
                Ok(PathBuf::from(String::from_utf8_lossy(&told).into_owned()))
            }
        }
    }
}

impl Drop for Saving {
    /// A run that ends in between still writes what it has begun to write.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn spawn(write: impl FnOnce() -> Result<Vec<u8>> + Send + 'static) -> Result<JoinHandle<Result<Vec<u8>>>> {
    let thread = std::thread::Builder::new().name("partita checkpoint".into()).spawn(write);
    thread.map_err(|error| unwritten(Path::new(""), error.to_string()))
}
