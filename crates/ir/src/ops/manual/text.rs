//! The text of sharding constraints and manual computations.

use super::{ManualComputation, ShardingConstraint, reshard};
use crate::graph::{Graph, ValueId};
use crate::op::{Op, Operation, TextForm};
use crate::ops::ParseOp;
use crate::text::{
    Capture, Kind, OpParser, OpPrinter, Value, join, origin_attributes, print_results, print_sharding,
    print_types, print_units, quote, set_units,
};
use partita_base::Result;
use partita_mesh::Sharding;

/// The ops of this folder by name.
pub(crate) fn parsers() -> impl Iterator<Item = (&'static str, ParseOp)> {
    let own: [(&str, ParseOp); 2] = [
        ("sdy.sharding_constraint", parse_sharding_constraint),
        ("sdy.manual_computation", parse_manual_computation),
    ];
    own.into_iter().chain(reshard::PARSERS.iter().copied())
}

impl TextForm for ShardingConstraint {
    /// `sdy.sharding_constraint %0 <@mesh, [..]> : T`.
    fn print(&self, printer: &mut OpPrinter) {
        let text = printer.printer.annotation_text(printer.graph, &self.annotation);
        printer.push(&format!("sdy.sharding_constraint {} {text}", printer.operand(0)));
        // The result may have its own layout: then the constraint's attributes get other names.
        let own = origin_attributes(&[&self.annotation]);
        let rename = |name: String| name.replace("partita.", "partita.constraint_");
        printer.attributes.extend(own.into_iter().map(|(name, value)| (rename(name), value)));
        printer.attributes();
        let ty = printer.result_types()[0].to_string();
        printer.push(&format!(" : {ty}"));
    }
}

fn parse_sharding_constraint(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let sharding = if op.generic()? {
        match op.attributes.get("sharding") {
            Some(Value::Shardings(list)) if list.len() == 1 => list[0].clone(),
            _ => return Err(op.error("E147", "`sdy.sharding_constraint` needs the attribute `sharding`")),
        }
    } else {
        op.operands()?;
        let sharding = op.parser.sharding()?;
        op.types()?;
        sharding
    };
    op.arity(1)?;
    op.parser.use_meshes();
    let mut facts = op.attributes.clone();
    facts.list.retain_mut(|(name, _)| {
        let constraint = name.strip_prefix("partita.constraint_").map(|rest| format!("partita.{rest}"));
        constraint.is_some_and(|renamed| {
            *name = renamed;
            true
        })
    });
    let mut annotation = op.parser.annotation(sharding, &facts, 0);
    op.parser.fit_rank(&mut annotation, op.operand_type(0), op.at)?;
    op.finish(ShardingConstraint { annotation })
}

impl TextForm for ManualComputation {
    /// `sdy.manual_computation(%0) in_shardings=[<@mesh, ..>] out_shardings=[..] manual_axes={"x"} (%arg1: T) {..} :
    /// (U) -> V`.
    fn print(&self, printer: &mut OpPrinter) {
        let mesh = &printer.graph.meshes[self.mesh];
        let symbol = printer.printer.mesh_symbol(mesh);
        let list = |shardings: &[Sharding]| {
            join(&shardings.iter().map(|s| print_sharding(mesh, &symbol, s, &[], &[])).collect::<Vec<_>>())
        };
        let axes: Vec<String> = self.manual_axes.iter().map(|axis| quote(axis)).collect();
        let header = format!(
            "sdy.manual_computation({}) in_shardings=[{}] out_shardings=[{}] manual_axes={{{}}} (",
            printer.operands(),
            list(&self.in_shardings),
            list(&self.out_shardings),
            join(&axes)
        );
        printer.push(&header);
        let mut names = printer.printer.input_names(&self.body);
        let arguments = printer.arguments(&self.body, &names);
        printer.push(&format!("{arguments}) {{\n"));
        printer.statements(&self.body, &mut names, "sdy.return");
        printer.push("}");
        if self.in_shardings.is_empty() && self.out_shardings.is_empty() {
            printer.attributes.push(("partita.mesh".to_string(), symbol));
        }
        for (name, shardings) in
            [("partita.in_units", &self.in_shardings), ("partita.out_units", &self.out_shardings)]
        {
            if let Some(units) = print_units(&shardings.iter().collect::<Vec<_>>()) {
                printer.attributes.push((name.to_string(), units));
            }
        }
        printer.attributes();
        let (operands, results) = (printer.operand_types(), printer.result_types());
        printer.push(&format!(" : ({}) -> {}", print_types(&operands), print_results(&results)));
    }
}

