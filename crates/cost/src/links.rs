//! Links and collectives: the seconds of communication between ranks.
//!
//! A link is priced by the alpha-beta model: a latency, and seconds per byte. A group over several
//! mesh axes, or over several levels of a cluster, is a sequence of rings: each ring adds its own
//! hops of latency, and the bytes cost the time of the slowest level among them. Where the ranks of a
//! ring of faster links share a slower level, each of them carries its part over that level with a
//! link of its own, as NCCL uses all network cards of a node, or with its part of the links that the node has
//! (module `sharing`). The formulas are
//! those of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
//! Operations in MPICH", 2005, with p ranks, n bytes, latency a and seconds per byte b:
//!
//! | collective | ring | tree |
//! |---|---|---|
//! | all_gather, n gathered | (p-1) a + (p-1)/p n b | log2(p) a + (p-1)/p n b, recursive doubling |
//! | reduce_scatter, n combined | (p-1) a + (p-1)/p n b | log2(p) a + (p-1)/p n b, recursive halving |
//! | all_reduce, n combined | a reduce_scatter and an all_gather | the same, Rabenseifner's algorithm |
//! | all_to_all, n on each rank | (p-1) a + (p-1)/p n b, pairwise | the same |
//! | permute, n on each rank | a + n b | the same |

/// A link between two ranks.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Link {
    /// Latency of a message, in seconds.
    pub latency_s: f64,
    /// Bandwidth of one rank in each direction, in bytes per second.
    pub bytes_per_s: f64,
    /// The algorithm of collectives over these links.
    pub algorithm: Algorithm,
}

impl Link {
    /// The link as both ends of a connection see it that have links of different kinds.
    pub(crate) fn slower(self, other: Link) -> Link {
        let slow = if other.bytes_per_s < self.bytes_per_s { other } else { self };
        Link { latency_s: self.latency_s.max(other.latency_s), ..slow }
    }

    /// The link with bytes that take so many times longer.
    pub(crate) fn shared(self, times: f64) -> Link {
        Link { bytes_per_s: self.bytes_per_s / times, ..self }
    }
}

/// The algorithm of a collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Algorithm {
    /// Each rank passes parts on to the next one.
    #[default]
    Ring,
    /// Ranks exchange in pairs at doubling distances.
    Tree,
}

impl Algorithm {
    /// Every algorithm, with its name in configs.
    pub const ALL: [(&'static str, Algorithm); 2] = [("ring", Algorithm::Ring), ("tree", Algorithm::Tree)];
}

/// The ranks of a group that links of one level connect.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Ring {
    /// The level of the cluster.
    pub level: usize,
    /// Their number.
    pub ranks: usize,
    /// The link between them, as each of them sees it.
    pub link: Link,
}

/// A collective of a group of ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Collective {
    /// Each rank receives all shards of a tensor.
    AllGather,
    /// Each rank receives the combination of all tensors.
    AllReduce,
    /// Each rank receives its shard of the combination of all tensors.
    ReduceScatter,
    /// Each rank sends an equal part of its tensor to each rank.
    AllToAll,
    /// Each rank sends its tensor to one other rank.
    Permute,
}

impl Collective {
    /// Every collective.
    pub const ALL: [Collective; 5] = [
        Collective::AllGather,
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::Permute,
    ];

