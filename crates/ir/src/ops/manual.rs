//! Layouts asked for inside a graph, and bodies written for one shard.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

use crate::graph::Annotation;
use partita_mesh::Sharding;

/// The identity; the result is asked to have a layout. Its gradient asks the same of the cotangent.
#[derive(Clone, PartialEq, Debug)]
pub struct ShardingConstraint {
    /// The layout.
    pub annotation: Annotation,
}

/// A body that sees one shard of each operand over the manual axes and may hold explicit collectives over them.
#[derive(Clone, PartialEq, Debug)]
pub struct ManualComputation {
    /// Index into the graph's meshes.
    pub mesh: usize,
    /// Layout of each operand; only manual axes count.
    pub in_shardings: Vec<Sharding>,
    /// Layout of each result; only manual axes count.
    pub out_shardings: Vec<Sharding>,
    /// Names of the axes the body handles itself.
    pub manual_axes: Vec<String>,
    /// Global types of the results.
    pub result_types: Vec<TensorType>,
    /// The body over local shapes.
    pub body: Box<Graph>,
}

impl Operation for ShardingConstraint {
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

impl Operation for ManualComputation {
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
use crate::op::TextForm;
use crate::text::{
    Capture, Kind, OpParser, OpPrinter, Value, join, origin_attributes, print_results, print_sharding,
    print_types, print_units, quote, set_units,
};

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("sdy.sharding_constraint", parse_sharding_constraint),
    ("sdy.manual_computation", parse_manual_computation),
];

impl TextForm for ShardingConstraint {
    /// `sdy.sharding_constraint %0 <@mesh, [..]> : T`.
    fn print(&self, printer: &mut OpPrinter) {
        let text = printer.printer.annotation_text(printer.graph, &self.annotation);
        printer.push(&format!("sdy.sharding_constraint {} {text}", printer.operand(0)));
        // The result may have a layout of its own beside: then the constraint's facts go by other names.
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
            _ => return Err(op.error("E147", "`sdy.sharding_constraint` has the attribute `sharding`")),
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
    let annotation = op.parser.annotation(sharding, &facts, 0);
    op.parser.check_rank(&annotation, op.operand_type(0), op.at)?;
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

fn parse_manual_computation(op: &mut OpParser) -> Result<Vec<ValueId>> {
    op.parser
        .mark('(')
        .map_err(|_| op.error("E140", "`sdy.manual_computation` is written in its pretty form"))?;
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
    let ranks_fit = ins.len() == op.operands.len()
        && outs.len() == op.result_types.len()
        && ins.iter().enumerate().all(|(i, s)| s.sharding.dims.len() == op.operand_type(i).rank())
        && outs.iter().zip(&op.result_types).all(|(s, ty)| s.sharding.dims.len() == ty.rank());
    if !ranks_fit {
        return Err(op.error("E148", "each operand and result has a sharding with its number of dimensions"));
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
        in_shardings: shardings(ins, "partita.in_units", op),
        out_shardings: shardings(outs, "partita.out_units", op),
        manual_axes,
        result_types: op.result_types.clone(),
        body: Box::new(body),
    };
    op.finish(manual)
}
