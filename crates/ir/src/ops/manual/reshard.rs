//! The ops of Shardy that change a layout: `sdy.reshard` and the `sdy` collectives; and `sdy.sharding_group`.
//!
//! On global values each of them is the identity with a layout for its result, so all are read as
//! sharding constraints. Which collective moves the data follows from the two layouts; what an op's
//! name or its list of axes says about it is not needed. In particular `sdy.all_reduce` changes
//! nothing of a global value, which is the sum already. Applied to an input of the program, it says
//! one thing more: that the input arrives as terms of a sum, one on each rank along its axes.

use super::ShardingConstraint;
use crate::graph::ValueId;
use crate::ops::ParseOp;
use crate::text::{Capture, Kind, OpParser, ShardingText, Value, print_results, print_types};
use crate::types::TensorType;
use partita_base::Result;
use partita_mesh::Combiner;

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("sdy.reshard", parse_reshard),
    ("sdy.all_gather", parse_collective),
    ("sdy.all_reduce", parse_all_reduce),
    ("sdy.all_slice", parse_collective),
    ("sdy.all_to_all", parse_collective),
    ("sdy.collective_permute", parse_collective),
    ("sdy.reduce_scatter", parse_collective),
    ("sdy.replicated_to_unreduced", parse_collective),
    ("sdy.sharded_to_unreduced", parse_collective),
    ("sdy.named_computation", parse_named_computation),
    ("sdy.sharding_group", parse_sharding_group),
];

/// `sdy.reshard %0 <@mesh, [..]> : T`.
fn parse_reshard(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if op.generic()? {
        return constraint_of(op, "sharding");
    }
    op.operands()?;
    let sharding = op.parser.sharding()?;
    op.types()?;
    constrain(op, sharding)
}

/// `sdy.all_gather [{"x"}, {}] %0 out_sharding=<@mesh, [..]> : T`, also with a combiner before the
/// axes, or without axes.
fn parse_collective(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if op.generic()? {
        return constraint_of(op, "out_sharding");
    }
    if op.parser.kind() == Kind::Word {
        op.parser.advance();
    }
    if matches!(op.parser.kind(), Kind::Mark('[' | '{')) {
        op.parser.skip_group();
    }
    op.operands()?;
    op.parser.keyword("out_sharding")?;
    op.parser.mark('=')?;
    let sharding = op.parser.sharding()?;
    op.types()?;
    constrain(op, sharding)
}

/// `sdy.all_reduce {"x"} %0 out_sharding=<@mesh, [..]> : T`.
fn parse_all_reduce(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let axes_at = op.parser.position;
    let is_sum = op.parser.kind() == Kind::Mark('{');
    let results = parse_collective(op)?;
    let graph = op.parser.graph();
    let Some((node, _)) = graph.value(results[0]).definition else { return Ok(results) };
    let Some(own) = graph.node(node).op.constraint() else { return Ok(results) };
    let input = graph.node(node).operands[0];
    let is_input = graph.value(input).definition.is_none();
    let given = graph.value(input).annotation.clone().filter(|given| given.mesh == own.mesh);
    if let Some(mut annotation) = given.filter(|_| is_sum && is_input) {
        let end = std::mem::replace(&mut op.parser.position, axes_at);
        let axes = op.parser.dimension(annotation.mesh)?.0;
        op.parser.position = end;
        let taken = annotation.sharding.sharded_axes();
        if axes.iter().all(|axis| taken.iter().all(|other| !other.overlaps(*axis))) {
            annotation.sharding.partial = axes.into_iter().map(|axis| (axis, Combiner::Sum)).collect();
            op.parser.frame().graph.value_mut(input).annotation = Some(annotation);
        }
    }
    Ok(results)
}

/// `sdy.sharding_group %0 group_id=1 : T`: the operand has the layout of all other values of this group. Groups that share
/// a value are one.
fn parse_sharding_group(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let group = if op.generic()? {
        op.index_of("group_id")?
    } else {
        op.operands()?;
        op.parser.keyword("group_id")?;
        op.parser.mark('=')?;
        let group = op.index()?;
        op.types()?;
        group
    };
    op.arity(1)?;
    op.check_operands()?;
    let value = op.operands[0];
    if let Some(known) = op.parser.graph().value(value).group {
        op.parser.groups.push((known, group as u64));
    }
    op.parser.frame().graph.value_mut(value).group = Some(group as u64);
    Ok(Vec::new())
}

