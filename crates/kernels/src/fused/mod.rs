//! Fused elementwise programs over one shape, with reductions of rows, run tile by tile: an intermediate
//! value is in a register or in a scratch tile that stays in cache, so the program reads its inputs and
//! writes its outputs once. Adjacent f32 instructions are grouped into chains ([`crate::chain`]); all others
//! run the loops of the stand-alone kernels. Either way the bits are those of the stand-alone kernels.

mod arrange;
mod run;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use partita_base::{DType, Diagnostic, Result};

use crate::binary::Binary;
use crate::chain::steps::{Action, Kind, Operands, Step};
use crate::compare::Direction;
use crate::native::{CompiledChain, NativeBackend, backend};
use crate::options::{KernelOptions, Level};
use crate::reduce::Reduction;
use crate::scalar::Scalar;
use crate::stream::{STREAM_ALIGNMENT, STREAM_BYTES};
use crate::tiles::{SHORTEST_TILE, TILE, overlap};
use crate::unary::Unary;
use crate::view::{View, ViewMut};

pub use run::{Part, elementwise_workspace_bytes, run_elementwise, run_elementwise_part};

/// What one instruction of an [`ElementwiseProgram`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ElementwiseOp {
    /// A function of one argument.
    Unary(Unary),
    /// A function of two arguments of one type.
    Binary(Binary),
    /// Compares two arguments of one type, gives bool; `total_order` as for [`crate::compare()`].
    Compare {
        /// The relation.
        direction: Direction,
        /// Whether floats compare by the total order.
        total_order: bool,
    },
    /// Arguments: predicate, value if true, value if false.
    Select,
    /// Arguments: lower bound, value, upper bound.
    Clamp,
    /// Converts the argument to the type of the result.
    Convert,
    /// Reinterprets the argument's bits in the type of the result, which has the same size.
    Bitcast,
    /// No arguments; the same value in every element.
    Constant(Scalar),
    /// No arguments; the index along a dimension of the program's shape.
    Iota {
        /// The dimension.
        dim: usize,
    },
}

impl ElementwiseOp {
    fn argument_count(self) -> usize {
        match self {
            ElementwiseOp::Constant(_) | ElementwiseOp::Iota { .. } => 0,
            ElementwiseOp::Unary(_) | ElementwiseOp::Convert | ElementwiseOp::Bitcast => 1,
            ElementwiseOp::Binary(_) | ElementwiseOp::Compare { .. } => 2,
            ElementwiseOp::Select | ElementwiseOp::Clamp => 3,
        }
    }

    /// Whether the op maps these argument types to that result type.
    fn accepts(self, args: &[DType], out: DType) -> bool {
        match (self, args) {
            (ElementwiseOp::Unary(op), &[x]) => op.result_dtype(x) == Some(out),
            (ElementwiseOp::Binary(op), &[a, b]) => a == b && out == a && op.supports(a),
            (ElementwiseOp::Compare { .. }, &[a, b]) => a == b && out == DType::Bool,
            (ElementwiseOp::Select, &[pred, a, b]) => pred == DType::Bool && a == b && out == a,
            (ElementwiseOp::Clamp, &[low, x, high]) => low == x && high == x && out == x,
            (ElementwiseOp::Convert, &[_]) => true,
            (ElementwiseOp::Bitcast, &[x]) => x.size_bytes() == out.size_bytes(),
            (ElementwiseOp::Constant(value), &[]) => value.dtype() == out,
            (ElementwiseOp::Iota { .. }, &[]) => true,
            _ => false,
        }
    }
}

/// One instruction: reads registers, writes one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EwInstr {
    /// What to compute.
    pub op: ElementwiseOp,
    /// The registers it reads.
    pub args: Vec<usize>,
    /// The register it writes.
    pub out: usize,
}

/// A reduction of a register, computed in the same pass over memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EwFold {
    /// The register that is reduced.
    pub register: usize,
    /// The reduction.
    pub reduction: Reduction,
    /// Elements per row: the product of the last dimensions.
    pub width: usize,
    /// The direction of the reduction.
    pub direction: FoldDirection,
}

/// The direction in which a fold reduces rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FoldDirection {
    /// Reduces over rows. The result holds one row per block of [`crate::REDUCE_BLOCK_ROWS`] rows, for
    /// [`crate::join_blocks`].
    Across,
    /// Reduces each row, starting from this scalar. The result holds one number per row; rows have more than
    /// one element.
    Along(Scalar),
}

