//! The choices of an op or an input: layouts of operands and results, with the cost of the op itself.

use super::prices::Priced;
use partita_ir::{Annotation, FactorKind, Graph, Node, Op, Phase, Rule, ValueId};
use partita_mesh::{AxisRef, Sharding};
use partita_spmd::assign::{Situation, layouts_of};
use partita_spmd::factors::{axes_of_factors, may_split};
use partita_spmd::units::Units;
use partita_spmd::{Layouts, Strategy, strategies};

/// One way to compute an op and keep its results.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Choice {
    /// The layout that each operand must have.
    pub required: Vec<Sharding>,
    /// The layout that each result is computed in.
    pub produced: Vec<Sharding>,
    /// The layout that each result is kept in.
    pub kept: Vec<Sharding>,
    /// The cost of the op and of the step from `produced` to `kept`.
    pub cost: f64,
    /// The number of shards of the work.
    pub ways: usize,
}

/// What the choices of every op depend on.
pub(super) struct Context<'a> {
    pub graph: &'a Graph,
    pub rules: &'a [Rule],
    pub units: &'a Units,
    /// The layouts that follow from annotations alone.
    pub base: &'a Layouts,
    /// Axes that shard only what they shard in `base`.
    pub fixed: &'a [AxisRef],
    /// Axes that the search chooses over.
    pub free: &'a [AxisRef],
    pub priced: &'a Priced<'a>,
    /// Whether several axes may shard one dimension.
    pub mixed_axes: bool,
    /// Whether every axis must share the work of a contraction.
    pub split_contractions: bool,
    /// See [`super::Options::moves_shared`].
    pub moves_shared: bool,
    /// The number of nodes that read each value.
    pub readers: &'a [usize],
    /// See [`super::Options::repeats`].
    pub repeats: f64,
}

