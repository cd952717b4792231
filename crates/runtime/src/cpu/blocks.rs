//! Elementwise graphs with reductions, run in blocks of rows: intermediate values of a block stay in cache,
//! so that a softmax or norm written as primitive ops reads its inputs and writes its outputs once.
//!
//! Rows are the leading dimensions that every reduction along rows keeps, and that every reduction across
//! rows reduces. The nodes are grouped into kernels in dependency order: fused programs of elementwise nodes
//! of one shape, with reductions of their results, and reductions of earlier results. Each kernel runs on a
//! block exactly as the kernel of its node would on the whole tensor, so the bits are the same. Every kernel
//! is compiled once for all blocks; the memory adds each block's offset to its places.
//!
//! The result of a reduction across rows exists only at the end, when the partial results of blocks of rows
//! are joined in order.

use std::ops::Range;
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use partita_base::DType;
use partita_ir::ops::{BroadcastInDim, Iota, Reducer};
use partita_ir::traits::{ConstantOp, Traits, ViewMap};
use partita_ir::{Graph, GraphBuilder, Node, NodeId, Op, Operation, Role, TensorType, ValueId};
use partita_kernels::{self as kernels, KernelOptions, MAX_RANK, REDUCE_BLOCK_ROWS, Reduction, Scalar};
use partita_program::ALIGNMENT_BYTES;

use super::cut::ranges;
use super::elementwise::{self, Block, Walk, number, obstacle, operand_walk};
use super::reduce::{self, reduction, rows_across};
use super::runs::{Moves, Run, runs};
use super::{Kernel, Value};
use crate::arena::{Memory, Place, Span};

/// Bytes of all values of one block together: they fit into L2.
const BLOCK_BYTES: usize = 512 << 10;
/// Maximum number of inputs and outputs, plus one for the scratch memory.
const MOVES: usize = 64;

/// A graph split into kernels that run block by block.
struct Rows<'g> {
    graph: &'g Graph,
    /// The extents of the dimensions that are rows.
    rows: Vec<usize>,
    /// For each value that is needed: how its dimensions follow the rows.
    walks: Vec<Option<Walk>>,
    /// The nodes of each kernel, in order.
    kernels: Vec<Vec<NodeId>>,
    /// The kernel that computes each value; `None` for inputs, and for values that every reader recomputes in
    /// place.
    maker: Vec<Option<usize>>,
}

/// How operand `number` of a node follows the rows if its result does so by `walk`.
fn rows_walk(graph: &Graph, node: &Node, number: usize, walk: &Walk) -> Option<Walk> {
    let Op::Reduce(op) = &node.op else { return operand_walk(graph, node, number, walk) };
    if number > 0 {
        return Some(Walk::new());
    }
    // A reduction across rows reads all rows.
    if rows_across(graph, node).is_some() {
        return Some(walk.clone());
    }
    let mut kept = walk.iter();
    let rank = graph.ty(node.operands[0]).rank();
    Some((0..rank).map(|d| if op.dims.contains(&d) { None } else { *kept.next()? }).collect())
}

