//! The text form of reductions.

use super::reducer::{Reducer, combiner_region, combining_op};
use super::{NAME, Reduce};
use crate::builder::identity;
use crate::graph::{Graph, ValueId};
use crate::op::{Op, Operation, TextForm};
use crate::ops::{Binary, BroadcastInDim, Constant, ParseOp};
use crate::text::{Capture, Kind, OpParser, OpPrinter, join, print_results, print_types};
use partita_base::Result;
use partita_mesh::Combiner;

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_reduce)];

impl TextForm for Reduce {
    /// `stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [1] : (T, U) -> V`; a body of its own
    /// follows as ` reducer(%a: T, %b: T) (%c: U, %d: U) {..}`, a pair for each input.
    fn print(&self, printer: &mut OpPrinter) {
        let count = printer.node.operands.len() / 2;
        let pairs: Vec<String> = (0..count)
            .map(|i| format!("({} init: {})", printer.operand(i), printer.operand(count + i)))
            .collect();
        printer.push(&format!("{NAME}{}", pairs.join(", ")));
        if let Reducer::Combiner(combiner) = self.reducer {
            printer.push(&format!(" applies {}", Binary { kind: combining_op(combiner) }.name()));
        }
        printer.push(&format!(" across dimensions = [{}]", join(&self.dims)));
        printer.attributes();
        let (operands, results) = (printer.operand_types(), printer.result_types());
        printer.push(&format!(" : ({}) -> {}", print_types(&operands), print_results(&results)));
        if let Reducer::Body(body) = &self.reducer {
            let mut names = printer.printer.input_names(body);
            let argument =
                |i: usize| format!("{}: {}", names[body.inputs[i].index()], body.ty(body.inputs[i]));
            let pairs: Vec<String> =
                (0..count).map(|i| format!("({}, {})", argument(i), argument(count + i))).collect();
            printer.push("\n");
            printer.printer.line();
            printer.push(&format!(" reducer{} {{\n", pairs.join(" ")));
            printer.statements(body, &mut names, "stablehlo.return");
            printer.push("}");
        }
    }
}

fn parse_reduce(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let (dims, reducer);
    if op.generic()? {
        dims = op.indices_of("dimensions")?;
        reducer = Reducer::from_region(op.region(0)?);
    } else {
        let mut initial = Vec::new();
        loop {
            op.parser.mark('(')?;
            let input = op.parser.operand()?;
            op.operands.push(input);
            op.parser.keyword("init")?;
            op.parser.mark(':')?;
            initial.push(op.parser.operand()?);
            op.parser.mark(')')?;
            if !op.parser.eat(',') {
                break;
            }
        }
        op.operands.extend(initial);
        let mut applied = None;
        if op.parser.at_word("applies") {
            op.parser.advance();
            let kind = Combiner::ALL.into_iter().find(|&c| {
                op.parser.kind() == Kind::Word && op.parser.text() == Binary { kind: combining_op(c) }.name()
            });
            let kind = kind.ok_or_else(|| op.parser.unexpected("a combiner such as `stablehlo.add`"))?;
            op.parser.advance();
            applied = Some(kind);
        }
        op.parser.keyword("across")?;
        op.parser.keyword("dimensions")?;
        op.parser.mark('=')?;
        dims = op.index_list()?;
        op.types()?;
        reducer = match applied {
            Some(combiner) => Reducer::from_region(combiner_region(combiner, op.operand_type(0).dtype)),
            None => Reducer::from_region(parse_reducer(op)?),
        };
    }
    op.at_least(2)?;
    if op.operands.len() % 2 == 1 {
        return Err(op.error("E146", "each input of `stablehlo.reduce` needs an initial value"));
    }
    let (input, initial) = (op.operands[0], op.operands[op.operands.len() / 2]);
    match reducer {
        Reducer::Combiner(combiner) if op.operands.len() == 2 => {
            let start = starts_from_identity(op.parser.graph(), initial, combiner);
            if start {
                return op.finish(Reduce { dims, reducer: Reducer::Combiner(combiner) });
            }
            // Only reductions that start from the identity may be split: any other initial value is
            // combined afterwards.
            op.check_operands()?;
            let dtype = op.operand_type(0).dtype;
            Reduce { dims: dims.clone(), reducer: Reducer::Combiner(combiner) }
                .infer(&[op.operand_type(0), op.operand_type(1)])?;
            let value = identity(combiner, dtype);
            let neutral = op.emit(Constant { value }, &[])?[0];
            let reduced =
                op.emit(Reduce { dims, reducer: Reducer::Combiner(combiner) }, &[input, neutral])?[0];
            let shape = op.parser.graph().ty(reduced).shape.clone();
            let initial = if shape.is_empty() {
                initial
            } else {
                op.emit(BroadcastInDim { shape, dims: Vec::new() }, &[initial])?[0]
            };
            op.emit(Binary { kind: combining_op(combiner) }, &[reduced, initial])
        }
        reducer => op.finish(Reduce { dims, reducer }),
    }
}

/// `reducer(%a: T, %b: T) (%c: U, %d: U) {..}`: inputs are reordered to accumulators, then elements.
fn parse_reducer(op: &mut OpParser) -> Result<Graph> {
    op.parser.keyword("reducer")?;
    op.parser.push_frame(Capture::Constants);
    let (mut accumulators, mut elements) = (Vec::new(), Vec::new());
    while op.parser.eat('(') {
        accumulators.push(op.parser.block_argument()?);
        op.parser.optional_location()?;
        op.parser.mark(',')?;
        elements.push(op.parser.block_argument()?);
        op.parser.optional_location()?;
        op.parser.mark(')')?;
    }
    op.parser.mark('{')?;
    let mut graph = op.parser.region_rest()?.graph;
    graph.inputs = accumulators.into_iter().chain(elements).collect();
    Ok(crate::text::canonical(&graph))
}

/// Whether the value is the combiner's identity; zero of either sign starts a sum.
fn starts_from_identity(graph: &Graph, mut value: ValueId, combiner: Combiner) -> bool {
    while let Some((node, _)) = graph.value(value).definition {
        match &graph.node(node).op {
            Op::Constant(constant) => {
                let literal = &constant.value;
                return literal.data.len() == 1
                    && literal.to_f64() == identity(combiner, literal.ty.dtype).to_f64();
            }
            Op::BroadcastInDim(_) | Op::Reshape(_) => value = graph.node(node).operands[0],
            _ => return false,
        }
    }
    false
}
