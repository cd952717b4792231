//! Links that several ranks share: how many of them send over the links of a block at the same time, and for how long.
//!
//! A level may have fewer links than ranks: the ranks of a block of the level below, such as a node, then share its
//! [`crate::Level::links`] cards to the other blocks. What exchanges at the same time shares them evenly; a rank never
//! uses more than one at a time. Each link moves bytes in both directions at once.

use crate::cluster::Cluster;
use crate::links::{Collective, Ring};
use std::collections::BTreeMap;

/// A block of the level below whose ranks share the links of a level, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Port {
    /// The level.
    pub level: usize,
    /// The number of the block.
    pub block: usize,
    /// Whether bytes leave the block.
    pub is_out: bool,
}

/// How an exchange occupies the links of a port.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Occupied {
    /// The port.
    pub port: Port,
    /// Its links in use.
    pub links: usize,
    /// For how many seconds.
    pub seconds: f64,
}

/// For each level, how many ranks of a block of the level below exchange over its links at the same time: of the block
/// with most of them, and of each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Flows {
    by_block: BTreeMap<(usize, usize), usize>,
}

impl Flows {
    /// Those of the fullest block at a level.
    pub fn most(&self, level: usize) -> usize {
        let of_level = self.by_block.range((level, 0)..(level + 1, 0));
        of_level.map(|(_, &flows)| flows).max().unwrap_or(1)
    }
}

impl Cluster {
    /// How many times longer bytes take over the links of a level if so many ranks of a block share them.
    pub fn sharing(&self, level: usize, flows: usize) -> f64 {
        let links = self.levels.get(level).and_then(|level| level.links);
        links.map_or(1.0, |links| (flows as f64 / links as f64).max(1.0))
    }

    /// The ranks of a block of the level below one: those that share its links.
    pub(crate) fn below(&self, level: usize) -> usize {
        level.checked_sub(1).and_then(|below| self.levels[below].ranks).unwrap_or(1)
    }

