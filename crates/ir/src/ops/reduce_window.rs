//! Reduction over sliding windows.

use super::checks::{one_per_dim, operand_count, same_dtype, shapes, sizes};
use super::reduce::{Reducer, fold, refused};
use super::{Direction, SelectAndScatter};
use super::halo::{self, Part};
use crate::builder::{GraphBuilder, identity};
use crate::graph::{Graph, Node, Role, ValueId};
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Operation};
use crate::rule::{FactorKind, Rule, Window};
use crate::traits::{ConstantOp, Precision, Traits};
use crate::types::TensorType;
use partita_base::{DType, Result};
use partita_mesh::Combiner;

/// Operands (inputs.., initial values..); reduces each window. Padding and the gaps of a dilated
/// input hold the initial value.
#[derive(Clone, PartialEq, Debug)]
pub struct ReduceWindow {
    /// Extent of the window in each dimension.
    pub window: Vec<usize>,
    /// Step between windows.
    pub strides: Vec<usize>,
    /// Dilation of the input.
    pub base_dilation: Vec<usize>,
    /// Dilation of the window.
    pub window_dilation: Vec<usize>,
    /// (low, high) padding of each dimension.
    pub padding: Vec<(i64, i64)>,
    /// The combiner or body.
    pub reducer: Reducer,
}

const NAME: &str = "stablehlo.reduce_window";

/// The extent of `size` elements with `dilation - 1` gaps between neighbours.
/// Both may be anything that a text says, so the product is limited far beyond any tensor.
pub(super) fn dilated(size: usize, dilation: usize) -> usize {
    if size == 0 { 0 } else { (size - 1).saturating_mul(dilation).min(1 << 56) + 1 }
}

/// `dense<[[low, high], ..]>`, a row for each dimension.
pub(super) fn print_padding(padding: &[(i64, i64)]) -> String {
    let rows: Vec<String> = padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
    match rows.is_empty() {
        true => "dense<> : tensor<0x2xi64>".to_string(),
        false => format!("dense<[{}]> : tensor<{}x2xi64>", rows.join(", "), rows.len()),
    }
}

impl ReduceWindow {
    /// Extent of a dimension of the result.
    fn result_extent(&self, dim: usize, size: usize) -> usize {
        let (low, high) = self.padding[dim];
        let padded = low + dilated(size, self.base_dilation[dim]) as i64 + high;
        let window = dilated(self.window[dim], self.window_dilation[dim]) as i64;
        if padded < window { 0 } else { (padded - window) as usize / self.strides[dim] + 1 }
    }

    /// Whether windows along a dimension are single elements, one per element.
    fn is_pointwise(&self, dim: usize) -> bool {
        self.window[dim] == 1
            && self.strides[dim] == 1
            && self.base_dilation[dim] == 1
            && self.padding[dim] == (0, 0)
    }

    /// How windows move along a dimension of this size.
    fn moving(&self, dim: usize, size: usize) -> Window {
        Window {
            input: size,
            stride: self.strides[dim],
            low: self.padding[dim].0,
            reach: (self.window[dim] - 1).saturating_mul(self.window_dilation[dim]),
            input_dilation: self.base_dilation[dim],
            combiner: None,
        }
    }

    /// Whether windows begin or end at each element and reach to an end of one dimension, so that the results along
    /// it are cumulative.
    fn cumulative(&self, shape: &[usize]) -> bool {
        let mut wide = (0..shape.len()).filter(|&dim| !self.is_pointwise(dim));
        let (Some(dim), None) = (wide.next(), wide.next()) else { return false };
        let edge = self.window[dim] as i64 - 1;
        matches!(self.reducer, Reducer::Combiner(_))
            && self.window[dim] == shape[dim]
            && (self.strides[dim], self.base_dilation[dim], self.window_dilation[dim]) == (1, 1, 1)
            && [(edge, 0), (0, edge)].contains(&self.padding[dim])
    }

    /// The element of a dimension at entry `entry` of window `window`; `None` in padding and gaps.
    fn source(&self, dim: usize, size: usize, window: usize, entry: usize) -> Option<usize> {
        let place = (window * self.strides[dim] + entry * self.window_dilation[dim]) as i64;
        let place = usize::try_from(place - self.padding[dim].0).ok()?;
        let dilation = self.base_dilation[dim];
        (place.is_multiple_of(dilation) && place / dilation < size).then_some(place / dilation)
    }
}

