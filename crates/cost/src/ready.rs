//! Ready clusters, with the sources of their figures.

use crate::cluster::{Cluster, Level};
use crate::curve::Curve;
use crate::gpus;
use crate::links::{Algorithm, Link};
use crate::roofline::{Device, DeviceTarget};
use partita_base::{DType, Diagnostic, Result, did_you_mean};
use std::collections::BTreeMap;

/// The names of the ready clusters; the first one is the default.
pub const READY: &[&str] = &["laptop", "a100-8", "h100-8", "h100-pod"];

/// Assumed efficiency of GPUs relative to their peaks, and latencies of links in seconds. The
/// efficiency is that of PyTorch's AutoParallel, for arithmetic and memory alike. The latencies are
/// those of NCCL's own model of a ring in its Simple protocol, over NVLink and over a network
/// (`hwLat` in NCCL's `tuning.cc`).
const GPU_EFFICIENCY: f64 = 0.7;
/// The part of the bandwidth of PCIe that copies reach: 12 GB/s of 16 on the DGX-2 of "ZeRO-Infinity" (Rajbhandari et al.,
/// arXiv 2104.07857, section 3).
pub(crate) const HOST_REACHED: f64 = 0.75;
pub(crate) const NVLINK_LATENCY_S: f64 = 3.4e-6;
pub(crate) const NETWORK_LATENCY_S: f64 = 14e-6;

impl Default for Cluster {
    /// The ranks of one process on the cores of one machine: round numbers for a desktop.
    fn default() -> Cluster {
        let device = Device {
            kind: "the cores of one machine".to_string(),
            target: DeviceTarget::Cpu,
            flops_per_s: 5e10,
            flops_per_s_by_type: BTreeMap::new(),
            memory_bytes: 4 << 30,
            memory_bytes_per_s: 1e10,
            // A file on a disk.
            host_bytes: 64 << 30,
            host_bytes_per_s: 1e9,
            overlap: 0.0,
            flops_efficiency: Curve::default(),
            memory_efficiency: Curve::default(),
        };
        let link = Link { latency_s: 5e-6, bytes_per_s: 4e9, algorithm: Algorithm::Ring };
        Cluster {
            name: READY[0].to_string(),
            device,
            others: Vec::new(),
            levels: vec![Level { ranks: None, link, links: None }],
            cores: None,
        }
    }
}

