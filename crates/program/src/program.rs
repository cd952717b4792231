//! What one rank executes, as plain data: instructions over views of buffers, all buffers in one
//! arena.

use crate::collective::Collective;
use partita_base::{CollectiveId, Id};
use partita_ir::ops::RankConstant;
use partita_ir::{Cost, Graph, InputKind, Literal, Op, Operation, Phase, Role, TensorType, ValueId};
use std::sync::Arc;

/// Names a [`Buffer`] of a program.
pub type BufferId = Id<Buffer>;
/// Names a [`Region`] of a program.
pub type RegionId = Id<Region>;

/// The programs of all ranks, and their collectives.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProgramSet {
    /// One program per rank class; [`ProgramSet::program`] specialises it for a rank.
    pub programs: Vec<Program>,
    /// Every collective with its members; a bucket has one collective per group of ranks.
    pub collectives: Vec<Collective>,
}

/// What each rank of a class executes at every step. Where the ranks differ (slices, constants, the
/// groups of collectives), this is the program of the first rank, and [`ProgramSet::program`] fills
/// in the values of another.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    /// The ranks that run this program, ascending.
    pub ranks: Vec<usize>,
    /// The instructions, in order of execution.
    pub instructions: Vec<Instruction>,
    /// Every buffer with its offset in the arena.
    pub buffers: Vec<Buffer>,
    /// The regions that compute instructions run.
    pub regions: Vec<Region>,
    /// Size of the arena in bytes: the planned peak, persistent tensors included.
    pub arena_bytes: usize,
    /// Bytes of host memory for the buffers of kind [`BufferKind::Host`], which are not in the arena.
    pub host_bytes: usize,
    /// The graph's inputs in graph order. They are written before the first step; those of kind
    /// `Input` in every step, before it or at a pause: [`Port::at`].
    pub inputs: Vec<Port>,
    /// The graph's outputs in graph order. They may be read from [`Port::at`] on until the next step.
    pub outputs: Vec<Port>,
    /// The contents of persistent buffers before the first step.
    pub constants: Vec<(BufferId, Literal)>,
    /// As `constants`, for buffers that differ between the ranks of the class.
    pub rank_constants: Vec<(BufferId, RankConstant)>,
    /// Where the step may pause for its caller, ascending: the number of instructions before each pause. A step with
    /// cotangents ([`InputKind::Cotangent`]) has one pause, behind its forward pass. The ports say what the caller reads
    /// and writes there.
    pub pauses: Vec<usize>,
}

/// How long a buffer's contents must be kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BufferKind {
    /// Parameters, optimizer state, constants: kept from step to step, live throughout.
    Persistent,
    /// Written by the caller in every step, before it or at a pause: live from there to its last reader.
    Input,
    /// Returned at a pause or behind a step: live from its writer to the end of the step.
    Output,
    /// Any other value: live from its writer to its last reader.
    Temporary,
    /// Scratch memory of one instruction.
    Workspace,
    /// Kept in host memory beside the arena, from step to step if it is a port. Only [`Action::Move`] accesses it.
    Host,
}

impl BufferKind {
    /// The word for listings.
    pub fn name(self) -> &'static str {
        match self {
            BufferKind::Persistent => "persistent",
            BufferKind::Input => "input",
            BufferKind::Output => "output",
            BufferKind::Temporary => "temporary",
            BufferKind::Workspace => "workspace",
            BufferKind::Host => "host",
        }
    }
}

/// A dense row-major tensor at a fixed offset of the arena.
#[derive(Clone, PartialEq, Debug)]
pub struct Buffer {
    /// Element type and shape.
    pub ty: TensorType,
    /// Offset in the arena, or in host memory, in bytes: a multiple of [`crate::ALIGNMENT_BYTES`].
    pub offset_bytes: usize,
    /// Size in bytes: `ty.bytes()`.
    pub bytes: usize,
    /// The name of a parameter or input, or the op and module path that computes it.
    pub what: String,
    /// The first instruction of its live span.
    pub first: usize,
    /// The last instruction of its live span, inclusive. Buffers with overlapping spans have
    /// separate memory, except that an elementwise output may reuse the memory of an input whose
    /// span ends there.
    pub last: usize,
    /// How long it is kept.
    pub kind: BufferKind,
}

/// A strided view of a buffer: element `i` is at `offset_elements + sum(i[d] * strides[d])`. A
/// stride of 0 broadcasts, a negative one reverses.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// The buffer; the view has its element type.
    pub buffer: BufferId,
    /// Position of element 0 in the buffer, in elements.
    pub offset_elements: usize,
    /// If the offset differs between the ranks of a class: the offset for each rank.
    /// `offset_elements` is that of the first rank.
    pub offsets_by_rank: Option<Arc<[usize]>>,
    /// Extents of the view.
    pub shape: Vec<usize>,
    /// Strides in elements, one per dimension.
    pub strides: Vec<isize>,
}

