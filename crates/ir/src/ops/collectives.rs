//! Ops in which ranks exchange data. Groups are explicit lists of ranks; a rank in no group takes part alone.
//!
//! They stand in per-rank graphs and in the bodies of manual computations only. There, gradients follow the
//! convention of JAX's `shard_map` without replication checks: cotangents are per rank like the values, so the
//! transpose of a sum over ranks is the sum over ranks of the cotangents, a gather turns into a reduce-scatter and
//! back, and exchanges run backwards.

use super::checks::{operand_count, shapes, sizes};
use super::control::shapes_of;
use super::reduce::{Numbers, check_combiner, refused};
use crate::builder::GraphBuilder;
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, RankCall};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;

/// Combines the operands of each group elementwise, in group order; every member gets the result.
#[derive(Clone, PartialEq, Debug)]
pub struct AllReduce {
    /// The groups, each in combination order.
    pub groups: Vec<Vec<usize>>,
    /// The combiner.
    pub combiner: Combiner,
}

/// Joins the operands of each group along `dim`, in group order.
#[derive(Clone, PartialEq, Debug)]
pub struct AllGather {
    /// The dimension joined along.
    pub dim: usize,
    /// The groups, each in joining order.
    pub groups: Vec<Vec<usize>>,
    /// The extent along `dim` that each member brings, by position in the group.
    pub extents: Vec<usize>,
}

/// Combines as [`AllReduce`]; member `i` keeps the `i`-th piece along `dim`.
#[derive(Clone, PartialEq, Debug)]
pub struct ReduceScatter {
    /// The dimension cut.
    pub dim: usize,
    /// The groups, each in combination order.
    pub groups: Vec<Vec<usize>>,
    /// The combiner.
    pub combiner: Combiner,
    /// The extent along `dim` that each member keeps.
    pub extents: Vec<usize>,
}

/// Every member cuts its operand along `split_dim`, sends piece `j` to member `j`, and joins what it receives
/// along `concat_dim`.
#[derive(Clone, PartialEq, Debug)]
pub struct AllToAll {
    /// The dimension cut.
    pub split_dim: usize,
    /// The dimension joined along.
    pub concat_dim: usize,
    /// The groups.
    pub groups: Vec<Vec<usize>>,
    /// The extent along `split_dim` of the piece for each member.
    pub split_extents: Vec<usize>,
    /// The extent along `concat_dim` that each member brings.
    pub concat_extents: Vec<usize>,
}

/// Sends whole values: each pair is (source, target); who receives nothing has zeros.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectivePermute {
    /// The pairs; no target twice.
    pub pairs: Vec<(usize, usize)>,
}

/// The first member of each group gives its value to the others; who is in no group has zeros.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectiveBroadcast {
    /// The groups.
    pub groups: Vec<Vec<usize>>,
}

/// This rank's number, a u32 scalar.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionId;

const ALL_REDUCE: &str = "stablehlo.all_reduce";
const ALL_GATHER: &str = "stablehlo.all_gather";
const REDUCE_SCATTER: &str = "stablehlo.reduce_scatter";
const ALL_TO_ALL: &str = "stablehlo.all_to_all";
const PERMUTE: &str = "stablehlo.collective_permute";
const BROADCAST: &str = "stablehlo.collective_broadcast";
const PARTITION_ID: &str = "stablehlo.partition_id";

/// E110 when a rank is in two groups, or groups do not have `members` members.
fn check_groups(name: &str, groups: &[Vec<usize>], members: Option<usize>) -> Result<()> {
    let mut all: Vec<usize> = groups.concat();
    all.sort_unstable();
    if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Diagnostic::new("E110", format!("rank {} is twice in the groups of `{name}`", pair[0]))
            .expected("every rank in one group at most")
            .found(format!("{groups:?}")));
    }
    match members.and_then(|count| Some((count, groups.iter().find(|g| g.len() != count)?))) {
        Some((count, group)) => {
            Err(Diagnostic::new("E110", format!("a group of `{name}` does not fit its extents"))
                .expected(format!("{count} members, one per extent"))
                .found(format!("{group:?}")))
        }
        None => Ok(()),
    }
}

/// E105 unless the dimension exists.
fn check_dim(name: &str, dim: usize, ty: &TensorType) -> Result<()> {
    if dim < ty.rank() {
        return Ok(());
    }
    Err(Diagnostic::new("E105", format!("`{name}` along a dimension that does not exist"))
        .expected(format!("a dimension of {ty}"))
        .found(dim.to_string()))
}

/// The one extent of all members. E118 where they differ: then each rank has a type of its own.
fn even_extent(name: &str, extents: &[usize]) -> Result<usize> {
    match extents {
        [first, rest @ ..] if rest.iter().all(|e| e == first) => Ok(*first),
        _ => Err(Diagnostic::new("E118", format!("the result type of `{name}` depends on the rank"))
            .expected("equal extents")
            .found(format!("{extents:?}"))
            .help("give this rank's result type: `GraphBuilder::push_typed`")),
    }
}

/// E118 unless every rank's result has the type its graph declares.
fn checked(name: &str, ranks: &[RankCall], results: Vec<Literal>) -> Result<Vec<Vec<Literal>>> {
    for (rank, (call, result)) in ranks.iter().zip(&results).enumerate() {
        if call.results[0] != result.ty {
            return Err(Diagnostic::new("E118", format!("`{name}` yields another type than declared"))
                .at(format!("rank {rank}"))
                .expected(call.results[0].to_string())
                .found(result.ty.to_string()));
        }
    }
    Ok(results.into_iter().map(|result| vec![result]).collect())
}

