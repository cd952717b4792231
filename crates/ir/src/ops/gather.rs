//! Gather: slices at computed indices.

use super::checks::{distinct_dims, element_type, operand_count, shapes, sizes};
use super::scatter::{Scatter, ScatterDims, Update};
use super::{Clamp, Direction, Reducer};
use crate::builder::GraphBuilder;
use crate::graph::{Graph, Node, ValueId};
use crate::literal::{Literal, indices};
use crate::op::{Cost, GradientContext, LocalContext, Operation};
use crate::rule::{FactorId, FactorKind, Rule};
use crate::traits::Traits;
use crate::types::TensorType;
use partita_base::{DType, Diagnostic, Result};
use partita_mesh::Combiner;

/// The dimension numbers of StableHLO's `gather`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GatherDims {
    /// Result dimensions that run over a window.
    pub offset_dims: Vec<usize>,
    /// Operand dimensions of slice size 1 that are removed.
    pub collapsed_slice_dims: Vec<usize>,
    /// Operand dimensions paired with `start_indices_batching_dims`.
    pub operand_batching_dims: Vec<usize>,
    /// Index dimensions paired with `operand_batching_dims`.
    pub start_indices_batching_dims: Vec<usize>,
    /// Operand dimension that each component of an index vector addresses.
    pub start_index_map: Vec<usize>,
    /// Dimension of the indices that holds the index vector; its rank means an implicit trailing 1.
    pub index_vector_dim: usize,
}

/// Operands (operand, start_indices). Start indices are clamped so that each window fits. A
/// collapsed dimension of extent 0 (an empty shard) gives zeros.
#[derive(Clone, PartialEq, Debug)]
pub struct Gather {
    /// Dimension numbers.
    pub dims: GatherDims,
    /// Extents of the window, one per operand dimension.
    pub slice_sizes: Vec<usize>,
    /// The caller promises ascending indices.
    pub indices_are_sorted: bool,
}

const NAME: &str = "stablehlo.gather";

/// The dimension numbering shared by `gather` and `scatter`: `operand` is indexed, `windows` are
/// the slices (gather's result, scatter's updates).
pub(crate) struct Indexing<'a> {
    /// Dimensions of `windows` that run over a window, ascending.
    pub window_dims: &'a [usize],
    /// Operand dimensions that `windows` lacks.
    pub absent_dims: &'a [usize],
    pub operand_batching: &'a [usize],
    pub index_batching: &'a [usize],
    /// Operand dimension of each component of an index vector.
    pub map: &'a [usize],
    pub index_vector_dim: usize,
    /// Names of the attributes, as messages show them.
    pub names: [&'static str; 5],
}

