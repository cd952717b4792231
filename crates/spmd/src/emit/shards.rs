//! Which piece of a dimension each rank holds: computed once for every way a dimension is split.
//!
//! A step has many values but few layouts, so that tables over all ranks are shared between them.

use partita_ir::ops::Groups;
use partita_mesh::{AxisRef, DimSharding, Mesh, Sharding};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The offset and the extent of each rank's piece, by rank.
pub(super) struct ShardTable {
    pub offsets: Vec<usize>,
    pub extents: Vec<usize>,
    /// Whether all ranks have equal extents.
    pub is_even: bool,
}

/// Tables over the ranks of a mesh, made on demand.
pub(super) struct Shards<'a> {
    mesh: &'a Mesh,
    pieces: RefCell<BTreeMap<(DimSharding, usize), Rc<ShardTable>>>,
    groups: RefCell<BTreeMap<Vec<AxisRef>, Groups>>,
}

impl<'a> Shards<'a> {
    pub fn new(mesh: &'a Mesh) -> Self {
        Shards { mesh, pieces: RefCell::default(), groups: RefCell::default() }
    }

    /// The pieces of a dimension of `size` elements.
    pub fn pieces(&self, dim: &DimSharding, size: usize) -> Rc<ShardTable> {
        let key = (dim.clone(), size);
        if let Some(known) = self.pieces.borrow().get(&key) {
            return known.clone();
        }
        let extents = dim.extents(size);
        let offsets: Vec<usize> =
            extents.iter().scan(0, |next, extent| Some(std::mem::replace(next, *next + extent))).collect();
        let is_even = extents.iter().all(|extent| *extent == extents[0]);
        let positions: Vec<usize> =
            (0..self.mesh.rank_count()).map(|rank| self.mesh.position(rank, &dim.axes)).collect();
        let of = |table: &[usize]| positions.iter().map(|&position| table[position]).collect();
        let pieces = Rc::new(ShardTable { offsets: of(&offsets), extents: of(&extents), is_even });
        self.pieces.borrow_mut().insert(key, pieces.clone());
        pieces
    }

    /// What `rank` holds of a tensor of this global shape.
    pub fn local_shape(&self, sharding: &Sharding, shape: &[usize], rank: usize) -> Vec<usize> {
        let dims = sharding.dims.iter().zip(shape);
        dims.map(|(dim, &size)| self.pieces(dim, size).extents[rank]).collect()
    }

    /// [`Mesh::groups`], shared.
    pub fn groups(&self, axes: &[AxisRef]) -> Groups {
        let mut known = self.groups.borrow_mut();
        known.entry(axes.to_vec()).or_insert_with(|| self.mesh.groups(axes).into()).clone()
    }
}
