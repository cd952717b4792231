//! What the work and the communication of a choice cost: by a cluster, or by the formula of Alpa.

use partita_cost::{Cluster, Work};
use partita_ir::{FactorKind, Graph, Node, Op, Operation, Rule, TensorType, ValueId};
use partita_mesh::{AxisRef, LinkCost, Mesh, ReshardStep, Sharding, Step, reshard};
use partita_spmd::assign::halo_s;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The cost model of a search.
#[derive(Clone, PartialEq, Debug)]
pub enum Prices {
    /// Seconds on a cluster, as everywhere else in Partita.
    Cluster(Cluster),
    /// The formula of Alpa (L. Zheng et al., "Alpa: automating inter- and intra-operator parallelism for distributed deep
    /// learning", 2022): computation is free, and a collective of n bytes over an axis of N ranks costs a latency and
    /// `(N-1)/N n` times the seconds per byte of that axis, twice that for an all_reduce.
    Alpa {
        /// The latency of each mesh axis.
        alpha: Vec<f64>,
        /// The seconds per byte of each mesh axis.
        beta: Vec<f64>,
    },
}

/// Collectives that a search must not use, or should avoid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forbidden {
    /// No all_gather.
    pub all_gather: bool,
    /// No all_to_all.
    pub all_to_all: bool,
    /// No all_reduce of more than one element.
    pub all_reduce: bool,
    /// No reduce_scatter: gradients are reduced whole, as in Alpa before its last pass.
    pub reduce_scatter: bool,
}

impl Forbidden {
    fn forbids(&self, step: &Step, shape: &[usize]) -> bool {
        match step {
            Step::AllGather { .. } => self.all_gather,
            Step::AllToAll { .. } => self.all_to_all,
            Step::AllReduce { .. } => self.all_reduce && shape.iter().any(|&size| size > 1),
            Step::ReduceScatter { .. } => self.reduce_scatter,
            Step::Slice { .. } | Step::ToPartial { .. } | Step::Permute {} => false,
        }
    }
}

/// The price of a forbidden step, to which the search for a path prefers any other.
const PROHIBITIVE: f64 = 1e13;

/// A cost model in which forbidden steps are prohibitive.
struct Guarded<'a> {
    cost: &'a dyn LinkCost,
    forbidden: Forbidden,
    shape: &'a [usize],
}

impl LinkCost for Guarded<'_> {
    fn step_s(&self, before: &Sharding, step: &ReshardStep) -> f64 {
        match self.forbidden.forbids(&step.step, self.shape) {
            true => PROHIBITIVE,
            false => self.cost.step_s(before, step),
        }
    }
}

/// Prices on a mesh, each computed once.
pub(super) struct Priced<'a> {
    pub mesh: &'a Mesh,
    prices: &'a Prices,
    forbidden: Forbidden,
    known: RefCell<BTreeMap<(Vec<usize>, usize, Sharding, Sharding), f64>>,
}

/// The cost of one tensor's reshard steps under Alpa's formula.
struct AlpaCost<'a> {
    mesh: &'a Mesh,
    shape: &'a [usize],
    element_bytes: usize,
    alpha: &'a [f64],
    beta: &'a [f64],
}

impl AlpaCost<'_> {
    fn bytes(&self, sharding: &Sharding) -> f64 {
        (sharding.largest_local_elements(self.mesh, self.shape) * self.element_bytes) as f64
    }

    fn over(&self, axes: &[AxisRef], of: impl Fn(f64, f64, f64) -> f64) -> f64 {
        axes.iter().map(|axis| of(self.alpha[axis.axis], self.beta[axis.axis], axis.size as f64)).sum()
    }
}

impl LinkCost for AlpaCost<'_> {
    fn step_s(&self, before: &Sharding, step: &ReshardStep) -> f64 {
        let (local, after) = (self.bytes(before), self.bytes(&step.after));
        match &step.step {
            Step::Slice { .. } | Step::ToPartial { .. } => 0.0,
            Step::AllGather { axes, .. } => self.over(axes, |a, b, n| a + b * (n - 1.0) / n * after + 0.1),
            Step::AllReduce { axes, .. } => {
                self.over(axes, |a, b, n| a + 2.0 * b * (n - 1.0) / n * local + 0.01)
            }
            Step::ReduceScatter { axes, .. } => {
                self.over(axes, |a, b, n| a + b * (n - 1.0) / n * local + 0.001)
            }
            // The bytes of the full tensor piece are those of all ranks of the axis.
            Step::AllToAll { axes, .. } => {
                self.over(axes, |a, b, n| a + b * (n - 1.0) / (n * n) * (local * n) * (n / 2.0) + 0.001)
            }
            Step::Permute {} => {
                let mut axes = before.sharded_axes();
                axes.extend(step.after.sharded_axes());
                self.over(&axes, |a, b, _| a + b * local)
            }
        }
    }
}

