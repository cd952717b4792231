//! Loops, branches and barriers.

use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{GradientContext, LocalContext, Operation};
use crate::rule::Rule;
use crate::types::TensorType;
use partita_base::{DType, Result};

/// Repeats `body` while `condition` holds; operands, body inputs and results have the same types.
#[derive(Clone, PartialEq, Debug)]
pub struct While {
    /// From the carried values to an i1 scalar.
    pub condition: Box<Graph>,
    /// From the carried values to the carried values.
    pub body: Box<Graph>,
}

/// Operands (index, captured values..): runs branch `index`, the last one where it is out of range. Branches take
/// the captured values.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The branches.
    pub branches: Vec<Graph>,
}

/// The identity of its operands; nothing moves across it.
#[derive(Clone, PartialEq, Debug)]
pub struct OptimizationBarrier;

impl Operation for While {
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

impl Operation for Case {
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

impl Operation for OptimizationBarrier {
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
use crate::text::{Capture, Kind, OpParser, OpPrinter, Region, Value, canonical, join, print_types, quote};

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("stablehlo.while", parse_while),
    ("stablehlo.case", parse_case),
    ("stablehlo.if", parse_if),
    ("stablehlo.optimization_barrier", parse_optimization_barrier),
];

impl TextForm for While {
    /// `stablehlo.while(%arg1 = %0, %arg2 = %1) : T, U`, then ` cond {..} do {..}`: both regions see the same names.
    fn print(&self, printer: &mut OpPrinter) {
        let mut names = printer.printer.input_names(&self.body);
        let carried: Vec<String> = self
            .body
            .inputs
            .iter()
            .enumerate()
            .map(|(i, input)| format!("{} = {}", names[input.index()], printer.operand(i)))
            .collect();
        let mut condition_names = vec![String::new(); self.condition.values.len()];
        for (input, same) in self.condition.inputs.iter().zip(&self.body.inputs) {
            condition_names[input.index()] = names[same.index()].clone();
        }
        let types = printer.operand_types();
        printer.push(&format!("stablehlo.while({})", carried.join(", ")));
        if !types.is_empty() {
            printer.push(&format!(" : {}", print_types(&types)));
        }
        if !printer.attributes.is_empty() {
            printer.push(" attributes");
            printer.attributes();
        }
        printer.push("\n");
        printer.printer.line();
        printer.push("cond {\n");
        printer.statements(&self.condition, &mut condition_names, "stablehlo.return");
        printer.push("} do {\n");
        printer.statements(&self.body, &mut names, "stablehlo.return");
        printer.push("}");
    }
}

/// The regions as graphs over their `declared` inputs and then all outer values that any of them uses, in order of
/// `first` and then of use; with those values.
fn unify(
    op: &OpParser,
    regions: Vec<Region>,
    declared: usize,
    first: Vec<ValueId>,
) -> (Vec<Graph>, Vec<ValueId>) {
    let mut outer = first;
    for &value in regions.iter().flat_map(|r| &r.captures) {
        if !outer.contains(&value) {
            outer.push(value);
        }
    }
    let graphs = regions.into_iter().map(|region| {
        let mut builder = crate::GraphBuilder::from_graph(region.graph);
        let inputs = &mut builder.graph_mut().inputs;
        let own = inputs.split_off(inputs.len().min(declared));
        for (position, value) in outer.iter().enumerate() {
            let used = region
                .captures
                .iter()
                .position(|c| c == value)
                .filter(|_| !outer[..position].contains(value));
            match used {
                Some(used) => builder.graph_mut().inputs.push(own[used]),
                None => {
                    builder.input("", op.parser.graph().ty(*value).clone(), crate::graph::Role::Activation);
                }
            }
        }
        let outputs = builder.graph().outputs.clone();
        canonical(&builder.finish(outputs))
    });
    (graphs.collect(), outer)
}

fn parse_while(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic_with(Capture::Inputs)? {
        op.parser.mark('(')?;
        let mut arguments = Vec::new();
        while op.parser.kind() == Kind::Value {
            arguments.push(op.parser.position);
            op.parser.advance();
            op.parser.mark('=')?;
            let operand = op.parser.operand()?;
            op.operands.push(operand);
            if !op.parser.eat(',') {
                break;
            }
        }
        op.parser.mark(')')?;
        if op.parser.eat(':') {
            op.result_types = op.parser.type_list()?;
        }
        if op.result_types.len() != arguments.len() {
            return Err(op
                .error("E146", "`stablehlo.while` has one type for each value it carries")
                .expected(arguments.len().to_string())
                .found(op.result_types.len().to_string()));
        }
        op.operand_types = Some(op.result_types.clone());
        if op.parser.at_word("attributes") {
            op.parser.advance();
            op.dictionary()?;
        }
        for keyword in ["cond", "do"] {
            op.parser.keyword(keyword)?;
            op.parser.push_frame(Capture::Inputs);
            for (number, &at) in arguments.iter().enumerate() {
                let value = op.parser.new_input(op.result_types[number].clone());
                op.parser.define(at, vec![value])?;
            }
            op.parser.mark('{')?;
            let region = op.parser.region_rest()?;
            op.regions.push(region);
        }
    }
    if op.regions.len() != 2 {
        return Err(op.error("E140", "`stablehlo.while` has two regions"));
    }
    op.check_operands()?;
    // Values of the graph around the loop that its regions use are carried along unchanged.
    let declared = op.operands.len();
    let regions = std::mem::take(&mut op.regions);
    let (mut graphs, captured) = unify(op, regions, declared, Vec::new());
    let (mut body, condition) = (graphs.pop().expect("two"), graphs.pop().expect("two"));
    body.outputs.extend(body.inputs.iter().skip(declared).copied());
    for &value in &captured {
        let ty = op.parser.graph().ty(value).clone();
        op.operands.push(value);
        op.result_types.push(ty);
    }
    op.operand_types = None;
    let mut results = op.finish(While { condition: Box::new(condition), body: Box::new(body) })?;
    results.truncate(declared);
    Ok(results)
}

/// The graph's values in the order in which its text mentions them.
fn mentions(graph: &Graph) -> Vec<ValueId> {
    let mut all = Vec::new();
    for node in &graph.nodes {
        match &node.op {
            crate::op::Op::Case(case) => {
                all.push(node.operands[0]);
                all.extend(case.mentioned().into_iter().map(|i| node.operands[1 + i]));
                all.extend(&node.operands[1..]);
            }
            _ => all.extend(&node.operands),
        }
    }
    all.extend(&graph.outputs);
    all
}

impl Case {
    /// Positions of the captured values in the order in which the branches' text mentions them.
    fn mentioned(&self) -> Vec<usize> {
        let mut order = Vec::new();
        for branch in &self.branches {
            let mut position = vec![None; branch.values.len()];
            for (i, input) in branch.inputs.iter().enumerate() {
                position[input.index()] = Some(i);
            }
            for i in mentions(branch).into_iter().filter_map(|v| position[v.index()]) {
                if !order.contains(&i) {
                    order.push(i);
                }
            }
        }
        order
    }
}

impl TextForm for Case {
    /// `"stablehlo.case"(%index) ({..}, {..}) : (tensor<i32>) -> T`. Branches have no arguments: they name the captured
    /// values, whose order is given by `partita.captured` where it is not that of their first mention.
    fn print(&self, printer: &mut OpPrinter) {
        let captured: Vec<String> = (1..printer.node.operands.len()).map(|i| printer.operand(i)).collect();
        let mentioned: Vec<String> = self.mentioned().into_iter().map(|i| captured[i].clone()).collect();
        if mentioned != captured {
            let quoted: Vec<String> = captured.iter().map(|name| quote(name)).collect();
            printer.attributes.push(("partita.captured".to_string(), format!("[{}]", join(&quoted))));
        }
        printer.push(&format!("\"stablehlo.case\"({}) (", printer.operand(0)));
        for (number, branch) in self.branches.iter().enumerate() {
            let mut names = vec![String::new(); branch.values.len()];
            for (input, name) in branch.inputs.iter().zip(&captured) {
                names[input.index()] = name.clone();
            }
            printer.push(if number > 0 { ", {\n" } else { "{\n" });
            printer.statements(branch, &mut names, "stablehlo.return");
            printer.push("}");
        }
        printer.push(")");
        printer.attributes();
        let (operands, results) = (printer.operand_types(), printer.result_types());
        printer.push(&format!(" : ({}) -> {}", operands[0], crate::text::print_results(&results)));
    }
}

fn parse_case(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic_with(Capture::All)? {
        return Err(op.error("E140", "`stablehlo.case` is written in the generic form"));
    }
    op.arity(1)?;
    if op.regions.is_empty() {
        return Err(op.error("E140", "`stablehlo.case` has at least one branch"));
    }
    op.check_operands()?;
    let mut first = Vec::new();
    if let Some(Value::List(names)) = op.attributes.get("partita.captured").cloned() {
        for name in names {
            let Value::Text(name) = name else { continue };
            // The order is a courtesy: names that another tool changed are passed over.
            first.extend(op.parser.resolve(&name, op.at).ok());
        }
    }
    let regions = std::mem::take(&mut op.regions);
    let (branches, captured) = unify(op, regions, 0, first);
    op.operands.extend(captured);
    op.operand_types = None;
    op.finish(Case { branches })
}

/// `"stablehlo.if"(%p) ({..}, {..})`: a case over the predicate as a number, the branches in the other order.
fn parse_if(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic_with(Capture::All)? {
        return Err(op.error("E140", "`stablehlo.if` is written in the generic form"));
    }
    op.arity(1)?;
    if op.regions.len() != 2 {
        return Err(op.error("E140", "`stablehlo.if` has two branches"));
    }
    op.check_operands()?;
    op.regions.reverse();
    let regions = std::mem::take(&mut op.regions);
    let (branches, captured) = unify(op, regions, 0, Vec::new());
    let predicate = op.operands[0];
    op.operands = op.emit(super::Convert { dtype: partita_base::DType::I32 }, &[predicate])?;
    op.operands.extend(captured);
    op.operand_types = None;
    op.finish(Case { branches })
}

impl TextForm for OptimizationBarrier {
    /// `stablehlo.optimization_barrier %0, %1 : T, U`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.push(&format!("stablehlo.optimization_barrier {}", printer.operands()));
        printer.attributes();
        let types = printer.operand_types();
        printer.push(&format!(" : {}", print_types(&types)));
    }
}

fn parse_optimization_barrier(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.at_least(1)?;
    op.finish(OptimizationBarrier)
}
