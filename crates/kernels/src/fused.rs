//! Chains of elementwise functions run tile by tile: a value between two functions lives in registers or in a
//! scratch tile that never leaves the cache, so a chain reads its inputs and writes its outputs once. Arithmetic
//! of f32 goes through [`crate::chain`] as far as it goes together, everything else through the loops of the
//! stand-alone kernels; the bits are theirs either way.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytemuck::cast_slice_mut;
use partita_base::{DType, Diagnostic, Result};

use crate::binary::binary_tile;
use crate::chain::{self, Action, CHUNK, Code, Kind, Operands, STREAM_ALIGNMENT, Step};
use crate::compare::{clamp_tile, compare_tile, select_tile};
use crate::convert::convert_tile;
use crate::copy::{fill_tile, iota_tile};
use crate::reduce::{REDUCE_BLOCK_ROWS, Sum, block_results, fold_along, fold_rows};
use crate::tiles::{Found, Reader, SHORTEST_TILE, TILE, TileBytes, Writer, overlap};
use crate::unary::unary_tile;
use crate::workspace::{Workspace, piece_bytes};
use crate::{Binary, Direction, Reduction, Scalar, Unary, View, ViewMut};

/// What one instruction of an [`ElementwiseProgram`] computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EwOp {
    /// A function of one argument.
    Unary(Unary),
    /// A function of two arguments of one type.
    Binary(Binary),
    /// Two arguments of one type give bool; `total_order` as for [`crate::compare`].
    Compare {
        /// The relation.
        direction: Direction,
        /// Whether floats compare by the total order.
        total_order: bool,
    },
    /// Predicate, value where true, value where false.
    Select,
    /// Lower bound, value, upper bound.
    Clamp,
    /// The argument in the type of the result.
    Convert,
    /// The argument's bits in the type of the result, of the same size.
    Bitcast,
    /// No arguments; one value everywhere.
    Constant(Scalar),
    /// No arguments; the index along a dimension of the program's shape.
    Iota {
        /// The dimension.
        dim: usize,
    },
}

impl EwOp {
    fn argument_count(self) -> usize {
        match self {
            EwOp::Constant(_) | EwOp::Iota { .. } => 0,
            EwOp::Unary(_) | EwOp::Convert | EwOp::Bitcast => 1,
            EwOp::Binary(_) | EwOp::Compare { .. } => 2,
            EwOp::Select | EwOp::Clamp => 3,
        }
    }

    /// Whether the op takes these types to that one.
    fn accepts(self, args: &[DType], out: DType) -> bool {
        match (self, args) {
            (EwOp::Unary(op), &[x]) => op.result_dtype(x) == Some(out),
            (EwOp::Binary(op), &[a, b]) => a == b && out == a && op.supports(a),
            (EwOp::Compare { .. }, &[a, b]) => a == b && out == DType::Bool,
            (EwOp::Select, &[pred, a, b]) => pred == DType::Bool && a == b && out == a,
            (EwOp::Clamp, &[low, x, high]) => low == x && high == x && out == x,
            (EwOp::Convert, &[_]) => true,
            (EwOp::Bitcast, &[x]) => x.size_bytes() == out.size_bytes(),
            (EwOp::Constant(value), &[]) => value.dtype() == out,
            (EwOp::Iota { .. }, &[]) => true,
            _ => false,
        }
    }
}

/// One step: registers in, register out.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EwInstr {
    /// What to compute.
    pub op: EwOp,
    /// The registers it reads.
    pub args: Vec<usize>,
    /// The register it writes.
    pub out: usize,
}

/// A register that is reduced on the way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EwFold {
    /// What is reduced.
    pub register: usize,
    /// How.
    pub reduction: Reduction,
    /// Elements of a row: those of the last dimensions.
    pub width: usize,
    /// In which direction.
    pub direction: FoldDirection,
}

/// What a reduction of rows takes away.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FoldDirection {
    /// The rows. It gives the results of blocks of [`crate::REDUCE_BLOCK_ROWS`] rows, for [`crate::join_blocks`].
    Across,
    /// Their elements, which join this one. It gives a number for every row of more than one element.
    Along(Scalar),
}

/// Where a register's tile lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Place {
    /// In the memory of an output.
    Output(usize),
    /// In a tile of the workspace; inputs `i` own slot `i`.
    Slot(usize),
    /// In a chunk of the workspace, between steps of one chain.
    Chunk(usize),
    /// Nowhere: it goes straight into the next step of a chain.
    Passing,
}

/// Elements of a tile where there are chains only, which keep nothing of it.
const CHAIN_TILE: usize = 8 * TILE;

/// Where an output is at least so long, it leaves the caches before anybody reads it: it may as well not enter them.
pub const STREAM_BYTES: usize = 8 << 20;