impl Indexing<'_> {
    /// The operand dimension of each of `window_dims`.
    pub fn window_operand_dims(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|d| !self.absent_dims.contains(d) && !self.operand_batching.contains(d)).collect()
    }

    /// The index dimensions that enumerate windows, in order.
    pub fn index_batch_dims(&self, indices: &TensorType) -> Vec<usize> {
        (0..indices.rank()).filter(|&d| d != self.index_vector_dim).collect()
    }

    /// The dimensions of `windows` that correspond to `index_batch_dims`.
    pub fn windows_batch_dims(&self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|d| !self.window_dims.contains(d)).collect()
    }

    /// E103 to E106 unless the dimension numbers fit an operand and indices.
    pub fn check(&self, name: &str, operand: &TensorType, indices: &TensorType) -> Result<()> {
        let [window, absent, operand_batching, index_batching, map] = self.names;
        element_type(name, indices.dtype.is_integer(), "integer indices", indices.dtype)?;
        let ranks = [
            (window, self.window_dims, usize::MAX),
            (absent, self.absent_dims, operand.rank()),
            (operand_batching, self.operand_batching, operand.rank()),
            (index_batching, self.index_batching, indices.rank()),
            (map, self.map, operand.rank()),
        ];
        for (attribute, dims, rank) in ranks {
            distinct_dims(name, attribute, dims, rank)?;
        }
        for (attribute, dims) in [(window, self.window_dims), (absent, self.absent_dims)] {
            if !dims.is_sorted() {
                return Err(Diagnostic::new("E105", format!("`{attribute}` of `{name}` must ascend"))
                    .found(format!("{dims:?}")));
            }
        }
        let both = [self.absent_dims, self.operand_batching].concat();
        distinct_dims(name, &format!("{absent} and {operand_batching}"), &both, operand.rank())?;
        let both = [self.map, self.operand_batching].concat();
        distinct_dims(name, &format!("{map} and {operand_batching}"), &both, operand.rank())?;
        let fail = |message: String, expected: String, found: String| {
            Err(Diagnostic::new("E105", message).expected(expected).found(found))
        };
        if self.index_vector_dim > indices.rank() {
            return fail(
                format!("`index_vector_dim` of `{name}` does not exist"),
                format!("at most {} for indices of {indices}", indices.rank()),
                self.index_vector_dim.to_string(),
            );
        }
        let components = indices.shape.get(self.index_vector_dim).copied().unwrap_or(1);
        if components != self.map.len() {
            return fail(
                format!("`{map}` of `{name}` must name a dimension for each component of an index vector"),
                format!("{components} dimensions"),
                format!("{:?}", self.map),
            );
        }
        let accounted = self.window_dims.len() + self.absent_dims.len() + self.operand_batching.len();
        if accounted != operand.rank() {
            return fail(
                format!("`{window}`, `{absent}` and `{operand_batching}` of `{name}` must cover the operand"),
                format!("{} dimensions of {operand}", operand.rank()),
                format!("{accounted} dimensions"),
            );
        }
        if self.operand_batching.len() != self.index_batching.len()
            || self.index_batching.contains(&self.index_vector_dim)
        {
            return fail(
                format!("`{operand_batching}` and `{index_batching}` of `{name}` must have equal lengths"),
                "index dimensions other than the index vector's, one for each".to_string(),
                format!("{:?} and {:?}", self.operand_batching, self.index_batching),
            );
        }
        for (&o, &i) in self.operand_batching.iter().zip(self.index_batching) {
            shapes(
                operand.shape[o] == indices.shape[i],
                format!("batching dimensions {o} and {i} of `{name}` must have one extent"),
                operand.shape[o].to_string(),
                indices.shape[i].to_string(),
            )?;
        }
        Ok(())
    }

    /// For each window in order: its index within the batch dimensions, and the start (unclamped, batching included)
    /// in every operand dimension.
    pub fn starts(&self, operand_rank: usize, index_values: &Literal) -> Vec<(Vec<usize>, Vec<i64>)> {
        let ty = &index_values.ty;
        let (values, strides) = (index_values.to_i64(), ty.strides());
        let batch_dims = self.index_batch_dims(ty);
        let shape: Vec<usize> = batch_dims.iter().map(|&d| ty.shape[d]).collect();
        let component_stride = strides.get(self.index_vector_dim).copied().unwrap_or(0);
        indices(&shape)
            .map(|batch| {
                let base: usize = batch.iter().zip(&batch_dims).map(|(i, &d)| i * strides[d]).sum();
                let mut start = vec![0i64; operand_rank];
                for (component, &dim) in self.map.iter().enumerate() {
                    start[dim] = values[base + component * component_stride];
                }
                for (&dim, index_dim) in self.operand_batching.iter().zip(self.index_batching) {
                    let place = batch_dims.iter().position(|d| d == index_dim).expect("checked by infer");
                    start[dim] = batch[place] as i64;
                }
                (batch, start)
            })
            .collect()
    }

    /// Adds the factors common to both ops: batching, and index dimensions that enumerate windows
    /// (with `kind`). `windows` and `index` get their factor lists, `operand` those of its batching
    /// dimensions.
    pub fn batch_factors(
        &self,
        rule: &mut Rule,
        index_type: &TensorType,
        kind: FactorKind,
        operand: &mut [Vec<FactorId>],
        index: &mut [Vec<FactorId>],
        windows: &mut [Vec<FactorId>],
    ) {
        let windows_dims = self.windows_batch_dims(windows.len());
        for (dim, windows_dim) in self.index_batch_dims(index_type).into_iter().zip(windows_dims) {
            let paired = self.index_batching.iter().position(|&d| d == dim);
            let kind = if paired.is_some() { FactorKind::Pass } else { kind };
            let factor = rule.factor(index_type.shape[dim], kind);
            index[dim] = vec![factor];
            windows[windows_dim] = vec![factor];
            if let Some(pair) = paired {
                operand[self.operand_batching[pair]] = vec![factor];
            }
        }
        if let Some(&components) = index_type.shape.get(self.index_vector_dim) {
            index[self.index_vector_dim] = vec![rule.factor(components, FactorKind::Whole)];
        }
    }

    /// One i64 per component of the index vector, from a value per operand dimension, in the shape of `like`.
    pub fn per_component(
        &self,
        builder: &mut GraphBuilder,
        like: ValueId,
        value: impl Fn(usize) -> i64,
    ) -> Result<ValueId> {
        let values: Vec<i64> = self.map.iter().map(|&dim| value(dim)).collect();
        let vector = builder.constant(Literal::new([values.len()], values));
        self.spread(builder, vector, like)
    }

    /// A vector over the components, broadcast to the shape of `like`.
    fn spread(&self, builder: &mut GraphBuilder, vector: ValueId, like: ValueId) -> Result<ValueId> {
        let shape = builder.shape(like);
        if self.index_vector_dim < shape.len() {
            return builder.broadcast_in_dim(vector, &shape, &[self.index_vector_dim]);
        }
        let scalar = builder.reshape(vector, &[])?;
        builder.broadcast_scalar(scalar, &shape)
    }

    /// `index` (i64) minus the offset of this rank's shard in each of the sharded operand
    /// dimensions `cut`.
    pub fn relative_to_shard(
        &self,
        context: &mut dyn LocalContext,
        index: ValueId,
        cut: &[usize],
    ) -> Result<ValueId> {
        let mut offsets = Vec::new();
        for &dim in self.map {
            let offset = if cut.contains(&dim) {
                context.operand_offset(0, dim)?
            } else {
                context.builder().constant(Literal::new([], vec![0i64]))
            };
            offsets.push(context.builder().reshape(offset, &[1])?);
        }
        let builder = context.builder();
        let vector = if offsets.len() == 1 { offsets[0] } else { builder.concatenate(&offsets, 0)? };
        let vector = self.spread(builder, vector, index)?;
        builder.subtract(index, vector)
    }
}