/// Where the tile of a register is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Place {
    /// In the memory of an output.
    Output(usize),
    /// In a tile of the workspace; input `i` owns slot `i`.
    Slot(usize),
    /// In a chunk of the workspace, between steps of one chain.
    Chunk(usize),
    /// In the accumulator only: the next step of the chain consumes it.
    Passing,
}

/// Elements of a tile in programs of chains only, which store no tile.
const CHAIN_TILE: usize = 8 * TILE;

/// Maximum number of instructions in one chain; each has at most two operands and a result.
const CHAIN: usize = 32;
const _: () = assert!(3 * CHAIN + ElementwiseProgram::MAX_OUTPUTS <= Operands::MOST);
const _: () = assert!(ElementwiseProgram::MAX_INPUTS <= Operands::MOST_INPUTS);

/// Prefetch threshold in bytes: a smaller tensor may still be in a cache, and requests would only cost time.
const MIN_ASKED: usize = 1 << 20;

/// What runs over a tile at once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Pass {
    /// One instruction, by its index.
    Single(usize),
    /// Several instructions as one chain.
    Chain(Chain),
}

/// A chain: its steps, whose operands are indices into `registers`. Numbers after the program's own registers
/// are the results of its folds.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Chain {
    steps: Vec<Step>,
    registers: Vec<usize>,
    code: Compiled,
}

/// The machine code of a chain: for each level one version with prefetch and one without, each compiled on
/// its first run. It is a function of the rest of the program, so it does not take part in equality and
/// hashing.
#[derive(Clone, Default)]
struct Compiled(Arc<[OnceLock<Option<Box<dyn CompiledChain>>>; 2 * Level::COUNT]>);

impl PartialEq for Compiled {
    fn eq(&self, _: &Compiled) -> bool {
        true
    }
}

impl Eq for Compiled {}

impl Hash for Compiled {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = |code: &OnceLock<_>| match code.get() {
            None => "not yet",
            Some(None) => "not possible",
            Some(Some(_)) => "there",
        };
        f.debug_list().entries(self.0.iter().map(state)).finish()
    }
}

/// A fused elementwise program over one shape, as data. Registers hold tensors of that shape; the first
/// `input_count` are the inputs, and every other register is written by one instruction before it is read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElementwiseProgram {
    registers: Vec<DType>,
    input_count: usize,
    instructions: Vec<EwInstr>,
    outputs: Vec<usize>,
    folds: Vec<EwFold>,
    /// For each fold, whether a step of a chain computes it; the others read finished tiles.
    in_chain: Vec<bool>,
    passes: Vec<Pass>,
    places: Vec<Place>,
    /// For constants, and inputs that may be uniform: the chunk that is filled with the value for chains.
    filled: Vec<Option<usize>>,
    /// For each input, whether anything but chains reads it.
    tiled: Vec<bool>,
    /// The elements of rows that are reduced along, if the program has such folds.
    row: Option<usize>,
    slots: usize,
    chunks: usize,
}

impl ElementwiseProgram {
    /// Maximum number of inputs of a program.
    pub const MAX_INPUTS: usize = 32;
    /// Maximum number of outputs of a program.
    pub const MAX_OUTPUTS: usize = 16;

    /// A program over registers of these types; `outputs` are the registers to write to memory.
    ///
    /// # Errors
    /// E421 if a register is read before it is written, written twice, or of a type that its op does not
    /// give, or if there are too many inputs or outputs.
    pub fn new(
        registers: Vec<DType>,
        input_count: usize,
        instructions: Vec<EwInstr>,
        outputs: Vec<usize>,
    ) -> Result<Self> {
        Self::with_folds(registers, input_count, instructions, outputs, Vec::new())
    }

