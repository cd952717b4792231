//! Scattering into the chosen element of each window: the gradient of pooling.

use super::halo::{self, Part};
use super::{DynamicSlice, ParseOp};
use super::checks::{one_per_dim, operand_count, same_dtype, shapes, sizes};
use super::reduce::{Reducer, element, refused, region_signature};
use super::reduce_window::{dilated, print_padding};
use crate::graph::{Graph, Node, ValueId};
use crate::interpret;
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation, TextForm};
use crate::ops::Direction;
use crate::rule::{FactorKind, Rule, Window};
use crate::text::{OpParser, OpPrinter, print_array};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Result};
use partita_mesh::Combiner;

/// In each window of the first operand one element is selected, and the element of the source that
/// belongs to the window is combined into the result at its place. Operands: operand, source, initial
/// value of all elements of the result, a scalar.
///
/// Windows do not select padding. `select` says of two elements whether the first stays selected.
#[derive(Clone, PartialEq, Debug)]
pub struct SelectAndScatter {
    /// Sizes of the window.
    pub window: Vec<usize>,
    /// Distances of windows.
    pub strides: Vec<usize>,
    /// (low, high) padding of each dimension.
    pub padding: Vec<(i64, i64)>,
    /// A graph from two scalars to an i1 scalar.
    pub select: Box<Graph>,
    /// How source elements are combined into the result.
    pub scatter: Reducer,
}

const NAME: &str = "stablehlo.select_and_scatter";

impl SelectAndScatter {
    /// Extent of a dimension of the source.
    fn windows(&self, dim: usize, size: usize) -> usize {
        let (low, high) = self.padding[dim];
        let padded = low + dilated(size, 1) as i64 + high;
        if padded < self.window[dim] as i64 {
            0
        } else {
            (padded as usize - self.window[dim]) / self.strides[dim] + 1
        }
    }

    /// Whether windows along a dimension are single elements, one per element.
    fn is_pointwise(&self, dim: usize) -> bool {
        self.window[dim] == 1 && self.strides[dim] == 1 && self.padding[dim] == (0, 0)
    }

    /// The relation, if `select` is a single comparison of its arguments in their usual order.
    pub fn relation(&self) -> Option<Direction> {
        let ([node], [a, b], [output]) = (&self.select.nodes[..], &self.select.inputs[..], &self.select.outputs[..])
        else {
            return None;
        };
        let Op::Compare(compare) = &node.op else { return None };
        let is_plain = compare.compare_type.is_none_or(|kind| kind != super::CompareType::TotalOrder);
        (is_plain && node.operands == [*a, *b] && node.results == [*output]).then_some(compare.direction)
    }

    /// How windows move along a dimension; `None` if its shards cannot be computed apart: the selection has no number that
    /// is never selected, or windows leave elements out.
    fn moving(&self, dim: usize, operand: &TensorType) -> Option<Window> {
        let is_ordered = matches!(
            self.relation(),
            Some(Direction::Ge | Direction::Gt | Direction::Le | Direction::Lt)
        );
        let sums = matches!(self.scatter, Reducer::Combiner(Combiner::Sum));
        let moving = Window {
            input: operand.shape[dim],
            stride: self.strides[dim],
            low: self.padding[dim].0,
            reach: self.window[dim] - 1,
            input_dilation: 1,
            combiner: None,
        };
        let fits = is_ordered && sums && operand.dtype.is_float() && self.strides[dim] <= self.window[dim];
        (fits && moving.is_local()).then_some(moving)
    }

    /// The number that no other is selected against: the least for maxima, the greatest for minima.
    fn worst(&self) -> f64 {
        match self.relation() {
            Some(Direction::Le | Direction::Lt) => f64::INFINITY,
            _ => f64::NEG_INFINITY,
        }
    }

    /// Whether the element at `kept` stays selected against the one at `other`.
    fn keeps(&self, x: &Literal, kept: usize, other: usize) -> Result<bool> {
        let arguments = [element(x, kept), element(x, other)];
        Ok(interpret::evaluate(&self.select, &arguments)?[0].to_i64() == [1])
    }

    /// The selected element of each window, in order; `None` for windows of padding only.
    fn selected(&self, x: &Literal, windows: &[usize]) -> Result<Vec<Option<usize>>> {
        let strides = x.ty.strides();
        let values = x.to_f64();
        let relation = self.relation().filter(|_| x.ty.dtype.is_float());
        let mut selected = Vec::new();
        for place in indices(windows) {
            let mut best = None;
            for entry in indices(&self.window) {
                let at = (0..place.len()).try_fold(0, |at, dim| {
                    let own = (place[dim] * self.strides[dim] + entry[dim]) as i64 - self.padding[dim].0;
                    let own = usize::try_from(own).ok().filter(|&own| own < x.ty.shape[dim])?;
                    Some(at + own * strides[dim])
                });
                let Some(at) = at else { continue };
                let stays = match (best, relation) {
                    (None, _) => false,
                    (Some(best), Some(relation)) => relation.holds(f64::partial_cmp(&values[best], &values[at])),
                    (Some(best), None) => self.keeps(x, best, at)?,
                };
                best = if stays { best } else { Some(at) };
            }
            selected.push(best);
        }
        Ok(selected)
    }
}