impl ReduceWindow {
    /// The cotangent of each window at its extremum: the first element that stays against all others.
    fn scattered(&self, context: &mut GradientContext, cotangent: ValueId, stays: Direction) -> Result<ValueId> {
        let (x, initial, result) = (context.operands[0], context.operands[1], context.results[0]);
        let builder = &mut *context.builder;
        let dtype = builder.ty(x).dtype;
        let zero = builder.scalar(dtype, 0.0);
        // Where the initial value is the extremum, no element is.
        let Reducer::Combiner(combiner) = self.reducer else { unreachable!("a combiner") };
        let is_neutral = matches!(builder.graph().constant(initial),
            Some(ConstantOp::OfAll(constant)) if constant.value == identity(combiner, dtype));
        let mut source = cotangent;
        if !is_neutral {
            let shape = builder.shape(result);
            let initial = builder.broadcast_scalar(initial, &shape)?;
            let is_initial = builder.compare(stays, initial, result)?;
            let none = builder.broadcast_scalar(zero, &shape)?;
            source = builder.select(is_initial, none, source)?;
        }
        let mut select = GraphBuilder::new("select");
        let [a, b] = [(); 2].map(|()| select.input("", TensorType::scalar(dtype), Role::Activation));
        let kept = select.compare(stays, a, b)?;
        let op = SelectAndScatter {
            window: self.window.clone(),
            strides: self.strides.clone(),
            padding: self.padding.clone(),
            select: Box::new(select.finish(vec![kept])),
            scatter: Reducer::Combiner(Combiner::Sum),
        };
        // NaN is the extremum of its window, so the cotangent is its own.
        let shape = builder.shape(x);
        let is_nan = builder.compare(Direction::Ne, x, x)?;
        let most = if combiner == Combiner::Max { f64::INFINITY } else { f64::NEG_INFINITY };
        let most = builder.full(&TensorType::new(dtype, shape), most)?;
        let x = builder.select(is_nan, most, x)?;
        builder.push1(op, &[x, source, zero])
    }
}

