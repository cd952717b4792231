//! The roofline of a device: the time of an op from its arithmetic and its memory traffic.

use crate::curve::Curve;
use partita_base::DType;
use std::collections::BTreeMap;

/// The work of an op on one device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Floating-point (or integer) operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// The element type of the arithmetic.
    pub dtype: DType,
}

/// Seconds from the request of a move between a device and its host to its first byte: that of a `cudaMemcpyAsync`, which
/// is a command to a copy engine of the device over PCIe.
const HOST_LATENCY_S: f64 = 10e-6;

/// What programs for a device are lowered for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceTarget {
    /// The cores of a machine.
    Cpu,
    /// A GPU.
    Gpu,
}

impl DeviceTarget {
    /// All of them.
    pub const ALL: [DeviceTarget; 2] = [DeviceTarget::Cpu, DeviceTarget::Gpu];

    /// Its name in a config.
    pub fn name(self) -> &'static str {
        match self {
            DeviceTarget::Cpu => "cpu",
            DeviceTarget::Gpu => "gpu",
        }
    }
}

/// One device of a cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    /// Its description for the user.
    pub kind: String,
    /// What its programs are lowered for.
    pub target: DeviceTarget,
    /// Operations per second in every element type that `flops_per_s_by_type` does not list.
    pub flops_per_s: f64,
    /// Operations per second by element type.
    pub flops_per_s_by_type: BTreeMap<DType, f64>,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Memory bandwidth in bytes per second, reads and writes together.
    pub memory_bytes_per_s: f64,
    /// Bytes of host memory for one device: its part of the memory of its node.
    pub host_bytes: u64,
    /// Bandwidth of its link to that memory, one way, in bytes per second; both ways at a time.
    pub host_bytes_per_s: f64,
    /// How far memory traffic overlaps with arithmetic: 0 adds their times, 1 takes the longer one,
    /// as in the roofline of S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful
    /// visual performance model for multicore architectures", 2009.
    pub overlap: f64,
    /// The part of its peak that an op reaches, by the number of operations of the fastest element type that take as long
    /// at its peak: so a kernel's constant time is the same in every type.
    pub flops_efficiency: Curve,
    /// The part of `memory_bytes_per_s` that an op reaches, by its number of bytes.
    pub memory_efficiency: Curve,
}

impl Device {
    /// Operations per second in an element type.
    pub fn peak(&self, dtype: DType) -> f64 {
        self.flops_per_s_by_type.get(&dtype).copied().unwrap_or(self.flops_per_s)
    }

    /// Seconds of so many operations in an element type.
    pub fn arithmetic_s(&self, flops: f64, dtype: DType) -> f64 {
        let fastest = self.flops_per_s_by_type.values().copied().fold(self.flops_per_s, f64::max);
        let seconds = flops / self.peak(dtype);
        seconds / self.flops_efficiency.at(seconds * fastest)
    }

    /// Seconds of an op.
    pub fn op_s(&self, work: &Work) -> f64 {
        let arithmetic_s = self.arithmetic_s(work.flops, work.dtype);
        let memory_s = self.memory_s(work.bytes);
        arithmetic_s.max(memory_s) + (1.0 - self.overlap) * arithmetic_s.min(memory_s)
    }

    /// Seconds to read and write `bytes` bytes in total.
    pub fn memory_s(&self, bytes: f64) -> f64 {
        bytes / (self.memory_bytes_per_s * self.memory_efficiency.at(bytes))
    }

    /// Seconds to move `bytes` bytes to host memory or from it.
    pub fn host_s(&self, bytes: f64) -> f64 {
        HOST_LATENCY_S + bytes / self.host_bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(overlap: f64) -> Device {
        Device {
            kind: "test".to_string(),
            flops_per_s: 100.0,
            flops_per_s_by_type: BTreeMap::from([(DType::BF16, 400.0)]),
            memory_bytes: 1,
            memory_bytes_per_s: 10.0,
            host_bytes: 1,
            host_bytes_per_s: 1.0,
            target: DeviceTarget::Cpu,
            overlap,
            flops_efficiency: Curve::default(),
            memory_efficiency: Curve::constant(0.5),
        }
    }

    #[test]
    fn a_constant_time_is_the_same_in_every_type() {
        // Half a second of constant time: n operations of the fastest type take n / 400 + 1 / 2 seconds.
        let points = (0..8).map(|power| 10f64.powi(power)).map(|n| (n, n / (n + 200.0)));
        let device = Device { flops_efficiency: Curve::new(points.collect()).unwrap(), ..device(1.0) };
        for (dtype, flops) in [(DType::BF16, 1000.0), (DType::F32, 250.0)] {
            assert!((device.arithmetic_s(flops, dtype) - 3.0).abs() < 1e-9, "{dtype:?}");
        }
        for (dtype, flops) in [(DType::BF16, 4.0), (DType::F32, 1.0)] {
            assert!((device.arithmetic_s(flops, dtype) - 0.51).abs() < 0.01, "{dtype:?}");
        }
    }

    #[test]
    fn arithmetic_and_memory_add_or_hide_each_other() {
        let work = Work { flops: 400.0, bytes: 10.0, dtype: DType::F32 };
        assert_eq!(device(0.0).op_s(&work), 4.0 + 2.0);
        assert_eq!(device(1.0).op_s(&work), 4.0);
        assert_eq!(device(0.5).op_s(&work), 4.0 + 1.0);
        assert_eq!(device(1.0).op_s(&Work { dtype: DType::BF16, ..work }), 2.0);
    }
}