/// Instructions of one chain at most, and the registers they are about: two operands and a result each.
const CHAIN: usize = 32;
const _: () = assert!(3 * CHAIN + ElementwiseProgram::MAX_OUTPUTS <= Operands::MOST);
const _: () = assert!(ElementwiseProgram::MAX_INPUTS <= Operands::MOST_INPUTS);

/// What runs over a tile as a whole.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Pass {
    /// One instruction, by its number.
    Single(usize),
    /// Several instructions at once.
    Chain(Chain),
}

/// Steps, whose operands are registers, by their number in a list; behind the program's registers follow what its folds
/// give.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Chain {
    steps: Vec<Step>,
    registers: Vec<usize>,
    code: Compiled,
}

impl Chain {
    /// How many elements before it is read an input is asked for; `None` where that would only be more to do.
    fn ahead(&self) -> Option<usize> {
        (self.steps.len() >= LONG_CHAIN).then_some(AHEAD)
    }
}

/// The machine code of a chain, made when it first runs. It follows from the rest of the program: two that are equal
/// have the same.
#[derive(Clone, Default)]
struct Compiled(Arc<OnceLock<Option<Code>>>);

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
        let state = match self.0.get() {
            None => "not yet",
            Some(None) => "not possible",
            Some(Some(_)) => "there",
        };
        f.write_str(state)
    }
}

/// A chain of elementwise functions over one shape, as data. Registers hold tensors of that shape; the first
/// `input_count` are the inputs, every other is written by one instruction before it is read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ElementwiseProgram {
    registers: Vec<DType>,
    input_count: usize,
    instructions: Vec<EwInstr>,
    outputs: Vec<usize>,
    folds: Vec<EwFold>,
    /// For each fold, whether a step of a chain does it; the others read tile by tile.
    in_chain: Vec<bool>,
    passes: Vec<Pass>,
    places: Vec<Place>,
    /// For constants, and inputs that may be one value everywhere: the chunk which that value fills for chains.
    filled: Vec<Option<usize>>,
    /// Whether anything but chains reads an input.
    tiled: Vec<bool>,
    /// The elements of rows that are reduced, where there are such.
    row: Option<usize>,
    slots: usize,
    chunks: usize,
}

impl ElementwiseProgram {
    /// The most inputs a program can have.
    pub const MAX_INPUTS: usize = 32;
    /// The most outputs a program can have.
    pub const MAX_OUTPUTS: usize = 16;

    /// A program over registers of these types; `outputs` are the registers to keep.
    ///
    /// # Errors
    /// E421 where a register is read before it is written, written twice, or of a type its op does not give,
    /// or there are too many inputs or outputs.
    pub fn new(
        registers: Vec<DType>,
        input_count: usize,
        instructions: Vec<EwInstr>,
        outputs: Vec<usize>,
    ) -> Result<Self> {
        Self::with_folds(registers, input_count, instructions, outputs, Vec::new())
    }

    /// As [`Self::new`]; some registers are reduced on the way, whether they are kept or not.
    ///
    /// # Errors
    /// As [`Self::new`].
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

    /// How many registers, the first ones, are inputs.
    pub fn input_count(&self) -> usize {
        self.input_count
    }

    /// The steps, in the order they run.
    pub fn instructions(&self) -> &[EwInstr] {
        &self.instructions
    }

    /// The registers that are kept, in the order of the outputs.
    pub fn outputs(&self) -> &[usize] {
        &self.outputs
    }

    /// What is reduced.
    pub fn folds(&self) -> &[EwFold] {
        &self.folds
    }

    fn is_folded(&self, register: usize) -> bool {
        self.folds.iter().any(|fold| fold.register == register)
    }

    /// Whether a register is folded from its tile.
    fn is_folded_later(&self, register: usize) -> bool {
        self.folds.iter().zip(&self.in_chain).any(|(fold, in_chain)| fold.register == register && !in_chain)
    }

    /// The fold that the chain does which makes a register.
    fn fold_in_chain(&self, register: usize) -> Option<usize> {
        let mut folds = self.folds.iter().zip(&self.in_chain);
        folds.position(|(fold, &in_chain)| in_chain && fold.register == register)
    }

