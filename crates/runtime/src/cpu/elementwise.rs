//! Elementwise graphs as fused programs: every element of a result depends only on the corresponding elements
//! of the operands. An operand that is smaller than the results, such as a bias, is read again for each
//! repetition.

use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use partita_base::DType;
use partita_ir::ops::{BinaryKind, CompareType, Direction, Reducer, UnaryKind};
use partita_ir::traits::{ConstantOp, Elementwise, Traits, ViewMap};
use partita_ir::{Graph, Node, Op, Operation, ValueId};
use partita_kernels as kernels;
use partita_kernels::{
    ElementwiseOp, ElementwiseProgram, EwFold, EwInstr, FoldDirection, KernelOptions, MAX_RANK, Part, Scalar,
    View, ViewMut,
};
use smallvec::SmallVec;

use super::cut::{outer_dim, ranges};
use super::reduce::{reduction, rows_across};
use super::{Kernel, Value, splat};
use crate::arena::{Memory, Place, Span};

/// The kernel's function, if there is one.
fn unary(kind: UnaryKind) -> Option<kernels::Unary> {
    use kernels::Unary;
    Some(match kind {
        UnaryKind::Negate => Unary::Neg,
        UnaryKind::Abs => Unary::Abs,
        UnaryKind::Sign => Unary::Sign,
        UnaryKind::Exponential => Unary::Exp,
        UnaryKind::ExponentialMinusOne => Unary::Expm1,
        UnaryKind::Log => Unary::Log,
        UnaryKind::LogPlusOne => Unary::Log1p,
        UnaryKind::Sqrt => Unary::Sqrt,
        UnaryKind::Rsqrt => Unary::Rsqrt,
        UnaryKind::Cbrt => Unary::Cbrt,
        UnaryKind::Tanh => Unary::Tanh,
        UnaryKind::Logistic => Unary::Logistic,
        UnaryKind::Sine => Unary::Sine,
        UnaryKind::Cosine => Unary::Cosine,
        UnaryKind::Tan => Unary::Tan,
        UnaryKind::Floor => Unary::Floor,
        UnaryKind::Ceil => Unary::Ceil,
        UnaryKind::RoundNearestAfz => Unary::RoundHalfAway,
        UnaryKind::RoundNearestEven => Unary::RoundHalfEven,
        UnaryKind::Not => Unary::Not,
        UnaryKind::IsFinite => Unary::IsFinite,
        UnaryKind::Erf => Unary::Erf,
        UnaryKind::Erfc => Unary::Erfc,
        UnaryKind::ErfInv => Unary::ErfInv,
        // Square is a multiplication, and popcnt need not be fast.
        UnaryKind::Square | UnaryKind::Popcnt => return None,
    })
}

/// The kernel's function.
fn binary(kind: BinaryKind) -> kernels::Binary {
    use kernels::Binary;
    match kind {
        BinaryKind::Add => Binary::Add,
        BinaryKind::Subtract => Binary::Sub,
        BinaryKind::Multiply => Binary::Mul,
        BinaryKind::Divide => Binary::Div,
        BinaryKind::Maximum => Binary::Max,
        BinaryKind::Minimum => Binary::Min,
        BinaryKind::Remainder => Binary::Rem,
        BinaryKind::Power => Binary::Pow,
        BinaryKind::Atan2 => Binary::Atan2,
        BinaryKind::And => Binary::And,
        BinaryKind::Or => Binary::Or,
        BinaryKind::Xor => Binary::Xor,
        BinaryKind::ShiftLeft => Binary::ShiftLeft,
        BinaryKind::ShiftRightLogical => Binary::ShiftRightLogical,
        BinaryKind::ShiftRightArithmetic => Binary::ShiftRightArithmetic,
    }
}

fn direction(direction: Direction) -> kernels::Direction {
    match direction {
        Direction::Eq => kernels::Direction::Eq,
        Direction::Ne => kernels::Direction::Ne,
        Direction::Lt => kernels::Direction::Lt,
        Direction::Le => kernels::Direction::Le,
        Direction::Gt => kernels::Direction::Gt,
        Direction::Ge => kernels::Direction::Ge,
    }
}

/// For each dimension of a value, the dimension of the iteration shape that it follows; `None` if its index
/// is always 0.
pub(super) type Walk = Vec<Option<usize>>;

/// A graph as one fused program over the shape of its results.
pub(super) struct Chain {
    shape: Vec<usize>,
    program: ElementwiseProgram,
    /// The inputs of the program: the position of a graph input, and how it follows the iteration shape.
    inputs: Vec<(usize, Walk)>,
}

