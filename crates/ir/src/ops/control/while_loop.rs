//! Loops.

use super::{disagreement, each_alone, graph_cost, holds_collective, shapes_of, total_bytes, unify};
use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, NodeId, ValueId};
use crate::interpret;
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, RankCall, TextForm, localise_same};
use crate::ops::reduce::{refused, region_signature};
use crate::rule::Rule;
use crate::text::{Capture, Kind, OpParser, OpPrinter, print_types};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Result};
use std::collections::BTreeSet;

/// Repeats `body` while `condition` holds; operands, body inputs and results have the same types.
///
/// Carried values must be replicated: a loop is sharded by unrolling it ([`While::unroll`]).
#[derive(Clone, PartialEq, Debug)]
pub struct While {
    /// From the carried values to an i1 scalar.
    pub condition: Box<Graph>,
    /// From the carried values to the carried values.
    pub body: Box<Graph>,
}

const WHILE: &str = "stablehlo.while";

/// The largest trip count of a loop that is unrolled.
const UNROLL_LIMIT: usize = 1024;

/// The largest element count of a value that is constant-folded, and the most nodes it depends on.
const FOLD_LIMIT: usize = 1024;

/// The most nodes that compute a counter and compare it: they are evaluated for every trip.
const COUNTER_LIMIT: usize = 64;

/// The nodes and inputs, by position, that the graph's `outputs` depend on.
pub(super) fn needs(graph: &Graph, outputs: &[ValueId]) -> (BTreeSet<usize>, BTreeSet<usize>) {
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

/// The subgraph that computes some of its outputs from some of its inputs, which must suffice.
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

/// A value, if it depends on constants only and all intermediate values are small.
fn constant_value(graph: &Graph, value: ValueId) -> Option<Literal> {
    let (nodes, inputs) = needs(graph, &[value]);
    if !inputs.is_empty() || nodes.len() > FOLD_LIMIT {
        return None;
    }
    let part = part(graph, &[value], &inputs);
    if is_small(&part) { interpret::evaluate(&part, &[]).ok()?.pop() } else { None }
}

/// Whether a graph has small values only, no regions, which might not end, and the same results on every rank.
fn is_small(graph: &Graph) -> bool {
    graph.nodes.iter().all(|node| {
        node.results.iter().chain(&node.operands).all(|&v| graph.ty(v).element_count() <= FOLD_LIMIT)
            && node.op.regions().is_empty()
            && !node.op.is_collective()
            && !matches!(node.op, Op::PartitionId(_))
    })
}

impl While {
    /// Unrolls the loop if constants alone determine the trip count: a counter that starts at a
    /// constant, steps by a constant and is compared with a constant, or anything else computed
    /// only from carried values that start as constants. `None` if the count depends on data, or
    /// exceeds 1024. Returns the carried values after the last trip.
    pub fn unroll(&self, builder: &mut GraphBuilder, operands: &[ValueId]) -> Result<Option<Vec<ValueId>>> {
        let Some(trips) = self.trip_count(builder.graph(), operands) else { return Ok(None) };
        let mut carried = operands.to_vec();
        for _ in 0..trips {
            carried = builder.inline(&self.body, &carried, false)?;
        }
        Ok(Some(carried))
    }

    /// The trip count, as [`While::unroll`] finds it; the operands are values of `graph`.
    pub fn trip_count(&self, graph: &Graph, operands: &[ValueId]) -> Option<usize> {
        // The carried values that the condition reads, and those that their next values depend on.
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
        let are_few = condition.nodes.len().max(step.nodes.len()) <= COUNTER_LIMIT;
        if !are_few || !is_small(&condition) || !is_small(&step) {
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
        Err(refused(WHILE, "a data-dependent trip count"))
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        let mut carried: Vec<Literal> = operands.iter().map(|&x| x.clone()).collect();
        while holds(&interpret::evaluate(&self.condition, &carried)?) {
            carried = interpret::evaluate(&self.body, &carried)?;
        }
        Ok(carried)
    }

    /// In lock step if the loop contains collectives.
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

pub(super) fn parse_while(op: &mut OpParser) -> Result<Vec<ValueId>> {
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
                .error("E146", "`stablehlo.while` needs one type for each value it carries")
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
        return Err(op.error("E140", "`stablehlo.while` must have two regions"));
    }
    op.check_operands()?;
    // Values of the surrounding graph that the regions use become carried values.
    let declared = op.operands.len();
    let regions = std::mem::take(&mut op.regions);
    let (mut graphs, captured) = unify(op, regions, declared, Vec::new())?;
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
