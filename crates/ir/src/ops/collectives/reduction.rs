//! Collectives with a reduction: all-reduce and reduce-scatter.

use super::super::{Constant, DynamicSlice, ParseOp, PartitionId, Reshape, Select};
use super::super::checks::{operand_count, sizes};
use super::super::control::shapes_of;
use super::super::reduce::{Numbers, Reducer, check_combiner, combiner_region, refused};
use super::{
    AllGather, Groups, alone, check_dim, check_groups, check_operand, check_ranks, checked, cut,
    dim_extent, even_extent, even_pieces, generic, identity, memberships, movement, named_by_channel,
    named_by_flags, not_manual, for_each_operand, parse_extents, parse_rank_groups, print_groups, print_ranks, start_of, transposed,
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

/// Reduces the operands of each group elementwise, in group order; every member gets the result.
#[derive(Clone, PartialEq, Debug)]
pub struct AllReduce {
    /// The groups, each in reduction order.
    pub groups: Groups,
    /// The combiner.
    pub combiner: Combiner,
}

/// Reduces like [`AllReduce`]; member `i` keeps the `i`-th shard along `dim`.
#[derive(Clone, PartialEq, Debug)]
pub struct ReduceScatter {
    /// The sharded dimension.
    pub dim: usize,
    /// The groups, each in reduction order.
    pub groups: Groups,
    /// The combiner.
    pub combiner: Combiner,
    /// The extent along `dim` that each member keeps.
    pub extents: Vec<usize>,
}

const ALL_REDUCE: &str = "stablehlo.all_reduce";
const REDUCE_SCATTER: &str = "stablehlo.reduce_scatter";

/// The reduction of the members' operands in group order, rounded once.
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
        alone(AllReduce { groups: Groups::default(), ..self.clone() }, operands, results)
    }

    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        check_ranks(ALL_REDUCE, self.groups.iter().flatten().copied(), ranks.len())?;
        let mut results = Vec::new();
        for (group, place) in memberships(&self.groups, ranks.len()) {
            // Computed once per group by its first member and shared.
            results.push(match place {
                _ if group[0] < results.len() => Literal::clone(&results[group[0]]),
                _ => combined(ALL_REDUCE, ranks, &group, self.combiner)?,
            });
        }
        checked(ALL_REDUCE, ranks, results)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Collective(CollectiveRef::AllReduce(self))
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(ALL_REDUCE))
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
        alone(ReduceScatter { groups: Groups::default(), ..self.clone() }, operands, results)
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

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Collective(CollectiveRef::ReduceScatter(self))
    }

    fn localise(&self, _: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Err(not_manual(REDUCE_SCATTER))
    }

    fn is_collective(&self) -> bool {
        true
    }
}

// ---- text ----

/// The ops of this file by name.
pub(super) const PARSERS: &[(&str, ParseOp)] =
&[
    ("stablehlo.all_reduce", parse_all_reduce),
    ("stablehlo.collective_reduce", parse_collective_reduce),
    ("stablehlo.reduce_scatter", parse_reduce_scatter),
];

fn parse_combiner(op: &mut OpParser) -> Result<Combiner> {
    match Reducer::from_region(op.region(0)?) {
        Reducer::Combiner(combiner) => Ok(combiner),
        Reducer::Body(_) => Err(op
            .error("E144", format!("`{}` with a general body is not supported", op.name))
            .expected("a body of one op: add, multiply, maximum, minimum, and, or")),
    }
}

impl TextForm for AllReduce {
    /// The generic form, with the combiner as a region.
    fn print(&self, printer: &mut OpPrinter) {
        let properties = print_ranks(printer, vec![
            ("replica_groups", print_groups(&self.groups)),
        ]);
        let body = combiner_region(self.combiner, printer.operand_types()[0].dtype);
        printer.generic("stablehlo.all_reduce", &properties, &[&body]);
    }
}

/// Several operands at once become one op each.
fn parse_all_reduce(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    let combiner = parse_combiner(op)?;
    let Some(groups) = parse_rank_groups(op, named_by_flags(op)?)? else { return identity(op) };
    let all_reduce = AllReduce { groups: groups.into(), combiner };
    for_each_operand(op, |_, _| Ok(all_reduce.clone()))
}

/// An all-reduce whose result only the first member of each group keeps; the others have zeros.
fn parse_collective_reduce(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    let combiner = parse_combiner(op)?;
    let Some(groups) = parse_rank_groups(op, named_by_channel(op))? else { return identity(op) };
    let all_reduce = AllReduce { groups: groups.clone().into(), combiner };
    let sums = for_each_operand(op, |_, _| Ok(all_reduce.clone()))?;
    // A rank in no group keeps its own value.
    let ranks = groups.iter().flatten().max().map_or(1, |&last| last + 1);
    let mut keeps = vec![true; ranks];
    groups.iter().flat_map(|group| group.iter().skip(1)).for_each(|&rank| keeps[rank] = false);
    let table = op.emit(Constant { value: Literal::new([ranks], keeps) }, &[])?[0];
    let rank = op.emit(PartitionId, &[])?[0];
    let own = op.emit(DynamicSlice { sizes: vec![1] }, &[table, rank])?;
    let own = op.emit(Reshape { shape: Vec::new() }, &own)?[0];
    let mut results = Vec::new();
    for sum in sums {
        let zeros = Literal::zeros(op.parser.graph().ty(sum));
        let zeros = op.emit(Constant { value: zeros }, &[])?[0];
        results.extend(op.emit(Select, &[own, sum, zeros])?);
    }
    Ok(results)
}

impl TextForm for ReduceScatter {
    /// The generic form; `partita.extents` if members keep different extents.
    fn print(&self, printer: &mut OpPrinter) {
        let own = printer.operand_types()[0].shape[self.dim];
        if Some(&self.extents) != even_pieces(own, &self.groups).as_ref() {
            printer.attributes.push(("partita.extents".to_string(), print_array(&self.extents)));
        }
        let properties = print_ranks(printer, vec![
            ("replica_groups", print_groups(&self.groups)),
            ("scatter_dimension", format!("{} : i64", self.dim)),
        ]);
        let body = combiner_region(self.combiner, printer.operand_types()[0].dtype);
        printer.generic("stablehlo.reduce_scatter", &properties, &[&body]);
    }
}

fn parse_reduce_scatter(op: &mut OpParser) -> Result<Vec<ValueId>> {
    generic(op)?;
    let dim = op.index_of("scatter_dimension")?;
    let Some(groups) = parse_rank_groups(op, named_by_flags(op)?)? else { return identity(op) };
    let combiner = parse_combiner(op)?;
    for_each_operand(op, |op, number| {
        let even = even_pieces(dim_extent(op, number, dim)?, &groups);
        let extents = parse_extents(op, "partita.extents", even)?;
        Ok(ReduceScatter { dim, groups: groups.clone().into(), combiner, extents })
    })
}
