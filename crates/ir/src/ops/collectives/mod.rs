//! Collectives. Groups are explicit lists of ranks; a rank in no group takes part alone.
//!
//! They occur only in per-rank graphs and in bodies of manual computations. There, gradients follow
//! the convention of JAX's `shard_map` without replication checks: cotangents are per rank like the
//! values. So the transpose of a sum over ranks is the sum over ranks of the cotangents, an
//! all-gather becomes a reduce-scatter and vice versa, and a permute or all-to-all is reversed.

mod groups;
mod movement;
mod partition_id;
mod reduction;
#[cfg(test)]
mod tests;

pub use groups::Groups;
pub use movement::{AllGather, AllToAll, CollectiveBroadcast, CollectivePermute};
pub use partition_id::PartitionId;
pub use reduction::{AllReduce, ReduceScatter};

use super::ParseOp;
use super::checks::shapes;
use crate::builder::GraphBuilder;
use crate::graph::ValueId;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, Op, Operation, RankCall};
use crate::text::{self, OpParser, OpPrinter};
use crate::types::TensorType;
use partita_base::{Diagnostic, Result};

/// E110 when a rank is in two groups, or groups do not have `members` members.
fn check_groups(name: &str, groups: &[Vec<usize>], members: Option<usize>) -> Result<()> {
    let mut all: Vec<usize> = groups.concat();
    all.sort_unstable();
    if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Diagnostic::new("E110", format!("rank {} occurs twice in the groups of `{name}`", pair[0]))
            .expected("every rank in at most one group")
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

/// The common extent of all members. E118 if they differ: then each rank has a type of its own.
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
            return Err(Diagnostic::new("E118", format!("the result type of `{name}` is not the declared one"))
                .at(format!("rank {rank}"))
                .expected(call.results[0].to_string())
                .found(result.ty.to_string()));
        }
    }
    Ok(results.into_iter().map(|result| vec![result]).collect())
}

/// E118 unless all members of a group have operands of the shape that its first member requires.
fn check_operand(name: &str, call: &RankCall, rank: usize, expected: &TensorType) -> Result<()> {
    if call.operands[0].ty == *expected {
        return Ok(());
    }
    Err(Diagnostic::new(
        "E118",
        format!("the operands in a group of `{name}` do not fit together"),
    )
    .at(format!("rank {rank}"))
    .expected(expected.to_string())
    .found(call.operands[0].ty.to_string()))
}

/// Every rank's group and its position in it; a rank in no group forms one alone.
fn memberships(groups: &[Vec<usize>], ranks: usize) -> Vec<(Vec<usize>, usize)> {
    let of_rank = |rank| {
        let place = |group: &Vec<usize>| group.iter().position(|&member| member == rank);
        let found = groups.iter().find_map(|group| Some((group.clone(), place(group)?)));
        found.unwrap_or((vec![rank], 0))
    };
    (0..ranks).map(of_rank).collect()
}

/// E110 unless all groups name existing ranks.
fn check_ranks(name: &str, named: impl Iterator<Item = usize>, ranks: usize) -> Result<()> {
    match named.max().filter(|&rank| rank >= ranks) {
        Some(rank) => Err(Diagnostic::new("E110", format!("`{name}` names a rank that does not exist"))
            .expected(format!("ranks below {ranks}"))
            .found(rank.to_string())),
        None => Ok(()),
    }
}

/// The extents `start..start + extent` of one dimension.
fn cut(x: &Literal, dim: usize, start: usize, extent: usize) -> Literal {
    let mut offset = vec![0; x.ty.rank()];
    let mut shape = x.ty.shape.clone();
    (offset[dim], shape[dim]) = (start, extent);
    x.window(&offset, &shape)
}

/// The shards concatenated along a dimension.
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
            format!("the shards joined by `{name}` do not fit together"),
            expected.to_string(),
            piece.ty.to_string(),
        )?;
        joined.set_window(&offset, piece);
        offset[dim] += piece.ty.shape[dim];
    }
    Ok(joined)
}

/// The offset of a member's shard.
fn start_of(extents: &[usize], member: usize) -> usize {
    extents[..member].iter().sum()
}