    /// The levels whose links are shared.
    pub(crate) fn shared_levels(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.levels.len()).filter(|&level| self.levels[level].links.is_some())
    }

    /// Whether ranks share links.
    pub fn shares_links(&self) -> bool {
        self.shared_levels().next().is_some()
    }

    /// The flows of groups that exchange at the same time: each of their ranks has a part of what crosses a level.
    pub fn flows<'a>(&self, groups: impl IntoIterator<Item = &'a [usize]>) -> Flows {
        let mut flows = Flows::default();
        if !self.shares_links() {
            return flows;
        }
        for group in groups {
            for level in self.shared_levels() {
                let (below, above) = (self.below(level), self.levels[level].ranks.unwrap_or(usize::MAX));
                let mut by_block: BTreeMap<(usize, usize), usize> = BTreeMap::new();
                group.iter().for_each(|rank| *by_block.entry((rank / above, rank / below)).or_default() += 1);
                for (&(large, block), count) in &by_block {
                    let others = by_block.range((large, 0)..=(large, usize::MAX)).count() > 1;
                    if others {
                        *flows.by_block.entry((level, block)).or_default() += count;
                    }
                }
            }
        }
        flows
    }

    /// How a collective of groups with these flows occupies links; `rings` are those of one of the groups, whose ranks have
    /// as many `bytes` as in [`Collective::seconds`].
    pub fn occupied(&self, kind: Collective, bytes: f64, rings: &[Ring], flows: &Flows) -> Vec<Occupied> {
        let mut occupied = Vec::new();
        for (&(level, block), &count) in &flows.by_block {
            let Some(ring) = rings.iter().find(|ring| ring.level == level) else { continue };
            // The links of the ring are those of the fullest block.
            let alone_s = kind.over_s(bytes, rings, ring) / self.sharing(level, flows.most(level));
            let links = self.levels[level].links.map_or(count, |links| links.min(count));
            let seconds = alone_s * self.sharing(level, count);
            let port = |is_out| Port { level, block, is_out };
            occupied.extend([true, false].map(|is_out| Occupied { port: port(is_out), links, seconds }));
        }
        occupied
    }

    /// How messages that are sent at the same time occupy links: from which rank, to which rank, bytes.
    pub fn occupied_by_messages(
        &self,
        messages: impl IntoIterator<Item = (usize, usize, usize)>,
    ) -> Vec<Occupied> {
        // Seconds of one link, by the rank at this end.
        let mut ports: BTreeMap<Port, BTreeMap<usize, f64>> = BTreeMap::new();
        if !self.shares_links() {
            return Vec::new();
        }
        for (from, to, bytes) in messages {
            let level = self.level_between(from, to);
            if self.levels[level].links.is_none() {
                continue;
            }
            let seconds = bytes as f64 / self.link_between(from, to).bytes_per_s;
            let below = self.below(level);
            for (rank, is_out) in [(from, true), (to, false)] {
                let port = Port { level, block: rank / below, is_out };
                *ports.entry(port).or_default().entry(rank).or_default() += seconds;
            }
        }
        let occupied = |(port, by_rank): (Port, BTreeMap<usize, f64>)| {
            let links = self.levels[port.level].links.unwrap_or(1).min(by_rank.len());
            Occupied { port, links, seconds: by_rank.values().sum::<f64>() / links as f64 }
        };
        ports.into_iter().map(occupied).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Level;
    use crate::links::{Algorithm, Link};
    use partita_mesh::Mesh;

    /// Nodes of eight with so many links to other nodes.
    fn nodes(links: Option<usize>) -> Cluster {
        let link = |latency_s, bytes_per_s| Link { latency_s, bytes_per_s, algorithm: Algorithm::Ring };
        let levels = vec![
            Level { ranks: Some(8), link: link(1.0, 1e6), links: None },
            Level { ranks: None, link: link(10.0, 100.0), links },
        ];
        Cluster { levels, ..Cluster::default() }
    }

    #[test]
    fn groups_that_leave_a_node_together_share_its_links() {
        let groups: Vec<Vec<usize>> = (0..8).map(|rank| vec![rank, rank + 8]).collect();
        let all = || groups.iter().map(Vec::as_slice);
        for (links, times) in [(Some(1), 8.0), (Some(2), 4.0), (Some(16), 1.0), (None, 1.0)] {
            let cluster = nodes(links);
            let mesh = Mesh::parse("dp=2,tp=8", None).unwrap();
            // A gather of 400 bytes: half of them over a link of 100 bytes a second.
            let alone = cluster.rings_of(&groups[0], &cluster.flows([groups[0].as_slice()]));
            assert_eq!(Collective::AllGather.seconds(400.0, &alone), 10.0 + 2.0);
            let together = cluster.rings_of(&groups[0], &cluster.flows(all()));
            assert_eq!(Collective::AllGather.seconds(400.0, &together), 10.0 + 2.0 * times);
            assert_eq!(cluster.rings(&mesh, &[mesh.full_axis(0)]), together);
            assert_eq!(cluster.rings_among(&groups[0]), together);
            // Within a node nothing is shared.
            let inner = cluster.rings(&mesh, &[mesh.full_axis(1)]);
            assert_eq!(inner, nodes(None).rings(&mesh, &[mesh.full_axis(1)]));
            let occupied = cluster.occupied(Collective::AllGather, 400.0, &together, &cluster.flows(all()));
            assert_eq!(occupied.len(), if links.is_some() { 4 } else { 0 });
            let of_node = links.map_or(0, |links| links.min(8));
            assert!(occupied.iter().all(|one| one.links == of_node && one.seconds == 2.0 * times));
        }
    }

    #[test]
    fn a_group_of_all_ranks_of_two_nodes_sends_all_bytes_over_one_link() {
        let ranks: Vec<usize> = (0..16).collect();
        // Each rank of a node sends an eighth of 1600 bytes over the link of all of them, or one of its own.
        for (links, bytes_per_s) in [(Some(1), 100.0), (Some(8), 800.0), (None, 800.0)] {
            let rings = nodes(links).rings_among(&ranks);
            let expected_s = 7.0 + 10.0 + 15.0 / 16.0 * 1600.0 / bytes_per_s;
            assert_eq!(Collective::AllGather.seconds(1600.0, &rings), expected_s);
        }
    }

    #[test]
    fn messages_share_the_links_of_their_nodes() {
        let messages: Vec<(usize, usize, usize)> = (0..4).map(|rank| (rank, rank + 8, 200)).collect();
        for (links, seconds) in [(Some(1), 8.0), (Some(2), 4.0), (Some(8), 2.0), (None, 2.0)] {
            assert_eq!(nodes(links).messages_s(messages.clone()), 10.0 + seconds);
        }
        let occupied = nodes(Some(2)).occupied_by_messages(messages);
        assert_eq!(occupied.len(), 2);
        assert!(occupied.iter().all(|one| one.links == 2 && one.seconds == 4.0));
        // Messages in opposite directions share nothing.
        assert_eq!(nodes(Some(1)).messages_s([(0, 8, 100), (9, 1, 100)]), 10.0 + 1.0);
    }
}
