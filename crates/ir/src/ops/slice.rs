//! Static slices, padding and concatenation.

use super::checks::{movement_cost, one_per_dim, operand_count, same_dtype, shapes, sizes};
use super::shape::rearranged;
use crate::graph::{Graph, Node, ValueId};
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, localise_same};
use crate::rule::{FactorKind, Rule};
use crate::traits::{Traits, ViewMap};
use crate::types::TensorType;
use partita_base::{Diagnostic, Result};

/// `result[i] = operand[start + i * stride]` for `start <= . < limit`.
#[derive(Clone, PartialEq, Debug)]
pub struct Slice {
    /// First index of each dimension.
    pub start: Vec<usize>,
    /// One past the last index of each dimension.
    pub limit: Vec<usize>,
    /// Step of each dimension, at least 1.
    pub stride: Vec<usize>,
}

/// Concatenates the operands along a dimension.
#[derive(Clone, PartialEq, Debug)]
pub struct Concatenate {
    /// The dimension.
    pub dim: usize,
}

/// Adds `low` and `high` elements of the padding value (operand 1) at the edges, `interior` ones
/// between elements; negative edges remove elements.
#[derive(Clone, PartialEq, Debug)]
pub struct Pad {
    /// Elements added before each dimension.
    pub low: Vec<i64>,
    /// Elements added after each dimension.
    pub high: Vec<i64>,
    /// Elements added between neighbours of each dimension.
    pub interior: Vec<usize>,
}

impl Slice {
    /// The slice that a dynamic slice of `sizes` at `start` reads from a tensor of `shape`: starts
    /// are clamped so that it fits.
    pub fn clamped(start: &[i64], sizes: &[usize], shape: &[usize]) -> Slice {
        let fitting = start.iter().zip(shape).zip(sizes);
        let start: Vec<usize> =
            fitting.map(|((&s, &extent), &size)| s.clamp(0, (extent - size) as i64) as usize).collect();
        let limit = start.iter().zip(sizes).map(|(start, size)| start + size).collect();
        Slice { stride: vec![1; start.len()], start, limit }
    }

    /// Extent of the result along a dimension.
    fn extent(&self, dim: usize) -> usize {
        (self.limit[dim] - self.start[dim]).div_ceil(self.stride[dim])
    }
}

/// The rule of an op between tensors of one rank: dimensions in `pass` correspond, the others
/// cannot be sharded.
fn rule_of_windows(operands: &[&TensorType], result: &TensorType, pass: impl Fn(usize) -> bool) -> Rule {
    let mut rule = Rule { operands: vec![Vec::new(); operands.len()], ..Rule::default() };
    let mut dims = Vec::new();
    for (dim, &extent) in result.shape.iter().enumerate() {
        let shared = pass(dim).then(|| rule.factor(extent, FactorKind::Pass));
        for (number, operand) in operands.iter().enumerate() {
            let own = shared.unwrap_or_else(|| rule.factor(operand.shape[dim], FactorKind::Shift));
            rule.operands[number].push(vec![own]);
        }
        dims.push(vec![shared.unwrap_or_else(|| rule.factor(extent, FactorKind::Whole))]);
    }
    rule.results = vec![dims];
    rule
}

impl Slice {
    /// Start, limit and stride of each dimension; `None` if it is taken in full.
    fn cuts(&self, operand: &TensorType) -> Vec<Option<(usize, usize, usize)>> {
        let cut = |(dim, &extent): (usize, &usize)| {
            let cut = (self.start[dim], self.limit[dim], self.stride[dim]);
            (cut != (0, extent, 1)).then_some(cut)
        };
        operand.shape.iter().enumerate().map(cut).collect()
    }
}

