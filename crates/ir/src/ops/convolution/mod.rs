//! Convolution.

mod evaluate;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use text::PARSERS;

use super::halo::{self, Part};
use super::checks::{distinct_dims, element_type, one_per_dim, operand_count, shapes, sizes};
use super::reduce_window::dilated;
use super::{Reshape, Reverse, Transpose};
use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, ValueId};
use crate::literal::Literal;
use crate::op::{Cost, GradientContext, LocalContext, Op, Operation};
use crate::rule::{FactorKind, Rule, Window};
use crate::traits::{Precision, Traits};
use crate::types::TensorType;
use partita_base::{DType, Result};
use partita_mesh::Combiner;

/// The dimensions of one tensor of a convolution. For the kernel, `batch` is that of the output
/// features and `feature` that of the input features.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ConvolutionSide {
    /// The batch.
    pub batch: usize,
    /// The features.
    pub feature: usize,
    /// The dimensions along which the window moves.
    pub spatial: Vec<usize>,
}

/// The window along one spatial dimension.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConvolutionWindow {
    /// The distance of two windows.
    pub stride: usize,
    /// Padding below and above; negative padding removes.
    pub padding: (i64, i64),
    /// The distance of two neighbours of the input.
    pub input_dilation: usize,
    /// The distance of two neighbours of the kernel.
    pub kernel_dilation: usize,
    /// Whether the kernel is reversed.
    pub reversed: bool,
}

impl Default for ConvolutionWindow {
    fn default() -> Self {
        ConvolutionWindow { stride: 1, padding: (0, 0), input_dilation: 1, kernel_dilation: 1, reversed: false }
    }
}

/// Each element of the result is the sum of products of a window of the input, over all its features,
/// with the kernel of its output feature. Operands: input, kernel.
///
/// Groups divide the features of the input and the output (`feature_groups`), or the batch of the
/// input and the features of the output (`batch_groups`); groups do not mix.
#[derive(Clone, PartialEq, Debug)]
pub struct Convolution {
    /// The dimensions of the input.
    pub input: ConvolutionSide,
    /// The dimensions of the kernel.
    pub kernel: ConvolutionSide,
    /// The dimensions of the result.
    pub output: ConvolutionSide,
    /// The window of each spatial dimension.
    pub windows: Vec<ConvolutionWindow>,
    /// Groups of features.
    pub feature_groups: usize,
    /// Groups of the batch.
    pub batch_groups: usize,
    /// The element type of the result.
    pub dtype: DType,
}

const NAME: &str = "stablehlo.convolution";

impl ConvolutionWindow {
    /// The extent of the result.
    fn result(&self, input: usize, kernel: usize) -> usize {
        let padded = self.padding.0 + dilated(input, self.input_dilation) as i64 + self.padding.1;
        let window = dilated(kernel, self.kernel_dilation) as i64;
        if padded < window { 0 } else { (padded - window) as usize / self.stride + 1 }
    }

    /// How the window moves: each shard has some of the windows, or some of the entries of all windows, and the results are
    /// summed. The way that needs the smaller halo is taken: windows in a convolution, entries in the gradient of a kernel.
    fn moving(&self, input: usize, kernel: usize, windows: usize) -> Window {
        let way = |stride: usize, (extent, apart): (usize, usize), combiner: Option<Combiner>| Window {
            input,
            stride,
            low: self.padding.0,
            reach: extent.saturating_sub(1).saturating_mul(apart),
            input_dilation: self.input_dilation,
            combiner,
        };
        let by_window = way(self.stride, (kernel, self.kernel_dilation), None);
        let by_entry = way(self.kernel_dilation, (windows, self.stride), Some(Combiner::Sum));
        let beyond = |way: &Window| way.reach as i128 - way.stride as i128;
        if !self.reversed && beyond(&by_entry) < beyond(&by_window) { by_entry } else { by_window }
    }

    /// Whether each window is the element at the same place.
    fn is_pointwise(&self, kernel: usize) -> bool {
        kernel == 1 && self.stride == 1 && self.input_dilation == 1 && self.padding == (0, 0)
    }

    /// The element of the input in window `window` at entry `entry` of the kernel, if it has one.
    fn source(&self, input: usize, kernel: usize, window: usize, entry: usize) -> Option<usize> {
        let entry = if self.reversed { kernel - 1 - entry } else { entry };
        let place = (window * self.stride + entry * self.kernel_dilation) as i64 - self.padding.0;
        let place = usize::try_from(place).ok()?;
        let found = place / self.input_dilation;
        (place.is_multiple_of(self.input_dilation) && found < input).then_some(found)
    }
}

