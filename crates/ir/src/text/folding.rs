//! Operands that must be known when a program is read: sizes and paddings of dynamic ops.

use super::op_parser::OpParser;
use crate::graph::{Graph, ValueId};
use crate::literal::Literal;
use crate::op::{Op, Operation};
use partita_base::Result;
use std::collections::HashMap;

/// The most elements of a value on the way to a known operand, and the most ops.
const ELEMENT_LIMIT: usize = 1 << 12;
const NODE_LIMIT: usize = 256;

impl OpParser<'_, '_> {
    /// The value of an operand that follows from constants alone, taken from the operands. E144 if it
    /// does not: then the program has dynamic shapes.
    pub fn constant_operand(&mut self, number: usize) -> Result<Literal> {
        let value = self.operands[number];
        let mut known = HashMap::new();
        let found = evaluated(self.parser.graph(), value, &mut known)?;
        self.drop_operand(number);
        found.ok_or_else(|| {
            self.error(
                "E144",
                format!("operand {number} of `{}` is not known when the program is read", self.name),
            )
            .expected("a value computed from constants")
            .help("lower the program with concrete shapes")
        })
    }

    /// A known operand as integers.
    pub fn constant_integers(&mut self, number: usize) -> Result<Vec<i64>> {
        let literal = self.constant_operand(number)?;
        let list = literal.to_i64();
        match list.iter().any(|v| v.unsigned_abs() > 1 << 40) {
            true => {
                Err(self.error("E149", format!("operand {number} of `{}` has too large a number", self.name)))
            }
            false => Ok(list),
        }
    }

    /// Removes an operand whose value the result type already says.
    pub fn drop_operand(&mut self, number: usize) {
        self.operands.remove(number);
        if let Some(types) = self.operand_types.as_mut().filter(|types| number < types.len()) {
            types.remove(number);
        }
    }
}

/// The value, if it follows from constants by a few small ops.
fn evaluated(
    graph: &Graph,
    value: ValueId,
    known: &mut HashMap<ValueId, Literal>,
) -> Result<Option<Literal>> {
    // The ops it depends on, by a stack: chains may be long.
    let mut order = Vec::new();
    let mut open = vec![value];
    while let Some(next) = open.pop() {
        let Some((id, _)) = graph.value(next).definition else { return Ok(None) };
        let node = graph.node(id);
        let is_small = graph.ty(next).element_count() <= ELEMENT_LIMIT;
        let by_rank =
            node.op.is_collective() || node.op.is_by_rank() || matches!(node.op, Op::ManualComputation(_));
        if !is_small || by_rank || order.len() == NODE_LIMIT {
            return Ok(None);
        }
        order.push(id);
        open.extend(&node.operands);
    }
    order.sort_by_key(|id| id.index());
    order.dedup();
    for id in order {
        let node = graph.node(id);
        let operands: Vec<&Literal> = node.operands.iter().map(|v| &known[v]).collect();
        let types: Vec<_> = graph.result_types(node).into_iter().cloned().collect();
        for (&result, literal) in node.results.iter().zip(node.op.evaluate(&operands, &types)?) {
            known.insert(result, literal);
        }
    }
    Ok(known.remove(&value))
}
