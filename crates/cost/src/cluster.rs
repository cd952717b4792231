//! Clusters: devices and the levels of links between them.

use crate::links::{Collective, Link, Ring};
use crate::mixed::Others;
use crate::roofline::Device;
use crate::sharing::Flows;
use partita_base::{Diagnostic, Result};
use partita_mesh::{AxisRef, Mesh};
use std::collections::BTreeMap;

/// The most cores of a machine: work is divided among all of them.
const MAX_CORES: usize = 1 << 16;

/// Links between ranks that are near each other, such as within a node or a pod.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Level {
    /// The number of consecutive ranks that these links connect; `None` for any number.
    pub ranks: Option<usize>,
    /// The links.
    pub link: Link,
    /// The number of links that each block of the level below, such as a node, has to the others; none if each rank has one
    /// of its own.
    pub links: Option<usize>,
}

/// The hardware that a program runs on. Rank n runs on device n.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    /// Its name: that of a ready cluster, or a file.
    pub name: String,
    /// Each of its devices, but those of `others`.
    pub device: Device,
    /// The ranks that have other devices, ascending by their first ranks.
    pub others: Vec<Others>,
    /// The levels of its links, from the nearest ranks on; the ranks of each level are a multiple
    /// of those of the one before.
    pub levels: Vec<Level>,
    /// How many ranks compute at the same time, where ranks share the cores of a machine; none if each has its own device.
    pub cores: Option<usize>,
}

impl Cluster {
    /// Whether its ranks are threads of one machine: one level of links for any number of ranks.
    pub fn is_one_machine(&self) -> bool {
        matches!(&self.levels[..], [Level { ranks: None, .. }])
    }

    /// How many times longer an instruction takes while so many ranks compute: ranks share the cores evenly.
    pub fn slowdown(&self, computing: usize) -> f64 {
        self.cores.map_or(1.0, |cores| (computing as f64 / cores as f64).max(1.0))
    }

    /// The cluster as each of so many ranks sees it if all compute all the time: devices of its own, as much slower.
    pub fn shared_by(&self, ranks: usize) -> Cluster {
        let (mut cluster, slowdown) = (self.clone(), self.slowdown(ranks));
        cluster.cores = None;
        for device in
            [&mut cluster.device].into_iter().chain(cluster.others.iter_mut().map(|o| &mut o.device))
        {
            device.flops_per_s /= slowdown;
            device.flops_per_s_by_type.values_mut().for_each(|rate| *rate /= slowdown);
            device.memory_bytes_per_s /= slowdown;
        }
        cluster
    }

    /// Rejects impossible figures: E470 for a rate, latency, size or efficiency, E471 for levels and the ranks of others.
    pub fn check(&self) -> Result<()> {
        self.check_device(&self.device)?;
        self.levels.iter().try_for_each(|level| self.check_link(&level.link))?;
        if self.levels.iter().any(|level| level.links == Some(0)) {
            return Err(self.out_of_range("links", 0.0, "at least 1 link of each block to the others"));
        }
        if let Some(cores) = self.cores.filter(|cores| !(1..=MAX_CORES).contains(cores)) {
            return Err(self.out_of_range("cores", cores as f64, &format!("from 1 to {MAX_CORES}")));
        }
        self.check_levels()?;
        self.check_others()
    }

    fn out_of_range(&self, key: &str, value: f64, expected: &str) -> Box<Diagnostic> {
        Diagnostic::new("E470", format!("`{key}` of the cluster is out of range"))
            .at(format!("cluster `{}`", self.name))
            .expected(expected)
            .found(value.to_string())
    }

    /// E470 for a rate that is none.
    fn check_rate(&self, key: &str, rate: f64) -> Result<()> {
        match rate > 0.0 && rate.is_finite() {
            true => Ok(()),
            false => Err(self.out_of_range(key, rate, "a finite number above 0")),
        }
    }

    pub(crate) fn check_device(&self, device: &Device) -> Result<()> {
        self.check_rate("flops_per_s", device.flops_per_s)?;
        self.check_rate("memory_bytes_per_s", device.memory_bytes_per_s)?;
        self.check_rate("host_bytes_per_s", device.host_bytes_per_s)?;
        let mut by_type = device.flops_per_s_by_type.values();
        by_type.try_for_each(|&rate| self.check_rate("flops_per_s_by_type", rate))?;
        if !(0.0..=1.0).contains(&device.overlap) {
            return Err(self.out_of_range("overlap", device.overlap, "a number from 0 to 1"));
        }
        if device.memory_bytes == 0 {
            return Err(self.out_of_range("memory_bytes", 0.0, "at least 1"));
        }
        Ok(())
    }