impl<'a> Priced<'a> {
    pub fn new(mesh: &'a Mesh, prices: &'a Prices, forbidden: Forbidden) -> Priced<'a> {
        Priced { mesh, prices, forbidden, known: RefCell::default() }
    }

    /// The cost of an op on the shards of a rank: of its operands in the layouts `required`, of its results in `produced`.
    /// What a composite computes inside is shared by `ways` ranks.
    pub fn op(
        &self,
        graph: &Graph,
        node: &Node,
        required: &[Sharding],
        produced: &[Sharding],
        ways: usize,
    ) -> f64 {
        let Prices::Cluster(cluster) = self.prices else { return 0.0 };
        let local = |(&value, layout): (&ValueId, &Sharding)| {
            let ty = graph.ty(value);
            ty.with_shape(layout.local_shape(self.mesh, &ty.shape, 0))
        };
        let operands: Vec<TensorType> = node.operands.iter().zip(required).map(local).collect();
        let results: Vec<TensorType> = node.results.iter().zip(produced).map(local).collect();
        let Some(first) = operands.iter().chain(&results).next() else { return 0.0 };
        let cost = node.op.cost(&operands.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>());
        let share = if matches!(node.op, Op::Composite(_)) { ways.max(1) as f64 } else { 1.0 };
        cluster.op_s(&Work { flops: cost.flops / share, bytes: cost.bytes, dtype: first.dtype })
    }

    /// The cost of the halos of an op with windows, with its operands in the layouts `required`. Alpa shards no dimension
    /// along which windows move.
    pub fn halos(&self, graph: &Graph, node: &Node, rule: &Rule, required: &[Sharding]) -> f64 {
        let moves = |factors: &Vec<usize>| {
            factors.first().is_some_and(|&f| matches!(rule.factors[f].kind, FactorKind::Window(_)))
        };
        let tensors = rule.operands.iter().zip(required);
        let mut sharded = tensors.flat_map(|(dims, layout)| dims.iter().zip(&layout.dims));
        if !sharded.any(|(factors, split)| moves(factors) && !split.axes.is_empty()) {
            return 0.0;
        }
        match self.prices {
            Prices::Cluster(cluster) => halo_s(cluster, self.mesh, graph, node, rule, required),
            Prices::Alpa { .. } => f64::INFINITY,
        }
    }

    /// The cheapest steps between two layouts of a tensor, with the cost of each.
    pub fn steps(
        &self,
        shape: &[usize],
        element_bytes: usize,
        from: &Sharding,
        to: &Sharding,
    ) -> Vec<(ReshardStep, f64)> {
        let priced = |cost: &dyn LinkCost| {
            let cost = &Guarded { cost, forbidden: self.forbidden, shape };
            let steps = reshard(self.mesh, from, to, shape, cost);
            let befores: Vec<&Sharding> = [from].into_iter().chain(steps.iter().map(|s| &s.after)).collect();
            let costs: Vec<f64> =
                befores.into_iter().zip(&steps).map(|(b, step)| cost.step_s(b, step)).collect();
            steps.into_iter().zip(costs).collect()
        };
        match self.prices {
            Prices::Cluster(cluster) => priced(&cluster.reshard_cost(self.mesh, shape, element_bytes)),
            Prices::Alpa { alpha, beta } => {
                priced(&AlpaCost { mesh: self.mesh, shape, element_bytes, alpha, beta })
            }
        }
    }

    /// The cost of a reshard; infinite if it needs a forbidden collective.
    pub fn reshard(&self, shape: &[usize], element_bytes: usize, from: &Sharding, to: &Sharding) -> f64 {
        if from == to || from.same_layout(to, self.mesh, shape) {
            return 0.0;
        }
        let key = (shape.to_vec(), element_bytes, from.clone(), to.clone());
        if let Some(&cost) = self.known.borrow().get(&key) {
            return cost;
        }
        let steps = self.steps(shape, element_bytes, from, to);
        let cost: f64 = steps.iter().map(|(_, cost)| cost).sum();
        let cost = if cost >= PROHIBITIVE { f64::INFINITY } else { cost };
        self.known.borrow_mut().insert(key, cost);
        cost
    }
}
