//! Collective matmul: a gather before a matmul, or a reduce-scatter behind one, as permutes around a ring of its ranks that
//! run while the ranks compute the parts of the product.
//!
//! **Gather.** Each rank begins with its own shard of the gathered operand and passes it on, r-1 times. With each shard
//! that it has, it computes those rows (or columns) of the product that follow from it: the same sums as without the
//! ring, so the same bits. Other readers of the gathered value get it as the shards arrive.
//!
//! **Reduce-scatter.** Each rank computes the rows of the product shard by shard, its own last, and adds each to the sum
//! that its neighbour passes on. After r-1 permutes it has its own shard. Every element is on one rank, and its terms are
//! added in the order of the ring.
//!
//! Either way r-1 permutes move as many bytes as the collective. Only even shards travel so.
//!
//! Source: S. Wang et al., "Overlap communication with dependent computation via decomposition in large deep learning
//! models", ASPLOS 2023.

use crate::ranks::Classes;
use partita_base::{DType, Diagnostic, Result};
use partita_cost::{Cluster, Collective, Work};
use partita_ir::ops::{
    AllGather, CollectivePermute, DotGeneral, DynamicSlice, DynamicUpdateSlice, Groups, RankConstant,
    ReduceScatter,
};
use partita_ir::{Graph, GraphBuilder, Literal, Node, NodeId, Op, Operation, Role, ValueId, graph_edit};
use partita_mesh::Combiner;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which gathers and reduce-scatters around matmuls become permutes under them.
#[derive(Clone, PartialEq, Debug, Default)]
pub enum CollectiveMatmul {
    /// None.
    #[default]
    Off,
    /// All that may.
    On,
    /// Those of activations that take less time so on this cluster. Gathers of parameters start early anyway; where they
    /// take longer than these collectives, permutes would wait for the links behind them, and none becomes a ring.
    Auto(Arc<Cluster>),
}