/// `sdy.named_computation<"name">(%0) in_shardings=[..] out_shardings=[..] (%arg1: T) {..} : (T) -> U`: a
/// function written at its call. It is inlined, between constraints for its layouts.
fn parse_named_computation(op: &mut OpParser) -> Result<Vec<ValueId>> {
    op.parser
        .mark('<')
        .map_err(|_| op.error("E140", "`sdy.named_computation` must be written in its pretty form"))?;
    op.parser.skip_angle()?;
    op.parser.mark('(')?;
    op.operands()?;
    op.parser.mark(')')?;
    let mut layouts = [Vec::new(), Vec::new()];
    for (list, word) in layouts.iter_mut().zip(["in_shardings", "out_shardings"]) {
        if op.parser.at_word(word) {
            op.parser.advance();
            op.parser.mark('=')?;
            *list = op.parser.sharding_list()?;
        }
    }
    op.parser.mark('(')?;
    op.parser.push_frame(Capture::Constants);
    op.parser.region_arguments()?;
    op.parser.mark(')')?;
    op.parser.mark('{')?;
    let body = op.parser.region_rest()?.graph;
    op.types()?;
    op.check_operands()?;
    let [ins, outs] = layouts;
    let of = |values: &[ValueId]| -> Vec<TensorType> { values.iter().map(|&v| body.ty(v).clone()).collect() };
    let given: Vec<TensorType> = (0..op.operands.len()).map(|i| op.operand_type(i).clone()).collect();
    if of(&body.inputs) != given || of(&body.outputs) != op.result_types {
        return Err(op
            .error("E146", "the body of `sdy.named_computation` does not fit its operands and results")
            .expected(format!("({}) -> {}", print_types(&given), print_results(&op.result_types)))
            .found(format!("({}) -> {}", print_types(&of(&body.inputs)), print_results(&of(&body.outputs)))));
    }
    op.parser.count_inlined(body.nodes.len() + ins.len() + outs.len(), op.at)?;
    op.parser.use_meshes();
    let operands = op.operands.clone();
    let operands = constrain_all(op, operands, ins)?;
    let results = op.parser.inline(&body, &operands);
    constrain_all(op, results, outs)
}

/// The values, each with its layout, if there are layouts.
fn constrain_all(op: &mut OpParser, values: Vec<ValueId>, layouts: Vec<ShardingText>) -> Result<Vec<ValueId>> {
    if layouts.is_empty() {
        return Ok(values);
    }
    if layouts.len() != values.len() {
        return Err(op
            .error("E148", format!("`{}` does not have one sharding for each value", op.name))
            .expected(values.len().to_string())
            .found(layouts.len().to_string()));
    }
    let mut constrained = Vec::new();
    for (value, layout) in values.into_iter().zip(layouts) {
        let mut annotation = op.parser.annotation(layout, &Default::default(), 0);
        op.parser.fit_rank(&mut annotation, op.parser.graph().ty(value), op.at)?;
        constrained.extend(op.emit(ShardingConstraint { annotation }, &[value])?);
    }
    Ok(constrained)
}

fn constraint_of(op: &mut OpParser, attribute: &str) -> Result<Vec<ValueId>> {
    match op.attributes.get(attribute) {
        Some(Value::Shardings(list)) if list.len() == 1 => {
            let sharding = list[0].clone();
            constrain(op, sharding)
        }
        _ => Err(op.error("E147", format!("`{}` needs the attribute `{attribute}`", op.name))),
    }
}

fn constrain(op: &mut OpParser, sharding: ShardingText) -> Result<Vec<ValueId>> {
    op.arity(1)?;
    op.parser.use_meshes();
    let mut annotation = op.parser.annotation(sharding, &Default::default(), 0);
    op.parser.fit_rank(&mut annotation, op.operand_type(0), op.at)?;
    op.finish(ShardingConstraint { annotation })
}