impl ConvolutionSide {
    /// All its dimensions: batch, feature, spatial.
    fn all(&self) -> Vec<usize> {
        [&[self.batch, self.feature], &self.spatial[..]].concat()
    }

    /// With batch and features exchanged.
    fn exchanged(&self) -> ConvolutionSide {
        ConvolutionSide { batch: self.feature, feature: self.batch, spatial: self.spatial.clone() }
    }
}

impl Operation for Convolution {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 2)?;
        let (input, kernel) = (operands[0], operands[1]);
        let rank = input.rank();
        shapes(
            kernel.rank() == rank && rank >= 2,
            format!("operands of `{NAME}` must have a batch, features and the same spatial dimensions"),
            format!("{rank} dimensions, at least 2"),
            kernel.to_string(),
        )?;
        for (what, side) in [("input", &self.input), ("kernel", &self.kernel), ("output", &self.output)] {
            one_per_dim(NAME, what, &side.all(), rank)?;
            distinct_dims(NAME, what, &side.all(), rank)?;
        }
        one_per_dim(NAME, "window", &self.windows, rank - 2)?;
        let positive = |w: &ConvolutionWindow| w.stride > 0 && w.input_dilation > 0 && w.kernel_dilation > 0;
        sizes(
            self.windows.iter().all(positive),
            format!("strides and dilations of `{NAME}` must be positive"),
            "at least 1",
            format!("{:?}", self.windows),
        )?;
        for ty in operands {
            element_type(NAME, ty.dtype != DType::Bool, "a number", ty.dtype)?;
        }
        let alike = input.dtype.is_complex() == kernel.dtype.is_complex()
            && input.dtype.is_float() == kernel.dtype.is_float()
            && input.dtype.is_float() == self.dtype.is_float();
        element_type(NAME, alike, &format!("a type of the kind of {}", input.dtype), kernel.dtype)?;
        let (batch, features) = (input.shape[self.input.batch], input.shape[self.input.feature]);
        let (outputs, inputs) = (kernel.shape[self.kernel.batch], kernel.shape[self.kernel.feature]);
        let groups = self.feature_groups.max(self.batch_groups);
        // A rank without groups has no features on either side.
        let without_groups = features == 0 && outputs == 0;
        let fits = self.feature_groups.min(self.batch_groups) == 1
            && (without_groups || inputs.checked_mul(self.feature_groups) == Some(features))
            && batch.is_multiple_of(self.batch_groups)
            && outputs.is_multiple_of(groups);
        sizes(
            fits,
            format!("features and groups of `{NAME}` do not fit"),
            "input features = kernel features x feature groups; groups that divide batch and output features",
            format!(
                "{input} and {kernel}, {} feature groups, {} batch groups",
                self.feature_groups, self.batch_groups
            ),
        )?;
        let mut shape = vec![0; rank];
        shape[self.output.batch] = batch / self.batch_groups;
        shape[self.output.feature] = outputs;
        for (number, window) in self.windows.iter().enumerate() {
            let extent = |side: &ConvolutionSide, ty: &TensorType| ty.shape[side.spatial[number]];
            shape[self.output.spatial[number]] =
                window.result(extent(&self.input, input), extent(&self.kernel, kernel));
        }
        Ok(vec![TensorType::new(self.dtype, shape)])
    }

    /// Batch and output features pass, input features are summed, and groups of features pass too. Groups
    /// of the batch do not: the extents of a rank without any would not say the batch of its result. Along
    /// a spatial dimension windows move, see `ConvolutionWindow::moving`.
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let (input, kernel, result) = (operands[0], operands[1], results[0]);
        let mut rule = Rule::default();
        let mut dims = [vec![Vec::new(); input.rank()], vec![Vec::new(); input.rank()], vec![Vec::new(); input.rank()]];
        let groups = self.feature_groups.max(self.batch_groups);
        let batch = rule.factor(result.shape[self.output.batch], FactorKind::Pass);
        let outputs = rule.factor(kernel.shape[self.kernel.batch] / groups, FactorKind::Pass);
        let inputs = rule.factor(kernel.shape[self.kernel.feature], FactorKind::Reduce(Combiner::Sum));
        dims[0][self.input.batch].push(batch);
        dims[0][self.input.feature].push(inputs);
        dims[1][self.kernel.feature].push(inputs);
        dims[1][self.kernel.batch].push(outputs);
        dims[2][self.output.batch].push(batch);
        dims[2][self.output.feature].push(outputs);
        if groups > 1 {
            let by_feature = self.feature_groups > 1;
            let kind = if by_feature { FactorKind::Pass } else { FactorKind::Whole };
            let group = rule.factor(groups, kind);
            let grouped = if by_feature { self.input.feature } else { self.input.batch };
            dims[0][grouped].insert(0, group);
            dims[1][self.kernel.batch].insert(0, group);
            dims[2][self.output.feature].insert(0, group);
        }
        for (number, window) in self.windows.iter().enumerate() {
            let [i, k, o] = [&self.input, &self.kernel, &self.output].map(|side| side.spatial[number]);
            if window.is_pointwise(kernel.shape[k]) {
                let pass = rule.factor(input.shape[i], FactorKind::Pass);
                dims[0][i].push(pass);
                dims[2][o].push(pass);
                continue;
            }
            let (entries, windows) = (kernel.shape[k], result.shape[o]);
            let moving = window.moving(input.shape[i], entries, windows);
            if moving.is_local() {
                // The tensor whose dimension is sharded with that of the input.
                let (with, extent, other, whole) = match moving.combiner {
                    None => ((2, o), windows, (1, k), entries),
                    Some(_) => ((1, k), entries, (2, o), windows),
                };
                let steps = rule.factor(extent, FactorKind::Window(moving));
                dims[0][i].push(steps);
                dims[with.0][with.1].push(steps);
                dims[other.0][other.1].push(rule.factor(whole, FactorKind::Whole));
            } else {
                dims[0][i].push(rule.factor(input.shape[i], FactorKind::Shift));
                dims[1][k].push(rule.factor(entries, FactorKind::Whole));
                dims[2][o].push(rule.factor(windows, FactorKind::Whole));
            }
        }
        let [input, kernel, result] = dims;
        rule.operands = vec![input, kernel];
        rule.results = vec![result];
        rule.linear_in(&[0]).linear_in(&[1])
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        let kernel = operands[1];
        let products = kernel.element_count() / kernel.shape[self.kernel.batch].max(1);
        // Entries that meet gaps of the input are left out.
        let gaps: f64 = self.windows.iter().map(|window| window.input_dilation as f64).product();
        Cost { flops: 2.0 * (results[0].element_count() * products) as f64 / gaps, bytes: bytes as f64 }
    }

    /// Both are convolutions: of the cotangent with the reversed kernel, where strides become gaps of
    /// the input, and of the input with the cotangent, where strides become gaps of the kernel.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let (x, kernel) = (context.operands[0], context.operands[1]);
        let b = &mut *context.builder;
        let Some(g) = context.cotangents[0].filter(|&g| b.ty(g).dtype.is_float()) else { return Ok(vec![None; 2]) };
        let reversed: Vec<usize> = (0..self.windows.len())
            .filter(|&number| self.windows[number].reversed)
            .map(|number| self.kernel.spatial[number])
            .collect();
        let mut plain = self.clone();
        plain.windows.iter_mut().for_each(|window| window.reversed = false);
        let flip = |b: &mut GraphBuilder, value: ValueId| match reversed.is_empty() {
            true => Ok(value),
            false => b.push1(Reverse { dims: reversed.clone() }, &[value]),
        };
        let upright = flip(b, kernel)?;
        let mut gradients = vec![None; 2];
        if context.wanted[0] {
            gradients[0] = Some(plain.input_gradient(b, g, x, upright)?);
        }
        if context.wanted[1] {
            let gradient = plain.kernel_gradient(b, g, x, upright)?;
            gradients[1] = Some(flip(b, gradient)?);
        }
        Ok(gradients)
    }

    /// Sums in f64 (integers exactly) and rounds (wraps) once.
    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        Ok(vec![evaluate::convolution(self, operands[0], operands[1], &results[0])])
    }

    fn precision(&self) -> Precision {
        Precision::Product
    }

    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    /// A shard of the feature groups has as many as its features say. Along a sharded spatial dimension, the input is what
    /// the windows of the shard see.
    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let mut operands = context.operands().to_vec();
        let result = context.local_result(0);
        let mut op = self.clone();
        let types = [context.global_operand(0).clone(), context.global_operand(1).clone()];
        let rule = self.rule(&[&types[0], &types[1]], &[&context.global_result(0).clone()]);
        for number in 0..self.windows.len() {
            let [i, k, o] = [&self.input, &self.kernel, &self.output].map(|side| side.spatial[number]);
            let factor = rule.operands[0][i][0];
            let FactorKind::Window(window) = rule.factors[factor].kind else { continue };
            if context.is_sharded(factor) {
                let steps = match window.combiner {
                    None => context.result_extents(0, o),
                    Some(_) => context.operand_peers(factor, 1, k).map_or(Vec::new(), |peers| peers.extents),
                };
                let part = Part { operand: 0, dim: i, value: operands[0] };
                let seen = halo::seen(context, factor, &window, part, &steps, None)?;
                (operands[0], op.windows[number].padding) = (seen.value, seen.padding);
            }
        }
        let builder = context.builder();
        if self.feature_groups > 1 {
            let features = builder.shape(operands[0])[self.input.feature];
            let of_group = builder.shape(operands[1])[self.kernel.feature];
            op.feature_groups = features.checked_div(of_group).unwrap_or(1).max(1);
        }
        Ok(builder.push_typed(op, &operands, vec![result]))
    }

    fn is_alike(&self, _: &[&TensorType], other: &Op, _: &[&TensorType]) -> Option<bool> {
        Some(matches!(other, Op::Convolution(other)
            if *self == Convolution { dtype: self.dtype, ..other.clone() }))
    }
}

