//! Loops, branches and barriers.

use super::checks::{element_type, shapes};
use super::reduce::{refused, region_signature};
use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, RankCall, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::traits::{Traits, ViewMap};
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use std::collections::BTreeSet;

/// Repeats `body` while `condition` holds; operands, body inputs and results have the same types.
///
/// Carried values stay whole: a loop is cut by unrolling it ([`While::unroll`]).
#[derive(Clone, PartialEq, Debug)]
pub struct While {
    /// From the carried values to an i1 scalar.
    pub condition: Box<Graph>,
    /// From the carried values to the carried values.
    pub body: Box<Graph>,
}

/// Operands (index, captured values..): runs branch `index`, the last one where it is out of range. Branches take
/// the captured values, which stay whole.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The branches.
    pub branches: Vec<Graph>,
}

/// The identity of its operands; nothing moves across it.
#[derive(Clone, PartialEq, Debug)]
pub struct OptimizationBarrier;

const WHILE: &str = "stablehlo.while";
const CASE: &str = "stablehlo.case";
const BARRIER: &str = "stablehlo.optimization_barrier";

/// The most trips a loop may make and still be unrolled.
const UNROLL_LIMIT: usize = 1024;

/// The most elements a value may have to be computed in advance.
const FOLD_LIMIT: usize = 1024;

/// The shapes of types.
pub(crate) fn shapes_of<'a>(types: &'a [&TensorType]) -> Vec<&'a [usize]> {
    types.iter().map(|ty| &ty.shape[..]).collect()
}

fn total_bytes(operands: &[&TensorType], results: &[&TensorType]) -> f64 {
    operands.iter().chain(results).map(|ty| ty.bytes() as f64).sum()
}

/// Work of all nodes of a graph.
fn graph_cost(graph: &Graph) -> Cost {
    let mut total = Cost::default();
    for node in &graph.nodes {
        let cost = node.op.cost(&graph.operand_types(node), &graph.result_types(node));
        total.flops += cost.flops;
        total.bytes += cost.bytes;
    }
    total
}

/// Whether ranks exchange data anywhere in the graph.
fn holds_collective(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| node.op.is_collective())
}

/// What the graph's `outputs` need: its nodes and inputs, by position.
fn needs(graph: &Graph, outputs: &[ValueId]) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let (mut nodes, mut inputs) = (BTreeSet::new(), BTreeSet::new());
    let mut wanted: BTreeSet<usize> = outputs.iter().map(|v| v.index()).collect();
    while let Some(value) = wanted.pop_last() {
        let value = ValueId::new(value);
        match graph.value(value).definition {
            Some((node, _)) => {
                if nodes.insert(node.index()) {
                    wanted.extend(graph.node(node).operands.iter().map(|v| v.index()));
                }
            }
            None => {
                inputs.extend(graph.inputs.iter().position(|&input| input == value));
            }
        }
    }
    (nodes, inputs)
}

/// The part of a graph that computes some of its outputs from some of its inputs, which are all these need.
fn part(graph: &Graph, outputs: &[ValueId], inputs: &BTreeSet<usize>) -> Graph {
    let (nodes, _) = needs(graph, outputs);
    Graph {
        name: graph.name.clone(),
        values: graph.values.clone(),
        nodes: nodes.into_iter().map(|n| graph.node(NodeId::new(n)).clone()).collect(),
        inputs: inputs.iter().map(|&i| graph.inputs[i]).collect(),
        outputs: outputs.to_vec(),
        ..Graph::default()
    }
}

/// What a value is, where constants alone decide it and all values on the way are small.
fn constant_value(graph: &Graph, value: ValueId) -> Option<Literal> {
    let (nodes, inputs) = needs(graph, &[value]);
    let small = |v: &ValueId| graph.ty(*v).element_count() <= FOLD_LIMIT;
    let plain = |&n: &usize| {
        let node = graph.node(NodeId::new(n));
        node.results.iter().all(small)
            && node.op.regions().is_empty()
            && !node.op.is_collective()
            && !matches!(node.op, Op::PartitionId(_))
    };
    if !inputs.is_empty() || nodes.len() > FOLD_LIMIT || !nodes.iter().all(plain) {
        return None;
    }
    interpret::evaluate(&part(graph, &[value], &inputs), &[]).ok()?.pop()
}