impl<'g> Rows<'g> {
    /// Splits a graph into kernels; the error is the reason why that is not possible.
    fn new(graph: &'g Graph) -> Result<Rows<'g>, String> {
        // For each reduction, the number of leading row dimensions (that it keeps, or across rows, reduces)
        // and its operand.
        let rows = |node: &Node| {
            let Op::Reduce(op) = &node.op else { return None };
            let is_across = rows_across(graph, node).is_some();
            let lead = if is_across { op.dims.len() } else { op.dims.first().copied().unwrap_or(0) };
            Some((lead, node.operands[0]))
        };
        let rows = graph.nodes.iter().filter_map(rows).min_by_key(|&(lead, _)| lead);
        let (lead, reduced) = rows.ok_or("it reduces nothing")?;
        if lead == 0 {
            return Err("it reduces its first dimension".into());
        }
        let rows = graph.ty(reduced).shape[..lead].to_vec();
        let mut this = Rows {
            graph,
            rows,
            walks: vec![None; graph.values.len()],
            kernels: Vec::new(),
            maker: vec![None; graph.values.len()],
        };
        this.walk()?;
        this.arrange();
        Ok(this)
    }

    /// The walk of a value that has its own row for every row of the graph. A dimension of one row is not
    /// walked.
    fn in_step(&self, rank: usize) -> Walk {
        (0..rank).map(|d| self.rows.get(d).is_some_and(|&size| size != 1).then_some(d)).collect()
    }

    /// Whether a value is the result of a reduction across rows.
    fn is_across(&self, value: ValueId) -> bool {
        let definition = self.graph.value(value).definition;
        definition.is_some_and(|(node, _)| rows_across(self.graph, self.graph.node(node)).is_some())
    }

    /// Whether a value is the result of a reduction.
    fn is_reduced(&self, value: ValueId) -> bool {
        let definition = self.graph.value(value).definition;
        definition.is_some_and(|(node, _)| matches!(self.graph.node(node).op, Op::Reduce(_)))
    }

    /// Computes, from the results back to the inputs, how each value follows the rows.
    fn walk(&mut self) -> Result<(), String> {
        let graph = self.graph;
        for (position, &output) in graph.outputs.iter().enumerate() {
            let shape = &graph.ty(output).shape;
            if graph.outputs[..position].contains(&output) || graph.inputs.contains(&output) {
                return Err("it returns an input, or one value twice".into());
            }
            if self.is_across(output) {
                self.walks[output.index()] = Some(vec![None; shape.len()]);
                continue;
            }
            if shape.get(..self.rows.len()) != Some(&self.rows[..]) || shape.len() > MAX_RANK {
                return Err(format!("its results have different rows, {:?} and {shape:?}", self.rows));
            }
            self.walks[output.index()] = Some(self.in_step(shape.len()));
        }
        for node in graph.nodes.iter().rev() {
            let &[result] = &node.results[..] else { return Err(obstacle(node, "is not an elementwise op")) };
            let Some(mut walk) = self.walks[result.index()].clone() else { continue };
            if self.is_across(result) {
                walk = self.in_step(graph.ty(node.operands[0]).rank());
            }
            for (position, &operand) in node.operands.iter().enumerate() {
                if self.is_across(operand) {
                    return Err(obstacle(node, "reads a value that is reduced across rows"));
                }
                let along = rows_walk(graph, node, position, &walk)
                    .ok_or_else(|| obstacle(node, "is neither an elementwise op nor a reduction of rows"))?;
                match &self.walks[operand.index()] {
                    Some(known) if *known != along => {
                        return Err(obstacle(node, "reads the rows in a different order than another op"));
                    }
                    _ => self.walks[operand.index()] = Some(along),
                }
            }
        }
        Ok(())
    }

    /// Whether all readers of the node's result read its operands instead (it is a view or a constant).
    fn is_looked_through(&self, node: &Node, walk: &Walk) -> bool {
        let is_view = match self.graph.traits(node) {
            Traits::View(map) => map != ViewMap::Identity,
            Traits::Constant(_) | Traits::Iota { .. } => true,
            Traits::Elementwise(_) | Traits::Collective(_) | Traits::Opaque | Traits::Refused => false,
        };
        let is_output = self.graph.outputs.contains(&node.results[0]);
        !is_output && (is_view || *walk != self.in_step(walk.len()))
    }

    /// Assigns every node to a kernel: the latest one that it may join, so that kernels are as large as
    /// possible.
    fn arrange(&mut self) {
        let graph = self.graph;
        // The first kernel that may read a value.
        let mut ready: Vec<Option<usize>> = vec![None; graph.values.len()];
        let mut latest: IndexMap<&[usize], usize> = IndexMap::new();
        for id in graph.node_ids() {
            let node = graph.node(id);
            let result = node.results[0];
            let Some(walk) = &self.walks[result.index()] else { continue };
            let needed = node.operands.iter().filter_map(|operand| ready[operand.index()]).max();
            let is_across = self.is_across(result);
            if !is_across && self.is_looked_through(node, walk) {
                ready[result.index()] = needed;
                continue;
            }
            let is_reduction = matches!(node.op, Op::Reduce(_));
            let shape = graph.ty(if is_reduction { node.operands[0] } else { result }).shape.as_slice();
            let fits = |&kernel: &usize| {
                Some(kernel) >= needed && (!is_reduction || is_across || self.may_fold(kernel, node))
            };
            let joined = latest.get(shape).copied().filter(fits);
            let kernel = joined.unwrap_or(self.kernels.len());
            if joined.is_none() {
                self.kernels.push(Vec::new());
            }
            self.kernels[kernel].push(id);
            if !is_reduction || is_across {
                latest.insert(shape, kernel);
            }
            self.maker[result.index()] = Some(kernel);
            // The result of a reduction is available when its kernel has ended.
            ready[result.index()] = Some(kernel + usize::from(is_reduction));
        }
    }

    /// Whether a kernel may also compute this reduction of its results: rows must have more than one element
    /// and equal lengths.
    fn may_fold(&self, kernel: usize, reduction: &Node) -> bool {
        /// More results would evict other values from registers.
        const MOST: usize = 4;
        let row = |node: &Node| {
            let Op::Reduce(op) = &node.op else { return None };
            Some(self.graph.ty(node.operands[0]).shape[op.dims[0]..].iter().product::<usize>())
        };
        let nodes = self.kernels[kernel].iter().map(|&id| self.graph.node(id));
        let others: Vec<usize> =
            nodes.filter(|node| !self.is_across(node.results[0])).filter_map(row).collect();
        self.maker[reduction.operands[0].index()] == Some(kernel)
            && others.len() < MOST
            && row(reduction).is_some_and(|row| row > 1 && others.iter().all(|&other| other == row))
    }

    /// The reductions across rows in a kernel.
    fn across(&self, kernel: usize) -> impl Iterator<Item = NodeId> {
        let is_across = |id: &NodeId| self.is_across(self.graph.node(*id).results[0]);
        self.kernels[kernel].iter().copied().filter(is_across)
    }

    /// The type of a value in a block with these row extents.
    fn block_type(&self, value: ValueId, extents: &[usize]) -> TensorType {
        let (ty, walk) = (self.graph.ty(value), self.walks[value.index()].as_ref());
        let extent =
            |(d, &size): (usize, &usize)| walk.and_then(|walk| walk[d]).map_or(size, |row| extents[row]);
        ty.with_shape(ty.shape.iter().enumerate().map(extent).collect::<Vec<_>>())
    }

    /// The graph of one kernel over a block, and the values that are its inputs and its outputs.
    fn chain(&self, kernel: usize, extents: &[usize]) -> Option<(Graph, Vec<ValueId>, Vec<ValueId>)> {
        let mut builder = GraphBuilder::new("chain");
        let mut inner: IndexMap<ValueId, ValueId> = IndexMap::new();
        let mut inputs = Vec::new();
        for &id in &self.kernels[kernel] {
            self.copy_node(id, extents, &mut builder, &mut inner, &mut inputs)?;
        }
        let results = self.kernels[kernel].iter().map(|&id| self.graph.node(id).results[0]);
        let outputs: Vec<ValueId> =
            results.filter(|&value| !self.is_reduced(value) && self.passes(value)).collect();
        let graph = builder.finish(outputs.iter().map(|value| inner[value]).collect());
        Some((graph, inputs, outputs))
    }

    /// Whether one of the nodes reads a value, directly or through views.
    fn reads(&self, nodes: &[NodeId], value: ValueId) -> bool {
        let mut open: Vec<ValueId> =
            nodes.iter().flat_map(|&id| &self.graph.node(id).operands).copied().collect();
        let mut seen: IndexSet<ValueId> = IndexSet::new();
        while let Some(operand) = open.pop() {
            if operand == value {
                return true;
            }
            if self.maker[operand.index()].is_none()
                && seen.insert(operand)
                && let Some((definition, _)) = self.graph.value(operand).definition
            {
                open.extend(&self.graph.node(definition).operands);
            }
        }
        false
    }

    /// Copies a node of a kernel, and the views and constants that it reads, with the shapes of a block.
    fn copy_node(
        &self,
        id: NodeId,
        extents: &[usize],
        builder: &mut GraphBuilder,
        inner: &mut IndexMap<ValueId, ValueId>,
        inputs: &mut Vec<ValueId>,
    ) -> Option<()> {
        let node = self.graph.node(id);
        for &operand in &node.operands {
            if inner.contains_key(&operand) {
                continue;
            }
            let definition = self.graph.value(operand).definition.map(|(definition, _)| definition);
            match (definition, self.maker[operand.index()]) {
                (Some(definition), None) => {
                    self.copy_node(definition, extents, builder, inner, inputs)?;
                }
                // Values of this kernel have been copied already: nodes come after those that they read.
                _ => {
                    let ty = self.block_type(operand, extents);
                    inner.insert(operand, builder.input("", ty, Role::Activation));
                    inputs.push(operand);
                }
            }
        }
        let (result, ty) = (node.results[0], self.block_type(node.results[0], extents));
        let operands: Vec<ValueId> = node.operands.iter().map(|operand| inner[operand]).collect();
        let shape = ty.shape.clone();
        let op: Op = match self.graph.traits(node) {
            Traits::Elementwise(_) | Traits::View(ViewMap::Identity) => node.op.clone(),
            Traits::View(_) => node.op.onto_shape(&shape)?,
            Traits::Iota { dim } => {
                // An iota along rows would start from zero in every block.
                let walk = self.walks[result.index()].as_ref()?;
                if walk[dim].is_some() {
                    return None;
                }
                Iota { ty: ty.clone(), dim }.into()
            }
            Traits::Constant(ConstantOp::OfAll(op)) if op.value.ty.rank() > 0 => {
                number(&op.value)?;
                let scalar = op.value.window(&vec![0; op.value.ty.rank()], &vec![1; op.value.ty.rank()]);
                let scalar = partita_ir::Literal { ty: ty.with_shape(Vec::new()), ..scalar };
                let one = builder.constant(scalar);
                let wide = BroadcastInDim { shape, dims: Vec::new() };
                inner.insert(result, builder.push_typed(wide, &[one], vec![ty])[0]);
                return Some(());
            }
            // Of the opaque ops, only reductions reach this point.
            Traits::Constant(_) | Traits::Opaque => node.op.clone(),
            Traits::Collective(_) | Traits::Refused => return None,
        };
        inner.insert(result, builder.push_typed(op, &operands, vec![ty])[0]);
        Some(())
    }

    /// Whether a value is stored in memory between kernels.
    fn passes(&self, value: ValueId) -> bool {
        let Some(maker) = self.maker[value.index()] else { return self.graph.inputs.contains(&value) };
        self.graph.outputs.contains(&value) || self.is_read_elsewhere(value, maker)
    }

    /// Whether another kernel reads a value.
    fn is_read_elsewhere(&self, value: ValueId, kernel: usize) -> bool {
        let mut others = self.kernels.iter().enumerate().filter(|&(number, _)| number != kernel);
        others.any(|(_, nodes)| self.reads(nodes, value))
    }

    /// Maximum number of rows in a block.
    fn block_rows(&self) -> usize {
        let lead = self.rows.len();
        let row_bytes = |value: ValueId| {
            let (ty, walk) = (self.graph.ty(value), self.walks[value.index()].as_ref());
            let is_rows = walk.is_some_and(|walk| *walk == self.in_step(walk.len()));
            let row = ty.shape.get(lead..).filter(|_| is_rows);
            row.map_or(0, |row| row.iter().product::<usize>() * ty.dtype.size_bytes())
        };
        let bytes: usize = self.graph.value_ids().filter(|&value| self.passes(value)).map(row_bytes).sum();
        (BLOCK_BYTES / bytes.max(1)).max(1)
    }

    /// The reductions across rows, with their kernels.
    fn folds(&self, outputs: &[Place]) -> Option<Vec<Fold>> {
        let kernels = 0..self.kernels.len();
        let all = kernels.flat_map(|kernel| self.across(kernel).map(move |id| (kernel, self.graph.node(id))));
        let fold = |(kernel, node): (usize, &Node)| {
            let Op::Reduce(op) = &node.op else { return None };
            let Reducer::Combiner(combiner) = op.reducer else { return None };
            let ty = self.graph.ty(node.operands[0]);
            let initial = elementwise::constant(self.graph, node.operands[1])?;
            let output = self.graph.outputs.iter().position(|output| *output == node.results[0])?;
            Some(Fold {
                kernel,
                reduction: reduction(combiner),
                initial,
                rows_each: ty.shape[self.rows.len()..op.dims.len()].iter().product(),
                output: outputs[output].clone(),
            })
        };
        all.map(fold).collect()
    }
}

/// A reduction across rows that a kernel computes along with its other results.
#[derive(Clone)]
struct Fold {
    kernel: usize,
    reduction: Reduction,
    initial: Scalar,
    /// Rows that it reduces for each row of a block.
    rows_each: usize,
    output: Place,
}

impl Fold {
    /// Parts must be multiples of this many rows, so that they hold whole blocks of this reduction: a power
    /// of two.
    fn step(&self) -> usize {
        let gcd = |rows: usize| 1 << rows.trailing_zeros().min(REDUCE_BLOCK_ROWS.trailing_zeros());
        REDUCE_BLOCK_ROWS / gcd(self.rows_each)
    }

