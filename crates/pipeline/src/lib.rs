//! Pipeline stages: where a step is cut, which values cross, and in which order each stage works.
//!
//! A stage is the part of a step that one slice of the mesh runs. [`mark`] assigns each node to a
//! stage, [`cut()`] turns one step into a graph per stage with edges between them, and a
//! [`Timetable`] orders the work of all stages: a named one of [`timetables`], or one from a CSV
//! file. A step without a pipeline is one stage without edges.
//!
//! Knows: graphs and the phases and microbatches of their nodes. Must not know: layouts, plans,
//! programs.
#![forbid(unsafe_code)]

mod chart;
mod csv;
mod cut;
mod feed;
mod layers;
pub mod mark;
mod order;
mod times;
mod timetable;
pub mod timetables;

pub use cut::{Cut, Edge, Sink, Source, StageGraph, cut};
pub use feed::from_feed;
pub use layers::{crossing_bytes, layers};
pub use mark::block_of;
pub use order::Order;
pub use times::Times;
pub use timetable::{Task, TaskKind, Timetable};