    /// Whether a fold may be a step of the chain that makes its register: a sum of long rows, each of which is added to
    /// one row. They end where what streams may begin.
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

/// Instructions in an order in which those that read a result follow it wherever they can: then it need not be kept.
/// Constants come first.
fn ordered(instructions: Vec<EwInstr>, input_count: usize, registers: usize) -> Vec<EwInstr> {
    let (mut ordered, mut left): (Vec<_>, Vec<_>) =
        instructions.into_iter().partition(|i| matches!(i.op, EwOp::Constant(_)));
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

impl ElementwiseProgram {
    /// Groups the instructions into passes and gives every register a place; slots and chunks are reused once the
    /// last reader has run.
    fn arrange(&mut self) {
        let (count, registers) = (self.instructions.len(), self.registers.len());
        let constant =
            |program: &Self, number: usize| matches!(program.instructions[number].op, EwOp::Constant(_));
        // The chain that an instruction belongs to, and the instruction whose result it finds there.
        let mut chain: Vec<Option<usize>> = vec![None; count];
        let mut previous: Vec<Option<usize>> = vec![None; count];
        let (mut chains, mut length, mut last) = (0, 0, None);
        for number in (0..count).filter(|&number| !constant(self, number)) {
            if !self.chains(&self.instructions[number]) {
                last = None;
                continue;
            }
            if last.is_none() || length == CHAIN {
                (chains, length, last) = (chains + 1, 0, None);
            }
            (chain[number], previous[number]) = (Some(chains), last);
            (last, length) = (Some(number), length + 1);
        }
        let mut writer: Vec<Option<usize>> = vec![None; registers];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); registers];
        for (number, instruction) in self.instructions.iter().enumerate() {
            writer[instruction.out] = Some(number);
            instruction.args.iter().for_each(|&arg| readers[arg].push(number));
        }
        let lasting = |program: &Self, register: usize| {
            writer[register].is_none_or(|number| constant(program, number))
                || program.outputs.contains(&register)
                || program.is_folded(register)
        };
        // Whether anyone but chains looks for a register.
        let is_tiled = |(register, readers): (usize, &Vec<usize>)| {
            self.outputs.contains(&register)
                || self.is_folded_later(register)
                || readers.iter().any(|&reader| chain[reader].is_none())
        };
        let tiled: Vec<bool> = readers.iter().enumerate().map(is_tiled).collect();
        self.tiled = tiled[..self.input_count].to_vec();
        for register in 0..registers {
            let same = writer[register].is_none_or(|number| constant(self, number));
            if same && readers[register].iter().any(|&reader| chain[reader].is_some()) {
                self.filled[register] = Some(self.chunks);
                self.chunks += 1;
            }
        }

        let (mut free_slots, mut free_chunks) = (Vec::new(), Vec::new());
        let take = |free: &mut Vec<usize>, count: &mut usize| {
            free.pop().unwrap_or_else(|| {
                *count += 1;
                *count - 1
            })
        };
        for number in 0..count {
            let EwInstr { op, args, out } = self.instructions[number].clone();
            let within = |reader: &usize| chain[number].is_some() && chain[*reader] == chain[number];
            let passes = |&reader: &usize| {
                let next = &self.instructions[reader];
                // Where the chain sums rows, the sum takes its place in the accumulator.
                within(&reader)
                    && previous[reader] == Some(number)
                    && self.fold_in_chain(out).is_none()
                    && (next.args.len() < 2
                        || next.args[0] != next.args[1]
                        || next.op == EwOp::Binary(Binary::Mul))
            };
            // What is folded is read tile by tile.
            let local = readers[out].iter().all(within) && !self.is_folded_later(out);
            let kept = self.outputs.iter().position(|&register| register == out);
            self.places[out] = match kept {
                _ if constant(self, number) => {
                    // Made once, in a tile of its own if anyone needs one.
                    if tiled[out] {
                        Place::Slot(take(&mut Vec::new(), &mut self.slots))
                    } else {
                        Place::Passing
                    }
                }
                // It is made where it must end, if nobody else looks for it in a slot.
                Some(output) if local => Place::Output(output),
                None if local && chain[number].is_some() => {
                    if readers[out].iter().all(passes) {
                        Place::Passing
                    } else {
                        Place::Chunk(take(&mut free_chunks, &mut self.chunks))
                    }
                }
                _ => Place::Slot(take(&mut free_slots, &mut self.slots)),
            };
            match (chain[number], self.passes.last_mut()) {
                _ if matches!(op, EwOp::Constant(_)) => {}
                (None, _) => self.passes.push(Pass::Single(number)),
                (Some(_), Some(Pass::Chain(_))) if previous[number].is_some() => {}
                (Some(_), _) => self.passes.push(Pass::Chain(Chain::default())),
            }
            if chain[number].is_some() {
                let held = previous[number].map(|number| self.instructions[number].out);
                let held = held.filter(|&register| self.fold_in_chain(register).is_none());
                self.extend(op, &args, out, held);
            }
            for (i, &arg) in args.iter().enumerate() {
                if readers[arg].last() == Some(&number) && !args[..i].contains(&arg) && !lasting(self, arg) {
                    match self.places[arg] {
                        Place::Slot(slot) => free_slots.push(slot),
                        Place::Chunk(chunk) => free_chunks.push(chunk),
                        Place::Output(_) | Place::Passing => {}
                    }
                }
            }
        }
    }

