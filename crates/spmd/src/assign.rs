//! Chooses how the factors of one op are sharded.
//!
//! From all [`crate::strategies()`] of the op, only those are tried that follow from the layouts of
//! its operands and results: an axis may shard a factor that an operand or result already has
//! sharded over it, may let a partial operand pass through, or may be unused. Each combination is
//! priced: resharding operands, the op's own work, and resharding results to their propagated
//! layouts. Among the combinations that repeat the least work the cheapest wins, and the first one
//! among equals, so the outcome is deterministic.

use crate::factors::{axes_of_factors, dim_sharding, may_split};
use crate::propagate::Layouts;
use crate::strategies::{AxisUse, Strategy, Through, combinations, may_pass, overlap};
use crate::units::Units;
use partita_cost::{Cluster, Collective, Work};
use partita_ir::{FactorKind, Graph, Node, Op, Operation, Phase, Role, Rule, ValueId};
use partita_mesh::{AxisList, AxisRef, Combiner, DimSharding, Mesh, Sharding};

/// How one op is sharded.
#[derive(Clone, Debug)]
pub struct Assignment {
    /// The axes of each factor.
    pub factors: Vec<AxisList>,
    /// The layout that each operand must have.
    pub required: Vec<Sharding>,
    /// The layout that each result has.
    pub produced: Vec<Sharding>,
}

/// The input of an assignment: an op and what is known of its operands and results.
pub struct Situation<'a> {
    /// The global graph.
    pub graph: &'a Graph,
    /// The op.
    pub node: &'a Node,
    /// Its factor rule.
    pub rule: &'a Rule,
    /// The mesh.
    pub mesh: &'a Mesh,
    /// The cost model of links and devices.
    pub cluster: &'a Cluster,
    /// The units of dimensions.
    pub units: &'a Units,
    /// The propagated layouts, which say which axes split a value by single elements.
    pub layouts: &'a Layouts,
    /// The main layout in which each operand is held.
    pub held: Vec<Sharding>,
    /// The propagated layout of each result.
    pub wanted: Vec<Sharding>,
}

/// Most combinations to try. Beyond this number, the remaining axes keep their first use.
const MAX_COMBINATIONS: usize = 1024;

/// What it takes to reshard the tensors of an op.
pub trait Reshards {
    /// Seconds from the layouts in which an operand is held to the one that the op requires.
    fn fetch_s(&mut self, operand: usize, required: &Sharding) -> f64;

    /// Seconds from the layout in which the op produces a result to its propagated one.
    fn settle_s(&mut self, result: usize, produced: &Sharding) -> f64;
}

/// The cheapest assignment.
pub fn assign(situation: &Situation, reshards: &mut dyn Reshards) -> Assignment {
    let (axes, references) = axes_in_sight(situation);
    let uses: Vec<(AxisRef, Vec<AxisUse>)> =
        axes.into_iter().map(|axis| (axis, uses_in_sight(situation, axis, &references))).collect();
    let mut count = 1;
    let mut tried = uses.clone();
    for (_, options) in &mut tried {
        if count * options.len() > MAX_COMBINATIONS {
            options.truncate(1);
        }
        count *= options.len();
    }
    // Two rules take precedence over cost. First, work is never repeated on all ranks of an axis to
    // avoid communication: for the tiny tensors of a test that would be cheap, but layouts should
    // not depend on sizes. Second, a sharded parameter is not gathered to move work elsewhere,
    // because its layout says that work should come to the shards. (A sharding constraint requests
    // a gather at each use.)
    let mut best: Option<(usize, f64, Assignment)> = None;
    let work = work(situation.graph, situation.node);
    for strategy in combinations(situation.rule, &tried, &references) {
        let repeats = |(axis, options): &&(AxisRef, Vec<AxisUse>)| {
            strategy.leaves_unused(*axis) && options.iter().any(|o| matches!(o, AxisUse::Factor(_)))
        };
        let repeated: usize = uses.iter().filter(repeats).map(|(axis, _)| axis.size).product();
        let own_s = share_s(situation.cluster, work, strategy.ways());
        // Whatever its operands and results take, it is no better.
        let is_beaten = |(least, least_s, _): &(usize, f64, Assignment)| {
            repeated > *least || repeated == *least && own_s >= least_s * (1.0 - 1e-9)
        };
        if best.as_ref().is_some_and(is_beaten) {
            continue;
        }
        let Some(assignment) = layouts_of(situation, &strategy) else { continue };
        let repeated = repeated * uprooted(situation, &assignment);
        let seconds = own_s + moves_s(situation, &assignment, reshards);
        let better = |(least, least_s, _): &(usize, f64, Assignment)| {
            repeated < *least || seconds < least_s * (1.0 - 1e-9)
        };
        if best.as_ref().is_none_or(better) {
            best = Some((repeated, seconds, assignment));
        }
    }
    // If the number of combinations was limited, the remaining ones may all be invalid.
    let nothing = || vec![AxisList::new(); situation.rule.factors.len()];
    let fallback = || fixed(situation, &nothing()).expect("an op can always work on whole values");
    best.map_or_else(fallback, |(_, _, assignment)| assignment)
}

