//! Elementwise graphs with reductions, block of rows by block of rows: what one kernel makes for the next stays in
//! cache, so that a softmax or a norm written out reads its inputs and writes its outputs once.
//!
//! Rows are the leading dimensions that no reduction of rows takes away, and every reduction across rows. The nodes become
//! kernels in an order that fits: chains of elementwise nodes of one shape, with reductions of what they make, and
//! reductions of what is there. They are those of the nodes by themselves and run on a block as they would on the whole, so that the
//! bits are the same. Every kernel is made once for all blocks, whose places differ by what the memory adds to them.
//!
//! What is reduced across rows is there at the end alone, when the results of blocks of rows are joined in their order.

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
use super::{Kernel, Value};
use crate::arena::{Memory, Place, Span};

/// Bytes that a block has of all values together: they fit into the second cache.
const BLOCK_BYTES: usize = 512 << 10;
/// Inputs and outputs at most, and the scratch memory.
const MOVES: usize = 64;

/// A graph taken apart.
struct Rows<'g> {
    graph: &'g Graph,
    /// Extents of the dimensions that are rows.
    rows: Vec<usize>,
    /// How each value that matters walks along the rows.
    walks: Vec<Option<Walk>>,
    /// Nodes of each kernel, in order.
    kernels: Vec<Vec<NodeId>>,
    /// The kernel that makes each value; `None` for inputs, and for what is looked at anew by every reader.
    maker: Vec<Option<usize>>,
}

/// How a node walks along the rows of its operand number `number`.
fn rows_walk(graph: &Graph, node: &Node, number: usize, walk: &Walk) -> Option<Walk> {
    let Op::Reduce(op) = &node.op else { return operand_walk(graph, node, number, walk) };
    if number > 0 {
        return Some(Walk::new());
    }
    // It is walked along all of its rows.
    if rows_across(graph, node).is_some() {
        return Some(walk.clone());
    }
    let mut kept = walk.iter();
    let rank = graph.ty(node.operands[0]).rank();
    Some((0..rank).map(|d| if op.dims.contains(&d) { None } else { *kept.next()? }).collect())
}