    /// Whether no register needs a slot that is made or looked at tile by tile: then tiles are as long as one likes.
    fn has_chains_only(&self) -> bool {
        let is_made_there =
            |(output, &register): (usize, &usize)| self.places[register] == Place::Output(output);
        self.passes.iter().all(|pass| matches!(pass, Pass::Chain(_)))
            && self.slots == self.input_count
            && self.row.is_none()
            && self.in_chain.iter().all(|&in_chain| in_chain)
            && self.outputs.iter().enumerate().all(is_made_there)
    }

    /// Whether one chain is all there is to do: then it may go from row to row.
    fn has_one_chain(&self) -> bool {
        self.has_chains_only() && self.passes.len() == 1
    }

    /// Whether everything that reads an input does so before an output is written, chunk by chunk: then the output
    /// may lie where the input does.
    fn reads_first(&self, input: usize, output: usize) -> bool {
        let register = self.outputs[output];
        let Some(writer) = self.instructions.iter().position(|instruction| instruction.out == register)
        else {
            return false;
        };
        match self.places[register] {
            // Copied there at the end of a tile.
            Place::Slot(_) => !self.outputs.contains(&input),
            _ if self.is_folded(input) => false,
            Place::Output(first) => {
                let after = &self.instructions[writer + 1..];
                first == output
                    && self.chains(&self.instructions[writer])
                    && !self.outputs.contains(&input)
                    && after.iter().all(|instruction| !instruction.args.contains(&input))
            }
            Place::Chunk(_) | Place::Passing => false,
        }
    }

    /// Whether a long output is best written past the caches: nobody reads it there, and no input lies there, which
    /// would be in the caches already.
    fn streams(&self, output: usize, view: &ViewMut<'_>, inputs: &[View<'_>], elements: usize) -> bool {
        let register = self.outputs[output];
        let is_made_there = self.places[register] == Place::Output(output);
        let is_read = || self.instructions.iter().any(|instruction| instruction.args.contains(&register));
        elements * self.registers[register].size_bytes() >= STREAM_BYTES
            && self.registers[register] == DType::F32
            && self.row.is_none_or(|row| (row * size_of::<f32>()).is_multiple_of(STREAM_ALIGNMENT))
            && view.as_view().as_ptr().addr().is_multiple_of(STREAM_ALIGNMENT)
            && self.outputs.iter().filter(|&&other| other == register).count() == 1
            && !(is_made_there && is_read())
            && !inputs.iter().any(|input| overlap(input.address_range(), view.address_range()))
    }

    /// Whether an instruction may be part of a chain.
    fn chains(&self, instruction: &EwInstr) -> bool {
        let EwInstr { op, args, out } = instruction;
        let f32s = args.iter().chain([out]).all(|&register| self.registers[register] == DType::F32);
        f32s && matches!(
            op,
            EwOp::Unary(
                Unary::Neg
                    | Unary::Abs
                    | Unary::Sqrt
                    | Unary::Rsqrt
                    | Unary::Exp
                    | Unary::Log
                    | Unary::Tanh
                    | Unary::Logistic
            ) | EwOp::Binary(
                Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Max | Binary::Min
            )
        )
    }

    /// The machine code of a chain, where there can be such.
    fn code<'a>(&self, chain: &'a Chain) -> Option<&'a Code> {
        let kind = |&register: &usize| {
            let number = self.instructions.iter().find_map(|instruction| match instruction.op {
                EwOp::Constant(value) if instruction.out == register => Some(value.get()),
                _ => None,
            });
            match (number, self.places.get(register)) {
                (Some(number), _) => Kind::Number(number),
                (None, Some(Place::Chunk(_))) => Kind::Between,
                (None, _) => Kind::Memory,
            }
        };
        let make = || {
            let kinds: Vec<Kind> = chain.registers.iter().map(kind).collect();
            Code::new(&chain.steps, &kinds, chain.ahead())
        };
        chain.code.0.get_or_init(make).as_ref()
    }

    /// Adds an instruction to the last chain, whose accumulator holds the register `held`.
    fn extend(&mut self, op: EwOp, args: &[usize], out: usize, held: Option<usize>) {
        let sum = self.fold_in_chain(out).map(|fold| self.registers.len() + fold);
        let Some(Pass::Chain(chain)) = self.passes.last_mut() else { unreachable!("a chain was begun") };
        let mut number = |register: usize| {
            let known = chain.registers.iter().position(|&known| known == register);
            known.unwrap_or_else(|| {
                chain.registers.push(register);
                chain.registers.len() - 1
            }) as u8
        };
        let swapped = args.len() == 2 && held == Some(args[1]) && held != Some(args[0]);
        let action = match op {
            EwOp::Binary(Binary::Add) => Action::Add,
            EwOp::Binary(Binary::Sub) if swapped => Action::SubFrom,
            EwOp::Binary(Binary::Sub) => Action::Sub,
            EwOp::Binary(Binary::Mul) if args[0] == args[1] => Action::Square,
            EwOp::Binary(Binary::Mul) => Action::Mul,
            EwOp::Binary(Binary::Div) if swapped => Action::DivFrom,
            EwOp::Binary(Binary::Div) => Action::Div,
            EwOp::Binary(Binary::Max) => Action::Max,
            EwOp::Binary(Binary::Min) => Action::Min,
            EwOp::Unary(Unary::Neg) => Action::Neg,
            EwOp::Unary(Unary::Abs) => Action::Abs,
            EwOp::Unary(Unary::Sqrt) => Action::Sqrt,
            EwOp::Unary(Unary::Rsqrt) => Action::Rsqrt,
            EwOp::Unary(Unary::Exp) => Action::Exp,
            EwOp::Unary(Unary::Log) => Action::Log,
            EwOp::Unary(Unary::Tanh) => Action::Tanh,
            EwOp::Unary(Unary::Logistic) => Action::Logistic,
            _ => unreachable!("no part of a chain"),
        };
        let load = if held == Some(args[0]) || swapped { Step::NOTHING } else { number(args[0]) };
        let other = args.get(1).filter(|_| action != Action::Square);
        let other = other.map(|&second| if swapped { args[0] } else { second });
        let constant =
            other.is_some_and(|register| register >= self.input_count && self.filled[register].is_some());
        let operand = other.map_or(Step::NOTHING, &mut number);
        let store = if self.places[out] == Place::Passing { Step::NOTHING } else { number(out) };
        let sum = sum.map(&mut number);
        chain.steps.push(Step::new(load, action, operand, constant, store));
        if let Some(sum) = sum {
            chain.steps.push(Step::new(Step::NOTHING, Action::Add, sum, false, sum));
        }
    }
}

