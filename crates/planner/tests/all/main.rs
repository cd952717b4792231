//! The tests of the planner.

mod solver;
