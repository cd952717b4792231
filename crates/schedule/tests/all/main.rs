//! Every integration test of the crate in one binary, which links once.

mod checkpoint;
mod common;
mod conformance;
mod differentiated;
mod effects;
mod explain;
mod imported;
mod patterns;
mod patterns_random;
mod plans;
mod random_schedules;
mod rates;
mod refusals;
mod schedule;
mod stages;
mod states;
mod worked_example;
