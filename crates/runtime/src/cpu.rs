//! The CPU device: compiles each compute instruction into one kernel call on the rank's memory, once, before
//! the first step.
//!
//! Elementwise regions become fused programs, and ops and composites with a kernel become kernel calls.
//! Everything else runs on the reference interpreter, which is correct for every op and type but slow, and is
//! listed as a [`SlowOp`].

mod blocks;
#[cfg(test)]
mod blocks_tests;
mod composites;
mod convolution;
mod cut;
mod dot;
mod elementwise;
mod indexing;
mod interpret;
#[cfg(test)]
mod outlined_tests;
mod random;
mod rank;
mod reduce;
mod runs;
mod shapes;
mod sort;
#[cfg(test)]
mod tests;
mod windows;

use partita_base::DType;
use partita_ir::composite::Origin;
use partita_ir::graph_edit::open_composites;
use partita_ir::ops::Composite;
use partita_ir::traits::{Traits, ViewMap};
use partita_ir::{Graph, Node, Op, Operation, Target, ValueId};
use partita_kernels::{KernelOptions, MAX_RANK, Scalar, View};
use partita_program::{ALIGNMENT_BYTES, Compute, Program, Region, RegionKind, RegionTarget};

use crate::arena::{Memory, Place, Span};
use crate::custom_kernels::CpuKernels;
use cut::Share;
pub use rank::CpuRank;
pub(crate) use rank::{begin_move, buffer_span, end_move, host_range};

