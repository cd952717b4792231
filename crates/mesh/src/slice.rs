//! Slices of a mesh: the ranks at one position along an axis, as a mesh of their own.

use crate::mesh::{Axis, Mesh};
use crate::role::AxisRole;

/// Some ranks of a mesh, as a mesh.
#[derive(Clone, PartialEq, Debug)]
pub struct Slice {
    /// The mesh of the slice; its ranks are numbered from 0.
    pub mesh: Mesh,
    /// The number in the whole mesh of each rank of the slice, ascending.
    pub ranks: Vec<usize>,
}

impl Slice {
    /// All ranks of a mesh.
    pub fn whole(mesh: &Mesh) -> Slice {
        Slice { mesh: mesh.clone(), ranks: (0..mesh.rank_count()).collect() }
    }
}

impl Mesh {
    /// One slice for each position along an axis, with the remaining axes (`dp=1` if there is
    /// none). The whole mesh if it has no axis of this name.
    pub fn slices(&self, axis: &str) -> Vec<Slice> {
        let Some(position) = self.axes.iter().position(|a| a.name == axis) else {
            return vec![Slice::whole(self)];
        };
        let mut axes: Vec<Axis> = self.axes.clone();
        let size = axes.remove(position).size;
        if axes.is_empty() {
            axes.push(Axis { name: AxisRole::Data.axis().to_string(), size: 1 });
        }
        let mesh = Mesh { name: self.name.clone(), axes, device_ids: None };
        // Along the axis, neighbours are so many ranks apart.
        let inner: usize = self.axes[position + 1..].iter().map(|axis| axis.size).product();
        let outer = self.rank_count() / (inner * size).max(1);
        let ranks = |place: usize| {
            let runs = (0..outer).map(move |run| (run * size + place) * inner);
            runs.flat_map(|first| first..first + inner).collect()
        };
        (0..size).map(|place| Slice { mesh: mesh.clone(), ranks: ranks(place) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(mesh: &str, axis: &str) -> Vec<Vec<usize>> {
        Mesh::parse(mesh, None).unwrap().slices(axis).into_iter().map(|slice| slice.ranks).collect()
    }

    #[test]
    fn a_slice_has_the_ranks_at_one_place_along_the_axis() {
        assert_eq!(ranks("pp=2,tp=2", "pp"), [[0, 1], [2, 3]]);
        assert_eq!(ranks("tp=2,pp=2", "pp"), [[0, 2], [1, 3]]);
        assert_eq!(ranks("pp=3", "pp"), [[0], [1], [2]]);
        assert_eq!(ranks("dp=2", "pp"), [[0, 1]]);
        assert_eq!(ranks("dp=2,pp=2,tp=2", "pp"), [[0, 1, 4, 5], [2, 3, 6, 7]]);
        let slices = Mesh::parse("pp=2,tp=2", None).unwrap().slices("pp");
        assert_eq!(slices[1].mesh.to_string(), "tp=2");
    }
}