/// Bytes of workspace that [`run_elementwise`] needs.
pub fn elementwise_workspace_bytes(program: &ElementwiseProgram) -> usize {
    piece_bytes::<f32>(program.chunks * CHUNK) + piece_bytes::<u64>(program.slots * TILE)
}

/// A part of a longer run of a program.
pub struct Part<'a, 'b> {
    /// Elements that were done before, since the results of the folds began.
    pub before: usize,
    /// Elements that are written in all, this part's and those of others, before any is read again.
    pub elements: usize,
    /// The results of each fold: across rows those of this part and others, [`crate::block_results_bytes`] bytes; along
    /// rows this part's own.
    pub folded: &'a mut [&'b mut [u8]],
}

/// Runs a program over `shape`. Inputs have that shape and any strides (zero broadcasts); outputs are
/// contiguous. An output may be written over an input with the same layout.
///
/// # Panics
/// Where shapes or types are not the program's, an output is not contiguous, or the workspace is too small; and where
/// the program folds anything.
pub fn run_elementwise(
    program: &ElementwiseProgram,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    shape: &[usize],
    workspace: &mut [u8],
) {
    let whole = Part { before: 0, elements: shape.iter().product(), folded: &mut [] };
    run_elementwise_part(program, inputs, outputs, shape, whole, workspace);
}

