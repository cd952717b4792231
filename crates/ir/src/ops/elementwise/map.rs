//! `stablehlo.map`: a body of elementwise ops over scalars, read as the same ops over whole tensors.

use super::super::{BroadcastInDim, ParseOp};
use crate::graph::ValueId;
use crate::op::{Op, Operation};
use crate::text::OpParser;
use partita_base::Result;

/// The op by name.
pub(super) const PARSERS: [(&str, ParseOp); 1] = [("stablehlo.map", parse_map)];

fn parse_map(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", "`stablehlo.map` must be written in the generic form"));
    }
    op.at_least(1)?;
    op.check_operands()?;
    let (body, shape) = (op.region(0)?, op.operand_type(0).shape.clone());
    let operands = op.operands.clone();
    let fits = body.inputs.len() == operands.len()
        && operands.iter().zip(&body.inputs).enumerate().all(|(number, (_, &input))| {
            *op.operand_type(number) == body.ty(input).with_shape(shape.clone()) && body.ty(input).rank() == 0
        });
    if !fits || body.outputs.len() != 1 {
        return Err(op.error("E146", "the body of `stablehlo.map` does not fit its operands"));
    }
    let mut whole: Vec<Option<ValueId>> = vec![None; body.values.len()];
    body.inputs.iter().zip(operands).for_each(|(input, operand)| whole[input.index()] = Some(operand));
    for node in &body.nodes {
        let elementwise = matches!(
            node.op,
            Op::Unary(_)
                | Op::Binary(_)
                | Op::Special(_)
                | Op::Compare(_)
                | Op::Select(_)
                | Op::Clamp(_)
                | Op::Convert(_)
                | Op::ReducePrecision(_)
        );
        let operands: Vec<ValueId> =
            node.operands.iter().map(|v| whole[v.index()].expect("nodes stand in execution order")).collect();
        let results = match &node.op {
            Op::Constant(constant) if constant.value.ty.rank() == 0 => {
                let one = op.emit(node.op.clone(), &[])?;
                op.emit(BroadcastInDim { shape: shape.clone(), dims: Vec::new() }, &one)?
            }
            other if elementwise => op.emit(other.clone(), &operands)?,
            other => {
                return Err(op
                    .error("E144", format!("`{}` in the body of `stablehlo.map` is not supported", other.name()))
                    .expected("elementwise ops over scalars"));
            }
        };
        node.results.iter().zip(results).for_each(|(old, new)| whole[old.index()] = Some(new));
    }
    let result = whole[body.outputs[0].index()].expect("outputs are defined");
    let found = op.parser.graph().ty(result).clone();
    if op.result_types[..] != [found.clone()] {
        return Err(op
            .error("E146", "`stablehlo.map` does not yield the declared type")
            .expected(found.to_string())
            .found(crate::text::print_results(&op.result_types)));
    }
    Ok(vec![result])
}
