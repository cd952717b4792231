//! The CPU device, training loop, data and checkpoints; knows nothing of how plans are found.
// Mapping files into memory is the one unsafe thing here; `data::corpus` says why it is sound.
#![deny(unsafe_code)]

pub mod checkpoint;
pub mod data;