/// E118 unless all members of a group bring operands of the shape that its first member expects of them.
fn check_operand(name: &str, call: &RankCall, rank: usize, expected: &TensorType) -> Result<()> {
    if call.operands[0].ty == *expected {
        return Ok(());
    }
    Err(Diagnostic::new(
        "E118",
        format!("a member of a group of `{name}` brings an operand that does not fit"),
    )
    .at(format!("rank {rank}"))
    .expected(expected.to_string())
    .found(call.operands[0].ty.to_string()))
}

/// Every rank's group and its place in it: alone where it is in none.
fn memberships(groups: &[Vec<usize>], ranks: usize) -> Vec<(Vec<usize>, usize)> {
    let of_rank = |rank| {
        let place = |group: &Vec<usize>| group.iter().position(|&member| member == rank);
        let found = groups.iter().find_map(|group| Some((group.clone(), place(group)?)));
        found.unwrap_or((vec![rank], 0))
    };
    (0..ranks).map(of_rank).collect()
}

/// E110 unless all groups name ranks that are there.
fn check_ranks(name: &str, named: impl Iterator<Item = usize>, ranks: usize) -> Result<()> {
    match named.max().filter(|&rank| rank >= ranks) {
        Some(rank) => Err(Diagnostic::new("E110", format!("`{name}` names a rank that does not exist"))
            .expected(format!("ranks below {ranks}"))
            .found(rank.to_string())),
        None => Ok(()),
    }
}

/// The combination of the members' operands in group order, rounded once.
fn combined(name: &str, ranks: &[RankCall], group: &[usize], combiner: Combiner) -> Result<Literal> {
    let first = ranks[group[0]].operands[0];
    let mut sum = Numbers::of(first);
    for &member in &group[1..] {
        check_operand(name, &ranks[member], member, &first.ty)?;
        let part = Numbers::of(ranks[member].operands[0]);
        for element in 0..first.ty.element_count() {
            sum.combine(combiner, element, &part, element);
        }
    }
    Ok(sum.literal(&first.ty))
}

/// The extents `start..start + extent` of one dimension.
fn cut(x: &Literal, dim: usize, start: usize, extent: usize) -> Literal {
    let mut offset = vec![0; x.ty.rank()];
    let mut shape = x.ty.shape.clone();
    (offset[dim], shape[dim]) = (start, extent);
    x.window(&offset, &shape)
}

/// The pieces side by side along a dimension.
fn join(name: &str, pieces: &[Literal], dim: usize) -> Result<Literal> {
    let mut ty = pieces[0].ty.clone();
    ty.shape[dim] = pieces.iter().map(|piece| piece.ty.shape[dim]).sum();
    let mut joined = Literal::zeros(&ty);
    let mut offset = vec![0; ty.rank()];
    for piece in pieces {
        let mut expected = ty.clone();
        expected.shape[dim] = piece.ty.shape[dim];
        shapes(
            piece.ty == expected,
            format!("pieces joined by `{name}` do not fit"),
            expected.to_string(),
            piece.ty.to_string(),
        )?;
        joined.set_window(&offset, piece);
        offset[dim] += piece.ty.shape[dim];
    }
    Ok(joined)
}

/// Where the piece of a member starts.
fn start_of(extents: &[usize], member: usize) -> usize {
    extents[..member].iter().sum()
}

/// E119: propagation and partitioning never meet explicit collectives, which only manual computations may hold.
fn not_manual(name: &str) -> Box<Diagnostic> {
    Diagnostic::new("E119", format!("explicit `{name}` outside a manual computation"))
        .expected("collectives only in the body of a manual computation over named axes")
        .help("leave it out and state layouts instead, or wrap the part in `sdy.manual_computation`")
}

fn movement(operands: &[&TensorType], results: &[&TensorType], flops: f64) -> Cost {
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops, bytes: bytes as f64 }
}

/// One cotangent in, one of the operand's type out, where it is wanted.
fn transposed(
    context: &mut GradientContext,
    emit: impl FnOnce(&mut GraphBuilder, ValueId, TensorType) -> Result<ValueId>,
) -> Result<Vec<Option<ValueId>>> {
    let (Some(cotangent), true) = (context.cotangents[0], context.wanted[0]) else { return Ok(vec![None]) };
    let ty = context.builder.ty(context.operands[0]).clone();
    Ok(vec![Some(emit(context.builder, cotangent, ty)?)])
}

/// The op on a single rank.
fn alone(op: impl Into<Op>, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
    let op = op.into();
    let call = RankCall { op: &op, operands: operands.to_vec(), results: results.to_vec() };
    Ok(op.evaluate_ranks(&[call])?.remove(0))
}

impl Operation for AllReduce {
    fn name(&self) -> &str {
        ALL_REDUCE
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(ALL_REDUCE, operands, 1)?;
        check_groups(ALL_REDUCE, &self.groups, None)?;
        check_combiner(ALL_REDUCE, self.combiner, operands[0].dtype)?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement(operands, results, operands[0].element_count() as f64)
    }

    /// For sums the same op; E120 otherwise.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        if self.combiner != Combiner::Sum {
            return Err(refused(ALL_REDUCE, &format!("combination by {}", self.combiner)));
        }
        transposed(context, |builder, cotangent, _| builder.push1(self.clone(), &[cotangent]))
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        alone(AllReduce { groups: Vec::new(), ..self.clone() }, operands, results)
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        check_ranks(ALL_REDUCE, self.groups.iter().flatten().copied(), ranks.len())?;
        let mut results = Vec::new();
        for (group, place) in memberships(&self.groups, ranks.len()) {
            // Computed once per group; later members take the first one's.
            results.push(match place {
                _ if group[0] < results.len() => Literal::clone(&results[group[0]]),
                _ => combined(ALL_REDUCE, ranks, &group, self.combiner)?,
            });
        }
        checked(ALL_REDUCE, ranks, results)
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(ALL_REDUCE))
    }

    fn is_collective(&self) -> bool {
        true
    }
}

