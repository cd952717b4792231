//! What one rank executes, as plain data: instructions over views of buffers, all buffers in one arena.

use crate::collective::Collective;
use partita_base::{CollectiveId, Id};
use partita_ir::ops::RankConstant;
use partita_ir::{Cost, Graph, InputKind, Literal, Op, Operation, Phase, Role, TensorType, ValueId};
use std::sync::Arc;

/// Names a [`Buffer`] of a program.
pub type BufferId = Id<Buffer>;
/// Names a [`Region`] of a program.
pub type RegionId = Id<Region>;

/// The programs of all ranks and the collectives they meet in.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProgramSet {
    /// One program per class of alike ranks; [`ProgramSet::program`] is a rank's own.
    pub programs: Vec<Program>,
    /// Every collective with its members. Ranks that meet in groups have one collective per group.
    pub collectives: Vec<Collective>,
}

/// What each rank of a class executes at every step. Where the ranks differ (slices, constants, the groups of
/// collectives), this is the first rank's, and [`ProgramSet::program`] says the others'.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    /// The ranks that run this program, ascending.
    pub ranks: Vec<usize>,
    /// What to do, in order.
    pub instructions: Vec<Instruction>,
    /// Every buffer with its place in the arena.
    pub buffers: Vec<Buffer>,
    /// What compute instructions compute.
    pub regions: Vec<Region>,
    /// Size of the arena: the planned peak, persistent tensors included.
    pub arena_bytes: usize,
    /// The graph's inputs in graph order: to be written before the first step (`Input`: before every step).
    pub inputs: Vec<Port>,
    /// The graph's outputs in graph order: to be read after a step and before the next.
    pub outputs: Vec<Port>,
    /// What must stand in these persistent buffers before the first step.
    pub constants: Vec<(BufferId, Literal)>,
    /// As `constants`, where the ranks of the class differ.
    pub rank_constants: Vec<(BufferId, RankConstant)>,
}

/// How long a buffer's contents matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BufferKind {
    /// Parameters, optimizer state, constants: kept from step to step, live throughout.
    Persistent,
    /// Fed at every step: live from the beginning of the step to its last reader.
    Input,
    /// Given back at the end of a step: live from its writer to the end of the step.
    Output,
    /// Neither: live from its writer to its last reader.
    Temporary,
    /// Scratch memory of one instruction.
    Workspace,
}

impl BufferKind {
    /// A word for listings.
    pub fn name(self) -> &'static str {
        match self {
            BufferKind::Persistent => "persistent",
            BufferKind::Input => "input",
            BufferKind::Output => "output",
            BufferKind::Temporary => "temporary",
            BufferKind::Workspace => "workspace",
        }
    }
}

/// A dense row-major tensor at a fixed place of the arena.
#[derive(Clone, PartialEq, Debug)]
pub struct Buffer {
    /// Element type and shape.
    pub ty: TensorType,
    /// Where it begins in the arena, a multiple of [`crate::ALIGNMENT_BYTES`].
    pub offset_bytes: usize,
    /// Its size: `ty.bytes()`.
    pub bytes: usize,
    /// The name of a parameter or input, or the op and module path that computes it.
    pub what: String,
    /// The first instruction at which its contents or its memory matter.
    pub first: usize,
    /// The last one, inclusive. Buffers whose spans meet have memory of their own, but an elementwise output
    /// may take the place of an input that ends there.
    pub last: usize,
    /// Why it is kept.
    pub kind: BufferKind,
}

/// A strided view of a buffer: element `i` stands at `offset_elements + sum(i[d] * strides[d])`. A stride of 0
/// repeats, a negative one runs backwards.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// What is viewed; the element type is the buffer's.
    pub buffer: BufferId,
    /// Position of element 0 in the buffer.
    pub offset_elements: usize,
    /// Where the ranks of a class differ in it: the offset of each of them; `offset_elements` is the first.
    pub offsets_by_rank: Option<Arc<[usize]>>,
    /// Extents of the view.
    pub shape: Vec<usize>,
    /// Steps in elements, one per dimension.
    pub strides: Vec<isize>,
}

/// Where an instruction comes from: for messages, listings and traces.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin {
    /// Module path; the longest common one of several.
    pub path: String,
    /// What it does: an op's name, or the names of fused ops.
    pub what: String,
    /// Part of the step.
    pub phase: Phase,
    /// Microbatch, where the step is cut into several.
    pub microbatch: Option<usize>,
}

/// One instruction and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct Instruction {
    /// What to do.
    pub action: Action,
    /// Where it comes from.
    pub origin: Origin,
}

/// What an instruction does.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Runs a region on this rank alone.
    Compute(Compute),
    /// Publishes the inputs of a collective and goes on. Inputs and outputs belong to the collective until its
    /// wait has returned.
    Start(Start),
    /// Goes on when the collective's outputs are complete and every peer has finished reading the inputs.
    Wait(CollectiveId),
}

/// A region with its memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Compute {
    /// What is computed.
    pub region: RegionId,
    /// One view per input of the region's graph, of that input's shape and element type.
    pub inputs: Vec<View>,
    /// One buffer per output of the region's graph, written in full.
    pub outputs: Vec<BufferId>,
    /// Scratch memory, where the region needs any.
    pub workspace: Option<BufferId>,
}