impl Operation for Slice {
    fn name(&self) -> &str {
        "stablehlo.slice"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 1)?;
        let operand = operands[0];
        one_per_dim(self.name(), "start_indices", &self.start, operand.rank())?;
        one_per_dim(self.name(), "limit_indices", &self.limit, operand.rank())?;
        one_per_dim(self.name(), "strides", &self.stride, operand.rank())?;
        for (dim, &extent) in operand.shape.iter().enumerate() {
            let (start, limit, stride) = (self.start[dim], self.limit[dim], self.stride[dim]);
            sizes(
                start <= limit && limit <= extent && stride >= 1,
                format!("the window of `{}` does not fit dimension {dim} of {operand}", self.name()),
                format!("start <= limit <= {extent} and stride >= 1"),
                format!("{start}:{limit}:{stride}"),
            )?;
        }
        let shape: Vec<usize> = (0..operand.rank()).map(|dim| self.extent(dim)).collect();
        Ok(vec![operand.with_shape(shape)])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let full = |dim: usize| results[0].shape[dim] == operands[0].shape[dim];
        rule_of_windows(operands, results[0], full).transparent_in(&[0])
    }

    fn cost(&self, _operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        // Only the window is read.
        movement_cost(results, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let b = &mut *context.builder;
        let operand = b.ty(context.operands[0]).clone();
        let differentiable = context.wanted[0] && operand.dtype.is_float();
        let Some(g) = context.cotangents[0].filter(|_| differentiable) else {
            return Ok(vec![None]);
        };
        let covered = |dim: usize| match self.extent(dim) {
            0 => 0,
            extent => (extent - 1) * self.stride[dim] + 1,
        };
        let rest = |dim: usize| (operand.shape[dim] - self.start[dim] - covered(dim)) as i64;
        let pad = Pad {
            low: self.start.iter().map(|&start| start as i64).collect(),
            high: (0..operand.rank()).map(rest).collect(),
            interior: self.stride.iter().map(|stride| stride - 1).collect(),
        };
        let zero = b.scalar(operand.dtype, 0.0);
        Ok(vec![Some(b.push1(pad, &[g, zero])?)])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let source = |index: &[usize], dim: usize| self.start[dim] + index[dim] * self.stride[dim];
        Ok(vec![rearranged(operands[0], &results[0].shape, source)])
    }

    /// Dimensions taken in full end at the end of the shard; the others are replicated.
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::View(ViewMap::Slice { start: &self.start, stride: &self.stride })
    }

    fn is_alike(&self, own: &[&TensorType], other: &Op, others: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::Slice(other) if self.cuts(own[0]) == other.cuts(others[0])))
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let (whole, local) = (context.global_result(0).shape.clone(), context.local_result(0).shape);
        let extents = context.global_operand(0).shape.clone();
        let mut slice = self.clone();
        for dim in (0..local.len()).filter(|&dim| whole[dim] == extents[dim]) {
            (slice.limit[dim], slice.stride[dim]) = (local[dim], 1);
        }
        localise_same(slice, context, 1)
    }
}

