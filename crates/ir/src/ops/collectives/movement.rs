//! Collectives that move data without computing on it.

use super::super::ParseOp;
use super::super::checks::{operand_count, sizes};
use super::super::control::shapes_of;
use super::super::reduce::refused;
use super::{
    Groups, ReduceScatter, alone, check_dim, check_groups, check_operand, check_ranks,
    checked, cut, dim_extent, even_extent, even_pieces, generic, identity, join, memberships, movement,
    named_by_channel, named_by_flags, not_manual, for_each_operand, ranks_of, parse_extents,
    parse_rank_groups, print_groups, print_members, print_ranks, start_of, transposed,
};
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, RankCall, TextForm};
use crate::rule::Rule;
use crate::text::{OpParser, OpPrinter, print_array};
use crate::traits::{CollectiveRef, Traits};
use crate::types::TensorType;
use partita_base::Result;
use partita_mesh::Combiner;

/// Concatenates the operands of each group along `dim`, in group order.
#[derive(Clone, PartialEq, Debug)]
pub struct AllGather {
    /// The concatenated dimension.
    pub dim: usize,
    /// The groups, each in concatenation order.
    pub groups: Groups,
    /// The extent along `dim` of each member's operand, by position in the group.
    pub extents: Vec<usize>,
}

/// Every member splits its operand along `split_dim`, sends part `j` to member `j`, and
/// concatenates what it receives along `concat_dim`.
#[derive(Clone, PartialEq, Debug)]
pub struct AllToAll {
    /// The split dimension.
    pub split_dim: usize,
    /// The concatenated dimension.
    pub concat_dim: usize,
    /// The groups.
    pub groups: Groups,
    /// The extent along `split_dim` of the part for each member.
    pub split_extents: Vec<usize>,
    /// The extent along `concat_dim` of each member's part.
    pub concat_extents: Vec<usize>,
}

/// Sends whole values: each pair is (source, target); a rank that receives nothing gets zeros.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectivePermute {
    /// The pairs; each target occurs at most once.
    pub pairs: Vec<(usize, usize)>,
}

/// The first member of each group sends its value to the others; ranks in no group get zeros.
#[derive(Clone, PartialEq, Debug)]
pub struct CollectiveBroadcast {
    /// The groups.
    pub groups: Groups,
}

const ALL_GATHER: &str = "stablehlo.all_gather";
const ALL_TO_ALL: &str = "stablehlo.all_to_all";
const PERMUTE: &str = "stablehlo.collective_permute";
const BROADCAST: &str = "stablehlo.collective_broadcast";

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
            format!("the operand of `{ALL_GATHER}` has none of the expected extents"),
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
        alone(AllGather { groups: Groups::default(), ..self.clone() }, operands, results)
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

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Collective(CollectiveRef::AllGather(self))
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(ALL_GATHER))
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
            format!("the operand of `{ALL_TO_ALL}` has none of the expected extents"),
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

    /// The reverse exchange.
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
        alone(AllToAll { groups: Groups::default(), ..self.clone() }, operands, results)
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

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Collective(CollectiveRef::AllToAll(self))
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

    /// A single rank receives only from itself.
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

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Collective(CollectiveRef::CollectivePermute(self))
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

    /// A single rank has its own value.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        alone(CollectiveBroadcast { groups: vec![vec![0]].into() }, operands, results)
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

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Collective(CollectiveRef::CollectiveBroadcast(self))
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(BROADCAST))
    }

    fn is_collective(&self) -> bool {
        true
    }
}

// ---- text ----

/// The ops of this file by name.
pub(super) const PARSERS: &[(&str, ParseOp)] = &[
    ("stablehlo.all_gather", parse_all_gather),
    ("stablehlo.all_to_all", parse_all_to_all),
    ("stablehlo.collective_permute", parse_collective_permute),
    ("stablehlo.collective_broadcast", parse_collective_broadcast),
];

impl TextForm for AllGather {
    /// The generic form; `partita.extents` if members have different extents.
    fn print(&self, printer: &mut OpPrinter) {
        let own = printer.operand_types()[0].shape[self.dim];
        let members = self.groups.first().map_or(1, Vec::len).max(1);
        if self.extents != vec![own; members] {
            printer.attributes.push(("partita.extents".to_string(), print_array(&self.extents)));
        }
        let properties = print_ranks(printer, vec![
            ("all_gather_dim", format!("{} : i64", self.dim)),
            ("replica_groups", print_groups(&self.groups)),
        ]);
        printer.generic("stablehlo.all_gather", &properties, &[]);
    }
}

