//! Prices the steps of a reshard, and finds the cheapest steps.

use crate::cluster::Cluster;
use crate::links::Collective;
use partita_mesh::{LinkCost, Mesh, ReshardStep, Sharding, Step, reshard};

/// Prices the reshards of one tensor on a mesh of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct ReshardCost<'a> {
    cluster: &'a Cluster,
    mesh: &'a Mesh,
    shape: &'a [usize],
    element_bytes: usize,
}

impl Cluster {
    /// Prices the reshards of a tensor of this global shape.
    pub fn reshard_cost<'a>(
        &'a self,
        mesh: &'a Mesh,
        shape: &'a [usize],
        element_bytes: usize,
    ) -> ReshardCost<'a> {
        ReshardCost { cluster: self, mesh, shape, element_bytes }
    }
}

impl ReshardCost<'_> {
    /// The cheapest steps found from one layout to another.
    pub fn steps(&self, from: &Sharding, to: &Sharding) -> Vec<ReshardStep> {
        reshard(self.mesh, from, to, self.shape, self)
    }

    /// Seconds of [`ReshardCost::steps`], one after another.
    pub fn reshard_s(&self, from: &Sharding, to: &Sharding) -> f64 {
        self.path_s(from, &self.steps(from, to))
    }

    /// Bytes of the largest shard.
    fn bytes(&self, sharding: &Sharding) -> f64 {
        (sharding.largest_local_elements(self.mesh, self.shape) * self.element_bytes) as f64
    }
}

impl LinkCost for ReshardCost<'_> {
    fn step_s(&self, before: &Sharding, step: &ReshardStep) -> f64 {
        let collective_s = |kind, bytes, axes: &[_]| self.cluster.collective_s(kind, bytes, self.mesh, axes);
        let (local_bytes, after_bytes) = (self.bytes(before), self.bytes(&step.after));
        match &step.step {
            // A local copy: read and written once.
            Step::Slice { .. } | Step::ToPartial { .. } => self.cluster.memory_s(2.0 * after_bytes),
            Step::AllGather { axes, .. } => collective_s(Collective::AllGather, after_bytes, axes),
            Step::AllReduce { axes, .. } => collective_s(Collective::AllReduce, local_bytes, axes),
            Step::ReduceScatter { axes, .. } => collective_s(Collective::ReduceScatter, local_bytes, axes),
            Step::AllToAll { axes, .. } => collective_s(Collective::AllToAll, local_bytes, axes),
            Step::Permute {} => {
                let mut axes = before.sharded_axes();
                axes.extend(step.after.sharded_axes());
                // Terms move too: of a sum over one axis to one over another.
                let [from, to] = [before.partial_axes(), step.after.partial_axes()];
                axes.extend(from.iter().filter(|axis| !to.contains(axis)).copied());
                axes.extend(to.iter().filter(|axis| !from.contains(axis)).copied());
                collective_s(Collective::Permute, local_bytes, &axes)
            }
        }
    }
}