impl Operation for AllGather {
    fn name(&self) -> &str {
        ALL_GATHER
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(ALL_GATHER, operands, 1)?;
        check_dim(ALL_GATHER, self.dim, operands[0])?;
        check_groups(ALL_GATHER, &self.groups, Some(self.extents.len()))?;
        let own = operands[0].shape[self.dim];
        sizes(
            self.extents.contains(&own),
            format!("the operand of `{ALL_GATHER}` brings none of the extents"),
            format!("one of {:?} along dimension {}", self.extents, self.dim),
            operands[0].to_string(),
        )?;
        let mut result = operands[0].clone();
        result.shape[self.dim] = self.extents.iter().sum();
        Ok(vec![result])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement(operands, results, 0.0)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let op = ReduceScatter {
            dim: self.dim,
            groups: self.groups.clone(),
            combiner: Combiner::Sum,
            extents: self.extents.clone(),
        };
        transposed(context, |builder, cotangent, ty| Ok(builder.push_typed(op, &[cotangent], vec![ty])[0]))
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        alone(AllGather { groups: Vec::new(), ..self.clone() }, operands, results)
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        check_ranks(ALL_GATHER, self.groups.iter().flatten().copied(), ranks.len())?;
        let mut results: Vec<Literal> = Vec::new();
        for (group, _) in memberships(&self.groups, ranks.len()) {
            if group[0] < results.len() {
                results.push(results[group[0]].clone());
                continue;
            }
            let mut pieces = Vec::new();
            for (place, &member) in group.iter().enumerate() {
                let piece = ranks[member].operands[0];
                if group.len() > 1 {
                    let mut expected = piece.ty.clone();
                    let Op::AllGather(first) = ranks[group[0]].op else { unreachable!() };
                    expected.shape[self.dim] = first.extents[place];
                    check_operand(ALL_GATHER, &ranks[member], member, &expected)?;
                }
                pieces.push(piece.clone());
            }
            results.push(join(ALL_GATHER, &pieces, self.dim)?);
        }
        checked(ALL_GATHER, ranks, results)
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(ALL_GATHER))
    }

    fn is_collective(&self) -> bool {
        true
    }
}

impl Operation for ReduceScatter {
    fn name(&self) -> &str {
        REDUCE_SCATTER
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(REDUCE_SCATTER, operands, 1)?;
        check_dim(REDUCE_SCATTER, self.dim, operands[0])?;
        check_groups(REDUCE_SCATTER, &self.groups, Some(self.extents.len()))?;
        check_combiner(REDUCE_SCATTER, self.combiner, operands[0].dtype)?;
        let total: usize = self.extents.iter().sum();
        sizes(
            operands[0].shape[self.dim] == total,
            format!("the extents of `{REDUCE_SCATTER}` must add up to dimension {}", self.dim),
            operands[0].shape[self.dim].to_string(),
            format!("{:?}", self.extents),
        )?;
        let mut result = operands[0].clone();
        result.shape[self.dim] = even_extent(REDUCE_SCATTER, &self.extents)?;
        Ok(vec![result])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement(operands, results, operands[0].element_count() as f64)
    }

    /// For sums an all-gather; E120 otherwise.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        if self.combiner != Combiner::Sum {
            return Err(refused(REDUCE_SCATTER, &format!("combination by {}", self.combiner)));
        }
        let op = AllGather { dim: self.dim, groups: self.groups.clone(), extents: self.extents.clone() };
        transposed(context, |builder, cotangent, ty| Ok(builder.push_typed(op, &[cotangent], vec![ty])[0]))
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        alone(ReduceScatter { groups: Vec::new(), ..self.clone() }, operands, results)
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        check_ranks(REDUCE_SCATTER, self.groups.iter().flatten().copied(), ranks.len())?;
        let mut results = Vec::new();
        for (group, place) in memberships(&self.groups, ranks.len()) {
            let sum = combined(REDUCE_SCATTER, ranks, &group, self.combiner)?;
            results.push(if group.len() == 1 {
                sum
            } else {
                let mut expected = sum.ty.clone();
                let Op::ReduceScatter(first) = ranks[group[0]].op else { unreachable!() };
                expected.shape[self.dim] = first.extents.iter().sum();
                check_operand(REDUCE_SCATTER, &ranks[group[0]], group[0], &expected)?;
                cut(&sum, self.dim, start_of(&first.extents, place), first.extents[place])
            });
        }
        checked(REDUCE_SCATTER, ranks, results)
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(REDUCE_SCATTER))
    }

    fn is_collective(&self) -> bool {
        true
    }
}