impl Operation for Concatenate {
    fn name(&self) -> &str {
        "stablehlo.concatenate"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        let Some(first) = operands.first() else {
            return Err(Diagnostic::new("E101", format!("`{}` needs an operand", self.name()))
                .expected("at least 1")
                .found("0"));
        };
        if self.dim >= first.rank() {
            return Err(Diagnostic::new("E105", format!("`{}` along an unknown dimension", self.name()))
                .expected(format!("below {}, the rank of {first}", first.rank()))
                .found(self.dim.to_string()));
        }
        let mut shape = first.shape.clone();
        shape[self.dim] = 0;
        for operand in operands {
            same_dtype(self.name(), first, operand)?;
            let fits = operand.rank() == first.rank()
                && (0..first.rank()).all(|dim| dim == self.dim || operand.shape[dim] == first.shape[dim]);
            shapes(
                fits,
                format!("operands of `{}` may differ along dimension {} only", self.name(), self.dim),
                first.to_string(),
                operand.to_string(),
            )?;
            shape[self.dim] += operand.shape[self.dim];
        }
        Ok(vec![first.with_shape(shape)])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let all: Vec<usize> = (0..operands.len()).collect();
        rule_of_windows(operands, results[0], |dim| dim != self.dim).transparent_in(&all)
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement_cost(operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0].filter(|&g| b.ty(g).dtype.is_float()) else {
            return Ok(vec![None; context.operands.len()]);
        };
        let mut start = 0;
        let mut cotangents = Vec::new();
        for (&operand, &wanted) in context.operands.iter().zip(context.wanted) {
            let limit = start + b.ty(operand).shape[self.dim];
            cotangents.push(if wanted { Some(b.slice_dim(g, self.dim, start, limit)?) } else { None });
            start = limit;
        }
        Ok(cotangents)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let mut result = Literal::zeros(&results[0]);
        let mut offset = vec![0; results[0].rank()];
        for operand in operands {
            result.set_window(&offset, operand);
            offset[self.dim] += operand.ty.shape[self.dim];
        }
        Ok(vec![result])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

impl Pad {
    /// Extent of the result along a dimension of this extent; negative if more is removed than
    /// exists.
    fn extent(&self, dim: usize, extent: usize) -> i64 {
        let between = extent.saturating_sub(1) * self.interior[dim];
        self.low[dim] + self.high[dim] + (extent + between) as i64
    }
}

impl Operation for Pad {
    fn name(&self) -> &str {
        "stablehlo.pad"
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(self.name(), operands, 2)?;
        let (operand, value) = (operands[0], operands[1]);
        same_dtype(self.name(), operand, value)?;
        shapes(
            value.rank() == 0,
            format!("the padding value of `{}` must be a scalar", self.name()),
            TensorType::scalar(operand.dtype).to_string(),
            value.to_string(),
        )?;
        one_per_dim(self.name(), "edge_padding_low", &self.low, operand.rank())?;
        one_per_dim(self.name(), "edge_padding_high", &self.high, operand.rank())?;
        one_per_dim(self.name(), "interior_padding", &self.interior, operand.rank())?;
        let mut shape = Vec::new();
        for (dim, &extent) in operand.shape.iter().enumerate() {
            let padded = self.extent(dim, extent);
            sizes(
                padded >= 0,
                format!("`{}` removes more of dimension {dim} than {operand} has", self.name()),
                "an extent of at least 0",
                padded.to_string(),
            )?;
            shape.push(padded as usize);
        }
        Ok(vec![operand.with_shape(shape)])
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let untouched = |dim: usize| self.low[dim] == 0 && self.high[dim] == 0 && self.interior[dim] == 0;
        let mut rule = rule_of_windows(&operands[..1], results[0], untouched);
        rule.operands.push(Vec::new());
        rule
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        movement_cost(operands, results)
    }

    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0].filter(|&g| b.ty(g).dtype.is_float()) else {
            return Ok(vec![None, None]);
        };
        if !context.wanted[0] && !context.wanted[1] {
            return Ok(vec![None, None]);
        }
        // Undo the edges (removed elements get zero), then pick the elements between the interior
        // padding.
        let zero = b.scalar(b.ty(g).dtype, 0.0);
        let edges = Pad {
            low: self.low.iter().map(|low| -low).collect(),
            high: self.high.iter().map(|high| -high).collect(),
            interior: vec![0; self.low.len()],
        };
        let mut kept = g;
        if edges.low.iter().chain(&edges.high).any(|&edge| edge != 0) {
            kept = b.push1(edges, &[g, zero])?;
        }
        if self.interior.iter().any(|&interior| interior != 0) {
            let (start, limit) = (vec![0; self.low.len()], b.shape(kept));
            let stride = self.interior.iter().map(|interior| interior + 1).collect();
            kept = b.push1(Slice { start, limit, stride }, &[kept])?;
        }
        let mut cotangents = vec![context.wanted[0].then_some(kept), None];
        if context.wanted[1] {
            let dims: Vec<usize> = (0..self.low.len()).collect();
            let (total, of_operand) = (b.reduce_sum(g, &dims)?, b.reduce_sum(kept, &dims)?);
            cotangents[1] = Some(b.subtract(total, of_operand)?);
        }
        Ok(cotangents)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (x, value) = (operands[0], operands[1]);
        let count = results[0].element_count();
        let mut result =
            Literal { ty: results[0].clone(), data: value.data.pick(std::iter::repeat_n(0, count)) };
        let strides = results[0].strides();
        for (from, index) in indices(&x.ty.shape).enumerate() {
            let place = |dim: usize| self.low[dim] + (index[dim] * (self.interior[dim] + 1)) as i64;
            let inside = |dim: usize| (0..results[0].shape[dim] as i64).contains(&place(dim));
            if (0..index.len()).all(inside) {
                let to = (0..index.len()).map(|dim| place(dim) as usize * strides[dim]).sum();
                result.data.put(to, &x.data, from);
            }
        }
        Ok(vec![result])
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        localise_same(self.clone(), context, 1)
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{Kind, OpParser, OpPrinter, join};

/// The ops of this file by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[
    ("stablehlo.slice", parse_slice),
    ("stablehlo.concatenate", parse_concatenate),
    ("stablehlo.pad", parse_pad),
    ("stablehlo.dynamic_pad", parse_dynamic_pad),
    ("stablehlo.real_dynamic_slice", parse_real_dynamic_slice),
];

impl TextForm for Slice {
    /// `stablehlo.slice %0 [0:12:2, 0:16] : (T) -> U`.
    fn print(&self, printer: &mut OpPrinter) {
        let ranges: Vec<String> = (0..self.start.len())
            .map(|d| {
                let step = if self.stride[d] == 1 { String::new() } else { format!(":{}", self.stride[d]) };
                format!("{}:{}{step}", self.start[d], self.limit[d])
            })
            .collect();
        printer.pretty("stablehlo.slice", &format!(" [{}]", join(&ranges)));
    }
}

fn parse_slice(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let slice = if op.generic()? {
        Slice {
            start: op.indices_of("start_indices")?,
            limit: op.indices_of("limit_indices")?,
            stride: op.indices_of("strides")?,
        }
    } else {
        let mut slice = Slice { start: Vec::new(), limit: Vec::new(), stride: Vec::new() };
        op.operands()?;
        op.parser.mark('[')?;
        while op.parser.kind() == Kind::Number {
            slice.start.push(op.index()?);
            op.parser.mark(':')?;
            slice.limit.push(op.index()?);
            slice.stride.push(if op.parser.eat(':') { op.index()? } else { 1 });
            if !op.parser.eat(',') {
                break;
            }
        }
        op.parser.mark(']')?;
        op.types()?;
        slice
    };
    op.arity(1)?;
    op.finish(slice)
}

impl TextForm for Concatenate {
    /// `stablehlo.concatenate %0, %1, dim = 1 : (T, U) -> V`.
    fn print(&self, printer: &mut OpPrinter) {
        printer.pretty("stablehlo.concatenate", &format!(", dim = {}", self.dim));
    }
}

fn parse_concatenate(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let dim = if op.generic()? {
        op.index_of("dimension")?
    } else {
        op.operands()?;
        op.clause("dim")?;
        let dim = op.index()?;
        op.types()?;
        dim
    };
    op.at_least(1)?;
    op.finish(Concatenate { dim })
}

impl TextForm for Pad {
    /// `stablehlo.pad %0, %1, low = [..], high = [..], interior = [..] : (T, U) -> V`.
    fn print(&self, printer: &mut OpPrinter) {
        let (low, high, interior) = (join(&self.low), join(&self.high), join(&self.interior));
        printer
            .pretty("stablehlo.pad", &format!(", low = [{low}], high = [{high}], interior = [{interior}]"));
    }
}

fn parse_pad(op: &mut OpParser) -> Result<Vec<ValueId>> {
    let pad = if op.generic()? {
        Pad {
            low: op.integers_of("edge_padding_low")?,
            high: op.integers_of("edge_padding_high")?,
            interior: op.indices_of("interior_padding")?,
        }
    } else {
        op.operands()?;
        op.clause("low")?;
        let low = op.parser.integer_list()?;
        op.clause("high")?;
        let high = op.parser.integer_list()?;
        op.clause("interior")?;
        let interior = op.index_list()?;
        op.types()?;
        Pad { low, high, interior }
    };
    op.arity(2)?;
    op.finish(pad)
}

/// Its paddings, the last operands, must be known.
fn parse_dynamic_pad(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.arity(5)?;
    op.check_operands()?;
    let (interior, high, low) = (op.constant_integers(4)?, op.constant_integers(3)?, op.constant_integers(2)?);
    let interior = interior.into_iter().map(|size| usize::try_from(size).ok()).collect::<Option<_>>();
    let interior = interior.ok_or_else(|| op.error("E147", "interior padding may not be negative"))?;
    op.finish(Pad { low, high, interior })
}

/// Its limits, the last operands, must be known.
fn parse_real_dynamic_slice(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        op.operands()?;
        op.types()?;
    }
    op.arity(4)?;
    op.check_operands()?;
    let mut lists = Vec::new();
    for number in [3, 2, 1] {
        let list = op.constant_integers(number)?.into_iter().map(|v| usize::try_from(v).ok());
        let list = list.collect::<Option<Vec<usize>>>();
        lists.push(list.ok_or_else(|| op.error("E147", "limits of a slice may not be negative"))?);
    }
    let [stride, limit, start] = <[Vec<usize>; 3]>::try_from(lists).expect("three lists");
    op.finish(Slice { start, limit, stride })
}

#[cfg(test)]
mod tests;