    /// Bytes of its partial results for `rows` rows.
    fn bytes(&self, rows: usize) -> usize {
        kernels::block_results_bytes(self.output.dtype, rows * self.rows_each, self.output.element_count())
    }

    /// Joins the partial results of all parts, given as (rows, scratch memory); `place` is their span in the
    /// scratch memory.
    fn finish(
        &self,
        options: KernelOptions,
        memory: &Memory<'_>,
        place: Span,
        parts: impl Iterator<Item = (usize, Span)>,
    ) {
        let own = |(rows, workspace): (usize, Span)| {
            let offset = workspace.offset + place.offset;
            memory.bytes_mut(Span { offset, bytes: self.bytes(rows) })
        };
        kernels::join_blocks(
            options,
            self.reduction,
            &self.initial,
            parts.map(own),
            &mut memory.view_mut(&self.output),
        );
    }
}

/// What all blocks of a part have in common: its folds, and their results in its scratch memory.
struct Frame {
    /// The rows of the longest part.
    rows: usize,
    folds: Vec<Fold>,
    /// The span of each fold's results.
    folded: Vec<Span>,
}

impl Frame {
    fn new(rows: usize, folds: Vec<Fold>) -> Frame {
        let mut offset = 0;
        let mut next = |fold: &Fold| {
            let span = Span { offset, bytes: fold.bytes(rows) };
            offset += span.bytes.next_multiple_of(ALIGNMENT_BYTES);
            span
        };
        let folded = folds.iter().map(&mut next).collect();
        Frame { rows, folds, folded }
    }

