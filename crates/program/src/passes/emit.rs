//! Emits one rank's instructions: regions over views of buffers. View ops become strides. A copy is
//! made only if strides cannot express the view, or if the reader needs dense memory (collectives,
//! outputs).

use crate::RegionTarget;
use crate::collective::{Collective, CollectiveKind, Transfer, exchange};
use crate::outside::Outside;
use crate::passes::bucket::{Bucket, BucketClass, edge_node};
use crate::passes::describe;
use crate::passes::fuse::{Step, uniform};
use crate::passes::scratch::Scratch;
use crate::program::{
    Action, Buffer, BufferId, BufferKind, Compute, Instruction, Origin, Port, Program, Region, RegionId,
    RegionKind, Start, View,
};
use crate::ranks::Classes;
use indexmap::{IndexMap, IndexSet};
use partita_base::CollectiveId;
use partita_ir::ops::{BroadcastInDim, Iota, Slice};
use partita_ir::traits::{ConstantOp, Traits, ViewMap};
use partita_ir::{Graph, GraphBuilder, Node, NodeId, Op, Operation, Phase, Role, TensorType, ValueId};
use std::sync::Arc;

/// The collectives of all buckets, one per group, and the number of each bucket's first collective.
pub(crate) fn collectives(
    graphs: &[Graph],
    classes: &Classes,
    buckets: &[Bucket],
) -> (Vec<Collective>, Vec<usize>) {
    let mut collectives = Vec::new();
    // Type lists repeat between groups and between layers; each list is stored once.
    let mut lists: IndexSet<Arc<[TensorType]>> = IndexSet::new();
    let mut first = Vec::new();
    for (number, bucket) in buckets.iter().enumerate() {
        first.push(collectives.len());
        let nodes: Vec<&Node> = bucket.nodes.iter().map(|&id| graphs[0].node(id)).collect();
        let path = common_path(&nodes);
        let label = match path.is_empty() {
            true => bucket.kind.name().into(),
            false => format!("{} in {path}", bucket.kind.name()),
        };
        // Where both gradient phases are one, what only sums or gathers gradients of weights is still said to.
        let for_weights = !nodes.is_empty() && nodes.iter().all(|node| node.phase == Phase::WeightGrad);
        let phase = if for_weights { Phase::WeightGrad } else { bucket.phase };
        // The transfers depend only on the classes of the members, except for ops that name single
        // ranks.
        let names_ranks =
            matches!(bucket.kind, CollectiveKind::CollectivePermute | CollectiveKind::CollectiveBroadcast);
        let mut of_classes: IndexMap<Vec<usize>, Arc<[Transfer]>> = IndexMap::new();
        for members in bucket.meetings.iter() {
            let member_classes: Vec<usize> = members.iter().map(|&rank| classes.of_rank[rank]).collect();
            let known = of_classes.get(&member_classes).filter(|_| !names_ranks).cloned();
            let mut transfer = |&id: &NodeId| {
                let graph = &graphs[member_classes[0]];
                let node = graph.node(id);
                let mut types = |select: fn(&Node) -> ValueId| {
                    let of = |&class: &usize| {
                        let graph = &graphs[class];
                        graph.ty(select(graph.node(id))).clone()
                    };
                    let list: Arc<[TensorType]> = member_classes.iter().map(of).collect();
                    let list = lists.get(&list).cloned().unwrap_or(list);
                    lists.insert(list.clone());
                    list
                };
                let op = graph.traits(node).collective().expect("buckets hold collectives");
                Transfer {
                    exchange: exchange(op, members, graph.ty(node.operands[0])),
                    inputs: types(|node| node.operands[0]),
                    outputs: types(|node| node.results[0]),
                    what: describe(graph, node.results[0]),
                }
            };
            let transfers = known.unwrap_or_else(|| bucket.nodes.iter().map(&mut transfer).collect());
            of_classes.insert(member_classes, transfers.clone());
            collectives.push(Collective {
                kind: bucket.kind,
                members: members.clone(),
                transfers,
                label: label.clone(),
                phase,
                microbatch: bucket.microbatch,
                bucket: number,
                edge: bucket.edge.map(|(edge, _)| edge),
            });
        }
    }
    (collectives, first)
}