impl Operation for AllToAll {
    fn name(&self) -> &str {
        ALL_TO_ALL
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(ALL_TO_ALL, operands, 1)?;
        check_dim(ALL_TO_ALL, self.split_dim, operands[0])?;
        check_dim(ALL_TO_ALL, self.concat_dim, operands[0])?;
        check_groups(ALL_TO_ALL, &self.groups, Some(self.split_extents.len()))?;
        check_groups(ALL_TO_ALL, &self.groups, Some(self.concat_extents.len()))?;
        let total: usize = self.split_extents.iter().sum();
        sizes(
            operands[0].shape[self.split_dim] == total,
            format!("the split extents of `{ALL_TO_ALL}` must add up to dimension {}", self.split_dim),
            operands[0].shape[self.split_dim].to_string(),
            format!("{:?}", self.split_extents),
        )?;
        let piece = even_extent(ALL_TO_ALL, &self.split_extents)?;
        let mut result = operands[0].clone();
        if self.split_dim == self.concat_dim {
            result.shape[self.split_dim] = piece * self.split_extents.len();
            return Ok(vec![result]);
        }
        let own = operands[0].shape[self.concat_dim];
        sizes(
            self.concat_extents.contains(&own),
            format!("the operand of `{ALL_TO_ALL}` brings none of the extents"),
            format!("one of {:?} along dimension {}", self.concat_extents, self.concat_dim),
            operands[0].to_string(),
        )?;
        result.shape[self.split_dim] = piece;
        result.shape[self.concat_dim] = self.concat_extents.iter().sum();
        Ok(vec![result])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement(operands, results, 0.0)
    }

    /// The exchange backwards.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let op = AllToAll {
            split_dim: self.concat_dim,
            concat_dim: self.split_dim,
            groups: self.groups.clone(),
            split_extents: self.concat_extents.clone(),
            concat_extents: self.split_extents.clone(),
        };
        transposed(context, |builder, cotangent, ty| Ok(builder.push_typed(op, &[cotangent], vec![ty])[0]))
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        alone(AllToAll { groups: Vec::new(), ..self.clone() }, operands, results)
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        check_ranks(ALL_TO_ALL, self.groups.iter().flatten().copied(), ranks.len())?;
        let mut results = Vec::new();
        for (rank, (group, place)) in memberships(&self.groups, ranks.len()).into_iter().enumerate() {
            if group.len() == 1 {
                results.push(ranks[rank].operands[0].clone());
                continue;
            }
            let Op::AllToAll(first) = ranks[group[0]].op else { unreachable!() };
            let mut pieces = Vec::new();
            for (sender, &member) in group.iter().enumerate() {
                let whole = ranks[member].operands[0];
                let mut expected = whole.ty.clone();
                if self.split_dim != self.concat_dim {
                    expected.shape[self.concat_dim] = first.concat_extents[sender];
                }
                expected.shape[self.split_dim] = first.split_extents.iter().sum();
                check_operand(ALL_TO_ALL, &ranks[member], member, &expected)?;
                let start = start_of(&first.split_extents, place);
                pieces.push(cut(whole, self.split_dim, start, first.split_extents[place]));
            }
            results.push(join(ALL_TO_ALL, &pieces, self.concat_dim)?);
        }
        checked(ALL_TO_ALL, ranks, results)
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(ALL_TO_ALL))
    }

    fn is_collective(&self) -> bool {
        true
    }
}

impl Operation for CollectivePermute {
    fn name(&self) -> &str {
        PERMUTE
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(PERMUTE, operands, 1)?;
        check_groups(PERMUTE, &[self.pairs.iter().map(|pair| pair.1).collect()], None)?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement(operands, results, 0.0)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let op = CollectivePermute { pairs: self.pairs.iter().map(|&(from, to)| (to, from)).collect() };
        transposed(context, |builder, cotangent, ty| Ok(builder.push_typed(op, &[cotangent], vec![ty])[0]))
    }

    /// A rank on its own receives only from itself.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        alone(
            CollectivePermute { pairs: self.pairs.iter().copied().filter(|&p| p == (0, 0)).collect() },
            operands,
            results,
        )
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        check_ranks(PERMUTE, self.pairs.iter().flat_map(|&(from, to)| [from, to]), ranks.len())?;
        let received = |rank| self.pairs.iter().find(|&&(_, to)| to == rank);
        let results = (0..ranks.len()).map(|rank| match received(rank) {
            Some(&(from, _)) => ranks[from].operands[0].clone(),
            None => Literal::zeros(&ranks[rank].results[0]),
        });
        checked(PERMUTE, ranks, results.collect())
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(PERMUTE))
    }

    fn is_collective(&self) -> bool {
        true
    }
}

impl Operation for CollectiveBroadcast {
    fn name(&self) -> &str {
        BROADCAST
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(BROADCAST, operands, 1)?;
        check_groups(BROADCAST, &self.groups, None)?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement(operands, results, 0.0)
    }

    /// E120.
    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Err(refused(BROADCAST, "a differentiated operand"))
    }

    /// A rank on its own has its own value.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        alone(CollectiveBroadcast { groups: vec![vec![0]] }, operands, results)
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        check_ranks(BROADCAST, self.groups.iter().flatten().copied(), ranks.len())?;
        let group_of = |rank| self.groups.iter().find(|group| group.contains(&rank));
        let results = (0..ranks.len()).map(|rank| match group_of(rank) {
            Some(group) => ranks[group[0]].operands[0].clone(),
            None => Literal::zeros(&ranks[rank].results[0]),
        });
        checked(BROADCAST, ranks, results.collect())
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(BROADCAST))
    }

    fn is_collective(&self) -> bool {
        true
    }
}

impl Operation for PartitionId {
    fn name(&self) -> &str {
        PARTITION_ID
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(PARTITION_ID, operands, 0)?;
        Ok(vec![TensorType::scalar(DType::U32)])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    fn cost(&self, _: &[&TensorType], _: &[&TensorType]) -> Cost {
        Cost::default()
    }

    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(Vec::new())
    }