/// As [`run_elementwise`], for a part of what there is to do.
///
/// # Panics
/// As [`run_elementwise`], and where the results of folds are too small.
pub fn run_elementwise_part(
    program: &ElementwiseProgram,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    shape: &[usize],
    mut part: Part<'_, '_>,
    workspace: &mut [u8],
) {
    assert_eq!(part.folded.len(), program.folds.len(), "a program gets the results of all its folds");
    assert_eq!(inputs.len(), program.input_count, "a program gets all its inputs");
    assert_eq!(outputs.len(), program.outputs.len(), "a program gets all its outputs");
    let readers: [Option<Reader<'_>>; ElementwiseProgram::MAX_INPUTS] = std::array::from_fn(|i| {
        let view = inputs.get(i)?;
        assert_eq!((view.dtype(), view.shape()), (program.registers[i], shape), "input {i} of the program");
        let mut reader = Reader::new(view);
        for (number, out) in outputs.iter().enumerate() {
            let same = view.as_ptr() == out.as_view().as_ptr() && reader.is_direct();
            if !(same && program.reads_first(i, number)) {
                reader.keep_apart_from(view, out);
            }
        }
        Some(reader)
    });
    // Those that are there: looking at the rest in every tile would take longer than many a tile.
    let readers = &readers[..program.input_count];
    let mut streams = [false; ElementwiseProgram::MAX_OUTPUTS];
    for (output, (streams, view)) in streams.iter_mut().zip(&*outputs).enumerate() {
        *streams = program.streams(output, view, inputs, part.elements);
    }
    let mut views = outputs.iter_mut();
    let mut writers: [Option<Writer<'_>>; ElementwiseProgram::MAX_OUTPUTS] = std::array::from_fn(|i| {
        let view = views.next()?;
        let dtype = program.registers[program.outputs[i]];
        assert_eq!((view.dtype(), view.shape()), (dtype, shape), "output {i} of the program");
        let writer = Writer::new(view);
        assert!(writer.is_direct(), "output {i} of the program is contiguous");
        Some(writer)
    });
    let mut workspace = Workspace::new(workspace);
    let (chunks, _) = workspace.take::<f32>(program.chunks * CHUNK).as_chunks_mut::<CHUNK>();
    let (slots, _) = workspace.take::<u64>(program.slots * TILE).as_chunks_mut::<TILE>();
    let len: usize = shape.iter().product();
    if len == 0 {
        return;
    }
    let mut operands = Operands::new();
    let mut in_chunk = [false; ElementwiseProgram::MAX_INPUTS];
    prepare(program, readers, slots, chunks, &mut in_chunk, len.min(TILE));
    // Rows that repeat, such as a bias, are read where they are if no tile goes over their end.
    let most = if program.has_chains_only() { CHAIN_TILE } else { TILE };
    let even = readers.iter().flatten().filter_map(|reader| reader.even_tile(most)).min().unwrap_or(most);
    let mut found = [Found::Scattered; ElementwiseProgram::MAX_INPUTS];
    let mut carried = [0u64; ElementwiseProgram::MAX_OUTPUTS];
    let mut next = 0;
    while next < len {
        let start = next;
        let mut count = program.row.map_or(even, |row| row_tile(start, row)).min(len - start);
        for (fold, &in_chain) in program.folds.iter().zip(&program.in_chain) {
            if in_chain {
                count = count.min(fold.width - (part.before + start) % fold.width);
            }
        }
        find_tiles(readers, &mut found, start, count);
        // What has to be copied first is copied to a slot, which is a tile long.
        let is_at_hand = |(reader, found): (&Reader<'_>, &Found<'_>)| {
            reader.is_uniform() || !matches!(found, Found::Scattered)
        };
        if count > TILE && !readers.iter().flatten().zip(&found).all(is_at_hand) {
            count = TILE;
            find_tiles(readers, &mut found, start, count);
        }
        for (input, (slot, reader)) in slots.iter_mut().zip(readers.iter().flatten()).enumerate() {
            match (found[input], program.filled[input]) {
                (Found::Together(_), _) => {}
                _ if reader.is_uniform() => {}
                (Found::Same(element), Some(chunk)) if !program.tiled[input] => {
                    chunks[chunk].fill(bytemuck::pod_read_unaligned(element));
                    in_chunk[input] = true;
                }
                _ => {
                    in_chunk[input] = false;
                    reader.tile(start, count, cast_slice_mut(slot));
                }
            }
        }
        let rows = if program.has_one_chain() {
            even_rows(program, readers, part.before + start, count, (len - start) / count)
        } else {
            1
        };
        next = start + rows * count;
        for pass in &program.passes {
            match pass {
                Pass::Single(number) => {
                    let instruction = &program.instructions[*number];
                    single(program, instruction, readers, &mut writers, slots, shape, start, count);
                }
                Pass::Chain(chain) => {
                    let (operands, part) = (&mut operands, &mut part);
                    let held = Held { slots, chunks, found: &found, in_chunk: &in_chunk, part, operands };
                    run_chain(program, chain, readers, &mut writers, &streams, held, start, count, rows);
                }
            }
        }
        let folds = program.folds.iter().zip(&program.in_chain).zip(&mut *part.folded).zip(&mut carried);
        for (((fold, _), folded), carried) in folds.filter(|(((_, in_chain), _), _)| !**in_chain) {
            let &EwFold { register, reduction, width, direction } = fold;
            let tile = read(program, register, readers, slots, &[], start, count);
            let dtype = program.registers[register];
            match direction {
                FoldDirection::Across => {
                    fold_rows(reduction, dtype, tile, part.before + start, width, folded)
                }
                FoldDirection::Along(init) => {
                    fold_along(reduction, dtype, tile, start, width, &init, carried, folded);
                }
            }
        }
        for (output, &register) in program.outputs.iter().enumerate() {
            if program.places[register] != Place::Output(output) {
                finish(program, register, output, readers, &mut writers, &streams, slots, start, count);
            }
        }
    }
    if streams.contains(&true) {
        chain::finish_streams();
    }
}

/// Elements of the tile that begins at `start` where rows are reduced: those of some whole rows, or of one row as many as
/// are reduced at a time.
fn row_tile(start: usize, row: usize) -> usize {
    if row < SHORTEST_TILE { TILE / row * row } else { TILE.min(row - start % row) }
}

/// Finds the elements of all inputs from `start` on.
fn find_tiles<'a>(readers: &'a [Option<Reader<'_>>], found: &mut [Found<'a>], start: usize, count: usize) {
    for (found, reader) in found.iter_mut().zip(readers.iter().flatten()) {
        *found = reader.find(start, count);
    }
}