/// For each rank, the windows that touch its elements, as if there were windows beyond both ends.
fn touching(window: &Window, extents: &[usize]) -> Vec<(i64, i64)> {
    let (apart, reach) = (window.stride as i64, window.reach as i64);
    let mut start = 0;
    let mut found = Vec::with_capacity(extents.len());
    for &extent in extents {
        let (first, last) = (start + window.low, start + extent as i64 - 1 + window.low);
        found.push(match extent {
            0 => (0, 0),
            _ => (-(reach - first).div_euclid(apart), last.div_euclid(apart) + 1),
        });
        start += extent as i64;
    }
    found
}

impl Operation for SelectAndScatter {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 3)?;
        let (operand, source, initial) = (operands[0], operands[1], operands[2]);
        same_dtype(NAME, operand, source)?;
        same_dtype(NAME, operand, initial)?;
        shapes(
            initial.shape.is_empty(),
            format!("the initial value of `{NAME}` is a scalar"),
            TensorType::scalar(operand.dtype).to_string(),
            initial.to_string(),
        )?;
        let rank = operand.rank();
        one_per_dim(NAME, "padding", &self.padding, rank)?;
        for (attribute, list) in [("window_dimensions", &self.window), ("window_strides", &self.strides)] {
            one_per_dim(NAME, attribute, list, rank)?;
            sizes(
                !list.contains(&0),
                format!("`{attribute}` of `{NAME}` must be positive"),
                "at least 1",
                format!("{list:?}"),
            )?;
        }
        let windows: Vec<usize> =
            operand.shape.iter().enumerate().map(|(dim, &size)| self.windows(dim, size)).collect();
        shapes(
            source.shape == windows,
            format!("the source of `{NAME}` has an element for each window"),
            operand.with_shape(windows).to_string(),
            source.to_string(),
        )?;
        let scalar = TensorType::scalar(operand.dtype);
        let pair = [scalar.clone(), scalar];
        region_signature(NAME, "select", &self.select, &pair, &[TensorType::scalar(DType::Bool)])?;
        self.scatter.check(NAME, &[operand.dtype])?;
        Ok(vec![operand.clone()])
    }

    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let mut rule = Rule::default();
        let (mut whole, mut source, mut result) = (Vec::new(), Vec::new(), Vec::new());
        for (dim, &size) in operands[0].shape.iter().enumerate() {
            if self.is_pointwise(dim) {
                let factor = rule.factor(size, FactorKind::Pass);
                for dims in [&mut whole, &mut source, &mut result] {
                    dims.push(vec![factor]);
                }
                continue;
            }
            let windows = operands[1].shape[dim];
            match self.moving(dim, operands[0]) {
                Some(moving) => {
                    let factor = rule.factor(windows, FactorKind::Window(moving));
                    for dims in [&mut whole, &mut source, &mut result] {
                        dims.push(vec![factor]);
                    }
                }
                None => {
                    whole.push(vec![rule.factor(size, FactorKind::Shift)]);
                    source.push(vec![rule.factor(windows, FactorKind::Whole)]);
                    result.push(vec![rule.factor(size, FactorKind::Whole)]);
                }
            }
        }
        rule.operands = vec![whole, source, Vec::new()];
        rule.results = vec![result];
        rule
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let window: f64 = self.window.iter().map(|&size| size as f64).product();
        Cost { flops: operands[1].element_count() as f64 * window, bytes: bytes as f64 }
    }

    /// E120: it is itself a gradient.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        match context.cotangents[0].is_some() && context.wanted.contains(&true) {
            true => Err(refused(NAME, "differentiated operands")),
            false => Ok(vec![None; 3]),
        }
    }

    /// Sums start from the initial value and take the source in order.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (x, source, initial) = (operands[0], operands[1], operands[2]);
        let selected = self.selected(x, &source.ty.shape)?;
        let places = selected.into_iter().enumerate().filter_map(|(from, to)| Some((to?, Some(from))));
        super::reduce::fold(&self.scatter, &[source], &[initial], results, places)
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    /// Along a sharded dimension a rank computes all windows that touch its elements, those at its borders as its
    /// neighbours do too, and keeps what falls on its own. Beyond the ends, no element is selected, and the source is zero.
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let mut operands = context.operands().to_vec();
        let types = [0, 1, 2].map(|operand| context.global_operand(operand).clone());
        let rule = self.rule(&[&types[0], &types[1], &types[2]], &[&types[0]]);
        let mut op = self.clone();
        let mut own = Vec::new();
        for dim in 0..types[0].rank() {
            let factor = rule.operands[0][dim][0];
            let FactorKind::Window(window) = rule.factors[factor].kind else { continue };
            let Some(peers) = context.operand_peers(factor, 0, dim) else { continue };
            let windows = touching(&window, &peers.extents);
            let seen = |&(first, end): &(i64, i64)| match first < end {
                true => window.positions_between(first, end),
                false => (0, 0),
            };
            let elements: Vec<(i64, i64)> = windows.iter().map(seen).collect();
            let builder = context.builder();
            let dtype = builder.ty(operands[0]).dtype;
            let (worst, zero) = (builder.scalar(dtype, self.worst()), builder.scalar(dtype, 0.0));
            for (number, spans, fill) in [(0, &elements, worst), (1, &windows, zero)] {
                let part = Part { operand: number, dim, value: operands[number] };
                operands[number] = halo::fetch(context, factor, part, spans, Some(fill))?;
            }
            op.padding[dim] = (0, 0);
            let starts = peers.extents.iter().scan(0, |next, &extent| Some(std::mem::replace(next, *next + extent)));
            let within = starts.zip(&elements).zip(&peers.extents).map(|((start, seen), &extent)| match extent {
                0 => 0,
                _ => start as i64 - seen.0,
            });
            own.push((dim, context.by_position(factor, &within.collect::<Vec<i64>>())?));
        }
        let result = context.local_result(0);
        if own.is_empty() {
            return Ok(context.builder().push_typed(op, &operands, vec![result]));
        }
        let builder = context.builder();
        let scattered = builder.push1(op, &operands)?;
        let zero = builder.scalar(DType::I64, 0.0);
        let mut cut = vec![scattered];
        cut.extend((0..types[0].rank()).map(|dim| own.iter().find(|(of, _)| *of == dim).map_or(zero, |&(_, start)| start)));
        Ok(vec![builder.push1(DynamicSlice { sizes: result.shape }, &cut)?])
    }

    fn regions(&self) -> Vec<&Graph> {
        [vec![&*self.select], self.scatter.regions()].concat()
    }
}