/// The type for a rank that sends or receives nothing.
pub(crate) fn nothing(ty: &TensorType) -> TensorType {
    ty.with_shape(vec![0])
}

/// The longest module path that all nodes share.
fn common_path(nodes: &[&Node]) -> String {
    let mut common: Vec<&str> = nodes.first().map_or(Vec::new(), |node| node.path.split('.').collect());
    for node in nodes {
        let shared = common.iter().zip(node.path.split('.')).take_while(|(a, b)| **a == *b).count();
        common.truncate(shared);
    }
    common.join(".")
}

fn origin(nodes: &[&Node]) -> Origin {
    let mut counts: IndexMap<&str, usize> = IndexMap::new();
    nodes.iter().for_each(|node| *counts.entry(node.op.short_name()).or_default() += 1);
    let name = |(name, count): (&&str, &usize)| {
        if *count > 1 { format!("{count}*{name}") } else { name.to_string() }
    };
    let mut what: Vec<String> = counts.iter().take(4).map(name).collect();
    if counts.len() > 4 {
        what.push("..".into());
    }
    Origin {
        path: common_path(nodes),
        what: what.join("+"),
        phase: nodes.last().map_or(Phase::Forward, |node| node.phase),
        microbatch: nodes.last().and_then(|node| node.microbatch),
        stage: nodes.last().map_or(0, |node| node.stage),
    }
}

struct Emitter<'a> {
    graph: &'a Graph,
    target: &'a dyn RegionTarget,
    program: Program,
    /// The view of each value, once it is known.
    views: Vec<Option<View>>,
    /// Dense copies of values whose view is not dense.
    dense: Vec<Option<View>>,
    scratch: Scratch,
    /// The outputs that have a buffer so far, by position.
    outputs: Vec<Option<Port>>,
    /// Their buffers.
    taken: IndexSet<BufferId>,
}

/// The inputs and outputs of a graph that are ports of the program. They come first; the remaining
/// ones belong to edges between stages.
pub(crate) struct Ports<'a> {
    /// The role of each input.
    pub roles: &'a [Role],
    /// Number of outputs.
    pub outputs: usize,
    /// When the caller touches them.
    pub outside: &'a Outside,
}

/// Emits the program of a rank class. `first_meeting` is the number of each bucket's first
/// collective; the program uses the collectives of the class's first rank. Buffers have no offsets
/// yet.
pub(crate) fn emit(
    ranks: &[usize],
    graph: &Graph,
    ports: Ports,
    steps: &[Step],
    buckets: &[Bucket],
    first_meeting: &[usize],
    target: &dyn RegionTarget,
) -> Program {
    let count = graph.values.len();
    let program = Program { ranks: ranks.to_vec(), ..Program::default() };
    let rank = ranks[0];
    let (views, dense) = (vec![None; count], vec![None; count]);
    let (scratch, outputs) = (Scratch::default(), vec![None; ports.outputs]);
    let taken = IndexSet::new();
    let mut emitter = Emitter { graph, target, program, views, dense, scratch, outputs, taken };
    emitter.inputs(&ports);
    for step in steps {
        match step {
            Step::Fused { nodes, results } => emitter.fused(nodes, results),
            Step::Single(node) => emitter.single(*node),
            Step::Start(number) => {
                let bucket = &buckets[*number];
                let meeting =
                    bucket.meetings.iter().position(|m| m.contains(&rank)).expect("every rank is in one");
                emitter.start(bucket, CollectiveId::new(first_meeting[*number] + meeting));
            }
            Step::Wait(number) => {
                let bucket = &buckets[*number];
                let meeting =
                    bucket.meetings.iter().position(|m| m.contains(&rank)).expect("every rank is in one");
                let origin = emitter.bucket_origin(bucket);
                let action = Action::Wait(CollectiveId::new(first_meeting[*number] + meeting));
                emitter.program.instructions.push(Instruction { action, origin });
            }
            Step::Pause => {
                emitter.outputs(ports.outside, &|output| ports.outside.is_read_at_pause(output));
                emitter.program.pauses.push(emitter.program.instructions.len());
            }
        }
    }
    emitter.outputs(ports.outside, &|_| true);
    emitter.program.outputs = emitter.outputs.into_iter().flatten().collect();
    emitter.program
}

