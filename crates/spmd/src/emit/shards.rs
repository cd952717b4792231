//! Tables of the shard that each rank holds, computed once for each distinct split of a dimension.
//!
//! A step has many values but few layouts. Tables over all ranks are therefore shared between
//! values, as are their summaries by rank class.

use partita_ir::ops::Groups;
use partita_mesh::{AxisRef, DimSharding, Mesh};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Numbers by rank. Tables with equal numbers have equal ids.
#[derive(Clone)]
pub(super) struct RankTable {
    pub id: usize,
    pub values: Rc<[i64]>,
}

/// The offset and the extent of each rank's shard, by rank.
pub(super) struct ShardTable {
    pub offsets: RankTable,
    pub extents: Vec<usize>,
    /// Whether all ranks have equal extents.
    pub is_even: bool,
    /// The extent on the members of each class; `None` if they differ.
    pub of_class: Vec<Option<usize>>,
}

/// The extents of a dimension on the members of each group over some axes.
pub(super) struct GroupTable {
    /// The distinct lists of extents.
    pub lists: Vec<Vec<usize>>,
    /// For each rank, the index of its group's list.
    pub of_rank: Vec<usize>,
    /// For each class, the index of its members' list; `None` if they differ.
    pub of_class: Vec<Option<usize>>,
}

/// What the numbers of a table mean.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Says {
    /// 1 on the first rank along these axes, 0 elsewhere.
    Leads(Vec<AxisRef>),
    /// The number in this list at the position along these axes.
    At(Vec<AxisRef>, Vec<i64>),
    /// The offset of a shard of the second layout within that of the first.
    Within(DimSharding, DimSharding, usize),
}

/// Tables over the ranks of a mesh, built on demand.
pub(super) struct Shards<'a> {
    mesh: &'a Mesh,
    class_of: Vec<usize>,
    class_count: usize,
    /// Number of tables over all ranks built so far.
    made: Cell<usize>,
    positions: RefCell<BTreeMap<Vec<AxisRef>, Rc<[usize]>>>,
    pieces: RefCell<BTreeMap<(DimSharding, usize), Rc<ShardTable>>>,
    groups: RefCell<BTreeMap<Vec<AxisRef>, Groups>>,
    in_groups: RefCell<BTreeMap<(DimSharding, usize, Vec<AxisRef>), Rc<GroupTable>>>,
    tables: RefCell<BTreeMap<Says, RankTable>>,
    ids: RefCell<BTreeMap<Rc<[i64]>, usize>>,
}

impl<'a> Shards<'a> {
    pub fn new(mesh: &'a Mesh, classes: &[Vec<usize>]) -> Self {
        let mut class_of = vec![0; mesh.rank_count()];
        for (class, members) in classes.iter().enumerate() {
            members.iter().for_each(|&rank| class_of[rank] = class);
        }
        Shards {
            mesh,
            class_of,
            class_count: classes.len(),
            made: Cell::new(0),
            positions: RefCell::default(),
            pieces: RefCell::default(),
            groups: RefCell::default(),
            in_groups: RefCell::default(),
            tables: RefCell::default(),
            ids: RefCell::default(),
        }
    }

    /// Number of tables with one entry per rank built so far.
    pub fn made(&self) -> usize {
        self.made.get()
    }

    /// The position of each rank along the axes.
    fn positions(&self, axes: &[AxisRef]) -> Rc<[usize]> {
        if let Some(known) = self.positions.borrow().get(axes) {
            return known.clone();
        }
        self.made.set(self.made.get() + 1);
        let all: Rc<[usize]> =
            (0..self.mesh.rank_count()).map(|rank| self.mesh.position(rank, axes)).collect();
        self.positions.borrow_mut().insert(axes.to_vec(), all.clone());
        all
    }

    /// The table of these numbers.
    fn table(&self, values: Rc<[i64]>) -> RankTable {
        self.made.set(self.made.get() + 1);
        let mut ids = self.ids.borrow_mut();
        let next = ids.len();
        let id = *ids.entry(values.clone()).or_insert(next);
        RankTable { id, values }
    }