/// This rank's part in a collective.
#[derive(Clone, PartialEq, Debug)]
pub struct Start {
    /// Which one.
    pub collective: CollectiveId,
    /// One contiguous view per tensor of the bucket.
    pub inputs: Vec<View>,
    /// One buffer per tensor of the bucket.
    pub outputs: Vec<BufferId>,
}

/// How a region is to be run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RegionKind {
    /// Elementwise ops, iotas, broadcast scalar constants, reductions of the last dimensions, views that leave the
    /// dimensions before those as they are, and reductions of the first dimensions that no other op reads. Without a reduction every input and output has one shape, the iteration
    /// shape. The inputs may be views of any strides.
    Fused,
    /// The graph has no node: the one output is a dense copy of the one input.
    Copy,
    /// One op or composite, whose operands are graph inputs or scalar constants.
    Single,
}

/// A small local graph that is run as a whole.
#[derive(Clone, PartialEq, Debug)]
pub struct Region {
    /// What it computes: the meaning of the region.
    pub graph: Graph,
    /// How it may be run.
    pub kind: RegionKind,
    /// (input, output) positions: the output may be written over the input, which is of its type, when that is read in
    /// whole and not needed any more. Where nothing is reduced, every output of a [`RegionKind::Fused`] region may.
    pub overwrites: Vec<(usize, usize)>,
}

impl Region {
    /// A region that overwrites nothing but element by element.
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

    /// Whether a fused region does more than elementwise work.
    pub fn reduces_rows(&self) -> bool {
        self.kind == RegionKind::Fused && self.graph.nodes.iter().any(|node| matches!(node.op, Op::Reduce(_)))
    }

    /// Inputs that only the nodes read which an output depends on: nobody looks at them after it is written, in whatever
    /// order the others run.
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

    /// Work of all ops; bytes are those of the region's inputs and outputs, since what lies between need not
    /// touch memory.
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
    /// Role of the input in the graph given to [`crate::lower`] (value ids are of that graph); `Activation`
    /// for outputs.
    pub role: Role,
    /// Where it lives.
    pub buffer: BufferId,
    /// For an output, the position of the input whose buffer it shares and which it replaces.
    pub replaces: Option<usize>,
}

/// A number that a step is checked by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checked<'a> {
    /// The output's name.
    pub name: &'a str,
    /// What holds it when it is known first.
    pub buffer: BufferId,
    /// The instruction after which it is known: the one that computes it, or the wait for its collective.
    pub known: usize,
}

impl Program {
    /// The rank of a program that is one rank's own; the first of several.
    pub fn rank(&self) -> usize {
        self.ranks[0]
    }

    /// The buffer with this id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The region with this id.
    pub fn region(&self, id: RegionId) -> &Region {
        &self.regions[id.index()]
    }

    /// The input with this name.
    pub fn input_named(&self, name: &str) -> Option<&Port> {
        self.inputs.iter().find(|port| port.name == name)
    }

    /// The output with this name.
    pub fn output_named(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|port| port.name == name)
    }

    /// What the input at a position is.
    pub fn input_kind(&self, position: usize) -> InputKind {
        let Port { name, role, .. } = &self.inputs[position];
        let is_replaced = self.outputs.iter().any(|port| port.replaces == Some(position));
        InputKind::of(name, role, is_replaced)
    }

    /// The numbers that a step is checked by: the loss, the norm of the gradients, and whatever else is a float scalar
    /// among the outputs and replaces no input. With [`crate::LowerOptions::guard`] no instruction up to the last
    /// [`Checked::known`] writes what an output replaces.
    pub fn checked(&self) -> Vec<Checked<'_>> {
        let is_checked = |port: &&Port| {
            let ty = &self.buffer(port.buffer).ty;
            ty.rank() == 0 && ty.dtype.is_float() && port.replaces.is_none()
        };
        let first_known = |port| self.known(port);
        self.outputs.iter().filter(is_checked).filter_map(first_known).collect()
    }

    /// Where an output is known first: an output that is a copy is known with what it is a copy of. `None` where no
    /// instruction makes it.
    fn known<'a>(&'a self, port: &'a Port) -> Option<Checked<'a>> {
        let mut buffer = port.buffer;
        loop {
            let writes = |instruction: &Instruction| match &instruction.action {
                Action::Compute(compute) => compute.outputs.contains(&buffer),
                Action::Start(start) => start.outputs.contains(&buffer),
                Action::Wait(_) => false,
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
                Action::Compute(_) | Action::Wait(_) => writer,
            };
            return Some(Checked { name: &port.name, buffer, known });
        }
    }

    /// Bytes of persistent buffers: parameters, optimizer state, constants.
    pub fn persistent_bytes(&self) -> usize {
        self.buffers.iter().filter(|b| b.kind == BufferKind::Persistent).map(|b| b.bytes).sum()
    }

    /// The largest sum of bytes live at one instruction: no memory map can be smaller.
    pub fn live_peak_bytes(&self) -> usize {
        let mut change = vec![0isize; self.instructions.len() + 2];
        for buffer in &self.buffers {
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
