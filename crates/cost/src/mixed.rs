//! Clusters whose ranks have different devices: an entry for each rank from which on they differ.
//!
//! Ranks that work together wait for the slowest one of them, so an op that all ranks run takes as long as on the slowest
//! device *for this op*, and what all must hold has to fit the smallest memory.

use crate::cluster::Cluster;
use crate::links::Link;
use crate::roofline::{Device, Work};
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::{Mesh, Slice};

/// The devices of the ranks from one on, to the next entry or the last rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Others {
    /// The first rank with this device.
    pub first: usize,
    /// Its device.
    pub device: Device,
    /// Its links at each level of the cluster, in their order; empty for those of the levels.
    pub links: Vec<Link>,
}

impl Cluster {
    /// The device of a rank.
    pub fn device_of(&self, rank: usize) -> &Device {
        self.other(rank).map_or(&self.device, |other| &other.device)
    }

    /// The device of every kind, in the order of the ranks; kinds that occur several times are listed as often.
    pub fn devices(&self) -> impl Iterator<Item = &Device> + Clone {
        std::iter::once(&self.device).chain(self.others.iter().map(|other| &other.device))
    }

    /// Whether ranks have different devices.
    pub fn is_mixed(&self) -> bool {
        !self.others.is_empty()
    }

    /// The entry of a rank; `None` for the first ranks.
    fn other(&self, rank: usize) -> Option<&Others> {
        self.others.iter().rev().find(|other| other.first <= rank)
    }

