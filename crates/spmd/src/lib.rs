//! SPMD partitioning: from a global step graph with a few annotated layouts to each rank's local
//! graph with explicit collectives.
//!
//! Knows: factor rules, layouts, communication costs. Must not know: programs, kernels, how plans
//! are written.
//!
//! [`propagate()`] gives every value a layout. [`lay_out()`] does so for a step as it will be partitioned, and says in which
//! layouts stages of a pipeline send and receive. [`partition()`] chooses how each op's factors are
//! sharded, derives partial values and reshards from that choice, and emits the local graphs.
//! Collectives are never written by hand: they follow from layouts.
//! [`uniform()`] merges the local graphs to one program for all ranks, for XLA.
#![forbid(unsafe_code)]

pub mod advice;
pub mod assign;
pub mod emit;
pub mod factors;
pub mod meshes;
pub mod microbatch;
pub mod partition;
pub mod propagate;
pub mod specialise;
pub mod split_fused;
pub mod strategies;
pub mod uniform;
pub mod units;
pub mod virtual_ranks;

pub use advice::{BetterMesh, better_mesh, step_s};
pub use meshes::in_device_order;
pub use microbatch::{check_sums, coupled_op, microbatch, microbatch_inputs, microbatch_of};
pub use partition::{LaidOut, Move, Options, Partitioned, Placement, is_computed, lay_out, partition};
pub use propagate::{Cause, Layouts, propagate};
pub use specialise::{specialise, specialise_class};
pub use split_fused::split_fused;
pub use strategies::{Strategy, strategies};
pub use uniform::uniform;
