//! Resharding across meshes: the boxes that move when a tensor goes from the ranks of one mesh to
//! those of another.
//!
//! Ranks of the second mesh that need the same elements can each receive them, or each receive a
//! part and gather the rest among themselves (Zheng et al., *Alpa*, 2022, section 6). Then each
//! element crosses between the meshes once. [`once`] lists the layouts in which it does.

use crate::mesh::{AxisRef, Mesh};
use crate::sharding::Sharding;
use std::collections::BTreeMap;

/// A box of elements that moves from one rank to another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BoxMove {
    /// The sending member: a rank of the first mesh.
    pub source: usize,
    /// The receiving member: the size of the first mesh plus a rank of the second.
    pub target: usize,
    /// Start of the box in the shard of the source.
    pub source_start: Vec<usize>,
    /// Start of the box in the shard of the target.
    pub target_start: Vec<usize>,
    /// Its extents.
    pub extents: Vec<usize>,
}

impl BoxMove {
    /// The number of elements that move.
    pub fn elements(&self) -> usize {
        self.extents.iter().product()
    }
}

/// The boxes that move a tensor of this shape from a layout on one mesh to a layout on another.
/// Each rank of the second mesh receives every element of its shard once. If several ranks of the
/// first mesh hold the same shard, they share the work: target rank `r` receives from replica `r
/// mod replicas`. `from` must not be partial.
pub fn transfer(
    shape: &[usize],
    (from, from_mesh): (&Sharding, &Mesh),
    (to, to_mesh): (&Sharding, &Mesh),
) -> Vec<BoxMove> {
    // The distinct shards of each mesh, by offset and shape, with the ranks that hold them.
    let shards = |layout: &Sharding, mesh: &Mesh| {
        let mut holders: BTreeMap<(Vec<usize>, Vec<usize>), Vec<usize>> = BTreeMap::new();
        for rank in 0..mesh.rank_count() {
            let shard = (layout.local_offset(mesh, shape, rank), layout.local_shape(mesh, shape, rank));
            holders.entry(shard).or_default().push(rank);
        }
        holders
    };
    let (held, needed) = (shards(from, from_mesh), shards(to, to_mesh));
    // Shards are boxes of a grid: those that meet a box are found dimension by dimension.
    let grid: Vec<Vec<(usize, usize)>> = (0..shape.len())
        .map(|d| {
            let mut parts: Vec<(usize, usize)> =
                held.keys().map(|(start, size)| (start[d], size[d])).collect();
            parts.sort_unstable();
            parts.dedup();
            parts
        })
        .collect();
    // What each rank of the second mesh receives. Ranks with one shard differ only in whom they receive it from.
    let mut received: Vec<Vec<BoxMove>> = vec![Vec::new(); to_mesh.rank_count()];
    for ((offset, extents), receivers) in needed.iter().filter(|((_, extents), _)| !extents.contains(&0)) {
        let mut met: Vec<(Vec<usize>, Vec<usize>)> = vec![(Vec::new(), Vec::new())];
        for (d, parts) in grid.iter().enumerate() {
            let (begin, end) = (offset[d], offset[d] + extents[d]);
            let first = parts.partition_point(|(start, size)| start + size <= begin);
            let own = parts[first..].iter().take_while(|(start, _)| *start < end).filter(|part| part.1 > 0);
            let own: Vec<&(usize, usize)> = own.collect();
            let more = |(starts, sizes): &(Vec<usize>, Vec<usize>)| {
                let longer = |of: &[usize], last: usize| [of, &[last]].concat();
                own.iter().map(|part| (longer(starts, part.0), longer(sizes, part.1))).collect::<Vec<_>>()
            };
            met = met.iter().flat_map(more).collect();
        }
        for shard in met {
            let Some(senders) = held.get(&shard) else { continue };
            let (start, size) = &shard;
            let begin: Vec<usize> = start.iter().zip(offset).map(|(a, b)| *a.max(b)).collect();
            let end = (0..shape.len()).map(|d| (start[d] + size[d]).min(offset[d] + extents[d]));
            let common: Vec<usize> = end.zip(&begin).map(|(end, begin)| end - begin).collect();
            let within = |origin: &[usize]| begin.iter().zip(origin).map(|(b, o)| b - o).collect();
            let (source_start, target_start): (Vec<usize>, Vec<usize>) = (within(start), within(offset));
            for &rank in receivers {
                received[rank].push(BoxMove {
                    source: senders[rank % senders.len()],
                    target: from_mesh.rank_count() + rank,
                    source_start: source_start.clone(),
                    target_start: target_start.clone(),
                    extents: common.clone(),
                });
            }
        }
    }
    received.into_iter().flatten().collect()
}