impl While {
    /// Writes the loop out, trip by trip, where constants alone decide the number of trips: a counter that starts at
    /// a constant, steps by a constant and is compared with a constant, or anything else computed only from carried
    /// values that start as constants. `None` where data decides, or beyond 1024 trips. Returns the carried
    /// values after the last trip.
    pub fn unroll(&self, builder: &mut GraphBuilder, operands: &[ValueId]) -> Result<Option<Vec<ValueId>>> {
        let Some(trips) = self.trip_count(builder.graph(), operands) else { return Ok(None) };
        let mut carried = operands.to_vec();
        for _ in 0..trips {
            carried = builder.inline(&self.body, &carried, false)?;
        }
        Ok(Some(carried))
    }

    /// How often the body runs, as [`While::unroll`] finds it: the operands are values of `graph`.
    pub fn trip_count(&self, graph: &Graph, operands: &[ValueId]) -> Option<usize> {
        // The carried values that decide, and those that decide their next values.
        let mut decisive = needs(&self.condition, &self.condition.outputs).1;
        loop {
            let next: Vec<ValueId> = decisive.iter().map(|&i| self.body.outputs[i]).collect();
            let before = decisive.len();
            decisive.extend(needs(&self.body, &next).1);
            if decisive.len() == before {
                break;
            }
        }
        let start: Option<Vec<Literal>> =
            decisive.iter().map(|&i| constant_value(graph, operands[i])).collect();
        let mut state = start?;
        let condition = part(&self.condition, &self.condition.outputs, &decisive);
        let next: Vec<ValueId> = decisive.iter().map(|&i| self.body.outputs[i]).collect();
        let step = part(&self.body, &next, &decisive);
        if holds_collective(&condition) || holds_collective(&step) {
            return None;
        }
        for trips in 0..=UNROLL_LIMIT {
            if !holds(&interpret::evaluate(&condition, &state).ok()?) {
                return Some(trips);
            }
            state = interpret::evaluate(&step, &state).ok()?;
        }
        None
    }
}

/// Whether a condition's result is true.
fn holds(results: &[Literal]) -> bool {
    results[0].to_i64() == [1]
}

/// Every rank goes its own way: nothing in the loop or the branches looks across ranks, but they may ask their rank.
fn each_alone(ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
    let alone =
        |(rank, call): (usize, &RankCall)| call.op.on_rank(rank).evaluate(&call.operands, &call.results);
    ranks.iter().enumerate().map(alone).collect()
}

/// E133: ranks disagree about control flow that holds a collective.
fn disagreement(name: &str) -> Box<Diagnostic> {
    Diagnostic::new(
        "E133",
        format!("ranks take different ways through a `{name}` in which they exchange data"),
    )
    .expected("the same condition on every rank")
    .help("compute the condition from values that are equal on all ranks, for instance after an all-reduce")
}

impl Operation for While {
    fn name(&self) -> &str {
        WHILE
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        let carried: Vec<TensorType> = operands.iter().map(|&ty| ty.clone()).collect();
        let truth = TensorType::scalar(DType::Bool);
        region_signature(WHILE, "condition", &self.condition, &carried, &[truth])?;
        region_signature(WHILE, "body", &self.body, &carried, &carried)?;
        Ok(carried)
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    /// One trip.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let (condition, body) = (graph_cost(&self.condition), graph_cost(&self.body));
        let bytes = total_bytes(operands, results);
        Cost { flops: condition.flops + body.flops, bytes: condition.bytes + body.bytes + bytes }
    }

    /// E120: unroll it first.
    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Err(refused(WHILE, "trips that data decides"))
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        let mut carried: Vec<Literal> = operands.iter().map(|&x| x.clone()).collect();
        while holds(&interpret::evaluate(&self.condition, &carried)?) {
            carried = interpret::evaluate(&self.body, &carried)?;
        }
        Ok(carried)
    }

    /// In lock step where the loop holds collectives.
    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        let mut carried: Vec<Vec<Literal>> =
            ranks.iter().map(|rank| rank.operands.iter().map(|&x| x.clone()).collect()).collect();
        if !self.is_collective() {
            return each_alone(ranks);
        }
        let loops: Vec<&While> = ranks
            .iter()
            .map(|rank| match rank.op {
                Op::While(op) => op,
                _ => unreachable!("ranks agree in structure"),
            })
            .collect();
        let conditions: Vec<&Graph> = loops.iter().map(|op| &*op.condition).collect();
        let bodies: Vec<&Graph> = loops.iter().map(|op| &*op.body).collect();
        loop {
            let verdicts = interpret::evaluate_ranks(&conditions, &carried)?;
            let first = holds(&verdicts[0]);
            if verdicts.iter().any(|v| holds(v) != first) {
                return Err(disagreement(WHILE));
            }
            if !first {
                return Ok(carried);
            }
            carried = interpret::evaluate_ranks(&bodies, &carried)?;
        }
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, self.body.outputs.len())
    }

    fn regions(&self) -> Vec<&Graph> {
        vec![&self.condition, &self.body]
    }

    fn is_collective(&self) -> bool {
        holds_collective(&self.condition) || holds_collective(&self.body)
    }
}