/// The reason why a node cannot be fused, as text.
pub(super) fn obstacle(node: &Node, why: &str) -> String {
    let name = node.op.name();
    let name = name.split_once('.').map_or(name, |(_, short)| short);
    let place = if node.path.is_empty() { String::new() } else { format!(" in `{}`", node.path) };
    format!("{name}{place} {why}")
}

/// How operand `number` of a node follows the iteration shape if its result does so by `walk`; `None` if the
/// node reads more than one element of it per result element.
pub(super) fn operand_walk(graph: &Graph, node: &Node, number: usize, walk: &Walk) -> Option<Walk> {
    let from = &graph.ty(node.operands[number]).shape;
    let to = &graph.ty(node.results[0]).shape;
    match graph.traits(node) {
        // Predicates and limits may be scalars.
        Traits::Elementwise(_) => Some(if from.is_empty() { Walk::new() } else { walk.clone() }),
        Traits::View(ViewMap::Identity) => Some(walk.clone()),
        Traits::View(ViewMap::Broadcast { dims }) => {
            let repeats = |d: usize| from[d] != to[dims[d]];
            Some((0..from.len()).map(|d| if repeats(d) { None } else { walk[dims[d]] }).collect())
        }
        Traits::View(ViewMap::Transpose { permutation }) => {
            let mut turned = vec![None; from.len()];
            permutation.iter().zip(walk).for_each(|(&d, &along)| turned[d] = along);
            Some(turned)
        }
        Traits::View(ViewMap::Reshape) => {
            // Dimensions of one element are added and removed.
            let mut larger = (0..to.len()).filter(|&d| to[d] != 1);
            let mut same = |size: usize| larger.next().filter(|&d| to[d] == size).map(|d| walk[d]);
            from.iter().map(|&size| if size == 1 { Some(None) } else { same(size) }).collect()
        }
        Traits::View(ViewMap::Slice { .. } | ViewMap::Reverse { .. } | ViewMap::Window { .. })
        | Traits::Constant(_)
        | Traits::Iota { .. }
        | Traits::Collective(_)
        | Traits::Opaque
        | Traits::Refused => None,
    }
}

/// The value of a scalar constant.
pub(super) fn constant(graph: &Graph, value: ValueId) -> Option<Scalar> {
    let (definition, _) = graph.value(value).definition?;
    let Op::Constant(constant) = &graph.node(definition).op else { return None };
    number(&constant.value)
}

/// The fused program of a graph, or the reason why there is none. Its reductions become folds of registers,
/// not outputs.
pub(super) fn chain(graph: &Graph) -> Result<Chain, String> {
    let folds = || graph.nodes.iter().filter(|node| matches!(node.op, Op::Reduce(_)));
    let folded: Vec<ValueId> = folds().map(|node| node.operands[0]).collect();
    let iterated: Vec<ValueId> = graph.outputs.iter().chain(&folded).copied().collect();
    let shape = common_shape(graph, &iterated)?;
    let reading = Reading::of(graph, shape.len(), &iterated)?;
    let mut writing = Writing::of(&reading);
    writing.compute()?;
    let folds = folds().map(|node| writing.fold(node, &shape)).collect::<Option<Vec<EwFold>>>();
    let folds = folds.ok_or("it reduces with a custom combiner")?;
    let kept = writing.keep_outputs();
    let Writing { registers, inputs, instructions, .. } = writing;
    let program = ElementwiseProgram::with_folds(registers, inputs.len(), instructions, kept, folds);
    let program = program.map_err(|error| match error.expected {
        Some(expected) => format!("{}; a kernel takes {expected}", error.message),
        None => error.message,
    })?;
    Ok(Chain { shape, program, inputs })
}

/// The shape of all these values, over which a program iterates.
fn common_shape(graph: &Graph, iterated: &[ValueId]) -> Result<Vec<usize>, String> {
    let shapes: IndexSet<&Vec<usize>> = iterated.iter().map(|&v| &graph.ty(v).shape).collect();
    match shapes.into_iter().collect::<Vec<_>>()[..] {
        [shape] if shape.len() <= MAX_RANK => Ok(shape.clone()),
        [_] => Err(format!("its results have more than {MAX_RANK} dimensions")),
        [] => Err("it has no results".into()),
        [a, b, ..] => Err(format!("its results have different shapes, {a:?} and {b:?}")),
    }
}