/// E119: explicit collectives may occur only in manual computations, which propagation and
/// partitioning do not enter.
fn not_manual(name: &str) -> Box<Diagnostic> {
    Diagnostic::new("E119", format!("explicit `{name}` outside a manual computation"))
        .expected("collectives only in the body of a manual computation over named axes")
        .help("state layouts instead, or wrap this part in `sdy.manual_computation`")
}

fn movement(operands: &[&TensorType], results: &[&TensorType], flops: f64) -> Cost {
    let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
    Cost { flops, bytes: bytes as f64 }
}

/// The single cotangent of the operand's type, if it is wanted.
fn transposed(
    context: &mut GradientContext,
    emit: impl FnOnce(&mut GraphBuilder, ValueId, TensorType) -> Result<ValueId>,
) -> Result<Vec<Option<ValueId>>> {
    let (Some(cotangent), true) = (context.cotangents[0], context.wanted[0]) else { return Ok(vec![None]) };
    let ty = context.builder.ty(context.operands[0]).clone();
    Ok(vec![Some(emit(context.builder, cotangent, ty)?)])
}

impl Op {
    /// Whether some member of the groups may declare this result; inference cannot tell which
    /// member it is, and members of uneven groups keep different shards.
    pub(crate) fn yields_on_some_rank(&self, operand: &TensorType, result: &TensorType) -> bool {
        let piece = |of: &TensorType, dim: usize, extents: &[usize]| {
            extents.iter().any(|&extent| {
                let mut ty = of.clone();
                ty.shape[dim] = extent;
                ty == *result
            })
        };
        match self {
            Op::ReduceScatter(op) => piece(operand, op.dim, &op.extents),
            Op::AllToAll(op) if op.split_dim != op.concat_dim => {
                let mut joined = operand.clone();
                joined.shape[op.concat_dim] = op.concat_extents.iter().sum();
                piece(&joined, op.split_dim, &op.split_extents)
            }
            Op::AllToAll(op) => {
                let own: Vec<usize> = op.split_extents.iter().map(|e| e * op.split_extents.len()).collect();
                piece(operand, op.split_dim, &own)
            }
            _ => false,
        }
    }
}

/// The op on a single rank.
fn alone(op: impl Into<Op>, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
    let op = op.into();
    let call = RankCall { op: &op, operands: operands.to_vec(), results: results.to_vec() };
    Ok(op.evaluate_ranks(&[call])?.remove(0))
}

// ---- text ----

/// The collectives by name.
pub(crate) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    let tables = [reduction::PARSERS, movement::PARSERS, partition_id::PARSERS];
    tables.into_iter().flatten().copied()
}

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

/// Properties of a collective whose groups or pairs name ranks, with the channel that makes partitions of them; none if
/// ranks are replicas.
fn print_members(printer: &OpPrinter, mut properties: Vec<Property>) -> Vec<Property> {
    if !printer.printer.ranks_are_replicas() {
        properties.push((CHANNEL.0, CHANNEL.1.to_string()));
    }
    properties
}

/// As [`print_members`], for collectives whose groups name replicas unless `use_global_device_ids` says otherwise.
fn print_ranks(printer: &OpPrinter, mut properties: Vec<Property>) -> Vec<Property> {
    if !printer.printer.ranks_are_replicas() {
        properties.push(("use_global_device_ids", String::new()));
    }
    print_members(printer, properties)
}

/// Name and text of a property.
type Property = (&'static str, String);

/// Entries that groups may have: the ranks of the largest mesh.
const GROUPS_LIMIT: usize = 1 << 24;

fn parse_groups(op: &OpParser) -> Result<Vec<Vec<usize>>> {
    if let Some(text::Value::Dense(groups)) = op.attributes.get("replica_groups")
        && groups.ty.element_count() > GROUPS_LIMIT
    {
        return Err(op.error("E149", "`replica_groups` names more ranks than a mesh may have"));
    }
    let rows = op.rows_of("replica_groups", 0)?;
    let group = |row: Vec<i64>| -> Option<Vec<usize>> {
        row.into_iter().filter(|&rank| rank != -1).map(|rank| usize::try_from(rank).ok()).collect()
    };
    rows.into_iter()
        .map(group)
        .collect::<Option<_>>()
        .ok_or_else(|| op.error("E147", "`replica_groups` has a negative rank"))
}

/// The meaning of the numbers in the groups of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    /// Replicas: each partition communicates with itself on other replicas.
    Replicas,
    /// Partitions: each replica communicates with itself.
    Partitions,
    /// Replicas, each with all its partitions.
    ReplicasOfAllPartitions,
    /// Ranks.
    Ranks,
}

