//! The devices of published measurements, and clusters of equal nodes of them: `a100-80g:128x8`.
//!
//! Facts are those of data sheets. Beside them stand the best matmul that was measured on the device, which bounds the
//! efficiency of large matmuls, and few assumptions of our own, which are named as constants. Sources by device:
//!
//! - V100, A100, H100, H200, B200, GB200: NVIDIA's data sheets for FLOP/s without sparsity (the tensor cores of V100 take
//!   f16 alone: NVIDIA, "Tesla V100 GPU Architecture"), memory, bandwidth and NVLink; the network of NVIDIA's own systems of
//!   that time: DGX-1V 4 x 100 Gb/s a node of 8, DGX A100 8 x 200 Gb/s,
//!   DGX H100, H200 and B200 8 x 400 Gb/s.
//! - A800: as A100, with NVLink cut to 400 GB/s, the sum of both directions.
//! - H100 96 GB: the HBM2e parts of Grand Teton with 500 W, as torchtitan's benchmark of December 2024 describes them.
//! - Best matmuls: S. Bekman, "Machine Learning Engineering", accelerator benchmarks (MAMF, torch 2.6): 271.2 of 312
//!   TFLOP/s on A100, 794.5 of 989 on H100, 1745 of 2250 on B200, 1822 of 2500 on GB200.
//! - Host memory, divided by the devices of a node, as MLCommons publishes the systems of its benchmarks: DGX-1V 512 GB
//!   (`training_results_v0.7`, `NVIDIA/systems/dgx1_*`), DGX A100 2 TB (`training_results_v1.0`, `dgxa100_*`; the system
//!   with 40 GB a device is sold with 1 TB, which is taken here: NVIDIA, "DGX A100 Data Sheet"), DGX H100 2 TB
//!   (`training_results_v3.0`, `dgxh100_*`), H200 2 TB (`inference_results_v4.1`, `H200-SXM-141GBx8_*`), B200 32 x 64 GB
//!   (`inference_results_v6.0`, `nebius_b200_n1`), TPU v4 512 GB for four (`training_results_v1.0`, `tpu-v4-128-*`); GB200:
//!   480 GB of a Grace for two devices (NVIDIA, "GB200 NVL72").
//! - Its link, one way: PCIe x16 of 16 GB/s (3.0: V100, and TPU v4 for want of a published figure), 32 GB/s (4.0: A100) or
//!   64 GB/s (5.0: H100, H200, B200, in the same descriptions of systems); GB200: NVLink-C2C, 900 GB/s both ways for the two
//!   devices of a Grace, 225 GB/s one way for each.
//! - TPU v4: Google Cloud, "TPU v4": 275 TFLOP/s in bf16, 32 GiB, 1200 GB/s; six links of 45 GB/s in a torus.

use crate::cluster::{Cluster, Level};
use crate::curve::Curve;
use crate::links::{Algorithm, Link};
use crate::mixed::Others;
use crate::ready::{HOST_REACHED, NETWORK_LATENCY_S, NVLINK_LATENCY_S};
use crate::roofline::{Device, DeviceTarget};
use partita_base::{DType, Diagnostic, Result, did_you_mean};

/// A device as its data sheet describes it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gpu {
    /// Its short name, and other names of it.
    pub names: &'static [&'static str],
    /// Its name for people.
    pub kind: &'static str,
    /// Operations per second of a matmul in half precision.
    pub half_flops_per_s: f64,
    /// The types of half precision that its matrix units multiply; in others a matmul is as fast as in single precision.
    pub half_types: &'static [DType],
    /// Operations per second in single precision outside of matmul units.
    pub single_flops_per_s: f64,
    /// Operations per second of a matmul in 8 bits; 0 if it has none.
    pub eighth_flops_per_s: f64,
    /// The part of the peak that the best measured matmul reaches.
    pub best_matmul: f64,
    /// Memory in GiB.
    pub memory_gib: u64,
    /// Memory bandwidth in bytes per second.
    pub memory_bytes_per_s: f64,
    /// Bandwidth of one device within its domain, one way, in bytes per second.
    pub near_bytes_per_s: f64,
    /// Devices of a domain.
    pub domain: usize,
    /// Network of one device, one way, in bytes per second.
    pub far_bytes_per_s: f64,
    /// Host memory of one device in GiB: that of a node divided by its devices.
    pub host_gib: u64,
    /// Link to that memory, one way, in bytes per second.
    pub host_bytes_per_s: f64,
}