impl CollectiveMatmul {
    /// The names of the choices: `off`, `on`, `auto`.
    pub const NAMES: [&'static str; 3] = ["off", "on", "auto"];

    /// The choice of this name, on this cluster. E004 for another name.
    pub fn named(name: &str, cluster: &Cluster) -> Result<CollectiveMatmul> {
        match name {
            "off" => Ok(CollectiveMatmul::Off),
            "on" => Ok(CollectiveMatmul::On),
            "auto" => Ok(CollectiveMatmul::Auto(Arc::new(cluster.clone()))),
            _ => Err(Diagnostic::new("E004", format!("collectives around matmuls cannot be {name}"))
                .expected("off, on or auto")
                .found(name)),
        }
    }
}

/// A collective around matmuls that may become a ring, and what the cost model says of both forms.
#[derive(Clone, PartialEq, Debug)]
pub struct RingChoice {
    /// The module of the collective.
    pub path: String,
    /// `all_gather` or `reduce_scatter`.
    pub kind: &'static str,
    /// Seconds of the collective.
    pub collective_s: f64,
    /// Seconds of the collective and the matmuls one after the other.
    pub apart_s: f64,
    /// Seconds of the permutes and the parts of the matmuls under them.
    pub ring_s: f64,
}

impl RingChoice {
    /// Whether the ring takes less time.
    pub fn pays(&self) -> bool {
        self.ring_s < self.apart_s
    }
}

/// A collective that becomes a ring.
enum Ring {
    /// The matmuls that read the gathered value, with the side that it is, and the dimension of their result that is
    /// gathered.
    Gather(BTreeMap<NodeId, (usize, usize)>),
    /// The matmul that computes what is reduced, the side that has the scattered dimension, and that dimension of the
    /// operand.
    Scatter(NodeId, usize, usize),
}

/// Rewrites the graphs of all classes. They keep one structure.
///
/// # Errors
/// What building nodes says.
pub(crate) fn as_rings(
    graphs: Vec<Graph>,
    classes: &Classes,
    choice: &CollectiveMatmul,
) -> Result<Vec<Graph>> {
    if *choice == CollectiveMatmul::Off || classes.rank_count() < 2 {
        return Ok(graphs);
    }
    let rings = rings(&graphs, classes, choice, &mut |_| {});
    if rings.is_empty() {
        return Ok(graphs);
    }
    graphs.iter().zip(&classes.ranks).map(|(graph, ranks)| rewritten(graph, ranks, &rings)).collect()
}

/// The collectives that `choice` prices, in execution order; none unless it is [`CollectiveMatmul::Auto`].
pub(crate) fn priced(graphs: &[Graph], classes: &Classes, choice: &CollectiveMatmul) -> Vec<RingChoice> {
    let mut found = Vec::new();
    if matches!(choice, CollectiveMatmul::Auto(_)) && classes.rank_count() > 1 {
        rings(graphs, classes, choice, &mut |priced| found.push(priced));
    }
    found
}

/// The collectives that become rings, by node. `told` gets each that was priced.
fn rings(
    graphs: &[Graph],
    classes: &Classes,
    choice: &CollectiveMatmul,
    told: &mut dyn FnMut(RingChoice),
) -> BTreeMap<NodeId, Ring> {
    let first = &graphs[0];
    let uses = first.uses();
    let is_output = first.is_output();
    let of_parameters = of_parameters(first);
    let mut prices: Vec<RingChoice> = Vec::new();
    let mut rings: BTreeMap<NodeId, Ring> = BTreeMap::new();
    // A matmul is part of one ring.
    let mut taken: Vec<bool> = vec![false; first.nodes.len()];
    for id in first.node_ids() {
        let node = first.node(id);
        let ring = if let Op::AllGather(gather) = &node.op {
            let (dim, result) = (gather.dim, node.results[0]);
            let reads = |reader: NodeId| gathered_side(first, reader, result, dim).map(|at| (reader, at));
            let readers = || uses[result.index()].iter().map(|&(reader, _)| reader);
            let mut free: BTreeMap<_, _> =
                readers().filter_map(reads).filter(|(reader, _)| !taken[reader.index()]).collect();
            let Some(&begin) = free.keys().next() else { continue };
            // Products run together, where the first one is: they belong to one part of the step, and the other
            // operand exists there.
            let part = |node: &Node| (node.phase, node.microbatch, node.stage);
            let exists =
                |value: ValueId| first.value(value).definition.is_none_or(|(maker, _)| maker < begin);
            free.retain(|&reader, (side, _)| {
                let reader = first.node(reader);
                part(reader) == part(first.node(begin)) && exists(reader.operands[1 - *side])
            });
            if is_output[result.index()] || readers().any(|reader| reader < begin) {
                continue;
            }
            let is_early = of_parameters[node.operands[0].index()];
            let is_forced = *choice == CollectiveMatmul::On;
            (is_forced || !is_early).then_some(Ring::Gather(free))
        } else if let Op::ReduceScatter(scatter) = &node.op {
            let product = node.operands[0];
            let is_alone = uses[product.index()].len() == 1 && !is_output[product.index()];
            let is_sum = scatter.combiner == Combiner::Sum;
            let maker = first.value(product).definition.map(|(maker, _)| maker);
            maker.filter(|maker| is_alone && is_sum && !taken[maker.index()]).and_then(|maker| {
                let (side, dim) = scattered_side(first, maker, scatter.dim)?;
                Some(Ring::Scatter(maker, side, dim))
            })
        } else {
            None
        };
        let Some(ring) = ring else { continue };
        let is_even =
            |graph: &Graph| groups_of(&graph.node(id).op).is_some_and(|groups| covers(&groups, classes));
        if !graphs.iter().all(is_even) {
            continue;
        }
        if let CollectiveMatmul::Auto(cluster) = choice {
            let Some(priced) = price(first, id, &ring, cluster) else { continue };
            let pays = priced.pays();
            prices.push(priced);
            if !pays {
                continue;
            }
        }
        match &ring {
            Ring::Gather(readers) => readers.keys().for_each(|reader| taken[reader.index()] = true),
            Ring::Scatter(maker, ..) => taken[maker.index()] = true,
        }
        rings.insert(id, ring);
    }
    if let CollectiveMatmul::Auto(cluster) = choice {
        let early_s = gathers_of_parameters_s(first, &of_parameters, cluster);
        if early_s > prices.iter().map(|priced| priced.collective_s).sum() {
            return BTreeMap::new();
        }
    }
    prices.into_iter().for_each(told);
    rings
}

/// Seconds of all gathers of parameters.
fn gathers_of_parameters_s(graph: &Graph, of_parameters: &[bool], cluster: &Cluster) -> f64 {
    let seconds = |node: &Node| {
        let Op::AllGather(gather) = &node.op else { return 0.0 };
        let rings = gather.groups.first().map(|group| cluster.rings_among(group)).unwrap_or_default();
        let bytes = graph.ty(node.results[0]).bytes() as f64;
        if of_parameters[node.operands[0].index()] {
            Collective::AllGather.seconds(bytes, &rings)
        } else {
            0.0
        }
    };
    graph.nodes.iter().map(seconds).sum()
}

/// Which values follow from parameters alone.
fn of_parameters(graph: &Graph) -> Vec<bool> {
    let mut only = vec![false; graph.values.len()];
    for &input in &graph.inputs {
        only[input.index()] = graph.value(input).role == Role::Param;
    }
    for node in &graph.nodes {
        let all = !node.operands.is_empty() && node.operands.iter().all(|v| only[v.index()]);
        node.results.iter().for_each(|v| only[v.index()] = all);
    }
    only
}

/// The groups of a collective whose shards are even.
fn groups_of(op: &Op) -> Option<Groups> {
    let (groups, extents) = if let Op::AllGather(op) = op {
        (&op.groups, &op.extents)
    } else if let Op::ReduceScatter(op) = op {
        (&op.groups, &op.extents)
    } else {
        return None;
    };
    let is_even = extents.len() > 1 && extents[0] > 0 && extents.iter().all(|&extent| extent == extents[0]);
    is_even.then(|| groups.clone())
}

/// Whether each rank is in one of the groups, all of one size.
fn covers(groups: &Groups, classes: &Classes) -> bool {
    let size = groups.first().map_or(0, Vec::len);
    groups.iter().all(|group| group.len() == size) && groups.len() * size == classes.rank_count()
}

/// The side of a matmul that a gathered value is, and the dimension of the result that follows from the gathered one: one
/// that the matmul neither contracts nor has on both sides.
fn gathered_side(graph: &Graph, reader: NodeId, gathered: ValueId, dim: usize) -> Option<(usize, usize)> {
    let node = graph.node(reader);
    let Op::DotGeneral(dot) = &node.op else { return None };
    let side = node.operands.iter().position(|&v| v == gathered)?;
    if node.operands[1 - side] == gathered {
        return None;
    }
    let place = free_dims(graph, node, dot, side).iter().position(|&free| free == dim)?;
    let before = match side {
        0 => 0,
        _ => free_dims(graph, node, dot, 0).len(),
    };
    Some((side, dot.lhs_batch.len() + before + place))
}

/// The side of a matmul from which a dimension of its result comes, and the dimension there.
fn scattered_side(graph: &Graph, maker: NodeId, dim: usize) -> Option<(usize, usize)> {
    let node = graph.node(maker);
    let Op::DotGeneral(dot) = &node.op else { return None };
    if !matches!(graph.ty(node.results[0]).dtype, DType::F32 | DType::F64) {
        // Narrow sums would be rounded at each rank.
        return None;
    }
    let place = dim.checked_sub(dot.lhs_batch.len())?;
    let left = free_dims(graph, node, dot, 0);
    match left.get(place) {
        Some(&dim) => Some((0, dim)),
        None => Some((1, free_dims(graph, node, dot, 1)[place - left.len()])),
    }
}

/// The dimensions of an operand that are neither contracted nor batch dimensions.
fn free_dims(graph: &Graph, node: &Node, dot: &DotGeneral, side: usize) -> Vec<usize> {
    let (batch, contracting) = match side {
        0 => (&dot.lhs_batch, &dot.lhs_contracting),
        _ => (&dot.rhs_batch, &dot.rhs_contracting),
    };
    let rank = graph.ty(node.operands[side]).rank();
    (0..rank).filter(|dim| !batch.contains(dim) && !contracting.contains(dim)).collect()
}

/// The seconds of a ring, and of the collective and the matmuls one after the other.
fn price(graph: &Graph, id: NodeId, ring: &Ring, cluster: &Cluster) -> Option<RingChoice> {
    let node = graph.node(id);
    let groups = groups_of(&node.op)?;
    let rings = cluster.rings_among(&groups[0]);
    let ranks = groups[0].len() as f64;
    let work = |node: &Node| {
        let cost = node.op.cost(&graph.operand_types(node), &graph.result_types(node));
        Work { flops: cost.flops, bytes: cost.bytes, dtype: graph.ty(node.operands[0]).dtype }
    };
    let whole_s = |node: &Node| cluster.op_s(&work(node));
    // The other operand is read for each part.
    let part_s = |node: &Node, side: usize| {
        let work = work(node);
        let again = graph.ty(node.operands[1 - side]).bytes() as f64 * (1.0 - 1.0 / ranks);
        cluster.op_s(&Work { flops: work.flops / ranks, bytes: work.bytes / ranks + again, ..work })
    };
    let (kind, full, products): (_, _, Vec<(&Node, usize)>) = match ring {
        Ring::Gather(readers) => {
            let readers = readers.iter().map(|(&reader, &(side, _))| (graph.node(reader), side));
            (Collective::AllGather, node.results[0], readers.collect())
        }
        Ring::Scatter(maker, side, _) => {
            (Collective::ReduceScatter, node.operands[0], vec![(graph.node(*maker), *side)])
        }
    };
    let full_bytes = graph.ty(full).bytes() as f64;
    let collective_s = kind.seconds(full_bytes, &rings);
    let apart_s = collective_s + products.iter().map(|(node, _)| whole_s(node)).sum::<f64>();
    let one_s: f64 = products.iter().map(|&(node, side)| part_s(node, side)).sum();
    let permute_s = Collective::Permute.seconds(full_bytes / ranks, &rings);
    // Parts of products are put in place, parts of sums added.
    let moved: usize = products.iter().map(|(node, _)| graph.ty(node.results[0]).bytes()).sum();
    let moved_s = cluster.memory_s(3.0 * moved as f64);
    Some(RingChoice {
        path: node.path.to_string(),
        kind: if matches!(ring, Ring::Gather(_)) { "all_gather" } else { "reduce_scatter" },
        collective_s,
        apart_s,
        ring_s: one_s + (ranks - 1.0) * one_s.max(permute_s) + moved_s,
    })
}

fn rewritten(graph: &Graph, ranks: &[usize], rings: &BTreeMap<NodeId, Ring>) -> Result<Graph> {
    let uses = graph.uses();
    // The gather whose products begin at a matmul, and the matmuls that a reduce-scatter computes in parts.
    let mut begins: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    let mut postponed: Vec<NodeId> = Vec::new();
    for (&id, ring) in rings {
        match ring {
            Ring::Gather(readers) => begins.extend(readers.keys().next().map(|&first| (first, id))),
            Ring::Scatter(maker, ..) => postponed.push(*maker),
        }
    }
    // What rings put together, shard by shard.
    let mut together: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    graph_edit::rebuild(graph, |b, map, index, _| {
        let id = NodeId::new(index);
        let node = &graph.nodes[index];
        let new = |together: &BTreeMap<ValueId, ValueId>, v: &ValueId| {
            together.get(v).copied().or(map[v.index()]).expect("nodes stand in execution order")
        };
        // A ring computes a sum where it is scattered, and gathers where its first product is.
        if postponed.contains(&id) || matches!(rings.get(&id), Some(Ring::Gather(_))) {
            return Ok(None);
        }
        if let Some(Ring::Scatter(maker, side, dim)) = rings.get(&id) {
            let product = graph.node(*maker);
            let operands: Vec<ValueId> = product.operands.iter().map(|v| new(&together, v)).collect();
            return Ok(Some(vec![scattered(b, ranks, node, product, &operands, *side, *dim)?]));
        }
        if let Some(gather) = begins.get(&id)
            && let Some(Ring::Gather(readers)) = rings.get(gather)
        {
            let others = |value: &ValueId| new(&together, value);
            let filled = gathered(b, graph, ranks, *gather, readers, &uses, &others)?;
            together.extend(filled);
        }
        if let Some(&made) = node.results.first().and_then(|result| together.get(result)) {
            return Ok(Some(vec![made]));
        }
        let operands: Vec<ValueId> = node.operands.iter().map(|v| new(&together, v)).collect();
        Ok(Some(graph_edit::push_copy(b, graph, index, &operands)))
    })
}

/// The products that a ring of gathered shards feeds, and the gathered value itself where something else reads it too.
fn gathered(
    b: &mut GraphBuilder,
    graph: &Graph,
    ranks: &[usize],
    gather: NodeId,
    readers: &BTreeMap<NodeId, (usize, usize)>,
    uses: &[Vec<(NodeId, usize)>],
    new: &dyn Fn(&ValueId) -> ValueId,
) -> Result<Vec<(ValueId, ValueId)>> {
    let gather = graph.node(gather);
    let Op::AllGather(AllGather { groups, extents, dim }) = &gather.op else { unreachable!() };
    let way = Way { groups: groups.clone(), extent: extents[0] };
    let result = gather.results[0];
    let mut filled: Vec<(ValueId, ValueId)> = Vec::new();
    b.enter(gather);
    if uses[result.index()].iter().any(|(reader, _)| !readers.contains_key(reader)) {
        let empty = b.full(graph.ty(result), 0.0)?;
        filled.push((result, empty));
    }
    for &reader in readers.keys() {
        b.enter(graph.node(reader));
        let product = graph.node(reader).results[0];
        let empty = b.full(graph.ty(product), 0.0)?;
        filled.push((product, empty));
    }
    let mut part = new(&gather.operands[0]);
    for hop in 0..extents.len() {
        b.enter(gather);
        let next = if hop + 1 < extents.len() { Some(way.pass_on(b, part)?) } else { None };
        for (value, whole) in &mut filled {
            let maker = graph.value(*value).definition.map(|(maker, _)| maker);
            let (made, at) = match maker.and_then(|maker| Some((graph.node(maker), readers.get(&maker)?))) {
                None => (part, *dim),
                Some((reader, &(side, at))) => {
                    b.enter(reader);
                    let other = new(&reader.operands[1 - side]);
                    let own = if side == 0 { [part, other] } else { [other, part] };
                    (b.push1(reader.op.clone(), &own)?, at)
                }
            };
            *whole = way.put(b, ranks, *whole, made, at, hop)?;
        }
        part = next.unwrap_or(part);
    }
    Ok(filled)
}

/// The shard of a rank of a sum of products over ranks.
fn scattered(
    b: &mut GraphBuilder,
    ranks: &[usize],
    scatter: &Node,
    product: &Node,
    operands: &[ValueId],
    side: usize,
    dim: usize,
) -> Result<ValueId> {
    let Op::ReduceScatter(ReduceScatter { groups, extents, .. }) = &scatter.op else { unreachable!() };
    let way = Way { groups: groups.clone(), extent: extents[0] };
    let mut sum: Option<ValueId> = None;
    for hop in 0..extents.len() {
        b.enter(scatter);
        let received = sum.map(|sum| way.pass_on(b, sum)).transpose()?;
        b.enter(product);
        let mut own = operands.to_vec();
        // The shard of the neighbour behind is the first to leave, and the rank's own the last.
        own[side] = way.take(b, ranks, operands[side], dim, hop + 1)?;
        let part = b.push1(product.op.clone(), &own)?;
        b.enter(scatter);
        sum = Some(match received {
            None => part,
            Some(received) => b.add(received, part)?,
        });
    }
    Ok(sum.expect("there are ranks"))
}

/// The way around the ranks of each group: everyone sends to the one before.
struct Way {
    groups: Groups,
    /// The extent of a shard.
    extent: usize,
}

impl Way {
    fn pass_on(&self, b: &mut GraphBuilder, value: ValueId) -> Result<ValueId> {
        let mut pairs = Vec::new();
        for group in self.groups.iter() {
            pairs.extend((0..group.len()).map(|place| (group[(place + 1) % group.len()], group[place])));
        }
        b.push1(CollectivePermute { pairs }, &[value])
    }

