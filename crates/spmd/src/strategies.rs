//! The strategies of one op: the ways in which the axes of a mesh may shard it.

use crate::factors::{dim_sharding, may_split};
use partita_ir::{FactorId, Node, Rule, ValueId};
use partita_mesh::{AxisList, AxisRef, Combiner, Mesh};

/// How an op uses one axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AxisUse {
    /// The axis shards a factor.
    Factor(FactorId),
    /// Operands that are partial over the axis pass through a linear group of the rule; the results
    /// are partial too.
    Through(usize, Combiner),
    /// All ranks along the axis repeat the work.
    Unused,
}

/// An axis over which partial operands pass through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Through {
    /// The axis.
    pub axis: AxisRef,
    /// The linear group of the rule whose operands are partial.
    pub group: usize,
    /// How partial values combine.
    pub combiner: Combiner,
}

/// One way to shard an op.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Strategy {
    /// The axes of each factor, major to minor.
    pub factors: Vec<AxisList>,
    /// The axes over which partial values pass through.
    pub through: Vec<Through>,
}

impl Strategy {
    /// Whether all ranks along the axis repeat the work: it shards no factor, and no partial value
    /// over it passes through.
    pub fn leaves_unused(&self, axis: AxisRef) -> bool {
        !self.factors.iter().any(|list| list.contains(&axis)) && self.through.iter().all(|t| t.axis != axis)
    }

    /// The number of shards of the work.
    pub fn ways(&self) -> usize {
        self.factors.iter().flatten().map(|axis| axis.size).product()
    }
}

/// Every strategy of an op over the whole axes of a mesh, for a planner to choose from. Each axis
/// shards one factor, lets partial sums pass through a linear group, or is unused. Several axes on
/// one factor are in mesh order, and their product is at most the factor's size. Strategies with
/// strided shards, or with partial values of two combiners, are left out. The first axis varies
/// slowest; for each axis, factors come first, then unused, then partial sums.
pub fn strategies(node: &Node, rule: &Rule, mesh: &Mesh) -> Vec<Strategy> {
    let axes = (0..mesh.axes.len()).map(|axis| mesh.full_axis(axis)).filter(|axis| axis.size > 1);
    let uses = axes.map(|axis| {
        let fits = |&factor: &FactorId| may_split(rule, factor) && rule.factors[factor].size >= axis.size;
        let mut uses: Vec<AxisUse> =
            (0..rule.factors.len()).filter(fits).map(AxisUse::Factor).chain([AxisUse::Unused]).collect();
        let groups = (0..rule.linear.len()).filter(|&group| may_pass(node, rule, group));
        uses.extend(groups.map(|group| AxisUse::Through(group, Combiner::Sum)));
        (axis, uses)
    });
    let uses: Vec<(AxisRef, Vec<AxisUse>)> = uses.collect();
    let mut found = combinations(rule, &uses, &vec![Vec::new(); rule.factors.len()]);
    found.retain(|strategy| is_expressible(rule, strategy));
    found
}

/// Whether a partial value may pass through a linear group: the op must not also read the value
/// through another operand.
pub(crate) fn may_pass(node: &Node, rule: &Rule, group: usize) -> bool {
    let linear = &rule.linear[group].operands;
    let elsewhere =
        |value: ValueId| node.operands.iter().enumerate().any(|(i, v)| *v == value && !linear.contains(&i));
    !linear.is_empty() && !linear.iter().any(|&operand| elsewhere(node.operands[operand]))
}

/// Every combination of one use for each axis. The axes of a factor are in the order of the list in
/// `orders[factor]` that has most of them; axes not in that list follow. Combinations of
/// overlapping axes are left out.
pub(crate) fn combinations(
    rule: &Rule,
    uses: &[(AxisRef, Vec<AxisUse>)],
    orders: &[Vec<AxisList>],
) -> Vec<Strategy> {
    let mut combinations: Vec<Vec<AxisUse>> = vec![Vec::new()];
    for (_, options) in uses {
        combinations = combinations
            .into_iter()
            .flat_map(|c| options.iter().map(move |&o| [c.as_slice(), &[o]].concat()))
            .collect();
    }
    let axes: Vec<AxisRef> = uses.iter().map(|(axis, _)| *axis).collect();
    let strategy = |combination: Vec<AxisUse>| {
        let strategy = strategy(rule, &axes, &combination, orders);
        let through = strategy.through.iter().map(|through| through.axis);
        let used: Vec<AxisRef> = strategy.factors.iter().flatten().copied().chain(through).collect();
        (!overlap(&used)).then_some(strategy)
    };
    combinations.into_iter().filter_map(strategy).collect()
}