/// Seconds that a kernel takes beyond its arithmetic or its memory traffic: launch, first and last wave.
const KERNEL_S: f64 = 4e-6;
/// The part of the memory bandwidth that a large elementwise kernel reaches.
const BEST_COPY: f64 = 0.85;

/// Types of half precision of most matrix units.
const BOTH_HALVES: &[DType] = &[DType::BF16, DType::F16];

/// Every device.
pub const GPUS: &[Gpu] = &[
    Gpu {
        names: &["v100-16g", "V100-SXM2-16GB"],
        kind: "NVIDIA V100 SXM2 16 GB",
        half_flops_per_s: 125e12,
        half_types: &[DType::F16],
        single_flops_per_s: 15.7e12,
        eighth_flops_per_s: 0.0,
        best_matmul: 0.8,
        memory_gib: 16,
        memory_bytes_per_s: 900e9,
        near_bytes_per_s: 150e9,
        domain: 8,
        far_bytes_per_s: 6.25e9,
        host_gib: 64,
        host_bytes_per_s: 16e9,
    },
    Gpu {
        names: &["v100-32g", "V100-SXM2-32GB", "V100-SXM3-32GB"],
        kind: "NVIDIA V100 SXM2 32 GB",
        half_flops_per_s: 125e12,
        half_types: &[DType::F16],
        single_flops_per_s: 15.7e12,
        eighth_flops_per_s: 0.0,
        best_matmul: 0.8,
        memory_gib: 32,
        memory_bytes_per_s: 900e9,
        near_bytes_per_s: 150e9,
        domain: 8,
        far_bytes_per_s: 6.25e9,
        host_gib: 64,
        host_bytes_per_s: 16e9,
    },
    Gpu {
        names: &["a100-40g", "A100-SXM-40GB"],
        kind: "NVIDIA A100 SXM 40 GB",
        half_flops_per_s: 312e12,
        half_types: BOTH_HALVES,
        single_flops_per_s: 19.5e12,
        eighth_flops_per_s: 0.0,
        best_matmul: 0.869,
        memory_gib: 40,
        memory_bytes_per_s: 1.555e12,
        near_bytes_per_s: 300e9,
        domain: 8,
        far_bytes_per_s: 25e9,
        host_gib: 128,
        host_bytes_per_s: 32e9,
    },
    Gpu {
        names: &["a100-80g", "A100-SXM-80GB"],
        kind: "NVIDIA A100 SXM 80 GB",
        half_flops_per_s: 312e12,
        half_types: BOTH_HALVES,
        single_flops_per_s: 19.5e12,
        eighth_flops_per_s: 0.0,
        best_matmul: 0.869,
        memory_gib: 80,
        memory_bytes_per_s: 2.039e12,
        near_bytes_per_s: 300e9,
        domain: 8,
        far_bytes_per_s: 25e9,
        host_gib: 256,
        host_bytes_per_s: 32e9,
    },
    Gpu {
        names: &["a800-80g", "A800-SXM-80GB"],
        kind: "NVIDIA A800 SXM 80 GB",
        half_flops_per_s: 312e12,
        half_types: BOTH_HALVES,
        single_flops_per_s: 19.5e12,
        eighth_flops_per_s: 0.0,
        best_matmul: 0.869,
        memory_gib: 80,
        memory_bytes_per_s: 2.039e12,
        near_bytes_per_s: 200e9,
        domain: 8,
        far_bytes_per_s: 25e9,
        host_gib: 256,
        host_bytes_per_s: 32e9,
    },
    Gpu {
        names: &["h100-80g", "H100-SXM-80GB"],
        kind: "NVIDIA H100 SXM 80 GB",
        half_flops_per_s: 989e12,
        half_types: BOTH_HALVES,
        single_flops_per_s: 67e12,
        eighth_flops_per_s: 1979e12,
        best_matmul: 0.803,
        memory_gib: 80,
        memory_bytes_per_s: 3.35e12,
        near_bytes_per_s: 450e9,
        domain: 8,
        far_bytes_per_s: 50e9,
        host_gib: 256,
        host_bytes_per_s: 64e9,
    },
    Gpu {
        names: &["h100-96g", "H100-SXM-96GB-HBM2e-500W"],
        kind: "NVIDIA H100 SXM 96 GB HBM2e 500 W",
        half_flops_per_s: 989e12,
        half_types: BOTH_HALVES,
        single_flops_per_s: 67e12,
        eighth_flops_per_s: 1979e12,
        best_matmul: 0.7,
        memory_gib: 96,
        memory_bytes_per_s: 2.4e12,
        near_bytes_per_s: 450e9,
        domain: 8,
        far_bytes_per_s: 50e9,
        host_gib: 256,
        host_bytes_per_s: 64e9,
    },
    Gpu {
        names: &["h200-141g", "H200-SXM-141GB", "H200-SXM"],
        kind: "NVIDIA H200 SXM",
        half_flops_per_s: 989e12,
        half_types: BOTH_HALVES,
        single_flops_per_s: 67e12,
        eighth_flops_per_s: 1979e12,
        best_matmul: 0.803,
        memory_gib: 141,
        memory_bytes_per_s: 4.8e12,
        near_bytes_per_s: 450e9,
        domain: 8,
        far_bytes_per_s: 50e9,
        host_gib: 256,
        host_bytes_per_s: 64e9,
    },
    Gpu {
        names: &["b200-180g", "B200-SXM-180GB", "B200-SXM"],
        kind: "NVIDIA B200 SXM",
        half_flops_per_s: 2250e12,
        half_types: BOTH_HALVES,
        single_flops_per_s: 80e12,
        eighth_flops_per_s: 4500e12,
        best_matmul: 0.776,
        memory_gib: 180,
        memory_bytes_per_s: 8e12,
        near_bytes_per_s: 900e9,
        domain: 8,
        far_bytes_per_s: 50e9,
        host_gib: 256,
        host_bytes_per_s: 64e9,
    },
    Gpu {
        names: &["gb200-186g", "GB200-NVL72-186GB", "GB200"],
        kind: "NVIDIA GB200 NVL72",
        half_flops_per_s: 2500e12,
        half_types: BOTH_HALVES,
        single_flops_per_s: 80e12,
        eighth_flops_per_s: 5000e12,
        best_matmul: 0.729,
        memory_gib: 186,
        memory_bytes_per_s: 8e12,
        near_bytes_per_s: 900e9,
        domain: 72,
        far_bytes_per_s: 50e9,
        host_gib: 240,
        host_bytes_per_s: 225e9,
    },
    Gpu {
        names: &["tpu-v4", "TPU-v4-32GB", "TPU-v4"],
        kind: "Google TPU v4",
        half_flops_per_s: 275e12,
        half_types: &[DType::BF16],
        single_flops_per_s: 34.375e12,
        eighth_flops_per_s: 0.0,
        best_matmul: 0.85,
        memory_gib: 32,
        memory_bytes_per_s: 1.2e12,
        near_bytes_per_s: 270e9,
        domain: 4096,
        far_bytes_per_s: 6.25e9,
        host_gib: 128,
        host_bytes_per_s: 16e9,
    },
];

