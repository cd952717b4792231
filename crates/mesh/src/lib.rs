//! Knows meshes, axis references, shardings and reshard planning; must not know graphs, ops, or what anything costs.
//!
//! - [`Mesh`]: named axes over ranks; [`AxisRef`]: an axis or a part of one.
//! - [`split_extents`]: the one rule by which a dimension is cut along axes.
//! - [`Sharding`]: how one tensor lies on a mesh; [`reshard`]: the steps from one layout to another, the
//!   cheapest by a [`LinkCost`].
//! - [`Slice`]: the ranks at one place along an axis, as a mesh of their own; [`transfer`]: what moves between two slices.
//! - [`oracle`]: what each rank holds and what a step does, spelled out naively; for tests.
#![forbid(unsafe_code)]

mod mesh;
pub mod oracle;
mod reshard;
mod search;
mod sharding;
mod slice;
mod split;
mod transfer;

pub use mesh::{Axis, AxisList, AxisRef, Mesh, rank_list};
pub use partita_base::Combiner;
pub use reshard::{LinkCost, ReshardStep, Step, permute_pairs, reshard};
pub use sharding::{DimSharding, Sharding};
pub use slice::Slice;
pub use split::{split_extents, split_offsets};
pub use transfer::{BoxMove, transfer};