    /// The number of the kind of each of the first ranks: ranks of equal numbers have equal devices and links.
    pub fn kinds(&self, ranks: usize) -> Vec<usize> {
        let links = |rank: usize| (0..self.levels.len()).map(move |level| self.link_of(rank, level));
        let is_like = |a: usize, b: usize| self.device_of(a) == self.device_of(b) && links(a).eq(links(b));
        let (mut firsts, mut kinds): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::with_capacity(ranks));
        for (first, count) in self.runs(ranks) {
            let known = firsts.iter().position(|&other| is_like(other, first));
            let kind = known.unwrap_or_else(|| {
                firsts.push(first);
                firsts.len() - 1
            });
            kinds.extend(std::iter::repeat_n(kind, count));
        }
        kinds
    }

    /// Seconds of an op on the device that takes longest for it.
    pub fn op_s(&self, work: &Work) -> f64 {
        self.slowest(|device| device.op_s(work))
    }

    /// Seconds to read and write so many bytes on the device that takes longest.
    pub fn memory_s(&self, bytes: f64) -> f64 {
        self.slowest(|device| device.memory_s(bytes))
    }

    /// The largest of a figure of seconds over all devices.
    pub fn slowest(&self, seconds: impl Fn(&Device) -> f64) -> f64 {
        self.devices().map(seconds).fold(0.0, f64::max)
    }

    /// The type of half precision in which a large matmul takes least on the device that takes longest: bf16, unless f16 is
    /// faster.
    pub fn half(&self) -> DType {
        let seconds = |dtype| self.op_s(&Work { flops: LARGE_FLOPS, bytes: 0.0, dtype });
        if seconds(DType::F16) < seconds(DType::BF16) { DType::F16 } else { DType::BF16 }
    }

    /// Bytes of the smallest memory of a device.
    pub fn memory_bytes(&self) -> u64 {
        self.devices().map(|device| device.memory_bytes).min().unwrap_or(0)
    }

    /// Bytes of the smallest memory of the devices of these ranks.
    pub fn memory_of(&self, ranks: impl IntoIterator<Item = usize>) -> u64 {
        match self.is_mixed() {
            true => ranks.into_iter().map(|rank| self.device_of(rank).memory_bytes).min().unwrap_or(0),
            false => self.device.memory_bytes,
        }
    }

    /// Bytes of the smallest host memory of a device.
    pub fn host_bytes(&self) -> u64 {
        self.devices().map(|device| device.host_bytes).min().unwrap_or(0)
    }

    /// Operations per second of this type at the peaks of the first ranks together.
    pub fn peak(&self, ranks: usize, dtype: DType) -> f64 {
        let runs = self.runs(ranks);
        runs.map(|(from, count)| count as f64 * self.device_of(from).peak(dtype)).sum()
    }

    /// The first ranks in runs of one entry each: the first rank of a run, and their number.
    pub fn runs(&self, ranks: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let firsts = std::iter::once(0).chain(self.others.iter().map(|other| other.first));
        let ends = self.others.iter().map(|other| other.first).chain([usize::MAX]);
        let run = move |(first, end): (usize, usize)| (first, end.min(ranks).saturating_sub(first));
        firsts.zip(ends).map(run).filter(|&(_, count)| count > 0)
    }

    /// The links of a rank at a level.
    pub(crate) fn link_of(&self, rank: usize, level: usize) -> Link {
        let own = self.other(rank).and_then(|other| other.links.get(level));
        own.copied().unwrap_or(self.levels[level].link)
    }

    /// The links of a level as a group with ranks of every kind among so many first ones sees them: the slowest ones.
    pub(crate) fn slowest_link(&self, level: usize, ranks: usize) -> Link {
        let links = self.runs(ranks).map(|(first, _)| self.link_of(first, level));
        links.reduce(Link::slower).unwrap_or(self.levels[level].link)
    }

    /// The cluster as the first ranks of it are, without the kinds that only others have.
    pub fn of_first(&self, ranks: usize) -> Cluster {
        let mut cluster = self.clone();
        cluster.others.retain(|other| other.first < ranks);
        cluster
    }

    /// The devices and links of these ranks, numbered in this order from 0; the levels are those of the whole cluster.
    pub fn of_ranks(&self, ranks: &[usize]) -> Cluster {
        match self.is_mixed() {
            true => self.clone().with_devices_of(self, ranks.iter().copied()),
            false => self.clone(),
        }
    }

    /// The cluster as a slice of a mesh along an axis sees it: the nodes as far as they belong to it, the devices and links
    /// of its ranks, which are numbered as in [`Mesh::slices`]. Without such an axis, that of the mesh.
    pub fn of_slice(&self, mesh: &Mesh, axis: &str, slice: usize) -> Cluster {
        let resized = self.resized(mesh, axis, 1);
        if !self.is_mixed() {
            return resized;
        }
        match mesh.axis_named(axis) {
            None => self.of_first(mesh.rank_count()),
            Some(axis) => {
                let own = (0..mesh.rank_count()).filter(|&rank| mesh.position(rank, &[axis]) == slice);
                resized.with_devices_of(&self.shared_by(mesh.rank_count()), own)
            }
        }
    }

    /// The cluster for a mesh with another size of an axis, all of whose slices have the devices and links of one slice.
    pub fn like_slice(&self, mesh: &Mesh, axis: &str, slice: usize, size: usize) -> Cluster {
        let resized = self.resized(mesh, axis, size);
        let Some(place) = mesh.axes.iter().position(|own| own.name == axis).filter(|_| self.is_mixed())
        else {
            return resized;
        };
        let own = &mesh.slices(axis)[slice].ranks;
        let mut other = mesh.clone();
        other.axes[place].size = size;
        other.device_ids = None;
        let mut like = vec![0; other.rank_count()];
        for of_slice in other.slices(axis) {
            of_slice.ranks.iter().zip(own).for_each(|(&rank, &own)| like[rank] = own);
        }
        resized.with_devices_of(&self.shared_by(mesh.rank_count()), like.into_iter())
    }

    /// For each slice of a mesh along an axis, the number of its kind: those of equal numbers have equal devices and links.
    pub fn kinds_of_slices(&self, mesh: &Mesh, axis: &str) -> Vec<usize> {
        let slices = mesh.slices(axis);
        if !self.is_mixed() {
            return vec![0; slices.len()];
        }
        let kinds = self.kinds(mesh.rank_count());
        let mut known: Vec<Vec<usize>> = Vec::new();
        let number = |slice: Slice| {
            let own: Vec<usize> = slice.ranks.iter().map(|&rank| kinds[rank]).collect();
            known.iter().position(|other| *other == own).unwrap_or_else(|| {
                known.push(own);
                known.len() - 1
            })
        };
        slices.into_iter().map(number).collect()
    }

    /// This cluster with the devices and links that these ranks have in another one.
    fn with_devices_of(mut self, whole: &Cluster, ranks: impl Iterator<Item = usize>) -> Cluster {
        self.others.clear();
        let mut known: Option<Others> = None;
        for (place, rank) in ranks.enumerate() {
            let links = (0..self.levels.len()).map(|level| whole.link_of(rank, level)).collect();
            let own = Others { first: place, device: whole.device_of(rank).clone(), links };
            match known {
                None => {
                    self.device = own.device.clone();
                    self.levels.iter_mut().zip(&own.links).for_each(|(level, link)| level.link = *link);
                }
                Some(known) if known.device == own.device && known.links == own.links => {}
                Some(_) => self.others.push(own.clone()),
            }
            known = Some(own);
        }
        self
    }

    /// The slice of a mesh along an axis whose devices take longest for a large product of matrices; the first one if they
    /// are equal.
    pub fn slowest_slice(&self, mesh: &Mesh, axis: &str) -> usize {
        let count = mesh.axis_named(axis).map_or(1, |axis| axis.size);
        if !self.is_mixed() || count == 1 {
            return 0;
        }
        let large = Work { flops: LARGE_FLOPS, bytes: 0.0, dtype: self.half() };
        let seconds: Vec<f64> =
            (0..count).map(|slice| self.of_slice(mesh, axis, slice).op_s(&large)).collect();
        (1..count).fold(0, |slowest, slice| if seconds[slice] > seconds[slowest] { slice } else { slowest })
    }

    /// Rejects entries of other devices that are out of order, E471, or impossible, E470.
    pub(crate) fn check_others(&self) -> Result<()> {
        let malformed = |heading: &str, at: usize, expected: String, found: String| {
            Diagnostic::new("E471", heading)
                .at(format!("cluster `{}`, `others`, entry {}", self.name, at + 1))
                .expected(expected)
                .found(found)
        };
        let mut before = 0;
        let last = self.levels.last().and_then(|level| level.ranks).unwrap_or(usize::MAX);
        for (at, other) in self.others.iter().enumerate() {
            if other.first <= before || other.first >= last {
                let most = if last < usize::MAX { format!(" and below {last}") } else { String::new() };
                let expected =
                    format!("`first` above {before}{most}, which is the first rank with this device");
                let heading = "the devices of the cluster are not in the order of its ranks";
                return Err(malformed(heading, at, expected, other.first.to_string()));
            }
            before = other.first;
            if !other.links.is_empty() && other.links.len() != self.levels.len() {
                let heading = "other devices have more or fewer links than the cluster has levels";
                let expected = format!("`links` for each of the {} levels of the cluster", self.levels.len());
                return Err(malformed(heading, at, expected, other.links.len().to_string()));
            }
            self.check_device(&other.device)?;
            other.links.iter().try_for_each(|link| self.check_link(link))?;
        }
        Ok(())
    }
}