    /// Seconds in a group of these rings. `bytes` is the size of the full tensor for a gather or a
    /// reduction, and of each rank's tensor for an all_to_all or a permute.
    pub fn seconds(self, bytes: f64, rings: &[Ring]) -> f64 {
        let ranks: usize = rings.iter().map(|ring| ring.ranks).product();
        if ranks <= 1 {
            return 0.0;
        }
        let each_other = |ring: &Ring| ring.ranks - 1;
        let by_algorithm = |ring: &Ring| match ring.link.algorithm {
            Algorithm::Ring => ring.ranks - 1,
            Algorithm::Tree => ring.ranks.next_power_of_two().ilog2() as usize,
        };
        let hops_s = |hops: &dyn Fn(&Ring) -> usize| -> f64 {
            rings.iter().map(|ring| ring.link.latency_s * hops(ring) as f64).sum()
        };
        let latency_s = match self {
            Collective::AllGather | Collective::ReduceScatter => hops_s(&by_algorithm),
            Collective::AllReduce => 2.0 * hops_s(&by_algorithm),
            Collective::AllToAll => hops_s(&each_other),
            Collective::Permute => rings.iter().map(|ring| ring.link.latency_s).fold(0.0, f64::max),
        };
        let crossed = rings.iter().filter(|ring| ring.ranks > 1);
        latency_s + crossed.map(|ring| self.over_s(bytes, rings, ring)).fold(0.0, f64::max)
    }

    /// Seconds for which bytes move over the links of one of the rings of a group.
    pub(crate) fn over_s(self, bytes: f64, rings: &[Ring], ring: &Ring) -> f64 {
        let ranks: usize = rings.iter().map(|ring| ring.ranks).product();
        // The ranks of rings with faster links share the bytes among their own links of this level.
        let within = rings.iter().filter(|inner| inner.link.bytes_per_s > ring.link.bytes_per_s);
        let shared = ring.link.bytes_per_s * within.map(|inner| inner.ranks).product::<usize>() as f64;
        let once = |bytes_per_s: f64| (ranks - 1) as f64 / ranks as f64 * bytes / bytes_per_s;
        match self {
            Collective::AllGather | Collective::ReduceScatter => once(shared),
            Collective::AllReduce => 2.0 * once(shared),
            Collective::AllToAll => once(ring.link.bytes_per_s),
            Collective::Permute => bytes / ring.link.bytes_per_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(ranks: usize, latency_s: f64, bytes_per_s: f64, algorithm: Algorithm) -> Ring {
        Ring { level: 0, ranks, link: Link { latency_s, bytes_per_s, algorithm } }
    }

    #[test]
    fn collectives_cost_hops_and_the_slowest_link() {
        let dp = ring(2, 1.0, 10.0, Algorithm::Ring);
        let tp = ring(4, 0.25, 100.0, Algorithm::Ring);
        assert_eq!(Collective::AllGather.seconds(400.0, &[tp]), 0.75 + 3.0);
        assert_eq!(Collective::AllReduce.seconds(400.0, &[tp]), 2.0 * (0.75 + 3.0));
        assert_eq!(Collective::ReduceScatter.seconds(400.0, &[dp]), 1.0 + 20.0);
        assert_eq!(Collective::AllToAll.seconds(400.0, &[dp, tp]), 1.75 + 35.0);
        assert_eq!(Collective::Permute.seconds(400.0, &[dp, tp]), 1.0 + 40.0);
        assert_eq!(Collective::AllGather.seconds(400.0, &[]), 0.0);
        // Four ranks of a node have four links to the other node: 40 bytes per second against 100.
        assert_eq!(Collective::AllGather.seconds(400.0, &[tp, dp]), 0.75 + 1.0 + 350.0 / 40.0);
        let wide = ring(16, 0.25, 100.0, Algorithm::Ring);
        assert_eq!(Collective::AllGather.seconds(320.0, &[wide, dp]), 3.75 + 1.0 + 310.0 / 100.0);
    }

    #[test]
    fn a_tree_has_fewer_hops() {
        let tree = |ranks| ring(ranks, 1.0, 100.0, Algorithm::Tree);
        assert_eq!(Collective::AllReduce.seconds(0.0, &[tree(8)]), 6.0);
        assert_eq!(Collective::AllGather.seconds(0.0, &[tree(5)]), 3.0);
        assert_eq!(Collective::AllToAll.seconds(0.0, &[tree(8)]), 7.0);
    }
}
