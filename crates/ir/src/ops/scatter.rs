//! Scatter: updates written or combined at computed indices.

use super::checks::{distinct_dims, operand_count, same_dtype, shapes, sizes};
use super::gather::{Gather, GatherDims, Indexing};
use super::reduce::{Numbers, Reducer, element, refused};
use super::{Clamp, Direction, Pad};
use crate::builder::{GraphBuilder, identity};
use crate::graph::{Graph, Node, ValueId};
use crate::interpret;
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Operation};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Result};
use partita_mesh::Combiner;

/// The dimension numbers of StableHLO's `scatter`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScatterDims {
    /// Update dimensions that run over a window.
    pub update_window_dims: Vec<usize>,
    /// Operand dimensions of window extent 1 that the updates lack.
    pub inserted_window_dims: Vec<usize>,
    /// Operand dimensions paired with `scatter_indices_batching_dims`.
    pub input_batching_dims: Vec<usize>,
    /// Index dimensions paired with `input_batching_dims`.
    pub scatter_indices_batching_dims: Vec<usize>,
    /// Operand dimension that each component of an index vector addresses.
    pub scatter_dims_to_operand_dims: Vec<usize>,
    /// Dimension of the indices that holds the index vector.
    pub index_vector_dim: usize,
}

/// How an update changes an element.
#[derive(Clone, PartialEq, Debug)]
pub enum Update {
    /// The update replaces it.
    Assign,
    /// Both are combined.
    Combine(Reducer),
}

/// Operands (operand, indices, updates). Out-of-range updates are dropped, element by element; the
/// others are applied in index order.
#[derive(Clone, PartialEq, Debug)]
pub struct Scatter {
    /// Dimension numbers.
    pub dims: ScatterDims,
    /// How an update changes an element.
    pub update: Update,
    /// The caller promises ascending indices.
    pub indices_are_sorted: bool,
    /// The caller promises that no index occurs twice.
    pub unique_indices: bool,
}

const NAME: &str = "stablehlo.scatter";

impl Scatter {
    fn indexing(&self) -> Indexing<'_> {
        Indexing {
            window_dims: &self.dims.update_window_dims,
            absent_dims: &self.dims.inserted_window_dims,
            operand_batching: &self.dims.input_batching_dims,
            index_batching: &self.dims.scatter_indices_batching_dims,
            map: &self.dims.scatter_dims_to_operand_dims,
            index_vector_dim: self.dims.index_vector_dim,
            names: [
                "update_window_dims",
                "inserted_window_dims",
                "input_batching_dims",
                "scatter_indices_batching_dims",
                "scatter_dims_to_operand_dims",
            ],
        }
    }

    /// The combiner, if updates are combined by one.
    fn combiner(&self) -> Option<Combiner> {
        match &self.update {
            Update::Assign => None,
            Update::Combine(reducer) => reducer.combiner(),
        }
    }

    /// For each update element in index order: (position in the operand, position in the updates).
    /// Out-of-range updates are omitted.
    fn moves(&self, operand: &TensorType, index: &Literal, updates: &TensorType) -> Vec<(usize, usize)> {
        let indexing = self.indexing();
        let rank = operand.rank();
        let (to_strides, from_strides) = (operand.strides(), updates.strides());
        let window_dims = indexing.window_operand_dims(rank);
        let batch_dims = indexing.windows_batch_dims(updates.rank());
        let window: Vec<usize> = indexing.window_dims.iter().map(|&d| updates.shape[d]).collect();
        let mut moves = Vec::new();
        for (batch, start) in indexing.starts(rank, index) {
            let base: usize = batch.iter().zip(&batch_dims).map(|(i, &d)| i * from_strides[d]).sum();
            for offset in indices(&window) {
                let mut place = start.clone();
                let mut from = base;
                for (position, i) in offset.into_iter().enumerate() {
                    let dim = window_dims[position];
                    place[dim] = place[dim].saturating_add(i as i64);
                    from += i * from_strides[indexing.window_dims[position]];
                }
                if place.iter().zip(&operand.shape).all(|(&p, &extent)| p >= 0 && p < extent as i64) {
                    let to = place.iter().zip(&to_strides).map(|(&p, s)| p as usize * s).sum();
                    moves.push((to, from));
                }
            }
        }
        moves
    }

    /// The elements of `from` (of the operand's shape) at the destination of each update element,
    /// zero if it is out of range. `from` is padded with as many zeros as an out-of-range window
    /// needs.
    fn read_back(
        &self,
        builder: &mut GraphBuilder,
        from: ValueId,
        index: ValueId,
        updates: &TensorType,
    ) -> Result<ValueId> {
        let indexing = self.indexing();
        let ty = builder.ty(from).clone();
        let mut window = vec![1; ty.rank()];
        for (dim, &update_dim) in
            indexing.window_operand_dims(ty.rank()).into_iter().zip(indexing.window_dims)
        {
            window[dim] = updates.shape[update_dim];
        }
        let margin: Vec<i64> =
            (0..ty.rank()).map(|d| if indexing.map.contains(&d) { window[d] as i64 } else { 0 }).collect();
        let zero = builder.scalar(ty.dtype, 0.0);
        let pad = Pad { low: margin.clone(), high: margin.clone(), interior: vec![0; ty.rank()] };
        let padded = builder.push1(pad, &[from, zero])?;
        let index = builder.convert(index, DType::I64)?;
        let low = indexing.per_component(builder, index, |d| -margin[d])?;
        let high = indexing.per_component(builder, index, |d| ty.shape[d] as i64)?;
        let index = builder.push1(Clamp, &[low, index, high])?;
        let shift = indexing.per_component(builder, index, |d| margin[d])?;
        let index = builder.add(index, shift)?;
        let dims = self.dims.clone();
        let gather = Gather {
            dims: GatherDims {
                offset_dims: dims.update_window_dims,
                collapsed_slice_dims: dims.inserted_window_dims,
                operand_batching_dims: dims.input_batching_dims,
                start_indices_batching_dims: dims.scatter_indices_batching_dims,
                start_index_map: dims.scatter_dims_to_operand_dims,
                index_vector_dim: dims.index_vector_dim,
            },
            slice_sizes: window,
            indices_are_sorted: self.indices_are_sorted,
        };
        builder.push1(gather, &[padded, index])
    }
}

