//! Byte-level data: a file or folder of text becomes batches of tokens 0 to 255.
//!
//! Everything is a pure function of (files, seed, step): which bytes a step sees depends neither on the mesh
//! nor on the steps taken before, so resuming is asking for the next step.

mod baseline;
mod batches;
mod corpus;

pub use baseline::BigramTable;
pub use batches::{Batch, Batches, Permutation};
pub use corpus::{Corpus, CorpusReport, FileFilter, Split};
