//! What the values around a matmul mean if it is that of queries and keys, found by following the data from there.
//!
//! Each value that depends on the scores gets a [`Meaning`], op by op. Values that another matmul joins with the weights
//! get one by their place in it: what the weights are multiplied with over keys are the values, over queries it is the
//! gradient of the output, and the product of these two is the gradient of the weights. An op that does not fit gets no
//! meaning; the weights then have a reader outside.

use super::axes::{Axes, Axis, Dims, axes_of};
use super::matmul::{Side, batch_axes, product_dims, sides};
use super::places::{causal, splat};
use super::terms::Terms;
use partita_ir::composite::Origin;
use partita_ir::composites::SOFTMAX;
use partita_ir::ops::{BinaryKind, Composite, Direction, DotGeneral, Op, Reduce, Reducer, UnaryKind};
use partita_ir::traits::{Elementwise, ViewMap};
use partita_ir::{Graph, Node, NodeId, Traits, ValueId};
use partita_mesh::Combiner;
use std::collections::{BTreeMap, BTreeSet};

/// Scores below this are hidden: their weight is 0 beside any score of ordinary size.
const HIDDEN: f64 = -1e4;

/// A maximum with a number below this is the other operand.
const LEAST: f64 = -1e30;

/// What has happened to the scores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Scores {
    /// The factor on the product of queries and keys.
    pub scale: f64,
    /// Whether keys behind the query are hidden.
    pub causal: bool,
}

/// What a value is.
#[derive(Clone, PartialEq, Debug)]
enum Meaning {
    Queries,
    Keys,
    Values,
    /// The gradient of the output.
    Cotangent,
    Scores(Scores),
    /// The largest score of each row.
    Maximum(Scores),
    /// Scores less the largest of their row.
    Shifted(Scores),
    /// 1 where a score is the largest of its row, else 0.
    IsMaximum,
    /// How many scores of a row are the largest: at least 1.
    Maxima,
    Terms(Terms),
}

/// A value that an attention reads, with its dimensions.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Operand {
    pub value: ValueId,
    pub dims: Dims,
}

/// What a matmul computes for those outside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Product {
    Output,
    /// The gradient of queries (0), keys (1) or values (2).
    Gradient(usize),
}

/// A matmul whose result is one of an attention.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Found {
    pub node: NodeId,
    pub product: Product,
    pub dims: Dims,
    /// Its result is this times that of the attention.
    pub factor: f64,
}

/// The analysis from one matmul on.
pub(super) struct Flow<'g> {
    graph: &'g Graph,
    uses: &'g [Vec<(NodeId, usize)>],
    pub axes: Axes,
    meanings: BTreeMap<ValueId, (Meaning, Dims)>,
    waiting: BTreeSet<NodeId>,
    pub queries: Operand,
    pub keys: Operand,
    pub values: Option<Operand>,
    pub cotangent: Option<Operand>,
    /// Set where the weights are computed.
    pub scores: Option<Scores>,
    /// The nodes that compute exponentials or weights from scores.
    pub weights: Vec<NodeId>,
    pub found: Vec<Found>,
}