    /// The value of `of` that all members of a class share, by class; `None` if they differ.
    fn by_class(&self, of: &[usize]) -> Vec<Option<usize>> {
        let mut found: Vec<Option<usize>> = vec![None; self.class_count];
        let mut differ = vec![false; self.class_count];
        for (&class, &value) in self.class_of.iter().zip(of) {
            differ[class] |= *found[class].get_or_insert(value) != value;
        }
        found.into_iter().zip(differ).map(|(value, differ)| value.filter(|_| !differ)).collect()
    }

    /// The shards of a dimension of `size` elements.
    pub fn pieces(&self, dim: &DimSharding, size: usize) -> Rc<ShardTable> {
        let key = (dim.clone(), size);
        if let Some(known) = self.pieces.borrow().get(&key) {
            return known.clone();
        }
        let extents = dim.extents(size);
        let offsets: Vec<i64> = extents
            .iter()
            .scan(0, |next, extent| Some(std::mem::replace(next, *next + *extent as i64)))
            .collect();
        let is_even = extents.iter().all(|extent| *extent == extents[0]);
        let positions = self.positions(&dim.axes);
        let extents: Vec<usize> = positions.iter().map(|&position| extents[position]).collect();
        let offsets = self.table(positions.iter().map(|&position| offsets[position]).collect());
        let of_class = self.by_class(&extents);
        let pieces = Rc::new(ShardTable { offsets, extents, is_even, of_class });
        self.pieces.borrow_mut().insert(key, pieces.clone());
        pieces
    }

    /// The extents of a dimension of `size` elements by group over `axes`.
    pub fn in_groups(&self, dim: &DimSharding, size: usize, axes: &[AxisRef]) -> Rc<GroupTable> {
        let key = (dim.clone(), size, axes.to_vec());
        if let Some(known) = self.in_groups.borrow().get(&key) {
            return known.clone();
        }
        let pieces = self.pieces(dim, size);
        let mut numbers: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        let mut of_rank = vec![0; self.mesh.rank_count()];
        for group in self.groups(axes).iter() {
            let list: Vec<usize> = group.iter().map(|&member| pieces.extents[member]).collect();
            let next = numbers.len();
            let number = *numbers.entry(list).or_insert(next);
            group.iter().for_each(|&member| of_rank[member] = number);
        }
        let mut lists = vec![Vec::new(); numbers.len()];
        numbers.into_iter().for_each(|(list, number)| lists[number] = list);
        self.made.set(self.made.get() + 1);
        let of_class = self.by_class(&of_rank);
        let table = Rc::new(GroupTable { lists, of_rank, of_class });
        self.in_groups.borrow_mut().insert(key, table.clone());
        table
    }

    /// 1 on the first rank along the axes, 0 elsewhere.
    pub fn leads(&self, axes: &[AxisRef]) -> RankTable {
        self.known(Says::Leads(axes.to_vec()), || {
            self.positions(axes).iter().map(|&position| i64::from(position == 0)).collect()
        })
    }

    /// The entry at each rank's position along the axes.
    pub fn at_position(&self, axes: &[AxisRef], entries: &[i64]) -> RankTable {
        self.known(Says::At(axes.to_vec(), entries.to_vec()), || {
            self.positions(axes).iter().map(|&position| entries[position]).collect()
        })
    }

    /// The offset of each rank's shard under `new` within its shard under `old`.
    pub fn within(&self, old: &DimSharding, new: &DimSharding, size: usize) -> RankTable {
        self.known(Says::Within(old.clone(), new.clone(), size), || {
            let (old, new) = (self.pieces(old, size), self.pieces(new, size));
            new.offsets.values.iter().zip(old.offsets.values.iter()).map(|(new, old)| new - old).collect()
        })
    }

    fn known(&self, says: Says, make: impl FnOnce() -> Rc<[i64]>) -> RankTable {
        if let Some(known) = self.tables.borrow().get(&says) {
            return known.clone();
        }
        let table = self.table(make());
        self.tables.borrow_mut().insert(says, table.clone());
        table
    }

    /// [`Mesh::groups`], cached.
    pub fn groups(&self, axes: &[AxisRef]) -> Groups {
        if let Some(known) = self.groups.borrow().get(axes) {
            return known.clone();
        }
        let groups: Groups = self.mesh.groups(axes).into();
        self.groups.borrow_mut().insert(axes.to_vec(), groups.clone());
        groups
    }
}