/// Splits dimension `from` into `groups` and the rest, and joins the groups, major, to `to`.
fn regrouped(b: &mut GraphBuilder, x: ValueId, groups: usize, from: usize, to: usize) -> Result<ValueId> {
    let shape = b.shape(x);
    let mut split = shape.clone();
    split[from] /= groups;
    split.insert(from, groups);
    let whole = b.push1(Reshape { shape: split.clone() }, &[x])?;
    let mut order: Vec<usize> = (0..split.len()).filter(|&dim| dim != from).collect();
    order.insert(to, from);
    let turned = b.push1(Transpose { permutation: order }, &[whole])?;
    let mut joined = shape;
    joined[from] /= groups;
    joined[to] *= groups;
    b.push1(Reshape { shape: joined }, &[turned])
}

impl Convolution {
    /// The cotangent of the input.
    fn input_gradient(&self, b: &mut GraphBuilder, g: ValueId, x: ValueId, kernel: ValueId) -> Result<ValueId> {
        let (ty, window, result) = (b.ty(x).clone(), b.shape(kernel), b.shape(g));
        if ty.element_count() == 0 || result.contains(&0) || window.contains(&0) {
            return b.full(&ty, 0.0);
        }
        let groups = self.feature_groups.max(self.batch_groups);
        let mut kernel = kernel;
        if groups > 1 {
            kernel = regrouped(b, kernel, groups, self.kernel.batch, self.kernel.feature)?;
        }
        let windows = self.windows.iter().enumerate().map(|(number, own)| {
            let extent = |side: &ConvolutionSide, shape: &[usize]| shape[side.spatial[number]];
            let input = dilated(extent(&self.input, &ty.shape), own.input_dilation) as i64;
            let reach = dilated(extent(&self.kernel, &window), own.kernel_dilation) as i64 - 1;
            let output = dilated(extent(&self.output, &result), own.stride) as i64;
            let low = reach - own.padding.0;
            ConvolutionWindow {
                stride: own.input_dilation,
                padding: (low, input + reach - output - low),
                input_dilation: own.stride,
                kernel_dilation: own.kernel_dilation,
                reversed: true,
            }
        });
        let op = Convolution {
            input: self.output.clone(),
            kernel: self.kernel.exchanged(),
            output: self.input.clone(),
            windows: windows.collect(),
            feature_groups: groups,
            batch_groups: 1,
            dtype: ty.dtype,
        };
        let gradient = b.push1(op, &[g, kernel])?;
        match self.batch_groups > 1 {
            true => regrouped(b, gradient, self.batch_groups, self.input.feature, self.input.batch),
            false => Ok(gradient),
        }
    }

