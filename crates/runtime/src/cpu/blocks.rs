//! Elementwise graphs with reductions, block of rows by block of rows: what one kernel makes for the next stays in
//! cache, so that a softmax or a norm written out reads its inputs and writes its outputs once.
//!
//! Rows are the leading dimensions that no reduction takes away. The nodes become kernels in an order that fits: chains
//! of elementwise nodes of one shape, and reductions. They are those of the nodes by themselves and run on a block
//! as they would on the whole, so that the bits are the same. Every kernel is made once for all blocks, whose places
//! differ by what the memory adds to them.

use std::ops::Range;
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use partita_ir::ops::{BroadcastInDim, Constant, Iota, Reshape};
use partita_ir::{Graph, GraphBuilder, Node, NodeId, Op, Role, TensorType, ValueId};
use partita_kernels::MAX_RANK;
use partita_program::ALIGNMENT_BYTES;

use super::cut::ranges;
use super::elementwise::{self, Walk, number, obstacle, operand_walk};
use super::{Kernel, Value, reduce};
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
    match &node.op {
        Op::Reduce(_) if number > 0 => Some(Walk::new()),
        Op::Reduce(op) => {
            let mut kept = walk.iter();
            let rank = graph.ty(node.operands[0]).rank();
            Some((0..rank).map(|d| if op.dims.contains(&d) { None } else { *kept.next()? }).collect())
        }
        _ => operand_walk(graph, node, number, walk),
    }
}