/// How many of `most` tiles of `count` elements are rows whose operands lie evenly, and are folded into one row. The first
/// element is number `first` of what is folded.
fn even_rows(
    program: &ElementwiseProgram,
    readers: &[Option<Reader<'_>>],
    first: usize,
    count: usize,
    most: usize,
) -> usize {
    if readers.iter().flatten().any(|reader| reader.row_step(count).is_none()) {
        return 1;
    }
    program.folds.iter().fold(most, |rows, fold| {
        let (row, column) = (first / fold.width, first % fold.width);
        if fold.width == count && column == 0 {
            rows.min(REDUCE_BLOCK_ROWS - row % REDUCE_BLOCK_ROWS)
        } else {
            1
        }
    })
}

/// Fills what is the same in every tile: constants, and inputs that are one value everywhere.
fn prepare(
    program: &ElementwiseProgram,
    readers: &[Option<Reader<'_>>],
    slots: &mut [TileBytes],
    chunks: &mut [[f32; CHUNK]],
    in_chunk: &mut [bool],
    count: usize,
) {
    for (input, (slot, reader)) in slots.iter_mut().zip(readers.iter().flatten()).enumerate() {
        if !reader.is_direct() && reader.is_uniform() {
            let tile = reader.tile(0, count, cast_slice_mut(slot));
            if let Some(chunk) = program.filled[input] {
                chunks[chunk].fill(bytemuck::cast_slice(tile)[0]);
                in_chunk[input] = true;
            }
        }
    }
    for instruction in &program.instructions {
        let EwOp::Constant(value) = instruction.op else { continue };
        if let Place::Slot(slot) = program.places[instruction.out] {
            let bytes = count * value.dtype().size_bytes();
            fill_tile(&value, &mut cast_slice_mut(&mut slots[slot])[..bytes]);
        }
        if let Some(chunk) = program.filled[instruction.out] {
            chunks[chunk].fill(value.get());
        }
    }
}

/// What a tile's registers rest in.
struct Held<'a, 'b, 'c> {
    slots: &'a mut [TileBytes],
    chunks: &'a mut [[f32; CHUNK]],
    /// Where the inputs' tiles are.
    found: &'a [Found<'a>],
    /// Inputs that are one value all over this tile, in their chunks.
    in_chunk: &'a [bool],
    /// Where sums of rows are.
    part: &'a mut Part<'b, 'c>,
    /// Room for the memory of a chain.
    operands: &'a mut Operands,
}

/// Elements of an input that are asked for so many before they are read.
const AHEAD: usize = 1024;

/// Steps of a chain that are as much work as waiting for memory. Shorter ones wait anyway: asking early would only be
/// more to do.
const LONG_CHAIN: usize = 12;

/// Runs a chain over one tile, or over so many one after another whose operands lie evenly.
fn run_chain(
    program: &ElementwiseProgram,
    chain: &Chain,
    readers: &[Option<Reader<'_>>],
    writers: &mut [Option<Writer<'_>>],
    streams: &[bool],
    held: Held<'_, '_, '_>,
    start: usize,
    count: usize,
    rows: usize,
) {
    let (slots, chunks, operands) = (held.slots.as_mut_ptr(), held.chunks.as_mut_ptr(), held.operands);
    operands.clear();
    let code = program.code(chain);
    // Code asks by itself.
    let ahead = chain.ahead().filter(|_| code.is_none());
    for &register in &chain.registers {
        if let Some(fold) = register.checked_sub(program.registers.len()) {
            let results = cast_slice_mut(held.part.folded[fold]);
            let (first, width) = (held.part.before + start, program.folds[fold].width);
            let results = block_results::<f32, Sum>(results, first, count, width);
            operands.push(results.as_mut_ptr(), 1, false, 0);
            continue;
        }
        let reader = readers.get(register).and_then(Option::as_ref);
        let found = held.found.get(register);
        let direct = match found {
            Some(Found::Together(bytes)) => Some(bytes.as_ptr()),
            _ => None,
        };
        let place = match program.filled[register] {
            Some(chunk) if reader.is_none() || held.in_chunk[register] => Place::Chunk(chunk),
            _ => program.places[register],
        };
        let (pointer, stride, streams) = match (direct, place) {
            (Some(pointer), _) => (pointer.cast_mut().cast(), 1, false),
            (None, Place::Output(output)) => {
                let writer = writers[output].as_mut().expect("every output has a writer");
                (writer.pointer_at(start).cast(), 1, streams[output])
            }
            (None, Place::Slot(slot)) => (slots.wrapping_add(slot).cast(), 1, false),
            (None, Place::Chunk(chunk)) => (chunks.wrapping_add(chunk).cast(), 0, false),
            (None, Place::Passing) => unreachable!("what passes has no memory"),
        };
        if let (Some(ahead), Some(reader)) = (ahead, reader.filter(|reader| reader.is_direct())) {
            operands.ask(reader.ahead(start + ahead));
        }
        // Nobody asks for a step where there is one row, and what is the same everywhere takes none.
        let step = match (reader, place) {
            (Some(reader), _) => reader.row_step(count).unwrap_or(0),
            (None, Place::Output(_)) => count as isize,
            (None, _) => 0,
        };
        match (found, place) {
            (Some(Found::Same(element)), Place::Chunk(chunk)) if step != 0 => {
                operands.push_of_row(chunks.wrapping_add(chunk), element.as_ptr().cast(), step);
            }
            _ => operands.push(pointer, stride, streams, step),
        }
    }
    // SAFETY: inputs and outputs have `count` elements from `start` on, and in each row after that, for which their views
    // vouch; slots are a tile long, chunks a chunk; inputs that an output covers were copied to their slots.
    unsafe { chain::run(&chain.steps, code, operands, rows, count) };
}

/// The bytes of a register: lent by its input, or in its slot, which is not the one at `hole`.
fn read<'b>(
    program: &ElementwiseProgram,
    register: usize,
    readers: &'b [Option<Reader<'_>>],
    before: &'b [TileBytes],
    after: &'b [TileBytes],
    start: usize,
    count: usize,
) -> &'b [u8] {
    if let Some(lent) = readers.get(register).and_then(Option::as_ref).and_then(|r| r.lent(start, count)) {
        return lent;
    }
    let Place::Slot(slot) = program.places[register] else {
        unreachable!("a register that is read has a slot")
    };
    let tile = before.get(slot).unwrap_or_else(|| &after[slot - before.len() - 1]);
    &bytemuck::cast_slice(tile)[..count * program.registers[register].size_bytes()]
}

