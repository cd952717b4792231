//! Recognises attention that arrives as separate ops: matmul, scale, mask, softmax, matmul, and what differentiating these
//! gives. Written out, every score is stored and read several times; as the composite it runs as one kernel, and plans and
//! patterns see it.
//!
//! From each matmul that may be that of queries and keys, [`flow::Flow`] follows what depends on its result. Layouts of
//! heads and features are followed as axes ([`axes`]), masks as functions of places ([`places`]), and the arithmetic of a
//! softmax and its gradient as sums of known terms ([`terms`]), so that the order in which a framework writes these ops does
//! not matter. If every reader of the weights is accounted for, the matmuls behind them become the results of
//! `partita.attention` and of its gradient, and the ops between have no reader left. If not, all stay: the weights are
//! returned, dropped out, or part of something else.
//!
//! Numbers are the same, but for rounding, where scores are of ordinary size: weights that a mask of finite numbers leaves,
//! such as -1e9, are 0 here. Masks are causal or there is none; another mask may hide all keys of a query, for which the
//! composite gives 0 and a softmax does not.

mod axes;
mod flow;
mod matmul;
mod places;
mod terms;

use axes::{Axes, Axis, Dims};
use flow::{Flow, Found, Operand, Product, Scores};
use partita_base::{DType, Result};
use partita_ir::composites::ATTENTION;
use partita_ir::graph_edit::{prune, push_copy, rebuild};
use partita_ir::ops::{Composite, Op};
use partita_ir::{
    Attribute, Attributes, GradientContext, Graph, GraphBuilder, NodeId, Operation, TensorType, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The graph with each attention that is written out as a composite, without nodes that no result needs.
///
/// # Errors
/// Those of building nodes: none for a well-formed graph.
pub fn recognise_attention(graph: &Graph) -> Result<Graph> {
    let graph = &prune(graph.clone());
    let uses = graph.uses();
    let mut found: Vec<Attention> = Vec::new();
    for seed in graph.node_ids() {
        if !matches!(graph.node(seed).op, Op::DotGeneral(_)) {
            continue;
        }
        let readings = [(true, 0), (false, 0), (true, 1), (false, 1)].into_iter();
        let flows = readings.filter_map(|(left, counting)| Flow::of(graph, &uses, seed, left, counting));
        found.extend(flows.filter_map(|flow| Attention::of(graph, seed, flow)).next());
    }
    if found.is_empty() {
        return Ok(graph.clone());
    }
    // The attention and the place in it of each replaced node.
    let mut replaced: BTreeMap<usize, (usize, Found)> = BTreeMap::new();
    for (number, attention) in found.iter().enumerate() {
        for result in &attention.results {
            replaced.insert(result.node.index(), (number, result.clone()));
        }
    }
    let mut emitted: Vec<Emitted> = found.iter().map(|_| Emitted::default()).collect();
    let rewritten = rebuild(graph, |builder, map, index, operands| {
        let Some((number, result)) = replaced.get(&index) else {
            return Ok(Some(push_copy(builder, graph, index, operands)));
        };
        builder.enter(&graph.nodes[index]);
        let attention = &found[*number];
        let value = attention.emit(builder, map, &mut emitted[*number], result)?;
        let ty = graph.ty(graph.nodes[index].results[0]);
        let value = attention.arranged(builder, value, &result.dims, ty)?;
        let value = if result.factor == 1.0 { value } else { builder.scale(value, result.factor)? };
        Ok(Some(vec![value]))
    })?;
    Ok(prune(rewritten))
}

/// An attention of which nothing is read but its results.
struct Attention {
    axes: Axes,
    scores: Scores,
    /// Queries, keys, values; the gradient of the output, if there is one.
    operands: Vec<Operand>,
    results: Vec<Found>,
    dtype: DType,
}

/// The values of an attention that have been built.
#[derive(Default)]
struct Emitted {
    operands: Option<Vec<ValueId>>,
    output: Option<ValueId>,
    gradients: BTreeMap<usize, ValueId>,
}

/// How far a factor may be from 1 and still be rounding of the program's constants.
const ROUNDING: f64 = 1e-6;

impl Attention {
    /// The attention that a flow has found; `None` if something else reads what is inside, or a layout is requested there.
    fn of(graph: &Graph, seed: NodeId, flow: Flow) -> Option<Attention> {
        let scores = flow.scores?;
        let mut results = flow.found.clone();
        for result in &mut results {
            if (result.factor - 1.0).abs() <= ROUNDING {
                result.factor = 1.0;
            }
        }
        let gradients: Vec<&Found> =
            results.iter().filter(|found| found.product != Product::Output).collect();
        let mut operands = vec![flow.queries.clone(), flow.keys.clone(), flow.values.clone()?];
        if !gradients.is_empty() {
            operands.push(flow.cotangent.clone()?);
        }
        let rank = |dtype: DType| dtype.bits();
        let dtype =
            operands[..3].iter().map(|operand| graph.ty(operand.value).dtype).max_by_key(|&d| rank(d))?;
        let operands: Vec<Operand> = operands.iter().map(|operand| flow.before_views(operand)).collect();
        // A composite takes the place of the first of its results: what it reads must be known by then.
        let defined =
            |operand: &Operand| graph.value(operand.value).definition.map_or(0, |(node, _)| node.index() + 1);
        let ready = operands.iter().map(defined).max()?;
        let in_order = gradients.iter().all(|found| found.node.index() >= ready);
        let is_requested = |value: ValueId| {
            let value = graph.value(value);
            value.annotation.is_some() || value.group.is_some()
        };
        let attention = Attention { axes: flow.axes.clone(), scores, operands, results, dtype };
        let inner: BTreeSet<usize> = flow.weights.iter().chain([&seed]).map(|node| node.index()).collect();
        let computes = matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
        let fits =
            computes && in_order && !flow.inside().any(is_requested) && !attention.leaves_read(graph, &inner);
        fits.then_some(attention)
    }

    /// Whether one of the nodes is still needed once the results read the operands alone.
    fn leaves_read(&self, graph: &Graph, nodes: &BTreeSet<usize>) -> bool {
        let mut needed = vec![false; graph.values.len()];
        graph.outputs.iter().for_each(|value| needed[value.index()] = true);
        let results: BTreeSet<usize> = self.results.iter().map(|found| found.node.index()).collect();
        for (index, node) in graph.nodes.iter().enumerate().rev() {
            if !node.results.iter().any(|value| needed[value.index()]) {
                continue;
            }
            if nodes.contains(&index) {
                return true;
            }
            if results.contains(&index) {
                self.operands.iter().for_each(|operand| needed[operand.value.index()] = true);
            } else {
                node.operands.iter().for_each(|value| needed[value.index()] = true);
            }
        }
        false
    }

    /// The axes of a tensor of the composite, one after the other, and its shape. A tensor with axes of queries has the
    /// shape of these, another that of keys.
    fn order(&self, dims: &Dims) -> (Vec<Axis>, [usize; 4]) {
        let axes = &self.axes;
        let is_query = dims.iter().flatten().any(|&axis| axis == axes.rows());
        let shared = axes.shared().filter(|_| is_query);
        let third = if is_query { axes.rows() } else { axes.columns() };
        let order = (0..axes.batch()).chain(shared).chain([third, axes.depth()]).collect();
        let batch = &axes.sizes[..axes.batch()];
        let (groups, batch) =
            batch.split_last().map_or((1, 1), |(&groups, rest)| (groups, rest.iter().product()));
        let heads = groups * shared.map_or(1, |axis| axes.sizes[axis]);
        (order, [batch, heads, axes.sizes[third], axes.sizes[axes.depth()]])
    }

    fn sizes(&self, axes: &[Axis]) -> Vec<usize> {
        axes.iter().map(|&axis| self.axes.sizes[axis]).collect()
    }

    /// A value as `[batch, heads, queries or keys, features]`.
    fn canonical(&self, b: &mut GraphBuilder, value: ValueId, dims: &Dims) -> Result<ValueId> {
        let own: Vec<Axis> = dims.iter().flatten().copied().collect();
        let (order, shape) = self.order(dims);
        let value = b.convert(value, self.dtype)?;
        let value = b.reshape(value, &self.sizes(&own))?;
        let value = permuted(b, value, &own, &order)?;
        b.reshape(value, &shape)
    }

    /// A result of the composite with these dimensions and this type.
    fn arranged(
        &self,
        b: &mut GraphBuilder,
        value: ValueId,
        dims: &Dims,
        ty: &TensorType,
    ) -> Result<ValueId> {
        let own: Vec<Axis> = dims.iter().flatten().copied().collect();
        let (order, _) = self.order(dims);
        let value = b.reshape(value, &self.sizes(&order))?;
        let value = permuted(b, value, &order, &own)?;
        let value = b.reshape(value, &ty.shape)?;
        b.convert(value, ty.dtype)
    }

    fn attributes(&self) -> Attributes {
        let attributes =
            [("causal", Attribute::Bool(self.scores.causal)), ("scale", Attribute::Float(self.scores.scale))];
        attributes.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }

    /// One result of the composite or of its gradient, which are built with the first of their results.
    fn emit(
        &self,
        b: &mut GraphBuilder,
        map: &[Option<ValueId>],
        emitted: &mut Emitted,
        result: &Found,
    ) -> Result<ValueId> {
        let new = |operand: &Operand| map[operand.value.index()].expect("operands come first");
        if emitted.operands.is_none() {
            let all = self.operands[..3].iter().map(|operand| self.canonical(b, new(operand), &operand.dims));
            emitted.operands = Some(all.collect::<Result<_>>()?);
        }
        let operands = emitted.operands.clone().expect("just built");
        let types: Vec<TensorType> = operands.iter().map(|&value| b.ty(value).clone()).collect();
        let number = match result.product {
            Product::Output => {
                if emitted.output.is_none() {
                    let composite = Composite::new(&ATTENTION, self.attributes(), &types)?;
                    emitted.output = Some(b.push1(composite, &operands)?);
                }
                return Ok(emitted.output.expect("just built"));
            }
            Product::Gradient(number) => number,
        };
        if emitted.gradients.is_empty() {
            let wanted: BTreeSet<usize> = self
                .results
                .iter()
                .filter_map(|found| match found.product {
                    Product::Output => None,
                    Product::Gradient(number) => Some(number),
                })
                .collect();
            let cotangent = self.canonical(b, new(&self.operands[3]), &self.operands[3].dims)?;
            let mut context = GradientContext {
                builder: b,
                operands: &operands,
                results: &[],
                cotangents: &[Some(cotangent)],
                wanted: &[0, 1, 2].map(|number| wanted.contains(&number)),
            };
            let gradients = Composite::new(&ATTENTION, self.attributes(), &types)?.gradient(&mut context)?;
            let gradients = gradients.into_iter().enumerate();
            emitted.gradients = gradients.filter_map(|(number, value)| Some((number, value?))).collect();
        }
        Ok(emitted.gradients[&number])
    }
}

/// A tensor with one dimension for each of the axes `from` with its dimensions in the order `to`.
fn permuted(b: &mut GraphBuilder, value: ValueId, from: &[Axis], to: &[Axis]) -> Result<ValueId> {
    let place = |axis: &Axis| from.iter().position(|own| own == axis).expect("the same axes");
    let permutation: Vec<usize> = to.iter().map(place).collect();
    if permutation.is_sorted() { Ok(value) } else { b.transpose(value, &permutation) }
}