impl Emitter<'_> {
    fn buffer(&mut self, ty: &TensorType, what: String, kind: BufferKind) -> BufferId {
        let id = BufferId::new(self.program.buffers.len());
        self.program.buffers.push(Buffer {
            bytes: ty.bytes(),
            ty: ty.clone(),
            offset_bytes: 0,
            what,
            first: 0,
            last: 0,
            kind,
        });
        id
    }

    fn inputs(&mut self, ports: &Ports) {
        let graph = self.graph;
        let mut is_replaced = vec![false; graph.inputs.len()];
        graph.aliases.iter().for_each(|&(input, _)| is_replaced[input] = true);
        for (position, (&value, role)) in graph.inputs.iter().zip(ports.roles).enumerate() {
            let kind = if *role == Role::Input && !is_replaced[position] {
                BufferKind::Input
            } else {
                BufferKind::Persistent
            };
            let ty = graph.ty(value);
            let buffer = self.buffer(ty, describe(graph, value), kind);
            self.views[value.index()] = Some(View::whole(buffer, &ty.shape));
            self.program.inputs.push(Port {
                name: graph.value(value).name.clone(),
                role: role.clone(),
                buffer,
                replaces: None,
                at: ports.outside.inputs[position],
            });
        }
    }

    /// The view of a value. Emits constants, iotas and copies at their first use.
    fn view(&mut self, value: ValueId) -> View {
        if let Some(view) = &self.views[value.index()] {
            return view.clone();
        }
        let graph = self.graph;
        let (id, number) = graph.value(value).definition.expect("inputs are seen from the beginning");
        let node = graph.node(id);
        let ty = graph.ty(value);
        let view = match graph.traits(node) {
            Traits::Constant(constant) => {
                let buffer = self.buffer(ty, describe(graph, value), BufferKind::Persistent);
                match constant {
                    ConstantOp::OfAll(constant) => {
                        self.program.constants.push((buffer, constant.value.clone()));
                    }
                    ConstantOp::ByRank(constant) => {
                        self.program.rank_constants.push((buffer, constant.clone()));
                    }
                }
                View::whole(buffer, &ty.shape)
            }
            Traits::Iota { .. } => {
                let (region, inputs) = self.fused_region(&[id], &[value]);
                let outputs = self.compute(region, inputs, &[value], origin(&[node]));
                View::whole(outputs[0], &ty.shape)
            }
            Traits::View(map) => {
                let operand = if map == ViewMap::Identity { node.operands[number] } else { node.operands[0] };
                let starts =
                    if let ViewMap::Window { sizes } = map { self.starts(node, sizes) } else { Vec::new() };
                match self.view(operand).apply(map, &ty.shape, &starts) {
                    Some(view) => view,
                    None => {
                        let view = self.dense(operand).apply(map, &ty.shape, &starts);
                        view.expect("dense elements have any shape")
                    }
                }
            }
            Traits::Elementwise(_) | Traits::Collective(_) | Traits::Opaque | Traits::Refused => {
                unreachable!("{} is computed before it is read", node.op.name())
            }
        };
        self.views[value.index()] = Some(view.clone());
        view
    }

    /// The starts of a window at constant positions, for each rank of the class.
    fn starts(&self, node: &Node, sizes: &[usize]) -> Vec<Vec<usize>> {
        let graph = self.graph;
        let shape = &graph.ty(node.operands[0]).shape;
        // For each dimension, one number for all ranks or one per rank.
        let start = |value: &ValueId| match graph.constant(*value).expect("a window begins at constants") {
            ConstantOp::OfAll(constant) => constant.value.to_i64(),
            ConstantOp::ByRank(constant) => constant.values.to_i64(),
        };
        let starts: Vec<Vec<i64>> = node.operands[1..].iter().map(start).collect();
        let of_rank = |position: usize| -> Vec<usize> {
            let own: Vec<i64> =
                starts.iter().map(|of| of[if of.len() == 1 { 0 } else { position }]).collect();
            Slice::clamped(&own, sizes, shape).start
        };
        (0..self.program.ranks.len()).map(of_rank).collect()
    }

    /// A view of the value with its elements in row-major order.
    fn dense(&mut self, value: ValueId) -> View {
        let view = self.view(value);
        if view.is_dense() {
            return view;
        }
        if let Some(dense) = &self.dense[value.index()] {
            return dense.clone();
        }
        let dense = View::whole(self.copy(value), &view.shape);
        self.dense[value.index()] = Some(dense.clone());
        dense
    }

    /// Emits a dense copy.
    fn copy(&mut self, value: ValueId) -> BufferId {
        let ty = self.graph.ty(value);
        let view = self.view(value);
        let what = format!("copy of {}", describe(self.graph, value));
        let node = self.graph.value(value).definition.map(|(node, _)| self.graph.node(node));
        let origin = Origin { what: "copy".into(), ..origin(node.as_slice()) };
        let output = self.buffer(ty, what, BufferKind::Temporary);
        push_copy(&mut self.program, ty, view, output, origin);
        output
    }

    /// The region of these nodes (elementwise ops, reductions of rows, and views between them) with
    /// these results, and the views that it reads.
    fn fused_region(&mut self, nodes: &[NodeId], results: &[ValueId]) -> (Region, Vec<View>) {
        let graph = self.graph;
        let reduces = nodes.iter().any(|&id| matches!(graph.node(id).op, Op::Reduce(_)));
        let mut builder = GraphBuilder::new("fused");
        // Scalar operands are broadcast to the shape of the op that reads them.
        let mut inner: IndexMap<(ValueId, &[usize]), ValueId> = IndexMap::new();
        let mut inputs = Vec::new();
        for &id in nodes {
            let node = graph.node(id);
            let mut operands = Vec::new();
            for &operand in &node.operands {
                let own = !graph.traits(node).is_elementwise();
                let shape = graph.ty(if own { operand } else { node.results[0] }).shape.as_slice();
                let known = inner.get(&(operand, shape)).copied();
                let mapped = known.unwrap_or_else(|| {
                    let ty = graph.ty(operand).with_shape(shape.to_vec());
                    let iota = graph.value(operand).definition.map(|(node, _)| &graph.node(node).op);
                    if let Some(constant) = uniform(graph, operand) {
                        let scalar = TensorType::scalar(ty.dtype);
                        let scalar = builder.push_typed(constant.op(), &[], vec![scalar])[0];
                        if shape.is_empty() {
                            scalar
                        } else {
                            let broadcast = BroadcastInDim { shape: shape.to_vec(), dims: Vec::new() };
                            builder.push_typed(broadcast, &[scalar], vec![ty])[0]
                        }
                    } else if let Some(Op::Iota(Iota { ty: own, dim })) = iota
                        && own.shape == *shape
                        // A region with rows runs in blocks of rows that do not know their
                        // position.
                        && !reduces
                    {
                        builder.push_typed(Iota { ty: ty.clone(), dim: *dim }, &[], vec![ty])[0]
                    } else {
                        let view = self.view(operand);
                        inputs.push(if view.shape == *shape { view } else { view.broadcast(shape, &[]) });
                        builder.input(&graph.value(operand).name, ty, Role::Activation)
                    }
                });
                inner.insert((operand, shape), mapped);
                operands.push(mapped);
            }
            let types = node.results.iter().map(|&r| graph.ty(r).clone()).collect();
            let mapped = builder.push_typed(node.op.clone(), &operands, types);
            let results = node.results.iter().map(|&r| (r, graph.ty(r).shape.as_slice()));
            inner.extend(results.zip(mapped));
        }
        let results = results.iter().map(|&r| inner[&(r, graph.ty(r).shape.as_slice())]).collect();
        (Region::fused(builder.finish(results)), inputs)
    }

    fn fused(&mut self, nodes: &[NodeId], results: &[ValueId]) {
        let graph = self.graph;
        let (region, inputs) = self.fused_region(nodes, results);
        let nodes = nodes.iter().map(|&id| graph.node(id));
        let ops: Vec<&Node> = nodes.filter(|node| !graph.traits(node).is_view()).collect();
        self.compute(region, inputs, results, origin(&ops));
    }

    fn single(&mut self, id: NodeId) {
        let graph = self.graph;
        let node = graph.node(id);
        let needs_dense = matches!(&node.op, Op::Composite(composite) if self.target.needs_dense(composite));
        let mut builder = GraphBuilder::new("single");
        let mut inner: IndexMap<ValueId, ValueId> = IndexMap::new();
        let mut inputs = Vec::new();
        for &operand in &node.operands {
            if inner.contains_key(&operand) {
                continue;
            }
            let constant = graph.constant(operand).filter(|_| graph.ty(operand).rank() == 0);
            let mapped = match constant {
                Some(constant) => builder.push_typed(constant.op(), &[], vec![graph.ty(operand).clone()])[0],
                None => {
                    inputs.push(if needs_dense { self.dense(operand) } else { self.view(operand) });
                    builder.input(&graph.value(operand).name, graph.ty(operand).clone(), Role::Activation)
                }
            };
            inner.insert(operand, mapped);
        }
        let operands: Vec<ValueId> = node.operands.iter().map(|o| inner[o]).collect();
        let types = node.results.iter().map(|&r| graph.ty(r).clone()).collect();
        let results = builder.push_typed(node.op.clone(), &operands, types);
        let graph = builder.finish(results);
        let overwrites = match node.op.composite() {
            Some(composite) => self.target.overwrites(composite),
            None => node.op.overwrites().to_vec(),
        };
        let input = |&(operand, result): &(usize, usize)| {
            Some((graph.inputs.iter().position(|&v| v == operands[operand])?, result))
        };
        let overwrites = overwrites.iter().filter_map(input).collect();
        let region = Region { graph, kind: RegionKind::Single, overwrites };
        self.compute(region, inputs, &node.results, origin(&[node]));
    }

    /// Appends a compute instruction whose outputs are these values.
    fn compute(
        &mut self,
        region: Region,
        inputs: Vec<View>,
        results: &[ValueId],
        origin: Origin,
    ) -> Vec<BufferId> {
        let outputs: Vec<BufferId> = results.iter().map(|&value| self.result(value)).collect();
        let bytes = self.scratch.bytes(&self.program, self.target, &region, &inputs);
        let workspace = (bytes > 0).then(|| {
            let ty = TensorType::new(partita_base::DType::U8, [bytes]);
            self.buffer(&ty, format!("workspace of {}", origin.what), BufferKind::Workspace)
        });
        let id = RegionId::new(self.program.regions.len());
        self.program.regions.push(region);
        let compute = Compute { region: id, inputs, outputs: outputs.clone(), workspace };
        self.program.instructions.push(Instruction { action: Action::Compute(compute), origin });
        outputs
    }

    /// A buffer for a computed value.
    fn result(&mut self, value: ValueId) -> BufferId {
        let ty = self.graph.ty(value);
        let buffer = self.buffer(ty, describe(self.graph, value), BufferKind::Temporary);
        self.views[value.index()] = Some(View::whole(buffer, &ty.shape));
        buffer
    }

    fn bucket_origin(&self, bucket: &Bucket) -> Origin {
        let Some((_, value)) = bucket.edge else {
            let nodes: Vec<&Node> = bucket.nodes.iter().map(|&id| self.graph.node(id)).collect();
            return origin(&nodes);
        };
        let node = edge_node(self.graph, value);
        let what = if bucket.class == BucketClass::Sent { "send" } else { "receive" };
        Origin {
            path: node.map_or(String::new(), |node| node.path.clone()),
            what: what.to_string(),
            phase: bucket.phase,
            microbatch: bucket.microbatch,
            stage: node.map_or(0, |node| node.stage),
        }
    }

    fn start(&mut self, bucket: &Bucket, collective: CollectiveId) {
        let graph = self.graph;
        let mut inputs: Vec<View> = bucket.operands(graph).into_iter().map(|v| self.dense(v)).collect();
        let mut outputs: Vec<BufferId> = bucket.results(graph).into_iter().map(|v| self.result(v)).collect();
        if let Some((_, value)) = bucket.edge {
            // A rank of the sending stage receives nothing, one of the receiving stage sends
            // nothing.
            let nothing = nothing(graph.ty(value));
            let buffer = self.buffer(&nothing, "nothing".to_string(), BufferKind::Temporary);
            if inputs.is_empty() {
                inputs.push(View::whole(buffer, &nothing.shape));
            } else {
                outputs.push(buffer);
            }
        }
        let origin = self.bucket_origin(bucket);
        let action = Action::Start(Start { collective, inputs, outputs });
        self.program.instructions.push(Instruction { action, origin });
    }

    /// Gives these output ports, unless they have them, a buffer of their own, except an input that replaces itself.
    fn outputs(&mut self, outside: &Outside, is_due: &dyn Fn(usize) -> bool) {
        let graph = self.graph;
        let replaced: IndexMap<usize, usize> =
            graph.aliases.iter().rev().map(|&(input, output)| (output, input)).collect();
        for (position, &value) in graph.outputs.iter().enumerate().take(self.outputs.len()) {
            if self.outputs[position].is_some() || !is_due(position) {
                continue;
            }
            let ty = graph.ty(value);
            let view = self.view(value);
            let buffer = &self.program.buffers[view.buffer.index()];
            let replaces = replaced.get(&position).copied();
            let is_itself = replaces.is_some_and(|input| self.program.inputs[input].buffer == view.buffer);
            let is_free = buffer.kind == BufferKind::Temporary && !self.taken.contains(&view.buffer);
            let buffer = if view.is_whole(&buffer.ty) && (is_free || is_itself) {
                view.buffer
            } else {
                self.copy(value)
            };
            debug_assert_eq!(&self.program.buffer(buffer).ty, ty);
            if !is_itself || buffer != view.buffer {
                self.program.buffers[buffer.index()].kind = BufferKind::Output;
            }
            let name = graph.output_names.get(position).cloned().unwrap_or_default();
            self.taken.insert(buffer);
            let at = outside.outputs[position];
            self.outputs[position] = Some(Port { name, role: Role::Activation, buffer, replaces, at });
        }
    }
}

/// Appends a dense copy of a view.
pub(crate) fn push_copy(
    program: &mut Program,
    ty: &TensorType,
    input: View,
    output: BufferId,
    origin: Origin,
) {
    let mut builder = GraphBuilder::new("copy");
    let value = builder.input("", ty.clone(), Role::Activation);
    let graph = builder.finish(vec![value]);
    let region = RegionId::new(program.regions.len());
    program.regions.push(Region::new(graph, RegionKind::Copy));
    let compute = Compute { region, inputs: vec![input], outputs: vec![output], workspace: None };
    program.instructions.push(Instruction { action: Action::Compute(compute), origin });
}
