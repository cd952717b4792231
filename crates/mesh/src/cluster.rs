//! What a cluster costs: roofline devices and alpha-beta links. Seconds, bytes and flops, nothing measured here.
//!
//! A collective over several axes goes ring by ring, axis by axis: each axis adds its own hops of latency, and the
//! bytes are paid at the slowest link among them. Ring formulas as in R. Thakur, R. Rabenseifner, W. Gropp,
//! "Optimization of Collective Communication Operations in MPICH", 2005.

use crate::mesh::{AxisRef, Mesh};
use crate::reshard::{ReshardStep, Step, reshard};
use crate::sharding::Sharding;

/// One hop along a mesh axis.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Link {
    /// Seconds a message takes, however short.
    pub latency_s: f64,
    /// Bytes per second and rank, each way.
    pub bytes_per_s: f64,
}

/// The speed of the devices of a mesh and of the links along its axes.
#[derive(Clone, PartialEq, PartialOrd, Debug)]
pub struct Cluster {
    /// Floating-point operations per second of one device.
    pub device_flops_per_s: f64,
    /// Memory traffic per second of one device, reads and writes together.
    pub device_bytes_per_s: f64,
    /// One per mesh axis.
    pub links: Vec<Link>,
    /// Memory of one device.
    pub device_memory_bytes: u64,
}

impl Cluster {
    /// The ranks of one process on the cores of one machine: round numbers of a desktop, the same link on each axis.
    pub fn uniform(mesh: &Mesh) -> Cluster {
        Cluster {
            device_flops_per_s: 5e10,
            device_bytes_per_s: 1e10,
            links: vec![Link { latency_s: 5e-6, bytes_per_s: 4e9 }; mesh.axes.len()],
            device_memory_bytes: 4 << 30,
        }
    }

    /// Seconds to gather tensors that together have `full_bytes`, so that each rank holds all of it.
    pub fn all_gather_s(&self, mesh: &Mesh, axes: &[AxisRef], full_bytes: f64) -> f64 {
        self.ring_s(mesh, axes, full_bytes)
    }

    /// Seconds to combine tensors of `full_bytes` each, so that each rank holds the result.
    pub fn all_reduce_s(&self, mesh: &Mesh, axes: &[AxisRef], full_bytes: f64) -> f64 {
        2.0 * self.ring_s(mesh, axes, full_bytes)
    }

    /// Seconds to combine tensors of `full_bytes` each, so that each rank holds its part of the result.
    pub fn reduce_scatter_s(&self, mesh: &Mesh, axes: &[AxisRef], full_bytes: f64) -> f64 {
        self.ring_s(mesh, axes, full_bytes)
    }

    /// Seconds for each rank to send an equal share of its `local_bytes` to each rank of its group.
    pub fn all_to_all_s(&self, mesh: &Mesh, axes: &[AxisRef], local_bytes: f64) -> f64 {
        self.ring_s(mesh, axes, local_bytes)
    }

    /// Seconds for each rank to send its `local_bytes` to one other rank, along any of `axes`.
    pub fn permute_s(&self, mesh: &Mesh, axes: &[AxisRef], local_bytes: f64) -> f64 {
        if mesh.axes_size(axes) <= 1 {
            return 0.0;
        }
        let latency_s = axes.iter().map(|a| self.links[a.axis].latency_s).fold(0.0, f64::max);
        latency_s + local_bytes / self.slowest_bytes_per_s(axes)
    }

    /// Seconds of one step of a [`reshard`] of a tensor of this global shape; `before` is the layout it starts from.
    pub fn step_s(
        &self,
        mesh: &Mesh,
        shape: &[usize],
        dtype_bytes: usize,
        before: &Sharding,
        step: &ReshardStep,
    ) -> f64 {
        let bytes = |s: &Sharding| (s.largest_local_elements(mesh, shape) * dtype_bytes) as f64;
        let (local_bytes, after_bytes) = (bytes(before), bytes(&step.after));
        match &step.step {
            // A local copy: read and written once.
            Step::Slice { .. } | Step::ToPartial { .. } => 2.0 * after_bytes / self.device_bytes_per_s,
            Step::AllGather { axes, .. } => self.all_gather_s(mesh, axes, after_bytes),
            Step::AllReduce { axes, .. } => self.all_reduce_s(mesh, axes, local_bytes),
            Step::ReduceScatter { axes, .. } => self.reduce_scatter_s(mesh, axes, local_bytes),
            Step::AllToAll { axes, .. } => self.all_to_all_s(mesh, axes, local_bytes),
            Step::Permute {} => {
                let mut axes = before.sharded_axes();
                axes.extend(step.after.sharded_axes());
                self.permute_s(mesh, &axes, local_bytes)
            }
        }
    }