impl Gather {
    pub(crate) fn indexing(&self) -> Indexing<'_> {
        Indexing {
            window_dims: &self.dims.offset_dims,
            absent_dims: &self.dims.collapsed_slice_dims,
            operand_batching: &self.dims.operand_batching_dims,
            index_batching: &self.dims.start_indices_batching_dims,
            map: &self.dims.start_index_map,
            index_vector_dim: self.dims.index_vector_dim,
            names: [
                "offset_dims",
                "collapsed_slice_dims",
                "operand_batching_dims",
                "start_indices_batching_dims",
                "start_index_map",
            ],
        }
    }

    /// The indices as i64, clamped so that each window fits `shape`; components of dimensions not
    /// in `only` are unchanged.
    fn clamped(
        &self,
        builder: &mut GraphBuilder,
        index: ValueId,
        shape: &[usize],
        only: impl Fn(usize) -> bool,
    ) -> Result<ValueId> {
        let indexing = self.indexing();
        let index = builder.convert(index, DType::I64)?;
        let low = indexing.per_component(builder, index, |d| if only(d) { 0 } else { i64::MIN })?;
        let last = |d: usize| shape[d] as i64 - self.slice_sizes[d] as i64;
        let high = indexing.per_component(builder, index, |d| if only(d) { last(d) } else { i64::MAX })?;
        builder.push1(Clamp, &[low, index, high])
    }

    /// Whether this operand dimension can be sharded: each shard handles the indices in its range.
    fn picks_single(&self, operand: &TensorType, dim: usize) -> bool {
        self.slice_sizes[dim] == 1 && operand.shape[dim] > 1 && self.dims.start_index_map.contains(&dim)
    }
}