/// For each value, the constant that fills it, if there is one: a broadcast constant is the same under any walk.
fn fillings(graph: &Graph) -> Vec<Option<ValueId>> {
    let mut filled: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    for node in &graph.nodes {
        let Some(&result) = node.results.first() else { continue };
        filled[result.index()] = match graph.traits(node) {
            Traits::Constant(ConstantOp::OfAll(constant)) => number(&constant.value).map(|_| result),
            Traits::View(ViewMap::Broadcast { .. } | ViewMap::Reshape | ViewMap::Transpose { .. }) => {
                filled[node.operands[0].index()]
            }
            Traits::View(
                ViewMap::Identity | ViewMap::Slice { .. } | ViewMap::Reverse { .. } | ViewMap::Window { .. },
            )
            | Traits::Constant(ConstantOp::ByRank(_))
            | Traits::Elementwise(_)
            | Traits::Iota { .. }
            | Traits::Collective(_)
            | Traits::Opaque
            | Traits::Refused => None,
        };
    }
    filled
}

/// The walks by which the values of a graph are read.
struct Reading<'g> {
    graph: &'g Graph,
    /// The walk of what is iterated over.
    along: Walk,
    /// For each value, the constant that fills it.
    filled: Vec<Option<ValueId>>,
    /// For each value, its walks.
    walks: Vec<IndexSet<Walk>>,
}

impl<'g> Reading<'g> {
    /// From the results back to the inputs.
    fn of(graph: &'g Graph, rank: usize, iterated: &[ValueId]) -> Result<Reading<'g>, String> {
        let walks = vec![IndexSet::new(); graph.values.len()];
        let along = (0..rank).map(Some).collect();
        let mut reading = Reading { graph, along, filled: fillings(graph), walks };
        for &output in iterated {
            reading.add(output, reading.along.clone());
        }
        for node in graph.nodes.iter().rev() {
            for (position, result) in node.results.iter().enumerate() {
                for walk in reading.walks[result.index()].clone() {
                    for number in operands_of(graph, node, position) {
                        let operand = operand_walk(graph, node, number, &walk)
                            .ok_or_else(|| obstacle(node, "is not an elementwise op"))?;
                        reading.add(node.operands[number], operand);
                    }
                }
            }
        }
        Ok(reading)
    }

    fn add(&mut self, value: ValueId, walk: Walk) {
        let (value, walk) = self.seen(value, walk);
        self.walks[value.index()].insert(walk);
    }

    /// What is read in place of a value: itself, or the constant that fills it.
    fn seen(&self, value: ValueId, walk: Walk) -> (ValueId, Walk) {
        self.filled[value.index()].map_or((value, walk), |constant| (constant, Walk::new()))
    }
}

/// A program under construction, with a register for each value and walk.
struct Writing<'r> {
    reading: &'r Reading<'r>,
    registers: Vec<DType>,
    register: IndexMap<(ValueId, Walk), usize>,
    inputs: Vec<(usize, Walk)>,
    instructions: Vec<EwInstr>,
}