impl<'g> Rows<'g> {
    /// Takes a graph apart; what stands in the way, if it cannot be.
    fn new(graph: &'g Graph) -> Result<Rows<'g>, String> {
        // The leading dimensions that a reduction keeps, or all that it takes away, and what it reduces.
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

    /// The walk of a value that has a row of its own for every row. Where there is one row nothing is walked.
    fn in_step(&self, rank: usize) -> Walk {
        (0..rank).map(|d| self.rows.get(d).is_some_and(|&size| size != 1).then_some(d)).collect()
    }

    /// Whether a value is made by a reduction across rows.
    fn is_across(&self, value: ValueId) -> bool {
        let definition = self.graph.value(value).definition;
        definition.is_some_and(|(node, _)| rows_across(self.graph, self.graph.node(node)).is_some())
    }

    /// Whether a value is made by a reduction.
    fn is_reduced(&self, value: ValueId) -> bool {
        let definition = self.graph.value(value).definition;
        definition.is_some_and(|(node, _)| matches!(self.graph.node(node).op, Op::Reduce(_)))
    }

    /// From the results back: how the rows of each value are walked.
    fn walk(&mut self) -> Result<(), String> {
        let graph = self.graph;
        for (position, &output) in graph.outputs.iter().enumerate() {
            let shape = &graph.ty(output).shape;
            if graph.outputs[..position].contains(&output) || graph.inputs.contains(&output) {
                return Err("it hands on a value as it is".into());
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
            let &[result] = &node.results[..] else { return Err(obstacle(node, "is no elementwise op")) };
            let Some(mut walk) = self.walks[result.index()].clone() else { continue };
            if self.is_across(result) {
                walk = self.in_step(graph.ty(node.operands[0]).rank());
            }
            for (position, &operand) in node.operands.iter().enumerate() {
                if self.is_across(operand) {
                    return Err(obstacle(node, "reads what is reduced across rows"));
                }
                let along = rows_walk(graph, node, position, &walk)
                    .ok_or_else(|| obstacle(node, "is neither an elementwise op nor a reduction of rows"))?;
                match &self.walks[operand.index()] {
                    Some(known) if *known != along => {
                        return Err(obstacle(node, "reads rows in another way than others do"));
                    }
                    _ => self.walks[operand.index()] = Some(along),
                }
            }
        }
        Ok(())
    }

    /// Whether everybody who needs the node's result looks through it at its operands.
    fn is_looked_through(&self, node: &Node, walk: &Walk) -> bool {
        let is_view = match self.graph.traits(node) {
            Traits::View(map) => map != ViewMap::Identity,
            Traits::Constant(_) | Traits::Iota { .. } => true,
            Traits::Elementwise(_) | Traits::Collective(_) | Traits::Opaque | Traits::Refused => false,
        };
        let is_output = self.graph.outputs.contains(&node.results[0]);
        !is_output && (is_view || *walk != self.in_step(walk.len()))
    }

    /// Gives every node its kernel: chains as long as they can be, the latest one that a node may join.
    fn arrange(&mut self) {
        let graph = self.graph;
        // The last kernel that must have run before a value is there.
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
            // What is reduced on the way is there when the kernel has ended.
            ready[result.index()] = Some(kernel + usize::from(is_reduction));
        }
    }

    /// Whether a chain reduces what it makes on the way: rows of more than one element, and of one length.
    fn may_fold(&self, kernel: usize, reduction: &Node) -> bool {
        /// More results would take the place of others.
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

    /// Reductions across rows in a kernel.
    fn across(&self, kernel: usize) -> impl Iterator<Item = NodeId> {
        let is_across = |id: &NodeId| self.is_across(self.graph.node(*id).results[0]);
        self.kernels[kernel].iter().copied().filter(is_across)
    }

    /// The type of a value in a block whose rows have these extents.
    fn block_type(&self, value: ValueId, extents: &[usize]) -> TensorType {
        let (ty, walk) = (self.graph.ty(value), self.walks[value.index()].as_ref());
        let extent =
            |(d, &size): (usize, &usize)| walk.and_then(|walk| walk[d]).map_or(size, |row| extents[row]);
        ty.with_shape(ty.shape.iter().enumerate().map(extent).collect::<Vec<_>>())
    }

    /// The graph of one chain over a block, and the values that are its inputs and its outputs.
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

    /// Whether one of the nodes reads a value, perhaps looking through others.
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

    /// Copies a node of a chain, and what it looks through, with the shapes of a block.
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
                // What this kernel makes is there already: nodes come after those they read.
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
                // Blocks count from zero.
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
            // Of what runs by itself, reductions alone have got here.
            Traits::Constant(_) | Traits::Opaque => node.op.clone(),
            Traits::Collective(_) | Traits::Refused => return None,
        };
        inner.insert(result, builder.push_typed(op, &operands, vec![ty])[0]);
        Some(())
    }

    /// Whether a value passes through memory.
    fn passes(&self, value: ValueId) -> bool {
        let Some(maker) = self.maker[value.index()] else { return self.graph.inputs.contains(&value) };
        self.graph.outputs.contains(&value) || self.is_read_elsewhere(value, maker)
    }

    /// Whether a kernel but this one reads a value.
    fn is_read_elsewhere(&self, value: ValueId, kernel: usize) -> bool {
        let mut others = self.kernels.iter().enumerate().filter(|&(number, _)| number != kernel);
        others.any(|(_, nodes)| self.reads(nodes, value))
    }

    /// Rows in one block at most.
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

    /// What is reduced across rows, by kernel.
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

/// A reduction across rows, which a kernel does on the way.
#[derive(Clone)]
struct Fold {
    kernel: usize,
    reduction: Reduction,
    initial: Scalar,
    /// Rows that it takes away for each row of a block.
    rows_each: usize,
    output: Place,
}

impl Fold {
    /// Rows of which parts consist that have whole blocks of this reduction: a power of two.
    fn step(&self) -> usize {
        let gcd = |rows: usize| 1 << rows.trailing_zeros().min(REDUCE_BLOCK_ROWS.trailing_zeros());
        REDUCE_BLOCK_ROWS / gcd(self.rows_each)
    }

    /// Bytes of its results of so many rows.
    fn bytes(&self, rows: usize) -> usize {
        kernels::block_results_bytes(self.output.dtype, rows * self.rows_each, self.output.element_count())
    }

    /// Joins the results of parts of so many rows, which lie at `place` in their scratch memory.
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

/// What all bodies of a kernel have in common: what is done in one part, and where in its scratch memory.
struct Frame {
    /// Rows of the longest part.
    rows: usize,
    folds: Vec<Fold>,
    /// Where the results of each fold lie.
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

/// Whether a graph reduces anything.
pub(super) fn has_reduction(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.op, Op::Reduce(_)))
}

/// What stands in the way of running a graph block by block, if anything.
pub(super) fn check(options: KernelOptions, graph: &Graph) -> Result<(), String> {
    let rows = Rows::new(graph)?;
    let nothing = |value: &ValueId| Place::dense(0, graph.ty(*value).dtype, &graph.ty(*value).shape);
    let inputs: Vec<Value> = graph.inputs.iter().map(|value| Value::Place(nothing(value))).collect();
    let outputs: Vec<Place> = graph.outputs.iter().map(nothing).collect();
    let frame = rows.folds(&outputs).map(|folds| Frame::new(1, folds));
    let body = frame
        .and_then(|frame| Body::new(options, &rows, &vec![1; rows.rows.len()], &inputs, &outputs, &frame));
    body.map(|_| ()).ok_or_else(|| "one of its ops has no kernel for rows".into())
}

/// The kernels of a block, wherever it stands.
struct Body {
    kernels: Vec<Kernel>,
    /// What passes between them, and the results of folds.
    between_bytes: usize,
    scratch_bytes: usize,
}

/// A part of a place as large as a block, at the first one.
fn first_block(place: &Place, walk: &Walk, extents: &[usize], slot: usize) -> Place {
    let block = walk.iter().enumerate().fold(place.clone(), |place, (d, row)| match row {
        Some(row) => place.sliced(d, 0..extents[*row]),
        None => place,
    });
    Place { moved: Some(slot), ..block }
}

impl Body {
    /// `None` where a node has no kernel.
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
            // An input that nobody reads.
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
                // What other kernels read shall stay in cache.
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

/// Blocks of one size, and where they stand.
struct Blocks {
    body: Arc<Body>,
    /// For each block the rows of its part that come before.
    before: Vec<usize>,
    /// For each block the bytes by which every input and output lies further on.
    moves: Vec<isize>,
}

/// The graph as one kernel in at most so many parts; `None` where it cannot be run block by block.
pub(super) fn compile(
    options: KernelOptions,
    graph: &Graph,
    inputs: &[Value],
    outputs: &[Place],
    parts: usize,
) -> Option<Kernel> {
    let rows = Rows::new(graph).ok()?;
    let folds = rows.folds(outputs)?;
    let (count, step) = (rows.rows.iter().product(), folds.iter().map(Fold::step).max().unwrap_or(1));
    let shares: Vec<Range<usize>> = ranges(usize::div_ceil(count, step), parts)
        .map(|share| share.start * step..count.min(share.end * step))
        .collect();
    let frame = Frame::new(shares.iter().map(Range::len).max().unwrap_or(0), folds);
    // For each input and output the bytes from one row to the next, along every dimension of rows.
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
    let moves = |block: &Vec<Range<usize>>| -> Vec<isize> {
        let of =
            |steps: &Vec<isize>| steps.iter().zip(block).map(|(step, at)| step * at.start as isize).sum();
        steps.iter().map(of).collect()
    };
    let most = rows.block_rows();
    let extents = |block: &Vec<Range<usize>>| -> Vec<usize> { block.iter().map(Range::len).collect() };
    let mut bodies: IndexMap<Vec<usize>, Arc<Body>> = IndexMap::new();
    let mut kernels = Vec::new();
    for share in &shares {
        let blocks = blocks(&rows.rows, share.clone(), most);
        let (mut runs, mut before) = (Vec::new(), 0);
        for run in blocks.chunk_by(|a, b| extents(a) == extents(b)) {
            let own = extents(&run[0]);
            let body = match bodies.get(&own) {
                Some(body) => body.clone(),
                None => Arc::new(Body::new(options, &rows, &own, inputs, outputs, &frame)?),
            };
            let each: usize = own.iter().product();
            let first = before;
            before += run.len() * each;
            runs.push(Blocks {
                body: body.clone(),
                before: (first..before).step_by(each).collect(),
                moves: run.iter().flat_map(moves).collect(),
            });
            bodies.insert(own, body);
        }
        kernels.push(run_blocks(runs, steps.len(), frame.bytes()));
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

/// A range of rows as blocks of at most so many, in row-major order. All dimensions of a block but one are whole or one
/// row, those behind it whole.
fn blocks(rows: &[usize], range: Range<usize>, most: usize) -> Vec<Vec<Range<usize>>> {
    let mut blocks = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let left = most.min(range.end - at);
        let (mut rest, mut inner, mut taken) = (at, rows.iter().product::<usize>(), None);
        let along = |&size: &usize| {
            inner /= size;
            let start = rest / inner;
            rest %= inner;
            if taken.is_some() {
                return 0..size;
            }
            let whole = if rest == 0 { (left / inner).min(size - start) } else { 0 };
            taken = (whole > 0).then_some(whole * inner);
            start..start + whole.max(1)
        };
        blocks.push(rows.iter().map(along).collect());
        at += taken.expect("a block has a row");
    }
    blocks
}

/// A kernel of these blocks, whose places are `slots` inputs and outputs, with so many bytes of results of folds.
fn run_blocks(runs: Vec<Blocks>, slots: usize, folded_bytes: usize) -> Kernel {
    let needed = runs.iter().map(|blocks| blocks.body.workspace_bytes()).max();
    Kernel::new(needed.unwrap_or(folded_bytes), move |memory: &Memory<'_>, workspace: Span| {
        let mut moves = [0isize; MOVES];
        moves[slots] = workspace.offset as isize;
        for Blocks { body, before, moves: all } in &runs {
            let offset = workspace.offset + body.between_bytes;
            let scratch = Span { offset, bytes: body.scratch_bytes };
            for (block, &before) in all.chunks(slots).zip(before) {
                moves[..slots].copy_from_slice(block);
                let memory = memory.moved(&moves, before);
                body.kernels.iter().try_for_each(|kernel| kernel.run(&memory, scratch))?;
            }
        }
        Ok(())
    })
}