/// Where an instruction comes from: for messages, listings and traces.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin {
    /// Module path; for several ops, their longest common path.
    pub path: String,
    /// An op's name, or the names of fused ops.
    pub what: String,
    /// The part of the step.
    pub phase: Phase,
    /// The microbatch, if the step has several.
    pub microbatch: Option<usize>,
    /// The pipeline stage; 0 if the step has one stage.
    pub stage: usize,
}

/// One instruction and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct Instruction {
    /// The action.
    pub action: Action,
    /// Where it comes from.
    pub origin: Origin,
}

/// What an instruction does.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Runs a region on this rank alone.
    Compute(Compute),
    /// Publishes the inputs of a collective without blocking. Inputs and outputs belong to the
    /// collective until its wait has returned.
    Start(Start),
    /// Returns when the collective's outputs are complete and every peer has finished reading the
    /// inputs.
    Wait(CollectiveId),
    /// Begins to move a tensor between the arena and host memory, without blocking. Both buffers belong to the move until
    /// its [`Action::Moved`].
    Move(Move),
    /// Returns when a move is complete.
    Moved(Move),
}

impl Action {
    /// The buffers that an instruction reads, and those that it writes, apart from scratch memory. Waits access none: what
    /// they wait for does, from its start on.
    pub fn accesses(&self) -> (Vec<BufferId>, Vec<BufferId>) {
        let of = |views: &[View]| views.iter().map(|view| view.buffer).collect();
        match self {
            Action::Compute(compute) => (of(&compute.inputs), compute.outputs.clone()),
            Action::Start(start) => (of(&start.inputs), start.outputs.clone()),
            Action::Move(Move { buffer, host, kind: MoveKind::Load }) => (vec![*host], vec![*buffer]),
            Action::Move(Move { buffer, host, kind: MoveKind::Store }) => (vec![*buffer], vec![*host]),
            Action::Wait(_) | Action::Moved(_) => (Vec::new(), Vec::new()),
        }
    }
}

/// The direction of a [`Move`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MoveKind {
    /// From host memory to the arena.
    Load,
    /// From the arena to host memory.
    Store,
}

impl MoveKind {
    /// The word for listings.
    pub fn name(self) -> &'static str {
        match self {
            MoveKind::Load => "load",
            MoveKind::Store => "store",
        }
    }
}

/// A whole tensor on its way between the arena and host memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Move {
    /// The direction.
    pub kind: MoveKind,
    /// The buffer in the arena.
    pub buffer: BufferId,
    /// The buffer in host memory, of the same type.
    pub host: BufferId,
}

/// A region with its memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Compute {
    /// The region to run.
    pub region: RegionId,
    /// One view per input of the region's graph, with that input's shape and element type.
    pub inputs: Vec<View>,
    /// One buffer per output of the region's graph, written in full.
    pub outputs: Vec<BufferId>,
    /// Scratch memory, if the region needs any.
    pub workspace: Option<BufferId>,
}

/// A rank's part in a collective.
#[derive(Clone, PartialEq, Debug)]
pub struct Start {
    /// The collective.
    pub collective: CollectiveId,
    /// One contiguous view per tensor of the bucket.
    pub inputs: Vec<View>,
    /// One buffer per tensor of the bucket.
    pub outputs: Vec<BufferId>,
}

/// How a region may be executed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegionKind {
    /// Elementwise ops, iotas, broadcast scalar constants, reductions of the last dimensions, views
    /// that keep the dimensions before those, and reductions of the first dimensions whose results
    /// no other op of the region reads. Without a reduction every input and output has one shape,
    /// the iteration shape. The inputs may be views with any strides.
    Fused,
    /// The graph has no node: the one output is a dense copy of the one input.
    Copy,
    /// One op or composite, whose operands are graph inputs or scalar constants.
    Single,
}

/// A small local graph that one instruction computes.
#[derive(Clone, PartialEq, Debug)]
pub struct Region {
    /// The graph that defines the result.
    pub graph: Graph,
    /// How it may be executed.
    pub kind: RegionKind,
    /// Pairs (input, output): the output may overwrite the input, which has the same type, if the
    /// instruction reads all of the input and nothing reads it later. Without a reduction, every
    /// output of a [`RegionKind::Fused`] region may overwrite.
    pub overwrites: Vec<(usize, usize)>,
}

impl Region {
    /// A region without `overwrites`: only elementwise execution may write over its inputs.
    pub fn new(graph: Graph, kind: RegionKind) -> Region {
        Region { graph, kind, overwrites: Vec::new() }
    }

    /// A region of elementwise ops and reductions.
    pub fn fused(graph: Graph) -> Region {
        let mut region = Region::new(graph, RegionKind::Fused);
        if region.reduces_rows() {
            region.overwrites = region.safe_overwrites();
        }
        region
    }

