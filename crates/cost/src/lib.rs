//! What a step costs: devices, links, and the seconds of ops, collectives and reshards. One model prices everything.
//!
//! Knows meshes and layouts; must not know graphs or ops. Nothing is measured here: figures are those of a [`Cluster`].
//!
//! - [`Cluster`]: devices and the levels of links between them; [`Cluster::ready`]: a few with figures.
//! - [`Device`]: a roofline with [`Curve`]s of efficiency; [`Device::op_s`]: the seconds of an op.
//! - [`Collective`], [`Ring`]: the seconds of a collective; [`Cluster::rings`]: the links that a group over mesh axes uses.
//! - [`ReshardCost`]: the seconds of the steps of a reshard, and the cheapest steps.
#![forbid(unsafe_code)]

mod cluster;
mod curve;
mod links;
mod ready;
mod reshard;
mod roofline;

pub use cluster::{Cluster, Level};
pub use curve::Curve;
pub use links::{Algorithm, Collective, Link, Ring};
pub use ready::READY;
pub use reshard::ReshardCost;
pub use roofline::{Device, Work};
