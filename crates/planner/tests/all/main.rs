//! The tests of the planner.

mod alpa;
mod inter;
mod intra;
mod solver;
