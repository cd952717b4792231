//! Plan, primitives (declared styles now), the declarative surface. Knows spmd, nn, ir and mesh; must not know search
//! or the runtime.
//!
//! A [`Plan`] is data: lines of module globs and styles, readable and writable as TOML. [`apply`] turns it into layout
//! annotations on a step graph; everything else follows by propagation. A plan places work and never edits what is
//! computed.
#![forbid(unsafe_code)]

mod apply;
mod call;
mod flow;
mod glob;
mod modules;
mod pins;
mod placement;
mod plan;
mod primitive;
mod ready;
mod style;
pub mod verify;
mod weights;

pub use apply::{Applied, ApplyOptions, apply};
pub use call::{Argument, Call};
pub use glob::matches;
pub use plan::{Entry, Plan};
pub use primitive::{MatrixLayout, Primitive, SyncMode, SyncOp, primitive_names};
pub use ready::{READY_PLANS, ReadyOptions, ready_plan};
pub use style::{Kind, Layout, Style};
