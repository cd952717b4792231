//! Ops in which ranks exchange data. Groups are explicit lists of ranks; a rank in no group takes part alone.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

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

impl Operation for AllReduce {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}

impl Operation for AllGather {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}

impl Operation for ReduceScatter {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}

impl Operation for AllToAll {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}

impl Operation for CollectivePermute {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}

impl Operation for CollectiveBroadcast {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
    }
}

impl Operation for PartitionId {
    fn name(&self) -> &str {
        todo!()
    }
    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        todo!()
    }
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        todo!()
    }
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        todo!()
    }
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        todo!()
    }
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        todo!()
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
