//! The cost model: seconds of ops, collectives and reshards, from the figures of devices and links.
//! The search for reshards, the choice of splits, advice on meshes and `explain` all price with it.
//!
//! Knows: meshes and layouts. Must not know: graphs or ops. Nothing is measured here; the figures
//! are those of a [`Cluster`].
//!
//! - [`Cluster`]: devices and the levels of links between them; [`Cluster::ready`]: ready ones with
//!   figures.
//! - [`Others`]: ranks with other devices; [`Cluster::of_slice`]: the devices and links of a slice of a mesh.
//! - [`Fill`]: what a rank needs beside what its device holds.
//! - [`GPUS`]: devices of data sheets, from which `a100-80g:128x8` makes 128 nodes of 8.
//! - [`Device`]: a roofline with [`Curve`]s of efficiency; [`Device::op_s`]: the seconds of an op.
//! - [`Collective`], [`Ring`]: the seconds of a collective; [`Cluster::rings`]: the links that a
//!   group over mesh axes uses.
//! - [`Flows`]: how many ranks of a node exchange at the same time over the links that they share.
//! - [`ReshardCost`]: the seconds of the steps of a reshard, and the cheapest steps.
#![forbid(unsafe_code)]

mod cluster;
mod curve;
mod fill;
mod gpus;
mod links;
mod mixed;
mod ready;
mod reshard;
mod roofline;
mod sharing;

pub use cluster::{Cluster, Level};
pub use curve::Curve;
pub use fill::Fill;
pub use gpus::{GPUS, Gpu, gpu};
pub use links::{Algorithm, Collective, Link, Ring};
pub use mixed::Others;
pub use ready::READY;
pub use reshard::ReshardCost;
pub use roofline::{Device, DeviceTarget, Work};
pub use sharing::{Flows, Occupied, Port};