    /// Rank 0.
    fn evaluate(&self, _: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![Literal::new([], vec![0u32])])
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        Ok((0..ranks.len()).map(|rank| vec![Literal::new([], vec![rank as u32])]).collect())
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(PARTITION_ID))
    }
}

// ---- text ----

use super::ParseOp;
use super::reduce::{Reducer, combiner_region};
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter, print_array};

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("stablehlo.all_reduce", parse_all_reduce),
    ("stablehlo.all_gather", parse_all_gather),
    ("stablehlo.reduce_scatter", parse_reduce_scatter),
    ("stablehlo.all_to_all", parse_all_to_all),
    ("stablehlo.collective_permute", parse_collective_permute),
    ("stablehlo.collective_broadcast", parse_collective_broadcast),
    ("stablehlo.partition_id", parse_partition_id),
];

/// `dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>`; shorter groups are filled with -1.
fn print_groups(groups: &[Vec<usize>]) -> String {
    let width = groups.iter().map(Vec::len).max().unwrap_or(0);
    let rows: Vec<String> = groups
        .iter()
        .map(|group| {
            let mut row: Vec<String> = group.iter().map(|rank| rank.to_string()).collect();
            row.resize(width, "-1".to_string());
            format!("[{}]", row.join(", "))
        })
        .collect();
    let list = if width == 0 { String::new() } else { format!("[{}]", rows.join(", ")) };
    format!("dense<{list}> : tensor<{}x{width}xi64>", groups.len())
}

fn parse_groups(op: &OpParser) -> Result<Vec<Vec<usize>>> {
    let rows = op.rows_of("replica_groups", 0)?;
    let group = |row: Vec<i64>| -> Option<Vec<usize>> {
        row.into_iter().filter(|&rank| rank != -1).map(|rank| usize::try_from(rank).ok()).collect()
    };
    rows.into_iter()
        .map(group)
        .collect::<Option<_>>()
        .ok_or_else(|| op.error("E147", "`replica_groups` has a negative rank"))
}

const CHANNEL: (&str, &str) = ("channel_handle", "#stablehlo.channel_handle<handle = 1, type = 1>");

fn generic(op: &mut OpParser) -> Result<()> {
    if op.generic()? {
        Ok(())
    } else {
        Err(op.error("E140", format!("`{}` is written in the generic form", op.name)))
    }
}

/// Extents given by an attribute, or `even` ones.
fn parse_extents(op: &OpParser, name: &str, even: Option<Vec<usize>>) -> Result<Vec<usize>> {
    match op.optional_indices_of(name)? {
        Some(extents) => Ok(extents),
        None => even.ok_or_else(|| {
            op.error("E147", format!("`{}` does not divide evenly", op.name))
                .expected(format!("the extent of each member in `{name}`"))
        }),
    }
}

/// `extent` cut into as many equal pieces as the first group has members.
fn even_pieces(extent: usize, groups: &[Vec<usize>]) -> Option<Vec<usize>> {
    let count = groups.first().map_or(1, Vec::len).max(1);
    extent.is_multiple_of(count).then(|| vec![extent / count; count])
}

fn dim_extent(op: &OpParser, dim: usize) -> Result<usize> {
    let ty = op.operand_type(0);
    ty.shape.get(dim).copied().ok_or_else(|| {
        op.error("E147", format!("{ty} has no dimension {dim}"))
            .expected(format!("a number below {}", ty.rank()))
    })
}

fn parse_combiner(op: &mut OpParser) -> Result<Combiner> {
    match Reducer::from_region(op.region(0)?) {
        Reducer::Combiner(combiner) => Ok(combiner),
        Reducer::Body(_) => Err(op
            .error("E144", format!("`{}` with a body of its own is not supported", op.name))
            .expected("a body of one op: add, multiply, maximum, minimum, and, or")),
    }
}

impl TextForm for AllReduce {
    /// The generic form, with the combiner as a region.
    fn print(&self, printer: &mut OpPrinter) {
        let properties = [
            (CHANNEL.0, CHANNEL.1.to_string()),
            ("replica_groups", print_groups(&self.groups)),
            ("use_global_device_ids", String::new()),
        ];
        let body = combiner_region(self.combiner, printer.operand_types()[0].dtype);
        printer.generic("stablehlo.all_reduce", &properties, &[&body]);
    }
}

/// Several operands at once become one op each.
fn parse_all_reduce(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    op.at_least(1)?;
    op.check_operands()?;
    let all_reduce = AllReduce { groups: parse_groups(op)?, combiner: parse_combiner(op)? };
    if op.operands.len() == 1 {
        return op.finish(all_reduce);
    }
    let operands = std::mem::take(&mut op.operands);
    let mut results = Vec::new();
    for operand in operands {
        results.extend(op.emit(all_reduce.clone(), &[operand])?);
    }
    Ok(results)
}

impl TextForm for AllGather {
    /// The generic form; `partita.extents` where members bring different extents.
    fn print(&self, printer: &mut OpPrinter) {
        let own = printer.operand_types()[0].shape[self.dim];
        let members = self.groups.first().map_or(1, Vec::len).max(1);
        if self.extents != vec![own; members] {
            printer.attributes.push(("partita.extents".to_string(), print_array(&self.extents)));
        }
        let properties = [
            ("all_gather_dim", format!("{} : i64", self.dim)),
            (CHANNEL.0, CHANNEL.1.to_string()),
            ("replica_groups", print_groups(&self.groups)),
            ("use_global_device_ids", String::new()),
        ];
        printer.generic("stablehlo.all_gather", &properties, &[]);
    }
}

