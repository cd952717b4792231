//! A barrier for layouts: the identity through which they propagate in one direction or not at all (`sdy`).
//!
//! Propagation asks [`PropagationBarrier::forward`] and [`PropagationBarrier::backward`]; on the shards of a rank nothing is
//! left of the op, as of a sharding constraint.

use super::ParseOp;
use super::checks::operand_count;
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Operation, TextForm};
use crate::rule::Rule;
use crate::text::{Kind, OpParser, OpPrinter};
use crate::traits::{Traits, ViewMap};
use crate::types::TensorType;
use partita_base::Result;

/// The identity. Its operand and its result may have different layouts.
#[derive(Clone, PartialEq, Debug)]
pub struct PropagationBarrier {
    /// Whether layouts propagate from the operand to the result.
    pub forward: bool,
    /// Whether layouts propagate from the result to the operand.
    pub backward: bool,
}

const NAME: &str = "sdy.propagation_barrier";

/// The directions by name: forward, backward.
const DIRECTIONS: [(&str, (bool, bool)); 4] =
    [("NONE", (false, false)), ("FORWARD", (true, false)), ("BACKWARD", (false, true)), ("BOTH", (true, true))];

impl Operation for PropagationBarrier {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 1)?;
        Ok(vec![operands[0].clone()])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        Rule::pointwise(&operands[0].shape, 1, 1).transparent_in(&[0])
    }

    fn cost(&self, _: &[&TensorType], _: &[&TensorType]) -> Cost {
        Cost::default()
    }

    /// The cotangent flows the other way, so its barrier is turned.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let (Some(cotangent), true) = (context.cotangents[0], context.wanted[0]) else { return Ok(vec![None]) };
        let turned = PropagationBarrier { forward: self.backward, backward: self.forward };
        Ok(vec![Some(context.builder.push1(turned, &[cotangent])?)])
    }

    fn evaluate(&self, operands: &[&Literal], _: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![operands[0].clone()])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Identity)
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        Ok(context.operands().to_vec())
    }
}

// ---- text ----

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_propagation_barrier)];

impl TextForm for PropagationBarrier {
    /// `sdy.propagation_barrier %0 allowed_direction=FORWARD : T`.
    fn print(&self, printer: &mut OpPrinter) {
        let own = (self.forward, self.backward);
        let direction = DIRECTIONS.iter().find(|(_, flags)| *flags == own).map_or("NONE", |(name, _)| name);
        printer.pretty_same_type(NAME, &format!(" allowed_direction={direction}"));
    }
}

fn parse_propagation_barrier(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if op.parser.kind() == Kind::Mark('(') {
        return Err(op.error("E140", format!("`{NAME}` must be written in its pretty form")));
    }
    op.operands()?;
    op.parser.keyword("allowed_direction")?;
    op.parser.mark('=')?;
    let found = DIRECTIONS.iter().find(|(name, _)| *name == op.parser.text());
    let (forward, backward) =
        found.ok_or_else(|| op.parser.unexpected("a direction: NONE, FORWARD, BACKWARD, BOTH"))?.1;
    op.parser.advance();
    op.types()?;
    op.arity(1)?;
    op.finish(PropagationBarrier { forward, backward })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, check_gradient, check_rule, random};

    #[test]
    fn numbers_pass_in_every_direction() {
        for (_, (forward, backward)) in DIRECTIONS {
            let op = PropagationBarrier { forward, backward };
            let x = random(3, &[4, 2]);
            assert_eq!(apply(op.clone(), std::slice::from_ref(&x))[0].to_f64(), x.to_f64());
            check_rule(op.clone(), std::slice::from_ref(&x));
            check_gradient(op, vec![x], &[true]);
        }
    }
}