impl<'r> Writing<'r> {
    /// With the registers of the inputs.
    fn of(reading: &'r Reading<'r>) -> Writing<'r> {
        let graph = reading.graph;
        let mut registers: Vec<DType> = Vec::new();
        let mut register: IndexMap<(ValueId, Walk), usize> = IndexMap::new();
        let mut inputs = Vec::new();
        for (position, &input) in graph.inputs.iter().enumerate() {
            for walk in &reading.walks[input.index()] {
                register.insert((input, walk.clone()), registers.len());
                registers.push(graph.ty(input).dtype);
                inputs.push((position, walk.clone()));
            }
        }
        Writing { reading, registers, register, inputs, instructions: Vec::new() }
    }

    /// From the inputs forward to the results.
    fn compute(&mut self) -> Result<(), String> {
        let Reading { graph, walks, .. } = self.reading;
        for node in &graph.nodes {
            for (position, &result) in node.results.iter().enumerate() {
                let dtype = graph.ty(result).dtype;
                for walk in &walks[result.index()] {
                    let mut args: Vec<usize> = operands_of(graph, node, position)
                        .map(|number| {
                            let operand =
                                operand_walk(graph, node, number, walk).expect("it was walked before");
                            self.register[&self.reading.seen(node.operands[number], operand)]
                        })
                        .collect();
                    let Some(op) = op(graph, node, walk, dtype, &mut args)? else {
                        self.register.insert((result, walk.clone()), args[0]);
                        continue;
                    };
                    self.register.insert((result, walk.clone()), self.registers.len());
                    self.push(op, args, dtype);
                }
            }
        }
        Ok(())
    }

    fn push(&mut self, op: ElementwiseOp, args: Vec<usize>, dtype: DType) {
        self.instructions.push(EwInstr { op, args, out: self.registers.len() });
        self.registers.push(dtype);
    }

    /// The register of a value that is iterated over.
    fn made(&self, value: ValueId) -> usize {
        self.register[&self.reading.seen(value, self.reading.along.clone())]
    }

    /// A reduction as a fold of a register; `None` if it has a combiner of its own.
    fn fold(&self, node: &Node, shape: &[usize]) -> Option<EwFold> {
        let graph = self.reading.graph;
        let Op::Reduce(op) = &node.op else { return None };
        let (&[operand, initial], Reducer::Combiner(combiner)) = (&node.operands[..], &op.reducer) else {
            return None;
        };
        let (first, direction) = match rows_across(graph, node) {
            Some(_) => (op.dims.len(), FoldDirection::Across),
            None => (*op.dims.first()?, FoldDirection::Along(constant(graph, initial)?)),
        };
        let width = shape[first..].iter().product();
        Some(EwFold { register: self.made(operand), reduction: reduction(*combiner), width, direction })
    }

    /// The register of each result.
    fn keep_outputs(&mut self) -> Vec<usize> {
        let mut kept: Vec<usize> = Vec::new();
        for &output in &self.reading.graph.outputs {
            let mut out = self.made(output);
            // Each result needs its own register.
            if kept.contains(&out) {
                self.push(ElementwiseOp::Bitcast, vec![out], self.registers[out]);
                out = self.registers.len() - 1;
            }
            kept.push(out);
        }
        kept
    }
}

/// The operands of a result: all operands, unless the op passes several values through.
fn operands_of(graph: &Graph, node: &Node, result: usize) -> std::ops::Range<usize> {
    let hands_on = graph.traits(node) == Traits::View(ViewMap::Identity);
    if hands_on { result..result + 1 } else { 0..node.operands.len() }
}

/// The operation per element; `None` if the op passes its operand through.
fn op(
    graph: &Graph,
    node: &Node,
    walk: &Walk,
    dtype: DType,
    args: &mut Vec<usize>,
) -> Result<Option<ElementwiseOp>, String> {
    Ok(Some(match graph.traits(node) {
        Traits::Constant(ConstantOp::OfAll(constant)) => ElementwiseOp::Constant(
            number(&constant.value).ok_or_else(|| obstacle(node, "is a constant with different elements"))?,
        ),
        Traits::Iota { dim } => match walk[dim] {
            Some(dim) => ElementwiseOp::Iota { dim },
            None => ElementwiseOp::Constant(Scalar::from_f64(dtype, 0.0)),
        },
        Traits::Elementwise(function) => match function {
            Elementwise::Unary(UnaryKind::Square) => {
                args.push(args[0]);
                ElementwiseOp::Binary(kernels::Binary::Mul)
            }
            Elementwise::Unary(kind) => {
                ElementwiseOp::Unary(unary(kind).ok_or_else(|| obstacle(node, "has no elementwise kernel"))?)
            }
            Elementwise::Binary(kind) => ElementwiseOp::Binary(binary(kind)),
            Elementwise::Compare(op) => ElementwiseOp::Compare {
                direction: direction(op.direction),
                total_order: op.compare_type == Some(CompareType::TotalOrder),
            },
            Elementwise::Select => ElementwiseOp::Select,
            Elementwise::Clamp => ElementwiseOp::Clamp,
            Elementwise::Convert => ElementwiseOp::Convert,
            Elementwise::Bitcast => ElementwiseOp::Bitcast,
        },
        Traits::View(_) => return Ok(None),
        Traits::Constant(ConstantOp::ByRank(_))
        | Traits::Collective(_)
        | Traits::Opaque
        | Traits::Refused => {
            return Err(obstacle(node, "is not an elementwise op"));
        }
    }))
}

/// The number in every element of a literal; 0 if it has no elements.
pub(super) fn number(literal: &partita_ir::Literal) -> Option<Scalar> {
    let nothing = literal.ty.element_count() == 0;
    if nothing { Some(Scalar::from_f64(literal.ty.dtype, 0.0)) } else { splat(literal) }
}

/// A fused program with its operands.
struct Operands {
    program: Arc<ElementwiseProgram>,
    shape: Vec<usize>,
    inputs: Vec<Value>,
}