fn parse_all_gather(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    op.arity(1)?;
    let dim = op.index_of("all_gather_dim")?;
    let groups = parse_groups(op)?;
    let members = groups.first().map_or(1, Vec::len).max(1);
    let even = vec![dim_extent(op, dim)?; members];
    let extents = parse_extents(op, "partita.extents", Some(even))?;
    op.finish(AllGather { dim, groups, extents })
}

impl TextForm for ReduceScatter {
    /// The generic form; `partita.extents` where members keep different extents.
    fn print(&self, printer: &mut OpPrinter) {
        let own = printer.operand_types()[0].shape[self.dim];
        if Some(&self.extents) != even_pieces(own, &self.groups).as_ref() {
            printer.attributes.push(("partita.extents".to_string(), print_array(&self.extents)));
        }
        let properties = [
            (CHANNEL.0, CHANNEL.1.to_string()),
            ("replica_groups", print_groups(&self.groups)),
            ("scatter_dimension", format!("{} : i64", self.dim)),
            ("use_global_device_ids", String::new()),
        ];
        let body = combiner_region(self.combiner, printer.operand_types()[0].dtype);
        printer.generic("stablehlo.reduce_scatter", &properties, &[&body]);
    }
}

fn parse_reduce_scatter(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    op.arity(1)?;
    let dim = op.index_of("scatter_dimension")?;
    let groups = parse_groups(op)?;
    let even = even_pieces(dim_extent(op, dim)?, &groups);
    let extents = parse_extents(op, "partita.extents", even)?;
    let combiner = parse_combiner(op)?;
    op.finish(ReduceScatter { dim, groups, combiner, extents })
}

impl TextForm for AllToAll {
    /// The generic form; `partita.split_extents` and `partita.concat_extents` where pieces differ.
    fn print(&self, printer: &mut OpPrinter) {
        let shape = printer.operand_types()[0].shape.clone();
        let members = self.groups.first().map_or(1, Vec::len).max(1);
        if Some(&self.split_extents) != even_pieces(shape[self.split_dim], &self.groups).as_ref() {
            printer.attributes.push(("partita.split_extents".to_string(), print_array(&self.split_extents)));
        }
        if self.concat_extents != vec![shape[self.concat_dim]; members] {
            printer
                .attributes
                .push(("partita.concat_extents".to_string(), print_array(&self.concat_extents)));
        }
        let properties = [
            (CHANNEL.0, CHANNEL.1.to_string()),
            ("concat_dimension", format!("{} : i64", self.concat_dim)),
            ("replica_groups", print_groups(&self.groups)),
            ("split_count", format!("{members} : i64")),
            ("split_dimension", format!("{} : i64", self.split_dim)),
        ];
        printer.generic("stablehlo.all_to_all", &properties, &[]);
    }
}

fn parse_all_to_all(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    op.arity(1)?;
    let (split_dim, concat_dim) = (op.index_of("split_dimension")?, op.index_of("concat_dimension")?);
    let groups = parse_groups(op)?;
    let members = groups.first().map_or(1, Vec::len).max(1);
    let even = even_pieces(dim_extent(op, split_dim)?, &groups);
    let split_extents = parse_extents(op, "partita.split_extents", even)?;
    // A dimension split and joined again keeps its pieces.
    let own = vec![dim_extent(op, concat_dim)?; members];
    let concat_extents = parse_extents(op, "partita.concat_extents", Some(own))?;
    op.finish(AllToAll { split_dim, concat_dim, groups, split_extents, concat_extents })
}

impl TextForm for CollectivePermute {
    /// The generic form.
    fn print(&self, printer: &mut OpPrinter) {
        let rows: Vec<String> = self.pairs.iter().map(|(from, to)| format!("[{from}, {to}]")).collect();
        let list = if rows.is_empty() { String::new() } else { format!("[{}]", rows.join(", ")) };
        let properties = [
            (CHANNEL.0, CHANNEL.1.to_string()),
            ("source_target_pairs", format!("dense<{list}> : tensor<{}x2xi64>", rows.len())),
        ];
        printer.generic("stablehlo.collective_permute", &properties, &[]);
    }
}

fn parse_collective_permute(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    op.arity(1)?;
    let pair = |row: Vec<i64>| Some((usize::try_from(row[0]).ok()?, usize::try_from(row[1]).ok()?));
    let pairs = op
        .rows_of("source_target_pairs", 2)?
        .into_iter()
        .map(pair)
        .collect::<Option<_>>()
        .ok_or_else(|| op.error("E147", "`source_target_pairs` has a negative rank"))?;
    op.finish(CollectivePermute { pairs })
}

impl TextForm for CollectiveBroadcast {
    /// The generic form.
    fn print(&self, printer: &mut OpPrinter) {
        let properties = [(CHANNEL.0, CHANNEL.1.to_string()), ("replica_groups", print_groups(&self.groups))];
        printer.generic("stablehlo.collective_broadcast", &properties, &[]);
    }
}

fn parse_collective_broadcast(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    op.arity(1)?;
    let groups = parse_groups(op)?;
    op.finish(CollectiveBroadcast { groups })
}

impl TextForm for PartitionId {
    /// `stablehlo.partition_id : tensor<ui32>`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.push("stablehlo.partition_id");
        printer.attributes();
        let results = printer.result_types();
        printer.push(&format!(" : {}", results[0]));
    }
}