/// The device of a short name or another name of it.
pub fn gpu(name: &str) -> Option<&'static Gpu> {
    GPUS.iter().find(|gpu| gpu.names.iter().any(|known| known.eq_ignore_ascii_case(name)))
}

impl Gpu {
    /// One device, as the cost model sees it.
    fn device(&self) -> Device {
        let half = self.half_flops_per_s;
        // A matmul takes a kernel's constant time beside the time at its best rate.
        let reached = |best: f64, per_s: f64| {
            let constant = KERNEL_S * per_s * best;
            Curve::new(
                (0..17).map(|power| 10f64.powi(power)).map(|n| (n, best * n / (n + constant))).collect(),
            )
            .expect("more work takes longer")
        };
        Device {
            kind: self.kind.to_string(),
            target: DeviceTarget::Gpu,
            flops_per_s: self.single_flops_per_s,
            flops_per_s_by_type: self.half_types.iter().map(|&dtype| (dtype, half)).collect(),
            memory_bytes: self.memory_gib << 30,
            memory_bytes_per_s: self.memory_bytes_per_s,
            host_bytes: self.host_gib << 30,
            host_bytes_per_s: self.host_bytes_per_s * HOST_REACHED,
            overlap: 1.0,
            flops_efficiency: reached(self.best_matmul, half),
            memory_efficiency: reached(BEST_COPY, self.memory_bytes_per_s),
        }
    }