    /// Bytes of the results of all folds.
    fn bytes(&self) -> usize {
        self.folded.last().map_or(0, |span| (span.offset + span.bytes).next_multiple_of(ALIGNMENT_BYTES))
    }
}

/// Whether a graph contains a reduction.
pub(super) fn has_reduction(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.op, Op::Reduce(_)))
}

/// The reason why a graph cannot run block by block, if there is one.
pub(super) fn check(options: KernelOptions, graph: &Graph) -> Result<(), String> {
    let rows = Rows::new(graph)?;
    let nothing = |value: &ValueId| Place::dense(0, graph.ty(*value).dtype, &graph.ty(*value).shape);
    let inputs: Vec<Value> = graph.inputs.iter().map(|value| Value::Place(nothing(value))).collect();
    let outputs: Vec<Place> = graph.outputs.iter().map(nothing).collect();
    let frame = rows.folds(&outputs).map(|folds| Frame::new(1, folds));
    let body = frame
        .and_then(|frame| Body::new(options, &rows, &vec![1; rows.rows.len()], &inputs, &outputs, &frame));
    body.map(|_| ()).ok_or_else(|| "one of its ops has no row kernel".into())
}

/// The kernels of one block, independent of the block's position.
struct Body {
    kernels: Vec<Kernel>,
    /// Bytes of the values that are passed between kernels, and of the results of folds.
    between_bytes: usize,
    scratch_bytes: usize,
}

