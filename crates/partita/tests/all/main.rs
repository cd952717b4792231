//! The library: layouts, counts, memory and numbers of planned steps, and the API of sessions.

mod choices;
mod classes;
mod collective_matmul;
mod complex;
mod counts;
mod custom_models;
mod equality;
mod estimate;
mod examples;
mod experts;
mod f8;
mod files;
mod fuzz;
mod head;
mod images;
mod imports;
mod infer;
mod keys;
mod long_context;
mod memory;
mod mixed;
mod offload;
mod optimizers;
mod paused;
mod pipeline;
mod pipelines;
mod pipelines_random;
mod pipelines_sweep;
mod planned;
mod precision;
mod predict;
mod pretrained;
mod published;
mod recorded;
mod refusals;
mod remat;
mod search;
mod slices;
mod staged;
mod storage;
mod sync;
mod threads;
mod trainer;
mod unfold;
mod xla;

use partita::Session;
use partita_testkit::overrides;

/// The session of a bundled config with overrides.
#[track_caller]
fn session(name: &str, items: &[&str]) -> Session {
    Session::load(name, &overrides(items)).unwrap_or_else(|error| panic!("{error}"))
}