/// Runs on the memory of a rank, with scratch memory of at least [`Kernel::workspace_bytes`].
type Run = Box<dyn Fn(&Memory<'_>, Span) -> partita_base::Result<()> + Send + Sync>;

/// A part of an instruction's work, which one thread runs.
struct Part {
    run: Run,
    /// Its span of the kernel's scratch memory.
    workspace: Span,
}

impl Part {
    fn workspace_in(&self, whole: Span) -> Span {
        Span { offset: whole.offset + self.workspace.offset, ..self.workspace }
    }
}

/// Runs after all parts, on the scratch memory that each of them left, by the part's index.
type Last = Box<dyn Fn(&Memory<'_>, &dyn Fn(usize) -> Span) -> partita_base::Result<()> + Send + Sync>;

/// One compiled compute instruction: its parts may run in any order, or concurrently.
pub(crate) struct Kernel {
    parts: Vec<Part>,
    /// Work that runs after all parts.
    last: Option<Last>,
    /// The whole instruction as one part, if splitting it repeats work (such as packing an operand in every
    /// part).
    alone: Option<Part>,
    /// Whether it runs on the interpreter, which allocates memory.
    pub is_slow: bool,
}

impl Kernel {
    pub fn new(
        workspace_bytes: usize,
        run: impl Fn(&Memory<'_>, Span) -> partita_base::Result<()> + Send + Sync + 'static,
    ) -> Kernel {
        let workspace = Span { offset: 0, bytes: workspace_bytes };
        Kernel::of_parts(vec![Part { run: Box::new(run), workspace }])
    }

    fn of_parts(parts: Vec<Part>) -> Kernel {
        Kernel { parts, last: None, alone: None, is_slow: false }
    }

    fn plain(run: impl Fn(&Memory<'_>) + Send + Sync + 'static) -> Kernel {
        Kernel::new(0, move |memory, _| {
            run(memory);
            Ok(())
        })
    }

    /// One kernel with the parts of several kernels, which write different elements. None of them has a last
    /// part.
    pub fn together(kernels: impl IntoIterator<Item = Kernel>) -> Kernel {
        let mut whole = Kernel::of_parts(Vec::new());
        for kernel in kernels {
            debug_assert!(kernel.last.is_none() && kernel.alone.is_none());
            let base = whole.workspace_bytes().next_multiple_of(ALIGNMENT_BYTES);
            whole.is_slow |= kernel.is_slow;
            whole.parts.extend(kernel.parts.into_iter().map(|part| Part {
                workspace: Span { offset: base + part.workspace.offset, ..part.workspace },
                ..part
            }));
        }
        whole
    }

    /// The same kernel with a last part, which begins when all others have ended.
    pub fn then(
        self,
        last: impl Fn(&Memory<'_>, &dyn Fn(usize) -> Span) -> partita_base::Result<()> + Send + Sync + 'static,
    ) -> Kernel {
        Kernel { last: Some(Box::new(last)), ..self }
    }

    /// The same kernel with a one-part version, for when a single thread runs it. Both give the same bits.
    pub fn or_alone(self, kernel: Kernel) -> Kernel {
        debug_assert!(self.last.is_none() && kernel.last.is_none() && kernel.parts.len() == 1);
        Kernel { alone: kernel.parts.into_iter().next(), ..self }
    }

    /// Bytes of scratch memory for all parts.
    pub fn workspace_bytes(&self) -> usize {
        let end = |part: &Part| part.workspace.offset + part.workspace.bytes;
        self.parts.last().into_iter().chain(&self.alone).map(end).max().unwrap_or(0)
    }

    /// Whether one thread has less work in total than several.
    pub fn is_better_alone(&self) -> bool {
        self.alone.is_some()
    }

    /// The number of parts, without the last one.
    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// Runs one part.
    pub fn run_part(&self, part: usize, memory: &Memory<'_>, workspace: Span) -> partita_base::Result<()> {
        let part = &self.parts[part];
        (part.run)(memory, part.workspace_in(workspace))
    }

    /// Runs the last part, if there is one. All other parts must have ended.
    pub fn finish(&self, memory: &Memory<'_>, workspace: Span) -> partita_base::Result<()> {
        let workspace_of = |part: usize| self.parts[part].workspace_in(workspace);
        self.last.as_ref().map_or(Ok(()), |last| last(memory, &workspace_of))
    }

    /// Runs the whole instruction on one thread.
    pub fn run(&self, memory: &Memory<'_>, workspace: Span) -> partita_base::Result<()> {
        match &self.alone {
            Some(alone) => (alone.run)(memory, alone.workspace_in(workspace)),
            None => self.run_parts(memory, workspace),
        }
    }

    /// Runs all parts, one after the other.
    fn run_parts(&self, memory: &Memory<'_>, workspace: Span) -> partita_base::Result<()> {
        (0..self.part_count()).try_for_each(|part| self.run_part(part, memory, workspace))?;
        self.finish(memory, workspace)
    }
}

/// An op that has no kernel for its types and runs on the interpreter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlowOp {
    /// The op's name.
    pub op: String,
    /// The module path of one of them.
    pub path: String,
    /// The number of such instructions, over all ranks.
    pub count: usize,
}

/// The CPU device. Lowering queries it for the composites that have kernels and for the scratch memory of
/// regions; the runner compiles instructions with it. Both must use the same settings.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// Custom kernels, which take precedence over built-in ones.
    pub kernels: CpuKernels,
    /// Threads that share the work of one rank; at least one. Results do not depend on it.
    pub threads: usize,
    /// The machine code that kernels may use. Only f32 matmul on AMX gives other bits than portable code.
    pub kernel_options: KernelOptions,
}

impl Default for Cpu {
    /// No custom kernels, one thread per rank, and all machine code that this machine supports.
    fn default() -> Self {
        Cpu { kernels: CpuKernels::default(), threads: 1, kernel_options: KernelOptions::default() }
    }
}

impl RegionTarget for Cpu {
    fn workspace_bytes(&self, region: &Region, inputs: &[partita_program::View]) -> usize {
        let graph = &region.graph;
        let dense = |&v: &ValueId| Place::dense(0, graph.ty(v).dtype, &graph.ty(v).shape);
        // A matmul may have to copy an operand that is a view.
        let viewed = |(v, view): (&ValueId, &partita_program::View)| Place {
            strides: view.strides.clone(),
            ..dense(v)
        };
        let inputs = graph.inputs.iter().zip(inputs).map(viewed).collect();
        self.compile_region(region, inputs, graph.outputs.iter().map(dense).collect()).workspace_bytes()
    }
}

impl Target for Cpu {
    /// The compiler inlines all other composites.
    fn has_kernel(&self, composite: &Composite) -> bool {
        self.kernels.find(composite).is_some()
            || composites::has_kernel(composite)
            || (is_outlined(&composite.definition.origin) && self.fusible(composite).is_ok())
    }

    /// Whether a composite of elementwise ops and row reductions can run as one kernel. That applies to
    /// composites that a plan outlined (`fuse`), and their gradients; templates without a kernel are inlined,
    /// and fuse with adjacent ops.
    fn fusible(&self, composite: &Composite) -> Result<(), String> {
        let graph = opened(composite);
        if blocks::has_reduction(&graph) {
            blocks::check(self.kernel_options, &graph)
        } else {
            elementwise::chain(&graph).map(|_| ())
        }
    }

    fn needs_dense(&self, composite: &Composite) -> bool {
        self.kernels.find(composite).is_some()
    }

    fn overwrites(&self, composite: &Composite) -> Vec<(usize, usize)> {
        if self.kernels.find(composite).is_some() { Vec::new() } else { composites::overwrites(composite) }
    }

    fn product_block(&self, dtype: DType, terms: usize) -> Option<usize> {
        partita_kernels::matmul_sum_block(dtype, terms)
    }
}

/// The kernel of a graph of elementwise ops and row reductions.
fn fused(
    options: KernelOptions,
    graph: &Graph,
    inputs: &[Value],
    outputs: &[Place],
    parts: usize,
) -> Option<Kernel> {
    let compile = if blocks::has_reduction(graph) { blocks::compile } else { elementwise::compile };
    compile(options, graph, inputs, outputs, parts)
}

/// The decomposition of a composite, with all composites in it inlined.
fn opened(composite: &Composite) -> Graph {
    open_composites(&composite.definition.decomposition, &|_| true)
        .expect("decompositions fit where they are applied")
}

fn is_outlined(origin: &Origin) -> bool {
    match origin {
        Origin::Template(_) => false,
        Origin::Outlined => true,
        Origin::Vjp { base, .. } => is_outlined(&base.origin),
    }
}

/// The place of a buffer in the arena.
pub(crate) fn buffer_place(program: &Program, id: partita_program::BufferId) -> Place {
    let buffer = program.buffer(id);
    Place::dense(buffer.offset_bytes, buffer.ty.dtype, &buffer.ty.shape)
}

/// The place of a view in the arena.
pub(crate) fn view_place(program: &Program, view: &partita_program::View) -> Place {
    let buffer = program.buffer(view.buffer);
    let dtype = buffer.ty.dtype;
    Place {
        offset_bytes: buffer.offset_bytes + view.offset_elements * dtype.size_bytes(),
        dtype,
        shape: view.shape.clone(),
        strides: view.strides.clone(),
        moved: None,
    }
}

impl Cpu {
    /// The kernel of one compute instruction.
    pub(crate) fn compile(&self, program: &Program, compute: &Compute) -> Kernel {
        let inputs = compute.inputs.iter().map(|view| view_place(program, view)).collect();
        let outputs = compute.outputs.iter().map(|&buffer| buffer_place(program, buffer)).collect();
        self.compile_region(program.region(compute.region), inputs, outputs)
    }

    /// The kernel of a region on these places. Its workspace depends on the region alone, except that a
    /// matmul may have to copy an operand whose strides it cannot use.
    pub(crate) fn compile_region(&self, region: &Region, inputs: Vec<Place>, outputs: Vec<Place>) -> Kernel {
        self.compile_parts(region, inputs, outputs, cut::part_count(region, self.threads))
    }

    /// The kernel of a region in at most `parts` parts.
    fn compile_parts(
        &self,
        region: &Region,
        inputs: Vec<Place>,
        outputs: Vec<Place>,
        parts: usize,
    ) -> Kernel {
        let fits = |place: &Place| place.shape.len() <= MAX_RANK;
        let chain = || {
            let inputs: Vec<Value> = inputs.iter().cloned().map(Value::Place).collect();
            fused(self.kernel_options, &region.graph, &inputs, &outputs, parts)
        };
        let kernel = if !inputs.iter().chain(&outputs).all(fits) {
            None
        } else {
            let graph = &region.graph;
            let single = || self.single(graph, &inputs, &outputs, parts);
            let is_across = |node: &Node| reduce::rows_across(graph, node).is_some();
            match region.kind {
                RegionKind::Copy => Some(shapes::copy(&inputs[0], &outputs[0], parts)),
                RegionKind::Fused => chain(),
                // Split between rows, like the ops that usually produce its input, so that each part reads
                // contiguous memory.
                RegionKind::Single if graph.nodes.last().is_some_and(is_across) => chain().or_else(single),
                RegionKind::Single => single().or_else(chain),
            }
        };
        kernel.unwrap_or_else(|| interpret::compile(region.graph.clone(), inputs, outputs))
    }

    /// The kernel of a region of one op, in at most `parts` parts; `None` if there is none for its types.
    fn single(&self, graph: &Graph, inputs: &[Place], outputs: &[Place], parts: usize) -> Option<Kernel> {
        let node: &Node = graph.nodes.last()?;
        // The region's outputs are the op's results, in order.
        if graph.outputs != node.results {
            return None;
        }
        let operands = operands(graph, inputs)?;
        if let Op::Composite(composite) = &node.op {
            // A custom kernel runs as one part, and a fused decomposition is split by rows: neither uses `cut`.
            let own = self.kernels.compile(composite, &operands, outputs);
            if own.is_some() || !composites::has_kernel(composite) {
                return own
                    .or_else(|| fused(self.kernel_options, &opened(composite), &operands, outputs, parts));
            }
            if let Some(kernel) =
                composites::norm_gradient(self.kernel_options, composite, &operands, outputs, parts)
            {
                return Some(kernel);
            }
        }
        let together = |shares: Vec<Share>| -> Option<Kernel> {
            let kernels = shares.into_iter().map(|share| op_kernel(&node.op, share, self.kernel_options));
            Some(Kernel::together(kernels.collect::<Option<Vec<_>>>()?))
        };
        let Some(cut) = cut::choose(graph, node, parts) else {
            return together(vec![Share::whole(operands, outputs)]);
        };
        let cut_in = |parts| together(cut.shares(parts, &operands, outputs));
        let mut kernel = cut_in(parts * cut.pieces)?;
        // Each part needs its own scratch memory, so use no more parts than threads.
        if cut.pieces > 1 && kernel.workspace_bytes() > 0 {
            kernel = cut_in(parts)?;
        }
        if cut.repeats && kernel.part_count() > 1 {
            kernel =
                kernel.or_alone(op_kernel(&node.op, Share::whole(operands, outputs), self.kernel_options)?);
        }
        Some(kernel)
    }
}

/// The kernel of an op for a share of its results.
fn op_kernel(op: &Op, share: Share, options: KernelOptions) -> Option<Kernel> {
    if let Op::Composite(composite) = op {
        return composites::compile(composite, share, options);
    }
    let Share { operands, outputs, .. } = share;
    let out = || outputs[0].clone();
    match op {
        Op::DotGeneral(op) => dot::compile(op, options, &operands, None, out()),
        Op::Convolution(op) => convolution::compile(op, options, operands, out()),
        Op::Reduce(op) => reduce::compile(options, op, operands, &outputs),
        Op::ReduceWindow(op) => windows::reduce(options, op, operands, &outputs),
        Op::SelectAndScatter(op) => windows::select_and_scatter(op, operands, out()),
        Op::Sort(op) => sort::sort(op, operands, outputs),
        Op::TopK(_) => Some(sort::top_k(operands, outputs)),
        Op::Gather(op) => indexing::gather(op, operands, out()),
        Op::Scatter(op) => indexing::scatter(options, op, operands, &outputs),
        Op::Concatenate(op) => Some(shapes::concatenate(op.dim, operands, out())),
        Op::Pad(op) => Some(shapes::pad(op, operands, out())),
        Op::DynamicSlice(_) => Some(shapes::dynamic_slice(operands, out())),
        Op::DynamicUpdateSlice(_) => Some(shapes::dynamic_update_slice(operands, out())),
        Op::BroadcastInDim(op) => shapes::broadcast(&op.dims, &operands[0], out()),
        Op::Reshape(_) => shapes::reshape(&operands[0], out()),
        Op::Transpose(op) => shapes::transpose(&op.permutation, &operands[0], out()),
        _ => None,
    }
}

/// An operand: a tensor in memory, or one number for all elements.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Place(Place),
    Number(Scalar, Vec<usize>),
}

impl Value {
    fn place(&self) -> Option<&Place> {
        match self {
            Value::Place(place) => Some(place),
            Value::Number(..) => None,
        }
    }

    /// A range of one dimension.
    fn sliced(&self, dim: usize, range: std::ops::Range<usize>) -> Value {
        match self {
            Value::Place(place) => Value::Place(place.sliced(dim, range)),
            Value::Number(number, shape) => {
                let mut shape = shape.clone();
                shape[dim] = range.len();
                Value::Number(*number, shape)
            }
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Value::Place(place) => place.dtype,
            Value::Number(scalar, _) => scalar.dtype(),
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Value::Place(place) => &place.shape,
            Value::Number(_, shape) => shape,
        }
    }

    pub fn view<'a>(&'a self, memory: &Memory<'a>) -> View<'a> {
        match self {
            Value::Place(place) => memory.view(place),
            Value::Number(scalar, shape) => scalar.view(shape),
        }
    }

    /// The element at an offset, which counts elements along the strides.
    fn element(&self, memory: &Memory<'_>, offset: isize) -> Scalar {
        match self {
            Value::Number(scalar, _) => *scalar,
            Value::Place(place) => {
                let size = place.dtype.size_bytes();
                let offset = memory.offset(place).checked_add_signed(offset * size as isize);
                let offset = offset.expect("an element lies in its arena");
                Scalar::from_bytes(place.dtype, memory.bytes(Span { offset, bytes: size }))
            }
        }
    }

    /// The first element.
    fn scalar(&self, memory: &Memory<'_>) -> Scalar {
        self.element(memory, 0)
    }

    /// The stride of a dimension, in elements; any stride is correct for a number.
    fn stride(&self, dim: usize) -> isize {
        match self {
            Value::Place(place) => place.strides[dim],
            Value::Number(..) => 0,
        }
    }
}

/// An integer scalar of any width as i64; u64 values above the range of i64 become `i64::MAX`.
fn integer(scalar: Scalar) -> i64 {
    use partita_base::DType;
    match scalar.dtype() {
        DType::I64 => scalar.get::<i64>(),
        DType::U64 => i64::try_from(scalar.get::<u64>()).unwrap_or(i64::MAX),
        _ => scalar.to_f64() as i64,
    }
}

/// The value of all elements of a literal, if they are equal.
fn splat(literal: &partita_ir::Literal) -> Option<Scalar> {
    let is_one = literal.is_splat() && !literal.data.is_empty();
    is_one.then(|| Scalar::from_bytes(literal.ty.dtype, &literal.data.pick(std::iter::once(0)).bytes()))
}

/// The operands of the last node: inputs of the graph, or constants from earlier nodes. `None` if earlier
/// nodes do other work.
fn operands(graph: &Graph, inputs: &[Place]) -> Option<Vec<Value>> {
    let mut values: Vec<Option<Value>> = vec![None; graph.values.len()];
    for (&input, place) in graph.inputs.iter().zip(inputs) {
        values[input.index()] = Some(Value::Place(place.clone()));
    }
    let (last, before) = graph.nodes.split_last()?;
    for node in before {
        let result = node.results[0];
        let shape = graph.ty(result).shape.clone();
        let number = if let Op::Constant(constant) = &node.op {
            splat(&constant.value)?
        } else {
            let Traits::View(ViewMap::Broadcast { .. } | ViewMap::Reshape) = graph.traits(node) else {
                return None;
            };
            let Value::Number(number, _) = values[node.operands[0].index()].as_ref()? else { return None };
            *number
        };
        values[result.index()] = Some(Value::Number(number, shape));
    }
    last.operands.iter().map(|v| values[v.index()].clone()).collect()
}

/// The name of a region's work, for reports.
pub(crate) fn region_name(region: &Region) -> &str {
    region.graph.nodes.last().map_or("copy", |node| node.op.name())
}