impl Case {
    /// The branch that this index chooses.
    fn chosen(&self, index: &Literal) -> &Graph {
        let last = self.branches.len() - 1;
        let index = usize::try_from(index.to_i64()[0]).unwrap_or(last);
        &self.branches[index.min(last)]
    }
}

impl Operation for Case {
    fn name(&self) -> &str {
        CASE
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        let (Some(index), Some(first)) = (operands.first(), self.branches.first()) else {
            return Err(Diagnostic::new("E101", format!("`{CASE}` needs an index and a branch"))
                .expected("at least one operand and one branch")
                .found(format!("{} operands and {} branches", operands.len(), self.branches.len())));
        };
        element_type(CASE, index.dtype == DType::I32, "i32", index.dtype)?;
        shapes(index.shape.is_empty(), "a branch index is a scalar", "tensor<i32>", index.to_string())?;
        let captured: Vec<TensorType> = operands[1..].iter().map(|&ty| ty.clone()).collect();
        let results: Vec<TensorType> = first.outputs.iter().map(|&v| first.ty(v).clone()).collect();
        for (number, branch) in self.branches.iter().enumerate() {
            region_signature(CASE, &format!("branch {number}"), branch, &captured, &results)?;
        }
        Ok(results)
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        Rule::whole(&shapes_of(operands), &shapes_of(results))
    }

    /// The costliest branch.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let costs = self.branches.iter().map(graph_cost);
        let most =
            costs.fold(Cost::default(), |most, cost| if cost.flops > most.flops { cost } else { most });
        Cost { flops: most.flops, bytes: most.bytes + total_bytes(operands, results) }
    }

    /// E120.
    fn gradient(&self, _: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Err(refused(CASE, "a branch that data chooses"))
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        let captured: Vec<Literal> = operands[1..].iter().map(|&x| x.clone()).collect();
        interpret::evaluate(self.chosen(operands[0]), &captured)
    }

    /// In lock step where a branch holds collectives.
    fn evaluate_ranks(&self, ranks: &[RankCall]) -> Result<Vec<Vec<Literal>>> {
        if !self.is_collective() {
            return each_alone(ranks);
        }
        let index = ranks[0].operands[0].to_i64();
        if ranks.iter().any(|rank| rank.operands[0].to_i64() != index) {
            return Err(disagreement(CASE));
        }
        let branches: Vec<&Graph> = ranks
            .iter()
            .map(|rank| match rank.op {
                Op::Case(op) => op.chosen(rank.operands[0]),
                _ => unreachable!("ranks agree in structure"),
            })
            .collect();
        let captured: Vec<Vec<Literal>> =
            ranks.iter().map(|rank| rank.operands[1..].iter().map(|&x| x.clone()).collect()).collect();
        interpret::evaluate_ranks(&branches, &captured)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, self.branches[0].outputs.len())
    }

    fn regions(&self) -> Vec<&Graph> {
        self.branches.iter().collect()
    }

    fn is_collective(&self) -> bool {
        self.branches.iter().any(holds_collective)
    }
}

impl Operation for OptimizationBarrier {
    fn name(&self) -> &str {
        BARRIER
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        Ok(operands.iter().map(|&ty| ty.clone()).collect())
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let mut rule = Rule::default();
        for ty in operands {
            let dims: Vec<Vec<usize>> =
                ty.shape.iter().map(|&size| vec![rule.factor(size, FactorKind::Pass)]).collect();
            rule.operands.push(dims.clone());
            rule.results.push(dims);
        }
        // A group makes all results partial, so all operands must be.
        rule.transparent_in(&(0..operands.len()).collect::<Vec<_>>())
    }