// ---- text ----

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[(NAME, parse_select_and_scatter)];

impl TextForm for SelectAndScatter {
    /// The generic form: StableHLO has no other.
    fn print(&self, printer: &mut OpPrinter) {
        let dtype = printer.operand_types()[0].dtype;
        let scatter = self.scatter.to_region(&[dtype]);
        let properties = [
            ("padding", print_padding(&self.padding)),
            ("window_dimensions", print_array(&self.window)),
            ("window_strides", print_array(&self.strides)),
        ];
        printer.generic(NAME, &properties, &[&self.select, &scatter]);
    }
}

fn parse_select_and_scatter(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", format!("`{NAME}` must be written in the generic form")));
    }
    op.arity(3)?;
    let rank = op.operand_type(0).rank();
    let ones = vec![1; rank];
    let padding = match op.attributes.get("padding") {
        Some(_) => op.rows_of("padding", 2)?.into_iter().map(|row| (row[0], row[1])).collect(),
        None => vec![(0, 0); rank],
    };
    let select_and_scatter = SelectAndScatter {
        window: op.optional_indices_of("window_dimensions")?.unwrap_or(ones.clone()),
        strides: op.optional_indices_of("window_strides")?.unwrap_or(ones),
        padding,
        select: Box::new(op.region(0)?),
        scatter: Reducer::from_region(op.region(1)?),
    };
    op.finish(select_and_scatter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
    use crate::graph::Role;
    use crate::ops::{Compare, ReduceWindow};
    use crate::testing::{apply, assert_close, check_rule, gradients, random, refusal};

    fn larger(dtype: DType) -> Box<Graph> {
        let mut b = GraphBuilder::new("select");
        let a = b.input("", TensorType::scalar(dtype), Role::Activation);
        let c = b.input("", TensorType::scalar(dtype), Role::Activation);
        let compare = Compare { direction: Direction::Ge, compare_type: None };
        let results = b.push(compare, &[a, c]).unwrap();
        Box::new(b.finish(results))
    }

    fn pooling(window: &[usize], strides: &[usize], padding: &[(i64, i64)]) -> SelectAndScatter {
        SelectAndScatter {
            window: window.to_vec(),
            strides: strides.to_vec(),
            padding: padding.to_vec(),
            select: larger(DType::F64),
            scatter: Reducer::Combiner(Combiner::Sum),
        }
    }

    /// The gradient of maxima over windows, by differences.
    fn by_differences(op: &SelectAndScatter, x: &Literal, source: &Literal) -> Vec<f64> {
        let ones = vec![1; op.window.len()];
        let maxima = ReduceWindow {
            window: op.window.clone(),
            strides: op.strides.clone(),
            base_dilation: ones.clone(),
            window_dilation: ones,
            padding: op.padding.clone(),
            reducer: Reducer::Combiner(Combiner::Max),
        };
        let lowest = Literal::scalar(DType::F64, f64::NEG_INFINITY);
        let total = |values: &[f64]| -> f64 {
            let x = Literal::new(x.ty.shape.clone(), values.to_vec());
            let found = apply(maxima.clone(), &[x, lowest.clone()]).remove(0);
            found.to_f64().iter().zip(source.to_f64()).map(|(m, s)| m * s).sum()
        };
        let point = x.to_f64();
        let slope = |at: usize| {
            let moved = |step: f64| {
                let mut moved = point.clone();
                moved[at] += step;
                total(&moved)
            };
            (moved(1e-6) - moved(-1e-6)) / 2e-6
        };
        (0..point.len()).map(slope).collect()
    }

    #[test]
    fn it_is_the_gradient_of_pooling() {
        for (window, strides, padding, windows) in [
            ([2, 2], [2, 2], [(0, 0), (0, 0)], [2, 3]),
            ([3, 2], [2, 1], [(1, 1), (0, 1)], [2, 6]),
            ([1, 3], [1, 3], [(0, 0), (2, 1)], [4, 3]),
        ] {
            let op = pooling(&window, &strides, &padding);
            let (x, source) = (random(1, &[4, 6]), random(2, &windows));
            let found = apply(op.clone(), &[x.clone(), source.clone(), Literal::scalar(DType::F64, 0.0)]);
            for (found, expected) in found[0].to_f64().iter().zip(by_differences(&op, &x, &source)) {
                assert!((found - expected).abs() < 1e-6, "{found} {expected}");
            }
        }
    }

    #[test]
    fn windows_select_no_padding_and_results_start_from_the_initial_value() {
        let op = pooling(&[2], &[2], &[(1, 1)]);
        let x = Literal::new([2], vec![-5f64, -7.0]);
        let source = Literal::new([2], vec![1f64, 2.0]);
        let found = apply(op, &[x, source, Literal::scalar(DType::F64, 10.0)]);
        assert_eq!(found[0].to_f64(), [11.0, 12.0]);
        // Integers and general bodies take the path of the interpreter.
        let op = SelectAndScatter { select: larger(DType::I32), ..pooling(&[2], &[1], &[(0, 0)]) };
        let x = Literal::new([3], vec![4i32, 9, 9]);
        let found = apply(op, &[x, Literal::new([2], vec![1i32, 2]), Literal::scalar(DType::I32, 0.0)]);
        assert_eq!(found[0].to_i64(), [0, 3, 0]);
    }

    #[test]
    fn dimensions_without_windows_may_be_cut() {
        let op = pooling(&[1, 2], &[1, 2], &[(0, 0), (0, 0)]);
        let operands = [random(1, &[5, 4]), random(2, &[5, 2]), Literal::scalar(DType::F64, 0.0)];
        check_rule(op.clone(), &operands);
        let found = apply(op.clone(), &operands).remove(0);
        assert_close(&apply(op.clone(), &operands)[0], &found, "again");
        let none = gradients(op, &operands, &[None], &[true, true, false]);
        assert!(none.iter().all(Option::is_none));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (x, scalar) = (TensorType::new(DType::F64, [4, 4]), TensorType::scalar(DType::F64));
        let source = x.with_shape([2, 2]);
        let op = pooling(&[2, 2], &[2, 2], &[(0, 0), (0, 0)]);
        let refused = |op: &SelectAndScatter, source: &TensorType| {
            refusal(op.clone(), &[x.clone(), source.clone(), scalar.clone()])
        };
        assert!(refused(&op, &x).contains("E104"));
        assert!(refused(&op, &source.with_dtype(DType::F32)).contains("E102"));
        assert!(refused(&SelectAndScatter { strides: vec![0, 1], ..op.clone() }, &source).contains("E106"));
        assert!(refused(&SelectAndScatter { window: vec![2], ..op.clone() }, &source).contains("E105"));
        assert!(refused(&SelectAndScatter { select: larger(DType::F32), ..op }, &source).contains("E107"));
    }
}