impl<'g> Rows<'g> {
    /// Takes a graph apart; what stands in the way, if it cannot be.
    fn new(graph: &'g Graph) -> Result<Rows<'g>, String> {
        let reductions = || {
            graph.nodes.iter().filter_map(|node| if let Op::Reduce(op) = &node.op { Some(op) } else { None })
        };
        let lead = reductions().filter_map(|op| op.dims.first()).min().copied().unwrap_or(0);
        let first = graph.outputs.first().ok_or("it has no results")?;
        if lead == 0 {
            return Err("it reduces its first dimension".into());
        }
        let shape = &graph.ty(*first).shape;
        let rows = shape.get(..lead).ok_or("its results have fewer dimensions than its rows")?.to_vec();
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

    /// From the results back: how the rows of each value are walked.
    fn walk(&mut self) -> Result<(), String> {
        let graph = self.graph;
        for (position, &output) in graph.outputs.iter().enumerate() {
            let shape = &graph.ty(output).shape;
            if shape.get(..self.rows.len()) != Some(&self.rows[..]) || shape.len() > MAX_RANK {
                return Err(format!("its results have different rows, {:?} and {shape:?}", self.rows));
            }
            if graph.outputs[..position].contains(&output) || graph.inputs.contains(&output) {
                return Err("it hands on a value as it is".into());
            }
            self.walks[output.index()] = Some(self.in_step(shape.len()));
        }
        for node in graph.nodes.iter().rev() {
            let &[result] = &node.results[..] else { return Err(obstacle(node, "is no elementwise op")) };
            let Some(walk) = self.walks[result.index()].clone() else { continue };
            for (position, &operand) in node.operands.iter().enumerate() {
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
        let is_view = matches!(
            node.op,
            Op::BroadcastInDim(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Constant(_) | Op::Iota(_)
        );
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
            if self.is_looked_through(node, walk) {
                ready[result.index()] = needed;
                continue;
            }
            let shape = graph.ty(result).shape.as_slice();
            let is_reduction = matches!(node.op, Op::Reduce(_));
            let joined = latest.get(shape).copied().filter(|&kernel| !is_reduction && Some(kernel) >= needed);
            let kernel = joined.unwrap_or(self.kernels.len());
            if joined.is_none() {
                self.kernels.push(Vec::new());
            }
            self.kernels[kernel].push(id);
            if !is_reduction {
                latest.insert(shape, kernel);
            }
            (ready[result.index()], self.maker[result.index()]) = (Some(kernel), Some(kernel));
        }
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
        let read_elsewhere = |value: &ValueId| {
            let mut later = self.kernels.iter().enumerate().filter(|(number, _)| *number != kernel);
            self.graph.outputs.contains(value) || later.any(|(_, nodes)| self.reads(nodes, *value))
        };
        let results = self.kernels[kernel].iter().map(|&id| self.graph.node(id).results[0]);
        let outputs: Vec<ValueId> = results.filter(read_elsewhere).collect();
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
        let op: Op = match &node.op {
            Op::BroadcastInDim(op) => BroadcastInDim { shape, ..op.clone() }.into(),
            Op::Reshape(_) => Reshape { shape }.into(),
            Op::Iota(op) => {
                // Blocks count from zero.
                let walk = self.walks[result.index()].as_ref()?;
                if walk[op.dim].is_some() {
                    return None;
                }
                Iota { ty: ty.clone(), dim: op.dim }.into()
            }
            Op::Constant(op) if op.value.ty.rank() > 0 => {
                number(&op.value)?;
                let scalar = op.value.window(&vec![0; op.value.ty.rank()], &vec![1; op.value.ty.rank()]);
                let scalar = partita_ir::Literal { ty: ty.with_shape(Vec::new()), ..scalar };
                let one = builder.constant(scalar);
                let wide = BroadcastInDim { shape, dims: Vec::new() };
                inner.insert(result, builder.push_typed(wide, &[one], vec![ty])[0]);
                return Some(());
            }
            other => other.clone(),
        };
        inner.insert(result, builder.push_typed(op, &operands, vec![ty])[0]);
        Some(())
    }

    /// The one number of a scalar that a reduction starts from.
    fn initial(&self, value: ValueId) -> Option<Value> {
        let (definition, _) = self.graph.value(value).definition?;
        let Op::Constant(Constant { value }) = &self.graph.node(definition).op else { return None };
        Some(Value::Number(number(value)?, Vec::new()))
    }

    /// Rows in one block, for work in so many parts at least.
    fn extents(&self, parts: usize) -> Vec<usize> {
        let lead = self.rows.len();
        let row_bytes = |value: ValueId| {
            let (ty, walk) = (self.graph.ty(value), self.walks[value.index()].as_ref());
            let is_rows = walk.is_some_and(|walk| *walk == self.in_step(walk.len()));
            let row = ty.shape.get(lead..).filter(|_| is_rows);
            row.map_or(0, |row| row.iter().product::<usize>() * ty.dtype.size_bytes())
        };
        let made = self.graph.value_ids().filter(|value| self.maker[value.index()].is_some());
        let bytes: usize = self.graph.inputs.iter().copied().chain(made).map(row_bytes).sum();
        let rows: usize = self.rows.iter().product();
        let wanted = (BLOCK_BYTES / bytes.max(1)).min(rows.div_ceil(parts)).max(1);
        // Whole dimensions from the last on, and of one more a part.
        let mut extents = vec![1; lead];
        let mut left = wanted;
        for (extent, &size) in extents.iter_mut().zip(&self.rows).rev() {
            *extent = left.clamp(1, size.max(1));
            if *extent < size {
                break;
            }
            left /= size.max(1);
        }
        extents
    }
}

/// Whether a graph reduces anything.
pub(super) fn has_reduction(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.op, Op::Reduce(_)))
}

/// What stands in the way of running a graph block by block, if anything.
pub(super) fn check(graph: &Graph) -> Result<(), String> {
    let rows = Rows::new(graph)?;
    let nothing = |value: &ValueId| Place::dense(0, graph.ty(*value).dtype, &graph.ty(*value).shape);
    let inputs: Vec<Value> = graph.inputs.iter().map(|value| Value::Place(nothing(value))).collect();
    let outputs: Vec<Place> = graph.outputs.iter().map(nothing).collect();
    let body = Body::new(&rows, &rows.extents(1), &inputs, &outputs);
    body.map(|_| ()).ok_or_else(|| "one of its ops has no kernel for rows".into())
}

/// The kernels of a block, wherever it stands.
struct Body {
    kernels: Vec<Kernel>,
    /// What passes between them.
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
    fn new(rows: &Rows<'_>, extents: &[usize], inputs: &[Value], outputs: &[Place]) -> Option<Body> {
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
        let mut between_bytes = 0;
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
            let kernel = if let Op::Reduce(op) = &first.op {
                let operands =
                    vec![values[first.operands[0].index()].clone()?, rows.initial(first.operands[1])?];
                let out = place_of(first.results[0], &mut values);
                reduce::compile(op, operands, &[out])?
            } else {
                let (chain, from, to) = rows.chain(number, extents)?;
                let from =
                    from.iter().map(|value| values[value.index()].clone()).collect::<Option<Vec<_>>>()?;
                let to: Vec<Place> = to.iter().map(|&value| place_of(value, &mut values)).collect();
                elementwise::compile(&chain, &from, &to, 1)?
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
    /// For each block the bytes by which every input and output lies further on.
    moves: Vec<isize>,
}

/// The graph as one kernel in at most so many parts; `None` where it cannot be run block by block.
pub(super) fn compile(graph: &Graph, inputs: &[Value], outputs: &[Place], parts: usize) -> Option<Kernel> {
    let rows = Rows::new(graph).ok()?;
    if rows.rows.contains(&0) {
        return Some(Kernel::plain(|_| {}));
    }
    let extents = rows.extents(parts);
    // Whole blocks, and what remains of one dimension: those behind it are not cut, those before go one by one.
    let cut = (0..extents.len()).rfind(|&d| extents[d] < rows.rows[d]).unwrap_or(0);
    let mut bodies: IndexMap<usize, Arc<Body>> = IndexMap::new();
    for extent in [extents[cut], rows.rows[cut] % extents[cut]].into_iter().filter(|&extent| extent > 0) {
        let mut extents = extents.clone();
        extents[cut] = extent;
        bodies.insert(extent, Arc::new(Body::new(&rows, &extents, inputs, outputs)?));
    }
    let blocks: Vec<Vec<Range<usize>>> = blocks(&rows.rows, &extents);
    // For each input and output the bytes from one row to the next, along every dimension of rows.
    let steps = |(value, place): (&ValueId, Option<&Place>)| -> Vec<isize> {
        let mut steps = vec![0; extents.len()];
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
    let part = |range: Range<usize>| {
        let own = blocks[range].chunk_by(|a, b| a[cut].len() == b[cut].len());
        let runs: Vec<Blocks> = own
            .map(|run| Blocks {
                body: bodies[&run[0][cut].len()].clone(),
                moves: run.iter().flat_map(moves).collect(),
            })
            .collect();
        run(runs, steps.len())
    };
    Some(Kernel::together(ranges(blocks.len(), parts).map(part)))
}

/// All blocks of these extents, in row-major order.
fn blocks(rows: &[usize], extents: &[usize]) -> Vec<Vec<Range<usize>>> {
    rows.iter().zip(extents).fold(vec![Vec::new()], |blocks, (&size, &extent)| {
        let longer = |block: Vec<Range<usize>>| {
            (0..size).step_by(extent).map(move |start| {
                let own = start..size.min(start + extent);
                block.iter().cloned().chain([own]).collect()
            })
        };
        blocks.into_iter().flat_map(longer).collect()
    })
}

/// A kernel of these blocks, whose places are `slots` inputs and outputs.
fn run(runs: Vec<Blocks>, slots: usize) -> Kernel {
    let workspace_bytes = runs.iter().map(|blocks| blocks.body.workspace_bytes()).max().unwrap_or(0);
    Kernel::new(workspace_bytes, move |memory: &Memory<'_>, workspace: Span| {
        let mut moves = [0isize; MOVES];
        moves[slots] = workspace.offset as isize;
        for Blocks { body, moves: all } in &runs {
            let offset = workspace.offset + body.between_bytes;
            let scratch = Span { offset, bytes: body.scratch_bytes };
            for block in all.chunks(slots) {
                moves[..slots].copy_from_slice(block);
                let memory = memory.moved(&moves);
                body.kernels.iter().try_for_each(|kernel| kernel.run(&memory, scratch))?;
            }
        }
        Ok(())
    })
}