/// Whether `channel_handle` has a handle above 0: then partitions take part, not only replicas.
fn has_channel(op: &OpParser) -> bool {
    match op.attributes.get("channel_handle") {
        Some(text::Value::Record(fields)) => match fields.get("handle") {
            Some(&text::Value::Int(handle)) => handle > 0,
            _ => false,
        },
        Some(&text::Value::Int(handle)) => handle > 0,
        _ => false,
    }
}

/// What the group numbers of `all_reduce`, `all_gather` and `reduce_scatter` mean. E147 for global
/// numbers without a channel.
fn named_by_flags(op: &OpParser) -> Result<Named> {
    match (has_channel(op), op.flag("use_global_device_ids")) {
        (false, false) => Ok(Named::Replicas),
        (true, false) => Ok(Named::ReplicasOfAllPartitions),
        (true, true) => Ok(Named::Ranks),
        (false, true) => Err(op
            .error("E147", format!("`use_global_device_ids` of `{}` needs a channel", op.name))
            .expected(format!("{} = {}", CHANNEL.0, CHANNEL.1))),
    }
}

/// What the group numbers of the other collectives mean.
fn named_by_channel(op: &OpParser) -> Named {
    if has_channel(op) { Named::Partitions } else { Named::Replicas }
}

/// The replicas of the program and the partitions of each. Partition p of replica r is the rank
/// `r * partitions + p`.
#[derive(Clone, Copy)]
struct Processes {
    replicas: usize,
    /// `None` if neither the module nor its meshes say the number.
    partitions: Option<usize>,
}

/// E149 if there are more ranks than a mesh may have.
fn processes(op: &OpParser) -> Result<Processes> {
    let replicas = op.parser.replicas.unwrap_or(1).max(1);
    // The default of a module is one partition; a program of one replica may mean its meshes' ranks.
    let partitions = op.parser.partition_count().or((replicas > 1).then_some(1));
    match replicas.checked_mul(partitions.unwrap_or(1)).is_some_and(|ranks| ranks <= GROUPS_LIMIT) {
        true => Ok(Processes { replicas, partitions }),
        false => Err(op.error("E149", "the program has more replicas and partitions than a mesh may have ranks")),
    }
}

/// Lists of replicas or partitions as lists of ranks; `None` if every rank is alone. E144 for a replica
/// or partition that does not exist, and if the number of partitions is needed but unknown.
fn ranks_of(op: &OpParser, named: Named, lists: Vec<Vec<usize>>) -> Result<Option<Vec<Vec<usize>>>> {
    let Processes { replicas, partitions } = processes(op)?;
    let largest = lists.iter().flatten().copied().max();
    let exists = |what: &str, count: usize| match largest.filter(|&number| number >= count) {
        None => Ok(()),
        Some(number) => Err(op
            .error("E144", format!("`{}` names a {what} that does not exist", op.name))
            .expected(format!("numbers of {what}s below {count}, or {} = {} for partitions", CHANNEL.0, CHANNEL.1))
            .found(format!("{what} {number}"))),
    };
    let known = || {
        partitions.ok_or_else(|| {
            op.error("E144", format!("`{}` spans all partitions, whose number is unknown", op.name))
                .expected("`use_global_device_ids` with the ranks in `replica_groups`")
                .help("or say `module attributes {mhlo.num_partitions = 4 : i32}`")
        })
    };
    match named {
        Named::Ranks => return Ok(Some(lists)),
        Named::Partitions if replicas == 1 => return Ok(Some(lists)),
        Named::Partitions => exists("partition", known()?)?,
        Named::Replicas | Named::ReplicasOfAllPartitions => exists("replica", replicas)?,
    }
    if named == Named::Replicas && replicas == 1 {
        return Ok(None);
    }
    // No groups: all replicas.
    let lists = if lists.concat().is_empty() { vec![(0..replicas).collect()] } else { lists };
    let partitions = known()?;
    let copies = if named == Named::Partitions { replicas } else { partitions };
    let size = lists.iter().map(Vec::len).sum::<usize>().checked_mul(copies);
    if size.is_none_or(|size| size > GROUPS_LIMIT) {
        return Err(op.error("E149", "`replica_groups` names more ranks than a mesh may have"));
    }
    let each = |list: &Vec<usize>, rank: &dyn Fn(usize, usize) -> usize| -> Vec<Vec<usize>> {
        (0..copies).map(|copy| list.iter().map(|&number| rank(copy, number)).collect()).collect()
    };
    let group = |list: &Vec<usize>| match named {
        Named::Partitions => each(list, &|replica, partition| replica * partitions + partition),
        Named::Replicas => each(list, &|partition, replica| replica * partitions + partition),
        _ => vec![each(list, &|partition, replica| replica * partitions + partition).concat()],
    };
    Ok(Some(lists.iter().flat_map(group).collect()))
}

