//! Which piece of a dimension each rank holds: computed once for every way a dimension is split.
//!
//! A step has many values but few layouts, so that tables over all ranks are shared between them, and so is what they
//! say of a class of ranks as a whole.

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

/// The offset and the extent of each rank's piece, by rank.
pub(super) struct ShardTable {
    pub offsets: RankTable,
    pub extents: Vec<usize>,
    /// Whether all ranks have equal extents.
    pub is_even: bool,
    /// The extent on the members of each class; `None` where they differ.
    pub of_class: Vec<Option<usize>>,
}

/// What the members of the groups over some axes hold of a dimension.
pub(super) struct GroupTable {
    /// The lists of extents that occur, each once.
    pub lists: Vec<Vec<usize>>,
    /// The number of the list of the rank's group.
    pub of_rank: Vec<usize>,
    /// The number of the list for the members of each class; `None` where they differ.
    pub of_class: Vec<Option<usize>>,
}

/// What tables of numbers say.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Says {
    /// 1 on the first rank along these axes, 0 elsewhere.
    Leads(Vec<AxisRef>),
    /// How far a piece of the second layout lies within that of the first.
    Within(DimSharding, DimSharding, usize),
}

/// Tables over the ranks of a mesh, made on demand.
pub(super) struct Shards<'a> {
    mesh: &'a Mesh,
    class_of: Vec<usize>,
    class_count: usize,
    /// How many tables over all ranks have been made.
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

    /// How many tables with an entry for each rank there are.
    pub fn made(&self) -> usize {
        self.made.get()
    }

    /// The place of each rank along the axes.
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

    /// What `of` says of the members of each class; `None` where they differ.
    fn by_class(&self, of: &[usize]) -> Vec<Option<usize>> {
        let mut found: Vec<Option<usize>> = vec![None; self.class_count];
        let mut differ = vec![false; self.class_count];
        for (&class, &value) in self.class_of.iter().zip(of) {
            differ[class] |= *found[class].get_or_insert(value) != value;
        }
        found.into_iter().zip(differ).map(|(value, differ)| value.filter(|_| !differ)).collect()
    }

    /// The pieces of a dimension of `size` elements.
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

    /// What the groups over `axes` hold of a dimension of `size` elements.
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

    /// Where the piece of each rank under `new` begins within its piece under `old`.
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

    /// [`Mesh::groups`], shared.
    pub fn groups(&self, axes: &[AxisRef]) -> Groups {
        if let Some(known) = self.groups.borrow().get(axes) {
            return known.clone();
        }
        let groups: Groups = self.mesh.groups(axes).into();
        self.groups.borrow_mut().insert(axes.to_vec(), groups.clone());
        groups
    }
}
