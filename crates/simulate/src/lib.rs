//! The simulator: the executor of `program` over a clock. It predicts when each instruction of the
//! very programs that would run begins and ends, and the memory in use over time.
//!
//! Knows: programs, and what a [`partita_cost::Cluster`] says their instructions cost. Must not
//! know: kernels, how a plan was found.
//!
//! [`simulate`] runs one clock per rank class, since the ranks of a class execute the same
//! instructions on equal devices: 16,384 ranks cost as much as one rank of each class. [`Simulation`] holds the
//! result: seconds of the step, the events of each class in the form in which a run is measured
//! ([`partita_program::Event`]), memory by kind ([`Memory`]), and [`Simulation::trace`] for a
//! timeline.
#![forbid(unsafe_code)]

mod clock;
mod link;
mod links;
mod memory;
mod timeline;

pub use clock::{ClassRun, Exchanged, Moved, Simulation, computing_s, simulate, work};
pub use link::collective_s;
pub use memory::{Memory, MemoryKind, over_time};