    pub(crate) fn check_link(&self, link: &Link) -> Result<()> {
        self.check_rate("bytes_per_s", link.bytes_per_s)?;
        let latency_s = link.latency_s;
        match latency_s >= 0.0 && latency_s.is_finite() {
            true => Ok(()),
            false => Err(self.out_of_range("latency_s", latency_s, "a finite number of at least 0")),
        }
    }

    /// Checks the levels of links; E471.
    fn check_levels(&self) -> Result<()> {
        let malformed = |expected: &str, found: String| {
            Err(Diagnostic::new("E471", "the link levels of the cluster are not nested")
                .at(format!("cluster `{}`", self.name))
                .expected(expected)
                .found(found))
        };
        if self.levels.is_empty() {
            return malformed("at least one level", "none".to_string());
        }
        let mut below = 1;
        for (place, level) in self.levels.iter().enumerate() {
            match level.ranks {
                None if place + 1 == self.levels.len() => {}
                None => {
                    let found = format!("level {place} of {}", self.levels.len());
                    return malformed("`ranks` in every level but the last", found);
                }
                // A cluster of one device has one level with one rank.
                Some(1) if place == 0 && self.levels.len() == 1 => {}
                Some(ranks) if ranks > below && ranks.is_multiple_of(below) => below = ranks,
                Some(ranks) => {
                    return malformed(
                        &format!("in level {place}, more than {below} `ranks` and a multiple of it"),
                        ranks.to_string(),
                    );
                }
            }
        }
        Ok(())
    }

    /// E474 if a mesh has more ranks than the cluster has devices.
    pub fn holds(&self, mesh: &Mesh) -> Result<()> {
        let ranks = mesh.rank_count();
        match self.levels.last().and_then(|level| level.ranks) {
            Some(devices) if devices < ranks => {
                Err(Diagnostic::new("E474", format!("mesh {mesh} does not fit cluster `{}`", self.name))
                    .expected(format!("at most {devices} ranks"))
                    .found(format!("{ranks} ranks"))
                    .help("use a smaller mesh, or give the last link level more `ranks`"))
            }
            _ => Ok(()),
        }
    }

    /// The cluster for the ranks of any slice of a mesh along an axis: that of its slowest slice; see [`Mesh::slices`].
    pub fn sliced(&self, mesh: &Mesh, axis: &str) -> Cluster {
        self.of_slice(mesh, axis, self.slowest_slice(mesh, axis))
    }

    /// The cluster for a mesh with another size of an axis: a node holds the same ranks of each position on that axis, and
    /// cores are shared as by all ranks of the mesh. Which rank has which device is as before.
    pub fn resized(&self, mesh: &Mesh, axis: &str, size: usize) -> Cluster {
        let Some(axis) = mesh.axis_named(axis) else { return self.clone() };
        let mut cluster = self.shared_by(mesh.rank_count());
        let (apart, count) = (mesh.stride(axis), axis.size);
        for ranks in cluster.levels.iter_mut().filter_map(|level| level.ranks.as_mut()) {
            // Blocks of `apart` ranks belong to the positions alternately.
            *ranks = if *ranks >= apart * count { *ranks / count * size } else { (*ranks).min(apart * size) };
        }
        cluster
    }

    /// The nearest level that connects two ranks.
    pub fn level_between(&self, one: usize, other: usize) -> usize {
        let connects = |level: &Level| level.ranks.is_none_or(|ranks| one / ranks == other / ranks);
        self.levels.iter().position(connects).unwrap_or(self.levels.len() - 1)
    }

    /// The cluster as the ranks of each slice of a mesh along an axis see it: see [`Mesh::slices`].
    pub fn slices(&self, mesh: &Mesh, axis: &str) -> Vec<Cluster> {
        let count = mesh.axis_named(axis).map_or(1, |axis| axis.size);
        (0..count).map(|slice| self.of_slice(mesh, axis, slice)).collect()
    }

    /// The cluster as `count` consecutive ranks see it, of so many that share its cores. None where they begin within a
    /// block of ranks that the links of a level connect, and end in another one: they fill their nodes unevenly.
    pub fn of_run(&self, first: usize, count: usize, all: usize) -> Option<Cluster> {
        let mut blocks = self.levels.iter().filter_map(|level| level.ranks);
        let last = first + count.max(1) - 1;
        let is_whole = blocks.all(|ranks| first / ranks == last / ranks || first.is_multiple_of(ranks));
        let own: Vec<usize> = (first..=last).collect();
        is_whole.then(|| self.shared_by(all).of_ranks(&own))
    }