fn parse_partition_id(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.types()?;
    }
    op.arity(0)?;
    op.finish(PartitionId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Role;
    use crate::interpret::evaluate_ranks;
    use crate::testing::random;

    /// Runs an op on every rank with declared result shapes.
    fn run(op: impl Into<Op>, inputs: &[Literal], shapes: &[&[usize]]) -> Result<Vec<Literal>> {
        let op = op.into();
        let calls: Vec<RankCall> = inputs
            .iter()
            .zip(shapes)
            .map(|(x, shape)| RankCall {
                op: &op,
                operands: vec![x],
                results: vec![x.ty.with_shape(shape.to_vec())],
            })
            .collect();
        Ok(op.evaluate_ranks(&calls)?.into_iter().flatten().collect())
    }

    fn groups() -> Vec<Vec<usize>> {
        vec![vec![3, 0, 1], vec![4, 2, 6]]
    }

    /// Element `[i, j]` of a matrix.
    fn at(x: &Literal, i: usize, j: usize) -> f64 {
        x.to_f64()[i * x.ty.shape[1] + j]
    }

    #[test]
    fn groups_combine_and_a_rank_in_none_keeps_its_own() {
        let inputs: Vec<Literal> = (0..7).map(|r| random(r, &[2, 3])).collect();
        for (combiner, function) in
            [(Combiner::Sum, (|a, b| a + b) as fn(f64, f64) -> f64), (Combiner::Max, f64::max)]
        {
            let op = AllReduce { groups: groups(), combiner };
            let got = run(op, &inputs, &[&[2, 3][..]; 7]).unwrap();
            for group in groups().into_iter().chain([vec![5]]) {
                for &member in &group {
                    for e in 0..6 {
                        let expected = group.iter().map(|&m| inputs[m].to_f64()[e]).reduce(function).unwrap();
                        assert!((got[member].to_f64()[e] - expected).abs() < 1e-12);
                    }
                }
            }
        }
    }

    #[test]
    fn gathers_join_unequal_pieces_in_group_order() {
        // Rank 3 brings 2 columns, rank 0 none, rank 1 one.
        let shapes: [&[usize]; 4] = [&[2, 0], &[2, 1], &[2, 3], &[2, 2]];
        let inputs: Vec<Literal> = shapes.iter().zip(1..).map(|(s, seed)| random(seed, s)).collect();
        let op = AllGather { dim: 1, groups: vec![vec![3, 0, 1]], extents: vec![2, 0, 1] };
        let got = run(op.clone(), &inputs, &[&[2, 3][..]; 4]).unwrap();
        for rank in [0, 1, 3] {
            for i in 0..2 {
                assert_eq!(at(&got[rank], i, 0), at(&inputs[3], i, 0));
                assert_eq!(at(&got[rank], i, 1), at(&inputs[3], i, 1));
                assert_eq!(at(&got[rank], i, 2), at(&inputs[1], i, 0));
            }
        }
        assert_eq!(got[2], inputs[2]);
        assert_eq!(run(op, &inputs, &[&[2, 4][..]; 4]).unwrap_err().code, "E118");
        let wrong = AllGather { dim: 1, groups: vec![vec![3, 0, 1]], extents: vec![0, 2, 1] };
        assert_eq!(run(wrong, &inputs, &[&[2, 3][..]; 4]).unwrap_err().code, "E118");
    }

    #[test]
    fn scattered_sums_are_pieces_of_the_sum() {
        let inputs: Vec<Literal> = (0..3).map(|r| random(r, &[5, 2])).collect();
        let op = ReduceScatter {
            dim: 0,
            groups: vec![vec![2, 0, 1]],
            combiner: Combiner::Sum,
            extents: vec![2, 2, 1],
        };
        let got = run(op, &inputs, &[&[2, 2], &[1, 2], &[2, 2]]).unwrap();
        let sum = |i: usize, j| inputs.iter().map(|x| at(x, i, j)).sum::<f64>();
        for (rank, start, extent) in [(2, 0, 2), (0, 2, 2), (1, 4, 1)] {
            for i in 0..extent {
                for j in 0..2 {
                    assert!((at(&got[rank], i, j) - sum(start + i, j)).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn exchanges_move_a_cut_from_one_dimension_to_another_and_back() {
        // A 4 x 5 matrix, cut in rows 3 + 1, becomes cut in columns 2 + 3.
        let whole = random(1, &[4, 5]);
        let rows = [cut(&whole, 0, 0, 3), cut(&whole, 0, 3, 1)];
        let columns = [cut(&whole, 1, 0, 2), cut(&whole, 1, 2, 3)];
        let there = AllToAll {
            split_dim: 1,
            concat_dim: 0,
            groups: vec![vec![0, 1]],
            split_extents: vec![2, 3],
            concat_extents: vec![3, 1],
        };
        assert_eq!(run(there.clone(), &rows, &[&[4, 2], &[4, 3]]).unwrap(), columns);
        let back = AllToAll {
            split_dim: 0,
            concat_dim: 1,
            groups: vec![vec![0, 1]],
            split_extents: vec![3, 1],
            concat_extents: vec![2, 3],
        };
        assert_eq!(run(back, &columns, &[&[3, 5], &[1, 5]]).unwrap(), rows);
    }

    #[test]
    fn permutes_and_broadcasts_leave_zeros_where_nothing_arrives() {
        let inputs: Vec<Literal> = (0..4).map(|r| random(r, &[2])).collect();
        let zero = Literal::zeros(&inputs[0].ty);
        let shapes: [&[usize]; 4] = [&[2]; 4];
        let op = CollectivePermute { pairs: vec![(0, 2), (2, 1), (3, 3)] };
        let got = run(op, &inputs, &shapes).unwrap();
        assert_eq!(got, [zero.clone(), inputs[2].clone(), inputs[0].clone(), inputs[3].clone()]);
        let op = CollectiveBroadcast { groups: vec![vec![3, 0], vec![1]] };
        let got = run(op, &inputs, &shapes).unwrap();
        assert_eq!(got, [inputs[3].clone(), inputs[1].clone(), zero, inputs[3].clone()]);
    }

    #[test]
    fn ranks_know_their_number() {
        let mut b = GraphBuilder::new("f");
        let id = b.push1(PartitionId, &[]).unwrap();
        let graph = b.finish(vec![id]);
        let got = evaluate_ranks(&[&graph; 3], &[vec![], vec![], vec![]]).unwrap();
        assert_eq!(got.concat(), (0..3u32).map(|r| Literal::new([], vec![r])).collect::<Vec<_>>());
    }

    /// `<weights, op(inputs)>` summed over ranks has the transposed op's result as its gradient: for a linear op,
    /// `<w, A x> = <A' w, x>`.
    fn check_transpose(op: impl Into<Op>, inputs: &[Literal], shapes: &[&[usize]]) {
        let op = op.into();
        let outputs = run(op.clone(), inputs, shapes).unwrap();
        let weights: Vec<Literal> = shapes.iter().zip(90..).map(|(s, seed)| random(seed, s)).collect();
        let graphs: Vec<_> = (0..inputs.len())
            .map(|rank| {
                let mut b = GraphBuilder::new("f");
                let x = b.input("x", inputs[rank].ty.clone(), Role::Input);
                let w = b.input("w", weights[rank].ty.clone(), Role::Input);
                let mut context = GradientContext {
                    builder: &mut b,
                    operands: &[x],
                    results: &[w],
                    cotangents: &[Some(w)],
                    wanted: &[true],
                };
                let gradient = op.gradient(&mut context).unwrap()[0].unwrap();
                b.finish(vec![gradient])
            })
            .collect();
        let feeds: Vec<Vec<Literal>> =
            inputs.iter().zip(&weights).map(|(x, w)| vec![x.clone(), w.clone()]).collect();
        let gradients = evaluate_ranks(&graphs.iter().collect::<Vec<_>>(), &feeds).unwrap().concat();
        let dot = |a: &[Literal], b: &[Literal]| -> f64 {
            let pairs = a.iter().zip(b).flat_map(|(a, b)| a.to_f64().into_iter().zip(b.to_f64()));
            pairs.map(|(a, b)| a * b).sum()
        };
        assert!((dot(&weights, &outputs) - dot(&gradients, inputs)).abs() < 1e-10, "{}", op.name());
    }

    #[test]
    fn gradients_are_the_transposed_exchanges() {
        let inputs: Vec<Literal> = (0..3).map(|r| random(r, &[3, 4])).collect();
        let groups = vec![vec![2, 0, 1]];
        let even: [&[usize]; 3] = [&[3, 4]; 3];
        check_transpose(AllReduce { groups: groups.clone(), combiner: Combiner::Sum }, &inputs, &even);
        check_transpose(CollectivePermute { pairs: vec![(0, 1), (1, 2)] }, &inputs, &even);
        let pieces: Vec<Literal> =
            [2, 1, 1].iter().zip(5..).map(|(&n, seed)| random(seed, &[3, n])).collect();
        let gather = AllGather { dim: 1, groups: groups.clone(), extents: vec![1, 2, 1] };
        check_transpose(gather, &pieces, &even);
        let scatter =
            ReduceScatter { dim: 1, groups: groups.clone(), combiner: Combiner::Sum, extents: vec![1, 2, 1] };
        check_transpose(scatter, &inputs, &[&[3, 2], &[3, 1], &[3, 1]]);
        let exchange = AllToAll {
            split_dim: 1,
            concat_dim: 0,
            groups,
            split_extents: vec![1, 2, 1],
            concat_extents: vec![3, 3, 3],
        };
        check_transpose(exchange, &inputs, &[&[9, 2], &[9, 1], &[9, 1]]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ty = TensorType::new(DType::F32, [4, 6]);
        let code = |op: Op| op.infer(&[&ty]).unwrap_err().code;
        let twice = vec![vec![0, 1], vec![1, 2]];
        assert_eq!(code(AllReduce { groups: twice, combiner: Combiner::Sum }.into()), "E110");
        assert_eq!(code(AllReduce { groups: vec![], combiner: Combiner::Or }.into()), "E103");
        let gather = |dim, extents| AllGather { dim, groups: vec![vec![0, 1]], extents };
        assert_eq!(code(gather(2, vec![4, 4]).into()), "E105");
        assert_eq!(code(gather(0, vec![4]).into()), "E110");
        assert_eq!(code(gather(0, vec![3, 3]).into()), "E106");
        let scatter =
            |extents| ReduceScatter { dim: 1, groups: vec![vec![0, 1]], combiner: Combiner::Sum, extents };
        assert_eq!(code(scatter(vec![3, 2]).into()), "E106");
        let uneven = Op::from(scatter(vec![4, 2])).infer(&[&ty]).unwrap_err();
        assert_eq!((uneven.code, uneven.help.unwrap().contains("push_typed")), ("E118", true));
        assert_eq!(Op::from(scatter(vec![3, 3])).infer(&[&ty]).unwrap()[0].shape, [4, 3]);
        assert_eq!(code(CollectivePermute { pairs: vec![(0, 1), (2, 1)] }.into()), "E110");
        let inputs = [random(1, &[2]), random(2, &[2])];
        let far = AllReduce { groups: vec![vec![0, 2]], combiner: Combiner::Sum };
        assert_eq!(run(far, &inputs, &[&[2], &[2]]).unwrap_err().code, "E110");
    }
}