    /// Seconds of all steps of [`reshard`] from one layout to another, one after the other.
    pub fn reshard_s(
        &self,
        mesh: &Mesh,
        shape: &[usize],
        dtype_bytes: usize,
        from: &Sharding,
        to: &Sharding,
    ) -> f64 {
        let mut before = from.clone();
        let mut total_s = 0.0;
        for step in reshard(mesh, from, to, shape) {
            total_s += self.step_s(mesh, shape, dtype_bytes, &before, &step);
            before = step.after;
        }
        total_s
    }

    /// One trip around the rings of `axes`, past which each rank has sent all but its own share of `bytes`.
    fn ring_s(&self, mesh: &Mesh, axes: &[AxisRef], bytes: f64) -> f64 {
        let ranks = mesh.axes_size(axes) as f64;
        if ranks <= 1.0 {
            return 0.0;
        }
        let latency_s: f64 = axes.iter().map(|a| self.links[a.axis].latency_s * (a.size - 1) as f64).sum();
        latency_s + (ranks - 1.0) / ranks * bytes / self.slowest_bytes_per_s(axes)
    }

    fn slowest_bytes_per_s(&self, axes: &[AxisRef]) -> f64 {
        axes.iter()
            .filter(|a| a.size > 1)
            .map(|a| self.links[a.axis].bytes_per_s)
            .fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::Combiner;

    fn setting() -> (Mesh, Cluster) {
        let mesh = Mesh::new("m", &[("dp", 2), ("tp", 4)]);
        let links =
            vec![Link { latency_s: 1.0, bytes_per_s: 10.0 }, Link { latency_s: 0.25, bytes_per_s: 100.0 }];
        let cluster =
            Cluster { device_flops_per_s: 1.0, device_bytes_per_s: 50.0, links, device_memory_bytes: 1 };
        (mesh, cluster)
    }

    #[test]
    fn collectives_cost_hops_and_the_slowest_link() {
        let (mesh, cluster) = setting();
        let (dp, tp) = (mesh.full_axis(0), mesh.full_axis(1));
        assert_eq!(cluster.all_gather_s(&mesh, &[tp], 400.0), 0.75 + 3.0);
        assert_eq!(cluster.all_reduce_s(&mesh, &[tp], 400.0), 2.0 * (0.75 + 3.0));
        assert_eq!(cluster.reduce_scatter_s(&mesh, &[dp], 400.0), 1.0 + 20.0);
        assert_eq!(cluster.all_to_all_s(&mesh, &[dp, tp], 400.0), 1.75 + 35.0);
        assert_eq!(cluster.permute_s(&mesh, &[dp, tp], 400.0), 1.0 + 40.0);
        assert_eq!(cluster.all_gather_s(&mesh, &[], 400.0), 0.0);
    }

    #[test]
    fn a_reshard_costs_its_steps() {
        let (mesh, cluster) = setting();
        let tp = mesh.full_axis(1);
        let whole = Sharding::replicated(1);
        let cut = whole.clone().with_dim(0, [tp]);
        let partial = whole.clone().with_partial([tp], Combiner::Sum);
        let cost = |from, to| cluster.reshard_s(&mesh, &[100], 4, from, to);
        assert_eq!(cost(&cut, &whole), 0.75 + 3.0);
        assert_eq!(cost(&partial, &whole), 2.0 * (0.75 + 3.0));
        assert_eq!(cost(&partial, &cut), 0.75 + 3.0);
        assert_eq!(cost(&whole, &cut), 2.0 * 100.0 / 50.0);
        assert_eq!(cost(&cut, &cut), 0.0);
    }
}