impl Context<'_> {
    /// The cost of resharding a value.
    pub fn reshard(&self, value: ValueId, from: &Sharding, to: &Sharding) -> f64 {
        let ty = self.graph.ty(value);
        self.priced.reshard(&ty.shape, ty.dtype.size_bytes(), from, to)
    }

    /// How often a step computes a node.
    pub fn repeats_of(&self, node: &Node) -> f64 {
        if node.phase == Phase::Update { 1.0 } else { self.repeats }
    }

    /// The choices of a node.
    pub fn of_node(&self, index: usize) -> Vec<Choice> {
        let (node, rule) = (&self.graph.nodes[index], &self.rules[index]);
        let situation = Situation {
            graph: self.graph,
            node,
            rule,
            mesh: self.priced.mesh,
            cluster: &partita_cost::Cluster::default(),
            units: self.units,
            layouts: self.base,
            held: Vec::new(),
            wanted: Vec::new(),
        };
        let is_manual = matches!(node.op, Op::ManualComputation(_));
        let all = if is_manual { vec![nothing(rule)] } else { strategies(node, rule, self.priced.mesh) };
        let computed = |strategies: &mut dyn Iterator<Item = &Strategy>| {
            let mut choices: Vec<Choice> = Vec::new();
            for strategy in strategies {
                let Some(layouts) = layouts_of(&situation, strategy) else { continue };
                let ways = strategy.ways().max(1);
                let own = self.priced.op(self.graph, node, &layouts.required, &layouts.produced, ways);
                let halos = self.priced.halos(self.graph, node, rule, &layouts.required);
                let own = (own + halos) * self.repeats_of(node);
                for (kept, cost) in self.kept(node, &layouts.produced) {
                    let (required, produced) = (layouts.required.clone(), layouts.produced.clone());
                    let choice = Choice { required, produced, kept, cost: own + cost, ways };
                    if self.is_allowed(node, &choice) && choice.cost.is_finite() {
                        choices.push(choice);
                    }
                }
            }
            choices
        };
        let one_each =
            |strategy: &Strategy| self.mixed_axes || strategy.factors.iter().all(|list| list.len() <= 1);
        let suits = |strategy: &&Strategy| {
            let contracts = matches!(node.op, Op::DotGeneral(_) | Op::Convolution(_));
            let shared = !(self.split_contractions && contracts);
            self.keeps_fixed(node, rule, strategy)
                && passes(rule, strategy)
                && one_each(strategy)
                && (shared || self.free.iter().all(|axis| !strategy.leaves_unused(*axis)))
        };
        let mut choices = computed(&mut all.iter().filter(suits));
        if choices.is_empty() {
            choices = computed(&mut all.iter());
        }
        let mut distinct: Vec<Choice> = Vec::new();
        for choice in choices {
            let same =
                |known: &&mut Choice| (&known.required, &known.kept) == (&choice.required, &choice.kept);
            match distinct.iter_mut().find(same) {
                Some(known) if known.cost > choice.cost => *known = choice,
                Some(_) => {}
                None => distinct.push(choice),
            }
        }
        distinct
    }

    /// Whether the fixed axes shard what they shard without the search: a factor of the op, if they shard one of its
    /// tensors, else nothing.
    fn keeps_fixed(&self, node: &Node, rule: &Rule, strategy: &Strategy) -> bool {
        self.fixed.iter().all(|axis| {
            let tensors =
                node.operands.iter().zip(&rule.operands).chain(node.results.iter().zip(&rule.results));
            let mut seen = false;
            let mut followed = false;
            for (&value, dims) in tensors {
                for (dim, factors) in dims.iter().enumerate() {
                    for (factor, list) in
                        axes_of_factors(rule, factors, &self.base.sharding(value).dims[dim].axes)
                    {
                        if list.contains(axis) && may_split(rule, factor) {
                            seen = true;
                            followed |= strategy.factors[factor].contains(axis);
                        }
                    }
                }
            }
            match seen {
                true => followed,
                false => strategy.factors.iter().all(|list| !list.contains(axis)),
            }
        })
    }

    /// Whether a choice agrees with what the user requests of its results.
    fn is_allowed(&self, node: &Node, choice: &Choice) -> bool {
        let mut constraint = None;
        if let Op::ShardingConstraint(op) = &node.op {
            constraint = Some(&op.annotation);
        }
        node.results.iter().zip(&choice.kept).all(|(&result, kept)| {
            let annotation = constraint.or(self.graph.value(result).annotation.as_ref());
            annotation.is_none_or(|annotation| agrees(kept, annotation))
        })
    }

    /// The layouts in which results may be kept, with the cost of the step to each.
    fn kept(&self, node: &Node, produced: &[Sharding]) -> Vec<(Vec<Sharding>, f64)> {
        let mut all = vec![(produced.to_vec(), 0.0)];
        let reduced: Vec<Sharding> = produced.iter().map(complete).collect();
        if reduced != produced {
            all.push((reduced.clone(), self.step(node, produced, &reduced)));
        }
        let ([result], [from]) = (node.results.as_slice(), produced) else { return all };
        let shape = &self.graph.ty(*result).shape;
        if from.is_partial() {
            let axes = from.partial_axes();
            let ways: usize = axes.iter().map(|axis| axis.size).product();
            for dim in 0..shape.len() {
                if from.dims[dim].axes.is_empty()
                    && shape[dim].is_multiple_of(ways * self.units.unit(*result, dim))
                {
                    let mut to = reduced[0].clone().with_dim(dim, axes.iter().copied());
                    to.dims[dim].unit = self.units.unit(*result, dim);
                    to.normalise(self.priced.mesh, shape);
                    let cost = self.step(node, produced, std::slice::from_ref(&to));
                    all.push((vec![to], cost));
                }
            }
        }
        let is_shared = self.readers[result.index()] > 1;
        if is_shared && from.sharded_axes().iter().any(|axis| self.free.contains(axis)) {
            let mut to = complete(from);
            to.dims.iter_mut().for_each(|dim| dim.axes.retain(|axis| !self.free.contains(axis)));
            to.normalise(self.priced.mesh, shape);
            let cost = self.step(node, produced, std::slice::from_ref(&to));
            all.push((vec![to], cost));
        }
        // One exchange for all readers that need another dimension sharded.
        if self.moves_shared && is_shared && is_moved_once(&node.op) {
            for to in self.moved(*result, from) {
                let cost = self.step(node, produced, std::slice::from_ref(&to));
                all.push((vec![to], cost));
            }
        }
        all
    }

    /// A layout with each free axis that shards a dimension alone on each dimension that nothing shards instead.
    fn moved(&self, value: ValueId, from: &Sharding) -> Vec<Sharding> {
        let shape = &self.graph.ty(value).shape;
        let mut all = Vec::new();
        for dim in (0..shape.len()).filter(|_| !from.is_partial()) {
            let [axis] = from.dims[dim].axes[..] else { continue };
            for other in (0..shape.len()).filter(|_| self.free.contains(&axis)) {
                let unit = self.units.unit(value, other);
                if from.dims[other].axes.is_empty() && shape[other].is_multiple_of(axis.size * unit) {
                    let mut to = from.clone().with_dim(dim, []).with_dim(other, [axis]);
                    to.dims[other].unit = unit;
                    to.normalise(self.priced.mesh, shape);
                    all.push(to);
                }
            }
        }
        all
    }

    fn step(&self, node: &Node, from: &[Sharding], to: &[Sharding]) -> f64 {
        let pairs = node.results.iter().zip(from.iter().zip(to));
        let sum: f64 = pairs.map(|(&value, (from, to))| self.reshard(value, from, to)).sum();
        if once(node) { sum } else { self.repeats * sum }
    }

    /// The layouts of an input: each free axis shards one dimension or none.
    pub fn of_input(&self, value: ValueId) -> Vec<Sharding> {
        let (ty, annotation) = (self.graph.ty(value), self.graph.value(value).annotation.as_ref());
        let mut base = self.base.sharding(value).clone();
        // What propagation spread over free axes is for the search to choose.
        let pinned = |axis: &AxisRef| {
            annotation.is_some_and(|a| a.sharding.dims.iter().any(|dim| dim.axes.contains(axis)))
        };
        base.dims
            .iter_mut()
            .for_each(|dim| dim.axes.retain(|axis| !self.free.contains(axis) || pinned(axis)));
        let mut layouts = vec![base];
        for axis in self.free.iter().filter(|axis| !pinned(axis)) {
            let mut with = Vec::new();
            for layout in &layouts {
                for dim in 0..ty.rank() {
                    let ways: usize =
                        layout.dims[dim].axes.iter().map(|axis| axis.size).product::<usize>() * axis.size;
                    let unit = self.units.unit(value, dim);
                    let is_first = self.mixed_axes || layout.dims[dim].axes.is_empty();
                    if is_first && ty.shape[dim].is_multiple_of(ways * unit) {
                        let mut more = layout.clone();
                        more.dims[dim].axes.push(*axis);
                        more.dims[dim].unit = unit;
                        more.normalise(self.priced.mesh, &ty.shape);
                        with.push(more);
                    }
                }
            }
            layouts.extend(with);
        }
        let allowed = |layout: &Sharding| annotation.is_none_or(|annotation| agrees(layout, annotation));
        layouts.retain(|layout| allowed(layout));
        if layouts.is_empty() {
            layouts.push(self.base.sharding(value).clone());
        }
        layouts
    }
}