impl Operation for Gather {
    fn name(&self) -> &str {
        NAME
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<Vec<TensorType>> {
        operand_count(NAME, operands, 2)?;
        let (operand, index) = (operands[0], operands[1]);
        let indexing = self.indexing();
        indexing.check(NAME, operand, index)?;
        super::checks::one_per_dim(NAME, "slice_sizes", &self.slice_sizes, operand.rank())?;
        for (dim, (&slice, &extent)) in self.slice_sizes.iter().zip(&operand.shape).enumerate() {
            let single = indexing.absent_dims.contains(&dim) || indexing.operand_batching.contains(&dim);
            let limit = if single { extent.min(1) } else { extent };
            // A removed dimension yields one element, so an empty window is invalid.
            sizes(
                slice <= limit && (slice == limit || !single),
                format!("the window of `{NAME}` does not fit dimension {dim}"),
                format!("{}{limit}", if single { "" } else { "at most " }),
                slice.to_string(),
            )?;
        }
        let rank = indexing.window_dims.len() + indexing.index_batch_dims(index).len();
        distinct_dims(NAME, "offset_dims", indexing.window_dims, rank)?;
        let mut shape = vec![0; rank];
        let window = indexing.window_operand_dims(operand.rank());
        for (&dim, operand_dim) in indexing.window_dims.iter().zip(window) {
            shape[dim] = self.slice_sizes[operand_dim];
        }
        let batch = indexing.index_batch_dims(index);
        for (dim, index_dim) in indexing.windows_batch_dims(rank).into_iter().zip(batch) {
            shape[dim] = index.shape[index_dim];
        }
        Ok(vec![operand.with_shape(shape)])
    }

    /// Full windows and enumerating dimensions may be sharded. If single elements are picked along
    /// a dimension, each shard handles its own and the results are summed.
    fn rule(&self, operands: &[&TensorType], results: &[&TensorType]) -> Rule {
        let (operand, index) = (operands[0], operands[1]);
        let indexing = self.indexing();
        let mut rule = Rule::default();
        let mut source = vec![Vec::new(); operand.rank()];
        let mut result = vec![Vec::new(); results[0].rank()];
        let mut vectors = vec![Vec::new(); index.rank()];
        let window = indexing.window_operand_dims(operand.rank());
        for (&dim, &operand_dim) in indexing.window_dims.iter().zip(&window) {
            let (slice, extent) = (self.slice_sizes[operand_dim], operand.shape[operand_dim]);
            if slice == extent {
                let factor = rule.factor(extent, FactorKind::Pass);
                (source[operand_dim], result[dim]) = (vec![factor], vec![factor]);
            } else if self.picks_single(operand, operand_dim) {
                source[operand_dim] = vec![rule.factor(extent, FactorKind::Reduce(Combiner::Sum))];
            } else {
                source[operand_dim] = vec![rule.factor(extent, FactorKind::Whole)];
                result[dim] = vec![rule.factor(slice, FactorKind::Whole)];
            }
        }
        for &dim in indexing.absent_dims {
            if operand.shape[dim] != 1 {
                let single = self.picks_single(operand, dim);
                let kind = if single { FactorKind::Reduce(Combiner::Sum) } else { FactorKind::Whole };
                source[dim] = vec![rule.factor(operand.shape[dim], kind)];
            }
        }
        indexing.batch_factors(&mut rule, index, FactorKind::Pass, &mut source, &mut vectors, &mut result);
        rule.operands = vec![source, vectors];
        rule.results = vec![result];
        rule.transparent_in(&[0])
    }

    /// Counts the indices and the gathered elements, not the whole operand.
    fn cost(&self, operands: &[&TensorType], results: &[&TensorType]) -> Cost {
        Cost { flops: 0.0, bytes: (operands[1].bytes() + 2 * results[0].bytes()) as f64 }
    }

    /// Scatter-adds the cotangent's windows to where they were read.
    fn gradient(&self, context: &mut GradientContext) -> Result<Vec<Option<ValueId>>> {
        let (Some(cotangent), true) = (context.cotangents[0], context.wanted[0]) else {
            return Ok(vec![None, None]);
        };
        let builder = &mut *context.builder;
        let ty = builder.ty(context.operands[0]).clone();
        let index = self.clamped(builder, context.operands[1], &ty.shape, |_| true)?;
        let zeros = builder.full(&ty, 0.0)?;
        let dims = self.dims.clone();
        let scatter = Scatter {
            dims: ScatterDims {
                update_window_dims: dims.offset_dims,
                inserted_window_dims: dims.collapsed_slice_dims,
                input_batching_dims: dims.operand_batching_dims,
                scatter_indices_batching_dims: dims.start_indices_batching_dims,
                scatter_dims_to_operand_dims: dims.start_index_map,
                index_vector_dim: dims.index_vector_dim,
            },
            update: Update::Combine(Reducer::Combiner(Combiner::Sum)),
            indices_are_sorted: self.indices_are_sorted,
            unique_indices: false,
        };
        Ok(vec![Some(builder.push1(scatter, &[zeros, index, cotangent])?), None])
    }

    fn evaluate(&self, operands: &[&Literal], results: &[TensorType]) -> Result<Vec<Literal>> {
        let (operand, index) = (operands[0], operands[1]);
        let indexing = self.indexing();
        let (rank, ty) = (operand.ty.rank(), &results[0]);
        let (from_strides, to_strides) = (operand.ty.strides(), ty.strides());
        let window_dims = indexing.window_operand_dims(rank);
        let batch_dims = indexing.windows_batch_dims(ty.rank());
        let window: Vec<usize> = window_dims.iter().map(|&d| self.slice_sizes[d]).collect();
        if operand.ty.element_count() == 0 {
            return Ok(vec![Literal::zeros(ty)]);
        }
        let mut positions = vec![0; ty.element_count()];
        for (batch, start) in indexing.starts(rank, index) {
            let last = |d: usize| operand.ty.shape[d] as i64 - self.slice_sizes[d] as i64;
            let from: usize = (0..rank).map(|d| start[d].clamp(0, last(d)) as usize * from_strides[d]).sum();
            let to: usize = batch.iter().zip(&batch_dims).map(|(i, &d)| i * to_strides[d]).sum();
            for offset in indices(&window) {
                let place = |dims: &[usize], strides: &[usize]| -> usize {
                    offset.iter().zip(dims).map(|(i, &d)| i * strides[d]).sum()
                };
                positions[to + place(indexing.window_dims, &to_strides)] =
                    from + place(&window_dims, &from_strides);
            }
        }
        Ok(vec![Literal { ty: ty.clone(), data: operand.data.pick(positions.into_iter()) }])
    }

    /// Windows shrink with the operand's shard. Along sharded dimensions with single-element
    /// windows, indices become relative to the shard, and elements of other shards contribute zero.
    fn traits(&self, _: &Graph, _: &Node) -> Traits<'_> {
        Traits::Opaque
    }