    /// The cotangent of the kernel.
    fn kernel_gradient(&self, b: &mut GraphBuilder, g: ValueId, x: ValueId, kernel: ValueId) -> Result<ValueId> {
        let (ty, input, result) = (b.ty(kernel).clone(), b.shape(x), b.shape(g));
        if ty.element_count() == 0 || result.contains(&0) || input.contains(&0) {
            return b.full(&ty, 0.0);
        }
        let windows = self.windows.iter().enumerate().map(|(number, own)| {
            let extent = |side: &ConvolutionSide, shape: &[usize]| shape[side.spatial[number]];
            let input = dilated(extent(&self.input, &input), own.input_dilation) as i64;
            let window = dilated(extent(&self.kernel, &ty.shape), own.kernel_dilation) as i64;
            let output = dilated(extent(&self.output, &result), own.stride) as i64;
            let low = own.padding.0;
            ConvolutionWindow {
                stride: own.kernel_dilation,
                padding: (low, output - input + window - low - 1),
                input_dilation: own.input_dilation,
                kernel_dilation: own.stride,
                reversed: false,
            }
        });
        let op = Convolution {
            input: self.input.exchanged(),
            kernel: self.output.exchanged(),
            output: self.kernel.exchanged(),
            windows: windows.collect(),
            feature_groups: self.batch_groups,
            batch_groups: self.feature_groups,
            dtype: ty.dtype,
        };
        b.push1(op, &[x, g])
    }
}