/// Whether the result of an op may be kept with another dimension sharded: of contractions, and of what reorders their
/// results. All others compute as fast in the layout of their readers.
pub(super) fn is_moved_once(op: &Op) -> bool {
    matches!(op, Op::DotGeneral(_) | Op::Convolution(_) | Op::Transpose(_))
}

/// Whether the results of a node are exchanged once in a step: in the update, and gradients of parameters, which
/// microbatches accumulate first.
pub(super) fn once(node: &Node) -> bool {
    matches!(node.phase, Phase::Update | Phase::WeightGrad)
}

/// The same layout, reduced over the axes on which it is partial.
pub(super) fn complete(layout: &Sharding) -> Sharding {
    Sharding { partial: Vec::new(), ..layout.clone() }
}

fn nothing(rule: &Rule) -> Strategy {
    Strategy { factors: vec![Default::default(); rule.factors.len()], through: Vec::new() }
}

/// Whether partial values pass only through ops that reduce nothing themselves.
fn passes(rule: &Rule, strategy: &Strategy) -> bool {
    strategy.through.is_empty() || rule.factors.iter().all(|factor| factor.kind == FactorKind::Pass)
}

/// Whether a layout is what an annotation requests: its axes first on each dimension, others only on open ones.
fn agrees(layout: &Sharding, annotation: &Annotation) -> bool {
    let dims = layout.dims.iter().zip(&annotation.sharding.dims).enumerate();
    let mut fits = dims.map(|(dim, (has, asked))| {
        let asked: Vec<AxisRef> = asked.axes.iter().copied().filter(|axis| axis.size > 1).collect();
        let is_open = annotation.open.get(dim).copied().unwrap_or(false);
        has.axes.starts_with(&asked) && (is_open || has.axes.len() == asked.len())
    });
    fits.all(|fits| fits)
        && !layout.is_partial()
        && annotation.replicated.iter().all(|axis| !layout.uses_axis(*axis))
}
