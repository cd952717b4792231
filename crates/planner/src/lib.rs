//! The planner: finds the layouts and stages of a step by search, with a proven bound.
//!
//! Knows: factor rules, strategies, costs, timetables, how plans are written. Must not know: kernels, programs, how a
//! step is executed.
//!
//! [`solver`] is a solver for choices that depend on each other in pairs; it knows nothing of tensors.
#![forbid(unsafe_code)]

pub mod solver;
