//! Meshes, layouts and the planning of reshards.
//!
//! Knows: meshes, axis references, shardings. Must not know: graphs, ops, or what anything costs.
//!
//! - [`Mesh`]: named axes over ranks; [`AxisRef`]: an axis or a part of one.
//! - [`AxisRole`]: what the name of an axis means, such as that `dp` shards the batch.
//! - [`split_extents`]: the rule by which a dimension is split along axes.
//! - [`Sharding`]: the layout of one tensor on a mesh; [`reshard`]: the steps from one layout to
//!   another, the cheapest by a [`LinkCost`].
//! - [`Slice`]: the ranks at one position along an axis, as a mesh; [`transfer`]: the data that
//!   moves between two slices.
//! - [`oracle`]: naive definitions of what each rank holds and of what a step does, for tests.
#![forbid(unsafe_code)]

mod mesh;
pub mod oracle;
mod reshard;
mod role;
mod search;
mod sharding;
mod slice;
mod split;
mod transfer;

pub use mesh::{Axis, AxisList, AxisRef, MAX_RANKS, Mesh, rank_list};
pub use partita_base::Combiner;
pub use reshard::{LinkCost, ReshardStep, Step, permute_pairs, reshard};
pub use role::AxisRole;
pub use sharding::{DimSharding, Sharding};
pub use slice::Slice;
pub use split::{split_extents, split_offsets};
pub use transfer::{BoxMove, once, transfer};
