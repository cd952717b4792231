//! `chlo.scan`, read as its steps: a slice of each input, the body, and the outputs joined again.

use super::super::{Concatenate, Reshape, Slice};
use crate::graph::{Graph, ValueId};
use crate::text::{Capture, OpParser, print_results};
use crate::types::TensorType;
use partita_base::Result;

/// The most steps that are written out.
const STEP_LIMIT: usize = 1 << 12;

/// `chlo.scan(%0) inits(%1) dimension=0 attributes {is_reverse = true} {..} : (T, U) -> (V, U)`. The body
/// takes a slice of each input and the carried values, and yields a slice of each output and the carried
/// values.
pub(super) fn parse_scan(op: &mut OpParser) -> Result<Vec<ValueId>> {
    op.parser.mark('(').map_err(|_| op.error("E140", "`chlo.scan` must be written in its pretty form"))?;
    op.operands()?;
    op.parser.mark(')')?;
    let inputs = op.operands.len();
    op.parser.keyword("inits")?;
    op.parser.mark('(')?;
    op.operands()?;
    op.parser.mark(')')?;
    op.parser.keyword("dimension")?;
    op.parser.mark('=')?;
    let dim = op.index()?;
    if op.parser.at_word("attributes") {
        op.parser.advance();
        op.dictionary()?;
    }
    let body = op.parser.region(Capture::Constants)?.graph;
    op.types()?;
    op.check_operands()?;
    let types: Vec<TensorType> = (0..op.operands.len()).map(|i| op.operand_type(i).clone()).collect();
    let (sources, carried) = types.split_at(inputs);
    let extent = sources.first().and_then(|ty| ty.shape.get(dim)).copied();
    let extent = extent.filter(|&extent| sources.iter().all(|ty| ty.shape.get(dim) == Some(&extent)));
    let Some(extent) = extent.filter(|extent| (1..=STEP_LIMIT).contains(extent)) else {
        return Err(op
            .error("E144", "`chlo.scan` over these inputs is not supported")
            .expected(format!("inputs with one extent from 1 to {STEP_LIMIT} in dimension {dim}"))
            .found(print_results(sources)));
    };
    let piece = |ty: &TensorType| {
        let mut shape = ty.shape.clone();
        shape.remove(dim);
        ty.with_shape(shape)
    };
    let taken: Vec<TensorType> = sources.iter().map(piece).chain(carried.iter().cloned()).collect();
    let of = |values: &[ValueId]| -> Vec<TensorType> { values.iter().map(|&v| body.ty(v).clone()).collect() };
    let outputs = body.outputs.len().checked_sub(carried.len());
    let yielded = of(&body.outputs);
    let Some(outputs) = outputs.filter(|&n| of(&body.inputs) == taken && yielded[n..] == *carried) else {
        return Err(op
            .error("E146", "the body of `chlo.scan` does not fit its operands")
            .expected(format!("inputs {}", print_results(&taken)))
            .found(format!("{} and outputs {}", print_results(&of(&body.inputs)), print_results(&yielded))));
    };
    if yielded[..outputs].iter().any(|ty| dim > ty.rank()) {
        return Err(op.error("E146", "outputs of `chlo.scan` have no such dimension"));
    }
    op.parser.count_inlined(extent.saturating_mul(body.nodes.len() + 2 * taken.len()), op.at)?;
    let (pieces, carried) = steps(op, &body, inputs, dim, extent)?;
    let mut results = Vec::new();
    for pieces in pieces {
        results.extend(op.emit(Concatenate { dim }, &pieces)?);
    }
    results.extend(carried);
    let found: Vec<TensorType> = results.iter().map(|&v| op.parser.graph().ty(v).clone()).collect();
    if found != op.result_types {
        return Err(op
            .error("E146", "`chlo.scan` does not yield the declared types")
            .expected(print_results(&found))
            .found(print_results(&op.result_types)));
    }
    Ok(results)
}

/// Appends all steps. Returns the slices of each output in order, and the carried values after the last step.
fn steps(
    op: &mut OpParser,
    body: &Graph,
    inputs: usize,
    dim: usize,
    extent: usize,
) -> Result<(Vec<Vec<ValueId>>, Vec<ValueId>)> {
    let is_reverse = op.flag("is_reverse");
    let sources = op.operands[..inputs].to_vec();
    let mut carried = op.operands[inputs..].to_vec();
    let outputs = body.outputs.len() - carried.len();
    let mut pieces = vec![Vec::new(); outputs];
    for step in 0..extent {
        let at = if is_reverse { extent - 1 - step } else { step };
        let mut arguments = Vec::new();
        for &source in &sources {
            let shape = op.parser.graph().ty(source).shape.clone();
            let (mut start, mut limit) = (vec![0; shape.len()], shape.clone());
            (start[dim], limit[dim]) = (at, at + 1);
            let slice = op.emit(Slice { start, limit, stride: vec![1; shape.len()] }, &[source])?;
            let mut shape = shape;
            shape.remove(dim);
            arguments.extend(op.emit(Reshape { shape }, &slice)?);
        }
        arguments.extend(&carried);
        let results = op.parser.inline(body, &arguments);
        for (pieces, &result) in pieces.iter_mut().zip(&results[..outputs]) {
            let mut shape = op.parser.graph().ty(result).shape.clone();
            shape.insert(dim, 1);
            pieces.extend(op.emit(Reshape { shape }, &[result])?);
        }
        carried = results[outputs..].to_vec();
    }
    if is_reverse {
        pieces.iter_mut().for_each(|pieces| pieces.reverse());
    }
    Ok((pieces, carried))
}