impl Operation for ReduceWindow {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        if operands.is_empty() || !operands.len().is_multiple_of(2) {
            operand_count(NAME, operands, (operands.len() + 1).max(2))?;
        }
        let (inputs, initial) = operands.split_at(operands.len() / 2);
        let rank = inputs[0].rank();
        for (input, initial) in inputs.iter().zip(initial) {
            same_dtype(NAME, input, initial)?;
            shapes(
                initial.shape.is_empty(),
                format!("initial values of `{NAME}` are scalars"),
                TensorType::scalar(input.dtype).to_string(),
                initial.to_string(),
            )?;
            shapes(
                input.shape == inputs[0].shape,
                format!("inputs of `{NAME}` must have one shape"),
                format!("{:?}", inputs[0].shape),
                format!("{:?}", input.shape),
            )?;
        }
        one_per_dim(NAME, "padding", &self.padding, rank)?;
        for (attribute, list) in [
            ("window_dimensions", &self.window),
            ("window_strides", &self.strides),
            ("base_dilations", &self.base_dilation),
            ("window_dilations", &self.window_dilation),
        ] {
            one_per_dim(NAME, attribute, list, rank)?;
            sizes(
                !list.contains(&0),
                format!("`{attribute}` of `{NAME}` must be positive"),
                "at least 1",
                format!("{list:?}"),
            )?;
        }
        let dtypes: Vec<DType> = inputs.iter().map(|ty| ty.dtype).collect();
        self.reducer.check(NAME, &dtypes)?;
        let shape: Vec<usize> =
            inputs[0].shape.iter().enumerate().map(|(dim, &size)| self.result_extent(dim, size)).collect();
        Ok(inputs.iter().map(|input| input.with_shape(shape.clone())).collect())
    }

    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let mut rule = Rule::default();
        let (mut input, mut result) = (Vec::new(), Vec::new());
        for (dim, &size) in operands[0].shape.iter().enumerate() {
            if self.is_pointwise(dim) {
                let factor = rule.factor(size, FactorKind::Pass);
                input.push(vec![factor]);
                result.push(vec![factor]);
                continue;
            }
            let (moving, windows) = (self.moving(dim, size), results[0].shape[dim]);
            if moving.is_local() {
                let factor = rule.factor(windows, FactorKind::Window(moving));
                input.push(vec![factor]);
                result.push(vec![factor]);
            } else {
                input.push(vec![rule.factor(size, FactorKind::Shift)]);
                result.push(vec![rule.factor(windows, FactorKind::Whole)]);
            }
        }
        rule.operands = vec![input; results.len()];
        rule.operands.extend(vec![Vec::new(); results.len()]);
        rule.results = vec![result; results.len()];
        rule
    }

    /// A step for each element of each window; one for each element where one pass computes cumulative results.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let window: f64 = match self.cumulative(&operands[0].shape) {
            true => 1.0,
            false => self.window.iter().map(|&size| size as f64).product(),
        };
        let elements = results.iter().map(|ty| ty.element_count()).sum::<usize>();
        Cost { flops: elements as f64 * window, bytes: bytes as f64 }
    }

    /// For sums: windows over the padded cotangent, with strides and gaps swapped. For maxima and minima over
    /// windows without gaps: the cotangent, scattered to the first such element of each window. E120 otherwise.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let Reducer::Combiner(combiner) = self.reducer else {
            return Err(refused(NAME, "a general body"));
        };
        let mut gradients = vec![None; context.operands.len()];
        let Some(cotangent) = context.cotangents[0] else { return Ok(gradients) };
        let relation = match combiner {
            Combiner::Sum => None,
            Combiner::Max => Some(Direction::Ge),
            Combiner::Min => Some(Direction::Le),
            _ => return Err(refused(NAME, &format!("combination by {combiner}"))),
        };
        if relation.is_some() && self.base_dilation.iter().chain(&self.window_dilation).any(|&step| step > 1) {
            return Err(refused(NAME, &format!("combination by {combiner} and gaps")));
        }
        if context.wanted[1] {
            return Err(refused(NAME, "a differentiated initial value"));
        }
        if !context.wanted[0] {
            return Ok(gradients);
        }
        let builder = &mut *context.builder;
        let ty = builder.ty(context.operands[0]).clone();
        let result = builder.shape(cotangent);
        if ty.element_count() == 0 || result.contains(&0) {
            gradients[0] = Some(builder.full(&ty, 0.0)?);
            return Ok(gradients);
        }
        if let Some(relation) = relation {
            gradients[0] = Some(self.scattered(context, cotangent, relation)?);
            return Ok(gradients);
        }
        // Element i is at position i * base_dilation + low; result o covers positions o * stride +
        // k * window_dilation. So i collects the results o at positions i * base_dilation + low - k
        // * window_dilation, with k counted down.
        let rank = ty.rank();
        let reach = |d: usize| ((self.window[d] - 1) * self.window_dilation[d]) as i64;
        let padding = (0..rank).map(|d| {
            let low = reach(d) - self.padding[d].0;
            let needed = dilated(ty.shape[d], self.base_dilation[d]) as i64 + reach(d);
            (low, needed - low - dilated(result[d], self.strides[d]) as i64)
        });
        let zero = builder.constant(identity(Combiner::Sum, ty.dtype));
        let transposed = ReduceWindow {
            window: self.window.clone(),
            strides: self.base_dilation.clone(),
            base_dilation: self.strides.clone(),
            window_dilation: self.window_dilation.clone(),
            padding: padding.collect(),
            reducer: self.reducer.clone(),
        };
        gradients[0] = Some(builder.push1(transposed, &[cotangent, zero])?);
        Ok(gradients)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (inputs, initial) = operands.split_at(results.len());
        let ty = &inputs[0].ty;
        let strides = ty.strides();
        let steps = indices(&results[0].shape).enumerate().flat_map(|(to, place)| {
            let strides = &strides;
            indices(&self.window).map(move |entry| {
                let source = |dim: usize| {
                    let found = self.source(dim, ty.shape[dim], place[dim], entry[dim]);
                    found.map(|i| i * strides[dim])
                };
                (to, (0..ty.rank()).map(source).sum::<Option<usize>>())
            })
        });
        fold(&self.reducer, inputs, initial, results, steps)
    }

    fn precision(&self) -> Precision {
        match self.reducer {
            Reducer::Combiner(Combiner::Max | Combiner::Min) => Precision::Operands,
            _ => Precision::Own,
        }
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    /// Along a sharded dimension, the inputs are what the windows of the shard see; elements beyond the ends are the initial
    /// value, as padding is.
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let mut operands = context.operands().to_vec();
        let results = operands.len() / 2;
        let (input, result) = (context.global_operand(0).clone(), context.global_result(0).clone());
        let mut types = vec![&input; results];
        types.extend(vec![&result; results]);
        let rule = self.rule(&types, &vec![&result; results]);
        let mut op = self.clone();
        for dim in 0..input.rank() {
            let factor = rule.operands[0][dim][0];
            let FactorKind::Window(window) = rule.factors[factor].kind else { continue };
            if !context.is_sharded(factor) {
                continue;
            }
            let steps = context.result_extents(0, dim);
            for number in 0..results {
                let (part, fill) = (Part { operand: number, dim, value: operands[number] }, operands[results + number]);
                let seen = halo::seen(context, factor, &window, part, &steps, Some(fill))?;
                (operands[number], op.padding[dim]) = (seen.value, seen.padding);
            }
        }
        let types = (0..results).map(|result| context.local_result(result)).collect();
        Ok(context.builder().push_typed(op, &operands, types))
    }

    fn regions(&self) -> Vec<&Graph> {
        self.reducer.regions()
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter, print_array};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.reduce_window", parse_reduce_window)];