    /// Where the shard begins that is this many places behind a rank: an i64 scalar for each rank of a class.
    fn start(&self, b: &mut GraphBuilder, ranks: &[usize], behind: usize) -> Result<ValueId> {
        let start = |&rank: &usize| {
            let found = self
                .groups
                .iter()
                .find_map(|group| Some((group.iter().position(|&r| r == rank)?, group.len())));
            let (place, count) = found.expect("the groups cover all ranks");
            Literal::scalar(DType::I64, ((place + behind) % count * self.extent) as f64)
        };
        let starts: Vec<Literal> = ranks.iter().map(start).collect();
        b.push1(RankConstant::new(ranks, &starts), &[])
    }

    fn starts(
        &self,
        b: &mut GraphBuilder,
        ranks: &[usize],
        rank: usize,
        dim: usize,
        behind: usize,
    ) -> Result<Vec<ValueId>> {
        let own = self.start(b, ranks, behind)?;
        let zero = b.scalar(DType::I64, 0.0);
        Ok((0..rank).map(|at| if at == dim { own } else { zero }).collect())
    }

    /// The shard of a tensor that is this many places behind a rank.
    fn take(
        &self,
        b: &mut GraphBuilder,
        ranks: &[usize],
        x: ValueId,
        dim: usize,
        behind: usize,
    ) -> Result<ValueId> {
        let mut sizes = b.shape(x);
        let starts = self.starts(b, ranks, sizes.len(), dim, behind)?;
        sizes[dim] = self.extent;
        b.push1(DynamicSlice { sizes }, &[&[x], &starts[..]].concat())
    }

    /// A tensor with the shard that is this many places behind a rank replaced.
    fn put(
        &self,
        b: &mut GraphBuilder,
        ranks: &[usize],
        x: ValueId,
        part: ValueId,
        dim: usize,
        behind: usize,
    ) -> Result<ValueId> {
        let starts = self.starts(b, ranks, b.shape(x).len(), dim, behind)?;
        b.push1(DynamicUpdateSlice, &[&[x, part], &starts[..]].concat())
    }
}
