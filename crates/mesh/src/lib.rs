//! Knows meshes, axis references, shardings, reshard planning and cluster cost formulas; must not know graphs
//! or ops.
//!
//! - [`Mesh`]: named axes over ranks; [`AxisRef`]: an axis or a part of one.
//! - [`split_extents`]: the one rule by which a dimension is cut along axes.
//! - [`Sharding`]: how one tensor lies on a mesh; [`reshard`]: the steps from one layout to another.
//! - [`Slice`]: the ranks at one place along an axis, as a mesh of their own; [`transfer`]: what moves between two slices.
//! - [`Cluster`]: what links and devices cost.
//! - [`oracle`]: what each rank holds and what a step does, spelled out naively; for tests.
#![forbid(unsafe_code)]

mod cluster;
mod mesh;
pub mod oracle;
mod reshard;
mod search;
mod sharding;
mod slice;
mod split;
mod transfer;

pub use cluster::{Cluster, Link};
pub use mesh::{Axis, AxisList, AxisRef, Mesh, rank_list};
pub use partita_base::Combiner;
pub use reshard::{ReshardStep, Step, permute_pairs, reshard};
pub use sharding::{DimSharding, Sharding};
pub use slice::Slice;
pub use split::{split_extents, split_offsets};
pub use transfer::{BoxMove, transfer};