    /// The links within a node, and those between nodes.
    fn links(&self) -> [Link; 2] {
        let link = |latency_s, bytes_per_s, algorithm| Link { latency_s, bytes_per_s, algorithm };
        [
            link(NVLINK_LATENCY_S, self.near_bytes_per_s, Algorithm::Ring),
            link(NETWORK_LATENCY_S, self.far_bytes_per_s, Algorithm::Tree),
        ]
    }

    /// So many nodes of so many devices; `far` and `near` replace bandwidths of the data sheet, in bytes per second.
    pub fn cluster(
        &self,
        nodes: Option<usize>,
        per_node: usize,
        near: Option<f64>,
        far: Option<f64>,
    ) -> Cluster {
        let [mut of_node, mut network] = self.links();
        of_node.bytes_per_s = near.unwrap_or(of_node.bytes_per_s);
        network.bytes_per_s = far.unwrap_or(network.bytes_per_s);
        let levels = levels(nodes, per_node, of_node, network);
        Cluster {
            name: self.names[0].to_string(),
            device: self.device(),
            others: Vec::new(),
            levels,
            cores: None,
        }
    }
}

/// The levels of so many nodes of so many devices: within a node, and between nodes if there are several.
fn levels(nodes: Option<usize>, per_node: usize, near: Link, far: Link) -> Vec<Level> {
    let mut levels = Vec::new();
    if per_node > 1 {
        levels.push(Level { ranks: Some(per_node), link: near, links: None });
    }
    if nodes != Some(1) || levels.is_empty() {
        levels.push(Level { ranks: nodes.map(|nodes| nodes * per_node), link: far, links: None });
    }
    levels
}

/// A cluster of a named device: `a100-80g`, any number of nodes of a domain each; `a100-80g:16`, that many devices;
/// `a100-80g:128x8`, 128 nodes of 8; `a100-80g:1x8+v100-32g:2x8`, nodes of different devices in this order. `None` if no
/// device has this name.
///
/// # Errors
/// E477 for counts that are none, with the column where they begin; in a sum E473 for an unknown device, and E471 for nodes
/// of different numbers of devices.
pub(crate) fn named(name: &str) -> Option<Result<Cluster>> {
    if name.contains('+') {
        let is_device = |part: &str| gpu(part.split(':').next().unwrap_or(part)).is_some();
        return name.split('+').any(is_device).then(|| mixed(name));
    }
    let (device, counts) =
        name.split_once(':').map_or((name, None), |(device, counts)| (device, Some(counts)));
    let gpu = gpu(device)?;
    let cluster = match counts {
        None => Ok(gpu.cluster(None, gpu.domain, None, None)),
        Some(_) => {
            counted(name, 0, gpu).map(|(nodes, per_node)| gpu.cluster(Some(nodes), per_node, None, None))
        }
    };
    Some(cluster.map(|cluster| Cluster { name: name.to_string(), ..cluster }))
}

