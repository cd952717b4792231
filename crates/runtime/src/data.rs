//! Byte-level data: a file or folder of text becomes batches of tokens 0 to 255.
//!
//! Everything is a pure function of (files, seed, step): the bytes of a step depend neither on the
//! mesh nor on earlier steps, so resuming only needs the next step number.

use partita_base::FileKind;

mod baseline;
mod batches;
mod corpus;
mod identity;

pub use baseline::BigramTable;
pub use batches::{Batch, Batches, Permutation};
pub use corpus::{Corpus, CorpusReport, FileFilter, Split, file_identity};
pub use identity::is_of_samples;

/// Files of data, of texts as of tensors: E307 once they change.
pub const DATA: FileKind =
    FileKind { code: "E307", what: "data", help: "put the file back, and resume from the last checkpoint" };
