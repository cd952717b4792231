//! Global tensors and their shards, as bytes: scatter and gather.

use partita_base::DType;
use partita_mesh::{Mesh, Sharding};

/// A box of a dense row-major tensor.
struct Window<'a> {
    shape: &'a [usize],
    start: &'a [usize],
}

impl Window<'_> {
    /// Position of the first element of row `index` (of the dimensions but the last) of the box.
    fn row(&self, extents: &[usize], index: usize) -> usize {
        let rank = self.shape.len();
        let (mut rest, mut position, mut stride) = (index, self.start[rank - 1], self.shape[rank - 1]);
        for d in (0..rank - 1).rev() {
            position += (self.start[d] + rest % extents[d]) * stride;
            rest /= extents[d];
            stride *= self.shape[d];
        }
        position
    }
}

/// Copies a box of these extents from one dense tensor to another.
fn copy_box(size: usize, extents: &[usize], from: (&[u8], Window), to: (&mut [u8], Window)) {
    let Some(&last) = extents.last() else {
        to.0.copy_from_slice(from.0);
        return;
    };
    let rows: usize = extents[..extents.len() - 1].iter().product();
    if last == 0 {
        return;
    }
    for row in 0..rows {
        let (source, target) = (from.1.row(extents, row) * size, to.1.row(extents, row) * size);
        to.0[target..target + last * size].copy_from_slice(&from.0[source..source + last * size]);
    }
}

/// Copies a dense part into a dense tensor of `shape`, from index `offset` on. `size`: bytes of an element.
pub(crate) fn place(
    size: usize,
    part: &[u8],
    extents: &[usize],
    whole: &mut [u8],
    shape: &[usize],
    offset: &[usize],
) {
    let zero = vec![0; shape.len()];
    let from = Window { shape: extents, start: &zero };
    copy_box(size, extents, (part, from), (whole, Window { shape, start: offset }));
}

/// The first index and the extents of what two boxes of a tensor share, each given in the same way; `None` for nothing.
pub(crate) fn shared(
    one: (&[usize], &[usize]),
    other: (&[usize], &[usize]),
) -> Option<(Vec<usize>, Vec<usize>)> {
    let start: Vec<usize> = one.0.iter().zip(other.0).map(|(a, b)| *a.max(b)).collect();
    let end = |d: usize| (one.0[d] + one.1[d]).min(other.0[d] + other.1[d]);
    let extents = (0..start.len()).map(|d| end(d).checked_sub(start[d]).filter(|&extent| extent > 0));
    let extents = extents.collect::<Option<Vec<usize>>>()?;
    Some((start, extents))
}

/// Copies what two dense boxes of a tensor share; returns the number of elements.
pub(crate) fn copy_shared(
    size: usize,
    from: (&[u8], (&[usize], &[usize])),
    to: (&mut [u8], (&[usize], &[usize])),
) -> usize {
    let Some((start, extents)) = shared(from.1, to.1) else { return 0 };
    let within = |offset: &[usize]| start.iter().zip(offset).map(|(at, from)| at - from).collect::<Vec<_>>();
    let (source, target) = (within(from.1.0), within(to.1.0));
    let from = (from.0, Window { shape: from.1.1, start: &source });
    copy_box(size, &extents, from, (to.0, Window { shape: to.1.1, start: &target }));
    extents.iter().product()
}

/// The shard of a global tensor at position `rank` of the mesh: dense bytes of its local shape,
/// empty if its shard is. `global` has the bytes of `shape`; the sharding is not partial.
pub fn scatter(
    global: &[u8],
    dtype: DType,
    shape: &[usize],
    sharding: &Sharding,
    mesh: &Mesh,
    rank: usize,
) -> Vec<u8> {
    let extents = sharding.local_shape(mesh, shape, rank);
    let mut local = vec![0; extents.iter().product::<usize>() * dtype.size_bytes()];
    scatter_into(global, dtype, shape, sharding, mesh, rank, &mut local);
    local
}

/// As [`scatter`], into bytes of the size of the shard.
pub fn scatter_into(
    global: &[u8],
    dtype: DType,
    shape: &[usize],
    sharding: &Sharding,
    mesh: &Mesh,
    rank: usize,
    local: &mut [u8],
) {
    let size = dtype.size_bytes();
    let extents = sharding.local_shape(mesh, shape, rank);
    if extents == shape {
        return local.copy_from_slice(global);
    }
    let offset = sharding.local_offset(mesh, shape, rank);
    let zero = vec![0; shape.len()];
    let to = Window { shape: &extents, start: &zero };
    copy_box(size, &extents, (global, Window { shape, start: &offset }), (local, to));
}