impl Operands {
    fn new(graph: &Graph, inputs: &[Value]) -> Option<Operands> {
        let Chain { shape, program, inputs: walked } = chain(graph).ok()?;
        let walk = |(position, walk): &(usize, Walk)| match &inputs[*position] {
            Value::Number(scalar, _) => Value::Number(*scalar, shape.clone()),
            Value::Place(place) => {
                let stride = |dim: usize| {
                    walk.iter()
                        .zip(&place.strides)
                        .filter(|(along, _)| **along == Some(dim))
                        .map(|(_, s)| s)
                        .sum()
                };
                let strides = (0..shape.len()).map(stride).collect();
                Value::Place(Place { shape: shape.clone(), strides, ..place.clone() })
            }
        };
        let inputs: Vec<Value> = walked.iter().map(walk).collect();
        Some(Operands { program: Arc::new(program), shape, inputs })
    }
}

/// The position of a block of rows in a thread's work.
pub(super) struct Block {
    /// Elements of a row.
    pub row_elements: usize,
    /// Rows that the thread writes before any of them is read again (decides on non-temporal stores); zero if
    /// another kernel of the same block reads them.
    pub lasting_rows: usize,
    /// The places of the results of the folds.
    pub folded: Vec<Place>,
}

/// The kernel of a block of rows.
pub(super) fn compile_block(
    options: KernelOptions,
    graph: &Graph,
    inputs: &[Value],
    outputs: &[Place],
    block: Block,
) -> Option<Kernel> {
    let Operands { program, shape, inputs } = Operands::new(graph, inputs)?;
    Some(run(options, program, shape, inputs, outputs.to_vec(), Some(block)))
}

/// The graph as one kernel in at most `parts` parts, if it is a fused program.
pub(super) fn compile(
    options: KernelOptions,
    graph: &Graph,
    inputs: &[Value],
    outputs: &[Place],
    parts: usize,
) -> Option<Kernel> {
    let Operands { program, shape, inputs } = Operands::new(graph, inputs)?;
    // An iota starts from zero in every part, so its dimension is not split.
    let counts = |dim: usize| program.instructions().iter().any(|i| i.op == ElementwiseOp::Iota { dim });
    let Some(dim) = outer_dim(&shape).filter(|&dim| !counts(dim)) else {
        return Some(run(options, program, shape, inputs, outputs.to_vec(), None));
    };
    let part = |range: std::ops::Range<usize>| {
        let mut shape = shape.clone();
        shape[dim] = range.len();
        let inputs = inputs.iter().map(|value| value.sliced(dim, range.clone())).collect();
        let outputs = outputs.iter().map(|place| place.sliced(dim, range.clone())).collect();
        run(options, program.clone(), shape, inputs, outputs, None)
    };
    Some(Kernel::together(ranges(shape[dim], parts).map(part)))
}

fn run(
    options: KernelOptions,
    program: Arc<ElementwiseProgram>,
    shape: Vec<usize>,
    inputs: Vec<Value>,
    outputs: Vec<Place>,
    block: Option<Block>,
) -> Kernel {
    let workspace_bytes = kernels::elementwise_workspace_bytes(&program);
    let elements = shape.iter().product();
    let Block { row_elements, lasting_rows, folded } =
        block.unwrap_or(Block { row_elements: elements, lasting_rows: 1, folded: Vec::new() });
    Kernel::new(workspace_bytes, move |memory: &Memory<'_>, workspace: Span| {
        // Built in place, like the lists of the kernel.
        let mut inputs_at = SmallVec::<[View<'_>; ElementwiseProgram::MAX_INPUTS]>::new();
        inputs_at.extend(inputs.iter().map(|value| value.view(memory)));
        let mut outputs_at = SmallVec::<[ViewMut<'_>; ElementwiseProgram::MAX_OUTPUTS]>::new();
        outputs_at.extend(outputs.iter().map(|place| memory.view_mut(place)));
        let mut folded_at = SmallVec::<[&mut [u8]; ElementwiseProgram::MAX_OUTPUTS]>::new();
        folded_at.extend(folded.iter().map(|place| memory.bytes_mut(memory.span(place))));
        let part = Part {
            before: memory.rows_before * row_elements,
            elements: lasting_rows * row_elements,
            folded: &mut folded_at,
        };
        kernels::run_elementwise_part(
            options,
            &program,
            &inputs_at,
            &mut outputs_at,
            &shape,
            part,
            memory.bytes_mut(workspace),
        );
        Ok(())
    })
}