fn strategy(rule: &Rule, axes: &[AxisRef], combination: &[AxisUse], orders: &[Vec<AxisList>]) -> Strategy {
    let mut factors: Vec<AxisList> = vec![AxisList::new(); rule.factors.len()];
    let mut through = Vec::new();
    for (&axis, &axis_use) in axes.iter().zip(combination) {
        match axis_use {
            AxisUse::Factor(factor) => factors[factor].push(axis),
            AxisUse::Through(group, combiner) => through.push(Through { axis, group, combiner }),
            AxisUse::Unused => {}
        }
    }
    for (list, orders) in factors.iter_mut().zip(orders) {
        let known = |order: &&AxisList| order.iter().filter(|axis| list.contains(axis)).count();
        if let Some(order) = orders.iter().max_by_key(known) {
            let ordered = order.iter().filter(|axis| list.contains(axis));
            let rest = list.iter().filter(|axis| !order.contains(axis));
            *list = ordered.chain(rest).copied().collect();
        }
    }
    Strategy { factors, through }
}

/// Whether any two of these axes overlap.
pub(crate) fn overlap(axes: &[AxisRef]) -> bool {
    axes.iter().enumerate().any(|(i, a)| axes[i + 1..].iter().any(|b| a.overlaps(*b)))
}

/// Whether every tensor has a layout, if dimensions may be split at any element.
fn is_expressible(rule: &Rule, strategy: &Strategy) -> bool {
    let fits = |(list, factor): (&AxisList, &partita_ir::Factor)| {
        list.iter().map(|axis| axis.size).product::<usize>() <= factor.size.max(1)
    };
    let has_layout = |factors: &Vec<FactorId>| dim_sharding(rule, factors, &strategy.factors, 1, 0).is_some();
    let reduced = strategy.factors.iter().zip(&rule.factors).filter(|(list, _)| !list.is_empty());
    let reduced = reduced.filter_map(|(_, factor)| factor.kind.combiner());
    let combiners: Vec<Combiner> = reduced.chain(strategy.through.iter().map(|t| t.combiner)).collect();
    strategy.factors.iter().zip(&rule.factors).all(fits)
        && rule.operands.iter().chain(&rule.results).flatten().all(has_layout)
        && combiners.windows(2).all(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::DType;
    use partita_ir::ops::DotGeneral;
    use partita_ir::{FactorKind, Graph, GraphBuilder, Operation, Role, TensorType};

    /// `[8, 4] x [4, 6]`.
    fn matmul() -> (Graph, Rule) {
        let mut b = GraphBuilder::new("main");
        let x = b.input("x", TensorType::new(DType::F32, vec![8, 4]), Role::Input);
        let w = b.input("w", TensorType::new(DType::F32, vec![4, 6]), Role::Input);
        let dims = DotGeneral { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotGeneral::default() };
        let y = b.dot_general(x, w, dims).unwrap();
        let graph = b.finish(vec![y]);
        let node = &graph.nodes[0];
        let rule = node.op.rule(&graph.operand_types(node), &graph.result_types(node));
        (graph, rule)
    }

    /// For each strategy, the sizes of the factors that it shards, and the number of partial values
    /// that pass through.
    fn told(found: &[Strategy], rule: &Rule) -> Vec<(Vec<usize>, usize)> {
        let told = |s: &Strategy| {
            let split = (0..rule.factors.len()).filter(|&f| !s.factors[f].is_empty());
            (split.map(|f| rule.factors[f].size).collect(), s.through.len())
        };
        found.iter().map(told).collect()
    }

    #[test]
    fn a_matmul_has_six_strategies_over_an_axis() {
        let (graph, rule) = matmul();
        let found = strategies(&graph.nodes[0], &rule, &Mesh::new("m", &[("tp", 2)]));
        let mut told = told(&found, &rule);
        told.sort();
        // Nothing; either operand partial; the contracted factor; the columns; the rows.
        let expected: [(&[usize], usize); 6] =
            [(&[], 0), (&[], 1), (&[], 1), (&[4], 0), (&[6], 0), (&[8], 0)];
        assert_eq!(told, expected.map(|(split, through)| (split.to_vec(), through)));
        assert_eq!(
            found.iter().filter(|s| s.leaves_unused(Mesh::new("m", &[("tp", 2)]).full_axis(0))).count(),
            1
        );
    }

    #[test]
    fn no_factor_is_split_further_than_it_has_elements() {
        let (graph, rule) = matmul();
        let mesh = Mesh::new("m", &[("dp", 4), ("tp", 2)]);
        let found = strategies(&graph.nodes[0], &rule, &mesh);
        // Of 36 combinations, those with both axes on 4 or 6 elements are left out.
        assert_eq!(found.len(), 34);
        assert_eq!(found.iter().map(Strategy::ways).max(), Some(8));
    }

    #[test]
    fn two_combiners_never_meet() {
        let (graph, mut rule) = matmul();
        for factor in &mut rule.factors {
            if matches!(factor.kind, FactorKind::Reduce(_)) {
                factor.kind = FactorKind::Reduce(Combiner::Max);
            }
        }
        let mesh = Mesh::new("m", &[("dp", 2), ("tp", 2)]);
        let found = strategies(&graph.nodes[0], &rule, &mesh);
        let mixed = |s: &Strategy| !s.through.is_empty() && told(std::slice::from_ref(s), &rule)[0].0 == [4];
        assert!(!found.iter().any(mixed));
    }
}