    /// [`Self::new`] with reductions of some registers, which may be outputs too or not.
    ///
    /// # Errors
    /// The same as for [`Self::new`].
    pub fn with_folds(
        registers: Vec<DType>,
        input_count: usize,
        instructions: Vec<EwInstr>,
        outputs: Vec<usize>,
        folds: Vec<EwFold>,
    ) -> Result<Self> {
        let wrong = |text: String| Diagnostic::new("E421", format!("malformed elementwise program: {text}"));
        let output_count = outputs.len() + folds.len();
        if input_count > Self::MAX_INPUTS.min(registers.len()) || output_count > Self::MAX_OUTPUTS {
            return Err(wrong(format!("{input_count} inputs and {output_count} outputs")).expected(format!(
                "at most {} inputs and {} outputs",
                Self::MAX_INPUTS,
                Self::MAX_OUTPUTS
            )));
        }
        let mut rows =
            folds.iter().filter(|fold| fold.direction != FoldDirection::Across).map(|fold| fold.width);
        let row = rows.next();
        if row.is_some_and(|row| row < 2 || rows.any(|other| other != row)) {
            return Err(wrong("it reduces rows of different lengths, or of one element".into()));
        }
        let mut written = vec![false; registers.len()];
        written[..input_count].fill(true);
        for instruction in &instructions {
            let EwInstr { op, args, out } = instruction;
            if let Some(arg) = args.iter().find(|&&arg| !written.get(arg).is_some_and(|&w| w)) {
                return Err(wrong(format!("{op:?} reads register {arg} before it is written")));
            }
            if *out >= registers.len() || written[*out] {
                return Err(wrong(format!("{op:?} cannot write register {out}")));
            }
            let types: Vec<DType> = args.iter().map(|&arg| registers[arg]).collect();
            if args.len() != op.argument_count() || !op.accepts(&types, registers[*out]) {
                return Err(wrong(format!("{op:?} does not take {types:?} to {}", registers[*out])));
            }
            written[*out] = true;
        }
        let read_at_last = || outputs.iter().copied().chain(folds.iter().map(|fold| fold.register));
        if let Some(out) = read_at_last().find(|&out| !written.get(out).is_some_and(|&w| w)) {
            return Err(wrong(format!("output register {out} is never written")));
        }
        let mut program = ElementwiseProgram {
            places: (0..registers.len()).map(Place::Slot).collect(),
            filled: vec![None; registers.len()],
            tiled: vec![false; input_count],
            row,
            slots: input_count,
            chunks: 0,
            passes: Vec::new(),
            instructions: ordered(instructions, input_count, registers.len()),
            registers,
            input_count,
            outputs,
            in_chain: vec![false; folds.len()],
            folds,
        };
        program.in_chain = program.folds.iter().map(|fold| program.folds_in_chain(fold)).collect();
        program.arrange();
        Ok(program)
    }

    /// The type of every register.
    pub fn registers(&self) -> &[DType] {
        &self.registers
    }

    /// The number of inputs, which are the first registers.
    pub fn input_count(&self) -> usize {
        self.input_count
    }

    /// The instructions, in execution order.
    pub fn instructions(&self) -> &[EwInstr] {
        &self.instructions
    }

    /// The registers that are written to memory, in the order of the outputs.
    pub fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    /// The reductions.
    pub fn folds(&self) -> &[EwFold] {
        &self.folds
    }

    fn is_folded(&self, register: usize) -> bool {
        self.folds.iter().any(|fold| fold.register == register)
    }

    /// Whether a register is folded from its finished tile.
    fn is_folded_later(&self, register: usize) -> bool {
        self.folds.iter().zip(&self.in_chain).any(|(fold, in_chain)| fold.register == register && !in_chain)
    }

    /// The fold of a register that a step of the chain computes.
    fn fold_in_chain(&self, register: usize) -> Option<usize> {
        let mut folds = self.folds.iter().zip(&self.in_chain);
        folds.position(|(fold, &in_chain)| in_chain && fold.register == register)
    }

    /// Whether a fold may be a step of the chain that makes its register: a sum over long rows, whose
    /// elements are added to one row of results. Rows must end where a non-temporal store may begin.
    fn folds_in_chain(&self, fold: &EwFold) -> bool {
        let is_made = |instruction: &EwInstr| instruction.out == fold.register && self.chains(instruction);
        fold.direction == FoldDirection::Across
            && fold.reduction == Reduction::Sum
            && fold.width >= SHORTEST_TILE
            && (fold.width * size_of::<f32>()).is_multiple_of(STREAM_ALIGNMENT)
            && self.folds.iter().filter(|other| other.register == fold.register).count() == 1
            && self.instructions.iter().any(is_made)
    }
}

/// Orders the instructions so that the reader of a result follows its writer where possible, so that the
/// result need not be stored. Constants come first.
fn ordered(instructions: Vec<EwInstr>, input_count: usize, registers: usize) -> Vec<EwInstr> {
    let (mut ordered, mut left): (Vec<_>, Vec<_>) =
        instructions.into_iter().partition(|i| matches!(i.op, ElementwiseOp::Constant(_)));
    let mut written = vec![false; registers];
    written[..input_count].fill(true);
    ordered.iter().for_each(|instruction: &EwInstr| written[instruction.out] = true);
    let mut last = None;
    while !left.is_empty() {
        let follows = |instruction: &EwInstr| {
            last.is_some_and(|last| instruction.args.contains(&last))
                && instruction.args.iter().all(|&arg| written[arg])
        };
        let next = left.remove(left.iter().position(follows).unwrap_or(0));
        written[next.out] = true;
        last = Some(next.out);
        ordered.push(next);
    }
    ordered
}