/// The global tensor from the shards of the mesh positions, which `local` returns. Of positions
/// with the same shard, only the lowest is called. `None` if `local` returns none: another process
/// gathers the tensor.
///
/// # Errors
/// Those of `local`.
pub fn gather<E>(
    dtype: DType,
    shape: &[usize],
    sharding: &Sharding,
    mesh: &Mesh,
    mut local: impl FnMut(usize) -> Result<Option<Vec<u8>>, E>,
) -> Result<Option<Vec<u8>>, E> {
    let size = dtype.size_bytes();
    if mesh.rank_count() > 0 && sharding.local_shape(mesh, shape, 0) == shape && !shape.contains(&0) {
        return local(0);
    }
    let zero = vec![0; shape.len()];
    let mut global = Some(vec![0; shape.iter().product::<usize>() * size]);
    let mut seen: Vec<Vec<usize>> = Vec::new();
    for rank in 0..mesh.rank_count() {
        let extents = sharding.local_shape(mesh, shape, rank);
        let offset = sharding.local_offset(mesh, shape, rank);
        // Nonempty shards are identified by their offset.
        if extents.contains(&0) || seen.contains(&offset) {
            continue;
        }
        match (local(rank)?, &mut global) {
            (Some(piece), Some(global)) => {
                let from = Window { shape: &extents, start: &zero };
                copy_box(size, &extents, (&piece, from), (global, Window { shape, start: &offset }));
            }
            // The remaining calls are made all the same: the gathering process waits for them.
            _ => global = None,
        }
        seen.push(offset);
    }
    Ok(global)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_gets_its_elements_and_gathering_restores_the_tensor() {
        let mesh = Mesh::new("m", &[("a", 2), ("b", 3)]);
        let (a, b) = (mesh.full_axis(0), mesh.full_axis(1));
        let layouts = [
            Sharding::replicated(2),
            Sharding::replicated(2).with_dim(0, [a]),
            Sharding::replicated(2).with_dim(0, [a, b]),
            Sharding::replicated(2).with_dim(0, [b]).with_dim(1, [a]),
            Sharding::replicated(2).with_dim(1, [b]),
        ];
        for shape in [[5, 7], [1, 2], [6, 0], [4, 4]] {
            let count = shape[0] * shape[1];
            let global: Vec<u8> = (0..count as u16).flat_map(u16::to_ne_bytes).collect();
            for layout in &layouts {
                let locals: Vec<Vec<u8>> =
                    (0..6).map(|r| scatter(&global, DType::U16, &shape, layout, &mesh, r)).collect();
                for (rank, local) in locals.iter().enumerate() {
                    let (offset, extents) =
                        (layout.local_offset(&mesh, &shape, rank), layout.local_shape(&mesh, &shape, rank));
                    let expected: Vec<u16> = (offset[0]..offset[0] + extents[0])
                        .flat_map(|i| {
                            (offset[1]..offset[1] + extents[1]).map(move |j| (i * shape[1] + j) as u16)
                        })
                        .collect();
                    let found: Vec<u16> = bytemuck::allocation::pod_collect_to_vec(local);
                    assert_eq!(found, expected, "{shape:?} {layout:?} rank {rank}");
                }
                let mut asked = Vec::new();
                let back = gather(DType::U16, &shape, layout, &mesh, |rank| {
                    asked.push(rank);
                    Ok::<_, ()>(Some(locals[rank].clone()))
                });
                assert_eq!(back, Ok(Some(global.clone())));
                if layout.is_replicated() && count > 0 {
                    assert_eq!(asked, [0]);
                }
            }
        }
    }

    #[test]
    fn scalars_are_copied_whole() {
        let mesh = Mesh::new("m", &[("a", 2)]);
        let layout = Sharding::replicated(0);
        assert_eq!(scatter(&[1, 2, 3, 4], DType::F32, &[], &layout, &mesh, 1), [1, 2, 3, 4]);
        let back = gather(DType::F32, &[], &layout, &mesh, |_| Ok::<_, ()>(Some(vec![4, 3, 2, 1])));
        assert_eq!(back, Ok(Some(vec![4, 3, 2, 1])));
        assert_eq!(gather(DType::F32, &[], &layout, &mesh, |_| Ok::<_, ()>(None)), Ok(None));
    }
}