fn single(
    program: &ElementwiseProgram,
    instruction: &EwInstr,
    readers: &[Option<Reader<'_>>],
    writers: &mut [Option<Writer<'_>>],
    slots: &mut [TileBytes],
    shape: &[usize],
    start: usize,
    count: usize,
) {
    let EwInstr { op, args, out: register } = instruction;
    let to = program.registers[*register];
    let (before, out, after): (&[TileBytes], &mut [u8], &[TileBytes]) = match program.places[*register] {
        Place::Output(output) => {
            let writer = writers[output].as_mut().expect("every output has a writer");
            (slots, writer.tile(start, count).expect("outputs are contiguous"), &[])
        }
        Place::Slot(slot) => {
            let (before, rest) = slots.split_at_mut(slot);
            let (tile, after) = rest.split_first_mut().expect("every slot exists");
            (before, &mut cast_slice_mut(tile)[..count * to.size_bytes()], after)
        }
        Place::Chunk(_) | Place::Passing => unreachable!("only chains write there"),
    };
    let arg = |i: usize| read(program, args[i], readers, before, after, start, count);
    let from = args.first().map_or(to, |&register| program.registers[register]);
    match *op {
        EwOp::Unary(op) => unary_tile(op, from, arg(0), out),
        EwOp::Binary(op) => binary_tile(op, from, arg(0), arg(1), out),
        EwOp::Compare { direction, total_order } => {
            compare_tile(direction, total_order, from, arg(0), arg(1), out)
        }
        EwOp::Select => select_tile(to, arg(0), arg(1), arg(2), out),
        EwOp::Clamp => clamp_tile(to, arg(0), arg(1), arg(2), out),
        EwOp::Convert => convert_tile(from, to, arg(0), out),
        EwOp::Bitcast => out.copy_from_slice(arg(0)),
        EwOp::Constant(_) => unreachable!("constants are made beforehand"),
        EwOp::Iota { dim } => {
            iota_tile(to, shape[dim], shape[dim + 1..].iter().product(), start, out);
        }
    }
}

/// Copies a register that lives elsewhere to its output.
fn finish(
    program: &ElementwiseProgram,
    register: usize,
    output: usize,
    readers: &[Option<Reader<'_>>],
    writers: &mut [Option<Writer<'_>>],
    streams: &[bool],
    slots: &[TileBytes],
    start: usize,
    count: usize,
) {
    let (first, rest) = writers.split_at_mut(output);
    let writer = rest[0].as_mut().expect("every output has a writer");
    if let Place::Output(other) = program.places[register] {
        let into = writer.tile(start, count).expect("outputs are contiguous");
        let other = first[other].as_mut().expect("an output is made at its first place");
        into.copy_from_slice(other.tile(start, count).expect("outputs are contiguous"));
        return;
    }
    let from = read(program, register, readers, slots, &[], start, count);
    if streams[output] {
        // SAFETY: the output has `count` elements from `start` on, of f32 where it is streamed; tiles are cache lines.
        unsafe { chain::stream(bytemuck::cast_slice(from), writer.pointer_at(start).cast()) };
    } else {
        writer.tile(start, count).expect("outputs are contiguous").copy_from_slice(from);
    }
}