impl Operation for Scatter {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 3)?;
        let (operand, index, updates) = (operands[0], operands[1], operands[2]);
        same_dtype(NAME, operand, updates)?;
        let indexing = self.indexing();
        indexing.check(NAME, operand, index)?;
        let batch = indexing.index_batch_dims(index);
        let rank = indexing.window_dims.len() + batch.len();
        shapes(
            updates.rank() == rank,
            format!("updates of `{NAME}` need one dimension per window dimension and per batch dimension of the indices"),
            format!("{rank} dimensions"),
            updates.to_string(),
        )?;
        distinct_dims(NAME, "update_window_dims", indexing.window_dims, rank)?;
        for (dim, index_dim) in indexing.windows_batch_dims(rank).into_iter().zip(batch) {
            shapes(
                updates.shape[dim] == index.shape[index_dim],
                format!(
                    "dimension {dim} of the updates and {index_dim} of the indices of `{NAME}` must agree"
                ),
                index.shape[index_dim].to_string(),
                updates.shape[dim].to_string(),
            )?;
        }
        let window = indexing.window_operand_dims(operand.rank());
        for (&dim, operand_dim) in indexing.window_dims.iter().zip(window) {
            let (slice, extent) = (updates.shape[dim], operand.shape[operand_dim]);
            // An empty shard of an indexed dimension drops its one-element windows like all others.
            let empty_shard = extent == 0 && slice == 1 && indexing.map.contains(&operand_dim);
            sizes(
                slice <= extent || empty_shard,
                format!("the window of `{NAME}` does not fit dimension {operand_dim}"),
                format!("at most {extent}"),
                slice.to_string(),
            )?;
        }
        if let Update::Combine(reducer) = &self.update {
            reducer.check(NAME, &[operand.dtype])?;
        }
        Ok(vec![operand.clone()])
    }

    /// Full windows that are not indexed may be sharded; so may indexed dimensions, where each
    /// shard keeps the updates in its range. Sharding the updates gives partial results if they are
    /// combined.
    fn rule(&self, operands: &[&TensorType], _: &[&TensorType]) -> Rule {
        let (operand, index, updates) = (operands[0], operands[1], operands[2]);
        let indexing = self.indexing();
        let mut rule = Rule::default();
        let mut target = vec![Vec::new(); operand.rank()];
        let mut source = vec![Vec::new(); updates.rank()];
        let mut vectors = vec![Vec::new(); index.rank()];
        let window = indexing.window_operand_dims(operand.rank());
        for (&dim, &operand_dim) in indexing.window_dims.iter().zip(&window) {
            let (slice, extent) = (updates.shape[dim], operand.shape[operand_dim]);
            let indexed = indexing.map.contains(&operand_dim);
            if slice == extent && !indexed {
                let factor = rule.factor(extent, FactorKind::Pass);
                (target[operand_dim], source[dim]) = (vec![factor], vec![factor]);
            } else {
                // A wider window could exceed a shard.
                let kind = if indexed && slice == 1 { FactorKind::Pass } else { FactorKind::Whole };
                target[operand_dim] = vec![rule.factor(extent, kind)];
                source[dim] = vec![rule.factor(slice, FactorKind::Whole)];
            }
        }
        for &dim in indexing.absent_dims {
            let indexed = indexing.map.contains(&dim);
            let kind = if indexed { FactorKind::Pass } else { FactorKind::Whole };
            target[dim] = vec![rule.factor(operand.shape[dim], kind)];
        }
        let kind = self.combiner().map_or(FactorKind::Whole, FactorKind::Reduce);
        indexing.batch_factors(&mut rule, index, kind, &mut target, &mut vectors, &mut source);
        rule.operands = vec![target.clone(), vectors, source];
        rule.results = vec![target];
        match self.update {
            Update::Assign => rule.transparent_in(&[0, 2]),
            Update::Combine(Reducer::Combiner(Combiner::Sum)) => rule.linear_in(&[0, 2]),
            Update::Combine(_) => rule,
        }
    }

    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        let bytes: usize = operands.iter().chain(results).map(|ty| ty.bytes()).sum();
        Cost { flops: operands[2].element_count() as f64, bytes: bytes as f64 }
    }

    /// E120 unless updates are added or assigned.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let Some(cotangent) = context.cotangents[0] else { return Ok(vec![None; 3]) };
        let builder = &mut *context.builder;
        let index = context.operands[1];
        let updates = builder.ty(context.operands[2]).clone();
        let mut gradients = vec![None; 3];
        match &self.update {
            Update::Combine(Reducer::Combiner(Combiner::Sum)) => {
                gradients[0] = context.wanted[0].then_some(cotangent);
                if context.wanted[2] {
                    gradients[2] = Some(self.read_back(builder, cotangent, index, &updates)?);
                }
            }
            Update::Assign => {
                if context.wanted[0] {
                    let zeros = builder.full(&updates, 0.0)?;
                    gradients[0] = Some(builder.push1(self.clone(), &[cotangent, index, zeros])?);
                }
                if context.wanted[2] {
                    let read = self.read_back(builder, cotangent, index, &updates)?;
                    gradients[2] = Some(if self.unique_indices {
                        read
                    } else {
                        // If several updates hit one element, only the last is visible in the
                        // result: number the updates to find it.
                        let count = TensorType::new(DType::I64, [updates.element_count()]);
                        let numbers = builder.iota(count, 0)?;
                        let numbers = builder.offset(numbers, 1.0)?;
                        let numbers = builder.reshape(numbers, &updates.shape)?;
                        let shape = builder.ty(cotangent).with_dtype(DType::I64);
                        let zeros = builder.full(&shape, 0.0)?;
                        let winners = builder.push1(self.clone(), &[zeros, index, numbers])?;
                        let winners = self.read_back(builder, winners, index, &updates)?;
                        let won = builder.compare(Direction::Eq, winners, numbers)?;
                        let zeros = builder.full(&updates, 0.0)?;
                        builder.select(won, read, zeros)?
                    });
                }
            }
            Update::Combine(Reducer::Combiner(combiner)) => {
                return Err(refused(NAME, &format!("combination by {combiner}")));
            }
            Update::Combine(Reducer::Body(_)) => return Err(refused(NAME, "a general body")),
        }
        Ok(gradients)
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (operand, updates) = (operands[0], operands[2]);
        let moves = self.moves(&operand.ty, operands[1], &updates.ty);
        match &self.update {
            Update::Assign => {
                let mut result = operand.clone();
                for (to, from) in moves {
                    result.data.put(to, &updates.data, from);
                }
                Ok(vec![result])
            }
            Update::Combine(Reducer::Combiner(combiner)) => {
                let (mut sums, values) = (Numbers::of(operand), Numbers::of(updates));
                for (to, from) in moves {
                    sums.combine(*combiner, to, &values, from);
                }
                Ok(vec![sums.literal(&results[0])])
            }
            Update::Combine(Reducer::Body(body)) => {
                let mut result = operand.clone();
                for (to, from) in moves {
                    let outputs = interpret::evaluate(body, &[element(&result, to), element(updates, from)])?;
                    result.data.put(to, &outputs[0].data, 0);
                }
                Ok(vec![result])
            }
        }
    }

    /// Indices become relative to the shard, so updates for other shards are out of range. If
    /// updates are sharded, only the leader starts from the operand.
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn overwrites(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let types: Vec<TensorType> = (0..3).map(|i| context.global_operand(i).clone()).collect();
        let rule = self.rule(&types.iter().collect::<Vec<_>>(), &[&types[0]]);
        let indexing = self.indexing();
        let mut operands = context.operands().to_vec();
        let cut: Vec<usize> = indexing
            .map
            .iter()
            .copied()
            .filter(|&d| rule.operands[0][d].iter().any(|&factor| context.is_sharded(factor)))
            .collect();
        if !cut.is_empty() {
            let index = context.builder().convert(operands[1], DType::I64)?;
            operands[1] = indexing.relative_to_shard(context, index, &cut)?;
        }
        if let Some(combiner @ (Combiner::Sum | Combiner::Prod)) = self.combiner() {
            let reduced: Vec<FactorId> = (0..rule.factors.len())
                .filter(|&f| matches!(rule.factors[f].kind, FactorKind::Reduce(_)) && context.is_sharded(f))
                .collect();
            if !reduced.is_empty() {
                let leader = context.leader(&reduced)?;
                let builder = context.builder();
                let shape = builder.shape(operands[0]);
                let neutral = builder.constant(identity(combiner, types[0].dtype));
                let neutral = builder.broadcast_scalar(neutral, &shape)?;
                operands[0] = builder.select(leader, operands[0], neutral)?;
            }
        }
        let result = context.local_result(0);
        Ok(context.builder().push_typed(self.clone(), &operands, vec![result]))
    }

    fn regions(&self) -> Vec<&Graph> {
        match &self.update {
            Update::Assign => Vec::new(),
            Update::Combine(reducer) => reducer.regions(),
        }
    }
}