/// The first block of a place; the memory adds the offset of other blocks by `slot`.
fn first_block(place: &Place, walk: &Walk, extents: &[usize], slot: usize) -> Place {
    let block = walk.iter().enumerate().fold(place.clone(), |place, (d, row)| match row {
        Some(row) => place.sliced(d, 0..extents[*row]),
        None => place,
    });
    Place { moved: Some(slot), ..block }
}

impl Body {
    /// `None` if a node has no kernel.
    fn new(
        options: KernelOptions,
        rows: &Rows<'_>,
        extents: &[usize],
        inputs: &[Value],
        outputs: &[Place],
        frame: &Frame,
    ) -> Option<Body> {
        let graph = rows.graph;
        let scratch = inputs.len() + outputs.len();
        if scratch >= MOVES {
            return None;
        }
        let mut values: Vec<Option<Value>> = vec![None; graph.values.len()];
        for (slot, (value, input)) in graph.inputs.iter().zip(inputs).enumerate() {
            // An input without readers.
            let Some(walk) = &rows.walks[value.index()] else { continue };
            values[value.index()] = Some(match input {
                Value::Place(place) => Value::Place(first_block(place, walk, extents, slot)),
                Value::Number(number, _) => Value::Number(*number, rows.block_type(*value, extents).shape),
            });
        }
        for (number, (value, output)) in graph.outputs.iter().zip(outputs).enumerate() {
            let walk = rows.walks[value.index()].as_ref()?;
            values[value.index()] =
                Some(Value::Place(first_block(output, walk, extents, inputs.len() + number)));
        }
        let mut between_bytes = frame.bytes();
        let mut place_of = |value: ValueId, values: &mut Vec<Option<Value>>| -> Place {
            if let Some(Value::Place(place)) = &values[value.index()] {
                return place.clone();
            }
            let ty = rows.block_type(value, extents);
            let place = Place { moved: Some(scratch), ..Place::dense(between_bytes, ty.dtype, &ty.shape) };
            between_bytes += ty.bytes().next_multiple_of(ALIGNMENT_BYTES);
            values[value.index()] = Some(Value::Place(place.clone()));
            place
        };
        let mut kernels = Vec::new();
        for (number, nodes) in rows.kernels.iter().enumerate() {
            let first = graph.node(nodes[0]);
            let kernel = if let Op::Reduce(op) = &first.op
                && !rows.is_across(first.results[0])
            {
                let initial = Value::Number(elementwise::constant(graph, first.operands[1])?, Vec::new());
                let operands = vec![values[first.operands[0].index()].clone()?, initial];
                let out = place_of(first.results[0], &mut values);
                reduce::compile(options, op, operands, &[out])?
            } else {
                let (chain, from, to) = rows.chain(number, extents)?;
                let iterated =
                    if rows.is_across(first.results[0]) { first.operands[0] } else { first.results[0] };
                let row = graph.ty(iterated).shape.get(rows.rows.len()..);
                let row_elements = row.map_or(0, |row| row.iter().product());
                let from =
                    from.iter().map(|value| values[value.index()].clone()).collect::<Option<Vec<_>>>()?;
                // A value that another kernel reads should stay in cache.
                let is_last = to.iter().all(|&value| !rows.is_read_elsewhere(value, number));
                let to: Vec<Place> = to.iter().map(|&value| place_of(value, &mut values)).collect();
                let own = |(fold, _): &(&Fold, &Span)| fold.kernel == number;
                let mut across = frame.folds.iter().zip(&frame.folded).filter(own);
                let mut place = |&id: &NodeId| {
                    let result = graph.node(id).results[0];
                    if !rows.is_across(result) {
                        return Some(place_of(result, &mut values));
                    }
                    let (_, span) = across.next()?;
                    Some(Place {
                        moved: Some(scratch),
                        ..Place::dense(span.offset, DType::U8, &[span.bytes])
                    })
                };
                let folded = nodes.iter().filter(|&&id| rows.is_reduced(graph.node(id).results[0]));
                let folded = folded.map(&mut place).collect::<Option<Vec<Place>>>()?;
                elementwise::compile_block(
                    options,
                    &chain,
                    &from,
                    &to,
                    Block { row_elements, lasting_rows: if is_last { frame.rows } else { 0 }, folded },
                )?
            };
            kernels.push(kernel);
        }
        let scratch_bytes = kernels.iter().map(Kernel::workspace_bytes).max().unwrap_or(0);
        Some(Body { kernels, between_bytes, scratch_bytes })
    }