    /// The links between two ranks: those of the nearest level that connects both.
    pub(crate) fn link_between(&self, one: usize, other: usize) -> Link {
        let level = self.level_between(one, other);
        self.link_of(one, level).slower(self.link_of(other, level))
    }

    /// Seconds until messages that ranks send each other at the same time have arrived: from which
    /// rank, to which rank, bytes. Each rank sends its messages one after another, and receives them
    /// so; ranks of a block share its links.
    pub fn messages_s(&self, messages: impl IntoIterator<Item = (usize, usize, usize)>) -> f64 {
        let messages: Vec<_> = messages.into_iter().collect();
        let mut latency_s = 0.0f64;
        let mut busy_s: BTreeMap<(bool, usize), f64> = BTreeMap::new();
        for &(from, to, bytes) in &messages {
            let link = self.link_between(from, to);
            latency_s = latency_s.max(link.latency_s);
            for end in [(false, from), (true, to)] {
                *busy_s.entry(end).or_default() += bytes as f64 / link.bytes_per_s;
            }
        }
        let shared = self.occupied_by_messages(messages).into_iter().map(|occupied| occupied.seconds);
        latency_s + busy_s.into_values().chain(shared).fold(0.0, f64::max)
    }

    /// The rings of a group over `axes`: one per axis, split where the axis crosses a level. All other ranks exchange in
    /// groups like this one. Adjacent parts of one axis count as one axis.
    pub fn rings(&self, mesh: &Mesh, axes: &[AxisRef]) -> Vec<Ring> {
        let mut whole: Vec<AxisRef> = Vec::new();
        for &axis in axes {
            match whole.last().and_then(|last| last.joined(axis)) {
                Some(joined) => *whole.last_mut().expect("there is one") = joined,
                None => whole.push(axis),
            }
        }
        let mut rings = Vec::new();
        for axis in whole {
            // Start from the minor-most ranks, which are the nearest.
            let (mut apart, mut left) = (mesh.stride(axis), axis.size);
            for (place, level) in self.levels.iter().enumerate() {
                let last = place + 1 == self.levels.len();
                let ranks = match level.ranks {
                    Some(ranks) if !last && ranks < mesh.rank_count() => {
                        if ranks.is_multiple_of(apart) {
                            common_divisor(ranks / apart, left)
                        } else {
                            1
                        }
                    }
                    _ => left,
                };
                if ranks > 1 {
                    rings.push(self.ring(place, ranks, self.slowest_link(place, mesh.rank_count())));
                }
                apart *= ranks;
                left /= ranks;
            }
        }
        rings
    }

    /// A ring among ranks of a level, of which all of a block exchange at the same time.
    fn ring(&self, level: usize, ranks: usize, link: Link) -> Ring {
        Ring { level, ranks, link: link.shared(self.sharing(level, self.below(level))) }
    }

    /// The rings of a group of ranks, which need not follow mesh axes: within each level, the ranks
    /// that its links connect; then one of them for each, at the next level. Where the blocks of a
    /// level hold different numbers of ranks, the fullest one counts. All other ranks exchange in groups like this one.
    pub fn rings_among(&self, ranks: &[usize]) -> Vec<Ring> {
        let ring = |level: usize, ranks: usize| self.ring(level, ranks, self.slowest_link(level, usize::MAX));
        self.nested(ranks).into_iter().map(|(level, ranks)| ring(level, ranks)).collect()
    }

    /// As [`Cluster::rings_among`], over the links of these very ranks, where groups with these flows exchange at the same
    /// time.
    pub fn rings_of(&self, ranks: &[usize], flows: &Flows) -> Vec<Ring> {
        let ring = |(level, count): (usize, usize)| {
            let links = ranks.iter().map(|&rank| self.link_of(rank, level));
            let link = links.reduce(Link::slower).unwrap_or(self.levels[level].link);
            Ring { level, ranks: count, link: link.shared(self.sharing(level, flows.most(level))) }
        };
        self.nested(ranks).into_iter().map(ring).collect()
    }

    /// The levels at which ranks exchange, with the most of them that the links of one block connect.
    fn nested(&self, ranks: &[usize]) -> Vec<(usize, usize)> {
        let mut left = ranks.to_vec();
        left.sort_unstable();
        left.dedup();
        let mut rings = Vec::new();
        for (place, level) in self.levels.iter().enumerate() {
            let block = |rank: usize| level.ranks.map_or(0, |ranks| rank / ranks);
            let blocks: Vec<&[usize]> = left.chunk_by(|&a, &b| block(a) == block(b)).collect();
            let fullest = blocks.iter().map(|block| block.len()).max().unwrap_or(0);
            if fullest > 1 {
                rings.push((place, fullest));
            }
            left = blocks.iter().map(|block| block[0]).collect();
        }
        rings
    }

