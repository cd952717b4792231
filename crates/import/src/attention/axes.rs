//! The dimensions of tensors around one attention, as lists of its axes, and how they go through views.

use partita_ir::traits::ViewMap;

/// An axis of an attention: an index into [`Axes::sizes`].
pub(super) type Axis = usize;

/// For each dimension of a tensor, the axes that it joins, major to minor. A dimension of extent 1 has none.
pub(super) type Dims = Vec<Vec<Axis>>;

/// The extents of the axes: those of the batch and heads first, then the queries, the keys, the features, and the
/// query heads that share a key head where there are several.
#[derive(Clone, Debug)]
pub(super) struct Axes {
    pub sizes: Vec<usize>,
    shares: bool,
}

impl Axes {
    pub fn new(
        mut batch: Vec<usize>,
        rows: usize,
        columns: usize,
        depth: usize,
        shared: Option<usize>,
    ) -> Axes {
        batch.extend([rows, columns, depth]);
        batch.extend(shared);
        Axes { sizes: batch, shares: shared.is_some() }
    }

    /// The number of axes of the batch and of heads of keys.
    pub fn batch(&self) -> usize {
        self.sizes.len() - 3 - usize::from(self.shares)
    }

    /// The axis of queries.
    pub fn rows(&self) -> Axis {
        self.batch()
    }

    /// The axis of keys.
    pub fn columns(&self) -> Axis {
        self.batch() + 1
    }

    /// The axis of features.
    pub fn depth(&self) -> Axis {
        self.batch() + 2
    }

    /// The axis of the query heads that share a key head.
    pub fn shared(&self) -> Option<Axis> {
        self.shares.then(|| self.batch() + 3)
    }

    /// The axes that queries have and keys have not, ascending.
    pub fn of_queries(&self) -> Vec<Axis> {
        [self.rows()].into_iter().chain(self.shared()).collect()
    }

    /// The axes in this order, cut into dimensions of these extents; `None` where a cut would split an axis.
    fn regrouped(&self, axes: impl IntoIterator<Item = Axis>, shape: &[usize]) -> Option<Dims> {
        let mut axes = axes.into_iter();
        let mut dims = Vec::with_capacity(shape.len());
        for &extent in shape {
            let (mut dim, mut product) = (Vec::new(), 1);
            while product < extent {
                let axis = axes.next()?;
                product *= self.sizes[axis];
                dim.push(axis);
            }
            if product != extent {
                return None;
            }
            dims.push(dim);
        }
        axes.next().is_none().then_some(dims)
    }

    /// The dimensions of a view's operand from those of its result; `None` if the view repeats or drops elements.
    pub fn before(&self, view: ViewMap, operand: &[usize], result: &[usize], dims: &Dims) -> Option<Dims> {
        match view {
            ViewMap::Transpose { permutation } => {
                let mut before = vec![Vec::new(); operand.len()];
                for (dim, &from) in permutation.iter().enumerate() {
                    before[from].clone_from(&dims[dim]);
                }
                Some(before)
            }
            ViewMap::Reshape => self.regrouped(dims.iter().flatten().copied(), operand),
            ViewMap::Broadcast { dims: places } => {
                let same = operand.iter().product::<usize>() == result.iter().product::<usize>();
                same.then(|| places.iter().map(|&place| dims[place].clone()).collect())
            }
            ViewMap::Identity | ViewMap::Slice { .. } | ViewMap::Reverse { .. } | ViewMap::Window { .. } => {
                None
            }
        }
    }

    /// The dimensions of a view's result from those of its operand. A tensor with one number for each row may be
    /// repeated along the keys; `None` for other repetitions, and where the view drops elements.
    pub fn behind(&self, view: ViewMap, operand: &[usize], result: &[usize], dims: &Dims) -> Option<Dims> {
        match view {
            ViewMap::Transpose { permutation } => {
                Some(permutation.iter().map(|&dim| dims[dim].clone()).collect())
            }
            ViewMap::Reshape => self.regrouped(dims.iter().flatten().copied(), result),
            ViewMap::Broadcast { dims: places } => {
                let mut behind: Vec<Option<Vec<Axis>>> =
                    result.iter().map(|&extent| (extent == 1).then(Vec::new)).collect();
                for (dim, &place) in places.iter().enumerate() {
                    if operand[dim] == result[place] {
                        behind[place] = Some(dims[dim].clone());
                    }
                }
                let columns = self.columns();
                for (dim, &extent) in behind.iter_mut().zip(result) {
                    if dim.is_none() && extent == self.sizes[columns] {
                        *dim = Some(vec![columns]);
                    }
                }
                let behind: Dims = behind.into_iter().collect::<Option<_>>()?;
                let repeats = behind.iter().flatten().filter(|&&axis| axis == columns).count();
                (repeats <= 1).then_some(behind)
            }
            ViewMap::Identity | ViewMap::Slice { .. } | ViewMap::Reverse { .. } | ViewMap::Window { .. } => {
                None
            }
        }
    }
}

/// The axes of some dimensions, in the order of these.
pub(super) fn axes_of(dims: &Dims, some: &[usize]) -> Vec<Axis> {
    some.iter().flat_map(|&dim| dims[dim].iter().copied()).collect()
}
