//! What the name of a mesh axis means. A name that is not in the table is the user's own: nothing is sharded over it unless
//! a line of the plan says so.

use crate::mesh::{AxisRef, Mesh};

/// What a mesh axis with a built-in name is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum AxisRole {
    /// `dp`: shards the batch and replicates parameters.
    Data,
    /// `fsdp`: shards the batch, parameters, gradients and optimizer states.
    Parameters,
    /// `ep`: shards the batch, and experts among the ranks.
    Experts,
    /// `sp`: shards sequences of tokens and the height of images.
    Sequence,
    /// `cp`: as `sp`; a line of the plan says how attention works on shards of its sequences.
    Context,
    /// `tp`: shards attention heads and hidden features, by the lines of the plan.
    Model,
    /// `pp`: splits the model into pipeline stages.
    Stages,
}

impl AxisRole {
    /// Every role, in the order of messages and tables.
    pub const ALL: [AxisRole; 7] = [
        AxisRole::Data,
        AxisRole::Parameters,
        AxisRole::Experts,
        AxisRole::Sequence,
        AxisRole::Context,
        AxisRole::Model,
        AxisRole::Stages,
    ];

    /// The role of an axis of this name; `None` for a name of the user's own.
    pub fn from_axis(name: &str) -> Option<AxisRole> {
        AxisRole::ALL.into_iter().find(|role| role.axis() == name)
    }

    /// The name of the axis: `dp`.
    pub const fn axis(self) -> &'static str {
        match self {
            AxisRole::Data => "dp",
            AxisRole::Parameters => "fsdp",
            AxisRole::Experts => "ep",
            AxisRole::Sequence => "sp",
            AxisRole::Context => "cp",
            AxisRole::Model => "tp",
            AxisRole::Stages => "pp",
        }
    }

    /// Whether the axis shards the batch: dimension 0 of every tensor that a step is fed.
    pub const fn shards_batch(self) -> bool {
        matches!(self, AxisRole::Data | AxisRole::Parameters | AxisRole::Experts)
    }

    /// Whether the axis shards sequences: dimension 1 of tokens `[batch, sequence]` and of images
    /// `[batch, height, width, channels]`.
    pub const fn shards_sequence(self) -> bool {
        matches!(self, AxisRole::Sequence | AxisRole::Context)
    }

    /// Whether ranks along the axis work on different parts of the batch: its rows, or its sequences. They hold the same
    /// parameters and optimizer states, unless those are sharded too.
    pub const fn shards_data(self) -> bool {
        self.shards_batch() || self.shards_sequence()
    }

    /// The names of all roles, with commas in between: what a message lists.
    pub fn names() -> String {
        AxisRole::ALL.map(AxisRole::axis).join(", ")
    }
}

impl Mesh {
    /// The role of an axis by its position; `None` for a name of the user's own.
    pub fn role(&self, axis: usize) -> Option<AxisRole> {
        AxisRole::from_axis(&self.axes[axis].name)
    }

    /// The axis with a role.
    pub fn axis_of(&self, role: AxisRole) -> Option<AxisRef> {
        self.axis_named(role.axis())
    }

    /// The ranks along the axis with a role: 1 if the mesh has none.
    pub fn size_of(&self, role: AxisRole) -> usize {
        self.axis_of(role).map_or(1, |axis| axis.size)
    }

    /// The axes whose role has a property, in mesh order.
    pub fn axes_where(&self, has: fn(AxisRole) -> bool) -> Vec<AxisRef> {
        let all = (0..self.axes.len()).filter(|&axis| self.role(axis).is_some_and(has));
        all.map(|axis| self.full_axis(axis)).collect()
    }

    /// The number of shards of the batch: the product of the axes that shard it.
    pub fn batch_shards(&self) -> usize {
        self.axes_size(&self.axes_where(AxisRole::shards_batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_found_by_its_name() {
        for role in AxisRole::ALL {
            assert_eq!(AxisRole::from_axis(role.axis()), Some(role));
        }
        assert_eq!(AxisRole::from_axis("model"), None);
        assert_eq!(AxisRole::names(), "dp, fsdp, ep, sp, cp, tp, pp");
    }

    #[test]
    fn a_mesh_knows_its_roles() {
        let mesh = Mesh::new("mesh", &[("tp", 2), ("fsdp", 3), ("own", 5), ("dp", 7)]);
        assert_eq!(mesh.batch_shards(), 21);
        let names: Vec<usize> =
            mesh.axes_where(AxisRole::shards_batch).iter().map(|axis| axis.axis).collect();
        assert_eq!(names, [1, 3]);
        assert_eq!([AxisRole::Model, AxisRole::Stages].map(|role| mesh.size_of(role)), [2, 1]);
        assert_eq!((mesh.role(2), mesh.role(3)), (None, Some(AxisRole::Data)));
    }
}
