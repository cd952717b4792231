//! The planner: finds the layouts and stages of a step by search, with a proven bound.
//!
//! Knows: factor rules, strategies, costs, timetables, how plans are written. Must not know: kernels, programs, how a
//! step is executed.
//!
//! [`solver`] is a solver for choices that depend on each other in pairs; it knows nothing of tensors. [`intra`] makes a
//! step on a mesh such a problem, and [`plan_of`] writes its solution as a plan. [`inter`] divides the layers of a model
//! into pipeline stages.
#![forbid(unsafe_code)]

mod emit;
pub mod inter;
pub mod intra;
pub mod solver;

pub use emit::{Pins, plan_of, plan_of_layers};