/// The number of shards of those parameters that this assignment would gather.
fn uprooted(situation: &Situation, assignment: &Assignment) -> usize {
    let graph = situation.graph;
    let mut pieces = 1;
    for ((&operand, held), required) in
        situation.node.operands.iter().zip(&situation.held).zip(&assignment.required)
    {
        if graph.value(operand).role == Role::Param {
            let kept = required.sharded_axes();
            let gone = held.sharded_axes().into_iter().filter(|axis| !kept.contains(axis));
            pieces *= gone.map(|axis| axis.size).product::<usize>();
        }
    }
    pieces
}

/// Every axis that operands or results use, and for each factor the ordered lists in which it
/// occurs.
fn axes_in_sight(situation: &Situation) -> (Vec<AxisRef>, Vec<Vec<AxisList>>) {
    let rule = situation.rule;
    let mut axes: Vec<AxisRef> = Vec::new();
    let mut references: Vec<Vec<AxisList>> = vec![Vec::new(); rule.factors.len()];
    let tensors = situation.wanted.iter().zip(&rule.results).chain(situation.held.iter().zip(&rule.operands));
    for (sharding, dims) in tensors {
        for (dim, factors) in dims.iter().enumerate() {
            for (factor, list) in axes_of_factors(rule, factors, &sharding.dims[dim].axes) {
                if !list.is_empty() {
                    axes.extend(list.iter().filter(|a| !axes.contains(a)).copied().collect::<Vec<_>>());
                    references[factor].push(list);
                }
            }
        }
        for (axis, _) in &sharding.partial {
            if !axes.contains(axis) {
                axes.push(*axis);
            }
        }
    }
    axes.sort();
    (axes, references)
}

/// The possible uses of an axis, given the layouts of operands and results.
fn uses_in_sight(situation: &Situation, axis: AxisRef, references: &[Vec<AxisList>]) -> Vec<AxisUse> {
    let rule = situation.rule;
    let seen =
        |&factor: &usize| references[factor].iter().any(|l| l.contains(&axis)) && may_split(rule, factor);
    let mut uses: Vec<AxisUse> =
        (0..rule.factors.len()).filter(seen).map(AxisUse::Factor).chain([AxisUse::Unused]).collect();
    for (group, linear) in rule.linear.iter().enumerate() {
        let combiner = |operand: &usize| {
            situation.held[*operand].partial.iter().find(|(a, _)| *a == axis).map(|(_, c)| *c)
        };
        let first = linear.operands.first().and_then(combiner);
        let same = linear.operands.iter().all(|o| combiner(o) == first);
        if let (Some(combiner), true) = (first, same && may_pass(situation.node, rule, group))
            && (linear.any_combiner || combiner == Combiner::Sum)
        {
            uses.push(AxisUse::Through(group, combiner));
        }
    }
    // The gradient of a parameter is added over ranks in the parameter's own type, not in that of a narrower copy.
    let passes = |axis_use: &AxisUse| matches!(axis_use, AxisUse::Through(..));
    if widens_gradient(situation.graph, situation.node) && uses.iter().any(passes) {
        uses.retain(passes);
    }
    uses
}

/// Whether a node converts the gradient of a narrower copy of a parameter to the parameter's own type.
fn widens_gradient(graph: &Graph, node: &Node) -> bool {
    let bytes = |value: ValueId| graph.ty(value).dtype.size_bytes();
    matches!(node.op, Op::Convert(_))
        && node.phase == Phase::WeightGrad
        && bytes(node.operands[0]) < bytes(node.results[0])
}

