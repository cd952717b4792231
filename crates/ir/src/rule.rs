//! The factor rule: how an op's dimensions correspond. It is all that distribution needs to know
//! about an op.
//!
//! It follows Shardy's op sharding rule: every dimension of every operand and result is an ordered
//! list of factors, major to minor. `dot_general` is `([b,m,k], [b,k,n]) -> [b,m,n]` with `k:
//! Reduce(Sum)`. Sharding propagation, legal layouts, local shapes, partial sums, communication
//! volume and microbatching are all derived from this table.

use partita_mesh::Combiner;

/// The number of a factor within its rule.
pub type FactorId = usize;

/// How a factor may be sharded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FactorKind {
    /// Each shard can be computed from the same shard of every tensor that has the factor.
    Pass,
    /// Like `Pass` for the tensors that have it; results that lack it are partial with this
    /// combiner.
    Reduce(Combiner),
    /// Each shard needs the other shards too, and the op itself moves them: its local form contains the collectives.
    /// Every tensor that has the factor is sharded along it.
    Exchange,
    /// Windows move along it, so a shard needs the edges of its neighbours, its halo, and the op itself fetches them. Every
    /// tensor that has the factor is sharded along it, each by its own extent.
    Window(Window),
    /// The results are taken from other places along it. Must be present in full on each rank, like `Whole`.
    Shift,
    /// Must be present in full on each rank.
    Whole,
}

/// Windows along a dimension. Its input has positions `i * input_dilation`; a step of the factor is a window, or an entry
/// of all windows, and step `j` sees the positions from `j * stride - low` on, `reach` positions beyond the first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// The extent of the input.
    pub input: usize,
    /// The distance of the positions of two steps.
    pub stride: usize,
    /// Positions that the first step sees before those of the input.
    pub low: i64,
    /// Positions that a step sees beyond its first.
    pub reach: usize,
    /// The distance of two neighbours of the input.
    pub input_dilation: usize,
    /// How the results combine if steps are entries of windows, so that each shard sees parts of all results.
    pub combiner: Option<Combiner>,
}

impl Window {
    /// The positions that these steps see, from the first to one past the last; from 0 to 0 for none.
    pub fn positions(&self, steps: std::ops::Range<usize>) -> (i64, i64) {
        if steps.is_empty() {
            return (0, 0);
        }
        self.positions_between(steps.start as i64, steps.end as i64)
    }

    /// [`Window::positions`] of the steps from one to before another, which may lie before or behind all that exist.
    pub fn positions_between(&self, start: i64, end: i64) -> (i64, i64) {
        let first = |step: i64| step * self.stride as i64 - self.low;
        (first(start), first(end - 1) + self.reach as i64 + 1)
    }

    /// Whether shards along the factor gain anything: a step sees less than all of the input.
    pub fn is_local(&self) -> bool {
        self.input > 0 && self.reach < (self.input - 1).saturating_mul(self.input_dilation)
    }

    /// Elements of the input that a shard sees beyond as many as its steps begin at: those of its halo, if input and steps
    /// are split at the same places.
    pub fn halo(&self) -> usize {
        (self.reach + 1).saturating_sub(self.stride).div_ceil(self.input_dilation)
    }
}

/// One factor: its extent and kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Factor {
    /// Number of elements along the factor, globally. Along windows, the number of steps: the extent of the input is that
    /// of the [`Window`].
    pub size: usize,
    /// How it may be sharded.
    pub kind: FactorKind,
}

impl FactorKind {
    /// How the results that lack such a factor combine over its shards.
    pub fn combiner(self) -> Option<Combiner> {
        match self {
            FactorKind::Reduce(combiner) => Some(combiner),
            FactorKind::Window(window) => window.combiner,
            FactorKind::Pass | FactorKind::Exchange | FactorKind::Shift | FactorKind::Whole => None,
        }
    }
}

/// Operands that may be partial over an axis together: the results are then partial over it too,
/// while every other operand is replicated over that axis.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LinearGroup {
    /// Operand indices. All of them must be partial at once.
    pub operands: Vec<usize>,
    /// Holds for every combiner (pure data movement), not only for sums.
    pub any_combiner: bool,
}

/// The factor rule of one op application.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// The factors, by [`FactorId`].
    pub factors: Vec<Factor>,
    /// For each operand, for each dimension, its factors major to minor. An empty list is a
    /// dimension of extent 1 without a factor, or one that cannot be sharded.
    pub operands: Vec<Vec<Vec<FactorId>>>,
    /// The same for each result.
    pub results: Vec<Vec<Vec<FactorId>>>,
    /// The groups of operands in which the op is linear.
    pub linear: Vec<LinearGroup>,
}

impl Rule {
    /// Adds a factor and returns its number.
    pub fn factor(&mut self, size: usize, kind: FactorKind) -> FactorId {
        self.factors.push(Factor { size, kind });
        self.factors.len() - 1
    }

    /// The rule of an op whose operands and results all have `shape` and correspond element by element.
    pub fn pointwise(shape: &[usize], operand_count: usize, result_count: usize) -> Rule {
        let mut rule = Rule::default();
        let dims: Vec<Vec<FactorId>> =
            shape.iter().map(|&size| vec![rule.factor(size, FactorKind::Pass)]).collect();
        rule.operands = vec![dims.clone(); operand_count];
        rule.results = vec![dims; result_count];
        rule
    }

    /// The rule of an op without shardable dimensions.
    pub fn whole(operand_shapes: &[&[usize]], result_shapes: &[&[usize]]) -> Rule {
        let mut rule = Rule::default();
        for shape in operand_shapes {
            let dims = shape.iter().map(|&size| vec![rule.factor(size, FactorKind::Whole)]).collect();
            rule.operands.push(dims);
        }
        for shape in result_shapes {
            let dims = shape.iter().map(|&size| vec![rule.factor(size, FactorKind::Whole)]).collect();
            rule.results.push(dims);
        }
        rule
    }

    /// Adds a group of operands in which the op is linear for sums.
    pub fn linear_in(mut self, operands: &[usize]) -> Rule {
        self.linear.push(LinearGroup { operands: operands.to_vec(), any_combiner: false });
        self
    }

    /// Adds a group of operands through which a partial value of any combiner passes unchanged.
    pub fn transparent_in(mut self, operands: &[usize]) -> Rule {
        self.linear.push(LinearGroup { operands: operands.to_vec(), any_combiner: true });
        self
    }
}