fn parse_all_gather(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    let dim = op.index_of("all_gather_dim")?;
    let Some(groups) = parse_rank_groups(op, named_by_flags(op)?)? else { return identity(op) };
    let members = groups.first().map_or(1, Vec::len).max(1);
    for_each_operand(op, |op, number| {
        let even = vec![dim_extent(op, number, dim)?; members];
        let extents = parse_extents(op, "partita.extents", Some(even))?;
        Ok(AllGather { dim, groups: groups.clone().into(), extents })
    })
}

impl TextForm for AllToAll {
    /// The generic form; `partita.split_extents` and `partita.concat_extents` if parts differ.
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
        let properties = print_members(printer, vec![
            ("concat_dimension", format!("{} : i64", self.concat_dim)),
            ("replica_groups", print_groups(&self.groups)),
            ("split_count", format!("{members} : i64")),
            ("split_dimension", format!("{} : i64", self.split_dim)),
        ]);
        printer.generic("stablehlo.all_to_all", &properties, &[]);
    }
}

fn parse_all_to_all(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    let (split_dim, concat_dim) = (op.index_of("split_dimension")?, op.index_of("concat_dimension")?);
    let Some(groups) = parse_rank_groups(op, named_by_channel(op))? else { return identity(op) };
    let members = groups.first().map_or(1, Vec::len).max(1);
    for_each_operand(op, |op, number| {
        let even = even_pieces(dim_extent(op, number, split_dim)?, &groups);
        let split_extents = parse_extents(op, "partita.split_extents", even)?;
        // If one dimension is both split and concatenated, the parts keep their sizes.
        let own = vec![dim_extent(op, number, concat_dim)?; members];
        let concat_extents = parse_extents(op, "partita.concat_extents", Some(own))?;
        Ok(AllToAll { split_dim, concat_dim, groups: groups.clone().into(), split_extents, concat_extents })
    })
}

impl TextForm for CollectivePermute {
    /// The generic form.
    fn print(&self, printer: &mut OpPrinter) {
        let rows: Vec<String> = self.pairs.iter().map(|(from, to)| format!("[{from}, {to}]")).collect();
        let list = if rows.is_empty() { String::new() } else { format!("[{}]", rows.join(", ")) };
        let properties = print_members(printer, vec![
            ("source_target_pairs", format!("dense<{list}> : tensor<{}x2xi64>", rows.len())),
        ]);
        printer.generic("stablehlo.collective_permute", &properties, &[]);
    }
}

fn parse_collective_permute(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    op.arity(1)?;
    let pair = |row: Vec<i64>| row.into_iter().map(|rank| usize::try_from(rank).ok()).collect();
    let pairs: Vec<Vec<usize>> = op
        .rows_of("source_target_pairs", 2)?
        .into_iter()
        .map(pair)
        .collect::<Option<_>>()
        .ok_or_else(|| op.error("E147", "`source_target_pairs` has a negative rank"))?;
    if pairs.is_empty() {
        return op.finish(CollectivePermute { pairs: Vec::new() });
    }
    let Some(pairs) = ranks_of(op, named_by_channel(op), pairs)? else { return identity(op) };
    let pairs = pairs.into_iter().map(|pair| (pair[0], pair[1])).collect();
    op.finish(CollectivePermute { pairs })
}

impl TextForm for CollectiveBroadcast {
    /// The generic form.
    fn print(&self, printer: &mut OpPrinter) {
        let properties = print_members(printer, vec![("replica_groups", print_groups(&self.groups))]);
        printer.generic("stablehlo.collective_broadcast", &properties, &[]);
    }
}

fn parse_collective_broadcast(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    if op.flag("has_dynamic_root") {
        return Err(op.error("E144", format!("`{}` from a rank that data names is not supported", op.name)));
    }
    let Some(groups) = parse_rank_groups(op, named_by_channel(op))? else { return identity(op) };
    for_each_operand(op, |_, _| Ok(CollectiveBroadcast { groups: groups.clone().into() }))
}
