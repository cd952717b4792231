//! Plans, and the language in which they are written: styles, primitives, patterns, the fluent
//! schedule, and the build from a model and a plan to the local graphs of each rank. Knows
//! pipeline, spmd, nn, ir and mesh; must not know programs or the runtime.
//!
//! A [`Plan`] is data: lines of module globs and styles, which read and write as TOML. [`apply`]
//! turns them into layout annotations on a step graph; propagation derives everything else. A plan
//! places work and never changes what is computed.
#![forbid(unsafe_code)]

mod apply;
mod arrivals;
mod attention_choice;
mod build;
mod call;
mod contradictions;
mod differentiated;
mod effects;
pub mod explain;
pub mod feed;
mod flow;
mod gather;
mod glob;
mod listed;
mod modules;
mod offload;
pub mod passes;
mod pattern;
mod pins;
mod pipeline;
mod placement;
mod plan;
mod primitive;
mod python;
mod ready;
mod request;
mod schedule;
mod sides;
mod stages;
mod storage;
mod structure;
mod style;
mod sync;
pub mod tensors;
mod ulysses;
pub mod verify;
mod weights;

pub use apply::{Applied, ApplyOptions, apply, overruled_lines};
pub use attention_choice::choose_attention;
pub use build::{Built, reference_step};
pub use call::{Argument, Call};
pub use differentiated::Differentiated;
pub use effects::{Idle, check_axes, check_effects, unused_axes};
pub use glob::matches;
pub use passes::open_composites;
pub use pattern::{Match, Pattern};
pub use pipeline::mesh_of_stages;
pub use plan::{Entry, Plan};
pub use primitive::{Offloaded, Primitive, primitive_names};
pub use ready::{READY_PLANS, ReadyOptions, ready_plan, storage_plan, with_storage};
pub use request::{BuildOptions, BuildRequest, Source, StepKind};
pub use schedule::{At, ForwardOps, Schedule, Subgraphs};
pub use stages::{PIPELINE_AXIS, Stage, interpret, moves};
pub use structure::{BuildContext, Structured, Tag, reference_model, restructure};
pub use style::{Gather, Kind, Layout, Layouts, Style};
pub use sync::{MatrixLayout, SyncMode, SyncOp};