impl TextForm for ReduceWindow {
    /// The generic form: StableHLO has no other.
    fn print(&self, printer: &mut OpPrinter) {
        let types = printer.operand_types();
        let dtypes: Vec<DType> = types.iter().map(|t| t.dtype).collect();
        let body = self.reducer.to_region(&dtypes);
        let properties = [
            ("base_dilations", print_array(&self.base_dilation)),
            ("padding", print_padding(&self.padding)),
            ("window_dilations", print_array(&self.window_dilation)),
            ("window_dimensions", print_array(&self.window)),
            ("window_strides", print_array(&self.strides)),
        ];
        printer.generic("stablehlo.reduce_window", &properties, &[&body]);
    }
}

fn parse_reduce_window(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", "`stablehlo.reduce_window` must be written in the generic form"));
    }
    op.at_least(2)?;
    let window = op.indices_of("window_dimensions")?;
    let ones = vec![1; window.len()];
    let padding = match op.attributes.get("padding") {
        Some(_) => op.rows_of("padding", 2)?.into_iter().map(|row| (row[0], row[1])).collect(),
        None => vec![(0, 0); window.len()],
    };
    let reduce_window = ReduceWindow {
        strides: op.optional_indices_of("window_strides")?.unwrap_or(ones.clone()),
        base_dilation: op.optional_indices_of("base_dilations")?.unwrap_or(ones.clone()),
        window_dilation: op.optional_indices_of("window_dilations")?.unwrap_or(ones),
        padding,
        reducer: Reducer::from_region(op.region(0)?),
        window,
    };
    op.finish(reduce_window)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Pad;
    use crate::testing::{apply, check_gradient, check_rule, random};

    fn plain(window: &[usize], combiner: Combiner) -> ReduceWindow {
        let ones = vec![1; window.len()];
        ReduceWindow {
            window: window.to_vec(),
            strides: ones.clone(),
            base_dilation: ones.clone(),
            window_dilation: ones.clone(),
            padding: vec![(0, 0); window.len()],
            reducer: Reducer::Combiner(combiner),
        }
    }

    fn cumulative(size: usize) -> ReduceWindow {
        ReduceWindow { padding: vec![(0, 0), (size as i64 - 1, 0)], ..plain(&[1, size], Combiner::Sum) }
    }

    fn general() -> ReduceWindow {
        ReduceWindow {
            strides: vec![2, 1],
            base_dilation: vec![1, 2],
            window_dilation: vec![2, 1],
            padding: vec![(1, 2), (-1, 3)],
            ..plain(&[2, 3], Combiner::Sum)
        }
    }

    #[test]
    fn cumulative_sums_are_windows_padded_on_one_side() {
        let x = Literal::new([2, 4], vec![1f64, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]);
        let got = apply(cumulative(4), &[x, Literal::scalar(DType::F64, 0.0)]);
        assert_eq!(got[0].to_f64(), [1.0, 3.0, 6.0, 10.0, 10.0, 30.0, 60.0, 100.0]);
    }

    #[test]
    fn windows_match_a_padded_copy_of_the_input() {
        let x = random(1, &[5, 4]);
        for (combiner, initial) in [(Combiner::Sum, 0.5), (Combiner::Max, -0.2)] {
            let op = ReduceWindow { reducer: Reducer::Combiner(combiner), ..general() };
            let start = Literal::scalar(DType::F64, initial);
            let pad = Pad { low: vec![1, -1], high: vec![2, 3], interior: vec![0, 1] };
            let padded = apply(pad, &[x.clone(), start.clone()]).remove(0);
            let (columns, values) = (padded.ty.shape[1], padded.to_f64());
            let got = apply(op, &[x.clone(), start]).remove(0);
            assert_eq!(got.ty.shape, [(padded.ty.shape[0] - 3) / 2 + 1, columns - 3 + 1]);
            for (element, index) in indices(&got.ty.shape).enumerate() {
                let mut expected = initial;
                for i in 0..2 {
                    for j in 0..3 {
                        let value = values[(index[0] * 2 + i * 2) * columns + index[1] + j];
                        expected =
                            if combiner == Combiner::Sum { expected + value } else { expected.max(value) };
                    }
                }
                assert!((got.to_f64()[element] - expected).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn gradients_of_sums_match_finite_differences() {
        let start = Literal::scalar(DType::F64, 0.0);
        for (op, shape) in
            [(general(), [5, 4]), (cumulative(4), [2, 4]), (plain(&[2, 2], Combiner::Sum), [3, 3])]
        {
            check_gradient(op, vec![random(2, &shape), start.clone()], &[true, false]);
        }
    }

    #[test]
    fn gradients_of_extrema_match_finite_differences() {
        let pooling = |combiner| ReduceWindow {
            strides: vec![2, 1],
            padding: vec![(1, 1), (0, 1)],
            ..plain(&[3, 2], combiner)
        };
        // With the second initial value some windows have no element beyond it, and padding holds it.
        for (combiner, initial) in [
            (Combiner::Max, f64::NEG_INFINITY),
            (Combiner::Max, 0.4),
            (Combiner::Min, f64::INFINITY),
            (Combiner::Min, -0.4),
        ] {
            let start = Literal::scalar(DType::F64, initial);
            check_gradient(pooling(combiner), vec![random(2, &[6, 5]), start], &[true, false]);
        }
    }

    #[test]
    fn cumulative_sums_cost_one_step_for_each_element() {
        let (ty, scalar) = (TensorType::new(DType::F32, [3, 1000]), TensorType::scalar(DType::F32));
        let flops = |op: ReduceWindow| op.cost(&[&ty, &scalar], &[&ty]).flops;
        assert_eq!(flops(cumulative(1000)), 3000.0);
        let backwards = ReduceWindow { padding: vec![(0, 0), (0, 999)], ..cumulative(1000) };
        assert_eq!(flops(backwards), 3000.0);
        let two_wide = ReduceWindow { padding: vec![(0, 1), (0, 999)], ..plain(&[2, 1000], Combiner::Sum) };
        assert_eq!(flops(two_wide), 3000.0 * 2000.0);
        let short = ReduceWindow { padding: vec![(0, 0), (998, 0)], ..plain(&[1, 999], Combiner::Sum) };
        assert_eq!(flops(short), 3000.0 * 999.0);
    }

    #[test]
    fn dimensions_without_windows_may_be_cut() {
        check_rule(cumulative(4), &[random(3, &[5, 4]), Literal::scalar(DType::F64, 0.0)]);
        let op = cumulative(4);
        let (ty, scalar) = (TensorType::new(DType::F32, [5, 4]), TensorType::scalar(DType::F32));
        let rule = op.rule(&[&ty, &scalar], &[&ty]);
        assert_eq!(rule.factors[0].kind, FactorKind::Pass);
        assert_eq!(rule.factors[1].kind, FactorKind::Shift);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (ty, scalar) = (TensorType::new(DType::F32, [5, 4]), TensorType::scalar(DType::F32));
        let code = |op: ReduceWindow| op.infer(&[&ty, &scalar]).unwrap_err().code;
        assert_eq!(general().infer(&[&ty]).unwrap_err().code, "E101");
        assert_eq!(general().infer(&[&ty, &ty]).unwrap_err().code, "E104");
        assert_eq!(code(ReduceWindow { window: vec![2], ..general() }), "E105");
        assert_eq!(code(ReduceWindow { strides: vec![0, 1], ..general() }), "E106");
        assert_eq!(code(plain(&[1, 1], Combiner::And)), "E103");
        let wide = plain(&[9, 1], Combiner::Sum);
        assert_eq!(wide.infer(&[&ty, &scalar]).unwrap()[0].shape, [0, 4]);
    }
}
