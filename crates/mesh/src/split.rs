//! The split rule: how one dimension is split along mesh axes.
//!
//! **Nested, prime by prime.** A dimension of `size` elements with a `unit` has `size / unit`
//! units. Axes split it from major to minor, and an axis of size `s` splits along the ascending
//! prime factors of `s`. Each step of prime `p` splits every segment of `L` units into `p` balanced
//! parts: the first `L mod p` have `ceil(L / p)` units, the others `floor(L / p)`. So 32 over 3 is
//! 11, 11, 10; 10 over 4 is 3, 2, 3, 2; 2 over 4 is 1, 0, 1, 0.
//!
//! Because splits nest, layouts compose, even uneven ones. The ranks of a group over the minor-most
//! axes hold consecutive shards of one segment, so removing those axes is always one all_gather
//! within the group, and adding minor axes is always a local slice. An axis equals its parts
//! `x:(p)a, x:(p*a)b` exactly if the primes of `a` followed by those of `b` ascend. Position 0
//! along any axes holds the largest shard.

use crate::mesh::{AxisRef, Mesh};

/// The prime factors of `n` in ascending order, with repetition; none for 0 and 1.
pub(crate) fn primes(mut n: usize) -> impl Iterator<Item = usize> {
    let mut candidate = 2;
    std::iter::from_fn(move || {
        if n < 2 {
            return None;
        }
        while !n.is_multiple_of(candidate) {
            candidate = if candidate * candidate > n { n } else { candidate + 1 };
        }
        n /= candidate;
        Some(candidate)
    })
}

/// The offset and length of part `index` of `length` split into `parts`.
fn balanced_part(length: usize, parts: usize, index: usize) -> (usize, usize) {
    let (each, longer) = (length / parts, length % parts);
    (index * each + index.min(longer), each + usize::from(index < longer))
}

/// Extents of the shards of a dimension of `size` elements along its ordered axes, split in units
/// of `unit` elements. Entry `i` is the extent at flat position `i`, major to minor. `unit` must
/// divide `size`.
pub fn split_extents(size: usize, unit: usize, axes: &[AxisRef]) -> Vec<usize> {
    let mut extents = vec![size / unit];
    for prime in axes.iter().flat_map(|axis| primes(axis.size)) {
        extents = extents
            .iter()
            .flat_map(|&length| (0..prime).map(move |i| balanced_part(length, prime, i).1))
            .collect();
    }
    extents.iter().map(|units| units * unit).collect()
}

/// The offset of each shard of [`split_extents`], in elements.
pub fn split_offsets(size: usize, unit: usize, axes: &[AxisRef]) -> Vec<usize> {
    let extents = split_extents(size, unit, axes);
    extents.iter().scan(0, |offset, extent| Some((*offset, *offset += extent).0)).collect()
}

/// The offset and extent of one rank's shard, in elements: its entries of [`split_offsets`] and
/// [`split_extents`], computed without the tables.
pub(crate) fn piece(mesh: &Mesh, size: usize, unit: usize, axes: &[AxisRef], rank: usize) -> (usize, usize) {
    let (mut offset, mut length) = (0, size / unit);
    for &axis in axes {
        let place = mesh.place(rank, axis);
        let mut minor = axis.size;
        for prime in primes(axis.size) {
            minor /= prime;
            let (shift, part) = balanced_part(length, prime, place / minor % prime);
            (offset, length) = (offset + shift, part);
        }
    }
    (offset * unit, length * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(sizes: &[usize]) -> Vec<AxisRef> {
        sizes.iter().enumerate().map(|(axis, &size)| AxisRef { axis, pre: 1, size }).collect()
    }

    #[test]
    fn dimensions_split_as_documented() {
        assert_eq!(split_extents(32, 1, &axes(&[3])), [11, 11, 10]);
        assert_eq!(split_extents(10, 1, &axes(&[4])), [3, 2, 3, 2]);
        assert_eq!(split_extents(2, 1, &axes(&[4])), [1, 0, 1, 0]);
        assert_eq!(split_extents(12, 4, &axes(&[2])), [8, 4]);
        assert_eq!(split_offsets(10, 1, &axes(&[4])), [0, 3, 5, 8]);
        assert_eq!(split_extents(7, 1, &[]), [7]);
    }

    #[test]
    fn primes_ascend_and_multiply_back() {
        for n in 1..200 {
            let factors: Vec<usize> = primes(n).collect();
            assert_eq!(factors.iter().product::<usize>(), n);
            assert!(
                factors.is_sorted() && factors.iter().all(|&p| (2..p).all(|d| p % d != 0)),
                "{n}: {factors:?}"
            );
        }
    }

    #[test]
    fn minor_axes_cut_within_the_pieces_of_the_major_ones() {
        for size in 0..40 {
            for sizes in [&[2, 3][..], &[3, 2], &[4, 6], &[6, 2], &[5, 4]] {
                let axes = axes(sizes);
                let (coarse, fine) = (split_extents(size, 1, &axes[..1]), split_extents(size, 1, &axes));
                let sums: Vec<usize> = fine.chunks(sizes[1]).map(|piece| piece.iter().sum()).collect();
                assert_eq!(sums, coarse, "{size} over {sizes:?}");
                assert_eq!(fine.iter().max(), fine.first(), "position 0 holds the largest piece");
            }
        }
    }

    #[test]
    fn one_ranks_piece_agrees_with_the_table() {
        let mesh = Mesh::new("m", &[("a", 6), ("b", 4)]);
        let (thirds, b) = (AxisRef { axis: 0, pre: 2, size: 3 }, mesh.full_axis(1));
        for axes in [vec![mesh.full_axis(0), b], vec![b, thirds], vec![thirds], vec![]] {
            for (size, unit) in [(0, 1), (1, 1), (23, 1), (24, 1), (60, 5), (22, 2)] {
                let (offsets, extents) = (split_offsets(size, unit, &axes), split_extents(size, unit, &axes));
                for rank in 0..24 {
                    let at = mesh.position(rank, &axes);
                    assert_eq!(piece(&mesh, size, unit, &axes, rank), (offsets[at], extents[at]));
                }
            }
        }
    }
}