    /// Whether a fused region contains a reduction.
    pub fn reduces_rows(&self) -> bool {
        self.kind == RegionKind::Fused && self.graph.nodes.iter().any(|node| matches!(node.op, Op::Reduce(_)))
    }

    /// Inputs that only an output's own ancestors read. Nothing reads such an input after the
    /// output is written, in whatever order the other nodes run.
    fn safe_overwrites(&self) -> Vec<(usize, usize)> {
        let graph = &self.graph;
        let mut pairs = Vec::new();
        for (position, &output) in graph.outputs.iter().enumerate() {
            let mut needed = vec![false; graph.values.len()];
            needed[output.index()] = true;
            for node in graph.nodes.iter().rev() {
                if node.results.iter().any(|result| needed[result.index()]) {
                    node.operands.iter().for_each(|operand| needed[operand.index()] = true);
                }
            }
            let is_read_by_others = |input: ValueId| {
                let others =
                    graph.nodes.iter().filter(|node| !node.results.iter().any(|r| needed[r.index()]));
                others.flat_map(|node| &node.operands).any(|&operand| operand == input)
            };
            let inputs = graph.inputs.iter().enumerate();
            let safe = inputs
                .filter(|&(_, &input)| graph.ty(input) == graph.ty(output) && !is_read_by_others(input));
            pairs.extend(safe.map(|(input, _)| (input, position)));
        }
        pairs
    }

    /// Work of all ops. Bytes are those of the region's inputs and outputs in full, since intermediate
    /// values need not reach memory; [`Program::cost`] knows what of them an instruction reads.
    pub fn cost(&self) -> Cost {
        let graph = &self.graph;
        let flops = graph
            .nodes
            .iter()
            .map(|node| node.op.cost(&graph.operand_types(node), &graph.result_types(node)).flops)
            .sum();
        let bytes: usize = graph.inputs.iter().chain(&graph.outputs).map(|&v| graph.ty(v).bytes()).sum();
        Cost { flops, bytes: bytes as f64 }
    }

    /// The node of a [`RegionKind::Single`] region, which comes after its scalar constants.
    pub fn single(&self) -> Option<&partita_ir::Node> {
        if self.kind == RegionKind::Single { self.graph.nodes.last() } else { None }
    }
}

/// An input or output of a program.
#[derive(Clone, PartialEq, Debug)]
pub struct Port {
    /// Name in the graph: a parameter's path, `loss`; may be empty.
    pub name: String,
    /// Role of the input in the graph given to [`crate::lower`], with the value ids of that graph;
    /// `Activation` for outputs.
    pub role: Role,
    /// Its buffer.
    pub buffer: BufferId,
    /// For an output that replaces an input: the position of the input, whose buffer it shares.
    pub replaces: Option<usize>,
    /// When the caller touches it: writes an input, or begins to read an output, which he may read until the next step
    /// begins. 0 is before the step, `k` is the `k`-th pause, and the number of pauses + 1 is behind the step. Only there
    /// does a caller write, so a buffer needs no memory before.
    pub at: usize,
}

/// A number that validates a step, such as the loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checked<'a> {
    /// The output's name.
    pub name: &'a str,
    /// The buffer that holds it first.
    pub buffer: BufferId,
    /// The instruction after which it is known: the one that computes it, or the wait for its
    /// collective.
    pub known: usize,
}

impl Program {
    /// The rank of a program specialised for one rank; for a class, its first rank.
    pub fn rank(&self) -> usize {
        self.ranks[0]
    }

    /// The number of instructions that run before the caller acts at this moment: see [`Port::at`].
    pub fn before(&self, moment: usize) -> usize {
        match moment.checked_sub(1) {
            None => 0,
            Some(pause) => self.pauses.get(pause).copied().unwrap_or(self.instructions.len()),
        }
    }