    fn workspace_bytes(&self) -> usize {
        self.between_bytes + self.scratch_bytes
    }
}

/// Blocks of one size, one behind the other.
struct Blocks {
    body: Arc<Body>,
    run: Run,
    /// The rows of their part that precede the first of them.
    before: usize,
}

/// The graph as one kernel in at most `parts` parts; `None` if it cannot run block by block.
pub(super) fn compile(
    options: KernelOptions,
    graph: &Graph,
    inputs: &[Value],
    outputs: &[Place],
    parts: usize,
) -> Option<Kernel> {
    let rows = Rows::new(graph).ok()?;
    let folds = rows.folds(outputs)?;
    let (count, step) =
        (rows.rows.iter().product::<usize>(), folds.iter().map(Fold::step).max().unwrap_or(1));
    let shares: Vec<Range<usize>> = ranges(usize::div_ceil(count, step), parts)
        .map(|share| share.start * step..count.min(share.end * step))
        .collect();
    let frame = Frame::new(shares.iter().map(Range::len).max().unwrap_or(0), folds);
    let steps = |(value, place): (&ValueId, Option<&Place>)| -> Vec<isize> {
        let mut steps = vec![0; rows.rows.len()];
        if let (Some(walk), Some(place)) = (&rows.walks[value.index()], place) {
            let size = place.dtype.size_bytes() as isize;
            for (row, stride) in walk.iter().zip(&place.strides) {
                row.iter().for_each(|&row| steps[row] += stride * size);
            }
        }
        steps
    };
    let places = inputs.iter().map(Value::place).chain(outputs.iter().map(Some));
    let steps: Vec<Vec<isize>> = graph.inputs.iter().chain(&graph.outputs).zip(places).map(steps).collect();
    let moves = Arc::new(Moves { rows: rows.rows.clone(), steps });
    let most = rows.block_rows();
    let mut bodies: IndexMap<Vec<usize>, Arc<Body>> = IndexMap::new();
    let mut kernels = Vec::new();
    for share in &shares {
        let mut blocks = Vec::new();
        for run in runs(&rows.rows, share.clone(), most)? {
            let body = match bodies.get(&run.extents) {
                Some(body) => body.clone(),
                None => {
                    let body = Arc::new(Body::new(options, &rows, &run.extents, inputs, outputs, &frame)?);
                    bodies.entry(run.extents.clone()).or_insert(body).clone()
                }
            };
            let before = run.start - share.start;
            blocks.push(Blocks { body, run, before });
        }
        kernels.push(run_blocks(blocks, moves.clone(), frame.bytes()));
    }
    let kernel = Kernel::together(kernels);
    if frame.folds.is_empty() {
        return Some(kernel);
    }
    Some(kernel.then(move |memory, workspace| {
        for (fold, &place) in frame.folds.iter().zip(&frame.folded) {
            fold.finish(
                options,
                memory,
                place,
                shares.iter().map(Range::len).enumerate().map(|(i, rows)| (rows, workspace(i))),
            );
        }
        Ok(())
    }))
}

/// One kernel that runs these blocks; the results of folds take `folded_bytes` bytes.
fn run_blocks(blocks: Vec<Blocks>, moves: Arc<Moves>, folded_bytes: usize) -> Kernel {
    let needed = blocks.iter().map(|blocks| blocks.body.workspace_bytes()).max();
    Kernel::new(needed.unwrap_or(folded_bytes), move |memory: &Memory<'_>, workspace: Span| {
        let slots = moves.steps.len();
        let mut own = [0isize; MOVES];
        own[slots] = workspace.offset as isize;
        for Blocks { body, run, before } in &blocks {
            let offset = workspace.offset + body.between_bytes;
            let scratch = Span { offset, bytes: body.scratch_bytes };
            for past in (0..run.count).map(|block| block * run.each()) {
                moves.to(run.start + past, &mut own[..slots]);
                let memory = memory.moved(&own, before + past);
                body.kernels.iter().try_for_each(|kernel| kernel.run(&memory, scratch))?;
            }
        }
        Ok(())
    })
}
