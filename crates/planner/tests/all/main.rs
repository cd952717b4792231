//! The tests of the planner.

mod inter;
mod intra;
mod solver;