/// The assignment with these axes on the factors and no partial operand. `None` if it cannot be
/// expressed: a wrong number of lists, an axis used twice, axes on a factor that must not be split,
/// or strided shards.
pub fn fixed(situation: &Situation, factors: &[AxisList]) -> Option<Assignment> {
    let rule = situation.rule;
    let fits = factors.len() == rule.factors.len()
        && (0..factors.len()).all(|f| factors[f].is_empty() || may_split(rule, f));
    let used: Vec<AxisRef> = factors.iter().flatten().copied().collect();
    let strategy = Strategy { factors: factors.to_vec(), through: Vec::new() };
    if fits && !overlap(&used) { layouts_of(situation, &strategy) } else { None }
}

/// The layouts of a strategy; `None` if they cannot be expressed.
pub fn layouts_of(situation: &Situation, strategy: &Strategy) -> Option<Assignment> {
    let rule = situation.rule;
    let factors = &strategy.factors;
    let by_element = by_element(situation, factors);
    let layout = |value: ValueId, dims: &[Vec<usize>]| -> Option<Sharding> {
        let mut sharding = Sharding::replicated(dims.len());
        for (dim, list) in dims.iter().enumerate() {
            let by_element = list.first().map_or(0, |&major| by_element[major]);
            let unit = situation.units.unit(value, dim);
            sharding.dims[dim] = dim_sharding(rule, list, factors, unit, by_element)?;
        }
        Some(sharding)
    };
    let mut required: Vec<Sharding> = situation
        .node
        .operands
        .iter()
        .zip(&rule.operands)
        .map(|(&v, dims)| layout(v, dims))
        .collect::<Option<_>>()?;
    let mut produced: Vec<Sharding> = situation
        .node
        .results
        .iter()
        .zip(&rule.results)
        .map(|(&v, dims)| layout(v, dims))
        .collect::<Option<_>>()?;
    // A factor must be split at the same positions in every tensor.
    consistent(situation, &required, &produced)?;
    for (factor, list) in factors.iter().enumerate() {
        if let Some(combiner) = rule.factors[factor].kind.combiner() {
            for (sharding, dims) in produced.iter_mut().zip(&rule.results) {
                if !dims.iter().any(|d| d.contains(&factor)) {
                    sharding.partial.extend(list.iter().map(|&a| (a, combiner)));
                }
            }
        }
    }
    for &Through { axis, group, combiner } in &strategy.through {
        for &operand in &rule.linear[group].operands {
            required[operand].partial.push((axis, combiner));
        }
        for sharding in &mut produced {
            sharding.partial.push((axis, combiner));
        }
    }
    // A sum over one axis of maxima over another is not defined.
    for sharding in required.iter().chain(&produced) {
        if sharding.partial.windows(2).any(|w| w[0].1 != w[1].1) {
            return None;
        }
    }
    let graph = situation.graph;
    for (sharding, &value) in required
        .iter_mut()
        .zip(&situation.node.operands)
        .chain(produced.iter_mut().zip(&situation.node.results))
    {
        sharding.normalise(situation.mesh, &graph.ty(value).shape);
    }
    Some(Assignment { factors: factors.clone(), required, produced })
}

/// For each factor, the number of minor-most axes that split by single elements: those that do so
/// in any tensor of the op along this factor.
fn by_element(situation: &Situation, factors: &[AxisList]) -> Vec<usize> {
    let (rule, node) = (situation.rule, situation.node);
    let operands = node.operands.iter().zip(&rule.operands);
    let tensors = || operands.clone().chain(node.results.iter().zip(&rule.results));
    if tensors().all(|(value, _)| situation.layouts.by_element[value.index()].is_empty()) {
        return vec![0; factors.len()];
    }
    let along = |factor: usize, axis: AxisRef| {
        let majors = |dims: &Vec<Vec<usize>>| dims.iter().any(|d| d.first() == Some(&factor));
        tensors().any(|(&value, dims)| majors(dims) && situation.layouts.cuts_by_element(value, axis))
    };
    let count =
        |(factor, axes): (usize, &AxisList)| axes.iter().rev().take_while(|&&a| along(factor, a)).count();
    factors.iter().enumerate().map(count).collect()
}