    /// Seconds of a collective in the groups over `axes`; `bytes` as in [`Collective::seconds`].
    pub fn collective_s(&self, kind: Collective, bytes: f64, mesh: &Mesh, axes: &[AxisRef]) -> f64 {
        kind.seconds(bytes, &self.rings(mesh, axes))
    }
}

/// The greatest common divisor.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::Algorithm;

    /// A cluster with nodes of `ranks` ranks.
    fn nodes(ranks: usize) -> Cluster {
        let link = |latency_s| Link { latency_s, bytes_per_s: 100.0, algorithm: Algorithm::Ring };
        let levels = vec![
            Level { ranks: Some(ranks), link: link(1.0), links: None },
            Level { ranks: None, link: link(10.0), links: None },
        ];
        Cluster { levels, ..Cluster::default() }
    }

    /// The number of ranks of each ring over an axis, with the latency of its links.
    fn rings(cluster: &Cluster, mesh: &Mesh, axis: usize) -> Vec<(usize, f64)> {
        let rings = cluster.rings(mesh, &[mesh.full_axis(axis)]);
        rings.iter().map(|ring| (ring.ranks, ring.link.latency_s)).collect()
    }

    #[test]
    fn messages_take_as_long_as_the_busiest_rank_and_the_slowest_link() {
        let cluster = nodes(2);
        assert_eq!(cluster.messages_s([]), 0.0);
        // Within a node: a latency of 1, 100 bytes a second.
        assert_eq!(cluster.messages_s([(0, 1, 200)]), 1.0 + 2.0);
        // Across nodes a latency of 10. One rank sends 300 bytes, each other one receives 100.
        assert_eq!(cluster.messages_s([(0, 1, 100), (0, 2, 100), (0, 3, 100)]), 10.0 + 3.0);
        // Two ranks send to two others at the same time, in both directions.
        assert_eq!(cluster.messages_s([(0, 2, 100), (1, 3, 100), (2, 0, 100)]), 10.0 + 1.0);
        // One rank receives from two.
        assert_eq!(cluster.messages_s([(0, 2, 100), (1, 2, 100)]), 10.0 + 2.0);
    }

    #[test]
    fn an_axis_uses_the_links_of_its_level() {
        let mesh = Mesh::new("m", &[("dp", 4), ("tp", 4)]);
        assert_eq!(rings(&nodes(8), &mesh, 1), [(4, 1.0)]);
        assert_eq!(rings(&nodes(8), &mesh, 0), [(2, 1.0), (2, 10.0)]);
        assert_eq!(rings(&nodes(4), &mesh, 0), [(4, 10.0)]);
        assert_eq!(rings(&nodes(2), &mesh, 1), [(2, 1.0), (2, 10.0)]);
        assert_eq!(rings(&nodes(16), &mesh, 0), [(4, 1.0)]);
        // Groups of three straddle nodes of eight, unless all ranks are in one node.
        assert_eq!(rings(&nodes(8), &Mesh::new("m", &[("dp", 4), ("tp", 3)]), 1), [(3, 10.0)]);
        assert_eq!(rings(&nodes(8), &Mesh::new("m", &[("dp", 2), ("tp", 3)]), 1), [(3, 1.0)]);
    }

    #[test]
    fn the_rings_of_a_group_of_ranks_are_those_of_its_axes() {
        for (mesh, size) in [("dp=4,tp=4", 8), ("dp=4,tp=4", 2), ("dp=2,tp=8", 16), ("dp=8,tp=2", 4)] {
            let (mesh, cluster) = (Mesh::parse(mesh, None).unwrap(), nodes(size));
            for axis in 0..2 {
                let (stride, count) = (mesh.stride(mesh.full_axis(axis)), mesh.full_axis(axis).size);
                let ranks: Vec<usize> = (0..count).map(|place| place * stride).collect();
                assert_eq!(cluster.rings_among(&ranks), cluster.rings(&mesh, &[mesh.full_axis(axis)]));
            }
        }
        assert_eq!(nodes(8).link_between(1, 7).latency_s, 1.0);
        assert_eq!(nodes(8).link_between(7, 8).latency_s, 10.0);
    }

    #[test]
    fn parts_of_an_axis_cost_what_the_axis_costs() {
        let mesh = Mesh::new("m", &[("x", 16)]);
        let (major, minor) = mesh.full_axis(0).split(4).unwrap();
        let cluster = nodes(8);
        assert_eq!(cluster.rings(&mesh, &[major, minor]), cluster.rings(&mesh, &[mesh.full_axis(0)]));
        assert_eq!(cluster.rings(&mesh, &[minor]).len(), 1);
        assert_eq!(cluster.rings(&mesh, &[major]).len(), 2);
    }

    #[test]
    fn a_slice_sees_fewer_ranks_of_a_node() {
        let inner = |mesh: &str, ranks: usize| {
            let mesh = Mesh::parse(mesh, None).unwrap();
            nodes(ranks).sliced(&mesh, "pp").levels[0].ranks.unwrap()
        };
        assert_eq!(inner("pp=2,tp=8", 8), 8);
        assert_eq!(inner("pp=2,tp=4", 8), 4);
        assert_eq!(inner("tp=4,pp=2", 8), 4);
        assert_eq!(inner("tp=4,pp=2", 4), 2);
        assert_eq!(inner("tp=8", 8), 8);
        let resized = |mesh: &str, size: usize| {
            let mesh = Mesh::parse(mesh, None).unwrap();
            nodes(8).resized(&mesh, "pp", size).levels[0].ranks.unwrap()
        };
        // Two slices of a node each, two slices in a node, and a node with half of the ranks of all slices.
        assert_eq!(resized("pp=4,tp=8", 3), 8);
        assert_eq!(resized("pp=4,tp=4", 3), 8);
        assert_eq!(resized("tp=4,pp=4", 3), 6);
    }

    #[test]
    fn ranks_share_cores() {
        let cluster = Cluster { cores: Some(2), ..nodes(8) };
        assert_eq!([1, 2, 3, 4].map(|ranks| cluster.slowdown(ranks)), [1.0, 1.0, 1.5, 2.0]);
        let rate = |cluster: &Cluster| cluster.device.flops_per_s;
        assert_eq!(rate(&cluster.shared_by(4)), rate(&cluster) / 2.0);
        // The ranks of the other slices use the cores too.
        let mesh = Mesh::parse("pp=4,tp=2", None).unwrap();
        assert_eq!(rate(&cluster.sliced(&mesh, "pp")), rate(&cluster) / 4.0);
        assert_eq!(cluster.sliced(&mesh, "dp"), cluster);
        assert_eq!(nodes(8).shared_by(4), nodes(8));
    }

    #[test]
    fn figures_that_no_cluster_has_are_refused() {
        let code = |change: &dyn Fn(&mut Cluster)| {
            let mut cluster = nodes(8);
            change(&mut cluster);
            cluster.check().map_err(|error| error.code).err()
        };
        assert_eq!(code(&|_| {}), None);
        assert_eq!(code(&|c| c.device.flops_per_s = 0.0), Some("E470"));
        assert_eq!(code(&|c| c.device.memory_bytes_per_s = f64::NAN), Some("E470"));
        assert_eq!(code(&|c| c.device.memory_bytes = 0), Some("E470"));
        assert_eq!(code(&|c| c.cores = Some(0)), Some("E470"));
        assert_eq!(code(&|c| c.cores = Some(MAX_CORES)), None);
        // Programs have a part for each thread.
        assert_eq!(code(&|c| c.cores = Some(1 << 32)), Some("E470"));
        assert_eq!(code(&|c| c.levels[1].links = Some(0)), Some("E470"));
        assert_eq!(code(&|c| c.device.overlap = 1.5), Some("E470"));
        assert_eq!(code(&|c| c.levels[0].link.latency_s = -1.0), Some("E470"));
        assert_eq!(code(&|c| c.levels[1].link.bytes_per_s = f64::INFINITY), Some("E470"));
        assert_eq!(code(&|c| c.levels.clear()), Some("E471"));
        assert_eq!(code(&|c| c.levels[0].ranks = None), Some("E471"));
        assert_eq!(code(&|c| c.levels[0].ranks = Some(0)), Some("E471"));
        assert_eq!(code(&|c| c.levels[1].ranks = Some(12)), Some("E471"));
        let mut small = nodes(8);
        small.levels.truncate(1);
        assert_eq!(small.holds(&Mesh::new("m", &[("dp", 9)])).unwrap_err().code, "E474");
        small.holds(&Mesh::new("m", &[("dp", 8)])).unwrap();
        small.levels[0].ranks = Some(1);
        small.check().unwrap();
        assert_eq!(small.holds(&Mesh::new("m", &[("dp", 2)])).unwrap_err().code, "E474");
    }
}