    /// The buffer with this id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The region with this id.
    pub fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.index()]
    }

    /// Work of a compute instruction: that of its region, where an element that a view repeats is read once. An op that
    /// changes a part of an operand in its memory writes as much as it reads of the others; one that reads a part of an
    /// operand, such as the rows that a gather looks up, reads no more.
    pub fn cost(&self, compute: &Compute) -> Cost {
        let region = self.region(compute.region);
        let changed = self.changed_in_place(compute);
        let inputs = compute.inputs.iter().enumerate().filter(|(input, _)| Some(*input) != changed);
        let read: usize = inputs.map(|(_, view)| self.read_bytes(view)).sum();
        let all = || region.graph.outputs.iter().map(|&value| region.graph.ty(value).bytes()).sum();
        let written: usize = if changed.is_some() { read } else { all() };
        let bytes = (read + written) as f64;
        match region.single() {
            Some(node) => {
                let graph = &region.graph;
                let own = node.op.cost(&graph.operand_types(node), &graph.result_types(node));
                Cost { bytes: own.bytes.min(bytes), ..own }
            }
            None => Cost { bytes, ..region.cost() },
        }
    }

    /// The input of which an op such as `dynamic_update_slice` changes a part, if its result has the same memory.
    fn changed_in_place(&self, compute: &Compute) -> Option<usize> {
        let region = self.region(compute.region);
        region.single().filter(|node| !node.op.overwrites().is_empty())?;
        let place = |buffer: BufferId| self.buffer(buffer).offset_bytes;
        let is_same = |&&(input, output): &&(usize, usize)| {
            place(compute.inputs[input].buffer) == place(compute.outputs[output])
        };
        region.overwrites.iter().find(is_same).map(|&(input, _)| input)
    }

    /// Bytes of the elements that a view reads, each once.
    fn read_bytes(&self, view: &View) -> usize {
        let buffer = self.buffer(view.buffer);
        let steps = view.shape.iter().zip(&view.strides);
        let elements: usize =
            steps.map(|(&extent, &stride)| if stride == 0 { 1.min(extent) } else { extent }).product();
        (elements * buffer.ty.dtype.size_bytes()).min(buffer.bytes)
    }

    /// The input with this name.
    pub fn input_named(&self, name: &str) -> Option<&Port> {
        self.inputs.iter().find(|port| port.name == name)
    }

    /// The output with this name.
    pub fn output_named(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|port| port.name == name)
    }

    /// The kind of the input at a position.
    pub fn input_kind(&self, position: usize) -> InputKind {
        let Port { name, role, .. } = &self.inputs[position];
        let is_replaced = self.outputs.iter().any(|port| port.replaces == Some(position));
        InputKind::of(name, role, is_replaced)
    }

    /// The numbers that validate a step: the loss, the gradient norm, and every other float scalar
    /// output that replaces no input. With [`crate::LowerOptions::guard`] no instruction up to the
    /// last [`Checked::known`] writes a buffer that an output replaces.
    pub fn checked(&self) -> Vec<Checked<'_>> {
        let is_checked = |port: &&Port| {
            let ty = &self.buffer(port.buffer).ty;
            ty.rank() == 0 && ty.dtype.is_float() && port.replaces.is_none()
        };
        let first_known = |port| self.known(port);
        self.outputs.iter().filter(is_checked).filter_map(first_known).collect()
    }

    /// Finds where an output is first known: for a copy, where its source is known. `None` if no
    /// instruction computes it.
    fn known<'a>(&'a self, port: &'a Port) -> Option<Checked<'a>> {
        let mut buffer = port.buffer;
        loop {
            let writes = |instruction: &Instruction| match &instruction.action {
                Action::Compute(compute) => compute.outputs.contains(&buffer),
                Action::Start(start) => start.outputs.contains(&buffer),
                Action::Wait(_) | Action::Move(_) | Action::Moved(_) => false,
            };
            let writer = self.instructions.iter().position(writes)?;
            let known = match &self.instructions[writer].action {
                Action::Compute(compute) if self.region(compute.region).kind == RegionKind::Copy => {
                    let source = compute.inputs[0].buffer;
                    if self.buffer(source).ty == self.buffer(buffer).ty {
                        buffer = source;
                        continue;
                    }
                    writer
                }
                Action::Start(start) => {
                    let wait = Action::Wait(start.collective);
                    self.instructions.iter().position(|instruction| instruction.action == wait)?
                }
                _ => writer,
            };
            return Some(Checked { name: &port.name, buffer, known });
        }
    }

    /// Bytes of persistent buffers: parameters, optimizer state, constants.
    pub fn persistent_bytes(&self) -> usize {
        self.buffers.iter().filter(|b| b.kind == BufferKind::Persistent).map(|b| b.bytes).sum()
    }

    /// Bytes that a step moves between the arena and host memory, in one direction.
    pub fn moved_bytes(&self, kind: MoveKind) -> usize {
        let bytes = |instruction: &Instruction| match instruction.action {
            Action::Move(moved) if moved.kind == kind => self.buffer(moved.buffer).bytes,
            _ => 0,
        };
        self.instructions.iter().map(bytes).sum()
    }

    /// The largest sum of bytes of the arena live at one instruction, a lower bound for every memory map.
    pub fn live_peak_bytes(&self) -> usize {
        let mut change = vec![0isize; self.instructions.len() + 2];
        for buffer in self.buffers.iter().filter(|buffer| buffer.kind != BufferKind::Host) {
            change[buffer.first] += buffer.bytes as isize;
            change[buffer.last + 1] -= buffer.bytes as isize;
        }
        let mut live = 0;
        change
            .iter()
            .map(|c| {
                live += c;
                live
            })
            .max()
            .unwrap_or(0) as usize
    }
}