/// Checks that each sharded factor has the same extents in every tensor that holds it. They may
/// differ if the unit of one tensor does not divide another's extent.
fn consistent(situation: &Situation, required: &[Sharding], produced: &[Sharding]) -> Option<()> {
    let rule = situation.rule;
    // For each factor, one dimension in which it is the major factor: its split, its size, and the
    // product of its minor factors.
    let mut cuts: Vec<Option<(&DimSharding, usize, usize)>> = vec![None; rule.factors.len()];
    let extents = |(cut, size, below): (&DimSharding, usize, usize)| -> Vec<usize> {
        cut.extents(size).iter().map(|extent| extent / below).collect()
    };
    let tensors = required.iter().zip(&rule.operands).zip(&situation.node.operands);
    let tensors = tensors.chain(produced.iter().zip(&rule.results).zip(&situation.node.results));
    for ((sharding, dims), &value) in tensors {
        for (dim, factors) in dims.iter().enumerate() {
            let entry = &sharding.dims[dim];
            let Some((&major, minor)) = factors.split_first() else { continue };
            // Along windows, each tensor is split by its own extent.
            if entry.axes.is_empty() || matches!(rule.factors[major].kind, FactorKind::Window(_)) {
                continue;
            }
            let below: usize = minor.iter().map(|&f| rule.factors[f].size).product();
            let size = situation.graph.ty(value).shape[dim];
            let is_whole = below == 1
                || (below > 0
                    && match entry.even_extent(size) {
                        Some(extent) => extent % below == 0,
                        None => entry.extents(size).iter().all(|extent| extent % below == 0),
                    });
            // Splits that reach into minor factors are even by construction.
            if !is_whole {
                if entry.even_extent(size).is_some() {
                    continue;
                }
                return None;
            }
            let mine = (entry, size, below);
            match cuts[major] {
                Some(other) if other != mine && extents(other) != extents(mine) => return None,
                _ => cuts[major] = Some(mine),
            }
        }
    }
    Some(())
}

/// Seconds of what an op exchanges under an assignment: halos, operands in other layouts, and results on their way to their
/// propagated layouts.
fn moves_s(situation: &Situation, assignment: &Assignment, reshards: &mut dyn Reshards) -> f64 {
    let Situation { graph, node, rule, mesh, cluster, .. } = situation;
    let mut seconds = halo_s(cluster, mesh, graph, node, rule, &assignment.required);
    let operands = &node.operands;
    for (operand, required) in assignment.required.iter().enumerate() {
        let fetched = (0..operand)
            .any(|other| operands[other] == operands[operand] && assignment.required[other] == *required);
        if !fetched {
            seconds += reshards.fetch_s(operand, required);
        }
    }
    let settle_s = |(result, produced): (usize, &Sharding)| reshards.settle_s(result, produced);
    seconds + assignment.produced.iter().enumerate().map(settle_s).sum::<f64>()
}

/// Seconds in which the ranks that share windows exchange halos, with the operands in these layouts.
pub fn halo_s(
    cluster: &Cluster,
    mesh: &Mesh,
    graph: &Graph,
    node: &Node,
    rule: &Rule,
    required: &[Sharding],
) -> f64 {
    let mut seconds = 0.0;
    for ((&value, dims), required) in node.operands.iter().zip(&rule.operands).zip(required) {
        let ty = graph.ty(value);
        for (dim, factors) in dims.iter().enumerate() {
            let Some(FactorKind::Window(window)) = factors.first().map(|&f| rule.factors[f].kind) else {
                continue;
            };
            let axes = &required.dims[dim].axes;
            if axes.is_empty() || ty.shape[dim] != window.input {
                continue;
            }
            // The other dimensions of the shard, times the elements of the halo along this one.
            let mut across = required.clone();
            across.dims[dim].axes.clear();
            let elements =
                across.largest_local_elements(mesh, &ty.shape) / ty.shape[dim].max(1) * window.halo();
            let bytes = (elements * ty.dtype.size_bytes()) as f64;
            seconds += cluster.collective_s(Collective::Permute, bytes, mesh, axes);
        }
    }
    seconds
}

/// The work of an op, in the type of its first tensor; none for an op without tensors.
fn work(graph: &Graph, node: &Node) -> Option<Work> {
    let cost = node.op.cost(&graph.operand_types(node), &graph.result_types(node));
    let first = node.operands.iter().chain(&node.results).next();
    first.map(|&value| Work { flops: cost.flops, bytes: cost.bytes, dtype: graph.ty(value).dtype })
}

/// Seconds of some work on the slowest of `ways` devices that share it.
fn share_s(cluster: &Cluster, work: Option<Work>, ways: usize) -> f64 {
    let share = 1.0 / ways.max(1) as f64;
    work.map_or(0.0, |Work { flops, bytes, dtype }| {
        cluster.op_s(&Work { flops: flops * share, bytes: bytes * share, dtype })
    })
}

/// Seconds of an op on the slowest of `ways` devices that share its work.
pub fn op_s(cluster: &Cluster, graph: &Graph, node: &Node, ways: usize) -> f64 {
    share_s(cluster, work(graph, node), ways)
}