impl<'g> Flow<'g> {
    /// Follows the result of a matmul as the scores of queries on its left and keys on its right, or the other way round.
    /// Of two free dimensions of the queries, this one counts them, and the other one heads that share their keys. `None`
    /// if no weights are computed from it.
    pub fn of(
        graph: &'g Graph,
        uses: &'g [Vec<(NodeId, usize)>],
        seed: NodeId,
        queries_left: bool,
        counting: usize,
    ) -> Option<Flow<'g>> {
        let node = graph.node(seed);
        let Op::DotGeneral(dot) = &node.op else { return None };
        let sides = sides(graph, node, dot);
        if sides.iter().any(|side| side.shape.contains(&0)) {
            return None;
        }
        let only = |side: &Side, dims: &[usize]| -> Option<usize> {
            let mut large = side.large(dims);
            large.next().filter(|_| large.next().is_none())
        };
        let mut dims = [vec![Vec::new(); sides[0].shape.len()], vec![Vec::new(); sides[1].shape.len()]];
        let batch = batch_axes(graph, &uses[node.results[0].index()], &sides[0]);
        let (queries, keys) = if queries_left { (0, 1) } else { (1, 0) };
        let depth = only(&sides[0], sides[0].contracting)?;
        let column = only(&sides[keys], &sides[keys].free)?;
        let free: Vec<usize> = sides[queries].large(&sides[queries].free).collect();
        let (row, shared) = match (&free[..], counting) {
            (&[row], 0) => (row, None),
            (&[row, shared], 0) | (&[shared, row], 1) => (row, Some(shared)),
            _ => return None,
        };
        let extent = |dim: usize| sides[queries].shape[dim];
        let (rows, columns, features) = (extent(row), sides[keys].shape[column], sides[0].shape[depth]);
        let axes = Axes::new(batch.concat(), rows, columns, features, shared.map(extent));
        for (side, dims) in sides.iter().zip(&mut dims) {
            let mut first = 0;
            for (dim, parts) in side.large(side.batch).zip(&batch) {
                dims[dim] = (first..first + parts.len()).collect();
                first += parts.len();
            }
            side.large(side.contracting).for_each(|dim| dims[dim] = vec![axes.depth()]);
        }
        dims[queries][row] = vec![axes.rows()];
        if let (Some(dim), Some(axis)) = (shared, axes.shared()) {
            dims[queries][dim] = vec![axis];
        }
        dims[keys][column] = vec![axes.columns()];
        let result = product_dims(&sides, [&dims[0], &dims[1]]);
        let operand = |side: usize| Operand { value: node.operands[side], dims: dims[side].clone() };
        let mut flow = Flow {
            graph,
            uses,
            axes,
            meanings: BTreeMap::new(),
            waiting: BTreeSet::new(),
            queries: operand(queries),
            keys: operand(keys),
            values: None,
            cotangent: None,
            scores: None,
            weights: Vec::new(),
            found: Vec::new(),
        };
        flow.mean(node.results[0], Meaning::Scores(Scores { scale: 1.0, causal: false }), result);
        flow.follow();
        // Before there are weights, nothing tells queries and keys from the operands of any other matmul.
        flow.weights.first()?;
        flow.name(&flow.queries.clone(), Meaning::Queries);
        flow.name(&flow.keys.clone(), Meaning::Keys);
        flow.follow();
        Some(flow)
    }

    /// The values that have a meaning, without those that the attention reads.
    pub fn inside(&self) -> impl Iterator<Item = ValueId> {
        let reads = |meaning: &Meaning| {
            matches!(meaning, Meaning::Queries | Meaning::Keys | Meaning::Values | Meaning::Cotangent)
        };
        self.meanings.iter().filter(move |(_, (meaning, _))| !reads(meaning)).map(|(&value, _)| value)
    }

    /// The same operand as a value before views.
    pub fn before_views(&self, operand: &Operand) -> Operand {
        let mut current = operand.clone();
        while let Some(before) = self.before(&current, false) {
            current = before;
        }
        current
    }

    /// The operand of the view, or where `conversions` count of the conversion, that computes a value.
    fn before(&self, current: &Operand, conversions: bool) -> Option<Operand> {
        let (node, _) = self.graph.value(current.value).definition?;
        let node = self.graph.node(node);
        let &value = node.operands.first()?;
        let (old, new) = (self.graph.ty(value), self.graph.ty(current.value));
        let dims = match self.graph.traits(node) {
            Traits::View(view) => self.axes.before(view, &old.shape, &new.shape, &current.dims)?,
            Traits::Elementwise(Elementwise::Convert) if conversions && old.dtype.is_float() => {
                current.dims.clone()
            }
            Traits::Elementwise(_)
            | Traits::Constant(_)
            | Traits::Iota { .. }
            | Traits::Collective(_)
            | Traits::Opaque
            | Traits::Refused => return None,
        };
        Some(Operand { value, dims })
    }

    /// Gives an operand a meaning, and all that views and conversions make of the value that it comes from.
    fn name(&mut self, operand: &Operand, meaning: Meaning) {
        let mut root = operand.clone();
        while let Some(before) = self.before(&root, true) {
            root = before;
        }
        self.mean(root.value, meaning, root.dims);
    }

    fn mean(&mut self, value: ValueId, meaning: Meaning, dims: Dims) {
        self.meanings.entry(value).or_insert_with(|| {
            self.waiting.extend(self.uses[value.index()].iter().map(|&(node, _)| node));
            (meaning, dims)
        });
    }

    fn follow(&mut self) {
        while let Some(id) = self.waiting.pop_first() {
            let node = self.graph.node(id);
            if let [result] = node.results[..]
                && !self.meanings.contains_key(&result)
                && let Some((meaning, dims)) = self.meaning_of(id, node)
            {
                self.mean(result, meaning, dims);
            }
        }
    }

    fn known(&self, value: ValueId) -> Option<&(Meaning, Dims)> {
        self.meanings.get(&value)
    }

    fn meaning_of(&mut self, id: NodeId, node: &'g Node) -> Option<(Meaning, Dims)> {
        if let Op::DotGeneral(dot) = &node.op {
            return self.product(id, node, dot);
        }
        if let Op::Reduce(reduce) = &node.op {
            return self.reduced(node, reduce);
        }
        if let Op::Composite(composite) = &node.op {
            return self.softmax(id, node, composite);
        }
        match self.graph.traits(node) {
            Traits::View(view) => self.viewed(node, view),
            Traits::Elementwise(Elementwise::Unary(kind)) => self.unary(id, node, kind),
            Traits::Elementwise(Elementwise::Binary(kind)) => self.binary(node, kind),
            Traits::Elementwise(Elementwise::Select) => self.selected(node),
            Traits::Elementwise(Elementwise::Compare(compare)) => {
                let (a, b) = (self.known(node.operands[0])?, self.known(node.operands[1])?);
                let is_maximum = match (&a.0, &b.0) {
                    (Meaning::Scores(a), Meaning::Maximum(b)) | (Meaning::Maximum(a), Meaning::Scores(b)) => {
                        a == b
                    }
                    _ => false,
                };
                let fits = is_maximum && compare.direction == Direction::Eq && a.1 == b.1;
                fits.then(|| (Meaning::IsMaximum, a.1.clone()))
            }
            Traits::Elementwise(Elementwise::Convert) => {
                let is_float = self.graph.ty(node.results[0]).dtype.is_float();
                self.known(node.operands[0]).filter(|_| is_float).cloned()
            }
            // Scores may be shifted by any number: that no gradient flows through it changes nothing.
            Traits::Elementwise(Elementwise::Bitcast) => {
                let same = self.graph.ty(node.results[0]) == self.graph.ty(node.operands[0]);
                self.known(node.operands[0])
                    .filter(|(m, _)| same && matches!(m, Meaning::Maximum(_)))
                    .cloned()
            }
            Traits::Elementwise(Elementwise::Clamp)
            | Traits::Constant(_)
            | Traits::Iota { .. }
            | Traits::Collective(_)
            | Traits::Opaque
            | Traits::Refused => None,
        }
    }

    fn viewed(&self, node: &Node, view: ViewMap) -> Option<(Meaning, Dims)> {
        let (meaning, dims) = self.known(node.operands[0])?;
        let (old, new) = (self.graph.ty(node.operands[0]), self.graph.ty(node.results[0]));
        let behind = self.axes.behind(view, &old.shape, &new.shape, dims)?;
        let repeats = old.element_count() != new.element_count();
        let may_repeat = matches!(meaning, Meaning::Terms(_) | Meaning::Maximum(_) | Meaning::Maxima);
        (!repeats || may_repeat).then(|| (meaning.clone(), behind))
    }

    fn reduced(&self, node: &Node, reduce: &Reduce) -> Option<(Meaning, Dims)> {
        let [operand, _] = node.operands[..] else { return None };
        let Reducer::Combiner(combiner) = reduce.reducer else { return None };
        let (meaning, dims) = self.known(operand)?;
        let columns = self.axes.columns();
        let over = axes_of(dims, &reduce.dims);
        let over_keys = over == [columns];
        let reduced = match (combiner, meaning) {
            (Combiner::Max, Meaning::Scores(scores)) if over_keys => Meaning::Maximum(*scores),
            (Combiner::Sum, Meaning::IsMaximum) if over_keys => Meaning::Maxima,
            (Combiner::Sum, Meaning::Terms(terms)) if over_keys => {
                Meaning::Terms(terms.sum_of_rows(self.axes.sizes[columns])?)
            }
            (Combiner::Sum, Meaning::Terms(terms)) if over.is_empty() => Meaning::Terms(terms.clone()),
            _ => return None,
        };
        let kept = (0..dims.len()).filter(|dim| !reduce.dims.contains(dim));
        Some((reduced, kept.map(|dim| dims[dim].clone()).collect()))
    }

    fn softmax(&mut self, id: NodeId, node: &Node, composite: &Composite) -> Option<(Meaning, Dims)> {
        let is_template = matches!(composite.definition.origin, Origin::Template(_));
        let (Meaning::Scores(scores), dims) = self.known(node.operands[0])? else { return None };
        let by_row = dims.last()? == &[self.axes.columns()];
        if composite.definition.name != SOFTMAX.name || !is_template || !by_row {
            return None;
        }
        let (scores, dims) = (*scores, dims.clone());
        self.weigh(id, scores, Terms::weights()).map(|meaning| (meaning, dims))
    }

    /// The weights, or exponentials, that a node computes from scores. An attention has those of one kind of scores.
    fn weigh(&mut self, id: NodeId, scores: Scores, terms: Terms) -> Option<Meaning> {
        let own = *self.scores.get_or_insert(scores);
        self.weights.push(id);
        (own == scores).then_some(Meaning::Terms(terms))
    }

    fn unary(&mut self, id: NodeId, node: &Node, kind: UnaryKind) -> Option<(Meaning, Dims)> {
        let (meaning, dims) = self.known(node.operands[0])?.clone();
        let new = match (kind, meaning) {
            (UnaryKind::Exponential, Meaning::Shifted(scores)) => {
                self.weigh(id, scores, Terms::exponentials())?
            }
            (UnaryKind::Negate, Meaning::Terms(terms)) => Meaning::Terms(terms.scaled(-1.0)),
            _ => return None,
        };
        Some((new, dims))
    }

    fn binary(&self, node: &Node, kind: BinaryKind) -> Option<(Meaning, Dims)> {
        let [a, b] = node.operands[..] else { return None };
        let (new, dims) = match (self.known(a), self.known(b)) {
            (Some((a, dims)), Some((b, others))) if dims == others => (both(kind, a, b)?, dims),
            (Some((a, dims)), None) => (self.with_number(kind, a, dims, b, false)?, dims),
            (None, Some((b, dims))) => (self.with_number(kind, b, dims, a, true)?, dims),
            _ => return None,
        };
        Some((new, dims.clone()))
    }

    /// The result of an op of a value of this meaning and another that follows from places alone; `first` if that one is
    /// the first operand.
    fn with_number(
        &self,
        kind: BinaryKind,
        own: &Meaning,
        dims: &Dims,
        other: ValueId,
        first: bool,
    ) -> Option<Meaning> {
        let Some(number) = splat(self.graph, other) else {
            let (Meaning::Scores(scores), BinaryKind::Add) = (own, kind) else { return None };
            let hides = matches!(self.mask(other, dims)?, (seen, hidden) if seen == 0.0 && hidden <= HIDDEN);
            return (hides && !scores.causal).then_some(Meaning::Scores(Scores { causal: true, ..*scores }));
        };
        let factor = match kind {
            BinaryKind::Multiply => Some(number),
            BinaryKind::Divide if !first => Some(number.recip()),
            _ => None,
        };
        let factor = factor.filter(|factor| factor.is_finite() && *factor != 0.0);
        match (kind, own) {
            (BinaryKind::Maximum, Meaning::Maximum(_)) => (number <= LEAST).then(|| own.clone()),
            (BinaryKind::Divide, Meaning::Terms(terms)) if first => {
                Some(Meaning::Terms(terms.inverse()?.scaled(number)))
            }
            (_, Meaning::Terms(terms)) => Some(Meaning::Terms(terms.scaled(factor?))),
            (_, Meaning::Scores(scores)) if !scores.causal => {
                Some(Meaning::Scores(Scores { scale: scores.scale * factor?, ..*scores }))
            }
            _ => None,
        }
    }

    /// The numbers of a causal mask of these dimensions: where a query may see a key, and where it may not.
    fn mask(&self, mask: ValueId, dims: &Dims) -> Option<(f64, f64)> {
        let place = |axis: Axis| dims.iter().position(|dim| dim[..] == [axis]);
        let (row, column) = (place(self.axes.rows())?, place(self.axes.columns())?);
        // With fewer keys than queries, some queries see none.
        let all_see = self.axes.sizes[self.axes.rows()] <= self.axes.sizes[self.axes.columns()];
        let fits = self.graph.ty(mask).rank() == dims.len() && all_see;
        if fits { causal(self.graph, mask, row, column) } else { None }
    }

    fn selected(&self, node: &Node) -> Option<(Meaning, Dims)> {
        let [mask, yes, no] = node.operands[..] else { return None };
        let (_, dims) = self.known(yes).or(self.known(no))?;
        let (kept, filler) = match self.mask(mask, dims)? {
            (seen, hidden) if seen != 0.0 && hidden == 0.0 => (yes, no),
            (seen, hidden) if seen == 0.0 && hidden != 0.0 => (no, yes),
            _ => return None,
        };
        let (meaning, dims) = self.known(kept)?;
        let filler = splat(self.graph, filler)?;
        let kept = match meaning {
            Meaning::Scores(scores) if filler <= HIDDEN && !scores.causal => {
                Meaning::Scores(Scores { causal: true, ..*scores })
            }
            // They are 0 where keys are hidden already.
            Meaning::Terms(terms) if filler == 0.0 && terms.vanishes_with_exponentials() => {
                self.scores.filter(|scores| scores.causal)?;
                meaning.clone()
            }
            _ => return None,
        };
        Some((kept, dims.clone()))
    }

    fn product(&mut self, id: NodeId, node: &'g Node, dot: &'g DotGeneral) -> Option<(Meaning, Dims)> {
        let sides = sides(self.graph, node, dot);
        for side in [0, 1] {
            let Some((meaning, dims)) = self.known(node.operands[side]).cloned() else { continue };
            let own = &sides[side];
            let sorted = |some: &[usize]| {
                let mut axes = axes_of(&dims, some);
                axes.sort_unstable();
                axes
            };
            let (over, free) = (sorted(own.contracting), sorted(&own.free));
            if !sorted(own.batch).into_iter().eq(0..self.axes.batch()) {
                continue;
            }
            let (queries, columns, depth) =
                (self.axes.of_queries(), vec![self.axes.columns()], vec![self.axes.depth()]);
            let (new, role, other_free) = match &meaning {
                Meaning::Values if over == depth && free == columns => (None, Meaning::Cotangent, queries),
                Meaning::Cotangent if over == depth && free == queries => (None, Meaning::Values, columns),
                Meaning::Terms(terms)
                    if (over == columns && free == queries) || (over == queries && free == columns) =>
                {
                    let by_keys = over == columns;
                    let (product, factor, role) = if terms.is_weights() {
                        match by_keys {
                            true => (Product::Output, 1.0, Meaning::Values),
                            false => (Product::Gradient(2), 1.0, Meaning::Cotangent),
                        }
                    } else {
                        let factor = terms.gradients_of_scores()? / self.scores?.scale;
                        match by_keys {
                            true => (Product::Gradient(0), factor, Meaning::Keys),
                            false => (Product::Gradient(1), factor, Meaning::Queries),
                        }
                    };
                    (Some((product, factor)), role, depth)
                }
                _ => continue,
            };
            let other = self.beside(&sides, side, &dims, &other_free)?;
            let both = if side == 0 { [&dims, &other] } else { [&other, &dims] };
            let result = product_dims(&sides, both);
            self.joins(Operand { value: node.operands[1 - side], dims: other }, role)?;
            let Some((product, factor)) = new else {
                return Some((Meaning::Terms(Terms::gradients_of_weights()), result));
            };
            if self.found.iter().all(|found| found.node != id) {
                self.found.push(Found { node: id, product, dims: result, factor });
            }
            return None;
        }
        None
    }

    /// The dimensions of the other operand of a matmul, whose free axes are these; `None` if their extents do not tell them
    /// apart.
    fn beside(&self, sides: &[Side; 2], side: usize, dims: &Dims, free: &[Axis]) -> Option<Dims> {
        let (own, other) = (&sides[side], &sides[1 - side]);
        let mut beside = vec![Vec::new(); other.shape.len()];
        let pairs = own.batch.iter().zip(other.batch).chain(own.contracting.iter().zip(other.contracting));
        for (&dim, &place) in pairs {
            beside[place].clone_from(&dims[dim]);
        }
        let mut left = free.to_vec();
        for place in other.large(&other.free) {
            let fits = |axis: &Axis| self.axes.sizes[*axis] == other.shape[place];
            let axis = left.iter().copied().find(fits)?;
            left.retain(|other| *other != axis);
            if left.iter().any(fits) {
                return None;
            }
            beside[place] = vec![axis];
        }
        left.is_empty().then_some(beside)
    }

    /// Whether a value has this role; the first of its role that is met gets it.
    fn joins(&mut self, operand: Operand, role: Meaning) -> Option<()> {
        if let Some((meaning, dims)) = self.known(operand.value) {
            return (*meaning == role && *dims == operand.dims).then_some(());
        }
        let place = match role {
            Meaning::Values => &mut self.values,
            Meaning::Cotangent => &mut self.cotangent,
            _ => return None,
        };
        if place.is_some() {
            return None;
        }
        *place = Some(operand.clone());
        self.name(&operand, role);
        Some(())
    }
}

/// The result of an op of two values with meanings, of the same dimensions.
fn both(kind: BinaryKind, a: &Meaning, b: &Meaning) -> Option<Meaning> {
    match (kind, a, b) {
        (BinaryKind::Subtract, Meaning::Scores(a), Meaning::Maximum(b)) if a == b => {
            Some(Meaning::Shifted(*a))
        }
        (BinaryKind::Multiply, Meaning::Terms(terms), Meaning::IsMaximum)
        | (BinaryKind::Multiply, Meaning::IsMaximum, Meaning::Terms(terms))
        | (BinaryKind::Divide, Meaning::Terms(terms), Meaning::Maxima)
            if terms.is_zero() =>
        {
            Some(Meaning::Terms(terms.clone()))
        }
        (_, Meaning::Terms(a), Meaning::Terms(b)) => {
            let terms = match kind {
                BinaryKind::Add => Some(a.plus(b)),
                BinaryKind::Subtract => Some(a.plus(&b.scaled(-1.0))),
                BinaryKind::Multiply => a.times(b),
                BinaryKind::Divide => a.times(&b.inverse()?),
                _ => None,
            };
            terms.map(Meaning::Terms)
        }
        _ => None,
    }
}