/// The nodes and the devices of each in the part of a name that begins at a place: `a100-80g:128x8`.
fn counted(name: &str, begin: usize, gpu: &Gpu) -> Result<(usize, usize)> {
    let part = name[begin..].split('+').next().unwrap_or_default();
    let (device, counts) = part.split_once(':').unwrap_or((part, ""));
    let refused = |column: usize, found: &str| {
        Diagnostic::new("E477", "malformed count of devices in the name of a cluster")
            .at(format!("`{name}`, column {}", begin + device.len() + 2 + column))
            .expected("NODESxDEVICES such as 128x8, or a number of devices, at most 1048576 in all")
            .found(format!("`{found}`"))
    };
    let count = |column: usize, text: &str| match text.parse::<usize>() {
        Ok(count) if (1..=MAX_DEVICES).contains(&count) => Ok(count),
        _ => Err(refused(column, text)),
    };
    let (nodes, per_node) = match counts.split_once('x') {
        Some((nodes, per_node)) => (count(0, nodes)?, count(nodes.len() + 1, per_node)?),
        None => {
            let devices = count(0, counts)?;
            if devices <= gpu.domain {
                (1, devices)
            } else if devices.is_multiple_of(gpu.domain) {
                (devices / gpu.domain, gpu.domain)
            } else {
                return Err(refused(0, counts).help(format!("a node has {} devices", gpu.domain)));
            }
        }
    };
    match nodes.saturating_mul(per_node) > MAX_DEVICES {
        true => Err(refused(0, counts)),
        false => Ok((nodes, per_node)),
    }
}

/// A cluster of nodes of different devices: `a100-80g:1x8+v100-32g:2x8`. Its ranks are numbered in this order; those of each
/// kind have the links of their data sheet, and a connection is as fast as its slower end.
fn mixed(name: &str) -> Result<Cluster> {
    let mut kinds: Vec<(usize, &Gpu)> = Vec::new();
    let (mut begin, mut nodes, mut devices, mut per_node) = (0, 0, 0, None);
    for part in name.split('+') {
        let device = part.split(':').next().unwrap_or(part);
        let gpu = gpu(device).ok_or_else(|| {
            let mut error = Diagnostic::new("E473", format!("there is no device `{device}`"))
                .at(format!("`{name}`, column {}", begin + 1))
                .expected(format!("one of {}", known_names()));
            error.help = near_name(device);
            error
        })?;
        let (own, own_per_node) = counted(name, begin, gpu)?;
        let each = *per_node.get_or_insert(own_per_node);
        if own_per_node != each {
            return Err(Diagnostic::new(
                "E471",
                "the nodes of the cluster have different numbers of devices",
            )
            .at(format!("`{name}`, column {}", begin + 1))
            .expected(format!("nodes of {each} devices, as before it"))
            .found(format!("nodes of {own_per_node}"))
            .help("write nodes as several smaller ones of equal size: 1x8 is also 2x4"));
        }
        kinds.push((devices, gpu));
        (begin, nodes, devices) = (begin + part.len() + 1, nodes + own, devices + own * own_per_node);
    }
    if devices > MAX_DEVICES {
        return Err(Diagnostic::new("E477", "malformed count of devices in the name of a cluster")
            .at(format!("`{name}`"))
            .expected(format!("at most {MAX_DEVICES} devices in all"))
            .found(devices.to_string()));
    }
    let (_, first) = kinds[0];
    let cluster = first.cluster(Some(nodes), per_node.unwrap_or(1), None, None);
    let other = |&(first, gpu): &(usize, &Gpu)| {
        let of_kind = gpu.cluster(Some(nodes), per_node.unwrap_or(1), None, None);
        Others {
            first,
            device: of_kind.device,
            links: of_kind.levels.iter().map(|level| level.link).collect(),
        }
    };
    let others = kinds[1..].iter().map(other).collect();
    Ok(Cluster { name: name.to_string(), others, ..cluster })
}

/// The short names of all devices.
pub(crate) fn known_names() -> String {
    let names: Vec<&str> = GPUS.iter().map(|gpu| gpu.names[0]).collect();
    names.join(", ")
}

/// More devices than this are a typo.
const MAX_DEVICES: usize = 1 << 20;