// ---- text ----

use super::ParseOp;
use super::gather::print_dimension_numbers;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.scatter", parse_scatter)];

impl TextForm for Scatter {
    /// The generic form: StableHLO has no other. The region takes (element, update).
    fn print(&self, printer: &mut OpPrinter) {
        let dims = &self.dims;
        let numbers = print_dimension_numbers(
            &[
                ("update_window_dims", &dims.update_window_dims),
                ("inserted_window_dims", &dims.inserted_window_dims),
                ("input_batching_dims", &dims.input_batching_dims),
                ("scatter_indices_batching_dims", &dims.scatter_indices_batching_dims),
                ("scatter_dims_to_operand_dims", &dims.scatter_dims_to_operand_dims),
            ],
            dims.index_vector_dim,
        );
        let properties = [
            ("indices_are_sorted", self.indices_are_sorted.to_string()),
            ("scatter_dimension_numbers", format!("#stablehlo.scatter<{numbers}>")),
            ("unique_indices", self.unique_indices.to_string()),
        ];
        let dtype = printer.operand_types()[0].dtype;
        let body = match &self.update {
            Update::Combine(reducer) => reducer.to_region(&[dtype]),
            Update::Assign => {
                let mut builder = GraphBuilder::new("");
                let scalar = TensorType::scalar(dtype);
                builder.input("", scalar.clone(), crate::graph::Role::Activation);
                let update = builder.input("", scalar, crate::graph::Role::Activation);
                builder.finish(vec![update])
            }
        };
        printer.generic("stablehlo.scatter", &properties, &[&body]);
    }
}