/// Operations of a matmul that reaches the best rate of any device.
const LARGE_FLOPS: f64 = 1e14;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Level;
    use crate::curve::Curve;
    use crate::links::Algorithm;
    use crate::sharing::Flows;
    use std::collections::BTreeMap;

    fn device(flops_per_s: f64, memory_bytes: u64) -> Device {
        Device {
            kind: format!("{flops_per_s}"),
            flops_per_s,
            flops_per_s_by_type: BTreeMap::new(),
            memory_bytes,
            overlap: 1.0,
            flops_efficiency: Curve::default(),
            memory_efficiency: Curve::default(),
            ..Cluster::default().device
        }
    }

    fn link(latency_s: f64, bytes_per_s: f64) -> Link {
        Link { latency_s, bytes_per_s, algorithm: Algorithm::Ring }
    }

    /// Two nodes of four fast devices, and two of slow ones with slow links and more memory.
    fn mixed() -> Cluster {
        Cluster {
            device: device(100.0, 10),
            levels: vec![
                Level { ranks: Some(4), link: link(1.0, 1000.0), links: None },
                Level { ranks: Some(16), link: link(10.0, 100.0), links: None },
            ],
            others: vec![Others {
                first: 8,
                device: device(25.0, 30),
                links: vec![link(2.0, 500.0), link(20.0, 10.0)],
            }],
            ..Cluster::default()
        }
    }

    #[test]
    fn a_rank_has_the_device_of_the_last_entry_before_it() {
        let cluster = mixed();
        cluster.check().unwrap();
        let peaks = [0, 7, 8, 15].map(|rank| cluster.device_of(rank).flops_per_s);
        assert_eq!(peaks, [100.0, 100.0, 25.0, 25.0]);
        assert_eq!(cluster.kinds(10), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        let work = Work { flops: 200.0, bytes: 0.0, dtype: DType::F32 };
        assert_eq!(cluster.op_s(&work), 8.0);
        assert_eq!(cluster.of_first(8).op_s(&work), 2.0);
        assert_eq!(cluster.memory_bytes(), 10);
        assert_eq!(cluster.peak(10, DType::F32), 8.0 * 100.0 + 2.0 * 25.0);
        assert_eq!(cluster.runs(10).collect::<Vec<_>>(), [(0, 8), (8, 2)]);
        assert_eq!(cluster.runs(8).collect::<Vec<_>>(), [(0, 8)]);
    }

    #[test]
    fn a_slice_has_the_devices_of_its_ranks() {
        let (cluster, mesh) = (mixed(), Mesh::parse("pp=2,dp=8", None).unwrap());
        let fast = cluster.of_slice(&mesh, "pp", 0);
        assert_eq!((fast.device.flops_per_s, fast.others.len()), (100.0, 0));
        let slow = cluster.of_slice(&mesh, "pp", 1);
        assert_eq!((slow.device.flops_per_s, slow.others.len()), (25.0, 0));
        assert_eq!(slow.levels.iter().map(|level| level.link.bytes_per_s).collect::<Vec<_>>(), [500.0, 10.0]);
        assert_eq!(cluster.slowest_slice(&mesh, "pp"), 1);
        assert_eq!(cluster.sliced(&mesh, "pp"), slow);
        // Every slice has both kinds.
        let mesh = Mesh::parse("dp=8,pp=2", None).unwrap();
        let both = cluster.of_slice(&mesh, "pp", 1);
        assert_eq!([3, 4].map(|rank| both.device_of(rank).flops_per_s), [100.0, 25.0]);
        assert_eq!(both.levels[0].ranks, Some(2));
        assert_eq!(cluster.kinds_of_slices(&mesh, "pp"), [0, 0]);
        let mesh = Mesh::parse("pp=4,dp=4", None).unwrap();
        assert_eq!(cluster.kinds_of_slices(&mesh, "pp"), [0, 0, 1, 1]);
        // Three slices like the last one.
        let like = cluster.like_slice(&mesh, "pp", 3, 3);
        assert_eq!((like.device.flops_per_s, like.others.len()), (25.0, 0));
        let mesh = Mesh::parse("dp=4,pp=4", None).unwrap();
        let like = cluster.like_slice(&mesh, "pp", 3, 2);
        assert_eq!([0, 3, 4, 7].map(|rank| like.device_of(rank).flops_per_s), [100.0, 100.0, 25.0, 25.0]);
        // The ranks of a mesh of one node have one kind.
        let mesh = Mesh::parse("dp=4", None).unwrap();
        assert!(!cluster.of_slice(&mesh, "pp", 0).is_mixed());
    }

    #[test]
    fn groups_use_the_slowest_links_of_their_ranks() {
        let (cluster, mesh) = (mixed(), Mesh::parse("dp=4,tp=4", None).unwrap());
        let of = |ranks: &[usize]| {
            let rings = cluster.rings_of(ranks, &Flows::default());
            rings.iter().map(|ring| (ring.link.latency_s, ring.link.bytes_per_s)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[0, 1]), [(1.0, 1000.0)]);
        assert_eq!(of(&[8, 9]), [(2.0, 500.0)]);
        assert_eq!(of(&[0, 4]), [(10.0, 100.0)]);
        assert_eq!(of(&[4, 8]), [(20.0, 10.0)]);
        assert_eq!(cluster.rings(&mesh, &[mesh.full_axis(1)])[0].link, link(2.0, 500.0));
        // Where all ranks exchange alike, those with the slowest links take longest.
        assert_eq!(cluster.rings_among(&[0, 1])[0].link, link(2.0, 500.0));
        // 100 bytes from a fast node to a slow one.
        assert_eq!(cluster.messages_s([(0, 8, 100)]), 20.0 + 10.0);
        assert_eq!(cluster.messages_s([(0, 4, 100)]), 10.0 + 1.0);
    }

    #[test]
    fn entries_that_no_cluster_has_are_refused() {
        let code = |change: &dyn Fn(&mut Others)| {
            let mut cluster = mixed();
            change(&mut cluster.others[0]);
            cluster.check().map_err(|error| error.code).err()
        };
        assert_eq!(code(&|_| {}), None);
        assert_eq!(code(&|other| other.first = 0), Some("E471"));
        assert_eq!(code(&|other| other.first = 16), Some("E471"));
        assert_eq!(code(&|other| other.links.truncate(1)), Some("E471"));
        let mut cluster = mixed();
        cluster.others[0].links.truncate(1);
        let error = cluster.check().unwrap_err().to_string();
        assert!(
            error.contains("fewer links than the cluster has levels") && error.contains("entry 1"),
            "{error}"
        );
        assert_eq!(code(&|other| other.links[0].bytes_per_s = 0.0), Some("E470"));
        assert_eq!(code(&|other| other.device.memory_bytes = 0), Some("E470"));
    }
}