impl Cluster {
    /// The ready cluster of this name; E473 if there is none.
    ///
    /// - `laptop`: [`Cluster::default`].
    /// - `a100-8`: a DGX A100 with 8 GPUs of 80 GB (NVIDIA A100 data sheet: 19.5 TFLOPS in single
    ///   and double precision, 312 in bf16 and f16, 2.039 TB/s; NVLink 600 GB/s, sum of both
    ///   directions).
    /// - `h100-8`: a DGX H100 with 8 GPUs (NVIDIA H100 SXM data sheet: 67 TFLOPS in single and
    ///   double precision, 989 in bf16 and f16, 80 GB, 3.35 TB/s; NVLink 900 GB/s, sum of both
    ///   directions).
    ///
    ///   Both have PCIe of generations 4 and 5 with 32 and 64 GB/s for each GPU, and 2 TB of host memory.
    /// - `h100-pod`: any number of these, with 400 Gb/s of InfiniBand for each GPU (NVIDIA DGX H100
    ///   data sheet).
    /// - a device of [`crate::GPUS`] with a count: `a100-80g:128x8`, 128 nodes of 8; several of them joined by `+`, in the
    ///   order of their ranks. E477 for a malformed count, E471 for nodes of different sizes.
    pub fn ready(name: &str) -> Result<Cluster> {
        let gpus = |kind: &str, single: f64, half: f64, rates: [f64; 3]| {
            let [memory_bytes_per_s, nvlink_bytes_per_s, host_bytes_per_s] = rates;
            let device = Device {
                kind: kind.to_string(),
                target: DeviceTarget::Gpu,
                flops_per_s: single,
                flops_per_s_by_type: BTreeMap::from([(DType::BF16, half), (DType::F16, half)]),
                memory_bytes: 80_000_000_000,
                memory_bytes_per_s,
                host_bytes: 256 << 30,
                host_bytes_per_s: host_bytes_per_s * HOST_REACHED,
                overlap: 1.0,
                flops_efficiency: Curve::constant(GPU_EFFICIENCY),
                memory_efficiency: Curve::constant(GPU_EFFICIENCY),
            };
            let algorithm = Algorithm::Ring;
            let link = Link { latency_s: NVLINK_LATENCY_S, bytes_per_s: nvlink_bytes_per_s, algorithm };
            Cluster {
                name: name.to_string(),
                device,
                others: Vec::new(),
                levels: vec![Level { ranks: Some(8), link, links: None }],
                cores: None,
            }
        };
        let h100 = || gpus("NVIDIA H100 SXM", 67e12, 989e12, [3.35e12, 450e9, 64e9]);
        match name {
            "laptop" => Ok(Cluster::default()),
            "a100-8" => Ok(gpus("NVIDIA A100 SXM 80 GB", 19.5e12, 312e12, [2.039e12, 300e9, 32e9])),
            "h100-8" => Ok(h100()),
            "h100-pod" => {
                let mut pod = h100();
                let algorithm = Algorithm::Tree;
                let link = Link { latency_s: NETWORK_LATENCY_S, bytes_per_s: 50e9, algorithm };
                pod.levels.push(Level { ranks: None, link, links: None });
                Ok(pod)
            }
            _ => gpus::named(name).unwrap_or_else(|| {
                let mut error = Diagnostic::new("E473", format!("there is no cluster `{name}`")).expected(format!(
                    "one of {}; or a device with its count, such as a100-80g:128x8, of {}; or a TOML file",
                    READY.join(", "),
                    gpus::known_names()
                ));
                error.help = did_you_mean(name, READY.iter().copied()).or_else(|| gpus::near_name(name));
                Err(error)
            }),
        }
    }

    /// The name of the same devices with what a kernel takes beside its work, such as its launch, for a ready cluster whose
    /// efficiency is one round figure: small kernels cost nearly nothing there. `None` for any other.
    pub fn with_launches(&self) -> Option<&'static str> {
        let round = Curve::constant(GPU_EFFICIENCY);
        let is_round = self.device.flops_efficiency == round && self.device.memory_efficiency == round;
        let other = match self.name.as_str() {
            "a100-8" => "a100-80g:1x8",
            "h100-8" => "h100-80g:1x8",
            // Any number of nodes.
            "h100-pod" => "h100-80g:2x8",
            _ => return None,
        };
        is_round.then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_figures_have_a_name_with_launches() {
        for name in ["a100-8", "h100-8", "h100-pod"] {
            let cluster = Cluster::ready(name).unwrap();
            let other = Cluster::ready(cluster.with_launches().unwrap()).unwrap();
            assert!(other.with_launches().is_none(), "{name}");
            let family = |cluster: &Cluster| cluster.device.kind.split(' ').nth(1).unwrap_or("").to_string();
            assert_eq!(family(&other), family(&cluster));
            let per_node = |cluster: &Cluster| cluster.levels[0].ranks;
            assert_eq!(per_node(&other), per_node(&cluster));
            let own = Curve::constant(0.5);
            let device = Device { flops_efficiency: own, ..cluster.device.clone() };
            assert!(Cluster { device, ..cluster }.with_launches().is_none(), "figures of the user");
        }
        assert!(Cluster::default().with_launches().is_none());
    }

    #[test]
    fn ready_clusters_are_sound() {
        for name in READY {
            let cluster = Cluster::ready(name).unwrap();
            cluster.check().unwrap();
            assert_eq!(cluster.name, *name);
        }
        assert_eq!(Cluster::ready(READY[0]).unwrap(), Cluster::default());
        let error = Cluster::ready("h100-pot").unwrap_err();
        assert_eq!((error.code, error.help.as_deref()), ("E473", Some("did you mean `h100-pod`?")));
    }
}