/// Whether a graph depends on rank numbers.
fn names_ranks(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| {
        let number = matches!(node.op, Op::PartitionId(_) | Op::RankConstant(_));
        number || node.op.is_collective() || node.op.regions().into_iter().any(names_ranks)
    })
}

fn parse_manual_computation(op: &mut OpParser) -> Result<Vec<ValueId>> {
    op.parser
        .mark('(')
        .map_err(|_| op.error("E140", "`sdy.manual_computation` must be written in its pretty form"))?;
    op.operands()?;
    op.parser.mark(')')?;
    let mut lists = Vec::new();
    for clause in ["in_shardings", "out_shardings"] {
        op.parser.keyword(clause)?;
        op.parser.mark('=')?;
        lists.push(op.parser.sharding_list()?);
    }
    op.parser.keyword("manual_axes")?;
    op.parser.mark('=')?;
    op.parser.mark('{')?;
    let mut manual_axes = Vec::new();
    while op.parser.kind() == Kind::Text {
        manual_axes.push(crate::text::unquote(op.parser.text()));
        op.parser.advance();
        if !op.parser.eat(',') {
            break;
        }
    }
    op.parser.mark('}')?;
    op.parser.mark('(')?;
    op.parser.push_frame(Capture::Constants);
    op.parser.region_arguments()?;
    op.parser.mark(')')?;
    op.parser.mark('{')?;
    let body = op.parser.region_rest()?.graph;
    op.types()?;
    let (outs, ins) = (lists.pop().expect("two lists"), lists.pop().expect("two lists"));
    let mut mesh = ins.iter().chain(&outs).map(|s| s.mesh);
    let first = match op.attributes.get("partita.mesh") {
        Some(Value::Symbol(name)) => op.parser.meshes.iter().position(|m| &m.name == name),
        _ => mesh.next(),
    };
    let Some(first) = first else {
        return Err(op.error("E148", "`sdy.manual_computation` without shardings names no mesh"));
    };
    if mesh.any(|m| m != first) {
        return Err(op.error("E148", "the shardings of `sdy.manual_computation` are on several meshes"));
    }
    if let Some(axis) =
        manual_axes.iter().find(|a| op.parser.meshes[first].axes.iter().all(|x| &x.name != *a))
    {
        return Err(
            op.error("E148", format!("mesh `@{}` has no axis `{axis}`", op.parser.meshes[first].name))
        );
    }
    let mesh = &op.parser.meshes[first];
    if !mesh.is_in_device_order() && names_ranks(&body) {
        return Err(op
            .error(
                "E144",
                format!("collectives over mesh `@{}`, whose `device_ids` are not in order", mesh.name),
            )
            .expected("a mesh in which rank i runs on device i")
            .found(format!("device_ids={:?}", mesh.device_ids.as_deref().unwrap_or_default())));
    }
    let ranks_fit = ins.len() == op.operands.len()
        && outs.len() == op.result_types.len()
        && ins.iter().enumerate().all(|(i, s)| s.sharding.dims.len() == op.operand_type(i).rank())
        && outs.iter().zip(&op.result_types).all(|(s, ty)| s.sharding.dims.len() == ty.rank());
    if !ranks_fit {
        return Err(op.error("E148", "each operand and result needs a sharding of all its dimensions"));
    }
    op.parser.use_meshes();
    let shardings = |list: Vec<crate::text::ShardingText>, units: &str, op: &OpParser| -> Vec<Sharding> {
        let mut shardings: Vec<Sharding> = list.into_iter().map(|s| s.sharding).collect();
        match op.attributes.get(units) {
            Some(Value::List(units)) => {
                for (sharding, units) in shardings.iter_mut().zip(units) {
                    if let Value::Ints(units) = units {
                        set_units(sharding, units);
                    }
                }
            }
            Some(Value::Ints(units)) => {
                if let Some(sharding) = shardings.first_mut() {
                    set_units(sharding, units);
                }
            }
            _ => {}
        }
        shardings
    };
    let manual = ManualComputation {
        mesh: first,
        mesh_value: op.parser.meshes[first].clone(),
        in_shardings: shardings(ins, "partita.in_units", op),
        out_shardings: shardings(outs, "partita.out_units", op),
        manual_axes,
        result_types: op.result_types.clone(),
        body: Box::new(body),
    };
    op.finish(manual)
}