    fn localise(&self, context: &mut dyn LocalContext) -> Result<Vec<ValueId>> {
        let (global, index_type) = (context.global_operand(0).clone(), context.global_operand(1).clone());
        let rule = self.rule(&[&global, &index_type], &[&context.global_result(0).clone()]);
        let result = context.local_result(0);
        let (operand, index) = (context.operands()[0], context.operands()[1]);
        let indexing = self.indexing();
        let local = context.builder().shape(operand);
        let mut op = self.clone();
        for (dim, slice) in op.slice_sizes.iter_mut().enumerate() {
            let full = *slice == global.shape[dim];
            *slice = if full { local[dim] } else { (*slice).min(local[dim]) };
        }
        let cut: Vec<usize> = (0..global.rank())
            .filter(|&d| self.picks_single(&global, d) && context.is_sharded(rule.operands[0][d][0]))
            .collect();
        if cut.is_empty() {
            return Ok(context.builder().push_typed(op, &[operand, index], vec![result]));
        }
        // Sharded dimensions collapse, even those that the result keeps: an empty shard has nothing
        // to keep.
        let window = indexing.window_operand_dims(global.rank());
        let kept: Vec<usize> = (0..window.len()).filter(|&i| cut.contains(&window[i])).collect();
        let kept: Vec<usize> = kept.into_iter().map(|i| indexing.window_dims[i]).collect();
        let renumbered = |d: &usize| d - kept.iter().filter(|k| *k < d).count();
        let dims = (0..result.rank()).filter(|d| !kept.contains(d));
        let collapsed = result.with_shape(dims.map(|d| result.shape[d]).collect::<Vec<_>>());
        op.dims.offset_dims =
            indexing.window_dims.iter().filter(|d| !kept.contains(d)).map(renumbered).collect();
        op.dims.collapsed_slice_dims.extend(cut.iter().filter(|d| window.contains(d)));
        op.dims.collapsed_slice_dims.sort_unstable();
        let index = self.clamped(context.builder(), index, &global.shape, |d| cut.contains(&d))?;
        let index = indexing.relative_to_shard(context, index, &cut)?;
        let builder = context.builder();
        let lowest = |d| if cut.contains(&d) { 0 } else { i64::MIN };
        let highest = |d| if cut.contains(&d) { local[d] as i64 - 1 } else { i64::MAX };
        let low = indexing.per_component(builder, index, lowest)?;
        let high = indexing.per_component(builder, index, highest)?;
        let above = builder.compare(Direction::Ge, index, low)?;
        let below = builder.compare(Direction::Le, index, high)?;
        let mut inside = builder.binary(super::BinaryKind::And, above, below)?;
        if indexing.index_vector_dim < index_type.rank() {
            inside = builder.reduce(Combiner::And, inside, &[indexing.index_vector_dim])?;
        }
        let gathered = builder.push_typed(op.clone(), &[operand, index], vec![collapsed.clone()])[0];
        let batch_dims = op.indexing().windows_batch_dims(collapsed.rank());
        let inside = builder.broadcast_in_dim(inside, &collapsed.shape, &batch_dims)?;
        let zeros = builder.full(&collapsed, 0.0)?;
        let picked = builder.select(inside, gathered, zeros)?;
        Ok(vec![builder.reshape(picked, &result.shape)?])
    }
}