/// The layouts in which each element of a tensor arrives on one rank alone, and from which ranks
/// gather the layout `to` among themselves: the axes over which `to` is replicated split one
/// dimension further; one layout for each dimension. Shards may be uneven. Empty if no rank holds what
/// another one does, and for dimensions that are too short.
pub fn once(shape: &[usize], to: &Sharding, mesh: &Mesh) -> Vec<Sharding> {
    let axes = (0..mesh.axes.len()).map(|axis| mesh.full_axis(axis));
    let free: Vec<AxisRef> = axes.filter(|axis| axis.size > 1 && !to.uses_axis(*axis)).collect();
    // A part of an axis may be free as well; then its elements arrive more than once.
    let parts = mesh.axes_size(&free);
    if free.is_empty() || to.is_partial() {
        return Vec::new();
    }
    let split = |dim: usize| {
        let extents = to.dims[dim].extents(shape[dim]);
        let is_long = extents.iter().all(|&extent| extent >= parts) && to.dims[dim].by_element == 0;
        let mut finer = to.clone();
        finer.dims[dim].axes.extend(free.iter().copied());
        is_long.then_some(finer)
    };
    (0..shape.len()).filter_map(split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharding::DimSharding;
    use proptest::prelude::*;

    fn layout(mesh: &Mesh, dims: &[&[usize]], shape: &[usize]) -> Sharding {
        let mut sharding = Sharding::replicated(shape.len());
        for (dim, axes) in dims.iter().enumerate() {
            sharding.dims[dim] = DimSharding::over(axes.iter().map(|&axis| mesh.full_axis(axis)));
        }
        sharding
    }

    proptest! {
        /// Every element of every receiver is written once, with the value of its global position.
        #[test]
        fn receivers_get_each_element_once(
            (rows, columns) in (1usize..7, 1usize..7),
            (a, b) in (0usize..4, 0usize..4),
            (p, q, r) in (1usize..4, 1usize..4, 1usize..4),
        ) {
            let shape = [rows, columns];
            let from_mesh = Mesh::new("a", &[("x", p), ("y", q)]);
            let to_mesh = Mesh::new("b", &[("x", r), ("y", 2)]);
            let dims: [[&[usize]; 2]; 4] = [[&[], &[]], [&[0], &[1]], [&[1], &[]], [&[], &[0, 1]]];
            let (from, to) = (layout(&from_mesh, &dims[a], &shape), layout(&to_mesh, &dims[b], &shape));
            let moves = transfer(&shape, (&from, &from_mesh), (&to, &to_mesh));
            for rank in 0..to_mesh.rank_count() {
                let (offset, extents) =
                    (to.local_offset(&to_mesh, &shape, rank), to.local_shape(&to_mesh, &shape, rank));
                let mut seen = vec![0; extents[0] * extents[1]];
                for m in moves.iter().filter(|m| m.target == from_mesh.rank_count() + rank) {
                    let held = from.local_offset(&from_mesh, &shape, m.source);
                    for i in 0..m.extents[0] {
                        for j in 0..m.extents[1] {
                            let at = [m.target_start[0] + i, m.target_start[1] + j];
                            prop_assert_eq!(held[0] + m.source_start[0] + i, offset[0] + at[0]);
                            prop_assert_eq!(held[1] + m.source_start[1] + j, offset[1] + at[1]);
                            seen[at[0] * extents[1] + at[1]] += 1;
                        }
                    }
                }
                prop_assert!(seen.iter().all(|&times| times == 1));
            }
        }
    }

    fn elements(moves: &[BoxMove]) -> usize {
        moves.iter().map(BoxMove::elements).sum()
    }

    #[test]
    fn once_each_element_crosses_once() {
        let from = Mesh::new("a", &[("tp", 2)]);
        let to = Mesh::new("b", &[("dp", 2), ("tp", 3)]);
        let shape = [7, 10];
        let sent = Sharding::replicated(2).with_dim(1, from.axis_named("tp"));
        // Over `dp` the rows are split, over `tp` all ranks hold the same ones: 3 copies.
        let wanted = Sharding::replicated(2).with_dim(0, to.axis_named("dp"));
        assert_eq!(elements(&transfer(&shape, (&sent, &from), (&wanted, &to))), 3 * 70);
        let layouts = once(&shape, &wanted, &to);
        // 4 and 3 rows among 3 ranks, or 10 columns: 4, 3, 3.
        assert_eq!(layouts.len(), 2);
        for layout in &layouts {
            layout.validate(&to, &shape).unwrap();
            assert_eq!(elements(&transfer(&shape, (&sent, &from), (layout, &to))), 70);
        }
        let sizes =
            |layout: &Sharding| (0..6).map(|rank| layout.local_shape(&to, &shape, rank)).collect::<Vec<_>>();
        assert_eq!(sizes(&layouts[1]), [[4, 4], [4, 3], [4, 3], [3, 4], [3, 3], [3, 3]]);
        assert_eq!(sizes(&layouts[0]), [[2, 10], [1, 10], [1, 10], [1, 10], [1, 10], [1, 10]]);
        // Nothing to gather: every rank needs elements of its own, or there are too few for all.
        assert!(once(&shape, &layouts[0], &to).is_empty());
        assert!(once(&[2, 2], &Sharding::replicated(2), &to).is_empty());
        assert!(once(&[], &Sharding::replicated(0), &to).is_empty());
    }
}