    /// Nothing is moved.
    fn cost(&self, _: &[&TensorType], _: &[&TensorType]) -> Cost {
        Cost::default()
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        Ok(context.cotangents.iter().zip(context.wanted).map(|(ct, &w)| ct.filter(|_| w)).collect())
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(operands.iter().map(|&x| x.clone()).collect())
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Identity)
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let results = context.operands().len();
        localise_same(self.clone(), context, results)
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
        let mut builder = GraphBuilder::from_graph(region.graph);
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
            Op::Case(case) => {
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
    op.operands = op.emit(super::Convert { dtype: DType::I32 }, &[predicate])?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Role;
    use crate::ops::{AllReduce, Direction, PartitionId};
    use crate::testing::{apply, check_gradient, check_rule, random};
    use partita_mesh::Combiner;

    fn number(value: i32) -> Literal {
        Literal::new([], vec![value])
    }

    /// Carried (counter, limit, x): doubles x while `counter < limit`, counting by `step`.
    fn doubling(step: i32) -> While {
        let inputs = |b: &mut GraphBuilder| {
            let scalar = TensorType::scalar(DType::I32);
            let counter = b.input("counter", scalar.clone(), Role::Input);
            let limit = b.input("limit", scalar, Role::Input);
            (counter, limit, b.input("x", TensorType::new(DType::F32, [2]), Role::Input))
        };
        let mut condition = GraphBuilder::new("condition");
        let (counter, limit, _) = inputs(&mut condition);
        let less = condition.compare(Direction::Lt, counter, limit).unwrap();
        let mut body = GraphBuilder::new("body");
        let (counter, limit, x) = inputs(&mut body);
        let step = body.constant(number(step));
        let next = body.add(counter, step).unwrap();
        let twice = body.add(x, x).unwrap();
        While {
            condition: Box::new(condition.finish(vec![less])),
            body: Box::new(body.finish(vec![next, limit, twice])),
        }
    }

    #[test]
    fn loops_run_while_their_condition_holds() {
        let x = Literal::new([2], vec![1f32, 3.0]);
        let got = apply(doubling(2), &[number(1), number(8), x.clone()]);
        assert_eq!(got, [number(9), number(8), Literal::new([2], vec![16f32, 48.0])]);
        assert_eq!(apply(doubling(1), &[number(5), number(5), x.clone()])[2], x);
    }

    #[test]
    fn loops_that_constants_decide_unroll_to_the_same_values() {
        let op = doubling(3);
        for (limit, trips) in [(8, 3), (1, 1), (0, 0), (-4, 0)] {
            let mut b = GraphBuilder::new("f");
            let x = b.input("x", TensorType::new(DType::F32, [2]), Role::Input);
            let zero = b.constant(number(0));
            // A limit that is computed from constants is as good as one.
            let half = b.constant(number(limit / 2));
            let limit_value = b.add(half, half).unwrap();
            let out = op.unroll(&mut b, &[zero, limit_value, x]).unwrap().unwrap();
            let limit = limit / 2 * 2;
            assert_eq!(
                op.trip_count(b.graph(), &[zero, limit_value, x]),
                Some(if limit == 0 { 0 } else { trips })
            );
            let graph = b.finish(out);
            assert!(graph.nodes.iter().all(|n| !matches!(n.op, Op::While(_))));
            let x = Literal::new([2], vec![1f32, 3.0]);
            let got = interpret::evaluate(&graph, std::slice::from_ref(&x)).unwrap();
            assert_eq!(got, apply(op.clone(), &[number(0), number(limit), x]));
        }
    }

    #[test]
    fn loops_that_data_decides_or_that_do_not_end_soon_stay() {
        let mut b = GraphBuilder::new("f");
        let x = b.input("x", TensorType::new(DType::F32, [2]), Role::Input);
        let fed = b.input("limit", TensorType::scalar(DType::I32), Role::Input);
        let zero = b.constant(number(0));
        let far = b.constant(number(1025));
        let near = b.constant(number(1024));
        assert_eq!(doubling(1).unroll(&mut b, &[zero, fed, x]).unwrap(), None);
        assert_eq!(doubling(1).trip_count(b.graph(), &[zero, far, x]), None);
        assert_eq!(doubling(1).trip_count(b.graph(), &[zero, near, x]), Some(1024));
        assert_eq!(doubling(0).trip_count(b.graph(), &[zero, near, x]), None);
    }

    #[test]
    fn collectives_in_loops_see_all_ranks() {
        let mut op = doubling(1);
        let mut b = GraphBuilder::new("body");
        let inputs: Vec<ValueId> =
            op.body.inputs.iter().map(|&v| b.input("", op.body.ty(v).clone(), Role::Input)).collect();
        let out = b.inline(&op.body, &inputs, false).unwrap();
        let sum = AllReduce { groups: vec![vec![0, 1]].into(), combiner: Combiner::Sum };
        let sum = b.push1(sum, &[out[2]]).unwrap();
        op.body = Box::new(b.finish(vec![out[0], out[1], sum]));
        let op = Op::from(op);
        let run = |limits: [i32; 2]| {
            let values: Vec<Vec<Literal>> = (0..2)
                .map(|r| vec![number(0), number(limits[r]), Literal::new([2], vec![r as f32, 1.0])])
                .collect();
            let calls: Vec<RankCall> = values
                .iter()
                .map(|v| RankCall {
                    op: &op,
                    operands: v.iter().collect(),
                    results: v.iter().map(|x| x.ty.clone()).collect(),
                })
                .collect();
            op.evaluate_ranks(&calls)
        };
        let got = run([2, 2]).unwrap();
        assert_eq!(got[0][2].to_f64(), [8.0, 16.0]);
        assert_eq!(got[0], got[1]);
        assert_eq!(run([2, 3]).unwrap_err().code, "E133");
    }

    #[test]
    fn ranks_know_their_number_in_loops_and_branches() {
        // Rank r adds its number r times, and asks for it in a branch.
        let mut b = GraphBuilder::new("body");
        let scalar = TensorType::scalar(DType::U32);
        let (i, x) = (b.input("i", scalar.clone(), Role::Input), b.input("x", scalar.clone(), Role::Input));
        let one = b.scalar(DType::U32, 1.0);
        let rank = b.push1(PartitionId, &[]).unwrap();
        let (next, sum) = (b.add(i, one).unwrap(), b.add(x, rank).unwrap());
        let body = b.finish(vec![next, sum]);
        let mut b = GraphBuilder::new("condition");
        let (i, _) = (b.input("i", scalar.clone(), Role::Input), b.input("x", scalar.clone(), Role::Input));
        let rank = b.push1(PartitionId, &[]).unwrap();
        let more = b.compare(Direction::Lt, i, rank).unwrap();
        let condition = b.finish(vec![more]);
        let mut b = GraphBuilder::new("branch");
        let rank = b.push1(PartitionId, &[]).unwrap();
        let branch = b.finish(vec![rank]);

        let mut b = GraphBuilder::new("f");
        let zero = b.scalar(DType::U32, 0.0);
        let op = While { condition: Box::new(condition), body: Box::new(body) };
        let looped = b.push(op, &[zero, zero]).unwrap()[1];
        let index = b.scalar(DType::I32, 0.0);
        let branched = b.push1(Case { branches: vec![branch] }, &[index]).unwrap();
        let graph = b.finish(vec![looped, branched]);
        let got = interpret::evaluate_ranks(&[&graph; 3], &[vec![], vec![], vec![]]).unwrap();
        for (rank, got) in got.iter().enumerate() {
            assert_eq!(got[0].to_i64(), [(rank * rank) as i64]);
            assert_eq!(got[1].to_i64(), [rank as i64]);
        }
    }

    #[test]
    fn the_index_chooses_the_branch_and_the_last_takes_the_rest() {
        let branch = |factor| {
            let mut b = GraphBuilder::new("branch");
            let x = b.input("x", TensorType::scalar(DType::F32), Role::Input);
            let y = b.scale(x, factor).unwrap();
            b.finish(vec![y])
        };
        let op = Case { branches: vec![branch(1.0), branch(10.0), branch(100.0)] };
        for (index, expected) in [(0, 3.0), (1, 30.0), (2, 300.0), (3, 300.0), (-1, 300.0)] {
            let got = apply(op.clone(), &[number(index), Literal::scalar(DType::F32, 3.0)]);
            assert_eq!(got[0].to_f64(), [expected]);
        }
    }

    #[test]
    fn barriers_change_nothing() {
        let inputs = vec![random(1, &[2, 3]), random(2, &[4])];
        assert_eq!(apply(OptimizationBarrier, &inputs), inputs);
        check_rule(OptimizationBarrier, &inputs);
        check_gradient(OptimizationBarrier, inputs, &[true, false]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (scalar, x) = (TensorType::scalar(DType::I32), TensorType::new(DType::F32, [2]));
        let loop_code = |types: &[&TensorType]| doubling(1).infer(types).unwrap_err().code;
        assert_eq!(loop_code(&[&scalar, &scalar]), "E107");
        assert_eq!(loop_code(&[&scalar, &scalar, &scalar]), "E107");
        let case = Case {
            branches: vec![doubling(1).body.as_ref().clone(), doubling(1).condition.as_ref().clone()],
        };
        let case_code = |types: &[&TensorType]| case.infer(types).unwrap_err().code;
        assert_eq!(case_code(&[]), "E101");
        assert_eq!(case_code(&[&x]), "E103");
        assert_eq!(case_code(&[&x.with_dtype(DType::I32)]), "E104");
        assert_eq!(case_code(&[&scalar, &scalar, &scalar, &x]), "E107");
    }
}