/// The groups of a collective as groups of ranks; `None` if every rank takes part alone.
fn parse_rank_groups(op: &OpParser, named: Named) -> Result<Option<Vec<Vec<usize>>>> {
    let groups = parse_groups(op)?;
    ranks_of(op, named, groups)
}

/// Appends a collective for each operand: several operands at once become one op each.
fn for_each_operand<T: Into<Op>>(
    op: &mut OpParser,
    collective: impl Fn(&OpParser, usize) -> Result<T>,
) -> Result<Vec<ValueId>> {
    op.at_least(1)?;
    if op.operands.len() == 1 {
        let only = collective(op, 0)?;
        return op.finish(only);
    }
    op.check_operands()?;
    if op.result_types.len() != op.operands.len() {
        return Err(op
            .error("E146", format!("`{}` has a result for each operand", op.name))
            .expected(op.operands.len().to_string())
            .found(op.result_types.len().to_string()));
    }
    let ops = (0..op.operands.len()).map(|number| collective(op, number)).collect::<Result<Vec<T>>>()?;
    let mut results = Vec::new();
    for (number, own) in ops.into_iter().enumerate() {
        let declared = [op.result_types[number].clone()];
        let operand = [op.operands[number]];
        results.extend(op.parser.emit(own.into(), &operand, Some(&declared), op.at)?);
    }
    Ok(results)
}

/// The operand itself: a collective in which every rank takes part alone.
fn identity(op: &OpParser) -> Result<Vec<ValueId>> {
    op.check_operands()?;
    let operands: Vec<TensorType> = (0..op.operands.len()).map(|i| op.operand_type(i).clone()).collect();
    if operands == op.result_types {
        return Ok(op.operands.clone());
    }
    Err(op
        .error("E146", format!("`{}` does not yield the declared type", op.name))
        .expected(text::print_results(&operands))
        .found(text::print_results(&op.result_types)))
}

const CHANNEL: (&str, &str) = ("channel_handle", "#stablehlo.channel_handle<handle = 1, type = 1>");

fn generic(op: &mut OpParser) -> Result<()> {
    if op.generic()? {
        Ok(())
    } else {
        Err(op.error("E140", format!("`{}` must be written in the generic form", op.name)))
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

/// `extent` split into as many equal parts as the first group has members.
fn even_pieces(extent: usize, groups: &[Vec<usize>]) -> Option<Vec<usize>> {
    let count = groups.first().map_or(1, Vec::len).max(1);
    extent.is_multiple_of(count).then(|| vec![extent / count; count])
}

fn dim_extent(op: &OpParser, operand: usize, dim: usize) -> Result<usize> {
    let ty = op.operand_type(operand);
    ty.shape.get(dim).copied().ok_or_else(|| {
        op.error("E147", format!("{ty} has no dimension {dim}"))
            .expected(format!("a number below {}", ty.rank()))
    })
}
