//! Helpers that the tests of several crates share: running a command in a folder of its own, comparing tensors, random
//! numbers.
//!
//! Knows tensors and processes; must not know what the command does, and no crate depends on it outside of its tests.
#![forbid(unsafe_code)]

pub mod command;
pub mod random;
pub mod tensors;

pub use command::{Outcome, Place, TINY, newest, train_arguments};
pub use random::Random;
pub use tensors::{assert_close, overrides};