fn parse_scatter(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", "`stablehlo.scatter` must be written in the generic form"));
    }
    if op.operands.len() > 3 {
        return Err(op.error("E144", "`stablehlo.scatter` of several operands at once is not supported"));
    }
    op.arity(3)?;
    let numbers = op.record_of("scatter_dimension_numbers")?;
    let dims = ScatterDims {
        update_window_dims: op.field(&numbers, "update_window_dims")?,
        inserted_window_dims: op.field(&numbers, "inserted_window_dims")?,
        input_batching_dims: op.field(&numbers, "input_batching_dims")?,
        scatter_indices_batching_dims: op.field(&numbers, "scatter_indices_batching_dims")?,
        scatter_dims_to_operand_dims: op.field(&numbers, "scatter_dims_to_operand_dims")?,
        index_vector_dim: op.field(&numbers, "index_vector_dim")?.first().copied().unwrap_or(0),
    };
    let body = op.region(0)?;
    let update = match (body.outputs.as_slice(), body.inputs.as_slice()) {
        ([output], [_, update]) if output == update => Update::Assign,
        _ => Update::Combine(Reducer::from_region(body)),
    };
    let scatter = Scatter {
        dims,
        update,
        indices_are_sorted: op.flag("indices_are_sorted"),
        unique_indices: op.flag("unique_indices"),
    };
    op.finish(scatter)
}

#[cfg(test)]
mod tests;