// ---- text ----

use super::ParseOp;
use crate::op::TextForm;
use crate::text::{OpParser, OpPrinter, join, print_array};

/// The op by name.
pub(crate) const PARSERS: &[(&str, ParseOp)] = &[("stablehlo.gather", parse_gather), ("stablehlo.dynamic_gather", parse_gather)];

/// `offset_dims = [1], index_vector_dim = 1`: empty lists and a zero are omitted.
pub(crate) fn print_dimension_numbers(lists: &[(&str, &[usize])], index_vector_dim: usize) -> String {
    let mut fields: Vec<String> = lists
        .iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name} = [{}]", join(list)))
        .collect();
    if index_vector_dim != 0 {
        fields.push(format!("index_vector_dim = {index_vector_dim}"));
    }
    fields.join(", ")
}

impl TextForm for Gather {
    /// The generic form: StableHLO has no other.
    fn print(&self, printer: &mut OpPrinter) {
        let dims = &self.dims;
        let numbers = print_dimension_numbers(
            &[
                ("offset_dims", &dims.offset_dims),
                ("collapsed_slice_dims", &dims.collapsed_slice_dims),
                ("operand_batching_dims", &dims.operand_batching_dims),
                ("start_indices_batching_dims", &dims.start_indices_batching_dims),
                ("start_index_map", &dims.start_index_map),
            ],
            dims.index_vector_dim,
        );
        let properties = [
            ("dimension_numbers", format!("#stablehlo.gather<{numbers}>")),
            ("indices_are_sorted", self.indices_are_sorted.to_string()),
            ("slice_sizes", print_array(&self.slice_sizes)),
        ];
        printer.generic("stablehlo.gather", &properties, &[]);
    }
}

fn parse_gather(op: &mut OpParser) -> Result<Vec<ValueId>> {
    if !op.generic()? {
        return Err(op.error("E140", "`stablehlo.gather` must be written in the generic form"));
    }
    let sizes = match op.name == "stablehlo.dynamic_gather" {
        true => {
            op.arity(3)?;
            op.check_operands()?;
            let sizes = op.constant_integers(2)?.into_iter().map(|size| usize::try_from(size).ok());
            let sizes = sizes.collect::<Option<Vec<usize>>>();
            Some(sizes.ok_or_else(|| op.error("E147", "slice sizes may not be negative"))?)
        }
        false => None,
    };
    op.arity(2)?;
    let numbers = op.record_of("dimension_numbers")?;
    let dims = GatherDims {
        offset_dims: op.field(&numbers, "offset_dims")?,
        collapsed_slice_dims: op.field(&numbers, "collapsed_slice_dims")?,
        operand_batching_dims: op.field(&numbers, "operand_batching_dims")?,
        start_indices_batching_dims: op.field(&numbers, "start_indices_batching_dims")?,
        start_index_map: op.field(&numbers, "start_index_map")?,
        index_vector_dim: op.field(&numbers, "index_vector_dim")?.first().copied().unwrap_or(0),
    };
    let gather = Gather {
        dims,
        slice_sizes: sizes.map_or_else(|| op.indices_of("slice_sizes"), Ok)?,
        indices_are_sorted: op.flag("indices_are_sorted"),
    };
    op.finish(gather)
}

#[cfg(test)]
mod tests;