/// A near miss among the names of devices.
pub(crate) fn near_name(name: &str) -> Option<String> {
    let device = name.split(':').next().unwrap_or(name);
    did_you_mean(device, GPUS.iter().map(|gpu| gpu.names[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_counts_is_nodes_of_devices() {
        let ranks = |name: &str| -> Vec<Option<usize>> {
            named(name).unwrap().unwrap().levels.iter().map(|level| level.ranks).collect()
        };
        assert_eq!(ranks("a100-80g:128x8"), [Some(8), Some(1024)]);
        assert_eq!(ranks("a100-80g"), [Some(8), None]);
        assert_eq!(ranks("a100-80g:4"), [Some(4)]);
        assert_eq!(ranks("h100-80g:64"), [Some(8), Some(64)]);
        assert_eq!(ranks("v100-16g:4x1"), [Some(4)]);
        assert_eq!(ranks("a100-80g:1x1"), [Some(1)]);
        assert!(named("a100").is_none());
        assert!(named("a100+v100").is_none());
    }

    #[test]
    fn a_cluster_may_have_nodes_of_several_devices() {
        let cluster = named("a100-80g:1x8+v100-32g:2x8").unwrap().unwrap();
        cluster.check().unwrap();
        assert_eq!(cluster.levels.iter().map(|level| level.ranks).collect::<Vec<_>>(), [Some(8), Some(24)]);
        let [fast, slow] = ["a100-80g", "v100-32g"].map(|name| gpu(name).unwrap());
        assert_eq!(cluster.device_of(7), &fast.device());
        assert_eq!(cluster.device_of(8), &slow.device());
        assert_eq!(cluster.kinds(24)[7..9], [0, 1]);
        // Between nodes of different devices the slower network counts.
        assert_eq!(cluster.link_of(0, 1).bytes_per_s, fast.far_bytes_per_s);
        let far = cluster.link_between(0, 8).bytes_per_s;
        assert_eq!(far, fast.far_bytes_per_s.min(slow.far_bytes_per_s));
        // The slice of each kind is a cluster of that kind.
        let mesh = partita_mesh::Mesh::parse("pp=3,dp=8", None).unwrap();
        let alone = named("v100-32g:1x8").unwrap().unwrap();
        let slice = cluster.of_slice(&mesh, "pp", 2);
        assert_eq!((slice.device, slice.levels[0].link), (alone.device, alone.levels[0].link));
        assert!(slice.others.is_empty());
        let one_each = named("a100-80g:1x1+v100-32g:1x1").unwrap().unwrap();
        one_each.check().unwrap();
        assert_eq!(one_each.levels.len(), 1);
    }

    #[test]
    fn sums_that_are_no_clusters_are_refused() {
        for (name, code, at) in [
            ("a100-80g:1x8+v100-32g:1x4", "E471", "column 14"),
            ("a100-80g:1x8+v100-32h:1x8", "E473", "column 14"),
            ("a100-80g:1x8+", "E473", "column 14"),
            ("a100-80g+v100-32g:1x8", "E477", "column 10"),
            ("a100-80g:1x8+v100-32g:1x", "E477", "column 25"),
            ("a100-80g:65536x16+a100-40g:1x16", "E477", ""),
        ] {
            let error = named(name).unwrap().unwrap_err();
            assert_eq!(error.code, code, "{name}: {error}");
            assert!(error.at.as_deref().unwrap().contains(at), "{error}");
        }
    }

    #[test]
    fn counts_that_are_none_point_at_their_column() {
        for (name, column) in [
            ("a100-80g:", "column 10"),
            ("a100-80g:0x8", "column 10"),
            ("a100-80g:4x", "column 12"),
            ("a100-80g:4x8x2", "column 12"),
            ("a100-80g:12", "column 10"),
            ("a100-80g:1048576x8", "column 10"),
        ] {
            let error = named(name).unwrap().unwrap_err();
            assert_eq!(error.code, "E477", "{name}");
            assert!(error.at.as_deref().unwrap().ends_with(column), "{error}");
        }
    }

    #[test]
    fn every_device_is_a_sound_cluster_under_each_of_its_names() {
        for gpu in GPUS {
            for name in gpu.names {
                let cluster = named(name).unwrap().unwrap();
                cluster.check().unwrap();
                assert_eq!(cluster.device.memory_bytes, gpu.memory_gib << 30);
            }
            // A matmul of 10^14 operations reaches the best measured rate.
            let reached = gpu.cluster(Some(1), 1, None, None).device.flops_efficiency.at(1e14);
            assert!((reached / gpu.best_matmul - 1.0).abs() < 2e-3, "{}: {reached}", gpu.kind);
        }
    }
}
